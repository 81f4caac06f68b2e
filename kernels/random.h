// The key of a node's random numbers: Loops.random(key, random_when(clock), block) gives its words. An element's number depends on the run's
// seed, the step, the global micro-batch, the source ONNX node and the element, and on nothing else: not on ranks, nor where the node runs.
#ifndef TESSERA_RANDOM_H
#define TESSERA_RANDOM_H

#include "kernel.h"

// `own` tells apart numbers that one source node draws; from its attribute `seed`.
uint64_t random_key(const KernelContext *context, uint64_t own);
uint64_t random_when(const KernelContext *context);

#endif
