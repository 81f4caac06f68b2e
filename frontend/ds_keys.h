// The keys of a ds_config.json, and the reader's state; between ds_config.c, ds_keys.c, ds_optimizer.c and ds_schedule.c.
#ifndef TESSERA_DS_KEYS_H
#define TESSERA_DS_KEYS_H

#include "ds_config.h"

typedef enum DsRule {
  DS_CODE,          // ds_config.c and its like read it
  DS_OBJECT,        // an object whose keys are rows, too
  DS_ONLY,          // only the values listed; others are refused with the text
  DS_FEATURE,       // an object that is refused with the text where its "enabled" is true
  DS_NOTE,          // changes no result here: noted, with the text
} DsRule;

typedef struct DsKey {
  const char *path;         // "zero_optimization.stage"
  DsRule rule;
  const char *values;       // ONLY: "false|null"; "auto" always goes
  const char *text;         // ONLY, FEATURE: what to do; NOTE: why it means nothing
} DsKey;

extern const DsKey ds_keys[];       // ends with path NULL

typedef struct DsReader {
  const json_t *root;
  const char *path;                 // of the file
  const DsContext *context;
  Arena *arena;
  DsConfig *out;
} DsReader;

// Walks all keys by the table: FAILs on those that are unknown or refused, notes the others.
MUST_USE Status ds_keys_check(const DsReader *r);

// The value at "a.b.c"; NULL when it is absent, null or "auto".
const json_t *ds_get(const DsReader *r, const char *path);
bool ds_is_auto(const DsReader *r, const char *path);
// *out stays as it is when ds_get gives NULL. Numbers such as 5e8 are whole.
MUST_USE Status ds_get_int(const DsReader *r, const char *path, int64_t min, int64_t *out);
MUST_USE Status ds_get_real(const DsReader *r, const char *path, double min, double *out);
MUST_USE Status ds_get_bool(const DsReader *r, const char *path, bool *out);
MUST_USE Status ds_get_text(const DsReader *r, const char *path, const char **out);

// Keys of an object that belong to one of several types: "lr" of "Adam". FAILs on those that `names` lacks, naming the nearest.
MUST_USE Status ds_check_names(const DsReader *r, const char *path, const char *const *names, int n, const char *of);

void ds_set(const DsReader *r, const char *option, const char *value, const char *key);     // value: kept as it is
void ds_set_int(const DsReader *r, const char *option, int64_t value, const char *key);
void ds_set_real(const DsReader *r, const char *option, double value, const char *key);
void ds_unused(const DsReader *r, const char *key, const char *why);
void ds_note(const DsReader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *ds_nearest(const char *word, const char *const *names, int n);     // NULL: none is near

MUST_USE Status ds_read_optimizer(const DsReader *r, double *out_lr);          // ds_optimizer.c; *out_lr: the rate that holds, NAN: not said
MUST_USE Status ds_read_scheduler(const DsReader *r, double lr);               // ds_schedule.c

#endif
