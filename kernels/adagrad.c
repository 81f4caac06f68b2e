// Adagrad (Duchi et al., 2011) as torch.optim.Adagrad computes it: sum += g^2; p -= lr / (1 + (t - 1) lr_decay) * g / (sqrt(sum) + eps).
#include <math.h>

#include "optimizer.h"
#include "ops.h"

typedef struct AdagradAttrs { const char *lr_decay, *eps, *weight_decay; } AdagradAttrs;
static const AttrSpec adagrad_attrs[] = {
    {"lr_decay", ATTR_STRING, offsetof(AdagradAttrs, lr_decay), .default_string = "0", .help = "decay of the learning rate per step, a decimal"},
    {"eps", ATTR_STRING, offsetof(AdagradAttrs, eps), .default_string = "1e-10", .help = "added to the denominator, a decimal"},
    {"weight_decay", ATTR_STRING, offsetof(AdagradAttrs, weight_decay), .default_string = "0", .help = "L2 factor, a decimal"},
    {0},
};

typedef struct AdagradStep { double lr_decay, eps, weight_decay; } AdagradStep;

static Status adagrad_parse(const Node *node, AdagradStep *out) {
  const AdagradAttrs *a = node->attrs;
  TRY(kernel_parse_decimal(node, "lr_decay", a->lr_decay, 0, INFINITY, &out->lr_decay));
  TRY(kernel_parse_decimal(node, "eps", a->eps, 0, INFINITY, &out->eps));
  return kernel_parse_decimal(node, "weight_decay", a->weight_decay, 0, INFINITY, &out->weight_decay);
}

static Status adagrad_infer(Node *node, Arena *arena) {
  AdagradStep step;
  TRY(adagrad_parse(node, &step));
  return step_infer(node);
}

static Status adagrad_ref(const KernelContext *c) {
  AdagradStep s;
  TRY(adagrad_parse(c->node, &s));
  step_carry(c);
  double scale = in_f(c, IN_SCALE, 0), lr = in_f(c, IN_LR, 0) / (1 + (double)(in_i(c, IN_T, 0) - 1) * s.lr_decay);
  for (int64_t e = 0, n = in_elems(c, IN_PARAM); e < n; e++) {
    double p = in_f(c, IN_PARAM, e), g = step_grad(c, e, scale) + s.weight_decay * p, sum = in_f(c, IN_STATE, e) + g * g;
    out_f(c, 1, e, sum);
    out_f(c, 0, e, p - lr * g / (sqrt(sum) + s.eps));
  }
  return STATUS_OK;
}

static Status adagrad_cpu(const KernelContext *c) {
  AdagradStep s;
  TRY(adagrad_parse(c->node, &s));
  step_carry(c);
  float *p = c->out[0].data, *sum = c->out[1].data;
  const float *grad = c->in[IN_GRAD].data;
  float scale = (float)in_f(c, IN_SCALE, 0), decay = (float)s.weight_decay, eps = (float)s.eps;
  float lr = (float)(in_f(c, IN_LR, 0) / (1 + (double)(in_i(c, IN_T, 0) - 1) * s.lr_decay));
  for (int64_t e = 0, n = in_elems(c, IN_PARAM); e < n; e++) {
    float g = grad[e] * scale + decay * p[e];
    sum[e] += g * g;
    p[e] -= lr * g / (sqrtf(sum[e]) + eps);
  }
  return STATUS_OK;
}

const Op op_Adagrad = {
    .name = "Adagrad", .domain = "tessera", .min_inputs = 6, .max_inputs = 6, .min_outputs = 2, .max_outputs = 2, .flags = OP_OPTIMIZER,
    .nondifferentiable = 0x7f, .attrs = adagrad_attrs, .attrs_bytes = sizeof(AdagradAttrs), .infer = adagrad_infer, .run_ref = adagrad_ref,
    .run_cpu = adagrad_cpu, .alias = step_alias};
