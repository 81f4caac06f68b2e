// 128-bit hashes as text: 32 lower-case hex digits, the higher word first. Fingerprints, hashes of contents, locations "#..." in the text form.
#ifndef TESSERA_HEX_H
#define TESSERA_HEX_H

#include <stdint.h>

enum { HEX128_BYTES = 33 };   // with the zero at the end
char *hex128_text(uint64_t high, uint64_t low, char out[HEX128_BYTES]);   // returns `out`

#endif
