// For arithmetic that is written once and compiled twice (wide.h): with WIDE_FLOAT in float with the plan's vector loops, else in double with plain
// ones. NAME(f) is f_f32 or f_f64.
#ifndef TESSERA_WIDE_LOOPS_H
#define TESSERA_WIDE_LOOPS_H

#include <math.h>

#include "loops.h"

#ifdef WIDE_FLOAT
typedef float Real;
#define NAME(stem) stem##_f32
#else
typedef double Real;
#define NAME(stem) stem##_f64
#endif

// out += s a
static inline void axpy(const Loops *loops, Real *out, Real s, const Real *a, int64_t n) {
#ifdef WIDE_FLOAT
  loops->axpy(out, s, a, n);
#else
  for (int64_t i = 0; i < n; i++) out[i] += s * a[i];
#endif
}

static inline double dot(const Loops *loops, const Real *a, const Real *b, int64_t n) {
#ifdef WIDE_FLOAT
  return loops->dot(a, b, n);
#else
  double total = 0;
  for (int64_t i = 0; i < n; i++) total += a[i] * b[i];
  return total;
#endif
}

static inline double sum(const Loops *loops, const Real *x, int64_t n) {
#ifdef WIDE_FLOAT
  return loops->sum(x, n);
#else
  double total = 0;
  for (int64_t i = 0; i < n; i++) total += x[i];
  return total;
#endif
}

// x = exp(x - less)
static inline void exp_less(const Loops *loops, Real *x, Real less, int64_t n) {
#ifdef WIDE_FLOAT
  loops->add_s(x, x, -less, n);
  loops->exp(x, x, n);
#else
  for (int64_t i = 0; i < n; i++) x[i] = exp(x[i] - less);
#endif
}

static inline void tanh_all(const Loops *loops, Real *x, int64_t n) {
#ifdef WIDE_FLOAT
  loops->tanh(x, x, n);
#else
  for (int64_t i = 0; i < n; i++) x[i] = tanh(x[i]);
#endif
}

#endif
