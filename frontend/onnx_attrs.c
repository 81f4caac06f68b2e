// Attributes and the tensors that stand in them: from the file into the typed struct of an operator's row.
#include <inttypes.h>
#include <string.h>

#include "import_state.h"

// ---- Constants ----------------------------------------------------------------------------------------------------------------

void make_constant(Import *import, Value *v, const Weight *weight) {
  Weight *own = arena_copy(import->arena, weight, sizeof *weight);
  own->name = v->name;
  v->role = ROLE_CONST;
  v->type = weight->type;
  v->weight = own;
}

Value *import_constant(Import *import, const char *name, const Weight *weight) {
  Value *v = graph_add_value(import->graph, name);
  make_constant(import, v, weight);
  return v;
}

Value *import_int64s(Import *import, const char *hint, const int64_t *items, int64_t n) {
  Weight w = {.type = type_vector(DTYPE_I64, n), .bytes = arena_copy(import->arena, items, sizeof *items * (size_t)n)};
  return import_constant(import, hint, &w);
}

Value *import_scalar_of(Import *import, const char *hint, Dtype dtype, double value) {
  void *bytes = arena_alloc(import->arena, 8);
  element_write(bytes, dtype, 0, value);
  return import_constant(import, hint, &(Weight){.type = type_scalar(dtype), .bytes = bytes});
}

// ---- Attributes ---------------------------------------------------------------------------------------------------------------

#define TYPE(t) ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__##t

// The type the file says; old files leave it out, then it is what stands there.
static int attr_type(const OnnxAttr *a) {
  if (a->head->has_type && a->head->type) return (int)a->head->type;
  if (a->has_tensor) return TYPE(TENSOR);
  if (a->has_graph) return TYPE(GRAPH);
  if (a->head->has_f) return TYPE(FLOAT);
  if (a->head->has_i) return TYPE(INT);
  if (a->head->has_s) return TYPE(STRING);
  if (a->head->n_floats) return TYPE(FLOATS);
  if (a->head->n_ints) return TYPE(INTS);
  return a->head->n_strings ? TYPE(STRINGS) : TYPE(UNDEFINED);
}

static int onnx_type_of(AttrType type) {
  static const int types[] = {[ATTR_INT] = TYPE(INT), [ATTR_FLOAT] = TYPE(FLOAT), [ATTR_STRING] = TYPE(STRING), [ATTR_INTS] = TYPE(INTS),
                              [ATTR_FLOATS] = TYPE(FLOATS), [ATTR_STRINGS] = TYPE(STRINGS), [ATTR_TENSOR] = TYPE(TENSOR)};
  return types[type];
}

static const char *type_name(int type) {
  const ProtobufCEnumValue *v = protobuf_c_enum_descriptor_get_value(&onnx__attribute_proto__attribute_type__descriptor, type);
  return v ? v->name : "of unknown type";
}

static Status attr_text(Arena *arena, const Node *node, const char *attr, ProtobufCBinaryData s, const char **out) {
  if (!utf8_valid(s.data, s.len)) FAIL(MALFORMED, node->name, "%s: attribute %s is no UTF-8 text", node->op->name, attr);
  *out = arena_string_n(arena, (const char *)s.data, s.len);
  return STATUS_OK;
}

Status attr_from_onnx(Model *model, Arena *arena, Node *node, const AttrSpec *spec, const OnnxAttr *attr) {
  const Onnx__AttributeProto *a = attr->head;
  int found = attr_type(attr), wanted = onnx_type_of(spec->type);
  if (found != wanted)
    FAIL(MALFORMED, node->name, "%s: attribute %s is %s, it must be %s", node->op->name, spec->name, type_name(found), type_name(wanted));
  void *at = (char *)node->attrs + spec->offset;
  switch (spec->type) {
  case ATTR_INT: *(int64_t *)at = a->i; break;
  case ATTR_FLOAT: *(float *)at = a->f; break;
  case ATTR_STRING: return attr_text(arena, node, spec->name, a->s, (const char **)at);
  case ATTR_INTS: *(AttrInts *)at = (AttrInts){a->ints, (int64_t)a->n_ints}; break;
  case ATTR_FLOATS: *(AttrFloats *)at = (AttrFloats){a->floats, (int64_t)a->n_floats}; break;
  case ATTR_STRINGS: {
    const char **items = ARENA_ARRAY(arena, const char *, a->n_strings);
    for (size_t i = 0; i < a->n_strings; i++) TRY(attr_text(arena, node, spec->name, a->strings[i], &items[i]));
    *(AttrStrings *)at = (AttrStrings){items, (int64_t)a->n_strings};
    break;
  }
  case ATTR_TENSOR: {
    if (!attr->has_tensor) FAIL(MALFORMED, node->name, "%s: attribute %s holds no tensor", node->op->name, spec->name);
    Weight *w = ARENA_NEW(arena, Weight);
    TRY(tensor_weight(model, arena, &attr->tensor, node->name, w));
    *(const Weight **)at = w;
    break;
  }
  }
  return STATUS_OK;
}

// Is it what the standard takes when the attribute is absent? Then a row that does not have it loses nothing.
static bool is_standard_default(Arena *arena, const OnnxAttr *a, const SchemaAttr *schema) {
  const char *text = "";
  if (attr_type(a) == TYPE(INT)) text = arena_printf(arena, "%" PRId64, a->head->i);
  else if (attr_type(a) == TYPE(STRING)) text = arena_string_n(arena, (const char *)a->head->s.data, a->head->s.len);
  else return false;
  return !strcmp(text, schema->default_text);
}

static void import_attr(Draft *draft, const OnnxAttr *attr) {
  Import *import = draft->import;
  Node *node = draft->node;
  const char *name = text_or_empty(attr->head->name), *op = node->op->name;
  const SchemaAttr *schema = draft->schema ? schema_attr(draft->schema, name) : NULL;
  const AttrSpec *spec = attr_spec(node->op, name);
  if (attr->head->ref_attr_name && *attr->head->ref_attr_name)
    import_problem(import, STATUS_MALFORMED, node->name, "%s: attribute %s refers to a function's attribute, outside any function", op, name);
  else if (draft->schema ? !schema : !spec)
    import_problem(import, STATUS_MALFORMED, node->name, "%s has no attribute '%s'%s%s", op, name, draft->schema ? " at opset " : "",
                   draft->schema ? arena_printf(import->arena, "%" PRId64, draft->opset) : "");
  else if (schema && attr_type(attr) != schema->type)
    import_problem(import, STATUS_MALFORMED, node->name, "%s: attribute %s is %s, it must be %s", op, name, type_name(attr_type(attr)), type_name(schema->type));
  else if (spec)
    import_absorb(import, attr_from_onnx(import->model, import->arena, node, spec, attr), node->name);
  else if (!is_standard_default(import->arena, attr, schema))
    import_problem(import, STATUS_UNSUPPORTED, node->name, "%s: attribute %s is not supported", op, name);
}

void import_attrs(Draft *draft) {
  const OnnxNode *from = draft->from;
  for (size_t i = 0; i < from->n_attrs; i++) {
    const char *name = text_or_empty(from->attrs[i].head->name);
    if (onnx_attr(from, name) != &from->attrs[i])
      import_problem(draft->import, STATUS_MALFORMED, draft->node->name, "%s: attribute %s is there twice", draft->node->op->name, name);
    else if (!draft->consumed[i]) import_attr(draft, &from->attrs[i]);
  }
}

// ---- Constant nodes -----------------------------------------------------------------------------------------------------------

// value, value_float(s), value_int(s) as a Weight.
Status constant_weight(Import *import, const OnnxNode *node, const char *label, Weight *out) {
  Arena *arena = import->arena;
  if (node->n_attrs != 1) FAIL(MALFORMED, label, "Constant has %zu attributes; it takes exactly one", node->n_attrs);
  const OnnxAttr *attr = &node->attrs[0];
  const Onnx__AttributeProto *a = attr->head;
  const char *name = text_or_empty(a->name);
  const char *value = text_or_empty(node->head->output[0]);
  if ((!strcmp(name, "value") && attr->has_tensor) || (!strcmp(name, "sparse_value") && attr->has_sparse))
    return tensor_weight(import->model, arena, &attr->tensor, value, out);
  *out = (Weight){.name = value};
  if (!strcmp(name, "value_float")) *out = (Weight){.type = type_scalar(DTYPE_F32), .bytes = arena_copy(arena, &a->f, sizeof a->f)};
  else if (!strcmp(name, "value_int")) *out = (Weight){.type = type_scalar(DTYPE_I64), .bytes = arena_copy(arena, &a->i, sizeof a->i)};
  else if (!strcmp(name, "value_floats"))
    *out = (Weight){.type = type_vector(DTYPE_F32, (int64_t)a->n_floats), .bytes = arena_copy(arena, a->floats, sizeof(float) * a->n_floats)};
  else if (!strcmp(name, "value_ints"))
    *out = (Weight){.type = type_vector(DTYPE_I64, (int64_t)a->n_ints), .bytes = arena_copy(arena, a->ints, sizeof(int64_t) * a->n_ints)};
  else FAIL(UNSUPPORTED, label, "Constant: attribute '%s' is not supported", name);
  return STATUS_OK;
}

// ---- Initializers -------------------------------------------------------------------------------------------------------------

// A float initializer of the model may turn out to train: until assign_roles has decided, nothing computes with its contents.
void import_initializers(Import *import, NameScope *scope, const OnnxGraph *g) {
  const char *prefix = scope ? scope->prefix : "";
  for (size_t i = 0; i < g->n_initializers; i++) {
    const char *name = text_or_empty(g->initializers[i].head->name);
    Weight weight;
    bool taken = scope ? scope_find_here(scope, name) && scope_find_here(scope, name)->defined : graph_find_value(import->graph, name) != NULL;
    if (!*name) import_problem(import, STATUS_MALFORMED, NULL, "initializer %zu has no name", i);
    else if (taken) import_problem(import, STATUS_MALFORMED, NULL, "initializer '%s' is there twice", name);
    if (!*name || taken) continue;
    Value *v = graph_add_value(import->graph, *prefix ? arena_printf(import->arena, "%s%s", prefix, name) : name);
    if (scope) scope_bind(import, scope, name, bound_tensor(v));
    if (import_absorb(import, tensor_weight(import->model, import->arena, &g->initializers[i], name, &weight), NULL)) continue;
    if (scope) weight.path = NULL;                   // not in the WeightSource: a plan carries its bytes
    make_constant(import, v, &weight);
    if (!scope && v->type.rank && dtype_is_float(v->type.dtype)) v->role = ROLE_PARAM;
  }
}
