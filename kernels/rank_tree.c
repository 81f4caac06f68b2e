#include "rank_tree.h"

static int find_pieces(int lo, int size, int first, int n, RankPiece *out, int used) {
  if (lo >= first + n || lo + size <= first) return used;
  if (lo >= first && lo + size <= first + n) {
    out[used] = (RankPiece){lo, size};
    return used + 1;
  }
  int low = rank_tree_low(size);
  used = find_pieces(lo, low, first, n, out, used);
  return find_pieces(lo + low, size - low, first, n, out, used);
}

int rank_tree_pieces(int ranks, int first, int n, RankPiece out[RANK_PIECES_MAX]) { return find_pieces(0, ranks, first, n, out, 0); }

// ---- Sums ---------------------------------------------------------------------------------------------------------------------

#define ADD_BLOCK(name, T)                                                 \
  static void name(void *out, const void *a, const void *b, int64_t n) {   \
    T *o = out;                                                            \
    const T *x = a, *y = b;                                                \
    for (int64_t i = 0; i < n; i++) o[i] = (T)(x[i] + y[i]);               \
  }
ADD_BLOCK(add_f32, float)
ADD_BLOCK(add_f64, double)
ADD_BLOCK(add_u64, uint64_t)   // integer sums wrap: the same bits signed and unsigned
ADD_BLOCK(add_u32, uint32_t)

RankTreeAdd rank_tree_add(Dtype sums) {
  switch (sums) {
    case DTYPE_F32: return add_f32;
    case DTYPE_F64: return add_f64;
    case DTYPE_I64:
    case DTYPE_U64: return add_u64;
    case DTYPE_I32:
    case DTYPE_U32: return add_u32;
    default: return NULL;
  }
}

int64_t rank_cut_start(int64_t elems, Dtype dtype, int size, int r) {
  int64_t line = 64 / dtype_bytes(dtype), lines = (elems + line - 1) / line;
  int64_t start = (lines * r / size) * line;
  return start < elems ? start : elems;
}

// ---- Bytes between processes --------------------------------------------------------------------------------------------------

int rank_tree_piece_width(int ranks, int first, int n, Dtype dtype) {
  RankPiece pieces[RANK_PIECES_MAX];
  int width = 0, count = rank_tree_pieces(ranks, first, n, pieces);
  for (int i = 0; i < count; i++) width += (int)dtype_bytes(pieces[i].n == 1 ? dtype : dtype_of_sums(dtype));
  return width;
}

static int width_of_process(int processes, int ranks_per_process, int process, Dtype dtype) {
  return rank_tree_piece_width(processes * ranks_per_process, process * ranks_per_process, ranks_per_process, dtype);
}

static int widest(int processes, int ranks_per_process, Dtype dtype) {
  int most = 0;
  for (int p = 0; p < processes; p++) {
    int width = width_of_process(processes, ranks_per_process, p, dtype);
    if (width > most) most = width;
  }
  return most;
}

bool rank_tree_reduces_whole(int processes, int ranks_per_process, int64_t elems, Dtype dtype) {
  return elems * widest(processes, ranks_per_process, dtype) <= RANK_WHOLE_BYTES;
}

int64_t comm_gather_wire_bytes(int processes, int ranks_per_process, int64_t shard_bytes) { return (processes - 1) * ranks_per_process * shard_bytes; }

int64_t comm_scatter_wire_bytes(int processes, int ranks_per_process, int64_t shard_elems, Dtype dtype) {
  return (processes - 1) * ranks_per_process * shard_elems * widest(processes, ranks_per_process, dtype);
}

int64_t comm_all_reduce_wire_bytes(int processes, int ranks_per_process, int64_t elems, Dtype dtype) {
  if (rank_tree_reduces_whole(processes, ranks_per_process, elems, dtype)) return (processes - 1) * elems * widest(processes, ranks_per_process, dtype);
  int64_t most = 0;
  int ranks = processes * ranks_per_process;
  for (int p = 0; p < processes; p++) {
    int first = p * ranks_per_process;
    int64_t own = rank_cut_start(elems, dtype, ranks, first + ranks_per_process) - rank_cut_start(elems, dtype, ranks, first);
    int64_t bytes = (elems - own) * width_of_process(processes, ranks_per_process, p, dtype) + (processes - 1) * own * dtype_bytes(dtype);
    if (bytes > most) most = bytes;
  }
  return most;
}
