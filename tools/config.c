// tessera config: the options that hold, and who says so.
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/decimal.h"
#include "../passes/optimizer_rules.h"
#include "command.h"
#include "compile_flow.h"
#include "config_file.h"
#include "json_write.h"
#include "schedule_options.h"

// What no option says and the compiler decides.
typedef struct Derived { const char *name, *value, *origin; } Derived;
enum { DERIVED_MAX = 16 };

typedef struct Effective {
  const Options *options;
  Arena *arena;
  const char *optimizer;
  ScheduleKind schedule;
  Derived derived[DERIVED_MAX];
  int n_derived;
} Effective;

static void derive(Effective *e, const char *name, const char *value, const char *origin) { e->derived[e->n_derived++] = (Derived){name, value, origin}; }

static const char *real_text(const Effective *e, double value) {
  char decimal[DECIMAL_BYTES];
  return arena_string(e->arena, decimal_text(value, decimal));
}

static void derive_optimizer(Effective *e, const CompileOptions *c, const OwnOptimizer *own) {
  const Options *o = e->options;
  const OptimizerRule *rule = optimizer_rule_find(c->optimizer);
  const char *origin = own ? "model" : arena_printf(e->arena, "default of %s", c->optimizer);
  if (own) derive(e, "optimizer", c->optimizer, origin);
  if (own && !o->given.lr && own->lr >= 0) derive(e, "lr", real_text(e, c->lr), origin);
  if (!rule) return;
  CompileOptions with = optimizer_rule_options(rule, c, NULL);
  if (!o->given.weight_decay) derive(e, "weight-decay", real_text(e, with.weight_decay), origin);
  if (!o->given.eps && rule->reads & READS_EPS && !isnan(with.eps)) derive(e, "eps", real_text(e, with.eps), origin);
  if (!o->given.momentum && rule->reads & READS_MOMENTUM) derive(e, "momentum", real_text(e, with.momentum), origin);
  if (!o->given.betas && rule->reads & READS_BETAS)
    derive(e, "betas", arena_printf(e->arena, "%s,%s", real_text(e, with.beta1), real_text(e, with.beta2)), origin);
}

static void derive_all(Effective *e, const CompileOptions *c, const OwnOptimizer *own) {
  const Options *o = e->options;
  derive_optimizer(e, c, own);
  if (!o->given.micro_batches) derive(e, "micro-batches", arena_printf(e->arena, "%" PRId64, o->ranks), "default, one per rank");
  if (!o->given.reduce) derive(e, "reduce", o->zero >= 2 ? "micro" : "step", arena_printf(e->arena, "default of stage %" PRId64, o->zero));
  if (!o->given.isa) derive(e, "isa", isa_name(c->isa), "default, the best of this machine");
}

// ---- One option -----------------------------------------------------------------------------------------------------------------------

typedef struct Shown {
  const char *const *values;       // [n]; a flag: "true"
  int n;
  const char *origin, *source;     // source: "default", "file", "command line", "model", "option"
} Shown;

static const Derived *find_derived(const Effective *e, const char *name) {
  for (int i = 0; i < e->n_derived; i++)
    if (!strcmp(e->derived[i].name, name)) return &e->derived[i];
  return NULL;
}

// Does anything look at this option, with the others as they are?
static bool is_read(const Effective *e, const char *name) {
  const OptimizerRule *rule = optimizer_rule_find(e->optimizer);
  bool scales = !strncmp(name, "loss-scale", strlen("loss-scale"));
  return (!rule || flow_optimizer_reads(rule, name)) && schedule_reads(e->schedule, name) && (!scales || !strcmp(e->options->precision, "fp16"));
}

static const char *source_of(const char *origin) { return !strcmp(origin, "model") ? "model" : "default"; }

static Status show_row(const Effective *e, const OptionRow *row, Shown *out) {
  TextList texts;
  bool given = options_is_given(row, e->options);
  const Derived *derived = given ? NULL : find_derived(e, row->name);
  *out = (Shown){.origin = "default", .source = "default"};
  if (derived) {
    const char **value = ARENA_NEW(e->arena, const char *);
    *value = derived->value;
    *out = (Shown){value, 1, derived->origin, source_of(derived->origin)};
    return STATUS_OK;
  }
  TRY(options_values(row, e->options, &texts));
  const char **values = ARENA_ARRAY(e->arena, const char *, texts.n + 1);
  for (int i = 0; i < texts.n; i++) {
    const char *equals = row->kind == KIND_FLAG || row->kind == KIND_OFF ? NULL : strchr(texts.items[i], '=');
    values[i] = equals ? arena_string(e->arena, equals + 1) : "true";
  }
  out->values = values;
  out->n = texts.n;
  options_free_texts(&texts);
  const char *origin = given ? options_origin(row, e->options) : NULL;
  if (given) *out = (Shown){values, out->n, origin ? origin : "command line", origin ? "file" : "command line"};
  return STATUS_OK;
}

// Options of `config` itself are not among what it shows.
static bool is_shown(const OptionRow *row) { return (row->commands & (RUN | COMPILE)) && strcmp(row->name, "config"); }

// ---- As text --------------------------------------------------------------------------------------------------------------------------

static const char *short_text(const Effective *e, const OptionRow *row, const Shown *shown) {
  enum { WIDEST = 44, KEPT = 28 };
  const char *text = shown->values[0];
  int numbers = 1;
  for (int i = 1; i < shown->n; i++) text = arena_printf(e->arena, "%s %s", text, shown->values[i]);
  for (const char *p = text; *p; p++) numbers += *p == ',';
  if (row->kind != KIND_REALS || strlen(text) <= WIDEST) return text;
  int kept = KEPT;
  while (kept > 1 && text[kept - 1] != ',') kept--;
  return arena_printf(e->arena, "%.*s... (%d numbers)", kept, text, numbers);
}

static Status print_text(const Effective *e) {
  int n;
  const OptionRow *rows = options_rows(&n);
  const char *heading = NULL;
  for (int i = 0; i < n; i++) {
    Shown shown;
    if (!rows[i].commands) heading = rows[i].help;
    if (!is_shown(&rows[i])) continue;
    TRY(show_row(e, &rows[i], &shown));
    bool by_default = !strcmp(shown.source, "default");
    if (!shown.n || (by_default && (!strcmp(shown.values[0], "-1") || !is_read(e, rows[i].name)))) continue;
    if (heading) printf("%s\n", heading);
    heading = NULL;
    printf("  %-20s %-30s %s\n", rows[i].name, short_text(e, &rows[i], &shown), shown.origin);
  }
  const ConfigFile *file = e->options->file;
  if (file && file->ds.n_unused) printf("Keys of %s that change no result here\n", file->path);
  for (size_t i = 0; file && i < file->ds.n_unused; i++) printf("  %-52s %s\n", file->ds.unused[i].key, file->ds.unused[i].value);
  for (size_t i = 0; file && i < file->ds.n_notes; i++) printf("Note: %s\n", file->ds.notes[i]);
  return STATUS_OK;
}

// ---- As JSON --------------------------------------------------------------------------------------------------------------------------

static void write_value(JsonWriter *w, const OptionRow *row, const Shown *shown) {
  if (row->kind == KIND_LIST) {
    json_write_array(w, "value");
    for (int i = 0; i < shown->n; i++) json_write_text(w, NULL, shown->values[i]);
    json_write_end_array(w);
    return;
  }
  const char *text = shown->n ? shown->values[0] : NULL;
  bool flag = row->kind == KIND_FLAG || row->kind == KIND_OFF;
  if (flag) json_write_bool(w, "value", shown->n > 0);
  else if (!text) json_write_null(w, "value");
  else if (row->kind == KIND_INT || row->kind == KIND_BYTES || row->kind == KIND_REAL) json_write_raw(w, "value", text);
  else if (row->kind == KIND_REALS) {
    json_write_array(w, "value");
    for (const char *p = text; *p;) {
      char *end;
      json_write_real(w, NULL, strtod(p, &end));
      p = end + (*end == ',');
    }
    json_write_end_array(w);
  } else json_write_text(w, "value", text);
}

static Status print_json(const Effective *e) {
  JsonWriter w = {.to = stdout};
  int n;
  const OptionRow *rows = options_rows(&n);
  json_write_object(&w, NULL);
  json_write_object(&w, "options");
  for (int i = 0; i < n; i++) {
    Shown shown;
    if (!is_shown(&rows[i])) continue;
    TRY(show_row(e, &rows[i], &shown));
    json_write_object(&w, rows[i].name);
    write_value(&w, &rows[i], &shown);
    json_write_text(&w, "source", shown.source);
    json_write_text(&w, "origin", shown.origin);
    json_write_bool(&w, "read", is_read(e, rows[i].name));
    json_write_end_object(&w);
  }
  json_write_end_object(&w);
  const ConfigFile *file = e->options->file;
  json_write_text(&w, "file", file ? file->path : NULL);
  json_write_bool(&w, "deepspeed", file && file->is_deepspeed);
  json_write_object(&w, "unused");
  for (size_t i = 0; file && i < file->ds.n_unused; i++) json_write_text(&w, file->ds.unused[i].key, file->ds.unused[i].value);
  json_write_end_object(&w);
  json_write_array(&w, "notes");
  for (size_t i = 0; file && i < file->ds.n_notes; i++) json_write_text(&w, NULL, file->ds.notes[i]);
  json_write_end_array(&w);
  json_write_end_object(&w);
  return STATUS_OK;
}

// ---- The command ----------------------------------------------------------------------------------------------------------------------

static Status print_guarded(Effective *e, const CompileOptions *c, const OwnOptimizer *own) {
  ARENA_GUARD(e->arena);
  derive_all(e, c, own);
  ARENA_RETURN(e->arena, e->options->json ? print_json(e) : print_text(e));
}

static Status open_model(const Options *options, Flow *flow) {
  if (!options->input) {
    flow->arena = arena_create(0);
    if (!flow->arena) FAIL(RESOURCE, NULL, "out of memory for the options");
    return STATUS_OK;
  }
  TRY(flow_open(options, flow));
  if (flow->is_plan) FAIL(USAGE, NULL, "'%s' is a plan: it has decided; 'tessera show %s' tells what", options->input, options->input);
  return flow_import(flow, options, NULL, FLOW_ASSUMED_SIZE);
}

// The checks that `run` would make, so that what is printed can hold.
static Status print_config(const Options *options, Flow *flow) {
  CompileOptions compile;
  LrSchedule schedule;
  TRY(open_model(options, flow));
  TRY(flow_compile_options(flow, options, &compile));
  const OwnOptimizer *own = options->given.optimizer || !flow->graph ? NULL : flow->graph->own_optimizer;
  TRY(flow_check_optimizer(options, own));
  TRY(schedule_choose(options, compile.lr, 0, options->steps < 0 ? 1 << 30 : options->steps, &schedule));
  Effective effective = {.options = options, .arena = flow->arena, .optimizer = compile.optimizer, .schedule = schedule.kind};
  return print_guarded(&effective, &compile, own);
}

Status command_config(const Options *options) {
  Flow flow = {0};
  Status status = print_config(options, &flow);
  flow_finish(&flow);
  return status;
}
