#include "decimal.h"

#include <stdio.h>
#include <stdlib.h>

const char *decimal_text(double value, char out[DECIMAL_BYTES]) {
  for (int digits = 15; digits <= 17; digits++) {
    snprintf(out, DECIMAL_BYTES, "%.*g", digits, value);
    if (strtod(out, NULL) == value) break;
  }
  return out;
}
