// MaxUnpool: writes values back to the places that MaxPool's Indices say; Col2Im: adds columns of windows up to an image. Their gradients gather.
#include <string.h>

#include "index_input.h"
#include "kernel.h"
#include "ops.h"
#include "window.h"

// ---- MaxUnpool -----------------------------------------------------------------------------------------------------------------------

typedef struct UnpoolAttrs { AttrInts kernel_shape, pads, strides; } UnpoolAttrs;
static const AttrSpec unpool_attrs[] = {
    {"kernel_shape", ATTR_INTS, offsetof(UnpoolAttrs, kernel_shape), .required = true, .min = 1, .max = INT32_MAX, .help = "extent of the window"},
    {"pads", ATTR_INTS, offsetof(UnpoolAttrs, pads), .min = 0, .max = INT32_MAX, .help = "padding: all begins, then all ends"},
    {"strides", ATTR_INTS, offsetof(UnpoolAttrs, strides), .min = 1, .max = INT32_MAX, .help = "step of the window"},
    {0},
};

// The shape that X was pooled from as the attributes say, which is what indices count in.
static Status pooled_from(const Node *node, Type *out) {
  const UnpoolAttrs *a = node->attrs;
  const Type *x = &node->inputs[0]->type;
  int n = x->rank - 2;
  if (!dtype_is_float(x->dtype) || n < 1) FAIL(MALFORMED, node->name, "X must be floats [N, C, ...]");
  if (a->kernel_shape.n != n || (a->pads.n && a->pads.n != 2 * n) || (a->strides.n && a->strides.n != n))
    FAIL(MALFORMED, node->name, "attributes kernel_shape, strides and pads do not fit %d spatial axes", n);
  Type t = *x;
  for (int d = 0; d < n; d++) {
    int64_t stride = a->strides.n ? a->strides.items[d] : 1, pads = a->pads.n ? a->pads.items[d] + a->pads.items[n + d] : 0;
    if (x->dims[2 + d] > INT32_MAX) FAIL(MALFORMED, node->name, "spatial axis %d has %lld elements", d, (long long)x->dims[2 + d]);
    t.dims[2 + d] = (x->dims[2 + d] - 1) * stride + a->kernel_shape.items[d] - pads;
    if (t.dims[2 + d] < 0) FAIL(MALFORMED, node->name, "spatial axis %d would have %lld elements", d, (long long)t.dims[2 + d]);
  }
  *out = t;
  return type_check(out, node->name);
}

static Status unpool_infer(Node *node, Arena *arena) {
  Type from, y;
  TRY(pooled_from(node, &from));
  y = from;
  if (node->inputs[1]->type.dtype != DTYPE_I64 || !type_same_shape(&node->inputs[1]->type, &node->inputs[0]->type))
    FAIL(MALFORMED, node->name, "the indices must be an int64 for each element of X");
  if (node_has_input(node, 2)) {
    int n;
    TRY(index_constant(node, 2, y.dims, RANK_MAX, &n));
    bool larger = n == y.rank && y.dims[0] == from.dims[0] && y.dims[1] == from.dims[1];
    for (int d = 2; larger && d < n; d++) larger = y.dims[d] >= from.dims[d];
    if (!larger)
      FAIL(MALFORMED, node->name, "output_shape must have %d numbers, samples and channels as X, and nothing smaller than what the attributes say",
           y.rank);
  }
  node->outputs[0]->type = y;
  return type_check(&y, node->name);
}

// An index into `from` as one into `to`.
static int64_t moved_index(const Type *from, const Type *to, int64_t at) {
  int64_t place = 0, step = 1;
  for (int d = from->rank - 1; d >= 0; d--) {
    place += at % from->dims[d] * step;
    at /= from->dims[d];
    step *= to->dims[d];
  }
  return place;
}

static Status unpool_ref(const KernelContext *c) {
  Type from;
  TRY(pooled_from(c->node, &from));
  int64_t places = type_elems(&from);
  if (out_elems(c, 0)) memset(c->out[0].data, 0, (size_t)type_bytes(c->out[0].type));
  for (int64_t i = 0, n = in_elems(c, 0); i < n; i++) {
    int64_t at = in_i(c, 1, i);
    if (at < 0 || at >= places) FAIL(MALFORMED, c->node->name, "index %lld is outside [0, %lld)", (long long)at, (long long)places);
    out_f(c, 0, moved_index(&from, c->out[0].type, at), in_f(c, 0, i));
  }
  return NULL;
}

// dX gathers dY, of which what the attributes do not cover is cut off first.
static Status unpool_grad(Grad *g) {
  const Node *node = g->node;
  Emit *e = g->emit;
  Type from;
  TRY(pooled_from(node, &from));
  Value *dy = g->dy[0];
  const int64_t starts[RANK_MAX] = {0}, all[] = {-1};
  if (!type_same_shape(&from, &dy->type))
    dy = emit(e, &op_Slice, INPUTS(dy, emit_int64s(e, "starts", starts, from.rank), emit_int64s(e, "ends", from.dims, from.rank)), NULL);
  Value *flat = emit(e, &op_Reshape, INPUTS(dy, emit_int64s(e, "shape", all, 1)), NULL);
  if (flat) g->dx[0] = emit(e, &op_Gather, INPUTS(flat, node->inputs[1]), NULL);
  return NULL;
}

const Op op_MaxUnpool = {
    .name = "MaxUnpool", .domain = "", .min_inputs = 2, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 1 << 1 | 1 << 2,
    .attrs = unpool_attrs, .attrs_bytes = sizeof(UnpoolAttrs), .infer = unpool_infer, .grad = unpool_grad, .run_ref = unpool_ref};

// ---- Col2Im: [N, C x taps, windows] -> [N, C, image] -------------------------------------------------------------------------------------

typedef struct Col2ImAttrs { AttrInts dilations, pads, strides, image, block; } Col2ImAttrs;
#define COLUMN_ATTRS                                                                                                                          \
  {"dilations", ATTR_INTS, offsetof(Col2ImAttrs, dilations), .min = 1, .max = INT32_MAX, .help = "step within the window"},                    \
  {"pads", ATTR_INTS, offsetof(Col2ImAttrs, pads), .min = 0, .max = INT32_MAX, .help = "padding: all begins, then all ends"},                  \
  {"strides", ATTR_INTS, offsetof(Col2ImAttrs, strides), .min = 1, .max = INT32_MAX, .help = "step of the window"}
static const AttrSpec col2im_attrs[] = {COLUMN_ATTRS, {0}};
static const AttrSpec im2col_attrs[] = {
    COLUMN_ATTRS,
    {"block_shape", ATTR_INTS, offsetof(Col2ImAttrs, block), .required = true, .min = 1, .max = INT32_MAX, .help = "extent of the window"}, {0}};

// `image` and `block` as given; any number of axes up to what a window has.
static Status columns_window(const Node *node, int n, const int64_t *image, const int64_t *block, Window *out) {
  const Col2ImAttrs *a = node->attrs;
  const WindowAttrs window = {.auto_pad = "NOTSET", .dilations = a->dilations, .pads = a->pads, .strides = a->strides};
  for (int d = 0; d < n; d++)
    if (image[d] < 0 || image[d] > INT32_MAX) FAIL(MALFORMED, node->name, "the image has %lld elements on axis %d", (long long)image[d], d);
  return window_make(node, &window, n, image, block, false, out);
}

static Status col2im_window(const Node *node, Window *out, int64_t *channels) {
  int64_t image[WINDOW_AXES], block[WINDOW_AXES];
  int n, m;
  TRY(index_constant(node, 1, image, WINDOW_AXES, &n));
  TRY(index_constant(node, 2, block, WINDOW_AXES, &m));
  if (n != m) FAIL(MALFORMED, node->name, "image_shape has %d numbers and block_shape %d", n, m);
  TRY(columns_window(node, n, image, block, out));
  const Type *x = &node->inputs[0]->type;
  int64_t taps = window_elems(out->kernel), windows = window_elems(out->out);
  char text[160];
  if (!dtype_is_float(x->dtype) || x->rank != 3 || x->dims[1] % taps || x->dims[2] != windows)
    FAIL(MALFORMED, node->name, "the columns are %s; floats [N, a multiple of %lld, %lld] are needed", type_text(x, text, sizeof text),
         (long long)taps, (long long)windows);
  *channels = x->dims[1] / taps;
  return NULL;
}

static Status col2im_infer(Node *node, Arena *arena) {
  Window w;
  Type y = node->inputs[0]->type;
  TRY(col2im_window(node, &w, &y.dims[1]));
  y.rank = 2 + w.n_axes;
  for (int d = 0; d < w.n_axes; d++) y.dims[2 + d] = w.in[WINDOW_AXES - w.n_axes + d];
  node->outputs[0]->type = y;
  return NULL;
}

static Status col2im_ref(const KernelContext *c) {
  Window w;
  int64_t channels;
  TRY(col2im_window(c->node, &w, &channels));
  int64_t taps = window_elems(w.kernel), windows = window_elems(w.out), places = window_elems(w.in);
  if (out_elems(c, 0)) memset(c->out[0].data, 0, (size_t)type_bytes(c->out[0].type));
  for (int64_t i = 0; i < c->in[0].type->dims[0] * channels; i++)
    for (int64_t k = 0; k < taps; k++)
      for (int64_t o = 0; o < windows; o++) {
        int64_t at = window_element(&w, o, k), to = i * places + at;
        if (at >= 0) out_f(c, 0, to, element_read(c->out[0].data, c->out[0].type->dtype, to) + in_f(c, 0, (i * taps + k) * windows + o));
      }
  return NULL;
}

static Status col2im_grad(Grad *g) {
  const Col2ImAttrs *a = g->node->attrs;
  Window w;
  int64_t channels;
  TRY(col2im_window(g->node, &w, &channels));
  g->dx[0] = emit(g->emit, &op_Im2Col, INPUTS(g->dy[0]),
                  ATTRS(A_INTS("dilations", a->dilations.items, a->dilations.n), A_INTS("pads", a->pads.items, a->pads.n),
                        A_INTS("strides", a->strides.items, a->strides.n), A_INTS("block_shape", w.kernel + WINDOW_AXES - w.n_axes, w.n_axes)));
  return NULL;
}

const Op op_Col2Im = {
    .name = "Col2Im", .domain = "", .min_inputs = 3, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 1 << 1 | 1 << 2,
    .attrs = col2im_attrs, .attrs_bytes = sizeof(Col2ImAttrs), .infer = col2im_infer, .grad = col2im_grad, .run_ref = col2im_ref};

// ---- Im2Col: the columns of an image, 0 in the padding -----------------------------------------------------------------------------------

static Status im2col_window(const Node *node, Window *out) {
  const Col2ImAttrs *a = node->attrs;
  const Type *x = &node->inputs[0]->type;
  if (!dtype_is_float(x->dtype) || x->rank < 3 || a->block.n != x->rank - 2)
    FAIL(MALFORMED, node->name, "X must be floats [N, C, ...] and block_shape fit it");
  return columns_window(node, x->rank - 2, x->dims + 2, a->block.items, out);
}

static Status im2col_infer(Node *node, Arena *arena) {
  Window w;
  const Type *x = &node->inputs[0]->type;
  TRY(im2col_window(node, &w));
  Type y = type_make(x->dtype, 3, (const int64_t[]){x->dims[0], x->dims[1], window_elems(w.out)});
  TRY(type_check(&y, node->name));
  if (window_elems(w.kernel) > INT32_MAX || y.dims[1] > INT32_MAX)
    FAIL(MALFORMED, node->name, "%lld channels under windows of %lld", (long long)y.dims[1], (long long)window_elems(w.kernel));
  y.dims[1] *= window_elems(w.kernel);
  node->outputs[0]->type = y;
  return NULL;
}

static Status im2col_ref(const KernelContext *c) {
  Window w;
  TRY(im2col_window(c->node, &w));
  int64_t taps = window_elems(w.kernel), windows = window_elems(w.out), places = window_elems(w.in);
  for (int64_t i = 0; i < c->in[0].type->dims[0] * c->in[0].type->dims[1]; i++)
    for (int64_t k = 0; k < taps; k++)
      for (int64_t o = 0; o < windows; o++) {
        int64_t at = window_element(&w, o, k);
        out_f(c, 0, (i * taps + k) * windows + o, at < 0 ? 0 : in_f(c, 0, i * places + at));
      }
  return NULL;
}

const Op op_Im2Col = {
    .name = "Im2Col", .domain = "tessera", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1, .attrs = im2col_attrs,
    .attrs_bytes = sizeof(Col2ImAttrs), .infer = im2col_infer, .run_ref = im2col_ref};
