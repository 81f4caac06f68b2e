// What carries out the requests of one channel of a swap file: io_uring, or a pool of threads. swap.c cuts requests and judges what comes back.
//
// Threads: one at a time. An engine keeps at most the depth that it was made for; memory of a request is not touched until it has come back.
#ifndef TESSERA_SWAP_IO_H
#define TESSERA_SWAP_IO_H

#include <stdbool.h>
#include <stdint.h>

#include "../ir/status.h"

typedef struct SwapRequest {
  bool is_write;
  int64_t offset;                  // in the file
  char *memory;
  int64_t bytes;
  int64_t result;                  // bytes moved, or -errno
  struct SwapRequest *next;        // of the engine's list
} SwapRequest;

typedef struct SwapIo SwapIo;
typedef struct SwapIoOps {
  void (*submit)(SwapIo *io, SwapRequest *request);
  // Waits until one at least has come back, timeout_ns at most. Returns how many have (out[0..max)), 0: none, < 0: -errno of the engine itself.
  int (*wait)(SwapIo *io, SwapRequest **out, int max, int64_t timeout_ns);
  void (*destroy)(SwapIo *io);     // nothing is in flight
} SwapIoOps;
struct SwapIo { const SwapIoOps *ops; };

// Over descriptor `fd`, which must outlive it. Heap. UNSUPPORTED: the kernel refuses io_uring, or it was built without; says which.
MUST_USE Status swap_uring_create(int fd, int depth, SwapIo **out);
MUST_USE Status swap_threads_create(int fd, int depth, SwapIo **out);

#endif
