// schedule: the order in which steps are executed. Nodes stand in topological order already; this pass makes the phases contiguous (init, micro,
// update) and names the queue of every step. Gathers stand right before the first node that needs them, and reductions right after the last
// gradient of their bucket, because insert_collectives put them there. All steps run on the compute queue: local collectives are loads and stores
// of the rank's own thread, so there is nothing to wait for.
#include "../kernels/ops.h"
#include "pass_list.h"

Status pass_schedule(Graph *graph, const CompileOptions *options) {
  Node **nodes = ARENA_ARRAY(graph->arena, Node *, graph->n_nodes);
  size_t n = 0;
  for (int phase = 0; phase < PHASE_COUNT; phase++)
    for (size_t i = 0; i < graph->n_nodes; i++)
      if ((int)graph->nodes[i]->phase == phase) nodes[n++] = graph->nodes[i];
  for (size_t i = 0; i < n; i++) nodes[i]->queue = QUEUE_COMPUTE;
  graph_set_nodes(graph, nodes, n);
  return STATUS_OK;
}
