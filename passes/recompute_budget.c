// recompute budget=SIZE: keeps what saves most time per byte until what is alive fits.
//
// Between two cuts whose values are kept, the cheapest choice at a price of `rate` bytes a second is a minimum cut: kept values cost their bytes, nodes that
// run again their time times the rate, and what runs again needs its operands. All choices on the lower envelope of (bytes kept, seconds added) are found
// by cutting at the slope between two of them. Moves along the envelopes of all segments, the cheapest seconds per byte first and earlier segments first
// among equals (their bytes are alive longest), are taken until the replay fits. Cuts: those of the blocks, and those with the smallest peak; of two that fit,
// the one that adds less time.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "recompute.h"

// ---- Maximum flow (Dinic) -----------------------------------------------------------------------------------------------------------

static const int64_t NO_LIMIT = INT64_MAX / 4;

typedef struct Edge { uint32_t to; int64_t left; } Edge;   // edge e's opposite is e ^ 1
typedef struct Flow {           // its tables serve one network after the other
  Arena *arena;
  Edge *edges;
  size_t n_edges, capacity;
  uint32_t *tails;             // per edge
  size_t tails_capacity;
  uint32_t *of, *first;        // edges by node, after flow_index: of[first[v]] ... of[first[v + 1] - 1]
  uint32_t *level, *next, *path;
  size_t room_edges, room_nodes;       // that these have room for
  uint32_t n, source, sink;
} Flow;

static void flow_begin(Flow *f, uint32_t n) {
  f->n_edges = 0;
  f->n = n;
  f->source = 0;
  f->sink = 1;
}

static void flow_edge(Flow *f, uint32_t from, uint32_t to, int64_t limit) {
  size_t n = f->n_edges;
  ARENA_PUSH(f->arena, f->edges, f->n_edges, f->capacity, ((Edge){to, limit}));
  ARENA_PUSH(f->arena, f->tails, n, f->tails_capacity, from);
  ARENA_PUSH(f->arena, f->edges, f->n_edges, f->capacity, ((Edge){from, 0}));
  ARENA_PUSH(f->arena, f->tails, n, f->tails_capacity, to);
}

static void flow_make_room(Flow *f) {
  if (f->n > f->room_nodes) {
    f->room_nodes = 2 * (size_t)f->n;
    f->first = ARENA_ARRAY(f->arena, uint32_t, f->room_nodes + 1);
    f->level = ARENA_ARRAY(f->arena, uint32_t, f->room_nodes);
    f->next = ARENA_ARRAY(f->arena, uint32_t, f->room_nodes);
    f->path = ARENA_ARRAY(f->arena, uint32_t, f->room_nodes);
  }
  if (f->n_edges > f->room_edges) {
    f->room_edges = 2 * f->n_edges;
    f->of = ARENA_ARRAY(f->arena, uint32_t, f->room_edges);
  }
}

static void flow_index(Flow *f) {
  flow_make_room(f);
  memset(f->first, 0, (f->n + 1) * sizeof *f->first);
  for (size_t e = 0; e < f->n_edges; e++) f->first[f->tails[e]]++;
  for (uint32_t v = 0, at = 0; v <= f->n; v++) {
    uint32_t here = v < f->n ? f->first[v] : 0;
    f->first[v] = at;
    at += here;
  }
  memcpy(f->next, f->first, f->n * sizeof *f->next);
  for (size_t e = 0; e < f->n_edges; e++) f->of[f->next[f->tails[e]]++] = (uint32_t)e;
}

// Distances from the source along edges that are not full; false: the sink is out of reach. `level` then says which side of the cut a node is on.
static bool flow_levels(Flow *f) {
  memset(f->level, 0xff, f->n * sizeof *f->level);
  uint32_t *queue = f->path, n = 0;
  f->level[f->source] = 0;
  queue[n++] = f->source;
  for (uint32_t k = 0; k < n; k++)
    for (uint32_t i = f->first[queue[k]]; i < f->first[queue[k] + 1]; i++) {
      const Edge *e = &f->edges[f->of[i]];
      if (e->left <= 0 || f->level[e->to] != UINT32_MAX) continue;
      f->level[e->to] = f->level[queue[k]] + 1;
      queue[n++] = e->to;
    }
  return f->level[f->sink] != UINT32_MAX;
}

// One augmenting path in the level graph; false: there is none any more.
static bool flow_augment(Flow *f) {
  uint32_t depth = 0, at = f->source;
  while (at != f->sink) {
    while (f->next[at] < f->first[at + 1]) {
      const Edge *e = &f->edges[f->of[f->next[at]]];
      if (e->left > 0 && f->level[e->to] == f->level[at] + 1) break;
      f->next[at]++;
    }
    if (f->next[at] < f->first[at + 1]) {
      f->path[depth++] = f->of[f->next[at]];
      at = f->edges[f->path[depth - 1]].to;
    } else if (!depth) {
      return false;
    } else {
      at = f->tails[f->path[--depth]];
      f->next[at]++;
    }
  }
  int64_t most = NO_LIMIT;
  for (uint32_t i = 0; i < depth; i++)
    if (f->edges[f->path[i]].left < most) most = f->edges[f->path[i]].left;
  for (uint32_t i = 0; i < depth; i++) {
    f->edges[f->path[i]].left -= most;
    f->edges[f->path[i] ^ 1].left += most;
  }
  return true;
}

static void flow_run(Flow *f) {
  while (flow_levels(f)) {
    memcpy(f->next, f->first, f->n * sizeof *f->next);
    while (flow_augment(f)) {}
  }
}

// ---- A segment ------------------------------------------------------------------------------------------------------------------------

enum { CHOICES_MAX = 33 };                       // of a segment

typedef struct Choice { int64_t bytes; double seconds; bool *kept; } Choice;   // kept: per root made in the segment, by its place in `roots`

typedef struct Segment {
  size_t from, to;             // places in `forward`
  uint32_t *roots;             // values made here
  size_t n_roots;
  Choice choices[CHOICES_MAX]; // from most bytes to fewest
  int n_choices;
} Segment;

typedef struct Budget {
  const Recompute *r;
  Flow flow;
  uint32_t *number;            // per value: of its variable in the flow, or UINT32_MAX
  Segment *segments;
  size_t n_segments;
} Budget;

// Variables of the flow, true on the source's side: node i of the segment runs again (2 + i); a value is there for backward. Those of roots follow the nodes'.
static Choice choose(Budget *b, const Segment *s, double rate) {
  const Recompute *r = b->r;
  uint32_t n_nodes = (uint32_t)(s->to - s->from);
  Flow *f = &b->flow;
  flow_begin(f, 2 + n_nodes + (uint32_t)s->n_roots);
  for (size_t k = 0; k < s->n_roots; k++) b->number[s->roots[k]] = 2 + n_nodes + (uint32_t)k;
  for (size_t k = 0; k < s->n_roots; k++) {
    const Value *v = r->graph->values[s->roots[k]];
    uint32_t at = b->number[v->id], node = 2 + r->made[v->id] - (uint32_t)s->from;
    if (r->needed[v->id]) flow_edge(f, f->source, at, NO_LIMIT);
    flow_edge(f, at, r->fixed[v->id] ? f->sink : node, value_bytes(v));
  }
  for (uint32_t i = 0; i < n_nodes; i++) {
    const Node *n = r->forward[s->from + i];
    double price = r->seconds[n->id] * rate;
    flow_edge(f, 2 + i, f->sink, price < (double)(NO_LIMIT / 2) ? (int64_t)price : NO_LIMIT / 2);
    for (int k = 0; k < n->n_inputs; k++) {
      const Value *v = recompute_input(n, k), *root = v ? r->roots[v->id] : NULL;
      if (v && !r->resident[v->id] && b->number[root->id] != UINT32_MAX) flow_edge(f, 2 + i, b->number[root->id], NO_LIMIT);
    }
  }
  flow_index(f);
  flow_run(f);
  Choice c = {.kept = ARENA_ARRAY(r->arena, bool, s->n_roots)};
  for (uint32_t i = 0; i < n_nodes; i++)
    if (f->level[2 + i] != UINT32_MAX) c.seconds += r->seconds[r->forward[s->from + i]->id];
  for (size_t k = 0; k < s->n_roots; k++) {
    uint32_t id = s->roots[k], node = 2 + r->made[id] - (uint32_t)s->from;
    bool there = f->level[2 + n_nodes + k] != UINT32_MAX, again = !r->fixed[id] && f->level[node] != UINT32_MAX;
    c.kept[k] = there && !again;
    if (c.kept[k]) c.bytes += value_bytes(r->graph->values[id]);
    b->number[id] = UINT32_MAX;
  }
  return c;
}

// The choices between two, at most `room` of them.
static void fill_between(Budget *b, Segment *s, const Choice *most, const Choice *least, int room) {
  if (room < 1 || most->bytes <= least->bytes || least->seconds <= most->seconds) return;
  double slope = (least->seconds - most->seconds) / (double)(most->bytes - least->bytes);
  Choice c = choose(b, s, 1 / slope);
  double line = most->seconds + slope * (double)(most->bytes - c.bytes);
  if (c.bytes >= most->bytes || c.bytes <= least->bytes || c.seconds >= line * (1 - 1e-9)) return;
  fill_between(b, s, most, &c, (room - 1) / 2);
  s->choices[s->n_choices++] = c;
  fill_between(b, s, &c, least, (room - 1) / 2);
}

static void find_choices(Budget *b, Segment *s) {
  Choice most = choose(b, s, 1e30), least = choose(b, s, 0);
  s->choices[s->n_choices++] = most;
  fill_between(b, s, &most, &least, CHOICES_MAX - 2);
  if (least.bytes < most.bytes) s->choices[s->n_choices++] = least;
}

// ---- All segments ---------------------------------------------------------------------------------------------------------------------

static void find_segments(Budget *b, const bool *cuts, const bool *boundary) {
  const Recompute *r = b->r;
  b->segments = ARENA_ARRAY(r->arena, Segment, r->n_forward + 1);
  b->number = ARENA_ARRAY(r->arena, uint32_t, r->n_values);
  memset(b->number, 0xff, r->n_values * sizeof *b->number);
  uint32_t *segment_of = ARENA_ARRAY(r->arena, uint32_t, r->n_forward);
  for (size_t i = 0; i < r->n_forward; i++) {
    if (!i || cuts[i - 1]) b->segments[b->n_segments++] = (Segment){.from = i};
    segment_of[i] = (uint32_t)b->n_segments - 1;
    b->segments[b->n_segments - 1].to = i + 1;
  }
  for (int round = 0; round < 2; round++) {
    for (size_t i = 0; i < r->n_values; i++) {
      if (r->resident[i] || boundary[i] || r->made[i] == UINT32_MAX) continue;
      Segment *s = &b->segments[segment_of[r->made[i]]];
      if (round) s->roots[s->n_roots] = (uint32_t)i;
      s->n_roots++;
    }
    for (size_t k = 0; k < b->n_segments && !round; k++) {
      b->segments[k].roots = ARENA_ARRAY(r->arena, uint32_t, b->segments[k].n_roots);
      b->segments[k].n_roots = 0;
    }
  }
}

typedef struct Move { uint32_t segment; int to; double price; } Move;

static int by_price(const void *a, const void *b) {
  const Move *x = a, *y = b;
  if (x->price != y->price) return x->price < y->price ? -1 : 1;
  if (x->segment != y->segment) return x->segment < y->segment ? -1 : 1;
  return x->to - y->to;
}

static bool *keep_after(const Budget *b, const bool *boundary, const Move *moves, size_t n) {
  const Recompute *r = b->r;
  bool *kept = arena_copy(r->arena, boundary, r->n_values * sizeof *kept);
  int *at = ARENA_ARRAY(r->arena, int, b->n_segments);
  for (size_t i = 0; i < n; i++)
    if (moves[i].to > at[moves[i].segment]) at[moves[i].segment] = moves[i].to;
  for (size_t s = 0; s < b->n_segments; s++) {
    const Segment *segment = &b->segments[s];
    for (size_t k = 0; k < segment->n_roots && segment->n_choices; k++)
      if (segment->choices[at[s]].kept[k]) kept[segment->roots[k]] = true;
  }
  return kept;
}

typedef struct Fit { bool *kept; int64_t peak_bytes; double seconds; } Fit;

static Fit fit_moves(const Budget *b, const bool *boundary, const Move *moves, size_t n) {
  bool *kept = keep_after(b, boundary, moves, n);
  const Replay replay = recompute_replay(b->r, kept);
  return (Fit){kept, replay.peak_bytes, replay.seconds};
}

// The fewest moves after which the replay fits, for these cuts; else all moves.
static Fit fit_cuts(const Recompute *r, const bool *cuts, int64_t budget) {
  Budget b = {.r = r, .flow = {.arena = r->arena}};
  bool *boundary = arena_copy(r->arena, r->fixed, r->n_values * sizeof *boundary), *at_cuts = recompute_keep_cuts(r, cuts);
  for (size_t i = 0; i < r->n_values; i++) boundary[i] |= at_cuts[i];
  find_segments(&b, cuts, boundary);
  Move *moves = NULL;
  size_t n = 0, capacity = 0;
  for (size_t s = 0; s < b.n_segments; s++) {
    find_choices(&b, &b.segments[s]);
    const Choice *c = b.segments[s].choices;
    for (int k = 1; k < b.segments[s].n_choices; k++)
      ARENA_PUSH(r->arena, moves, n, capacity, ((Move){(uint32_t)s, k, (c[k].seconds - c[k - 1].seconds) / (double)(c[k - 1].bytes - c[k].bytes)}));
  }
  if (n) qsort(moves, n, sizeof *moves, by_price);
  Fit best = fit_moves(&b, boundary, moves, n);
  for (size_t low = 0, high = n; best.peak_bytes <= budget && low < high;) {
    size_t middle = (low + high) / 2;
    Fit fit = fit_moves(&b, boundary, moves, middle);
    if (fit.peak_bytes > budget) {
      low = middle + 1;
    } else {
      high = middle;
      if (fit.seconds <= best.seconds) best = fit;
    }
  }
  return best;
}

Status recompute_keep_budget(const Recompute *r, int64_t budget, bool **kept) {
  bool *blocks, *least;
  *kept = recompute_keep_all(r);
  const Replay all = recompute_replay(r, *kept);
  if (all.peak_bytes <= budget) return STATUS_OK;
  recompute_find_blocks(r, &blocks);
  bool *minimum = recompute_keep_least(r, &least);
  const Replay smallest = recompute_replay(r, minimum);
  Fit fits[] = {fit_cuts(r, blocks, budget), fit_cuts(r, least, budget), {minimum, smallest.peak_bytes, smallest.seconds}};
  const Fit *best = NULL;
  int64_t nearest = INT64_MAX;
  for (size_t i = 0; i < sizeof fits / sizeof *fits; i++) {
    if (fits[i].peak_bytes < nearest) nearest = fits[i].peak_bytes;
    if (fits[i].peak_bytes <= budget && (!best || fits[i].seconds < best->seconds)) best = &fits[i];
  }
  if (!best)
    FAIL(RESOURCE, NULL, "--recompute budget=%" PRId64 ": activations alive at a time take %" PRId64 " bytes without recomputation and %" PRId64
         " at least with it, %" PRId64 " too many; smaller micro-batches need less", budget, all.peak_bytes, nearest, nearest - budget);
  *kept = best->kept;
  return STATUS_OK;
}
