// The learning rate of each step. Values are those of torch.optim.lr_scheduler and of transformers' get_*_schedule where such a schedule exists there
// (docs/optimizers.md says which). Pure functions; any thread.
#ifndef TESSERA_LR_SCHEDULE_H
#define TESSERA_LR_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum ScheduleKind {
  SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE, SCHEDULE_STEP, SCHEDULE_ONE_CYCLE, SCHEDULE_INVERSE_SQRT, SCHEDULE_POLYNOMIAL, SCHEDULE_LIST, SCHEDULE_COUNT
} ScheduleKind;

typedef struct LrSchedule {
  ScheduleKind kind;
  double base;               // the rate that it is about: after warm-up, or the peak
  int64_t warmup;            // steps that rise linearly from 0; ONE_CYCLE: steps of the rise, 0: 30 % of all
  int64_t total;             // steps of the whole schedule, at least 1; LINEAR, COSINE, ONE_CYCLE, POLYNOMIAL
  double least;              // LINEAR, COSINE, POLYNOMIAL: the rate that it ends at
  double gamma, power;       // STEP: factor after every `every` steps; POLYNOMIAL
  int64_t every;
  const double *list;        // LIST: rate of each step; the last holds on
  int64_t n_list;            // at least 1
} LrSchedule;

double lr_schedule_at(const LrSchedule *schedule, int64_t step);       // step counts from 0
bool lr_schedule_needs_total(ScheduleKind kind);
const char *lr_schedule_name(ScheduleKind kind);                       // "one-cycle", ...

#endif
