// recompute OPTIMISES memory for time: of what forward makes and backward reads, part is kept, and the rest is computed again from that, right before
// backward needs it (--recompute).
//
//   blocks        keeps what lives at the boundaries of repeated blocks, found in the graph (recompute_blocks.c)
//   all           keeps what lives at those cuts of the graph that make the peak smallest, wherever they lie
//   budget=SIZE   keeps what saves most time per byte, as much as fits (recompute_budget.c)
//
// Keeping values at cuts and replaying what is between them: T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016.
// Choosing by cost: P. Jain et al., "Checkmate", MLSys 2020; min-cut: the partitioner of PyTorch's AOTAutograd.
//
// A copy is of the backward pass: at stage 3 its parameters are the ones gathered for backward, so no bucket is gathered a third time. It has its node's
// origin, which random numbers are drawn by: the same again. What updates running statistics leaves them alone the second time. Values that
// nothing but backward's reading needs in forward are computed for backward only. No bit of any result changes.
#include "recompute.h"

#include <string.h>

#include "../kernels/fused.h"
#include "../kernels/ops.h"
#include "estimate.h"
#include "pass_list.h"
#include "same_bytes.h"

// ---- What is known of the graph -------------------------------------------------------------------------------------------------

enum { STATISTICS_IN = 3, STATISTICS_OUT = 1, STATISTICS = 2 };      // of BatchNormalization: inputs 3, 4 become outputs 1, 2

static bool makes_statistics(const Node *n) {
  if (n->op != &op_BatchNormalization || !attr_int(n, "training_mode") || n->n_outputs < STATISTICS_OUT + STATISTICS) return false;
  for (int k = 0; k < STATISTICS; k++)
    if (!n->outputs[STATISTICS_OUT + k] || !type_equal(&n->outputs[STATISTICS_OUT + k]->type, &n->inputs[STATISTICS_IN + k]->type)) return false;
  return true;
}

Value *recompute_input(const Node *n, int i) {
  return i >= STATISTICS_IN && i < STATISTICS_IN + STATISTICS && makes_statistics(n) ? n->outputs[STATISTICS_OUT + i - STATISTICS_IN] : n->inputs[i];
}

// Parameters in 16 bits: the lowering keeps such copies of whole buckets.
static bool is_narrowed_param(const Value *v) {
  const Node *n = v->producer;
  return n && n->op == &op_Cast && n->inputs[0]->role == ROLE_PARAM && !n->inputs[0]->producer;
}

static void find_resident(Recompute *r) {
  for (size_t i = 0; i < r->n_values; i++) {
    const Value *root = r->roots[i];
    r->resident[i] = !root->producer || root->role != ROLE_ACTIVATION || is_narrowed_param(root);
  }
  for (size_t i = 0; i < r->n_nodes; i++)
    for (int k = 0; k < STATISTICS && makes_statistics(r->graph->nodes[i]); k++) r->resident[r->graph->nodes[i]->outputs[STATISTICS_OUT + k]->id] = true;
}

// Not what acts beyond its outputs, nor what reads bytes that are written over before backward runs.
static bool runs_again(const Recompute *r, const Node *n) {
  if (n->phase != PHASE_MICRO || n->op->flags & (OP_SIDE_EFFECT | OP_COLLECTIVE | OP_OPTIMIZER)) return false;
  Alias a;
  for (int o = 0; o < n->n_outputs; o++)
    if (n->outputs[o] && node_alias(n, o, ALIAS_UPDATE, &a)) return false;
  for (int i = 0; i < n->n_inputs; i++) {
    const Value *v = n->inputs[i];
    if (v && r->roots[v->id]->role == ROLE_BUFFER && recompute_input(n, i) == v) return false;
  }
  return true;
}

static void find_needed(Recompute *r) {
  for (size_t i = 0; i < r->n_nodes; i++) {
    const Node *n = r->graph->nodes[i];
    bool trains = false;
    for (int k = 0; k < n->n_inputs; k++) {
      const Value *v = n->inputs[k];
      if (!v) continue;
      trains |= (v->role == ROLE_PARAM && v->trainable) || r->trains[v->id];
      if (n->backward && v->producer && !v->producer->backward) r->needed[r->roots[v->id]->id] = true;
    }
    for (int k = 0; k < n->n_outputs; k++)
      if (n->outputs[k]) r->trains[n->outputs[k]->id] = trains && dtype_is_float(n->outputs[k]->type.dtype);
    for (int k = 0; k < n->n_outputs && !n->backward; k++)
      if (n->outputs[k] && r->roots[n->outputs[k]->id] == n->outputs[k]) r->fixed[n->outputs[k]->id] = !runs_again(r, n);
  }
}

// Backwards from what is needed, through what is not resident.
static void find_forward(Recompute *r) {
  const Graph *g = r->graph;
  bool *wanted = ARENA_ARRAY(r->arena, bool, r->n_values), *relevant = ARENA_ARRAY(r->arena, bool, r->n_nodes);
  for (size_t i = r->n_nodes; i-- > 0;) {
    const Node *n = g->nodes[i];
    for (int k = 0; k < n->n_outputs && !n->backward; k++) {
      const Value *v = n->outputs[k];
      relevant[i] |= v && !r->resident[v->id] && (wanted[v->id] || r->needed[v->id]);
    }
    for (int k = 0; k < n->n_inputs; k++)
      if (n->inputs[k] && (relevant[i] || n->backward)) wanted[n->inputs[k]->id] = true;
    r->n_forward += relevant[i];
  }
  r->forward = ARENA_ARRAY(r->arena, Node *, r->n_forward);
  memset(r->made, 0xff, r->n_values * sizeof *r->made);
  memset(r->last, 0xff, r->n_values * sizeof *r->last);
  uint32_t at = 0;
  for (size_t i = 0; i < r->n_nodes; i++) {
    const Node *n = g->nodes[i];
    if (!relevant[i]) continue;
    for (int k = 0; k < n->n_outputs; k++)
      if (n->outputs[k] && r->roots[n->outputs[k]->id] == n->outputs[k]) r->made[n->outputs[k]->id] = at;
    for (int k = 0; k < n->n_inputs; k++)
      if (n->inputs[k]) r->last[r->roots[n->inputs[k]->id]->id] = at;
    r->forward[at++] = g->nodes[i];
  }
}

static Recompute analyse(Graph *g) {
  Arena *arena = g->arena;
  Recompute r = {.graph = g, .arena = arena, .n_nodes = g->n_nodes, .n_values = g->n_values, .roots = same_bytes(g, arena)};
  r.resident = ARENA_ARRAY(arena, bool, r.n_values);
  r.fixed = ARENA_ARRAY(arena, bool, r.n_values);
  r.needed = ARENA_ARRAY(arena, bool, r.n_values);
  r.trains = ARENA_ARRAY(arena, bool, r.n_values);
  r.made = ARENA_ARRAY(arena, uint32_t, r.n_values);
  r.last = ARENA_ARRAY(arena, uint32_t, r.n_values);
  r.seconds = ARENA_ARRAY(arena, double, r.n_nodes);
  const Machine machine = machine_default();
  for (size_t i = 0; i < r.n_nodes; i++)
    if (!g->nodes[i]->backward) r.seconds[i] = step_cost(g, g->nodes[i], &machine).seconds;
  find_resident(&r);
  find_needed(&r);
  find_forward(&r);
  r.room = recompute_replay_room(&r);
  return r;
}

// ---- Keeping --------------------------------------------------------------------------------------------------------------------

// What cannot be computed again is kept in any case.
static bool *keep_fixed(const Recompute *r) { return arena_copy(r->arena, r->fixed, r->n_values * sizeof *r->fixed); }

void recompute_keep_from(const Recompute *r, size_t place, bool *kept) {
  for (size_t i = 0; i < r->n_values; i++)
    if (r->needed[i] && r->made[i] != UINT32_MAX && r->made[i] >= place) kept[i] = true;
}

bool *recompute_keep_all(const Recompute *r) {
  bool *kept = keep_fixed(r);
  recompute_keep_from(r, 0, kept);
  return kept;
}

void recompute_keep_cut(const Recompute *r, size_t cut, bool *kept) {
  for (size_t i = 0; i < r->n_values; i++)
    if (!r->resident[i] && r->made[i] != UINT32_MAX && r->last[i] != UINT32_MAX && r->made[i] <= cut && r->last[i] > cut) kept[i] = true;
}

bool *recompute_keep_cuts(const Recompute *r, const bool *cuts) {
  bool *kept = keep_fixed(r);
  size_t last = 0, n = r->n_forward ? r->n_forward - 1 : 0;
  uint32_t *next = ARENA_ARRAY(r->arena, uint32_t, r->n_forward + 1);   // per place: the first cut from there on
  next[n] = UINT32_MAX;
  for (size_t c = n; c-- > 0;) next[c] = cuts[c] ? (uint32_t)c : next[c + 1];
  for (size_t c = 0; c < n; c++)
    if (cuts[c]) last = c + 1;
  for (size_t i = 0; i < r->n_values; i++) {
    if (r->resident[i] || r->made[i] == UINT32_MAX || r->last[i] == UINT32_MAX) continue;
    if (next[r->made[i]] < r->last[i]) kept[i] = true;
  }
  recompute_keep_from(r, last, kept);
  return kept;
}

// ---- The new order --------------------------------------------------------------------------------------------------------------

static Value *read_value(Value **copies, const Recompute *r, const bool *kept, Value *v) {
  return v && v->id < r->n_values && recompute_takes_copy(r, kept, v) && copies[v->id] ? copies[v->id] : v;
}

// Outputs that nobody reads are left out where the row allows it.
static void drop_unread(Graph *g, Node *copy, const Node *of, const bool *read) {
  bool keep[FUSED_MEMBERS_MAX], fused = of->op == &op_FusedElementwise;
  for (int o = 0; o < of->n_outputs; o++) {
    const Value *v = of->outputs[o];
    bool reads = v && read[v->id];
    if (fused) keep[o] = reads;
    else if (!v || (!reads && o >= of->op->min_outputs && of->op->max_outputs != VARIADIC)) copy->outputs[o] = NULL;
  }
  if (fused) fused_keep_results(g, copy, keep);
  else
    while (copy->n_outputs > copy->op->min_outputs && !copy->outputs[copy->n_outputs - 1]) copy->n_outputs--;
}

static Status make_copy(const Recompute *r, const Replay *replay, const bool *kept, Value **copies, const Node *of) {
  Graph *g = r->graph;
  const char **hints = ARENA_ARRAY(g->arena, const char *, of->n_outputs);
  Value **inputs = ARENA_ARRAY(g->arena, Value *, of->n_inputs);
  for (int o = 0; o < of->n_outputs; o++)
    if (of->outputs[o]) hints[o] = arena_printf(g->arena, "%s.recomputed", of->outputs[o]->name);
  for (int i = 0; i < of->n_inputs; i++) inputs[i] = read_value(copies, r, kept, recompute_input(of, i));
  Node *copy = graph_make_node(g, of->op, arena_printf(g->arena, "%s.recomputed", of->name), of->n_inputs, inputs, of->n_outputs, hints);
  for (int o = 0; o < of->n_outputs; o++)
    if (of->outputs[o]) copies[of->outputs[o]->id] = copy->outputs[o];
  if (of->op->attrs_bytes) copy->attrs = arena_copy(g->arena, of->attrs, of->op->attrs_bytes);
  copy->backward = true;
  copy->origin = of->origin;
  copy->recomputes = of->name;
  copy->cause = (Cause){.node = of->origin ? of->origin : of->name, .pass = "recompute"};
  drop_unread(g, copy, of, replay->copy_read);
  TRY(node_infer(g, copy));
  graph_append(g, copy);
  return STATUS_OK;
}

// A node that only backward needs: itself, later.
static void move(const Recompute *r, const bool *kept, Value **copies, Node *n) {
  for (int i = 0; i < n->n_inputs; i++) n->inputs[i] = read_value(copies, r, kept, n->inputs[i]);
  for (int o = 0; o < n->n_outputs; o++)
    if (n->outputs[o]) copies[n->outputs[o]->id] = n->outputs[o];
  n->backward = true;
  graph_append(r->graph, n);
}

static Status rewrite(const Recompute *r, const bool *kept) {
  Graph *g = r->graph;
  const Replay replay = recompute_replay(r, kept);
  Value **copies = ARENA_ARRAY(g->arena, Value *, r->n_values);
  Node **old = g->nodes;
  g->nodes = NULL;
  g->n_nodes = g->nodes_capacity = 0;
  for (size_t t = 0; t < replay.n_turns; t++) {
    Node *n = old[replay.turns[t].node];
    if (replay.turns[t].copy && replay.moved[replay.turns[t].node]) {
      move(r, kept, copies, n);
    } else if (replay.turns[t].copy) {
      TRY(make_copy(r, &replay, kept, copies, n));
    } else {
      for (int i = 0; i < n->n_inputs && n->backward; i++) n->inputs[i] = read_value(copies, r, kept, n->inputs[i]);
      graph_append(g, n);
    }
  }
  graph_set_nodes(g, g->nodes, g->n_nodes);
  return STATUS_OK;
}

Status pass_recompute(Graph *graph, const CompileOptions *options) {
  if (options->recompute == RECOMPUTE_NONE) return STATUS_OK;
  const Recompute r = analyse(graph);
  bool *kept = NULL, *cuts = NULL;
  if (options->recompute == RECOMPUTE_BUDGET) {
    TRY(recompute_keep_budget(&r, options->recompute_bytes, &kept));
  } else if (options->recompute == RECOMPUTE_ALL) {
    kept = recompute_keep_least(&r, &cuts);
  } else {
    if (!recompute_find_blocks(&r, &cuts))
      FAIL(UNSUPPORTED, NULL, "--recompute blocks: no part of the model repeats, and nothing skips over a part: there are no blocks; --recompute all and "
           "--recompute budget=SIZE need none");
    kept = recompute_keep_cuts(&r, cuts);
  }
  return rewrite(&r, kept);
}
