// Load and Shard as a rank of several sees them: windows of a bucket, gaps, conversions, mapped files, what is missing.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../kernels/kernel.h"
#include "../../kernels/ops.h"

enum { CHUNKS = 8, ELEMS = CHUNKS * CHUNK_ELEMS, A_ELEMS = 1500, B_ELEMS = 2048, C_ELEMS = 5 };
static const int64_t starts[] = {0, 2 * CHUNK_ELEMS, 5 * CHUNK_ELEMS};

static float a[A_ELEMS], c_values[C_ELEMS];
static double b[B_ELEMS];

typedef struct Case {
  Arena *arena;
  Node *node;
  Type type;
} Case;

static Case load_case(int64_t elems, Dtype dtype, bool sharded, const char *const *names, int n, const char *state) {
  Case k = {.arena = arena_create(0), .type = type_vector(dtype, elems)};
  Graph *graph = graph_create(k.arena, "test");
  k.node = graph_make_node(graph, &op_Load, "load", 0, NULL, 1, NULL);
  const AttrInit attrs[] = {A_STRINGS("params", names, n), A_INTS("starts", starts, n), A_INTS("dims", &elems, 1), A_INT("dtype", dtype),
                            A_INT("sharded", sharded), A_STRING("state", state)};
  for (size_t i = 0; i < sizeof attrs / sizeof *attrs; i++) attr_set(graph, k.node, &attrs[i]);
  Status status = node_infer(graph, k.node);
  assert_null(status);
  return k;
}

static Status run(const Case *k, const WeightSource *source, int rank, int size, void *out) {
  Comm comm = {.rank = rank, .size = size};
  KernelContext context = {.node = k->node, .out = &(Tensor){.data = out, .type = &k->type}, .n_out = 1,
                           .comm = &comm, .weights = source, .loops = loops_for(ISA_SCALAR)};
  return k->node->op->run_ref(&context);
}

// The whole bucket as f32: a, gap, b, gap, c, gap.
static void expected_bucket(float *bucket) {
  memset(bucket, 0, ELEMS * sizeof(float));
  for (int i = 0; i < A_ELEMS; i++) bucket[starts[0] + i] = a[i];
  for (int i = 0; i < B_ELEMS; i++) bucket[starts[1] + i] = (float)b[i];
  for (int i = 0; i < C_ELEMS; i++) bucket[starts[2] + i] = c_values[i];
}

static const char *const names[] = {"a", "b", "c"};

static WeightSource memory_source(Weight weights[3]) {
  weights[0] = (Weight){.name = "a", .type = type_vector(DTYPE_F32, A_ELEMS), .bytes = a};
  weights[1] = (Weight){.name = "b", .type = type_make(DTYPE_F64, 2, (const int64_t[]){2, B_ELEMS / 2}), .bytes = b};
  weights[2] = (Weight){.name = "c", .type = type_vector(DTYPE_F32, C_ELEMS), .bytes = c_values};
  return (WeightSource){.path = "model.onnx", .weights = weights, .n_weights = 3};
}

static void test_windows(void **state) {
  static float bucket[ELEMS], got[ELEMS];
  Weight weights[3];
  WeightSource source = memory_source(weights);
  expected_bucket(bucket);
  for (int size = 1; size <= CHUNKS; size *= 2) {
    Case k = load_case(ELEMS / size, DTYPE_F32, true, names, 3, "");
    memset(got, 0xff, sizeof got);
    for (int rank = 0; rank < size; rank++) assert_null(run(&k, &source, rank, size, got + rank * (ELEMS / size)));
    assert_memory_equal(got, bucket, sizeof bucket);
    arena_destroy(k.arena);
  }
  Case whole = load_case(ELEMS, DTYPE_F32, false, names, 3, "");   // not sharded: all of it on every rank
  memset(got, 0xff, sizeof got);
  assert_null(run(&whole, &source, 3, 4, got));
  assert_memory_equal(got, bucket, sizeof bucket);
  arena_destroy(whole.arena);
}

// Bytes of a mapped file, at an odd offset: the same values, and the mapping can be read again afterwards.
static void test_mapped(void **state) {
  static float big[3 << 20], got[3 << 20];
  enum { BIG = sizeof big / sizeof *big, OFFSET = 3 };
  for (int i = 0; i < BIG; i++) big[i] = (float)i;
  char path[] = "/tmp/tessera_test_load_XXXXXX";
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_int_equal(pwrite(fd, big, sizeof big, OFFSET), sizeof big);
  char *bytes = mmap(NULL, sizeof big + OFFSET, PROT_READ, MAP_PRIVATE, fd, 0);
  assert_true(bytes != MAP_FAILED);
  Weight weight = {.name = "a", .type = type_vector(DTYPE_F32, BIG), .bytes = bytes + OFFSET, .path = path};
  WeightSource source = {.path = path, .weights = &weight, .n_weights = 1};
  Case k = load_case(BIG, DTYPE_F32, false, names, 1, "");
  for (int i = 0; i < 2; i++) {
    memset(got, 0xff, sizeof got);
    assert_null(run(&k, &source, 0, 1, got));
    assert_memory_equal(got, big, sizeof big);
  }
  arena_destroy(k.arena);
  munmap(bytes, sizeof big + OFFSET);
  close(fd);
  unlink(path);
}

static void expect_failure(Status status, StatusCode code, const char *part) {
  char text[512];
  assert_non_null(status);
  assert_int_equal(status_code(status), code);
  status_text(status, text, sizeof text);
  if (!strstr(text, part)) fail_msg("'%s' does not say '%s'", text, part);
  status_free(status);
}

static void test_failures(void **state) {
  static float got[ELEMS];
  Weight weights[3];
  WeightSource source = memory_source(weights);
  Case k = load_case(ELEMS, DTYPE_F32, false, (const char *const[]){"a", "missing", "c"}, 3, "");
  expect_failure(run(&k, &source, 0, 1, got), STATUS_MALFORMED, "'missing': it is not in the weights of model.onnx");
  arena_destroy(k.arena);
  weights[0].type = type_vector(DTYPE_F32, 3 * CHUNK_ELEMS);
  k = load_case(ELEMS, DTYPE_F32, false, names, 3, "");
  expect_failure(run(&k, &source, 0, 1, got), STATUS_MALFORMED, "is larger than the 2048 elements");
  arena_destroy(k.arena);
  k = load_case(ELEMS, DTYPE_F32, false, names, 3, "exp_avg");
  expect_failure(run(&k, &source, 0, 1, got), STATUS_MALFORMED, "'a.exp_avg'");
  arena_destroy(k.arena);
}

static void test_shard(void **state) {
  int64_t flat[6] = {0, 1, 2, 3, 4, 5}, part[2];
  Arena *arena = arena_create(0);
  Graph *graph = graph_create(arena, "test");
  Value *x = graph_add_value(graph, "x");
  x->type = type_vector(DTYPE_I64, 6);
  Node *node = graph_make_node(graph, &op_Shard, "shard", 1, &x, 1, NULL);
  attr_set(graph, node, &(AttrInit)A_INT("parts", 3));
  Status status = node_infer(graph, node);
  assert_null(status);
  Comm comm = {.rank = 2, .size = 3};
  KernelContext context = {.node = node, .in = &(Tensor){.data = flat, .type = &x->type}, .n_in = 1,
                           .out = &(Tensor){.data = part, .type = &node->outputs[0]->type}, .n_out = 1, .comm = &comm};
  assert_null(op_Shard.run_ref(&context));
  assert_int_equal(part[0], 4);
  assert_int_equal(part[1], 5);
  arena_destroy(arena);
}

int main(void) {
  for (int i = 0; i < A_ELEMS; i++) a[i] = (float)i + 0.5f;
  for (int i = 0; i < B_ELEMS; i++) b[i] = 1.0 / (i + 1);
  for (int i = 0; i < C_ELEMS; i++) c_values[i] = -(float)i - 1;
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_windows), cmocka_unit_test(test_mapped), cmocka_unit_test(test_failures),
                                     cmocka_unit_test(test_shard)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
