#include "comm_suite.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../ir/clock.h"
#include "../../runtime/team.h"

static const int rank_counts[] = {1, 2, 3, 4, 5, 8};
static const int64_t sizes[] = {0, 1, 7, 64, 1023, 4097, 20011};
enum { N_COUNTS = sizeof rank_counts / sizeof *rank_counts, N_SIZES = sizeof sizes / sizeof *sizes, RANKS_MAX = 8, REGIONS = 2, ROUNDS_EACH = 2 };

static const CommBackend *backend;                 // under test

typedef struct Job Job;
typedef Status (*Body)(Comm *comm, Job *job);
struct Job {
  int ranks, ranks_per_process, processes;
  int first, end;                                  // ranks that are here
  Team *teams[RANKS_MAX];                          // of each process
  Transport *transports[RANKS_MAX];
  Nodes *nodes[RANKS_MAX];
  Body body;
  int64_t elems;
  Dtype dtype;
  bool sums, in_place, delays;
  void *shared;
  char *wholes[RANKS_MAX];                         // of each process
  Status results[RANKS_MAX];
};
typedef struct Thread { Job *job; int rank; pthread_t id; } Thread;

static Team *team_of(const Job *job, int rank) { return job->teams[rank / job->ranks_per_process]; }
static int local_of(const Job *job, int rank) { return rank % job->ranks_per_process; }
static TeamRank *counters_of(const Job *job, int rank) { return &team_of(job, rank)->rank[local_of(job, rank)]; }

static void *thread_main(void *p) {
  Thread *t = p;
  Job *job = t->job;
  Comm *inner = backend->ranks_per_process ? nodes_comm(job->nodes[t->rank / job->ranks_per_process], local_of(job, t->rank)) : team_comm(job->teams[0], t->rank);
  Comm *comm = inner;
  Status status = backend->wrap ? backend->wrap(inner, &comm) : NULL;
  if (!status) {
    status = job->body(comm, job);
    if (backend->wrap) comm_delay_destroy(comm);
  }
  job->results[t->rank] = status;
  return NULL;
}

// Threads for the ranks of the processes that are here.
static void run_ranks(Job *job, int64_t deadline_ns) {
  NodesOptions options = {.message_bytes = backend->message_bytes};
  int each = backend->ranks_per_process ? backend->ranks_per_process : job->ranks;
  bool emulated = backend->ranks_per_process && !backend->transport;
  job->ranks_per_process = each;
  job->processes = job->ranks / each;
  job->first = backend->transport ? backend->transport->process * each : 0;
  job->end = backend->transport ? job->first + each : job->ranks;
  if (emulated) assert_null(transport_threads_create(job->processes, job->transports));
  if (backend->transport) job->transports[backend->transport->process] = backend->transport;
  for (int p = job->first / each; p < job->end / each; p++) {
    assert_null(team_create(each, 1, REGIONS, deadline_ns, &job->teams[p]));
    if (backend->ranks_per_process) assert_null(nodes_create(job->teams[p], job->transports[p], &options, &job->nodes[p]));
  }
  Thread threads[RANKS_MAX];
  for (int r = job->first; r < job->end; r++) {
    threads[r] = (Thread){job, r, 0};
    assert_int_equal(pthread_create(&threads[r].id, NULL, thread_main, &threads[r]), 0);
  }
  for (int r = job->first; r < job->end; r++) pthread_join(threads[r].id, NULL);
}

static void *end_process(void *p) {
  nodes_destroy(p);
  return NULL;
}

static void end_job(Job *job) {
  int each = job->ranks_per_process;
  for (int r = 0; r < job->ranks; r++) status_free(job->results[r]);
  pthread_t ends[RANKS_MAX];
  if (backend->ranks_per_process) {
    for (int p = job->first / each; p < job->end / each; p++) assert_int_equal(pthread_create(&ends[p], NULL, end_process, job->nodes[p]), 0);       // together
    for (int p = job->first / each; p < job->end / each; p++) pthread_join(ends[p], NULL);
    for (int p = 0; p < job->processes && !backend->transport; p++) transport_close(job->transports[p], false);
  }
  for (int p = 0; p < job->processes; p++) team_destroy(job->teams[p]);
}

// Whether the backend can have so many ranks.
static bool fits(int ranks) {
  if (backend->transport) return ranks == backend->transport->processes * backend->ranks_per_process;
  return !backend->ranks_per_process || ranks % backend->ranks_per_process == 0;
}

static void expect_all_ok(Job *job) {
  char text[512];
  for (int r = job->first; r < job->end; r++)
    if (job->results[r]) fail_msg("%d ranks, rank %d: %s", job->ranks, r, status_text(job->results[r], text, sizeof text));
}

static const int64_t second_ns = 1000000000;

// A value of rank r, element e: not exact in f32, so that the order of a sum shows in its bits. The sines are made once: most of the time would go there.
enum { N_SINES = 8191, N_SCALES = 21 };            // a prime: no part of a rank begins where another's does
static double sines[N_SINES], scales[N_SCALES];
static double sample(int r, int64_t e) { return sines[(e * 31 + r * 7 + 1) % N_SINES] * scales[(e + r * 5) % N_SCALES]; }
static void make_samples(void) {
  for (int i = 0; i < N_SINES; i++) sines[i] = sin(i);
  for (int i = 0; i < N_SCALES; i++) scales[i] = ldexp(1, i - N_SCALES / 2);
}
static int64_t sample_int(int r, int64_t e) { return (e * 977 + 13) * (r + 1) - (1ll << 62) * (r & 1); }

static void put(void *to, Dtype d, int64_t i, int r, int64_t e) {
  if (dtype_is_float(d)) element_write(to, d, i, sample(r, e));
  else element_write_int(to, d, i, sample_int(r, e));
}

// The specification of the sum: a binary counter over ranks, as TreeAccumulate counts micro-batches. One element, rounded at each addition.
static void expect_sum(int ranks, Dtype d, Dtype to, int64_t e, void *out) {
  double level[8];
  int64_t level_int[8];
  bool full[8] = {false};
  for (int r = 0; r < ranks; r++) {
    char cell[8];
    put(cell, d, 0, r, e);
    double acc = dtype_is_float(d) ? element_read(cell, d, 0) : 0;
    int64_t acc_int = dtype_is_float(d) ? 0 : element_read_int(cell, d, 0);
    int l = 0;
    for (; full[l]; l++) {
      acc = dtype_of_sums(d) == DTYPE_F32 ? (double)(float)((float)level[l] + (float)acc) : level[l] + acc;
      acc_int = (int64_t)((uint64_t)level_int[l] + (uint64_t)acc_int);
      full[l] = false;
    }
    level[l] = acc, level_int[l] = acc_int, full[l] = true;
  }
  bool any = false;
  double acc = 0;
  int64_t acc_int = 0;
  for (int l = 0; l < 8; l++) {
    if (!full[l]) continue;
    if (any) acc = dtype_of_sums(d) == DTYPE_F32 ? (double)(float)((float)level[l] + (float)acc) : level[l] + acc;
    else acc = level[l];
    acc_int = any ? (int64_t)((uint64_t)level_int[l] + (uint64_t)acc_int) : level_int[l];
    any = true;
  }
  if (dtype_is_float(d)) element_write(out, to, 0, acc);
  else element_write_int(out, to, 0, acc_int);
}

static void delay(Job *job, unsigned *seed) {
  if (job->delays) usleep((useconds_t)(rand_r(seed) % 300));
}

static Status wrong(const char *what, int rank, int64_t e) { return status_fail(STATUS_CHECK, NULL, "%s: rank %d element %lld", what, rank, (long long)e); }

static Status body_gather(Comm *c, Job *job) {
  int64_t n = job->elems, width = dtype_bytes(job->dtype);
  unsigned seed = (unsigned)c->rank + 1;
  char *whole = calloc((size_t)(n * c->size) + 1, (size_t)width), *shard = calloc((size_t)n + 1, (size_t)width);
  void *own = job->in_place ? whole + c->rank * n * width : shard;
  Status status = NULL;
  for (int round = 0; round < ROUNDS_EACH && !status; round++) {
    for (int64_t e = 0; e < n; e++) put(own, job->dtype, e, c->rank, e + round);
    delay(job, &seed);
    status = c->ops->all_gather(c, 0, own, whole, n, job->dtype);
    delay(job, &seed);
    for (int r = 0; r < c->size && !status; r++)
      for (int64_t e = 0; e < n && !status; e++) {
        char cell[8];
        put(cell, job->dtype, 0, r, e + round);
        if (memcmp(cell, whole + (r * n + e) * width, (size_t)width)) status = wrong("all_gather", c->rank, r * n + e);
      }
  }
  if (!status && c->sent_bytes != ROUNDS_EACH * (c->size - 1) * n * width) status = wrong("all_gather bytes", c->rank, c->sent_bytes);
  free(whole);
  free(shard);
  return status;
}

static uint8_t sample_byte(int r, int64_t e) { return (uint8_t)(e * 37 + r * 11 + 1); }

static Status body_gather_bytes(Comm *c, Job *job) {
  int64_t bytes = job->elems * dtype_bytes(job->dtype);
  uint8_t *shard = malloc((size_t)bytes), *whole = calloc((size_t)c->size, (size_t)bytes);
  for (int64_t e = 0; e < bytes; e++) shard[e] = sample_byte(c->rank, e);
  Status status = c->ops->all_gather(c, 0, shard, whole, job->elems, job->dtype);
  for (int64_t e = 0; e < bytes * c->size && !status; e++)
    if (whole[e] != sample_byte((int)(e / bytes), e % bytes)) status = wrong("all_gather", c->rank, e);
  free(shard);
  free(whole);
  return status;
}

// In place and apart in turns. Between rounds the ranks wait for each other: `whole` is read by all.
static Status body_shared_whole(Comm *c, Job *job) {
  int64_t n = job->elems, width = dtype_bytes(job->dtype);
  char *whole = job->wholes[c->rank / job->ranks_per_process], *shard = calloc((size_t)n + 1, (size_t)width);
  Status status = NULL;
  for (int round = 0; round < 4 && !status; round++) {
    char *own = round % 2 ? whole + c->rank * n * width : shard;
    for (int64_t e = 0; e < n; e++) put(own, job->dtype, e, c->rank, e + round);
    status = c->ops->all_gather(c, 0, own, whole, n, job->dtype);
    for (int64_t e = 0; e < n * c->size && !status; e++) {
      char cell[8];
      put(cell, job->dtype, 0, (int)(e / n), e % n + round);
      if (memcmp(cell, whole + e * width, (size_t)width)) status = wrong("all_gather to one place", c->rank, e);
    }
    if (!status) status = c->ops->barrier(c);
  }
  free(shard);
  return status;
}

static Status body_scatter(Comm *c, Job *job) {
  Dtype to = job->sums ? dtype_of_sums(job->dtype) : job->dtype;
  int64_t n = job->elems, width = dtype_bytes(job->dtype), to_width = dtype_bytes(to);
  unsigned seed = (unsigned)c->rank + 1;
  char *whole = calloc((size_t)(n * c->size) + 1, (size_t)width), *shard = calloc((size_t)n + 1, (size_t)to_width);
  char *own = job->in_place ? whole + c->rank * n * width : shard;
  Status status = NULL;
  for (int round = 0; round < ROUNDS_EACH && !status; round++) {
    for (int64_t e = 0; e < n * c->size; e++) put(whole, job->dtype, e, c->rank, e + round);
    delay(job, &seed);
    status = c->ops->reduce_scatter(c, 0, whole, own, n, job->dtype, job->sums);
    for (int64_t e = 0; e < n && !status; e++) {
      char cell[8];
      expect_sum(c->size, job->dtype, to, c->rank * n + e + round, cell);
      if (memcmp(cell, own + e * to_width, (size_t)to_width)) status = wrong("reduce_scatter", c->rank, e);
    }
    for (int64_t e = 0; e < n * c->size && !status; e++) {     // other parts of `whole` are left as they are
      char cell[8];
      if (job->in_place && e / (n ? n : 1) == c->rank) continue;
      put(cell, job->dtype, 0, c->rank, e + round);
      if (memcmp(cell, whole + e * width, (size_t)width)) status = wrong("reduce_scatter input", c->rank, e);
    }
  }
  if (!status && c->sent_bytes != ROUNDS_EACH * (c->size - 1) * n * width) status = wrong("reduce_scatter bytes", c->rank, c->sent_bytes);
  free(whole);
  free(shard);
  return status;
}

static Status body_reduce(Comm *c, Job *job) {
  int64_t n = job->elems, width = dtype_bytes(job->dtype);
  unsigned seed = (unsigned)c->rank + 1;
  char *data = calloc((size_t)n + 1, (size_t)width);
  Status status = NULL;
  for (int round = 0; round < ROUNDS_EACH && !status; round++) {
    for (int64_t e = 0; e < n; e++) put(data, job->dtype, e, c->rank, e + round);
    delay(job, &seed);
    status = c->ops->all_reduce(c, 0, data, n, job->dtype);
    for (int64_t e = 0; e < n && !status; e++) {
      char cell[8];
      expect_sum(c->size, job->dtype, job->dtype, e + round, cell);
      if (memcmp(cell, data + e * width, (size_t)width)) status = wrong("all_reduce", c->rank, e);
    }
  }
  if (!status && c->sent_bytes != ROUNDS_EACH * comm_all_reduce_bytes(c->size, n * width)) status = wrong("all_reduce bytes", c->rank, c->sent_bytes);
  free(data);
  return status;
}

// Every type with every size; where collectives are passed on, or are large, one type in turns.
static void over_everything(Body body, bool can_be_apart) {
  static const Dtype dtypes[] = {DTYPE_F32, DTYPE_F64, DTYPE_I64, DTYPE_BF16, DTYPE_F16};
  for (int c = 0; c < N_COUNTS; c++)
    for (int s = 0; s < N_SIZES && fits(rank_counts[c]); s++)
      for (int d = 0; d < 5; d++)
        for (int in_place = 0; in_place <= can_be_apart; in_place++) {
          bool one = backend->wrap || sizes[s] > 4000;
          if (one && d != (c + s) % 5) continue;
          Job job = {.ranks = rank_counts[c], .body = body, .elems = sizes[s], .dtype = dtypes[d], .in_place = in_place, .delays = sizes[s] < 5000};
          run_ranks(&job, 60 * second_ns);
          expect_all_ok(&job);
          end_job(&job);
        }
}

// 16-bit floats to the f32 that they are added in.
static void scatters_sums(void **state) {
  for (int c = 0; c < N_COUNTS; c++)
    for (int s = 0; s < N_SIZES && fits(rank_counts[c]); s++) {
      Job job = {.ranks = rank_counts[c], .body = body_scatter, .elems = sizes[s], .dtype = s % 2 ? DTYPE_F16 : DTYPE_BF16, .sums = true};
      run_ranks(&job, 60 * second_ns);
      expect_all_ok(&job);
      end_job(&job);
    }
}

// Element types that nobody adds up are gathered as well.
static void gathers_any(void **state) {
  static const Dtype dtypes[] = {DTYPE_BOOL, DTYPE_U8, DTYPE_I8, DTYPE_I16, DTYPE_I32, DTYPE_U32, DTYPE_U64, DTYPE_F8E4M3FN};
  for (int c = 0; c < N_COUNTS; c++) {
    if (!fits(rank_counts[c])) continue;
    for (int d = 0; d < 8; d++) {
      Job job = {.ranks = rank_counts[c], .body = body_gather_bytes, .elems = 1023 + d, .dtype = dtypes[d]};
      run_ranks(&job, 60 * second_ns);
      expect_all_ok(&job);
      end_job(&job);
    }
  }
}

// Integers wrap.
static void sums_integers(void **state) {
  static const Dtype dtypes[] = {DTYPE_I32, DTYPE_U32, DTYPE_U64};
  for (int c = 0; c < N_COUNTS; c++) {
    if (!fits(rank_counts[c])) continue;
    for (int d = 0; d < 3; d++) {
      Job job = {.ranks = rank_counts[c], .body = d % 2 ? body_scatter : body_reduce, .elems = 4097 - d, .dtype = dtypes[d], .in_place = d == 1};
      run_ranks(&job, 60 * second_ns);
      expect_all_ok(&job);
      end_job(&job);
    }
  }
}

// All ranks of a process name one `whole`, as where a bucket is gathered once per process.
static void shared_whole(void **state) {
  for (int c = 0; c < N_COUNTS; c++)
    for (int s = 0; s < N_SIZES; s++) {
      if (!fits(rank_counts[c])) continue;
      Job job = {.ranks = rank_counts[c], .body = body_shared_whole, .elems = sizes[s], .dtype = s % 2 ? DTYPE_F32 : DTYPE_BF16};
      for (int p = 0; p < RANKS_MAX; p++) job.wholes[p] = malloc((size_t)job.ranks * (size_t)sizes[s] * 4 + 1);
      run_ranks(&job, 60 * second_ns);
      expect_all_ok(&job);
      for (int p = 0; p < RANKS_MAX; p++) free(job.wholes[p]);
      end_job(&job);
    }
}

// Nobody leaves a barrier before all have come: the cells of this process.
static Status body_barriers(Comm *c, Job *job) {
  _Atomic int64_t *cells = job->shared;
  unsigned seed = (unsigned)c->rank + 1;
  int first = c->rank - local_of(job, c->rank);
  for (int64_t i = 1; i <= 20; i++) {
    delay(job, &seed);
    atomic_store(&cells[c->rank], i);
    TRY(c->ops->barrier(c));
    for (int r = first; r < first + job->ranks_per_process; r++)
      if (atomic_load(&cells[r]) < i) return wrong("barrier", c->rank, r);
  }
  return c->sent_bytes ? wrong("barrier bytes", c->rank, c->sent_bytes) : NULL;
}

static void barriers(void **state) {
  for (int c = 0; c < N_COUNTS; c++) {
    if (!fits(rank_counts[c])) continue;
    Job job = {.ranks = rank_counts[c], .body = body_barriers, .delays = true};
    job.shared = calloc(RANKS_MAX, sizeof(int64_t));
    run_ranks(&job, 60 * second_ns);
    expect_all_ok(&job);
    free(job.shared);
    end_job(&job);
  }
}

static void gathers(void **state) { over_everything(body_gather, true); }
static void scatters(void **state) { over_everything(body_scatter, true); }
static void reduces(void **state) { over_everything(body_reduce, false); }

// A view of a shared region: rank r writes its part in round t, everybody reads all parts between read_begin and read_end.
static Status body_views(Comm *c, Job *job) {
  int64_t *region = (int64_t *)job->shared + c->rank / job->ranks_per_process * job->elems * RANKS_MAX * REGIONS;       // of this process
  int64_t n = job->elems;
  int own = local_of(job, c->rank);
  unsigned seed = (unsigned)c->rank + 1;
  for (int64_t t = 1; t <= 50; t++) {
    for (int id = 0; id < REGIONS; id++) {
      int64_t *base = region + id * n * RANKS_MAX;
      TRY(c->ops->write_begin(c, id));
      for (int64_t e = 0; e < n; e++) base[own * n + e] = t * 1000 + own;
      delay(job, &seed);
      TRY(c->ops->write_end(c, id));
    }
    for (int reads = 0; reads < 2; reads++)
      for (int id = 0; id < REGIONS; id++) {
        int64_t *base = region + id * n * RANKS_MAX;
        TRY(c->ops->read_begin(c, id));
        delay(job, &seed);
        for (int64_t e = 0; e < n * job->ranks_per_process; e++)
          if (base[e] != t * 1000 + e / n) return wrong("view", c->rank, e);
        TRY(c->ops->read_end(c, id));
      }
  }
  return NULL;
}

static void views(void **state) {
  for (int c = 0; c < N_COUNTS; c++) {
    if (!fits(rank_counts[c])) continue;
    Job job = {.ranks = rank_counts[c], .body = body_views, .elems = 33, .delays = true};
    job.shared = calloc(33 * RANKS_MAX * REGIONS * RANKS_MAX, sizeof(int64_t));
    run_ranks(&job, 60 * second_ns);
    expect_all_ok(&job);
    free(job.shared);
    end_job(&job);
  }
}

// ---- Two threads of a rank ----

enum { ROUNDS = 40 };
typedef struct Other { Comm *comm; Job *job; pthread_t id; Status status; } Other;

// Ends the reading of round after round and publishes anew, while the rank's first thread is in collectives.
static Status other_rounds(Comm *c, Job *job) {
  TeamRank *rank = counters_of(job, c->rank);
  int64_t *cells = job->shared;
  for (uint64_t i = 1; i <= ROUNDS; i++) {
    TRY(team_await(team_of(job, c->rank), local_of(job, c->rank), &rank->steps[QUEUE_COMM], i, QUEUE_COMM, false));
    for (int r = c->rank - local_of(job, c->rank), last = r + job->ranks_per_process; r < last; r++)       // of this process
      if (cells[r] != (int64_t)i - 1) return wrong("a cell is not of this round", c->rank, r);
    TRY(c->ops->read_end(c, 0));
    TRY(c->ops->write_begin(c, 0));
    cells[c->rank] = (int64_t)i;
    TRY(c->ops->write_end(c, 0));
    team_count(&rank->steps[QUEUE_COMPUTE], 1);
  }
  return NULL;
}

static void *other_main(void *p) {
  Other *o = p;
  o->status = other_rounds(o->comm, o->job);
  if (o->status) team_abort(team_of(o->job, o->comm->rank), o->comm->rank, o->status->what);
  return NULL;
}

static Status first_rounds(Comm *c, Job *job) {
  TeamRank *rank = counters_of(job, c->rank);
  for (uint64_t i = 1; i <= ROUNDS; i++) {
    TRY(c->ops->read_begin(c, 0));
    team_count(&rank->steps[QUEUE_COMM], 1);
    double x[64];
    for (int e = 0; e < 64; e++) x[e] = (double)(c->rank + 1) * (double)i;
    TRY(c->ops->all_reduce(c, 0, x, 64, DTYPE_F64));
    if (x[63] != (double)i * c->size * (c->size + 1) / 2) return wrong("a sum is wrong", c->rank, 63);
    TRY(team_await(team_of(job, c->rank), local_of(job, c->rank), &rank->steps[QUEUE_COMPUTE], i, QUEUE_COMPUTE, false));
  }
  return NULL;
}

static Status body_two_threads(Comm *c, Job *job) {
  Other other = {.comm = c, .job = job};
  if (pthread_create(&other.id, NULL, other_main, &other)) return wrong("no thread", c->rank, 0);
  Status status = first_rounds(c, job);
  pthread_join(other.id, NULL);
  if (!status) return other.status;
  status_free(other.status);
  return status;
}

static void two_threads(void **state) {
  for (int c = 0; c < N_COUNTS; c++) {
    if (!fits(rank_counts[c])) continue;
    Job job = {.ranks = rank_counts[c], .body = body_two_threads};
    job.shared = calloc(RANKS_MAX, sizeof(int64_t));
    run_ranks(&job, 60 * second_ns);
    expect_all_ok(&job);
    free(job.shared);
    end_job(&job);
  }
}

// The queue that rank 0 waits for goes on for longer than the deadline, and comes; the one that rank 1 waits for ends nothing.
static Status body_counts(Comm *c, Job *job) {
  TeamRank *rank = counters_of(job, 0);
  if (c->rank == 0) return team_await(team_of(job, 0), 0, &rank->steps[QUEUE_COMM], 10, QUEUE_COMM, false);
  if (c->rank == 1) return team_await(team_of(job, 1), local_of(job, 1), &counters_of(job, 1)->steps[QUEUE_COMM], 1, QUEUE_COMM, false);
  for (int i = 0; i < 10; i++) {
    usleep(100000);
    team_count(&rank->steps[QUEUE_COMM], 1);
  }
  return NULL;
}

static void counts(void **state) {
  if (!fits(3)) return;
  Job job = {.ranks = 3, .body = body_counts};
  run_ranks(&job, second_ns / 4);
  assert_null(job.results[0]);
  assert_int_equal(status_code(job.results[1]), STATUS_RANK);
  assert_string_equal(job.results[1]->what, "rank 1 waited 0.500 s for its queue comm, which ended no step in that time");
  end_job(&job);
}

static Status body_counts_aborted(Comm *c, Job *job) {
  if (c->rank == 0) return team_await(team_of(job, 0), 0, &counters_of(job, 0)->steps[QUEUE_COMM], 1, QUEUE_COMM, false);
  usleep(20000);
  team_abort(team_of(job, 1), 1, "out of luck");
  return NULL;
}

static void counts_aborted(void **state) {
  if (!fits(2)) return;
  Job job = {.ranks = 2, .body = body_counts_aborted};
  double start = (double)clock_now_ms();
  run_ranks(&job, 60 * second_ns);
  assert_true((double)clock_now_ms() - start < 10000);
  assert_int_equal(status_code(job.results[0]), STATUS_RANK);
  assert_string_equal(job.results[0]->what, "stopped because rank 1 failed: out of luck");
  end_job(&job);
}

// ---- Failure ----

static double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static Status body_aborts(Comm *c, Job *job) {
  float x[4] = {0};
  TRY(c->ops->all_reduce(c, 0, x, 4, DTYPE_F32));
  if (c->rank == c->size - 1) {
    usleep(20000);      // the others wait by now
    team_abort(team_of(job, c->rank), c->rank, "out of luck");
    return status_fail(STATUS_CHECK, NULL, "own error");
  }
  if (c->rank == 0 && job->ranks_per_process > 1) {
    TRY(c->ops->write_begin(c, 0));
    TRY(c->ops->write_end(c, 0));
    return c->ops->read_begin(c, 0);            // nobody else of its process publishes
  }
  return c->ops->all_reduce(c, 0, x, 4, DTYPE_F32);
}

static void aborts(void **state) {
  for (int c = 1; c < N_COUNTS; c++) {
    if (!fits(rank_counts[c])) continue;
    Job job = {.ranks = rank_counts[c], .body = body_aborts};
    double start = now_s();
    run_ranks(&job, 60 * second_ns);
    assert_true(now_s() - start < 50);
    for (int p = 0; p < job.processes; p++) assert_true(!job.teams[p] || team_aborted(job.teams[p]));
    for (int r = job.first; r < job.end && r < job.ranks - 1; r++) {
      char want[64];
      snprintf(want, sizeof want, "stopped because rank %d failed: out of luck", job.ranks - 1);
      assert_int_equal(status_code(job.results[r]), STATUS_RANK);
      assert_string_equal(job.results[r]->what, want);
      assert_int_equal(job.results[r]->rank, r);
    }
    end_job(&job);
  }
}

static Status body_one_stays_away(Comm *c, Job *job) {
  double x[3] = {0};
  if (c->rank == 1) return NULL;
  return c->ops->all_reduce(c, 0, x, 3, DTYPE_F64);
}

static void deadline(void **state) {
  int64_t deadline_ns = backend->transport ? 3 * second_ns : second_ns / 10;           // processes may start apart
  for (int c = 1; c < N_COUNTS; c++) {
    if (!fits(rank_counts[c])) continue;
    Job job = {.ranks = rank_counts[c], .body = body_one_stays_away};
    double start = now_s();
    run_ranks(&job, deadline_ns);
    double took = now_s() - start;
    assert_true(took < 60);
    for (int r = job.first; r < job.end; r++) {
      if (r == 1) continue;
      assert_true(took >= 0.9 * (double)deadline_ns / 1e9);
      assert_int_equal(status_code(job.results[r]), STATUS_RANK);
      if (!strstr(job.results[r]->what, "not there yet: rank 1")) fail_msg("rank %d of %d: %s", r, job.ranks, job.results[r]->what);
    }
    end_job(&job);
  }
}

static Status body_sizes_differ(Comm *c, Job *job) {
  float x[8] = {0};
  Status s = c->ops->all_reduce(c, 0, x, c->rank == 1 ? 5 : 4, DTYPE_F32);
  if (!s) return NULL;
  Status again = c->ops->barrier(c);
  if (!again) {
    status_free(s);
    return wrong("a collective went through after an error", c->rank, 0);
  }
  status_free(again);
  return s;
}
static Status body_dtypes_differ(Comm *c, Job *job) {
  double x[8] = {0};
  return c->ops->all_reduce(c, 0, x, 4, c->rank == 1 ? DTYPE_F64 : DTYPE_F32);
}
static Status body_kinds_differ(Comm *c, Job *job) {
  float x[64] = {0}, y[64] = {0};
  if (c->rank == 1) return c->ops->barrier(c);
  return c->ops->all_gather(c, 0, x, y, 4, DTYPE_F32);
}

// One collective left out by rank 1: the others are one behind.
static Status body_counts_differ(Comm *c, Job *job) {
  float x[9000] = {0};
  if (c->rank != 1) TRY(c->ops->barrier(c));
  return c->ops->all_reduce(c, 0, x, 9000, DTYPE_F32);
}

static const struct { Body body; const char *says; } mismatch_cases[] = {
    {body_sizes_differ, "rank 0 asks for AllReduce of 4 x float on axis 0, rank 1 for AllReduce of 5 x float on axis 0"},
    {body_dtypes_differ, "rank 0 asks for AllReduce of 4 x float on axis 0, rank 1 for AllReduce of 4 x double on axis 0"},
    {body_kinds_differ, "rank 0 asks for AllGather of 4 x float on axis 0, rank 1 for Barrier of 0"},
    {body_counts_differ, "rank 0 asks for Barrier of 0 x undefined on axis 0, rank 1 for AllReduce of 9000 x float on axis 0"}};
enum { N_MISMATCHES = sizeof mismatch_cases / sizeof *mismatch_cases };

static void mismatch(int k) {
  for (int c = 1; c < N_COUNTS; c++) {
    if (!fits(rank_counts[c])) continue;
    Job job = {.ranks = rank_counts[c], .body = mismatch_cases[k].body};
    run_ranks(&job, 60 * second_ns);
    for (int r = job.first; r < job.end; r++) {
      assert_int_equal(status_code(job.results[r]), STATUS_RANK);
      if (!strstr(job.results[r]->what, mismatch_cases[k].says)) fail_msg("rank %d of %d: %s", r, job.ranks, job.results[r]->what);
    }
    end_job(&job);
  }
}
static void sizes_differ(void **state) { mismatch(0); }
static void dtypes_differ(void **state) { mismatch(1); }
static void kinds_differ(void **state) { mismatch(2); }
static void counts_differ(void **state) { mismatch(3); }

static Status body_bad_arguments(Comm *c, Job *job) {
  float x[4] = {0};
  return job->elems == 0 ? c->ops->all_reduce(c, 1, x, 4, DTYPE_F32)
         : job->elems == 1 ? c->ops->all_reduce(c, 0, x, 4, DTYPE_BOOL)
                           : c->ops->read_begin(c, REGIONS);
}

static void bad_arguments(void **state) {
  static const StatusCode codes[] = {STATUS_UNSUPPORTED, STATUS_UNSUPPORTED, STATUS_RANK};
  for (int k = 0; k < 3 && fits(2); k++) {
    Job job = {.ranks = 2, .body = body_bad_arguments, .elems = k};
    run_ranks(&job, 60 * second_ns);
    for (int r = 0; r < 2; r++) assert_int_equal(status_code(job.results[r]), codes[k]);
    end_job(&job);
  }
  Team *team = NULL;
  Status s = team_create(0, 1, 0, second_ns, &team);
  assert_int_equal(status_code(s), STATUS_USAGE);
  status_free(s);
  s = team_create(2, 1, 0, 0, &team);
  assert_int_equal(status_code(s), STATUS_USAGE);
  status_free(s);
  assert_null(team);
  team_destroy(NULL);
}

// ---- Tables ----

static const struct CMUnitTest working[] = {cmocka_unit_test(gathers),       cmocka_unit_test(gathers_any), cmocka_unit_test(scatters), cmocka_unit_test(scatters_sums),
                                            cmocka_unit_test(sums_integers), cmocka_unit_test(reduces),     cmocka_unit_test(shared_whole), cmocka_unit_test(barriers),
                                            cmocka_unit_test(views),         cmocka_unit_test(two_threads)};
static const struct CMUnitTest stopping[] = {cmocka_unit_test(aborts),        cmocka_unit_test(deadline),     cmocka_unit_test(sizes_differ),
                                             cmocka_unit_test(dtypes_differ), cmocka_unit_test(kinds_differ), cmocka_unit_test(counts_differ)};
static const struct CMUnitTest of_teams[] = {cmocka_unit_test(bad_arguments), cmocka_unit_test(counts), cmocka_unit_test(counts_aborted)};
enum { N_STOPPING = sizeof stopping / sizeof *stopping };

static void begin(const CommBackend *b) {
  backend = b;
  make_samples();
  printf("backend %s\n", b->name);
  fflush(stdout);
}

int comm_suite_run(const CommBackend *b) {
  begin(b);
  int failed = cmocka_run_group_tests_name(b->name, working, NULL, NULL);
  if (b->transport) return failed;
  failed += cmocka_run_group_tests_name(b->name, stopping, NULL, NULL);
  return failed + cmocka_run_group_tests_name(b->name, of_teams, NULL, NULL);
}

int comm_suite_run_failure(const CommBackend *b, const char *name) {
  begin(b);
  for (int i = 0; i < N_STOPPING; i++) {
    if (strcmp(stopping[i].name, name)) continue;
    const struct CMUnitTest one[] = {stopping[i]};
    return cmocka_run_group_tests_name(name, one, NULL, NULL);
  }
  return -1;
}
