#include "weights.h"

#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "narrow.h"

const Weight *weights_find(const WeightSource *source, const char *name) {
  for (size_t i = 0; source && i < source->n_weights; i++)
    if (!strcmp(source->weights[i].name, name)) return &source->weights[i];
  return NULL;
}

// A fault maps the pages around it, too, from an aligned piece of the address space: steps end at multiples of any such piece.
int64_t mapped_step(const void *at, int64_t n_bytes) {
  enum { STEP_BYTES = 4 << 20 };
  int64_t n = STEP_BYTES - (int64_t)((uintptr_t)at % STEP_BYTES);
  return n < n_bytes ? n : n_bytes;
}

// Whole pages around the range: all of them are of the same mapping.
void mapped_let_go(const void *at, int64_t n_bytes) {
  enum { PAGE_BYTES = 4096 };
  uintptr_t first = (uintptr_t)at / PAGE_BYTES * PAGE_BYTES, end = (uintptr_t)at + (uintptr_t)n_bytes;
  if (n_bytes > 0) (void)madvise((void *)first, end - first, MADV_DONTNEED);   // only advice: a refusal costs memory
}

bool weight_same_bytes(const Weight *a, const Weight *b) {
  if (a->bytes && a->bytes == b->bytes) return true;
  if (a->path && b->path && !strcmp(a->path, b->path)) return a->offset_bytes == b->offset_bytes;
  return a->bytes && b->bytes && type_bytes(&a->type) <= WEIGHT_COMPARE_BYTES_MAX && !memcmp(a->bytes, b->bytes, (size_t)type_bytes(&a->type));
}

Status weight_hash(const Weight *weight, uint64_t out[2]) {
  XXH3_state_t *state = XXH3_createState();
  if (!state) FAIL(RESOURCE, weight->name, "no memory to hash the tensor");
  XXH3_128bits_reset(state);
  int64_t n_bytes = type_bytes(&weight->type);
  for (int64_t at = 0, n; at < n_bytes; at += n) {
    const char *from = (const char *)weight->bytes + at;
    n = mapped_step(from, n_bytes - at);
    XXH3_128bits_update(state, from, (size_t)n);
    if (weight->mapped) mapped_let_go(from, n);
  }
  XXH128_hash_t hash = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  out[0] = hash.high64;
  out[1] = hash.low64;
  return STATUS_OK;
}

#if defined __clang__ && __clang_major__ < 15
typedef __fp16 Half;      // has no _Float16 on x86-64 yet
#else
typedef _Float16 Half;
#endif

// By its bits, because not every compiler's library widens halves. Exact; NaN payloads stay.
static float half_to_float(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
  if (exponent == 0) {
    float subnormal = (float)mantissa * 0x1p-24f;
    return sign ? -subnormal : subnormal;
  }
  uint32_t u = sign | (exponent == 31 ? 0x7f800000 : (exponent + 112) << 23) | mantissa << 13;
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

static uint16_t double_to_half(double v) {
  Half f = (Half)v;
  uint16_t h;
  memcpy(&h, &f, sizeof h);
  return h;
}

static float bfloat_to_float(uint16_t b) {
  uint32_t u = (uint32_t)b << 16;
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

// Rounds to 8 significand bits, ties to even, in one rounding: through f32 by round-to-odd, so that the second rounding is exact.
static uint16_t double_to_bfloat(double v) {
  float f = (float)v;
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40);
  if ((double)f != v && (u & 0x7f800000u) != 0x7f800000u && !(u & 1)) {
    double magnitude_f = f < 0 ? -(double)f : (double)f, magnitude_v = v < 0 ? -v : v;
    u = magnitude_f > magnitude_v && u & 0x7fffffffu ? u - 1 : u + 1;   // towards odd
  }
  u += 0x7fffu + ((u >> 16) & 1);
  return (uint16_t)(u >> 16);
}

#define LOAD(T)                                                             \
  do {                                                                      \
    T x_;                                                                   \
    memcpy(&x_, (const char *)base + index * (int64_t)sizeof x_, sizeof x_); \
    return x_;                                                              \
  } while (0)
#define STORE(T)                                                            \
  do {                                                                      \
    T x_ = (T)value;                                                        \
    memcpy((char *)base + index * (int64_t)sizeof x_, &x_, sizeof x_);       \
    return;                                                                 \
  } while (0)

static uint16_t load16(const void *base, int64_t index) { LOAD(uint16_t); }
static void store16(void *base, int64_t index, uint16_t value) { STORE(uint16_t); }

double element_read(const void *base, Dtype dtype, int64_t index) {
  switch (dtype) {
  case DTYPE_F32: LOAD(float);
  case DTYPE_F64: LOAD(double);
  case DTYPE_F16: return half_to_float(load16(base, index));
  case DTYPE_BF16: return bfloat_to_float(load16(base, index));
  case DTYPE_U64: LOAD(uint64_t);
  case DTYPE_F8E4M3FN: case DTYPE_F8E4M3FNUZ: case DTYPE_F8E5M2: case DTYPE_F8E5M2FNUZ: case DTYPE_F4E2M1: case DTYPE_F8E8M0:
  case DTYPE_U4: case DTYPE_I4: case DTYPE_U2: case DTYPE_I2: return narrow_to_double(dtype, ((const unsigned char *)base)[index]);
  default: return (double)element_read_int(base, dtype, index);
  }
}

static int64_t saturate(double value) {
  if (!(value == value)) return 0;
  if (value >= 9223372036854775808.0) return INT64_MAX;
  if (value <= -9223372036854775808.0) return INT64_MIN;
  return (int64_t)value;
}

void element_write(void *base, Dtype dtype, int64_t index, double value) {
  switch (dtype) {
  case DTYPE_F32: STORE(float);
  case DTYPE_F64: STORE(double);
  case DTYPE_F16: store16(base, index, double_to_half(value)); return;
  case DTYPE_BF16: store16(base, index, double_to_bfloat(value)); return;
  case DTYPE_BOOL: ((unsigned char *)base)[index] = value != 0; return;
  case DTYPE_F8E4M3FN: case DTYPE_F8E4M3FNUZ: case DTYPE_F8E5M2: case DTYPE_F8E5M2FNUZ: case DTYPE_F4E2M1: case DTYPE_F8E8M0:
  case DTYPE_U4: case DTYPE_I4: case DTYPE_U2: case DTYPE_I2:
    ((unsigned char *)base)[index] = narrow_from_double(dtype, value, true, ROUND_UP);
    return;
  default: element_write_int(base, dtype, index, saturate(value)); return;
  }
}

int64_t element_read_int(const void *base, Dtype dtype, int64_t index) {
  switch (dtype) {
  case DTYPE_I64: case DTYPE_U64: LOAD(int64_t);
  case DTYPE_I32: LOAD(int32_t);
  case DTYPE_U32: LOAD(uint32_t);
  case DTYPE_I16: LOAD(int16_t);
  case DTYPE_U16: LOAD(uint16_t);
  case DTYPE_I8: LOAD(int8_t);
  case DTYPE_U8: LOAD(uint8_t);
  case DTYPE_BOOL: return ((const unsigned char *)base)[index] != 0;
  default: return saturate(element_read(base, dtype, index));
  }
}

void element_write_int(void *base, Dtype dtype, int64_t index, int64_t value) {
  switch (dtype) {
  case DTYPE_I64: case DTYPE_U64: STORE(int64_t);
  case DTYPE_I32: case DTYPE_U32: STORE(int32_t);
  case DTYPE_I16: case DTYPE_U16: STORE(int16_t);
  case DTYPE_I8: case DTYPE_U8: STORE(int8_t);
  case DTYPE_BOOL: ((unsigned char *)base)[index] = value != 0; return;
  default: element_write(base, dtype, index, (double)value); return;
  }
}

int64_t weight_read_int(const Weight *weight, int64_t index) { return element_read_int(weight->bytes, weight->type.dtype, index); }
double weight_read_float(const Weight *weight, int64_t index) { return element_read(weight->bytes, weight->type.dtype, index); }

void elements_convert(void *to, Dtype to_dtype, const void *from, Dtype from_dtype, int64_t n) {
  if (n == 0) return;
  if (to_dtype == from_dtype) {
    memcpy(to, from, (size_t)(n * dtype_bytes(to_dtype)));
  } else if (dtype_is_float(to_dtype) || dtype_is_float(from_dtype) || dtype_is_narrow(to_dtype) || dtype_is_narrow(from_dtype)) {
    for (int64_t i = 0; i < n; i++) element_write(to, to_dtype, i, element_read(from, from_dtype, i));
  } else {
    for (int64_t i = 0; i < n; i++) element_write_int(to, to_dtype, i, element_read_int(from, from_dtype, i));
  }
}
