// Places in one arena for buffers whose lives are known: each life is a span of steps, two that meet in time may not meet in place, and the arena
// should end as low as possible (dynamic storage allocation; NP-hard). Several heuristics are tried and the best result is kept. None is ever
// below the largest set of bytes that are live at once; where one reaches that, no more are tried.
//
// Memory is taken from the given arena. The result depends on the lives and their order alone, never on time: effort is counted in steps of work.
#ifndef TESSERA_INTERVAL_PACK_H
#define TESSERA_INTERVAL_PACK_H

#include "../ir/arena.h"

typedef struct PackItem { uint32_t first, last; int64_t bytes; } PackItem;     // live in steps first..last, both included; bytes >= 0

typedef struct PackProblem {
  const PackItem *items;         // to be placed at base_bytes or above
  size_t n;
  const PackItem *fixed;         // lie at fixed_offsets already, each at base_bytes or above; in ascending order, without overlap
  const int64_t *fixed_offsets;
  size_t n_fixed;
  int64_t base_bytes;
} PackProblem;

typedef struct PackResult {
  int64_t end_bytes;             // where the last one ends, fixed ones included; base_bytes when there is none
  int64_t least_bytes;           // no placement ends below: base_bytes and the most bytes live at once
  const char *method;            // of the best placement
} PackResult;

// Sets out_offsets[i] for every item.
PackResult interval_pack(const PackProblem *problem, Arena *arena, int64_t *out_offsets);

// ---- The heuristics (interval_pack.c chooses among them) ----------------------------------------------------------------------

typedef enum PackKey { PACK_BY_LIFE, PACK_BY_AREA, PACK_BY_BYTES, PACK_KEY_COUNT } PackKey;

// Where what is fixed ends; base_bytes when nothing is. What the heuristics return is not below.
int64_t pack_fixed_end(const PackProblem *problem);

// Item indices, largest key first (area: life times bytes); equal ones by bytes, start and index. In `arena`.
uint32_t *pack_order(const PackProblem *problem, PackKey key, Arena *arena);

// Best fit to the skyline: again and again the lowest stretch of the skyline takes that item, of those whose whole life lies in it, which stands first
// in `order`; when there is none the stretch rises to its lower neighbour (Sekiyama, Imai, Negishi and others, 2018, "Profile-guided memory
// optimization for deep neural networks", after Burke, Kendall and Whitwell, 2004). In about n sqrt(n) steps, which are taken off *work. Returns the end.
int64_t pack_skyline(const PackProblem *problem, const uint32_t *order, Arena *arena, int64_t *work, int64_t *out_offsets);

// In the order given, each item into a gap between those placed so far: the lowest that is large enough, or of those that are large enough the smallest
// (Pisarchyk and Lee, 2020, "Efficient memory management for deep neural net inference"). In up to n^2 / 2 steps, which are taken off *work. Stops once
// the end is above `most`. Returns the end.
typedef enum PackFit { PACK_FIRST_FIT, PACK_BEST_FIT } PackFit;
typedef struct PackGaps PackGaps;
PackGaps *pack_gaps_create(const PackProblem *problem, Arena *arena);          // room for a placement; used again and again
int64_t pack_gaps_fill(PackGaps *gaps, const uint32_t *order, PackFit fit, int64_t most, int64_t *work, int64_t *out_offsets);

#endif
