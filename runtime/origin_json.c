#include "origin_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../ir/hex.h"

static json_t *origin_to_json(const WeightOrigin *origin) {
  char hash[HEX128_BYTES];
  json_t *dims = json_array(), *folded = json_array();
  hex128_text(origin->contents[0], origin->contents[1], hash);
  for (int d = 0; d < origin->type.rank; d++) json_array_append_new(dims, json_integer((json_int_t)origin->type.dims[d]));
  for (size_t i = 0; i < origin->n_folded_from; i++) json_array_append_new(folded, json_string(origin->folded_from[i]));
  json_t *json = json_pack("{s:s, s:s, s:o, s:s}", "name", origin->name, "dtype", dtype_name(origin->type.dtype), "dims", dims, "xxh3_128", hash);
  if (json && origin->n_folded_from) json_object_set(json, "folded_from", folded);
  if (json && origin->gates) json_object_set_new(json, "gates", json_string(origin->gates));
  json_decref(folded);
  return json;
}

json_t *origins_to_json(const WeightOrigin *origins, size_t n) {
  json_t *list = json_array();
  for (size_t i = 0; list && i < n; i++)
    if (json_array_append_new(list, origin_to_json(&origins[i]))) {
      json_decref(list);
      return NULL;
    }
  return list;
}

static Status read_type(const char *name, const char *dtype, const json_t *dims, Type *out) {
  *out = (Type){.dtype = dtype_from_name(dtype), .rank = (int)json_array_size(dims)};
  if (!out->dtype || !json_is_array(dims) || json_array_size(dims) > RANK_MAX)
    FAIL(MALFORMED, NULL, "initializer '%s': unknown dtype or wrong dims", name);
  for (int d = 0; d < out->rank; d++) out->dims[d] = json_integer_value(json_array_get(dims, (size_t)d));
  return status_context(type_check(out, NULL), "initializer '%s'", name);
}

static Status origin_from_json(json_t *json, Arena *arena, WeightOrigin *out) {
  const char *name, *dtype, *hash, *gates = NULL;
  json_t *dims, *folded = NULL;
  json_error_t error;
  if (json_unpack_ex(json, &error, 0, "{s:s, s:s, s:o, s:s, s?o, s?s}", "name", &name, "dtype", &dtype, "dims", &dims, "xxh3_128", &hash,
                     "folded_from", &folded, "gates", &gates))
    FAIL(MALFORMED, NULL, "initializers: %s", error.text);
  *out = (WeightOrigin){.name = arena_string(arena, name), .gates = arena_string(arena, gates)};
  TRY(read_type(name, dtype, dims, &out->type));
  int used = 0;
  if (sscanf(hash, "%16" SCNx64 "%16" SCNx64 "%n", &out->contents[0], &out->contents[1], &used) != 2 || hash[used])
    FAIL(MALFORMED, NULL, "initializer '%s': '%.40s' is no hash", name, hash);
  const char **names = ARENA_ARRAY(arena, const char *, json_array_size(folded));
  for (size_t i = 0; i < json_array_size(folded); i++) {
    const char *text = json_string_value(json_array_get(folded, i));
    if (!text) FAIL(MALFORMED, NULL, "initializer '%s': folded_from is no list of names", name);
    names[out->n_folded_from++] = arena_string(arena, text);
  }
  out->folded_from = names;
  return STATUS_OK;
}

Status origins_from_json(const json_t *json, Arena *arena, const WeightOrigin **out, size_t *n_out) {
  size_t n = json_array_size(json);
  WeightOrigin *origins = ARENA_ARRAY(arena, WeightOrigin, n);
  for (size_t i = 0; i < n; i++) TRY(origin_from_json(json_array_get(json, i), arena, &origins[i]));
  *out = origins;
  *n_out = n;
  return STATUS_OK;
}
