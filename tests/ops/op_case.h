// One line of tests/ops/<Op>.txt: a node, its inputs and what is expected of it.
//
//   Op(ARG, ARG, ...) attribute=value ... @option ... -> {v, v} {v}
//
//   Op       the row's name; ort_NAME for com.microsoft's
//   ARG      `_` (absent) or [`const`] TYPE [GENERATOR]     TYPE as in "float[2,3]", "int64[]" is "int64"
//   GENERATOR normal[(scale)] | uniform(a,b) | ints(a,b) | fill(v) | iota | distinct | {v, v, ...}    default: normal, ints(-4,4), bools
//   attribute  3 | 0.5 | text | [1,2] | TYPE{v, ...}
//   @outputs=N (default: the row's least number)  @skip=i,j (outputs nobody wants)  @grad=no  @tol=1e-4 (f32 against the reference)
//   @fails=CODE text   the node must be refused, when inferred or when run, with this code and this text in the message (rest of the line)
//   -> {..}   expected values per output; `_` for any
//
// Lines starting with # and empty lines are skipped. Random values depend on the line's text only.
#ifndef TESSERA_OP_CASE_H
#define TESSERA_OP_CASE_H

#include "../../kernels/kernel.h"

enum { OP_CASE_INPUTS = 16, OP_CASE_OUTPUTS = 16, GUARD_BYTES = 64 };

typedef struct OpCase {
  Graph *graph;                          // holds the node and its inputs; the node is appended
  Node *node;
  Tensor in[OP_CASE_INPUTS];             // data aligned to 64, followed by GUARD_BYTES
  const char *expected[OP_CASE_OUTPUTS]; // text after "->"; NULL: any
  bool no_grad;
  double tolerance;
  const char *fails_code, *fails_text;   // NULL: must succeed
} OpCase;

// Builds the case in `arena`; the node is not inferred. float becomes `floats` (NONE: stays): double for gradients, the 16-bit floats for their
// kernels. Errors: MALFORMED with the column.
MUST_USE Status op_case_parse(const char *line, Dtype floats, Arena *arena, OpCase *out);

// `bytes` bytes aligned to 64 with a guard behind them, filled with `fill`.
void *op_case_buffer(Arena *arena, int64_t bytes, int fill);
bool op_case_guard_intact(const void *data, int64_t bytes);

// Values of "{v, v}" into elements of `type`; MALFORMED when their number is not the type's (one value fills all).
MUST_USE Status op_case_values(const char *text, const Type *type, void *data);

#endif
