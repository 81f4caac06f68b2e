// prefetch OPTIMISES: collectives move to the communication queue and run while the compute queue goes on. With depth D (--prefetch D), in phase micro:
//
//   - the gather of the i-th bucket in order of use is issued where the first use of bucket i - D begins, so that at most D gathers are ahead;
//   - the step that first writes gradients of the (i + D)-th bucket waits for the reduction of the i-th, so that at most D are under way;
//   - sums over micro-batches of what has been reduced follow on the communication queue.
//
// In phase update the gathers of new parameters run beside the optimizer steps of the next buckets. Which waits are needed besides is for schedule
// to say. The pass moves and pairs steps; it changes none, so that leaving it out changes no bit of any result, and nothing of what is sent.
#include <string.h>

#include "../kernels/ops.h"
#include "pass_list.h"
#include "same_bytes.h"

typedef struct Pair { Node *node; const Node *on; } Pair;      // `node` is to wait for `on`

typedef struct Prefetch {
  Graph *graph;
  int64_t depth;
  size_t first, end;             // of phase micro
  Node **gathers;                // of phase micro, in order of use
  size_t n_gathers;
  size_t *before;                // per gather: it goes before the step that stands there; ascending
  Pair *pairs;
  size_t n_pairs, pairs_capacity;
} Prefetch;

// ---- Queues -------------------------------------------------------------------------------------------------------------------

static void choose_queues(Graph *g) {
  for (size_t i = 0; i < g->n_nodes; i++) {
    Node *n = g->nodes[i];
    const Node *source = n->n_inputs && n->inputs[0] ? n->inputs[0]->producer : NULL;
    bool sums_reduced = n->op == &op_TreeAccumulate && source && source->queue == QUEUE_COMM;
    if ((n->op->flags & OP_COLLECTIVE) || sums_reduced) n->queue = QUEUE_COMM;
  }
}

// ---- Gathers ------------------------------------------------------------------------------------------------------------------

static size_t later(size_t a, size_t b) { return a > b ? a : b; }

// Per value: the gather that makes it, as an index; SIZE_MAX: none.
static size_t *find_gathers(Prefetch *p) {
  Graph *g = p->graph;
  size_t *gather_of = ARENA_ARRAY(g->arena, size_t, g->n_values);
  memset(gather_of, 0xff, g->n_values * sizeof *gather_of);
  p->gathers = ARENA_ARRAY(g->arena, Node *, p->end - p->first);
  for (size_t i = p->first; i < p->end; i++) {
    if (!node_is_gather(g->nodes[i])) continue;
    gather_of[g->nodes[i]->outputs[0]->id] = p->n_gathers;
    p->gathers[p->n_gathers++] = g->nodes[i];
  }
  return gather_of;
}

static size_t *find_first_uses(Prefetch *p, const size_t *gather_of) {
  Graph *g = p->graph;
  size_t *uses = ARENA_ARRAY(g->arena, size_t, p->n_gathers);
  for (size_t i = p->end; i-- > p->first;)
    for (int k = 0; k < g->nodes[i]->n_inputs; k++) {
      const Value *v = g->nodes[i]->inputs[k];
      if (v && gather_of[v->id] != SIZE_MAX) uses[gather_of[v->id]] = i;
    }
  return uses;
}

// Not before: the step it is tied to, the release of the same bucket's last view, what makes the shard.
static void place_gathers(Prefetch *p) {
  Graph *g = p->graph;
  const size_t *gather_of = find_gathers(p), *uses = find_first_uses(p, gather_of);
  size_t *released = ARENA_ARRAY(g->arena, size_t, g->n_values);       // per shard: after its last release so far
  size_t depth = (size_t)p->depth, next = 0;
  p->before = ARENA_ARRAY(g->arena, size_t, p->n_gathers);
  for (size_t i = p->first; i < p->end; i++) {
    const Node *n = g->nodes[i];
    size_t gather = n->op == &op_Release ? gather_of[n->inputs[0]->id] : SIZE_MAX;
    if (gather != SIZE_MAX) released[p->gathers[gather]->inputs[0]->id] = i + 1;
    if (next == p->n_gathers || n != p->gathers[next]) continue;
    const Value *shard = n->inputs[0];
    size_t at = next ? p->before[next - 1] : p->first;
    if (next >= depth) at = later(at, uses[next - depth]);
    at = later(at, released[shard->id]);
    if (shard->producer) at = later(at, shard->producer->id + 1);
    p->before[next++] = at < i ? at : i;
  }
}

static void pair(Prefetch *p, Node *node, const Node *on) { ARENA_PUSH(p->graph->arena, p->pairs, p->n_pairs, p->pairs_capacity, ((Pair){node, on})); }

// The new order. A gather behind the first D waits for the compute step that it now stands behind.
static void move_gathers(Prefetch *p) {
  Graph *g = p->graph;
  Node **nodes = ARENA_ARRAY(g->arena, Node *, g->n_nodes);
  const Node *computed = NULL;
  size_t n = 0, next = 0, at = 0;
  for (size_t i = 0; i < g->n_nodes; i++) {
    for (; next < p->n_gathers && p->before[next] == i; next++) {
      nodes[n++] = p->gathers[next];
      if (next >= (size_t)p->depth && computed) pair(p, p->gathers[next], computed);
    }
    Node *node = g->nodes[i];
    if (at < p->n_gathers && node == p->gathers[at]) {         // stands before this place already
      at++;
      continue;
    }
    if (node->phase == PHASE_MICRO && node->queue == QUEUE_COMPUTE) computed = node;
    nodes[n++] = node;
  }
  graph_set_nodes(g, nodes, n);
}

// ---- Gradients ----------------------------------------------------------------------------------------------------------------

// The first step that may write into the bucket that `pack` makes: its gradients can be produced where they belong.
static Node *first_writer(const Node *pack, Node *const *nodes) {
  const Node *first = pack;
  for (int i = 0; i < pack->n_inputs; i++) {
    const Value *v = pack->inputs[i];
    Alias a;
    while (v->producer && node_alias(v->producer, v->output_index, ALIAS_VIEW, &a)) v = v->producer->inputs[a.input];
    const Node *producer = v->producer;
    if (producer && producer->phase == pack->phase && producer->queue == QUEUE_COMPUTE && producer->id < first->id) first = producer;
  }
  return nodes[first->id];
}

static void hold_gradients(Prefetch *p) {
  Graph *g = p->graph;
  Node **reductions = ARENA_ARRAY(g->arena, Node *, p->end - p->first);
  int64_t n = 0;
  for (size_t i = p->first; i < p->end; i++) {
    Node *node = g->nodes[i];
    const Node *pack = (node->op->flags & OP_SUMS_RANKS) && node->inputs[0] ? node->inputs[0]->producer : NULL;
    if (!pack || pack->op != &op_Pack) continue;
    Node *writer = first_writer(pack, g->nodes);
    int64_t held = n - p->depth;
    while (held >= 0 && reductions[held]->id > writer->id) held--;
    if (held >= 0) pair(p, writer, reductions[held]);
    reductions[n++] = node;
  }
}

// ---- The pass -----------------------------------------------------------------------------------------------------------------

static void set_pairs(Prefetch *p) {
  for (size_t i = 0; i < p->n_pairs; i++) {
    Node *n = p->pairs[i].node;
    uint32_t *waits = ARENA_ARRAY(p->graph->arena, uint32_t, n->n_waits + 1);
    if (n->n_waits) memcpy(waits, n->waits, (size_t)n->n_waits * sizeof *waits);
    waits[n->n_waits++] = p->pairs[i].on->id;
    n->waits = waits;
  }
}

Status pass_prefetch(Graph *graph, const CompileOptions *options) {
  if (options->prefetch < 0) FAIL(USAGE, NULL, "--prefetch %lld: the depth is 0 (off) or more", (long long)options->prefetch);
  if (!options->prefetch) return STATUS_OK;
  Prefetch p = {.graph = graph, .depth = options->prefetch};
  while (p.first < graph->n_nodes && graph->nodes[p.first]->phase != PHASE_MICRO) p.first++;
  for (p.end = p.first; p.end < graph->n_nodes && graph->nodes[p.end]->phase == PHASE_MICRO;) p.end++;
  choose_queues(graph);
  place_gathers(&p);
  move_gathers(&p);
  hold_gradients(&p);
  set_pairs(&p);
  return STATUS_OK;
}
