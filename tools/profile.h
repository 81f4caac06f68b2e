// `run --trace` and `run --profile`: makes the trace of a run before it, and tells what it holds after it. Threads: one.
#ifndef TESSERA_PROFILE_H
#define TESSERA_PROFILE_H

#include "../runtime/trace.h"
#include "options.h"
#include "style.h"

// As --trace, --trace-steps and --profile ask; *out NULL where none of them is given. USAGE when the steps are no A:B.
MUST_USE Status profile_open(const Options *options, const Plan *plan, int ranks, Trace **out);      // ranks: that run here

// After a run of `n_steps` training steps: writes the trace, prints the profile to stderr. Nothing without a trace.
MUST_USE Status profile_close(const Options *options, const Trace *trace, int64_t n_steps);

// Measured seconds by phase and operator, and what communication took from computing, by cause: means over the ranks, per training step.
MUST_USE Status profile_print(const Style *style, const Trace *trace, int64_t n_steps);

#endif
