#include "onnx_synth.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "onnx_build.h"

static const double DEVIATION = 0.02;          // of matrices, as GPT-2 starts
static const int64_t ELEMS_MAX = INT64_C(1) << 38;   // of one weight: 2^40 bytes is what a tensor may have (type_check)

// Names below one module: "model.layers.3." of weights, "/model/layers.3/" of nodes.
typedef struct Module { OnnxBuild *b; Arena *arena; const char *params, *nodes; } Module;

static Module inside(const Module *outer, const char *module) {
  return (Module){outer->b, outer->arena, arena_printf(outer->arena, "%s%s.", outer->params, module), arena_printf(outer->arena, "%s%s/", outer->nodes, module)};
}

static const char *param_name(const Module *s, const char *name) { return arena_printf(s->arena, "%s%s", s->params, name); }
static const char *node_name(const Module *s, const char *name) { return arena_printf(s->arena, "%s%s", s->nodes, name); }

static const char *matrix(const Module *s, const char *name, int64_t rows, int64_t columns) {
  return onnx_build_weight(s->b, param_name(s, name), 2, (int64_t[]){rows, columns}, 0, DEVIATION);
}
static const char *vector(const Module *s, const char *name, int64_t n, double value) { return onnx_build_weight(s->b, param_name(s, name), 1, &n, value, 0); }

// A node called after its operator, or `as`.
static const char *op_as(const Module *s, const char *op, const char *as, const char *const *inputs, const AttrInit *attrs) {
  return onnx_build_node(s->b, op, node_name(s, as), inputs, attrs);
}
static const char *op1(const Module *s, const char *op, const char *const *inputs) { return op_as(s, op, op, inputs, NULL); }

static const char *ints(const Module *s, const char *name, const int64_t *items, int64_t n) { return onnx_build_ints(s->b, node_name(s, name), items, n); }
#define INTS(s, name, ...) ints(s, name, (const int64_t[]){__VA_ARGS__}, (int64_t)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))

static const char *linear(const Module *outer, const char *module, const char *x, int64_t in, int64_t out, bool bias) {
  Module s = inside(outer, module);
  const char *y = op1(&s, "MatMul", NAMES(x, matrix(&s, "weight", in, out)));
  return bias ? op1(&s, "Add", NAMES(y, vector(&s, "bias", out, 0))) : y;
}

// [batch, seq, heads x size] -> [batch, heads, seq, size]; `keys`: -> [batch, heads, size, seq].
static const char *split_heads(const Module *s, const char *as, const char *x, int64_t heads, int64_t size, bool keys) {
  Module own = inside(s, as);
  const char *wide = op1(&own, "Reshape", NAMES(x, INTS(&own, "shape", 0, 0, heads, size)));
  return op_as(&own, "Transpose", "Transpose", NAMES(wide), ATTRS(A_INTS("perm", ((const int64_t[]){0, 2, keys ? 3 : 1, keys ? 1 : 3}), 4)));
}

// q [.., seq, size], k transposed [.., size, seq], v -> [batch, seq, heads x size]. Position i sees positions up to i.
static const char *attend(const Module *s, const char *q, const char *k, const char *v, const char *mask, int64_t size, int64_t width) {
  const char *scores = op_as(s, "MatMul", "MatMul_scores", NAMES(q, k), NULL);
  scores = op_as(s, "Div", "Div", NAMES(scores, onnx_build_float(s->b, node_name(s, "root"), sqrt((double)size))), NULL);
  scores = op_as(s, "Add", "Add_mask", NAMES(scores, mask), NULL);
  const char *shares = op_as(s, "Softmax", "Softmax", NAMES(scores), ATTRS(A_INT("axis", -1)));
  const char *mixed = op_as(s, "MatMul", "MatMul_values", NAMES(shares, v), NULL);
  mixed = op_as(s, "Transpose", "Transpose", NAMES(mixed), ATTRS(A_INTS("perm", ((const int64_t[]){0, 2, 1, 3}), 4)));
  return op1(s, "Reshape", NAMES(mixed, INTS(s, "shape", 0, 0, width)));
}

// [seq, seq]: 0 where column <= row, else a large negative number: computed in the graph, since a constant would grow with the square of seq.
static const char *causal_mask(const Module *outer, int64_t seq) {
  Module s = inside(outer, "mask");
  const char *start = onnx_build_float(s.b, node_name(&s, "start"), 0), *end = onnx_build_float(s.b, node_name(&s, "end"), (double)seq);
  const char *places = op1(&s, "Range", NAMES(start, end, onnx_build_float(s.b, node_name(&s, "step"), 1)));
  const char *rows = op1(&s, "Unsqueeze", NAMES(places, INTS(&s, "axes", 1)));
  const char *hidden = op1(&s, "Greater", NAMES(places, rows));
  return op1(&s, "Where", NAMES(hidden, onnx_build_float(s.b, node_name(&s, "never"), -1e9), onnx_build_float(s.b, node_name(&s, "zero"), 0)));
}

static void cross_entropy(const Module *s, const char *scores, const char *labels, int64_t classes, bool tokens) {
  if (tokens) {
    scores = op_as(s, "Reshape", "Reshape_scores", NAMES(scores, INTS(s, "scores_shape", -1, classes)), NULL);
    labels = op_as(s, "Reshape", "Reshape_labels", NAMES(labels, INTS(s, "labels_shape", -1)), NULL);
  }
  (void)op_as(s, "SoftmaxCrossEntropyLoss", "loss", NAMES(scores, labels), ATTRS(A_STRING("reduction", "mean")));
  Type type = type_scalar(DTYPE_F32);
  onnx_build_output(s->b, "loss", &type);
}

static const char *token_input(const Module *s, const SynthSpec *spec, const char *name) {
  Type type = type_make(DTYPE_I64, 2, (int64_t[]){spec->batch, spec->seq});
  return onnx_build_input(s->b, name, &type, spec->batch ? NULL : "batch");
}

// ---- GPT --------------------------------------------------------------------------------------------------------------------------

static const char *layer_norm(const Module *outer, const char *module, const char *x, int64_t width) {
  Module s = inside(outer, module);
  return op_as(&s, "LayerNormalization", "LayerNormalization", NAMES(x, vector(&s, "weight", width, 1), vector(&s, "bias", width, 0)),
               ATTRS(A_INT("axis", -1), A_FLOAT("epsilon", 1e-5f)));
}

static const char *gpt_layer(const Module *outer, const SynthSpec *spec, int64_t index, const char *x, const char *mask) {
  int64_t d = spec->d_model, size = d / spec->heads;
  Module s = inside(outer, arena_printf(outer->arena, "h.%" PRId64, index)), attn = inside(&s, "attn"), mlp = inside(&s, "mlp");
  const char *qkv = linear(&attn, "c_attn", layer_norm(&s, "ln_1", x, d), d, 3 * d, true), *parts[3];
  onnx_build_nodes(s.b, "Split", node_name(&attn, "Split"), NAMES(qkv), ATTRS(A_INT("axis", -1), A_INT("num_outputs", 3)), 3, parts);
  const char *q = split_heads(&attn, "q", parts[0], spec->heads, size, false), *k = split_heads(&attn, "k", parts[1], spec->heads, size, true);
  const char *v = split_heads(&attn, "v", parts[2], spec->heads, size, false);
  const char *mixed = linear(&attn, "c_proj", attend(&attn, q, k, v, mask, size, d), d, d, true);
  x = op_as(&s, "Add", "Add", NAMES(x, mixed), NULL);
  const char *wide = linear(&mlp, "c_fc", layer_norm(&s, "ln_2", x, d), d, spec->d_ff, true);
  const char *active = op_as(&mlp, "Gelu", "Gelu", NAMES(wide), ATTRS(A_STRING("approximate", "tanh")));
  return op_as(&s, "Add", "Add_1", NAMES(x, linear(&mlp, "c_proj", active, spec->d_ff, d, true)), NULL);
}

static void build_gpt(const Module *root, const SynthSpec *spec) {
  int64_t d = spec->d_model;
  Module s = inside(root, "transformer");
  const char *ids = token_input(root, spec, "input_ids"), *labels = token_input(root, spec, "labels");
  const char *table = matrix(&s, "wte.weight", spec->vocab, d), *places = matrix(&s, "wpe.weight", spec->seq, d);
  const char *x = op_as(&s, "Gather", "wte/Gather", NAMES(table, ids), NULL);
  x = op_as(&s, "Add", "Add", NAMES(x, places), NULL);
  const char *mask = causal_mask(&s, spec->seq);
  for (int64_t l = 0; l < spec->layers; l++) x = gpt_layer(&s, spec, l, x, mask);
  x = layer_norm(&s, "ln_f", x, d);
  const char *scores = NULL;
  if (spec->untied) {
    scores = linear(root, "lm_head", x, d, spec->vocab, false);
  } else {
    const char *head = op_as(root, "Transpose", "lm_head/Transpose", NAMES(table), ATTRS(A_INTS("perm", ((const int64_t[]){1, 0}), 2)));
    scores = op_as(root, "MatMul", "lm_head/MatMul", NAMES(x, head), NULL);
  }
  cross_entropy(root, scores, labels, spec->vocab, true);
}

// ---- Llama ------------------------------------------------------------------------------------------------------------------------

static const char *rms_norm(const Module *outer, const char *module, const char *x, int64_t width) {
  Module s = inside(outer, module);
  const char *square = op1(&s, "Pow", NAMES(x, onnx_build_float(s.b, node_name(&s, "two"), 2)));
  const char *mean = op_as(&s, "ReduceMean", "ReduceMean", NAMES(square, INTS(&s, "axes", -1)), ATTRS(A_INT("keepdims", 1)));
  const char *root = op1(&s, "Sqrt", NAMES(op1(&s, "Add", NAMES(mean, onnx_build_float(s.b, node_name(&s, "epsilon"), 1e-5)))));
  return op1(&s, "Mul", NAMES(vector(&s, "weight", width, 1), op1(&s, "Div", NAMES(x, root))));
}

// cos and sin of position x frequency, [seq, size], each frequency twice: computed in the graph from [size / 2] frequencies.
static void rotary_tables(const Module *outer, int64_t seq, int64_t size, const char **cosine, const char **sine) {
  Module s = inside(outer, "rotary_emb");
  float *frequencies = ARENA_ARRAY(s.arena, float, size);
  for (int64_t i = 0; i < size; i++) frequencies[i] = (float)pow(10000, -2.0 * (double)(i % (size / 2)) / (double)size);
  const char *start = onnx_build_float(s.b, node_name(&s, "start"), 0), *end = onnx_build_float(s.b, node_name(&s, "end"), (double)seq);
  const char *places = op1(&s, "Range", NAMES(start, end, onnx_build_float(s.b, node_name(&s, "step"), 1)));
  const char *rows = op1(&s, "Unsqueeze", NAMES(places, INTS(&s, "axes", 1)));
  const char *angles = op1(&s, "Mul", NAMES(rows, onnx_build_floats(s.b, node_name(&s, "inv_freq"), 1, &size, frequencies)));
  *cosine = op1(&s, "Cos", NAMES(angles));
  *sine = op1(&s, "Sin", NAMES(angles));
}

// x cos + (-second half, first half) sin; x is [batch, heads, seq, size].
static const char *rotate(const Module *outer, const char *module, const char *x, int64_t size, const char *cosine, const char *sine) {
  Module s = inside(outer, module);
  const char *axis = INTS(&s, "axis", 3), *zero = INTS(&s, "zero", 0), *half = INTS(&s, "half", size / 2), *whole = INTS(&s, "whole", size);
  const char *low = op_as(&s, "Slice", "Slice", NAMES(x, zero, half, axis), NULL), *high = op_as(&s, "Slice", "Slice_1", NAMES(x, half, whole, axis), NULL);
  const char *turned = op_as(&s, "Concat", "Concat", NAMES(op1(&s, "Neg", NAMES(high)), low), ATTRS(A_INT("axis", -1)));
  return op1(&s, "Add", NAMES(op_as(&s, "Mul", "Mul", NAMES(x, cosine), NULL), op_as(&s, "Mul", "Mul_1", NAMES(turned, sine), NULL)));
}

// [batch, kv heads, seq, size] -> [batch, heads, seq, size]: each head serves several queries.
static const char *repeat_heads(const Module *outer, const char *module, const char *x, const SynthSpec *spec, int64_t size) {
  Module s = inside(outer, module);
  int64_t times = spec->heads / spec->kv_heads;
  if (times == 1) return x;
  const char *wide = op1(&s, "Unsqueeze", NAMES(x, INTS(&s, "axes", 2)));
  wide = op1(&s, "Expand", NAMES(wide, INTS(&s, "times", 1, 1, times, 1, 1)));
  return op1(&s, "Reshape", NAMES(wide, INTS(&s, "shape", 0, spec->heads, spec->seq, size)));
}

static const char *llama_attention(const Module *outer, const SynthSpec *spec, const char *x, const char *mask, const char *cosine, const char *sine) {
  Module s = inside(outer, "self_attn");
  int64_t d = spec->d_model, size = d / spec->heads, kv = spec->kv_heads * size;
  const char *q = split_heads(&s, "q", linear(&s, "q_proj", x, d, d, false), spec->heads, size, false);
  const char *k = split_heads(&s, "k", linear(&s, "k_proj", x, d, kv, false), spec->kv_heads, size, false);
  const char *v = split_heads(&s, "v", linear(&s, "v_proj", x, d, kv, false), spec->kv_heads, size, false);
  q = rotate(&s, "rotary_q", q, size, cosine, sine);
  k = repeat_heads(&s, "repeat_k", rotate(&s, "rotary_k", k, size, cosine, sine), spec, size);
  v = repeat_heads(&s, "repeat_v", v, spec, size);
  k = op_as(&s, "Transpose", "Transpose_k", NAMES(k), ATTRS(A_INTS("perm", ((const int64_t[]){0, 1, 3, 2}), 4)));
  return linear(&s, "o_proj", attend(&s, q, k, v, mask, size, d), d, d, false);
}

static const char *llama_mlp(const Module *outer, const SynthSpec *spec, const char *x) {
  Module s = inside(outer, "mlp"), act = inside(&s, "act_fn");
  const char *gate = linear(&s, "gate_proj", x, spec->d_model, spec->d_ff, false), *up = linear(&s, "up_proj", x, spec->d_model, spec->d_ff, false);
  const char *active = op1(&act, "Mul", NAMES(gate, op1(&act, "Sigmoid", NAMES(gate))));
  return linear(&s, "down_proj", op1(&s, "Mul", NAMES(active, up)), spec->d_ff, spec->d_model, false);
}

static void build_llama(const Module *root, const SynthSpec *spec) {
  Module model = inside(root, "model");
  const char *ids = token_input(root, spec, "input_ids"), *labels = token_input(root, spec, "labels"), *cosine, *sine;
  const char *x = op_as(&model, "Gather", "embed_tokens/Gather", NAMES(matrix(&model, "embed_tokens.weight", spec->vocab, spec->d_model), ids), NULL);
  const char *mask = causal_mask(&model, spec->seq);
  rotary_tables(&model, spec->seq, spec->d_model / spec->heads, &cosine, &sine);
  for (int64_t l = 0; l < spec->layers; l++) {
    Module s = inside(&model, arena_printf(root->arena, "layers.%" PRId64, l));
    const char *mixed = llama_attention(&s, spec, rms_norm(&s, "input_layernorm", x, spec->d_model), mask, cosine, sine);
    x = op_as(&s, "Add", "Add", NAMES(x, mixed), NULL);
    x = op_as(&s, "Add", "Add_1", NAMES(x, llama_mlp(&s, spec, rms_norm(&s, "post_attention_layernorm", x, spec->d_model))), NULL);
  }
  x = rms_norm(&model, "norm", x, spec->d_model);
  cross_entropy(root, linear(root, "lm_head", x, spec->d_model, spec->vocab, false), labels, spec->vocab, true);
}

// ---- MLP and CNN ------------------------------------------------------------------------------------------------------------------

static const char *gemm(const Module *outer, const char *module, const char *x, int64_t in, int64_t out) {
  Module s = inside(outer, module);
  const char *w = onnx_build_weight(s.b, param_name(&s, "weight"), 2, (int64_t[]){out, in}, 0, sqrt(2.0 / (double)in));
  return op_as(&s, "Gemm", "Gemm", NAMES(x, w, vector(&s, "bias", out, 0)), ATTRS(A_INT("transB", 1)));
}

static const char *label_input(const Module *s, const SynthSpec *spec) {
  Type type = type_make(DTYPE_I64, 1, &spec->batch);
  return onnx_build_input(s->b, "labels", &type, spec->batch ? NULL : "batch");
}

static void build_mlp(const Module *root, const SynthSpec *spec) {
  Type type = type_make(DTYPE_F32, 2, (int64_t[]){spec->batch, spec->d_model});
  const char *x = onnx_build_input(root->b, "x", &type, spec->batch ? NULL : "batch"), *labels = label_input(root, spec);
  for (int64_t l = 0; l < spec->layers; l++) {
    Module s = inside(root, arena_printf(root->arena, "layers.%" PRId64, l));
    x = op1(&s, "Relu", NAMES(gemm(&s, "linear", x, spec->d_model, spec->d_model)));
  }
  cross_entropy(root, gemm(root, "head", x, spec->d_model, spec->vocab), labels, spec->vocab, false);
}

static const char *conv_layer(const Module *outer, int64_t index, const char *x, int64_t in, int64_t out, int64_t stride) {
  Module s = inside(outer, arena_printf(outer->arena, "layers.%" PRId64, index)), conv = inside(&s, "conv"), bn = inside(&s, "bn");
  const char *w = onnx_build_weight(s.b, param_name(&conv, "weight"), 4, (int64_t[]){out, in, 3, 3}, 0, sqrt(2.0 / (9.0 * (double)in)));
  const int64_t pads[] = {1, 1, 1, 1}, strides[] = {stride, stride}, kernel[] = {3, 3};
  x = op_as(&conv, "Conv", "Conv", NAMES(x, w), ATTRS(A_INTS("pads", pads, 4), A_INTS("strides", strides, 2), A_INTS("kernel_shape", kernel, 2)));
  const char *outputs[3], *scale = vector(&bn, "weight", out, 1), *bias = vector(&bn, "bias", out, 0);
  const char *mean = vector(&bn, "running_mean", out, 0), *var = vector(&bn, "running_var", out, 1);
  onnx_build_nodes(s.b, "BatchNormalization", node_name(&bn, "BatchNormalization"), NAMES(x, scale, bias, mean, var), ATTRS(A_INT("training_mode", 1)), 3, outputs);
  return op1(&s, "Relu", NAMES(outputs[0]));
}

static void build_cnn(const Module *root, const SynthSpec *spec) {
  enum { STAGES = 4 };
  Type type = type_make(DTYPE_F32, 4, (int64_t[]){spec->batch, 3, spec->image, spec->image});
  const char *x = onnx_build_input(root->b, "x", &type, spec->batch ? NULL : "batch"), *labels = label_input(root, spec);
  int64_t channels = 3, side = spec->image, stage_layers = (spec->layers + STAGES - 1) / STAGES;
  for (int64_t l = 0; l < spec->layers; l++) {
    bool narrows = l && l % stage_layers == 0 && side >= 4;
    int64_t out = !l ? spec->d_model : narrows ? 2 * channels : channels;
    x = conv_layer(root, l, x, channels, out, narrows ? 2 : 1);
    if (narrows) side = (side + 1) / 2;
    channels = out;
  }
  x = op1(root, "Flatten", NAMES(op1(root, "GlobalAveragePool", NAMES(x))));
  cross_entropy(root, gemm(root, "fc", x, channels, spec->vocab), labels, spec->vocab, false);
}

// ---- The whole --------------------------------------------------------------------------------------------------------------------

static const struct SynthModel { const char *name; void (*build)(const Module *, const SynthSpec *); bool tokens; } models[] = {
    {"gpt", build_gpt, true}, {"llama", build_llama, true}, {"mlp", build_mlp, false}, {"cnn", build_cnn, false}};
enum { N_MODELS = sizeof models / sizeof models[0] };

static Status check_range(const char *name, int64_t value, int64_t max) {
  if (value < 1 || value > max) FAIL(USAGE, NULL, "--%s %" PRId64 ": 1 to %" PRId64 " is possible", name, value, max);
  return STATUS_OK;
}

static Status check_spec(const SynthSpec *s, bool tokens) {
  TRY(check_range("layers", s->layers, 1 << 20));
  TRY(check_range("d-model", s->d_model, INT64_C(1) << 24));
  TRY(check_range("vocab", s->vocab, INT64_C(1) << 30));
  if (s->batch < 0 || s->batch > INT64_C(1) << 24) FAIL(USAGE, NULL, "--batch %" PRId64 " is too large", s->batch);
  if (!tokens && !strcmp(s->model, "cnn")) TRY(check_range("d-model", s->d_model, 1 << 13));     // doubled with each stage
  if (!tokens) return check_range("image", s->image, 1 << 16);
  TRY(check_range("heads", s->heads, s->d_model));
  TRY(check_range("kv-heads", s->kv_heads, s->heads));
  TRY(check_range("seq", s->seq, INT64_C(1) << 24));
  TRY(check_range("d-ff", s->d_ff, INT64_C(1) << 26));
  bool llama = !strcmp(s->model, "llama");
  if (s->d_model % s->heads || (llama && s->d_model / s->heads % 2))
    FAIL(USAGE, NULL, "--heads %" PRId64 " must divide --d-model %" PRId64 "%s", s->heads, s->d_model, llama ? " into heads of even size (rotary positions)" : "");
  if (s->heads % s->kv_heads) FAIL(USAGE, NULL, "--kv-heads %" PRId64 " must divide --heads %" PRId64, s->kv_heads, s->heads);
  if (s->kv_heads != s->heads && !llama) FAIL(USAGE, NULL, "--kv-heads is for llama; a gpt has as many as --heads");
  int64_t wide = s->d_ff > s->vocab ? s->d_ff : s->vocab;
  if (wide < 3 * s->d_model) wide = 3 * s->d_model;
  if (wide > ELEMS_MAX / s->d_model) FAIL(USAGE, NULL, "a weight of %" PRId64 " x %" PRId64 " elements is too large", s->d_model, wide);
  return STATUS_OK;
}

static Status write_guarded(const SynthSpec *spec, const struct SynthModel *model, const char *path, Arena *arena, SynthResult *out) {
  ARENA_GUARD(arena);
  Module root = {onnx_build_create(arena, spec->model), arena, "", "/"};
  model->build(&root, spec);
  Status status = onnx_build_write(root.b, path, spec->values, spec->seed);
  if (!status) *out = (SynthResult){onnx_build_weight_elems(root.b), onnx_build_node_count(root.b)};
  ARENA_RETURN(arena, status);
}

Status synth_write(const SynthSpec *given, const char *path, SynthResult *out) {
  SynthSpec spec = *given;
  const struct SynthModel *model = NULL;
  for (int i = 0; i < N_MODELS && spec.model; i++)
    if (!strcmp(models[i].name, spec.model)) model = &models[i];
  if (!model) FAIL(USAGE, NULL, "%s%s%s: gpt, llama, mlp and cnn are known", spec.model ? "'" : "no model is named", spec.model ? spec.model : "", spec.model ? "'" : "");
  if (!spec.kv_heads) spec.kv_heads = spec.heads;
  if (!spec.d_ff) spec.d_ff = strcmp(spec.model, "llama") ? 4 * spec.d_model : (8 * spec.d_model / 3 + 63) / 64 * 64;
  TRY(check_spec(&spec, model->tokens));
  Arena *arena = arena_create(0);
  if (!arena) FAIL(RESOURCE, NULL, "out of memory");
  Status status = write_guarded(&spec, model, path, arena, out);
  arena_destroy(arena);
  return status;
}
