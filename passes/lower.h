// State of insert_collectives, shared with its second half (lower_gradients.c): how gradients, loss and updates are lowered.
#ifndef TESSERA_LOWER_H
#define TESSERA_LOWER_H

#include "../ir/op.h"
#include "pass.h"

enum { STATES_MAX = 6 };         // optimizer states of a bucket

typedef struct BucketLower {
  Value **params;                // of the model
  // What partition decided, read off the placements:
  bool stored_flat;              // the parameters lie in shards: gathered where they are needed
  bool updated_flat;             // the optimizer works on shards: gradients go to their owners, whole parameters are gathered after it
  bool partial;                  // gradients are summands: to be reduced over ranks
  Value *param;                  // what is updated: the rank's shard at stage 3, and from stage 1 on beside a narrow copy; else the whole bucket
  Value *stored;                 // what the model reads: `param`, or its narrow copy; the rank's shard at stage 3, else the whole
  Value *whole[2];               // gathered (or stored) whole bucket for forward, backward; NULL: not needed (yet)
  Value **views[2];              // per parameter: what nodes of that direction read
  size_t last[2];                // last old node of that direction that reads the bucket; SIZE_MAX: none
  bool released[2];
  Value **grads;                 // per parameter: gradient of one micro-batch
  int grads_left;                // not yet produced at this point of the walk
  Value *clipped;                // the mean gradient clipped by value; NULL: it is not
  Value *grad;                   // what `update` starts from: sum over the rank's micro-batches (and over ranks with --reduce micro)
  const Node *update;            // the first parameter's Update; NULL: nothing trains here
} BucketLower;

typedef struct Lower {
  Graph *graph;
  const CompileOptions *options;
  Emit emit;
  int ranks;
  int64_t k;                     // micro-batches per rank
  Reduce reduce;
  Node **old;                    // the nodes before
  size_t n_old, n_values;        // values before; the tables below are indexed by their ids
  BucketLower *buckets;
  Value **roots;                 // the parameter that a value is (a view of), or NULL
  Value **backward_views;        // copies of forward view nodes for backward users
  Value **replaced;              // update phase: what to read instead of an old value; NULL: itself
  int *slots;                    // parameter: its index in its bucket
  int32_t *bucket_of;
  const Value **grad_of;         // gradient leaf: its parameter
  Value **old_inputs;            // of the node being lowered
  bool *summed;                  // micro values that `update` reads and that are no gradients: the loss pair, running statistics; their sum is meant
  Value *clip_scale;             // what optimizers multiply clipped gradients by; NULL: they are not
  bool updates_done;
} Lower;

// Gives `v` the formatted name. NULL stays NULL.
Value *lower_name(Lower *l, Value *v, const char *format, int bucket, const char *suffix);
// Initial values; the caller has set the phase to init. `state`: "" for parameters themselves.
Value *lower_fill(Lower *l, const Type *type, const char *value);
Value *lower_load(Lower *l, const char *const *names, const int64_t *starts, int n, const Type *type, bool sharded, const char *state);
Value *lower_collective(Lower *l, const Op *op, Value *x, int bucket, const char *kind, Cause cause);

// Buckets with a narrow copy: the model reads the copy, gradients are narrow. Before anything else.
MUST_USE Status lower_narrow_buckets(Graph *graph);

void lower_gradients_micro(Lower *l, int bucket, const Node *last_producer);
void lower_sum_micro(Lower *l, Value *v);
void lower_reductions_update(Lower *l);
void lower_update_node(Lower *l, Node *node);

// Squared norm of all buckets' gradients, or of what clipping by value left of them, complete over the ranks.
Value *lower_squared_norm(Lower *l, Value *scale, bool clipped, Cause cause);
void lower_updates(Lower *l);         // of all buckets

#endif
