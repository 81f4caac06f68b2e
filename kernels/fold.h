// Evaluation of nodes whose inputs are constants, at compile time. Used by infer_types (shapes depend on small constants) and fold_constants.
#ifndef TESSERA_FOLD_H
#define TESSERA_FOLD_H

#include "../ir/op.h"
#include "loops.h"

// Computes a typed node when all its inputs are constants with known bytes, nothing forbids it (random, collective, side effect, phase) and
// its results have at most `bytes_max` bytes together or fewer than its inputs. The outputs become constants and lose their producer: the
// caller leaves the node out of the list (*folded). Bytes lie in graph->arena. Errors: those of the kernel.
MUST_USE Status fold_node(Graph *graph, Node *node, Isa isa, int64_t bytes_max, bool *folded);

#endif
