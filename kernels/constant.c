// Constant, ConstantOfShape, Range: results that depend on attributes and constants only.
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "index_input.h"
#include "ops.h"
#include "strided.h"

// ---- Constant: exactly one attribute is given ----

typedef struct ConstantAttrs {
  const Weight *value;
  float value_float;
  AttrFloats value_floats;
  int64_t value_int;
  AttrInts value_ints;
} ConstantAttrs;
static const AttrSpec constant_attrs[] = {
  {"value", ATTR_TENSOR, offsetof(ConstantAttrs, value), .help = "the tensor"},
  {"value_float", ATTR_FLOAT, offsetof(ConstantAttrs, value_float), .default_float = NAN, .help = "a float scalar"},
  {"value_floats", ATTR_FLOATS, offsetof(ConstantAttrs, value_floats), .help = "a float vector"},
  {"value_int", ATTR_INT, offsetof(ConstantAttrs, value_int), .default_int = ATTR_ABSENT, .help = "an int64 scalar"},
  {"value_ints", ATTR_INTS, offsetof(ConstantAttrs, value_ints), .help = "an int64 vector"},
  {0},
};

static Status constant_infer(Node *node, Arena *arena) {
  const ConstantAttrs *a = node->attrs;
  bool has_float = !attr_is_default(node, &constant_attrs[1]);
  int given = (a->value != NULL) + has_float + (a->value_floats.n > 0) + (a->value_int != ATTR_ABSENT) + (a->value_ints.n > 0);
  if (given > 1) FAIL(MALFORMED, node->name, "Constant: %d values are given; exactly one is needed", given);
  if (a->value) node->outputs[0]->type = a->value->type;
  else if (has_float) node->outputs[0]->type = type_scalar(DTYPE_F32);
  else if (a->value_floats.n) node->outputs[0]->type = type_vector(DTYPE_F32, a->value_floats.n);
  else if (a->value_int != ATTR_ABSENT) node->outputs[0]->type = type_scalar(DTYPE_I64);
  else if (a->value_ints.n) node->outputs[0]->type = type_vector(DTYPE_I64, a->value_ints.n);
  else FAIL(UNSUPPORTED, node->name, "Constant: no value of a supported kind (value, value_float, value_floats, value_int, value_ints; not empty)");
  return STATUS_OK;
}

static Status constant_run(const KernelContext *c) {
  const ConstantAttrs *a = c->node->attrs;
  const void *bytes = a->value ? a->value->bytes
                      : a->value_floats.n ? (const void *)a->value_floats.items
                      : a->value_ints.n ? (const void *)a->value_ints.items
                      : a->value_int != ATTR_ABSENT ? (const void *)&a->value_int : (const void *)&a->value_float;
  int64_t n = type_bytes(c->out[0].type);
  if (n) memcpy(c->out[0].data, bytes, (size_t)n);
  return STATUS_OK;
}

const Op op_Constant = {.name = "Constant", .domain = "", .min_inputs = 0, .max_inputs = 0, .min_outputs = 1, .max_outputs = 1,
                        .attrs = constant_attrs, .attrs_bytes = sizeof(ConstantAttrs), .infer = constant_infer, .run_ref = constant_run};

// ---- ConstantOfShape ----

typedef struct FillAttrs { const Weight *value; } FillAttrs;
static const AttrSpec fill_attrs[] = {
  {"value", ATTR_TENSOR, offsetof(FillAttrs, value), .help = "one element; float 0 when absent"},
  {0},
};

static Status fill_infer(Node *node, Arena *arena) {
  const Weight *value = ((const FillAttrs *)node->attrs)->value;
  if (value && type_elems(&value->type) != 1) FAIL(MALFORMED, node->name, "ConstantOfShape: value has %" PRId64 " elements, not 1", type_elems(&value->type));
  Type y = {.dtype = value ? value->type.dtype : DTYPE_F32};
  TRY(index_constant(node, 0, y.dims, RANK_MAX, &y.rank));
  node->outputs[0]->type = y;
  return STATUS_OK;
}

static Status fill_run(const KernelContext *c) {
  static const unsigned char zeros[8];
  const Weight *value = ((const FillAttrs *)c->node->attrs)->value;
  int64_t to[RANK_MAX], from[RANK_MAX] = {0};
  const Type *y = c->out[0].type;
  strided_row_major(y->dims, y->rank, to);
  strided_copy(c->out[0].data, to, value ? value->bytes : zeros, from, y->dims, y->rank, dtype_bytes(y->dtype));
  return STATUS_OK;
}

const Op op_ConstantOfShape = {.name = "ConstantOfShape", .domain = "", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1,
                               .nondifferentiable = 1, .attrs = fill_attrs, .attrs_bytes = sizeof(FillAttrs), .infer = fill_infer, .run_ref = fill_run};

// ---- Range: start, limit, delta ----

static Status range_count(const Node *node, const Weight *const w[3], int64_t *count) {
  if (dtype_is_float(w[0]->type.dtype)) {
    double start = weight_read_float(w[0], 0), limit = weight_read_float(w[1], 0), delta = weight_read_float(w[2], 0);
    double n = ceil((limit - start) / delta);
    if (delta == 0 || !isfinite(n)) FAIL(MALFORMED, node->name, "Range: from %g to %g by %g has no number of elements", start, limit, delta);
    if (n > 0x1p46) FAIL(RESOURCE, node->name, "Range: %g elements", n);
    *count = n > 0 ? (int64_t)n : 0;
    return STATUS_OK;
  }
  int64_t start = weight_read_int(w[0], 0), limit = weight_read_int(w[1], 0), delta = weight_read_int(w[2], 0);
  if (delta == 0) FAIL(MALFORMED, node->name, "Range: delta is 0");
  __int128 distance = (__int128)limit - start, by = delta;
  if (by < 0) distance = -distance, by = -by;
  __int128 n = distance > 0 ? (distance + by - 1) / by : 0;
  if (n > (__int128)1 << 46) FAIL(RESOURCE, node->name, "Range: more than 2^46 elements");
  *count = (int64_t)n;
  return STATUS_OK;
}

static Status range_infer(Node *node, Arena *arena) {
  const Weight *w[3];
  Dtype dtype = input_type(node, 0)->dtype;
  for (int i = 0; i < 3; i++) {
    const Type *t = input_type(node, i);
    if (t->dtype != dtype || type_elems(t) != 1 || !(dtype_is_float(dtype) || dtype_is_integer(dtype)))
      FAIL(MALFORMED, node->name, "Range: input %d '%s' must be one number of the type of input 0", i, node->inputs[i]->name);
    w[i] = value_const(node->inputs[i]);
    if (!w[i]) FAIL(UNSUPPORTED, node->name, "Range: input %d '%s' must be a constant, since it decides the shape of the result", i, node->inputs[i]->name);
  }
  int64_t count;
  TRY(range_count(node, w, &count));
  node->outputs[0]->type = type_vector(dtype, count);
  return STATUS_OK;
}

static Status range_run(const KernelContext *c) {
  if (dtype_is_float(c->out[0].type->dtype))
    for (int64_t i = 0, n = out_elems(c, 0); i < n; i++) out_f(c, 0, i, in_f(c, 0, 0) + (double)i * in_f(c, 2, 0));
  else
    for (int64_t i = 0, n = out_elems(c, 0); i < n; i++)
      out_i(c, 0, i, (int64_t)((uint64_t)in_i(c, 0, 0) + (uint64_t)i * (uint64_t)in_i(c, 2, 0)));
  return STATUS_OK;
}

const Op op_Range = {.name = "Range", .domain = "", .min_inputs = 3, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 7,
                     .infer = range_infer, .run_ref = range_run};
