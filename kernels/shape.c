// Shape, Size, and the operators that rename axes and move nothing: Reshape, Flatten, Squeeze, Unsqueeze. Their results are views.
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "cost.h"
#include "index_input.h"
#include "ops.h"

static bool view(const Node *node, int output, int input, Alias *out) {
  if (input != 0) return false;
  *out = (Alias){.kind = ALIAS_VIEW, .input = 0};
  return true;
}

static Status copy(const KernelContext *c) {
  int64_t bytes = type_bytes(c->out[0].type);
  copy_unless_same(c->out[0].data, c->in[0].data, bytes);
  return STATUS_OK;
}

static Status view_grad(Grad *g) {
  const Type *x = &g->node->inputs[0]->type;
  if (g->wanted[0]) g->dx[0] = emit(g->emit, &op_Reshape, INPUTS(g->dy[0], emit_int64s(g->emit, "shape", x->dims, x->rank)), ATTRS(A_INT("allowzero", 1)));
  return STATUS_OK;
}

// ---- Shape ----

typedef struct ShapeAttrs { int64_t start, end; } ShapeAttrs;
static const AttrSpec shape_attrs[] = {
  {"start", ATTR_INT, offsetof(ShapeAttrs, start), .help = "first axis"},
  {"end", ATTR_INT, offsetof(ShapeAttrs, end), .default_int = ATTR_ABSENT, .help = "axis after the last; all when absent"},
  {0},
};

static int64_t clamp(int64_t v, int64_t low, int64_t high) { return v < low ? low : v > high ? high : v; }

static void shape_range(const Node *node, const Type *x, int *first, int *count) {
  const ShapeAttrs *a = node->attrs;
  int64_t start = a->start < 0 ? a->start + x->rank : a->start;
  int64_t end = a->end == ATTR_ABSENT ? x->rank : a->end < 0 ? a->end + x->rank : a->end;
  start = clamp(start, 0, x->rank);
  end = clamp(end, start, x->rank);
  *first = (int)start;
  *count = (int)(end - start);
}

static Status shape_infer(Node *node, Arena *arena) {
  int first, count;
  shape_range(node, input_type(node, 0), &first, &count);
  node->outputs[0]->type = type_vector(DTYPE_I64, count);
  return STATUS_OK;
}

static Status shape_run(const KernelContext *c) {
  int first, count;
  shape_range(c->node, c->in[0].type, &first, &count);
  for (int i = 0; i < count; i++) out_i(c, 0, i, c->in[0].type->dims[first + i]);
  return STATUS_OK;
}

const Op op_Shape = {.name = "Shape", .domain = "", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 1,
                     .attrs = shape_attrs, .attrs_bytes = sizeof(ShapeAttrs), .infer = shape_infer, .run_ref = shape_run, .cost = cost_move};

// ---- Size ----

static Status size_infer(Node *node, Arena *arena) {
  node->outputs[0]->type = type_scalar(DTYPE_I64);
  return STATUS_OK;
}

static Status size_run(const KernelContext *c) {
  out_i(c, 0, 0, in_elems(c, 0));
  return STATUS_OK;
}

const Op op_Size = {.name = "Size", .domain = "", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 1,
                    .infer = size_infer, .run_ref = size_run, .cost = cost_move};

// ---- Reshape ----

typedef struct ReshapeAttrs { int64_t allowzero; } ReshapeAttrs;
static const AttrSpec reshape_attrs[] = {
  {"allowzero", ATTR_INT, offsetof(ReshapeAttrs, allowzero), .min = 0, .max = 1, .help = "1: a 0 means 0; 0: it copies the input's dimension"},
  {0},
};

// Product of dims without wrapping; -1 when it passes 2^62 (no tensor has so many elements).
static int64_t product(const int64_t *dims, int n) {
  int64_t p = 1;
  for (int i = 0; i < n; i++)
    if (dims[i] == 0) return 0;
  for (int i = 0; i < n; i++)
    if (__builtin_mul_overflow(p, dims[i], &p)) return -1;
  return p;
}

static Status reshape_infer(Node *node, Arena *arena) {
  const Type *x = input_type(node, 0);
  bool allow_zero = ((const ReshapeAttrs *)node->attrs)->allowzero;
  int64_t dims[RANK_MAX], unknown = -1;
  int rank;
  TRY(index_constant(node, 1, dims, RANK_MAX, &rank));
  for (int i = 0; i < rank; i++) {
    if (dims[i] < -1) FAIL(MALFORMED, node->name, "Reshape: dimension %d of the shape is %" PRId64, i, dims[i]);
    if (dims[i] == -1 && unknown >= 0) FAIL(MALFORMED, node->name, "Reshape: dimensions %d and %d of the shape are both -1", (int)unknown, i);
    if (dims[i] == -1) unknown = i;
    if (dims[i] == 0 && !allow_zero) {
      if (i >= x->rank) FAIL(MALFORMED, node->name, "Reshape: dimension %d of the shape is 0, and the input has only %d dimensions to copy from", i, x->rank);
      dims[i] = x->dims[i];
    }
  }
  int64_t elems = type_elems(x);
  if (unknown >= 0) {
    dims[unknown] = 1;
    int64_t rest = product(dims, rank);
    if (rest <= 0 || elems % rest)
      FAIL(MALFORMED, node->name, "Reshape: %" PRId64 " elements do not divide by %" PRId64 ", the product of the other dimensions", elems, rest);
    dims[unknown] = elems / rest;
  }
  if (product(dims, rank) != elems) {
    Type want = type_make(x->dtype, rank, dims);
    char from[160], to[160];
    FAIL(MALFORMED, node->name, "Reshape: %s has %" PRId64 " elements and does not fit %s", type_text(x, from, sizeof from), elems, type_text(&want, to, sizeof to));
  }
  node->outputs[0]->type = type_make(x->dtype, rank, dims);
  return STATUS_OK;
}

const Op op_Reshape = {.name = "Reshape", .domain = "", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 1 << 1,
                       .attrs = reshape_attrs, .attrs_bytes = sizeof(ReshapeAttrs), .infer = reshape_infer, .grad = view_grad, .run_ref = copy, .alias = view,
                       .cost = cost_move};

// ---- Flatten ----

typedef struct FlattenAttrs { int64_t axis; } FlattenAttrs;
static const AttrSpec flatten_attrs[] = {
  {"axis", ATTR_INT, offsetof(FlattenAttrs, axis), .default_int = 1, .help = "axes before it make the rows, in [-rank, rank]"},
  {0},
};

static Status flatten_infer(Node *node, Arena *arena) {
  const Type *x = input_type(node, 0);
  int64_t axis = ((const FlattenAttrs *)node->attrs)->axis;
  if (axis < -x->rank || axis > x->rank) FAIL(MALFORMED, node->name, "Flatten: axis %" PRId64 " is outside [%d,%d]", axis, -x->rank, x->rank);
  int cut = (int)(axis < 0 ? axis + x->rank : axis);
  int64_t dims[2] = {product(x->dims, cut), product(x->dims + cut, x->rank - cut)};
  node->outputs[0]->type = type_make(x->dtype, 2, dims);
  return STATUS_OK;
}

const Op op_Flatten = {.name = "Flatten", .domain = "", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1,
                       .attrs = flatten_attrs, .attrs_bytes = sizeof(FlattenAttrs), .infer = flatten_infer, .grad = view_grad, .run_ref = copy, .alias = view,
                       .cost = cost_move};

// ---- Squeeze, Unsqueeze ----

static Status squeeze_infer(Node *node, Arena *arena) {
  const Type *x = input_type(node, 0);
  uint32_t mask = 0;
  if (node_has_input(node, 1)) {
    int64_t axes[RANK_MAX];
    int n;
    TRY(index_constant(node, 1, axes, RANK_MAX, &n));
    TRY(index_axes(axes, n, x->rank, node->name, &mask));
  } else {
    for (int i = 0; i < x->rank && i < RANK_MAX; i++)   // the second bound is for gcc under the sanitizers
      if (x->dims[i] == 1) mask |= UINT32_C(1) << i;
  }
  int64_t dims[RANK_MAX];
  int rank = 0;
  for (int i = 0; i < x->rank; i++) {
    if (!(mask >> i & 1)) dims[rank++] = x->dims[i];
    else if (x->dims[i] != 1) FAIL(MALFORMED, node->name, "Squeeze: axis %d has %" PRId64 " elements, not 1", i, x->dims[i]);
  }
  node->outputs[0]->type = type_make(x->dtype, rank, dims);
  return STATUS_OK;
}

static Status unsqueeze_infer(Node *node, Arena *arena) {
  const Type *x = input_type(node, 0);
  int64_t axes[RANK_MAX];
  int n;
  uint32_t mask;
  TRY(index_constant(node, 1, axes, RANK_MAX, &n));
  int rank = x->rank + n;
  if (rank > RANK_MAX) FAIL(UNSUPPORTED, node->name, "Unsqueeze: a result of %d dimensions; at most %d are supported", rank, RANK_MAX);
  TRY(index_axes(axes, n, rank, node->name, &mask));
  int64_t dims[RANK_MAX];
  for (int i = 0, from = 0; i < rank; i++) dims[i] = mask >> i & 1 ? 1 : x->dims[from++];
  node->outputs[0]->type = type_make(x->dtype, rank, dims);
  return STATUS_OK;
}

const Op op_Squeeze = {.name = "Squeeze", .domain = "", .min_inputs = 1, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 1 << 1,
                       .infer = squeeze_infer, .grad = view_grad, .run_ref = copy, .alias = view, .cost = cost_move};
const Op op_Unsqueeze = {.name = "Unsqueeze", .domain = "", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 1 << 1,
                         .infer = unsqueeze_infer, .grad = view_grad, .run_ref = copy, .alias = view, .cost = cost_move};
