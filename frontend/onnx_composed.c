// Operators that the standard defines through others and that gain nothing from a row of their own: SwiGLU, CausalConvWithState, DeformConv,
// FlexAttention. They become those nodes here, so that types, gradients, fusion and the matrix library serve them.
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "import_state.h"

// One more node; NULL in, NULL out, so that a chain needs one check at its end.
static Value *one(const Site *site, const char *op, const char *suffix, int n_inputs, Value *const *inputs, const AttrInit *attrs) {
  if (n_inputs < 1 || !inputs[0]) return NULL;
  Value *const *out = site_add(site, op, suffix, n_inputs, inputs, 1, NULL, attrs);
  return out ? out[0] : NULL;
}

static Value *int64s(const Site *site, const char *what, const int64_t *items, int64_t n) {
  return import_int64s(site->import, arena_printf(site->import->arena, "%s.%s", site->label, what), items, n);
}

static void give(const Site *site, size_t output, Value *value) {
  if (value) site_bind(site, output, bound_tensor(value));
}

static float attr_f(const Site *site, const char *name, float otherwise) {
  const OnnxAttr *a = onnx_attr(site->from, name);
  return a && a->head->has_f ? a->head->f : otherwise;
}

// The type of input `index` with `rank` axes; NULL once complained of.
static const Type *input_of_rank(const Site *site, size_t index, int rank) {
  Value *v = site_tensor(site, index);
  const Type *type = v ? import_type(site->import, v) : NULL;
  if (v && !type && !site->import->n_problems)
    site_problem(site, STATUS_UNSUPPORTED, "the shape of '%s' is computed from data; it must follow from shapes and constants", v->name);
  if (!type || type->rank == rank) return type;
  site_problem(site, STATUS_MALFORMED, "'%s' has %d axes; it must have %d", v->name, type->rank, rank);
  return NULL;
}

static bool is_given(const Site *site, size_t index) { return site_input(site, index).kind != BOUND_NOTHING; }

// ---- SwiGLU(A, B) = Swish(A) B -------------------------------------------------------------------------------------------------------

static void swiglu(const Site *site) {
  Value *a = site_tensor(site, 0), *b = site_tensor(site, 1);
  const Type *gate = a ? import_type(site->import, a) : NULL, *linear = b ? import_type(site->import, b) : NULL;
  char gate_text[160], linear_text[160];
  if (gate && linear && !type_equal(gate, linear)) {
    site_problem(site, STATUS_MALFORMED, "its gate is %s and its linear input %s; they must be alike", type_text(gate, gate_text, sizeof gate_text),
                 type_text(linear, linear_text, sizeof linear_text));
    return;
  }
  Value *gated = b ? one(site, "Swish", "gate", 1, &a, ATTRS(A_FLOAT("alpha", attr_f(site, "alpha", 1)))) : NULL;
  give(site, 0, one(site, "Mul", "", 2, (Value *[]){gated, b}, NULL));
}

// ---- CausalConvWithState(X, W, bias?, past?): a depthwise Conv behind what came before --------------------------------------------------

enum { CHANNELS_FIRST_LENGTH = 2 };   // the axis of time in [batch, channels, length]

// [batch, channels, k - 1 + length]: X behind the past, or behind zeros.
static Value *with_past(const Site *site, Value *x, int64_t before) {
  if (is_given(site, 3)) {
    Value *past = site_tensor(site, 3);
    return one(site, "Concat", "joined", 2, (Value *[]){past, x}, ATTRS(A_INT("axis", CHANNELS_FIRST_LENGTH)));
  }
  if (!before) return x;
  return one(site, "Pad", "joined", 2, (Value *[]){x, int64s(site, "pads", (const int64_t[]){0, 0, before, 0, 0, 0}, 6)}, NULL);
}

static void causal_conv(const Site *site) {
  const OnnxAttr *a = onnx_attr(site->from, "activation");
  const char *activation = a && a->head->has_s ? arena_string_n(site->import->arena, (const char *)a->head->s.data, a->head->s.len) : "none";
  bool swish = !strcmp(activation, "silu") || !strcmp(activation, "swish");
  if (!swish && strcmp(activation, "none")) {
    site_problem(site, STATUS_MALFORMED, "attribute activation = \"%s\" must be silu, swish or none", activation);
    return;
  }
  const Type *x = input_of_rank(site, 0, 3), *w = input_of_rank(site, 1, 3);
  if (!x || !w) return;
  int64_t channels = w->dims[0], before = w->dims[2] - 1;
  if (channels < 1 || w->dims[1] != 1 || before < 0 || x->dims[1] != channels) {
    site_problem(site, STATUS_MALFORMED, "X has %" PRId64 " channels and W is [%" PRId64 ", %" PRId64 ", %" PRId64 "]; [channels, 1, k] is needed", x->dims[1],
                 w->dims[0], w->dims[1], w->dims[2]);
    return;
  }
  const Type *past = is_given(site, 3) ? input_of_rank(site, 3, 3) : NULL;
  if (is_given(site, 3) && (!past || past->dims[0] != x->dims[0] || past->dims[1] != channels || past->dims[2] != before)) {
    if (past) site_problem(site, STATUS_MALFORMED, "past_state must be [%" PRId64 ", %" PRId64 ", %" PRId64 "]", x->dims[0], channels, before);
    return;
  }
  Value *joined = with_past(site, site_tensor(site, 0), before), *bias = is_given(site, 2) ? site_tensor(site, 2) : NULL;
  Value *y = one(site, "Conv", "conv", bias ? 3 : 2, (Value *[]){joined, site_tensor(site, 1), bias}, ATTRS(A_INT("group", channels)));
  give(site, 0, swish ? one(site, "Swish", "activation", 1, &y, NULL) : y);
  if (site->from->head->n_output < 2 || !joined) return;
  const int64_t from = before ? -before : 0, to = before ? INT64_MAX : 0, axis = CHANNELS_FIRST_LENGTH;
  give(site, 1, one(site, "Slice", "present", 4, (Value *[]){joined, int64s(site, "from", &from, 1), int64s(site, "to", &to, 1), int64s(site, "axis", &axis, 1)},
                    NULL));
}

// ---- DeformConv(X, W, offset, B?, mask?): columns of windows whose taps have moved, times W ------------------------------------------------

typedef struct DeformConv { int64_t batch, channels, outputs, groups, taps, places; int n_axes; const int64_t *kernel, *out; } DeformConv;

static bool deform_make(const Site *site, DeformConv *d) {
  Value *first = site_tensor(site, 0);
  const Type *x = first ? import_type(site->import, first) : NULL;
  if (x && x->rank < 3) {
    site_problem(site, STATUS_MALFORMED, "'%s' has %d axes; [N, C, ...] is needed", first->name, x->rank);
    return false;
  }
  const Type *w = input_of_rank(site, 1, x ? x->rank : 4), *offset = input_of_rank(site, 2, x ? x->rank : 4);
  if (!x || !w || !offset) {
    if (!site->import->n_problems) site_problem(site, STATUS_UNSUPPORTED, "the shape of X is computed from data; it must follow from shapes and constants");
    return false;
  }
  *d = (DeformConv){.batch = x->dims[0], .channels = x->dims[1], .outputs = w->dims[0], .groups = site_attr_int(site, "group", 1), .taps = 1, .places = 1,
                    .n_axes = x->rank - 2, .kernel = w->dims + 2, .out = offset->dims + 2};
  for (int i = 0; i < d->n_axes; i++) {
    d->taps *= d->kernel[i];
    d->places *= d->out[i];
  }
  if (d->groups < 1 || d->channels != w->dims[1] * d->groups || d->outputs % d->groups) {
    site_problem(site, STATUS_MALFORMED, "group = %" PRId64 " does not fit the %" PRId64 " channels of X and W, which is [%" PRId64 ", %" PRId64 ", ...]", d->groups,
                 d->channels, w->dims[0], w->dims[1]);
    return false;
  }
  const OnnxAttr *a = onnx_attr(site->from, "kernel_shape");
  if (a && (a->head->n_ints != (size_t)d->n_axes || memcmp(a->head->ints, d->kernel, sizeof(int64_t) * (size_t)d->n_axes))) {
    site_problem(site, STATUS_MALFORMED, "attribute kernel_shape is not that of W");
    return false;
  }
  return true;
}

static AttrInit ints_of(const Site *site, const char *name) {
  const OnnxAttr *a = onnx_attr(site->from, name);
  return (AttrInit)A_INTS(name, a ? a->head->ints : NULL, a ? (int64_t)a->head->n_ints : 0);
}

static Value *reshaped(const Site *site, const char *suffix, Value *v, const int64_t *dims, int64_t n) {
  return v ? one(site, "Reshape", suffix, 2, (Value *[]){v, int64s(site, suffix, dims, n)}, NULL) : NULL;
}

static void deform_conv(const Site *site) {
  DeformConv d;
  if (!deform_make(site, &d)) return;
  Value *bias = is_given(site, 3) ? site_tensor(site, 3) : NULL, *mask = is_given(site, 4) ? site_tensor(site, 4) : NULL;
  Value *columns = one(site, "DeformColumns", "columns", mask ? 3 : 2, (Value *[]){site_tensor(site, 0), site_tensor(site, 2), mask},
                       ATTRS(A_INTS("kernel_shape", d.kernel, d.n_axes), ints_of(site, "dilations"), ints_of(site, "pads"), ints_of(site, "strides"),
                             A_INT("offset_group", site_attr_int(site, "offset_group", 1))));
  int64_t g = d.groups, depth = d.channels / g * d.taps, dims[2 + RANK_MAX] = {d.batch, d.outputs};
  columns = reshaped(site, "grouped", columns, (const int64_t[]){d.batch, g, depth, d.places}, 4);
  Value *weights = reshaped(site, "weights", site_tensor(site, 1), (const int64_t[]){g, d.outputs / g, depth}, 3);
  for (int i = 0; i < d.n_axes; i++) dims[2 + i] = d.out[i];
  Value *y = weights && columns ? one(site, "MatMul", "product", 2, (Value *[]){weights, columns}, NULL) : NULL;
  y = reshaped(site, "image", y, dims, 2 + d.n_axes);
  dims[0] = d.outputs;
  for (int i = 0; i < d.n_axes; i++) dims[1 + i] = 1;
  give(site, 0, bias && y ? one(site, "Add", "", 2, (Value *[]){y, reshaped(site, "bias", bias, dims, 1 + d.n_axes)}, NULL) : y);
}

// ---- FlexAttention(Q, K, V): softmax(score_mod(scale Q K^T)), prob_mod, times V ---------------------------------------------------------

typedef struct Flex { int64_t batch, q_heads, kv_heads, q_len, kv_len, head, v_head; Dtype dtype, inner; float scale; } Flex;

static bool flex_make(const Site *site, Flex *f) {
  const Type *q = input_of_rank(site, 0, 4), *k = input_of_rank(site, 1, 4), *v = input_of_rank(site, 2, 4);
  if (!q || !k || !v) return false;
  if (!dtype_is_float(q->dtype) || k->dtype != q->dtype || v->dtype != q->dtype || k->dims[0] != q->dims[0] || v->dims[0] != q->dims[0] ||
      k->dims[1] != v->dims[1] || k->dims[2] != v->dims[2] || k->dims[3] != q->dims[3] || !k->dims[1] || q->dims[1] % k->dims[1]) {
    char text[3][160];
    site_problem(site, STATUS_MALFORMED, "Q is %s, K %s and V %s: they do not fit", type_text(q, text[0], sizeof text[0]), type_text(k, text[1], sizeof text[1]),
                 type_text(v, text[2], sizeof text[2]));
    return false;
  }
  int64_t inner = site_attr_int(site, "softmax_precision", q->dtype == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32);
  if (inner < 1 || inner > INT32_MAX || !dtype_known((int)inner) || !dtype_is_float((Dtype)inner)) {
    site_problem(site, STATUS_MALFORMED, "attribute softmax_precision = %" PRId64 " is no type of floats", inner);
    return false;
  }
  *f = (Flex){q->dims[0], q->dims[1], k->dims[1], q->dims[2], k->dims[2], q->dims[3], v->dims[3], q->dtype, (Dtype)inner,
              attr_f(site, "scale", q->dims[3] ? (float)(1 / sqrt((double)q->dims[3])) : 1)};
  return true;
}

static Value *cast(const Site *site, const char *suffix, Value *v, Dtype from, Dtype to) {
  return from == to ? v : one(site, "Cast", suffix, 1, &v, ATTRS(A_INT("to", to)));
}

// [batch, heads of Q, q_len, width] and [batch, heads of K, q_len of all the heads that share it, width]: the same bytes.
static Value *shared_heads(const Site *site, const char *suffix, Value *v, const Flex *f, bool apart, int64_t width) {
  if (f->q_heads == f->kv_heads || !v) return v;
  int64_t group = f->q_heads / f->kv_heads;
  const int64_t dims[] = {f->batch, apart ? f->q_heads : f->kv_heads, apart ? f->q_len : group * f->q_len, width};
  return reshaped(site, suffix, v, dims, 4);
}

// `v` as the subgraph in attribute `name` changes it; as it is where there is none.
static Value *modified(const Site *site, const char *name, Value *v) {
  const OnnxAttr *a = onnx_attr(site->from, name);
  OnnxGraph body;
  if (!a || !v) return v;
  if (!a->has_graph) site_problem(site, STATUS_MALFORMED, "attribute %s holds no graph", name);
  if (!a->has_graph || import_absorb(site->import, onnx_decode_graph(a->graph, site->import->arena, &body), site->label)) return NULL;
  if (body.head->n_input != 1 || body.head->n_output != 1) {
    site_problem(site, STATUS_MALFORMED, "%s has %zu inputs and %zu outputs; it must have one of each", name, body.head->n_input, body.head->n_output);
    return NULL;
  }
  Binding in = bound_tensor(v), out;
  import_subgraph(site, &body, arena_printf(site->import->arena, "%s/", name), &in, 1, NULL, &out);
  const Type *was = import_type(site->import, v), *is = out.kind == BOUND_TENSOR ? import_type(site->import, out.value) : NULL;
  if (out.kind != BOUND_TENSOR || (was && is && !type_equal(was, is))) {
    if (out.kind != BOUND_BROKEN) site_problem(site, STATUS_MALFORMED, "what %s gives is not of the type that it takes", name);
    return NULL;
  }
  return out.value;
}

static void flex_attention(const Site *site) {
  Flex f;
  if (!flex_make(site, &f)) return;
  Value *q = site_tensor(site, 0), *k = site_tensor(site, 1), *v = site_tensor(site, 2);
  bool plain = !onnx_attr(site->from, "score_mod") && !onnx_attr(site->from, "prob_mod");
  if (plain && f.scale != 0 && f.inner == (f.dtype == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32)) {      // never holds all scores
    give(site, 0, one(site, "Attention", "", 3, (Value *[]){q, k, v}, ATTRS(A_FLOAT("scale", f.scale))));
    return;
  }
  Value *factor = import_scalar_of(site->import, arena_printf(site->import->arena, "%s.scale", site->label), f.dtype, (double)f.scale);
  Value *scaled = shared_heads(site, "queries", one(site, "Mul", "scaled", 2, (Value *[]){q, factor}, NULL), &f, false, f.head);
  Value *turned = one(site, "Transpose", "turned", 1, &k, ATTRS(A_INTS("perm", ((const int64_t[]){0, 1, 3, 2}), 4)));
  Value *scores = one(site, "MatMul", "products", 2, (Value *[]){scaled, turned}, NULL);
  scores = cast(site, "scores", shared_heads(site, "apart", scores, &f, true, f.kv_len), f.dtype, f.inner);
  scores = modified(site, "score_mod", scores);
  Value *shares = modified(site, "prob_mod", one(site, "Softmax", "shares", 1, &scores, ATTRS(A_INT("axis", -1))));
  shares = shared_heads(site, "together", shares, &f, false, f.kv_len);
  Value *mixed = one(site, "MatMul", "mixed", 2, (Value *[]){shares, cast(site, "values", v, f.dtype, f.inner)}, NULL);
  give(site, 0, cast(site, "out", shared_heads(site, "heads", mixed, &f, true, f.v_head), f.inner, f.dtype));
}

// ---- com.microsoft: what ONNX Runtime's optimizations make of a forward graph ---------------------------------------------------------------

static const char *op_type(const Site *site) { return text_or_empty(site->from->head->op_type); }

// Gelu, BiasGelu(X, bias), FastGelu(X, bias?).
static void microsoft_gelu(const Site *site) {
  Value *x = site_tensor(site, 0), *bias = is_given(site, 1) ? site_tensor(site, 1) : NULL;
  if (bias) x = one(site, "Add", "biased", 2, (Value *[]){x, bias}, NULL);
  give(site, 0, one(site, "Gelu", "", 1, &x, ATTRS(A_STRING("approximate", strcmp(op_type(site), "FastGelu") ? "none" : "tanh"))));
}

static void quick_gelu(const Site *site) {
  Value *x = site_tensor(site, 0);
  give(site, 0, one(site, "Swish", "", 1, &x, ATTRS(A_FLOAT("alpha", attr_f(site, "alpha", 1.702f)))));
}

static void fused_matmul(const Site *site) {
  Value *a = site_tensor(site, 0), *b = site_tensor(site, 1);
  if (site_attr_int(site, "transBatchA", 0) || site_attr_int(site, "transBatchB", 0)) {
    site_problem(site, STATUS_UNSUPPORTED, "transBatchA and transBatchB are not supported; give the model as it was exported, before it was optimized");
    return;
  }
  give(site, 0, b ? one(site, "FusedMatMul", "", 2, (Value *[]){a, b},
                        ATTRS(A_INT("transA", site_attr_int(site, "transA", 0)), A_INT("transB", site_attr_int(site, "transB", 0)),
                              A_FLOAT("alpha", attr_f(site, "alpha", 1))))
                  : NULL);
}

// ---- The table ----------------------------------------------------------------------------------------------------------------------------

static const struct { const char *domain, *op; void (*handle)(const Site *site); } handlers[] = {
    {"", "SwiGLU", swiglu}, {"", "CausalConvWithState", causal_conv}, {"", "DeformConv", deform_conv},
    {"ai.onnx.preview", "FlexAttention", flex_attention}, {"com.microsoft", "Gelu", microsoft_gelu}, {"com.microsoft", "BiasGelu", microsoft_gelu},
    {"com.microsoft", "FastGelu", microsoft_gelu}, {"com.microsoft", "QuickGelu", quick_gelu}, {"com.microsoft", "FusedMatMul", fused_matmul}};

bool import_composed(const Site *site) {
  const char *op = op_type(site), *domain = onnx_domain(site->from->head->domain);
  if (site->import->form.kind == FORM_ORT && *domain) return false;       // its gradients stand in the graph: rows run it as it is
  for (size_t i = 0; i < sizeof handlers / sizeof *handlers; i++) {
    if (strcmp(handlers[i].op, op) || strcmp(handlers[i].domain, domain)) continue;
    handlers[i].handle(site);
    return true;
  }
  return false;
}
