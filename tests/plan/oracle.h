// The oracle of the order proof: runs a small plan in every order that its queues, waits, collectives and guards allow, on all ranks, and says whether
// any of them stops, lets two steps touch the same bytes at a time, or computes something else. It shares no code with passes/verify_order.c.
//
// A step is one event; that two steps may run at the same time shows as both being able to begin in one state, since nothing takes that ability away.
// Bytes hold hashes of what made them. Each rank runs init and two steps of the loop; ranks meet in collectives and guards only.
#ifndef TESSERA_TESTS_ORACLE_H
#define TESSERA_TESTS_ORACLE_H

#include "../../ir/plan.h"

enum { ORACLE_DEADLOCK = 1, ORACLE_RACE = 2, ORACLE_VALUE = 4, ORACLE_BUDGET = 8 };   // BUDGET: more states than allowed, nothing in those seen

typedef struct OracleResult {
  int found;                 // ORACLE_*: what was found first, with which the search ends
  size_t states;
  uint64_t outcome;          // hash of parameters, states and reports after the last step
  uint32_t race[2];          // nodes of the first race
} OracleResult;

// At most 4 ranks and 64 MiB. Ids of the graph are dense and locations are inside their buffers. Aborts when memory runs out.
OracleResult oracle_run(const Graph *graph, size_t states_max);

// Do two steps of one rank need an order: do they touch the same bytes, one writing, or guards and reads of one region?
bool oracle_conflict(const Graph *graph, const Node *a, const Node *b, int rank);

#endif
