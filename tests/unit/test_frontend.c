// The importer and the exporter on models that are built here: problems, parameters, symbols, memory limits, external data, plan files.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "frontend/onnx_export.h"
#include "frontend/plan_file.h"
#include "ir/op.h"
#include "onnx.pb-c.h"

// ---- A model: y = Relu(x W + b), l = ReduceMean(y), protobuf-c's structures on the stack of the test --------------------------

typedef struct Sample {
  Onnx__ModelProto model;
  Onnx__OperatorSetIdProto opset, *opsets[1];
  Onnx__GraphProto graph;
  Onnx__NodeProto nodes[4], *node_list[4];
  Onnx__TensorProto tensors[2], *tensor_list[2];
  Onnx__ValueInfoProto values[2], *inputs[1], *outputs[1];
  Onnx__TypeProto types[2];
  Onnx__TypeProto__Tensor tensor_types[2];
  Onnx__TensorShapeProto shapes[2];
  Onnx__TensorShapeProto__Dimension dims[2], *dim_list[2];
  Onnx__StringStringEntryProto external[1], *external_list[1];
  int64_t w_dims[2], b_dims[1];
  float w[6], b[2];
  char *names[16];
  uint8_t *bytes;
  size_t n_bytes;
} Sample;

static void sample_node(Sample *s, int i, const char *op, char **inputs, size_t n_inputs, char **output) {
  s->nodes[i] = (Onnx__NodeProto)ONNX__NODE_PROTO__INIT;
  s->nodes[i].op_type = (char *)op;
  s->nodes[i].input = inputs;
  s->nodes[i].n_input = n_inputs;
  s->nodes[i].output = output;
  s->nodes[i].n_output = 1;
  s->node_list[i] = &s->nodes[i];
}

static void sample_tensor(Sample *s, int i, const char *name, int64_t *dims, size_t n_dims, void *bytes, size_t n) {
  s->tensors[i] = (Onnx__TensorProto)ONNX__TENSOR_PROTO__INIT;
  s->tensors[i].name = (char *)name;
  s->tensors[i].has_data_type = true;
  s->tensors[i].data_type = 1;
  s->tensors[i].dims = dims;
  s->tensors[i].n_dims = n_dims;
  s->tensors[i].has_raw_data = true;
  s->tensors[i].raw_data = (ProtobufCBinaryData){n, bytes};
  s->tensor_list[i] = &s->tensors[i];
}

static void sample_value(Sample *s, int i, const char *name, size_t n_dims) {
  s->shapes[i] = (Onnx__TensorShapeProto)ONNX__TENSOR_SHAPE_PROTO__INIT;
  s->shapes[i].n_dim = n_dims;
  s->shapes[i].dim = s->dim_list;
  s->tensor_types[i] = (Onnx__TypeProto__Tensor)ONNX__TYPE_PROTO__TENSOR__INIT;
  s->tensor_types[i].has_elem_type = true;
  s->tensor_types[i].elem_type = 1;
  s->tensor_types[i].shape = &s->shapes[i];
  s->types[i] = (Onnx__TypeProto)ONNX__TYPE_PROTO__INIT;
  s->types[i].value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
  s->types[i].tensor_type = &s->tensor_types[i];
  s->values[i] = (Onnx__ValueInfoProto)ONNX__VALUE_INFO_PROTO__INIT;
  s->values[i].name = (char *)name;
  s->values[i].type = &s->types[i];
}

static void sample_init(Sample *s) {
  memset(s, 0, sizeof *s);
  char *names[] = {"x", "W", "xw", "b", "z", "y", "l"};
  memcpy(s->names, names, sizeof names);
  for (int i = 0; i < 6; i++) s->w[i] = (float)i;
  s->b[0] = 0.5f, s->b[1] = -0.5f;
  s->w_dims[0] = 3, s->w_dims[1] = 2, s->b_dims[0] = 2;
  sample_node(s, 0, "MatMul", s->names, 2, s->names + 2);
  sample_node(s, 1, "Add", s->names + 2, 2, s->names + 4);
  sample_node(s, 2, "Relu", s->names + 4, 1, s->names + 5);
  sample_node(s, 3, "ReduceMean", s->names + 5, 1, s->names + 6);
  sample_tensor(s, 0, "W", s->w_dims, 2, s->w, sizeof s->w);
  sample_tensor(s, 1, "b", s->b_dims, 1, s->b, sizeof s->b);
  for (int i = 0; i < 2; i++) {
    s->dims[i] = (Onnx__TensorShapeProto__Dimension)ONNX__TENSOR_SHAPE_PROTO__DIMENSION__INIT;
    s->dim_list[i] = &s->dims[i];
  }
  s->dims[0].value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM;
  s->dims[0].dim_param = "batch";
  s->dims[1].value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
  s->dims[1].dim_value = 3;
  sample_value(s, 0, "x", 2);
  sample_value(s, 1, "l", 0);
  s->inputs[0] = &s->values[0];
  s->outputs[0] = &s->values[1];
  s->graph = (Onnx__GraphProto)ONNX__GRAPH_PROTO__INIT;
  s->graph.name = "g";
  s->graph.node = s->node_list, s->graph.n_node = 4;
  s->graph.initializer = s->tensor_list, s->graph.n_initializer = 2;
  s->graph.input = s->inputs, s->graph.n_input = 1;
  s->graph.output = s->outputs, s->graph.n_output = 1;
  s->opset = (Onnx__OperatorSetIdProto)ONNX__OPERATOR_SET_ID_PROTO__INIT;
  s->opset.domain = "";
  s->opset.has_version = true;
  s->opset.version = 17;
  s->opsets[0] = &s->opset;
  s->model = (Onnx__ModelProto)ONNX__MODEL_PROTO__INIT;
  s->model.has_ir_version = true;
  s->model.ir_version = 8;
  s->model.opset_import = s->opsets, s->model.n_opset_import = 1;
  s->model.graph = &s->graph;
}

static Model *sample_open(Sample *s, const char *path) {
  free(s->bytes);
  s->n_bytes = onnx__model_proto__get_packed_size(&s->model);
  s->bytes = malloc(s->n_bytes);
  onnx__model_proto__pack(&s->model, s->bytes);
  Model *model = NULL;
  Status status = model_open_bytes(s->bytes, s->n_bytes, path, &model);
  if (status) fail_msg("%s", status->what);
  return model;
}

static Status sample_import(Sample *s, const ImportOptions *options, Arena *arena, Model **model, Imported *out) {
  *model = sample_open(s, "m.onnx");
  return model_import(*model, options, arena, out);
}

static void expect(Sample *s, const ImportOptions *options, StatusCode code, const char *part) {
  Arena *arena = arena_create(0);
  Model *model;
  Imported imported;
  Status status = sample_import(s, options, arena, &model, &imported);
  assert_int_equal(status_code(status), code);
  if (status && !strstr(status->what, part)) fail_msg("'%s' is not in: %s", part, status->what);
  status_free(status);
  model_close(model);
  arena_destroy(arena);
}

static const ImportOptions batch_5 = {.batch = 5};

static void test_import(void **state) {
  (void)state;
  Sample s;
  sample_init(&s);
  Arena *arena = arena_create(0);
  Model *model;
  Imported im;
  assert_null(sample_import(&s, &batch_5, arena, &model, &im));
  assert_int_equal(im.graph->n_nodes, 4);
  assert_int_equal(im.graph->n_inputs, 1);
  assert_int_equal(im.graph->inputs[0]->type.dims[0], 5);
  const Value *w = graph_find_value(im.graph, "W");
  assert_true(w->role == ROLE_PARAM && w->trainable);
  assert_true((const uint8_t *)w->weight->bytes > s.bytes && (const uint8_t *)w->weight->bytes < s.bytes + s.n_bytes);     // not copied
  assert_int_equal((const uint8_t *)w->weight->bytes - s.bytes, w->weight->offset_bytes);
  assert_true(weight_read_float(w->weight, 5) == 5.0);
  assert_int_equal(im.weights.n_weights, 2);
  WeightSource alone;
  assert_null(model_weights(model, arena, &alone));
  assert_memory_equal(alone.fingerprint, im.weights.fingerprint, sizeof alone.fingerprint);
  assert_string_equal(im.graph->nodes[0]->origin, "MatMul_0");
  model_close(model);
  arena_destroy(arena);
  free(s.bytes);
}

static void test_symbols(void **state) {
  (void)state;
  Sample s;
  sample_init(&s);
  expect(&s, NULL, STATUS_USAGE, "--batch INT or --dim batch=INT");
  const DimBinding dims[] = {{"batch", 7}};
  expect(&s, &(ImportOptions){.dims = dims, .n_dims = 1}, STATUS_OK, "");
  expect(&s, &(ImportOptions){.dims = dims, .n_dims = 1, .batch = 5}, STATUS_USAGE, "dimension 'batch' is 7 by --dim and 5 by --batch");
  const InputShape fits[] = {{"x", {DTYPE_F32, 2, {9, 3}}}}, differs[] = {{"x", {DTYPE_F32, 2, {9, 4}}}};
  expect(&s, &(ImportOptions){.shapes = fits, .n_shapes = 1}, STATUS_OK, "");
  expect(&s, &(ImportOptions){.shapes = differs, .n_shapes = 1}, STATUS_USAGE, "does not fit");
  s.dims[0].value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
  s.dims[0].dim_value = 8;
  expect(&s, &(ImportOptions){.batch = 8}, STATUS_OK, "");
  expect(&s, &(ImportOptions){.batch = 5}, STATUS_USAGE, "the model fixes the first axis");
  free(s.bytes);
}

static void test_patterns(void **state) {
  (void)state;
  Sample s;
  sample_init(&s);
  Arena *arena = arena_create(0);
  Model *model;
  Imported im;
  assert_null(sample_import(&s, &(ImportOptions){.batch = 5, .params = "W"}, arena, &model, &im));
  assert_true(graph_find_value(im.graph, "W")->trainable);
  assert_false(graph_find_value(im.graph, "b")->trainable);
  assert_int_equal(graph_find_value(im.graph, "b")->role, ROLE_PARAM);
  model_close(model);
  assert_null(sample_import(&s, &(ImportOptions){.batch = 5, .freeze = "W*,?"}, arena, &model, &im));
  assert_false(graph_find_value(im.graph, "W")->trainable);
  model_close(model);
  arena_destroy(arena);
  expect(&s, &(ImportOptions){.batch = 5, .params = "nope*"}, STATUS_USAGE, "nope* matches no initializer");
  const Tie tie = {"W", "b"};
  expect(&s, &(ImportOptions){.batch = 5, .ties = &tie, .n_ties = 1}, STATUS_USAGE, "their types are neither equal nor transposed");
  free(s.bytes);
}

static void test_all_problems_at_once(void **state) {
  (void)state;
  Sample s;
  sample_init(&s);
  char *missing[] = {"xw", "nowhere"};
  s.nodes[1].input = missing;
  s.nodes[2].op_type = "Rleu";
  s.nodes[3].name = "mean";
  s.nodes[3].op_type = "Gelu";                       // exists from opset 20
  expect(&s, &batch_5, STATUS_MALFORMED, "3 problems:");
  expect(&s, &batch_5, STATUS_MALFORMED, "node 'Add_1': Add: input 'nowhere' is defined nowhere");
  expect(&s, &batch_5, STATUS_MALFORMED, "Rleu is no operator of ai.onnx");
  expect(&s, &batch_5, STATUS_MALFORMED, "node 'mean': Gelu does not exist at opset 17");
  free(s.bytes);
}

static void test_tensor_forms(void **state) {
  (void)state;
  Sample s;
  sample_init(&s);
  s.tensors[1].has_raw_data = false;                 // b in float_data
  s.tensors[1].float_data = s.b, s.tensors[1].n_float_data = 2;
  expect(&s, &batch_5, STATUS_OK, "");
  s.tensors[1].n_float_data = 1;
  expect(&s, &batch_5, STATUS_MALFORMED, "tensor 'b' has 1 elements, its dimensions need 2");
  int32_t halves[] = {0x3c00, 0xc000};               // 1 and -2 as float16 bit patterns
  s.tensors[1].n_float_data = 0;
  s.tensors[1].data_type = 10;
  s.tensors[1].int32_data = halves, s.tensors[1].n_int32_data = 2;
  Arena *arena = arena_create(0);
  Model *model;
  Imported im;
  assert_null(sample_import(&s, &batch_5, arena, &model, &im));
  assert_true(weight_read_float(graph_find_value(im.graph, "b")->weight, 1) == -2.0);
  model_close(model);
  arena_destroy(arena);
  s.w_dims[0] = -3;
  expect(&s, &batch_5, STATUS_MALFORMED, "tensor 'W'");
  free(s.bytes);
}

// The importer under every memory limit until it succeeds: RESOURCE each time, nothing lost (the address sanitizer watches).
static void test_memory_limits(void **state) {
  (void)state;
  Sample s;
  sample_init(&s);
  Model *model = sample_open(&s, "m.onnx");
  bool done = false;
  size_t tries = 0;
  for (size_t limit = 64; !done; limit += 64, tries++) {
    Arena *arena = arena_create(limit);
    Imported im;
    Status status = model_import(model, &batch_5, arena, &im);
    done = !status;
    if (status) assert_int_equal(status->code, STATUS_RESOURCE);
    status_free(status);
    arena_destroy(arena);
  }
  assert_true(tries > 10);
  model_close(model);
  free(s.bytes);
}

// ---- External data, export, plan files ----------------------------------------------------------------------------------------

static void write_file(const char *folder, const char *name, const void *bytes, size_t n) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(bytes, 1, n, f), n);
  fclose(f);
}

static size_t read_file(const char *folder, const char *name, void *bytes, size_t n) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *f = fopen(path, "rb");
  if (!f) return 0;
  size_t got = fread(bytes, 1, n, f);
  fclose(f);
  return got;
}

static void expect_external(Sample *s, const char *folder, const char *location, StatusCode code, const char *part) {
  char path[512];
  snprintf(path, sizeof path, "%s/m.onnx", folder);
  s->external[0] = (Onnx__StringStringEntryProto)ONNX__STRING_STRING_ENTRY_PROTO__INIT;
  s->external[0].key = "location";
  s->external[0].value = (char *)location;
  s->external_list[0] = &s->external[0];
  s->tensors[0].has_raw_data = false;
  s->tensors[0].has_data_location = true;
  s->tensors[0].data_location = ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
  s->tensors[0].external_data = s->external_list, s->tensors[0].n_external_data = 1;
  Model *model = sample_open(s, path);
  Arena *arena = arena_create(0);
  WeightSource source;
  Status status = model_weights(model, arena, &source);
  assert_int_equal(status_code(status), code);
  if (status && !strstr(status->what, part)) fail_msg("'%s' is not in: %s", part, status->what);
  if (!status) assert_true(weight_read_float(&source.weights[0], 5) == 5.0);
  status_free(status);
  arena_destroy(arena);
  model_close(model);
}

static void test_external_data(void **state) {
  (void)state;
  char root[] = "/tmp/tessera_test_XXXXXX", inner[64], link[128];
  assert_non_null(mkdtemp(root));
  snprintf(inner, sizeof inner, "%s/in", root);
  assert_int_equal(mkdir(inner, 0700), 0);
  Sample s;
  sample_init(&s);
  write_file(inner, "w.bin", s.w, sizeof s.w);
  write_file(root, "outside.bin", s.w, sizeof s.w);
  snprintf(link, sizeof link, "%s/link.bin", inner);
  assert_int_equal(symlink("../outside.bin", link), 0);
  expect_external(&s, inner, "w.bin", STATUS_OK, "");
  expect_external(&s, inner, "./w.bin", STATUS_OK, "");
  expect_external(&s, inner, "../outside.bin", STATUS_MALFORMED, "'..'");
  expect_external(&s, inner, "link.bin", STATUS_MALFORMED, "through a link");
  expect_external(&s, inner, "/etc/hostname", STATUS_MALFORMED, "absolute");
  expect_external(&s, inner, "", STATUS_MALFORMED, "no location");
  expect_external(&s, inner, "none.bin", STATUS_IO, "cannot open external data");
  expect_external(&s, inner, ".", STATUS_IO, "it is a directory");
  write_file(inner, "short.bin", s.w, 20);
  expect_external(&s, inner, "short.bin", STATUS_MALFORMED, "has 20 bytes, its type needs 24");
  const char *files[] = {"in/w.bin", "in/short.bin", "in/link.bin", "outside.bin"};
  for (size_t i = 0; i < 4; i++) {
    snprintf(link, sizeof link, "%s/%s", root, files[i]);
    unlink(link);
  }
  rmdir(inner);
  rmdir(root);
  free(s.bytes);
}

static Status read_plus_one(void *user, const Weight *weight, int64_t from, int64_t n, void *out, bool *found) {
  *found = !strcmp(weight->name, user);
  for (int64_t i = 0; i < n; i++) element_write(out, weight->type.dtype, i, weight_read_float(weight, from + i) + 1);
  return STATUS_OK;
}

static void test_export(void **state) {
  (void)state;
  char folder[] = "/tmp/tessera_test_XXXXXX", out[64];
  assert_non_null(mkdtemp(folder));
  snprintf(out, sizeof out, "%s/t.onnx", folder);
  Sample s;
  sample_init(&s);
  Model *model = sample_open(&s, "m.onnx");
  uint8_t *copy = malloc(s.n_bytes + 1);
  assert_null(model_export(model, out, read_plus_one, "none"));
  assert_int_equal(read_file(folder, "t.onnx", copy, s.n_bytes + 1), s.n_bytes);
  assert_memory_equal(copy, s.bytes, s.n_bytes);
  assert_null(model_export(model, out, read_plus_one, "b"));
  assert_int_equal(read_file(folder, "t.onnx", copy, s.n_bytes + 1), s.n_bytes);
  size_t differ = 0;
  for (size_t i = 0; i < s.n_bytes; i++) differ += copy[i] != s.bytes[i];
  assert_in_range(differ, 1, sizeof s.b);
  Status status = model_export(model, "/tmp/no/such/folder/t.onnx", read_plus_one, "b");
  assert_int_equal(status_code(status), STATUS_IO);
  status_free(status);
  unlink(out);
  assert_int_equal(rmdir(folder), 0);                // no temporary is left
  free(copy);
  free(s.bytes);
  model_close(model);
}

static void test_plan_file(void **state) {
  (void)state;
  Sample s;
  sample_init(&s);
  Arena *arena = arena_create(0);
  Model *model, *plan;
  Imported im;
  assert_null(sample_import(&s, &batch_5, arena, &model, &im));
  const void *bytes, *again;
  size_t n_bytes, n_again;
  assert_null(graph_to_onnx(im.graph, arena, &bytes, &n_bytes));
  assert_null(model_open_bytes(bytes, n_bytes, "p.onnx", &plan));
  assert_true(model_is_plan(plan));
  assert_false(model_is_plan(model));
  Graph *graph;
  assert_null(graph_read_onnx(plan, arena, &graph));
  assert_true(graph_find_value(graph, "W")->role == ROLE_PARAM && graph_find_value(graph, "W")->trainable);
  assert_null(graph_to_onnx(graph, arena, &again, &n_again));
  assert_int_equal(n_bytes, n_again);
  assert_memory_equal(bytes, again, n_bytes);
  // Every changed byte: read or refused.
  uint8_t *changed = malloc(n_bytes);
  for (size_t i = 0; i < n_bytes; i++)
    for (int bit = 0; bit < 8; bit += 3) {
      memcpy(changed, bytes, n_bytes);
      changed[i] ^= (uint8_t)(1 << bit);
      Model *hostile;
      Arena *own = arena_create(64 << 20);
      Status status = model_open_bytes(changed, n_bytes, "p.onnx", &hostile);
      if (!status) {
        status_free(graph_read_onnx(hostile, own, &graph));
        Imported ignored;
        status_free(model_import(hostile, &batch_5, own, &ignored));
        model_close(hostile);
      }
      status_free(status);
      arena_destroy(own);
    }
  free(changed);
  model_close(plan);
  model_close(model);
  arena_destroy(arena);
  free(s.bytes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_import), cmocka_unit_test(test_symbols), cmocka_unit_test(test_patterns), cmocka_unit_test(test_all_problems_at_once),
      cmocka_unit_test(test_tensor_forms), cmocka_unit_test(test_memory_limits), cmocka_unit_test(test_external_data), cmocka_unit_test(test_export),
      cmocka_unit_test(test_plan_file)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
