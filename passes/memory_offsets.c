#include "memory_offsets.h"

#include <stdlib.h>

static int64_t aligned(int64_t bytes) { return (bytes + BUFFER_ALIGN_BYTES - 1) / BUFFER_ALIGN_BYTES * BUFFER_ALIGN_BYTES; }

static int by_size(const void *a, const void *b) {
  const Buffer *x = *(Buffer *const *)a, *y = *(Buffer *const *)b;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
  if (x->first != y->first) return x->first < y->first ? -1 : 1;
  return x < y ? -1 : x > y;
}

// Placed buffers, ascending by offset, as a linked list of indices.
typedef struct Placed { Buffer *buffer; int32_t next; } Placed;

static void place(Placed *placed, size_t n, int32_t *head, Buffer *b, int64_t base) {
  int64_t offset = base;
  int32_t before = -1, insert_before = *head;
  for (int32_t i = *head; i >= 0; i = placed[i].next) {
    const Buffer *q = placed[i].buffer;
    if (q->last < b->first || q->first > b->last) continue;
    if (q->offset_bytes >= offset + aligned(b->bytes)) break;
    int64_t end = q->offset_bytes + aligned(q->bytes);
    if (end > offset) offset = end;
  }
  b->offset_bytes = offset;
  for (insert_before = *head; insert_before >= 0 && placed[insert_before].buffer->offset_bytes <= offset; insert_before = placed[insert_before].next)
    before = insert_before;
  placed[n] = (Placed){b, insert_before};
  if (before < 0) *head = (int32_t)n;
  else placed[before].next = (int32_t)n;
}

static void place_scope(Graph *graph, Scope scope, Tier tier) {
  int64_t end = 0;
  size_t n = 0;
  Buffer **order = ARENA_ARRAY(graph->arena, Buffer *, graph->n_buffers);
  for (size_t i = 0; i < graph->n_buffers; i++) {
    Buffer *b = &graph->buffers[i];
    if (b->scope != scope || b->tier != tier) continue;
    if (b->persistent || scope == SCOPE_PROCESS) {
      b->offset_bytes = end;
      end += aligned(b->bytes);
    } else {
      order[n++] = b;
    }
  }
  qsort(order, n, sizeof *order, by_size);
  Placed *placed = ARENA_ARRAY(graph->arena, Placed, n);
  int32_t head = -1;
  for (size_t i = 0; i < n; i++) place(placed, i, &head, order[i], end);
}

Status memory_offsets(Graph *graph) {
  for (int scope = 0; scope < SCOPE_COUNT; scope++)
    for (int tier = 0; tier < TIER_COUNT; tier++) place_scope(graph, (Scope)scope, (Tier)tier);
  return STATUS_OK;
}
