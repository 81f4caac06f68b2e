// What an Einsum equation says about its operands: shared by the row and the pass that makes matrix products of it.
#ifndef TESSERA_EINSUM_H
#define TESSERA_EINSUM_H

#include "../ir/op.h"

enum { EINSUM_OPERANDS_MAX = 8, EINSUM_LETTERS = 52, EINSUM_LABELS = EINSUM_LETTERS + RANK_MAX };

// Labels: letters are 0 .. 51; the axes of an ellipsis are EINSUM_LETTERS + distance from its right end.
typedef struct Einsum {
  int n_operands;
  int ranks[EINSUM_OPERANDS_MAX];
  int labels[EINSUM_OPERANDS_MAX][RANK_MAX];      // per axis of each operand
  int out_rank;
  int out[RANK_MAX];
  int64_t dims[EINSUM_LABELS];                    // 0 where a label does not occur and where it is empty: `used` tells
  bool used[EINSUM_LABELS];
} Einsum;

// Reads attribute `equation` against the input types. MALFORMED where they do not agree.
MUST_USE Status einsum_parse(const Node *node, Einsum *out);

#endif
