// Convolution over 1 to 3 spatial axes and its two gradients. X [N, C, ...], W [O, C / group, ...], Y [N, O, ...].
#include <string.h>

#include "cost.h"
#include "dnnl_primitive.h"
#include "kernel.h"
#include "ops.h"
#include "window.h"

typedef struct ConvAttrs { WindowAttrs window; int64_t group; AttrInts dims; } ConvAttrs;
#define GROUP_ATTR {"group", ATTR_INT, offsetof(ConvAttrs, group), .default_int = 1, .min = 1, .max = INT32_MAX, .help = "groups of channels"}
#define DIMS_ATTR(of) {"dims", ATTR_INTS, offsetof(ConvAttrs, dims), .min = 0, .max = INT64_C(1) << 46, .help = "dimensions of " of}
static const AttrSpec conv_attrs[] = {WINDOW_ATTRS(ConvAttrs), GROUP_ATTR, {0}};
static const AttrSpec input_grad_attrs[] = {WINDOW_ATTRS(ConvAttrs), GROUP_ATTR, DIMS_ATTR("X"), {0}};
static const AttrSpec weight_grad_attrs[] = {WINDOW_ATTRS(ConvAttrs), GROUP_ATTR, DIMS_ATTR("W"), {0}};

// ---- The geometry, from the types of X and W --------------------------------------------------------------------------------------

static Status conv_make(const Node *node, const Type *x, const Type *w, LibraryConv *out, Type *y) {
  const ConvAttrs *a = node->attrs;
  char x_text[160], w_text[160];
  if (!dtype_is_float(x->dtype) || x->dtype != w->dtype || x->rank < 3 || w->rank != x->rank)
    FAIL(MALFORMED, node->name, "X %s and W %s must be floats [N, C, ...] and [O, C / group, ...] of one type", type_text(x, x_text, sizeof x_text),
         type_text(w, w_text, sizeof w_text));
  if (x->dims[1] != w->dims[1] * a->group || w->dims[0] % a->group)
    FAIL(MALFORMED, node->name, "X %s and W %s with group = %lld: X needs %lld channels, and group must divide the %lld output channels",
         type_text(x, x_text, sizeof x_text), type_text(w, w_text, sizeof w_text), (long long)a->group, (long long)(w->dims[1] * a->group),
         (long long)w->dims[0]);
  LibraryConv conv = {.batch = x->dims[0], .in_channels = x->dims[1], .out_channels = w->dims[0], .groups = a->group};
  TRY(window_make(node, &a->window, x->rank - 2, x->dims + 2, w->dims + 2, false, &conv.window));
  *y = *x;
  y->dims[1] = w->dims[0];
  for (int d = 0; d < conv.window.n_axes; d++) y->dims[2 + d] = conv.window.out[WINDOW_AXES - conv.window.n_axes + d];
  *out = conv;
  return type_check(y, node->name);
}

static Type dims_type(const Node *node, Dtype dtype) {
  const ConvAttrs *a = node->attrs;
  return type_make(dtype, a->dims.n > RANK_MAX ? RANK_MAX : (int)a->dims.n, a->dims.items);
}

// Geometry of any of the three rows: which inputs X, W and dY are, or that `dims` says.
static Status conv_of(const Node *node, ConvKind kind, LibraryConv *out, Type *result) {
  const Type *first = &node->inputs[0]->type, *second = &node->inputs[1]->type;
  Type x = *first, w = *second, y;
  if (kind == CONV_INPUT_GRAD) x = dims_type(node, first->dtype);
  if (kind == CONV_WEIGHT_GRAD) w = dims_type(node, first->dtype);
  TRY(conv_make(node, &x, &w, out, &y));
  out->kind = kind;
  out->bias = kind == CONV_FORWARD && node->n_inputs > 2 && node->inputs[2];
  const Value *dy = kind == CONV_FORWARD ? NULL : node->inputs[kind == CONV_INPUT_GRAD ? 0 : 1];
  char have[160], want[160];
  if (dy && !type_equal(&dy->type, &y))
    FAIL(MALFORMED, node->name, "dY '%s' is %s; X and W give %s", dy->name, type_text(&dy->type, have, sizeof have),
         type_text(&y, want, sizeof want));
  *result = kind == CONV_FORWARD ? y : kind == CONV_INPUT_GRAD ? x : w;
  return NULL;
}

// ---- Reference: one walk over all (output, window) pairs, in row-major order, for all three kinds -----------------------------------

static void forward_ref(const KernelContext *c, const LibraryConv *v) {
  const Window *w = &v->window;
  int64_t in = window_elems(w->in), out = window_elems(w->out), taps = window_elems(w->kernel);
  int64_t channels = v->in_channels / v->groups, outputs = v->out_channels / v->groups;
  for (int64_t n = 0; n < v->batch; n++)
    for (int64_t oc = 0; oc < v->out_channels; oc++)
      for (int64_t o = 0; o < out; o++) {
        double sum = 0;
        for (int64_t ic = 0; ic < channels; ic++)
          for (int64_t k = 0; k < taps; k++) {
            int64_t at = window_element(w, o, k);
            if (at < 0) continue;
            int64_t x = (n * v->in_channels + oc / outputs * channels + ic) * in + at;
            sum += in_f(c, 0, x) * in_f(c, 1, (oc * channels + ic) * taps + k);
          }
        if (v->bias) sum += in_f(c, 2, oc);
        out_f(c, 0, (n * v->out_channels + oc) * out + o, sum);
      }
}

// dW[oc, ic, k] = sum over n, o of dY[n, oc, o] X[n, ic, under(o, k)].
static void weight_grad_ref(const KernelContext *c, const LibraryConv *v) {
  const Window *w = &v->window;
  int64_t in = window_elems(w->in), out = window_elems(w->out), taps = window_elems(w->kernel);
  int64_t channels = v->in_channels / v->groups, outputs = v->out_channels / v->groups;
  for (int64_t oc = 0; oc < v->out_channels; oc++)
    for (int64_t ic = 0; ic < channels; ic++)
      for (int64_t k = 0; k < taps; k++) {
        double sum = 0;
        for (int64_t n = 0; n < v->batch; n++)
          for (int64_t o = 0; o < out; o++) {
            int64_t at = window_element(w, o, k);
            if (at < 0) continue;
            sum += in_f(c, 1, (n * v->out_channels + oc) * out + o) * in_f(c, 0, (n * v->in_channels + oc / outputs * channels + ic) * in + at);
          }
        out_f(c, 0, (oc * channels + ic) * taps + k, sum);
      }
}

// The output place whose window has X's place `i` under tap `k`; -1 when there is none.
static int64_t window_over(const Window *w, int64_t i, int64_t k) {
  int64_t place = 0, step = 1;
  for (int d = WINDOW_AXES - 1; d >= 0; d--) {
    int64_t at = i % w->in[d] + w->pad_begin[d] - k % w->kernel[d] * w->dilation[d];
    if (at < 0 || at % w->stride[d] || at / w->stride[d] >= w->out[d]) return -1;
    place += at / w->stride[d] * step;
    step *= w->out[d];
    i /= w->in[d];
    k /= w->kernel[d];
  }
  return place;
}

// dX[n, ic, i] = sum over oc, k of dY[n, oc, over(i, k)] W[oc, ic, k].
static void input_grad_ref(const KernelContext *c, const LibraryConv *v) {
  const Window *w = &v->window;
  int64_t in = window_elems(w->in), out = window_elems(w->out), taps = window_elems(w->kernel);
  int64_t channels = v->in_channels / v->groups, outputs = v->out_channels / v->groups;
  for (int64_t n = 0; n < v->batch; n++)
    for (int64_t ic = 0; ic < v->in_channels; ic++)
      for (int64_t i = 0; i < in; i++) {
        double sum = 0;
        for (int64_t o = 0; o < outputs; o++)
          for (int64_t k = 0; k < taps; k++) {
            int64_t at = window_over(w, i, k), oc = ic / channels * outputs + o;
            if (at >= 0) sum += in_f(c, 0, (n * v->out_channels + oc) * out + at) * in_f(c, 1, (oc * channels + ic % channels) * taps + k);
          }
        out_f(c, 0, (n * v->in_channels + ic) * in + i, sum);
      }
}

// ---- Through the matrix library ----------------------------------------------------------------------------------------------------

static bool conv_empty(const LibraryConv *v) {
  return !v->batch || !v->in_channels || !v->out_channels || !window_elems(v->window.in) || !window_elems(v->window.out);
}

static Status conv_build(KernelPrepare *prepare, ConvKind kind, bool make) {
  LibraryConv conv;
  Type type;
  TRY(conv_of(prepare->node, kind, &conv, &type));
  return conv_empty(&conv) ? NULL : library_conv(prepare, &conv, make);
}

static Status conv_run(const KernelContext *c) {
  if (!c->prepared) return c->node->op->run_ref(c);   // an operand without elements: no products, only zeros or the bias
  void *const pointers[LIBRARY_POINTERS] = {c->in[0].data, c->in[1].data, c->out[0].data, has_input(c, 2) ? c->in[2].data : NULL};
  return library_call_run(c->prepared, c->node, pointers, c->workspace, c->scratch);
}

static void conv_cost(const Node *node, ConvKind kind, NodeCost *cost) {
  LibraryConv conv;
  Type type;
  Status status = conv_of(node, kind, &conv, &type);
  if (!status) library_conv_cost(&conv, cost);
  status_free(status);
}

// ---- Conv --------------------------------------------------------------------------------------------------------------------------

static Status conv_infer(Node *node, Arena *arena) {
  LibraryConv conv;
  Type type;
  TRY(conv_of(node, CONV_FORWARD, &conv, &type));
  Type bias = type_vector(type.dtype, conv.out_channels);
  if (conv.bias && !type_equal(&node->inputs[2]->type, &bias))
    FAIL(MALFORMED, node->name, "B '%s' must be %s[%lld]", node->inputs[2]->name, dtype_name(type.dtype), (long long)conv.out_channels);
  node->outputs[0]->type = type;
  return NULL;
}

static Status conv_ref(const KernelContext *c) {
  LibraryConv conv;
  Type type;
  TRY(conv_of(c->node, CONV_FORWARD, &conv, &type));
  forward_ref(c, &conv);
  return NULL;
}

static Status conv_workspace(KernelPrepare *p) { return conv_build(p, CONV_FORWARD, false); }
static Status conv_prepare(KernelPrepare *p) { return conv_build(p, CONV_FORWARD, true); }
static void conv_forward_cost(const Node *node, NodeCost *cost) { conv_cost(node, CONV_FORWARD, cost); }

// One gradient node; the padding is written out, so that auto_pad need not be resolved again.
static Value *conv_grad_node(Grad *g, const Op *op, const LibraryConv *conv, Value *a, Value *b, const Type *result) {
  const Window *w = &conv->window;
  int n = w->n_axes, first = WINDOW_AXES - n;
  int64_t pads[2 * WINDOW_AXES];
  for (int d = 0; d < n; d++) {
    pads[d] = w->pad_begin[first + d];
    pads[n + d] = w->pad_end[first + d];
  }
  return emit(g->emit, op, INPUTS(a, b),
              ATTRS(A_INT("group", conv->groups), A_INTS("dilations", w->dilation + first, n), A_INTS("kernel_shape", w->kernel + first, n),
                    A_INTS("pads", pads, 2 * n), A_INTS("strides", w->stride + first, n), A_INTS("dims", result->dims, result->rank)));
}

static Status conv_grad(Grad *g) {
  const Node *node = g->node;
  Value *x = node->inputs[0], *w = node->inputs[1], *dy = g->dy[0];
  LibraryConv conv;
  Type type;
  if (!dy) return NULL;
  TRY(conv_of(node, CONV_FORWARD, &conv, &type));
  if (g->wanted[0]) g->dx[0] = conv_grad_node(g, &op_ConvInputGrad, &conv, dy, w, &x->type);
  if (g->wanted[1]) g->dx[1] = conv_grad_node(g, &op_ConvWeightGrad, &conv, x, dy, &w->type);
  if (conv.bias && g->wanted[2]) {
    int64_t axes[RANK_MAX];
    for (int d = 0, n = 0; d < type.rank; d++)
      if (d != 1) axes[n++] = d;
    g->dx[2] = emit(g->emit, &op_ReduceSum, INPUTS(dy, emit_int64s(g->emit, "axes", axes, type.rank - 1)), ATTRS(A_INT("keepdims", 0)));
  }
  return NULL;
}

const Op op_Conv = {
    .name = "Conv", .domain = "", .policy = POLICY_LOW, .min_inputs = 2, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1, .attrs = conv_attrs,
    .attrs_bytes = sizeof(ConvAttrs), .infer = conv_infer, .grad = conv_grad, .run_ref = conv_ref, .run_cpu = conv_run, .prepare = conv_prepare,
    .workspace = conv_workspace, .cost = conv_forward_cost};

// ---- ConvInputGrad -----------------------------------------------------------------------------------------------------------------

static Status input_grad_infer(Node *node, Arena *arena) {
  LibraryConv conv;
  return conv_of(node, CONV_INPUT_GRAD, &conv, &node->outputs[0]->type);
}

static Status input_grad_run_ref(const KernelContext *c) {
  LibraryConv conv;
  Type type;
  TRY(conv_of(c->node, CONV_INPUT_GRAD, &conv, &type));
  input_grad_ref(c, &conv);
  return NULL;
}

static Status input_grad_workspace(KernelPrepare *p) { return conv_build(p, CONV_INPUT_GRAD, false); }
static Status input_grad_prepare(KernelPrepare *p) { return conv_build(p, CONV_INPUT_GRAD, true); }
static void input_grad_cost(const Node *node, NodeCost *cost) { conv_cost(node, CONV_INPUT_GRAD, cost); }

const Op op_ConvInputGrad = {
    .name = "ConvInputGrad", .domain = "tessera", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .attrs = input_grad_attrs,
    .attrs_bytes = sizeof(ConvAttrs), .infer = input_grad_infer, .run_ref = input_grad_run_ref, .run_cpu = conv_run,
    .prepare = input_grad_prepare, .workspace = input_grad_workspace, .cost = input_grad_cost};

// ---- ConvWeightGrad ----------------------------------------------------------------------------------------------------------------

static Status weight_grad_infer(Node *node, Arena *arena) {
  LibraryConv conv;
  return conv_of(node, CONV_WEIGHT_GRAD, &conv, &node->outputs[0]->type);
}

static Status weight_grad_run_ref(const KernelContext *c) {
  LibraryConv conv;
  Type type;
  TRY(conv_of(c->node, CONV_WEIGHT_GRAD, &conv, &type));
  weight_grad_ref(c, &conv);
  return NULL;
}

static Status weight_grad_workspace(KernelPrepare *p) { return conv_build(p, CONV_WEIGHT_GRAD, false); }
static Status weight_grad_prepare(KernelPrepare *p) { return conv_build(p, CONV_WEIGHT_GRAD, true); }
static void weight_grad_cost(const Node *node, NodeCost *cost) { conv_cost(node, CONV_WEIGHT_GRAD, cost); }

const Op op_ConvWeightGrad = {
    .name = "ConvWeightGrad", .domain = "tessera", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1,
    .attrs = weight_grad_attrs, .attrs_bytes = sizeof(ConvAttrs), .infer = weight_grad_infer, .run_ref = weight_grad_run_ref,
    .run_cpu = conv_run, .prepare = weight_grad_prepare, .workspace = weight_grad_workspace, .cost = weight_grad_cost};
