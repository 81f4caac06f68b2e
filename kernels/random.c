// Random numbers: RandomUniform, RandomNormal, their forms that take a shape from an input, Bernoulli, Multinomial. Counter-based, as Dropout's.
// Numbers are drawn in blocks of LOOPS_RANDOM_WORDS words; element e of a uniform kind uses words 2 e and 2 e + 1 (53 bits).
#include "random.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#include "index_input.h"
#include "ops.h"

static uint64_t mix(uint64_t z) {   // the finaliser of splitmix64
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

uint64_t random_key(const KernelContext *c, uint64_t own) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);   // FNV-1a
  for (const char *s = c->node->origin ? c->node->origin : ""; *s; s++) hash = (hash ^ (unsigned char)*s) * UINT64_C(0x100000001b3);
  return mix(hash ^ mix((c->clock ? c->clock->seed : 0) + UINT64_C(0x9e3779b97f4a7c15)) ^ mix(own));
}

uint64_t random_when(const KernelContext *c) { return c->clock ? (uint64_t)c->clock->step << 32 ^ (uint64_t)c->clock->global_micro : 0; }

typedef struct RandomAttrs {
  int64_t dtype, sample_size;
  float seed, low, high, mean, scale;
  AttrInts shape;
} RandomAttrs;

#define DTYPE_SPEC(fallback) {"dtype", ATTR_INT, offsetof(RandomAttrs, dtype), .default_int = fallback, .help = "TensorProto number of the result's type"}
#define SEED_SPEC {"seed", ATTR_FLOAT, offsetof(RandomAttrs, seed), .default_float = NAN, .help = "told apart from other nodes' numbers by it, too"}
#define UNIFORM_SPECS                                                                                                      \
  {"low", ATTR_FLOAT, offsetof(RandomAttrs, low), .default_float = 0, .help = "least number"},                             \
  {"high", ATTR_FLOAT, offsetof(RandomAttrs, high), .default_float = 1, .help = "all numbers are below it"}
#define NORMAL_SPECS                                                                                                       \
  {"mean", ATTR_FLOAT, offsetof(RandomAttrs, mean), .default_float = 0, .help = "mean"},                                   \
  {"scale", ATTR_FLOAT, offsetof(RandomAttrs, scale), .default_float = 1, .help = "standard deviation"}
#define SHAPE_SPEC {"shape", ATTR_INTS, offsetof(RandomAttrs, shape), .required = true, .min = 0, .max = INT64_MAX, .help = "shape of the result"}
static const AttrSpec uniform_attrs[] = {DTYPE_SPEC(DTYPE_F32), SEED_SPEC, UNIFORM_SPECS, SHAPE_SPEC, {0}};
static const AttrSpec uniform_like_attrs[] = {DTYPE_SPEC(ATTR_ABSENT), SEED_SPEC, UNIFORM_SPECS, {0}};
static const AttrSpec normal_attrs[] = {DTYPE_SPEC(DTYPE_F32), SEED_SPEC, NORMAL_SPECS, SHAPE_SPEC, {0}};
static const AttrSpec normal_like_attrs[] = {DTYPE_SPEC(ATTR_ABSENT), SEED_SPEC, NORMAL_SPECS, {0}};
static const AttrSpec bernoulli_attrs[] = {DTYPE_SPEC(ATTR_ABSENT), SEED_SPEC, {0}};
static const AttrSpec multinomial_attrs[] = {
  DTYPE_SPEC(DTYPE_I32), SEED_SPEC,
  {"sample_size", ATTR_INT, offsetof(RandomAttrs, sample_size), .default_int = 1, .min = 0, .max = INT64_MAX, .help = "numbers drawn per row"},
  {0},
};

static Status result_dtype(const Node *node, Dtype fallback, bool any, Dtype *out) {
  int64_t d = ((const RandomAttrs *)node->attrs)->dtype;
  if (d == ATTR_ABSENT) d = fallback;
  if (d < 0 || d > 64 || !dtype_known((int)d) || !(any || dtype_is_float((Dtype)d)))
    FAIL(UNSUPPORTED, node->name, "%s: results of element type number %" PRId64 " are not supported%s", node->op->name, d, any ? "" : "; floats are");
  *out = (Dtype)d;
  return STATUS_OK;
}

static Status shape_infer(Node *node, Arena *arena) {
  const AttrInts *shape = &((const RandomAttrs *)node->attrs)->shape;
  Dtype d;
  if (shape->n > RANK_MAX) FAIL(UNSUPPORTED, node->name, "%s: %" PRId64 " dimensions; at most %d are supported", node->op->name, shape->n, RANK_MAX);
  TRY(result_dtype(node, DTYPE_F32, false, &d));
  node->outputs[0]->type = type_make(d, (int)shape->n, shape->items);
  return STATUS_OK;
}

static Status like_infer(Node *node, Arena *arena) {
  Dtype d;
  TRY(result_dtype(node, input_type(node, 0)->dtype, node->op == &op_Bernoulli, &d));
  if (node->op == &op_Bernoulli && !dtype_is_float(input_type(node, 0)->dtype)) FAIL(MALFORMED, node->name, "Bernoulli: probabilities must be floats");
  node->outputs[0]->type = *input_type(node, 0);
  node->outputs[0]->type.dtype = d;
  return STATUS_OK;
}

// A stream of uniform numbers in (0, 1), one after the other.
typedef struct Stream { const KernelContext *c; uint64_t key, when, next; uint32_t words[LOOPS_RANDOM_WORDS]; } Stream;

static Stream stream_begin(const KernelContext *c) {
  float seed = ((const RandomAttrs *)c->node->attrs)->seed;
  union { float f; uint32_t bits; } own = {.f = seed};
  return (Stream){.c = c, .key = random_key(c, isnan(seed) ? 0 : (uint64_t)own.bits + 1), .when = random_when(c)};
}
static double stream_next(Stream *s) {
  uint64_t at = s->next % LOOPS_RANDOM_WORDS;
  if (at == 0) s->c->loops->random(s->words, s->key, s->when, s->next / LOOPS_RANDOM_WORDS);
  uint64_t bits = (uint64_t)s->words[at] << 32 | s->words[at + 1];
  s->next += 2;
  return ((double)(bits >> 11) + 0.5) * 0x1p-53;
}

static Status uniform_run(const KernelContext *c) {
  const RandomAttrs *a = c->node->attrs;
  Stream s = stream_begin(c);
  for (int64_t i = 0, n = out_elems(c, 0); i < n; i++) out_f(c, 0, i, a->low + ((double)a->high - a->low) * stream_next(&s));
  return STATUS_OK;
}

static Status normal_run(const KernelContext *c) {   // Box and Muller
  const RandomAttrs *a = c->node->attrs;
  Stream s = stream_begin(c);
  for (int64_t i = 0, n = out_elems(c, 0); i < n; i += 2) {
    double radius = sqrt(-2 * log(stream_next(&s))), angle = 2 * M_PI * stream_next(&s);
    out_f(c, 0, i, a->mean + a->scale * radius * cos(angle));
    if (i + 1 < n) out_f(c, 0, i + 1, a->mean + a->scale * radius * sin(angle));
  }
  return STATUS_OK;
}

static Status bernoulli_run(const KernelContext *c) {
  Stream s = stream_begin(c);
  for (int64_t i = 0, n = out_elems(c, 0); i < n; i++) {
    double p = in_f(c, 0, i);
    if (!(p >= 0 && p <= 1)) FAIL(CHECK, c->node->name, "Bernoulli: element %" PRId64 " of '%s' is %g; a probability is needed", i, c->node->inputs[0]->name, p);
    element_write(c->out[0].data, c->out[0].type->dtype, i, stream_next(&s) < p);
  }
  return STATUS_OK;
}

// ---- Multinomial: input [batch, classes] of logarithms of probabilities, not normalised ------------------------------------------

static Status multinomial_infer(Node *node, Arena *arena) {
  const Type *x = input_type(node, 0);
  Dtype d;
  TRY(result_dtype(node, DTYPE_I32, true, &d));
  if (x->rank != 2 || !dtype_is_float(x->dtype) || x->dims[1] < 1 || (d != DTYPE_I32 && d != DTYPE_I64))
    FAIL(MALFORMED, node->name, "Multinomial: floats [batch, classes] are needed, and a result of int32 or int64");
  node->outputs[0]->type = type_make(d, 2, (const int64_t[]){x->dims[0], ((const RandomAttrs *)node->attrs)->sample_size});
  return STATUS_OK;
}

static Status multinomial_run(const KernelContext *c) {
  Stream s = stream_begin(c);
  int64_t rows = c->in[0].type->dims[0], classes = c->in[0].type->dims[1], samples = c->out[0].type->dims[1];
  for (int64_t r = 0; r < rows; r++) {
    double greatest = -INFINITY, all = 0;
    for (int64_t k = 0; k < classes; k++) greatest = fmax(greatest, in_f(c, 0, r * classes + k));
    for (int64_t k = 0; k < classes; k++) all += exp(in_f(c, 0, r * classes + k) - greatest);
    for (int64_t i = 0; i < samples; i++) {
      double left = stream_next(&s) * all;
      int64_t k = 0;
      for (; k + 1 < classes; k++) {
        left -= exp(in_f(c, 0, r * classes + k) - greatest);
        if (left < 0) break;
      }
      out_i(c, 0, r * samples + i, k);
    }
  }
  return STATUS_OK;
}

#define RANDOM(row, n, table, check, run)                                                                                          \
  const Op op_##row = {.name = #row, .domain = "", .min_inputs = n, .max_inputs = n, .min_outputs = 1, .max_outputs = 1,          \
                       .flags = OP_RANDOM, .nondifferentiable = 1, .attrs = table, .attrs_bytes = sizeof(RandomAttrs), .infer = check, .run_ref = run}
RANDOM(RandomUniform, 0, uniform_attrs, shape_infer, uniform_run);
RANDOM(RandomUniformLike, 1, uniform_like_attrs, like_infer, uniform_run);
RANDOM(RandomNormal, 0, normal_attrs, shape_infer, normal_run);
RANDOM(RandomNormalLike, 1, normal_like_attrs, like_infer, normal_run);
RANDOM(Bernoulli, 1, bernoulli_attrs, like_infer, bernoulli_run);
RANDOM(Multinomial, 1, multinomial_attrs, multinomial_infer, multinomial_run);
