// order_memory: another order of the steps of a micro-batch, when less lives at once in it. Steps that do not depend on each other may change places;
// forward stays before backward. A greedy walk takes next that ready step which adds least to what lives (what it makes, less what it is the last to
// read), or which makes least. The original order stays unless in one of these at least 1 % less lives. No result depends on the order of independent steps.
//
// What lives is told from values, before there are buckets and buffers: views and what is written over an operand share its bytes; parameters and what
// lives on count nothing; gradients of parameters stay to the end of the micro-batch, unless each bucket is reduced as it completes (stages 2 and 3).
#include <string.h>

#include "../kernels/kernel.h"
#include "../kernels/ops.h"
#include "pass_list.h"
#include "same_bytes.h"

typedef enum Rule { RULE_GROWTH, RULE_MAKES, RULE_COUNT } Rule;

typedef struct Step {
  Node *node;
  uint32_t *after;               // steps that depend on it, once for each reason
  size_t n_after, after_capacity;
  uint32_t n_before;             // how often it stands in the lists of others
  uint32_t *roots;               // that it touches, each once
  int n_roots;
  int64_t temporaries;           // bytes
} Step;

typedef struct Root {
  int64_t bytes;                 // that come with the first step that touches it; 0: not counted
  uint32_t *steps;               // that touch it, each once
  size_t n_steps, steps_capacity;
  bool stays;                    // its bytes do not go with the last of them
  uint32_t writer;               // while dependences are found: 1 + the last step that writes it; 0: none
  uint32_t *readers;             // ... and those that have read it since
  size_t n_readers, readers_capacity;
} Root;

typedef struct Order {
  Graph *graph;
  Arena *arena;
  Value **root_of;               // per value
  Root *roots;                   // per value id
  Step *steps;                   // of one micro-batch, in the original order
  uint32_t n, first_backward;    // from there on all count as backward
  uint32_t *step_of;             // per node: its step; UINT32_MAX: of another phase
} Order;

// ---- What depends on what -----------------------------------------------------------------------------------------------------

static void depend(Order *o, uint32_t on, uint32_t step) {
  if (on == step) return;
  ARENA_PUSH(o->arena, o->steps[on].after, o->steps[on].n_after, o->steps[on].after_capacity, step);
  o->steps[step].n_before++;
}

static void touch(Order *o, uint32_t step, const Value *v, bool writes) {
  uint32_t id = o->root_of[v->id]->id;
  Root *r = &o->roots[id];
  Step *s = &o->steps[step];
  if (r->writer) depend(o, r->writer - 1, step);
  for (size_t i = 0; writes && i < r->n_readers; i++) depend(o, r->readers[i], step);
  if (writes) {
    r->writer = step + 1;
    r->n_readers = 0;
  } else {
    ARENA_PUSH(o->arena, r->readers, r->n_readers, r->readers_capacity, step);
  }
  for (int i = 0; i < s->n_roots; i++)
    if (s->roots[i] == id) return;
  s->roots[s->n_roots++] = id;
  ARENA_PUSH(o->arena, r->steps, r->n_steps, r->steps_capacity, step);
}

static Status find_dependences(Order *o, Isa isa) {
  for (uint32_t i = 0; i < o->n; i++) {
    Step *s = &o->steps[i];
    const Node *n = s->node;
    s->roots = ARENA_ARRAY(o->arena, uint32_t, n->n_inputs + n->n_outputs);
    for (int k = 0; k < n->n_inputs; k++) {
      if (!n->inputs[k]) continue;
      const Node *producer = n->inputs[k]->producer;     // of a view, which writes nothing, too
      if (producer && o->step_of[producer->id] != UINT32_MAX) depend(o, o->step_of[producer->id], i);
      touch(o, i, n->inputs[k], false);
    }
    for (int k = 0; k < n->n_outputs; k++)
      if (n->outputs[k]) touch(o, i, n->outputs[k], !output_is_view(o->graph, n, k));
    KernelPrepare p = {.node = n, .isa = isa};
    TRY(kernel_temporaries(&p));
    s->temporaries = p.workspace_bytes + p.scratch_bytes;
  }
  return STATUS_OK;
}

// ---- What lives ---------------------------------------------------------------------------------------------------------------

static void weigh_roots(Order *o) {
  Graph *g = o->graph;
  for (size_t i = 0; i < g->n_values; i++) {
    const Value *v = g->values[i], *root = o->root_of[i];
    Root *r = &o->roots[root->id];
    bool made = v->producer && o->step_of[v->producer->id] != UINT32_MAX, counted = root->role == ROLE_ACTIVATION || root->role == ROLE_GRAD;
    if (made && counted) r->bytes = value_bytes(root);
    if (v->role == ROLE_GRAD && v->of && v->of->role == ROLE_PARAM && g->recipe.zero < 2) r->stays = true;
  }
  for (size_t i = 0; i < g->n_nodes; i++)                // what the update reads
    for (int k = 0; o->step_of[i] == UINT32_MAX && k < g->nodes[i]->n_inputs; k++)
      if (g->nodes[i]->inputs[k] && g->nodes[i]->inputs[k]->role != ROLE_GRAD) o->roots[o->root_of[g->nodes[i]->inputs[k]->id]->id].stays = true;
  for (size_t i = 0; i < g->n_outputs; i++) o->roots[o->root_of[g->outputs[i]->id]->id].stays = true;
}

typedef struct Walk {
  const Order *order;
  uint32_t *left;                // per root: steps that touch it and have not run
  bool *lives;                   // per root
} Walk;

static Walk walk_begin(const Order *o) {
  Walk w = {o, ARENA_ARRAY(o->arena, uint32_t, o->graph->n_values), ARENA_ARRAY(o->arena, bool, o->graph->n_values)};
  for (size_t i = 0; i < o->graph->n_values; i++) w.left[i] = (uint32_t)o->roots[i].n_steps;
  return w;
}

static bool ends_with(const Walk *w, uint32_t root) { return w->left[root] == 1 && !w->order->roots[root].stays; }

// What a step does to what lives.
typedef struct Effect {
  int64_t made;                  // bytes that live from it on
  int64_t over;                  // of them, those that can be written over an operand that ends with it
  int64_t ended;                 // bytes that it is the last to touch
} Effect;

enum { OVER_MAX = 4 };

static int64_t written_over(const Walk *w, const Node *n, int output, int64_t bytes, uint32_t taken[OVER_MAX], int *n_taken) {
  const Order *o = w->order;
  for (int i = 0; n->op->alias && i < n->n_inputs && *n_taken < OVER_MAX; i++) {
    Alias a;
    if (!n->inputs[i] || !n->op->alias(n, output, i, &a) || a.kind != ALIAS_INPLACE) continue;
    uint32_t root = o->root_of[n->inputs[i]->id]->id;
    bool again = false;
    for (int t = 0; t < *n_taken; t++) again |= taken[t] == root;
    if (again || !w->lives[root] || !ends_with(w, root) || o->roots[root].bytes != bytes) continue;
    taken[(*n_taken)++] = root;
    return bytes;
  }
  return 0;
}

static Effect effect_of(const Walk *w, uint32_t step) {
  const Order *o = w->order;
  const Step *s = &o->steps[step];
  Effect e = {0};
  uint32_t taken[OVER_MAX];
  int n_taken = 0;
  for (int k = 0; k < s->node->n_outputs; k++) {
    const Value *v = s->node->outputs[k];
    if (!v || o->root_of[v->id] != v || w->lives[v->id]) continue;
    e.made += o->roots[v->id].bytes;
    e.over += written_over(w, s->node, k, o->roots[v->id].bytes, taken, &n_taken);
  }
  for (int i = 0; i < s->n_roots; i++)
    if (ends_with(w, s->roots[i])) e.ended += o->roots[s->roots[i]].bytes;
  return e;
}

static void run(Walk *w, uint32_t step) {
  const Step *s = &w->order->steps[step];
  for (int i = 0; i < s->n_roots; i++) {
    w->lives[s->roots[i]] = true;
    w->left[s->roots[i]]--;
  }
}

// The most that lives at once.
static int64_t most_live(const Order *o, const uint32_t *order) {
  Walk w = walk_begin(o);
  int64_t live = 0, most = 0;
  for (uint32_t i = 0; i < o->n; i++) {
    Effect e = effect_of(&w, order[i]);
    int64_t now = live + e.made - e.over + o->steps[order[i]].temporaries;
    if (now > most) most = now;
    live += e.made - e.ended;
    run(&w, order[i]);
  }
  return most;
}

// ---- The greedy walk: ready steps on a heap by score, then by original order. A step whose score falls, since it has become the last to touch something,
// is put there once more; entries that are out of date are passed over. -------------------------------------------------------------------------------------

typedef struct Entry { int64_t score; uint32_t step; bool backward; } Entry;     // backward: after all that is not
typedef struct Heap { Entry *items; size_t n, capacity; Arena *arena; } Heap;

static bool is_before(const Entry *a, const Entry *b) {
  if (a->backward != b->backward) return !a->backward;
  return a->score != b->score ? a->score < b->score : a->step < b->step;
}

static void push(Heap *h, Entry e) {
  ARENA_PUSH(h->arena, h->items, h->n, h->capacity, e);
  size_t i = h->n - 1;
  for (; i > 0 && is_before(&e, &h->items[(i - 1) / 2]); i = (i - 1) / 2) h->items[i] = h->items[(i - 1) / 2];
  h->items[i] = e;
}

static Entry pop(Heap *h) {
  Entry top = h->items[0], moved = h->items[--h->n];
  size_t i = 0;
  for (size_t below; (below = 2 * i + 1) < h->n; i = below) {
    if (below + 1 < h->n && is_before(&h->items[below + 1], &h->items[below])) below++;
    if (!is_before(&h->items[below], &moved)) break;
    h->items[i] = h->items[below];
  }
  h->items[i] = moved;
  return top;
}

static int64_t score(const Walk *w, uint32_t step, Rule rule) {
  Effect e = effect_of(w, step);
  return rule == RULE_GROWTH ? e.made - e.ended : e.made - e.over;
}

typedef struct Greedy {
  Walk walk;
  Heap heap;
  Rule rule;
  uint32_t *waits;               // per step: how many of those before it have not run
  bool *done;
} Greedy;

static void push_step(Greedy *g, uint32_t step) {
  push(&g->heap, (Entry){score(&g->walk, step, g->rule), step, step >= g->walk.order->first_backward});
}

// Those that have become the last to touch something end it.
static void push_last_ones(Greedy *g, const Step *run) {
  for (int i = 0; i < run->n_roots; i++) {
    const Root *r = &g->walk.order->roots[run->roots[i]];
    if (g->walk.left[run->roots[i]] != 1 || !r->bytes) continue;
    for (size_t k = 0; k < r->n_steps; k++)
      if (!g->done[r->steps[k]] && !g->waits[r->steps[k]]) push_step(g, r->steps[k]);
  }
}

static uint32_t *greedy_order(const Order *o, Rule rule) {
  Greedy g = {.walk = walk_begin(o), .heap = {.arena = o->arena}, .rule = rule};
  g.waits = ARENA_ARRAY(o->arena, uint32_t, o->n);
  g.done = ARENA_ARRAY(o->arena, bool, o->n);
  uint32_t *order = ARENA_ARRAY(o->arena, uint32_t, o->n), n = 0;
  for (uint32_t i = 0; i < o->n; i++) g.waits[i] = o->steps[i].n_before;
  for (uint32_t i = 0; i < o->n; i++)
    if (!g.waits[i]) push_step(&g, i);
  while (g.heap.n) {
    Entry e = pop(&g.heap);
    if (g.done[e.step]) continue;
    if (score(&g.walk, e.step, rule) != e.score) {
      push_step(&g, e.step);
      continue;
    }
    const Step *s = &o->steps[e.step];
    g.done[e.step] = true;
    order[n++] = e.step;
    run(&g.walk, e.step);
    for (size_t k = 0; k < s->n_after; k++)
      if (--g.waits[s->after[k]] == 0) push_step(&g, s->after[k]);
    push_last_ones(&g, s);
  }
  return order;
}

// ---- The pass -----------------------------------------------------------------------------------------------------------------

static void set_order(Order *o, const uint32_t *order) {
  Graph *g = o->graph;
  Node **nodes = ARENA_ARRAY(g->arena, Node *, g->n_nodes);
  uint32_t n = 0;
  for (size_t i = 0; i < g->n_nodes; i++) nodes[i] = o->step_of[i] == UINT32_MAX ? g->nodes[i] : o->steps[order[n++]].node;
  graph_set_nodes(g, nodes, g->n_nodes);
}

Status pass_order_memory(Graph *graph, const CompileOptions *options) {
  if (options->variants) return STATUS_OK;               // variants must agree on the order of what their buckets need, whatever their shapes
  Arena *arena = graph->arena;
  Order o = {.graph = graph, .arena = arena, .root_of = same_bytes(graph, arena), .roots = ARENA_ARRAY(arena, Root, graph->n_values)};
  o.steps = ARENA_ARRAY(arena, Step, graph->n_nodes);
  o.step_of = ARENA_ARRAY(arena, uint32_t, graph->n_nodes);
  for (size_t i = 0; i < graph->n_nodes; i++) {
    o.step_of[i] = graph->nodes[i]->phase == PHASE_MICRO ? o.n : UINT32_MAX;
    if (graph->nodes[i]->phase == PHASE_MICRO) o.steps[o.n++].node = graph->nodes[i];
  }
  while (o.first_backward < o.n && !o.steps[o.first_backward].node->backward) o.first_backward++;
  TRY(find_dependences(&o, options->isa));
  weigh_roots(&o);
  uint32_t *best = ARENA_ARRAY(arena, uint32_t, o.n);
  for (uint32_t i = 0; i < o.n; i++) best[i] = i;
  int64_t original = most_live(&o, best), least = original - original / 100;
  bool changed = false;
  for (int rule = 0; rule < RULE_COUNT; rule++) {
    uint32_t *order = greedy_order(&o, (Rule)rule);
    int64_t most = most_live(&o, order);
    if (most >= least) continue;
    least = most;
    best = order;
    changed = true;
  }
  if (changed) set_order(&o, best);
  return STATUS_OK;
}
