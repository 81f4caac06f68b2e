#include "type.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const int64_t TYPE_BYTES_MAX = INT64_C(1) << 40;

bool dtype_known(int number) { return number != DTYPE_NONE && dtype_bytes((Dtype)number) > 0; }

const char *dtype_name(Dtype dtype) {
  switch (dtype) {
#define DTYPE(id, number, text, bytes, class) \
  case DTYPE_##id: return text;
#include "dtype.def"
#undef DTYPE
  default: return "undefined";
  }
}

Dtype dtype_from_name(const char *name) {
#define DTYPE(id, number, text, bytes, class) \
  if (!strcmp(name, text)) return DTYPE_##id;
#include "dtype.def"
#undef DTYPE
  return DTYPE_NONE;
}

Dtype dtype_of_sums(Dtype dtype) { return dtype == DTYPE_F16 || dtype == DTYPE_BF16 ? DTYPE_F32 : dtype; }

int64_t dtype_bytes(Dtype dtype) {
  switch (dtype) {
#define DTYPE(id, number, text, size, class) \
  case DTYPE_##id: return size;
#include "dtype.def"
#undef DTYPE
  default: return 0;
  }
}

DtypeClass dtype_class(Dtype dtype) {
  switch (dtype) {
#define DTYPE(id, number, text, bytes, class) \
  case DTYPE_##id: return DTYPE_CLASS_##class;
#include "dtype.def"
#undef DTYPE
  default: return DTYPE_CLASS_OTHER;
  }
}

Type type_make(Dtype dtype, int rank, const int64_t *dims) {
  assert(rank >= 0 && rank <= RANK_MAX);
  Type t = {.dtype = dtype, .rank = rank};
  for (int i = 0; i < rank; i++) t.dims[i] = dims[i];
  return t;
}

Type type_scalar(Dtype dtype) { return (Type){.dtype = dtype}; }
Type type_vector(Dtype dtype, int64_t elems) { return (Type){.dtype = dtype, .rank = 1, .dims = {elems}}; }

int64_t type_elems(const Type *type) {
  int64_t n = 1;
  for (int i = 0; i < type->rank; i++) n *= type->dims[i];
  return n;
}

int64_t type_bytes(const Type *type) { return type_elems(type) * dtype_bytes(type->dtype); }

bool type_same_shape(const Type *a, const Type *b) {
  return a->rank == b->rank && !memcmp(a->dims, b->dims, (size_t)a->rank * sizeof a->dims[0]);
}

bool type_equal(const Type *a, const Type *b) { return a->dtype == b->dtype && type_same_shape(a, b); }

Status type_check(const Type *type, const char *node) {
  if (type->rank < 0 || type->rank > RANK_MAX)
    FAIL(UNSUPPORTED, node, "a tensor of rank %d; at most %d dimensions are supported", type->rank, RANK_MAX);
  int64_t bytes = dtype_bytes(type->dtype);
  for (int i = 0; i < type->rank; i++) {
    if (type->dims[i] < 0) FAIL(MALFORMED, node, "dimension %d is negative: %" PRId64, i, type->dims[i]);
  }
  // Zero dimensions are left out of the product, so that a wrapped or hidden huge shape cannot pass as an empty tensor.
  for (int i = 0; i < type->rank; i++) {
    if (type->dims[i] == 0) continue;
    if (__builtin_mul_overflow(bytes, type->dims[i], &bytes) || bytes > TYPE_BYTES_MAX) {
      char text[160];
      FAIL(RESOURCE, node, "a tensor of type %s needs more than 2^40 bytes", type_text(type, text, sizeof text));
    }
  }
  return STATUS_OK;
}

Status type_broadcast(const Type *a, const Type *b, const char *node, Type *out) {
  int rank = a->rank > b->rank ? a->rank : b->rank;
  int64_t dims[RANK_MAX];
  for (int i = 0; i < rank; i++) {
    int ia = i - (rank - a->rank), ib = i - (rank - b->rank);
    int64_t da = ia >= 0 ? a->dims[ia] : 1, db = ib >= 0 ? b->dims[ib] : 1;
    if (da != db && da != 1 && db != 1) {
      char ta[160], tb[160];
      FAIL(MALFORMED, node, "shapes %s and %s do not broadcast: axis %d has %" PRId64 " and %" PRId64, type_text(a, ta, sizeof ta),
           type_text(b, tb, sizeof tb), i, da, db);
    }
    dims[i] = da == 1 ? db : da;
  }
  out->rank = rank;
  memcpy(out->dims, dims, sizeof dims[0] * (size_t)rank);
  return STATUS_OK;
}

const char *type_text(const Type *type, char *out, int out_bytes) {
  int n = snprintf(out, (size_t)out_bytes, "%s", dtype_name(type->dtype));
  for (int i = 0; i < type->rank && n < out_bytes; i++)
    n += snprintf(out + n, (size_t)(out_bytes - n), "%s%" PRId64 "%s", i ? "," : "[", type->dims[i], i + 1 == type->rank ? "]" : "");
  return out;
}

void type_strides(const Type *type, const Type *against, int64_t out[RANK_MAX]) {
  int lead = against->rank - type->rank;
  assert(lead >= 0);
  int64_t stride = 1;
  for (int i = against->rank - 1; i >= 0; i--) {
    int64_t own = i >= lead ? type->dims[i - lead] : 1;
    out[i] = own == 1 && against->dims[i] != 1 ? 0 : stride;
    if (i < lead) out[i] = 0;
    stride *= own;
  }
}

Status type_axis(int64_t axis, int rank, const char *node, int *out) {
  if (axis < -rank || axis >= rank)
    FAIL(MALFORMED, node, "axis %" PRId64 " is outside [%d,%d]", axis, -rank, rank - 1);
  *out = (int)(axis < 0 ? axis + rank : axis);
  return STATUS_OK;
}
