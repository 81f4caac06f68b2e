// What the parts of the importer share while one model is imported: onnx_import (the whole), onnx_nodes, onnx_tensor, onnx_upgrade, param_rule.
#ifndef TESSERA_IMPORT_STATE_H
#define TESSERA_IMPORT_STATE_H

#include "../ir/op.h"
#include "external_data.h"
#include "onnx_import.h"
#include "onnx_schema.h"

struct Model {
  char *path;
  Bytes file;
  bool mapped;                    // file is a mapping of ours
  ExternalFiles external;
};

typedef struct Draft Draft;
typedef struct Problem { StatusCode code; const char *node, *what; } Problem;
typedef struct Symbol { const char *name; int64_t size; bool given, used; const char *by; } Symbol;   // given: by --dim

typedef struct Import {
  Model *model;
  const ImportOptions *options;
  Arena *arena;
  Graph *graph;
  OnnxModel onnx;
  int64_t opset;                  // of ai.onnx
  Problem *problems;
  size_t n_problems, problems_capacity;
  const char **warnings;
  size_t n_warnings, warnings_capacity;
  Draft *drafts;                  // nodes whose inputs are not looked up yet
  size_t n_drafts, drafts_capacity;
  Node **nodes;                   // of the graph in the making
  size_t n_nodes, nodes_capacity;
  Symbol *symbols;
  size_t n_symbols, symbols_capacity;
} Import;

// Records a problem and goes on; `node` may be NULL.
void import_problem(Import *import, StatusCode code, const char *node, const char *format, ...) __attribute__((format(printf, 4, 5)));
void import_warning(Import *import, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Records an error as a problem and ends it; true when there was one. `node` is used where the error names none.
bool import_absorb(Import *import, Status status, const char *node);
// All problems as one Status, NULL when there are none. Ends with the code of the gravest: MALFORMED, UNSUPPORTED, RESOURCE, IO, USAGE.
MUST_USE Status import_verdict(const Import *import);

// opset of `domain` that the model imports; 0: it imports none.
int64_t import_opset(const OnnxModel *onnx, const char *domain);

// ---- onnx_tensor.c: a TensorProto as a Weight. Bytes stay in the file where they lie there in one piece. ----
MUST_USE Status tensor_type(const OnnxTensor *tensor, Type *out);
MUST_USE Status tensor_weight(Model *model, Arena *arena, const OnnxTensor *tensor, const char *name, Weight *out);
MUST_USE Status weights_fingerprint(WeightSource *source);

// ---- onnx_nodes.c ----
// "MatMul_7" where a node has no name.
const char *node_label(Arena *arena, const OnnxNode *node);
// All nodes of the graph into import->graph, sorted. Problems are recorded.
void import_nodes(Import *import);
// The tensors of a graph or subgraph as constants.
void import_initializers(Import *import, const OnnxGraph *onnx, bool is_subgraph);
// Sets attribute `spec` from the file; a wrong type or a text that is no text is MALFORMED.
MUST_USE Status attr_from_onnx(Model *model, Arena *arena, Node *node, const AttrSpec *spec, const OnnxAttr *attr);
// A constant with bytes in the arena (or in the file: path, offset as in Weight).
Value *import_constant(Import *import, const char *name, const Weight *weight);
Value *import_int64s(Import *import, const char *hint, const int64_t *items, int64_t n);   // rank 1
Value *import_scalar_of(Import *import, const char *hint, Dtype dtype, double value);      // rank 0

// ---- onnx_upgrade.c ----
struct Draft {                    // a node on its way in
  Import *import;
  Node *node;                     // op, name, inputs, outputs are set; attributes at their defaults
  const OnnxNode *from;
  const SchemaOp *schema;         // version in force at the model's opset; NULL: not a standard operator
  bool *consumed;                 // per attribute of `from`: dealt with
};
// Turns an older version of a standard operator into the meaning at IR_OPSET: attributes become inputs and so on.
void upgrade_node(Draft *draft);

// ---- param_rule.c ----
// Roles, trainable and doc of every initializer.
void assign_roles(Import *import);

#endif
