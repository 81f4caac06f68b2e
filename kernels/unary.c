// Functions of one operand, element by element; and the two gradients that need the result only.
// Trigonometric and hyperbolic functions have no vector loops: models hardly use them outside tables that are folded.
#include <math.h>

#include "cost.h"
#include "kernel.h"
#include "ops.h"

static Status same_type(Node *node) {
  node->outputs[0]->type = node->inputs[0]->type;
  return STATUS_OK;
}

static Status float_infer(Node *node, Arena *arena) {
  if (!dtype_is_float(node->inputs[0]->type.dtype))
    FAIL(MALFORMED, node->name, "%s: input '%s' of %s; a float is needed", node->op->name, node->inputs[0]->name,
         dtype_name(node->inputs[0]->type.dtype));
  return same_type(node);
}

static Status number_infer(Node *node, Arena *arena) {
  DtypeClass k = dtype_class(node->inputs[0]->type.dtype);
  bool unsigned_neg = k == DTYPE_CLASS_UINT && node->op == &op_Neg;
  if ((k != DTYPE_CLASS_FLOAT && k != DTYPE_CLASS_INT && k != DTYPE_CLASS_UINT) || unsigned_neg)
    FAIL(MALFORMED, node->name, "%s: input '%s' of %s; a %snumber is needed", node->op->name, node->inputs[0]->name,
         dtype_name(node->inputs[0]->type.dtype), node->op == &op_Neg ? "signed " : "");
  return same_type(node);
}

// (y, dy) of one float type
static Status from_result_infer(Node *node, Arena *arena) {
  if (!type_equal(&node->inputs[0]->type, &node->inputs[1]->type)) {
    char a[160], b[160];
    FAIL(MALFORMED, node->name, "%s: y is %s and dy is %s; they must be equal", node->op->name,
         type_text(&node->inputs[0]->type, a, sizeof a), type_text(&node->inputs[1]->type, b, sizeof b));
  }
  return float_infer(node, arena);
}

static bool inplace(const Node *node, int output, int input, Alias *out) {
  *out = (Alias){.kind = ALIAS_INPLACE, .input = input};
  return true;
}

static Status map_floats(const KernelContext *c, double (*f)(double)) {
  for (int64_t i = 0, n = out_elems(c, 0); i < n; i++) out_f(c, 0, i, f(in_f(c, 0, i)));
  return STATUS_OK;
}
static Status map_ints(const KernelContext *c, int64_t (*f)(int64_t)) {
  for (int64_t i = 0, n = out_elems(c, 0); i < n; i++) out_i(c, 0, i, f(in_i(c, 0, i)));
  return STATUS_OK;
}

static double neg_f(double x) { return -x; }
static int64_t neg_i(int64_t x) { return (int64_t)-(uint64_t)x; }
static int64_t abs_i(int64_t x) { return x < 0 ? neg_i(x) : x; }
static double relu_f(double x) { return x <= 0 ? 0 : x; }
static int64_t relu_i(int64_t x) { return x < 0 ? 0 : x; }
static double reciprocal_f(double x) { return 1 / x; }
static double sigmoid_f(double x) {
  double z = exp(-fabs(x));
  return (x >= 0 ? 1 : z) / (1 + z);
}

static bool is_float(const KernelContext *c) { return dtype_is_float(c->in[0].type->dtype); }
static bool is_f32(const KernelContext *c) { return c->in[0].type->dtype == DTYPE_F32; }
static bool is_uint(const KernelContext *c) { return dtype_class(c->in[0].type->dtype) == DTYPE_CLASS_UINT; }
static int64_t same_i(int64_t x) { return x; }

static Status neg_ref(const KernelContext *c) { return is_float(c) ? map_floats(c, neg_f) : map_ints(c, neg_i); }
static Status abs_ref(const KernelContext *c) { return is_float(c) ? map_floats(c, fabs) : map_ints(c, is_uint(c) ? same_i : abs_i); }
static Status relu_ref(const KernelContext *c) { return is_float(c) ? map_floats(c, relu_f) : map_ints(c, is_uint(c) ? same_i : relu_i); }
static Status exp_ref(const KernelContext *c) { return map_floats(c, exp); }
static Status log_ref(const KernelContext *c) { return map_floats(c, log); }
static Status sqrt_ref(const KernelContext *c) { return map_floats(c, sqrt); }
static Status tanh_ref(const KernelContext *c) { return map_floats(c, tanh); }
static Status erf_ref(const KernelContext *c) { return map_floats(c, erf); }
static Status sigmoid_ref(const KernelContext *c) { return map_floats(c, sigmoid_f); }
static Status reciprocal_ref(const KernelContext *c) { return map_floats(c, reciprocal_f); }

#define MAP_FLOATS(name, function) static Status name##_ref(const KernelContext *c) { return map_floats(c, function); }
MAP_FLOATS(sin, sin)
MAP_FLOATS(cos, cos)
MAP_FLOATS(tan, tan)
MAP_FLOATS(asin, asin)
MAP_FLOATS(acos, acos)
MAP_FLOATS(atan, atan)
MAP_FLOATS(sinh, sinh)
MAP_FLOATS(cosh, cosh)
MAP_FLOATS(asinh, asinh)
MAP_FLOATS(acosh, acosh)
MAP_FLOATS(atanh, atanh)
MAP_FLOATS(floor, floor)
MAP_FLOATS(ceil, ceil)
MAP_FLOATS(round, rint)   // halves to even: the rounding mode that a process starts with

static double sign_f(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }   // NaN stays
static int64_t sign_i(int64_t x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }
static int64_t sign_u(int64_t x) { return x != 0; }
static Status sign_ref(const KernelContext *c) { return is_float(c) ? map_floats(c, sign_f) : map_ints(c, is_uint(c) ? sign_u : sign_i); }

static Status relu_grad_ref(const KernelContext *c) {
  for (int64_t i = 0, n = out_elems(c, 0); i < n; i++) out_f(c, 0, i, in_f(c, 0, i) > 0 ? in_f(c, 1, i) : 0);
  return STATUS_OK;
}
static Status tanh_grad_ref(const KernelContext *c) {
  for (int64_t i = 0, n = out_elems(c, 0); i < n; i++) {
    double y = in_f(c, 0, i);
    out_f(c, 0, i, in_f(c, 1, i) * (1 - y * y));
  }
  return STATUS_OK;
}

static Status exp_cpu(const KernelContext *c) { c->loops->exp(c->out[0].data, c->in[0].data, out_elems(c, 0)); return STATUS_OK; }
static Status log_cpu(const KernelContext *c) { c->loops->log(c->out[0].data, c->in[0].data, out_elems(c, 0)); return STATUS_OK; }
static Status sqrt_cpu(const KernelContext *c) { c->loops->sqrt(c->out[0].data, c->in[0].data, out_elems(c, 0)); return STATUS_OK; }
static Status tanh_cpu(const KernelContext *c) { c->loops->tanh(c->out[0].data, c->in[0].data, out_elems(c, 0)); return STATUS_OK; }
static Status erf_cpu(const KernelContext *c) { c->loops->erf(c->out[0].data, c->in[0].data, out_elems(c, 0)); return STATUS_OK; }
static Status sigmoid_cpu(const KernelContext *c) { c->loops->sigmoid(c->out[0].data, c->in[0].data, out_elems(c, 0)); return STATUS_OK; }
static Status relu_cpu(const KernelContext *c) {
  if (!is_f32(c)) return relu_ref(c);
  c->loops->relu(c->out[0].data, c->in[0].data, out_elems(c, 0));
  return STATUS_OK;
}
static Status neg_cpu(const KernelContext *c) {
  if (!is_f32(c)) return neg_ref(c);
  c->loops->mul_s(c->out[0].data, c->in[0].data, -1.0f, out_elems(c, 0));   // exact
  return STATUS_OK;
}
static Status abs_cpu(const KernelContext *c) {
  if (!is_f32(c)) return abs_ref(c);
  const float *x = c->in[0].data;
  float *y = c->out[0].data;
  for (int64_t i = 0, n = out_elems(c, 0); i < n; i++) y[i] = fabsf(x[i]);
  return STATUS_OK;
}
static Status reciprocal_cpu(const KernelContext *c) {
  const float *x = c->in[0].data;
  float *y = c->out[0].data;
  for (int64_t i = 0, n = out_elems(c, 0); i < n; i++) y[i] = 1.0f / x[i];
  return STATUS_OK;
}
static Status relu_grad_cpu(const KernelContext *c) {
  c->loops->relu_grad(c->out[0].data, c->in[0].data, c->in[1].data, out_elems(c, 0));
  return STATUS_OK;
}
static Status tanh_grad_cpu(const KernelContext *c) {
  c->loops->tanh_grad(c->out[0].data, c->in[0].data, c->in[1].data, out_elems(c, 0));
  return STATUS_OK;
}

#define X g->node->inputs[0]
#define Y g->node->outputs[0]
#define DY g->dy[0]

static Status neg_grad(Grad *g) {
  g->dx[0] = emit(g->emit, &op_Neg, INPUTS(DY), NULL);
  return STATUS_OK;
}
static Status exp_grad(Grad *g) {
  g->dx[0] = emit(g->emit, &op_Mul, INPUTS(DY, Y), NULL);
  return STATUS_OK;
}
static Status log_grad(Grad *g) {
  g->dx[0] = emit(g->emit, &op_Div, INPUTS(DY, X), NULL);
  return STATUS_OK;
}
static Status sqrt_grad(Grad *g) {   // dy / 2y
  g->dx[0] = emit(g->emit, &op_Div, INPUTS(DY, emit(g->emit, &op_Add, INPUTS(Y, Y), NULL)), NULL);
  return STATUS_OK;
}
static Status tanh_grad(Grad *g) {
  g->dx[0] = emit(g->emit, &op_TanhGrad, INPUTS(Y, DY), NULL);
  return STATUS_OK;
}
static Status relu_grad(Grad *g) {
  g->dx[0] = emit(g->emit, &op_ReluGrad, INPUTS(Y, DY), NULL);
  return STATUS_OK;
}
static Status erf_grad(Grad *g) {   // dy 2/sqrt(pi) exp(-x^2)
  Emit *e = g->emit;
  Value *gauss = emit(e, &op_Exp, INPUTS(emit(e, &op_Neg, INPUTS(emit(e, &op_Mul, INPUTS(X, X), NULL)), NULL)), NULL);
  Value *slope = emit(e, &op_Mul, INPUTS(gauss, emit_float(e, "two_over_root_pi", X->type.dtype, M_2_SQRTPI)), NULL);
  g->dx[0] = emit(e, &op_Mul, INPUTS(DY, slope), NULL);
  return STATUS_OK;
}
static Status sigmoid_grad(Grad *g) {   // dy (1 - y) y
  Emit *e = g->emit;
  Value *rest = emit(e, &op_Sub, INPUTS(emit_float(e, "one", X->type.dtype, 1), Y), NULL);
  g->dx[0] = emit(e, &op_Mul, INPUTS(emit(e, &op_Mul, INPUTS(DY, rest), NULL), Y), NULL);
  return STATUS_OK;
}
static Status abs_grad(Grad *g) {   // dy sign(x), 0 at 0 as in PyTorch
  Emit *e = g->emit;
  Value *zero = emit_float(e, "zero", X->type.dtype, 0);
  Value *negative = emit(e, &op_Where, INPUTS(emit(e, &op_Less, INPUTS(X, zero), NULL), emit(e, &op_Neg, INPUTS(DY), NULL), zero), NULL);
  g->dx[0] = emit(e, &op_Where, INPUTS(emit(e, &op_Greater, INPUTS(X, zero), NULL), DY, negative), NULL);
  return STATUS_OK;
}
static Status reciprocal_grad(Grad *g) {   // -dy y^2
  Emit *e = g->emit;
  g->dx[0] = emit(e, &op_Neg, INPUTS(emit(e, &op_Mul, INPUTS(DY, emit(e, &op_Mul, INPUTS(Y, Y), NULL)), NULL)), NULL);
  return STATUS_OK;
}

// dy f(x) for a derivative that is a standard operator of x.
static Status times(Grad *g, const Op *derivative, bool negative) {
  Emit *e = g->emit;
  Value *dx = emit(e, &op_Mul, INPUTS(DY, emit(e, derivative, INPUTS(X), NULL)), NULL);
  g->dx[0] = negative ? emit(e, &op_Neg, INPUTS(dx), NULL) : dx;
  return STATUS_OK;
}
static Status sin_grad(Grad *g) { return times(g, &op_Cos, false); }
static Status cos_grad(Grad *g) { return times(g, &op_Sin, true); }
static Status sinh_grad(Grad *g) { return times(g, &op_Cosh, false); }
static Status cosh_grad(Grad *g) { return times(g, &op_Sinh, false); }

// a + b v^2
static Value *square_plus(Grad *g, double a, double b, Value *v) {
  Emit *e = g->emit;
  Value *square = emit(e, &op_Mul, INPUTS(v, v), NULL);
  return emit(e, b < 0 ? &op_Sub : &op_Add, INPUTS(emit_float(e, "a", X->type.dtype, a), square), NULL);
}
static Status tan_grad(Grad *g) {   // dy (1 + y^2)
  g->dx[0] = emit(g->emit, &op_Mul, INPUTS(DY, square_plus(g, 1, 1, Y)), NULL);
  return STATUS_OK;
}
static Status over_root(Grad *g, Value *square, bool negative) {   // +-dy / sqrt(square)
  Emit *e = g->emit;
  Value *dx = emit(e, &op_Div, INPUTS(DY, emit(e, &op_Sqrt, INPUTS(square), NULL)), NULL);
  g->dx[0] = negative ? emit(e, &op_Neg, INPUTS(dx), NULL) : dx;
  return STATUS_OK;
}
static Status asin_grad(Grad *g) { return over_root(g, square_plus(g, 1, -1, X), false); }
static Status acos_grad(Grad *g) { return over_root(g, square_plus(g, 1, -1, X), true); }
static Status asinh_grad(Grad *g) { return over_root(g, square_plus(g, 1, 1, X), false); }
static Status acosh_grad(Grad *g) { return over_root(g, square_plus(g, -1, 1, X), false); }
static Status atan_grad(Grad *g) {
  g->dx[0] = emit(g->emit, &op_Div, INPUTS(DY, square_plus(g, 1, 1, X)), NULL);
  return STATUS_OK;
}
static Status atanh_grad(Grad *g) {
  g->dx[0] = emit(g->emit, &op_Div, INPUTS(DY, square_plus(g, 1, -1, X)), NULL);
  return STATUS_OK;
}

#define UNARY(row, check, gradient, ref, cpu, what, width)                                                                                     \
  const Op op_##row = {.name = #row, .domain = "", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1,         \
                       .flags = OP_ELEMENTWISE, .infer = check, .grad = gradient, .run_ref = ref, .run_cpu = cpu, .alias = inplace, .cost = what, .policy = width}
// Constant between its steps: nothing flows back (PyTorch's gradient is 0).
#define STEPS(row, check, ref)                                                                                                    \
  const Op op_##row = {.name = #row, .domain = "", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1,         \
                       .flags = OP_ELEMENTWISE, .nondifferentiable = 1, .infer = check, .run_ref = ref, .alias = inplace}
#define FROM_RESULT(row, ref, cpu)                                                                                                \
  const Op op_##row = {.name = #row, .domain = "tessera", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1,  \
                       .flags = OP_ELEMENTWISE, .infer = from_result_infer, .run_ref = ref, .run_cpu = cpu, .alias = inplace}

UNARY(Neg, number_infer, neg_grad, neg_ref, neg_cpu, NULL, POLICY_KEEP);
UNARY(Exp, float_infer, exp_grad, exp_ref, exp_cpu, cost_function, POLICY_F32);
UNARY(Log, float_infer, log_grad, log_ref, log_cpu, cost_function, POLICY_F32);
UNARY(Sqrt, float_infer, sqrt_grad, sqrt_ref, sqrt_cpu, NULL, POLICY_F32);
UNARY(Tanh, float_infer, tanh_grad, tanh_ref, tanh_cpu, cost_function, POLICY_KEEP);
UNARY(Erf, float_infer, erf_grad, erf_ref, erf_cpu, cost_function, POLICY_KEEP);
UNARY(Sigmoid, float_infer, sigmoid_grad, sigmoid_ref, sigmoid_cpu, cost_function, POLICY_KEEP);
UNARY(Relu, number_infer, relu_grad, relu_ref, relu_cpu, NULL, POLICY_KEEP);
UNARY(Abs, number_infer, abs_grad, abs_ref, abs_cpu, NULL, POLICY_KEEP);
UNARY(Reciprocal, float_infer, reciprocal_grad, reciprocal_ref, reciprocal_cpu, NULL, POLICY_F32);
FROM_RESULT(ReluGrad, relu_grad_ref, relu_grad_cpu);
FROM_RESULT(TanhGrad, tanh_grad_ref, tanh_grad_cpu);
UNARY(Sin, float_infer, sin_grad, sin_ref, NULL, NULL, POLICY_KEEP);
UNARY(Cos, float_infer, cos_grad, cos_ref, NULL, NULL, POLICY_KEEP);
UNARY(Tan, float_infer, tan_grad, tan_ref, NULL, NULL, POLICY_F32);
UNARY(Asin, float_infer, asin_grad, asin_ref, NULL, NULL, POLICY_F32);
UNARY(Acos, float_infer, acos_grad, acos_ref, NULL, NULL, POLICY_F32);
UNARY(Atan, float_infer, atan_grad, atan_ref, NULL, NULL, POLICY_KEEP);
UNARY(Sinh, float_infer, sinh_grad, sinh_ref, NULL, NULL, POLICY_F32);
UNARY(Cosh, float_infer, cosh_grad, cosh_ref, NULL, NULL, POLICY_F32);
UNARY(Asinh, float_infer, asinh_grad, asinh_ref, NULL, NULL, POLICY_F32);
UNARY(Acosh, float_infer, acosh_grad, acosh_ref, NULL, NULL, POLICY_F32);
UNARY(Atanh, float_infer, atanh_grad, atanh_ref, NULL, NULL, POLICY_F32);
STEPS(Floor, float_infer, floor_ref);
STEPS(Ceil, float_infer, ceil_ref);
STEPS(Round, float_infer, round_ref);
STEPS(Sign, number_infer, sign_ref);
