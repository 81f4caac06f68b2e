// insert_collectives LOWERS placements: parameters become flat buckets that are loaded once; a whole value is gathered where it is needed, a
// partial one is reduced where it is produced. After it nothing moves but what a node of the graph says.
//
//   init    Load bucket.B.param [and its narrow copy], Fill for states and partial sums, Load large constants
//   micro   [stored flat: AllGather, Unpack ... Release, per direction]  forward and backward  Pack [ReduceScatter] [TreeAccumulate]
//   update  [AllReduce | ReduceScatter | AllGather of gradients]  norm, clipping  optimizer per bucket  [AllGather of parameters]
#include <assert.h>
#include <inttypes.h>

#include "../kernels/ops.h"
#include "lower.h"
#include "pass_list.h"

enum { LOAD_BYTES_MIN = 1024 };    // smaller constants stay in the plan

Value *lower_name(Lower *l, Value *v, const char *format, int bucket, const char *suffix) {
  if (!v) return NULL;
  graph_claim_name(l->graph, v, arena_printf(l->graph->arena, format, bucket, suffix));
  return v;
}

Value *lower_collective(Lower *l, const Op *op, Value *x, int bucket, const char *kind, Cause cause) {
  l->emit.cause = cause;
  l->emit.cause.pass = "insert_collectives";
  return emit(&l->emit, op, INPUTS(x), ATTRS(A_INT("axis", 0), A_INT("parts", l->ranks), A_INT("bucket", bucket), A_STRING("kind", kind)));
}

// ---- What the graph says before it is rewritten -------------------------------------------------------------------------------

static void collect_params(Lower *l) {
  Graph *g = l->graph;
  for (size_t b = 0; b < g->n_buckets; b++) {
    BucketLower *lb = &l->buckets[b];
    lb->grads = ARENA_ARRAY(g->arena, Value *, g->buckets[b].n_params);
    lb->params = ARENA_ARRAY(g->arena, Value *, g->buckets[b].n_params);
    for (int d = 0; d < 2; d++) lb->views[d] = ARENA_ARRAY(g->arena, Value *, g->buckets[b].n_params);
    for (int i = 0; i < g->buckets[b].n_params; i++) {
      Value *p = graph_find_value(g, g->buckets[b].params[i]);
      assert(p && p->id < l->n_values);
      lb->params[i] = p;
      lb->stored_flat = p->placement[0].kind == PLACED_FLAT;
      l->roots[p->id] = p;
      l->slots[p->id] = i;
    }
  }
}

// Before the sum over micro-batches that `accumulate` put in.
static Value *leaf(Value *sum) { return sum->producer && sum->producer->op == &op_TreeAccumulate ? sum->producer->inputs[0] : sum; }

static void collect_grads(Lower *l) {
  for (size_t i = 0; i < l->n_old; i++) {
    Node *n = l->old[i];
    if (n->op != &op_Update) continue;
    const Value *p = n->inputs[0];
    BucketLower *lb = &l->buckets[p->bucket];
    Value *g = leaf(n->inputs[1]);
    lb->grads[l->slots[p->id]] = g;
    lb->grads_left++;
    l->grad_of[g->id] = p;
    lb->partial = g->placement[0].kind == PLACED_PARTIAL;
    lb->updated_flat = n->outputs[0]->placement[0].kind == PLACED_FLAT;
    if (!lb->update) lb->update = n;
  }
}

static void collect_sums(Lower *l) {
  for (size_t i = 0; i < l->n_old; i++) {
    const Node *n = l->old[i];
    for (int k = 0; n->phase == PHASE_UPDATE && k < n->n_inputs; k++) {
      const Value *v = n->inputs[k] ? leaf(n->inputs[k]) : NULL;
      if (v && v->producer && v->producer->phase == PHASE_MICRO && !l->grad_of[v->id]) l->summed[v->id] = true;
    }
  }
}

static bool is_view(const Node *n, int output, int input) {
  Alias a;
  return n->op->alias && n->op->alias(n, output, input, &a) && a.kind == ALIAS_VIEW;
}

// Views of parameters (and of their views) count as the parameter; then the last use of each bucket per direction.
static void collect_uses(Lower *l) {
  for (size_t b = 0; b < l->graph->n_buckets; b++) l->buckets[b].last[0] = l->buckets[b].last[1] = SIZE_MAX;
  for (size_t i = 0; i < l->n_old && l->old[i]->phase == PHASE_MICRO; i++) {
    const Node *n = l->old[i];
    for (int k = 0; k < n->n_inputs; k++) {
      const Value *v = n->inputs[k];
      Value *root = v ? l->roots[v->id] : NULL;
      if (!root) continue;
      l->buckets[root->bucket].last[n->backward] = i;
      for (int o = 0; o < n->n_outputs; o++)
        if (n->outputs[o] && is_view(n, o, k)) l->roots[n->outputs[o]->id] = root;
    }
  }
}

// ---- init ---------------------------------------------------------------------------------------------------------------------

Value *lower_fill(Lower *l, const Type *type, const char *value) {
  return emit(&l->emit, &op_Fill, NULL, 0, ATTRS(A_INTS("dims", type->dims, type->rank), A_INT("dtype", type->dtype), A_STRING("value", value)));
}

Value *lower_load(Lower *l, const char *const *names, const int64_t *starts, int n, const Type *type, bool sharded, const char *state) {
  const CompileOptions *o = l->options;
  return emit(&l->emit, &op_Load, NULL, 0,
              ATTRS(A_STRINGS("params", names, n), A_INTS("starts", starts, n), A_INTS("dims", type->dims, type->rank),
                    A_INT("dtype", type->dtype), A_INT("sharded", sharded), A_STRING("source", o->model_path ? o->model_path : ""),
                    A_STRING("fingerprint", l->graph->recipe.fingerprint ? l->graph->recipe.fingerprint : ""), A_STRING("state", state)));
}

static void init_bucket(Lower *l, int b) {
  const Bucket *bucket = &l->graph->buckets[b];
  BucketLower *lb = &l->buckets[b];
  bool narrow = bucket->compute != bucket->dtype, sharded = narrow ? lb->updated_flat : lb->stored_flat;
  l->emit.cause = (Cause){.param = bucket->params[0], .pass = "insert_collectives"};
  Type type = type_vector(bucket->dtype, sharded ? bucket->shard_elems : bucket->elems);
  Value *p = lb->param = lower_name(l, lower_load(l, bucket->params, bucket->starts, bucket->n_params, &type, sharded, ""), "bucket.%d.%s", b, "param");
  if (!p) return;
  p->role = ROLE_PARAM;
  p->trainable = bucket->trainable;
  p->bucket = b;
  p->placement[0] = sharded ? (Placement){PLACED_FLAT, b} : (Placement){PLACED_WHOLE, 0};
  lb->stored = p;
  if (!narrow) return;
  type = type_vector(bucket->compute, lb->stored_flat ? bucket->shard_elems : bucket->elems);
  Value *copy = lower_load(l, bucket->params, bucket->starts, bucket->n_params, &type, lb->stored_flat, "");
  lb->stored = lower_name(l, copy, "bucket.%d.%s", b, "narrow");
  if (!copy) return;
  copy->role = ROLE_NARROW;
  copy->bucket = b;
  copy->of = p;
  copy->placement[0] = lb->stored_flat ? (Placement){PLACED_FLAT, b} : (Placement){PLACED_WHOLE, 0};
}

// Constants whose bytes lie in the model file are loaded, not copied into the plan; so are buffers, which change.
static void init_constants(Lower *l) {
  for (size_t i = 0; i < l->n_values && !l->emit.status; i++) {
    Value *v = l->graph->values[i];
    bool large = v->role == ROLE_CONST && v->weight && v->weight->path && value_bytes(v) >= LOAD_BYTES_MIN;
    if (v->producer || !(large || v->role == ROLE_BUFFER)) continue;
    l->emit.cause = (Cause){.param = v->name, .pass = "insert_collectives"};
    Value *loaded = lower_load(l, &v->name, &(int64_t){0}, 1, &v->type, false, "");
    if (!loaded) return;
    loaded->producer->outputs[0] = v;
    v->producer = loaded->producer;
    v->weight = NULL;
  }
}

// ---- micro --------------------------------------------------------------------------------------------------------------------

// Views of the whole bucket `flat`: forward ones are the parameters' own values, backward ones are fresh.
static void unpack(Lower *l, int b, int direction, Value *flat) {
  Graph *g = l->graph;
  const Bucket *bucket = &g->buckets[b];
  BucketLower *lb = &l->buckets[b];
  int64_t *ranks = ARENA_ARRAY(g->arena, int64_t, bucket->n_params), *dims = ARENA_ARRAY(g->arena, int64_t, bucket->n_params * RANK_MAX);
  int64_t n_dims = 0;
  for (int i = 0; i < bucket->n_params; i++) {
    ranks[i] = bucket->types[i].rank;
    for (int k = 0; k < bucket->types[i].rank; k++) dims[n_dims++] = bucket->types[i].dims[k];
  }
  Node *n = emit_node(&l->emit, &op_Unpack, &flat, 1, bucket->n_params, NULL,
                      ATTRS(A_INTS("starts", bucket->starts, bucket->n_params), A_INTS("ranks", ranks, bucket->n_params), A_INTS("dims", dims, n_dims)));
  for (int i = 0; n && i < bucket->n_params; i++) {
    Value *own = lb->params[i];
    if (direction == 0) {
      n->outputs[i] = own;
      own->producer = n;
      own->output_index = i;
      own->role = ROLE_ACTIVATION;
      own->trainable = false;
      own->doc = NULL;
      own->weight = NULL;
      own->bucket = -1;
      own->placement[0] = (Placement){PLACED_WHOLE, 0};
    } else {
      graph_rename_value(g, n->outputs[i], graph_free_name(g, arena_printf(g->arena, "%s.backward", bucket->params[i])));
    }
    lb->views[direction][i] = n->outputs[i];
  }
}

// Is one gather to serve both directions?
static bool is_kept(const Lower *l, const BucketLower *lb) { return l->options->keep && lb->stored_flat && lb->last[0] != SIZE_MAX && lb->last[1] != SIZE_MAX; }

// The whole parameters of a bucket for one direction; at stage 3 gathered right before the first node that needs one of them.
static void need_bucket(Lower *l, int b, int direction, const Node *user, const Value *param) {
  BucketLower *lb = &l->buckets[b];
  if (lb->whole[direction]) return;
  if (is_kept(l, lb)) direction = 0;
  if (!lb->stored_flat) {        // whole all the time: one set of views serves both directions
    if (lb->whole[0]) return;
    lb->whole[0] = lb->whole[1] = lb->stored;
    l->emit.cause = (Cause){.param = param->name, .pass = "insert_collectives"};
    unpack(l, b, 0, lb->stored);
    lb->views[1] = lb->views[0];
    return;
  }
  l->emit.backward = direction;
  const char *kind = l->graph->buckets[b].trainable ? "param" : "frozen";
  Value *whole = lower_collective(l, &op_AllGather, lb->stored, b, kind, (Cause){.param = param->name, .node = user->origin ? user->origin : user->name});
  lb->whole[direction] = lower_name(l, whole, "bucket.%d.whole.%s", b, direction ? "backward" : "forward");
  if (whole) unpack(l, b, direction, whole);
  if (!is_kept(l, lb)) return;
  lb->whole[1] = lb->whole[0];
  lb->views[1] = lb->views[0];
}

// What a node is to read instead of `v`: the gathered parameter of its direction, or (backward) a copy of a view node of it.
static Value *lowered_input(Lower *l, const Node *user, Value *v) {
  if (!v || v->id >= l->n_values || !l->roots[v->id]) return v;
  Value *root = l->roots[v->id];
  int b = l->bucket_of[root->id];
  need_bucket(l, b, user->backward, user, root);
  if (l->emit.status) return v;
  if (v == root) return l->buckets[b].views[user->backward][l->slots[root->id]];
  if (!l->buckets[b].stored_flat || is_kept(l, &l->buckets[b]) || !user->backward || v->producer->backward) return v;
  if (l->backward_views[v->id]) return l->backward_views[v->id];
  const Node *view = v->producer;
  Node *copy = graph_make_node(l->graph, view->op, view->name, view->n_inputs, view->inputs, view->n_outputs, NULL);
  copy->attrs = view->attrs;
  copy->origin = view->origin;
  copy->backward = true;
  for (int k = 0; k < copy->n_inputs; k++) copy->inputs[k] = lowered_input(l, copy, copy->inputs[k]);
  if (!l->emit.status) l->emit.status = node_infer(l->graph, copy);
  graph_append(l->graph, copy);
  return l->backward_views[v->id] = copy->outputs[v->output_index];
}

static void release_after(Lower *l, size_t i, const Node *n) {
  for (int k = 0; k < n->n_inputs; k++) {
    const Value *root = l->old_inputs[k] && l->old_inputs[k]->id < l->n_values ? l->roots[l->old_inputs[k]->id] : NULL;
    if (!root) continue;
    int b = l->bucket_of[root->id];
    BucketLower *lb = &l->buckets[b];
    if (!lb->stored_flat || lb->last[n->backward] != i || lb->released[n->backward]) continue;
    if (is_kept(l, lb) && lb->last[!n->backward] > i) continue;        // the other direction still reads it
    lb->released[n->backward] = true;
    l->emit.backward = n->backward;
    l->emit.cause = (Cause){.param = root->name, .node = n->origin ? n->origin : n->name, .pass = "insert_collectives"};
    emit_node(&l->emit, &op_Release, &lb->whole[n->backward], 1, 0, NULL, ATTRS(A_INT("axis", 0), A_INT("bucket", b)));
  }
}

static void lower_micro_node(Lower *l, size_t i) {
  Node *n = l->old[i];
  if (n->phase == PHASE_INIT || n->op == &op_TreeAccumulate) return;   // rebuilt per bucket
  l->emit.at = NULL;
  l->emit.phase = PHASE_MICRO;
  l->old_inputs = arena_copy(l->graph->arena, n->inputs, sizeof *n->inputs * (size_t)n->n_inputs);
  for (int k = 0; k < n->n_inputs; k++) n->inputs[k] = lowered_input(l, n, n->inputs[k]);
  graph_append(l->graph, n);
  release_after(l, i, n);
  for (int k = 0; k < n->n_outputs; k++) {
    Value *v = n->outputs[k];
    if (!v || v->id >= l->n_values) continue;
    const Value *param = l->grad_of[v->id];
    if (param && --l->buckets[l->bucket_of[param->id]].grads_left == 0) lower_gradients_micro(l, l->bucket_of[param->id], n);
    if (l->summed[v->id]) lower_sum_micro(l, v);
  }
}

// ---- The pass -----------------------------------------------------------------------------------------------------------------

// Partial sums got no producer when their trees were built: they are zero at start.
static void init_partials(Lower *l) {
  Graph *g = l->graph;
  l->emit.phase = PHASE_INIT;
  l->emit.backward = false;
  for (size_t i = 0, n = g->n_nodes; i < n; i++) {
    if (g->nodes[i]->op != &op_TreeAccumulate) continue;
    for (int k = 2; k < g->nodes[i]->n_inputs && !l->emit.status; k++) {
      Value *p = g->nodes[i]->inputs[k], *zero = lower_fill(l, &p->type, "0");
      if (!zero) return;
      zero->producer->outputs[0] = p;
      p->producer = zero->producer;
    }
  }
}

// Initial values were made where they turned out to be needed.
static void sort_phases(Graph *g) {
  Node **sorted = ARENA_ARRAY(g->arena, Node *, g->n_nodes);
  size_t n = 0;
  for (int phase = 0; phase < PHASE_COUNT; phase++)
    for (size_t i = 0; i < g->n_nodes; i++)
      if (g->nodes[i]->phase == (Phase)phase) sorted[n++] = g->nodes[i];
  graph_set_nodes(g, sorted, n);
}

static void add_savings(Lower *l) {
  Graph *g = l->graph;
  g->savings = ARENA_ARRAY(g->arena, Saving, g->n_buckets);
  for (size_t b = 0; b < g->n_buckets; b++) {
    const Bucket *bucket = &g->buckets[b];
    bool kept = is_kept(l, &l->buckets[b]);
    if (!bucket->trainable || !l->buckets[b].stored_flat || (l->buckets[b].whole[1] && !kept)) continue;
    g->savings[g->n_savings++] = (Saving){(int32_t)b, l->k * (l->ranks - 1) * bucket->shard_elems * dtype_bytes(bucket->compute),
                                          kept ? "not gathered for backward: kept from forward (--keep)"
                                               : "not gathered for backward: no gradient reads these parameters"};
  }
}

static Lower *lower_create(Graph *graph, const CompileOptions *options) {
  Arena *arena = graph->arena;
  Lower *l = ARENA_NEW(arena, Lower);
  l->graph = graph;
  l->options = options;
  l->emit = (Emit){.graph = graph};
  l->ranks = graph->mesh.axes[0].size;
  l->k = graph->recipe.micro_per_rank;
  l->reduce = graph->recipe.reduce;
  l->old = graph->nodes;
  l->n_old = graph->n_nodes;
  l->n_values = graph->n_values;
  l->buckets = ARENA_ARRAY(arena, BucketLower, graph->n_buckets);
  l->roots = ARENA_ARRAY(arena, Value *, l->n_values);
  l->backward_views = ARENA_ARRAY(arena, Value *, l->n_values);
  l->replaced = ARENA_ARRAY(arena, Value *, l->n_values);
  l->summed = ARENA_ARRAY(arena, bool, l->n_values);
  l->slots = ARENA_ARRAY(arena, int, l->n_values);
  l->bucket_of = ARENA_ARRAY(arena, int32_t, l->n_values);
  l->grad_of = ARENA_ARRAY(arena, const Value *, l->n_values);
  for (size_t i = 0; i < l->n_values; i++) l->bucket_of[i] = graph->values[i]->bucket;
  graph->nodes = NULL;
  graph->n_nodes = graph->nodes_capacity = 0;
  return l;
}

Status pass_insert_collectives(Graph *graph, const CompileOptions *options) {
  TRY(lower_narrow_buckets(graph));
  Lower *l = lower_create(graph, options);
  collect_params(l);
  collect_grads(l);
  collect_sums(l);
  collect_uses(l);
  l->emit.phase = PHASE_INIT;
  for (size_t b = 0; b < graph->n_buckets && !l->emit.status; b++) init_bucket(l, (int)b);
  init_constants(l);
  TRY(l->emit.status);
  size_t i = 0;
  for (; i < l->n_old && l->old[i]->phase != PHASE_UPDATE; i++) {
    lower_micro_node(l, i);
    TRY(l->emit.status);
  }
  l->emit.phase = PHASE_UPDATE;
  l->emit.backward = false;
  lower_reductions_update(l);
  for (; i < l->n_old; i++) {
    TRY(l->emit.status);
    lower_update_node(l, l->old[i]);
  }
  TRY(l->emit.status);
  init_partials(l);
  TRY(l->emit.status);
  add_savings(l);
  sort_phases(graph);
  return STATUS_OK;
}
