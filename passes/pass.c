// The pass runner: checks facts, runs, verifies, times and prints.
#include "pass.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

#include "../ir/clock.h"
#include "../ir/edit_distance.h"
#include "../ir/path.h"
#include "../ir/print.h"
#include "../ir/verify_graph.h"
#include "pass_list.h"

const Pass pass_table[] = {
#define PASS(name, requires, not_after, provides, help) {#name, requires, not_after, provides, help, pass_##name},
#include "passes.def"
#undef PASS
    {0},
};

// "no pass is named ...", with the nearest.
static Status unknown_pass(const char *name) {
  const char *nearest = NULL;
  size_t best = strlen(name) / 3 + 2;
  for (const Pass *p = pass_table; p->name; p++) {
    size_t distance = edit_distance(name, p->name);
    if (distance < best) best = distance, nearest = p->name;
  }
  FAIL(USAGE, NULL, "no pass is named '%s'%s%s; tessera opt --list-passes lists them", name, nearest ? "; did you mean " : "", nearest ? nearest : "");
}

static const Pass *pass_find(const char *name) {
  for (const Pass *p = pass_table; p->name; p++)
    if (!strcmp(p->name, name)) return p;
  return NULL;
}

CompileOptions compile_options_default(void) {
  return (CompileOptions){
      .ranks = 1,
      .precision = "f32",
      .isa = isa_best(),
      .optimizer = "adamw",
      .lr = 1e-3,
      .muon_adjust = "original",
      .momentum = NAN,
      .beta1 = NAN,
      .beta2 = NAN,
      .eps = NAN,
      .weight_decay = NAN,
      .alpha = 0.99,
      .offload_window_bytes = INT64_C(32) << 20,
      .momentum_decay = 0.004,
      .beta2_decay = -0.8,
      .eps2 = 0.001,
      .clip_threshold = 1,
  };
}

// ---- Facts --------------------------------------------------------------------------------------------------------------------

// Name of a pass that provides one of `facts`.
static const char *provider(uint32_t facts) {
  for (const Pass *p = pass_table; p->name; p++)
    if (p->provides & facts) return p->name;
  return "(none)";
}

static Status check_facts(const Graph *graph, const Pass *pass) {
  uint32_t missing = pass->requires & ~graph->facts;
  if (missing) FAIL(USAGE, NULL, "pass %s needs what pass %s provides; run that before", pass->name, provider(missing));
  uint32_t early = pass->not_after & graph->facts;
  if (early & pass->provides) FAIL(USAGE, NULL, "pass %s has run already", pass->name);
  if (early) FAIL(USAGE, NULL, "pass %s cannot run after pass %s; run it before", pass->name, provider(early));
  return STATUS_OK;
}

// A pass may be left out when nothing builds on it.
static Status check_skips(const char *const *skip) {
  for (; skip && *skip; skip++) {
    const Pass *p = pass_find(*skip);
    if (!p) return unknown_pass(*skip);
    if (p->provides) FAIL(USAGE, NULL, "pass %s cannot be left out: later passes build on it", p->name);
  }
  return STATUS_OK;
}

static bool contains(const char *const *names, const char *name) {
  for (; names && *names; names++)
    if (!strcmp(*names, name)) return true;
  return false;
}

// ---- Printing -----------------------------------------------------------------------------------------------------------------

typedef struct Lines {
  const char **at;
  size_t *bytes;
  size_t count, capacity, bytes_capacity;
} Lines;

static Lines split_lines(const char *text, Arena *arena) {
  Lines lines = {0};
  while (*text) {
    size_t n = strcspn(text, "\n"), count = lines.count;
    ARENA_PUSH(arena, lines.bytes, count, lines.bytes_capacity, n);
    ARENA_PUSH(arena, lines.at, lines.count, lines.capacity, text);
    text += n + (text[n] == '\n');
  }
  return lines;
}

// How often each line of one text is missing in the other: a multiset difference, in linear time.
typedef struct LineCount { const char *at; size_t bytes; int64_t count; } LineCount;
typedef struct LineTable { LineCount *slots; size_t capacity; } LineTable;

static LineCount *line_slot(LineTable *t, const char *at, size_t bytes) {
  size_t i = XXH3_64bits(at, bytes) & (t->capacity - 1);
  while (t->slots[i].at && (t->slots[i].bytes != bytes || memcmp(t->slots[i].at, at, bytes))) i = (i + 1) & (t->capacity - 1);
  t->slots[i].at = at;
  t->slots[i].bytes = bytes;
  return &t->slots[i];
}

static void print_changes(FILE *log, char sign, Lines lines, Lines others, Arena *arena) {
  LineTable table = {.capacity = 64};
  while (table.capacity < 2 * (lines.count + others.count + 1)) table.capacity *= 2;
  table.slots = ARENA_ARRAY(arena, LineCount, table.capacity);
  for (size_t i = 0; i < others.count; i++) line_slot(&table, others.at[i], others.bytes[i])->count++;
  for (size_t i = 0; i < lines.count; i++)
    if (line_slot(&table, lines.at[i], lines.bytes[i])->count-- <= 0) fprintf(log, "%c %.*s\n", sign, (int)lines.bytes[i], lines.at[i]);
}

static void print_diff(FILE *log, const char *before, const char *after, Arena *arena) {
  Lines old_lines = split_lines(before, arena), new_lines = split_lines(after, arena);
  print_changes(log, '-', old_lines, new_lines, arena);
  print_changes(log, '+', new_lines, old_lines, arena);
}

// ---- Running ------------------------------------------------------------------------------------------------------------------

static Status run_guarded(Graph *graph, const Pass *pass, const CompileOptions *options) {
  ARENA_GUARD(graph->arena);
  ARENA_RETURN(graph->arena, pass->run(graph, options));
}

static Status text_guarded(const Graph *graph, const PrintOptions *options, Arena *arena, char **out) {
  ARENA_GUARD(arena);
  *out = graph_text(graph, options, arena);
  ARENA_RETURN(arena, STATUS_OK);
}

static Status print_after(const Graph *graph, const Pass *pass, const PassRun *run, const char *before, Arena *arena) {
  char *after = NULL;
  TRY(text_guarded(graph, NULL, arena, &after));
  fprintf(run->log, "# after %s\n", pass->name);
  if (!before) {
    fputs(after, run->log);
    return STATUS_OK;
  }
  ARENA_GUARD(arena);
  print_diff(run->log, before, after, arena);
  ARENA_RETURN(arena, STATUS_OK);
}

// `arena` holds the texts.
static Status run_pass(Graph *graph, const Pass *pass, const CompileOptions *options, const PassRun *run, Arena *arena) {
  bool print = run->log && run->print_after && (!strcmp(run->print_after, "all") || !strcmp(run->print_after, pass->name));
  char *before = NULL;
  TRY(check_facts(graph, pass));
  if (print && run->print_diff) TRY(text_guarded(graph, NULL, arena, &before));
  double start = clock_now_ms();
  TRY(status_context(run_guarded(graph, pass, options), "pass %s", pass->name));
  double ms = clock_now_ms() - start;
  graph->facts |= pass->provides;
  if (run->time_passes && run->log) fprintf(run->log, "%-20s %9.3f ms\n", pass->name, ms);
  if (print) TRY(print_after(graph, pass, run, before, arena));
  if (run->verify_each) TRY(status_context(verify_graph(graph), "the graph after pass %s is broken", pass->name));
  return STATUS_OK;
}

// The graph before the pass that failed, and how to run it again. The pass's error is what the caller gets; failing to write only adds to it.
static Status write_reproducer(const PassRun *run, const Pass *pass, const char *folder, const char *before, Status failure) {
  FILE *file = fopen(run->reproducer, "w");
  const char *given = run->command_options ? run->command_options : "";
  bool written = file && fprintf(file, "# tessera opt %s --passes=%s%s%s%s%s\n%s", run->reproducer, pass->name, *given ? " " : "", given,
                                 folder ? " --data-folder=" : "", folder ? folder : "", before) > 0;
  if (file && fclose(file)) written = false;
  return status_context(failure, written ? "the graph before it is in %s" : "%s cannot be written", run->reproducer);
}

static Status run_reproducible(Graph *graph, const Pass *pass, const CompileOptions *options, const PassRun *run, Arena *arena) {
  char *before, folder[4096];
  PathFolder part = path_folder(options->model_path ? options->model_path : "");
  snprintf(folder, sizeof folder, "%.*s", part.bytes, part.at);
  TRY(text_guarded(graph, &(PrintOptions){.base_dir = folder}, arena, &before));
  Status s = run_pass(graph, pass, options, run, arena);
  return s && status_code(s) != STATUS_USAGE ? write_reproducer(run, pass, options->model_path ? folder : NULL, before, s) : s;
}

static Status run_named(Graph *graph, const char *name, const CompileOptions *options, const PassRun *run) {
  const Pass *pass = pass_find(name);
  if (!pass) return unknown_pass(name);
  Arena *arena = arena_create(0);
  if (!arena) FAIL(RESOURCE, NULL, "out of memory before pass %s", name);
  Status s = run->reproducer ? run_reproducible(graph, pass, options, run, arena) : run_pass(graph, pass, options, run, arena);
  arena_destroy(arena);
  return s;
}

Status passes_run(Graph *graph, const char *const *passes, const CompileOptions *options, const PassRun *run) {
  TRY(check_skips(run->skip));
  if (run->stop_after && !contains(passes, run->stop_after))
    FAIL(USAGE, NULL, "cannot stop after '%s': it is none of the passes that run", run->stop_after);
  if (run->print_after && strcmp(run->print_after, "all") && !contains(passes, run->print_after))
    FAIL(USAGE, NULL, "cannot print after '%s': it is none of the passes that run", run->print_after);
  for (; *passes; passes++) {
    if (contains(run->skip, *passes)) continue;
    TRY(run_named(graph, *passes, options, run));
    if (run->stop_after && !strcmp(run->stop_after, *passes)) break;
  }
  return STATUS_OK;
}
