// tessera tune: the ways to run a model that fit into given memory, ranked by predicted time, each loser with its reason.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "json_write.h"
#include "progress.h"
#include "search.h"
#include "style.h"

// ---- As text --------------------------------------------------------------------------------------------------------------------------------

static const char *const headings[DIM_COUNT] = {
    [DIM_ZERO] = "stage", [DIM_BATCH] = "batch", [DIM_OFFLOAD] = "offload", [DIM_RECOMPUTE] = "recompute", [DIM_KEEP] = "keep", [DIM_BUCKET] = "bucket",
    [DIM_PREFETCH] = "prefetch"};

// What the command line or the defaults fix is the same in every line: it is left out.
static bool is_column(const Search *s, int dim) { return s->dims[dim].n > 1; }

static int width_of(const Search *s, int dim) {
  size_t width = strlen(headings[dim]);
  for (size_t i = 0; i < s->n; i++) {
    size_t n = strlen(search_value(s, s->items[i], (SearchDim)dim));
    if (n > width) width = n;
  }
  return (int)width;
}

static void print_headings(const Style *style, const Search *s) {
  fprintf(style->to, "%s%4s", style_on(style, TONE_DIM), "");
  for (int d = 0; d < DIM_COUNT; d++)
    if (is_column(s, d)) fprintf(style->to, "  %-*s", width_of(s, d), headings[d]);
  fprintf(style->to, "  %10s %11s %10s", "step", "samples/s", "device");
  for (int t = TIER_DEVICE + 1; t < TIER_COUNT; t++)
    if (s->request.budget.bytes[t]) fprintf(style->to, " %10s", tier_name((Tier)t));
  fprintf(style->to, " %10s  why%s\n", "sent", style_off(style));
}

static void print_candidate(const Style *style, const Search *s, size_t number, const Candidate *c) {
  char text[32];
  fprintf(style->to, "%s%4zu", c == s->chosen ? style_on(style, TONE_NAME) : "", number);
  for (int d = 0; d < DIM_COUNT; d++)
    if (is_column(s, d)) fprintf(style->to, "  %-*s", width_of(s, d), *search_value(s, c, (SearchDim)d) ? search_value(s, c, (SearchDim)d) : "-");
  if (c->refused) {
    fprintf(style->to, "  cannot be: %s\n", c->refused);
    return;
  }
  fprintf(style->to, "  %10s %11.4g", seconds_text(c->step_s, text), (double)c->samples / c->step_s);
  for (int t = TIER_DEVICE; t < TIER_COUNT; t++)
    if (t == TIER_DEVICE || s->request.budget.bytes[t]) fprintf(style->to, " %10s", bytes_text(c->bytes[t], text));
  fprintf(style->to, " %10s  %s%s\n", bytes_text(c->sent_bytes, text), search_reason(s, c), c == s->chosen ? style_off(style) : "");
}

// Of variants that differ in keep, buckets and prefetch alone, the first stands for all.
static bool is_shown(const Search *s, size_t i) {
  static const SearchDim coarse[] = {DIM_ZERO, DIM_BATCH, DIM_OFFLOAD, DIM_RECOMPUTE};
  const Candidate *c = s->items[i];
  bool of_chosen = false;
  for (size_t k = 0; k < i || k == 0; k++) {
    const Candidate *other = k < i ? s->items[k] : s->chosen;
    bool same = other != NULL;
    for (size_t d = 0; d < sizeof coarse / sizeof *coarse && same; d++) same = other->at[coarse[d]] == c->at[coarse[d]];
    of_chosen |= same && other != c && k < i;
  }
  return c == s->chosen || !of_chosen;
}

static void print_budget(const Style *style, const Search *s) {
  char text[32];
  int shown = 0;
  for (int t = 0; t < TIER_COUNT; t++) {
    if (s->request.budget.bytes[t] == INT64_MAX || !s->request.budget.bytes[t]) continue;
    fprintf(style->to, "%s%s of %s memory", shown++ ? ", " : "", bytes_text(s->request.budget.bytes[t], text), tier_name((Tier)t));
  }
  fprintf(style->to, "%s\n", shown ? " a process" : "memory without limit (--memory SIZE)");
}

// What was given, and what was chosen. In the arena.
static Status command_text(const Search *s, const char **out) {
  Options given = *s->options;                        // lists stay the original's
  char *line = NULL;
  given.given.global_batch = given.given.memory = given.given.host_memory = given.given.nvme = given.given.cluster = false;      // decided
  TRY(options_command_line(&given, RUN, &line));
  *out = arena_printf(s->flow->arena, "%s%s", line, search_choices(s, s->chosen));
  free(line);
  return STATUS_OK;
}

static Status print_command(const Search *s) {
  const char *line;
  TRY(command_text(s, &line));
  bool apart = s->options->ranks_per_process && s->options->ranks_per_process != s->options->ranks;      // a plan for other processes than this one
  printf("\nto %s it:\n  tessera %s %s%s%s%s\n", apart ? "compile" : "run", apart ? "compile" : "run", s->options->input, *line == ' ' ? "" : " ", line,
         apart ? " -o plan.onnx" : s->options->data.n ? "" : " --data random --steps 10");
  return STATUS_OK;
}

static Status print_search(const Search *s) {
  const Options *o = s->options;
  Style style = style_for(stdout, o->color);
  printf("%s on %" PRId64 " rank%s of machine '%s': ", o->input, o->ranks, o->ranks == 1 ? "" : "s", s->request.cluster.machine.name);
  print_budget(&style, s);
  print_headings(&style, s);
  size_t number = 0, left_out = 0;
  const Candidate *first[] = {s->chosen};
  if (s->chosen) print_candidate(&style, s, ++number, *first);
  for (size_t i = 0; i < s->n; i++) {
    if (s->items[i] == s->chosen || !is_shown(s, i)) continue;
    if (o->lines && number >= (size_t)o->lines) left_out++;
    else print_candidate(&style, s, ++number, s->items[i]);
  }
  if (left_out) printf("     and %zu more (--lines 0 shows all)\n", left_out);
  printf("%zu candidates compiled, %zu fit; %zu not tried, since they recompute more than what fits\n", s->n, s->n_fit, s->not_tried);
  return s->chosen ? print_command(s) : search_nothing_fits(s);
}

// ---- As JSON --------------------------------------------------------------------------------------------------------------------------------

static void write_candidate(JsonWriter *w, const Search *s, const Candidate *c) {
  json_write_object(w, NULL);
  for (int d = 0; d < DIM_COUNT; d++)
    for (int i = 0; i < 2; i++) {
      const char *name = s->dims[d].options[i];
      if (!name || !options_find_row(name, RUN)) continue;
      json_write_text(w, name, i ? search_text(s, c, (SearchDim)d, 1) : search_value(s, c, (SearchDim)d));
    }
  json_write_bool(w, "chosen", c == s->chosen);
  json_write_bool(w, "fits", !c->refused && c->fits);
  json_write_text(w, "why", search_reason(s, c));
  if (!c->refused) {
    json_write_real(w, "step_s", c->step_s);
    json_write_real(w, "compute_s", c->compute_s);
    json_write_real(w, "exposed_s", c->exposed_s);
    json_write_real(w, "transfer_s", c->transfer_s);
    json_write_real(w, "overhead_s", c->overhead_s);
    json_write_int(w, "samples", c->samples);
    json_write_real(w, "samples_per_s", (double)c->samples / c->step_s);
    json_write_int(w, "sent_bytes", c->sent_bytes);
    json_write_object(w, "peak_bytes");
    for (int t = 0; t < TIER_COUNT; t++) json_write_int(w, tier_name((Tier)t), c->bytes[t]);
    json_write_end_object(w);
  }
  json_write_end_object(w);
}

static Status write_command(JsonWriter *w, const Search *s) {
  const char *line;
  TRY(command_text(s, &line));
  json_write_text(w, "options", line + strspn(line, " "));
  return STATUS_OK;
}

static Status write_search(const Search *s) {
  JsonWriter w = {.to = stdout};
  Status status = STATUS_OK;
  json_write_object(&w, NULL);
  json_write_text(&w, "machine", s->request.cluster.machine.name);
  json_write_int(&w, "ranks", s->options->ranks);
  json_write_object(&w, "budget_bytes");
  for (int t = 0; t < TIER_COUNT; t++) {
    if (s->request.budget.bytes[t] == INT64_MAX) json_write_null(&w, tier_name((Tier)t));
    else json_write_int(&w, tier_name((Tier)t), s->request.budget.bytes[t]);
  }
  json_write_end_object(&w);
  json_write_int(&w, "compiled", (int64_t)s->n);
  json_write_int(&w, "fit", (int64_t)s->n_fit);
  json_write_int(&w, "not_tried", (int64_t)s->not_tried);
  if (s->chosen) status = write_command(&w, s);
  else json_write_null(&w, "options");
  json_write_array(&w, "candidates");
  if (s->chosen) write_candidate(&w, s, s->chosen);
  for (size_t i = 0; i < s->n; i++)
    if (s->items[i] != s->chosen) write_candidate(&w, s, s->items[i]);
  json_write_end_array(&w);
  json_write_end_object(&w);
  if (status) return status;
  return s->chosen ? STATUS_OK : search_nothing_fits(s);
}

// ---- The command ----------------------------------------------------------------------------------------------------------------------------

static Status show_guarded(const Search *s) {
  ARENA_GUARD(s->flow->arena);
  ARENA_RETURN(s->flow->arena, s->options->json ? write_search(s) : print_search(s));
}

static Status tune_file(Flow *flow, const Options *given) {
  Options o = *given;
  Search search;
  SearchRequest request = {.tune = true, .run = true, .alive = stderr};
  TRY(search_read_cluster(&o, &request.cluster));
  TRY(flow_open(&o, flow));
  if (flow->is_plan) FAIL(USAGE, NULL, "'%s' is a plan, which has decided already; tune takes the model that it was compiled from", o.input);
  if (!o.given.ranks && request.cluster.ranks) {
    o.ranks = request.cluster.ranks;
    o.given.ranks = true;
  }
  if (search_ranks_per_process(&o, &request.cluster) != o.ranks) {
    o.ranks_per_process = search_ranks_per_process(&o, &request.cluster);
    o.given.ranks_per_process = true;
  }
  request.budget = search_budget(&o, &request.cluster);
  TRY(search_run(flow, &o, NULL, &request, &search));
  return show_guarded(&search);
}

Status command_tune(const Options *options) {
  Flow flow = {0};
  Status status = tune_file(&flow, options);
  flow_finish(&flow);
  return status;
}
