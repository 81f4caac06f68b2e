// Estimates and the event simulation against numbers worked out by hand.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/ops.h"
#include "passes/simulate.h"

// A machine of round numbers: what a step takes can be done in the head.
static Machine round_machine(void) {
  Machine m = machine_default();
  for (int w = 0; w < WORK_COUNT; w++) m.work_per_s[w] = 1e9;
  for (int i = 0; i < PRODUCT_SIZES; i++)
    for (int j = 0; j < PRODUCT_SIZES; j++)
      for (int k = 0; k < PRODUCT_SIZES; k++) m.product_share[i][j][k] = 1;
  m.transposed_share[0] = m.transposed_share[1] = 1;
  m.memory_bytes_per_s = m.cache_bytes_per_s = 1e12;
  m.step_overhead_s = m.guard_s = m.micro_overhead_s = m.update_overhead_s = 0;
  m.shares_processor = false;
  m.ranks_per_node = 4;
  for (int u = 0; u < LINK_USES; u++) {
    m.intra[u] = (Link){1e-3, 1e9};
    m.inter[u] = (Link){1e-2, 1e8};
  }
  return m;
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-9 + 1e-9 * fabs(b); }

typedef struct Fixture { Arena *arena; Graph *graph; } Fixture;

static Fixture fixture(int ranks, int64_t micro) {
  Fixture f = {.arena = arena_create(0)};
  assert_non_null(f.arena);
  f.graph = graph_create(f.arena, "g");
  f.graph->facts = FACT_PLANNED;
  f.graph->mesh = (Mesh){1, {{"dp", ranks}}};
  f.graph->recipe.micro_per_rank = micro;
  f.graph->recipe.isa = "avx512";
  return f;
}

static Value *input(Fixture *f, Dtype dtype, int rank, const int64_t *dims) {
  Value *v = graph_add_value(f->graph, "x");
  v->type = type_make(dtype, rank, dims);
  return v;
}

static Node *node(Fixture *f, const Op *op, Phase phase, Queue queue, int n, Value *const *in) {
  Node *made = graph_make_node(f->graph, op, NULL, n, in, 1, NULL);
  graph_append(f->graph, made);
  made->phase = phase;
  made->queue = queue;
  return made;
}

static Node *typed(Fixture *f, Node *n) {
  Status status = node_infer(f->graph, n);
  assert_null(status);
  return n;
}

static Node *add(Fixture *f, Phase phase, int64_t elems) {
  Value *x = input(f, DTYPE_F32, 1, &elems);
  return typed(f, node(f, &op_Add, phase, QUEUE_COMPUTE, 2, (Value *[]){x, x}));
}

static Node *collective(Fixture *f, const Op *op, Phase phase, Queue queue, int64_t elems) {
  Value *x = input(f, DTYPE_F32, 1, &elems);
  Node *n = node(f, op, phase, queue, 1, &x);
  attr_set(f->graph, n, &(AttrInit)A_INT("parts", f->graph->mesh.axes[0].size));
  attr_set(f->graph, n, &(AttrInit)A_STRING("kind", "grad"));
  return typed(f, n);
}

static void wait_for(Fixture *f, Node *n, const Node *other) {
  n->waits = arena_copy(f->arena, &other->id, sizeof other->id);
  n->n_waits = 1;
}

static Simulation simulated(Fixture *f, const Machine *m) {
  Simulation s;
  Status status = simulate_step(f->graph, m, f->arena, &s);
  assert_null(status);
  return s;
}

static void a_product_costs_its_flops_and_bytes(void **state) {
  Fixture f = fixture(1, 1);
  Value *a = input(&f, DTYPE_F32, 3, (int64_t[]){2, 3, 5}), *b = input(&f, DTYPE_F32, 2, (int64_t[]){5, 7});
  Node *n = typed(&f, node(&f, &op_MatMul, PHASE_MICRO, QUEUE_COMPUTE, 2, (Value *[]){a, b}));
  NodeCost c = node_cost(n, ISA_AVX512);
  assert_true(near(c.work[WORK_PRODUCT], 2.0 * 6 * 7 * 5));    // one tall matrix of 6 rows
  assert_int_equal(c.m, 6);
  assert_int_equal(c.products, 1);
  assert_true(near(c.read_bytes, 4 * (30 + 35)) && near(c.written_bytes, 4 * 42));
  NodeCost plain = node_cost(n, ISA_SCALAR);
  assert_true(plain.work[WORK_PRODUCT] == 0 && near(plain.work[WORK_PLAIN_FLOP], 420));
  arena_destroy(f.arena);
}

static void a_reshape_costs_nothing_and_a_transpose_its_elements(void **state) {
  Fixture f = fixture(1, 1);
  Value *x = input(&f, DTYPE_F32, 3, (int64_t[]){4, 6, 8});
  Node *t = node(&f, &op_Transpose, PHASE_MICRO, QUEUE_COMPUTE, 1, &x);
  attr_set(f.graph, t, &(AttrInit)A_INTS("perm", ((int64_t[]){1, 0, 2}), 3));
  typed(&f, t);
  assert_true(near(node_cost(t, ISA_AVX512).work[WORK_ELEMENT], 192));
  Node *flat = typed(&f, node(&f, &op_Flatten, PHASE_MICRO, QUEUE_COMPUTE, 1, &x));
  NodeCost c = node_cost(flat, ISA_AVX512);
  assert_true(c.read_bytes == 0 && c.written_bytes == 0 && c.work[WORK_ELEMENT] == 0);
  arena_destroy(f.arena);
}

static void more_elements_take_longer(void **state) {
  Machine m = machine_default();
  double before = 0;
  for (int64_t elems = 1; elems < (int64_t)1 << 40; elems *= 8) {
    Fixture f = fixture(1, 1);
    double seconds = step_cost(f.graph, add(&f, PHASE_MICRO, elems / 4 + 1), &m).seconds;
    assert_true(seconds >= before && isfinite(seconds));
    before = seconds;
    arena_destroy(f.arena);
  }
  assert_true(before > 10);         // 2^37 elements do not fit in ten seconds of one core
}

static void shares_are_met_at_their_sizes_and_lie_between(void **state) {
  Machine m = machine_default();
  for (int i = 0; i < PRODUCT_SIZES; i++)
    for (int k = 0; k < PRODUCT_SIZES; k++)
      assert_true(near(machine_product_share(&m, product_sizes[i], product_sizes[1], product_sizes[k]), m.product_share[i][1][k]));
  double between = machine_product_share(&m, 128, 64, 64);
  assert_true(between > m.product_share[1][1][1] && between < m.product_share[2][1][1]);
  assert_true(near(machine_product_share(&m, 1 << 20, 1 << 20, 1 << 20), m.product_share[3][3][3]));
  assert_true(near(machine_product_share(&m, 4, 64, 64), m.product_share[0][1][1] / 4));
}

static void links_within_and_between_nodes(void **state) {
  Machine m = round_machine();
  assert_true(machine_link_seconds(&m, LINK_GATHER, 1, 100) == 0);
  assert_true(near(machine_link_seconds(&m, LINK_GATHER, 4, 3e6), 2e-3 + 3e-3));               // log2 4 messages, 3 MB at 1 GB/s
  assert_true(near(machine_link_seconds(&m, LINK_GATHER, 8, 7e6), 1e-2 + 1e-2 + 2e-3 + 6e-3));  // 1 MB between 2 nodes, 6 MB within
  m.ring = true;
  assert_true(near(machine_link_seconds(&m, LINK_GATHER, 4, 3e6), 3e-3 + 3e-3));
}

// compute: 2 s, then 3 s that waits for nothing, then 1 s that waits for the collective; comm: 4 s (4e9 bytes sent at 1 GB/s) after the first.
static void communication_overlaps_until_it_is_waited_for(void **state) {
  Machine m = round_machine();
  for (int u = 0; u < LINK_USES; u++) m.intra[u].latency_s = 0;
  Fixture f = fixture(2, 3);
  Node *first = add(&f, PHASE_MICRO, 2000000000);
  Node *comm = collective(&f, &op_AllReduce, PHASE_MICRO, QUEUE_COMM, 1000000000);             // 2 x 1/2 x 4e9 bytes
  wait_for(&f, comm, first);
  Node *second = add(&f, PHASE_MICRO, 3000000000), *third = add(&f, PHASE_MICRO, 1000000000);
  wait_for(&f, third, comm);
  add(&f, PHASE_UPDATE, 500000000);
  Simulation s = simulated(&f, &m);
  assert_true(near(s.steps[comm->id].start_s, 2) && near(s.steps[comm->id].end_s, 6));
  assert_true(near(s.steps[second->id].end_s, 5) && near(s.steps[third->id].start_s, 6));
  assert_true(near(s.phase_s[PHASE_MICRO], 7) && near(s.phase_s[PHASE_UPDATE], 0.5));
  assert_true(near(s.step_s, 3 * 7 + 0.5));
  assert_true(near(s.comm_s, 3 * 4) && near(s.exposed_s, 3 * 1));
  assert_int_equal(s.n_comm, 1);
  assert_true(near(s.comm[0].exposed_s, 3) && near(s.comm[0].seconds, 12) && near(s.comm[0].sent_bytes, 12e9));
  assert_true(near(s.busy_s[QUEUE_COMM], 12) && near(s.busy_s[QUEUE_COMPUTE], 3 * 6 + 0.5));
  comm->queue = QUEUE_COMPUTE;        // on the compute queue nothing is hidden
  comm->n_waits = third->n_waits = 0;
  s = simulated(&f, &m);
  assert_true(near(s.exposed_s, 12) && near(s.step_s, 3 * 10 + 0.5));
  arena_destroy(f.arena);
}

static void a_wait_for_a_later_step_is_refused(void **state) {
  Machine m = round_machine();
  Fixture f = fixture(2, 1);
  Node *first = add(&f, PHASE_MICRO, 8), *second = collective(&f, &op_AllReduce, PHASE_MICRO, QUEUE_COMM, 1024);
  wait_for(&f, first, second);
  Simulation s;
  Status status = simulate_step(f.graph, &m, f.arena, &s);
  assert_int_equal(status_code(status), STATUS_MALFORMED);
  status_free(status);
  arena_destroy(f.arena);
}

// Two regions that one rank after the other reads whole: where ranks share no memory, only one copy is held at a time, beside the own parts.
static void a_copy_is_held_between_gather_and_release(void **state) {
  Machine m = round_machine();
  Fixture f = fixture(2, 1);
  f.graph->n_buffers = 2;
  f.graph->buffers = ARENA_ARRAY(f.arena, Buffer, 2);
  for (int b = 0; b < 2; b++)
    f.graph->buffers[b] = (Buffer){.name = "region", .scope = SCOPE_PROCESS, .bytes = 4096 << b, .offset_bytes = 4096 * b, .persistent = true};
  for (int i = 0; i < 4; i++) {
    Node *n = add(&f, PHASE_MICRO, 8);
    n->guard = i % 2 ? GUARD_READ_END : GUARD_READ_BEGIN;
    n->region = i / 2;
  }
  m.shares_memory = false;
  Simulation s = simulated(&f, &m);
  assert_int_equal(s.peak_bytes, (4096 + 8192) / 2 + 8192);
  assert_int_equal(s.peak_step, 2);
  m.shares_memory = true;                 // a whole region is there for all ranks of the node
  m.ranks_per_node = 2;
  assert_int_equal(simulated(&f, &m).peak_bytes, (4096 + 8192) / 2);
  arena_destroy(f.arena);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_product_costs_its_flops_and_bytes),
      cmocka_unit_test(a_reshape_costs_nothing_and_a_transpose_its_elements),
      cmocka_unit_test(more_elements_take_longer),
      cmocka_unit_test(shares_are_met_at_their_sizes_and_lie_between),
      cmocka_unit_test(links_within_and_between_nodes),
      cmocka_unit_test(communication_overlaps_until_it_is_waited_for),
      cmocka_unit_test(a_wait_for_a_later_step_is_refused),
      cmocka_unit_test(a_copy_is_held_between_gather_and_release),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
