#include "step_log.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/decimal.h"
#include "event_file.h"

// name: in CSV and JSONL; NULL: the log's rate_key. tag: in TensorBoard; NULL: the step itself.
typedef struct Column {
  const char *name, *tag;
  bool integer, of_eval;           // of_eval: only rows with an evaluation have it
  size_t offset;                   // in StepRow
} Column;

static const Column columns[] = {
    {"step", NULL, true, false, offsetof(StepRow, step)},
    {"loss", "loss/train", false, false, offsetof(StepRow, loss)},
    {"eval_loss", "loss/eval", false, true, offsetof(StepRow, eval_loss)},
    {"lr", "lr", false, false, offsetof(StepRow, lr)},
    {"grad_norm", "grad_norm/before_clipping", false, false, offsetof(StepRow, grad_norm)},
    {"clipped_grad_norm", "grad_norm/after_clipping", false, false, offsetof(StepRow, clipped_norm)},
    {"loss_scale", "loss_scale/scale", false, false, offsetof(StepRow, loss_scale)},
    {"skipped", "loss_scale/skipped", true, false, offsetof(StepRow, skipped)},
    {NULL, "speed/", false, false, offsetof(StepRow, rate)},
    {"sent_bytes", "bytes/sent", true, false, offsetof(StepRow, sent_bytes)},
    {"peak_bytes", "bytes/peak_memory", true, false, offsetof(StepRow, peak_bytes)},
    {"ms", "ms/step", false, false, offsetof(StepRow, ms)},
    {"micro_ms", "ms/micro", false, false, offsetof(StepRow, micro_ms)},
    {"update_ms", "ms/update", false, false, offsetof(StepRow, update_ms)},
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

struct StepLog {
  FILE *to;                        // NULL: no file asked for
  const char *path, *rate_key;
  bool csv;
  EventFile *events;
  char rate_tag[64];
};

static bool ends_in(const char *path, const char *suffix) {
  size_t n = strlen(path), m = strlen(suffix);
  return n >= m && !strcmp(path + n - m, suffix);
}

Status step_log_check(const char *metrics) {
  if (metrics && !ends_in(metrics, ".csv") && !ends_in(metrics, ".jsonl"))
    FAIL(USAGE, NULL, "--metrics '%s': the suffix says the format, .csv or .jsonl", metrics);
  return STATUS_OK;
}

static int64_t int_of(const StepRow *row, const Column *c) { return *(const int64_t *)((const char *)row + c->offset); }
static double real_of(const StepRow *row, const Column *c) { return *(const double *)((const char *)row + c->offset); }
static const char *name_of(const StepLog *log, const Column *c) { return c->name ? c->name : log->rate_key; }

static Status flush_row(StepLog *log) {
  if (fflush(log->to) || ferror(log->to)) FAIL(IO, NULL, "--metrics: cannot write '%s': %s", log->path, strerror(errno));
  return STATUS_OK;
}

static Status write_titles(StepLog *log) {
  for (int i = 0; i < N_COLUMNS; i++) fprintf(log->to, "%s%s", i ? "," : "", name_of(log, &columns[i]));
  fputc('\n', log->to);
  return flush_row(log);
}

static void write_csv(StepLog *log, const StepRow *row) {
  char text[DECIMAL_BYTES];
  for (int i = 0; i < N_COLUMNS; i++) {
    const Column *c = &columns[i];
    if (i) fputc(',', log->to);
    if (c->of_eval && !row->has_eval) continue;
    if (c->integer) fprintf(log->to, "%" PRId64, int_of(row, c));
    else if (isfinite(real_of(row, c))) fputs(decimal_text(real_of(row, c), text), log->to);
    else fputs(isnan(real_of(row, c)) ? "nan" : real_of(row, c) > 0 ? "inf" : "-inf", log->to);
  }
}

static void write_jsonl(StepLog *log, const StepRow *row) {
  char text[DECIMAL_BYTES];
  for (int i = 0; i < N_COLUMNS; i++) {
    const Column *c = &columns[i];
    if (c->of_eval && !row->has_eval) continue;
    fprintf(log->to, "%s\"%s\": ", i ? ", " : "{", name_of(log, c));
    if (c->integer) fprintf(log->to, "%" PRId64, int_of(row, c));
    else fputs(isfinite(real_of(row, c)) ? decimal_text(real_of(row, c), text) : "null", log->to);
  }
  fputc('}', log->to);
}

static Status add_event(StepLog *log, const StepRow *row) {
  EventScalar scalars[N_COLUMNS];
  int n = 0;
  for (int i = 0; i < N_COLUMNS; i++) {
    const Column *c = &columns[i];
    if (!c->tag || (c->of_eval && !row->has_eval)) continue;
    scalars[n++] = (EventScalar){c->name ? c->tag : log->rate_tag, c->integer ? (double)int_of(row, c) : real_of(row, c)};
  }
  return event_file_add(log->events, row->step, scalars, n);
}

static Status open_all(StepLog *log, const char *tensorboard) {
  if (log->path && !(log->to = fopen(log->path, "w"))) FAIL(IO, NULL, "--metrics: cannot write '%s': %s", log->path, strerror(errno));
  if (log->to && log->csv) TRY(write_titles(log));
  return tensorboard ? event_file_open(tensorboard, &log->events) : STATUS_OK;
}

Status step_log_open(const char *metrics, const char *tensorboard, const char *rate_key, StepLog **out) {
  TRY(step_log_check(metrics));
  StepLog *log = calloc(1, sizeof *log);
  if (!log) FAIL(RESOURCE, NULL, "no memory for the metrics");
  log->path = metrics;
  log->rate_key = rate_key;
  log->csv = metrics && ends_in(metrics, ".csv");
  snprintf(log->rate_tag, sizeof log->rate_tag, "speed/%s", rate_key);
  Status status = open_all(log, tensorboard);
  if (status) status_free(step_log_close(log));
  else *out = log;
  return status;
}

Status step_log_add(StepLog *log, const StepRow *row) {
  if (log->to) {
    if (log->csv) write_csv(log, row);
    else write_jsonl(log, row);
    fputc('\n', log->to);
    TRY(flush_row(log));
  }
  return log->events ? add_event(log, row) : STATUS_OK;
}

Status step_log_close(StepLog *log) {
  if (!log) return STATUS_OK;
  Status status = STATUS_OK;
  if (log->to && fclose(log->to)) status = status_fail(STATUS_IO, NULL, "--metrics: cannot write '%s': %s", log->path, strerror(errno));
  Status events = event_file_close(log->events);
  if (status) status_free(events);
  else status = events;
  free(log);
  return status;
}
