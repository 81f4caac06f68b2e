// build_backward: reverse-mode differentiation of graph->loss (a sum over the micro-batch). Each operator's row says what its gradient is;
// this pass decides which gradients are wanted, adds up contributions in a fixed order (reverse node order) and marks the results.
#include <math.h>
#include <string.h>

#include "../kernels/ops.h"
#include "accumulate.h"
#include "pass_list.h"

typedef struct Backward {
  Graph *graph;
  Emit emit;
  size_t n_nodes, n_values;    // of the forward graph
  bool *needs;                 // per value: does a trainable parameter influence it through differentiable slots?
  Value **grads;               // per value: gradient so far
} Backward;

static bool differentiable(const Node *n, int input) {
  return n->inputs[input] && dtype_is_float(n->inputs[input]->type.dtype) && !(input < 32 && n->op->nondifferentiable >> input & 1);
}

static void find_needs(Backward *b) {
  for (size_t i = 0; i < b->n_values; i++) {
    const Value *v = b->graph->values[i];
    b->needs[i] = v->role == ROLE_PARAM && v->trainable;
  }
  for (size_t i = 0; i < b->n_nodes; i++) {
    const Node *n = b->graph->nodes[i];
    bool any = false;
    for (int k = 0; k < n->n_inputs; k++) any |= differentiable(n, k) && b->needs[n->inputs[k]->id];
    for (int k = 0; any && k < n->n_outputs; k++)
      if (n->outputs[k] && dtype_is_float(n->outputs[k]->type.dtype)) b->needs[n->outputs[k]->id] = true;
  }
}

static void contribute(Backward *b, const Value *to, Value *dx) {
  Value **sum = &b->grads[to->id];
  *sum = *sum ? emit(&b->emit, &op_Add, INPUTS(*sum, dx), NULL) : dx;
}

static Status differentiate(Backward *b, const Node *n) {
  Arena *arena = b->graph->arena;
  Value **dy = ARENA_ARRAY(arena, Value *, n->n_outputs);
  bool *wanted = ARENA_ARRAY(arena, bool, n->n_inputs);
  Value **dx = ARENA_ARRAY(arena, Value *, n->n_inputs);
  bool reached = false, any = false;
  for (int k = 0; k < n->n_outputs; k++) {
    dy[k] = n->outputs[k] ? b->grads[n->outputs[k]->id] : NULL;
    reached |= dy[k] != NULL;
  }
  for (int k = 0; k < n->n_inputs; k++) any |= wanted[k] = differentiable(n, k) && b->needs[n->inputs[k]->id];
  if (!reached || !any) return STATUS_OK;
  if (!n->op->grad)
    FAIL(UNSUPPORTED, n->name, "%s has no gradient, and the loss depends on a trainable parameter through it; --freeze those parameters, or train a graph without it",
         n->op->name);
  b->emit.at = n;
  Grad g = {.emit = &b->emit, .node = n, .dy = dy, .wanted = wanted, .dx = dx};
  TRY(n->op->grad(&g));
  TRY(b->emit.status);
  for (int k = 0; k < n->n_inputs; k++) {
    if (!wanted[k] || !dx[k]) continue;
    if (!type_equal(&dx[k]->type, &n->inputs[k]->type)) {
      char got[160], want[160];
      FAIL(UNSUPPORTED, n->name, "bug: the gradient of input %d of %s has type %s instead of %s", k, n->op->name,
           type_text(&dx[k]->type, got, sizeof got), type_text(&n->inputs[k]->type, want, sizeof want));
    }
    contribute(b, n->inputs[k], dx[k]);
  }
  return b->emit.status;
}

// The gradient value of a parameter is its own: never a forward value, a constant, or the gradient of another parameter.
static Status mark(Backward *b, Value *param) {
  Value *g = b->grads[param->id];
  if (!g) {
    param->trainable = false;
    param->doc = "frozen: no gradient of the loss reaches it";
    return STATUS_OK;
  }
  if (g->role == ROLE_GRAD || g->role == ROLE_CONST || !g->producer || !g->producer->backward) {
    b->emit.at = g->producer;
    g = emit(&b->emit, &op_Identity, INPUTS(g), NULL);
    TRY(b->emit.status);
  }
  g->role = ROLE_GRAD;
  g->of = param;
  const char *name = arena_printf(b->graph->arena, "%s.grad", param->name);
  if (!graph_find_value(b->graph, name)) graph_rename_value(b->graph, g, name);
  return STATUS_OK;
}

// A graph that came with its gradients: what the loss does not need is backward, and stands behind what it needs.
static Status adopt_gradients(Graph *graph) {
  bool *forward = ARENA_ARRAY(graph->arena, bool, graph->n_nodes), *needed = ARENA_ARRAY(graph->arena, bool, graph->n_values);
  Node **nodes = ARENA_ARRAY(graph->arena, Node *, graph->n_nodes);
  needed[graph->loss->id] = needed[graph->loss_count->id] = true;
  for (size_t i = graph->n_nodes; i-- > 0;) {
    const Node *n = graph->nodes[i];
    for (int k = 0; k < n->n_outputs; k++) forward[i] |= n->outputs[k] && needed[n->outputs[k]->id];
    for (int k = 0; forward[i] && k < n->n_inputs; k++)
      if (n->inputs[k]) needed[n->inputs[k]->id] = true;
  }
  size_t n = 0;
  for (int round = 0; round < 2; round++)
    for (size_t i = 0; i < graph->n_nodes; i++)
      if (forward[i] == !round) nodes[n++] = graph->nodes[i];
  for (size_t i = 0; i < graph->n_nodes; i++) graph->nodes[i]->backward = !forward[i];
  graph_set_nodes(graph, nodes, n);
  for (size_t i = 0; i < graph->n_values; i++) {
    const Value *v = graph->values[i];
    if (v->role != ROLE_GRAD || type_equal(&v->type, &v->of->type)) continue;
    char got[160], want[160];
    FAIL(MALFORMED, v->producer ? v->producer->name : NULL, "the gradient '%s' of parameter '%s' is %s; it must be %s", v->name, v->of->name,
         type_text(&v->type, got, sizeof got), type_text(&v->of->type, want, sizeof want));
  }
  return STATUS_OK;
}

// Of how many summands the loss of a step is, to a power of two: scaling by it changes no bit. All micro-batches count as large as this one.
static double loss_units(const Graph *graph, double micro_batches) {
  const Value *count = graph->loss_count;
  double n = 1;
  if (value_const(count)) n = weight_read_float(count->weight, 0);
  else if (count->producer && count->producer->op == &op_CrossEntropyCount) n = (double)type_elems(&count->producer->inputs[0]->type);
  n *= micro_batches;
  return n >= 1 ? exp2(round(log2(n))) : 1;
}

// f16 gradients begin with a number that the executor chooses from step to step; the update divides by it.
static Value *scaled_seed(Backward *b, double micro_batches) {
  Graph *graph = b->graph;
  Value *seed = graph_add_value(graph, LOSS_SEED);
  graph_claim_name(graph, seed, LOSS_SEED);
  seed->role = ROLE_CONTROL;
  seed->type = type_scalar(DTYPE_F64);
  graph->recipe.loss_units = loss_units(graph, micro_batches);
  return emit(&b->emit, &op_Cast, INPUTS(seed), ATTRS(A_INT("to", graph->loss->type.dtype)));
}

Status pass_build_backward(Graph *graph, const CompileOptions *options) {
  if (graph->facts & FACT_BACKWARD) return adopt_gradients(graph);
  Backward b = {.graph = graph, .n_nodes = graph->n_nodes, .n_values = graph->n_values};
  b.emit = (Emit){.graph = graph, .phase = PHASE_MICRO, .backward = true, .cause = {.pass = "build_backward"}};
  b.needs = ARENA_ARRAY(graph->arena, bool, b.n_values);
  find_needs(&b);
  if (!b.needs[graph->loss->id])
    FAIL(UNSUPPORTED, graph->loss->producer ? graph->loss->producer->name : NULL,
         "no trainable parameter reaches the loss '%s': there is nothing to train; --params PATTERN says which initializers are parameters",
         graph->loss->name);
  int64_t k;
  TRY(micro_per_rank(options, &k));
  Value *one = strcmp(options->precision, "fp16") ? emit_float(&b.emit, "loss.grad", graph->loss->type.dtype, 1.0) : scaled_seed(&b, (double)k * options->ranks);
  TRY(b.emit.status);
  b.grads = ARENA_ARRAY(graph->arena, Value *, b.n_values);
  b.grads[graph->loss->id] = one;
  for (size_t i = b.n_nodes; i-- > 0;) TRY(differentiate(&b, graph->nodes[i]));
  bool any = false;
  for (size_t i = 0; i < b.n_values; i++) {
    Value *v = graph->values[i];
    if (v->role != ROLE_PARAM || !v->trainable) continue;
    TRY(mark(&b, v));
    any |= v->trainable;
  }
  if (!any)
    FAIL(UNSUPPORTED, NULL,
        "no gradient of the loss '%s' reaches a trainable parameter: there is nothing to train; --params PATTERN says which initializers are parameters",
         graph->loss->name);
  graph_set_nodes(graph, graph->nodes, graph->n_nodes);
  return STATUS_OK;
}
