// What a person sees of a run: one line a step, or a live line on a terminal.
#ifndef TESSERA_PROGRESS_H
#define TESSERA_PROGRESS_H

#include <stdio.h>

#include "../runtime/executor.h"

typedef struct Progress {
  FILE *lines;                 // plain line per step; NULL: none
  bool live;                   // stdout is a terminal: one line that is overwritten
  bool brief;                  // stdout is no terminal and lines go elsewhere: a line there at least every ten seconds
  int64_t shown_ns;            // when the last brief line was printed
  int64_t steps;               // planned; -1: unknown
  int64_t done;
  int64_t items_per_step;      // tokens or samples
  const char *item;            // "tokens" or "samples"
  double smoothed_ms;          // of a step, exponentially
  bool evaluated;
  double eval_loss;            // newest, once evaluated
} Progress;

void progress_step(Progress *progress, const StepResult *result);
void progress_evaluation(Progress *progress, int64_t step, double loss);     // after the update of `step`
void progress_finish(Progress *progress);       // ends the live line

// "1.5 MiB"; returns `out`.
const char *bytes_text(int64_t bytes, char out[32]);

#endif
