#include <inttypes.h>
#include <limits.h>
#include <string.h>

#include "import_state.h"

// ---- Constants ----------------------------------------------------------------------------------------------------------------

Value *import_constant(Import *import, const char *name, const Weight *weight) {
  Value *v = graph_add_value(import->graph, name);
  Weight *own = arena_copy(import->arena, weight, sizeof *weight);
  own->name = v->name;
  v->role = ROLE_CONST;
  v->type = weight->type;
  v->weight = own;
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

const char *node_label(Arena *arena, const OnnxNode *node) {
  const char *name = text_or_empty(node->head->name);
  return *name ? name : arena_printf(arena, "%s_%zu", text_or_empty(node->head->op_type), node->index);
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
                   draft->schema ? arena_printf(import->arena, "%" PRId64, import->opset) : "");
  else if (schema && attr_type(attr) != schema->type)
    import_problem(import, STATUS_MALFORMED, node->name, "%s: attribute %s is %s, it must be %s", op, name, type_name(attr_type(attr)), type_name(schema->type));
  else if (spec)
    import_absorb(import, attr_from_onnx(import->model, import->arena, node, spec, attr), node->name);
  else if (!is_standard_default(import->arena, attr, schema))
    import_problem(import, STATUS_UNSUPPORTED, node->name, "%s: attribute %s is not supported", op, name);
}

static void import_attrs(Draft *draft) {
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
static Status constant_weight(Import *import, const OnnxNode *node, const char *label, Weight *out) {
  Arena *arena = import->arena;
  if (node->n_attrs != 1) FAIL(MALFORMED, label, "Constant has %zu attributes; it takes exactly one", node->n_attrs);
  const OnnxAttr *attr = &node->attrs[0];
  const Onnx__AttributeProto *a = attr->head;
  const char *name = text_or_empty(a->name);
  const char *value = text_or_empty(node->head->output[0]);
  if (!strcmp(name, "value") && attr->has_tensor) return tensor_weight(import->model, arena, &attr->tensor, value, out);
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

// ---- Nodes --------------------------------------------------------------------------------------------------------------------

static int trimmed(char *const *names, size_t n) {
  while (n && !*text_or_empty(names[n - 1])) n--;
  return n < INT_MAX ? (int)n : INT_MAX;
}

static bool check_standard(Import *import, const OnnxNode *node, const char *label, const SchemaOp **out) {
  const char *op = text_or_empty(node->head->op_type), *domain = onnx_domain(node->head->domain);
  *out = NULL;
  int64_t opset = import_opset(&import->onnx, domain);
  if (!opset) {
    import_problem(import, STATUS_MALFORMED, label, "%s%s%s: the model does not import domain '%s'", domain, *domain ? "::" : "", op, *domain ? domain : "ai.onnx");
    return false;
  }
  if (!schema_knows_domain(domain)) return true;
  const SchemaOp *schema = schema_find(domain, op, (int)(opset < INT_MAX ? opset : INT_MAX));
  const SchemaOp *ever = schema ? schema : schema_find(domain, op, INT_MAX);
  if (!ever) import_problem(import, STATUS_MALFORMED, label, "%s is no operator of %s", op, *domain ? domain : "ai.onnx");
  else if (!schema) import_problem(import, STATUS_MALFORMED, label, "%s does not exist at opset %" PRId64 ", which the model imports", op, opset);
  else if (schema->deprecated) import_problem(import, STATUS_MALFORMED, label, "%s was removed in opset %d; the model imports %" PRId64, op, schema->since, opset);
  if (!schema || schema->deprecated) return false;
  *out = schema;
  int n_in = trimmed(node->head->input, node->head->n_input), n_out = trimmed(node->head->output, node->head->n_output);
  bool arity_ok = n_in >= schema->min_inputs && n_in <= schema->max_inputs && n_out >= schema->min_outputs && n_out <= schema->max_outputs;
  if (n_in < schema->min_inputs || n_in > schema->max_inputs)
    import_problem(import, STATUS_MALFORMED, label, "%s has %d inputs, it takes %d to %d", op, n_in, schema->min_inputs, schema->max_inputs);
  if (n_out < schema->min_outputs || n_out > schema->max_outputs)
    import_problem(import, STATUS_MALFORMED, label, "%s has %d outputs, it gives %d to %d", op, n_out, schema->min_outputs, schema->max_outputs);
  return arity_ok;
}

// A value for output name `name`; NULL where it is empty or taken.
static Value *new_output(Import *import, const char *name, const char *label) {
  if (!*name) return NULL;
  const Value *taken = graph_find_value(import->graph, name);
  if (!taken) return graph_add_value(import->graph, name);
  import_problem(import, STATUS_MALFORMED, label, "output '%s' is %s already; every value is defined once", name,
                 taken->weight ? "an initializer" : taken->role == ROLE_INPUT ? "a graph input" : "the output of another node");
  return NULL;
}

static void begin_nodes(Import *import, const OnnxGraph *onnx);

static void begin_constant(Import *import, const OnnxNode *from, const char *label) {
  Weight weight;
  const char *name = text_or_empty(from->head->output[0]);
  if (graph_find_value(import->graph, name)) new_output(import, name, label);       // complains
  else if (import_absorb(import, constant_weight(import, from, label, &weight), label)) graph_add_value(import->graph, name);
  else import_constant(import, name, &weight);
}

// An If whose condition is a constant is the nodes of one branch. False: its condition is computed.
static bool begin_constant_if(Import *import, const OnnxNode *from, const char *label) {
  const Value *condition = from->head->n_input ? graph_find_value(import->graph, from->head->input[0]) : NULL;
  const Weight *w = value_const(condition);
  if (!w || w->type.dtype != DTYPE_BOOL || type_elems(&w->type) != 1) return false;
  const OnnxAttr *branch = onnx_attr(from, weight_read_int(w, 0) ? "then_branch" : "else_branch");
  OnnxGraph onnx;
  if (!branch || !branch->has_graph) return false;
  if (import_absorb(import, onnx_decode_graph(branch->graph, import->arena, &onnx), label)) return true;
  import_initializers(import, &onnx, true);
  begin_nodes(import, &onnx);
  if (onnx.head->n_output != from->head->n_output) {
    import_problem(import, STATUS_MALFORMED, label, "If has %zu outputs, its branch gives %zu", from->head->n_output, onnx.head->n_output);
    return true;
  }
  for (size_t i = 0; i < onnx.head->n_output; i++) {
    Value *inner = graph_find_value(import->graph, text_or_empty(onnx.head->output[i]->name));
    if (!inner) import_problem(import, STATUS_MALFORMED, label, "If: output '%s' of its branch is defined nowhere", text_or_empty(onnx.head->output[i]->name));
    Value *out = new_output(import, text_or_empty(from->head->output[i]), label);
    const Op *identity = op_find("", "Identity");
    if (!inner || !out || !identity) continue;
    Node *node = graph_make_node(import->graph, identity, label, 1, &inner, 0, NULL);
    node->origin = label;
    node->n_outputs = 1;
    node->outputs = arena_copy(import->arena, &out, sizeof out);
    out->producer = node;
    ARENA_PUSH(import->arena, import->nodes, import->n_nodes, import->nodes_capacity, node);
  }
  return true;
}

// First round: the node and its outputs, so that the second finds every name.
static void begin_node(Import *import, const OnnxNode *from) {
  const Onnx__NodeProto *head = from->head;
  const char *op_name = text_or_empty(head->op_type), *domain = onnx_domain(head->domain), *label = node_label(import->arena, from);
  Draft draft = {.import = import, .from = from};
  bool good = check_standard(import, from, label, &draft.schema);
  if (good && !*domain && !strcmp(op_name, "Constant")) {
    begin_constant(import, from, label);
    return;
  }
  if (good && !*domain && !strcmp(op_name, "If") && begin_constant_if(import, from, label)) return;
  const Op *op = good ? op_find(domain, op_name) : NULL;
  if (good && !op) import_problem(import, STATUS_UNSUPPORTED, label, "operator %s%s%s is not supported", domain, *domain ? "::" : "", op_name);
  int n_in = trimmed(head->input, head->n_input), n_out = trimmed(head->output, head->n_output);
  Node *node = NULL;
  if (op) {
    Value **inputs = ARENA_ARRAY(import->arena, Value *, n_in);
    draft.node = node = graph_make_node(import->graph, op, label, n_in, inputs, 0, NULL);
    node->origin = label;
    node->n_outputs = n_out;
    node->outputs = ARENA_ARRAY(import->arena, Value *, n_out);
    draft.consumed = ARENA_ARRAY(import->arena, bool, from->n_attrs);
    ARENA_PUSH(import->arena, import->drafts, import->n_drafts, import->drafts_capacity, draft);
  }
  for (int i = 0; i < n_out; i++) {
    Value *v = new_output(import, text_or_empty(head->output[i]), label);
    if (!node || !v) continue;
    node->outputs[i] = v;
    v->producer = node;
    v->output_index = i;
  }
}

static void begin_nodes(Import *import, const OnnxGraph *onnx) {
  for (size_t i = 0; i < onnx->n_nodes; i++) begin_node(import, &onnx->nodes[i]);
}

static void check_row_arity(Draft *draft) {
  const Node *n = draft->node;
  const Op *op = n->op;
  if (n->n_inputs < op->min_inputs || (op->max_inputs != VARIADIC && n->n_inputs > op->max_inputs))
    import_problem(draft->import, STATUS_UNSUPPORTED, n->name, "%s with %d inputs is not supported; %d to %d are", op->name, n->n_inputs, op->min_inputs,
                   op->max_inputs);
  if (n->n_outputs < op->min_outputs || (op->max_outputs != VARIADIC && n->n_outputs > op->max_outputs))
    import_problem(draft->import, STATUS_UNSUPPORTED, n->name, "%s with %d outputs is not supported; %d to %d are", op->name, n->n_outputs, op->min_outputs,
                   op->max_outputs);
}

static void finish_node(Draft *draft) {
  Import *import = draft->import;
  Node *node = draft->node;
  const Onnx__NodeProto *head = draft->from->head;
  for (int i = 0; i < node->n_inputs; i++) {
    const char *name = text_or_empty(head->input[i]);
    if (!*name) continue;
    node->inputs[i] = graph_find_value(import->graph, name);
    if (!node->inputs[i]) import_problem(import, STATUS_MALFORMED, node->name, "%s: input '%s' is defined nowhere", node->op->name, name);
  }
  if (draft->schema) {
    upgrade_node(draft);
    for (int i = 0; i < draft->schema->n_attrs; i++) {
      const SchemaAttr *a = schema_attr_at(draft->schema, i);
      if (a->required && !onnx_attr(draft->from, a->name))
        import_problem(import, STATUS_MALFORMED, node->name, "%s: the required attribute %s is missing", node->op->name, a->name);
    }
  }
  import_attrs(draft);
  check_row_arity(draft);
}

void import_nodes(Import *import) {
  begin_nodes(import, &import->onnx.graph);
  for (size_t i = 0; i < import->n_drafts; i++) {
    ARENA_PUSH(import->arena, import->nodes, import->n_nodes, import->nodes_capacity, import->drafts[i].node);
    finish_node(&import->drafts[i]);
  }
  if (import->n_problems || import_absorb(import, graph_sort(import->graph, import->nodes, import->n_nodes), NULL)) return;
  import->graph->nodes = import->nodes;
  import->graph->n_nodes = import->n_nodes;
  import->graph->nodes_capacity = import->nodes_capacity;
}
