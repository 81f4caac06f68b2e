// Doubles as decimal text in attributes, metadata and JSON: nothing is lost, and nothing is written that says no more.
#ifndef TESSERA_DECIMAL_H
#define TESSERA_DECIMAL_H

enum { DECIMAL_BYTES = 32 };
// The shortest of %.15g, %.16g, %.17g that reads back as `value`; returns `out`. Any thread.
const char *decimal_text(double value, char out[DECIMAL_BYTES]);

#endif
