#include "name_pattern.h"

#include <fnmatch.h>
#include <string.h>

bool name_pattern_next(const char **list, char *out, size_t out_bytes) {
  while (*list && **list) {
    size_t n = strcspn(*list, ",");
    const char *from = *list;
    *list += n + ((*list)[n] == ',');
    if (!n || n >= out_bytes) continue;
    memcpy(out, from, n);
    out[n] = 0;
    return true;
  }
  return false;
}

bool name_pattern_matches(const char *list, const char *name) {
  for (char pattern[NAME_PATTERN_BYTES]; name_pattern_next(&list, pattern, sizeof pattern);)
    if (!fnmatch(pattern, name, 0)) return true;
  return false;
}
