// Parameters under several names (WeightTie): in the meta.json of checkpoints, [{"kept", "tied", "transposed"}, ...], and their values by every name.
#ifndef TESSERA_TIED_WEIGHTS_H
#define TESSERA_TIED_WEIGHTS_H

#include <jansson.h>

#include "../ir/arena.h"
#include "../ir/weights.h"

json_t *ties_to_json(const WeightTie *ties, size_t n);                   // a new reference; NULL: out of memory, or a name is no UTF-8
// Strings are copied into `arena`; call under its guard. MALFORMED where the JSON is not of that form.
MUST_USE Status ties_from_json(const json_t *json, Arena *arena, const WeightTie **out, size_t *n_out);

// `params` without tied names and, for each tie whose kept one is among them, the tied name with its values; in name order, in `arena`. Swapped
// values are copies there, others are borrowed. Call under the arena's guard.
MUST_USE Status ties_resolve(const WeightSource *params, const WeightTie *ties, size_t n, Arena *arena, WeightSource *out);

// The name under which `name` is kept: its own where it is not tied.
const char *ties_kept(const WeightTie *ties, size_t n, const char *name);

#endif
