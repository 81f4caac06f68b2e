// Optimizer steps as models define them, rather than torch.optim: Momentum, Adagrad and Adam of ai.onnx.preview.training 1, and the AdamWOptimizer of
// com.microsoft (adam_mode 1), which is that Adam with its decay times the learning rate. Inputs as in optimizer.h; T = t - 1 + t0.
#include <math.h>

#include "optimizer.h"
#include "ops.h"

typedef struct RuleAttrs { const char *alpha, *beta, *epsilon, *norm_coefficient, *post, *decay_factor; int64_t nesterov, t0, post_by_lr, correct_bias; } RuleAttrs;
#define DECIMAL(field, value, text) {#field, ATTR_STRING, offsetof(RuleAttrs, field), .default_string = (value), .help = (text)}
#define SWITCH(field, value, text) {#field, ATTR_INT, offsetof(RuleAttrs, field), .default_int = (value), .min = 0, .max = 1, .help = (text)}
static const AttrSpec rule_attrs[] = {
    DECIMAL(alpha, "0.9", "decay of the mean gradient"), DECIMAL(beta, "0.999", "decay of the mean square, or weight of the gradient in the momentum"),
    DECIMAL(epsilon, "0", "added to the square root"), DECIMAL(norm_coefficient, "0", "L2 factor in the gradient"),
    DECIMAL(post, "0", "decay after the step"), DECIMAL(decay_factor, "0", "decay of the learning rate per step"), SWITCH(nesterov, 0, "Nesterov momentum"),
    {"t0", ATTR_INT, offsetof(RuleAttrs, t0), .help = "T of the first step"}, SWITCH(post_by_lr, 0, "the decay after the step is multiplied by the learning rate"),
    SWITCH(correct_bias, 1, "the learning rate corrects the moments' bias"), {0},
};

typedef struct Rule { double scale, lr, alpha, beta, epsilon, norm, post, rate; bool nesterov; int64_t t; } Rule;

// Numbers of one step; `rate` is the learning rate after the rule's own correction.
static Status rule_parse(const Node *node, Rule *out, double *out_decay_factor) {
  const RuleAttrs *a = node->attrs;
  TRY(kernel_parse_decimal(node, "alpha", a->alpha, 0, INFINITY, &out->alpha));
  TRY(kernel_parse_decimal(node, "beta", a->beta, 0, INFINITY, &out->beta));
  TRY(kernel_parse_decimal(node, "epsilon", a->epsilon, 0, INFINITY, &out->epsilon));
  TRY(kernel_parse_decimal(node, "norm_coefficient", a->norm_coefficient, 0, INFINITY, &out->norm));
  TRY(kernel_parse_decimal(node, "post", a->post, 0, INFINITY, &out->post));
  out->nesterov = a->nesterov != 0;
  return kernel_parse_decimal(node, "decay_factor", a->decay_factor, 0, INFINITY, out_decay_factor);
}

static Status rule_infer(Node *node, Arena *arena) {
  Rule r;
  double decay;
  TRY(rule_parse(node, &r, &decay));
  for (int o = 0; o < node->n_outputs; o++)
    if (!node->outputs[o]) FAIL(MALFORMED, node->name, "output %d is missing", o);
  return step_infer(node);
}

static Status rule_step(const KernelContext *c, Rule *r) {
  double decay;
  TRY(rule_parse(c->node, r, &decay));
  const RuleAttrs *a = c->node->attrs;
  r->scale = in_f(c, IN_SCALE, 0);
  r->lr = r->rate = in_f(c, IN_LR, 0);
  r->t = in_i(c, IN_T, 0) - 1 + a->t0;
  if (a->post_by_lr) r->post *= r->lr;
  if (c->node->op == &op_ModelAdagrad) r->rate = r->lr / (1 + (double)r->t * decay);
  if (c->node->op == &op_ModelAdam && r->t > 0 && a->correct_bias)
    r->rate = r->lr * sqrt(1 - pow(r->beta, (double)r->t)) / (1 - pow(r->alpha, (double)r->t));
  if (c->node->op == &op_ModelMomentum && r->t <= 0) r->beta = 1;
  step_carry(c);
  return STATUS_OK;
}

// ---- Momentum: V = alpha V + beta G; X -= R V, or with Nesterov X -= R (G + alpha V) ----

static Status momentum_ref(const KernelContext *c) {
  Rule r;
  TRY(rule_step(c, &r));
  for (int64_t e = 0, n = in_elems(c, IN_PARAM); e < n; e++) {
    double x = in_f(c, IN_PARAM, e), g = step_grad(c, e, r.scale) + r.norm * x, v = r.alpha * in_f(c, IN_STATE, e) + r.beta * g;
    out_f(c, 1, e, v);
    out_f(c, 0, e, x - r.lr * (r.nesterov ? g + r.alpha * v : v));
  }
  return STATUS_OK;
}

static Status momentum_cpu(const KernelContext *c) {
  Rule r;
  TRY(rule_step(c, &r));
  float *x = c->out[0].data, *v = c->out[1].data;
  const float *grad = c->in[IN_GRAD].data;
  float scale = (float)r.scale, norm = (float)r.norm, alpha = (float)r.alpha, beta = (float)r.beta, lr = (float)r.lr;
  for (int64_t e = 0, n = in_elems(c, IN_PARAM); e < n; e++) {
    float g = grad[e] * scale + norm * x[e];
    v[e] = alpha * v[e] + beta * g;
    x[e] -= lr * (r.nesterov ? g + alpha * v[e] : v[e]);
  }
  return STATUS_OK;
}

// ---- Adagrad: H += G^2; X -= r G / (sqrt(H) + epsilon) ----

static Status adagrad_ref(const KernelContext *c) {
  Rule r;
  TRY(rule_step(c, &r));
  for (int64_t e = 0, n = in_elems(c, IN_PARAM); e < n; e++) {
    double x = in_f(c, IN_PARAM, e), g = step_grad(c, e, r.scale) + r.norm * x, h = in_f(c, IN_STATE, e) + g * g;
    out_f(c, 1, e, h);
    out_f(c, 0, e, x - r.rate * g / (sqrt(h) + r.epsilon));
  }
  return STATUS_OK;
}

static Status adagrad_cpu(const KernelContext *c) {
  Rule r;
  TRY(rule_step(c, &r));
  float *x = c->out[0].data, *h = c->out[1].data;
  const float *grad = c->in[IN_GRAD].data;
  float scale = (float)r.scale, norm = (float)r.norm, epsilon = (float)r.epsilon, rate = (float)r.rate;
  for (int64_t e = 0, n = in_elems(c, IN_PARAM); e < n; e++) {
    float g = grad[e] * scale + norm * x[e];
    h[e] += g * g;
    x[e] -= rate * g / (sqrtf(h[e]) + epsilon);
  }
  return STATUS_OK;
}

// ---- Adam: V and H are the moments; X -= R' V / (sqrt(H) + epsilon), then X *= 1 - post ----

static Status adam_ref(const KernelContext *c) {
  Rule r;
  TRY(rule_step(c, &r));
  for (int64_t e = 0, n = in_elems(c, IN_PARAM); e < n; e++) {
    double x = in_f(c, IN_PARAM, e), g = step_grad(c, e, r.scale) + r.norm * x;
    double v = r.alpha * in_f(c, IN_STATE, e) + (1 - r.alpha) * g, h = r.beta * in_f(c, IN_STATE + 1, e) + (1 - r.beta) * g * g;
    out_f(c, 1, e, v);
    out_f(c, 2, e, h);
    out_f(c, 0, e, (x - r.rate * v / (sqrt(h) + r.epsilon)) * (1 - r.post));
  }
  return STATUS_OK;
}

static Status adam_cpu(const KernelContext *c) {
  Rule r;
  TRY(rule_step(c, &r));
  float *x = c->out[0].data, *v = c->out[1].data, *h = c->out[2].data;
  const float *grad = c->in[IN_GRAD].data;
  float scale = (float)r.scale, norm = (float)r.norm, epsilon = (float)r.epsilon, rate = (float)r.rate, keep = (float)(1 - r.post);
  float alpha = (float)r.alpha, rest = (float)(1 - r.alpha), beta = (float)r.beta, rest_sq = (float)(1 - r.beta);
  for (int64_t e = 0, n = in_elems(c, IN_PARAM); e < n; e++) {
    float g = grad[e] * scale + norm * x[e];
    v[e] = alpha * v[e] + rest * g;
    h[e] = beta * h[e] + rest_sq * (g * g);
    x[e] = (x[e] - rate * v[e] / (sqrtf(h[e]) + epsilon)) * keep;
  }
  return STATUS_OK;
}

const Op op_ModelMomentum = {
    .name = "ModelMomentum", .domain = "tessera", .min_inputs = 6, .max_inputs = 6, .min_outputs = 2, .max_outputs = 2, .flags = OP_OPTIMIZER,
    .nondifferentiable = 0x7f, .attrs = rule_attrs, .attrs_bytes = sizeof(RuleAttrs), .infer = rule_infer, .run_ref = momentum_ref, .run_cpu = momentum_cpu,
    .alias = step_alias};
const Op op_ModelAdagrad = {
    .name = "ModelAdagrad", .domain = "tessera", .min_inputs = 6, .max_inputs = 6, .min_outputs = 2, .max_outputs = 2, .flags = OP_OPTIMIZER,
    .nondifferentiable = 0x7f, .attrs = rule_attrs, .attrs_bytes = sizeof(RuleAttrs), .infer = rule_infer, .run_ref = adagrad_ref, .run_cpu = adagrad_cpu,
    .alias = step_alias};
const Op op_ModelAdam = {
    .name = "ModelAdam", .domain = "tessera", .min_inputs = 7, .max_inputs = 7, .min_outputs = 3, .max_outputs = 3, .flags = OP_OPTIMIZER,
    .nondifferentiable = 0x7f, .attrs = rule_attrs, .attrs_bytes = sizeof(RuleAttrs), .infer = rule_infer, .run_ref = adam_ref, .run_cpu = adam_cpu,
    .alias = step_alias};
