#include "tied_weights.h"

#include <stdlib.h>
#include <string.h>

json_t *ties_to_json(const WeightTie *ties, size_t n) {
  json_t *list = json_array();
  for (size_t i = 0; list && i < n; i++)
    if (json_array_append_new(list, json_pack("{s:s, s:s, s:b}", "kept", ties[i].kept, "tied", ties[i].tied, "transposed", (int)ties[i].transposed))) {
      json_decref(list);
      return NULL;
    }
  return list;
}

Status ties_from_json(const json_t *json, Arena *arena, const WeightTie **out, size_t *n_out) {
  size_t n = json_array_size(json);
  WeightTie *ties = ARENA_ARRAY(arena, WeightTie, n);
  for (size_t i = 0; i < n; i++) {
    const char *kept, *tied;
    int transposed;
    json_error_t error;
    if (json_unpack_ex(json_array_get(json, i), &error, 0, "{s:s, s:s, s:b}", "kept", &kept, "tied", &tied, "transposed", &transposed))
      FAIL(MALFORMED, NULL, "ties: %s", error.text);
    ties[i] = (WeightTie){arena_string(arena, kept), arena_string(arena, tied), transposed};
  }
  *out = ties;
  *n_out = n;
  return STATUS_OK;
}

const char *ties_kept(const WeightTie *ties, size_t n, const char *name) {
  for (size_t i = 0; i < n; i++)
    if (!strcmp(ties[i].tied, name)) return ties[i].kept;
  return name;
}

static const void *swapped(const Weight *w, Arena *arena) {
  int64_t rows = w->type.dims[0], cols = w->type.dims[1], width = dtype_bytes(w->type.dtype);
  char *out = arena_alloc(arena, (size_t)type_bytes(&w->type));
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < cols; c++) memcpy(out + (c * rows + r) * width, (const char *)w->bytes + (r * cols + c) * width, (size_t)width);
  return out;
}

static int by_name(const void *a, const void *b) { return strcmp(((const Weight *)a)->name, ((const Weight *)b)->name); }

Status ties_resolve(const WeightSource *params, const WeightTie *ties, size_t n, Arena *arena, WeightSource *out) {
  Weight *all = ARENA_ARRAY(arena, Weight, params->n_weights + n);
  size_t n_all = 0;
  for (size_t i = 0; i < params->n_weights; i++)
    if (ties_kept(ties, n, params->weights[i].name) == params->weights[i].name) all[n_all++] = params->weights[i];
  for (size_t i = 0; i < n; i++) {
    const Weight *kept = weights_find(params, ties[i].kept);
    if (!kept) continue;
    if (ties[i].transposed && kept->type.rank != 2) FAIL(MALFORMED, kept->name, "it is the transposed '%s' and has %d axes", ties[i].tied, kept->type.rank);
    Weight tied = *kept;
    tied.name = ties[i].tied;
    if (ties[i].transposed) {
      tied.bytes = swapped(kept, arena);
      tied.path = NULL;
      tied.mapped = false;
      tied.type.dims[0] = kept->type.dims[1];
      tied.type.dims[1] = kept->type.dims[0];
    }
    all[n_all++] = tied;
  }
  if (n_all) qsort(all, n_all, sizeof *all, by_name);
  *out = *params;
  out->weights = all;
  out->n_weights = n_all;
  return STATUS_OK;
}
