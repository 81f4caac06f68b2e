// schedule: the order in which steps are executed. Nodes stand in topological order already; this pass makes the phases contiguous (init, micro,
// update) and says which steps must wait for one of another queue. Gathers stand right before the first node that needs them, and reductions right
// after the last gradient of their bucket, because insert_collectives put them there (prefetch may have moved them and chosen their queue). Unless
// prefetch ran, all steps are on the compute queue: local collectives are loads and stores of the rank's own thread, and there is nothing to wait for.
//
// A step waits for the steps of other queues that it must follow: those that make or write what it touches; where it writes, those that touch it; and
// those that it was told to wait for. Waits that follow from others, from the order of a queue or from the end of a phase are left out.
#include "../kernels/ops.h"
#include "pass_list.h"
#include "queue_order.h"
#include "same_bytes.h"

typedef struct Scheduler {
  Graph *graph;
  QueueOrder order;
  Value **roots;
  uint32_t (*touched)[QUEUE_COUNT], (*written)[QUEUE_COUNT];   // per root: 1 + id of the last step of each queue that touches (writes) it; 0: none
} Scheduler;

// What a step must follow: 1 + id of the last such step of each queue.
typedef struct Needs { uint32_t after[QUEUE_COUNT]; } Needs;

static void need(Needs *needs, const uint32_t after[QUEUE_COUNT]) {
  for (int q = 0; q < QUEUE_COUNT; q++)
    if (after[q] > needs->after[q]) needs->after[q] = after[q];
}

static void need_step(Needs *needs, const Node *on) {
  if (on->id + 1 > needs->after[on->queue]) needs->after[on->queue] = on->id + 1;
}

// A release ends the reading of a view: who gathers the same bytes again comes after it, as after a write.
static bool writes(const Graph *g, const Node *n, int output) { return output < 0 ? n->op == &op_Release : !output_is_view(g, n, output); }

static const Value *touched_value(const Scheduler *s, const Node *n, int i) {
  const Value *v = i < n->n_inputs ? n->inputs[i] : n->outputs[i - n->n_inputs];
  return v ? s->roots[v->id] : NULL;
}

static Needs find_needs(const Scheduler *s, const Node *n) {
  Needs needs = {{0}};
  for (int i = 0; i < n->n_waits; i++) need_step(&needs, s->graph->nodes[n->waits[i]]);
  for (int i = 0; i < n->n_inputs; i++)        // also one that makes a view and writes nothing
    if (n->inputs[i] && n->inputs[i]->producer) need_step(&needs, n->inputs[i]->producer);
  for (int i = 0; i < n->n_inputs + n->n_outputs; i++) {
    const Value *v = touched_value(s, n, i);
    if (v) need(&needs, writes(s->graph, n, i - n->n_inputs) ? s->touched[v->id] : s->written[v->id]);
  }
  return needs;
}

static void record(Scheduler *s, const Node *n) {
  for (int i = 0; i < n->n_inputs + n->n_outputs; i++) {
    const Value *v = touched_value(s, n, i);
    if (!v) continue;
    s->touched[v->id][n->queue] = n->id + 1;
    if (writes(s->graph, n, i - n->n_inputs)) s->written[v->id][n->queue] = n->id + 1;
  }
}

// Later steps first: what they know to have ended need not be waited for.
static void set_waits(Scheduler *s, Node *n) {
  Needs needs = find_needs(s, n);
  uint32_t *waits = NULL;
  n->n_waits = 0;
  queue_order_start(&s->order, n);
  for (;;) {
    int last = -1;
    for (int q = 0; q < QUEUE_COUNT; q++)
      if (needs.after[q] && (last < 0 || needs.after[q] > needs.after[last])) last = q;
    if (last < 0) break;
    const Node *on = s->graph->nodes[needs.after[last] - 1];
    needs.after[last] = 0;
    if (!queue_order_wait(&s->order, n, on)) continue;
    if (!waits) waits = ARENA_ARRAY(s->graph->arena, uint32_t, QUEUE_COUNT);
    waits[n->n_waits++] = on->id;
  }
  n->waits = waits;
  record(s, n);
}

static void set_all_waits(Graph *g) {
  Scheduler s = {.graph = g, .order = queue_order_create(g, g->arena), .roots = same_bytes(g, g->arena)};
  s.touched = arena_alloc(g->arena, g->n_values * sizeof *s.touched);
  s.written = arena_alloc(g->arena, g->n_values * sizeof *s.written);
  for (size_t i = 0; i < g->n_nodes; i++) set_waits(&s, g->nodes[i]);
}

// Waits are ids, which change with the order: takes them to the new one. A step that is now behind the one that waits for it is the caller's error.
static Status move_waits(Graph *g, Node *const *old) {
  for (size_t i = 0; i < g->n_nodes; i++) {
    Node *n = g->nodes[i];
    uint32_t *waits = n->n_waits ? ARENA_ARRAY(g->arena, uint32_t, n->n_waits) : NULL;
    for (int k = 0; k < n->n_waits; k++) {
      const Node *on = old[n->waits[k]];
      if (on->id >= n->id) FAIL(MALFORMED, n->name, "it waits for '%s' of a later phase", on->name);
      waits[k] = on->id;
    }
    n->waits = waits;
  }
  return STATUS_OK;
}

Status pass_schedule(Graph *graph, const CompileOptions *options) {
  Node **nodes = ARENA_ARRAY(graph->arena, Node *, graph->n_nodes), **old = graph->nodes;
  size_t n = 0;
  bool one_queue = true;
  for (int phase = 0; phase < PHASE_COUNT; phase++)
    for (size_t i = 0; i < graph->n_nodes; i++)
      if ((int)graph->nodes[i]->phase == phase) nodes[n++] = graph->nodes[i];
  for (size_t i = 0; i < n; i++) {
    one_queue &= nodes[i]->queue == QUEUE_COMPUTE && !nodes[i]->n_waits;
    if (nodes[i]->queue == QUEUE_IO) FAIL(UNSUPPORTED, nodes[i]->name, "no step can be on queue io yet; compute and comm are possible");
  }
  graph_set_nodes(graph, nodes, n);
  TRY(move_waits(graph, old));
  if (!one_queue) set_all_waits(graph);
  return STATUS_OK;
}
