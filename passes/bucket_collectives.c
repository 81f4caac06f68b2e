// bucket_collectives OPTIMISES: neighbouring buckets of one kind are joined until they reach the bucket size, so that a step issues fewer,
// larger collectives. Leaving the pass out changes no bit of any result: sums and norms are per element and per chunk.
#include "optimizer_rules.h"
#include "partition.h"
#include "pass_list.h"

static int64_t bucket_bytes(const Bucket *b) {
  int64_t elems = 0;
  for (int i = 0; i < b->n_params; i++) elems += chunks_round(type_elems(&b->types[i]));
  return elems * dtype_bytes(b->compute);
}

typedef struct Open { const Bucket *first; int32_t target; int64_t bytes; } Open;    // joined bucket that is being filled

// Only parameters that are updated alike share a bucket.
static bool alike(const CompileOptions *o, const Bucket *a, const Bucket *b) {
  if (a->trainable != b->trainable || a->dtype != b->dtype || a->compute != b->compute) return false;
  return !a->trainable || optimizer_alike(o, a->params[0], &a->types[0], b->params[0], &b->types[0]);
}

// Which joined bucket each bucket goes to, in order of their first members; returns their number.
static size_t assign(const Graph *graph, const CompileOptions *o, int32_t *target) {
  Open *open = ARENA_ARRAY(graph->arena, Open, graph->n_buckets);     // one of each kind
  size_t n_open = 0;
  int32_t n = 0;
  for (size_t i = 0; i < graph->n_buckets; i++) {
    const Bucket *b = &graph->buckets[i];
    int64_t more = bucket_bytes(b);
    size_t k = 0;
    while (k < n_open && !alike(o, open[k].first, b)) k++;
    if (k == n_open) n_open++;
    if (!open[k].first || open[k].bytes + more > graph->recipe.bucket_bytes) open[k] = (Open){b, n++, 0};
    open[k].bytes += more;
    target[i] = open[k].target;
  }
  return (size_t)n;
}

static void append_params(Bucket *to, const Bucket *from) {
  for (int i = 0; i < from->n_params; i++) {
    to->params[to->n_params] = from->params[i];
    to->types[to->n_params++] = from->types[i];
  }
}

// About an eighth of what trains, a power of two: several buckets, so that neither all gradients nor all gathered parameters are there at a time; few enough
// that each is worth a collective.
static int64_t auto_bytes(const Graph *graph) {
  const int64_t least = INT64_C(64) << 10, most = INT64_C(16) << 20;
  int64_t trainable_bytes = 0, bytes = least;
  for (size_t i = 0; i < graph->n_buckets; i++)
    if (graph->buckets[i].trainable) trainable_bytes += bucket_bytes(&graph->buckets[i]);
  while (bytes < most && 2 * bytes <= trainable_bytes / 8) bytes *= 2;
  return bytes;
}

Status pass_bucket_collectives(Graph *graph, const CompileOptions *options) {
  Arena *arena = graph->arena;
  int32_t *target = ARENA_ARRAY(arena, int32_t, graph->n_buckets);
  graph->recipe.bucket_bytes = options->bucket_bytes ? options->bucket_bytes : auto_bytes(graph);
  if (!options->bucket_bytes && options->tile_bytes && options->tile_bytes < graph->recipe.bucket_bytes)
    graph->recipe.bucket_bytes = options->tile_bytes;                  // else tiles would be joined again
  size_t n = assign(graph, options, target);
  Bucket *joined = ARENA_ARRAY(arena, Bucket, n);
  for (size_t i = 0; i < graph->n_buckets; i++) joined[target[i]].n_params += graph->buckets[i].n_params;
  for (size_t j = 0; j < n; j++) {
    joined[j].params = ARENA_ARRAY(arena, const char *, joined[j].n_params);
    joined[j].types = ARENA_ARRAY(arena, Type, joined[j].n_params);
    joined[j].starts = ARENA_ARRAY(arena, int64_t, joined[j].n_params);
    joined[j].n_params = 0;
  }
  for (size_t i = 0; i < graph->n_buckets; i++) {
    joined[target[i]].dtype = graph->buckets[i].dtype;
    joined[target[i]].compute = graph->buckets[i].compute;
    joined[target[i]].trainable = graph->buckets[i].trainable;
    joined[target[i]].group = graph->buckets[i].group;
    append_params(&joined[target[i]], &graph->buckets[i]);
  }
  for (size_t j = 0; j < n; j++) bucket_layout(&joined[j], graph->mesh.axes[0].size);
  graph->buckets = joined;
  graph->n_buckets = n;
  for (size_t i = 0; i < graph->n_values; i++) {
    Value *v = graph->values[i];
    if (v->bucket >= 0) v->bucket = target[v->bucket];
    if (v->placement[0].kind == PLACED_FLAT) v->placement[0].arg = v->bucket;
  }
  return STATUS_OK;
}
