// ReduceSum, ReduceMean, ReduceMax.
//
// Order of summation: each result element adds its operands in row-major order in f64 (run_ref), or in f64 by rows through Loops.sum
// and by columns top to bottom (run_cpu). Both depend on the shape only.
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "index_input.h"
#include "ops.h"

typedef struct ReduceAttrs { int64_t keepdims, noop_with_empty_axes; } ReduceAttrs;
static const AttrSpec reduce_attrs[] = {
  {"keepdims", ATTR_INT, offsetof(ReduceAttrs, keepdims), .default_int = 1, .min = 0, .max = 1, .help = "1: reduced axes stay with size 1"},
  {"noop_with_empty_axes", ATTR_INT, offsetof(ReduceAttrs, noop_with_empty_axes), .min = 0, .max = 1, .help = "1: no axes means no reduction"},
  {0},
};

static Status reduced_axes(const Node *node, const int64_t *axes, int n, int rank, uint32_t *mask) {
  if (n == 0) {
    *mask = ((const ReduceAttrs *)node->attrs)->noop_with_empty_axes ? 0 : (1u << rank) - 1;
    return STATUS_OK;
  }
  return index_axes(axes, n, rank, node->name, mask);
}

static Type reduced_type(const Type *x, uint32_t mask, bool keepdims) {
  Type y = {.dtype = x->dtype};
  for (int i = 0; i < x->rank; i++) {
    if (!(mask >> i & 1)) y.dims[y.rank++] = x->dims[i];
    else if (keepdims) y.dims[y.rank++] = 1;
  }
  return y;
}

static Status reduce_infer(Node *node, Arena *arena) {
  const Type *x = input_type(node, 0);
  bool takes_bool = node->op == &op_ReduceMax && x->dtype == DTYPE_BOOL;
  if (!dtype_is_float(x->dtype) && !dtype_is_integer(x->dtype) && !takes_bool)
    FAIL(MALFORMED, node->name, "%s: input '%s' of %s; a number is needed", node->op->name, node->inputs[0]->name, dtype_name(x->dtype));
  int64_t axes[RANK_MAX];
  int n = 0;
  uint32_t mask;
  if (node_has_input(node, 1)) TRY(index_constant(node, 1, axes, RANK_MAX, &n));
  TRY(reduced_axes(node, axes, n, x->rank, &mask));
  node->outputs[0]->type = reduced_type(x, mask, ((const ReduceAttrs *)node->attrs)->keepdims);
  return STATUS_OK;
}

// The input's axes with neighbours of one kind merged and axes of 1 dropped, split into kept and reduced ones.
typedef struct Reduction {
  int n_kept, n_reduced;                                   // without the innermost axis
  int64_t kept_dims[RANK_MAX], kept_strides[RANK_MAX];
  int64_t reduced_dims[RANK_MAX], reduced_strides[RANK_MAX];
  bool inner_kept;                                         // is the innermost axis kept?
  int64_t inner;                                           // its length
  int64_t kept, reduced;                                   // products of dims, innermost axis left out
  int64_t count;                                           // elements that make one result element
} Reduction;

static Status reduction_begin(const KernelContext *c, Reduction *r) {
  const Type *x = c->in[0].type;
  int64_t axes[RANK_MAX];
  int n = 0;
  uint32_t mask;
  if (has_input(c, 1)) TRY(index_tensor(c, 1, axes, RANK_MAX, &n));
  TRY(reduced_axes(c->node, axes, n, x->rank, &mask));
  Type y = reduced_type(x, mask, ((const ReduceAttrs *)c->node->attrs)->keepdims);
  if (!type_same_shape(&y, c->out[0].type)) FAIL(MALFORMED, c->node->name, "%s: the axes at run time are not those that the plan was made for", c->node->op->name);
  *r = (Reduction){.inner = 1, .inner_kept = true, .kept = 1, .reduced = 1, .count = 1};
  int64_t stride = 1;
  bool inner = true;
  bool previous_kept = false;
  for (int i = x->rank - 1; i >= 0; i--) {
    int64_t d = x->dims[i];
    bool kept = !(mask >> i & 1);
    if (!kept) r->count *= d;
    if (d == 1) continue;
    if (inner) {
      r->inner = d;
      r->inner_kept = kept;
      inner = false;
    } else if (r->n_kept + r->n_reduced == 0 && kept == r->inner_kept) {
      r->inner *= d;
    } else {
      int *m = kept ? &r->n_kept : &r->n_reduced;
      int64_t *dims = kept ? r->kept_dims : r->reduced_dims, *strides = kept ? r->kept_strides : r->reduced_strides;
      if (*m && kept == previous_kept) dims[*m - 1] *= d;
      else dims[*m] = d, strides[*m] = stride, ++*m;
      *(kept ? &r->kept : &r->reduced) *= d;
      previous_kept = kept;
    }
    stride *= d;
  }
  return STATUS_OK;
}

// Element offset of the `index`-th combination of axes; dims run innermost first.
static int64_t offset_of(int64_t index, int n, const int64_t *dims, const int64_t *strides) {
  int64_t at = 0;
  for (int i = 0; i < n; i++) {
    at += index % dims[i] * strides[i];
    index /= dims[i];
  }
  return at;
}
static int64_t kept_offset(const Reduction *r, int64_t k) { return offset_of(k, r->n_kept, r->kept_dims, r->kept_strides); }
static int64_t reduced_offset(const Reduction *r, int64_t k) { return offset_of(k, r->n_reduced, r->reduced_dims, r->reduced_strides); }

typedef enum ReduceKind { REDUCE_SUM, REDUCE_MEAN, REDUCE_MAX } ReduceKind;

static double max_f(double m, double x) { return x > m || x != x ? x : m; }

static void reduce_float(const KernelContext *c, const Reduction *r, ReduceKind kind, int64_t to, int64_t from) {
  double sum = kind == REDUCE_MAX ? -INFINITY : 0;
  int64_t inner = r->inner_kept ? 1 : r->inner;
  for (int64_t k = 0; k < r->reduced; k++)
    for (int64_t j = 0, at = from + reduced_offset(r, k); j < inner; j++) {
      double x = in_f(c, 0, at + j);
      sum = kind == REDUCE_MAX ? max_f(sum, x) : sum + x;
    }
  out_f(c, 0, to, kind == REDUCE_MEAN ? sum / (double)r->count : sum);
}

// Integers wrap; the mean is cut towards zero, and 0 of nothing. The greatest of nothing is the type's least value.
static void reduce_int(const KernelContext *c, const Reduction *r, ReduceKind kind, int64_t to, int64_t from) {
  Dtype dtype = c->in[0].type->dtype;
  bool is_unsigned = dtype_class(dtype) != DTYPE_CLASS_INT;
  int64_t sum = kind != REDUCE_MAX || is_unsigned ? 0 : -(INT64_C(1) << (8 * dtype_bytes(dtype) - 2)) * 2;
  int64_t inner = r->inner_kept ? 1 : r->inner;
  for (int64_t k = 0; k < r->reduced; k++)
    for (int64_t j = 0, at = from + reduced_offset(r, k); j < inner; j++) {
      int64_t x = in_i(c, 0, at + j);
      if (kind != REDUCE_MAX) sum = (int64_t)((uint64_t)sum + (uint64_t)x);
      else if (is_unsigned ? (uint64_t)x > (uint64_t)sum : x > sum) sum = x;
    }
  if (kind == REDUCE_MEAN) sum = r->count == 0 ? 0 : is_unsigned ? (int64_t)((uint64_t)sum / (uint64_t)r->count) : sum / r->count;
  out_i(c, 0, to, sum);
}

static Status reduce_ref(const KernelContext *c, ReduceKind kind) {
  Reduction r;
  TRY(reduction_begin(c, &r));
  bool is_float = dtype_is_float(c->in[0].type->dtype);
  int64_t columns = r.inner_kept ? r.inner : 1;
  for (int64_t k = 0; k < r.kept; k++)
    for (int64_t j = 0, from = kept_offset(&r, k); j < columns; j++)
      (is_float ? reduce_float : reduce_int)(c, &r, kind, k * columns + j, from + j);
  return STATUS_OK;
}

// Innermost axis kept: columns side by side, rows top to bottom. A block of accumulators stays in the first cache.
enum { COLUMN_BLOCK = 256 };

static void sum_columns(const Reduction *r, const float *x, float *y, double divisor) {
  double sum[COLUMN_BLOCK];
  for (int64_t j0 = 0; j0 < r->inner; j0 += COLUMN_BLOCK) {
    int64_t n = r->inner - j0 < COLUMN_BLOCK ? r->inner - j0 : COLUMN_BLOCK;
    memset(sum, 0, sizeof sum);
    for (int64_t k = 0; k < r->reduced; k++) {
      const float *row = x + reduced_offset(r, k) + j0;
      for (int64_t j = 0; j < n; j++) sum[j] += (double)row[j];
    }
    for (int64_t j = 0; j < n; j++) y[j0 + j] = (float)(sum[j] / divisor);
  }
}

static void max_columns(const Reduction *r, const float *x, float *y) {
  for (int64_t j = 0; j < r->inner; j++) y[j] = -INFINITY;
  for (int64_t k = 0; k < r->reduced; k++) {
    const float *row = x + reduced_offset(r, k);
    for (int64_t j = 0; j < r->inner; j++) y[j] = row[j] > y[j] || row[j] != row[j] ? row[j] : y[j];   // a NaN once met stays
  }
}

static Status sum_cpu(const KernelContext *c, ReduceKind kind) {
  if (c->in[0].type->dtype != DTYPE_F32) return reduce_ref(c, kind);
  Reduction r;
  TRY(reduction_begin(c, &r));
  const float *x = c->in[0].data;
  float *y = c->out[0].data;
  double divisor = kind == REDUCE_MEAN ? (double)r.count : 1;
  for (int64_t k = 0; k < r.kept; k++) {
    const float *from = x + kept_offset(&r, k);
    if (r.inner_kept) {
      sum_columns(&r, from, y + k * r.inner, divisor);
      continue;
    }
    double sum = 0;
    for (int64_t i = 0; i < r.reduced; i++) sum += c->loops->sum(from + reduced_offset(&r, i), r.inner);
    y[k] = (float)(sum / divisor);
  }
  return STATUS_OK;
}

static Status max_cpu(const KernelContext *c) {
  if (c->in[0].type->dtype != DTYPE_F32) return reduce_ref(c, REDUCE_MAX);
  Reduction r;
  TRY(reduction_begin(c, &r));
  for (int64_t k = 0; k < r.kept; k++) {
    const float *from = (const float *)c->in[0].data + kept_offset(&r, k);
    if (r.inner_kept) {
      max_columns(&r, from, (float *)c->out[0].data + k * r.inner);
      continue;
    }
    float m = -INFINITY;
    for (int64_t i = 0; i < r.reduced; i++) m = (float)max_f(m, c->loops->max(from + reduced_offset(&r, i), r.inner));
    ((float *)c->out[0].data)[k] = m;
  }
  return STATUS_OK;
}

static Status reduce_sum_ref(const KernelContext *c) { return reduce_ref(c, REDUCE_SUM); }
static Status reduce_mean_ref(const KernelContext *c) { return reduce_ref(c, REDUCE_MEAN); }
static Status reduce_max_ref(const KernelContext *c) { return reduce_ref(c, REDUCE_MAX); }
static Status reduce_sum_cpu(const KernelContext *c) { return sum_cpu(c, REDUCE_SUM); }
static Status reduce_mean_cpu(const KernelContext *c) { return sum_cpu(c, REDUCE_MEAN); }

// `v` has the node's result type: gives it the reduced axes back with size 1.
static Value *with_kept_axes(Grad *g, Value *v) {
  const Type *x = input_type(g->node, 0);
  int64_t axes[RANK_MAX];
  int n = 0;
  uint32_t mask;
  if (node_has_input(g->node, 1) && index_constant(g->node, 1, axes, RANK_MAX, &n)) return NULL;
  if (reduced_axes(g->node, axes, n, x->rank, &mask)) return NULL;
  Type kept = reduced_type(x, mask, true);
  if (((const ReduceAttrs *)g->node->attrs)->keepdims) return v;
  return emit(g->emit, &op_Reshape, INPUTS(v, emit_int64s(g->emit, "kept_shape", kept.dims, kept.rank)), ATTRS(A_INT("allowzero", 1)));
}

static Value *expand_to_input(Grad *g, Value *v) {
  const Type *x = input_type(g->node, 0);
  if (!v || type_same_shape(&v->type, x)) return v;
  return emit(g->emit, &op_Expand, INPUTS(v, emit_int64s(g->emit, "shape", x->dims, x->rank)), NULL);
}

static Status reduce_sum_grad(Grad *g) {
  if (g->wanted[0]) g->dx[0] = expand_to_input(g, with_kept_axes(g, g->dy[0]));
  return STATUS_OK;
}

static Status reduce_mean_grad(Grad *g) {
  if (!g->wanted[0]) return STATUS_OK;
  int64_t results = type_elems(&g->node->outputs[0]->type), operands = type_elems(input_type(g->node, 0));
  double weight = operands ? (double)results / (double)operands : 0;
  Value *scaled = emit(g->emit, &op_Mul, INPUTS(g->dy[0], emit_float(g->emit, "inverse_count", g->dy[0]->type.dtype, weight)), NULL);
  g->dx[0] = expand_to_input(g, with_kept_axes(g, scaled));
  return STATUS_OK;
}

// Equal greatest elements share the gradient evenly (torch.amax).
static Status reduce_max_grad(Grad *g) {
  if (!g->wanted[0]) return STATUS_OK;
  Emit *e = g->emit;
  Value *x = g->node->inputs[0];
  Value *y = with_kept_axes(g, g->node->outputs[0]), *dy = with_kept_axes(g, g->dy[0]);
  Value *is_max = emit(e, &op_Equal, INPUTS(x, y), NULL);
  Value *ones = emit(e, &op_Cast, INPUTS(is_max), ATTRS(A_INT("to", x->type.dtype)));
  Value *count = e->status ? NULL : emit_sum_to(e, ones, &dy->type);
  Value *share = emit(e, &op_Div, INPUTS(dy, count), NULL);
  g->dx[0] = emit(e, &op_Where, INPUTS(is_max, share, emit_float(e, "zero", x->type.dtype, 0)), NULL);
  return STATUS_OK;
}

#define REDUCE(row, gradient, ref, cpu)                                                                                            \
  const Op op_##row = {.name = #row, .domain = "", .min_inputs = 1, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1,          \
                       .nondifferentiable = 1 << 1, .attrs = reduce_attrs, .attrs_bytes = sizeof(ReduceAttrs), .infer = reduce_infer, \
                       .grad = gradient, .run_ref = ref, .run_cpu = cpu}
REDUCE(ReduceSum, reduce_sum_grad, reduce_sum_ref, reduce_sum_cpu);
REDUCE(ReduceMean, reduce_mean_grad, reduce_mean_ref, reduce_mean_cpu);
REDUCE(ReduceMax, reduce_max_grad, reduce_max_ref, max_cpu);
