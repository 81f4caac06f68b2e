// make_plan: seals a planned graph. From here on it is read-only.
#include "../ir/verify_graph.h"
#include "../kernels/kernel.h"
#include "pass.h"

static Status seal(Graph *graph, Plan *out) {
  ARENA_GUARD(graph->arena);
  const Graph **programs = ARENA_ARRAY(graph->arena, const Graph *, 1);
  programs[0] = graph;
  *out = (Plan){.n_programs = 1, .programs = programs, .n_variants = 1, .variants = programs};
  ARENA_RETURN(graph->arena, STATUS_OK);
}

Status make_plan(Graph *graph, Plan *out) {
  const uint32_t needed = FACT_LOWERED | FACT_SCHEDULED | FACT_PLANNED;
  if ((graph->facts & needed) != needed) FAIL(USAGE, NULL, "the graph is not planned yet: run the whole pipeline before make_plan");
  TRY(verify_graph(graph));
  return seal(graph, out);
}
