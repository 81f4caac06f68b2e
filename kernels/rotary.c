// RotaryEmbedding: the first pairs of every head's vector are turned by an angle that depends on the token's place. Its gradient turns back.
#include <string.h>

#include "index_input.h"
#include "kernel.h"
#include "ops.h"

typedef struct RotaryAttrs { int64_t interleaved, num_heads, width; } RotaryAttrs;
static const AttrSpec rotary_attrs[] = {
    {"interleaved", ATTR_INT, offsetof(RotaryAttrs, interleaved), .min = 0, .max = 1, .help = "1: pairs are neighbours, 0: from the two halves"},
    {"num_heads", ATTR_INT, offsetof(RotaryAttrs, num_heads), .default_int = ATTR_ABSENT, .help = "heads of X with three axes"},
    {"rotary_embedding_dim", ATTR_INT, offsetof(RotaryAttrs, width), .min = 0, .max = INT32_MAX, .help = "elements that are turned; 0: all"},
    {0},
};

enum { IN_X, IN_COS, IN_SIN, IN_POSITIONS };

typedef struct Rotary { int64_t batch, heads, length, head, pairs; bool flat, interleaved; } Rotary;

static Status rotary_make(const Node *node, Rotary *out) {
  const RotaryAttrs *a = node->attrs;
  const Type *x = input_type(node, IN_X), *cosines = input_type(node, IN_COS), *sines = input_type(node, IN_SIN);
  char have[160], want_text[160];
  if (!dtype_is_float(x->dtype) || (x->rank != 3 && x->rank != 4))
    FAIL(MALFORMED, node->name, "X is %s; floats with three or four axes are needed", type_text(x, have, sizeof have));
  Rotary r = {.flat = x->rank == 3, .interleaved = a->interleaved, .batch = x->dims[0]};
  if (r.flat) {
    if (a->num_heads == ATTR_ABSENT || a->num_heads < 1 || x->dims[2] % a->num_heads)
      FAIL(MALFORMED, node->name, "X is %s; with three axes num_heads must divide its last one", type_text(x, have, sizeof have));
    r.length = x->dims[1], r.heads = a->num_heads, r.head = x->dims[2] / a->num_heads;
  } else {
    r.heads = x->dims[1], r.length = x->dims[2], r.head = x->dims[3];
  }
  int64_t width = a->width ? a->width : r.head;
  if (width > r.head || width % 2)
    FAIL(MALFORMED, node->name, "%lld of %lld elements are to be turned; an even number up to it is needed", (long long)width, (long long)r.head);
  r.pairs = width / 2;
  bool by_position = node_has_input(node, IN_POSITIONS);
  Type want = by_position ? type_make(x->dtype, 2, (const int64_t[]){cosines->dims[0], r.pairs})
                          : type_make(x->dtype, 3, (const int64_t[]){r.batch, r.length, r.pairs});
  if (!type_equal(cosines, &want) || !type_equal(sines, &want))
    FAIL(MALFORMED, node->name, "cos_cache is %s; both caches must be %s", type_text(cosines, have, sizeof have),
         type_text(&want, want_text, sizeof want_text));
  if (by_position) {
    Type positions = type_make(input_type(node, IN_POSITIONS)->dtype, 2, (const int64_t[]){r.batch, r.length});
    if (!dtype_is_integer(positions.dtype) || !type_equal(&positions, input_type(node, IN_POSITIONS)))
      FAIL(MALFORMED, node->name, "position_ids must be integers [%lld,%lld]", (long long)r.batch, (long long)r.length);
  }
  *out = r;
  return NULL;
}

static Status rotary_infer(Node *node, Arena *arena) {
  Rotary r;
  TRY(rotary_make(node, &r));
  node->outputs[0]->type = node->inputs[IN_X]->type;
  return NULL;
}

// First element of the caches' row for a token.
static Status cache_row(const KernelContext *c, const Rotary *r, int64_t token, int64_t *out) {
  *out = token * r->pairs;
  if (!has_input(c, IN_POSITIONS)) return NULL;
  int64_t position = in_i(c, IN_POSITIONS, token), rows = c->in[IN_COS].type->dims[0];
  if (position < 0 || position >= rows)
    FAIL(MALFORMED, c->node->name, "position %lld is outside the caches' [0, %lld)", (long long)position, (long long)rows);
  *out = position * r->pairs;
  return NULL;
}

static Status rotary_run(const KernelContext *c, bool fast) {
  Rotary r;
  TRY(rotary_make(c->node, &r));
  int64_t step = r.interleaved ? 1 : r.pairs, stride = r.interleaved ? 2 : 1;   // to a pair's second element; to the next pair
  for (int64_t token = 0; token < r.batch * r.length; token++) {
    int64_t row;
    TRY(cache_row(c, &r, token, &row));
    for (int64_t h = 0; h < r.heads; h++) {
      int64_t b = token / r.length, t = token % r.length;
      int64_t at = (r.flat ? (b * r.length + t) * r.heads + h : (b * r.heads + h) * r.length + t) * r.head;
      if (fast) {
        const float *x = (const float *)c->in[IN_X].data + at, *cosine = (const float *)c->in[IN_COS].data + row,
                    *sine = (const float *)c->in[IN_SIN].data + row;
        float *y = (float *)c->out[0].data + at;
        for (int64_t k = 0; k < r.pairs; k++) {
          float one = x[k * stride], two = x[k * stride + step];
          y[k * stride] = cosine[k] * one - sine[k] * two;
          y[k * stride + step] = sine[k] * one + cosine[k] * two;
        }
        for (int64_t k = 2 * r.pairs; k < r.head; k++) y[k] = x[k];
        continue;
      }
      for (int64_t k = 0; k < r.pairs; k++) {
        int64_t e = at + k * stride;
        double one = in_f(c, IN_X, e), two = in_f(c, IN_X, e + step), cosine = in_f(c, IN_COS, row + k), sine = in_f(c, IN_SIN, row + k);
        out_f(c, 0, e, cosine * one - sine * two);
        out_f(c, 0, e + step, sine * one + cosine * two);
      }
      for (int64_t k = at + 2 * r.pairs; k < at + r.head; k++) out_f(c, 0, k, in_f(c, IN_X, k));
    }
  }
  return NULL;
}
static Status rotary_ref(const KernelContext *c) { return rotary_run(c, false); }
static Status rotary_cpu(const KernelContext *c) { return rotary_run(c, true); }

static Status rotary_grad(Grad *g) {
  const Node *node = g->node;
  const RotaryAttrs *a = node->attrs;
  Emit *e = g->emit;
  if (g->wanted[IN_COS] || g->wanted[IN_SIN])
    FAIL(UNSUPPORTED, node->name, "a trainable parameter reaches the cos_cache or the sin_cache: they have no gradient");
  Value *back = emit(e, &op_Neg, INPUTS(node->inputs[IN_SIN]), NULL);
  g->dx[IN_X] = emit(e, &op_RotaryEmbedding,
                     INPUTS(g->dy[0], node->inputs[IN_COS], back, node_has_input(node, IN_POSITIONS) ? node->inputs[IN_POSITIONS] : NULL),
                     ATTRS(A_INT("interleaved", a->interleaved), A_INT("num_heads", a->num_heads), A_INT("rotary_embedding_dim", a->width)));
  return NULL;
}

static bool rotary_alias(const Node *node, int output, int input, Alias *out) {
  if (input != IN_X) return false;   // a pair is read before it is written
  *out = (Alias){.kind = ALIAS_INPLACE, .input = IN_X};
  return true;
}

const Op op_RotaryEmbedding = {.name = "RotaryEmbedding",
                               .domain = "",
                               .min_inputs = 3,
                               .max_inputs = 4,
                               .min_outputs = 1,
                               .max_outputs = 1,
                               .nondifferentiable = 1 << IN_POSITIONS,
                               .attrs = rotary_attrs,
                               .attrs_bytes = sizeof(RotaryAttrs),
                               .infer = rotary_infer,
                               .grad = rotary_grad,
                               .run_ref = rotary_ref,
                               .run_cpu = rotary_cpu,
                               .alias = rotary_alias};
