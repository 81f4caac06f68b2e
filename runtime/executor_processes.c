// What processes tell each other between steps: sums of words over all of them, in which each fills what is its own and leaves zeros elsewhere, so that the sum is
// the whole, bit by bit. Collectives like any: all processes call the same in the same order.
#include <stdlib.h>
#include <string.h>

#include "executor_state.h"

bool executor_is_first(const Executor *e) { return e->first_rank == 0; }
bool executor_is_alone(const Executor *e) { return e->n_here == e->n_ranks; }
int executor_processes(const Executor *e) { return executor_is_alone(e) ? 1 : e->graph->recipe.processes; }

Status executor_create_sums(Executor *e) {
  if (executor_is_alone(e)) return NULL;
  e->sums = calloc((size_t)e->n_here, SUMS_BYTES);
  if (!e->sums) FAIL(RESOURCE, NULL, "no memory for what %d processes tell each other", e->graph->recipe.processes);
  return NULL;
}

Status executor_sum_rank(RankState *r) {
  Executor *e = r->executor;
  return r->comm->ops->all_reduce(r->comm, 0, e->sums + (size_t)(r->rank - e->first_rank) * SUMS_BYTES, e->sum_words, DTYPE_U32);
}

Status executor_sum(Executor *e, void *data, int64_t bytes) {
  if (executor_is_alone(e)) return NULL;
  for (int64_t at = 0; at < bytes; at += SUMS_BYTES) {
    int64_t n = bytes - at < SUMS_BYTES ? bytes - at : SUMS_BYTES;
    memset(e->sums, 0, (size_t)e->n_here * SUMS_BYTES);
    memcpy(e->sums, (char *)data + at, (size_t)n);
    e->sum_words = (n + 3) / 4;
    TRY(executor_command(e, COMMAND_SUM));
    memcpy((char *)data + at, e->sums, (size_t)n);
  }
  return NULL;
}

Status executor_gather(Executor *e, const void *mine, void *all, int64_t bytes) {
  int n = executor_processes(e), own = executor_is_alone(e) ? 0 : e->first_rank / e->n_here;
  memset(all, 0, (size_t)(n * bytes));
  memcpy((char *)all + own * bytes, mine, (size_t)bytes);
  return executor_sum(e, all, n * bytes);
}

Status executor_any(Executor *e, bool mine, bool *out) {
  uint32_t n = mine;
  TRY(executor_sum(e, &n, sizeof n));
  *out = n != 0;
  return NULL;
}

Status executor_uses(Executor *e, ProcessUse *out) {
  const ProcessUse mine = {executor_memory(e), executor_sent_bytes_per_step(e), executor_copied_bytes_per_step(e), executor_wire_bytes_per_step(e)};
  return executor_gather(e, &mine, out, sizeof mine);
}
