// MaxRoiPool: the greatest element in each bin of boxes cut out of X. Its gradient goes to the first greatest one.
#include <math.h>
#include <string.h>

#include "index_input.h"
#include "ops.h"

typedef struct RoiPoolAttrs { AttrInts pooled; float scale; } RoiPoolAttrs;
static const AttrSpec roi_pool_attrs[] = {
    {"pooled_shape", ATTR_INTS, offsetof(RoiPoolAttrs, pooled), .required = true, .min = 1, .max = INT32_MAX, .help = "rows and columns of a pooled box"},
    {"spatial_scale", ATTR_FLOAT, offsetof(RoiPoolAttrs, scale), .default_float = 1, .help = "from the boxes' coordinates to X's"},
    {0}};

enum { IN_X, IN_ROIS, IN_DY };

static Status roi_pool_make(const Node *node, Type *y) {
  const RoiPoolAttrs *a = node->attrs;
  const Type *x = input_type(node, IN_X), *rois = input_type(node, IN_ROIS);
  char x_text[160], rois_text[160];
  if (a->pooled.n != 2) FAIL(MALFORMED, node->name, "attribute pooled_shape has %lld numbers; 2 are needed", (long long)a->pooled.n);
  if (!dtype_is_float(x->dtype) || x->rank != 4 || rois->dtype != x->dtype || rois->rank != 2 || rois->dims[1] != 5)
    FAIL(MALFORMED, node->name, "X is %s and the boxes %s; floats [N, C, H, W] and [boxes, 5] of one type are needed", type_text(x, x_text, sizeof x_text),
         type_text(rois, rois_text, sizeof rois_text));
  *y = type_make(x->dtype, 4, (const int64_t[]){rois->dims[0], x->dims[1], a->pooled.items[0], a->pooled.items[1]});
  return type_check(y, node->name);
}

// Elements [from, end) of one axis that bin `i` of `bins` covers: bins of a box share their borders' elements.
typedef struct Span { int64_t from, end; } Span;

static Span bin_span(int64_t first, int64_t last, int64_t bins, int64_t i, int64_t extent) {
  int64_t length = last - first + 1 > 1 ? last - first + 1 : 1;
  Span s = {first + i * length / bins, first + ((i + 1) * length + bins - 1) / bins};
  if (s.from < 0) s.from = 0;
  if (s.end > extent) s.end = extent;
  return s;
}

// A corner in X's coordinates, rounded half away from zero.
static Status corner(const KernelContext *c, int64_t roi, int i, int64_t *out) {
  double v = round(in_f(c, IN_ROIS, 5 * roi + i) * (double)((const RoiPoolAttrs *)c->node->attrs)->scale);
  if (!(fabs(v) < INT32_MAX)) FAIL(MALFORMED, c->node->name, "box %lld has a corner at %g", (long long)roi, v);
  *out = (int64_t)v;
  return NULL;
}

// The first greatest element in the bin of plane `plane`; -1 where the bin is empty.
static int64_t greatest(const KernelContext *c, int64_t plane, int64_t width, Span rows, Span columns) {
  int64_t at = -1;
  for (int64_t i = rows.from; i < rows.end; i++)
    for (int64_t j = columns.from; j < columns.end; j++) {
      int64_t e = plane + i * width + j;
      if (at < 0 || in_f(c, IN_X, e) > in_f(c, IN_X, at)) at = e;
    }
  return at;
}

// Calls `use` for each element of Y with the element of X that it is, or -1.
static Status each_bin(const KernelContext *c, const Type *y, void (*use)(const KernelContext *c, int64_t to, int64_t from)) {
  const Type *x = c->in[IN_X].type;
  int64_t rows = y->dims[2], columns = y->dims[3], to = 0;
  for (int64_t roi = 0; roi < y->dims[0]; roi++) {
    int64_t edge[4];
    double sample = in_f(c, IN_ROIS, 5 * roi);
    if (!(sample >= 0 && sample < (double)x->dims[0]))
      FAIL(MALFORMED, c->node->name, "box %lld is of sample %g of %lld", (long long)roi, sample, (long long)x->dims[0]);
    for (int i = 0; i < 4; i++) TRY(corner(c, roi, 1 + i, &edge[i]));
    for (int64_t channel = 0; channel < x->dims[1]; channel++)
      for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++, to++) {
          Span vertical = bin_span(edge[1], edge[3], rows, i, x->dims[2]), across = bin_span(edge[0], edge[2], columns, j, x->dims[3]);
          use(c, to, greatest(c, ((int64_t)sample * x->dims[1] + channel) * x->dims[2] * x->dims[3], x->dims[3], vertical, across));
        }
  }
  return NULL;
}

static Status roi_pool_infer(Node *node, Arena *arena) { return roi_pool_make(node, &node->outputs[0]->type); }

static void put(const KernelContext *c, int64_t to, int64_t from) { out_f(c, 0, to, from < 0 ? 0 : in_f(c, IN_X, from)); }
static Status roi_pool_ref(const KernelContext *c) { return each_bin(c, c->out[0].type, put); }

static Status roi_pool_grad(Grad *g) {
  const Node *node = g->node;
  const RoiPoolAttrs *a = node->attrs;
  g->dx[IN_X] = emit(g->emit, &op_MaxRoiPoolGrad, INPUTS(node->inputs[IN_X], node->inputs[IN_ROIS], g->dy[0]),
                     ATTRS(A_INTS("pooled_shape", a->pooled.items, a->pooled.n), A_FLOAT("spatial_scale", a->scale)));
  return NULL;
}

const Op op_MaxRoiPool = {
    .name = "MaxRoiPool", .domain = "", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 1 << IN_ROIS,
    .attrs = roi_pool_attrs, .attrs_bytes = sizeof(RoiPoolAttrs), .infer = roi_pool_infer, .grad = roi_pool_grad, .run_ref = roi_pool_ref};

static Status roi_pool_grad_infer(Node *node, Arena *arena) {
  Type y;
  TRY(roi_pool_make(node, &y));
  if (!type_equal(input_type(node, IN_DY), &y)) FAIL(MALFORMED, node->name, "dY does not fit X and the boxes");
  node->outputs[0]->type = *input_type(node, IN_X);
  return NULL;
}

static void spread(const KernelContext *c, int64_t to, int64_t from) {
  if (from >= 0) out_f(c, 0, from, element_read(c->out[0].data, c->out[0].type->dtype, from) + in_f(c, IN_DY, to));
}
static Status roi_pool_grad_ref(const KernelContext *c) {
  if (out_elems(c, 0)) memset(c->out[0].data, 0, (size_t)type_bytes(c->out[0].type));
  return each_bin(c, c->in[IN_DY].type, spread);
}

const Op op_MaxRoiPoolGrad = {
    .name = "MaxRoiPoolGrad", .domain = "tessera", .min_inputs = 3, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1, .attrs = roi_pool_attrs,
    .attrs_bytes = sizeof(RoiPoolAttrs), .infer = roi_pool_grad_infer, .run_ref = roi_pool_grad_ref};
