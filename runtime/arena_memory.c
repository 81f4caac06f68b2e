#include "arena_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../ir/plan.h"

enum { HUGE_PAGE_BYTES = 2 << 20, RESIDENT_STEP_PAGES = 8192 };

// Reserves more than is asked for and gives the rest back, so that the arena starts on a huge page and ends on its last page.
Status arena_memory_create(int64_t bytes, ArenaMemory *out) {
  *out = (ArenaMemory){NULL, 0};
  if (bytes < 0 || bytes > INT64_MAX - HUGE_PAGE_BYTES - PLAN_PAGE_BYTES) FAIL(MALFORMED, NULL, "an arena of %lld bytes", (long long)bytes);
  int64_t whole = (bytes + PLAN_PAGE_BYTES - 1) / PLAN_PAGE_BYTES * PLAN_PAGE_BYTES;
  if (!whole) return NULL;
  char *raw = mmap(NULL, (size_t)whole + HUGE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) FAIL(RESOURCE, NULL, "the machine gives no %lld bytes for an arena: %s", (long long)whole, strerror(errno));
  size_t head = (size_t)(-(uintptr_t)raw % HUGE_PAGE_BYTES), tail = HUGE_PAGE_BYTES - head;
  if (head) munmap(raw, head);
  if (tail) munmap(raw + head + whole, tail);
  out->base = raw + head;
  out->bytes = whole;
  (void)madvise(out->base, (size_t)whole, MADV_HUGEPAGE);   // only advice: without it the run is slower
  return NULL;
}

void arena_memory_destroy(ArenaMemory *memory) {
  if (memory->base) munmap(memory->base, (size_t)memory->bytes);
  *memory = (ArenaMemory){NULL, 0};
}

void arena_memory_populate(const ArenaMemory *memory, int part, int parts) {
  int64_t pages = memory->bytes / PLAN_PAGE_BYTES;
  for (int64_t p = pages * part / parts; p < pages * (part + 1) / parts; p++) *(volatile char *)(memory->base + p * PLAN_PAGE_BYTES) = 0;
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

// The number after `key` in a small text file; -1: no file or no such key.
static int64_t number_in(const char *path, const char *key) {
  char text[8192];
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return -1;
  text[n] = 0;
  const char *at = strstr(text, key);
  if (!at) return -1;
  char *end;
  int64_t value = strtoll(at + strlen(key), &end, 10);
  return end == at + strlen(key) ? -1 : value;
}

int64_t process_resident_bytes(void) { return number_in("/proc/self/status", "\nVmRSS:") * 1024; }
int64_t process_peak_bytes(void) { return number_in("/proc/self/status", "\nVmHWM:") * 1024; }

int64_t memory_available_bytes(void) {
  int64_t machine_kib = number_in("/proc/meminfo", "\nMemAvailable:"), group = number_in("/sys/fs/cgroup/memory.max", "");
  int64_t machine = machine_kib < 0 ? INT64_MAX : machine_kib * 1024;
  return group >= 0 && group < machine ? group : machine;
}

void process_peak_reset(void) {
  int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  ssize_t n = write(fd, "5", 1);
  (void)n;   // not allowed here: the peak is then the one since start, never too small
  close(fd);
}
