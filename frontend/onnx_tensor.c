#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

#include "../ir/narrow.h"
#include "../ir/path.h"
#include "import_state.h"

// Where ONNX puts the elements of each type when they are not in raw_data (onnx.proto, TensorProto).
enum { FLOAT_DATA = 4, INT32_DATA = 5, STRING_DATA = 6, INT64_DATA = 7, DOUBLE_DATA = 10, UINT64_DATA = 11 };

static uint32_t data_field(Dtype dtype) {
  switch (dtype) {
  case DTYPE_F32: return FLOAT_DATA;
  case DTYPE_F64: return DOUBLE_DATA;
  case DTYPE_I64: return INT64_DATA;
  case DTYPE_U32: case DTYPE_U64: return UINT64_DATA;
  default: return INT32_DATA;
  }
}

static const char *data_field_name(uint32_t number) {
  switch (number) {
  case FLOAT_DATA: return "float_data";
  case INT32_DATA: return "int32_data";
  case STRING_DATA: return "string_data";
  case INT64_DATA: return "int64_data";
  case DOUBLE_DATA: return "double_data";
  case UINT64_DATA: return "uint64_data";
  default: return NULL;
  }
}

Status tensor_type(const OnnxTensor *tensor, Type *out) {
  const Onnx__TensorProto *head = tensor->head;
  const char *name = text_or_empty(head->name);
  if (!dtype_known(head->data_type)) {
    const ProtobufCEnumValue *known = protobuf_c_enum_descriptor_get_value(&onnx__tensor_proto__data_type__descriptor, head->data_type);
    if (!known || !head->data_type) FAIL(MALFORMED, NULL, "tensor '%s': element type %d does not exist", name, head->data_type);
    FAIL(UNSUPPORTED, NULL, "tensor '%s': elements of type %s are not supported", name, known->name);
  }
  if (head->n_dims > RANK_MAX) FAIL(UNSUPPORTED, NULL, "tensor '%s': %zu dimensions; at most %d are supported", name, head->n_dims, RANK_MAX);
  if (head->segment) FAIL(UNSUPPORTED, NULL, "tensor '%s' is stored in segments, which is not supported", name);
  *out = type_make((Dtype)head->data_type, (int)head->n_dims, head->dims);
  return status_context(type_check(out, NULL), "tensor '%s'", name);
}

// ---- Elements that are not raw ------------------------------------------------------------------------------------------------

typedef struct TypedData { uint32_t number; size_t n_elems, n_fields; Bytes last; WireType last_type; } TypedData;

static size_t packed_count(const WireField *w, uint32_t number) {
  if (w->type != WIRE_BYTES || number == STRING_DATA) return 1;
  if (number == FLOAT_DATA) return w->bytes.n / 4;
  if (number == DOUBLE_DATA) return w->bytes.n / 8;
  size_t n = 0;
  for (size_t i = 0; i < w->bytes.n; i++) n += w->bytes.data[i] < 0x80;
  return n;
}

static Status find_typed_data(const OnnxTensor *tensor, const char *name, TypedData *out) {
  *out = (TypedData){0};
  Bytes rest = tensor->all;
  for (WireField w; wire_next(&rest, &w);) {
    if (!data_field_name(w.number)) continue;
    size_t n = packed_count(&w, w.number);
    if (!n) continue;
    if (out->number && out->number != w.number)
      FAIL(MALFORMED, NULL, "tensor '%s' has elements in %s and in %s", name, data_field_name(out->number), data_field_name(w.number));
    out->number = w.number;
    out->n_elems += n;
    out->n_fields++;
    out->last = w.bytes;
    out->last_type = w.type;
  }
  return STATUS_OK;
}

// One varint into element `index`: f16 and bf16 stand as their bit patterns.
static void put_varint(void *to, Dtype dtype, int64_t index, uint64_t value) {
  if (dtype == DTYPE_F16 || dtype == DTYPE_BF16) element_write_int(to, DTYPE_U16, index, (int64_t)(value & 0xffff));
  else element_write_int(to, dtype, index, (int64_t)value);
}

static void decode_typed(const OnnxTensor *tensor, const TypedData *data, Dtype dtype, void *to) {
  int64_t index = 0;
  Bytes rest = tensor->all;
  for (WireField w; wire_next(&rest, &w);) {
    if (w.number != data->number) continue;
    if (w.number == FLOAT_DATA || w.number == DOUBLE_DATA) {
      memcpy((char *)to + index * dtype_bytes(dtype), w.bytes.data, w.bytes.n);
      index += (int64_t)w.bytes.n / dtype_bytes(dtype);
    } else if (w.type == WIRE_VARINT) {
      put_varint(to, dtype, index++, w.varint);
    } else {
      for (uint64_t v; wire_varint(&w.bytes, &v);) put_varint(to, dtype, index++, v);
    }
  }
}

static void place_in_file(const Model *model, const void *bytes, Weight *out) {
  out->bytes = bytes;
  out->path = model->path;
  out->mapped = model->mapped;
  out->offset_bytes = (const uint8_t *)bytes - model->file.data;
}

// ---- Sparse tensors become dense ----------------------------------------------------------------------------------------------

static const int64_t DENSE_BYTES_MAX = INT64_C(256) << 20;

// Index number `i`, linear: indices are [n], or [n, rank] with one coordinate per axis.
static Status linear_index(const Type *type, const Weight *indices, const char *name, int64_t i, int64_t *out) {
  int64_t linear = 0, rank = indices->type.rank == 2 ? type->rank : 1;
  for (int64_t k = 0; k < rank; k++) {
    int64_t at = weight_read_int(indices, i * rank + k), extent = indices->type.rank == 2 ? type->dims[k] : type_elems(type);
    if (at < 0 || at >= extent) FAIL(MALFORMED, NULL, "sparse tensor '%s': index %" PRId64 " is %" PRId64 ", beyond its %" PRId64 " places", name, i, at, extent);
    linear = linear * extent + at;
  }
  *out = linear;
  return STATUS_OK;
}

static Status sparse_weight(Model *model, Arena *arena, const OnnxTensor *tensor, const char *name, Weight *out) {
  Weight w = {.name = name}, values, indices;
  TRY(tensor_type(tensor, &w.type));
  TRY(tensor_weight(model, arena, &tensor->sparse->values, name, &values));
  TRY(tensor_weight(model, arena, &tensor->sparse->indices, name, &indices));
  int64_t n = type_elems(&values.type), width = dtype_bytes(w.type.dtype), last = -1;
  bool paired = indices.type.rank == 2;
  if (values.type.rank != 1 || indices.type.dtype != DTYPE_I64 || (indices.type.rank != 1 && !paired) || indices.type.dims[0] != n ||
      (paired && indices.type.dims[1] != w.type.rank))
    FAIL(MALFORMED, NULL, "sparse tensor '%s': %" PRId64 " values need int64 indices of shape [%" PRId64 "] or [%" PRId64 ", %d]", name, n, n, n, w.type.rank);
  if (type_bytes(&w.type) > DENSE_BYTES_MAX)
    FAIL(RESOURCE, NULL, "sparse tensor '%s' has %" PRId64 " bytes when dense; at most %" PRId64 " are supported", name, type_bytes(&w.type), DENSE_BYTES_MAX);
  budget_allow(model, arena, (size_t)type_bytes(&w.type));
  char *bytes = arena_alloc(arena, (size_t)type_bytes(&w.type));
  for (int64_t i = 0; i < n; i++) {
    int64_t at;
    TRY(linear_index(&w.type, &indices, name, i, &at));
    if (at <= last) FAIL(MALFORMED, NULL, "sparse tensor '%s': index %" PRId64 " does not ascend; each place stands once, in order", name, i);
    last = at;
    memcpy(bytes + at * width, (const char *)values.bytes + i * width, (size_t)width);
  }
  w.bytes = bytes;
  *out = w;
  return STATUS_OK;
}

// Narrow elements are packed in a file, in raw_data as in int32_data (one byte an entry there): unpacked copies of them.
static Status narrow_weight(Model *model, Arena *arena, const OnnxTensor *tensor, const TypedData *data, Weight *w) {
  int64_t n = type_packed_bytes(&w->type), given = tensor->has_raw ? (int64_t)tensor->raw.n : (int64_t)data->n_elems;
  if (tensor->head->data_location == ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL)
    FAIL(UNSUPPORTED, NULL, "tensor '%s': elements of type %s in external data are not supported", w->name, dtype_name(w->type.dtype));
  if (tensor->has_raw && data->n_elems) FAIL(MALFORMED, NULL, "tensor '%s' has its data in raw_data and in %s", w->name, data_field_name(data->number));
  if (data->n_elems && data->number != INT32_DATA)
    FAIL(MALFORMED, NULL, "tensor '%s' of type %s has its elements in %s; they belong in int32_data", w->name, dtype_name(w->type.dtype),
         data_field_name(data->number));
  if (given != n) FAIL(MALFORMED, NULL, "tensor '%s' has %" PRId64 " packed bytes, its dimensions need %" PRId64, w->name, given, n);
  budget_allow(model, arena, (size_t)(type_bytes(&w->type) + n));
  unsigned char *plain = arena_alloc(arena, (size_t)type_bytes(&w->type)), *packed = arena_alloc(arena, (size_t)n);
  if (tensor->has_raw && n) memcpy(packed, tensor->raw.data, (size_t)n);
  else decode_typed(tensor, data, DTYPE_U8, packed);
  narrow_unpack(w->type.dtype, packed, type_elems(&w->type), plain);
  w->bytes = plain;
  return STATUS_OK;
}

Status tensor_weight(Model *model, Arena *arena, const OnnxTensor *tensor, const char *name, Weight *out) {
  if (tensor->sparse) return sparse_weight(model, arena, tensor, name, out);
  Weight w = {.name = name};
  TRY(tensor_type(tensor, &w.type));
  int64_t elems = type_elems(&w.type), n_bytes = type_bytes(&w.type);
  TypedData data;
  TRY(find_typed_data(tensor, name, &data));
  if (dtype_is_narrow(w.type.dtype)) {
    TRY(narrow_weight(model, arena, tensor, &data, &w));
  } else if (tensor->head->data_location == ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL) {
    if (tensor->has_raw || data.n_elems) FAIL(MALFORMED, NULL, "tensor '%s' has its data in a file and in the model", name);
    const ExternalFile *file;
    TRY(external_find(&model->external, tensor, n_bytes, &file, &w.offset_bytes));
    w.bytes = file->n_bytes || !n_bytes ? file->bytes + w.offset_bytes : NULL;
    w.path = file->path;
    w.mapped = true;
  } else if (tensor->has_raw) {
    if (data.n_elems) FAIL(MALFORMED, NULL, "tensor '%s' has its data in raw_data and in %s", name, data_field_name(data.number));
    if ((int64_t)tensor->raw.n != n_bytes)
      FAIL(MALFORMED, NULL, "tensor '%s': raw_data has %zu bytes, its type needs %" PRId64, name, tensor->raw.n, n_bytes);
    place_in_file(model, tensor->raw.data, &w);
  } else {
    if (data.n_elems && data.number != data_field(w.type.dtype))
      FAIL(MALFORMED, NULL, "tensor '%s' of type %s has its elements in %s; they belong in %s", name, dtype_name(w.type.dtype),
           data_field_name(data.number), data_field_name(data_field(w.type.dtype)));
    if ((int64_t)data.n_elems != elems)
      FAIL(MALFORMED, NULL, "tensor '%s' has %zu elements, its dimensions need %" PRId64, name, data.n_elems, elems);
    bool in_one_piece = data.n_fields == 1 && (data.number == FLOAT_DATA || data.number == DOUBLE_DATA);
    if (in_one_piece) {
      place_in_file(model, data.last.data, &w);
    } else {
      budget_allow(model, arena, (size_t)n_bytes);
      void *bytes = arena_alloc(arena, (size_t)n_bytes);
      decode_typed(tensor, &data, w.type.dtype, bytes);
      w.bytes = bytes;
    }
  }
  *out = w;
  return STATUS_OK;
}

// ---- Fingerprint --------------------------------------------------------------------------------------------------------------

static void hash_text(XXH3_state_t *state, const char *text) { XXH3_128bits_update(state, text, strlen(text) + 1); }

Status weights_fingerprint(WeightSource *source) {
  XXH3_state_t *state = XXH3_createState();
  if (!state) FAIL(RESOURCE, NULL, "out of memory");
  XXH3_128bits_reset(state);
  for (size_t i = 0; i < source->n_weights; i++) {
    const Weight *w = &source->weights[i];
    hash_text(state, w->name);
    int64_t numbers[3 + RANK_MAX] = {w->type.dtype, w->type.rank, w->path ? w->offset_bytes : -1};
    memcpy(numbers + 3, w->type.dims, sizeof(int64_t) * (size_t)w->type.rank);
    XXH3_128bits_update(state, numbers, sizeof numbers);
    hash_text(state, !w->path || w->path == source->path ? "" : path_name(w->path));     // the folder may move
  }
  XXH128_hash_t hash = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  source->fingerprint[0] = hash.high64;
  source->fingerprint[1] = hash.low64;
  return STATUS_OK;
}
