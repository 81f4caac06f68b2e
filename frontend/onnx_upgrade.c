// Older versions of standard operators, brought to the meaning at IR_OPSET. Source: the change logs in onnx/docs/Changelog.md.
#include <inttypes.h>
#include <limits.h>
#include <string.h>

#include "import_state.h"

// ---- Taking attributes that became something else -----------------------------------------------------------------------------

static const Onnx__AttributeProto *take(Draft *draft, const char *name) {
  const OnnxAttr *a = onnx_attr(draft->from, name);
  if (!a || draft->consumed[a - draft->from->attrs] || !schema_attr(draft->schema, name)) return NULL;
  draft->consumed[a - draft->from->attrs] = true;
  return a->head;
}

static void set_input(Draft *draft, int index, Value *value) {
  Node *node = draft->node;
  if (index >= node->n_inputs) {
    Value **wider = ARENA_ARRAY(draft->import->arena, Value *, index + 1);
    memcpy(wider, node->inputs, sizeof *wider * (size_t)node->n_inputs);
    node->inputs = wider;
    node->n_inputs = index + 1;
  }
  node->inputs[index] = value;
}

static const char *hint(Draft *draft, const char *what) { return arena_printf(draft->import->arena, "%s.%s", draft->node->name, what); }

static bool ints_to_input(Draft *draft, const char *attr, int index) {
  const Onnx__AttributeProto *a = take(draft, attr);
  if (a) set_input(draft, index, import_int64s(draft->import, hint(draft, attr), a->ints, (int64_t)a->n_ints));
  return a != NULL;
}

static bool float_to_input(Draft *draft, const char *attr, int index) {
  const Onnx__AttributeProto *a = take(draft, attr);
  if (a) set_input(draft, index, import_scalar_of(draft->import, hint(draft, attr), DTYPE_F32, a->f));
  return a != NULL;
}

// A further node in front of or behind the draft's; its output is `out` or a new value.
static Value *add_node(Draft *draft, const char *op, const char *suffix, int n_inputs, Value *const *inputs, Value *out) {
  Import *import = draft->import;
  const Op *row = op_find("", op);
  if (!row) {
    import_problem(import, STATUS_UNSUPPORTED, draft->node->name, "operator %s is not supported", op);
    return NULL;
  }
  Node *node = graph_make_node(import->graph, row, hint(draft, suffix), n_inputs, inputs, out ? 0 : 1, NULL);
  node->origin = draft->node->origin;
  if (out) {
    node->n_outputs = 1;
    node->outputs = ARENA_ARRAY(import->arena, Value *, 1);
    node->outputs[0] = out;
    out->producer = node;
    out->output_index = 0;
  }
  ARENA_PUSH(import->arena, import->nodes, import->n_nodes, import->nodes_capacity, node);
  return node->outputs[0];
}

// ---- One function per change --------------------------------------------------------------------------------------------------

static void axes_to_input(Draft *draft) { ints_to_input(draft, "axes", 1); }

// Until 17 a Split without `split` cuts evenly; since 18 it must say in how many parts.
static void split_to_input(Draft *draft) {
  bool given = ints_to_input(draft, "split", 1) || (draft->node->n_inputs > 1 && draft->node->inputs[1]);
  if (!given && attr_spec(draft->node->op, "num_outputs")) attr_set(draft->import->graph, draft->node, &(AttrInit)A_INT("num_outputs", draft->node->n_outputs));
}

static void dropout_to_inputs(Draft *draft) {
  float_to_input(draft, "ratio", 1);
  import_warning(draft->import, "node '%s': Dropout before opset 12 cannot say that it is in training; it passes its input through", draft->node->name);
}

static void clip_to_inputs(Draft *draft) {
  float_to_input(draft, "min", 1);
  float_to_input(draft, "max", 2);
}

static void pad_to_inputs(Draft *draft) {
  ints_to_input(draft, "pads", 1);
  float_to_input(draft, "value", 2);
}

static void slice_to_inputs(Draft *draft) {
  ints_to_input(draft, "starts", 1);
  ints_to_input(draft, "ends", 2);
  ints_to_input(draft, "axes", 3);
}

static void topk_to_input(Draft *draft) {
  const Onnx__AttributeProto *a = take(draft, "k");
  if (a) set_input(draft, 1, import_int64s(draft->import, hint(draft, "k"), &a->i, 1));
}

// Until 19 the axis of a DFT was an attribute, 1 by default.
static void dft_axis_to_input(Draft *draft) {
  const Onnx__AttributeProto *a = take(draft, "axis");
  Value *axis = import_scalar_of(draft->import, hint(draft, "axis"), DTYPE_I64, a ? (double)a->i : 1);
  set_input(draft, 2, axis);
}

// Until 12 Softmax and its like flattened to two axes at `axis` (1 by default) and took each row: Flatten, Softmax, Reshape to the old shape.
static void softmax_of_rows(Draft *draft) {
  const Onnx__AttributeProto *a = take(draft, "axis");
  int64_t axis = a ? a->i : 1;
  Node *node = draft->node;
  if (axis == -1 || node->n_inputs != 1 || !node->inputs[0] || node->n_outputs != 1 || !node->outputs[0]) return;   // -1 is the default now
  Value *x = node->inputs[0], *y = node->outputs[0];
  Value *flat = add_node(draft, "Flatten", "flat", 1, &x, NULL);
  Value *shape = add_node(draft, "Shape", "shape", 1, &x, NULL);
  if (!flat || !shape) return;
  attr_set(draft->import->graph, flat->producer, &(AttrInit)A_INT("axis", axis));
  Value *rows = graph_add_value(draft->import->graph, hint(draft, "rows"));
  node->inputs[0] = flat;
  node->outputs[0] = rows;
  rows->producer = node;
  rows->output_index = 0;
  add_node(draft, "Reshape", "unflat", 2, (Value *[]){rows, shape}, y);
}

// Until 13 BatchNormalization was in training where it had more than one output; those behind the running statistics were never defined well.
static void batch_training(Draft *draft) {
  Node *node = draft->node;
  take(draft, "spatial");
  bool training = false;
  for (int o = 1; o < node->n_outputs; o++) training |= node->outputs[o] != NULL;
  if (training) attr_set(draft->import->graph, node, &(AttrInit)A_INT("training_mode", 1));
  if (node->n_outputs > 3) node->n_outputs = 3;
}

// Until 20 GroupNormalization had one scale and bias for a group: each channel gets its group's.
static void group_factors(Draft *draft) {
  Import *import = draft->import;
  Node *node = draft->node;
  const OnnxAttr *a = onnx_attr(draft->from, "num_groups");
  int64_t groups = a ? a->head->i : 0;
  const Type *x = node->n_inputs == 3 && node->inputs[0] ? import_type(import, node->inputs[0]) : NULL;
  if (!x) {
    if (!import->n_problems)
      import_problem(import, STATUS_UNSUPPORTED, node->name, "the channels of its input are computed from data; they must follow from shapes and constants");
    return;
  }
  int64_t channels = x->rank > 1 ? x->dims[1] : 0;
  if (groups < 1 || channels < 1 || channels > INT32_MAX || channels % groups) {
    import_problem(import, STATUS_MALFORMED, node->name, "its %" PRId64 " channels cannot be cut into %" PRId64 " groups", channels, groups);
    return;
  }
  int64_t *group_of = ARENA_ARRAY(import->arena, int64_t, channels);
  for (int64_t c = 0; c < channels; c++) group_of[c] = c / (channels / groups);
  Value *index = import_int64s(import, hint(draft, "groups"), group_of, channels);
  for (int i = 1; i < 3; i++)
    if (node->inputs[i]) set_input(draft, i, add_node(draft, "Gather", i == 1 ? "scale" : "bias", 2, (Value *[]){node->inputs[i], index}, NULL));
}

// Until 10 Resize, and Upsample before it, had no roi; the coordinates were those of `asymmetric`, rounded down.
static void resize_asymmetric(Draft *draft) {
  Node *node = draft->node;
  Graph *graph = draft->import->graph;
  const Onnx__AttributeProto *scales = take(draft, "scales");
  if (scales) {
    Weight w = {.type = type_vector(DTYPE_F32, (int64_t)scales->n_floats),
                .bytes = arena_copy(draft->import->arena, scales->floats, sizeof(float) * scales->n_floats)};
    set_input(draft, 2, import_constant(draft->import, hint(draft, "scales"), &w));
  } else if (node->n_inputs > 1) {
    set_input(draft, 2, node->inputs[1]);
  }
  if (node->n_inputs > 1) node->inputs[1] = NULL;
  attr_set(graph, node, &(AttrInit)A_STRING("coordinate_transformation_mode", "asymmetric"));
  attr_set(graph, node, &(AttrInit)A_STRING("nearest_mode", "floor"));
}

// Until 19 GridSample called its modes after images.
static void grid_modes(Draft *draft) {
  static const char *const names[][2] = {{"bilinear", "linear"}, {"bicubic", "cubic"}, {"nearest", "nearest"}};
  const Onnx__AttributeProto *mode = take(draft, "mode");
  const char *text = mode ? arena_string_n(draft->import->arena, (const char *)mode->s.data, mode->s.len) : "bilinear";
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(text, names[i][0])) text = names[i][1];
  attr_set(draft->import->graph, draft->node, &(AttrInit)A_STRING("mode", text));
}

// Until 15 RoiAlign did not shift its boxes.
static void roi_unshifted(Draft *draft) {
  attr_set(draft->import->graph, draft->node, &(AttrInit)A_STRING("coordinate_transformation_mode", "output_half_pixel"));
}

// ---- The table ----------------------------------------------------------------------------------------------------------------

// Versions from `oldest` can be read; those before `alike` need `fix`; those up to `newest` differ from IR_OPSET's in element types at most.
typedef struct Upgrade {
  const char *op;
  int oldest, alike, newest;
  void (*fix)(Draft *draft);
} Upgrade;

static const Upgrade upgrades[] = {
    {"Abs", 6, 6, 23, NULL}, {"Acos", 7, 7, 23, NULL}, {"Acosh", 9, 9, 23, NULL}, {"Add", 7, 7, 23, NULL}, {"AffineGrid", 20, 20, 23, NULL},
    {"And", 7, 7, 23, NULL}, {"ArgMax", 1, 1, 23, NULL}, {"ArgMin", 1, 1, 23, NULL}, {"Asin", 7, 7, 23, NULL}, {"Asinh", 9, 9, 23, NULL},
    {"Atan", 7, 7, 23, NULL}, {"Atanh", 9, 9, 23, NULL}, {"Attention", 23, 23, 25, NULL}, {"AveragePool", 7, 7, 23, NULL},
    {"BatchNormalization", 7, 14, 23, batch_training}, {"Bernoulli", 15, 15, 23, NULL}, {"BitCast", 26, 26, 26, NULL}, {"BitShift", 11, 11, 28, NULL},
    {"BitwiseAnd", 18, 18, 23, NULL}, {"BitwiseNot", 18, 18, 23, NULL}, {"BitwiseOr", 18, 18, 23, NULL}, {"BitwiseXor", 18, 18, 23, NULL},
    {"Cast", 6, 6, 28, NULL}, {"CastLike", 15, 15, 25, NULL}, {"Ceil", 6, 6, 23, NULL}, {"Celu", 12, 12, 28, NULL},
    {"CenterCropPad", 18, 18, 23, NULL}, {"Clip", 6, 11, 23, clip_to_inputs}, {"Compress", 9, 9, 28, NULL}, {"Concat", 4, 4, 23, NULL},
    {"Constant", 1, 1, 25, NULL}, {"ConstantOfShape", 9, 9, 25, NULL}, {"Conv", 1, 1, 23, NULL}, {"ConvInteger", 10, 10, 23, NULL},
    {"ConvTranspose", 1, 1, 23, NULL}, {"Cos", 7, 7, 23, NULL}, {"Cosh", 9, 9, 23, NULL}, {"CumProd", 26, 26, 26, NULL}, {"CumSum", 11, 11, 23, NULL},
    {"DepthToSpace", 1, 1, 28, NULL}, {"DequantizeLinear", 10, 10, 28, NULL}, {"Det", 11, 11, 23, NULL}, {"DFT", 17, 20, 23, dft_axis_to_input},
    {"Div", 7, 7, 23, NULL}, {"Dropout", 7, 12, 23, dropout_to_inputs}, {"DynamicQuantizeLinear", 11, 11, 23, NULL}, {"Einsum", 12, 12, 28, NULL},
    {"Elu", 6, 6, 23, NULL}, {"Equal", 7, 7, 23, NULL}, {"Erf", 9, 9, 23, NULL}, {"Exp", 6, 6, 23, NULL}, {"Expand", 8, 8, 23, NULL},
    {"EyeLike", 9, 9, 23, NULL}, {"Flatten", 1, 1, 25, NULL}, {"Floor", 6, 6, 23, NULL}, {"Gather", 1, 1, 23, NULL},
    {"GatherElements", 11, 11, 23, NULL}, {"GatherND", 11, 11, 23, NULL}, {"Gelu", 20, 20, 28, NULL}, {"Gemm", 7, 7, 23, NULL},
    {"GlobalAveragePool", 1, 1, 23, NULL}, {"GlobalLpPool", 2, 2, 23, NULL}, {"GlobalMaxPool", 1, 1, 23, NULL}, {"Greater", 7, 7, 23, NULL},
    {"GreaterOrEqual", 12, 12, 23, NULL}, {"GridSample", 16, 20, 23, grid_modes}, {"GroupNormalization", 18, 21, 23, group_factors},
    {"GRU", 7, 7, 23, NULL}, {"Hardmax", 1, 13, 23, softmax_of_rows}, {"HardSigmoid", 6, 6, 23, NULL}, {"HardSwish", 14, 14, 23, NULL},
    {"Identity", 1, 1, 25, NULL}, {"InstanceNormalization", 6, 6, 23, NULL}, {"IsInf", 10, 10, 23, NULL}, {"IsNaN", 9, 9, 23, NULL},
    {"LeakyRelu", 6, 6, 23, NULL}, {"Less", 7, 7, 23, NULL}, {"LessOrEqual", 12, 12, 23, NULL}, {"LinearAttention", 27, 27, 27, NULL},
    {"Log", 6, 6, 23, NULL},
    {"LogSoftmax", 1, 13, 23, softmax_of_rows}, {"LpNormalization", 1, 1, 23, NULL}, {"LpPool", 2, 2, 23, NULL}, {"LRN", 1, 1, 23, NULL},
    {"LSTM", 7, 7, 23, NULL}, {"MatMul", 1, 1, 23, NULL}, {"MatMulInteger", 10, 10, 23, NULL}, {"Max", 6, 6, 23, NULL}, {"MaxPool", 1, 1, 23, NULL},
    {"MaxRoiPool", 1, 1, 23, NULL}, {"NonMaxSuppression", 10, 10, 23, NULL}, {"TfIdfVectorizer", 9, 9, 23, NULL},
    {"MaxUnpool", 9, 9, 23, NULL}, {"Mean", 6, 6, 23, NULL}, {"MeanVarianceNormalization", 9, 9, 23, NULL}, {"Min", 6, 6, 23, NULL},
    {"Mish", 18, 18, 23, NULL}, {"Mod", 10, 10, 28, NULL}, {"Mul", 7, 7, 23, NULL}, {"Multinomial", 7, 7, 23, NULL}, {"Neg", 6, 6, 23, NULL},
    {"NegativeLogLikelihoodLoss", 12, 12, 23, NULL}, {"NonZero", 9, 9, 23, NULL}, {"Not", 1, 1, 23, NULL}, {"OneHot", 9, 9, 28, NULL},
    {"Or", 7, 7, 23, NULL}, {"Pad", 2, 11, 25, pad_to_inputs}, {"Pow", 7, 7, 23, NULL}, {"PRelu", 7, 7, 23, NULL}, {"QLinearConv", 10, 10, 23, NULL},
    {"QLinearMatMul", 10, 10, 23, NULL}, {"QuantizeLinear", 10, 10, 28, NULL}, {"RandomNormal", 1, 1, 23, NULL}, {"RandomNormalLike", 1, 1, 23, NULL},
    {"RandomUniform", 1, 1, 23, NULL}, {"RandomUniformLike", 1, 1, 23, NULL}, {"Range", 11, 11, 27, NULL}, {"Reciprocal", 6, 6, 23, NULL},
    {"ReduceL1", 1, 18, 28, axes_to_input}, {"ReduceL2", 1, 18, 23, axes_to_input}, {"ReduceLogSum", 1, 18, 28, axes_to_input},
    {"ReduceLogSumExp", 1, 18, 28, axes_to_input}, {"ReduceMax", 1, 18, 23, axes_to_input}, {"ReduceMean", 1, 18, 23, axes_to_input},
    {"ReduceMin", 1, 18, 23, axes_to_input}, {"ReduceProd", 1, 18, 23, axes_to_input}, {"ReduceSum", 1, 13, 23, axes_to_input},
    {"ReduceSumSquare", 1, 18, 23, axes_to_input}, {"Relu", 6, 6, 23, NULL}, {"Reshape", 5, 5, 25, NULL}, {"Resize", 10, 11, 23, resize_asymmetric},
    {"ReverseSequence", 10, 10, 28, NULL}, {"RNN", 7, 7, 23, NULL}, {"RoiAlign", 10, 16, 23, roi_unshifted}, {"Round", 11, 11, 23, NULL},
    {"Scatter", 9, 9, 10, NULL}, {"ScatterElements", 11, 11, 23, NULL}, {"ScatterND", 11, 11, 23, NULL}, {"Selu", 6, 6, 23, NULL},
    {"Shape", 1, 1, 25, NULL}, {"Shrink", 9, 9, 23, NULL}, {"Sigmoid", 6, 6, 23, NULL}, {"Sign", 9, 9, 23, NULL}, {"Sin", 7, 7, 23, NULL},
    {"Sinh", 9, 9, 23, NULL}, {"Size", 1, 1, 25, NULL}, {"Slice", 1, 10, 23, slice_to_inputs}, {"Softmax", 1, 13, 23, softmax_of_rows},
    {"SoftmaxCrossEntropyLoss", 12, 12, 23, NULL}, {"Softplus", 1, 1, 23, NULL}, {"Softsign", 1, 1, 23, NULL}, {"SpaceToDepth", 1, 1, 28, NULL},
    {"Split", 2, 18, 23, split_to_input}, {"Sqrt", 6, 6, 23, NULL}, {"Squeeze", 1, 13, 25, axes_to_input}, {"Sub", 7, 7, 23, NULL},
    {"Sum", 6, 6, 23, NULL}, {"Swish", 24, 24, 24, NULL}, {"Tan", 7, 7, 23, NULL}, {"Tanh", 6, 6, 23, NULL},
    {"TensorScatter", 24, 24, 24, NULL}, {"ThresholdedRelu", 10, 10, 23, NULL}, {"Tile", 6, 6, 23, NULL}, {"TopK", 1, 10, 24, topk_to_input},
    {"Transpose", 1, 1, 25, NULL}, {"Unique", 11, 11, 28, NULL}, {"Unsqueeze", 1, 13, 25, axes_to_input}, {"Upsample", 7, 10, 9, resize_asymmetric},
    {"Where", 9, 9, 23, NULL}, {"Xor", 7, 7, 23, NULL},
};

static const Upgrade *find_upgrade(const SchemaOp *from) {
  for (size_t i = 0; i < sizeof upgrades / sizeof *upgrades; i++) {
    const Upgrade *u = &upgrades[i];
    if (!strcmp(u->op, from->name) && !*from->domain && from->since >= u->oldest && from->since <= u->newest) return u;
  }
  return NULL;
}

bool upgrade_reads(const SchemaOp *from) { return find_upgrade(from) != NULL; }

void upgrade_node(Draft *draft) {
  const SchemaOp *from = draft->schema, *to = schema_find(from->domain, from->name, *from->domain ? INT_MAX : IR_OPSET);
  if (to == from) return;
  const Upgrade *u = find_upgrade(from);
  if (u && from->since < u->alike) u->fix(draft);
  if (!u)
    import_problem(draft->import, STATUS_UNSUPPORTED, draft->node->name, "%s as defined at opset %d is not supported; its version of opset %d is", from->name,
                   from->since, to ? to->since : IR_OPSET);
}
