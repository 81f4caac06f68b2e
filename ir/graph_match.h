// Which node, value, bucket and buffer of one graph is which of another: by structure, cause and origin; never by number or by a name that the
// compiler or an exporter made up. For `diff`.
//
// Nodes are matched in rounds, each over what the rounds before left: equal structure up to the inputs (with the same origin first, then under any
// name), equal neighbourhood, neighbours of matched nodes, equal origin and operator, equal place among matched ones, equal origin, equal cause.
// So a change far up, a renamed layer and a moved step leave everything else matched. What is matched need not be equal: the caller compares.
// O(n log n); deterministic. Under the caller's ARENA_GUARD; the result lies in `arena`.
#ifndef TESSERA_GRAPH_MATCH_H
#define TESSERA_GRAPH_MATCH_H

#include "graph.h"

enum { GRAPH_MATCH_CONST_BYTES = 16 << 20 };   // larger constants are compared by type and place only

typedef struct GraphMatch {
  const Graph *a, *b;
  int32_t *node_of_a, *node_of_b;        // index in the other graph, or -1: there is none
  int32_t *value_of_a, *value_of_b;
  int32_t *bucket_of_a, *bucket_of_b;
  int32_t *buffer_of_a, *buffer_of_b;
} GraphMatch;

GraphMatch *graph_match(const Graph *a, const Graph *b, Arena *arena);

// Are they matched with each other, or both absent?
bool graph_match_values(const GraphMatch *match, const Value *a, const Value *b);

// Attributes that number things or say where weights lie: no part of what a node does.
bool graph_match_skips(const char *attr);

// Hash of the bytes of a constant; 0: not at hand, or too large.
uint64_t graph_match_contents(const Value *value);

#endif
