// Optimizer steps, elementwise over flat slices: torch.optim's semantics and order of operations. The gradient is multiplied by `scale`
// (1 / count, clipping) once, in its own dtype.
#include <math.h>
#include <string.h>

#include "limbs.h"
#include "optimizer.h"
#include "ops.h"
#include "tensor_piece.h"

Status step_infer_first(Node *node, int inputs) {
  const Type *param = &node->inputs[IN_PARAM]->type;
  if (!dtype_is_float(param->dtype)) FAIL(MALFORMED, node->name, "parameter '%s' is %s", node->inputs[IN_PARAM]->name, dtype_name(param->dtype));
  for (int i = 0; i < inputs; i++) {
    const Value *v = node->inputs[i];
    if (!v) continue;
    bool control = i >= IN_SCALE && i <= IN_T;
    Type want = control ? type_scalar(i == IN_T ? DTYPE_I64 : DTYPE_F64) : *param;
    if (i == IN_GRAD && dtype_of_sums(v->type.dtype) == DTYPE_F32 && param->dtype == DTYPE_F32) want.dtype = v->type.dtype;
    char have_text[160], want_text[160];
    if (!type_equal(&v->type, &want))
      FAIL(MALFORMED, node->name, "input %d, '%s', is %s; it must be %s", i, v->name, type_text(&v->type, have_text, sizeof have_text),
           type_text(&want, want_text, sizeof want_text));
  }
  if (node->outputs[0]) node->outputs[0]->type = *param;
  return NULL;
}

Status step_infer(Node *node) {
  TRY(step_infer_first(node, node->n_inputs));
  for (int o = 1; o < node->n_outputs; o++)
    if (node->outputs[o]) node->outputs[o]->type = node->inputs[IN_PARAM]->type;
  return NULL;
}

bool step_alias(const Node *node, int output, int input, Alias *out) {
  if (input != (output ? IN_STATE + output - 1 : IN_PARAM)) return false;
  *out = (Alias){.kind = ALIAS_UPDATE, .input = input};
  return true;
}

void step_carry(const KernelContext *c) {
  for (int o = 0; o < c->n_out; o++) {
    int input = o ? IN_STATE + o - 1 : IN_PARAM;
    if (has_output(c, o) && c->out[o].data != c->in[input].data) memcpy(c->out[o].data, c->in[input].data, (size_t)type_bytes(c->out[o].type));
  }
}

bool direction_alias(const Node *node, int output, int input, Alias *out) { return output > 0 && step_alias(node, output, input, out); }

void direction_carry(const KernelContext *c) {
  for (int o = 1; o < c->n_out; o++)
    if (has_output(c, o)) copy_unless_same(c->out[o].data, c->in[IN_STATE + o - 1].data, type_bytes(c->out[o].type));
}

bool apply_alias(const Node *node, int output, int input, Alias *out) {
  if (output || input != IN_PARAM) return false;
  *out = (Alias){.kind = ALIAS_UPDATE, .input = IN_PARAM};
  return true;
}

Status apply_check(Node *node, int norms) {
  const Type *param = &node->inputs[IN_PARAM]->type, *rate = &node->inputs[IN_RATE]->type;
  int64_t limbs = ((const PieceAttrs *)node->attrs)->starts.n * LIMBS * norms;
  if (!dtype_is_float(param->dtype) || !type_equal(&node->inputs[IN_DIRECTION]->type, param))
    FAIL(MALFORMED, node->name, "param and direction must be floats of one type");
  if (rate->dtype != DTYPE_F64 || rate->rank) FAIL(MALFORMED, node->name, "lr must be a double scalar");
  TRY(pieces_check(node, param));
  if (norms && (node->inputs[IN_NORMS]->type.dtype != DTYPE_I64 || node->inputs[IN_NORMS]->type.rank != 1 || node->inputs[IN_NORMS]->type.dims[0] != limbs))
    FAIL(MALFORMED, node->name, "the norms must be int64[%lld]: %d of each parameter", (long long)limbs, norms);
  node->outputs[0]->type = *param;
  return STATUS_OK;
}

double step_grad(const KernelContext *c, int64_t e, double scale) {
  double g = in_f(c, IN_GRAD, e);
  return c->in[IN_GRAD].type->dtype == DTYPE_F64 ? g * scale : (double)((float)g * (float)scale);
}

// ---- Sgd ----------------------------------------------------------------------------------------------------------------------

typedef struct SgdAttrs { const char *momentum, *dampening, *weight_decay; int64_t nesterov; } SgdAttrs;
static const AttrSpec sgd_attrs[] = {
    {"momentum", ATTR_STRING, offsetof(SgdAttrs, momentum), .default_string = "0", .help = "momentum factor, a decimal"},
    {"dampening", ATTR_STRING, offsetof(SgdAttrs, dampening), .default_string = "0", .help = "dampening of momentum, a decimal"},
    {"weight_decay", ATTR_STRING, offsetof(SgdAttrs, weight_decay), .default_string = "0", .help = "L2 factor, a decimal"},
    {"nesterov", ATTR_INT, offsetof(SgdAttrs, nesterov), .min = 0, .max = 1, .help = "Nesterov momentum"},
    {0},
};

// The hyper-parameters; the control inputs are the caller's to fill in.
static Status sgd_parse(const Node *node, SgdStep *out) {
  const SgdAttrs *a = node->attrs;
  SgdStep step = {.nesterov = a->nesterov != 0};
  TRY(kernel_parse_decimal(node, "momentum", a->momentum, 0, INFINITY, &step.momentum));
  TRY(kernel_parse_decimal(node, "dampening", a->dampening, -INFINITY, INFINITY, &step.dampening));
  TRY(kernel_parse_decimal(node, "weight_decay", a->weight_decay, 0, INFINITY, &step.weight_decay));
  *out = step;
  return NULL;
}

static Status sgd_infer(Node *node, Arena *arena) {
  SgdStep step;
  TRY(sgd_parse(node, &step));
  bool state = node->n_inputs > IN_STATE && node->inputs[IN_STATE];
  if (state != (step.momentum != 0)) FAIL(MALFORMED, node->name, "momentum = %g %s a momentum input", step.momentum, state ? "takes no" : "needs");
  if (state && (node->n_outputs < 2 || !node->outputs[1])) FAIL(MALFORMED, node->name, "the output momentum is missing");
  if (step.nesterov && (step.momentum == 0 || step.dampening != 0))
    FAIL(MALFORMED, node->name, "nesterov needs momentum > 0 and dampening = 0; they are %g and %g", step.momentum, step.dampening);
  return step_infer(node);
}

static Status sgd_step(const KernelContext *c, SgdStep *out) {
  TRY(sgd_parse(c->node, out));
  out->scale = in_f(c, IN_SCALE, 0);
  out->lr = in_f(c, IN_LR, 0);
  out->t = in_i(c, IN_T, 0);
  return NULL;
}

static Status sgd_ref(const KernelContext *c) {
  SgdStep s;
  TRY(sgd_step(c, &s));
  step_carry(c);
  for (int64_t e = 0, n = in_elems(c, IN_PARAM); e < n; e++) {
    double p = in_f(c, IN_PARAM, e), g = step_grad(c, e, s.scale) + s.weight_decay * p;
    if (s.momentum != 0) {
      double buf = s.t == 1 ? g : s.momentum * in_f(c, IN_STATE, e) + (1 - s.dampening) * g;
      out_f(c, 1, e, buf);
      g = s.nesterov ? g + s.momentum * buf : buf;
    }
    out_f(c, 0, e, p - s.lr * g);
  }
  return NULL;
}

static Status sgd_cpu(const KernelContext *c) {
  SgdStep s;
  TRY(sgd_step(c, &s));
  step_carry(c);
  c->loops->sgd(c->out[0].data, s.momentum != 0 ? c->out[1].data : NULL, c->in[IN_GRAD].data, in_elems(c, IN_PARAM), &s);
  return NULL;
}

const Op op_Sgd = {
    .name = "Sgd", .domain = "tessera", .min_inputs = 5, .max_inputs = 6, .min_outputs = 1, .max_outputs = 2, .flags = OP_OPTIMIZER,
    .nondifferentiable = 0x3f, .attrs = sgd_attrs, .attrs_bytes = sizeof(SgdAttrs), .infer = sgd_infer, .run_ref = sgd_ref,
    .run_cpu = sgd_cpu, .alias = step_alias};

// ---- Adam ---------------------------------------------------------------------------------------------------------------------

typedef struct AdamAttrs { const char *beta1, *beta2, *eps, *weight_decay; int64_t decoupled; } AdamAttrs;
static const AttrSpec adam_attrs[] = {
    {"beta1", ATTR_STRING, offsetof(AdamAttrs, beta1), .default_string = "0.9", .help = "decay of the mean, a decimal"},
    {"beta2", ATTR_STRING, offsetof(AdamAttrs, beta2), .default_string = "0.999", .help = "decay of the mean square, a decimal"},
    {"eps", ATTR_STRING, offsetof(AdamAttrs, eps), .default_string = "1e-8", .help = "added to the denominator, a decimal"},
    {"weight_decay", ATTR_STRING, offsetof(AdamAttrs, weight_decay), .default_string = "0", .help = "a decimal"},
    {"decoupled", ATTR_INT, offsetof(AdamAttrs, decoupled), .min = 0, .max = 1, .help = "1: AdamW; 0: the decay joins the gradient"},
    {0},
};

Status step_parse_moments(const Node *node, const char *beta1, const char *beta2, const char *eps, const char *weight_decay, Moments *out) {
  TRY(kernel_parse_decimal(node, "beta1", beta1, 0, 1, &out->beta1));
  TRY(kernel_parse_decimal(node, "beta2", beta2, 0, 1, &out->beta2));
  TRY(kernel_parse_decimal(node, "eps", eps, 0, INFINITY, &out->eps));
  TRY(kernel_parse_decimal(node, "weight_decay", weight_decay, 0, INFINITY, &out->weight_decay));
  if (out->beta1 == 1 || out->beta2 == 1) FAIL(MALFORMED, node->name, "attributes beta1 and beta2 must be below 1; they are %s and %s", beta1, beta2);
  return STATUS_OK;
}

static Status adam_parse(const Node *node, AdamStep *out) {
  const AdamAttrs *a = node->attrs;
  Moments of;
  TRY(step_parse_moments(node, a->beta1, a->beta2, a->eps, a->weight_decay, &of));
  *out = (AdamStep){.beta1 = of.beta1, .beta2 = of.beta2, .eps = of.eps, .weight_decay = of.weight_decay, .decoupled = a->decoupled != 0};
  return STATUS_OK;
}

static Status adam_infer(Node *node, Arena *arena) {
  AdamStep step;
  TRY(adam_parse(node, &step));
  for (int o = 0; o < 3; o++)
    if (!node->outputs[o]) FAIL(MALFORMED, node->name, "output %d is missing", o);
  return step_infer(node);
}

static Status adam_step(const KernelContext *c, AdamStep *out) {
  TRY(adam_parse(c->node, out));
  out->scale = in_f(c, IN_SCALE, 0);
  out->lr = in_f(c, IN_LR, 0);
  out->t = in_i(c, IN_T, 0);
  if (out->t < 1) FAIL(CHECK, c->node->name, "t = %lld; steps count from 1", (long long)out->t);
  return NULL;
}

static Status adam_ref(const KernelContext *c) {
  AdamStep s;
  TRY(adam_step(c, &s));
  step_carry(c);
  double correction1 = 1 - pow(s.beta1, (double)s.t), correction2 = sqrt(1 - pow(s.beta2, (double)s.t));
  for (int64_t e = 0, n = in_elems(c, IN_PARAM); e < n; e++) {
    double p = in_f(c, IN_PARAM, e), g = step_grad(c, e, s.scale);
    if (s.decoupled) p *= 1 - s.lr * s.weight_decay;
    else g += s.weight_decay * p;
    double m = in_f(c, IN_STATE, e), v = in_f(c, IN_STATE + 1, e);
    m += (1 - s.beta1) * (g - m);
    v = s.beta2 * v + (1 - s.beta2) * g * g;
    out_f(c, 1, e, m);
    out_f(c, 2, e, v);
    out_f(c, 0, e, p - s.lr / correction1 * m / (sqrt(v) / correction2 + s.eps));
  }
  return NULL;
}

static Status adam_cpu(const KernelContext *c) {
  AdamStep s;
  TRY(adam_step(c, &s));
  step_carry(c);
  c->loops->adam(c->out[0].data, c->out[1].data, c->out[2].data, c->in[IN_GRAD].data, in_elems(c, IN_PARAM), &s);
  return NULL;
}

const Op op_Adam = {
    .name = "Adam", .domain = "tessera", .min_inputs = 7, .max_inputs = 7, .min_outputs = 3, .max_outputs = 3, .flags = OP_OPTIMIZER,
    .nondifferentiable = 0x7f, .attrs = adam_attrs, .attrs_bytes = sizeof(AdamAttrs), .infer = adam_infer, .run_ref = adam_ref,
    .run_cpu = adam_cpu, .alias = step_alias};
