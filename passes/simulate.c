#include "simulate.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static double times_a_step(const Graph *g, Phase phase) {
  return phase == PHASE_MICRO ? (double)g->recipe.micro_per_rank : phase == PHASE_UPDATE ? 1 : 0;
}

// ---- Communication by cause -----------------------------------------------------------------------------------------------------------

// The causes of one bucket form a chain: there are as many buckets as layers, and searching all of them would take quadratic time.
typedef struct Causes { size_t capacity; int64_t *last; int64_t *before; size_t before_capacity, n_before; } Causes;

static bool is_cause(const CommTime *c, const Node *node, int32_t bucket) {
  return c->phase == node->phase && !strcmp(c->op, node->op->name) && (bucket >= 0 || c->cause.node == node->cause.node);
}

static CommTime *comm_of(const Graph *g, Simulation *s, Arena *arena, Causes *causes, const Node *node) {
  int64_t bucket = attr_int(node, "bucket");
  if (bucket < 0 || (size_t)bucket >= g->n_buckets) bucket = -1;
  int64_t *last = &causes->last[bucket + 1];
  for (int64_t i = *last - 1; i >= 0; i = causes->before[i] - 1)
    if (is_cause(&s->comm[i], node, (int32_t)bucket)) return &s->comm[i];
  CommTime new = {.op = node->op->name, .phase = node->phase, .bucket = (int32_t)bucket, .cause = node->cause};
  ARENA_PUSH(arena, causes->before, causes->n_before, causes->before_capacity, *last);
  ARENA_PUSH(arena, s->comm, s->n_comm, causes->capacity, new);
  *last = (int64_t)s->n_comm;
  return &s->comm[s->n_comm - 1];
}

// Seconds of [start, end) in which the compute queue is idle. `busy` are its steps in order; *from moves on, since collectives come in order, too.
typedef struct Busy { const StepTime *items; size_t n; } Busy;

static double idle_within(const Busy *busy, double start, double end, size_t *from) {
  double idle = end - start;
  while (*from < busy->n && busy->items[*from].end_s <= start) ++*from;
  for (size_t i = *from; i < busy->n && busy->items[i].start_s < end; i++) idle -= fmax(0, fmin(end, busy->items[i].end_s) - fmax(start, busy->items[i].start_s));
  return fmax(0, idle);
}

// Steps of the compute queue that compute: what collectives and transfers can hide behind.
static Busy computing(const Graph *g, Phase phase, const Simulation *s, Arena *arena) {
  StepTime *busy = ARENA_ARRAY(arena, StepTime, g->n_nodes);
  size_t n = 0;
  for (size_t i = 0; i < g->n_nodes; i++)
    if (g->nodes[i]->phase == phase && g->nodes[i]->queue == QUEUE_COMPUTE && !(g->nodes[i]->op->flags & (OP_COLLECTIVE | OP_TRANSFER))) busy[n++] = s->steps[i];
  return (Busy){busy, n};
}

static void count_comm(const Graph *g, const Machine *m, Phase phase, Arena *arena, Causes *causes, Simulation *s) {
  Busy compute = computing(g, phase, s, arena);
  double times = times_a_step(g, phase);
  size_t from = 0;
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *n = g->nodes[i];
    if (n->phase != phase || !(n->op->flags & OP_COLLECTIVE)) continue;
    double start = s->steps[i].start_s, end = s->steps[i].end_s;
    bool in_turn = n->queue == QUEUE_COMPUTE || m->shares_processor;
    double exposed = times * (in_turn ? end - start : idle_within(&compute, start, end, &from));
    CommTime *c = comm_of(g, s, arena, causes, n);
    c->sent_bytes += times * (double)(n->op->sent_bytes ? n->op->sent_bytes(n) : 0);
    c->seconds += times * (end - start);
    c->exposed_s += exposed;
    s->comm_s += times * (end - start);
    s->exposed_s += exposed;
  }
}

// Copies to and from host memory are work of the processor, where queues share one; what a disk does is not.
static void count_transfers(const Graph *g, const Machine *m, Phase phase, Arena *arena, Simulation *s) {
  Busy compute = computing(g, phase, s, arena);
  double times = times_a_step(g, phase);
  size_t from = 0;
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *n = g->nodes[i];
    if (n->phase != phase || !(n->op->flags & OP_TRANSFER)) continue;
    double start = s->steps[i].start_s, end = s->steps[i].end_s;
    bool in_turn = n->queue == QUEUE_COMPUTE || (m->shares_processor && !step_cost(g, n, m).waits);
    s->transfer_s += times * (end - start);
    s->transfer_exposed_s += times * (in_turn ? end - start : idle_within(&compute, start, end, &from));
  }
}

// ---- Queues ---------------------------------------------------------------------------------------------------------------------------

static Status check_wait(const Graph *g, const Node *node, uint32_t id) {
  if (id < node->id && id < g->n_nodes && g->nodes[id]->phase == node->phase) return STATUS_OK;
  FAIL(MALFORMED, node->name, "step %" PRIu32 " waits for step %" PRIu32 ", which is no earlier step of its phase: it would never start", node->id, id);
}

static Status run_phase(const Graph *g, const Machine *m, Phase phase, Simulation *s) {
  double clock[QUEUE_COUNT] = {0}, times = times_a_step(g, phase), work = 0;
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *n = g->nodes[i];
    if (n->phase != phase) continue;
    StepCost cost = step_cost(g, n, m);
    double start = clock[n->queue];
    for (int w = 0; w < n->n_waits; w++) {
      TRY(check_wait(g, n, n->waits[w]));
      start = fmax(start, s->steps[n->waits[w]].end_s);
    }
    clock[n->queue] = start + cost.seconds;
    s->steps[i] = (StepTime){start, start + cost.seconds};
    s->busy_s[n->queue] += times * cost.seconds;
    if (!cost.waits || n->queue == QUEUE_COMPUTE) work += cost.seconds;
    for (int w = 0; w < WORK_COUNT; w++)
      if (work_is_product((Work)w)) {
        s->product_flops += times * cost.node.work[w];
        if (n->recomputes) s->recomputed_flops += times * cost.node.work[w];
      }
    if (n->recomputes) s->recomputed_s += times * cost.seconds;
  }
  for (int q = 0; q < QUEUE_COUNT; q++) s->phase_s[phase] = fmax(s->phase_s[phase], clock[q]);
  if (m->shares_processor) s->phase_s[phase] = fmax(s->phase_s[phase], work);
  return STATUS_OK;
}

// ---- Memory ---------------------------------------------------------------------------------------------------------------------------

// Bytes of PROCESS regions that a rank holds all the time, and the copies that it makes to read a whole one: changes at each step.
static void count_regions(const Graph *g, const Machine *m, int64_t *copies, int64_t *always) {
  int ranks = mesh_ranks(&g->mesh);
  bool copied = g->recipe.processes > 1;                   // what is gathered is copied, and has its place in the plan
  for (size_t b = 0; b < g->n_buffers; b++) copied |= g->buffers[b].scope == SCOPE_PROCESS && g->buffers[b].tier == TIER_DEVICE && !g->buffers[b].persistent;
  if (copied) {
    *always = plan_arena_bytes(g, SCOPE_PROCESS, TIER_DEVICE) / g->recipe.ranks_per_process;
    return;
  }
  for (size_t b = 0; b < g->n_buffers; b++)
    if (g->buffers[b].scope == SCOPE_PROCESS && g->buffers[b].tier == TIER_DEVICE) *always = bytes_add(*always, g->buffers[b].bytes / ranks);
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *n = g->nodes[i];
    if (n->region < 0 || (size_t)n->region >= g->n_buffers) continue;
    int64_t copy = g->buffers[n->region].bytes;
    if (machine_views_move(g, m) && n->guard == GUARD_READ_BEGIN) copies[i] = bytes_add(copies[i], copy);
    if (machine_views_move(g, m) && n->guard == GUARD_READ_END) copies[i + 1] = bytes_add(copies[i + 1], -copy);
  }
}

static void count_memory(const Graph *g, const Machine *m, Arena *arena, Simulation *s) {
  int64_t *own = ARENA_ARRAY(arena, int64_t, g->n_nodes + 1), *copies = ARENA_ARRAY(arena, int64_t, g->n_nodes + 1);
  int64_t always = 0, own_now = 0, copies_now = 0, most = -1, most_copies = 0;
  for (size_t i = 0; i < g->n_buffers; i++) {
    const Buffer *b = &g->buffers[i];
    if (b->tier != TIER_DEVICE || b->scope != SCOPE_RANK || b->persistent || b->last >= g->n_nodes || b->first > b->last) continue;
    own[b->first] = bytes_add(own[b->first], b->bytes);
    own[b->last + 1] = bytes_add(own[b->last + 1], -b->bytes);
  }
  count_regions(g, m, copies, &always);
  for (size_t i = 0; i < g->n_nodes; i++) {
    own_now = bytes_add(own_now, own[i]);
    copies_now = bytes_add(copies_now, copies[i]);
    if (copies_now > most_copies) most_copies = copies_now;
    if (bytes_add(own_now, copies_now) <= most) continue;
    most = bytes_add(own_now, copies_now);
    s->peak_step = (uint32_t)i;
  }
  s->peak_bytes = bytes_add(bytes_add(plan_arena_bytes(g, SCOPE_RANK, TIER_DEVICE), always), most_copies);
}

// ---- The whole ------------------------------------------------------------------------------------------------------------------------

static Status simulate(const Graph *g, const Machine *m, Arena *arena, Simulation *s) {
  if (!(g->facts & FACT_PLANNED)) FAIL(USAGE, NULL, "graph '%s' is no finished plan", g->name);
  s->steps = ARENA_ARRAY(arena, StepTime, g->n_nodes + 1);
  Causes causes = {.last = ARENA_ARRAY(arena, int64_t, g->n_buckets + 1)};   // number of the last cause + 1; 0: none
  for (int phase = PHASE_MICRO; phase < PHASE_COUNT; phase++) {
    TRY(run_phase(g, m, (Phase)phase, s));
    count_comm(g, m, (Phase)phase, arena, &causes, s);
    count_transfers(g, m, (Phase)phase, arena, s);
  }
  double k = times_a_step(g, PHASE_MICRO);
  double fed = 0;
  for (size_t i = 0; i < g->n_inputs; i++) fed += (double)value_bytes(g->inputs[i]);
  s->overhead_s = k * (m->micro_overhead_s + fed / m->memory_bytes_per_s) + m->update_overhead_s;
  s->step_s = k * s->phase_s[PHASE_MICRO] + s->phase_s[PHASE_UPDATE] + s->overhead_s;
  count_memory(g, m, arena, s);
  return STATUS_OK;
}

Status simulate_step(const Graph *program, const Machine *machine, Arena *arena, Simulation *out) {
  Simulation s = {0};
  ARENA_GUARD(arena);
  Status status = simulate(program, machine, arena, &s);
  if (!status) *out = s;
  ARENA_RETURN(arena, status);
}
