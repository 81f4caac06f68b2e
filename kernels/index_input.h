// Index inputs: small integer tensors that decide a type (axes, shapes, starts, pads, split sizes). infer reads them from the constant,
// kernels from the tensor, both through the same checks: a plan run with other constants than it was compiled with fails, it does not crash.
#ifndef TESSERA_INDEX_INPUT_H
#define TESSERA_INDEX_INPUT_H

#include "kernel.h"

static inline bool node_has_input(const Node *node, int i) { return i < node->n_inputs && node->inputs[i]; }
static inline bool node_has_output(const Node *node, int i) { return i < node->n_outputs && node->outputs[i]; }
static inline const Type *input_type(const Node *node, int i) { return &node->inputs[i]->type; }

// The constant behind input `i`: integers of rank 0 or 1, at most `capacity` of them. UNSUPPORTED by name when it is computed at run time.
MUST_USE Status index_constant(const Node *node, int i, int64_t *out, int capacity, int *n);

// The same from the tensor of a running kernel.
MUST_USE Status index_tensor(const KernelContext *context, int i, int64_t *out, int capacity, int *n);

// Axes in [-rank, rank-1] to a bit mask; an axis given twice is MALFORMED.
MUST_USE Status index_axes(const int64_t *axes, int n, int rank, const char *node, uint32_t *mask);

// For rows whose output o is the gradient of input o: its type, for every output that is wanted. MALFORMED where the input is absent.
MUST_USE Status infer_input_gradients(Node *node);

#endif
