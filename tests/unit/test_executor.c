// The executor on a small model: the same bits however it is sharded, predicted memory, named failures, refused plans; and checkpoints of it.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../frontend/onnx_import.h"
#include "../../kernels/ops.h"
#include "../../passes/pass.h"
#include "../../passes/verify_plan.h"
#include "../../runtime/checkpoint.h"
#include "../../runtime/data.h"
#include "../../runtime/executor_state.h"

static const char model_file[] = TESSERA_SOURCE_DIR "/tests/models/mlp/model.onnx";
static const char data_path[] = TESSERA_SOURCE_DIR "/tests/models/mlp/inputs.safetensors";

// Everything from file to executor.
typedef struct Bench {
  Arena *arena;
  Model *model;
  Imported imported;
  Plan plan;
  Graph *program;
  Data *data;
  DataFeed feed;
  Executor *executor;
  double losses[64];
  int n_losses, stop_after;
} Bench;

static void ok(Status s) {
  char text[1024];
  if (s) fail_msg("%s", status_text(s, text, sizeof text));
}

static void compile(Bench *b, CompileOptions options) {
  *b = (Bench){.arena = arena_create(0)};
  ok(model_open(model_file, &b->model));
  ok(model_import(b->model, NULL, b->arena, &b->imported));
  options.model_path = model_file;
  options.weights = &b->imported.weights;
  PassRun run = {.verify_each = true, .log = stderr};
  ok(passes_run(b->imported.graph, pipeline_train, &options, &run));
  ok(make_plan(b->imported.graph, &b->plan));
  b->program = b->imported.graph;
}

static void open_data(Bench *b) {
  static const char *const source = data_path;
  static const DataInput inputs[] = {{"x", DTYPE_F32, 2, {32, 64}}, {"y", DTYPE_I64, 1, {32}}};
  DataOptions options = {.sources = &source, .n_sources = 1};
  ok(data_open(&options, inputs, 2, &b->data));
  ok(data_bind(b->data, 0, b->program));
  b->feed = data_feed(b->data);
}

static ExecutorOptions quick(void) { return (ExecutorOptions){.fault_rank = -1, .deadline_ns = 20 * INT64_C(1000000000)}; }

static CompileOptions options_of(int ranks, int zero, int64_t micro) {
  CompileOptions o = compile_options_default();
  o.ranks = ranks;
  o.zero = zero;
  o.micro_batches = micro;
  o.isa = isa_best();
  o.bucket_bytes = 4096;         // several buckets
  return o;
}

static void start(Bench *b, CompileOptions options, ExecutorOptions run) {
  compile(b, options);
  open_data(b);
  ok(executor_create(&b->plan, &b->imported.weights, &b->feed, &run, &b->executor));
}

static void finish(Bench *b) {
  executor_destroy(b->executor);
  data_close(b->data);
  arena_destroy(b->arena);
  model_close(b->model);
}

static bool on_step(void *self, const StepResult *result) {
  Bench *b = self;
  assert_int_equal(result->step, b->n_losses);
  b->losses[b->n_losses++] = result->loss;
  return b->n_losses != b->stop_after;
}

// ---- Results ------------------------------------------------------------------------------------------------------------------

static void same_bits_and_predicted_memory(void **state) {
  char first_hash[33] = "", hash[33];
  double first_losses[5];
  static const int64_t depths[] = {0, 1, 2, 100};
  for (int ranks = 1; ranks <= 8; ranks *= 2)
    for (int i = 0; i < 4 * 4; i++) {
      Bench b;
      CompileOptions options = options_of(ranks, i % 4, 8);
      options.prefetch = depths[i / 4];
      start(&b, options, quick());
      ok(executor_run(b.executor, 5, on_step, &b));
      assert_int_equal(b.n_losses, 5);
      ok(executor_params_hash(b.executor, hash));
      if (!first_hash[0]) {
        memcpy(first_hash, hash, sizeof hash);
        memcpy(first_losses, b.losses, sizeof first_losses);
        assert_true(b.losses[4] < b.losses[0]);
      }
      assert_string_equal(hash, first_hash);
      assert_memory_equal(b.losses, first_losses, sizeof first_losses);
      PlanBytes bytes = plan_bytes(b.program, b.arena);
      MemoryUse use = executor_memory(b.executor);
      assert_int_equal(use.tiers[TIER_DEVICE].planned_bytes, bytes.tiers[TIER_DEVICE].peak_bytes);
      assert_int_equal(use.tiers[TIER_DEVICE].measured_bytes, bytes.tiers[TIER_DEVICE].peak_bytes);
      assert_true(use.rss_peak_bytes > use.rss_before_arena_bytes);
      assert_int_equal(executor_sent_bytes_per_step(b.executor), bytes.sent_bytes);
      assert_int_equal(executor_copied_bytes_per_step(b.executor), bytes.copied_bytes);
      assert_int_equal(executor_wire_bytes_per_step(b.executor), 0);
      finish(&b);
    }
}

// What is called measured is asked of the kernel: pages that are let go are no longer counted.
static void measured_memory_is_measured(void **state) {
  enum { PAGES = 3, PAGE_BYTES = 4096 };
  Bench b;
  start(&b, options_of(2, 3, 4), quick());
  int64_t planned = executor_memory(b.executor).tiers[TIER_DEVICE].planned_bytes;
  assert_int_equal(executor_memory(b.executor).tiers[TIER_DEVICE].measured_bytes, planned);
  const ArenaMemory *arenas[] = {b.executor->ranks[1].memory, b.executor->processes[0].memory};
  for (int64_t gone = PAGES, i = 0; i < 2; i++, gone += PAGES) {
    assert_true(arenas[i]->bytes >= PAGES * PAGE_BYTES);
    assert_int_equal(madvise(arenas[i]->base, (size_t)PAGES * PAGE_BYTES, MADV_DONTNEED), 0);
    assert_int_equal(executor_memory(b.executor).tiers[TIER_DEVICE].measured_bytes, planned - gone * PAGE_BYTES);
  }
  assert_int_equal(executor_memory(b.executor).tiers[TIER_DEVICE].planned_bytes, planned);
  finish(&b);
}

static Status slow_feed(void *self, int64_t batch, const Tensor *out, size_t n_inputs) {
  Bench *b = self;
  usleep((useconds_t)(batch * 7919 % 13 * 300));
  return b->feed.fill(b->feed.self, batch, out, n_inputs);
}

// Ranks that are late in turn change no bit: what they wait for is what the guards and barriers say.
static void delays_change_nothing(void **state) {
  char want[33], got[33];
  for (int zero = 0; zero < 4; zero++) {
    Bench b;
    compile(&b, options_of(4, zero, 8));
    open_data(&b);
    DataFeed feed = {.fill = slow_feed, .self = &b};
    ExecutorOptions run = quick();
    ok(executor_create(&b.plan, &b.imported.weights, &feed, &run, &b.executor));
    ok(executor_run(b.executor, 4, on_step, &b));
    ok(executor_params_hash(b.executor, zero ? got : want));
    if (zero) assert_string_equal(got, want);
    finish(&b);
  }
}

// ---- Adversity: delays and failures of collectives, other orders of steps ------------------------------------------------------

enum { WRAPPED_MAX = 8 };
typedef struct Wrapped {
  Comm *comms[WRAPPED_MAX];
  uint64_t seed;
} Wrapped;

static Comm *delayed(void *self, Comm *comm) {
  Wrapped *w = self;
  ok(comm_delay_create(comm, w->seed, 200000, &w->comms[comm->rank]));
  return w->comms[comm->rank];
}

static void late_collectives_change_nothing(void **state) {
  char want[33] = "", got[33];
  for (int zero = 0; zero < 4; zero++)
    for (uint64_t seed = 0; seed < 6; seed++) {
      Bench b;
      Wrapped w = {.seed = seed};
      ExecutorOptions run = quick();
      CompileOptions options = options_of(4, zero, 8);
      if (seed) run.wrap_comm = delayed, run.wrap_self = &w;    // seed 0: none
      options.prefetch = (int64_t)seed % 3;
      start(&b, options, run);
      ok(executor_run(b.executor, 3, on_step, &b));
      ok(executor_params_hash(b.executor, got));
      if (!want[0]) memcpy(want, got, sizeof want);
      assert_string_equal(got, want);
      assert_int_equal(executor_sent_bytes_per_step(b.executor), plan_bytes(b.program, b.arena).sent_bytes);
      finish(&b);
      for (int r = 0; r < WRAPPED_MAX; r++) comm_delay_destroy(w.comms[r]);
    }
}

// An endpoint whose call number `fails` on rank `rank` fails.
typedef struct FailingComm {
  Comm base;                     // must be first
  Comm *inner;
  _Atomic int64_t *calls;        // by all threads of the rank
  int64_t fails;
} FailingComm;
typedef struct Failing {
  FailingComm comms[WRAPPED_MAX];
  int rank;
  int64_t fails;
  _Atomic int64_t calls;
} Failing;

static Status fail_in_turn(FailingComm *f) {
  return f->calls && atomic_fetch_add(f->calls, 1) + 1 == f->fails ? status_fail(STATUS_RANK, NULL, "a collective that fails") : NULL;
}

#define GUARD(comm_, call)                   \
  FailingComm *f = (FailingComm *)(comm_);   \
  TRY(fail_in_turn(f));                      \
  return f->inner->ops->call

#define COLLECTIVE(comm_, call)              \
  FailingComm *f = (FailingComm *)(comm_);   \
  TRY(fail_in_turn(f));                      \
  Comm before = *f->inner;                   \
  Status status = f->inner->ops->call;       \
  f->base.sent_bytes += f->inner->sent_bytes - before.sent_bytes;   \
  return status

static Status failing_all_gather(Comm *c, int axis, const void *shard, void *whole, int64_t n, Dtype d) { COLLECTIVE(c, all_gather(f->inner, axis, shard, whole, n, d)); }
static Status failing_scatter(Comm *c, int axis, const void *in, void *shard, int64_t n, Dtype d, bool sums) {
  COLLECTIVE(c, reduce_scatter(f->inner, axis, in, shard, n, d, sums));
}
static Status failing_all_reduce(Comm *c, int axis, void *data, int64_t n, Dtype d) { COLLECTIVE(c, all_reduce(f->inner, axis, data, n, d)); }
static Status failing_barrier(Comm *c) { COLLECTIVE(c, barrier(f->inner)); }
static Status failing_read_begin(Comm *c, int32_t region) { GUARD(c, read_begin(f->inner, region)); }
static Status failing_read_end(Comm *c, int32_t region) { GUARD(c, read_end(f->inner, region)); }
static Status failing_write_begin(Comm *c, int32_t region) { GUARD(c, write_begin(f->inner, region)); }
static Status failing_write_end(Comm *c, int32_t region) { GUARD(c, write_end(f->inner, region)); }

static const CommOps failing_ops = {failing_all_gather, failing_scatter, failing_all_reduce, failing_barrier,
                                    failing_read_begin, failing_read_end, failing_write_begin, failing_write_end};

static Comm *failing(void *self, Comm *comm) {
  Failing *f = self;
  f->comms[comm->rank] = (FailingComm){.base = {.ops = &failing_ops, .rank = comm->rank, .size = comm->size}, .inner = comm,
                                       .calls = comm->rank == f->rank ? &f->calls : NULL, .fails = f->fails};
  return &f->comms[comm->rank].base;
}

// Collective or guard number n of one rank fails, n = 1, 2, 3, ... until a run meets no failure: each time all ranks stop, and the error is that
// rank's.
static void each_failing_collective_is_named(void **state) {
  for (int i = 0; i < 8; i++) {
    int zero = i / 2;
    int64_t fails = 1;
    for (bool failed = true; failed; fails++) {
      Bench b;
      Failing f = {.rank = 1, .fails = fails};
      ExecutorOptions run = quick();
      run.wrap_comm = failing, run.wrap_self = &f;
      CompileOptions options = options_of(3, zero, 6);
      options.prefetch = i % 2;
      compile(&b, options);
      open_data(&b);
      Status s = executor_create(&b.plan, &b.imported.weights, &b.feed, &run, &b.executor);
      if (!s) s = executor_run(b.executor, 1, on_step, &b);
      failed = s != NULL;
      if (failed && (status_code(s) != STATUS_RANK || s->rank != 1 || !strstr(s->what, "a collective that fails")))
        fail_msg("stage %d, call %lld: rank %d: %s", zero, (long long)fails, s->rank, s->what);
      assert_int_equal(failed, f.calls >= f.fails);
      status_free(s);
      finish(&b);
    }
    assert_true(fails > 4);
  }
}

// A random order of the steps that gives the same values: producers first; communication in the order that all ranks agree on; who reads a
// gathered view before it is released, who reads what is carried on before its successor is written.
static bool may_go(const Graph *g, const Node *n, const bool *done, const uint32_t *region_of) {
  for (int i = 0; i < n->n_inputs; i++)
    if (n->inputs[i] && n->inputs[i]->producer && !done[n->inputs[i]->producer->id]) return false;
  bool meets = n->op == &op_Release || n->op->flags & OP_COLLECTIVE;
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *other = g->nodes[i];
    if (other->phase < n->phase && !done[i]) return false;
    if (done[i] || other == n || other->phase != n->phase) continue;
    bool other_meets = other->op == &op_Release || other->op->flags & OP_COLLECTIVE;
    if (meets && other_meets && i < n->id) return false;
    for (int k = 0; k < other->n_inputs; k++) {
      if (!other->inputs[k]) continue;
      if (n->op == &op_Release && other->op != &op_Release && region_of[other->inputs[k]->id] == region_of[n->inputs[0]->id]) return false;
      for (int o = 0; o < n->n_outputs; o++)
        if (n->outputs[o] && n->outputs[o]->carry && n->outputs[o]->carry == other->inputs[k]) return false;
    }
  }
  return true;
}

static void shuffle_steps(Graph *g, unsigned seed) {
  bool *done = ARENA_ARRAY(g->arena, bool, g->n_nodes);
  uint32_t *region_of = ARENA_ARRAY(g->arena, uint32_t, g->n_values);       // gathered value that a value is a view of, + 1
  Node **order = ARENA_ARRAY(g->arena, Node *, g->n_nodes);
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *n = g->nodes[i];
    for (int o = 0; o < n->n_outputs; o++) {
      if (!n->outputs[o]) continue;
      bool view = n->op == &op_Unpack || !strcmp(n->op->name, "Reshape") || !strcmp(n->op->name, "Identity");
      region_of[n->outputs[o]->id] = n->op == &op_AllGather ? n->outputs[o]->id + 1 : view ? region_of[n->inputs[0]->id] : 0;
    }
  }
  for (size_t n = 0; n < g->n_nodes; n++) {
    size_t at = (size_t)rand_r(&seed) % g->n_nodes, tried = 0;
    for (; tried < g->n_nodes && (done[at] || !may_go(g, g->nodes[at], done, region_of)); tried++) at = (at + 1) % g->n_nodes;
    assert_true(tried < g->n_nodes);
    done[at] = true;
    order[n] = g->nodes[at];
  }
  graph_set_nodes(g, order, g->n_nodes);
}

static void compile_shuffled(Bench *b, CompileOptions options, unsigned seed) {
  static const char *const rest[] = {"prefetch", "schedule", "plan_memory", NULL};
  *b = (Bench){.arena = arena_create(0)};
  ok(model_open(model_file, &b->model));
  ok(model_import(b->model, NULL, b->arena, &b->imported));
  options.model_path = model_file;
  options.weights = &b->imported.weights;
  PassRun run = {.verify_each = true, .log = stderr, .stop_after = "insert_collectives"}, all = {.verify_each = true, .log = stderr};
  ok(passes_run(b->imported.graph, pipeline_train, &options, &run));
  if (seed) shuffle_steps(b->imported.graph, seed);
  ok(passes_run(b->imported.graph, rest, &options, &all));
  ok(make_plan(b->imported.graph, &b->plan));
  b->program = b->imported.graph;
}

static void other_orders_change_nothing(void **state) {
  char want[33] = "", got[33];
  for (int zero = 0; zero < 4; zero++) {
    bool moved = false;
    const char *first[3] = {NULL};
    for (unsigned seed = 0; seed < 6; seed++) {
      Bench b;
      Wrapped w = {.seed = seed};
      ExecutorOptions run = quick();
      if (seed) run.wrap_comm = delayed, run.wrap_self = &w;
      CompileOptions options = options_of(4, zero, 8);
      options.prefetch = seed % 3;
      compile_shuffled(&b, options, seed);
      const PlanDefect *defects;
      size_t n_defects;
      ok(verify_plan(b.program, b.arena, &defects, &n_defects, NULL));
      if (n_defects) fail_msg("stage %d, order %u is not legal: %s", zero, seed, defects[0].what);
      for (int i = 0; i < 3; i++) {
        const char *name = b.program->nodes[b.program->n_nodes / 4 * (size_t)(i + 1)]->op->name;
        moved |= first[i] && strcmp(first[i], name);
        if (!seed) first[i] = name;
      }
      open_data(&b);
      ok(executor_create(&b.plan, &b.imported.weights, &b.feed, &run, &b.executor));
      ok(executor_run(b.executor, 3, on_step, &b));
      ok(executor_params_hash(b.executor, got));
      if (!want[0]) memcpy(want, got, sizeof want);
      assert_string_equal(got, want);
      finish(&b);
      for (int r = 0; r < WRAPPED_MAX; r++) comm_delay_destroy(w.comms[r]);
    }
    assert_true(moved);
  }
}

static void huge_plan(Graph *g) { g->buffers[g->n_buffers - 1].bytes = INT64_C(1) << 50; }

static void plans_beyond_memory_are_refused(void **state) {
  Bench b;
  compile(&b, options_of(2, 0, 2));
  open_data(&b);
  huge_plan(b.program);
  ExecutorOptions run = quick();
  Status s = executor_create(&b.plan, &b.imported.weights, &b.feed, &run, &b.executor);
  assert_int_equal(status_code(s), STATUS_RESOURCE);
  assert_non_null(strstr(s->what, "fewer ranks (--ranks, now 2)"));
  status_free(s);
  finish(&b);
}

static void reads(void **state) {
  float grads[2][2048], params[2][2048], moments[2][2048];
  const char *name = NULL;
  for (int i = 0; i < 2; i++) {
    Bench b;
    start(&b, options_of(i ? 4 : 1, i ? 3 : 0, 4), quick());
    const Bucket *bucket = &b.program->buckets[0];
    name = bucket->params[0];
    assert_true(type_elems(&bucket->types[0]) <= 2048);
    float initial[2048];
    ok(executor_read(b.executor, name, NULL, initial));
    const Weight *w = weights_find(&b.imported.weights, name);
    assert_memory_equal(initial, w->bytes, (size_t)type_bytes(&w->type));
    ok(executor_run(b.executor, 1, NULL, NULL));
    memset(grads[i], 0, sizeof grads[i]), memset(params[i], 0, sizeof params[i]), memset(moments[i], 0, sizeof moments[i]);
    ok(executor_read(b.executor, name, "grad", grads[i]));
    ok(executor_read(b.executor, name, NULL, params[i]));
    float part[8];
    int64_t elems = type_elems(&bucket->types[0]);
    ok(executor_read_part(b.executor, name, "grad", elems - 8, 8, part));
    assert_memory_equal(part, grads[i] + elems - 8, sizeof part);
    Status outside = executor_read_part(b.executor, name, NULL, elems - 8, 9, part);
    assert_int_equal(status_code(outside), STATUS_USAGE);
    status_free(outside);
    ok(executor_read(b.executor, name, "exp_avg", moments[i]));
    assert_memory_not_equal(params[i], initial, (size_t)type_bytes(&w->type));
    for (int64_t e = 0; e < type_elems(&w->type); e++) assert_true(fabsf(moments[i][e] - 0.1f * grads[i][e]) <= 1e-6f * fabsf(grads[i][e]) + 1e-12f);
    Status s = executor_read(b.executor, "no such", NULL, params[i]);
    assert_int_equal(status_code(s), STATUS_USAGE);
    status_free(s);
    s = executor_read(b.executor, name, "momentum", params[i]);
    assert_int_equal(status_code(s), STATUS_USAGE);
    status_free(s);
    finish(&b);
  }
  assert_memory_equal(grads[0], grads[1], sizeof grads[0]);
  assert_memory_equal(params[0], params[1], sizeof params[0]);
  assert_memory_equal(moments[0], moments[1], sizeof moments[0]);
}

static void stops_when_told(void **state) {
  Bench b;
  start(&b, options_of(2, 1, 2), quick());
  b.stop_after = 3;
  ok(executor_run(b.executor, 100, on_step, &b));
  assert_int_equal(b.n_losses, 3);
  ok(executor_run(b.executor, 2, on_step, &b));      // and goes on from there
  assert_int_equal(b.n_losses, 5);
  finish(&b);
}

// ---- Failures -----------------------------------------------------------------------------------------------------------------

static void a_failing_rank_is_named(void **state) {
  for (int step = 0; step < 5; step += 2)
    for (int i = 0; i < 4; i++) {
      Bench b;
      ExecutorOptions run = quick();
      CompileOptions options = options_of(4, i % 2 * 3, 4);
      options.prefetch = i / 2;
      run.fault_rank = 2;
      run.fault_step = step;
      start(&b, options, run);
      Status s = executor_run(b.executor, 10, on_step, &b);
      assert_int_equal(status_code(s), STATUS_RANK);
      assert_int_equal(s->rank, 2);
      char want[64];
      snprintf(want, sizeof want, "step %d: the failure", step);
      assert_non_null(strstr(s->what, want));
      assert_int_equal(b.n_losses, step);
      status_free(s);
      s = executor_run(b.executor, 1, NULL, NULL);
      assert_int_equal(status_code(s), STATUS_RANK);
      status_free(s);
      finish(&b);
    }
}

static Status poor_feed(void *self, int64_t batch, const Tensor *out, size_t n_inputs) {
  Bench *b = self;
  if (batch == 6) return status_fail(STATUS_IO, NULL, "the well is dry");
  return b->feed.fill(b->feed.self, batch, out, n_inputs);
}

static void a_failing_feed_is_named(void **state) {
  Bench b;
  compile(&b, options_of(4, 3, 4));
  open_data(&b);
  DataFeed feed = {.fill = poor_feed, .self = &b};
  ExecutorOptions run = quick();
  ok(executor_create(&b.plan, &b.imported.weights, &feed, &run, &b.executor));
  Status s = executor_run(b.executor, 10, on_step, &b);
  assert_int_equal(status_code(s), STATUS_IO);
  assert_int_equal(s->rank, 2);
  assert_non_null(strstr(s->what, "step 1: batch 6: the well is dry"));
  status_free(s);
  finish(&b);
}

static Status hanging_feed(void *self, int64_t batch, const Tensor *out, size_t n_inputs) {
  Bench *b = self;
  if (batch == 3) usleep(1500000);
  return b->feed.fill(b->feed.self, batch, out, n_inputs);
}

static void leave_behind(Bench *b, CompileOptions options) {
  compile(b, options);
  open_data(b);
  DataFeed feed = {.fill = hanging_feed, .self = b};
  ExecutorOptions run = quick();
  run.deadline_ns = 300000000;
  ok(executor_create(&b->plan, &b->imported.weights, &feed, &run, &b->executor));
  Status s = executor_run(b->executor, 10, on_step, b);
  assert_int_equal(status_code(s), STATUS_RANK);
  assert_non_null(strstr(s->what, "step 1: "));
  assert_non_null(strstr(s->what, "not there yet: rank 1; and 0.300 s later not all ranks have come back"));
  assert_int_equal(b->n_losses, 1);
  status_free(s);
  executor_destroy(b->executor);                      // returns at once
  usleep(1200000);                                   // the thread ends its step: the sanitizers see it
}

static void a_hanging_rank_is_left_behind(void **state) {
  static Bench b[2];                                 // they outlive the test: the hanging threads use them
  CompileOptions options = options_of(2, 0, 2);
  leave_behind(&b[0], options);
  options.zero = 3;
  options.prefetch = 1;                              // the communication queue waits for the rank, the compute queue for that
  leave_behind(&b[1], options);
}

static Status nan_feed(void *self, int64_t batch, const Tensor *out, size_t n_inputs) {
  Bench *b = self;
  TRY(b->feed.fill(b->feed.self, batch, out, n_inputs));
  if (batch >= 4) ((float *)out[0].data)[0] = NAN;
  return NULL;
}

static void nan_stops(void **state) {
  Bench b;
  compile(&b, options_of(2, 2, 2));
  open_data(&b);
  DataFeed feed = {.fill = nan_feed, .self = &b};
  ExecutorOptions run = quick();
  ok(executor_create(&b.plan, &b.imported.weights, &feed, &run, &b.executor));
  Status s = executor_run(b.executor, 10, on_step, &b);
  assert_int_equal(status_code(s), STATUS_CHECK);
  assert_int_equal(b.n_losses, 3);                   // reported before it stops
  assert_true(isnan(b.losses[2]));
  status_free(s);
  finish(&b);
}

typedef void (*Spoil)(Graph *g);
static Value *placed(Graph *g) { return g->loss_report; }
static void far_offset(Graph *g) { placed(g)->loc.offset_bytes = INT64_C(1) << 40; }
static void negative_offset(Graph *g) { placed(g)->loc.offset_bytes = -8; }
static void wild_stride(Graph *g) { placed(g)->loc.rank_stride_bytes = INT64_MAX / 2; }
static void wild_buffer(Graph *g) { placed(g)->loc.buffer = 1 << 20; }
static void no_place(Graph *g) { g->nodes[g->n_nodes - 1]->outputs[0]->loc.buffer = -1; }
static void huge_buffer(Graph *g) { g->buffers[0].bytes = INT64_MAX - 64; }
static void odd_buffer(Graph *g) { g->buffers[0].offset_bytes = 3; }
static void far_tier(Graph *g) { g->buffers[0].tier = TIER_NVME; }
static void wild_region(Graph *g) { g->nodes[0]->guard = GUARD_WRITE, g->nodes[0]->region = 1 << 20; }
static void wild_workspace(Graph *g) { g->nodes[0]->workspace = 1 << 20; }
static void wild_phase(Graph *g) { g->nodes[0]->phase = (Phase)9; }
static void unknown_control(Graph *g) {
  Value *v = graph_find_value(g, "tessera.lr");
  graph_rename_value(g, v, "tessera.nonsense");
}
static void carried_away(Graph *g) {
  for (size_t i = 0; i < g->n_values; i++)
    if (g->values[i]->carry) {
      g->values[i]->loc = g->loss_report->loc;
      g->values[i]->type = g->loss_report->type;
      return;
    }
}
static void other_library(Graph *g) { g->recipe.numerics_key = "kernels of another age"; }
static void other_isa(Graph *g) { g->recipe.isa = "sparc"; }
static void two_processes(Graph *g) { g->recipe.processes = 2; }
static void processes_elsewhere(Graph *g) {
  g->recipe.processes = 2;
  g->recipe.ranks_per_process = 1;
}
static Node *collective(Graph *g, int skip) {
  for (size_t i = 0; i < g->n_nodes; i++)
    if ((g->nodes[i]->op->flags & OP_COLLECTIVE) && !skip--) return g->nodes[i];
  fail_msg("there is no such collective");
  return NULL;
}
static void other_queue(Graph *g) { g->nodes[0]->queue = QUEUE_IO; }
static void wild_queue(Graph *g) { g->nodes[0]->queue = (Queue)7; }
static void two_queues(Graph *g) { collective(g, 1)->queue = QUEUE_COMM; }
static void wait_of(Node *n, uint32_t on) {
  static uint32_t wait;
  wait = on;
  n->waits = &wait;
  n->n_waits = 1;
}
static void waits_for_later(Graph *g) { wait_of(g->nodes[1], 2); }
static void waits_for_nobody(Graph *g) { wait_of(g->nodes[1], 1 << 20); }
static void waits_for_own_queue(Graph *g) { wait_of(g->nodes[1], 0); }
static void waits_for_other_phase(Graph *g) {
  g->nodes[0]->queue = QUEUE_COMM;
  wait_of(g->nodes[g->n_nodes - 1], 0);
}
static void more_threads(Graph *g) { g->recipe.threads_per_rank = 2; }
static void more_ranks(Graph *g) { g->recipe.ranks_per_process = 3; }
static void no_micro(Graph *g) { g->recipe.micro_per_rank = 0; }
static void unplanned(Graph *g) { g->facts &= ~(uint32_t)FACT_PLANNED; }

static void spoilt_plans_are_refused(void **state) {
  static const struct { Spoil spoil; StatusCode code; } cases[] = {
      {far_offset, STATUS_MALFORMED},   {negative_offset, STATUS_MALFORMED}, {wild_stride, STATUS_MALFORMED},     {wild_buffer, STATUS_MALFORMED},
      {no_place, STATUS_MALFORMED},     {huge_buffer, STATUS_MALFORMED},     {odd_buffer, STATUS_MALFORMED},      {far_tier, STATUS_MALFORMED},
      {wild_region, STATUS_MALFORMED},  {wild_workspace, STATUS_MALFORMED},  {wild_phase, STATUS_MALFORMED},      {unknown_control, STATUS_UNSUPPORTED},
      {carried_away, STATUS_MALFORMED}, {other_isa, STATUS_MALFORMED},       {two_processes, STATUS_MALFORMED}, {more_ranks, STATUS_MALFORMED},
      {other_queue, STATUS_UNSUPPORTED}, {wild_queue, STATUS_UNSUPPORTED},   {two_queues, STATUS_MALFORMED},      {waits_for_later, STATUS_MALFORMED},
      {waits_for_nobody, STATUS_MALFORMED}, {waits_for_own_queue, STATUS_MALFORMED}, {waits_for_other_phase, STATUS_MALFORMED},
      {more_threads, STATUS_UNSUPPORTED}, {processes_elsewhere, STATUS_UNSUPPORTED},
      {no_micro, STATUS_MALFORMED},   {other_library, STATUS_UNSUPPORTED},       {unplanned, STATUS_USAGE}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Bench b;
    compile(&b, options_of(2, 3, 2));
    open_data(&b);
    cases[i].spoil(b.program);
    ExecutorOptions run = quick();
    Status s = executor_create(&b.plan, &b.imported.weights, &b.feed, &run, &b.executor);
    if (status_code(s) != cases[i].code) fail_msg("case %zu: code %d: %s", i, status_code(s), s ? s->what : "accepted");
    status_free(s);
    finish(&b);
  }
}

static void missing_weights_are_named(void **state) {
  Bench b;
  compile(&b, options_of(2, 3, 2));
  open_data(&b);
  WeightSource none = {.path = "nothing"};
  ExecutorOptions run = quick();
  Status s = executor_create(&b.plan, &none, &b.feed, &run, &b.executor);
  assert_int_equal(status_code(s), STATUS_MALFORMED);
  assert_non_null(strstr(s->what, "at start"));
  status_free(s);
  finish(&b);
}

// ---- Checkpoints --------------------------------------------------------------------------------------------------------------

static char dir[64], place[96];

static void save(Bench *b, int64_t step) {
  CheckpointInfo info = {.step = step, .seed = 11, .next_batch = step * 4, .model_path = model_file, .fingerprint = "00"};
  ok(checkpoint_save(place, b->executor, b->program, &info));
}

static void remove_checkpoint(void) {
  char path[160];
  static const char *const names[] = {"meta.json", "params.safetensors", "state.safetensors"};
  for (int i = 0; i < 3; i++) {
    snprintf(path, sizeof path, "%s/%s", place, names[i]);
    unlink(path);
  }
  rmdir(place);
}

// 3 + 3 steps through a checkpoint, resumed with other ranks and another stage, end in the same bits as 6 steps.
static void resumed_runs_give_the_same_bits(void **state) {
  char want[33], got[33];
  Bench b;
  strcpy(dir, "/tmp/tessera_test_XXXXXX");
  assert_non_null(mkdtemp(dir));
  snprintf(place, sizeof place, "%s/ck", dir);
  start(&b, options_of(2, 3, 4), quick());
  ok(executor_run(b.executor, 3, on_step, &b));
  save(&b, 3);
  save(&b, 3);                                       // replaces what is there
  ok(executor_run(b.executor, 3, on_step, &b));
  ok(executor_params_hash(b.executor, want));
  finish(&b);
  for (int zero = 0; zero < 4; zero++) {
    Checkpoint *c;
    ok(checkpoint_open(place, &c));
    assert_int_equal(checkpoint_info(c)->step, 3);
    assert_int_equal(checkpoint_info(c)->seed, 11);
    assert_int_equal(checkpoint_info(c)->next_batch, 12);
    assert_string_equal(checkpoint_info(c)->optimizer, "adamw");
    CompileOptions options = options_of(4, zero, 4);
    options.resume = true;
    compile(&b, options);
    open_data(&b);
    const WeightSource *weights;
    ok(checkpoint_weights(c, &b.imported.weights, b.program, &weights));
    ExecutorOptions run = quick();
    run.first_step = 3;
    b.n_losses = 3;
    ok(executor_create(&b.plan, weights, &b.feed, &run, &b.executor));
    ok(executor_run(b.executor, 3, on_step, &b));
    ok(executor_params_hash(b.executor, got));
    assert_string_equal(got, want);
    finish(&b);
    checkpoint_close(c);
  }
  remove_checkpoint();
  assert_int_equal(rmdir(dir), 0);                   // nothing else is left
}

static void refuses_to_go_on(Checkpoint *c, Bench *b, const char *word) {
  const WeightSource *weights;
  Status s = checkpoint_weights(c, &b->imported.weights, b->program, &weights);
  assert_int_equal(status_code(s), STATUS_USAGE);
  char text[1024];
  assert_non_null(strstr(status_text(s, text, sizeof text), word));
  status_free(s);
}

// What trains comes from the checkpoint or not at all; constants may come from the model.
static void what_trains_is_in_the_checkpoint(void **state) {
  Bench b;
  Checkpoint *c;
  const WeightSource *weights;
  strcpy(dir, "/tmp/tessera_test_XXXXXX");
  assert_non_null(mkdtemp(dir));
  snprintf(place, sizeof place, "%s/ck", dir);
  CompileOptions options = options_of(2, 1, 4);
  options.optimizer = "sgd";                         // without state
  start(&b, options, quick());
  save(&b, 0);
  ok(checkpoint_open(place, &c));
  ok(checkpoint_weights(c, &b.imported.weights, b.program, &weights));
  Bucket *bucket = &b.program->buckets[0];
  const char *name = bucket->params[0], *optimizer = b.program->recipe.optimizer;
  bucket->params[0] = "layers.9.weight";
  refuses_to_go_on(c, &b, "'layers.9.weight'");
  bucket->trainable = false;
  ok(checkpoint_weights(c, &b.imported.weights, b.program, &weights));
  bucket->trainable = true;
  bucket->params[0] = name;
  bucket->types[0].dims[0]++;
  refuses_to_go_on(c, &b, name);
  bucket->types[0].dims[0]--;
  b.program->recipe.optimizer = "adamw";
  refuses_to_go_on(c, &b, "optimizer 'sgd'");
  b.program->recipe.optimizer = optimizer;
  ok(checkpoint_weights(c, &b.imported.weights, b.program, &weights));
  checkpoint_close(c);
  remove_checkpoint();
  assert_int_equal(rmdir(dir), 0);
  finish(&b);
}

static void spoilt_checkpoints_are_refused(void **state) {
  Bench b;
  char path[160];
  Checkpoint *c = NULL;
  strcpy(dir, "/tmp/tessera_test_XXXXXX");
  assert_non_null(mkdtemp(dir));
  snprintf(place, sizeof place, "%s/ck", dir);
  Status s = checkpoint_open(place, &c);
  assert_int_equal(status_code(s), STATUS_IO);
  status_free(s);
  start(&b, options_of(1, 0, 1), quick());
  save(&b, 0);
  snprintf(path, sizeof path, "%s/state.safetensors", place);
  FILE *f = fopen(path, "r+b");
  fseek(f, -1, SEEK_END);
  fputc(1, f);
  fclose(f);
  s = checkpoint_open(place, &c);
  assert_int_equal(status_code(s), STATUS_MALFORMED);
  assert_non_null(strstr(s->what, "has changed since it was saved"));
  status_free(s);
  remove_checkpoint();
  // A folder with something else in it is not touched.
  mkdir(place, 0777);
  snprintf(path, sizeof path, "%s/thesis.tex", place);
  fclose(fopen(path, "w"));
  CheckpointInfo info = {.model_path = "", .fingerprint = ""};
  s = checkpoint_save(place, b.executor, b.program, &info);
  assert_int_equal(status_code(s), STATUS_USAGE);
  status_free(s);
  assert_int_equal(unlink(path), 0);
  save(&b, 0);                                       // an empty one is
  remove_checkpoint();
  s = checkpoint_save("/proc/no/ck", b.executor, b.program, &info);
  assert_int_equal(status_code(s), STATUS_IO);
  status_free(s);
  assert_int_equal(rmdir(dir), 0);
  finish(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(same_bits_and_predicted_memory), cmocka_unit_test(measured_memory_is_measured), cmocka_unit_test(delays_change_nothing),
      cmocka_unit_test(late_collectives_change_nothing), cmocka_unit_test(each_failing_collective_is_named), cmocka_unit_test(other_orders_change_nothing),
      cmocka_unit_test(plans_beyond_memory_are_refused), cmocka_unit_test(reads), cmocka_unit_test(stops_when_told), cmocka_unit_test(a_failing_rank_is_named),
      cmocka_unit_test(a_failing_feed_is_named), cmocka_unit_test(a_hanging_rank_is_left_behind),
      cmocka_unit_test(nan_stops), cmocka_unit_test(spoilt_plans_are_refused), cmocka_unit_test(missing_weights_are_named),
      cmocka_unit_test(resumed_runs_give_the_same_bits), cmocka_unit_test(what_trains_is_in_the_checkpoint),
      cmocka_unit_test(spoilt_checkpoints_are_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
