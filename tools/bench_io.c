// tessera bench io: what the swap file of tier NVME gives here, with the very requests that a run makes of it.
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/clock.h"
#include "benches.h"
#include "swap_options.h"

typedef enum IoKind { IO_WRITE, IO_READ, IO_MIXED, IO_COUNT } IoKind;
static const char *const kind_names[] = {"write", "read", "mixed"};

typedef struct Rank {
  Swap *swap;
  IoKind kind;
  int64_t from, to, request_bytes;       // its part of the file
  char *memory;                          // two requests
  pthread_t thread;
  Status status;
} Rank;

typedef struct Bench {
  const Options *options;
  SwapFile *file;
  int ranks;
  Rank *rank;                            // [ranks]
  double seconds[IO_COUNT];            // the best of the rounds
  int64_t bytes[IO_COUNT];
} Bench;

// Writes all, reads all, or takes turns as the update of offloaded state does: reads a window, writes the one before.
static Status walk(Rank *r) {
  for (int64_t at = r->from; at < r->to; at += r->request_bytes) {
    int64_t n = r->to - at < r->request_bytes ? r->to - at : r->request_bytes;
    if (r->kind == IO_WRITE) TRY(r->swap->ops->write(r->swap, at, r->memory, n));
    else TRY(r->swap->ops->read(r->swap, at, r->memory + r->request_bytes, n));
    if (r->kind == IO_MIXED) TRY(r->swap->ops->write(r->swap, at, r->memory + r->request_bytes, n));
  }
  return NULL;
}

static void *rank_main(void *self) {
  Rank *r = self;
  r->status = walk(r);
  return NULL;
}

static Status run_once(Bench *b, IoKind kind, double *out_seconds) {
  int64_t start_ns = clock_now_ns();
  int started = 0, error = 0;
  for (; started < b->ranks; started++) {
    b->rank[started].kind = kind;
    if ((error = pthread_create(&b->rank[started].thread, NULL, rank_main, &b->rank[started]))) break;
  }
  Status status = error ? status_fail(STATUS_RESOURCE, NULL, "no thread for rank %d of %d: %s", started, b->ranks, strerror(error)) : NULL;
  for (int r = 0; r < started; r++) {
    pthread_join(b->rank[r].thread, NULL);
    Status failed = b->rank[r].status;
    b->rank[r].status = NULL;
    if (failed && failed->rank < 0) failed->rank = r;
    if (status) status_free(failed);
    else status = failed;
  }
  *out_seconds = (double)(clock_now_ns() - start_ns) / 1e9;
  return status;
}

// The first round writes what later ones read.
static Status measure(Bench *b, int64_t bytes) {
  double seconds;
  TRY(run_once(b, IO_WRITE, &seconds));
  for (int64_t round = 0; round < b->options->io_rounds; round++)
    for (IoKind w = 0; w < IO_COUNT; w++) {
      TRY(run_once(b, w, &seconds));
      if (!round || seconds < b->seconds[w]) b->seconds[w] = seconds;
      b->bytes[w] = w == IO_MIXED ? 2 * bytes : bytes;
    }
  return NULL;
}

static Status prepare(Bench *b, int64_t part_bytes, int64_t request_bytes) {
  b->rank = calloc((size_t)b->ranks, sizeof *b->rank);
  if (!b->rank) FAIL(RESOURCE, NULL, "no memory for %d ranks", b->ranks);
  for (int r = 0; r < b->ranks; r++) {
    Rank *rank = &b->rank[r];
    *rank = (Rank){.swap = swap_channel(b->file, r), .from = r * part_bytes, .to = (r + 1) * part_bytes, .request_bytes = request_bytes};
    rank->memory = aligned_alloc(SWAP_PAGE_BYTES, (size_t)(2 * request_bytes));
    if (!rank->memory) FAIL(RESOURCE, NULL, "no memory for requests of %" PRId64 " bytes", request_bytes);
    for (int64_t i = 0; i < 2 * request_bytes; i++) rank->memory[i] = (char)(i * 31 + (i >> 12));      // disks may have short cuts for zeros
  }
  return NULL;
}

static void print_text(const Bench *b, const SwapInfo *info) {
  swap_info_print(stdout, info, b->options->swap_dir);
  for (IoKind w = 0; w < IO_COUNT; w++)
    printf("%-6s %9.1f MB/s   %.1f MiB in %.3f s\n", kind_names[w], (double)b->bytes[w] / b->seconds[w] / 1e6, (double)b->bytes[w] / (1 << 20), b->seconds[w]);
}

static void print_json(const Bench *b, const SwapInfo *info, int64_t request_bytes) {
  JsonWriter w = {.to = stdout};
  json_write_object(&w, NULL);
  json_write_text(&w, "dir", b->options->swap_dir);
  swap_info_write(&w, info);
  json_write_int(&w, "ranks", b->ranks);
  json_write_int(&w, "request_bytes", request_bytes);
  for (IoKind k = 0; k < IO_COUNT; k++) {
    json_write_object(&w, kind_names[k]);
    json_write_int(&w, "bytes", b->bytes[k]);
    json_write_real(&w, "seconds", b->seconds[k]);
    json_write_real(&w, "bytes_per_s", (double)b->bytes[k] / b->seconds[k]);
    json_write_end_object(&w);
  }
  json_write_end_object(&w);
  printf("\n");
}

Status bench_io(const Options *o) {
  int64_t pages = o->io_size / o->ranks / SWAP_PAGE_BYTES, part_bytes = pages * SWAP_PAGE_BYTES;
  if (!pages) FAIL(USAGE, NULL, "--io-size %" PRId64 " is less than a page of %d bytes for each of %" PRId64 " ranks", o->io_size, SWAP_PAGE_BYTES, o->ranks);
  if (o->io_request % SWAP_PAGE_BYTES) FAIL(USAGE, NULL, "--io-request %" PRId64 ": it must be a multiple of %d", o->io_request, SWAP_PAGE_BYTES);
  int64_t request_bytes = o->io_request < part_bytes ? o->io_request : part_bytes;
  SwapOptions swap;
  TRY(swap_options_read(o, &swap));
  Bench b = {.options = o, .ranks = (int)o->ranks};
  TRY(swap_create(o->swap_dir, part_bytes * b.ranks, b.ranks, &swap, &b.file));
  SwapInfo info = swap_info(b.file);
  Status status = prepare(&b, part_bytes, request_bytes);
  if (!status) status = measure(&b, part_bytes * b.ranks);
  if (!status && o->json) print_json(&b, &info, request_bytes);
  else if (!status) print_text(&b, &info);
  for (int r = 0; b.rank && r < b.ranks; r++) free(b.rank[r].memory);
  free(b.rank);
  swap_destroy(b.file);
  return status;
}
