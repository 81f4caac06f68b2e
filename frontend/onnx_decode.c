#include "onnx_decode.h"

#include <string.h>

// Field numbers of onnx.proto that this file takes apart itself; the rest goes through protobuf-c's descriptors.
enum {
  MODEL_GRAPH = 7, MODEL_TRAINING_INFO = 20, MODEL_FUNCTIONS = 25, MODEL_CONFIGURATION = 26,
  GRAPH_NODE = 1, GRAPH_INITIALIZER = 5, GRAPH_OUTPUT = 12, GRAPH_QUANTIZATION = 14, GRAPH_SPARSE_INITIALIZER = 15,
  TRAINING_INITIALIZATION = 1, TRAINING_ALGORITHM = 2,
  FUNCTION_NODE = 7, FUNCTION_DOC = 8, FUNCTION_DEFAULT = 11, FUNCTION_VALUE_INFO = 12,
  NODE_ATTRIBUTE = 5, NODE_DOC = 6, NODE_DEVICE = 10,
  ATTR_T = 5, ATTR_G = 6, ATTR_TENSORS_LIST = 10, ATTR_GRAPHS = 11, ATTR_SPARSE = 22, ATTR_SPARSES = 23,
  SPARSE_VALUES = 1, SPARSE_INDICES = 2,
  TENSOR_FLOATS = 4, TENSOR_INT32S = 5, TENSOR_STRINGS_DATA = 6, TENSOR_INT64S = 7, TENSOR_RAW = 9, TENSOR_DOUBLES = 10, TENSOR_UINT64S = 11,
};
#define BIT(n) ((uint64_t)1 << (n))
#define DECODE(bytes, T, skip, arena, out)                                                       \
  do {                                                                                           \
    ProtobufCMessage *decoded_;                                                                  \
    TRY(wire_decode(bytes, &onnx__##T##__descriptor, skip, arena, &decoded_));                   \
    (out) = (const void *)decoded_;                                                              \
  } while (0)

static size_t count_fields(Bytes bytes, uint32_t number) {
  size_t n = 0;
  for (WireField w; wire_next(&bytes, &w);) n += w.number == number;
  return n;
}

static Status decode_tensor(Bytes bytes, Arena *arena, OnnxTensor *out) {
  out->all = bytes;
  const uint64_t contents = BIT(TENSOR_FLOATS) | BIT(TENSOR_INT32S) | BIT(TENSOR_STRINGS_DATA) | BIT(TENSOR_INT64S) | BIT(TENSOR_RAW) |
                            BIT(TENSOR_DOUBLES) | BIT(TENSOR_UINT64S);
  DECODE(bytes, tensor_proto, contents, arena, out->head);
  for (WireField w; wire_next(&bytes, &w);) {
    if (w.number != TENSOR_RAW) continue;
    out->has_raw = true;
    out->raw = w.bytes;
  }
  return STATUS_OK;
}

// The name stands with the values.
static Status decode_sparse(Bytes bytes, Arena *arena, OnnxTensor *out) {
  const Onnx__SparseTensorProto *whole;
  OnnxSparse *parts = ARENA_NEW(arena, OnnxSparse);
  DECODE(bytes, sparse_tensor_proto, BIT(SPARSE_VALUES) | BIT(SPARSE_INDICES), arena, whole);
  for (WireField w; wire_next(&bytes, &w);) {
    if (w.number == SPARSE_VALUES) TRY(decode_tensor(w.bytes, arena, &parts->values));
    if (w.number == SPARSE_INDICES) TRY(decode_tensor(w.bytes, arena, &parts->indices));
  }
  if (!parts->values.head || !parts->indices.head) FAIL(MALFORMED, NULL, "a sparse tensor has no %s", parts->values.head ? "indices" : "values");
  Onnx__TensorProto *head = arena_copy(arena, parts->values.head, sizeof *head);
  head->dims = whole->dims;
  head->n_dims = whole->n_dims;
  *out = (OnnxTensor){.head = head, .sparse = parts};
  return STATUS_OK;
}

static Status decode_attr(Bytes bytes, Arena *arena, OnnxAttr *out) {
  const uint64_t large = BIT(ATTR_T) | BIT(ATTR_G) | BIT(ATTR_TENSORS_LIST) | BIT(ATTR_GRAPHS) | BIT(ATTR_SPARSE) | BIT(ATTR_SPARSES);
  DECODE(bytes, attribute_proto, large, arena, out->head);
  for (WireField w; wire_next(&bytes, &w);) {
    if (w.number == ATTR_T) {
      out->has_tensor = true;
      TRY(decode_tensor(w.bytes, arena, &out->tensor));
    } else if (w.number == ATTR_G) {
      out->has_graph = true;
      out->graph = w.bytes;
    } else if (w.number == ATTR_SPARSE) {
      out->has_sparse = true;
      TRY(decode_sparse(w.bytes, arena, &out->tensor));
    }
  }
  return STATUS_OK;
}

static Status decode_node(Bytes bytes, Arena *arena, OnnxNode *out) {
  DECODE(bytes, node_proto, BIT(NODE_ATTRIBUTE) | BIT(NODE_DOC) | BIT(NODE_DEVICE), arena, out->head);
  out->all = bytes;
  out->attrs = ARENA_ARRAY(arena, OnnxAttr, count_fields(bytes, NODE_ATTRIBUTE));
  for (WireField w; wire_next(&bytes, &w);)
    if (w.number == NODE_ATTRIBUTE) TRY(decode_attr(w.bytes, arena, &out->attrs[out->n_attrs++]));
  return STATUS_OK;
}

Status onnx_decode_graph(Bytes bytes, Arena *arena, OnnxGraph *out) {
  *out = (OnnxGraph){0};
  const uint64_t own = BIT(GRAPH_NODE) | BIT(GRAPH_INITIALIZER) | BIT(GRAPH_QUANTIZATION) | BIT(GRAPH_SPARSE_INITIALIZER);
  DECODE(bytes, graph_proto, own, arena, out->head);
  out->nodes = ARENA_ARRAY(arena, OnnxNode, count_fields(bytes, GRAPH_NODE));
  out->initializers = ARENA_ARRAY(arena, OnnxTensor, count_fields(bytes, GRAPH_INITIALIZER) + count_fields(bytes, GRAPH_SPARSE_INITIALIZER));
  Bytes again = bytes;
  for (WireField w; wire_next(&bytes, &w);) {
    if (w.number == GRAPH_NODE) {
      out->nodes[out->n_nodes].index = out->n_nodes;
      TRY(decode_node(w.bytes, arena, &out->nodes[out->n_nodes++]));
    } else if (w.number == GRAPH_INITIALIZER) {
      TRY(decode_tensor(w.bytes, arena, &out->initializers[out->n_initializers++]));
    }
  }
  for (WireField w; wire_next(&again, &w);)
    if (w.number == GRAPH_SPARSE_INITIALIZER) TRY(decode_sparse(w.bytes, arena, &out->initializers[out->n_initializers++]));
  return STATUS_OK;
}

static Status decode_function(Bytes bytes, Arena *arena, OnnxFunction *out) {
  DECODE(bytes, function_proto, BIT(FUNCTION_NODE) | BIT(FUNCTION_DOC) | BIT(FUNCTION_DEFAULT) | BIT(FUNCTION_VALUE_INFO), arena, out->head);
  out->nodes = ARENA_ARRAY(arena, OnnxNode, count_fields(bytes, FUNCTION_NODE));
  out->defaults = ARENA_ARRAY(arena, OnnxAttr, count_fields(bytes, FUNCTION_DEFAULT));
  for (WireField w; wire_next(&bytes, &w);) {
    if (w.number == FUNCTION_DEFAULT) TRY(decode_attr(w.bytes, arena, &out->defaults[out->n_defaults++]));
    if (w.number != FUNCTION_NODE) continue;
    out->nodes[out->n_nodes].index = out->n_nodes;
    TRY(decode_node(w.bytes, arena, &out->nodes[out->n_nodes++]));
  }
  return STATUS_OK;
}

static void *join(Arena *arena, const void *a, size_t n_a, const void *b, size_t n_b, size_t item_bytes) {
  char *both = arena_alloc_array(arena, n_a + n_b, item_bytes);
  if (n_a) memcpy(both, a, n_a * item_bytes);
  if (n_b) memcpy(both + n_a * item_bytes, b, n_b * item_bytes);
  return both;
}
#define JOIN(field, count) head->field = join(arena, head->field, head->count, more.head->field, more.head->count, sizeof *head->field), head->count += more.head->count

// A training step is one execution of the inference graph and the algorithm joined (onnx.proto, TrainingInfoProto). An input of both is one.
static Status decode_training(Bytes bytes, Arena *arena, OnnxModel *out) {
  OnnxGraph more = {.head = NULL}, *g = &out->graph;
  DECODE(bytes, training_info_proto, BIT(TRAINING_INITIALIZATION) | BIT(TRAINING_ALGORITHM), arena, out->training);
  for (WireField w; wire_next(&bytes, &w);)
    if (w.number == TRAINING_ALGORITHM) TRY(onnx_decode_graph(w.bytes, arena, &more));
  if (!more.head || !g->head) return STATUS_OK;
  Onnx__GraphProto *head = arena_copy(arena, g->head, sizeof *head);
  size_t n_input = head->n_input;
  for (size_t i = 0; i < more.n_nodes; i++) more.nodes[i].index = g->n_nodes + i;
  JOIN(output, n_output);
  JOIN(value_info, n_value_info);
  head->input = join(arena, head->input, n_input, more.head->input, more.head->n_input, sizeof *head->input);
  for (size_t i = 0; i < more.head->n_input; i++) {
    bool known = false;
    for (size_t k = 0; k < n_input && !known; k++) known = !strcmp(text_or_empty(head->input[k]->name), text_or_empty(more.head->input[i]->name));
    if (!known) head->input[head->n_input++] = more.head->input[i];
  }
  g->nodes = join(arena, g->nodes, g->n_nodes, more.nodes, more.n_nodes, sizeof *g->nodes);
  g->n_nodes += more.n_nodes;
  g->initializers = join(arena, g->initializers, g->n_initializers, more.initializers, more.n_initializers, sizeof *g->initializers);
  g->n_initializers += more.n_initializers;
  g->head = head;
  return STATUS_OK;
}

Status onnx_decode_model(Bytes bytes, Arena *arena, OnnxModel *out) {
  *out = (OnnxModel){0};
  DECODE(bytes, model_proto, BIT(MODEL_GRAPH) | BIT(MODEL_TRAINING_INFO) | BIT(MODEL_FUNCTIONS) | BIT(MODEL_CONFIGURATION), arena, out->head);
  Bytes training = {0};
  out->functions = ARENA_ARRAY(arena, OnnxFunction, count_fields(bytes, MODEL_FUNCTIONS));
  for (WireField w; wire_next(&bytes, &w);) {
    if (w.number == MODEL_GRAPH) {
      out->has_graph = true;
      TRY(onnx_decode_graph(w.bytes, arena, &out->graph));
    } else if (w.number == MODEL_TRAINING_INFO) {
      out->n_training_infos++;
      training = w.bytes;
    } else if (w.number == MODEL_FUNCTIONS) {
      TRY(decode_function(w.bytes, arena, &out->functions[out->n_functions++]));
    }
  }
  return out->n_training_infos ? decode_training(training, arena, out) : STATUS_OK;
}

// Walks nested graphs on the wire; their depth is what wire_scan has let pass.
static void names_in_graph(Bytes graph, void (*use)(void *user, Bytes name), void *user) {
  for (WireField node; wire_next(&graph, &node);) {
    if (node.number != GRAPH_NODE && node.number != GRAPH_OUTPUT) continue;
    Bytes rest = node.bytes;
    for (WireField w; wire_next(&rest, &w);) {
      if (w.number == 1) use(user, w.bytes);       // NodeProto.input, or ValueInfoProto.name of an output
      if (node.number != GRAPH_NODE || w.number != NODE_ATTRIBUTE) continue;
      Bytes attr = w.bytes;
      for (WireField a; wire_next(&attr, &a);)
        if (a.number == ATTR_G) names_in_graph(a.bytes, use, user);
    }
  }
}

void onnx_subgraph_names(const OnnxNode *node, void (*use)(void *user, Bytes name), void *user) {
  for (size_t i = 0; i < node->n_attrs; i++)
    if (node->attrs[i].has_graph) names_in_graph(node->attrs[i].graph, use, user);
}

const OnnxAttr *onnx_attr(const OnnxNode *node, const char *name) {
  for (size_t i = 0; i < node->n_attrs; i++)
    if (!strcmp(text_or_empty(node->attrs[i].head->name), name)) return &node->attrs[i];
  return NULL;
}

const char *onnx_domain(const char *domain) { return !domain || !strcmp(domain, "ai.onnx") ? "" : domain; }

int64_t onnx_opset(Onnx__OperatorSetIdProto *const *imports, size_t n, const char *domain) {
  for (size_t i = 0; i < n; i++)
    if (!strcmp(onnx_domain(imports[i]->domain), domain)) return imports[i]->version;
  return 0;
}

const char *onnx_metadata(Onnx__StringStringEntryProto *const *entries, size_t n, const char *key) {
  for (size_t i = 0; i < n; i++)
    if (!strcmp(text_or_empty(entries[i]->key), key)) return text_or_empty(entries[i]->value);
  return NULL;
}
