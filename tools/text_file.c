#include "text_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../frontend/atomic_file.h"

// Pipes and devices cannot be replaced by a rename.
static bool is_special(const char *path) {
  struct stat st;
  return stat(path, &st) == 0 && !S_ISREG(st.st_mode);
}

static Status write_direct(const char *path, const char *text, size_t bytes) {
  FILE *to = fopen(path, "w");
  bool whole = to && fwrite(text, 1, bytes, to) == bytes;
  if (to) whole &= fclose(to) == 0;
  if (!whole) FAIL(IO, NULL, "cannot write %s: %s", path, strerror(errno));
  return STATUS_OK;
}

static Status write_whole(const char *path, const char *text, size_t bytes) {
  AtomicFile file;
  TRY(atomic_begin(path, &file));
  Status status = atomic_write(&file, text, bytes);
  if (!status) return atomic_commit(&file);
  atomic_abandon(&file);
  return status;
}

// *out: heap, also after an error (then perhaps NULL).
static Status make_text(Status (*write)(FILE *to, void *self), void *self, char **out, size_t *out_bytes) {
  FILE *to = open_memstream(out, out_bytes);
  if (!to) FAIL(RESOURCE, NULL, "out of memory while writing it");
  Status status = write(to, self);
  bool whole = !ferror(to);
  whole &= fclose(to) == 0;
  if (!status && !whole) status = status_fail(STATUS_RESOURCE, NULL, "out of memory while writing it");
  return status;
}

Status text_file_write(const char *path, const char *what, Status (*write)(FILE *to, void *self), void *self) {
  char *text = NULL;
  size_t bytes = 0;
  Status status = make_text(write, self, &text, &bytes);
  if (!status) status = is_special(path) ? write_direct(path, text, bytes) : write_whole(path, text, bytes);
  free(text);
  return status_context(status, "%s", what);
}
