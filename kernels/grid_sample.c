// GridSample: X read at places that a grid says, between its elements; AffineGrid: such a grid; RoiAlign: means over boxes. All go through the
// same neighbours: per axis a few places of X with their weights.
#include <math.h>
#include <string.h>

#include "index_input.h"
#include "kernel.h"
#include "ops.h"

enum { AXES = 3, TAPS = 4 };   // spatial axes at most; neighbours per axis at most

// ---- GridSample ----------------------------------------------------------------------------------------------------------------------------

typedef struct GridAttrs { int64_t align_corners; const char *mode, *padding; } GridAttrs;
static const AttrSpec grid_attrs[] = {
    {"align_corners", ATTR_INT, offsetof(GridAttrs, align_corners), .min = 0, .max = 1, .help = "1: -1 and 1 are the centres of the outer elements"},
    {"mode", ATTR_STRING, offsetof(GridAttrs, mode), .default_string = "linear", .help = "linear, nearest or cubic"},
    {"padding_mode", ATTR_STRING, offsetof(GridAttrs, padding), .default_string = "zeros", .help = "zeros, border or reflection"},
    {0},
};
typedef enum Mode { LINEAR, NEAREST, CUBIC } Mode;
typedef enum Padding { ZEROS, BORDER, REFLECTION } Padding;

typedef struct Sampler {
  Mode mode;
  Padding padding;
  bool align;
  int n;                                   // spatial axes
  int64_t batch, channels, points, elems;  // points of the grid and elements of X, per sample and channel
  int64_t extents[AXES];
} Sampler;

static Status pick(const Node *node, const char *attr, const char *text, const char *const names[3], int *out) {
  for (*out = 0; *out < 3; ++*out)
    if (!strcmp(names[*out], text)) return NULL;
  FAIL(MALFORMED, node->name, "attribute %s = \"%s\" must be %s, %s or %s", attr, text, names[0], names[1], names[2]);
}

static Status sampler_make(const Node *node, const Type *x, const Type *grid, Sampler *out) {
  static const char *const modes[] = {"linear", "nearest", "cubic"}, *const paddings[] = {"zeros", "border", "reflection"};
  const GridAttrs *a = node->attrs;
  char x_text[160], grid_text[160];
  int mode, padding, n = x->rank - 2;
  TRY(pick(node, "mode", a->mode, modes, &mode));
  TRY(pick(node, "padding_mode", a->padding, paddings, &padding));
  if (!dtype_is_float(x->dtype) || !dtype_is_float(grid->dtype) || n < 1 || grid->rank != x->rank || grid->dims[0] != x->dims[0] ||
      grid->dims[n + 1] != n)
    FAIL(MALFORMED, node->name, "X is %s and the grid %s; floats [N, C, ...] and [N, ..., one number per spatial axis] are needed",
         type_text(x, x_text, sizeof x_text), type_text(grid, grid_text, sizeof grid_text));
  if (n > AXES) FAIL(UNSUPPORTED, node->name, "%d spatial axes; 1 to %d are supported", n, AXES);
  Sampler s = {.mode = (Mode)mode, .padding = (Padding)padding, .align = a->align_corners, .n = n, .batch = x->dims[0], .channels = x->dims[1],
               .points = 1, .elems = 1};
  for (int d = 0; d < n; d++) {
    s.extents[d] = x->dims[2 + d];
    if (!s.extents[d]) FAIL(MALFORMED, node->name, "spatial axis %d of X is empty", d);
    s.elems *= s.extents[d];
    s.points *= grid->dims[1 + d];
  }
  *out = s;
  return NULL;
}

// One axis' neighbours of a point: places of X (-1: nothing, a zero), weights, and their derivatives by the grid's number.
typedef struct Taps { int n; int64_t at[TAPS]; double weight[TAPS], slope[TAPS]; } Taps;

// x mirrored at both ends until it lies within; *sign becomes the derivative.
static double reflect(double x, double low, double high, double *sign) {
  double range = high - low, over = x < low ? low - x : x > high ? x - high : 0;
  *sign = 1;
  if (over == 0) return x;
  if (range <= 0) {
    *sign = 0;
    return low;
  }
  double turns = floor(over / range), rest = over - turns * range;
  bool even = fmod(turns, 2) == 0;
  *sign = even ? -1 : 1;
  return (x < low) == even ? low + rest : high - rest;
}

static double cubic_weight(double x, double *slope) {
  const double a = -0.75;
  double t = fabs(x), sign = x < 0 ? -1 : 1;
  if (t <= 1) {
    *slope = sign * (3 * (a + 2) * t - 2 * (a + 3)) * t;
    return ((a + 2) * t - (a + 3)) * t * t + 1;
  }
  *slope = t < 2 ? sign * ((3 * a * t - 10 * a) * t + 8 * a) : 0;
  return t < 2 ? ((a * t - 5 * a) * t + 8 * a) * t - 4 * a : 0;
}

static int64_t place_of(const Sampler *s, int64_t extent, double at) {
  double last = (double)(extent - 1), sign;
  if (at >= 0 && at <= last) return (int64_t)at;
  if (s->padding == ZEROS) return -1;
  if (s->padding == REFLECTION) at = trunc(s->align ? reflect(at, 0, last, &sign) : reflect(at, -0.5, last + 0.5, &sign));
  return at <= 0 ? 0 : at >= last ? extent - 1 : (int64_t)at;
}

static void taps_make(const Sampler *s, int64_t extent, double g, Taps *t) {
  double last = (double)(extent - 1), low = s->align ? 0 : -0.5, high = s->align ? last : last + 0.5, sign = 1;
  double scale = s->align ? last / 2 : (double)extent / 2, x = s->align ? (g + 1) / 2 * last : ((g + 1) * (double)extent - 1) / 2;
  if (!isfinite(x)) x = -2;                            // as good as outside
  if (s->mode == NEAREST) x = nearbyint(x);
  if (x < low || x > high) {
    if (s->padding == BORDER) x = x < 0 ? 0 : last, sign = 0;
    if (s->padding == REFLECTION) x = reflect(x, low, high, &sign);
  }
  if (s->mode == NEAREST) {
    *t = (Taps){.n = 1, .at = {place_of(s, extent, nearbyint(x))}, .weight = {1}};
    return;
  }
  double base = floor(x);
  t->n = s->mode == LINEAR ? 2 : 4;
  for (int k = 0; k < t->n; k++) {
    double place = base + k - (s->mode == LINEAR ? 0 : 1), distance = x - place, slope = distance < 0 ? 1 : -1;
    t->at[k] = place_of(s, extent, place);
    t->weight[k] = s->mode == LINEAR ? 1 - fabs(distance) : cubic_weight(distance, &slope);
    t->slope[k] = slope * scale * sign;
  }
}

// The combination `k` of all axes' neighbours: its place in X, its weight, and per axis the weight's derivative. False: a zero.
static bool combine(const Sampler *s, const Taps *taps, int k, int64_t *out_at, double *out_weight, double *slopes) {
  int64_t at = 0;
  double weight = 1;
  for (int d = 0; slopes && d < s->n; d++) slopes[d] = 1;
  for (int d = 0; d < s->n; d++) {
    int i = k % taps[d].n;
    k /= taps[d].n;
    if (taps[d].at[i] < 0) return false;
    at = at * s->extents[d] + taps[d].at[i];
    weight *= taps[d].weight[i];
    for (int e = 0; slopes && e < s->n; e++) slopes[e] *= e == d ? taps[d].slope[i] : taps[d].weight[i];
  }
  *out_at = at;
  *out_weight = weight;
  return true;
}

// The grid counts axes from the last one.
static int point_taps(const Sampler *s, const KernelContext *c, int grid, int64_t point, Taps *taps) {
  int combinations = 1;
  for (int d = 0; d < s->n; d++) {
    taps_make(s, s->extents[d], in_f(c, grid, point * s->n + s->n - 1 - d), &taps[d]);
    combinations *= taps[d].n;
  }
  return combinations;
}

static Status sample_infer(Node *node, Arena *arena) {
  Sampler s;
  const Type *grid = &node->inputs[1]->type;
  Type y = node->inputs[0]->type;
  TRY(sampler_make(node, &y, grid, &s));
  for (int d = 0; d < s.n; d++) y.dims[2 + d] = grid->dims[1 + d];
  node->outputs[0]->type = y;
  return NULL;
}

static Status sample_ref(const KernelContext *c) {
  Sampler s;
  Taps taps[AXES];
  TRY(sampler_make(c->node, c->in[0].type, c->in[1].type, &s));
  for (int64_t p = 0; p < s.batch * s.points; p++) {
    int combinations = point_taps(&s, c, 1, p, taps);
    for (int64_t channel = 0; channel < s.channels; channel++) {
      int64_t row = p / s.points * s.channels + channel, at;
      double sum = 0, weight;
      for (int k = 0; k < combinations; k++)
        if (combine(&s, taps, k, &at, &weight, NULL)) sum += weight * in_f(c, 0, row * s.elems + at);
      out_f(c, 0, row * s.points + p % s.points, sum);
    }
  }
  return NULL;
}

static Status sample_grad(Grad *g) {
  const GridAttrs *a = g->node->attrs;
  Node *grad = emit_node(g->emit, &op_GridSampleGrad, INPUTS(g->dy[0], g->node->inputs[0], g->node->inputs[1]), 2, g->wanted,
                         ATTRS(A_INT("align_corners", a->align_corners), A_STRING("mode", a->mode), A_STRING("padding_mode", a->padding)));
  for (int i = 0; grad && i < 2; i++)
    if (g->wanted[i]) g->dx[i] = grad->outputs[i];
  return NULL;
}

const Op op_GridSample = {
    .name = "GridSample", .domain = "", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .attrs = grid_attrs,
    .attrs_bytes = sizeof(GridAttrs), .infer = sample_infer, .grad = sample_grad, .run_ref = sample_ref};

// (dY, X, grid) -> dX, dgrid
static Status sample_grad_infer(Node *node, Arena *arena) {
  Sampler s;
  const Type *x = &node->inputs[1]->type, *grid = &node->inputs[2]->type;
  Type y = *x;
  TRY(sampler_make(node, x, grid, &s));
  for (int d = 0; d < s.n; d++) y.dims[2 + d] = grid->dims[1 + d];
  if (!type_equal(&y, &node->inputs[0]->type)) FAIL(MALFORMED, node->name, "dY '%s' does not fit X and the grid", node->inputs[0]->name);
  if (node->outputs[0]) node->outputs[0]->type = *x;
  if (node_has_output(node, 1)) node->outputs[1]->type = *grid;
  return NULL;
}

static Status sample_grad_ref(const KernelContext *c) {
  Sampler s;
  Taps taps[AXES];
  TRY(sampler_make(c->node, c->in[1].type, c->in[2].type, &s));
  if (has_output(c, 0) && out_elems(c, 0)) memset(c->out[0].data, 0, (size_t)type_bytes(c->out[0].type));
  for (int64_t p = 0; p < s.batch * s.points; p++) {
    int combinations = point_taps(&s, c, 2, p, taps);
    double along[AXES] = {0};
    for (int64_t channel = 0; channel < s.channels; channel++) {
      int64_t row = p / s.points * s.channels + channel, at;
      double dy = in_f(c, 0, row * s.points + p % s.points), weight, slopes[AXES];
      for (int k = 0; k < combinations; k++) {
        if (!combine(&s, taps, k, &at, &weight, slopes)) continue;
        int64_t e = row * s.elems + at;
        if (has_output(c, 0)) out_f(c, 0, e, element_read(c->out[0].data, c->out[0].type->dtype, e) + weight * dy);
        for (int d = 0; d < s.n; d++) along[d] += slopes[d] * dy * in_f(c, 1, e);
      }
    }
    for (int d = 0; has_output(c, 1) && d < s.n; d++) out_f(c, 1, p * s.n + s.n - 1 - d, along[d]);
  }
  return NULL;
}

const Op op_GridSampleGrad = {
    .name = "GridSampleGrad", .domain = "tessera", .min_inputs = 3, .max_inputs = 3, .min_outputs = 1, .max_outputs = 2, .attrs = grid_attrs,
    .attrs_bytes = sizeof(GridAttrs), .infer = sample_grad_infer, .run_ref = sample_grad_ref};

// ---- AffineGrid: theta times the coordinates of every place of an image of shape `size` ------------------------------------------------------

static const AttrSpec affine_attrs[] = {{"align_corners", ATTR_INT, offsetof(GridAttrs, align_corners), .min = 0, .max = 1,
                                         .help = "1: -1 and 1 are the centres of the outer elements"},
                                        {0}};

typedef struct Affine { int n; bool align; int64_t batch, points, extents[AXES]; } Affine;

static Status affine_make(const Node *node, Affine *out) {
  const Type *theta = &node->inputs[0]->type;
  int64_t size[RANK_MAX];
  int rank;
  char text[160];
  TRY(index_constant(node, 1, size, RANK_MAX, &rank));
  Affine a = {.n = rank - 2, .align = ((const GridAttrs *)node->attrs)->align_corners, .batch = theta->dims[0], .points = 1};
  if (!dtype_is_float(theta->dtype) || (a.n != 2 && a.n != 3) || theta->rank != 3 || size[0] != theta->dims[0] || theta->dims[1] != a.n ||
      theta->dims[2] != a.n + 1)
    FAIL(MALFORMED, node->name, "theta is %s and size has %d numbers; [N, 2, 3] and [N, C, H, W], or [N, 3, 4] and [N, C, D, H, W] are needed",
         type_text(theta, text, sizeof text), rank);
  for (int d = 0; d < a.n; d++) {
    if (size[2 + d] < 0 || size[2 + d] > INT32_MAX) FAIL(MALFORMED, node->name, "size: %lld on axis %d", (long long)size[2 + d], 2 + d);
    a.extents[d] = size[2 + d];
    a.points *= size[2 + d];
  }
  *out = a;
  return NULL;
}

static Status affine_infer(Node *node, Arena *arena) {
  Affine a;
  TRY(affine_make(node, &a));
  Type y = {.dtype = node->inputs[0]->type.dtype, .rank = a.n + 2, .dims = {a.batch}};
  for (int d = 0; d < a.n; d++) y.dims[1 + d] = a.extents[d];
  y.dims[1 + a.n] = a.n;
  node->outputs[0]->type = y;
  return type_check(&y, node->name);
}

// Coordinates of a point, the last axis first, then 1.
static void affine_point(const Affine *a, int64_t point, double *out) {
  for (int d = a->n - 1; d >= 0; d--) {
    double i = (double)(point % a->extents[d]), extent = (double)a->extents[d];
    point /= a->extents[d];
    out[a->n - 1 - d] = !a->align ? (2 * i + 1) / extent - 1 : extent == 1 ? 0 : 2 * i / (extent - 1) - 1;
  }
  out[a->n] = 1;
}

static Status affine_ref(const KernelContext *c) {
  Affine a;
  TRY(affine_make(c->node, &a));
  for (int64_t p = 0; p < a.batch * a.points; p++) {
    double point[AXES + 1];
    affine_point(&a, p % a.points, point);
    for (int i = 0; i < a.n; i++) {
      double sum = 0;
      for (int k = 0; k <= a.n; k++) sum += in_f(c, 0, (p / a.points * a.n + i) * (a.n + 1) + k) * point[k];
      out_f(c, 0, p * a.n + i, sum);
    }
  }
  return NULL;
}

// dtheta = dgrid^T times the coordinates, which are a constant.
static Status affine_grad(Grad *g) {
  Emit *e = g->emit;
  Affine a;
  TRY(affine_make(g->node, &a));
  Type type = type_make(g->node->inputs[0]->type.dtype, 2, (const int64_t[]){a.points, a.n + 1});
  TRY(type_check(&type, g->node->name));
  void *points = arena_alloc(e->graph->arena, (size_t)type_bytes(&type));
  for (int64_t p = 0; p < a.points; p++) {
    double point[AXES + 1];
    affine_point(&a, p, point);
    for (int k = 0; k <= a.n; k++) element_write(points, type.dtype, p * (a.n + 1) + k, point[k]);
  }
  const int64_t flat[] = {a.batch, a.points, a.n};
  Value *dy = emit(e, &op_Reshape, INPUTS(g->dy[0], emit_int64s(e, "shape", flat, 3)), NULL);
  g->dx[0] = emit(e, &op_FusedMatMul, INPUTS(dy, emit_const(e, "coordinates", &type, points)), ATTRS(A_INT("transA", 1)));
  return NULL;
}

const Op op_AffineGrid = {
    .name = "AffineGrid", .domain = "", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 2,
    .attrs = affine_attrs, .attrs_bytes = sizeof(GridAttrs), .infer = affine_infer, .grad = affine_grad, .run_ref = affine_ref};
