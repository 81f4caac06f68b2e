// --loss-scale and its like, and --inject-inf.
#ifndef TESSERA_LOSS_SCALE_OPTIONS_H
#define TESSERA_LOSS_SCALE_OPTIONS_H

#include "../runtime/executor.h"
#include "options.h"

enum { INF_STEPS_MAX = 64 };

typedef struct LossScaleChoice {
  LossScaleOptions options;
  LossScale state;                     // of the checkpoint that the run goes on from
  double inf_steps[INF_STEPS_MAX];
} LossScaleChoice;

// Fills the fields of `executor` that are about loss scaling; they borrow from *choice. resumed: the state to go on from; NULL: none. USAGE: an option that the
// plan has no use for, or that says no number.
MUST_USE Status loss_scale_choose(const Options *options, const Graph *program, const LossScale *resumed, LossScaleChoice *choice, ExecutorOptions *executor);

// A skipped step, said on stderr.
void loss_scale_say(const StepResult *result, double next_scale);

#endif
