// The text form: identity, hostile text, exhausted arenas; and what the verifier names.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../../ir/meta.h"
#include "../../ir/parse.h"
#include "../../ir/print.h"
#include "../../ir/verify_graph.h"
#include "../../kernels/ops.h"

static const char sample[] =
    "<ir_version: 10, opset_import: [\"\" : 23, \"tessera\" : 1]>\n"
    "#@ facts=\"typed\"\n"
    "#@ mesh=\"dp=2,tp=2\"\n"
    "#@ loss=\"loss\"\n"
    "#@ recipe.lr=\"0.001\"\n"
    "#@ recipe.reduce=\"step\"\n"
    "#@ bucket.0={\"dtype\": \"float\", \"elems\": 2048, \"shard_elems\": 1024, \"params\": [{\"name\": \"w\", \"start\": 0, \"dims\": [6, 8]}]}\n"
    "#@ buffer.0={\"name\": \"w\", \"scope\": \"process\", \"tier\": \"device\", \"category\": \"params\", \"bytes\": 8192, \"offset\": 0, "
    "\"persistent\": true}\n"
    "#@ saving.0={\"bucket\": 0, \"bytes\": 16, \"reason\": \"small\"}\n"
    "\"a graph\" (\n"
    "  float[4,8] x,\n"
    "  float[6,8] w  #@ role=\"param\" placement=\"dp:flat(0) tp:split(1)\" bucket=\"0\" loc=\"0+0+4096*rank\" doc=\"\\u0001 \\\"q\\\" \\u00e9\"\n"
    ") => (\n"
    "  float loss\n"
    ")\n"
    "<\n"
    "  int64[1] axes = {-1},\n"
    "  float[3] special = {nan, -inf, 1.17549435e-38},\n"
    "  float[4,6] h,\n"
    "  float[4] \"a.b\"\n"
    ">\n"
    "{\n"
    "  h = Gemm <transB = 1> (x, w)  #@ cause.pass=\"test\" region=\"0\"\n"
    "  [\"n 1\"] \"a.b\" = ReduceSum <keepdims = 0> (h, axes)  #@ queue=\"comm\" waits=[\"h\"]\n"
    "  loss = ReduceMean <keepdims = 0> (\"a.b\", \"\")\n"
    "}\n";

static Status text_of(const Graph *graph, const PrintOptions *options, Arena *arena, char **out) {
  ARENA_GUARD(arena);
  *out = graph_text(graph, options, arena);
  ARENA_RETURN(arena, STATUS_OK);
}

static Graph *parse_or_fail(const char *text, Arena *arena) {
  Graph *graph = NULL;
  Status s = graph_parse(text, strlen(text), arena, &graph);
  if (s) fail_msg("%s", s->what);
  return graph;
}

static void test_identity(void **state) {
  Arena *arena = arena_create(0);
  char *first, *second;
  Graph *graph = parse_or_fail(sample, arena);
  assert_null(verify_graph(graph));
  assert_null(text_of(graph, NULL, arena, &first));
  assert_null(text_of(parse_or_fail(first, arena), NULL, arena, &second));
  assert_string_equal(first, second);
  const Value *w = graph_find_value(graph, "w");
  assert_int_equal(w->role, ROLE_PARAM);
  assert_true(w->trainable);
  assert_int_equal(w->placement[0].kind, PLACED_FLAT);
  assert_int_equal(w->placement[1].kind, PLACED_SPLIT);
  assert_int_equal(w->placement[1].arg, 1);
  assert_int_equal(w->loc.rank_stride_bytes, 4096);
  assert_string_equal(w->doc, "\x01 \"q\" \xc3\xa9");
  assert_int_equal(graph->recipe.reduce, REDUCE_STEP);
  assert_int_equal(graph->nodes[1]->n_waits, 1);
  assert_int_equal(graph->nodes[1]->waits[0], 0);
  assert_ptr_equal(graph->loss, graph->outputs[0]);
  assert_int_equal(graph->buckets[0].types[0].dims[1], 8);
  arena_destroy(arena);
}

static void test_renumber(void **state) {
  static const char text[] = "g (float[2] x) => (float[2] y) {\n  \"h.7\" = Exp (x)\n  \"h.3\" = Exp (\"h.7\")\n  \"k.9\" = Exp (\"h.3\")\n  y = Exp (\"k.9\")\n}\n";
  Arena *arena = arena_create(0);
  char *out;
  Graph *graph = parse_or_fail(text, arena);
  assert_null(text_of(graph, &(PrintOptions){.renumber = true}, arena, &out));
  assert_non_null(strstr(out, "  \"h.1\" = Exp (x)\n  \"h.2\" = Exp (\"h.1\")\n  \"k.1\" = Exp (\"h.2\")\n  y = Exp (\"k.1\")\n"));
  assert_string_equal(graph->nodes[0]->outputs[0]->name, "h.7");   // the graph itself is left alone
  arena_destroy(arena);
}

// One attempt at hostile text: an error or a graph, and a graph that prints comes back.
static void attempt(const char *text, size_t bytes) {
  Arena *arena = arena_create((size_t)64 << 20);
  Graph *graph, *again;
  char *first, *second;
  Status s = graph_parse(text, bytes, arena, &graph);
  if (!s) {
    assert_null(text_of(graph, NULL, arena, &first));
    Status t = graph_parse(first, strlen(first), arena, &again);
    if (t) fail_msg("%s\n%s", t->what, first);
    assert_null(text_of(again, NULL, arena, &second));
    assert_string_equal(first, second);
    s = verify_graph(graph);
  } else {
    assert_non_null(strstr(s->what, "line "));
  }
  status_free(s);
  arena_destroy(arena);
}

static uint64_t next_random(uint64_t *x) {
  *x ^= *x << 13;
  *x ^= *x >> 7;
  return *x ^= *x << 17;
}

static void test_mutated(void **state) {
  static const char alphabet[] = "\"#@{}[]()<>=,:.\\-0123456789aefnw \n\0";
  uint64_t seed = 42;
  char text[sizeof sample + 64];
  for (int i = 0; i < 20000; i++) {
    size_t bytes = sizeof sample - 1;
    memcpy(text, sample, bytes);
    for (uint64_t edits = 1 + next_random(&seed) % 3; edits; edits--) {
      size_t at = next_random(&seed) % bytes, n = 1 + next_random(&seed) % 12;
      switch (next_random(&seed) % 3) {
      case 0: text[at] = alphabet[next_random(&seed) % sizeof alphabet]; break;
      case 1:   // cut
        if (n > bytes - at) n = bytes - at;
        memmove(text + at, text + at + n, bytes - at - n);
        bytes -= n;
        break;
      default:  // double
        if (n > bytes - at) n = bytes - at;
        if (bytes + n > sizeof text) break;
        memmove(text + at + n, text + at, bytes - at);
        bytes += n;
      }
      if (!bytes) break;
    }
    if (bytes) attempt(text, bytes);
  }
}

static void test_truncated(void **state) {
  for (size_t bytes = 0; bytes < sizeof sample; bytes++) {
    char *exact = malloc(bytes ? bytes : 1);   // so that a sanitizer sees a read behind the end
    assert_non_null(exact);
    memcpy(exact, sample, bytes);
    attempt(exact, bytes);
    free(exact);
  }
}

// The arena runs out at every size until it suffices.
static void test_exhausted(void **state) {
  size_t limit = 64;
  for (;; limit += 64) {
    Arena *arena = arena_create(limit);
    Graph *graph;
    Status s = graph_parse(sample, sizeof sample - 1, arena, &graph);
    StatusCode code = status_code(s);
    status_free(s);
    arena_destroy(arena);
    if (!code) break;
    assert_int_equal(code, STATUS_RESOURCE);
    assert_true(limit < 1 << 20);
  }
  assert_true(limit > 64);
}

static void expect_error(const char *text, StatusCode code, const char *part) {
  Arena *arena = arena_create(0);
  Graph *graph = NULL;
  Status s = graph_parse(text, strlen(text), arena, &graph);
  if (!s) s = verify_graph(graph);
  if (!s) fail_msg("no error for\n%s", text);
  if (!strstr(s->what, part)) fail_msg("'%s' is not in '%s'", part, s->what);
  assert_int_equal(status_code(s), code);
  status_free(s);
  arena_destroy(arena);
}

static void test_hostile(void **state) {
  expect_error("g (float[70368744177664,2] x) => (x) {}", STATUS_RESOURCE, "bytes");
  expect_error("g (float[2] x) => (y) <float[4611686018427387904,4] c = {1.0}> { y = Exp (x) }", STATUS_RESOURCE, "line 1");
  expect_error("g (float[2] x) => (y) <float[1000000] c = {1.0}> { y = Exp (x) }", STATUS_MALFORMED, "elements");
  expect_error("g (float[1,1,1,1,1,1,1,1,1] x) => (x) {}", STATUS_UNSUPPORTED, "dimensions");
  expect_error("g (float[2] x, float[2] x) => (x) {}", STATUS_MALFORMED, "twice");
  expect_error("g (float[2] x) => (y) { y = Exp (x) y = Exp (x) }", STATUS_MALFORMED, "produced twice");
  expect_error("g (float[2] x) => (y) { [a] y = Exp (x) [a] z = Exp (x) }", STATUS_MALFORMED, "two nodes");
  expect_error("g (float[2] x) => (y) { }", STATUS_MALFORMED, "no node gives output 'y'");
  expect_error("#@ mesh=\"dp=99999999,tp=99999999\"\ng (float[2] x) => (x) {}", STATUS_MALFORMED, "mesh");
  expect_error("#@ bucket.7={}\ng (float[2] x) => (x) {}", STATUS_MALFORMED, "number 0 comes next");
  expect_error("#@ bucket.0={\"dtype\": \"float\"}\ng (float[2] x) => (x) {}", STATUS_MALFORMED, "elems");
  expect_error("#@ facts=\"all\"\ng (float[2] x) => (x) {}", STATUS_MALFORMED, "unknown fact");
  expect_error("g (\n float[2] x #@ bucket=\"3\"\n) => (x) {}", STATUS_MALFORMED, "bucket");
  expect_error("g (\n float[2] x #@ loc=\"0+-4\"\n) => (x) {}", STATUS_MALFORMED, "negative");
  expect_error("g (\n float[2] x #@ role=\"param\" carry=\"x\"\n) => (x) {}", STATUS_MALFORMED, "carried");
  expect_error("g (float[2] x) => (y) { y = Exp (x) #@ waits=[\"z\"]\n}", STATUS_MALFORMED, "no node 'z'");
  expect_error("g (float[2] x) => (y) { y = Exp (x) #@ waits=[\"y\"]\n}", STATUS_MALFORMED, "not before it");
}

// ---- What the verifier sees of a graph that was broken in memory -----------------------------------------------------------------

static void expect_defect(void (*spoil)(Graph *), const char *part) {
  Arena *arena = arena_create(0);
  Graph *graph = parse_or_fail(sample, arena);
  spoil(graph);
  Status s = verify_graph(graph);
  if (!s) fail_msg("the verifier does not see: %s", part);
  char text[512];
  if (!strstr(status_text(s, text, sizeof text), part)) fail_msg("'%s' is not in '%s'", part, text);
  status_free(s);
  arena_destroy(arena);
}

static void spoil_order(Graph *g) {
  Node *n = g->nodes[0];
  g->nodes[0] = g->nodes[1];
  g->nodes[1] = n;
  g->nodes[0]->id = 0;
  g->nodes[1]->id = 1;
}
static void spoil_id(Graph *g) { g->values[1]->id = 7; }
static void spoil_name(Graph *g) { g->values[1]->name = g->values[0]->name; }
static void spoil_node_name(Graph *g) { g->nodes[1]->name = g->nodes[0]->name; }
static void spoil_producer(Graph *g) { g->nodes[0]->outputs[0]->producer = g->nodes[2]; }
static void spoil_type(Graph *g) { g->nodes[0]->outputs[0]->type.dims[0] = 5; }
static void spoil_untyped(Graph *g) { g->nodes[0]->outputs[0]->type.dtype = DTYPE_NONE; }
static void spoil_phase(Graph *g) { g->nodes[0]->phase = PHASE_UPDATE; }
static void spoil_input(Graph *g) { g->nodes[0]->inputs[0] = NULL; }
static void spoil_role(Graph *g) { g->inputs[0]->role = ROLE_CONST; }
static void spoil_placement(Graph *g) { g->values[0]->placement[3].kind = PLACED_PARTIAL; }
static void spoil_split(Graph *g) { g->values[0]->placement[1] = (Placement){PLACED_SPLIT, 2}; }
static void spoil_carry(Graph *g) { g->nodes[0]->outputs[0]->carry = g->values[0]; }
static void spoil_wait(Graph *g) { *(uint32_t *)g->nodes[1]->waits = 2; }
static void spoil_buffer(Graph *g) { g->values[0]->loc.buffer = 9; }
static void spoil_region(Graph *g) { g->nodes[0]->region = 9; }
static void spoil_guard(Graph *g) { g->nodes[2]->guard = GUARD_WRITE; }
static void spoil_loss(Graph *g) {
  Graph *other = graph_create(g->arena, "other");
  g->loss = graph_add_value(other, "elsewhere");
}

static void test_defects(void **state) {
  expect_defect(spoil_order, "the order is not topological");
  expect_defect(spoil_id, "has id 7");
  expect_defect(spoil_name, "same name");
  expect_defect(spoil_node_name, "two nodes have this name");
  expect_defect(spoil_producer, "produces it");
  expect_defect(spoil_type, "Gemm gives float[4,6]");
  expect_defect(spoil_untyped, "has no type");
  expect_defect(spoil_phase, "in phase update only");
  expect_defect(spoil_input, "input 0 is required and absent");
  expect_defect(spoil_role, "is an input and has the role const");
  expect_defect(spoil_placement, "placement on mesh axis 3");
  expect_defect(spoil_split, "split along dimension 2");
  expect_defect(spoil_carry, "is carried to");
  expect_defect(spoil_wait, "waits for step 2");
  expect_defect(spoil_buffer, "buffer 9");
  expect_defect(spoil_region, "region: buffer 9");
  expect_defect(spoil_guard, "guard write without a region");
  expect_defect(spoil_loss, "is the loss and not in the graph");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_identity),  cmocka_unit_test(test_renumber),  cmocka_unit_test(test_mutated), cmocka_unit_test(test_truncated),
      cmocka_unit_test(test_exhausted), cmocka_unit_test(test_hostile),   cmocka_unit_test(test_defects),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
