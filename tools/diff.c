// tessera diff: what a change did to a plan or a model. Totals first, then by topic what was added, removed, changed and moved.
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "graph_diff.h"
#include "graph_file.h"
#include "json_write.h"
#include "printable.h"

// ---- What is asked ------------------------------------------------------------------------------------------------------------

// A bound on a metric of B: METRIC=+1%, =+4KiB (growth over A), =-2% (at least so much less), =2GiB (whatever A has).
typedef struct Limit {
  const char *text, *metric;
  bool relative, percent;      // relative: to A's
  double number;
  int64_t before, after;
  bool exceeded;
} Limit;

typedef struct Question {
  bool topics[TOPIC_COUNT];
  Limit *limits;
  size_t n_limits, limits_capacity;
} Question;

static Status parse_topics(const char *option, const char *text, Arena *arena, bool chosen[TOPIC_COUNT]) {
  const char *names[TOPIC_COUNT], *all = NULL;
  for (int t = 0; t < TOPIC_COUNT; t++) {
    names[t] = topic_name((Topic)t);
    all = arena_printf(arena, "%s%s%s", all ? all : "", all ? ", " : "", names[t]);
    chosen[t] = false;
  }
  const char **words = flow_split_list(text, arena);
  if (!words[0]) FAIL(USAGE, NULL, "--%s names nothing; there are %s", option, all);
  for (; *words; words++) {
    int t = 0;
    while (t < TOPIC_COUNT && strcmp(names[t], *words)) t++;
    const char *nearest = options_nearest(*words, names, TOPIC_COUNT);
    if (t == TOPIC_COUNT)
      FAIL(USAGE, NULL, "--%s: '%.40s' is none of %s%s%s%s", option, *words, all, nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
    chosen[t] = true;
  }
  return STATUS_OK;
}

static Status parse_limit(const char *option, const char *metric, const char *text, Arena *arena, Question *q) {
  Metric known;
  Limit limit = {.text = text, .metric = metric};
  if (!metric_describe(metric, &known)) return status_context(metric_unknown(metric, arena), "--%s", option);
  const char *digits = text + (*text == '+' || *text == '-');
  limit.relative = digits != text;
  char *unit;
  errno = 0;
  limit.number = strtod(digits, &unit);
  if (!(*digits >= '0' && *digits <= '9') || (digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X')) || errno || !isfinite(limit.number))
    FAIL(USAGE, NULL, "--%s: '%.40s' is no limit such as +1%%, +64KiB, -2%% or 3.1MiB", option, text);
  double scale = 1;
  limit.percent = !strcmp(unit, "%");
  if (limit.percent && !limit.relative) FAIL(USAGE, NULL, "--%s: '%s': say how much more or less than before: +%s", option, text, text);
  if (!limit.percent && known.unit == METRIC_BYTES && !options_byte_unit(unit, &scale))
    FAIL(USAGE, NULL, "--%s: '%.40s' has no known unit; there are %%, B, KiB, MiB, GiB, TiB (powers of 1024), kB, MB, GB, TB (of 1000)", option, text);
  if (!limit.percent && known.unit == METRIC_COUNT && *unit) FAIL(USAGE, NULL, "--%s: '%.40s': %s is a count: it has no unit but %%", option, text, metric);
  limit.number *= *text == '-' ? -scale : scale;
  ARENA_PUSH(arena, q->limits, q->n_limits, q->limits_capacity, limit);
  return STATUS_OK;
}

static Status parse_question(const Options *options, Arena *arena, Question *q) {
  bool ignored[TOPIC_COUNT] = {false}, any = false;
  for (int t = 0; t < TOPIC_COUNT; t++) q->topics[t] = true;
  if (options->only) TRY(parse_topics("only", options->only, arena, q->topics));
  if (options->ignore) TRY(parse_topics("ignore", options->ignore, arena, ignored));
  for (int t = 0; t < TOPIC_COUNT; t++) any |= q->topics[t] &= !ignored[t];
  if (!any) FAIL(USAGE, NULL, "--only and --ignore leave nothing to compare");
  if (options->max_bytes) TRY(parse_limit("max-bytes", "sent_bytes", options->max_bytes, arena, q));
  if (options->max_peak) TRY(parse_limit("max-peak", "peak.device", options->max_peak, arena, q));
  if (options->max_steps) TRY(parse_limit("max-steps", "steps", options->max_steps, arena, q));
  for (int i = 0; i < options->max.n; i++) {
    const char *item = options->max.items[i], *equals = strchr(item, '=');
    if (!equals || equals == item) FAIL(USAGE, NULL, "--max: '%.60s' is not METRIC=LIMIT, as in AllGather.bytes=+1%%", item);
    TRY(parse_limit("max", arena_string_n(arena, item, (size_t)(equals - item)), equals + 1, arena, q));
  }
  return STATUS_OK;
}

// ---- Both files ---------------------------------------------------------------------------------------------------------------

static Status infer_types(Graph *graph, const Options *options, Arena *arena) {
  static const char *const passes[] = {"infer_types", NULL};
  CompileOptions compile = compile_options_default();
  PassRun run;
  if (graph->facts & FACT_TYPED) return STATUS_OK;
  TRY(flow_pass_run(options, arena, &run));
  return passes_run(graph, passes, &compile, &run);
}

static Status open_side(const Options *options, const char *path, GraphFile *file) {
  Options one = *options;
  one.input = path;
  TRY(graph_file_open_assuming(&one, FLOW_ASSUMED_SIZE, file));
  return status_context(infer_types(file->flow.graph, options, file->flow.arena), "%s", path);
}

static Status check_kinds(const Options *options, const GraphFile *a, const GraphFile *b) {
  bool x = a->flow.graph->facts & FACT_PLANNED, y = b->flow.graph->facts & FACT_PLANNED;
  bool texts = graph_file_is_text(options->input) && graph_file_is_text(options->other);
  if (x == y || texts) return STATUS_OK;
  FAIL(USAGE, NULL, "'%s' is a plan and '%s' is none; 'tessera compile' makes one of a model", x ? options->input : options->other, x ? options->other : options->input);
}

// ---- Out ----------------------------------------------------------------------------------------------------------------------

typedef struct Total { Metric before, after; } Total;

static bool is_operator_count(const Metric *m) { return !m->help && m->unit == METRIC_COUNT; }

static bool is_headline(const Metric *m) {
  static const char *const names[] = {"steps", "collectives", "sent_bytes", "peak.device", "parameters.elements"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(m->name, names[i])) return true;
  return false;
}

// Headlines and whatever differs, of the topics asked for; in the order of A's list, then what only B has.
static size_t list_totals(const Metrics *a, const Metrics *b, const Question *q, Arena *arena, Total **out) {
  Metric *lists[2];
  size_t counts[2] = {metrics_list(a, arena, &lists[0]), metrics_list(b, arena, &lists[1])}, n = 0, capacity = 0;
  *out = NULL;
  for (int side = 0; side < 2; side++)
    for (size_t i = 0; i < counts[side]; i++) {
      Metric mine = lists[side][i], other = mine;
      other.value = 0;
      Status unknown = metric_find(side ? a : b, mine.name, &other);
      status_free(unknown);
      bool seen = side && other.value != 0;
      if (side && !seen) seen = metric_is_listed(lists[0], counts[0], mine.name);
      if (seen || !q->topics[mine.topic] || (mine.value == other.value && !is_headline(&mine))) continue;
      ARENA_PUSH(arena, *out, n, capacity, (side ? (Total){other, mine} : (Total){mine, other}));
    }
  return n;
}

static const char *growth_text(int64_t before, int64_t after, char out[64]) {
  if (before == after) snprintf(out, 64, "=");
  else if (before == 0) snprintf(out, 64, "%+" PRId64, after);
  else snprintf(out, 64, "%+" PRId64 " (%+.1f%%)", after - before, 100.0 * ((double)after - (double)before) / (double)before);
  return out;
}

static void print_totals(const Total *totals, size_t n) {
  char before[METRIC_TEXT_BYTES], after[METRIC_TEXT_BYTES], growth[64];
  for (size_t i = 0; i < n; i++)
    if (!is_operator_count(&totals[i].before))
      printf("  %-24s %24s -> %-24s %s\n", totals[i].before.name, metric_text(&totals[i].before, before), metric_text(&totals[i].after, after),
             growth_text(totals[i].before.value, totals[i].after.value, growth));
  bool any = false;
  for (size_t i = 0; i < n; i++) {
    if (!is_operator_count(&totals[i].before)) continue;
    printf("%s%s %" PRId64 " -> %" PRId64, any ? ", " : "  operators: ", totals[i].before.name, totals[i].before.value, totals[i].after.value);
    any = true;
  }
  if (any) printf("\n");
}

static void print_difference(const Difference *x) {
  static const char signs[DIFF_KIND_COUNT] = {'-', '+', '~', '>'};
  printf("  %c ", signs[x->kind]);
  if (x->step_a >= 0 && x->step_b >= 0 && x->step_a != x->step_b) printf("[%" PRId64 " -> %" PRId64 "] ", x->step_a, x->step_b);
  else if (x->step_a >= 0 || x->step_b >= 0) printf("[%" PRId64 "] ", x->step_a >= 0 ? x->step_a : x->step_b);
  const char *const parts[] = {x->what, x->field ? ": " : "", x->field ? x->field : "", x->before || x->after ? ": " : "", x->before ? x->before : "",
                               x->before && x->after ? " -> " : "", x->after ? x->after : ""};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) printable_print(stdout, parts[i], false);
  printf("\n");
}

static void print_topic(const GraphDiff *diff, Topic topic, int64_t lines) {
  int64_t counts[DIFF_KIND_COUNT] = {0}, n = 0, shown = 0;
  for (size_t i = 0; i < diff->n_items; i++)
    if (diff->items[i].topic == topic) counts[diff->items[i].kind]++, n++;
  if (!n) return;
  printf("%s:", topic_name(topic));
  const char *comma = " ";
  for (int k = 0; k < DIFF_KIND_COUNT; k++) {
    if (counts[k]) printf("%s%" PRId64 " %s", comma, counts[k], diff_kind_name((DiffKind)k)), comma = ", ";
  }
  printf("\n");
  for (size_t i = 0; i < diff->n_items; i++)
    if (diff->items[i].topic == topic && (!lines || shown < lines)) {
      print_difference(&diff->items[i]);
      shown++;
    }
  if (shown < n) printf("    ... %" PRId64 " more: --lines 0 shows all\n", n - shown);
}

static void print_limits(const Question *q) {
  char growth[64];
  for (size_t i = 0; i < q->n_limits; i++) {
    const Limit *l = &q->limits[i];
    const char *said = l->exceeded ? "tessera: limit exceeded" : "limit kept";
    fprintf(l->exceeded ? stderr : stdout, "%s: %s %s: %" PRId64 " -> %" PRId64 ", %s\n", said, l->metric, l->text, l->before, l->after,
            growth_text(l->before, l->after, growth));
  }
}

static void print_text(const Options *options, const Question *q, const GraphDiff *diff, const Total *totals, size_t n_totals, size_t n_differences) {
  if (!n_differences) printf("%s and %s are the same\n", options->input, options->other);
  else printf("%s -> %s: %zu difference%s\n", options->input, options->other, n_differences, n_differences == 1 ? "" : "s");
  print_totals(totals, n_totals);
  for (int t = 0; t < TOPIC_COUNT; t++)
    if (q->topics[t]) print_topic(diff, (Topic)t, options->lines);
  for (size_t i = 0; i < diff->n_notes; i++) {
    printf("  (not counted: ");
    printable_print(stdout, diff->notes[i], false);
    printf(")\n");
  }
  fflush(stdout);
  print_limits(q);
}

static void json_step(JsonWriter *w, const char *key, int64_t step) {
  if (step >= 0) json_write_int(w, key, step);
  else json_write_null(w, key);
}

static void print_json(const Options *options, const Question *q, const GraphDiff *diff, const Total *totals, size_t n_totals, bool same, bool pass) {
  JsonWriter w = {.to = stdout};
  json_write_object(&w, NULL);
  json_write_bool(&w, "same", same);
  json_write_bool(&w, "ok", pass);
  json_write_text(&w, "a", options->input);
  json_write_text(&w, "b", options->other);
  json_write_array(&w, "totals");
  for (size_t i = 0; i < n_totals; i++) {
    json_write_object(&w, NULL);
    json_write_text(&w, "metric", totals[i].before.name);
    json_write_text(&w, "topic", topic_name(totals[i].before.topic));
    json_write_text(&w, "unit", totals[i].before.unit == METRIC_BYTES ? "bytes" : "count");
    json_write_int(&w, "a", totals[i].before.value);
    json_write_int(&w, "b", totals[i].after.value);
    json_write_end_object(&w);
  }
  json_write_end_array(&w);
  json_write_array(&w, "differences");
  for (size_t i = 0; i < diff->n_items; i++) {
    const Difference *x = &diff->items[i];
    if (!q->topics[x->topic]) continue;
    json_write_object(&w, NULL);
    json_write_text(&w, "topic", topic_name(x->topic));
    json_write_text(&w, "kind", diff_kind_name(x->kind));
    json_write_text(&w, "what", x->what);
    json_write_text(&w, "field", x->field);
    json_write_text(&w, "a", x->before);
    json_write_text(&w, "b", x->after);
    json_step(&w, "step_a", x->step_a);
    json_step(&w, "step_b", x->step_b);
    json_write_end_object(&w);
  }
  json_write_end_array(&w);
  json_write_array(&w, "limits");
  for (size_t i = 0; i < q->n_limits; i++) {
    json_write_object(&w, NULL);
    json_write_text(&w, "metric", q->limits[i].metric);
    json_write_text(&w, "limit", q->limits[i].text);
    json_write_int(&w, "a", q->limits[i].before);
    json_write_int(&w, "b", q->limits[i].after);
    json_write_bool(&w, "ok", !q->limits[i].exceeded);
    json_write_end_object(&w);
  }
  json_write_end_array(&w);
  json_write_array(&w, "notes");
  for (size_t i = 0; i < diff->n_notes; i++) json_write_text(&w, NULL, diff->notes[i]);
  json_write_end_array(&w);
  json_write_end_object(&w);
}

// ---- The command --------------------------------------------------------------------------------------------------------------

static Status apply_limits(const Metrics *a, const Metrics *b, Question *q, bool *exceeded) {
  for (size_t i = 0; i < q->n_limits; i++) {
    Limit *l = &q->limits[i];
    Metric before, after;
    TRY(metric_find(a, l->metric, &before));
    TRY(metric_find(b, l->metric, &after));
    l->before = before.value;
    l->after = after.value;
    long double bound = (long double)l->number;
    if (l->relative) bound = (long double)before.value + (l->percent ? (long double)before.value * (long double)l->number / 100 : (long double)l->number);
    l->exceeded = (long double)after.value > bound;
    *exceeded |= l->exceeded;
  }
  return STATUS_OK;
}

static Status compare(const Options *options, const Graph *a, const Graph *b, Arena *arena) {
  ARENA_GUARD(arena);
  Question q = {0};
  bool exceeded = false;
  Status status = parse_question(options, arena, &q);
  const Metrics *before = metrics_read(a, arena), *after = metrics_read(b, arena);
  if (!status) status = apply_limits(before, after, &q, &exceeded);
  if (status) ARENA_RETURN(arena, status);
  const GraphDiff *diff = graph_diff(graph_match(a, b, arena), arena);
  Total *totals;
  size_t n_totals = list_totals(before, after, &q, arena, &totals), n = 0;
  for (size_t i = 0; i < diff->n_items; i++) n += q.topics[diff->items[i].topic];
  bool pass = q.n_limits ? !exceeded : !n;
  if (options->json) print_json(options, &q, diff, totals, n_totals, !n, pass);
  else print_text(options, &q, diff, totals, n_totals, n);
  ARENA_RETURN(arena, command_exit_silently(pass ? STATUS_OK : STATUS_CHECK));
}

static Status check_question(const Options *options, Arena *arena) {
  Question q = {0};
  ARENA_GUARD(arena);
  ARENA_RETURN(arena, parse_question(options, arena, &q));
}

static Status diff_files(const Options *options, Arena *arena, GraphFile *a, GraphFile *b) {
  if (!options->input || !options->other) FAIL(USAGE, NULL, "two files are compared: tessera diff OLD NEW");
  if (!strcmp(options->input, "-") && !strcmp(options->other, "-")) FAIL(USAGE, NULL, "only one of two files can be standard input");
  TRY(check_question(options, arena));
  TRY(open_side(options, options->input, a));
  TRY(open_side(options, options->other, b));
  TRY(check_kinds(options, a, b));
  return compare(options, a->flow.graph, b->flow.graph, arena);
}

Status command_diff(const Options *options) {
  Arena *arena = arena_create((size_t)8 << 30);
  if (!arena) FAIL(RESOURCE, NULL, "out of memory");
  GraphFile a = {0}, b = {0};
  Status status = diff_files(options, arena, &a, &b);
  graph_file_close(&a);
  graph_file_close(&b);
  arena_destroy(arena);
  return status;
}
