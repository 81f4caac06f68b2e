// ONNX Runtime's checkpoint: the values of the sample artifacts, and every way in which the file may be broken.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "frontend/external_data.h"
#include "frontend/ort_checkpoint.h"
#include "runtime/safetensors.h"

#define SAMPLE TESSERA_SOURCE_DIR "/tests/training_graphs/ort_mlp_adamw/"

static Status read_guarded(Bytes bytes, Arena *arena, OrtCheckpoint *out) {
  ARENA_GUARD(arena);
  ARENA_RETURN(arena, ort_checkpoint_read(bytes, "checkpoint", arena, out));
}

static void test_values(void **state) {
  (void)state;
  Bytes bytes;
  Safetensors *want;
  OrtCheckpoint got;
  Arena *arena = arena_create(0);
  assert_null(file_map(SAMPLE "checkpoint", &bytes));
  assert_null(safetensors_open(SAMPLE "params_0.safetensors", &want));
  assert_null(read_guarded(bytes, arena, &got));
  assert_int_equal(got.n_weights, 4);
  for (size_t i = 0; i < got.n_weights; i++) {
    const Weight *w = &got.weights[i], *other = safetensors_find(want, w->name);
    assert_non_null(other);
    assert_true(type_equal(&w->type, &other->type));
    assert_memory_equal(w->bytes, other->bytes, (size_t)type_bytes(&w->type));
    assert_ptr_equal((const uint8_t *)w->bytes, bytes.data + w->offset_bytes);
  }
  safetensors_close(want);
  file_unmap(bytes);
  arena_destroy(arena);
}

// A copy of exactly n bytes on the heap, so that the sanitizers see what is read beyond it.
static void attempt(const uint8_t *data, size_t n) {
  uint8_t *copy = malloc(n ? n : 1);
  assert_non_null(copy);
  memcpy(copy, data, n);
  Arena *arena = arena_create((size_t)1 << 26);
  OrtCheckpoint got;
  Status status = read_guarded((Bytes){copy, n}, arena, &got);
  if (!status)
    for (size_t i = 0; i < got.n_weights; i++) {
      int64_t n_bytes = type_bytes(&got.weights[i].type);
      assert_true(n_bytes >= 0 && got.weights[i].offset_bytes + n_bytes <= (int64_t)n);
    }
  status_free(status);
  arena_destroy(arena);
  free(copy);
}

static void test_broken(void **state) {
  (void)state;
  Bytes bytes;
  assert_null(file_map(SAMPLE "checkpoint", &bytes));
  for (size_t n = 0; n < bytes.n; n += n < 256 ? 1 : 37) attempt(bytes.data, n);
  uint8_t *changed = malloc(bytes.n);
  assert_non_null(changed);
  uint64_t seed = 1;
  for (int i = 0; i < 20000; i++) {
    memcpy(changed, bytes.data, bytes.n);
    for (int k = 0; k < 1 + i % 3; k++) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      size_t region = seed >> 40 & 1 ? 256 : bytes.n;               // most of what is structure stands in front
      changed[(seed >> 33) % region] = (uint8_t)(seed >> 16);
    }
    attempt(changed, bytes.n);
  }
  free(changed);
  file_unmap(bytes);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_broken)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
