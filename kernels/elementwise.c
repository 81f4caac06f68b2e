// Add, Sub, Mul, Div, Mod: numpy broadcasting, integers wrap.
#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#include "broadcast.h"
#include "ops.h"

static Status arith_infer(Node *node, Arena *arena) {
  const Type *a = &node->inputs[0]->type, *b = &node->inputs[1]->type;
  if (a->dtype != b->dtype || !(dtype_is_float(a->dtype) || dtype_is_integer(a->dtype)))
    FAIL(MALFORMED, node->name, "%s: operands '%s' of %s and '%s' of %s; two numbers of one type are needed", node->op->name, node->inputs[0]->name,
         dtype_name(a->dtype), node->inputs[1]->name, dtype_name(b->dtype));
  node->outputs[0]->type.dtype = a->dtype;
  return broadcast_infer(node, 0, &node->outputs[0]->type);
}

// The result may lie over an operand that it reads element by element: one of its own shape.
static bool arith_alias(const Node *node, int output, int input, Alias *out) {
  if (!type_equal(&node->inputs[input]->type, &node->outputs[output]->type)) return false;
  *out = (Alias){.kind = ALIAS_INPLACE, .input = input};
  return true;
}

typedef double (*FloatFn)(double a, double b);
typedef int64_t (*IntFn)(int64_t a, int64_t b);   // on the bits of the 64-bit type; narrower results are cut when stored

static double add_f(double a, double b) { return a + b; }
static double sub_f(double a, double b) { return a - b; }
static double mul_f(double a, double b) { return a * b; }
static double div_f(double a, double b) { return a / b; }
static int64_t add_i(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
static int64_t sub_i(int64_t a, int64_t b) { return (int64_t)((uint64_t)a - (uint64_t)b); }
static int64_t mul_i(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }
static int64_t div_signed(int64_t a, int64_t b) { return b == -1 ? sub_i(0, a) : a / b; }   // INT64_MIN / -1 wraps
static int64_t div_unsigned(int64_t a, int64_t b) { return (int64_t)((uint64_t)a / (uint64_t)b); }

static Status arith_floats(const KernelContext *c, FloatFn f) {
  Broadcast b;
  for (bool more = broadcast_begin(&b, c->out[0].type, 2, c->in); more; more = broadcast_next(&b))
    for (int64_t i = 0; i < b.run; i++)
      out_f(c, 0, b.at_out + i, f(in_f(c, 0, b.at[0] + i * b.step[0]), in_f(c, 1, b.at[1] + i * b.step[1])));
  return STATUS_OK;
}

static Status arith_ints(const KernelContext *c, IntFn f) {
  Broadcast b;
  for (bool more = broadcast_begin(&b, c->out[0].type, 2, c->in); more; more = broadcast_next(&b))
    for (int64_t i = 0; i < b.run; i++)
      out_i(c, 0, b.at_out + i, f(in_i(c, 0, b.at[0] + i * b.step[0]), in_i(c, 1, b.at[1] + i * b.step[1])));
  return STATUS_OK;
}

static Status add_ref(const KernelContext *c) { return dtype_is_float(c->out[0].type->dtype) ? arith_floats(c, add_f) : arith_ints(c, add_i); }
static Status sub_ref(const KernelContext *c) { return dtype_is_float(c->out[0].type->dtype) ? arith_floats(c, sub_f) : arith_ints(c, sub_i); }
static Status mul_ref(const KernelContext *c) { return dtype_is_float(c->out[0].type->dtype) ? arith_floats(c, mul_f) : arith_ints(c, mul_i); }
static Status no_zero_divisor(const KernelContext *c) {
  for (int64_t i = 0; i < in_elems(c, 1); i++)
    if (in_i(c, 1, i) == 0)
      FAIL(CHECK, c->node->name, "%s: integer division by zero: element %" PRId64 " of '%s'", c->node->op->name, i, c->node->inputs[1]->name);
  return STATUS_OK;
}

static Status div_ref(const KernelContext *c) {
  if (dtype_is_float(c->out[0].type->dtype)) return arith_floats(c, div_f);
  TRY(no_zero_divisor(c));
  return arith_ints(c, dtype_class(c->out[0].type->dtype) == DTYPE_CLASS_UINT ? div_unsigned : div_signed);
}

// One run of f32: both contiguous, or one of them a single element. `both` gives the same bits as the two short forms.
typedef void (*RunBoth)(float *out, const float *a, const float *b, int64_t n);
typedef void (*RunScalar)(float *out, const float *a, float s, int64_t n);

static Status arith_runs(const KernelContext *c, RunBoth both, RunScalar a_with_s, RunScalar b_with_s) {
  float *out = c->out[0].data;
  const float *a = c->in[0].data, *b = c->in[1].data;
  Broadcast w;
  for (bool more = broadcast_begin(&w, c->out[0].type, 2, c->in); more; more = broadcast_next(&w)) {
    const float *pa = a + w.at[0], *pb = b + w.at[1];
    if (w.run == 1 || (w.step[0] && w.step[1])) both(out + w.at_out, pa, pb, w.run);
    else if (w.step[0]) a_with_s(out + w.at_out, pa, *pb, w.run);
    else b_with_s(out + w.at_out, pb, *pa, w.run);
  }
  return STATUS_OK;
}

static void sub_s(float *out, const float *a, float s, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = a[i] - s;
}
static void s_sub(float *out, const float *b, float s, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = s - b[i];
}
static void div_s(float *out, const float *a, float s, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = a[i] / s;
}
static void s_div(float *out, const float *b, float s, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = s / b[i];
}

static bool is_f32(const KernelContext *c) { return c->out[0].type->dtype == DTYPE_F32; }
static Status add_cpu(const KernelContext *c) { return is_f32(c) ? arith_runs(c, c->loops->add, c->loops->add_s, c->loops->add_s) : add_ref(c); }
static Status sub_cpu(const KernelContext *c) { return is_f32(c) ? arith_runs(c, c->loops->sub, sub_s, s_sub) : sub_ref(c); }
static Status mul_cpu(const KernelContext *c) { return is_f32(c) ? arith_runs(c, c->loops->mul, c->loops->mul_s, c->loops->mul_s) : mul_ref(c); }
static Status div_cpu(const KernelContext *c) { return is_f32(c) ? arith_runs(c, c->loops->div, div_s, s_div) : div_ref(c); }

static Status add_grad(Grad *g) {
  for (int i = 0; i < 2; i++)
    if (g->wanted[i]) g->dx[i] = emit_sum_to(g->emit, g->dy[0], &g->node->inputs[i]->type);
  return STATUS_OK;
}

static Status sub_grad(Grad *g) {
  if (g->wanted[0]) g->dx[0] = emit_sum_to(g->emit, g->dy[0], &g->node->inputs[0]->type);
  if (g->wanted[1]) g->dx[1] = emit(g->emit, &op_Neg, INPUTS(emit_sum_to(g->emit, g->dy[0], &g->node->inputs[1]->type)), NULL);
  return STATUS_OK;
}

static Status mul_grad(Grad *g) {
  Value *const *x = g->node->inputs;
  for (int i = 0; i < 2; i++)
    if (g->wanted[i]) g->dx[i] = emit_sum_to(g->emit, emit(g->emit, &op_Mul, INPUTS(g->dy[0], x[1 - i]), NULL), &x[i]->type);
  return STATUS_OK;
}

// d(a/b) = dy / b and -dy (a/b) / b
static Status div_grad(Grad *g) {
  Emit *e = g->emit;
  Value *b = g->node->inputs[1], *y = g->node->outputs[0];
  if (!g->wanted[0] && !g->wanted[1]) return STATUS_OK;
  Value *over_b = emit(e, &op_Div, INPUTS(g->dy[0], b), NULL);
  if (g->wanted[0]) g->dx[0] = emit_sum_to(e, over_b, &g->node->inputs[0]->type);
  if (g->wanted[1]) g->dx[1] = emit(e, &op_Neg, INPUTS(emit_sum_to(e, emit(e, &op_Mul, INPUTS(over_b, y), NULL), &b->type)), NULL);
  return STATUS_OK;
}

#define ARITH(row, more_flags)                                                                                            \
  const Op op_##row = {.name = #row, .domain = "", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, \
                       .flags = OP_ELEMENTWISE | (more_flags)
ARITH(Add, OP_COMMUTATIVE), .infer = arith_infer, .grad = add_grad, .run_ref = add_ref, .run_cpu = add_cpu, .alias = arith_alias};
ARITH(Sub, 0), .infer = arith_infer, .grad = sub_grad, .run_ref = sub_ref, .run_cpu = sub_cpu, .alias = arith_alias};
ARITH(Mul, OP_COMMUTATIVE), .infer = arith_infer, .grad = mul_grad, .run_ref = mul_ref, .run_cpu = mul_cpu, .alias = arith_alias};
ARITH(Div, 0), .infer = arith_infer, .grad = div_grad, .run_ref = div_ref, .run_cpu = div_cpu, .alias = arith_alias};

// ---- Mod ----

typedef struct ModAttrs { int64_t fmod; } ModAttrs;
static const AttrSpec mod_attrs[] = {
  {"fmod", ATTR_INT, offsetof(ModAttrs, fmod), .min = 0, .max = 1, .help = "0: the result has the divisor's sign; 1: the dividend's"},
  {0},
};

static double floor_mod_f(double a, double b) {
  double r = fmod(a, b);
  if (r == 0) return copysign(0, b);
  return (r < 0) != (b < 0) ? (isinf(b) ? b : r + b) : r;
}
static int64_t mod_signed(int64_t a, int64_t b) { return b == -1 ? 0 : a % b; }
static int64_t floor_mod_signed(int64_t a, int64_t b) {
  int64_t r = mod_signed(a, b);
  return r && (r < 0) != (b < 0) ? r + b : r;
}
static int64_t mod_unsigned(int64_t a, int64_t b) { return (int64_t)((uint64_t)a % (uint64_t)b); }

static Status mod_ref(const KernelContext *c) {
  bool is_fmod = ((const ModAttrs *)c->node->attrs)->fmod;
  if (dtype_is_float(c->out[0].type->dtype)) return arith_floats(c, is_fmod ? fmod : floor_mod_f);
  TRY(no_zero_divisor(c));
  if (dtype_class(c->out[0].type->dtype) == DTYPE_CLASS_UINT) return arith_ints(c, mod_unsigned);
  return arith_ints(c, is_fmod ? mod_signed : floor_mod_signed);
}

// y = a - q b with the whole quotient q: dy and -dy q
static Status mod_grad(Grad *g) {
  Emit *e = g->emit;
  Value *a = g->node->inputs[0], *b = g->node->inputs[1], *y = g->node->outputs[0];
  if (g->wanted[0]) g->dx[0] = emit_sum_to(e, g->dy[0], &a->type);
  if (!g->wanted[1]) return STATUS_OK;
  Value *quotient = emit(e, &op_Div, INPUTS(emit(e, &op_Sub, INPUTS(y, a), NULL), b), NULL);   // -q
  Value *db = emit(e, &op_Mul, INPUTS(g->dy[0], quotient), NULL);
  if (db) g->dx[1] = emit_sum_to(e, db, &b->type);
  return STATUS_OK;
}

ARITH(Mod, 0), .attrs = mod_attrs, .attrs_bytes = sizeof(ModAttrs), .infer = arith_infer, .grad = mod_grad, .run_ref = mod_ref, .alias = arith_alias};
