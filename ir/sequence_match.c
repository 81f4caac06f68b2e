#include "sequence_match.h"

#include <stdlib.h>
#include <string.h>

enum { WINDOW_CELLS_MAX = 1 << 18 };    // of the table of a full search

typedef struct Window { size_t a, a_end, b, b_end; } Window;

typedef struct Matcher {
  const uint64_t *a, *b;
  int32_t *match;
  Arena *arena;
  KeyAt *keys_a, *keys_b;      // scratch, [na], [nb]
  int32_t *partner;            // scratch, [na]
  bool *kept;                  // scratch, [na]
  int32_t *rising;             // scratch, 2 x [na]
  uint16_t *cells;             // scratch of a full search
  Window *stack;
  size_t n_stack, stack_capacity;
} Matcher;

static int compare_keys(const void *x, const void *y) {
  const KeyAt *p = x, *q = y;
  if (p->key != q->key) return p->key < q->key ? -1 : 1;
  return (p->at > q->at) - (p->at < q->at);
}

void sequence_sort_keys(KeyAt *items, size_t n) {
  if (n) qsort(items, n, sizeof *items, compare_keys);
}

// tails[k]: index of the smallest value that ends a rising subsequence of length k + 1.
static size_t mark_rising(const int32_t *values, size_t n, int32_t *tails, int32_t *before, bool *kept) {
  size_t length = 0;
  for (size_t i = 0; i < n; i++) {
    kept[i] = false;
    if (values[i] < 0) continue;
    size_t low = 0, high = length;
    while (low < high) {
      size_t middle = (low + high) / 2;
      if (values[tails[middle]] < values[i]) low = middle + 1;
      else high = middle;
    }
    before[i] = low ? tails[low - 1] : -1;
    tails[low] = (int32_t)i;
    if (low == length) length++;
  }
  for (int32_t i = length ? tails[length - 1] : -1; i >= 0; i = before[i]) kept[i] = true;
  return length;
}

size_t sequence_longest_rising(const int32_t *values, size_t n, Arena *arena, bool *kept) {
  int32_t *tails = ARENA_ARRAY(arena, int32_t, 2 * n + 1);
  return mark_rising(values, n, tails, tails + n, kept);
}

// The textbook table, for small windows. Lengths fit 16 bits: a side is at most WINDOW_CELLS_MAX long only where the other is one.
static void search_fully(Matcher *m, Window w) {
  size_t na = w.a_end - w.a, nb = w.b_end - w.b, row = nb + 1;
  uint16_t *cells = m->cells;
  memset(cells + na * row, 0, row * sizeof *cells);
  for (size_t i = na; i-- > 0;) {
    cells[i * row + nb] = 0;
    for (size_t j = nb; j-- > 0;) {
      uint16_t down = cells[(i + 1) * row + j], right = cells[i * row + j + 1];
      cells[i * row + j] = m->a[w.a + i] == m->b[w.b + j] ? (uint16_t)(cells[(i + 1) * row + j + 1] + 1) : down > right ? down : right;
    }
  }
  for (size_t i = 0, j = 0; i < na && j < nb;) {
    if (m->a[w.a + i] == m->b[w.b + j]) m->match[w.a + i++] = (int32_t)(w.b + j++);
    else if (cells[(i + 1) * row + j] >= cells[i * row + j + 1]) i++;
    else j++;
  }
}

static size_t run_end(const KeyAt *keys, size_t at, size_t n) {
  size_t end = at;
  while (end < n && keys[end].key == keys[at].key) end++;
  return end;
}

// partner[i - w.a]: where a[i] would go; -1. `once`: only what occurs once on both sides, else the k-th with the k-th.
static void find_partners(Matcher *m, Window w, bool once) {
  size_t na = w.a_end - w.a, nb = w.b_end - w.b;
  for (size_t i = 0; i < na; i++) {
    m->keys_a[i] = (KeyAt){m->a[w.a + i], (uint32_t)(w.a + i)};
    m->partner[i] = -1;
  }
  for (size_t j = 0; j < nb; j++) m->keys_b[j] = (KeyAt){m->b[w.b + j], (uint32_t)(w.b + j)};
  sequence_sort_keys(m->keys_a, na);
  sequence_sort_keys(m->keys_b, nb);
  for (size_t i = 0, j = 0; i < na && j < nb;) {
    if (m->keys_a[i].key != m->keys_b[j].key) {
      if (m->keys_a[i].key < m->keys_b[j].key) i = run_end(m->keys_a, i, na);
      else j = run_end(m->keys_b, j, nb);
      continue;
    }
    size_t i_end = run_end(m->keys_a, i, na), j_end = run_end(m->keys_b, j, nb);
    bool take = !once || (i_end - i == 1 && j_end - j == 1);
    for (size_t k = 0; take && i + k < i_end && j + k < j_end; k++) m->partner[m->keys_a[i + k].at - w.a] = (int32_t)m->keys_b[j + k].at;
    i = i_end;
    j = j_end;
  }
}

static void push(Matcher *m, Window w) {
  if (w.a < w.a_end && w.b < w.b_end) ARENA_PUSH(m->arena, m->stack, m->n_stack, m->stack_capacity, w);
}

// Matches what rises among the partners and divides the window there.
static void divide(Matcher *m, Window w, bool again) {
  size_t na = w.a_end - w.a;
  mark_rising(m->partner, na, m->rising, m->rising + na, m->kept);
  Window rest = w;
  for (size_t i = 0; i < na; i++) {
    if (!m->kept[i]) continue;
    m->match[w.a + i] = m->partner[i];
    rest.a_end = w.a + i;
    rest.b_end = (size_t)m->partner[i];
    if (again) push(m, rest);
    rest.a = w.a + i + 1;
    rest.b = (size_t)m->partner[i] + 1;
  }
  rest.a_end = w.a_end;
  rest.b_end = w.b_end;
  if (again && rest.a > w.a) push(m, rest);
}

static bool any_partner(const Matcher *m, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (m->partner[i] >= 0) return true;
  return false;
}

static void match_window(Matcher *m, Window w) {
  while (w.a < w.a_end && w.b < w.b_end && m->a[w.a] == m->b[w.b]) m->match[w.a++] = (int32_t)w.b++;
  while (w.a < w.a_end && w.b < w.b_end && m->a[w.a_end - 1] == m->b[w.b_end - 1]) m->match[--w.a_end] = (int32_t)--w.b_end;
  size_t na = w.a_end - w.a, nb = w.b_end - w.b;
  if (!na || !nb) return;
  if (na < WINDOW_CELLS_MAX && nb < WINDOW_CELLS_MAX && (na + 1) * (nb + 1) <= WINDOW_CELLS_MAX && (na < 0xffff || nb < 0xffff)) {
    search_fully(m, w);
    return;
  }
  find_partners(m, w, true);
  bool once = any_partner(m, na);
  if (!once) find_partners(m, w, false);     // everything is repeated: the k-th with the k-th, and no further
  divide(m, w, once);
}

void sequence_match(const uint64_t *a, size_t na, const uint64_t *b, size_t nb, Arena *arena, int32_t *match) {
  Matcher m = {.a = a, .b = b, .match = match, .arena = arena};
  for (size_t i = 0; i < na; i++) match[i] = -1;
  if (!na || !nb) return;
  m.keys_a = ARENA_ARRAY(arena, KeyAt, na);
  m.keys_b = ARENA_ARRAY(arena, KeyAt, nb);
  m.partner = ARENA_ARRAY(arena, int32_t, na);
  m.kept = ARENA_ARRAY(arena, bool, na);
  m.rising = ARENA_ARRAY(arena, int32_t, 2 * na);
  m.cells = ARENA_ARRAY(arena, uint16_t, WINDOW_CELLS_MAX);
  push(&m, (Window){0, na, 0, nb});
  while (m.n_stack) match_window(&m, m.stack[--m.n_stack]);
}
