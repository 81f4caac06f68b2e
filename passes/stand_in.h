// A fused node stands in for the one whose results it makes.
#ifndef TESSERA_STAND_IN_H
#define TESSERA_STAND_IN_H

#include "../ir/graph.h"

// `made`, which has no outputs of its own, makes the first output of `old` from now on, at old's place in the schedule and for old's origin. The caller puts it
// into the list of nodes.
static inline void node_stand_in(Node *made, const Node *old) {
  made->n_outputs = 1;
  made->outputs = old->outputs;
  made->origin = old->origin;
  made->phase = old->phase;
  made->backward = old->backward;
  old->outputs[0]->producer = made;
}

#endif
