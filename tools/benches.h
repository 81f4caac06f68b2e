// What `tessera bench` measures. Threads: the main thread only.
#ifndef TESSERA_BENCHES_H
#define TESSERA_BENCHES_H

#include "command.h"

MUST_USE Status bench_io(const Options *options);      // bench_io.c
MUST_USE Status bench_comm(const Options *options);    // bench_comm.c

#endif
