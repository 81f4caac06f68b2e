// Which values are the same bytes by structure, whatever place they will get.
#ifndef TESSERA_SAME_BYTES_H
#define TESSERA_SAME_BYTES_H

#include "../ir/graph.h"

// Per value: the one whose bytes it is: through views, in-place updates, carried values and gathers by view; itself when none. In `arena`.
Value **same_bytes(const Graph *graph, Arena *arena);

// Gathers of phase micro are views: the shards of all ranks lie side by side in one buffer of their process.
bool node_is_gather_view(const Node *node);

// Is output `output` of the node nothing but bytes of an input? Then the step writes nothing there.
bool output_is_view(const Node *node, int output);

#endif
