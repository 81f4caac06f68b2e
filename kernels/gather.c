// Gather and its gradient.
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "cost.h"
#include "index_input.h"
#include "ops.h"

typedef struct GatherAttrs { int64_t axis; AttrInts dims; } GatherAttrs;
static const AttrSpec gather_attrs[] = {
  {"axis", ATTR_INT, offsetof(GatherAttrs, axis), .help = "axis of data that the indices select along"},
  {0},
};
static const AttrSpec gather_grad_attrs[] = {
  {"axis", ATTR_INT, offsetof(GatherAttrs, axis), .help = "Gather's"},
  {"dims", ATTR_INTS, offsetof(GatherAttrs, dims), .min = 0, .max = INT64_MAX, .help = "shape of Gather's data"},
  {0},
};

// Shape of the gathered tensor: data's, with the indices' shape in the place of `axis`.
static Status gathered_type(const Node *node, const Type *data, const Type *indices, int *axis, Type *y) {
  if (indices->dtype != DTYPE_I32 && indices->dtype != DTYPE_I64)
    FAIL(MALFORMED, node->name, "%s: indices of %s; int32 or int64 are needed", node->op->name, dtype_name(indices->dtype));
  TRY(type_axis(((const GatherAttrs *)node->attrs)->axis, data->rank, node->name, axis));
  int rank = data->rank - 1 + indices->rank;
  if (rank > RANK_MAX) FAIL(UNSUPPORTED, node->name, "%s: a result of %d dimensions; at most %d are supported", node->op->name, rank, RANK_MAX);
  *y = (Type){.dtype = data->dtype};
  for (int i = 0; i < *axis; i++) y->dims[y->rank++] = data->dims[i];
  for (int i = 0; i < indices->rank; i++) y->dims[y->rank++] = indices->dims[i];
  for (int i = *axis + 1; i < data->rank; i++) y->dims[y->rank++] = data->dims[i];
  return STATUS_OK;
}

static Status index_in_range(const Node *node, const char *name, int64_t at, int64_t index, int64_t d) {
  if (index < -d || index >= d)
    FAIL(MALFORMED, node->name, "%s: element %" PRId64 " of '%s' is %" PRId64 ", outside [%" PRId64 ",%" PRId64 "]", node->op->name, at, name, index, -d, d - 1);
  return STATUS_OK;
}

static Status check_constant_indices(const Node *node, int input, int64_t d) {
  const Weight *w = value_const(node->inputs[input]);
  for (int64_t i = 0, n = w ? type_elems(&w->type) : 0; i < n; i++) {
    int64_t index = weight_read_int(w, i);
    if (index < -d || index >= d)
      FAIL(MALFORMED, node->name, "%s: element %" PRId64 " of '%s' is %" PRId64 ", outside [%" PRId64 ",%" PRId64 "]", node->op->name, i,
           node->inputs[input]->name, index, -d, d - 1);
  }
  return STATUS_OK;
}

// A gathered tensor is outer x indices x inner: data[outer][index][inner].
typedef struct GatherShape { int64_t outer, axis, inner, indices; } GatherShape;
static GatherShape gather_shape(const Type *data, const Type *indices, int64_t axis) {
  GatherShape s = {1, 0, 1, type_elems(indices)};
  int cut = (int)(axis < 0 ? axis + data->rank : axis);
  for (int i = 0; i < cut; i++) s.outer *= data->dims[i];
  s.axis = data->dims[cut];
  for (int i = cut + 1; i < data->rank; i++) s.inner *= data->dims[i];
  return s;
}

static Status gather_infer(Node *node, Arena *arena) {
  int axis;
  TRY(gathered_type(node, input_type(node, 0), input_type(node, 1), &axis, &node->outputs[0]->type));
  return check_constant_indices(node, 1, input_type(node, 0)->dims[axis]);
}

static Status gather_run(const KernelContext *c) {
  GatherShape s = gather_shape(c->in[0].type, c->in[1].type, ((const GatherAttrs *)c->node->attrs)->axis);
  int64_t bytes = s.inner * dtype_bytes(c->in[0].type->dtype);
  for (int64_t k = 0; k < s.indices; k++) {
    int64_t index = in_i(c, 1, k);
    TRY(index_in_range(c->node, c->node->inputs[1]->name, k, index, s.axis));
    if (index < 0) index += s.axis;
    if (bytes == 0) continue;
    for (int64_t o = 0; o < s.outer; o++)
      memcpy((char *)c->out[0].data + (o * s.indices + k) * bytes, (const char *)c->in[0].data + (o * s.axis + index) * bytes, (size_t)bytes);
  }
  return STATUS_OK;
}

static Status gather_grad(Grad *g) {
  const Type *x = input_type(g->node, 0);
  if (g->wanted[0])
    g->dx[0] = emit(g->emit, &op_GatherGrad, INPUTS(g->node->inputs[1], g->dy[0]),
                    ATTRS(A_INT("axis", ((const GatherAttrs *)g->node->attrs)->axis), A_INTS("dims", x->dims, x->rank)));
  return STATUS_OK;
}

const Op op_Gather = {.name = "Gather", .domain = "", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 1 << 1,
                      .attrs = gather_attrs, .attrs_bytes = sizeof(GatherAttrs), .infer = gather_infer, .grad = gather_grad, .run_ref = gather_run, .cost = cost_rows};

// ---- GatherGrad: inputs indices, dy. Duplicates are added in index order, in the element type. ----

static Status gather_grad_infer(Node *node, Arena *arena) {
  const AttrInts *dims = &((const GatherAttrs *)node->attrs)->dims;
  if (dims->n > RANK_MAX) FAIL(UNSUPPORTED, node->name, "GatherGrad: dims has %" PRId64 " entries; at most %d are supported", dims->n, RANK_MAX);
  Type data = type_make(input_type(node, 1)->dtype, (int)dims->n, dims->items), y;
  TRY(type_check(&data, node->name));
  int axis;
  TRY(gathered_type(node, &data, input_type(node, 0), &axis, &y));
  if (!dtype_is_float(data.dtype) || !type_equal(&y, input_type(node, 1))) {
    char a[160], b[160];
    FAIL(MALFORMED, node->name, "GatherGrad: dy is %s; %s is needed", type_text(input_type(node, 1), a, sizeof a), type_text(&y, b, sizeof b));
  }
  node->outputs[0]->type = data;
  return check_constant_indices(node, 0, data.dims[axis]);
}

static void add_row_any(const KernelContext *c, int64_t to, int64_t from, int64_t n) {
  Dtype dtype = c->out[0].type->dtype;
  for (int64_t i = 0; i < n; i++) out_f(c, 0, to + i, element_read(c->out[0].data, dtype, to + i) + in_f(c, 1, from + i));
}

static void add_row_f32(const KernelContext *c, int64_t to, int64_t from, int64_t n) {
  float *row = (float *)c->out[0].data + to;
  c->loops->add(row, row, (const float *)c->in[1].data + from, n);
}

static Status gather_grad_rows(const KernelContext *c, void (*add_row)(const KernelContext *, int64_t, int64_t, int64_t)) {
  GatherShape s = gather_shape(c->out[0].type, c->in[0].type, ((const GatherAttrs *)c->node->attrs)->axis);
  int64_t bytes = type_bytes(c->out[0].type);
  if (bytes) memset(c->out[0].data, 0, (size_t)bytes);
  for (int64_t k = 0; k < s.indices; k++) {
    int64_t index = in_i(c, 0, k);
    TRY(index_in_range(c->node, c->node->inputs[0]->name, k, index, s.axis));
    if (index < 0) index += s.axis;
    for (int64_t o = 0; o < s.outer; o++) add_row(c, (o * s.axis + index) * s.inner, (o * s.indices + k) * s.inner, s.inner);
  }
  return STATUS_OK;
}

static Status gather_grad_ref(const KernelContext *c) { return gather_grad_rows(c, add_row_any); }
static Status gather_grad_cpu(const KernelContext *c) { return gather_grad_rows(c, add_row_f32); }

const Op op_GatherGrad = {.name = "GatherGrad", .domain = "tessera", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1,
                          .nondifferentiable = 1, .attrs = gather_grad_attrs, .attrs_bytes = sizeof(GatherAttrs), .infer = gather_grad_infer,
                          .run_ref = gather_grad_ref, .run_cpu = gather_grad_cpu, .cost = cost_move};
