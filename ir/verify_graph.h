// Checks the invariants of ir/graph.h. The pass runner calls it after every pass, the readers of text and plan files after reading.
#ifndef TESSERA_VERIFY_GRAPH_H
#define TESSERA_VERIFY_GRAPH_H

#include "graph.h"

// The first defect, naming node or value: dense ids; unique names; topological order; one producer each; arity and attributes as the rows
// say; roles, phases, carries and placements consistent; indices in range; once FACT_TYPED holds, every type known and equal to what the
// rows infer from the inputs (on a copy). Reads `graph` only. Defects of a graph are MALFORMED. Time linear in the graph (names: n log n).
MUST_USE Status verify_graph(const Graph *graph);

#endif
