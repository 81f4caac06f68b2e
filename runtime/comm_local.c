// The local backend: collectives between rank threads are loads and stores between two barriers.
#include <string.h>

#include "../kernels/loops.h"
#include "../kernels/rank_tree.h"
#include "team.h"

enum { BLOCK_BYTES = 4096, TREE_DEPTH_MAX = 14 };   // 4,096 ranks: 12 levels below two halves

// ---- Sums along the tree over ranks (kernels/rank_tree.h). Blocks keep the partial sums in the first-level cache. ----

typedef struct Tree {
  const Team *team;
  int rank;
  int64_t first, elems;                        // of the block in every rank's `in`
  Dtype dtype;                                 // of `in`; sums of 16-bit floats are f32
  const Loops *loops;
  RankTreeAdd add;
  _Alignas(64) char temporary[TREE_DEPTH_MAX][BLOCK_BYTES];
} Tree;

// What a rank adds, as the type that sums have: where it lies, or widened into `room`.
static const void *leaf(const Tree *tree, int rank, void *room) {
  const void *in = team_slot(tree->team, tree->rank, rank)->in;
  if (dtype_of_sums(tree->dtype) == tree->dtype) return (const char *)in + tree->first * dtype_bytes(tree->dtype);
  return loops_wide(tree->loops, in, tree->dtype, tree->first, tree->elems, room);
}

static const void *tree_sum(Tree *tree, int lo, int n, void *out, int level) {
  if (n == 1) return leaf(tree, lo, out);
  int half = rank_tree_low(n);
  const void *low = tree_sum(tree, lo, half, out, level);
  const void *high = tree_sum(tree, lo + half, n - half, tree->temporary[level], level + 1);
  tree->add(out, low, high, tree->elems);
  return out;
}

// out = sum over ranks of their in[first, first + elems), as `to`: dtype itself, or what its sums are. `out` may be this rank's own in + first: the
// root is added last, element by element.
static void sum_over_ranks(Team *team, int rank, int64_t first, int64_t elems, Dtype dtype, Dtype to, void *out) {
  Dtype sums = dtype_of_sums(dtype);
  Tree tree = {.team = team, .rank = rank, .dtype = dtype, .loops = loops_for(isa_best()), .add = rank_tree_add(sums)};
  int64_t width = dtype_bytes(to), block = BLOCK_BYTES / dtype_bytes(sums);
  int half = rank_tree_low(team->ranks);
  for (int64_t e = 0; e < elems; e += block) {
    tree.first = first + e;
    tree.elems = elems - e < block ? elems - e : block;
    const void *low = tree_sum(&tree, 0, half, tree.temporary[0], 2);
    const void *high = tree_sum(&tree, half, team->ranks - half, tree.temporary[1], 2);
    char *at = (char *)out + e * width;
    tree.add(to == sums ? at : tree.temporary[0], low, high, tree.elems);
    if (to != sums) (to == DTYPE_BF16 ? tree.loops->narrow_bf16 : tree.loops->narrow_f16)((uint16_t *)at, (const float *)tree.temporary[0], tree.elems);
  }
}

// ---- Collectives ----

// Checks what this rank alone can see, enters, and runs. After an error only errors follow: the ranks are no longer in step.
static Status enter(LocalComm *comm, const Slot *slot, bool sums) {
  if (comm->failed) FAIL(RANK, NULL, "rank %d has failed before", comm->base.rank);
  comm->failed = true;
  if (slot->axis != 0) FAIL(UNSUPPORTED, NULL, "the local backend has one mesh axis, not axis %d", slot->axis);
  if (slot->elems < 0) FAIL(RANK, NULL, "a collective of %lld elements", (long long)slot->elems);
  if (sums && !rank_tree_add(dtype_of_sums(slot->dtype))) FAIL(UNSUPPORTED, NULL, "no sum over ranks for %s", dtype_name(slot->dtype));
  TRY(team_enter(comm->team, comm->base.rank, slot));
  comm->failed = false;
  return NULL;
}

static Status leave(LocalComm *comm, int64_t bytes) {
  comm->failed = true;
  TRY(team_barrier(comm->team, comm->base.rank));
  comm->failed = false;
  comm->base.sent_bytes += bytes;
  comm->base.copied_bytes += bytes;
  return NULL;
}

static Status local_all_gather(Comm *base, int axis, const void *shard, void *whole, int64_t shard_elems, Dtype dtype) {
  LocalComm *comm = (LocalComm *)base;
  int64_t bytes = shard_elems * dtype_bytes(dtype);
  if (base->size == 1) {
    copy_unless_same(whole, shard, bytes);
    return NULL;
  }
  Slot slot = {SLOT_ALL_GATHER, dtype, axis, shard_elems, shard, whole};
  TRY(enter(comm, &slot, false));
  for (int i = 0; i < base->size; i++) {
    int r = (base->rank + i) % base->size;      // start at home: the ranks do not all read the same shard at once
    copy_unless_same((char *)whole + r * bytes, team_slot(comm->team, base->rank, r)->in, bytes);
  }
  return leave(comm, comm_shard_bytes(base->size, bytes));
}

static Status local_reduce_scatter(Comm *base, int axis, const void *whole, void *shard, int64_t shard_elems, Dtype dtype, bool sums) {
  LocalComm *comm = (LocalComm *)base;
  int64_t bytes = shard_elems * dtype_bytes(dtype);
  Dtype to = sums ? dtype_of_sums(dtype) : dtype;
  if (base->size == 1) {
    if (to == dtype) copy_unless_same(shard, whole, bytes);
    else elements_convert(shard, to, whole, dtype, shard_elems);
    return NULL;
  }
  Slot slot = {SLOT_REDUCE_SCATTER, dtype, axis, shard_elems, whole, shard};
  TRY(enter(comm, &slot, true));
  sum_over_ranks(comm->team, base->rank, base->rank * shard_elems, shard_elems, dtype, to, shard);
  return leave(comm, comm_shard_bytes(base->size, bytes));
}

static Status local_all_reduce(Comm *base, int axis, void *data, int64_t elems, Dtype dtype) {
  LocalComm *comm = (LocalComm *)base;
  if (base->size == 1) return NULL;
  Slot slot = {SLOT_ALL_REDUCE, dtype, axis, elems, data, data};
  TRY(enter(comm, &slot, true));
  int64_t width = dtype_bytes(dtype), bytes = comm_all_reduce_bytes(base->size, elems * width);
  if (elems * width <= BLOCK_BYTES) {            // small: everybody sums everything, one barrier less
    _Alignas(64) char sum[BLOCK_BYTES];
    sum_over_ranks(comm->team, base->rank, 0, elems, dtype, dtype, sum);
    TRY(leave(comm, bytes));
    copy_unless_same(data, sum, elems * width);
    return NULL;
  }
  int64_t first = rank_cut_start(elems, dtype, base->size, base->rank), end = rank_cut_start(elems, dtype, base->size, base->rank + 1);
  sum_over_ranks(comm->team, base->rank, first, end - first, dtype, dtype, (char *)data + first * width);
  comm->failed = true;
  TRY(team_barrier(comm->team, base->rank));
  comm->failed = false;
  for (int i = 1; i < base->size; i++) {
    int r = (base->rank + i) % base->size;
    int64_t from = rank_cut_start(elems, dtype, base->size, r), to = rank_cut_start(elems, dtype, base->size, r + 1);
    const char *other = team_slot(comm->team, base->rank, r)->in;
    if (to > from) memcpy((char *)data + from * width, other + from * width, (size_t)((to - from) * width));
  }
  return leave(comm, bytes);
}

static Status local_barrier(Comm *base) {
  if (base->size == 1) return NULL;
  Slot slot = {.kind = SLOT_BARRIER};
  return enter((LocalComm *)base, &slot, false);
}

static Status local_read_begin(Comm *base, int32_t region) { return team_read_begin(((LocalComm *)base)->team, base->rank, region); }
static Status local_read_end(Comm *base, int32_t region) { return team_read_end(((LocalComm *)base)->team, base->rank, region); }
static Status local_write_begin(Comm *base, int32_t region) { return team_write_begin(((LocalComm *)base)->team, base->rank, region); }
static Status local_write_end(Comm *base, int32_t region) { return team_write_end(((LocalComm *)base)->team, base->rank, region); }

const CommOps comm_local_ops = {
    .all_gather = local_all_gather,
    .reduce_scatter = local_reduce_scatter,
    .all_reduce = local_all_reduce,
    .barrier = local_barrier,
    .read_begin = local_read_begin,
    .read_end = local_read_end,
    .write_begin = local_write_begin,
    .write_end = local_write_end,
};
