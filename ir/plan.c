#include "plan.h"

#include <stdio.h>
#include <string.h>

#include "op.h"

static const char *axis_name(const Graph *g, int64_t axis) { return axis >= 0 && axis < g->mesh.n_axes ? g->mesh.axes[axis].name : "?"; }

// What is counted by itself, beside the formula, rather than as its collective.
static bool has_own_kind(const char *kind) { return kind && (!strcmp(kind, "control") || !strcmp(kind, "frozen") || !strcmp(kind, "optimizer")); }

bool ledger_in_formula(const LedgerEntry *entry) { return !has_own_kind(entry->kind); }

static int64_t times_per_step(const Graph *g, const Node *n) { return n->phase == PHASE_INIT ? 0 : n->phase == PHASE_MICRO ? g->recipe.micro_per_rank : 1; }

static LedgerEntry transfer_entry(const Graph *g, const Node *n) {
  const Value *from = n->inputs[0], *to = n->outputs[0];
  return (LedgerEntry){.step = n->id, .op = n->op->name, .kind = attr_string(n, "kind"), .axis = "", .bytes = value_bytes(from), .times = times_per_step(g, n),
                       .copied_bytes = value_bytes(from), .wire = from->type.dtype, .bucket = (int32_t)attr_int(n, "bucket"),
                       .tier = from->tier == TIER_DEVICE ? to->tier : from->tier, .cause = n->cause};
}

size_t plan_ledger(const Graph *program, Arena *arena, LedgerEntry **out) {
  LedgerEntry *entries = NULL;
  size_t n_entries = 0, capacity = 0;
  for (size_t i = 0; i < program->n_nodes; i++) {
    const Node *n = program->nodes[i];
    if (!n->op->sent_bytes || !n->n_outputs || !n->outputs[0] || !n->n_inputs || !n->inputs[0]) continue;
    const char *kind = attr_string(n, "kind");
    int64_t bytes = n->op->sent_bytes(n);
    LedgerEntry e = {.step = n->id, .op = n->op->name, .kind = has_own_kind(kind) ? kind : n->op->name, .axis = axis_name(program, attr_int(n, "axis")), .bytes = bytes,
                     .times = times_per_step(program, n),
                     .copied_bytes = n->guard == GUARD_READ_BEGIN ? 0 : bytes, .wire = n->inputs[0]->type.dtype,
                     .accumulator = n->op->flags & OP_SUMS_RANKS ? dtype_of_sums(n->inputs[0]->type.dtype) : DTYPE_NONE,
                     .bucket = (int32_t)attr_int(n, "bucket"), .cause = n->cause};
    if (n->op->wire_bytes && program->recipe.processes > 1) e.wire_bytes = n->op->wire_bytes(n, program->recipe.processes, program->recipe.ranks_per_process);
    ARENA_PUSH(arena, entries, n_entries, capacity, e);
  }
  *out = entries;
  return n_entries;
}

size_t plan_transfers(const Graph *program, Arena *arena, LedgerEntry **out) {
  LedgerEntry *entries = NULL;
  size_t n_entries = 0, capacity = 0;
  for (size_t i = 0; i < program->n_nodes; i++) {
    const Node *n = program->nodes[i];
    bool whole = (n->op->flags & OP_TRANSFER) && n->n_outputs && n->outputs[0] && n->n_inputs && n->inputs[0];
    if (whole) ARENA_PUSH(arena, entries, n_entries, capacity, transfer_entry(program, n));
  }
  *out = entries;
  return n_entries;
}

int64_t plan_arena_bytes(const Graph *program, Scope scope, Tier tier) {
  int64_t most = 0;
  for (size_t i = 0; i < program->n_buffers; i++) {
    const Buffer *b = &program->buffers[i];
    int64_t end = bytes_add(b->offset_bytes, b->bytes);
    if (b->scope == scope && b->tier == tier && end > most) most = end;
  }
  return bytes_add(most, PLAN_PAGE_BYTES - 1) / PLAN_PAGE_BYTES * PLAN_PAGE_BYTES;
}

int64_t buffer_process_bytes(const Graph *g, const Buffer *b) {
  return b->scope == SCOPE_PROCESS ? b->bytes : bytes_times(b->bytes, g->recipe.ranks_per_process > 0 ? g->recipe.ranks_per_process : 1);
}

static void count_sent(const Graph *g, Arena *arena, PlanBytes *p) {
  LedgerEntry *ledger;
  size_t n = plan_ledger(g, arena, &ledger);
  for (size_t i = 0; i < n; i++) {
    p->sent_bytes = bytes_add(p->sent_bytes, bytes_times(ledger[i].bytes, ledger[i].times));
    p->wire_bytes = bytes_add(p->wire_bytes, bytes_times(ledger[i].wire_bytes, ledger[i].times));
    p->copied_bytes = bytes_add(p->copied_bytes, bytes_times(ledger[i].copied_bytes, ledger[i].times));
  }
  for (size_t i = 0; i < g->n_savings; i++) p->saved_bytes = bytes_add(p->saved_bytes, g->savings[i].bytes);
  int ranks = g->mesh.n_axes ? g->mesh.axes[0].size : 1;
  int64_t k = g->recipe.micro_per_rank, reductions = g->recipe.reduce == REDUCE_MICRO ? k : 1;
  int64_t grad_bytes = 0;        // partial sums over micro-batches travel in their own type
  for (size_t b = 0; b < g->n_buckets; b++) {
    const Bucket *bucket = &g->buckets[b];
    Dtype grad = g->recipe.reduce == REDUCE_STEP && k > 1 ? dtype_of_sums(bucket->compute) : bucket->compute;
    if (!bucket->trainable) continue;
    p->padded_param_bytes = bytes_add(p->padded_param_bytes, bytes_times(bucket->elems, dtype_bytes(bucket->compute)));
    grad_bytes = bytes_add(grad_bytes, bytes_times(bucket->elems, dtype_bytes(grad)));
  }
  int64_t second_bytes = g->recipe.zero == 0 && g->recipe.reduce == REDUCE_STEP ? grad_bytes : p->padded_param_bytes;     // an all-reduce gives back what it takes
  p->formula_bytes = bytes_add(bytes_times(grad_bytes / ranks * (ranks - 1), reductions),
                               bytes_times(second_bytes / ranks * (ranks - 1), g->recipe.zero == 3 ? 2 * k : 1));
}

static void count_moved(const Graph *g, Arena *arena, PlanBytes *p) {
  LedgerEntry *entries;
  size_t n = plan_transfers(g, arena, &entries);
  for (size_t i = 0; i < n; i++) {
    TierBytes *tier = &p->tiers[entries[i].tier];
    int64_t *moved = g->nodes[entries[i].step]->outputs[0]->tier == TIER_DEVICE ? &tier->fetched_bytes : &tier->offloaded_bytes;
    *moved = bytes_add(*moved, bytes_times(entries[i].bytes, entries[i].times));
  }
}

// Categories at the step where most transient bytes are live; what remains of the arena is padding (alignment and fragmentation).
static void count_peak(const Graph *g, Tier tier, Arena *arena, TierBytes *p) {
  int64_t *live = ARENA_ARRAY(arena, int64_t, g->n_nodes + 1);
  int ranks = g->recipe.ranks_per_process;
  for (size_t i = 0; i < g->n_buffers; i++) {
    const Buffer *b = &g->buffers[i];
    if (b->tier != tier || b->persistent || b->last >= g->n_nodes || b->first > b->last) continue;
    int64_t bytes = buffer_process_bytes(g, b);
    live[b->first] = bytes_add(live[b->first], bytes);
    live[b->last + 1] = bytes_add(live[b->last + 1], -bytes);
  }
  size_t peak = 0;
  int64_t most = 0, now = 0;
  for (size_t i = 0; i < g->n_nodes; i++) {
    now = bytes_add(now, live[i]);
    if (now > most) {
      most = now;
      peak = i;
    }
  }
  p->rank_arena_bytes = plan_arena_bytes(g, SCOPE_RANK, tier);
  p->process_arena_bytes = plan_arena_bytes(g, SCOPE_PROCESS, tier);
  p->peak_bytes = bytes_add(bytes_times(p->rank_arena_bytes, ranks), p->process_arena_bytes);
  int64_t counted = 0;
  for (size_t i = 0; i < g->n_buffers; i++) {
    const Buffer *b = &g->buffers[i];
    if (b->tier != tier || (!b->persistent && (b->first > peak || b->last < peak))) continue;
    int64_t bytes = buffer_process_bytes(g, b);
    p->by_category[b->category] = bytes_add(p->by_category[b->category], bytes);
    counted = bytes_add(counted, bytes);
  }
  p->by_category[CATEGORY_PADDING] = p->peak_bytes - counted;
}

int64_t plan_process_bytes(const Graph *program, Tier tier) {
  int64_t ranks = program->recipe.ranks_per_process;
  return bytes_add(bytes_times(plan_arena_bytes(program, SCOPE_RANK, tier), ranks), plan_arena_bytes(program, SCOPE_PROCESS, tier));
}

int64_t plan_budget_bytes(const Graph *program, Tier tier) {
  const Recipe *r = &program->recipe;
  const int64_t said[TIER_COUNT] = {[TIER_DEVICE] = r->memory_bytes, [TIER_HOST] = r->host_bytes, [TIER_NVME] = r->nvme_bytes};
  return said[tier] ? said[tier] : INT64_MAX;
}

PlanBytes plan_bytes(const Graph *program, Arena *arena) {
  PlanBytes p = {0};
  count_sent(program, arena, &p);
  count_moved(program, arena, &p);
  for (int tier = 0; tier < TIER_COUNT; tier++) count_peak(program, (Tier)tier, arena, &p.tiers[tier]);
  return p;
}

static bool is_power_of_two(int64_t n) { return n > 0 && !(n & (n - 1)); }

bool plan_bits_are_shared(const Graph *program) {
  const Recipe *r = &program->recipe;
  return r->accumulate == ACCUMULATE_TREE && is_power_of_two(mesh_ranks(&program->mesh)) && is_power_of_two(r->micro_per_rank);
}

const char *plan_bits_rule(const Graph *program, char out[PLAN_BITS_BYTES]) {
  int ranks = mesh_ranks(&program->mesh);
  long long micro = (long long)program->recipe.micro_per_rank;
  if (plan_bits_are_shared(program))
    snprintf(out, PLAN_BITS_BYTES, "the same for all powers of two of ranks and micro-batches per rank that make %lld micro-batches a step", ranks * micro);
  else
    snprintf(out, PLAN_BITS_BYTES, "for %d rank%s with %lld micro-batch%s each only: results repeat, but other numbers of ranks give other last bits",
             ranks, ranks == 1 ? "" : "s", micro, micro == 1 ? "" : "es");
  size_t used = strlen(out);
  if (program->recipe.tile_bytes)
    snprintf(out + used, PLAN_BITS_BYTES - used, "; of parameters in tiles of up to %lld bytes (--tile-bytes)", (long long)program->recipe.tile_bytes);
  return out;
}

// ---- Variants -----------------------------------------------------------------------------------------------------------------

bool buffer_is_fixed(const Graph *graph, const Buffer *b) {
  if (b->scope == SCOPE_PROCESS || (b->persistent && b->category != CATEGORY_CONSTS)) return true;
  if (b->first >= graph->n_nodes || b->last >= graph->n_nodes) return false;
  Phase first = graph->nodes[b->first]->phase, last = graph->nodes[b->last]->phase;
  return (b->persistent && first == PHASE_INIT) || (last == PHASE_UPDATE && first != PHASE_UPDATE);
}

static bool same_text(const char *a, const char *b) { return a == b || (a && b && !strcmp(a, b)); }

static Status compare_buckets(const Graph *a, const Graph *b) {
  if (a->n_buckets != b->n_buckets) FAIL(UNSUPPORTED, NULL, "another variant has %zu buckets, this one %zu", a->n_buckets, b->n_buckets);
  for (size_t i = 0; i < a->n_buckets; i++) {
    const Bucket *x = &a->buckets[i], *y = &b->buckets[i];
    bool same = x->dtype == y->dtype && x->compute == y->compute && x->n_params == y->n_params && x->elems == y->elems && x->shard_elems == y->shard_elems;
    for (int k = 0; same && k < x->n_params; k++) same = same_text(x->params[k], y->params[k]) && x->starts[k] == y->starts[k];
    if (!same) FAIL(UNSUPPORTED, NULL, "bucket %zu holds other parameters than in another variant", i);
  }
  return STATUS_OK;
}

static Status compare_fixed_buffers(const Graph *a, const Graph *b) {
  size_t n = 0;
  for (; n < a->n_buffers && buffer_is_fixed(a, &a->buffers[n]); n++) {
    const Buffer *x = &a->buffers[n], *y = n < b->n_buffers ? &b->buffers[n] : NULL;
    if (!y || !buffer_is_fixed(b, y) || !same_text(x->name, y->name) || x->scope != y->scope || x->tier != y->tier || x->bytes != y->bytes ||
        x->offset_bytes != y->offset_bytes || x->persistent != y->persistent)
      FAIL(UNSUPPORTED, x->name, "its buffer of %lld bytes at %lld is not the same in another variant", (long long)x->bytes, (long long)x->offset_bytes);
  }
  if (n < b->n_buffers && buffer_is_fixed(b, &b->buffers[n])) FAIL(UNSUPPORTED, b->buffers[n].name, "another variant has no such buffer");
  return STATUS_OK;
}

static bool is_agreed(const Node *n) { return n->phase == PHASE_MICRO && ((n->op->flags & OP_COLLECTIVE) || n->guard != GUARD_NONE); }

// The next collective or guard of phase micro from *at on; NULL: none.
static const Node *next_agreed(const Graph *g, size_t *at) {
  while (*at < g->n_nodes && !is_agreed(g->nodes[*at])) ++*at;
  return *at < g->n_nodes ? g->nodes[(*at)++] : NULL;
}

static int64_t first_bytes(Value *const *values, int n) { return n && values[0] ? value_bytes(values[0]) : 0; }

// Ranks of one step run different variants and meet in their collectives.
static Status compare_collectives(const Graph *a, const Graph *b) {
  for (size_t i = 0, k = 0;;) {
    const Node *x = next_agreed(a, &i), *y = next_agreed(b, &k);
    if (!x && !y) return STATUS_OK;
    if (!x || !y || x->op != y->op || x->queue != y->queue || x->guard != y->guard || x->region != y->region ||
        first_bytes(x->inputs, x->n_inputs) != first_bytes(y->inputs, y->n_inputs) ||
        first_bytes(x->outputs, x->n_outputs) != first_bytes(y->outputs, y->n_outputs))
      FAIL(UNSUPPORTED, y ? y->name : x->name, "variants disagree on the order of collectives: ranks with batches of different shapes would not meet; "
                                       "larger buckets, a lower stage, --recompute none or blocks, or batches of one shape keep one order");
  }
}

static bool same_place(const Value *x, const Value *y) {
  return x->type.dtype == y->type.dtype && type_same_shape(&x->type, &y->type) && x->loc.buffer == y->loc.buffer && x->loc.offset_bytes == y->loc.offset_bytes &&
         x->loc.rank_stride_bytes == y->loc.rank_stride_bytes;
}

// What update reads from outside lies where program 0's update looks for it.
static Status compare_updates(const Graph *a, const Graph *b) {
  size_t i = 0, k = 0;
  while (i < a->n_nodes && a->nodes[i]->phase != PHASE_UPDATE) i++;
  while (k < b->n_nodes && b->nodes[k]->phase != PHASE_UPDATE) k++;
  if (a->n_nodes - i != b->n_nodes - k) FAIL(UNSUPPORTED, NULL, "the update of another variant has %zu steps, of this one %zu", a->n_nodes - i, b->n_nodes - k);
  for (; i < a->n_nodes; i++, k++) {
    const Node *x = a->nodes[i], *y = b->nodes[k];
    if (x->op != y->op || x->n_inputs != y->n_inputs) FAIL(UNSUPPORTED, y->name, "the update of another variant does %s here", x->op->name);
    for (int v = 0; v < x->n_inputs; v++) {
      const Value *in = x->inputs[v];
      if (!in || (in->producer && in->producer->phase == PHASE_UPDATE)) continue;
      if (!y->inputs[v] || !same_place(in, y->inputs[v])) FAIL(UNSUPPORTED, in->name, "what the update reads lies elsewhere in another variant");
    }
  }
  return STATUS_OK;
}

static Status compare_variants(const Graph *a, const Graph *b) {
  if (mesh_ranks(&a->mesh) != mesh_ranks(&b->mesh) || a->recipe.zero != b->recipe.zero || a->recipe.reduce != b->recipe.reduce ||
      a->recipe.accumulate != b->recipe.accumulate || a->recipe.micro_per_rank != b->recipe.micro_per_rank ||
      !same_text(a->recipe.loss_rule, b->recipe.loss_rule) || !same_text(a->recipe.isa, b->recipe.isa))
    FAIL(UNSUPPORTED, NULL, "variants were compiled with different options, or weigh micro-batches by different rules");
  TRY(compare_buckets(a, b));
  TRY(compare_fixed_buffers(a, b));
  TRY(compare_collectives(a, b));
  return compare_updates(a, b);
}

static Status append_variant(Plan *plan, const Graph *variant, Arena *arena) {
  ARENA_GUARD(arena);
  const Graph **variants = ARENA_ARRAY(arena, const Graph *, plan->n_variants + 1);
  memcpy(variants, plan->variants, sizeof *variants * (size_t)plan->n_variants);
  variants[plan->n_variants] = variant;
  plan->variants = variants;
  plan->n_variants++;
  ARENA_RETURN(arena, STATUS_OK);
}

Status plan_add_variant(Plan *plan, const Graph *variant, Arena *arena) {
  if (plan->n_programs != 1) FAIL(UNSUPPORTED, NULL, "a plan of %d programs has no variants", plan->n_programs);
  Status status = compare_variants(plan->programs[0], variant);
  if (status) return status_context(status, "the model for inputs of another shape");
  return append_variant(plan, variant, arena);
}

static int64_t arena_bytes(const Graph *g) {
  return bytes_add(bytes_times(plan_arena_bytes(g, SCOPE_RANK, TIER_DEVICE), g->recipe.ranks_per_process), plan_arena_bytes(g, SCOPE_PROCESS, TIER_DEVICE));
}

const Graph *plan_largest_variant(const Plan *plan) {
  const Graph *largest = plan->variants[0];
  for (int i = 1; i < plan->n_variants; i++)
    if (arena_bytes(plan->variants[i]) > arena_bytes(largest)) largest = plan->variants[i];
  return largest;
}
