// Adafactor (Shazeer and Stern, 2018) as torch.optim.Adafactor computes it. Matrices (the last two axes) keep the mean squares of rows and columns,
// vectors all of them. In up to three steps: FactoredSums adds the squares of the gradient by row and by column, exactly; AdafactorDirection makes
// g / sqrt(estimate); AdafactorApply scales that by norms of the whole parameter (TensorNorms).
#include <float.h>
#include <math.h>

#include "cost.h"
#include "limbs.h"
#include "ops.h"
#include "optimizer.h"
#include "tensor_piece.h"

// ---- Sums of squares as fixed-point numbers -----------------------------------------------------------------------------------

// Each sum is three limbs of 40 bits in units of 2^-UNIT_BITS times a power of two above the squared global norm, which no sum of the gradient's squares
// passes. A square that is more than 2^-UNIT_BITS times smaller than that counts as zero. Sums of 2^22 limbs, and over ranks, fit into 64 bits.
enum { SUM_LIMBS = 3, SUM_LIMB_BITS = 40, UNIT_BITS = SUM_LIMBS * SUM_LIMB_BITS - 2, ADDED_MAX = 1 << 22 };

// Factor that turns a square into units; 0: there is nothing to add.
static double to_units(double norm) {
  int exponent;
  if (!(norm > 0) || !isfinite(norm)) return 0;
  frexp(norm, &exponent);
  return ldexp(1, UNIT_BITS - 2 * exponent);
}

static inline void sum_add(int64_t sum[SUM_LIMBS], double units) {
  double high = trunc(units * 0x1p-80);
  units -= high * 0x1p80;
  double middle = trunc(units * 0x1p-40);
  sum[2] += (int64_t)high;
  sum[1] += (int64_t)middle;
  sum[0] += (int64_t)(units - middle * 0x1p40);
}

static inline void sum_normalise(int64_t sum[SUM_LIMBS]) {
  for (int l = 0; l + 1 < SUM_LIMBS; l++) {
    sum[l + 1] = (int64_t)((uint64_t)sum[l + 1] + (uint64_t)(sum[l] >> SUM_LIMB_BITS));
    sum[l] &= ((int64_t)1 << SUM_LIMB_BITS) - 1;
  }
}

// 40 bits more than a double holds: the limbs of the sum are normalised first, so that the same sum gives the same bits.
static double sum_value(const int64_t given[SUM_LIMBS], double units) {
  int64_t sum[SUM_LIMBS] = {given[0], given[1], given[2]};
  sum_normalise(sum);
  return units == 0 ? 0 : ((double)sum[2] * 0x1p80 + ((double)sum[1] * 0x1p40 + (double)sum[0])) / units;
}

// ---- Matrices of a bucket -----------------------------------------------------------------------------------------------------

// Attributes of the rows that know matrices; `leading` counts those of a parameter with more than two axes.
typedef struct FactorAttrs { PieceAttrs pieces; AttrInts leading, rows, columns; } FactorAttrs;
#define FACTOR_ATTRS                                                                                                                            \
  PIECE_ATTRS, {"leading", ATTR_INTS, offsetof(FactorAttrs, leading), .min = 0, .max = INT64_MAX, .help = "matrices in each parameter"},            \
      {"rows", ATTR_INTS, offsetof(FactorAttrs, rows), .min = 0, .max = INT64_MAX, .help = "of each matrix"},                                       \
      {"columns", ATTR_INTS, offsetof(FactorAttrs, columns), .min = 0, .max = INT64_MAX, .help = "of each matrix"}

// Where the sums, means and states of parameter i begin: rows of all parameters, then columns of all.
typedef struct FactorPlace { int64_t leading, rows, columns, row_at, column_at; } FactorPlace;

static Status factors_check(const Node *node, const Type *flat, int64_t *out_rows, int64_t *out_columns) {
  const FactorAttrs *a = node->attrs;
  TRY(pieces_check(node, flat));
  if (a->leading.n != a->pieces.starts.n || a->rows.n != a->pieces.starts.n || a->columns.n != a->pieces.starts.n)
    FAIL(MALFORMED, node->name, "each parameter needs leading, rows and columns");
  *out_rows = *out_columns = 0;
  for (int64_t i = 0; i < a->rows.n; i++) {
    int64_t n, rows, columns;
    bool wraps = __builtin_mul_overflow(a->leading.items[i], a->rows.items[i], &rows) || __builtin_mul_overflow(a->leading.items[i], a->columns.items[i], &columns) ||
                 __builtin_mul_overflow(rows, a->columns.items[i], &n);
    if (wraps || n != a->pieces.sizes.items[i] || rows > (INT64_MAX >> 8) - *out_rows || columns > (INT64_MAX >> 8) - *out_columns)
      FAIL(MALFORMED, node->name, "parameter %lld of %lld elements is no %lld times %lld x %lld", (long long)i, (long long)a->pieces.sizes.items[i],
           (long long)a->leading.items[i], (long long)a->rows.items[i], (long long)a->columns.items[i]);
    *out_rows += rows;
    *out_columns += columns;
  }
  return STATUS_OK;
}

static FactorPlace factor_next(const FactorAttrs *a, int64_t i, const FactorPlace *before) {
  FactorPlace p = {a->leading.items[i], a->rows.items[i], a->columns.items[i], 0, 0};
  if (!before) return p;
  p.row_at = before->row_at + before->leading * before->rows;
  p.column_at = before->column_at + before->leading * before->columns;
  return p;
}

// ---- FactoredSums -------------------------------------------------------------------------------------------------------------

static const AttrSpec sums_attrs[] = {FACTOR_ATTRS, {0}};
enum { SUMS_GRAD, SUMS_SCALE, SUMS_NORM };

static Status sums_infer(Node *node, Arena *arena) {
  int64_t rows, columns;
  if (!dtype_is_float(node->inputs[SUMS_GRAD]->type.dtype)) FAIL(MALFORMED, node->name, "the gradient must be of floats");
  for (int i = SUMS_SCALE; i <= SUMS_NORM; i++)
    if (node->inputs[i]->type.dtype != DTYPE_F64 || node->inputs[i]->type.rank) FAIL(MALFORMED, node->name, "scale and norm must be double scalars");
  TRY(factors_check(node, &node->inputs[SUMS_GRAD]->type, &rows, &columns));
  node->outputs[0]->type = type_vector(DTYPE_I64, (rows + columns) * SUM_LIMBS);
  return STATUS_OK;
}

typedef struct SumsWalk {
  const KernelContext *c;
  const float *narrow;         // the gradient where it is f32
  double scale, units;
  int64_t *rows, *columns;
} SumsWalk;

// Square of the scaled gradient, in units.
static inline double square_units(const SumsWalk *w, int64_t e) {
  double g = w->narrow ? (double)(w->narrow[e] * (float)w->scale) : in_f(w->c, SUMS_GRAD, e) * w->scale;
  return g * g * w->units;
}

// Elements [first, first + n) of a parameter, which lie from `at` on.
static void add_piece(const SumsWalk *w, FactorPlace f, Piece p) {
  int64_t since = 0;
  for (int64_t e = 0; e < p.n;) {
    int64_t at = p.first + e, row = at / f.columns, column = at % f.columns, m = f.columns - column;
    int64_t *row_sum = w->rows + (f.row_at + row) * SUM_LIMBS, *column_sums = w->columns + (f.column_at + row / f.rows * f.columns) * SUM_LIMBS;
    if (m > p.n - e) m = p.n - e;
    for (int64_t k = 0; k < m; k++) {
      double square = square_units(w, p.at + e + k);
      sum_add(row_sum, square);
      sum_add(column_sums + (column + k) * SUM_LIMBS, square);
      if (!((k + 1) & (ADDED_MAX - 1))) sum_normalise(row_sum);
    }
    sum_normalise(row_sum);
    e += m;
    if (++since < ADDED_MAX && e < p.n) continue;
    for (int64_t k = 0; k < f.leading * f.columns; k++) sum_normalise(w->columns + (f.column_at + k) * SUM_LIMBS);
    since = 0;
  }
}

static Status sums_ref(const KernelContext *c) {
  const FactorAttrs *a = c->node->attrs;
  int64_t rank, rows, columns;
  TRY(factors_check(c->node, c->in[SUMS_GRAD].type, &rows, &columns));
  TRY(piece_rank(c, &rank));
  memset(c->out[0].data, 0, (size_t)type_bytes(c->out[0].type));
  SumsWalk w = {.c = c, .scale = in_f(c, SUMS_SCALE, 0), .units = to_units(in_f(c, SUMS_NORM, 0)),
                .narrow = c->in[SUMS_GRAD].type->dtype == DTYPE_F32 ? c->in[SUMS_GRAD].data : NULL, .rows = c->out[0].data};
  w.columns = w.rows + rows * SUM_LIMBS;
  if (!isfinite(w.units) || w.units == 0) return STATUS_OK;      // no gradient, or none that has a sum: AdafactorDirection sees the norm, too
  FactorPlace f = {0};
  for (int64_t i = 0; i < a->rows.n; i++) {
    f = factor_next(a, i, i ? &f : NULL);
    Piece p = piece_of(&a->pieces, i, in_elems(c, SUMS_GRAD), rank);
    if (p.n) add_piece(&w, f, p);
  }
  return STATUS_OK;
}

const Op op_FactoredSums = {
    .name = "FactoredSums", .domain = "tessera", .min_inputs = 3, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 7,
    .attrs = sums_attrs, .attrs_bytes = sizeof(FactorAttrs), .infer = sums_infer, .run_ref = sums_ref, .cost = cost_sum};

// ---- AdafactorDirection -------------------------------------------------------------------------------------------------------

// Matrices: states are row_var and col_var, then come the sums and the global norm. Vectors: the state is variance.
typedef struct DirectionAttrs { FactorAttrs factors; const char *beta2_decay, *eps1; int64_t factored; } DirectionAttrs;
static const AttrSpec direction_attrs[] = {
    FACTOR_ATTRS,
    {"beta2_decay", ATTR_STRING, offsetof(DirectionAttrs, beta2_decay), .default_string = "-0.8", .help = "the new square weighs t to this power, a decimal"},
    {"eps1", ATTR_STRING, offsetof(DirectionAttrs, eps1), .default_string = "", .help = "least root of a mean square, a decimal; empty: epsilon of the type"},
    {"factored", ATTR_INT, offsetof(DirectionAttrs, factored), .min = 0, .max = 1, .help = "1: by rows and columns"},
    {0},
};
enum { IN_ROWS = IN_STATE, IN_COLUMNS, IN_SUMS, IN_NORM };

// Of the roots of mean squares; torch.finfo(dtype).eps where nobody says.
static Status least_root(const Node *node, double *out) {
  const char *text = ((const DirectionAttrs *)node->attrs)->eps1;
  *out = node->inputs[IN_PARAM]->type.dtype == DTYPE_F64 ? DBL_EPSILON : FLT_EPSILON;
  if (*text) TRY(kernel_parse_decimal(node, "eps1", text, 0, INFINITY, out));
  return STATUS_OK;
}

static Status direction_infer(Node *node, Arena *arena) {
  const DirectionAttrs *a = node->attrs;
  double decay, least;
  int64_t rows, columns;
  TRY(kernel_parse_decimal(node, "beta2_decay", a->beta2_decay, -INFINITY, 0, &decay));
  TRY(least_root(node, &least));
  if (!a->factored) {
    if (node->n_inputs != IN_STATE + 1 || node->n_outputs != 2) FAIL(MALFORMED, node->name, "a vector has one state");
    return step_infer(node);
  }
  if (node->n_inputs != IN_NORM + 1 || node->n_outputs != 3)
    FAIL(MALFORMED, node->name, "factored = 1 takes row_var, col_var, sums and norm, and makes three outputs");
  const Type *param = &node->inputs[IN_PARAM]->type, *norm = &node->inputs[IN_NORM]->type;
  TRY(factors_check(node, param, &rows, &columns));
  Type row_type = type_vector(param->dtype, rows), column_type = type_vector(param->dtype, columns), sums = type_vector(DTYPE_I64, (rows + columns) * SUM_LIMBS);
  if (!type_equal(&node->inputs[IN_ROWS]->type, &row_type) || !type_equal(&node->inputs[IN_COLUMNS]->type, &column_type) ||
      !type_equal(&node->inputs[IN_SUMS]->type, &sums) || norm->dtype != DTYPE_F64 || norm->rank)
    FAIL(MALFORMED, node->name, "the bucket has %lld rows and %lld columns; states, sums or norm are of other types", (long long)rows, (long long)columns);
  TRY(step_infer_first(node, IN_STATE));
  node->outputs[1]->type = row_type;
  node->outputs[2]->type = column_type;
  return STATUS_OK;
}

static double state_read(const KernelContext *c, int o, int64_t e) { return element_read(c->out[o].data, c->out[o].type->dtype, e); }

// New means of rows and columns of one parameter: equal on all ranks, since the sums are.
static void move_means(const KernelContext *c, const FactorAttrs *a, FactorPlace f, double weight, double units, int64_t all_rows) {
  const int64_t *sums = c->in[IN_SUMS].data;
  bool spoilt = !isfinite(in_f(c, IN_NORM, 0));
  for (int64_t r = f.row_at; r < f.row_at + f.leading * f.rows; r++) {
    double mean = spoilt ? NAN : sum_value(sums + r * SUM_LIMBS, units) / (double)f.columns, old = state_read(c, 1, r);
    out_f(c, 1, r, old + weight * (mean - old));
  }
  for (int64_t k = f.column_at; k < f.column_at + f.leading * f.columns; k++) {
    double mean = spoilt ? NAN : sum_value(sums + (all_rows + k) * SUM_LIMBS, units) / (double)f.rows, old = state_read(c, 2, k);
    out_f(c, 2, k, old + weight * (mean - old));
  }
}

// g / sqrt(row mean x column mean / mean of row means) for what lies here.
static void direct_piece(const KernelContext *c, FactorPlace f, Piece p, double scale, double floor_mean) {
  double mean = 0;
  int64_t matrix = -1;
  for (int64_t e = 0; e < p.n; e++) {
    int64_t at = p.first + e, row = at / f.columns, column = at % f.columns;
    if (row / f.rows != matrix) {
      matrix = row / f.rows;
      mean = 0;
      for (int64_t r = 0; r < f.rows; r++) mean += state_read(c, 1, f.row_at + matrix * f.rows + r);
      mean = fmax(mean / (double)f.rows, floor_mean);
    }
    double estimate = state_read(c, 1, f.row_at + row) * state_read(c, 2, f.column_at + matrix * f.columns + column) / mean;
    if (estimate < floor_mean * floor_mean) estimate = floor_mean * floor_mean;      // a NaN stays one
    out_f(c, 0, p.at + e, step_grad(c, p.at + e, scale) / sqrt(estimate));
  }
}

static Status direct_matrices(const KernelContext *c, double weight, double scale, double least) {
  const FactorAttrs *a = &((const DirectionAttrs *)c->node->attrs)->factors;
  int64_t rank, rows, columns;
  double units = to_units(in_f(c, IN_NORM, 0));
  TRY(factors_check(c->node, c->in[IN_PARAM].type, &rows, &columns));
  TRY(piece_rank(c, &rank));
  if (out_elems(c, 0)) memset(c->out[0].data, 0, (size_t)type_bytes(c->out[0].type));          // between parameters
  FactorPlace f = {0};
  for (int64_t i = 0; i < a->rows.n; i++) {
    f = factor_next(a, i, i ? &f : NULL);
    if (!a->pieces.sizes.items[i]) continue;
    move_means(c, a, f, weight, units, rows);
    direct_piece(c, f, piece_of(&a->pieces, i, in_elems(c, IN_PARAM), rank), scale, least);
  }
  return STATUS_OK;
}

static Status direction_ref(const KernelContext *c) {
  const DirectionAttrs *a = c->node->attrs;
  double decay, scale = in_f(c, IN_SCALE, 0);
  TRY(kernel_parse_decimal(c->node, "beta2_decay", a->beta2_decay, -INFINITY, 0, &decay));
  int64_t t = in_i(c, IN_T, 0);
  if (t < 1) FAIL(CHECK, c->node->name, "t = %lld; steps count from 1", (long long)t);
  double weight = pow((double)t, decay), least;
  TRY(least_root(c->node, &least));
  direction_carry(c);
  if (a->factored) return direct_matrices(c, weight, scale, least);
  for (int64_t e = 0, n = in_elems(c, IN_PARAM); e < n; e++) {
    double g = step_grad(c, e, scale), old = in_f(c, IN_STATE, e), variance = old + weight * (g * g - old), estimate = variance;
    if (estimate < least * least) estimate = least * least;
    out_f(c, 1, e, variance);
    out_f(c, 0, e, g / sqrt(estimate));
  }
  return STATUS_OK;
}

const Op op_AdafactorDirection = {
    .name = "AdafactorDirection", .domain = "tessera", .min_inputs = 6, .max_inputs = 9, .min_outputs = 2, .max_outputs = 3, .flags = OP_OPTIMIZER | OP_DIRECTION,
    .nondifferentiable = 0x1ff, .attrs = direction_attrs, .attrs_bytes = sizeof(DirectionAttrs), .infer = direction_infer, .run_ref = direction_ref,
    .alias = direction_alias};

// ---- AdafactorApply -----------------------------------------------------------------------------------------------------------

typedef struct ApplyAttrs { PieceAttrs pieces; const char *weight_decay, *eps2, *threshold; } ApplyAttrs;
static const AttrSpec apply_attrs[] = {
    PIECE_ATTRS,
    {"weight_decay", ATTR_STRING, offsetof(ApplyAttrs, weight_decay), .default_string = "0", .help = "a decimal; times the learning rate it shrinks the parameter"},
    {"eps2", ATTR_STRING, offsetof(ApplyAttrs, eps2), .default_string = "1e-3", .help = "least scale of a parameter, a decimal"},
    {"threshold", ATTR_STRING, offsetof(ApplyAttrs, threshold), .default_string = "1", .help = "root mean square that directions are cut to, a decimal"},
    {0},
};
enum { IN_APPLY_T = IN_NORMS + 1 };

typedef struct AdafactorRates { double decay, eps2, threshold; } AdafactorRates;

static Status apply_parse(const Node *node, AdafactorRates *out) {
  const ApplyAttrs *a = node->attrs;
  TRY(kernel_parse_decimal(node, "weight_decay", a->weight_decay, 0, INFINITY, &out->decay));
  TRY(kernel_parse_decimal(node, "eps2", a->eps2, 0, INFINITY, &out->eps2));
  return kernel_parse_decimal(node, "threshold", a->threshold, DBL_MIN, INFINITY, &out->threshold);
}

static Status apply_infer(Node *node, Arena *arena) {
  AdafactorRates rates;
  TRY(apply_parse(node, &rates));
  const Type *t = &node->inputs[IN_APPLY_T]->type;
  if (t->dtype != DTYPE_I64 || t->rank) FAIL(MALFORMED, node->name, "t must be an int64 scalar");
  return apply_check(node, 2);
}

static Status apply_run(const KernelContext *c, bool fast) {
  const ApplyAttrs *a = c->node->attrs;
  const int64_t *param_limbs = c->in[IN_NORMS].data, *direction_limbs = param_limbs + a->pieces.starts.n * LIMBS;
  AdafactorRates r;
  int64_t rank, t = in_i(c, IN_APPLY_T, 0);
  TRY(apply_parse(c->node, &r));
  TRY(piece_rank(c, &rank));
  if (t < 1) FAIL(CHECK, c->node->name, "t = %lld; steps count from 1", (long long)t);
  double lr = in_f(c, IN_RATE, 0), rho = fmin(lr, 1 / sqrt((double)t)), keep = 1 - lr * r.decay;
  copy_unless_same(c->out[0].data, c->in[IN_PARAM].data, type_bytes(c->out[0].type));
  for (int64_t i = 0; i < a->pieces.starts.n; i++) {
    Piece p = piece_of(&a->pieces, i, in_elems(c, IN_PARAM), rank);
    double root = sqrt((double)a->pieces.sizes.items[i]), length = sqrt(limbs_to_double(direction_limbs + i * LIMBS)) / (root * r.threshold);
    double rate = fmax(r.eps2, sqrt(limbs_to_double(param_limbs + i * LIMBS)) / root) * rho / (length < 1 ? 1 : length);     // a NaN stays one
    if (!p.n) continue;
    if (fast) {
      float *param = (float *)c->out[0].data + p.at;
      if (r.decay != 0) c->loops->mul_s(param, param, (float)keep, p.n);
      c->loops->axpy(param, (float)-rate, (const float *)c->in[IN_DIRECTION].data + p.at, p.n);
      continue;
    }
    for (int64_t e = p.at; e < p.at + p.n; e++) out_f(c, 0, e, element_read(c->out[0].data, c->out[0].type->dtype, e) * keep - rate * in_f(c, IN_DIRECTION, e));
  }
  return STATUS_OK;
}

static Status apply_ref(const KernelContext *c) { return apply_run(c, false); }
static Status apply_cpu(const KernelContext *c) { return apply_run(c, true); }

const Op op_AdafactorApply = {
    .name = "AdafactorApply", .domain = "tessera", .min_inputs = 5, .max_inputs = 5, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 0x1f,
    .attrs = apply_attrs, .attrs_bytes = sizeof(ApplyAttrs), .infer = apply_infer, .run_ref = apply_ref, .run_cpu = apply_cpu, .alias = apply_alias,
    .cost = cost_arithmetic};
