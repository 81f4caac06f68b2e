// The optimizers there are, one row each: the steps that update one bucket, which options they read and what holds where nobody says.
// --optimizer lists the names again (tools/options.def); the steps themselves are rows of kernels/.
#ifndef TESSERA_OPTIMIZER_RULES_H
#define TESSERA_OPTIMIZER_RULES_H

#include "lower.h"

// What a rule is given: one bucket, or the rank's shard of it, whose gradients are complete.
typedef struct BucketUpdate {
  Lower *lower;
  int index;                  // of the bucket
  bool sharded;               // parameters, gradients and states are the rank's shards
  Value *param, *grad, *scale, *lr, *step, *norm;
  Value *next;                // the new parameters; set by the rule
} BucketUpdate;

enum {   // options that only some optimizers read; lr, weight_decay and clipping belong to all
  READS_MOMENTUM = 1 << 0,
  READS_DAMPENING = 1 << 1,
  READS_NESTEROV = 1 << 2,
  READS_BETAS = 1 << 3,
  READS_EPS = 1 << 4,
  READS_ALPHA = 1 << 5,
  READS_LR_DECAY = 1 << 6,
  READS_INITIAL_ACCUMULATOR = 1 << 7,
  READS_MUON_ADJUST = 1 << 8,
  READS_MOMENTUM_DECAY = 1 << 9,
  READS_DECOUPLED = 1 << 10,
  READS_ADAFACTOR = 1 << 11,   // beta2_decay, eps2, clip_threshold
};

// What one element's update depends on.
typedef enum RuleReach {
  REACH_ELEMENT,              // that element alone: any flat slice can be updated by itself
  REACH_TENSOR,               // norms or row and column sums of its parameter, too
  REACH_MATRIX,               // its whole parameter, which every rank that owns a part of it is sent
} RuleReach;

typedef struct OptimizerRule {
  const char *name;
  // Appends the steps of one bucket, with states that live on, and sets update->next. Errors stick in the Emit of the lowering.
  void (*emit)(BucketUpdate *update, const CompileOptions *options);
  RuleReach reach;
  uint32_t reads;             // READS_*
  double eps, weight_decay;   // defaults, as torch.optim has them
  double beta1, beta2, momentum;
  bool by_shape;              // parameters of up to one axis, of two and of more are updated in different ways: they have buckets of their own
  bool by_blocks;             // it has states by blocks (STATE_BLOCKS)
  bool own;                   // a rule that models bring: needs graph->own_optimizer
} OptimizerRule;

extern const OptimizerRule optimizer_rules[];              // ends with name NULL
const OptimizerRule *optimizer_rule_find(const char *name);   // NULL when there is none

// What an update of that optimizer needs beyond single elements, in parentheses after a blank; "" for nothing, and for names that are no row's.
const char *optimizer_reach_text(const char *name);

// The row that updates a parameter: its group's or the run's. Never NULL after attach_optimizer.
const OptimizerRule *optimizer_rule_of(const CompileOptions *options, const char *param, const Type *type);

// The options as `rule` and `group` (may be NULL) make them: what was left at NAN has its default.
CompileOptions optimizer_rule_options(const OptimizerRule *rule, const CompileOptions *options, const ParamGroup *group);

// The first group that matches a parameter; NULL: none.
const ParamGroup *param_group_find(const CompileOptions *options, const char *param, const Type *type);

// May two parameters be in one bucket, as far as their update is concerned?
bool optimizer_alike(const CompileOptions *options, const char *a, const Type *a_type, const char *b, const Type *b_type);

#endif
