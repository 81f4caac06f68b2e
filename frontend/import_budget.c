// A file of a few megabytes must not take gigabytes: what reading it may allocate is bounded by its size.
#include "import_state.h"

static const size_t BYTES_AT_LEAST = (size_t)16 << 20;
enum { BYTES_PER_BYTE = 32, MODEL_GRAPH = 7, GRAPH_INITIALIZER = 5 };

static size_t weight_bytes(Bytes model) {
  size_t n = 0;
  for (WireField w; wire_next(&model, &w);) {
    if (w.number != MODEL_GRAPH || w.type != WIRE_BYTES) continue;
    for (WireField g; wire_next(&w.bytes, &g);)
      if (g.number == GRAPH_INITIALIZER) n += g.all.n;
  }
  return n;
}

void budget_begin(Model *model, Arena *arena) {
  size_t other = model->file.n - weight_bytes(model->file);
  size_t budget = arena->used_bytes + BYTES_AT_LEAST + BYTES_PER_BYTE * other;
  model->arena_limit = arena->limit_bytes;
  if (!arena->limit_bytes || budget < arena->limit_bytes) arena->limit_bytes = budget;
}

void budget_allow(Model *model, Arena *arena, size_t n_bytes) {
  if (arena->limit_bytes == model->arena_limit) return;
  size_t room = model->arena_limit ? model->arena_limit - arena->limit_bytes : SIZE_MAX - arena->limit_bytes;
  arena->limit_bytes += n_bytes < room ? n_bytes : room;
}

void budget_end(Model *model, Arena *arena) { arena->limit_bytes = model->arena_limit; }
