// offload_activations OPTIMISES memory: what forward has made and backward reads lives in another tier from forward's last use of it to backward's first
// (--offload activations=host|nvme; Rajbhandari et al., 2021, "ZeRO-Infinity"). An Offload stands right behind the step of forward that touches the value
// last, a Fetch right before the step of backward that reads it first; recomputation has chosen before what is kept at all. Small values stay, and such
// as backward needs so soon that they would come back at once. Views of a fetched value are made anew. No bit of any result changes.
#include <string.h>

#include "../kernels/ops.h"
#include "offload.h"
#include "pass_list.h"
#include "same_bytes.h"

enum {
  OFFLOAD_BYTES_MIN = 4096,    // a page; smaller values stay
  IDLE_STEPS_MIN = 16,         // between the two uses
};

// Of a value that others are views of.
typedef struct Idle {
  bool moves;
  uint32_t last, first;        // forward step that touches it last, backward step that touches it first
  Value *away, *back;          // in the other tier; fetched
} Idle;

typedef struct Activations {
  Graph *graph;
  Emit emit;
  Tier tier;
  Value **roots;               // per value of before
  Value **views;               // per value: what backward reads in its place; NULL: not made yet
  Idle *idle;                  // per root
  size_t n_values;
} Activations;

// ---- What moves ---------------------------------------------------------------------------------------------------------------

static bool may_move(const Activations *a, const Value *v) {
  const Node *n = v->producer;
  return a->roots[v->id] == v && n && n->phase == PHASE_MICRO && !n->backward && !(n->op->flags & (OP_COLLECTIVE | OP_TRANSFER)) && v->role == ROLE_ACTIVATION &&
         v->tier == TIER_DEVICE && !v->carry && v->bucket < 0 && value_bytes(v) >= OFFLOAD_BYTES_MIN;
}

static void stay(Activations *a, const Value *v) {
  if (v) a->idle[a->roots[v->id]->id].moves = false;
}

static void find_uses(Activations *a) {
  Graph *g = a->graph;
  for (size_t i = 0; i < g->n_values; i++) a->idle[i] = (Idle){.moves = may_move(a, g->values[i]), .first = UINT32_MAX};
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *n = g->nodes[i];
    for (int k = 0; k < n->n_inputs + n->n_outputs; k++) {
      const Value *v = k < n->n_inputs ? n->inputs[k] : n->outputs[k - n->n_inputs];
      Alias alias;
      if (!v) continue;
      Idle *idle = &a->idle[a->roots[v->id]->id];
      if (n->backward && idle->first == UINT32_MAX) idle->first = n->id;
      if (!n->backward) idle->last = n->id;
      bool over = k >= n->n_inputs && node_alias(n, k - n->n_inputs, ALIAS_UPDATE, &alias);
      if (n->phase != PHASE_MICRO || over) idle->moves = false;
    }
  }
  Value *const reports[] = {g->loss, g->loss_count, g->loss_report, g->norm_report, g->inverse_count};
  for (size_t i = 0; i < sizeof reports / sizeof *reports; i++) stay(a, reports[i]);
  for (size_t i = 0; i < g->n_outputs; i++) stay(a, g->outputs[i]);
  for (size_t i = 0; i < g->n_values; i++) {
    Idle *idle = &a->idle[i];
    idle->moves &= idle->first != UINT32_MAX && idle->first > idle->last && idle->first - idle->last >= IDLE_STEPS_MIN;
  }
}

// ---- Transfers ----------------------------------------------------------------------------------------------------------------

static void begin(Activations *a, const Value *v, bool backward) {
  const Node *n = v->producer;
  a->emit.at = n;
  a->emit.backward = backward;
  a->emit.cause = (Cause){.node = n->origin ? n->origin : n->name, .pass = "offload_activations"};
}

static void send_away(Activations *a, Value *v) {
  begin(a, v, false);
  a->idle[v->id].away = emit(&a->emit, &op_Offload, INPUTS(v), ATTRS(A_INT("bucket", -1), A_STRING("kind", "activation"), A_STRING("tier", tier_name(a->tier))));
}

static Value *fetch(Activations *a, const Value *v) {
  Idle *idle = &a->idle[v->id];
  begin(a, v, true);
  if (!idle->back) idle->back = emit(&a->emit, &op_Fetch, INPUTS(idle->away), ATTRS(A_INT("bucket", -1), A_STRING("kind", "activation")));
  return idle->back;
}

// What backward reads in place of `v`: what was fetched, or the same view of it.
static Value *fetched(Activations *a, Value *v) {
  if (!v || v->id >= a->n_values || !a->idle[a->roots[v->id]->id].moves || v->producer->backward) return v;
  if (a->roots[v->id] == v) return fetch(a, v);
  if (a->views[v->id]) return a->views[v->id];
  const Node *of = v->producer;
  Value **inputs = ARENA_ARRAY(a->graph->arena, Value *, of->n_inputs);
  for (int i = 0; i < of->n_inputs; i++) inputs[i] = fetched(a, of->inputs[i]);
  if (a->emit.status) return v;
  Node *view = graph_make_node(a->graph, of->op, of->name, of->n_inputs, inputs, of->n_outputs, NULL);
  view->attrs = of->attrs;
  view->origin = of->origin;
  view->backward = true;
  a->emit.status = node_infer(a->graph, view);
  graph_append(a->graph, view);
  return a->views[v->id] = view->outputs[v->output_index];
}

// ---- The pass -----------------------------------------------------------------------------------------------------------------

static Status lower(Activations *a, Node *const *old, size_t n_old) {
  Value ***after = ARENA_ARRAY(a->graph->arena, Value **, n_old);        // per step: the values that leave behind it, NULL ends them
  for (size_t i = 0; i < a->n_values; i++) {
    if (!a->idle[i].moves) continue;
    Value ***list = &after[a->idle[i].last];
    size_t n = 0;
    while (*list && (*list)[n]) n++;
    Value **longer = ARENA_ARRAY(a->graph->arena, Value *, n + 2);
    if (n) memcpy(longer, *list, n * sizeof *longer);
    longer[n] = a->graph->values[i];
    *list = longer;
  }
  for (size_t i = 0; i < n_old; i++) {
    Node *n = old[i];
    for (int k = 0; k < n->n_inputs && n->backward; k++) n->inputs[k] = fetched(a, n->inputs[k]);
    TRY(a->emit.status);
    graph_append(a->graph, n);
    for (Value **v = after[i]; v && *v; v++) send_away(a, *v);
    TRY(a->emit.status);
  }
  return STATUS_OK;
}

Status pass_offload_activations(Graph *graph, const CompileOptions *options) {
  Arena *arena = graph->arena;
  if (options->offload[OFFLOAD_ACTIVATIONS] == TIER_DEVICE) return STATUS_OK;
  Activations a = {.graph = graph, .emit = {.graph = graph, .phase = PHASE_MICRO}, .tier = options->offload[OFFLOAD_ACTIVATIONS], .roots = same_bytes(graph, arena),
                   .n_values = graph->n_values};
  a.views = ARENA_ARRAY(arena, Value *, a.n_values);
  a.idle = ARENA_ARRAY(arena, Idle, a.n_values);
  find_uses(&a);
  Node **old = graph->nodes;
  size_t n_old = graph->n_nodes;
  graph->nodes = NULL;
  graph->n_nodes = graph->nodes_capacity = 0;
  TRY(lower(&a, old, n_old));
  graph_set_nodes(graph, graph->nodes, graph->n_nodes);
  return STATUS_OK;
}
