// Declares every row of ops.def, so that gradients and passes can name operators: &op_Mul.
#ifndef TESSERA_OPS_H
#define TESSERA_OPS_H

#include "../ir/op.h"

#define OP(row) extern const Op op_##row;
#include "ops.def"
#undef OP

// How many partial sums TreeAccumulate carries for `count` micro-batches: the bits of count - 1 (accumulate_op.c).
int tree_levels(int64_t count, bool running);

// Sums dy over the axes along which an operand of type `to` was broadcast; dy itself when the shapes are equal. For gradients (sum_to.c).
Value *emit_sum_to(Emit *e, Value *dy, const Type *to);

#endif
