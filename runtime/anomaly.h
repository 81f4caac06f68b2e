// Where a value that is not finite comes from: of every operator with --detect-anomaly; of gradients where the loss is scaled.
#ifndef TESSERA_ANOMALY_H
#define TESSERA_ANOMALY_H

#include "../kernels/kernel.h"

// Are all elements of the floats among `tensors` finite? Absent ones are.
bool tensors_are_finite(const Loops *loops, const Tensor *tensors, int n);

// The first gradient of one micro-batch that is not finite, of those that a rank has made in a step.
typedef struct BadGradient {
  int32_t bucket;              // -1: none; whose parameter `slot` it is of
  int slot;
  int64_t micro;               // global index of the micro-batch
  uint32_t made_by;            // id of the step that made it
} BadGradient;

// Looks at what a Pack in phase micro lays side by side: gradients of this rank's micro-batch alone, before anything is summed up.
void bad_gradient_look(const KernelContext *pack, BadGradient *first);

// After a step whose operands were all finite: CHECK that names the first value it made that is not, its parameter where it is of a bucket, the element,
// rank and micro-batch; NULL: there is none.
MUST_USE Status anomaly_check(const KernelContext *context, const Graph *graph, Phase phase, int rank);

// The same for the data of a micro-batch.
MUST_USE Status anomaly_check_inputs(const Loops *loops, const Graph *graph, const Tensor *inputs, size_t n, int64_t batch);

#endif
