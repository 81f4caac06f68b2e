#include "options.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/decimal.h"
#include "../ir/edit_distance.h"
#include "config_file.h"
#include "json_write.h"

static const OptionRow rows[] = {     // a heading is a row of no command
#define HEADING(title) {.name = "", .help = title},
#define OPTION(name, short_name, kind, field, fallback, min, max, commands, argument, help_line) \
  {name, short_name, KIND_##kind, offsetof(Options, field), offsetof(Options, given.field), offsetof(Options, origin.field), fallback, min, max, commands, argument, \
   help_line},
#include "options.def"
#undef OPTION
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

const OptionRow *options_rows(int *out_n) {
  *out_n = N_ROWS;
  return rows;
}

const OptionRow *options_find_row(const char *name, unsigned commands) {
  for (int i = 0; i < N_ROWS; i++)
    if ((rows[i].commands & commands) && !strcmp(rows[i].name, name)) return &rows[i];
  return NULL;
}

const char *options_nearest(const char *word, const char *const *names, int n) {
  size_t best = strlen(word) / 3 + 1;
  const char *nearest = NULL;
  for (int i = 0; i < n; i++) {
    size_t d = edit_distance(word, names[i]);
    if (d < best || (d == best && !nearest)) {
      best = d;
      nearest = names[i];
    }
  }
  return nearest;
}

static Status unknown_option(const char *word, unsigned command) {
  const char *names[N_ROWS];
  int n = 0;
  for (int i = 0; i < N_ROWS; i++)
    if (rows[i].commands & command) names[n++] = rows[i].name;
  const char *nearest = options_nearest(word, names, n);
  for (int i = 0; i < N_ROWS; i++)
    if (rows[i].commands && !strcmp(rows[i].name, word)) FAIL(USAGE, NULL, "option --%s does not belong to this command; --help lists those that do", word);
  if (nearest) FAIL(USAGE, NULL, "unknown option --%s; did you mean --%s?", word, nearest);
  FAIL(USAGE, NULL, "unknown option --%s; --help lists the options", word);
}

static Status parse_real(const char *name, const char *text, const char *end, double *out) {
  char *stop;
  errno = 0;
  double v = strtod(text, &stop);
  if (stop == text || stop != end || !isfinite(v) || (errno == ERANGE && fabs(v) > 1))
    FAIL(USAGE, NULL, "--%s: '%.*s' is not a number", name, (int)(end - text), text);
  *out = v;
  return STATUS_OK;
}

static Status outside_range(const OptionRow *row, const char *text) {
  if (row->max >= 0x1p40) FAIL(USAGE, NULL, "--%s: %s is outside its range; say %.0f or more", row->name, text, row->min);
  FAIL(USAGE, NULL, "--%s: %s is outside %.0f..%.0f", row->name, text, row->min, row->max);
}

static Status parse_int(const OptionRow *row, const char *text, bool checked, int64_t *out) {
  char *stop;
  errno = 0;
  long long v = strtoll(text, &stop, 10);
  if (stop == text || *stop || (errno && errno != ERANGE)) FAIL(USAGE, NULL, "--%s: '%s' is not a whole number", row->name, text);
  if (errno || (checked && (row->min != 0 || row->max != 0) && ((double)v < row->min || (double)v > row->max))) return outside_range(row, text);
  *out = v;
  return STATUS_OK;
}

static const struct { const char *name; double bytes; } units[] = {
    {"", 1},    {"B", 1},    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
    {"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},
};

bool options_byte_unit(const char *name, double *out_bytes) {
  for (size_t i = 0; i < sizeof units / sizeof *units; i++)
    if (!strcmp(units[i].name, name)) {
      *out_bytes = units[i].bytes;
      return true;
    }
  return false;
}

Status options_read_size(const char *option, const char *text, double min, double max, int64_t *out) {
  char *unit;
  errno = 0;
  double v = strtod(text, &unit), scale;
  if (unit == text || !(text[0] >= '0' && text[0] <= '9') || errno)
    FAIL(USAGE, NULL, "--%s: '%s' is not a size such as 65536, 8MiB or 1.5GB", option, text);
  if (!options_byte_unit(unit + (*unit == ' '), &scale))
    FAIL(USAGE, NULL, "--%s: '%s' has no known unit; there are B, KiB, MiB, GiB, TiB (powers of 1024), kB, MB, GB, TB (of 1000)", option, text);
  v *= scale;
  if (v != floor(v)) FAIL(USAGE, NULL, "--%s: '%s' is no whole number of bytes", option, text);
  if (v < min || v > max) FAIL(USAGE, NULL, "--%s: %.0f bytes are outside %.0f..%.0f", option, v, min, max);
  *out = (int64_t)v;
  return STATUS_OK;
}

static Status parse_bytes(const OptionRow *row, const char *text, int64_t *out) {
  if (!row->fallback || strcmp(row->fallback, "auto") || strcmp(text, "auto")) return options_read_size(row->name, text, row->min, row->max, out);
  *out = 0;
  return STATUS_OK;
}

static Status parse_choice(const OptionRow *row, const char *text, const char **out) {
  size_t n = strlen(text);
  for (const char *p = row->argument; n && p; p = strchr(p, '|')) {
    if (*p == '|') p++;
    if (!strncmp(p, text, n) && (p[n] == '|' || !p[n])) {
      *out = text;
      return STATUS_OK;
    }
  }
  const char *names[16];
  char choices[256];
  int n_names = 0;
  snprintf(choices, sizeof choices, "%s", row->argument);
  for (char *save, *p = strtok_r(choices, "|", &save); p && n_names < 16; p = strtok_r(NULL, "|", &save)) names[n_names++] = p;
  const char *nearest = options_nearest(text, names, n_names);
  FAIL(USAGE, NULL, "--%s: '%s' is none of %s%s%s%s", row->name, text, row->argument, nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}

static Status parse_reals(const OptionRow *row, const char *text, RealList *out) {
  int n = 1;
  for (const char *p = text; *p; p++) n += *p == ',';
  double *items = malloc((size_t)n * sizeof *items);
  if (!items) FAIL(RESOURCE, NULL, "--%s: out of memory for %d numbers", row->name, n);
  const char *p = text;
  for (int i = 0; i < n; i++) {
    const char *end = strchr(p, ',');
    if (!end) end = p + strlen(p);
    Status status = parse_real(row->name, p, end, &items[i]);
    if (status) {
      free(items);
      return status;
    }
    p = end + 1;
  }
  free(out->items);
  *out = (RealList){items, n};
  return STATUS_OK;
}

static Status list_append(const OptionRow *row, const char *text, TextList *out) {
  const char **items = realloc(out->items, (size_t)(out->n + 1) * sizeof *items);
  if (!items) FAIL(RESOURCE, NULL, "--%s: out of memory", row->name);
  items[out->n++] = text;
  out->items = items;
  return STATUS_OK;
}

// `text`: as on the command line; NULL for a flag that is there. A default is not checked: it may lie outside the range, to say that nothing was said.
static Status set_field(const OptionRow *row, const char *text, bool checked, Options *out) {
  void *field = (char *)out + row->offset;
  switch (row->kind) {
  case KIND_FLAG: *(bool *)field = true; break;
  case KIND_OFF: *(bool *)field = text != NULL; break;   // text: the default
  case KIND_INT: TRY(parse_int(row, text, checked, field)); break;
  case KIND_BYTES: TRY(parse_bytes(row, text, field)); break;
  case KIND_REAL: {
    double v;
    TRY(parse_real(row->name, text, text + strlen(text), &v));
    if (v < row->min || v > row->max) FAIL(USAGE, NULL, "--%s: %s is outside %g..%g", row->name, text, row->min, row->max);
    *(double *)field = v;
    break;
  }
  case KIND_TEXT: *(const char **)field = text; break;
  case KIND_CHOICE: TRY(parse_choice(row, text, field)); break;
  case KIND_LIST: TRY(list_append(row, text, field)); break;
  case KIND_REALS: TRY(parse_reals(row, text, field)); break;
  }
  return STATUS_OK;
}

// The row that argument `word` ("--name", "--name=value", "-o") names, and where its value begins (NULL: in the next argument).
static Status find_row(const char *word, unsigned command, const OptionRow **out_row, const char **out_value) {
  *out_value = NULL;
  if (word[1] != '-') {
    for (int i = 0; i < N_ROWS; i++)
      if (rows[i].short_name && rows[i].short_name == word[1] && (rows[i].commands & command)) {
        *out_row = &rows[i];
        if (word[2]) *out_value = word + 2;
        return STATUS_OK;
      }
    FAIL(USAGE, NULL, "unknown option %s; --help lists the options", word);
  }
  const char *name = word + 2, *equals = strchr(name, '=');
  size_t n = equals ? (size_t)(equals - name) : strlen(name);
  for (int i = 0; i < N_ROWS; i++)
    if ((rows[i].commands & command) && strlen(rows[i].name) == n && !strncmp(rows[i].name, name, n)) {
      *out_row = &rows[i];
      if (equals) *out_value = equals + 1;
      return STATUS_OK;
    }
  char copy[64];
  snprintf(copy, sizeof copy, "%.*s", (int)n, name);
  return unknown_option(copy, command);
}

static Status parse_option(int argc, char **argv, int *i, unsigned command, Options *out) {
  const OptionRow *row = NULL;
  const char *value = NULL;
  TRY(find_row(argv[*i], command, &row, &value));
  bool takes_value = row->kind != KIND_FLAG && row->kind != KIND_OFF;
  bool off = !takes_value && value && !strcmp(value, "false");
  if (!takes_value && value && !off && strcmp(value, "true")) FAIL(USAGE, NULL, "--%s takes no value but =true or =false", row->name);
  bool none_follows = *i + 1 >= argc || !strncmp(argv[*i + 1], "--", 2);
  if (takes_value && !value && none_follows && command == SHOW && (row->commands & BARE)) value = "";
  if (takes_value && !value) {
    if (*i + 1 >= argc) FAIL(USAGE, NULL, "--%s needs a value: --%s %s", row->name, row->name, row->argument);
    value = argv[++*i];
  }
  *(bool *)((char *)out + row->given_offset) = true;
  if (!takes_value) *(bool *)((char *)out + row->offset) = (row->kind == KIND_FLAG) != off;
  return takes_value ? set_field(row, value, true, out) : STATUS_OK;
}

Status options_parse(int argc, char **argv, int first, unsigned command, Options *out) {
  *out = (Options){0};
  for (int i = 0; i < N_ROWS; i++)
    if (rows[i].fallback) TRY(set_field(&rows[i], rows[i].fallback, false, out));
  bool only_arguments = false;
  for (int i = first; i < argc; i++) {
    if (!only_arguments && !strcmp(argv[i], "--")) {
      only_arguments = true;
      if (command & REDUCE) {
        out->command = (const char *const *)&argv[i + 1];
        out->n_command = argc - i - 1;
        return STATUS_OK;
      }
    } else if (!only_arguments && (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))) {
      out->help = true;
      return STATUS_OK;
    } else if (only_arguments || argv[i][0] != '-' || !argv[i][1]) {
      if (out->other) FAIL(USAGE, NULL, "two files are expected, but there are '%s', '%s' and '%s'", out->input, out->other, argv[i]);
      if (out->input && command != DIFF) FAIL(USAGE, NULL, "one file is expected, but there are '%s' and '%s'", out->input, argv[i]);
      *(out->input ? &out->other : &out->input) = argv[i];
    } else {
      TRY(parse_option(argc, argv, &i, command, out));
    }
  }
  return STATUS_OK;
}

const char *options_first_given(const Options *options, unsigned bits) {
  for (int i = 0; i < N_ROWS; i++)
    if ((rows[i].commands & bits) && *(const bool *)((const char *)options + rows[i].given_offset)) return rows[i].name;
  return NULL;
}

// ---- What decides results: recorded and taken up again ------------------------------------------------------------------------

void options_free_texts(TextList *texts) {
  for (int i = 0; i < texts->n; i++) free((char *)(uintptr_t)texts->items[i]);
  free(texts->items);
  *texts = (TextList){0};
}

static size_t kind_bytes(OptionKind kind) {
  switch (kind) {
  case KIND_FLAG: case KIND_OFF: return sizeof(bool);
  case KIND_INT: case KIND_BYTES: return sizeof(int64_t);
  case KIND_REAL: return sizeof(double);
  case KIND_TEXT: case KIND_CHOICE: return sizeof(const char *);
  case KIND_LIST: return sizeof(TextList);
  case KIND_REALS: return sizeof(RealList);
  }
  return 0;
}

static void swap_bytes(void *a, void *b, size_t n) {
  char kept[sizeof(TextList)];
  memcpy(kept, a, n);
  memcpy(a, b, n);
  memcpy(b, kept, n);
}

Status options_set(const OptionRow *row, const char *text, const char *origin, Options *out) {
  TRY(set_field(row, text, true, out));
  *(bool *)((char *)out + row->given_offset) = true;
  *(const char **)((char *)out + row->origin_offset) = origin;
  return STATUS_OK;
}

const char *options_origin(const OptionRow *row, const Options *options) { return *(const char *const *)((const char *)options + row->origin_offset); }

bool options_is_given(const OptionRow *row, const Options *options) { return *(const bool *)((const char *)options + row->given_offset); }

static Status append_text(const OptionRow *row, const char *value, TextList *out) {
  char *text = NULL;
  if (asprintf(&text, "--%s%s%s", row->name, value ? "=" : "", value ? value : "") < 0) FAIL(RESOURCE, NULL, "out of memory for --%s", row->name);
  Status status = list_append(row, text, out);
  if (status) free(text);
  return status;
}

static Status append_reals(const OptionRow *row, const RealList *reals, TextList *out) {
  char *text = malloc((size_t)reals->n * DECIMAL_BYTES + 1), *p = text;
  if (!text) FAIL(RESOURCE, NULL, "out of memory for --%s", row->name);
  *p = 0;
  for (int i = 0; i < reals->n; i++) {
    char decimal[DECIMAL_BYTES];
    p += sprintf(p, "%s%s", i ? "," : "", decimal_text(reals->items[i], decimal));
  }
  Status status = append_text(row, text, out);
  free(text);
  return status;
}

static Status record_row(const OptionRow *row, const Options *options, TextList *out) {
  const void *field = (const char *)options + row->offset;
  char text[DECIMAL_BYTES];
  switch (row->kind) {
  case KIND_FLAG:
  case KIND_OFF: return *(const bool *)field == (row->kind == KIND_FLAG) ? append_text(row, NULL, out) : STATUS_OK;
  case KIND_INT:
  case KIND_BYTES: snprintf(text, sizeof text, "%" PRId64, *(const int64_t *)field); return append_text(row, text, out);
  case KIND_REAL: return append_text(row, decimal_text(*(const double *)field, text), out);
  case KIND_TEXT:
  case KIND_CHOICE: return append_text(row, *(const char *const *)field, out);
  case KIND_REALS: return append_reals(row, field, out);
  case KIND_LIST: break;
  }
  const TextList *list = field;
  for (int i = 0; i < list->n; i++) TRY(append_text(row, list->items[i], out));
  return STATUS_OK;
}

Status options_values(const OptionRow *row, const Options *options, TextList *out) {
  *out = (TextList){0};
  if (!row->fallback && !options_is_given(row, options)) return STATUS_OK;
  Status status = record_row(row, options, out);
  if (status) options_free_texts(out);
  return status;
}

// Of the rows with all bits of `with` and none of `except`.
static Status record_rows(const Options *options, bool given, unsigned with, unsigned except, TextList *out) {
  *out = (TextList){0};
  Status status = STATUS_OK;
  for (int i = 0; i < N_ROWS && !status; i++) {
    const OptionRow *row = &rows[i];
    if ((row->commands & with) != with || row->commands & except || options_is_given(row, options) != given || (!given && !row->fallback)) continue;
    status = record_row(row, options, out);
  }
  if (status) options_free_texts(out);
  return status;
}

Status options_record(const Options *options, bool given, unsigned except, TextList *out) { return record_rows(options, given, RESULT, except, out); }

static char *quote(char *p, const char *word) {
  bool plain = word[0] && !word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=,:+@%")];
  if (!plain) *p++ = '\'';
  for (const char *c = word; *c; c++) p = *c == '\'' ? stpcpy(p, "'\\''") : (*p = *c, p + 1);
  if (!plain) *p++ = '\'';
  return p;
}

// Quoted for a shell, with blanks between; *out: heap. Ends `texts`.
static Status join_quoted(TextList *texts, char **out) {
  size_t bytes = 1;
  for (int i = 0; i < texts->n; i++) bytes += 4 * strlen(texts->items[i]) + 3;
  char *p = *out = malloc(bytes);
  for (int i = 0; i < texts->n && p; i++) {
    if (i) *p++ = ' ';
    p = quote(p, texts->items[i]);
  }
  if (p) *p = 0;
  options_free_texts(texts);
  if (!p) FAIL(RESOURCE, NULL, "out of memory for the options");
  return STATUS_OK;
}

Status options_of_passes(const Options *options, char **out) {
  TextList texts;
  TRY(record_rows(options, true, FIXED | OPT, SHOW, &texts));
  return join_quoted(&texts, out);
}

Status options_command_line(const Options *options, unsigned commands, char **out) {
  TextList texts = {0};
  Status status = STATUS_OK;
  for (int i = 0; i < N_ROWS && !status; i++)
    if (rows[i].commands & commands && options_is_given(&rows[i], options) && !options_origin(&rows[i], options)) status = record_row(&rows[i], options, &texts);
  if (!status) return join_quoted(&texts, out);
  options_free_texts(&texts);
  return status;
}

Status options_copy(const Options *base, Options *out) {
  *out = *base;
  out->file = NULL;
  for (int i = 0; i < N_ROWS; i++)                            // ours from here on, also when a copy fails
    if (rows[i].kind == KIND_LIST || rows[i].kind == KIND_REALS) memset((char *)out + rows[i].offset, 0, rows[i].kind == KIND_LIST ? sizeof(TextList) : sizeof(RealList));
  for (int i = 0; i < N_ROWS; i++) {
    const void *from = (const char *)base + rows[i].offset;
    void *to = (char *)out + rows[i].offset;
    for (int k = 0; rows[i].kind == KIND_LIST && k < ((const TextList *)from)->n; k++) TRY(list_append(&rows[i], ((const TextList *)from)->items[k], to));
    if (rows[i].kind != KIND_REALS || !((const RealList *)from)->n) continue;
    const RealList *reals = from;
    double *items = malloc((size_t)reals->n * sizeof *items);
    if (!items) FAIL(RESOURCE, NULL, "out of memory for --%s", rows[i].name);
    memcpy(items, reals->items, (size_t)reals->n * sizeof *items);
    *(RealList *)to = (RealList){items, reals->n};
  }
  return STATUS_OK;
}

// All values of a row as text: "--freeze=a --freeze=b"; "" when there is none. Heap; NULL: no memory.
static char *row_text(const OptionRow *row, const Options *options) {
  TextList texts;
  Status status = options_values(row, options, &texts);
  char *joined = status ? NULL : strdup("");
  for (int i = 0; i < texts.n && joined; i++) {
    char *wider = NULL;
    if (asprintf(&wider, "%s%s%s", joined, i ? " " : "", texts.items[i]) < 0) wider = NULL;
    free(joined);
    joined = wider;
  }
  status_free(status);
  options_free_texts(&texts);
  return joined;
}

static Status add_note(char **notes, const char *now, const char *was) {
  char *wider = NULL;
  bool both = was && *now;
  if (asprintf(&wider, "%s%s%s%s%s%s", *notes ? *notes : "", *notes ? " " : "", *now ? now : was, both ? " (was " : "",
               both ? *was ? was : "not given" : "", both ? ")" : "") < 0)
    FAIL(RESOURCE, NULL, "out of memory for the options");
  free(*notes);
  *notes = wider;
  return STATUS_OK;
}

static Status take_recorded(const char *const *texts, size_t n, bool given, unsigned except, Options *out) {
  for (size_t i = 0; i < n; i++) {
    const OptionRow *row = NULL;
    const char *value = NULL;
    Status unknown = strncmp(texts[i], "--", 2) ? STATUS_OK : find_row(texts[i], RUN, &row, &value);
    status_free(unknown);
    if (!row || !(row->commands & RESULT))
      FAIL(UNSUPPORTED, NULL, "the option '%.60s' was recorded, which this program does not know", texts[i]);
    if (row->commands & except) continue;
    TRY(set_field(row, value, given, out));
    if (given) *(bool *)((char *)out + row->given_offset) = true;
  }
  return STATUS_OK;
}

// A row of `base` that is on the command line keeps its value, others have that of `was`.
static Status merge_row(const OptionRow *row, const Options *base, Options *was, char **taken, char **changed) {
  char *mine = row_text(row, base), *theirs = row_text(row, was);
  Status status = mine && theirs ? STATUS_OK : status_fail(STATUS_RESOURCE, NULL, "out of memory for --%s", row->name);
  if (!status && strcmp(mine, theirs)) status = options_is_given(row, base) ? add_note(changed, mine, theirs) : add_note(taken, theirs, NULL);
  free(mine);
  free(theirs);
  return status;
}

Status options_resume(const Options *base, const RecordedOptions *from, unsigned except, Options *out, char **taken, char **changed) {
  Options was = {0};
  *taken = *changed = NULL;
  *out = (Options){0};
  Status status = STATUS_OK;
  for (int i = 0; i < N_ROWS && !status; i++)
    if (rows[i].fallback) status = set_field(&rows[i], rows[i].fallback, false, &was);
  if (!status) status = take_recorded(from->defaults, from->n_defaults, false, except, &was);
  if (!status) status = take_recorded(from->recorded, from->n_recorded, true, except, &was);
  for (int i = 0; i < N_ROWS && !status; i++)
    if (rows[i].commands & RESULT && !(rows[i].commands & except)) status = merge_row(&rows[i], base, &was, taken, changed);
  if (!status) status = options_copy(base, out);
  for (int i = 0; i < N_ROWS && !status; i++) {
    const OptionRow *row = &rows[i];
    if (!(row->commands & RESULT) || row->commands & except || options_is_given(row, base)) continue;
    bool given = options_is_given(row, &was);
    swap_bytes((char *)out + row->offset, (char *)&was + row->offset, kind_bytes(row->kind));     // so that each list has one owner
    *(bool *)((char *)out + row->given_offset) = given;
  }
  options_finish(&was);
  return status;
}

void options_finish(Options *options) {
  for (int i = 0; i < N_ROWS; i++) {
    void *field = (char *)options + rows[i].offset;
    if (rows[i].kind == KIND_LIST) free(((TextList *)field)->items);
    if (rows[i].kind == KIND_REALS) free(((RealList *)field)->items);
  }
  config_file_destroy(options->file);
  *options = (Options){0};
}

void options_print_exit_codes(FILE *to) {
  fprintf(to, "\nExit codes:\n");
#define STATUS(name, code, meaning) fprintf(to, "  %d  %s\n", code, meaning);
#include "../ir/status.def"
#undef STATUS
}

void options_print_help(FILE *to, const char *command_name, unsigned command, const char *usage, const char *sentence, const char *example) {
  fprintf(to, "Usage: tessera %s %s\n\n%s\n\nExample: %s\n", command_name, usage, sentence, example);
  const char *heading = NULL;
  for (int i = 0; i < N_ROWS; i++) {
    const OptionRow *row = &rows[i];
    if (!row->commands) heading = row->help;
    if (!(row->commands & command)) continue;
    if (heading) fprintf(to, "\n%s:\n", heading);
    heading = NULL;
    char letter[8] = "    ";
    if (row->short_name) snprintf(letter, sizeof letter, "-%c, ", row->short_name);
    int width = fprintf(to, "  %s--%s%s%s", letter, row->name, row->argument ? " " : "", row->argument ? row->argument : "");
    fprintf(to, "%*s %s", width < 36 ? 36 - width : 0, "", row->help);
    bool tells = row->fallback && row->kind != KIND_OFF && strcmp(row->fallback, "-1") && !strstr(row->help, "default") && !strstr(row->help, "(0:");
    if (tells && strcmp(row->fallback, "0")) fprintf(to, " [%s]", row->fallback);
    fprintf(to, "\n");
  }
  fprintf(to, "\n      --help                         this text\n");
  options_print_exit_codes(to);
}
