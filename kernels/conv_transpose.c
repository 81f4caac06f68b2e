// ConvTranspose: X [N, C, ...], W [C, O / group, ...] -> Y [N, O, ...]. It is the input gradient of a convolution whose result has X's shape: the
// window's `in` is Y's extent and its `out` X's.
#include <string.h>

#include "dnnl_primitive.h"
#include "index_input.h"
#include "kernel.h"
#include "ops.h"
#include "window.h"

typedef struct TransposeAttrs { WindowAttrs window; int64_t group; AttrInts output_padding, output_shape; } TransposeAttrs;
static const AttrSpec transpose_attrs[] = {
    WINDOW_ATTRS(TransposeAttrs),
    {"group", ATTR_INT, offsetof(TransposeAttrs, group), .default_int = 1, .min = 1, .max = INT32_MAX, .help = "groups of channels"},
    {"output_padding", ATTR_INTS, offsetof(TransposeAttrs, output_padding), .min = 0, .max = INT32_MAX,
     .help = "added at the end of Y, per spatial axis"},
    {"output_shape", ATTR_INTS, offsetof(TransposeAttrs, output_shape), .min = 1, .max = INT32_MAX, .help = "spatial extents of Y; pads follow"},
    {0},
};

// Padding of one axis when the extent of Y is given: what is too much goes away at both ends.
static void split_padding(const char *auto_pad, int64_t total, int64_t *begin, int64_t *end) {
  if (total < 0) total = 0;
  *begin = !strcmp(auto_pad, "SAME_UPPER") ? total / 2 : total - total / 2;
  *end = total - *begin;
}

static Status axis_make(const Node *node, const TransposeAttrs *a, Window *w, int d, int axis, int n_axes) {
  int64_t reach = (w->out[d] - 1) * w->stride[d] + (w->kernel[d] - 1) * w->dilation[d] + 1;     // of the windows over Y, without padding
  int64_t extra = a->output_padding.n ? a->output_padding.items[axis] : 0;
  bool same = !strncmp(a->window.auto_pad, "SAME", 4);
  if (a->output_shape.n || same) {
    w->in[d] = a->output_shape.n ? a->output_shape.items[a->output_shape.n - n_axes + axis] : w->out[d] * w->stride[d];
    split_padding(a->window.auto_pad, reach + extra - w->in[d], &w->pad_begin[d], &w->pad_end[d]);
  } else {
    bool given = a->window.pads.n && strcmp(a->window.auto_pad, "VALID");
    w->pad_begin[d] = given ? a->window.pads.items[axis] : 0;
    w->pad_end[d] = given ? a->window.pads.items[n_axes + axis] : 0;
    w->in[d] = reach + extra - w->pad_begin[d] - w->pad_end[d];
  }
  if (w->in[d] < 0 || w->in[d] > INT32_MAX)
    FAIL(MALFORMED, node->name, "spatial axis %d: Y would have %lld elements with pads %lld and %lld", axis, (long long)w->in[d],
         (long long)w->pad_begin[d], (long long)w->pad_end[d]);
  return NULL;
}

static Status transpose_make(const Node *node, LibraryConv *out, Type *y) {
  const TransposeAttrs *a = node->attrs;
  const Type *x = &node->inputs[0]->type, *w = &node->inputs[1]->type;
  char x_text[160], w_text[160];
  int n = x->rank - 2;
  if (!dtype_is_float(x->dtype) || x->dtype != w->dtype || n < 1 || w->rank != x->rank || x->dims[1] != w->dims[0] || w->dims[0] % a->group)
    FAIL(MALFORMED, node->name, "X %s and W %s must be floats [N, C, ...] and [C, O / group, ...] of one type, and group = %lld must divide C",
         type_text(x, x_text, sizeof x_text), type_text(w, w_text, sizeof w_text), (long long)a->group);
  if (n > WINDOW_AXES) FAIL(UNSUPPORTED, node->name, "%d spatial axes; 1 to %d are supported", n, WINDOW_AXES);
  if ((a->output_padding.n && a->output_padding.n != n) || (a->output_shape.n && a->output_shape.n != n && a->output_shape.n != x->rank))
    FAIL(MALFORMED, node->name, "attributes output_padding and output_shape need %d numbers", n);
  if (w->dims[1] > INT32_MAX) FAIL(MALFORMED, node->name, "W has %lld output channels per group", (long long)w->dims[1]);
  LibraryConv conv = {.kind = CONV_INPUT_GRAD,
                      .batch = x->dims[0],
                      .in_channels = w->dims[1] * a->group,
                      .out_channels = x->dims[1],
                      .groups = a->group};
  // The checks of attributes are those of any window; its extents follow from X.
  int64_t wide[WINDOW_AXES] = {INT32_MAX, INT32_MAX, INT32_MAX};
  WindowAttrs plain = a->window;
  TRY(window_make(node, &plain, n, wide, w->dims + 2, false, &conv.window));
  *y = *x;
  y->dims[1] = conv.in_channels;
  for (int axis = 0; axis < n; axis++) {
    int d = axis + WINDOW_AXES - n;
    conv.window.out[d] = x->dims[2 + axis];
    TRY(axis_make(node, a, &conv.window, d, axis, n));
    y->dims[2 + axis] = conv.window.in[d];
  }
  *out = conv;
  return type_check(y, node->name);
}

static Status transpose_infer(Node *node, Arena *arena) {
  LibraryConv conv;
  Type y;
  TRY(transpose_make(node, &conv, &y));
  Type bias = type_vector(y.dtype, conv.in_channels);
  if (node_has_input(node, 2) && !type_equal(&node->inputs[2]->type, &bias))
    FAIL(MALFORMED, node->name, "B '%s' must be %s[%lld]", node->inputs[2]->name, dtype_name(y.dtype), (long long)conv.in_channels);
  node->outputs[0]->type = y;
  return NULL;
}

// Place of X whose window has Y's place `o` under tap `k`; -1: none.
static int64_t window_over(const Window *w, int64_t o, int64_t k) {
  int64_t place = 0, step = 1;
  for (int d = WINDOW_AXES - 1; d >= 0; d--) {
    int64_t at = o % w->in[d] + w->pad_begin[d] - k % w->kernel[d] * w->dilation[d];
    if (at < 0 || at % w->stride[d] || at / w->stride[d] >= w->out[d]) return -1;
    place += at / w->stride[d] * step;
    step *= w->out[d];
    o /= w->in[d];
    k /= w->kernel[d];
  }
  return place;
}

static Status transpose_ref(const KernelContext *c) {
  LibraryConv v;
  Type y;
  TRY(transpose_make(c->node, &v, &y));
  const Window *w = &v.window;
  int64_t in = window_elems(w->in), out = window_elems(w->out), taps = window_elems(w->kernel);
  int64_t channels = v.in_channels / v.groups, inputs = v.out_channels / v.groups;
  for (int64_t n = 0; n < v.batch; n++)
    for (int64_t oc = 0; oc < v.in_channels; oc++)
      for (int64_t o = 0; o < in; o++) {
        double sum = has_input(c, 2) ? in_f(c, 2, oc) : 0;
        for (int64_t k = 0; k < taps; k++) {
          int64_t at = window_over(w, o, k);
          for (int64_t i = 0; at >= 0 && i < inputs; i++) {
            int64_t ic = oc / channels * inputs + i;
            sum += in_f(c, 0, (n * v.out_channels + ic) * out + at) * in_f(c, 1, (ic * channels + oc % channels) * taps + k);
          }
        }
        out_f(c, 0, (n * v.in_channels + oc) * in + o, sum);
      }
  return NULL;
}

// The library knows convolutions whose result has the extent that window and padding say: not those with much output padding.
static bool library_takes(const LibraryConv *v) {
  const Window *w = &v->window;
  if (!v->batch || !v->in_channels || !v->out_channels || !window_elems(w->in) || !window_elems(w->out)) return false;
  for (int d = 0; d < WINDOW_AXES; d++) {
    int64_t room = w->in[d] + w->pad_begin[d] + w->pad_end[d] - (w->kernel[d] - 1) * w->dilation[d] - 1;
    if (room < 0 || room / w->stride[d] + 1 != w->out[d]) return false;
  }
  return true;
}

static Status transpose_build(KernelPrepare *p, bool make) {
  LibraryConv conv;
  Type y;
  TRY(transpose_make(p->node, &conv, &y));
  return library_takes(&conv) ? library_conv(p, &conv, make) : NULL;
}
static Status transpose_workspace(KernelPrepare *p) { return transpose_build(p, false); }
static Status transpose_prepare(KernelPrepare *p) { return transpose_build(p, true); }

static void transpose_cost(const Node *node, NodeCost *cost) {
  LibraryConv conv;
  Type y;
  Status status = transpose_make(node, &conv, &y);
  if (!status) library_conv_cost(&conv, cost);
  if (!status && !library_takes(&conv)) {
    cost->work[WORK_PLAIN_FLOP] += cost->work[WORK_CONV];
    cost->work[WORK_CONV] = 0;
  }
  status_free(status);
}

static Status transpose_cpu(const KernelContext *c) {
  if (!c->prepared) return transpose_ref(c);
  void *const pointers[LIBRARY_POINTERS] = {c->in[0].data, c->in[1].data, c->out[0].data, NULL};
  TRY(library_call_run(c->prepared, c->node, pointers, c->workspace, c->scratch));
  if (!has_input(c, 2)) return NULL;
  int64_t channels = c->out[0].type->dims[1], places = out_elems(c, 0) / (c->out[0].type->dims[0] * channels);
  for (int64_t i = 0; i < c->out[0].type->dims[0] * channels; i++) {
    float *row = (float *)c->out[0].data + i * places;
    c->loops->add_s(row, row, ((const float *)c->in[2].data)[i % channels], places);
  }
  return NULL;
}

// dX is the convolution of dY, dW its weight gradient with X as the gradient of the result.
static Status transpose_grad(Grad *g) {
  const Node *node = g->node;
  Emit *e = g->emit;
  LibraryConv conv;
  Type y;
  TRY(transpose_make(node, &conv, &y));
  const Window *w = &conv.window;
  int n = w->n_axes, first = WINDOW_AXES - n;
  int64_t pads[2 * WINDOW_AXES], axes[RANK_MAX];
  if (!library_takes(&conv) && type_elems(&y) && conv.out_channels && window_elems(w->out))
    FAIL(UNSUPPORTED, node->name, "ConvTranspose with output_padding of a stride or more has no gradient");
  for (int d = 0; d < n; d++) {
    pads[d] = w->pad_begin[first + d];
    pads[n + d] = w->pad_end[first + d];
  }
  const AttrInit shared[] = {A_INT("group", conv.groups), A_INTS("dilations", w->dilation + first, n), A_INTS("kernel_shape", w->kernel + first, n),
                             A_INTS("pads", pads, 2 * n), A_INTS("strides", w->stride + first, n)};
  const Type *wt = &node->inputs[1]->type;
  if (g->wanted[0]) g->dx[0] = emit(e, &op_Conv, INPUTS(g->dy[0], node->inputs[1]), ATTRS(shared[0], shared[1], shared[2], shared[3], shared[4]));
  if (g->wanted[1])
    g->dx[1] = emit(e, &op_ConvWeightGrad, INPUTS(g->dy[0], node->inputs[0]),
                    ATTRS(shared[0], shared[1], shared[2], shared[3], shared[4], A_INTS("dims", wt->dims, wt->rank)));
  if (node_has_input(node, 2) && g->wanted[2]) {
    for (int d = 0, k = 0; d < y.rank; d++)
      if (d != 1) axes[k++] = d;
    g->dx[2] = emit(e, &op_ReduceSum, INPUTS(g->dy[0], emit_int64s(e, "axes", axes, y.rank - 1)), ATTRS(A_INT("keepdims", 0)));
  }
  return NULL;
}

const Op op_ConvTranspose = {
    .name = "ConvTranspose", .domain = "", .policy = POLICY_LOW, .min_inputs = 2, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1, .attrs = transpose_attrs,
    .attrs_bytes = sizeof(TransposeAttrs), .infer = transpose_infer, .grad = transpose_grad, .run_ref = transpose_ref, .run_cpu = transpose_cpu,
    .prepare = transpose_prepare, .workspace = transpose_workspace, .cost = transpose_cost};
