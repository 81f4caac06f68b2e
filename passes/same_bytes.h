// Which values are the same bytes by structure, whatever place they will get.
#ifndef TESSERA_SAME_BYTES_H
#define TESSERA_SAME_BYTES_H

#include "../ir/graph.h"

// Per value: the one whose bytes it is: through views, windows and what is joined of them, in-place updates, carried values and gathers by view; itself when
// none. In `arena`.
Value **same_bytes(const Graph *graph, Arena *arena);

// A gather of phase micro: of parameters, for as long as they are used.
bool node_is_gather(const Node *node);

// Where all ranks are in one process such gathers are views: the shards of all ranks lie side by side in one buffer. Else they copy; and so do those of
// shards that are fetched from another tier for them.
bool node_is_gather_view(const Graph *graph, const Node *node);
bool node_is_gather_copy(const Graph *graph, const Node *node);

// Is output `output` of the node nothing but bytes of an input? Then the step writes nothing there.
bool output_is_view(const Graph *graph, const Node *node, int output);

#endif
