#include "rank_queues.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#include "../kernels/ops.h"

// ---- Steps --------------------------------------------------------------------------------------------------------------------

// Says where an error happened: the node unless the kernel named one.
static Status step_error(const Step *step, Status status) {
  const Node *n = step->context.node;
  if (!status->node) status->node = strdup(n->origin ? n->origin : n->name);
  size_t name_bytes = strlen(n->op->name);
  bool named = !strncmp(status->what, n->op->name, name_bytes) && status->what[name_bytes] == ':';     // kernels may begin so themselves
  return named ? status : status_context(status, "%s", n->op->name);
}

// `skip`: only the guards are passed, which all ranks pass alike.
static Status run_step(Comm *comm, const Step *step, bool skip) {
  const Node *n = step->context.node;
  const KernelRun run = skip ? NULL : step->run;
  switch (n->guard) {
  case GUARD_NONE: return run ? run(&step->context) : NULL;
  case GUARD_READ_BEGIN:
    comm->sent_bytes += step->view_bytes;
    return comm->ops->read_begin(comm, n->region);
  case GUARD_READ_END:
    if (run) TRY(run(&step->context));
    return comm->ops->read_end(comm, n->region);
  case GUARD_WRITE:
    TRY(comm->ops->write_begin(comm, n->region));
    if (run) TRY(run(&step->context));
    return comm->ops->write_end(comm, n->region);
  case GUARD_COUNT: break;
  }
  FAIL(MALFORMED, n->name, "guard %d does not exist", (int)n->guard);
}

static Status wait_for_steps(const RankQueues *q, const Step *step) {
  TeamRank *rank = &q->team->rank[q->local];
  for (int k = 0; k < step->n_waits; k++) {
    QueueWait wait = step->waits[k];
    TRY(team_await(q->team, q->local, &rank->steps[wait.queue], q->queues[wait.queue].ended + wait.count, wait.queue, false));
  }
  return NULL;
}

// `tells`: counts the steps, since other queues may wait for them.
static Status run_steps(RankQueues *q, const RankQueue *own, bool tells) {
  const StepQueue *steps = &q->program->queues[q->phase][own->queue];
  TeamRank *rank = &q->team->rank[q->local];
  const RunClock *clock = q->clock;
  TraceLane *lane = clock->evaluates ? NULL : own->lane;
  for (size_t i = 0; i < steps->n; i++) {
    const Step *step = &steps->steps[i];
    int64_t wait_ns = trace_clock(lane), begin_ns = wait_ns;
    Status status = NULL;
    if (step->n_waits) {
      status = wait_for_steps(q, step);
      begin_ns = trace_clock(lane);
    }
    bool skip = (clock->evaluates && !step->forward) || (step->follows_norm && q->skips && !isfinite(*q->program->norm));     // it is known: the step was made of it
    bool look = q->detects && !status && !skip && step->run && tensors_are_finite(step->context.loops, step->context.in, step->context.n_in);
    if (!status) status = run_step(q->comm, step, skip);
    if (q->skips && !status && !skip && q->phase == PHASE_MICRO && step->context.node->op == &op_Pack) bad_gradient_look(&step->context, &q->bad);
    if (look && !status) status = anomaly_check(&step->context, q->detects, q->phase, q->comm->rank);
    if (status) return step_error(step, status);
    trace_record(lane, q->variant, step->context.node, q->phase == PHASE_INIT ? -1 : clock->step, clock->micro, wait_ns, begin_ns);
    if (tells) team_count(&rank->steps[own->queue], 1);      // last: no step that has waited for this one begins before its end in the trace
  }
  return NULL;
}

// ---- Threads ------------------------------------------------------------------------------------------------------------------

// Once the team is stopped, the other queue fails with the team's text: who says why comes first, and is asked for by `failed`.
static void take_status(RankQueues *q, RankQueue *own, Status status) {
  own->status = status;
  if (!status) return;
  int none = -1;
  atomic_compare_exchange_strong(&q->failed, &none, (int)own->queue);
  if (status->rank < 0) status->rank = q->comm->rank;
  char text[512];
  team_abort(q->team, q->comm->rank, status_text(status, text, sizeof text));
}

static void *queue_main(void *self) {
  RankQueue *own = self;
  RankQueues *q = own->rank;
  TeamRank *rank = &q->team->rank[q->local];
  omp_set_num_threads(1);                        // this thread's own: the matrix library runs every primitive on it alone
  for (uint64_t phase = 1;; phase++) {
    status_free(team_await(q->team, q->local, &rank->phases, phase, own->queue, true));      // never fails
    if (q->quit) return NULL;
    take_status(q, own, run_steps(q, own, true));
    team_count(&rank->joins[own->queue], 1);
  }
}

Status rank_queues_create(Team *team, int local, Comm *comm, const RunClock *clock, Trace *trace, const bool used[QUEUE_COUNT], RankQueues *out) {
  *out = (RankQueues){.team = team, .local = local, .comm = comm, .clock = clock};
  atomic_store(&out->failed, -1);
  for (int i = 0; i < QUEUE_COUNT; i++) {
    RankQueue *own = &out->queues[i];
    own->rank = out;
    own->queue = (Queue)i;
    own->lane = trace_lane(trace, comm->rank, (Queue)i);
    if (i == QUEUE_COMPUTE || !used[i]) continue;
    int error = pthread_create(&own->thread, NULL, queue_main, own);
    if (error) FAIL(RESOURCE, NULL, "no thread for queue %s of rank %d: %s", queue_name((Queue)i), comm->rank, strerror(error));
    own->started = true;
  }
  return NULL;
}

void rank_queues_destroy(RankQueues *q) {
  if (!q->team) return;
  q->quit = true;
  team_count(&q->team->rank[q->local].phases, 1);
  for (int i = 0; i < QUEUE_COUNT; i++)
    if (q->queues[i].started) pthread_join(q->queues[i].thread, NULL);
}

// ---- A phase ------------------------------------------------------------------------------------------------------------------

// The other queues touch this phase's memory until they have ended, also once the team is stopped: their own waits end then.
static void join_queues(RankQueues *q) {
  TeamRank *rank = &q->team->rank[q->local];
  for (int i = 0; i < QUEUE_COUNT; i++)
    if (q->queues[i].started) status_free(team_await(q->team, q->local, &rank->joins[i], q->n_phases, (Queue)i, true));
  for (int i = 0; i < QUEUE_COUNT; i++) q->queues[i].ended += q->program->queues[q->phase][i].n;    // nobody reads them now
}

static Status first_status(RankQueues *q) {
  int first = atomic_load(&q->failed);
  Status status = NULL;
  for (int i = 0; i < QUEUE_COUNT; i++) {
    if (i == first) status = q->queues[i].status;
    else status_free(q->queues[i].status);
    q->queues[i].status = NULL;
  }
  return status;
}

Status rank_queues_run(RankQueues *q, const StepProgram *program, int variant, Phase phase) {
  bool alone = true;
  for (int i = 0; i < QUEUE_COUNT; i++) alone &= i == QUEUE_COMPUTE || !program->queues[phase][i].n;
  q->program = program;
  q->variant = variant;
  q->phase = phase;
  RankQueue *own = &q->queues[QUEUE_COMPUTE];
  if (alone) return run_steps(q, own, false);
  q->n_phases++;
  team_count(&q->team->rank[q->local].phases, 1);
  take_status(q, own, run_steps(q, own, true));
  join_queues(q);
  return first_status(q);
}
