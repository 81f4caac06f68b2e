// fuse_gather_grad: Add(x, GatherGrad(indices, dy)) becomes GatherGrad(indices, dy, x), which adds the few rows of an embedding's gradient where x
// lies. So a table that is also the head (tied weights) has one dense gradient and not three.
#include "../kernels/ops.h"
#include "pass_list.h"
#include "stand_in.h"

static Status fuse(Graph *graph, const uint32_t *uses, Node **slot) {
  Node *n = *slot;
  if (n->op != &op_Add) return STATUS_OK;
  for (int i = 1; i >= 0; i--) {
    const Node *rows = n->inputs[i]->producer;
    Value *base = n->inputs[1 - i];
    if (!rows || rows->op != &op_GatherGrad || rows->n_inputs > 2 || uses[n->inputs[i]->id] != 1 || !type_equal(&base->type, &n->outputs[0]->type) ||
        !type_equal(&base->type, &rows->outputs[0]->type)) continue;
    Node *fused = graph_make_node(graph, &op_GatherGrad, n->name, 3, (Value *[]){rows->inputs[0], rows->inputs[1], base}, 0, NULL);
    AttrInts dims = attr_ints(rows, "dims");
    attr_set(graph, fused, &(AttrInit)A_INT("axis", attr_int(rows, "axis")));
    attr_set(graph, fused, &(AttrInit)A_INTS("dims", dims.items, dims.n));
    attr_set(graph, fused, &(AttrInit)A_INT("first", attr_int(rows, "first")));
    attr_set(graph, fused, &(AttrInit)A_INT("rows", attr_int(rows, "rows")));
    node_stand_in(fused, n);
    *slot = fused;
    return node_infer(graph, fused);
  }
  return STATUS_OK;
}

Status pass_fuse_gather_grad(Graph *graph, const CompileOptions *options) {
  const uint32_t *uses = graph_count_uses(graph, graph->arena);
  for (size_t i = 0; i < graph->n_nodes; i++) TRY(fuse(graph, uses, &graph->nodes[i]));
  graph_set_nodes(graph, graph->nodes, graph->n_nodes);      // what is not read any more goes with dead_code
  return STATUS_OK;
}
