// Exact sums of doubles as fixed-point numbers of integer limbs.
#include "limbs.h"

#include <math.h>
#include <string.h>

enum { LIMB_BITS = 32, LIMB_SPECIAL = LIMBS - 1, LIMB_MIN_EXPONENT = -1074 };
static const int64_t LIMB_MASK = ((int64_t)1 << LIMB_BITS) - 1;
static const int64_t SPECIAL_INF = 1, SPECIAL_NAN = (int64_t)1 << LIMB_BITS;

void limbs_normalise(int64_t limbs[LIMBS]) {
  for (int l = 0; l + 1 < LIMB_SPECIAL; l++) {
    limbs[l + 1] = (int64_t)((uint64_t)limbs[l + 1] + (uint64_t)(limbs[l] >> LIMB_BITS));   // foreign limbs may be anything: wrap
    limbs[l] &= LIMB_MASK;
  }
}

void limbs_add(int64_t limbs[LIMBS], double value) {
  if (!isfinite(value)) {
    int64_t special = limbs[LIMB_SPECIAL];   // one of each per rank is enough, and cannot overflow
    if (isnan(value)) limbs[LIMB_SPECIAL] = special >= SPECIAL_NAN ? special : special + SPECIAL_NAN;
    else limbs[LIMB_SPECIAL] = special & LIMB_MASK ? special : special + SPECIAL_INF;
    return;
  }
  if (value == 0) return;
  int exponent;
  uint64_t mantissa = (uint64_t)ldexp(frexp(value, &exponent), 53);   // value = mantissa * 2^(exponent - 53)
  int bit = exponent - 53 - LIMB_MIN_EXPONENT;
  if (bit < 0) {                                                      // a denormal: its low bits are zero
    mantissa >>= -bit;
    bit = 0;
  }
  unsigned __int128 wide = (unsigned __int128)mantissa << (bit % LIMB_BITS);
  for (int l = bit / LIMB_BITS; wide; l++, wide >>= LIMB_BITS) limbs[l] += (int64_t)(uint64_t)(wide & (uint64_t)LIMB_MASK);
}

double limbs_to_double(const int64_t given[LIMBS]) {
  int64_t limbs[LIMBS];
  memcpy(limbs, given, sizeof limbs);
  if (limbs[LIMB_SPECIAL] >= SPECIAL_NAN) return NAN;
  if (limbs[LIMB_SPECIAL]) return INFINITY;
  limbs_normalise(limbs);
  int top = LIMB_SPECIAL - 1;
  while (top > 0 && !limbs[top]) top--;
  if (top < 2) return ldexp((double)((uint64_t)limbs[1] << LIMB_BITS | (uint64_t)limbs[0]), LIMB_MIN_EXPONENT);
  // The upper 64 bits of three limbs, the last of them sticky: converting that rounds once and right.
  unsigned __int128 wide = (unsigned __int128)(uint64_t)limbs[top] << 2 * LIMB_BITS;
  wide |= (uint64_t)limbs[top - 1] << LIMB_BITS | (uint64_t)limbs[top - 2];
  bool sticky = false;
  for (int l = 0; l < top - 2; l++) sticky |= limbs[l] != 0;
  int drop = 0;
  while (wide >> drop >> 64) drop++;
  sticky |= (wide & (((unsigned __int128)1 << drop) - 1)) != 0;
  uint64_t upper = (uint64_t)(wide >> drop) | sticky;
  return ldexp((double)upper, drop + (top - 2) * LIMB_BITS + LIMB_MIN_EXPONENT);
}

// Sum of squares of one chunk of input `i`; a chunk that the tensor does not fill is taken as filled with zeros, as in a bucket.
static double chunk_squares(const KernelContext *c, int i, int64_t at, int64_t elems, double scale, bool fast) {
  Dtype dtype = c->in[i].type->dtype;
  if (fast && dtype_of_sums(dtype) == DTYPE_F32) {
    float wide[CHUNK_ELEMS];
    const float *g = loops_wide(c->loops, c->in[i].data, dtype, at, elems, wide);
    if (elems == CHUNK_ELEMS) return c->loops->sum_squares(g, (float)scale, CHUNK_ELEMS);
    float padded[CHUNK_ELEMS] = {0};
    memcpy(padded, g, (size_t)elems * sizeof(float));
    return c->loops->sum_squares(padded, (float)scale, CHUNK_ELEMS);
  }
  double sum = 0;
  for (int64_t e = 0; e < elems; e++) {
    double g = in_f(c, i, at + e);
    g = dtype == DTYPE_F64 ? g * scale : (double)((float)g * (float)scale);
    sum += g * g;
  }
  return sum;
}

void limbs_add_squares(int64_t limbs[LIMBS], const KernelContext *c, int input, int64_t from, int64_t n, double scale, bool fast) {
  int64_t added = 0;
  for (int64_t at = 0; at < n; at += CHUNK_ELEMS) {
    limbs_add(limbs, chunk_squares(c, input, from + at, n - at < CHUNK_ELEMS ? n - at : CHUNK_ELEMS, scale, fast));
    if (!(++added & LIMB_MASK >> 2)) limbs_normalise(limbs);   // long before 2^31 summands of 32 bits fill a limb
  }
  limbs_normalise(limbs);
}
