// From an ONNX file to a Graph: every operator at the meaning of IR_OPSET, weights borrowed from the mapped file.
//
// Ownership: a Model owns the mapping of its file and of external data files; Graphs and Weights made from it point into it, so it must
// outlive them. Everything else lies in the caller's arena. Threads: a Model is read-only after model_open, except that importing may map
// external data files: one thread at a time. Errors: IO, MALFORMED (with a byte offset where the bytes are wrong), UNSUPPORTED, USAGE,
// RESOURCE; model_import reports all problems of a model in one Status, one a line.
#ifndef TESSERA_ONNX_IMPORT_H
#define TESSERA_ONNX_IMPORT_H

#include "../ir/graph.h"

typedef struct Model Model;

// Maps the file and walks through all of it: wire types, lengths, UTF-8, depth. Decodes nothing yet.
MUST_USE Status model_open(const char *path, Model **out);
// The same for bytes in memory, which stay the caller's; `path` names them in messages and is where external data is looked for.
MUST_USE Status model_open_bytes(const void *bytes, size_t n_bytes, const char *path, Model **out);
void model_close(Model *model);                      // NULL is fine
const char *model_path(const Model *model);          // as given to model_open
// Values for inputs of the graph, which thereby are parameters or constants and no data. Before anything else is asked of the model; `weights`
// must outlive it.
void model_give_weights(Model *model, const Weight *weights, size_t n);

// Did Tessera write it (plan_file.h: a plan, or a graph on its way there)? Then graph_read_onnx reads it, not model_import.
bool model_is_plan(const Model *model);

// A graph input as the file declares it, before symbols are bound.
typedef struct ModelInput {
  const char *name;
  Dtype dtype;                                       // NONE: none declared, or none that is known
  int rank;                                          // -1: no shape declared
  int64_t dims[RANK_MAX];                            // -1: symbolic
  const char *symbols[RANK_MAX];                     // name of the symbol; NULL: a number, or nameless
} ModelInput;
MUST_USE Status model_inputs(Model *model, Arena *arena, const ModelInput **out, size_t *n_out);

typedef struct DimBinding { const char *name; int64_t size; } DimBinding;        // --dim NAME=SIZE
typedef struct InputShape { const char *name; Type type; } InputShape;           // of the first batch; dtype NONE: any
typedef struct Tie { const char *kept, *tied; } Tie;                             // --tie A=B: B becomes A

typedef struct ImportOptions {
  const DimBinding *dims;       // bind symbols by name; data or batch that say otherwise are an error
  size_t n_dims;
  const InputShape *shapes;     // bind what is still open, and must agree with what is not
  size_t n_shapes;
  int64_t batch;                // binds the symbols on the first axes of inputs; an error where it contradicts the model; 0: none
  const char *params;           // comma-separated patterns (fnmatch): exactly these are trained; NULL: by rule
  const char *freeze;           // patterns: these are not trained
  const Tie *ties;
  size_t n_ties;
  const char *loss_output;      // output that the parameter rule looks back from; NULL: the first float output of one element, else all
} ImportOptions;

typedef struct Imported {
  Graph *graph;
  WeightSource weights;         // every initializer and Constant of the model that has bytes
  const char *const *warnings;  // sentences: what was ignored, e.g. a --dim that binds nothing
  size_t n_warnings;
} Imported;

// `options` may be NULL. On success out->graph has values (inputs with types; initializers with role, doc and weight; the rest untyped:
// run infer_types), nodes in topological order, opset = IR_OPSET. Its loss is not set: attach_loss does that.
MUST_USE Status model_import(Model *model, const ImportOptions *options, Arena *arena, Imported *out);

// The weights only, without reading the graph: where `Load` steps of a plan find theirs.
MUST_USE Status model_weights(Model *model, Arena *arena, WeightSource *out);

// Where each initializer of the main graph stems from, with a hash of its contents: reads all weights once. Strings lie in `arena` or the model.
MUST_USE Status model_weight_origins(Model *model, Arena *arena, const WeightOrigin **out, size_t *n_out);

#endif
