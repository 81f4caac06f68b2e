#include "spread.h"

#include <stdlib.h>
#include <string.h>

#include "../../ir/op.h"
#include "oracle.h"

typedef struct Spread { Graph *graph; bool *before; size_t n; } Spread;      // before[b * n + a]: a happens before b

static void join(Spread *s, size_t b, size_t a) {
  s->before[b * s->n + a] = true;
  for (size_t i = 0; i < s->n; i++) s->before[b * s->n + i] |= s->before[a * s->n + i];
}

static bool conflict(const Graph *g, const Node *a, const Node *b) {
  bool both = (a->op->flags & OP_COLLECTIVE) && (b->op->flags & OP_COLLECTIVE);
  for (int r = 0; r < mesh_ranks(&g->mesh); r++) both |= oracle_conflict(g, a, b, r);
  return both;
}

static void add_waits(Spread *s, Node *node) {
  Graph *g = s->graph;
  uint32_t *waits = ARENA_ARRAY(g->arena, uint32_t, node->id);
  int n = 0;
  for (uint32_t i = node->id; i-- > 0 && g->nodes[i]->phase == node->phase;)
    if (g->nodes[i]->queue == node->queue) {
      join(s, node->id, i);
      break;
    }
  for (uint32_t i = node->id; i-- > 0 && g->nodes[i]->phase == node->phase;) {
    if (s->before[node->id * s->n + i] || !conflict(g, g->nodes[i], node)) continue;
    waits[n++] = i;
    join(s, node->id, i);
  }
  node->waits = waits;
  node->n_waits = n;
}

void spread_over_queues(Graph *graph, unsigned seed, int others, bool io) {
  Spread s = {graph, ARENA_ARRAY(graph->arena, bool, graph->n_nodes * graph->n_nodes), graph->n_nodes};
  for (size_t i = 0; i < graph->n_nodes; i++) {
    Node *node = graph->nodes[i];
    bool moved = rand_r(&seed) % 100 < others;
    node->queue = node->op->flags & OP_COLLECTIVE ? QUEUE_COMM : !moved ? QUEUE_COMPUTE : !io || rand_r(&seed) % 2 ? QUEUE_COMM : QUEUE_IO;
  }
  for (size_t i = 0; i < graph->n_nodes; i++) add_waits(&s, graph->nodes[i]);
}
