#include "relocate.h"

#include <stdlib.h>
#include <string.h>

typedef enum Kind { MODEL, GRAPH, NODE, ATTRIBUTE, TENSOR, SPARSE, FUNCTION, TRAINING, ENTRY } Kind;

// Which fields lead to external data.
static const struct { Kind in; uint32_t field; Kind to; } ways[] = {
    {MODEL, 7, GRAPH},     {MODEL, 20, TRAINING},  {MODEL, 25, FUNCTION},   {TRAINING, 1, GRAPH},    {TRAINING, 2, GRAPH},   {FUNCTION, 7, NODE},
    {GRAPH, 1, NODE},      {GRAPH, 5, TENSOR},     {GRAPH, 15, SPARSE},     {NODE, 5, ATTRIBUTE},    {ATTRIBUTE, 5, TENSOR}, {ATTRIBUTE, 6, GRAPH},
    {ATTRIBUTE, 10, TENSOR}, {ATTRIBUTE, 11, GRAPH}, {ATTRIBUTE, 22, SPARSE}, {ATTRIBUTE, 23, SPARSE}, {SPARSE, 1, TENSOR},    {SPARSE, 2, TENSOR},
    {TENSOR, 13, ENTRY},
};
enum { ENTRY_KEY = 1, ENTRY_VALUE = 2 };

typedef struct Buffer { uint8_t *bytes; size_t n, capacity; } Buffer;
typedef struct Work { const Relocation *relocations; size_t n; } Work;

static Status append(Buffer *to, const void *bytes, size_t n) {
  if (to->n + n > to->capacity) {
    size_t capacity = to->capacity * 2 > to->n + n ? to->capacity * 2 : to->n + n + 256;
    uint8_t *wider = realloc(to->bytes, capacity);
    if (!wider) FAIL(RESOURCE, NULL, "out of memory: %zu bytes of the model", capacity);
    to->bytes = wider;
    to->capacity = capacity;
  }
  if (n) memcpy(to->bytes + to->n, bytes, n);
  to->n += n;
  return STATUS_OK;
}

static Status append_varint(Buffer *to, uint64_t value) {
  uint8_t bytes[10];
  size_t n = 0;
  do {
    bytes[n++] = (uint8_t)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
    value >>= 7;
  } while (value);
  return append(to, bytes, n);
}

static Status append_field(Buffer *to, uint32_t number, const void *bytes, size_t n) {
  TRY(append_varint(to, (uint64_t)number << 3 | WIRE_BYTES));
  TRY(append_varint(to, n));
  return append(to, bytes, n);
}

static bool equals(Bytes bytes, const char *text) { return bytes.n == strlen(text) && !memcmp(bytes.data, text, bytes.n); }

// An entry whose key is "location" and whose value has another name; one whose key is "checksum" goes: it is that of untrained bytes. *changed false:
// leave the entry.
static Status rewrite_entry(const Work *work, Bytes entry, Buffer *out, bool *changed) {
  WireField f;
  Bytes key = {0}, value = {0};
  for (Bytes rest = entry; wire_next(&rest, &f);) {
    if (f.number == ENTRY_KEY) key = f.bytes;
    if (f.number == ENTRY_VALUE) value = f.bytes;
  }
  *changed = equals(key, "checksum");
  for (size_t i = 0; i < work->n && equals(key, "location"); i++) {
    const Relocation *r = &work->relocations[i];
    if (!equals(value, r->from) || !strcmp(r->from, r->to)) continue;
    *changed = true;
    TRY(append_field(out, ENTRY_KEY, key.data, key.n));
    return append_field(out, ENTRY_VALUE, r->to, strlen(r->to));
  }
  return STATUS_OK;
}

static int way_of(Kind in, const WireField *f) {
  for (size_t i = 0; f->type == WIRE_BYTES && i < sizeof ways / sizeof *ways; i++)
    if (ways[i].in == in && ways[i].field == f->number) return (int)i;
  return -1;
}

// Appends the message with new locations; depth is what wire_scan has bounded.
static Status rewrite(const Work *work, Kind kind, Bytes message, Buffer *out, bool *changed) {
  if (kind == ENTRY) return rewrite_entry(work, message, out, changed);
  WireField f;
  Status status = STATUS_OK;
  for (Bytes rest = message; !status && wire_next(&rest, &f);) {
    Buffer inner = {0};
    bool inner_changed = false;
    int way = way_of(kind, &f);
    if (way >= 0) status = rewrite(work, ways[way].to, f.bytes, &inner, &inner_changed);
    bool dropped = inner_changed && ways[way].to == ENTRY && inner.n == 0;
    if (!status && !dropped) status = inner_changed ? append_field(out, f.number, inner.bytes, inner.n) : append(out, f.all.data, f.all.n);
    *changed |= inner_changed;
    free(inner.bytes);
  }
  return status;
}

Status relocate_external(Bytes model, const Relocation *relocations, size_t n, uint8_t **out, size_t *out_bytes) {
  Buffer buffer = {0};
  bool changed = false;
  Status status = rewrite(&(Work){relocations, n}, MODEL, model, &buffer, &changed);
  if (status) {
    free(buffer.bytes);
    return status;
  }
  *out = buffer.bytes;
  *out_bytes = buffer.n;
  return STATUS_OK;
}
