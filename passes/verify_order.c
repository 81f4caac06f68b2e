// The order part of verify_plan: steps of one rank run on several queues at a time, and whatever the timing, they must do what the order of their ids
// does, which the other parts prove. What happens before what inside a rank is the order of each queue, the waits, and the end of every phase, at
// which all queues meet; a vector clock per step (how far each queue has come when the step starts) decides it. Two steps of which neither happens
// before the other must not touch the same bytes unless both only read them.
//
// Between ranks nothing is ordered but by collectives and guards. All ranks run the same steps, so these meet when their order on each rank is one:
// collectives lie on one queue, guards of one region are ordered like accesses to a byte of the region's own (its gate), which readers of the gathered
// whole read. Then everything that a step can wait for has a smaller id, here and on other ranks, and no run can stop (docs/verify.md has the argument).
#include <stdio.h>
#include <string.h>

#include "../kernels/ops.h"
#include "verify_proof.h"

typedef struct Clock { uint32_t at[QUEUE_COUNT]; } Clock;    // steps of each queue that have ended before the step does, itself included

// Bytes [lo, hi): the last step of each queue that wrote and that read them, plus 1; 0: none. Of one queue earlier steps need no record.
typedef struct Span { int64_t lo, hi; uint32_t wrote[QUEUE_COUNT], read[QUEUE_COUNT]; } Span;
typedef struct Spans { Span *items; size_t n, capacity; } Spans;      // disjoint, ascending

enum { SPACE_GATES = SCOPE_COUNT * TIER_COUNT, N_SPACES };            // in SPACE_GATES byte b is the gate of buffer b

typedef struct Order {
  Proof *proof;
  Clock *clocks;                   // per node
  uint32_t *position;              // per node: its number on its queue, from 1
  Spans spaces[N_SPACES];
  const Node *told_node;           // the pair that was told last
  uint32_t told_other;
} Order;

static const Node *node_at(const Order *o, uint32_t id) { return o->proof->graph->nodes[id]; }

static bool happens_before(const Order *o, uint32_t a, const Node *b) { return o->clocks[b->id].at[node_at(o, a)->queue] >= o->position[a]; }

// ---- Waits --------------------------------------------------------------------------------------------------------------------

static const char *wait_defect(const Graph *g, const Node *node, uint32_t to) {
  if (to >= g->n_nodes) return "which does not exist";
  if (to == node->id) return "itself";
  if (g->nodes[to]->phase != node->phase) return "which is of another phase: phases end together";
  if (to > node->id) return "which comes later";
  return g->nodes[to]->queue == node->queue ? "which its own queue runs before it anyway" : NULL;
}

// A walk against the order: what a step waits for, and what stands before it on its queue.
typedef struct Walk {
  const Graph *graph;
  uint32_t *before;                // per node: the one before it on its queue in its phase; UINT32_MAX: none
  uint8_t *state;                  // per node: 0 not seen, 1 on the path, 2 done
  uint32_t *path;                  // nodes, each waiting for the next
  int *next;                       // per place of the path: edges followed so far
} Walk;

// Edge `i` of a node; false: there are no more. *out UINT32_MAX: one that leads nowhere.
static bool edge(const Walk *w, const Node *node, int i, uint32_t *out) {
  *out = UINT32_MAX;
  if (i > node->n_waits) return false;
  if (i == node->n_waits) *out = w->before[node->id];
  else if (node->waits[i] < w->graph->n_nodes && w->graph->nodes[node->waits[i]]->phase == node->phase) *out = node->waits[i];
  return true;
}

static void tell_cycle(Proof *p, const Walk *w, size_t from, size_t end) {
  char text[400];
  size_t used = 0;
  for (size_t i = from; i < end && used + 90 < sizeof text; i++) {
    const Node *node = p->graph->nodes[w->path[i]];
    uint32_t next = i + 1 < end ? w->path[i + 1] : w->path[from];
    int n = snprintf(text + used, sizeof text - used, "step %u '%.40s' (%s) %s ", node->id, node->name, queue_name(node->queue),
                     w->before[node->id] == next ? "stands behind" : "waits for");
    used += n > 0 ? (size_t)n : 0;
  }
  proof_defect(p, "deadlock", p->graph->nodes[w->path[from]], NULL, "%sstep %u: none of them ever runs", text, w->path[from]);
}

// Depth first from `start`; true: there is a cycle, and it has been told.
static bool find_cycle(Proof *p, Walk *w, uint32_t start) {
  size_t n = 0;
  w->path[n++] = start;
  w->next[0] = 0;
  w->state[start] = 1;
  while (n) {
    uint32_t at = w->path[n - 1], to;
    if (!edge(w, p->graph->nodes[at], w->next[n - 1]++, &to)) {
      w->state[at] = 2;
      n--;
    } else if (to != UINT32_MAX && w->state[to] == 1) {
      size_t from = 0;
      while (w->path[from] != to) from++;
      tell_cycle(p, w, from, n);
      return true;
    } else if (to != UINT32_MAX && !w->state[to]) {
      w->state[to] = 1;
      w->next[n] = 0;
      w->path[n++] = to;
    }
  }
  return false;
}

static void check_cycles(Proof *p) {
  const Graph *g = p->graph;
  Walk w = {g, ARENA_ARRAY(p->arena, uint32_t, g->n_nodes), ARENA_ARRAY(p->arena, uint8_t, g->n_nodes), ARENA_ARRAY(p->arena, uint32_t, g->n_nodes),
            ARENA_ARRAY(p->arena, int, g->n_nodes)};
  uint32_t last[PHASE_COUNT][QUEUE_COUNT];
  memset(last, 0xff, sizeof last);
  for (size_t i = 0; i < g->n_nodes; i++) {
    uint32_t *at = &last[g->nodes[i]->phase][g->nodes[i]->queue];
    w.before[i] = *at;
    *at = (uint32_t)i;
  }
  for (size_t i = 0; i < g->n_nodes; i++)
    if (!w.state[i] && find_cycle(p, &w, (uint32_t)i)) return;
}

void proof_waits(Proof *p) {
  const Graph *g = p->graph;
  bool later = false;
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *node = g->nodes[i];
    if (node->id != i || (unsigned)node->queue >= QUEUE_COUNT || (unsigned)node->phase >= PHASE_COUNT) return;   // "structure" says so
    for (int k = 0; k < node->n_waits; k++) later |= node->waits[k] >= i;
  }
  if (later) check_cycles(p);
  uint32_t *waiter = ARENA_ARRAY(p->arena, uint32_t, g->n_nodes);      // per node: who waited for it last, plus 1
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *node = g->nodes[i];
    p->counts.waits += (size_t)node->n_waits;
    for (int k = 0; k < node->n_waits; k++) {
      uint32_t to = node->waits[k];
      const char *what = wait_defect(g, node, to);
      if (!what && waiter[to] == i + 1) what = "twice";
      if (!what) waiter[to] = (uint32_t)i + 1;
      else proof_defect(p, "bad_wait", node, NULL, "step %u '%s' (%s, %s) waits for step %u, %s", node->id, node->name, queue_name(node->queue),
                        phase_name(node->phase), to, what);
    }
  }
}

// ---- Clocks -------------------------------------------------------------------------------------------------------------------

static void advance(Clock *clock, const Clock *to) {
  for (int q = 0; q < QUEUE_COUNT; q++)
    if (to->at[q] > clock->at[q]) clock->at[q] = to->at[q];
}

static void set_clocks(Order *o) {
  const Graph *g = o->proof->graph;
  Clock begun = {{0}}, ended = {{0}}, last[QUEUE_COUNT] = {{{0}}};     // at the phase's start; of all so far; of the last step of each queue
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *node = g->nodes[i];
    if (i && node->phase != g->nodes[i - 1]->phase) begun = ended;
    Clock *clock = &o->clocks[i];
    *clock = begun;
    advance(clock, &last[node->queue]);
    for (int k = 0; k < node->n_waits; k++)
      if (!wait_defect(g, node, node->waits[k])) advance(clock, &o->clocks[node->waits[k]]);
    clock->at[node->queue] = o->position[i] = ++ended.at[node->queue];
    last[node->queue] = *clock;
  }
}

// ---- Collectives --------------------------------------------------------------------------------------------------------------

// Each must happen before the next: then their order is the same on all ranks.
static void check_collectives(Order *o) {
  const Graph *g = o->proof->graph;
  const Node *before = NULL, *first = NULL;
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *node = g->nodes[i];
    if (!(node->op->flags & OP_COLLECTIVE)) continue;
    if (!first) first = node;
    if (before && !happens_before(o, before->id, node))
      proof_defect(o->proof, "deadlock", node, node->n_inputs ? node->inputs[0] : NULL,
                   "no wait orders %s '%s' of step %u (%s) and %s '%s' of step %u (%s): one rank may enter the first of them and another rank the second, "
                   "and then each waits for the other", before->op->name, before->name, before->id, queue_name(before->queue), node->op->name, node->name, node->id,
                   queue_name(node->queue));
    else if (node->queue != first->queue)
      proof_defect(o->proof, "queue", node, node->n_inputs ? node->inputs[0] : NULL,
                   "step %u '%s' is a collective on queue %s, and step %u '%s' one on queue %s: all collectives lie on one queue", node->id, node->name,
                   queue_name(node->queue), first->id, first->name, queue_name(first->queue));
    before = node;
    o->proof->counts.collectives++;
  }
}

// ---- Bytes --------------------------------------------------------------------------------------------------------------------

static size_t first_ending_after(const Spans *s, int64_t at) {
  size_t lo = 0, hi = s->n;
  while (lo < hi) {
    size_t mid = (lo + hi) / 2;
    if (s->items[mid].hi <= at) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

// Makes room for `more` spans at `at` and returns the first of them, zeroed.
static Span *insert(Arena *arena, Spans *s, size_t at, size_t more) {
  if (s->n + more > s->capacity) {
    s->capacity = 2 * (s->n + more) + 16;
    Span *items = ARENA_ARRAY(arena, Span, s->capacity);
    if (s->n) memcpy(items, s->items, s->n * sizeof *items);
    s->items = items;
  }
  memmove(s->items + at + more, s->items + at, (s->n - at) * sizeof *s->items);
  memset(s->items + at, 0, more * sizeof *s->items);
  s->n += more;
  return s->items + at;
}

// A span ends at `at`, and the next one begins there, if bytes on both sides of it are in one.
static void split(Arena *arena, Spans *s, int64_t at) {
  size_t i = first_ending_after(s, at);
  if (i >= s->n || s->items[i].lo >= at) return;
  Span *two = insert(arena, s, i, 1);
  two[0] = two[1];
  two[0].hi = two[1].lo = at;
}

// The spans in [lo, hi), none reaching out of it; where there are none, empty ones are made. Their number in *n.
static size_t spans_in(Arena *arena, Spans *s, int64_t lo, int64_t hi, size_t *n) {
  split(arena, s, lo);
  split(arena, s, hi);
  size_t first = first_ending_after(s, lo), i = first;
  for (int64_t at = lo; at < hi; i++) {
    int64_t next = i < s->n && s->items[i].lo < hi ? s->items[i].lo : hi;
    if (next > at) {
      Span *hole = insert(arena, s, i, 1);
      hole->lo = at;
      hole->hi = next;
    }
    at = s->items[i].hi;
  }
  *n = i - first;
  return first;
}

// What a step does to bytes; `value` NULL: its workspace.
typedef struct Access { const Node *node; const Value *value; const Buffer *buffer; int space; int64_t lo, hi; bool writes; } Access;

static void tell(Order *o, const Access *a, uint32_t other, bool other_writes) {
  if (o->told_node == a->node && o->told_other == other) return;
  o->told_node = a->node;
  o->told_other = other;
  const Node *node = a->node, *before = node_at(o, other);
  const char *code = a->writes ? "race" : "missing_wait", *name = a->value ? a->value->name : a->buffer->name, *does, *did;
  if (a->space == SPACE_GATES) {
    name = a->buffer->name;
    does = !a->writes ? "reads what is gathered in" : node->guard == GUARD_READ_BEGIN ? "gathers" : node->guard == GUARD_READ_END ? "releases" : "writes";
    did = !other_writes                        ? "reads what is gathered there"
          : before->guard == GUARD_READ_BEGIN ? "gathers it"
          : before->guard == GUARD_READ_END   ? "releases it"
                                              : "writes it";
  } else {
    does = a->writes ? a->value ? "writes" : "uses the workspace" : "reads";
    did = !other_writes ? "reads those bytes" : a->writes ? "writes those bytes, too" : "writes it";
  }
  proof_defect(o->proof, code, node, a->value, "step %u '%s' (%s) %s '%s', and no wait orders it with step %u '%s' (%s), which %s", node->id, node->name,
               queue_name(node->queue), does, name, other, before->name, queue_name(before->queue), did);
}

static void access_bytes(Order *o, const Access *a) {
  if (a->hi <= a->lo) return;
  size_t n, first = spans_in(o->proof->arena, &o->spaces[a->space], a->lo, a->hi, &n);
  Span *spans = o->spaces[a->space].items + first;
  uint32_t id = a->node->id;
  Queue queue = a->node->queue;
  o->proof->counts.accesses++;
  for (size_t i = 0; i < n; i++) {
    Span *s = &spans[i];
    for (int q = 0; q < QUEUE_COUNT; q++) {
      if (q == (int)queue) continue;
      if (s->wrote[q] && !happens_before(o, s->wrote[q] - 1, a->node)) tell(o, a, s->wrote[q] - 1, true);
      else if (a->writes && s->read[q] && !happens_before(o, s->read[q] - 1, a->node)) tell(o, a, s->read[q] - 1, false);
    }
    if (!a->writes) s->read[queue] = id + 1;
  }
  if (!a->writes) return;
  Spans *all = &o->spaces[a->space];               // what came before happens before this write, and need not be known any more
  *spans = (Span){.lo = a->lo, .hi = a->hi};
  spans->wrote[queue] = id + 1;
  memmove(spans + 1, spans + n, (all->n - first - n) * sizeof *spans);
  all->n -= n - 1;
}

static void access_buffer(Order *o, Access a, int32_t index, int64_t offset, int64_t bytes) {
  a.buffer = &o->proof->graph->buffers[index];
  a.space = a.buffer->scope * TIER_COUNT + a.buffer->tier;
  a.lo = a.buffer->offset_bytes + offset;
  a.hi = a.lo + bytes;
  access_bytes(o, &a);
}

static void access_gate(Order *o, Access a, int32_t region) {
  a.buffer = &o->proof->graph->buffers[region];
  a.space = SPACE_GATES;
  a.lo = region;
  a.hi = region + 1;
  access_bytes(o, &a);
}

// Is it the rank's own part of a region?
static bool is_own_part(const Proof *p, const Buffer *b, const Value *v) {
  int64_t part = b->bytes / p->ranks;
  return v->loc.rank_stride_bytes == part && v->loc.offset_bytes + value_bytes(v) <= part;
}

// The parts of all ranks count as touched: then what holds, holds for every rank.
static void access_value(Order *o, const Node *node, const Value *v, bool writes) {
  Proof *p = o->proof;
  if (!v || !p->placed[v->id] || !value_bytes(v)) return;
  const Buffer *b = &p->graph->buffers[v->loc.buffer];
  Access a = {.node = node, .value = v, .writes = writes};
  access_buffer(o, a, v->loc.buffer, v->loc.offset_bytes, (p->ranks - 1) * v->loc.rank_stride_bytes + value_bytes(v));
  a.writes = false;
  if (b->scope == SCOPE_PROCESS && p->ranks > 1 && !is_own_part(p, b, v)) access_gate(o, a, v->loc.buffer);
}

// Does nothing run for this output: is it bytes of an input, and lies there? (runtime/step_program.c asks the same.)
static bool is_view_in_place(const Proof *p, const Node *node, int output) {
  const Value *v = node->outputs[output];
  Alias alias;
  if (!node_alias(node, output, ALIAS_VIEW, &alias)) return false;
  const Value *in = node->inputs[alias.input];
  if (!in || !p->placed[in->id] || !p->placed[v->id] || in->loc.buffer != v->loc.buffer) return false;
  int64_t stride = alias.rank_relative ? value_bytes(v) : 0;
  return v->loc.offset_bytes == in->loc.offset_bytes + alias.offset_bytes && v->loc.rank_stride_bytes == in->loc.rank_stride_bytes + stride;
}

// Nor for a Join whose parts lie where it wants them.
static bool is_joined_in_place(const Proof *p, const Node *node) {
  const Value *whole = node->op == &op_Join ? node->outputs[0] : NULL;
  for (int i = 0; whole && i < node->n_inputs; i++) {
    const Value *part = node->inputs[i];
    Alias a;
    if (!part || !p->placed[part->id] || !node->op->alias(node, 0, i, &a) || part->loc.buffer != whole->loc.buffer ||
        part->loc.offset_bytes != whole->loc.offset_bytes + a.offset_bytes || part->loc.rank_stride_bytes != whole->loc.rank_stride_bytes)
      return false;
  }
  return whole != NULL;
}

static void access_step(Order *o, const Node *node) {
  const Graph *g = o->proof->graph;
  bool runs = node->guard != GUARD_READ_BEGIN && node->op != &op_Release && !is_joined_in_place(o->proof, node), views = node->n_outputs > 0;
  bool *in_place = ARENA_ARRAY(o->proof->arena, bool, node->n_outputs);
  for (int i = 0; i < node->n_outputs; i++) {
    in_place[i] = !node->outputs[i] || is_view_in_place(o->proof, node, i);
    views &= in_place[i];
  }
  for (int i = 0; runs && !views && i < node->n_inputs; i++) access_value(o, node, node->inputs[i], false);
  const int32_t temporaries[2] = {node->workspace, node->scratch};
  for (int t = 0; runs && t < 2; t++)
    if (temporaries[t] >= 0 && (size_t)temporaries[t] < g->n_buffers)
      access_buffer(o, (Access){.node = node, .writes = true}, temporaries[t], 0, g->buffers[temporaries[t]].bytes);
  for (int i = 0; runs && i < node->n_outputs; i++)
    if (!in_place[i]) access_value(o, node, node->outputs[i], true);
  if (node->guard != GUARD_NONE) access_gate(o, (Access){.node = node, .value = node->n_inputs ? node->inputs[0] : NULL, .writes = true}, node->region);
}

void proof_order(Proof *proof) {
  const Graph *g = proof->graph;
  Order o = {.proof = proof, .clocks = ARENA_ARRAY(proof->arena, Clock, g->n_nodes), .position = ARENA_ARRAY(proof->arena, uint32_t, g->n_nodes)};
  set_clocks(&o);
  check_collectives(&o);
  for (size_t i = 0; i < g->n_nodes; i++) access_step(&o, g->nodes[i]);
}
