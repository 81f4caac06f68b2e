// Where the states of optimizers lie: each parameter of a bucket has its piece in the bucket's flat state.
#ifndef TESSERA_STATE_H
#define TESSERA_STATE_H

#include "graph.h"

enum { STATE_BLOCK_ELEMS = 256 };                 // CHUNK_ELEMS is a multiple, so that no block straddles a shard
_Static_assert(CHUNK_ELEMS % STATE_BLOCK_ELEMS == 0, "blocks lie within chunks");

// Type of the piece of a parameter of type `param`. Rows and columns are of parameters with at least two axes.
Type state_piece_type(StateShape shape, Dtype dtype, const Type *param);

// Element at which the piece of parameter `slot` starts in the whole flat state; slot = n_params: its number of elements, with padding.
int64_t state_start(StateShape shape, const Bucket *bucket, int slot);

// Is the state cut where the bucket is? The others are small and equal on all ranks.
static inline bool state_is_cut(StateShape shape) { return shape == STATE_ELEMENTS || shape == STATE_BLOCKS; }

#endif
