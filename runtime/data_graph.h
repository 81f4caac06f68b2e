// What the use of an integer input in the graph tells: for sources of data, and for whoever draws inputs at random. Any thread.
#ifndef TESSERA_DATA_GRAPH_H
#define TESSERA_DATA_GRAPH_H

#include "../ir/graph.h"

bool graph_shifts_labels(const Graph *graph, const Value *labels);            // are labels cut or padded on their way to the loss?

// The first loss that takes `labels` and does not ignore this label; NULL: there is none.
const Node *graph_loss_without(const Graph *graph, const Value *labels, int64_t label);

// Integers from 0 on below it are fine for every node that takes `input` as indices, classes or lengths (also behind operators that only move
// elements); 0 when nothing limits it. The graph must be typed.
int64_t graph_index_limit(const Graph *graph, const Value *input);

#endif
