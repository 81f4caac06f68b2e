// Inside of verify_plan: the proof under way, shared by verify_plan.c (structure, agreement), verify_meaning.c and verify_ownership.c (what
// values mean, who owns what), verify_memory.c (contents of memory, lifetimes) and verify_order.c (queues, waits, races), and
// verify_programs.c (several programs), verify_recompute.c.
#ifndef TESSERA_VERIFY_PROOF_H
#define TESSERA_VERIFY_PROOF_H

#include "verify_plan.h"

typedef struct Proof {
  const Graph *graph;
  Arena *arena;
  PlanDefect *defects;
  size_t n_defects, capacity;
  int program;                     // that is being proved
  int ranks;                       // of axis 0
  bool sound;                      // ids and buffers are what the rest of the proof relies on
  Status refused;                  // no memory to prove it: owned by verify_plan
  bool *placed;                    // per value: its location is inside its buffer
  PlanCounts counts;
} Proof;

// Adds a defect. `node` and `value` may be NULL; the parameter is the value's, else the step's cause.
void proof_defect(Proof *proof, const char *code, const Node *node, const Value *value, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

// Derives what every value means, and what must hold of buckets, sums, loss and norm. The proof must be sound.
void proof_ownership(Proof *proof);

// Steps that compute a forward step again do what that one does, on what it reads. The proof must be sound.
void proof_recompute(Proof *proof);

// Only transfers touch what does not lie on the device.
void proof_tiers(Proof *proof);

// Executes the steps on symbolic memory of several ranks, in the order of their ids.
void proof_memory(Proof *proof);

// Waits are well-formed, and no step waits for itself in a circle. Needs nothing to hold.
void proof_waits(Proof *proof);

// No timing of queues and ranks does anything else than the order of the ids: collectives agree, no two unordered steps touch the same bytes. The proof
// must be sound.
void proof_order(Proof *proof);

// The programs of a plan meet in the same collectives in an order in which none waits for itself. Each has been proved alone, and is sound.
void proof_programs(Proof *proof, const Graph *const *programs, int n);

#endif
