// First part of insert_collectives: buckets that the model computes with in 16 bits (Bucket.compute). Nothing but Casts reads their parameters; here
// the Casts become the reading of a narrow copy, which the lowering keeps and gathers, and gradients are taken before they are widened. So the
// narrow type travels, and no micro-batch casts what the update has cast.
#include "../kernels/ops.h"
#include "lower.h"

static bool is_narrow(const Graph *g, const Value *param) {
  return param && param->role == ROLE_PARAM && param->bucket >= 0 && g->buckets[param->bucket].compute != g->buckets[param->bucket].dtype;
}

// The gradient is the 16-bit value that was widened, or is rounded to one.
static void narrow_gradient(Emit *e, Value *grad, Dtype compute) {
  Node *n = grad->producer;
  if (n->op == &op_Cast && n->inputs[0]->type.dtype == compute) {
    n->op = &op_Identity;
    n->attrs = NULL;
    grad->type.dtype = compute;
    return;
  }
  e->at = n;
  e->backward = n->backward;
  Value *wide = graph_add_value(e->graph, arena_printf(e->graph->arena, "%s.wide", grad->name));
  wide->type = grad->type;
  wide->producer = n;
  wide->output_index = grad->output_index;
  n->outputs[grad->output_index] = wide;
  Value *narrow = emit(e, &op_Cast, INPUTS(wide), ATTRS(A_INT("to", compute)));
  if (!narrow) return;
  narrow->producer->outputs[0] = grad;
  grad->producer = narrow->producer;
  grad->output_index = 0;
  grad->type.dtype = compute;
}

Status lower_narrow_buckets(Graph *g) {
  Emit e = {.graph = g, .phase = PHASE_MICRO, .cause = {.pass = "insert_collectives"}};
  Value **instead = ARENA_ARRAY(g->arena, Value *, g->n_values);
  Node **old = g->nodes;
  size_t n_old = g->n_nodes, n_values = g->n_values;
  bool any = false;
  for (size_t b = 0; b < g->n_buckets; b++) any |= g->buckets[b].compute != g->buckets[b].dtype;
  if (!any) return STATUS_OK;
  g->nodes = NULL;
  g->n_nodes = g->nodes_capacity = 0;
  for (size_t i = 0; i < n_old; i++) {
    Node *n = old[i];
    for (int k = 0; k < n->n_inputs; k++)
      if (n->inputs[k] && n->inputs[k]->id < n_values && instead[n->inputs[k]->id]) n->inputs[k] = instead[n->inputs[k]->id];
    if (n->op == &op_Cast && n->phase == PHASE_MICRO && is_narrow(g, n->inputs[0])) {
      instead[n->outputs[0]->id] = n->inputs[0];
      n->inputs[0]->type = n->outputs[0]->type;
      continue;
    }
    graph_append(g, n);
    bool leaf = n->phase == PHASE_MICRO && n->op != &op_TreeAccumulate;      // trees are built anew, per bucket
    for (int o = 0; leaf && o < n->n_outputs; o++)
      if (n->outputs[o] && n->outputs[o]->role == ROLE_GRAD && is_narrow(g, n->outputs[o]->of))
        narrow_gradient(&e, n->outputs[o], g->buckets[n->outputs[o]->of->bucket].compute);
  }
  TRY(e.status);
  graph_set_nodes(g, g->nodes, g->n_nodes);
  return STATUS_OK;
}
