// accumulate: gradients and the loss pair are summed over the micro-batches of a rank along the aligned binary tree, or as they come. `micro` is never
// unrolled: the tree is a binary counter, one operator (docs/operators.md, TreeAccumulate). One micro-batch per rank needs nothing.
#include <inttypes.h>

#include "../kernels/ops.h"
#include "accumulate.h"
#include "pass_list.h"

Value *emit_tree(Emit *e, Value *x, int64_t count, const char *name) {
  if (e->status) return NULL;
  Graph *g = e->graph;
  Value *micro = graph_find_value(g, "tessera.micro");
  if (!micro || micro->role != ROLE_CONTROL) {
    micro = graph_add_value(g, "tessera.micro");
    graph_claim_name(g, micro, "tessera.micro");
    micro->role = ROLE_CONTROL;
    micro->type = type_scalar(DTYPE_I64);
  }
  bool running = g->recipe.accumulate == ACCUMULATE_RUNNING;
  int levels = tree_levels(count, running);
  Value *inputs[2 + 64] = {x, micro};
  for (int l = 0; l < levels; l++) {
    Value *p = graph_add_value(g, arena_printf(g->arena, "%s.partial.%d", name, l));
    p->role = ROLE_PARTIAL;
    p->type = x->type;
    p->type.dtype = dtype_of_sums(x->type.dtype);
    p->of = x->of;
    p->bucket = x->bucket;
    inputs[2 + l] = p;
  }
  Node *n = emit_node(e, &op_TreeAccumulate, inputs, 2 + levels, 1 + levels, NULL, ATTRS(A_INT("count", count), A_INT("running", running)));
  if (!n) return NULL;
  n->outputs[0]->role = x->role;
  n->outputs[0]->of = x->of;
  n->outputs[0]->bucket = x->bucket;
  for (int l = 0; l < levels; l++) {
    n->outputs[1 + l]->role = ROLE_PARTIAL;
    n->outputs[1 + l]->bucket = x->bucket;
    n->outputs[1 + l]->carry = inputs[2 + l];
  }
  return n->outputs[0];
}

Status micro_per_rank(const CompileOptions *options, int64_t *out) {
  int64_t micro_batches = options->micro_batches ? options->micro_batches : options->ranks;
  if (options->ranks < 1) FAIL(USAGE, NULL, "--ranks %d: there is at least one rank", options->ranks);
  int64_t above = (micro_batches / options->ranks + 1) * options->ranks, below = above - options->ranks;
  if (micro_batches < options->ranks)
    FAIL(USAGE, NULL, "--micro-batches %" PRId64 " cannot be shared equally by %d ranks; %" PRId64 " can", micro_batches, options->ranks, above);
  if (micro_batches % options->ranks)
    FAIL(USAGE, NULL, "--micro-batches %" PRId64 " cannot be shared equally by %d ranks; %" PRId64 " or %" PRId64 " can", micro_batches, options->ranks, below, above);
  *out = micro_batches / options->ranks;
  return STATUS_OK;
}

Status pass_accumulate(Graph *graph, const CompileOptions *options) {
  int64_t k;
  TRY(micro_per_rank(options, &k));
  graph->recipe.micro_per_rank = k;
  graph->recipe.accumulate = options->accumulate;
  if (k == 1) return STATUS_OK;
  Node **old = graph->nodes;
  size_t n_old = graph->n_nodes;
  graph->nodes = NULL;
  graph->n_nodes = graph->nodes_capacity = 0;
  size_t first_update = 0;
  while (first_update < n_old && old[first_update]->phase != PHASE_UPDATE) graph_append(graph, old[first_update++]);
  Emit e = {.graph = graph, .phase = PHASE_MICRO, .cause = {.pass = "accumulate"}};
  size_t n_values = graph->n_values;
  Value **sums = ARENA_ARRAY(graph->arena, Value *, n_values);
  for (size_t i = first_update; i < n_old; i++)
    for (int j = 0; j < old[i]->n_inputs; j++) {
      Value *v = old[i]->inputs[j];
      if (!v || !v->producer || v->producer->phase != PHASE_MICRO) continue;
      if (!sums[v->id]) sums[v->id] = emit_tree(&e, v, k, v->name);
      TRY(e.status);
      old[i]->inputs[j] = sums[v->id];
    }
  for (size_t i = first_update; i < n_old; i++) graph_append(graph, old[i]);
  graph_set_nodes(graph, graph->nodes, graph->n_nodes);
  return STATUS_OK;
}
