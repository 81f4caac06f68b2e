// What a choice of kept values means: the order of steps with what backward computes again, and how many bytes are alive at a time. Linear in nodes.
#include <stdlib.h>
#include <string.h>

#include "../kernels/ops.h"
#include "recompute.h"
#include "same_bytes.h"

bool recompute_takes_copy(const Recompute *r, const bool *kept, const Value *v) {
  const Value *root = r->roots[v->id];
  return v->producer && !v->producer->backward && !r->resident[v->id] && !kept[root->id];
}

struct ReplayRoom {
  Replay replay;
  uint32_t *found;
  bool *read, *over;
  size_t *root;
  uint32_t *first, *last;
  int64_t *delta;
};

ReplayRoom *recompute_replay_room(const Recompute *r) {
  Arena *arena = r->arena;
  size_t n = 2 * r->n_values;
  ReplayRoom *room = ARENA_NEW(arena, ReplayRoom);
  room->replay = (Replay){.turns = ARENA_ARRAY(arena, Turn, 2 * r->n_nodes), .copied = ARENA_ARRAY(arena, bool, r->n_nodes),
                          .moved = ARENA_ARRAY(arena, bool, r->n_nodes), .copy_read = ARENA_ARRAY(arena, bool, r->n_values)};
  room->found = ARENA_ARRAY(arena, uint32_t, r->n_nodes);
  room->read = ARENA_ARRAY(arena, bool, r->n_values);
  room->over = ARENA_ARRAY(arena, bool, n);
  room->root = ARENA_ARRAY(arena, size_t, n);
  room->first = ARENA_ARRAY(arena, uint32_t, n);
  room->last = ARENA_ARRAY(arena, uint32_t, n);
  room->delta = ARENA_ARRAY(arena, int64_t, 2 * r->n_nodes + 2);
  return room;
}

static void room_clear(const Recompute *r) {
  ReplayRoom *room = r->room;
  size_t n = 2 * r->n_values;
  memset(room->replay.copied, 0, r->n_nodes);
  memset(room->replay.moved, 0, r->n_nodes);
  memset(room->replay.copy_read, 0, r->n_values);
  memset(room->read, 0, r->n_values);
  memset(room->over, 0, n);
  memset(room->first, 0xff, n * sizeof *room->first);
  memset(room->last, 0, n * sizeof *room->last);
  memset(room->delta, 0, (2 * r->n_nodes + 2) * sizeof *room->delta);
  for (size_t i = 0; i < n; i++) room->root[i] = i;
}

// ---- Order --------------------------------------------------------------------------------------------------------------------

typedef struct Order {
  const Recompute *r;
  const bool *kept;
  Replay *replay;
  uint32_t *found;             // nodes to be copied before the one at hand
  size_t n_found;
} Order;

static void want_copy(Order *o, const Value *v) {
  if (!v || !recompute_takes_copy(o->r, o->kept, v)) return;
  o->replay->copy_read[v->id] = true;
  uint32_t p = v->producer->id;
  if (o->replay->copied[p]) return;
  o->replay->copied[p] = true;
  o->found[o->n_found++] = p;
}

static int by_id(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return x < y ? -1 : x > y;
}

static void add_turn(Replay *p, uint32_t node, bool copy) { p->turns[p->n_turns++] = (Turn){node, copy}; }

// Copies of all that `n` needs and that has none yet, in the order of their nodes, and then `n`.
static void add_backward(Order *o, const Node *n) {
  const Graph *g = o->r->graph;
  o->n_found = 0;
  for (int i = 0; i < n->n_inputs; i++) want_copy(o, n->inputs[i]);
  for (size_t k = 0; k < o->n_found; k++) {
    const Node *p = g->nodes[o->found[k]];
    for (int i = 0; i < p->n_inputs; i++) want_copy(o, recompute_input(p, i));
  }
  qsort(o->found, o->n_found, sizeof *o->found, by_id);
  for (size_t k = 0; k < o->n_found; k++) add_turn(o->replay, o->found[k], true);
  add_turn(o->replay, n->id, false);
}

// ---- What forward can do without --------------------------------------------------------------------------------------------------

static void mark(bool *read, const Value *v) {
  if (v) read[v->id] = true;
}

static void find_moved(const Recompute *r, const bool *kept, Replay *p) {
  const Graph *g = r->graph;
  bool *read = r->room->read;  // the node's own, not its copy's
  Value *const reports[] = {g->loss, g->loss_count, g->loss_report, g->norm_report, g->inverse_count};
  for (size_t i = 0; i < sizeof reports / sizeof *reports; i++) mark(read, reports[i]);
  for (size_t i = 0; i < g->n_outputs; i++) mark(read, g->outputs[i]);
  for (size_t t = 0; t < p->n_turns; t++) {
    const Node *n = g->nodes[p->turns[t].node];
    for (int i = 0; i < n->n_inputs && (p->turns[t].copy || n->backward); i++) {
      const Value *v = p->turns[t].copy ? recompute_input(n, i) : n->inputs[i];
      if (v && !recompute_takes_copy(r, kept, v)) read[v->id] = true;
    }
  }
  for (size_t i = r->n_nodes; i-- > 0;) {
    const Node *n = g->nodes[i];
    if (n->backward) continue;
    bool alive = n->op->flags & OP_SIDE_EFFECT;
    for (int o = 0; o < n->n_outputs && !alive; o++) alive = n->outputs[o] && (read[n->outputs[o]->id] || n->outputs[o]->carry || n->outputs[o]->role != ROLE_ACTIVATION);
    p->moved[i] = p->copied[i] && !alive;
    for (int k = 0; k < n->n_inputs && alive; k++) mark(read, n->inputs[k]);
  }
  size_t kept_turns = 0;
  for (size_t t = 0; t < p->n_turns; t++)
    if (p->turns[t].copy || !p->moved[p->turns[t].node]) p->turns[kept_turns++] = p->turns[t];
  p->n_turns = kept_turns;
}

// ---- Bytes alive ------------------------------------------------------------------------------------------------------------------

// Values of nodes have the numbers of their ids; of copies, n_values more.
typedef struct Live {
  const Recompute *r;
  const bool *kept;
  size_t *root;                // per number: what its bytes are
  uint32_t *first, *last;      // per root: turns
  bool *over;                  // per root: lies where an input lay that ends there
} Live;

static size_t number_read(const Live *l, const Turn *turn, const Node *n, int i) {
  const Value *v = turn->copy ? recompute_input(n, i) : n->inputs[i];
  if (!v) return SIZE_MAX;
  bool copy = (turn->copy || n->backward) && recompute_takes_copy(l->r, l->kept, v);
  return l->root[v->id + (copy ? l->r->n_values : 0)];
}

static bool counts(const Recompute *r, const Value *v) {
  return (v->role == ROLE_ACTIVATION && !(v->producer && r->resident[v->id])) || v->role == ROLE_INPUT;
}

static void follow_turn(Live *l, const Turn *turn, uint32_t at) {
  const Node *n = l->r->graph->nodes[turn->node];
  size_t shift = turn->copy ? l->r->n_values : 0;
  for (int i = 0; i < n->n_inputs; i++) {
    size_t read = number_read(l, turn, n, i);
    if (read != SIZE_MAX) l->last[read] = at;
  }
  for (int o = 0; o < n->n_outputs; o++) {
    const Value *v = n->outputs[o];
    Alias a;
    if (!v) continue;
    if (node_alias(n, o, ALIAS_VIEW, &a)) {
      size_t of = number_read(l, turn, n, a.input);
      l->root[v->id + shift] = of == SIZE_MAX ? v->id + shift : of;
    } else {
      l->first[v->id + shift] = l->last[v->id + shift] = at;
    }
  }
}

// Where an elementwise result takes the place of an operand that is read for the last time, one of them counts.
static void find_overwritten(Live *l, const Turn *turn, uint32_t at, int64_t *delta) {
  const Recompute *r = l->r;
  const Node *n = r->graph->nodes[turn->node];
  for (int o = 0; o < n->n_outputs && n->op->alias; o++) {
    const Value *v = n->outputs[o];
    for (int i = 0; v && i < n->n_inputs; i++) {
      Alias a;
      if (!n->inputs[i] || !n->op->alias(n, o, i, &a) || a.kind != ALIAS_INPLACE) continue;
      size_t read = number_read(l, turn, n, i);
      if (read == SIZE_MAX || l->last[read] != at || l->over[read]) continue;
      const Value *in = r->graph->values[read % r->n_values];
      if (!counts(r, in) || in->role == ROLE_INPUT || value_bytes(in) != value_bytes(v)) continue;
      l->over[read] = true;
      delta[at] -= value_bytes(v);
      delta[at + 1] += value_bytes(v);
      break;
    }
  }
}

static int64_t peak(const Recompute *r, const bool *kept, const Replay *p) {
  size_t n = 2 * r->n_values;
  Live l = {.r = r, .kept = kept, .root = r->room->root, .first = r->room->first, .last = r->room->last, .over = r->room->over};
  int64_t *delta = r->room->delta, now = 0, most = 0;
  for (size_t i = 0; i < r->n_values; i++)
    if (r->graph->values[i]->role == ROLE_INPUT) l.first[i] = 0;
  for (size_t t = 0; t < p->n_turns; t++) follow_turn(&l, &p->turns[t], (uint32_t)t);
  for (size_t i = 0; i < n; i++) {
    const Value *v = r->graph->values[i % r->n_values];
    if (l.first[i] == UINT32_MAX || !counts(r, v)) continue;
    delta[l.first[i]] += value_bytes(v);
    delta[l.last[i] + 1] -= value_bytes(v);
  }
  for (size_t t = 0; t < p->n_turns; t++) find_overwritten(&l, &p->turns[t], (uint32_t)t, delta);
  for (size_t t = 0; t < p->n_turns; t++) {
    now += delta[t];
    if (now > most) most = now;
  }
  return most;
}

Replay recompute_replay(const Recompute *r, const bool *kept) {
  room_clear(r);
  Replay p = r->room->replay;
  Order o = {.r = r, .kept = kept, .replay = &p, .found = r->room->found};
  for (size_t i = 0; i < r->n_nodes; i++) {
    const Node *n = r->graph->nodes[i];
    if (n->backward) add_backward(&o, n);
    else add_turn(&p, n->id, false);
  }
  find_moved(r, kept, &p);
  for (size_t i = 0; i < r->n_nodes; i++)
    if (p.copied[i] && !p.moved[i]) p.seconds += r->seconds[i];
  p.peak_bytes = peak(r, kept, &p);
  return p;
}
