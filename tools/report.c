#include "report.h"

#include <stdlib.h>
#include <string.h>

#include "text_file.h"
#include "swap_options.h"

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(const double *values, int64_t n) {
  if (n <= 0) return 0;
  double *sorted = malloc((size_t)n * sizeof *sorted);
  if (!sorted) return values[n / 2];   // an estimate is better than no report
  memcpy(sorted, values, (size_t)n * sizeof *sorted);
  qsort(sorted, (size_t)n, sizeof *sorted, compare_doubles);
  double middle = n % 2 ? sorted[n / 2] : 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]);
  free(sorted);
  return middle;
}

// Items per second at the median step; 0 when unknown.
static double rate_per_s(const RunReport *report) {
  double ms = median(report->step_ms, report->n_steps);
  return ms > 0 ? (double)report->items_per_step * 1e3 / ms : 0;
}

size_t report_bytes_by_kind(const LedgerEntry *entries, size_t n, Arena *arena, KindBytes **out) {
  KindBytes *kinds = NULL;
  size_t n_kinds = 0, capacity = 0;
  for (size_t i = 0; i < n; i++) {
    size_t k = 0;
    while (k < n_kinds && strcmp(kinds[k].kind, entries[i].kind)) k++;
    if (k == n_kinds) ARENA_PUSH(arena, kinds, n_kinds, capacity, ((KindBytes){entries[i].kind, 0}));
    kinds[k].bytes = bytes_add(kinds[k].bytes, bytes_times(entries[i].bytes, entries[i].times));
  }
  *out = kinds;
  return n_kinds;
}

void report_write_sent_bytes(JsonWriter *w, const Graph *program, const Executor *executor, Arena *arena) {
  PlanBytes bytes = plan_bytes(program, arena);
  LedgerEntry *entries;
  size_t n = plan_ledger(program, arena, &entries);
  KindBytes *kinds;
  size_t n_kinds = report_bytes_by_kind(entries, n, arena, &kinds);
  json_write_object(w, "sent_bytes_per_step");
  json_write_int(w, "planned", bytes.sent_bytes);
  if (executor) json_write_int(w, "measured", executor_sent_bytes_per_step(executor));
  json_write_int(w, "copied", executor ? executor_copied_bytes_per_step(executor) : bytes.copied_bytes);
  json_write_int(w, "wire_planned", bytes.wire_bytes);
  if (executor) json_write_int(w, "wire", executor_wire_bytes_per_step(executor));
  json_write_int(w, "saved", bytes.saved_bytes);
  json_write_int(w, "formula", bytes.formula_bytes);
  json_write_object(w, "by_collective");
  for (size_t k = 0; k < n_kinds; k++) json_write_int(w, kinds[k].kind, kinds[k].bytes);
  json_write_end_object(w);
  json_write_end_object(w);
}

void report_write_peak_bytes(JsonWriter *w, const Graph *program, const Executor *executor, Arena *arena) {
  PlanBytes bytes = plan_bytes(program, arena);
  json_write_object(w, "peak_bytes");
  for (int tier = 0; tier < TIER_COUNT; tier++) {
    const TierBytes *t = &bytes.tiers[tier];
    json_write_object(w, tier_name((Tier)tier));
    json_write_int(w, "planned", t->peak_bytes);
    if (executor) json_write_int(w, "measured", executor_memory(executor).tiers[tier].measured_bytes);
    int ranks = program->recipe.ranks_per_process > 0 ? program->recipe.ranks_per_process : 1;
    json_write_int(w, "per_rank", bytes_add(t->rank_arena_bytes, t->process_arena_bytes / ranks));
    json_write_object(w, "by_category");
    for (int c = 0; c < CATEGORY_COUNT; c++)
      if (t->by_category[c]) json_write_int(w, category_name((Category)c), t->by_category[c]);
    json_write_end_object(w);
    json_write_end_object(w);
  }
  json_write_end_object(w);
}

// Per rank and step.
static void write_moved_bytes(JsonWriter *w, const RunReport *report, Arena *arena) {
  PlanBytes bytes = plan_bytes(report->program, arena);
  json_write_object(w, "moved_bytes_per_step");
  for (int tier = TIER_HOST; tier < TIER_COUNT; tier++) {
    bool counted = tier == TIER_NVME && report->executor;
    json_write_object(w, tier_name((Tier)tier));
    json_write_int(w, "fetched", bytes.tiers[tier].fetched_bytes);
    json_write_int(w, "offloaded", bytes.tiers[tier].offloaded_bytes);
    if (counted) json_write_int(w, "fetched_measured", executor_swap_read_bytes_per_step(report->executor));
    if (counted) json_write_int(w, "offloaded_measured", executor_swap_written_bytes_per_step(report->executor));
    if (counted) json_write_real(w, "last_step_ms", executor_swap_ms(report->executor));
    json_write_end_object(w);
  }
  json_write_end_object(w);
}

static void write_reals(JsonWriter *w, const char *key, const double *values, int64_t n) {
  json_write_array(w, key);
  for (int64_t i = 0; i < n; i++) json_write_real(w, NULL, values[i]);
  json_write_end_array(w);
}

static void write_evaluations(JsonWriter *w, const RunReport *report) {
  json_write_object(w, "evaluations");
  json_write_array(w, "steps");
  for (int64_t i = 0; i < report->n_evals; i++) json_write_int(w, NULL, report->eval_steps[i]);
  json_write_end_array(w);
  write_reals(w, "losses", report->eval_losses, report->n_evals);
  json_write_int(w, "micro_batches", report->eval_batches);
  json_write_end_object(w);
}

static void write_step_ms(JsonWriter *w, const RunReport *report) {
  double low = report->n_steps ? report->step_ms[0] : 0, high = low;
  for (int64_t i = 1; i < report->n_steps; i++) {
    if (report->step_ms[i] < low) low = report->step_ms[i];
    if (report->step_ms[i] > high) high = report->step_ms[i];
  }
  json_write_object(w, "step_ms");
  json_write_real(w, "median", median(report->step_ms, report->n_steps));
  json_write_real(w, "min", low);
  json_write_real(w, "max", high);
  json_write_end_object(w);
}

static void write_plan_fields(JsonWriter *w, const RunReport *report, Arena *arena) {
  const Recipe *recipe = &report->program->recipe;
  json_write_int(w, "ranks", mesh_ranks(&report->program->mesh));
  json_write_int(w, "processes", recipe->processes);
  json_write_int(w, "zero", recipe->zero);
  json_write_int(w, "micro_batches", recipe->micro_per_rank * mesh_ranks(&report->program->mesh));
  json_write_text(w, "precision", recipe->precision);
  json_write_text(w, "reduce", reduce_name(recipe->reduce));
  json_write_text(w, "optimizer", recipe->optimizer);
  json_write_text(w, "loss_rule", recipe->loss_rule);
  char bits[PLAN_BITS_BYTES];
  json_write_text(w, "bits", plan_bits_rule(report->program, bits));
  json_write_text(w, "numerics_key", recipe->numerics_key);
  json_write_int(w, "padded_param_bytes", plan_bytes(report->program, arena).padded_param_bytes);
  report_write_sent_bytes(w, report->program, report->executor, arena);
  report_write_peak_bytes(w, report->program, report->executor, arena);
  write_moved_bytes(w, report, arena);
}

// How files of tier NVME were read and written.
static void write_swap(JsonWriter *w, const RunReport *report) {
  const SwapFile *file = executor_swap_file(report->executor);
  if (!file) return;
  SwapInfo info = swap_info(file);
  json_write_object(w, "swap");
  swap_info_write(w, &info);
  json_write_end_object(w);
}

static void write_rss(JsonWriter *w, const RunReport *report) {
  const ProcessUse own = {.memory = executor_memory(report->executor)}, *uses = report->uses ? report->uses : &own;
  int n = report->uses ? report->n_uses : 1;
  json_write_array(w, "rss_peak_bytes");
  for (int p = 0; p < n; p++) json_write_int(w, NULL, uses[p].memory.rss_peak_bytes);
  json_write_end_array(w);
  json_write_array(w, "rss_before_arena_bytes");
  for (int p = 0; p < n; p++) json_write_int(w, NULL, uses[p].memory.rss_before_arena_bytes);
  json_write_end_array(w);
}

static void write_error(JsonWriter *w, const StatusError *error) {
  if (!error) {
    json_write_null(w, "error");
    return;
  }
  json_write_object(w, "error");
  json_write_int(w, "code", status_code(error));
  json_write_text(w, "what", error->what);
  json_write_text(w, "node", error->node);
  if (error->rank >= 0) json_write_int(w, "rank", error->rank);
  else json_write_null(w, "rank");
  json_write_end_object(w);
}

static void write_scales(JsonWriter *w, const RunReport *report) {
  write_reals(w, "loss_scales", report->loss_scales, report->n_steps);
  json_write_array(w, "skipped_steps");
  for (int64_t i = 0; i < report->n_steps; i++)
    if (report->skipped[i] != 0) json_write_int(w, NULL, i);
  json_write_end_array(w);
}

static Status write_report(JsonWriter *w, const RunReport *report, Arena *arena) {
  ARENA_GUARD(arena);
  json_write_object(w, NULL);
  write_reals(w, "losses", report->losses, report->n_steps);
  write_reals(w, "grad_norms", report->grad_norms, report->n_steps);
  write_reals(w, "clipped_grad_norms", report->clipped_norms, report->n_steps);
  write_reals(w, "lr", report->lr, report->n_steps);
  if (report->param_norms) {
    json_write_object(w, "param_grad_norms");
    for (size_t p = 0; p < report->n_norm_params; p++) {
      json_write_array(w, report->norm_params[p]);
      for (int64_t i = 0; i < report->n_steps; i++) json_write_real(w, NULL, report->param_norms[(size_t)i * report->n_norm_params + p]);
      json_write_end_array(w);
    }
    json_write_end_object(w);
  }
  if (report->n_steps && report->loss_scales[0] > 0) write_scales(w, report);
  if (report->n_evals) write_evaluations(w, report);
  json_write_text(w, "params_hash", report->params_hash);
  json_write_int(w, "steps", report->n_steps);
  write_step_ms(w, report);
  if (report->items_per_step) json_write_real(w, report->rate_key, rate_per_s(report));
  json_write_real(w, "compile_ms", report->compile_ms);
  if (report->program) write_plan_fields(w, report, arena);
  if (report->executor) write_rss(w, report);
  if (report->executor) write_swap(w, report);
  write_error(w, report->error);
  json_write_end_object(w);
  ARENA_RETURN(arena, STATUS_OK);
}

typedef struct ReportText { const RunReport *report; Arena *arena; } ReportText;
static Status write_text(FILE *to, void *self) {
  const ReportText *text = self;
  JsonWriter w = {.to = to};
  return write_report(&w, text->report, text->arena);
}

Status report_write(const char *path, const RunReport *report) {
  ReportText text = {report, arena_create(0)};
  if (!text.arena) FAIL(RESOURCE, NULL, "out of memory while writing the report");
  Status status = text_file_write(path, "the report", write_text, &text);
  arena_destroy(text.arena);
  return status;
}
