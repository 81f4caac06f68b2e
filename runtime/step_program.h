// A plan's program as one rank runs it: every address, kernel and prepared state is resolved before the first step.
//
// Ownership: everything but what kernels prepare lies in the given ir Arena; step_program_finish ends what they prepared.
// Threads: the rank's own; the graph is only read.
#ifndef TESSERA_STEP_PROGRAM_H
#define TESSERA_STEP_PROGRAM_H

#include "../kernels/kernel.h"
#include "arena_memory.h"

// A step of another queue must have ended: that many of the steps of `queue` in the same phase.
typedef struct QueueWait {
  Queue queue;
  uint32_t count;
} QueueWait;

typedef struct Step {
  KernelContext context;
  KernelRun run;                                   // NULL: nothing to compute (a view, or a guard alone)
  int64_t view_bytes;                            // logical bytes that a gather by view stands for
  const QueueWait *waits;
  int n_waits;
  bool follows_norm;                             // update: made of what the gradients' norm decides; left out when a step is skipped (loss_scale.h)
  KernelPrepare prepare;
  bool forward;                                  // of phase micro: the loss needs it
} Step;

typedef struct StepQueue {                       // in order
  Step *steps;
  size_t n;
} StepQueue;

typedef struct StepProgram {
  StepQueue queues[PHASE_COUNT][QUEUE_COUNT];
  Tensor *inputs;                                // of the graph, to be filled by the data feed; data NULL: nobody reads it
  size_t n_inputs;
  double *lr;                                    // control scalars; NULL: the plan has no use for it
  double *loss_seed;
  int64_t *step, *micro;
  const double *loss_pair;                       // what the last micro-batch adds to (sum, count) of the loss; NULL: the plan does not say
  const double *loss, *norm, *clipped;           // reports; may be NULL. clipped: norm of gradients that were clipped by value
} StepProgram;

// Where the arenas of a rank lie: memory of the tiers before NVME, and the start of its part of the swap file.
enum { MEMORY_TIERS = TIER_NVME };
typedef struct Arenas {
  const ArenaMemory *rank, *process;               // [MEMORY_TIERS]
  int64_t swap_bytes;                              // of the swap file, before the rank's part
} Arenas;

// Where a value lies for a rank; tier NVME: NULL, and its place in the swap file is value_swap_offset. The plan has passed step_program_check.
void *value_address(const Graph *graph, const Value *value, int rank, const Arenas *arenas);
int64_t value_swap_offset(const Graph *graph, const Value *value, const Arenas *arenas);

// Everything that could make a run touch memory outside its arenas, or wait for what never comes, is refused here, by value and numbers: MALFORMED. Tiers and roles that
// this runtime has no meaning for: UNSUPPORTED.
MUST_USE Status step_program_check(const Graph *graph);

// First half: steps, kernels, prepared states; needs no addresses. `clock` and `comm` are the rank's own. Of a variant (ir/plan.h) only phase micro is
// prepared; the others have no steps.
MUST_USE Status step_program_prepare(const Graph *graph, bool variant, Arena *arena, Isa isa, const RunClock *clock, Comm *comm, const WeightSource *weights,
                                     StepProgram *out);
// Second half: addresses. `swap`: the rank's channel; NULL: the plan has nothing in tier NVME. MALFORMED: windows in another tier would have to be moved.
MUST_USE Status step_program_place(StepProgram *program, const Graph *graph, int rank, const Arenas *arenas, Swap *swap);

// Copies the constants of the plan to their places: all, or only those that are not fixed, which other variants have written over.
MUST_USE Status step_program_place_constants(const Graph *graph, bool fixed_too, int rank, const Arenas *arenas);
void step_program_finish(StepProgram *program);

#endif
