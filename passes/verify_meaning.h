// Inside of verify_plan: what the values around the model mean, derived step by step. verify_meaning.c has the meanings and the rules of single steps,
// verify_ownership.c what must hold of whole buckets.
#ifndef TESSERA_VERIFY_MEANING_H
#define TESSERA_VERIFY_MEANING_H

#include "verify_proof.h"

typedef enum MeaningKind {
  MEANS_MODEL,         // what the model computes with: inputs, activations, constants, gradients of single parameters
  MEANS_FILL,          // one number, from init
  MEANS_PARAM,         // the parameters of a bucket
  MEANS_VIEW,          // one of them
  MEANS_GRAD,          // the gradients of a bucket
  MEANS_STATE,         // an optimizer state of a bucket
  MEANS_AVERAGE,       // a moving average of the parameters of a bucket
  MEANS_PARTIAL,       // partial sums
  MEANS_PAIR,          // [sum of losses, count]
  MEANS_STATISTICS,    // new running statistics of `buffer`
  MEANS_LIMBS,         // squared norm of the gradients, as limbs
  MEANS_DIRECTION,     // what an optimizer that takes several steps makes of a bucket in the first
  MEANS_FACTOR_SUMS,   // sums of the gradient's squares by row and by column
  MEANS_TENSOR_LIMBS,  // norms of the single parameters of a bucket and of their directions
  MEANS_GRAD_NORMS,    // norms of the single gradients of a bucket
  MEANS_LOSS, MEANS_SCALED_COUNT, MEANS_INVERSE_COUNT, MEANS_NORM, MEANS_SCALE,
  MEANS_LR, MEANS_STEP, MEANS_MICRO, MEANS_SEED,     // what the executor writes
  MEANING_COUNT
} MeaningKind;

typedef struct Meaning {
  MeaningKind kind;
  int32_t bucket;      // PARAM, VIEW, GRAD, STATE; else -1
  int32_t slot;        // VIEW: which parameter of the bucket
  bool shard;          // PARAM, GRAD, STATE, DIRECTION: the rank's shard of the bucket; false: all of it
  bool clipped;        // GRAD, LIMBS, NORM, SCALE: of mean gradients clipped by value
  bool narrow;         // PARAM: the 16-bit copy that the model computes with
  bool updated;        // PARAM, STATE: what the optimizer step makes of it; STATISTICS: the mean, of all micro-batches of a step
  bool over_ranks;     // GRAD, PAIR, LIMBS, TENSOR_LIMBS, STATISTICS: summed over the ranks
  bool over_micro;     // GRAD, PAIR, STATISTICS: summed over the rank's micro-batches
  const Value *buffer; // STATISTICS
  bool cut;            // a window of it, from element `lo` on (of the rank's part)
  int64_t lo;
  const Value *root;   // what it was fetched or cut from: the whole, where it lasts; NULL: itself
  const Node *source;  // FILL, STATE, PARTIAL: the step of init that made it
} Meaning;

typedef struct BucketProof {
  const Value *param, *narrow;     // loaded at start; narrow: the 16-bit copy, where the model reads one
  int64_t updated;                 // elements that an optimizer step has taken so far
  const Value *grad;               // what was clipped by value
  const Node *pack, *reduction;
  const Node *optimizer;           // the first step, which takes the gradient
  const Node *apply;               // the one that makes the new parameters; the same, or a later one
} BucketProof;

typedef struct Meanings {
  Proof *proof;
  const Graph *graph;
  Meaning *of;                     // per value
  uint32_t *carriers;              // per value: how many become it
  BucketProof *buckets;
  int64_t count;                   // micro-batches per rank
  struct Covered **covered;        // per squared norm: what it is of (verify_offload.c)
  const Node *mean, *clip;         // the loss and the norm that are reported
} Meanings;

const char *meaning_name(MeaningKind kind);       // "a bucket of parameters", ...

// Does `v` mean that? Otherwise a defect "wrong_input". Its place among the inputs is called `what`.
bool meaning_expect(Meanings *m, const Node *node, const Value *v, MeaningKind kind, const char *what);

// Gives every value its meaning; m->of, carriers and buckets are allocated and zero.
void meanings_derive(Meanings *m);

// The optimizer step of a bucket: its inputs, and what becomes of its outputs.
void meanings_check_optimizer(Meanings *m, const Node *node);

// Later steps of optimizers that take several (verify_update.c).
void meanings_tensor_norms(Meanings *m, const Node *node);
void meanings_apply(Meanings *m, const Node *node);
// Is a flat value of a bucket called and placed as checkpoints look for it: role, bucket, "bucket.B.WHAT", shard or whole?
void meanings_check_label(Meanings *m, const Value *v, Role role, int32_t bucket, bool shard, const char *what);

// Transfers between tiers and windows (verify_offload.c).
void meanings_fetch(Meanings *m, const Node *node);
void meanings_offload(Meanings *m, const Node *node);
void meanings_cut(Meanings *m, const Node *node);
void meanings_join(Meanings *m, const Node *node);
void meanings_norm_sum(Meanings *m, const Node *node);

// What a SquaredNorm is of; that it, or a sum of such, is of all trainable gradients, each once.
void meanings_norm_covers(Meanings *m, const Node *node);
void meanings_norm_complete(Meanings *m, const Node *node, const Value *limbs);

// `v`, made by init, may be the parameters of a bucket, their narrow copy or their average, where they stay.
void meanings_loaded(Meanings *m, const Node *node, const Value *v);

void meanings_ema(Meanings *m, const Node *node);
void meanings_factored_sums(Meanings *m, const Node *node);
// What a first step takes beside its states.
void meanings_check_extra(Meanings *m, const Node *node, Meaning of);

#endif
