// What is recorded of every step: a row of a CSV or JSONL file (--metrics), and scalars of a TensorBoard event file (--tensorboard). One table of
// columns decides both; docs/metrics.md lists them.
//
// Ownership: step_log_open gives what step_log_close ends. Threads: one. Every row is in the files when step_log_add returns.
#ifndef TESSERA_STEP_LOG_H
#define TESSERA_STEP_LOG_H

#include <stdbool.h>

#include "../runtime/executor.h"

typedef struct StepRow {
  int64_t step;
  double loss, eval_loss;          // eval_loss: NAN when this step has none
  bool has_eval;
  double lr, grad_norm, clipped_norm;
  double loss_scale;               // of the mean loss; 0: not scaled
  int64_t skipped;                 // 1: nothing was updated, the gradients were not finite
  double rate;                     // tokens or samples per second of this step
  double ms, micro_ms, update_ms;
  int64_t sent_bytes;              // logical, per rank and step
  int64_t peak_bytes;              // resident, of the process so far
} StepRow;

typedef struct StepLog StepLog;

// USAGE unless the suffix of `metrics` is .csv or .jsonl; each may be NULL. rate_key: "tokens_per_s" or "samples_per_s"; must outlive the log.
MUST_USE Status step_log_check(const char *metrics);
MUST_USE Status step_log_open(const char *metrics, const char *tensorboard, const char *rate_key, StepLog **out);
MUST_USE Status step_log_add(StepLog *log, const StepRow *row);
MUST_USE Status step_log_close(StepLog *log);              // NULL is fine

#endif
