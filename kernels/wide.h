// Operands for arithmetic that is written once and compiled twice: in double, on copies (the specification, run_ref), and in float, where they
// lie (run_cpu). Integers and bools have no copy: they are read where they lie.
#ifndef TESSERA_WIDE_H
#define TESSERA_WIDE_H

#include "kernel.h"

enum { WIDE_OPERANDS = 16 };            // inputs, and outputs, that a row of this kind may have

// NULL where an operand is absent or no float.
typedef struct WideOperands {
  void *in[WIDE_OPERANDS], *out[WIDE_OPERANDS];
  void *space;                          // what the arithmetic needs besides
  double *heap;                         // wide_begin's
} WideOperands;

// Copies the floats among the inputs to double, makes room for results and `space_elems` doubles more. RESOURCE where there is no memory; the caller
// ends it with wide_end, which rounds the results into place. It allocates: for the reference only, which is never on the fast path.
MUST_USE Status wide_begin(const KernelContext *c, int64_t space_elems, WideOperands *out);
void wide_end(const KernelContext *c, WideOperands *w);

// The operands themselves, and the context's workspace: every float is f32.
WideOperands wide_as_they_lie(const KernelContext *c);

#endif
