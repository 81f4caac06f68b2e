// Packing of lives into an arena (passes/interval_pack.h): on random sets no two buffers that live at once share bytes, the end is at least the bound and
// at most that of best fit, the same each time; sets of 100,000 buffers take no more than linear-like time.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../../ir/clock.h"
#include "../../passes/interval_pack.h"

static uint64_t state;
static uint32_t below(uint32_t n) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(state >> 33) % n;
}

static bool meet(const PackItem *a, const PackItem *b) { return a->first <= b->last && b->first <= a->last; }

static void check_apart(const PackItem *a, int64_t at, const PackItem *b, int64_t bt) {
  if (meet(a, b) && at < bt + b->bytes && bt < at + a->bytes)
    fail_msg("[%u, %u] at %lld and [%u, %u] at %lld share bytes", a->first, a->last, (long long)at, b->first, b->last, (long long)bt);
}

static void check_places(const PackProblem *p, const int64_t *offsets, int64_t end) {
  int64_t most = pack_fixed_end(p);
  for (size_t i = 0; i < p->n; i++) {
    assert_true(offsets[i] >= p->base_bytes);
    if (offsets[i] + p->items[i].bytes > most) most = offsets[i] + p->items[i].bytes;
    for (size_t k = 0; k < i; k++) check_apart(&p->items[i], offsets[i], &p->items[k], offsets[k]);
    for (size_t k = 0; k < p->n_fixed; k++) check_apart(&p->items[i], offsets[i], &p->fixed[k], p->fixed_offsets[k]);
  }
  assert_int_equal(most, end);
}

// The most that lives at once, step by step.
static int64_t most_live(const PackProblem *p, uint32_t n_steps) {
  int64_t most = 0;
  for (uint32_t t = 0; t < n_steps; t++) {
    int64_t live = 0;
    for (size_t i = 0; i < p->n; i++) live += p->items[i].first <= t && t <= p->items[i].last ? p->items[i].bytes : 0;
    for (size_t i = 0; i < p->n_fixed; i++) live += p->fixed[i].first <= t && t <= p->fixed[i].last ? p->fixed[i].bytes : 0;
    if (live > most) most = live;
  }
  return p->base_bytes + most;
}

// Best fit in the given order, written once more: all offsets where the item touches what lies there, the one with the smallest gap around it.
static int64_t best_fit(const PackProblem *p, const uint32_t *order, int64_t *offsets) {
  int64_t end = pack_fixed_end(p);
  for (size_t i = 0; i < p->n; i++) {
    const PackItem *item = &p->items[order[i]];
    int64_t best = -1, smallest = INT64_MAX;
    for (size_t k = 0; k <= i + p->n_fixed; k++) {         // at the base, or on top of something
      const PackItem *under = k < i ? &p->items[order[k]] : k < i + p->n_fixed ? &p->fixed[k - i] : NULL;
      if (under && !meet(under, item)) continue;
      int64_t at = !under ? p->base_bytes : k < i ? offsets[order[k]] + under->bytes : p->fixed_offsets[k - i] + under->bytes, next = INT64_MAX;
      bool covered = false;
      for (size_t j = 0; j < i + p->n_fixed; j++) {
        const PackItem *other = j < i ? &p->items[order[j]] : &p->fixed[j - i];
        int64_t lo = j < i ? offsets[order[j]] : p->fixed_offsets[j - i];
        if (!meet(other, item)) continue;
        covered |= lo <= at && at < lo + other->bytes;
        if (lo >= at && lo < next) next = lo;
      }
      int64_t gap = next == INT64_MAX ? INT64_MAX - 1 : next - at;
      if (covered || gap < item->bytes || gap > smallest || (gap == smallest && at > best)) continue;
      smallest = gap;
      best = at;
    }
    offsets[order[i]] = best;
    if (best + item->bytes > end) end = best + item->bytes;
  }
  return end;
}

enum { SMALL = 40, STEPS = 60 };

static void test_random_sets(void **unused) {
  for (uint32_t seed = 0; seed < 1000; seed++) {
    state = seed;
    PackItem items[SMALL], fixed[3];
    int64_t offsets[SMALL], again[SMALL], reference[SMALL], fixed_offsets[3] = {0};
    Arena *arena = arena_create(0);
    PackProblem p = {.items = items, .n = below(SMALL + 1), .fixed = fixed, .fixed_offsets = fixed_offsets, .n_fixed = below(4), .base_bytes = 64 * below(3)};
    uint32_t long_lives = below(4), empty = seed % 5 == 0;       // buffers of no bytes: where each lies says nothing, and references stumble
    for (size_t i = 0; i < p.n; i++) {
      uint32_t first = below(STEPS), life = below(below(4) < long_lives ? STEPS : 6);
      items[i] = (PackItem){first, first + life < STEPS ? first + life : STEPS - 1, 64 * (int64_t)(!empty + below(below(4) ? 5 : 100))};
    }
    for (size_t i = 0; i < p.n_fixed; i++) {
      uint32_t first = below(STEPS);
      fixed[i] = (PackItem){first, first + below(STEPS - first), 64 * (1 + (int64_t)below(20))};
      fixed_offsets[i] = i ? fixed_offsets[i - 1] + fixed[i - 1].bytes : p.base_bytes;
    }
    PackResult r = interval_pack(&p, arena, offsets), s = interval_pack(&p, arena, again);
    check_places(&p, offsets, r.end_bytes);
    assert_memory_equal(offsets, again, p.n * sizeof *offsets);
    assert_string_equal(r.method, s.method);
    assert_int_equal(r.least_bytes, most_live(&p, STEPS));
    assert_true(r.end_bytes >= r.least_bytes);
    for (int key = 0; key < PACK_KEY_COUNT && !empty; key++) {
      int64_t end = best_fit(&p, pack_order(&p, (PackKey)key, arena), reference), work = 0;
      check_places(&p, reference, end);
      assert_true(r.end_bytes <= end);
      assert_int_equal(end, pack_gaps_fill(pack_gaps_create(&p, arena), pack_order(&p, (PackKey)key, arena), PACK_BEST_FIT, INT64_MAX, &work, again));
      check_places(&p, again, pack_skyline(&p, pack_order(&p, (PackKey)key, arena), arena, &work, again));
    }
    arena_destroy(arena);
  }
}

// Buffers whose best placement is known: a rectangle cut again and again into two, along time or along bytes.
static size_t cut(PackItem *items, size_t n, size_t limit, PackItem all) {
  if (n + 1 >= limit || (all.last == all.first && all.bytes == 64) || below(8) == 0) {
    items[n] = all;
    return n + 1;
  }
  PackItem a = all, b = all;
  if (all.bytes == 64 || (all.last > all.first && below(2))) {
    a.last = all.first + below(all.last - all.first);
    b.first = a.last + 1;
  } else {
    a.bytes = 64 * (1 + (int64_t)below((uint32_t)(all.bytes / 64) - 1));
    b.bytes = all.bytes - a.bytes;
  }
  n = cut(items, n, limit - 1, a);
  return cut(items, n, limit, b);
}

static void test_full_rectangles(void **unused) {
  int full = 0, n_sets = 200;
  for (int seed = 0; seed < n_sets; seed++) {
    state = (uint64_t)seed + 1000000;
    PackItem items[30];
    int64_t offsets[30];
    Arena *arena = arena_create(0);
    PackProblem p = {.items = items, .n = cut(items, 0, 30, (PackItem){0, 99, 64 * 100})};
    PackResult r = interval_pack(&p, arena, offsets);
    check_places(&p, offsets, r.end_bytes);
    assert_int_equal(r.least_bytes, 64 * 100);
    full += r.end_bytes == r.least_bytes;
    arena_destroy(arena);
  }
  if (full < n_sets * 9 / 10) fail_msg("%d of %d rectangles are packed without a hole", full, n_sets);
}

// ---- Many buffers -------------------------------------------------------------------------------------------------------------

enum { MANY = 100000 };
typedef struct Family { const char *name; PackItem (*item)(uint32_t i); double most; } Family;      // most: of end / bound

static PackItem anything(uint32_t i) {
  uint32_t first = below(MANY);
  return (PackItem){first, first + below(MANY - first), 64 * (1 + (int64_t)below(1000))};
}
static PackItem brief(uint32_t i) {
  uint32_t first = below(MANY);
  return (PackItem){first, first + below(20), 64 * (1 + (int64_t)below(1000))};
}
static PackItem stairs(uint32_t i) { return (PackItem){i, i + 1000, 64 * (1 + (int64_t)(i % 7))}; }
static PackItem nested(uint32_t i) { return (PackItem){i, 2 * MANY - i, 64 * (1 + (int64_t)(i % 11))}; }
static PackItem alike(uint32_t i) { return (PackItem){0, MANY, 64}; }
static PackItem crossing(uint32_t i) {          // half end where the other half begin, none lies in another
  return i % 2 ? (PackItem){i, MANY, 64 * (1 + (int64_t)below(9))} : (PackItem){MANY, MANY + i, 64 * (1 + (int64_t)below(9))};
}
static PackItem training(uint32_t i) {          // of forward for backward, and what passes
  static const int64_t sizes[] = {64 * 100, 64 * 300, 64, 64 * 100, 64 * 400, 64 * 30};
  if (i % 6 < 3) return (PackItem){i, 2 * MANY - i - below(3), sizes[i % 6]};
  return (PackItem){i % 2 ? i : 2 * MANY - i, (i % 2 ? i : 2 * MANY - i) + below(8), sizes[i % 6]};
}

static void check_apart_in_time(const PackProblem *p, const int64_t *offsets, Arena *arena);

static void test_many(void **unused) {
  static const Family families[] = {{"anything", anything, 1.10}, {"brief", brief, 1.25}, {"stairs", stairs, 1.05}, {"nested", nested, 1.0},
                                    {"alike", alike, 1.0}, {"crossing", crossing, 1.0}, {"training", training, 1.02}};
  for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
    state = f;
    Arena *arena = arena_create(0);
    PackItem *items = ARENA_ARRAY(arena, PackItem, MANY);
    int64_t *offsets = ARENA_ARRAY(arena, int64_t, MANY), began = clock_now_ns();
    for (uint32_t i = 0; i < MANY; i++) items[i] = families[f].item(i);
    PackProblem p = {.items = items, .n = MANY};
    PackResult r = interval_pack(&p, arena, offsets);
    double seconds = (double)(clock_now_ns() - began) * 1e-9, ratio = (double)r.end_bytes / (double)r.least_bytes;
    print_message("%-10s %.4f of the bound in %.2f s, %s\n", families[f].name, ratio, seconds, r.method);
    check_apart_in_time(&p, offsets, arena);
    assert_true(r.end_bytes >= r.least_bytes);
    if (ratio > families[f].most) fail_msg("%s: %.4f of the bound", families[f].name, ratio);
    if (seconds > 60) fail_msg("%s: %.1f s", families[f].name, seconds);      // a second where nothing else runs
    arena_destroy(arena);
  }
}

// Of many: what lives at once, walked in time, each beside the next one below and above it, in a balanced tree over offsets (a treap).
typedef struct Tree { int64_t lo, hi; uint32_t weight; int32_t left, right; } Tree;
static Tree *tree;

static void split(int32_t at, int64_t lo, int32_t *left, int32_t *right) {
  if (at < 0) {
    *left = *right = -1;
  } else if (tree[at].lo < lo) {
    split(tree[at].right, lo, &tree[at].right, right);
    *left = at;
  } else {
    split(tree[at].left, lo, left, &tree[at].left);
    *right = at;
  }
}
static int32_t join(int32_t left, int32_t right) {
  if (left < 0 || right < 0) return left < 0 ? right : left;
  if (tree[left].weight > tree[right].weight) {
    tree[left].right = join(tree[left].right, right);
    return left;
  }
  tree[right].left = join(left, tree[right].left);
  return right;
}

static const PackItem *sorted_items;
static int by_first(const void *a, const void *b) {
  const PackItem *x = &sorted_items[*(const uint32_t *)a], *y = &sorted_items[*(const uint32_t *)b];
  return x->first < y->first ? -1 : x->first > y->first;
}
static int by_last(const void *a, const void *b) {
  const PackItem *x = &sorted_items[*(const uint32_t *)a], *y = &sorted_items[*(const uint32_t *)b];
  return x->last < y->last ? -1 : x->last > y->last;
}

static void check_apart_in_time(const PackProblem *p, const int64_t *offsets, Arena *arena) {
  uint32_t *begin = ARENA_ARRAY(arena, uint32_t, p->n), *end = ARENA_ARRAY(arena, uint32_t, p->n);
  tree = ARENA_ARRAY(arena, Tree, p->n);
  for (uint32_t i = 0; i < p->n; i++) {
    begin[i] = end[i] = i;
    tree[i] = (Tree){offsets[i], offsets[i] + p->items[i].bytes, below(1u << 30), -1, -1};
  }
  sorted_items = p->items;
  qsort(begin, p->n, sizeof *begin, by_first);
  qsort(end, p->n, sizeof *end, by_last);
  int32_t root = -1;
  size_t ended = 0;
  for (size_t i = 0; i < p->n; i++) {
    int32_t left, middle, right, below_it, above_it;
    for (; p->items[end[ended]].last < p->items[begin[i]].first; ended++) {
      split(root, tree[end[ended]].lo, &left, &right);
      split(right, tree[end[ended]].lo + 1, &middle, &right);
      assert_int_equal(middle, end[ended]);
      root = join(left, right);
    }
    int32_t new = (int32_t)begin[i];
    split(root, tree[new].lo, &left, &right);
    for (below_it = left; below_it >= 0 && tree[below_it].right >= 0;) below_it = tree[below_it].right;
    for (above_it = right; above_it >= 0 && tree[above_it].left >= 0;) above_it = tree[above_it].left;
    if (below_it >= 0) assert_true(tree[below_it].hi <= tree[new].lo);
    if (above_it >= 0) assert_true(tree[new].hi <= tree[above_it].lo);
    root = join(join(left, new), right);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_sets), cmocka_unit_test(test_full_rectangles), cmocka_unit_test(test_many)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
