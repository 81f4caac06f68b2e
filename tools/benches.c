#include "benches.h"

#include <string.h>

Status command_bench(const Options *o) {
  if (o->input && !strcmp(o->input, "io")) return bench_io(o);
  if (o->input && !strcmp(o->input, "comm")) return bench_comm(o);
  FAIL(USAGE, NULL, "say what to measure: tessera bench io, or tessera bench comm");
}
