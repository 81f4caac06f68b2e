// --detect-anomaly: where a value that is not finite comes from.
#ifndef TESSERA_ANOMALY_H
#define TESSERA_ANOMALY_H

#include "../kernels/kernel.h"

// Are all elements of the floats among `tensors` finite? Absent ones are.
bool tensors_are_finite(const Tensor *tensors, int n);

// After a step whose operands were all finite: CHECK that names the first value it made that is not, its parameter where it is of a bucket, the element,
// rank and micro-batch; NULL: there is none.
MUST_USE Status anomaly_check(const KernelContext *context, const Graph *graph, Phase phase, int rank);

// The same for the data of a micro-batch.
MUST_USE Status anomaly_check_inputs(const Graph *graph, const Tensor *inputs, size_t n, int64_t batch);

#endif
