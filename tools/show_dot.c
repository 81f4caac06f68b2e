// `show PLAN --dot`: layers in the order of the forward pass as boxes, and what moves: gathers into a layer, sums of gradients out of it. Layers that are
// alike are one box.
#include <inttypes.h>
#include <string.h>

#include "progress.h"
#include "show_plan.h"

static void quoted(FILE *to, const char *text) {
  fputc('"', to);
  for (; *text; text++) {
    if (*text == '"' || *text == '\\') fputc('\\', to);
    if (*text == '\n') fputs("\\n", to);
    else fputc(*text, to);
  }
  fputc('"', to);
}

static void dot_layer(FILE *to, const PlanView *v, size_t at, size_t n) {
  const Layer *l = &v->layers.items[at];
  char name[160], elems[COUNT_BYTES], label[320];
  snprintf(label, sizeof label, "%s\n%s parameters%s", layers_run_name(&v->layers, at, n, name, sizeof name), count_text(l->param_elems, elems), n > 1 ? " each" : "");
  fprintf(to, "  layer%zu [label=", at);
  quoted(to, label);
  fprintf(to, "%s];\n", n > 1 ? ", peripheries=2" : "");
}

static void dot_collective(FILE *to, const PlanView *v, size_t at, size_t n, bool sum) {
  const Layer *l = &v->layers.items[at];
  int64_t bytes = sum ? l->reduced_bytes : l->gathered_bytes;
  char text[32];
  if (!bytes) return;
  const char *kind = sum ? "sum" : "gather";
  fprintf(to, "  %s%zu [shape=ellipse, style=filled, fillcolor=\"%s\", label=\"%s\\n%s%s\"];\n", kind, at, sum ? "#fde0c5" : "#d3e5ff",
          sum ? "gradients summed" : "parameters gathered",
          bytes_text(bytes, text), n > 1 ? " each" : "");
  if (sum) fprintf(to, "  layer%zu -> %s%zu [color=\"#c2571a\"];\n", at, kind, at);
  else fprintf(to, "  %s%zu -> layer%zu [color=\"#2f6fde\"];\n", kind, at, at);
}

static void dot_graph(FILE *to, const PlanView *v) {
  const Recipe *r = &v->graph->recipe;
  char title[512], sent[COUNT_BYTES];
  snprintf(title, sizeof title, "%.300s: %d ranks, stage %d, %s bytes sent a step", r->model ? r->model : "plan", mesh_ranks(&v->graph->mesh), r->zero,
           count_text(v->bytes.sent_bytes, sent));
  fprintf(to, "digraph plan {\n  rankdir=LR;\n  node [shape=box, fontname=\"sans-serif\"];\n  label=");
  quoted(to, title);
  fprintf(to, ";\n");
  size_t before = 0;
  for (size_t i = 1; i < v->layers.n;) {
    size_t n = layers_alike_run(&v->layers, i);
    dot_layer(to, v, i, n);
    dot_collective(to, v, i, n, false);
    dot_collective(to, v, i, n, true);
    if (before) fprintf(to, "  layer%zu -> layer%zu [weight=8];\n", before, i);
    before = i;
    i += n;
  }
  if (v->layers.items[0].sent_bytes) {
    dot_layer(to, v, 0, 1);
    dot_collective(to, v, 0, 1, false);
    dot_collective(to, v, 0, 1, true);
  }
  fprintf(to, "}\n");
}

static Status dot_guarded(FILE *to, const Graph *g, Arena *arena) {
  ARENA_GUARD(arena);
  PlanView v = plan_view(g, arena);
  dot_graph(to, &v);
  ARENA_RETURN(arena, STATUS_OK);
}

Status show_plan_dot(FILE *to, const Graph *g) {
  Arena *arena = arena_create(0);
  Status status = arena ? dot_guarded(to, g, arena) : status_fail(STATUS_RESOURCE, NULL, "out of memory while drawing a plan");
  arena_destroy(arena);
  return status;
}
