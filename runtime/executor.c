// Life of an executor: rank threads that follow commands, and the step loop. One command at a time; the caller's thread waits for all ranks.
#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../ir/clock.h"
#include "../kernels/ops.h"
#include "anomaly.h"
#include "executor_state.h"
#include "memory_limit.h"

enum { NS_PER_S = 1000000000, LOOK_NS = 100000000 };
static const int64_t default_deadline_ns = 600 * (int64_t)NS_PER_S;
static const int64_t RESERVE_BYTES_MAX = (int64_t)1 << 40;   // of address space per rank

// ---- One rank -----------------------------------------------------------------------------------------------------------------

static double learning_rate(const Executor *e, int64_t step) {
  return e->options.schedule ? lr_schedule_at(e->options.schedule, step) : e->graph->recipe.lr;
}

// The constants of variants lie over each other; those that the update reads are fixed and need no care.
Status executor_switch_variant(RankState *r, int variant) {
  if (variant == r->variant) return NULL;
  r->variant = variant;
  return step_program_place_constants(r->executor->variants[variant], false, r->rank, &r->arenas);
}

static Status run_micro(RankState *r, int64_t j) {
  Executor *e = r->executor;
  int64_t k = r->clock.micro_per_rank;
  r->clock.micro = j;
  r->clock.global_micro = e->graph->recipe.reduce == REDUCE_MICRO ? j * e->n_ranks + r->rank : r->rank * k + j;
  if (r->programs->micro) *r->programs->micro = j;
  int64_t batch = r->clock.step * k * e->n_ranks + r->clock.global_micro;
  int variant = e->has_feed && e->feed.variant ? e->feed.variant(e->feed.self, batch) : 0;
  if (variant < 0 || variant >= r->n_placed) FAIL(MALFORMED, NULL, "batch %" PRId64 " has shapes that the plan was not made for", batch);
  TRY(executor_switch_variant(r, variant));
  const StepProgram *program = &r->programs[variant];
  if (program->n_inputs) {
    if (!e->has_feed) FAIL(USAGE, NULL, "the plan has %zu inputs and nobody feeds them", program->n_inputs);
    TRY(status_context(e->feed.fill(e->feed.self, batch, program->inputs, program->n_inputs), "batch %" PRId64, batch));
    if (e->options.detect_anomaly) TRY(anomaly_check_inputs(loops_for(e->isa), e->variants[variant], program->inputs, program->n_inputs, batch));
  }
  return rank_queues_run(&r->queues, program, variant, PHASE_MICRO);
}

static void count_bytes(int64_t now, int64_t before, int64_t *largest) {
  if (now - before > *largest) *largest = now - before;
}

static bool is_spoilt(const RankState *r) {
  const ExecutorOptions *o = &r->executor->options;
  bool any = false;
  for (int i = 0; i < o->n_inf_steps; i++) any |= o->inf_steps[i] == (double)r->clock.step;
  return any && o->inf_rank == r->rank;
}

static Status run_training_step(RankState *r) {
  Executor *e = r->executor;
  Comm before = *r->comm;
  Swap swapped = r->swap ? *r->swap : (Swap){0};
  r->clock.step = e->next_step;
  int64_t applied = e->scales ? e->scale.applied : r->clock.step;
  double seed = e->scales ? e->scale.scale / e->graph->recipe.loss_units : 0;
  if (e->options.fault_rank == r->rank && e->options.fault_step == r->clock.step) FAIL(RANK, NULL, "the failure that --fault asked for");
  if (r->programs->lr) *r->programs->lr = learning_rate(e, applied);
  if (r->programs->step) *r->programs->step = applied + 1;
  if (e->scales) *r->programs->loss_seed = is_spoilt(r) ? INFINITY : seed;
  r->queues.bad = (BadGradient){.bucket = -1};
  double start_ms = clock_now_ms();
  for (int64_t j = 0; j < r->clock.micro_per_rank; j++) TRY(run_micro(r, j));
  if (e->scales) *r->programs->loss_seed = seed;
  double update_ms = clock_now_ms();
  TRY(rank_queues_run(&r->queues, r->programs, 0, PHASE_UPDATE));
  r->micro_ms = update_ms - start_ms;
  r->update_ms = clock_now_ms() - update_ms;
  count_bytes(r->comm->sent_bytes, before.sent_bytes, &r->sent_bytes);
  count_bytes(r->comm->copied_bytes, before.copied_bytes, &r->copied_bytes);
  count_bytes(r->comm->wire_bytes, before.wire_bytes, &r->wire_bytes);
  if (!r->swap) return NULL;
  count_bytes(r->swap->read_bytes, swapped.read_bytes, &r->swap_read_bytes);
  count_bytes(r->swap->written_bytes, swapped.written_bytes, &r->swap_written_bytes);
  r->swap_ms = (double)(r->swap->read_ns - swapped.read_ns + r->swap->write_ns - swapped.write_ns) / 1e6;
  return NULL;
}

static Status place_programs(RankState *r) {
  for (; r->n_placed < r->n_prepared; r->n_placed++)
    TRY(step_program_place(&r->programs[r->n_placed], r->executor->variants[r->n_placed], r->rank, &r->arenas, r->swap));
  return NULL;
}

static Status place_rank(RankState *r) {
  Executor *e = r->executor;
  for (int tier = 0; tier < MEMORY_TIERS; tier++) {
    arena_memory_populate(&r->memory[tier], 0, 1);
    arena_memory_populate(&r->process->memory[tier], r->local, e->n_here / e->n_processes);
  }
  TRY(r->comm->ops->barrier(r->comm));           // a page that another rank populates later would be zeroed under our constants
  TRY(place_programs(r));
  return step_program_place_constants(e->graph, true, r->rank, &r->arenas);
}

static int64_t arena_bytes(const Executor *e, Scope scope, Tier tier) {
  int64_t most = 0;
  for (int v = 0; v < e->n_variants; v++) {
    int64_t bytes = plan_arena_bytes(e->variants[v], scope, tier);
    if (bytes > most) most = bytes;
  }
  return most;
}

static Status extend_rank(RankState *r) {
  for (int tier = 0; tier < MEMORY_TIERS; tier++) TRY(arena_memory_grow(&r->memory[tier], arena_bytes(r->executor, SCOPE_RANK, (Tier)tier)));
  return place_programs(r);
}

// One rank at a time: the matrix library finds primitives that another rank has made in a cache of the process.
static Status prepare_rank(RankState *r) {
  Executor *e = r->executor;
  Status status = NULL;
  pthread_mutex_lock(&e->prepare_mutex);
  while (!status && r->n_prepared < e->n_variants) {
    int v = r->n_prepared;
    status = step_program_prepare(e->variants[v], v > 0, r->arena, e->isa, &r->clock, r->comm, e->weights, &r->programs[v]);
    r->n_prepared++;                             // what a failed one has prepared is ended with it
  }
  pthread_mutex_unlock(&e->prepare_mutex);
  return status;
}

static Status obey(RankState *r, Command command) {
  switch (command) {
  case COMMAND_PREPARE: return prepare_rank(r);
  case COMMAND_PLACE: return place_rank(r);
  case COMMAND_EXTEND: return extend_rank(r);
  case COMMAND_INIT:
    TRY(r->comm->ops->barrier(r->comm));         // PROCESS constants are written by rank 0
    return rank_queues_run(&r->queues, r->programs, 0, PHASE_INIT);
  case COMMAND_STEP: return run_training_step(r);
  case COMMAND_EVALUATE: return executor_evaluate_rank(r);
  case COMMAND_SUM: return executor_sum_rank(r);
  case COMMAND_NONE:
  case COMMAND_QUIT: break;
  }
  return NULL;
}

// The first failing rank stops the team; the others then fail with the team's text, which says nothing new.
static void take_status(RankState *r, Status status) {
  r->status = status;
  if (!status) return;
  if (status->rank < 0) status->rank = r->rank;
  char text[512];
  team_abort(r->process->team, r->rank, status_text(status, text, sizeof text));
}

static void *rank_main(void *self) {
  RankState *r = self;
  Executor *e = r->executor;
  omp_set_num_threads(1);                        // this thread's own: the matrix library runs every primitive on it alone
  uint64_t seen = 0;
  for (;;) {
    pthread_mutex_lock(&e->mutex);
    while (e->command_number == seen) pthread_cond_wait(&e->go, &e->mutex);
    seen = e->command_number;
    Command command = e->command;
    pthread_mutex_unlock(&e->mutex);
    if (command == COMMAND_QUIT) return NULL;
    take_status(r, obey(r, command));
    pthread_mutex_lock(&e->mutex);
    if (++e->n_done == e->n_here) pthread_cond_signal(&e->done);
    pthread_mutex_unlock(&e->mutex);
  }
}

// ---- The caller's side --------------------------------------------------------------------------------------------------------

static void post(Executor *e, Command command) {
  pthread_mutex_lock(&e->mutex);
  e->command = command;
  e->command_number++;
  e->n_done = 0;
  pthread_cond_broadcast(&e->go);
  pthread_mutex_unlock(&e->mutex);
}

static int64_t deadline_ns(const Executor *e) { return e->options.deadline_ns > 0 ? e->options.deadline_ns : default_deadline_ns; }

// The team of the first process here that has stopped; NULL: none has.
static Team *first_aborted(const Executor *e) {
  for (int p = 0; p < e->n_processes; p++)
    if (team_aborted(e->processes[p].team)) return e->processes[p].team;
  return NULL;
}

// Waits for the ranks as long as the team is well: every wait inside a rank has a deadline of its own. Once it is aborted, a rank that does not
// come back within the deadline hangs in a kernel or in the data feed: false.
static bool wait_for_all(Executor *e) {
  int64_t aborted_for_ns = 0;
  pthread_mutex_lock(&e->mutex);
  while (e->n_done < e->n_here && aborted_for_ns < deadline_ns(e)) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += LOOK_NS;
    end.tv_sec += end.tv_nsec / NS_PER_S;
    end.tv_nsec %= NS_PER_S;
    int timed_out = pthread_cond_timedwait(&e->done, &e->mutex, &end);
    if (timed_out && first_aborted(e)) aborted_for_ns += LOOK_NS;
  }
  bool all = e->n_done == e->n_here;
  pthread_mutex_unlock(&e->mutex);
  return all;
}

// The error of the rank that failed first; all others are ended. Every rank is idle.
static Status first_status(Executor *e) {
  int first = team_abort_rank(first_aborted(e));
  Status status = NULL;
  for (int r = 0; r < e->n_here; r++) {
    Status s = e->ranks[r].status;
    e->ranks[r].status = NULL;
    if (s && e->ranks[r].rank == first) {
      status_free(status);
      status = s;
    } else if (s && !status) {
      status = s;
    } else {
      status_free(s);
    }
  }
  return status;
}

Status executor_command(Executor *e, Command command) {
  post(e, command);
  if (!wait_for_all(e)) {
    e->failed = e->stuck = true;
    FAIL(RANK, NULL, "step %" PRId64 ": %s; and %.3f s later not all ranks have come back: one hangs", e->next_step, team_abort_text(first_aborted(e)),
         (double)deadline_ns(e) / 1e9);
  }
  if (!first_aborted(e)) return NULL;
  e->failed = true;
  Status status = first_status(e);
  if (command == COMMAND_EVALUATE) return status_context(status, "evaluating before step %" PRId64, e->next_step);
  if (command == COMMAND_SUM) return status_context(status, "before step %" PRId64, e->next_step);
  return command == COMMAND_STEP ? status_context(status, "step %" PRId64, e->next_step) : status_context(status, "at start");
}

bool executor_stopped(const Executor *e) { return e->stopped; }
bool executor_was_told(const Executor *e) {
  Team *team = e->processes ? first_aborted(e) : NULL;
  int rank = team ? team_abort_rank(team) : e->first_rank;
  return rank < e->first_rank || rank >= e->first_rank + e->n_here;
}

void executor_abort(Executor *e, const StatusError *error) {
  char text[512];
  status_text(error, text, sizeof text);
  for (int p = 0; e->processes && p < e->n_processes; p++)
    if (e->processes[p].team) team_abort(e->processes[p].team, e->first_rank + p * (e->n_here / e->n_processes), text);
  e->failed = true;
}

static Status check_processes(const Graph *g, const ExecutorOptions *options) {
  const Recipe *recipe = &g->recipe;
  int n = options->n_transports, all = n ? options->transports[0]->processes : 1;
  if (recipe->ranks_per_process < 1 || recipe->processes < 1 || (int64_t)recipe->processes * recipe->ranks_per_process != mesh_ranks(&g->mesh))
    FAIL(MALFORMED, NULL, "the plan has a mesh of %d ranks, and %d processes of %d ranks", mesh_ranks(&g->mesh), recipe->processes, recipe->ranks_per_process);
  if (recipe->processes != all) FAIL(UNSUPPORTED, NULL, "the plan is for %d processes, and there %s %d", recipe->processes, all == 1 ? "is" : "are", all);
  for (int p = 0; p < n; p++)
    if (options->transports[p]->process != options->transports[0]->process + p) FAIL(USAGE, NULL, "the processes that run here do not follow each other");
  return NULL;
}

static Status check_target(const Graph *g, Isa *isa) {
  const Recipe *recipe = &g->recipe;
  if (!(g->facts & FACT_PLANNED)) FAIL(USAGE, NULL, "graph '%s' is no finished plan", g->name);
  if (recipe->threads_per_rank != 1)
    FAIL(UNSUPPORTED, NULL, "the plan is for %d threads per rank; this runtime computes each rank on one, so that sums keep their order", recipe->threads_per_rank);
  if (recipe->micro_per_rank < 1) FAIL(MALFORMED, NULL, "the plan has %" PRId64 " micro-batches per rank", recipe->micro_per_rank);
  if (!recipe->isa || !isa_from_name(recipe->isa, isa)) FAIL(MALFORMED, NULL, "the plan is for instruction set '%s'", recipe->isa ? recipe->isa : "");
  if (!isa_available(*isa))
    FAIL(UNSUPPORTED, NULL, "the plan is for %s, which this processor does not have; compile it with --isa %s", recipe->isa, isa_name(isa_best()));
  char key[256];
  kernel_numerics_key(*isa, key, sizeof key);
  if (recipe->numerics_key && strcmp(recipe->numerics_key, key))
    FAIL(UNSUPPORTED, NULL, "the plan was made for the kernels '%s', here are '%s': its bits would differ; compile the model again", recipe->numerics_key, key);
  return NULL;
}

// Which queues have steps, in any variant: those need a thread. Variants agree on it (plan_add_variant).
static void find_queues(const Executor *e, bool used[QUEUE_COUNT]) {
  for (int v = 0; v < e->n_variants; v++)
    for (size_t i = 0; i < e->variants[v]->n_nodes; i++) used[e->variants[v]->nodes[i]->queue] = true;
}

static Status start_threads(Executor *e, const bool used[QUEUE_COUNT]) {
  int each = e->n_here / e->n_processes;
  for (int r = 0; r < e->n_here; r++) {
    RankState *rank = &e->ranks[r];
    rank->executor = e;
    rank->process = &e->processes[r / each];
    rank->rank = e->first_rank + r;
    rank->local = r % each;
    rank->comm = rank->process->nodes ? nodes_comm(rank->process->nodes, rank->local) : team_comm(rank->process->team, rank->local);
    if (e->options.link_latency_ns || e->options.link_ns_per_mib) {
      TRY(comm_link_create(rank->comm, e->options.link_latency_ns, e->options.link_ns_per_mib, &rank->link));
      rank->comm = rank->link;
    }
    if (e->options.wrap_comm) rank->comm = e->options.wrap_comm(e->options.wrap_self, rank->comm);
    TRY(rank_queues_create(rank->process->team, rank->local, rank->comm, &rank->clock, e->options.trace, used, &rank->queues));
    if (e->options.detect_anomaly) rank->queues.detects = e->graph;
    rank->queues.skips = e->scales;
    rank->clock = (RunClock){.micro_per_rank = e->graph->recipe.micro_per_rank, .seed = e->options.seed};
    rank->arena = arena_create(0);
    if (!rank->arena) FAIL(RESOURCE, NULL, "no memory for rank %d", rank->rank);
    int error = pthread_create(&rank->thread, NULL, rank_main, rank);
    if (error) FAIL(RESOURCE, NULL, "no thread for rank %d of %d: %s", rank->rank, e->n_ranks, strerror(error));
    e->n_threads++;
  }
  return NULL;
}

// What would make the plan smaller, after what it is now.
static const char *advice(const Executor *e, char *out, size_t out_bytes) {
  const Recipe *r = &e->graph->recipe;
  char stage[64] = "", ranks[64] = "";
  if (e->n_ranks > 1 && r->zero < 3) snprintf(stage, sizeof stage, "a higher stage (--zero, now %d), ", r->zero);
  if (e->n_ranks > 1) snprintf(ranks, sizeof ranks, "fewer ranks (--ranks, now %d), ", e->n_ranks);
  snprintf(out, out_bytes, "less is needed with %s%ssmaller micro-batches (--batch, --seq); 'tessera tune --memory SIZE' finds what fits", stage, ranks);
  return out;
}

// Memory is populated at start: what is not there would be found out by the system, which ends processes.
static Status check_room(const Executor *e, int64_t needed, MemoryRoom room) {
  char text[256];
  if (needed <= room.bytes) return NULL;
  FAIL(RESOURCE, NULL, "the plan needs %" PRId64 " bytes (%.1f MiB) of memory and %" PRId64 " (%.1f MiB) are available; the limit is %s; %s", needed,
       (double)needed / (1 << 20), room.bytes, (double)room.bytes / (1 << 20), room.by, advice(e, text, sizeof text));
}

// Of a process.
static int64_t tier_bytes(const Executor *e, Tier tier) {
  return bytes_add(bytes_times(arena_bytes(e, SCOPE_RANK, tier), e->n_here / e->n_processes), arena_bytes(e, SCOPE_PROCESS, tier));
}

static int64_t memory_bytes(const Executor *e) { return bytes_add(tier_bytes(e, TIER_DEVICE), tier_bytes(e, TIER_HOST)); }

static Status create_swap(Executor *e) {
  int64_t rank_bytes = arena_bytes(e, SCOPE_RANK, TIER_NVME), bytes = tier_bytes(e, TIER_NVME);
  if (!rank_bytes) return NULL;
  if (!e->options.swap_dir)
    FAIL(USAGE, NULL, "the plan keeps %" PRId64 " bytes (%.1f MiB) on disk, and nobody says where: --swap-dir DIR", bytes, (double)bytes / (1 << 20));
  for (int p = 0; p < e->n_processes; p++)
    TRY(swap_create(e->options.swap_dir, bytes, e->n_here / e->n_processes, &e->options.swap, &e->processes[p].swap));
  for (int r = 0; r < e->n_here; r++) {
    RankState *rank = &e->ranks[r];
    rank->swap = swap_channel(rank->process->swap, rank->local);
    rank->arenas.swap_bytes = rank_bytes * rank->local;
  }
  return NULL;
}

static Status create_memory(Executor *e) {
  MemoryRoom room = memory_room(""), addresses = memory_address_room();
  for (int tier = 0; tier < TIER_COUNT; tier++) e->memory.tiers[tier].planned_bytes = tier_bytes(e, (Tier)tier);
  TRY(check_room(e, bytes_times(memory_bytes(e), e->n_processes), room));
  TRY(check_room(e, bytes_times(memory_bytes(e), e->n_processes), addresses));
  int64_t reserve = RESERVE_BYTES_MAX;
  if (room.bytes < reserve) reserve = room.bytes;
  if (addresses.bytes / (2 * MEMORY_TIERS) / e->n_here < reserve) reserve = addresses.bytes / (2 * MEMORY_TIERS) / e->n_here;
  if (!e->options.grows) reserve = 0;
  process_peak_reset();
  e->memory.rss_before_arena_bytes = process_resident_bytes();
  for (int tier = 0; tier < MEMORY_TIERS; tier++) {
    for (int p = 0; p < e->n_processes; p++) TRY(arena_memory_create(arena_bytes(e, SCOPE_PROCESS, (Tier)tier), 0, &e->processes[p].memory[tier]));
    for (int r = 0; r < e->n_here; r++) TRY(arena_memory_create(arena_bytes(e, SCOPE_RANK, (Tier)tier), reserve, &e->ranks[r].memory[tier]));
  }
  for (int r = 0; r < e->n_here; r++) e->ranks[r].arenas = (Arenas){.rank = e->ranks[r].memory, .process = e->ranks[r].process->memory};
  return create_swap(e);
}

// Room for the programs of the first n variants, on every rank.
static Status widen_programs(Executor *e, int n) {
  const Graph **variants = realloc(e->variants, (size_t)n * sizeof *variants);
  if (variants) e->variants = variants;
  for (int r = 0; variants && r < e->n_here; r++) {
    StepProgram *programs = realloc(e->ranks[r].programs, (size_t)n * sizeof *programs);
    if (!programs) FAIL(RESOURCE, NULL, "no memory for %d programs", n);
    memset(&programs[e->n_variants], 0, (size_t)(n - e->n_variants) * sizeof *programs);
    e->ranks[r].programs = programs;
  }
  if (!variants) FAIL(RESOURCE, NULL, "no memory for %d programs", n);
  return NULL;
}

static Status take_variants(Executor *e, const Graph *const *variants, int n) {
  for (int v = 0; v < n; v++) TRY(step_program_check(variants[v]));
  TRY(widen_programs(e, e->n_variants + n));
  memcpy(e->variants + e->n_variants, variants, (size_t)n * sizeof *variants);
  e->n_variants += n;
  return NULL;
}

Status executor_add_variant(Executor *e, const Graph *variant) {
  if (!e->options.grows) FAIL(USAGE, NULL, "this executor was not created to grow");
  if (e->failed) FAIL(RANK, NULL, "the executor has stopped after an error");
  TRY(take_variants(e, &variant, 1));
  int64_t needed = memory_bytes(e), had = e->memory.tiers[TIER_DEVICE].planned_bytes + e->memory.tiers[TIER_HOST].planned_bytes;
  Status status = check_room(e, bytes_times(needed - had, e->n_processes), memory_room(""));
  if (status) {
    e->n_variants--;
    return status;
  }
  TRY(executor_command(e, COMMAND_PREPARE));
  TRY(executor_command(e, COMMAND_EXTEND));
  for (int tier = 0; tier < MEMORY_TIERS; tier++) e->memory.tiers[tier].planned_bytes = tier_bytes(e, (Tier)tier);
  return NULL;
}

static Status find_max_norm(Executor *e) {
  const Value *by_value = graph_find_value(e->graph, "tessera.clipped_norm"), *norm = by_value && by_value->role == ROLE_CONTROL ? by_value : e->graph->norm_report;
  const Node *clip = norm ? norm->producer : NULL;
  e->max_norm = INFINITY;
  if (!clip || clip->op != &op_ClipScale || !*attr_string(clip, "max_norm")) return NULL;
  return kernel_parse_decimal(clip, "max_norm", attr_string(clip, "max_norm"), 0, INFINITY, &e->max_norm);
}

static Status start_scaling(Executor *e) {
  const Value *seed = graph_find_value(e->graph, LOSS_SEED);
  const ExecutorOptions *o = &e->options;
  e->scales = seed && seed->role == ROLE_CONTROL;
  if (!e->scales) return NULL;
  if (!o->loss_scale) FAIL(USAGE, NULL, "the plan scales its loss, and nobody says by what");
  if (!(e->graph->recipe.loss_units > 0) || !e->graph->norm_report) FAIL(MALFORMED, NULL, "the plan scales its loss and does not say what of, or has no norm");
  e->scale = o->loss_scale_state ? *o->loss_scale_state : loss_scale_start(o->loss_scale);
  if (!o->loss_scale_state) e->scale.applied = o->first_step;          // all steps of a run that scaled no loss have counted
  return NULL;
}

static Status start(Executor *e, const Plan *plan) {
  TRY(find_max_norm(e));
  TRY(start_scaling(e));
  int each = e->graph->recipe.ranks_per_process;
  e->n_ranks = mesh_ranks(&e->graph->mesh);
  e->n_processes = e->options.n_transports ? e->options.n_transports : 1;
  e->n_here = each * e->n_processes;
  e->first_rank = e->options.n_transports ? e->options.transports[0]->process * each : 0;
  e->ranks = calloc((size_t)e->n_here, sizeof *e->ranks);
  e->processes = calloc((size_t)e->n_processes, sizeof *e->processes);
  if (!e->ranks || !e->processes) FAIL(RESOURCE, NULL, "no memory for %d ranks", e->n_here);
  TRY(take_variants(e, plan->variants, plan->n_variants));
  bool used[QUEUE_COUNT] = {[QUEUE_COMPUTE] = true};
  int threads = 0;
  find_queues(e, used);
  for (int q = 0; q < QUEUE_COUNT; q++) threads += used[q];
  for (int p = 0; p < e->n_processes; p++)
    TRY(team_create(each, threads * e->n_processes, (int)e->graph->n_buffers, deadline_ns(e), &e->processes[p].team));
  for (int p = 0; p < e->options.n_transports; p++) TRY(nodes_create(e->processes[p].team, e->options.transports[p], NULL, &e->processes[p].nodes));
  TRY(executor_create_sums(e));
  TRY(start_threads(e, used));
  TRY(executor_command(e, COMMAND_PREPARE));
  TRY(create_memory(e));
  TRY(executor_command(e, COMMAND_PLACE));
  return executor_command(e, COMMAND_INIT);
}

Status executor_create(const Plan *plan, const WeightSource *weights, const DataFeed *feed, const ExecutorOptions *options, Executor **out) {
  Isa isa;
  if (plan->n_programs != 1) FAIL(UNSUPPORTED, NULL, "the plan has %d programs; this runtime runs plans without a pipeline axis", plan->n_programs);
  const Graph *graph = plan->programs[0];
  TRY(check_target(graph, &isa));
  TRY(check_processes(graph, options));
  Executor *e = calloc(1, sizeof *e);
  if (!e) FAIL(RESOURCE, NULL, "no memory for an executor");
  e->graph = graph;
  e->weights = weights;
  e->has_feed = feed != NULL;
  if (feed) e->feed = *feed;
  e->options = *options;
  e->isa = isa;
  e->next_step = options->first_step;
  pthread_mutex_init(&e->mutex, NULL);
  pthread_mutex_init(&e->prepare_mutex, NULL);
  pthread_cond_init(&e->go, NULL);
  pthread_cond_init(&e->done, NULL);
  Status status = start(e, plan);
  if (status) {
    executor_abort(e, status);
    executor_destroy(e);
    return status;
  }
  *out = e;
  return NULL;
}

static void *end_nodes(void *nodes) {
  nodes_destroy(nodes);
  return NULL;
}

// Processes end together: each waits for the word of the others. Those that are emulated here do so on threads of their own.
static void destroy_nodes(Executor *e) {
  pthread_t threads[e->n_processes];
  int started = 0;
  while (started < e->n_processes - 1 && !pthread_create(&threads[started], NULL, end_nodes, e->processes[started].nodes)) started++;
  for (int p = started; p < e->n_processes; p++) nodes_destroy(e->processes[p].nodes);
  for (int p = 0; p < started; p++) pthread_join(threads[p], NULL);
}

void executor_destroy(Executor *e) {
  if (!e || e->stuck) return;                    // a thread that hangs still uses all of it
  if (e->n_threads) post(e, COMMAND_QUIT);
  for (int r = 0; r < e->n_threads; r++) pthread_join(e->ranks[r].thread, NULL);
  if (e->processes) destroy_nodes(e);
  for (int r = 0; e->ranks && r < e->n_here; r++) {
    rank_queues_destroy(&e->ranks[r].queues);
    for (int v = 0; v < e->ranks[r].n_prepared; v++) step_program_finish(&e->ranks[r].programs[v]);
    comm_delay_destroy(e->ranks[r].link);
    free(e->ranks[r].programs);
    for (int tier = 0; tier < MEMORY_TIERS; tier++) arena_memory_destroy(&e->ranks[r].memory[tier]);
    arena_destroy(e->ranks[r].arena);
    status_free(e->ranks[r].status);
  }
  for (int p = 0; e->processes && p < e->n_processes; p++) {
    for (int tier = 0; tier < MEMORY_TIERS; tier++) arena_memory_destroy(&e->processes[p].memory[tier]);
    swap_destroy(e->processes[p].swap);
    team_destroy(e->processes[p].team);
  }
  pthread_cond_destroy(&e->done);
  pthread_cond_destroy(&e->go);
  pthread_mutex_destroy(&e->mutex);
  pthread_mutex_destroy(&e->prepare_mutex);
  free(e->ranks);
  free(e->processes);
  free(e->sums);
  free(e->variants);
  free(e);
}

// What becomes of the loss scale; the ranks have left the update out by the same norm.
static Status take_scale(Executor *e, StepResult *result) {
  result->skipped = !isfinite(result->grad_norm);
  if (result->skipped) TRY(executor_bad_gradient(e, &result->bad_param, &result->bad_rank, &result->bad_micro));
  loss_scale_after_step(&e->scale, e->options.loss_scale, !result->skipped);
  return NULL;
}

const LossScale *executor_loss_scale(const Executor *e) { return e->scales ? &e->scale : NULL; }

Status executor_run(Executor *e, int64_t steps, bool (*on_step)(void *self, const StepResult *result), void *self) {
  if (e->failed) FAIL(RANK, NULL, "the executor has stopped after an error");
  e->stopped = false;
  for (int64_t i = 0; i < steps; i++) {
    double start_ms = clock_now_ms();
    TRY(executor_command(e, COMMAND_STEP));
    const StepProgram *first = e->ranks[0].programs;
    StepResult result = {.step = e->next_step, .loss = first->loss ? *first->loss : 0, .grad_norm = first->norm ? *first->norm : 0, .ms = clock_now_ms() - start_ms,
                         .lr = learning_rate(e, e->scales ? e->scale.applied : e->next_step), .micro_ms = e->ranks[0].micro_ms,
                         .update_ms = e->ranks[0].update_ms, .loss_scale = e->scales ? e->scale.scale : 0, .bad_rank = -1, .bad_micro = -1};
    double norm = first->clipped ? *first->clipped : result.grad_norm, factor = e->max_norm / (norm + 1e-6);          // as ClipScale has it
    result.clipped_norm = factor < 1 ? norm * factor : norm;
    if (e->scales) TRY(take_scale(e, &result));
    e->next_step++;
    TRY(executor_any(e, on_step && !on_step(self, &result), &e->stopped));
    if (result.skipped && e->scale.skips >= e->options.loss_scale->skips_max)
      FAIL(CHECK, result.bad_param, "%" PRId64 " steps in a row were skipped, since gradients are not finite; the loss scale is %g; --detect-anomaly names "
           "the first tensor that is not finite, --precision bf16 has the range of f32", e->scale.skips, e->scale.scale);
    if (!isfinite(result.loss) && !result.skipped)
      FAIL(CHECK, NULL, "the loss of step %" PRId64 " is %s; parameters may be spoilt; --detect-anomaly names the first tensor that is not finite", result.step,
           isnan(result.loss) ? "nan" : "infinite");
    if (e->stopped) break;
  }
  return NULL;
}
