// The global gradient norm. Chunk sums in f64 in fixed order are added exactly, as integers, so that neither sharding nor the order of
// ranks changes a bit of the norm.
#include <math.h>
#include <string.h>

#include "cost.h"
#include "limbs.h"
#include "ops.h"

// ---- SquaredNorm --------------------------------------------------------------------------------------------------------------

static Status squared_infer(Node *node, Arena *arena) {
  const Type *scale = &node->inputs[0]->type;
  if (scale->dtype != DTYPE_F64 || scale->rank) FAIL(MALFORMED, node->name, "inverse_count must be a double scalar");
  for (int i = 1; i < node->n_inputs; i++) {
    if (!node->inputs[i]) FAIL(MALFORMED, node->name, "gradient %d is absent", i - 1);
    if (!dtype_is_float(node->inputs[i]->type.dtype))
      FAIL(MALFORMED, node->name, "'%s' is %s; a norm is taken of floats", node->inputs[i]->name, dtype_name(node->inputs[i]->type.dtype));
  }
  node->outputs[0]->type = type_vector(DTYPE_I64, LIMBS);
  return NULL;
}

static Status squared_run(const KernelContext *c, bool fast) {
  int64_t limbs[LIMBS] = {0};
  for (int i = 1; i < c->n_in; i++) limbs_add_squares(limbs, c, i, 0, in_elems(c, i), in_f(c, 0, 0), fast);
  memcpy(c->out[0].data, limbs, sizeof limbs);
  return NULL;
}

static Status squared_ref(const KernelContext *c) { return squared_run(c, false); }
static Status squared_cpu(const KernelContext *c) { return squared_run(c, true); }

const Op op_SquaredNorm = {
    .name = "SquaredNorm", .domain = "tessera", .min_inputs = 1, .max_inputs = VARIADIC, .min_outputs = 1, .max_outputs = 1,
    .flags = OP_READS_HALVES, .nondifferentiable = 1, .infer = squared_infer, .run_ref = squared_ref, .run_cpu = squared_cpu, .cost = cost_sum};

// ---- ClipScale ----------------------------------------------------------------------------------------------------------------

typedef struct ClipAttrs { const char *max_norm; } ClipAttrs;
static const AttrSpec clip_attrs[] = {
    {"max_norm", ATTR_STRING, offsetof(ClipAttrs, max_norm), .default_string = "", .help = "clip to this norm, a decimal; empty: do not clip"},
    {0},
};

static Status clip_infer(Node *node, Arena *arena) {
  const char *text = ((const ClipAttrs *)node->attrs)->max_norm;
  double max_norm;
  if (*text) TRY(kernel_parse_decimal(node, "max_norm", text, 0, INFINITY, &max_norm));
  const Type *inverse = &node->inputs[0]->type, *limbs = &node->inputs[1]->type;
  if (inverse->dtype != DTYPE_F64 || inverse->rank) FAIL(MALFORMED, node->name, "inverse_count must be a double scalar");
  if (limbs->dtype != DTYPE_I64 || limbs->rank != 1 || limbs->dims[0] != LIMBS) FAIL(MALFORMED, node->name, "limbs must be int64[%d]", LIMBS);
  for (int o = 0; o < node->n_outputs; o++)
    if (node->outputs[o]) node->outputs[o]->type = type_scalar(DTYPE_F64);
  return NULL;
}

static Status clip_ref(const KernelContext *c) {
  const char *text = ((const ClipAttrs *)c->node->attrs)->max_norm;
  int64_t limbs[LIMBS];
  memcpy(limbs, c->in[1].data, sizeof limbs);
  double norm = sqrt(limbs_to_double(limbs)), factor = 1;
  if (*text) {
    double max_norm;
    TRY(kernel_parse_decimal(c->node, "max_norm", text, 0, INFINITY, &max_norm));
    factor = max_norm / (norm + 1e-6);
    if (factor > 1) factor = 1;   // a NaN stays one
  }
  if (has_output(c, 0)) out_f(c, 0, 0, norm);
  if (has_output(c, 1)) out_f(c, 1, 0, in_f(c, 0, 0) * factor);
  return NULL;
}

const Op op_ClipScale = {
    .name = "ClipScale", .domain = "tessera", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 2,
    .nondifferentiable = 3, .attrs = clip_attrs, .attrs_bytes = sizeof(ClipAttrs), .infer = clip_infer, .run_ref = clip_ref};

// ---- ClipValue ----------------------------------------------------------------------------------------------------------------

typedef struct ClipValueAttrs { const char *max; } ClipValueAttrs;
static const AttrSpec clip_value_attrs[] = {
    {"max", ATTR_STRING, offsetof(ClipValueAttrs, max), .required = true, .help = "no element stays further from 0, a decimal"},
    {0},
};

static Status clip_value_infer(Node *node, Arena *arena) {
  double max;
  const Type *grad = &node->inputs[0]->type, *scale = &node->inputs[1]->type;
  TRY(kernel_parse_decimal(node, "max", ((const ClipValueAttrs *)node->attrs)->max, 0, INFINITY, &max));
  if (!dtype_is_float(grad->dtype) || scale->dtype != DTYPE_F64 || scale->rank) FAIL(MALFORMED, node->name, "it takes floats and a double scalar");
  node->outputs[0]->type = *grad;
  return STATUS_OK;
}

static Status clip_value_ref(const KernelContext *c) {
  double max, scale = in_f(c, 1, 0);
  bool wide = c->in[0].type->dtype == DTYPE_F64;
  TRY(kernel_parse_decimal(c->node, "max", ((const ClipValueAttrs *)c->node->attrs)->max, 0, INFINITY, &max));
  for (int64_t e = 0, n = in_elems(c, 0); e < n; e++) {
    double g = in_f(c, 0, e);
    g = wide ? g * scale : (double)((float)g * (float)scale);
    out_f(c, 0, e, g > max ? max : g < -max ? -max : g);          // a NaN stays one
  }
  return STATUS_OK;
}

static Status clip_value_cpu(const KernelContext *c) {
  double max;
  TRY(kernel_parse_decimal(c->node, "max", ((const ClipValueAttrs *)c->node->attrs)->max, 0, INFINITY, &max));
  float high = (float)max, scale = (float)in_f(c, 1, 0), *out = c->out[0].data;
  const float *grad = c->in[0].data;
  for (int64_t e = 0, n = in_elems(c, 0); e < n; e++) {
    float g = grad[e] * scale;
    out[e] = g > high ? high : g < -high ? -high : g;
  }
  return STATUS_OK;
}

const Op op_ClipValue = {
    .name = "ClipValue", .domain = "tessera", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 3,
    .attrs = clip_value_attrs, .attrs_bytes = sizeof(ClipValueAttrs), .infer = clip_value_infer, .run_ref = clip_value_ref, .run_cpu = clip_value_cpu,
    .cost = cost_arithmetic};
