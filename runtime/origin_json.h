// Origins of initial weights as JSON, for the meta.json of checkpoints:
//   [{"name", "dtype", "dims": [...], "xxh3_128": "hex", "folded_from": [...], "gates": "LSTM"}, ...]; the last two where there are any.
#ifndef TESSERA_ORIGIN_JSON_H
#define TESSERA_ORIGIN_JSON_H

#include <jansson.h>

#include "../ir/arena.h"
#include "../ir/weights.h"

json_t *origins_to_json(const WeightOrigin *origins, size_t n);          // a new reference; NULL: out of memory, or a name is no UTF-8
// Strings are copied into `arena`; call under its guard. MALFORMED where the JSON is not of that form.
MUST_USE Status origins_from_json(const json_t *json, Arena *arena, const WeightOrigin **out, size_t *n_out);

#endif
