// Evaluation: the forward part of phase micro (Step.forward) on other data, between training steps. It runs in the memory of the training program, where all
// that outlives a step stays as it is; guards and waits of the other steps run, too, so that the ranks and queues stay in step.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "executor_state.h"

// Running statistics that forward steps carry on: put back afterwards.
typedef struct Kept { char *at; int64_t bytes; } Kept;

static int64_t for_each_carried(RankState *r, Kept *out) {
  const Executor *e = r->executor;
  int64_t n = 0;
  for (int q = 0; q < QUEUE_COUNT; q++) {
    const StepQueue *queue = &r->programs->queues[PHASE_MICRO][q];
    for (size_t i = 0; i < queue->n; i++) {
      const Node *node = queue->steps[i].context.node;
      for (int o = 0; queue->steps[i].forward && o < node->n_outputs; o++) {
        const Value *v = node->outputs[o];
        if (!v || !v->carry || v->loc.buffer < 0) continue;
        if (out) out[n] = (Kept){value_address(e->graph, v, r->rank, &r->arenas), value_bytes(v)};
        n++;
      }
    }
  }
  return n;
}

static Status evaluate_batch(RankState *r, int64_t batch, double out_pair[2]) {
  Executor *e = r->executor;
  const DataFeed *feed = &e->evaluation.feed;
  int variant = feed->variant ? feed->variant(feed->self, batch) : 0;
  if (variant < 0 || variant >= r->n_placed) FAIL(MALFORMED, NULL, "batch %" PRId64 " of the evaluation has shapes that the plan was not made for", batch);
  TRY(executor_switch_variant(r, variant));
  const StepProgram *program = &r->programs[variant];
  if (program->n_inputs)
    TRY(status_context(feed->fill(feed->self, batch, program->inputs, program->n_inputs), "batch %" PRId64 " of the evaluation", batch));
  r->clock.micro = 0;
  r->clock.global_micro = batch;
  TRY(rank_queues_run(&r->queues, program, variant, PHASE_MICRO));
  memcpy(out_pair, program->loss_pair, 2 * sizeof *out_pair);
  return NULL;
}

// All ranks run as many batches, since they gather parameters together: who has none left takes the last one, which does not count.
static Status evaluate_all(RankState *r) {
  const Evaluation *job = &r->executor->evaluation;
  for (int64_t i = r->rank; i < (job->n + r->executor->n_ranks - 1) / r->executor->n_ranks * r->executor->n_ranks; i += r->executor->n_ranks) {
    double pair[2];
    TRY(evaluate_batch(r, job->first + (i < job->n ? i : job->n - 1), pair));
    if (i < job->n) memcpy(job->pairs[i], pair, sizeof pair);
  }
  return NULL;
}

Status executor_evaluate_rank(RankState *r) {
  int64_t n = for_each_carried(r, NULL), bytes = 0, at = 0;
  Kept *kept = calloc((size_t)n + 1, sizeof *kept);
  if (kept) for_each_carried(r, kept);
  for (int64_t i = 0; kept && i < n; i++) bytes += kept[i].bytes;
  char *copy = kept ? malloc((size_t)bytes + 1) : NULL;
  if (!copy) {
    free(kept);
    FAIL(RESOURCE, NULL, "no memory to keep %" PRId64 " bytes of running statistics while evaluating", bytes);
  }
  for (int64_t i = 0; i < n; at += kept[i++].bytes) memcpy(copy + at, kept[i].at, (size_t)kept[i].bytes);
  RunClock clock = r->clock;
  r->clock.evaluates = true;
  Status status = evaluate_all(r);
  r->clock = clock;
  at = 0;
  for (int64_t i = 0; i < n; at += kept[i++].bytes) memcpy(kept[i].at, copy + at, (size_t)kept[i].bytes);
  free(copy);
  free(kept);
  return status;
}

Status executor_evaluate(Executor *e, const DataFeed *feed, int64_t first, int64_t n, double (*out_pairs)[2]) {
  if (e->failed) FAIL(RANK, NULL, "the executor has stopped after an error");
  if (!e->ranks[0].programs->loss_pair)
    FAIL(UNSUPPORTED, NULL, "the plan has no value 'tessera.loss_pair': nothing says which steps lead to the loss; compile the model again");
  if (n < 1) return NULL;
  e->evaluation = (Evaluation){*feed, first, n, out_pairs};
  memset(out_pairs, 0, (size_t)n * sizeof *out_pairs);
  TRY(executor_command(e, COMMAND_EVALUATE));
  return executor_sum(e, out_pairs, n * (int64_t)sizeof *out_pairs);
}
