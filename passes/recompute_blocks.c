// Where a model can be cut: the boundaries of its repeated blocks, and the cuts that make the peak smallest.
//
// A cut is narrow where few values that a trainable parameter influences live across it: the residual stream of a transformer, what goes from stage to
// stage of a convolutional network. (Masks and tables of positions live across all cuts and count for nothing here.) The narrowest cuts part the model
// into pieces; pieces are alike when they apply the same operators in the same order, whatever the sizes and names. Blocks are a run of pieces that repeats:
// of all runs the one that takes up most of the model, then again on its left and right, and inside long pieces, at wider cuts. Where nothing repeats,
// each long piece between narrowest cuts is a block: what a skip connection goes around.
#include <stdlib.h>
#include <string.h>

#include "recompute.h"

enum {
  WIDTH_MAX = 4,               // values across a cut that is still called narrow
  PERIOD_MAX = 256,            // pieces of a block
  SHARE_MIN = 16,              // a run takes up at least this part of the model,
  SHARE_INSIDE_MIN = 8,        // inside a piece this one,
  SHARE_PIECE_MIN = 4,         // which is looked into when it is this part itself
  BLOCK_NODES_MIN = 4,         // of a block that does not repeat
};

typedef struct Blocks {
  const Recompute *r;
  uint32_t *width;             // per cut: values across it
  int64_t *bytes;              // per cut: of all that is kept there
  uint64_t *signs;             // per place in `forward`: what the node is; 0: no parameter influences it
  uint32_t *params;            // nodes before the place that read a parameter: there is one in every block
  bool *cuts;
  size_t n_blocks;
} Blocks;

typedef struct Pieces {
  size_t *starts;              // places in `forward`; starts[n] ends the last
  uint64_t *signs;
  size_t n;
} Pieces;

typedef struct Run { size_t first, period, times, nodes; int64_t bytes; } Run;

static uint64_t mix(uint64_t hash, uint64_t x) {
  hash = (hash ^ x) * UINT64_C(0x9e3779b97f4a7c15);
  return hash ^ hash >> 29;
}

static uint64_t sign_of(const Recompute *r, const Node *n) {
  bool trains = false;
  for (int o = 0; o < n->n_outputs; o++) trains |= n->outputs[o] && r->trains[n->outputs[o]->id];
  if (!trains) return 0;
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (const char *s = n->op->name; *s; s++) hash = mix(hash, (unsigned char)*s);
  for (int o = 0; o < n->n_outputs; o++)
    if (n->outputs[o]) hash = mix(hash, (uint64_t)n->outputs[o]->type.dtype * 64 + (uint64_t)n->outputs[o]->type.rank);
  return mix(hash, (uint64_t)n->n_inputs);
}

static bool reads_param(const Recompute *r, const Node *n) {
  for (int i = 0; i < n->n_inputs; i++)
    if (n->inputs[i] && (n->inputs[i]->role == ROLE_PARAM || (r->trains[n->inputs[i]->id] && r->resident[n->inputs[i]->id]))) return true;
  return false;
}

static Blocks blocks_create(const Recompute *r) {
  size_t n = r->n_forward;
  Blocks b = {.r = r, .width = ARENA_ARRAY(r->arena, uint32_t, n + 1), .bytes = ARENA_ARRAY(r->arena, int64_t, n + 1), .signs = ARENA_ARRAY(r->arena, uint64_t, n),
              .params = ARENA_ARRAY(r->arena, uint32_t, n + 1), .cuts = ARENA_ARRAY(r->arena, bool, n + 1)};
  for (size_t i = 0; i < r->n_values; i++) {
    uint32_t made = r->made[i], last = r->last[i];
    if (r->resident[i] || made == UINT32_MAX || last == UINT32_MAX || last <= made) continue;
    int64_t bytes = value_bytes(r->graph->values[i]);
    b.width[made] += r->trains[i];
    b.width[last] -= r->trains[i];
    b.bytes[made] += bytes;
    b.bytes[last] -= bytes;
  }
  for (size_t c = 1; c < n; c++) {
    b.width[c] += b.width[c - 1];
    b.bytes[c] += b.bytes[c - 1];
  }
  for (size_t i = 0; i < n; i++) {
    b.signs[i] = sign_of(r, r->forward[i]);
    b.params[i + 1] = b.params[i] + reads_param(r, r->forward[i]);
  }
  return b;
}

// ---- Repetition -----------------------------------------------------------------------------------------------------------------

static Pieces cut_pieces(const Blocks *b, size_t from, size_t to, uint32_t width) {
  Arena *arena = b->r->arena;
  Pieces p = {.starts = ARENA_ARRAY(arena, size_t, to - from + 1), .signs = ARENA_ARRAY(arena, uint64_t, to - from)};
  p.starts[0] = from;
  for (size_t i = from; i < to; i++) {
    if (b->signs[i]) p.signs[p.n] = mix(p.signs[p.n], b->signs[i]);
    if (i + 1 == to || b->width[i] <= width) p.starts[++p.n] = i + 1;
  }
  return p;
}

// The cut before a piece; the model's start needs none.
static int64_t bytes_before(const Blocks *b, const Pieces *p, size_t piece) { return p->starts[piece] ? b->bytes[p->starts[piece] - 1] : 0; }

// Pieces [first, first + matches) are like those a period later: the best place of whole periods among them.
static Run best_place(const Blocks *b, const Pieces *p, size_t first, size_t matches, size_t period) {
  Run best = {.period = period, .times = (matches + period) / period};
  size_t slack = (matches + period) % period;
  for (size_t shift = 0; shift <= slack; shift++) {
    Run run = {.first = first + shift, .period = period, .times = best.times};
    for (size_t k = 0; k <= run.times; k++) run.bytes += bytes_before(b, p, run.first + k * period);
    run.nodes = p->starts[run.first + run.times * period] - p->starts[run.first];
    if (run.nodes > best.nodes || (run.nodes == best.nodes && run.bytes < best.bytes)) best = run;
  }
  return best;
}

// A longer period must gain: what repeats four times repeats twice, too.
static bool gains(const Run *run, const Run *best) { return run->nodes * 10 > best->nodes * (run->period > best->period ? 11 : 10); }

// Blocks read parameters, and take over from one another alike: as many values live at the start of each.
static bool is_block_run(const Blocks *b, const Pieces *p, const Run *run) {
  size_t first = p->starts[run->first];
  for (size_t k = 1; k < run->times && first; k++)
    if (b->width[p->starts[run->first + k * run->period] - 1] != b->width[first - 1]) return false;
  return b->params[p->starts[run->first + run->period]] > b->params[first];
}

static Run find_run(const Blocks *b, const Pieces *p, size_t from, size_t to) {
  Run best = {0};
  for (size_t period = 1; period <= PERIOD_MAX && 2 * period <= to - from; period++)
    for (size_t i = from; i + period < to; i++) {
      size_t matches = 0;
      while (i + matches + period < to && p->signs[i + matches] == p->signs[i + matches + period]) matches++;
      if (matches >= period) {
        Run run = best_place(b, p, i, matches, period);
        if (is_block_run(b, p, &run) && gains(&run, &best)) best = run;
      }
      i += matches;
    }
  return best;
}

static void cut_before(Blocks *b, size_t place) {
  if (place && place < b->r->n_forward) b->cuts[place - 1] = true;
}

static void find_inside(Blocks *b, size_t from, size_t to);

static void find_in_pieces(Blocks *b, const Pieces *p, size_t from, size_t to, size_t share_min) {
  Run run = from < to ? find_run(b, p, from, to) : (Run){0};
  if (!run.nodes || run.nodes * share_min < b->r->n_forward) {
    for (size_t i = from; i < to && p->n > 1; i++)
      if ((p->starts[i + 1] - p->starts[i]) * SHARE_PIECE_MIN >= b->r->n_forward) find_inside(b, p->starts[i], p->starts[i + 1]);
    return;
  }
  b->n_blocks += run.times;
  for (size_t k = 0; k <= run.times; k++) cut_before(b, p->starts[run.first + k * run.period]);
  find_in_pieces(b, p, from, run.first, share_min);
  find_in_pieces(b, p, run.first + run.times * run.period, to, share_min);
}

static uint32_t least_width(const Blocks *b, size_t from, size_t to) {
  uint32_t least = UINT32_MAX;
  for (size_t c = from; c + 1 < to; c++)
    if (b->width[c] < least) least = b->width[c];
  return least;
}

// One that is nearly all of the model says nothing.
static void take_long_pieces(Blocks *b, const Pieces *p) {
  for (size_t i = 0; i < p->n; i++)
    if ((p->starts[i + 1] - p->starts[i]) * 4 > b->r->n_forward * 3) return;
  for (size_t i = 0; i < p->n; i++) {
    if (p->starts[i + 1] - p->starts[i] < BLOCK_NODES_MIN || b->params[p->starts[i + 1]] == b->params[p->starts[i]]) continue;
    cut_before(b, p->starts[i]);
    cut_before(b, p->starts[i + 1]);
    b->n_blocks++;
  }
}

static void find_inside(Blocks *b, size_t from, size_t to) {
  size_t before = b->n_blocks;
  bool all = !from && to == b->r->n_forward;
  uint32_t least = least_width(b, from, to), first = least ? least : 1;
  for (uint32_t width = first; width <= WIDTH_MAX && b->n_blocks == before; width++) {
    Pieces p = cut_pieces(b, from, to, width);
    find_in_pieces(b, &p, 0, p.n, all ? SHARE_MIN : SHARE_INSIDE_MIN);
    if (all && b->n_blocks == before && width == first) take_long_pieces(b, &p);
  }
}

static void find_blocks(Blocks *b) {
  if (b->r->n_forward > 1) find_inside(b, 0, b->r->n_forward);
}

size_t recompute_find_blocks(const Recompute *r, bool **cuts) {
  Blocks b = blocks_create(r);
  find_blocks(&b);
  *cuts = b.cuts;
  return b.n_blocks;
}

// ---- The smallest peak ------------------------------------------------------------------------------------------------------------

// Bytes that backward reads, by the place where they are made.
static int64_t *needed_bytes(const Recompute *r) {
  int64_t *bytes = ARENA_ARRAY(r->arena, int64_t, r->n_forward + 1);
  for (size_t i = 0; i < r->n_values; i++)
    if (r->needed[i] && !r->resident[i] && r->made[i] != UINT32_MAX) bytes[r->made[i]] += value_bytes(r->graph->values[i]);
  return bytes;
}

// Cuts so that what backward reads between two of them is about `limit` bytes, each at the narrowest place of the second half on the way there.
static bool *cut_evenly(const Blocks *b, const int64_t *needed, int64_t limit) {
  size_t n = b->r->n_forward, best = SIZE_MAX;
  bool *cuts = ARENA_ARRAY(b->r->arena, bool, n + 1);
  int64_t since = 0;
  for (size_t i = 0; i + 1 < n; i++) {
    since += needed[i];
    if (2 * since >= limit && (best == SIZE_MAX || b->bytes[i] <= b->bytes[best])) best = i;
    if (since < limit || best == SIZE_MAX) continue;
    cuts[best] = true;
    i = best;                  // what stands behind the cut counts for the next
    since = 0;
    best = SIZE_MAX;
  }
  return cuts;
}

bool *recompute_keep_least(const Recompute *r, bool **cuts) {
  Blocks b = blocks_create(r);
  const int64_t *needed = needed_bytes(r);
  int64_t all = 0;
  bool *best = recompute_keep_all(r);
  Replay least = recompute_replay(r, best);
  *cuts = ARENA_ARRAY(r->arena, bool, r->n_forward + 1);
  for (size_t i = 0; i < r->n_forward; i++) all += needed[i];
  find_blocks(&b);
  for (int step = 0; step < 2 * 14 && r->n_forward > 1; step++) {
    int64_t limit = all >> (step / 2);
    bool *tried = step ? cut_evenly(&b, needed, step % 2 ? limit - limit / 4 : limit) : b.cuts;
    bool *kept = recompute_keep_cuts(r, tried);
    const Replay replay = recompute_replay(r, kept);
    if (replay.peak_bytes > least.peak_bytes || (replay.peak_bytes == least.peak_bytes && replay.seconds >= least.seconds)) continue;
    least = replay;
    best = kept;
    *cuts = tried;
  }
  return best;
}
