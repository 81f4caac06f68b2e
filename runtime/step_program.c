#include "step_program.h"

#include "../kernels/ops.h"

#include <string.h>

#include "../ir/plan.h"

// ---- Addresses ----------------------------------------------------------------------------------------------------------------

static char *buffer_base(const Graph *graph, int32_t index, const Arenas *arenas) {
  const Buffer *buffer = &graph->buffers[index];
  if ((int)buffer->tier >= MEMORY_TIERS) return NULL;
  const ArenaMemory *memory = buffer->scope == SCOPE_PROCESS ? arenas->process : arenas->rank;
  return memory[buffer->tier].base + buffer->offset_bytes;
}

void *value_address(const Graph *graph, const Value *value, int rank, const Arenas *arenas) {
  char *base = buffer_base(graph, value->loc.buffer, arenas);
  return base ? base + value->loc.offset_bytes + rank * value->loc.rank_stride_bytes : NULL;
}

int64_t value_swap_offset(const Graph *graph, const Value *value, const Arenas *arenas) {
  const Buffer *buffer = &graph->buffers[value->loc.buffer];
  return (int)buffer->tier < MEMORY_TIERS ? 0 : arenas->swap_bytes + buffer->offset_bytes + value->loc.offset_bytes;
}

// ---- Checks -------------------------------------------------------------------------------------------------------------------

static Status check_buffers(const Graph *graph) {
  for (size_t b = 0; b < graph->n_buffers; b++) {
    const Buffer *buffer = &graph->buffers[b];
    if ((unsigned)buffer->tier >= TIER_COUNT) FAIL(MALFORMED, buffer->name, "tier %d does not exist", (int)buffer->tier);
    if (buffer->tier == TIER_NVME && (buffer->scope != SCOPE_RANK || buffer->offset_bytes % PLAN_PAGE_BYTES))
      FAIL(MALFORMED, buffer->name, "its buffer at %lld lies on disk: there each rank has its own, at whole pages", (long long)buffer->offset_bytes);
    if (buffer->bytes < 0 || buffer->offset_bytes < 0 || buffer->offset_bytes % BUFFER_ALIGN_BYTES || buffer->offset_bytes > INT64_MAX / 4 - buffer->bytes)
      FAIL(MALFORMED, buffer->name, "its buffer of %lld bytes at %lld has no place in an arena", (long long)buffer->bytes, (long long)buffer->offset_bytes);
  }
  return NULL;
}

static Status check_value(const Graph *graph, const Value *v, int ranks) {
  const Location *loc = &v->loc;
  if (loc->buffer < 0) return NULL;
  if ((size_t)loc->buffer >= graph->n_buffers) FAIL(MALFORMED, v->name, "it lies in buffer %d of %zu", loc->buffer, graph->n_buffers);
  if (v->tier != graph->buffers[loc->buffer].tier)
    FAIL(MALFORMED, v->name, "it is of tier %s and lies in a buffer of tier %s", tier_name(v->tier), tier_name(graph->buffers[loc->buffer].tier));
  if (v->tier == TIER_NVME && loc->rank_stride_bytes) FAIL(MALFORMED, v->name, "on disk each rank has a part of its own, and the value lies elsewhere for each");
  TRY(type_check(&v->type, v->name));
  int64_t room = graph->buffers[loc->buffer].bytes, bytes = value_bytes(v), end;
  if (loc->offset_bytes < 0 || loc->rank_stride_bytes < 0 || __builtin_mul_overflow(loc->rank_stride_bytes, ranks - 1, &end) ||
      __builtin_add_overflow(end, loc->offset_bytes, &end) || __builtin_add_overflow(end, bytes, &end) || end > room)
    FAIL(MALFORMED, v->name, "%lld bytes at %lld + rank x %lld pass the end of their buffer of %lld bytes", (long long)bytes, (long long)loc->offset_bytes,
         (long long)loc->rank_stride_bytes, (long long)room);
  if (v->carry && (v->carry->loc.buffer != loc->buffer || v->carry->loc.offset_bytes != loc->offset_bytes || v->carry->loc.rank_stride_bytes != loc->rank_stride_bytes))
    FAIL(MALFORMED, v->name, "it is carried to '%s', which lies elsewhere", v->carry->name);
  return NULL;
}

// The executor's own: fed, written or read by it.
static Status check_device(const Value *v) {
  if (v && v->tier != TIER_DEVICE) FAIL(MALFORMED, v->name, "it lies in tier %s; the executor reads and writes it on the device", tier_name(v->tier));
  return NULL;
}

static Status check_control(const Value *v) {
  const char *name = v->name;
  TRY(check_device(v));
  bool real = !strcmp(name, "tessera.lr") || !strcmp(name, LOSS_SEED);
  Dtype want = real ? DTYPE_F64 : !strcmp(name, "tessera.step") || !strcmp(name, "tessera.micro") ? DTYPE_I64 : DTYPE_NONE;
  if (want == DTYPE_NONE) FAIL(UNSUPPORTED, name, "no control value of this name is known: tessera.lr, tessera.step, tessera.micro, " LOSS_SEED);
  if (v->type.dtype != want || v->type.rank != 0) FAIL(MALFORMED, name, "this control value must be a scalar of %s", dtype_name(want));
  return NULL;
}

static Status check_report(const Value *v, const char *what) {
  if (!v) return NULL;
  TRY(check_device(v));
  if (v->type.dtype != DTYPE_F64 || type_elems(&v->type) != 1 || v->loc.buffer < 0) FAIL(MALFORMED, v->name, "the %s report must be one placed double", what);
  return NULL;
}

static Status check_temporary(const Graph *graph, const Node *n, int32_t buffer, const char *what) {
  if (buffer >= 0 && (size_t)buffer >= graph->n_buffers) FAIL(MALFORMED, n->name, "its %s is buffer %d of %zu", what, buffer, graph->n_buffers);
  if (buffer >= 0 && graph->buffers[buffer].tier != TIER_DEVICE)
    FAIL(MALFORMED, n->name, "its %s lies in tier %s, not on the device", what, tier_name(graph->buffers[buffer].tier));
  return NULL;
}

static bool moves_between_tiers(const Op *op) { return (op->flags & OP_TRANSFER) || op == &op_Cut || op == &op_Join; }

static Status check_node(const Graph *graph, const Node *n) {
  if ((unsigned)n->phase >= PHASE_COUNT) FAIL(MALFORMED, n->name, "phase %d does not exist", (int)n->phase);
  if (n->guard != GUARD_NONE && (n->region < 0 || (size_t)n->region >= graph->n_buffers))
    FAIL(MALFORMED, n->name, "guards region %d of %zu", n->region, graph->n_buffers);
  if (n->guard == GUARD_READ_BEGIN && (n->n_inputs != 1 || n->n_outputs != 1 || !n->inputs[0] || !n->outputs[0] || !(n->op->flags & OP_COLLECTIVE)))
    FAIL(MALFORMED, n->name, "only a gather begins to read a view, not %s", n->op->name);
  TRY(check_temporary(graph, n, n->workspace, "workspace"));
  TRY(check_temporary(graph, n, n->scratch, "scratch"));
  for (int i = 0; i < n->n_inputs + n->n_outputs; i++) {
    const Value *v = i < n->n_inputs ? n->inputs[i] : n->outputs[i - n->n_inputs];
    if (v && v->loc.buffer < 0 && !value_const(v)) FAIL(MALFORMED, n->name, "'%s' has no place in memory: the graph is not planned", v->name);
    if (v && v->tier != TIER_DEVICE && !moves_between_tiers(n->op))
      FAIL(MALFORMED, n->name, "%s cannot touch '%s', which lies in tier %s", n->op->name, v->name, tier_name(v->tier));
  }
  return NULL;
}

// What queues may do (docs/design.md, Queues): every wait is for an earlier step of the same phase and another queue; the collectives are on one queue.
static Status check_queues(const Graph *graph) {
  const Node *collective = NULL;
  for (size_t i = 0; i < graph->n_nodes; i++) {
    const Node *n = graph->nodes[i];
    if ((unsigned)n->queue >= QUEUE_COUNT || n->queue == QUEUE_IO)
      FAIL(UNSUPPORTED, n->name, "its queue is %s; this runtime runs compute and comm", (unsigned)n->queue < QUEUE_COUNT ? queue_name(n->queue) : "none that exists");
    for (int k = 0; k < n->n_waits; k++) {
      const Node *on = n->waits[k] < i ? graph->nodes[n->waits[k]] : NULL;
      if (!on || on->phase != n->phase || on->queue == n->queue)
        FAIL(MALFORMED, n->name, "it waits for step %u; steps wait for earlier steps of their phase on another queue", n->waits[k]);
    }
    if (!(n->op->flags & OP_COLLECTIVE)) continue;
    if (collective && collective->queue != n->queue)
      FAIL(MALFORMED, n->name, "it is on queue %s and the collective '%s' on queue %s; all are issued by one thread", queue_name(n->queue), collective->name,
           queue_name(collective->queue));
    collective = n;
  }
  return NULL;
}

Status step_program_check(const Graph *graph) {
  int ranks = mesh_ranks(&graph->mesh);
  TRY(check_buffers(graph));
  for (size_t i = 0; i < graph->n_values; i++) {
    const Value *v = graph->values[i];
    TRY(check_value(graph, v, ranks));
    if (v->role == ROLE_CONTROL && !v->producer) TRY(check_control(v));
    else if (!v->producer) TRY(check_device(v));
  }
  TRY(check_report(graph->loss_report, "loss"));
  TRY(check_report(graph->norm_report, "norm"));
  const Value *clipped = graph_find_value(graph, "tessera.clipped_norm");
  if (clipped && clipped->role == ROLE_CONTROL) TRY(check_report(clipped, "clipped norm"));
  for (size_t i = 0; i < graph->n_nodes; i++) TRY(check_node(graph, graph->nodes[i]));
  return check_queues(graph);
}

// ---- First half ---------------------------------------------------------------------------------------------------------------

static Status check_room(const Graph *graph, const Node *n, int32_t buffer, int64_t bytes, const char *what) {
  int64_t room = buffer >= 0 ? graph->buffers[buffer].bytes : 0;
  if (bytes > room)
    FAIL(MALFORMED, n->name, "%s needs %lld bytes of %s here, the plan has %lld: it was made with other kernels", n->op->name, (long long)bytes, what, (long long)room);
  return NULL;
}

static Status prepare_step(const Graph *graph, const Node *n, Step *step) {
  KernelContext *c = &step->context;
  step->prepare = (KernelPrepare){.node = n, .isa = c->isa};
  if (n->guard == GUARD_READ_BEGIN) {           // a view: waiting is all there is to do
    step->view_bytes = (c->comm->size - 1) * value_bytes(n->inputs[0]);
    return NULL;
  }
  TRY(kernel_prepare(&step->prepare, &step->run));
  TRY(check_room(graph, n, n->workspace, step->prepare.workspace_bytes, "workspace"));
  TRY(check_room(graph, n, n->scratch, step->prepare.scratch_bytes, "scratch"));
  c->prepared = step->prepare.prepared;
  return NULL;
}

// `place`: per node, how many steps its queue has before it in its phase.
static void prepare_waits(const Graph *graph, const Node *n, const uint32_t *place, Arena *arena, Step *step) {
  QueueWait *waits = ARENA_ARRAY(arena, QueueWait, n->n_waits);
  for (int i = 0; i < n->n_waits; i++) waits[i] = (QueueWait){graph->nodes[n->waits[i]]->queue, place[n->waits[i]] + 1};
  step->waits = waits;
  step->n_waits = n->n_waits;
}

static uint32_t *prepare_queues(const Graph *graph, Arena *arena, StepProgram *out) {
  uint32_t *place = ARENA_ARRAY(arena, uint32_t, graph->n_nodes), count[PHASE_COUNT][QUEUE_COUNT] = {{0}};
  for (size_t i = 0; i < graph->n_nodes; i++) place[i] = count[graph->nodes[i]->phase][graph->nodes[i]->queue]++;
  for (int p = 0; p < PHASE_COUNT; p++)
    for (int q = 0; q < QUEUE_COUNT; q++) out->queues[p][q].steps = ARENA_ARRAY(arena, Step, count[p][q]);
  return place;
}

// Values of the update that are made of what ClipScale gives, and ClipScale's results themselves.
static bool *find_followers(const Graph *graph, Arena *arena) {
  bool *follows = ARENA_ARRAY(arena, bool, graph->n_values);
  for (size_t i = 0; i < graph->n_nodes; i++) {
    const Node *n = graph->nodes[i];
    bool any = n->op == &op_ClipScale;
    for (int k = 0; k < n->n_inputs; k++) any |= n->phase == PHASE_UPDATE && n->inputs[k] && follows[n->inputs[k]->id];
    for (int k = 0; any && k < n->n_outputs; k++)
      if (n->outputs[k]) follows[n->outputs[k]->id] = true;
  }
  return follows;
}

// (sum, count) of a micro-batch's loss (passes/attach_optimizer.c); NULL: there is none.
static const Value *loss_pair(const Graph *graph) {
  const Value *v = graph_find_value(graph, "tessera.loss_pair");
  bool fits = v && v->producer && v->producer->phase == PHASE_MICRO && v->type.dtype == DTYPE_F64 && type_elems(&v->type) == 2 && v->loc.buffer >= 0;
  return fits ? v : NULL;
}

// Per node: does the loss pair come of it?
static bool *mark_forward(const Graph *graph, Arena *arena) {
  bool *nodes = ARENA_ARRAY(arena, bool, graph->n_nodes), *values = ARENA_ARRAY(arena, bool, graph->n_values);
  const Value *pair = loss_pair(graph);
  if (pair) values[pair->id] = true;
  for (size_t i = graph->n_nodes; pair && i-- > 0;) {
    const Node *n = graph->nodes[i];
    for (int o = 0; o < n->n_outputs && n->phase == PHASE_MICRO; o++) nodes[i] |= n->outputs[o] && values[n->outputs[o]->id];
    for (int k = 0; nodes[i] && k < n->n_inputs; k++)
      if (n->inputs[k]) values[n->inputs[k]->id] = true;
  }
  return nodes;
}

static Status prepare_all(const Graph *graph, bool variant, Arena *arena, const KernelContext *common, StepProgram *out) {
  const uint32_t *place = prepare_queues(graph, arena, out);
  const bool *follows = find_followers(graph, arena);
  const bool *forward = mark_forward(graph, arena);
  for (size_t i = 0; i < graph->n_nodes; i++) {
    const Node *n = graph->nodes[i];
    if (variant && n->phase != PHASE_MICRO) continue;
    Tensor *tensors = ARENA_ARRAY(arena, Tensor, n->n_inputs + n->n_outputs);
    StepQueue *queue = &out->queues[n->phase][n->queue];
    Step *step = &queue->steps[queue->n++];
    prepare_waits(graph, n, place, arena, step);
    for (int k = 0; k < n->n_inputs; k++) step->follows_norm |= n->phase == PHASE_UPDATE && n->inputs[k] && follows[n->inputs[k]->id];
    step->forward = forward[i];
    step->context = *common;
    step->context.node = n;
    step->context.in = tensors;
    step->context.n_in = n->n_inputs;
    step->context.out = tensors + n->n_inputs;
    step->context.n_out = n->n_outputs;
    TRY(prepare_step(graph, n, step));
  }
  out->n_inputs = graph->n_inputs;
  out->inputs = ARENA_ARRAY(arena, Tensor, graph->n_inputs);
  return NULL;
}

Status step_program_prepare(const Graph *graph, bool variant, Arena *arena, Isa isa, const RunClock *clock, Comm *comm, const WeightSource *weights, StepProgram *out) {
  ARENA_GUARD(arena);
  KernelContext common = {.loops = loops_for(isa), .isa = isa, .clock = clock, .comm = comm, .weights = weights};
  ARENA_RETURN(arena, prepare_all(graph, variant, arena, &common, out));
}

// ---- Second half --------------------------------------------------------------------------------------------------------------

typedef struct Place {
  const Graph *graph;
  int rank;
  const Arenas *arenas;
} Place;

static void *address(const Place *p, const Value *v) { return value_address(p->graph, v, p->rank, p->arenas); }

static void *buffer_address(const Place *p, int32_t index) { return index < 0 ? NULL : buffer_base(p->graph, index, p->arenas); }

static Tensor tensor_of(const Place *p, const Value *v) {
  if (!v) return (Tensor){.data = NULL, .type = NULL};
  if (v->loc.buffer >= 0) return (Tensor){.data = address(p, v), .type = &v->type, .offset_bytes = value_swap_offset(p->graph, v, p->arenas)};
  return (Tensor){.data = (void *)v->weight->bytes, .type = &v->type};    // a small constant that only op->infer reads lies in the plan; kernels do not write inputs
}

// Is output `o` of the node nothing but bytes of an input, and does it lie there?
static bool is_view_in_place(const Place *p, const Step *step, int o) {
  const Node *n = step->context.node;
  Alias alias;
  if (!node_alias(n, o, ALIAS_VIEW, &alias)) return false;
  const Tensor *in = &step->context.in[alias.input], *out = &step->context.out[o];
  int64_t offset = alias.offset_bytes + (alias.rank_relative ? p->rank * value_bytes(n->outputs[o]) : 0);
  if (!in->data || !out->data) return !in->data && !out->data && in->offset_bytes + offset == out->offset_bytes;      // both on disk
  return (const char *)in->data + offset == (const char *)out->data;
}

// Were all parts of a Join made where they are wanted?
static bool is_joined_in_place(const Step *step) {
  const KernelContext *c = &step->context;
  Alias alias;
  if (c->node->op != &op_Join) return false;
  for (int i = 0; i < c->n_in; i++) {
    if (!c->node->op->alias(c->node, 0, i, &alias)) return false;
    if (c->out[0].data ? (const char *)c->in[i].data != (const char *)c->out[0].data + alias.offset_bytes
                       : c->in[i].data || c->in[i].offset_bytes != c->out[0].offset_bytes + alias.offset_bytes)
      return false;
  }
  return true;
}

// Cut and Join move nothing in other tiers: there, windows lie where they belong.
static Status check_windows(const Node *n) {
  for (int i = 0; i < n->n_inputs + n->n_outputs; i++) {
    const Value *v = i < n->n_inputs ? n->inputs[i] : n->outputs[i - n->n_inputs];
    if (v && v->tier != TIER_DEVICE) FAIL(MALFORMED, n->name, "'%s' lies in tier %s, and not where %s says", v->name, tier_name(v->tier), n->op->name);
  }
  return NULL;
}

static Status place_step(const Place *p, Step *step) {
  KernelContext *c = &step->context;
  const Node *n = c->node;
  Tensor *in = (Tensor *)c->in, *out = (Tensor *)c->out;   // ours: allocated in prepare_all
  for (int i = 0; i < n->n_inputs; i++) in[i] = tensor_of(p, n->inputs[i]);
  for (int o = 0; o < n->n_outputs; o++) out[o] = tensor_of(p, n->outputs[o]);
  c->workspace = buffer_address(p, n->workspace);
  c->scratch = buffer_address(p, n->scratch);
  bool views = n->n_outputs > 0;
  for (int o = 0; o < n->n_outputs && views; o++) views = !n->outputs[o] || is_view_in_place(p, step, o);
  if (views || is_joined_in_place(step)) step->run = NULL;
  if (step->run && (n->op == &op_Cut || n->op == &op_Join)) TRY(check_windows(n));
  return NULL;
}

static Status place_const(const Place *p, const Value *v, bool fixed_too) {
  if (v->role != ROLE_CONST || v->producer || !v->weight || v->loc.buffer < 0) return NULL;
  if (!fixed_too && buffer_is_fixed(p->graph, &p->graph->buffers[v->loc.buffer])) return NULL;
  if (p->graph->buffers[v->loc.buffer].scope == SCOPE_PROCESS && p->rank) return NULL;
  if (!type_same_shape(&v->weight->type, &v->type)) FAIL(MALFORMED, v->name, "the constant's bytes have another shape");
  elements_convert(address(p, v), v->type.dtype, v->weight->bytes, v->weight->type.dtype, type_elems(&v->type));
  return NULL;
}

static void *control(const Place *p, const char *name) {
  const Value *v = graph_find_value(p->graph, name);
  return v && v->role == ROLE_CONTROL && v->loc.buffer >= 0 ? address(p, v) : NULL;
}

Status step_program_place(StepProgram *program, const Graph *graph, int rank, const Arenas *arenas, Swap *swap) {
  Place place = {graph, rank, arenas};
  for (StepQueue *q = program->queues[0]; q < program->queues[PHASE_COUNT]; q++)
    for (size_t i = 0; i < q->n; i++) {
      q->steps[i].context.swap = swap;
      TRY(place_step(&place, &q->steps[i]));
    }
  for (size_t i = 0; i < graph->n_inputs; i++)
    program->inputs[i] = (Tensor){.data = graph->inputs[i]->loc.buffer >= 0 ? address(&place, graph->inputs[i]) : NULL, .type = &graph->inputs[i]->type};
  program->lr = control(&place, "tessera.lr");
  program->loss_seed = control(&place, LOSS_SEED);
  program->step = control(&place, "tessera.step");
  program->micro = control(&place, "tessera.micro");
  program->loss_pair = loss_pair(graph) ? address(&place, loss_pair(graph)) : NULL;
  program->loss = graph->loss_report ? address(&place, graph->loss_report) : NULL;
  program->norm = graph->norm_report ? address(&place, graph->norm_report) : NULL;
  program->clipped = control(&place, "tessera.clipped_norm");
  return NULL;
}

Status step_program_place_constants(const Graph *graph, bool fixed_too, int rank, const Arenas *arenas) {
  Place place = {graph, rank, arenas};
  for (size_t i = 0; i < graph->n_values; i++) TRY(place_const(&place, graph->values[i], fixed_too));
  return NULL;
}

void step_program_finish(StepProgram *program) {
  for (StepQueue *q = program->queues[0]; q < program->queues[PHASE_COUNT]; q++)
    for (size_t i = 0; i < q->n; i++) {
      KernelPrepare *prepare = &q->steps[i].prepare;
      if (prepare->destroy) prepare->destroy(prepare->prepared);
      prepare->destroy = NULL;
    }
}
