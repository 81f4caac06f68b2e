// f16 and bf16 operands for rows whose fast kernel computes in f32: the operands are widened into the workspace, the row's own kernel runs on
// them, and each result is rounded once. The row sees a node of the same attributes whose 16-bit floats are f32.
//
// Threads: as kernels. The prepared state holds addresses of the run under way: one per rank, as all prepared states.
#ifndef TESSERA_WIDENED_H
#define TESSERA_WIDENED_H

#include "kernel.h"

// Can the node run so: a fast kernel, at least one 16-bit float, all other floats f32 (or f64 control scalars), no 16-bit float updated where it lies?
bool widened_applies(const Node *node);

MUST_USE Status widened_workspace(KernelPrepare *prepare);   // copies, then the row's own workspace
MUST_USE Status widened_prepare(KernelPrepare *prepare);     // heap; ended by prepare->destroy
MUST_USE Status widened_run(const KernelContext *context);

#endif
