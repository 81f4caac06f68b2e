// Files that are whole or not there: written beside their place, flushed, renamed.
//
// Ownership: atomic_begin owns an open file until atomic_commit or atomic_abandon. Threads: one per file. Errors: IO with path and reason.
#ifndef TESSERA_ATOMIC_FILE_H
#define TESSERA_ATOMIC_FILE_H

#include "../ir/status.h"

typedef struct AtomicFile {
  char *path, *temporary;
  int fd;
} AtomicFile;

MUST_USE Status atomic_begin(const char *path, AtomicFile *out);
MUST_USE Status atomic_write(AtomicFile *file, const void *bytes, size_t n_bytes);
// Over bytes that were written before.
MUST_USE Status atomic_overwrite(AtomicFile *file, const void *bytes, size_t n_bytes, long long offset_bytes);
MUST_USE Status atomic_commit(AtomicFile *file);      // ends the file, also when it fails
void atomic_abandon(AtomicFile *file);                // after atomic_commit: nothing

#endif
