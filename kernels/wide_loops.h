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

// out[r][i] += alpha a[r][x] b[x][i], for each element in the order of x
static inline void product(const Loops *loops, Real *out, int64_t out_stride, Real alpha, const Real *a, int64_t a_row, int64_t a_col, const Real *b,
                           int64_t b_stride, int64_t rows, int64_t k, int64_t n) {
#ifdef WIDE_FLOAT
  loops->product(&(RowsProduct){out, out_stride, alpha, a, a_row, a_col, b, b_stride, rows, k, n});
#else
  for (int64_t x = 0; x < k; x++)
    for (int64_t row = 0; row < rows; row++)
      for (int64_t i = 0; i < n; i++) out[row * out_stride + i] += alpha * a[row * a_row + x * a_col] * b[x * b_stride + i];
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
