// The aligned binary tree over rank numbers, along which every backend sums (docs/design.md, contract 1), and what its sums make processes send.
//
// Ranks [lo, lo + n) split at the largest power of two below n: for a power of two the aligned tree, otherwise what a binary counter gives
// (docs/operators.md, TreeAccumulate). All functions are pure; any thread.
#ifndef TESSERA_RANK_TREE_H
#define TESSERA_RANK_TREE_H

#include "../ir/type.h"

static inline int rank_tree_low(int n) {        // ranks of the low half of a node of n >= 2 ranks
  int low = 1;
  while (low * 2 < n) low *= 2;
  return low;
}

// A subtree whose ranks lie in one process: what a process adds up by itself.
typedef struct RankPiece { int first, n; } RankPiece;
enum { RANK_PIECES_MAX = 26 };                  // 4,096 ranks per process

// The fewest nodes of the tree over `ranks` that make up ranks [first, first + n), n <= 4,096, in order. Returns how many.
int rank_tree_pieces(int ranks, int first, int n, RankPiece out[RANK_PIECES_MAX]);

// out = a + b, element by element, in the type that sums have (dtype_of_sums). NULL: there is no sum of that type.
typedef void (*RankTreeAdd)(void *out, const void *a, const void *b, int64_t n);
RankTreeAdd rank_tree_add(Dtype sums);

// Part r of `size` of an uneven cut of `elems` elements in whole cache lines, so that no two ranks write one line; r = size: the end.
int64_t rank_cut_start(int64_t elems, Dtype dtype, int size, int r);

// All-reduces of so few elements are exchanged whole, in one message each way.
enum { RANK_WHOLE_BYTES = 4032 };
bool rank_tree_reduces_whole(int processes, int ranks_per_process, int64_t elems, Dtype dtype);

// Bytes that leave one process, of whichever sends most: shards go out once per process; partial sums in the accumulator's type, single ranks' summands as
// they are. Headers are not counted.
int64_t comm_gather_wire_bytes(int processes, int ranks_per_process, int64_t shard_bytes);
int64_t comm_scatter_wire_bytes(int processes, int ranks_per_process, int64_t shard_elems, Dtype dtype);
int64_t comm_all_reduce_wire_bytes(int processes, int ranks_per_process, int64_t elems, Dtype dtype);
int rank_tree_piece_width(int ranks, int first, int n, Dtype dtype);   // bytes per element of the pieces of [first, first + n), together

#endif
