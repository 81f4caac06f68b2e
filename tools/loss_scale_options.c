#include "loss_scale_options.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static Status check_needed(const Options *o) {
  const struct { const char *option; bool given; } rows[] = {
      {"--loss-scale", o->given.loss_scale}, {"--loss-scale-init", o->given.loss_scale_init}, {"--loss-scale-window", o->given.loss_scale_window},
      {"--loss-scale-hysteresis", o->given.loss_scale_hysteresis}, {"--loss-scale-min", o->given.loss_scale_min},
      {"--loss-scale-skips", o->given.loss_scale_skips}, {"--inject-inf", o->given.inject_inf}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (rows[i].given) FAIL(USAGE, NULL, "%s is about f16 gradients; only plans of --precision fp16 scale their loss", rows[i].option);
  return STATUS_OK;
}

static Status read_inject(const char *text, int ranks, LossScaleChoice *choice, ExecutorOptions *out) {
  char *end;
  out->inf_steps = choice->inf_steps;
  if (!text) return STATUS_OK;
  long rank = strtol(text, &end, 10);
  bool good = end != text && *end == ':' && rank >= 0 && rank < ranks;
  while (good && *end) {
    const char *at = end + 1;
    long long step = strtoll(at, &end, 10);
    good = end != at && step >= 0 && (!*end || *end == ',') && out->n_inf_steps < INF_STEPS_MAX;
    if (good) choice->inf_steps[out->n_inf_steps++] = (double)step;
  }
  out->inf_rank = (int)rank;
  if (!good) FAIL(USAGE, NULL, "--inject-inf: '%s' is not RANK:STEP,STEP,... with a rank below %d and at most %d steps", text, ranks, INF_STEPS_MAX);
  return STATUS_OK;
}

Status loss_scale_choose(const Options *o, const Graph *program, const LossScale *resumed, LossScaleChoice *choice, ExecutorOptions *executor) {
  if (!(program->recipe.loss_units > 0)) return check_needed(o);
  LossScaleOptions *s = &choice->options;
  *s = (LossScaleOptions){.dynamic = !strcmp(o->loss_scale, "dynamic"), .initial = o->loss_scale_init, .least = o->loss_scale_min, .window = o->loss_scale_window,
                          .hysteresis = o->loss_scale_hysteresis, .skips_max = o->loss_scale_skips};
  char *end = NULL;
  if (!s->dynamic) s->initial = strtod(o->loss_scale, &end);
  if (!s->dynamic && (end == o->loss_scale || *end || !(s->initial >= 1e-30 && s->initial <= 1e30)))      // an f32 holds it
    FAIL(USAGE, NULL, "--loss-scale: '%s' is neither 'dynamic' nor a number from 1e-30 to 1e+30", o->loss_scale);
  if (!s->dynamic && (o->given.loss_scale_init || o->given.loss_scale_window || o->given.loss_scale_hysteresis || o->given.loss_scale_min))
    FAIL(USAGE, NULL, "--loss-scale %s stays as it is: --loss-scale-init, -window, -hysteresis and -min are about 'dynamic'", o->loss_scale);
  if (s->initial < s->least && s->dynamic) FAIL(USAGE, NULL, "--loss-scale-init %g is below --loss-scale-min %g", s->initial, s->least);
  executor->loss_scale = s;
  if (resumed) {
    choice->state = *resumed;
    executor->loss_scale_state = &choice->state;
    if (!s->dynamic) choice->state.scale = s->initial;
  }
  return read_inject(o->inject_inf, mesh_ranks(&program->mesh), choice, executor);
}

void loss_scale_say(const StepResult *r, double next_scale) {
  fprintf(stderr, "tessera: step %" PRId64 " skipped: gradients are not finite", r->step);
  if (r->bad_param && r->bad_micro >= 0)
    fprintf(stderr, ", first that of '%s' in micro-batch %" PRId64 ", on rank %d", r->bad_param, r->bad_micro, r->bad_rank);
  else if (r->bad_param) fprintf(stderr, ", though each micro-batch's are: the sum for '%s' is not (held by rank %d)", r->bad_param, r->bad_rank);
  fprintf(stderr, "; loss scale %g%s%g\n", r->loss_scale, next_scale == r->loss_scale ? " stays " : " -> ", next_scale);
}
