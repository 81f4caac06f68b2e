// The processes of a run: which there are, how they reach each other, and that they want the same. Only here the environment is asked who has started us.
//
// Under mpirun or srun each process runs its own ranks and says nothing but its own errors; the one with rank 0 writes logs, reports and checkpoints. A plan for
// several processes that nobody has started is emulated: all of them run in this one (runtime/transport.h, threads).
#ifndef TESSERA_JOB_H
#define TESSERA_JOB_H

#include <stdio.h>

#include "../ir/plan.h"
#include "../runtime/transport.h"
#include "options.h"

typedef struct Job {
  Transport **transports;          // to the other processes, of each process that runs here; NULL: there are none
  int n_transports;
  int process, processes;          // started by mpirun or srun; 0 of 1: by neither
  FILE *errors;                    // where to say our own errors; NULL: stderr
  bool told;                       // the error that was returned is said by the first process, and all have ended in step
} Job;

// Has somebody started several processes of us? Sets their number and ours; asks the environment alone, so before any fork.
MUST_USE Status job_find(const Options *options, Job *out);

// In the worker: opens the way to the other processes. *out: the options with as many ranks as these processes have, where nothing says otherwise, and without
// what the first process alone writes. It borrows the strings of `given`.
MUST_USE Status job_open(Job *job, const Options *given, Options *out);

// The plan is known: are there as many processes as it is for? Makes those that are to be emulated.
MUST_USE Status job_take_plan(Job *job, const Graph *program);

// What processes must have alike before the first collective. NULL where there is no plan: `mine` says why.
typedef struct JobState { const Plan *plan; const char *version; } JobState;

// All processes tell each other how they stand (mine: NULL, or this one's error) and what they have; the error names the process that failed or that has something
// else, and what. The first process says it; others that it is not about return it, too.
MUST_USE Status job_agree(Job *job, const Options *options, const JobState *state, const StatusError *mine);

// orderly: nothing has failed.
void job_close(Job *job, bool orderly);

#endif
