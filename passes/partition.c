// partition DECIDES: which parameters lie in which bucket and how parameters, gradients and states lie across the ranks, from mesh and ZeRO
// stage. It moves nothing; insert_collectives lowers the decision. Every parameter starts with a bucket of its own; bucket_collectives joins.
#include <inttypes.h>

#include "../ir/hex.h"
#include "../kernels/kernel.h"
#include "../kernels/ops.h"
#include "accumulate.h"
#include "optimizer_rules.h"
#include "pass_list.h"
#include "partition.h"

int64_t chunks_round(int64_t elems) { return (elems + CHUNK_ELEMS - 1) / CHUNK_ELEMS * CHUNK_ELEMS; }

void bucket_layout(Bucket *b, int ranks) {
  int64_t end = 0;
  for (int i = 0; i < b->n_params; i++) {
    b->starts[i] = end;
    end += chunks_round(type_elems(&b->types[i]));
  }
  int64_t chunks = end / CHUNK_ELEMS;
  b->shard_elems = (chunks + ranks - 1) / ranks * CHUNK_ELEMS;
  b->elems = b->shard_elems * ranks;
}

static void record_target(Graph *graph, const CompileOptions *o) {
  Arena *arena = graph->arena;
  Recipe *r = &graph->recipe;
  r->model = arena_string(arena, o->model_path);
  char fingerprint[HEX128_BYTES];
  if (o->weights) r->fingerprint = arena_string(arena, hex128_text(o->weights->fingerprint[0], o->weights->fingerprint[1], fingerprint));
  r->memory_bytes = o->memory_bytes;
  r->host_bytes = o->host_bytes;
  r->nvme_bytes = o->nvme_bytes;
  r->chosen = arena_string(arena, o->chosen);
  r->precision = arena_string(arena, o->precision);
  r->ranks_per_process = o->ranks_per_process ? o->ranks_per_process : o->ranks;
  r->processes = o->ranks / r->ranks_per_process;
  r->threads_per_rank = 1;
  r->isa = isa_name(o->isa);
  char key[128];
  kernel_numerics_key(o->isa, key, sizeof key);
  r->numerics_key = arena_string(arena, key);
}

static Status record(Graph *graph, const CompileOptions *o) {
  int64_t k;
  TRY(micro_per_rank(o, &k));
  if (o->ranks_per_process && (o->ranks_per_process < 0 || o->ranks % o->ranks_per_process))
    FAIL(USAGE, NULL, "--ranks-per-process %d: %d ranks are no whole number of such processes; give a divisor of %d", o->ranks_per_process, o->ranks, o->ranks);
  if (o->zero < 0 || o->zero > 3) FAIL(USAGE, NULL, "--zero %d: stages are 0, 1, 2 and 3", o->zero);
  if (o->reduce_given && o->reduce == REDUCE_STEP && o->zero >= 2)
    FAIL(USAGE, NULL, "--reduce step keeps whole gradients until the end of the step, which stage %d never holds; use --reduce micro, or --zero 0 or 1", o->zero);
  if (o->keep && o->zero < 3) FAIL(USAGE, NULL, "--keep backward is for stage 3 (--zero 3): at stage %d parameters are whole all the time", o->zero);
  graph->recipe.zero = o->zero;
  graph->recipe.micro_per_rank = k;
  graph->recipe.reduce = o->reduce_given ? o->reduce : o->zero >= 2 ? REDUCE_MICRO : REDUCE_STEP;
  graph->mesh = (Mesh){.n_axes = 1, .axes = {{"dp", o->ranks}}};
  record_target(graph, o);
  return STATUS_OK;
}

// Per value: the 16-bit type that a trainable f32 parameter is cast to wherever it is read; NONE: it is read as it is, or is none.
static Dtype *find_narrow(const Graph *graph) {
  Dtype *narrow = ARENA_ARRAY(graph->arena, Dtype, graph->n_values);
  bool *wide = ARENA_ARRAY(graph->arena, bool, graph->n_values);
  for (size_t i = 0; i < graph->n_nodes; i++) {
    const Node *n = graph->nodes[i];
    for (int k = 0; k < n->n_inputs && n->phase == PHASE_MICRO; k++) {
      const Value *v = n->inputs[k];
      if (!v || v->role != ROLE_PARAM) continue;
      Dtype to = n->op == &op_Cast ? n->outputs[0]->type.dtype : DTYPE_NONE;
      bool halves = to != v->type.dtype && dtype_of_sums(to) == DTYPE_F32 && v->type.dtype == DTYPE_F32 && v->trainable;
      wide[v->id] |= !halves || (narrow[v->id] && narrow[v->id] != to);
      narrow[v->id] = to;
    }
  }
  for (size_t i = 0; i < graph->n_values; i++)
    if (wide[i]) narrow[i] = DTYPE_NONE;
  return narrow;
}

static void add_bucket(Graph *graph, const CompileOptions *o, size_t *capacity, Value *param, Dtype narrow) {
  Arena *arena = graph->arena;
  const ParamGroup *group = param->trainable ? param_group_find(o, param->name, &param->type) : NULL;
  Bucket b = {.dtype = param->type.dtype, .compute = narrow ? narrow : param->type.dtype,
              .trainable = param->trainable, .group = group ? arena_string(arena, group->text) : NULL, .n_params = 1};
  b.params = ARENA_ARRAY(arena, const char *, 1);
  b.params[0] = param->name;
  b.types = arena_copy(arena, &param->type, sizeof param->type);
  b.starts = ARENA_ARRAY(arena, int64_t, 1);
  bucket_layout(&b, graph->mesh.axes[0].size);
  param->bucket = (int32_t)graph->n_buckets;
  ARENA_PUSH(arena, graph->buckets, graph->n_buckets, *capacity, b);
}

// Canonical order: first use, so that a bucket's parameters are needed together.
static void add_buckets(Graph *graph, const CompileOptions *o) {
  size_t capacity = 0;
  const Dtype *narrow = find_narrow(graph);
  for (size_t i = 0; i < graph->n_nodes; i++) {
    const Node *n = graph->nodes[i];
    for (int k = 0; k < n->n_inputs; k++)
      if (n->inputs[k] && n->inputs[k]->role == ROLE_PARAM && n->inputs[k]->bucket < 0 && !n->inputs[k]->producer)
        add_bucket(graph, o, &capacity, n->inputs[k], narrow[n->inputs[k]->id]);
  }
}

static void place(Graph *graph, int zero) {
  for (size_t i = 0; i < graph->n_values; i++) {
    Value *v = graph->values[i];
    const Value *param = v->role == ROLE_PARAM ? (v->carry ? v->carry : v) : v->of;
    if (!param || param->bucket < 0) continue;
    v->bucket = param->bucket;
    const Placement flat = {PLACED_FLAT, param->bucket}, whole = {PLACED_WHOLE, 0}, partial = {PLACED_PARTIAL, 0};
    switch (v->role) {
    case ROLE_PARAM: v->placement[0] = zero >= 3 || (zero >= 1 && v->carry) ? flat : whole; break;   // updated in shards from stage 1 on
    case ROLE_GRAD: v->placement[0] = partial; break;      // a summand per rank; reduced to its owner (or to all) by the lowering
    default: break;
    }
  }
}

Status pass_partition(Graph *graph, const CompileOptions *options) {
  TRY(record(graph, options));
  add_buckets(graph, options);
  if (options->ranks > 1) place(graph, options->zero);
  return STATUS_OK;
}
