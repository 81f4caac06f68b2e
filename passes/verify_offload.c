// Part of verify_plan: what moves between tiers stays what it is, and what is cut into windows and joined again is all of it, each window once. That only
// transfers touch other tiers, and that windows lie where they belong, is a matter of places alone.
#include <inttypes.h>
#include <string.h>

#include "../kernels/kernel.h"
#include "../kernels/ops.h"
#include "verify_meaning.h"

static const Value *input(const Node *node, int i) { return i < node->n_inputs ? node->inputs[i] : NULL; }
static const Value *output(const Node *node, int o) { return o < node->n_outputs ? node->outputs[o] : NULL; }

// The whole, lasting value whose contents at the step's start these are.
static const Value *root_of(const Meanings *m, const Value *v) { return m->of[v->id].root ? m->of[v->id].root : v; }

// ---- Transfers ----------------------------------------------------------------------------------------------------------------

void meanings_fetch(Meanings *m, const Node *node) {
  const Value *in = input(node, 0), *out = output(node, 0);
  if (!in || !out) return;
  Meaning of = m->of[in->id];
  of.root = root_of(m, in);
  m->of[out->id] = of;
}

// What replaces something is the next of the same thing: state of state, the window of its own window.
static bool replaces(Meaning next, Meaning old) {
  bool state = next.kind == MEANS_STATE && old.kind == MEANS_FILL, partial = next.kind == MEANS_PARTIAL && old.kind == MEANS_FILL;
  if (next.kind != old.kind && !state && !partial) return false;
  return (state || partial || (next.bucket == old.bucket && next.shard == old.shard && next.narrow == old.narrow)) && next.cut == old.cut && next.lo == old.lo;
}

void meanings_offload(Meanings *m, const Node *node) {
  const Value *in = input(node, 0), *over = input(node, 1), *out = output(node, 0);
  if (!in || !out) return;
  m->of[out->id] = m->of[in->id];
  if (over && !replaces(m->of[in->id], m->of[over->id]))
    proof_defect(m->proof, "wrong_input", node, over, "step '%s' writes '%s', %s, over '%s', %s of another place", node->name, in->name,
                 meaning_name(m->of[in->id].kind), over->name, meaning_name(m->of[over->id].kind));
  meanings_loaded(m, node, out);
}

// ---- Windows ------------------------------------------------------------------------------------------------------------------

void meanings_cut(Meanings *m, const Node *node) {
  const Value *in = input(node, 0);
  if (!in) return;
  Meaning of = m->of[in->id];
  bool flat = of.kind == MEANS_PARAM || of.kind == MEANS_GRAD || of.kind == MEANS_STATE || of.kind == MEANS_AVERAGE || of.kind == MEANS_FILL;
  if (!flat || of.cut) {
    proof_defect(m->proof, "wrong_input", node, in, "step '%s' cuts '%s' into windows, which is %s%s", node->name, in->name, of.cut ? "a window of " : "",
                 meaning_name(of.kind));
    return;
  }
  of.root = root_of(m, in);
  of.cut = true;
  for (int o = 0; o < node->n_outputs; o++) {
    of.lo = o * attr_int(node, "elems");
    if (node->outputs[o]) m->of[node->outputs[o]->id] = of;
  }
}

// The same thing, but for its place?
static bool same_thing(Meaning a, Meaning b) {
  return a.kind == b.kind && a.bucket == b.bucket && a.shard == b.shard && a.narrow == b.narrow && a.updated == b.updated && a.clipped == b.clipped &&
         a.over_ranks == b.over_ranks && a.over_micro == b.over_micro && a.root == b.root;
}

static bool same_number(const Node *a, const Node *b) {
  return a && b && a->op == &op_Fill && b->op == &op_Fill && !strcmp(attr_string(a, "value"), attr_string(b, "value"));
}

void meanings_join(Meanings *m, const Node *node) {
  const Value *first = input(node, 0), *out = output(node, 0);
  if (!first || !out) return;
  Meaning of = m->of[first->id];
  int64_t at = 0;
  for (int i = 0; i < node->n_inputs; i++) {
    const Value *part = node->inputs[i];
    Meaning next = m->of[part->id];
    bool fits = of.kind == MEANS_FILL && !of.cut ? next.kind == MEANS_FILL && same_number(of.source, next.source) : same_thing(of, next) && next.cut && next.lo == at;
    if (!fits) {
      proof_defect(m->proof, "wrong_input", node, part, "step '%s' joins '%s' from element %" PRId64 " on, which is %s from %" PRId64 " on", node->name, part->name, at,
                   meaning_name(next.kind), next.lo);
      return;
    }
    at += type_elems(&part->type);
  }
  of.cut = false;
  of.lo = 0;
  const Bucket *b = of.bucket >= 0 && (size_t)of.bucket < m->graph->n_buckets ? &m->graph->buckets[of.bucket] : NULL;
  bool elements = of.kind == MEANS_PARAM || of.kind == MEANS_GRAD;
  if (b && elements && at != (of.shard ? b->shard_elems : b->elems))
    proof_defect(m->proof, "wrong_input", node, out, "step '%s' joins %" PRId64 " elements; bucket %d has others beside them", node->name, at, of.bucket);
  m->of[out->id] = of;
  meanings_loaded(m, node, out);
}

// ---- The norm, in parts -------------------------------------------------------------------------------------------------------

// What a squared norm covers: of a single step a list of pieces; of sums of them, from each bucket's start on, so many elements.
typedef struct Piece { int32_t bucket; int64_t lo, hi; } Piece;
typedef struct Covered { Piece *pieces; size_t n; int64_t *ends; } Covered;

static void tell_norm(Meanings *m, const Node *node, int32_t bucket, const char *what) {
  proof_defect(m->proof, "norm", node, m->buckets[bucket].param, "step '%s' %s the gradient of bucket %d", node->name, what, bucket);
}

static void cover(Meanings *m, const Node *node, Covered *c, Piece piece) {
  if (piece.lo != c->ends[piece.bucket]) tell_norm(m, node, piece.bucket, piece.lo < c->ends[piece.bucket] ? "takes twice" : "leaves out a part of");
  else c->ends[piece.bucket] = piece.hi;
}

static Covered *covered_of(Meanings *m, const Value *v) {
  if (!m->covered) m->covered = ARENA_ARRAY(m->proof->arena, struct Covered *, m->graph->n_values);
  return m->covered[v->id];
}

void meanings_norm_covers(Meanings *m, const Node *node) {
  const Graph *g = m->graph;
  Covered *c = ARENA_NEW(m->proof->arena, Covered);
  if (!output(node, 0)) return;
  c->pieces = ARENA_ARRAY(m->proof->arena, Piece, node->n_inputs);
  for (int i = 1; i < node->n_inputs; i++) {
    const Value *v = node->inputs[i];
    Meaning of = v ? m->of[v->id] : (Meaning){.bucket = -1};
    if (of.kind == MEANS_GRAD && of.bucket >= 0 && (size_t)of.bucket < g->n_buckets) c->pieces[c->n++] = (Piece){of.bucket, of.lo, of.lo + type_elems(&v->type)};
  }
  covered_of(m, node->outputs[0]);
  m->covered[node->outputs[0]->id] = c;
}

static Covered *in_order(Meanings *m, const Node *node, Covered *c) {
  if (c->ends) return c;
  c->ends = ARENA_ARRAY(m->proof->arena, int64_t, m->graph->n_buckets);
  for (size_t i = 0; i < c->n; i++) cover(m, node, c, c->pieces[i]);
  return c;
}

void meanings_norm_sum(Meanings *m, const Node *node) {
  const Value *sum = input(node, 0), *more = input(node, 1), *out = output(node, 0);
  if (!meaning_expect(m, node, sum, MEANS_LIMBS, "squared norm") || !meaning_expect(m, node, more, MEANS_LIMBS, "squared norm") || !out) return;
  Covered *a = covered_of(m, sum), *b = covered_of(m, more);
  if (!same_thing(m->of[sum->id], m->of[more->id]) || (m->of[sum->id].over_ranks && m->proof->ranks > 1) || !a || !b || b->ends) {
    proof_defect(m->proof, "norm", node, sum, "step '%s' adds squared norms that are not of the rank's parts, each once", node->name);
    return;
  }
  m->covered[sum->id] = m->covered[more->id] = NULL;       // their numbers go into the sum, and into no other
  in_order(m, node, a);
  for (size_t i = 0; i < b->n; i++) cover(m, node, a, b->pieces[i]);
  m->covered[out->id] = a;
  m->of[out->id] = m->of[sum->id];
}

void meanings_norm_complete(Meanings *m, const Node *node, const Value *limbs) {
  const Graph *g = m->graph;
  Covered *c = covered_of(m, limbs);
  if (!c) {
    proof_defect(m->proof, "norm", node, limbs, "step '%s' takes '%s', whose parts are in another sum", node->name, limbs->name);
    return;
  }
  in_order(m, node, c);
  bool shard = !m->of[limbs->id].over_ranks;
  for (size_t b = 0; b < g->n_buckets; b++) {
    int64_t want = !g->buckets[b].trainable ? 0 : shard ? g->buckets[b].shard_elems : g->buckets[b].elems;
    if (c->ends[b] != want) tell_norm(m, node, (int32_t)b, want ? "leaves out a part of" : "takes");
  }
}

// ---- Places -------------------------------------------------------------------------------------------------------------------

static bool lies_at(const Value *v, const Value *whole, int64_t offset) {
  return v->loc.buffer == whole->loc.buffer && v->loc.offset_bytes == whole->loc.offset_bytes + offset && v->loc.rank_stride_bytes == whole->loc.rank_stride_bytes;
}

static void check_windows(Proof *p, const Node *node) {
  bool cut = node->op == &op_Cut;
  const Value *whole = cut ? input(node, 0) : output(node, 0);
  for (int i = 0; whole && whole->tier != TIER_DEVICE && i < (cut ? node->n_outputs : node->n_inputs); i++) {
    const Value *part = cut ? node->outputs[i] : node->inputs[i];
    Alias a = {.offset_bytes = 0};
    if (!part || (node->op->alias(node, cut ? i : 0, cut ? 0 : i, &a) && lies_at(part, whole, a.offset_bytes))) continue;
    proof_defect(p, "tier", node, part, "'%s' does not lie in '%s' where step '%s' says, and nothing can move it in tier %s", part->name, whole->name, node->name,
                 tier_name(whole->tier));
  }
}

void proof_tiers(Proof *p) {
  const Graph *g = p->graph;
  for (size_t i = 0; i < g->n_values; i++) {
    const Value *v = g->values[i];
    const Buffer *b = p->placed[i] ? &g->buffers[v->loc.buffer] : NULL;
    if (b && b->tier != v->tier)
      proof_defect(p, "tier", v->producer, v, "'%s' is of tier %s and lies in buffer '%s' of tier %s", v->name, tier_name(v->tier), b->name, tier_name(b->tier));
    if (b && b->tier == TIER_NVME && (b->scope != SCOPE_RANK || v->loc.rank_stride_bytes || b->offset_bytes % PLAN_PAGE_BYTES))
      proof_defect(p, "tier", v->producer, v, "'%s' lies on disk at %" PRId64 ": each rank has a part of its own there, at whole pages", v->name, b->offset_bytes);
    if (!v->producer && v->tier != TIER_DEVICE) proof_defect(p, "tier", NULL, v, "the executor writes '%s', which lies in tier %s", v->name, tier_name(v->tier));
  }
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *node = g->nodes[i];
    bool windows = node->op == &op_Cut || node->op == &op_Join, fetch = node->op == &op_Fetch;
    for (int k = 0; k < node->n_inputs + node->n_outputs; k++) {
      const Value *v = k < node->n_inputs ? node->inputs[k] : node->outputs[k - node->n_inputs];
      bool there = fetch ? k < node->n_inputs : k > 0;       // the side of a transfer that is elsewhere
      if (!v || windows || (v->tier != TIER_DEVICE) == ((node->op->flags & OP_TRANSFER) && there)) continue;
      proof_defect(p, "tier", node, v, "step '%s' cannot take or make '%s' in tier %s: Offload and Fetch alone touch what does not lie on the device", node->name,
                   v->name, tier_name(v->tier));
    }
    if (windows) check_windows(p, node);
    const Value *to = node->op == &op_Offload ? output(node, 0) : NULL;
    if (to && strcmp(attr_string(node, "tier"), tier_name(to->tier)))
      proof_defect(p, "tier", node, to, "step '%s' says tier %s and moves '%s' to tier %s", node->name, attr_string(node, "tier"), to->name, tier_name(to->tier));
  }
}
