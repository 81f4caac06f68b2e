// The meaning part of verify_plan: a walk over the steps in their order that derives what each value is: a bucket of parameters, its gradient
// (of one micro-batch or of all, of one rank or of all), a state, the loss. Every step around the model has a rule: what it takes and what it makes of
// that. Two things are taken as given, because nothing else could tell: the bucket table says which parameters there are, and the model's own
// operators compute what they compute, each gradient of a parameter being the value that is marked as one.
#include "verify_meaning.h"

#include <inttypes.h>
#include <string.h>

#include "../ir/state.h"
#include "../kernels/kernel.h"
#include "../kernels/ops.h"

const char *meaning_name(MeaningKind kind) {
  static const char *const names[] = {
      "a value of the model", "a constant of the start", "a bucket of parameters", "a parameter", "a bucket of gradients", "an optimizer state",
      "a moving average", "a partial sum", "a loss pair", "running statistics", "a squared norm", "a direction", "sums of rows and columns",
      "norms of parameters", "norms of gradients", "the loss",
      "1 / count of the scaled loss", "1 / count", "the norm", "the gradient's scale", "the learning rate", "the step number", "the micro-batch number",
      "the number that gradients begin with"};
  _Static_assert(sizeof names / sizeof *names == MEANING_COUNT, "one name per meaning");
  return names[kind];
}

bool meaning_expect(Meanings *m, const Node *node, const Value *v, MeaningKind kind, const char *what) {
  if (v && m->of[v->id].kind == kind) return true;
  proof_defect(m->proof, "wrong_input", node, v, "step '%s' takes '%s' for its %s: that is %s, not %s", node->name, v ? v->name : "nothing", what,
               v ? meaning_name(m->of[v->id].kind) : "nothing", meaning_name(kind));
  return false;
}

enum { IN_STATISTICS = 3, OUT_STATISTICS = 1 };    // of BatchNormalization: inputs 3, 4 become outputs 1, 2

static const Value *input(const Node *node, int i) { return i < node->n_inputs ? node->inputs[i] : NULL; }
static const Value *output(const Node *node, int o) { return o < node->n_outputs ? node->outputs[o] : NULL; }

static void mean(Meanings *m, const Value *v, Meaning meaning) {
  if (v) m->of[v->id] = meaning;
}

static const Bucket *bucket_at(const Meanings *m, int32_t index) { return index >= 0 &&
    (size_t)index < m->graph->n_buckets ? &m->graph->buckets[index] : NULL; }

// ---- init ---------------------------------------------------------------------------------------------------------------------

static int32_t bucket_with(const Graph *g, const char *param) {
  for (size_t b = 0; b < g->n_buckets; b++)
    for (int i = 0; i < g->buckets[b].n_params; i++)
      if (!strcmp(g->buckets[b].params[i], param)) return (int32_t)b;
  return -1;
}

// A constant or running statistics: one whole tensor, under the value's own name.
static void load_constant(Meanings *m, const Node *node, const Value *v, const char *name) {
  Role want = m->carriers[v->id] ? ROLE_BUFFER : ROLE_CONST;
  AttrInts starts = attr_ints(node, "starts");
  bool whole = !attr_int(node, "sharded") && !attr_int(node, "part_elems") && (!starts.n || (starts.n == 1 && !starts.items[0]));
  if (attr_strings(node, "params").n != 1 || strcmp(name, v->name) || *attr_string(node, "state") || v->role != want || !whole)
    proof_defect(m->proof, "wrong_load", node, v,
                 "step '%s' loads %s'%s' into '%s', of role %s: a constant or a buffer is loaded whole, from its start, under its own name", node->name,
                 whole ? "" : "a part of ", name, v->name, role_name(v->role));
}

static bool is_average(const Value *v) { return v->role == ROLE_STATE && v->state_name && !strcmp(v->state_name, "ema"); }

static void rule_load(Meanings *m, const Node *node) {
  const Value *v = output(node, 0);
  AttrStrings params = attr_strings(node, "params");
  AttrInts starts = attr_ints(node, "starts");
  if (!v) return;
  int32_t b = params.n ? bucket_with(m->graph, params.items[0]) : -1;
  const Bucket *bucket = bucket_at(m, b);
  if (!bucket) {
    load_constant(m, node, v, params.n ? params.items[0] : "");
    return;
  }
  bool shard = attr_int(node, "sharded") && m->proof->ranks > 1, is_state = *attr_string(node, "state") != 0;
  bool average = is_average(v) && (!is_state || !strcmp(attr_string(node, "state"), "ema"));
  bool same = params.n == bucket->n_params && starts.n == params.n;
  StateShape shape = is_state ? v->state_shape : STATE_ELEMENTS;
  for (int i = 0; same && i < bucket->n_params; i++) same = !strcmp(params.items[i], bucket->params[i]) && starts.items[i] == state_start(shape, bucket, i);
  bool narrow = !is_state && bucket->compute != bucket->dtype && v->type.dtype == bucket->compute;
  Dtype want = narrow ? bucket->compute : bucket->dtype;
  int64_t part = attr_int(node, "part_elems"), lo = attr_int(node, "first"), elems = type_elems(&v->type);
  if (!same || (!is_state && v->type.dtype != want) ||
      (part ? part : elems) != state_start(shape, bucket, bucket->n_params) / (shard ? m->proof->ranks : 1))
    proof_defect(m->proof, "wrong_load", node, v, "step '%s' loads '%s', %" PRId64 " elements of %s: not the parameters of bucket %d where they lie",
                 node->name, v->name,
                 type_elems(&v->type), dtype_name(v->type.dtype), b);
  mean(m, v, (Meaning){.kind = average ? MEANS_AVERAGE : is_state ? MEANS_STATE : MEANS_PARAM, .bucket = b, .shard = shard, .narrow = narrow, .cut = part != 0, .lo = lo,
                       .source = node});
  meanings_loaded(m, node, v);
}

void meanings_loaded(Meanings *m, const Node *node, const Value *v) {
  Meaning *of = &m->of[v->id];
  if (of->kind != MEANS_PARAM || of->cut || node->phase != PHASE_INIT) return;
  if (is_average(v)) of->kind = MEANS_AVERAGE;
  if (of->kind == MEANS_AVERAGE) return;
  const Value **loaded = of->narrow ? &m->buckets[of->bucket].narrow : &m->buckets[of->bucket].param;
  bool again = *loaded && *loaded != input(node, 0);                   // it was on its way to another tier
  if (again && v->role == ROLE_ACTIVATION) return;                     // so may be an average
  if (again) proof_defect(m->proof, "wrong_load", node, v, "step '%s' loads the parameters of bucket %d again", node->name, of->bucket);
  *loaded = v;
}

static void rule_fill(Meanings *m, const Node *node) { mean(m, output(node, 0), (Meaning){.kind = MEANS_FILL, .bucket = -1, .source = node}); }

// ---- micro: parameters --------------------------------------------------------------------------------------------------------

// Is `name` what views of the parameter are called? "w", for backward "w.backward", and "w.model" where a name of ours is in the way.
static bool is_view_name(const char *name, const char *param) {
  size_t n = strlen(param);
  return !strncmp(name, param, n) && (!name[n] || name[n] == '.');
}

static void rule_unpack(Meanings *m, const Node *node) {
  const Value *flat = input(node, 0);
  if (!meaning_expect(m, node, flat, MEANS_PARAM, "bucket")) return;
  Meaning from = m->of[flat->id];
  const Bucket *b = bucket_at(m, from.bucket);
  AttrInts starts = attr_ints(node, "starts");
  if (from.shard || from.updated || from.cut || from.narrow != (b->compute != b->dtype) || node->n_outputs != b->n_params || starts.n != b->n_params) {
    proof_defect(m->proof, "wrong_parameter", node, flat, "step '%s' takes %d parameters out of '%s'; bucket %d has %d, and only all of it has them",
                 node->name, node->n_outputs, flat->name, from.bucket, b->n_params);
    return;
  }
  for (int i = 0; i < node->n_outputs; i++) {
    const Value *v = output(node, i);
    if (!v) continue;
    if (starts.items[i] != b->starts[i] || !type_same_shape(&v->type, &b->types[i]) || !is_view_name(v->name, b->params[i]))
      proof_defect(m->proof, "wrong_parameter", node, v, "step '%s' takes '%s' from element %" PRId64 " of bucket %d; there is '%s', at %" PRId64,
                   node->name, v->name,
                   starts.items[i], from.bucket, b->params[i], b->starts[i]);
    mean(m, v, (Meaning){.kind = MEANS_VIEW, .bucket = from.bucket, .slot = i});
  }
}

// What the collective says of itself is what it moves: that is how its bytes are counted.
static void check_label(Meanings *m, const Node *node, Meaning moved) {
  const Bucket *b = bucket_at(m, moved.bucket);
  const char *kind = attr_string(node, "kind"), *want = moved.kind == MEANS_GRAD ? "grad" : !b ? "control" : b->trainable ? "param" : "frozen";
  bool sums = moved.kind == MEANS_TENSOR_LIMBS || moved.kind == MEANS_FACTOR_SUMS || moved.kind == MEANS_GRAD_NORMS;
  if (moved.kind == MEANS_DIRECTION || sums) want = "optimizer";
  if (sums) moved.bucket = -1;          // no part of the bucket itself
  if (strcmp(kind, want) || attr_int(node, "bucket") != moved.bucket)
    proof_defect(m->proof, "agreement", node, input(node, 0), "step '%s' says %s of bucket %" PRId64 " and moves %s of bucket %d", node->name, kind,
                 attr_int(node, "bucket"), want, moved.bucket);
}

static void rule_all_gather(Meanings *m, const Node *node) {
  const Value *in = input(node, 0);
  Meaning meaning = in ? m->of[in->id] : (Meaning){0};
  bool whole = meaning.kind == MEANS_PARAM || meaning.kind == MEANS_GRAD || meaning.kind == MEANS_DIRECTION;
  if (!whole || meaning.cut || (!meaning.shard && m->proof->ranks > 1) || attr_int(node, "axis")) {
    proof_defect(m->proof, "wrong_input", node, in, "step '%s' gathers '%s', which is no shard of a bucket but %s", node->name,
                 in ? in->name : "nothing",
                 meaning_name(meaning.kind));
    return;
  }
  check_label(m, node, meaning);
  meaning.root = NULL;
  meaning.shard = false;
  mean(m, output(node, 0), meaning);
}

static void rule_release(Meanings *m, const Node *node) {
  const Value *in = input(node, 0);
  if (meaning_expect(m, node, in, MEANS_PARAM, "gathered bucket") && attr_int(node, "bucket") != m->of[in->id].bucket)
    proof_defect(m->proof, "agreement", node, in, "step '%s' says bucket %" PRId64 " and releases bucket %d", node->name, attr_int(node, "bucket"),
                 m->of[in->id].bucket);
}

static void rule_shard(Meanings *m, const Node *node) {
  const Value *in = input(node, 0);
  Meaning meaning = in ? m->of[in->id] : (Meaning){0};
  if ((meaning.kind != MEANS_PARAM && meaning.kind != MEANS_GRAD) || meaning.shard || attr_int(node, "parts") != m->proof->ranks) {
    proof_defect(m->proof, "wrong_input", node, in, "step '%s' takes one of %" PRId64 " parts of '%s', which is %s; it must be a whole bucket, for %d ranks", node->name,
                 attr_int(node, "parts"), in ? in->name : "nothing", meaning_name(meaning.kind), m->proof->ranks);
    return;
  }
  meaning.shard = m->proof->ranks > 1;
  mean(m, output(node, 0), meaning);
}

static void check_complete(Meanings *m, const Node *node, const Value *v);

// The narrow copy of new parameters; a complete sum of gradients, rounded once to their type.
static void rule_cast(Meanings *m, const Node *node) {
  const Value *in = input(node, 0), *out = output(node, 0);
  Meaning meaning = in ? m->of[in->id] : (Meaning){0};
  const Bucket *b = bucket_at(m, meaning.bucket);
  bool param = meaning.kind == MEANS_PARAM && meaning.updated && !meaning.narrow, grad = meaning.kind == MEANS_GRAD;
  if (!b || !(param || grad) || !out || out->type.dtype != b->compute) {
    proof_defect(m->proof, "wrong_input", node, in, "step '%s' casts '%s' to %s: that is %s; only new parameters and complete gradients are cast, to the type of "
                 "their copy", node->name, in ? in->name : "nothing", out ? dtype_name(out->type.dtype) : "nothing", meaning_name(meaning.kind));
    return;
  }
  if (grad) check_complete(m, node, in);
  meaning.narrow = param;
  meaning.root = NULL;
  mean(m, out, meaning);
}

// ---- The way of a sum ---------------------------------------------------------------------------------------------------------

// What one micro-batch of one rank adds.
static Meaning summand(const Meanings *m, MeaningKind kind, int32_t bucket) {
  return (Meaning){.kind = kind, .bucket = bucket, .over_ranks = m->proof->ranks == 1, .over_micro = m->count == 1};
}

// Is `v` marked as the gradient of that parameter? One that only backward reads has no forward view: then it goes by its name.
static bool is_gradient(const Meanings *m, const Value *v, int32_t bucket, int slot) {
  if (!v || v->role != ROLE_GRAD || !v->of || m->of[v->id].kind != MEANS_MODEL) return false;
  const Meaning *of = &m->of[v->of->id];
  if (!v->of->producer) return is_view_name(v->of->name, m->graph->buckets[bucket].params[slot]);
  return of->kind == MEANS_VIEW && of->bucket == bucket && of->slot == slot;
}

static void rule_pack(Meanings *m, const Node *node) {
  const Value *first = input(node, 0);
  AttrInts starts = attr_ints(node, "starts");
  int32_t index = output(node, 0) ? output(node, 0)->bucket : -1;
  const Bucket *b = bucket_at(m, index);
  if (!b || !b->trainable || node->n_inputs != b->n_params || starts.n != b->n_params || attr_int(node, "elems") != b->elems) {
    proof_defect(m->proof, "wrong_gradient", node, first, "step '%s' joins %d values, '%s' first: not the gradients of a bucket that is trained",
                 node->name, node->n_inputs,
                 first ? first->name : "nothing");
    return;
  }
  for (int i = 0; i < b->n_params; i++) {
    const Value *g = input(node, i);
    if (!is_gradient(m, g, index, i) || starts.items[i] != b->starts[i] || !type_same_shape(&g->type, &b->types[i]))
      proof_defect(m->proof, "wrong_gradient", node, g, "bucket %d holds '%s' at %" PRId64 ", its gradient joins '%s' at %" PRId64, index,
                   b->params[i], b->starts[i],
                   g ? g->name : "nothing", starts.items[i]);
  }
  m->buckets[index].pack = node;
  mean(m, output(node, 0), summand(m, MEANS_GRAD, index));
}

static bool is_of_micro_batch(MeaningKind kind) { return kind == MEANS_GRAD || kind == MEANS_PAIR || kind == MEANS_STATISTICS; }
static bool is_optimizers(MeaningKind kind) { return kind == MEANS_TENSOR_LIMBS || kind == MEANS_FACTOR_SUMS || kind == MEANS_GRAD_NORMS; }
static bool is_limbs(MeaningKind kind) { return kind == MEANS_LIMBS || is_optimizers(kind); }
static bool is_summed(MeaningKind kind) { return is_of_micro_batch(kind) || is_limbs(kind); }

// Sums in the update phase are of all micro-batches of the rank.
static void check_accumulated(Meanings *m, const Node *node, const Value *v) {
  const Meaning *meaning = &m->of[v->id];
  if (node->phase == PHASE_UPDATE && !is_limbs(meaning->kind) && !meaning->over_micro)
    proof_defect(m->proof, "accumulation", node, v, "step '%s' takes '%s', which is of the last micro-batch alone and not the sum over %" PRId64,
                 node->name, v->name, m->count);
}

// A sum along another axis than the first, over programs of the plan: what it adds to has another part there and is what it was otherwise.
static void rule_sum_of_programs(Meanings *m, const Node *node, Meaning meaning) {
  if (!is_summed(meaning.kind) || node->op != &op_AllReduce)
    proof_defect(m->proof, "wrong_input", node, input(node, 0), "step '%s' joins %s along a further axis; only sums are joined there, by AllReduce", node->name,
                 meaning_name(meaning.kind));
  check_label(m, node, meaning);
  mean(m, output(node, 0), meaning);
}

static void rule_reduction(Meanings *m, const Node *node) {
  const Value *in = input(node, 0);
  Meaning meaning = in ? m->of[in->id] : (Meaning){0};
  bool scatters = node->op == &op_ReduceScatter;
  if (attr_int(node, "axis")) {
    rule_sum_of_programs(m, node, meaning);
    return;
  }
  if (!is_summed(meaning.kind) || meaning.updated || meaning.cut || (scatters && meaning.kind != MEANS_GRAD)) {
    proof_defect(m->proof, "wrong_input", node, in, "step '%s' sums '%s' over ranks: that is %s", node->name, in ? in->name : "nothing",
                 meaning_name(meaning.kind));
    return;
  }
  if (meaning.over_ranks && m->proof->ranks > 1)
    proof_defect(m->proof, "reduced_twice", node, in, "step '%s' sums '%s' over ranks, which is such a sum already", node->name, in->name);
  if (node->phase == PHASE_MICRO && meaning.over_micro && m->count > 1)
    proof_defect(m->proof, "reduced_incomplete", node, in, "step '%s' sums '%s' over ranks in every micro-batch, after its sum over micro-batches",
                 node->name, in->name);
  if (!is_limbs(meaning.kind) && (node->phase == PHASE_MICRO) != (m->graph->recipe.reduce == REDUCE_MICRO))
    proof_defect(m->proof, "recipe", node, in, "step '%s' sums over ranks once a %s, and the recipe says once a %s", node->name,
                 node->phase == PHASE_MICRO ? "micro-batch" : "step", m->graph->recipe.reduce == REDUCE_MICRO ? "micro-batch" : "step");
  check_accumulated(m, node, in);
  check_label(m, node, meaning);
  BucketProof *bucket = meaning.kind == MEANS_GRAD ? &m->buckets[meaning.bucket] : NULL;
  if (bucket && bucket->reduction)
    proof_defect(m->proof, "reduced_twice", node, in, "bucket %d is reduced by step %u and by step %u", meaning.bucket, bucket->reduction->id,
                 node->id);
  if (bucket) bucket->reduction = node;
  if (meaning.kind == MEANS_LIMBS) meanings_norm_complete(m, node, in);
  meaning.over_ranks = true;
  if (scatters) meaning.shard = m->proof->ranks > 1;
  mean(m, output(node, 0), meaning);
}

// The partial sums of a tree: its own, zero at start, each becoming itself.
static void check_partials(Meanings *m, const Node *node) {
  for (int i = 2; i < node->n_inputs; i++) {
    const Value *before = node->inputs[i], *after = output(node, i - 1), *root = before && m->of[before->id].root ? m->of[before->id].root : before;
    if (!before || m->of[before->id].kind != MEANS_FILL || m->of[before->id].cut || root->role != ROLE_PARTIAL || !after ||
        (root == before && after->carry != before) || m->carriers[root->id] != 1) {
      proof_defect(m->proof, "accumulation", node, before, "step '%s' takes '%s' for its partial sum %d, which is none that it carries on itself",
                   node->name,
                   before ? before->name : "nothing", i - 2);
      continue;
    }
    mean(m, after, (Meaning){.kind = MEANS_PARTIAL, .bucket = -1, .root = root});
  }
}

static void rule_tree(Meanings *m, const Node *node) {
  const Value *in = input(node, 0);
  Meaning meaning = in ? m->of[in->id] : (Meaning){0};
  meaning_expect(m, node, input(node, 1), MEANS_MICRO, "counter");
  if (attr_int(node, "count") != m->count)
    proof_defect(m->proof, "accumulation", node, in, "step '%s' sums %" PRId64 " micro-batches; a rank has %" PRId64, node->name, attr_int(node,
                 "count"), m->count);
  if (attr_int(node, "running") != (m->graph->recipe.accumulate == ACCUMULATE_RUNNING))
    proof_defect(m->proof, "accumulation", node, in, "step '%s' adds micro-batches up in another order than the plan says, which is '%s'", node->name,
                 accumulate_name(m->graph->recipe.accumulate));
  check_partials(m, node);
  if (in && meaning.over_ranks && m->proof->ranks > 1 && dtype_of_sums(in->type.dtype) != in->type.dtype)
    proof_defect(m->proof, "accumulation", node, in, "step '%s' adds '%s', a sum over ranks that was rounded to %s although more is added to it", node->name,
                 in->name, dtype_name(in->type.dtype));
  if (!is_of_micro_batch(meaning.kind) || meaning.updated || meaning.over_micro || meaning.cut) {
    proof_defect(m->proof, "accumulation", node, in, "step '%s' sums '%s' over micro-batches: that is %s", node->name, in ? in->name : "nothing",
                 meaning.over_micro ? "such a sum already" : meaning_name(meaning.kind));
    return;
  }
  meaning.over_micro = true;
  mean(m, output(node, 0), meaning);
}

// ---- Loss and norm ------------------------------------------------------------------------------------------------------------

static void rule_pair(Meanings *m, const Node *node) {
  const Graph *g = m->graph;
  const Value *const wanted[] = {g->loss, g->loss_count};
  for (int i = 0; i < 2; i++)
    if (!wanted[i] || input(node, i) != wanted[i])
      proof_defect(m->proof, "wrong_input", node, input(node, i), "step '%s' takes '%s' for the %s, which is '%s'", node->name, input(node,
                   i) ? input(node, i)->name : "nothing",
                   i ? "count" : "loss", wanted[i] ? wanted[i]->name : "not known");
  mean(m, output(node, 0), summand(m, MEANS_PAIR, -1));
}

// `v` must be a sum over all ranks and micro-batches.
static void check_complete(Meanings *m, const Node *node, const Value *v) {
  if (!m->of[v->id].over_ranks)
    proof_defect(m->proof, "never_reduced", node, v, "step '%s' takes '%s', which is not summed over the %d ranks", node->name, v->name,
                 m->proof->ranks);
  check_accumulated(m, node, v);
}

static bool is_scaled(const Graph *g) {
  const Value *seed = graph_find_value(g, LOSS_SEED);
  return seed && seed->role == ROLE_CONTROL;
}

static void rule_unscale(Meanings *m, const Node *node) {
  meaning_expect(m, node, input(node, 0), MEANS_SCALED_COUNT, "1 / count of the scaled loss");
  meaning_expect(m, node, input(node, 1), MEANS_SEED, "number that gradients begin with");
  mean(m, output(node, 0), (Meaning){.kind = MEANS_INVERSE_COUNT, .bucket = -1});
}

static void rule_mean(Meanings *m, const Node *node) {
  if (meaning_expect(m, node, input(node, 0), MEANS_PAIR, "loss pair")) check_complete(m, node, input(node, 0));
  mean(m, output(node, 0), (Meaning){.kind = MEANS_LOSS, .bucket = -1});
  mean(m, output(node, 1), (Meaning){.kind = is_scaled(m->graph) ? MEANS_SCALED_COUNT : MEANS_INVERSE_COUNT, .bucket = -1});
  m->mean = node;
}

// What gradients are multiplied by for their norm: 1 / count, or 1 where they were on the way to being clipped by value.
static void check_factor(Meanings *m, const Node *node, bool clipped) {
  const Value *v = input(node, 0);
  const Weight *one = clipped && v ? value_const(v) : NULL;
  if (!clipped) meaning_expect(m, node, v, MEANS_INVERSE_COUNT, "inverse count");
  else if (!one || type_elems(&one->type) != 1 || element_read(one->bytes, one->type.dtype, 0) != 1)
    proof_defect(m->proof, "wrong_input", node, v, "step '%s' multiplies mean gradients again, by '%s'; clipped ones take 1", node->name, v ? v->name : "nothing");
}

// Complete gradients become means, whose elements are cut.
static void rule_clip_value(Meanings *m, const Node *node) {
  const Value *grad = input(node, 0);
  meaning_expect(m, node, input(node, 1), MEANS_INVERSE_COUNT, "inverse count");
  if (!meaning_expect(m, node, grad, MEANS_GRAD, "gradient")) return;
  check_complete(m, node, grad);
  Meaning meaning = m->of[grad->id];
  if (meaning.clipped) proof_defect(m->proof, "wrong_input", node, grad, "step '%s' clips '%s', which is clipped already", node->name, grad->name);
  m->buckets[meaning.bucket].grad = meaning.root ? meaning.root : grad;
  meaning.root = NULL;
  meaning.clipped = true;
  mean(m, output(node, 0), meaning);
}

// The gradients of all buckets, each once, all whole or all shards, all clipped by value or none.
static void rule_norm(Meanings *m, const Node *node) {
  const Graph *g = m->graph;
  const Value *first = input(node, 1);
  Meaning of = first && m->of[first->id].kind == MEANS_GRAD ? m->of[first->id] : (Meaning){0};
  check_factor(m, node, of.clipped);
  for (int i = 1; i < node->n_inputs; i++) {
    const Value *v = input(node, i);
    if (!meaning_expect(m, node, v, MEANS_GRAD, "gradient")) continue;
    check_complete(m, node, v);
    if (v->type.dtype != g->buckets[m->of[v->id].bucket].compute)
      proof_defect(m->proof, "norm", node, v, "step '%s' takes '%s' before it is rounded to %s", node->name, v->name,
                   dtype_name(g->buckets[m->of[v->id].bucket].compute));
    if (of.shard != m->of[v->id].shard)
      proof_defect(m->proof, "norm", node, v, "step '%s' mixes whole gradients and shards: the sum over ranks counts the whole ones more than once",
                   node->name);
    if (of.clipped != m->of[v->id].clipped)
      proof_defect(m->proof, "norm", node, v, "step '%s' mixes gradients that are clipped and that are not", node->name);
  }
  meanings_norm_covers(m, node);
  mean(m, output(node, 0), (Meaning){.kind = MEANS_LIMBS, .bucket = -1, .over_ranks = !of.shard, .over_micro = true, .clipped = of.clipped});
}

static void rule_clip(Meanings *m, const Node *node) {
  const Value *limbs = input(node, 1);
  bool clipped = limbs && m->of[limbs->id].kind == MEANS_LIMBS && m->of[limbs->id].clipped;
  check_factor(m, node, clipped);
  if (meaning_expect(m, node, limbs, MEANS_LIMBS, "squared norm")) {
    check_complete(m, node, limbs);
    if (!limbs->producer || limbs->producer->op != &op_AllReduce) meanings_norm_complete(m, node, limbs);
  }
  mean(m, output(node, 0), (Meaning){.kind = MEANS_NORM, .bucket = -1, .clipped = clipped});
  mean(m, output(node, 1), (Meaning){.kind = MEANS_SCALE, .bucket = -1, .clipped = clipped});
  if (!clipped) m->clip = node;
}

static void rule_rate(Meanings *m, const Node *node) {
  if (meaning_expect(m, node, input(node, 0), MEANS_LR, "learning rate")) mean(m, output(node, 0), (Meaning){.kind = MEANS_LR, .bucket = -1});
}

// ---- The walk -----------------------------------------------------------------------------------------------------------------

typedef struct Rule { const Op *op; Phase first, last; void (*follow)(Meanings *m, const Node *node); } Rule;
static const Rule rules[] = {
    {&op_Fetch, PHASE_INIT, PHASE_UPDATE, meanings_fetch},
    {&op_Offload, PHASE_INIT, PHASE_UPDATE, meanings_offload},
    {&op_Cut, PHASE_UPDATE, PHASE_UPDATE, meanings_cut},
    {&op_Join, PHASE_INIT, PHASE_UPDATE, meanings_join},
    {&op_Load, PHASE_INIT, PHASE_INIT, rule_load},
    {&op_Fill, PHASE_INIT, PHASE_INIT, rule_fill},
    {&op_Unpack, PHASE_MICRO, PHASE_MICRO, rule_unpack},
    {&op_Release, PHASE_MICRO, PHASE_MICRO, rule_release},
    {&op_Pack, PHASE_MICRO, PHASE_MICRO, rule_pack},
    {&op_LossPair, PHASE_MICRO, PHASE_MICRO, rule_pair},
    {&op_TreeAccumulate, PHASE_MICRO, PHASE_MICRO, rule_tree},
    {&op_AllGather, PHASE_MICRO, PHASE_UPDATE, rule_all_gather},
    {&op_ReduceScatter, PHASE_MICRO, PHASE_UPDATE, rule_reduction},
    {&op_AllReduce, PHASE_MICRO, PHASE_UPDATE, rule_reduction},
    {&op_Shard, PHASE_UPDATE, PHASE_UPDATE, rule_shard},
    {&op_LossMean, PHASE_UPDATE, PHASE_UPDATE, rule_mean},
    {&op_LossUnscale, PHASE_UPDATE, PHASE_UPDATE, rule_unscale},
    {&op_SquaredNorm, PHASE_UPDATE, PHASE_UPDATE, rule_norm},
    {&op_ClipScale, PHASE_UPDATE, PHASE_UPDATE, rule_clip},
    {&op_ClipValue, PHASE_UPDATE, PHASE_UPDATE, rule_clip_value},
    {&op_RateScale, PHASE_UPDATE, PHASE_UPDATE, rule_rate},
    {&op_TensorNorms, PHASE_UPDATE, PHASE_UPDATE, meanings_tensor_norms},
    {&op_MuonApply, PHASE_UPDATE, PHASE_UPDATE, meanings_apply},
    {&op_Ema, PHASE_UPDATE, PHASE_UPDATE, meanings_ema},
    {&op_FactoredSums, PHASE_UPDATE, PHASE_UPDATE, meanings_factored_sums},
    {&op_AdafactorApply, PHASE_UPDATE, PHASE_UPDATE, meanings_apply},
    {&op_LambApply, PHASE_UPDATE, PHASE_UPDATE, meanings_apply},
};

static void rule_model(Meanings *m, const Node *node) {
  for (int i = 0; i < node->n_inputs; i++) {
    const Value *v = node->inputs[i];
    MeaningKind kind = v ? m->of[v->id].kind : MEANS_MODEL;
    bool continues = kind == MEANS_STATISTICS && node->op == &op_BatchNormalization && i >= IN_STATISTICS;
    bool begins = kind == MEANS_SEED && node->op == &op_Cast && node->backward;
    if (kind != MEANS_MODEL && kind != MEANS_VIEW && !continues && !begins)
      proof_defect(m->proof, "wrong_input", node, v, "step '%s' of the model reads '%s', which is %s", node->name, v->name, meaning_name(kind));
  }
  for (int o = OUT_STATISTICS; node->op == &op_BatchNormalization && o < node->n_outputs; o++) {
    const Value *old = input(node, IN_STATISTICS + o - OUT_STATISTICS);
    Meaning meaning = summand(m, MEANS_STATISTICS, -1);
    meaning.buffer = !old ? NULL : m->of[old->id].kind == MEANS_STATISTICS ? m->of[old->id].buffer : old;
    meaning.updated = meaning.over_ranks && meaning.over_micro;
    mean(m, output(node, o), meaning);
  }
}

// Update phase: the sum of running statistics becomes their mean.
static void rule_share(Meanings *m, const Node *node) {
  const Value *sum = input(node, 0);
  const Weight *share = input(node, 1) ? value_const(input(node, 1)) : NULL;
  if (!meaning_expect(m, node, sum, MEANS_STATISTICS, "sum of statistics")) return;
  check_complete(m, node, sum);
  double want = 1.0 / (double)(m->count * m->proof->ranks), has = 0;
  if (share && type_elems(&share->type) == 1) has = element_read(share->bytes, share->type.dtype, 0);
  if (share && share->type.dtype == DTYPE_F32) want = (float)want;
  if (has != want) proof_defect(m->proof, "wrong_input", node, sum, "step '%s' multiplies the sum of '%s' by %g; its mean takes %g", node->name,
                                sum->name, has, want);
  Meaning meaning = m->of[sum->id];
  meaning.updated = true;
  mean(m, output(node, 0), meaning);
}

static Rule rule_of(const Node *node) {
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
    if (rules[i].op == node->op) return rules[i];
  if (node->op == &op_Mul && node->phase == PHASE_UPDATE) return (Rule){node->op, PHASE_UPDATE, PHASE_UPDATE, rule_share};
  if (node->op == &op_Cast && node->phase == PHASE_UPDATE) return (Rule){node->op, PHASE_UPDATE, PHASE_UPDATE, rule_cast};
  if (node->op == &op_Add && node->phase == PHASE_UPDATE) return (Rule){node->op, PHASE_UPDATE, PHASE_UPDATE, meanings_norm_sum};
  if (node->op->flags & OP_OPTIMIZER) return (Rule){node->op, PHASE_UPDATE, PHASE_UPDATE, meanings_check_optimizer};
  return (Rule){node->op, PHASE_MICRO, PHASE_MICRO, rule_model};
}

static MeaningKind control_kind(const Value *v) {
  return !strcmp(v->name, "tessera.lr") ? MEANS_LR : !strcmp(v->name, "tessera.step") ? MEANS_STEP : !strcmp(v->name,
      "tessera.micro") ? MEANS_MICRO : !strcmp(v->name, LOSS_SEED) ? MEANS_SEED : MEANS_MODEL;
}

void meanings_derive(Meanings *m) {
  const Graph *g = m->graph;
  for (size_t i = 0; i < g->n_values; i++) {
    const Value *v = g->values[i];
    m->of[i] = (Meaning){.kind = v->role == ROLE_CONTROL && !v->producer ? control_kind(v) : MEANS_MODEL, .bucket = -1};
    if (v->carry) m->carriers[v->carry->id]++;
  }
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *node = g->nodes[i];
    Rule rule = rule_of(node);
    if (node->phase < rule.first || node->phase > rule.last)
      proof_defect(m->proof, "structure", node, NULL, "step '%s' is of phase %s; %s belongs to %s", node->name, phase_name(node->phase),
                   node->op->name, phase_name(rule.first));
    else rule.follow(m, node);
  }
}
