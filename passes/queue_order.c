#include "queue_order.h"

#include <string.h>

QueueOrder queue_order_create(const Graph *graph, Arena *arena) {
  return (QueueOrder){.graph = graph, .ended = arena_alloc(arena, (graph->n_nodes + 1) * sizeof(uint32_t[QUEUE_COUNT])), .phase = PHASE_COUNT};
}

void queue_order_start(QueueOrder *o, const Node *node) {
  uint32_t *ended = o->ended[node->id];
  if (node->phase != o->phase) {
    o->phase = node->phase;
    o->phase_first = node->id;
    memset(o->last, 0, sizeof o->last);
  }
  const Node *before = o->last[node->queue];
  for (int q = 0; q < QUEUE_COUNT; q++) ended[q] = before ? o->ended[before->id][q] : o->phase_first;
  ended[node->queue] = node->id;
  o->last[node->queue] = node;
}

bool queue_order_wait(QueueOrder *o, const Node *node, const Node *on) {
  uint32_t *ended = o->ended[node->id];
  const uint32_t *more = o->ended[on->id];
  if (on->id < ended[on->queue]) return false;
  for (int q = 0; q < QUEUE_COUNT; q++)
    if (more[q] > ended[q]) ended[q] = more[q];
  ended[on->queue] = on->id + 1;
  return true;
}

void queue_order_follow(QueueOrder *o) {
  for (size_t i = 0; i < o->graph->n_nodes; i++) {
    const Node *n = o->graph->nodes[i];
    queue_order_start(o, n);
    for (int k = 0; k < n->n_waits; k++)
      if (n->waits[k] < n->id) queue_order_wait(o, n, o->graph->nodes[n->waits[k]]);
  }
}

// A step of another queue may run while the compute queue is anywhere between the last step that it waits for and the first that waits for it.
void queue_order_spans(const QueueOrder *o, Arena *arena, uint32_t **begin, uint32_t **end) {
  const Graph *g = o->graph;
  uint32_t *first = ARENA_ARRAY(arena, uint32_t, g->n_nodes), *last = ARENA_ARRAY(arena, uint32_t, g->n_nodes);
  for (size_t phase_first = 0, phase_end; phase_first < g->n_nodes; phase_first = phase_end) {
    uint32_t open[QUEUE_COUNT];              // steps from here on have not been waited for yet
    for (phase_end = phase_first; phase_end < g->n_nodes && g->nodes[phase_end]->phase == g->nodes[phase_first]->phase; phase_end++) {
      first[phase_end] = o->ended[phase_end][QUEUE_COMPUTE];
      last[phase_end] = (uint32_t)phase_end;
    }
    for (int q = 0; q < QUEUE_COUNT; q++) open[q] = (uint32_t)phase_first;
    for (size_t i = phase_first; i <= phase_end; i++) {
      if (i < phase_end && g->nodes[i]->queue != QUEUE_COMPUTE) continue;
      for (int q = 0; q < QUEUE_COUNT; q++) {
        if (q == QUEUE_COMPUTE) continue;
        uint32_t until = i < phase_end ? o->ended[i][q] : (uint32_t)phase_end;
        for (; open[q] < until; open[q]++)
          if ((int)g->nodes[open[q]]->queue == q) last[open[q]] = (uint32_t)i - 1;
      }
    }
  }
  *begin = first;
  *end = last;
}
