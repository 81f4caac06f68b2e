// When each step of each rank ran: events of some training steps, and sums over the whole run. Everything is allocated before the step loop; a step costs
// two readings of the clock and no lock, since each lane (one queue of one rank) is written by one thread at a time.
//
// Life: the caller makes a Trace for its plan, gives it to the executor (ExecutorOptions.trace) and reads it after executor_run. It must outlive the executor; nodes
// that events name are the plan's. Threads: lanes as above; all else by the caller's thread, outside executor_run.
#ifndef TESSERA_TRACE_H
#define TESSERA_TRACE_H

#include <stdbool.h>

#include "../ir/clock.h"
#include "../ir/plan.h"

typedef struct TraceEvent {
  const Node *node;
  int64_t begin_ns, end_ns;        // of the monotonic clock
  int64_t waited_ns;               // right before `begin_ns`: for steps of other queues
  int64_t step;                    // training step; -1: phase init
  int64_t micro;                   // micro-batch of the rank; of phase update the last one
} TraceEvent;

// All executions of one step by one rank.
typedef struct TraceTotal { int64_t busy_ns, waited_ns, count; } TraceTotal;

typedef struct TraceLane {
  TraceEvent *events;              // [n_init + ring]; NULL: none are kept
  int64_t n_init, ring;            // room for phase init, which stays; and for the training steps, the newest of which stay
  int64_t done_init, done;         // recorded so far
  int64_t first_step, last_step;   // training steps that are recorded
  TraceTotal **totals;             // [variants][n_nodes]
} TraceLane;

typedef struct TraceOptions {
  bool events;
  int64_t first_step, last_step;   // record these training steps; last_step -1: the newest `newest_steps`
  int64_t newest_steps;
  int ranks;                       // from rank 0 on, that run here; 0: those of one process
} TraceOptions;

typedef struct Trace Trace;

// RESOURCE when the events do not fit in TRACE_BYTES_MAX or in memory.
#define TRACE_BYTES_MAX ((int64_t)2 << 30)
MUST_USE Status trace_create(const Plan *plan, const TraceOptions *options, Trace **out);
void trace_destroy(Trace *trace);                                    // NULL is fine
// Room for the sums of a further variant, before the executor gets it.
MUST_USE Status trace_add_variant(Trace *trace, const Graph *variant);

// For the executor. NULL where there is no trace or the queue has no steps.
TraceLane *trace_lane(Trace *trace, int rank, Queue queue);
static inline int64_t trace_clock(const TraceLane *lane) { return lane ? clock_now_ns() : 0; }
// A step has run since `begin_ns`, after it had waited for other queues since `wait_ns` (the same time where it had not). `step` as in TraceEvent.
void trace_record(TraceLane *lane, int variant, const Node *node, int64_t step, int64_t micro, int64_t wait_ns, int64_t begin_ns);

// For readers. Events of a lane are numbered in order of time: all of init, then the newest steps.
int trace_ranks(const Trace *trace);
int trace_variants(const Trace *trace);
const Graph *trace_variant(const Trace *trace, int variant);
int64_t trace_lane_events(const TraceLane *lane);
const TraceEvent *trace_lane_event(const TraceLane *lane, int64_t i);

#endif
