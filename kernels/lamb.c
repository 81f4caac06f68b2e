// LAMB (You et al., 2020, algorithm 2, with Adam's bias correction), in two steps around the norms of each parameter: the direction
// u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + decay p, then p -= lr |p| / |u| u; the ratio is 1 where a norm is 0.
#include <math.h>

#include "cost.h"
#include "limbs.h"
#include "ops.h"
#include "optimizer.h"
#include "tensor_piece.h"

// ---- LambDirection ------------------------------------------------------------------------------------------------------------

typedef struct LambAttrs { const char *beta1, *beta2, *eps, *weight_decay; } LambAttrs;
static const AttrSpec lamb_attrs[] = {
    {"beta1", ATTR_STRING, offsetof(LambAttrs, beta1), .default_string = "0.9", .help = "decay of the mean, a decimal"},
    {"beta2", ATTR_STRING, offsetof(LambAttrs, beta2), .default_string = "0.999", .help = "decay of the mean square, a decimal"},
    {"eps", ATTR_STRING, offsetof(LambAttrs, eps), .default_string = "1e-6", .help = "added to the denominator, a decimal"},
    {"weight_decay", ATTR_STRING, offsetof(LambAttrs, weight_decay), .default_string = "0", .help = "of the parameter, added to the direction, a decimal"},
    {0},
};

static Status lamb_parse(const Node *node, LambStep *out) {
  const LambAttrs *a = node->attrs;
  Moments of;
  TRY(step_parse_moments(node, a->beta1, a->beta2, a->eps, a->weight_decay, &of));
  *out = (LambStep){.beta1 = of.beta1, .beta2 = of.beta2, .eps = of.eps, .weight_decay = of.weight_decay};
  return STATUS_OK;
}

static Status lamb_infer(Node *node, Arena *arena) {
  LambStep step;
  TRY(lamb_parse(node, &step));
  return step_infer(node);
}

static Status lamb_step(const KernelContext *c, LambStep *out) {
  TRY(lamb_parse(c->node, out));
  int64_t t = in_i(c, IN_T, 0);
  if (t < 1) FAIL(CHECK, c->node->name, "t = %lld; steps count from 1", (long long)t);
  out->scale = in_f(c, IN_SCALE, 0);
  out->correction1 = 1 - pow(out->beta1, (double)t);
  out->root2 = sqrt(1 - pow(out->beta2, (double)t));
  direction_carry(c);
  return STATUS_OK;
}

static Status lamb_ref(const KernelContext *c) {
  LambStep s;
  TRY(lamb_step(c, &s));
  for (int64_t e = 0, n = in_elems(c, IN_PARAM); e < n; e++) {
    double p = in_f(c, IN_PARAM, e), g = step_grad(c, e, s.scale);
    double m = s.beta1 * in_f(c, IN_STATE, e) + (1 - s.beta1) * g, v = s.beta2 * in_f(c, IN_STATE + 1, e) + (1 - s.beta2) * g * g;
    out_f(c, 1, e, m);
    out_f(c, 2, e, v);
    out_f(c, 0, e, m / s.correction1 / (sqrt(v) / s.root2 + s.eps) + s.weight_decay * p);
  }
  return STATUS_OK;
}

static Status lamb_cpu(const KernelContext *c) {
  LambStep s;
  TRY(lamb_step(c, &s));
  c->loops->lamb(c->out[0].data, c->out[1].data, c->out[2].data, c->in[IN_PARAM].data, c->in[IN_GRAD].data, in_elems(c, IN_PARAM), &s);
  return STATUS_OK;
}

const Op op_LambDirection = {
    .name = "LambDirection", .domain = "tessera", .min_inputs = 7, .max_inputs = 7, .min_outputs = 3, .max_outputs = 3, .flags = OP_OPTIMIZER | OP_DIRECTION,
    .nondifferentiable = 0x7f, .attrs = lamb_attrs, .attrs_bytes = sizeof(LambAttrs), .infer = lamb_infer, .run_ref = lamb_ref,
    .run_cpu = lamb_cpu, .alias = direction_alias};

// ---- LambApply ----------------------------------------------------------------------------------------------------------------

static const AttrSpec apply_attrs[] = {PIECE_ATTRS, {0}};

static Status apply_infer(Node *node, Arena *arena) { return apply_check(node, 2); }

static Status apply_run(const KernelContext *c, bool fast) {
  const PieceAttrs *a = c->node->attrs;
  const int64_t *param_limbs = c->in[IN_NORMS].data, *direction_limbs = param_limbs + a->starts.n * LIMBS;
  int64_t rank;
  double lr = in_f(c, IN_RATE, 0);
  TRY(piece_rank(c, &rank));
  copy_unless_same(c->out[0].data, c->in[IN_PARAM].data, type_bytes(c->out[0].type));
  for (int64_t i = 0; i < a->starts.n; i++) {
    Piece p = piece_of(a, i, in_elems(c, IN_PARAM), rank);
    double norm = sqrt(limbs_to_double(param_limbs + i * LIMBS)), length = sqrt(limbs_to_double(direction_limbs + i * LIMBS));
    double rate = lr * (norm == 0 || length == 0 ? 1 : norm / length);      // a NaN stays one
    if (fast) c->loops->axpy((float *)c->out[0].data + p.at, (float)-rate, (const float *)c->in[IN_DIRECTION].data + p.at, p.n);
    for (int64_t e = p.at; !fast && e < p.at + p.n; e++) out_f(c, 0, e, element_read(c->out[0].data, c->out[0].type->dtype, e) - rate * in_f(c, IN_DIRECTION, e));
  }
  return STATUS_OK;
}

static Status apply_ref(const KernelContext *c) { return apply_run(c, false); }
static Status apply_cpu(const KernelContext *c) { return apply_run(c, true); }

const Op op_LambApply = {
    .name = "LambApply", .domain = "tessera", .min_inputs = 4, .max_inputs = 4, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 0xf,
    .attrs = apply_attrs, .attrs_bytes = sizeof(PieceAttrs), .infer = apply_infer, .run_ref = apply_ref, .run_cpu = apply_cpu, .alias = apply_alias,
    .cost = cost_arithmetic};
