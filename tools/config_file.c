#include "config_file.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../frontend/config_json.h"
#include "../ir/decimal.h"

enum { ANY_COMMAND = RUN | COMPILE | OPT | SIMULATE };      // that takes --config
static const size_t ARENA_LIMIT_BYTES = (size_t)64 << 20;

void config_file_destroy(ConfigFile *file) {
  if (!file) return;
  arena_destroy(file->arena);
  free(file);
}

static const char *origin_of(const ConfigFile *file, const char *key) { return arena_printf(file->arena, "%s: %s", file->path, key); }

// ---- Options by name ------------------------------------------------------------------------------------------------------------------

static Status wrong_type(const ConfigFile *file, const OptionRow *row) {
  static const char *const types[] = {
      [KIND_FLAG] = "true or false",    [KIND_OFF] = "true or false", [KIND_INT] = "a whole number", [KIND_BYTES] = "a whole number or a text such as \"8MiB\"",
      [KIND_REAL] = "a number",         [KIND_TEXT] = "a text",       [KIND_CHOICE] = "a text",      [KIND_LIST] = "a text or a list of texts",
      [KIND_REALS] = "a list of numbers"};
  FAIL(MALFORMED, NULL, "%s: \"%s\" must be %s%s%s", file->path, row->name, types[row->kind], row->argument ? ": " : "", row->argument ? row->argument : "");
}

// A number as a person would type it; NULL: it is none.
static const char *number_text(const ConfigFile *file, const json_t *value, bool whole) {
  char decimal[DECIMAL_BYTES];
  double number = json_number_value(value);
  if (!json_is_number(value) || (whole && (number != floor(number) || fabs(number) > 0x1p53))) return NULL;
  if (json_is_integer(value)) return arena_printf(file->arena, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
  return whole ? arena_printf(file->arena, "%.0f", number) : arena_string(file->arena, decimal_text(number, decimal));
}

static const char *numbers_text(const ConfigFile *file, const json_t *list) {
  size_t n = json_array_size(list);
  char *text = arena_alloc_array(file->arena, n + 1, DECIMAL_BYTES), *p = text;
  for (size_t i = 0; i < n; i++) {
    const char *number = number_text(file, json_array_get(list, i), false);
    if (!number) return NULL;
    p += sprintf(p, "%s%s", i ? "," : "", number);
  }
  return n ? text : NULL;
}

// The value of any option but a list, as typed; NULL: of the wrong type.
static const char *value_text(const ConfigFile *file, const OptionRow *row, const json_t *value) {
  const char *text = json_is_string(value) ? arena_string(file->arena, json_string_value(value)) : NULL;
  switch (row->kind) {
  case KIND_INT: return number_text(file, value, true);
  case KIND_BYTES: return text ? text : number_text(file, value, true);
  case KIND_REAL: return number_text(file, value, false);
  case KIND_TEXT: return text;
  case KIND_CHOICE: return text ? text : number_text(file, value, true);      // --shift 0
  case KIND_REALS: return text ? text : json_is_array(value) ? numbers_text(file, value) : number_text(file, value, false);
  default: return NULL;
  }
}

static Status take_list(const ConfigFile *file, const OptionRow *row, const json_t *value, const char *origin, Options *out) {
  size_t n = json_is_array(value) ? json_array_size(value) : 1;
  for (size_t i = 0; i < n; i++) {
    const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
    if (!json_is_string(item)) return wrong_type(file, row);
    TRY(options_set(row, arena_string(file->arena, json_string_value(item)), origin, out));
  }
  return STATUS_OK;
}

static Status take_value(const ConfigFile *file, const OptionRow *row, const json_t *value, Options *out) {
  const char *origin = origin_of(file, row->name);
  if (row->kind == KIND_LIST) return take_list(file, row, value, origin, out);
  if (row->kind == KIND_FLAG || row->kind == KIND_OFF) {
    if (!json_is_boolean(value)) return wrong_type(file, row);
    return json_is_true(value) ? options_set(row, NULL, origin, out) : STATUS_OK;
  }
  const char *text = value_text(file, row, value);
  return text ? options_set(row, text, origin, out) : wrong_type(file, row);
}

static Status unknown_key(const ConfigFile *file, const char *key) {
  int n_rows, n = 0;
  const OptionRow *rows = options_rows(&n_rows);
  const char **names = ARENA_ARRAY(file->arena, const char *, n_rows);
  for (int i = 0; i < n_rows; i++)
    if (rows[i].commands & ANY_COMMAND) names[n++] = rows[i].name;
  const char *nearest = options_nearest(key, names, n);
  FAIL(MALFORMED, NULL, "%s: \"%s\" is no option%s%s%s; keys are options of run, compile, opt or simulate without their dashes", file->path, key,
       nearest ? "; did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?" : "");
}

static Status apply_own(const ConfigFile *file, json_t *root, unsigned command, Options *out) {
  const char *key;
  json_t *value;
  json_object_foreach(root, key, value) {
    const OptionRow *row = options_find_row(key, command);
    if (!strcmp(key, "config")) FAIL(MALFORMED, NULL, "%s: \"config\": a file names no other file", file->path);
    if (row && !options_is_given(row, out)) TRY(take_value(file, row, value, out));
    if (row) continue;
    if (!options_find_row(key, ANY_COMMAND)) return unknown_key(file, key);
    fprintf(stderr, "tessera: note: %s: \"%s\" belongs to another command, and is left out here\n", file->path, key);
  }
  return STATUS_OK;
}

// ---- A DeepSpeed configuration --------------------------------------------------------------------------------------------------------

static DsContext context_of(const Options *o) {
  return (DsContext){
      .ranks = o->ranks, .batch = o->given.batch ? o->batch : 0, .micro_batches = o->given.micro_batches ? o->micro_batches : 0,
      .steps = o->given.steps ? o->steps : -1, .total_steps = o->given.total_steps ? o->total_steps : -1, .warmup = o->given.warmup ? o->warmup : -1,
      .lr = o->given.lr ? o->lr : NAN, .precision = o->given.precision ? o->precision : NULL,
      .optimizer = o->given.optimizer ? o->optimizer : NULL, .static_scale = o->given.loss_scale ? strtod(o->loss_scale, NULL) : 0,      // "dynamic": 0
      .has_schedule = o->given.lr_schedule || o->given.lr_list};
}

// Its numbers are in the list.
static void forget_schedule(Options *out) {
  out->given.warmup = out->given.total_steps = false;
  out->warmup = out->total_steps = 0;
}

static Status apply_setting(const ConfigFile *file, const DsSetting *s, unsigned command, Options *out) {
  const OptionRow *row = options_find_row(s->option, command);
  const char *origin = origin_of(file, s->key);
  assert(options_find_row(s->option, ANY_COMMAND));            // frontend/ds_*.c name what options.def has
  if (row && !options_is_given(row, out)) {
    Status status = options_set(row, s->value, origin, out);
    if (status) return status_context(status, "%s", origin);
    if (row->kind == KIND_REALS && !strcmp(row->name, "lr-list")) forget_schedule(out);
  }
  return STATUS_OK;
}

static void tell_others(const DsConfig *ds, unsigned command) {
  bool any = false;
  for (size_t i = 0; i < ds->n_settings; i++) {
    const DsSetting *s = &ds->settings[i];
    if (options_find_row(s->option, command)) continue;
    fprintf(stderr, "%s--%s (%s)", any ? ", " : "tessera: note: what the file says and this command does not take: ", s->option, s->key);
    any = true;
  }
  if (any) fprintf(stderr, "\n");
}

static void tell(const ConfigFile *file, unsigned command) {
  const DsConfig *ds = &file->ds;
  for (size_t i = 0; i < ds->n_notes; i++) fprintf(stderr, "tessera: note: %s: %s\n", file->path, ds->notes[i]);
  tell_others(ds, command);
  for (size_t i = 0; i < ds->n_unused; i++) {
    if (!i) fprintf(stderr, "tessera: note: %s: keys that change no result here ('tessera config' says why): ", file->path);
    fprintf(stderr, "%s%s", i ? ", " : "", ds->unused[i].key);
  }
  if (ds->n_unused) fprintf(stderr, "\n");
}

static Status apply_deepspeed(ConfigFile *file, const json_t *root, unsigned command, Options *out) {
  DsContext context = context_of(out);
  file->is_deepspeed = true;
  TRY(ds_config_read(root, file->path, &context, file->arena, &file->ds));
  for (size_t i = 0; i < file->ds.n_settings; i++) TRY(apply_setting(file, &file->ds.settings[i], command, out));
  if (!(command & CONFIG)) tell(file, command);
  return STATUS_OK;
}

static Status apply_guarded(ConfigFile *file, json_t *root, unsigned command, Options *out) {
  ARENA_GUARD(file->arena);
  ARENA_RETURN(file->arena, ds_config_detect(root) ? apply_deepspeed(file, root, command, out) : apply_own(file, root, command, out));
}

Status config_file_apply(unsigned command, Options *options) {
  json_t *root;
  ConfigFile *file = calloc(1, sizeof *file);
  if (file) file->arena = arena_create(ARENA_LIMIT_BYTES);
  options->file = file;
  if (!file || !file->arena) FAIL(RESOURCE, NULL, "out of memory to read '%s'", options->config);
  file->path = options->config;
  TRY(config_json_read(file->path, &root));
  Status status = apply_guarded(file, root, command, options);
  json_decref(root);
  return status;
}
