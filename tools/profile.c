#include "profile.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/op.h"
#include "plan_view.h"
#include "printable.h"
#include "trace_file.h"

enum { NEWEST_STEPS = 3, ROWS = 16, CAUSES = 8 };

static Status read_steps(const Options *o, TraceOptions *out) {
  *out = (TraceOptions){.events = o->trace != NULL, .last_step = -1, .newest_steps = NEWEST_STEPS};
  if (!o->trace_steps) return STATUS_OK;
  if (!o->trace) FAIL(USAGE, NULL, "--trace-steps %s needs --trace FILE", o->trace_steps);
  long long first, last;
  int used = 0;
  if (sscanf(o->trace_steps, "%lld:%lld%n", &first, &last, &used) != 2 || o->trace_steps[used] || first < 0 || last < first || last > (INT64_C(1) << 40))
    FAIL(USAGE, NULL, "--trace-steps: '%s' is not A:B, the first and the last training step, counted from 0", o->trace_steps);
  out->first_step = first;
  out->last_step = last;
  return STATUS_OK;
}

Status profile_open(const Options *o, const Plan *plan, int ranks, Trace **out) {
  TraceOptions options;
  TRY(read_steps(o, &options));
  options.ranks = ranks;
  *out = NULL;
  return o->trace || o->profile ? trace_create(plan, &options, out) : STATUS_OK;
}

// ---- Sums -----------------------------------------------------------------------------------------------------------------------

typedef struct Spent { const char *what; Phase phase; int64_t ns, count; } Spent;
typedef struct SpentList { Spent *items; size_t n, capacity; Arena *arena; } SpentList;

static void spend(SpentList *list, const char *what, Phase phase, int64_t ns, int64_t count) {
  size_t k = 0;
  while (k < list->n && (list->items[k].phase != phase || strcmp(list->items[k].what, what))) k++;
  if (k == list->n) ARENA_PUSH(list->arena, list->items, list->n, list->capacity, ((Spent){what, phase, 0, 0}));
  list->items[k].ns += ns;
  list->items[k].count += count;
}

static int compare_spent(const void *a, const void *b) {
  const Spent *x = a, *y = b;
  if (x->ns != y->ns) return x->ns < y->ns ? 1 : -1;
  return strcmp(x->what, y->what);
}

// Of one step over all ranks.
static TraceTotal total_of(const Trace *trace, int variant, const Node *node) {
  TraceTotal sum = {0};
  for (int r = 0; r < trace_ranks(trace); r++) {
    const TraceLane *lane = trace_lane((Trace *)(uintptr_t)trace, r, node->queue);
    if (!lane) continue;
    const TraceTotal *t = &lane->totals[variant][node->id];
    sum.busy_ns += t->busy_ns;
    sum.waited_ns += t->waited_ns;
    sum.count += t->count;
  }
  return sum;
}

// The collective that `node` has waited for: the latest of its waits that sends, else the latest.
static const Node *waited_for(const Graph *g, const Node *node) {
  const Node *best = NULL;
  for (int i = 0; i < node->n_waits; i++) {
    const Node *n = g->nodes[node->waits[i]];
    bool better = !best || (n->op->sent_bytes && !best->op->sent_bytes) || ((n->op->sent_bytes != NULL) == (best->op->sent_bytes != NULL) && n->id > best->id);
    if (better) best = n;
  }
  return best;
}

static const char *cause_text(const PlanView *v, const Node *n, Arena *arena) {
  const LedgerEntry *entry = v->entry_of_step[n->id] >= 0 ? &v->ledger[v->entry_of_step[n->id]] : NULL;
  const char *what = entry ? ledger_purpose(v->graph, entry) : n->op->name, *of = n->cause.param ? n->cause.param : n->cause.node;
  return of ? arena_printf(arena, "%s, %s", what, printable_text(of, arena)) : what;
}

typedef struct Profile { SpentList ops, phases, purposes, causes; int64_t exposed_ns; } Profile;

static void add_variant(Profile *p, const Trace *trace, int variant, Arena *arena) {
  const Graph *g = trace_variant(trace, variant);
  PlanView v = plan_view(g, arena);
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *n = g->nodes[i];
    TraceTotal total = total_of(trace, variant, n);
    if (!total.count) continue;
    spend(&p->ops, n->op->name, n->phase, total.busy_ns, total.count);
    if (n->queue == QUEUE_COMPUTE) spend(&p->phases, phase_name(n->phase), n->phase, total.busy_ns + total.waited_ns, 0);
    if (n->phase == PHASE_INIT) continue;
    const Node *blamed = n->queue != QUEUE_COMPUTE ? NULL : n->op->sent_bytes ? n : total.waited_ns ? waited_for(g, n) : NULL;
    if (!blamed) continue;
    int64_t exposed = total.waited_ns + (n->op->sent_bytes ? total.busy_ns : 0);
    const LedgerEntry *entry = v.entry_of_step[blamed->id] >= 0 ? &v.ledger[v.entry_of_step[blamed->id]] : NULL;
    spend(&p->purposes, entry ? ledger_purpose(g, entry) : blamed->op->name, blamed->phase, exposed, total.count);
    spend(&p->causes, cause_text(&v, blamed, arena), blamed->phase, exposed, total.count);
    p->exposed_ns += exposed;
  }
}

// ---- As text ----------------------------------------------------------------------------------------------------------------------

typedef struct Scale { double ranks, steps; double step_ns; } Scale;

static double per_step(const Scale *scale, Phase phase, int64_t ns) { return (double)ns / scale->ranks / (phase == PHASE_INIT ? 1 : scale->steps); }

static void rows(const Style *s, const SpentList *list, const Scale *scale, size_t limit, bool phases) {
  if (list->n) qsort(list->items, list->n, sizeof *list->items, compare_spent);
  for (size_t i = 0; i < list->n && i < limit; i++) {
    const Spent *spent = &list->items[i];
    double ns = per_step(scale, spent->phase, spent->ns);
    char time[32], name[NAME_BYTES];
    fprintf(s->to, "  %-7s %-56s %s%10s%s", phases ? phase_name(spent->phase) : "", name_text(spent->what, 56, name), style_on(s, TONE_NUMBER),
            seconds_text(ns * 1e-9, time),
            style_off(s));
    if (spent->phase != PHASE_INIT) fprintf(s->to, " %5.1f %%", scale->step_ns > 0 ? 100 * ns / scale->step_ns : 0);
    else fprintf(s->to, "  once  ");
    if (spent->count && spent->phase != PHASE_INIT) fprintf(s->to, "  %s%.0f a step%s", style_on(s, TONE_DIM),
                                                            (double)spent->count / scale->ranks / scale->steps, style_off(s));
    fputc('\n', s->to);
  }
  if (list->n > limit) fprintf(s->to, "  %s... %zu more%s\n", style_on(s, TONE_DIM), list->n - limit, style_off(s));
}

static void print_profile(const Style *s, const Trace *trace, int64_t n_steps, Arena *arena) {
  Profile p = {.ops = {.arena = arena}, .phases = {.arena = arena}, .purposes = {.arena = arena}, .causes = {.arena = arena}};
  for (int v = 0; v < trace_variants(trace); v++) add_variant(&p, trace, v, arena);
  Scale scale = {.ranks = trace_ranks(trace), .steps = n_steps > 0 ? (double)n_steps : 1};
  for (size_t i = 0; i < p.phases.n; i++)
    if (p.phases.items[i].phase != PHASE_INIT) scale.step_ns += per_step(&scale, p.phases.items[i].phase, p.phases.items[i].ns);
  char text[32], exposed[32];
  style_heading(s, "profile", arena_printf(arena, "mean of %d ranks over %" PRId64 " steps: %s a step", trace_ranks(trace), n_steps,
                                           seconds_text(scale.step_ns * 1e-9, text)));
  rows(s, &p.phases, &scale, PHASE_COUNT, false);
  style_heading(s, "by operator", "on all queues");
  rows(s, &p.ops, &scale, ROWS, true);
  double exposed_ns = per_step(&scale, PHASE_MICRO, p.exposed_ns);
  style_heading(s, "exposed communication", arena_printf(arena,
                                                         "time in which the compute queue communicates or waits for it, and for slower ranks: %s a step, %.1f %%",
                                                         seconds_text(exposed_ns * 1e-9, exposed), scale.step_ns > 0 ? 100 * exposed_ns / scale.step_ns : 0));
  rows(s, &p.purposes, &scale, ROWS, true);
  style_heading(s, "largest causes", NULL);
  rows(s, &p.causes, &scale, CAUSES, true);
}

static Status print_guarded(const Style *s, const Trace *trace, int64_t n_steps, Arena *arena) {
  ARENA_GUARD(arena);
  print_profile(s, trace, n_steps, arena);
  ARENA_RETURN(arena, STATUS_OK);
}

Status profile_print(const Style *s, const Trace *trace, int64_t n_steps) {
  Arena *arena = arena_create(0);
  if (!arena) FAIL(RESOURCE, NULL, "out of memory while summing up the profile");
  Status status = print_guarded(s, trace, n_steps, arena);
  arena_destroy(arena);
  return status;
}

Status profile_close(const Options *o, const Trace *trace, int64_t n_steps) {
  if (!trace) return STATUS_OK;
  if (o->trace) TRY(trace_file_write(o->trace, trace_variant(trace, 0), trace));
  if (!o->profile) return STATUS_OK;
  Style style = style_for(stderr, o->color);
  return profile_print(&style, trace, n_steps);
}
