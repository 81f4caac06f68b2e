// The swap file of a process: what lies in tier NVME. One file, one channel per rank; the interface that kernels call is Swap in kernels/kernel.h.
//
// Contract:
//   - The file has no name: no end of the process, a killed one's neither, leaves anything behind, and no file of somebody else can be taken for it.
//   - Its space is reserved when it is made (fallocate; zeros are written where the file system cannot): a full disk is an error at start.
//   - A request is cut into pieces of at most block_bytes, of which up to `depth` are in flight. A piece that comes back short is continued. On return
//     nothing is in flight, and the caller's memory is its own again; after an error what was read or written is undefined.
//   - Errors are IO: they name the operation, the place in the file, the bytes and the system's reason. A file that somebody has cut short is found
//     by every request. No wait is endless: when no piece ends within the deadline, the request fails, and the channel with it.
//   - Bytes are not changed by anybody but the channels: nothing is hashed.
//   - Memory: depth x min(block_bytes, 256 KiB) per channel for pieces whose memory or place is not aligned as direct transfers need it; resident
//     only when there are some. Tensors at multiples of 4,096 bytes need it for their ends alone.
//   - Threads: create and destroy from one thread; a channel is used by one thread at a time, channels of different ranks at once. Places that two
//     channels use lie in different multiples of SWAP_PAGE_BYTES.
#ifndef TESSERA_SWAP_H
#define TESSERA_SWAP_H

#include <stdbool.h>

#include "../kernels/kernel.h"
#include "swap_io.h"

enum { SWAP_PAGE_BYTES = 4096, SWAP_DEPTH_MAX = 1024, SWAP_BLOCK_BYTES_MAX = 1 << 30 };

typedef enum SwapEngine { SWAP_ENGINE_AUTO, SWAP_ENGINE_URING, SWAP_ENGINE_THREADS } SwapEngine;     // auto: io_uring, threads where it cannot be had
typedef enum SwapDirect { SWAP_DIRECT_AUTO, SWAP_DIRECT_ON, SWAP_DIRECT_OFF } SwapDirect;            // past the page cache; auto: where the file system can

typedef struct SwapOptions {
  SwapEngine engine;
  SwapDirect direct;
  int depth;                       // 1..SWAP_DEPTH_MAX; pieces in flight per channel
  int64_t block_bytes;             // a multiple of SWAP_PAGE_BYTES
  int64_t deadline_ns;             // 0: 60 s
  SwapIo *(*wrap_io)(void *self, SwapIo *io);   // testing: what a channel is given in place of its engine, which it then owns. NULL: the engine
  void *wrap_self;
} SwapOptions;

// What was chosen, for reports.
typedef struct SwapInfo {
  SwapEngine engine;               // never AUTO
  bool direct;
  int depth;
  int64_t block_bytes, bytes;      // bytes: reserved, whole pages
  char engine_note[160], direct_note[160];      // why not io_uring, why not direct; "": they are
} SwapInfo;

typedef struct SwapFile SwapFile;

// Reserves `bytes`, rounded up to whole pages, in a file of no name in folder `dir`, and makes a channel for each of `ranks` ranks. Errors: IO (says how
// much is needed and free), UNSUPPORTED (what was asked for and cannot be had), USAGE (sizes), RESOURCE (memory, threads).
MUST_USE Status swap_create(const char *dir, int64_t bytes, int ranks, const SwapOptions *options, SwapFile **out);
void swap_destroy(SwapFile *file);              // NULL is fine. A channel in which a request hangs is left as it is

Swap *swap_channel(SwapFile *file, int rank);   // owned by the file
SwapInfo swap_info(const SwapFile *file);
int64_t swap_resident(const SwapFile *file);    // bytes that lie on the disk for it, asked of the file system, without its own bookkeeping; -1: it does not say
const char *swap_engine_name(SwapEngine engine);   // "auto", "uring", "threads"

#endif
