// What the data were, in texts that a checkpoint keeps: "BYTES HASH PATH" for each file in the order of reading, else the source itself ("random", "-"). The hash
// (XXH3-128) is of pieces of the file, so that data larger than memory cost a few reads.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>
#include <xxhash.h>

#include "../ir/hex.h"
#include "data_source.h"

enum { END_BYTES = 1 << 16, PIECE_BYTES = 1 << 12, N_PIECES = 32, WHOLE_BYTES = 2 * END_BYTES + N_PIECES * PIECE_BYTES };

static Status add_piece(const DataPart *file, int64_t offset, int64_t n, XXH3_state_t *state) {
  char block[PIECE_BYTES];
  for (int64_t at = 0; at < n; at += PIECE_BYTES) {
    int64_t m = n - at < PIECE_BYTES ? n - at : PIECE_BYTES;
    TRY(data_file_read(file, DTYPE_U8, offset + at, block, DTYPE_U8, m));
    XXH3_128bits_update(state, block, (size_t)m);
  }
  return NULL;
}

// Up to WHOLE_BYTES all of it; else both ends, and pieces at equal distances between them.
static Status add_pieces(const DataPart *file, int64_t bytes, XXH3_state_t *state) {
  if (bytes <= WHOLE_BYTES) return add_piece(file, 0, bytes, state);
  TRY(add_piece(file, 0, END_BYTES, state));
  int64_t gap = (bytes - 2 * END_BYTES - PIECE_BYTES) / N_PIECES;
  for (int i = 0; i < N_PIECES; i++) TRY(add_piece(file, END_BYTES + i * gap, PIECE_BYTES, state));
  return add_piece(file, bytes - END_BYTES, END_BYTES, state);
}

static Status file_text(const DataFile *file, Arena *arena, const char **out) {
  DataPart part = {.path = file->path, .fd = file->fd};
  int64_t bytes;
  char hash[HEX128_BYTES];
  TRY(data_file_bytes(file->fd, file->path, &bytes));
  XXH3_state_t *state = XXH3_createState();
  if (!state) FAIL(RESOURCE, NULL, "no memory to hash %s", file->path);
  XXH3_128bits_reset(state);
  Status status = add_pieces(&part, bytes, state);
  XXH128_hash_t h = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  TRY(status);
  json_t *path = json_string(file->path);        // NULL: no UTF-8, which a checkpoint cannot hold
  *out = arena_printf(arena, "%" PRId64 " %s %s", bytes, hex128_text(h.high64, h.low64, hash), path ? file->path : "(its name is no UTF-8)");
  json_decref(path);
  return NULL;
}

static Status all_texts(const Data *data, Arena *arena, const char **texts, size_t *n) {
  const DataOptions *o = &data->options;
  for (size_t i = 0; i < data->n_files; i++)
    if (!i || strcmp(data->files[i].path, data->files[i - 1].path)) TRY(file_text(&data->files[i], arena, &texts[(*n)++]));
  for (size_t i = 0; i < o->n_sources; i++)
    if (!strcmp(o->sources[i], "random") || !strcmp(o->sources[i], "-")) texts[(*n)++] = arena_string(arena, o->sources[i]);
  return NULL;
}

Status data_fingerprint(const Data *data, Arena *arena, const char *const **out, size_t *n_out) {
  ARENA_GUARD(arena);
  const char **texts = ARENA_ARRAY(arena, const char *, data->n_files + data->options.n_sources);
  *out = texts;
  *n_out = 0;
  ARENA_RETURN(arena, all_texts(data, arena, texts, n_out));
}

// "'a.bin' (600 bytes, hash 1f...)"
static const char *described(const char *text, Arena *arena) {
  int64_t bytes;
  char hash[HEX128_BYTES];
  int used = 0;
  if (sscanf(text, "%" SCNd64 " %32s %n", &bytes, hash, &used) >= 2 && used) return arena_printf(arena, "'%s' (%" PRId64 " bytes, hash %s)", text + used, bytes, hash);
  return !strcmp(text, "-") ? "a stream" : arena_printf(arena, "'%s'", text);
}

// Of a file its bytes and hash, wherever it lies now.
static bool same_data(const char *a, const char *b) {
  const char *hash = strchr(a, ' '), *path = hash ? strchr(hash + 1, ' ') : NULL;
  return path ? !strncmp(a, b, (size_t)(path - a) + 1) : !strcmp(a, b);
}

static const char *difference(const char *const *before, size_t n_before, const char *const *now, size_t n_now, Arena *arena) {
  for (size_t i = 0; i < n_before || i < n_now; i++) {
    const char *was = i < n_before ? before[i] : NULL, *is = i < n_now ? now[i] : NULL;
    if (was && is && same_data(was, is)) continue;
    return arena_printf(arena, "%s, and now %s", was ? arena_printf(arena, "had %s", described(was, arena)) : "ended there",
                        is ? arena_printf(arena, "comes %s", described(is, arena)) : "they end before it");
  }
  return NULL;
}

Status data_difference(const char *const *before, size_t n_before, const char *const *now, size_t n_now, Arena *arena, const char **out) {
  ARENA_GUARD(arena);
  *out = difference(before, n_before, now, n_now, arena);
  ARENA_RETURN(arena, STATUS_OK);
}
