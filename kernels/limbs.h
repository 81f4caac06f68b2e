// Exact sums of doubles as fixed-point numbers of integer limbs: no order of summing, and no cut between ranks, changes a bit.
//
// Limb l holds bits [2^(32 l - 1074), 2^(32 l + 32 - 1074)). The smallest positive double is 2^-1074 and the largest is below 2^1024, so limbs 0..65
// hold any double and the rest is room for carries. 32 payload bits in 64 leave room for the sum over ranks. The last limb counts what no fixed-point
// number can hold: infinities in its low half, NaNs in its high half. Threads: pure functions over the caller's memory.
#ifndef TESSERA_LIMBS_H
#define TESSERA_LIMBS_H

#include "kernel.h"

enum { LIMBS = 72 };

void limbs_normalise(int64_t limbs[LIMBS]);                  // carries; at least once in 2^30 additions
void limbs_add(int64_t limbs[LIMBS], double value);          // value >= 0 or not finite
double limbs_to_double(const int64_t limbs[LIMBS]);          // rounded to nearest, ties to even

// Adds the squares of elements [from, from + n) of an input, each multiplied by `scale` in its own dtype: one f64 sum in fixed order per chunk, counted
// from `from`. A last chunk that is not full is taken as filled with zeros, as in a bucket. Normalises.
void limbs_add_squares(int64_t limbs[LIMBS], const KernelContext *c, int input, int64_t from, int64_t n, double scale, bool fast);

#endif
