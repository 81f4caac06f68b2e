// ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd, ReduceL1, ReduceL2, ReduceLogSum, ReduceLogSumExp, ReduceSumSquare.
//
// Order of summation: each result element adds its operands in row-major order in f64 (run_ref), or in f64 by rows through Loops.sum
// and by columns top to bottom (run_cpu). Both depend on the shape only.
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "cost.h"
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
  bool takes_bool = (node->op == &op_ReduceMax || node->op == &op_ReduceMin) && x->dtype == DTYPE_BOOL;
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

static Reduction reduction_of(const Type *x, uint32_t mask) {
  Reduction r = {.inner = 1, .inner_kept = true, .kept = 1, .reduced = 1, .count = 1};
  int64_t stride = 1;
  bool inner = true;
  bool previous_kept = false;
  for (int i = x->rank - 1; i >= 0; i--) {
    int64_t d = x->dims[i];
    bool kept = !(mask >> i & 1);
    if (!kept) r.count *= d;
    if (d == 1) continue;
    if (inner) {
      r.inner = d;
      r.inner_kept = kept;
      inner = false;
    } else if (r.n_kept + r.n_reduced == 0 && kept == r.inner_kept) {
      r.inner *= d;
    } else {
      int *m = kept ? &r.n_kept : &r.n_reduced;
      int64_t *dims = kept ? r.kept_dims : r.reduced_dims, *strides = kept ? r.kept_strides : r.reduced_strides;
      if (*m && kept == previous_kept) dims[*m - 1] *= d;
      else dims[*m] = d, strides[*m] = stride, ++*m;
      *(kept ? &r.kept : &r.reduced) *= d;
      previous_kept = kept;
    }
    stride *= d;
  }
  return r;
}

static Status reduction_begin(const KernelContext *c, Reduction *r) {
  const Type *x = c->in[0].type;
  int64_t axes[RANK_MAX];
  int n = 0;
  uint32_t mask;
  if (has_input(c, 1)) TRY(index_tensor(c, 1, axes, RANK_MAX, &n));
  TRY(reduced_axes(c->node, axes, n, x->rank, &mask));
  Type y = reduced_type(x, mask, ((const ReduceAttrs *)c->node->attrs)->keepdims);
  if (!type_same_shape(&y, c->out[0].type)) FAIL(MALFORMED, c->node->name, "%s: the axes at run time are not those that the plan was made for", c->node->op->name);
  *r = reduction_of(x, mask);
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

typedef enum ReduceKind {
  REDUCE_SUM, REDUCE_MEAN, REDUCE_MAX, REDUCE_MIN, REDUCE_PROD, REDUCE_L1, REDUCE_L2, REDUCE_LOG_SUM, REDUCE_LOG_SUM_EXP, REDUCE_SUM_SQUARE
} ReduceKind;

static double max_f(double m, double x) { return x > m || x != x ? x : m; }
static double min_f(double m, double x) { return x < m || x != x ? x : m; }

// `shift` is the greatest operand where LogSumExp needs it.
static double fold_float(ReduceKind kind, double sum, double x, double shift) {
  switch (kind) {
  case REDUCE_MAX: return max_f(sum, x);
  case REDUCE_MIN: return min_f(sum, x);
  case REDUCE_PROD: return sum * x;
  case REDUCE_L1: return sum + fabs(x);
  case REDUCE_L2: case REDUCE_SUM_SQUARE: return sum + x * x;
  case REDUCE_LOG_SUM_EXP: return sum + exp(x - shift);
  default: return sum + x;
  }
}

static double walk_floats(const KernelContext *c, const Reduction *r, ReduceKind kind, int64_t from, double first, double shift) {
  double sum = first;
  int64_t inner = r->inner_kept ? 1 : r->inner;
  for (int64_t k = 0; k < r->reduced; k++)
    for (int64_t j = 0, at = from + reduced_offset(r, k); j < inner; j++) sum = fold_float(kind, sum, in_f(c, 0, at + j), shift);
  return sum;
}

static void reduce_float(const KernelContext *c, const Reduction *r, ReduceKind kind, int64_t to, int64_t from) {
  double shift = kind == REDUCE_LOG_SUM_EXP ? walk_floats(c, r, REDUCE_MAX, from, -INFINITY, 0) : 0;
  if (isinf(shift)) shift = 0;                                // all -inf: exp gives 0; some +inf: it gives +inf
  double first = kind == REDUCE_MAX ? -INFINITY : kind == REDUCE_MIN ? INFINITY : kind == REDUCE_PROD ? 1 : 0;
  double y = walk_floats(c, r, kind, from, first, shift);
  if (kind == REDUCE_MEAN) y /= (double)r->count;
  if (kind == REDUCE_L2) y = sqrt(y);
  if (kind == REDUCE_LOG_SUM || kind == REDUCE_LOG_SUM_EXP) y = shift + log(y);
  out_f(c, 0, to, y);
}

static int64_t fold_int(ReduceKind kind, bool is_unsigned, int64_t sum, int64_t x) {
  switch (kind) {
  case REDUCE_MAX: return (is_unsigned ? (uint64_t)x > (uint64_t)sum : x > sum) ? x : sum;
  case REDUCE_MIN: return (is_unsigned ? (uint64_t)x < (uint64_t)sum : x < sum) ? x : sum;
  case REDUCE_PROD: return (int64_t)((uint64_t)sum * (uint64_t)x);
  case REDUCE_L1: return (int64_t)((uint64_t)sum + (is_unsigned || x >= 0 ? (uint64_t)x : 0 - (uint64_t)x));
  case REDUCE_L2: case REDUCE_SUM_SQUARE: return (int64_t)((uint64_t)sum + (uint64_t)x * (uint64_t)x);
  default: return (int64_t)((uint64_t)sum + (uint64_t)x);
  }
}

// Integers wrap; the mean, roots and logarithms are cut towards zero; the mean is 0 of nothing. The greatest of nothing is the type's least
// value, the least of nothing its greatest.
static void reduce_int(const KernelContext *c, const Reduction *r, ReduceKind kind, int64_t to, int64_t from) {
  if (kind == REDUCE_LOG_SUM || kind == REDUCE_LOG_SUM_EXP) {
    double shift = kind == REDUCE_LOG_SUM_EXP ? walk_floats(c, r, REDUCE_MAX, from, -INFINITY, 0) : 0;
    out_f(c, 0, to, trunc((isinf(shift) ? 0 : shift) + log(walk_floats(c, r, kind, from, 0, isinf(shift) ? 0 : shift))));
    return;
  }
  Dtype dtype = c->in[0].type->dtype;
  bool is_unsigned = dtype_class(dtype) != DTYPE_CLASS_INT;
  int64_t least = is_unsigned ? 0 : -(INT64_C(1) << (8 * dtype_bytes(dtype) - 2)) * 2;
  int64_t greatest = dtype == DTYPE_BOOL ? 1 : is_unsigned ? (int64_t)(UINT64_MAX >> (64 - 8 * dtype_bytes(dtype))) : -(least + 1);
  int64_t sum = kind == REDUCE_MAX ? least : kind == REDUCE_MIN ? greatest : kind == REDUCE_PROD ? 1 : 0;
  int64_t inner = r->inner_kept ? 1 : r->inner;
  for (int64_t k = 0; k < r->reduced; k++)
    for (int64_t j = 0, at = from + reduced_offset(r, k); j < inner; j++) sum = fold_int(kind, is_unsigned, sum, in_i(c, 0, at + j));
  if (kind == REDUCE_MEAN) sum = r->count == 0 ? 0 : is_unsigned ? (int64_t)((uint64_t)sum / (uint64_t)r->count) : sum / r->count;
  if (kind == REDUCE_L2) sum = (int64_t)sqrt(is_unsigned ? (double)(uint64_t)sum : (double)sum);
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

// Sums of squares, by rows where the innermost axis is reduced; the root of it for L2.
static Status squares_cpu(const KernelContext *c, ReduceKind kind) {
  Reduction r;
  if (c->in[0].type->dtype != DTYPE_F32) return reduce_ref(c, kind);
  TRY(reduction_begin(c, &r));
  if (r.inner_kept) return reduce_ref(c, kind);
  for (int64_t k = 0; k < r.kept; k++) {
    const float *from = (const float *)c->in[0].data + kept_offset(&r, k);
    double sum = 0;
    for (int64_t i = 0; i < r.reduced; i++) sum += c->loops->sum_squares(from + reduced_offset(&r, i), 1, r.inner);
    ((float *)c->out[0].data)[k] = (float)(kind == REDUCE_L2 ? sqrt(sum) : sum);
  }
  return STATUS_OK;
}

static Status reduce_min_ref(const KernelContext *c) { return reduce_ref(c, REDUCE_MIN); }
static Status reduce_prod_ref(const KernelContext *c) { return reduce_ref(c, REDUCE_PROD); }
static Status reduce_l1_ref(const KernelContext *c) { return reduce_ref(c, REDUCE_L1); }
static Status reduce_l2_ref(const KernelContext *c) { return reduce_ref(c, REDUCE_L2); }
static Status reduce_log_sum_ref(const KernelContext *c) { return reduce_ref(c, REDUCE_LOG_SUM); }
static Status reduce_log_sum_exp_ref(const KernelContext *c) { return reduce_ref(c, REDUCE_LOG_SUM_EXP); }
static Status reduce_sum_square_ref(const KernelContext *c) { return reduce_ref(c, REDUCE_SUM_SQUARE); }
static Status reduce_l2_cpu(const KernelContext *c) { return squares_cpu(c, REDUCE_L2); }
static Status reduce_sum_square_cpu(const KernelContext *c) { return squares_cpu(c, REDUCE_SUM_SQUARE); }
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

// Equal greatest (or least) elements share the gradient evenly (torch.amax, torch.amin).
static Status reduce_extremum_grad(Grad *g) {
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

// x dy times two
static Status reduce_sum_square_grad(Grad *g) {
  Emit *e = g->emit;
  Value *x = g->node->inputs[0];
  if (!g->wanted[0]) return STATUS_OK;
  Value *dy = with_kept_axes(g, g->dy[0]), *two = emit_float(e, "two", x->type.dtype, 2);
  g->dx[0] = emit(e, &op_Mul, INPUTS(emit(e, &op_Mul, INPUTS(x, two), NULL), dy), NULL);
  return STATUS_OK;
}

// dy sign(x): 0 at 0
static Status reduce_l1_grad(Grad *g) {
  if (g->wanted[0])
    g->dx[0] = emit(g->emit, &op_Mul, INPUTS(emit(g->emit, &op_Sign, INPUTS(g->node->inputs[0]), NULL), with_kept_axes(g, g->dy[0])), NULL);
  return STATUS_OK;
}

// x dy / y, and 0 where y is 0, as in PyTorch
static Status reduce_l2_grad(Grad *g) {
  Emit *e = g->emit;
  if (!g->wanted[0]) return STATUS_OK;
  Value *x = g->node->inputs[0], *zero = emit_float(e, "zero", x->type.dtype, 0);
  Value *y = with_kept_axes(g, g->node->outputs[0]), *dy = with_kept_axes(g, g->dy[0]);
  Value *scaled = emit(e, &op_Where, INPUTS(emit(e, &op_Equal, INPUTS(y, zero), NULL), zero, emit(e, &op_Div, INPUTS(dy, y), NULL)), NULL);
  g->dx[0] = emit(e, &op_Mul, INPUTS(x, scaled), NULL);
  return STATUS_OK;
}

// dy / sum
static Status reduce_log_sum_grad(Grad *g) {
  if (!g->wanted[0]) return STATUS_OK;
  Value *sum = emit(g->emit, &op_Exp, INPUTS(g->node->outputs[0]), NULL);
  g->dx[0] = expand_to_input(g, with_kept_axes(g, emit(g->emit, &op_Div, INPUTS(g->dy[0], sum), NULL)));
  return STATUS_OK;
}

// dy exp(x - y)
static Status reduce_log_sum_exp_grad(Grad *g) {
  Emit *e = g->emit;
  if (!g->wanted[0]) return STATUS_OK;
  Value *y = with_kept_axes(g, g->node->outputs[0]), *dy = with_kept_axes(g, g->dy[0]);
  Value *share = emit(e, &op_Exp, INPUTS(emit(e, &op_Sub, INPUTS(g->node->inputs[0], y), NULL)), NULL);
  g->dx[0] = emit(e, &op_Mul, INPUTS(share, dy), NULL);
  return STATUS_OK;
}

static Status reduce_prod_grad(Grad *g) {
  const ReduceAttrs *a = g->node->attrs;
  bool has_axes = node_has_input(g->node, 1);
  Value *inputs[3] = {g->node->inputs[0], g->dy[0], has_axes ? g->node->inputs[1] : NULL};
  if (g->wanted[0])
    g->dx[0] = emit(g->emit, &op_ReduceProdGrad, inputs, has_axes ? 3 : 2,
                    ATTRS(A_INT("keepdims", a->keepdims), A_INT("noop_with_empty_axes", a->noop_with_empty_axes)));
  return STATUS_OK;
}

#define REDUCE(row, gradient, ref, cpu)                                                                                            \
  const Op op_##row = {.name = #row, .domain = "", .min_inputs = 1, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1,          \
                       .nondifferentiable = 1 << 1, .attrs = reduce_attrs, .attrs_bytes = sizeof(ReduceAttrs), .infer = reduce_infer, \
                       .grad = gradient, .run_ref = ref, .run_cpu = cpu, .cost = cost_sum, .policy = POLICY_F32}
REDUCE(ReduceSum, reduce_sum_grad, reduce_sum_ref, reduce_sum_cpu);
REDUCE(ReduceMean, reduce_mean_grad, reduce_mean_ref, reduce_mean_cpu);
REDUCE(ReduceMax, reduce_extremum_grad, reduce_max_ref, max_cpu);
REDUCE(ReduceMin, reduce_extremum_grad, reduce_min_ref, NULL);
REDUCE(ReduceProd, reduce_prod_grad, reduce_prod_ref, NULL);
REDUCE(ReduceL1, reduce_l1_grad, reduce_l1_ref, NULL);
REDUCE(ReduceL2, reduce_l2_grad, reduce_l2_ref, reduce_l2_cpu);
REDUCE(ReduceLogSum, reduce_log_sum_grad, reduce_log_sum_ref, NULL);
REDUCE(ReduceLogSumExp, reduce_log_sum_exp_grad, reduce_log_sum_exp_ref, NULL);
REDUCE(ReduceSumSquare, reduce_sum_square_grad, reduce_sum_square_ref, reduce_sum_square_cpu);

// ---- ReduceProdGrad: inputs x, dy, axes?. Each factor's gradient is the product of the others, also where factors are 0. ----

static Status prod_axes(const Node *node, const int64_t *axes, int n, const Type *x, const Type *dy, uint32_t *mask) {
  TRY(reduced_axes(node, axes, n, x->rank, mask));
  Type y = reduced_type(x, *mask, ((const ReduceAttrs *)node->attrs)->keepdims);
  if (!type_equal(&y, dy)) {
    char a[160], b[160];
    FAIL(MALFORMED, node->name, "ReduceProdGrad: dy is %s; %s is needed", type_text(dy, a, sizeof a), type_text(&y, b, sizeof b));
  }
  return STATUS_OK;
}

static Status reduce_prod_grad_infer(Node *node, Arena *arena) {
  const Type *x = input_type(node, 0);
  int64_t axes[RANK_MAX];
  int n = 0;
  uint32_t mask;
  if (!dtype_is_float(x->dtype)) FAIL(MALFORMED, node->name, "ReduceProdGrad: x of %s; a float is needed", dtype_name(x->dtype));
  if (node_has_input(node, 2)) TRY(index_constant(node, 2, axes, RANK_MAX, &n));
  TRY(prod_axes(node, axes, n, x, input_type(node, 1), &mask));
  node->outputs[0]->type = *x;
  return STATUS_OK;
}

// The factors of one product: elements from + offsets.
static void prod_grad_of(const KernelContext *c, const Reduction *r, double dy, int64_t from) {
  int64_t inner = r->inner_kept ? 1 : r->inner, zeros = 0;
  double product = 1;   // of those that are not 0
  for (int64_t k = 0; k < r->reduced; k++)
    for (int64_t j = 0, at = from + reduced_offset(r, k); j < inner; j++) {
      double x = in_f(c, 0, at + j);
      if (x == 0) zeros++;
      else product *= x;
    }
  for (int64_t k = 0; k < r->reduced; k++)
    for (int64_t j = 0, at = from + reduced_offset(r, k); j < inner; j++) {
      double x = in_f(c, 0, at + j);
      double others = x == 0 ? (zeros == 1 ? product : 0) : zeros ? 0 : product / x;
      out_f(c, 0, at + j, dy * others);
    }
}

static Status reduce_prod_grad_ref(const KernelContext *c) {
  int64_t axes[RANK_MAX];
  int n = 0;
  uint32_t mask;
  if (has_input(c, 2)) TRY(index_tensor(c, 2, axes, RANK_MAX, &n));
  TRY(prod_axes(c->node, axes, n, c->in[0].type, c->in[1].type, &mask));
  Reduction r = reduction_of(c->in[0].type, mask);
  int64_t columns = r.inner_kept ? r.inner : 1;
  for (int64_t k = 0; k < r.kept; k++)
    for (int64_t j = 0, from = kept_offset(&r, k); j < columns; j++) prod_grad_of(c, &r, in_f(c, 1, k * columns + j), from + j);
  return STATUS_OK;
}

const Op op_ReduceProdGrad = {.name = "ReduceProdGrad", .domain = "tessera", .min_inputs = 2, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1,
                              .nondifferentiable = 1 << 2, .attrs = reduce_attrs, .attrs_bytes = sizeof(ReduceAttrs),
                              .infer = reduce_prod_grad_infer, .run_ref = reduce_prod_grad_ref};
