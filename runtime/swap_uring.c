// The engine over io_uring: a ring per channel, filled without a system call, submitted and waited for with one.
#include "swap_io.h"

#ifdef TESSERA_URING
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/clock.h"

enum { NS_PER_S = 1000000000 };

typedef struct Uring {
  SwapIo io;
  struct io_uring ring;
  int fd;
} Uring;

// The caller keeps at most `depth` in flight, and the ring has that many entries: there is always one.
static void uring_submit(SwapIo *io, SwapRequest *r) {
  Uring *u = (Uring *)io;
  struct io_uring_sqe *entry = io_uring_get_sqe(&u->ring);
  if (r->is_write) io_uring_prep_write(entry, u->fd, r->memory, (unsigned)r->bytes, (uint64_t)r->offset);
  else io_uring_prep_read(entry, u->fd, r->memory, (unsigned)r->bytes, (uint64_t)r->offset);
  io_uring_sqe_set_data(entry, r);
}

static int take(Uring *u, SwapRequest **out, int max) {
  struct io_uring_cqe *entry;
  int n = 0;
  while (n < max && !io_uring_peek_cqe(&u->ring, &entry)) {
    SwapRequest *r = io_uring_cqe_get_data(entry);
    if (entry->user_data != LIBURING_UDATA_TIMEOUT) {          // kernels before 5.11 time out with an entry
      r->result = entry->res;
      out[n++] = r;
    }
    io_uring_cqe_seen(&u->ring, entry);
  }
  return n;
}

static int uring_wait(SwapIo *io, SwapRequest **out, int max, int64_t timeout_ns) {
  Uring *u = (Uring *)io;
  int64_t end_ns = clock_now_ns() + timeout_ns;
  for (int64_t left_ns = timeout_ns; left_ns > 0; left_ns = end_ns - clock_now_ns()) {
    struct io_uring_cqe *entry;
    struct __kernel_timespec time = {.tv_sec = left_ns / NS_PER_S, .tv_nsec = left_ns % NS_PER_S};
    int error = io_uring_submit_and_wait_timeout(&u->ring, &entry, 1, &time, NULL);
    int n = take(u, out, max);
    if (n) return n;
    if (error < 0 && error != -EINTR && error != -EAGAIN && error != -EBUSY && error != -ETIME) return error;
  }
  return 0;
}

static void uring_destroy(SwapIo *io) {
  Uring *u = (Uring *)io;
  io_uring_queue_exit(&u->ring);
  free(u);
}

static const SwapIoOps uring_ops = {uring_submit, uring_wait, uring_destroy};

static bool can_read_and_write(struct io_uring *ring) {
  struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
  bool can = probe && io_uring_opcode_supported(probe, IORING_OP_READ) && io_uring_opcode_supported(probe, IORING_OP_WRITE);
  io_uring_free_probe(probe);
  return can;
}

Status swap_uring_create(int fd, int depth, SwapIo **out) {
  Uring *u = calloc(1, sizeof *u);
  if (!u) FAIL(RESOURCE, NULL, "no memory for an io_uring of %d requests", depth);
  *u = (Uring){.io = {&uring_ops}, .fd = fd};
  int error = io_uring_queue_init((unsigned)depth + 1, &u->ring, 0);      // one more: the entry of a timeout
  if (error) {
    free(u);
    FAIL(UNSUPPORTED, NULL, "the system refuses io_uring: %s", strerror(-error));
  }
  if (!can_read_and_write(&u->ring)) {
    uring_destroy(&u->io);
    FAIL(UNSUPPORTED, NULL, "the kernel's io_uring has no read and write (Linux 5.6 has)");
  }
  *out = &u->io;
  return NULL;
}

#else
Status swap_uring_create(int fd, int depth, SwapIo **out) { FAIL(UNSUPPORTED, NULL, "this program was built without liburing"); }
#endif
