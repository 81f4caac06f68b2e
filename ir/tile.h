// A tile is some rows of a parameter that tile_params has cut: a parameter of its own, named "NAME[first:end]". Its whole is what the outside knows:
// weights, checkpoints, dumps and hashes. Only graphs with recipe.tile_bytes have tiles; there no other parameter has such a name.
#ifndef TESSERA_TILE_H
#define TESSERA_TILE_H

#include <stdbool.h>

#include "graph.h"

typedef struct Tile { size_t of_bytes; int64_t first, end; } Tile;     // of_bytes: length of NAME

bool tile_parse(const char *name, Tile *out);                 // false: no such name
const char *tile_name(Arena *arena, const char *of, int64_t first, int64_t end);
bool tile_is_of(const char *name, const char *of, Tile *out); // is it a tile of that parameter?

// A parameter as the outside knows it: whole, whether it is cut or not. Tiles of one stand in the order of their rows in as many slots as it takes.
typedef struct WholeParam {
  const char *name;              // its first name_bytes bytes: it may go on, where it is that of a tile
  size_t name_bytes;
  Type type;
  bool trainable;
} WholeParam;

// The parameter that begins in a slot of a bucket; false: what lies there is a later tile of one.
bool bucket_whole_param(const Graph *graph, int bucket, int slot, WholeParam *out);

// Names of the parameters that train, as the outside knows them, in `arena`.
MUST_USE Status graph_trainable_names(const Graph *graph, Arena *arena, const char ***out, size_t *out_n);

#endif
