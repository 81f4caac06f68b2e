// Selection and indicators: OneHot, EyeLike, and the operators whose result's shape depends on values: NonZero, Compress, Unique. Of the
// latter the deciding input must be a constant; infer counts in it.
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "index_input.h"
#include "ops.h"

static Status needs_constant(const Node *node, int i, const Weight **out) {
  *out = value_const(node->inputs[i]);
  if (*out) return STATUS_OK;
  FAIL(UNSUPPORTED, node->name, "%s: input %d '%s' must be a constant, since it decides the shape of the result; it is computed at run time",
       node->op->name, i, node->inputs[i]->name);
}

// ---- OneHot: inputs indices, depth, values [off, on] ---------------------------------------------------------------------------

typedef struct OneHotAttrs { int64_t axis; } OneHotAttrs;
static const AttrSpec one_hot_attrs[] = {
  {"axis", ATTR_INT, offsetof(OneHotAttrs, axis), .default_int = -1, .help = "place of the new axis in the result"},
  {0},
};

static Status one_hot_infer(Node *node, Arena *arena) {
  const Type *indices = input_type(node, 0), *values = input_type(node, 2);
  const Weight *depth;
  int axis;
  if (type_elems(input_type(node, 1)) != 1 || type_elems(values) != 2) FAIL(MALFORMED, node->name, "OneHot: depth must be one element and values two");
  if (indices->rank == RANK_MAX) FAIL(UNSUPPORTED, node->name, "OneHot: a result of %d dimensions; at most %d are supported", RANK_MAX + 1, RANK_MAX);
  TRY(needs_constant(node, 1, &depth));
  TRY(type_axis(((const OneHotAttrs *)node->attrs)->axis, indices->rank + 1, node->name, &axis));
  double d = weight_read_float(depth, 0);
  if (!(d >= 0 && d < 0x1p40)) FAIL(MALFORMED, node->name, "OneHot: depth %g", d);
  Type y = {.dtype = values->dtype, .rank = indices->rank + 1};
  for (int i = 0, from = 0; i < y.rank; i++) y.dims[i] = i == axis ? (int64_t)d : indices->dims[from++];
  node->outputs[0]->type = y;
  return STATUS_OK;
}

static Status one_hot_run(const KernelContext *c) {
  const Type *y = c->out[0].type;
  int axis;
  TRY(type_axis(((const OneHotAttrs *)c->node->attrs)->axis, y->rank, c->node->name, &axis));
  int64_t depth = y->dims[axis], inner = 1, bytes = dtype_bytes(y->dtype);
  for (int i = axis + 1; i < y->rank; i++) inner *= y->dims[i];
  const char *off = c->in[2].data, *on = off + bytes;
  for (int64_t e = 0, n = out_elems(c, 0); e < n; e++) memcpy((char *)c->out[0].data + e * bytes, off, (size_t)bytes);
  bool is_float = dtype_is_float(c->in[0].type->dtype);
  for (int64_t k = 0, n = depth ? in_elems(c, 0) : 0; k < n; k++) {
    double v = is_float ? in_f(c, 0, k) : 0;
    int64_t index = !is_float ? in_i(c, 0, k) : v >= -0x1p60 && v <= 0x1p60 ? (int64_t)v : INT64_MAX;
    if (index < -depth || index >= depth) continue;   // all off
    if (index < 0) index += depth;
    memcpy((char *)c->out[0].data + ((k / inner * depth + index) * inner + k % inner) * bytes, on, (size_t)bytes);
  }
  return STATUS_OK;
}

// Everything where an index points goes to `on`, the rest to `off`.
static Status one_hot_grad(Grad *g) {
  Emit *e = g->emit;
  const Node *node = g->node;
  const Type *values = input_type(node, 2);
  const int64_t one_elem = 1;
  Value *parts[2];
  for (int on = 0; on < 2; on++) {
    Value *choice = emit(e, &op_Cast, INPUTS(emit_int64s(e, "choice", (const int64_t[]){!on, on}, 2)), ATTRS(A_INT("to", values->dtype)));
    Value *where = emit(e, &op_OneHot, INPUTS(node->inputs[0], node->inputs[1], choice), ATTRS(A_INT("axis", ((const OneHotAttrs *)node->attrs)->axis)));
    Value *sum = emit(e, &op_ReduceSum, INPUTS(emit(e, &op_Mul, INPUTS(g->dy[0], where), NULL)), ATTRS(A_INT("keepdims", 0)));
    parts[on] = emit(e, &op_Reshape, INPUTS(sum, emit_int64s(e, "single", &one_elem, 1)), NULL);
  }
  Value *both = emit(e, &op_Concat, INPUTS(parts[0], parts[1]), ATTRS(A_INT("axis", 0)));
  g->dx[2] = emit(e, &op_Reshape, INPUTS(both, emit_int64s(e, "shape", values->dims, values->rank)), NULL);
  return STATUS_OK;
}

const Op op_OneHot = {.name = "OneHot", .domain = "", .min_inputs = 3, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 3,
                      .attrs = one_hot_attrs, .attrs_bytes = sizeof(OneHotAttrs), .infer = one_hot_infer, .grad = one_hot_grad, .run_ref = one_hot_run};

// ---- EyeLike --------------------------------------------------------------------------------------------------------------------

typedef struct EyeAttrs { int64_t dtype, k; } EyeAttrs;
static const AttrSpec eye_attrs[] = {
  {"dtype", ATTR_INT, offsetof(EyeAttrs, dtype), .default_int = ATTR_ABSENT, .help = "TensorProto number of the result's type; the input's when absent"},
  {"k", ATTR_INT, offsetof(EyeAttrs, k), .help = "diagonal: 0 the main one, positive above"},
  {0},
};

static Status eye_infer(Node *node, Arena *arena) {
  int64_t dtype = ((const EyeAttrs *)node->attrs)->dtype;
  Type y = *input_type(node, 0);
  if (y.rank != 2) FAIL(MALFORMED, node->name, "EyeLike: input '%s' has %d dimensions; 2 are needed", node->inputs[0]->name, y.rank);
  if (dtype != ATTR_ABSENT && (dtype < 0 || dtype > 64 || !dtype_known((int)dtype)))
    FAIL(UNSUPPORTED, node->name, "EyeLike: element type number %" PRId64 " is not supported", dtype);
  if (dtype != ATTR_ABSENT) y.dtype = (Dtype)dtype;
  node->outputs[0]->type = y;
  return STATUS_OK;
}

static Status eye_run(const KernelContext *c) {
  const Type *y = c->out[0].type;
  int64_t k = ((const EyeAttrs *)c->node->attrs)->k, rows = y->dims[0], columns = y->dims[1];
  if (type_elems(y)) memset(c->out[0].data, 0, (size_t)type_bytes(y));
  for (int64_t i = 0; i < rows && k > -rows && k < columns; i++)
    if (i + k >= 0 && i + k < columns) element_write(c->out[0].data, y->dtype, i * columns + i + k, 1);
  return STATUS_OK;
}

const Op op_EyeLike = {.name = "EyeLike", .domain = "", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 1,
                       .attrs = eye_attrs, .attrs_bytes = sizeof(EyeAttrs), .infer = eye_infer, .run_ref = eye_run};

// ---- NonZero: coordinates [rank, count], in row-major order ----------------------------------------------------------------------

static Status non_zero_infer(Node *node, Arena *arena) {
  const Weight *x;
  TRY(needs_constant(node, 0, &x));
  int64_t count = 0;
  for (int64_t i = 0, n = type_elems(&x->type); i < n; i++) count += weight_read_float(x, i) != 0;
  Type y = {.dtype = DTYPE_I64, .rank = 2, .dims = {x->type.rank, count}};   // of a scalar: [0, count]
  node->outputs[0]->type = y;
  return STATUS_OK;
}

static Status changed(const KernelContext *c) {
  FAIL(MALFORMED, c->node->name, "%s: '%s' at run time is not what the plan was made for", c->node->op->name, c->node->inputs[0]->name);
}

static Status non_zero_run(const KernelContext *c) {
  const Type *x = c->in[0].type;
  int64_t count = c->out[0].type->dims[1], found = 0;
  for (int64_t e = 0, n = in_elems(c, 0); e < n; e++) {
    if (in_f(c, 0, e) == 0) continue;
    if (found == count) return changed(c);
    int64_t rest = e;
    for (int i = x->rank - 1; i >= 0; i--) {
      out_i(c, 0, i * count + found, rest % x->dims[i]);
      rest /= x->dims[i];
    }
    found++;
  }
  return found == count ? STATUS_OK : changed(c);
}

const Op op_NonZero = {.name = "NonZero", .domain = "", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 1,
                       .infer = non_zero_infer, .run_ref = non_zero_run};

// ---- Compress: inputs x, condition [up to the axis' length] ----------------------------------------------------------------------

typedef struct CompressAttrs { int64_t axis; } CompressAttrs;
static const AttrSpec compress_attrs[] = {
  {"axis", ATTR_INT, offsetof(CompressAttrs, axis), .default_int = ATTR_ABSENT, .help = "axis that is selected along; the flattened input when absent"},
  {0},
};

static Status compress_infer(Node *node, Arena *arena) {
  int64_t axis = ((const CompressAttrs *)node->attrs)->axis, count = 0;
  const Type *x = input_type(node, 0), *test = input_type(node, 1);
  Type y = axis == ATTR_ABSENT ? type_vector(x->dtype, type_elems(x)) : *x;
  int at = 0;
  const Weight *w;
  if (axis != ATTR_ABSENT) TRY(type_axis(axis, x->rank, node->name, &at));
  if (test->dtype != DTYPE_BOOL || test->rank != 1 || test->dims[0] > y.dims[at])
    FAIL(MALFORMED, node->name, "Compress: condition '%s' must be at most %" PRId64 " bools", node->inputs[1]->name, y.dims[at]);
  TRY(needs_constant(node, 1, &w));
  for (int64_t i = 0; i < test->dims[0]; i++) count += weight_read_int(w, i) != 0;
  y.dims[at] = count;
  node->outputs[0]->type = y;
  return STATUS_OK;
}

static Status compress_run(const KernelContext *c) {
  int64_t axis = ((const CompressAttrs *)c->node->attrs)->axis, outer = 1, inner = dtype_bytes(c->in[0].type->dtype), count = 0;
  const Type *x = c->in[0].type;
  int at = 0;
  if (axis != ATTR_ABSENT) TRY(type_axis(axis, x->rank, c->node->name, &at));
  int64_t d = axis == ATTR_ABSENT ? type_elems(x) : x->dims[at], n = in_elems(c, 1);
  for (int i = 0; axis != ATTR_ABSENT && i < x->rank; i++) *(i < at ? &outer : &inner) *= i == at ? 1 : x->dims[i];
  for (int64_t i = 0; i < n; i++) count += in_i(c, 1, i) != 0;
  if (count != c->out[0].type->dims[at]) FAIL(MALFORMED, c->node->name, "Compress: the condition at run time is not what the plan was made for");
  char *to = c->out[0].data;
  for (int64_t o = 0; o < outer && inner; o++)
    for (int64_t i = 0; i < n; i++)
      if (in_i(c, 1, i)) to = (char *)memcpy(to, (const char *)c->in[0].data + (o * d + i) * inner, (size_t)inner) + inner;
  return STATUS_OK;
}

// Gather by the positions of the condition, backwards.
static Status compress_grad(Grad *g) {
  Emit *e = g->emit;
  const Type *x = input_type(g->node, 0);
  int64_t axis = ((const CompressAttrs *)g->node->attrs)->axis, elems = type_elems(x), n = 0;
  const Weight *w;
  if (!g->wanted[0]) return STATUS_OK;
  TRY(needs_constant(g->node, 1, &w));
  int64_t *positions = ARENA_ARRAY(e->graph->arena, int64_t, type_elems(&w->type));
  for (int64_t i = 0, all = type_elems(&w->type); i < all; i++)
    if (weight_read_int(w, i)) positions[n++] = i;
  Value *indices = emit_int64s(e, "positions", positions, n);
  bool flat = axis == ATTR_ABSENT;
  g->dx[0] = emit(e, &op_GatherGrad, INPUTS(indices, g->dy[0]),
                  ATTRS(A_INT("axis", flat ? 0 : axis), A_INTS("dims", flat ? &elems : x->dims, flat ? 1 : x->rank)));
  if (flat) g->dx[0] = emit(e, &op_Reshape, INPUTS(g->dx[0], emit_int64s(e, "shape", x->dims, x->rank)), ATTRS(A_INT("allowzero", 1)));
  return STATUS_OK;
}

const Op op_Compress = {.name = "Compress", .domain = "", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 2,
                        .attrs = compress_attrs, .attrs_bytes = sizeof(CompressAttrs), .infer = compress_infer, .grad = compress_grad,
                        .run_ref = compress_run};

// ---- Unique: outputs y, first positions, positions in y, counts ------------------------------------------------------------------
// It is folded at compile time, so that it may use the heap.

typedef struct UniqueAttrs { int64_t axis, sorted; } UniqueAttrs;
static const AttrSpec unique_attrs[] = {
  {"axis", ATTR_INT, offsetof(UniqueAttrs, axis), .default_int = ATTR_ABSENT, .help = "axis whose slices are compared; single elements when absent"},
  {"sorted", ATTR_INT, offsetof(UniqueAttrs, sorted), .default_int = 1, .min = 0, .max = 1, .help = "1: ascending, 0: by first occurrence"},
  {0},
};

// x as slices: outer x n x inner.
typedef struct Slices { Dtype dtype; const void *data; int64_t outer, n, inner; } Slices;
typedef struct Group { int64_t first, count; } Group;

static Status slices_of(const Node *node, const Type *x, const void *data, Slices *out) {
  int64_t axis = ((const UniqueAttrs *)node->attrs)->axis;
  *out = (Slices){x->dtype, data, 1, type_elems(x), 1};
  int at;
  if (axis == ATTR_ABSENT) return STATUS_OK;
  TRY(type_axis(axis, x->rank, node->name, &at));
  out->n = x->dims[at];
  for (int i = 0; i < at; i++) out->outer *= x->dims[i];
  for (int i = at + 1; i < x->rank; i++) out->inner *= x->dims[i];
  return STATUS_OK;
}

static int slices_compare(const Slices *s, int64_t a, int64_t b) {
  for (int64_t o = 0; o < s->outer; o++)
    for (int64_t i = 0; i < s->inner; i++) {
      int64_t ia = (o * s->n + a) * s->inner + i, ib = (o * s->n + b) * s->inner + i;
      if (dtype_is_float(s->dtype)) {
        double x = element_read(s->data, s->dtype, ia), y = element_read(s->data, s->dtype, ib);
        if (x != x || y != y) {   // NaN comes last; NaNs are equal here
          if ((x != x) != (y != y)) return x != x ? 1 : -1;
        } else if (x != y) return x < y ? -1 : 1;
        continue;
      }
      int64_t x = element_read_int(s->data, s->dtype, ia), y = element_read_int(s->data, s->dtype, ib);
      bool less = dtype_class(s->dtype) == DTYPE_CLASS_INT ? x < y : (uint64_t)x < (uint64_t)y;
      if (x != y) return less ? -1 : 1;
    }
  return 0;
}
static int by_slice(const void *a, const void *b, void *slices) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  int order = slices_compare(slices, x, y);
  return order ? order : x < y ? -1 : x > y;
}
static int by_first(const void *a, const void *b) {
  int64_t x = ((const Group *)a)->first, y = ((const Group *)b)->first;
  return x < y ? -1 : x > y;
}

// The groups of equal slices in the order of the result; `groups` has room for n.
static Status unique_groups(const Node *node, Slices *s, Group *groups, int64_t *count) {
  int64_t *order = malloc(sizeof *order * (size_t)(s->n + 1));
  if (!order) FAIL(RESOURCE, node->name, "Unique: no memory for %" PRId64 " positions", s->n);
  for (int64_t i = 0; i < s->n; i++) order[i] = i;
  qsort_r(order, (size_t)s->n, sizeof *order, by_slice, s);
  *count = 0;
  for (int64_t i = 0; i < s->n; i++) {
    if (i && slices_compare(s, order[i - 1], order[i]) == 0) groups[*count - 1].count++;
    else groups[(*count)++] = (Group){order[i], 1};
  }
  free(order);
  if (!((const UniqueAttrs *)node->attrs)->sorted) qsort(groups, (size_t)*count, sizeof *groups, by_first);
  return STATUS_OK;
}

static Status unique_infer(Node *node, Arena *arena) {
  const Weight *x;
  Slices s;
  int64_t count;
  TRY(needs_constant(node, 0, &x));
  TRY(slices_of(node, &x->type, x->bytes, &s));
  TRY(unique_groups(node, &s, ARENA_ARRAY(arena, Group, s.n), &count));
  int64_t axis = ((const UniqueAttrs *)node->attrs)->axis;
  Type y = axis == ATTR_ABSENT ? type_vector(x->type.dtype, count) : x->type;
  if (axis != ATTR_ABSENT) y.dims[axis < 0 ? axis + y.rank : axis] = count;
  for (int i = 0; i < node->n_outputs; i++)
    if (node_has_output(node, i)) node->outputs[i]->type = i == 0 ? y : type_vector(DTYPE_I64, i == 2 ? s.n : count);
  return STATUS_OK;
}

static void unique_write(const KernelContext *c, const Slices *s, const Group *groups, int64_t count) {
  int64_t bytes = s->inner * dtype_bytes(s->dtype);
  for (int64_t k = 0; k < count; k++) {
    for (int64_t o = 0; o < s->outer && has_output(c, 0) && bytes; o++)
      memcpy((char *)c->out[0].data + (o * count + k) * bytes, (const char *)s->data + (o * s->n + groups[k].first) * bytes, (size_t)bytes);
    if (has_output(c, 1)) out_i(c, 1, k, groups[k].first);
    if (has_output(c, 3)) out_i(c, 3, k, groups[k].count);
    for (int64_t i = 0; i < s->n && has_output(c, 2); i++)
      if (slices_compare(s, groups[k].first, i) == 0) out_i(c, 2, i, k);
  }
}

static Status unique_run(const KernelContext *c) {
  Slices s;
  int64_t count;
  TRY(slices_of(c->node, c->in[0].type, c->in[0].data, &s));
  Group *groups = malloc(sizeof *groups * (size_t)(s.n + 1));
  if (!groups) FAIL(RESOURCE, c->node->name, "Unique: no memory for %" PRId64 " groups", s.n);
  Status status = unique_groups(c->node, &s, groups, &count);
  for (int i = 0; i < c->n_out && !status; i++) {
    int64_t axis = i == 0 && ((const UniqueAttrs *)c->node->attrs)->axis != ATTR_ABSENT ? ((const UniqueAttrs *)c->node->attrs)->axis : 0;
    if (!has_output(c, i) || i == 2) continue;
    if (c->out[i].type->dims[axis < 0 ? axis + c->out[i].type->rank : axis] != count) status = changed(c);
  }
  if (!status) unique_write(c, &s, groups, count);
  free(groups);
  return status;
}

const Op op_Unique = {.name = "Unique", .domain = "", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 4, .nondifferentiable = 1,
                      .attrs = unique_attrs, .attrs_bytes = sizeof(UniqueAttrs), .infer = unique_infer, .run_ref = unique_run};
