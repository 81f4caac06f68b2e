// Softmax and LogSoftmax along one axis and their gradients; Hardmax.
#include <math.h>
#include <string.h>

#include "cost.h"
#include "kernel.h"
#include "ops.h"

typedef struct SoftmaxAttrs { int64_t axis; } SoftmaxAttrs;
static const AttrSpec softmax_attrs[] = {
    {"axis", ATTR_INT, offsetof(SoftmaxAttrs, axis), .default_int = -1, .help = "axis that sums to one"},
    {0},
};

// The tensor as [outer, n, inner] with the axis in the middle.
typedef struct Rows { int64_t outer, n, inner; } Rows;

static Status rows_of(const Node *node, const Type *type, Rows *out) {
  int axis;
  TRY(type_axis(((const SoftmaxAttrs *)node->attrs)->axis, type->rank, node->name, &axis));
  Rows rows = {.outer = 1, .n = type->dims[axis], .inner = 1};
  for (int d = 0; d < axis; d++) rows.outer *= type->dims[d];
  for (int d = axis + 1; d < type->rank; d++) rows.inner *= type->dims[d];
  *out = rows;
  return NULL;
}

// One double for every inner place of the axis that is not the last: run_cpu works on all of them at once.
static int64_t inner_bytes(const Rows *rows, int vectors) { return rows->inner == 1 ? 0 : rows->inner * vectors * (int64_t)sizeof(double); }

// ---- Softmax -------------------------------------------------------------------------------------------------------------------

static Status softmax_infer(Node *node, Arena *arena) {
  Rows rows;
  if (!dtype_is_float(node->inputs[0]->type.dtype)) FAIL(MALFORMED, node->name, "'%s' is not of a float type", node->inputs[0]->name);
  TRY(rows_of(node, &node->inputs[0]->type, &rows));
  node->outputs[0]->type = node->inputs[0]->type;
  return NULL;
}

static Status softmax_ref(const KernelContext *c) {
  Rows rows;
  TRY(rows_of(c->node, c->in[0].type, &rows));
  for (int64_t o = 0; o < rows.outer * rows.inner; o++) {
    int64_t base = o / rows.inner * rows.n * rows.inner + o % rows.inner;
    double max = -INFINITY, sum = 0;
    for (int64_t k = 0; k < rows.n; k++) {
      double v = in_f(c, 0, base + k * rows.inner);
      if (v > max || isnan(v)) max = v;
    }
    for (int64_t k = 0; k < rows.n; k++) sum += exp(in_f(c, 0, base + k * rows.inner) - max);
    for (int64_t k = 0; k < rows.n; k++) {   // the output may lie over the input: read before write
      int64_t e = base + k * rows.inner;
      out_f(c, 0, e, exp(in_f(c, 0, e) - max) / sum);
    }
  }
  return NULL;
}

// [n, inner]: exponentials row by row, maxima and sums side by side in workspace.
static void softmax_columns(const KernelContext *c, const Rows *rows, const float *x, float *y) {
  double *sums = c->workspace;
  float *max = (float *)(sums + rows->inner);
  for (int64_t i = 0; i < rows->inner; i++) {
    sums[i] = 0;
    max[i] = -INFINITY;
  }
  for (int64_t k = 0; k < rows->n; k++)
    for (int64_t i = 0; i < rows->inner; i++) {
      float v = x[k * rows->inner + i];
      if (v > max[i] || isnan(v)) max[i] = v;
    }
  for (int64_t k = 0; k < rows->n; k++) {
    float *row = y + k * rows->inner;
    c->loops->sub(row, x + k * rows->inner, max, rows->inner);
    c->loops->exp(row, row, rows->inner);
    for (int64_t i = 0; i < rows->inner; i++) sums[i] += (double)row[i];
  }
  for (int64_t i = 0; i < rows->inner; i++) max[i] = (float)(1 / sums[i]);
  for (int64_t k = 0; k < rows->n; k++) c->loops->mul(y + k * rows->inner, y + k * rows->inner, max, rows->inner);
}

static Status softmax_cpu(const KernelContext *c) {
  Rows rows;
  TRY(rows_of(c->node, c->in[0].type, &rows));
  for (int64_t o = 0; o < rows.outer; o++) {
    const float *x = (const float *)c->in[0].data + o * rows.n * rows.inner;
    float *y = (float *)c->out[0].data + o * rows.n * rows.inner;
    if (rows.inner != 1) {
      softmax_columns(c, &rows, x, y);
      continue;
    }
    c->loops->add_s(y, x, -c->loops->max(x, rows.n), rows.n);
    c->loops->exp(y, y, rows.n);
    c->loops->mul_s(y, y, (float)(1 / c->loops->sum(y, rows.n)), rows.n);
  }
  return NULL;
}

static Status softmax_workspace(KernelPrepare *p) {
  Rows rows;
  TRY(rows_of(p->node, &p->node->inputs[0]->type, &rows));
  p->workspace_bytes = inner_bytes(&rows, 2);
  return NULL;
}

static Status softmax_grad(Grad *g) {
  if (g->dy[0] && g->wanted[0])
    g->dx[0] = emit(g->emit, &op_SoftmaxGrad, INPUTS(g->node->outputs[0], g->dy[0]),
                    ATTRS(A_INT("axis", ((const SoftmaxAttrs *)g->node->attrs)->axis)));
  return NULL;
}

static bool softmax_alias(const Node *node, int output, int input, Alias *out) {
  if (output || input) return false;
  *out = (Alias){.kind = ALIAS_INPLACE, .input = 0};
  return true;
}

const Op op_Softmax = {
    .name = "Softmax", .domain = "", .policy = POLICY_F32, .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1, .attrs = softmax_attrs,
    .attrs_bytes = sizeof(SoftmaxAttrs), .infer = softmax_infer, .grad = softmax_grad, .run_ref = softmax_ref, .run_cpu = softmax_cpu,
    .workspace = softmax_workspace, .alias = softmax_alias, .cost = cost_softmax};

// ---- SoftmaxGrad ---------------------------------------------------------------------------------------------------------------
// dx = y (dy - sum(y dy)). A row that no gradient reaches (dy all zero) has none, even where y is NaN: a row whose scores are all masked
// is NaN in y and is replaced by a later Where.

enum { SOFTMAX_Y, SOFTMAX_DY };

static Status softmax_grad_infer(Node *node, Arena *arena) {
  Rows rows;
  TRY(rows_of(node, &node->inputs[SOFTMAX_Y]->type, &rows));
  if (!dtype_is_float(node->inputs[SOFTMAX_Y]->type.dtype) || !type_equal(&node->inputs[SOFTMAX_Y]->type, &node->inputs[SOFTMAX_DY]->type))
    FAIL(MALFORMED, node->name, "'%s' and '%s' must be floats of one type", node->inputs[SOFTMAX_Y]->name, node->inputs[SOFTMAX_DY]->name);
  node->outputs[0]->type = node->inputs[SOFTMAX_Y]->type;
  return NULL;
}

static Status softmax_grad_ref(const KernelContext *c) {
  Rows rows;
  TRY(rows_of(c->node, c->in[SOFTMAX_Y].type, &rows));
  for (int64_t o = 0; o < rows.outer * rows.inner; o++) {
    int64_t base = o / rows.inner * rows.n * rows.inner + o % rows.inner;
    double dot = 0;
    bool reached = false;
    for (int64_t k = 0; k < rows.n; k++) {
      int64_t e = base + k * rows.inner;
      dot += in_f(c, SOFTMAX_Y, e) * in_f(c, SOFTMAX_DY, e);
      reached |= in_f(c, SOFTMAX_DY, e) != 0;
    }
    for (int64_t k = 0; k < rows.n; k++) {
      int64_t e = base + k * rows.inner;
      out_f(c, 0, e, reached ? in_f(c, SOFTMAX_Y, e) * (in_f(c, SOFTMAX_DY, e) - dot) : 0);
    }
  }
  return NULL;
}

// [n, inner] with the axis strided: dots side by side in workspace.
static void softmax_grad_columns(const KernelContext *c, const Rows *rows, const float *y, const float *dy, float *dx) {
  double *dots = c->workspace, *reached = dots + rows->inner;
  memset(dots, 0, (size_t)(2 * rows->inner) * sizeof(double));
  for (int64_t k = 0; k < rows->n; k++)
    for (int64_t i = 0; i < rows->inner; i++) {
      int64_t e = k * rows->inner + i;
      dots[i] += (double)y[e] * (double)dy[e];
      if (dy[e] != 0) reached[i] = 1;
    }
  for (int64_t k = 0; k < rows->n; k++)
    for (int64_t i = 0; i < rows->inner; i++) {
      int64_t e = k * rows->inner + i;
      dx[e] = reached[i] != 0 ? (float)((double)y[e] * ((double)dy[e] - dots[i])) : 0;
    }
}

static bool all_zero(const float *x, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (x[i] != 0) return false;
  return true;
}

static Status softmax_grad_cpu(const KernelContext *c) {
  Rows rows;
  TRY(rows_of(c->node, c->in[SOFTMAX_Y].type, &rows));
  for (int64_t o = 0; o < rows.outer; o++) {
    int64_t at = o * rows.n * rows.inner;
    const float *y = (const float *)c->in[SOFTMAX_Y].data + at, *dy = (const float *)c->in[SOFTMAX_DY].data + at;
    float *dx = (float *)c->out[0].data + at;
    if (rows.inner != 1) {
      softmax_grad_columns(c, &rows, y, dy, dx);
      continue;
    }
    double dot = c->loops->dot(y, dy, rows.n);
    if (isnan(dot) && all_zero(dy, rows.n)) {
      memset(dx, 0, (size_t)rows.n * sizeof(float));
      continue;
    }
    float shift = (float)dot;
    for (int64_t k = 0; k < rows.n; k++) dx[k] = y[k] * (dy[k] - shift);   // dx may lie over y or dy
  }
  return NULL;
}

static Status softmax_grad_workspace(KernelPrepare *p) {
  Rows rows;
  TRY(rows_of(p->node, &p->node->inputs[SOFTMAX_Y]->type, &rows));
  p->workspace_bytes = inner_bytes(&rows, 2);
  return NULL;
}

static bool softmax_grad_alias(const Node *node, int output, int input, Alias *out) {
  if (output) return false;
  *out = (Alias){.kind = ALIAS_INPLACE, .input = input};
  return true;
}

const Op op_SoftmaxGrad = {
    .name = "SoftmaxGrad", .domain = "tessera", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .attrs = softmax_attrs,
    .attrs_bytes = sizeof(SoftmaxAttrs), .infer = softmax_grad_infer, .run_ref = softmax_grad_ref, .run_cpu = softmax_grad_cpu,
    .workspace = softmax_grad_workspace, .alias = softmax_grad_alias, .cost = cost_norm};

// ---- LogSoftmax ----------------------------------------------------------------------------------------------------------------

static Status log_softmax_ref(const KernelContext *c) {
  Rows rows;
  TRY(rows_of(c->node, c->in[0].type, &rows));
  for (int64_t o = 0; o < rows.outer * rows.inner; o++) {
    int64_t base = o / rows.inner * rows.n * rows.inner + o % rows.inner;
    double max = -INFINITY, sum = 0;
    for (int64_t k = 0; k < rows.n; k++) {
      double v = in_f(c, 0, base + k * rows.inner);
      if (v > max || isnan(v)) max = v;
    }
    for (int64_t k = 0; k < rows.n; k++) sum += exp(in_f(c, 0, base + k * rows.inner) - max);
    double log_sum = log(sum);
    for (int64_t k = 0; k < rows.n; k++) out_f(c, 0, base + k * rows.inner, in_f(c, 0, base + k * rows.inner) - max - log_sum);
  }
  return NULL;
}

static Status log_softmax_cpu(const KernelContext *c) {
  Rows rows;
  TRY(rows_of(c->node, c->in[0].type, &rows));
  if (rows.inner != 1) return log_softmax_ref(c);
  float *space = c->workspace;
  for (int64_t o = 0; o < rows.outer; o++) {
    const float *x = (const float *)c->in[0].data + o * rows.n;
    float *y = (float *)c->out[0].data + o * rows.n, max = c->loops->max(x, rows.n);
    c->loops->add_s(space, x, -max, rows.n);
    c->loops->exp(space, space, rows.n);
    double shift = (double)max + log(c->loops->sum(space, rows.n));
    for (int64_t k = 0; k < rows.n; k++) y[k] = (float)((double)x[k] - shift);
  }
  return NULL;
}

static Status row_workspace(KernelPrepare *p) {
  Rows rows;
  TRY(rows_of(p->node, &p->node->inputs[0]->type, &rows));
  p->workspace_bytes = rows.inner == 1 ? rows.n * (int64_t)sizeof(float) : 0;
  return NULL;
}

static Status log_softmax_grad(Grad *g) {
  if (g->dy[0] && g->wanted[0])
    g->dx[0] =
        emit(g->emit, &op_LogSoftmaxGrad, INPUTS(g->node->outputs[0], g->dy[0]), ATTRS(A_INT("axis", ((const SoftmaxAttrs *)g->node->attrs)->axis)));
  return NULL;
}

const Op op_LogSoftmax = {
    .name = "LogSoftmax", .domain = "", .policy = POLICY_F32, .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1, .attrs = softmax_attrs,
    .attrs_bytes = sizeof(SoftmaxAttrs), .infer = softmax_infer, .grad = log_softmax_grad, .run_ref = log_softmax_ref,
    .run_cpu = log_softmax_cpu, .workspace = row_workspace, .alias = softmax_alias, .cost = cost_softmax};

// ---- LogSoftmaxGrad: dx = dy - exp(y) sum(dy); nothing where no gradient reaches the row, as in SoftmaxGrad ----------------------------

static Status log_softmax_grad_ref(const KernelContext *c) {
  Rows rows;
  TRY(rows_of(c->node, c->in[SOFTMAX_Y].type, &rows));
  for (int64_t o = 0; o < rows.outer * rows.inner; o++) {
    int64_t base = o / rows.inner * rows.n * rows.inner + o % rows.inner;
    double sum = 0;
    bool reached = false;
    for (int64_t k = 0; k < rows.n; k++) {
      sum += in_f(c, SOFTMAX_DY, base + k * rows.inner);
      reached |= in_f(c, SOFTMAX_DY, base + k * rows.inner) != 0;
    }
    for (int64_t k = 0; k < rows.n; k++) {
      int64_t e = base + k * rows.inner;
      out_f(c, 0, e, reached ? in_f(c, SOFTMAX_DY, e) - exp(in_f(c, SOFTMAX_Y, e)) * sum : 0);
    }
  }
  return NULL;
}

static Status log_softmax_grad_cpu(const KernelContext *c) {
  Rows rows;
  TRY(rows_of(c->node, c->in[SOFTMAX_Y].type, &rows));
  if (rows.inner != 1) return log_softmax_grad_ref(c);
  float *space = c->workspace;
  for (int64_t o = 0; o < rows.outer; o++) {
    const float *y = (const float *)c->in[SOFTMAX_Y].data + o * rows.n, *dy = (const float *)c->in[SOFTMAX_DY].data + o * rows.n;
    float *dx = (float *)c->out[0].data + o * rows.n;
    if (all_zero(dy, rows.n)) {
      memset(dx, 0, (size_t)rows.n * sizeof(float));
      continue;
    }
    float sum = (float)c->loops->sum(dy, rows.n);
    c->loops->exp(space, y, rows.n);
    for (int64_t k = 0; k < rows.n; k++) dx[k] = dy[k] - space[k] * sum;
  }
  return NULL;
}

const Op op_LogSoftmaxGrad = {
    .name = "LogSoftmaxGrad", .domain = "tessera", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .attrs = softmax_attrs,
    .attrs_bytes = sizeof(SoftmaxAttrs), .infer = softmax_grad_infer, .run_ref = log_softmax_grad_ref, .run_cpu = log_softmax_grad_cpu,
    .workspace = row_workspace, .alias = softmax_grad_alias, .cost = cost_softmax};

// ---- Hardmax: 1 at the first maximum. No gradient: it is constant almost everywhere ------------------------------------------------------

static Status hardmax_ref(const KernelContext *c) {
  Rows rows;
  TRY(rows_of(c->node, c->in[0].type, &rows));
  for (int64_t o = 0; o < rows.outer * rows.inner && rows.n; o++) {
    int64_t base = o / rows.inner * rows.n * rows.inner + o % rows.inner, best = 0;
    for (int64_t k = 1; k < rows.n; k++)
      if (in_f(c, 0, base + k * rows.inner) > in_f(c, 0, base + best * rows.inner)) best = k;
    for (int64_t k = 0; k < rows.n; k++) out_f(c, 0, base + k * rows.inner, k == best);
  }
  return NULL;
}

const Op op_Hardmax = {
    .name = "Hardmax", .domain = "", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 1,
    .attrs = softmax_attrs, .attrs_bytes = sizeof(SoftmaxAttrs), .infer = softmax_infer, .run_ref = hardmax_ref};
