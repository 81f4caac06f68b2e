// Comparisons, boolean operators, selection.
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "broadcast.h"
#include "cost.h"
#include "ops.h"

static Status compare_infer(Node *node, Arena *arena) {
  Dtype a = node->inputs[0]->type.dtype, b = node->inputs[1]->type.dtype;
  bool ordered = dtype_is_float(a) || dtype_is_integer(a), any = node->op == &op_Equal && a == DTYPE_BOOL;
  if (a != b || !(ordered || any))
    FAIL(MALFORMED, node->name, "%s: operands of %s and %s cannot be compared", node->op->name, dtype_name(a), dtype_name(b));
  node->outputs[0]->type.dtype = DTYPE_BOOL;
  return broadcast_infer(node, 0, &node->outputs[0]->type);
}

static Status bool_infer(Node *node, Arena *arena) {
  for (int i = 0; i < node->n_inputs; i++)
    if (node->inputs[i]->type.dtype != DTYPE_BOOL)
      FAIL(MALFORMED, node->name, "%s: input %d '%s' of %s; bool is needed", node->op->name, i, node->inputs[i]->name, dtype_name(node->inputs[i]->type.dtype));
  node->outputs[0]->type.dtype = DTYPE_BOOL;
  return broadcast_infer(node, 0, &node->outputs[0]->type);
}

static Status is_nan_infer(Node *node, Arena *arena) {
  const Type *x = &node->inputs[0]->type;
  if (!dtype_is_float(x->dtype)) FAIL(MALFORMED, node->name, "%s: input '%s' of %s; a float is needed", node->op->name, node->inputs[0]->name, dtype_name(x->dtype));
  node->outputs[0]->type = *x;
  node->outputs[0]->type.dtype = DTYPE_BOOL;
  return STATUS_OK;
}

typedef bool (*FloatTest)(double a, double b);
typedef bool (*IntTest)(int64_t a, int64_t b);
static bool equal_f(double a, double b) { return a == b; }
static bool less_f(double a, double b) { return a < b; }
static bool greater_f(double a, double b) { return a > b; }
static bool equal_i(int64_t a, int64_t b) { return a == b; }
static bool less_i(int64_t a, int64_t b) { return a < b; }
static bool greater_i(int64_t a, int64_t b) { return a > b; }
static bool less_u(int64_t a, int64_t b) { return (uint64_t)a < (uint64_t)b; }
static bool greater_u(int64_t a, int64_t b) { return (uint64_t)a > (uint64_t)b; }
static bool at_most_f(double a, double b) { return a <= b; }
static bool at_least_f(double a, double b) { return a >= b; }
static bool at_most_i(int64_t a, int64_t b) { return a <= b; }
static bool at_least_i(int64_t a, int64_t b) { return a >= b; }
static bool at_most_u(int64_t a, int64_t b) { return (uint64_t)a <= (uint64_t)b; }
static bool at_least_u(int64_t a, int64_t b) { return (uint64_t)a >= (uint64_t)b; }
static bool xor_i(int64_t a, int64_t b) { return !a != !b; }
static bool and_i(int64_t a, int64_t b) { return a && b; }
static bool or_i(int64_t a, int64_t b) { return a || b; }

// The element types that models compare, without a call per element. Comparing in the type itself is comparing in double.
#define TESTS(T, name, operator)                                                                                          \
  static void name##_##T(bool *out, const T *a, const T *b, int64_t n, int64_t a_step, int64_t b_step) {                 \
    if (a_step && b_step) for (int64_t i = 0; i < n; i++) out[i] = a[i] operator b[i];                                   \
    else if (a_step) for (int64_t i = 0; i < n; i++) out[i] = a[i] operator *b;                                          \
    else for (int64_t i = 0; i < n; i++) out[i] = *a operator b[i * b_step];                                             \
  }
#define TESTS_OF(T) TESTS(T, equal, ==) TESTS(T, less, <) TESTS(T, greater, >) TESTS(T, at_most, <=) TESTS(T, at_least, >=)
TESTS_OF(float)
TESTS_OF(int64_t)
TESTS_OF(int32_t)

#define TEST_RUN(T, name)                                                                                                  \
  for (bool more = broadcast_begin(&b, c->out[0].type, 2, c->in); more; more = broadcast_next(&b))                         \
    name##_##T((bool *)c->out[0].data + b.at_out, (const T *)c->in[0].data + b.at[0], (const T *)c->in[1].data + b.at[1], b.run, b.step[0], b.step[1])
#define COMPARE(name)                                                                                                      \
  do {                                                                                                                     \
    Broadcast b;                                                                                                           \
    switch (c->in[0].type->dtype) {                                                                                        \
    case DTYPE_F32: TEST_RUN(float, name); return STATUS_OK;                                                               \
    case DTYPE_I64: TEST_RUN(int64_t, name); return STATUS_OK;                                                             \
    case DTYPE_I32: TEST_RUN(int32_t, name); return STATUS_OK;                                                             \
    default: break;                                                                                                        \
    }                                                                                                                      \
  } while (0)

static Status test_each(const KernelContext *c, FloatTest f, IntTest i_test, IntTest u_test) {
  bool *out = c->out[0].data;
  Dtype dtype = c->in[0].type->dtype;
  bool is_float = dtype_is_float(dtype);
  IntTest g = dtype_class(dtype) == DTYPE_CLASS_INT ? i_test : u_test;
  Broadcast b;
  for (bool more = broadcast_begin(&b, c->out[0].type, 2, c->in); more; more = broadcast_next(&b))
    for (int64_t i = 0; i < b.run; i++) {
      int64_t ia = b.at[0] + i * b.step[0], ib = b.at[1] + i * b.step[1];
      out[b.at_out + i] = is_float ? f(in_f(c, 0, ia), in_f(c, 1, ib)) : g(in_i(c, 0, ia), in_i(c, 1, ib));
    }
  return STATUS_OK;
}

static Status equal_run(const KernelContext *c) {
  COMPARE(equal);
  return test_each(c, equal_f, equal_i, equal_i);
}
static Status less_run(const KernelContext *c) {
  COMPARE(less);
  return test_each(c, less_f, less_i, less_u);
}
static Status greater_run(const KernelContext *c) {
  COMPARE(greater);
  return test_each(c, greater_f, greater_i, greater_u);
}
static Status at_most_run(const KernelContext *c) {
  COMPARE(at_most);
  return test_each(c, at_most_f, at_most_i, at_most_u);
}
static Status at_least_run(const KernelContext *c) {
  COMPARE(at_least);
  return test_each(c, at_least_f, at_least_i, at_least_u);
}
static Status xor_run(const KernelContext *c) { return test_each(c, NULL, xor_i, xor_i); }
static Status and_run(const KernelContext *c) { return test_each(c, NULL, and_i, and_i); }
static Status or_run(const KernelContext *c) { return test_each(c, NULL, or_i, or_i); }

static Status not_run(const KernelContext *c) {
  for (int64_t i = 0, n = out_elems(c, 0); i < n; i++) out_i(c, 0, i, !in_i(c, 0, i));
  return STATUS_OK;
}

static Status is_nan_run(const KernelContext *c) {
  for (int64_t i = 0, n = out_elems(c, 0); i < n; i++) out_i(c, 0, i, isnan(in_f(c, 0, i)));
  return STATUS_OK;
}

static Status is_nan_cpu(const KernelContext *c) {
  const float *x = c->in[0].data;
  unsigned char *y = c->out[0].data;
  for (int64_t i = 0, n = out_elems(c, 0); i < n; i++) y[i] = x[i] != x[i];
  return STATUS_OK;
}

// ---- IsInf ----

typedef struct IsInfAttrs { int64_t detect_negative, detect_positive; } IsInfAttrs;
static const AttrSpec is_inf_attrs[] = {
  {"detect_negative", ATTR_INT, offsetof(IsInfAttrs, detect_negative), .default_int = 1, .min = 0, .max = 1, .help = "1: minus infinity counts"},
  {"detect_positive", ATTR_INT, offsetof(IsInfAttrs, detect_positive), .default_int = 1, .min = 0, .max = 1, .help = "1: infinity counts"},
  {0},
};

static Status is_inf_run(const KernelContext *c) {
  const IsInfAttrs *a = c->node->attrs;
  for (int64_t i = 0, n = out_elems(c, 0); i < n; i++) {
    double x = in_f(c, 0, i);
    out_i(c, 0, i, (a->detect_negative && x == -INFINITY) || (a->detect_positive && x == INFINITY));
  }
  return STATUS_OK;
}

// ---- Where ----

static Status where_infer(Node *node, Arena *arena) {
  const Type *c = &node->inputs[0]->type, *a = &node->inputs[1]->type, *b = &node->inputs[2]->type;
  if (c->dtype != DTYPE_BOOL || a->dtype != b->dtype)
    FAIL(MALFORMED, node->name, "Where: a condition of %s and values of %s and %s; bool and two of one type are needed", dtype_name(c->dtype),
         dtype_name(a->dtype), dtype_name(b->dtype));
  node->outputs[0]->type.dtype = a->dtype;
  return broadcast_infer(node, 0, &node->outputs[0]->type);
}

// Selects by element size: bits pass unchanged.
#define SELECT(T)                                                                                                                  \
  static void select_##T(T *out, const unsigned char *test, const T *a, const T *b, int64_t n, int64_t ts, int64_t as, int64_t bs) { \
    if (ts && as && bs) for (int64_t i = 0; i < n; i++) out[i] = test[i] ? a[i] : b[i];                                            \
    else if (ts && as) { T y = *b; for (int64_t i = 0; i < n; i++) out[i] = test[i] ? a[i] : y; }                                  \
    else if (ts && bs) { T y = *a; for (int64_t i = 0; i < n; i++) out[i] = test[i] ? y : b[i]; }                                  \
    else for (int64_t i = 0; i < n; i++) out[i] = test[i * ts] ? a[i * as] : b[i * bs];                                            \
  }
SELECT(uint8_t)
SELECT(uint16_t)
SELECT(uint32_t)
SELECT(uint64_t)

static Status where_run(const KernelContext *c) {
  Broadcast b;
  for (bool more = broadcast_begin(&b, c->out[0].type, 3, c->in); more; more = broadcast_next(&b)) {
    const unsigned char *test = (const unsigned char *)c->in[0].data + b.at[0];
    const int64_t *s = b.step;
#define ONE(T) select_##T((T *)c->out[0].data + b.at_out, test, (const T *)c->in[1].data + b.at[1], (const T *)c->in[2].data + b.at[2], b.run, s[0], s[1], s[2])
    switch (dtype_bytes(c->out[0].type->dtype)) {
    case 1: ONE(uint8_t); break;
    case 2: ONE(uint16_t); break;
    case 4: ONE(uint32_t); break;
    default: ONE(uint64_t); break;
    }
#undef ONE
  }
  return STATUS_OK;
}

// Selection, not multiplication by the mask: a NaN on the side that was not taken adds nothing.
static Status where_grad(Grad *g) {
  Emit *e = g->emit;
  Value *test = g->node->inputs[0];
  if (!g->wanted[1] && !g->wanted[2]) return STATUS_OK;
  Value *zero = emit_float(e, "zero", g->dy[0]->type.dtype, 0);
  if (g->wanted[1]) g->dx[1] = emit_sum_to(e, emit(e, &op_Where, INPUTS(test, g->dy[0], zero), NULL), &g->node->inputs[1]->type);
  if (g->wanted[2]) g->dx[2] = emit_sum_to(e, emit(e, &op_Where, INPUTS(test, zero, g->dy[0]), NULL), &g->node->inputs[2]->type);
  return STATUS_OK;
}

static bool where_alias(const Node *node, int output, int input, Alias *out) {
  *out = (Alias){.kind = ALIAS_INPLACE, .input = input};
  return type_equal(&node->inputs[input]->type, &node->outputs[output]->type);
}

#define LOGIC(row, arity, check, run, more_flags)                                                                                  \
  const Op op_##row = {.name = #row, .domain = "", .min_inputs = arity, .max_inputs = arity, .min_outputs = 1, .max_outputs = 1,  \
                       .flags = OP_ELEMENTWISE | (more_flags), .nondifferentiable = (1 << arity) - 1, .infer = check, .run_ref = run, .cost = cost_arithmetic
LOGIC(Equal, 2, compare_infer, equal_run, OP_COMMUTATIVE)};
LOGIC(Less, 2, compare_infer, less_run, 0)};
LOGIC(Greater, 2, compare_infer, greater_run, 0)};
LOGIC(LessOrEqual, 2, compare_infer, at_most_run, 0)};
LOGIC(GreaterOrEqual, 2, compare_infer, at_least_run, 0)};
LOGIC(And, 2, bool_infer, and_run, OP_COMMUTATIVE)};
LOGIC(Or, 2, bool_infer, or_run, OP_COMMUTATIVE)};
LOGIC(Xor, 2, bool_infer, xor_run, OP_COMMUTATIVE)};
LOGIC(Not, 1, bool_infer, not_run, 0)};
LOGIC(IsNaN, 1, is_nan_infer, is_nan_run, 0), .run_cpu = is_nan_cpu};
LOGIC(IsInf, 1, is_nan_infer, is_inf_run, 0), .attrs = is_inf_attrs, .attrs_bytes = sizeof(IsInfAttrs)};

const Op op_Where = {.name = "Where", .domain = "", .min_inputs = 3, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1, .flags = OP_ELEMENTWISE,
                     .nondifferentiable = 1, .infer = where_infer, .grad = where_grad, .run_ref = where_run, .alias = where_alias,
                     .cost = cost_arithmetic};
