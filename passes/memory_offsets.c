#include "memory_offsets.h"

#include <stdlib.h>

static int64_t aligned(int64_t bytes) { return (bytes + BUFFER_ALIGN_BYTES - 1) / BUFFER_ALIGN_BYTES * BUFFER_ALIGN_BYTES; }

static int by_size(const void *a, const void *b) {
  const Buffer *x = *(Buffer *const *)a, *y = *(Buffer *const *)b;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
  if (x->first != y->first) return x->first < y->first ? -1 : 1;
  return x < y ? -1 : x > y;
}

// Placed buffers, ascending by offset, as a linked list of indices. What lies in a place for good has the lifetime of the whole program.
typedef struct Placed { Buffer *buffer; uint32_t first, last; int32_t next; } Placed;
typedef struct Places { Placed *items; size_t n; int32_t head; } Places;

static void insert(Places *places, Buffer *b, int64_t offset) {
  int32_t before = -1, next = places->head;
  b->offset_bytes = offset;
  for (; next >= 0 && places->items[next].buffer->offset_bytes <= offset; next = places->items[next].next) before = next;
  places->items[places->n] = (Placed){b, b->persistent ? 0 : b->first, b->persistent ? UINT32_MAX : b->last, next};
  if (before < 0) places->head = (int32_t)places->n;
  else places->items[before].next = (int32_t)places->n;
  places->n++;
}

static void place(Places *places, Buffer *b, int64_t base) {
  int64_t offset = base;
  for (int32_t i = places->head; i >= 0; i = places->items[i].next) {
    const Placed *q = &places->items[i];
    if (q->last < b->first || q->first > b->last) continue;
    if (q->buffer->offset_bytes >= offset + aligned(b->bytes)) break;
    int64_t end = q->buffer->offset_bytes + aligned(q->buffer->bytes);
    if (end > offset) offset = end;
  }
  insert(places, b, offset);
}

static int64_t place_in_a_row(Places *places, Buffer *b, int64_t end) {
  insert(places, b, end);
  return end + aligned(b->bytes);
}

static void place_scope(Graph *graph, Scope scope, Tier tier, bool variants) {
  int64_t end = 0, base;
  size_t n = 0, n_others = 0;
  Buffer **mine = ARENA_ARRAY(graph->arena, Buffer *, graph->n_buffers), **others = ARENA_ARRAY(graph->arena, Buffer *, graph->n_buffers);
  for (size_t i = 0; i < graph->n_buffers; i++)
    if (graph->buffers[i].scope == scope && graph->buffers[i].tier == tier) mine[n++] = &graph->buffers[i];
  Places places = {.items = ARENA_ARRAY(graph->arena, Placed, n), .head = -1};
  for (size_t i = 0; i < n; i++)
    if (mine[i]->persistent && buffer_is_fixed(graph, mine[i])) end = place_in_a_row(&places, mine[i], end);
  base = end;                                              // nobody shares bytes below it
  for (size_t i = 0; variants && i < n; i++)
    if (!mine[i]->persistent && buffer_is_fixed(graph, mine[i])) end = place_in_a_row(&places, mine[i], end);
  for (size_t i = 0; i < n; i++) {
    bool fixed = buffer_is_fixed(graph, mine[i]);
    if (mine[i]->persistent && !fixed) end = place_in_a_row(&places, mine[i], end);
    if (!mine[i]->persistent && !(fixed && variants)) others[n_others++] = mine[i];
  }
  qsort(others, n_others, sizeof *others, by_size);
  for (size_t i = 0; i < n_others; i++) place(&places, others[i], base);
}

Status memory_offsets(Graph *graph, bool variants) {
  for (int scope = 0; scope < SCOPE_COUNT; scope++)
    for (int tier = 0; tier < TIER_COUNT; tier++) place_scope(graph, (Scope)scope, (Tier)tier, variants);
  return STATUS_OK;
}
