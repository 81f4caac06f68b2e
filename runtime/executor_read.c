// What lies where after some steps: whole parameters, gradients and states collected from their shards, hashes, memory and bytes.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "../ir/hex.h"
#include "../kernels/limbs.h"
#include "../ir/state.h"
#include "../ir/tile.h"
#include "executor_state.h"

static const Bucket *bucket_of_param(const Graph *g, const char *param, int *out_bucket, int *out_slot) {
  for (size_t b = 0; b < g->n_buckets; b++)
    for (int i = 0; i < g->buckets[b].n_params; i++)
      if (!strcmp(g->buckets[b].params[i], param)) {
        *out_bucket = (int)b;
        *out_slot = i;
        return &g->buckets[b];
      }
  return NULL;
}

// The tile of a parameter that begins with row `first` (ir/tile.h); NULL: none.
static const Bucket *bucket_of_tile(const Graph *g, const char *whole, int64_t first, int *out_bucket, int *out_slot, Tile *tile) {
  for (size_t b = 0; g->recipe.tile_bytes && b < g->n_buckets; b++)
    for (int i = 0; i < g->buckets[b].n_params; i++)
      if (tile_is_of(g->buckets[b].params[i], whole, tile) && tile->first == first) {
        *out_bucket = (int)b;
        *out_slot = i;
        return &g->buckets[b];
      }
  return NULL;
}

static const RankState *state_of(const Executor *e, int rank) { return &e->ranks[rank - e->first_rank]; }

static char *address(const Executor *e, const Value *v, int rank) { return value_address(e->graph, v, rank, &state_of(e, rank)->arenas); }

// Bytes [at, at + n) of a rank's value, from whatever tier.
static Status copy_bytes(const Executor *e, const Value *v, int rank, int64_t at, int64_t n, void *out) {
  const RankState *r = state_of(e, rank);
  if (v->tier == TIER_NVME)
    return status_context(r->swap->ops->read(r->swap, value_swap_offset(e->graph, v, &r->arenas) + at, out, n), "rank %d: reading '%s'", r->rank, v->name);
  memcpy(out, address(e, v, rank) + at, (size_t)n);
  return NULL;
}

// Elements [start, start + n) of a bucket's flat value, wherever its shards lie; of what is whole, this process's own.
static Status collect(Executor *e, const Value *flat, int64_t start, int64_t n, void *out) {
  int64_t width = dtype_bytes(flat->type.dtype), shard = type_elems(&flat->type);
  bool cut = flat->placement[0].kind == PLACED_FLAT;
  if (cut && !executor_is_alone(e)) memset(out, 0, (size_t)(n * width));
  for (int64_t at = start; at < start + n;) {
    int64_t rank = cut ? at / shard : e->first_rank, inside = at % shard, m = shard - inside;
    if (m > start + n - at) m = start + n - at;
    if (rank >= e->first_rank && rank < e->first_rank + e->n_here)
      TRY(copy_bytes(e, flat, (int)rank, inside * width, m * width, (char *)out + (at - start) * width));
    at += m;
  }
  return cut ? executor_sum(e, out, n * width) : NULL;
}

static Status find_flat(const Executor *e, int bucket, const Bucket *b, const char *what, const char *param, const Value **out) {
  char name[256];
  snprintf(name, sizeof name, "bucket.%d.%s", bucket, what);
  const Value *v = graph_find_value(e->graph, name);
  if (!v || v->loc.buffer < 0 || v->bucket != bucket) FAIL(USAGE, param, "the plan holds no '%s' of it", what);
  int64_t want = state_start(v->state_shape, b, b->n_params);
  if (v->placement[0].kind == PLACED_FLAT) want /= e->n_ranks;
  if (type_elems(&v->type) != want || (v->placement[0].kind != PLACED_FLAT && v->placement[0].kind != PLACED_WHOLE))
    FAIL(MALFORMED, v->name, "%" PRId64 " elements for %" PRId64 " of its bucket", type_elems(&v->type), want);
  *out = v;
  return NULL;
}

// The kept gradient is that of the sum; what everybody calls the gradient is of the mean.
static Status scale_gradient(const Executor *e, Dtype dtype, void *data, int64_t elems) {
  const Value *inverse = e->graph->inverse_count;
  if (!inverse || inverse->loc.buffer < 0 || inverse->type.dtype != DTYPE_F64) FAIL(USAGE, NULL, "the plan keeps no count to divide gradients by");
  double scale = *(const double *)address(e, inverse, e->first_rank);
  for (int64_t i = 0; i < elems; i++) element_write(data, dtype, i, element_read(data, dtype, i) * scale);
  return NULL;
}

// From the last element on, so that none is written over before it is read.
static void widen_in_place(void *data, Dtype from, Dtype to, int64_t elems) {
  for (int64_t i = elems; i-- > 0 && from != to;) element_write(data, to, i, element_read(data, from, i));
}

enum { TO_THE_END = -1 };

static Status check_part(const char *name, int64_t elems, int64_t from, int64_t *n) {
  if (*n == TO_THE_END) *n = elems - from;
  if (from < 0 || *n < 0 || from > elems - *n) FAIL(USAGE, name, "it has %" PRId64 " elements, not %" PRId64 " from %" PRId64 " on", elems, *n, from);
  return NULL;
}

// Running statistics are each rank's own; rank 0's count.
static Status read_buffer(const Executor *e, const char *name, const char *which, int64_t from, int64_t n, void *out) {
  const Value *v = graph_find_value(e->graph, name);
  if (which || !v || v->role != ROLE_BUFFER || v->loc.buffer < 0) FAIL(USAGE, name, "the plan has no parameter or buffer of this name");
  int64_t elems = type_elems(&v->type), width = dtype_bytes(v->type.dtype);
  TRY(check_part(name, elems, from, &n));
  memcpy(out, address(e, v, e->first_rank) + from * width, (size_t)(n * width));
  return NULL;
}

// What `which` says of the parameter in a slot: the flat value of its bucket, and the place in it.
typedef struct Place { const Bucket *bucket; const Value *flat; int64_t start, elems; bool grad; } Place;

static Status find_place(const Executor *e, int b, int slot, const char *which, Place *out) {
  const Bucket *bucket = &e->graph->buckets[b];
  const char *param = bucket->params[slot];
  *out = (Place){.bucket = bucket, .grad = which && !strcmp(which, "grad")};
  TRY(find_flat(e, b, bucket, which ? which : "param", param, &out->flat));
  Type piece = state_piece_type(out->flat->state_shape, out->flat->type.dtype, &bucket->types[slot]);
  out->elems = type_elems(&piece);
  out->start = state_start(out->flat->state_shape, bucket, slot);
  int64_t end = state_start(out->flat->state_shape, bucket, bucket->n_params);
  if (out->start < 0 || out->start + out->elems > end) FAIL(MALFORMED, param, "it passes the end of bucket %d", b);
  return NULL;
}

static Status read_place(Executor *e, const Place *p, int64_t from, int64_t n, void *out) {
  TRY(collect(e, p->flat, p->start + from, n, out));
  if (p->grad) widen_in_place(out, p->flat->type.dtype, p->bucket->dtype, n);
  if (p->grad) TRY(scale_gradient(e, p->bucket->dtype, out, n));
  return NULL;
}

// A parameter that is cut: its tiles one after another. (A tile holds whole chunks, so that also states by blocks follow each other.)
static Status read_tiles(Executor *e, const char *param, const char *which, int64_t from, int64_t n, void *out) {
  int b, slot;
  Tile tile = {.end = 0};
  int64_t at = 0, read = 0;
  while ((n == TO_THE_END || read < n) && bucket_of_tile(e->graph, param, tile.end, &b, &slot, &tile)) {
    Place place;
    TRY(find_place(e, b, slot, which, &place));
    int64_t width = dtype_bytes(place.grad ? place.bucket->dtype : place.flat->type.dtype), first = from + read - at, m = place.elems - first;
    if (n != TO_THE_END && m > n - read) m = n - read;
    if (first < place.elems) TRY(read_place(e, &place, first, m, (char *)out + read * width));
    if (first < place.elems) read += m;
    at += place.elems;
  }
  if (from < 0 || (n != TO_THE_END && read < n)) FAIL(USAGE, param, "it has %" PRId64 " elements, not %" PRId64 " from %" PRId64 " on", at, n, from);
  return NULL;
}

static Status read_part(Executor *e, const char *param, const char *which, int64_t from, int64_t n, void *out) {
  int b, slot;
  Tile tile;
  if (!bucket_of_param(e->graph, param, &b, &slot)) {
    bool is_cut = bucket_of_tile(e->graph, param, 0, &b, &slot, &tile);
    return is_cut ? read_tiles(e, param, which, from, n, out) : read_buffer(e, param, which, from, n, out);
  }
  Place place;
  TRY(find_place(e, b, slot, which, &place));
  TRY(check_part(param, place.elems, from, &n));
  return read_place(e, &place, from, n, out);
}

Status executor_read(Executor *e, const char *param, const char *which, void *out) { return read_part(e, param, which, 0, TO_THE_END, out); }

Status executor_read_part(Executor *e, const char *param, const char *which, int64_t start, int64_t n, void *out) {
  if (n < 0) FAIL(USAGE, param, "%" PRId64 " elements of it", n);
  return read_part(e, param, which, start, n, out);
}

static Status add_norm(const Executor *e, const char *param, int b, int slot, int64_t sum[LIMBS]) {
  char name[64];
  const Bucket *bucket = &e->graph->buckets[b];
  snprintf(name, sizeof name, "bucket.%d.grad_norms", b);
  const Value *v = graph_find_value(e->graph, name);
  if (!v || v->role != ROLE_CONTROL || v->loc.buffer < 0 || v->type.dtype != DTYPE_I64 || type_elems(&v->type) != (int64_t)bucket->n_params * LIMBS)
    FAIL(USAGE, param, "the plan keeps no norms of single gradients: compile it with --param-norms");
  const int64_t *limbs = (const int64_t *)address(e, v, e->first_rank) + (int64_t)slot * LIMBS;
  for (int i = 0; i < LIMBS; i++) sum[i] += limbs[i];
  return NULL;
}

Status executor_gradient_norm(Executor *e, const char *param, double *out) {
  int b, slot;
  int64_t sum[LIMBS] = {0};
  Tile tile = {.end = 0};
  bool found = bucket_of_param(e->graph, param, &b, &slot);
  if (found) TRY(add_norm(e, param, b, slot, sum));
  while (!found && bucket_of_tile(e->graph, param, tile.end, &b, &slot, &tile)) TRY(add_norm(e, param, b, slot, sum));
  if (!found && !tile.end) FAIL(USAGE, param, "the plan has no parameter of this name");
  limbs_normalise(sum);
  *out = sqrt(limbs_to_double(sum));
  return NULL;
}

// ---- Gradients that are not finite ----------------------------------------------------------------------------------------------

// Where a gradient is not finite. Processes compare: the smallest micro-batch, else the first bucket and rank.
typedef struct Bad { int64_t found, micro, bucket, slot, rank; } Bad;

static int param_at(const Bucket *b, int64_t elem) {
  int i = b->n_params - 1;
  while (i > 0 && b->starts[i] > elem) i--;
  return i;
}

static bool find_bad_sum(const Executor *e, Bad *out) {
  for (size_t b = 0; b < e->graph->n_buckets; b++) {
    const Bucket *bucket = &e->graph->buckets[b];
    const Value *flat;
    Status status = bucket->trainable ? find_flat(e, (int)b, bucket, "grad", bucket->params[0], &flat) : status_fail(STATUS_USAGE, NULL, "frozen");
    bool found = !status;
    status_free(status);
    if (!found) continue;
    bool cut = flat->placement[0].kind == PLACED_FLAT;
    int64_t n = type_elems(&flat->type);
    for (int r = e->first_rank; r < e->first_rank + (cut ? e->n_here : 1); r++) {
      const void *at = address(e, flat, r);
      for (int64_t i = 0; i < n; i++)
        if (!isfinite(element_read(at, flat->type.dtype, i))) {
          *out = (Bad){1, -1, (int64_t)b, param_at(bucket, (cut ? r * n : 0) + i), r};
          return true;
        }
    }
  }
  return false;
}

static Bad find_bad(const Executor *e) {
  Bad bad = {0};
  for (int r = 0; r < e->n_here; r++) {
    const BadGradient *of = &e->ranks[r].queues.bad;
    if (of->bucket >= 0 && (!bad.found || of->micro < bad.micro)) bad = (Bad){1, of->micro, of->bucket, of->slot, e->ranks[r].rank};
  }
  if (!bad.found) find_bad_sum(e, &bad);
  return bad;
}

static bool comes_before(const Bad *a, const Bad *b) {
  if (!a->found || !b->found) return a->found;
  if (a->micro != b->micro) return a->micro >= 0 && (b->micro < 0 || a->micro < b->micro);
  return a->bucket != b->bucket ? a->bucket < b->bucket : a->rank < b->rank;
}

Status executor_bad_gradient(Executor *e, const char **param, int *rank, int64_t *micro) {
  int n = executor_processes(e);
  Bad mine = find_bad(e), first = {0}, *all = malloc((size_t)n * sizeof *all);
  if (!all) FAIL(RESOURCE, NULL, "no memory to name the gradient that is not finite");
  Status status = executor_gather(e, &mine, all, sizeof mine);
  for (int p = 0; p < n && !status; p++)
    if (comes_before(&all[p], &first)) first = all[p];
  free(all);
  TRY(status);
  const Bucket *bucket = first.found && (uint64_t)first.bucket < e->graph->n_buckets ? &e->graph->buckets[first.bucket] : NULL;
  *param = bucket && first.slot < bucket->n_params ? bucket->params[first.slot] : NULL;
  if (first.found) *rank = (int)first.rank;
  if (first.found) *micro = first.micro;
  return NULL;
}

// ---- Hash of all parameters ---------------------------------------------------------------------------------------------------

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

// In pieces, so that hashing needs no memory to speak of.
enum { HASH_PIECE_BYTES = 1 << 16 };

static Status hash_slot(Executor *e, int b, int slot, XXH3_state_t *state) {
  Place place;
  TRY(find_place(e, b, slot, NULL, &place));
  char piece[HASH_PIECE_BYTES];
  int64_t width = dtype_bytes(place.flat->type.dtype), step = HASH_PIECE_BYTES / width;
  for (int64_t at = 0; at < place.elems; at += step) {
    int64_t n = place.elems - at < step ? place.elems - at : step;
    TRY(read_place(e, &place, at, n, piece));
    XXH3_128bits_update(state, piece, (size_t)(n * width));
  }
  return NULL;
}

static Status hash_param(Executor *e, const char *param, XXH3_state_t *state) {
  int b, slot;
  Tile tile = {.end = 0};
  XXH3_128bits_update(state, param, strlen(param) + 1);
  if (bucket_of_param(e->graph, param, &b, &slot)) return hash_slot(e, b, slot, state);
  while (bucket_of_tile(e->graph, param, tile.end, &b, &slot, &tile)) TRY(hash_slot(e, b, slot, state));
  return NULL;
}

static Status hash_params(Executor *e, char *const *params, size_t n, XXH3_state_t *state) {
  for (size_t i = 0; i < n; i++) TRY(hash_param(e, params[i], state));
  return NULL;
}

Status executor_params_hash(Executor *e, char out[33]) {
  const Graph *g = e->graph;
  size_t n = 0, i = 0;
  for (size_t b = 0; b < g->n_buckets; b++) n += (size_t)g->buckets[b].n_params;
  char **params = calloc(n + 1, sizeof *params);
  XXH3_state_t *state = XXH3_createState();
  bool memory = params && state;
  for (size_t b = 0; memory && b < g->n_buckets; b++)
    for (int k = 0; memory && k < g->buckets[b].n_params; k++) {
      WholeParam param;
      if (bucket_whole_param(g, (int)b, k, &param)) memory = (params[i++] = strndup(param.name, param.name_bytes)) != NULL;
    }
  Status status = memory ? NULL : status_fail(STATUS_RESOURCE, NULL, "no memory to hash %zu parameters", n);
  if (!status) {
    qsort(params, i, sizeof *params, by_name);
    XXH3_128bits_reset(state);
    status = hash_params(e, params, i, state);
  }
  if (!status) {
    XXH128_hash_t h = XXH3_128bits_digest(state);
    hex128_text(h.high64, h.low64, out);
  }
  XXH3_freeState(state);
  for (size_t k = 0; params && k < i; k++) free(params[k]);
  free(params);
  return status;
}

// ---- Numbers ------------------------------------------------------------------------------------------------------------------

const SwapFile *executor_swap_file(const Executor *e) { return e->processes[0].swap; }

MemoryUse executor_memory(const Executor *e) {
  MemoryUse use = e->memory;
  for (int tier = 0; tier < TIER_COUNT; tier++) use.tiers[tier].measured_bytes = 0;
  for (int p = 0, each = e->n_here / e->n_processes; p < e->n_processes; p++) {
    for (int tier = 0; tier < MEMORY_TIERS; tier++) {
      int64_t bytes = arena_memory_resident(&e->processes[p].memory[tier]);
      for (int r = p * each; r < (p + 1) * each; r++) bytes += arena_memory_resident(&e->ranks[r].memory[tier]);
      if (bytes > use.tiers[tier].measured_bytes) use.tiers[tier].measured_bytes = bytes;
    }
    int64_t swapped = e->processes[p].swap ? swap_resident(e->processes[p].swap) : 0;
    if (swapped > use.tiers[TIER_NVME].measured_bytes) use.tiers[TIER_NVME].measured_bytes = swapped;
  }
  use.rss_peak_bytes = process_peak_bytes();
  return use;
}

static int64_t largest(const Executor *e, size_t field) {
  int64_t most = 0;
  for (int r = 0; r < e->n_here; r++) {
    int64_t bytes = *(const int64_t *)((const char *)&e->ranks[r] + field);
    if (bytes > most) most = bytes;
  }
  return most;
}

int64_t executor_sent_bytes_per_step(const Executor *e) { return largest(e, offsetof(RankState, sent_bytes)); }
int64_t executor_copied_bytes_per_step(const Executor *e) { return largest(e, offsetof(RankState, copied_bytes)); }
int64_t executor_wire_bytes_per_step(const Executor *e) {
  int64_t most = 0;
  for (int p = 0, each = e->n_here / e->n_processes; p < e->n_processes; p++) {
    int64_t bytes = 0;
    for (int r = p * each; r < (p + 1) * each; r++) bytes += e->ranks[r].wire_bytes;
    if (bytes > most) most = bytes;
  }
  return most;
}

int64_t executor_swap_read_bytes_per_step(const Executor *e) { return largest(e, offsetof(RankState, swap_read_bytes)); }
int64_t executor_swap_written_bytes_per_step(const Executor *e) { return largest(e, offsetof(RankState, swap_written_bytes)); }

double executor_swap_ms(const Executor *e) {
  double most = 0;
  for (int r = 0; r < e->n_here; r++)
    if (e->ranks[r].swap_ms > most) most = e->ranks[r].swap_ms;
  return most;
}
