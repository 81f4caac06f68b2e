#include "plan_text.h"

#include <inttypes.h>
#include <string.h>

#include "progress.h"
#include "report.h"

static const char *short_name(const char *name, char out[40]) {
  size_t n = strlen(name);
  if (n < 34) snprintf(out, 40, "%s", name);
  else snprintf(out, 40, "%.15s..%.16s", name, name + n - 16);
  return out;
}

static void print_buckets(FILE *to, const Graph *g) {
  for (size_t i = 0; i < g->n_buckets; i++) {
    const Bucket *b = &g->buckets[i];
    char bytes[32], name[40];
    fprintf(to, "  bucket %zu: %d parameter%s from '%s'%s, %s padded, %" PRId64 " elements a shard\n", i, b->n_params, b->n_params == 1 ? "" : "s",
            b->n_params ? short_name(b->params[0], name) : "", b->trainable ? "" : ", frozen", bytes_text(b->elems * dtype_bytes(b->dtype), bytes),
            b->shard_elems);
  }
}

static void print_sent(FILE *to, const Graph *g, Arena *arena) {
  PlanBytes bytes = plan_bytes(g, arena);
  LedgerEntry *entries;
  KindBytes *kinds;
  size_t n = plan_ledger(g, arena, &entries), n_kinds = report_bytes_by_kind(entries, n, arena, &kinds);
  bool micro = g->recipe.reduce == REDUCE_MICRO;
  char text[32];
  fprintf(to, "sent per rank and step: %" PRId64 " bytes (%s), of which %" PRId64 " are copied and the rest are views\n", bytes.sent_bytes,
          bytes_text(bytes.sent_bytes, text), bytes.copied_bytes);
  for (size_t k = 0; k < n_kinds; k++) fprintf(to, "  %-14s %12" PRId64 "\n", kinds[k].kind, kinds[k].bytes);
  fprintf(to, "  formula: (N-1)/N psi (r + %s) = %" PRId64 " with N = %d, psi = %" PRId64 ", r = %" PRId64 ", k = %" PRId64 "; saved %" PRId64 "\n",
          g->recipe.zero == 3 ? "2k" : "1", bytes.formula_bytes, mesh_ranks(&g->mesh), bytes.padded_param_bytes, micro ? g->recipe.micro_per_rank : 1,
          g->recipe.micro_per_rank, bytes.saved_bytes);
  for (size_t i = 0; i < g->n_savings; i++)
    fprintf(to, "  saved %" PRId64 " bytes in bucket %d: %s\n", g->savings[i].bytes, g->savings[i].bucket, g->savings[i].reason);
}

static void print_memory(FILE *to, const Graph *g, Arena *arena) {
  PlanBytes bytes = plan_bytes(g, arena);
  char peak[32], rank[32];
  int ranks = g->recipe.ranks_per_process > 0 ? g->recipe.ranks_per_process : 1;
  fprintf(to, "memory of a process: %s, per rank %s\n", bytes_text(bytes.peak_bytes, peak), bytes_text(bytes.rank_arena_bytes + bytes.process_arena_bytes / ranks, rank));
  for (int c = 0; c < CATEGORY_COUNT; c++)
    if (bytes.peak_by_category[c]) fprintf(to, "  %-12s %14" PRId64 "\n", category_name((Category)c), bytes.peak_by_category[c]);
}

static Status summary_guarded(FILE *to, const Graph *g, Arena *arena) {
  ARENA_GUARD(arena);
  size_t n_steps[PHASE_COUNT] = {0};
  for (size_t i = 0; i < g->n_nodes; i++) n_steps[g->nodes[i]->phase]++;
  fprintf(to, "plan of %s: ranks %d, stage %d, %" PRId64 " micro-batch%s a rank, reduce per %s, %s, %s, isa %s\n", g->recipe.model ? g->recipe.model : "a model",
          mesh_ranks(&g->mesh), g->recipe.zero, g->recipe.micro_per_rank, g->recipe.micro_per_rank == 1 ? "" : "es", reduce_name(g->recipe.reduce),
          g->recipe.optimizer ? g->recipe.optimizer : "no optimizer", g->recipe.precision ? g->recipe.precision : "?", g->recipe.isa ? g->recipe.isa : "?");
  fprintf(to, "steps: %zu at start, %zu per micro-batch, %zu per update\n", n_steps[PHASE_INIT], n_steps[PHASE_MICRO], n_steps[PHASE_UPDATE]);
  if (g->recipe.loss_rule) fprintf(to, "loss '%s': %s\n", g->recipe.loss_output ? g->recipe.loss_output : "?", g->recipe.loss_rule);
  print_buckets(to, g);
  print_sent(to, g, arena);
  print_memory(to, g, arena);
  ARENA_RETURN(arena, STATUS_OK);
}

Status plan_text_summary(FILE *to, const Graph *g) {
  Arena *arena = arena_create(0);
  Status status = arena ? summary_guarded(to, g, arena) : status_fail(STATUS_RESOURCE, NULL, "out of memory while printing a plan");
  arena_destroy(arena);
  return status;
}

static void print_values(FILE *to, Value *const *values, int n) {
  for (int i = 0; i < n; i++) {
    char name[40], type[160];
    if (!values[i]) fprintf(to, "%s-", i ? ", " : "");
    else fprintf(to, "%s%s %s", i ? ", " : "", short_name(values[i]->name, name), type_text(&values[i]->type, type, sizeof type));
    if (i == 3 && n > 5) {
      fprintf(to, ", ... %d more", n - 4);
      return;
    }
  }
}

static const LedgerEntry *entry_of(const LedgerEntry *entries, size_t n, uint32_t step) {
  for (size_t i = 0; i < n; i++)
    if (entries[i].step == step) return &entries[i];
  return NULL;
}

static void print_step(FILE *to, const Graph *g, const Node *node, const LedgerEntry *entry) {
  fprintf(to, "%5u %-6s %-7s %-28s ", node->id, phase_name(node->phase), queue_name(node->queue), node->op->name);
  print_values(to, node->outputs, node->n_outputs);
  fprintf(to, " <- ");
  print_values(to, node->inputs, node->n_inputs);
  if (entry) fprintf(to, "  sends %" PRId64 " bytes%s", entry->bytes, entry->copied_bytes ? "" : " (a view)");
  if (node->guard != GUARD_NONE && node->region >= 0 && (size_t)node->region < g->n_buffers)
    fprintf(to, "  %s of '%s'", guard_name(node->guard), g->buffers[node->region].name);
  for (int i = 0; i < node->n_waits; i++) fprintf(to, "%s%u", i ? "," : "  waits ", node->waits[i]);
  if (node->cause.param) fprintf(to, "  for %s", node->cause.param);
  if (node->origin) fprintf(to, "  of %s", node->origin);
  fprintf(to, "\n");
}

static Status steps_guarded(FILE *to, const Graph *g, Arena *arena) {
  ARENA_GUARD(arena);
  LedgerEntry *entries;
  size_t n = plan_ledger(g, arena, &entries);
  for (size_t i = 0; i < g->n_nodes; i++) print_step(to, g, g->nodes[i], entry_of(entries, n, g->nodes[i]->id));
  ARENA_RETURN(arena, STATUS_OK);
}

Status plan_text_steps(FILE *to, const Graph *g) {
  Arena *arena = arena_create(0);
  Status status = arena ? steps_guarded(to, g, arena) : status_fail(STATUS_RESOURCE, NULL, "out of memory while printing a plan");
  arena_destroy(arena);
  return status;
}

static void json_cause(JsonWriter *w, const Cause *cause) {
  json_write_object(w, "cause");
  json_write_text(w, "node", cause->node);
  json_write_text(w, "param", cause->param);
  json_write_text(w, "pass", cause->pass);
  json_write_end_object(w);
}

static void json_ledger(JsonWriter *w, const LedgerEntry *entries, size_t n) {
  json_write_array(w, "ledger");
  for (size_t i = 0; i < n; i++) {
    const LedgerEntry *e = &entries[i];
    json_write_object(w, NULL);
    json_write_int(w, "step", e->step);
    json_write_text(w, "op", e->op);
    json_write_text(w, "kind", e->kind);
    json_write_text(w, "axis", e->axis);
    json_write_int(w, "bytes", e->bytes);
    json_write_int(w, "times", e->times);
    json_write_int(w, "copied_bytes", e->copied_bytes);
    json_write_text(w, "dtype", dtype_name(e->wire));
    json_write_text(w, "accumulator", e->accumulator ? dtype_name(e->accumulator) : NULL);
    if (e->bucket >= 0) json_write_int(w, "bucket", e->bucket);
    else json_write_null(w, "bucket");
    json_cause(w, &e->cause);
    json_write_end_object(w);
  }
  json_write_end_array(w);
}

static void json_names(JsonWriter *w, const char *key, Value *const *values, int n) {
  json_write_array(w, key);
  for (int i = 0; i < n; i++) json_write_text(w, NULL, values[i] ? values[i]->name : NULL);
  json_write_end_array(w);
}

static void json_steps(JsonWriter *w, const Graph *g) {
  json_write_array(w, "steps");
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *node = g->nodes[i];
    json_write_object(w, NULL);
    json_write_int(w, "step", node->id);
    json_write_text(w, "name", node->name);
    json_write_text(w, "op", node->op->name);
    json_write_text(w, "phase", phase_name(node->phase));
    json_write_text(w, "queue", queue_name(node->queue));
    json_names(w, "inputs", node->inputs, node->n_inputs);
    json_names(w, "outputs", node->outputs, node->n_outputs);
    json_write_text(w, "guard", node->guard == GUARD_NONE ? NULL : guard_name(node->guard));
    json_write_text(w, "origin", node->origin);
    json_cause(w, &node->cause);
    json_write_end_object(w);
  }
  json_write_end_array(w);
}

static void json_savings(JsonWriter *w, const Graph *g) {
  json_write_array(w, "savings");
  for (size_t i = 0; i < g->n_savings; i++) {
    json_write_object(w, NULL);
    json_write_int(w, "bucket", g->savings[i].bucket);
    json_write_int(w, "bytes", g->savings[i].bytes);
    json_write_text(w, "reason", g->savings[i].reason);
    json_write_end_object(w);
  }
  json_write_end_array(w);
}

static Status json_guarded(JsonWriter *w, const Graph *g, Arena *arena) {
  ARENA_GUARD(arena);
  LedgerEntry *entries;
  size_t n = plan_ledger(g, arena, &entries);
  json_write_object(w, NULL);
  json_write_int(w, "ranks", mesh_ranks(&g->mesh));
  json_write_int(w, "zero", g->recipe.zero);
  json_write_text(w, "reduce", reduce_name(g->recipe.reduce));
  json_write_int(w, "micro_per_rank", g->recipe.micro_per_rank);
  json_write_text(w, "loss_output", g->recipe.loss_output);
  json_write_text(w, "loss_rule", g->recipe.loss_rule);
  json_write_int(w, "padded_param_bytes", plan_bytes(g, arena).padded_param_bytes);
  json_ledger(w, entries, n);
  json_savings(w, g);
  report_write_sent_bytes(w, g, NULL, arena);
  report_write_peak_bytes(w, g, NULL, arena);
  json_steps(w, g);
  json_write_end_object(w);
  ARENA_RETURN(arena, STATUS_OK);
}

Status plan_text_json(JsonWriter *w, const Graph *g) {
  Arena *arena = arena_create(0);
  Status status = arena ? json_guarded(w, g, arena) : status_fail(STATUS_RESOURCE, NULL, "out of memory while printing a plan");
  arena_destroy(arena);
  return status;
}
