// What a plan moves between tiers: sums by operator, tier and kind, then the single transfers.
#include <inttypes.h>
#include <string.h>

#include "show_plan.h"

enum { LARGEST_TRANSFERS = 8 };

typedef struct Sum { const char *op, *kind; Tier tier; int64_t bytes, count; } Sum;

static void by_kind(const Style *s, const PlanView *v, Arena *arena) {
  Sum *sums = NULL;
  size_t n = 0, capacity = 0;
  char exact[COUNT_BYTES];
  for (size_t i = 0; i < v->n_transfers; i++) {
    const LedgerEntry *e = &v->transfers[i];
    size_t k = 0;
    while (k < n && (sums[k].tier != e->tier || strcmp(sums[k].op, e->op) || strcmp(sums[k].kind, e->kind))) k++;
    if (k == n) ARENA_PUSH(arena, sums, n, capacity, ((Sum){.op = e->op, .kind = e->kind, .tier = e->tier}));
    sums[k].bytes = bytes_add(sums[k].bytes, bytes_times(e->bytes, e->times));
    sums[k].count = bytes_add(sums[k].count, e->times);
  }
  for (size_t k = 0; k < n; k++)
    fprintf(s->to, "  %-8s %-6s %-10s %16s bytes in %" PRId64 "\n", sums[k].op, tier_name(sums[k].tier), sums[k].kind, count_text(sums[k].bytes, exact), sums[k].count);
}

void show_tiers(const Style *s, const PlanView *v, const PlanSections *sections, Arena *arena) {
  char exact[COUNT_BYTES], name[NAME_BYTES];
  if (!v->n_transfers || sections->layer) return;
  style_heading(s, "between tiers", "bytes that each rank fetches and offloads in a step");
  by_kind(s, v, arena);
  size_t limit = sections->comm || v->n_transfers < LARGEST_TRANSFERS ? v->n_transfers : LARGEST_TRANSFERS;
  bool some = limit < v->n_transfers;
  style_heading(s, some ? "first transfers between tiers" : "transfers between tiers", some ? "--comm lists all" : "in the order of the steps");
  for (size_t i = 0; i < limit; i++) {
    const LedgerEntry *e = &v->transfers[i];
    fprintf(s->to, "  %6u %-7s %-8s %-6s %16s x %-4" PRId64 " %s", e->step, phase_name(v->graph->nodes[e->step]->phase), e->op, tier_name(e->tier),
            count_text(e->bytes, exact), e->times, e->kind);
    if (e->cause.param) fprintf(s->to, ", %s", name_text(e->cause.param, 48, name));
    fputc('\n', s->to);
  }
}
