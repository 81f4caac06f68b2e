// ONNX broadcasting (Broadcasting.md): the result's type, and a walk over the result in runs along which every operand is either
// contiguous or one repeated element. Used by elementwise, comparison, selection and expansion kernels.
//
//   Broadcast b;
//   for (bool more = broadcast_begin(&b, out_type, n, in); more; more = broadcast_next(&b))
//     ... out[b.at_out + i] from in[k][b.at[k] + i * b.step[k]] for i < b.run
//
// Neighbouring axes that all operands walk alike are merged: equal shapes are one run. No allocation; any thread.
#ifndef TESSERA_BROADCAST_H
#define TESSERA_BROADCAST_H

#include "kernel.h"

enum { BROADCAST_OPERANDS = 3 };

typedef struct Broadcast {
  int64_t run;                               // elements of a run
  int64_t at_out;                            // where the run starts in the result
  int64_t at[BROADCAST_OPERANDS];            // and in each operand
  int64_t step[BROADCAST_OPERANDS];          // 1: contiguous along the run; 0: one element
  int n, rank;                               // operands; merged outer axes
  int64_t dims[RANK_MAX], strides[BROADCAST_OPERANDS][RANK_MAX], index[RANK_MAX];
} Broadcast;

// Operands in[0 .. n) must broadcast to `out`. False when the result is empty.
bool broadcast_begin(Broadcast *b, const Type *out, int n, const Tensor *in);
bool broadcast_next(Broadcast *b);

// out->rank and dims = broadcast of all inputs of `node` from `first` on.
MUST_USE Status broadcast_infer(const Node *node, int first, Type *out);

#endif
