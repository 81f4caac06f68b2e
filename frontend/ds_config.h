// A DeepSpeed configuration (ds_config.json) in this program's terms: options by name with their values as a person would type them, and what is to be
// said about the keys that mean nothing here. Every key there is stands in the table of ds_keys.c: it is honoured, refused by name, or noted.
//
// Ownership: everything in *out lies in the arena. Threads: any; pure. Errors: MALFORMED (no such key, no such value), UNSUPPORTED (what this program
// does not have, with what to do), USAGE (contradictions, with the numbers).
#ifndef TESSERA_DS_CONFIG_H
#define TESSERA_DS_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "../ir/arena.h"
#include "../ir/status.h"

// What was said elsewhere: "auto" takes it, and arithmetic needs it.
typedef struct DsContext {
  int64_t ranks;
  int64_t batch, micro_batches;         // a rank's samples per micro-batch; micro-batches of a step over all ranks. 0: not said
  int64_t steps, total_steps, warmup;   // of the run, of the schedule, of its rise; -1: not said
  double lr;                            // NAN: not said
  const char *optimizer, *precision;    // NULL: not said
  double static_scale;                  // of the loss; 0: not said
  bool has_schedule;                    // the schedule is chosen elsewhere: the file's is left out
} DsContext;

typedef struct DsSetting {
  const char *option;                   // "zero"
  const char *value;                    // "2"; NULL: a flag
  const char *key;                      // what says so: "zero_optimization.stage", or a sentence of several
} DsSetting;

typedef struct DsConfig {
  DsSetting *settings;                  // each option once
  size_t n_settings, settings_capacity;
  const char **notes;                   // sentences for a person
  size_t n_notes, notes_capacity;
  DsSetting *unused;                    // keys that change no result here; the value says why, there is no option
  size_t n_unused, unused_capacity;
} DsConfig;

bool ds_config_detect(const json_t *root);       // does it have keys of DeepSpeed's?
MUST_USE Status ds_config_read(const json_t *root, const char *path, const DsContext *context, Arena *arena, DsConfig *out);

#endif
