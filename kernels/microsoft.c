// Operators of domain com.microsoft that ONNX Runtime's training graphs hold: gradients, and the forms of forward operators that keep what
// gradients need. Most are rows of ours with their operands in another order. Source: onnxruntime's training operator definitions (1.19).
// ConvGrad stands in conv_grad.c, LSTMTraining and LSTMGrad in recurrent.c.
#include <math.h>
#include <string.h>

#include "adapter.h"
#include "cost.h"
#include "index_input.h"
#include "ops.h"

typedef struct OrtAttrs {
  int64_t axis, trans_a, trans_b, trans_batch_a, trans_batch_b, ignore_index, stash_type, keepdims, noop;
  float alpha, epsilon;
  const char *reduction;
} OrtAttrs;
#define INT_ATTR(text, member, value, about) {text, ATTR_INT, offsetof(OrtAttrs, member), .default_int = value, .help = about}
#define FLOAT_ATTR(text, member, value, about) {text, ATTR_FLOAT, offsetof(OrtAttrs, member), .default_float = value, .help = about}
static const AttrSpec axis_0_attrs[] = {INT_ATTR("axis", axis, 0, "axis"), {0}};
static const AttrSpec axis_1_attrs[] = {INT_ATTR("axis", axis, 1, "first axis of a row"), {0}};
static const AttrSpec axis_last_attrs[] = {INT_ATTR("axis", axis, -1, "axis"), {0}};
static const AttrSpec norm_attrs[] = {INT_ATTR("axis", axis, -1, "first axis of a row"),
                                      FLOAT_ATTR("epsilon", epsilon, 1e-5f, "added to the variance"),
                                      INT_ATTR("stash_type", stash_type, 1, "type of the statistics"),
                                      {0}};
static const AttrSpec matmul_attrs[] = {FLOAT_ATTR("alpha", alpha, 1, "factor"),
                                        INT_ATTR("transA", trans_a, 0, "swap A's last axes"),
                                        INT_ATTR("transB", trans_b, 0, "swap B's last axes"),
                                        INT_ATTR("transBatchA", trans_batch_a, 0, "not supported"),
                                        INT_ATTR("transBatchB", trans_batch_b, 0, "not supported"),
                                        {0}};
static const AttrSpec loss_attrs[] = {
    INT_ATTR("ignore_index", ignore_index, ATTR_ABSENT, "labels that do not count"),
    {"reduction", ATTR_STRING, offsetof(OrtAttrs, reduction), .default_string = "mean", .help = "none, sum or mean"}, {0}};
static const AttrSpec loss_internal_attrs[] = {
    {"reduction", ATTR_STRING, offsetof(OrtAttrs, reduction), .default_string = "mean", .help = "none, sum or mean"}, {0}};
static const AttrSpec reduce_attrs[] = {INT_ATTR("keepdims", keepdims, 1, "keep reduced axes"),
                                        INT_ATTR("noop_with_empty_axes", noop, 0, "no axes: all or none"),
                                        {0}};
static const AttrSpec quick_attrs[] = {FLOAT_ATTR("alpha", alpha, 1.702f, "slope of the sigmoid"), {0}};

// ---- What our rows must be told -------------------------------------------------------------------------------------------------------------

static Status product_fix(const Node *node, Adapted *a) {
  const OrtAttrs *given = node->attrs;
  if (given->trans_batch_a || given->trans_batch_b) FAIL(UNSUPPORTED, node->name, "FusedMatMul: transBatchA and transBatchB are not supported");
  return NULL;
}

// SoftmaxGrad before opset 13: the tensor is a matrix whose rows begin at `axis`.
static Status rows_fix(const Node *node, Adapted *a) {
  const Type *x = &node->inputs[0]->type;
  int axis;
  TRY(type_axis(((const OrtAttrs *)node->attrs)->axis, x->rank, node->name, &axis));
  for (int i = 1; i < node->n_inputs; i++)
    if (node->inputs[i] && !type_equal(&node->inputs[i]->type, x))
      FAIL(MALFORMED, node->name, "'%s' and '%s' must be of one type", node->inputs[0]->name, node->inputs[i]->name);
  a->rows = type_make(x->dtype, 2, (const int64_t[]){1, 1});
  for (int d = 0; d < x->rank; d++) a->rows.dims[d >= axis] *= x->dims[d];
  a->flat = true;
  *(int64_t *)adapted_attr(a, "axis") = 1;
  return NULL;
}

// GatherGrad's first input is the shape of the data.
static Status gather_fix(const Node *node, Adapted *a) {
  int n;
  TRY(index_constant(node, 0, a->made_items, RANK_MAX, &n));
  *(AttrInts *)adapted_attr(a, "dims") = (AttrInts){a->made_items, n};
  return NULL;
}

// The lengths that ConcatTraining says it has joined; they are a constant, or follow from its operands' types.
static Status split_fix(const Node *node, Adapted *a) {
  int n = 0;
  const Node *from = node->inputs[1]->producer;
  if (value_const(node->inputs[1])) {
    TRY(index_constant(node, 1, a->made_items, ADAPTER_OPERANDS, &n));
  } else if (from && from->op == &op_ort_ConcatTraining && from->n_outputs > 1 && from->outputs[1] == node->inputs[1]) {
    int axis;
    TRY(type_axis(((const OrtAttrs *)from->attrs)->axis, from->inputs[0]->type.rank, node->name, &axis));
    for (; n < from->n_inputs && n < ADAPTER_OPERANDS; n++) a->made_items[n] = from->inputs[n]->type.dims[axis];
  } else {
    FAIL(UNSUPPORTED, node->name, "SplitTraining: '%s' must be a constant or come from ConcatTraining", node->inputs[1]->name);
  }
  a->made_weight = (Weight){.name = node->inputs[1]->name, .type = type_vector(DTYPE_I64, n), .bytes = a->made_items};
  a->made = (Value){.name = node->inputs[1]->name, .type = type_vector(DTYPE_I64, n), .role = ROLE_CONST, .weight = &a->made_weight};
  a->inputs[1] = &a->made;
  return NULL;
}

// Internal losses take ignore_index as an input.
static Status ignore_fix(const Node *node, Adapted *a, int input) {
  int n = 0;
  int64_t ignore = ATTR_ABSENT;
  if (node_has_input(node, input)) {
    TRY(index_constant(node, input, &ignore, 1, &n));
    if (n != 1) FAIL(MALFORMED, node->name, "ignore_index must be one integer");
  }
  *(int64_t *)adapted_attr(a, "ignore_index") = ignore;
  return NULL;
}
static Status loss_internal_fix(const Node *node, Adapted *a) { return ignore_fix(node, a, 3); }
static Status loss_internal_grad_fix(const Node *node, Adapted *a) { return ignore_fix(node, a, 4); }

// exp(log_prob) is the softmax of log_prob itself: our row takes the log-probabilities as scores.
static const Adapter adapters[] = {
    {&op_ort_ReluGrad, &op_ReluGrad, {1, 0}, 2, 1, NULL},
    {&op_ort_TanhGrad, &op_TanhGrad, {1, 0}, 2, 1, NULL},
    {&op_ort_SoftmaxGrad, &op_SoftmaxGrad, {1, 0}, 2, 1, rows_fix},
    {&op_ort_SoftmaxGrad_13, &op_SoftmaxGrad, {1, 0}, 2, 1, NULL},
    {&op_ort_LogSoftmaxGrad, &op_LogSoftmaxGrad, {1, 0}, 2, 1, rows_fix},
    {&op_ort_LogSoftmaxGrad_13, &op_LogSoftmaxGrad, {1, 0}, 2, 1, NULL},
    {&op_ort_LayerNormalizationGrad, &op_LayerNormalizationGrad, {0, 1, 2}, 3, 3, NULL},
    {&op_ort_SimplifiedLayerNormalizationGrad, &op_RMSNormalizationGrad, {0, 1, 2}, 3, 2, NULL},
    {&op_ort_FusedMatMul, &op_FusedMatMul, {0, 1}, 2, 1, product_fix},
    {&op_ort_GatherGrad, &op_GatherGrad, {1, 2}, 2, 1, gather_fix},
    {&op_ort_SplitTraining, &op_Split, {0, 1}, 2, -1, split_fix},
    {&op_ort_ReduceSumTraining, &op_ReduceSum, {0, 1}, 2, 1, NULL},
    {&op_ort_SoftmaxCrossEntropyLossGrad, &op_SoftmaxCrossEntropyLossGrad, {0, 1, 2, 3}, 4, 1, NULL},
    {&op_ort_SoftmaxCrossEntropyLossInternal, &op_SoftmaxCrossEntropyLoss, {0, 1, 2}, 3, 2, loss_internal_fix},
    {&op_ort_SoftmaxCrossEntropyLossInternalGrad, &op_SoftmaxCrossEntropyLossGrad, {0, 1, 2, 3}, 4, 1, loss_internal_grad_fix},
    {0},
};

static Status ort_infer(Node *node, Arena *arena) { return adapter_infer(adapters, node, arena); }
static Status ort_ref(const KernelContext *c) { return adapter_run(adapters, c, true); }
static Status ort_cpu(const KernelContext *c) { return adapter_run(adapters, c, false); }
static Status ort_workspace(KernelPrepare *p) { return adapter_prepare(adapters, p, false); }
static Status ort_prepare(KernelPrepare *p) { return adapter_prepare(adapters, p, true); }
static void ort_cost(const Node *node, NodeCost *cost) { adapter_cost(adapters, node, cost); }

#define ORT(row, table, least, most, most_outputs)                                                                                       \
  const Op op_ort_##row = {.name = #row, .domain = "com.microsoft", .min_inputs = least, .max_inputs = most, .min_outputs = 1,            \
                           .max_outputs = most_outputs, .attrs = table, .attrs_bytes = sizeof(OrtAttrs), .infer = ort_infer,              \
                           .run_ref = ort_ref, .run_cpu = ort_cpu, .workspace = ort_workspace, .cost = ort_cost}
ORT(ReluGrad, NULL, 2, 2, 1);
ORT(TanhGrad, NULL, 2, 2, 1);
ORT(SoftmaxGrad, axis_1_attrs, 2, 2, 1);
ORT(SoftmaxGrad_13, axis_last_attrs, 2, 2, 1);
ORT(LogSoftmaxGrad, axis_1_attrs, 2, 2, 1);
ORT(LogSoftmaxGrad_13, axis_last_attrs, 2, 2, 1);
ORT(LayerNormalizationGrad, norm_attrs, 5, 5, 3);
ORT(SimplifiedLayerNormalizationGrad, norm_attrs, 4, 4, 2);
ORT(GatherGrad, axis_0_attrs, 3, 3, 1);
ORT(SplitTraining, axis_0_attrs, 2, 2, VARIADIC);
ORT(ReduceSumTraining, reduce_attrs, 2, 2, 1);
ORT(SoftmaxCrossEntropyLossGrad, loss_attrs, 3, 4, 1);
ORT(SoftmaxCrossEntropyLossInternal, loss_internal_attrs, 2, 4, 2);
ORT(SoftmaxCrossEntropyLossInternalGrad, loss_internal_attrs, 3, 5, 1);
const Op op_ort_FusedMatMul = {
    .name = "FusedMatMul", .domain = "com.microsoft", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .attrs = matmul_attrs,
    .attrs_bytes = sizeof(OrtAttrs), .infer = ort_infer, .run_ref = ort_ref, .run_cpu = ort_cpu, .workspace = ort_workspace, .prepare = ort_prepare, .cost = ort_cost};

// ---- ConcatTraining: Concat that also says how long its operands are ----------------------------------------------------------------------------

static const Adapter concat_adapters[] = {{&op_ort_ConcatTraining, &op_Concat, {0}, -1, 1, NULL}, {0}};

static Status concat_infer(Node *node, Arena *arena) {
  if (node_has_output(node, 1)) node->outputs[1]->type = type_vector(DTYPE_I64, node->n_inputs);
  if (!node->outputs[0]) FAIL(MALFORMED, node->name, "ConcatTraining: the joined tensor is left out");
  return adapter_infer(concat_adapters, node, arena);
}

static Status concat_ref(const KernelContext *c) {
  int axis;
  TRY(type_axis(((const OrtAttrs *)c->node->attrs)->axis, c->in[0].type->rank, c->node->name, &axis));
  for (int i = 0; has_output(c, 1) && i < c->n_in; i++) out_i(c, 1, i, c->in[i].type->dims[axis]);
  return adapter_run(concat_adapters, c, true);
}

const Op op_ort_ConcatTraining = {
    .name = "ConcatTraining", .domain = "com.microsoft", .min_inputs = 1, .max_inputs = VARIADIC, .min_outputs = 1, .max_outputs = 2,
    .attrs = axis_0_attrs, .attrs_bytes = sizeof(OrtAttrs), .infer = concat_infer, .run_ref = concat_ref, .cost = cost_move};

// ---- Elementwise: (dY, Y) of Sigmoid; (dY, mask, ratio, training_mode) of Dropout -----------------------------------------------

static bool over_first(const Node *node, int output, int input, Alias *out) {
  if (input) return false;
  *out = (Alias){.kind = ALIAS_INPLACE, .input = 0};
  return true;
}

static Status sigmoid_infer(Node *node, Arena *arena) {
  if (!dtype_is_float(node->inputs[0]->type.dtype) || !type_equal(&node->inputs[0]->type, &node->inputs[1]->type))
    FAIL(MALFORMED, node->name, "dY and Y must be floats of one type");
  node->outputs[0]->type = node->inputs[0]->type;
  return NULL;
}

static Status sigmoid_ref(const KernelContext *c) {
  for (int64_t i = 0, n = out_elems(c, 0); i < n; i++) out_f(c, 0, i, in_f(c, 0, i) * in_f(c, 1, i) * (1 - in_f(c, 1, i)));
  return NULL;
}

static Status sigmoid_cpu(const KernelContext *c) {
  const float *dy = c->in[0].data, *y = c->in[1].data;
  float *dx = c->out[0].data;
  for (int64_t i = 0, n = out_elems(c, 0); i < n; i++) dx[i] = dy[i] * y[i] * (1 - y[i]);
  return NULL;
}

const Op op_ort_SigmoidGrad = {
    .name = "SigmoidGrad", .domain = "com.microsoft", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .flags = OP_ELEMENTWISE,
    .infer = sigmoid_infer, .run_ref = sigmoid_ref, .run_cpu = sigmoid_cpu, .alias = over_first};

static Status dropout_infer(Node *node, Arena *arena) {
  const Type *dy = &node->inputs[0]->type, *mask = &node->inputs[1]->type;
  if (!dtype_is_float(dy->dtype) || mask->dtype != DTYPE_BOOL || !type_same_shape(dy, mask))
    FAIL(MALFORMED, node->name, "the mask must be a bool for each element of dY");
  for (int i = 2; i < node->n_inputs; i++)
    if (node->inputs[i] && type_elems(&node->inputs[i]->type) != 1) FAIL(MALFORMED, node->name, "'%s' must be one element", node->inputs[i]->name);
  node->outputs[0]->type = *dy;
  return NULL;
}

static Status dropout_ref(const KernelContext *c) {
  bool training = !has_input(c, 3) || in_i(c, 3, 0);
  double ratio = has_input(c, 2) ? in_f(c, 2, 0) : 0.5;
  const bool *mask = c->in[1].data;
  if (training && !(ratio >= 0 && ratio < 1)) FAIL(MALFORMED, c->node->name, "DropoutGrad: ratio %g is outside [0,1)", ratio);
  for (int64_t i = 0, n = out_elems(c, 0); i < n; i++) {
    double dy = in_f(c, 0, i);
    out_f(c, 0, i, !training ? dy : mask[i] ? dy / (1 - ratio) : 0);
  }
  return NULL;
}

const Op op_ort_DropoutGrad = {
    .name = "DropoutGrad", .domain = "com.microsoft", .min_inputs = 2, .max_inputs = 4, .min_outputs = 1, .max_outputs = 1, .infer = dropout_infer,
    .run_ref = dropout_ref, .alias = over_first};

// ---- MaxPoolGrad(dY, Indices): the shape of X is known where MaxPool made the indices -------------------------------------------

static Status pool_infer(Node *node, Arena *arena) {
  const Node *from = node->inputs[1]->producer;
  if (!type_same_shape(&node->inputs[0]->type, &node->inputs[1]->type) || node->inputs[1]->type.dtype != DTYPE_I64)
    FAIL(MALFORMED, node->name, "the indices must be an int64 for each element of dY");
  if (!from || from->op != &op_MaxPool) FAIL(UNSUPPORTED, node->name, "MaxPoolGrad: '%s' must come from MaxPool", node->inputs[1]->name);
  node->outputs[0]->type = from->inputs[0]->type;
  node->outputs[0]->type.dtype = node->inputs[0]->type.dtype;
  return NULL;
}

static Status pool_ref(const KernelContext *c) {
  int64_t elems = out_elems(c, 0);
  if (elems) memset(c->out[0].data, 0, (size_t)type_bytes(c->out[0].type));
  for (int64_t i = 0, n = in_elems(c, 0); i < n; i++) {
    int64_t at = in_i(c, 1, i);
    if (at < 0 || at >= elems) continue;               // a window of padding only
    out_f(c, 0, at, element_read(c->out[0].data, c->out[0].type->dtype, at) + in_f(c, 0, i));
  }
  return NULL;
}

typedef struct PoolAttrs { int64_t storage_order, ceil_mode; const char *auto_pad; AttrInts dilations, kernel_shape, pads, strides; } PoolAttrs;
static const AttrSpec pool_attrs[] = {
    {"auto_pad", ATTR_STRING, offsetof(PoolAttrs, auto_pad), .default_string = "NOTSET", .help = "MaxPool's"},
    {"ceil_mode", ATTR_INT, offsetof(PoolAttrs, ceil_mode), .help = "MaxPool's"},
    {"dilations", ATTR_INTS, offsetof(PoolAttrs, dilations), .help = "MaxPool's"},
    {"kernel_shape", ATTR_INTS, offsetof(PoolAttrs, kernel_shape), .help = "MaxPool's"},
    {"pads", ATTR_INTS, offsetof(PoolAttrs, pads), .help = "MaxPool's"},
    {"storage_order", ATTR_INT, offsetof(PoolAttrs, storage_order), .min = 0, .max = 0, .help = "MaxPool's; row-major only"},
    {"strides", ATTR_INTS, offsetof(PoolAttrs, strides), .help = "MaxPool's"},
    {0},
};
const Op op_ort_MaxPoolGrad = {
    .name = "MaxPoolGrad", .domain = "com.microsoft", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .attrs = pool_attrs,
    .attrs_bytes = sizeof(PoolAttrs), .infer = pool_infer, .run_ref = pool_ref};

// ---- The Gelu family, with or without a bias along the last axis ----------------------------------------------------------------

enum { NONE = -1, BLOCK = 256 };
static const struct GeluForm { const Op *row; const char *function; int8_t x, dy, bias; } gelus[] = {
    {&op_ort_Gelu, "Gelu", 0, NONE, NONE}, {&op_ort_FastGelu, "GeluTanh", 0, NONE, 1}, {&op_ort_BiasGelu, "Gelu", 0, NONE, 1},
    {&op_ort_QuickGelu, "Swish", 0, NONE, NONE}, {&op_ort_GeluGrad, "Gelu", 1, 0, NONE}, {&op_ort_FastGeluGrad, "GeluTanh", 1, 0, 2},
    {&op_ort_QuickGeluGrad, "Swish", 1, 0, NONE}, {&op_ort_BiasGeluGrad_dX, "Gelu", 1, 0, 2}, {&op_ort_BiasFastGeluGrad_dX, "GeluTanh", 1, 0, 2}};

static const struct GeluForm *gelu_of(const Node *node) {
  const struct GeluForm *g = gelus;
  while (g->row != node->op) g++;
  return g;
}

static Status gelu_infer(Node *node, Arena *arena) {
  const struct GeluForm *g = gelu_of(node);
  const Type *x = &node->inputs[g->x]->type;
  if (!dtype_is_float(x->dtype) || (g->dy >= 0 && !type_equal(x, &node->inputs[g->dy]->type)))
    FAIL(MALFORMED, node->name, "X and dY must be floats of one type");
  if (g->bias >= 0 && node_has_input(node, g->bias)) {
    const Type *bias = &node->inputs[g->bias]->type;
    if (bias->dtype != x->dtype || bias->rank != 1 || !x->rank || bias->dims[0] != x->dims[x->rank - 1])
      FAIL(MALFORMED, node->name, "the bias '%s' must be a vector along the last axis of X", node->inputs[g->bias]->name);
  }
  node->outputs[0]->type = *x;
  return NULL;
}

// One block of at most BLOCK elements through our row.
static Status gelu_block(const KernelContext *c, const struct GeluForm *g, const void *x, const void *dy, void *y, int64_t n, bool reference) {
  Type type = type_vector(c->out[0].type->dtype, n);
  const Op *to = g->dy >= 0 ? &op_ActivationGrad : !strcmp(g->function, "Swish") ? &op_Swish : &op_Gelu;
  Adapted a = {.node = {.op = to, .name = c->node->name, .attrs = &a.attrs}};
  if (to == &op_Gelu) *(const char **)adapted_attr(&a, "approximate") = strcmp(g->function, "Gelu") ? "tanh" : "none";
  else *(float *)adapted_attr(&a, "alpha") = strcmp(g->function, "Swish") ? 0 : ((const OrtAttrs *)c->node->attrs)->alpha;
  if (to == &op_ActivationGrad) *(const char **)adapted_attr(&a, "function") = g->function;
  Tensor in[2] = {{.data = (void *)x, .type = &type}, {.data = (void *)dy, .type = &type}}, out = {.data = y, .type = &type};
  KernelContext one = *c;
  one.node = &a.node;
  one.in = in;
  one.n_in = g->dy >= 0 ? 2 : 1;
  one.out = &out;
  one.n_out = 1;
  return reference ? to->run_ref(&one) : to->run_cpu(&one);
}

static Status gelu_run(const KernelContext *c, bool reference) {
  const struct GeluForm *g = gelu_of(c->node);
  Dtype dtype = c->out[0].type->dtype;
  int64_t n = out_elems(c, 0), bytes = dtype_bytes(dtype);
  bool biased = g->bias >= 0 && has_input(c, g->bias);
  double sums[BLOCK];
  for (int64_t from = 0; from < n; from += BLOCK) {
    int64_t block = n - from < BLOCK ? n - from : BLOCK;
    const char *x = (const char *)c->in[g->x].data + from * bytes, *dy = g->dy >= 0 ? (const char *)c->in[g->dy].data + from * bytes : NULL;
    if (biased) {
      int64_t columns = in_elems(c, g->bias);
      for (int64_t i = 0; i < block; i++) element_write(sums, dtype, i, in_f(c, g->x, from + i) + in_f(c, g->bias, (from + i) % columns));
      x = (const char *)sums;
    }
    TRY(gelu_block(c, g, x, dy, (char *)c->out[0].data + from * bytes, block, reference));
  }
  return NULL;
}
static Status gelu_ref(const KernelContext *c) { return gelu_run(c, true); }
static Status gelu_cpu(const KernelContext *c) { return gelu_run(c, false); }

static bool gelu_alias(const Node *node, int output, int input, Alias *out) {
  if (input == gelu_of(node)->bias) return false;
  *out = (Alias){.kind = ALIAS_INPLACE, .input = input};
  return true;
}

#define GELU(name_, table, least, most)                                                                                                      \
  const Op op_ort_##name_ = {.name = #name_, .domain = "com.microsoft", .min_inputs = least, .max_inputs = most, .min_outputs = 1,            \
                             .max_outputs = 1, .attrs = table, .attrs_bytes = sizeof(OrtAttrs), .infer = gelu_infer, .run_ref = gelu_ref,     \
                             .run_cpu = gelu_cpu, .alias = gelu_alias}
GELU(Gelu, NULL, 1, 1);
GELU(FastGelu, NULL, 1, 2);
GELU(BiasGelu, NULL, 2, 2);
GELU(QuickGelu, quick_attrs, 1, 1);
GELU(GeluGrad, NULL, 2, 2);
GELU(FastGeluGrad, NULL, 2, 3);
GELU(QuickGeluGrad, quick_attrs, 2, 2);
GELU(BiasGeluGrad_dX, NULL, 3, 3);
GELU(BiasFastGeluGrad_dX, NULL, 3, 3);
