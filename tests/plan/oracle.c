#include "oracle.h"

#include <stdlib.h>
#include <string.h>

#include "../../ir/op.h"
#include "../../kernels/ops.h"

enum { RANKS_MAX = 4, ROUNDS_MAX = 16, EPOCHS_MAX = 64, LOOPS = 2 };

// Bytes of one rank's arena (space = rank) or of the shared one (space = ranks).
typedef struct Touch { int space; int64_t lo, hi; bool writes; const Value *value; } Touch;

typedef struct Touches { Touch *items; size_t n, capacity; } Touches;

static void push(Touches *t, Touch touch) {
  if (t->n == t->capacity) {
    t->capacity = 2 * t->capacity + 8;
    t->items = realloc(t->items, t->capacity * sizeof *t->items);
    if (!t->items) abort();
  }
  t->items[t->n++] = touch;
}

// ---- What a step touches ------------------------------------------------------------------------------------------------------

static int ranks_of(const Graph *g) { return g->mesh.n_axes ? g->mesh.axes[0].size : 1; }

static Touch touch_of(const Graph *g, const Value *v, int rank, bool writes) {
  const Buffer *b = &g->buffers[v->loc.buffer];
  int64_t lo = b->offset_bytes + v->loc.offset_bytes + rank * v->loc.rank_stride_bytes;
  return (Touch){b->scope == SCOPE_PROCESS ? ranks_of(g) : rank, lo, lo + value_bytes(v), writes, v};
}

static bool lies_in(const Graph *g, const Value *out, const Value *in, const Alias *a, int rank) {
  if (!in || in->loc.buffer < 0 || out->loc.buffer < 0) return false;
  Touch x = touch_of(g, in, rank, false), y = touch_of(g, out, rank, false);
  return x.space == y.space && y.lo == x.lo + a->offset_bytes + (a->rank_relative ? rank * value_bytes(out) : 0);
}

static bool is_view(const Graph *g, const Node *n, int o, int rank) {
  Alias a;
  return node_alias(n, o, ALIAS_VIEW, &a) && lies_in(g, n->outputs[o], n->inputs[a.input], &a, rank);
}

static bool computes(const Graph *g, const Node *n, int rank) {
  if (n->guard == GUARD_READ_BEGIN || !strcmp(n->op->name, "Release")) return false;
  for (int o = 0; o < n->n_outputs; o++)
    if (n->outputs[o] && !is_view(g, n, o, rank)) return true;
  return n->n_outputs == 0;
}

static void touches_of(const Graph *g, const Node *n, int rank, Touches *out) {
  out->n = 0;
  if (!computes(g, n, rank)) return;
  for (int i = 0; i < n->n_inputs; i++)
    if (n->inputs[i] && n->inputs[i]->loc.buffer >= 0) push(out, touch_of(g, n->inputs[i], rank, false));
  for (int o = 0; o < n->n_outputs; o++)
    if (n->outputs[o] && n->outputs[o]->loc.buffer >= 0 && !is_view(g, n, o, rank)) push(out, touch_of(g, n->outputs[o], rank, true));
  for (int t = 0; t < 2; t++) {
    int32_t index = t ? n->scratch : n->workspace;
    if (index < 0) continue;
    const Buffer *b = &g->buffers[index];
    push(out, (Touch){b->scope == SCOPE_PROCESS ? ranks_of(g) : rank, b->offset_bytes, b->offset_bytes + b->bytes, true, NULL});
  }
}

static bool meet(const Touches *a, const Touches *b) {
  for (size_t i = 0; i < a->n; i++)
    for (size_t k = 0; k < b->n; k++)
      if (a->items[i].space == b->items[k].space && a->items[i].lo < b->items[k].hi && b->items[k].lo < a->items[i].hi &&
          (a->items[i].writes || b->items[k].writes))
        return true;
  return false;
}

// Reads bytes of the region that other ranks own.
static bool reads_region(const Graph *g, const Node *n, int rank, int32_t region) {
  const Buffer *b = &g->buffers[region];
  int64_t part = b->bytes / ranks_of(g);
  for (int i = 0; computes(g, n, rank) && i < n->n_inputs; i++) {
    const Value *v = n->inputs[i];
    if (!v || v->loc.buffer != region) continue;
    int64_t lo = v->loc.offset_bytes + rank * v->loc.rank_stride_bytes;
    if (lo < rank * part || lo + value_bytes(v) > (rank + 1) * part) return true;
  }
  return false;
}

static bool guards_meet(const Graph *g, const Node *a, const Node *b, int rank) {
  if (a->guard == GUARD_NONE) return false;
  return (b->guard != GUARD_NONE && b->region == a->region) || reads_region(g, b, rank, a->region);
}

bool oracle_conflict(const Graph *g, const Node *a, const Node *b, int rank) {
  Touches x = {0}, y = {0};
  touches_of(g, a, rank, &x);
  touches_of(g, b, rank, &y);
  bool both = meet(&x, &y) || guards_meet(g, a, b, rank) || guards_meet(g, b, a, rank);
  free(x.items);
  free(y.items);
  return both;
}

// ---- The machine --------------------------------------------------------------------------------------------------------------

typedef struct State {
  uint8_t round[RANKS_MAX], pc[RANKS_MAX][QUEUE_COUNT];
} State;

typedef struct Seen { State state; uint64_t memory; bool used; } Seen;

typedef struct Oracle {
  const Graph *graph;
  int ranks, n_rounds, n_regions;
  Phase rounds[ROUNDS_MAX];
  uint32_t *queue[PHASE_COUNT][QUEUE_COUNT];     // node ids
  size_t length[PHASE_COUNT][QUEUE_COUNT];
  uint32_t *position;                            // per node, on its queue
  Touches *touches;                              // per rank and node
  bool *conflicts;                               // [node][node] of rank 0; [ranks]
  int64_t *cuts[RANKS_MAX + 1];                  // boundaries of pieces, per space
  size_t n_cuts[RANKS_MAX + 1], first_piece[RANKS_MAX + 1], n_pieces;
  int32_t region_of[EPOCHS_MAX];
  Seen *seen;
  size_t seen_size, states_max;
  bool finished;
  OracleResult result;
} Oracle;

// What changes: the state, the memory, the epochs. One per depth of the search.
typedef struct Frame { State state; uint32_t published[EPOCHS_MAX][RANKS_MAX], released[EPOCHS_MAX][RANKS_MAX]; uint64_t memory[]; } Frame;

static uint64_t mix(uint64_t h, uint64_t x) {
  h ^= x + UINT64_C(0x9e3779b97f4a7c15) + (h << 6) + (h >> 2);
  h *= UINT64_C(0xff51afd7ed558ccd);
  return h ^ (h >> 33);
}

static uint64_t mix_text(uint64_t h, const char *s) {
  for (; *s; s++) h = mix(h, (unsigned char)*s);
  return h;
}

static size_t piece_at(const Oracle *o, int space, int64_t at) {
  size_t lo = 0, hi = o->n_cuts[space];
  while (lo < hi) {
    size_t mid = (lo + hi) / 2;
    if (o->cuts[space][mid] < at) lo = mid + 1;
    else hi = mid;
  }
  return o->first_piece[space] + lo;
}

static uint64_t read_touch(const Oracle *o, const Frame *f, const Touch *t, uint64_t h) {
  if (t->hi <= t->lo) return h;
  for (size_t i = piece_at(o, t->space, t->lo), end = piece_at(o, t->space, t->hi); i < end; i++) h = mix(h, f->memory[i]);
  return h;
}

static void write_touch(const Oracle *o, Frame *f, const Touch *t, uint64_t h) {
  if (t->hi <= t->lo) return;
  for (size_t i = piece_at(o, t->space, t->lo), end = piece_at(o, t->space, t->hi), k = 0; i < end; i++) f->memory[i] = mix(h, k++);
}

static const Touches *touches(const Oracle *o, int rank, uint32_t id) { return &o->touches[(size_t)rank * o->graph->n_nodes + id]; }

// What the outputs become depends on name, rank (unless `all`: then on what all ranks bring) and everything that is read.
static uint64_t input_hash(const Oracle *o, const Frame *f, int rank, uint32_t id) {
  uint64_t h = mix_text(1, o->graph->nodes[id]->name);
  const Touches *t = touches(o, rank, id);
  for (size_t i = 0; i < t->n; i++)
    if (!t->items[i].writes) h = read_touch(o, f, &t->items[i], h);
  return h;
}

static void write_outputs(const Oracle *o, Frame *f, int rank, uint32_t id, uint64_t h) {
  const Touches *t = touches(o, rank, id);
  for (size_t i = 0; i < t->n; i++)
    if (t->items[i].writes) write_touch(o, f, &t->items[i], mix(h, i));
}

static int epoch_of(const Oracle *o, int32_t region) {
  for (int i = 0; i < o->n_regions; i++)
    if (o->region_of[i] == region) return i;
  abort();
}

static bool at_least(const uint32_t epochs[RANKS_MAX], int ranks, uint32_t own) {
  for (int r = 0; r < ranks; r++)
    if (epochs[r] < own) return false;
  return true;
}

// ---- Events -------------------------------------------------------------------------------------------------------------------

static const Node *next_node(const Oracle *o, const State *s, int rank, int q) {
  if (s->round[rank] >= o->n_rounds) return NULL;
  Phase phase = o->rounds[s->round[rank]];
  return s->pc[rank][q] < o->length[phase][q] ? o->graph->nodes[o->queue[phase][q][s->pc[rank][q]]] : NULL;
}

static bool wait_is_over(const Oracle *o, const State *s, int rank, uint32_t id) {
  const Node *n = o->graph->nodes[id];
  Phase phase = o->rounds[s->round[rank]];
  if (n->phase != phase) return n->phase < phase;
  return o->position[id] < s->pc[rank][n->queue];
}

// May the step begin? For a collective: has the rank come to it?
static bool may_begin(const Oracle *o, const Frame *f, int rank, const Node *n) {
  for (int i = 0; i < n->n_waits; i++)
    if (!wait_is_over(o, &f->state, rank, n->waits[i])) return false;
  if (n->guard == GUARD_READ_BEGIN || n->guard == GUARD_WRITE) {
    int e = epoch_of(o, n->region);
    const uint32_t *epochs = n->guard == GUARD_WRITE ? f->released[e] : f->published[e];
    return at_least(epochs, o->ranks, epochs[rank]);
  }
  return true;
}

static bool meets_others(const Node *n) { return (n->op->flags & OP_COLLECTIVE) && n->guard != GUARD_READ_BEGIN; }

static void feed(const Oracle *o, Frame *f, int rank) {
  const Graph *g = o->graph;
  Phase phase = o->rounds[f->state.round[rank]];
  for (size_t i = 0; i < g->n_values; i++) {
    const Value *v = g->values[i];
    bool fed = v->role == ROLE_INPUT ? phase == PHASE_MICRO : v->role == ROLE_CONTROL || (v->role == ROLE_CONST && f->state.round[rank] == 0);
    if (v->producer || v->loc.buffer < 0 || !fed) continue;
    Touch t = touch_of(g, v, rank, true);
    write_touch(o, f, &t, mix(mix_text((uint64_t)rank + 7, v->name), v->role == ROLE_CONST ? 0 : f->state.round[rank]));
  }
}

static void end_step(const Oracle *o, Frame *f, int rank, const Node *n) {
  if (n->guard == GUARD_READ_END) f->released[epoch_of(o, n->region)][rank]++;
  if (n->guard == GUARD_WRITE) f->published[epoch_of(o, n->region)][rank]++;
  f->state.pc[rank][n->queue]++;
  for (;;) {                                     // phases end together; some are empty
    for (int q = 0; q < QUEUE_COUNT; q++)
      if (next_node(o, &f->state, rank, q)) return;
    memset(f->state.pc[rank], 0, sizeof f->state.pc[rank]);
    if (++f->state.round[rank] >= o->n_rounds) return;
    feed(o, f, rank);
  }
}

static void run_alone(const Oracle *o, Frame *f, int rank, const Node *n) {
  if (touches(o, rank, n->id)->n) write_outputs(o, f, rank, n->id, mix(input_hash(o, f, rank, n->id), (uint64_t)rank));
  end_step(o, f, rank, n);
}

static void run_together(const Oracle *o, Frame *f, const Node *n) {
  uint64_t all = 0, own[RANKS_MAX];
  for (int r = 0; r < o->ranks; r++) all = mix(all, own[r] = input_hash(o, f, r, n->id));
  bool parts = !strcmp(n->op->name, "ReduceScatter");
  for (int r = 0; r < o->ranks; r++) write_outputs(o, f, r, n->id, parts ? mix(all, (uint64_t)r) : all);
  for (int r = 0; r < o->ranks; r++) end_step(o, f, r, n);
}

// ---- The search ---------------------------------------------------------------------------------------------------------------

// False: the state was seen, with the same memory.
static bool is_new(Oracle *o, const Frame *f) {
  uint64_t memory = 0, h = 0;
  for (size_t i = 0; i < o->n_pieces; i++) memory = mix(memory, f->memory[i]);
  for (size_t i = 0; i < sizeof f->state; i++) h = mix(h, ((const uint8_t *)&f->state)[i]);
  for (size_t at = h % o->seen_size;; at = (at + 1) % o->seen_size) {
    Seen *s = &o->seen[at];
    if (!s->used) {
      *s = (Seen){f->state, memory, true};
      o->result.states++;
      return true;
    }
    if (memcmp(&s->state, &f->state, sizeof s->state)) continue;
    if (s->memory != memory) o->result.found |= ORACLE_VALUE;
    return false;
  }
}

static void found_race(Oracle *o, const Node *a, const Node *b) {
  if (!(o->result.found & ORACLE_RACE)) {
    o->result.race[0] = a->id;
    o->result.race[1] = b->id;
  }
  o->result.found |= ORACLE_RACE;
}

// Steps that can run now must not meet: on one rank, and across ranks in what they share.
static void check_pairs(Oracle *o, const Node *able[RANKS_MAX][QUEUE_COUNT]) {
  for (int i = 0; i < o->ranks * QUEUE_COUNT; i++)
    for (int k = i + 1; k < o->ranks * QUEUE_COUNT; k++) {
      int r = i / QUEUE_COUNT, s = k / QUEUE_COUNT;
      const Node *a = able[r][i % QUEUE_COUNT], *b = able[s][k % QUEUE_COUNT];
      if (!a || !b) continue;
      bool race = r == s ? o->conflicts[((size_t)r * o->graph->n_nodes + a->id) * o->graph->n_nodes + b->id] : meet(touches(o, r, a->id), touches(o, s, b->id));
      if (race) found_race(o, a, b);
    }
}

static uint64_t outcome_of(const Oracle *o, const Frame *f) {
  const Graph *g = o->graph;
  uint64_t h = 0;
  for (int r = 0; r < o->ranks; r++)
    for (size_t i = 0; i < g->n_values; i++) {
      const Value *v = g->values[i];
      bool kept = (v->carry && v->producer && v->producer->phase == PHASE_UPDATE) || v == g->loss_report || v == g->norm_report;
      if (!kept || v->loc.buffer < 0) continue;
      Touch t = touch_of(g, v, r, false);
      h += read_touch(o, f, &t, mix_text((uint64_t)r, v->name));      // a sum: values may have other ids
    }
  return h;
}

static void finish(Oracle *o, const Frame *f) {
  uint64_t outcome = outcome_of(o, f);
  if (o->finished && o->result.outcome != outcome) o->result.found |= ORACLE_VALUE;
  o->result.outcome = outcome;
  o->finished = true;
}

static void visit(Oracle *o, const Frame *f, size_t frame_bytes) {
  if (o->result.found) return;                   // one finding is enough
  if (o->result.states >= o->states_max) {
    o->result.found |= ORACLE_BUDGET;
    return;
  }
  const Node *able[RANKS_MAX][QUEUE_COUNT] = {{NULL}}, *met = NULL;
  int n_able = 0, n_met = 0, n_done = 0;
  bool disagree = false;
  for (int r = 0; r < o->ranks; r++) {
    n_done += f->state.round[r] >= o->n_rounds;
    for (int q = 0; q < QUEUE_COUNT; q++) {
      const Node *n = next_node(o, &f->state, r, q);
      if (!n || !may_begin(o, f, r, n)) continue;
      able[r][q] = n;
      if (!meets_others(n)) n_able++;
      else if (met && met != n) disagree = true;
      else met = n, n_met++;
    }
  }
  if (n_done == o->ranks) {
    finish(o, f);
    return;
  }
  bool together = met && n_met == o->ranks && !disagree;
  if (disagree || (!n_able && !together)) o->result.found |= ORACLE_DEADLOCK;
  check_pairs(o, able);
  Frame *next = malloc(frame_bytes);
  if (!next) abort();
  for (int r = 0; r < o->ranks; r++)
    for (int q = 0; q < QUEUE_COUNT; q++) {
      if (!able[r][q] || meets_others(able[r][q])) continue;
      memcpy(next, f, frame_bytes);
      run_alone(o, next, r, able[r][q]);
      if (is_new(o, next)) visit(o, next, frame_bytes);
    }
  if (together) {
    memcpy(next, f, frame_bytes);
    run_together(o, next, met);
    if (is_new(o, next)) visit(o, next, frame_bytes);
  }
  free(next);
}

// ---- Set-up -------------------------------------------------------------------------------------------------------------------

static int by_number(const void *a, const void *b) { return (*(const int64_t *)a > *(const int64_t *)b) - (*(const int64_t *)a < *(const int64_t *)b); }

static void add_cut(Oracle *o, int space, int64_t at) { o->cuts[space][o->n_cuts[space]++] = at; }

static void cut_memory(Oracle *o) {
  const Graph *g = o->graph;
  size_t most = 2 * g->n_values;
  for (size_t i = 0; i < (size_t)o->ranks * g->n_nodes; i++) most += 2 * o->touches[i].n;
  for (int s = 0; s <= o->ranks; s++)
    if (!(o->cuts[s] = calloc(most + 1, sizeof *o->cuts[s]))) abort();
  for (size_t i = 0; i < (size_t)o->ranks * g->n_nodes; i++)
    for (size_t k = 0; k < o->touches[i].n; k++) {
      const Touch *t = &o->touches[i].items[k];
      add_cut(o, t->space, t->lo);
      add_cut(o, t->space, t->hi);
    }
  for (int r = 0; r < o->ranks; r++)
    for (size_t i = 0; i < g->n_values; i++) {
      if (g->values[i]->loc.buffer < 0 || g->values[i]->producer) continue;
      Touch t = touch_of(g, g->values[i], r, true);
      if (o->n_cuts[t.space] + 2 > most) continue;
      add_cut(o, t.space, t.lo);
      add_cut(o, t.space, t.hi);
    }
  for (int s = 0; s <= o->ranks; s++) {
    qsort(o->cuts[s], o->n_cuts[s], sizeof *o->cuts[s], by_number);
    size_t n = 0;
    for (size_t i = 0; i < o->n_cuts[s]; i++)
      if (!n || o->cuts[s][n - 1] != o->cuts[s][i]) o->cuts[s][n++] = o->cuts[s][i];
    o->n_cuts[s] = n;
    o->first_piece[s] = o->n_pieces;
    o->n_pieces += n;
  }
}

static void set_up(Oracle *o) {
  const Graph *g = o->graph;
  size_t n = g->n_nodes;
  o->touches = calloc((size_t)o->ranks * n, sizeof *o->touches);
  o->conflicts = calloc((size_t)o->ranks * n * n, sizeof *o->conflicts);
  o->position = calloc(n, sizeof *o->position);
  o->seen_size = 2 * o->states_max + 64;
  o->seen = calloc(o->seen_size, sizeof *o->seen);
  if (!o->touches || !o->conflicts || !o->position || !o->seen) abort();
  for (int p = 0; p < PHASE_COUNT; p++)
    for (int q = 0; q < QUEUE_COUNT; q++)
      if (!(o->queue[p][q] = calloc(n, sizeof(uint32_t)))) abort();
  for (size_t i = 0; i < n; i++) {
    const Node *node = g->nodes[i];
    o->position[i] = (uint32_t)o->length[node->phase][node->queue];
    o->queue[node->phase][node->queue][o->length[node->phase][node->queue]++] = (uint32_t)i;
    for (int r = 0; r < o->ranks; r++) touches_of(g, node, r, &o->touches[(size_t)r * n + i]);
    bool known = node->guard == GUARD_NONE;
    for (int e = 0; e < o->n_regions; e++) known |= o->region_of[e] == node->region;
    if (!known && o->n_regions < EPOCHS_MAX) o->region_of[o->n_regions++] = node->region;
  }
  for (int r = 0; r < o->ranks; r++)
    for (size_t i = 0; i < n; i++)
      for (size_t k = 0; k < n; k++)
        o->conflicts[((size_t)r * n + i) * n + k] = meet(&o->touches[(size_t)r * n + i], &o->touches[(size_t)r * n + k]) ||
                                                    guards_meet(g, g->nodes[i], g->nodes[k], r) || guards_meet(g, g->nodes[k], g->nodes[i], r);
  o->rounds[o->n_rounds++] = PHASE_INIT;
  for (int loop = 0; loop < LOOPS; loop++) {
    for (int64_t j = 0; j < g->recipe.micro_per_rank && j < 2; j++) o->rounds[o->n_rounds++] = PHASE_MICRO;
    o->rounds[o->n_rounds++] = PHASE_UPDATE;
  }
  cut_memory(o);
}

static void tear_down(Oracle *o) {
  for (size_t i = 0; i < (size_t)o->ranks * o->graph->n_nodes; i++) free(o->touches[i].items);
  for (int p = 0; p < PHASE_COUNT; p++)
    for (int q = 0; q < QUEUE_COUNT; q++) free(o->queue[p][q]);
  for (int s = 0; s <= o->ranks; s++) free(o->cuts[s]);
  free(o->touches);
  free(o->conflicts);
  free(o->position);
  free(o->seen);
}

OracleResult oracle_run(const Graph *graph, size_t states_max) {
  Oracle o = {.graph = graph, .ranks = ranks_of(graph), .states_max = states_max};
  if (o.ranks > RANKS_MAX) abort();
  set_up(&o);
  size_t bytes = sizeof(Frame) + o.n_pieces * sizeof(uint64_t);
  Frame *first = calloc(1, bytes);
  if (!first) abort();
  for (int r = 0; r < o.ranks; r++) feed(&o, first, r);
  is_new(&o, first);
  visit(&o, first, bytes);
  free(first);
  tear_down(&o);
  return o.result;
}
