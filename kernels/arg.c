// Which elements are greatest: ArgMax, ArgMin, TopK. As in PyTorch, TopK counts NaN as greater than everything,
// and ArgMax as well as ArgMin find it first.
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "index_input.h"
#include "ops.h"

// A tensor as outer x n x inner, where n is the axis in question.
typedef struct Lines { int64_t outer, n, inner; } Lines;

static Lines lines_of(const Type *x, int axis) {
  Lines l = {1, x->dims[axis], 1};
  for (int i = 0; i < axis; i++) l.outer *= x->dims[i];
  for (int i = axis + 1; i < x->rank; i++) l.inner *= x->dims[i];
  return l;
}

// Is element i of a greater (smaller, when not `largest`) than element k of b?
static bool float_beats(double a, double b, bool largest) { return largest ? a > b || (a != a && b == b) : a < b || (b != b && a == a); }

static bool beats(Dtype d, const void *a, int64_t i, const void *b, int64_t k, bool largest) {
  if (d == DTYPE_F32) return float_beats(((const float *)a)[i], ((const float *)b)[k], largest);
  if (dtype_is_float(d)) return float_beats(element_read(a, d, i), element_read(b, d, k), largest);
  int64_t x = element_read_int(a, d, i), y = element_read_int(b, d, k);
  if (dtype_class(d) == DTYPE_CLASS_INT) return largest ? x > y : x < y;
  return largest ? (uint64_t)x > (uint64_t)y : (uint64_t)x < (uint64_t)y;
}

static bool arg_beats(Dtype d, const void *x, int64_t i, int64_t k, bool largest) {
  if (!dtype_is_float(d)) return beats(d, x, i, x, k, largest);
  double a = element_read(x, d, i), b = element_read(x, d, k);
  return largest ? a > b || (a != a && b == b) : a < b || (a != a && b == b);
}

static Status check_number(const Node *node) {
  Dtype d = input_type(node, 0)->dtype;
  if (!dtype_is_float(d) && !dtype_is_integer(d))
    FAIL(MALFORMED, node->name, "%s: input '%s' of %s; a number is needed", node->op->name, node->inputs[0]->name, dtype_name(d));
  return STATUS_OK;
}

// ---- ArgMax, ArgMin ----

typedef struct ArgAttrs { int64_t axis, keepdims, select_last_index; } ArgAttrs;
static const AttrSpec arg_attrs[] = {
  {"axis", ATTR_INT, offsetof(ArgAttrs, axis), .help = "axis along which is searched"},
  {"keepdims", ATTR_INT, offsetof(ArgAttrs, keepdims), .default_int = 1, .min = 0, .max = 1, .help = "1: the axis stays with size 1"},
  {"select_last_index", ATTR_INT, offsetof(ArgAttrs, select_last_index), .min = 0, .max = 1, .help = "1: the last of equal ones, 0: the first"},
  {0},
};

static Status arg_infer(Node *node, Arena *arena) {
  const ArgAttrs *a = node->attrs;
  const Type *x = input_type(node, 0);
  int axis;
  TRY(check_number(node));
  TRY(type_axis(a->axis, x->rank, node->name, &axis));
  if (x->dims[axis] == 0) FAIL(MALFORMED, node->name, "%s: axis %d of '%s' is empty", node->op->name, axis, node->inputs[0]->name);
  Type y = {.dtype = DTYPE_I64};
  for (int i = 0; i < x->rank; i++)
    if (i != axis) y.dims[y.rank++] = x->dims[i];
    else if (a->keepdims) y.dims[y.rank++] = 1;
  node->outputs[0]->type = y;
  return STATUS_OK;
}

static Status arg_run(const KernelContext *c) {
  const ArgAttrs *a = c->node->attrs;
  int axis;
  TRY(type_axis(a->axis, c->in[0].type->rank, c->node->name, &axis));
  Lines l = lines_of(c->in[0].type, axis);
  bool largest = c->node->op == &op_ArgMax;
  Dtype d = c->in[0].type->dtype;
  const void *x = c->in[0].data;
  for (int64_t o = 0; o < l.outer; o++)
    for (int64_t i = 0; i < l.inner; i++) {
      int64_t first = o * l.n * l.inner + i, best = 0;
      for (int64_t k = 1; k < l.n; k++) {
        int64_t at = first + k * l.inner, champion = first + best * l.inner;
        if (a->select_last_index ? !arg_beats(d, x, champion, at, largest) : arg_beats(d, x, at, champion, largest)) best = k;
      }
      out_i(c, 0, o * l.inner + i, best);
    }
  return STATUS_OK;
}

#define ARG(row)                                                                                                              \
  const Op op_##row = {.name = #row, .domain = "", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1,     \
                       .nondifferentiable = 1, .attrs = arg_attrs, .attrs_bytes = sizeof(ArgAttrs), .infer = arg_infer, .run_ref = arg_run}
ARG(ArgMax);
ARG(ArgMin);

// ---- TopK: inputs x, k. Of equal elements the one with the lower index comes first; the result is always sorted. ----

typedef struct TopAttrs { int64_t axis, largest, sorted; } TopAttrs;
static const AttrSpec top_attrs[] = {
  {"axis", ATTR_INT, offsetof(TopAttrs, axis), .default_int = -1, .help = "axis along which is selected"},
  {"largest", ATTR_INT, offsetof(TopAttrs, largest), .default_int = 1, .min = 0, .max = 1, .help = "1: the greatest, 0: the least"},
  {"sorted", ATTR_INT, offsetof(TopAttrs, sorted), .default_int = 1, .min = 0, .max = 1, .help = "0: the order does not matter"},
  {0},
};

static Status check_k(const Node *node, const Type *x, const int64_t *k, int n_k, int *axis) {
  TRY(type_axis(((const TopAttrs *)node->attrs)->axis, x->rank, node->name, axis));
  if (n_k != 1 || k[0] < 0 || k[0] > x->dims[*axis])
    FAIL(MALFORMED, node->name, "TopK: k = %" PRId64 " of %" PRId64 " elements on axis %d", n_k ? k[0] : -1, x->dims[*axis], *axis);
  return STATUS_OK;
}

static Status top_infer(Node *node, Arena *arena) {
  const Type *x = input_type(node, 0);
  int64_t k;
  int n, axis;
  TRY(check_number(node));
  TRY(index_constant(node, 1, &k, 1, &n));
  TRY(check_k(node, x, &k, n, &axis));
  Type y = *x;
  y.dims[axis] = k;
  if (node_has_output(node, 0)) node->outputs[0]->type = y;
  y.dtype = DTYPE_I64;
  if (node_has_output(node, 1)) node->outputs[1]->type = y;
  return STATUS_OK;
}

// The k best of one line, kept sorted by insertion: an element enters behind its equals. They stand in the outputs that somebody wants
// (`step` elements apart from `to` on), and are compared through the values, or through the indices where only those are wanted.
typedef struct Line { int64_t first, step, n, to, k; bool largest; } Line;

static void move_held(const KernelContext *c, const Line *l, int64_t to, int64_t from) {
  int64_t bytes = dtype_bytes(c->in[0].type->dtype);
  to = l->to + to * l->step;
  from = l->to + from * l->step;
  if (has_output(c, 0)) memcpy((char *)c->out[0].data + to * bytes, (const char *)c->out[0].data + from * bytes, (size_t)bytes);
  if (has_output(c, 1)) ((int64_t *)c->out[1].data)[to] = ((const int64_t *)c->out[1].data)[from];
}

static bool beats_held(const KernelContext *c, const Line *l, int64_t at, int64_t p) {
  Dtype d = c->in[0].type->dtype;
  int64_t held = l->to + p * l->step;
  if (has_output(c, 0)) return beats(d, c->in[0].data, at, c->out[0].data, held, l->largest);
  return beats(d, c->in[0].data, at, c->in[0].data, l->first + ((const int64_t *)c->out[1].data)[held] * l->step, l->largest);
}

static void top_line(const KernelContext *c, const Line *l) {
  int64_t held = 0, bytes = dtype_bytes(c->in[0].type->dtype);
  for (int64_t i = 0; i < l->n; i++) {
    int64_t at = l->first + i * l->step;
    if (held == l->k && !beats_held(c, l, at, l->k - 1)) continue;
    int64_t p = held < l->k ? held++ : l->k - 1;
    for (; p > 0 && beats_held(c, l, at, p - 1); p--) move_held(c, l, p, p - 1);
    if (has_output(c, 0))
      memcpy((char *)c->out[0].data + (l->to + p * l->step) * bytes, (const char *)c->in[0].data + at * bytes, (size_t)bytes);
    if (has_output(c, 1)) ((int64_t *)c->out[1].data)[l->to + p * l->step] = i;
  }
}

static Status top_run(const KernelContext *c) {
  int64_t k;
  int n, axis;
  TRY(index_tensor(c, 1, &k, 1, &n));
  TRY(check_k(c->node, c->in[0].type, &k, n, &axis));
  for (int i = 0; i < 2; i++)
    if (has_output(c, i) && k != c->out[i].type->dims[axis]) FAIL(MALFORMED, c->node->name, "TopK: k at run time is not that which the plan was made for");
  Lines l = lines_of(c->in[0].type, axis);
  bool largest = ((const TopAttrs *)c->node->attrs)->largest;
  if (!k || (!has_output(c, 0) && !has_output(c, 1))) return STATUS_OK;
  for (int64_t o = 0; o < l.outer; o++)
    for (int64_t i = 0; i < l.inner; i++) top_line(c, &(Line){o * l.n * l.inner + i, l.inner, l.n, o * k * l.inner + i, k, largest});
  return STATUS_OK;
}

// Back to where the values came from.
static Status top_grad(Grad *g) {
  const Type *x = input_type(g->node, 0);
  if (!g->wanted[0] || !g->dy[0]) return STATUS_OK;
  const TopAttrs *a = g->node->attrs;
  Value *indices = g->node->outputs[1];
  if (!indices) {   // nobody wanted them so far
    const AttrInit *attrs = ATTRS(A_INT("axis", a->axis), A_INT("largest", a->largest), A_INT("sorted", a->sorted));
    Node *again = emit_node(g->emit, &op_TopK, g->node->inputs, 2, 2, (const bool[]){false, true}, attrs);
    indices = again ? again->outputs[1] : NULL;
  }
  g->dx[0] = emit(g->emit, &op_GatherElementsGrad, INPUTS(indices, g->dy[0]), ATTRS(A_INT("axis", a->axis), A_INTS("dims", x->dims, x->rank)));
  return STATUS_OK;
}

const Op op_TopK = {.name = "TopK", .domain = "", .min_inputs = 2, .max_inputs = 2, .min_outputs = 2, .max_outputs = 2, .nondifferentiable = 1 << 1,
                    .attrs = top_attrs, .attrs_bytes = sizeof(TopAttrs), .infer = top_infer, .grad = top_grad, .run_ref = top_run};
