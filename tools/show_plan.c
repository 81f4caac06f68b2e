#include "show_plan.h"

#include <inttypes.h>
#include <string.h>

#include "progress.h"

bool sections_take(const PlanSections *s, bool section) { return section || !(s->comm || s->memory || s->params || s->schedule); }

static const char *const stage_names[] = {"nothing sharded", "optimizer state sharded", "optimizer state and gradients sharded",
                                          "parameters, gradients and optimizer state sharded"};

static void field(const Style *s, const char *name) { fprintf(s->to, "  %s%-14s%s", style_on(s, TONE_DIM), name, style_off(s)); }

static const char *plural(int64_t n) { return n == 1 ? "" : "s"; }

static void header_model(const Style *s, const PlanView *v) {
  const Graph *g = v->graph;
  int64_t trainable = 0, frozen = 0;
  char count[COUNT_BYTES], more[COUNT_BYTES], bytes[32];
  for (size_t b = 0; b < g->n_buckets; b++)
    for (int i = 0; i < g->buckets[b].n_params; i++) *(g->buckets[b].trainable ? &trainable : &frozen) += type_elems(&g->buckets[b].types[i]);
  field(s, "model");
  fprintf(s->to, "%s%s%s: %s parameters", style_on(s, TONE_NAME), g->recipe.model ? g->recipe.model : "(unnamed)", style_off(s), count_text(trainable, count));
  if (frozen) fprintf(s->to, " and %s frozen", count_text(frozen, more));
  fprintf(s->to, " in %zu bucket%s", g->n_buckets, plural((int64_t)g->n_buckets));
  if (g->recipe.bucket_bytes > 0) fprintf(s->to, " of about %s", bytes_text(g->recipe.bucket_bytes, bytes));
  fprintf(s->to, ", %s padded, %zu layers\n", bytes_text(v->bytes.padded_param_bytes, bytes), v->layers.n - 1);
}

static void header_ranks(const Style *s, const PlanView *v) {
  const Graph *g = v->graph;
  const Recipe *r = &g->recipe;
  int ranks = mesh_ranks(&g->mesh);
  field(s, "ranks");
  fprintf(s->to, "%d in %d process%s", ranks, r->processes, r->processes == 1 ? "" : "es");
  for (int a = 0; a < g->mesh.n_axes; a++) fprintf(s->to, "%s%s %d", a ? " x " : ", mesh ", g->mesh.axes[a].name, g->mesh.axes[a].size);
  fputc('\n', s->to);
  field(s, "stage");
  fprintf(s->to, "%d: %s\n", r->zero, r->zero >= 0 && r->zero <= 3 ? stage_names[r->zero] : "?");
  field(s, "micro-batches");
  fprintf(s->to, "%" PRId64 " a rank, %" PRId64 " a step; gradients are summed over the ranks %s\n", r->micro_per_rank, bytes_times(r->micro_per_rank, ranks),
          r->reduce == REDUCE_MICRO ? "after each" : "once a step");
}

static void header_budget(const Style *s, const PlanView *v) {
  char allowed[32], held[32];
  int n = 0;
  for (int t = 0; t < TIER_COUNT; t++) {
    if (plan_budget_bytes(v->graph, (Tier)t) == INT64_MAX) continue;
    if (!n) field(s, "budget");
    fprintf(s->to, "%s%s of %s memory a process, of which %s are held", n++ ? "; " : "", bytes_text(plan_budget_bytes(v->graph, (Tier)t), allowed), tier_name((Tier)t),
            bytes_text(plan_process_bytes(v->graph, (Tier)t), held));
  }
  if (n) fputc('\n', s->to);
  if (!v->graph->recipe.chosen) return;
  field(s, "chosen");
  fprintf(s->to, "%s\n", v->graph->recipe.chosen);
}

static void header_recomputed(const Style *s, const PlanView *v) {
  size_t n = 0;
  for (size_t i = 0; i < v->graph->n_nodes; i++) n += v->graph->nodes[i]->recomputes != NULL;
  if (!n) return;
  const Simulation *e = &v->estimate;
  double once = e->product_flops - e->recomputed_flops;
  field(s, "recomputed");
  fprintf(s->to, "%zu step%s per micro-batch run again for backward", n, plural((int64_t)n));
  if (!v->no_estimate) fprintf(s->to, ": %.4g GFLOP of products a step, %.1f %% more", e->recomputed_flops / 1e9, once > 0 ? 100 * e->recomputed_flops / once : 0);
  fputc('\n', s->to);
}

void show_header(const Style *s, const PlanView *v) {
  const Recipe *r = &v->graph->recipe;
  fprintf(s->to, "%splan%s\n", style_on(s, TONE_HEADING), style_off(s));
  header_model(s, v);
  header_ranks(s, v);
  field(s, "precision");
  fprintf(s->to, "%s\n", r->precision ? r->precision : "?");
  field(s, "optimizer");
  if (r->optimizer) fprintf(s->to, "%s, lr %g\n", r->optimizer, r->lr);
  else fprintf(s->to, "none\n");
  if (r->loss_rule) {
    field(s, "loss");
    fprintf(s->to, "'%s': %s\n", r->loss_output ? r->loss_output : "?", r->loss_rule);
  }
  header_budget(s, v);
  field(s, "target");
  fprintf(s->to, "%s, %d thread%s a rank%s%s\n", r->isa ? r->isa : "?", r->threads_per_rank, plural(r->threads_per_rank), r->numerics_key ? ", kernels " : "",
          r->numerics_key ? r->numerics_key : "");
  field(s, "steps");
  fprintf(s->to, "%zu at start, %zu per micro-batch, %zu per update; queues", v->n_steps[PHASE_INIT], v->n_steps[PHASE_MICRO], v->n_steps[PHASE_UPDATE]);
  for (int q = 0; q < QUEUE_COUNT; q++)
    if (v->queues[q]) fprintf(s->to, " %s", queue_name((Queue)q));
  char bits[PLAN_BITS_BYTES];
  fputc('\n', s->to);
  header_recomputed(s, v);
  field(s, "bits");
  fprintf(s->to, "%s\n", plan_bits_rule(v->graph, bits));
}

static void print_sections(const Style *style, const PlanView *view, const PlanSections *sections, Arena *arena) {
  show_header(style, view);
  if (sections_take(sections, sections->comm)) show_comm(style, view, sections, arena);
  if (sections_take(sections, sections->comm)) show_tiers(style, view, sections, arena);
  if (sections_take(sections, sections->schedule) && !sections->layer) show_time(style, view, arena);
  if (sections_take(sections, sections->memory)) show_memory(style, view, sections, arena);
  if (sections_take(sections, sections->params)) show_params(style, view, sections);
  if (sections_take(sections, sections->schedule)) show_schedule(style, view, sections, arena);
}

static Status text_guarded(const Style *style, const Graph *g, const PlanSections *sections, Arena *arena) {
  ARENA_GUARD(arena);
  PlanView view = plan_view(g, arena);
  print_sections(style, &view, sections, arena);
  ARENA_RETURN(arena, STATUS_OK);
}

static Status no_memory(void) { return status_fail(STATUS_RESOURCE, NULL, "out of memory while showing a plan"); }

Status show_plan_text(const Style *style, const Graph *g, const PlanSections *sections) {
  Arena *arena = arena_create(0);
  Status status = arena ? text_guarded(style, g, sections, arena) : no_memory();
  arena_destroy(arena);
  return status;
}

static Status summary_guarded(const Style *s, const Graph *g, Arena *arena) {
  ARENA_GUARD(arena);
  PlanView v = plan_view(g, arena);
  char exact[COUNT_BYTES], text[32], rank[32];
  int ranks = g->recipe.ranks_per_process > 0 ? g->recipe.ranks_per_process : 1;
  show_header(s, &v);
  field(s, "sends");
  fprintf(s->to, "%s bytes (%s) a rank and step:", count_text(v.bytes.sent_bytes, exact), bytes_text(v.bytes.sent_bytes, text));
  for (size_t i = 0; i < v.n_causes; i++) fprintf(s->to, "%s %s %s", i ? "," : "", v.causes[i].what, bytes_text(v.causes[i].bytes, text));
  fputc('\n', s->to);
  field(s, "memory");
  fprintf(s->to, "%s a process, %s of it for each rank", bytes_text(v.bytes.tiers[TIER_DEVICE].peak_bytes, text),
          bytes_text(bytes_add(v.bytes.tiers[TIER_DEVICE].rank_arena_bytes, v.bytes.tiers[TIER_DEVICE].process_arena_bytes / ranks), rank));
  for (int t = 0; t < v.n_curves; t++)
    if (v.curves[t].tier == TIER_DEVICE) fprintf(s->to, ", %.4f of the lower bound", curve_above_bound(&v.curves[t]));
  fprintf(s->to, "; 'tessera show' tells more\n");
  ARENA_RETURN(arena, STATUS_OK);
}

Status show_plan_summary(const Style *style, const Graph *g) {
  Arena *arena = arena_create(0);
  Status status = arena ? summary_guarded(style, g, arena) : no_memory();
  arena_destroy(arena);
  return status;
}
