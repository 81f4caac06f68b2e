// One rank's channel to the swap file (inside of swap.c).
#ifndef TESSERA_SWAP_CHANNEL_H
#define TESSERA_SWAP_CHANNEL_H

#include "swap.h"

// The file as channels see it; constant once it is made.
typedef struct SwapPlace {
  int fd;
  const char *dir;                 // for messages
  int64_t bytes;                   // reserved, whole pages
  int64_t size_bytes;              // of the file: one page more, which nobody writes, so that a file cut short never grows to it again
  bool direct;
  int64_t memory_align;            // of memory in direct requests
  int depth;
  int64_t block_bytes, deadline_ns;
} SwapPlace;

// Takes over `io`, also on failure. `place` must outlive it.
MUST_USE Status swap_channel_create(const SwapPlace *place, SwapIo *io, Swap **out);
bool swap_channel_destroy(Swap *channel);      // false: a request hangs, and all that it uses stays. NULL is fine

#endif
