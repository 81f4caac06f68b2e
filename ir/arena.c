#include "arena.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 16, BLOCK_BYTES = 64 << 10 };

struct ArenaBlock {
  ArenaBlock *previous;
  size_t used, capacity;
  _Alignas(ALIGNMENT) unsigned char bytes[];
};

Arena *arena_create(size_t limit_bytes) {
  Arena *a = calloc(1, sizeof *a);
  if (a) a->limit_bytes = limit_bytes;
  return a;
}

void arena_destroy(Arena *arena) {
  if (!arena) return;
  for (ArenaBlock *b = arena->block, *previous; b; b = previous) {
    previous = b->previous;
    free(b);
  }
  free(arena);
}

static _Noreturn void arena_exhausted(Arena *arena, size_t bytes) {
  if (!arena->guard) {
    fprintf(stderr, "tessera: bug: arena of %zu bytes exhausted by %zu without a guard\n", arena->used_bytes, bytes);
    abort();
  }
  longjmp(*arena->guard, 1);
}

void *arena_alloc(Arena *arena, size_t bytes) {
  if (bytes > SIZE_MAX / 2) arena_exhausted(arena, bytes);
  size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (rounded == 0) rounded = ALIGNMENT;
  if (arena->limit_bytes && (rounded > arena->limit_bytes || arena->used_bytes > arena->limit_bytes - rounded)) arena_exhausted(arena, bytes);
  ArenaBlock *b = arena->block;
  if (!b || b->capacity - b->used < rounded) {
    size_t capacity = rounded > BLOCK_BYTES ? rounded : BLOCK_BYTES;
    ArenaBlock *fresh = calloc(1, sizeof *fresh + capacity);
    if (!fresh) arena_exhausted(arena, bytes);
    fresh->capacity = capacity;
    fresh->previous = b;
    arena->block = b = fresh;
  }
  void *p = b->bytes + b->used;
  b->used += rounded;
  arena->used_bytes += rounded;
  return p;
}

void *arena_alloc_array(Arena *arena, size_t count, size_t item_bytes) {
  size_t bytes;
  if (__builtin_mul_overflow(count, item_bytes, &bytes)) arena_exhausted(arena, SIZE_MAX);
  return arena_alloc(arena, bytes);
}

void *arena_copy(Arena *arena, const void *from, size_t bytes) {
  void *p = arena_alloc(arena, bytes);
  if (bytes) memcpy(p, from, bytes);
  return p;
}

char *arena_string_n(Arena *arena, const char *text, size_t bytes) {
  char *p = arena_alloc(arena, bytes + 1);
  if (bytes) memcpy(p, text, bytes);
  return p;
}

char *arena_string(Arena *arena, const char *text) { return text ? arena_string_n(arena, text, strlen(text)) : NULL; }

char *arena_printf(Arena *arena, const char *format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  int bytes = vsnprintf(NULL, 0, format, again);
  va_end(again);
  char *p = arena_alloc(arena, (size_t)(bytes < 0 ? 0 : bytes) + 1);
  if (bytes > 0) vsnprintf(p, (size_t)bytes + 1, format, args);
  va_end(args);
  return p;
}

void *arena_grow(Arena *arena, void *items, size_t count, size_t *capacity, size_t item_bytes) {
  if (count < *capacity) return items;
  size_t wider = *capacity ? 2 * *capacity : 8;
  void *p = arena_alloc_array(arena, wider, item_bytes);
  if (count) memcpy(p, items, count * item_bytes);
  *capacity = wider;
  return p;
}
