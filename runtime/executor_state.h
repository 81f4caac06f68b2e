// The inside of an Executor, shared by executor.c (life and steps) and executor_read.c (what lies where afterwards).
#ifndef TESSERA_EXECUTOR_STATE_H
#define TESSERA_EXECUTOR_STATE_H

#include <pthread.h>

#include "executor.h"
#include "comm_nodes.h"
#include "rank_queues.h"
#include "step_program.h"
#include "swap.h"
#include "team.h"

// A process of the plan whose ranks this executor runs.
typedef struct ProcessState {
  Team *team;
  Nodes *nodes;                      // to the other processes; NULL: there are none
  ArenaMemory memory[MEMORY_TIERS];  // what its ranks share
  SwapFile *swap;                    // NULL: nothing lies in it
} ProcessState;

typedef struct RankState {
  Executor *executor;
  ProcessState *process;
  int rank;                          // of all
  int local;                         // of its process
  pthread_t thread;
  Comm *comm;                        // the team's, or `link`, or what wraps them
  Comm *link;                        // own; NULL: none
  RankQueues queues;
  Arena *arena;                      // of the programs
  StepProgram *programs;             // [executor->n_variants]; 0 has all phases, the others phase micro
  int n_prepared, n_placed;          // of them
  int variant;                       // whose constants are in place
  ArenaMemory memory[MEMORY_TIERS];
  Arenas arenas;                     // its memory and the process's
  Swap *swap;                        // NULL: the plan has nothing in tier NVME
  RunClock clock;                    // kernels see it
  Status status;                     // of the last command
  double micro_ms, update_ms;        // of the last step
  int64_t sent_bytes, copied_bytes, wire_bytes;   // per step: the largest so far
  int64_t swap_read_bytes, swap_written_bytes;    // likewise
  double swap_ms;                    // of the last step, in requests of the swap file
} RankState;

typedef enum Command { COMMAND_NONE, COMMAND_PREPARE, COMMAND_PLACE, COMMAND_EXTEND, COMMAND_INIT, COMMAND_STEP, COMMAND_EVALUATE, COMMAND_SUM, COMMAND_QUIT } Command;

typedef struct Evaluation { DataFeed feed; int64_t first, n; double (*pairs)[2]; } Evaluation;   // of the command under way

struct Executor {
  const Graph *graph;                // program 0
  const Graph **variants;            // [n_variants]; 0 is `graph`
  int n_variants;
  const WeightSource *weights;
  DataFeed feed;
  bool has_feed;
  ExecutorOptions options;
  double max_norm;                   // that gradients are clipped to; INFINITY: they are not
  Isa isa;
  int n_ranks;                       // of the plan
  int n_here, first_rank, n_threads; // ranks that run here, the first of them; started
  int n_processes;                   // that run here
  ProcessState *processes;           // [n_processes]
  RankState *ranks;                  // [n_here]
  MemoryUse memory;
  int64_t next_step;
  bool scales;                       // the loss, by `scale`
  LossScale scale;
  bool stopped;                      // on_step said so, here or in another process
  bool failed;                       // the ranks are no longer in step: nothing runs any more
  bool stuck;                        // a rank hangs: its thread cannot be ended, and nothing that it uses can be freed

  pthread_mutex_t prepare_mutex;
  pthread_mutex_t mutex;             // guards the rest
  pthread_cond_t go, done;
  Command command;
  Evaluation evaluation;
  char *sums;                        // [n_here][SUMS_BYTES]: what is summed over all ranks between steps; NULL: all of them are here
  int64_t sum_words;
  uint64_t command_number;
  int n_done;
};

// After a step whose norm is not finite: the parameter whose gradient was the first not to be so, with the rank and micro-batch that made it. Where all
// micro-batches gave finite ones, their sum is not: the first parameter in the order of buckets, the rank that holds it, *micro -1. NULL: none.
MUST_USE Status executor_bad_gradient(Executor *e, const char **param, int *rank, int64_t *micro);

// ---- executor.c, for the other files ----

MUST_USE Status executor_command(Executor *executor, Command command);         // all ranks do it; from the caller's thread
MUST_USE Status executor_switch_variant(RankState *rank, int variant);         // its constants into place; from the rank's thread

// ---- executor_processes.c: data that are 0 where another process knows them. Nothing to do where all ranks are here. ----

enum { SUMS_BYTES = 1 << 16 };       // at a time
MUST_USE Status executor_create_sums(Executor *executor);
MUST_USE Status executor_sum_rank(RankState *rank);
MUST_USE Status executor_sum(Executor *executor, void *data, int64_t bytes);
MUST_USE Status executor_gather(Executor *executor, const void *mine, void *all, int64_t bytes);     // all: [executor_processes][bytes]

// ---- executor_evaluate.c ----

MUST_USE Status executor_evaluate_rank(RankState *rank);

#endif
