// Fails the n-th call of a kind: linked into the program `tessera_faults` in place of the real functions (linker option --wrap), so only calls of
// this tree fail, and nothing in the product knows of it.
//
//   TESSERA_FAULT=KIND:N            call number N of the kind fails, counted from 1 over all threads of a process; a forked process goes on counting
//   TESSERA_FAULT=KIND:N:ever       and all later ones
//   TESSERA_FAULT_LOG=FILE          gets a line "hit" per failure, and at each process's end "calls COUNT"
//
// Kinds: alloc, open, read, write, fsync, rename, map, thread. tests/faults/test_faults.py drives it.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef TESSERA_URING
#include <liburing.h>
#endif

#define REAL(type, name, ...)            \
  type __real_##name(__VA_ARGS__);       \
  type __wrap_##name(__VA_ARGS__)

typedef enum Kind { KIND_ALLOC, KIND_OPEN, KIND_READ, KIND_WRITE, KIND_FSYNC, KIND_RENAME, KIND_MAP, KIND_THREAD, KIND_COUNT } Kind;
static const char *const kind_names[KIND_COUNT] = {"alloc", "open", "read", "write", "fsync", "rename", "map", "thread"};

static struct {
  int kind;                        // KIND_COUNT: nothing fails
  bool ever;
  unsigned long n;
  int log;                         // descriptor
  _Atomic unsigned long calls;
} fault = {.kind = KIND_COUNT, .log = -1};

ssize_t __real_write(int fd, const void *bytes, size_t n);
int __real_open(const char *path, int flags, ...);

static void log_line(const char *text) {
  if (fault.log < 0) return;
  ssize_t n = __real_write(fault.log, text, strlen(text));
  (void)n;
}

__attribute__((constructor)) static void read_wish(void) {
  const char *wish = getenv("TESSERA_FAULT"), *log = getenv("TESSERA_FAULT_LOG");
  const char *colon = wish ? strchr(wish, ':') : NULL;
  if (!colon) return;
  if (log) fault.log = __real_open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  fault.n = strtoul(colon + 1, NULL, 10);
  fault.ever = strstr(colon, ":ever") != NULL;
  for (int k = 0; k < KIND_COUNT; k++)
    if (strlen(kind_names[k]) == (size_t)(colon - wish) && !strncmp(wish, kind_names[k], strlen(kind_names[k]))) fault.kind = k;
}

__attribute__((destructor)) static void tell_count(void) {
  char line[64];
  snprintf(line, sizeof line, "calls %lu\n", fault.calls);
  log_line(line);
}

static bool fails(Kind kind, int error) {
  if ((int)kind != fault.kind) return false;
  unsigned long call = atomic_fetch_add(&fault.calls, 1) + 1;
  if (call != fault.n && !(fault.ever && call > fault.n)) return false;
  log_line("hit\n");
  errno = error;
  return true;
}

// ---- Memory ----

REAL(void *, malloc, size_t n) { return fails(KIND_ALLOC, ENOMEM) ? NULL : __real_malloc(n); }
REAL(void *, calloc, size_t n, size_t bytes) { return fails(KIND_ALLOC, ENOMEM) ? NULL : __real_calloc(n, bytes); }
REAL(void *, realloc, void *p, size_t n) { return fails(KIND_ALLOC, ENOMEM) ? NULL : __real_realloc(p, n); }
REAL(void *, aligned_alloc, size_t to, size_t n) { return fails(KIND_ALLOC, ENOMEM) ? NULL : __real_aligned_alloc(to, n); }
REAL(char *, strdup, const char *text) { return fails(KIND_ALLOC, ENOMEM) ? NULL : __real_strdup(text); }
REAL(char *, realpath, const char *path, char *out) { return fails(KIND_ALLOC, ENOMEM) ? NULL : __real_realpath(path, out); }
REAL(FILE *, open_memstream, char **text, size_t *n) { return fails(KIND_ALLOC, ENOMEM) ? NULL : __real_open_memstream(text, n); }

int __wrap_asprintf(char **out, const char *format, ...) {
  if (fails(KIND_ALLOC, ENOMEM)) return -1;
  va_list args;
  va_start(args, format);
  int n = vasprintf(out, format, args);
  va_end(args);
  return n;
}

// ---- Files ----

int __wrap_open(const char *path, int flags, ...) {
  if (fails(KIND_OPEN, EMFILE)) return -1;
  va_list args;
  va_start(args, flags);
  int mode = flags & O_CREAT ? va_arg(args, int) : 0;
  va_end(args);
  return __real_open(path, flags, mode);
}
int __real_openat(int dir, const char *path, int flags, ...);
int __wrap_openat(int dir, const char *path, int flags, ...) {
  if (fails(KIND_OPEN, EMFILE)) return -1;
  va_list args;
  va_start(args, flags);
  int mode = flags & O_CREAT ? va_arg(args, int) : 0;
  va_end(args);
  return __real_openat(dir, path, flags, mode);
}
REAL(FILE *, fopen, const char *path, const char *mode) { return fails(KIND_OPEN, EMFILE) ? NULL : __real_fopen(path, mode); }
REAL(int, mkdir, const char *path, mode_t mode) { return fails(KIND_OPEN, ENOSPC) ? -1 : __real_mkdir(path, mode); }
REAL(char *, mkdtemp, char *path) { return fails(KIND_OPEN, ENOSPC) ? NULL : __real_mkdtemp(path); }
REAL(int, mkostemp, char *path, int flags) { return fails(KIND_OPEN, EMFILE) ? -1 : __real_mkostemp(path, flags); }
REAL(DIR *, opendir, const char *path) { return fails(KIND_OPEN, EMFILE) ? NULL : __real_opendir(path); }
REAL(ssize_t, read, int fd, void *to, size_t n) { return fails(KIND_READ, EIO) ? -1 : __real_read(fd, to, n); }
REAL(ssize_t, pread, int fd, void *to, size_t n, off_t at) { return fails(KIND_READ, EIO) ? -1 : __real_pread(fd, to, n, at); }
ssize_t __wrap_write(int fd, const void *bytes, size_t n);
ssize_t __wrap_write(int fd, const void *bytes, size_t n) { return fails(KIND_WRITE, ENOSPC) ? -1 : __real_write(fd, bytes, n); }
REAL(ssize_t, pwrite, int fd, const void *bytes, size_t n, off_t at) { return fails(KIND_WRITE, ENOSPC) ? -1 : __real_pwrite(fd, bytes, n, at); }
// A stream that cannot write remembers it (glibc's flag behind ferror). The standard streams go on: what is said there is what the test reads.
static bool stream_fails(FILE *to) {
  if (!to || to == stderr || to == stdout || !fails(KIND_WRITE, ENOSPC)) return false;
  to->_flags |= 0x20;
  return true;
}
REAL(size_t, fwrite, const void *from, size_t size, size_t n, FILE *to) { return stream_fails(to) ? 0 : __real_fwrite(from, size, n, to); }
REAL(int, fputs, const char *text, FILE *to) { return stream_fails(to) ? EOF : __real_fputs(text, to); }
REAL(int, fputc, int c, FILE *to) { return stream_fails(to) ? EOF : __real_fputc(c, to); }
REAL(int, fflush, FILE *to) { return stream_fails(to) ? EOF : __real_fflush(to); }
REAL(int, fclose, FILE *file) {                       // the stream is gone in any case
  int result = __real_fclose(file);
  return fails(KIND_WRITE, ENOSPC) ? EOF : result;
}
REAL(int, fallocate, int fd, int mode, off_t at, off_t n) { return fails(KIND_WRITE, ENOSPC) ? -1 : __real_fallocate(fd, mode, at, n); }
REAL(int, ftruncate, int fd, off_t n) { return fails(KIND_WRITE, ENOSPC) ? -1 : __real_ftruncate(fd, n); }
REAL(int, fsync, int fd) { return fails(KIND_FSYNC, EIO) ? -1 : __real_fsync(fd); }
REAL(int, rename, const char *from, const char *to) { return fails(KIND_RENAME, EACCES) ? -1 : __real_rename(from, to); }
REAL(int, renameat2, int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
  return fails(KIND_RENAME, EINVAL) ? -1 : __real_renameat2(from_dir, from, to_dir, to, flags);
}

// ---- io_uring: entries are counted when they are submitted; one that is to fail goes to no file, and its answer is changed to the error ----

#ifdef TESSERA_URING
REAL(int, io_uring_submit_and_wait_timeout, struct io_uring *ring, struct io_uring_cqe **out, unsigned n, struct __kernel_timespec *time, sigset_t *mask) {
  for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; i++) {
    struct io_uring_sqe *entry = &ring->sq.sqes[i & *ring->sq.kring_mask];
    bool is_read = entry->opcode == IORING_OP_READ, is_write = entry->opcode == IORING_OP_WRITE;
    if ((is_read && fails(KIND_READ, EIO)) || (is_write && fails(KIND_WRITE, ENOSPC))) entry->fd = -1;
  }
  int result = __real_io_uring_submit_and_wait_timeout(ring, out, n, time, mask);
  unsigned head;
  struct io_uring_cqe *answer;
  io_uring_for_each_cqe(ring, head, answer) {
    if (answer->res == -EBADF) answer->res = fault.kind == KIND_READ ? -EIO : -ENOSPC;
  }
  return result;
}
#endif

// ---- Address space, threads and processes ----

REAL(void *, mmap, void *at, size_t n, int protection, int flags, int fd, off_t offset) {
  return fails(KIND_MAP, ENOMEM) ? MAP_FAILED : __real_mmap(at, n, protection, flags, fd, offset);
}
REAL(int, mprotect, void *at, size_t n, int protection) { return fails(KIND_MAP, ENOMEM) ? -1 : __real_mprotect(at, n, protection); }
REAL(int, pthread_create, pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *), void *argument) {
  return fails(KIND_THREAD, 0) ? EAGAIN : __real_pthread_create(thread, attributes, main, argument);
}
REAL(pid_t, fork, void) { return fails(KIND_THREAD, EAGAIN) ? -1 : __real_fork(); }
REAL(int, pipe2, int *fds, int flags) { return fails(KIND_THREAD, EMFILE) ? -1 : __real_pipe2(fds, flags); }
