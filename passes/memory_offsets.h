// Offsets of a graph's buffers in their arenas, from their lifetimes.
#ifndef TESSERA_MEMORY_OFFSETS_H
#define TESSERA_MEMORY_OFFSETS_H

#include "../ir/plan.h"

// From 0 on, in the order of the list: what is fixed and persistent; for `variants`, what is fixed and crosses from micro to update (ir/plan.h:
// the same places in every variant; all of it is alive between the phases, so none could lie over another anyway); the program's own constants.
// Then the others, largest first, each at the lowest offset above the first group where no buffer with an overlapping lifetime lies (greedy by
// size: Pisarchyk and Lee, 2020, "Efficient memory management for deep neural net inference"). Graphs of more than 4,096 such buffers: in order of
// time, each in the smallest free hole, so that planning stays linear.
MUST_USE Status memory_offsets(Graph *graph, bool variants);

#endif
