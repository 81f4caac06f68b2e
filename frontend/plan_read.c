#include <inttypes.h>
#include <limits.h>
#include <string.h>

#include "../ir/meta.h"
#include "import_state.h"
#include "plan_file.h"
#include "sharding_spec.h"

typedef struct Reader {
  Model *model;
  Arena *arena;
  OnnxModel onnx;
  const OnnxGraph *from;           // that is being read, into `graph`
  Graph *graph;
  MetaReader *meta;
} Reader;

// ModelProto.producer_name (2), without decoding anything.
bool model_is_plan(const Model *model) {
  Bytes rest = model->file;
  for (WireField w; wire_next(&rest, &w);)
    if (w.number == 2 && w.bytes.n == strlen("tessera") && !memcmp(w.bytes.data, "tessera", w.bytes.n)) return true;
  return false;
}

// ---- Values -------------------------------------------------------------------------------------------------------------------

// The key without our prefix; NULL for those of others, which say nothing here.
static const char *own_key(const char *key) { return strncmp(key, META_PREFIX, strlen(META_PREFIX)) ? NULL : key + strlen(META_PREFIX); }

static Status read_value_pairs(Reader *r, Value *v, Onnx__StringStringEntryProto *const *pairs, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const char *key = own_key(text_or_empty(pairs[i]->key));
    if (key) TRY(status_context(meta_set_value(r->meta, v, key, text_or_empty(pairs[i]->value)), "value '%s'", v->name));
  }
  return STATUS_OK;
}

static Status read_type(const Onnx__ValueInfoProto *info, Type *out) {
  const char *name = text_or_empty(info->name);
  *out = (Type){0};
  if (!info->type) return STATUS_OK;
  if (info->type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE || !dtype_known(info->type->tensor_type->elem_type))
    FAIL(UNSUPPORTED, NULL, "value '%s' is no tensor of a supported element type", name);
  const Onnx__TensorShapeProto *shape = info->type->tensor_type->shape;
  if (!shape || shape->n_dim > RANK_MAX) FAIL(MALFORMED, NULL, "value '%s' has no shape, or more than %d dimensions", name, RANK_MAX);
  out->dtype = (Dtype)info->type->tensor_type->elem_type;
  out->rank = (int)shape->n_dim;
  for (int i = 0; i < out->rank; i++) {
    if (shape->dim[i]->value_case != ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE)
      FAIL(MALFORMED, NULL, "value '%s': dimension %d is no number; shapes of a plan are static", name, i);
    out->dims[i] = shape->dim[i]->dim_value;
  }
  return status_context(type_check(out, NULL), "value '%s'", name);
}

// Type and metadata of a value that may be there already, e.g. a graph output that is an initializer.
static Status read_value(Reader *r, const Onnx__ValueInfoProto *info, Value **out) {
  const char *name = text_or_empty(info->name);
  Type type;
  if (!*name) FAIL(MALFORMED, NULL, "a value of the graph has no name");
  TRY(read_type(info, &type));
  Value *v = graph_find_value(r->graph, name);
  if (!v) v = graph_add_value(r->graph, name);
  if (type.dtype != DTYPE_NONE && v->type.dtype != DTYPE_NONE && !type_equal(&type, &v->type))
    FAIL(MALFORMED, NULL, "value '%s' is declared twice, with different types", name);
  if (type.dtype != DTYPE_NONE) v->type = type;
  TRY(read_value_pairs(r, v, info->metadata_props, info->n_metadata_props));
  if (out) *out = v;
  return STATUS_OK;
}

static Status read_initializers(Reader *r) {
  const OnnxGraph *g = r->from;
  for (size_t i = 0; i < g->n_initializers; i++)
    if (g->initializers[i].sparse) FAIL(UNSUPPORTED, NULL, "sparse initializers are not supported in plans");
  for (size_t i = 0; i < g->n_initializers; i++) {
    const Onnx__TensorProto *head = g->initializers[i].head;
    const char *name = text_or_empty(head->name);
    Weight *w = ARENA_NEW(r->arena, Weight);
    if (!*name || graph_find_value(r->graph, name)) FAIL(MALFORMED, NULL, "initializer %zu ('%s') has no name, or one that is taken", i, name);
    TRY(tensor_weight(r->model, r->arena, &g->initializers[i], name, w));
    Value *v = graph_add_value(r->graph, name);
    v->type = w->type;
    v->weight = w;
    v->role = ROLE_CONST;
    TRY(read_value_pairs(r, v, head->metadata_props, head->n_metadata_props));
  }
  return STATUS_OK;
}

// ---- Nodes --------------------------------------------------------------------------------------------------------------------

static Status read_attrs(Reader *r, Node *node, const OnnxNode *from) {
  for (size_t i = 0; i < from->n_attrs; i++) {
    const char *name = text_or_empty(from->attrs[i].head->name);
    const AttrSpec *spec = attr_spec(node->op, name);
    if (!spec) FAIL(MALFORMED, node->name, "%s has no attribute '%s'", node->op->name, name);
    TRY(attr_from_onnx(r->model, r->arena, node, spec, &from->attrs[i]));
  }
  return attrs_check(node);
}

static Status read_node(Reader *r, const OnnxNode *from) {
  const Onnx__NodeProto *head = from->head;
  const char *domain = onnx_domain(head->domain), *op_name = text_or_empty(head->op_type);
  const char *name = head->name && *head->name ? head->name : head->n_output && *text_or_empty(head->output[0]) ? head->output[0] : op_name;
  const Op *op = op_find(domain, op_name);
  if (!op) FAIL(UNSUPPORTED, name, "operator %s%s%s is not known", domain, *domain ? "::" : "", op_name);
  if (head->n_input > INT_MAX || head->n_output > INT_MAX) FAIL(RESOURCE, name, "too many inputs or outputs");
  Value **inputs = ARENA_ARRAY(r->arena, Value *, head->n_input);
  for (size_t i = 0; i < head->n_input; i++) {
    if (!*text_or_empty(head->input[i])) continue;
    inputs[i] = graph_find_value(r->graph, head->input[i]);
    if (!inputs[i]) FAIL(MALFORMED, name, "%s: input '%s' is defined nowhere before", op_name, head->input[i]);
  }
  Node *node = graph_make_node(r->graph, op, name, (int)head->n_input, inputs, 0, NULL);
  if (strcmp(node->name, name)) FAIL(MALFORMED, name, "two nodes have this name");
  node->origin = node->name;
  node->n_outputs = (int)head->n_output;
  node->outputs = ARENA_ARRAY(r->arena, Value *, head->n_output);
  for (int i = 0; i < node->n_outputs; i++) {
    const char *output = text_or_empty(head->output[i]);
    if (!*output) continue;
    Value *v = graph_find_value(r->graph, output);
    if (!v) v = graph_add_value(r->graph, output);
    if (v->producer || v->weight) FAIL(MALFORMED, name, "%s: output '%s' is defined twice", op_name, output);
    v->producer = node;
    v->output_index = i;
    node->outputs[i] = v;
  }
  TRY(read_attrs(r, node, from));
  TRY(sharding_import_node(r->graph, node, from));
  for (size_t i = 0; i < head->n_metadata_props; i++) {
    const char *key = own_key(text_or_empty(head->metadata_props[i]->key));
    if (key) TRY(status_context(meta_set_node(r->meta, node, key, text_or_empty(head->metadata_props[i]->value)), "node '%s'", name));
  }
  graph_append(r->graph, node);
  return STATUS_OK;
}

// ---- The whole ----------------------------------------------------------------------------------------------------------------

static Status check_plan_versions(const OnnxModel *onnx, const char *path) {
  if (!onnx->has_graph) FAIL(MALFORMED, NULL, "%s has no graph", path);
  int64_t standard = onnx_opset(onnx->head->opset_import, onnx->head->n_opset_import, "");
  if (standard != IR_OPSET) FAIL(UNSUPPORTED, NULL, "%s imports opset %" PRId64 "; graphs of Tessera have opset %d", path, standard, IR_OPSET);
  if (onnx_opset(onnx->head->opset_import, onnx->head->n_opset_import, "tessera") > 1) FAIL(UNSUPPORTED, NULL, "%s is of a newer version of Tessera", path);
  if (onnx->n_functions || onnx->n_training_infos) FAIL(UNSUPPORTED, NULL, "%s has functions or training_info: it is no plan", path);
  return STATUS_OK;
}

static Status read_inputs(Reader *r, Value ***out, size_t *n_out) {
  const Onnx__GraphProto *head = r->from->head;
  Value **inputs = ARENA_ARRAY(r->arena, Value *, head->n_input);
  for (size_t i = 0; i < head->n_input; i++) {
    const char *name = text_or_empty(head->input[i]->name);
    if (graph_find_value(r->graph, name)) FAIL(MALFORMED, NULL, "graph input '%s' is there twice", name);
    if (*name) graph_add_value(r->graph, name)->role = ROLE_INPUT;
    TRY(read_value(r, head->input[i], &inputs[i]));
  }
  *out = inputs;
  *n_out = head->n_input;
  return STATUS_OK;
}

static const Bytes *program_body(const OnnxNode *node) {
  const OnnxAttr *body = onnx_attr(node, "body");
  bool is_program = !strcmp(onnx_domain(node->head->domain), "tessera") && !strcmp(text_or_empty(node->head->op_type), PLAN_PROGRAM_OP);
  return is_program && body && body->has_graph ? &body->graph : NULL;
}

static Status read_described(Reader *r) {
  const Onnx__GraphProto *head = r->from->head;
  Graph *g = r->graph;
  for (size_t i = 0; i < head->n_output; i++) {
    Value *v = graph_find_value(g, text_or_empty(head->output[i]->name));
    if (!v) FAIL(MALFORMED, NULL, "graph output '%s' is defined nowhere", text_or_empty(head->output[i]->name));
    TRY(read_value(r, head->output[i], NULL));
    graph_add_output(g, v);
  }
  for (size_t i = 0; i < head->n_value_info; i++) {
    if (!graph_find_value(g, text_or_empty(head->value_info[i]->name)))
      FAIL(MALFORMED, NULL, "value_info '%s' describes no value of the graph", text_or_empty(head->value_info[i]->name));
    TRY(read_value(r, head->value_info[i], NULL));
  }
  return STATUS_OK;
}

// Values in the order in which they were: inputs, initializers, outputs of nodes. Value infos come after the nodes, so that they find their values.
static Status read_graph(Reader *r, Onnx__StringStringEntryProto *const *pairs, size_t n_pairs) {
  Graph *g = r->graph = graph_create(r->arena, r->from->head->name);
  r->meta = meta_reader_create(g);
  TRY(sharding_import_configurations(g, r->model->file));
  Value **inputs;
  size_t n_inputs;
  TRY(read_inputs(r, &inputs, &n_inputs));
  TRY(read_initializers(r));
  for (size_t i = 0; i < r->from->n_nodes; i++)
    if (r->from != &r->onnx.graph || !program_body(&r->from->nodes[i])) TRY(read_node(r, &r->from->nodes[i]));
  TRY(read_described(r));
  for (size_t i = 0; i < n_pairs; i++) {
    const char *key = own_key(text_or_empty(pairs[i]->key));
    if (key) TRY(meta_set_graph(r->meta, key, text_or_empty(pairs[i]->value)));
  }
  for (size_t i = 0; i < n_inputs; i++) {
    if (inputs[i]->producer) FAIL(MALFORMED, NULL, "graph input '%s' is the output of a node, too", inputs[i]->name);
    if (inputs[i]->role == ROLE_INPUT) graph_add_input(g, inputs[i]);
  }
  return meta_finish(r->meta);
}

// The graph of the file is program 0; each Program node holds a further one.
static Status read_programs(Reader *r, const Graph ***out, int *n_out) {
  const OnnxGraph *first = &r->onnx.graph;
  const Graph **programs = NULL;
  size_t n = 0, capacity = 0;
  r->from = first;
  TRY(read_graph(r, r->onnx.head->metadata_props, r->onnx.head->n_metadata_props));
  ARENA_PUSH(r->arena, programs, n, capacity, r->graph);
  for (size_t i = 0; i < first->n_nodes; i++) {
    const Bytes *body = program_body(&first->nodes[i]);
    if (!body) continue;
    if (n == PLAN_PROGRAMS_MAX) FAIL(UNSUPPORTED, NULL, "the plan has more than %d programs", PLAN_PROGRAMS_MAX);
    OnnxGraph *graph = ARENA_NEW(r->arena, OnnxGraph);
    TRY(onnx_decode_graph(*body, r->arena, graph));
    r->from = graph;
    TRY(status_context(read_graph(r, graph->head->metadata_props, graph->head->n_metadata_props), "program %zu", n));
    ARENA_PUSH(r->arena, programs, n, capacity, r->graph);
  }
  *out = programs;
  *n_out = (int)n;
  return STATUS_OK;
}

static Status read_guarded(Reader *r, const Graph ***out, int *n_out) {
  ARENA_GUARD(r->arena);
  Status status = onnx_decode_model(r->model->file, r->arena, &r->onnx);
  if (!status) status = check_plan_versions(&r->onnx, r->model->path);
  if (!status) status = read_programs(r, out, n_out);
  ARENA_RETURN(r->arena, status);
}

Status plan_read_onnx(Model *model, Arena *arena, const Graph ***out, int *n_out) {
  Reader r = {.model = model, .arena = arena};
  budget_begin(model, arena);
  Status status = read_guarded(&r, out, n_out);
  budget_end(model, arena);
  return status;
}

Status graph_read_onnx(Model *model, Arena *arena, Graph **out) {
  const Graph **programs;
  int n;
  TRY(plan_read_onnx(model, arena, &programs, &n));
  if (n > 1) FAIL(UNSUPPORTED, NULL, "%s has %d programs, one for each coordinate of a further mesh axis; only 'tessera verify' takes such plans", model->path, n);
  *out = (Graph *)programs[0];     // made here
  return STATUS_OK;
}
