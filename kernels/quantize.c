// Linear quantization: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear, and products and convolutions of quantized operands. Plain
// loops: a training graph holds them as an exception. Nothing flows back through integers.
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "../ir/narrow.h"
#include "index_input.h"
#include "ops.h"
#include "window.h"

typedef struct QuantizeAttrs { int64_t axis, block_size, output_dtype, precision, saturate; } QuantizeAttrs;
#define AXIS_SPEC {"axis", ATTR_INT, offsetof(QuantizeAttrs, axis), .default_int = 1, .help = "axis that scales are along"}
#define BLOCK_SPEC {"block_size", ATTR_INT, offsetof(QuantizeAttrs, block_size), .min = 0, .max = INT64_MAX, .help = "elements that share a scale; 0: no blocks"}
#define OUTPUT_SPEC {"output_dtype", ATTR_INT, offsetof(QuantizeAttrs, output_dtype), .help = "TensorProto number of the result's type; 0: by the other inputs"}
static const AttrSpec quantize_attrs[] = {
  AXIS_SPEC, BLOCK_SPEC, OUTPUT_SPEC,
  {"precision", ATTR_INT, offsetof(QuantizeAttrs, precision), .help = "TensorProto number of the type that is divided in; 0: the scale's"},
  {"saturate", ATTR_INT, offsetof(QuantizeAttrs, saturate), .default_int = 1, .min = 0, .max = 1, .help = "concerns 8-bit floats only"},
  {0},
};
static const AttrSpec dequantize_attrs[] = {AXIS_SPEC, BLOCK_SPEC, OUTPUT_SPEC, {0}};

// ---- Which scale an element has: one for all, one per index of the axis, or one per block of it ----------------------------------

static Status check_scales(const Node *node, const Type *x, const Type *scale, int64_t *block) {
  const QuantizeAttrs *a = node->attrs;
  char x_text[160], s_text[160];
  *block = 0;
  if (type_elems(scale) == 1 && !(scale->rank == x->rank && a->block_size)) return STATUS_OK;
  int axis;
  TRY(type_axis(a->axis, x->rank, node->name, &axis));
  if (scale->rank == 1 && scale->dims[0] == x->dims[axis]) {
    *block = 1;
    return STATUS_OK;
  }
  bool fits = scale->rank == x->rank && a->block_size > 0 && scale->dims[axis] == (x->dims[axis] + a->block_size - 1) / a->block_size;
  for (int i = 0; fits && i < x->rank; i++) fits = i == axis || scale->dims[i] == x->dims[i];
  if (!fits)
    FAIL(MALFORMED, node->name, "%s: scale %s does not fit %s on axis %d with block_size %" PRId64, node->op->name, type_text(scale, s_text, sizeof s_text),
         type_text(x, x_text, sizeof x_text), axis, a->block_size);
  *block = a->block_size;
  return STATUS_OK;
}

static int64_t scale_element(const Type *x, const Type *scale, int64_t axis, int64_t block, int64_t e) {
  if (block == 0) return 0;
  if (axis < 0) axis += x->rank;
  int64_t at = 0, stride = 1;
  for (int i = x->rank - 1; i >= 0; i--) {
    int64_t index = e % x->dims[i];
    e /= x->dims[i];
    if (scale->rank == 1) {
      if (i == axis) return index;
      continue;
    }
    at += (i == axis ? index / block : index) * stride;
    stride *= scale->dims[i];
  }
  return at;
}

static Status known_dtype(const Node *node, int64_t number, Dtype *out) {
  if (number < 0 || number > 64 || !dtype_known((int)number))
    FAIL(UNSUPPORTED, node->name, "%s: element type number %" PRId64 " is not supported", node->op->name, number);
  *out = (Dtype)number;
  return STATUS_OK;
}

static bool is_quantized(Dtype d) { return dtype_is_narrow(d) || (dtype_is_integer(d) && dtype_bytes(d) <= 2); }

// `v` as a number of type `d`.
static double rounded_to(Dtype d, double v) {
  unsigned char bytes[8];
  element_write(bytes, d, 0, v);
  return element_read(bytes, d, 0);
}

// Least and greatest number of an integer type of at most 16 bits; false: a float.
static bool whole_range(Dtype d, double *low, double *high) {
  bool is_signed = dtype_class(d) == DTYPE_CLASS_INT || d == DTYPE_I4 || d == DTYPE_I2;
  if (!is_signed && dtype_class(d) != DTYPE_CLASS_UINT && d != DTYPE_U4 && d != DTYPE_U2) return false;
  int bits = dtype_packed_bits(d);
  *low = is_signed ? -ldexp(1, bits - 1) : 0;
  *high = ldexp(1, is_signed ? bits - 1 : bits) - 1;
  return true;
}

// Rounds to nearest even, adds the zero point, saturates.
static void write_quantized(const KernelContext *c, int64_t e, double v, double zero, bool saturate) {
  Dtype d = c->out[0].type->dtype;
  double low, high;
  if (!whole_range(d, &low, &high)) {
    ((unsigned char *)c->out[0].data)[e] = narrow_from_double(d, v + zero, saturate, ROUND_UP);
    return;
  }
  double whole = rint(v) + zero;
  element_write(c->out[0].data, d, e, whole != whole ? zero : whole < low ? low : whole > high ? high : whole);
}

// ---- QuantizeLinear: inputs x, scale, zero_point? ------------------------------------------------------------------------------

static Status quantize_infer(Node *node, Arena *arena) {
  const QuantizeAttrs *a = node->attrs;
  const Type *x = input_type(node, 0), *scale = input_type(node, 1);
  Dtype d = DTYPE_U8, precision;
  int64_t block;
  if (!(dtype_is_float(x->dtype) || x->dtype == DTYPE_I32) || !(dtype_is_float(scale->dtype) || scale->dtype == DTYPE_I32 || scale->dtype == DTYPE_F8E8M0))
    FAIL(MALFORMED, node->name, "QuantizeLinear: x of %s and scale of %s", dtype_name(x->dtype), dtype_name(scale->dtype));
  TRY(check_scales(node, x, scale, &block));
  if (a->precision) TRY(known_dtype(node, a->precision, &precision));
  if (a->output_dtype) TRY(known_dtype(node, a->output_dtype, &d));
  if (node_has_input(node, 2)) {
    if (a->output_dtype && d != input_type(node, 2)->dtype) FAIL(MALFORMED, node->name, "QuantizeLinear: output_dtype and the type of the zero point differ");
    d = input_type(node, 2)->dtype;
    if (!type_same_shape(scale, input_type(node, 2)) && type_elems(scale) != type_elems(input_type(node, 2)))
      FAIL(MALFORMED, node->name, "QuantizeLinear: scale and zero point must have one shape");
  }
  if (!is_quantized(d)) FAIL(MALFORMED, node->name, "QuantizeLinear: to %s", dtype_name(d));
  node->outputs[0]->type = *x;
  node->outputs[0]->type.dtype = d;
  return STATUS_OK;
}

static Status quantize_run(const KernelContext *c) {
  const QuantizeAttrs *a = c->node->attrs;
  const Type *x = c->in[0].type, *scale = c->in[1].type;
  int64_t block;
  TRY(check_scales(c->node, x, scale, &block));
  Dtype precision = a->precision ? (Dtype)a->precision : dtype_is_float(scale->dtype) ? scale->dtype : DTYPE_F32;
  for (int64_t e = 0, n = out_elems(c, 0); e < n; e++) {
    int64_t s = scale_element(x, scale, a->axis, block, e);
    double quotient = rounded_to(precision, rounded_to(precision, in_f(c, 0, e)) / rounded_to(precision, in_f(c, 1, s)));
    write_quantized(c, e, quotient, has_input(c, 2) ? in_f(c, 2, s) : 0, a->saturate);
  }
  return STATUS_OK;
}

const Op op_QuantizeLinear = {.name = "QuantizeLinear", .domain = "", .min_inputs = 2, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1,
                              .nondifferentiable = 6, .attrs = quantize_attrs, .attrs_bytes = sizeof(QuantizeAttrs), .infer = quantize_infer,
                              .run_ref = quantize_run};

// ---- DequantizeLinear: inputs x, scale, zero_point? ----------------------------------------------------------------------------

static Status dequantize_infer(Node *node, Arena *arena) {
  const QuantizeAttrs *a = node->attrs;
  const Type *x = input_type(node, 0), *scale = input_type(node, 1);
  Dtype d = scale->dtype;
  int64_t block;
  if (!(is_quantized(x->dtype) || x->dtype == DTYPE_I32)) FAIL(MALFORMED, node->name, "DequantizeLinear: x of %s", dtype_name(x->dtype));
  TRY(check_scales(node, x, scale, &block));
  if (a->output_dtype) TRY(known_dtype(node, a->output_dtype, &d));
  if (!dtype_is_float(d)) FAIL(MALFORMED, node->name, "DequantizeLinear: to %s; a float is needed", dtype_name(d));
  if (node_has_input(node, 2) && (input_type(node, 2)->dtype != x->dtype || type_elems(scale) != type_elems(input_type(node, 2))))
    FAIL(MALFORMED, node->name, "DequantizeLinear: the zero point must have the type of x and the shape of scale");
  node->outputs[0]->type = *x;
  node->outputs[0]->type.dtype = d;
  return STATUS_OK;
}

static Status dequantize_run(const KernelContext *c) {
  const QuantizeAttrs *a = c->node->attrs;
  const Type *x = c->in[0].type, *scale = c->in[1].type;
  int64_t block;
  TRY(check_scales(c->node, x, scale, &block));
  for (int64_t e = 0, n = out_elems(c, 0); e < n; e++) {
    int64_t s = scale_element(x, scale, a->axis, block, e);
    out_f(c, 0, e, (in_f(c, 0, e) - (has_input(c, 2) ? in_f(c, 2, s) : 0)) * in_f(c, 1, s));
  }
  return STATUS_OK;
}

const Op op_DequantizeLinear = {.name = "DequantizeLinear", .domain = "", .min_inputs = 2, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1,
                                .nondifferentiable = 6, .attrs = dequantize_attrs, .attrs_bytes = sizeof(QuantizeAttrs), .infer = dequantize_infer,
                                .run_ref = dequantize_run};

// ---- DynamicQuantizeLinear: outputs y uint8, scale, zero point ----------------------------------------------------------------

// ONNX has it for float32 only; in double it is what the same graph computes under --precision fp64.
static Status dynamic_infer(Node *node, Arena *arena) {
  const Type *x = input_type(node, 0);
  if (x->dtype != DTYPE_F32 && x->dtype != DTYPE_F64) FAIL(MALFORMED, node->name, "DynamicQuantizeLinear: x of %s; float or double is needed", dtype_name(x->dtype));
  Type types[3] = {*x, type_scalar(x->dtype), type_scalar(DTYPE_U8)};
  types[0].dtype = DTYPE_U8;
  for (int i = 0; i < 3; i++)
    if (node_has_output(node, i)) node->outputs[i]->type = types[i];
  return STATUS_OK;
}

static Status dynamic_run(const KernelContext *c) {
  Dtype d = c->in[0].type->dtype;
  double low = 0, high = 0;
  for (int64_t i = 0, n = in_elems(c, 0); i < n; i++) {
    double x = in_f(c, 0, i);
    low = x < low ? x : low;
    high = x > high ? x : high;
  }
  double scale = rounded_to(d, rounded_to(d, high - low) / 255);
  double zero = scale == 0 ? 0 : rint(fmin(fmax(rounded_to(d, -low / scale), 0), 255));
  for (int64_t i = 0, n = has_output(c, 0) ? in_elems(c, 0) : 0; i < n; i++) {
    double v = scale == 0 ? zero : rint(rounded_to(d, in_f(c, 0, i) / scale)) + zero;
    ((unsigned char *)c->out[0].data)[i] = (unsigned char)(v > 255 ? 255 : v >= 0 ? v : 0);
  }
  if (has_output(c, 1)) out_f(c, 1, 0, scale);
  if (has_output(c, 2)) out_i(c, 2, 0, (int64_t)zero);
  return STATUS_OK;
}

const Op op_DynamicQuantizeLinear = {.name = "DynamicQuantizeLinear", .domain = "", .min_inputs = 1, .max_inputs = 1, .min_outputs = 3,
                                     .max_outputs = 3, .nondifferentiable = 1, .infer = dynamic_infer, .run_ref = dynamic_run};

// ---- Products: MatMulInteger (A, B, a_zero?, b_zero?) and QLinearMatMul (a, scale, zero, b, scale, zero, y scale, y zero) ---------

typedef struct QProduct {
  int64_t m, n, k;
  Type batch;                       // axes of the result before its last two; dtype unused
  int64_t a_batch[RANK_MAX], b_batch[RANK_MAX];
} QProduct;

static Status q_product(const Node *node, const Type *a, const Type *b, QProduct *p, Type *y) {
  char a_text[160], b_text[160];
  if (!is_quantized(a->dtype) || !is_quantized(b->dtype) || a->rank < 1 || b->rank < 1)
    FAIL(MALFORMED, node->name, "%s: %s x %s", node->op->name, type_text(a, a_text, sizeof a_text), type_text(b, b_text, sizeof b_text));
  Type wide_a = *a, wide_b = *b;
  if (a->rank == 1) wide_a = type_make(a->dtype, 2, (const int64_t[]){1, a->dims[0]});
  if (b->rank == 1) wide_b = type_make(b->dtype, 2, (const int64_t[]){b->dims[0], 1});
  p->m = wide_a.dims[wide_a.rank - 2];
  p->k = wide_a.dims[wide_a.rank - 1];
  p->n = wide_b.dims[wide_b.rank - 1];
  if (p->k != wide_b.dims[wide_b.rank - 2])
    FAIL(MALFORMED, node->name, "%s: %s x %s: columns and rows differ", node->op->name, type_text(a, a_text, sizeof a_text), type_text(b, b_text, sizeof b_text));
  wide_a.rank -= 2;
  wide_b.rank -= 2;
  TRY(type_broadcast(&wide_a, &wide_b, node->name, &p->batch));
  type_strides(&wide_a, &p->batch, p->a_batch);
  type_strides(&wide_b, &p->batch, p->b_batch);
  *y = p->batch;
  if (y->rank + 2 > RANK_MAX) FAIL(UNSUPPORTED, node->name, "%s: a result of more than %d dimensions", node->op->name, RANK_MAX);
  if (a->rank > 1) y->dims[y->rank++] = p->m;
  if (b->rank > 1) y->dims[y->rank++] = p->n;
  return STATUS_OK;
}

// Scale or zero point of input `i`: absent 0, one for all, one per row (of a) or column (of b), or those per batch.
static double parameter(const KernelContext *c, int i, int64_t batch, int64_t line, int64_t lines) {
  if (!has_input(c, i)) return 0;
  int64_t n = in_elems(c, i);
  return in_f(c, i, n == 1 ? 0 : n == lines ? line : batch * lines + line);
}

static Status check_parameters(const Node *node, const int *which, int count, int64_t batches, int64_t lines) {
  for (int k = 0; k < count; k++) {
    if (!node_has_input(node, which[k])) continue;
    int64_t n = type_elems(input_type(node, which[k]));
    if (n != 1 && n != lines && n != batches * lines)
      FAIL(MALFORMED, node->name, "%s: '%s' has %" PRId64 " elements for %" PRId64 " rows or columns", node->op->name, node->inputs[which[k]]->name, n, lines);
  }
  return STATUS_OK;
}

// Calls `store` with every integer sum of the product of inputs ia and ib with zero points za and zb.
typedef void (*StoreSum)(const KernelContext *c, const QProduct *p, int64_t at, int64_t batch, int64_t row, int64_t column, int64_t sum);
static void each_sum(const KernelContext *c, const QProduct *p, int ia, int ib, int za, int zb, StoreSum store) {
  int64_t batches = type_elems(&p->batch);
  for (int64_t t = 0, at = 0; t < batches; t++) {
    int64_t a_at = 0, b_at = 0, rest = t;
    for (int d = p->batch.rank - 1; d >= 0; d--) {
      a_at += rest % p->batch.dims[d] * p->a_batch[d];
      b_at += rest % p->batch.dims[d] * p->b_batch[d];
      rest /= p->batch.dims[d];
    }
    for (int64_t i = 0; i < p->m; i++)
      for (int64_t j = 0; j < p->n; j++) {
        int64_t sum = 0, a_zero = (int64_t)parameter(c, za, t, i, p->m), b_zero = (int64_t)parameter(c, zb, t, j, p->n);
        for (int64_t k = 0; k < p->k; k++)
          sum += (in_i(c, ia, (a_at * p->m + i) * p->k + k) - a_zero) * (in_i(c, ib, (b_at * p->k + k) * p->n + j) - b_zero);
        store(c, p, at++, t, i, j, sum);
      }
  }
}

static Status matmul_integer_infer(Node *node, Arena *arena) {
  QProduct p;
  TRY(q_product(node, input_type(node, 0), input_type(node, 1), &p, &node->outputs[0]->type));
  TRY(check_parameters(node, (const int[]){2}, 1, type_elems(&p.batch), p.m));
  TRY(check_parameters(node, (const int[]){3}, 1, type_elems(&p.batch), p.n));
  node->outputs[0]->type.dtype = DTYPE_I32;
  return STATUS_OK;
}

static void store_integer(const KernelContext *c, const QProduct *p, int64_t at, int64_t batch, int64_t row, int64_t column, int64_t sum) { out_i(c, 0, at, sum); }

static Status matmul_integer_run(const KernelContext *c) {
  QProduct p;
  Type y;
  TRY(q_product(c->node, c->in[0].type, c->in[1].type, &p, &y));
  each_sum(c, &p, 0, 1, 2, 3, store_integer);
  return STATUS_OK;
}

const Op op_MatMulInteger = {.name = "MatMulInteger", .domain = "", .min_inputs = 2, .max_inputs = 4, .min_outputs = 1, .max_outputs = 1,
                             .nondifferentiable = 15, .infer = matmul_integer_infer, .run_ref = matmul_integer_run};

static Status q_matmul_infer(Node *node, Arena *arena) {
  QProduct p;
  TRY(q_product(node, input_type(node, 0), input_type(node, 3), &p, &node->outputs[0]->type));
  TRY(check_parameters(node, (const int[]){1, 2}, 2, type_elems(&p.batch), p.m));
  TRY(check_parameters(node, (const int[]){4, 5}, 2, type_elems(&p.batch), p.n));
  TRY(check_parameters(node, (const int[]){6, 7}, 2, type_elems(&p.batch), p.m));
  if (!is_quantized(input_type(node, 7)->dtype)) FAIL(MALFORMED, node->name, "QLinearMatMul: a result of %s", dtype_name(input_type(node, 7)->dtype));
  node->outputs[0]->type.dtype = input_type(node, 7)->dtype;
  return STATUS_OK;
}

// In the scale's type, as a chain of operators would compute it: a_scale b_scale / y_scale, then times the sum.
static void store_scaled(const KernelContext *c, const QProduct *p, int64_t at, int64_t batch, int64_t row, int64_t column, int64_t sum) {
  Dtype d = c->in[1].type->dtype;
  double scales = rounded_to(d, parameter(c, 1, batch, row, p->m) * parameter(c, 4, batch, column, p->n));
  scales = rounded_to(d, scales / parameter(c, 6, batch, row, p->m));
  write_quantized(c, at, (double)sum * scales, parameter(c, 7, batch, row, p->m), true);
}

static Status q_matmul_run(const KernelContext *c) {
  QProduct p;
  Type y;
  TRY(q_product(c->node, c->in[0].type, c->in[3].type, &p, &y));
  each_sum(c, &p, 0, 3, 2, 5, store_scaled);
  return STATUS_OK;
}

const Op op_QLinearMatMul = {.name = "QLinearMatMul", .domain = "", .min_inputs = 8, .max_inputs = 8, .min_outputs = 1, .max_outputs = 1,
                             .nondifferentiable = 255, .infer = q_matmul_infer, .run_ref = q_matmul_run};

// ---- Convolutions: ConvInteger (x, w, x_zero?, w_zero?) and QLinearConv (x, scale, zero, w, scale, zero, y scale, y zero, B?) -----

typedef struct QConvAttrs { WindowAttrs window; int64_t group; } QConvAttrs;
static const AttrSpec q_conv_attrs[] = {
  WINDOW_ATTRS(QConvAttrs),
  {"group", ATTR_INT, offsetof(QConvAttrs, group), .default_int = 1, .min = 1, .max = INT32_MAX, .help = "groups of channels"},
  {0},
};

static Status q_conv_make(const Node *node, const Type *x, const Type *w, Window *window, Type *y) {
  const QConvAttrs *a = node->attrs;
  char x_text[160], w_text[160];
  bool fits = is_quantized(x->dtype) && is_quantized(w->dtype) && x->rank >= 3 && x->rank == w->rank && x->dims[1] == w->dims[1] * a->group && w->dims[0] % a->group == 0;
  if (!fits)
    FAIL(MALFORMED, node->name, "%s: x %s and w %s with group %" PRId64, node->op->name, type_text(x, x_text, sizeof x_text),
         type_text(w, w_text, sizeof w_text), a->group);
  TRY(window_make(node, &a->window, x->rank - 2, x->dims + 2, w->dims + 2, false, window));
  *y = *x;
  y->dims[1] = w->dims[0];
  for (int d = 0; d < window->n_axes; d++) y->dims[2 + d] = window->out[WINDOW_AXES - window->n_axes + d];
  return STATUS_OK;
}

typedef void (*StoreConv)(const KernelContext *c, int64_t at, int64_t channel, int64_t sum);
static Status each_window(const KernelContext *c, int ix, int iw, int zx, int zw, StoreConv store) {
  const Type *x = c->in[ix].type, *w = c->in[iw].type;
  Window window;
  Type y;
  TRY(q_conv_make(c->node, x, w, &window, &y));
  int64_t in = window_elems(window.in), out = window_elems(window.out), taps = window_elems(window.kernel);
  int64_t groups = ((const QConvAttrs *)c->node->attrs)->group, channels = w->dims[1], per_group = w->dims[0] / groups;
  for (int64_t n = 0, at = 0; n < x->dims[0]; n++)
    for (int64_t oc = 0; oc < w->dims[0]; oc++)
      for (int64_t o = 0; o < out; o++, at++) {
        int64_t sum = 0, x_zero = (int64_t)parameter(c, zx, 0, 0, 1), w_zero = (int64_t)parameter(c, zw, 0, oc, w->dims[0]);
        for (int64_t ic = 0; ic < channels; ic++)
          for (int64_t k = 0; k < taps; k++) {
            int64_t under = window_element(&window, o, k);
            if (under < 0) continue;
            int64_t xv = in_i(c, ix, (n * x->dims[1] + oc / per_group * channels + ic) * in + under);
            sum += (xv - x_zero) * (in_i(c, iw, (oc * channels + ic) * taps + k) - w_zero);
          }
        store(c, at, oc, sum);
      }
  return STATUS_OK;
}

static Status conv_integer_infer(Node *node, Arena *arena) {
  Window window;
  TRY(q_conv_make(node, input_type(node, 0), input_type(node, 1), &window, &node->outputs[0]->type));
  TRY(check_parameters(node, (const int[]){2}, 1, 1, 1));
  TRY(check_parameters(node, (const int[]){3}, 1, 1, input_type(node, 1)->dims[0]));
  node->outputs[0]->type.dtype = DTYPE_I32;
  return STATUS_OK;
}

static void store_conv_integer(const KernelContext *c, int64_t at, int64_t channel, int64_t sum) { out_i(c, 0, at, sum); }
static Status conv_integer_run(const KernelContext *c) { return each_window(c, 0, 1, 2, 3, store_conv_integer); }

const Op op_ConvInteger = {.name = "ConvInteger", .domain = "", .min_inputs = 2, .max_inputs = 4, .min_outputs = 1, .max_outputs = 1,
                           .nondifferentiable = 15, .attrs = q_conv_attrs, .attrs_bytes = sizeof(QConvAttrs), .infer = conv_integer_infer,
                           .run_ref = conv_integer_run};

static Status q_conv_infer(Node *node, Arena *arena) {
  Window window;
  TRY(q_conv_make(node, input_type(node, 0), input_type(node, 3), &window, &node->outputs[0]->type));
  int64_t channels = input_type(node, 3)->dims[0];
  TRY(check_parameters(node, (const int[]){1, 2, 6, 7}, 4, 1, 1));
  TRY(check_parameters(node, (const int[]){4, 5}, 2, 1, channels));
  Type bias = type_vector(DTYPE_I32, channels);
  if (node_has_input(node, 8) && !type_equal(input_type(node, 8), &bias)) FAIL(MALFORMED, node->name, "QLinearConv: B must be int32[%" PRId64 "]", channels);
  if (!is_quantized(input_type(node, 7)->dtype)) FAIL(MALFORMED, node->name, "QLinearConv: a result of %s", dtype_name(input_type(node, 7)->dtype));
  node->outputs[0]->type.dtype = input_type(node, 7)->dtype;
  return STATUS_OK;
}

static void store_conv_scaled(const KernelContext *c, int64_t at, int64_t channel, int64_t sum) {
  if (has_input(c, 8)) sum += in_i(c, 8, channel);
  double scales = rounded_to(DTYPE_F32, in_f(c, 1, 0) * parameter(c, 4, 0, channel, c->in[3].type->dims[0]));
  scales = rounded_to(DTYPE_F32, scales / in_f(c, 6, 0));
  write_quantized(c, at, (double)sum * scales, in_f(c, 7, 0), true);
}
static Status q_conv_run(const KernelContext *c) { return each_window(c, 0, 3, 2, 5, store_conv_scaled); }

const Op op_QLinearConv = {.name = "QLinearConv", .domain = "", .min_inputs = 8, .max_inputs = 9, .min_outputs = 1, .max_outputs = 1,
                           .nondifferentiable = 511, .attrs = q_conv_attrs, .attrs_bytes = sizeof(QConvAttrs), .infer = q_conv_infer,
                           .run_ref = q_conv_run};
