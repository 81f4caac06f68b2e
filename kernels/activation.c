// Activation functions with parameters, element by element, and the one gradient row for all of them: ActivationGrad(x, dy) = dy f'(x).
// The slope at a kink is PyTorch's choice: the side that f takes where ONNX says which.
#include <math.h>
#include <string.h>

#include "broadcast.h"
#include "cost.h"
#include "ops.h"

// alpha and beta are the first and the second parameter of the operator's own list: Selu's gamma and Shrink's lambd are `beta`.
typedef struct ActivationAttrs { float alpha, beta; const char *text; } ActivationAttrs;
#define FLOAT_ATTR(text, member, value, about) \
  {text, ATTR_FLOAT, offsetof(ActivationAttrs, member), .default_float = value, .help = about}
static const AttrSpec alpha_one_attrs[] = {FLOAT_ATTR("alpha", alpha, 1, "factor"), {0}};
static const AttrSpec selu_attrs[] = {FLOAT_ATTR("alpha", alpha, 1.6732631921768188f, "factor of the exponential"),
                                      FLOAT_ATTR("gamma", beta, 1.0507010221481323f, "factor of all"), {0}};
static const AttrSpec leaky_attrs[] = {FLOAT_ATTR("alpha", alpha, 0.009999999776482582f, "slope below 0"), {0}};
static const AttrSpec hard_sigmoid_attrs[] = {FLOAT_ATTR("alpha", alpha, 0.20000000298023224f, "slope"),
                                              FLOAT_ATTR("beta", beta, 0.5f, "value at 0"),
                                              {0}};
static const AttrSpec shrink_attrs[] = {FLOAT_ATTR("bias", alpha, 0, "taken off outside"), FLOAT_ATTR("lambd", beta, 0.5f, "0 within +- this"), {0}};
static const AttrSpec gelu_attrs[] = {
    {"approximate", ATTR_STRING, offsetof(ActivationAttrs, text), .default_string = "none", .help = "none or tanh"}, {0}};
static const AttrSpec grad_attrs[] = {
    {"function", ATTR_STRING, offsetof(ActivationAttrs, text), .required = true, .help = "operator whose gradient it is, or GeluTanh"},
    FLOAT_ATTR("alpha", alpha, 0, "the operator's first parameter"), FLOAT_ATTR("beta", beta, 0, "its second one"), {0}};

// ---- Values and slopes in double -------------------------------------------------------------------------------------------------

static double sigmoid(double x) {
  double z = exp(-fabs(x));
  return (x >= 0 ? 1 : z) / (1 + z);
}
static double gelu_inner(double x) { return M_2_SQRTPI * M_SQRT1_2 * (x + 0.044715 * x * x * x); }

static double gelu(double x, double a, double b) { return 0.5 * x * erfc(-x * M_SQRT1_2); }
static double gelu_slope(double x, double a, double b) { return 0.5 * erfc(-x * M_SQRT1_2) + x * exp(-0.5 * x * x) * 0.5 * M_2_SQRTPI * M_SQRT1_2; }
static double gelu_tanh(double x, double a, double b) { return 0.5 * x * (1 + tanh(gelu_inner(x))); }
static double gelu_tanh_slope(double x, double a, double b) {
  double t = tanh(gelu_inner(x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * M_2_SQRTPI * M_SQRT1_2 * (1 + 3 * 0.044715 * x * x);
}
static double hard_sigmoid(double x, double a, double b) {
  double y = a * x + b;
  return y <= 0 ? 0 : y >= 1 ? 1 : y;
}
static double hard_sigmoid_slope(double x, double a, double b) { return a * x + b > 0 && a * x + b < 1 ? a : 0; }
static double hard_swish(double x, double a, double b) { return x * hard_sigmoid(x, 1.0 / 6, 0.5); }
static double hard_swish_slope(double x, double a, double b) { return x <= -3 ? 0 : x >= 3 ? 1 : x / 3 + 0.5; }
static double elu(double x, double a, double b) { return x >= 0 ? x : a * expm1(x); }
static double elu_slope(double x, double a, double b) { return x > 0 ? 1 : a * exp(x); }
static double selu(double x, double a, double b) { return b * (x > 0 ? x : a * expm1(x)); }
static double selu_slope(double x, double a, double b) { return b * (x > 0 ? 1 : a * exp(x)); }
static double celu(double x, double a, double b) { return x >= 0 ? x : a * expm1(x / a); }
static double celu_slope(double x, double a, double b) { return x > 0 ? 1 : exp(x / a); }
static double leaky_relu(double x, double a, double b) { return x < 0 ? a * x : x; }
static double leaky_relu_slope(double x, double a, double b) { return x > 0 ? 1 : a; }
static double softplus(double x, double a, double b) { return fmax(x, 0) + log1p(exp(-fabs(x))); }
static double softplus_slope(double x, double a, double b) { return sigmoid(x); }
static double softsign(double x, double a, double b) { return x / (1 + fabs(x)); }
static double softsign_slope(double x, double a, double b) { return 1 / ((1 + fabs(x)) * (1 + fabs(x))); }
static double mish(double x, double a, double b) { return x * tanh(softplus(x, 0, 0)); }
static double mish_slope(double x, double a, double b) {
  double t = tanh(softplus(x, 0, 0));
  return t + x * (1 - t * t) * sigmoid(x);
}
static double swish(double x, double a, double b) { return x * sigmoid(a * x); }
static double swish_slope(double x, double a, double b) {
  double s = sigmoid(a * x);
  return s * (1 + a * x * (1 - s));
}
static double thresholded(double x, double a, double b) { return x > a ? x : 0; }
static double thresholded_slope(double x, double a, double b) { return x > a ? 1 : 0; }
static double shrink(double x, double a, double b) { return x < -b ? x + a : x > b ? x - a : 0; }
static double shrink_slope(double x, double a, double b) { return x < -b || x > b ? 1 : 0; }

// ---- f32 in blocks: a vector loop prepares t = exp(x) or the like, then one plain loop over x and t ---------------------------------

enum { BLOCK = 512 };
typedef enum Before { BEFORE_NOTHING, BEFORE_EXP, BEFORE_EXPM1, BEFORE_SIGMOID, BEFORE_LOG1P } Before;
typedef void (*BlockFn)(float *y, const float *x, const float *t, float a, float b, int n);

#define BLOCK_OF(name, expression)                                                                    \
  static void name(float *y, const float *x_, const float *t_, float a, float b, int n) {             \
    for (int i = 0; i < n; i++) {                                                                     \
      float x = x_[i], t = t_[i];                                                                     \
      (void)t, (void)x;                                                                                        \
      y[i] = (expression);                                                                            \
    }                                                                                                 \
  }
static inline float clamp01(float v) { return v <= 0 ? 0 : v >= 1 ? 1 : v; }
static inline float softplus_tanh(float t) { return t * (t + 2) / (t * (t + 2) + 2); }   // tanh(log(1 + t)), t = exp(x)
BLOCK_OF(hard_sigmoid_block, clamp01(a * x + b))
BLOCK_OF(hard_sigmoid_slope_block, a * x + b > 0 && a * x + b < 1 ? a : 0.0f)
BLOCK_OF(hard_swish_block, x * clamp01(x * (1.0f / 6) + 0.5f))
BLOCK_OF(hard_swish_slope_block, x <= -3 ? 0 : x >= 3 ? 1 : x * (1.0f / 3) + 0.5f)
BLOCK_OF(elu_block, x >= 0 ? x : a * t)
BLOCK_OF(elu_slope_block, x > 0 ? 1 : a * t)
BLOCK_OF(selu_block, b * (x > 0 ? x : a * t))
BLOCK_OF(selu_slope_block, b * (x > 0 ? 1 : a * t))
BLOCK_OF(celu_slope_block, x > 0 ? 1 : t)
BLOCK_OF(leaky_relu_block, x < 0 ? a * x : x)
BLOCK_OF(leaky_relu_slope_block, x > 0 ? 1 : a)
BLOCK_OF(softplus_block, (x > 0 ? x : 0) + t)
BLOCK_OF(sigmoid_block, t)
BLOCK_OF(softsign_block, x / (1 + fabsf(x)))
BLOCK_OF(softsign_slope_block, 1 / ((1 + fabsf(x)) * (1 + fabsf(x))))
BLOCK_OF(mish_block, x > 20 ? x : x * softplus_tanh(t))
BLOCK_OF(mish_slope_block, x > 20 ? 1 : softplus_tanh(t) + x * (1 - softplus_tanh(t) * softplus_tanh(t)) * (t / (1 + t)))
BLOCK_OF(swish_block, x * t)
BLOCK_OF(swish_slope_block, t * (1 + a * x * (1 - t)))
BLOCK_OF(thresholded_block, x > a ? x : 0)
BLOCK_OF(thresholded_slope_block, x > a ? 1.0f : 0.0f)
BLOCK_OF(shrink_block, x < -b ? x + a : x > b ? x - a : 0)
BLOCK_OF(shrink_slope_block, x < -b || x > b ? 1.0f : 0.0f)

// t for a block; `a` is the operator's alpha.
static void before(Before kind, const Loops *l, float *t, const float *x, float factor, int n) {
  float u[BLOCK];
  switch (kind) {
  case BEFORE_NOTHING: memcpy(t, x, sizeof(float) * (size_t)n); return;
  case BEFORE_EXP:
    l->mul_s(t, x, factor, n);
    l->exp(t, t, n);
    return;
  case BEFORE_EXPM1:                         // tanh(v/2) (exp(v) + 1): no cancellation near 0
    l->mul_s(u, x, 0.5f * factor, n);
    l->tanh(u, u, n);
    l->mul_s(t, x, factor, n);
    for (int i = 0; i < n; i++) t[i] = t[i] > 0 ? 0 : t[i];   // used below 0 only: no infinities
    l->exp(t, t, n);
    for (int i = 0; i < n; i++) t[i] = u[i] * (t[i] + 1);
    return;
  case BEFORE_SIGMOID:
    l->mul_s(t, x, factor, n);
    l->sigmoid(t, t, n);
    return;
  case BEFORE_LOG1P:                         // log(1 + exp(-|x|)); the quotient undoes the rounding of 1 + e
    for (int i = 0; i < n; i++) u[i] = -fabsf(x[i]);
    l->exp(u, u, n);
    l->add_s(t, u, 1, n);
    l->log(t, t, n);
    for (int i = 0; i < n; i++) t[i] = 1 + u[i] == 1 ? u[i] : t[i] * (u[i] / (1 + u[i] - 1));
    return;
  }
}

// ---- The functions -----------------------------------------------------------------------------------------------------------------

typedef struct Activation {
  const char *name;
  double (*value)(double x, double a, double b), (*slope)(double x, double a, double b);
  Before before_value, before_slope;
  BlockFn value_block, slope_block;          // NULL: a whole vector loop, chosen by name
} Activation;

static const Activation activations[] = {
    {"Gelu", gelu, gelu_slope, 0, 0, NULL, NULL},
    {"GeluTanh", gelu_tanh, gelu_tanh_slope, 0, 0, NULL, NULL},
    {"HardSigmoid", hard_sigmoid, hard_sigmoid_slope, 0, 0, hard_sigmoid_block, hard_sigmoid_slope_block},
    {"HardSwish", hard_swish, hard_swish_slope, 0, 0, hard_swish_block, hard_swish_slope_block},
    {"Elu", elu, elu_slope, BEFORE_EXPM1, BEFORE_EXP, elu_block, elu_slope_block},
    {"Selu", selu, selu_slope, BEFORE_EXPM1, BEFORE_EXP, selu_block, selu_slope_block},
    {"Celu", celu, celu_slope, BEFORE_EXPM1, BEFORE_EXP, elu_block, celu_slope_block},
    {"LeakyRelu", leaky_relu, leaky_relu_slope, 0, 0, leaky_relu_block, leaky_relu_slope_block},
    {"Softplus", softplus, softplus_slope, BEFORE_LOG1P, BEFORE_SIGMOID, softplus_block, sigmoid_block},
    {"Softsign", softsign, softsign_slope, 0, 0, softsign_block, softsign_slope_block},
    {"Mish", mish, mish_slope, BEFORE_EXP, BEFORE_EXP, mish_block, mish_slope_block},
    {"Swish", swish, swish_slope, BEFORE_SIGMOID, BEFORE_SIGMOID, swish_block, swish_slope_block},
    {"ThresholdedRelu", thresholded, thresholded_slope, 0, 0, thresholded_block, thresholded_slope_block},
    {"Shrink", shrink, shrink_slope, 0, 0, shrink_block, shrink_slope_block},
};
enum { N_ACTIVATIONS = sizeof activations / sizeof *activations };

static const Activation *find(const char *name) {
  for (int i = 0; name && i < N_ACTIVATIONS; i++)
    if (!strcmp(activations[i].name, name)) return &activations[i];
  return NULL;
}

static bool is_gradient(const Node *node) { return node->op == &op_ActivationGrad; }

// Of an operator or of ActivationGrad; NULL where an attribute names none.
static const Activation *activation_of(const Node *node) {
  const ActivationAttrs *a = node->attrs;
  if (is_gradient(node)) return find(a->text);
  if (node->op != &op_Gelu) return find(node->op->name);
  return !strcmp(a->text, "tanh") ? find("GeluTanh") : !strcmp(a->text, "none") ? find("Gelu") : NULL;
}

static float alpha_of(const KernelContext *c) { return c->node->op->attrs ? ((const ActivationAttrs *)c->node->attrs)->alpha : 0; }
static float beta_of(const KernelContext *c) { return c->node->op->attrs ? ((const ActivationAttrs *)c->node->attrs)->beta : 0; }

// What x is multiplied by before the vector loop.
static float factor_of(const Activation *f, float alpha) { return !strcmp(f->name, "Celu") ? 1 / alpha : !strcmp(f->name, "Swish") ? alpha : 1; }

static Status activation_infer(Node *node, Arena *arena) {
  const Type *x = &node->inputs[0]->type;
  bool any_number = node->op == &op_Shrink && dtype_is_integer(x->dtype);
  if (!dtype_is_float(x->dtype) && !any_number)
    FAIL(MALFORMED, node->name, "%s: input '%s' of %s; a float is needed", node->op->name, node->inputs[0]->name, dtype_name(x->dtype));
  if (!activation_of(node))
    FAIL(MALFORMED, node->name, "%s: \"%s\" is none of the known functions", node->op->name, ((const ActivationAttrs *)node->attrs)->text);
  if (node->op == &op_Celu && ((const ActivationAttrs *)node->attrs)->alpha == 0) FAIL(MALFORMED, node->name, "Celu: alpha must not be 0");
  if (is_gradient(node) && !type_equal(x, &node->inputs[1]->type)) FAIL(MALFORMED, node->name, "x and dy must be of one type");
  node->outputs[0]->type = *x;
  return STATUS_OK;
}

static Status activation_ref(const KernelContext *c) {
  const Activation *f = activation_of(c->node);
  double a = (double)alpha_of(c), b = (double)beta_of(c);
  bool gradient = is_gradient(c->node);
  for (int64_t i = 0, n = out_elems(c, 0); i < n; i++) {
    double x = in_f(c, 0, i);
    out_f(c, 0, i, gradient ? in_f(c, 1, i) * f->slope(x, a, b) : f->value(x, a, b));
  }
  return STATUS_OK;
}

static Status gelu_cpu(const KernelContext *c, bool exact) {
  const Loops *l = c->loops;
  int64_t n = out_elems(c, 0);
  if (is_gradient(c->node)) (exact ? l->gelu_grad : l->gelu_tanh_grad)(c->out[0].data, c->in[0].data, c->in[1].data, n);
  else (exact ? l->gelu : l->gelu_tanh)(c->out[0].data, c->in[0].data, n);
  return STATUS_OK;
}

static Status activation_cpu(const KernelContext *c) {
  const Activation *f = activation_of(c->node);
  if (c->in[0].type->dtype != DTYPE_F32) return activation_ref(c);
  if (!f->value_block) return gelu_cpu(c, !strcmp(f->name, "Gelu"));
  bool gradient = is_gradient(c->node);
  float a = alpha_of(c), b = beta_of(c), factor = factor_of(f, a), t[BLOCK], slope[BLOCK];
  const float *x = c->in[0].data, *dy = gradient ? c->in[1].data : NULL;
  float *y = c->out[0].data;
  for (int64_t from = 0, n = out_elems(c, 0); from < n; from += BLOCK) {
    int block = n - from < BLOCK ? (int)(n - from) : BLOCK;
    before(gradient ? f->before_slope : f->before_value, c->loops, t, x + from, factor, block);
    if (!gradient) {
      f->value_block(y + from, x + from, t, a, b, block);
      continue;
    }
    f->slope_block(slope, x + from, t, a, b, block);
    c->loops->mul(y + from, dy + from, slope, block);
  }
  return STATUS_OK;
}

static bool inplace(const Node *node, int output, int input, Alias *out) {
  *out = (Alias){.kind = ALIAS_INPLACE, .input = input};
  return true;
}

static Status activation_grad(Grad *g) {
  const Node *node = g->node;
  const ActivationAttrs *a = node->attrs;
  bool has = node->op->attrs != NULL;
  g->dx[0] = emit(g->emit, &op_ActivationGrad, INPUTS(node->inputs[0], g->dy[0]),
                  ATTRS(A_STRING("function", activation_of(node)->name), A_FLOAT("alpha", has ? a->alpha : 0), A_FLOAT("beta", has ? a->beta : 0)));
  return STATUS_OK;
}

#define ACTIVATION(row, table, width)                                                                                                         \
  const Op op_##row = {.name = #row, .domain = "", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1,                \
                       .flags = OP_ELEMENTWISE, .attrs = table, .attrs_bytes = sizeof(ActivationAttrs), .infer = activation_infer,      \
                       .grad = activation_grad, .run_ref = activation_ref, .run_cpu = activation_cpu, .alias = inplace, .cost = cost_function, .policy = width}
ACTIVATION(Gelu, gelu_attrs, POLICY_KEEP);
ACTIVATION(HardSigmoid, hard_sigmoid_attrs, POLICY_KEEP);
ACTIVATION(HardSwish, NULL, POLICY_KEEP);
ACTIVATION(Elu, alpha_one_attrs, POLICY_KEEP);
ACTIVATION(Selu, selu_attrs, POLICY_KEEP);
ACTIVATION(Celu, alpha_one_attrs, POLICY_KEEP);
ACTIVATION(LeakyRelu, leaky_attrs, POLICY_KEEP);
ACTIVATION(Softplus, NULL, POLICY_F32);
ACTIVATION(Softsign, NULL, POLICY_KEEP);
ACTIVATION(Mish, NULL, POLICY_KEEP);
ACTIVATION(Swish, alpha_one_attrs, POLICY_KEEP);
ACTIVATION(ThresholdedRelu, alpha_one_attrs, POLICY_KEEP);
ACTIVATION(Shrink, shrink_attrs, POLICY_KEEP);

const Op op_ActivationGrad = {
    .name = "ActivationGrad", .domain = "tessera", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1,
    .flags = OP_ELEMENTWISE, .attrs = grad_attrs, .attrs_bytes = sizeof(ActivationAttrs), .infer = activation_infer,
    .run_ref = activation_ref, .run_cpu = activation_cpu, .alias = inplace, .cost = cost_function};

// ---- PRelu: the slope is an operand that broadcasts to x ------------------------------------------------------------------------------

static Status prelu_infer(Node *node, Arena *arena) {
  const Type *x = &node->inputs[0]->type, *slope = &node->inputs[1]->type;
  char have[160], want[160];
  Type y = *x;
  if (x->dtype != slope->dtype || !(dtype_is_float(x->dtype) || dtype_is_integer(x->dtype)))
    FAIL(MALFORMED, node->name, "PRelu: X is %s and slope is %s; numbers of one type are needed", type_text(x, have, sizeof have),
         type_text(slope, want, sizeof want));
  TRY(broadcast_infer(node, 0, &y));
  if (!type_same_shape(&y, x))
    FAIL(MALFORMED, node->name, "PRelu: slope %s does not broadcast to X %s", type_text(slope, want, sizeof want), type_text(x, have, sizeof have));
  node->outputs[0]->type = y;
  return STATUS_OK;
}

static Status prelu_ref(const KernelContext *c) {
  bool is_float = dtype_is_float(c->out[0].type->dtype);
  Broadcast b;
  for (bool more = broadcast_begin(&b, c->out[0].type, 2, c->in); more; more = broadcast_next(&b))
    for (int64_t i = 0; i < b.run; i++) {
      int64_t x = b.at[0] + i * b.step[0], s = b.at[1] + i * b.step[1];
      if (is_float) out_f(c, 0, b.at_out + i, in_f(c, 0, x) < 0 ? in_f(c, 0, x) * in_f(c, 1, s) : in_f(c, 0, x));
      else out_i(c, 0, b.at_out + i, in_i(c, 0, x) < 0 ? (int64_t)((uint64_t)in_i(c, 0, x) * (uint64_t)in_i(c, 1, s)) : in_i(c, 0, x));
    }
  return STATUS_OK;
}

static Status prelu_cpu(const KernelContext *c) {
  const float *x = c->in[0].data, *slope = c->in[1].data;
  float *y = c->out[0].data;
  Broadcast b;
  for (bool more = broadcast_begin(&b, c->out[0].type, 2, c->in); more; more = broadcast_next(&b))
    for (int64_t i = 0; i < b.run; i++) {
      float v = x[b.at[0] + i * b.step[0]];
      y[b.at_out + i] = v < 0 ? v * slope[b.at[1] + i * b.step[1]] : v;
    }
  return STATUS_OK;
}

// dx = dy where x > 0, else dy slope; dslope = the sum of dy x where x is not above 0 (PyTorch's choice at 0).
static Status prelu_grad(Grad *g) {
  Emit *e = g->emit;
  Value *x = g->node->inputs[0], *slope = g->node->inputs[1], *dy = g->dy[0];
  Value *zero = emit_float(e, "zero", x->type.dtype, 0), *above = emit(e, &op_Greater, INPUTS(x, zero), NULL);
  if (g->wanted[0]) g->dx[0] = emit(e, &op_Where, INPUTS(above, dy, emit(e, &op_Mul, INPUTS(dy, slope), NULL)), NULL);
  if (g->wanted[1]) {
    Value *part = emit(e, &op_Mul, INPUTS(dy, emit(e, &op_Where, INPUTS(above, zero, x), NULL)), NULL);
    g->dx[1] = part ? emit_sum_to(e, part, &slope->type) : NULL;
  }
  return STATUS_OK;
}

static bool prelu_alias(const Node *node, int output, int input, Alias *out) { return input == 0 && inplace(node, output, input, out); }

const Op op_PRelu = {.name = "PRelu", .domain = "", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .flags = OP_ELEMENTWISE,
                     .infer = prelu_infer, .grad = prelu_grad, .run_ref = prelu_ref, .run_cpu = prelu_cpu, .alias = prelu_alias};
