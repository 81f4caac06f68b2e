// Resize and its gradient. Interpolation is separable: for every resized axis a table says which places of X an output coordinate takes, and
// with what weights; an output is the sum over the product of the axes' entries, and the gradient spreads along the same entries.
// Coordinates and weights follow ONNX's definition of the operator.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "index_input.h"
#include "kernel.h"
#include "ops.h"

typedef struct ResizeAttrs {
  int64_t antialias, exclude_outside;
  const char *coordinates, *policy, *mode, *nearest;
  float cubic_coeff_a, extrapolation_value;
  AttrInts axes, dims;
} ResizeAttrs;
#define STRING_ATTR(text, member, value, about) {text, ATTR_STRING, offsetof(ResizeAttrs, member), .default_string = value, .help = about}
#define RESIZE_ATTRS                                                                                                                          \
  {"antialias", ATTR_INT, offsetof(ResizeAttrs, antialias), .min = 0, .max = 1, .help = "1: wider windows when shrinking"},                   \
  {"axes", ATTR_INTS, offsetof(ResizeAttrs, axes), .help = "axes that roi, scales and sizes speak of; absent: all"},                          \
  STRING_ATTR("coordinate_transformation_mode", coordinates, "half_pixel", "from a place of Y to one of X"),                                  \
  {"cubic_coeff_a", ATTR_FLOAT, offsetof(ResizeAttrs, cubic_coeff_a), .default_float = -0.75f, .help = "coefficient of cubic interpolation"}, \
  {"exclude_outside", ATTR_INT, offsetof(ResizeAttrs, exclude_outside), .min = 0, .max = 1, .help = "1: places outside X weigh nothing"},     \
  {"extrapolation_value", ATTR_FLOAT, offsetof(ResizeAttrs, extrapolation_value), .help = "what tf_crop_and_resize finds outside X"},         \
  STRING_ATTR("keep_aspect_ratio_policy", policy, "stretch", "stretch, not_larger or not_smaller"),                                           \
  STRING_ATTR("mode", mode, "nearest", "nearest, linear or cubic"),                                                                           \
  STRING_ATTR("nearest_mode", nearest, "round_prefer_floor", "round_prefer_floor, round_prefer_ceil, floor or ceil")
static const AttrSpec resize_attrs[] = {RESIZE_ATTRS, {0}};
static const AttrSpec resize_grad_attrs[] = {RESIZE_ATTRS,
                                             {"dims", ATTR_INTS, offsetof(ResizeAttrs, dims), .required = true, .min = 0, .max = INT64_C(1) << 46,
                                              .help = "dimensions of X"},
                                             {0}};

enum { IN_X, IN_ROI, IN_SCALES, IN_SIZES };
typedef enum Mode { NEAREST, LINEAR, CUBIC } Mode;
typedef enum Coordinates { HALF_PIXEL, HALF_PIXEL_SYMMETRIC, PYTORCH_HALF_PIXEL, ALIGN_CORNERS, ASYMMETRIC, TF_CROP } Coordinates;
typedef enum Nearest { PREFER_FLOOR, PREFER_CEIL, FLOOR, CEIL } Nearest;

typedef struct Axis { int64_t in, out; double scale, roi_start, roi_end; bool resized; int taps; } Axis;
typedef struct Resize {
  Mode mode;
  Coordinates coordinates;
  Nearest nearest;
  bool antialias, exclude_outside;
  double cubic;
  int rank;
  Axis axes[RANK_MAX];
} Resize;

// ---- From attributes and inputs to numbers -----------------------------------------------------------------------------------------------

static Status choose(const Node *node, const char *attr, const char *text, const char *const *names, int n, int *out) {
  for (*out = 0; *out < n; ++*out)
    if (!strcmp(names[*out], text)) return NULL;
  FAIL(MALFORMED, node->name, "attribute %s = \"%s\" is none of ONNX's", attr, text);
}

// Floats of a constant input of `n` numbers.
static Status floats_constant(const Node *node, int input, int n, double *out) {
  const Value *v = node->inputs[input];
  const Weight *w = value_const(v);
  if (!w) FAIL(UNSUPPORTED, node->name, "Resize: input %d '%s' must be a constant, since it decides the result", input, v->name);
  if (!dtype_is_float(v->type.dtype) || v->type.rank != 1 || v->type.dims[0] != n)
    FAIL(MALFORMED, node->name, "Resize: '%s' must be %d floats", v->name, n);
  for (int i = 0; i < n; i++) out[i] = weight_read_float(w, i);
  return NULL;
}

static bool given(const Node *node, int input) { return node_has_input(node, input) && type_elems(input_type(node, input)) > 0; }

// Which axes the inputs speak of, in their order.
static Status listed_axes(const Node *node, int rank, int *axes, int *n) {
  const ResizeAttrs *a = node->attrs;
  uint32_t mask;
  if (a->axes.n > RANK_MAX) FAIL(MALFORMED, node->name, "attribute axes has %lld numbers", (long long)a->axes.n);
  TRY(index_axes(a->axes.items, (int)a->axes.n, rank, node->name, &mask));
  *n = a->axes.n ? (int)a->axes.n : rank;
  for (int i = 0; i < *n; i++) axes[i] = a->axes.n ? (int)((a->axes.items[i] + rank) % rank) : i;
  return NULL;
}

static Status extents_from_sizes(const Node *node, Resize *r, const int *axes, int n) {
  static const char *const policies[] = {"stretch", "not_larger", "not_smaller"};
  int64_t sizes[RANK_MAX];
  int policy, count;
  TRY(choose(node, "keep_aspect_ratio_policy", ((const ResizeAttrs *)node->attrs)->policy, policies, 3, &policy));
  TRY(index_constant(node, IN_SIZES, sizes, RANK_MAX, &count));
  if (count != n) FAIL(MALFORMED, node->name, "sizes has %d numbers for %d axes", count, n);
  double common = policy == 1 ? INFINITY : 0;
  for (int i = 0; i < n; i++) {
    Axis *axis = &r->axes[axes[i]];
    if (sizes[i] < 0 || sizes[i] > INT32_MAX) FAIL(MALFORMED, node->name, "sizes: %lld on axis %d", (long long)sizes[i], axes[i]);
    axis->out = sizes[i];
    axis->scale = axis->in ? (double)axis->out / (double)axis->in : 1;
    common = policy == 1 ? fmin(common, axis->scale) : fmax(common, axis->scale);
  }
  for (int i = 0; policy && i < n; i++) {
    Axis *axis = &r->axes[axes[i]];
    axis->scale = common;
    axis->out = (int64_t)floor(common * (double)axis->in + 0.5);
  }
  return NULL;
}

static Status extents_from_scales(const Node *node, Resize *r, const int *axes, int n) {
  double scales[RANK_MAX];
  TRY(floats_constant(node, IN_SCALES, n, scales));
  for (int i = 0; i < n; i++) {
    Axis *axis = &r->axes[axes[i]];
    double out = floor((double)axis->in * scales[i]);
    if (!(scales[i] > 0) || out > INT32_MAX) FAIL(MALFORMED, node->name, "scales: %g on axis %d of %lld", scales[i], axes[i], (long long)axis->in);
    axis->scale = scales[i];
    axis->out = (int64_t)out;
  }
  return NULL;
}

static int taps_of(const Resize *r, const Axis *axis) {
  if (r->mode == NEAREST) return 1;
  int reach = r->mode == LINEAR ? 1 : 2;
  if (!r->antialias || axis->scale >= 1) return 2 * reach;
  return (int)(2 - 2 * (floor(-reach / axis->scale) + 1));
}

static Status resize_make(const Node *node, const Type *x, Resize *out) {
  static const char *const modes[] = {"nearest", "linear", "cubic"}, *const nearest[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"};
  static const char *const places[] = {"half_pixel",    "half_pixel_symmetric", "pytorch_half_pixel",
                                       "align_corners", "asymmetric",           "tf_crop_and_resize"};
  const ResizeAttrs *a = node->attrs;
  int mode, coordinates, round, axes[RANK_MAX], n;
  TRY(choose(node, "mode", a->mode, modes, 3, &mode));
  TRY(choose(node, "coordinate_transformation_mode", a->coordinates, places, 6, &coordinates));
  TRY(choose(node, "nearest_mode", a->nearest, nearest, 4, &round));
  Resize r = {.mode = (Mode)mode, .coordinates = (Coordinates)coordinates, .nearest = (Nearest)round, .antialias = a->antialias,
              .exclude_outside = a->exclude_outside, .cubic = (double)a->cubic_coeff_a, .rank = x->rank};
  for (int d = 0; d < x->rank; d++) r.axes[d] = (Axis){.in = x->dims[d], .out = x->dims[d], .scale = 1, .roi_end = 1};
  TRY(listed_axes(node, x->rank, axes, &n));
  if (given(node, IN_SCALES) == given(node, IN_SIZES)) FAIL(MALFORMED, node->name, "Resize needs scales or sizes, and not both");
  TRY(given(node, IN_SIZES) ? extents_from_sizes(node, &r, axes, n) : extents_from_scales(node, &r, axes, n));
  if (r.coordinates == TF_CROP) {
    double roi[2 * RANK_MAX];
    if (!given(node, IN_ROI)) FAIL(MALFORMED, node->name, "tf_crop_and_resize needs the input roi");
    TRY(floats_constant(node, IN_ROI, 2 * n, roi));
    for (int i = 0; i < n; i++) r.axes[axes[i]].roi_start = roi[i], r.axes[axes[i]].roi_end = roi[n + i];
  }
  for (int d = 0; d < x->rank; d++) {
    Axis *axis = &r.axes[d];
    bool whole = r.coordinates != TF_CROP || (axis->roi_start == 0 && axis->roi_end == 1);
    axis->resized = !(axis->scale == 1 && axis->out == axis->in && whole);
    if (axis->out && !axis->in) FAIL(MALFORMED, node->name, "axis %d of X is empty, and %lld elements are wanted", d, (long long)axis->out);
    if (axis->resized && axis->scale < 1e-6) FAIL(UNSUPPORTED, node->name, "axis %d: a scale of %g", d, axis->scale);
    axis->taps = axis->resized ? taps_of(&r, axis) : 1;
  }
  *out = r;
  return NULL;
}

// ---- Tables ------------------------------------------------------------------------------------------------------------------------------

// Place of X for place `o` of Y.
static double source_of(const Resize *r, const Axis *axis, int64_t o) {
  double out = axis->scale * (double)axis->in, in = (double)axis->in, x = (double)o;
  switch (r->coordinates) {
  case ALIGN_CORNERS: return out == 1 ? 0 : x * (in - 1) / (out - 1);
  case ASYMMETRIC: return x / axis->scale;
  case TF_CROP: {
    double span = axis->roi_end - axis->roi_start;
    return axis->roi_start * (in - 1) + (out == 1 ? span * (in - 1) / 2 : x * span * (in - 1) / (out - 1));
  }
  case PYTORCH_HALF_PIXEL: return out == 1 ? -0.5 : (x + 0.5) / axis->scale - 0.5;
  case HALF_PIXEL_SYMMETRIC: return in / 2 * (1 - (double)axis->out / out) + (x + 0.5) / axis->scale - 0.5;
  default: return (x + 0.5) / axis->scale - 0.5;
  }
}

static double cubic_weight(double a, double x) {
  x = fabs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

static double nearest_place(Nearest nearest, double x) {
  return nearest == PREFER_FLOOR ? ceil(x - 0.5) : nearest == PREFER_CEIL ? floor(x + 0.5) : nearest == FLOOR ? floor(x) : ceil(x);
}

typedef struct Tap { int64_t at; double weight; } Tap;

// Entries of one output place. False where the place lies outside X and is extrapolated.
static bool taps_make(const Resize *r, const Axis *axis, int64_t o, Tap *taps) {
  double x = source_of(r, axis, o), last = (double)(axis->in - 1), total = 0;
  if (r->coordinates == TF_CROP && (x < 0 || x > last)) return false;
  double base = r->mode == NEAREST ? nearest_place(r->nearest, x) : ceil(x) - 1;      // the neighbour on the left, never x itself
  int start = r->mode == NEAREST ? 0 : 1 - axis->taps / 2;
  double shrink = r->antialias && axis->scale < 1 ? axis->scale : 1;
  for (int k = 0; k < axis->taps; k++) {
    double place = base + start + k, distance = (place - x) * shrink;
    double weight = r->mode == NEAREST ? 1 : r->mode == LINEAR ? fmax(0, 1 - fabs(distance)) : cubic_weight(r->cubic, distance);
    if (r->exclude_outside && r->mode != NEAREST && (place < 0 || place > last)) weight = 0;
    taps[k] = (Tap){(int64_t)(place < 0 ? 0 : place > last ? last : place), weight};
    total += weight;
  }
  for (int k = 0; r->mode != NEAREST && k < axis->taps; k++) taps[k].weight /= total;
  return true;
}

// Tables of the resized axes in one block: entries, then whether the place is inside.
typedef struct Tables { Tap *taps[RANK_MAX]; bool *inside[RANK_MAX]; int64_t in_strides[RANK_MAX], out_strides[RANK_MAX]; } Tables;

static int64_t tables_bytes(const Resize *r) {
  int64_t bytes = 64;
  for (int d = 0; d < r->rank; d++)
    if (r->axes[d].resized) bytes += r->axes[d].out * (r->axes[d].taps * (int64_t)sizeof(Tap) + (int64_t)sizeof(double));
  return bytes;
}

static void tables_make(const Resize *r, void *space, Tables *t) {
  Tap *at = space;
  int64_t in = 1, out = 1, places = 0;
  for (int d = r->rank - 1; d >= 0; d--) {
    t->in_strides[d] = in;
    t->out_strides[d] = out;
    in *= r->axes[d].in;
    out *= r->axes[d].out;
    t->taps[d] = r->axes[d].resized ? at : NULL;
    if (r->axes[d].resized) at += r->axes[d].out * r->axes[d].taps;
  }
  bool *flag = (bool *)at;
  for (int d = 0; d < r->rank; d++) {
    if (!r->axes[d].resized) continue;
    t->inside[d] = flag + places;
    places += r->axes[d].out;
    for (int64_t o = 0; o < r->axes[d].out; o++) t->inside[d][o] = taps_make(r, &r->axes[d], o, t->taps[d] + o * r->axes[d].taps);
  }
}

// ---- Running -----------------------------------------------------------------------------------------------------------------------------

// One output element: the resized axes left to go through.
typedef struct Spot { const Resize *r; const Tables *t; int64_t index[RANK_MAX]; int order[RANK_MAX], n; bool inside; } Spot;

static double spot_sum(const Spot *s, int k, int64_t at, const KernelContext *c, bool fast) {
  if (k == s->n) return fast ? (double)((const float *)c->in[0].data)[at] : in_f(c, 0, at);
  int d = s->order[k], taps = s->r->axes[d].taps;
  const Tap *tap = s->t->taps[d] + s->index[d] * taps;
  double sum = 0;
  for (int i = 0; i < taps; i++)
    if (tap[i].weight != 0) sum += tap[i].weight * spot_sum(s, k + 1, at + tap[i].at * s->t->in_strides[d], c, fast);
  return sum;
}

static void spot_spread(const Spot *s, int k, int64_t at, double value, const KernelContext *c) {
  if (k == s->n) {
    out_f(c, 0, at, element_read(c->out[0].data, c->out[0].type->dtype, at) + value);
    return;
  }
  int d = s->order[k], taps = s->r->axes[d].taps;
  const Tap *tap = s->t->taps[d] + s->index[d] * taps;
  for (int i = 0; i < taps; i++)
    if (tap[i].weight != 0) spot_spread(s, k + 1, at + tap[i].at * s->t->in_strides[d], value * tap[i].weight, c);
}

// Sets the index of output element `e`; returns the offset in X that the other axes give.
static int64_t spot_at(Spot *s, int64_t e) {
  int64_t offset = 0;
  s->inside = true;
  for (int d = s->r->rank - 1; d >= 0; d--) {
    s->index[d] = e % s->r->axes[d].out;
    e /= s->r->axes[d].out;
    if (!s->r->axes[d].resized) offset += s->index[d] * s->t->in_strides[d];
    else s->inside &= s->t->inside[d][s->index[d]];
  }
  return offset;
}

static void resize_walk(const KernelContext *c, const Resize *r, void *space, bool back, bool fast) {
  Tables t = {0};
  tables_make(r, space, &t);
  Spot s = {.r = r, .t = &t};
  for (int d = 0; d < r->rank; d++)
    if (r->axes[d].resized) s.order[s.n++] = d;
  double outside = (double)((const ResizeAttrs *)c->node->attrs)->extrapolation_value;
  int64_t n = back ? in_elems(c, 0) : out_elems(c, 0);
  if (back && out_elems(c, 0)) memset(c->out[0].data, 0, (size_t)type_bytes(c->out[0].type));
  for (int64_t e = 0; e < n; e++) {
    int64_t offset = spot_at(&s, e);
    if (back && s.inside) spot_spread(&s, 0, offset, in_f(c, 0, e), c);
    else if (!back) out_f(c, 0, e, s.inside ? spot_sum(&s, 0, offset, c, fast) : outside);
  }
}

static bool is_gradient(const Node *node) { return node->op == &op_ResizeGrad; }
static Type source_type(const Node *node) {
  const ResizeAttrs *a = node->attrs;
  return is_gradient(node) ? type_make(node->inputs[0]->type.dtype, (int)a->dims.n, a->dims.items) : node->inputs[0]->type;
}

static Status resize_ref(const KernelContext *c) {
  Type x = source_type(c->node);
  Resize r;
  TRY(resize_make(c->node, &x, &r));
  void *space = malloc((size_t)tables_bytes(&r));
  if (!space) FAIL(RESOURCE, c->node->name, "no memory for %lld bytes of tables", (long long)tables_bytes(&r));
  resize_walk(c, &r, space, is_gradient(c->node), false);
  free(space);
  return NULL;
}

static Status resize_cpu(const KernelContext *c) {
  Type x = source_type(c->node);
  Resize r;
  TRY(resize_make(c->node, &x, &r));
  resize_walk(c, &r, c->workspace, is_gradient(c->node), c->in[0].type->dtype == DTYPE_F32);
  return NULL;
}

static Status resize_workspace(KernelPrepare *p) {
  Type x = source_type(p->node);
  Resize r;
  TRY(resize_make(p->node, &x, &r));
  p->workspace_bytes = tables_bytes(&r);
  return NULL;
}

static Status resize_infer(Node *node, Arena *arena) {
  Type y = node->inputs[0]->type;
  Resize r;
  if (!dtype_is_float(y.dtype) && !dtype_is_integer(y.dtype)) FAIL(MALFORMED, node->name, "X is %s; numbers are needed", dtype_name(y.dtype));
  TRY(resize_make(node, &y, &r));
  for (int d = 0; d < y.rank; d++) y.dims[d] = r.axes[d].out;
  node->outputs[0]->type = y;
  return NULL;
}

static Status resize_grad(Grad *g) {
  const Node *node = g->node;
  const ResizeAttrs *a = node->attrs;
  const Type *x = &node->inputs[0]->type;
  Value *in[4] = {g->dy[0]};
  for (int i = 1; i < node->n_inputs; i++) in[i] = node->inputs[i];
  g->dx[0] = emit(g->emit, &op_ResizeGrad, in, node->n_inputs,
                  ATTRS(A_INT("antialias", a->antialias), A_INTS("axes", a->axes.items, a->axes.n),
                        A_STRING("coordinate_transformation_mode", a->coordinates), A_FLOAT("cubic_coeff_a", a->cubic_coeff_a),
                        A_INT("exclude_outside", a->exclude_outside), A_STRING("keep_aspect_ratio_policy", a->policy), A_STRING("mode", a->mode),
                        A_STRING("nearest_mode", a->nearest), A_INTS("dims", x->dims, x->rank)));
  return NULL;
}

const Op op_Resize = {
    .name = "Resize", .domain = "", .min_inputs = 1, .max_inputs = 4, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 14,
    .attrs = resize_attrs, .attrs_bytes = sizeof(ResizeAttrs), .infer = resize_infer, .grad = resize_grad, .run_ref = resize_ref,
    .run_cpu = resize_cpu, .workspace = resize_workspace};

static Status resize_grad_infer(Node *node, Arena *arena) {
  const ResizeAttrs *a = node->attrs;
  const Type *dy = &node->inputs[0]->type;
  if (a->dims.n > RANK_MAX || !dtype_is_float(dy->dtype)) FAIL(MALFORMED, node->name, "dY must be a float and X have at most %d axes", RANK_MAX);
  Type x = source_type(node), y = x;
  Resize r;
  TRY(type_check(&x, node->name));
  TRY(resize_make(node, &x, &r));
  for (int d = 0; d < y.rank; d++) y.dims[d] = r.axes[d].out;
  char have[160], want[160];
  if (!type_equal(dy, &y))
    FAIL(MALFORMED, node->name, "dY is %s; X is resized to %s", type_text(dy, have, sizeof have), type_text(&y, want, sizeof want));
  node->outputs[0]->type = x;
  return NULL;
}

const Op op_ResizeGrad = {
    .name = "ResizeGrad", .domain = "tessera", .min_inputs = 1, .max_inputs = 4, .min_outputs = 1, .max_outputs = 1, .attrs = resize_grad_attrs,
    .attrs_bytes = sizeof(ResizeAttrs), .infer = resize_grad_infer, .run_ref = resize_ref, .run_cpu = resize_cpu, .workspace = resize_workspace};
