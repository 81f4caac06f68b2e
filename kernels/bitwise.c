// Operators on the bits of integers: BitwiseAnd, BitwiseOr, BitwiseXor, BitwiseNot, BitShift.
#include <stddef.h>
#include <string.h>

#include "broadcast.h"
#include "ops.h"

static Status bits_infer(Node *node, Arena *arena) {
  for (int i = 0; i < node->n_inputs; i++) {
    Dtype d = node->inputs[i]->type.dtype;
    if (!dtype_is_integer(d) || d != node->inputs[0]->type.dtype)
      FAIL(MALFORMED, node->name, "%s: input %d '%s' of %s; integers of one type are needed", node->op->name, i, node->inputs[i]->name, dtype_name(d));
  }
  node->outputs[0]->type.dtype = node->inputs[0]->type.dtype;
  return broadcast_infer(node, 0, &node->outputs[0]->type);
}

typedef int64_t (*BitsFn)(int64_t a, int64_t b, int bits);

static Status each(const KernelContext *c, BitsFn f) {
  int bits = 8 * (int)dtype_bytes(c->out[0].type->dtype);
  Broadcast b;
  for (bool more = broadcast_begin(&b, c->out[0].type, 2, c->in); more; more = broadcast_next(&b))
    for (int64_t i = 0; i < b.run; i++)
      out_i(c, 0, b.at_out + i, f(in_i(c, 0, b.at[0] + i * b.step[0]), in_i(c, 1, b.at[1] + i * b.step[1]), bits));
  return STATUS_OK;
}

static int64_t bits_and(int64_t a, int64_t b, int bits) { return a & b; }
static int64_t bits_or(int64_t a, int64_t b, int bits) { return a | b; }
static int64_t bits_xor(int64_t a, int64_t b, int bits) { return a ^ b; }
static Status and_run(const KernelContext *c) { return each(c, bits_and); }
static Status or_run(const KernelContext *c) { return each(c, bits_or); }
static Status xor_run(const KernelContext *c) { return each(c, bits_xor); }

static Status not_run(const KernelContext *c) {
  for (int64_t i = 0, n = out_elems(c, 0); i < n; i++) out_i(c, 0, i, ~in_i(c, 0, i));
  return STATUS_OK;
}

// ---- BitShift: a distance beyond the type's bits leaves the sign of a signed number shifted right, else 0 ----

typedef struct ShiftAttrs { const char *direction; } ShiftAttrs;
static const AttrSpec shift_attrs[] = {
  {"direction", ATTR_STRING, offsetof(ShiftAttrs, direction), .required = true, .help = "LEFT or RIGHT"},
  {0},
};

static Status shift_infer(Node *node, Arena *arena) {
  const char *direction = ((const ShiftAttrs *)node->attrs)->direction;
  if (strcmp(direction, "LEFT") && strcmp(direction, "RIGHT")) FAIL(MALFORMED, node->name, "BitShift: direction '%s'; LEFT and RIGHT exist", direction);
  return bits_infer(node, arena);
}

static bool beyond(int64_t by, int bits) { return (uint64_t)by >= (uint64_t)bits; }
static int64_t shift_left(int64_t a, int64_t by, int bits) { return beyond(by, bits) ? 0 : (int64_t)((uint64_t)a << by); }
static int64_t shift_right_signed(int64_t a, int64_t by, int bits) { return a >> (beyond(by, bits) ? 63 : by); }
static int64_t shift_right_unsigned(int64_t a, int64_t by, int bits) { return beyond(by, bits) ? 0 : (int64_t)((uint64_t)a >> by); }

static Status shift_run(const KernelContext *c) {
  if (((const ShiftAttrs *)c->node->attrs)->direction[0] == 'L') return each(c, shift_left);
  return each(c, dtype_class(c->out[0].type->dtype) == DTYPE_CLASS_INT ? shift_right_signed : shift_right_unsigned);
}

static bool alias(const Node *node, int output, int input, Alias *out) {
  *out = (Alias){.kind = ALIAS_INPLACE, .input = input};
  return type_equal(&node->inputs[input]->type, &node->outputs[output]->type);
}

#define BITS(row, arity, check, run, more_flags)                                                                                  \
  const Op op_##row = {.name = #row, .domain = "", .min_inputs = arity, .max_inputs = arity, .min_outputs = 1, .max_outputs = 1, \
                       .flags = OP_ELEMENTWISE | (more_flags), .nondifferentiable = 3, .infer = check, .run_ref = run, .alias = alias
BITS(BitwiseAnd, 2, bits_infer, and_run, OP_COMMUTATIVE)};
BITS(BitwiseOr, 2, bits_infer, or_run, OP_COMMUTATIVE)};
BITS(BitwiseXor, 2, bits_infer, xor_run, OP_COMMUTATIVE)};
BITS(BitwiseNot, 1, bits_infer, not_run, 0)};
BITS(BitShift, 2, shift_infer, shift_run, 0), .attrs = shift_attrs, .attrs_bytes = sizeof(ShiftAttrs)};
