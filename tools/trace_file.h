// Traces for Perfetto (ui.perfetto.dev) and chrome://tracing, in the Trace Event Format: a process per rank, a thread per queue, a slice per step with what it
// is for, waits as arrows, live memory as a counter. The planned schedule is one more process, since all ranks have the same.
// Threads: one.
#ifndef TESSERA_TRACE_FILE_H
#define TESSERA_TRACE_FILE_H

#include "../runtime/trace.h"

// The planned schedule of `program`, and beside it what was measured (NULL: nothing). Written whole or not at all.
MUST_USE Status trace_file_write(const char *path, const Graph *program, const Trace *measured);

#endif
