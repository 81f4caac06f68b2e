// --config FILE.json: options by name, or a DeepSpeed configuration, which is told by its keys (docs/config.md). What the command line says wins.
//
// Threads: the main thread only.
#ifndef TESSERA_CONFIG_FILE_H
#define TESSERA_CONFIG_FILE_H

#include "../frontend/ds_config.h"
#include "options.h"

typedef struct ConfigFile {
  Arena *arena;              // of all strings that Options have from the file
  const char *path;          // as on the command line
  bool is_deepspeed;
  DsConfig ds;               // its notes and unused keys; zero for a file of our own
} ConfigFile;

// Reads options->config into `options` for a command (bits of options.h); options->file owns what it gives. Notes go to stderr, except for `config`,
// which prints them itself. Errors: IO, MALFORMED (unknown keys, wrong types), UNSUPPORTED (keys that are refused), USAGE (contradictions).
MUST_USE Status config_file_apply(unsigned command, Options *options);
void config_file_destroy(ConfigFile *file);      // NULL is fine

#endif
