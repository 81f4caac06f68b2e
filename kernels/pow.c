// Pow and its gradient with respect to the base.
#include <inttypes.h>
#include <math.h>

#include "broadcast.h"
#include "cost.h"
#include "ops.h"

static bool is_number(Dtype d) { return dtype_is_float(d) || dtype_is_integer(d); }

static Status pow_infer(Node *node, Arena *arena) {
  Dtype x = node->inputs[0]->type.dtype, p = node->inputs[1]->type.dtype;
  if (!is_number(x) || !is_number(p)) FAIL(MALFORMED, node->name, "Pow: %s to the power of %s; numbers are needed", dtype_name(x), dtype_name(p));
  node->outputs[0]->type.dtype = x;
  return broadcast_infer(node, 0, &node->outputs[0]->type);
}

// Integer powers wrap; a negative exponent gives 1/x cut towards zero (and 0 for base 0, where there is no answer).
static int64_t pow_i(int64_t x, int64_t p) {
  if (p < 0) return x == 1 ? 1 : x == -1 ? (p % 2 ? -1 : 1) : 0;
  uint64_t y = 1, base = (uint64_t)x;
  for (uint64_t e = (uint64_t)p; e; e >>= 1) {
    if (e & 1) y *= base;
    base *= base;
  }
  return (int64_t)y;
}

static Status pow_ref(const KernelContext *c) {
  bool whole = !dtype_is_float(c->in[0].type->dtype) && !dtype_is_float(c->in[1].type->dtype);
  Broadcast b;
  for (bool more = broadcast_begin(&b, c->out[0].type, 2, c->in); more; more = broadcast_next(&b))
    for (int64_t i = 0; i < b.run; i++) {
      int64_t ix = b.at[0] + i * b.step[0], ip = b.at[1] + i * b.step[1];
      if (whole) out_i(c, 0, b.at_out + i, pow_i(in_i(c, 0, ix), in_i(c, 1, ip)));
      else out_f(c, 0, b.at_out + i, pow(in_f(c, 0, ix), in_f(c, 1, ip)));
    }
  return STATUS_OK;
}

// Exponents that models use, each rounded once but for the sums of roundings in f64: within an ulp of pow. Zero and infinity as pow has them.
#define EACH_POWER(power)                                                 \
  for (int64_t i = 0; i < n; i++) {                                       \
    double v = x[i];                                                      \
    y[i] = (float)(power);                                                \
  }                                                                       \
  return true

static bool pow_known(float *y, const float *x, double p, int64_t n) {
  if (p == 0.5) { EACH_POWER(v == -INFINITY ? INFINITY : sqrt(v) + 0.0); }
  if (p == -0.5) { EACH_POWER(v == -INFINITY ? 0 : 1 / (sqrt(v) + 0.0)); }
  if (p == 1.5) { EACH_POWER(v == -INFINITY ? INFINITY : v * sqrt(v)); }
  if (p == -1) { EACH_POWER(1 / v); }
  if (p == -2) { EACH_POWER(1 / (v * v)); }
  if (p == 3) { EACH_POWER(v * v * v); }
  if (p == 4) { EACH_POWER((v * v) * (v * v)); }
  return false;
}

static Status pow_cpu(const KernelContext *c) {
  if (c->in[0].type->dtype != DTYPE_F32 || in_elems(c, 1) != 1 || !type_same_shape(c->in[0].type, c->out[0].type)) return pow_ref(c);
  const float *x = c->in[0].data;
  float *y = c->out[0].data;
  int64_t n = out_elems(c, 0);
  double p = in_f(c, 1, 0);
  if (p == 2) c->loops->mul(y, x, x, n);
  else if (p == 1) c->loops->mul_s(y, x, 1, n);
  else if (!pow_known(y, x, p, n)) return pow_ref(c);
  return STATUS_OK;
}

static bool pow_alias(const Node *node, int output, int input, Alias *out) {
  *out = (Alias){.kind = ALIAS_INPLACE, .input = input};
  return type_equal(&node->inputs[input]->type, &node->outputs[output]->type);
}

// Gradient of the exponent: dy y log(x), and 0 where x = 0, as in PyTorch.
static Value *exponent_grad(Grad *g) {
  Emit *e = g->emit;
  Value *x = g->node->inputs[0], *y = g->node->outputs[0], *p = g->node->inputs[1];
  Value *zero = emit_float(e, "zero", x->type.dtype, 0);
  Value *is_zero = emit(e, &op_Equal, INPUTS(x, zero), NULL);
  Value *log_x = emit(e, &op_Where, INPUTS(is_zero, zero, emit(e, &op_Log, INPUTS(x), NULL)), NULL);
  Value *dp = emit_sum_to(e, emit(e, &op_Mul, INPUTS(emit(e, &op_Mul, INPUTS(g->dy[0], y), NULL), log_x), NULL), &p->type);
  if (p->type.dtype == x->type.dtype) return dp;
  return emit(e, &op_Cast, INPUTS(dp), ATTRS(A_INT("to", p->type.dtype)));
}

static Status pow_grad(Grad *g) {
  Value *x = g->node->inputs[0], *p = g->node->inputs[1];
  if (g->wanted[0]) g->dx[0] = emit_sum_to(g->emit, emit(g->emit, &op_PowGrad, INPUTS(x, p, g->dy[0]), NULL), &x->type);
  if (g->wanted[1]) g->dx[1] = exponent_grad(g);
  return STATUS_OK;
}

const Op op_Pow = {.name = "Pow", .domain = "", .policy = POLICY_F32, .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .flags = OP_ELEMENTWISE,
                   .infer = pow_infer, .grad = pow_grad, .run_ref = pow_ref, .run_cpu = pow_cpu, .alias = pow_alias, .cost = cost_function};

// ---- PowGrad: inputs x, p, dy. dy has the type of Pow's result. ----

static Status pow_grad_infer(Node *node, Arena *arena) {
  const Type *x = &node->inputs[0]->type, *p = &node->inputs[1]->type, *dy = &node->inputs[2]->type;
  Type y = {.dtype = x->dtype};
  if (!dtype_is_float(x->dtype) || !is_number(p->dtype)) FAIL(MALFORMED, node->name, "PowGrad: x of %s and p of %s", dtype_name(x->dtype), dtype_name(p->dtype));
  TRY(type_broadcast(x, p, node->name, &y));
  if (!type_equal(&y, dy)) {
    char a[160], b[160];
    FAIL(MALFORMED, node->name, "PowGrad: dy is %s; %s is needed", type_text(dy, a, sizeof a), type_text(&y, b, sizeof b));
  }
  node->outputs[0]->type = y;
  return STATUS_OK;
}

static Status pow_grad_ref(const KernelContext *c) {
  Broadcast b;
  for (bool more = broadcast_begin(&b, c->out[0].type, 3, c->in); more; more = broadcast_next(&b))
    for (int64_t i = 0; i < b.run; i++) {
      double x = in_f(c, 0, b.at[0] + i * b.step[0]), p = in_f(c, 1, b.at[1] + i * b.step[1]), dy = in_f(c, 2, b.at[2] + i * b.step[2]);
      out_f(c, 0, b.at_out + i, p == 0 ? 0 : dy * p * pow(x, p - 1));
    }
  return STATUS_OK;
}

#define EACH_SLOPE(slope)                                                 \
  for (int64_t i = 0; i < n; i++) {                                       \
    double v = x[i];                                                      \
    dx[i] = (float)(dy[i] * (slope));                                     \
  }                                                                       \
  return true

static bool pow_grad_known(float *dx, const float *x, const float *dy, double p, int64_t n) {
  if (p == 2) { EACH_SLOPE(2 * v); }
  if (p == 3) { EACH_SLOPE(3 * (v * v)); }
  if (p == 4) { EACH_SLOPE(4 * (v * v * v)); }
  if (p == 0.5) { EACH_SLOPE(v == -INFINITY ? 0 : 0.5 / (sqrt(v) + 0.0)); }
  if (p == 1.5) { EACH_SLOPE(v == -INFINITY ? INFINITY : 1.5 * (sqrt(v) + 0.0)); }
  if (p == -0.5) { EACH_SLOPE(v == -INFINITY ? -0.0 : -0.5 / (v * sqrt(v) + 0.0)); }
  if (p == -1) { EACH_SLOPE(-1 / (v * v)); }
  if (p == -2) { EACH_SLOPE(-2 / (v * v * v)); }
  return false;
}

static Status pow_grad_cpu(const KernelContext *c) {
  if (in_elems(c, 1) != 1 || !type_same_shape(c->in[0].type, c->out[0].type)) return pow_grad_ref(c);
  return pow_grad_known(c->out[0].data, c->in[0].data, c->in[2].data, in_f(c, 1, 0), out_elems(c, 0)) ? STATUS_OK : pow_grad_ref(c);
}

static bool pow_grad_alias(const Node *node, int output, int input, Alias *out) { return pow_alias(node, output, input, out); }

const Op op_PowGrad = {.name = "PowGrad", .domain = "tessera", .min_inputs = 3, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1,
                       .flags = OP_ELEMENTWISE, .infer = pow_grad_infer, .run_ref = pow_grad_ref, .run_cpu = pow_grad_cpu, .alias = pow_grad_alias,
                       .cost = cost_function};
