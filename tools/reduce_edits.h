// What `tessera reduce` tries on a graph: each edit makes it smaller or plainer, and leaves a graph that verifies and types.
//
// An edit changes the graph that it is given, a copy of its own (graph_clone), and says whether it changed anything: false, or an error, means that the copy
// is to be thrown away. All memory is the copy's arena, which must have a guard. Threads: one.
#ifndef TESSERA_REDUCE_EDITS_H
#define TESSERA_REDUCE_EDITS_H

#include "../ir/graph.h"

// What stands for values whose producers go: an input of the producer that has the same type; else a constant, or a new input of the graph.
typedef enum Stand { STAND_CONSTANT, STAND_INPUT, STAND_COUNT } Stand;

// Types as far as they can be inferred (a graph may be here because its types cannot), then verify_graph. Of a graph that was typed whole all must be.
MUST_USE Status reduce_settle(Graph *graph, bool whole);

// Removes nodes [first, first + count); what they gave comes from elsewhere. `sweep`: also what then serves no output.
bool reduce_drop_nodes(Graph *graph, size_t first, size_t count, Stand stand, bool sweep);

// Removes outputs [first, first + count) of the graph; one stays.
bool reduce_drop_outputs(Graph *graph, size_t first, size_t count);

// Inputs that nobody reads.
bool reduce_drop_inputs(Graph *graph);

// Small steps, by number: optional and variadic inputs of nodes, attributes that are not at their default, inputs that become constants. 0 .. count - 1.
size_t reduce_count_details(const Graph *graph);
bool reduce_detail(Graph *graph, size_t number);

// Every dimension of inputs, weights and shape constants that is `from` becomes `to` < from.
bool reduce_shrink(Graph *graph, int64_t from, int64_t to);

// The distinct sizes above 1 of inputs and weights, largest first, in graph->arena.
size_t reduce_list_sizes(const Graph *graph, int64_t **out);

#endif
