#include "lr_schedule.h"

#include <math.h>

const char *lr_schedule_name(ScheduleKind kind) {
  static const char *const names[] = {"constant", "linear", "cosine", "step", "one-cycle", "inverse-sqrt", "polynomial", "list"};
  _Static_assert(sizeof names / sizeof *names == SCHEDULE_COUNT, "one name per kind");
  return names[kind];
}

bool lr_schedule_needs_total(ScheduleKind kind) {
  return kind == SCHEDULE_LINEAR || kind == SCHEDULE_COSINE || kind == SCHEDULE_ONE_CYCLE || kind == SCHEDULE_POLYNOMIAL;
}

static int64_t at_least_one(int64_t n) { return n > 1 ? n : 1; }

// torch.optim.lr_scheduler.OneCycleLR with its defaults: two phases of cosine shape, from a 25th up to the peak, then down to 10^-4 of the start.
static double one_cycle(const LrSchedule *s, int64_t step) {
  const double start_factor = 25, end_factor = 1e4;
  double start = s->base / start_factor, rise_end = (s->warmup ? (double)s->warmup : 0.3 * (double)s->total) - 1, end = (double)s->total - 1, at = (double)step;
  if (at > end) at = end;
  bool rising = at <= rise_end;
  double from = rising ? start : s->base, to = rising ? s->base : start / end_factor;
  double share = rising ? at / rise_end : (at - rise_end) / (end - rise_end);
  return to + (from - to) / 2 * (cos(M_PI * share) + 1);
}

double lr_schedule_at(const LrSchedule *s, int64_t step) {
  int64_t after = step - s->warmup, rest = at_least_one(s->total - s->warmup);
  double share = (double)after / (double)rest;           // of what follows the warm-up
  if (s->kind == SCHEDULE_LIST) return s->list[step < s->n_list ? step : s->n_list - 1];
  if (s->kind == SCHEDULE_ONE_CYCLE) return one_cycle(s, step);
  if (step < s->warmup) return s->base * ((double)step / (double)at_least_one(s->warmup));
  switch (s->kind) {
  case SCHEDULE_LINEAR: return s->least + (s->base - s->least) * fmax(0, 1 - share);
  case SCHEDULE_COSINE: return s->least + (s->base - s->least) * (share >= 1 ? 0 : 0.5 * (1 + cos(M_PI * share)));
  case SCHEDULE_STEP: return s->base * pow(s->gamma, (double)(after / at_least_one(s->every)));
  case SCHEDULE_POLYNOMIAL: return share >= 1 ? s->least : s->least + (s->base - s->least) * pow(1 - share, s->power);
  case SCHEDULE_INVERSE_SQRT: {
    double scale = s->warmup ? (double)s->warmup : 10000;
    return s->base / sqrt((double)(step + (s->warmup ? 0 : 10000)) / scale);
  }
  default: return s->base;
  }
}
