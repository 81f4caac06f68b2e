// A scanned ONNX file as C structures: protobuf-c's for everything small, byte ranges of the mapped file for tensors and subgraphs.
//
// Precondition: the bytes passed wire_scan. Ownership: all in the arena, pointing into the file. Threads: pure. Call under an arena guard.
#ifndef TESSERA_ONNX_DECODE_H
#define TESSERA_ONNX_DECODE_H

#include "onnx.pb-c.h"
#include "wire_scan.h"

typedef struct OnnxTensor {
  const Onnx__TensorProto *head;     // name, dims, data_type, external_data, data_location; none of the contents
  Bytes all;                         // the whole message: contents of float_data etc. are read from here
  bool has_raw;
  Bytes raw;                         // raw_data
  const struct OnnxSparse *sparse;   // sparse: what there is of it; `head` has the dense dimensions. NULL: dense
} OnnxTensor;

typedef struct OnnxSparse { OnnxTensor values, indices; } OnnxSparse;

typedef struct OnnxAttr {
  const Onnx__AttributeProto *head;  // without tensors and graphs
  bool has_tensor, has_graph, has_sparse;    // a sparse tensor stands in `tensor`, too
  OnnxTensor tensor;
  Bytes graph;                       // a GraphProto, not decoded
} OnnxAttr;

typedef struct OnnxNode {
  const Onnx__NodeProto *head;       // without attributes
  OnnxAttr *attrs;
  size_t n_attrs;
  size_t index;                      // in its graph
  Bytes all;                         // the whole message: device_configurations are read from here
} OnnxNode;

typedef struct OnnxGraph {
  const Onnx__GraphProto *head;      // name, input, output, value_info, metadata_props
  OnnxNode *nodes;
  size_t n_nodes;
  OnnxTensor *initializers;          // dense, then sparse
  size_t n_initializers;
} OnnxGraph;

typedef struct OnnxFunction {
  const Onnx__FunctionProto *head;   // name, inputs, outputs, names of attributes, opset_import
  OnnxNode *nodes;
  size_t n_nodes;
  OnnxAttr *defaults;                // attributes that have a default
  size_t n_defaults;
} OnnxFunction;

typedef struct OnnxModel {
  const Onnx__ModelProto *head;      // without graph, training_info, functions
  bool has_graph;
  OnnxGraph graph;
  size_t n_training_infos;
  const Onnx__TrainingInfoProto *training;   // the bindings of the last one; its algorithm's nodes, inputs, ... stand in `graph` behind the model's own
  OnnxFunction *functions;
  size_t n_functions;
} OnnxModel;

MUST_USE Status onnx_decode_model(Bytes bytes, Arena *arena, OnnxModel *out);
MUST_USE Status onnx_decode_graph(Bytes bytes, Arena *arena, OnnxGraph *out);

// Calls `use` with every name that the node's subgraphs, at any depth, take as an input or give as an output.
void onnx_subgraph_names(const OnnxNode *node, void (*use)(void *user, Bytes name), void *user);

const OnnxAttr *onnx_attr(const OnnxNode *node, const char *name);       // NULL when absent
static inline const char *text_or_empty(const char *text) { return text ? text : ""; }
// "" for ai.onnx.
const char *onnx_domain(const char *domain);
// Version of `domain` among imports; 0: not imported.
int64_t onnx_opset(Onnx__OperatorSetIdProto *const *imports, size_t n, const char *domain);
// Value of a metadata entry; NULL when absent.
const char *onnx_metadata(Onnx__StringStringEntryProto *const *entries, size_t n, const char *key);

#endif
