// Adam and AdamW whose moments are kept in 8 bits: dynamic block-wise quantization (Dettmers et al., 2022), as bitsandbytes has it. Each block of 256
// elements has its largest magnitude as a scale, and a code for each element: the index of the nearest of 256 numbers in [-1, 1] (the mean) or [0, 1]
// (the mean square), which lie densest near 0. The step itself is torch.optim's, on the moments before they are rounded again.
//
// Blocks count from each parameter's start and lie within chunks, so that no cut between ranks changes a bit.
#include <math.h>

#include "../ir/state.h"
#include "optimizer.h"
#include "ops.h"

typedef struct Adam8Attrs { const char *beta1, *beta2, *eps, *weight_decay; int64_t decoupled; } Adam8Attrs;
static const AttrSpec adam8_attrs[] = {
    {"beta1", ATTR_STRING, offsetof(Adam8Attrs, beta1), .default_string = "0.9", .help = "decay of the mean, a decimal"},
    {"beta2", ATTR_STRING, offsetof(Adam8Attrs, beta2), .default_string = "0.999", .help = "decay of the mean square, a decimal"},
    {"eps", ATTR_STRING, offsetof(Adam8Attrs, eps), .default_string = "1e-8", .help = "added to the denominator, a decimal"},
    {"weight_decay", ATTR_STRING, offsetof(Adam8Attrs, weight_decay), .default_string = "0", .help = "a decimal"},
    {"decoupled", ATTR_INT, offsetof(Adam8Attrs, decoupled), .min = 0, .max = 1, .help = "1: AdamW; 0: the decay joins the gradient"},
    {0},
};
enum { IN_MEAN_CODE = IN_STATE, IN_MEAN_SCALE, IN_SQUARE_CODE, IN_SQUARE_SCALE, STATES = 4, CODES = 256, BLOCK = ADAM8_BLOCK };
_Static_assert((int)BLOCK == (int)STATE_BLOCK_ELEMS, "scales are of blocks");

// ---- The codes ----------------------------------------------------------------------------------------------------------------

// Seven decades: in decade i, 2^i numbers (of each sign) or 2^(i+1), in the middles of equal parts of [0.1, 1]; then 0 and 1.
static void code_book(bool is_signed, CodeBook *out) {
  enum { DECADES = 7 };
  int n = is_signed ? CODES / 2 - 1 : 0, below = n;         // where 0 stands
  out->values[n++] = 0;
  for (int i = 0; i < DECADES; i++) {
    int parts = 1 << (is_signed ? i : i + 1);
    double decade = pow(10, i - (DECADES - 1)), width = 0.9 / parts;
    for (int k = 0; k < parts; k++) {
      float value = (float)(decade * (0.1 + (k + 0.5) * width));
      out->values[n++] = value;
      if (is_signed) out->values[--below] = -value;
    }
  }
  out->values[n] = 1;
  for (int i = 0; i + 1 < CODES; i++) out->edges[i] = (out->values[i] + out->values[i + 1]) / 2;
}

static uint8_t nearest_code(const CodeBook *book, float x) {
  int code = 0;
  for (int step = CODES / 2; step; step /= 2) code += step & -(int)(x > book->edges[code + step - 1]);      // no branch: it could not be predicted
  return (uint8_t)code;
}

// ---- The step -----------------------------------------------------------------------------------------------------------------

static Status adam8_parse(const Node *node, Moments *out) {
  const Adam8Attrs *a = node->attrs;
  return step_parse_moments(node, a->beta1, a->beta2, a->eps, a->weight_decay, out);
}

static Status adam8_infer(Node *node, Arena *arena) {
  Moments of;
  TRY(adam8_parse(node, &of));
  TRY(step_infer_first(node, IN_STATE));
  const Type *param = &node->inputs[IN_PARAM]->type;
  int64_t blocks = (type_elems(param) + BLOCK - 1) / BLOCK;
  for (int i = 0; i < STATES; i++) {
    Type want = i % 2 ? type_vector(DTYPE_F32, blocks) : *param;
    if (!(i % 2)) want.dtype = DTYPE_U8;
    char have_text[160], want_text[160];
    if (!type_equal(&node->inputs[IN_STATE + i]->type, &want))
      FAIL(MALFORMED, node->name, "state %d is %s; it must be %s", i, type_text(&node->inputs[IN_STATE + i]->type, have_text, sizeof have_text),
           type_text(&want, want_text, sizeof want_text));
    node->outputs[1 + i]->type = want;
  }
  return STATUS_OK;
}

static Status adam8_step(const KernelContext *c, Adam8Step *out) {
  Moments of;
  TRY(adam8_parse(c->node, &of));
  bool decoupled = ((const Adam8Attrs *)c->node->attrs)->decoupled;
  int64_t t = in_i(c, IN_T, 0);
  if (t < 1) FAIL(CHECK, c->node->name, "t = %lld; steps count from 1", (long long)t);
  double lr = in_f(c, IN_LR, 0);
  *out = (Adam8Step){.scale = in_f(c, IN_SCALE, 0), .keep = decoupled ? 1 - lr * of.weight_decay : 1, .l2 = decoupled ? 0 : of.weight_decay,
                     .beta1 = of.beta1, .beta2 = of.beta2, .eps = of.eps, .rate = lr / (1 - pow(of.beta1, (double)t)), .root2 = sqrt(1 - pow(of.beta2, (double)t))};
  code_book(true, &out->mean);
  code_book(false, &out->square);
  step_carry(c);
  return STATUS_OK;
}

// The moments of a block into their codes.
static void encode(const CodeBook *book, const double *x, int64_t n, uint8_t *codes, float *out_scale) {
  double most = 0;
  for (int64_t k = 0; k < n; k++)
    if (fabs(x[k]) > most || isnan(x[k])) most = fabs(x[k]);
  *out_scale = (float)most;
  double inverse = *out_scale > 0 ? 1 / (double)*out_scale : 0;
  for (int64_t k = 0; k < n; k++) codes[k] = nearest_code(book, (float)(x[k] * inverse));
}

// All in double, also where operands are floats: codes are the same then.
static Status adam8_ref(const KernelContext *c) {
  Adam8Step s;
  TRY(adam8_step(c, &s));
  uint8_t *mean_codes = c->out[1].data, *square_codes = c->out[3].data;
  float *mean_scales = c->out[2].data, *square_scales = c->out[4].data;
  double mean[BLOCK], square[BLOCK];
  for (int64_t at = 0, n = in_elems(c, IN_PARAM), b = 0; at < n; at += BLOCK, b++) {
    int64_t count = n - at < BLOCK ? n - at : BLOCK;
    for (int64_t k = 0; k < count; k++) {
      int64_t e = at + k;
      double p = in_f(c, IN_PARAM, e), g = step_grad(c, e, s.scale) + s.l2 * p;
      double m = (double)s.mean.values[mean_codes[e]] * mean_scales[b], v = (double)s.square.values[square_codes[e]] * square_scales[b];
      mean[k] = m + (1 - s.beta1) * (g - m);
      square[k] = s.beta2 * v + (1 - s.beta2) * g * g;
      out_f(c, 0, e, p * s.keep - s.rate * mean[k] / (sqrt(square[k]) / s.root2 + s.eps));
    }
    encode(&s.mean, mean, count, mean_codes + at, &mean_scales[b]);
    encode(&s.square, square, count, square_codes + at, &square_scales[b]);
  }
  return STATUS_OK;
}

static Status adam8_cpu(const KernelContext *c) {
  Adam8Step s;
  TRY(adam8_step(c, &s));
  Adam8Slice slice = {c->out[0].data, c->in[IN_GRAD].data, c->out[1].data, c->out[3].data, c->out[2].data, c->out[4].data, in_elems(c, IN_PARAM)};
  c->loops->adam8(&slice, &s);
  return STATUS_OK;
}

const Op op_Adam8 = {
    .name = "Adam8", .domain = "tessera", .min_inputs = 9, .max_inputs = 9, .min_outputs = 5, .max_outputs = 5, .flags = OP_OPTIMIZER,
    .nondifferentiable = 0x1ff, .attrs = adam8_attrs, .attrs_bytes = sizeof(Adam8Attrs), .infer = adam8_infer, .run_ref = adam8_ref, .run_cpu = adam8_cpu,
    .alias = step_alias};
