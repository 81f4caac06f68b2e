// --schedule, --lr-list and their like as a schedule of learning rates.
#ifndef TESSERA_SCHEDULE_OPTIONS_H
#define TESSERA_SCHEDULE_OPTIONS_H

#include "../runtime/lr_schedule.h"
#include "options.h"

// `base`: the plan's learning rate; first_step, steps: of this run (steps -1: until its stream ends), which make the length of a schedule that --total-steps
// does not name. USAGE for options that contradict or that the schedule does not read. `out` borrows the list in `options`.
MUST_USE Status schedule_choose(const Options *options, double base, int64_t first_step, int64_t steps, LrSchedule *out);

bool schedule_reads(ScheduleKind kind, const char *option);       // false: "warmup" means nothing to that schedule

#endif
