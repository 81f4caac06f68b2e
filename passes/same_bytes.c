#include "same_bytes.h"

#include "../kernels/ops.h"

bool node_is_gather(const Node *node) { return node->op == &op_AllGather && node->phase == PHASE_MICRO; }
static bool is_fetched(const Value *v) { return v && v->producer && v->producer->op == &op_Fetch; }

bool node_is_gather_copy(const Graph *graph, const Node *node) {
  return node_is_gather(node) && (graph->recipe.processes > 1 || (node->n_inputs && is_fetched(node->inputs[0])));
}

bool node_is_gather_view(const Graph *graph, const Node *node) { return node_is_gather(node) && !node_is_gather_copy(graph, node); }

bool output_is_view(const Graph *graph, const Node *node, int output) {
  Alias a;
  return node_is_gather_view(graph, node) || node_alias(node, output, ALIAS_VIEW, &a);
}

static Value *root(Value **roots, Value *v) {
  while (roots[v->id] != v) v = roots[v->id];
  return v;
}

static void join(Value **roots, Value *from, Value *to) {
  Value *a = root(roots, from), *b = root(roots, to);
  if (a != b) roots[a->id] = b;
}

Value **same_bytes(const Graph *g, Arena *arena) {
  Value **roots = ARENA_ARRAY(arena, Value *, g->n_values);
  for (size_t i = 0; i < g->n_values; i++) roots[i] = g->values[i];
  for (size_t i = 0; i < g->n_nodes; i++) {
    Node *n = g->nodes[i];
    for (int o = 0; o < n->n_outputs; o++) {
      Alias a;
      Value *v = n->outputs[o];
      if (!v) continue;
      if (v->carry) join(roots, v, v->carry);
      else if (node_alias(n, o, ALIAS_VIEW, &a) || node_alias(n, o, ALIAS_UPDATE, &a)) join(roots, v, n->inputs[a.input]);
      else if (node_is_gather_view(g, n)) join(roots, v, n->inputs[0]);
      for (int k = 0; n->op == &op_Join && k < n->n_inputs; k++) join(roots, n->inputs[k], v);
    }
  }
  for (size_t i = 0; i < g->n_values; i++) roots[i] = root(roots, g->values[i]);
  return roots;
}
