// Collectives over several processes: lanes. What a lane does, with P processes:
//   reduce: for each part of its pieces, send every process the sums that this one can make for it (the nodes of the tree over ranks that lie in this
//           process: one where R is a power of two), and add up what comes for its own piece. (P - 1) / P of the bucket leave the process.
//   gather: send its piece to every process. Two parts are under way at a time, so that sums are made while bytes move.
#include <stdlib.h>
#include <string.h>

#include "../kernels/loops.h"
#include "nodes.h"

enum { BLOCK_BYTES = 4096, TREE_DEPTH_MAX = 28, WORK_BYTES_MAX = 8 << 20 };
static const int64_t default_message_bytes = 1 << 20, default_gather_bytes = 64 << 20;      // a gather needs no room and waits for nothing in between

static const char *const kind_names[] = {"Barrier", "AllGather", "ReduceScatter", "AllReduce"};

// ---- Messages of a lane -------------------------------------------------------------------------------------------------------

static void hand_over(Lane *lane, int slot, TransportMessage message, bool exact) {
  NodesMessage *m = &lane->messages[slot][lane->used[slot]++];
  *m = (NodesMessage){.base = message, .lane = lane, .slot = slot, .exact = exact};
  lane->handed[slot]++;
  nodes_hand_over(lane->nodes, m);
}

static int tag_of(const Lane *lane, int slot) { return lane->local * LANE_SLOTS + slot; }

static void send(Lane *lane, int slot, int peer, const void *data, int64_t bytes) {
  if (bytes) hand_over(lane, slot, (TransportMessage){.peer = peer, .tag = tag_of(lane, slot), .data = (void *)data, .bytes = bytes}, false);
}

static void receive(Lane *lane, int slot, int peer, void *data, int64_t bytes) {
  TransportMessage message = {.peer = peer, .tag = tag_of(lane, slot), .receives = true, .data = data, .bytes = bytes};
  if (bytes) hand_over(lane, slot, message, true);
}

// Waits until all messages of the slot are done; their records may then be used again.
static Status settle(Lane *lane, int slot) {
  const char *what = "the transport between processes";
  Status status = team_await_for(lane->nodes->team, lane->local, &lane->moved[slot], lane->handed[slot], what, nodes_patience_ns(lane->nodes));
  lane->used[slot] = 0;
  return status;
}

// ---- Agreement ----------------------------------------------------------------------------------------------------------------

static NodesHeader *header_of(Lane *lane, int process) { return (NodesHeader *)((char *)lane->headers + (size_t)process * HEADER_ROOM); }

// Tells all other processes' lanes what this one asks for, and `data_bytes` of data that stand behind the header in `headers[processes]`.
static void meet_begin(Lane *lane, int64_t data_bytes) {
  const Nodes *nodes = lane->nodes;
  NodesHeader *own = header_of(lane, nodes->processes);
  *own = (NodesHeader){.magic = NODES_MAGIC, .kind = lane->slot.kind, .dtype = lane->slot.dtype, .axis = lane->slot.axis, .sums = lane->sums,
                       .rank = lane->base.rank, .elems = lane->slot.elems, .sequence = lane->sequence, .data_bytes = data_bytes};
  for (int p = 0; p < nodes->processes; p++) {
    if (p == nodes->process) continue;
    TransportMessage in = {.peer = p, .tag = tag_of(lane, LANE_HEADERS), .receives = true, .data = header_of(lane, p), .bytes = HEADER_ROOM};
    hand_over(lane, LANE_HEADERS, in, false);
    send(lane, LANE_HEADERS, p, own, HEADER_BYTES + data_bytes);
  }
}

static Status disagreement(const NodesHeader *a, const NodesHeader *b) {
  FAIL(RANK, NULL, "ranks disagree: rank %d asks for %s of %lld x %s on axis %d, rank %d for %s of %lld x %s on axis %d%s", a->rank, kind_names[a->kind & 3],
       (long long)a->elems, dtype_name((Dtype)a->dtype), a->axis, b->rank, kind_names[b->kind & 3], (long long)b->elems, dtype_name((Dtype)b->dtype), b->axis,
       a->sequence != b->sequence ? " (not as many collectives before)" : a->sums != b->sums ? " (one of them wants sums)" : "");
}

// All processes compare with the first, so that all say the same.
static Status meet_end(Lane *lane) {
  const Nodes *nodes = lane->nodes;
  TRY(settle(lane, LANE_HEADERS));
  const NodesHeader *first = header_of(lane, nodes->process ? 0 : nodes->processes);
  for (int p = 0; p < nodes->processes; p++) {
    const NodesHeader *other = header_of(lane, p == nodes->process ? nodes->processes : p);
    if (other->magic != NODES_MAGIC) FAIL(RANK, NULL, "process %d sent something that is no header: not the same program", p);
    if (other->kind != first->kind || other->dtype != first->dtype || other->axis != first->axis || other->sums != first->sums ||
        other->elems != first->elems || other->sequence != first->sequence)
      return disagreement(first, other);
  }
  return NULL;
}

// ---- Sums ---------------------------------------------------------------------------------------------------------------------

// How a collective's elements are cut into pieces, one for each rank of the axis: equal shards, or cache lines.
typedef struct Cut { int64_t elems, shard_elems; Dtype dtype; int ranks; } Cut;    // shard_elems < 0: cache lines

static int64_t cut_start(const Cut *cut, int rank) {
  return cut->shard_elems >= 0 ? cut->shard_elems * rank : rank_cut_start(cut->elems, cut->dtype, cut->ranks, rank);
}

typedef struct Range { int64_t first, elems; } Range;

// Part `part` of a rank's piece, `part_elems` elements each.
static Range range_of(const Cut *cut, int rank, int64_t part, int64_t part_elems) {
  int64_t start = cut_start(cut, rank), left = cut_start(cut, rank + 1) - start - part * part_elems;
  return (Range){start + part * part_elems, left < 0 ? 0 : left < part_elems ? left : part_elems};
}

typedef struct Summing {
  const Lane *lane;
  Dtype dtype;                                   // of the summands
  const char *const *remote;                     // [processes]: what each sent of `range`: its pieces, one after the other
  Range range;                                   // elements of the summands
  int64_t first, elems;                          // the block: elements of the summands, of the axis's own numbering
  const Loops *loops;
  RankTreeAdd add;
  _Alignas(64) char temporary[TREE_DEPTH_MAX][BLOCK_BYTES];
} Summing;

// As the type that sums have: where it lies, or widened into `room`.
static const void *widened(const Summing *s, const void *data, int64_t at, void *room) {
  if (dtype_of_sums(s->dtype) == s->dtype) return (const char *)data + at * dtype_bytes(s->dtype);
  return loops_wide(s->loops, data, s->dtype, at, s->elems, room);
}

// A piece that another process has sent.
static const void *remote_piece(const Summing *s, int process, int lo, int n, void *room) {
  const Nodes *nodes = s->lane->nodes;
  const char *at = s->remote[process];
  for (const RankPiece *piece = nodes->pieces[process]; piece->first != lo; piece++)
    at += s->range.elems * dtype_bytes(piece->n == 1 ? s->dtype : dtype_of_sums(s->dtype));
  int64_t skip = s->first - s->range.first;
  return n == 1 ? widened(s, at, skip, room) : at + skip * dtype_bytes(dtype_of_sums(s->dtype));
}

static const void *tree_sum(Summing *s, int lo, int n, void *out, int level) {
  const Nodes *nodes = s->lane->nodes;
  int process = lo / nodes->ranks;
  bool inside = (lo + n - 1) / nodes->ranks == process;
  if (inside && process != nodes->process) return remote_piece(s, process, lo, n, out);
  if (n == 1) return widened(s, team_slot(nodes->team, s->lane->local, lo - nodes->first_rank)->in, s->first, out);
  int half = rank_tree_low(n);
  const void *low = tree_sum(s, lo, half, out, level);
  const void *high = tree_sum(s, lo + half, n - half, s->temporary[level], level + 1);
  s->add(out, low, high, s->elems);
  return out;
}

// out = node [lo, lo + n) of the tree over ranks, elements of `range`, as `to`: the summands' type or that of sums. `out` may be this rank's own summands.
static void sum_range(const Lane *lane, int lo, int n, Range range, const char *const *remote, Dtype to, void *out) {
  Dtype dtype = lane->slot.dtype, sums = dtype_of_sums(dtype);
  Summing s = {.lane = lane, .dtype = dtype, .remote = remote, .range = range, .loops = loops_for(isa_best()), .add = rank_tree_add(sums)};
  int64_t width = dtype_bytes(to), block = BLOCK_BYTES / dtype_bytes(sums);
  if (n == 1) {                                  // one rank in all
    const char *in = (const char *)team_slot(lane->nodes->team, lane->local, lane->local)->in + range.first * dtype_bytes(dtype);
    if (to == dtype) copy_unless_same(out, in, range.elems * width);
    else elements_convert(out, to, in, dtype, range.elems);
    return;
  }
  int half = rank_tree_low(n);
  for (int64_t e = 0; e < range.elems; e += block) {
    s.first = range.first + e;
    s.elems = range.elems - e < block ? range.elems - e : block;
    const void *low = tree_sum(&s, lo, half, s.temporary[0], 2);
    const void *high = tree_sum(&s, lo + half, n - half, s.temporary[1], 2);
    char *at = (char *)out + e * width;
    s.add(to == sums ? at : s.temporary[0], low, high, s.elems);
    if (to != sums) (to == DTYPE_BF16 ? s.loops->narrow_bf16 : s.loops->narrow_f16)((uint16_t *)at, (const float *)s.temporary[0], s.elems);
  }
}

// Writes this process's pieces of `range` one after the other; returns their bytes.
static int64_t make_pieces(const Lane *lane, Range range, char *out) {
  const Nodes *nodes = lane->nodes;
  Dtype dtype = lane->slot.dtype;
  char *at = out;
  for (int i = 0; i < nodes->n_pieces[nodes->process]; i++) {
    RankPiece piece = nodes->pieces[nodes->process][i];
    int64_t bytes = range.elems * dtype_bytes(piece.n == 1 ? dtype : dtype_of_sums(dtype));
    if (piece.n > 1) sum_range(lane, piece.first, piece.n, range, NULL, dtype_of_sums(dtype), at);
    else if (bytes) memcpy(at, (const char *)team_slot(nodes->team, lane->local, piece.first - nodes->first_rank)->in + range.first * dtype_bytes(dtype), (size_t)bytes);
    at += bytes;
  }
  return at - out;
}

// ---- Reduce: the lane's pieces ------------------------------------------------------------------------------------------------

typedef struct Reduction {
  Lane *lane;
  Cut cut;
  int64_t part_elems;
  int width_own;                                 // bytes per element of this process's pieces
  Dtype to;
  char *out;                                     // of the lane's own piece
} Reduction;

static int piece_width(const Nodes *nodes, int process, Dtype dtype) {
  return rank_tree_piece_width(nodes->ranks * nodes->processes, process * nodes->ranks, nodes->ranks, dtype);
}

static int rank_of(const Lane *lane, int process) { return process * lane->nodes->ranks + lane->local; }

// Each work area holds what goes out, then what comes in: [2][processes] rooms.
static char *room_of(const Lane *lane, int64_t part, int in, int process) {
  const Nodes *nodes = lane->nodes;
  int64_t room = nodes->work_bytes / (2 * nodes->processes) & ~(int64_t)63;
  return lane->work[part & 1] + (in * nodes->processes + process) * room;
}

static void send_sums(const Reduction *r, int64_t part) {
  Lane *lane = r->lane;
  const Nodes *nodes = lane->nodes;
  for (int i = 1; i < nodes->processes; i++) {
    int p = (nodes->process + i) % nodes->processes;
    Range range = range_of(&r->cut, rank_of(lane, p), part, r->part_elems);
    const char *data = (const char *)lane->slot.in + range.first * dtype_bytes(lane->slot.dtype);     // one rank: its summands as they lie
    if (nodes->ranks > 1) make_pieces(lane, range, room_of(lane, part, 0, p)), data = room_of(lane, part, 0, p);
    send(lane, (int)(part & 1), p, data, range.elems * r->width_own);
  }
}

static void receive_sums(const Reduction *r, int64_t part) {
  Lane *lane = r->lane;
  const Nodes *nodes = lane->nodes;
  Range range = range_of(&r->cut, lane->base.rank, part, r->part_elems);
  for (int p = 0; p < nodes->processes; p++)
    if (p != nodes->process) receive(lane, (int)(part & 1), p, room_of(lane, part, 1, p), range.elems * piece_width(nodes, p, lane->slot.dtype));
}

static void finish_part(const Reduction *r, int64_t part, const char **remote) {
  Lane *lane = r->lane;
  const Nodes *nodes = lane->nodes;
  for (int p = 0; p < nodes->processes; p++) remote[p] = room_of(lane, part, 1, p);
  Range range = range_of(&r->cut, lane->base.rank, part, r->part_elems);
  sum_range(lane, 0, lane->base.size, range, remote, r->to, r->out + part * r->part_elems * dtype_bytes(r->to));
}

// The lane's own piece of the sum over all ranks, to `out`. The lanes of all processes agree on sizes once their headers have come.
static Status reduce_lane(Lane *lane, Cut cut, Dtype to, char *out) {
  const Nodes *nodes = lane->nodes;
  const char *remote[nodes->processes];
  Reduction r = {.lane = lane, .cut = cut, .width_own = piece_width(nodes, nodes->process, lane->slot.dtype), .to = to, .out = out};
  int widest = 1;
  int64_t longest = 0;
  for (int p = 0; p < nodes->processes; p++) {
    int width = piece_width(nodes, p, lane->slot.dtype);
    if (width > widest) widest = width;
  }
  for (int g = 0; g < cut.ranks; g++) {
    Range piece = range_of(&cut, g, 0, INT64_MAX);
    if (piece.elems > longest) longest = piece.elems;
  }
  r.part_elems = (room_of(lane, 0, 0, 1) - room_of(lane, 0, 0, 0)) / widest;
  if (nodes->chunk_bytes / widest < r.part_elems) r.part_elems = nodes->chunk_bytes / widest;
  r.part_elems = r.part_elems > 64 ? r.part_elems / 64 * 64 : r.part_elems < 1 ? 1 : r.part_elems;
  int64_t parts = (longest + r.part_elems - 1) / r.part_elems;
  meet_begin(lane, 0);
  if (parts) send_sums(&r, 0);
  TRY(meet_end(lane));
  if (parts) receive_sums(&r, 0);
  for (int64_t part = 0; part < parts; part++) {
    if (part + 1 < parts) {
      send_sums(&r, part + 1);
      receive_sums(&r, part + 1);
    }
    TRY(settle(lane, (int)(part & 1)));
    finish_part(&r, part, remote);
  }
  return NULL;
}

// ---- Gather: the lane's pieces ------------------------------------------------------------------------------------------------

static void gather_part(Lane *lane, const Cut *cut, char *base, int64_t part, int64_t part_elems) {
  const Nodes *nodes = lane->nodes;
  int64_t width = dtype_bytes(lane->slot.dtype);
  Range own = range_of(cut, lane->base.rank, part, part_elems);
  for (int i = 1; i < nodes->processes; i++) {
    int p = (nodes->process + i) % nodes->processes;
    Range other = range_of(cut, rank_of(lane, p), part, part_elems);
    receive(lane, (int)(part & 1), p, base + other.first * width, other.elems * width);
    send(lane, (int)(part & 1), p, base + own.first * width, own.elems * width);
  }
}

// base[piece of rank p R + l] for all p, from the lane's own piece, which lies there.
static Status gather_lane(Lane *lane, Cut cut, char *base, bool meets) {
  const Nodes *nodes = lane->nodes;
  int64_t part_elems = nodes->gather_bytes / dtype_bytes(lane->slot.dtype), longest = 0;
  if (part_elems < 1) part_elems = 1;
  for (int g = 0; g < cut.ranks; g++) {
    Range piece = range_of(&cut, g, 0, INT64_MAX);
    if (piece.elems > longest) longest = piece.elems;
  }
  if (meets) {
    meet_begin(lane, 0);
    TRY(meet_end(lane));
  }
  int64_t parts = (longest + part_elems - 1) / part_elems;
  if (parts) gather_part(lane, &cut, base, 0, part_elems);
  for (int64_t part = 0; part < parts; part++) {
    if (part + 1 < parts) gather_part(lane, &cut, base, part + 1, part_elems);
    TRY(settle(lane, (int)(part & 1)));
  }
  return NULL;
}

// What the other lanes of this process have gathered, where they have gathered it elsewhere. Returns the bytes copied.
static int64_t copy_other_lanes(const Lane *lane, const Cut *cut, char *base) {
  const Nodes *nodes = lane->nodes;
  int64_t width = dtype_bytes(lane->slot.dtype), copied = 0;
  for (int i = 1; i < nodes->ranks; i++) {
    int l = (lane->local + i) % nodes->ranks;
    const char *other = team_slot(nodes->team, lane->local, l)->out;
    if (other == base) continue;
    for (int p = 0; p < nodes->processes; p++) {
      Range piece = range_of(cut, p * nodes->ranks + l, 0, INT64_MAX);
      copy_unless_same(base + piece.first * width, other + piece.first * width, piece.elems * width);
      copied += piece.elems * width;
    }
  }
  return copied;
}

// ---- Collectives --------------------------------------------------------------------------------------------------------------

// Checks what this rank alone can see, and enters with the ranks of this process.
static Status enter(Lane *lane, Slot slot, bool sums) {
  if (lane->failed) FAIL(RANK, NULL, "rank %d has failed before", lane->base.rank);
  lane->failed = true;
  if (slot.axis != 0) FAIL(UNSUPPORTED, NULL, "processes have one mesh axis, not axis %d", slot.axis);
  if (slot.elems < 0) FAIL(RANK, NULL, "a collective of %lld elements", (long long)slot.elems);
  if (slot.kind >= SLOT_REDUCE_SCATTER && !rank_tree_add(dtype_of_sums(slot.dtype))) FAIL(UNSUPPORTED, NULL, "no sum over ranks for %s", dtype_name(slot.dtype));
  lane->slot = slot;
  lane->sums = sums;
  atomic_store(&lane->in, kind_names[slot.kind]);
  atomic_store(&lane->entered, ++lane->sequence);
  return team_enter(lane->nodes->team, lane->local, &slot);
}

static Status leave(Lane *lane, Status status, int64_t sent, int64_t copied, int64_t wire) {
  if (!status) status = team_barrier_after(lane->nodes->team, lane->local, nodes_patience_ns(lane->nodes));
  atomic_store(&lane->in, NULL);
  if (!status) {
    lane->failed = false;
    lane->base.sent_bytes += sent;
    lane->base.copied_bytes += copied;
    lane->base.wire_bytes += wire;
    return NULL;
  }
  Status own = atomic_exchange(&lane->status, NULL);      // the thread's reason, on behalf of this lane
  if (own) {
    status_free(status);
    status = own;
  }
  if (status->rank < 0) status->rank = lane->base.rank;
  if (!team_aborted(lane->nodes->team)) {                 // the other processes cannot know otherwise
    char text[512];
    team_abort(lane->nodes->team, lane->base.rank, status_text(status, text, sizeof text));
  }
  return status;
}

static Status gather(Lane *lane, const void *shard, char *whole, int64_t shard_elems) {
  Dtype dtype = lane->slot.dtype;
  Cut cut = {.elems = shard_elems * lane->base.size, .shard_elems = shard_elems, .dtype = dtype, .ranks = lane->base.size};
  copy_unless_same(whole + lane->base.rank * shard_elems * dtype_bytes(dtype), shard, shard_elems * dtype_bytes(dtype));
  return gather_lane(lane, cut, whole, true);
}

static Status nodes_all_gather(Comm *base, int axis, const void *shard, void *whole, int64_t shard_elems, Dtype dtype) {
  Lane *lane = (Lane *)base;
  const Nodes *nodes = lane->nodes;
  int64_t bytes = shard_elems * dtype_bytes(dtype), copied = 0;
  Status status = enter(lane, (Slot){SLOT_ALL_GATHER, dtype, axis, shard_elems, shard, whole}, false);
  if (!status) status = gather(lane, shard, whole, shard_elems);
  if (!status) status = team_barrier_after(nodes->team, lane->local, nodes_patience_ns(nodes));
  if (!status) copied = copy_other_lanes(lane, &(Cut){shard_elems * base->size, shard_elems, dtype, base->size}, whole);
  return leave(lane, status, comm_shard_bytes(base->size, bytes), copied, (nodes->processes - 1) * bytes);
}

static Status nodes_reduce_scatter(Comm *base, int axis, const void *whole, void *shard, int64_t shard_elems, Dtype dtype, bool sums) {
  Lane *lane = (Lane *)base;
  const Nodes *nodes = lane->nodes;
  Cut cut = {.elems = shard_elems * base->size, .shard_elems = shard_elems, .dtype = dtype, .ranks = base->size};
  Status status = enter(lane, (Slot){SLOT_REDUCE_SCATTER, dtype, axis, shard_elems, whole, shard}, sums);
  if (!status) status = reduce_lane(lane, cut, sums ? dtype_of_sums(dtype) : dtype, shard);
  int64_t bytes = shard_elems * dtype_bytes(dtype);
  return leave(lane, status, comm_shard_bytes(base->size, bytes), (base->size - nodes->processes) * bytes,
               (nodes->processes - 1) * shard_elems * piece_width(nodes, nodes->process, dtype));
}

// A small one: lane 0 of each process sends all its pieces to all others behind its header, and sums for its process.
static Status reduce_whole(Lane *lane, int64_t elems) {
  Nodes *nodes = lane->nodes;
  Range all = {0, elems};
  int64_t bytes = make_pieces(lane, all, (char *)(header_of(lane, nodes->processes) + 1));
  meet_begin(lane, bytes);
  TRY(meet_end(lane));
  const char *remote[nodes->processes];
  for (int p = 0; p < nodes->processes; p++) {
    remote[p] = (const char *)(header_of(lane, p) + 1);
    int64_t wanted = elems * piece_width(nodes, p, lane->slot.dtype);
    if (p != nodes->process && header_of(lane, p)->data_bytes != wanted)
      FAIL(RANK, NULL, "process %d sent %lld bytes of summands, not %lld", p, (long long)header_of(lane, p)->data_bytes, (long long)wanted);
  }
  sum_range(lane, 0, lane->base.size, all, remote, lane->slot.dtype, nodes->whole);
  return NULL;
}

static Status nodes_all_reduce(Comm *base, int axis, void *data, int64_t elems, Dtype dtype) {
  Lane *lane = (Lane *)base;
  Nodes *nodes = lane->nodes;
  int64_t width = dtype_bytes(dtype), bytes = elems * width, sent = comm_all_reduce_bytes(base->size, bytes);
  int64_t copied = 2 * (base->size - nodes->processes) * bytes / base->size;
  Status status = enter(lane, (Slot){SLOT_ALL_REDUCE, dtype, axis, elems, data, data}, false);
  int own_width = piece_width(nodes, nodes->process, dtype);
  if (!status && rank_tree_reduces_whole(nodes->processes, nodes->ranks, elems, dtype)) {
    if (lane->local == 0) status = reduce_whole(lane, elems);
    int64_t wire = lane->local ? 0 : (nodes->processes - 1) * elems * own_width;
    status = leave(lane, status, sent, copied, wire);
    if (!status) copy_unless_same(data, nodes->whole, bytes);     // before this rank enters again: lane 0 cannot write it sooner
    return status;
  }
  Cut cut = {.elems = elems, .shard_elems = -1, .dtype = dtype, .ranks = base->size};
  Range own = range_of(&cut, base->rank, 0, INT64_MAX);
  int64_t lane_elems = 0;
  for (int p = 0; p < nodes->processes; p++)
    if (p != nodes->process) lane_elems += range_of(&cut, rank_of(lane, p), 0, INT64_MAX).elems;
  if (!status) status = reduce_lane(lane, cut, dtype, (char *)data + own.first * width);
  if (!status) status = gather_lane(lane, cut, data, false);
  if (!status) status = team_barrier_after(nodes->team, lane->local, nodes_patience_ns(nodes));
  if (!status) copy_other_lanes(lane, &cut, data);
  return leave(lane, status, sent, copied, lane_elems * own_width + (nodes->processes - 1) * own.elems * width);
}

static Status nodes_barrier(Comm *base) {
  Lane *lane = (Lane *)base;
  Status status = enter(lane, (Slot){.kind = SLOT_BARRIER}, false);
  if (!status && lane->local == 0) {
    meet_begin(lane, 0);
    status = meet_end(lane);
  }
  return leave(lane, status, 0, 0, 0);
}

static Status nodes_read_begin(Comm *base, int32_t region) { return team_read_begin(((Lane *)base)->nodes->team, ((Lane *)base)->local, region); }
static Status nodes_read_end(Comm *base, int32_t region) { return team_read_end(((Lane *)base)->nodes->team, ((Lane *)base)->local, region); }
static Status nodes_write_begin(Comm *base, int32_t region) { return team_write_begin(((Lane *)base)->nodes->team, ((Lane *)base)->local, region); }
static Status nodes_write_end(Comm *base, int32_t region) { return team_write_end(((Lane *)base)->nodes->team, ((Lane *)base)->local, region); }

static const CommOps comm_nodes_ops = {
    .all_gather = nodes_all_gather,
    .reduce_scatter = nodes_reduce_scatter,
    .all_reduce = nodes_all_reduce,
    .barrier = nodes_barrier,
    .read_begin = nodes_read_begin,
    .read_end = nodes_read_end,
    .write_begin = nodes_write_begin,
    .write_end = nodes_write_end,
};

// ---- Life ---------------------------------------------------------------------------------------------------------------------

// The lanes and the thread look again: the team was stopped.
static void team_has_stopped(void *self) {
  Nodes *nodes = self;
  for (int l = 0; l < nodes->ranks; l++)
    for (int s = 0; s < LANE_SLOTS; s++) team_counter_wake(&nodes->lanes[l].moved[s]);
  transport_signal(nodes->transport);
}

// Sums before single summands: what comes after the other is aligned.
static void find_pieces(Nodes *nodes) {
  for (int p = 0; p < nodes->processes; p++) {
    RankPiece found[RANK_PIECES_MAX];
    int n = rank_tree_pieces(nodes->ranks * nodes->processes, p * nodes->ranks, nodes->ranks, found), used = 0;
    for (int single = 0; single < 2; single++)
      for (int i = 0; i < n; i++)
        if ((found[i].n == 1) == single) nodes->pieces[p][used++] = found[i];
    nodes->n_pieces[p] = n;
  }
}

static bool lane_init(Nodes *nodes, int local) {
  Lane *lane = &nodes->lanes[local];
  lane->base = (Comm){.ops = &comm_nodes_ops, .rank = nodes->first_rank + local, .size = nodes->ranks * nodes->processes};
  lane->nodes = nodes;
  lane->local = local;
  lane->moved = aligned_alloc(TEAM_LINE_BYTES, LANE_SLOTS * sizeof *lane->moved);
  lane->headers = aligned_alloc(64, (size_t)(nodes->processes + 1) * HEADER_ROOM);
  bool ok = lane->moved && lane->headers;
  for (int s = 0; s < LANE_SLOTS; s++) ok &= (lane->messages[s] = calloc((size_t)nodes->processes * 2, sizeof *lane->messages[s])) != NULL;
  for (int s = 0; s < 2; s++) ok &= (lane->work[s] = aligned_alloc(64, (size_t)nodes->work_bytes)) != NULL;
  if (!ok) return false;
  for (int s = 0; s < LANE_SLOTS; s++) team_counter_init(&lane->moved[s]);
  memset(lane->headers, 0, (size_t)(nodes->processes + 1) * HEADER_ROOM);
  for (int s = 0; s < 2; s++) memset(lane->work[s], 0, (size_t)nodes->work_bytes);      // resident from now on
  return true;
}

static bool allocate(Nodes *nodes) {
  size_t n = (size_t)nodes->processes;
  nodes->pieces = calloc(n, sizeof *nodes->pieces);
  nodes->n_pieces = calloc(n, sizeof *nodes->n_pieces);
  nodes->lanes = calloc((size_t)nodes->ranks, sizeof *nodes->lanes);
  nodes->whole = aligned_alloc(64, RANK_WHOLE_BYTES / 64 * 64 + 64);
  nodes->control_out = calloc(n * CONTROL_KINDS, sizeof *nodes->control_out);
  nodes->outgoing = calloc(n * CONTROL_KINDS, sizeof *nodes->outgoing);
  nodes->answered = calloc(n, sizeof *nodes->answered);
  nodes->ended = calloc(n, sizeof *nodes->ended);
  nodes->late = calloc(n, sizeof *nodes->late);
  nodes->open_room = (int)n * (2 * LANE_SLOTS * nodes->ranks + CONTROL_KINDS) + 1;
  nodes->open = calloc((size_t)nodes->open_room, sizeof *nodes->open);
  if (!nodes->pieces || !nodes->n_pieces || !nodes->lanes || !nodes->whole || !nodes->control_out || !nodes->outgoing || !nodes->answered || !nodes->ended ||
      !nodes->late || !nodes->open)
    return false;
  for (int l = 0; l < nodes->ranks; l++)
    if (!lane_init(nodes, l)) return false;
  return true;
}

Status nodes_create(Team *team, Transport *transport, const NodesOptions *options, Nodes **out) {
  int most = CONTROL_TAG / (LANE_SLOTS + 1);
  if (team->ranks > most) FAIL(USAGE, NULL, "%d ranks in one of several processes: up to %d are possible", team->ranks, most);
  Nodes *nodes = calloc(1, sizeof *nodes);
  if (!nodes) FAIL(RESOURCE, NULL, "no memory for the transport between processes");
  nodes->team = team;
  nodes->transport = transport;
  nodes->ranks = team->ranks;
  nodes->processes = transport->processes;
  nodes->process = transport->process;
  nodes->first_rank = nodes->process * nodes->ranks;
  nodes->chunk_bytes = options && options->message_bytes > 0 ? options->message_bytes : default_message_bytes;
  nodes->gather_bytes = options && options->message_bytes > 0 ? nodes->chunk_bytes : default_gather_bytes;
  if (nodes->gather_bytes > TRANSPORT_BYTES_MAX) nodes->gather_bytes = TRANSPORT_BYTES_MAX;
  if (nodes->chunk_bytes > TRANSPORT_BYTES_MAX / 4) nodes->chunk_bytes = TRANSPORT_BYTES_MAX / 4;
  int64_t room = (nodes->chunk_bytes + 63) / 64 * 64;
  if (room > WORK_BYTES_MAX / (2 * nodes->processes)) room = WORK_BYTES_MAX / (2 * nodes->processes) / 64 * 64;
  nodes->work_bytes = (room < 4096 ? 4096 : room) * 2 * nodes->processes;
  if (!allocate(nodes)) {
    nodes_destroy(nodes);
    FAIL(RESOURCE, NULL, "no memory for the transport between %d processes", transport->processes);
  }
  find_pieces(nodes);
  team->first_rank = nodes->first_rank;
  team->on_abort = team_has_stopped;
  team->on_abort_self = nodes;
  Status status = nodes_thread_start(nodes);
  if (status) nodes_destroy(nodes);
  else *out = nodes;
  return status;
}

Comm *nodes_comm(Nodes *nodes, int local_rank) { return &nodes->lanes[local_rank].base; }

bool nodes_destroy(Nodes *nodes) {
  if (!nodes) return true;
  if (nodes->started) nodes_thread_end(nodes);
  bool well = nodes->well;
  nodes->team->on_abort = NULL;
  for (int l = 0; nodes->lanes && l < nodes->ranks; l++) {
    Lane *lane = &nodes->lanes[l];
    status_free(lane->status);
    free(lane->moved);
    free(lane->headers);
    for (int s = 0; s < LANE_SLOTS; s++) free(lane->messages[s]);
    for (int s = 0; s < 2; s++) free(lane->work[s]);
  }
  free(nodes->pieces);
  free(nodes->n_pieces);
  free(nodes->lanes);
  free(nodes->whole);
  free(nodes->control_out);
  free(nodes->outgoing);
  free(nodes->answered);
  free(nodes->ended);
  free(nodes->late);
  free(nodes->open);
  free(nodes);
  return well;
}
