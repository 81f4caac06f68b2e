// protobuf-c's structures in an arena: zeroed, tied to their descriptor, never freed one by one. Shared by what writes ONNX files.
#ifndef TESSERA_ONNX_MESSAGE_H
#define TESSERA_ONNX_MESSAGE_H

#include "../ir/op.h"
#include "onnx.pb-c.h"

#define MESSAGE(arena, T, init) ((T *)arena_copy(arena, &(T)init, sizeof(T)))
#define LIST(arena, T, n) ARENA_ARRAY(arena, T *, n)

// protobuf-c's fields are not const, though packing only reads them.
static inline char *message_text(const char *s) { return (char *)s; }

// A tensor type. `batch_symbol`: name of the first dimension in place of its size; NULL: all have sizes.
Onnx__TypeProto *message_type(Arena *arena, const Type *type, const char *batch_symbol);
Onnx__OperatorSetIdProto *message_opset(Arena *arena, const char *domain, int64_t version);

// An attribute; of kind TENSOR without its tensor, which the caller sets.
Onnx__AttributeProto *message_attr(Arena *arena, const AttrInit *attr);

#endif
