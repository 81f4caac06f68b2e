// libFuzzer: any bytes as an ONNX Runtime training checkpoint. What is accepted must lie inside the bytes: every element is read.
#include <stdint.h>
#include <stdlib.h>

#include "frontend/ort_checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static Status read_guarded(Bytes bytes, Arena *arena, OrtCheckpoint *out) {
  ARENA_GUARD(arena);
  ARENA_RETURN(arena, ort_checkpoint_read(bytes, "fuzz", arena, out));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
  Arena *arena = arena_create((size_t)1 << 28);
  OrtCheckpoint got;
  if (!arena) return 0;
  Status status = read_guarded((Bytes){bytes, n_bytes}, arena, &got);
  volatile double sum = 0;
  for (size_t i = 0; !status && i < got.n_weights; i++)
    for (int64_t e = 0; e < type_elems(&got.weights[i].type); e++) sum += element_read(got.weights[i].bytes, got.weights[i].type.dtype, e);
  status_free(status);
  arena_destroy(arena);
  return 0;
}
