// Assertions on the command line: --expect 'METRIC OP VALUE', of `opt`, `show` and `compile`.
//
//   METRIC  a name of tools/metrics.h: steps, sent_bytes, peak.device, AllGather, AllGather.bytes, ...
//   OP      == != <= >= < >
//   VALUE   a number, not negative, with a unit: of bytes B, KiB, MiB, GiB, TiB (powers of 1024), kB, KB, MB, GB, TB (of 1000); of counts k, M, G
//           or another metric, with or without a factor: formula_bytes, 1.01*padded_param_bytes
// Blanks between the parts do not matter. Comparisons are of the exact value with the exact number: 3.1MiB is 3250585.6 bytes.
#ifndef TESSERA_EXPECT_H
#define TESSERA_EXPECT_H

#include "metrics.h"
#include "options.h"

// Is every --expect well-formed, and every name known? USAGE if not: to be asked before any work is done.
MUST_USE Status expect_parse(const Options *options);

// Compares. Each assertion that does not hold is named on stderr with the actual value; CHECK without a text (exit 1) when there is any.
MUST_USE Status expect_check(const Options *options, const Graph *graph);

#endif
