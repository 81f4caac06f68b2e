// Multi-device annotations (ir/sharding.h) in and out of ONNX messages.
#ifndef TESSERA_SHARDING_SPEC_H
#define TESSERA_SHARDING_SPEC_H

#include "../ir/graph.h"
#include "onnx_decode.h"

// From the file onto graph and node; strings stay the file's or lie in the graph's arena. The node has its inputs and outputs already.
// Call under the guard of the graph's arena.
MUST_USE Status sharding_import_configurations(Graph *graph, Bytes model);
MUST_USE Status sharding_import_node(Graph *graph, Node *node, const OnnxNode *from);

// Into messages that are about to be packed; lists in `arena`. Specs of tensors that the node no longer has are left out.
void sharding_export_configurations(const Graph *graph, Arena *arena, Onnx__ModelProto *model);
void sharding_export_node(const Node *node, Arena *arena, Onnx__NodeProto *out);

#endif
