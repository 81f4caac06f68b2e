// Attention and its gradient: rows, attributes, and operands for the walk (attention.h).
#include "attention.h"

#include <math.h>
#include <string.h>

#include "cost.h"
#include "index_input.h"
#include "ops.h"
#include "wide.h"

typedef struct AttentionAttrs {
  int64_t is_causal, kv_num_heads, q_num_heads, mode, left, right, softmax_precision;
  float scale, softcap;
} AttentionAttrs;
static const AttrSpec attention_attrs[] = {
    {"is_causal", ATTR_INT, offsetof(AttentionAttrs, is_causal), .min = 0, .max = 1, .help = "query i sees the keys up to its own place"},
    {"kv_num_heads", ATTR_INT, offsetof(AttentionAttrs, kv_num_heads), .default_int = ATTR_ABSENT, .help = "heads of K and V with three axes"},
    {"left_window_size", ATTR_INT, offsetof(AttentionAttrs, left), .default_int = -1, .min = -1, .max = INT32_MAX,
     .help = "keys to the left; -1: all"},
    {"q_num_heads", ATTR_INT, offsetof(AttentionAttrs, q_num_heads), .default_int = ATTR_ABSENT, .help = "heads of Q with three axes"},
    {"qk_matmul_output_mode", ATTR_INT, offsetof(AttentionAttrs, mode), .min = 0, .max = 3, .help = "0 raw, 1 softened, 2 biased, 3 probabilities"},
    {"right_window_size", ATTR_INT, offsetof(AttentionAttrs, right), .default_int = -1, .min = -1, .max = INT32_MAX,
     .help = "keys to the right; -1: all"},
    {"scale", ATTR_FLOAT, offsetof(AttentionAttrs, scale), .help = "factor of the scores; 0: 1 / sqrt(head size)"},
    {"softcap", ATTR_FLOAT, offsetof(AttentionAttrs, softcap), .help = "bound of the scores through tanh; 0: none"},
    {"softmax_precision", ATTR_INT, offsetof(AttentionAttrs, softmax_precision), .default_int = ATTR_ABSENT, .help = "never less than float is used"},
    {0},
};

enum { IN_Q, IN_K, IN_V, IN_MASK, IN_PAST_K, IN_PAST_V, IN_LENGTHS, IN_DY, IN_DPRESENT_K, IN_DPRESENT_V, N_IN };
enum { OUT_Y, OUT_PRESENT_K, OUT_PRESENT_V, OUT_SCORES };
enum { OUT_DQ, OUT_DK, OUT_DV, OUT_DMASK, OUT_DPAST_K, OUT_DPAST_V, N_GRADS };

static bool is_gradient(const Node *node) { return *node->op->domain; }

// One operand as [batch, heads, length, width].
typedef struct Heads { int64_t batch, heads, length, width; } Heads;

static Status heads_of(const Node *node, int input, int64_t heads, Heads *out) {
  const Value *v = node->inputs[input];
  const Type *t = &v->type;
  char text[160];
  if (!dtype_is_float(t->dtype) || t->dtype != node->inputs[IN_Q]->type.dtype || t->rank != node->inputs[IN_Q]->type.rank ||
      (t->rank != 3 && t->rank != 4))
    FAIL(MALFORMED, node->name, "'%s' is %s; Q, K and V must be floats of one type with three or four axes", v->name,
         type_text(t, text, sizeof text));
  if (t->rank == 4) {
    *out = (Heads){t->dims[0], t->dims[1], t->dims[2], t->dims[3]};
    return NULL;
  }
  if (heads == ATTR_ABSENT || heads < 1 || t->dims[2] % heads)
    FAIL(MALFORMED, node->name, "'%s' is %s; with three axes %s must divide its last one", v->name, type_text(t, text, sizeof text),
         input == IN_Q ? "q_num_heads" : "kv_num_heads");
  *out = (Heads){t->dims[0], heads, t->dims[1], t->dims[2] / heads};
  return NULL;
}

static Type cache_type(const Attention *a, Dtype dtype, int64_t length, int64_t width) {
  return type_make(dtype, 4, (const int64_t[]){a->batch, a->kv_heads, length, width});
}
static Type y_type(const Attention *a, Dtype dtype) {
  return a->flat ? type_make(dtype, 3, (const int64_t[]){a->batch, a->q_len, a->q_heads * a->v_head})
                 : type_make(dtype, 4, (const int64_t[]){a->batch, a->q_heads, a->q_len, a->v_head});
}
static Type scores_type(const Attention *a, Dtype dtype) { return type_make(dtype, 4, (const int64_t[]){a->batch, a->q_heads, a->q_len, a->total}); }

static Status past_make(const Node *node, Attention *a) {
  a->has_past = node_has_input(node, IN_PAST_K);
  if (a->has_past != node_has_input(node, IN_PAST_V)) FAIL(MALFORMED, node->name, "past_key and past_value go together");
  if (a->has_past) {
    const Type *k = input_type(node, IN_PAST_K), *v = input_type(node, IN_PAST_V);
    if (k->rank == 4) a->past = k->dims[2];
    Dtype dtype = input_type(node, IN_Q)->dtype;
    Type want_k = cache_type(a, dtype, a->past, a->head), want_v = cache_type(a, dtype, a->past, a->v_head);
    char k_text[160], v_text[160];
    if (!type_equal(k, &want_k) || !type_equal(v, &want_v))
      FAIL(MALFORMED, node->name, "past_key is %s and past_value %s; they must be [batch, kv heads, past length, head size]",
           type_text(k, k_text, sizeof k_text), type_text(v, v_text, sizeof v_text));
  }
  a->total = a->past + a->kv_len;
  if (!node_has_input(node, IN_LENGTHS)) return NULL;
  if (a->has_past) FAIL(MALFORMED, node->name, "nonpad_kv_seqlen and past_key exclude each other");
  const Type *lengths = input_type(node, IN_LENGTHS);
  if (!dtype_is_integer(lengths->dtype) || lengths->rank != 1 || lengths->dims[0] != a->batch)
    FAIL(MALFORMED, node->name, "nonpad_kv_seqlen must be one integer for each of the %lld samples", (long long)a->batch);
  return NULL;
}

static Status mask_make(const Node *node, Attention *a) {
  a->mask_len = a->total;
  if (!node_has_input(node, IN_MASK)) return NULL;
  const Type *mask = input_type(node, IN_MASK);
  Dtype dtype = input_type(node, IN_Q)->dtype;
  Type whole = scores_type(a, dtype), joined;
  char have[160], want[160];
  if (mask->rank > 0 && mask->dims[mask->rank - 1] != 1 && mask->dims[mask->rank - 1] < a->total)
    a->mask_len = whole.dims[3] = mask->dims[mask->rank - 1];
  bool fits = (mask->dtype == DTYPE_BOOL || mask->dtype == dtype) && mask->rank <= 4;
  if (fits) TRY(type_broadcast(mask, &whole, node->name, &joined));
  if (!fits || !type_same_shape(&joined, &whole))
    FAIL(MALFORMED, node->name, "attn_mask is %s; a bool or float that broadcasts to %s is needed", type_text(mask, have, sizeof have),
         type_text(&whole, want, sizeof want));
  int64_t strides[RANK_MAX];
  type_strides(mask, &whole, strides);
  memcpy(a->mask_strides, strides, sizeof a->mask_strides);
  return NULL;
}

static Status attention_make(const Node *node, Attention *out) {
  const AttentionAttrs *attrs = node->attrs;
  Heads q, k, v;
  TRY(heads_of(node, IN_Q, attrs->q_num_heads, &q));
  TRY(heads_of(node, IN_K, attrs->kv_num_heads, &k));
  TRY(heads_of(node, IN_V, attrs->kv_num_heads, &v));
  Attention a = {.batch = q.batch, .q_heads = q.heads, .kv_heads = k.heads, .q_len = q.length, .kv_len = k.length, .head = q.width, .v_head = v.width,
                 .flat = node->inputs[IN_Q]->type.rank == 3, .causal = attrs->is_causal, .left = attrs->left, .right = attrs->right,
                 .softcap = (double)attrs->softcap, .scores_mode = (int)attrs->mode,
                 .scale = attrs->scale != 0 ? (double)attrs->scale : q.width ? 1 / sqrt((double)q.width) : 1};
  if (k.batch != q.batch || v.batch != q.batch || k.heads != v.heads || k.length != v.length || k.width != q.width || !k.heads || q.heads % k.heads)
    FAIL(MALFORMED, node->name,
         "Q has %lld samples, %lld heads of %lld; K %lld, %lld of %lld, length %lld; V %lld, %lld, length %lld: they do not fit", (long long)q.batch,
         (long long)q.heads, (long long)q.width, (long long)k.batch, (long long)k.heads, (long long)k.width, (long long)k.length, (long long)v.batch,
         (long long)v.heads, (long long)v.length);
  TRY(past_make(node, &a));
  TRY(mask_make(node, &a));
  *out = a;
  return NULL;
}

// ---- Running ---------------------------------------------------------------------------------------------------------------------------

static void walk_f64(const Attention *a, bool back, void *const *in, void *const *out, int64_t mask_elems, const Loops *loops, double *space) {
  AttentionForward_f64 io = {.q = in[IN_Q], .k = in[IN_K], .v = in[IN_V], .mask = in[IN_MASK], .past_k = in[IN_PAST_K], .past_v = in[IN_PAST_V]};
  if (!back) {
    io.y = out[OUT_Y], io.present_k = out[OUT_PRESENT_K], io.present_v = out[OUT_PRESENT_V], io.scores = out[OUT_SCORES];
    attention_forward_f64(a, &io, loops, space);
    return;
  }
  AttentionBackward_f64 g = {.dy = in[IN_DY], .dpresent_k = in[IN_DPRESENT_K], .dpresent_v = in[IN_DPRESENT_V], .dq = out[OUT_DQ], .dk = out[OUT_DK],
                             .dv = out[OUT_DV], .dmask = out[OUT_DMASK], .dpast_k = out[OUT_DPAST_K], .dpast_v = out[OUT_DPAST_V]};
  attention_backward_f64(a, &io, &g, mask_elems, loops, space);
}

static void walk_f32(const Attention *a, bool back, void *const *in, void *const *out, int64_t mask_elems, const Loops *loops, float *space) {
  AttentionForward_f32 io = {.q = in[IN_Q], .k = in[IN_K], .v = in[IN_V], .mask = in[IN_MASK], .past_k = in[IN_PAST_K], .past_v = in[IN_PAST_V]};
  if (!back) {
    io.y = out[OUT_Y], io.present_k = out[OUT_PRESENT_K], io.present_v = out[OUT_PRESENT_V], io.scores = out[OUT_SCORES];
    attention_forward_f32(a, &io, loops, space);
    return;
  }
  AttentionBackward_f32 g = {.dy = in[IN_DY], .dpresent_k = in[IN_DPRESENT_K], .dpresent_v = in[IN_DPRESENT_V], .dq = out[OUT_DQ], .dk = out[OUT_DK],
                             .dv = out[OUT_DV], .dmask = out[OUT_DMASK], .dpast_k = out[OUT_DPAST_K], .dpast_v = out[OUT_DPAST_V]};
  attention_backward_f32(a, &io, &g, mask_elems, loops, space);
}

// The mask's bits and the lengths are read where they lie, in their own type.
static Status attention_begin(const KernelContext *c, Attention *a) {
  TRY(attention_make(c->node, a));
  if (has_input(c, IN_MASK) && c->in[IN_MASK].type->dtype == DTYPE_BOOL) a->mask_bits = c->in[IN_MASK].data;
  if (has_input(c, IN_LENGTHS)) a->lengths = &c->in[IN_LENGTHS];
  return NULL;
}

static int64_t mask_elems(const KernelContext *c) { return has_input(c, IN_MASK) ? in_elems(c, IN_MASK) : 0; }

static Status attention_ref(const KernelContext *c) {
  Attention a;
  WideOperands w;
  TRY(attention_begin(c, &a));
  bool back = is_gradient(c->node);
  TRY(wide_begin(c, attention_space_elems(&a, back), &w));
  walk_f64(&a, back, w.in, w.out, mask_elems(c), c->loops, w.space);
  wide_end(c, &w);
  return NULL;
}

static Status attention_cpu(const KernelContext *c) {
  Attention a;
  TRY(attention_begin(c, &a));
  WideOperands w = wide_as_they_lie(c);
  walk_f32(&a, is_gradient(c->node), w.in, w.out, mask_elems(c), c->loops, w.space);
  return NULL;
}

static Status attention_workspace(KernelPrepare *p) {
  Attention a;
  TRY(attention_make(p->node, &a));
  p->workspace_bytes = attention_space_elems(&a, is_gradient(p->node)) * (int64_t)sizeof(float);
  return NULL;
}

// ---- Attention ---------------------------------------------------------------------------------------------------------------------------

static Status attention_infer(Node *node, Arena *arena) {
  Attention a;
  TRY(attention_make(node, &a));
  Dtype dtype = node->inputs[IN_Q]->type.dtype;
  const Type types[] = {[OUT_Y] = y_type(&a, dtype), [OUT_PRESENT_K] = cache_type(&a, dtype, a.total, a.head),
                        [OUT_PRESENT_V] = cache_type(&a, dtype, a.total, a.v_head), [OUT_SCORES] = scores_type(&a, dtype)};
  for (int o = 0; o < node->n_outputs; o++)
    if (node->outputs[o]) node->outputs[o]->type = types[o];
  return NULL;
}

static Status attention_grad(Grad *g) {
  const Node *node = g->node;
  const AttentionAttrs *a = node->attrs;
  Value *in[N_IN] = {0};
  bool wanted[N_GRADS] = {0};
  int n_wanted = 0;
  if (node->n_outputs > OUT_SCORES && node->outputs[OUT_SCORES] && g->dy[OUT_SCORES])
    FAIL(UNSUPPORTED, node->name, "the loss depends on '%s': qk_matmul_output has no gradient", node->outputs[OUT_SCORES]->name);
  for (int i = 0; i < node->n_inputs; i++) in[i] = node->inputs[i];
  for (int o = 0; o < node->n_outputs && o < OUT_SCORES; o++) in[IN_DY + o] = node->outputs[o] ? g->dy[o] : NULL;
  for (int i = 0; i < node->n_inputs && i < N_GRADS; i++)
    if (node->inputs[i] && g->wanted[i]) wanted[i] = true, n_wanted = i + 1;
  Node *grad = emit_node(g->emit, &op_AttentionGrad, in, N_IN, n_wanted, wanted,
                         ATTRS(A_INT("is_causal", a->is_causal), A_INT("kv_num_heads", a->kv_num_heads), A_INT("q_num_heads", a->q_num_heads),
                               A_INT("left_window_size", a->left), A_INT("right_window_size", a->right), A_FLOAT("scale", a->scale),
                               A_FLOAT("softcap", a->softcap)));
  for (int i = 0; grad && i < n_wanted; i++)
    if (wanted[i]) g->dx[i] = grad->outputs[i];
  return NULL;
}

// Scores and their use; the gradient computes the scores again and makes three products more. A causal mask skips half.
static void attention_cost(const Node *node, NodeCost *cost) {
  Attention a;
  Status status = attention_make(node, &a);
  if (!status) {
    double scores = (double)a.batch * (double)a.q_heads * (double)a.q_len * (double)a.total * (a.causal && a.q_len == a.total ? 0.5 : 1);
    double forward = 2 * scores * (double)(a.head + a.v_head);
    cost->work[WORK_ATTENTION] += is_gradient(node) ? 2.5 * forward : forward;
    cost->work[WORK_FUNCTION] += scores;
    cost->work[WORK_SUM] += 2 * scores;
  }
  status_free(status);
}

const Op op_Attention = {
    .name = "Attention", .domain = "", .policy = POLICY_LOW, .min_inputs = 3, .max_inputs = 7, .min_outputs = 1, .max_outputs = 4, .nondifferentiable = 1 << IN_LENGTHS,
    .attrs = attention_attrs, .attrs_bytes = sizeof(AttentionAttrs), .infer = attention_infer, .grad = attention_grad, .run_ref = attention_ref,
    .run_cpu = attention_cpu, .workspace = attention_workspace, .cost = attention_cost};

static Status attention_grad_infer(Node *node, Arena *arena) {
  Attention a;
  TRY(attention_make(node, &a));
  Dtype dtype = node->inputs[IN_Q]->type.dtype;
  const Type want[] = {y_type(&a, dtype), cache_type(&a, dtype, a.total, a.head), cache_type(&a, dtype, a.total, a.v_head)};
  char have_text[160], want_text[160];
  for (int i = IN_DY; i < node->n_inputs; i++)
    if (node->inputs[i] && !type_equal(&node->inputs[i]->type, &want[i - IN_DY]))
      FAIL(MALFORMED, node->name, "'%s' is %s; it must be %s", node->inputs[i]->name, type_text(&node->inputs[i]->type, have_text, sizeof have_text),
           type_text(&want[i - IN_DY], want_text, sizeof want_text));
  for (int o = 0; o < node->n_outputs; o++) {
    if (!node->outputs[o]) continue;
    if (!node_has_input(node, o) || !dtype_is_float(node->inputs[o]->type.dtype))
      FAIL(MALFORMED, node->name, "output %d is the gradient of no float input", o);
    node->outputs[o]->type = node->inputs[o]->type;
  }
  return NULL;
}

const Op op_AttentionGrad = {
    .name = "AttentionGrad", .domain = "tessera", .min_inputs = 3, .max_inputs = N_IN, .min_outputs = 1, .max_outputs = N_GRADS,
    .attrs = attention_attrs, .attrs_bytes = sizeof(AttentionAttrs), .infer = attention_grad_infer, .run_ref = attention_ref,
    .run_cpu = attention_cpu, .workspace = attention_workspace, .cost = attention_cost};
