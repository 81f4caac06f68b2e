#include "style.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

Style style_for(FILE *to, const char *when) {
  Style style = {.to = to};
  if (when && !strcmp(when, "always")) style.colour = true;
  else if (when && !strcmp(when, "never")) style.colour = false;
  else {
    const char *no_colour = getenv("NO_COLOR"), *term = getenv("TERM");
    style.colour = !(no_colour && *no_colour) && !(term && !strcmp(term, "dumb")) && isatty(fileno(to)) == 1;
  }
  return style;
}

static const char *const sequences[TONE_COUNT] = {
  [TONE_HEADING] = "\033[1m", [TONE_DIM] = "\033[2m", [TONE_NUMBER] = "\033[36m", [TONE_SEND] = "\033[33m", [TONE_NAME] = "\033[32m", [TONE_WARN] = "\033[31m",
};

const char *style_on(const Style *style, Tone tone) { return style->colour ? sequences[tone] : ""; }
const char *style_off(const Style *style) { return style->colour ? "\033[0m" : ""; }

void style_heading(const Style *style, const char *title, const char *note) {
  fprintf(style->to, "\n%s%s%s", style_on(style, TONE_HEADING), title, style_off(style));
  if (note) fprintf(style->to, "  %s%s%s", style_on(style, TONE_DIM), note, style_off(style));
  fputc('\n', style->to);
}

const char *count_text(int64_t count, char out[COUNT_BYTES]) {
  char digits[COUNT_BYTES];
  int n = snprintf(digits, sizeof digits, "%" PRId64, count), used = 0;
  for (int i = 0; i < n; i++) {
    int left = n - i;
    if (i > 0 && left % 3 == 0 && digits[i - 1] != '-') out[used++] = ',';
    out[used++] = digits[i];
  }
  out[used] = 0;
  return out;
}

static bool is_continuation(char c) { return ((unsigned char)c & 0xc0) == 0x80; }     // of a character of UTF-8

const char *name_text(const char *name, int columns, char out[NAME_BYTES]) {
  int n = (int)strlen(name);
  if (columns > NAME_BYTES - 1) columns = NAME_BYTES - 1;
  if (n <= columns) snprintf(out, NAME_BYTES, "%s", name);
  else {
    int tail = (columns - 2 + 1) / 2, head = columns - 2 - tail;
    while (head > 0 && is_continuation(name[head])) head--;      // no character is cut in two
    while (tail > 0 && is_continuation(name[n - tail])) tail--;
    snprintf(out, NAME_BYTES, "%.*s..%s", head, name, name + n - tail);
  }
  return out;
}

const char *seconds_text(double seconds, char out[32]) {
  static const struct { double unit; const char *name; } units[] = {{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}, {1e-9, "ns"}};
  int u = 0;
  while (u < 3 && fabs(seconds) < units[u].unit) u++;
  double v = seconds / units[u].unit;
  snprintf(out, 32, fabs(v) >= 100 ? "%.0f %s" : fabs(v) >= 10 ? "%.1f %s" : "%.2f %s", v, units[u].name);
  return out;
}
