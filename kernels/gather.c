// Gather and its gradient.
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "cost.h"
#include "index_input.h"
#include "ops.h"

typedef struct GatherAttrs { int64_t axis, first, rows; AttrInts dims; } GatherAttrs;
static const AttrSpec gather_attrs[] = {
  {"axis", ATTR_INT, offsetof(GatherAttrs, axis), .help = "axis of data that the indices select along"},
  {0},
};
static const AttrSpec gather_grad_attrs[] = {
  {"axis", ATTR_INT, offsetof(GatherAttrs, axis), .help = "Gather's"},
  {"dims", ATTR_INTS, offsetof(GatherAttrs, dims), .min = 0, .max = INT64_MAX, .help = "shape of Gather's data"},
  {"first", ATTR_INT, offsetof(GatherAttrs, first), .min = 0, .max = INT64_MAX, .help = "GatherRows's: the data are rows from this one on of a table"},
  {"rows", ATTR_INT, offsetof(GatherAttrs, rows), .min = 0, .max = INT64_MAX, .help = "... of so many; 0: the data are all of them"},
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

// ---- GatherGrad: inputs indices, dy, [base]. Duplicates are added in index order, in the element type; their sum is added to base's row. ----

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
  if (node_has_input(node, 2) && !type_equal(input_type(node, 2), &data)) {
    char a[160], b[160];
    FAIL(MALFORMED, node->name, "GatherGrad: base is %s; %s is needed", type_text(input_type(node, 2), a, sizeof a), type_text(&data, b, sizeof b));
  }
  const GatherAttrs *a = node->attrs;
  if (a->rows && (axis || a->first > a->rows || data.dims[0] > a->rows - a->first))
    FAIL(MALFORMED, node->name, "GatherGrad: %" PRId64 " rows from %" PRId64 " on are not in a table of %" PRId64, data.dims[axis], a->first, a->rows);
  if (!a->rows && a->first) FAIL(MALFORMED, node->name, "GatherGrad: first = %" PRId64 " without rows", a->first);
  node->outputs[0]->type = data;
  return check_constant_indices(node, 0, a->rows ? a->rows : data.dims[axis]);
}

// The row of the data; -1: it is one of another piece of the table.
static Status grad_index(const KernelContext *c, const GatherShape *s, int64_t k, int64_t *out) {
  const GatherAttrs *a = c->node->attrs;
  int64_t index = in_i(c, 0, k), rows = a->rows ? a->rows : s->axis;
  TRY(index_in_range(c->node, c->node->inputs[0]->name, k, index, rows));
  if (index < 0) index += rows;
  *out = index < a->first || index - a->first >= s->axis ? -1 : index - a->first;
  return STATUS_OK;
}

static Status gather_grad_ref(const KernelContext *c) {
  GatherShape s = gather_shape(c->out[0].type, c->in[0].type, ((const GatherAttrs *)c->node->attrs)->axis);
  Dtype dtype = c->out[0].type->dtype;
  int64_t bytes = type_bytes(c->out[0].type), index;
  if (has_input(c, 2)) copy_unless_same(c->out[0].data, c->in[2].data, bytes);
  else if (bytes) memset(c->out[0].data, 0, (size_t)bytes);
  for (int64_t k = 0; k < s.indices; k++) {
    TRY(grad_index(c, &s, k, &index));
    for (int64_t o = 0; index >= 0 && o < s.outer; o++) {
      int64_t to = (o * s.axis + index) * s.inner, from = (o * s.indices + k) * s.inner;
      for (int64_t i = 0; i < s.inner; i++) out_f(c, 0, to + i, element_read(c->out[0].data, dtype, to + i) + in_f(c, 1, from + i));
    }
  }
  return STATUS_OK;
}

static Status scatter_rows(const KernelContext *c, const GatherShape *s) {
  int64_t bytes = type_bytes(c->out[0].type), index;
  float *data = c->out[0].data;
  if (bytes) memset(data, 0, (size_t)bytes);
  for (int64_t k = 0; k < s->indices; k++) {
    TRY(grad_index(c, s, k, &index));
    for (int64_t o = 0; index >= 0 && o < s->outer; o++) {
      float *row = data + (o * s->axis + index) * s->inner;
      c->loops->add(row, row, (const float *)c->in[1].data + (o * s->indices + k) * s->inner, s->inner);
    }
  }
  return STATUS_OK;
}

// The rows of each index as a chain: first[] leads from a hash of the index to the first row of a chain, 1 + k, or 0.
typedef struct RowChains { int64_t *first, *next, *last; int64_t capacity; } RowChains;

static int64_t chains_capacity(int64_t rows) {
  int64_t capacity = 1;
  while (capacity < 2 * rows) capacity *= 2;
  return capacity;
}

static Status chain_rows(const KernelContext *c, const GatherShape *s, RowChains *chains) {
  memset(chains->first, 0, sizeof *chains->first * (size_t)chains->capacity);
  for (int64_t k = 0; k < s->indices; k++) {
    int64_t index, other;
    TRY(grad_index(c, s, k, &index));
    chains->next[k] = chains->last[k] = -1;
    if (index < 0) continue;
    int64_t slot = (int64_t)((uint64_t)index * UINT64_C(0x9E3779B97F4A7C15) >> 32) & (chains->capacity - 1);
    for (; chains->first[slot]; slot = (slot + 1) & (chains->capacity - 1)) {
      TRY(grad_index(c, s, chains->first[slot] - 1, &other));
      if (other == index) break;
    }
    int64_t first = chains->first[slot] ? chains->first[slot] - 1 : k;
    if (first == k) chains->first[slot] = k + 1;
    else chains->next[chains->last[first]] = k;
    chains->last[first] = k;
  }
  return STATUS_OK;
}

// Rows of one index are summed by themselves, then added to base's row: the bits of Add(base, GatherGrad(indices, dy)), but for signs of zeros.
static Status scatter_into_base(const KernelContext *c, const GatherShape *s) {
  int64_t index;
  RowChains chains = {.capacity = chains_capacity(s->indices), .first = c->workspace};
  chains.next = chains.first + chains.capacity;
  chains.last = chains.next + s->indices;
  float *sum = (float *)(chains.last + s->indices), *data = c->out[0].data;
  TRY(chain_rows(c, s, &chains));
  copy_unless_same(data, c->in[2].data, type_bytes(c->out[0].type));
  for (int64_t first = 0; first < s->indices && s->inner; first++) {
    if (chains.last[first] < 0) continue;
    TRY(grad_index(c, s, first, &index));
    for (int64_t o = 0; o < s->outer; o++) {
      memset(sum, 0, sizeof *sum * (size_t)s->inner);
      for (int64_t k = first; k >= 0; k = chains.next[k])
        c->loops->add(sum, sum, (const float *)c->in[1].data + (o * s->indices + k) * s->inner, s->inner);
      float *row = data + (o * s->axis + index) * s->inner;
      c->loops->add(row, row, sum, s->inner);
    }
  }
  return STATUS_OK;
}

static Status gather_grad_cpu(const KernelContext *c) {
  GatherShape s = gather_shape(c->out[0].type, c->in[0].type, ((const GatherAttrs *)c->node->attrs)->axis);
  return has_input(c, 2) ? scatter_into_base(c, &s) : scatter_rows(c, &s);
}

static Status gather_grad_workspace(KernelPrepare *p) {
  const Type *data = &p->node->outputs[0]->type, *indices = input_type(p->node, 0);
  GatherShape s = gather_shape(data, indices, ((const GatherAttrs *)p->node->attrs)->axis);
  if (node_has_input(p->node, 2))
    p->workspace_bytes = (chains_capacity(s.indices) + 2 * s.indices) * (int64_t)sizeof(int64_t) + s.inner * (int64_t)sizeof(float);
  return STATUS_OK;
}

static bool gather_grad_alias(const Node *node, int output, int input, Alias *out) {
  *out = (Alias){.kind = ALIAS_INPLACE, .input = 2};
  return input == 2;
}

const Op op_GatherGrad = {.name = "GatherGrad", .domain = "tessera", .min_inputs = 2, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1,
                          .nondifferentiable = 1, .attrs = gather_grad_attrs, .attrs_bytes = sizeof(GatherAttrs), .infer = gather_grad_infer,
                          .run_ref = gather_grad_ref, .run_cpu = gather_grad_cpu, .workspace = gather_grad_workspace, .alias = gather_grad_alias, .cost = cost_move};
