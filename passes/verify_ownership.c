// The ownership part of verify_plan: each bucket is loaded once, each trainable one is updated once, with its own gradient, states and numbers; what
// becomes what for the next round; and what values say of themselves, which checkpoints and reports rely on, is what they are.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/state.h"
#include "../kernels/kernel.h"
#include "../kernels/ops.h"
#include "../kernels/optimizer.h"
#include "verify_meaning.h"

// ---- The optimizer step -------------------------------------------------------------------------------------------------------

// A state: this bucket's, of this step alone, carried by its own output.
static void check_state(Meanings *m, const Node *node, int i, Meaning param) {
  const Value *at = node->inputs[i], *next = i - IN_STATE + 1 < node->n_outputs ? node->outputs[i - IN_STATE + 1] : NULL;
  if (!at) return;
  Meaning meaning = m->of[at->id];
  const Value *v = meaning.root ? meaning.root : at;       // where it lives
  bool shard = param.shard && state_is_cut(v->state_shape), here = v == at;
  bool begins = meaning.kind == MEANS_FILL || (meaning.kind == MEANS_STATE && meaning.bucket == param.bucket && meaning.shard == shard && !meaning.updated);
  int64_t blocks = v->state_shape == STATE_BLOCKS ? STATE_BLOCK_ELEMS : 1;
  if (meaning.cut != param.cut || meaning.lo * blocks != param.lo) begins = false;
  if (!begins || v->role != ROLE_STATE || v->bucket != param.bucket || !next || (here && next->carry != v) || m->carriers[v->id] != 1) {
    proof_defect(m->proof, "wrong_state", node, v, "step '%s' takes '%s' for state %d of bucket %d, which is none that it carries on itself",
                 node->name, v->name, i - IN_STATE,
                 param.bucket);
    return;
  }
  int64_t elems = state_start(v->state_shape, &m->graph->buckets[param.bucket], m->graph->buckets[param.bucket].n_params);
  if (shard) elems /= m->proof->ranks;
  if (type_elems(&v->type) != elems || (here && next->state_shape != v->state_shape))
    proof_defect(m->proof, "wrong_state", node, v, "'%s' has %" PRId64 " elements; a state of %s has %" PRId64, v->name, type_elems(&v->type),
                 state_shape_name(v->state_shape), elems);
  bool may_start_above_zero = node->op == &op_Adagrad || node->op == &op_ModelAdagrad;
  if (meaning.kind == MEANS_FILL && !may_start_above_zero && strtod(attr_string(meaning.source, "value"), NULL) != 0)
    proof_defect(m->proof, "wrong_state", node, v, "'%s' starts at %s; states of %s start at 0", v->name, attr_string(meaning.source, "value"),
                 node->op->name);
  if (meaning.kind == MEANS_STATE && meaning.source && (!v->state_name || strcmp(attr_string(meaning.source, "state"), v->state_name)))
    proof_defect(m->proof, "wrong_state", node, v, "'%s' is loaded from the state '%s'", v->name, attr_string(meaning.source, "state"));
  for (int k = IN_STATE; k < i; k++) {
    const Value *other = !node->inputs[k] ? NULL : m->of[node->inputs[k]->id].root ? m->of[node->inputs[k]->id].root : node->inputs[k];
    if (other && v->state_name && other->state_name && !strcmp(other->state_name, v->state_name))
      proof_defect(m->proof, "wrong_state", node, v, "'%s' and '%s' are both stored as '%s'", other->name, v->name, v->state_name);
  }
  Meaning state = {.kind = MEANS_STATE, .bucket = param.bucket, .shard = shard, .cut = meaning.cut, .lo = meaning.lo, .root = meaning.root};
  m->of[at->id] = state;
  state.updated = true;
  state.root = v;
  m->of[next->id] = state;
}

static void check_gradient(Meanings *m, const Node *node, const Value *grad, Meaning param) {
  Meaning meaning = grad ? m->of[grad->id] : (Meaning){0};
  const Value *p = node->inputs[IN_PARAM];
  if (meaning.kind != MEANS_GRAD || meaning.bucket != param.bucket || meaning.shard != param.shard || meaning.cut != param.cut || meaning.lo != param.lo) {
    proof_defect(m->proof, "wrong_gradient", node, p, "step '%s' updates '%s' with '%s', which is no such gradient of bucket %d but %s", node->name,
                 p->name,
                 grad ? grad->name : "nothing", param.bucket, meaning_name(meaning.kind));
    return;
  }
  if (!meaning.over_ranks)
    proof_defect(m->proof, "never_reduced", node, p, "the gradient of '%s' is not summed over the %d ranks", p->name, m->proof->ranks);
  if (!meaning.over_micro)
    proof_defect(m->proof, "accumulation", node, p, "the gradient of '%s' is of the last micro-batch alone and not the sum over %" PRId64, p->name,
                 m->count);
}

void meanings_check_optimizer(Meanings *m, const Node *node) {
  const Value *param = node->n_inputs > IN_T ? node->inputs[IN_PARAM] : NULL;
  if (!meaning_expect(m, node, param, MEANS_PARAM, "parameters")) return;
  Meaning meaning = m->of[param->id];
  BucketProof *bucket = &m->buckets[meaning.bucket];
  if (meaning.narrow)
    proof_defect(m->proof, "wrong_parameter", node, param, "step '%s' updates '%s', the narrow copy of bucket %d and not its parameters", node->name, param->name,
                 meaning.bucket);
  if (meaning.updated || bucket->updated > meaning.lo)
    proof_defect(m->proof, "updated_twice", node, param, "bucket %d is updated by step %u and by step %u", meaning.bucket,
                 bucket->optimizer ? bucket->optimizer->id : 0,
                 node->id);
  if (bucket->updated < meaning.lo)
    proof_defect(m->proof, "never_updated", node, param, "no step updates elements [%" PRId64 ", %" PRId64 ") of bucket %d before step '%s'", bucket->updated, meaning.lo,
                 meaning.bucket, node->name);
  bucket->updated = meaning.lo + type_elems(&param->type);
  bucket->optimizer = node;
  check_gradient(m, node, node->inputs[IN_GRAD], meaning);
  const Value *grad = node->inputs[IN_GRAD], *scale = node->inputs[IN_SCALE];
  if (meaning_expect(m, node, scale, MEANS_SCALE, "scale") && grad && m->of[grad->id].clipped != m->of[scale->id].clipped)
    proof_defect(m->proof, "wrong_input", node, scale, "step '%s' multiplies gradients that are %sclipped by value by the factor of those that are %s", node->name,
                 m->of[grad->id].clipped ? "" : "not ", m->of[grad->id].clipped ? "not" : "clipped");
  meaning_expect(m, node, node->inputs[IN_LR], MEANS_LR, "learning rate");
  meaning_expect(m, node, node->inputs[IN_T], MEANS_STEP, "step number");
  bool factored = node->op == &op_AdafactorDirection && attr_int(node, "factored");          // takes more than states
  for (int i = IN_STATE; i < (factored ? IN_STATE + 2 : node->n_inputs); i++) check_state(m, node, i, meaning);
  if (factored) meanings_check_extra(m, node, meaning);
  bool direction = node->op->flags & OP_DIRECTION;
  if (direction) meaning.kind = MEANS_DIRECTION;
  else meaning.updated = true;
  if (!direction) bucket->apply = node;
  if (node->n_outputs && node->outputs[0]) m->of[node->outputs[0]->id] = meaning;
}

// ---- What becomes what --------------------------------------------------------------------------------------------------------

static void check_carry(Meanings *m, const Value *v) {
  const Value *to = v->carry;
  Meaning from = m->of[v->id], into = m->of[to->id];
  bool right;
  switch (from.kind) {
  case MEANS_PARAM: right = !from.cut && from.updated && !into.updated && into.kind == MEANS_PARAM && from.bucket == into.bucket &&
      from.shard == into.shard && from.narrow == into.narrow; break;
  case MEANS_STATE: case MEANS_AVERAGE: right = !from.cut && from.updated && (!from.root || from.root == to); break;      // and by its step's rule
  case MEANS_PARTIAL: right = !from.root || from.root == to; break;
  case MEANS_STATISTICS: right = from.updated && v->role == ROLE_BUFFER && to->role == ROLE_BUFFER && from.buffer == to; break;
  default: right = false;
  }
  if (!right || m->carriers[to->id] > 1)
    proof_defect(m->proof, "carry", v->producer, v, "'%s', %s, becomes '%s', %s%s", v->name, meaning_name(from.kind), to->name,
                 meaning_name(into.kind),
                 m->carriers[to->id] > 1 ? ", and is not the only one" : "");
}

// ---- What values say of themselves --------------------------------------------------------------------------------------------

// Checkpoints and reports find the parts of a bucket by name, and where they lie by placement.
void meanings_check_label(Meanings *m, const Value *v, Role role, int32_t bucket, bool shard, const char *what) {
  char name[256];
  snprintf(name, sizeof name, "bucket.%d.%s", bucket, what ? what : "");
  Placement want = {shard ? PLACED_FLAT : PLACED_WHOLE, shard ? bucket : 0}, has = v->placement[0];
  bool trainable = m->graph->buckets[bucket].trainable;
  if (has.kind != want.kind || (shard && has.arg != bucket))
    proof_defect(m->proof, "placement", v->producer, v, "'%s' is %s of bucket %d, and its placement says otherwise", v->name,
                 shard ? "a shard" : "the whole", bucket);
  if (v->role != role || v->bucket != bucket || !what || strcmp(v->name, name) || (role == ROLE_PARAM && v->trainable != trainable))
    proof_defect(m->proof, "label", v->producer, v, "'%s' is the %s of bucket %d: it must be called '%s' and have role and bucket of it", v->name,
                 role_name(role), bucket, name);
}

static void check_labels(Meanings *m, int32_t b) {
  const BucketProof *bucket = &m->buckets[b];
  const Node *node = bucket->optimizer;
  if (bucket->param) meanings_check_label(m, bucket->param, ROLE_PARAM, b, m->of[bucket->param->id].shard, "param");
  if (bucket->narrow) meanings_check_label(m, bucket->narrow, ROLE_NARROW, b, m->of[bucket->narrow->id].shard, "narrow");
  for (int i = IN_STATE; node && i < node->n_inputs; i++) {
    const Value *v = node->inputs[i];
    Meaning of = v ? m->of[v->id] : (Meaning){0};
    if (of.kind == MEANS_STATE && of.root) v = of.root;
    if (of.kind == MEANS_STATE) meanings_check_label(m, v, ROLE_STATE, b, of.shard, v->state_name);
  }
  const Value *grad = node ? node->inputs[IN_GRAD] : NULL;
  if (!grad || m->of[grad->id].kind != MEANS_GRAD) return;
  if (m->of[grad->id].root) grad = m->of[grad->id].root;
  bool clipped = m->of[grad->id].clipped;
  meanings_check_label(m, grad, ROLE_GRAD, b, m->of[grad->id].shard, clipped ? "grad.clipped" : "grad");
  if (clipped && bucket->grad) meanings_check_label(m, bucket->grad, ROLE_GRAD, b, m->of[grad->id].shard, "grad");
}

static void check_report(Meanings *m, const Value *v, MeaningKind kind, const char *what) {
  if (!v || m->of[v->id].kind != kind)
    proof_defect(m->proof, "report", v ? v->producer : NULL, v, "the plan reports '%s' as its %s, which is %s", v ? v->name : "nothing", what,
                 v ? meaning_name(m->of[v->id].kind) : "nothing");
}

// ---- Buckets ------------------------------------------------------------------------------------------------------------------

// What the report reads as the norms of a bucket's gradients.
static void check_gradient_norms(Meanings *m, int32_t b) {
  char name[64];
  snprintf(name, sizeof name, "bucket.%d.grad_norms", b);
  const Value *v = graph_find_value(m->graph, name);
  if (!v || v->role != ROLE_CONTROL) return;
  Meaning of = m->of[v->id];
  if (of.kind != MEANS_GRAD_NORMS || of.bucket != b || !of.over_ranks)
    proof_defect(m->proof, "report", v->producer, v, "the plan reports '%s' as the norms of bucket %d, which is %s%s", v->name, b, meaning_name(of.kind),
                 of.over_ranks ? "" : ", not summed over the ranks");
}

static void check_bucket(Meanings *m, size_t index) {
  const Bucket *b = &m->graph->buckets[index];
  const BucketProof *proof = &m->buckets[index];
  int zero = m->proof->ranks > 1 ? m->graph->recipe.zero : 0;
  if (!proof->param) proof_defect(m->proof, "wrong_load", NULL, NULL, "nothing loads bucket %zu ('%s', ...)", index, b->n_params ? b->params[0] : "");
  check_gradient_norms(m, (int32_t)index);
  check_labels(m, (int32_t)index);
  if (!b->trainable) {
    const Node *node = proof->optimizer ? proof->optimizer : proof->reduction;
    if (node) proof_defect(m->proof, "bucket", node, NULL, "bucket %zu is frozen, yet it is reduced or updated", index);
  } else if (!proof->optimizer || !proof->apply) {
    proof_defect(m->proof, "never_updated", NULL, proof->param, "no step updates bucket %zu ('%s', ...)", index, b->n_params ? b->params[0] : "");
  } else if (proof->param && !m->carriers[proof->param->id]) {
    proof_defect(m->proof, "not_carried", proof->optimizer, proof->param, "the new value of '%s' is lost: no later step reads it",
                 proof->param->name);
  }
  if (b->compute != b->dtype && (!proof->narrow || !m->carriers[proof->narrow->id]))
    proof_defect(m->proof, proof->narrow ? "not_carried" : "wrong_load", proof->optimizer, proof->param, "bucket %zu is read as %s, and nothing %s that copy of it",
                 index, dtype_name(b->compute), proof->narrow ? "renews" : "loads");
  const Value *read = proof->narrow ? proof->narrow : proof->param;
  if (!proof->param) return;
  bool shard = m->of[read->id].shard, part = proof->optimizer && m->of[proof->optimizer->inputs[IN_PARAM]->id].shard;
  if (shard != (zero >= 3) || (proof->optimizer && part != (zero >= 1)))
    proof_defect(m->proof, "recipe", proof->optimizer, proof->param, "the recipe says stage %d; bucket %zu is %s and updated %s",
                 m->graph->recipe.zero, index,
                 shard ? "sharded" : "whole", part ? "in shards" : "whole");
}

void proof_ownership(Proof *proof) {
  const Graph *g = proof->graph;
  Meanings m = {.proof = proof, .graph = g, .count = g->recipe.micro_per_rank};
  m.of = ARENA_ARRAY(proof->arena, Meaning, g->n_values);
  m.carriers = ARENA_ARRAY(proof->arena, uint32_t, g->n_values);
  m.buckets = ARENA_ARRAY(proof->arena, BucketProof, g->n_buckets);
  meanings_derive(&m);
  for (size_t i = 0; i < g->n_values; i++)
    if (g->values[i]->carry) check_carry(&m, g->values[i]);
  for (size_t b = 0; b < g->n_buckets; b++) check_bucket(&m, b);
  check_report(&m, g->loss_report, MEANS_LOSS, "loss");
  check_report(&m, g->norm_report, MEANS_NORM, "norm");
  const Value *clipped = graph_find_value(g, "tessera.clipped_norm");
  if (clipped && clipped->role == ROLE_CONTROL) check_report(&m, clipped, MEANS_NORM, "norm after clipping by value");
  if (g->norm_report && m.of[g->norm_report->id].clipped)
    proof_defect(proof, "report", g->norm_report->producer, g->norm_report, "the plan reports the norm after clipping as the one before");
  check_report(&m, g->inverse_count, MEANS_INVERSE_COUNT, "inverse count");
}
