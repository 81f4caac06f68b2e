// offload OPTIMISES memory: what is not needed for a while lives in another tier, the host's memory or a file, and is fetched for the steps that need it
// (Rajbhandari et al., 2021, "ZeRO-Infinity"). First it is decided which values live elsewhere; then every step that reads one gets a Fetch before it,
// and every step that makes one an Offload after it. No other step touches such a value.
//
//   optimizer   states, and the f32 parameters beside narrow copies
//   params      the shards of stage 3: fetched before each gather, which then copies
//   grads       reduced gradients, from their reduction to the update, and the partial sums over micro-batches
//
// Elementwise steps of the update go window by window, so that memory is bounded whatever a bucket's size: Cut gives the windows, Join what becomes of
// all of them. Windows are whole chunks, which changes no bit.
#include <inttypes.h>
#include <string.h>

#include "../kernels/ops.h"
#include "offload.h"
#include "pass_list.h"

const char *offload_name(OffloadKind kind) {
  static const char *const names[] = {"optimizer", "params", "grads", "activations"};
  return names[kind];
}

// As attribute `kind` of a transfer.
static const char *kind_text(OffloadKind kind) {
  static const char *const names[] = {"optimizer", "param", "grad", "activation"};
  return names[kind];
}

enum { WINDOW_ELEMS = 4 * CHUNK_ELEMS };         // windows are multiples of it: whole pages of every element type

typedef struct Move { bool moves; OffloadKind kind; Tier tier; } Move;

typedef struct Offload {
  Graph *graph;
  Emit emit;
  const CompileOptions *options;
  Move *moves;                   // per value of before
  size_t n_values;
} Offload;

static const Move *move_of(const Offload *o, const Value *v) { return v && v->id < o->n_values && o->moves[v->id].moves ? &o->moves[v->id] : NULL; }

// ---- What moves ---------------------------------------------------------------------------------------------------------------

static void move_value(Offload *o, const Value *v, OffloadKind kind) {
  Tier tier = o->options->offload[kind];
  if (tier != TIER_DEVICE) o->moves[v->id] = (Move){true, kind, tier};
}

// What lives from step to step, and what it becomes.
static const Value *lasting(const Value *v) { return v->carry ? v->carry : v; }

static bool is_master(const Graph *g, const Value *v) {
  const Bucket *b = v->bucket >= 0 ? &g->buckets[v->bucket] : NULL;
  return v->role == ROLE_PARAM && b && b->dtype != b->compute;
}

static void decide(Offload *o) {
  Graph *g = o->graph;
  for (size_t i = 0; i < g->n_values; i++) {
    const Value *v = g->values[i], *root = lasting(v);
    bool starts = root->producer && root->producer->phase == PHASE_INIT;
    if (starts && (root->role == ROLE_STATE || is_master(g, root))) move_value(o, v, OFFLOAD_OPTIMIZER);
    else if (starts && (root->role == ROLE_PARAM || root->role == ROLE_NARROW) && root->placement[0].kind == PLACED_FLAT) move_value(o, v, OFFLOAD_PARAMS);
  }
  for (size_t i = 0; i < g->n_nodes; i++) {      // sums over micro-batches of what is reduced; and their last
    const Node *n = g->nodes[i];
    const Value *x = n->n_outputs ? n->outputs[0] : NULL;
    bool again = n->phase == PHASE_UPDATE && x && x->role == ROLE_GRAD && (n->op == &op_Cast || n->op == &op_ClipValue);       // what becomes of them
    if (again && o->moves[n->inputs[0]->id].moves) move_value(o, x, OFFLOAD_GRADS);
    if (n->phase != PHASE_MICRO || !x || x->role != ROLE_GRAD || x->bucket < 0) continue;
    if (n->op == &op_TreeAccumulate)
      for (int k = 0; k < n->n_outputs; k++) {
        if (n->outputs[k]) move_value(o, n->outputs[k], OFFLOAD_GRADS);
        if (n->outputs[k] && n->outputs[k]->carry) move_value(o, n->outputs[k]->carry, OFFLOAD_GRADS);
      }
    else if (n->op == &op_ReduceScatter && g->recipe.micro_per_rank == 1) move_value(o, x, OFFLOAD_GRADS);
  }
}

// ---- Transfers ----------------------------------------------------------------------------------------------------------------

static void begin(Offload *o, const Node *n, const Value *v) {
  const Graph *g = o->graph;
  o->emit.at = n;
  o->emit.phase = n->phase;
  o->emit.backward = n->backward;
  o->emit.cause = n->cause;
  o->emit.cause.pass = "offload";
  if (!o->emit.cause.param && v->bucket >= 0) o->emit.cause.param = g->buckets[v->bucket].params[0];
}

static Value *fetch(Offload *o, const Node *n, Value *part, const Value *of, const Move *move) {
  begin(o, n, of);
  Value *v = emit(&o->emit, &op_Fetch, INPUTS(part), ATTRS(A_INT("bucket", of->bucket), A_STRING("kind", kind_text(move->kind))));
  if (v) v->bucket = of->bucket;
  return v;
}

// `over`: what it replaces; NULL: nothing.
static Value *offload(Offload *o, const Node *n, Value *part, Value *over, const Value *of, const Move *move) {
  begin(o, n, of);
  return emit(&o->emit, &op_Offload, (Value *const[]){part, over}, over ? 2 : 1,
              ATTRS(A_INT("bucket", of->bucket), A_STRING("kind", kind_text(move->kind)), A_STRING("tier", tier_name(move->tier))));
}

// `v`, which the graph knows, is what `made` was made for.
static void become(Value *made, Value *v) {
  if (!made) return;
  Node *n = made->producer;
  n->outputs[made->output_index] = v;
  v->tier = made->tier;
  v->type = made->type;
  v->producer = n;
  v->output_index = made->output_index;
}

// ---- A step as a whole --------------------------------------------------------------------------------------------------------

static void move_whole(Offload *o, Node *n) {
  Value **outputs = arena_copy(o->graph->arena, n->outputs, sizeof *n->outputs * (size_t)n->n_outputs);
  for (int i = 0; i < n->n_inputs; i++) {
    Value *v = n->inputs[i];
    const Move *move = move_of(o, v);
    if (move) n->inputs[i] = fetch(o, n, v, v, move);
    if (o->emit.status) return;
  }
  for (int k = 0; k < n->n_outputs; k++) {
    if (!move_of(o, outputs[k])) continue;
    Value *made = n->outputs[k] = graph_add_value(o->graph, arena_printf(o->graph->arena, "%s.made", outputs[k]->name));
    made->producer = n;
    made->output_index = k;
    made->type = outputs[k]->type;
    made->bucket = outputs[k]->bucket;
  }
  graph_append(o->graph, n);
  for (int k = 0; k < n->n_outputs; k++)
    if (move_of(o, outputs[k])) become(offload(o, n, n->outputs[k], outputs[k]->carry, outputs[k], move_of(o, outputs[k])), outputs[k]);
}

// ---- A step by windows --------------------------------------------------------------------------------------------------------

static bool is_flat(const Value *v) { return v && v->type.rank == 1; }

static int64_t whole_windows(int64_t elems) { return elems / WINDOW_ELEMS * WINDOW_ELEMS > 0 ? elems / WINDOW_ELEMS * WINDOW_ELEMS : WINDOW_ELEMS; }

// Elements of the longest flat operand, and how many of them a window has so that no operand's window passes the wanted bytes.
static void measure(const Offload *o, const Node *n, int64_t *elems, int64_t *window) {
  int64_t width = 1;
  *elems = 0;
  for (int i = 0; i < n->n_inputs + n->n_outputs; i++) {
    const Value *v = i < n->n_inputs ? n->inputs[i] : n->outputs[i - n->n_inputs];
    if (!is_flat(v)) continue;
    if (type_elems(&v->type) > *elems) *elems = type_elems(&v->type);
    if (dtype_bytes(v->type.dtype) > width) width = dtype_bytes(v->type.dtype);
  }
  *window = whole_windows(o->options->offload_window_bytes / width);
}

// Does element i of each result depend on element i of the operands alone (of blocks: on those of its block)?
static bool goes_by_windows(const Node *n) {
  bool elementwise = ((n->op->flags & OP_OPTIMIZER) && !(n->op->flags & OP_DIRECTION)) || n->op == &op_Ema || n->op == &op_Cast || n->op == &op_ClipValue;
  for (int i = 0; elementwise && i < n->n_inputs; i++)
    elementwise = !n->inputs[i] || n->inputs[i]->role != ROLE_STATE || n->inputs[i]->state_shape == STATE_ELEMENTS || n->inputs[i]->state_shape == STATE_BLOCKS;
  return n->phase == PHASE_UPDATE && elementwise;
}

// One operand of a step in windows.
typedef struct Windows { Value **parts; const Move *move; } Windows;

static Windows cut(Offload *o, const Node *n, Value *v, int count, int64_t window, int64_t elems) {
  begin(o, n, v);
  int64_t each = window * type_elems(&v->type) / elems;      // states of blocks have fewer
  Node *cut = emit_node(&o->emit, &op_Cut, &v, 1, count, NULL, ATTRS(A_INT("elems", each)));
  return (Windows){cut ? cut->outputs : NULL, move_of(o, v)};
}

static Node *window_step(Offload *o, const Node *n, Value *const *inputs) {
  Node *step = graph_make_node(o->graph, n->op, n->name, n->n_inputs, inputs, n->n_outputs, NULL);
  step->attrs = n->attrs;
  step->origin = n->origin;
  step->phase = n->phase;
  step->backward = n->backward;
  step->cause = n->cause;
  for (int k = 0; k < n->n_outputs; k++)
    if (!n->outputs[k]) step->outputs[k] = NULL;
  o->emit.status = node_infer(o->graph, step);
  if (o->emit.status) return NULL;
  graph_append(o->graph, step);
  for (int k = 0; k < n->n_outputs; k++)
    if (n->outputs[k]) step->outputs[k]->bucket = n->outputs[k]->bucket;
  return step;
}

static void join(Offload *o, const Node *n, Value **parts, int count, Value *v) {
  begin(o, n, v);
  become(emit(&o->emit, &op_Join, parts, count, NULL), v);
}

static void run_window(Offload *o, const Node *n, int w, const Windows *in, const Windows *over, Windows *out) {
  Value **inputs = ARENA_ARRAY(o->graph->arena, Value *, n->n_inputs);
  for (int i = 0; i < n->n_inputs && !o->emit.status; i++) {
    inputs[i] = in[i].parts ? in[i].parts[w] : n->inputs[i];
    if (in[i].move) inputs[i] = fetch(o, n, inputs[i], n->inputs[i], in[i].move);
  }
  const Node *step = o->emit.status ? NULL : window_step(o, n, inputs);
  for (int k = 0; step && k < n->n_outputs; k++) {
    if (!out[k].parts) continue;
    Value *made = step->outputs[k];
    out[k].parts[w] = out[k].move ? offload(o, n, made, over[k].parts ? over[k].parts[w] : NULL, n->outputs[k], out[k].move) : made;
  }
}

static void move_windows(Offload *o, const Node *n, int64_t elems, int64_t window) {
  Arena *arena = o->graph->arena;
  int count = (int)((elems + window - 1) / window);
  Windows *in = ARENA_ARRAY(arena, Windows, n->n_inputs), *over = ARENA_ARRAY(arena, Windows, n->n_outputs), *out = ARENA_ARRAY(arena, Windows, n->n_outputs);
  for (int i = 0; i < n->n_inputs && !o->emit.status; i++)
    if (is_flat(n->inputs[i])) in[i] = cut(o, n, n->inputs[i], count, window, elems);
  for (int k = 0; k < n->n_outputs && !o->emit.status; k++) {
    Value *v = n->outputs[k];
    if (!v) continue;
    out[k] = (Windows){ARENA_ARRAY(arena, Value *, count), move_of(o, v)};
    for (int i = 0; v->carry && out[k].move && i < n->n_inputs; i++)
      if (n->inputs[i] == v->carry) over[k] = in[i];
    if (v->carry && out[k].move && !over[k].parts) over[k] = cut(o, n, v->carry, count, window, elems);
  }
  for (int w = 0; w < count && !o->emit.status; w++) run_window(o, n, w, in, over, out);
  for (int k = 0; k < n->n_outputs && !o->emit.status; k++)
    if (out[k].parts) join(o, n, out[k].parts, count, n->outputs[k]);
}

// ---- Start values -------------------------------------------------------------------------------------------------------------

static Value *start_window(Offload *o, const Node *n, const Type *whole, int64_t at, int64_t elems) {
  begin(o, n, n->outputs[0]);
  if (n->op == &op_Fill)
    return emit(&o->emit, &op_Fill, NULL, 0, ATTRS(A_INTS("dims", &elems, 1), A_INT("dtype", whole->dtype), A_STRING("value", attr_string(n, "value"))));
  AttrStrings params = attr_strings(n, "params");
  AttrInts starts = attr_ints(n, "starts");
  return emit(&o->emit, &op_Load, NULL, 0,
              ATTRS(A_STRINGS("params", params.items, params.n), A_INTS("starts", starts.items, starts.n), A_INTS("dims", &elems, 1), A_INT("dtype", whole->dtype),
                    A_INT("sharded", attr_int(n, "sharded")), A_STRING("source", attr_string(n, "source")), A_STRING("fingerprint", attr_string(n, "fingerprint")),
                    A_STRING("state", attr_string(n, "state")), A_INT("first", at), A_INT("part_elems", type_elems(whole))));
}

static void move_start(Offload *o, const Node *n) {
  Value *v = n->outputs[0];
  const Move *move = move_of(o, v);
  int64_t elems = type_elems(&v->type), window = whole_windows(o->options->offload_window_bytes / dtype_bytes(v->type.dtype));
  int count = (int)((elems + window - 1) / window);
  Value **parts = ARENA_ARRAY(o->graph->arena, Value *, count);
  for (int w = 0; w < count && !o->emit.status; w++) {
    Value *start = start_window(o, n, &v->type, w * window, w + 1 < count ? window : elems - w * window);
    if (start) parts[w] = offload(o, n, start, NULL, v, move);
  }
  if (!o->emit.status) join(o, n, parts, count, v);
}

// ---- The norm of gradients that are elsewhere ---------------------------------------------------------------------------------

// Sums of squares are exact integers: that of each window is added to those before it.
static void move_norm(Offload *o, Node *n) {
  Arena *arena = o->graph->arena;
  Value **stay = ARENA_ARRAY(arena, Value *, n->n_inputs), *limbs = n->outputs[0], *sum = NULL, *old;
  int n_stay = 0;
  for (int i = 0; i < n->n_inputs; i++)
    if (!i || !move_of(o, n->inputs[i])) stay[n_stay++] = n->inputs[i];
  begin(o, n, n->inputs[1]);
  o->emit.cause = n->cause;
  if (n_stay > 1) sum = emit(&o->emit, n->op, stay, n_stay, NULL);
  for (int i = 1; i < n->n_inputs && !o->emit.status; i++) {
    Value *g = n->inputs[i];
    const Move *move = move_of(o, g);
    if (!move) continue;
    int64_t elems = type_elems(&g->type), window = whole_windows(o->options->offload_window_bytes / dtype_bytes(g->type.dtype));
    int count = (int)((elems + window - 1) / window);
    Windows parts = count > 1 ? cut(o, n, g, count, window, elems) : (Windows){&g, move};
    for (int w = 0; w < count && !o->emit.status; w++) {
      Value *part = fetch(o, n, parts.parts[w], g, move);
      o->emit.cause = n->cause;
      Value *more = part ? emit(&o->emit, n->op, INPUTS(n->inputs[0], part), NULL) : NULL;
      old = sum;
      sum = more && old ? emit(&o->emit, &op_Add, INPUTS(old, more), NULL) : more;
    }
  }
  become(sum, limbs);
}

// ---- The pass -----------------------------------------------------------------------------------------------------------------

static void lower(Offload *o, Node *n) {
  int64_t elems, window;
  bool touches = false;
  for (int i = 0; i < n->n_inputs + n->n_outputs; i++) touches |= move_of(o, i < n->n_inputs ? n->inputs[i] : n->outputs[i - n->n_inputs]) != NULL;
  if (!touches) {
    graph_append(o->graph, n);
    return;
  }
  measure(o, n, &elems, &window);
  if (n->phase == PHASE_INIT && (n->op == &op_Load || n->op == &op_Fill) && elems > window) move_start(o, n);
  else if (n->op == &op_SquaredNorm) move_norm(o, n);
  else if (goes_by_windows(n) && elems > window) move_windows(o, n, elems, window);
  else move_whole(o, n);
}

static Status check_options(const Graph *g, const CompileOptions *options) {
  const char *params = tier_name(options->offload[OFFLOAD_PARAMS]), *grads = tier_name(options->offload[OFFLOAD_GRADS]);
  if (options->offload[OFFLOAD_PARAMS] != TIER_DEVICE && (g->recipe.zero < 3 || mesh_ranks(&g->mesh) < 2))
    FAIL(UNSUPPORTED, NULL, "--offload params=%s moves the shards of stage 3, of which a rank needs the whole only now and then; here the stage is %d on %d rank%s: "
         "--zero 3 with --ranks 2 or more, or --offload optimizer=%s", params, g->recipe.zero, mesh_ranks(&g->mesh), mesh_ranks(&g->mesh) == 1 ? "" : "s", params);
  if (options->offload[OFFLOAD_GRADS] != TIER_DEVICE && (g->recipe.zero < 2 || mesh_ranks(&g->mesh) < 2))
    FAIL(UNSUPPORTED, NULL, "--offload grads=%s moves gradients that are reduced as soon as they are there, to shards; here the stage is %d on %d rank%s: "
         "--zero 2 or 3 with --ranks 2 or more, or --offload optimizer=%s", grads, g->recipe.zero, mesh_ranks(&g->mesh), mesh_ranks(&g->mesh) == 1 ? "" : "s", grads);
  return STATUS_OK;
}

Status pass_offload(Graph *graph, const CompileOptions *options) {
  bool any = false;
  for (int k = 0; k < OFFLOAD_COUNT; k++) any |= options->offload[k] != TIER_DEVICE;
  if (!any) return STATUS_OK;
  TRY(check_options(graph, options));
  Offload o = {.graph = graph, .options = options, .emit = {.graph = graph}, .n_values = graph->n_values};
  o.moves = ARENA_ARRAY(graph->arena, Move, graph->n_values);
  decide(&o);
  Node **old = graph->nodes;
  size_t n_old = graph->n_nodes;
  graph->nodes = NULL;
  graph->n_nodes = graph->nodes_capacity = 0;
  for (size_t i = 0; i < n_old; i++) {
    lower(&o, old[i]);
    TRY(o.emit.status);
  }
  graph_set_nodes(graph, graph->nodes, graph->n_nodes);
  return STATUS_OK;
}
