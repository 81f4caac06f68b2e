// Data sources: what each feeds, in which order, and what it says when it cannot.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../ir/op.h"
#include "../../kernels/ops.h"
#include "../../runtime/data.h"
#include "../../runtime/safetensors.h"

static char dir[64];
static char paths[8][128];
static int n_paths;

static int make_dir(void **state) {
  strcpy(dir, "/tmp/tessera_test_XXXXXX");
  return mkdtemp(dir) ? 0 : -1;
}
static int remove_dir(void **state) { return rmdir(dir); }

static const char *in_dir(const char *name) {
  char *path = paths[n_paths++ % 8];
  snprintf(path, sizeof paths[0], "%s/%s", dir, name);
  return path;
}

static const char *write_file(const char *name, const void *bytes, size_t n) {
  const char *path = in_dir(name);
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(bytes, 1, n, f), n);
  fclose(f);
  return path;
}

static const char *write_npy(const char *name, const char *descr, const char *shape, const void *bytes, size_t n) {
  char header[256];
  int length = snprintf(header + 10, sizeof header - 10, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }\n", descr, shape);
  memcpy(header, "\x93NUMPY\x01\x00", 8);
  header[8] = (char)length;
  header[9] = 0;
  char all[4096];
  memcpy(all, header, 10 + (size_t)length);
  memcpy(all + 10 + length, bytes, n);
  return write_file(name, all, 10 + (size_t)length + n);
}

// A program that takes these inputs; nothing else of it matters to the data. `shifted`: labels are sliced before the loss.
static Graph *program_of(Arena *arena, const DataInput *inputs, size_t n, const Type *shapes, int64_t micro) {
  Graph *g = graph_create(arena, "program");
  for (size_t i = 0; i < n; i++) {
    Value *v = graph_add_value(g, inputs[i].name);
    v->type = shapes[i];
    v->role = ROLE_INPUT;
    graph_add_input(g, v);
  }
  g->mesh = (Mesh){.n_axes = 1, .axes = {{"dp", 1}}};
  g->recipe.micro_per_rank = micro;
  return g;
}

typedef struct Opened { Data *data; Arena *arena; DataFeed feed; const Graph *program; } Opened;

static void open_ok(Opened *o, DataOptions options, const DataInput *inputs, size_t n) {
  char text[512];
  Status s = data_open(&options, inputs, n, &o->data);
  if (s) fail_msg("data_open: %s", status_text(s, text, sizeof text));
  o->arena = arena_create(0);
  o->program = program_of(o->arena, inputs, n, data_shapes(o->data, 0), 2);
  s = data_bind(o->data, 0, o->program);
  if (s) fail_msg("data_bind: %s", status_text(s, text, sizeof text));
  o->feed = data_feed(o->data);
}

static void close_opened(Opened *o) {
  data_close(o->data);
  arena_destroy(o->arena);
}

static Status fill(Opened *o, int64_t batch, void *a, void *b) {
  Tensor out[2] = {{.data = a, .type = &o->program->inputs[0]->type}, {.data = b, .type = o->program->n_inputs > 1 ? &o->program->inputs[1]->type : NULL}};
  return o->feed.fill(o->feed.self, batch, out, o->program->n_inputs);
}

static void fill_ok(Opened *o, int64_t batch, void *a, void *b) {
  char text[512];
  Status s = fill(o, batch, a, b);
  if (s) fail_msg("fill %lld: %s", (long long)batch, status_text(s, text, sizeof text));
}

static void expect_failure(DataOptions options, const DataInput *inputs, size_t n, StatusCode code, const char *says) {
  Data *data = NULL;
  char text[1024];
  Status s = data_open(&options, inputs, n, &data);
  if (!s) fail_msg("opened; expected: %s", says);
  status_text(s, text, sizeof text);
  if (status_code(s) != code || !strstr(text, says)) fail_msg("code %d, says \"%s\", expected %d \"%s\"", status_code(s), text, code, says);
  status_free(s);
}

static const DataInput token_inputs[] = {{"tokens", DTYPE_I64, 2, {-1, -1}}, {"labels", DTYPE_I64, 2, {-1, -1}}};
static const DataInput row_inputs[] = {{"x", DTYPE_F32, 2, {-1, 3}}, {"y", DTYPE_I64, 1, {-1}}};

static void text_tokens(void **state) {
  const char *path = write_file("text", "abcdefghijk", 11);     // 11 tokens, seq 3: samples abc def ghi
  Opened o;
  open_ok(&o, (DataOptions){.sources = &path, .n_sources = 1, .batch = 2, .seq = 3, .shift = 1}, token_inputs, 2);
  assert_int_equal(data_batches(o.data), 1);
  assert_true(data_has_tokens(o.data));
  assert_int_equal(data_tokens_per_batch(o.data), 6);
  int64_t t[6], l[6];
  fill_ok(&o, 0, t, l);
  for (int i = 0; i < 6; i++) assert_true(t[i] == "abcdef"[i] && l[i] == "bcdefg"[i]);
  fill_ok(&o, 1, t, l);                                         // wraps: ghi abc
  for (int i = 0; i < 6; i++) assert_true(t[i] == "ghiabc"[i] && l[i] == "hijbcd"[i]);
  close_opened(&o);
  open_ok(&o, (DataOptions){.sources = &path, .n_sources = 1, .batch = 1, .seq = 5, .shift = 0}, token_inputs, 2);
  fill_ok(&o, 1, t, l);
  for (int i = 0; i < 5; i++) assert_true(t[i] == "fghij"[i] && l[i] == t[i]);
  close_opened(&o);
  expect_failure((DataOptions){.sources = &path, .n_sources = 1, .batch = 1}, token_inputs, 2, STATUS_USAGE, "--seq INT");
  expect_failure((DataOptions){.sources = &path, .n_sources = 1, .seq = 4}, token_inputs, 2, STATUS_USAGE, "--batch INT");
  expect_failure((DataOptions){.sources = &path, .n_sources = 1, .seq = 11, .batch = 1}, token_inputs, 2, STATUS_MALFORMED, "need 12");
  unlink(path);
}

static void binary_tokens(void **state) {
  const uint16_t small[7] = {1, 300, 65535, 4, 5, 6, 7};
  const uint32_t large[4] = {1, 1u << 20, UINT32_MAX, 9};
  static const DataInput last[] = {{"tokens", DTYPE_I64, 2, {-1, -1}}, {"target", DTYPE_I64, 1, {-1}}};
  const char *path = write_file("t.bin", small, sizeof small);
  Opened o;
  int64_t t[6], l[6];
  open_ok(&o, (DataOptions){.sources = &path, .n_sources = 1, .batch = 2, .seq = 3, .shift = -1}, token_inputs, 2);
  fill_ok(&o, 0, t, l);
  for (int i = 0; i < 6; i++) assert_true(t[i] == small[i] && l[i] == small[i + 1]);   // auto: this graph shifts nothing
  close_opened(&o);
  open_ok(&o, (DataOptions){.sources = &path, .n_sources = 1, .batch = 2, .seq = 3, .shift = -1}, last, 2);   // one label per sample: the token after it
  fill_ok(&o, 0, t, l);
  assert_true(l[0] == small[3] && l[1] == small[6]);
  close_opened(&o);
  unlink(path);
  path = write_file("t.u32.bin", large, sizeof large);
  open_ok(&o, (DataOptions){.sources = &path, .n_sources = 1, .batch = 1, .seq = 3}, token_inputs, 1);
  fill_ok(&o, 0, t, NULL);
  assert_true(t[1] == 1 << 20 && t[2] == UINT32_MAX);
  close_opened(&o);
  unlink(path);
  path = write_file("odd.bin", small, 3);
  expect_failure((DataOptions){.sources = &path, .n_sources = 1, .batch = 1, .seq = 1}, token_inputs, 2, STATUS_MALFORMED, "no whole number");
  unlink(path);
  path = write_file("image", "a\0b", 3);
  expect_failure((DataOptions){.sources = &path, .n_sources = 1, .batch = 1, .seq = 1}, token_inputs, 2, STATUS_MALFORMED, "is no text");
  unlink(path);
}

// Documents "ab.", "c.", ".", "defghijkl.", "mn" (which lacks its end) in samples of 4: whole ones while they fit, the long one cut.
static void packed_documents(void **state) {
  static const DataInput inputs[] = {{"tokens", DTYPE_I64, 2, {-1, -1}}, {"labels", DTYPE_I64, 2, {-1, -1}}, {"position_ids", DTYPE_I64, 2, {-1, -1}}};
  static const DataInput narrow[] = {{"tokens", DTYPE_I64, 2, {-1, -1}}, {"labels", DTYPE_U8, 2, {-1, -1}}};
  static const char *const tokens[] = {"ab..", "c...", "defg", "hijk", "l.mn"};
  static const char *const labels[] = {"b.__", ".___", "efgh", "ijkl", "._n_"}, *const unshifted[] = {"ab._", "c.__", "defg", "hijk", "l._n"};
  static const int64_t positions[][4] = {{0, 1, 2, 0}, {0, 1, 0, 0}, {0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 0, 1}};
  const char *path = write_file("text", "ab.c..defghijkl.mn", 18);
  for (int shift = 0; shift < 2; shift++) {
    Opened o;
    open_ok(&o, (DataOptions){.sources = &path, .n_sources = 1, .batch = 1, .seq = 4, .shift = shift, .packs = true, .eos = '.'}, inputs, 3);
    int64_t t[4], l[4], p[4], n_documents;
    double padding;
    assert_true(data_packing(o.data, &n_documents, &padding) && n_documents == 5);
    assert_int_equal(data_samples(o.data), 5);
    assert_true(padding == 1 - 18 / 20.0);
    for (int64_t s = 0; s < 5; s++) {
      Tensor out[3] = {{.data = t, .type = &o.program->inputs[0]->type},
                       {.data = l, .type = &o.program->inputs[1]->type}, {.data = p, .type = &o.program->inputs[2]->type}};
      assert_null(o.feed.fill(o.feed.self, s, out, 3));
      for (int i = 0; i < 4; i++) {
        char label = (shift ? labels : unshifted)[s][i];
        assert_int_equal(t[i], tokens[s][i]);
        assert_int_equal(l[i], label == '_' ? -100 : label);
        assert_int_equal(p[i], positions[s][i]);
      }
    }
    close_opened(&o);
  }
  DataOptions options = {.sources = &path, .n_sources = 1, .batch = 1, .seq = 4, .packs = true, .eos = 'z'};
  expect_failure(options, inputs, 3, STATUS_MALFORMED, "none of its 18 tokens is 122");
  options.eos = '.';
  expect_failure(options, narrow, 2, STATUS_UNSUPPORTED, "this input takes uint8");
  unlink(path);
}

// A graph whose labels are sliced on their way to the loss shifts them itself.
static void shift_auto(void **state) {
  const char *path = write_file("text", "abcdefghijk", 11);
  Data *data;
  DataOptions options = {.sources = &path, .n_sources = 1, .batch = 1, .seq = 4, .shift = -1};
  assert_null(data_open(&options, token_inputs, 2, &data));
  Arena *arena = arena_create(0);
  Graph *g = program_of(arena, token_inputs, 2, data_shapes(data, 0), 1);
  Value *starts = graph_add_value(g, "starts"), *scores = graph_add_value(g, "scores");
  Node *slice = graph_make_node(g, &op_Slice, NULL, 3, (Value *[]){g->inputs[1], starts, starts}, 1, NULL);
  graph_append(g, slice);
  Node *loss = graph_make_node(g, &op_SoftmaxCrossEntropyLoss, NULL, 2, (Value *[]){scores, slice->outputs[0]}, 1, NULL);
  graph_append(g, loss);
  assert_null(data_bind(data, 0, g));
  int64_t t[4], l[4];
  Tensor out[2] = {{.data = t, .type = &g->inputs[0]->type}, {.data = l, .type = &g->inputs[1]->type}};
  DataFeed feed = data_feed(data);
  assert_null(feed.fill(feed.self, 0, out, 2));
  assert_memory_equal(t, l, sizeof t);
  data_close(data);
  arena_destroy(arena);
  unlink(path);
}

static void npy_rows(void **state) {
  double x[15];
  uint8_t y[5] = {4, 3, 2, 1, 0};
  for (int i = 0; i < 15; i++) x[i] = i + 0.25;
  char sx[160], sy[160];
  const char *px = write_npy("x.npy", "<f8", "(5, 3)", x, sizeof x), *py = write_npy("y.npy", "|u1", "(5,)", y, sizeof y);
  snprintf(sx, sizeof sx, "x=%s", px);
  snprintf(sy, sizeof sy, "y=%s", py);
  const char *sources[] = {sx, sy};
  Opened o;
  open_ok(&o, (DataOptions){.sources = sources, .n_sources = 2, .batch = 2}, row_inputs, 2);
  assert_int_equal(data_batches(o.data), 2);
  assert_int_equal(data_samples_per_batch(o.data), 2);
  assert_int_equal(data_shapes(o.data, 0)[0].dtype, DTYPE_F32);
  float fx[6];
  int64_t fy[2];
  fill_ok(&o, 2, fx, fy);                                       // samples 4 and 0
  for (int i = 0; i < 3; i++) assert_true(fx[i] == (float)x[12 + i] && fx[3 + i] == (float)x[i]);
  assert_true(fy[0] == 0 && fy[1] == 4);
  close_opened(&o);
  expect_failure((DataOptions){.sources = sources, .n_sources = 1, .batch = 2}, row_inputs, 2, STATUS_USAGE, "no --data feeds 'y'");
  expect_failure((DataOptions){.sources = sources, .n_sources = 2}, row_inputs, 2, STATUS_USAGE, "give --batch INT");
  const char *twice[] = {sx, sx};
  expect_failure((DataOptions){.sources = twice, .n_sources = 2, .batch = 1}, row_inputs, 2, STATUS_USAGE, "feed it");
  char wrong[160];
  snprintf(wrong, sizeof wrong, "z=%s", px);
  const char *unknown = wrong;
  expect_failure((DataOptions){.sources = &unknown, .n_sources = 1, .batch = 1}, row_inputs, 2, STATUS_USAGE, "no input 'z'");
  static const DataInput narrow[] = {{"x", DTYPE_I64, 2, {-1, 3}}, {"y", DTYPE_I8, 1, {-1}}};
  expect_failure((DataOptions){.sources = sources, .n_sources = 1, .batch = 1}, narrow, 2, STATUS_MALFORMED, "holds double, the input takes int64");
  static const DataInput wide[] = {{"x", DTYPE_F32, 2, {-1, 4}}, {"y", DTYPE_I64, 1, {-1}}};
  expect_failure((DataOptions){.sources = sources, .n_sources = 1, .batch = 1}, wide, 2, STATUS_MALFORMED, "the model takes [?,4]");
  unlink(px);
  unlink(py);
}

static void hostile_npy(void **state) {
  static const struct { const char *descr, *shape; StatusCode code; } cases[] = {
      {"<f4", "(1, 3", STATUS_MALFORMED}, {"<f4", "(2, 3)", STATUS_MALFORMED}, {"<f4", "(-1, 3)", STATUS_MALFORMED},
      {"<f4", "(99999999999999999999, 3)", STATUS_MALFORMED},
      {">f4", "(1, 3)", STATUS_UNSUPPORTED}, {"|O", "(1, 3)", STATUS_UNSUPPORTED}, {"<f4", "(4611686018427387904, 4)", STATUS_MALFORMED},
      {"<f4", "(0, 3)", STATUS_MALFORMED},
      {"<f4", "(1,1,1,1,1,1,1,1,3)", STATUS_UNSUPPORTED}, {"<f4", "3", STATUS_MALFORMED}};
  const float x[3] = {1, 2, 3};
  static const DataInput one[] = {{"x", DTYPE_F32, 2, {-1, 3}}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const char *path = write_npy("h.npy", cases[i].descr, cases[i].shape, x, sizeof x);
    DataOptions options = {.sources = &path, .n_sources = 1, .batch = 1};
    Data *data = NULL;
    Status s = data_open(&options, one, 1, &data);
    if (!s) fail_msg("accepted %s %s", cases[i].descr, cases[i].shape);
    if (status_code(s) != cases[i].code && status_code(s) != STATUS_RESOURCE) fail_msg("%s %s: %d %s", cases[i].descr, cases[i].shape, status_code(s), s->what);
    status_free(s);
    unlink(path);
  }
  const char *path = write_file("short.npy", "\x93NUMPY\x01\x00\xff\xff{", 11);
  expect_failure((DataOptions){.sources = &path, .n_sources = 1, .batch = 1}, one, 1, STATUS_MALFORMED, "no npy file");
  unlink(path);
}

static const char *write_safetensors(const char *name, const SafetensorsEntry *entries, size_t n, const void *const *bytes) {
  const char *path = in_dir(name);
  SafetensorsWriter *w;
  assert_null(safetensors_create(path, entries, n, NULL, &w));
  for (size_t i = 0; i < n; i++) assert_null(safetensors_write(w, i, bytes[i]));
  assert_null(safetensors_finish(w));
  return path;
}

static void batches(void **state) {
  enum { N = 4 };
  float x[N][6];
  int64_t y[N][2];
  SafetensorsEntry entries[2 * N];
  const void *bytes[2 * N];
  char names[2 * N][8];
  for (int b = 0; b < N; b++) {
    for (int i = 0; i < 6; i++) x[b][i] = (float)(b * 10 + i);
    y[b][0] = b, y[b][1] = -b;
    snprintf(names[2 * b], 8, "x.%d", b);
    snprintf(names[2 * b + 1], 8, "y.%d", b);
    entries[2 * b] = (SafetensorsEntry){names[2 * b], type_make(DTYPE_F32, 2, (int64_t[]){2, 3})};
    entries[2 * b + 1] = (SafetensorsEntry){names[2 * b + 1], type_make(DTYPE_I64, 1, (int64_t[]){2})};
    bytes[2 * b] = x[b], bytes[2 * b + 1] = y[b];
  }
  const char *path = write_safetensors("b.safetensors", entries, 2 * N, bytes);
  Opened o;
  float fx[6];
  int64_t fy[2];
  open_ok(&o, (DataOptions){.sources = &path, .n_sources = 1}, row_inputs, 2);
  assert_int_equal(data_batches(o.data), N);
  for (int b = 0; b < 10; b++) {
    fill_ok(&o, b, fx, fy);
    assert_memory_equal(fx, x[b % N], sizeof fx);
    assert_memory_equal(fy, y[b % N], sizeof fy);
  }
  close_opened(&o);
  // Shuffled: every epoch a permutation, all inputs alike, the same again for the same seed.
  for (uint64_t seed = 0; seed < 20; seed++) {
    open_ok(&o, (DataOptions){.sources = &path, .n_sources = 1, .shuffle = true, .seed = seed}, row_inputs, 2);
    for (int epoch = 0; epoch < 5; epoch++) {
      bool seen[N] = {false};
      for (int b = 0; b < N; b++) {
        fill_ok(&o, epoch * N + b, fx, fy);
        assert_true(fy[0] >= 0 && fy[0] < N && !seen[fy[0]]);
        seen[fy[0]] = true;
        assert_memory_equal(fx, x[fy[0]], sizeof fx);
        float again[6];
        fill_ok(&o, epoch * N + b, again, fy);
        assert_memory_equal(fx, again, sizeof fx);
      }
    }
    close_opened(&o);
  }
  unlink(path);
  entries[2].type = type_make(DTYPE_F32, 2, (int64_t[]){1, 3});                // x.1 differs
  path = write_safetensors("b.safetensors", entries, 2 * N, bytes);
  open_ok(&o, (DataOptions){.sources = &path, .n_sources = 1}, row_inputs, 2);
  assert_int_equal(data_n_variants(o.data), 2);
  for (int b = 0; b < 2 * N; b++) assert_int_equal(data_variant(o.data, b), b % N == 1);
  assert_int_equal(data_shapes(o.data, 1)[0].dims[0], 1);
  assert_int_equal(data_shapes(o.data, 0)[0].dims[0], 2);
  assert_true(data_samples_per_batch(o.data) == 1.75);
  const Graph *other_program = program_of(o.arena, row_inputs, 2, data_shapes(o.data, 1), 2);
  assert_null(data_bind(o.data, 1, other_program));
  Tensor out[2] = {{.data = fx, .type = &other_program->inputs[0]->type}, {.data = fy, .type = &other_program->inputs[1]->type}};
  fx[3] = -7;
  assert_null(o.feed.fill(o.feed.self, 1, out, 2));
  assert_memory_equal(fx, x[1], 3 * sizeof *fx);
  assert_true(fx[3] == -7);                                                    // nothing beyond its shape
  assert_int_equal(o.feed.variant(o.feed.self, 1), 1);
  close_opened(&o);
  static const DataInput fixed[] = {{"x", DTYPE_F32, 2, {2, 3}}, {"y", DTYPE_I64, 1, {2}}};
  expect_failure((DataOptions){.sources = &path, .n_sources = 1}, fixed, 2, STATUS_MALFORMED, "batch 1: ");
  unlink(path);
  path = write_safetensors("b.safetensors", entries, 1, bytes);
  expect_failure((DataOptions){.sources = &path, .n_sources = 1}, row_inputs, 2, STATUS_USAGE, "no --data feeds 'y'");
  static const DataInput other[] = {{"image", DTYPE_F32, 2, {-1, 3}}};
  expect_failure((DataOptions){.sources = &path, .n_sources = 1}, other, 1, STATUS_MALFORMED, "none for an input of the model: 'image'");
  unlink(path);
}

static void shuffled_samples(void **state) {
  enum { N = 101, B = 4 };
  int64_t y[N];
  for (int i = 0; i < N; i++) y[i] = i;
  static const DataInput one[] = {{"y", DTYPE_I64, 1, {-1}}};
  const char *path = write_npy("y.npy", "<i8", "(101,)", y, sizeof y);
  Opened o;
  open_ok(&o, (DataOptions){.sources = &path, .n_sources = 1, .batch = B, .shuffle = true, .seed = 7}, one, 1);
  int count[N] = {0}, in_place = 0;
  for (int b = 0; b < N; b++) {                       // N batches of 4: four epochs
    int64_t got[B];
    fill_ok(&o, b, got, NULL);
    for (int i = 0; i < B; i++) {
      assert_true(got[i] >= 0 && got[i] < N);
      count[got[i]]++;
      in_place += got[i] == (b * B + i) % N;
    }
  }
  for (int i = 0; i < N; i++) assert_int_equal(count[i], 4);
  assert_true(in_place < 40);
  close_opened(&o);
  unlink(path);
}

static void random_source(void **state) {
  const char *source = "random";
  static const DataInput in[] = {{"ids", DTYPE_I64, 1, {-1}}, {"x", DTYPE_F32, 2, {-1, 3}}};
  DataOptions options = {.sources = &source, .n_sources = 1, .seed = 3};
  Data *data;
  assert_null(data_open(&options, in, 2, &data));
  assert_int_equal(data_shapes(data, 0)[0].dtype, DTYPE_NONE);
  assert_int_equal(data_batches(data), -1);
  Arena *arena = arena_create(0);
  const Type shapes[] = {type_vector(DTYPE_I64, 1000), type_make(DTYPE_F32, 2, (int64_t[]){500, 3})};
  Graph *g = program_of(arena, in, 2, shapes, 1);
  Value *table = graph_add_value(g, "table");
  table->type = type_make(DTYPE_F32, 2, (int64_t[]){17, 4});
  graph_append(g, graph_make_node(g, &op_Gather, NULL, 2, (Value *[]){table, g->inputs[0]}, 1, NULL));
  assert_null(data_bind(data, 0, g));
  DataFeed feed = data_feed(data);
  static int64_t ids[1000], again[1000];
  static float x[1500];
  Tensor out[2] = {{.data = ids, .type = &shapes[0]}, {.data = x, .type = &shapes[1]}};
  assert_null(feed.fill(feed.self, 5, out, 2));
  int64_t most = 0;
  for (int i = 0; i < 1000; i++) {
    assert_true(ids[i] >= 0 && ids[i] < 17);
    if (ids[i] > most) most = ids[i];
  }
  assert_int_equal(most, 16);
  double sum = 0, squares = 0;
  for (int i = 0; i < 1500; i++) sum += x[i], squares += (double)x[i] * x[i];
  assert_true(sum / 1500 < 0.15 && sum / 1500 > -0.15 && squares / 1500 > 0.8 && squares / 1500 < 1.2);
  out[0].data = again;
  out[1].data = NULL;
  assert_null(feed.fill(feed.self, 5, out, 2));
  assert_memory_equal(ids, again, sizeof ids);
  data_close(data);
  arena_destroy(arena);
}

typedef struct Writer { int fd; const char *path; int times; } Writer;

static void *stream_writer(void *p) {
  Writer *w = p;
  for (int b = 0; b < w->times; b++) {
    float x[3] = {(float)b, 1, 2};
    char header[200], prefix[8] = {0};
    int n = snprintf(header, sizeof header, "{\"x\":{\"dtype\":\"F32\",\"shape\":[1,3],\"data_offsets\":[0,12]}}%*s", b % 5, "");   // some are padded
    prefix[0] = (char)n;
    if (write(w->fd, prefix, 8) != 8 || write(w->fd, header, (size_t)n) != n || write(w->fd, x, 5) != 5) break;
    usleep(200);
    if (write(w->fd, (char *)x + 5, 7) != 7) break;
  }
  close(w->fd);
  return NULL;
}

static void streams(void **state) {
  int fds[2];
  assert_int_equal(pipe(fds), 0);
  Writer w = {.fd = fds[1], .times = 5};
  pthread_t thread;
  pthread_create(&thread, NULL, stream_writer, &w);
  const char *source = "-";
  Opened o;
  open_ok(&o, (DataOptions){.sources = &source, .n_sources = 1, .stream_fd = fds[0]}, row_inputs, 1);   // M = 2
  float x[3];
  bool there;
  fill_ok(&o, 1, x, NULL);                       // another rank may ask first
  assert_true(x[0] == 1);
  fill_ok(&o, 0, x, NULL);
  assert_true(x[0] == 0);
  assert_null(data_available(o.data, 2, 2, &there));
  assert_true(there);
  assert_int_equal(data_variant(o.data, 2), 0);
  assert_int_equal(data_variant(o.data, 1), -1);               // has passed
  fill_ok(&o, 3, x, NULL);
  assert_true(x[0] == 3);
  fill_ok(&o, 2, x, NULL);
  assert_true(x[0] == 2);
  assert_null(data_available(o.data, 4, 2, &there));          // only one left: no whole step
  assert_false(there);
  Status s = fill(&o, 5, x, NULL);
  assert_int_equal(status_code(s), STATUS_IO);
  assert_non_null(strstr(s->what, "ended after 5 batches"));
  status_free(s);
  s = fill(&o, 1, x, NULL);
  assert_int_equal(status_code(s), STATUS_IO);
  assert_non_null(strstr(s->what, "has passed"));
  status_free(s);
  close_opened(&o);
  pthread_join(thread, NULL);
  close(fds[0]);
}

static void stream_failures(void **state) {
  static const struct { const char *bytes; size_t n; StatusCode code; const char *says; bool keep_open; } cases[] = {
      {"", 0, STATUS_MALFORMED, "ended before its first batch", false},
      {"\x02\0\0", 3, STATUS_MALFORMED, "within the first bytes", false},
      {"\x10\0\0\0\0\0\0\0{}", 10, STATUS_MALFORMED, "14 bytes are missing", false},
      {"\x02\0\0\0\0\0\0\0{}", 10, STATUS_USAGE, "no --data feeds 'x'", false},
      {"\x02\0\0\0\0\0", 6, STATUS_IO, "gave nothing for 0.100 s", true},
  };
  const char *source = "-";
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(write(fds[1], cases[i].bytes, cases[i].n), cases[i].n);
    if (!cases[i].keep_open) close(fds[1]);
    expect_failure((DataOptions){.sources = &source, .n_sources = 1, .stream_fd = fds[0], .deadline_ns = 100000000}, row_inputs, 1, cases[i].code, cases[i].says);
    if (cases[i].keep_open) close(fds[1]);
    close(fds[0]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(text_tokens), cmocka_unit_test(binary_tokens), cmocka_unit_test(packed_documents),
                                     cmocka_unit_test(shift_auto), cmocka_unit_test(npy_rows), cmocka_unit_test(hostile_npy),
                                     cmocka_unit_test(batches), cmocka_unit_test(shuffled_samples), cmocka_unit_test(random_source),
                                     cmocka_unit_test(streams), cmocka_unit_test(stream_failures)};
  return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
