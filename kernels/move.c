// Operators that move elements and compute nothing: Transpose, Expand, Concat, Split, Trilu, Tile. Any element type.
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "cost.h"
#include "index_input.h"
#include "ops.h"
#include "strided.h"

// ---- Transpose ----

typedef struct TransposeAttrs { AttrInts perm; } TransposeAttrs;
static const AttrSpec transpose_attrs[] = {
  {"perm", ATTR_INTS, offsetof(TransposeAttrs, perm), .help = "input axis of each output axis; reversed when absent"},
  {0},
};

static int perm_axis(const Node *node, int i, int rank) {
  const AttrInts *perm = &((const TransposeAttrs *)node->attrs)->perm;
  return perm->n ? (int)perm->items[i] : rank - 1 - i;
}

static Status transpose_infer(Node *node, Arena *arena) {
  const Type *x = input_type(node, 0);
  const AttrInts *perm = &((const TransposeAttrs *)node->attrs)->perm;
  if (perm->n && perm->n != x->rank) FAIL(MALFORMED, node->name, "Transpose: perm has %" PRId64 " entries for %d dimensions", perm->n, x->rank);
  uint32_t seen = 0;
  for (int64_t i = 0; i < perm->n; i++) {
    int64_t p = perm->items[i];
    if (p < 0 || p >= x->rank || (seen >> p & 1)) FAIL(MALFORMED, node->name, "Transpose: perm entry %" PRId64 " is outside [0,%d] or given twice", p, x->rank - 1);
    seen |= 1u << p;
  }
  Type y = {.dtype = x->dtype, .rank = x->rank};
  for (int i = 0; i < x->rank; i++) y.dims[i] = x->dims[perm_axis(node, i, x->rank)];
  node->outputs[0]->type = y;
  return STATUS_OK;
}

static Status transpose_run(const KernelContext *c) {
  const Type *x = c->in[0].type, *y = c->out[0].type;
  int64_t plain[RANK_MAX], from[RANK_MAX], to[RANK_MAX];
  strided_row_major(x->dims, x->rank, plain);
  strided_row_major(y->dims, y->rank, to);
  for (int i = 0; i < y->rank; i++) from[i] = plain[perm_axis(c->node, i, x->rank)];
  strided_copy(c->out[0].data, to, c->in[0].data, from, y->dims, y->rank, dtype_bytes(x->dtype));
  return STATUS_OK;
}

static Status transpose_grad(Grad *g) {
  int rank = input_type(g->node, 0)->rank;
  int64_t inverse[RANK_MAX];
  for (int i = 0; i < rank; i++) inverse[perm_axis(g->node, i, rank)] = i;
  g->dx[0] = emit(g->emit, &op_Transpose, INPUTS(g->dy[0]), ATTRS(A_INTS("perm", inverse, rank)));
  return STATUS_OK;
}

// Axes of one element move for free.
static bool transpose_alias(const Node *node, int output, int input, Alias *out) {
  const Type *x = input_type(node, 0);
  int last = -1;
  for (int i = 0; i < x->rank; i++) {
    int p = perm_axis(node, i, x->rank);
    if (x->dims[p] == 1) continue;
    if (p < last) return false;
    last = p;
  }
  *out = (Alias){.kind = ALIAS_VIEW, .input = 0};
  return true;
}

const Op op_Transpose = {.name = "Transpose", .domain = "", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1,
                         .attrs = transpose_attrs, .attrs_bytes = sizeof(TransposeAttrs), .infer = transpose_infer, .grad = transpose_grad,
                         .run_ref = transpose_run, .alias = transpose_alias, .cost = cost_element};

// ---- Expand ----

static Status expand_infer(Node *node, Arena *arena) {
  const Type *x = input_type(node, 0);
  Type want = {.dtype = x->dtype};
  TRY(index_constant(node, 1, want.dims, RANK_MAX, &want.rank));
  TRY(type_check(&want, node->name));
  node->outputs[0]->type.dtype = x->dtype;
  return type_broadcast(x, &want, node->name, &node->outputs[0]->type);
}

static Status expand_run(const KernelContext *c) {
  const Type *x = c->in[0].type, *y = c->out[0].type;
  int64_t from[RANK_MAX], to[RANK_MAX];
  type_strides(x, y, from);
  strided_row_major(y->dims, y->rank, to);
  strided_copy(c->out[0].data, to, c->in[0].data, from, y->dims, y->rank, dtype_bytes(x->dtype));
  return STATUS_OK;
}

static Status expand_grad(Grad *g) {
  if (g->wanted[0]) g->dx[0] = emit_sum_to(g->emit, g->dy[0], input_type(g->node, 0));
  return STATUS_OK;
}

static bool expand_alias(const Node *node, int output, int input, Alias *out) {
  if (input != 0 || type_elems(&node->outputs[0]->type) != type_elems(input_type(node, 0))) return false;
  *out = (Alias){.kind = ALIAS_VIEW, .input = 0};
  return true;
}

const Op op_Expand = {.name = "Expand", .domain = "", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1,
                      .nondifferentiable = 1 << 1, .infer = expand_infer, .grad = expand_grad, .run_ref = expand_run, .alias = expand_alias, .cost = cost_move};

// ---- Concat and Split: a piece is a box of the whole ----

typedef struct AxisAttrs { int64_t axis, num_outputs; } AxisAttrs;

// Copies between `whole` and the piece that starts at `start` on `axis`.
static void move_piece(void *whole, const Type *whole_type, void *piece, const Type *piece_type, int axis, int64_t start, bool into_whole) {
  int64_t bytes = dtype_bytes(whole_type->dtype), outside[RANK_MAX], inside[RANK_MAX];
  strided_row_major(whole_type->dims, whole_type->rank, outside);
  strided_row_major(piece_type->dims, piece_type->rank, inside);
  char *at = (char *)whole + start * outside[axis] * bytes;
  if (into_whole) strided_copy(at, outside, piece, inside, piece_type->dims, piece_type->rank, bytes);
  else strided_copy(piece, inside, at, outside, piece_type->dims, piece_type->rank, bytes);
}

static const AttrSpec concat_attrs[] = {
  {"axis", ATTR_INT, offsetof(AxisAttrs, axis), .required = true, .help = "axis along which inputs follow each other"},
  {0},
};

static Status concat_infer(Node *node, Arena *arena) {
  for (int i = 0; i < node->n_inputs; i++)
    if (!node->inputs[i]) FAIL(MALFORMED, node->name, "Concat: input %d is absent", i);
  Type y = *input_type(node, 0);
  int axis;
  TRY(type_axis(((const AxisAttrs *)node->attrs)->axis, y.rank, node->name, &axis));
  for (int i = 1; i < node->n_inputs; i++) {
    const Type *x = input_type(node, i);
    bool fits = x->dtype == y.dtype && x->rank == y.rank;
    for (int d = 0; d < y.rank && fits; d++) fits = d == axis || x->dims[d] == y.dims[d];
    if (!fits) {
      char a[160], b[160];
      FAIL(MALFORMED, node->name, "Concat: input %d '%s' is %s and does not fit input 0, %s, on axes other than %d", i, node->inputs[i]->name,
           type_text(x, a, sizeof a), type_text(input_type(node, 0), b, sizeof b), axis);
    }
    if (__builtin_add_overflow(y.dims[axis], x->dims[axis], &y.dims[axis])) FAIL(RESOURCE, node->name, "Concat: the sum of the dimensions overflows");
  }
  node->outputs[0]->type = y;
  return STATUS_OK;
}

static int piece_axis(const KernelContext *c, const Type *whole) {
  int64_t axis = ((const AxisAttrs *)c->node->attrs)->axis;
  return (int)(axis < 0 ? axis + whole->rank : axis);
}

static Status concat_run(const KernelContext *c) {
  int axis = piece_axis(c, c->out[0].type);
  int64_t start = 0;
  for (int i = 0; i < c->n_in; i++) {
    move_piece(c->out[0].data, c->out[0].type, c->in[i].data, c->in[i].type, axis, start, true);
    start += c->in[i].type->dims[axis];
  }
  return STATUS_OK;
}

static Status concat_grad(Grad *g) {
  const Node *node = g->node;
  Arena *arena = g->emit->graph->arena;
  int axis;
  TRY(type_axis(((const AxisAttrs *)node->attrs)->axis, input_type(node, 0)->rank, node->name, &axis));
  int64_t *sizes = ARENA_ARRAY(arena, int64_t, node->n_inputs);
  for (int i = 0; i < node->n_inputs; i++) sizes[i] = input_type(node, i)->dims[axis];
  Node *split = emit_node(g->emit, &op_Split, INPUTS(g->dy[0], emit_int64s(g->emit, "split", sizes, node->n_inputs)), node->n_inputs, g->wanted,
                          ATTRS(A_INT("axis", axis)));
  for (int i = 0; split && i < node->n_inputs; i++) g->dx[i] = split->outputs[i];
  return STATUS_OK;
}

const Op op_Concat = {.name = "Concat", .domain = "", .min_inputs = 1, .max_inputs = VARIADIC, .min_outputs = 1, .max_outputs = 1,
                      .attrs = concat_attrs, .attrs_bytes = sizeof(AxisAttrs), .infer = concat_infer, .grad = concat_grad, .run_ref = concat_run, .cost = cost_move};

static const AttrSpec split_attrs[] = {
  {"axis", ATTR_INT, offsetof(AxisAttrs, axis), .help = "axis that is cut"},
  {"num_outputs", ATTR_INT, offsetof(AxisAttrs, num_outputs), .default_int = ATTR_ABSENT, .help = "equal parts, the last one smaller"},
  {0},
};

// Size of part `i` of `n`: given, or equal parts rounded up.
static int64_t part_size(const Weight *sizes, int64_t whole, int i, int n) {
  if (sizes) return weight_read_int(sizes, i);
  int64_t part = (whole + n - 1) / n, start = part * i;
  return start >= whole ? 0 : whole - start < part ? whole - start : part;
}

static Status split_infer(Node *node, Arena *arena) {
  const Type *x = input_type(node, 0);
  const AxisAttrs *a = node->attrs;
  int axis;
  TRY(type_axis(a->axis, x->rank, node->name, &axis));
  const Weight *sizes = NULL;
  if (node_has_input(node, 1)) {
    if (a->num_outputs != ATTR_ABSENT) FAIL(MALFORMED, node->name, "Split: both the input split and num_outputs are given");
    const Type *s = input_type(node, 1);
    sizes = value_const(node->inputs[1]);
    if (!sizes) FAIL(UNSUPPORTED, node->name, "Split: input 1 '%s' must be a constant, since it decides the shape of the results", node->inputs[1]->name);
    if (!dtype_is_integer(s->dtype) || s->rank != 1 || s->dims[0] != node->n_outputs)
      FAIL(MALFORMED, node->name, "Split: '%s' has %" PRId64 " entries for %d outputs", node->inputs[1]->name, type_elems(s), node->n_outputs);
  } else if (a->num_outputs != ATTR_ABSENT && a->num_outputs != node->n_outputs) {
    FAIL(MALFORMED, node->name, "Split: num_outputs is %" PRId64 "; the node has %d outputs", a->num_outputs, node->n_outputs);
  }
  int64_t left = x->dims[axis];
  for (int i = 0; i < node->n_outputs; i++) {
    int64_t part = part_size(sizes, x->dims[axis], i, node->n_outputs);
    if (part < 0 || part > left)
      FAIL(MALFORMED, node->name, "Split: part %d has %" PRId64 " elements; %" PRId64 " of %" PRId64 " are left", i, part, left, x->dims[axis]);
    left -= part;
    if (!node->outputs[i]) continue;
    node->outputs[i]->type = *x;
    node->outputs[i]->type.dims[axis] = part;
  }
  if (left) FAIL(MALFORMED, node->name, "Split: the parts leave %" PRId64 " of %" PRId64 " elements", left, x->dims[axis]);
  return STATUS_OK;
}

// Where output `i` starts on the axis: the sizes of the parts before it, those that nobody wants included.
static int64_t part_start(const Node *node, const Type *x, int axis, int output) {
  const Weight *sizes = node_has_input(node, 1) ? value_const(node->inputs[1]) : NULL;
  int64_t start = 0;
  for (int i = 0; i < output; i++) start += part_size(sizes, x->dims[axis], i, node->n_outputs);
  return start;
}

static Status split_run(const KernelContext *c) {
  const Type *x = c->in[0].type;
  int axis = piece_axis(c, x);
  for (int i = 0; i < c->n_out; i++) {
    if (!has_output(c, i)) continue;
    int64_t start = part_start(c->node, x, axis, i);
    if (start + c->out[i].type->dims[axis] > x->dims[axis]) FAIL(MALFORMED, c->node->name, "Split: part %d ends beyond %" PRId64, i, x->dims[axis]);
    move_piece(c->in[0].data, x, c->out[i].data, c->out[i].type, axis, start, false);
  }
  return STATUS_OK;
}

static Status split_grad(Grad *g) {
  if (!g->wanted[0]) return STATUS_OK;
  const Node *node = g->node;
  Emit *e = g->emit;
  const Type *x = input_type(node, 0);
  int axis;
  TRY(type_axis(((const AxisAttrs *)node->attrs)->axis, x->rank, node->name, &axis));
  const Weight *sizes = node_has_input(node, 1) ? value_const(node->inputs[1]) : NULL;
  Value **parts = ARENA_ARRAY(e->graph->arena, Value *, node->n_outputs);
  for (int i = 0; i < node->n_outputs; i++) {
    parts[i] = g->dy[i];
    if (parts[i]) continue;
    Type missing = *x;
    missing.dims[axis] = part_size(sizes, x->dims[axis], i, node->n_outputs);
    parts[i] = emit(e, &op_Expand, INPUTS(emit_float(e, "zero", x->dtype, 0), emit_int64s(e, "shape", missing.dims, missing.rank)), NULL);
    if (!parts[i]) return STATUS_OK;
  }
  g->dx[0] = emit(e, &op_Concat, parts, node->n_outputs, ATTRS(A_INT("axis", axis)));
  return STATUS_OK;
}

// Cut along the outermost axis, the parts lie in the input as they are.
static bool split_alias(const Node *node, int output, int input, Alias *out) {
  const Type *x = input_type(node, 0);
  int64_t axis = ((const AxisAttrs *)node->attrs)->axis, stride = 1;
  int cut = (int)(axis < 0 ? axis + x->rank : axis);
  for (int i = 0; i < cut; i++)
    if (x->dims[i] != 1) return false;
  if (input != 0) return false;
  for (int i = cut + 1; i < x->rank; i++) stride *= x->dims[i];
  *out = (Alias){.kind = ALIAS_VIEW, .input = 0, .offset_bytes = part_start(node, x, cut, output) * stride * dtype_bytes(x->dtype)};
  return true;
}

const Op op_Split = {.name = "Split", .domain = "", .min_inputs = 1, .max_inputs = 2, .min_outputs = 1, .max_outputs = VARIADIC,
                     .nondifferentiable = 1 << 1, .attrs = split_attrs, .attrs_bytes = sizeof(AxisAttrs), .infer = split_infer, .grad = split_grad,
                     .run_ref = split_run, .alias = split_alias, .cost = cost_move};

// ---- Trilu ----

typedef struct TriluAttrs { int64_t upper; } TriluAttrs;
static const AttrSpec trilu_attrs[] = {
  {"upper", ATTR_INT, offsetof(TriluAttrs, upper), .default_int = 1, .min = 0, .max = 1, .help = "1: keep the upper triangle; 0: the lower"},
  {0},
};

static Status trilu_infer(Node *node, Arena *arena) {
  const Type *x = input_type(node, 0);
  if (x->rank < 2) FAIL(MALFORMED, node->name, "Trilu: the input has %d dimensions; at least 2 are needed", x->rank);
  if (node_has_input(node, 1) && (input_type(node, 1)->dtype != DTYPE_I64 || type_elems(input_type(node, 1)) != 1))
    FAIL(MALFORMED, node->name, "Trilu: k '%s' must be one int64", node->inputs[1]->name);
  node->outputs[0]->type = *x;
  return STATUS_OK;
}

static Status trilu_run(const KernelContext *c) {
  const Type *x = c->in[0].type;
  int64_t rows = x->dims[x->rank - 2], columns = x->dims[x->rank - 1], bytes = dtype_bytes(x->dtype);
  int64_t k = has_input(c, 1) ? in_i(c, 1, 0) : 0;
  bool upper = ((const TriluAttrs *)c->node->attrs)->upper;
  k = k < -rows ? -rows : k > columns ? columns : k;   // beyond that all or nothing is kept
  int64_t all_rows = type_elems(x) ? type_elems(x) / columns : 0;
  for (int64_t i = 0; i < all_rows; i++) {
    int64_t cut = i % rows + k + (upper ? 0 : 1);      // first column of the upper part, first one past the lower part
    cut = cut < 0 ? 0 : cut > columns ? columns : cut;
    char *to = (char *)c->out[0].data + i * columns * bytes;
    const char *from = (const char *)c->in[0].data + i * columns * bytes;
    int64_t kept = upper ? cut : 0, gone = upper ? 0 : cut, n_kept = upper ? columns - cut : cut, n_gone = columns - n_kept;
    memmove(to + kept * bytes, from + kept * bytes, (size_t)(n_kept * bytes));
    memset(to + gone * bytes, 0, (size_t)(n_gone * bytes));
  }
  return STATUS_OK;
}

static Status trilu_grad(Grad *g) {
  if (!g->wanted[0]) return STATUS_OK;
  const AttrInit *attrs = ATTRS(A_INT("upper", ((const TriluAttrs *)g->node->attrs)->upper));
  bool has_k = node_has_input(g->node, 1);
  g->dx[0] = emit(g->emit, &op_Trilu, (Value *const[]){g->dy[0], has_k ? g->node->inputs[1] : NULL}, has_k ? 2 : 1, attrs);
  return STATUS_OK;
}

static bool trilu_alias(const Node *node, int output, int input, Alias *out) {
  *out = (Alias){.kind = ALIAS_INPLACE, .input = 0};
  return input == 0;
}

const Op op_Trilu = {.name = "Trilu", .domain = "", .min_inputs = 1, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 1 << 1,
                     .attrs = trilu_attrs, .attrs_bytes = sizeof(TriluAttrs), .infer = trilu_infer, .grad = trilu_grad, .run_ref = trilu_run,
                     .alias = trilu_alias};

// ---- Tile: inputs x, repeats ----

static Status tiled_type(const Node *node, const Type *x, const int64_t *repeats, int n, Type *y) {
  if (n != x->rank) FAIL(MALFORMED, node->name, "Tile: %d repeats for %d dimensions", n, x->rank);
  *y = *x;
  for (int i = 0; i < n; i++)
    if (repeats[i] < 0 || __builtin_mul_overflow(x->dims[i], repeats[i], &y->dims[i]))
      FAIL(MALFORMED, node->name, "Tile: axis %d of %" PRId64 " elements %" PRId64 " times", i, x->dims[i], repeats[i]);
  return STATUS_OK;
}

static Status tile_infer(Node *node, Arena *arena) {
  int64_t repeats[RANK_MAX];
  int n;
  TRY(index_constant(node, 1, repeats, RANK_MAX, &n));
  return tiled_type(node, input_type(node, 0), repeats, n, &node->outputs[0]->type);
}

// Copies x to its place in every tile.
static Status tile_run(const KernelContext *c) {
  const Type *x = c->in[0].type, *y = c->out[0].type;
  int64_t repeats[RANK_MAX], from[RANK_MAX], to[RANK_MAX], bytes = dtype_bytes(x->dtype), tiles = 1;
  int n;
  Type expected;
  TRY(index_tensor(c, 1, repeats, RANK_MAX, &n));
  TRY(tiled_type(c->node, x, repeats, n, &expected));
  if (!type_same_shape(&expected, y)) FAIL(MALFORMED, c->node->name, "Tile: the repeats at run time are not those that the plan was made for");
  strided_row_major(x->dims, x->rank, from);
  strided_row_major(y->dims, y->rank, to);
  for (int i = 0; i < n; i++) tiles *= repeats[i];
  if (type_elems(x) == 0) return STATUS_OK;
  for (int64_t t = 0; t < tiles; t++) {
    int64_t at = 0, rest = t;
    for (int i = n - 1; i >= 0; i--) {
      at += rest % repeats[i] * x->dims[i] * to[i];
      rest /= repeats[i];
    }
    strided_copy((char *)c->out[0].data + at * bytes, to, c->in[0].data, from, x->dims, x->rank, bytes);
  }
  return STATUS_OK;
}

// Sums the tiles, axis by axis: each is [before, repeats, rest].
static Status tile_grad(Grad *g) {
  Emit *e = g->emit;
  const Type *x = input_type(g->node, 0), *y = &g->node->outputs[0]->type;
  Value *sum = g->dy[0];
  Type now = *y;
  for (int i = 0; i < x->rank && g->wanted[0]; i++) {
    if (x->dims[i] == y->dims[i]) continue;
    int64_t dims[3] = {1, x->dims[i] ? y->dims[i] / x->dims[i] : 0, x->dims[i]};
    for (int k = 0; k < i; k++) dims[0] *= now.dims[k];
    for (int k = i + 1; k < now.rank; k++) dims[2] *= now.dims[k];
    Value *tiles = emit(e, &op_Reshape, INPUTS(sum, emit_int64s(e, "tiles", dims, 3)), ATTRS(A_INT("allowzero", 1)));
    sum = emit(e, &op_ReduceSum, INPUTS(tiles, emit_int64s(e, "axes", (const int64_t[]){1}, 1)), ATTRS(A_INT("keepdims", 0)));
    now.dims[i] = x->dims[i];
  }
  if (!g->wanted[0]) return STATUS_OK;
  g->dx[0] = sum && type_same_shape(&sum->type, x) ? sum : emit(e, &op_Reshape, INPUTS(sum, emit_int64s(e, "shape", x->dims, x->rank)), ATTRS(A_INT("allowzero", 1)));
  return STATUS_OK;
}

const Op op_Tile = {.name = "Tile", .domain = "", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 1 << 1,
                    .infer = tile_infer, .grad = tile_grad, .run_ref = tile_run, .cost = cost_move};
