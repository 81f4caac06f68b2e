// Loss scaling for f16 gradients: gradients of the scaled loss keep clear of f16's smallest numbers; a step whose gradients are not finite is skipped and
// the scale falls, after a while without such a step it rises. Sources: torch.amp.GradScaler (hysteresis 1), DeepSpeed's DynamicLossScaler (hysteresis
// above 1: so many overflows, counted since the scale last rose, before it falls). Pure state; one thread at a time.
#ifndef TESSERA_LOSS_SCALE_H
#define TESSERA_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct LossScaleOptions {
  bool dynamic;              // false: the scale stays
  double initial;            // of the mean loss
  double least;              // the scale does not fall below
  int64_t window;            // steps in a row without overflow after which the scale doubles
  int64_t hysteresis;        // overflows before the scale is halved; at least 1
  int64_t skips_max;         // so many skipped steps in a row end the run
} LossScaleOptions;

typedef struct LossScale {
  double scale;
  int64_t good_steps;        // in a row, since the last overflow or change
  int64_t patience;          // overflows that are still borne without halving, plus one
  int64_t skips;             // in a row
  int64_t applied;           // steps that were not skipped, over all runs: what optimizers and schedules count
} LossScale;

LossScale loss_scale_start(const LossScaleOptions *options);
void loss_scale_after_step(LossScale *state, const LossScaleOptions *options, bool finite);

#endif
