// Third part of insert_collectives: the update of each bucket, by the rule of its optimizer, and the way of the new parameters back to where they
// are stored.
#include <string.h>

#include "../ir/decimal.h"
#include "../ir/state.h"
#include "../kernels/ops.h"
#include "update_steps.h"

// ---- Steps of a rule ----------------------------------------------------------------------------------------------------------

static void mark_state(BucketUpdate *u, Value *v, const char *name, StateShape shape, bool cut) {
  v->role = ROLE_STATE;
  v->state_name = name;
  v->state_shape = shape;
  v->bucket = u->index;
  v->of = u->lower->buckets[u->index].param;
  if (cut) v->placement[0] = (Placement){PLACED_FLAT, u->index};
}

Value *update_state_of(BucketUpdate *u, const char *name, StateShape shape, Dtype dtype, double initial) {
  Lower *l = u->lower;
  const Bucket *bucket = &l->graph->buckets[u->index];
  bool cut = u->sharded && state_is_cut(shape);
  int64_t *starts = ARENA_ARRAY(l->graph->arena, int64_t, bucket->n_params);
  for (int i = 0; i < bucket->n_params; i++) starts[i] = state_start(shape, bucket, i);
  Type type = type_vector(dtype, state_start(shape, bucket, bucket->n_params) / (cut ? l->ranks : 1));
  char text[DECIMAL_BYTES];
  const Emit update = l->emit;
  l->emit.phase = PHASE_INIT;
  Value *v = l->options->resume ? lower_load(l, bucket->params, starts, bucket->n_params, &type, cut, name) : lower_fill(l, &type, decimal_text(initial, text));
  l->emit.phase = update.phase;
  if (!lower_name(l, v, "bucket.%d.%s", u->index, name)) return NULL;
  mark_state(u, v, name, shape, cut);
  return v;
}

Value *update_state(BucketUpdate *u, const char *name, double initial) {
  return update_state_of(u, name, STATE_ELEMENTS, u->lower->graph->buckets[u->index].dtype, initial);
}

// `now` becomes `to`, a state or the stored parameters, for the next step.
static void carry(BucketUpdate *u, Value *now, Value *to, const char *what) {
  now->role = to->role;
  now->trainable = to->trainable;
  now->bucket = to->bucket;
  now->of = to->of;
  now->state_name = to->state_name;
  now->state_shape = to->state_shape;
  now->placement[0] = to->placement[0];
  now->carry = to;
  lower_name(u->lower, now, "bucket.%d.%s.next", u->index, what);
}

// A step named after its bucket; its outputs from `first` on become the states.
static Node *emit_bucket_step(BucketUpdate *u, const Op *op, Value *const *inputs, int n_inputs, int n_outputs, Value *const *states, int first, const AttrInit *attrs) {
  Lower *l = u->lower;
  const Node name = {.name = arena_printf(l->graph->arena, "bucket.%d", u->index)};
  l->emit.at = &name;
  Node *n = emit_node(&l->emit, op, inputs, n_inputs, n_outputs, NULL, attrs);
  l->emit.at = NULL;
  for (int i = first; n && i < n_outputs; i++) carry(u, n->outputs[i], states[i - first], states[i - first]->state_name);
  return n;
}

enum { STEP_INPUTS = 5 };      // param, grad, scale, lr, step

// States, then `more`.
static Value *emit_first(BucketUpdate *u, const Op *op, Value *const *states, int n_states, Value *const *more, int n_more, const AttrInit *attrs) {
  Value *inputs[STEP_INPUTS + STATES_MAX] = {u->param, u->grad, u->scale, u->lr, u->step};
  int n = 0;
  if (u->lower->emit.status) return NULL;
  for (int i = 0; i < n_states; i++)
    if (states[i]) inputs[STEP_INPUTS + n++] = states[i];
  for (int i = 0; i < n_more; i++) inputs[STEP_INPUTS + n + i] = more[i];
  Node *node = emit_bucket_step(u, op, inputs, STEP_INPUTS + n + n_more, 1 + n, inputs + STEP_INPUTS, 1, attrs);
  return node ? node->outputs[0] : NULL;
}

Value *update_direction(BucketUpdate *u, const Op *op, Value *const *states, int n_states, const AttrInit *attrs) {
  return emit_first(u, op, states, n_states, NULL, 0, attrs);
}

void update_step(BucketUpdate *u, const Op *op, Value *const *states, int n_states, const AttrInit *attrs) {
  u->next = update_direction(u, op, states, n_states, attrs);
}

enum { APPLY_ATTRS = 16, APPLY_INPUTS = 8 };

// Where the bucket's parameters lie (PieceAttrs), then `more`, which may be NULL.
static const AttrInit *piece_attrs(const BucketUpdate *u, const AttrInit *more) {
  Arena *arena = u->lower->graph->arena;
  const Bucket *bucket = &u->lower->graph->buckets[u->index];
  int64_t *sizes = ARENA_ARRAY(arena, int64_t, bucket->n_params);
  for (int i = 0; i < bucket->n_params; i++) sizes[i] = type_elems(&bucket->types[i]);
  AttrInit *attrs = ARENA_ARRAY(arena, AttrInit, APPLY_ATTRS);
  size_t n = 0;
  attrs[n++] = (AttrInit)A_INTS("starts", bucket->starts, bucket->n_params);
  attrs[n++] = (AttrInit)A_INTS("sizes", sizes, bucket->n_params);
  attrs[n++] = (AttrInit)A_INT("parts", u->sharded ? u->lower->ranks : 1);
  while (more && more->name && n + 1 < APPLY_ATTRS) attrs[n++] = *more++;
  return attrs;
}

// Integers that add up over ranks, where each has a part.
static Value *sum_parts(BucketUpdate *u, Value *parts) {
  const Cause cause = u->lower->emit.cause;
  if (!parts || !u->sharded || u->lower->emit.status) return parts;
  Value *sum = lower_collective(u->lower, &op_AllReduce, parts, -1, "optimizer", cause);
  u->lower->emit.cause = cause;
  return sum;
}

// The last two axes of each parameter, and how many matrices that makes.
static const AttrInit *factor_attrs(const BucketUpdate *u, const AttrInit *more) {
  Arena *arena = u->lower->graph->arena;
  const Bucket *bucket = &u->lower->graph->buckets[u->index];
  int64_t *leading = ARENA_ARRAY(arena, int64_t, bucket->n_params), *rows = ARENA_ARRAY(arena, int64_t, bucket->n_params);
  int64_t *columns = ARENA_ARRAY(arena, int64_t, bucket->n_params);
  for (int i = 0; i < bucket->n_params; i++) {
    const Type *t = &bucket->types[i];
    leading[i] = 1;
    for (int k = 0; k + 2 < t->rank; k++) leading[i] *= t->dims[k];
    rows[i] = t->dims[t->rank - 2];
    columns[i] = t->dims[t->rank - 1];
  }
  AttrInit *attrs = ARENA_ARRAY(arena, AttrInit, APPLY_ATTRS);
  size_t n = 0;
  attrs[n++] = (AttrInit)A_INTS("leading", leading, bucket->n_params);
  attrs[n++] = (AttrInit)A_INTS("rows", rows, bucket->n_params);
  attrs[n++] = (AttrInit)A_INTS("columns", columns, bucket->n_params);
  while (more && more->name && n + 1 < APPLY_ATTRS) attrs[n++] = *more++;
  return piece_attrs(u, attrs);
}

Value *update_factored(BucketUpdate *u, const Op *op, Value *const *states, int n_states, const AttrInit *attrs) {
  if (u->lower->emit.status) return NULL;
  Node *sums = emit_bucket_step(u, &op_FactoredSums, INPUTS(u->grad, u->scale, u->norm), 1, NULL, 1, factor_attrs(u, NULL));
  Value *whole = sum_parts(u, sums ? sums->outputs[0] : NULL);
  return emit_first(u, op, states, n_states, INPUTS(whole, u->norm), factor_attrs(u, attrs));
}

Value *update_norms(BucketUpdate *u, Value *direction) {
  if (u->lower->emit.status) return NULL;
  Node *n = emit_bucket_step(u, &op_TensorNorms, INPUTS(u->param, direction), 1, NULL, 1, piece_attrs(u, NULL));
  return sum_parts(u, n ? n->outputs[0] : NULL);
}

Value *update_whole(BucketUpdate *u, Value *direction) {
  const Cause cause = u->lower->emit.cause;
  if (!direction || !u->sharded || u->lower->emit.status) return direction;
  Value *whole = lower_collective(u->lower, &op_AllGather, direction, u->index, "optimizer", cause);
  u->lower->emit.cause = cause;
  return whole;
}

void update_apply(BucketUpdate *u, const Op *op, Value *direction, Value *const *more, int n_more, const AttrInit *attrs) {
  Value *inputs[APPLY_INPUTS] = {u->param, direction, u->lr};
  if (u->lower->emit.status) return;
  for (int i = 0; i < n_more; i++) inputs[3 + i] = more[i];
  Node *n = emit_bucket_step(u, op, inputs, 3 + n_more, 1, NULL, 1, piece_attrs(u, attrs));
  if (n) u->next = n->outputs[0];
}

// ---- One bucket ---------------------------------------------------------------------------------------------------------------

// The learning rate of a group; one node for all groups that scale it alike.
static Value *scaled_rate(Lower *l, Value *lr, double factor) {
  Graph *g = l->graph;
  char text[DECIMAL_BYTES];
  if (factor == 1) return lr;
  decimal_text(factor, text);
  for (size_t i = g->n_nodes; i-- > 0 && g->nodes[i]->phase == PHASE_UPDATE;)
    if (g->nodes[i]->op == &op_RateScale && !strcmp(attr_string(g->nodes[i], "factor"), text)) return g->nodes[i]->outputs[0];
  l->emit.cause = (Cause){.pass = "insert_collectives"};
  return emit(&l->emit, &op_RateScale, INPUTS(lr), ATTRS(A_STRING("factor", text)));
}

// The average begins with the parameters that the run begins with.
static void emit_ema(BucketUpdate *u, double decay) {
  Lower *l = u->lower;
  const Bucket *bucket = &l->graph->buckets[u->index];
  Type type = type_vector(bucket->dtype, u->sharded ? bucket->shard_elems : bucket->elems);
  char text[DECIMAL_BYTES];
  l->emit.phase = PHASE_INIT;
  Value *average = lower_load(l, bucket->params, bucket->starts, bucket->n_params, &type, u->sharded, l->options->resume ? "ema" : "");
  l->emit.phase = PHASE_UPDATE;
  if (!lower_name(l, average, "bucket.%d.%s", u->index, "ema")) return;
  mark_state(u, average, "ema", STATE_ELEMENTS, u->sharded);
  emit_bucket_step(u, &op_Ema, INPUTS(u->next, average), 1, &average, 0, ATTRS(A_STRING("decay", decimal_text(decay, text))));
}

static void lower_update(Lower *l, int b) {
  Graph *g = l->graph;
  BucketLower *lb = &l->buckets[b];
  const Bucket *bucket = &g->buckets[b];
  Value *const *given = lb->update->inputs;                // param, grad, scale, lr, step
  const ParamGroup *group = param_group_find(l->options, bucket->params[0], &bucket->types[0]);
  const OptimizerRule *rule = optimizer_rule_of(l->options, bucket->params[0], &bucket->types[0]);
  CompileOptions options = optimizer_rule_options(rule, l->options, group);
  bool narrow = lb->stored != lb->param, part = lb->updated_flat && !lb->stored_flat;        // part: whole parameters, updated in shards
  Value *lr = scaled_rate(l, given[3], group ? group->lr_scale : 1);
  l->emit.cause = (Cause){.param = bucket->params[0], .pass = "insert_collectives"};
  BucketUpdate u = {.lower = l, .index = b, .sharded = lb->updated_flat, .grad = lb->clipped ? lb->clipped : lb->grad,
                    .scale = l->clip_scale ? l->clip_scale : given[2], .lr = lr, .step = given[4], .norm = g->norm_report};
  u.param = part && !narrow ? emit(&l->emit, &op_Shard, INPUTS(lb->param), ATTRS(A_INT("parts", l->ranks))) : lb->param;
  if (l->emit.status) return;
  rule->emit(&u, &options);
  if (options.ema > 0 && u.next) emit_ema(&u, options.ema);
  if (narrow && u.next) {
    carry(&u, u.next, lb->param, "param");
    u.next = emit(&l->emit, &op_Cast, INPUTS(u.next), ATTRS(A_INT("to", bucket->compute)));
  }
  if (part && u.next) u.next = lower_collective(l, &op_AllGather, u.next, b, "param", (Cause){.param = bucket->params[0]});
  if (l->emit.status || !u.next) return;
  carry(&u, u.next, lb->stored, narrow ? "narrow" : "param");
}

// The norm of each gradient, as limbs, for the executor to read after the step.
static void emit_gradient_norms(Lower *l, int b) {
  BucketUpdate u = {.lower = l, .index = b, .sharded = l->buckets[b].updated_flat};
  l->emit.cause = (Cause){.param = l->graph->buckets[b].params[0], .pass = "insert_collectives"};
  Node *n = emit_bucket_step(&u, &op_TensorNorms, INPUTS(l->buckets[b].grad, l->graph->inverse_count), 1, NULL, 1, piece_attrs(&u, ATTRS(A_INT("scaled", 1))));
  Value *norms = lower_name(l, sum_parts(&u, n ? n->outputs[0] : NULL), "bucket.%d.%s", b, "grad_norms");
  if (norms) norms->role = ROLE_CONTROL;
}

// Clipped mean gradients of all buckets, their norm, and the factor that clips that. They lie beside the gradients themselves, which are read after the step.
static void clip_by_value(Lower *l) {
  Graph *g = l->graph;
  char max[DECIMAL_BYTES], max_norm[DECIMAL_BYTES];
  decimal_text(l->options->clip_value, max);
  for (size_t b = 0; b < g->n_buckets && !l->emit.status; b++) {
    BucketLower *lb = &l->buckets[b];
    if (!lb->update) continue;
    l->emit.cause = (Cause){.param = g->buckets[b].params[0], .pass = "insert_collectives"};
    lb->clipped = lower_name(l, emit(&l->emit, &op_ClipValue, INPUTS(lb->grad, g->inverse_count), ATTRS(A_STRING("max", max))), "bucket.%d.%s", (int)b, "grad.clipped");
    if (!lb->clipped) return;
    lb->clipped->role = ROLE_GRAD;
    lb->clipped->of = lb->grad->of;
    lb->clipped->bucket = lb->grad->bucket;
    lb->clipped->placement[0] = lb->grad->placement[0];
  }
  Value *one = emit_float(&l->emit, "tessera.one", DTYPE_F64, 1);
  const Cause cause = {.pass = "insert_collectives"};
  Value *limbs = lower_squared_norm(l, one, true, cause);
  l->emit.cause = cause;
  Node *clip = emit_node(&l->emit, &op_ClipScale, INPUTS(one, limbs), 2, NULL,
                         ATTRS(A_STRING("max_norm", l->options->clip_norm > 0 ? decimal_text(l->options->clip_norm, max_norm) : "")));
  if (!clip) return;
  l->clip_scale = clip->outputs[1];
  graph_claim_name(g, clip->outputs[0], "tessera.clipped_norm");
  clip->outputs[0]->role = ROLE_CONTROL;          // the executor reads it after the step
}

void lower_updates(Lower *l) {
  if (l->updates_done) return;
  l->updates_done = true;
  for (size_t b = 0; l->options->param_norms && b < l->graph->n_buckets && !l->emit.status; b++)
    if (l->buckets[b].update) emit_gradient_norms(l, (int)b);
  if (l->options->clip_value > 0) clip_by_value(l);
  for (size_t b = 0; b < l->graph->n_buckets && !l->emit.status; b++)
    if (l->buckets[b].update) lower_update(l, (int)b);
}
