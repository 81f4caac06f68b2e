// Muon (Jordan et al., 2024) as torch.optim.Muon computes it, for matrices: b = mu b + (1 - mu) g; the direction is (1 - mu) g + mu b with Nesterov, else
// b; it is made orthogonal by five steps of Newton and Schulz over the whole matrix; p = p (1 - lr decay) - lr ratio O. PyTorch iterates in bfloat16,
// this in the matrix's own type.
#include <math.h>
#include <stdlib.h>

#include "cost.h"
#include "dnnl_primitive.h"
#include "limbs.h"
#include "ops.h"
#include "optimizer.h"
#include "tensor_piece.h"

// ---- MuonDirection ------------------------------------------------------------------------------------------------------------

typedef struct MuonAttrs { const char *momentum; int64_t nesterov; } MuonAttrs;
static const AttrSpec muon_attrs[] = {
    {"momentum", ATTR_STRING, offsetof(MuonAttrs, momentum), .default_string = "0.95", .help = "decay of the mean gradient, a decimal"},
    {"nesterov", ATTR_INT, offsetof(MuonAttrs, nesterov), .default_int = 1, .min = 0, .max = 1, .help = "Nesterov momentum"},
    {0},
};

static Status muon_infer(Node *node, Arena *arena) {
  double momentum;
  TRY(kernel_parse_decimal(node, "momentum", ((const MuonAttrs *)node->attrs)->momentum, 0, 1, &momentum));
  return step_infer(node);
}

static Status muon_ref(const KernelContext *c) {
  const MuonAttrs *a = c->node->attrs;
  double mu, scale = in_f(c, IN_SCALE, 0);
  TRY(kernel_parse_decimal(c->node, "momentum", a->momentum, 0, 1, &mu));
  direction_carry(c);
  for (int64_t e = 0, n = in_elems(c, IN_PARAM); e < n; e++) {
    double g = step_grad(c, e, scale), b = in_f(c, IN_STATE, e);
    b += (1 - mu) * (g - b);
    out_f(c, 1, e, b);
    out_f(c, 0, e, a->nesterov ? g + mu * (b - g) : b);
  }
  return STATUS_OK;
}

static Status muon_cpu(const KernelContext *c) {
  const MuonAttrs *a = c->node->attrs;
  double mu;
  TRY(kernel_parse_decimal(c->node, "momentum", a->momentum, 0, 1, &mu));
  direction_carry(c);
  float *direction = c->out[0].data, *b = c->out[1].data, scale = (float)in_f(c, IN_SCALE, 0), weight = (float)mu, rest = (float)(1 - mu);
  const float *grad = c->in[IN_GRAD].data;
  for (int64_t e = 0, n = in_elems(c, IN_PARAM); e < n; e++) {
    float g = grad[e] * scale;
    b[e] = b[e] + rest * (g - b[e]);
    direction[e] = a->nesterov ? g + weight * (b[e] - g) : b[e];
  }
  return STATUS_OK;
}

const Op op_MuonDirection = {
    .name = "MuonDirection", .domain = "tessera", .min_inputs = 6, .max_inputs = 6, .min_outputs = 2, .max_outputs = 2, .flags = OP_OPTIMIZER | OP_DIRECTION,
    .nondifferentiable = 0x3f, .attrs = muon_attrs, .attrs_bytes = sizeof(MuonAttrs), .infer = muon_infer, .run_ref = muon_ref,
    .run_cpu = muon_cpu, .alias = direction_alias};

// ---- MuonApply ----------------------------------------------------------------------------------------------------------------

typedef struct ApplyAttrs { PieceAttrs pieces; AttrInts rows, columns; const char *weight_decay, *adjust; } ApplyAttrs;
static const AttrSpec apply_attrs[] = {
    PIECE_ATTRS,
    {"rows", ATTR_INTS, offsetof(ApplyAttrs, rows), .min = 0, .max = INT64_MAX, .help = "of each matrix"},
    {"columns", ATTR_INTS, offsetof(ApplyAttrs, columns), .min = 0, .max = INT64_MAX, .help = "of each matrix"},
    {"weight_decay", ATTR_STRING, offsetof(ApplyAttrs, weight_decay), .default_string = "0", .help = "a decimal; times the learning rate it shrinks the parameter"},
    {"adjust", ATTR_STRING, offsetof(ApplyAttrs, adjust), .default_string = "original", .help = "learning rate by shape: original or match-rms-adamw"},
    {0},
};

enum { NEWTON_STEPS = 5 };
static const double newton[3] = {3.4445, -4.7750, 2.0315}, norm_min = 1e-7;

// The shape that is iterated: the shorter side first.
typedef struct Shape { int64_t m, n; bool transposed; } Shape;
static Shape shape_of(const ApplyAttrs *a, int64_t i) {
  int64_t rows = a->rows.items[i], columns = a->columns.items[i];
  return rows > columns ? (Shape){columns, rows, true} : (Shape){rows, columns, false};
}

static Status apply_infer(Node *node, Arena *arena) {
  const ApplyAttrs *a = node->attrs;
  const Type *param = &node->inputs[IN_PARAM]->type, *direction = &node->inputs[IN_DIRECTION]->type, *rate = &node->inputs[IN_RATE]->type;
  double decay;
  TRY(kernel_parse_decimal(node, "weight_decay", a->weight_decay, 0, INFINITY, &decay));
  TRY(pieces_check(node, param));
  if (!dtype_is_float(param->dtype) || direction->dtype != param->dtype || direction->rank != 1 || direction->dims[0] / a->pieces.parts != param->dims[0] ||
      direction->dims[0] % a->pieces.parts)
    FAIL(MALFORMED, node->name, "the direction must be that of the whole bucket: %lld times the parameters", (long long)a->pieces.parts);
  if (rate->dtype != DTYPE_F64 || rate->rank) FAIL(MALFORMED, node->name, "lr must be a double scalar");
  if (strcmp(a->adjust, "original") && strcmp(a->adjust, "match-rms-adamw"))
    FAIL(MALFORMED, node->name, "attribute adjust = \"%s\" must be original or match-rms-adamw", a->adjust);
  if (a->rows.n != a->pieces.starts.n || a->columns.n != a->pieces.starts.n) FAIL(MALFORMED, node->name, "each parameter needs rows and columns");
  for (int64_t i = 0; i < a->rows.n; i++) {
    int64_t elems;
    if (__builtin_mul_overflow(a->rows.items[i], a->columns.items[i], &elems) || elems != a->pieces.sizes.items[i])
      FAIL(MALFORMED, node->name, "parameter %lld of %lld elements is no %lld x %lld matrix", (long long)i, (long long)a->pieces.sizes.items[i],
           (long long)a->rows.items[i], (long long)a->columns.items[i]);
  }
  node->outputs[0]->type = *param;
  return STATUS_OK;
}

// The learning rate of a matrix.
static double adjusted(const ApplyAttrs *a, int64_t i, double lr) {
  double rows = (double)a->rows.items[i], columns = (double)a->columns.items[i];
  return strcmp(a->adjust, "original") ? lr * 0.2 * sqrt(fmax(rows, columns)) : lr * sqrt(fmax(1, rows / columns));
}

// Element e of the matrix as it lies, in what was iterated.
static int64_t iterated_index(Shape s, int64_t e) { return s.transposed ? e % s.m * s.n + e / s.m : e; }

// ---- In double ----

// out[m][n] = alpha a[m][k] b[k][n] + beta base[m][n], b transposed on request. `base` may be NULL.
static void multiply(double *out, const double *a, const double *b, bool b_transposed, int64_t m, int64_t n, int64_t k, double alpha, const double *base, double beta) {
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      double sum = 0;
      for (int64_t l = 0; l < k; l++) sum += a[i * k + l] * (b_transposed ? b[j * k + l] : b[l * n + j]);
      out[i * n + j] = alpha * sum + (base ? beta * base[i * n + j] : 0);
    }
}

// space: 2 m n + 2 m m doubles. The result is at its start.
static void iterate_ref(const KernelContext *c, int64_t start, Shape s, double *space) {
  int64_t mn = s.m * s.n, mm = s.m * s.m;
  double *x = space, *next = x + mn, *gram = next + mn, *update = gram + mm, sum = 0;
  for (int64_t e = 0; e < mn; e++) {
    double v = in_f(c, IN_DIRECTION, start + e);
    x[iterated_index(s, e)] = v;
    sum += v * v;
  }
  double scale = 1 / fmax(sqrt(sum), norm_min);
  for (int64_t e = 0; e < mn; e++) x[e] *= scale;
  for (int t = 0; t < NEWTON_STEPS; t++) {
    multiply(gram, x, x, true, s.m, s.m, s.n, 1, NULL, 0);
    multiply(update, gram, gram, false, s.m, s.m, s.m, newton[2], gram, newton[1]);
    multiply(next, update, x, false, s.m, s.n, s.m, 1, x, newton[0]);
    memcpy(x, next, (size_t)mn * sizeof *x);
  }
}

// What both kernels begin with; outside a plan the result starts as a copy.
static Status apply_begin(const KernelContext *c, double *decay, int64_t *rank) {
  TRY(kernel_parse_decimal(c->node, "weight_decay", ((const ApplyAttrs *)c->node->attrs)->weight_decay, 0, INFINITY, decay));
  TRY(piece_rank(c, rank));
  copy_unless_same(c->out[0].data, c->in[IN_PARAM].data, type_bytes(c->out[0].type));
  return STATUS_OK;
}

static Status apply_ref(const KernelContext *c) {
  const ApplyAttrs *a = c->node->attrs;
  double decay, lr = in_f(c, IN_RATE, 0);
  int64_t rank;
  TRY(apply_begin(c, &decay, &rank));
  for (int64_t i = 0; i < a->rows.n; i++) {
    Piece p = piece_of(&a->pieces, i, in_elems(c, IN_PARAM), rank);
    Shape s = shape_of(a, i);
    if (!p.n) continue;
    double *space = malloc((size_t)(2 * s.m * s.n + 2 * s.m * s.m) * sizeof *space), rate = adjusted(a, i, lr);
    if (!space) FAIL(RESOURCE, c->node->name, "no memory for a matrix of %lld x %lld", (long long)s.m, (long long)s.n);
    iterate_ref(c, a->pieces.starts.items[i], s, space);
    for (int64_t e = 0; e < p.n; e++) {
      double param = element_read(c->out[0].data, c->out[0].type->dtype, p.at + e);
      out_f(c, 0, p.at + e, param * (1 - lr * decay) - rate * space[iterated_index(s, p.first + e)]);
    }
    free(space);
  }
  return STATUS_OK;
}

// ---- In float, by the matrix library ----

typedef struct Calls { int64_t m, n; KernelPrepare gram, square, product; } Calls;    // of one shape
typedef struct MuonPrepared { int64_t n; Calls *calls; int64_t space_elems; } MuonPrepared;

static void prepared_destroy(void *self) {
  MuonPrepared *p = self;
  for (int64_t i = 0; p && i < p->n; i++) {
    KernelPrepare *const all[] = {&p->calls[i].gram, &p->calls[i].square, &p->calls[i].product};
    for (int k = 0; k < 3; k++)
      if (all[k]->destroy) all[k]->destroy(all[k]->prepared);
  }
  if (p) free(p->calls);
  free(p);
}

// The products of one shape; `make`: or only how much they need.
static Status calls_make(const KernelPrepare *prepare, Shape s, bool make, Calls *out) {
  *out = (Calls){.m = s.m, .n = s.n};
  out->gram = out->square = out->product = (KernelPrepare){.node = prepare->node, .isa = prepare->isa};
  const Product gram = {.dtype = DTYPE_F32, .m = s.m, .n = s.m, .k = s.n, .a_row = s.n, .a_col = 1, .b_row = 1, .b_col = s.n};
  const Product square = {.dtype = DTYPE_F32, .m = s.m, .n = s.m, .k = s.m, .a_row = s.m, .a_col = 1, .b_row = s.m, .b_col = 1};
  const Product product = {.dtype = DTYPE_F32, .m = s.m, .n = s.n, .k = s.m, .a_row = s.m, .a_col = 1, .b_row = s.n, .b_col = 1};
  TRY(library_matmul(&out->gram, &(LibraryMatmul){.product = gram, .alpha = 1}, make));
  TRY(library_matmul(&out->square, &(LibraryMatmul){.product = square, .alpha = 1}, make));
  return library_matmul(&out->product, &(LibraryMatmul){.product = product, .alpha = 1}, make);
}

static bool is_first_of_shape(const ApplyAttrs *a, int64_t i) {
  Shape s = shape_of(a, i);
  if (!s.m) return false;
  for (int64_t k = 0; k < i; k++)
    if (shape_of(a, k).m == s.m && shape_of(a, k).n == s.n) return false;
  return true;
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t space_elems(const ApplyAttrs *a) {
  int64_t most = 0;
  for (int64_t i = 0; i < a->rows.n; i++) {
    Shape s = shape_of(a, i);
    most = larger(most, 2 * s.m * s.n + 2 * s.m * s.m);
  }
  return (most + 15) / 16 * 16;              // what the library takes behind it stays aligned
}

static Status apply_workspace(KernelPrepare *prepare) {
  const ApplyAttrs *a = prepare->node->attrs;
  int64_t library = 0;
  for (int64_t i = 0; i < a->rows.n; i++) {
    if (!is_first_of_shape(a, i)) continue;
    Calls calls;
    TRY(calls_make(prepare, shape_of(a, i), false, &calls));
    const KernelPrepare *const all[] = {&calls.gram, &calls.square, &calls.product};
    for (int k = 0; k < 3; k++) {
      library = larger(library, all[k]->workspace_bytes);
      prepare->scratch_bytes = larger(prepare->scratch_bytes, all[k]->scratch_bytes);
    }
  }
  prepare->workspace_bytes = space_elems(a) * (int64_t)sizeof(float) + library;
  return STATUS_OK;
}

static Status apply_prepare(KernelPrepare *prepare) {
  const ApplyAttrs *a = prepare->node->attrs;
  MuonPrepared *p = calloc(1, sizeof *p);
  if (p) p->calls = calloc((size_t)a->rows.n + 1, sizeof *p->calls);
  prepare->prepared = p;
  prepare->destroy = prepared_destroy;
  if (!p || !p->calls) FAIL(RESOURCE, prepare->node->name, "no memory for its matrix products");
  p->space_elems = space_elems(a);
  for (int64_t i = 0; i < a->rows.n; i++)
    if (is_first_of_shape(a, i)) TRY(calls_make(prepare, shape_of(a, i), true, &p->calls[p->n++]));
  return STATUS_OK;
}

static Status run_product(const KernelContext *c, const KernelPrepare *call, void *a, void *b, void *out) {
  const MuonPrepared *p = c->prepared;
  void *const pointers[LIBRARY_POINTERS] = {a, b, out, NULL};
  return library_call_run(call->prepared, c->node, pointers, (float *)c->workspace + p->space_elems, c->scratch);
}

// The result is at the start of the workspace.
static Status iterate_cpu(const KernelContext *c, int64_t start, Shape s) {
  const MuonPrepared *p = c->prepared;
  int64_t mn = s.m * s.n, mm = s.m * s.m, k = 0;
  float *x = c->workspace, *next = x + mn, *gram = next + mn, *update = gram + mm;
  const float *direction = (const float *)c->in[IN_DIRECTION].data + start;
  while (p->calls[k].m != s.m || p->calls[k].n != s.n) k++;
  for (int64_t e = 0; e < mn; e++) x[iterated_index(s, e)] = direction[e];
  float scale = (float)(1 / fmax(sqrt(c->loops->sum_squares(x, 1, mn)), norm_min)), first = (float)newton[0];
  c->loops->mul_s(x, x, scale, mn);
  for (int t = 0; t < NEWTON_STEPS; t++) {
    TRY(run_product(c, &p->calls[k].gram, x, x, gram));
    TRY(run_product(c, &p->calls[k].square, gram, gram, update));
    for (int64_t e = 0; e < mm; e++) update[e] = (float)newton[1] * gram[e] + (float)newton[2] * update[e];
    TRY(run_product(c, &p->calls[k].product, update, x, next));
    for (int64_t e = 0; e < mn; e++) x[e] = first * x[e] + next[e];
  }
  return STATUS_OK;
}

static Status apply_cpu(const KernelContext *c) {
  const ApplyAttrs *a = c->node->attrs;
  double decay, lr = in_f(c, IN_RATE, 0);
  int64_t rank;
  TRY(apply_begin(c, &decay, &rank));
  for (int64_t i = 0; i < a->rows.n; i++) {
    Piece p = piece_of(&a->pieces, i, in_elems(c, IN_PARAM), rank);
    Shape s = shape_of(a, i);
    if (!p.n) continue;
    float *param = (float *)c->out[0].data + p.at, *x = c->workspace, keep = (float)(1 - lr * decay), rate = (float)adjusted(a, i, lr);
    TRY(iterate_cpu(c, a->pieces.starts.items[i], s));
    for (int64_t e = 0; e < p.n; e++) param[e] = param[e] * keep - rate * x[iterated_index(s, p.first + e)];
  }
  return STATUS_OK;
}

// Each rank iterates the matrices that it owns a part of: about its share of them.
static void apply_cost(const Node *node, NodeCost *cost) {
  const ApplyAttrs *a = node->attrs;
  for (int64_t i = 0; i < a->rows.n; i++) {
    Shape s = shape_of(a, i);
    double share = NEWTON_STEPS / (double)a->pieces.parts;
    cost_add_product(cost, s.m, s.m, s.n, share);
    cost_add_product(cost, s.m, s.m, s.m, share);
    cost_add_product(cost, s.m, s.n, s.m, share);
  }
}

const Op op_MuonApply = {
    .name = "MuonApply", .domain = "tessera", .min_inputs = 3, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 7,
    .attrs = apply_attrs, .attrs_bytes = sizeof(ApplyAttrs), .infer = apply_infer, .run_ref = apply_ref, .run_cpu = apply_cpu, .prepare = apply_prepare,
    .workspace = apply_workspace, .alias = apply_alias, .cost = apply_cost};
