#include "schedule_options.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

static Status check_reads(const Options *o, ScheduleKind kind) {
  bool ends = kind == SCHEDULE_LINEAR || kind == SCHEDULE_COSINE || kind == SCHEDULE_POLYNOMIAL;
  const struct { const char *option; bool given, read; } rows[] = {
      {"--warmup", o->given.warmup, kind != SCHEDULE_LIST}, {"--total-steps", o->given.total_steps, lr_schedule_needs_total(kind)},
      {"--min-lr", o->given.min_lr, ends},                  {"--step-every", o->given.step_every, kind == SCHEDULE_STEP},
      {"--step-factor", o->given.step_factor, kind == SCHEDULE_STEP}, {"--power", o->given.power, kind == SCHEDULE_POLYNOMIAL}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (rows[i].given && !rows[i].read) FAIL(USAGE, NULL, "%s means nothing to %s", rows[i].option, kind == SCHEDULE_LIST ? "--lr-list" : o->lr_schedule);
  return STATUS_OK;
}

Status schedule_choose(const Options *o, double base, int64_t first_step, int64_t steps, LrSchedule *out) {
  ScheduleKind kind = SCHEDULE_CONSTANT;
  while (kind < SCHEDULE_LIST && strcmp(lr_schedule_name(kind), o->lr_schedule)) kind++;
  if (o->lr_list.n && o->given.lr_schedule) FAIL(USAGE, NULL, "--lr-list names the rate of each step, so --schedule %s has nothing to say", o->lr_schedule);
  if (o->lr_list.n) kind = SCHEDULE_LIST;
  TRY(check_reads(o, kind));
  LrSchedule s = {.kind = kind, .base = base, .warmup = o->warmup, .total = o->total_steps, .least = o->min_lr, .gamma = o->step_factor, .every = o->step_every,
                  .power = o->power, .list = o->lr_list.items, .n_list = o->lr_list.n};
  if (lr_schedule_needs_total(kind) && !s.total) {
    if (steps < 0) FAIL(USAGE, NULL, "--schedule %s needs to know its end, and a stream has none: --total-steps K", o->lr_schedule);
    s.total = first_step + steps;
  }
  if (lr_schedule_needs_total(kind) && s.warmup > s.total)
    FAIL(USAGE, NULL, "--warmup %" PRId64 " is longer than the %" PRId64 " steps of the schedule", s.warmup, s.total);
  if (s.least > base && o->given.min_lr) FAIL(USAGE, NULL, "--min-lr %g is above the learning rate %g", s.least, base);
  if (s.total < 1) s.total = 1;
  *out = s;
  return STATUS_OK;
}
