#include "memory_offsets.h"

#include <stdlib.h>

#include "interval_pack.h"

static int64_t aligned(int64_t bytes) { return (bytes + BUFFER_ALIGN_BYTES - 1) / BUFFER_ALIGN_BYTES * BUFFER_ALIGN_BYTES; }

// How a buffer gets its place.
typedef enum Kind {
  KIND_ALWAYS,                   // below the base, in a row: nothing else ever lies there
  KIND_SAME,                     // has the same place in every variant: in a row above the base
  KIND_FREE,                     // where it fits
} Kind;

static Kind kind_of(const Graph *g, const Buffer *b, bool variants) {
  if (b->persistent) return !variants || buffer_is_fixed(g, b) ? KIND_ALWAYS : KIND_FREE;     // free: the variant's own constants
  return variants && b->scope == SCOPE_RANK && buffer_is_fixed(g, b) ? KIND_SAME : KIND_FREE;
}

static PackItem life_of(const Graph *g, const Buffer *b) {
  if (b->persistent) return (PackItem){0, g->n_nodes ? (uint32_t)g->n_nodes - 1 : 0, aligned(b->bytes)};
  return (PackItem){b->first, b->last, aligned(b->bytes)};
}

static int by_step(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return x < y ? -1 : x > y;
}

// Gathered copies must lie in one place in all variants, whose steps have other numbers: their lives are told by the order of their ends alone, which
// follows from the order of collectives, in which variants agree.
static void number_ends(PackItem *items, size_t n, Arena *arena) {
  uint32_t *ends = ARENA_ARRAY(arena, uint32_t, 2 * n);
  for (size_t i = 0; i < n; i++) {
    ends[2 * i] = items[i].first;
    ends[2 * i + 1] = items[i].last;
  }
  qsort(ends, 2 * n, sizeof *ends, by_step);
  for (size_t i = 0; i < n; i++) {
    items[i].first = (uint32_t)((uint32_t *)bsearch(&items[i].first, ends, 2 * n, sizeof *ends, by_step) - ends);
    items[i].last = (uint32_t)((uint32_t *)bsearch(&items[i].last, ends, 2 * n, sizeof *ends, by_step) - ends);
  }
}

static void place_arena(Graph *graph, Scope scope, Tier tier, bool variants) {
  Arena *arena = graph->arena;
  size_t n = graph->n_buffers;
  Buffer **free_ones = ARENA_ARRAY(arena, Buffer *, n);
  PackItem *items = ARENA_ARRAY(arena, PackItem, n), *fixed = ARENA_ARRAY(arena, PackItem, n);
  int64_t *offsets = ARENA_ARRAY(arena, int64_t, n), *fixed_offsets = ARENA_ARRAY(arena, int64_t, n), end = 0;
  PackProblem problem = {.items = items, .fixed = fixed, .fixed_offsets = fixed_offsets};
  for (int kind = KIND_ALWAYS; kind <= KIND_FREE; kind++) {
    if (kind == KIND_SAME) problem.base_bytes = end;
    for (size_t i = 0; i < n; i++) {
      Buffer *b = &graph->buffers[i];
      if (b->scope != scope || b->tier != tier || (int)kind_of(graph, b, variants) != kind) continue;
      if (kind == KIND_FREE) {
        free_ones[problem.n] = b;
        items[problem.n++] = life_of(graph, b);
        continue;
      }
      if (kind == KIND_SAME) {
        fixed_offsets[problem.n_fixed] = end;
        fixed[problem.n_fixed++] = life_of(graph, b);
      }
      b->offset_bytes = end;
      end += aligned(b->bytes);
    }
  }
  if (scope == SCOPE_PROCESS && problem.n) number_ends(items, problem.n, arena);
  interval_pack(&problem, arena, offsets);
  for (size_t i = 0; i < problem.n; i++) free_ones[i]->offset_bytes = offsets[i];
}

void memory_offsets(Graph *graph, bool variants) {
  for (int scope = 0; scope < SCOPE_COUNT; scope++)
    for (int tier = 0; tier < TIER_COUNT; tier++) place_arena(graph, (Scope)scope, (Tier)tier, variants);
}
