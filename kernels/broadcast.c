#include "broadcast.h"

#include <assert.h>
#include <string.h>

bool broadcast_begin(Broadcast *b, const Type *out, int n, const Tensor *in) {
  assert(n <= BROADCAST_OPERANDS);
  memset(b, 0, sizeof *b);
  b->n = n;
  b->run = 1;
  int64_t strides[BROADCAST_OPERANDS][RANK_MAX];
  for (int k = 0; k < n; k++) type_strides(in[k].type, out, strides[k]);
  int rank = 0;   // merged axes, outermost first
  for (int i = 0; i < out->rank; i++) {
    if (out->dims[i] == 0) return false;
    if (out->dims[i] == 1) continue;
    bool merges = rank > 0;
    for (int k = 0; k < n && merges; k++) merges = b->strides[k][rank - 1] == strides[k][i] * out->dims[i];
    if (!merges) {
      rank++;
      b->dims[rank - 1] = 1;
    }
    b->dims[rank - 1] *= out->dims[i];
    for (int k = 0; k < n; k++) b->strides[k][rank - 1] = strides[k][i];
  }
  if (rank > 0) {   // the innermost merged axis is the run
    rank--;
    b->run = b->dims[rank];
    for (int k = 0; k < n; k++) b->step[k] = b->strides[k][rank];
  }
  b->rank = rank;
  return true;
}

bool broadcast_next(Broadcast *b) {
  b->at_out += b->run;
  for (int i = b->rank - 1; i >= 0; i--) {
    for (int k = 0; k < b->n; k++) b->at[k] += b->strides[k][i];
    if (++b->index[i] < b->dims[i]) return true;
    for (int k = 0; k < b->n; k++) b->at[k] -= b->strides[k][i] * b->dims[i];
    b->index[i] = 0;
  }
  return false;
}

Status broadcast_infer(const Node *node, int first, Type *out) {
  Type shape = node->inputs[first]->type;
  for (int i = first + 1; i < node->n_inputs; i++) TRY(type_broadcast(&shape, &node->inputs[i]->type, node->name, &shape));
  out->rank = shape.rank;
  memcpy(out->dims, shape.dims, sizeof out->dims);
  return STATUS_OK;
}
