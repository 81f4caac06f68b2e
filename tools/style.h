// Text for people: colour on terminals, numbers that can be read, columns. Threads: any; nothing is kept.
#ifndef TESSERA_STYLE_H
#define TESSERA_STYLE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef enum Tone { TONE_HEADING, TONE_DIM, TONE_NUMBER, TONE_SEND, TONE_NAME, TONE_WARN, TONE_COUNT } Tone;
typedef struct Style { FILE *to; bool colour; } Style;

// `when`: "always", "never", or "auto" (also NULL): on terminals, unless NO_COLOR is set or TERM is "dumb".
Style style_for(FILE *to, const char *when);

const char *style_on(const Style *style, Tone tone);     // escape sequences, "" without colour
const char *style_off(const Style *style);
void style_heading(const Style *style, const char *title, const char *note);   // a blank line, the title, a dim note (may be NULL)

// "1,569,993,740"; returns `out`.
enum { COUNT_BYTES = 32 };
const char *count_text(int64_t count, char out[COUNT_BYTES]);

// At most `columns` of the name: the middle gives way, since the ends tell most; returns `out`.
enum { NAME_BYTES = 128 };
const char *name_text(const char *name, int columns, char out[NAME_BYTES]);

// "1.35 s", "320 ms", "12.0 us"; returns `out`.
const char *seconds_text(double seconds, char out[32]);

#endif
