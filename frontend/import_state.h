// What the parts of the importer share while one model is imported: onnx_import (the whole), onnx_nodes (one node at a time), import_scope (what
// names mean), import_known (what is known of values already), onnx_functions, onnx_control, onnx_sequence, onnx_composed (what never reaches the IR), onnx_attrs,
// onnx_tensor, onnx_upgrade, param_rule.
#ifndef TESSERA_IMPORT_STATE_H
#define TESSERA_IMPORT_STATE_H

#include "../ir/op.h"
#include "external_data.h"
#include "onnx_import.h"
#include "onnx_schema.h"
#include "training_form.h"

#define TRAINING_DOMAIN "ai.onnx.preview.training"

struct Model {
  char *path;
  Bytes file;
  bool mapped;                    // file is a mapping of ours
  ExternalFiles external;
  size_t arena_limit;             // of the caller's arena, while a budget is in force (import_budget.c)
  const Weight *given;            // values for inputs, from model_give_weights; the caller's
  size_t n_given;
};

typedef struct Draft Draft;
enum { PROBLEMS_KEPT = 1000 };
typedef struct Problem { StatusCode code; const char *node, *what; } Problem;
typedef struct Symbol { const char *name; int64_t size; bool given, used; const char *by; } Symbol;   // given: by --dim

// ---- What names mean while nodes are read: import_scope.c ----
typedef enum BindingKind {
  BOUND_NOTHING,                  // an optional input that is absent
  BOUND_UPDATE,                   // what an operator of the training step gives: only the form knows what to do with it
  BOUND_BROKEN,                   // what defines it has been complained of
  BOUND_TENSOR,                   // `value`
  BOUND_SEQUENCE,                 // `items`; sequences and optionals are resolved here and never reach the IR
  BOUND_OPTIONAL,                 // one item or none
} BindingKind;
typedef struct Binding Binding;
struct Binding {
  BindingKind kind;
  Value *value;
  const Binding *items;
  size_t n_items;
};
static inline Binding bound_tensor(Value *value) { return (Binding){.kind = value ? BOUND_TENSOR : BOUND_BROKEN, .value = value}; }

typedef struct ScopeEntry {
  const char *name;
  bool defined;
  Binding binding;                // when defined
  Value *declared;                // must become its value; NULL: any
  size_t producer;                // 1 + index of the node that defines it; 0: none does
} ScopeEntry;
typedef struct BoundAttr { const char *name; const OnnxAttr *attr; } BoundAttr;     // attribute of a function at a call; NULL: not given
typedef struct NameScope NameScope;
struct NameScope {
  const NameScope *parent;            // outer values are seen through it; NULL: a function's, or the model's graph
  const char *prefix;             // of values and nodes made here; "" in the model's graph
  const char *function;           // "domain::name" of the function that the nodes stand in; NULL: none
  Onnx__OperatorSetIdProto *const *opsets;
  size_t n_opsets;
  const BoundAttr *attrs;         // of the function
  size_t n_attrs;
  int depth;
  ScopeEntry *entries;            // open addressing
  size_t count, capacity;
};

// One node on its way in: what its handlers work with.
typedef struct Import Import;
typedef struct Site {
  Import *import;
  NameScope *scope;
  const OnnxNode *from;           // references to attributes of the function are resolved
  const char *label;              // unique name of node and origin: prefix and the node's own name
  const SchemaOp *schema;         // version in force; NULL: not a standard operator
} Site;

struct Import {
  Model *model;
  const ImportOptions *options;
  Arena *arena;
  Graph *graph;
  OnnxModel onnx;
  Form form;
  int64_t opset;                  // of ai.onnx
  Problem *problems;              // the first PROBLEMS_KEPT
  size_t n_problems, n_kept, problems_capacity;
  const char **warnings;
  size_t n_warnings, warnings_capacity;
  Node **nodes;                   // of the graph in the making
  size_t n_nodes, nodes_capacity;
  size_t n_inferred;              // of nodes: import_known has seen them
  Node **known;                   // nodes that import_known has computed; put back at the end
  size_t n_known, known_capacity;
  NameScope *scope;                   // of the model's graph
  const OnnxFunction **functions; // sorted by domain, name, overload
  int64_t n_expanded;             // nodes and iterations that functions and subgraphs have made
  bool stopped;                   // too many: nothing more is read
  Symbol *symbols;
  size_t n_symbols, symbols_capacity;
};

// Records a problem and goes on; `node` may be NULL.
void import_problem(Import *import, StatusCode code, const char *node, const char *format, ...) __attribute__((format(printf, 4, 5)));
void import_warning(Import *import, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Records an error as a problem and ends it; true when there was one. `node` is used where the error names none.
bool import_absorb(Import *import, Status status, const char *node);

// ---- onnx_tensor.c: a TensorProto as a Weight. Bytes stay in the file where they lie there in one piece. ----
MUST_USE Status tensor_type(const OnnxTensor *tensor, Type *out);
MUST_USE Status tensor_weight(Model *model, Arena *arena, const OnnxTensor *tensor, const char *name, Weight *out);
MUST_USE Status weights_fingerprint(WeightSource *source);

// ---- import_budget.c: reading takes at most 32 times the bytes that are no weights, and 16 MiB ----
void budget_begin(Model *model, Arena *arena);
void budget_allow(Model *model, Arena *arena, size_t n_bytes);      // decoded weights and expanded nodes come on top: they have limits of their own
void budget_end(Model *model, Arena *arena);

// ---- import_scope.c ----
NameScope *scope_create(Import *import, const NameScope *parent, const char *prefix);
ScopeEntry *scope_entry(Import *import, NameScope *scope, const char *name);            // of this scope; made when there is none
ScopeEntry *scope_find_here(const NameScope *scope, const char *name);                  // NULL when there is none
const Binding *scope_find(const NameScope *scope, const char *name);                    // here or outside; NULL: defined nowhere (yet)
void scope_bind(Import *import, NameScope *scope, const char *name, Binding binding);
// opset of `domain` that model or function imports; 0: it imports none.
int64_t scope_opset(const NameScope *scope, const char *domain);

// ---- onnx_nodes.c ----
// "MatMul_7" where a node has no name.
const char *node_label(Arena *arena, const OnnxNode *node);
// All nodes of the graph into import->graph, sorted. Problems are recorded.
void import_nodes(Import *import);
// The nodes of one graph or function into import->nodes: producers first, names looked up in `scope`.
void import_scope_nodes(Import *import, NameScope *scope, const OnnxNode *nodes, size_t n);
// A subgraph: its inputs are `inputs`, its results go to out[n_outputs of the graph]. declared: values that results must become, or NULL.
void import_subgraph(const Site *site, const OnnxGraph *graph, const char *suffix, const Binding *inputs, size_t n_inputs, Value *const *declared, Binding *out);
// What input `index` of the node is; undefined names are complained of.
Binding site_input(const Site *site, size_t index);
Value *site_tensor(const Site *site, size_t index);                 // NULL: absent or no tensor (which is complained of)
void site_bind(const Site *site, size_t index, Binding binding);    // what output `index` of the node is
Value *site_declared(const Site *site, size_t index);               // what output `index` must become; NULL: nothing given
void site_problem(const Site *site, StatusCode code, const char *format, ...) __attribute__((format(printf, 3, 4)));
int64_t site_attr_int(const Site *site, const char *name, int64_t otherwise);
// A further node, of ai.onnx or of tessera; outputs[i] NULL: a new value. Returns its outputs; NULL where the operator is not supported (complained of).
Value *const *site_add(const Site *site, const char *op, const char *suffix, int n_inputs, Value *const *inputs, int n_outputs, Value *const *outputs,
                       const AttrInit *attrs);
// Counts what an expansion makes; false, once complained of, when it is too much.
bool import_expand(Import *import, const char *label);
// The same beforehand, counting nothing: false, once complained of, when `times` iterations of `n_nodes` nodes cannot but be too much.
bool import_expands_to(Import *import, const char *label, int64_t times, size_t n_nodes);

// ---- import_known.c: types and small constants of what has been read so far, computed when somebody asks ----
const Type *import_type(Import *import, const Value *value);        // NULL: not known
const Weight *import_known(Import *import, const Value *value);     // NULL: no constant
void import_forget(Import *import);                                 // puts computed nodes back: passes fold them, in their precision

// ---- onnx_functions.c ----
void import_functions(Import *import);                               // the model's table of them; recursion and doubling are refused
const OnnxFunction *find_function(const Import *import, const OnnxNode *node);    // NULL: it calls none
void import_call(const Site *site, const OnnxFunction *function);
const OnnxNode *resolve_attrs(Import *import, const NameScope *scope, const OnnxNode *node, const char *label);

// ---- onnx_control.c, onnx_sequence.c, onnx_composed.c: handlers ----
void import_if(const Site *site);
void import_loop(const Site *site);
void import_scan(const Site *site);
bool import_sequence(const Site *site);                              // false: it is no operator on sequences or optionals
bool import_composed(const Site *site);                              // false: it is no operator that others make up

// ---- onnx_attrs.c ----
// The tensors of a graph as constants; in a subgraph's scope, else (NULL) in the model's graph.
void import_initializers(Import *import, NameScope *scope, const OnnxGraph *onnx);
// Sets attribute `spec` from the file; a wrong type or a text that is no text is MALFORMED.
MUST_USE Status attr_from_onnx(Model *model, Arena *arena, Node *node, const AttrSpec *spec, const OnnxAttr *attr);
void import_attrs(Draft *draft);
// value, value_float(s), value_int(s) of a Constant as a Weight.
MUST_USE Status constant_weight(Import *import, const OnnxNode *node, const char *label, Weight *out);
// A constant with bytes in the arena (or in the file: path, offset as in Weight).
Value *import_constant(Import *import, const char *name, const Weight *weight);
void make_constant(Import *import, Value *value, const Weight *weight);
Value *import_int64s(Import *import, const char *hint, const int64_t *items, int64_t n);   // rank 1
Value *import_scalar_of(Import *import, const char *hint, Dtype dtype, double value);      // rank 0

// ---- onnx_upgrade.c ----
struct Draft {                    // a node on its way in
  Import *import;
  Node *node;                     // op, name, inputs, outputs are set; attributes at their defaults
  const OnnxNode *from;
  const SchemaOp *schema;         // version in force at the model's opset; NULL: not a standard operator
  int64_t opset;                  // which the node's graph or function imports
  bool *consumed;                 // per attribute of `from`: dealt with
};
// Turns an older version of a standard operator into the meaning at IR_OPSET: attributes become inputs and so on.
void upgrade_node(Draft *draft);
bool upgrade_reads(const SchemaOp *from);      // also a version that the standard has withdrawn: GroupNormalization's first

// ---- onnx_import.c ----
MUST_USE Status describe_input(const Onnx__ValueInfoProto *info, ModelInput *out);

// ---- training_graph.c ----
MUST_USE Status form_check_given(const Form *form);    // USAGE when parameters that are inputs have no values
void form_bind_inputs(Import *import);       // inputs with given values, and seeds, become constants
void form_finish(Import *import);            // parameters, gradients, loss and optimizer of a graph that contains its training

// ---- param_ties.c ----
void tie_params(Import *import);                // --tie A=B, also where B is A transposed
void warn_of_sharing(Import *import);           // parameters that an exporter may have merged or torn apart; after roles are assigned

// ---- param_rule.c ----
// Roles, trainable and doc of every initializer.
void assign_roles(Import *import);

#endif
