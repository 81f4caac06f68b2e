// Running sums and products along an axis: CumSum, CumProd and the latter's gradient.
#include <inttypes.h>
#include <stddef.h>

#include "index_input.h"
#include "ops.h"

typedef struct CumAttrs { int64_t exclusive, reverse; } CumAttrs;
static const AttrSpec cum_attrs[] = {
  {"exclusive", ATTR_INT, offsetof(CumAttrs, exclusive), .min = 0, .max = 1, .help = "1: an element is not part of its own result"},
  {"reverse", ATTR_INT, offsetof(CumAttrs, reverse), .min = 0, .max = 1, .help = "1: from the end"},
  {0},
};

static Status check_axis(const Node *node, int input, const Type *x) {
  const Type *axis = input_type(node, input);
  if (!dtype_is_integer(axis->dtype) || type_elems(axis) != 1)
    FAIL(MALFORMED, node->name, "%s: axis '%s' must be one integer", node->op->name, node->inputs[input]->name);
  const Weight *w = value_const(node->inputs[input]);
  int known;
  return w ? type_axis(weight_read_int(w, 0), x->rank, node->name, &known) : STATUS_OK;
}

static Status cum_infer(Node *node, Arena *arena) {
  const Type *x = input_type(node, 0);
  if (!dtype_is_float(x->dtype) && !dtype_is_integer(x->dtype))
    FAIL(MALFORMED, node->name, "%s: input '%s' of %s; a number is needed", node->op->name, node->inputs[0]->name, dtype_name(x->dtype));
  TRY(check_axis(node, 1, x));
  node->outputs[0]->type = *x;
  return STATUS_OK;
}

// The tensor as lines along the axis: element k of line (o, i) in walking order is at(k).
typedef struct Lines { int64_t outer, n, inner; bool reverse; } Lines;
static Status lines_begin(const KernelContext *c, int axis_input, Lines *l) {
  const Type *x = c->in[0].type;
  int axis;
  TRY(type_axis(in_i(c, axis_input, 0), x->rank, c->node->name, &axis));
  *l = (Lines){1, x->dims[axis], 1, ((const CumAttrs *)c->node->attrs)->reverse};
  for (int i = 0; i < axis; i++) l->outer *= x->dims[i];
  for (int i = axis + 1; i < x->rank; i++) l->inner *= x->dims[i];
  return STATUS_OK;
}
static int64_t line_at(const Lines *l, int64_t o, int64_t i, int64_t k) { return (o * l->n + (l->reverse ? l->n - 1 - k : k)) * l->inner + i; }

// Sums and products of f32 run in f64 and are rounded when stored; integers wrap.
static void cum_line(const KernelContext *c, const Lines *l, int64_t o, int64_t i, bool product, bool exclusive) {
  double sum = product;
  uint64_t whole = product;
  bool is_float = dtype_is_float(c->out[0].type->dtype);
  for (int64_t k = 0; k < l->n; k++) {
    int64_t at = line_at(l, o, i, k);
    double before = sum;
    uint64_t whole_before = whole;
    if (is_float) {
      sum = product ? sum * in_f(c, 0, at) : sum + in_f(c, 0, at);
      out_f(c, 0, at, exclusive ? before : sum);
    } else {
      whole = product ? whole * (uint64_t)in_i(c, 0, at) : whole + (uint64_t)in_i(c, 0, at);
      out_i(c, 0, at, (int64_t)(exclusive ? whole_before : whole));
    }
  }
}

static Status cum_run(const KernelContext *c) {
  Lines l;
  TRY(lines_begin(c, 1, &l));
  for (int64_t o = 0; o < l.outer; o++)
    for (int64_t i = 0; i < l.inner; i++) cum_line(c, &l, o, i, c->node->op == &op_CumProd, ((const CumAttrs *)c->node->attrs)->exclusive);
  return STATUS_OK;
}

static bool cum_alias(const Node *node, int output, int input, Alias *out) {
  *out = (Alias){.kind = ALIAS_INPLACE, .input = 0};
  return input == 0;
}

// The transpose of a running sum is the running sum from the other end.
static Status cum_sum_grad(Grad *g) {
  const CumAttrs *a = g->node->attrs;
  g->dx[0] = emit(g->emit, &op_CumSum, INPUTS(g->dy[0], g->node->inputs[1]), ATTRS(A_INT("exclusive", a->exclusive), A_INT("reverse", !a->reverse)));
  return STATUS_OK;
}

static Status cum_prod_grad(Grad *g) {
  const CumAttrs *a = g->node->attrs;
  g->dx[0] = emit(g->emit, &op_CumProdGrad, INPUTS(g->node->inputs[0], g->dy[0], g->node->inputs[1]),
                  ATTRS(A_INT("exclusive", a->exclusive), A_INT("reverse", a->reverse)));
  return STATUS_OK;
}

#define CUM(row, gradient)                                                                                                         \
  const Op op_##row = {.name = #row, .domain = "", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1,          \
                       .nondifferentiable = 1 << 1, .attrs = cum_attrs, .attrs_bytes = sizeof(CumAttrs), .infer = cum_infer,      \
                       .grad = gradient, .run_ref = cum_run, .alias = cum_alias, .policy = POLICY_F32}
CUM(CumSum, cum_sum_grad);
CUM(CumProd, cum_prod_grad);

// ---- CumProdGrad: inputs x, dy, axis. Without division: zeros among the factors are no special case. Quadratic in the axis. ----

static Status cum_prod_grad_infer(Node *node, Arena *arena) {
  const Type *x = input_type(node, 0);
  if (!dtype_is_float(x->dtype) || !type_equal(x, input_type(node, 1))) FAIL(MALFORMED, node->name, "CumProdGrad: x and dy must have one float type");
  TRY(check_axis(node, 2, x));
  node->outputs[0]->type = *x;
  return STATUS_OK;
}

static Status cum_prod_grad_ref(const KernelContext *c) {
  Lines l;
  TRY(lines_begin(c, 2, &l));
  bool exclusive = ((const CumAttrs *)c->node->attrs)->exclusive;
  for (int64_t o = 0; o < l.outer; o++)
    for (int64_t i = 0; i < l.inner; i++) {
      double before = 1;   // product of the factors in front of f
      for (int64_t f = 0; f < l.n; f++) {
        double sum = 0, others = before;
        for (int64_t k = f; k < l.n; k++) {   // y_k holds factor f: k >= f, or k > f when exclusive
          if (exclusive && k > f) sum += in_f(c, 1, line_at(&l, o, i, k)) * others;
          if (k > f) others *= in_f(c, 0, line_at(&l, o, i, k));
          if (!exclusive) sum += in_f(c, 1, line_at(&l, o, i, k)) * others;
        }
        out_f(c, 0, line_at(&l, o, i, f), sum);
        before *= in_f(c, 0, line_at(&l, o, i, f));
      }
    }
  return STATUS_OK;
}

const Op op_CumProdGrad = {.name = "CumProdGrad", .domain = "tessera", .min_inputs = 3, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1,
                           .nondifferentiable = 1 << 2, .attrs = cum_attrs, .attrs_bytes = sizeof(CumAttrs), .infer = cum_prod_grad_infer,
                           .run_ref = cum_prod_grad_ref};
