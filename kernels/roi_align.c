// RoiAlign: means (or maxima) of X at sample points spread over boxes, read between its elements. Its gradient spreads along the same weights.
#include <math.h>
#include <string.h>

#include "kernel.h"
#include "ops.h"

typedef struct RoiAttrs { const char *coordinates, *mode; int64_t height, width, sampling; float scale; AttrInts dims; } RoiAttrs;
#define ROI_ATTRS                                                                                                                          \
  {"coordinate_transformation_mode", ATTR_STRING, offsetof(RoiAttrs, coordinates), .default_string = "half_pixel",                         \
   .help = "half_pixel: boxes are shifted by half an element; output_half_pixel: not"},                                                    \
  {"mode", ATTR_STRING, offsetof(RoiAttrs, mode), .default_string = "avg", .help = "avg or max"},                                          \
  {"output_height", ATTR_INT, offsetof(RoiAttrs, height), .default_int = 1, .min = 1, .max = INT32_MAX, .help = "rows of a pooled box"},    \
  {"output_width", ATTR_INT, offsetof(RoiAttrs, width), .default_int = 1, .min = 1, .max = INT32_MAX, .help = "columns of a pooled box"},   \
  {"sampling_ratio", ATTR_INT, offsetof(RoiAttrs, sampling), .min = 0, .max = 4096, .help = "points per bin and axis; 0: as the box needs"}, \
  {"spatial_scale", ATTR_FLOAT, offsetof(RoiAttrs, scale), .default_float = 1, .help = "from the boxes' coordinates to X's"}
static const AttrSpec roi_attrs[] = {ROI_ATTRS, {0}};
static const AttrSpec roi_grad_attrs[] = {
    ROI_ATTRS, {"dims", ATTR_INTS, offsetof(RoiAttrs, dims), .required = true, .min = 0, .max = INT64_C(1) << 46, .help = "dimensions of X"}, {0}};

enum { IN_X, IN_ROIS, IN_BATCH };   // the gradient: dY in the place of X

static Status roi_check(const Node *node, const Type *x) {
  const RoiAttrs *a = node->attrs;
  const Type *rois = &node->inputs[IN_ROIS]->type, *batch = &node->inputs[IN_BATCH]->type;
  if (!dtype_is_float(x->dtype) || x->rank != 4 || rois->dtype != x->dtype || rois->rank != 2 || rois->dims[1] != 4)
    FAIL(MALFORMED, node->name, "X must be floats [N, C, H, W] and the boxes [boxes, 4] of the same type");
  if (!dtype_is_integer(batch->dtype) || batch->rank != 1 || batch->dims[0] != rois->dims[0])
    FAIL(MALFORMED, node->name, "batch_indices must be an integer for each box");
  if (strcmp(a->mode, "avg") && strcmp(a->mode, "max")) FAIL(MALFORMED, node->name, "attribute mode = \"%s\" must be avg or max", a->mode);
  if (strcmp(a->coordinates, "half_pixel") && strcmp(a->coordinates, "output_half_pixel"))
    FAIL(MALFORMED, node->name, "attribute coordinate_transformation_mode = \"%s\" must be half_pixel or output_half_pixel", a->coordinates);
  return NULL;
}

static Type pooled_type(const Node *node, const Type *x) {
  const RoiAttrs *a = node->attrs;
  return type_make(x->dtype, 4, (const int64_t[]){node->inputs[IN_ROIS]->type.dims[0], x->dims[1], a->height, a->width});
}

static Status roi_infer(Node *node, Arena *arena) {
  TRY(roi_check(node, &node->inputs[IN_X]->type));
  node->outputs[0]->type = pooled_type(node, &node->inputs[IN_X]->type);
  return NULL;
}

// One box in X's coordinates, and its bins.
typedef struct Box { int64_t sample; double top, left, bin_height, bin_width; int64_t rows, columns; } Box;

static Status box_make(const KernelContext *c, const Type *x, int64_t r, Box *out) {
  const RoiAttrs *a = c->node->attrs;
  bool half = !strcmp(a->coordinates, "half_pixel");
  double corner[4];
  for (int i = 0; i < 4; i++) corner[i] = in_f(c, IN_ROIS, 4 * r + i) * (double)a->scale - (half ? 0.5 : 0);
  double width = corner[2] - corner[0], height = corner[3] - corner[1];
  if (!half) width = fmax(width, 1), height = fmax(height, 1);
  Box b = {.sample = in_i(c, IN_BATCH, r),
           .top = corner[1],
           .left = corner[0],
           .bin_height = height / (double)a->height,
           .bin_width = width / (double)a->width};
  if (b.sample < 0 || b.sample >= x->dims[0])
    FAIL(MALFORMED, c->node->name, "box %lld is of sample %lld of %lld", (long long)r, (long long)b.sample, (long long)x->dims[0]);
  double rows = a->sampling ? (double)a->sampling : ceil(b.bin_height), columns = a->sampling ? (double)a->sampling : ceil(b.bin_width);
  if (!(rows <= 4096 && columns <= 4096)) FAIL(MALFORMED, c->node->name, "box %lld is %g x %g elements large", (long long)r, height, width);
  b.rows = rows < 0 ? 0 : (int64_t)rows;
  b.columns = columns < 0 ? 0 : (int64_t)columns;
  *out = b;
  return NULL;
}

// The four elements around a point and their weights; all weights 0 far outside.
typedef struct Corners { int64_t at[4]; double weight[4]; } Corners;

static Corners corners_of(const Type *x, double row, double column) {
  int64_t height = x->dims[2], width = x->dims[3];
  Corners k = {0};
  if (row < -1 || row > (double)height || column < -1 || column > (double)width) return k;
  row = row < 0 ? 0 : row;
  column = column < 0 ? 0 : column;
  int64_t top = (int64_t)row, left = (int64_t)column;
  if (top >= height - 1) top = height - 1, row = (double)top;
  if (left >= width - 1) left = width - 1, column = (double)left;
  int64_t bottom = top + 1 < height ? top + 1 : top, right = left + 1 < width ? left + 1 : left;
  double down = row - (double)top, over = column - (double)left;
  return (Corners){{top * width + left, top * width + right, bottom * width + left, bottom * width + right},
                   {(1 - down) * (1 - over), (1 - down) * over, down * (1 - over), down * over}};
}

// Calls for every point of bin (i, j); avg: sums, max: keeps the greatest weighted corner.
typedef struct Bin { double sum, max; int64_t at; double weight; bool any; } Bin;

static Corners bin_point(const Type *x, const Box *b, int64_t i, int64_t j, int64_t p) {
  double row = b->top + ((double)i + ((double)(p / b->columns) + 0.5) / (double)b->rows) * b->bin_height;
  double column = b->left + ((double)j + ((double)(p % b->columns) + 0.5) / (double)b->columns) * b->bin_width;
  return corners_of(x, row, column);
}

static Bin bin_of(const KernelContext *c, int input, const Type *x, const Box *b, int64_t plane, int64_t i, int64_t j) {
  Bin bin = {0};
  for (int64_t p = 0; p < b->rows * b->columns; p++) {
    Corners k = bin_point(x, b, i, j, p);
    for (int q = 0; q < 4; q++) {
      double v = k.weight[q] * in_f(c, input, plane + k.at[q]);
      bin.sum += v;
      if (bin.any && !(v > bin.max)) continue;
      bin.any = true;
      bin.max = v;
      bin.at = k.at[q];
      bin.weight = k.weight[q];
    }
  }
  return bin;
}

static double bin_count(const Box *b) { return (double)(b->rows * b->columns > 0 ? b->rows * b->columns : 1); }

static Status roi_ref(const KernelContext *c) {
  const Type *x = c->in[IN_X].type, *y = c->out[0].type;
  bool max = !strcmp(((const RoiAttrs *)c->node->attrs)->mode, "max");
  int64_t bins = y->dims[2] * y->dims[3], places = x->dims[2] * x->dims[3];
  for (int64_t r = 0; r < y->dims[0]; r++) {
    Box b;
    TRY(box_make(c, x, r, &b));
    for (int64_t channel = 0; channel < x->dims[1]; channel++)
      for (int64_t e = 0; e < bins; e++) {
        Bin bin = places ? bin_of(c, IN_X, x, &b, (b.sample * x->dims[1] + channel) * places, e / y->dims[3], e % y->dims[3]) : (Bin){0};
        out_f(c, 0, (r * x->dims[1] + channel) * bins + e, max ? bin.max : bin.sum / bin_count(&b));
      }
  }
  return NULL;
}

static Status roi_grad(Grad *g) {
  const Node *node = g->node;
  const RoiAttrs *a = node->attrs;
  const Type *x = &node->inputs[IN_X]->type;
  if (g->wanted[IN_ROIS]) FAIL(UNSUPPORTED, node->name, "a trainable parameter reaches the boxes of RoiAlign: they have no gradient");
  bool max = !strcmp(a->mode, "max");   // which element won shows in X only
  g->dx[0] = emit(g->emit, &op_RoiAlignGrad, INPUTS(g->dy[0], node->inputs[IN_ROIS], node->inputs[IN_BATCH], max ? node->inputs[IN_X] : NULL),
                  ATTRS(A_STRING("coordinate_transformation_mode", a->coordinates), A_STRING("mode", a->mode), A_INT("output_height", a->height),
                        A_INT("output_width", a->width), A_INT("sampling_ratio", a->sampling), A_FLOAT("spatial_scale", a->scale),
                        A_INTS("dims", x->dims, x->rank)));
  return NULL;
}

const Op op_RoiAlign = {
    .name = "RoiAlign", .domain = "", .min_inputs = 3, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 1 << IN_BATCH,
    .attrs = roi_attrs, .attrs_bytes = sizeof(RoiAttrs), .infer = roi_infer, .grad = roi_grad, .run_ref = roi_ref};

// ---- RoiAlignGrad(dY, boxes, batch_indices, X for the maxima) ---------------------------------------------------------------------------------

static Status roi_grad_infer(Node *node, Arena *arena) {
  const RoiAttrs *a = node->attrs;
  const Type *dy = &node->inputs[0]->type;
  if (a->dims.n != 4) FAIL(MALFORMED, node->name, "attribute dims has %lld numbers; X has 4", (long long)a->dims.n);
  Type x = type_make(dy->dtype, 4, a->dims.items);
  TRY(roi_check(node, &x));
  Type y = pooled_type(node, &x);
  bool has_x = node->n_inputs > 3 && node->inputs[3];
  if (!type_equal(dy, &y) || (has_x && !type_equal(&node->inputs[3]->type, &x)))
    FAIL(MALFORMED, node->name, "dY or X does not fit the boxes and dims");
  if (!has_x && !strcmp(a->mode, "max")) FAIL(MALFORMED, node->name, "the gradient of maxima needs X");
  node->outputs[0]->type = x;
  return NULL;
}

static void spread(const KernelContext *c, int64_t at, double value) {
  out_f(c, 0, at, element_read(c->out[0].data, c->out[0].type->dtype, at) + value);
}

static Status roi_grad_ref(const KernelContext *c) {
  const Type *x = c->out[0].type, *y = c->in[0].type;
  bool max = !strcmp(((const RoiAttrs *)c->node->attrs)->mode, "max");
  int64_t bins = y->dims[2] * y->dims[3], places = x->dims[2] * x->dims[3];
  if (!out_elems(c, 0)) return NULL;
  memset(c->out[0].data, 0, (size_t)type_bytes(x));
  for (int64_t r = 0; r < y->dims[0]; r++) {
    Box b;
    TRY(box_make(c, x, r, &b));
    for (int64_t channel = 0; channel < x->dims[1]; channel++)
      for (int64_t e = 0; e < bins; e++) {
        int64_t plane = (b.sample * x->dims[1] + channel) * places;
        double dy = in_f(c, 0, (r * x->dims[1] + channel) * bins + e);
        if (max) {
          Bin bin = bin_of(c, 3, x, &b, plane, e / y->dims[3], e % y->dims[3]);
          if (bin.any) spread(c, plane + bin.at, bin.weight * dy);
          continue;
        }
        for (int64_t p = 0; p < b.rows * b.columns; p++) {
          Corners k = bin_point(x, &b, e / y->dims[3], e % y->dims[3], p);
          for (int q = 0; q < 4; q++) spread(c, plane + k.at[q], k.weight[q] * dy / bin_count(&b));
        }
      }
  }
  return NULL;
}

const Op op_RoiAlignGrad = {
    .name = "RoiAlignGrad", .domain = "tessera", .min_inputs = 3, .max_inputs = 4, .min_outputs = 1, .max_outputs = 1, .attrs = roi_grad_attrs,
    .attrs_bytes = sizeof(RoiAttrs), .infer = roi_grad_infer, .run_ref = roi_grad_ref};
