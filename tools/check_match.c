// CHECK lines against a text. Regions, labels, groups of -DAG and what lies between for -NOT are those of FileCheck.
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/edit_distance.h"
#include "check_file.h"

typedef struct Span { size_t at, end; } Span;

typedef struct Binding { const char *name, *text; int64_t number; bool is_number; } Binding;

enum { ERRORS_MAX = 8 };

typedef struct Matcher {
  const CheckFile *file;
  const char *shown, *text;
  size_t bytes;
  Arena *arena;
  Binding *bindings;
  size_t n_bindings, capacity;
  char *errors;                // texts, one after another; NULL: none
  int n_errors;
  Status broken;               // an expression that cannot be compiled
} Matcher;

static const Binding *find_binding(const Matcher *m, const char *name) {
  for (size_t i = m->n_bindings; i-- > 0;)
    if (!strcmp(m->bindings[i].name, name)) return &m->bindings[i];
  return NULL;
}

// ---- Messages -----------------------------------------------------------------------------------------------------------------

static int line_of(const Matcher *m, size_t at) {
  int line = 1;
  for (size_t i = 0; i < at && i < m->bytes; i++) line += m->text[i] == '\n';
  return line;
}

static const char *line_text(const Matcher *m, size_t at, int *out_bytes) {
  size_t start = at < m->bytes ? at : m->bytes;
  while (start && m->text[start - 1] != '\n') start--;
  size_t n = strcspn(m->text + start, "\n");
  *out_bytes = n > 200 ? 200 : (int)n;
  return m->text + start;
}

// The line after `from` that is nearest to the pattern.
static void add_guess(Matcher *m, const CheckLine *line, Span region) {
  enum { LINES = 200 };
  size_t best = strlen(line->pattern) / 2 + 1, best_at = 0;
  bool found = false;
  size_t at = region.at;
  while (at && m->text[at - 1] != '\n') at--;
  for (int k = 0; k < LINES && at < region.end; k++) {
    size_t n = strcspn(m->text + at, "\n"), skip = strspn(m->text + at, " ");
    if (skip > n) skip = n;
    const char *candidate = arena_string_n(m->arena, m->text + at + skip, n - skip);
    size_t distance = edit_distance(candidate, line->pattern);
    if (distance < best) best = distance, best_at = at, found = true;
    at += n + 1;
  }
  int bytes;
  if (!found) return;
  const char *text = line_text(m, best_at, &bytes);
  m->errors = arena_printf(m->arena, "%s\n  maybe meant, line %d: %.*s", m->errors, line_of(m, best_at), bytes, text);
}

static void add_values(Matcher *m, const CheckLine *line) {
  for (size_t i = 0; i < line->n_uses; i++) {
    const char *name = line->uses[i].name;
    bool told = !name;
    for (size_t k = 0; k < i && !told; k++) told = line->uses[k].name && !strcmp(line->uses[k].name, name);
    if (told) continue;
    const Binding *b = find_binding(m, name);
    m->errors = arena_printf(m->arena, b ? "%s\n  with %s = %s" : "%s\n  with %s, which no line before has defined%s", m->errors, name, b ? b->text : "");
  }
}

// `what`: a sentence; `region`: what was searched; `at`: where something was found; SIZE_MAX: nowhere.
static void fail(Matcher *m, const CheckLine *line, const char *what, Span region, size_t at) {
  int bytes;
  if (m->n_errors++ >= ERRORS_MAX) return;
  m->errors = arena_printf(m->arena, "%s%s%s:%d: %s: %s\n  looked for: %s", m->errors ? m->errors : "", m->errors ? "\n" : "", m->file->name, line->line,
                           line->directive, what, line->kind == CHECK_EMPTY ? "an empty line" : line->pattern);
  const char *start = line_text(m, region.at, &bytes);
  m->errors = arena_printf(m->arena, "%s\n  from %s, line %d: %.*s", m->errors, m->shown, line_of(m, region.at), bytes, start);
  add_values(m, line);
  if (at == SIZE_MAX) {
    add_guess(m, line, region);
    return;
  }
  const char *there = line_text(m, at, &bytes);
  m->errors = arena_printf(m->arena, "%s\n  found in line %d: %.*s", m->errors, line_of(m, at), bytes, there);
}

// ---- One pattern --------------------------------------------------------------------------------------------------------------

static void append_escaped(Matcher *m, char **regex, const char *text) {
  for (; *text; text++) *regex = arena_printf(m->arena, strchr("()^$|*+?.[]\\{}", *text) ? "%s\\%c" : "%s%c", *regex, *text);
}

// The expression with the values of variables in it; NULL: one is not defined, or its value is below 0.
static const char *fill_in(Matcher *m, const CheckLine *line) {
  if (!line->n_uses) return line->regex;
  char *regex = arena_string(m->arena, "");
  size_t at = 0;
  for (size_t i = 0; i < line->n_uses; i++) {
    const CheckUse *use = &line->uses[i];
    const Binding *b = use->name ? find_binding(m, use->name) : NULL;
    if (use->name && (!b || b->is_number != use->is_number)) return NULL;
    regex = arena_printf(m->arena, "%s%.*s", regex, (int)(use->at - at), line->regex + at);
    at = use->at;
    int64_t number;
    if (use->is_number && (__builtin_add_overflow(b ? b->number : 0, use->number, &number) || number < 0)) return NULL;
    append_escaped(m, &regex, use->is_number ? arena_printf(m->arena, "%" PRId64, number) : b->text);
  }
  return arena_printf(m->arena, "%s%s", regex, line->regex + at);
}

static void bind(Matcher *m, const CheckVariable *variable, const char *text, size_t bytes) {
  Binding binding = {variable->name, arena_string_n(m->arena, text, bytes), 0, variable->number};
  if (variable->number) binding.number = strtoll(binding.text, NULL, 10);
  for (size_t i = 0; i < m->n_bindings; i++)
    if (!strcmp(m->bindings[i].name, binding.name)) {
      m->bindings[i] = binding;
      return;
    }
  ARENA_PUSH(m->arena, m->bindings, m->n_bindings, m->capacity, binding);
}

typedef enum Found { FOUND, NOT_FOUND, UNDEFINED } Found;

static Found match_regex(Matcher *m, const CheckLine *line, Span region, Span *out) {
  enum { GROUPS = 64 };
  regmatch_t groups[GROUPS];
  regex_t regex;
  const char *text = fill_in(m, line);
  if (!text) return UNDEFINED;
  int error = regcomp(&regex, text, REG_EXTENDED | REG_NEWLINE);
  if (error) {
    char message[160];
    regerror(error, &regex, message, sizeof message);
    if (!m->broken)
      m->broken = status_fail(STATUS_MALFORMED, NULL, "%s:%d: %s: invalid regular expression '%s': %s", m->file->name, line->line, line->directive, text, message);
    return NOT_FOUND;
  }
  groups[0] = (regmatch_t){0, (regoff_t)(region.end - region.at)};
  error = regexec(&regex, m->text + region.at, GROUPS, groups, REG_STARTEND);
  regfree(&regex);
  if (error) return NOT_FOUND;
  *out = (Span){region.at + (size_t)groups[0].rm_so, region.at + (size_t)groups[0].rm_eo};
  if (line->kind == CHECK_EMPTY) out->at++;          // the line begins after the end of the one before
  for (size_t i = 0; i < line->n_defines; i++) {
    int g = line->defines[i].group;
    if (g < GROUPS && groups[g].rm_so >= 0) bind(m, &line->defines[i], m->text + region.at + groups[g].rm_so, (size_t)(groups[g].rm_eo - groups[g].rm_so));
  }
  return FOUND;
}

static Found match_one(Matcher *m, const CheckLine *line, Span region, Span *out) {
  if (line->kind == CHECK_END) {
    *out = (Span){region.end, region.end};
    return FOUND;
  }
  if (line->regex) return match_regex(m, line, region, out);
  const char *at = memmem(m->text + region.at, region.end - region.at, line->fixed, strlen(line->fixed));
  if (!at) return NOT_FOUND;
  *out = (Span){(size_t)(at - m->text), (size_t)(at - m->text) + strlen(line->fixed)};
  return FOUND;
}

static bool must_match(Matcher *m, const CheckLine *line, Span region, Span *out) {
  Found found = match_one(m, line, region, out);
  if (found == NOT_FOUND) fail(m, line, "not found", region, SIZE_MAX);
  if (found == UNDEFINED) fail(m, line, "it uses a variable without a value", region, SIZE_MAX);
  return found == FOUND;
}

static bool none_matches(Matcher *m, const CheckLine *const *nots, size_t n, Span region) {
  bool good = true;
  for (size_t i = 0; i < n; i++) {
    Span at;
    Found found = match_one(m, nots[i], region, &at);
    if (found == FOUND) fail(m, nots[i], "found, and must not be there", region, at.at);
    if (found == UNDEFINED) fail(m, nots[i], "it uses a variable without a value", region, SIZE_MAX);
    good &= found == NOT_FOUND;
  }
  return good;
}

// ---- Groups of -DAG, with -NOT between ------------------------------------------------------------------------------------------

typedef struct Nots { const CheckLine **items; size_t n, capacity; } Nots;

// The first match of `line` at or after `start` that overlaps none of `taken`, which is sorted; it is put in.
static bool match_apart(Matcher *m, const CheckLine *line, Span region, Span **taken, size_t *n_taken, size_t *capacity) {
  size_t at = region.at, k = 0;
  Span found;
  for (;;) {
    if (!must_match(m, line, (Span){at, region.end}, &found)) return false;
    while (k < *n_taken && found.at >= (*taken)[k].end) k++;
    if (k == *n_taken || (*taken)[k].at >= found.end) break;
    at = (*taken)[k].end;
  }
  ARENA_PUSH(m->arena, *taken, *n_taken, *capacity, found);
  memmove(*taken + k + 1, *taken + k, (*n_taken - 1 - k) * sizeof **taken);
  (*taken)[k] = found;
  return true;
}

// lines[0..n): -DAG and -NOT before a line. Leaves the -NOTs after the last group in `nots`, and where the last group ends in *out.
static bool match_group(Matcher *m, const CheckLine *lines, size_t n, Span region, Nots *nots, size_t *out) {
  Span *taken = NULL;
  size_t n_taken = 0, capacity = 0, start = region.at;
  for (size_t i = 0; i < n; i++) {
    const CheckLine *line = &lines[i];
    if (line->kind == CHECK_NOT) {
      ARENA_PUSH(m->arena, nots->items, nots->n, nots->capacity, line);
      continue;
    }
    if (!match_apart(m, line, (Span){start, region.end}, &taken, &n_taken, &capacity)) return false;
    if (i + 1 < n && lines[i + 1].kind != CHECK_NOT) continue;
    if (!none_matches(m, nots->items, nots->n, (Span){start, taken[0].at})) return false;     // before the whole group
    nots->n = 0;
    start = taken[n_taken - 1].end;
    n_taken = 0;
  }
  *out = start;
  return true;
}

// ---- A line with what stands before it ------------------------------------------------------------------------------------------

static int newlines(const Matcher *m, Span region) {
  int n = 0;
  for (size_t i = region.at; i < region.end; i++) n += m->text[i] == '\n';
  return n;
}

static bool check_distance(Matcher *m, const CheckLine *line, Span skipped, size_t at) {
  int n = newlines(m, skipped);
  bool next = line->kind == CHECK_NEXT || line->kind == CHECK_EMPTY;
  const char *what = next && !n ? "found on the same line as the match before, not on the next" : next && n > 1 ? "found, but not on the line after the match before"
                     : line->kind == CHECK_SAME && n ? "found, but not on the line of the match before" : NULL;
  if (what) fail(m, line, what, skipped, at);
  return !what;
}

// lines[0..n): -DAG and -NOT, then `line`. *out: from the first match to the end of the last.
static bool match_line(Matcher *m, const CheckLine *lines, size_t n, const CheckLine *line, Span region, Span *out) {
  Nots nots = {0};
  size_t start = region.at;
  if (!match_group(m, lines, n, region, &nots, &start)) return false;
  Span found, first = {0};
  size_t at = start;
  for (int i = 0; i < line->count; i++) {
    if (!must_match(m, line, (Span){at, region.end}, &found)) return false;
    if (!i) first = found;
    at = found.end;
  }
  if (!check_distance(m, line, (Span){start, first.at}, first.at) || !none_matches(m, nots.items, nots.n, (Span){start, first.at})) return false;
  *out = (Span){first.at, at};
  return true;
}

// Where the next line that is neither -DAG nor -NOT stands.
static size_t anchor_from(const CheckLine *lines, size_t i) {
  while (lines[i].kind == CHECK_DAG || lines[i].kind == CHECK_NOT) i++;
  return i;
}

// lines: ends with CHECK_END.
static void match_all(Matcher *m, const CheckLine *lines, size_t n) {
  Span rest = {0, m->bytes};
  for (size_t i = 0; i < n;) {
    size_t label = i;
    while (label < n && lines[label].kind != CHECK_LABEL) label++;
    Span block = rest, at;
    if (label < n) {                                   // labels cut the text before anything between them is looked at
      if (!must_match(m, &lines[label], rest, &at)) return;
      block.end = at.end;
      rest.at = at.end;
    }
    size_t end = label < n ? label + 1 : n;
    while (i < end) {
      size_t anchor = anchor_from(lines, i);
      if (!match_line(m, lines + i, anchor - i, &lines[anchor], block, &at)) break;
      block.at = at.end;
      i = anchor + 1;
    }
    i = end;
  }
}

Status check_file_match(const CheckFile *file, const char *shown, const char *text, size_t bytes, Arena *arena) {
  Matcher m = {.file = file, .shown = shown, .arena = arena};
  m.text = check_canonical(text, bytes, arena, &m.bytes);
  size_t n = file->n_lines;
  CheckLine *lines = ARENA_ARRAY(arena, CheckLine, n + 1);
  memcpy(lines, file->lines, n * sizeof *lines);
  lines[n] = (CheckLine){.kind = CHECK_END, .count = 1, .directive = "end", .pattern = ""};
  match_all(&m, lines, n + 1);
  if (m.broken) return m.broken;
  if (m.n_errors > ERRORS_MAX) m.errors = arena_printf(arena, "%s\n%d more", m.errors, m.n_errors - ERRORS_MAX);
  if (m.errors) FAIL(CHECK, NULL, "%s", m.errors);
  return STATUS_OK;
}
