#include "atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

Status atomic_begin(const char *path, AtomicFile *out) {
  AtomicFile file = {.path = strdup(path), .fd = -1};
  if (!file.path || asprintf(&file.temporary, "%s.XXXXXX", path) < 0) {
    free(file.path);
    FAIL(RESOURCE, NULL, "out of memory");
  }
  file.fd = mkostemp(file.temporary, O_CLOEXEC);
  if (file.fd < 0) {
    Status status = status_fail(STATUS_IO, NULL, "cannot write %s: %s", path, strerror(errno));
    free(file.path);
    free(file.temporary);
    return status;
  }
  mode_t mask = umask(0);          // mkostemp makes private files; give what open would have given
  umask(mask);
  (void)!fchmod(file.fd, 0666 & ~mask);
  *out = file;
  return STATUS_OK;
}

static Status failed(AtomicFile *file, const char *what) {
  return status_fail(STATUS_IO, NULL, "cannot %s %s: %s", what, file->path, strerror(errno));
}

Status atomic_write(AtomicFile *file, const void *bytes, size_t n_bytes) {
  for (const char *p = bytes; n_bytes;) {
    ssize_t n = write(file->fd, p, n_bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return failed(file, "write");
    p += n;
    n_bytes -= (size_t)n;
  }
  return STATUS_OK;
}

Status atomic_overwrite(AtomicFile *file, const void *bytes, size_t n_bytes, long long offset_bytes) {
  for (const char *p = bytes; n_bytes;) {
    ssize_t n = pwrite(file->fd, p, n_bytes, offset_bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return failed(file, "write");
    p += n;
    offset_bytes += n;
    n_bytes -= (size_t)n;
  }
  return STATUS_OK;
}

void atomic_abandon(AtomicFile *file) {
  if (!file->path) return;
  close(file->fd);
  unlink(file->temporary);
  free(file->path);
  free(file->temporary);
  *file = (AtomicFile){.fd = -1};
}

Status atomic_commit(AtomicFile *file) {
  Status status = fsync(file->fd) ? failed(file, "flush") : STATUS_OK;
  if (!status && rename(file->temporary, file->path)) status = failed(file, "rename the finished file to");
  if (status) {
    atomic_abandon(file);
    return status;
  }
  close(file->fd);
  free(file->path);
  free(file->temporary);
  *file = (AtomicFile){.fd = -1};
  return STATUS_OK;
}
