// What two sequences have in common, in order: of lines, or of steps, each given by a key. Near to the longest common subsequence and much faster:
// what occurs once on both sides is matched first (patience), what lies between is divided again, and only small windows are searched fully.
// O(n log n) in time but for those windows, which are bounded. Deterministic. Memory: the arena, under the caller's guard.
#ifndef TESSERA_SEQUENCE_MATCH_H
#define TESSERA_SEQUENCE_MATCH_H

#include <stdbool.h>

#include "arena.h"

// match[i]: index in `b` of what a[i] is matched with, or -1; rising where it is not -1. match: [na].
void sequence_match(const uint64_t *a, size_t na, const uint64_t *b, size_t nb, Arena *arena, int32_t *match);

// Marks one longest rising subsequence of `values` (negative ones are never in it): kept[i]. Returns its length. kept: [n].
size_t sequence_longest_rising(const int32_t *values, size_t n, Arena *arena, bool *kept);

// Pairs (key, index) sorted by key, then by index: for matching what occurs equally often.
typedef struct KeyAt { uint64_t key; uint32_t at; } KeyAt;
void sequence_sort_keys(KeyAt *items, size_t n);

// One 64-bit hash of two.
static inline uint64_t hash_mix(uint64_t a, uint64_t b) {
  uint64_t h = (a ^ (b + 0x9e3779b97f4a7c15u + (a << 12) + (a >> 4))) * 0xff51afd7ed558ccdu;
  h = (h ^ (h >> 32)) * 0xc4ceb9fe1a85ec53u;
  return h ^ (h >> 29);
}

#endif
