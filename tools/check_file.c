#include "check_file.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GROUPS_MAX = 9 };       // that a line can refer back to

typedef struct Reader {
  const char *name;
  Arena *arena;
  CheckFile *file;
  const char *const *prefixes;
} Reader;

char *check_canonical(const char *text, size_t bytes, Arena *arena, size_t *out_bytes) {
  char *out = arena_alloc(arena, bytes + 1), *p = out;
  for (size_t i = 0; i < bytes; i++) {
    char c = text[i];
    if (c == '\r' && i + 1 < bytes && text[i + 1] == '\n') continue;
    if (c == '\t') c = ' ';
    if (c == ' ' && p > out && p[-1] == ' ') continue;
    *p++ = c ? c : '?';
  }
  *p = 0;
  *out_bytes = (size_t)(p - out);
  return out;
}

// ---- Patterns -----------------------------------------------------------------------------------------------------------------

#define AT_LINE(at, status) return status_context(status, "%s:%d: %s", r->name, (at)->line, (at)->directive)
#define BROKEN(at, ...) AT_LINE(at, status_fail(STATUS_MALFORMED, NULL, __VA_ARGS__))
#define REFUSED(at, ...) AT_LINE(at, status_fail(STATUS_UNSUPPORTED, NULL, __VA_ARGS__))

typedef struct Builder {
  char *text;
  size_t n, capacity;
  int groups;                  // number of the next one
} Builder;

static void put_char(Reader *r, Builder *b, char c) { ARENA_PUSH(r->arena, b->text, b->n, b->capacity, c); }

static void put_literal(Reader *r, Builder *b, const char *text, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) {
    if (strchr("()^$|*+?.[]\\{}", text[i])) put_char(r, b, '\\');
    put_char(r, b, text[i]);
  }
}

// Past the set that begins at `p`: "[^]a[:alpha:]]".
static const char *skip_set(const char *p) {
  p++;
  if (*p == '^') p++;
  if (*p == ']') p++;
  while (*p && *p != ']') {
    const char *close = *p == '[' && p[1] && strchr(":.=", p[1]) ? strstr(p + 2, (char[]){p[1], ']', 0}) : NULL;
    p = close ? close + 2 : p + 1;
  }
  return *p ? p + 1 : p;
}

enum { DEPTH_MAX = 64, COPIES_MAX = 10000 };     // the C library writes a{m,n} out and recurses into groups: it would take all memory, time or stack

// How often the interval at `p`, "{2,5}", has its operand written out; that of a group multiplies with what lies in it.
static double interval_copies(const char *start, const char *p, double copies) {
  const char *comma = strpbrk(p, ",}");
  double least = strtod(p + 1, NULL), most = comma && *comma == ',' && isdigit((unsigned char)comma[1]) ? strtod(comma + 1, NULL) : least;
  return p > start && p[-1] == ')' ? copies * fmax(1, most) : copies + most;
}

// What this machine's expressions take and POSIX has no meaning for is refused: FileCheck refuses it too, or would read it otherwise. Counts groups.
static Status scan_regex(Reader *r, const CheckLine *line, const char *part, int *groups) {
  int depth = 0;
  double copies = 1;
  bool empty = true, repeated = false;          // nothing since the start, '(' or '|'; a repetition just before
  for (const char *p = part; *p;) {
    bool repetition = !empty && (*p == '*' || *p == '+' || *p == '?' || *p == '{');
    if (repetition && repeated) BROKEN(line, "invalid regular expression '%s': a repetition of a repetition", part);
    if (*p == '|' && empty) BROKEN(line, "invalid regular expression '%s': nothing stands before '|'", part);
    if (*p == ')' && empty && p > part && p[-1] == '|') BROKEN(line, "invalid regular expression '%s': nothing stands behind '|'", part);
    if (*p == ')' && --depth < 0) BROKEN(line, "invalid regular expression '%s': ')' without '('", part);
    repeated = repetition;
    empty = *p == '|' || *p == '(';
    if (*p == '(') depth++, ++*groups;
    if (repetition && *p == '{') copies = interval_copies(part, p, copies);
    if (depth > DEPTH_MAX) REFUSED(line, "groups stand more than %d deep in each other", DEPTH_MAX);
    if (copies > COPIES_MAX) REFUSED(line, "repetitions of repetitions make more than %d copies of something", COPIES_MAX);
    if (*p == '[') {
      p = skip_set(p);
    } else if (*p == '\\' && p[1]) {
      if (isalnum((unsigned char)p[1]) || strchr("<>`'", p[1]))
        REFUSED(line, "'\\%c' is no part of POSIX expressions: write [[:alnum:]_], [[:space:]], [0-9] or the like; for what was matched before, [[NAME]]", p[1]);
      p += 2;
    } else {
      p += repetition && *p == '{' ? strcspn(p, "}") : 0;
      p += *p != 0;
    }
  }
  if (empty) BROKEN(line, "invalid regular expression '%s': %s", part, *part ? "nothing stands at its end" : "it is empty");
  return STATUS_OK;
}

// Part of a pattern: checked alone, so that its groups cannot reach out of it.
static Status put_regex(Reader *r, CheckLine *line, Builder *b, const char *p, size_t bytes) {
  char *part = arena_string_n(r->arena, p, bytes), message[160];
  TRY(scan_regex(r, line, part, &b->groups));
  regex_t regex;
  int error = regcomp(&regex, part, REG_EXTENDED | REG_NEWLINE | REG_NOSUB);
  if (error) regerror(error, &regex, message, sizeof message);
  else regfree(&regex);
  if (error) BROKEN(line, "invalid regular expression '%s': %s", part, message);
  for (size_t i = 0; i < bytes; i++) put_char(r, b, part[i]);
  return STATUS_OK;
}

static size_t name_bytes(const char *p, const char *end) {
  const char *q = p + (p < end && *p == '$');
  if (q >= end || (!isalpha((unsigned char)*q) && *q != '_')) return 0;
  while (q < end && (isalnum((unsigned char)*q) || *q == '_')) q++;
  return (size_t)(q - p);
}

static const char *skip_blank(const char *p, const char *end) { return p < end && *p == ' ' ? p + 1 : p; }

static void add_use(Reader *r, CheckLine *line, const Builder *b, const char *name, bool is_number, int64_t number) {
  CheckUse use = {b->n, name, is_number, number};
  ARENA_PUSH(r->arena, line->uses, line->n_uses, line->uses_capacity, use);
}

static void add_definition(Reader *r, CheckLine *line, Builder *b, const char *name, bool number) {
  CheckVariable variable = {name, b->groups++, number};
  ARENA_PUSH(r->arena, line->defines, line->n_defines, line->defines_capacity, variable);
}

static const CheckVariable *defined_here(const CheckLine *line, const char *name) {
  for (size_t i = line->n_defines; i-- > 0;)
    if (!strcmp(line->defines[i].name, name)) return &line->defines[i];
  return NULL;
}

// What follows a term: nothing, "+ 3" or "- 3".
static Status parse_offset(Reader *r, CheckLine *line, const char *p, const char *end, int64_t *out) {
  *out = 0;
  p = skip_blank(p, end);
  if (p == end) return STATUS_OK;
  char sign = *p;
  if (sign != '+' && sign != '-')
    REFUSED(line, "numeric expression '%.*s': there are [[#NAME:]], [[#NAME]], [[#NAME+1]], [[#NAME-1]] and the same with @LINE and numbers", (int)(end - p), p);
  p = skip_blank(p + 1, end);
  char *stop, *digits = arena_string_n(r->arena, p, (size_t)(end - p));
  errno = 0;
  long long value = isdigit((unsigned char)*digits) ? strtoll(digits, &stop, 10) : 0;
  if (!isdigit((unsigned char)*digits) || errno || *skip_blank(stop, digits + strlen(digits))) REFUSED(line, "numeric expression: a number is expected at '%s'", digits);
  *out = sign == '-' ? -value : value;
  return STATUS_OK;
}

// Between "[[#" and "]]".
static Status parse_number(Reader *r, CheckLine *line, Builder *b, const char *p, const char *end) {
  int64_t offset, base = 0;
  p = skip_blank(p, end);
  if (p < end && (*p == '%' || *p == '=')) REFUSED(line, "numeric formats and constraints ('%.*s') are not there", (int)(end - p), p);
  size_t n = name_bytes(p, end);
  const char *after = skip_blank(p + n, end), *name = arena_string_n(r->arena, p, n);
  if (n && after < end && *after == ':') {
    if (skip_blank(after + 1, end) != end) REFUSED(line, "a numeric variable that is defined by an expression: '%.*s'", (int)(end - p), p);
    put_char(r, b, '(');
    add_definition(r, line, b, name, true);
    for (const char *c = "[0-9]+)"; *c; c++) put_char(r, b, *c);
    return STATUS_OK;
  }
  if (n) {
    TRY(parse_offset(r, line, after, end, &offset));
    if (defined_here(line, name)) BROKEN(line, "numeric variable '%s' is defined earlier in the same line", name);
    add_use(r, line, b, name, true, offset);
    return STATUS_OK;
  }
  if (end - p >= 5 && !strncmp(p, "@LINE", 5)) {
    base = line->line;
    after = p + 5;
  } else {
    char *stop;
    base = p < end && isdigit((unsigned char)*p) ? strtoll(p, &stop, 10) : 0;
    if (p == end || !isdigit((unsigned char)*p)) REFUSED(line, "numeric expression '%.*s'", (int)(end - p), p);
    after = stop;
  }
  TRY(parse_offset(r, line, after, end, &offset));
  add_use(r, line, b, NULL, true, base + offset);
  return STATUS_OK;
}

// Between "[[" and "]]".
static Status parse_variable(Reader *r, CheckLine *line, Builder *b, const char *p, const char *end) {
  if (p < end && *p == '#') return parse_number(r, line, b, p + 1, end);
  if (end - p >= 5 && !strncmp(p, "@LINE", 5)) return parse_number(r, line, b, p, end);
  size_t n = name_bytes(p, end);
  if (!n || (p + n < end && p[n] != ':')) BROKEN(line, "'[[%.*s]]' is no [[NAME]] or [[NAME:regex]]", (int)(end - p), p);
  const char *name = arena_string_n(r->arena, p, n);
  if (p + n == end) {
    const CheckVariable *here = defined_here(line, name);
    if (!here) add_use(r, line, b, name, false, 0);
    else if (here->group > GROUPS_MAX) BROKEN(line, "'%s' cannot be used in the line that defines it: more than %d groups stand before it", name, GROUPS_MAX);
    else put_char(r, b, '\\'), put_char(r, b, (char)('0' + here->group));
    return STATUS_OK;
  }
  put_char(r, b, '(');
  add_definition(r, line, b, name, false);
  size_t bytes = (size_t)(end - p) - n - 1;
  if (bytes) TRY(put_regex(r, line, b, p + n + 1, bytes));
  put_char(r, b, ')');
  return STATUS_OK;
}

// The "]]" that ends a variable: brackets of its expression nest, and a backslash takes the next character.
static Status variable_end(Reader *r, const CheckLine *line, const char *p, const char **out) {
  int depth = 0;
  for (; *p; p++) {
    if (!depth && p[0] == ']' && p[1] == ']') {
      *out = p;
      return STATUS_OK;
    }
    if (*p == '\\' && p[1]) p++;
    else if (*p == '[') depth++;
    else if (*p == ']' && --depth < 0) BROKEN(line, "a ']' is missing at the end of '[[...]]'");
  }
  BROKEN(line, "'[[' has no end ']]'");
}

static Status parse_pieces(Reader *r, CheckLine *line, Builder *b) {
  bool alternation = strchr(line->pattern, '|');
  for (const char *p = line->pattern; *p;) {
    const char *end = p;
    if (!strncmp(p, "{{", 2)) {
      if (!(end = strstr(p, "}}"))) BROKEN(line, "'{{' has no end '}}'");
      if (alternation) put_char(r, b, '('), b->groups++;
      TRY(put_regex(r, line, b, p + 2, (size_t)(end - p) - 2));
      if (alternation) put_char(r, b, ')');
      p = end + 2;
    } else if (!strncmp(p, "[[", 2)) {
      TRY(variable_end(r, line, p + 2, &end));
      TRY(parse_variable(r, line, b, p + 2, end));
      p = end + 2;
    } else {
      size_t n = 1;
      while (p[n] && strncmp(p + n, "{{", 2) && strncmp(p + n, "[[", 2)) n++;
      put_literal(r, b, p, n);
      p += n;
    }
    alternation = strchr(p, '|');
  }
  put_char(r, b, 0);
  return STATUS_OK;
}

static Status parse_pattern(Reader *r, CheckLine *line, bool literal) {
  if (line->kind == CHECK_EMPTY) {
    if (*line->pattern) BROKEN(line, "says that a line is empty: nothing may stand after the colon");
    line->regex = "(\n$)";
    return STATUS_OK;
  }
  if (!*line->pattern) BROKEN(line, "nothing stands after the colon; for an empty line there is -EMPTY, for any text {{.*}}");
  if (literal || (!strstr(line->pattern, "{{") && !strstr(line->pattern, "[["))) {
    line->fixed = line->pattern;
    return STATUS_OK;
  }
  Builder builder = {.groups = 1};
  TRY(parse_pieces(r, line, &builder));
  line->regex = builder.text;
  if (line->kind == CHECK_LABEL && (line->n_defines || line->n_uses)) BROKEN(line, "a label neither defines nor uses variables");
  return STATUS_OK;
}

// ---- Directives ---------------------------------------------------------------------------------------------------------------

static bool part_of_word(char c) { return isalnum((unsigned char)c) || c == '-' || c == '_'; }

static const struct { const char *suffix; CheckKind kind; } suffixes[] = {
    {"", CHECK_PLAIN}, {"-NEXT", CHECK_NEXT}, {"-SAME", CHECK_SAME}, {"-NOT", CHECK_NOT}, {"-DAG", CHECK_DAG}, {"-LABEL", CHECK_LABEL}, {"-EMPTY", CHECK_EMPTY}};

// After the prefix: ":", "-NEXT:", "-COUNT-3{LITERAL}:", ... false: it is no directive. *out_rest: behind the colon; NULL: a count that is none.
static bool parse_suffix(const char *p, CheckLine *line, bool *literal, const char **out_rest) {
  char *stop = NULL;
  const char *rest = NULL;
  *literal = false;
  line->count = 1;
  *out_rest = NULL;
  if (!strncmp(p, "-COUNT-", 7)) {
    long count = isdigit((unsigned char)p[7]) ? strtol(p + 7, &stop, 10) : 0;
    line->kind = CHECK_PLAIN;
    line->count = count > 0 && count <= INT32_MAX ? (int)count : 0;
    rest = stop;
  }
  for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
    size_t n = strlen(suffixes[i].suffix);
    if (strncmp(p, suffixes[i].suffix, n) || (p[n] != ':' && p[n] != '{')) continue;
    line->kind = suffixes[i].kind;
    rest = p + n;
  }
  if (!rest) return !strncmp(p, "-COUNT-", 7);
  if (!strncmp(rest, "{LITERAL}", 9)) {
    *literal = true;
    rest += 9;
  }
  if (*rest != ':') return !strncmp(p, "-COUNT-", 7);
  *out_rest = line->count ? rest + 1 : NULL;
  return true;
}

// "-NOT" goes with no other suffix: a likely mistake, which FileCheck names, too.
static bool is_bad_not(const char *p) {
  static const char *const others[] = {"DAG", "NEXT", "SAME", "EMPTY"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    size_t n = strlen(others[i]);
    if (!strncmp(p, "-NOT-", 5) && !strncmp(p + 5, others[i], n) && p[5 + n] == ':') return true;
    if (*p == '-' && !strncmp(p + 1, others[i], n) && !strncmp(p + 1 + n, "-NOT:", 5)) return true;
  }
  return false;
}

static Status add_line(Reader *r, CheckLine *line, const char *prefix_at, const char *rest, bool literal) {
  line->directive = arena_string_n(r->arena, prefix_at, (size_t)(rest - prefix_at) - 1);
  rest += strspn(rest, " \t");
  size_t n = strcspn(rest, "\r\n");
  while (n && (rest[n - 1] == ' ' || rest[n - 1] == '\t')) n--;
  line->pattern = arena_string_n(r->arena, rest, n);
  TRY(parse_pattern(r, line, literal));
  bool follows = line->kind == CHECK_NEXT || line->kind == CHECK_SAME || line->kind == CHECK_EMPTY;
  bool any = false;
  for (size_t i = 0; i < r->file->n_lines; i++) any |= r->file->lines[i].kind != CHECK_NOT && r->file->lines[i].kind != CHECK_DAG;
  if (follows && !any) BROKEN(line, "stands before any line that it could follow");
  ARENA_PUSH(r->arena, r->file->lines, r->file->n_lines, r->file->capacity, *line);
  return STATUS_OK;
}

// The longest prefix that stands at `p`; NULL: none.
static const char *prefix_here(const char *const *prefixes, const char *p) {
  const char *longest = NULL;
  for (; *prefixes; prefixes++)
    if (!strncmp(p, *prefixes, strlen(*prefixes)) && (!longest || strlen(*prefixes) > strlen(longest))) longest = *prefixes;
  return longest;
}

// One line of the file, terminated. What stands after a directive on its line belongs to it.
static Status read_line(Reader *r, const char *text, int number) {
  static const char *const comments[] = {"RUN", "COM", NULL};
  for (const char *p = text; *p;) {
    const char *comment = prefix_here(comments, p), *prefix = prefix_here(r->prefixes, p), *rest;
    bool starts = p == text || !part_of_word(p[-1]), literal;
    size_t n = prefix ? strlen(prefix) : comment ? strlen(comment) : 0;
    if (starts && !prefix && comment && p[n] == ':') return STATUS_OK;
    CheckLine line = {.line = number};
    if (starts && prefix) {
      line.directive = prefix;
      if (is_bad_not(p + n)) BROKEN(&line, "-NOT goes with no other suffix");
      if (parse_suffix(p + n, &line, &literal, &rest)) {
        if (!rest) BROKEN(&line, "-COUNT- takes a number of at least 1 and a colon: %s-COUNT-3:", prefix);
        return add_line(r, &line, p, rest, literal);
      }
    }
    if (!n) p++;
    else for (p += n; *p && part_of_word(*p);) p++;
  }
  return STATUS_OK;
}

static Status read_prefixes(Reader *r, const char *text) {
  const char **prefixes = NULL;
  size_t n = 0, capacity = 0;
  for (const char *p = text ? text : "CHECK"; *p;) {
    size_t bytes = strcspn(p, ",");
    bool good = bytes && isalpha((unsigned char)*p);
    for (size_t i = 0; good && i < bytes; i++) good = part_of_word(p[i]);
    if (!good) FAIL(USAGE, NULL, "--check-prefix: '%.*s' is none: it starts with a letter and holds letters, digits, '-' and '_'", (int)bytes, p);
    ARENA_PUSH(r->arena, prefixes, n, capacity, (const char *)arena_string_n(r->arena, p, bytes));
    p += bytes + (p[bytes] == ',');
  }
  if (!n) FAIL(USAGE, NULL, "--check-prefix is empty");
  ARENA_PUSH(r->arena, prefixes, n, capacity, (const char *)NULL);
  r->prefixes = prefixes;
  return STATUS_OK;
}

Status check_file_parse(const char *name, const char *text, size_t bytes, const char *prefixes, Arena *arena, CheckFile **out) {
  Reader r = {.name = name, .arena = arena, .file = ARENA_NEW(arena, CheckFile)};
  r.file->name = name;
  TRY(read_prefixes(&r, prefixes));
  char *p = check_canonical(text, bytes, arena, &bytes);
  for (int number = 1; *p; number++) {
    char *end = p + strcspn(p, "\n");
    bool last = !*end;
    *end = 0;
    TRY(read_line(&r, p, number));
    p = last ? end : end + 1;
  }
  const char *given = prefixes ? prefixes : "CHECK";
  if (!r.file->n_lines) FAIL(USAGE, NULL, "%s holds no line '%s: ...' or the like; nothing would be checked", name, given);
  *out = r.file;
  return STATUS_OK;
}
