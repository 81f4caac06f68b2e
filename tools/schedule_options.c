#include "schedule_options.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

enum { ALL = (1 << SCHEDULE_COUNT) - 1, NAMED = ALL & ~(1 << SCHEDULE_LIST), ENDS = 1 << SCHEDULE_LINEAR | 1 << SCHEDULE_COSINE | 1 << SCHEDULE_POLYNOMIAL };

static const struct { const char *option; unsigned kinds; } reads[] = {
    {"schedule", NAMED},  {"warmup", NAMED},                  {"total-steps", ENDS | 1 << SCHEDULE_ONE_CYCLE}, {"min-lr", ENDS},
    {"step-every", 1 << SCHEDULE_STEP}, {"step-factor", 1 << SCHEDULE_STEP}, {"power", 1 << SCHEDULE_POLYNOMIAL}};

bool schedule_reads(ScheduleKind kind, const char *option) {
  for (size_t i = 0; i < sizeof reads / sizeof *reads; i++)
    if (!strcmp(reads[i].option, option)) return reads[i].kinds >> kind & 1;
  return true;
}

static Status check_reads(const Options *o, ScheduleKind kind) {
  for (size_t i = 0; i < sizeof reads / sizeof *reads; i++)
    if (options_is_given(options_find_row(reads[i].option, RUN), o) && !schedule_reads(kind, reads[i].option))
      FAIL(USAGE, NULL, "--%s means nothing to %s", reads[i].option, kind == SCHEDULE_LIST ? "--lr-list" : o->lr_schedule);
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
