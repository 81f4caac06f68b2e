// LinearAttention and its gradient: rows, attributes, and operands for the walk (linear_attention.h).
#include "linear_attention.h"

#include <math.h>
#include <string.h>

#include "cost.h"
#include "index_input.h"
#include "ops.h"
#include "wide.h"

typedef struct LinearAttrs { int64_t chunk_size, kv_num_heads, q_num_heads; float scale; const char *update_rule; } LinearAttrs;
static const AttrSpec linear_attrs[] = {
    {"chunk_size", ATTR_INT, offsetof(LinearAttrs, chunk_size), .default_int = 64, .help = "a hint that changes no result; not used"},
    {"kv_num_heads", ATTR_INT, offsetof(LinearAttrs, kv_num_heads), .required = true, .min = 1, .max = INT32_MAX, .help = "heads of K and V"},
    {"q_num_heads", ATTR_INT, offsetof(LinearAttrs, q_num_heads), .required = true, .min = 1, .max = INT32_MAX, .help = "heads of Q"},
    {"scale", ATTR_FLOAT, offsetof(LinearAttrs, scale), .help = "factor of the result; 0: 1 / sqrt(width of a key)"},
    {"update_rule", ATTR_STRING, offsetof(LinearAttrs, update_rule), .default_string = "gated_delta", .help = "linear, gated, delta or gated_delta"},
    {0},
};

enum { IN_Q, IN_K, IN_V, IN_PAST, IN_DECAY, IN_BETA, IN_DY, IN_DPRESENT, N_IN };
enum { N_GRADS = IN_DY };                // output i of the gradient is that of input i

static bool is_gradient(const Node *node) { return *node->op->domain; }

static Status flat_width(const Node *node, int input, int64_t heads, const Type *q, int64_t *out) {
  const Value *v = node->inputs[input];
  const Type *t = &v->type;
  char text[160];
  if (t->dtype != q->dtype || t->rank != 3 || t->dims[0] != q->dims[0] || t->dims[1] != q->dims[1] || t->dims[2] % heads)
    FAIL(MALFORMED, node->name, "'%s' is %s; [%lld, %lld, a multiple of %lld] is needed", v->name, type_text(t, text, sizeof text), (long long)q->dims[0],
         (long long)q->dims[1], (long long)heads);
  *out = t->dims[2] / heads;
  return NULL;
}

static Type state_type(const LinearAttention *a, Dtype dtype) { return type_make(dtype, 4, (const int64_t[]){a->batch, a->kv_heads, a->d_k, a->d_v}); }
static Type y_type(const LinearAttention *a, Dtype dtype) { return type_make(dtype, 3, (const int64_t[]){a->batch, a->steps, a->q_heads * a->d_v}); }

// Whether the rule takes decay and beta, and what they look like.
static Status rule_make(const Node *node, const Type *q, LinearAttention *a) {
  const char *rule = ((const LinearAttrs *)node->attrs)->update_rule;
  a->gated = !strcmp(rule, "gated") || !strcmp(rule, "gated_delta");
  a->delta = !strcmp(rule, "delta") || !strcmp(rule, "gated_delta");
  if (!a->gated && !a->delta && strcmp(rule, "linear"))
    FAIL(MALFORMED, node->name, "attribute update_rule = \"%s\" must be linear, gated, delta or gated_delta", rule);
  if (node_has_input(node, IN_DECAY) != a->gated || node_has_input(node, IN_BETA) != a->delta)
    FAIL(MALFORMED, node->name, "update_rule = \"%s\" goes with%s decay and with%s beta", rule, a->gated ? "" : "out", a->delta ? "" : "out");
  if (a->gated) {
    int64_t each;
    TRY(flat_width(node, IN_DECAY, a->kv_heads, q, &each));
    a->decay_width = each * a->kv_heads;
    if (each != 1 && each != a->d_k)
      FAIL(MALFORMED, node->name, "decay has %lld numbers a step; %lld or %lld are needed", (long long)a->decay_width, (long long)a->kv_heads,
           (long long)(a->kv_heads * a->d_k));
  }
  if (a->delta) {
    TRY(flat_width(node, IN_BETA, 1, q, &a->beta_width));
    if (a->beta_width != 1 && a->beta_width != a->kv_heads)
      FAIL(MALFORMED, node->name, "beta has %lld numbers a step; 1 or %lld are needed", (long long)a->beta_width, (long long)a->kv_heads);
  }
  return NULL;
}

static Status linear_make(const Node *node, LinearAttention *out) {
  const LinearAttrs *attrs = node->attrs;
  const Type *q = &node->inputs[IN_Q]->type;
  LinearAttention a = {.q_heads = attrs->q_num_heads, .kv_heads = attrs->kv_num_heads};
  if (a.q_heads % a.kv_heads) FAIL(MALFORMED, node->name, "%lld heads of Q cannot share %lld of K and V", (long long)a.q_heads, (long long)a.kv_heads);
  if (!dtype_is_float(q->dtype) || q->rank != 3) FAIL(MALFORMED, node->name, "Q, K and V must be floats with three axes");
  int64_t q_width;
  TRY(flat_width(node, IN_Q, a.q_heads, q, &q_width));
  TRY(flat_width(node, IN_K, a.kv_heads, q, &a.d_k));
  TRY(flat_width(node, IN_V, a.kv_heads, q, &a.d_v));
  if (q_width != a.d_k) FAIL(MALFORMED, node->name, "a head of Q has %lld numbers and one of K %lld", (long long)q_width, (long long)a.d_k);
  a.batch = q->dims[0];
  a.steps = q->dims[1];
  a.scale = attrs->scale != 0 ? (double)attrs->scale : a.d_k ? 1 / sqrt((double)a.d_k) : 1;
  a.chunk = 1 + (int64_t)sqrt((double)a.steps);        // as many states kept as made again: the least memory
  TRY(rule_make(node, q, &a));
  if (node_has_input(node, IN_PAST)) {
    const Type *past = input_type(node, IN_PAST);
    Type want = state_type(&a, past->dtype);
    char have_text[160], want_text[160];
    if (!dtype_is_float(past->dtype) || !type_equal(past, &want))
      FAIL(MALFORMED, node->name, "past_state is %s; %s is needed", type_text(past, have_text, sizeof have_text), type_text(&want, want_text, sizeof want_text));
  }
  *out = a;
  return NULL;
}

// ---- Running ---------------------------------------------------------------------------------------------------------------------------

#define LINEAR_WALK(suffix)                                                                                                                              \
  static void walk_##suffix(const LinearAttention *a, bool back, const WideOperands *w, const Loops *loops) {                                           \
    LinearForward_##suffix io = {.q = w->in[IN_Q], .k = w->in[IN_K], .v = w->in[IN_V], .past = w->in[IN_PAST], .decay = w->in[IN_DECAY],                \
                                 .beta = w->in[IN_BETA]};                                                                                               \
    if (!back) {                                                                                                                                         \
      io.y = w->out[0], io.present = w->out[1];                                                                                                          \
      linear_forward_##suffix(a, &io, loops, w->space);                                                                                                  \
      return;                                                                                                                                            \
    }                                                                                                                                                    \
    LinearBackward_##suffix g = {.dy = w->in[IN_DY], .dpresent = w->in[IN_DPRESENT], .dq = w->out[IN_Q], .dk = w->out[IN_K], .dv = w->out[IN_V],        \
                                 .dpast = w->out[IN_PAST], .ddecay = w->out[IN_DECAY], .dbeta = w->out[IN_BETA]};                                       \
    linear_backward_##suffix(a, &io, &g, loops, w->space);                                                                                               \
  }
LINEAR_WALK(f64)
LINEAR_WALK(f32)

static Status linear_ref(const KernelContext *c) {
  LinearAttention a;
  WideOperands w;
  TRY(linear_make(c->node, &a));
  TRY(wide_begin(c, linear_space_elems(&a, is_gradient(c->node)), &w));
  walk_f64(&a, is_gradient(c->node), &w, c->loops);
  wide_end(c, &w);
  return NULL;
}

static Status linear_cpu(const KernelContext *c) {
  LinearAttention a;
  TRY(linear_make(c->node, &a));
  WideOperands w = wide_as_they_lie(c);
  walk_f32(&a, is_gradient(c->node), &w, c->loops);
  return NULL;
}

static Status linear_workspace(KernelPrepare *p) {
  LinearAttention a;
  TRY(linear_make(p->node, &a));
  p->workspace_bytes = linear_space_elems(&a, is_gradient(p->node)) * (int64_t)sizeof(float);
  return NULL;
}

// Reading and writing a state, once more for the delta; the way back walks forward twice and does three times as much.
static void linear_cost(const Node *node, NodeCost *cost) {
  LinearAttention a;
  Status status = linear_make(node, &a);
  if (!status) {
    double state = (double)a.batch * (double)a.steps * (double)a.d_k * (double)a.d_v;
    double writes = 2 * state * (double)a.kv_heads * (a.delta ? 2 : 1), reads = 2 * state * (double)a.q_heads;
    cost->work[WORK_ATTENTION] += is_gradient(node) ? 4 * writes + 2 * reads : writes + reads;
  }
  status_free(status);
}

// ---- Rows ------------------------------------------------------------------------------------------------------------------------------

static Status linear_infer(Node *node, Arena *arena) {
  LinearAttention a;
  TRY(linear_make(node, &a));
  Dtype dtype = node->inputs[IN_Q]->type.dtype;
  Dtype state = node_has_input(node, IN_PAST) ? input_type(node, IN_PAST)->dtype : dtype;
  if (node->outputs[0]) node->outputs[0]->type = y_type(&a, dtype);
  if (node_has_output(node, 1)) node->outputs[1]->type = state_type(&a, state);
  return NULL;
}

static Status linear_grad(Grad *g) {
  const Node *node = g->node;
  const LinearAttrs *a = node->attrs;
  Value *in[N_IN] = {0};
  bool wanted[N_GRADS] = {0};
  int n_wanted = 0;
  for (int i = 0; i < node->n_inputs; i++) {
    in[i] = node->inputs[i];
    wanted[i] = in[i] && g->wanted[i];
    if (wanted[i]) n_wanted = i + 1;
  }
  in[IN_DY] = g->dy[0];
  in[IN_DPRESENT] = node_has_output(node, 1) ? g->dy[1] : NULL;
  Node *grad = emit_node(g->emit, &op_LinearAttentionGrad, in, N_IN, n_wanted, wanted,
                         ATTRS(A_INT("kv_num_heads", a->kv_num_heads), A_INT("q_num_heads", a->q_num_heads), A_FLOAT("scale", a->scale),
                               A_STRING("update_rule", a->update_rule)));
  for (int i = 0; grad && i < n_wanted; i++)
    if (wanted[i]) g->dx[i] = grad->outputs[i];
  return NULL;
}

const Op op_LinearAttention = {
    .name = "LinearAttention", .domain = "", .policy = POLICY_LOW, .min_inputs = 3, .max_inputs = 6, .min_outputs = 2, .max_outputs = 2, .attrs = linear_attrs,
    .attrs_bytes = sizeof(LinearAttrs), .infer = linear_infer, .grad = linear_grad, .run_ref = linear_ref, .run_cpu = linear_cpu,
    .workspace = linear_workspace, .cost = linear_cost};

static Status linear_grad_infer(Node *node, Arena *arena) {
  LinearAttention a;
  TRY(linear_make(node, &a));
  Dtype dtype = node->inputs[IN_Q]->type.dtype;
  const Type want[] = {y_type(&a, dtype), state_type(&a, node_has_input(node, IN_PAST) ? input_type(node, IN_PAST)->dtype : dtype)};
  for (int i = IN_DY; i < node->n_inputs; i++)
    if (node->inputs[i] && !type_equal(&node->inputs[i]->type, &want[i - IN_DY]))
      FAIL(MALFORMED, node->name, "'%s' is not of the type of output %d", node->inputs[i]->name, i - IN_DY);
  return infer_input_gradients(node);
}

const Op op_LinearAttentionGrad = {
    .name = "LinearAttentionGrad", .domain = "tessera", .min_inputs = 3, .max_inputs = N_IN, .min_outputs = 1, .max_outputs = N_GRADS,
    .attrs = linear_attrs, .attrs_bytes = sizeof(LinearAttrs), .infer = linear_grad_infer, .run_ref = linear_ref, .run_cpu = linear_cpu,
    .workspace = linear_workspace, .cost = linear_cost};
