// Part of verify_plan: optimizers that take several steps. The first makes a direction of a bucket (verify_ownership.c); the others take that and nothing
// else, with the numbers of the same bucket, complete over the ranks.
#include <inttypes.h>

#include "../kernels/kernel.h"
#include "../kernels/ops.h"
#include "../kernels/optimizer.h"
#include "verify_meaning.h"

static const Value *input(const Node *node, int i) { return i < node->n_inputs ? node->inputs[i] : NULL; }

// Does the row say where the bucket's parameters lie as the bucket does?
static void check_pieces(Meanings *m, const Node *node, Meaning of) {
  const Bucket *b = &m->graph->buckets[of.bucket];
  AttrInts starts = attr_ints(node, "starts"), sizes = attr_ints(node, "sizes");
  bool same = starts.n == b->n_params && sizes.n == b->n_params && attr_int(node, "parts") == (of.shard ? m->proof->ranks : 1);
  for (int i = 0; same && i < b->n_params; i++) same = starts.items[i] == b->starts[i] && sizes.items[i] == type_elems(&b->types[i]);
  if (!same)
    proof_defect(m->proof, "wrong_parameter", node, input(node, 0), "step '%s' takes single parameters of bucket %d from where they do not lie", node->name, of.bucket);
}

// Parameters that are not updated yet, and their direction: of one bucket, both whole or both shards; or `whole`: the direction of all of it.
static bool check_pair(Meanings *m, const Node *node, bool whole, Meaning *out) {
  const Value *param = input(node, IN_PARAM), *direction = input(node, IN_DIRECTION);
  if (!meaning_expect(m, node, param, MEANS_PARAM, "parameters") || !meaning_expect(m, node, direction, MEANS_DIRECTION, "direction")) return false;
  Meaning p = m->of[param->id], d = m->of[direction->id];
  if (p.updated || p.bucket != d.bucket || d.shard != (p.shard && !whole))
    proof_defect(m->proof, "wrong_input", node, direction, "step '%s' takes the direction of bucket %d with %s parameters of bucket %d, or a shard with a whole",
                 node->name, d.bucket, p.updated ? "updated" : "the", p.bucket);
  *out = p;
  return true;
}

// Complete gradients of a bucket, times 1 / count, for the report.
static void gradient_norms(Meanings *m, const Node *node) {
  const Value *grad = input(node, 0);
  meaning_expect(m, node, input(node, 1), MEANS_INVERSE_COUNT, "inverse count");
  if (!meaning_expect(m, node, grad, MEANS_GRAD, "gradient")) return;
  Meaning of = m->of[grad->id];
  check_pieces(m, node, of);
  if (node->n_inputs != 2 || of.clipped || !of.over_micro || !of.over_ranks)
    proof_defect(m->proof, of.over_ranks ? "accumulation" : "never_reduced", node, grad, "step '%s' takes '%s', which is no complete gradient", node->name, grad->name);
  if (node->outputs[0]) m->of[node->outputs[0]->id] = (Meaning){.kind = MEANS_GRAD_NORMS, .bucket = of.bucket, .over_ranks = !of.shard, .over_micro = true};
}

void meanings_tensor_norms(Meanings *m, const Node *node) {
  Meaning of;
  if (attr_int(node, "scaled")) {
    gradient_norms(m, node);
    return;
  }
  if (!check_pair(m, node, false, &of)) return;
  check_pieces(m, node, of);
  if (node->n_inputs != 2)
    proof_defect(m->proof, "wrong_input", node, input(node, 2), "step '%s' takes more than parameters and their direction", node->name);
  if (node->outputs[0])
    m->of[node->outputs[0]->id] = (Meaning){.kind = MEANS_TENSOR_LIMBS, .bucket = of.bucket, .over_ranks = !of.shard, .over_micro = true};
}

// Which first step an apply belongs to.
static const struct { const Op *apply, *first; } pairs[] = {{&op_LambApply, &op_LambDirection}, {&op_MuonApply, &op_MuonDirection},
                                                                  {&op_AdafactorApply, &op_AdafactorDirection}};

static void check_first(Meanings *m, const Node *node, Meaning of) {
  BucketProof *bucket = &m->buckets[of.bucket];
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
    if (pairs[i].apply == node->op && (!bucket->optimizer || bucket->optimizer->op != pairs[i].first))
      proof_defect(m->proof, "wrong_input", node, input(node, IN_DIRECTION), "step '%s' takes a direction of %s; it belongs to %s", node->name,
                   bucket->optimizer ? bucket->optimizer->op->name : "nothing", pairs[i].first->name);
  if (bucket->apply)
    proof_defect(m->proof, "updated_twice", node, input(node, IN_PARAM), "bucket %d is updated by step %u and by step %u", of.bucket, bucket->apply->id, node->id);
  bucket->apply = node;
}

static void check_norms(Meanings *m, const Node *node, Meaning of) {
  const Value *norms = input(node, IN_NORMS);
  if (!meaning_expect(m, node, norms, MEANS_TENSOR_LIMBS, "norms")) return;
  Meaning limbs = m->of[norms->id];
  if (limbs.bucket != of.bucket)
    proof_defect(m->proof, "wrong_input", node, norms, "step '%s' takes the norms of bucket %d for bucket %d", node->name, limbs.bucket, of.bucket);
  if (!limbs.over_ranks)
    proof_defect(m->proof, "never_reduced", node, norms, "step '%s' takes '%s', which is not summed over the %d ranks", node->name, norms->name, m->proof->ranks);
}

// Rows and columns of the bucket's matrices, of the last two axes.
static void check_factors(Meanings *m, const Node *node, Meaning of) {
  const Bucket *b = &m->graph->buckets[of.bucket];
  AttrInts rows = attr_ints(node, "rows"), columns = attr_ints(node, "columns");
  bool same = rows.n == b->n_params && columns.n == b->n_params;
  check_pieces(m, node, of);
  for (int i = 0; same && i < b->n_params; i++) {
    const Type *t = &b->types[i];
    same = t->rank >= 2 && rows.items[i] == t->dims[t->rank - 2] && columns.items[i] == t->dims[t->rank - 1];
  }
  if (!same) proof_defect(m->proof, "wrong_parameter", node, input(node, 0), "step '%s' takes other rows and columns than bucket %d has", node->name, of.bucket);
}

// The average moves towards the new parameters of its own bucket, once.
void meanings_ema(Meanings *m, const Node *node) {
  const Value *param = input(node, 0), *average = input(node, 1), *next = node->outputs[0];
  if (!meaning_expect(m, node, param, MEANS_PARAM, "parameters") || !meaning_expect(m, node, average, MEANS_AVERAGE, "moving average")) return;
  Meaning p = m->of[param->id], a = m->of[average->id];
  const Value *root = a.root ? a.root : average;
  if (!p.updated || a.updated || p.bucket != a.bucket || p.shard != a.shard || p.cut != a.cut || p.lo != a.lo)
    proof_defect(m->proof, "wrong_input", node, param, "step '%s' moves the average of bucket %d towards %s parameters of bucket %d, or mixes a shard and a whole",
                 node->name, a.bucket, p.updated ? "the" : "the old", p.bucket);
  if (!next || (root == average && next->carry != average) || m->carriers[root->id] != 1)
    proof_defect(m->proof, "wrong_state", node, average, "step '%s' makes an average of '%s' that does not become it", node->name, average->name);
  meanings_check_label(m, root, ROLE_STATE, a.bucket, a.shard, "ema");
  a.updated = true;
  a.root = root;
  if (next) m->of[next->id] = a;
}

void meanings_factored_sums(Meanings *m, const Node *node) {
  const Value *grad = input(node, 0);
  if (!meaning_expect(m, node, grad, MEANS_GRAD, "gradient")) return;
  Meaning of = m->of[grad->id];
  check_factors(m, node, of);
  meaning_expect(m, node, input(node, 1), MEANS_SCALE, "scale");
  meaning_expect(m, node, input(node, 2), MEANS_NORM, "norm");
  if (!of.over_ranks)
    proof_defect(m->proof, "never_reduced", node, grad, "step '%s' takes '%s', which is not summed over the %d ranks", node->name, grad->name, m->proof->ranks);
  if (!of.over_micro)
    proof_defect(m->proof, "accumulation", node, grad, "step '%s' takes '%s', which is of the last micro-batch alone", node->name, grad->name);
  if (node->outputs[0]) m->of[node->outputs[0]->id] = (Meaning){.kind = MEANS_FACTOR_SUMS, .bucket = of.bucket, .over_ranks = !of.shard, .over_micro = true};
}

void meanings_check_extra(Meanings *m, const Node *node, Meaning of) {
  const Value *sums = input(node, IN_STATE + 2);
  check_factors(m, node, of);
  meaning_expect(m, node, input(node, IN_STATE + 3), MEANS_NORM, "norm");
  if (!meaning_expect(m, node, sums, MEANS_FACTOR_SUMS, "sums of rows and columns")) return;
  if (m->of[sums->id].bucket != of.bucket)
    proof_defect(m->proof, "wrong_input", node, sums, "step '%s' takes the sums of bucket %d for bucket %d", node->name, m->of[sums->id].bucket, of.bucket);
  if (!m->of[sums->id].over_ranks)
    proof_defect(m->proof, "never_reduced", node, sums, "step '%s' takes '%s', which is not summed over the %d ranks", node->name, sums->name, m->proof->ranks);
}

// The matrices of the bucket, as they are.
static void check_matrices(Meanings *m, const Node *node, Meaning of) {
  const Bucket *b = &m->graph->buckets[of.bucket];
  AttrInts rows = attr_ints(node, "rows"), columns = attr_ints(node, "columns");
  bool same = rows.n == b->n_params && columns.n == b->n_params;
  for (int i = 0; same && i < b->n_params; i++) same = b->types[i].rank == 2 && rows.items[i] == b->types[i].dims[0] && columns.items[i] == b->types[i].dims[1];
  if (!same)
    proof_defect(m->proof, "wrong_parameter", node, input(node, 0), "step '%s' takes the parameters of bucket %d for matrices that they are not", node->name, of.bucket);
}

void meanings_apply(Meanings *m, const Node *node) {
  Meaning of;
  bool muon = node->op == &op_MuonApply;
  if (!check_pair(m, node, muon, &of)) return;
  check_pieces(m, node, of);
  check_first(m, node, of);
  meaning_expect(m, node, input(node, IN_RATE), MEANS_LR, "learning rate");
  if (muon) check_matrices(m, node, of);
  else check_norms(m, node, of);
  if (node->op == &op_AdafactorApply) meaning_expect(m, node, input(node, IN_NORMS + 1), MEANS_STEP, "step number");
  of.updated = true;
  if (node->outputs[0]) m->of[node->outputs[0]->id] = of;
}
