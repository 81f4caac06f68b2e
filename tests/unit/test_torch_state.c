// Trained values back in PyTorch's order: gates of recurrent operators, entries side by side, swapped axes, ties.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include <cmocka.h>

#include "../../runtime/origin_json.h"
#include "../../runtime/safetensors.h"
#include "../../runtime/torch_state.h"

static char dir[64];

static int make_dir(void **state) {
  strcpy(dir, "/tmp/tessera_test_XXXXXX");
  return mkdtemp(dir) ? 0 : -1;
}

static const char *in_dir(const char *name) {
  static char paths[4][128], which;
  char *path = paths[which++ & 3];
  snprintf(path, sizeof paths[0], "%s/%s", dir, name);
  return path;
}

static int remove_dir(void **state) {
  static const char *const files[] = {"meta.json", "params.safetensors", "state.safetensors", "torch.safetensors", "out.safetensors"};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) unlink(in_dir(files[i]));
  return rmdir(dir);
}

typedef struct Named { const char *name; Type type; float values[64]; } Named;

static void write_file(const char *path, const Named *tensors, size_t n) {
  SafetensorsEntry entries[16] = {0};
  SafetensorsWriter *w;
  for (size_t i = 0; i < n; i++) entries[i] = (SafetensorsEntry){tensors[i].name, tensors[i].type};
  assert_null(safetensors_create(path, entries, n, NULL, &w));
  for (size_t i = 0; i < n; i++) assert_null(safetensors_write(w, i, tensors[i].values));
  assert_null(safetensors_finish(w));
}

static json_t *file_json(const char *path) {
  static char bytes[1 << 16];
  char hash[33];
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  XXH128_hash_t h = XXH3_128bits(bytes, fread(bytes, 1, sizeof bytes, f));
  fclose(f);
  snprintf(hash, sizeof hash, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
  return json_pack("{s:s}", "xxh3_128", hash);
}

// A checkpoint of a model whose initializers began as `initial`; training added 1000 to everything.
static Checkpoint *make_checkpoint(const Named *initial, WeightOrigin *origins, size_t n) {
  Named trained[8];
  for (size_t i = 0; i < n; i++) {
    trained[i] = initial[i];
    origins[i].name = initial[i].name;
    origins[i].type = initial[i].type;
    assert_null(weight_hash(&(Weight){.name = "w", .type = initial[i].type, .bytes = initial[i].values}, origins[i].contents));
    for (int64_t k = 0; k < type_elems(&initial[i].type); k++) trained[i].values[k] += 1000;
  }
  write_file(in_dir("params.safetensors"), trained, n);
  write_file(in_dir("state.safetensors"), NULL, 0);
  json_t *meta = json_pack("{s:i, s:i, s:i, s:i, s:{s:s, s:s}, s:{s:s, s:s, s:s, s:i, s:i, s:i}, s:o, s:{s:o, s:o}}", "tessera_checkpoint", 1,
                           "step", 1, "seed", 0, "next_batch", 0, "model", "path", "", "fingerprint", "", "recipe", "optimizer", "sgd", "precision",
                           "f32", "reduce", "micro", "zero", 0, "ranks", 1, "micro_per_rank", 1, "initializers", origins_to_json(origins, n),
                           "files", "params.safetensors",
                           file_json(in_dir("params.safetensors")), "state.safetensors", file_json(in_dir("state.safetensors")));
  assert_non_null(meta);
  assert_int_equal(json_dump_file(meta, in_dir("meta.json"), 0), 0);
  json_decref(meta);
  Checkpoint *checkpoint = NULL;
  assert_null(checkpoint_open(dir, &checkpoint));
  return checkpoint;
}

// Every entry of the state comes back with 1000 added.
static void check_restored(Checkpoint *checkpoint, const Named *state, size_t n, TorchSource source) {
  TorchSummary summary;
  Safetensors *out;
  write_file(in_dir("torch.safetensors"), state, n);
  Status status = torch_state_export(checkpoint, in_dir("torch.safetensors"), in_dir("out.safetensors"), &summary);
  if (status) print_error("%s\n", status->what);
  assert_null(status);
  assert_int_equal(summary.count[source], n);
  assert_null(safetensors_open(in_dir("out.safetensors"), &out));
  for (size_t i = 0; i < n; i++) {
    const Weight *w = safetensors_find(out, state[i].name);
    assert_non_null(w);
    assert_true(type_equal(&w->type, &state[i].type));
    for (int64_t k = 0; k < type_elems(&w->type); k++) assert_float_equal(weight_read_float(w, k), state[i].values[k] + 1000, 0);
  }
  safetensors_close(out);
  checkpoint_close(checkpoint);
}

static Named make(const char *name, int rank, const int64_t *dims, float first, float step) {
  Named t = {name, type_make(DTYPE_F32, rank, dims), {0}};
  for (int64_t k = 0; k < type_elems(&t.type); k++) t.values[k] = first + step * (float)k;
  return t;
}

// Gates of `from` (each of `n` elements) in `order` into `to`.
static void reorder(float *to, const float *from, const int *order, int n_gates, int n) {
  for (int i = 0; i < n_gates; i++) memcpy(to + i * n, from + order[i] * n, (size_t)n * sizeof *to);
}

// Both directions; the biases of one layer are all 0, so that only their names tell them apart.
static void lstm(void **state) {
  enum { H = 2, D = 3 };
  static const int order[] = {0, 3, 1, 2};
  const Named torch[] = {make("r.bias_hh_l0", 1, (int64_t[]){4 * H}, 0, 0), make("r.bias_hh_l0_reverse", 1, (int64_t[]){4 * H}, 0, 0),
                         make("r.bias_ih_l0", 1, (int64_t[]){4 * H}, 1, 1), make("r.bias_ih_l0_reverse", 1, (int64_t[]){4 * H}, 50, 1),
                         make("r.weight_ih_l0", 2, (int64_t[]){4 * H, D}, 100, 1), make("r.weight_ih_l0_reverse", 2, (int64_t[]){4 * H, D}, 200, 1)};
  Named initial[] = {make("w", 3, (int64_t[]){2, 4 * H, D}, 0, 0), make("b", 2, (int64_t[]){2, 8 * H}, 0, 0)};
  reorder(initial[0].values, torch[4].values, order, 4, H * D);
  reorder(initial[0].values + 4 * H * D, torch[5].values, order, 4, H * D);
  reorder(initial[1].values, torch[2].values, order, 4, H);
  reorder(initial[1].values + 8 * H, torch[3].values, order, 4, H);
  const char *w[] = {"val_1", "r.weight_ih_l0", "r.weight_ih_l0_reverse"};
  const char *b[] = {"r.bias_hh_l0", "r.bias_hh_l0_reverse", "r.bias_ih_l0", "r.bias_ih_l0_reverse", "zeros"};
  WeightOrigin origins[] = {{.folded_from = w, .n_folded_from = 3, .gates = "LSTM"}, {.folded_from = b, .n_folded_from = 5, .gates = "LSTM"}};
  check_restored(make_checkpoint(initial, origins, 2), torch, 6, TORCH_FOLDED);
}

static void gru(void **state) {
  static const int order[] = {1, 0, 2};
  const Named torch[] = {make("r.weight_hh_l0", 2, (int64_t[]){9, 3}, 5, 1)};
  Named initial[] = {make("r", 3, (int64_t[]){1, 9, 3}, 0, 0)};
  reorder(initial[0].values, torch[0].values, order, 3, 9);
  const char *folded[] = {"r.weight_hh_l0"};
  WeightOrigin origins[] = {{.folded_from = folded, .n_folded_from = 1, .gates = "GRU"}};
  check_restored(make_checkpoint(initial, origins, 1), torch, 1, TORCH_FOLDED);
}

// Three projections fused into one product, transposed.
static void fused(void **state) {
  const Named torch[] = {make("k", 2, (int64_t[]){4, 3}, 20, 1), make("q", 2, (int64_t[]){4, 3}, 40, 1), make("v", 2, (int64_t[]){2, 3}, 60, 1)};
  Named initial[] = {make("qkv", 2, (int64_t[]){3, 10}, 0, 0)};
  const Named *rows[] = {&torch[1], &torch[0], &torch[2]};
  int64_t row = 0;
  for (int p = 0; p < 3; p++)
    for (int64_t r = 0; r < rows[p]->type.dims[0]; r++, row++)
      for (int64_t c = 0; c < 3; c++) initial[0].values[c * 10 + row] = rows[p]->values[r * 3 + c];
  const char *folded[] = {"k", "q", "v"};
  WeightOrigin origins[] = {{.folded_from = folded, .n_folded_from = 3}};
  check_restored(make_checkpoint(initial, origins, 1), torch, 3, TORCH_FOLDED);
}

// One initializer under two names; of two that began equal the name decides.
static void ties(void **state) {
  const Named torch[] = {make("decoder.weight", 2, (int64_t[]){2, 3}, 1, 1), make("embed.weight", 2, (int64_t[]){2, 3}, 1, 1),
                         make("norm.bias", 1, (int64_t[]){4}, 0, 0), make("zeros", 1, (int64_t[]){4}, 0, 0)};
  const Named initial[] = {make("val_1", 2, (int64_t[]){3, 2}, 0, 0), make("model.norm.bias", 1, (int64_t[]){4}, 0, 0),
                           make("model.zeros", 1, (int64_t[]){4}, 0, 0)};
  Named swapped[] = {initial[0], initial[1], initial[2]};
  for (int r = 0; r < 2; r++)
    for (int c = 0; c < 3; c++) swapped[0].values[c * 2 + r] = torch[0].values[r * 3 + c];
  WeightOrigin origins[3] = {0};
  check_restored(make_checkpoint(swapped, origins, 3), torch, 4, TORCH_CONTENTS);
}

// No name decides between equal contents: nothing is guessed.
static void ambiguous(void **state) {
  const Named torch[] = {make("bias", 1, (int64_t[]){4}, 0, 0)};
  const Named initial[] = {make("val_1", 1, (int64_t[]){4}, 0, 0), make("val_2", 1, (int64_t[]){4}, 0, 0)};
  WeightOrigin origins[2] = {0};
  TorchSummary summary;
  Checkpoint *checkpoint = make_checkpoint(initial, origins, 2);
  write_file(in_dir("torch.safetensors"), torch, 1);
  Status status = torch_state_export(checkpoint, in_dir("torch.safetensors"), in_dir("out.safetensors"), &summary);
  assert_int_equal(status_code(status), STATUS_CHECK);
  assert_non_null(strstr(status->what, "2 initializers began with its contents"));
  assert_non_null(strstr(status->what, "'val_2'"));
  status_free(status);
  checkpoint_close(checkpoint);
}

// The count goes on where the statistics were trained, and only there. Counts are 0: four zero bytes and four more.
static void batch_count(void **state) {
  const Named torch[] = {make("a.num_batches_tracked", 0, NULL, 0, 0), make("a.running_mean", 1, (int64_t[]){4}, 1, 1),
                         make("b.num_batches_tracked", 0, NULL, 0, 0)};
  Named with_counts[] = {torch[0], torch[1], torch[2]};
  with_counts[0].type = with_counts[2].type = type_scalar(DTYPE_I64);
  WeightOrigin origins[1] = {0};
  TorchSummary summary;
  Safetensors *out;
  Checkpoint *checkpoint = make_checkpoint(&torch[1], origins, 1);
  write_file(in_dir("torch.safetensors"), with_counts, 3);
  assert_null(torch_state_export(checkpoint, in_dir("torch.safetensors"), in_dir("out.safetensors"), &summary));
  assert_null(safetensors_open(in_dir("out.safetensors"), &out));
  assert_int_equal(weight_read_int(safetensors_find(out, "a.num_batches_tracked"), 0), 1);
  assert_int_equal(weight_read_int(safetensors_find(out, "b.num_batches_tracked"), 0), 0);
  safetensors_close(out);
  checkpoint_close(checkpoint);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(lstm, make_dir, remove_dir),  cmocka_unit_test_setup_teardown(gru, make_dir, remove_dir),
      cmocka_unit_test_setup_teardown(fused, make_dir, remove_dir), cmocka_unit_test_setup_teardown(ties, make_dir, remove_dir),
      cmocka_unit_test_setup_teardown(ambiguous, make_dir, remove_dir), cmocka_unit_test_setup_teardown(batch_count, make_dir, remove_dir),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
