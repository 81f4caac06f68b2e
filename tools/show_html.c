// `show PLAN --html`: the page of tools/report_html/ with the plan in it as JSON, columns first. What the page shows and this file writes are one format,
// known to these two only; programs read --json.
#include <inttypes.h>
#include <string.h>

#include "../ir/op.h"
#include "show_plan.h"
#include "text_file.h"

enum { LARGEST_BUFFERS = 400 };

// Made by cmake/embed.cmake from the files.
extern const char embedded_page_html[], embedded_page_css[], embedded_page_js[];

static void ints(JsonWriter *w, const char *key, const PlanView *v, int64_t (*of)(const PlanView *v, const Node *n)) {
  json_write_array(w, key);
  for (size_t i = 0; i < v->graph->n_nodes; i++) json_write_int(w, NULL, of(v, v->graph->nodes[i]));
  json_write_end_array(w);
}

static int64_t layer_of(const PlanView *v, const Node *n) { return v->layers.of_step[n->id]; }
static int64_t phase_of(const PlanView *v, const Node *n) { return n->phase; }
static int64_t queue_of(const PlanView *v, const Node *n) { return n->queue; }
static int64_t backward_of(const PlanView *v, const Node *n) { return n->recomputes ? 2 : n->backward; }
static int64_t start_ns_of(const PlanView *v, const Node *n) { return (int64_t)(v->estimate.steps[n->id].start_s * 1e9 + 0.5); }
static int64_t end_ns_of(const PlanView *v, const Node *n) { return (int64_t)(v->estimate.steps[n->id].end_s * 1e9 + 0.5); }

// Index of the step's operator in the list of those that the plan uses, by the place of its first use.
static void write_ops(JsonWriter *w, const PlanView *v, Arena *arena) {
  const Op **ops = NULL;
  size_t n = 0, capacity = 0;
  uint32_t *of_step = ARENA_ARRAY(arena, uint32_t, v->graph->n_nodes);
  for (size_t i = 0; i < v->graph->n_nodes; i++) {
    size_t k = 0;
    while (k < n && ops[k] != v->graph->nodes[i]->op) k++;
    if (k == n) ARENA_PUSH(arena, ops, n, capacity, v->graph->nodes[i]->op);
    of_step[i] = (uint32_t)k;
  }
  json_write_array(w, "ops");
  for (size_t k = 0; k < n; k++) json_write_text(w, NULL, ops[k]->name);
  json_write_end_array(w);
  json_write_object(w, "steps");
  json_write_array(w, "op");
  for (size_t i = 0; i < v->graph->n_nodes; i++) json_write_int(w, NULL, of_step[i]);
  json_write_end_array(w);
}

static const char *step_name(const Node *n) { return n->origin ? n->origin : n->cause.param; }

static void write_steps(JsonWriter *w, const PlanView *v, Arena *arena) {
  write_ops(w, v, arena);
  ints(w, "layer", v, layer_of);
  ints(w, "phase", v, phase_of);
  ints(w, "queue", v, queue_of);
  ints(w, "backward", v, backward_of);
  if (!v->no_estimate) {
    ints(w, "start_ns", v, start_ns_of);
    ints(w, "end_ns", v, end_ns_of);
  }
  // A name that the step before has, too, is not written again: 0.
  json_write_array(w, "node");
  for (size_t i = 0; i < v->graph->n_nodes; i++) {
    const char *name = step_name(v->graph->nodes[i]), *before = i ? step_name(v->graph->nodes[i - 1]) : NULL;
    if (name && before && !strcmp(name, before)) json_write_int(w, NULL, 0);
    else json_write_text(w, NULL, name);
  }
  json_write_end_array(w);
  json_write_end_object(w);
}

// Pairs of a step and one that it waits for.
static void write_waits(JsonWriter *w, const PlanView *v) {
  json_write_array(w, "waits");
  for (size_t i = 0; i < v->graph->n_nodes; i++)
    for (int k = 0; k < v->graph->nodes[i]->n_waits; k++) {
      json_write_array(w, NULL);
      json_write_int(w, NULL, (int64_t)i);
      json_write_int(w, NULL, v->graph->nodes[i]->waits[k]);
      json_write_end_array(w);
    }
  json_write_end_array(w);
}

static void write_layers(JsonWriter *w, const PlanView *v) {
  json_write_array(w, "layers");
  for (size_t i = 0; i < v->layers.n; i++) {
    const Layer *l = &v->layers.items[i];
    json_write_object(w, NULL);
    json_write_text(w, "name", l->name);
    json_write_text(w, "family", l->family);
    json_write_int(w, "index", l->index);
    json_write_int(w, "params", l->n_params);
    json_write_int(w, "elems", l->param_elems);
    json_write_int(w, "steps", (int64_t)l->n_steps);
    json_write_int(w, "sent", l->sent_bytes);
    json_write_int(w, "gathered", l->gathered_bytes);
    json_write_int(w, "reduced", l->reduced_bytes);
    json_write_end_object(w);
  }
  json_write_end_array(w);
}

// Rows of the columns named first.
static void write_ledger(JsonWriter *w, const PlanView *v) {
  static const char *const columns[] = {"step", "op", "kind", "sums", "axis", "bytes", "times", "copied", "wire", "accumulator", "bucket", "purpose", "param", "node"};
  json_write_array(w, "ledger_columns");
  for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) json_write_text(w, NULL, columns[i]);
  json_write_end_array(w);
  json_write_array(w, "ledger");
  for (size_t i = 0; i < v->n_ledger; i++) {
    const LedgerEntry *e = &v->ledger[i];
    json_write_array(w, NULL);
    json_write_int(w, NULL, e->step);
    json_write_text(w, NULL, e->op);
    json_write_text(w, NULL, e->kind);
    json_write_bool(w, NULL, v->graph->nodes[e->step]->op->flags & OP_SUMS_RANKS);
    json_write_text(w, NULL, e->axis);
    json_write_int(w, NULL, e->bytes);
    json_write_int(w, NULL, e->times);
    json_write_int(w, NULL, e->copied_bytes);
    json_write_text(w, NULL, dtype_name(e->wire));
    json_write_text(w, NULL, e->accumulator ? dtype_name(e->accumulator) : NULL);
    if (e->bucket >= 0) json_write_int(w, NULL, e->bucket);
    else json_write_null(w, NULL);
    json_write_text(w, NULL, ledger_purpose(v->graph, e));
    json_write_text(w, NULL, e->cause.param);
    json_write_text(w, NULL, e->cause.node);
    json_write_end_array(w);
  }
  json_write_end_array(w);
}

// A category over the steps: only where it changes.
static void write_series(JsonWriter *w, const int64_t *values, size_t n) {
  json_write_array(w, "at");
  for (size_t i = 0; i < n; i++)
    if (!i || values[i] != values[i - 1]) json_write_int(w, NULL, (int64_t)i);
  json_write_end_array(w);
  json_write_array(w, "bytes");
  for (size_t i = 0; i < n; i++)
    if (!i || values[i] != values[i - 1]) json_write_int(w, NULL, values[i]);
  json_write_end_array(w);
}

static void write_memory(JsonWriter *w, const PlanView *v) {
  json_write_array(w, "memory");
  for (int t = 0; t < v->n_curves; t++) {
    const MemoryCurve *c = &v->curves[t];
    json_write_object(w, NULL);
    json_write_text(w, "tier", tier_name(c->tier));
    json_write_int(w, "arena_bytes", c->arena_bytes);
    json_write_int(w, "lower_bound_bytes", c->lower_bound_bytes);
    json_write_int(w, "peak", c->peak);
    json_write_array(w, "categories");
    for (int k = 0; k < CATEGORY_COUNT; k++) {
      if (!c->live[k]) continue;
      json_write_object(w, NULL);
      json_write_text(w, "name", category_name((Category)k));
      write_series(w, c->live[k], v->graph->n_nodes);
      json_write_end_object(w);
    }
    json_write_end_array(w);
    json_write_end_object(w);
  }
  json_write_end_array(w);
}

static void write_buffers(JsonWriter *w, const PlanView *v, Arena *arena) {
  uint32_t *order;
  size_t n = plan_largest_buffers(v->graph, arena, &order);
  json_write_array(w, "largest_buffers");
  for (size_t i = 0; i < n && i < LARGEST_BUFFERS; i++) {
    const Buffer *b = &v->graph->buffers[order[i]];
    json_write_object(w, NULL);
    json_write_text(w, "name", b->name);
    json_write_text(w, "scope", scope_name(b->scope));
    json_write_text(w, "category", category_name(b->category));
    json_write_int(w, "bytes", b->bytes);
    if (b->persistent) json_write_null(w, "life");
    else {
      json_write_array(w, "life");
      json_write_int(w, NULL, b->first);
      json_write_int(w, NULL, b->last);
      json_write_end_array(w);
    }
    json_write_end_object(w);
  }
  json_write_end_array(w);
}

static void write_estimate(JsonWriter *w, const PlanView *v) {
  json_write_text(w, "no_estimate", v->no_estimate);
  if (v->no_estimate) {
    json_write_null(w, "estimate");
    return;
  }
  json_write_object(w, "estimate");
  json_write_text(w, "machine", v->machine.name);
  json_write_real(w, "step_s", v->estimate.step_s);
  json_write_real(w, "micro_s", v->estimate.phase_s[PHASE_MICRO]);
  json_write_real(w, "update_s", v->estimate.phase_s[PHASE_UPDATE]);
  json_write_real(w, "comm_s", v->estimate.comm_s);
  json_write_real(w, "exposed_s", v->estimate.exposed_s);
  json_write_end_object(w);
}

// The last part of a path.
static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash && slash[1] ? slash + 1 : path;
}

static const char *plan_title(const PlanView *v, Arena *arena) {
  const Recipe *r = &v->graph->recipe;
  int ranks = mesh_ranks(&v->graph->mesh);
  return arena_printf(arena, "%s: %d rank%s, stage %d", r->model ? base_name(r->model) : "plan", ranks, ranks == 1 ? "" : "s", r->zero);
}

static void write_header(JsonWriter *w, const PlanView *v, Arena *arena) {
  const Graph *g = v->graph;
  const Recipe *r = &g->recipe;
  int64_t params = 0, ranks = r->ranks_per_process > 0 ? r->ranks_per_process : 1;
  for (size_t i = 0; i < v->layers.n; i++) params = bytes_add(params, v->layers.items[i].param_elems);
  json_write_text(w, "title", plan_title(v, arena));
  json_write_array(w, "facts");
  json_write_text(w, NULL, arena_printf(arena, "%" PRId64 " micro-batch%s a rank", r->micro_per_rank, r->micro_per_rank == 1 ? "" : "es"));
  json_write_text(w, NULL, r->reduce == REDUCE_MICRO ? "gradients summed after each micro-batch" : "gradients summed once a step");
  json_write_text(w, NULL, r->optimizer ? r->optimizer : "no optimizer");
  json_write_text(w, NULL, r->precision ? r->precision : "?");
  json_write_text(w, NULL, r->numerics_key ? r->numerics_key : r->isa ? r->isa : "?");
  json_write_text(w, NULL, arena_printf(arena, "%d process%s", r->processes, r->processes == 1 ? "" : "es"));
  json_write_end_array(w);
  json_write_int(w, "ranks", mesh_ranks(&g->mesh));
  json_write_int(w, "ranks_per_process", ranks);
  json_write_int(w, "micro_per_rank", r->micro_per_rank);
  json_write_int(w, "reductions", r->reduce == REDUCE_MICRO ? r->micro_per_rank : 1);
  json_write_int(w, "params", params);
  json_write_int(w, "buckets", (int64_t)g->n_buckets);
  json_write_int(w, "psi", v->bytes.padded_param_bytes);
  json_write_int(w, "copied", v->bytes.copied_bytes);
  json_write_array(w, "n_steps");
  for (int p = 0; p < PHASE_COUNT; p++) json_write_int(w, NULL, (int64_t)v->n_steps[p]);
  json_write_end_array(w);
  json_write_object(w, "peak");
  json_write_int(w, "process", v->bytes.tiers[TIER_DEVICE].peak_bytes);
  json_write_int(w, "rank", bytes_add(v->bytes.tiers[TIER_DEVICE].rank_arena_bytes, v->bytes.tiers[TIER_DEVICE].process_arena_bytes / ranks));
  json_write_end_object(w);
}

static void write_data(FILE *to, const PlanView *v, Arena *arena) {
  JsonWriter w = {.to = to, .in_page = true};
  json_write_object(&w, NULL);
  write_header(&w, v, arena);
  write_estimate(&w, v);
  show_write_account(&w, v);
  write_layers(&w, v);
  write_ledger(&w, v);
  write_memory(&w, v);
  write_buffers(&w, v, arena);
  write_waits(&w, v);
  write_steps(&w, v, arena);
  json_write_end_object(&w);
}

static void write_markup(FILE *to, const char *text) {
  for (; *text; text++) {
    if (*text == '<') fputs("&lt;", to);
    else if (*text == '&') fputs("&amp;", to);
    else fputc(*text, to);
  }
}

// The page with each {{name}} replaced.
static void write_page(FILE *to, const PlanView *v, Arena *arena) {
  for (const char *at = embedded_page_html; *at;) {
    const char *open = strstr(at, "{{"), *close = open ? strstr(open, "}}") : NULL;
    if (!close) {
      fputs(at, to);
      return;
    }
    fwrite(at, 1, (size_t)(open - at), to);
    if (!strncmp(open, "{{title}}", 9)) write_markup(to, plan_title(v, arena));
    else if (!strncmp(open, "{{style}}", 9)) fputs(embedded_page_css, to);
    else if (!strncmp(open, "{{script}}", 10)) fputs(embedded_page_js, to);
    else if (!strncmp(open, "{{data}}", 8)) write_data(to, v, arena);
    at = close + 2;
  }
}

typedef struct Page { const Graph *graph; Arena *arena; } Page;

static Status page_guarded(FILE *to, const Page *page) {
  ARENA_GUARD(page->arena);
  PlanView v = plan_view(page->graph, page->arena);
  write_page(to, &v, page->arena);
  ARENA_RETURN(page->arena, STATUS_OK);
}

static Status write_text(FILE *to, void *self) { return page_guarded(to, self); }

Status show_plan_html(const char *path, const Graph *g) {
  Page page = {g, arena_create(0)};
  if (!page.arena) FAIL(RESOURCE, NULL, "out of memory while drawing a plan");
  Status status = text_file_write(path, "--html", write_text, &page);
  arena_destroy(page.arena);
  return status;
}
