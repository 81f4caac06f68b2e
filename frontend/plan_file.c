#include "plan_file.h"

#include <string.h>

#include "../ir/meta.h"
#include "../ir/narrow.h"
#include "../ir/op.h"
#include "atomic_file.h"
#include "onnx_decode.h"
#include "onnx_message.h"
#include "sharding_spec.h"

enum { PLAN_IR_VERSION = 10, SHARDING_IR_VERSION = 11 };

typedef struct Writer {
  Arena *arena;
  const Graph *graph;
  bool *described;                 // values whose metadata stands somewhere already
  bool plain;                      // no metadata, no producer's name: nothing that only Tessera reads
} Writer;

// ---- Metadata, types, tensors -------------------------------------------------------------------------------------------------

// Without what has fields of its own; *n becomes the number of entries.
static Onnx__StringStringEntryProto **make_pairs(const Writer *w, const MetaPair *pairs, size_t *n) {
  Arena *arena = w->arena;
  Onnx__StringStringEntryProto **list = LIST(arena, Onnx__StringStringEntryProto, *n);
  size_t n_pairs = w->plain ? 0 : *n;
  *n = 0;
  for (size_t i = 0; i < n_pairs; i++) {
    if (!strcmp(pairs[i].key, META_CONFIGURATIONS) || !strcmp(pairs[i].key, META_SHARDING)) continue;
    Onnx__StringStringEntryProto *entry = list[(*n)++] = MESSAGE(arena, Onnx__StringStringEntryProto, ONNX__STRING_STRING_ENTRY_PROTO__INIT);
    entry->key = arena_printf(arena, META_PREFIX "%s", pairs[i].key);
    entry->value = message_text(pairs[i].text);
  }
  return list;
}

static Onnx__ValueInfoProto *make_value(Writer *w, const Value *v) {
  Onnx__ValueInfoProto *info = MESSAGE(w->arena, Onnx__ValueInfoProto, ONNX__VALUE_INFO_PROTO__INIT);
  info->name = message_text(v->name);
  if (v->type.dtype != DTYPE_NONE) info->type = message_type(w->arena, &v->type, NULL);
  if (w->described[v->id] || v->weight) return info;
  MetaPair *pairs;
  info->n_metadata_props = meta_of_value(w->graph, v, w->arena, &pairs);
  info->metadata_props = make_pairs(w, pairs, &info->n_metadata_props);
  w->described[v->id] = true;
  return info;
}

static Onnx__TensorProto *make_tensor(Arena *arena, const Weight *weight, const char *name) {
  Onnx__TensorProto *t = MESSAGE(arena, Onnx__TensorProto, ONNX__TENSOR_PROTO__INIT);
  t->name = message_text(name);
  t->has_data_type = true;
  t->data_type = (int32_t)weight->type.dtype;
  t->n_dims = (size_t)weight->type.rank;
  t->dims = arena_copy(arena, weight->type.dims, sizeof(int64_t) * (size_t)weight->type.rank);
  t->has_raw_data = true;
  t->raw_data = (ProtobufCBinaryData){(size_t)type_packed_bytes(&weight->type), (uint8_t *)weight->bytes};
  if (dtype_is_narrow(weight->type.dtype)) {
    t->raw_data.data = arena_alloc(arena, t->raw_data.len);
    narrow_pack(weight->type.dtype, weight->bytes, type_elems(&weight->type), t->raw_data.data);
  }
  return t;
}

// ---- Nodes --------------------------------------------------------------------------------------------------------------------

static bool is_written(const Node *node, const AttrSpec *spec) {
  const void *at = (const char *)node->attrs + spec->offset;
  switch (spec->type) {
  case ATTR_INT: return *(const int64_t *)at != ATTR_ABSENT && !attr_is_default(node, spec);
  case ATTR_STRING: return *(const char *const *)at && !attr_is_default(node, spec);
  case ATTR_INTS: case ATTR_FLOATS: case ATTR_STRINGS: return ((const AttrInts *)at)->n > 0;
  case ATTR_FLOAT: case ATTR_TENSOR: return !attr_is_default(node, spec);
  }
  return false;
}

static Onnx__AttributeProto *make_attr(Arena *arena, const Node *node, const AttrSpec *spec) {
  const void *at = (const char *)node->attrs + spec->offset;
  AttrInit a = {.name = spec->name, .type = spec->type};
  switch (spec->type) {
  case ATTR_INT: a.i = *(const int64_t *)at; break;
  case ATTR_FLOAT: a.f = *(const float *)at; break;
  case ATTR_STRING: a.s = *(const char *const *)at; break;
  case ATTR_INTS: a.ints = *(const AttrInts *)at; break;
  case ATTR_FLOATS: a.floats = *(const AttrFloats *)at; break;
  case ATTR_STRINGS: a.strings = *(const AttrStrings *)at; break;
  case ATTR_TENSOR: break;
  }
  Onnx__AttributeProto *made = message_attr(arena, &a);
  if (spec->type == ATTR_TENSOR) made->t = make_tensor(arena, *(const Weight *const *)at, "");
  return made;
}

static char **make_names(Arena *arena, Value *const *values, int n) {
  char **names = ARENA_ARRAY(arena, char *, n);
  for (int i = 0; i < n; i++) names[i] = message_text(values[i] ? values[i]->name : "");
  return names;
}

static Onnx__NodeProto *make_node(Writer *w, const Node *node) {
  Arena *arena = w->arena;
  Onnx__NodeProto *n = MESSAGE(arena, Onnx__NodeProto, ONNX__NODE_PROTO__INIT);
  n->name = message_text(node->name);
  n->op_type = message_text(node->op->name);
  n->domain = *node->op->domain ? message_text(node->op->domain) : NULL;
  n->n_input = (size_t)node->n_inputs;
  n->input = make_names(arena, node->inputs, node->n_inputs);
  n->n_output = (size_t)node->n_outputs;
  n->output = make_names(arena, node->outputs, node->n_outputs);
  size_t capacity = 0;
  for (const AttrSpec *s = node->op->attrs; s && s->name; s++)
    if (is_written(node, s)) ARENA_PUSH(arena, n->attribute, n->n_attribute, capacity, make_attr(arena, node, s));
  MetaPair *pairs;
  n->n_metadata_props = meta_of_node(w->graph, node, arena, &pairs);
  n->metadata_props = make_pairs(w, pairs, &n->n_metadata_props);
  sharding_export_node(node, arena, n);
  return n;
}

// ---- The whole ----------------------------------------------------------------------------------------------------------------

static void make_inputs(Writer *w, Onnx__GraphProto *out) {
  const Graph *g = w->graph;
  out->input = LIST(w->arena, Onnx__ValueInfoProto, g->n_inputs + g->n_values);
  for (size_t i = 0; i < g->n_inputs; i++) out->input[out->n_input++] = make_value(w, g->inputs[i]);
  for (size_t i = 0; i < g->n_values; i++) {
    const Value *v = g->values[i];
    if (!v->producer && !v->weight && !w->described[i]) out->input[out->n_input++] = make_value(w, v);
  }
}

static Status make_initializers(Writer *w, Onnx__GraphProto *out) {
  const Graph *g = w->graph;
  out->initializer = LIST(w->arena, Onnx__TensorProto, g->n_values);
  for (size_t i = 0; i < g->n_values; i++) {
    const Value *v = g->values[i];
    if (!v->weight || w->described[i]) continue;
    if (!v->weight->bytes) FAIL(IO, NULL, "the bytes of '%s' are not at hand: it is a reference to %s", v->name, v->weight->path ? v->weight->path : "nothing");
    Onnx__TensorProto *t = make_tensor(w->arena, v->weight, v->name);
    MetaPair *pairs;
    t->n_metadata_props = meta_of_value(g, v, w->arena, &pairs);
    t->metadata_props = make_pairs(w, pairs, &t->n_metadata_props);
    out->initializer[out->n_initializer++] = t;
    w->described[i] = true;
  }
  return STATUS_OK;
}

static Status make_graph(Writer *w, Onnx__GraphProto **result) {
  const Graph *g = w->graph;
  Onnx__GraphProto *out = MESSAGE(w->arena, Onnx__GraphProto, ONNX__GRAPH_PROTO__INIT);
  out->name = message_text(g->name);
  make_inputs(w, out);
  TRY(make_initializers(w, out));
  out->output = LIST(w->arena, Onnx__ValueInfoProto, g->n_outputs);
  for (size_t i = 0; i < g->n_outputs; i++) out->output[out->n_output++] = make_value(w, g->outputs[i]);
  out->value_info = LIST(w->arena, Onnx__ValueInfoProto, g->n_values);
  out->node = LIST(w->arena, Onnx__NodeProto, g->n_nodes);
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *n = g->nodes[i];
    for (int k = 0; k < n->n_outputs; k++) {
      const Value *v = n->outputs[k];
      if (!v || w->described[v->id]) continue;
      Onnx__ValueInfoProto *info = make_value(w, v);
      if (info->type || info->n_metadata_props) out->value_info[out->n_value_info++] = info;
    }
    out->node[out->n_node++] = make_node(w, n);
  }
  *result = out;
  return STATUS_OK;
}

static void add_domains(Writer *w, Onnx__ModelProto *model) {
  for (size_t i = 0; i < w->graph->n_nodes; i++) {
    const char *domain = w->graph->nodes[i]->op->domain;
    bool known = false;
    for (size_t k = 0; k < model->n_opset_import; k++) known |= !strcmp(model->opset_import[k]->domain, domain);
    if (!known) model->opset_import[model->n_opset_import++] = message_opset(w->arena, domain, 1);
  }
}

static Onnx__StringStringEntryProto **graph_pairs(Writer *w, size_t *n) {
  MetaPair *pairs;
  *n = meta_of_graph(w->graph, w->arena, &pairs);
  return make_pairs(w, pairs, n);
}

// A further program: a node that holds it.
static Status make_program(Arena *arena, const Graph *program, int number, Onnx__NodeProto **out) {
  Writer w = {arena, program, ARENA_ARRAY(arena, bool, program->n_values), false};
  Onnx__NodeProto *n = MESSAGE(arena, Onnx__NodeProto, ONNX__NODE_PROTO__INIT);
  Onnx__AttributeProto *body = MESSAGE(arena, Onnx__AttributeProto, ONNX__ATTRIBUTE_PROTO__INIT);
  n->name = arena_printf(arena, "program.%d", number);
  n->op_type = message_text(PLAN_PROGRAM_OP);
  n->domain = message_text("tessera");
  n->n_output = 1;                                   // ONNX wants one; it is no value of the plan
  n->output = ARENA_ARRAY(arena, char *, 1);
  n->output[0] = n->name;
  n->n_attribute = 1;
  n->attribute = LIST(arena, Onnx__AttributeProto, 1);
  n->attribute[0] = body;
  body->name = message_text("body");
  body->has_type = true;
  body->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH;
  TRY(make_graph(&w, &body->g));
  body->g->metadata_props = graph_pairs(&w, &body->g->n_metadata_props);
  *out = n;
  return STATUS_OK;
}

static Status add_programs(Arena *arena, const Graph *const *programs, int n, Onnx__GraphProto *to) {
  Onnx__NodeProto **nodes = LIST(arena, Onnx__NodeProto, to->n_node + (size_t)n);
  for (int p = 0; p < n; p++) TRY(make_program(arena, programs[p], p + 1, &nodes[p]));
  memcpy(nodes + n, to->node, to->n_node * sizeof *nodes);
  to->node = nodes;
  to->n_node += (size_t)n;
  return STATUS_OK;
}

static Status write_model(const Graph *const *programs, int n_programs, bool plain, Arena *arena, const void **out_bytes, size_t *out_n_bytes) {
  const Graph *graph = programs[0];
  Writer w = {arena, graph, ARENA_ARRAY(arena, bool, graph->n_values), plain};
  Onnx__ModelProto *model = MESSAGE(arena, Onnx__ModelProto, ONNX__MODEL_PROTO__INIT);
  model->has_ir_version = true;
  model->ir_version = graph->n_configurations ? SHARDING_IR_VERSION : PLAN_IR_VERSION;
  if (!plain) model->producer_name = message_text("tessera");
  model->opset_import = LIST(arena, Onnx__OperatorSetIdProto, graph->n_nodes + 2);
  model->opset_import[model->n_opset_import++] = message_opset(arena, "", graph->opset);
  if (plain) add_domains(&w, model);
  else model->opset_import[model->n_opset_import++] = message_opset(arena, "tessera", 1);
  TRY(make_graph(&w, &model->graph));
  if (n_programs > 1) TRY(add_programs(arena, programs + 1, n_programs - 1, model->graph));
  model->metadata_props = graph_pairs(&w, &model->n_metadata_props);
  sharding_export_configurations(graph, arena, model);
  size_t n = onnx__model_proto__get_packed_size(model);
  uint8_t *bytes = arena_alloc(arena, n);
  onnx__model_proto__pack(model, bytes);
  *out_bytes = bytes;
  *out_n_bytes = n;
  return STATUS_OK;
}

Status plan_to_onnx(const Graph *const *programs, int n_programs, Arena *arena, const void **out_bytes, size_t *out_n_bytes) {
  ARENA_GUARD(arena);
  ARENA_RETURN(arena, write_model(programs, n_programs, false, arena, out_bytes, out_n_bytes));
}

Status graph_to_onnx(const Graph *graph, Arena *arena, const void **out_bytes, size_t *out_n_bytes) {
  return plan_to_onnx(&graph, 1, arena, out_bytes, out_n_bytes);
}

static Status model_guarded(const Graph *graph, Arena *arena, const void **out_bytes, size_t *out_n_bytes) {
  ARENA_GUARD(arena);
  ARENA_RETURN(arena, write_model(&graph, 1, true, arena, out_bytes, out_n_bytes));
}

static Status write_file(const Graph *graph, bool plain, const char *path) {
  Arena *arena = arena_create(0);
  if (!arena) FAIL(RESOURCE, NULL, "out of memory");
  const void *bytes;
  size_t n_bytes;
  AtomicFile file = {.fd = -1};
  Status status = plain ? model_guarded(graph, arena, &bytes, &n_bytes) : graph_to_onnx(graph, arena, &bytes, &n_bytes);
  if (!status) status = atomic_begin(path, &file);
  if (!status) status = atomic_write(&file, bytes, n_bytes);
  if (!status) status = atomic_commit(&file);
  atomic_abandon(&file);
  arena_destroy(arena);
  return status;
}

Status graph_write_onnx(const Graph *graph, const char *path) { return write_file(graph, false, path); }
Status graph_write_model(const Graph *graph, const char *path) { return write_file(graph, true, path); }
