#include "memory_offsets.h"

#include <stdlib.h>
#include <string.h>

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

// ---- Many buffers: in order of time, from the holes that are free then. Linear in buffers while holes are few, as they are in training graphs,
// whose lifetimes nest. ----------------------------------------------------------------------------------------------------------

typedef struct Hole { int64_t offset, end; } Hole;
typedef struct Holes { Hole *items; size_t n; } Holes;

static int by_first(const void *a, const void *b) {
  const Buffer *x = *(Buffer *const *)a, *y = *(Buffer *const *)b;
  if (x->first != y->first) return x->first < y->first ? -1 : 1;
  return by_size(a, b);
}

static int by_last(const void *a, const void *b) {
  const Buffer *x = *(Buffer *const *)a, *y = *(Buffer *const *)b;
  if (x->last != y->last) return x->last < y->last ? -1 : 1;
  return x < y ? -1 : x > y;
}

// The smallest hole that fits, the lowest of those; the last one has no end.
static void take(Holes *holes, Buffer *b) {
  int64_t bytes = aligned(b->bytes);
  size_t best = holes->n - 1;
  for (size_t i = 0; i < holes->n; i++) {
    int64_t size = holes->items[i].end - holes->items[i].offset;
    if (size >= bytes && size < holes->items[best].end - holes->items[best].offset) best = i;
  }
  Hole *h = &holes->items[best];
  b->offset_bytes = h->offset;
  h->offset += bytes;
  if (h->offset < h->end) return;
  memmove(h, h + 1, (holes->n - best - 1) * sizeof *h);
  holes->n--;
}

static void give_back(Holes *holes, const Buffer *b) {
  int64_t offset = b->offset_bytes, end = offset + aligned(b->bytes);
  size_t low = 0, high = holes->n;               // first hole behind it
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (holes->items[middle].offset < end) low = middle + 1;
    else high = middle;
  }
  Hole *next = &holes->items[low];               // there is one: the last has no end
  bool joins_next = next->offset == end, joins_before = low > 0 && next[-1].end == offset;
  if (end == offset) return;
  if (joins_next && joins_before) {
    next[-1].end = next->end;
    memmove(next, next + 1, (--holes->n - low) * sizeof *next);
  } else if (joins_next) {
    next->offset = offset;
  } else if (joins_before) {
    next[-1].end = end;
  } else {
    memmove(next + 1, next, (holes->n++ - low) * sizeof *next);
    *next = (Hole){offset, end};
  }
}

static void place_by_time(Arena *arena, Buffer **buffers, size_t n, int64_t base) {
  Buffer **ending = arena_copy(arena, buffers, n * sizeof *buffers);
  qsort(buffers, n, sizeof *buffers, by_first);
  qsort(ending, n, sizeof *ending, by_last);
  Holes holes = {.items = ARENA_ARRAY(arena, Hole, n + 2), .n = 1};
  holes.items[0] = (Hole){base, INT64_MAX};
  size_t ended = 0;
  for (size_t i = 0; i < n; i++) {
    while (ending[ended]->last < buffers[i]->first) give_back(&holes, ending[ended++]);
    take(&holes, buffers[i]);
  }
}

enum { BY_SIZE_MAX = 4096 };                     // more buffers than that: by time

// Gathered copies lie as their lifetimes allow in every variant: those follow from the order of collectives, in which variants agree.
static bool stays(const Graph *g, const Buffer *b, bool variants) {
  return buffer_is_fixed(g, b) && (b->persistent || (variants && b->scope == SCOPE_RANK));
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
  for (size_t i = 0; i < n; i++)
    if (!mine[i]->persistent && stays(graph, mine[i], variants)) end = place_in_a_row(&places, mine[i], end);
  for (size_t i = 0; i < n; i++) {
    if (stays(graph, mine[i], variants)) continue;
    if (mine[i]->persistent) end = place_in_a_row(&places, mine[i], end);
    else others[n_others++] = mine[i];
  }
  if (n_others > BY_SIZE_MAX) {
    place_by_time(graph->arena, others, n_others, end);
    return;
  }
  qsort(others, n_others, sizeof *others, by_size);
  for (size_t i = 0; i < n_others; i++) place(&places, others[i], base);
}

Status memory_offsets(Graph *graph, bool variants) {
  for (int scope = 0; scope < SCOPE_COUNT; scope++)
    for (int tier = 0; tier < TIER_COUNT; tier++) place_scope(graph, (Scope)scope, (Tier)tier, variants);
  return STATUS_OK;
}
