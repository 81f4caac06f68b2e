// LayerNormalization and RMSNormalization (which takes no mean off) over the axes from `axis` on, and their gradients, which compute the
// statistics again instead of keeping them.
#include <math.h>
#include <string.h>

#include "cost.h"
#include "kernel.h"
#include "ops.h"

typedef struct NormAttrs { int64_t axis, stash_type; float epsilon; } NormAttrs;
static const AttrSpec norm_attrs[] = {
    {"axis", ATTR_INT, offsetof(NormAttrs, axis), .default_int = -1, .help = "first axis of a normalised row"},
    {"epsilon", ATTR_FLOAT, offsetof(NormAttrs, epsilon), .default_float = 1e-5f, .help = "added to the variance"},
    {"stash_type", ATTR_INT, offsetof(NormAttrs, stash_type), .default_int = 1, .help = "type of the statistics by its number; 1: float"},
    {0},
};

// x as [rows, n]; `row` is the type of one row, against which scale and bias are broadcast.
typedef struct Rows { int64_t rows, n; int axis; Type row; } Rows;

static Status rows_of(const Node *node, const Type *x, Rows *out) {
  int axis;
  TRY(type_axis(((const NormAttrs *)node->attrs)->axis, x->rank, node->name, &axis));
  Rows r = {.rows = 1, .axis = axis, .row = type_make(x->dtype, x->rank - axis, x->dims + axis)};
  for (int d = 0; d < axis; d++) r.rows *= x->dims[d];
  r.n = type_elems(&r.row);
  *out = r;
  return NULL;
}

// scale or bias: broadcasts to one row (leading axes of size 1 are fine).
static Status factor_check(const Node *node, const char *what, const Value *v, const Rows *rows) {
  Type type = v->type, joined;
  while (type.rank > rows->row.rank && type.dims[0] == 1) {
    type.rank--;
    memmove(type.dims, type.dims + 1, sizeof(int64_t) * (size_t)type.rank);
  }
  char have[160], want[160];
  if (type.dtype == rows->row.dtype && type.rank <= rows->row.rank) {
    TRY(type_broadcast(&type, &rows->row, node->name, &joined));
    if (type_same_shape(&joined, &rows->row)) return NULL;
  }
  FAIL(MALFORMED, node->name, "%s '%s' %s does not broadcast to a normalised row %s", what, v->name, type_text(&v->type, have, sizeof have),
       type_text(&rows->row, want, sizeof want));
}

// Element of scale or bias that belongs to element `at` of a row.
typedef struct Factor { int64_t strides[RANK_MAX]; bool whole; } Factor;

static Factor factor_of(const Type *type, const Rows *rows) {
  Factor f = {.whole = type_elems(type) == rows->n};
  Type trimmed = *type;
  while (trimmed.rank > rows->row.rank) {
    trimmed.rank--;
    memmove(trimmed.dims, trimmed.dims + 1, sizeof(int64_t) * (size_t)trimmed.rank);
  }
  type_strides(&trimmed, &rows->row, f.strides);
  return f;
}

static int64_t factor_at(const Factor *f, const Rows *rows, int64_t at) {
  if (f->whole) return at;
  int64_t element = 0;
  for (int d = rows->row.rank - 1; d >= 0; d--) {
    element += at % rows->row.dims[d] * f->strides[d];
    at /= rows->row.dims[d];
  }
  return element;
}

// run_cpu: one row's worth of scale or bias, broadcast into workspace where it is smaller.
static const float *factor_row(const Tensor *t, const Rows *rows, float *space) {
  Factor f = factor_of(t->type, rows);
  const float *data = t->data;
  if (f.whole) return data;
  for (int64_t at = 0; at < rows->n; at++) space[at] = data[factor_at(&f, rows, at)];
  return space;
}

static bool takes_mean(const Node *node) { return node->op == &op_LayerNormalization || node->op == &op_LayerNormalizationGrad; }

typedef struct Moments { double mean, inverse; } Moments;   // inverse = 1 / sqrt(variance + epsilon)

static Moments moments_ref(const KernelContext *c, int x, const Rows *rows, int64_t base) {
  double sum = 0, squares = 0;
  for (int64_t k = 0; k < rows->n && takes_mean(c->node); k++) sum += in_f(c, x, base + k);
  double mean = sum / (double)rows->n;
  for (int64_t k = 0; k < rows->n; k++) {
    double d = in_f(c, x, base + k) - mean;
    squares += d * d;
  }
  return (Moments){mean, 1 / sqrt(squares / (double)rows->n + (double)((const NormAttrs *)c->node->attrs)->epsilon)};
}

// Leaves the centred row in `centred`; the mean is rounded to f32 before it is taken off, and the variance is corrected for that.
static Moments moments_cpu(const KernelContext *c, const float *x, float *centred, int64_t n) {
  if (!takes_mean(c->node)) {
    memcpy(centred, x, (size_t)n * sizeof(float));
    return (Moments){0, 1 / sqrt(c->loops->sum_squares(x, 1, n) / (double)n + (double)((const NormAttrs *)c->node->attrs)->epsilon)};
  }
  double mean = c->loops->sum(x, n) / (double)n, off = mean - (double)(float)mean;
  c->loops->add_s(centred, x, -(float)mean, n);
  double variance = c->loops->sum_squares(centred, 1, n) / (double)n - off * off;
  if (variance < 0) variance = 0;
  return (Moments){mean, 1 / sqrt(variance + (double)((const NormAttrs *)c->node->attrs)->epsilon)};
}

// ---- LayerNormalization ----------------------------------------------------------------------------------------------------------

static Status norm_infer(Node *node, Arena *arena) {
  const NormAttrs *a = node->attrs;
  const Type *x = &node->inputs[0]->type;
  Rows rows;
  if (!dtype_is_float(x->dtype)) FAIL(MALFORMED, node->name, "'%s' is not of a float type", node->inputs[0]->name);
  if (a->stash_type < 0 || a->stash_type > INT32_MAX || !dtype_is_float((Dtype)a->stash_type))
    FAIL(MALFORMED, node->name, "attribute stash_type = %lld is no float type", (long long)a->stash_type);
  TRY(rows_of(node, x, &rows));
  TRY(factor_check(node, "scale", node->inputs[1], &rows));
  if (node->n_inputs > 2 && node->inputs[2]) TRY(factor_check(node, "bias", node->inputs[2], &rows));
  if (node->outputs[0]) node->outputs[0]->type = *x;
  Type statistic = *x;
  statistic.dtype = (Dtype)a->stash_type;   // --precision fp64 widens the attribute
  for (int d = rows.axis; d < x->rank; d++) statistic.dims[d] = 1;
  for (int o = 1; o < node->n_outputs; o++)
    if (node->outputs[o]) node->outputs[o]->type = statistic;
  return NULL;
}

static void statistics_out(const KernelContext *c, int64_t row, Moments m) {
  if (has_output(c, 1)) out_f(c, 1, row, m.mean);
  if (has_output(c, 2)) out_f(c, 2, row, m.inverse);
}

static Status norm_ref(const KernelContext *c) {
  Rows rows;
  TRY(rows_of(c->node, c->in[0].type, &rows));
  Factor scale = factor_of(c->in[1].type, &rows), bias = has_input(c, 2) ? factor_of(c->in[2].type, &rows) : (Factor){0};
  for (int64_t r = 0; r < rows.rows; r++) {
    Moments m = moments_ref(c, 0, &rows, r * rows.n);
    statistics_out(c, r, m);
    for (int64_t k = 0; has_output(c, 0) && k < rows.n; k++) {
      double y = (in_f(c, 0, r * rows.n + k) - m.mean) * m.inverse * in_f(c, 1, factor_at(&scale, &rows, k));
      out_f(c, 0, r * rows.n + k, has_input(c, 2) ? y + in_f(c, 2, factor_at(&bias, &rows, k)) : y);
    }
  }
  return NULL;
}

static Status norm_cpu(const KernelContext *c) {
  Rows rows;
  TRY(rows_of(c->node, c->in[0].type, &rows));
  float *row = c->workspace;
  const float *scale = factor_row(&c->in[1], &rows, row + rows.n);
  const float *bias = has_input(c, 2) ? factor_row(&c->in[2], &rows, row + 2 * rows.n) : NULL;
  for (int64_t r = 0; r < rows.rows; r++) {
    Moments m = moments_cpu(c, (const float *)c->in[0].data + r * rows.n, row, rows.n);
    statistics_out(c, r, m);
    if (!has_output(c, 0)) continue;
    float *y = (float *)c->out[0].data + r * rows.n;
    c->loops->mul_s(row, row, (float)m.inverse, rows.n);
    c->loops->mul(bias ? row : y, row, scale, rows.n);
    if (bias) c->loops->add(y, row, bias, rows.n);
  }
  return NULL;
}

static Status norm_workspace(KernelPrepare *p) {
  Rows rows;
  TRY(rows_of(p->node, &p->node->inputs[0]->type, &rows));
  p->workspace_bytes = 3 * rows.n * (int64_t)sizeof(float);
  return NULL;
}

static Value *dy_of(const Grad *g, int output) { return output < g->node->n_outputs && g->node->outputs[output] ? g->dy[output] : NULL; }

// What the statistics give to x: dmean / n, and with s = 1 / sqrt(variance + epsilon): -s^3 (x - mean) ds / n. Computed in their type.
static Value *statistics_grad(Grad *g, const Rows *rows) {
  Emit *e = g->emit;
  Value *x = g->node->inputs[0], *dmean = dy_of(g, 1), *ds = dy_of(g, 2), *dx = NULL;
  Dtype dtype = (Dtype)((const NormAttrs *)g->node->attrs)->stash_type;
  Value *per_elem = emit_float(e, "per_elem", dtype, 1 / (double)rows->n);
  if (ds) {
    int64_t axes[RANK_MAX];
    for (int d = rows->axis; d < x->type.rank; d++) axes[d - rows->axis] = d;
    Value *s = g->node->outputs[2], *wide = emit(e, &op_Cast, INPUTS(x), ATTRS(A_INT("to", dtype)));
    Value *mean = emit(e, &op_ReduceMean, INPUTS(wide, emit_int64s(e, "axes", axes, rows->row.rank)), NULL);
    Value *cube = emit(e, &op_Mul, INPUTS(emit(e, &op_Mul, INPUTS(s, s), NULL), s), NULL);
    Value *factor = emit(e, &op_Neg, INPUTS(emit(e, &op_Mul, INPUTS(emit(e, &op_Mul, INPUTS(ds, cube), NULL), per_elem), NULL)), NULL);
    dx = emit(e, &op_Mul, INPUTS(emit(e, &op_Sub, INPUTS(wide, mean), NULL), factor), NULL);
  }
  if (dmean) {
    Value *part = emit(e, &op_Mul, INPUTS(dmean, per_elem), NULL);
    dx = dx ? emit(e, &op_Add, INPUTS(dx, part), NULL)
            : emit(e, &op_Expand, INPUTS(part, emit_int64s(e, "shape", x->type.dims, x->type.rank)), NULL);
  }
  return emit(e, &op_Cast, INPUTS(dx), ATTRS(A_INT("to", x->type.dtype)));
}

static Status norm_grad(Grad *g) {
  const Node *node = g->node;
  const NormAttrs *a = node->attrs;
  Rows rows;
  TRY(rows_of(node, &node->inputs[0]->type, &rows));
  if (g->wanted[0] && rows.n && (dy_of(g, 1) || dy_of(g, 2))) g->dx[0] = statistics_grad(g, &rows);
  if (!dy_of(g, 0)) return NULL;
  bool has_bias = node->n_inputs > 2 && node->inputs[2];
  bool mean = takes_mean(node);
  Node *grad = emit_node(g->emit, mean ? &op_LayerNormalizationGrad : &op_RMSNormalizationGrad, INPUTS(g->dy[0], node->inputs[0], node->inputs[1]),
                         mean ? 3 : 2, (const bool[]){g->wanted[0], g->wanted[1], has_bias && g->wanted[2]},
                         ATTRS(A_INT("axis", a->axis), A_FLOAT("epsilon", a->epsilon)));
  if (!grad) return NULL;
  if (g->wanted[0]) g->dx[0] = g->dx[0] ? emit(g->emit, &op_Add, INPUTS(grad->outputs[0], g->dx[0]), NULL) : grad->outputs[0];
  for (int i = 1; i < (has_bias ? 3 : 2); i++)
    if (g->wanted[i]) g->dx[i] = emit_sum_to(g->emit, grad->outputs[i], &node->inputs[i]->type);
  return NULL;
}

static bool norm_alias(const Node *node, int output, int input, Alias *out) {
  if (output || input) return false;   // Y over X: each row is read before it is written
  *out = (Alias){.kind = ALIAS_INPLACE, .input = 0};
  return true;
}

const Op op_LayerNormalization = {
    .name = "LayerNormalization", .domain = "", .policy = POLICY_F32, .min_inputs = 2, .max_inputs = 3, .min_outputs = 1, .max_outputs = 3, .attrs = norm_attrs,
    .attrs_bytes = sizeof(NormAttrs), .infer = norm_infer, .grad = norm_grad, .run_ref = norm_ref, .run_cpu = norm_cpu,
    .workspace = norm_workspace, .alias = norm_alias, .cost = cost_norm};
const Op op_RMSNormalization = {
    .name = "RMSNormalization", .domain = "", .policy = POLICY_F32, .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .attrs = norm_attrs,
    .attrs_bytes = sizeof(NormAttrs), .infer = norm_infer, .grad = norm_grad, .run_ref = norm_ref, .run_cpu = norm_cpu,
    .workspace = norm_workspace, .alias = norm_alias, .cost = cost_norm};

// ---- LayerNormalizationGrad, RMSNormalizationGrad -------------------------------------------------------------------------------
// With h = (x - mean) / sd and g = dy scale: dx = (g - mean(g) - h mean(g h)) / sd (RMS: without mean(g)), dscale = sum of dy h over rows,
// dbias = sum of dy.

enum { GRAD_DY, GRAD_X, GRAD_SCALE };

static Status norm_grad_infer(Node *node, Arena *arena) {
  const Type *x = &node->inputs[GRAD_X]->type;
  Rows rows;
  if (!dtype_is_float(x->dtype) || !type_equal(&node->inputs[GRAD_DY]->type, x))
    FAIL(MALFORMED, node->name, "'%s' and '%s' must be floats of one type", node->inputs[GRAD_DY]->name, node->inputs[GRAD_X]->name);
  TRY(rows_of(node, x, &rows));
  TRY(factor_check(node, "scale", node->inputs[GRAD_SCALE], &rows));
  if (node->outputs[0]) node->outputs[0]->type = *x;
  for (int o = 1; o < node->n_outputs; o++)
    if (node->outputs[o]) node->outputs[o]->type = rows.row;
  return NULL;
}

enum { COLUMN_BLOCK = 64 };   // columns whose sums over rows are open at once in the reference

static void column_sums_ref(const KernelContext *c, const Rows *rows, int64_t from, int64_t columns) {
  double dscale[COLUMN_BLOCK] = {0}, dbias[COLUMN_BLOCK] = {0};
  for (int64_t r = 0; r < rows->rows; r++) {
    Moments m = moments_ref(c, GRAD_X, rows, r * rows->n);
    for (int64_t k = 0; k < columns; k++) {
      int64_t e = r * rows->n + from + k;
      dscale[k] += in_f(c, GRAD_DY, e) * (in_f(c, GRAD_X, e) - m.mean) * m.inverse;
      dbias[k] += in_f(c, GRAD_DY, e);
    }
  }
  for (int64_t k = 0; k < columns; k++) {
    if (has_output(c, 1)) out_f(c, 1, from + k, dscale[k]);
    if (has_output(c, 2)) out_f(c, 2, from + k, dbias[k]);
  }
}

static Status norm_grad_ref(const KernelContext *c) {
  Rows rows;
  TRY(rows_of(c->node, c->in[GRAD_X].type, &rows));
  Factor scale = factor_of(c->in[GRAD_SCALE].type, &rows);
  for (int64_t k = 0; k < rows.n; k += COLUMN_BLOCK) column_sums_ref(c, &rows, k, rows.n - k < COLUMN_BLOCK ? rows.n - k : COLUMN_BLOCK);
  for (int64_t r = 0; r < rows.rows && has_output(c, 0); r++) {
    int64_t base = r * rows.n;
    Moments m = moments_ref(c, GRAD_X, &rows, base);
    double sum = 0, dot = 0;
    for (int64_t k = 0; k < rows.n; k++) {
      double g = in_f(c, GRAD_DY, base + k) * in_f(c, GRAD_SCALE, factor_at(&scale, &rows, k));
      if (takes_mean(c->node)) sum += g;
      dot += g * (in_f(c, GRAD_X, base + k) - m.mean) * m.inverse;
    }
    for (int64_t k = 0; k < rows.n; k++) {
      double g = in_f(c, GRAD_DY, base + k) * in_f(c, GRAD_SCALE, factor_at(&scale, &rows, k));
      double h = (in_f(c, GRAD_X, base + k) - m.mean) * m.inverse;
      out_f(c, 0, base + k, m.inverse * (g - sum / (double)rows.n - h * dot / (double)rows.n));
    }
  }
  return NULL;
}

enum { SUM_BLOCK_ROWS = 16 };   // rows whose dscale and dbias are added in f32; the blocks are added in f64. By shape only

// f64 sums += f32 block sums, which become zero.
static void block_flush(double *sums, float *block, int64_t n) {
  for (int64_t k = 0; k < n; k++) {
    sums[k] += (double)block[k];
    block[k] = 0;
  }
}

typedef struct GradSpace { double *dscale, *dbias; float *dscale_block, *dbias_block, *h, *g, *scale; } GradSpace;

static GradSpace grad_space(void *workspace, int64_t n) {
  double *d = workspace;
  float *f = (float *)(d + 2 * n);
  return (GradSpace){.dscale = d, .dbias = d + n, .dscale_block = f, .dbias_block = f + n, .h = f + 2 * n, .g = f + 3 * n, .scale = f + 4 * n};
}
static int64_t grad_space_bytes(int64_t n) { return n * (int64_t)(2 * sizeof(double) + 5 * sizeof(float)); }

static void row_grad_cpu(const KernelContext *c, const GradSpace *s, const float *scale, const float *dy, const float *x, float *dx, int64_t n) {
  const Loops *loops = c->loops;
  Moments m = moments_cpu(c, x, s->h, n);
  loops->mul_s(s->h, s->h, (float)m.inverse, n);
  loops->mul(s->g, dy, s->h, n);
  loops->add(s->dscale_block, s->dscale_block, s->g, n);
  loops->add(s->dbias_block, s->dbias_block, dy, n);
  if (!dx) return;
  loops->mul(s->g, dy, scale, n);
  double mean_g = takes_mean(c->node) ? loops->sum(s->g, n) / (double)n : 0, mean_gh = loops->dot(s->g, s->h, n) / (double)n;
  float inverse = (float)m.inverse;
  loops->add_s(s->g, s->g, -(float)mean_g, n);
  loops->axpy(s->g, -(float)mean_gh, s->h, n);
  loops->mul_s(dx, s->g, inverse, n);
}

static Status norm_grad_cpu(const KernelContext *c) {
  Rows rows;
  TRY(rows_of(c->node, c->in[GRAD_X].type, &rows));
  int64_t n = rows.n;
  GradSpace s = grad_space(c->workspace, n);
  const float *scale = factor_row(&c->in[GRAD_SCALE], &rows, s.scale);
  if (n) memset(s.dscale, 0, (size_t)n * (2 * sizeof(double) + 2 * sizeof(float)));   // both sums and both blocks
  for (int64_t r = 0; r < rows.rows; r++) {
    row_grad_cpu(c, &s, scale, (const float *)c->in[GRAD_DY].data + r * n, (const float *)c->in[GRAD_X].data + r * n,
                 has_output(c, 0) ? (float *)c->out[0].data + r * n : NULL, n);
    if ((r + 1) % SUM_BLOCK_ROWS && r + 1 < rows.rows) continue;
    block_flush(s.dscale, s.dscale_block, n);
    block_flush(s.dbias, s.dbias_block, n);
  }
  for (int64_t k = 0; k < n; k++) {
    if (has_output(c, 1)) ((float *)c->out[1].data)[k] = (float)s.dscale[k];
    if (has_output(c, 2)) ((float *)c->out[2].data)[k] = (float)s.dbias[k];
  }
  return NULL;
}

static Status norm_grad_workspace(KernelPrepare *p) {
  Rows rows;
  TRY(rows_of(p->node, &p->node->inputs[GRAD_X]->type, &rows));
  p->workspace_bytes = grad_space_bytes(rows.n);
  return NULL;
}

static bool norm_grad_alias(const Node *node, int output, int input, Alias *out) {
  if (output != 0 || input == GRAD_SCALE) return false;   // dx over dy or x: each row is read before it is written
  *out = (Alias){.kind = ALIAS_INPLACE, .input = input};
  return true;
}

static void layer_norm_grad_cost(const Node *node, NodeCost *cost) {
  cost->work[WORK_SUM] += 4 * cost_largest_elems(node);
  cost->work[WORK_ARITHMETIC] += 8 * cost_largest_elems(node);
}

const Op op_LayerNormalizationGrad = {
    .name = "LayerNormalizationGrad", .domain = "tessera", .min_inputs = 3, .max_inputs = 3, .min_outputs = 1, .max_outputs = 3,
    .attrs = norm_attrs, .attrs_bytes = sizeof(NormAttrs), .infer = norm_grad_infer, .run_ref = norm_grad_ref, .run_cpu = norm_grad_cpu,
    .workspace = norm_grad_workspace, .alias = norm_grad_alias, .cost = layer_norm_grad_cost};
const Op op_RMSNormalizationGrad = {
    .name = "RMSNormalizationGrad", .domain = "tessera", .min_inputs = 3, .max_inputs = 3, .min_outputs = 1, .max_outputs = 2,
    .attrs = norm_attrs, .attrs_bytes = sizeof(NormAttrs), .infer = norm_grad_infer, .run_ref = norm_grad_ref, .run_cpu = norm_grad_cpu,
    .workspace = norm_grad_workspace, .alias = norm_grad_alias, .cost = layer_norm_grad_cost};
