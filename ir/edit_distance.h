// How many letters must be put in, taken out or replaced to make one word of another (Levenshtein).
#ifndef TESSERA_EDIT_DISTANCE_H
#define TESSERA_EDIT_DISTANCE_H

#include <stddef.h>

enum { EDIT_DISTANCE_FAR = 255 };
size_t edit_distance(const char *a, const char *b);      // texts beyond 255 bytes are EDIT_DISTANCE_FAR from everything

#endif
