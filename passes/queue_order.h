// What is over when a step starts: the order of a rank's queues, their waits and the ends of phases give (docs/design.md, Queues).
#ifndef TESSERA_QUEUE_ORDER_H
#define TESSERA_QUEUE_ORDER_H

#include "../ir/graph.h"

typedef struct QueueOrder {
  const Graph *graph;
  uint32_t (*ended)[QUEUE_COUNT];    // per step: every step of that queue with a smaller id than this has ended when the step starts
  Phase phase;                       // of the last step taken up
  uint32_t phase_first;              // its first step
  const Node *last[QUEUE_COUNT];     // of each queue, in this phase; NULL: none yet
} QueueOrder;

// Nothing taken up yet. In `arena`.
QueueOrder queue_order_create(const Graph *graph, Arena *arena);

// Takes up the next step (in id order) with what its own queue and the phases before say.
void queue_order_start(QueueOrder *order, const Node *node);

// ... and that it waits for `on`, a step taken up before. False: that it has ended was known.
bool queue_order_wait(QueueOrder *order, const Node *node, const Node *on);

// Takes up all steps with their waits.
void queue_order_follow(QueueOrder *order);

// For lifetimes, once all is taken up: while step `id` runs, the compute queue may be anywhere from step begin[id] to step end[id]. Bytes of which all
// uses end at or before some id may be used anew by all that begins after it. In `arena`, per step.
void queue_order_spans(const QueueOrder *order, Arena *arena, uint32_t **begin, uint32_t **end);

#endif
