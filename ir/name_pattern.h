// Names chosen by patterns: what --params, --freeze, --group and their like take.
#ifndef TESSERA_NAME_PATTERN_H
#define TESSERA_NAME_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

enum { NAME_PATTERN_BYTES = 512 };

// Takes the next pattern off a comma-separated list; false at its end. Longer patterns than out_bytes are left out.
bool name_pattern_next(const char **list, char *out, size_t out_bytes);

// Does `name` match one of the patterns (with * ? [...], as a shell knows them) of a comma-separated list? NULL: no.
bool name_pattern_matches(const char *list, const char *name);

#endif
