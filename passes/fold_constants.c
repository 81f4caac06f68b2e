// fold_constants: computes nodes whose inputs are all constants, with the kernels that would run them. Results keep their names. Parameters are
// no constants: they change. Large results stay computed (a mask of T x T is cheaper to make than to keep in a plan).
#include "../kernels/fold.h"
#include "pass_list.h"

static const int64_t RESULT_BYTES_MAX = INT64_C(1) << 20;

Status pass_fold_constants(Graph *graph, const CompileOptions *options) {
  Node **kept = ARENA_ARRAY(graph->arena, Node *, graph->n_nodes);
  size_t n_kept = 0;
  for (size_t i = 0; i < graph->n_nodes; i++) {
    bool folded;
    TRY(fold_node(graph, graph->nodes[i], options->isa, RESULT_BYTES_MAX, &folded));
    if (!folded) kept[n_kept++] = graph->nodes[i];
  }
  graph_set_nodes(graph, kept, n_kept);
  return STATUS_OK;
}
