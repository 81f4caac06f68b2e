#include "trace.h"

#include <stdlib.h>
#include <string.h>

struct Trace {
  int n_ranks, n_variants;
  const Graph **variants;
  TraceLane *lanes;                // [n_ranks][QUEUE_COUNT]
  bool used[QUEUE_COUNT];
};

// Steps of a queue in each phase; the most of all variants.
typedef struct QueueSteps { int64_t n[PHASE_COUNT]; } QueueSteps;

static QueueSteps count_steps(const Plan *plan, Queue queue) {
  QueueSteps most = {{0}};
  for (int v = 0; v < plan->n_variants; v++) {
    QueueSteps here = {{0}};
    for (size_t i = 0; i < plan->variants[v]->n_nodes; i++)
      if (plan->variants[v]->nodes[i]->queue == queue) here.n[plan->variants[v]->nodes[i]->phase]++;
    for (int p = 0; p < PHASE_COUNT; p++)
      if (here.n[p] > most.n[p]) most.n[p] = here.n[p];
  }
  return most;
}

static Status no_memory(void) { return status_fail(STATUS_RESOURCE, NULL, "no memory for the trace; fewer steps need less: --trace-steps A:B"); }

// Written once before the step loop, so that no page is missing in it.
static void *populated(int64_t n, size_t item_bytes) {
  size_t bytes = (size_t)n * item_bytes;
  void *memory = malloc(bytes ? bytes : 1);
  if (memory) memset(memory, 0, bytes);
  return memory;
}

static Status make_lanes(Trace *t, const Plan *plan, const TraceOptions *o, Queue queue) {
  QueueSteps steps = count_steps(plan, queue);
  int64_t newest = o->last_step < 0 ? o->newest_steps : o->last_step - o->first_step + 1;
  int64_t per_step = bytes_add(bytes_times(steps.n[PHASE_MICRO], plan->programs[0]->recipe.micro_per_rank), steps.n[PHASE_UPDATE]);
  int64_t ring = bytes_times(per_step, newest), room = bytes_add(steps.n[PHASE_INIT], ring), bytes = bytes_times(bytes_times(room, sizeof(TraceEvent)), t->n_ranks);
  t->used[queue] = per_step + steps.n[PHASE_INIT] > 0;
  if (o->events && bytes > TRACE_BYTES_MAX)
    FAIL(RESOURCE, NULL, "a trace of %lld training steps of %d ranks needs %lld bytes, more than %lld; fewer steps need less: --trace-steps A:B",
         (long long)newest, t->n_ranks,
         (long long)bytes, (long long)TRACE_BYTES_MAX);
  for (int r = 0; r < t->n_ranks && t->used[queue]; r++) {
    TraceLane *lane = &t->lanes[r * QUEUE_COUNT + queue];
    *lane = (TraceLane){.first_step = o->first_step, .last_step = o->last_step < 0 ? INT64_MAX : o->last_step};
    if (!o->events) continue;
    lane->events = populated(room, sizeof(TraceEvent));
    if (!lane->events) return no_memory();
    lane->n_init = steps.n[PHASE_INIT];
    lane->ring = ring;
  }
  return STATUS_OK;
}

Status trace_add_variant(Trace *t, const Graph *variant) {
  int n = t->n_variants;
  const Graph **variants = realloc(t->variants, (size_t)(n + 1) * sizeof *variants);
  if (!variants) return no_memory();
  t->variants = variants;
  for (int l = 0; l < t->n_ranks * QUEUE_COUNT; l++) {
    if (!t->used[l % QUEUE_COUNT]) continue;
    TraceTotal **totals = realloc(t->lanes[l].totals, (size_t)(n + 1) * sizeof *totals);
    if (!totals) return no_memory();
    t->lanes[l].totals = totals;
    totals[n] = NULL;
  }
  t->variants[t->n_variants++] = variant;        // trace_destroy ends what has been made of it
  for (int l = 0; l < t->n_ranks * QUEUE_COUNT; l++)
    if (t->used[l % QUEUE_COUNT] && !(t->lanes[l].totals[n] = populated((int64_t)variant->n_nodes, sizeof(TraceTotal)))) return no_memory();
  return STATUS_OK;
}

static Status fill(Trace *t, const Plan *plan, const TraceOptions *options) {
  for (int q = 0; q < QUEUE_COUNT; q++) TRY(make_lanes(t, plan, options, (Queue)q));
  for (int v = 0; v < plan->n_variants; v++) TRY(trace_add_variant(t, plan->variants[v]));
  return STATUS_OK;
}

Status trace_create(const Plan *plan, const TraceOptions *options, Trace **out) {
  Trace *t = calloc(1, sizeof *t);
  if (!t) return no_memory();
  t->n_ranks = options->ranks ? options->ranks : plan->programs[0]->recipe.ranks_per_process;
  t->lanes = calloc((size_t)t->n_ranks * QUEUE_COUNT, sizeof *t->lanes);
  Status status = t->lanes ? fill(t, plan, options) : no_memory();
  if (status) trace_destroy(t);
  else *out = t;
  return status;
}

void trace_destroy(Trace *t) {
  if (!t) return;
  for (int l = 0; t->lanes && l < t->n_ranks * QUEUE_COUNT; l++) {
    for (int v = 0; t->lanes[l].totals && v < t->n_variants; v++) free(t->lanes[l].totals[v]);
    free(t->lanes[l].totals);
    free(t->lanes[l].events);
  }
  free(t->lanes);
  free(t->variants);
  free(t);
}

TraceLane *trace_lane(Trace *t, int rank, Queue queue) { return t && t->used[queue] ? &t->lanes[rank * QUEUE_COUNT + queue] : NULL; }

static TraceEvent *next_event(TraceLane *lane, int64_t step) {
  if (!lane->events) return NULL;
  if (step < 0) return lane->done_init < lane->n_init ? &lane->events[lane->done_init++] : NULL;
  if (step < lane->first_step || step > lane->last_step || !lane->ring) return NULL;
  return &lane->events[lane->n_init + lane->done++ % lane->ring];
}

void trace_record(TraceLane *lane, int variant, const Node *node, int64_t step, int64_t micro, int64_t wait_ns, int64_t begin_ns) {
  if (!lane) return;
  int64_t end_ns = clock_now_ns();
  TraceTotal *total = &lane->totals[variant][node->id];
  total->busy_ns += end_ns - begin_ns;
  total->waited_ns += begin_ns - wait_ns;
  total->count++;
  TraceEvent *event = next_event(lane, step);
  if (event) *event = (TraceEvent){.node = node, .begin_ns = begin_ns, .end_ns = end_ns, .waited_ns = begin_ns - wait_ns, .step = step, .micro = micro};
}

int trace_ranks(const Trace *t) { return t->n_ranks; }
int trace_variants(const Trace *t) { return t->n_variants; }
const Graph *trace_variant(const Trace *t, int variant) { return t->variants[variant]; }

int64_t trace_lane_events(const TraceLane *lane) { return lane->done_init + (lane->done < lane->ring ? lane->done : lane->ring); }

const TraceEvent *trace_lane_event(const TraceLane *lane, int64_t i) {
  if (i < lane->done_init) return &lane->events[i];
  i -= lane->done_init;
  int64_t oldest = lane->done > lane->ring ? lane->done - lane->ring : 0;
  return &lane->events[lane->n_init + (oldest + i) % lane->ring];
}
