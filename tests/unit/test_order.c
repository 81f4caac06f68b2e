// The order proof of verify_plan (passes/verify_order.c) against an oracle that runs small plans in every possible order (tests/plan/oracle.h): plans
// spread over queues, and thousands of mutants of them. What the oracle breaks must be refused; what is refused for its order alone, the oracle breaks.
//   TESSERA_ORACLE_MUTANTS: mutants per plan; TESSERA_ORACLE_PLANS: plans per model. Larger for a long run.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../../frontend/plan_file.h"
#include "../../kernels/ops.h"
#include "../../passes/pass.h"
#include "../../passes/verify_plan.h"
#include "../plan/oracle.h"
#include "../plan/spread.h"

enum { STATES_MAX = 60000 };

static void ok(Status s) {
  char text[1024];
  if (s) fail_msg("%s", status_text(s, text, sizeof text));
}

typedef struct Base { Arena *arena; Model *model; Graph *graph; } Base;

static Base compile(const char *name, int ranks, int zero, int64_t micro, int64_t prefetch) {
  char path[512];
  snprintf(path, sizeof path, TESSERA_SOURCE_DIR "/tests/models/%s/model.onnx", name);
  Base b = {.arena = arena_create(0)};
  Imported imported;
  ok(model_open(path, &b.model));
  ok(model_import(b.model, NULL, b.arena, &imported));
  CompileOptions o = compile_options_default();
  o.ranks = ranks;
  o.zero = zero;
  o.micro_batches = micro;
  o.isa = zero % 2 ? isa_best() : ISA_SCALAR;     // fast kernels have workspaces
  o.bucket_bytes = 4096;
  o.prefetch = prefetch;
  o.model_path = path;
  o.weights = &imported.weights;
  PassRun run = {.log = stderr};
  Plan plan;
  ok(passes_run(imported.graph, pipeline_train, &o, &run));
  ok(make_plan(imported.graph, &plan));
  b.graph = imported.graph;
  return b;
}

static void finish(Base *b) {
  arena_destroy(b->arena);
  model_close(b->model);
}

// ---- What verify says ---------------------------------------------------------------------------------------------------------

typedef struct Verdict { size_t n; bool order, other; char first[400]; const PlanDefect *defects; } Verdict;

static bool has(const Verdict *v, const char *code) {
  for (size_t i = 0; i < v->n; i++)
    if (!strcmp(v->defects[i].code, code)) return true;
  return false;
}

// `order`: defects of timing; `other`: of anything else.
static Verdict verify(const Graph *g, Arena *arena) {
  Verdict v = {0};
  ok(verify_plan(g, arena, &v.defects, &v.n, NULL));
  v.order = has(&v, "race") || has(&v, "missing_wait") || has(&v, "deadlock");
  for (size_t i = 0; i < v.n; i++) {
    const char *code = v.defects[i].code;
    v.other |= strcmp(code, "race") && strcmp(code, "missing_wait") && strcmp(code, "deadlock");
    if (!i) snprintf(v.first, sizeof v.first, "%s: %s", code, v.defects[i].what);
  }
  return v;
}

// ---- Mutants ------------------------------------------------------------------------------------------------------------------

static void set_waits(Graph *g, Node *node, const uint32_t *waits, int n) {
  node->waits = arena_copy(g->arena, waits, sizeof *waits * (size_t)n);
  node->n_waits = n;
}

static Node *any(Graph *g, unsigned *seed) { return g->nodes[(size_t)rand_r(seed) % g->n_nodes]; }

static Node *any_that_waits(Graph *g, unsigned *seed) {
  for (int i = 0; i < 200; i++) {
    Node *node = any(g, seed);
    if (node->n_waits) return node;
  }
  return NULL;
}

static void drop_wait_of(Graph *g, Node *node, int out) {
  uint32_t waits[64];
  int n = 0;
  for (int i = 0; i < node->n_waits && n < 64; i++)
    if (i != out) waits[n++] = node->waits[i];
  set_waits(g, node, waits, n);
}

// The n-th wait of the plan.
static bool drop_wait(Graph *g, unsigned *n) {
  for (size_t i = 0; i < g->n_nodes; i++) {
    Node *node = g->nodes[i];
    if (*n < (unsigned)node->n_waits) {
      drop_wait_of(g, node, (int)*n);
      return true;
    }
    *n -= (unsigned)node->n_waits;
  }
  return false;
}

static bool redirect_wait(Graph *g, unsigned *seed) {
  Node *node = any_that_waits(g, seed);
  if (!node) return false;
  uint32_t *waits = arena_copy(g->arena, node->waits, sizeof *waits * (size_t)node->n_waits);
  uint32_t *wait = &waits[rand_r(seed) % node->n_waits];
  *wait = rand_r(seed) % 2 ? *wait - (*wait > 0) : any(g, seed)->id;
  set_waits(g, node, waits, node->n_waits);
  return true;
}

static bool add_wait(Graph *g, unsigned *seed) {
  Node *node = any(g, seed);
  uint32_t waits[64] = {any(g, seed)->id};
  int n = 1;
  for (int i = 0; i < node->n_waits && n < 64; i++) waits[n++] = node->waits[i];
  set_waits(g, node, waits, n);
  return true;
}

static bool drop_waits(Graph *g, unsigned *seed) {
  Node *node = any_that_waits(g, seed);
  if (node) node->n_waits = 0;
  return node;
}

static bool change_queue(Graph *g, unsigned *seed) {
  Node *node = any(g, seed);
  node->queue = (node->queue + 1 + rand_r(seed) % 2) % QUEUE_COUNT;
  return true;
}

static bool swap_waits(Graph *g, unsigned *seed) {
  Node *a = any_that_waits(g, seed), *b = any(g, seed);
  if (!a || a->phase != b->phase) return false;
  const uint32_t *waits = a->waits;
  int n = a->n_waits;
  set_waits(g, a, b->waits, b->n_waits);
  set_waits(g, b, waits, n);
  return true;
}

// Two steps change places, whatever that breaks; waits follow them.
static bool swap_steps(Graph *g, unsigned *seed) {
  size_t i = (size_t)rand_r(seed) % (g->n_nodes - 1), k = i + 1;
  if (g->nodes[i]->phase != g->nodes[k]->phase) return false;
  Node *a = g->nodes[i];
  g->nodes[i] = g->nodes[k];
  g->nodes[k] = a;
  g->nodes[i]->id = (uint32_t)i;
  g->nodes[k]->id = (uint32_t)k;
  for (size_t n = 0; n < g->n_nodes; n++) {
    uint32_t *waits = arena_copy(g->arena, g->nodes[n]->waits, sizeof *waits * (size_t)g->nodes[n]->n_waits);
    for (int w = 0; w < g->nodes[n]->n_waits; w++) waits[w] = waits[w] == i ? (uint32_t)k : waits[w] == k ? (uint32_t)i : waits[w];
    g->nodes[n]->waits = waits;
  }
  return true;
}

static bool move_guard(Graph *g, unsigned *seed) {
  for (int i = 0; i < 200; i++) {
    Node *a = any(g, seed), *b = g->nodes[(a->id + 1 + (unsigned)rand_r(seed) % 3) % g->n_nodes];
    if (a->guard == GUARD_NONE || b->guard != GUARD_NONE) continue;
    if (rand_r(seed) % 3) {
      b->guard = a->guard;
      b->region = a->region;
    }
    a->guard = GUARD_NONE;
    a->region = -1;
    return true;
  }
  return false;
}

static const struct { const char *name; bool (*change)(Graph *g, unsigned *seed); } mutations[] = {
    {"drop a wait", drop_wait},     {"redirect a wait", redirect_wait}, {"add a wait", add_wait},     {"drop a step's waits", drop_waits},
    {"change a queue", change_queue}, {"exchange waits", swap_waits},   {"exchange steps", swap_steps}, {"move a guard", move_guard},
};
enum { DROP_WAIT = 0, N_MUTATIONS = sizeof mutations / sizeof *mutations };

// ---- Comparison ---------------------------------------------------------------------------------------------------------------

typedef struct Tally { size_t plans, mutants, states, over_budget, broken, refused[N_MUTATIONS], passed[N_MUTATIONS]; } Tally;

static void print_steps(const Graph *g) {
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *n = g->nodes[i];
    fprintf(stderr, "%3zu %-6s %-7s %-9s %-16s %s waits", i, phase_name(n->phase), queue_name(n->queue), guard_name(n->guard), n->op->name, n->name);
    for (int w = 0; w < n->n_waits; w++) fprintf(stderr, " %u", n->waits[w]);
    fprintf(stderr, "\n");
  }
}

static void disagree(const Graph *g, const char *what, const OracleResult *r, const Verdict *v, const char *mutation) {
  print_steps(g);
  fail_msg("%s after '%s': the oracle finds%s%s%s (steps %u and %u), verify %s", what, mutation, r->found & ORACLE_DEADLOCK ? " a deadlock" : "",
           r->found & ORACLE_RACE ? " a race" : "", r->found & ORACLE_VALUE ? " other values" : "", r->race[0], r->race[1], v->n ? v->first : "nothing");
}

static void compare_mutant(const Graph *base, uint64_t outcome, int m, unsigned seed, Tally *t) {
  Arena *arena = arena_create(0);
  Graph *g = graph_clone(base, arena);
  if (mutations[m].change(g, &seed)) {
    Verdict v = verify(g, arena);
    t->mutants++;
    // Names that are no use to the oracle: references that do not exist, guards of what is no region.
    OracleResult r = has(&v, "structure") ? (OracleResult){0} : oracle_run(g, STATES_MAX);
    bool over = r.found & ORACLE_BUDGET;
    int found = r.found & ~ORACLE_BUDGET;
    if (!found && !over && r.outcome != outcome && !has(&v, "structure")) found = r.found |= ORACLE_VALUE;
    t->states += r.states;
    t->over_budget += over;
    t->broken += found != 0;
    if (found && !v.n) disagree(g, "a broken plan is accepted", &r, &v, mutations[m].name);
    if (!found && !over && v.order && !v.other) disagree(g, "a right plan is refused", &r, &v, mutations[m].name);
    ++*(v.n ? &t->refused[m] : &t->passed[m]);
  }
  arena_destroy(arena);
}

static int number(const char *name, int fallback) {
  const char *text = getenv(name);
  return text ? atoi(text) : fallback;
}

// Plans that are spread at random, or (prefetch above 0) the one that the compiler spreads.
static void compare_plans(const char *model, int ranks, int zero, int64_t micro, int64_t prefetch, Tally *t) {
  Base base = compile(model, ranks, zero, micro, prefetch);
  Graph *plain = graph_clone(base.graph, base.arena);
  for (size_t i = 0; i < plain->n_nodes; i++) plain->nodes[i]->queue = QUEUE_COMPUTE, plain->nodes[i]->n_waits = 0;
  OracleResult alone = oracle_run(plain, STATES_MAX);
  assert_int_equal(alone.found, 0);
  int plans = number("TESSERA_ORACLE_PLANS", 3), mutants = number("TESSERA_ORACLE_MUTANTS", 21);
  if (prefetch) plans = 1;
  for (int p = 0; p < plans; p++) {
    Arena *arena = arena_create(0);
    Graph *g = graph_clone(base.graph, arena);
    if (!prefetch) spread_over_queues(g, (unsigned)(1 + p), p % 4 * 15, true);
    OracleResult r = oracle_run(g, STATES_MAX);
    Verdict v = verify(g, arena);
    t->plans++;
    t->states += r.states;
    bool over = r.found & ORACLE_BUDGET;
    if ((r.found & ~ORACLE_BUDGET) || v.n || (!over && r.outcome != alone.outcome)) disagree(g, "a spread plan is not right", &r, &v, "nothing");
    unsigned n_waits = 0;
    for (size_t i = 0; i < g->n_nodes; i++) n_waits += (unsigned)g->nodes[i]->n_waits;
    for (unsigned i = 0; i < n_waits; i++) compare_mutant(g, alone.outcome, DROP_WAIT, i, t);
    for (int i = 0; i < mutants; i++) compare_mutant(g, alone.outcome, 1 + i % (N_MUTATIONS - 1), (unsigned)(p * 10007 + i * 31 + zero), t);
    arena_destroy(arena);
  }
  finish(&base);
}

static void oracle_and_proof_agree(void **state) {
  Tally t = {0};
  for (int zero = 0; zero < 4; zero++) {
    compare_plans("linreg", 2, zero, 2, 0, &t);
    compare_plans("linreg", 2, zero, 4, 0, &t);
    compare_plans("linreg", 1, zero, 2, 0, &t);
    compare_plans("linreg", 2, zero, 2, 1 + zero % 2, &t);
    compare_plans("mlp", 2, zero, 2, 2 - zero % 2, &t);
  }
  compare_plans("linreg", 3, 3, 3, 0, &t);
  compare_plans("mlp", 1, 1, 1, 0, &t);
  printf("%zu plans and %zu mutants in %zu states: %zu broken, %zu over the budget of states\n", t.plans, t.mutants, t.states, t.broken, t.over_budget);
  for (int m = 0; m < N_MUTATIONS; m++) printf("  %-20s %6zu refused %6zu accepted\n", mutations[m].name, t.refused[m], t.passed[m]);
  assert_true(t.broken > t.mutants / 10);
  assert_true(t.over_budget * 10 <= t.mutants + t.plans);
}

// ---- Names --------------------------------------------------------------------------------------------------------------------

static Node *find(const Graph *g, const char *op, int nth) {
  for (size_t i = 0; i < g->n_nodes; i++)
    if (!strcmp(g->nodes[i]->op->name, op) && nth-- == 0) return g->nodes[i];
  fail_msg("the plan has no such %s", op);
  return NULL;
}

// The first defect is of `code` and its sentence has both texts.
static void expect(const Graph *g, const char *code, const char *one, const char *two) {
  Arena *arena = arena_create(0);
  Verdict v = verify(g, arena);
  if (!v.n || strcmp(v.defects[0].code, code) || !strstr(v.first, one) || !strstr(v.first, two))
    fail_msg("wanted %s with '%s' and '%s', got %s", code, one, two, v.n ? v.first : "nothing");
  arena_destroy(arena);
}

static Graph *spread(const Base *b) {
  Graph *g = graph_clone(b->graph, b->arena);
  spread_over_queues(g, 1, 0, true);
  return g;
}

static void waits_for_one(Graph *g, Node *node, const Node *other) { set_waits(g, node, &other->id, 1); }

static void defects_are_named(void **state) {
  Base b = compile("linreg", 2, 3, 2, 0);
  Graph *g = spread(&b);
  Node *reader = find(g, "Gemm", 0), *release = find(g, "Release", 0), *gather = find(g, "AllGather", 0);
  assert_int_equal(reader->n_waits, 1);
  assert_int_equal(release->n_waits, 0);
  set_waits(g, release, reader->waits, 1);       // the reader's wait: the guards keep their order, and the reader is out of it
  reader->n_waits = 0;
  expect(g, "missing_wait", "'bucket.0.param'", "gathers it");

  g = spread(&b);
  find(g, "AllReduce", 0)->queue = QUEUE_COMPUTE;
  for (size_t i = 0; i < g->n_nodes; i++)
    if (g->nodes[i]->queue == QUEUE_COMPUTE) g->nodes[i]->n_waits = 0;
  expect(g, "deadlock", "ReduceScatter", "one rank may enter the first of them and another rank the second");

  g = spread(&b);
  Node *scatter = find(g, "ReduceScatter", 0), *sum = find(g, "AllReduce", 0);
  sum->queue = QUEUE_COMPUTE;
  waits_for_one(g, sum, scatter);
  expect(g, "queue", "AllReduce", "all collectives lie on one queue");

  g = spread(&b);
  reader = find(g, "Gemm", 0), gather = find(g, "AllGather", 0);
  waits_for_one(g, gather, reader);
  expect(g, "deadlock", "'AllGather'", "none of them ever runs");

  const struct { uint32_t to; const char *code, *text; } bad[] = {
      {1000, "bad_wait", "does not exist"}, {(uint32_t)g->n_nodes - 1, "bad_wait", "another phase"}, {reader->id - 1, "bad_wait", "own queue"},
      {reader->id, "deadlock", "none of them"}, {reader->id + 1, "deadlock", "stands behind"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    g = spread(&b);
    set_waits(g, find(g, "Gemm", 0), &bad[i].to, 1);
    expect(g, bad[i].code, bad[i].text, "'node_linear'");
  }
  g = spread(&b);
  const uint32_t twice[] = {find(g, "AllGather", 0)->id, find(g, "AllGather", 0)->id};
  set_waits(g, find(g, "Gemm", 0), twice, 2);
  expect(g, "bad_wait", "twice", "'node_linear'");
  finish(&b);
}

// ---- Several programs ---------------------------------------------------------------------------------------------------------

static void same_file(const Graph *a, const Graph *b, Arena *arena) {
  const void *x, *y;
  size_t n, m;
  ok(graph_to_onnx(a, arena, &x, &n));
  ok(graph_to_onnx(b, arena, &y, &m));
  assert_int_equal(n, m);
  assert_memory_equal(x, y, n);
}

static void programs_survive_the_file(void **state) {
  Base one = compile("linreg", 2, 3, 2, 0), two = compile("linreg", 2, 1, 4, 0);
  const Graph *programs[] = {one.graph, two.graph, one.graph}, **again;
  const void *bytes;
  size_t n_bytes;
  int n;
  Model *model;
  Graph *alone;
  ok(plan_to_onnx(programs, 3, one.arena, &bytes, &n_bytes));
  ok(model_open_bytes(bytes, n_bytes, "three.onnx", &model));
  ok(plan_read_onnx(model, one.arena, &again, &n));
  assert_int_equal(n, 3);
  for (int p = 0; p < 3; p++) same_file(programs[p], again[p], one.arena);
  Status s = graph_read_onnx(model, one.arena, &alone);
  assert_int_equal(status_code(s), STATUS_UNSUPPORTED);
  status_free(s);
  const PlanDefect *defects;
  size_t n_defects;
  ok(verify_programs(again, n, one.arena, &defects, &n_defects, NULL));     // of other stages, and no axis has three coordinates
  assert_true(n_defects > 0);
  assert_string_equal(defects[0].code, "programs");
  model_close(model);
  finish(&one);
  finish(&two);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(oracle_and_proof_agree), cmocka_unit_test(defects_are_named), cmocka_unit_test(programs_survive_the_file)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
