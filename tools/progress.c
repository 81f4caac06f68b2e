#include "progress.h"

#include <inttypes.h>

const char *bytes_text(int64_t bytes, char out[32]) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double v = (double)bytes;
  int unit = 0;
  while (v >= 1024 && unit < 4) {
    v /= 1024;
    unit++;
  }
  snprintf(out, 32, unit ? "%.1f %s" : "%.0f %s", v, units[unit]);
  return out;
}

static double rate_per_s(const Progress *p) { return p->smoothed_ms > 0 ? (double)p->items_per_step * 1e3 / p->smoothed_ms : 0; }

static void show_live(const Progress *p, const StepResult *r) {
  printf("\r\033[Kstep %" PRId64, r->step);
  if (p->steps >= 0) printf(" (%" PRId64 "/%" PRId64 ")", p->done, p->steps);
  printf("  loss %.5g  grad norm %.3g  %.0f %s/s", r->loss, r->grad_norm, rate_per_s(p), p->item);
  if (p->steps >= 0) {
    int64_t left_s = (int64_t)((double)(p->steps - p->done) * p->smoothed_ms / 1e3 + 0.5);
    printf("  %" PRId64 ":%02" PRId64 " left", left_s / 60, left_s % 60);
  }
  fflush(stdout);
}

void progress_step(Progress *p, const StepResult *r) {
  p->done++;
  p->smoothed_ms = p->done <= 2 ? r->ms : 0.9 * p->smoothed_ms + 0.1 * r->ms;   // the first step is not typical
  if (p->lines) {
    fprintf(p->lines, "step %" PRId64 " loss %.9g grad_norm %.6g ms %.3f\n", r->step, r->loss, r->grad_norm, r->ms);
    fflush(p->lines);
  }
  if (p->live) show_live(p, r);
}

void progress_finish(Progress *p) {
  if (p->live && p->done) printf("\n");
  fflush(stdout);
}
