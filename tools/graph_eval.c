#include "graph_eval.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <xxhash.h>

#include "../kernels/kernel.h"
#include "../kernels/ops.h"
#include "../runtime/data_graph.h"

typedef struct Random { uint64_t state; } Random;

static uint64_t random_word(Random *r) {        // splitmix64
  uint64_t z = r->state += UINT64_C(0x9E3779B97F4A7C15);
  z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
  return z ^ z >> 31;
}

static double random_unit(Random *r) { return (double)(random_word(r) >> 11) * 0x1p-53; }

static double random_normal(Random *r) {
  double radius = sqrt(-2 * log(1 - random_unit(r)));
  return radius * cos(2 * 3.14159265358979323846 * random_unit(r));
}

// Kinds alternate: around 0; positive, for roots and logarithms; wide, with zeros and ties, where kinks are.
static double random_float(Random *r, int64_t number) {
  switch (number % 3) {
  case 0: return random_normal(r);
  case 1: return 0.05 + random_unit(r);
  default: return random_unit(r) < 0.2 ? 0 : round(8 * random_normal(r)) / 4;
  }
}

// ---- Bytes of values ----------------------------------------------------------------------------------------------------------

static void *new_buffer(Arena *arena, int64_t bytes) {
  char *p = arena_alloc(arena, (size_t)bytes + 64);
  return p + (63 - ((uintptr_t)p + 63) % 64);
}

static Random random_for(const EvalCase *test, const char *name) {
  return (Random){XXH3_64bits_withSeed(name, strlen(name), test->seed * 1000003 + (uint64_t)test->number)};
}

enum { FREE_INTEGERS = 5 };    // integers that index nothing are drawn from -5 to 5

static int64_t limit_of(const Value *v, const EvalCase *test) {
  int64_t least = 0;
  for (int i = 0; i < 2; i++) {
    const Value *same = graph_find_value(test->users[i], v->name);
    int64_t limit = same ? graph_index_limit(test->users[i], same) : 0;
    if (limit && (!least || limit < least)) least = limit;
  }
  return least;
}

static void draw_integers(const Value *v, const EvalCase *test, Random *r, void *to) {
  int64_t limit = test->index_limit ? test->index_limit : limit_of(v, test), low = 0;
  if (!limit) {
    low = dtype_class(v->type.dtype) == DTYPE_CLASS_UINT ? 0 : -FREE_INTEGERS;
    limit = FREE_INTEGERS + 1;
  }
  for (int64_t i = 0, n = type_elems(&v->type); i < n; i++)
    element_write_int(to, v->type.dtype, i, low + (int64_t)(random_word(r) % (uint64_t)(limit - low)));
}

static void draw(const Value *v, const EvalCase *test, double scale, void *to) {
  Random r = random_for(test, v->name);
  int64_t n = type_elems(&v->type);
  if (dtype_is_integer(v->type.dtype)) draw_integers(v, test, &r, to);
  else if (dtype_class(v->type.dtype) == DTYPE_CLASS_BOOL)
    for (int64_t i = 0; i < n; i++) element_write_int(to, v->type.dtype, i, (int64_t)(random_word(&r) & 1));
  else
    for (int64_t i = 0; i < n; i++) element_write(to, v->type.dtype, i, scale * random_float(&r, test->number));
}

static double root_mean_square(const Weight *w) {
  double sum = 0;
  int64_t n = type_elems(&w->type);
  for (int64_t i = 0; i < n; i++) {
    double x = weight_read_float(w, i);
    sum += x * x;
  }
  return n ? sqrt(sum / (double)n) : 0;
}

static void copy_weight(const Value *v, void *to) {
  const Weight *w = v->weight;
  if (w->type.dtype == v->type.dtype) copy_unless_same(to, w->bytes, value_bytes(v));
  else elements_convert(to, v->type.dtype, w->bytes, w->type.dtype, type_elems(&v->type));
}

// What has no producer: inputs, parameters, constants. States and partial sums start from zero; control values are set as the run goes.
static Status bind_value(GraphEval *e, const Value *v, const EvalCase *test, Arena *arena) {
  bool has_bytes = v->weight && v->weight->bytes, trains = v->role == ROLE_PARAM && v->trainable;
  void *to = e->data[v->id] = new_buffer(arena, value_bytes(v));
  if (has_bytes && trains && test->number > 0) {
    double scale = root_mean_square(v->weight);
    draw(v, test, scale > 0 ? scale : 1, to);
  } else if (has_bytes) {
    copy_weight(v, to);
  } else if (v->role == ROLE_INPUT || v->role == ROLE_PARAM) {
    draw(v, test, 1, to);
  } else if (v->role == ROLE_CONST || v->role == ROLE_BUFFER) {
    FAIL(USAGE, NULL, "the bytes of '%s' are not at hand (--data-folder says where the files lie)", v->name);
  }
  return STATUS_OK;
}

static Status bind_values(GraphEval *e, const EvalCase *test, double lr, Arena *arena) {
  const Graph *g = e->graph;
  for (size_t i = 0; i < g->n_values; i++)
    if (!g->values[i]->producer) TRY(bind_value(e, g->values[i], test, arena));
  const Value *rate = graph_find_value(g, "tessera.lr"), *step = graph_find_value(g, "tessera.step");
  if (rate && rate->role == ROLE_CONTROL) *(double *)e->data[rate->id] = lr;
  if (step && step->role == ROLE_CONTROL) *(int64_t *)e->data[step->id] = 1;
  return STATUS_OK;
}

// Each micro-batch has inputs of its own.
static void draw_inputs(GraphEval *e, const EvalCase *test, int64_t micro) {
  EvalCase of_micro = *test;
  of_micro.seed += (uint64_t)micro * UINT64_C(7919);
  for (size_t i = 0; i < e->graph->n_inputs; i++) {
    const Value *v = e->graph->inputs[i];
    if (!v->weight && e->data[v->id]) draw(v, &of_micro, 1, e->data[v->id]);
  }
  const Value *j = graph_find_value(e->graph, "tessera.micro");
  if (j && j->role == ROLE_CONTROL) *(int64_t *)e->data[j->id] = micro;
}

// ---- Nodes --------------------------------------------------------------------------------------------------------------------

// Updates by a rule become steps of buckets later on: what they give is not computed.
static Status run_node(GraphEval *e, const Node *n, Isa isa, Arena *arena) {
  Tensor *in = ARENA_ARRAY(arena, Tensor, n->n_inputs), *out = ARENA_ARRAY(arena, Tensor, n->n_outputs);
  if (n->op->flags & OP_COLLECTIVE || n->op == &op_Load)
    FAIL(UNSUPPORTED, n->name, "%s is a step of a plan: it is no graph that runs by itself", n->op->name);
  if (n->op == &op_Update) return STATUS_OK;
  for (int i = 0; i < n->n_inputs; i++)
    if (n->inputs[i]) in[i] = (Tensor){.data = e->data[n->inputs[i]->id], .type = &n->inputs[i]->type};
  for (int i = 0; i < n->n_outputs; i++) {
    const Value *v = n->outputs[i];
    Alias alias;
    if (!v) continue;
    void **data = &e->data[v->id];
    if (node_alias(n, i, ALIAS_UPDATE, &alias)) *data = in[alias.input].data;
    else if (!*data) *data = new_buffer(arena, value_bytes(v));
    out[i] = (Tensor){.data = *data, .type = &v->type};
  }
  return kernel_run_once(n, in, out, isa, false);
}

static Status run_phase(GraphEval *e, Phase phase, Isa isa, Arena *arena) {
  const Graph *g = e->graph;
  for (size_t i = 0; i < g->n_nodes; i++)
    if (g->nodes[i]->phase == phase) TRY(run_node(e, g->nodes[i], isa, arena));
  for (size_t i = 0; i < g->n_values; i++) {
    const Value *v = g->values[i];
    if (v->carry && v->producer && v->producer->phase == phase && e->data[v->id]) copy_unless_same(e->data[v->carry->id], e->data[v->id], value_bytes(v));
  }
  return STATUS_OK;
}

static Status eval_guarded(const Graph *graph, const EvalCase *test, double lr, Isa isa, Arena *arena, GraphEval *out) {
  GraphEval e = {.graph = graph, .data = ARENA_ARRAY(arena, void *, graph->n_values)};
  int64_t k = graph->facts & FACT_ACCUMULATED ? graph->recipe.micro_per_rank : 1;
  TRY(bind_values(&e, test, lr, arena));
  TRY(run_phase(&e, PHASE_INIT, isa, arena));
  for (int64_t j = 0; j < k; j++) {
    draw_inputs(&e, test, j);
    TRY(run_phase(&e, PHASE_MICRO, isa, arena));
  }
  TRY(run_phase(&e, PHASE_UPDATE, isa, arena));
  *out = e;
  return STATUS_OK;
}

Status graph_eval(const Graph *graph, const EvalCase *test, double lr, Isa isa, Arena *arena, GraphEval *out) {
  ARENA_GUARD(arena);
  ARENA_RETURN(arena, eval_guarded(graph, test, lr, isa, arena, out));
}
