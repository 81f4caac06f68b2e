#include "plan_view.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/op.h"

// ---- Causes -------------------------------------------------------------------------------------------------------------------

const char *ledger_purpose(const Graph *g, const LedgerEntry *e) {
  const Node *n = g->nodes[e->step];
  if (!strcmp(e->kind, "control")) return "loss and norm";
  if (!strcmp(e->kind, "optimizer")) return "what the optimizer needs";
  if (!strcmp(e->kind, "frozen")) return "frozen parameters";
  if (n->op->flags & OP_SUMS_RANKS) return "gradients";
  if (n->phase == PHASE_UPDATE) return "updated parameters";
  if (n->phase == PHASE_INIT) return "start";
  return n->backward ? "parameters for backward" : "parameters for forward";
}

static void count_causes(PlanView *v, Arena *arena) {
  CauseBytes *causes = NULL;
  size_t n = 0, capacity = 0;
  for (size_t i = 0; i < v->n_ledger; i++) {
    const LedgerEntry *e = &v->ledger[i];
    const char *what = ledger_purpose(v->graph, e), *pass = e->cause.pass ? e->cause.pass : "?";
    size_t k = 0;
    while (k < n && (strcmp(causes[k].what, what) || strcmp(causes[k].pass, pass))) k++;
    if (k == n) ARENA_PUSH(arena, causes, n, capacity, ((CauseBytes){.what = what, .pass = pass}));
    causes[k].bytes = bytes_add(causes[k].bytes, bytes_times(e->bytes, e->times));
    causes[k].copied_bytes = bytes_add(causes[k].copied_bytes, bytes_times(e->copied_bytes, e->times));
    causes[k].count = bytes_add(causes[k].count, e->times);
  }
  v->causes = causes;
  v->n_causes = n;
}

// ---- The account --------------------------------------------------------------------------------------------------------------

const char *account_kind_name(AccountKind kind) {
  static const char *const names[] = {[ACCOUNT_LEAST] = "least", [ACCOUNT_MORE] = "more", [ACCOUNT_FORMULA] = "formula", [ACCOUNT_LESS] = "saved",
                                      [ACCOUNT_SENT] = "sent"};
  return names[kind];
}

typedef struct Account { AccountLine *lines; size_t n, capacity; Arena *arena; } Account;

static void add_line(Account *a, AccountKind kind, int64_t bytes, const char *term, const char *why) {
  bool always = kind == ACCOUNT_LEAST || kind == ACCOUNT_FORMULA || kind == ACCOUNT_SENT;
  if (always || bytes) ARENA_PUSH(a->arena, a->lines, a->n, a->capacity, ((AccountLine){kind, bytes, term, why}));
}

static int64_t kind_bytes(const PlanView *v, const char *kind) {
  int64_t sum = 0;
  for (size_t i = 0; i < v->n_ledger; i++)
    if (!strcmp(v->ledger[i].kind, kind)) sum = bytes_add(sum, bytes_times(v->ledger[i].bytes, v->ledger[i].times));
  return sum;
}

static const char *first_param(const Graph *g, const Saving *s) {
  bool named = s->bucket >= 0 && (size_t)s->bucket < g->n_buckets && g->buckets[s->bucket].n_params;
  return named ? g->buckets[s->bucket].params[0] : NULL;
}

// One line for each reason, however many buckets it holds for.
static void add_savings(Account *a, const Graph *g) {
  bool *told = ARENA_ARRAY(a->arena, bool, g->n_savings);
  for (size_t i = 0; i < g->n_savings; i++) {
    const Saving *first = &g->savings[i];
    int64_t bytes = 0, n = 0;
    for (size_t k = i; !told[i] && k < g->n_savings; k++) {
      if (k > i && (told[k] || strcmp(g->savings[k].reason, first->reason))) continue;
      bytes = bytes_add(bytes, g->savings[k].bytes);
      n++;
      if (k > i) told[k] = true;
    }
    if (!n) continue;
    const char *param = first_param(g, first), *of = param ? arena_printf(a->arena, "bucket %d from '%s'", first->bucket, param) : "what is in no bucket";
    const char *whose = n == 1 ? of : arena_printf(a->arena, "%" PRId64 " buckets, the first of them %s", n, of);
    add_line(a, ACCOUNT_LESS, bytes, NULL, arena_printf(a->arena, "%s: %s", whose, first->reason));
  }
}

// The least: any data-parallel step that starts from sharded or equal parameters sums each gradient (N-1)/N psi and spreads its result, as much again.
static void make_account(PlanView *v, Arena *arena) {
  const Graph *g = v->graph;
  const Recipe *r = &g->recipe;
  Account a = {.arena = arena};
  int ranks = mesh_ranks(&g->mesh);
  int64_t unit = bytes_times(v->bytes.padded_param_bytes / ranks, ranks - 1), k = r->micro_per_rank, sums = r->reduce == REDUCE_MICRO ? k : 1;
  add_line(&a, ACCOUNT_LEAST, bytes_times(unit, 2), "2 (N-1)/N psi", "each gradient is summed over the ranks once and each parameter gathered once a step");
  if (r->zero == 3)
    add_line(&a, ACCOUNT_MORE, bytes_times(unit, 2 * k - 1), "(2k-1)(N-1)/N psi",
             "stage 3 holds no whole parameter: gathered for forward and again for backward of each micro-batch");
  add_line(&a, ACCOUNT_MORE, bytes_times(unit, sums - 1), "(r-1)(N-1)/N psi",
           r->zero >= 2 ? "gradients are summed after each micro-batch, so that no rank holds whole ones" :
                          "gradients are summed after each micro-batch (--reduce micro)");
  add_line(&a, ACCOUNT_FORMULA, v->bytes.formula_bytes, r->zero == 3 ? "(N-1)/N psi (r + 2k)" : "(N-1)/N psi (r + 1)", "what the stage sends by the book");
  add_savings(&a, g);
  add_line(&a, ACCOUNT_MORE, kind_bytes(v, "frozen"), NULL, "parameters that do not train are gathered, too, and psi does not count them");
  add_line(&a, ACCOUNT_MORE, kind_bytes(v, "optimizer"), NULL, "sums and whole matrices that only the optimizer needs; psi does not count them");
  add_line(&a, ACCOUNT_MORE, kind_bytes(v, "control"), NULL, "sums of the loss, its count and the gradient norm");
  add_line(&a, ACCOUNT_SENT, v->bytes.sent_bytes, NULL, "sum of the ledger");
  v->account = a.lines;
  v->n_account = a.n;
}

// ---- Memory -------------------------------------------------------------------------------------------------------------------

// Where the last buffer of the tier ends, in whole pages.
static int64_t tier_arena_bytes(const Graph *g, Tier tier, Scope scope) {
  int64_t most = 0;
  for (size_t i = 0; i < g->n_buffers; i++) {
    const Buffer *b = &g->buffers[i];
    int64_t end = bytes_add(b->offset_bytes, b->bytes);
    if (b->scope == scope && b->tier == tier && end > most) most = end;
  }
  return bytes_add(most, PLAN_PAGE_BYTES - 1) / PLAN_PAGE_BYTES * PLAN_PAGE_BYTES;
}

static void sum_up(int64_t *values, size_t n) {
  for (size_t i = 1; i < n; i++) values[i] = bytes_add(values[i], values[i - 1]);
}

static bool make_curve(const Graph *g, Tier tier, Arena *arena, MemoryCurve *out) {
  int64_t *live[CATEGORY_COUNT] = {NULL};
  bool any = false;
  for (size_t i = 0; i < g->n_buffers; i++) {
    const Buffer *b = &g->buffers[i];
    bool lives = b->persistent;
    if (b->tier != tier || (!lives && (b->last >= g->n_nodes || b->first > b->last))) continue;
    if (!live[b->category]) live[b->category] = ARENA_ARRAY(arena, int64_t, g->n_nodes + 1);
    int64_t bytes = buffer_process_bytes(g, b), *at = live[b->category];
    uint32_t first = lives ? 0 : b->first;
    at[first] = bytes_add(at[first], bytes);
    if (!lives) at[b->last + 1] = bytes_add(at[b->last + 1], -bytes);
    any = true;
  }
  if (!any || !g->n_nodes) return false;
  int64_t *total = ARENA_ARRAY(arena, int64_t, g->n_nodes);
  for (int c = 0; c < CATEGORY_COUNT; c++) {
    if (!live[c]) continue;
    sum_up(live[c], g->n_nodes);
    for (size_t i = 0; i < g->n_nodes; i++) total[i] = bytes_add(total[i], live[c][i]);
  }
  *out = (MemoryCurve){.tier = tier, .total = total};
  for (int c = 0; c < CATEGORY_COUNT; c++) out->live[c] = live[c];
  for (size_t i = 1; i < g->n_nodes; i++)
    if (total[i] > total[out->peak]) out->peak = (uint32_t)i;
  int64_t ranks = g->recipe.ranks_per_process > 0 ? g->recipe.ranks_per_process : 1;
  out->arena_bytes = bytes_add(bytes_times(tier_arena_bytes(g, tier, SCOPE_RANK), ranks), tier_arena_bytes(g, tier, SCOPE_PROCESS));
  out->lower_bound_bytes = plan_lower_bound_bytes(g, tier, arena);
  return true;
}

typedef struct Ranked { uint32_t index; int64_t bytes; } Ranked;
static int compare_ranked(const void *a, const void *b) {
  const Ranked *x = a, *y = b;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
  return x->index < y->index ? -1 : x->index > y->index;
}

size_t plan_largest_buffers(const Graph *g, Arena *arena, uint32_t **out) {
  Ranked *ranked = ARENA_ARRAY(arena, Ranked, g->n_buffers);
  uint32_t *indices = ARENA_ARRAY(arena, uint32_t, g->n_buffers);
  for (size_t i = 0; i < g->n_buffers; i++) ranked[i] = (Ranked){(uint32_t)i, buffer_process_bytes(g, &g->buffers[i])};
  if (g->n_buffers) qsort(ranked, g->n_buffers, sizeof *ranked, compare_ranked);
  for (size_t i = 0; i < g->n_buffers; i++) indices[i] = ranked[i].index;
  *out = indices;
  return g->n_buffers;
}

// ---- Time ---------------------------------------------------------------------------------------------------------------------

// A plan that the simulation cannot take is shown all the same.
static void estimate(PlanView *v, Arena *arena) {
  const Graph *g = v->graph;
  char text[512];
  v->machine = machine_default();
  if (g->recipe.ranks_per_process > 0) v->machine.ranks_per_node = g->recipe.ranks_per_process;   // where its views are views
  Status status = simulate_step(g, &v->machine, arena, &v->estimate);
  if (status) v->no_estimate = arena_string(arena, status_text(status, text, sizeof text));
  status_free(status);
  double clock = 0;
  for (size_t i = 0; !v->no_estimate && i < g->n_nodes; i++) {
    if (g->nodes[i]->phase != PHASE_INIT) continue;
    double seconds = step_cost(g, g->nodes[i], &v->machine).seconds;
    v->estimate.steps[i] = (StepTime){clock, clock + seconds};
    clock += seconds;
  }
  v->estimate.phase_s[PHASE_INIT] = clock;
}

// -------------------------------------------------------------------------------------------------------------------------------

PlanView plan_view(const Graph *g, Arena *arena) {
  PlanView v = {.graph = g, .bytes = plan_bytes(g, arena)};
  LedgerEntry *ledger;
  v.n_ledger = plan_ledger(g, arena, &ledger);
  v.ledger = ledger;
  LedgerEntry *transfers;
  v.n_transfers = plan_transfers(g, arena, &transfers);
  v.transfers = transfers;
  int32_t *entry_of_step = ARENA_ARRAY(arena, int32_t, g->n_nodes);
  for (size_t i = 0; i < g->n_nodes; i++) {
    entry_of_step[i] = -1;
    v.n_steps[g->nodes[i]->phase]++;
    v.queues[g->nodes[i]->queue] = true;
  }
  for (size_t i = 0; i < v.n_ledger; i++) entry_of_step[ledger[i].step] = (int32_t)i;
  v.entry_of_step = entry_of_step;
  v.layers = plan_layers(g, ledger, v.n_ledger, arena);
  count_causes(&v, arena);
  make_account(&v, arena);
  estimate(&v, arena);
  for (int tier = 0; tier < TIER_COUNT; tier++)
    if (make_curve(g, (Tier)tier, arena, &v.curves[v.n_curves])) v.n_curves++;
  return v;
}
