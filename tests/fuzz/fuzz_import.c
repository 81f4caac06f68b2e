// libFuzzer: any bytes as a model and as a plan. Must return, never crash, and stay within the arena's limit.
//   clang -fsanitize=fuzzer,address (cmake --build build --target fuzz_import); run with a corpus of .onnx files.
#include <stdint.h>

#include "frontend/plan_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
  Model *model;
  Status status = model_open_bytes(bytes, n_bytes, "/nonexistent/fuzz.onnx", &model);
  if (status) {
    status_free(status);
    return 0;
  }
  static const ImportOptions options = {.batch = 2};
  Arena *arena = arena_create((size_t)256 << 20);
  if (arena) {
    Imported imported;
    Graph *graph;
    const ModelInput *inputs;
    size_t n_inputs;
    status_free(model_inputs(model, arena, &inputs, &n_inputs));
    status_free(model_import(model, &options, arena, &imported));
    status = graph_read_onnx(model, arena, &graph);
    const void *again;
    size_t n_again;
    if (!status) status = graph_to_onnx(graph, arena, &again, &n_again);
    status_free(status);
  }
  arena_destroy(arena);
  model_close(model);
  return 0;
}
