// Requests of kernels become pieces that the engine carries out: cut, bounced where direct transfers need aligned memory, continued when short.
#include "swap_channel.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "../ir/clock.h"

enum { BOUNCE_BYTES = 256 << 10, FRUITLESS_MAX = 64 };

typedef struct Piece {
  SwapRequest request;             // what is left to do
  char *bounce;                    // own aligned memory, bounce_bytes
  char *caller, *inside;           // a bounced read: the caller's memory, and where in `bounce` its bytes are. NULL: nothing to copy
  int64_t caller_bytes;
  int fruitless;                   // times in a row that it came back without progress
} Piece;

typedef struct Channel {
  Swap swap;
  const SwapPlace *place;
  SwapIo *io;
  Piece *pieces;                   // [depth]
  Piece **idle;                    // a stack
  int n_idle;
  SwapRequest **back;              // [depth]: scratch of wait
  char *bounces;                   // depth x bounce_bytes, direct files only
  int64_t bounce_bytes;
  bool hangs;                      // a request did not come back: its memory may be written at any time
} Channel;

static int64_t down(int64_t n, int64_t to) { return n / to * to; }
static int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// ---- Errors -------------------------------------------------------------------------------------------------------------------

static Status piece_error(const Channel *c, const Piece *p, int error) {
  FAIL(IO, NULL, "cannot %s %" PRId64 " bytes at offset %" PRId64 " of the swap file in %s: %s", p->request.is_write ? "write" : "read", p->request.bytes,
       p->request.offset, c->place->dir, strerror(error));
}

// Everything is reserved at start, so the file has one size for ever.
static Status check_size(const Channel *c) {
  struct stat now;
  if (fstat(c->place->fd, &now)) FAIL(IO, NULL, "cannot ask for the size of the swap file in %s: %s", c->place->dir, strerror(errno));
  if (now.st_size == c->place->size_bytes) return NULL;
  FAIL(IO, NULL, "the swap file in %s has %" PRId64 " bytes and had %" PRId64 ": somebody has cut or changed it, what lay there is lost", c->place->dir,
       (int64_t)now.st_size, c->place->size_bytes);
}

static Status no_progress(const Channel *c, const Piece *p) {
  TRY(check_size(c));
  FAIL(IO, NULL, "%s at offset %" PRId64 " of the swap file in %s: 0 of %" PRId64 " bytes, %d times in a row", p->request.is_write ? "write" : "read",
       p->request.offset, c->place->dir, p->request.bytes, p->fruitless);
}

// ---- Pieces -------------------------------------------------------------------------------------------------------------------

static Status wait_for(Channel *c, Piece **out_done);

// Alone, before a write that fills only a part of a page: what else lies there.
static Status read_page(Channel *c, Piece *p, int64_t offset) {
  p->caller = NULL;
  p->fruitless = 0;
  p->request = (SwapRequest){.offset = offset, .memory = p->bounce, .bytes = SWAP_PAGE_BYTES};
  c->io->ops->submit(c->io, &p->request);
  for (Piece *done = NULL; !done;) TRY(wait_for(c, &done));
  return NULL;
}

static bool is_aligned(const SwapPlace *place, int64_t offset, const char *memory, int64_t bytes) {
  return !place->direct || (offset % SWAP_PAGE_BYTES == 0 && bytes % SWAP_PAGE_BYTES == 0 && (uintptr_t)memory % (uintptr_t)place->memory_align == 0);
}

// How much of [offset, offset + bytes) the next piece takes: up to a multiple of the block; a part of a page goes by itself.
static int64_t next_piece(const Channel *c, int64_t offset, const char *memory, int64_t bytes) {
  const SwapPlace *place = c->place;
  int64_t n = smaller(bytes, up(offset + 1, place->block_bytes) - offset);
  if (!place->direct) return n;
  if (offset % SWAP_PAGE_BYTES) return smaller(n, up(offset, SWAP_PAGE_BYTES) - offset);
  if (n >= SWAP_PAGE_BYTES) n = down(n, SWAP_PAGE_BYTES);
  return is_aligned(place, offset, memory, n) ? n : smaller(n, c->bounce_bytes);
}

static bool is_part_of_page(const Channel *c, int64_t offset, int64_t bytes) {
  return c->place->direct && (offset % SWAP_PAGE_BYTES || bytes % SWAP_PAGE_BYTES);
}

static Status start_piece(Channel *c, bool is_write, int64_t offset, char *memory, int64_t bytes) {
  Piece *p = c->idle[c->n_idle - 1];
  bool own = is_aligned(c->place, offset, memory, bytes);
  int64_t from = own ? offset : down(offset, SWAP_PAGE_BYTES);
  char *inside = p->bounce + (offset - from);
  if (is_write && is_part_of_page(c, offset, bytes)) TRY(read_page(c, p, from));
  if (is_write && !own) memcpy(inside, memory, (size_t)bytes);
  p->caller = own || is_write ? NULL : memory;
  p->caller_bytes = bytes;
  p->inside = inside;
  p->fruitless = 0;
  p->request = (SwapRequest){.is_write = is_write, .offset = from, .memory = own ? memory : p->bounce, .bytes = own ? bytes : up(offset + bytes, SWAP_PAGE_BYTES) - from};
  c->n_idle--;
  c->io->ops->submit(c->io, &p->request);
  return NULL;
}

// What came back: *done, sent again for the rest, or an error (*done, too).
static Status take_result(Channel *c, Piece *p, bool *done) {
  int64_t result = p->request.result, align = c->place->direct ? SWAP_PAGE_BYTES : 1;
  *done = true;
  if (result < 0 && result != -EINTR && result != -EAGAIN) return piece_error(c, p, (int)-result);
  int64_t moved = result < 0 ? 0 : result >= p->request.bytes ? p->request.bytes : down(result, align);    // what follows must be aligned again
  p->fruitless = moved ? 0 : p->fruitless + 1;
  if (p->fruitless > FRUITLESS_MAX || (p->fruitless && !result && !p->request.is_write)) return no_progress(c, p);
  if (moved == p->request.bytes) {
    if (p->caller) memcpy(p->caller, p->inside, (size_t)p->caller_bytes);
    return NULL;
  }
  *done = false;
  p->request.offset += moved;
  p->request.memory += moved;
  p->request.bytes -= moved;
  c->io->ops->submit(c->io, &p->request);
  return NULL;
}

// Waits for one request at least; pieces that are done become idle, or with out_done, which is for one in flight alone, *out_done. The first error.
static Status wait_for(Channel *c, Piece **out_done) {
  int n = c->io->ops->wait(c->io, c->back, c->place->depth, c->place->deadline_ns);
  if (n <= 0) {
    c->hangs = true;
    if (n < 0) FAIL(IO, NULL, "the engine of the swap file in %s fails: %s", c->place->dir, strerror(-n));
    FAIL(IO, NULL, "the swap file in %s has answered no request for %.3f s", c->place->dir, (double)c->place->deadline_ns / 1e9);
  }
  Status status = NULL;
  for (int i = 0; i < n; i++) {
    Piece *p = (Piece *)((char *)c->back[i] - offsetof(Piece, request));
    bool done;
    Status s = take_result(c, p, &done);
    if (status) status_free(s);
    else status = s;
    if (!done) continue;
    if (out_done) *out_done = p;
    else c->idle[c->n_idle++] = p;
  }
  return status;
}

// ---- Requests -----------------------------------------------------------------------------------------------------------------

// All in flight come back, whatever they bring: the caller's memory is in use until then.
static void drain(Channel *c) {
  while (c->n_idle < c->place->depth && !c->hangs) status_free(wait_for(c, NULL));
}

static Status move_pieces(Channel *c, bool is_write, int64_t offset, char *memory, int64_t bytes) {
  int64_t end = offset + bytes;
  while (offset < end || c->n_idle < c->place->depth) {
    while (offset < end && c->n_idle) {
      int64_t n = next_piece(c, offset, memory, end - offset);
      if (is_write && is_part_of_page(c, offset, n) && c->n_idle < c->place->depth) break;
      TRY(start_piece(c, is_write, offset, memory, n));
      offset += n;
      memory += n;
    }
    if (c->n_idle < c->place->depth) TRY(wait_for(c, NULL));
  }
  return check_size(c);
}

static Status transfer(Channel *c, bool is_write, int64_t offset, char *memory, int64_t bytes) {
  const char *what = is_write ? "write" : "read";
  if (offset < 0 || bytes < 0 || offset > c->place->bytes - bytes)
    FAIL(MALFORMED, NULL, "%s of %" PRId64 " bytes at offset %" PRId64 " of a swap file of %" PRId64, what, bytes, offset, c->place->bytes);
  if (c->hangs) FAIL(IO, NULL, "cannot %s %" PRId64 " bytes at offset %" PRId64 " of the swap file in %s: an earlier request hangs", what, bytes, offset, c->place->dir);
  Status status = move_pieces(c, is_write, offset, memory, bytes);
  if (status) drain(c);
  return status;
}

static Status channel_read(Swap *swap, int64_t offset, void *to, int64_t bytes) {
  int64_t start_ns = clock_now_ns();
  TRY(transfer((Channel *)swap, false, offset, to, bytes));
  swap->read_bytes += bytes;
  swap->read_ns += clock_now_ns() - start_ns;
  return NULL;
}

static Status channel_write(Swap *swap, int64_t offset, const void *from, int64_t bytes) {
  int64_t start_ns = clock_now_ns();
  TRY(transfer((Channel *)swap, true, offset, (char *)from, bytes));
  swap->written_bytes += bytes;
  swap->write_ns += clock_now_ns() - start_ns;
  return NULL;
}

static const SwapOps channel_ops = {channel_read, channel_write};

// ---- Life ---------------------------------------------------------------------------------------------------------------------

Status swap_channel_create(const SwapPlace *place, SwapIo *io, Swap **out) {
  int depth = place->depth;
  Channel *c = calloc(1, sizeof *c);
  if (!c) {
    io->ops->destroy(io);
    FAIL(RESOURCE, NULL, "no memory for a channel of the swap file");
  }
  *c = (Channel){.swap = {.ops = &channel_ops}, .place = place, .io = io, .bounces = MAP_FAILED, .bounce_bytes = smaller(place->block_bytes, BOUNCE_BYTES)};
  c->pieces = calloc((size_t)depth, sizeof *c->pieces);
  c->idle = calloc((size_t)depth, sizeof *c->idle);
  c->back = calloc((size_t)depth, sizeof *c->back);
  size_t bounces = (size_t)(depth * c->bounce_bytes);
  if (place->direct) c->bounces = mmap(NULL, bounces, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (!c->pieces || !c->idle || !c->back || (place->direct && c->bounces == MAP_FAILED)) {
    swap_channel_destroy(&c->swap);
    FAIL(RESOURCE, NULL, "no memory for %d requests in flight to the swap file", depth);
  }
  for (int i = 0; i < depth; i++) {
    if (place->direct) c->pieces[i].bounce = c->bounces + i * c->bounce_bytes;
    c->idle[c->n_idle++] = &c->pieces[i];
  }
  *out = &c->swap;
  return NULL;
}

bool swap_channel_destroy(Swap *swap) {
  Channel *c = (Channel *)swap;
  if (!c) return true;
  if (c->hangs) return false;
  c->io->ops->destroy(c->io);
  if (c->bounces != MAP_FAILED) munmap(c->bounces, (size_t)(c->place->depth * c->bounce_bytes));
  free(c->pieces);
  free(c->idle);
  free(c->back);
  free(c);
  return true;
}
