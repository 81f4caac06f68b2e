// Mutants of plans (tests/plan/mutations.h): each is written as a file and read again, and verify says what it thinks of it. Whatever it accepts is run:
// losses, norms, parameters, gradients, states and bytes sent must be those of the plan that it was made from, bit by bit. Hashes in the plan are written
// anew, so nothing but the proof can tell.
//   TESSERA_MUTANTS: mutants per plan and kind; TESSERA_MUTANTS_SEED; TESSERA_MUTANTS_RUN_ALL=1: run those that verify refuses, too, to count how many of
//   them do harm. For a long run: TESSERA_MUTANTS=40.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../frontend/plan_file.h"
#include "../../passes/pass.h"
#include "../../passes/verify_plan.h"
#include "../../runtime/data.h"
#include "../../runtime/executor.h"
#include "../plan/mutations.h"
#include "../plan/spread.h"

enum { STEPS = 3, KINDS_MAX = 64, CHILD_S = 15, DEADLINE_MS = 3000, PATIENT = 10 };

static void ok(Status s) {
  char text[1024];
  if (s) fail_msg("%s", status_text(s, text, sizeof text));
}

typedef struct Base {
  Arena *arena;
  Model *model;
  Imported imported;
  Graph *graph;
  char path[512], title[200];
} Base;

typedef struct Config {
  const char *model;
  int ranks, zero, k, reduce;      // reduce -1: by stage
  int64_t bucket_bytes;
  const char *optimizer;
  int spread, prefetch;            // spread: percent of the steps that are no collectives and lie on comm all the same; 0: not spread
} Config;

static void compile(Base *b, Config c) {
  *b = (Base){.arena = arena_create(0)};
  snprintf(b->path, sizeof b->path, TESSERA_SOURCE_DIR "/tests/models/%s/model.onnx", c.model);
  snprintf(b->title, sizeof b->title, "%s, %d ranks, stage %d, %d a rank%s", c.model, c.ranks, c.zero, c.k, c.spread ? ", on queues" : c.prefetch ? ", prefetching" : "");
  ok(model_open(b->path, &b->model));
  ok(model_import(b->model, NULL, b->arena, &b->imported));
  CompileOptions o = compile_options_default();
  o.ranks = c.ranks;
  o.zero = c.zero;
  o.micro_batches = c.ranks * c.k;
  o.reduce_given = c.reduce >= 0;
  o.reduce = c.reduce >= 0 ? (Reduce)c.reduce : REDUCE_MICRO;
  o.isa = isa_best();
  o.bucket_bytes = c.bucket_bytes;
  o.prefetch = c.prefetch;
  o.optimizer = c.optimizer;
  o.model_path = b->path;
  o.weights = &b->imported.weights;
  o.clip_norm = c.zero % 2 ? 0.5 : 0;
  Plan plan;
  ok(passes_run(b->imported.graph, pipeline_train, &o, &(PassRun){.log = stderr}));
  ok(make_plan(b->imported.graph, &plan));
  b->graph = b->imported.graph;
  if (c.spread) spread_over_queues(b->graph, 7, c.spread, false);      // the runtime has no queue io
}

static void finish(Base *b) {
  arena_destroy(b->arena);
  model_close(b->model);
}

// ---- Running, in a process of its own -----------------------------------------------------------------------------------------

typedef enum End { END_RAN, END_REFUSED, END_FAILED, END_CRASHED, END_HUNG } End;

typedef struct Outcome {
  End end;
  double losses[STEPS], norms[STEPS];
  char params[33];
  uint64_t kept;              // gradients and states of all parameters
  int64_t sent, copied, planned_sent, memory, planned_memory;
  char text[300];
} Outcome;

typedef struct Log { Outcome *out; int n; } Log;

static bool on_step(void *self, const StepResult *result) {
  Log *log = self;
  if (log->n < STEPS) {
    log->out->losses[log->n] = result->loss;
    log->out->norms[log->n++] = result->grad_norm;
  }
  return true;
}

static uint64_t mix_bytes(uint64_t h, const void *bytes, size_t n) {
  for (size_t i = 0; i < n; i++) h = (h ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
  return h;
}

static Status read_one(Executor *e, const char *name, const char *which, const Type *type, uint64_t *out) {
  size_t bytes = (size_t)type_bytes(type);
  void *buffer = calloc(1, bytes + 64);
  if (!buffer) FAIL(RESOURCE, NULL, "no memory");
  Status s = executor_read(e, name, which, buffer);
  *out = mix_bytes(*out, buffer, bytes);
  free(buffer);
  return s;
}

// Everything that can be asked of an executor by name: gradients, states, running statistics. The names are those of the plan that the mutant stems from.
static Status read_kept(const Base *b, Executor *e, uint64_t *out) {
  const Graph *g = b->graph;
  for (size_t i = 0; i < g->n_buckets; i++)
    for (int p = 0; p < g->buckets[i].n_params && g->buckets[i].trainable; p++) TRY(read_one(e, g->buckets[i].params[p], "grad", &g->buckets[i].types[p], out));
  for (size_t i = 0; i < g->n_values; i++) {
    const Value *v = g->values[i];
    bool begins = v->producer && v->producer->phase == PHASE_INIT;
    const Bucket *bucket = v->role == ROLE_STATE && v->bucket >= 0 ? &g->buckets[v->bucket] : NULL;
    for (int p = 0; begins && bucket && p < bucket->n_params; p++) TRY(read_one(e, bucket->params[p], v->state_name, &bucket->types[p], out));
    if (begins && v->role == ROLE_BUFFER) TRY(read_one(e, v->name, NULL, &v->type, out));
  }
  return NULL;
}

// Another timing in every run; never ended, as the process ends soon.
static Comm *delayed(void *self, Comm *comm) {
  Comm *slow;
  ok(comm_delay_create(comm, (uint64_t)getpid() + (uint64_t)comm->rank, 200000, &slow));
  return slow;
}

static Status run_plan(const Base *b, Graph *g, Arena *arena, int patience, Outcome *out) {
  static const char *const source = "random";
  DataInput inputs[16];
  size_t n = 0;
  for (; n < g->n_inputs && n < 16; n++) {
    const Value *v = g->inputs[n];
    inputs[n] = (DataInput){v->name, v->type.dtype, v->type.rank, {0}};
    memcpy(inputs[n].dims, v->type.dims, sizeof inputs[n].dims);
  }
  Data *data;
  Plan plan;
  Executor *e;
  out->end = END_REFUSED;
  TRY(make_plan(g, &plan));
  TRY(data_open(&(DataOptions){.sources = &source, .n_sources = 1, .seed = 3}, inputs, n, &data));
  TRY(data_bind(data, 0, g));
  DataFeed feed = data_feed(data);
  ExecutorOptions options = {.wrap_comm = delayed, .fault_rank = -1, .deadline_ns = patience * DEADLINE_MS * INT64_C(1000000), .seed = 5};
  TRY(executor_create(&plan, &b->imported.weights, &feed, &options, &e));
  out->end = END_FAILED;
  TRY(executor_run(e, STEPS, on_step, &(Log){out, 0}));
  TRY(executor_params_hash(e, out->params));
  TRY(read_kept(b, e, &out->kept));
  PlanBytes bytes = plan_bytes(g, arena);
  out->planned_sent = bytes.sent_bytes;
  out->planned_memory = bytes.tiers[TIER_DEVICE].peak_bytes;
  out->sent = executor_sent_bytes_per_step(e);
  out->copied = executor_copied_bytes_per_step(e);
  out->memory = executor_memory(e).tiers[TIER_DEVICE].measured_bytes;
  out->end = END_RAN;
  return NULL;
}

static Status read_plan(const void *bytes, size_t n_bytes, const Base *b, Arena *arena, Model **model, Graph **out) {
  TRY(model_open_bytes(bytes, n_bytes, b->path, model));
  return graph_read_onnx(*model, arena, out);
}

// `patience`: times the usual seconds until it is said to hang. What must run is given time, as the machine may be busy.
static Outcome run_apart(const Base *b, const void *bytes, size_t n_bytes, int patience) {
  Outcome out = {.end = END_CRASHED};
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  fflush(NULL);
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child) {
    alarm((unsigned)(patience * CHILD_S));
    Arena *arena = arena_create(0);
    Model *model;
    Graph *g;
    Status s = read_plan(bytes, n_bytes, b, arena, &model, &g);
    if (!s) s = run_plan(b, g, arena, patience, &out);
    if (s) status_text(s, out.text, sizeof out.text);
    bool sent = write(ends[1], &out, sizeof out) == sizeof out;
    _exit(!sent);
  }
  close(ends[1]);
  int status = 0;
  bool got = read(ends[0], &out, sizeof out) == sizeof out;
  close(ends[0]);
  waitpid(child, &status, 0);
  if (!got) out.end = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? END_HUNG : END_CRASHED;
  return out;
}

// What differs from the plan that it was made from; NULL: nothing.
static const char *difference(const Outcome *a, const Outcome *b) {
  static const char *const ends[] = {NULL, "the runtime refuses it", "it fails", "it crashes", "it hangs"};
  if (b->end != END_RAN) return ends[b->end];
  if (memcmp(a->losses, b->losses, sizeof a->losses)) return "other losses";
  if (memcmp(a->norms, b->norms, sizeof a->norms)) return "other norms";
  if (strcmp(a->params, b->params)) return "other parameters";
  if (a->kept != b->kept) return "other gradients or states";
  if (b->sent != b->planned_sent || a->copied != b->copied) return "sends other bytes than planned";
  return b->memory != b->planned_memory ? "takes other memory than planned" : NULL;
}

// ---- One plan -----------------------------------------------------------------------------------------------------------------

typedef struct Tally { size_t made, unread, refused, by_runtime, equivalent, harmful, refused_run, refused_harmful; } Tally;

static int number(const char *name, int fallback) {
  const char *text = getenv(name);
  return text ? atoi(text) : fallback;
}

static void take_survivor(const Base *b, const Outcome *want, const Outcome *got, const char *kind, const char *what, Tally *t) {
  const char *differs = difference(want, got);
  if (!differs) {
    t->equivalent++;
    if (number("TESSERA_MUTANTS_TELL", 0)) printf("  same: %s: %s (%s)\n", kind, what, b->title);
  } else if (got->end == END_REFUSED) {
    t->by_runtime++;
  } else {
    t->harmful++;
    print_error("SURVIVOR of %s: %s: %s: %s %s\n", b->title, kind, what, differs, got->end == END_RAN ? "" : got->text);
  }
}

// Writes, reads and proves the mutant; runs what is accepted.
static void judge(const Base *b, Graph *g, Arena *arena, const Outcome *want, const char *kind, const char *what, Tally *t) {
  const void *bytes;
  size_t n_bytes, n_defects = 0;
  Model *model = NULL;
  Graph *again;
  const PlanDefect *defects;
  t->made++;
  Status s = graph_to_onnx(g, arena, &bytes, &n_bytes);
  if (!s) s = read_plan(bytes, n_bytes, b, arena, &model, &again);
  if (s) {
    t->unread++;
    status_free(s);
    model_close(model);
    return;
  }
  ok(verify_plan(again, arena, &defects, &n_defects, NULL));
  t->refused += n_defects > 0;
  if (n_defects && number("TESSERA_MUTANTS_RUN_ALL", 0)) {
    Outcome got = run_apart(b, bytes, n_bytes, 1);
    t->refused_run++;
    t->refused_harmful += difference(want, &got) != NULL;
    if (!difference(want, &got) && number("TESSERA_MUTANTS_TELL", 0))
      printf("  strict: %s: %s: %s: %s (%s)\n", kind, what, defects[0].code, defects[0].what, b->title);
  }
  if (!n_defects) {
    Outcome got = run_apart(b, bytes, n_bytes, PATIENT);
    take_survivor(b, want, &got, kind, what, t);
  }
  model_close(model);
}

static void mutate_plan(Config c, Tally tallies[KINDS_MAX]) {
  Base b;
  compile(&b, c);
  const void *bytes;
  size_t n_bytes;
  ok(graph_to_onnx(b.graph, b.arena, &bytes, &n_bytes));
  Outcome want = run_apart(&b, bytes, n_bytes, PATIENT);
  if (difference(&want, &want)) fail_msg("%s: %s: %s", b.title, difference(&want, &want), want.text);
  int times = number("TESSERA_MUTANTS", 2);
  Random r = {(uint64_t)number("TESSERA_MUTANTS_SEED", 1) * 7919 + (uint64_t)(c.zero * 101 + c.ranks * 17 + c.k * 3 + c.spread)};
  for (int m = 0; mutations[m].name; m++)
    for (int i = 0; i < times; i++) {
      Arena *arena = arena_create(0);
      char what[WHAT_BYTES] = "";
      bool made = false;
      Graph *g = NULL;
      for (int tries = 0; tries < 8 && !made; tries++) {
        g = graph_clone(b.graph, arena);
        made = mutations[m].apply(g, &r, what);
      }
      if (made) judge(&b, g, arena, &want, mutations[m].name, what, &tallies[m]);
      arena_destroy(arena);
    }
  finish(&b);
}

static void print_tallies(const Tally tallies[KINDS_MAX], Tally *sum) {
  printf("%-26s %6s %7s %7s %8s %5s %8s  %s\n", "mutants", "made", "unread", "refused", "runtime", "same", "harmful", "why some are the same");
  for (int m = 0; mutations[m].name; m++) {
    const Tally *t = &tallies[m];
    printf("%-26s %6zu %7zu %7zu %8zu %5zu %8zu  %s\n", mutations[m].name, t->made, t->unread, t->refused, t->by_runtime, t->equivalent, t->harmful,
           t->equivalent ? mutations[m].equivalent : "");
    sum->made += t->made, sum->unread += t->unread, sum->refused += t->refused, sum->by_runtime += t->by_runtime;
    sum->equivalent += t->equivalent, sum->harmful += t->harmful, sum->refused_run += t->refused_run, sum->refused_harmful += t->refused_harmful;
  }
  printf("%-26s %6zu %7zu %7zu %8zu %5zu %8zu\n", "all", sum->made, sum->unread, sum->refused, sum->by_runtime, sum->equivalent, sum->harmful);
  if (sum->refused_run) printf("of %zu refused ones that were run all the same, %zu do harm\n", sum->refused_run, sum->refused_harmful);
}

static const Config configs[] = {
    {"linreg", 1, 0, 2, -1, 4096, "adamw", 0, 0},        {"linreg", 2, 3, 1, -1, 4096, "sgd", 0, 0},           {"mlp", 1, 0, 1, -1, 8192, "adamw", 0, 0},
    {"mlp", 2, 0, 2, REDUCE_STEP, 4096, "adamw", 0, 0},  {"mlp", 2, 0, 2, REDUCE_MICRO, 4096, "adamw", 0, 0},  {"mlp", 2, 1, 2, REDUCE_STEP, 4096, "adamw", 0, 0},
    {"mlp", 4, 1, 1, REDUCE_MICRO, 4096, "adagrad", 0, 0}, {"mlp", 2, 2, 2, -1, 4096, "adamw", 0, 0},          {"mlp", 4, 3, 2, -1, 4096, "adamw", 0, 0},
    {"mlp", 2, 3, 1, -1, 1 << 20, "rmsprop", 0, 0},      {"resnet_bn", 2, 0, 2, -1, 4096, "adamw", 0, 0},      {"resnet_bn", 2, 3, 2, -1, 4096, "sgd", 0, 0},
    {"gpt_merged", 2, 3, 2, -1, 16384, "adamw", 0, 0},   {"linreg", 2, 3, 2, -1, 4096, "adamw", 20, 0},        {"mlp", 2, 3, 2, -1, 4096, "adamw", 20, 0},
    {"mlp", 2, 1, 1, -1, 4096, "adamw", 30, 0},          {"mlp", 8, 1, 2, -1, 8192, "adamw", 0, 0},
    {"mlp", 2, 1, 2, REDUCE_STEP, 4096, "lamb", 0, 0},   {"mlp", 2, 3, 1, -1, 8192, "lamb", 0, 0},             {"mlp", 2, 3, 1, -1, 4096, "muon", 0, 0},
    {"mlp", 2, 0, 1, -1, 4096, "muon", 0, 0},            {"linreg", 2, 2, 1, -1, 4096, "lion", 0, 0},
    {"mlp", 2, 3, 2, -1, 4096, "adamw", 0, 1},          {"mlp", 4, 2, 2, -1, 4096, "adamw", 0, 2},          {"mlp", 2, 1, 1, REDUCE_MICRO, 4096, "sgd", 0, 2},
    {"mlp", 2, 0, 2, REDUCE_STEP, 4096, "lamb", 0, 1},  {"gpt_merged", 2, 3, 2, -1, 16384, "adamw", 0, 2},
};

static void harmful_mutants_are_refused(void **state) {
  Tally tallies[KINDS_MAX] = {{0}}, sum = {0};
  for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) mutate_plan(configs[i], tallies);
  print_tallies(tallies, &sum);
  assert_true(sum.made > 300);
  assert_true(sum.refused > sum.made / 2);
  assert_int_equal(sum.harmful, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(harmful_mutants_are_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
