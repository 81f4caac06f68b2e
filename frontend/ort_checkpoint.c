#include "ort_checkpoint.h"

#include <inttypes.h>
#include <string.h>

// Slots of the tables' fields.
enum { CHECKPOINT_MODULE = 1, MODULE_TRAINED = 0, MODULE_FROZEN = 1, MODULE_EXTERNAL = 3, TENSOR_NAME = 0, TENSOR_DIMS = 2, TENSOR_TYPE = 3, TENSOR_RAW = 4,
       TENSOR_EXTERNAL_OFFSET = 6 };

// A cursor that never reads beyond the bytes: the first bad offset sticks, and everything after it reads as 0.
typedef struct Flat { Bytes bytes; bool bad; size_t bad_at; } Flat;

static const uint8_t *at(Flat *f, size_t offset, size_t n) {
  static const uint8_t zeros[8];
  if (!f->bad && offset <= f->bytes.n && n <= f->bytes.n - offset) return f->bytes.data + offset;
  if (!f->bad) f->bad_at = offset;
  f->bad = true;
  return zeros;
}

static uint64_t read(Flat *f, size_t offset, int n_bytes) {
  const uint8_t *p = at(f, offset, (size_t)n_bytes);
  uint64_t v = 0;
  for (int i = 0; i < n_bytes; i++) v |= (uint64_t)p[i] << 8 * i;
  return v;
}

// Where field `slot` of the table at `table` lies; 0: it has its default.
static size_t field(Flat *f, size_t table, int slot) {
  int64_t back = (int32_t)read(f, table, 4);
  int64_t vtable = (int64_t)table - back;
  if (vtable < 0) {
    at(f, SIZE_MAX, 1);
    return 0;
  }
  size_t entry = 4 + 2 * (size_t)slot;
  if (entry + 2 > read(f, (size_t)vtable, 2)) return 0;
  size_t offset = read(f, (size_t)vtable + entry, 2);
  return offset && !f->bad ? table + offset : 0;
}

// What an offset field points at; 0: nothing.
static size_t follow(Flat *f, size_t place) { return place ? place + read(f, place, 4) : 0; }

// The elements of a vector field; *out_n = 0 when it is absent.
static size_t vector(Flat *f, size_t place, size_t elem_bytes, size_t *out_n) {
  size_t start = follow(f, place);
  *out_n = start ? read(f, start, 4) : 0;
  if (*out_n > f->bytes.n / elem_bytes) at(f, SIZE_MAX, 1);
  else if (*out_n) at(f, start + 4, *out_n * elem_bytes);
  if (f->bad) *out_n = 0;
  return start + 4;
}

static Status read_tensor(Flat *f, size_t table, const char *path, Arena *arena, Weight *out) {
  size_t n_name, n_dims, n_raw;
  size_t name = vector(f, field(f, table, TENSOR_NAME), 1, &n_name), dims = vector(f, field(f, table, TENSOR_DIMS), 8, &n_dims);
  size_t raw = vector(f, field(f, table, TENSOR_RAW), 1, &n_raw), type = field(f, table, TENSOR_TYPE), outside = field(f, table, TENSOR_EXTERNAL_OFFSET);
  int64_t dtype = type ? (int32_t)read(f, type, 4) : 0;
  if (f->bad) return STATUS_OK;                         // the caller says so
  if (!n_name || !utf8_valid(f->bytes.data + name, n_name)) FAIL(MALFORMED, NULL, "%s: the tensor at byte %zu has no name", path, table);
  const char *text = arena_string_n(arena, (const char *)f->bytes.data + name, n_name);
  if (outside && (int64_t)read(f, outside, 8) >= 0) FAIL(UNSUPPORTED, NULL, "%s: tensor '%s' lies in a second file, which is not supported", path, text);
  if (!dtype_known((int)dtype)) FAIL(UNSUPPORTED, NULL, "%s: tensor '%s' has element type %" PRId64 ", which is not supported", path, text, dtype);
  if (n_dims > RANK_MAX) FAIL(UNSUPPORTED, NULL, "%s: tensor '%s' has %zu dimensions; at most %d are supported", path, text, n_dims, RANK_MAX);
  Weight w = {.name = text, .type = {.dtype = (Dtype)dtype, .rank = (int)n_dims}, .bytes = f->bytes.data + raw, .path = path, .offset_bytes = (int64_t)raw};
  for (size_t i = 0; i < n_dims; i++) w.type.dims[i] = (int64_t)read(f, dims + 8 * i, 8);
  TRY(status_context(type_check(&w.type, NULL), "%s: tensor '%s'", path, text));
  if ((int64_t)n_raw != type_bytes(&w.type))
    FAIL(MALFORMED, NULL, "%s: tensor '%s' has %zu bytes, its type needs %" PRId64, path, text, n_raw, type_bytes(&w.type));
  *out = w;
  return STATUS_OK;
}

Status ort_checkpoint_read(Bytes bytes, const char *path, Arena *arena, OrtCheckpoint *out) {
  Flat f = {bytes, false, 0};
  if (bytes.n < 8 || memcmp(bytes.data + 4, "ODTC", 4)) FAIL(MALFORMED, NULL, "%s is no ONNX Runtime training checkpoint", path);
  size_t root = read(&f, 0, 4), module = follow(&f, field(&f, root, CHECKPOINT_MODULE)), lists[2], n[2] = {0, 0};
  size_t outside = module ? field(&f, module, MODULE_EXTERNAL) : 0;
  for (int k = 0; module && k < 2; k++) lists[k] = vector(&f, field(&f, module, k ? MODULE_FROZEN : MODULE_TRAINED), 4, &n[k]);
  if (outside && read(&f, outside, 1)) FAIL(UNSUPPORTED, NULL, "%s keeps its values in a second file, which is not supported", path);
  Weight *weights = ARENA_ARRAY(arena, Weight, n[0] + n[1]);
  size_t count = 0;
  for (int k = 0; k < 2; k++)
    for (size_t i = 0; i < n[k] && !f.bad; i++) TRY(read_tensor(&f, follow(&f, lists[k] + 4 * i), path, arena, &weights[count++]));
  if (f.bad) FAIL(MALFORMED, NULL, "%s: byte %zu lies beyond its %zu bytes, or is no place of anything", path, f.bad_at, bytes.n);
  if (!module) FAIL(MALFORMED, NULL, "%s holds no parameters", path);
  *out = (OrtCheckpoint){weights, count};
  return STATUS_OK;
}
