// Max pooling over 1 to 3 spatial axes. Ties go to the first maximum in row-major order and a NaN wins, as in PyTorch.
#include <math.h>
#include <string.h>

#include "kernel.h"
#include "ops.h"
#include "window.h"

typedef struct PoolAttrs { WindowAttrs window; int64_t ceil_mode, storage_order; } PoolAttrs;
static const AttrSpec pool_attrs[] = {
    WINDOW_ATTRS(PoolAttrs),
    {"ceil_mode", ATTR_INT, offsetof(PoolAttrs, ceil_mode), .min = 0, .max = 1, .help = "round the output's extent up"},
    {"storage_order", ATTR_INT, offsetof(PoolAttrs, storage_order), .min = 0, .max = 1, .help = "order that Indices count in; 1: column-major"},
    {0},
};

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
