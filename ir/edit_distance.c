#include "edit_distance.h"

#include <string.h>

static size_t min_size(size_t a, size_t b) { return a < b ? a : b; }

size_t edit_distance(const char *a, const char *b) {
  size_t na = strlen(a), nb = strlen(b), row[EDIT_DISTANCE_FAR + 1];
  if (na > EDIT_DISTANCE_FAR || nb > EDIT_DISTANCE_FAR) return EDIT_DISTANCE_FAR;
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
