// Runs a graph as it stands on inputs that are drawn at random, operator by operator with the kernels, outside any plan: what `tessera opt --equivalent`
// compares. Not for graphs whose collectives are inserted already.
//
// Ownership: all of it lies in the arena given. Threads: one.
#ifndef TESSERA_GRAPH_EVAL_H
#define TESSERA_GRAPH_EVAL_H

#include "../ir/graph.h"
#include "../kernels/loops.h"

// How inputs, and parameters without bytes, are drawn: a function of seed, number and the value's name, so that two graphs get the same.
typedef struct EvalCase {
  uint64_t seed;
  int64_t number;              // 0: parameters have the model's own values; kinds of distributions alternate
  const Graph *users[2];       // integer inputs stay within what their use in these graphs allows
  int64_t index_limit;         // not 0: they are below that in any case
} EvalCase;

typedef struct GraphEval {
  const Graph *graph;
  void **data;                 // by value id, aligned to 64; NULL: not computed
} GraphEval;

// Runs init, each micro-batch of the recipe, update. CHECK or MALFORMED of a kernel names its node (an index out of range); UNSUPPORTED for
// collectives; RESOURCE when `arena` is full. `isa`: kernels as the executor chooses them; those of f64 are the reference ones.
MUST_USE Status graph_eval(const Graph *graph, const EvalCase *test, double lr, Isa isa, Arena *arena, GraphEval *out);

#endif
