// Life of a swap file: a nameless file in a folder, its space, how it is opened, its channels.
#include "swap.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "new_folder.h"
#include "swap_channel.h"

enum { ZEROS_BYTES = 1 << 20, NS_PER_S = 1000000000 };
static const int64_t default_deadline_ns = 60 * (int64_t)NS_PER_S;

struct SwapFile {
  char dir[FOLDER_PATH_BYTES];
  SwapPlace place;
  SwapInfo info;
  int ranks;
  Swap *channels[];                // [ranks]
};

const char *swap_engine_name(SwapEngine engine) {
  static const char *const names[] = {"auto", "uring", "threads"};
  return names[engine];
}

// ---- The file -----------------------------------------------------------------------------------------------------------------

// A file that has no name from the start, or from at once on where the file system knows no such files.
static Status open_nameless(const char *dir, int *out_fd) {
  char path[FOLDER_PATH_BYTES];
  int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
    if (snprintf(path, sizeof path, "%s/tessera-swap.XXXXXX", dir) >= (int)sizeof path) FAIL(USAGE, NULL, "the path %.60s... is too long", dir);
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0 && unlink(path)) {
      int error = errno;
      close(fd);
      FAIL(IO, NULL, "cannot remove the name of the swap file %s: %s", path, strerror(error));
    }
  }
  if (fd < 0) FAIL(IO, NULL, "cannot make a swap file in %s: %s", dir, strerror(errno));
  *out_fd = fd;
  return NULL;
}

static int64_t free_bytes_at(const char *dir) {
  struct statvfs disk;
  return statvfs(dir, &disk) ? INT64_MAX : (int64_t)disk.f_bavail * (int64_t)disk.f_frsize;
}

static Status no_space(const SwapPlace *place, int error) {
  int64_t free_bytes = free_bytes_at(place->dir);
  FAIL(IO, NULL, "cannot reserve the %" PRId64 " bytes (%.1f MiB) of the swap file in %s, where %" PRId64 " bytes (%.1f MiB) are free: %s; --swap-dir says where it lies",
       place->bytes, (double)place->bytes / (1 << 20), place->dir, free_bytes, (double)free_bytes / (1 << 20), strerror(error));
}

// Where the file system cannot reserve, writing does.
static Status write_zeros(const SwapPlace *place) {
  char *zeros = calloc(1, ZEROS_BYTES);
  if (!zeros) FAIL(RESOURCE, NULL, "no memory to fill the swap file");
  int error = 0;
  for (int64_t at = 0; at < place->bytes && !error;) {
    int64_t n = place->bytes - at < ZEROS_BYTES ? place->bytes - at : ZEROS_BYTES;
    ssize_t written = pwrite(place->fd, zeros, (size_t)n, at);
    if (written > 0) at += written;
    else if (written == 0 || errno != EINTR) error = written ? errno : ENOSPC;
  }
  free(zeros);
  return error ? no_space(place, error) : NULL;
}

// Going beyond the limit of the process would end it by a signal.
static Status check_size_limit(const SwapPlace *place) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= (rlim_t)place->size_bytes) return NULL;
  FAIL(IO, NULL, "the swap file in %s takes %" PRId64 " bytes, and this process may write files of %" PRId64 " (ulimit -f, RLIMIT_FSIZE)", place->dir, place->size_bytes,
       (int64_t)limit.rlim_cur);
}

static Status reserve(const SwapPlace *place) {
  TRY(check_size_limit(place));
  if (free_bytes_at(place->dir) < place->bytes) return no_space(place, ENOSPC);      // not found out by filling the disk of others
  int failed;
  do failed = fallocate(place->fd, 0, 0, place->bytes);
  while (failed && errno == EINTR);
  if (failed && errno != EOPNOTSUPP && errno != ENOSYS) return no_space(place, errno);
  if (failed) TRY(write_zeros(place));
  if (ftruncate(place->fd, place->size_bytes)) return no_space(place, errno);
  return NULL;
}

// The alignment that direct transfers want of memory, found by writing (reads of what was never written take any); 0: there are none.
static Status find_alignment(const SwapPlace *place, int64_t *out) {
  static const int tries[] = {64, 512, SWAP_PAGE_BYTES};
  char *memory = aligned_alloc(SWAP_PAGE_BYTES, 2 * SWAP_PAGE_BYTES);
  if (!memory) FAIL(RESOURCE, NULL, "no memory to try the swap file");
  memset(memory, 0, 2 * SWAP_PAGE_BYTES);
  ssize_t n = -1;
  errno = EINVAL;
  *out = 0;
  for (size_t i = 0; n < 0 && errno == EINVAL && i < sizeof tries / sizeof *tries; i++) {
    n = pwrite(place->fd, memory + tries[i], SWAP_PAGE_BYTES, 0);
    if (n == SWAP_PAGE_BYTES) *out = tries[i];
  }
  int error = errno;
  free(memory);
  if (n < 0 && error != EINVAL) FAIL(IO, NULL, "cannot write to the new swap file in %s: %s", place->dir, strerror(error));
  return NULL;
}

static Status go_direct(SwapFile *file, SwapDirect wish) {
  SwapPlace *place = &file->place;
  file->info.direct_note[0] = 0;
  if (wish == SWAP_DIRECT_OFF) {
    snprintf(file->info.direct_note, sizeof file->info.direct_note, "asked for");
    return NULL;
  }
  int flags = fcntl(place->fd, F_GETFL);
  bool set = flags >= 0 && !fcntl(place->fd, F_SETFL, flags | O_DIRECT);
  int error = errno;
  if (set) TRY(find_alignment(place, &place->memory_align));
  place->direct = set && place->memory_align;
  if (place->direct) return NULL;
  if (set && fcntl(place->fd, F_SETFL, flags)) FAIL(IO, NULL, "cannot open the swap file in %s for the page cache: %s", place->dir, strerror(errno));
  const char *why = set ? "invalid alignment" : strerror(error);
  snprintf(file->info.direct_note, sizeof file->info.direct_note, "the file system has no direct transfers of %d bytes: %s", SWAP_PAGE_BYTES, why);
  if (wish == SWAP_DIRECT_ON) FAIL(UNSUPPORTED, NULL, "--io-direct on: %s (in %s); --io-direct off takes the page cache", file->info.direct_note, place->dir);
  return NULL;
}

// ---- Channels -----------------------------------------------------------------------------------------------------------------

static Status create_io(SwapFile *file, SwapEngine wish, SwapIo **out) {
  if (wish != SWAP_ENGINE_THREADS && file->info.engine != SWAP_ENGINE_THREADS) {
    Status status = swap_uring_create(file->place.fd, file->place.depth, out);
    file->info.engine = SWAP_ENGINE_URING;
    if (status_code(status) != STATUS_UNSUPPORTED) return status;
    if (wish == SWAP_ENGINE_URING) return status_context(status, "--io-engine uring (threads would work)");
    snprintf(file->info.engine_note, sizeof file->info.engine_note, "%s", status->what);
    status_free(status);
  }
  file->info.engine = SWAP_ENGINE_THREADS;
  return swap_threads_create(file->place.fd, file->place.depth, out);
}

static Status create_channels(SwapFile *file, const SwapOptions *o) {
  if (o->engine == SWAP_ENGINE_THREADS) snprintf(file->info.engine_note, sizeof file->info.engine_note, "asked for");
  for (int r = 0; r < file->ranks; r++) {
    SwapIo *io;
    TRY(create_io(file, o->engine, &io));
    if (o->wrap_io) io = o->wrap_io(o->wrap_self, io);
    TRY(swap_channel_create(&file->place, io, &file->channels[r]));
  }
  return NULL;
}

static Status check_sizes(int64_t bytes, int ranks, const SwapOptions *o) {
  if (bytes <= 0 || bytes > INT64_MAX - 2 * SWAP_PAGE_BYTES || ranks < 1) FAIL(USAGE, NULL, "a swap file of %" PRId64 " bytes for %d ranks", bytes, ranks);
  if (o->depth < 1 || o->depth > SWAP_DEPTH_MAX) FAIL(USAGE, NULL, "%d requests in flight; 1 to %d are possible", o->depth, SWAP_DEPTH_MAX);
  if (o->block_bytes < SWAP_PAGE_BYTES || o->block_bytes % SWAP_PAGE_BYTES || o->block_bytes > SWAP_BLOCK_BYTES_MAX)
    FAIL(USAGE, NULL, "blocks of %" PRId64 " bytes; multiples of %d up to %d are possible", o->block_bytes, SWAP_PAGE_BYTES, SWAP_BLOCK_BYTES_MAX);
  return NULL;
}

// ---- Life ---------------------------------------------------------------------------------------------------------------------

static Status start(SwapFile *file, const SwapOptions *o) {
  TRY(open_nameless(file->dir, &file->place.fd));
  TRY(reserve(&file->place));
  TRY(go_direct(file, o->direct));
  TRY(create_channels(file, o));
  file->info.direct = file->place.direct;
  return NULL;
}

Status swap_create(const char *dir, int64_t bytes, int ranks, const SwapOptions *o, SwapFile **out) {
  TRY(check_sizes(bytes, ranks, o));
  SwapFile *file = calloc(1, sizeof *file + (size_t)ranks * sizeof *file->channels);
  if (!file) FAIL(RESOURCE, NULL, "no memory for a swap file of %d ranks", ranks);
  int64_t whole = (bytes + SWAP_PAGE_BYTES - 1) / SWAP_PAGE_BYTES * SWAP_PAGE_BYTES;
  file->ranks = ranks;
  file->place = (SwapPlace){.fd = -1, .dir = file->dir, .bytes = whole, .size_bytes = whole + SWAP_PAGE_BYTES, .depth = o->depth, .block_bytes = o->block_bytes,
                            .deadline_ns = o->deadline_ns > 0 ? o->deadline_ns : default_deadline_ns};
  file->info = (SwapInfo){.depth = o->depth, .block_bytes = o->block_bytes, .bytes = whole};
  Status status = NULL;
  if (snprintf(file->dir, sizeof file->dir, "%s", dir) >= (int)sizeof file->dir) status = status_fail(STATUS_USAGE, NULL, "the path %.60s... is too long", dir);
  if (!status) status = start(file, o);
  if (status) swap_destroy(file);
  else *out = file;
  return status;
}

void swap_destroy(SwapFile *file) {
  if (!file) return;
  bool hangs = false;
  for (int r = 0; r < file->ranks; r++)
    if (!swap_channel_destroy(file->channels[r])) hangs = true;
  if (hangs) return;                              // its request still uses the descriptor and the place
  if (file->place.fd >= 0) close(file->place.fd);
  free(file);
}

Swap *swap_channel(SwapFile *file, int rank) { return file->channels[rank]; }
SwapInfo swap_info(const SwapFile *file) { return file->info; }

int64_t swap_resident(const SwapFile *file) {
  enum { BLOCK_BYTES = 512 };                     // of st_blocks, by definition
  struct stat now;
  if (fstat(file->place.fd, &now)) return -1;
  int64_t bytes = (int64_t)now.st_blocks * BLOCK_BYTES;
  return bytes < file->place.bytes ? bytes : file->place.bytes;
}
