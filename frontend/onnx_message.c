#include "onnx_message.h"

#include <string.h>

Onnx__TypeProto *message_type(Arena *arena, const Type *type, const char *batch_symbol) {
  Onnx__TensorShapeProto *shape = MESSAGE(arena, Onnx__TensorShapeProto, ONNX__TENSOR_SHAPE_PROTO__INIT);
  shape->n_dim = (size_t)type->rank;
  shape->dim = LIST(arena, Onnx__TensorShapeProto__Dimension, type->rank);
  for (int i = 0; i < type->rank; i++) {
    bool symbol = !i && batch_symbol;
    shape->dim[i] = MESSAGE(arena, Onnx__TensorShapeProto__Dimension, ONNX__TENSOR_SHAPE_PROTO__DIMENSION__INIT);
    shape->dim[i]->value_case = symbol ? ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM : ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
    if (symbol) shape->dim[i]->dim_param = message_text(batch_symbol);
    else shape->dim[i]->dim_value = type->dims[i];
  }
  Onnx__TypeProto__Tensor *tensor = MESSAGE(arena, Onnx__TypeProto__Tensor, ONNX__TYPE_PROTO__TENSOR__INIT);
  tensor->has_elem_type = true;
  tensor->elem_type = (int32_t)type->dtype;
  tensor->shape = shape;
  Onnx__TypeProto *proto = MESSAGE(arena, Onnx__TypeProto, ONNX__TYPE_PROTO__INIT);
  proto->value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
  proto->tensor_type = tensor;
  return proto;
}

Onnx__OperatorSetIdProto *message_opset(Arena *arena, const char *domain, int64_t version) {
  Onnx__OperatorSetIdProto *id = MESSAGE(arena, Onnx__OperatorSetIdProto, ONNX__OPERATOR_SET_ID_PROTO__INIT);
  id->domain = message_text(domain);
  id->has_version = true;
  id->version = version;
  return id;
}

static ProtobufCBinaryData binary(const char *s) { return (ProtobufCBinaryData){strlen(s), (uint8_t *)message_text(s)}; }

#define KIND(a, t) ((a)->has_type = true, (a)->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__##t)

Onnx__AttributeProto *message_attr(Arena *arena, const AttrInit *attr) {
  Onnx__AttributeProto *a = MESSAGE(arena, Onnx__AttributeProto, ONNX__ATTRIBUTE_PROTO__INIT);
  a->name = message_text(attr->name);
  switch (attr->type) {
  case ATTR_INT: KIND(a, INT), a->has_i = true, a->i = attr->i; break;
  case ATTR_FLOAT: KIND(a, FLOAT), a->has_f = true, a->f = attr->f; break;
  case ATTR_STRING: KIND(a, STRING), a->has_s = true, a->s = binary(attr->s); break;
  case ATTR_INTS: KIND(a, INTS), a->n_ints = (size_t)attr->ints.n, a->ints = (int64_t *)attr->ints.items; break;
  case ATTR_FLOATS: KIND(a, FLOATS), a->n_floats = (size_t)attr->floats.n, a->floats = (float *)attr->floats.items; break;
  case ATTR_STRINGS:
    KIND(a, STRINGS);
    a->n_strings = (size_t)attr->strings.n;
    a->strings = ARENA_ARRAY(arena, ProtobufCBinaryData, attr->strings.n);
    for (int64_t i = 0; i < attr->strings.n; i++) a->strings[i] = binary(attr->strings.items[i]);
    break;
  case ATTR_TENSOR: KIND(a, TENSOR); break;     // the caller's: it sets `t`
  }
  return a;
}
