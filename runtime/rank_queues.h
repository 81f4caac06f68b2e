// The queues of one rank: its own thread runs the compute queue, another thread each other queue that the plan uses. Every thread runs the steps of
// its queue in order; a step starts when those that it waits for have ended; a phase ends when all queues have run their steps of it.
//
// Threads: all functions from the rank's own thread, but create and destroy, which are the caller's while that thread does nothing or is gone.
#ifndef TESSERA_RANK_QUEUES_H
#define TESSERA_RANK_QUEUES_H

#include <pthread.h>
#include <stdatomic.h>

#include "anomaly.h"
#include "step_program.h"
#include "team.h"
#include "trace.h"

typedef struct RankQueue {
  struct RankQueues *rank;
  Queue queue;
  pthread_t thread;
  bool started;                      // has a thread of its own
  TraceLane *lane;                   // where its steps are taken down; NULL: nowhere
  uint64_t ended;                    // steps of all phases before this one
  Status status;                     // of the phase under way
} RankQueue;

typedef struct RankQueues {
  Team *team;
  int local;                         // rank within the team
  Comm *comm;
  const RunClock *clock;             // the rank's; while it evaluates only forward steps compute, and nothing is traced
  RankQueue queues[QUEUE_COUNT];
  const Graph *detects;              // anomalies are looked for; its buckets name parameters. NULL: they are not
  bool skips;                        // what follows from a norm that is not finite is left out; gradients of micro-batches are looked at
  BadGradient bad;                   // the first of them since the owner has set bucket to -1
  uint64_t n_phases;                 // begun so far with threads
  const StepProgram *program;        // of the phase under way
  int variant;                       // that the program is of
  Phase phase;
  bool quit;
  atomic_int failed;                 // the queue that failed first; -1: none
} RankQueues;

// Starts a thread for each queue but compute that is in `used`. `trace` may be NULL. RESOURCE when there is none to be had; destroy ends those that were started.
MUST_USE Status rank_queues_create(Team *team, int local, Comm *comm, const RunClock *clock, Trace *trace, const bool used[QUEUE_COUNT], RankQueues *out);
void rank_queues_destroy(RankQueues *queues);      // zeroed or half created is fine

// Runs one phase on all queues. The first queue that fails stops the team, and with it all other queues and ranks; its status carries rank and node.
MUST_USE Status rank_queues_run(RankQueues *queues, const StepProgram *program, int variant, Phase phase);

#endif
