// libFuzzer target: any bytes as a graph in text form. What parses must print, parse again and print alike; verifying must not crash.
// Built where clang is the compiler: cmake -DCMAKE_C_COMPILER=clang -DTESSERA_FUZZ=ON; run: fuzz_parse -max_len=65536 CORPUS.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../ir/parse.h"
#include "../../ir/print.h"
#include "../../ir/verify_graph.h"

enum { ARENA_BYTES = 256 << 20 };

static Status print_guarded(const Graph *graph, Arena *arena, char **out) {
  ARENA_GUARD(arena);
  *out = graph_text(graph, NULL, arena);
  ARENA_RETURN(arena, STATUS_OK);
}

static void check(const Graph *graph, Arena *arena) {
  char *first, *second;
  Graph *again;
  Status s = print_guarded(graph, arena, &first);
  if (!s) s = graph_parse(first, strlen(first), arena, &again);
  if (!s) s = print_guarded(again, arena, &second);
  if (status_code(s) == STATUS_RESOURCE) {
    status_free(s);
    return;
  }
  if (s || strcmp(first, second)) {
    fprintf(stderr, "printed text does not come back: %s\n%s", s ? s->what : "it differs", first);
    abort();
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  Arena *arena = arena_create(ARENA_BYTES);
  if (!arena) return 0;
  Graph *graph;
  Status s = graph_parse((const char *)data, bytes, arena, &graph);
  if (!s) {
    check(graph, arena);
    s = verify_graph(graph);
  }
  status_free(s);
  arena_destroy(arena);
  return 0;
}
