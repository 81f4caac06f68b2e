// The memory of one arena of a plan: private, anonymous, in whole pages of its own, aligned to huge pages.
//
// Errors: RESOURCE when the machine refuses. Threads: create and destroy from one, growing while nobody else uses it; different parts may be
// populated by different threads.
#ifndef TESSERA_ARENA_MEMORY_H
#define TESSERA_ARENA_MEMORY_H

#include <stdint.h>

#include "../ir/status.h"

typedef struct ArenaMemory {
  char *base;            // NULL when bytes is 0
  int64_t bytes;         // whole pages
  int64_t reserved_bytes;    // address space from base on; >= bytes
} ArenaMemory;

// Reserves `bytes`, rounded up to whole pages; nothing is resident yet. Huge pages are asked for and not insisted on. At least `reserve_bytes` of
// address space are kept for growing.
MUST_USE Status arena_memory_create(int64_t bytes, int64_t reserve_bytes, ArenaMemory *out);

// Makes it `bytes` large where it is smaller; what is new is resident, the address stays. RESOURCE beyond the reserved address space.
MUST_USE Status arena_memory_grow(ArenaMemory *memory, int64_t bytes);
void arena_memory_destroy(ArenaMemory *memory);                       // a zeroed one is fine

// Makes the pages of part `part` of `parts` resident by writing to each; the thread that computes with them should do it.
void arena_memory_populate(const ArenaMemory *memory, int part, int parts);

int64_t arena_memory_resident(const ArenaMemory *memory);             // bytes, asked of the kernel; -1 when it does not say

// Of this process, from /proc/self/status: resident now, and the peak since the last reset (since start where resetting is not allowed).
int64_t process_resident_bytes(void);
int64_t process_peak_bytes(void);
void process_peak_reset(void);

#endif
