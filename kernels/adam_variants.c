// NAdam (Dozat, 2016) and RAdam (Liu et al., 2020) as torch.optim computes them. Both divide by Adam's root of the mean square; what is divided, and when,
// follows from t alone: p keep + (rate_grad g + rate_mean m) / (sqrt(v) / root2 + eps).
#include <math.h>

#include "optimizer.h"
#include "ops.h"

typedef struct VariantAttrs { const char *beta1, *beta2, *eps, *weight_decay, *momentum_decay; int64_t decoupled; } VariantAttrs;
#define VARIANT_ATTRS                                                                                                                                     \
  {"beta1", ATTR_STRING, offsetof(VariantAttrs, beta1), .default_string = "0.9", .help = "decay of the mean, a decimal"},                                 \
      {"beta2", ATTR_STRING, offsetof(VariantAttrs, beta2), .default_string = "0.999", .help = "decay of the mean square, a decimal"},                    \
      {"eps", ATTR_STRING, offsetof(VariantAttrs, eps), .default_string = "1e-8", .help = "added to the denominator, a decimal"},                         \
      {"weight_decay", ATTR_STRING, offsetof(VariantAttrs, weight_decay), .default_string = "0", .help = "a decimal"},                                    \
  {"decoupled", ATTR_INT, offsetof(VariantAttrs, decoupled), .min = 0, .max = 1, .help = "1: the decay shrinks the parameter; 0: it joins the gradient"}
static const AttrSpec nadam_attrs[] = {
    VARIANT_ATTRS,
    {"momentum_decay", ATTR_STRING, offsetof(VariantAttrs, momentum_decay), .default_string = "0.004", .help = "how fast the momentum nears beta1, a decimal"},
    {0}};
static const AttrSpec radam_attrs[] = {VARIANT_ATTRS, {0}};

static Status variant_parse(const Node *node, Moments *out, double *out_momentum_decay) {
  const VariantAttrs *a = node->attrs;
  *out_momentum_decay = 0;
  if (node->op == &op_Nadam) TRY(kernel_parse_decimal(node, "momentum_decay", a->momentum_decay, 0, INFINITY, out_momentum_decay));
  return step_parse_moments(node, a->beta1, a->beta2, a->eps, a->weight_decay, out);
}

static Status variant_infer(Node *node, Arena *arena) {
  Moments of;
  double momentum_decay;
  TRY(variant_parse(node, &of, &momentum_decay));
  for (int o = 0; o < 3; o++)
    if (!node->outputs[o]) FAIL(MALFORMED, node->name, "output %d is missing", o);
  return step_infer(node);
}

// The momentum of step t, which nears beta1; and the product of all up to t, until it is nothing beside 1.
static double momentum_of(double beta1, double momentum_decay, int64_t t) { return beta1 * (1 - 0.5 * pow(0.96, (double)t * momentum_decay)); }

static double momentum_product(double beta1, double momentum_decay, int64_t t) {
  double product = 1;
  for (int64_t i = 1; i <= t && product > 0x1p-60; i++) product *= momentum_of(beta1, momentum_decay, i);
  return product;
}

static void nadam_rates(const Moments *of, double momentum_decay, double lr, int64_t t, MomentStep *out) {
  double now = momentum_of(of->beta1, momentum_decay, t), next = momentum_of(of->beta1, momentum_decay, t + 1), product = momentum_product(of->beta1, momentum_decay, t);
  out->root2 = sqrt(1 - pow(of->beta2, (double)t));
  out->rate_grad = -lr * (1 - now) / (1 - product);
  out->rate_mean = -lr * next / (1 - product * next);
}

// Until the variance of 1 / sqrt(v) is known well enough (rho > 5), a step of momentum alone.
static void radam_rates(const Moments *of, double lr, int64_t t, MomentStep *out) {
  double power2 = pow(of->beta2, (double)t), longest = 2 / (1 - of->beta2) - 1, rho = longest - 2 * (double)t * power2 / (1 - power2);
  out->rate_mean = -lr / (1 - pow(of->beta1, (double)t));
  out->root2 = 1;
  out->plain = !(rho > 5);
  if (!out->plain) out->rate_mean *= sqrt((rho - 4) * (rho - 2) * longest / ((longest - 4) * (longest - 2) * rho)) * sqrt(1 - power2);
}

static Status variant_step(const KernelContext *c, MomentStep *out) {
  Moments of;
  double momentum_decay, lr = in_f(c, IN_LR, 0);
  int64_t t = in_i(c, IN_T, 0);
  TRY(variant_parse(c->node, &of, &momentum_decay));
  if (t < 1) FAIL(CHECK, c->node->name, "t = %lld; steps count from 1", (long long)t);
  bool decoupled = ((const VariantAttrs *)c->node->attrs)->decoupled;
  *out = (MomentStep){.scale = in_f(c, IN_SCALE, 0), .keep = decoupled ? 1 - lr * of.weight_decay : 1, .l2 = decoupled ? 0 : of.weight_decay,
                      .beta1 = of.beta1, .beta2 = of.beta2, .eps = of.eps};
  if (c->node->op == &op_Nadam) nadam_rates(&of, momentum_decay, lr, t, out);
  else radam_rates(&of, lr, t, out);
  step_carry(c);
  return STATUS_OK;
}

static Status variant_ref(const KernelContext *c) {
  MomentStep s;
  TRY(variant_step(c, &s));
  for (int64_t e = 0, n = in_elems(c, IN_PARAM); e < n; e++) {
    double p = in_f(c, IN_PARAM, e), g = step_grad(c, e, s.scale) + s.l2 * p, m = in_f(c, IN_STATE, e), v = in_f(c, IN_STATE + 1, e);
    m += (1 - s.beta1) * (g - m);
    v = s.beta2 * v + (1 - s.beta2) * g * g;
    out_f(c, 1, e, m);
    out_f(c, 2, e, v);
    double direction = s.rate_grad * g + s.rate_mean * m;
    out_f(c, 0, e, p * s.keep + (s.plain ? direction : direction / (sqrt(v) / s.root2 + s.eps)));
  }
  return STATUS_OK;
}

static Status variant_cpu(const KernelContext *c) {
  MomentStep s;
  TRY(variant_step(c, &s));
  c->loops->moments(c->out[0].data, c->out[1].data, c->out[2].data, c->in[IN_GRAD].data, in_elems(c, IN_PARAM), &s);
  return STATUS_OK;
}

#define VARIANT(row, text, table)                                                                                                                \
  const Op row = {.name = text, .domain = "tessera", .min_inputs = 7, .max_inputs = 7, .min_outputs = 3, .max_outputs = 3, .flags = OP_OPTIMIZER, \
                  .nondifferentiable = 0x7f, .attrs = table, .attrs_bytes = sizeof(VariantAttrs), .infer = variant_infer, .run_ref = variant_ref, \
                  .run_cpu = variant_cpu, .alias = step_alias}
VARIANT(op_Nadam, "Nadam", nadam_attrs);
VARIANT(op_Radam, "Radam", radam_attrs);
