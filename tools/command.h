// The subcommands. Each prints its results to stdout, returns an error for main to print, and is given options already parsed.
// Threads: the main thread only.
#ifndef TESSERA_COMMAND_H
#define TESSERA_COMMAND_H

#include "options.h"

#define TESSERA_VERSION "0.1.0"

MUST_USE Status command_run(const Options *options);       // run.c
MUST_USE Status command_compile(const Options *options);   // compile.c
MUST_USE Status command_show(const Options *options);      // show.c
MUST_USE Status command_verify(const Options *options);    // verify.c
MUST_USE Status command_export(const Options *options);    // export.c
MUST_USE Status command_reduce(const Options *options);    // reduce_graph.c
MUST_USE Status command_opt(const Options *options);       // opt.c
MUST_USE Status command_synth(const Options *options);     // synth.c
MUST_USE Status command_config(const Options *options);    // config.c
MUST_USE Status command_tune(const Options *options);      // tune.c
MUST_USE Status command_simulate(const Options *options);  // simulate_plan.c

// opt --equivalent (equivalent.c): CHECK when the graphs of options->input and options->equivalent differ.
MUST_USE Status command_equivalent(const Options *options);
MUST_USE Status command_bench(const Options *options);     // benches.c
MUST_USE Status command_diff(const Options *options);      // diff.c

// Makes the folders that `path`, a file to be written, is to lie in.
MUST_USE Status command_make_folders(const char *path);

// "tessera: error: ..." on stderr (nothing when the text is empty: it has been said already); frees it; returns the exit code.
int command_print_error(Status status);
MUST_USE Status command_exit_silently(int code);           // a Status with that exit code and no text; OK for 0

#endif
