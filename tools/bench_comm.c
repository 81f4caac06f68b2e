// tessera bench comm: time of each collective over its sizes, beside a bare copy by as many threads. Under mpirun every process runs it, and the first prints.
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/clock.h"
#include "../runtime/comm_nodes.h"
#include "benches.h"
#include "job.h"
#include "json_write.h"

enum { COMM_SIZES_MAX = 40, TIMES_MAX = 500 };
static const int64_t per_round_bytes = INT64_C(128) << 20;

typedef enum CommKind { COMM_GATHER, COMM_SCATTER, COMM_REDUCE, COMM_COPY, COMM_COUNT } CommKind;
static const char *const kind_names[] = {"all_gather", "reduce_scatter", "all_reduce", "copy"};

struct CommBench;
typedef struct CommRank {
  struct CommBench *bench;
  Comm *comm;
  float *whole, *copy, *shard;             // of the largest size
  pthread_t thread;
  Status status;
} CommRank;

typedef struct CommBench {
  const Options *options;
  int processes, process, ranks_per_process, ranks;
  Transport *transport;                    // NULL: one process
  Team *team;
  Nodes *nodes;
  CommRank *rank;                          // [ranks_per_process]
  float *gathered;                         // what all ranks of a process gather into, where there are several processes
  int n_sizes;
  int64_t sizes[COMM_SIZES_MAX];           // bytes of the whole
  double seconds[COMM_SIZES_MAX][COMM_COUNT];      // of one call, best of the rounds, by rank 0
} CommBench;

// ---- One rank -----------------------------------------------------------------------------------------------------------------

static Status collective(CommRank *r, CommKind kind, int64_t elems) {
  const CommBench *b = r->bench;
  const CommOps *ops = r->comm->ops;
  int64_t shard_elems = elems / b->ranks;
  switch (kind) {
  case COMM_GATHER: return ops->all_gather(r->comm, 0, r->shard, b->gathered ? b->gathered : r->copy, shard_elems, DTYPE_F32);
  case COMM_SCATTER: return ops->reduce_scatter(r->comm, 0, r->whole, r->shard, shard_elems, DTYPE_F32, false);
  case COMM_REDUCE: return ops->all_reduce(r->comm, 0, r->whole, elems, DTYPE_F32);
  case COMM_COPY: memcpy(r->copy, r->whole, (size_t)elems * sizeof(float)); return NULL;
  case COMM_COUNT: break;
  }
  return NULL;
}

static Status measure(CommRank *r, CommKind kind, int size) {
  CommBench *b = r->bench;
  int64_t bytes = b->sizes[size], elems = bytes / (int64_t)sizeof(float), times = per_round_bytes / bytes;
  times = times < 3 ? 3 : times > TIMES_MAX ? TIMES_MAX : times;
  for (int64_t round = -1; round < b->options->comm_rounds; round++) {
    TRY(r->comm->ops->barrier(r->comm));
    int64_t start_ns = clock_now_ns();
    for (int64_t i = 0; i < (round < 0 ? 2 : times); i++) TRY(collective(r, kind, elems));      // first to warm up; zeros stay zeros
    TRY(r->comm->ops->barrier(r->comm));
    double seconds = (double)(clock_now_ns() - start_ns) / 1e9 / (double)times;
    if (r->comm->rank == 0 && round >= 0 && (round == 0 || seconds < b->seconds[size][kind])) b->seconds[size][kind] = seconds;
  }
  return NULL;
}

static Status measure_all(CommRank *r) {
  for (int size = 0; size < r->bench->n_sizes; size++)
    for (CommKind kind = 0; kind < COMM_COUNT; kind++) TRY(measure(r, kind, size));
  return NULL;
}

static void *rank_main(void *self) {
  CommRank *r = self;
  r->status = measure_all(r);
  char text[512];
  if (r->status) team_abort(r->bench->team, r->comm->rank, status_text(r->status, text, sizeof text));
  return NULL;
}

// ---- All ranks of this process ------------------------------------------------------------------------------------------------

static Status make_memory(int64_t bytes, float **out) {
  *out = aligned_alloc(4096, (size_t)(bytes + 4095) / 4096 * 4096);
  if (!*out) FAIL(RESOURCE, NULL, "no memory for buffers of %" PRId64 " bytes", bytes);
  memset(*out, 0, (size_t)bytes);
  return NULL;
}

static Status prepare(CommBench *b) {
  int64_t most = b->sizes[b->n_sizes - 1];
  TRY(team_create(b->ranks_per_process, 1, 1, (int64_t)(b->options->deadline * 1e9), &b->team));
  b->rank = calloc((size_t)b->ranks_per_process, sizeof *b->rank);
  if (!b->rank) FAIL(RESOURCE, NULL, "no memory for %d ranks", b->ranks_per_process);
  if (b->transport) TRY(nodes_create(b->team, b->transport, NULL, &b->nodes));
  if (b->processes > 1) TRY(make_memory(most, &b->gathered));
  for (int l = 0; l < b->ranks_per_process; l++) {
    CommRank *r = &b->rank[l];
    *r = (CommRank){.bench = b, .comm = b->nodes ? nodes_comm(b->nodes, l) : team_comm(b->team, l)};
    TRY(make_memory(most, &r->whole));
    TRY(make_memory(most, &r->copy));
    TRY(make_memory(most / b->ranks, &r->shard));
  }
  return NULL;
}

static Status run_ranks(CommBench *b) {
  int started = 0, error = 0;
  for (; started < b->ranks_per_process && !error; started += !error) error = pthread_create(&b->rank[started].thread, NULL, rank_main, &b->rank[started]);
  Status first = error ? status_fail(STATUS_RESOURCE, NULL, "no thread for rank %d: %s", started, strerror(error)) : NULL;
  if (first) team_abort(b->team, b->process * b->ranks_per_process, first->what);
  for (int l = 0; l < started; l++) {
    pthread_join(b->rank[l].thread, NULL);
    if (first) status_free(b->rank[l].status);
    else first = b->rank[l].status;
  }
  return first;
}

static void finish(CommBench *b) {
  bool orderly = nodes_destroy(b->nodes);
  for (int l = 0; b->rank && l < b->ranks_per_process; l++) {
    free(b->rank[l].whole);
    free(b->rank[l].copy);
    free(b->rank[l].shard);
  }
  free(b->rank);
  free(b->gathered);
  team_destroy(b->team);
  transport_close(b->transport, orderly);
}

// ---- Results ------------------------------------------------------------------------------------------------------------------

static void print_text(const CommBench *b) {
  printf("%d process%s of %d rank%s, %s; us a call, and bytes of the whole a second\n%10s", b->processes, b->processes > 1 ? "es" : "", b->ranks_per_process,
         b->ranks_per_process > 1 ? "s" : "", b->transport ? b->transport->ops->name : "local", "KiB");
  for (CommKind k = 0; k < COMM_COUNT; k++) printf("  %21s", kind_names[k]);
  for (int i = 0; i < b->n_sizes; i++) {
    printf("\n%10.1f", (double)b->sizes[i] / 1024);
    for (CommKind k = 0; k < COMM_COUNT; k++) printf("  %10.1f %5.2f GB/s", b->seconds[i][k] * 1e6, (double)b->sizes[i] / b->seconds[i][k] / 1e9);
  }
  printf("\n");
}

static void print_json(const CommBench *b) {
  JsonWriter w = {.to = stdout};
  json_write_object(&w, NULL);
  json_write_text(&w, "transport", b->transport ? b->transport->ops->name : "local");
  json_write_int(&w, "processes", b->processes);
  json_write_int(&w, "ranks_per_process", b->ranks_per_process);
  json_write_array(&w, "sizes");
  for (int i = 0; i < b->n_sizes; i++) {
    json_write_object(&w, NULL);
    json_write_int(&w, "bytes", b->sizes[i]);
    for (CommKind k = 0; k < COMM_COUNT; k++) json_write_real(&w, kind_names[k], b->seconds[i][k]);
    json_write_end_object(&w);
  }
  json_write_end_array(&w);
  json_write_end_object(&w);
  printf("\n");
}

// Multiples of 4 from the least size to the most, each cut into whole cache lines for each rank.
static Status choose_sizes(CommBench *b) {
  const Options *o = b->options;
  int64_t unit = 64 * (int64_t)b->ranks;
  for (int64_t bytes = o->comm_from; bytes <= o->comm_to && b->n_sizes < COMM_SIZES_MAX; bytes *= 4) b->sizes[b->n_sizes++] = bytes < unit ? unit : bytes / unit * unit;
  if (!b->n_sizes) FAIL(USAGE, NULL, "--comm-from %" PRId64 " is more than --comm-to %" PRId64, o->comm_from, o->comm_to);
  return NULL;
}

// Every process must have been started alike, or they would wait for each other.
static Status agree(const CommBench *b) {
  int64_t mine[4] = {b->ranks_per_process, b->options->comm_from, b->options->comm_to, b->options->comm_rounds}, *all = calloc((size_t)b->processes, sizeof mine);
  if (!all) FAIL(RESOURCE, NULL, "no memory for %d processes", b->processes);
  Status status = transport_exchange(b->transport, mine, all, sizeof mine, (int64_t)(b->options->deadline * 1e9));
  for (int p = 0; p < b->processes && !status; p++)
    if (memcmp(mine, all + 4 * p, sizeof mine)) status = status_fail(STATUS_USAGE, NULL, "processes %d and %d were started with other options", b->process, p);
  free(all);
  return status;
}

static Status bench(CommBench *b) {
  const Options *o = b->options;
  Job job;
  TRY(job_find(o, &job));
  if (job.processes > 1) TRY(transport_mpi_open(&b->transport));
  if (b->transport) b->processes = b->transport->processes, b->process = b->transport->process;
  b->ranks_per_process = (int)(o->ranks_per_process ? o->ranks_per_process : b->transport ? 1 : o->ranks);
  b->ranks = b->ranks_per_process * b->processes;
  if (o->ranks != 1 && o->ranks != b->ranks)
    FAIL(USAGE, NULL, "--ranks %" PRId64 ": %d process%s of %d ranks here; several processes need mpirun -n P tessera bench comm --ranks-per-process R",
         o->ranks, b->processes, b->processes > 1 ? "es" : "", b->ranks_per_process);
  TRY(choose_sizes(b));
  if (b->transport) TRY(agree(b));
  TRY(prepare(b));
  TRY(run_ranks(b));
  if (b->process) return NULL;
  if (o->json) print_json(b);
  else print_text(b);
  return NULL;
}

Status bench_comm(const Options *o) {
  CommBench b = {.options = o, .processes = 1};
  Status status = bench(&b);
  finish(&b);
  return status;
}
