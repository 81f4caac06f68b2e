#include "op_json.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../ir/op.h"

struct OpJson { json_t *cases; };

OpJson *op_json_open(void) {
  OpJson *json = malloc(sizeof *json);
  if (json) json->cases = json_array();
  return json;
}

int op_json_close(OpJson *json, const char *path) {
  int result = json_dump_file(json->cases, path, JSON_COMPACT | JSON_REAL_PRECISION(17));
  json_decref(json->cases);
  free(json);
  return result;
}

// Floats as hexadecimal text: exact, and NaN and infinities have a form.
static json_t *tensor_json(const Type *type, const void *data) {
  json_t *dims = json_array(), *items = json_array();
  for (int i = 0; i < type->rank; i++) json_array_append_new(dims, json_integer(type->dims[i]));
  for (int64_t i = 0, n = type_elems(type); i < n; i++) {
    char text[64];
    snprintf(text, sizeof text, "%a", dtype_is_float(type->dtype) ? element_read(data, type->dtype, i) : 0);
    json_array_append_new(items, dtype_is_float(type->dtype) ? json_string(text) : json_integer(element_read_int(data, type->dtype, i)));
  }
  return json_pack("{s:s, s:o, s:o}", "dtype", dtype_name(type->dtype), "dims", dims, "data", items);
}

static json_t *attribute_json(const Node *node, const AttrSpec *spec) {
  const void *at = (const char *)node->attrs + spec->offset;
  json_t *list = NULL;
  switch (spec->type) {
  case ATTR_INT: return json_integer(*(const int64_t *)at);
  case ATTR_FLOAT: return json_real(*(const float *)at);
  case ATTR_STRING: return json_string(*(const char *const *)at);
  case ATTR_TENSOR: return tensor_json(&(*(const Weight *const *)at)->type, (*(const Weight *const *)at)->bytes);
  case ATTR_INTS:
    list = json_array();
    for (int64_t i = 0; i < ((const AttrInts *)at)->n; i++) json_array_append_new(list, json_integer(((const AttrInts *)at)->items[i]));
    return list;
  case ATTR_FLOATS:
    list = json_array();
    for (int64_t i = 0; i < ((const AttrFloats *)at)->n; i++) json_array_append_new(list, json_real(((const AttrFloats *)at)->items[i]));
    return list;
  case ATTR_STRINGS:
    list = json_array();
    for (int64_t i = 0; i < ((const AttrStrings *)at)->n; i++) json_array_append_new(list, json_string(((const AttrStrings *)at)->items[i]));
    return list;
  }
  return json_null();
}

Status op_json_case(const char *file, int line_number, const char *line, Arena *arena, OpJson *json) {
  ARENA_GUARD(arena);
  OpCase c;
  TRY(op_case_parse(line, DTYPE_NONE, arena, &c));
  if (c.fails_code) ARENA_RETURN(arena, STATUS_OK);
  Node *n = c.node;
  TRY(node_infer(c.graph, n));
  Tensor out[OP_CASE_OUTPUTS] = {0};
  for (int i = 0; i < n->n_outputs; i++)
    if (n->outputs[i]) out[i] = (Tensor){.data = op_case_buffer(arena, value_bytes(n->outputs[i]), 0), .type = &n->outputs[i]->type};
  TRY(kernel_run_once(n, c.in, out, ISA_SCALAR, true));
  json_t *attributes = json_object(), *inputs = json_array(), *outputs = json_array();
  for (const AttrSpec *s = n->op->attrs; s && s->name; s++)
    if (!attr_is_default(n, s)) json_object_set_new(attributes, s->name, attribute_json(n, s));
  for (int i = 0; i < n->n_inputs; i++) json_array_append_new(inputs, n->inputs[i] ? tensor_json(c.in[i].type, c.in[i].data) : json_null());
  for (int i = 0; i < n->n_outputs; i++) json_array_append_new(outputs, n->outputs[i] ? tensor_json(out[i].type, out[i].data) : json_null());
  json_array_append_new(json->cases, json_pack("{s:s, s:i, s:s, s:s, s:o, s:o, s:o}", "file", file, "line", line_number, "op", n->op->name, "domain",
                                               n->op->domain, "attributes", attributes, "inputs", inputs, "outputs", outputs));
  ARENA_RETURN(arena, STATUS_OK);
}
