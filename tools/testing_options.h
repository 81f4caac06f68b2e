// --fault and --link-delay: failures and slow links, for tests. Threads: any.
#ifndef TESSERA_TESTING_OPTIONS_H
#define TESSERA_TESTING_OPTIONS_H

#include "../runtime/executor.h"
#include "options.h"

// Sets their fields of `out`. USAGE: no such rank or step, no such delay.
MUST_USE Status testing_options_read(const Options *options, int ranks, ExecutorOptions *out);

#endif
