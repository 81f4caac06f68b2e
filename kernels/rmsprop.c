// RMSprop (Tieleman and Hinton, 2012) as torch.optim.RMSprop computes it: v = alpha v + (1 - alpha) g^2; p -= lr * g / (sqrt(v) + eps), the quotient
// through a momentum buffer where momentum is not 0.
#include <math.h>

#include "optimizer.h"
#include "ops.h"

typedef struct RmspropAttrs { const char *alpha, *eps, *weight_decay, *momentum; } RmspropAttrs;
static const AttrSpec rmsprop_attrs[] = {
    {"alpha", ATTR_STRING, offsetof(RmspropAttrs, alpha), .default_string = "0.99", .help = "decay of the mean square, a decimal"},
    {"eps", ATTR_STRING, offsetof(RmspropAttrs, eps), .default_string = "1e-8", .help = "added to the denominator, a decimal"},
    {"weight_decay", ATTR_STRING, offsetof(RmspropAttrs, weight_decay), .default_string = "0", .help = "L2 factor, a decimal"},
    {"momentum", ATTR_STRING, offsetof(RmspropAttrs, momentum), .default_string = "0", .help = "momentum factor, a decimal"},
    {0},
};

typedef struct RmspropStep { double alpha, eps, weight_decay, momentum; } RmspropStep;

static Status rmsprop_parse(const Node *node, RmspropStep *out) {
  const RmspropAttrs *a = node->attrs;
  TRY(kernel_parse_decimal(node, "alpha", a->alpha, 0, 1, &out->alpha));
  TRY(kernel_parse_decimal(node, "eps", a->eps, 0, INFINITY, &out->eps));
  TRY(kernel_parse_decimal(node, "weight_decay", a->weight_decay, 0, INFINITY, &out->weight_decay));
  return kernel_parse_decimal(node, "momentum", a->momentum, 0, INFINITY, &out->momentum);
}

static Status rmsprop_infer(Node *node, Arena *arena) {
  RmspropStep step;
  TRY(rmsprop_parse(node, &step));
  bool buffer = node->n_inputs > IN_STATE + 1 && node->inputs[IN_STATE + 1];
  if (buffer != (step.momentum != 0)) FAIL(MALFORMED, node->name, "momentum = %g %s a momentum input", step.momentum, buffer ? "takes no" : "needs");
  if (buffer != (node->n_outputs > 2 && node->outputs[2])) FAIL(MALFORMED, node->name, "the momentum buffer is either input and output, or neither");
  return step_infer(node);
}

static Status rmsprop_ref(const KernelContext *c) {
  RmspropStep s;
  TRY(rmsprop_parse(c->node, &s));
  step_carry(c);
  double scale = in_f(c, IN_SCALE, 0), lr = in_f(c, IN_LR, 0);
  for (int64_t e = 0, n = in_elems(c, IN_PARAM); e < n; e++) {
    double p = in_f(c, IN_PARAM, e), g = step_grad(c, e, scale) + s.weight_decay * p;
    double v = s.alpha * in_f(c, IN_STATE, e) + (1 - s.alpha) * g * g, step = g / (sqrt(v) + s.eps);
    out_f(c, 1, e, v);
    if (s.momentum != 0) {
      step += s.momentum * in_f(c, IN_STATE + 1, e);
      out_f(c, 2, e, step);
    }
    out_f(c, 0, e, p - lr * step);
  }
  return STATUS_OK;
}

static Status rmsprop_cpu(const KernelContext *c) {
  RmspropStep s;
  TRY(rmsprop_parse(c->node, &s));
  step_carry(c);
  float *p = c->out[0].data, *v = c->out[1].data, *buffer = s.momentum != 0 ? c->out[2].data : NULL;
  const float *grad = c->in[IN_GRAD].data;
  float scale = (float)in_f(c, IN_SCALE, 0), lr = (float)in_f(c, IN_LR, 0), decay = (float)s.weight_decay, eps = (float)s.eps;
  float alpha = (float)s.alpha, rest = (float)(1 - s.alpha), momentum = (float)s.momentum;
  for (int64_t e = 0, n = in_elems(c, IN_PARAM); e < n; e++) {
    float g = grad[e] * scale + decay * p[e];
    v[e] = alpha * v[e] + rest * g * g;
    float step = g / (sqrtf(v[e]) + eps);
    if (buffer) step = buffer[e] = momentum * buffer[e] + step;
    p[e] -= lr * step;
  }
  return STATUS_OK;
}

const Op op_Rmsprop = {
    .name = "Rmsprop", .domain = "tessera", .min_inputs = 6, .max_inputs = 7, .min_outputs = 2, .max_outputs = 3, .flags = OP_OPTIMIZER,
    .nondifferentiable = 0x7f, .attrs = rmsprop_attrs, .attrs_bytes = sizeof(RmspropAttrs), .infer = rmsprop_infer, .run_ref = rmsprop_ref,
    .run_cpu = rmsprop_cpu, .alias = step_alias};
