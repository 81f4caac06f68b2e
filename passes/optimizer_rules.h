// The optimizers there are, one row each: what attach_optimizer emits, which options it reads and what holds where they do not say.
// --optimizer lists the names again (tools/options.def); the steps themselves are rows of kernels/.
#ifndef TESSERA_OPTIMIZER_RULES_H
#define TESSERA_OPTIMIZER_RULES_H

#include "../ir/op.h"
#include "pass.h"

// What the update reads besides parameter, gradient and states: factor of the gradient, learning rate, step.
typedef struct Update { Value *scale, *lr, *step; } Update;

enum {   // options that only some optimizers read; lr, weight_decay and clip_norm belong to all
  READS_MOMENTUM = 1 << 0,
  READS_DAMPENING = 1 << 1,
  READS_NESTEROV = 1 << 2,
  READS_BETAS = 1 << 3,
  READS_EPS = 1 << 4,
  READS_ALPHA = 1 << 5,
  READS_LR_DECAY = 1 << 6,
  READS_INITIAL_ACCUMULATOR = 1 << 7,
};

typedef struct OptimizerRule {
  const char *name;
  // Appends one step of `param`, with states that live on. Errors stick in `e`.
  void (*emit)(Emit *e, const CompileOptions *options, const Update *update, Value *param, Value *grad);
  uint32_t reads;             // READS_*
  double eps, weight_decay;   // defaults, as torch.optim has them
  bool own;                   // a rule that models bring: needs graph->own_optimizer
} OptimizerRule;

extern const OptimizerRule optimizer_rules[];              // ends with name NULL
const OptimizerRule *optimizer_rule_find(const char *name);   // NULL when there is none

#endif
