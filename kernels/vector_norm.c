// Normalisations without parameters: MeanVarianceNormalization, LpNormalization, LRN (across channels). Plain loops: none is on a hot path of
// today's models.
#include <math.h>
#include <string.h>

#include "index_input.h"
#include "kernel.h"
#include "ops.h"

static Status float_infer(Node *node) {
  if (!dtype_is_float(node->inputs[0]->type.dtype)) FAIL(MALFORMED, node->name, "'%s' is not of a float type", node->inputs[0]->name);
  node->outputs[0]->type = node->inputs[0]->type;
  return NULL;
}

static bool over_input(const Node *node, int output, int input, Alias *out) {
  *out = (Alias){.kind = ALIAS_INPLACE, .input = input};
  return true;
}

// ---- MeanVarianceNormalization: (x - mean) / (sd + 1e-9) over `axes` ---------------------------------------------------------------------

static const double MVN_EPSILON = 1e-9;   // of the operator's definition
static const int64_t mvn_default_axes[] = {0, 2, 3};

typedef struct MvnAttrs { AttrInts axes; } MvnAttrs;
static const AttrSpec mvn_attrs[] = {{"axes", ATTR_INTS, offsetof(MvnAttrs, axes), .help = "axes of one mean; [0,2,3] where absent"}, {0}};

static AttrInts mvn_axes(const Node *node) {
  const MvnAttrs *a = node->attrs;
  return a->axes.n ? a->axes : (AttrInts){mvn_default_axes, 3};
}

static Status mvn_infer(Node *node, Arena *arena) {
  uint32_t mask;
  AttrInts axes = mvn_axes(node);
  TRY(float_infer(node));
  return index_axes(axes.items, (int)axes.n, node->inputs[0]->type.rank, node->name, &mask);
}

// The tensor's axes in two lists: those that stay apart, and those that are reduced.
typedef struct Split { int rank[2]; int64_t dims[2][RANK_MAX], strides[2][RANK_MAX], elems[2]; } Split;

static Split split_axes(const Type *x, uint32_t mask) {
  int64_t strides[RANK_MAX];
  Split s = {.elems = {1, 1}};
  int64_t step = 1;
  for (int d = x->rank - 1; d >= 0; step *= x->dims[d], d--) strides[d] = step;
  for (int d = 0; d < x->rank; d++) {
    int reduced = mask >> d & 1, k = s.rank[reduced]++;
    s.dims[reduced][k] = x->dims[d];
    s.strides[reduced][k] = strides[d];
    s.elems[reduced] *= x->dims[d];
  }
  return s;
}

static int64_t split_offset(const Split *s, int which, int64_t at) {
  int64_t offset = 0;
  for (int d = s->rank[which] - 1; d >= 0; d--) {
    offset += at % s->dims[which][d] * s->strides[which][d];
    at /= s->dims[which][d];
  }
  return offset;
}

static Status mvn_ref(const KernelContext *c) {
  uint32_t mask;
  AttrInts axes = mvn_axes(c->node);
  TRY(index_axes(axes.items, (int)axes.n, c->in[0].type->rank, c->node->name, &mask));
  Split s = split_axes(c->in[0].type, mask);
  for (int64_t o = 0; o < s.elems[0]; o++) {
    int64_t base = split_offset(&s, 0, o);
    double sum = 0, squares = 0, n = (double)s.elems[1];
    for (int64_t k = 0; k < s.elems[1]; k++) sum += in_f(c, 0, base + split_offset(&s, 1, k));
    for (int64_t k = 0; k < s.elems[1]; k++) {
      double d = in_f(c, 0, base + split_offset(&s, 1, k)) - sum / n;
      squares += d * d;
    }
    double factor = 1 / (sqrt(squares / n) + MVN_EPSILON);
    for (int64_t k = 0; k < s.elems[1]; k++) {
      int64_t e = base + split_offset(&s, 1, k);
      out_f(c, 0, e, (in_f(c, 0, e) - sum / n) * factor);
    }
  }
  return NULL;
}

static Value *mean_over(Emit *e, Value *x, Value *axes) { return x ? emit(e, &op_ReduceMean, INPUTS(x, axes), ATTRS(A_INT("keepdims", 1))) : NULL; }
static Value *two(Emit *e, const Op *op, Value *a, Value *b) { return a && b ? emit(e, op, INPUTS(a, b), NULL) : NULL; }

// With d = x - mean, s = sd and q = s + epsilon: dd = dy / q - d mean(dy d) / (q^2 s), dx = dd - mean(dd).
static Status mvn_grad(Grad *g) {
  Emit *e = g->emit;
  Value *x = g->node->inputs[0], *dy = g->dy[0];
  AttrInts given = mvn_axes(g->node);
  Value *axes = emit_int64s(e, "axes", given.items, given.n), *epsilon = emit_float(e, "epsilon", x->type.dtype, MVN_EPSILON);
  Value *d = two(e, &op_Sub, x, mean_over(e, x, axes)), *variance = mean_over(e, two(e, &op_Mul, d, d), axes);
  Value *s = variance ? emit(e, &op_Sqrt, INPUTS(variance), NULL) : NULL, *q = two(e, &op_Add, s, epsilon);
  Value *t = two(e, &op_Div, mean_over(e, two(e, &op_Mul, dy, d), axes), two(e, &op_Mul, two(e, &op_Mul, q, q), s));
  Value *dd = two(e, &op_Sub, two(e, &op_Div, dy, q), two(e, &op_Mul, d, t));
  g->dx[0] = two(e, &op_Sub, dd, mean_over(e, dd, axes));
  return NULL;
}

const Op op_MeanVarianceNormalization = {
    .name = "MeanVarianceNormalization", .domain = "", .policy = POLICY_F32, .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1,
    .attrs = mvn_attrs, .attrs_bytes = sizeof(MvnAttrs), .infer = mvn_infer, .grad = mvn_grad, .run_ref = mvn_ref,
    .alias = over_input};

// ---- LpNormalization: x / ||x||_p along one axis; 0 where the norm is 0 ---------------------------------------------------------------

typedef struct LpAttrs { int64_t axis, p; } LpAttrs;
static const AttrSpec lp_attrs[] = {
    {"axis", ATTR_INT, offsetof(LpAttrs, axis), .default_int = -1, .help = "axis of one norm"},
    {"p", ATTR_INT, offsetof(LpAttrs, p), .default_int = 2, .min = 1, .max = 2, .help = "1 or 2"},
    {0},
};

static Status lp_infer(Node *node, Arena *arena) {
  int axis;
  TRY(float_infer(node));
  return type_axis(((const LpAttrs *)node->attrs)->axis, node->inputs[0]->type.rank, node->name, &axis);
}

static Status lp_ref(const KernelContext *c) {
  const LpAttrs *a = c->node->attrs;
  int axis;
  TRY(type_axis(a->axis, c->in[0].type->rank, c->node->name, &axis));
  Split s = split_axes(c->in[0].type, 1u << axis);
  for (int64_t o = 0; o < s.elems[0]; o++) {
    int64_t base = split_offset(&s, 0, o), step = s.strides[1][0];
    double sum = 0;
    for (int64_t k = 0; k < s.elems[1]; k++) {
      double x = in_f(c, 0, base + k * step);
      sum += a->p == 1 ? fabs(x) : x * x;
    }
    double norm = a->p == 1 ? sum : sqrt(sum);
    for (int64_t k = 0; k < s.elems[1]; k++) out_f(c, 0, base + k * step, norm == 0 ? 0 : in_f(c, 0, base + k * step) / norm);
  }
  return NULL;
}

// dx = (dy - f sum(dy y)) / norm with f = y for p = 2 and sign(x) for p = 1.
static Status lp_grad(Grad *g) {
  Emit *e = g->emit;
  const LpAttrs *a = g->node->attrs;
  Value *x = g->node->inputs[0], *y = g->node->outputs[0], *dy = g->dy[0];
  Value *axes = emit_int64s(e, "axes", &a->axis, 1), *zero = emit_float(e, "zero", x->type.dtype, 0), *one = emit_float(e, "one", x->type.dtype, 1);
  Value *size = a->p == 1 ? emit(e, &op_Abs, INPUTS(x), NULL) : two(e, &op_Mul, x, x);
  Value *norm = size ? emit(e, &op_ReduceSum, INPUTS(size, axes), NULL) : NULL, *factor = y;
  if (a->p == 2 && norm) norm = emit(e, &op_Sqrt, INPUTS(norm), NULL);
  if (a->p == 1 && norm) {
    Value *minus = emit_float(e, "minus_one", x->type.dtype, -1), *below = two(e, &op_Less, x, zero), *above = two(e, &op_Greater, x, zero);
    Value *sign = below ? emit(e, &op_Where, INPUTS(below, minus, zero), NULL) : NULL;
    factor = sign ? emit(e, &op_Where, INPUTS(above, one, sign), NULL) : NULL;
  }
  Value *product = two(e, &op_Mul, dy, y), *dot = product ? emit(e, &op_ReduceSum, INPUTS(product, axes), NULL) : NULL;
  g->dx[0] = two(e, &op_Div, two(e, &op_Sub, dy, two(e, &op_Mul, factor, dot)), norm);
  return NULL;
}

const Op op_LpNormalization = {
    .name = "LpNormalization", .domain = "", .policy = POLICY_F32, .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1, .attrs = lp_attrs,
    .attrs_bytes = sizeof(LpAttrs), .infer = lp_infer, .grad = lp_grad, .run_ref = lp_ref, .alias = over_input};

// ---- LRN: y = x / d^beta with d = bias + alpha / size * (sum of squares over `size` channels around x's own) ------------------------------

typedef struct LrnAttrs { float alpha, beta, bias; int64_t size; } LrnAttrs;
static const AttrSpec lrn_attrs[] = {
    {"alpha", ATTR_FLOAT, offsetof(LrnAttrs, alpha), .default_float = 1e-4f, .help = "factor of the mean square"},
    {"beta", ATTR_FLOAT, offsetof(LrnAttrs, beta), .default_float = 0.75f, .help = "exponent"},
    {"bias", ATTR_FLOAT, offsetof(LrnAttrs, bias), .default_float = 1, .help = "added to it"},
    {"size", ATTR_INT, offsetof(LrnAttrs, size), .required = true, .default_int = 1, .min = 1, .max = INT32_MAX, .help = "channels"},
    {0},
};

typedef struct Lrn { int64_t batch, channels, inner, before, after; double alpha, beta, bias; } Lrn;

static Lrn lrn_of(const Node *node, const Type *x) {
  const LrnAttrs *a = node->attrs;
  Lrn l = {.batch = x->dims[0], .channels = x->dims[1], .inner = 1, .before = (a->size - 1) / 2, .after = a->size / 2,
           .alpha = (double)a->alpha / (double)a->size, .beta = (double)a->beta, .bias = (double)a->bias};
  for (int d = 2; d < x->rank; d++) l.inner *= x->dims[d];
  return l;
}

static Status lrn_infer(Node *node, Arena *arena) {
  TRY(float_infer(node));
  if (node->inputs[0]->type.rank < 2) FAIL(MALFORMED, node->name, "X has %d axes; [N, C, ...] is needed", node->inputs[0]->type.rank);
  if (node->n_inputs > 1 && !type_equal(&node->inputs[0]->type, &node->inputs[1]->type)) FAIL(MALFORMED, node->name, "x and dy must be of one type");
  return NULL;
}

// d of the element of channel `k` whose channel 0 lies at `at`.
static double lrn_divisor(const KernelContext *c, const Lrn *l, int64_t at, int64_t k) {
  int64_t last = k + l->after < l->channels ? k + l->after : l->channels - 1;
  double sum = 0;
  for (int64_t i = k > l->before ? k - l->before : 0; i <= last; i++) sum += in_f(c, 0, at + i * l->inner) * in_f(c, 0, at + i * l->inner);
  return l->bias + l->alpha * sum;
}

static Status lrn_ref(const KernelContext *c) {
  Lrn l = lrn_of(c->node, c->in[0].type);
  for (int64_t o = 0; o < l.batch * l.inner; o++) {
    int64_t at = o / l.inner * l.channels * l.inner + o % l.inner;
    for (int64_t k = 0; k < l.channels; k++) out_f(c, 0, at + k * l.inner, in_f(c, 0, at + k * l.inner) * pow(lrn_divisor(c, &l, at, k), -l.beta));
  }
  return NULL;
}

static Status lrn_grad(Grad *g) {
  const LrnAttrs *a = g->node->attrs;
  g->dx[0] = emit(g->emit, &op_LRNGrad, INPUTS(g->node->inputs[0], g->dy[0]),
                  ATTRS(A_FLOAT("alpha", a->alpha), A_FLOAT("beta", a->beta), A_FLOAT("bias", a->bias), A_INT("size", a->size)));
  return NULL;
}

const Op op_LRN = {.name = "LRN", .domain = "", .policy = POLICY_F32, .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1, .attrs = lrn_attrs,
                   .attrs_bytes = sizeof(LrnAttrs), .infer = lrn_infer, .grad = lrn_grad, .run_ref = lrn_ref};

// (x, dy): dx_j = dy_j d_j^-beta - 2 alpha / size beta x_j sum over the i whose channels hold j of dy_i x_i d_i^(-beta - 1).
static Status lrn_grad_ref(const KernelContext *c) {
  Lrn l = lrn_of(c->node, c->in[0].type);
  for (int64_t o = 0; o < l.batch * l.inner; o++) {
    int64_t at = o / l.inner * l.channels * l.inner + o % l.inner;
    for (int64_t j = 0; j < l.channels; j++) {
      int64_t last = j + l.before < l.channels ? j + l.before : l.channels - 1, e = at + j * l.inner;
      double sum = 0;
      for (int64_t i = j > l.after ? j - l.after : 0; i <= last; i++)
        sum += in_f(c, 1, at + i * l.inner) * in_f(c, 0, at + i * l.inner) * pow(lrn_divisor(c, &l, at, i), -l.beta - 1);
      out_f(c, 0, e, in_f(c, 1, e) * pow(lrn_divisor(c, &l, at, j), -l.beta) - 2 * l.alpha * l.beta * in_f(c, 0, e) * sum);
    }
  }
  return NULL;
}

const Op op_LRNGrad = {.name = "LRNGrad",
                       .domain = "tessera",
                       .min_inputs = 2,
                       .max_inputs = 2,
                       .min_outputs = 1,
                       .max_outputs = 1,
                       .attrs = lrn_attrs,
                       .attrs_bytes = sizeof(LrnAttrs),
                       .infer = lrn_infer,
                       .run_ref = lrn_grad_ref};
