// Pooling over 1 to 3 spatial axes: maximum (ties go to the first in row-major order and a NaN wins, as in PyTorch), average and p-norm; their
// global forms, whose window is the whole of a channel.
#include <math.h>
#include <string.h>

#include "kernel.h"
#include "ops.h"
#include "window.h"

typedef struct PoolAttrs { WindowAttrs window; int64_t ceil_mode, storage_order, count_include_pad, p; AttrInts dims; } PoolAttrs;
#define CEIL_ATTR {"ceil_mode", ATTR_INT, offsetof(PoolAttrs, ceil_mode), .min = 0, .max = 1, .help = "round the output's extent up"}
#define COUNT_ATTR {"count_include_pad", ATTR_INT, offsetof(PoolAttrs, count_include_pad), .min = 0, .max = 1, .help = "padding counts in the mean"}
#define P_ATTR {"p", ATTR_INT, offsetof(PoolAttrs, p), .default_int = 2, .min = 1, .max = 1024, .help = "p of the norm"}
#define DIMS_ATTR {"dims", ATTR_INTS, offsetof(PoolAttrs, dims), .required = true, .min = 0, .max = INT64_C(1) << 46, .help = "dimensions of X"}
static const AttrSpec pool_attrs[] = {
    WINDOW_ATTRS(PoolAttrs),
    CEIL_ATTR,
    {"storage_order", ATTR_INT, offsetof(PoolAttrs, storage_order), .min = 0, .max = 1, .help = "order that Indices count in; 1: column-major"},
    {0},
};

static const AttrSpec average_attrs[] = {WINDOW_ATTRS(PoolAttrs), CEIL_ATTR, COUNT_ATTR, {0}};
static const AttrSpec average_grad_attrs[] = {WINDOW_ATTRS(PoolAttrs), CEIL_ATTR, COUNT_ATTR, DIMS_ATTR, {0}};
static const AttrSpec lp_attrs[] = {WINDOW_ATTRS(PoolAttrs), CEIL_ATTR, P_ATTR, {0}};
static const AttrSpec global_lp_attrs[] = {P_ATTR, {0}};

static Status pool_window(const Node *node, const Type *x, Window *out) {
  const PoolAttrs *a = node->attrs;
  if (x->rank < 3) FAIL(MALFORMED, node->name, "X has %d axes; pooling needs [N, C, ...]", x->rank);
  return window_make(node, &a->window, x->rank - 2, x->dims + 2, NULL, a->ceil_mode, out);
}

static Type pooled_type(const Type *x, const Window *w) {
  Type y = *x;
  for (int d = 0; d < w->n_axes; d++) y.dims[2 + d] = w->out[WINDOW_AXES - w->n_axes + d];
  return y;
}

// The part of one axis that window `o` covers: from `first` in steps of the dilation, below `end`.
typedef struct Reach { int64_t first, end; } Reach;

static Reach reach_of(const Window *w, int d, int64_t o) {
  int64_t start = o * w->stride[d] - w->pad_begin[d], end = start + (w->kernel[d] - 1) * w->dilation[d] + 1, first = start;
  if (first < 0) first += (-first + w->dilation[d] - 1) / w->dilation[d] * w->dilation[d];
  return (Reach){first, end < w->in[d] ? end : w->in[d]};
}

// Place of the maximum of window (z, y, x) in one channel, given a reader of its elements; -1 where the window covers only padding.
#define DEFINE_ARGMAX(suffix, Channel, READ)                                                                                     \
  static int64_t argmax_##suffix(const Window *w, Channel channel, const int64_t o[WINDOW_AXES]) {                               \
    Reach a = reach_of(w, 0, o[0]), b = reach_of(w, 1, o[1]), c = reach_of(w, 2, o[2]);                                          \
    int64_t best = -1;                                                                                                           \
    double max = -INFINITY;                                                                                                      \
    for (int64_t i = a.first; i < a.end; i += w->dilation[0])                                                                    \
      for (int64_t j = b.first; j < b.end; j += w->dilation[1])                                                                  \
        for (int64_t k = c.first; k < c.end; k += w->dilation[2]) {                                                              \
          int64_t at = (i * w->in[1] + j) * w->in[2] + k;                                                                        \
          double v = READ;                                                                                                       \
          if (best >= 0 && !(v > max || v != v)) continue;                                                      \
          best = at;                                                                                                             \
          max = v;                                                                                                               \
        }                                                                                                                        \
    return best;                                                                                                                 \
  }

typedef struct AnyChannel { const void *data; Dtype dtype; int64_t base; } AnyChannel;
DEFINE_ARGMAX(any, AnyChannel, element_read(channel.data, channel.dtype, channel.base + at))
DEFINE_ARGMAX(f32, const float *, (double)channel[at])

// Next output place in row-major order.
static void place_next(const Window *w, int64_t o[WINDOW_AXES]) {
  for (int d = WINDOW_AXES - 1; d >= 0; d--) {
    if (++o[d] < w->out[d]) return;
    o[d] = 0;
  }
}

// ---- MaxPool -----------------------------------------------------------------------------------------------------------------------

static Status pool_infer(Node *node, Arena *arena) {
  const Type *x = &node->inputs[0]->type;
  Window w;
  if (!dtype_is_float(x->dtype) && x->dtype != DTYPE_I8 && x->dtype != DTYPE_U8)
    FAIL(MALFORMED, node->name, "'%s' is %s; pooling takes floats, int8 and uint8", node->inputs[0]->name, dtype_name(x->dtype));
  TRY(pool_window(node, x, &w));
  Type y = pooled_type(x, &w);
  if (node->outputs[0]) node->outputs[0]->type = y;
  y.dtype = DTYPE_I64;
  if (node->n_outputs > 1 && node->outputs[1]) node->outputs[1]->type = y;
  return NULL;
}

// What Indices say of element `at` of channel `channel`: its place in all of X.
static int64_t index_of(const Window *w, bool column_major, int64_t channel, int64_t at) {
  int64_t place = at;
  if (column_major) {
    place = 0;
    int64_t step = 1, coordinates[WINDOW_AXES];
    for (int d = WINDOW_AXES - 1; d >= 0; d--) {
      coordinates[d] = at % w->in[d];
      at /= w->in[d];
    }
    for (int d = 0; d < WINDOW_AXES; d++) {
      place += coordinates[d] * step;
      step *= w->in[d];
    }
  }
  return channel * window_elems(w->in) + place;
}

static Status pool_run(const KernelContext *c, bool fast) {
  Window w;
  TRY(pool_window(c->node, c->in[0].type, &w));
  bool column_major = ((const PoolAttrs *)c->node->attrs)->storage_order;
  int64_t in = window_elems(w.in), out = window_elems(w.out), channels = c->in[0].type->dims[0] * c->in[0].type->dims[1];
  Dtype dtype = c->in[0].type->dtype;
  for (int64_t channel = 0; channel < channels; channel++) {
    int64_t o[WINDOW_AXES] = {0};
    for (int64_t e = 0; e < out; e++, place_next(&w, o)) {
      int64_t at = fast ? argmax_f32(&w, (const float *)c->in[0].data + channel * in, o)
                        : argmax_any(&w, (AnyChannel){c->in[0].data, dtype, channel * in}, o);
      int64_t to = channel * out + e;
      if (has_output(c, 0)) out_f(c, 0, to, at < 0 ? -INFINITY : in_f(c, 0, channel * in + at));
      if (has_output(c, 1)) out_i(c, 1, to, at < 0 ? -1 : index_of(&w, column_major, channel, at));
    }
  }
  return NULL;
}

static Status pool_ref(const KernelContext *c) { return pool_run(c, false); }
static Status pool_cpu(const KernelContext *c) { return pool_run(c, true); }

static Status pool_grad(Grad *g) {
  const Node *node = g->node;
  const PoolAttrs *a = node->attrs;
  if (!g->dy[0] || !g->wanted[0]) return NULL;
  g->dx[0] = emit(g->emit, &op_MaxPoolGrad, INPUTS(node->inputs[0], g->dy[0]),
                  ATTRS(A_STRING("auto_pad", a->window.auto_pad), A_INTS("dilations", a->window.dilations.items, a->window.dilations.n),
                        A_INTS("kernel_shape", a->window.kernel_shape.items, a->window.kernel_shape.n),
                        A_INTS("pads", a->window.pads.items, a->window.pads.n), A_INTS("strides", a->window.strides.items, a->window.strides.n),
                        A_INT("ceil_mode", a->ceil_mode), A_INT("storage_order", a->storage_order)));
  return NULL;
}

const Op op_MaxPool = {
    .name = "MaxPool", .domain = "", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 2, .attrs = pool_attrs,
    .attrs_bytes = sizeof(PoolAttrs), .infer = pool_infer, .grad = pool_grad, .run_ref = pool_ref, .run_cpu = pool_cpu};

// ---- MaxPoolGrad -------------------------------------------------------------------------------------------------------------------

enum { POOL_X, POOL_DY };

static Status pool_grad_infer(Node *node, Arena *arena) {
  const Type *x = &node->inputs[POOL_X]->type;
  Window w;
  TRY(pool_window(node, x, &w));
  Type y = pooled_type(x, &w);
  char have[160], want[160];
  if (!dtype_is_float(x->dtype) || !type_equal(&node->inputs[POOL_DY]->type, &y))
    FAIL(MALFORMED, node->name, "dY '%s' is %s; X pools to %s", node->inputs[POOL_DY]->name,
         type_text(&node->inputs[POOL_DY]->type, have, sizeof have), type_text(&y, want, sizeof want));
  node->outputs[0]->type = *x;
  return NULL;
}

// Windows overlap, so dX is summed: in its own type, in row-major order of the outputs.
static Status pool_grad_run(const KernelContext *c, bool fast) {
  Window w;
  TRY(pool_window(c->node, c->in[POOL_X].type, &w));
  int64_t in = window_elems(w.in), out = window_elems(w.out), channels = c->in[POOL_X].type->dims[0] * c->in[POOL_X].type->dims[1];
  Dtype dtype = c->in[POOL_X].type->dtype;
  if (out_elems(c, 0)) memset(c->out[0].data, 0, (size_t)type_bytes(c->out[0].type));
  for (int64_t channel = 0; channel < channels; channel++) {
    int64_t o[WINDOW_AXES] = {0};
    for (int64_t e = 0; e < out; e++, place_next(&w, o)) {
      int64_t at = fast ? argmax_f32(&w, (const float *)c->in[POOL_X].data + channel * in, o)
                        : argmax_any(&w, (AnyChannel){c->in[POOL_X].data, dtype, channel * in}, o);
      if (at < 0) continue;
      int64_t to = channel * in + at;
      out_f(c, 0, to, element_read(c->out[0].data, dtype, to) + in_f(c, POOL_DY, channel * out + e));
    }
  }
  return NULL;
}

static Status pool_grad_ref(const KernelContext *c) { return pool_grad_run(c, false); }
static Status pool_grad_cpu(const KernelContext *c) { return pool_grad_run(c, true); }

const Op op_MaxPoolGrad = {
    .name = "MaxPoolGrad", .domain = "tessera", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .attrs = pool_attrs,
    .attrs_bytes = sizeof(PoolAttrs), .infer = pool_grad_infer, .run_ref = pool_grad_ref, .run_cpu = pool_grad_cpu};

// ---- GlobalMaxPool: MaxPool under a window as large as the channel ---------------------------------------------------------------------

static Status global_infer(Node *node, Arena *arena) {
  Type y = node->inputs[0]->type;
  if (!dtype_is_float(y.dtype)) FAIL(MALFORMED, node->name, "'%s' is %s; pooling takes floats", node->inputs[0]->name, dtype_name(y.dtype));
  if (y.rank < 3) FAIL(MALFORMED, node->name, "X has %d axes; pooling needs [N, C, ...]", y.rank);
  for (int d = 2; d < y.rank; d++) {
    if (!y.dims[d]) FAIL(MALFORMED, node->name, "spatial axis %d is empty", d - 2);
    y.dims[d] = 1;
  }
  node->outputs[0]->type = y;
  return NULL;
}

static Status global_max_ref(const KernelContext *c) {
  int64_t channels = out_elems(c, 0), n = channels ? in_elems(c, 0) / channels : 0;
  for (int64_t channel = 0; channel < channels; channel++) {
    double max = -INFINITY;
    for (int64_t k = 0; k < n; k++) {
      double v = in_f(c, 0, channel * n + k);
      if (v > max || v != v) max = v;
    }
    out_f(c, 0, channel, max);
  }
  return NULL;
}

static Status global_max_cpu(const KernelContext *c) {
  int64_t channels = out_elems(c, 0), n = channels ? in_elems(c, 0) / channels : 0;
  for (int64_t channel = 0; channel < channels; channel++)
    ((float *)c->out[0].data)[channel] = c->loops->max((const float *)c->in[0].data + channel * n, n);
  return NULL;
}

static Status global_max_grad(Grad *g) {
  const Type *x = &g->node->inputs[0]->type;
  int axes = x->rank - 2 < WINDOW_AXES ? x->rank - 2 : WINDOW_AXES;   // with more than three, the others are joined
  int64_t dims[RANK_MAX] = {x->dims[0], x->dims[1]}, pooled[RANK_MAX] = {x->dims[0], x->dims[1], 1, 1, 1};
  for (int d = 0; d < axes; d++) dims[2 + d] = x->dims[2 + d];
  for (int d = 2 + axes; d < x->rank; d++) dims[1 + axes] *= x->dims[d];
  Emit *e = g->emit;
  Value *in = g->node->inputs[0], *dy = g->dy[0];
  bool joined = axes + 2 != x->rank;
  if (joined) {
    in = emit(e, &op_Reshape, INPUTS(in, emit_int64s(e, "shape", dims, axes + 2)), NULL);
    dy = emit(e, &op_Reshape, INPUTS(dy, emit_int64s(e, "shape", pooled, axes + 2)), NULL);
  }
  if (in && dy) g->dx[0] = emit(e, &op_MaxPoolGrad, INPUTS(in, dy), ATTRS(A_INTS("kernel_shape", dims + 2, axes)));
  if (joined && g->dx[0]) g->dx[0] = emit(e, &op_Reshape, INPUTS(g->dx[0], emit_int64s(e, "shape", x->dims, x->rank)), NULL);
  return NULL;
}

#define GLOBAL(row, ref, cpu, gradient, table)                                                                                          \
  const Op op_##row = {.name = #row, .domain = "", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1, .attrs = table, \
                       .attrs_bytes = sizeof(PoolAttrs), .infer = global_infer, .grad = gradient, .run_ref = ref, .run_cpu = cpu}
GLOBAL(GlobalMaxPool, global_max_ref, global_max_cpu, global_max_grad, NULL);

// ---- AveragePool -----------------------------------------------------------------------------------------------------------------------

// How many places of window `o` on axis `d` the mean is taken over.
static int64_t axis_count(const Window *w, int d, int64_t o, bool with_padding) {
  Reach r = reach_of(w, d, o);
  if (!with_padding) return r.end > r.first ? (r.end - r.first + w->dilation[d] - 1) / w->dilation[d] : 0;
  int64_t start = o * w->stride[d] - w->pad_begin[d], end = start + (w->kernel[d] - 1) * w->dilation[d] + 1, limit = w->in[d] + w->pad_end[d];
  if (end > limit) end = limit;        // ceil_mode reaches behind the padding: that does not count
  return (end - start + w->dilation[d] - 1) / w->dilation[d];
}

static int64_t window_count(const Window *w, const int64_t o[WINDOW_AXES], bool with_padding) {
  return axis_count(w, 0, o[0], with_padding) * axis_count(w, 1, o[1], with_padding) * axis_count(w, 2, o[2], with_padding);
}

#define EACH_PLACE(w, o)                                                                     \
  Reach a_ = reach_of(w, 0, o[0]), b_ = reach_of(w, 1, o[1]), c_ = reach_of(w, 2, o[2]);     \
  for (int64_t i_ = a_.first; i_ < a_.end; i_ += (w)->dilation[0])                           \
    for (int64_t j_ = b_.first; j_ < b_.end; j_ += (w)->dilation[1])                         \
      for (int64_t k_ = c_.first, at = (i_ * (w)->in[1] + j_) * (w)->in[2] + k_; k_ < c_.end; k_ += (w)->dilation[2], at += (w)->dilation[2])

static Status average_infer(Node *node, Arena *arena) {
  const Type *x = &node->inputs[0]->type;
  Window w;
  if (!dtype_is_float(x->dtype)) FAIL(MALFORMED, node->name, "'%s' is %s; pooling takes floats", node->inputs[0]->name, dtype_name(x->dtype));
  TRY(pool_window(node, x, &w));
  node->outputs[0]->type = pooled_type(x, &w);
  return NULL;
}

static Status average_run(const KernelContext *c, bool fast) {
  Window w;
  TRY(pool_window(c->node, c->in[0].type, &w));
  bool with_padding = ((const PoolAttrs *)c->node->attrs)->count_include_pad;
  int64_t in = window_elems(w.in), out = window_elems(w.out), channels = c->in[0].type->dims[0] * c->in[0].type->dims[1];
  for (int64_t channel = 0; channel < channels; channel++) {
    int64_t o[WINDOW_AXES] = {0};
    const float *x = fast ? (const float *)c->in[0].data + channel * in : NULL;
    for (int64_t e = 0; e < out; e++, place_next(&w, o)) {
      double sum = 0;
      EACH_PLACE(&w, o) sum += fast ? (double)x[at] : in_f(c, 0, channel * in + at);
      out_f(c, 0, channel * out + e, sum / (double)window_count(&w, o, with_padding));
    }
  }
  return NULL;
}
static Status average_ref(const KernelContext *c) { return average_run(c, false); }
static Status average_cpu(const KernelContext *c) { return average_run(c, true); }

#define WINDOW_INITS(a)                                                                                                                    \
  A_STRING("auto_pad", (a)->window.auto_pad), A_INTS("dilations", (a)->window.dilations.items, (a)->window.dilations.n),                   \
      A_INTS("kernel_shape", (a)->window.kernel_shape.items, (a)->window.kernel_shape.n),                                                  \
      A_INTS("pads", (a)->window.pads.items, (a)->window.pads.n), A_INTS("strides", (a)->window.strides.items, (a)->window.strides.n),     \
      A_INT("ceil_mode", (a)->ceil_mode)

static Status average_grad(Grad *g) {
  const PoolAttrs *a = g->node->attrs;
  const Type *x = &g->node->inputs[0]->type;
  g->dx[0] = emit(g->emit, &op_AveragePoolGrad, INPUTS(g->dy[0]),
                  ATTRS(WINDOW_INITS(a), A_INT("count_include_pad", a->count_include_pad), A_INTS("dims", x->dims, x->rank)));
  return NULL;
}

const Op op_AveragePool = {
    .name = "AveragePool", .domain = "", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1, .attrs = average_attrs,
    .attrs_bytes = sizeof(PoolAttrs), .infer = average_infer, .grad = average_grad, .run_ref = average_ref, .run_cpu = average_cpu};

static Status average_grad_infer(Node *node, Arena *arena) {
  const PoolAttrs *a = node->attrs;
  const Type *dy = &node->inputs[0]->type;
  if (a->dims.n > RANK_MAX || !dtype_is_float(dy->dtype)) FAIL(MALFORMED, node->name, "dY must be a float and X have at most %d axes", RANK_MAX);
  Type x = type_make(dy->dtype, (int)a->dims.n, a->dims.items);
  Window w;
  TRY(pool_window(node, &x, &w));
  Type y = pooled_type(&x, &w);
  char have[160], want[160];
  if (!type_equal(dy, &y)) FAIL(MALFORMED, node->name, "dY is %s; X pools to %s", type_text(dy, have, sizeof have), type_text(&y, want, sizeof want));
  node->outputs[0]->type = x;
  return NULL;
}

static Status average_grad_run(const KernelContext *c, bool fast) {
  Window w;
  TRY(pool_window(c->node, c->out[0].type, &w));
  bool with_padding = ((const PoolAttrs *)c->node->attrs)->count_include_pad;
  int64_t in = window_elems(w.in), out = window_elems(w.out), channels = c->out[0].type->dims[0] * c->out[0].type->dims[1];
  Dtype dtype = c->out[0].type->dtype;
  if (out_elems(c, 0)) memset(c->out[0].data, 0, (size_t)type_bytes(c->out[0].type));
  for (int64_t channel = 0; channel < channels; channel++) {
    int64_t o[WINDOW_AXES] = {0};
    float *dx = fast ? (float *)c->out[0].data + channel * in : NULL;
    for (int64_t e = 0; e < out; e++, place_next(&w, o)) {
      double part = in_f(c, 0, channel * out + e) / (double)window_count(&w, o, with_padding);
      EACH_PLACE(&w, o) {
        if (fast) dx[at] = (float)((double)dx[at] + part);
        else out_f(c, 0, channel * in + at, element_read(c->out[0].data, dtype, channel * in + at) + part);
      }
    }
  }
  return NULL;
}
static Status average_grad_ref(const KernelContext *c) { return average_grad_run(c, false); }
static Status average_grad_cpu(const KernelContext *c) { return average_grad_run(c, true); }

const Op op_AveragePoolGrad = {
    .name = "AveragePoolGrad", .domain = "tessera", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1,
    .attrs = average_grad_attrs, .attrs_bytes = sizeof(PoolAttrs), .infer = average_grad_infer, .run_ref = average_grad_ref,
    .run_cpu = average_grad_cpu};

// ---- GlobalAveragePool -----------------------------------------------------------------------------------------------------------------

static Status global_average_ref(const KernelContext *c) {
  int64_t channels = out_elems(c, 0), n = channels ? in_elems(c, 0) / channels : 0;
  for (int64_t channel = 0; channel < channels; channel++) {
    double sum = 0;
    for (int64_t k = 0; k < n; k++) sum += in_f(c, 0, channel * n + k);
    out_f(c, 0, channel, sum / (double)n);
  }
  return NULL;
}

static Status global_average_cpu(const KernelContext *c) {
  int64_t channels = out_elems(c, 0), n = channels ? in_elems(c, 0) / channels : 0;
  for (int64_t channel = 0; channel < channels; channel++)
    out_f(c, 0, channel, c->loops->sum((const float *)c->in[0].data + channel * n, n) / (double)n);
  return NULL;
}

static Status global_average_grad(Grad *g) {
  const Type *x = &g->node->inputs[0]->type;
  int64_t n = 1;
  for (int d = 2; d < x->rank; d++) n *= x->dims[d];
  Emit *e = g->emit;
  Value *part = emit(e, &op_Mul, INPUTS(g->dy[0], emit_float(e, "share", x->dtype, 1 / (double)n)), NULL);
  if (part) g->dx[0] = emit(e, &op_Expand, INPUTS(part, emit_int64s(e, "shape", x->dims, x->rank)), NULL);
  return NULL;
}

GLOBAL(GlobalAveragePool, global_average_ref, global_average_cpu, global_average_grad, NULL);

// ---- LpPool, GlobalLpPool: (sum of |x|^p)^(1/p) over the window; padding adds nothing -----------------------------------------------------

static Status lp_window(const Node *node, const Type *x, Window *w) {
  if (node->op == &op_LpPool) return pool_window(node, x, w);
  *w = (Window){.n_axes = 1};
  for (int d = 0; d < WINDOW_AXES; d++) w->in[d] = w->out[d] = w->kernel[d] = w->stride[d] = w->dilation[d] = 1;
  for (int d = 2; d < x->rank; d++) w->in[WINDOW_AXES - 1] *= x->dims[d];
  w->kernel[WINDOW_AXES - 1] = w->in[WINDOW_AXES - 1];
  return NULL;
}

static Status lp_ref(const KernelContext *c) {
  Window w;
  TRY(lp_window(c->node, c->in[0].type, &w));
  double p = (double)((const PoolAttrs *)c->node->attrs)->p;
  int64_t in = window_elems(w.in), out = window_elems(w.out), channels = c->in[0].type->dims[0] * c->in[0].type->dims[1];
  for (int64_t channel = 0; channel < channels; channel++) {
    int64_t o[WINDOW_AXES] = {0};
    for (int64_t e = 0; e < out; e++, place_next(&w, o)) {
      double sum = 0;
      EACH_PLACE(&w, o) sum += pow(fabs(in_f(c, 0, channel * in + at)), p);
      out_f(c, 0, channel * out + e, pow(sum, 1 / p));
    }
  }
  return NULL;
}

// dx = sign(x) |x|^(p-1) times the sum over the windows that hold x of dy y^(1-p), which is the gradient of a mean times its places.
static Status lp_grad(Grad *g) {
  Emit *e = g->emit;
  const Node *node = g->node;
  const PoolAttrs *a = node->attrs;
  Value *x = node->inputs[0], *y = node->outputs[0], *dy = g->dy[0];
  Dtype dtype = x->type.dtype;
  Value *sign_power = emit(e, &op_Pow, INPUTS(emit(e, &op_Abs, INPUTS(x), NULL), emit_float(e, "p", dtype, (double)(a->p - 1))), NULL);
  Value *zero = emit_float(e, "zero", dtype, 0);
  Value *slope =
      a->p == 1 ? NULL : emit(e, &op_Div, INPUTS(dy, emit(e, &op_Pow, INPUTS(y, emit_float(e, "p", dtype, (double)(a->p - 1))), NULL)), NULL);
  Value *per_window = a->p == 1 ? dy : slope, *spread = NULL;
  if (node->op == &op_LpPool && per_window) {
    int64_t n = 1;
    for (int64_t i = 0; i < a->window.kernel_shape.n; i++) n *= a->window.kernel_shape.items[i];
    Value *scaled = emit(e, &op_Mul, INPUTS(per_window, emit_float(e, "places", dtype, (double)n)), NULL);
    if (a->ceil_mode) FAIL(UNSUPPORTED, node->name, "LpPool with ceil_mode = 1 has no gradient");
    spread = emit(e, &op_AveragePoolGrad, INPUTS(scaled),
                  ATTRS(WINDOW_INITS(a), A_INT("count_include_pad", 1), A_INTS("dims", x->type.dims, x->type.rank)));
  } else if (per_window) {
    spread = emit(e, &op_Expand, INPUTS(per_window, emit_int64s(e, "shape", x->type.dims, x->type.rank)), NULL);
  }
  if (!spread || !sign_power) return NULL;
  Value *size = emit(e, &op_Mul, INPUTS(spread, sign_power), NULL);
  Value *minus = emit(e, &op_Neg, INPUTS(size), NULL);
  Value *below = emit(e, &op_Where, INPUTS(emit(e, &op_Less, INPUTS(x, zero), NULL), minus, zero), NULL);
  g->dx[0] = emit(e, &op_Where, INPUTS(emit(e, &op_Greater, INPUTS(x, zero), NULL), size, below), NULL);
  return NULL;
}

const Op op_LpPool = {
    .name = "LpPool", .domain = "", .policy = POLICY_F32, .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1, .attrs = lp_attrs,
    .attrs_bytes = sizeof(PoolAttrs), .infer = average_infer, .grad = lp_grad, .run_ref = lp_ref};
GLOBAL(GlobalLpPool, lp_ref, NULL, lp_grad, global_lp_attrs);
