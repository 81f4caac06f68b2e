// Offsets of a graph's buffers in their arenas, from their lifetimes.
#ifndef TESSERA_MEMORY_OFFSETS_H
#define TESSERA_MEMORY_OFFSETS_H

#include "../ir/plan.h"

// From 0 on, in the order of the list, what lives always; the others above it, packed by their lives (interval_pack.h). With `variants` what is fixed
// (ir/plan.h) has one place in all of them: what crosses from micro to update keeps to the order of the list (it is alive between the phases and could
// not lie over another of its kind anyway), and the program's own constants are packed like the others.
void memory_offsets(Graph *graph, bool variants);

#endif
