// A bump allocator: everything that a Graph, a Plan or one compilation owns, freed at once.
//
// Ownership: memory lives until arena_destroy. Threads: one thread at a time.
// Errors: arena_alloc never returns NULL. When the limit or the machine's memory is reached it jumps to the innermost
// ARENA_GUARD, which returns STATUS_RESOURCE from the function that set it. Between guard and allocation a function may own
// nothing but arena memory (this is what makes the jump safe); functions that own files or heap set no guard themselves.
#ifndef TESSERA_ARENA_H
#define TESSERA_ARENA_H

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

typedef struct ArenaBlock ArenaBlock;

typedef struct Arena {
  ArenaBlock *block;       // newest block
  size_t used_bytes;       // of all blocks, without headers
  size_t limit_bytes;      // 0 = no limit
  jmp_buf *guard;          // innermost guard; NULL: abort() with a message, which is a bug in the caller
} Arena;

Arena *arena_create(size_t limit_bytes);          // NULL when the machine has no memory left
void arena_destroy(Arena *arena);                 // NULL is fine

void *arena_alloc(Arena *arena, size_t bytes);    // zeroed, aligned to 16; bytes = 0 gives a valid unique pointer
void *arena_copy(Arena *arena, const void *from, size_t bytes);
char *arena_string(Arena *arena, const char *text);                      // NULL stays NULL
char *arena_string_n(Arena *arena, const char *text, size_t bytes);      // adds the terminator
char *arena_printf(Arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));

// A growing array in an arena: grows `*items` (elements of `item_bytes`) so that it holds `count + 1`. Old copies stay in the arena.
void *arena_grow(Arena *arena, void *items, size_t count, size_t *capacity, size_t item_bytes);

#define ARENA_NEW(arena, T) ((T *)arena_alloc(arena, sizeof(T)))
#define ARENA_ARRAY(arena, T, n) ((T *)arena_alloc_array(arena, (size_t)(n), sizeof(T)))
#define ARENA_PUSH(arena, items, count, capacity, value) \
  ((items) = arena_grow(arena, items, count, &(capacity), sizeof *(items)), (items)[(count)++] = (value))

void *arena_alloc_array(Arena *arena, size_t count, size_t item_bytes);  // checks the product

// First statement of a function that returns Status and allocates from `arena` in it or below it:
//   ARENA_GUARD(arena);  ... ARENA_RETURN(arena, status);
#define ARENA_GUARD(a)                                                                                    \
  jmp_buf arena_guard_here_;                                                                              \
  jmp_buf *arena_guard_outer_ = (a)->guard;                                                               \
  if (setjmp(arena_guard_here_)) {                                                                        \
    (a)->guard = arena_guard_outer_;                                                                      \
    FAIL(RESOURCE, NULL, "out of memory: the limit of %zu bytes for this compilation is reached", (a)->limit_bytes); \
  }                                                                                                       \
  (a)->guard = &arena_guard_here_
#define ARENA_RETURN(a, value)              \
  do {                                      \
    Status arena_result_ = (value);         \
    (a)->guard = arena_guard_outer_;        \
    return arena_result_;                   \
  } while (0)

#endif
