// Tensor types: element type and static shape. Plain values; no ownership; any thread.
#ifndef TESSERA_TYPE_H
#define TESSERA_TYPE_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

enum { RANK_MAX = 8 };   // tensor rank; a model with more is refused by name

typedef enum Dtype {
  DTYPE_NONE = 0,        // not inferred yet
#define DTYPE(id, number, text, bytes, class) DTYPE_##id = number,
#include "dtype.def"
#undef DTYPE
} Dtype;

typedef enum DtypeClass { DTYPE_CLASS_FLOAT, DTYPE_CLASS_INT, DTYPE_CLASS_UINT, DTYPE_CLASS_BOOL, DTYPE_CLASS_OTHER } DtypeClass;

typedef struct Type {
  Dtype dtype;
  int rank;                  // 0 = scalar
  int64_t dims[RANK_MAX];    // >= 0
} Type;

bool dtype_known(int number);                          // is it one of dtype.def?
const char *dtype_name(Dtype dtype);                   // "float", "int64"; "undefined" for NONE
Dtype dtype_from_name(const char *name);               // DTYPE_NONE when unknown
Dtype dtype_of_sums(Dtype dtype);                      // what sums of it are added up in: f32 for the 16-bit floats, else itself
int64_t dtype_bytes(Dtype dtype);                      // 0 for NONE
DtypeClass dtype_class(Dtype dtype);
static inline bool dtype_is_float(Dtype d) { return d == DTYPE_F32 || d == DTYPE_F64 || d == DTYPE_F16 || d == DTYPE_BF16; }
static inline bool dtype_is_integer(Dtype d) { DtypeClass c = dtype_class(d); return c == DTYPE_CLASS_INT || c == DTYPE_CLASS_UINT; }

Type type_make(Dtype dtype, int rank, const int64_t *dims);
Type type_scalar(Dtype dtype);
Type type_vector(Dtype dtype, int64_t elems);
int64_t type_elems(const Type *type);                  // 1 for a scalar; the type must have passed type_check
int64_t type_bytes(const Type *type);
bool type_equal(const Type *a, const Type *b);
bool type_same_shape(const Type *a, const Type *b);

// Refuses negative dimensions, ranks above RANK_MAX, and more than 2^40 bytes (1 TiB; product computed without wrapping).
MUST_USE Status type_check(const Type *type, const char *node);

// ONNX broadcasting (Broadcasting.md): sets out->rank and out->dims; the dtype is left alone.
MUST_USE Status type_broadcast(const Type *a, const Type *b, const char *node, Type *out);

// "float[32,64]", "int64[]", as ONNX's textual syntax writes it ("float" for rank 0 too). Returns `out`; 160 bytes always suffice.
const char *type_text(const Type *type, char *out, int out_bytes);

// Row-major element strides of `type` in `out`; where `against` is wider, strides of broadcast axes are 0 and leading axes are added.
void type_strides(const Type *type, const Type *against, int64_t out[RANK_MAX]);

// axis in [-rank, rank-1] -> [0, rank-1]; fails with the numbers.
MUST_USE Status type_axis(int64_t axis, int rank, const char *node, int *out);

#endif
