#include "progress.h"

#include <inttypes.h>
#include <math.h>

#include "../ir/clock.h"

static const int64_t BRIEF_NS = INT64_C(10) * 1000000000;

// As %g; the sign of a NaN means nothing and is not shown.
static const char *real_text(double v, int digits, char out[32]) {
  snprintf(out, 32, "%.*g", digits, isnan(v) ? NAN : v);
  return out;
}

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

static void show_numbers(const Progress *p, const StepResult *r) {
  char norm[32], loss[32];
  printf("step %" PRId64, r->step);
  if (p->steps >= 0) printf(" (%" PRId64 "/%" PRId64 ")", p->done, p->steps);
  printf("  loss %s", real_text(r->loss, 5, loss));
  if (p->evaluated) printf("  eval loss %s", real_text(p->eval_loss, 5, loss));
  printf("  grad norm %s  %.0f %s/s", real_text(r->grad_norm, 3, norm), rate_per_s(p), p->item);
  if (p->steps >= 0) {
    int64_t left_s = (int64_t)((double)(p->steps - p->done) * p->smoothed_ms / 1e3 + 0.5);
    printf("  %" PRId64 ":%02" PRId64 " left", left_s / 60, left_s % 60);
  }
}

static void show_live(const Progress *p, const StepResult *r) {
  printf("\r\033[K");
  show_numbers(p, r);
  fflush(stdout);
}

static void show_brief(Progress *p, const StepResult *r) {
  int64_t now = clock_now_ns(), step_ns = (int64_t)(p->smoothed_ms * 1e6);
  if (p->shown_ns && now + step_ns - p->shown_ns < BRIEF_NS) return;     // the next step will be early enough
  p->shown_ns = now;
  show_numbers(p, r);
  printf("\n");
  fflush(stdout);
}

void progress_step(Progress *p, const StepResult *r) {
  p->done++;
  p->smoothed_ms = p->done <= 2 ? r->ms : 0.9 * p->smoothed_ms + 0.1 * r->ms;   // the first step is not typical
  if (p->lines) {
    char loss[32], norm[32];
    fprintf(p->lines, "step %" PRId64 " loss %s grad_norm %s ms %.3f\n", r->step, real_text(r->loss, 9, loss), real_text(r->grad_norm, 6, norm), r->ms);
    fflush(p->lines);
  }
  if (p->live) show_live(p, r);
  if (p->brief) show_brief(p, r);
}

void progress_evaluation(Progress *p, int64_t step, double loss) {
  char text[32];
  p->evaluated = true;
  p->eval_loss = loss;
  if (p->lines) {
    fprintf(p->lines, "step %" PRId64 " eval_loss %s\n", step, real_text(loss, 9, text));
    fflush(p->lines);
  }
  if (p->brief) {
    printf("step %" PRId64 "  eval loss %s\n", step, real_text(loss, 5, text));
    fflush(stdout);
  }
}

void progress_finish(Progress *p) {
  if (p->live && p->done) printf("\n");
  fflush(stdout);
}
