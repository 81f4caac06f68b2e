#include <string.h>

#include "interval_pack.h"

typedef struct Placed { int64_t lo, hi; uint32_t first, last; } Placed;

struct PackGaps {
  const PackProblem *problem;
  Placed *placed;                // ascending by lo
  size_t n;
};

PackGaps *pack_gaps_create(const PackProblem *problem, Arena *arena) {
  PackGaps *gaps = ARENA_NEW(arena, PackGaps);
  *gaps = (PackGaps){.problem = problem, .placed = ARENA_ARRAY(arena, Placed, problem->n + problem->n_fixed)};
  return gaps;
}

static void insert(PackGaps *gaps, const PackItem *item, int64_t offset) {
  size_t low = 0, high = gaps->n;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (gaps->placed[middle].lo <= offset) low = middle + 1;
    else high = middle;
  }
  memmove(gaps->placed + low + 1, gaps->placed + low, (gaps->n++ - low) * sizeof *gaps->placed);
  gaps->placed[low] = (Placed){offset, offset + item->bytes, item->first, item->last};
}

// What is above all others that live at the same time counts as a gap without end.
static int64_t find_gap(const PackGaps *gaps, const PackItem *item, PackFit fit, int64_t *work) {
  int64_t offset = gaps->problem->base_bytes, best = -1, smallest = INT64_MAX;
  size_t i = 0;
  for (; i < gaps->n; i++) {
    const Placed *p = &gaps->placed[i];
    if (p->last < item->first || p->first > item->last) continue;
    int64_t gap = p->lo - offset;
    if (gap >= item->bytes && fit == PACK_FIRST_FIT) break;
    if (gap >= item->bytes && gap < smallest) {
      smallest = gap;
      best = offset;
    }
    if (p->hi > offset) offset = p->hi;
  }
  *work -= (int64_t)i + 1;
  return best >= 0 ? best : offset;
}

int64_t pack_gaps_fill(PackGaps *gaps, const uint32_t *order, PackFit fit, int64_t most, int64_t *work, int64_t *out_offsets) {
  const PackProblem *p = gaps->problem;
  int64_t end = pack_fixed_end(p);
  gaps->n = 0;
  for (size_t i = 0; i < p->n_fixed; i++) insert(gaps, &p->fixed[i], p->fixed_offsets[i]);
  for (size_t i = 0; i < p->n && end <= most; i++) {
    const PackItem *item = &p->items[order[i]];
    int64_t offset = find_gap(gaps, item, fit, work);
    insert(gaps, item, offset);
    out_offsets[order[i]] = offset;
    if (offset + item->bytes > end) end = offset + item->bytes;
  }
  return end;
}
