// Cast, CastLike, BitCast, Identity.
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "../ir/narrow.h"
#include "cost.h"
#include "index_input.h"
#include "ops.h"

typedef struct CastAttrs { const char *round_mode; int64_t saturate, to; } CastAttrs;
static const AttrSpec cast_attrs[] = {
  {"round_mode", ATTR_STRING, offsetof(CastAttrs, round_mode), .default_string = "up", .help = "concerns float8e8m0 only: up, down or nearest"},
  {"saturate", ATTR_INT, offsetof(CastAttrs, saturate), .default_int = 1, .min = 0, .max = 1, .help = "concerns 8-bit floats only"},
  {"to", ATTR_INT, offsetof(CastAttrs, to), .required = true, .help = "TensorProto number of the result's element type"},
  {0},
};

static Status round_mode(const Node *node, const char *name, RoundMode *out) {
  if (!strcmp(name, "up")) *out = ROUND_UP;
  else if (!strcmp(name, "down")) *out = ROUND_DOWN;
  else if (!strcmp(name, "nearest")) *out = ROUND_NEAREST;
  else FAIL(MALFORMED, node->name, "%s: round_mode '%s'; up, down and nearest exist", node->op->name, name);
  return STATUS_OK;
}

static Status cast_infer(Node *node, Arena *arena) {
  int64_t to = ((const CastAttrs *)node->attrs)->to;
  RoundMode mode;
  TRY(round_mode(node, ((const CastAttrs *)node->attrs)->round_mode, &mode));
  if (to < 0 || to > 64 || !dtype_known((int)to)) FAIL(UNSUPPORTED, node->name, "Cast: element type number %" PRId64 " is not supported", to);
  node->outputs[0]->type = node->inputs[0]->type;
  node->outputs[0]->type.dtype = (Dtype)to;
  return STATUS_OK;
}

static bool cast_alias(const Node *node, int output, int input, Alias *out) {
  if (node->inputs[0]->type.dtype != node->outputs[0]->type.dtype) return false;
  *out = (Alias){.kind = ALIAS_VIEW, .input = 0};
  return true;
}

// Between floats: rounded once. Float to integer: towards zero, saturating, NaN is 0 (ONNX leaves these open). Integer to narrower integer: wraps.
// Integer to f32: rounded once. To bool: unequal zero.
static bool cast_common(const KernelContext *c);

// To a narrow type. Its integers wrap: what is out of range is open for floats, and wraps for wider integers.
static void cast_to_narrow(const KernelContext *c, bool saturate, RoundMode mode) {
  Dtype from = c->in[0].type->dtype, to = c->out[0].type->dtype;
  bool is_float = dtype_packed_bits(to) == 8 || to == DTYPE_F4E2M1;
  for (int64_t i = 0, n = out_elems(c, 0); i < n; i++)
    ((unsigned char *)c->out[0].data)[i] = narrow_from_double(to, element_read(c->in[0].data, from, i), saturate && is_float, mode);
}

static Status cast_ref(const KernelContext *c) {
  Dtype from = c->in[0].type->dtype, to = c->out[0].type->dtype;
  const void *x = c->in[0].data;
  void *y = c->out[0].data;
  int64_t n = out_elems(c, 0);
  if ((x == y && from == to) || cast_common(c)) return STATUS_OK;
  if (dtype_is_narrow(to) && from != to) {
    const CastAttrs *a = c->node->attrs;
    RoundMode mode;
    TRY(round_mode(c->node, a->round_mode, &mode));
    cast_to_narrow(c, a->saturate, mode);
    return STATUS_OK;
  }
  if (to == DTYPE_F32 && (from == DTYPE_I64 || from == DTYPE_U64)) {
    for (int64_t i = 0; i < n; i++) {
      int64_t v = element_read_int(x, from, i);
      element_write(y, to, i, from == DTYPE_U64 ? (float)(uint64_t)v : (float)v);
    }
  } else if (to == DTYPE_U64 && dtype_is_float(from)) {
    for (int64_t i = 0; i < n; i++) {
      double v = element_read(x, from, i);
      element_write_int(y, to, i, (int64_t)(v >= 0x1p64 ? UINT64_MAX : v > 0 ? (uint64_t)v : 0));
    }
  } else if (dtype_is_integer(to) && dtype_is_float(from)) {
    int bits = 8 * (int)dtype_bytes(to);
    bool is_signed = dtype_class(to) == DTYPE_CLASS_INT;
    double low = is_signed ? -ldexp(1, bits - 1) : 0, high = ldexp(1, is_signed ? bits - 1 : bits) - 1;   // 2^63 - 1 rounds up: element_write saturates
    for (int64_t i = 0; i < n; i++) {
      double v = element_read(x, from, i);
      element_write(y, to, i, v < low ? low : v > high ? high : v);
    }
  } else {
    elements_convert(y, to, x, from, n);
  }
  return STATUS_OK;
}

// Pairs that C's own conversion does exactly as said above, without a call per element. False: another pair.
static bool cast_common(const KernelContext *c) {
  int64_t n = out_elems(c, 0);
#define PAIR(from_id, From, to_id, To)                                                          \
  if (c->in[0].type->dtype == DTYPE_##from_id && c->out[0].type->dtype == DTYPE_##to_id) {      \
    const From *x = c->in[0].data;                                                              \
    To *y = c->out[0].data;                                                                     \
    for (int64_t i = 0; i < n; i++) y[i] = (To)x[i];                                            \
    return true;                                                                                \
  }
#define PAIRS_TO(to_id, To) \
  PAIR(F32, float, to_id, To) PAIR(F64, double, to_id, To) PAIR(I64, int64_t, to_id, To) PAIR(I32, int32_t, to_id, To) PAIR(BOOL, bool, to_id, To)
  PAIRS_TO(F32, float)
  PAIRS_TO(F64, double)
  PAIR(I64, int64_t, BOOL, bool)
  PAIR(I32, int32_t, I64, int64_t)
  PAIR(BOOL, bool, I64, int64_t)
#define HALF(id, widen, narrow)                                                                  \
  if (c->in[0].type->dtype == DTYPE_##id && c->out[0].type->dtype == DTYPE_F32) {                \
    c->loops->widen(c->out[0].data, c->in[0].data, n);                                           \
    return true;                                                                                 \
  }                                                                                              \
  if (c->in[0].type->dtype == DTYPE_F32 && c->out[0].type->dtype == DTYPE_##id) {                \
    c->loops->narrow(c->out[0].data, c->in[0].data, n);                                          \
    return true;                                                                                 \
  }
  HALF(BF16, widen_bf16, narrow_bf16)
  HALF(F16, widen_f16, narrow_f16)
#undef HALF
#undef PAIRS_TO
#undef PAIR
  return false;
}

static Status cast_grad(Grad *g) {
  Dtype from = g->node->inputs[0]->type.dtype;
  if (g->wanted[0] && dtype_is_float(from) && dtype_is_float(g->node->outputs[0]->type.dtype))
    g->dx[0] = emit(g->emit, &op_Cast, INPUTS(g->dy[0]), ATTRS(A_INT("to", from)));
  return STATUS_OK;
}

const Op op_Cast = {.name = "Cast", .domain = "", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1, .flags = OP_ELEMENTWISE,
                    .attrs = cast_attrs, .attrs_bytes = sizeof(CastAttrs), .infer = cast_infer, .grad = cast_grad, .run_ref = cast_ref, .alias = cast_alias,
                    .cost = cost_arithmetic};

static Status identity_infer(Node *node, Arena *arena) {
  node->outputs[0]->type = node->inputs[0]->type;
  return STATUS_OK;
}

static Status identity_run(const KernelContext *c) {
  int64_t bytes = type_bytes(c->out[0].type);
  if (bytes && c->out[0].data != c->in[0].data) memcpy(c->out[0].data, c->in[0].data, (size_t)bytes);
  return STATUS_OK;
}

static bool identity_alias(const Node *node, int output, int input, Alias *out) {
  *out = (Alias){.kind = ALIAS_VIEW, .input = 0};
  return true;
}

static Status identity_grad(Grad *g) {
  g->dx[0] = g->dy[0];
  return STATUS_OK;
}

const Op op_Identity = {.name = "Identity", .domain = "", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1, .flags = OP_ELEMENTWISE,
                        .infer = identity_infer, .grad = identity_grad, .run_ref = identity_run, .alias = identity_alias, .cost = cost_move};

// ---- CastLike: the type of input 1, whose values do not matter ----

static const AttrSpec cast_like_attrs[] = {
  {"round_mode", ATTR_STRING, offsetof(CastAttrs, round_mode), .default_string = "up", .help = "concerns float8e8m0 only: up, down or nearest"},
  {"saturate", ATTR_INT, offsetof(CastAttrs, saturate), .default_int = 1, .min = 0, .max = 1, .help = "concerns 8-bit floats only"},
  {0},
};

static Status cast_like_infer(Node *node, Arena *arena) {
  RoundMode mode;
  TRY(round_mode(node, ((const CastAttrs *)node->attrs)->round_mode, &mode));
  node->outputs[0]->type = node->inputs[0]->type;
  node->outputs[0]->type.dtype = node->inputs[1]->type.dtype;
  return STATUS_OK;
}

static bool cast_like_alias(const Node *node, int output, int input, Alias *out) { return input == 0 && cast_alias(node, output, input, out); }

const Op op_CastLike = {.name = "CastLike", .domain = "", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1,
                        .nondifferentiable = 1 << 1, .attrs = cast_like_attrs, .attrs_bytes = sizeof(CastAttrs), .infer = cast_like_infer,
                        .grad = cast_grad, .run_ref = cast_ref, .alias = cast_like_alias};

// ---- BitCast: the same bytes as another type of the same width ----

typedef struct BitCastAttrs { int64_t to; } BitCastAttrs;
static const AttrSpec bit_cast_attrs[] = {
  {"to", ATTR_INT, offsetof(BitCastAttrs, to), .required = true, .help = "TensorProto number of the result's element type"},
  {0},
};

static Status bit_cast_infer(Node *node, Arena *arena) {
  int64_t to = ((const BitCastAttrs *)node->attrs)->to;
  Dtype from = node->inputs[0]->type.dtype;
  if (to < 0 || to > 64 || !dtype_known((int)to)) FAIL(UNSUPPORTED, node->name, "BitCast: element type number %" PRId64 " is not supported", to);
  if (dtype_packed_bits((Dtype)to) != dtype_packed_bits(from))
    FAIL(MALFORMED, node->name, "BitCast: from %s to %s; their widths must be equal", dtype_name(from), dtype_name((Dtype)to));
  node->outputs[0]->type = node->inputs[0]->type;
  node->outputs[0]->type.dtype = (Dtype)to;
  return STATUS_OK;
}

const Op op_BitCast = {.name = "BitCast", .domain = "", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 1,
                       .attrs = bit_cast_attrs, .attrs_bytes = sizeof(BitCastAttrs), .infer = bit_cast_infer, .run_ref = identity_run,
                       .alias = identity_alias};
