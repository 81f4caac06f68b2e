// infer_types: types of all values from the inputs, by the rows of the operators. Shapes may depend on small constants that nodes compute
// (Shape, Gather, Concat, then Reshape); those are computed on the way and replaced by constants.
#include "../kernels/fold.h"
#include "pass_list.h"

static const int64_t SHAPE_BYTES_MAX = 4096;

Status pass_infer_types(Graph *graph, const CompileOptions *options) {
  for (size_t i = 0; i < graph->n_values; i++) {
    const Value *v = graph->values[i];
    if (!v->producer && v->type.dtype == DTYPE_NONE)
      FAIL(MALFORMED, NULL, "value '%s' has no type, and nothing computes it; inputs, parameters and constants need one", v->name);
  }
  Node **kept = ARENA_ARRAY(graph->arena, Node *, graph->n_nodes);
  size_t n_kept = 0;
  for (size_t i = 0; i < graph->n_nodes; i++) {
    bool folded;
    TRY(node_infer(graph, graph->nodes[i]));
    TRY(fold_node(graph, graph->nodes[i], options->isa, SHAPE_BYTES_MAX, &folded));
    if (!folded) kept[n_kept++] = graph->nodes[i];
  }
  graph_set_nodes(graph, kept, n_kept);
  return STATUS_OK;
}
