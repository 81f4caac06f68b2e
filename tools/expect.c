#include "expect.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"

typedef enum Comparison { EQUAL, DIFFERENT, AT_MOST, AT_LEAST, BELOW, ABOVE } Comparison;

typedef struct Expectation {
  const char *text;            // as it was given
  const char *name;
  Comparison comparison;
  double number;               // what it is compared with; with `other`, the factor
  const char *other;           // a metric; NULL: a number
} Expectation;

static const struct { const char *text; Comparison comparison; } comparisons[] = {   // longer ones first
    {"==", EQUAL}, {"!=", DIFFERENT}, {"<=", AT_MOST}, {">=", AT_LEAST}, {"<", BELOW}, {">", ABOVE}};

static const char *skip_blanks(const char *p) { return p + strspn(p, " \t"); }

static size_t name_bytes(const char *p) {
  size_t n = 0;
  if (!isalpha((unsigned char)*p) && *p != '_') return 0;
  while (isalnum((unsigned char)p[n]) || p[n] == '_' || p[n] == '.') n++;
  return n;
}

static Status parse_name(const char **p, const char *text, Arena *arena, const char **out_name, Metric *out) {
  size_t n = name_bytes(*p);
  if (!n) FAIL(USAGE, NULL, "--expect '%s': a metric is expected at '%.20s', as in 'AllGather==24' or 'sent_bytes<=3.1MiB'", text, *p);
  *out_name = arena_string_n(arena, *p, n);
  *p = skip_blanks(*p + n);
  if (metric_describe(*out_name, out)) return STATUS_OK;
  return status_context(metric_unknown(*out_name, arena), "--expect '%s'", text);
}

static Status parse_comparison(const char **p, const char *text, Comparison *out) {
  for (size_t i = 0; i < sizeof comparisons / sizeof *comparisons; i++) {
    size_t n = strlen(comparisons[i].text);
    if (strncmp(*p, comparisons[i].text, n)) continue;
    *out = comparisons[i].comparison;
    *p = skip_blanks(*p + n);
    return STATUS_OK;
  }
  FAIL(USAGE, NULL, "--expect '%s': one of == != <= >= < > is expected at '%.20s'", text, **p ? *p : "the end");
}

static Status parse_unit(const char *unit, const Metric *metric, const char *text, double *scale) {
  static const struct { const char *name; double scale; } counts[] = {{"", 1}, {"k", 1e3}, {"M", 1e6}, {"G", 1e9}};
  if (metric->unit == METRIC_BYTES) {
    if (options_byte_unit(unit, scale)) return STATUS_OK;
    FAIL(USAGE, NULL, "--expect '%s': '%.20s' is no unit of bytes; there are B, KiB, MiB, GiB, TiB (powers of 1024), kB, MB, GB, TB (of 1000)", text, unit);
  }
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
    if (!strcmp(counts[i].name, unit)) {
      *scale = counts[i].scale;
      return STATUS_OK;
    }
  FAIL(USAGE, NULL, "--expect '%s': %s is a count; '%.20s' is no unit of one, which are k, M and G", text, metric->name, unit);
}

// A number with a unit, or [FACTOR*]METRIC.
static Status parse_value(const char *p, const Metric *metric, Arena *arena, Expectation *e) {
  char *end = (char *)(uintptr_t)p;
  e->number = 1;
  if (isdigit((unsigned char)*p) && !(p[0] == '0' && (p[1] == 'x' || p[1] == 'X'))) {
    errno = 0;
    e->number = strtod(p, &end);
    if (errno || !isfinite(e->number)) FAIL(USAGE, NULL, "--expect '%s': '%.40s' is out of range", e->text, p);
    p = skip_blanks(end);
    if (*p != '*') {
      double scale;
      TRY(parse_unit(p, metric, e->text, &scale));
      e->number *= scale;
      return STATUS_OK;
    }
    p = skip_blanks(p + 1);
  }
  if (!name_bytes(p)) FAIL(USAGE, NULL, "--expect '%s': a number (24, 3.1MiB) or a metric is expected at '%.20s'", e->text, *p ? p : "the end");
  Metric other;
  TRY(parse_name(&p, e->text, arena, &e->other, &other));
  if (*p) FAIL(USAGE, NULL, "--expect '%s': nothing is expected after '%s', but there is '%.20s'", e->text, e->other, p);
  if (other.unit != metric->unit)
    FAIL(USAGE, NULL, "--expect '%s': %s are bytes and %s is a count", e->text, other.unit ? e->other : e->name, other.unit ? e->name : e->other);
  return STATUS_OK;
}

static Status parse_one(const char *text, Arena *arena, Expectation *out) {
  Expectation e = {.text = text};
  Metric metric;
  const char *p = skip_blanks(text);
  char *trimmed = arena_string(arena, p);
  for (size_t n = strlen(trimmed); n && (trimmed[n - 1] == ' ' || trimmed[n - 1] == '\t'); n--) trimmed[n - 1] = 0;
  p = trimmed;
  TRY(parse_name(&p, text, arena, &e.name, &metric));
  TRY(parse_comparison(&p, text, &e.comparison));
  TRY(parse_value(p, &metric, arena, &e));
  *out = e;
  return STATUS_OK;
}

static bool holds(Comparison comparison, long double value, long double bound) {
  switch (comparison) {
  case EQUAL: return value == bound;
  case DIFFERENT: return value != bound;
  case AT_MOST: return value <= bound;
  case AT_LEAST: return value >= bound;
  case BELOW: return value < bound;
  case ABOVE: return value > bound;
  }
  return false;
}

static Status check_one(const Metrics *metrics, const Expectation *e, bool *failed) {
  Metric metric, other = {0};
  char actual[METRIC_TEXT_BYTES], bound[METRIC_TEXT_BYTES];
  TRY(status_context(metric_find(metrics, e->name, &metric), "--expect '%s'", e->text));
  if (e->other) TRY(status_context(metric_find(metrics, e->other, &other), "--expect '%s'", e->text));
  if (holds(e->comparison, metric.value, e->other ? (long double)e->number * other.value : (long double)e->number)) return STATUS_OK;
  fprintf(stderr, "tessera: expectation failed: %s: %s is %s", e->text, e->name, metric_text(&metric, actual));
  if (e->other) fprintf(stderr, ", %s is %s", e->other, metric_text(&other, bound));
  fprintf(stderr, "\n");
  *failed = true;
  return STATUS_OK;
}

static Status parse_all(const Options *options, Arena *arena) {
  ARENA_GUARD(arena);
  Status s = STATUS_OK;
  Expectation e;
  for (int i = 0; i < options->expect.n && !s; i++) s = parse_one(options->expect.items[i], arena, &e);
  ARENA_RETURN(arena, s);
}

static Status check_all(const Options *options, const Graph *graph, Arena *arena) {
  ARENA_GUARD(arena);
  const Metrics *metrics = metrics_read(graph, arena);
  Status s = STATUS_OK;
  bool failed = false;
  for (int i = 0; i < options->expect.n && !s; i++) {
    Expectation e;
    s = parse_one(options->expect.items[i], arena, &e);
    if (!s) s = check_one(metrics, &e, &failed);
  }
  if (!s && failed) s = command_exit_silently(STATUS_CHECK);
  ARENA_RETURN(arena, s);
}

Status expect_parse(const Options *options) {
  if (!options->expect.n) return STATUS_OK;
  Arena *arena = arena_create(0);
  if (!arena) FAIL(RESOURCE, NULL, "out of memory for --expect");
  Status s = parse_all(options, arena);
  arena_destroy(arena);
  return s;
}

Status expect_check(const Options *options, const Graph *graph) {
  if (!options->expect.n) return STATUS_OK;
  Arena *arena = arena_create(0);
  if (!arena) FAIL(RESOURCE, NULL, "out of memory for --expect");
  Status s = check_all(options, graph, arena);
  arena_destroy(arena);
  return s;
}
