// Signals: HannWindow, HammingWindow, BlackmanWindow, MelWeightMatrix, DFT, STFT. DFT by its definition, in f64.
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "index_input.h"
#include "ops.h"

// ---- Windows: input size ---------------------------------------------------------------------------------------------------------

typedef struct WindowFunctionAttrs { int64_t output_datatype, periodic; } WindowFunctionAttrs;
#define OUTPUT_SPEC(T) {"output_datatype", ATTR_INT, offsetof(T, output_datatype), .default_int = DTYPE_F32, .help = "TensorProto number of the result's type"}
static const AttrSpec window_function_attrs[] = {
  OUTPUT_SPEC(WindowFunctionAttrs),
  {"periodic", ATTR_INT, offsetof(WindowFunctionAttrs, periodic), .default_int = 1, .min = 0, .max = 1, .help = "0: symmetric"},
  {0},
};

static Status number_dtype(const Node *node, int64_t number, Dtype *out) {
  Dtype d = number > 0 && number < 64 && dtype_known((int)number) ? (Dtype)number : DTYPE_NONE;
  if (!dtype_is_float(d) && !dtype_is_integer(d))
    FAIL(UNSUPPORTED, node->name, "%s: results of element type number %" PRId64 " are not supported", node->op->name, number);
  *out = d;
  return STATUS_OK;
}

static Status window_function_infer(Node *node, Arena *arena) {
  int64_t size;
  int n;
  Dtype d;
  TRY(number_dtype(node, ((const WindowFunctionAttrs *)node->attrs)->output_datatype, &d));
  TRY(index_constant(node, 0, &size, 1, &n));
  if (n != 1 || size < 0) FAIL(MALFORMED, node->name, "%s: a size that is one number of at least 0 is needed", node->op->name);
  node->outputs[0]->type = type_vector(d, size);
  return STATUS_OK;
}

// a0 - a1 cos(x) + a2 cos(2 x)
static Status window_function_run(const KernelContext *c) {
  const Op *op = c->node->op;
  double a0 = op == &op_HannWindow ? 0.5 : op == &op_HammingWindow ? 25.0 / 46 : 0.42, a1 = op == &op_BlackmanWindow ? 0.5 : 1 - a0;
  double a2 = op == &op_BlackmanWindow ? 0.08 : 0;
  int64_t n = out_elems(c, 0), period = ((const WindowFunctionAttrs *)c->node->attrs)->periodic ? n : n - 1;
  for (int64_t i = 0; i < n; i++) {
    double x = period ? 2 * M_PI * (double)i / (double)period : 0;
    element_write(c->out[0].data, c->out[0].type->dtype, i, period ? a0 - a1 * cos(x) + a2 * cos(2 * x) : 1);
  }
  return STATUS_OK;
}

#define WINDOW_FUNCTION(row)                                                                                                     \
  const Op op_##row = {.name = #row, .domain = "", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1,        \
                       .nondifferentiable = 1, .attrs = window_function_attrs, .attrs_bytes = sizeof(WindowFunctionAttrs),      \
                       .infer = window_function_infer, .run_ref = window_function_run}
WINDOW_FUNCTION(HannWindow);
WINDOW_FUNCTION(HammingWindow);
WINDOW_FUNCTION(BlackmanWindow);

// ---- MelWeightMatrix: inputs bins, dft_length, sample_rate, lower and upper edge in hertz -----------------------------------------

typedef struct MelAttrs { int64_t output_datatype; } MelAttrs;
static const AttrSpec mel_attrs[] = {OUTPUT_SPEC(MelAttrs), {0}};

static Status mel_infer(Node *node, Arena *arena) {
  int64_t bins, length;
  int n_bins, n_length;
  Dtype d;
  TRY(number_dtype(node, ((const MelAttrs *)node->attrs)->output_datatype, &d));
  TRY(index_constant(node, 0, &bins, 1, &n_bins));
  TRY(index_constant(node, 1, &length, 1, &n_length));
  if (n_bins != 1 || n_length != 1 || bins < 1 || length < 1) FAIL(MALFORMED, node->name, "MelWeightMatrix: bins and dft_length must be positive numbers");
  for (int i = 2; i < 5; i++)
    if (type_elems(input_type(node, i)) != 1) FAIL(MALFORMED, node->name, "MelWeightMatrix: '%s' must be one number", node->inputs[i]->name);
  node->outputs[0]->type = type_make(d, 2, (const int64_t[]){length / 2 + 1, bins});
  return STATUS_OK;
}

// Triangles whose corners lie evenly on the mel scale, cut to whole spectrogram bins.
static Status mel_run(const KernelContext *c) {
  int64_t length = in_i(c, 1, 0), rate = in_i(c, 2, 0), rows = c->out[0].type->dims[0], bins = c->out[0].type->dims[1];
  double low = 2595 * log10(1 + in_f(c, 3, 0) / 700), high = 2595 * log10(1 + in_f(c, 4, 0) / 700), step = (high - low) / (double)(bins + 2);
  if (rate <= 0) FAIL(CHECK, c->node->name, "MelWeightMatrix: sample_rate %" PRId64, rate);
  for (int64_t i = 0; i < bins; i++) {
    double corner[3];
    for (int k = 0; k < 3; k++) {
      double hertz = 700 * (pow(10, (low + step * (double)(i + k)) / 2595) - 1);
      corner[k] = floor((double)(length + 1) * hertz / (double)rate);
    }
    for (int64_t j = 0; j < rows; j++) {
      double x = (double)j, w = 0;
      if (x >= corner[0] && x <= corner[1]) w = corner[1] == corner[0] ? (x == corner[1]) : (x - corner[0]) / (corner[1] - corner[0]);
      else if (x > corner[1] && x < corner[2]) w = (corner[2] - x) / (corner[2] - corner[1]);
      element_write(c->out[0].data, c->out[0].type->dtype, j * bins + i, w);
    }
  }
  return STATUS_OK;
}

const Op op_MelWeightMatrix = {.name = "MelWeightMatrix", .domain = "", .min_inputs = 5, .max_inputs = 5, .min_outputs = 1, .max_outputs = 1,
                               .nondifferentiable = 31, .attrs = mel_attrs, .attrs_bytes = sizeof(MelAttrs), .infer = mel_infer, .run_ref = mel_run};

// ---- DFT: inputs x [..., n, ..., 1 or 2], dft_length?, axis? -----------------------------------------------------------------------

typedef struct DftAttrs { int64_t inverse, onesided, axis, length, step; AttrInts dims; } DftAttrs;   // those from `axis` on: of the gradients
#define ONESIDED_SPEC(fallback)                                                                                      \
  {"onesided", ATTR_INT, offsetof(DftAttrs, onesided), .default_int = fallback, .min = 0, .max = 1,                  \
   .help = "1: only the first half of the spectrum of a real signal"}
static const AttrSpec dft_attrs[] = {
  {"inverse", ATTR_INT, offsetof(DftAttrs, inverse), .min = 0, .max = 1, .help = "1: from the spectrum back"},
  ONESIDED_SPEC(0),
  {0},
};

static const AttrSpec dft_grad_attrs[] = {
  {"inverse", ATTR_INT, offsetof(DftAttrs, inverse), .min = 0, .max = 1, .help = "DFT's"},
  ONESIDED_SPEC(0),
  {"axis", ATTR_INT, offsetof(DftAttrs, axis), .default_int = -2, .help = "axis that was transformed"},
  {"length", ATTR_INT, offsetof(DftAttrs, length), .required = true, .min = 1, .max = INT64_C(1) << 46, .help = "of the transform"},
  {"dims", ATTR_INTS, offsetof(DftAttrs, dims), .required = true, .min = 0, .max = INT64_C(1) << 46, .help = "dimensions of the signal"},
  {0},
};

static Status signal_type(const Node *node, Dtype dtype, Type *out) {
  AttrInts dims = ((const DftAttrs *)node->attrs)->dims;
  if (dims.n > RANK_MAX) FAIL(MALFORMED, node->name, "attribute dims has %" PRId64 " numbers", dims.n);
  *out = type_make(dtype, (int)dims.n, dims.items);
  return type_check(out, node->name);
}

// Angle k m of the circle in `length` parts.
static double angle_of(int64_t k, int64_t m, int64_t length) {
  return 2 * M_PI * (double)((unsigned __int128)k * (uint64_t)m % (uint64_t)length) / (double)length;
}

// What is transformed: `outer` x n x `inner` numbers of `parts` parts, to `outer` x m x inner of out_parts. `length`: that of the transform.
typedef struct Transform { int64_t outer, inner, n, m, length; int parts, out_parts; bool inverse, half_in; } Transform;

static Status dft_make(const Node *node, const Type *x, int64_t axis, int64_t length, Transform *t, Type *y) {
  const DftAttrs *a = node->attrs;
  int at, parts = x->rank ? (int)x->dims[x->rank - 1] : 0;
  if (!dtype_is_float(x->dtype) || x->rank < 2 || (parts != 1 && parts != 2))
    FAIL(MALFORMED, node->name, "%s: floats whose last axis holds 1 (real) or 2 (complex) parts are needed", node->op->name);
  TRY(type_axis(axis, x->rank, node->name, &at));
  if (at == x->rank - 1) FAIL(MALFORMED, node->name, "%s: the last axis holds the parts of a number", node->op->name);
  if (a->onesided && !a->inverse && parts == 2) FAIL(MALFORMED, node->name, "%s: one-sided transforms are of real signals", node->op->name);
  bool half_in = a->onesided && a->inverse;
  if (length < 0) length = half_in ? 2 * (x->dims[at] - 1) : x->dims[at];
  if (length < 1) FAIL(MALFORMED, node->name, "%s: a transform of length %" PRId64, node->op->name, length);
  *t = (Transform){.outer = 1, .inner = 1, .n = x->dims[at], .length = length, .m = a->onesided && !a->inverse ? length / 2 + 1 : length,
                   .parts = parts, .out_parts = half_in ? 1 : 2, .inverse = a->inverse, .half_in = half_in};
  for (int i = 0; i < at; i++) t->outer *= x->dims[i];
  for (int i = at + 1; i < x->rank - 1; i++) t->inner *= x->dims[i];
  *y = *x;
  y->dims[at] = t->m;
  y->dims[x->rank - 1] = t->out_parts;
  return STATUS_OK;
}

// A missing axis is the one before the parts.
static Status dft_infer(Node *node, Arena *arena) {
  int64_t axis = -2, length = -1;
  int n;
  Transform t;
  if (node_has_input(node, 1)) TRY(index_constant(node, 1, &length, 1, &n));
  if (node_has_input(node, 2)) TRY(index_constant(node, 2, &axis, 1, &n));
  return dft_make(node, input_type(node, 0), axis, length, &t, &node->outputs[0]->type);
}

// Part `part` of element (o, k, i); zero beyond the signal; the mirrored conjugate beyond the half of a one-sided spectrum.
static double dft_read(const KernelContext *c, const Transform *t, int64_t o, int64_t k, int64_t i, int part) {
  bool mirrored = t->half_in && k > t->length / 2;
  if (mirrored) k = t->length - k;
  if (k >= t->n || part >= t->parts) return 0;
  double v = in_f(c, 0, ((o * t->n + k) * t->inner + i) * t->parts + part);
  return mirrored && part == 1 ? -v : v;
}

static Status dft_run(const KernelContext *c) {
  int64_t axis = has_input(c, 2) ? in_i(c, 2, 0) : -2, length = has_input(c, 1) ? in_i(c, 1, 0) : -1;
  Transform t;
  Type y;
  TRY(dft_make(c->node, c->in[0].type, axis, length, &t, &y));
  if (!type_same_shape(&y, c->out[0].type)) FAIL(MALFORMED, c->node->name, "DFT: axis or length at run time are not those that the plan was made for");
  double sign = t.inverse ? 1 : -1, scale = t.inverse ? 1 / (double)t.length : 1;
  for (int64_t o = 0; o < t.outer; o++)
    for (int64_t m = 0; m < t.m; m++)
      for (int64_t i = 0; i < t.inner; i++) {
        double real = 0, imaginary = 0;
        int64_t terms = t.half_in || t.n > t.length ? t.length : t.n;
        for (int64_t k = 0; k < terms; k++) {
          double angle = sign * angle_of(k, m, t.length);
          double re = dft_read(c, &t, o, k, i, 0), im = dft_read(c, &t, o, k, i, 1);
          real += re * cos(angle) - im * sin(angle);
          imaginary += re * sin(angle) + im * cos(angle);
        }
        int64_t to = ((o * t.m + m) * t.inner + i) * t.out_parts;
        out_f(c, 0, to, real * scale);
        if (t.out_parts == 2) out_f(c, 0, to + 1, imaginary * scale);
      }
  return STATUS_OK;
}

static Status dft_grad(Grad *g) {
  const Node *node = g->node;
  const DftAttrs *a = node->attrs;
  const Type *x = input_type(node, 0);
  int64_t axis = -2, length = -1;
  int n;
  Transform t;
  Type y;
  if (node_has_input(node, 1)) TRY(index_constant(node, 1, &length, 1, &n));
  if (node_has_input(node, 2)) TRY(index_constant(node, 2, &axis, 1, &n));
  TRY(dft_make(node, x, axis, length, &t, &y));
  g->dx[0] = emit(g->emit, &op_DFTGrad, INPUTS(g->dy[0]),
                  ATTRS(A_INT("inverse", a->inverse), A_INT("onesided", a->onesided), A_INT("axis", axis), A_INT("length", t.length),
                        A_INTS("dims", x->dims, x->rank)));
  return STATUS_OK;
}

const Op op_DFT = {.name = "DFT", .domain = "", .policy = POLICY_F32, .min_inputs = 1, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 6,
                   .attrs = dft_attrs, .attrs_bytes = sizeof(DftAttrs), .infer = dft_infer, .grad = dft_grad, .run_ref = dft_run};

// ---- DFTGrad: input dy. The transposed transform: what an element was multiplied by, dy is ----------------------------------------

typedef struct Complex { double re, im; } Complex;

// What dY of one number gives to an input that was turned by `angle`.
static Complex turned_back(Complex dy, double angle) {
  return (Complex){dy.re * cos(angle) + dy.im * sin(angle), dy.im * cos(angle) - dy.re * sin(angle)};
}

static Status dft_grad_make(const Node *node, const Type *dy, Transform *t, Type *x) {
  const DftAttrs *a = node->attrs;
  Type y;
  TRY(signal_type(node, dy->dtype, x));
  TRY(dft_make(node, x, a->axis, a->length, t, &y));
  if (!type_equal(dy, &y)) FAIL(MALFORMED, node->name, "DFTGrad: dy '%s' does not fit dims and length", node->inputs[0]->name);
  return STATUS_OK;
}

static Status dft_grad_infer(Node *node, Arena *arena) {
  Transform t;
  return dft_grad_make(node, input_type(node, 0), &t, &node->outputs[0]->type);
}

// Element k of a signal is factor k of the sums; of half a spectrum also factor length - k, mirrored.
static Complex dft_back(const KernelContext *c, const Transform *t, int64_t o, int64_t k, int64_t i) {
  Complex sum = {0, 0};
  if (t->half_in ? k > t->length / 2 : k >= t->length) return sum;
  for (int mirrored = 0; mirrored < (t->half_in && k > 0 && 2 * k < t->length ? 2 : 1); mirrored++)
    for (int64_t m = 0; m < t->m; m++) {
      int64_t at = ((o * t->m + m) * t->inner + i) * t->out_parts;
      double angle = angle_of(mirrored ? t->length - k : k, m, t->length);
      Complex part = turned_back((Complex){in_f(c, 0, at), t->out_parts == 2 ? in_f(c, 0, at + 1) : 0}, t->inverse ? angle : -angle);
      sum.re += part.re;
      sum.im += mirrored ? -part.im : part.im;
    }
  return sum;
}

static Status dft_grad_run(const KernelContext *c) {
  Transform t;
  Type x;
  TRY(dft_grad_make(c->node, c->in[0].type, &t, &x));
  double scale = t.inverse ? 1 / (double)t.length : 1;
  for (int64_t o = 0; o < t.outer; o++)
    for (int64_t k = 0; k < t.n; k++)
      for (int64_t i = 0; i < t.inner; i++) {
        Complex sum = dft_back(c, &t, o, k, i);
        int64_t to = ((o * t.n + k) * t.inner + i) * t.parts;
        out_f(c, 0, to, sum.re * scale);
        if (t.parts == 2) out_f(c, 0, to + 1, sum.im * scale);
      }
  return STATUS_OK;
}

const Op op_DFTGrad = {.name = "DFTGrad", .domain = "tessera", .policy = POLICY_F32, .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1,
                       .attrs = dft_grad_attrs, .attrs_bytes = sizeof(DftAttrs), .infer = dft_grad_infer, .run_ref = dft_grad_run};

// ---- STFT: inputs signal [batch, n, 1 or 2], frame_step, window?, frame_length? -> [batch, frames, bins, 2] -----------------------

static const AttrSpec stft_attrs[] = {ONESIDED_SPEC(1), {0}};

typedef struct Frames { int64_t step, length, count, bins; } Frames;

static Status stft_make(const Node *node, const Type *x, const Type *window, int64_t step, int64_t length, Frames *f) {
  if (!dtype_is_float(x->dtype) || x->rank != 3 || (x->dims[2] != 1 && x->dims[2] != 2))
    FAIL(MALFORMED, node->name, "STFT: a signal of floats [batch, n, 1 or 2] is needed");
  if (window && (window->rank != 1 || (length >= 0 && window->dims[0] != length)))
    FAIL(MALFORMED, node->name, "STFT: the window must have as many elements as a frame");
  if (length < 0) length = window ? window->dims[0] : x->dims[1];
  if (step < 1 || length < 1 || length > x->dims[1])
    FAIL(MALFORMED, node->name, "STFT: frames of %" PRId64 " every %" PRId64 " in a signal of %" PRId64, length, step, x->dims[1]);
  bool onesided = ((const DftAttrs *)node->attrs)->onesided;
  if (onesided && x->dims[2] == 2) FAIL(MALFORMED, node->name, "STFT: one-sided transforms are of real signals");
  *f = (Frames){step, length, (x->dims[1] - length) / step + 1, onesided ? length / 2 + 1 : length};
  return STATUS_OK;
}

static Status stft_infer(Node *node, Arena *arena) {
  int64_t step = 0, length = -1;
  int n;
  Frames f;
  const Type *x = input_type(node, 0);
  TRY(index_constant(node, 1, &step, 1, &n));
  if (node_has_input(node, 3)) TRY(index_constant(node, 3, &length, 1, &n));
  TRY(stft_make(node, x, node_has_input(node, 2) ? input_type(node, 2) : NULL, step, length, &f));
  node->outputs[0]->type = type_make(x->dtype, 4, (const int64_t[]){x->dims[0], f.count, f.bins, 2});
  return STATUS_OK;
}

static Status stft_run(const KernelContext *c) {
  const Type *x = c->in[0].type;
  Frames f;
  TRY(stft_make(c->node, x, has_input(c, 2) ? c->in[2].type : NULL, in_i(c, 1, 0), has_input(c, 3) ? in_i(c, 3, 0) : -1, &f));
  Type y = type_make(x->dtype, 4, (const int64_t[]){x->dims[0], f.count, f.bins, 2});
  if (!type_same_shape(&y, c->out[0].type)) FAIL(MALFORMED, c->node->name, "STFT: the frames at run time are not those that the plan was made for");
  int64_t parts = x->dims[2], to = 0;
  for (int64_t b = 0; b < x->dims[0]; b++)
    for (int64_t frame = 0; frame < f.count; frame++)
      for (int64_t m = 0; m < f.bins; m++, to += 2) {
        double real = 0, imaginary = 0;
        for (int64_t k = 0; k < f.length; k++) {
          double angle = -angle_of(k, m, f.length);
          int64_t at = (b * x->dims[1] + frame * f.step + k) * parts;
          double w = has_input(c, 2) ? in_f(c, 2, k) : 1, re = w * in_f(c, 0, at), im = parts == 2 ? w * in_f(c, 0, at + 1) : 0;
          real += re * cos(angle) - im * sin(angle);
          imaginary += re * sin(angle) + im * cos(angle);
        }
        out_f(c, 0, to, real);
        out_f(c, 0, to + 1, imaginary);
      }
  return STATUS_OK;
}

static Status stft_grad(Grad *g) {
  const Node *node = g->node;
  const Type *x = input_type(node, 0);
  int64_t step = 0, length = -1;
  int n;
  Frames f;
  bool windowed = node_has_input(node, 2);
  TRY(index_constant(node, 1, &step, 1, &n));
  if (node_has_input(node, 3)) TRY(index_constant(node, 3, &length, 1, &n));
  TRY(stft_make(node, x, windowed ? input_type(node, 2) : NULL, step, length, &f));
  const bool wanted[] = {g->wanted[0], windowed && g->wanted[2]};
  Node *grad = emit_node(g->emit, &op_STFTGrad, INPUTS(g->dy[0], node->inputs[0], windowed ? node->inputs[2] : NULL), wanted[1] ? 2 : 1, wanted,
                         ATTRS(A_INT("onesided", ((const DftAttrs *)node->attrs)->onesided), A_INT("step", f.step), A_INT("length", f.length)));
  if (grad && wanted[0]) g->dx[0] = grad->outputs[0];
  if (grad && wanted[1]) g->dx[2] = grad->outputs[1];
  return STATUS_OK;
}

const Op op_STFT = {.name = "STFT", .domain = "", .policy = POLICY_F32, .min_inputs = 2, .max_inputs = 4, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 10,
                    .attrs = stft_attrs, .attrs_bytes = sizeof(DftAttrs), .infer = stft_infer, .grad = stft_grad, .run_ref = stft_run};

// ---- STFTGrad: inputs dy, signal, window? -> dsignal, dwindow -----------------------------------------------------------------------

static const AttrSpec stft_grad_attrs[] = {
  ONESIDED_SPEC(1),
  {"step", ATTR_INT, offsetof(DftAttrs, step), .required = true, .min = 1, .max = INT64_C(1) << 46, .help = "between two frames"},
  {"length", ATTR_INT, offsetof(DftAttrs, length), .required = true, .min = 1, .max = INT64_C(1) << 46, .help = "of a frame"},
  {0},
};

static Status stft_grad_make(const Node *node, Frames *f) {
  const DftAttrs *a = node->attrs;
  const Type *x = input_type(node, 1);
  TRY(stft_make(node, x, node_has_input(node, 2) ? input_type(node, 2) : NULL, a->step, a->length, f));
  Type y = type_make(x->dtype, 4, (const int64_t[]){x->dims[0], f->count, f->bins, 2});
  if (!type_equal(input_type(node, 0), &y)) FAIL(MALFORMED, node->name, "STFTGrad: dy '%s' does not fit the signal and the frames", node->inputs[0]->name);
  return STATUS_OK;
}

static Status stft_grad_infer(Node *node, Arena *arena) {
  Frames f;
  TRY(stft_grad_make(node, &f));
  if (node->outputs[0]) node->outputs[0]->type = *input_type(node, 1);
  if (!node_has_output(node, 1)) return STATUS_OK;
  if (!node_has_input(node, 2)) FAIL(MALFORMED, node->name, "STFTGrad: output 1 is the gradient of an absent window");
  node->outputs[1]->type = *input_type(node, 2);
  return STATUS_OK;
}

// The gradient of element k of a frame, behind the window.
static Complex stft_back(const KernelContext *c, const Frames *f, int64_t b, int64_t frame, int64_t k) {
  Complex sum = {0, 0};
  for (int64_t m = 0; m < f->bins; m++) {
    int64_t at = ((b * f->count + frame) * f->bins + m) * 2;
    Complex part = turned_back((Complex){in_f(c, 0, at), in_f(c, 0, at + 1)}, -angle_of(k, m, f->length));
    sum.re += part.re;
    sum.im += part.im;
  }
  return sum;
}

static void stft_signal_back(const KernelContext *c, const Frames *f) {
  const Type *x = c->in[1].type;
  int64_t n = x->dims[1], parts = x->dims[2];
  for (int64_t b = 0; b < x->dims[0]; b++)
    for (int64_t p = 0; p < n; p++) {
      Complex sum = {0, 0};
      for (int64_t frame = 0; frame < f->count; frame++) {
        int64_t k = p - frame * f->step;
        if (k < 0 || k >= f->length) continue;
        double w = has_input(c, 2) ? in_f(c, 2, k) : 1;
        Complex part = stft_back(c, f, b, frame, k);
        sum.re += w * part.re;
        sum.im += w * part.im;
      }
      out_f(c, 0, (b * n + p) * parts, sum.re);
      if (parts == 2) out_f(c, 0, (b * n + p) * parts + 1, sum.im);
    }
}

static void stft_window_back(const KernelContext *c, const Frames *f) {
  const Type *x = c->in[1].type;
  int64_t n = x->dims[1], parts = x->dims[2];
  for (int64_t k = 0; k < f->length; k++) {
    double sum = 0;
    for (int64_t b = 0; b < x->dims[0]; b++)
      for (int64_t frame = 0; frame < f->count; frame++) {
        int64_t at = (b * n + frame * f->step + k) * parts;
        Complex part = stft_back(c, f, b, frame, k);
        sum += in_f(c, 1, at) * part.re + (parts == 2 ? in_f(c, 1, at + 1) * part.im : 0);
      }
    out_f(c, 1, k, sum);
  }
}

static Status stft_grad_run(const KernelContext *c) {
  Frames f;
  TRY(stft_grad_make(c->node, &f));
  if (has_output(c, 0)) stft_signal_back(c, &f);
  if (has_output(c, 1)) stft_window_back(c, &f);
  return STATUS_OK;
}

const Op op_STFTGrad = {.name = "STFTGrad", .domain = "tessera", .policy = POLICY_F32, .min_inputs = 2, .max_inputs = 3, .min_outputs = 1, .max_outputs = 2,
                        .attrs = stft_grad_attrs, .attrs_bytes = sizeof(DftAttrs), .infer = stft_grad_infer, .run_ref = stft_grad_run};
