// Writes JSON with shortest decimals that read back to the same double (jansson, which reads JSON here, prints 17 digits).
//
// Keys are NULL inside arrays. Numbers that JSON cannot hold (NaN, infinities) become null; bytes that are no UTF-8 become U+FFFD.
// The caller nests begin and end correctly and checks ferror(to) at the end.
#ifndef TESSERA_JSON_WRITE_H
#define TESSERA_JSON_WRITE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct JsonWriter {
  FILE *to;
  int depth;
  bool has_item;           // at the current depth
  bool in_page;            // '<' is written as \u003c, so that the JSON may stand in HTML
} JsonWriter;

void json_write_object(JsonWriter *w, const char *key);
void json_write_end_object(JsonWriter *w);
void json_write_array(JsonWriter *w, const char *key);
void json_write_end_array(JsonWriter *w);
void json_write_text(JsonWriter *w, const char *key, const char *text);    // NULL: null
void json_write_int(JsonWriter *w, const char *key, int64_t value);
void json_write_real(JsonWriter *w, const char *key, double value);
void json_write_bool(JsonWriter *w, const char *key, bool value);
void json_write_raw(JsonWriter *w, const char *key, const char *json);       // text that is JSON already
void json_write_null(JsonWriter *w, const char *key);

#endif
