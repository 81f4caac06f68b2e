// libFuzzer: any bytes as a plan, through all that stands between a file and its first step: reader, proof, and the runtime's own check. What verify
// accepts, the check must accept, too: the runtime relies on it for every address.
//   tests/fuzz/run.sh fuzz_plan SECONDS [CORPUS_FOLDER]; seeds: plans of `tessera compile`.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "frontend/plan_file.h"
#include "passes/verify_plan.h"
#include "runtime/step_program.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static Status read_and_prove(Model *model, Arena *arena) {
  const Graph **programs;
  const PlanDefect *defects;
  size_t n;
  int n_programs;
  TRY(plan_read_onnx(model, arena, &programs, &n_programs));
  Status status = step_program_check(programs[0]);
  bool runs = !status, unsupported = status && status_code(status) == STATUS_UNSUPPORTED;
  status_free(status);
  TRY(verify_programs(programs, n_programs, arena, &defects, &n, NULL));
  if (n || runs || unsupported) return NULL;
  fprintf(stderr, "verify accepts what the runtime refuses\n");
  abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
  Model *model;
  Status status = model_open_bytes(bytes, n_bytes, "/nonexistent/fuzz.onnx", &model);
  if (status) {
    status_free(status);
    return 0;
  }
  Arena *arena = arena_create((size_t)256 << 20);
  if (arena) status_free(read_and_prove(model, arena));
  arena_destroy(arena);
  model_close(model);
  return 0;
}
