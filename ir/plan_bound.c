#include "plan.h"

// Of one copy of an arena: what lives always, and the most of the others that lives at one step. In whole pages.
static int64_t arena_bound(const Graph *g, Scope scope, Tier tier, Arena *arena) {
  int64_t *change = ARENA_ARRAY(arena, int64_t, g->n_nodes + 1), always = 0, most = 0, live = 0;
  for (size_t i = 0; i < g->n_buffers; i++) {
    const Buffer *b = &g->buffers[i];
    if (b->scope != scope || b->tier != tier) continue;
    int64_t bytes = bytes_add(b->bytes, BUFFER_ALIGN_BYTES - 1) / BUFFER_ALIGN_BYTES * BUFFER_ALIGN_BYTES;
    if (b->persistent) always = bytes_add(always, bytes);
    if (b->persistent || b->last >= g->n_nodes || b->first > b->last) continue;
    change[b->first] = bytes_add(change[b->first], bytes);
    change[b->last + 1] = bytes_add(change[b->last + 1], -bytes);
  }
  for (size_t i = 0; i < g->n_nodes; i++) {
    live = bytes_add(live, change[i]);
    if (live > most) most = live;
  }
  return bytes_add(bytes_add(always, most), PLAN_PAGE_BYTES - 1) / PLAN_PAGE_BYTES * PLAN_PAGE_BYTES;
}

int64_t plan_lower_bound_bytes(const Graph *g, Tier tier, Arena *arena) {
  int64_t ranks = g->recipe.ranks_per_process > 0 ? g->recipe.ranks_per_process : 1;
  return bytes_add(bytes_times(arena_bound(g, SCOPE_RANK, tier, arena), ranks), arena_bound(g, SCOPE_PROCESS, tier, arena));
}
