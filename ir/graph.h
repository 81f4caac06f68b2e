// The intermediate representation: Graph, Node, Value. From the importer's output to the finished plan it is this one structure;
// passes replace the node list and fill in what they decide (placement, phase, location). Data only: what an operator means is its row (op.h).
//
// Invariants, checked by verify_graph after every pass:
//   nodes stand in topological order; each value has at most one producer; names are unique; types satisfy type_check;
//   ids are dense: values[i]->id == i, nodes[i]->id == i.
// Ownership: all of it lives in graph->arena; pointers to values and nodes stay valid as long as the arena does.
// Threads: one thread at a time while it is built; read-only (hence any thread) once it is part of a Plan.
#ifndef TESSERA_GRAPH_H
#define TESSERA_GRAPH_H

#include "arena.h"
#include "sharding.h"
#include "type.h"
#include "weights.h"

typedef struct Op Op;          // op.h
typedef struct Graph Graph;
typedef struct Node Node;
typedef struct Value Value;

// What a value is for. Names in text: "input", "param", ...
typedef enum Role {
  ROLE_ACTIVATION,   // everything that is computed and nothing of the below
  ROLE_INPUT,        // fed by the data source once per micro-batch
  ROLE_CONTROL,      // fed by the executor: learning rate, step, micro-batch index; scalars
  ROLE_PARAM,        // a parameter (trainable or frozen), or a bucket of them
  ROLE_GRAD,         // a gradient of `of`, or a bucket of them
  ROLE_STATE,        // optimizer state of `of`; lives from step to step
  ROLE_PARTIAL,      // partial sums of TreeAccumulate; live from micro-batch to micro-batch
  ROLE_NARROW,       // 16-bit copy of parameters, which the model computes with; the parameters themselves are f32
  ROLE_CONST,        // a constant of the model, or a buffer that nothing updates
  ROLE_BUFFER,       // running statistics: the mean of what all micro-batches of a step make of them; equal on all ranks
  ROLE_COUNT
} Role;

// When a node runs: once at start; once per micro-batch; once per step.
typedef enum Phase { PHASE_INIT, PHASE_MICRO, PHASE_UPDATE, PHASE_COUNT } Phase;

// How an optimizer state belongs to its parameter (state.h).
typedef enum StateShape {
  STATE_ELEMENTS,    // an element for each of the parameter's
  STATE_BLOCKS,      // one for each block of STATE_BLOCK_ELEMS elements, counted from the parameter's start
  STATE_ROWS,        // one for each row: the last axis has size 1
  STATE_COLUMNS,     // one for each column: the last axis but one has size 1
  STATE_SHAPE_COUNT
} StateShape;

// How a value lies across the ranks of one mesh axis.
typedef enum PlacementKind {
  PLACED_WHOLE,      // every rank holds all of it, equal on all ranks
  PLACED_SPLIT,      // dimension `arg` is cut in equal parts
  PLACED_FLAT,       // the rank's shard of bucket `arg`
  PLACED_PARTIAL,    // every rank holds a summand; the value is their sum
  PLACED_COUNT
} PlacementKind;
typedef struct Placement { PlacementKind kind; int32_t arg; } Placement;

typedef enum Tier { TIER_DEVICE, TIER_HOST, TIER_NVME, TIER_COUNT } Tier;
typedef enum Layout { LAYOUT_PLAIN, LAYOUT_COUNT } Layout;      // packed layouts of the matrix library come later
typedef enum Scope { SCOPE_RANK, SCOPE_PROCESS, SCOPE_COUNT } Scope;
typedef enum Queue { QUEUE_COMPUTE, QUEUE_COMM, QUEUE_IO, QUEUE_COUNT } Queue;    // docs/design.md says what holds between them
typedef enum Reduce { REDUCE_MICRO, REDUCE_STEP, REDUCE_COUNT } Reduce;
typedef enum Accumulate { ACCUMULATE_TREE, ACCUMULATE_RUNNING, ACCUMULATE_COUNT } Accumulate;

// Carried by the plan format and not used yet: layouts other than PLAIN, the queue IO. They are written, read and checked; no pass produces them, and the
// runtime refuses what it cannot honour. On the CPU device HOST is memory like DEVICE, in arenas of its own; NVME is a file (runtime/swap.h).

// What a buffer's bytes are counted as.
typedef enum Category {
  CATEGORY_PARAMS, CATEGORY_GRADS, CATEGORY_STATE, CATEGORY_PARTIAL, CATEGORY_PACKED, CATEGORY_GATHERED, CATEGORY_BUCKETS,
  CATEGORY_ACTIVATIONS, CATEGORY_INPUTS, CATEGORY_CONSTS, CATEGORY_CONTROL, CATEGORY_WORKSPACE, CATEGORY_SCRATCH, CATEGORY_PADDING,
  CATEGORY_COUNT
} Category;

// Views of a PROCESS buffer are guarded by epochs, counters of what is published and read: what a step does to the buffer `region`.
typedef enum Guard {
  GUARD_NONE,
  GUARD_READ_BEGIN,  // waits until every rank has published its shard; a gather that copies nothing
  GUARD_READ_END,    // tells the owners that this rank reads no more
  GUARD_WRITE,       // waits until every rank has ended its reads, writes this rank's shard, publishes it
  GUARD_COUNT
} Guard;

const char *role_name(Role role);
const char *phase_name(Phase phase);
const char *tier_name(Tier tier);
const char *layout_name(Layout layout);
const char *scope_name(Scope scope);
const char *queue_name(Queue queue);
const char *reduce_name(Reduce reduce);
const char *accumulate_name(Accumulate accumulate);
const char *category_name(Category category);
const char *guard_name(Guard guard);
const char *state_shape_name(StateShape shape);
// Index of `name` among the first `count` results of `names`, or -1:  enum_from_name("micro", (EnumName)phase_name, PHASE_COUNT)
typedef const char *(*EnumName)(int);
int enum_from_name(const char *name, EnumName names, int count);

enum { MESH_AXES_MAX = 4, MESH_RANKS_MAX = 1 << 20 };
typedef struct MeshAxis { const char *name; int size; } MeshAxis;
typedef struct Mesh { int n_axes; MeshAxis axes[MESH_AXES_MAX]; } Mesh;   // axis 0 is "dp" in every graph that has axes

// Where a planned value lies. Address = arena of the buffer's scope + buffer offset + offset_bytes + coordinate * rank_stride_bytes.
typedef struct Location {
  int32_t buffer;              // index in graph->buffers; -1: none (not planned yet, or never materialised)
  int64_t offset_bytes;
  int64_t rank_stride_bytes;   // 0 unless the value is the rank's own part of a larger buffer
} Location;

struct Value {
  uint32_t id;
  const char *name;            // unique in the graph, never empty
  Type type;                   // dtype NONE until inferred
  Role role;
  bool trainable;              // PARAM: takes part in training (false: frozen)
  Placement placement[MESH_AXES_MAX];
  Tier tier;
  Layout layout;
  Node *producer;              // NULL for inputs, control values, carried values and initializers
  int output_index;            // of producer
  const Weight *weight;        // PARAM, CONST, BUFFER, STATE: initial bytes, of the same shape; NULL when there are none
  Value *of;                   // GRAD, STATE, NARROW: the parameter it belongs to
  Value *carry;                // this value becomes `carry` for the next step (update) or micro-batch (micro); NULL: it does not
  int32_t bucket;              // bucket that it is the flat form of (whole or shard); -1: none
  const char *state_name;      // STATE: "exp_avg", ... as checkpoints name it
  StateShape state_shape;      // STATE
  const char *doc;             // why the importer gave it its role; for `show`; may be NULL
  Location loc;
};

// What makes a byte move: for the ledger.
typedef struct Cause {
  const char *param;           // parameter, or the first of a bucket's
  const char *node;            // the ONNX node that needs it or produces it
  const char *pass;            // the pass that inserted the step
} Cause;

struct Node {
  uint32_t id;                 // position in graph->nodes
  const Op *op;
  const char *name;            // unique among nodes, never empty
  const char *origin;          // name of the ONNX node that it stems from; NULL: from none (optimizer, control)
  Value **inputs;              // NULL: an optional input that is absent
  int n_inputs;
  Value **outputs;             // NULL: an optional output that nobody wants
  int n_outputs;
  void *attrs;                 // typed struct of the op's row (op->attrs describes it); never NULL when the row has attributes
  Phase phase;
  bool backward;               // made by build_backward (or replayed for it)
  const char *recomputes;      // forward node that this one computes again for backward; NULL: none
  Cause cause;
  const NodeSharding *shardings;   // multi-device annotations of the model (sharding.h); not Tessera's own placements
  size_t n_shardings;
  // Filled in by schedule and plan_memory:
  Queue queue;
  Guard guard;
  int32_t region;              // buffer that `guard` is about; -1: none
  int32_t workspace;           // buffer for the kernel's temporaries; -1: none
  int32_t scratch;             // buffer for the matrix library's scratchpad; -1: none
  const uint32_t *waits;       // ids of earlier nodes of the same phase on other queues that must have ended
  int n_waits;
};

// Parameters (or their gradients and states) side by side in one flat vector. Each starts on a chunk; shards are whole chunks.
enum { CHUNK_ELEMS = 1024 };
typedef struct Bucket {
  Dtype dtype;                 // of the parameters and of what updates them
  Dtype compute;               // of what the model computes with, and of its gradients: a 16-bit copy (ROLE_NARROW) where it is not dtype
  bool trainable;
  const char *group;           // the --group that its parameters belong to, as it was said; NULL: none
  const char **params;         // names, canonical order
  Type *types;
  int64_t *starts;             // elements; multiples of CHUNK_ELEMS
  int n_params;
  int64_t elems;               // whole, padded: shard_elems * size of the dp axis
  int64_t shard_elems;         // a multiple of CHUNK_ELEMS; == elems on one rank
} Bucket;

typedef struct Buffer {
  const char *name;            // of the value it was made for
  Scope scope;
  Tier tier;
  Category category;
  int64_t bytes;               // PROCESS: of the whole region
  int64_t offset_bytes;        // in the arena of its scope and tier; multiples of BUFFER_ALIGN_BYTES
  bool persistent;             // lives through all phases and steps
  uint32_t first, last;        // otherwise: ids of the first and the last node that use it
} Buffer;
enum { BUFFER_ALIGN_BYTES = 64 };

// Bytes that the formula counts and the plan does not send, with the reason: sent + saved = formula.
typedef struct Saving { int32_t bucket; int64_t bytes; const char *reason; } Saving;

// What holds of a graph: passes state which facts they require, provide and break (passes.def), and the runner checks.
enum {
  FACT_TYPED = 1 << 0,         // every value has a type
  FACT_SUMMED = 1 << 1,        // the loss is a (sum, count) pair
  FACT_BACKWARD = 1 << 2,      // gradients of the trainable parameters exist
  FACT_OPTIMIZER = 1 << 3,     // update phase exists
  FACT_ACCUMULATED = 1 << 4,   // gradients are summed over micro-batches
  FACT_PLACED = 1 << 5,        // placements and buckets are decided
  FACT_LOWERED = 1 << 6,       // collectives are inserted
  FACT_SCHEDULED = 1 << 7,     // order, queues and waits are final
  FACT_PLANNED = 1 << 8,       // every value has a location
};

// How the graph is to be run; recorded in the plan. Everything that the runtime and the reader must know and no node says.
typedef struct Recipe {
  const char *model;           // path of the source model as the user gave it; NULL: none
  const char *fingerprint;     // of the weight source, hex
  int zero;                    // stage 0..3
  Reduce reduce;
  Accumulate accumulate;
  int64_t micro_per_rank;      // k
  int64_t bucket_bytes;        // that buckets aim at; 0: not known
  int64_t tile_bytes;          // parameters above it are cut into tiles (tile.h); 0: none is
  const char *precision;       // "f32", "fp64"
  const char *loss_output;     // name of the model's value that is the loss, or that the loss was added as
  const char *loss_rule;       // a sentence: how micro-batches weigh
  const char *optimizer;       // "adamw"; of parameters whose group names no other
  double lr;                   // default learning rate
  double loss_units;           // a power of two near the summands of a step's loss: loss_seed is the scale of the mean loss divided by it; 0: no scaling
  int64_t memory_bytes, host_bytes, nvme_bytes;      // budgets of a process; 0: none
  const char *chosen;          // what was chosen to keep them, and why; NULL: nothing
  const char *options;         // what was asked for and decides results, one option of the command line per line; NULL: not known
  int processes, ranks_per_process, threads_per_rank;
  const char *isa;             // "scalar", "avx2", "avx512", "amx"
  const char *numerics_key;    // isa, library version, layouts: ranks must agree; bits hold within one key
} Recipe;

// The optimizer that a model brings: its rule and numbers. The meaning of each field is that of the operator (kernels/model_optimizer.c).
typedef struct OwnOptimizer {
  const char *name;            // "model_momentum", "model_adagrad", "model_adam", or one of ours: "sgd", "adamw" (alpha, beta: its betas; post: its decay)
  double lr;                   // below 0: the model does not say
  double alpha, beta, epsilon, norm_coefficient, post, decay_factor;
  double initial;              // of the states
  int64_t t0;                  // T at the first step
  bool nesterov, post_by_lr, correct_bias;
} OwnOptimizer;

#define LOSS_SEED "tessera.loss_seed"   // control value, f64: what the gradient of the loss begins with; absent: 1

enum { IR_OPSET = 23 };          // the one meaning of ai.onnx operators inside; the importer upgrades to it

struct Graph {
  Arena *arena;
  const char *name;
  uint32_t facts;              // FACT_*
  int64_t ir_version, opset;   // of the source; opset of ai.onnx whose meaning the nodes have: IR_OPSET after import
  Node **nodes;
  size_t n_nodes, nodes_capacity;
  Value **values;
  size_t n_values, values_capacity;
  Value **inputs;              // ROLE_INPUT, in the model's order
  size_t n_inputs;
  Value **outputs;             // the model's outputs, in order
  size_t n_outputs;
  Value *loss;                 // the scalar that is minimised: forward graph: a graph output; after build_backward as lowered
  Value *loss_count;           // f64 scalar: what the micro-batch's loss sum is divided by; NULL before sum_loss
  Value *loss_report;          // update phase: f64 scalar, the global batch's loss; NULL before attach_optimizer
  Value *norm_report;          // update phase: f64 scalar, the global gradient norm before clipping; NULL likewise
  Value *inverse_count;        // update phase: f64 scalar 1 / global count; gradients are multiplied by it once
  const OwnOptimizer *own_optimizer;   // NULL: the model brings none
  Mesh mesh;
  Bucket *buckets;
  size_t n_buckets;
  Buffer *buffers;
  size_t n_buffers;
  Saving *savings;
  size_t n_savings;
  const DeviceConfiguration *configurations;   // that shardings of nodes refer to
  size_t n_configurations;
  Recipe recipe;
  struct NameTable *names;     // graph.c
};

Graph *graph_create(Arena *arena, const char *name);

// A new value; `hint` is made unique ("hint", "hint.1", ...). Type DTYPE_NONE, placements WHOLE, loc.buffer -1, bucket -1.
Value *graph_add_value(Graph *graph, const char *hint);
Value *graph_find_value(const Graph *graph, const char *name);          // NULL when absent
const char *graph_free_name(const Graph *graph, const char *wish);      // `wish`, or the first of "wish.1", "wish.2", ... that no value has; in the arena
void graph_rename_value(Graph *graph, Value *value, const char *name);  // the name must be free
// The same for names that the compiler gives a meaning ("bucket.0.param", "tessera.lr"): another value that has it gets "name.model" or the like.
void graph_claim_name(Graph *graph, Value *value, const char *name);

// A node with attributes at their defaults, not yet in the list. Inputs are copied. Outputs: new values named after `hints[i]`
// (NULL hints: after the node), untyped. `name` is a hint made unique; NULL: after the operator.
Node *graph_make_node(Graph *graph, const Op *op, const char *name, int n_inputs, Value *const *inputs, int n_outputs, const char *const *hints);
void graph_append(Graph *graph, Node *node);                            // at the end of the list; sets its id

// Replaces the node list, e.g. by what a pass has built. Values that no node, input, output, initializer role or report refers to are
// dropped; ids become dense again. `nodes` must be in topological order (verify_graph says so when it is not).
void graph_set_nodes(Graph *graph, Node **nodes, size_t n_nodes);

void graph_add_input(Graph *graph, Value *value);
void graph_add_output(Graph *graph, Value *value);

// Number of uses of each value as an input of a node or a graph output, indexed by value id; in `arena`.
uint32_t *graph_count_uses(const Graph *graph, Arena *arena);

// Replaces `from` by `to` in the inputs of all nodes and in outputs and reports of the graph.
void graph_replace_uses(Graph *graph, const Value *from, Value *to);

// Stable topological sort of `nodes` in place (each producer before its users, otherwise the given order). A cycle is MALFORMED and names it.
MUST_USE Status graph_sort(Graph *graph, Node **nodes, size_t n_nodes);

// Deep copy into `arena` (weights stay borrowed).
Graph *graph_clone(const Graph *graph, Arena *arena);

// The bytes of a constant; NULL when it is none or only the place of its bytes is known (a graph read from text).
static inline const Weight *value_const(const Value *v) {
  return v && v->role == ROLE_CONST && v->weight && v->weight->bytes ? v->weight : NULL;
}
static inline int64_t value_bytes(const Value *v) { return type_bytes(&v->type); }
static inline int mesh_ranks(const Mesh *mesh) {
  int n = 1;
  for (int i = 0; i < mesh->n_axes; i++) n *= mesh->axes[i].size;
  return n;
}

#endif
