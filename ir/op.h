// An operator is one row: its name, shape of use, meaning, gradient and kernels. Rows are defined in kernels/ (the home file of each
// operator family) and listed once in kernels/ops.def. ir/ sees them only through this type.
#ifndef TESSERA_OP_H
#define TESSERA_OP_H

#include "graph.h"

typedef struct KernelContext KernelContext;    // kernels/kernel.h
typedef struct KernelPrepare KernelPrepare;    // kernels/kernel.h

// ---- Attributes: a table per operator, so that parsing, printing, checking and help are generic -----------------------------

typedef enum AttrType { ATTR_INT, ATTR_FLOAT, ATTR_STRING, ATTR_INTS, ATTR_FLOATS, ATTR_STRINGS, ATTR_TENSOR } AttrType;
typedef struct AttrInts { const int64_t *items; int64_t n; } AttrInts;          // n = 0: absent or empty
typedef struct AttrFloats { const float *items; int64_t n; } AttrFloats;
typedef struct AttrStrings { const char *const *items; int64_t n; } AttrStrings;

// The typed struct holds int64_t, float, const char *, AttrInts, AttrFloats, AttrStrings or const Weight * at `offset`.
#define ATTR_ABSENT INT64_MIN   // default of an optional INT without default: "not given"
typedef struct AttrSpec {
  const char *name;             // NULL ends the table
  AttrType type;
  size_t offset;                // offsetof the typed struct
  bool required;
  int64_t default_int;          // INT
  float default_float;          // FLOAT
  const char *default_string;   // STRING
  int64_t min, max;             // INT and each of INTS; 0,0: any
  const char *help;             // one phrase
} AttrSpec;

// ---- Aliasing: may or must an output lie where an input lies? ----------------------------------------------------------------

typedef enum AliasKind {
  ALIAS_NONE,
  ALIAS_VIEW,       // the output is those bytes of the input; no kernel runs for it
  ALIAS_INPLACE,    // the kernel may write the output over the input when nothing reads the input later
  ALIAS_UPDATE,     // the kernel always writes over the input (carried state, parameters)
  ALIAS_PART,       // the *input* may be produced inside the output (Pack): the input is those bytes of the output
} AliasKind;
typedef struct Alias {
  AliasKind kind;
  int input;
  int64_t offset_bytes;         // of the output within the input (VIEW), of the input within the output (PART)
  bool rank_relative;           // further offset: coordinate on the axis x bytes of the output
} Alias;

// ---- Gradient builder ---------------------------------------------------------------------------------------------------------

// Appends nodes to a graph and infers their types at once. Errors stick: after the first, emit returns NULL and adds nothing.
typedef struct Emit {
  Graph *graph;
  const Node *at;               // names, origin, phase and backward flag of new nodes come from here; may be NULL
  Phase phase;
  bool backward;
  Cause cause;
  Status status;                // the first error; the owner of the Emit must take it
} Emit;

typedef struct AttrInit {       // an attribute by name, for emit
  const char *name;             // NULL ends a list
  AttrType type;
  int64_t i;
  float f;
  const char *s;
  AttrInts ints;
  AttrFloats floats;
  AttrStrings strings;
} AttrInit;
#define A_INT(n, v) {.name = (n), .type = ATTR_INT, .i = (v)}
#define A_FLOAT(n, v) {.name = (n), .type = ATTR_FLOAT, .f = (v)}
#define A_STRING(n, v) {.name = (n), .type = ATTR_STRING, .s = (v)}
#define A_INTS(n, v, count) {.name = (n), .type = ATTR_INTS, .ints = {(v), (count)}}
#define A_FLOATS(n, v, count) {.name = (n), .type = ATTR_FLOATS, .floats = {(v), (count)}}
#define A_STRINGS(n, v, count) {.name = (n), .type = ATTR_STRINGS, .strings = {(v), (count)}}
#define ATTRS(...) ((const AttrInit[]){__VA_ARGS__, {.name = NULL}})
#define INPUTS(...) ((Value *const[]){__VA_ARGS__}), (int)(sizeof((Value *const[]){__VA_ARGS__}) / sizeof(Value *))

// The new node's first output. `attrs` may be NULL. Node and value names derive from `at`.
Value *emit(Emit *e, const Op *op, Value *const *inputs, int n_inputs, const AttrInit *attrs);
// The same with several outputs; `wanted[i]` false leaves an optional output out. Returns the node (NULL after an error).
Node *emit_node(Emit *e, const Op *op, Value *const *inputs, int n_inputs, int n_outputs, const bool *wanted, const AttrInit *attrs);
// A constant (ROLE_CONST, bytes copied into the arena).
Value *emit_const(Emit *e, const char *hint, const Type *type, const void *bytes);
Value *emit_int64s(Emit *e, const char *hint, const int64_t *items, int64_t n);       // rank 1
Value *emit_float(Emit *e, const char *hint, Dtype dtype, double value);              // rank 0

// For the grad function of a row: append nodes that compute dx[i] for every wanted[i] (others may be left NULL). dx[i] must have the
// type of input i. A NULL dy[i] means that output i does not reach the loss.
typedef struct Grad {
  Emit *emit;
  const Node *node;             // the forward node
  Value *const *dy;             // per output
  const bool *wanted;           // per input
  Value **dx;                   // per input, all NULL at entry
} Grad;

// ---- Cost ---------------------------------------------------------------------------------------------------------------------

// What a machine does at its own speed; a node's cost counts each (kernels/cost.h).
typedef enum Work {
  WORK_ARITHMETIC,              // elements: + - * / compare, in a vector loop
  WORK_FUNCTION,                // elements: exp, log, tanh, erf and the like, in a vector loop
  WORK_SUM,                     // elements: added up, in a vector loop
  WORK_ELEMENT,                 // elements: moved to another order (transposes)
  WORK_REFERENCE,               // elements: in the reference kernels, one by one and in double
  WORK_OPTIMIZER,               // elements: updated by an optimizer step
  WORK_PRODUCT,                 // flops: of a matrix product through the matrix library
  WORK_CONV,                    // flops: of a convolution through the matrix library
  WORK_ATTENTION,               // flops: of products in attention's own loops
  WORK_RECURRENT,               // flops: of products in the loops of recurrent layers
  WORK_PLAIN_FLOP,              // flops: of products in the reference loops
  WORK_COUNT
} Work;
const char *work_name(Work work);
bool work_is_product(Work work);          // is it counted in flops?

typedef struct NodeCost {
  double work[WORK_COUNT];
  double read_bytes, written_bytes;      // of operands and results as they lie in memory; what is a view is neither
  double sent_bytes;                     // logical, of a collective, per rank
  int64_t m, n, k, products;             // of WORK_PRODUCT and WORK_CONV: `products` of m x k times k x n; 0: none
  bool trans_a, trans_b;                 // as they lie in memory
} NodeCost;

// What --precision bf16 and fp16 make of an operator (the pass mixed_precision): it computes in 16 bits, in f32, or in whatever its operands have.
typedef enum Policy {
  POLICY_KEEP,                  // moves and elementwise arithmetic: the widest of its operands
  POLICY_LOW,                   // products: 16 bits in and out, sums inside in f32
  POLICY_F32,                   // sums, exponentials, norms, losses: their results need more digits
} Policy;

// ---- The row ------------------------------------------------------------------------------------------------------------------

enum {
  OP_COLLECTIVE = 1 << 0,       // communicates; stays in program order with all other collectives
  OP_SIDE_EFFECT = 1 << 1,      // kept although nobody uses its outputs
  OP_RANDOM = 1 << 2,           // never merged or folded
  OP_OPTIMIZER = 1 << 3,        // over (param, grad, scale, lr, t, state...), elementwise in the first: may run on any flat slice (kernels/optimizer.h)
  OP_ELEMENTWISE = 1 << 4,      // output element i depends on element i of the (broadcast) inputs only
  OP_COMMUTATIVE = 1 << 5,
  OP_DIRECTION = 1 << 7,        // an OP_OPTIMIZER that makes a direction, for a later step to take, in place of the new parameters
  OP_READS_HALVES = 1 << 8,     // run_cpu takes f16 and bf16 operands as they are (others get widened copies)
  OP_SUMS_RANKS = 1 << 6,       // a collective whose result is a sum over ranks: it has an accumulator
  OP_TRANSFER = 1 << 9,         // moves its first operand between tiers: the only operators that touch what does not lie on the device
};
#define VARIADIC 127

struct Op {
  const char *name;
  const char *domain;           // "" = ai.onnx, "tessera", ...
  int8_t min_inputs, max_inputs, min_outputs, max_outputs;   // max VARIADIC: any number
  uint32_t flags;
  Policy policy;
  uint32_t nondifferentiable;   // bit i: input i never gets a gradient (indices, shapes, labels)
  const AttrSpec *attrs;        // NULL: none
  size_t attrs_bytes;           // sizeof the typed struct

  // Sets the type of every output from types, attributes and constants (value_const) of the inputs; checks everything that can be
  // checked before running, so that a kernel meets no surprise but values.
  Status (*infer)(Node *node, Arena *arena);
  Status (*grad)(Grad *grad);                              // NULL: no gradient (float outputs: UNSUPPORTED by name)
  Status (*run_ref)(const KernelContext *context);         // plain loops in f64: the specification. f32 operands widened, rounded once
  Status (*run_cpu)(const KernelContext *context);         // fast; NULL: run_ref. Only called when every float tensor is f32 (or OP_READS_HALVES)
  Status (*prepare)(KernelPrepare *prepare);               // optional: makes primitives once, before the step loop
  Status (*workspace)(KernelPrepare *prepare);             // optional: says how many bytes run_cpu needs (kernel.h)
  bool (*alias)(const Node *node, int output, int input, Alias *out);   // optional; false: no relation between the two
  int64_t (*sent_bytes)(const Node *node);                 // OP_COLLECTIVE: logical bytes that a rank sends in one execution
  int64_t (*wire_bytes)(const Node *node, int processes, int ranks_per_process);   // OP_COLLECTIVE: bytes that leave a process in one, of all its ranks
  void (*cost)(const Node *node, NodeCost *cost);          // optional: sets `work` and corrects bytes where the defaults are wrong (kernels/cost.h)
};

// Is `output` related to an input by `kind`? The first such input in out->input.
bool node_alias(const Node *node, int output, AliasKind kind, Alias *out);

// The table, defined in kernels/ from ops.def; ends with NULL.
extern const Op *const op_table[];
const Op *op_find(const char *domain, const char *name);   // NULL when unknown; "ai.onnx" is the same as ""

// Generic access to attributes by name. The attribute must exist in the row with that type (assert otherwise).
int64_t attr_int(const Node *node, const char *name);
float attr_float(const Node *node, const char *name);
const char *attr_string(const Node *node, const char *name);
AttrInts attr_ints(const Node *node, const char *name);
AttrStrings attr_strings(const Node *node, const char *name);
void attr_set(Graph *graph, Node *node, const AttrInit *attr);            // copies what it points to
const AttrSpec *attr_spec(const Op *op, const char *name);                // NULL when the row has none of that name
bool attr_is_default(const Node *node, const AttrSpec *spec);
bool attr_equal(const Node *a, const Node *b, const AttrSpec *spec);      // of nodes of one operator
void attrs_reset(Graph *graph, Node *node);                               // allocates node->attrs, all at default
MUST_USE Status attrs_check(const Node *node);                            // required ones present, ranges kept

// Numbers of inputs and outputs against the row.
MUST_USE Status node_check_arity(const Node *node);
// Arity and operands against the row, then op->infer, then type_check of every output. Errors name the node.
MUST_USE Status node_infer(Graph *graph, Node *node);

#endif
