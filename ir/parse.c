#include "parse.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "hex.h"
#include "meta.h"
#include "narrow.h"
#include "op.h"

typedef struct Slice { const char *at; size_t bytes; } Slice;

// What the metadata comments that follow belong to.
typedef struct Target { enum { TARGET_NONE, TARGET_GRAPH, TARGET_VALUE, TARGET_NODE } kind; Value *value; Node *node; } Target;

typedef struct Parser {
  const char *text, *pos, *end;
  Graph *graph;
  Arena *arena;
  MetaReader *meta;
  Target target;
  Slice *comments;             // `#@` comments seen since the target was set
  size_t n_comments, comments_capacity;
  Value **inputs;              // declared in graph.input, in order
  size_t n_inputs, inputs_capacity;
  Value **outputs;
  size_t n_outputs, outputs_capacity;
  Value **inner;               // declared in graph.value_info
  size_t n_inner, inner_capacity;
} Parser;

static Status fail_at(const Parser *p, const char *pos, StatusCode code, const char *format, ...) __attribute__((format(printf, 4, 5)));

static Status fail_at(const Parser *p, const char *pos, StatusCode code, const char *format, ...) {
  int line = 1, column = 1;
  for (const char *c = p->text; c < pos; c++) {
    column++;
    if (*c == '\n') line++, column = 1;
  }
  va_list args;
  va_start(args, format);
  Status s = status_vfail(code, NULL, format, args);
  va_end(args);
  return status_context(s, "line %d, column %d", line, column);
}

#define BAD(p, ...) return fail_at(p, (p)->pos, STATUS_MALFORMED, __VA_ARGS__)

// Adds the position to an error of another part of ir/.
static Status located(const Parser *p, const char *pos, Status s) {
  if (!s) return s;
  Status here = fail_at(p, pos, status_code(s), "%s%s%s%s", s->node ? "'" : "", s->node ? s->node : "", s->node ? "': " : "", s->what);
  status_free(s);
  return here;
}

// ---- Characters and words -------------------------------------------------------------------------------------------------------

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\v' || c == '\f' || c == '\r'; }
static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static void skip(Parser *p) {
  while (p->pos < p->end) {
    if (is_space(*p->pos)) {
      p->pos++;
    } else if (*p->pos == '#') {
      const char *newline = memchr(p->pos, '\n', (size_t)(p->end - p->pos)), *stop = newline ? newline : p->end;
      if (stop - p->pos > 1 && p->pos[1] == '@')
        ARENA_PUSH(p->arena, p->comments, p->n_comments, p->comments_capacity, ((Slice){p->pos + 2, (size_t)(stop - p->pos - 2)}));
      p->pos = stop;
    } else {
      return;
    }
  }
}

static char peek(Parser *p) {
  skip(p);
  return p->pos < p->end ? *p->pos : 0;
}

static bool accept(Parser *p, char c) {
  if (peek(p) != c || p->pos == p->end) return false;
  p->pos++;
  return true;
}

static Status expect(Parser *p, char c, const char *where) {
  if (accept(p, c)) return STATUS_OK;
  if (p->pos == p->end) BAD(p, "'%c' is missing %s, but the text ends", c, where);
  BAD(p, "'%c' is missing %s, here is '%c'", c, where, isprint((unsigned char)*p->pos) ? *p->pos : '?');
}

static Slice word(Parser *p) {
  skip(p);
  const char *from = p->pos;
  if (p->pos < p->end && is_letter(*p->pos))
    while (p->pos < p->end && (is_letter(*p->pos) || is_digit(*p->pos))) p->pos++;
  return (Slice){from, (size_t)(p->pos - from)};
}

static Status string_literal(Parser *p, const char **out) {
  const char *from = p->pos;
  if (!accept(p, '"')) BAD(p, "a string in double quotes is missing");
  const char *start = p->pos;
  while (p->pos < p->end && *p->pos != '"' && *p->pos) p->pos += *p->pos == '\\' && p->pos + 1 < p->end ? 2 : 1;
  if (p->pos >= p->end || !*p->pos) {
    p->pos = from;
    BAD(p, "the string that starts here has no end");
  }
  char *text = arena_alloc(p->arena, (size_t)(p->pos - start) + 1), *to = text;
  for (const char *c = start; c < p->pos; c++) {
    if (*c == '\\') c++;
    *to++ = *c;
  }
  if (strlen(text) != (size_t)(to - text)) BAD(p, "a string with a zero byte");
  p->pos++;
  *out = text;
  return STATUS_OK;
}

// A bare or quoted name; "" only where `may_be_empty`.
static Status name(Parser *p, const char *what, bool may_be_empty, const char **out) {
  skip(p);
  const char *from = p->pos;
  if (peek(p) == '"') {
    TRY(string_literal(p, out));
  } else {
    Slice s = word(p);
    *out = arena_string_n(p->arena, s.at, s.bytes);
    if (!s.bytes) BAD(p, "%s is missing", what);
  }
  if (!**out && !may_be_empty) {
    p->pos = from;
    BAD(p, "%s is empty", what);
  }
  return STATUS_OK;
}

// ---- Numbers --------------------------------------------------------------------------------------------------------------------

typedef struct Number { char text[128]; bool is_float; const char *pos; } Number;

static Status number(Parser *p, Number *out) {
  skip(p);
  const char *from = p->pos, *c = from;
  out->is_float = false;
  out->pos = from;
  if (c < p->end && *c == '-') c++;
  if (c < p->end && is_letter(*c)) {
    while (c < p->end && is_letter(*c)) c++;
    size_t n = (size_t)(c - from) - (*from == '-');
    const char *w = from + (*from == '-');
    if (!(n == 3 && (!strncasecmp(w, "inf", 3) || !strncasecmp(w, "nan", 3))) && !(n == 8 && !strncasecmp(w, "infinity", 8)))
      BAD(p, "a number is missing");
    out->is_float = true;
  } else {
    if (c >= p->end || !is_digit(*c)) BAD(p, "a number is missing");
    for (bool point = false; c < p->end && (is_digit(*c) || (*c == '.' && !point)); c++)
      if (*c == '.') point = out->is_float = true;
    if (c < p->end && (*c == 'e' || *c == 'E')) {
      out->is_float = true;
      c++;
      if (c < p->end && (*c == '+' || *c == '-')) c++;
      while (c < p->end && is_digit(*c)) c++;
    }
  }
  size_t bytes = (size_t)(c - from);
  if (bytes >= sizeof out->text) BAD(p, "a number of more than %zu characters", sizeof out->text - 1);
  memcpy(out->text, from, bytes);
  out->text[bytes] = 0;
  p->pos = c;
  return STATUS_OK;
}

static Status integer(Parser *p, int64_t *out) {
  Number n;
  TRY(number(p, &n));
  errno = 0;
  long long v = n.is_float ? 0 : strtoll(n.text, NULL, 10);
  if (n.is_float || errno) return fail_at(p, n.pos, STATUS_MALFORMED, "%s is no 64-bit integer", n.text);
  *out = v;
  return STATUS_OK;
}

static Status real(Parser *p, float *single, double *wide) {
  Number n;
  TRY(number(p, &n));
  char *end;
  float f = strtof(n.text, &end);   // straight to float: rounding twice could differ
  double d = strtod(n.text, NULL);
  if (*end) return fail_at(p, n.pos, STATUS_MALFORMED, "%s is no number", n.text);
  if (single) *single = f;
  if (wide) *wide = d;
  return STATUS_OK;
}

// ---- Types and data -------------------------------------------------------------------------------------------------------------

static Status shape(Parser *p, Type *type) {
  while (true) {
    char c = peek(p);
    if (c == '?' || c == '"' || is_letter(c))
      return fail_at(p, p->pos, STATUS_UNSUPPORTED, "a symbolic dimension; graphs in text form have static shapes");
    if (c == ']' && type->rank == 0)
      return fail_at(p, p->pos, STATUS_UNSUPPORTED, "a tensor of unknown rank; a scalar has no brackets, or leave the type out");
    if (type->rank == RANK_MAX) return fail_at(p, p->pos, STATUS_UNSUPPORTED, "more than %d dimensions", RANK_MAX);
    TRY(integer(p, &type->dims[type->rank++]));
    if (!accept(p, ',')) break;
  }
  return expect(p, ']', "after the dimensions");
}

static bool slice_is(Slice s, const char *text) { return s.bytes == strlen(text) && !memcmp(s.at, text, s.bytes); }

static Dtype slice_dtype(Slice s) {
  char text[16];
  if (!s.bytes || s.bytes >= sizeof text) return DTYPE_NONE;
  memcpy(text, s.at, s.bytes);
  text[s.bytes] = 0;
  return dtype_from_name(text);
}

// Sets *found when a type stands here; otherwise nothing is consumed.
static Status optional_type(Parser *p, bool *found, Type *out) {
  skip(p);
  const char *from = p->pos;
  Slice s = word(p);
  Type type = {.dtype = slice_dtype(s)};
  *found = type.dtype != DTYPE_NONE;
  if (!*found) {
    p->pos = from;
    static const char *const others[] = {"seq", "map", "optional", "sparse_tensor", "opaque", "string", "complex64", "complex128"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
      if (slice_is(s, others[i])) return fail_at(p, from, STATUS_UNSUPPORTED, "type %s", others[i]);
    return STATUS_OK;
  }
  if (accept(p, '[')) TRY(shape(p, &type));
  TRY(located(p, from, type_check(&type, NULL)));
  *out = type;
  return STATUS_OK;
}

static Status element(Parser *p, Dtype dtype, void *bytes, int64_t i) {
  if (dtype == DTYPE_F32) return real(p, (float *)bytes + i, NULL);
  if (dtype == DTYPE_F64) return real(p, NULL, (double *)bytes + i);
  Number n;
  TRY(number(p, &n));
  errno = 0;
  if (dtype == DTYPE_U64) {
    uint64_t u = strtoull(n.text, NULL, 10);
    if (n.is_float || errno || n.text[0] == '-') return fail_at(p, n.pos, STATUS_MALFORMED, "%s is no uint64", n.text);
    ((uint64_t *)bytes)[i] = u;
    return STATUS_OK;
  }
  long long v = strtoll(n.text, NULL, 10);
  int64_t width = 8 * dtype_bytes(dtype);
  bool is_unsigned = dtype_class(dtype) == DTYPE_CLASS_UINT;
  int64_t max = dtype == DTYPE_BOOL ? 1 : width == 64 ? INT64_MAX : (INT64_C(1) << (width - (is_unsigned ? 0 : 1))) - 1;
  int64_t min = dtype == DTYPE_BOOL || is_unsigned ? 0 : -max - 1;
  if (n.is_float || errno || v < min || v > max) return fail_at(p, n.pos, STATUS_MALFORMED, "%s is no %s", n.text, dtype_name(dtype));
  element_write_int(bytes, dtype, i, v);
  return STATUS_OK;
}

static Status inline_data(Parser *p, Weight *w) {
  int64_t n = type_elems(&w->type);
  if (w->type.dtype == DTYPE_F16 || w->type.dtype == DTYPE_BF16 || dtype_is_narrow(w->type.dtype))
    return fail_at(p, p->pos, STATUS_UNSUPPORTED, "%s data between braces; it stands in an external file", dtype_name(w->type.dtype));
  // Each element takes a character at least: a huge shape cannot make us allocate more than the text justifies.
  if (n > p->end - p->pos) BAD(p, "%" PRId64 " elements are missing between the braces", n);
  void *bytes = arena_alloc_array(p->arena, (size_t)n, (size_t)dtype_bytes(w->type.dtype));
  for (int64_t i = 0; i < n; i++) {
    if (i > 0 && peek(p) != '}') TRY(expect(p, ',', "between elements"));
    if (peek(p) == '}') BAD(p, "%" PRId64 " elements instead of %" PRId64, i, n);
    TRY(element(p, w->type.dtype, bytes, i));
  }
  w->bytes = bytes;
  if (peek(p) == ',') BAD(p, "more than %" PRId64 " elements", n);
  return expect(p, '}', "after the elements");
}

static Status external_data(Parser *p, Weight *w) {
  const char *from = p->pos;
  do {
    const char *key, *text;
    TRY(string_literal(p, &key));
    TRY(expect(p, ':', "after the key"));
    TRY(string_literal(p, &text));
    char *end = NULL;
    errno = 0;
    int64_t v = strcmp(key, "location") ? strtoll(text, &end, 10) : 0;
    if (end && (end == text || *end || errno || v < 0)) BAD(p, "\"%s\": \"%s\" is no number of bytes", key, text);
    if (!strcmp(key, "location")) w->path = text;
    else if (!strcmp(key, "offset")) w->offset_bytes = v;
    else if (!strcmp(key, "length") && v != type_bytes(&w->type))
      BAD(p, "length %" PRId64 ", and the tensor has %" PRId64 " bytes", v, type_bytes(&w->type));
    else if (strcmp(key, "length")) BAD(p, "external data: unknown key \"%s\"", key);
  } while (accept(p, ','));
  if (!w->path) return fail_at(p, from, STATUS_MALFORMED, "external data without \"location\"");
  return expect(p, ']', "after the place of external data");
}

static Status weight(Parser *p, const char *weight_name, const Type *type, Weight **out) {
  Weight *w = ARENA_NEW(p->arena, Weight);
  w->name = weight_name;
  w->type = *type;
  if (accept(p, '{')) TRY(inline_data(p, w));
  else if (accept(p, '[')) TRY(external_data(p, w));
  else BAD(p, "the data of '%s' is missing: {elements} or [\"location\": ...]", weight_name);
  *out = w;
  return STATUS_OK;
}

// ---- Metadata comments ----------------------------------------------------------------------------------------------------------

static int hex4(const char *c, const char *end) {
  int v = 0;
  for (int i = 0; i < 4; i++, c++) {
    if (c >= end || !isxdigit((unsigned char)*c)) return -1;
    v = 16 * v + (is_digit(*c) ? *c - '0' : (*c | 32) - 'a' + 10);
  }
  return v;
}

static char *put_utf8(char *to, unsigned v) {
  if (v < 0x80) *to++ = (char)v;
  else if (v < 0x800) *to++ = (char)(0xc0 | v >> 6), *to++ = (char)(0x80 | (v & 63));
  else if (v < 0x10000) *to++ = (char)(0xe0 | v >> 12), *to++ = (char)(0x80 | (v >> 6 & 63)), *to++ = (char)(0x80 | (v & 63));
  else {
    *to++ = (char)(0xf0 | v >> 18), *to++ = (char)(0x80 | (v >> 12 & 63));
    *to++ = (char)(0x80 | (v >> 6 & 63)), *to++ = (char)(0x80 | (v & 63));
  }
  return to;
}

// \uXXXX or a surrogate pair at *c (behind the 'u'); -1 when it is none or zero.
static int unicode_escape(const char **c, const char *end) {
  int v = hex4(*c, end);
  if (v <= 0) return -1;
  *c += 4;
  if (v < 0xd800 || v > 0xdfff) return v;
  int low = end - *c >= 6 && (*c)[0] == '\\' && (*c)[1] == 'u' ? hex4(*c + 2, end) : -1;
  if (v > 0xdbff || low < 0xdc00 || low > 0xdfff) return -1;
  *c += 6;
  return 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00);
}

static Status json_string(Parser *p, const char **at, const char *end, const char **out) {
  const char *c = *at + 1;
  char *text = arena_alloc(p->arena, (size_t)(end - c) + 1), *to = text;
  while (c < end && *c != '"') {
    if (!*c || *c != '\\') {
      if (!*c) return fail_at(p, c, STATUS_MALFORMED, "a zero byte in metadata");
      *to++ = *c++;
      continue;
    }
    static const char from[] = "\"\\/bfnrt", to_chars[] = "\"\\/\b\f\n\r\t";
    const char *escape = ++c < end ? strchr(from, *c) : NULL;
    if (c < end && *c == 'u') {
      c++;
      int v = unicode_escape(&c, end);
      if (v < 0) return fail_at(p, c, STATUS_MALFORMED, "a broken \\u escape in metadata");
      to = put_utf8(to, (unsigned)v);
    } else if (escape && *escape) {
      *to++ = to_chars[escape - from];
      c++;
    } else {
      return fail_at(p, c, STATUS_MALFORMED, "an unknown escape in metadata");
    }
  }
  if (c >= end) return fail_at(p, *at, STATUS_MALFORMED, "a metadata string without end");
  *to = 0;
  *at = c + 1;
  *out = text;
  return STATUS_OK;
}

// The JSON object or list at *at, as it stands; whether it is JSON is checked where it is read.
static Status json_raw(Parser *p, const char **at, const char *end, const char **out) {
  int depth = 0;
  bool quoted = false;
  const char *c = *at;
  do {
    if (c >= end || !*c) return fail_at(p, *at, STATUS_MALFORMED, "a metadata value without end");
    if (quoted && *c == '\\') c++;
    else if (*c == '"') quoted = !quoted;
    else if (!quoted && (*c == '{' || *c == '[')) depth++;
    else if (!quoted && (*c == '}' || *c == ']')) depth--;
    c++;
  } while (depth);
  if (c > end) return fail_at(p, *at, STATUS_MALFORMED, "a metadata value without end");
  *out = arena_string_n(p->arena, *at, (size_t)(c - *at));
  *at = c;
  return STATUS_OK;
}

// Bytes of a weight that lies in no file: its location is "#" and their hash.
static Status hex_bytes(Parser *p, const char *at, Weight *w, const char *text) {
  int64_t n = type_bytes(&w->type);
  if (!w->path || w->path[0] != '#' || w->bytes) return fail_at(p, at, STATUS_MALFORMED, "hex bytes of data that stands elsewhere, too");
  if ((int64_t)strlen(text) != 2 * n) return fail_at(p, at, STATUS_MALFORMED, "%zu hex digits for %" PRId64 " bytes", strlen(text), n);
  unsigned char *bytes = arena_alloc(p->arena, (size_t)n);
  for (int64_t i = 0; i < 2 * n; i++) {
    if (!isxdigit((unsigned char)text[i])) return fail_at(p, at, STATUS_MALFORMED, "a hex digit is wrong");
    bytes[i / 2] = (unsigned char)(bytes[i / 2] << 4 | (is_digit(text[i]) ? text[i] - '0' : (text[i] | 32) - 'a' + 10));
  }
  w->bytes = bytes;
  uint64_t hash[2];
  TRY(weight_hash(&(Weight){.name = w->name, .type = w->type, .bytes = bytes}, hash));
  char hex[HEX128_BYTES];
  if (strcmp(w->path + 1, hex128_text(hash[0], hash[1], hex)))
    return fail_at(p, at, STATUS_MALFORMED, "the bytes in hex are not those of location %s", w->path);
  w->path = NULL;
  return STATUS_OK;
}

// The weight that pair `hex` or `hex.ATTRIBUTE` is about; NULL: none. The parser made it.
static Weight *hex_target(const Parser *p, const char *key) {
  if (p->target.kind == TARGET_VALUE && !strcmp(key, "hex")) return (Weight *)p->target.value->weight;
  if (p->target.kind != TARGET_NODE || strncmp(key, "hex.", 4)) return NULL;
  const AttrSpec *spec = attr_spec(p->target.node->op, key + 4);
  return spec && spec->type == ATTR_TENSOR ? *(Weight **)((char *)p->target.node->attrs + spec->offset) : NULL;
}

static Status set_pair(Parser *p, const char *at, const char *key, const char *text) {
  Weight *w = hex_target(p, key);
  if (w) return hex_bytes(p, at, w, text);
  switch (p->target.kind) {
  case TARGET_GRAPH: return located(p, at, meta_set_graph(p->meta, key, text));
  case TARGET_VALUE: return located(p, at, meta_set_value(p->meta, p->target.value, key, text));
  case TARGET_NODE: return located(p, at, meta_set_node(p->meta, p->target.node, key, text));
  case TARGET_NONE: break;
  }
  return fail_at(p, at, STATUS_MALFORMED, "metadata that belongs to no graph, value or node");
}

static Status comment(Parser *p, Slice s) {
  const char *at = s.at, *end = s.at + s.bytes;
  while (true) {
    while (at < end && is_space(*at)) at++;
    if (at == end) return STATUS_OK;
    const char *from = at, *text = NULL;
    while (at < end && (is_letter(*at) || is_digit(*at) || *at == '.')) at++;
    if (at == from || at + 1 >= end || *at != '=') return fail_at(p, from, STATUS_MALFORMED, "metadata is not of the form key=\"json string\"");
    const char *key = arena_string_n(p->arena, from, (size_t)(at - from));
    at++;
    if (*at == '"') TRY(json_string(p, &at, end, &text));
    else if (*at == '{' || *at == '[') TRY(json_raw(p, &at, end, &text));
    else return fail_at(p, at, STATUS_MALFORMED, "metadata %s is no JSON string", key);
    TRY(set_pair(p, from, key, text));
  }
}

// Everything that was commented since the last call belongs to the target that was set then; from here on to `next`.
static Status new_target(Parser *p, Target next) {
  skip(p);
  for (size_t i = 0; i < p->n_comments; i++) TRY(comment(p, p->comments[i]));
  p->n_comments = 0;
  p->target = next;
  return STATUS_OK;
}

static Status no_target(Parser *p) { return new_target(p, (Target){.kind = TARGET_NONE}); }

// ---- Values ---------------------------------------------------------------------------------------------------------------------

typedef enum Section { SECTION_INPUTS, SECTION_OUTPUTS, SECTION_INNER } Section;

static Status declare(Parser *p, Section section, const char *at, const char *value_name, const Type *type, Value **out) {
  Value *v = graph_find_value(p->graph, value_name);
  if (v && section == SECTION_INPUTS) return fail_at(p, at, STATUS_MALFORMED, "input '%s' is declared twice", value_name);
  if (v && type && v->type.dtype != DTYPE_NONE && !type_equal(&v->type, type)) {
    char a[240], b[240];
    type_text(&v->type, a, sizeof a);
    return fail_at(p, at, STATUS_MALFORMED, "'%s' is declared as %s and as %s", value_name, a, type_text(type, b, sizeof b));
  }
  if (!v) {
    v = graph_add_value(p->graph, value_name);
    if (section == SECTION_INPUTS) v->role = ROLE_INPUT;
  }
  if (type) v->type = *type;
  if (section == SECTION_INPUTS) ARENA_PUSH(p->arena, p->inputs, p->n_inputs, p->inputs_capacity, v);
  else if (section == SECTION_OUTPUTS) ARENA_PUSH(p->arena, p->outputs, p->n_outputs, p->outputs_capacity, v);
  else ARENA_PUSH(p->arena, p->inner, p->n_inner, p->inner_capacity, v);
  *out = v;
  return STATUS_OK;
}

static Status value_info(Parser *p, Section section) {
  TRY(no_target(p));
  const char *at = p->pos, *value_name;
  bool typed;
  Type type;
  Value *v = NULL;
  TRY(optional_type(p, &typed, &type));
  TRY(name(p, "the name of a value", false, &value_name));
  TRY(declare(p, section, at, value_name, typed ? &type : NULL, &v));
  if (section != SECTION_OUTPUTS && accept(p, '=')) {
    if (!typed) return fail_at(p, at, STATUS_MALFORMED, "'%s' has data and no type", value_name);
    if (v->weight) return fail_at(p, at, STATUS_MALFORMED, "'%s' has data twice", value_name);
    Weight *w;
    TRY(weight(p, v->name, &type, &w));
    v->weight = w;
    v->role = ROLE_CONST;
  }
  p->target = (Target){.kind = TARGET_VALUE, .value = v};
  return STATUS_OK;
}

static Status value_infos(Parser *p, Section section, char close) {
  if (!accept(p, close)) {
    do TRY(value_info(p, section));
    while (accept(p, ',') && peek(p) != close);
    TRY(expect(p, close, "after the last value"));
  }
  return no_target(p);
}

// ---- Nodes ----------------------------------------------------------------------------------------------------------------------

static Status tensor_attr(Parser *p, const char *attr_name, const Weight **out) {
  bool typed;
  Type type;
  TRY(optional_type(p, &typed, &type));
  if (!typed) BAD(p, "attribute %s is a tensor: float[2] {1.0, 2.0}", attr_name);
  if (peek(p) == '"' || is_letter(peek(p))) {
    const char *ignored;
    TRY(name(p, "the name of a tensor", true, &ignored));
  }
  accept(p, '=');
  Weight *w;
  TRY(weight(p, attr_name, &type, &w));
  *out = w;
  return STATUS_OK;
}

// A list in brackets; `item` reads one element into `at`.
static Status list_attr(Parser *p, size_t item_bytes, Status (*item)(Parser *, void *), const void **items, int64_t *n) {
  char *list = NULL;
  size_t count = 0, capacity = 0;
  TRY(expect(p, '[', "before a list"));
  if (!accept(p, ']')) {
    do {
      list = arena_grow(p->arena, list, count, &capacity, item_bytes);
      TRY(item(p, list + count * item_bytes));
      count++;
    } while (accept(p, ','));
    TRY(expect(p, ']', "after a list"));
  }
  *items = list;
  *n = (int64_t)count;
  return STATUS_OK;
}

static Status int_item(Parser *p, void *at) { return integer(p, at); }
static Status float_item(Parser *p, void *at) { return real(p, at, NULL); }
static Status string_item(Parser *p, void *at) { return string_literal(p, at); }

static Status attr_value(Parser *p, const AttrSpec *spec, void *at) {
  switch (spec->type) {
  case ATTR_INT: return integer(p, at);
  case ATTR_FLOAT: return real(p, at, NULL);
  case ATTR_STRING: return string_literal(p, at);
  case ATTR_INTS: return list_attr(p, sizeof(int64_t), int_item, (const void **)&((AttrInts *)at)->items, &((AttrInts *)at)->n);
  case ATTR_FLOATS: return list_attr(p, sizeof(float), float_item, (const void **)&((AttrFloats *)at)->items, &((AttrFloats *)at)->n);
  case ATTR_STRINGS: return list_attr(p, sizeof(char *), string_item, (const void **)&((AttrStrings *)at)->items, &((AttrStrings *)at)->n);
  case ATTR_TENSOR: return tensor_attr(p, spec->name, at);
  }
  return STATUS_OK;
}

enum { ATTRS_MAX = 64 };

static Status attributes(Parser *p, Node *n) {
  bool seen[ATTRS_MAX] = {0};
  do {
    const char *at = (skip(p), p->pos), *attr_name;
    TRY(name(p, "the name of an attribute", false, &attr_name));
    const AttrSpec *spec = attr_spec(n->op, attr_name);
    if (!spec) return fail_at(p, at, STATUS_MALFORMED, "%s has no attribute '%s'", n->op->name, attr_name);
    ptrdiff_t index = spec - n->op->attrs;
    if (index < ATTRS_MAX && seen[index]) return fail_at(p, at, STATUS_MALFORMED, "attribute '%s' is given twice", attr_name);
    if (index < ATTRS_MAX) seen[index] = true;
    if (accept(p, ':')) word(p);   // onnx.parser's type annotation: the row knows it
    TRY(expect(p, '=', "after the name of an attribute"));
    TRY(attr_value(p, spec, (char *)n->attrs + spec->offset));
  } while (accept(p, ','));
  return expect(p, '>', "after the attributes");
}

typedef struct Names { const char **items; const char **at; size_t count, capacity, at_capacity; } Names;

static Status value_names(Parser *p, char close, Names *out) {
  while (peek(p) != close && (p->pos < p->end)) {
    const char *value_name = "", *at = p->pos;
    if (peek(p) != ',') TRY(name(p, "the name of a value", true, &value_name));
    size_t n = out->count;
    ARENA_PUSH(p->arena, out->at, n, out->at_capacity, at);
    ARENA_PUSH(p->arena, out->items, out->count, out->capacity, value_name);
    if (!accept(p, ',')) break;
  }
  return expect(p, close, "after the names of values");
}

static Status operator_row(Parser *p, const Op **out) {
  skip(p);
  const char *from = p->pos;
  char domain[128] = "";
  Slice s = word(p);
  while (s.bytes && accept(p, '.')) {
    size_t n = strlen(domain);
    if (n + s.bytes + 2 > sizeof domain) return fail_at(p, from, STATUS_UNSUPPORTED, "a domain of more than %zu characters", sizeof domain - 2);
    if (n) domain[n++] = '.';
    memcpy(domain + n, s.at, s.bytes);
    domain[n + s.bytes] = 0;
    s = word(p);
  }
  if (!s.bytes) BAD(p, "the name of an operator is missing");
  const char *op_name = arena_string_n(p->arena, s.at, s.bytes);
  *out = op_find(domain, op_name);
  if (!*out) return fail_at(p, from, STATUS_UNSUPPORTED, "no operator %s%s%s", domain, *domain ? "." : "", op_name);
  if (peek(p) == ':') return fail_at(p, p->pos, STATUS_UNSUPPORTED, "an overload of a function");
  return STATUS_OK;
}

static Status bind_inputs(Parser *p, const Names *names, Value ***out) {
  Value **inputs = ARENA_ARRAY(p->arena, Value *, names->count);
  for (size_t i = 0; i < names->count; i++) {
    if (!*names->items[i]) continue;
    inputs[i] = graph_find_value(p->graph, names->items[i]);
    if (!inputs[i]) return fail_at(p, names->at[i], STATUS_MALFORMED, "nothing gives '%s'", names->items[i]);
  }
  *out = inputs;
  return STATUS_OK;
}

static Status bind_outputs(Parser *p, const Names *names, Node *n) {
  n->outputs = ARENA_ARRAY(p->arena, Value *, names->count);
  n->n_outputs = (int)names->count;
  for (size_t i = 0; i < names->count; i++) {
    if (!*names->items[i]) continue;
    Value *v = graph_find_value(p->graph, names->items[i]);
    if (!v) v = graph_add_value(p->graph, names->items[i]);
    if (v->producer) return fail_at(p, names->at[i], STATUS_MALFORMED, "'%s' is produced twice", v->name);
    if (v->weight) return fail_at(p, names->at[i], STATUS_MALFORMED, "'%s' has data and is produced, too", v->name);
    v->producer = n;
    v->output_index = (int)i;
    n->outputs[i] = v;
  }
  return STATUS_OK;
}

static Status node(Parser *p) {
  TRY(no_target(p));
  const char *from = p->pos, *node_name = NULL;
  Names outputs = {0}, inputs = {0};
  const Op *op;
  if (accept(p, '[')) {
    TRY(name(p, "the name of a node", true, &node_name));
    TRY(expect(p, ']', "after the name of a node"));
  }
  TRY(value_names(p, '=', &outputs));
  TRY(operator_row(p, &op));
  const char *hint = node_name && *node_name ? node_name : outputs.count && *outputs.items[0] ? outputs.items[0] : op->name;
  Node *n = graph_make_node(p->graph, op, hint, 0, NULL, 0, NULL);
  if (node_name && *node_name && strcmp(n->name, node_name)) return fail_at(p, from, STATUS_MALFORMED, "two nodes are named '%s'", node_name);
  n->origin = n->name;
  bool has_attributes = accept(p, '<');
  if (has_attributes) TRY(attributes(p, n));
  TRY(expect(p, '(', "before the inputs of a node"));
  TRY(value_names(p, ')', &inputs));
  if (!has_attributes && accept(p, '<')) TRY(attributes(p, n));
  TRY(bind_inputs(p, &inputs, &n->inputs));
  n->n_inputs = (int)inputs.count;
  TRY(bind_outputs(p, &outputs, n));
  graph_append(p->graph, n);
  p->target = (Target){.kind = TARGET_NODE, .node = n};
  return STATUS_OK;
}

// ---- The whole ------------------------------------------------------------------------------------------------------------------

static Status opset_imports(Parser *p) {
  TRY(expect(p, '[', "before the opsets"));
  if (accept(p, ']')) return STATUS_OK;
  do {
    const char *domain;
    int64_t version;
    TRY(string_literal(p, &domain));
    TRY(expect(p, ':', "after a domain"));
    const char *at = (skip(p), p->pos);
    TRY(integer(p, &version));
    bool standard = !*domain || !strcmp(domain, "ai.onnx");
    if (standard && version != IR_OPSET)
      return fail_at(p, at, STATUS_UNSUPPORTED, "opset %" PRId64 "; graphs in text form have opset %d (a binary .onnx file is upgraded when read)",
                     version, IR_OPSET);
    if (!standard && version != 1)
      return fail_at(p, at, STATUS_UNSUPPORTED, "version %" PRId64 " of domain %s; version 1 is known", version, domain);
  } while (accept(p, ','));
  return expect(p, ']', "after the opsets");
}

static Status header(Parser *p) {
  if (!accept(p, '<')) return STATUS_OK;
  do {
    Slice key = word(p);
    TRY(expect(p, ':', "after a keyword"));
    if (slice_is(key, "opset_import")) {
      TRY(opset_imports(p));
    } else if (slice_is(key, "ir_version") || slice_is(key, "model_version")) {
      int64_t ignored;
      TRY(integer(p, &ignored));
    } else if (slice_is(key, "producer_name") || slice_is(key, "producer_version") || slice_is(key, "domain") || slice_is(key, "doc_string")) {
      const char *ignored;
      TRY(string_literal(p, &ignored));
    } else {
      return fail_at(p, key.at, STATUS_UNSUPPORTED, "keyword '%.*s' in the header", key.bytes > 40 ? 40 : (int)key.bytes, key.at);
    }
  } while (accept(p, ','));
  return expect(p, '>', "after the header");
}

// What was declared must come from somewhere; inputs and outputs go to the graph in order.
static Status settle(Parser *p) {
  Graph *g = p->graph;
  for (size_t i = 0; i < p->n_inputs; i++) {
    if (p->inputs[i]->producer) BAD(p, "input '%s' is produced by a node, too", p->inputs[i]->name);
    if (p->inputs[i]->role == ROLE_INPUT) graph_add_input(g, p->inputs[i]);
  }
  for (size_t i = 0; i < p->n_outputs; i++) {
    const Value *v = p->outputs[i];
    if (!v->producer && !v->weight && v->role == ROLE_ACTIVATION) BAD(p, "no node gives output '%s'", v->name);
    graph_add_output(g, p->outputs[i]);
  }
  for (size_t i = 0; i < p->n_inner; i++) {
    const Value *v = p->inner[i];
    if (!v->producer && !v->weight && v->role == ROLE_ACTIVATION) BAD(p, "no node gives '%s'", v->name);
  }
  return STATUS_OK;
}

static Status parse(Parser *p) {
  const char *graph_name;
  TRY(header(p));
  TRY(name(p, "the name of the graph", true, &graph_name));
  p->graph = graph_create(p->arena, graph_name);
  p->meta = meta_reader_create(p->graph);
  p->target = (Target){.kind = TARGET_GRAPH};
  TRY(expect(p, '(', "before the inputs of the graph"));
  TRY(value_infos(p, SECTION_INPUTS, ')'));
  TRY(expect(p, '=', "before the outputs of the graph"));
  TRY(expect(p, '>', "before the outputs of the graph"));
  TRY(expect(p, '(', "before the outputs of the graph"));
  TRY(value_infos(p, SECTION_OUTPUTS, ')'));
  if (accept(p, '<')) TRY(value_infos(p, SECTION_INNER, '>'));
  TRY(expect(p, '{', "before the nodes"));
  while (!accept(p, '}')) TRY(node(p));
  TRY(no_target(p));
  if (p->pos < p->end) return fail_at(p, p->pos, STATUS_UNSUPPORTED, "text after the graph; functions are not supported in text form");
  TRY(settle(p));
  return located(p, p->end, meta_finish(p->meta));
}

Status graph_parse(const char *text, size_t bytes, Arena *arena, Graph **out) {
  ARENA_GUARD(arena);
  Parser p = {.text = text, .pos = text, .end = text + bytes, .arena = arena};
  Status s = parse(&p);
  if (!s) *out = p.graph;
  ARENA_RETURN(arena, s);
}
