#include "plan.h"

#include <string.h>

#include "op.h"

// Logical bytes that one rank sends in one execution (ring counting): (N-1) shards for a gather or a scatter, 2 (N-1)/N of the whole for a reduction.
static int64_t sent_bytes(const Node *n, int parts) {
  if (!strcmp(n->op->name, "AllGather")) return (parts - 1) * value_bytes(n->inputs[0]);
  if (!strcmp(n->op->name, "ReduceScatter")) return (parts - 1) * value_bytes(n->outputs[0]);
  return 2 * (parts - 1) * value_bytes(n->inputs[0]) / parts;
}

static const char *axis_name(const Graph *g, int64_t axis) { return axis >= 0 && axis < g->mesh.n_axes ? g->mesh.axes[axis].name : "?"; }

size_t plan_ledger(const Graph *program, Arena *arena, LedgerEntry **out) {
  LedgerEntry *entries = NULL;
  size_t n_entries = 0, capacity = 0;
  for (size_t i = 0; i < program->n_nodes; i++) {
    const Node *n = program->nodes[i];
    if (!(n->op->flags & OP_COLLECTIVE) || !attr_spec(n->op, "parts") || !n->n_outputs) continue;
    const char *kind = attr_string(n, "kind");
    bool own_kind = kind && (!strcmp(kind, "control") || !strcmp(kind, "frozen"));
    int64_t bytes = sent_bytes(n, (int)attr_int(n, "parts"));
    LedgerEntry e = {.step = n->id, .op = n->op->name, .kind = own_kind ? kind : n->op->name, .axis = axis_name(program, attr_int(n, "axis")), .bytes = bytes,
                     .times = n->phase == PHASE_MICRO ? program->recipe.micro_per_rank : 1,
                     .copied_bytes = n->guard == GUARD_READ_BEGIN ? 0 : bytes, .wire = n->outputs[0]->type.dtype,
                     .accumulator = strcmp(n->op->name, "AllGather") ? n->outputs[0]->type.dtype : DTYPE_NONE,
                     .bucket = (int32_t)attr_int(n, "bucket"), .cause = n->cause};
    ARENA_PUSH(arena, entries, n_entries, capacity, e);
  }
  *out = entries;
  return n_entries;
}

static int64_t pages(int64_t bytes) { return (bytes + PLAN_PAGE_BYTES - 1) / PLAN_PAGE_BYTES * PLAN_PAGE_BYTES; }

static void count_sent(const Graph *g, Arena *arena, PlanBytes *p) {
  LedgerEntry *ledger;
  size_t n = plan_ledger(g, arena, &ledger);
  for (size_t i = 0; i < n; i++) {
    p->sent_bytes += ledger[i].bytes * ledger[i].times;
    p->copied_bytes += ledger[i].copied_bytes * ledger[i].times;
  }
  for (size_t i = 0; i < g->n_savings; i++) p->saved_bytes += g->savings[i].bytes;
  int ranks = g->mesh.n_axes ? g->mesh.axes[0].size : 1;
  int64_t k = g->recipe.micro_per_rank, reductions = g->recipe.reduce == REDUCE_MICRO ? k : 1;
  for (size_t b = 0; b < g->n_buckets; b++)
    if (g->buckets[b].trainable) p->padded_param_bytes += g->buckets[b].elems * dtype_bytes(g->buckets[b].dtype);
  p->formula_bytes = p->padded_param_bytes / ranks * (ranks - 1) * (reductions + (g->recipe.zero == 3 ? 2 * k : 1));
}

// Categories at the step where most transient bytes are live; what remains of the arena is padding (alignment and fragmentation).
static void count_peak(const Graph *g, Arena *arena, PlanBytes *p) {
  int64_t *live = ARENA_ARRAY(arena, int64_t, g->n_nodes + 1);
  for (size_t i = 0; i < g->n_buffers; i++) {
    const Buffer *b = &g->buffers[i];
    if (b->tier != TIER_DEVICE) continue;
    int64_t end = b->offset_bytes + b->bytes;
    int64_t *arena_bytes = b->scope == SCOPE_PROCESS ? &p->process_arena_bytes : &p->rank_arena_bytes;
    if (end > *arena_bytes) *arena_bytes = end;
    if (b->persistent || b->scope == SCOPE_PROCESS || b->last >= g->n_nodes) continue;
    live[b->first] += b->bytes;
    live[b->last + 1] -= b->bytes;
  }
  size_t peak = 0;
  int64_t most = 0, now = 0;
  for (size_t i = 0; i < g->n_nodes; i++) {
    now += live[i];
    if (now > most) {
      most = now;
      peak = i;
    }
  }
  p->rank_arena_bytes = pages(p->rank_arena_bytes);
  p->process_arena_bytes = pages(p->process_arena_bytes);
  int ranks = g->recipe.ranks_per_process;
  p->peak_bytes = ranks * p->rank_arena_bytes + p->process_arena_bytes;
  int64_t counted = 0;
  for (size_t i = 0; i < g->n_buffers; i++) {
    const Buffer *b = &g->buffers[i];
    if (b->tier != TIER_DEVICE || (!b->persistent && b->scope == SCOPE_RANK && (b->first > peak || b->last < peak))) continue;
    int64_t bytes = b->scope == SCOPE_PROCESS ? b->bytes : ranks * b->bytes;
    p->peak_by_category[b->category] += bytes;
    counted += bytes;
  }
  p->peak_by_category[CATEGORY_PADDING] = p->peak_bytes - counted;
}

PlanBytes plan_bytes(const Graph *program, Arena *arena) {
  PlanBytes p = {0};
  count_sent(program, arena, &p);
  count_peak(program, arena, &p);
  return p;
}
