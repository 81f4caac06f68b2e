#include "hex.h"

#include <inttypes.h>
#include <stdio.h>

char *hex128_text(uint64_t high, uint64_t low, char out[HEX128_BYTES]) {
  snprintf(out, HEX128_BYTES, "%016" PRIx64 "%016" PRIx64, high, low);
  return out;
}
