#include "arena_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../ir/plan.h"
#include "memory_limit.h"

enum { HUGE_PAGE_BYTES = 2 << 20, RESIDENT_STEP_PAGES = 8192 };

static int64_t whole_pages(int64_t bytes) { return (bytes + PLAN_PAGE_BYTES - 1) / PLAN_PAGE_BYTES * PLAN_PAGE_BYTES; }

// The part in use is a mapping of its own beside the reserved rest: no huge page reaches beyond its end.
static Status open_pages(const ArenaMemory *memory, int64_t from, int64_t to) {
  if (to <= from) return NULL;
  if (mprotect(memory->base + from, (size_t)(to - from), PROT_READ | PROT_WRITE))
    FAIL(RESOURCE, NULL, "the machine gives no %lld bytes for an arena: %s", (long long)(to - from), strerror(errno));
  (void)madvise(memory->base + from, (size_t)(to - from), MADV_HUGEPAGE);   // only advice: without it the run is slower
  return NULL;
}

// Reserves more than is asked for and gives the rest back, so that the arena starts on a huge page and ends on its last page.
Status arena_memory_create(int64_t bytes, int64_t reserve_bytes, ArenaMemory *out) {
  *out = (ArenaMemory){0};
  if (reserve_bytes < bytes) reserve_bytes = bytes;
  if (bytes < 0 || reserve_bytes > INT64_MAX - HUGE_PAGE_BYTES - PLAN_PAGE_BYTES) FAIL(MALFORMED, NULL, "an arena of %lld bytes", (long long)bytes);
  int64_t whole = whole_pages(bytes), reserved = whole_pages(reserve_bytes);
  if (!reserved) return NULL;
  char *raw = mmap(NULL, (size_t)reserved + HUGE_PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) FAIL(RESOURCE, NULL, "the machine gives no %lld bytes for an arena: %s", (long long)reserved, strerror(errno));
  size_t head = (size_t)(-(uintptr_t)raw % HUGE_PAGE_BYTES), tail = HUGE_PAGE_BYTES - head;
  if (head) munmap(raw, head);
  if (tail) munmap(raw + head + reserved, tail);
  ArenaMemory memory = {raw + head, whole, reserved};
  Status status = open_pages(&memory, 0, whole);
  if (status) arena_memory_destroy(&memory);
  else *out = memory;
  return status;
}

void arena_memory_destroy(ArenaMemory *memory) {
  if (memory->base) munmap(memory->base, (size_t)memory->reserved_bytes);
  *memory = (ArenaMemory){0};
}

static void touch_pages(const ArenaMemory *memory, int64_t first, int64_t end) {
  for (int64_t p = first; p < end; p++) *(volatile char *)(memory->base + p * PLAN_PAGE_BYTES) = 0;
}

Status arena_memory_grow(ArenaMemory *memory, int64_t bytes) {
  int64_t whole = whole_pages(bytes), before = memory->bytes;
  if (whole <= before) return NULL;
  if (whole > memory->reserved_bytes) FAIL(RESOURCE, NULL, "an arena of %lld bytes, %lld are reserved", (long long)whole, (long long)memory->reserved_bytes);
  TRY(open_pages(memory, before, whole));
  memory->bytes = whole;
  touch_pages(memory, before / PLAN_PAGE_BYTES, whole / PLAN_PAGE_BYTES);
  return NULL;
}

void arena_memory_populate(const ArenaMemory *memory, int part, int parts) {
  int64_t pages = memory->bytes / PLAN_PAGE_BYTES;
  touch_pages(memory, pages * part / parts, pages * (part + 1) / parts);
}

int64_t arena_memory_resident(const ArenaMemory *memory) {
  unsigned char present[RESIDENT_STEP_PAGES];
  int64_t resident = 0;
  for (int64_t at = 0; at < memory->bytes; at += (int64_t)RESIDENT_STEP_PAGES * PLAN_PAGE_BYTES) {
    int64_t left = memory->bytes - at, step = (int64_t)RESIDENT_STEP_PAGES * PLAN_PAGE_BYTES;
    if (left > step) left = step;
    if (mincore(memory->base + at, (size_t)left, present)) return -1;
    for (int64_t p = 0; p < left / PLAN_PAGE_BYTES; p++) resident += present[p] & 1 ? PLAN_PAGE_BYTES : 0;
  }
  return resident;
}

int64_t process_resident_bytes(void) { return memory_number_in("/proc/self/status", "\nVmRSS:") * 1024; }
int64_t process_peak_bytes(void) { return memory_number_in("/proc/self/status", "\nVmHWM:") * 1024; }

void process_peak_reset(void) {
  int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  ssize_t n = write(fd, "5", 1);
  (void)n;   // not allowed here: the peak is then the one since start, never too small
  close(fd);
}
