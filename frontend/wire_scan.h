// Protobuf bytes, read with suspicion: a walk that checks a whole message tree against its descriptor before anything is decoded, an iterator
// over the fields of bytes that passed, and decoding of small leaves by protobuf-c into an arena.
//
// Ownership: Bytes are borrowed; decoded messages lie in the arena and are never freed one by one. Threads: pure functions.
// Errors: MALFORMED with file, byte offset, message and field. Source: the protobuf encoding specification; onnx.proto of the pinned package.
#ifndef TESSERA_WIRE_SCAN_H
#define TESSERA_WIRE_SCAN_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>

#include "../ir/arena.h"

typedef struct Bytes { const uint8_t *data; size_t n; } Bytes;

// Messages inside messages, at most. A subgraph costs three (graph, node, attribute), so that 64 nested ones pass.
enum { WIRE_DEPTH_MAX = 200 };

// Walks through all of `message`, whose first byte has offset 0 in messages about `path`. What it guarantees to the other functions here:
// tags, wire types and lengths are right; strings are UTF-8 without NUL; a singular sub-message stands at most once; depth is bounded.
// Unknown fields are passed over. Time: linear in bytes, but for bytes fields (tensor contents), which cost nothing.
MUST_USE Status wire_scan(Bytes message, const ProtobufCMessageDescriptor *descriptor, const char *path);

typedef enum WireType { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 } WireType;
typedef struct WireField {
  uint32_t number;
  WireType type;
  uint64_t varint;        // VARINT
  Bytes bytes;            // contents of BYTES; the 8 or 4 bytes of FIXED64, FIXED32
  Bytes all;              // tag included
} WireField;

// Takes the next field off the front of `rest`; false at the end, and where the bytes are wrong (which wire_scan excludes).
bool wire_next(Bytes *rest, WireField *out);
// Takes one varint off the front of `rest`; false at the end and where it does not end.
bool wire_varint(Bytes *rest, uint64_t *out);

// Decodes a message without the fields whose numbers are set in `skip` (bit number; numbers up to 63). Under an arena guard of the caller.
MUST_USE Status wire_decode(Bytes message, const ProtobufCMessageDescriptor *descriptor, uint64_t skip, Arena *arena, ProtobufCMessage **out);

bool utf8_valid(const uint8_t *text, size_t n);       // also refuses NUL, overlong forms, surrogates

#endif
