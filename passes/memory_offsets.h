// Offsets of a graph's buffers in their arenas, from their lifetimes.
#ifndef TESSERA_MEMORY_OFFSETS_H
#define TESSERA_MEMORY_OFFSETS_H

#include "../ir/graph.h"

// Persistent buffers lie side by side from 0; the others above them, largest first, each at the lowest offset where no buffer with an
// overlapping lifetime lies (greedy by size: Pisarchyk and Lee, 2020, "Efficient memory management for deep neural net inference").
MUST_USE Status memory_offsets(Graph *graph);

#endif
