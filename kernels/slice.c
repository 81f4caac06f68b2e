// Slice, its gradient, and Pad. Any element type.
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "cost.h"
#include "index_input.h"
#include "ops.h"
#include "strided.h"

// ---- Slice: inputs data, starts, ends, axes?, steps? --------------------------------------------------------------------------

typedef struct Box { int64_t start[RANK_MAX], step[RANK_MAX], count[RANK_MAX]; } Box;   // element start + step * i for i < count, per axis

typedef Status (*ReadIndex)(const void *from, int i, int64_t *out, int capacity, int *n);
static Status read_constant(const void *from, int i, int64_t *out, int capacity, int *n) { return index_constant(from, i, out, capacity, n); }
static Status read_tensor(const void *from, int i, int64_t *out, int capacity, int *n) { return index_tensor(from, i, out, capacity, n); }

static int64_t clamp(int64_t v, int64_t low, int64_t high) { return v < low ? low : v > high ? high : v; }

// ONNX's rule: negative positions count from the end, then they are clamped; INT64_MAX and INT64_MIN mean "to the end".
static void slice_axis(int64_t d, int64_t start, int64_t end, int64_t step, int64_t *first, int64_t *count) {
  if (start < 0) start += d;
  if (end < 0) end = end < -d ? -1 : end + d;   // -1: before the first, for a negative step
  if (step > 0) {
    start = clamp(start, 0, d);
    end = clamp(end, 0, d);
    *count = end > start ? (int64_t)(((uint64_t)(end - start) - 1) / (uint64_t)step + 1) : 0;
  } else {
    start = clamp(start, d ? 0 : -1, d - 1);
    end = clamp(end, -1, d - 1);
    *count = start > end ? (int64_t)(((uint64_t)(start - end) - 1) / (0 - (uint64_t)step) + 1) : 0;
  }
  *first = *count ? start : 0;
}

static Status slice_box(const Node *node, const Type *x, int first_index, bool has_axes, bool has_steps, ReadIndex read, const void *from, Box *box) {
  int64_t starts[RANK_MAX], ends[RANK_MAX], axes[RANK_MAX], steps[RANK_MAX];
  int n, n_ends, n_axes, n_steps;
  TRY(read(from, first_index, starts, RANK_MAX, &n));
  TRY(read(from, first_index + 1, ends, RANK_MAX, &n_ends));
  n_axes = n_steps = n;
  for (int i = 0; i < n; i++) axes[i] = i, steps[i] = 1;
  if (has_axes) TRY(read(from, first_index + 2, axes, RANK_MAX, &n_axes));
  if (has_steps) TRY(read(from, first_index + 3, steps, RANK_MAX, &n_steps));
  if (n_ends != n || n_axes != n || n_steps != n)
    FAIL(MALFORMED, node->name, "%s: %d starts, %d ends, %d axes, %d steps; the numbers must be equal", node->op->name, n, n_ends, n_axes, n_steps);
  uint32_t mask;
  TRY(index_axes(axes, n, x->rank, node->name, &mask));
  for (int i = 0; i < x->rank; i++) box->start[i] = 0, box->step[i] = 1, box->count[i] = x->dims[i];
  for (int i = 0; i < n; i++) {
    int axis = (int)(axes[i] < 0 ? axes[i] + x->rank : axes[i]);
    if (steps[i] == 0) FAIL(MALFORMED, node->name, "%s: step 0 on axis %d", node->op->name, axis);
    slice_axis(x->dims[axis], starts[i], ends[i], steps[i], &box->start[axis], &box->count[axis]);
    box->step[axis] = box->count[axis] > 1 ? steps[i] : 1;
  }
  return STATUS_OK;
}

static Type box_type(const Type *x, const Box *box) { return type_make(x->dtype, x->rank, box->count); }

// Element strides of the box within x, and the offset of its first element.
static int64_t box_strides(const Type *x, const Box *box, int64_t *strides) {
  int64_t at = 0;
  strided_row_major(x->dims, x->rank, strides);
  for (int i = 0; i < x->rank; i++) {
    at += box->start[i] * strides[i];
    strides[i] *= box->step[i];
  }
  return at;
}

static Status slice_infer(Node *node, Arena *arena) {
  const Type *x = input_type(node, 0);
  Box box;
  TRY(slice_box(node, x, 1, node_has_input(node, 3), node_has_input(node, 4), read_constant, node, &box));
  node->outputs[0]->type = box_type(x, &box);
  return STATUS_OK;
}

static Status check_box(const KernelContext *c, const Type *x, const Box *box, const Type *expected) {
  Type got = box_type(x, box);
  if (!type_same_shape(&got, expected)) FAIL(MALFORMED, c->node->name, "%s: the indices at run time are not those that the plan was made for", c->node->op->name);
  return STATUS_OK;
}

static Status slice_run(const KernelContext *c) {
  const Type *x = c->in[0].type, *y = c->out[0].type;
  Box box;
  int64_t from[RANK_MAX], to[RANK_MAX], bytes = dtype_bytes(x->dtype);
  TRY(slice_box(c->node, x, 1, has_input(c, 3), has_input(c, 4), read_tensor, c, &box));
  TRY(check_box(c, x, &box, y));
  int64_t at = box_strides(x, &box, from);
  strided_row_major(y->dims, y->rank, to);
  strided_copy(c->out[0].data, to, (const char *)c->in[0].data + at * bytes, from, y->dims, y->rank, bytes);
  return STATUS_OK;
}

static Status slice_grad(Grad *g) {
  if (!g->wanted[0]) return STATUS_OK;
  const Node *n = g->node;
  const Type *x = input_type(n, 0);
  Value *inputs[5] = {g->dy[0]};
  for (int i = 1; i < n->n_inputs; i++) inputs[i] = n->inputs[i];
  g->dx[0] = emit(g->emit, &op_SliceGrad, inputs, n->n_inputs, ATTRS(A_INTS("dims", x->dims, x->rank)));
  return STATUS_OK;
}

const Op op_Slice = {.name = "Slice", .domain = "", .min_inputs = 3, .max_inputs = 5, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 30,
                     .infer = slice_infer, .grad = slice_grad, .run_ref = slice_run, .cost = cost_rows};

// ---- SliceGrad: inputs dy, starts, ends, axes?, steps? ------------------------------------------------------------------------

typedef struct SliceGradAttrs { AttrInts dims; } SliceGradAttrs;
static const AttrSpec slice_grad_attrs[] = {
  {"dims", ATTR_INTS, offsetof(SliceGradAttrs, dims), .min = 0, .max = INT64_MAX, .help = "shape of Slice's data"},
  {0},
};

static Status data_type(const Node *node, Dtype dtype, Type *x) {
  const AttrInts *dims = &((const SliceGradAttrs *)node->attrs)->dims;
  if (dims->n > RANK_MAX) FAIL(UNSUPPORTED, node->name, "SliceGrad: dims has %" PRId64 " entries; at most %d are supported", dims->n, RANK_MAX);
  *x = type_make(dtype, (int)dims->n, dims->items);
  return STATUS_OK;
}

static Status slice_grad_infer(Node *node, Arena *arena) {
  const Type *dy = input_type(node, 0);
  Type x;
  Box box;
  TRY(data_type(node, dy->dtype, &x));
  TRY(type_check(&x, node->name));
  TRY(slice_box(node, &x, 1, node_has_input(node, 3), node_has_input(node, 4), read_constant, node, &box));
  Type sliced = box_type(&x, &box);
  if (!type_equal(&sliced, dy)) {
    char a[160], b[160];
    FAIL(MALFORMED, node->name, "SliceGrad: dy is %s; the slice is %s", type_text(dy, a, sizeof a), type_text(&sliced, b, sizeof b));
  }
  node->outputs[0]->type = x;
  return STATUS_OK;
}

static Status slice_grad_run(const KernelContext *c) {
  const Type *x = c->out[0].type, *dy = c->in[0].type;
  Box box;
  int64_t from[RANK_MAX], to[RANK_MAX], bytes = dtype_bytes(x->dtype);
  TRY(slice_box(c->node, x, 1, has_input(c, 3), has_input(c, 4), read_tensor, c, &box));
  TRY(check_box(c, x, &box, dy));
  int64_t at = box_strides(x, &box, to);
  strided_row_major(dy->dims, dy->rank, from);
  if (type_elems(x)) memset(c->out[0].data, 0, (size_t)type_bytes(x));
  strided_copy((char *)c->out[0].data + at * bytes, to, c->in[0].data, from, dy->dims, dy->rank, bytes);
  return STATUS_OK;
}

const Op op_SliceGrad = {.name = "SliceGrad", .domain = "tessera", .min_inputs = 3, .max_inputs = 5, .min_outputs = 1, .max_outputs = 1,
                         .nondifferentiable = 30, .attrs = slice_grad_attrs, .attrs_bytes = sizeof(SliceGradAttrs), .infer = slice_grad_infer,
                         .run_ref = slice_grad_run, .cost = cost_move};

// ---- Pad: inputs data, pads, constant_value?, axes? ---------------------------------------------------------------------------

typedef struct PadAttrs { const char *mode; AttrInts dims; } PadAttrs;
static const AttrSpec pad_attrs[] = {
  {"mode", ATTR_STRING, offsetof(PadAttrs, mode), .default_string = "constant", .help = "constant, reflect, edge or wrap"},
  {0},
};

typedef struct Pads { int64_t before[RANK_MAX], after[RANK_MAX]; } Pads;

static Status read_pads(const Node *node, const Type *x, bool has_axes, ReadIndex read, const void *from, Pads *pads) {
  int64_t list[2 * RANK_MAX], axes[RANK_MAX];
  int n, n_axes = x->rank;
  uint32_t mask;
  TRY(read(from, 1, list, 2 * RANK_MAX, &n));
  for (int i = 0; i < x->rank; i++) axes[i] = i;
  if (has_axes) TRY(read(from, 3, axes, RANK_MAX, &n_axes));
  if (n != 2 * n_axes) FAIL(MALFORMED, node->name, "Pad: %d pads for %d axes; twice as many are needed", n, n_axes);
  TRY(index_axes(axes, n_axes, x->rank, node->name, &mask));
  memset(pads, 0, sizeof *pads);
  for (int i = 0; i < n_axes; i++) {
    int axis = (int)(axes[i] < 0 ? axes[i] + x->rank : axes[i]);
    pads->before[axis] = list[i];
    pads->after[axis] = list[n_axes + i];
  }
  return STATUS_OK;
}

static Status padded_type(const Node *node, const Type *x, const Pads *pads, Type *y) {
  const char *mode = ((const PadAttrs *)node->attrs)->mode;
  *y = *x;
  for (int i = 0; i < x->rank; i++) {
    int64_t d = x->dims[i], b = pads->before[i], a = pads->after[i], sum;
    if (__builtin_add_overflow(d, b, &sum) || __builtin_add_overflow(sum, a, &sum) || sum < 0)
      FAIL(MALFORMED, node->name, "Pad: axis %d has %" PRId64 " elements; %" PRId64 " before and %" PRId64 " after do not fit", i, d, b, a);
    if (strcmp(mode, "constant") && d == 0 && sum > 0) FAIL(MALFORMED, node->name, "Pad: mode %s on axis %d, which is empty", mode, i);
    if (!strcmp(mode, "reflect") && (b >= d || a >= d) && d > 0)
      FAIL(MALFORMED, node->name,
          "Pad: mode reflect on axis %d of %" PRId64 " elements: %" PRId64 " before and %" PRId64 " after; at most %" PRId64 " are possible", i, d, b, a, d - 1);
    y->dims[i] = sum;
  }
  return STATUS_OK;
}

static Status pad_infer(Node *node, Arena *arena) {
  const Type *x = input_type(node, 0);
  const char *mode = ((const PadAttrs *)node->attrs)->mode;
  if (strcmp(mode, "constant") && strcmp(mode, "reflect") && strcmp(mode, "edge") && strcmp(mode, "wrap"))
    FAIL(MALFORMED, node->name, "Pad: mode '%s'; constant, reflect, edge and wrap exist", mode);
  if (node_has_input(node, 2) && (input_type(node, 2)->dtype != x->dtype || type_elems(input_type(node, 2)) != 1))
    FAIL(MALFORMED, node->name, "Pad: constant_value '%s' must be one element of type %s", node->inputs[2]->name, dtype_name(x->dtype));
  Pads pads;
  TRY(read_pads(node, x, node_has_input(node, 3), read_constant, node, &pads));
  return padded_type(node, x, &pads, &node->outputs[0]->type);
}

// The index of x that index `i` of the padded axis shows.
static int64_t pad_source(int64_t i, int64_t d, char mode) {
  if (mode == 'e') return i < 0 ? 0 : i >= d ? d - 1 : i;
  if (mode == 'w') return (i % d + d) % d;
  return i < 0 ? -i : i >= d ? 2 * (d - 1) - i : i;
}

static void pad_elements(const KernelContext *c, const Pads *pads, char mode) {
  const Type *x = c->in[0].type, *y = c->out[0].type;
  int64_t strides[RANK_MAX], bytes = dtype_bytes(x->dtype);
  strided_row_major(x->dims, x->rank, strides);
  for (int64_t e = 0, n = type_elems(y); e < n; e++) {
    int64_t from = 0, rest = e;
    for (int i = y->rank - 1; i >= 0; i--) {
      from += pad_source(rest % y->dims[i] - pads->before[i], x->dims[i], mode) * strides[i];
      rest /= y->dims[i];
    }
    memcpy((char *)c->out[0].data + e * bytes, (const char *)c->in[0].data + from * bytes, (size_t)bytes);
  }
}

static Status pad_run(const KernelContext *c) {
  const Type *x = c->in[0].type, *y = c->out[0].type;
  const char *mode = ((const PadAttrs *)c->node->attrs)->mode;
  int64_t bytes = dtype_bytes(x->dtype), outside[RANK_MAX], inside[RANK_MAX], common[RANK_MAX], zero[RANK_MAX] = {0};
  Pads pads;
  Type expected;
  TRY(read_pads(c->node, x, has_input(c, 3), read_tensor, c, &pads));
  TRY(padded_type(c->node, x, &pads, &expected));
  if (!type_same_shape(&expected, y)) FAIL(MALFORMED, c->node->name, "Pad: the pads at run time are not those that the plan was made for");
  if (type_elems(y) == 0) return STATUS_OK;
  if (strcmp(mode, "constant")) {
    pad_elements(c, &pads, mode[0]);
    return STATUS_OK;
  }
  unsigned char value[8] = {0};
  if (has_input(c, 2)) memcpy(value, c->in[2].data, (size_t)bytes);
  strided_row_major(y->dims, y->rank, outside);
  strided_row_major(x->dims, x->rank, inside);
  strided_copy(c->out[0].data, outside, value, zero, y->dims, y->rank, bytes);
  int64_t to = 0, from = 0;   // the part of x that is visible: negative pads cut
  for (int i = 0; i < x->rank; i++) {
    int64_t first = pads.before[i] < 0 ? -pads.before[i] : 0, last = x->dims[i] + (pads.after[i] < 0 ? pads.after[i] : 0);
    common[i] = last > first ? last - first : 0;
    from += first * inside[i];
    to += (pads.before[i] > 0 ? pads.before[i] : 0) * outside[i];
  }
  strided_copy((char *)c->out[0].data + to * bytes, outside, (const char *)c->in[0].data + from * bytes, inside, common, x->rank, bytes);
  return STATUS_OK;
}

// Of constant padding: what the pads added is cut, what they cut gets zeros. Of the others: each element of x gets what its copies got.
static Status pad_grad(Grad *g) {
  if (!g->wanted[0]) return STATUS_OK;
  const Node *node = g->node;
  const char *mode = ((const PadAttrs *)node->attrs)->mode;
  if (node_has_input(node, 2) && g->wanted[2]) FAIL(UNSUPPORTED, node->name, "Pad: no gradient for constant_value '%s'", node->inputs[2]->name);
  const Type *x = input_type(node, 0);
  if (strcmp(mode, "constant")) {
    bool has_axes = node_has_input(node, 3);
    Value *inputs[4] = {g->dy[0], node->inputs[1], NULL, has_axes ? node->inputs[3] : NULL};
    g->dx[0] = emit(g->emit, &op_PadGrad, inputs, has_axes ? 4 : 2, ATTRS(A_STRING("mode", mode), A_INTS("dims", x->dims, x->rank)));
    return STATUS_OK;
  }
  Pads pads;
  TRY(read_pads(node, x, node_has_input(node, 3), read_constant, node, &pads));
  int64_t back[2 * RANK_MAX];
  for (int i = 0; i < x->rank; i++) back[i] = -pads.before[i], back[x->rank + i] = -pads.after[i];
  g->dx[0] = emit(g->emit, &op_Pad, INPUTS(g->dy[0], emit_int64s(g->emit, "pads", back, 2 * x->rank)), NULL);
  return STATUS_OK;
}

const Op op_Pad = {.name = "Pad", .domain = "", .min_inputs = 2, .max_inputs = 4, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 10,
                   .attrs = pad_attrs, .attrs_bytes = sizeof(PadAttrs), .infer = pad_infer, .grad = pad_grad, .run_ref = pad_run, .cost = cost_move};

// ---- PadGrad: inputs dy, pads, (absent), axes?. Of the modes that repeat elements of x -----------------------------------------

static const AttrSpec pad_grad_attrs[] = {
  {"mode", ATTR_STRING, offsetof(PadAttrs, mode), .required = true, .help = "reflect, edge or wrap"},
  {"dims", ATTR_INTS, offsetof(PadAttrs, dims), .min = 0, .max = INT64_MAX, .help = "shape of Pad's data"},
  {0},
};

static Status padded_again(const Node *node, bool has_axes, ReadIndex read, const void *from, const Type *dy, Type *x, Pads *pads) {
  const PadAttrs *a = node->attrs;
  if (a->dims.n > RANK_MAX) FAIL(UNSUPPORTED, node->name, "PadGrad: dims has %" PRId64 " entries; at most %d are supported", a->dims.n, RANK_MAX);
  if (strcmp(a->mode, "reflect") && strcmp(a->mode, "edge") && strcmp(a->mode, "wrap"))
    FAIL(MALFORMED, node->name, "PadGrad: mode '%s'; reflect, edge and wrap exist", a->mode);
  *x = type_make(dy->dtype, (int)a->dims.n, a->dims.items);
  Type padded;
  TRY(type_check(x, node->name));
  TRY(read_pads(node, x, has_axes, read, from, pads));
  TRY(padded_type(node, x, pads, &padded));
  if (dtype_is_float(dy->dtype) && type_equal(&padded, dy)) return STATUS_OK;
  char want[160], got[160];
  FAIL(MALFORMED, node->name, "PadGrad: dy is %s; %s is needed", type_text(dy, got, sizeof got), type_text(&padded, want, sizeof want));
}

static Status pad_grad_infer(Node *node, Arena *arena) {
  Pads pads;
  return padded_again(node, node_has_input(node, 3), read_constant, node, input_type(node, 0), &node->outputs[0]->type, &pads);
}

static Status pad_grad_run(const KernelContext *c) {
  const Type *x = c->out[0].type, *y = c->in[0].type;
  Pads pads;
  Type again;
  TRY(padded_again(c->node, has_input(c, 3), read_tensor, c, y, &again, &pads));
  int64_t strides[RANK_MAX];
  strided_row_major(x->dims, x->rank, strides);
  if (type_elems(x)) memset(c->out[0].data, 0, (size_t)type_bytes(x));
  char mode = ((const PadAttrs *)c->node->attrs)->mode[0];
  for (int64_t e = 0, n = type_elems(y); e < n; e++) {
    int64_t to = 0, rest = e;
    for (int i = y->rank - 1; i >= 0; i--) {
      to += pad_source(rest % y->dims[i] - pads.before[i], x->dims[i], mode) * strides[i];
      rest /= y->dims[i];
    }
    out_f(c, 0, to, element_read(c->out[0].data, x->dtype, to) + in_f(c, 0, e));
  }
  return STATUS_OK;
}

const Op op_PadGrad = {.name = "PadGrad", .domain = "tessera", .min_inputs = 2, .max_inputs = 4, .min_outputs = 1, .max_outputs = 1,
                       .nondifferentiable = 14, .attrs = pad_grad_attrs, .attrs_bytes = sizeof(PadAttrs), .infer = pad_grad_infer, .run_ref = pad_grad_run,
                       .cost = cost_move};
