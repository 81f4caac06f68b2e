#include "tile.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// Decimal digits without leading zeros, as tile_name writes them.
static const char *read_row(const char *text, int64_t *out) {
  int64_t n = 0;
  const char *at = text;
  for (; isdigit((unsigned char)*at) && at - text < 18; at++) n = 10 * n + (*at - '0');
  *out = n;
  return at == text || (*text == '0' && at - text > 1) ? NULL : at;
}

bool tile_parse(const char *name, Tile *out) {
  const char *open = strrchr(name, '['), *at = open ? read_row(open + 1, &out->first) : NULL;
  if (!at || *at != ':') return false;
  at = read_row(at + 1, &out->end);
  out->of_bytes = (size_t)(open - name);
  return at && at[0] == ']' && !at[1] && open > name && out->first < out->end;
}

const char *tile_name(Arena *arena, const char *of, int64_t first, int64_t end) { return arena_printf(arena, "%s[%" PRId64 ":%" PRId64 "]", of, first, end); }

bool tile_is_of(const char *name, const char *of, Tile *out) {
  size_t n = strlen(of);
  return !strncmp(name, of, n) && name[n] == '[' && tile_parse(name, out) && out->of_bytes == n;
}

bool bucket_whole_param(const Graph *g, int bucket, int slot, WholeParam *out) {
  const Bucket *b = &g->buckets[bucket];
  Tile tile, other;
  *out = (WholeParam){b->params[slot], strlen(b->params[slot]), b->types[slot], b->trainable};
  if (!g->recipe.tile_bytes || !tile_parse(b->params[slot], &tile)) return true;
  if (tile.first) return false;
  out->name_bytes = tile.of_bytes;
  for (size_t k = 0; k < g->n_buckets; k++)
    for (int i = 0; i < g->buckets[k].n_params; i++) {
      const char *name = g->buckets[k].params[i];
      bool of_it = tile_parse(name, &other) && other.of_bytes == tile.of_bytes && !memcmp(name, b->params[slot], tile.of_bytes);
      if (of_it && other.end > out->type.dims[0]) out->type.dims[0] = other.end;
    }
  return true;
}

Status graph_trainable_names(const Graph *g, Arena *arena, const char ***out, size_t *out_n) {
  ARENA_GUARD(arena);
  const char **names = NULL;
  size_t n = 0, capacity = 0;
  for (size_t b = 0; b < g->n_buckets; b++)
    for (int i = 0; g->buckets[b].trainable && i < g->buckets[b].n_params; i++) {
      WholeParam whole;
      if (bucket_whole_param(g, (int)b, i, &whole)) ARENA_PUSH(arena, names, n, capacity, (const char *)arena_string_n(arena, whole.name, whole.name_bytes));
    }
  *out = names;
  *out_n = n;
  ARENA_RETURN(arena, STATUS_OK);
}
