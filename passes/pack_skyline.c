#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "interval_pack.h"

// ---- Items by life: a tree of boxes over (first, last), whose leaves lie along a Z-order curve, so that boxes are small ----------------------------

typedef struct Box { uint32_t min_first, max_first, min_last, max_last, rank; } Box;    // rank: least of those not taken yet; UINT32_MAX: none
typedef struct Leaf { uint64_t code; uint32_t item; } Leaf;

typedef struct Tree {
  Box *boxes;                    // of node v: 2 v and 2 v + 1 below it; leaves from n_leaves on
  size_t n_leaves;
  uint32_t *leaf_of;             // per item
  int64_t visited;
} Tree;

static uint64_t spread_bits(uint64_t x) {        // bit i to bit 2 i
  x = (x | x << 16) & 0x0000ffff0000ffff;
  x = (x | x << 8) & 0x00ff00ff00ff00ff;
  x = (x | x << 4) & 0x0f0f0f0f0f0f0f0f;
  x = (x | x << 2) & 0x3333333333333333;
  return (x | x << 1) & 0x5555555555555555;
}

static int by_code(const void *a, const void *b) {
  const Leaf *x = a, *y = b;
  if (x->code != y->code) return x->code < y->code ? -1 : 1;
  return x->item < y->item ? -1 : x->item > y->item;
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }
static uint32_t most(uint32_t a, uint32_t b) { return a > b ? a : b; }

static Tree make_tree(const PackProblem *p, const uint32_t *order, Arena *arena) {
  Tree t = {.n_leaves = 1, .leaf_of = ARENA_ARRAY(arena, uint32_t, p->n)};
  while (t.n_leaves < p->n) t.n_leaves *= 2;
  t.boxes = ARENA_ARRAY(arena, Box, 2 * t.n_leaves);
  Leaf *leaves = ARENA_ARRAY(arena, Leaf, p->n);
  for (size_t i = 0; i < p->n; i++) leaves[i] = (Leaf){spread_bits(p->items[i].first) << 1 | spread_bits(p->items[i].last), (uint32_t)i};
  qsort(leaves, p->n, sizeof *leaves, by_code);
  for (size_t k = 0; k < t.n_leaves; k++) {
    Box *box = &t.boxes[t.n_leaves + k];
    *box = (Box){UINT32_MAX, 0, UINT32_MAX, 0, UINT32_MAX};
    if (k >= p->n) continue;
    const PackItem *item = &p->items[leaves[k].item];
    *box = (Box){item->first, item->first, item->last, item->last, 0};
    t.leaf_of[leaves[k].item] = (uint32_t)(t.n_leaves + k);
  }
  for (size_t i = 0; i < p->n; i++) t.boxes[t.leaf_of[order[i]]].rank = (uint32_t)i;
  for (size_t v = t.n_leaves - 1; v > 0; v--) {
    const Box *a = &t.boxes[2 * v], *b = a + 1;
    t.boxes[v] = (Box){least(a->min_first, b->min_first), most(a->max_first, b->max_first), least(a->min_last, b->min_last), most(a->max_last, b->max_last),
                       least(a->rank, b->rank)};
  }
  return t;
}

static void take(Tree *t, uint32_t item) {
  size_t v = t->leaf_of[item];
  t->boxes[v].rank = UINT32_MAX;
  while (v /= 2) t->boxes[v].rank = least(t->boxes[2 * v].rank, t->boxes[2 * v + 1].rank);
}

// The least rank below `best` of an item whose life lies in [first, last].
static uint32_t find(Tree *t, size_t v, uint32_t first, uint32_t last, uint32_t best) {
  const Box *box = &t->boxes[v];
  t->visited++;
  if (box->rank >= best || box->max_first < first || box->min_last > last || box->min_first > last) return best;
  if (box->min_first >= first && box->max_last <= last) return box->rank;
  if (v >= t->n_leaves) return best;
  size_t nearer = t->boxes[2 * v].rank <= t->boxes[2 * v + 1].rank ? 2 * v : 2 * v + 1;
  best = find(t, nearer, first, last, best);
  return find(t, nearer ^ 1, first, last, best);
}

// ---- The skyline: stretches of time with one height, as a list; the lowest, then earliest, on top of a heap -----------------------------------------

typedef struct Stretch { uint32_t first, last; int64_t height; int32_t before, after; bool gone; } Stretch;
typedef struct Skyline {
  Stretch *items;
  int32_t *heap;
  int32_t n, n_heap, capacity;
} Skyline;

static bool is_lower(const Skyline *s, int32_t a, int32_t b) {
  const Stretch *x = &s->items[a], *y = &s->items[b];
  return x->height != y->height ? x->height < y->height : x->first < y->first;
}

static void push(Skyline *s, int32_t index) {
  int32_t i = s->n_heap++;
  for (; i > 0 && is_lower(s, index, s->heap[(i - 1) / 2]); i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
  s->heap[i] = index;
}

static int32_t pop(Skyline *s) {
  int32_t top = s->heap[0], moved = s->heap[--s->n_heap], i = 0;
  for (int32_t below; (below = 2 * i + 1) < s->n_heap; i = below) {
    if (below + 1 < s->n_heap && is_lower(s, s->heap[below + 1], s->heap[below])) below++;
    if (!is_lower(s, s->heap[below], moved)) break;
    s->heap[i] = s->heap[below];
  }
  s->heap[i] = moved;
  return top;
}

// Between `before` and `after` (-1: none), joined with those of the same height that it touches.
static int32_t add(Skyline *s, Stretch new) {
  if (new.before >= 0 && s->items[new.before].height == new.height && s->items[new.before].last + 1 == new.first) {
    Stretch *joined = &s->items[new.before];
    joined->gone = true;
    new.first = joined->first;
    new.before = joined->before;
  }
  if (new.after >= 0 && s->items[new.after].height == new.height && new.last + 1 == s->items[new.after].first) {
    Stretch *joined = &s->items[new.after];
    joined->gone = true;
    new.last = joined->last;
    new.after = joined->after;
  }
  assert(s->n < s->capacity);
  int32_t index = s->n++;
  s->items[index] = new;
  if (new.before >= 0) s->items[new.before].after = index;
  if (new.after >= 0) s->items[new.after].before = index;
  push(s, index);
  return index;
}

static int by_step(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return x < y ? -1 : x > y;
}

// All time up to `last`, with what is fixed.
static Skyline make_skyline(const PackProblem *p, uint32_t last, Arena *arena) {
  Skyline s = {.capacity = (int32_t)(6 * p->n + 4 * p->n_fixed + 8)};      // an item adds at most three, and each rise removes one
  s.items = ARENA_ARRAY(arena, Stretch, s.capacity);
  s.heap = ARENA_ARRAY(arena, int32_t, s.capacity);
  uint32_t *starts = ARENA_ARRAY(arena, uint32_t, 2 * p->n_fixed + 1);     // where the height may change
  size_t n = 1;
  for (size_t i = 0; i < p->n_fixed; i++) {
    starts[n++] = p->fixed[i].first;
    starts[n++] = p->fixed[i].last + 1;
  }
  qsort(starts, n, sizeof *starts, by_step);
  int32_t before = -1;
  for (size_t k = 0; k < n; k++) {
    if ((k && starts[k] == starts[k - 1]) || starts[k] > last) continue;
    size_t next = k + 1;
    while (next < n && starts[next] == starts[k]) next++;
    int64_t height = p->base_bytes;
    for (size_t i = p->n_fixed; i-- > 0 && height == p->base_bytes;)
      if (p->fixed[i].first <= starts[k] && p->fixed[i].last >= starts[k]) height = p->fixed_offsets[i] + p->fixed[i].bytes;
    before = add(&s, (Stretch){starts[k], next < n && starts[next] <= last ? starts[next] - 1 : last, height, before, -1, false});
  }
  return s;
}

static void put(Skyline *s, const Stretch *at, const PackItem *item) {
  int32_t before = at->before, after = at->after;
  if (item->first > at->first) before = add(s, (Stretch){at->first, item->first - 1, at->height, before, after, false});
  if (item->last < at->last) after = add(s, (Stretch){item->last + 1, at->last, at->height, before, after, false});
  add(s, (Stretch){item->first, item->last, at->height + item->bytes, before, after, false});
}

static void rise(Skyline *s, const Stretch *at) {
  int64_t left = at->before >= 0 ? s->items[at->before].height : INT64_MAX, right = at->after >= 0 ? s->items[at->after].height : INT64_MAX;
  add(s, (Stretch){at->first, at->last, left < right ? left : right, at->before, at->after, false});
}

int64_t pack_skyline(const PackProblem *p, const uint32_t *order, Arena *arena, int64_t *work, int64_t *out_offsets) {
  Tree tree = make_tree(p, order, arena);
  uint32_t last = 0;
  for (size_t i = 0; i < p->n; i++) last = most(last, p->items[i].last);
  Skyline skyline = make_skyline(p, last, arena);
  int64_t end = pack_fixed_end(p);
  for (size_t placed = 0; placed < p->n;) {
    Stretch *lowest = &skyline.items[pop(&skyline)];
    if (lowest->gone) continue;
    lowest->gone = true;
    const Stretch at = *lowest;
    uint32_t rank = find(&tree, 1, at.first, at.last, UINT32_MAX);
    if (rank == UINT32_MAX) {
      rise(&skyline, &at);
      continue;
    }
    const PackItem *item = &p->items[order[rank]];
    take(&tree, order[rank]);
    out_offsets[order[rank]] = at.height;
    if (at.height + item->bytes > end) end = at.height + item->bytes;
    put(&skyline, &at, item);
    placed++;
  }
  *work -= tree.visited + (int64_t)p->n;
  return end;
}
