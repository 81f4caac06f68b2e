#include "json_write.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/decimal.h"

// Length of the well-formed UTF-8 sequence at `s` (RFC 3629), 0 when there is none.
static int utf8_length(const unsigned char *s) {
  if (s[0] < 0x80) return 1;
  int n = s[0] >= 0xC2 && s[0] <= 0xDF ? 2 : (s[0] & 0xF0) == 0xE0 ? 3 : s[0] >= 0xF0 && s[0] <= 0xF4 ? 4 : 0;
  for (int i = 1; i < n; i++)
    if ((s[i] & 0xC0) != 0x80) return 0;
  if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) || (s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F)) return 0;
  return n;
}

static void write_quoted(const JsonWriter *w, const char *text) {
  FILE *to = w->to;
  fputc('"', to);
  for (const unsigned char *p = (const unsigned char *)text; *p;) {
    int n = utf8_length(p);
    if (n == 0) fputs("\\ufffd", to);
    else if (*p == '"' || *p == '\\') fprintf(to, "\\%c", *p);
    else if (*p == '\n') fputs("\\n", to);
    else if (*p < 0x20 || (*p == '<' && w->in_page)) fprintf(to, "\\u%04x", *p);
    else fwrite(p, 1, (size_t)n, to);
    p += n ? n : 1;
  }
  fputc('"', to);
}

// Comma, line break (outer levels only) and key before a value.
static void begin_value(JsonWriter *w, const char *key) {
  if (w->has_item) fputc(',', w->to);
  if (w->depth > 0 && w->depth <= 2) fprintf(w->to, "\n%*s", w->depth, "");
  else if (w->has_item) fputc(' ', w->to);
  w->has_item = true;
  if (!key) return;
  write_quoted(w, key);
  fputs(": ", w->to);
}

static void begin_nested(JsonWriter *w, const char *key, char bracket) {
  begin_value(w, key);
  fputc(bracket, w->to);
  w->depth++;
  w->has_item = false;
}

static void end_nested(JsonWriter *w, char bracket) {
  w->depth--;
  fputc(bracket, w->to);
  w->has_item = true;
  if (w->depth == 0) fputc('\n', w->to);
}

void json_write_object(JsonWriter *w, const char *key) { begin_nested(w, key, '{'); }
void json_write_end_object(JsonWriter *w) { end_nested(w, '}'); }
void json_write_raw(JsonWriter *w, const char *key, const char *json) {
  begin_value(w, key);
  fputs(json, w->to);
}
void json_write_array(JsonWriter *w, const char *key) { begin_nested(w, key, '['); }
void json_write_end_array(JsonWriter *w) { end_nested(w, ']'); }

void json_write_null(JsonWriter *w, const char *key) {
  begin_value(w, key);
  fputs("null", w->to);
}

void json_write_text(JsonWriter *w, const char *key, const char *text) {
  if (!text) {
    json_write_null(w, key);
    return;
  }
  begin_value(w, key);
  write_quoted(w, text);
}

void json_write_int(JsonWriter *w, const char *key, int64_t value) {
  begin_value(w, key);
  fprintf(w->to, "%" PRId64, value);
}

void json_write_real(JsonWriter *w, const char *key, double value) {
  if (!isfinite(value)) {
    json_write_null(w, key);
    return;
  }
  char text[DECIMAL_BYTES];
  begin_value(w, key);
  fputs(decimal_text(value, text), w->to);
  if (!text[strcspn(text, ".e")]) fputs(".0", w->to);
}

void json_write_bool(JsonWriter *w, const char *key, bool value) {
  begin_value(w, key);
  fputs(value ? "true" : "false", w->to);
}
