// dead_code: removes nodes that no output, report, gradient, carried value or side effect needs, and optional outputs that nobody reads.
#include <string.h>

#include "../kernels/fused.h"
#include "../kernels/ops.h"
#include "pass_list.h"

typedef struct Marks {
  Graph *graph;
  bool *used;            // per value id: somebody needs it
} Marks;

static void mark(Marks *m, const Value *v) {
  if (v) m->used[v->id] = true;
}

// Gradients are wanted for themselves until an optimizer uses them; a carried value is wanted by the next step.
static bool is_root(const Value *v) { return v->carry || (v->role == ROLE_GRAD && v->of); }

static bool is_live(const Marks *m, const Node *n) {
  if (n->op->flags & (OP_SIDE_EFFECT | OP_COLLECTIVE)) return true;
  for (int i = 0; i < n->n_outputs; i++)
    if (n->outputs[i] && (m->used[n->outputs[i]->id] || is_root(n->outputs[i]))) return true;
  return false;
}

static void drop_fused_results(const Marks *m, Node *n) {
  bool keep[FUSED_MEMBERS_MAX], any = false;
  for (int i = 0; i < n->n_outputs; i++) any |= keep[i] = m->used[n->outputs[i]->id] || is_root(n->outputs[i]);
  if (any) fused_keep_results(m->graph, n, keep);
}

static void drop_optional_outputs(const Marks *m, Node *n) {
  if (n->op->max_outputs == VARIADIC) return;   // there the number of outputs has a meaning
  if (n->op == &op_FusedElementwise) {
    if (m->graph->facts & FACT_TYPED) drop_fused_results(m, n);   // its results have been checked
    return;
  }
  for (int i = n->op->min_outputs; i < n->n_outputs; i++) {
    Value *v = n->outputs[i];
    if (v && !m->used[v->id] && !is_root(v)) n->outputs[i] = NULL;
  }
  while (n->n_outputs > n->op->min_outputs && !n->outputs[n->n_outputs - 1]) n->n_outputs--;
}

Status pass_dead_code(Graph *graph, const CompileOptions *options) {
  Marks m = {graph, ARENA_ARRAY(graph->arena, bool, graph->n_values)};
  for (size_t i = 0; i < graph->n_outputs; i++) mark(&m, graph->outputs[i]);
  mark(&m, graph->loss);
  mark(&m, graph->loss_count);
  mark(&m, graph->loss_report);
  mark(&m, graph->norm_report);
  mark(&m, graph->inverse_count);
  Node **kept = ARENA_ARRAY(graph->arena, Node *, graph->n_nodes);
  size_t at = graph->n_nodes;
  for (size_t i = graph->n_nodes; i-- > 0;) {   // users come before producers this way
    Node *n = graph->nodes[i];
    if (!is_live(&m, n)) continue;
    for (int k = 0; k < n->n_inputs; k++) mark(&m, n->inputs[k]);
    drop_optional_outputs(&m, n);
    kept[--at] = n;
  }
  graph_set_nodes(graph, kept + at, graph->n_nodes - at);
  return STATUS_OK;
}
