// The report of a run as JSON (--report): losses, times, bytes sent and held, the error. Also written when the run fails, with what is
// known by then.
#ifndef TESSERA_REPORT_H
#define TESSERA_REPORT_H

#include "../ir/plan.h"
#include "../runtime/executor.h"
#include "json_write.h"

typedef struct RunReport {
  const Graph *program;            // NULL: the run failed before there was a plan
  int64_t n_steps;                 // finished
  const double *losses, *grad_norms, *step_ms;    // [n_steps]; loss of the global batch, norm before clipping
  const double *param_norms;       // [n_steps * n_norm_params]; NULL: not asked for
  const char *const *norm_params;  // their names
  size_t n_norm_params;
  const double *loss_scales, *skipped;            // [n_steps]; scale of the mean loss, 0: not scaled; 1: the step was skipped
  const double *clipped_norms, *lr;               // [n_steps]; norm after clipping
  int64_t n_evals;                 // evaluations; 0: none
  const int64_t *eval_steps;       // [n_evals]: after the update of which
  const double *eval_losses;       // [n_evals]
  int64_t eval_batches;            // micro-batches of each
  const char *params_hash;         // NULL: not known
  double compile_ms;
  const char *rate_key;            // "tokens_per_s" or "samples_per_s"
  int64_t items_per_step;          // tokens or samples in one step; 0: not known
  const Executor *executor;        // for measurements; NULL: none
  const ProcessUse *uses;          // [n_uses], of each process; NULL: what the executor says of this one
  int n_uses;
  const StatusError *error;        // NULL: none
} RunReport;

// Writes whole or not at all (text_file.h).
MUST_USE Status report_write(const char *path, const RunReport *report);

// "sent_bytes_per_step" and "peak_bytes" of a plan, shared with `show`. Without an executor `measured` is absent. Under the caller's ARENA_GUARD.
void report_write_sent_bytes(JsonWriter *w, const Graph *program, const Executor *executor, Arena *arena);
void report_write_peak_bytes(JsonWriter *w, const Graph *program, const Executor *executor, Arena *arena);

// Sum of bytes x times of the ledger's entries by kind; entries with equal `kind` are neighbours of nobody: looked up by name.
typedef struct KindBytes { const char *kind; int64_t bytes; } KindBytes;
size_t report_bytes_by_kind(const LedgerEntry *entries, size_t n, Arena *arena, KindBytes **out);

#endif
