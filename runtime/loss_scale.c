#include "loss_scale.h"

#include <math.h>

LossScale loss_scale_start(const LossScaleOptions *options) { return (LossScale){.scale = options->initial, .patience = options->hysteresis}; }

void loss_scale_after_step(LossScale *s, const LossScaleOptions *o, bool finite) {
  if (finite) {
    s->applied++;
    s->skips = 0;
    if (!o->dynamic || ++s->good_steps < o->window) return;
    s->good_steps = 0;
    s->patience = o->hysteresis;
    if (isfinite(s->scale * 2)) s->scale *= 2;
    return;
  }
  s->skips++;
  s->good_steps = 0;
  if (!o->dynamic) return;
  if (s->patience > 1) s->patience--;
  else s->scale = fmax(s->scale / 2, o->least);
}
