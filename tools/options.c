#include "options.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum Kind { KIND_FLAG, KIND_OFF, KIND_INT, KIND_BYTES, KIND_REAL, KIND_TEXT, KIND_CHOICE, KIND_LIST, KIND_REALS } Kind;

typedef struct Row {
  const char *name;
  char short_name;
  Kind kind;
  size_t offset, given_offset;   // in Options
  const char *fallback;
  double min, max;
  unsigned commands;
  const char *argument, *help;
} Row;

static const Row rows[] = {
#define OPTION(name, short_name, kind, field, fallback, min, max, commands, argument, help_line) \
  {name, short_name, KIND_##kind, offsetof(Options, field), offsetof(Options, given.field), fallback, min, max, commands, argument, help_line},
#include "options.def"
#undef OPTION
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

static size_t min_size(size_t a, size_t b) { return a < b ? a : b; }

// Levenshtein distance; words beyond 63 characters are far from everything.
static size_t edit_distance(const char *a, const char *b) {
  enum { MAX = 63 };
  size_t na = strlen(a), nb = strlen(b), row[MAX + 1];
  if (na > MAX || nb > MAX) return MAX;
  for (size_t j = 0; j <= nb; j++) row[j] = j;
  for (size_t i = 1; i <= na; i++) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= nb; j++) {
      size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = min_size(replaced, min_size(row[j], row[j - 1]) + 1);
    }
  }
  return row[nb];
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
    if (!strcmp(rows[i].name, word)) FAIL(USAGE, NULL, "option --%s does not belong to this command; --help lists those that do", word);
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

static Status parse_int(const Row *row, const char *text, int64_t *out) {
  char *stop;
  errno = 0;
  long long v = strtoll(text, &stop, 10);
  if (stop == text || *stop || errno) FAIL(USAGE, NULL, "--%s: '%s' is not a whole number", row->name, text);
  if ((row->min != 0 || row->max != 0) && ((double)v < row->min || (double)v > row->max))
    FAIL(USAGE, NULL, "--%s: %lld is outside %.0f..%.0f", row->name, v, row->min, row->max);
  *out = v;
  return STATUS_OK;
}

static const struct { const char *name; double bytes; } units[] = {
    {"", 1},    {"B", 1},    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
    {"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},
};

// "8MiB", "1.5GB", "65536": a whole number of bytes.
static Status parse_bytes(const Row *row, const char *text, int64_t *out) {
  char *unit;
  errno = 0;
  double v = strtod(text, &unit), scale = 0;
  if (unit == text || !(text[0] >= '0' && text[0] <= '9') || errno)
    FAIL(USAGE, NULL, "--%s: '%s' is not a size such as 65536, 8MiB or 1.5GB", row->name, text);
  for (size_t i = 0; i < sizeof units / sizeof *units; i++)
    if (!strcmp(units[i].name, unit + (*unit == ' '))) scale = units[i].bytes;
  if (scale == 0)
    FAIL(USAGE, NULL, "--%s: '%s' has no known unit; there are B, KiB, MiB, GiB, TiB (powers of 1024), kB, MB, GB, TB (of 1000)", row->name, text);
  v *= scale;
  if (v != floor(v)) FAIL(USAGE, NULL, "--%s: '%s' is no whole number of bytes", row->name, text);
  if (v < row->min || v > row->max) FAIL(USAGE, NULL, "--%s: %.0f bytes are outside %.0f..%.0f", row->name, v, row->min, row->max);
  *out = (int64_t)v;
  return STATUS_OK;
}

static Status parse_choice(const Row *row, const char *text, const char **out) {
  size_t n = strlen(text);
  for (const char *p = row->argument; n && p; p = strchr(p, '|')) {
    if (*p == '|') p++;
    if (!strncmp(p, text, n) && (p[n] == '|' || !p[n])) {
      *out = text;
      return STATUS_OK;
    }
  }
  FAIL(USAGE, NULL, "--%s: '%s' is none of %s", row->name, text, row->argument);
}

static Status parse_reals(const Row *row, const char *text, RealList *out) {
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

static Status list_append(const Row *row, const char *text, TextList *out) {
  const char **items = realloc(out->items, (size_t)(out->n + 1) * sizeof *items);
  if (!items) FAIL(RESOURCE, NULL, "--%s: out of memory", row->name);
  items[out->n++] = text;
  out->items = items;
  return STATUS_OK;
}

static Status set_field(const Row *row, const char *text, Options *out) {
  void *field = (char *)out + row->offset;
  switch (row->kind) {
  case KIND_FLAG: *(bool *)field = true; break;
  case KIND_OFF: *(bool *)field = text != NULL; break;   // text: the default
  case KIND_INT: TRY(parse_int(row, text, field)); break;
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
static Status find_row(const char *word, unsigned command, const Row **out_row, const char **out_value) {
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

static Status quote_command_line(int argc, char **argv, const char **out) {
  size_t bytes = 1;
  for (int i = 0; i < argc; i++) bytes += 4 * strlen(argv[i]) + 3;
  char *text = malloc(bytes), *p = text;
  if (!text) FAIL(RESOURCE, NULL, "out of memory for the command line");
  for (int i = 0; i < argc; i++) {
    if (i) *p++ = ' ';
    bool plain = argv[i][0] && !argv[i][strspn(argv[i], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=,:+@%")];
    if (!plain) *p++ = '\'';
    for (const char *c = argv[i]; *c; c++) p = *c == '\'' ? stpcpy(p, "'\\''") : (*p = *c, p + 1);
    if (!plain) *p++ = '\'';
  }
  *p = 0;
  *out = text;
  return STATUS_OK;
}

static Status parse_option(int argc, char **argv, int *i, unsigned command, Options *out) {
  const Row *row = NULL;
  const char *value = NULL;
  TRY(find_row(argv[*i], command, &row, &value));
  bool takes_value = row->kind != KIND_FLAG && row->kind != KIND_OFF;
  if (!takes_value && value) FAIL(USAGE, NULL, "--%s takes no value", row->name);
  if (takes_value && !value) {
    if (*i + 1 >= argc) FAIL(USAGE, NULL, "--%s needs a value: --%s %s", row->name, row->name, row->argument);
    value = argv[++*i];
  }
  *(bool *)((char *)out + row->given_offset) = true;
  return set_field(row, value, out);
}

Status options_parse(int argc, char **argv, int first, unsigned command, Options *out) {
  *out = (Options){0};
  for (int i = 0; i < N_ROWS; i++)
    if (rows[i].fallback) TRY(set_field(&rows[i], rows[i].fallback, out));
  TRY(quote_command_line(argc, argv, &out->command_line));
  bool only_arguments = false;
  for (int i = first; i < argc; i++) {
    if (!only_arguments && !strcmp(argv[i], "--")) {
      only_arguments = true;
    } else if (!only_arguments && (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))) {
      out->help = true;
      return STATUS_OK;
    } else if (only_arguments || argv[i][0] != '-' || !argv[i][1]) {
      if (out->input) FAIL(USAGE, NULL, "one file is expected, but there are '%s' and '%s'", out->input, argv[i]);
      out->input = argv[i];
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

void options_finish(Options *options) {
  for (int i = 0; i < N_ROWS; i++) {
    void *field = (char *)options + rows[i].offset;
    if (rows[i].kind == KIND_LIST) free(((TextList *)field)->items);
    if (rows[i].kind == KIND_REALS) free(((RealList *)field)->items);
  }
  free((char *)(uintptr_t)options->command_line);
  *options = (Options){0};
}

void options_print_exit_codes(FILE *to) {
  fprintf(to, "\nExit codes:\n");
#define STATUS(name, code, meaning) fprintf(to, "  %d  %s\n", code, meaning);
#include "../ir/status.def"
#undef STATUS
}

void options_print_help(FILE *to, const char *command_name, unsigned command, const char *usage, const char *sentence) {
  fprintf(to, "Usage: tessera %s %s\n\n%s\n\nOptions:\n", command_name, usage, sentence);
  for (int i = 0; i < N_ROWS; i++) {
    const Row *row = &rows[i];
    if (!(row->commands & command)) continue;
    char left[96], letter[8] = "    ";
    if (row->short_name) snprintf(letter, sizeof letter, "-%c, ", row->short_name);
    snprintf(left, sizeof left, "%s--%s%s%s", letter, row->name, row->argument ? " " : "", row->argument ? row->argument : "");
    fprintf(to, "  %-34s %s", left, row->help);
    bool tells = row->fallback && row->kind != KIND_OFF && strcmp(row->fallback, "-1") && !strstr(row->help, "default") && !strstr(row->help, "(0:");
    if (tells && strcmp(row->fallback, "0")) fprintf(to, " [%s]", row->fallback);
    fprintf(to, "\n");
  }
  fprintf(to, "      --help                         this text\n");
  options_print_exit_codes(to);
}
