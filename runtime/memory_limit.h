// How much more memory this process may take before somebody ends it: the machine, its control groups (versions 1 and 2, each up to the root) and its
// limit of address space. Asked of the kernel's files at the time of the call.
#ifndef TESSERA_MEMORY_LIMIT_H
#define TESSERA_MEMORY_LIMIT_H

#include <stdint.h>

typedef struct MemoryRoom {
  int64_t bytes;             // at least 0; INT64_MAX: no limit is known
  char by[160];              // what sets it, for a person: "control group /a/b, limit 1073741824 bytes"
} MemoryRoom;

// Pages that may become resident. `root` is put in front of "/proc/..." and of mount points ("" but for tests).
MemoryRoom memory_room(const char *root);

// Address space that may be mapped (RLIMIT_AS).
MemoryRoom memory_address_room(void);

// The number after `key` in a small text file, "" for its first; -1: no file, no such key or no number.
int64_t memory_number_in(const char *path, const char *key);

#endif
