// Selection and update by computed positions: GatherElements, ScatterElements, GatherND, ScatterND, TensorScatter, and gradients of the
// gathers. Positions are walked in row-major order of the indices, so that sums over equal positions have a fixed order.
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "index_input.h"
#include "ops.h"
#include "strided.h"

// ---- Reductions: none, add, mul, max, min -------------------------------------------------------------------------------------

typedef enum Fold { FOLD_NONE, FOLD_ADD, FOLD_MUL, FOLD_MAX, FOLD_MIN, FOLD_COUNT } Fold;
static const char *const fold_names[FOLD_COUNT] = {"none", "add", "mul", "max", "min"};

static Status fold_find(const Node *node, const char *name, Fold *out) {
  for (int i = 0; i < FOLD_COUNT; i++)
    if (!strcmp(name, fold_names[i])) {
      *out = (Fold)i;
      return STATUS_OK;
    }
  FAIL(MALFORMED, node->name, "%s: reduction '%s'; none, add, mul, max and min exist", node->op->name, name);
}

static double fold_float(Fold fold, double a, double b) {
  switch (fold) {
  case FOLD_ADD: return a + b;
  case FOLD_MUL: return a * b;
  case FOLD_MAX: return a > b || a != a ? a : b;
  default: return a < b || a != a ? a : b;
  }
}

static int64_t fold_int(Fold fold, bool is_signed, int64_t a, int64_t b) {
  bool greater = is_signed ? a > b : (uint64_t)a > (uint64_t)b;
  switch (fold) {
  case FOLD_ADD: return (int64_t)((uint64_t)a + (uint64_t)b);
  case FOLD_MUL: return (int64_t)((uint64_t)a * (uint64_t)b);
  case FOLD_MAX: return greater ? a : b;
  default: return greater ? b : a;
  }
}

// to[at_to + i] = fold(to[at_to + i], from[at_from + i]) for i < n
static void fold_row(Fold fold, Dtype d, void *to, int64_t at_to, const void *from, int64_t at_from, int64_t n) {
  int64_t bytes = dtype_bytes(d);
  if (fold == FOLD_NONE) {
    if (n) memcpy((char *)to + at_to * bytes, (const char *)from + at_from * bytes, (size_t)(n * bytes));
  } else if (d == DTYPE_F32 && fold == FOLD_ADD) {
    for (int64_t i = 0; i < n; i++) ((float *)to)[at_to + i] += ((const float *)from)[at_from + i];
  } else if (dtype_is_float(d)) {
    for (int64_t i = 0; i < n; i++) element_write(to, d, at_to + i, fold_float(fold, element_read(to, d, at_to + i), element_read(from, d, at_from + i)));
  } else {
    bool is_signed = dtype_class(d) == DTYPE_CLASS_INT;
    for (int64_t i = 0; i < n; i++)
      element_write_int(to, d, at_to + i, fold_int(fold, is_signed, element_read_int(to, d, at_to + i), element_read_int(from, d, at_from + i)));
  }
}

static Status check_index(const KernelContext *c, int input, int64_t at, int64_t d, int64_t *index) {
  int64_t v = in_i(c, input, at);
  if (v < -d || v >= d)
    FAIL(MALFORMED, c->node->name, "%s: element %" PRId64 " of '%s' is %" PRId64 ", outside [%" PRId64 ",%" PRId64 "]", c->node->op->name, at,
         c->node->inputs[input]->name, v, -d, d - 1);
  *index = v < 0 ? v + d : v;
  return STATUS_OK;
}

static Status check_index_dtype(const Node *node, int input) {
  Dtype d = input_type(node, input)->dtype;
  if (d == DTYPE_I32 || d == DTYPE_I64) return STATUS_OK;
  FAIL(MALFORMED, node->name, "%s: indices '%s' of %s; int32 or int64 are needed", node->op->name, node->inputs[input]->name, dtype_name(d));
}

static Status types_differ(const Node *node, const char *what, const Type *got, const Type *want) {
  char a[160], b[160];
  FAIL(MALFORMED, node->name, "%s: %s is %s; %s is needed", node->op->name, what, type_text(got, a, sizeof a), type_text(want, b, sizeof b));
}

static void copy_data(const KernelContext *c) {
  int64_t bytes = type_bytes(c->out[0].type);
  if (bytes && c->out[0].data != c->in[0].data) memcpy(c->out[0].data, c->in[0].data, (size_t)bytes);
}

static bool over_data(const Node *node, int output, int input, Alias *out) {
  *out = (Alias){.kind = ALIAS_INPLACE, .input = 0};
  return input == 0;
}

static Status dims_type(const Node *node, const AttrInts *dims, Dtype dtype, Type *out) {
  if (dims->n > RANK_MAX) FAIL(UNSUPPORTED, node->name, "%s: dims has %" PRId64 " entries; at most %d are supported", node->op->name, dims->n, RANK_MAX);
  *out = type_make(dtype, (int)dims->n, dims->items);
  return type_check(out, node->name);
}

// ---- Elements: the index replaces the coordinate on one axis ------------------------------------------------------------------

typedef struct ElementsAttrs { int64_t axis; const char *reduction; AttrInts dims; } ElementsAttrs;
static const AttrSpec gather_elements_attrs[] = {
  {"axis", ATTR_INT, offsetof(ElementsAttrs, axis), .help = "axis of data that the indices select along"},
  {0},
};
static const AttrSpec scatter_elements_attrs[] = {
  {"axis", ATTR_INT, offsetof(ElementsAttrs, axis), .help = "axis of data that the indices select along"},
  {"reduction", ATTR_STRING, offsetof(ElementsAttrs, reduction), .default_string = "none", .help = "none, add, mul, max or min"},
  {0},
};
static const AttrSpec gather_elements_grad_attrs[] = {
  {"axis", ATTR_INT, offsetof(ElementsAttrs, axis), .help = "GatherElements'"},
  {"dims", ATTR_INTS, offsetof(ElementsAttrs, dims), .min = 0, .max = INT64_MAX, .help = "shape of GatherElements' data"},
  {0},
};

// `indices` (input `i`) must fit into `data` on all axes but the one.
static Status elements_fit(const Node *node, const Type *data, int i, int *axis) {
  const Type *indices = input_type(node, i);
  TRY(check_index_dtype(node, i));
  TRY(type_axis(((const ElementsAttrs *)node->attrs)->axis, data->rank, node->name, axis));
  bool fits = indices->rank == data->rank;
  for (int k = 0; fits && k < data->rank; k++) fits = k == *axis || indices->dims[k] <= data->dims[k];
  if (fits) return STATUS_OK;
  char a[160], b[160];
  FAIL(MALFORMED, node->name, "%s: indices %s do not fit into data %s on axes other than %d", node->op->name, type_text(indices, a, sizeof a),
       type_text(data, b, sizeof b), *axis);
}

// Calls `each` with the element of data for every element of the indices (input `i`), in order.
typedef void (*EachElement)(const KernelContext *c, int64_t in_data, int64_t in_indices, Fold fold);
static Status each_element(const KernelContext *c, const Type *data, int i, EachElement each, Fold fold) {
  const Type *indices = c->in[i].type;
  int axis;
  int64_t strides[RANK_MAX], at[RANK_MAX] = {0}, base = 0;
  TRY(type_axis(((const ElementsAttrs *)c->node->attrs)->axis, data->rank, c->node->name, &axis));
  strided_row_major(data->dims, data->rank, strides);
  for (int64_t e = 0, n = type_elems(indices); e < n; e++) {
    int64_t index;
    TRY(check_index(c, i, e, data->dims[axis], &index));
    each(c, base + index * strides[axis], e, fold);
    for (int k = indices->rank - 1; k >= 0; k--) {   // base: of the coordinates but the one on `axis`
      if (k != axis) base += strides[k];
      if (++at[k] < indices->dims[k]) break;
      if (k != axis) base -= strides[k] * indices->dims[k];
      at[k] = 0;
    }
  }
  return STATUS_OK;
}

static Status gather_elements_infer(Node *node, Arena *arena) {
  int axis;
  TRY(elements_fit(node, input_type(node, 0), 1, &axis));
  node->outputs[0]->type = *input_type(node, 1);
  node->outputs[0]->type.dtype = input_type(node, 0)->dtype;
  return STATUS_OK;
}

static void gather_one(const KernelContext *c, int64_t in_data, int64_t e, Fold fold) {
  fold_row(FOLD_NONE, c->in[0].type->dtype, c->out[0].data, e, c->in[0].data, in_data, 1);
}
static Status gather_elements_run(const KernelContext *c) { return each_element(c, c->in[0].type, 1, gather_one, FOLD_NONE); }

static Status gather_elements_grad(Grad *g) {
  const Type *x = input_type(g->node, 0);
  if (g->wanted[0])
    g->dx[0] = emit(g->emit, &op_GatherElementsGrad, INPUTS(g->node->inputs[1], g->dy[0]),
                    ATTRS(A_INT("axis", ((const ElementsAttrs *)g->node->attrs)->axis), A_INTS("dims", x->dims, x->rank)));
  return STATUS_OK;
}

const Op op_GatherElements = {.name = "GatherElements", .domain = "", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1,
                              .nondifferentiable = 2, .attrs = gather_elements_attrs, .attrs_bytes = sizeof(ElementsAttrs),
                              .infer = gather_elements_infer, .grad = gather_elements_grad, .run_ref = gather_elements_run};

static Status gather_elements_grad_infer(Node *node, Arena *arena) {
  const Type *dy = input_type(node, 1);
  Type data, want = *input_type(node, 0);
  int axis;
  TRY(dims_type(node, &((const ElementsAttrs *)node->attrs)->dims, dy->dtype, &data));
  TRY(elements_fit(node, &data, 0, &axis));
  want.dtype = dy->dtype;
  if (!dtype_is_float(dy->dtype) || !type_equal(&want, dy)) return types_differ(node, "dy", dy, &want);
  node->outputs[0]->type = data;
  return STATUS_OK;
}

static void add_one(const KernelContext *c, int64_t in_data, int64_t e, Fold fold) {
  fold_row(FOLD_ADD, c->out[0].type->dtype, c->out[0].data, in_data, c->in[1].data, e, 1);
}
static Status gather_elements_grad_run(const KernelContext *c) {
  if (out_elems(c, 0)) memset(c->out[0].data, 0, (size_t)type_bytes(c->out[0].type));
  return each_element(c, c->out[0].type, 0, add_one, FOLD_ADD);
}

// Inputs indices, dy.
const Op op_GatherElementsGrad = {.name = "GatherElementsGrad", .domain = "tessera", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1,
                                  .max_outputs = 1, .nondifferentiable = 1, .attrs = gather_elements_grad_attrs,
                                  .attrs_bytes = sizeof(ElementsAttrs), .infer = gather_elements_grad_infer, .run_ref = gather_elements_grad_run};

// ---- Gradients of both scatters, in terms of their gather and themselves -------------------------------------------------------

static Value *gather_again(Grad *g, Value *data) {
  const Node *n = g->node;
  if (n->op == &op_ScatterND) return emit(g->emit, &op_GatherND, INPUTS(data, n->inputs[1]), NULL);
  return emit(g->emit, &op_GatherElements, INPUTS(data, n->inputs[1]), ATTRS(A_INT("axis", ((const ElementsAttrs *)n->attrs)->axis)));
}

static Value *scatter_again(Grad *g, Value *data, Value *updates, const char *reduction) {
  const Node *n = g->node;
  if (n->op == &op_ScatterND) return emit(g->emit, n->op, INPUTS(data, n->inputs[1], updates), ATTRS(A_STRING("reduction", reduction)));
  return emit(g->emit, n->op, INPUTS(data, n->inputs[1], updates),
              ATTRS(A_INT("axis", ((const ElementsAttrs *)n->attrs)->axis), A_STRING("reduction", reduction)));
}

static Value *filled(Grad *g, const Type *like, double value) {
  Value *shape = emit_int64s(g->emit, "shape", like->dims, like->rank);
  return emit(g->emit, &op_Expand, INPUTS(emit_float(g->emit, "fill", like->dtype, value), shape), NULL);
}

// The last update of a position wins: data has no part there, nor have the updates before (those are the model's mistake).
static void overwrite_grad(Grad *g) {
  if (g->wanted[0]) g->dx[0] = scatter_again(g, g->dy[0], filled(g, input_type(g->node, 2), 0), "none");
  if (g->wanted[2]) g->dx[2] = gather_again(g, g->dy[0]);
}

// y = data x factors. A factor's gradient is dy times the product of the others; factors of 0 are left out of the product and counted.
static void product_grad(Grad *g) {
  Emit *e = g->emit;
  Value *data = g->node->inputs[0], *updates = g->node->inputs[2], *dy = g->dy[0];
  if (g->wanted[0]) g->dx[0] = emit(e, &op_Mul, INPUTS(dy, scatter_again(g, filled(g, &data->type, 1), updates, "mul")), NULL);
  if (!g->wanted[2]) return;
  Dtype d = data->type.dtype;
  Value *zero = emit_float(e, "zero", d, 0), *one = emit_float(e, "one", d, 1);
  Value *is_zero = emit(e, &op_Equal, INPUTS(updates, zero), NULL);
  Value *safe = emit(e, &op_Where, INPUTS(is_zero, one, updates), NULL);
  Value *zeros = scatter_again(g, filled(g, &data->type, 0), emit(e, &op_Cast, INPUTS(is_zero), ATTRS(A_INT("to", d))), "add");
  Value *product = gather_again(g, emit(e, &op_Mul, INPUTS(dy, scatter_again(g, data, safe, "mul")), NULL));
  Value *here = gather_again(g, zeros);
  Value *alone = emit(e, &op_Equal, INPUTS(here, emit(e, &op_Cast, INPUTS(is_zero), ATTRS(A_INT("to", d)))), NULL);
  g->dx[2] = emit(e, &op_Where, INPUTS(alone, emit(e, &op_Div, INPUTS(product, safe), NULL), zero), NULL);
}

// Equal greatest (least) ones among data and updates share evenly, as torch.scatter_reduce with amax.
static void extremum_grad(Grad *g) {
  Emit *e = g->emit;
  Value *data = g->node->inputs[0], *updates = g->node->inputs[2], *y = g->node->outputs[0];
  Dtype d = data->type.dtype;
  Value *zero = emit_float(e, "zero", d, 0);
  Value *data_won = emit(e, &op_Equal, INPUTS(data, y), NULL), *update_won = emit(e, &op_Equal, INPUTS(updates, gather_again(g, y)), NULL);
  Value *winners = scatter_again(g, emit(e, &op_Cast, INPUTS(data_won), ATTRS(A_INT("to", d))),
                                 emit(e, &op_Cast, INPUTS(update_won), ATTRS(A_INT("to", d))), "add");
  Value *share = emit(e, &op_Div, INPUTS(g->dy[0], winners), NULL);
  if (g->wanted[0]) g->dx[0] = emit(e, &op_Where, INPUTS(data_won, share, zero), NULL);
  if (g->wanted[2]) g->dx[2] = emit(e, &op_Where, INPUTS(update_won, gather_again(g, share), zero), NULL);
}

static Status scatter_grad_of(Grad *g, const char *reduction) {
  Fold fold;
  TRY(fold_find(g->node, reduction, &fold));
  if (!g->wanted[0] && !g->wanted[2]) return STATUS_OK;
  if (fold == FOLD_NONE) overwrite_grad(g);
  else if (fold == FOLD_MUL) product_grad(g);
  else if (fold != FOLD_ADD) extremum_grad(g);
  else {
    if (g->wanted[0]) g->dx[0] = g->dy[0];
    if (g->wanted[2]) g->dx[2] = gather_again(g, g->dy[0]);
  }
  return STATUS_OK;
}

// ---- ScatterElements: inputs data, indices, updates ---------------------------------------------------------------------------

static Status scatter_elements_infer(Node *node, Arena *arena) {
  const Type *data = input_type(node, 0);
  Type want = *input_type(node, 1);
  int axis;
  Fold fold;
  TRY(fold_find(node, ((const ElementsAttrs *)node->attrs)->reduction, &fold));
  TRY(elements_fit(node, data, 1, &axis));
  want.dtype = data->dtype;
  if (!type_equal(&want, input_type(node, 2))) return types_differ(node, "updates", input_type(node, 2), &want);
  node->outputs[0]->type = *data;
  return STATUS_OK;
}

static void scatter_one(const KernelContext *c, int64_t in_data, int64_t e, Fold fold) {
  fold_row(fold, c->out[0].type->dtype, c->out[0].data, in_data, c->in[2].data, e, 1);
}

static Status scatter_elements_run(const KernelContext *c) {
  Fold fold;
  TRY(fold_find(c->node, ((const ElementsAttrs *)c->node->attrs)->reduction, &fold));
  copy_data(c);
  return each_element(c, c->in[0].type, 1, scatter_one, fold);
}

static Status scatter_elements_grad(Grad *g) { return scatter_grad_of(g, ((const ElementsAttrs *)g->node->attrs)->reduction); }

const Op op_ScatterElements = {.name = "ScatterElements", .domain = "", .min_inputs = 3, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1,
                               .nondifferentiable = 2, .attrs = scatter_elements_attrs, .attrs_bytes = sizeof(ElementsAttrs),
                               .infer = scatter_elements_infer, .grad = scatter_elements_grad, .run_ref = scatter_elements_run, .alias = over_data};

// ---- ND: the last axis of the indices holds the leading coordinates of a slice of data -----------------------------------------

typedef struct NdAttrs { int64_t batch_dims; const char *reduction; AttrInts dims; } NdAttrs;
static const AttrSpec gather_nd_attrs[] = {
  {"batch_dims", ATTR_INT, offsetof(NdAttrs, batch_dims), .min = 0, .max = RANK_MAX, .help = "leading axes that data and indices share"},
  {0},
};
static const AttrSpec scatter_nd_attrs[] = {
  {"reduction", ATTR_STRING, offsetof(NdAttrs, reduction), .default_string = "none", .help = "none, add, mul, max or min"},
  {0},
};
static const AttrSpec gather_nd_grad_attrs[] = {
  {"batch_dims", ATTR_INT, offsetof(NdAttrs, batch_dims), .min = 0, .max = RANK_MAX, .help = "GatherND's"},
  {"dims", ATTR_INTS, offsetof(NdAttrs, dims), .min = 0, .max = INT64_MAX, .help = "shape of GatherND's data"},
  {0},
};

// Type of what GatherND takes from `data` by input `i`.
static Status nd_type(const Node *node, const Type *data, int i, Type *y) {
  const Type *indices = input_type(node, i);
  int64_t batch = ((const NdAttrs *)node->attrs)->batch_dims;
  TRY(check_index_dtype(node, i));
  bool fits = data->rank > 0 && indices->rank > 0 && batch < indices->rank && batch < data->rank;
  for (int k = 0; fits && k < batch; k++) fits = data->dims[k] == indices->dims[k];
  int64_t depth = fits ? indices->dims[indices->rank - 1] : 0;
  if (!fits || depth < 0 || depth > data->rank - batch) {
    char a[160], b[160];
    FAIL(MALFORMED, node->name, "%s: indices %s do not fit data %s with batch_dims %" PRId64, node->op->name, type_text(indices, a, sizeof a),
         type_text(data, b, sizeof b), batch);
  }
  int tail = data->rank - (int)(batch + depth);
  if (indices->rank - 1 + tail > RANK_MAX) FAIL(UNSUPPORTED, node->name, "%s: a result of more than %d dimensions", node->op->name, RANK_MAX);
  *y = (Type){.dtype = data->dtype};
  for (int k = 0; k < indices->rank - 1; k++) y->dims[y->rank++] = indices->dims[k];
  for (int k = data->rank - tail; k < data->rank; k++) y->dims[y->rank++] = data->dims[k];
  return STATUS_OK;
}

// Calls `each` with the first element of the slice for every tuple, in order.
typedef void (*EachSlice)(const KernelContext *c, int64_t in_data, int64_t in_updates, int64_t n, Fold fold);
static Status each_slice(const KernelContext *c, const Type *data, int i, EachSlice each, Fold fold) {
  const Type *indices = c->in[i].type;
  int batch = (int)((const NdAttrs *)c->node->attrs)->batch_dims, depth = (int)indices->dims[indices->rank - 1];
  int64_t strides[RANK_MAX], slice = 1, tuples = 1, per_batch = 1, batch_elems = 1;
  strided_row_major(data->dims, data->rank, strides);
  for (int k = batch + depth; k < data->rank; k++) slice *= data->dims[k];
  for (int k = 0; k < indices->rank - 1; k++) tuples *= indices->dims[k];
  for (int k = batch; k < indices->rank - 1; k++) per_batch *= indices->dims[k];
  for (int k = batch; k < data->rank; k++) batch_elems *= data->dims[k];
  for (int64_t t = 0; t < tuples; t++) {
    int64_t at = t / per_batch * batch_elems;
    for (int k = 0; k < depth; k++) {
      int64_t index;
      TRY(check_index(c, i, t * depth + k, data->dims[batch + k], &index));
      at += index * strides[batch + k];
    }
    each(c, at, t * slice, slice, fold);
  }
  return STATUS_OK;
}

static Status gather_nd_infer(Node *node, Arena *arena) { return nd_type(node, input_type(node, 0), 1, &node->outputs[0]->type); }

static void gather_slice(const KernelContext *c, int64_t in_data, int64_t to, int64_t n, Fold fold) {
  fold_row(FOLD_NONE, c->in[0].type->dtype, c->out[0].data, to, c->in[0].data, in_data, n);
}
static Status gather_nd_run(const KernelContext *c) { return each_slice(c, c->in[0].type, 1, gather_slice, FOLD_NONE); }

static Status gather_nd_grad(Grad *g) {
  const Type *x = input_type(g->node, 0);
  if (g->wanted[0])
    g->dx[0] = emit(g->emit, &op_GatherNDGrad, INPUTS(g->node->inputs[1], g->dy[0]),
                    ATTRS(A_INT("batch_dims", ((const NdAttrs *)g->node->attrs)->batch_dims), A_INTS("dims", x->dims, x->rank)));
  return STATUS_OK;
}

const Op op_GatherND = {.name = "GatherND", .domain = "", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 2,
                        .attrs = gather_nd_attrs, .attrs_bytes = sizeof(NdAttrs), .infer = gather_nd_infer, .grad = gather_nd_grad,
                        .run_ref = gather_nd_run};

static Status gather_nd_grad_infer(Node *node, Arena *arena) {
  const Type *dy = input_type(node, 1);
  Type data, want;
  TRY(dims_type(node, &((const NdAttrs *)node->attrs)->dims, dy->dtype, &data));
  TRY(nd_type(node, &data, 0, &want));
  if (!dtype_is_float(dy->dtype) || !type_equal(&want, dy)) return types_differ(node, "dy", dy, &want);
  node->outputs[0]->type = data;
  return STATUS_OK;
}

static void add_slice(const KernelContext *c, int64_t in_data, int64_t from, int64_t n, Fold fold) {
  fold_row(FOLD_ADD, c->out[0].type->dtype, c->out[0].data, in_data, c->in[1].data, from, n);
}
static Status gather_nd_grad_run(const KernelContext *c) {
  if (out_elems(c, 0)) memset(c->out[0].data, 0, (size_t)type_bytes(c->out[0].type));
  return each_slice(c, c->out[0].type, 0, add_slice, FOLD_ADD);
}

// Inputs indices, dy.
const Op op_GatherNDGrad = {.name = "GatherNDGrad", .domain = "tessera", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1,
                            .nondifferentiable = 1, .attrs = gather_nd_grad_attrs, .attrs_bytes = sizeof(NdAttrs), .infer = gather_nd_grad_infer,
                            .run_ref = gather_nd_grad_run};

static Status scatter_nd_infer(Node *node, Arena *arena) {
  Type want;
  Fold fold;
  TRY(fold_find(node, ((const NdAttrs *)node->attrs)->reduction, &fold));
  TRY(nd_type(node, input_type(node, 0), 1, &want));
  if (!type_equal(&want, input_type(node, 2))) return types_differ(node, "updates", input_type(node, 2), &want);
  node->outputs[0]->type = *input_type(node, 0);
  return STATUS_OK;
}

static void scatter_slice(const KernelContext *c, int64_t in_data, int64_t from, int64_t n, Fold fold) {
  fold_row(fold, c->out[0].type->dtype, c->out[0].data, in_data, c->in[2].data, from, n);
}

static Status scatter_nd_run(const KernelContext *c) {
  Fold fold;
  TRY(fold_find(c->node, ((const NdAttrs *)c->node->attrs)->reduction, &fold));
  copy_data(c);
  return each_slice(c, c->in[0].type, 1, scatter_slice, fold);
}

static Status scatter_nd_grad(Grad *g) { return scatter_grad_of(g, ((const NdAttrs *)g->node->attrs)->reduction); }

const Op op_ScatterND = {.name = "ScatterND", .domain = "", .min_inputs = 3, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 2,
                         .attrs = scatter_nd_attrs, .attrs_bytes = sizeof(NdAttrs), .infer = scatter_nd_infer, .grad = scatter_nd_grad,
                         .run_ref = scatter_nd_run, .alias = over_data};

// ---- TensorScatter: inputs cache, update, write_indices? (per sample) ---------------------------------------------------------

typedef struct CacheAttrs { int64_t axis; const char *mode; int64_t length; } CacheAttrs;
#define CACHE_SPECS                                                                                                      \
  {"axis", ATTR_INT, offsetof(CacheAttrs, axis), .default_int = -2, .help = "axis of the sequence"},                     \
  {"mode", ATTR_STRING, offsetof(CacheAttrs, mode), .default_string = "linear", .help = "linear, or circular: positions wrap at the end"}
static const AttrSpec cache_attrs[] = {CACHE_SPECS, {0}};
static const AttrSpec cache_grad_attrs[] = {
  CACHE_SPECS, {"length", ATTR_INT, offsetof(CacheAttrs, length), .min = 0, .max = INT64_C(1) << 46, .help = "of the update"}, {0}};

// Axis of the sequence; input `indices` of the node is right, if there is one.
static Status cache_check(const Node *node, const Type *cache, int indices, int *out_axis) {
  const CacheAttrs *a = node->attrs;
  TRY(type_axis(a->axis, cache->rank, node->name, out_axis));
  if (strcmp(a->mode, "linear") && strcmp(a->mode, "circular")) FAIL(MALFORMED, node->name, "TensorScatter: mode '%s'; linear and circular exist", a->mode);
  if (*out_axis == 0) FAIL(MALFORMED, node->name, "TensorScatter: axis 0 is the batch, not the sequence");
  Type write = type_vector(DTYPE_I64, cache->dims[0]);
  if (node_has_input(node, indices) && !type_equal(input_type(node, indices), &write))
    return types_differ(node, "write_indices", input_type(node, indices), &write);
  return STATUS_OK;
}

static Status cache_infer(Node *node, Arena *arena) {
  const Type *cache = input_type(node, 0), *update = input_type(node, 1);
  int axis;
  TRY(cache_check(node, cache, 2, &axis));
  Type want = *cache;
  if (update->rank == cache->rank && update->dims[axis] <= cache->dims[axis]) want.dims[axis] = update->dims[axis];
  if (!type_equal(update, &want)) return types_differ(node, "update", update, &want);
  node->outputs[0]->type = *cache;
  return STATUS_OK;
}

// Calls `move` for each run of `n` elements of an update of `m` positions with its place in the cache. `indices`: the input with the starts.
static Status each_position(const KernelContext *c, const Type *cache, int axis, int64_t m, int indices,
                            void (*move)(const KernelContext *c, int64_t in_cache, int64_t in_update, int64_t n)) {
  const CacheAttrs *a = c->node->attrs;
  int64_t d = cache->dims[axis], prefixes = 1, inner = 1;
  for (int k = 0; k < axis; k++) prefixes *= cache->dims[k];
  for (int k = axis + 1; k < cache->rank; k++) inner *= cache->dims[k];
  for (int64_t p = 0; p < prefixes; p++) {
    int64_t sample = p / (prefixes / cache->dims[0]), start = has_input(c, indices) ? in_i(c, indices, sample) : 0;
    for (int64_t s = 0; s < m; s++) {
      int64_t at = a->mode[0] == 'c' ? (start % d + d + s) % d : start + s;
      if (at < 0 || at >= d || start > d)
        FAIL(MALFORMED, c->node->name, "TensorScatter: sample %" PRId64 " writes at %" PRId64 "; the sequence has %" PRId64 " positions", sample, at, d);
      move(c, (p * d + at) * inner, (p * m + s) * inner, inner);
    }
  }
  return STATUS_OK;
}

static void write_position(const KernelContext *c, int64_t in_cache, int64_t in_update, int64_t n) {
  fold_row(FOLD_NONE, c->out[0].type->dtype, c->out[0].data, in_cache, c->in[1].data, in_update, n);
}

static Status cache_run(const KernelContext *c) {
  const Type *cache = c->in[0].type;
  int axis;
  TRY(cache_check(c->node, cache, 2, &axis));
  copy_data(c);
  return each_position(c, cache, axis, c->in[1].type->dims[axis], 2, write_position);
}

static Status cache_grad(Grad *g) {
  const Node *node = g->node;
  const CacheAttrs *a = node->attrs;
  const Type *update = input_type(node, 1);
  Value *starts = node_has_input(node, 2) ? node->inputs[2] : NULL;
  int axis;
  TRY(cache_check(node, input_type(node, 0), 2, &axis));
  if (g->wanted[0])
    g->dx[0] = emit(g->emit, node->op, INPUTS(g->dy[0], filled(g, update, 0), starts), ATTRS(A_INT("axis", a->axis), A_STRING("mode", a->mode)));
  if (g->wanted[1])
    g->dx[1] = emit(g->emit, &op_TensorScatterGrad, INPUTS(g->dy[0], starts),
                    ATTRS(A_INT("axis", a->axis), A_STRING("mode", a->mode), A_INT("length", update->dims[axis])));
  return STATUS_OK;
}

const Op op_TensorScatter = {.name = "TensorScatter", .domain = "", .min_inputs = 2, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1,
                             .nondifferentiable = 4, .attrs = cache_attrs, .attrs_bytes = sizeof(CacheAttrs), .infer = cache_infer, .grad = cache_grad,
                             .run_ref = cache_run, .alias = over_data};

// ---- TensorScatterGrad: inputs dy, write_indices? -> what was written where the update was ---------------------------------------

static Status cache_grad_infer(Node *node, Arena *arena) {
  const Type *dy = input_type(node, 0);
  int64_t length = ((const CacheAttrs *)node->attrs)->length;
  int axis;
  TRY(cache_check(node, dy, 1, &axis));
  if (length > dy->dims[axis])
    FAIL(MALFORMED, node->name, "TensorScatterGrad: an update of %" PRId64 " positions; the sequence has %" PRId64, length, dy->dims[axis]);
  node->outputs[0]->type = *dy;
  node->outputs[0]->type.dims[axis] = length;
  return STATUS_OK;
}

static void read_position(const KernelContext *c, int64_t in_cache, int64_t in_update, int64_t n) {
  fold_row(FOLD_NONE, c->out[0].type->dtype, c->out[0].data, in_update, c->in[0].data, in_cache, n);
}

static Status cache_grad_run(const KernelContext *c) {
  int axis;
  TRY(cache_check(c->node, c->in[0].type, 1, &axis));
  return each_position(c, c->in[0].type, axis, c->out[0].type->dims[axis], 1, read_position);
}

const Op op_TensorScatterGrad = {.name = "TensorScatterGrad", .domain = "tessera", .min_inputs = 1, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1,
                                 .nondifferentiable = 2, .attrs = cache_grad_attrs, .attrs_bytes = sizeof(CacheAttrs), .infer = cache_grad_infer,
                                 .run_ref = cache_grad_run};
