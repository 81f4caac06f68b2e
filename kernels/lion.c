// Lion (Chen et al., 2023, algorithm 2): p (1 - lr decay) - lr sign(beta1 m + (1 - beta1) g), then m = beta2 m + (1 - beta2) g.
#include <math.h>

#include "optimizer.h"
#include "ops.h"

typedef struct LionAttrs { const char *beta1, *beta2, *weight_decay; } LionAttrs;
static const AttrSpec lion_attrs[] = {
    {"beta1", ATTR_STRING, offsetof(LionAttrs, beta1), .default_string = "0.9", .help = "weight of the mean in the direction, a decimal"},
    {"beta2", ATTR_STRING, offsetof(LionAttrs, beta2), .default_string = "0.99", .help = "decay of the mean, a decimal"},
    {"weight_decay", ATTR_STRING, offsetof(LionAttrs, weight_decay), .default_string = "0", .help = "a decimal; times the learning rate it shrinks the parameter"},
    {0},
};

static Status lion_parse(const Node *node, LionStep *out) {
  const LionAttrs *a = node->attrs;
  TRY(kernel_parse_decimal(node, "beta1", a->beta1, 0, 1, &out->beta1));
  TRY(kernel_parse_decimal(node, "beta2", a->beta2, 0, 1, &out->beta2));
  return kernel_parse_decimal(node, "weight_decay", a->weight_decay, 0, INFINITY, &out->weight_decay);
}

static Status lion_infer(Node *node, Arena *arena) {
  LionStep step;
  TRY(lion_parse(node, &step));
  return step_infer(node);
}

static Status lion_ref(const KernelContext *c) {
  LionStep s;
  TRY(lion_parse(c->node, &s));
  step_carry(c);
  double scale = in_f(c, IN_SCALE, 0), lr = in_f(c, IN_LR, 0);
  for (int64_t e = 0, n = in_elems(c, IN_PARAM); e < n; e++) {
    double p = in_f(c, IN_PARAM, e) * (1 - lr * s.weight_decay), g = step_grad(c, e, scale), m = in_f(c, IN_STATE, e);
    double direction = s.beta1 * m + (1 - s.beta1) * g;
    out_f(c, 0, e, p - lr * (direction > 0 ? 1 : direction < 0 ? -1 : direction));   // a NaN stays one
    out_f(c, 1, e, s.beta2 * m + (1 - s.beta2) * g);
  }
  return STATUS_OK;
}

static Status lion_cpu(const KernelContext *c) {
  LionStep s;
  TRY(lion_parse(c->node, &s));
  step_carry(c);
  s.scale = in_f(c, IN_SCALE, 0);
  s.lr = in_f(c, IN_LR, 0);
  c->loops->lion(c->out[0].data, c->out[1].data, c->in[IN_GRAD].data, in_elems(c, IN_PARAM), &s);
  return STATUS_OK;
}

const Op op_Lion = {
    .name = "Lion", .domain = "tessera", .min_inputs = 6, .max_inputs = 6, .min_outputs = 2, .max_outputs = 2, .flags = OP_OPTIMIZER,
    .nondifferentiable = 0x3f, .attrs = lion_attrs, .attrs_bytes = sizeof(LionAttrs), .infer = lion_infer, .run_ref = lion_ref,
    .run_cpu = lion_cpu, .alias = step_alias};
