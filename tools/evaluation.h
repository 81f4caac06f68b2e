// --eval-data: the loss of the current parameters on other data, every so many steps and after the last one.
//
// Life: evaluation_open (before compiling) -> evaluation_bind (the plan is there) -> evaluation_run between steps -> evaluation_finish (also when zeroed).
// Threads: one.
#ifndef TESSERA_EVALUATION_H
#define TESSERA_EVALUATION_H

#include "../runtime/executor.h"
#include "compile_flow.h"

typedef struct EvalHistory {
  int64_t *steps;                  // [n]: after the update of which
  double *losses;                  // [n]
  int64_t n, capacity;
} EvalHistory;

typedef struct EvalRun {
  Data *data;                      // NULL: there is no --eval-data
  DataFeed data_feed, feed;        // `feed`: with programs in place of variants
  int *programs;                   // of a variant of the data, its program in the plan
  int64_t every;                   // steps; 0: only after the last one
  int64_t micro_batches;           // of a step
  int64_t n_batches;               // of an evaluation
  double (*pairs)[2];              // [micro_batches]
  EvalHistory history;
} EvalRun;

// USAGE: --eval-every or --eval-steps without --eval-data.
MUST_USE Status evaluation_open(const Flow *flow, const Options *options, uint64_t seed, EvalRun *out);
MUST_USE Status evaluation_bind(EvalRun *eval, const Flow *flow, const Options *options, int64_t micro_batches);
bool evaluation_is_due(const EvalRun *eval, int64_t steps_done, bool last);

// Of the parameters after `step`; kept in the history. alive: called every so often, since an evaluation may take longer than a step may.
MUST_USE Status evaluation_run(EvalRun *eval, Executor *executor, int64_t step, void (*alive)(void *self), void *self, double *out_loss);
void evaluation_finish(EvalRun *eval);

#endif
