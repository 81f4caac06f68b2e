// Spreads the steps of a plan over queues at random, with the waits that they need: plans of several queues, for tests of what proves and runs them.
#ifndef TESSERA_TESTS_SPREAD_H
#define TESSERA_TESTS_SPREAD_H

#include "../../ir/graph.h"

// Sets queue and waits of every node: collectives on comm, of the others `others` of 100 on comm or, with `io`, io. No wait is given that others imply. In
// the graph's arena. Small plans only: quadratic in steps.
void spread_over_queues(Graph *graph, unsigned seed, int others, bool io);

#endif
