// Predicts a training step without running it: an event simulation over queues, waits and phases. All ranks are alike, so a collective never
// waits for another rank: it takes what the machine's links take. The queues do not slow one another down: what a machine's compute and
// communication take from each other is in its rates; but where a rank's queues share one processor, a phase takes as long as all of its work.
//
// Threads: pure; results in the given arena. No time proportional to ranks or sizes.
#ifndef TESSERA_SIMULATE_H
#define TESSERA_SIMULATE_H

#include "estimate.h"

typedef struct StepTime { double start_s, end_s; } StepTime;   // from the start of its phase's execution

// What one cause of communication costs in a training step.
typedef struct CommTime {
  const char *op;              // "AllGather", ...
  Phase phase;
  int32_t bucket;              // -1: none
  Cause cause;                 // of the first such step
  double sent_bytes;           // logical, per rank; of a view that moves nothing, too
  double seconds;              // of its steps
  double exposed_s;            // of them, while the compute queue stands still (or does them itself)
} CommTime;

typedef struct Simulation {
  double step_s;                       // a training step: micro-batches per rank x micro + update; overheads included
  double phase_s[PHASE_COUNT];         // one execution; of init 0: it is not simulated
  double busy_s[QUEUE_COUNT];          // in a training step
  double comm_s, exposed_s;            // in a training step
  double transfer_s, transfer_exposed_s;       // the same of transfers between tiers
  double overhead_s;                   // in a training step: feeding, waking the ranks
  double product_flops;                // of a rank in a training step: matrix products, convolutions, attention, recurrent layers
  double recomputed_flops, recomputed_s;   // of them, and of all seconds of steps: what backward computes again
  StepTime *steps;                     // by node id
  CommTime *comm;                      // in order of first occurrence
  size_t n_comm;
  int64_t peak_bytes;                  // device memory of a rank: of its own, and its part of what ranks share; where they do not share memory,
                                       // its own shards and the gathered copies that are alive at once
  uint32_t peak_step;                  // at which step that is
} Simulation;

// A planned program (FACT_PLANNED). RESOURCE when `arena` is too small; MALFORMED where a wait is not of the same phase and earlier.
MUST_USE Status simulate_step(const Graph *program, const Machine *machine, Arena *arena, Simulation *out);

#endif
