// bucket_collectives OPTIMISES: neighbouring buckets of one kind are joined until they reach the bucket size, so that a step issues fewer,
// larger collectives. Leaving the pass out changes no bit of any result: sums and norms are per element and per chunk.
#include "partition.h"
#include "pass_list.h"

static int64_t bucket_bytes(const Bucket *b) {
  int64_t elems = 0;
  for (int i = 0; i < b->n_params; i++) elems += chunks_round(type_elems(&b->types[i]));
  return elems * dtype_bytes(b->dtype);
}

// Which joined bucket each bucket goes to, in order of their first members; returns their number.
static size_t assign(const Graph *graph, int64_t limit_bytes, int32_t *target) {
  int32_t open[2] = {-1, -1};      // joined bucket being filled: frozen, trainable
  const Bucket *first[2] = {0};
  int64_t bytes[2] = {0};
  int32_t n = 0;
  for (size_t i = 0; i < graph->n_buckets; i++) {
    const Bucket *b = &graph->buckets[i];
    int kind = b->trainable;
    int64_t more = bucket_bytes(b);
    if (open[kind] < 0 || first[kind]->dtype != b->dtype || bytes[kind] + more > limit_bytes) {
      open[kind] = n++;
      first[kind] = b;
      bytes[kind] = 0;
    }
    bytes[kind] += more;
    target[i] = open[kind];
  }
  return (size_t)n;
}

static void append_params(Bucket *to, const Bucket *from) {
  for (int i = 0; i < from->n_params; i++) {
    to->params[to->n_params] = from->params[i];
    to->types[to->n_params++] = from->types[i];
  }
}

Status pass_bucket_collectives(Graph *graph, const CompileOptions *options) {
  Arena *arena = graph->arena;
  int32_t *target = ARENA_ARRAY(arena, int32_t, graph->n_buckets);
  size_t n = assign(graph, options->bucket_bytes, target);
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
    joined[target[i]].trainable = graph->buckets[i].trainable;
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
