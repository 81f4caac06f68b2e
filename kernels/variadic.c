// Operators over any number of broadcast operands: Min, Max, Sum, Mean; and Clip, which is Min(Max(x, low), high).
//
// run_ref takes all operands of an element at once, in order, in f64; run_cpu goes operand by operand, in f32, over the result.
#include <math.h>
#include <string.h>

#include "broadcast.h"
#include "index_input.h"
#include "ops.h"

static Status variadic_infer(Node *node, Arena *arena) {
  Dtype d = node->inputs[0]->type.dtype;
  bool any_number = node->op == &op_Min || node->op == &op_Max;
  for (int i = 0; i < node->n_inputs; i++) {
    if (!node->inputs[i]) FAIL(MALFORMED, node->name, "%s: input %d is absent", node->op->name, i);
    Dtype own = input_type(node, i)->dtype;
    if (own != d || !(dtype_is_float(d) || (any_number && dtype_is_integer(d))))
      FAIL(MALFORMED, node->name, "%s: input %d '%s' of %s beside %s; %s of one type are needed", node->op->name, i, node->inputs[i]->name,
           dtype_name(own), dtype_name(d), any_number ? "numbers" : "floats");
  }
  node->outputs[0]->type.dtype = d;
  return broadcast_infer(node, 0, &node->outputs[0]->type);
}

// Element of `t` that stands at element `e` of the result.
static int64_t operand_element(const Type *t, const Type *y, int64_t e) {
  int64_t at = 0, stride = 1;
  for (int i = y->rank - 1, k = t->rank - 1; k >= 0; i--, k--) {
    if (t->dims[k] != 1) at += e % y->dims[i] * stride;
    e /= y->dims[i];
    stride *= t->dims[k];
  }
  return at;
}

typedef double (*FloatFold)(double a, double b);
typedef int64_t (*IntFold)(int64_t a, int64_t b);
static double min_f(double a, double b) { return a < b || a != a ? a : b; }   // a NaN is the result
static double max_f(double a, double b) { return a > b || a != a ? a : b; }
static double add_f(double a, double b) { return a + b; }
static int64_t min_i(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max_i(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t min_u(int64_t a, int64_t b) { return (uint64_t)a < (uint64_t)b ? a : b; }
static int64_t max_u(int64_t a, int64_t b) { return (uint64_t)a > (uint64_t)b ? a : b; }

static Status fold_floats(const KernelContext *c, FloatFold f, double divisor) {
  for (int64_t e = 0, n = out_elems(c, 0); e < n; e++) {
    double y = in_f(c, 0, operand_element(c->in[0].type, c->out[0].type, e));
    for (int k = 1; k < c->n_in; k++) y = f(y, in_f(c, k, operand_element(c->in[k].type, c->out[0].type, e)));
    out_f(c, 0, e, y / divisor);
  }
  return STATUS_OK;
}

static Status fold_ints(const KernelContext *c, IntFold f) {
  for (int64_t e = 0, n = out_elems(c, 0); e < n; e++) {
    int64_t y = in_i(c, 0, operand_element(c->in[0].type, c->out[0].type, e));
    for (int k = 1; k < c->n_in; k++) y = f(y, in_i(c, k, operand_element(c->in[k].type, c->out[0].type, e)));
    out_i(c, 0, e, y);
  }
  return STATUS_OK;
}

static Status extremum_ref(const KernelContext *c) {
  bool is_max = c->node->op == &op_Max, is_signed = dtype_class(c->out[0].type->dtype) == DTYPE_CLASS_INT;
  if (dtype_is_float(c->out[0].type->dtype)) return fold_floats(c, is_max ? max_f : min_f, 1);
  return fold_ints(c, is_max ? (is_signed ? max_i : max_u) : is_signed ? min_i : min_u);
}
static Status sum_ref(const KernelContext *c) { return fold_floats(c, add_f, 1); }
static Status mean_ref(const KernelContext *c) { return fold_floats(c, add_f, c->n_in); }

typedef void (*Run)(float *y, const float *x, int64_t n, int64_t step);
static void min_run(float *y, const float *x, int64_t n, int64_t step) {
  if (step) for (int64_t i = 0; i < n; i++) y[i] = y[i] < x[i] || y[i] != y[i] ? y[i] : x[i];
  else for (int64_t i = 0; i < n; i++) y[i] = y[i] < *x || y[i] != y[i] ? y[i] : *x;
}
static void max_run(float *y, const float *x, int64_t n, int64_t step) {
  if (step) for (int64_t i = 0; i < n; i++) y[i] = y[i] > x[i] || y[i] != y[i] ? y[i] : x[i];
  else for (int64_t i = 0; i < n; i++) y[i] = y[i] > *x || y[i] != y[i] ? y[i] : *x;
}
static void add_run(float *y, const float *x, int64_t n, int64_t step) {
  for (int64_t i = 0; i < n; i++) y[i] += x[i * step];
}
static void copy_run(float *y, const float *x, int64_t n, int64_t step) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i * step];
}

static void fold_operand(const KernelContext *c, int k, Run run) {
  Broadcast b;
  for (bool more = broadcast_begin(&b, c->out[0].type, 1, &c->in[k]); more; more = broadcast_next(&b))
    run((float *)c->out[0].data + b.at_out, (const float *)c->in[k].data + b.at[0], b.run, b.step[0]);
}

static Status fold_cpu(const KernelContext *c, Run run) {
  if (c->in[0].data != c->out[0].data) fold_operand(c, 0, copy_run);
  for (int k = 1; k < c->n_in; k++) fold_operand(c, k, run);
  return STATUS_OK;
}
static Status extremum_cpu(const KernelContext *c) { return fold_cpu(c, c->node->op == &op_Max ? max_run : min_run); }
static Status sum_cpu(const KernelContext *c) { return fold_cpu(c, add_run); }
static Status mean_cpu(const KernelContext *c) {
  TRY(fold_cpu(c, add_run));
  float *y = c->out[0].data;
  for (int64_t i = 0, n = out_elems(c, 0); i < n; i++) y[i] /= (float)c->n_in;
  return STATUS_OK;
}

// Over operand 0 only, and only when no other operand is the same value: those are read after the first writes.
static bool variadic_alias(const Node *node, int output, int input, Alias *out) {
  if (input != 0 || !type_equal(input_type(node, 0), &node->outputs[output]->type)) return false;
  for (int k = 1; k < node->n_inputs; k++)
    if (node->inputs[k] == node->inputs[0]) return false;
  *out = (Alias){.kind = ALIAS_INPLACE, .input = 0};
  return true;
}

// Equal operands share the gradient evenly (torch.maximum).
static Status extremum_grad(Grad *g) {
  Emit *e = g->emit;
  const Node *node = g->node;
  if (node->n_inputs == 1) {
    g->dx[0] = g->dy[0];
    return STATUS_OK;
  }
  Dtype d = g->dy[0]->type.dtype;
  Value *count = NULL;
  for (int k = 0; k < node->n_inputs; k++) {
    Value *one = emit(e, &op_Cast, INPUTS(emit(e, &op_Equal, INPUTS(node->inputs[k], node->outputs[0]), NULL)), ATTRS(A_INT("to", d)));
    count = count ? emit(e, &op_Add, INPUTS(count, one), NULL) : one;
  }
  Value *share = emit(e, &op_Div, INPUTS(g->dy[0], count), NULL), *zero = emit_float(e, "zero", d, 0);
  for (int k = 0; k < node->n_inputs; k++) {
    if (!g->wanted[k]) continue;
    Value *taken = emit(e, &op_Equal, INPUTS(node->inputs[k], node->outputs[0]), NULL);
    Value *dx = emit(e, &op_Where, INPUTS(taken, share, zero), NULL);
    if (dx) g->dx[k] = emit_sum_to(e, dx, input_type(node, k));
  }
  return STATUS_OK;
}

static Status sum_grad(Grad *g) {
  for (int k = 0; k < g->node->n_inputs; k++)
    if (g->wanted[k]) g->dx[k] = emit_sum_to(g->emit, g->dy[0], input_type(g->node, k));
  return STATUS_OK;
}

static Status mean_grad(Grad *g) {
  Value *part = emit(g->emit, &op_Div, INPUTS(g->dy[0], emit_float(g->emit, "count", g->dy[0]->type.dtype, g->node->n_inputs)), NULL);
  for (int k = 0; part && k < g->node->n_inputs; k++)
    if (g->wanted[k]) g->dx[k] = emit_sum_to(g->emit, part, input_type(g->node, k));
  return STATUS_OK;
}

#define VARIADIC_ROW(row, gradient, ref, cpu)                                                                                       \
  const Op op_##row = {.name = #row, .domain = "", .min_inputs = 1, .max_inputs = VARIADIC, .min_outputs = 1, .max_outputs = 1,    \
                       .flags = OP_ELEMENTWISE, .infer = variadic_infer, .grad = gradient, .run_ref = ref, .run_cpu = cpu, .alias = variadic_alias}
VARIADIC_ROW(Min, extremum_grad, extremum_ref, extremum_cpu);
VARIADIC_ROW(Max, extremum_grad, extremum_ref, extremum_cpu);
VARIADIC_ROW(Sum, sum_grad, sum_ref, sum_cpu);
VARIADIC_ROW(Mean, mean_grad, mean_ref, mean_cpu);

// ---- Clip: inputs x, min?, max?, both of one element ----

static Status clip_infer(Node *node, Arena *arena) {
  const Type *x = input_type(node, 0);
  if (!dtype_is_float(x->dtype) && !dtype_is_integer(x->dtype))
    FAIL(MALFORMED, node->name, "Clip: input '%s' of %s; a number is needed", node->inputs[0]->name, dtype_name(x->dtype));
  for (int i = 1; i < 3; i++)
    if (node_has_input(node, i) && (input_type(node, i)->dtype != x->dtype || type_elems(input_type(node, i)) != 1))
      FAIL(MALFORMED, node->name, "Clip: bound '%s' must be one element of type %s", node->inputs[i]->name, dtype_name(x->dtype));
  node->outputs[0]->type = *x;
  return STATUS_OK;
}

static Status clip_ref(const KernelContext *c) {
  bool is_float = dtype_is_float(c->out[0].type->dtype), is_signed = dtype_class(c->out[0].type->dtype) == DTYPE_CLASS_INT;
  for (int64_t i = 0, n = out_elems(c, 0); i < n; i++) {
    if (is_float) {
      double v = in_f(c, 0, i);
      if (has_input(c, 1)) v = max_f(v, in_f(c, 1, 0));
      if (has_input(c, 2)) v = min_f(v, in_f(c, 2, 0));
      out_f(c, 0, i, v);
    } else {
      int64_t v = in_i(c, 0, i);
      if (has_input(c, 1)) v = (is_signed ? max_i : max_u)(v, in_i(c, 1, 0));
      if (has_input(c, 2)) v = (is_signed ? min_i : min_u)(v, in_i(c, 2, 0));
      out_i(c, 0, i, v);
    }
  }
  return STATUS_OK;
}

static Status clip_cpu(const KernelContext *c) {
  int64_t n = out_elems(c, 0);
  if (c->in[0].data != c->out[0].data) copy_run(c->out[0].data, c->in[0].data, n, 1);
  if (has_input(c, 1)) max_run(c->out[0].data, c->in[1].data, n, 0);
  if (has_input(c, 2)) min_run(c->out[0].data, c->in[2].data, n, 0);
  return STATUS_OK;
}

// dy where low <= x <= high, as torch.clamp.
static Status clip_grad(Grad *g) {
  Emit *e = g->emit;
  Value *x = g->node->inputs[0], *zero = emit_float(e, "zero", x->type.dtype, 0);
  g->dx[0] = g->dy[0];
  if (node_has_input(g->node, 1))
    g->dx[0] = emit(e, &op_Where, INPUTS(emit(e, &op_GreaterOrEqual, INPUTS(x, g->node->inputs[1]), NULL), g->dx[0], zero), NULL);
  if (node_has_input(g->node, 2))
    g->dx[0] = emit(e, &op_Where, INPUTS(emit(e, &op_LessOrEqual, INPUTS(x, g->node->inputs[2]), NULL), g->dx[0], zero), NULL);
  if (g->dx[0] && !type_same_shape(&g->dx[0]->type, &x->type)) g->dx[0] = emit_sum_to(e, g->dx[0], &x->type);   // bounds of shape [1]
  return STATUS_OK;
}

static bool clip_alias(const Node *node, int output, int input, Alias *out) {
  *out = (Alias){.kind = ALIAS_INPLACE, .input = 0};
  return input == 0;
}

const Op op_Clip = {.name = "Clip", .domain = "", .min_inputs = 1, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 6,
                    .infer = clip_infer, .grad = clip_grad, .run_ref = clip_ref, .run_cpu = clip_cpu, .alias = clip_alias};
