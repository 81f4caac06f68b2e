#include "interval_pack.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

// Steps of work, a nanosecond or so each, after which nothing new is tried; the first heuristic is always finished. Local search of few items ends
// after some thousand rounds, of about n^2 / 2 steps each.
enum { WORK = 1 << 26, ROUNDS = 5000 };

// ---- The bound ----------------------------------------------------------------------------------------------------------------

typedef struct Change { int64_t step, bytes; } Change;

static int by_step(const void *a, const void *b) {       // what ends, first
  const Change *x = a, *y = b;
  if (x->step != y->step) return x->step < y->step ? -1 : 1;
  return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static void add_changes(const PackItem *items, size_t n, Change *changes) {
  for (size_t i = 0; i < n; i++) {
    changes[2 * i] = (Change){items[i].first, items[i].bytes};
    changes[2 * i + 1] = (Change){(int64_t)items[i].last + 1, -items[i].bytes};
  }
}

static int64_t least_end(const PackProblem *p, Arena *arena) {
  size_t n = 2 * (p->n + p->n_fixed);
  Change *changes = ARENA_ARRAY(arena, Change, n);
  add_changes(p->items, p->n, changes);
  add_changes(p->fixed, p->n_fixed, changes + 2 * p->n);
  qsort(changes, n, sizeof *changes, by_step);
  int64_t now = 0, most = 0;
  for (size_t i = 0; i < n; i++) {
    now += changes[i].bytes;
    if (now > most) most = now;
  }
  return p->base_bytes + most;
}

int64_t pack_fixed_end(const PackProblem *p) {
  return p->n_fixed ? p->fixed_offsets[p->n_fixed - 1] + p->fixed[p->n_fixed - 1].bytes : p->base_bytes;
}

// ---- Orders -------------------------------------------------------------------------------------------------------------------

typedef struct Ranked { double key; int64_t bytes; uint32_t first, item; } Ranked;

static int by_key(const void *a, const void *b) {
  const Ranked *x = a, *y = b;
  if (x->key != y->key) return x->key > y->key ? -1 : 1;
  if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
  if (x->first != y->first) return x->first < y->first ? -1 : 1;
  return x->item < y->item ? -1 : x->item > y->item;
}

static uint32_t *ranked_items(const Ranked *ranked, size_t n, Arena *arena) {
  uint32_t *order = ARENA_ARRAY(arena, uint32_t, n);
  for (size_t i = 0; i < n; i++) order[i] = ranked[i].item;
  return order;
}

uint32_t *pack_order(const PackProblem *p, PackKey key, Arena *arena) {
  Ranked *ranked = ARENA_ARRAY(arena, Ranked, p->n);
  for (size_t i = 0; i < p->n; i++) {
    const PackItem *item = &p->items[i];
    double life = (double)item->last - item->first + 1, bytes = (double)item->bytes;
    ranked[i] = (Ranked){key == PACK_BY_LIFE ? life : key == PACK_BY_AREA ? life * bytes : bytes, item->bytes, item->first, (uint32_t)i};
  }
  qsort(ranked, p->n, sizeof *ranked, by_key);
  return ranked_items(ranked, p->n, arena);
}

static uint32_t *order_by_offset(const PackProblem *p, const int64_t *offsets, Arena *arena) {
  Ranked *ranked = ARENA_ARRAY(arena, Ranked, p->n);
  for (size_t i = 0; i < p->n; i++) ranked[i] = (Ranked){-(double)offsets[i], p->items[i].bytes, p->items[i].first, (uint32_t)i};
  qsort(ranked, p->n, sizeof *ranked, by_key);
  return ranked_items(ranked, p->n, arena);
}

// ---- Trying -------------------------------------------------------------------------------------------------------------------

typedef struct Search {
  const PackProblem *problem;
  Arena *arena;
  int64_t work;                  // left
  int64_t *offsets, *best;       // of the placement under way; of the best so far
  PackResult result;
} Search;

static bool wants_more(const Search *s) { return s->result.end_bytes > s->result.least_bytes && s->work > 0; }
static bool has_time_for_gaps(const Search *s) { return (int64_t)s->problem->n < s->work / (int64_t)(s->problem->n + s->problem->n_fixed); }

static bool keep_if_better(Search *s, int64_t end, const char *method) {
  if (end >= s->result.end_bytes) return false;
  memcpy(s->best, s->offsets, s->problem->n * sizeof *s->best);
  s->result.end_bytes = end;
  s->result.method = method;
  return true;
}

static void try_orders(Search *s) {
  static const char *const names[PACK_KEY_COUNT][3] = {{"skyline by life", "first fit by life", "best fit by life"},
                                                       {"skyline by area", "first fit by area", "best fit by area"},
                                                       {"skyline by size", "first fit by size", "best fit by size"}};
  uint32_t *orders[PACK_KEY_COUNT];
  for (int key = 0; key < PACK_KEY_COUNT && (!key || wants_more(s)); key++) {
    orders[key] = pack_order(s->problem, (PackKey)key, s->arena);
    keep_if_better(s, pack_skyline(s->problem, orders[key], s->arena, &s->work, s->offsets), names[key][0]);
  }
  if (!wants_more(s)) return;
  PackGaps *gaps = pack_gaps_create(s->problem, s->arena);
  for (int key = PACK_KEY_COUNT; key-- > 0;)
    for (int fit = PACK_FIRST_FIT; fit <= PACK_BEST_FIT; fit++)
      if (wants_more(s) && has_time_for_gaps(s))
        keep_if_better(s, pack_gaps_fill(gaps, orders[key], (PackFit)fit, s->result.end_bytes - 1, &s->work, s->offsets), names[key][1 + fit]);
}

static uint64_t next_random(uint64_t *state) {           // xorshift64
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

// One of the items that end highest, or now and then any.
static size_t choose(const Search *s, const uint32_t *order, uint64_t *random) {
  size_t n = s->problem->n, chosen = next_random(random) % n, seen = 0;
  if (next_random(random) % 4 == 0) return chosen;
  for (size_t i = 0; i < n; i++)
    if (s->best[order[i]] + s->problem->items[order[i]].bytes >= s->result.end_bytes && next_random(random) % ++seen == 0) chosen = i;
  return chosen;
}

// Local search: the items in the order of their offsets, first fit, give the same placement or a lower one; then one of those that end highest takes its
// turn earlier. A change that makes nothing worse stays.
static void improve(Search *s) {
  size_t n = s->problem->n;
  uint32_t *order = order_by_offset(s->problem, s->best, s->arena), *changed = ARENA_ARRAY(s->arena, uint32_t, n);
  uint64_t random = 0x9e3779b97f4a7c15;
  PackGaps *gaps = pack_gaps_create(s->problem, s->arena);
  if (s->work / ROUNDS > (int64_t)(n * n)) s->work = ROUNDS * (int64_t)(n * n);
  keep_if_better(s, pack_gaps_fill(gaps, order, PACK_FIRST_FIT, s->result.end_bytes - 1, &s->work, s->offsets), "first fit by offset");
  while (wants_more(s)) {
    size_t from = choose(s, order, &random), to = from ? next_random(&random) % from : 0;
    memcpy(changed, order, n * sizeof *order);
    memmove(changed + to + 1, changed + to, (from - to) * sizeof *order);
    changed[to] = order[from];
    s->work -= (int64_t)n;
    int64_t end = pack_gaps_fill(gaps, changed, PACK_FIRST_FIT, s->result.end_bytes, &s->work, s->offsets);
    if (end > s->result.end_bytes) continue;
    memcpy(order, changed, n * sizeof *order);
    memcpy(s->best, s->offsets, n * sizeof *s->best);
    s->result.end_bytes = end;
    s->result.method = "local search";
  }
}

PackResult interval_pack(const PackProblem *problem, Arena *arena, int64_t *out_offsets) {
  Search s = {.problem = problem, .arena = arena, .work = WORK, .best = out_offsets, .offsets = ARENA_ARRAY(arena, int64_t, problem->n)};
  s.result = (PackResult){problem->n ? INT64_MAX : pack_fixed_end(problem), least_end(problem, arena), "nothing to place"};
  if (!problem->n) return s.result;
  try_orders(&s);
  if (wants_more(&s) && has_time_for_gaps(&s)) improve(&s);
  return s.result;
}
