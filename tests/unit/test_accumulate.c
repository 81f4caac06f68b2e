// Sums over micro-batches: TreeAccumulate against the tree written down directly, SquaredNorm against other cuts of the same gradient.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "../../kernels/kernel.h"
#include "../../kernels/ops.h"

enum { ELEMS = 5003, COUNT_MAX = 9, LEVELS_MAX = 4 };

static uint64_t random_state = 88172645463325252u;
static float next_value(void) {   // magnitudes over many orders, so that the order of a sum shows in its bits
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  float unit = (float)(int32_t)(random_state >> 32) * 0x1p-31f;
  return ldexpf(unit, (int)(random_state % 17) - 8);
}

static void expect_ok(Status status) {
  char text[512];
  if (status) fail_msg("%s", status_text(status, text, sizeof text));
}

static Value *typed(Graph *graph, const char *name, Type type) {
  Value *v = graph_add_value(graph, name);
  v->type = type;
  return v;
}

// Sum of x[from .. from + count): the largest power of two below count on the left, the rest on the right.
static float tree_sum(float x[COUNT_MAX][ELEMS], int from, int count, int element) {
  if (count == 1) return x[from][element];
  int left = 1;
  while (left * 2 < count) left *= 2;
  return tree_sum(x, from, left, element) + tree_sum(x, from + left, count - left, element);
}

static float running_sum(float x[COUNT_MAX][ELEMS], int count, int element) {
  float sum = x[0][element];
  for (int m = 1; m < count; m++) sum += x[m][element];
  return sum;
}

static void accumulate(int count, bool running, Isa isa, bool in_place) {
  static float x[COUNT_MAX][ELEMS], partials[LEVELS_MAX][ELEMS], sum[ELEMS];
  Arena *arena = arena_create(0);
  Graph *graph = graph_create(arena, "test");
  Type type = type_vector(DTYPE_F32, ELEMS), scalar = type_scalar(DTYPE_I64);
  int levels = 0;
  while (1 << levels < count) levels++;
  if (running && levels > 1) levels = 1;
  Value *inputs[2 + LEVELS_MAX] = {typed(graph, "x", type), typed(graph, "micro", scalar)};
  for (int l = 0; l < levels; l++) inputs[2 + l] = typed(graph, "p", type);
  Node *node = graph_make_node(graph, &op_TreeAccumulate, "tree", 2 + levels, inputs, 1 + levels, NULL);
  attr_set(graph, node, &(AttrInit)A_INT("count", count));
  attr_set(graph, node, &(AttrInit)A_INT("running", running));
  expect_ok(node_infer(graph, node));
  for (int m = 0; m < count; m++)
    for (int e = 0; e < ELEMS; e++) x[m][e] = next_value();
  float expected[ELEMS];
  for (int e = 0; e < ELEMS; e++) expected[e] = running ? running_sum(x, count, e) : tree_sum(x, 0, count, e);
  memset(partials, 0xff, sizeof partials);   // NaN: what is read before it is written shows
  for (int64_t m = 0; m < count; m++) {
    Tensor in[2 + LEVELS_MAX] = {{.data = x[m], .type = &type}, {.data = &m, .type = &scalar}}, out[1 + LEVELS_MAX] = {{.data = in_place ? x[m] : sum, .type = &type}};
    for (int l = 0; l < levels; l++) in[2 + l] = out[1 + l] = (Tensor){.data = partials[l], .type = &type};
    expect_ok(kernel_run_once(node, in, out, isa, false));
    if (m == count - 1) assert_memory_equal(out[0].data, expected, sizeof expected);
  }
  arena_destroy(arena);
}

static void test_tree(void **state) {
  for (int count = 1; count <= COUNT_MAX; count++)
    for (int in_place = 0; in_place < 2; in_place++) {
      for (int running = 0; running < 2; running++) {
        accumulate(count, running, ISA_SCALAR, in_place);
        accumulate(count, running, isa_best(), in_place);
      }
    }
}

// ---- Norm ----

enum { LIMBS = 72, CHUNKS = 16 };

static void squared_norm(const float *g, int64_t n, double scale, Isa isa, int64_t limbs[LIMBS]) {
  Arena *arena = arena_create(0);
  Graph *graph = graph_create(arena, "test");
  Type flat = type_vector(DTYPE_F32, n), scalar = type_scalar(DTYPE_F64);
  Node *node = graph_make_node(graph, &op_SquaredNorm, "norm", 2, (Value *[]){typed(graph, "s", scalar), typed(graph, "g", flat)}, 1, NULL);
  expect_ok(node_infer(graph, node));
  Tensor in[] = {{.data = &scale, .type = &scalar}, {.data = (void *)g, .type = &flat}}, out[] = {{.data = limbs, .type = &node->outputs[0]->type}};
  expect_ok(kernel_run_once(node, in, out, isa, false));
  arena_destroy(arena);
}

static double norm_of(int64_t limbs[LIMBS]) {
  Arena *arena = arena_create(0);
  Graph *graph = graph_create(arena, "test");
  Type scalar = type_scalar(DTYPE_F64), vector = type_vector(DTYPE_I64, LIMBS);
  Node *node = graph_make_node(graph, &op_ClipScale, "clip", 2, (Value *[]){typed(graph, "s", scalar), typed(graph, "l", vector)}, 2, NULL);
  expect_ok(node_infer(graph, node));
  double one = 1, norm, scale;
  Tensor in[] = {{.data = &one, .type = &scalar}, {.data = limbs, .type = &vector}}, out[] = {{.data = &norm, .type = &scalar}, {.data = &scale, .type = &scalar}};
  expect_ok(kernel_run_once(node, in, out, ISA_SCALAR, true));
  arena_destroy(arena);
  return norm;
}

// The shards' limbs, added as integers, give the norm of the whole to the bit, however it is cut.
static void test_norm_shards(void **state) {
  static float g[CHUNKS * CHUNK_ELEMS];
  long double direct = 0;
  for (int i = 0; i < CHUNKS * CHUNK_ELEMS; i++) g[i] = next_value();
  for (int i = 0; i < CHUNKS * CHUNK_ELEMS; i++) direct += (long double)(g[i] * 0.25f) * (long double)(g[i] * 0.25f);
  int64_t whole[LIMBS];
  squared_norm(g, CHUNKS * CHUNK_ELEMS, 0.25, isa_best(), whole);
  double norm = norm_of(whole);
  assert_true(fabs(norm - (double)sqrtl(direct)) <= 1e-14 * norm);
  for (int parts = 2; parts <= CHUNKS; parts *= 2) {
    int64_t sum[LIMBS] = {0}, shard[LIMBS], n = CHUNKS * CHUNK_ELEMS / parts;
    for (int r = 0; r < parts; r++) {
      squared_norm(g + r * n, n, 0.25, isa_best(), shard);
      for (int l = 0; l < LIMBS; l++) sum[l] += shard[l];
    }
    double again = norm_of(sum);
    assert_memory_equal(&again, &norm, sizeof norm);
  }
}

// A last chunk that is not full gives the bits of the same chunk padded with zeros, as it lies in a bucket.
static void test_norm_padding(void **state) {
  static float g[2 * CHUNK_ELEMS];
  memset(g, 0, sizeof g);
  for (int i = 0; i < CHUNK_ELEMS + 77; i++) g[i] = next_value();
  int64_t bare[LIMBS], padded[LIMBS];
  squared_norm(g, CHUNK_ELEMS + 77, 1, isa_best(), bare);
  squared_norm(g, 2 * CHUNK_ELEMS, 1, isa_best(), padded);
  assert_memory_equal(bare, padded, sizeof bare);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_tree), cmocka_unit_test(test_norm_shards), cmocka_unit_test(test_norm_padding)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
