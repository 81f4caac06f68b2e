// The global gradient norm. Chunk sums in f64 in fixed order are added exactly, as integers, so that neither sharding nor the order of
// ranks changes a bit of the norm.
#include <math.h>
#include <string.h>

#include "cost.h"
#include "kernel.h"
#include "ops.h"

// A fixed-point number: limb l holds bits [2^(32 l - 1074), 2^(32 l + 32 - 1074)). The smallest positive double is 2^-1074 and the largest is
// below 2^1024, so limbs 0..65 hold any double and the rest is room for carries. 32 payload bits in 64 leave room for the sum over ranks.
// The last limb counts what no fixed-point number can hold: infinities in its low half, NaNs in its high half.
enum { LIMBS = 72, LIMB_BITS = 32, LIMB_SPECIAL = LIMBS - 1, LIMB_MIN_EXPONENT = -1074 };
static const int64_t LIMB_MASK = ((int64_t)1 << LIMB_BITS) - 1;
static const int64_t SPECIAL_INF = 1, SPECIAL_NAN = (int64_t)1 << LIMB_BITS;

static void limbs_normalise(int64_t limbs[LIMBS]) {
  for (int l = 0; l + 1 < LIMB_SPECIAL; l++) {
    limbs[l + 1] = (int64_t)((uint64_t)limbs[l + 1] + (uint64_t)(limbs[l] >> LIMB_BITS));   // foreign limbs may be anything: wrap
    limbs[l] &= LIMB_MASK;
  }
}

// value >= 0 or not finite.
static void limbs_add(int64_t limbs[LIMBS], double value) {
  if (!isfinite(value)) {
    int64_t special = limbs[LIMB_SPECIAL];   // one of each per rank is enough, and cannot overflow
    if (isnan(value)) limbs[LIMB_SPECIAL] = special >= SPECIAL_NAN ? special : special + SPECIAL_NAN;
    else limbs[LIMB_SPECIAL] = special & LIMB_MASK ? special : special + SPECIAL_INF;
    return;
  }
  if (value == 0) return;
  int exponent;
  uint64_t mantissa = (uint64_t)ldexp(frexp(value, &exponent), 53);   // value = mantissa * 2^(exponent - 53)
  int bit = exponent - 53 - LIMB_MIN_EXPONENT;
  if (bit < 0) {                                                      // a denormal: its low bits are zero
    mantissa >>= -bit;
    bit = 0;
  }
  unsigned __int128 wide = (unsigned __int128)mantissa << (bit % LIMB_BITS);
  for (int l = bit / LIMB_BITS; wide; l++, wide >>= LIMB_BITS) limbs[l] += (int64_t)(uint64_t)(wide & (uint64_t)LIMB_MASK);
}

// Rounded to nearest, ties to even.
static double limbs_to_double(const int64_t given[LIMBS]) {
  int64_t limbs[LIMBS];
  memcpy(limbs, given, sizeof limbs);
  if (limbs[LIMB_SPECIAL] >= SPECIAL_NAN) return NAN;
  if (limbs[LIMB_SPECIAL]) return INFINITY;
  limbs_normalise(limbs);
  int top = LIMB_SPECIAL - 1;
  while (top > 0 && !limbs[top]) top--;
  if (top < 2) return ldexp((double)((uint64_t)limbs[1] << LIMB_BITS | (uint64_t)limbs[0]), LIMB_MIN_EXPONENT);
  // The upper 64 bits of three limbs, the last of them sticky: converting that rounds once and right.
  unsigned __int128 wide = (unsigned __int128)(uint64_t)limbs[top] << 2 * LIMB_BITS;
  wide |= (uint64_t)limbs[top - 1] << LIMB_BITS | (uint64_t)limbs[top - 2];
  bool sticky = false;
  for (int l = 0; l < top - 2; l++) sticky |= limbs[l] != 0;
  int drop = 0;
  while (wide >> drop >> 64) drop++;
  sticky |= (wide & (((unsigned __int128)1 << drop) - 1)) != 0;
  uint64_t upper = (uint64_t)(wide >> drop) | sticky;
  return ldexp((double)upper, drop + (top - 2) * LIMB_BITS + LIMB_MIN_EXPONENT);
}

// ---- SquaredNorm --------------------------------------------------------------------------------------------------------------

static Status squared_infer(Node *node, Arena *arena) {
  const Type *scale = &node->inputs[0]->type;
  if (scale->dtype != DTYPE_F64 || scale->rank) FAIL(MALFORMED, node->name, "inverse_count must be a double scalar");
  for (int i = 1; i < node->n_inputs; i++) {
    if (!node->inputs[i]) FAIL(MALFORMED, node->name, "gradient %d is absent", i - 1);
    if (!dtype_is_float(node->inputs[i]->type.dtype))
      FAIL(MALFORMED, node->name, "'%s' is %s; a norm is taken of floats", node->inputs[i]->name, dtype_name(node->inputs[i]->type.dtype));
  }
  node->outputs[0]->type = type_vector(DTYPE_I64, LIMBS);
  return NULL;
}

// Sum of squares of one chunk of input `i`; a chunk that the tensor does not fill is taken as filled with zeros, as in a bucket.
static double chunk_squares(const KernelContext *c, int i, int64_t at, int64_t elems, double scale, bool fast) {
  Dtype dtype = c->in[i].type->dtype;
  if (fast && dtype == DTYPE_F32) {
    const float *g = (const float *)c->in[i].data + at;
    if (elems == CHUNK_ELEMS) return c->loops->sum_squares(g, (float)scale, CHUNK_ELEMS);
    float padded[CHUNK_ELEMS] = {0};
    memcpy(padded, g, (size_t)elems * sizeof(float));
    return c->loops->sum_squares(padded, (float)scale, CHUNK_ELEMS);
  }
  double sum = 0;
  for (int64_t e = 0; e < elems; e++) {
    double g = in_f(c, i, at + e);
    g = dtype == DTYPE_F64 ? g * scale : (double)((float)g * (float)scale);
    sum += g * g;
  }
  return sum;
}

static Status squared_run(const KernelContext *c, bool fast) {
  int64_t limbs[LIMBS] = {0};
  double scale = in_f(c, 0, 0);
  int64_t added = 0;
  for (int i = 1; i < c->n_in; i++)
    for (int64_t at = 0, n = in_elems(c, i); at < n; at += CHUNK_ELEMS) {
      limbs_add(limbs, chunk_squares(c, i, at, n - at < CHUNK_ELEMS ? n - at : CHUNK_ELEMS, scale, fast));
      if (!(++added & LIMB_MASK >> 2)) limbs_normalise(limbs);   // long before 2^31 summands of 32 bits fill a limb
    }
  limbs_normalise(limbs);
  memcpy(c->out[0].data, limbs, sizeof limbs);
  return NULL;
}

static Status squared_ref(const KernelContext *c) { return squared_run(c, false); }
static Status squared_cpu(const KernelContext *c) { return squared_run(c, true); }

const Op op_SquaredNorm = {
    .name = "SquaredNorm", .domain = "tessera", .min_inputs = 1, .max_inputs = VARIADIC, .min_outputs = 1, .max_outputs = 1,
    .nondifferentiable = 1, .infer = squared_infer, .run_ref = squared_ref, .run_cpu = squared_cpu, .cost = cost_sum};

// ---- ClipScale ----------------------------------------------------------------------------------------------------------------

typedef struct ClipAttrs { const char *max_norm; } ClipAttrs;
static const AttrSpec clip_attrs[] = {
    {"max_norm", ATTR_STRING, offsetof(ClipAttrs, max_norm), .default_string = "", .help = "clip to this norm, a decimal; empty: do not clip"},
    {0},
};

static Status clip_infer(Node *node, Arena *arena) {
  const char *text = ((const ClipAttrs *)node->attrs)->max_norm;
  double max_norm;
  if (*text) TRY(kernel_parse_decimal(node, "max_norm", text, 0, INFINITY, &max_norm));
  const Type *inverse = &node->inputs[0]->type, *limbs = &node->inputs[1]->type;
  if (inverse->dtype != DTYPE_F64 || inverse->rank) FAIL(MALFORMED, node->name, "inverse_count must be a double scalar");
  if (limbs->dtype != DTYPE_I64 || limbs->rank != 1 || limbs->dims[0] != LIMBS) FAIL(MALFORMED, node->name, "limbs must be int64[%d]", LIMBS);
  for (int o = 0; o < node->n_outputs; o++)
    if (node->outputs[o]) node->outputs[o]->type = type_scalar(DTYPE_F64);
  return NULL;
}

static Status clip_ref(const KernelContext *c) {
  const char *text = ((const ClipAttrs *)c->node->attrs)->max_norm;
  int64_t limbs[LIMBS];
  memcpy(limbs, c->in[1].data, sizeof limbs);
  double norm = sqrt(limbs_to_double(limbs)), factor = 1;
  if (*text) {
    double max_norm;
    TRY(kernel_parse_decimal(c->node, "max_norm", text, 0, INFINITY, &max_norm));
    factor = max_norm / (norm + 1e-6);
    if (factor > 1) factor = 1;   // a NaN stays one
  }
  if (has_output(c, 0)) out_f(c, 0, 0, norm);
  if (has_output(c, 1)) out_f(c, 1, 0, in_f(c, 0, 0) * factor);
  return NULL;
}

const Op op_ClipScale = {
    .name = "ClipScale", .domain = "tessera", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 2,
    .nondifferentiable = 3, .attrs = clip_attrs, .attrs_bytes = sizeof(ClipAttrs), .infer = clip_infer, .run_ref = clip_ref};
