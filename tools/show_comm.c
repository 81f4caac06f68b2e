// The section `communication`: what each rank sends in a step, by collective, cause, axis and layer, and the account against the least possible.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/op.h"
#include "progress.h"
#include "report.h"
#include "show_plan.h"

enum { LARGEST = 12 };           // transfers that are listed unless the section was asked for by name

static double percent(int64_t part, int64_t whole) { return whole > 0 ? 100.0 * (double)part / (double)whole : 0; }

static void bytes_row(const Style *s, const char *name, int64_t bytes, int64_t total, const char *note) {
  char exact[COUNT_BYTES], text[32];
  fprintf(s->to, "  %-26s %s%20s%s %10s %5.1f %%  %s%s%s\n", name, style_on(s, TONE_NUMBER), count_text(bytes, exact), style_off(s), bytes_text(bytes, text),
          percent(bytes, total), style_on(s, TONE_DIM), note ? note : "", style_off(s));
}

static void by_collective(const Style *s, const PlanView *v, Arena *arena) {
  KindBytes *kinds;
  size_t n = report_bytes_by_kind(v->ledger, v->n_ledger, arena, &kinds);
  for (size_t k = 0; k < n; k++) {
    int64_t times = 0, views = 0;
    for (size_t i = 0; i < v->n_ledger; i++) {
      if (strcmp(v->ledger[i].kind, kinds[k].kind)) continue;
      times = bytes_add(times, v->ledger[i].times);
      if (!v->ledger[i].copied_bytes) views = bytes_add(views, v->ledger[i].times);
    }
    bytes_row(s, kinds[k].kind, kinds[k].bytes, v->bytes.sent_bytes,
              arena_printf(arena, "%" PRId64 " a step%s", times,
                           views == times && times ? ", all of them views: nothing is copied" : views ? ", some of them views" : ""));
  }
}

static void by_axis(const Style *s, const PlanView *v) {
  for (int a = 0; a < v->graph->mesh.n_axes; a++) {
    int64_t bytes = 0;
    for (size_t i = 0; i < v->n_ledger; i++)
      if (!strcmp(v->ledger[i].axis, v->graph->mesh.axes[a].name)) bytes = bytes_add(bytes, bytes_times(v->ledger[i].bytes, v->ledger[i].times));
    bytes_row(s, v->graph->mesh.axes[a].name, bytes, v->bytes.sent_bytes, NULL);
  }
}

static void by_cause(const Style *s, const PlanView *v, Arena *arena) {
  for (size_t i = 0; i < v->n_causes; i++)
    bytes_row(s, v->causes[i].what, v->causes[i].bytes, v->bytes.sent_bytes,
              arena_printf(arena, "%" PRId64 " a step, from pass %s", v->causes[i].count, v->causes[i].pass));
}

static void account(const Style *s, const PlanView *v) {
  static const char *const signs[] = {
    [ACCOUNT_LEAST] = "least", [ACCOUNT_MORE] = "+", [ACCOUNT_FORMULA] = "= formula", [ACCOUNT_LESS] = "- saved", [ACCOUNT_SENT] = "= sent",
  };
  for (size_t i = 0; i < v->n_account; i++) {
    const AccountLine *line = &v->account[i];
    char exact[COUNT_BYTES];
    bool sum = line->kind == ACCOUNT_FORMULA || line->kind == ACCOUNT_SENT;
    fprintf(s->to, "  %s%-10s %-15s%s %s%20s%s  %s\n", sum ? style_on(s, TONE_HEADING) : "", signs[line->kind], "", sum ? style_off(s) : "", style_on(s, TONE_NUMBER),
            count_text(line->bytes, exact), style_off(s), line->why);
    if (line->term) fprintf(s->to, "  %48s %s%s%s\n", "", style_on(s, TONE_DIM), line->term, style_off(s));
  }
}

static void by_layer(const Style *s, const PlanView *v, const PlanSections *sections) {
  fprintf(s->to, "  %s%-34s %20s %20s %20s%s\n", style_on(s, TONE_DIM), "layer", "sent", "gathered", "summed", style_off(s));
  for (size_t i = 0; i < v->layers.n;) {
    const Layer *layer = &v->layers.items[i];
    size_t n = layers_alike_run(&v->layers, i);
    char name[160], shown[NAME_BYTES], sent[COUNT_BYTES], gathered[COUNT_BYTES], reduced[COUNT_BYTES];
    if (sections->layer) n = 1;
    if (layer->sent_bytes && (!sections->layer || layer_pattern_matches(sections->layer, layer->name))) {
      fprintf(s->to, "  %-34s %20s %20s %20s", name_text(layers_run_name(&v->layers, i, n, name, sizeof name), 34, shown), count_text(layer->sent_bytes, sent),
              count_text(layer->gathered_bytes, gathered), count_text(layer->reduced_bytes, reduced));
      if (n > 1) fprintf(s->to, "  %s%zu alike: each%s", style_on(s, TONE_DIM), n, style_off(s));
      fputc('\n', s->to);
    }
    i += n;
  }
}

static int compare_entries(const void *a, const void *b, void *view) {
  const LedgerEntry *ledger = ((const PlanView *)view)->ledger, *x = &ledger[*(const uint32_t *)a], *y = &ledger[*(const uint32_t *)b];
  int64_t p = bytes_times(x->bytes, x->times), q = bytes_times(y->bytes, y->times);
  if (p != q) return p < q ? 1 : -1;
  return x->step < y->step ? -1 : x->step > y->step;
}

static void entry_row(const Style *s, const PlanView *v, const LedgerEntry *e) {
  char exact[COUNT_BYTES], name[NAME_BYTES];
  fprintf(s->to, "  %6u %-7s %-14s %-4s %16s x %-4" PRId64 " %-8s %-8s ", e->step, phase_name(v->graph->nodes[e->step]->phase), e->op, e->axis,
          count_text(e->bytes, exact), e->times, dtype_name(e->wire), e->accumulator ? dtype_name(e->accumulator) : "-");
  if (e->bucket >= 0) fprintf(s->to, "%6d  ", e->bucket);
  else fprintf(s->to, "%6s  ", "-");
  fprintf(s->to, "%s%s", ledger_purpose(v->graph, e), e->copied_bytes || !e->bytes ? "" : ", a view");
  if (e->cause.param) fprintf(s->to, ", %s", name_text(e->cause.param, 48, name));
  if (e->cause.node) fprintf(s->to, ", of %s", name_text(e->cause.node, 48, name));
  fputc('\n', s->to);
}

static void transfers(const Style *s, const PlanView *v, const PlanSections *sections, Arena *arena) {
  uint32_t *order = ARENA_ARRAY(arena, uint32_t, v->n_ledger);
  size_t n = 0, limit = sections->comm || sections->layer ? v->n_ledger : LARGEST;
  for (size_t i = 0; i < v->n_ledger; i++)
    if (!sections->layer || layer_pattern_takes_step(sections->layer, &v->layers, v->graph->nodes[v->ledger[i].step])) order[n++] = (uint32_t)i;
  if (limit < n) qsort_r(order, n, sizeof *order, compare_entries, (void *)(uintptr_t)v);
  style_heading(s, limit < n ? "largest transfers" : "transfers", limit < n ? "--comm lists all" : "the ledger, in the order of the steps");
  fprintf(s->to, "  %s%6s %-7s %-14s %-4s %16s   %-4s %-8s %-8s %6s  %s%s\n", style_on(s, TONE_DIM), "step", "phase", "collective", "axis", "bytes", "times",
          "wire", "sums in",
          "bucket", "for", style_off(s));
  for (size_t i = 0; i < n && i < limit; i++) entry_row(s, v, &v->ledger[order[i]]);
}

void show_comm(const Style *s, const PlanView *v, const PlanSections *sections, Arena *arena) {
  char exact[COUNT_BYTES], copied[COUNT_BYTES], wire[COUNT_BYTES];
  const char *leaves = "";
  if (v->graph->recipe.processes > 1) leaves = arena_printf(arena, "; %s leave each process", count_text(v->bytes.wire_bytes, wire));
  style_heading(s, "communication", arena_printf(arena, "bytes that each rank sends in a step: %s, of which %s are copied and the rest are views%s",
                                                 count_text(v->bytes.sent_bytes, exact), count_text(v->bytes.copied_bytes, copied), leaves));
  if (!v->n_ledger) {
    fprintf(s->to, "  nothing: the plan is for one rank\n");
    return;
  }
  if (!sections->layer) {
    int64_t k = v->graph->recipe.micro_per_rank, sums = v->graph->recipe.reduce == REDUCE_MICRO ? k : 1;
    by_collective(s, v, arena);
    style_heading(s, "by cause", NULL);
    by_cause(s, v, arena);
    style_heading(s, "by axis", NULL);
    by_axis(s, v);
    style_heading(s, "beside the least",
                  arena_printf(arena,
                               "N = %d ranks; psi = %s bytes of trainable parameters, padded; k = %" PRId64 " micro-batch%s a rank; r = %" PRId64 " sum%s a step",
                               mesh_ranks(&v->graph->mesh), count_text(v->bytes.padded_param_bytes, exact), k, k == 1 ? "" : "es", sums, sums == 1 ? "" : "s"));
    account(s, v);
  }
  style_heading(s, "by layer", "a layer's share of its buckets' collectives");
  by_layer(s, v, sections);
  transfers(s, v, sections, arena);
}
