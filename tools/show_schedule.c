// The section `schedule`: one line a step. A long one is folded unless it was asked for by name: steps of one layer that send nothing are one line, and
// lines that repeat for the next layers stand once.
#include <inttypes.h>
#include <string.h>

#include "../ir/op.h"
#include "show_plan.h"

enum { FOLD_FROM = 200, PERIOD_MAX = 128, OPS_NAMED = 5 };

// ---- One step -----------------------------------------------------------------------------------------------------------------

static void print_values(const Style *s, Value *const *values, int n) {
  for (int i = 0; i < n; i++) {
    char name[NAME_BYTES], type[160];
    if (!values[i]) fprintf(s->to, "%s-", i ? ", " : "");
    else {
      fprintf(s->to, "%s%s %s", i ? ", " : "", name_text(values[i]->name, 34, name), type_text(&values[i]->type, type, sizeof type));
      if (values[i]->loc.buffer >= 0) fprintf(s->to, "%s#%d%s", style_on(s, TONE_DIM), values[i]->loc.buffer, style_off(s));
    }
    if (i == 3 && n > 5) {
      fprintf(s->to, ", ... %d more", n - 4);
      return;
    }
  }
}

static void print_sent(const Style *s, const LedgerEntry *e) {
  char exact[COUNT_BYTES];
  fprintf(s->to, "  %ssends %s bytes of %s", style_on(s, TONE_SEND), count_text(e->bytes, exact), dtype_name(e->wire));
  if (e->accumulator) fprintf(s->to, ", summed in %s", dtype_name(e->accumulator));
  fprintf(s->to, "%s%s", e->copied_bytes || !e->bytes ? "" : " (a view)", style_off(s));
}

static void print_time(const Style *s, const PlanView *v, uint32_t first, uint32_t last) {
  double seconds = 0;
  char text[32];
  for (uint32_t i = first; i <= last; i++) seconds += view_step_seconds(v, i);
  if (!v->no_estimate) fprintf(s->to, "%9s ", seconds > 0 ? seconds_text(seconds, text) : "-");
}

static void print_step(const Style *s, const PlanView *v, const Node *n) {
  const Graph *g = v->graph;
  int32_t entry = v->entry_of_step[n->id];
  const char *layer = v->layers.items[v->layers.of_step[n->id]].name;
  fprintf(s->to, "%6u %-6s %-7s ", n->id, phase_name(n->phase), queue_name(n->queue));
  print_time(s, v, n->id, n->id);
  fprintf(s->to, "%s%-24s%s ", style_on(s, entry >= 0 ? TONE_SEND : TONE_HEADING), n->op->name, style_off(s));
  print_values(s, n->outputs, n->n_outputs);
  fprintf(s->to, " <- ");
  print_values(s, n->inputs, n->n_inputs);
  if (entry >= 0) print_sent(s, &v->ledger[entry]);
  if (n->guard != GUARD_NONE && n->region >= 0 && (size_t)n->region < g->n_buffers) fprintf(s->to, "  %s of '%s'", guard_name(n->guard), g->buffers[n->region].name);
  for (int i = 0; i < n->n_waits; i++) fprintf(s->to, "%s%u", i ? "," : "  waits ", n->waits[i]);
  if (n->recomputes) fprintf(s->to, "  again");
  if (n->cause.param) fprintf(s->to, "  for %s", n->cause.param);
  if (n->origin) fprintf(s->to, "  of %s", n->origin);
  else if (n->cause.node) fprintf(s->to, "  of %s", n->cause.node);
  if (layer[0]) fprintf(s->to, "  %sin %s%s%s", style_on(s, TONE_DIM), layer, n->backward ? " backward" : "", style_off(s));
  fputc('\n', s->to);
}

// ---- Folding ------------------------------------------------------------------------------------------------------------------

// A line to be: the steps [first, last], one or several.
typedef struct Row { uint32_t first, last; int32_t layer; uint64_t signature; } Row;
typedef struct Rows { Row *items; size_t n, capacity; } Rows;

static uint64_t mix(uint64_t h, uint64_t value) { return (h ^ value) * 1099511628211u ^ (h >> 29); }
static uint64_t mix_text(uint64_t h, const char *text) {
  for (; text && *text; text++) h = mix(h, (unsigned char)*text);
  return mix(h, 0);
}

// Equal for steps that differ by nothing but the number of their layer.
static uint64_t step_signature(const PlanView *v, const Node *n, uint64_t h) {
  int32_t entry = v->entry_of_step[n->id];
  h = mix(mix(mix(mix_text(h, n->op->name), n->phase), n->queue), n->guard);
  h = mix(h, n->backward + (n->recomputes != NULL));
  for (int o = 0; o < n->n_outputs; o++)
    for (int d = 0; n->outputs[o] && d < n->outputs[o]->type.rank; d++) h = mix(h, (uint64_t)n->outputs[o]->type.dims[d]);
  return entry >= 0 ? mix(h, (uint64_t)v->ledger[entry].bytes) : h;
}

static uint64_t layer_signature(const PlanView *v, int32_t layer, uint64_t h) {
  const Layer *l = &v->layers.items[layer];
  return mix_text(h, l->family ? l->family : l->name);
}

// May `n` stand in the row that ends right before it? Steps that the compiler has added and that send nothing go with whatever they stand in.
static bool joins(const PlanView *v, const Row *row, const Node *n) {
  const Node *last = v->graph->nodes[row->last];
  if (v->entry_of_step[n->id] >= 0 || v->entry_of_step[last->id] >= 0 || n->phase != last->phase || n->queue != last->queue || n->phase != PHASE_MICRO) return false;
  if (n->n_waits) return false;
  if (!n->origin) return true;
  const Node *first = v->graph->nodes[row->first];
  return (v->layers.of_step[n->id] == row->layer || !row->layer) && first->backward == n->backward && !first->recomputes == !n->recomputes;
}

static Rows make_rows(const PlanView *v, Arena *arena) {
  Rows rows = {0};
  for (size_t i = 0; i < v->graph->n_nodes; i++) {
    const Node *n = v->graph->nodes[i];
    Row *row = rows.n ? &rows.items[rows.n - 1] : NULL;
    if (row && joins(v, row, n)) {
      row->last = n->id;
      if (!row->layer) row->layer = v->layers.of_step[i];
      row->signature = step_signature(v, n, row->signature);
      continue;
    }
    if (row) row->signature = layer_signature(v, row->layer, row->signature);
    ARENA_PUSH(arena, rows.items, rows.n, rows.capacity, ((Row){n->id, n->id, v->layers.of_step[i], step_signature(v, n, 14695981039346656037u)}));
  }
  if (rows.n) rows.items[rows.n - 1].signature = layer_signature(v, rows.items[rows.n - 1].layer, rows.items[rows.n - 1].signature);
  return rows;
}

static size_t repeats(const Rows *rows, size_t at, size_t period) {
  size_t n = 1;
  while (at + (n + 1) * period <= rows->n) {
    for (size_t i = 0; i < period; i++)
      if (rows->items[at + i].signature != rows->items[at + n * period + i].signature) return n;
    n++;
  }
  return n;
}

// The period from `at` on whose repetition saves most lines; 0: nothing repeats.
static size_t best_period(const Rows *rows, size_t at, size_t *times) {
  size_t best = 0, saved = 1;
  for (size_t period = 1; period <= PERIOD_MAX && at + 2 * period <= rows->n; period++) {
    size_t n = repeats(rows, at, period);
    if ((n - 1) * period <= saved) continue;
    saved = (n - 1) * period;
    best = period;
    *times = n;
  }
  return best;
}

typedef struct OpCount { const char *name; int n; } OpCount;

static int count_ops(const PlanView *v, const Row *row, OpCount *counts, int room) {
  int n = 0;
  for (uint32_t i = row->first; i <= row->last; i++) {
    const char *name = v->graph->nodes[i]->op->name;
    int k = 0;
    while (k < n && strcmp(counts[k].name, name)) k++;
    if (k == n && n == room) continue;
    if (k == n) counts[n++] = (OpCount){name, 0};
    counts[k].n++;
    for (; k > 0 && counts[k].n > counts[k - 1].n; k--) {
      OpCount swap = counts[k];
      counts[k] = counts[k - 1];
      counts[k - 1] = swap;
    }
  }
  return n;
}

static void print_row(const Style *s, const PlanView *v, const Row *row) {
  const Node *first = v->graph->nodes[row->first];
  if (row->first == row->last) {
    print_step(s, v, first);
    return;
  }
  OpCount counts[32];
  int n = count_ops(v, row, counts, 32);
  const char *layer = v->layers.items[row->layer].name;
  fprintf(s->to, "%6u %-6s %-7s ", first->id, phase_name(first->phase), queue_name(first->queue));
  print_time(s, v, row->first, row->last);
  fprintf(s->to, "%s%u steps%s to %u of %s%s%s %s:", style_on(s, TONE_HEADING), row->last - row->first + 1, style_off(s), row->last, style_on(s, TONE_NAME),
          layer[0] ? layer : "no layer", style_off(s), first->recomputes ? "forward again" : first->backward ? "backward" : "forward");
  for (int i = 0; i < n && i < OPS_NAMED; i++) fprintf(s->to, "%s %d %s", i ? "," : "", counts[i].n, counts[i].name);
  if (n > OPS_NAMED) fprintf(s->to, ", ...");
  fputc('\n', s->to);
}

static void print_folded(const Style *s, const PlanView *v, Arena *arena) {
  Rows rows = make_rows(v, arena);
  for (size_t i = 0; i < rows.n;) {
    size_t times = 1, period = best_period(&rows, i, &times);
    if (!period) {
      print_row(s, v, &rows.items[i++]);
      continue;
    }
    for (size_t k = 0; k < period; k++) print_row(s, v, &rows.items[i + k]);
    const Row *from = &rows.items[i + period], *to = &rows.items[i + times * period - 1];
    const char *layer = v->layers.items[from->layer].name, *until = v->layers.items[to->layer].name;
    fprintf(s->to, "%s       ... %s %zu more time%s in steps %u to %u", style_on(s, TONE_DIM), period > 1 ? "these lines again" : "this line again",
            times - 1, times > 2 ? "s" : "",
            from->first, to->last);
    if (layer[0] && until[0]) fprintf(s->to, ": %s%s%s", layer, layer == until ? "" : " to ", layer == until ? "" : until);
    fprintf(s->to, "%s\n", style_off(s));
    i += times * period;
  }
}

void show_schedule(const Style *s, const PlanView *v, const PlanSections *sections, Arena *arena) {
  bool folded = !sections->schedule && !sections->layer && v->graph->n_nodes >= FOLD_FROM;
  style_heading(s, "schedule",
                folded ? "folded: steps of a layer that send nothing are one line, and what repeats stands once; --schedule lists every step" : "one line a step");
  fprintf(s->to,
          "  %sphase: init, once at start; micro, once per micro-batch; update, once per step. sends: by a rank, each time. #n: the buffer. begin and end of a view\n"
          "  guard a region that other ranks read. for: the parameter, of: the model's node that a step belongs to. in: its layer%s\n", style_on(s, TONE_DIM),
              style_off(s));
  fprintf(s->to, "%s%6s %-6s %-7s %s%-24s %s%s\n", style_on(s, TONE_DIM), "step", "phase", "queue", v->no_estimate ? "" : " estimate ", "operator",
          "results <- operands", style_off(s));
  if (folded) {
    print_folded(s, v, arena);
    return;
  }
  for (size_t i = 0; i < v->graph->n_nodes; i++)
    if (!sections->layer || layer_pattern_takes_step(sections->layer, &v->layers, v->graph->nodes[i])) print_step(s, v, v->graph->nodes[i]);
}
