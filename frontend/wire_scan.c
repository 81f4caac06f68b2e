#include "wire_scan.h"

#include <stdio.h>
#include <string.h>

// ---- Varints, fields, UTF-8 ---------------------------------------------------------------------------------------------------

bool wire_varint(Bytes *rest, uint64_t *out) {
  uint64_t value = 0;
  for (size_t i = 0; i < rest->n && i < 10; i++) {
    uint8_t byte = rest->data[i];
    if (i == 9 && byte > 1) return false;                  // more than 64 bits
    value |= (uint64_t)(byte & 0x7f) << (7 * i);
    if (byte & 0x80) continue;
    rest->data += i + 1;
    rest->n -= i + 1;
    *out = value;
    return true;
  }
  return false;
}

// NULL, or what is wrong with the field at the front of `rest`.
static const char *take_field(Bytes *rest, WireField *out) {
  Bytes r = *rest;
  uint64_t tag, n;
  if (!wire_varint(&r, &tag)) return "a field tag does not end";
  if (tag >> 3 == 0 || tag >> 3 > 0x1fffffff) return "the field number is outside [1, 2^29 - 1]";
  *out = (WireField){.number = (uint32_t)(tag >> 3), .type = (WireType)(tag & 7)};
  switch (tag & 7) {
  case WIRE_VARINT:
    if (!wire_varint(&r, &out->varint)) return "a number does not end";
    n = 0;
    break;
  case WIRE_FIXED64: n = 8; break;
  case WIRE_FIXED32: n = 4; break;
  case WIRE_BYTES:
    if (!wire_varint(&r, &n)) return "a length does not end";
    break;
  case 3: case 4: return "group wire types are not used by ONNX";
  default: return "the wire type does not exist";
  }
  if (n > r.n) return "the field runs past the end of what holds it";
  out->bytes = (Bytes){r.data, (size_t)n};
  out->all = (Bytes){rest->data, (size_t)(r.data - rest->data) + (size_t)n};
  *rest = (Bytes){r.data + n, r.n - (size_t)n};
  return NULL;
}

bool wire_next(Bytes *rest, WireField *out) { return rest->n && !take_field(rest, out); }

bool utf8_valid(const uint8_t *s, size_t n) {
  for (size_t i = 0; i < n;) {
    uint8_t c = s[i];
    if (c == 0) return false;
    size_t more = c < 0x80 ? 0 : c >= 0xc2 && c <= 0xdf ? 1 : (c & 0xf0) == 0xe0 ? 2 : c >= 0xf0 && c <= 0xf4 ? 3 : 4;
    if (more > 3 || more >= n - i) return false;
    for (size_t k = 1; k <= more; k++)
      if ((s[i + k] & 0xc0) != 0x80) return false;
    if ((c == 0xe0 && s[i + 1] < 0xa0) || (c == 0xed && s[i + 1] > 0x9f)) return false;      // overlong; surrogates
    if ((c == 0xf0 && s[i + 1] < 0x90) || (c == 0xf4 && s[i + 1] > 0x8f)) return false;      // overlong; beyond U+10FFFF
    i += more + 1;
  }
  return true;
}

// ---- The walk -----------------------------------------------------------------------------------------------------------------

typedef struct Scan { const uint8_t *base; const char *path; } Scan;

#define WRONG(scan, at, d, f, ...)                                                                                   \
  do {                                                                                                               \
    char wrong_[192];                                                                                                \
    snprintf(wrong_, sizeof wrong_, __VA_ARGS__);                                                                    \
    FAIL(MALFORMED, NULL, "%s is no valid ONNX file: byte %zu, in %s%s%s: %s", (scan)->path, (size_t)((at) - (scan)->base), \
         (d)->short_name, (f) ? "." : "", (f) ? ((const ProtobufCFieldDescriptor *)(f))->name : "", wrong_);           \
  } while (0)

static bool is_packable(ProtobufCType type) {
  return type != PROTOBUF_C_TYPE_STRING && type != PROTOBUF_C_TYPE_BYTES && type != PROTOBUF_C_TYPE_MESSAGE;
}

static WireType wire_type_of(ProtobufCType type) {
  switch (type) {
  case PROTOBUF_C_TYPE_SFIXED32: case PROTOBUF_C_TYPE_FIXED32: case PROTOBUF_C_TYPE_FLOAT: return WIRE_FIXED32;
  case PROTOBUF_C_TYPE_SFIXED64: case PROTOBUF_C_TYPE_FIXED64: case PROTOBUF_C_TYPE_DOUBLE: return WIRE_FIXED64;
  case PROTOBUF_C_TYPE_STRING: case PROTOBUF_C_TYPE_BYTES: case PROTOBUF_C_TYPE_MESSAGE: return WIRE_BYTES;
  default: return WIRE_VARINT;
  }
}

static Status scan_packed(const Scan *scan, const WireField *w, const ProtobufCMessageDescriptor *d, const ProtobufCFieldDescriptor *f) {
  Bytes rest = w->bytes;
  size_t width = wire_type_of(f->type) == WIRE_FIXED32 ? 4 : wire_type_of(f->type) == WIRE_FIXED64 ? 8 : 0;
  if (width) {
    if (rest.n % width) WRONG(scan, rest.data, d, f, "%zu packed bytes are no multiple of %zu", rest.n, width);
    return STATUS_OK;
  }
  for (uint64_t value; rest.n;)
    if (!wire_varint(&rest, &value)) WRONG(scan, rest.data, d, f, "a packed number does not end");
  return STATUS_OK;
}

static Status scan_message(const Scan *scan, Bytes rest, const ProtobufCMessageDescriptor *d, int depth);

static Status scan_field(const Scan *scan, const WireField *w, const ProtobufCMessageDescriptor *d, const ProtobufCFieldDescriptor *f, int depth) {
  WireType wanted = wire_type_of(f->type);
  if (w->type == WIRE_BYTES && f->label == PROTOBUF_C_LABEL_REPEATED && is_packable(f->type)) return scan_packed(scan, w, d, f);
  if (w->type != wanted) WRONG(scan, w->all.data, d, f, "wire type %d where %d belongs", (int)w->type, (int)wanted);
  if (f->type == PROTOBUF_C_TYPE_STRING && !utf8_valid(w->bytes.data, w->bytes.n))
    WRONG(scan, w->bytes.data, d, f, "the text is not UTF-8, or has a NUL in it");
  if (f->type == PROTOBUF_C_TYPE_MESSAGE) return scan_message(scan, w->bytes, f->descriptor, depth + 1);
  return STATUS_OK;
}

static Status scan_message(const Scan *scan, Bytes rest, const ProtobufCMessageDescriptor *d, int depth) {
  if (depth > WIRE_DEPTH_MAX) WRONG(scan, rest.data, d, NULL, "messages are nested deeper than %d; 64 nested subgraphs are supported", WIRE_DEPTH_MAX);
  uint64_t seen = 0;
  while (rest.n) {
    const uint8_t *at = rest.data;
    WireField w;
    const char *wrong = take_field(&rest, &w);
    if (wrong) WRONG(scan, at, d, NULL, "%s", wrong);
    const ProtobufCFieldDescriptor *f = protobuf_c_message_descriptor_get_field(d, w.number);
    if (!f) continue;
    TRY(scan_field(scan, &w, d, f, depth));
    if (f->type != PROTOBUF_C_TYPE_MESSAGE || f->label == PROTOBUF_C_LABEL_REPEATED || w.number > 63) continue;
    if (seen >> w.number & 1) WRONG(scan, at, d, f, "it stands twice");
    seen |= (uint64_t)1 << w.number;
  }
  return STATUS_OK;
}

Status wire_scan(Bytes message, const ProtobufCMessageDescriptor *descriptor, const char *path) {
  Scan scan = {message.data, path};
  return scan_message(&scan, message, descriptor, 0);
}

// ---- Leaves -------------------------------------------------------------------------------------------------------------------

static void *leaf_alloc(void *arena, size_t bytes) { return arena_alloc(arena, bytes); }
static void leaf_free(void *arena, void *pointer) { (void)arena, (void)pointer; }

Status wire_decode(Bytes message, const ProtobufCMessageDescriptor *descriptor, uint64_t skip, Arena *arena, ProtobufCMessage **out) {
  ProtobufCAllocator allocator = {leaf_alloc, leaf_free, arena};
  Bytes kept = message;
  if (skip) {
    size_t n = 0;
    WireField w;
    for (Bytes rest = message; wire_next(&rest, &w);)
      if (w.number > 63 || !(skip >> w.number & 1)) n += w.all.n;
    uint8_t *copy = arena_alloc(arena, n);
    kept = (Bytes){copy, n};
    for (Bytes rest = message; wire_next(&rest, &w);) {
      if (w.number <= 63 && skip >> w.number & 1) continue;
      memcpy(copy, w.all.data, w.all.n);
      copy += w.all.n;
    }
  }
  *out = protobuf_c_message_unpack(descriptor, &allocator, kept.n, kept.data);
  if (!*out) FAIL(MALFORMED, NULL, "a message %s of %zu bytes does not decode", descriptor->short_name, message.n);
  return STATUS_OK;
}
