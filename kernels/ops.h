// Declares every row of ops.def, so that gradients and passes can name operators: &op_Mul.
#ifndef TESSERA_OPS_H
#define TESSERA_OPS_H

#include "../ir/op.h"

#define OP(row) extern const Op op_##row;
#include "ops.def"
#undef OP

#endif
