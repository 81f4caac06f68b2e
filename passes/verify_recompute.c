// The part of verify_plan about recomputation: a step that says which forward step it computes again has that step's operator, attributes and origin (which
// random numbers are drawn by), and reads what that one reads: the same values, recomputed ones in their place, or the same parameters as gathered for
// backward. Running statistics that BatchNormalization is given in training count for nothing: its result does not depend on them, and
// only the forward step makes new ones.
#include <stdlib.h>
#include <string.h>

#include "../kernels/ops.h"
#include "verify_proof.h"

enum { STATISTICS_IN = 3, STATISTICS_OUT = 1 };      // of BatchNormalization

typedef struct NodeName { const char *name; const Node *node; } NodeName;

typedef struct Copies {
  Proof *proof;
  const Value **stands_for;    // per value: what it is computed again in place of; NULL: nothing
} Copies;

static int by_name(const void *a, const void *b) { return strcmp(((const NodeName *)a)->name, ((const NodeName *)b)->name); }

static bool same_operator(const Node *a, const Node *b) {
  if (a->op != b->op || a->n_inputs != b->n_inputs) return false;
  for (const AttrSpec *s = a->op->attrs; s && s->name; s++) {
    bool results = a->op == &op_FusedElementwise && !strcmp(s->name, "results");     // a copy makes part of them
    if (!results && !attr_equal(a, b, s)) return false;
  }
  return true;
}

static bool is_view(const Node *n, int output) {
  Alias a;
  return n->op == &op_AllGather || n->op == &op_Fetch || n->op == &op_Unpack || node_alias(n, output, ALIAS_VIEW, &a);
}

// What has been in another tier and is back.
static const Value *stripped(const Value *v) {
  while (v && v->producer && v->producer->op == &op_Fetch && v->producer->n_inputs && v->producer->inputs[0]) {
    const Node *away = v->producer->inputs[0]->producer;
    if (!away || away->op != &op_Offload || !away->n_inputs) break;
    v = away->inputs[0];
  }
  return v;
}

// Along views: forward and backward each have their own of a gathered bucket.
static bool same_value(const Copies *c, const Value *x, const Value *y) {
  for (;;) {
    x = stripped(x);
    y = stripped(y);
    if (x == y) return true;
    if (!x || !y) return false;
    if (c->stands_for[y->id] == x) return true;
    const Node *p = x->producer, *q = y->producer;
    if (!p || !q || !same_operator(p, q) || x->output_index != y->output_index || !p->n_inputs || !is_view(p, x->output_index)) return false;
    for (int i = 1; i < p->n_inputs; i++)
      if (p->inputs[i] != q->inputs[i]) return false;
    x = p->inputs[0];
    y = q->inputs[0];
  }
}

static bool is_statistics(const Node *n, int input) {
  return n->op == &op_BatchNormalization && input >= STATISTICS_IN && attr_int(n, "training_mode") != 0;
}

// The output of `of` that output `o` of its copy is; NULL where forward has no use for it, or `of` has none such.
static const Value *original_output(const Node *of, const Node *copy, int o) {
  if (of->op != &op_FusedElementwise) return o < of->n_outputs ? of->outputs[o] : NULL;
  AttrInts had = attr_ints(of, "results"), has = attr_ints(copy, "results");
  for (int i = 0; i < of->n_outputs && i < had.n && o < has.n; i++)
    if (had.items[i] == has.items[o]) return of->outputs[i];
  return NULL;
}

static void check_copy(Copies *c, const Node *of, const Node *copy) {
  Proof *p = c->proof;
  const char *origin = of->origin ? of->origin : "", *said = copy->origin ? copy->origin : "";
  if (of->phase != PHASE_MICRO || of->backward || of->recomputes || of->id >= copy->id || copy->phase != PHASE_MICRO || !copy->backward) {
    proof_defect(p, "recompute", copy, NULL, "step '%s' computes '%s' again, which is no forward step before it", copy->name, of->name);
    return;
  }
  if (!same_operator(of, copy) || strcmp(origin, said)) {
    proof_defect(p, "recompute", copy, NULL, "step '%s' computes '%s' again by another operator, with other attributes or for another node of the model",
                 copy->name, of->name);
    return;
  }
  for (int i = 0; i < of->n_inputs; i++)
    if (!same_value(c, of->inputs[i], copy->inputs[i]) && !is_statistics(of, i))
      proof_defect(p, "recompute", copy, copy->inputs[i], "step '%s' computes '%s' again from '%s' in place of '%s'", copy->name, of->name,
                   copy->inputs[i] ? copy->inputs[i]->name : "nothing", of->inputs[i] ? of->inputs[i]->name : "nothing");
  for (int o = 0; o < copy->n_outputs; o++) {
    const Value *v = copy->outputs[o];
    if (v && (v->carry || (o >= STATISTICS_OUT && copy->op == &op_BatchNormalization)))
      proof_defect(p, "recompute", copy, v, "step '%s' makes '%s' a second time, which lives on", copy->name, v->name);
    if (v) c->stands_for[v->id] = original_output(of, copy, o);
  }
}

void proof_recompute(Proof *proof) {
  const Graph *g = proof->graph;
  size_t n_copies = 0;
  for (size_t i = 0; i < g->n_nodes; i++) n_copies += g->nodes[i]->recomputes != NULL;
  if (!n_copies) return;
  NodeName *names = ARENA_ARRAY(proof->arena, NodeName, g->n_nodes);
  for (size_t i = 0; i < g->n_nodes; i++) names[i] = (NodeName){g->nodes[i]->name, g->nodes[i]};
  qsort(names, g->n_nodes, sizeof *names, by_name);
  Copies copies = {proof, ARENA_ARRAY(proof->arena, const Value *, g->n_values)};
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *n = g->nodes[i];
    if (!n->recomputes) continue;
    const NodeName key = {n->recomputes, NULL}, *found = bsearch(&key, names, g->n_nodes, sizeof *names, by_name);
    if (found) check_copy(&copies, found->node, n);
    else proof_defect(proof, "recompute", n, NULL, "step '%s' computes '%s' again, which is no step", n->name, n->recomputes);
  }
}
