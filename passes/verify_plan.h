// The static proof of a plan: what must hold whatever the data, derived again from steps, types, locations and guards alone. It trusts
// neither the passes nor what plan_memory recorded of lifetimes.
// Every defect has a stable code (verify_codes.c; `tessera verify --codes` lists them).
#ifndef TESSERA_VERIFY_PLAN_H
#define TESSERA_VERIFY_PLAN_H

#include "../ir/plan.h"

typedef struct PlanDefect {
  const char *code;
  int64_t step;            // node id; -1: no step is concerned
  const char *op;          // NULL: no step
  const char *param;       // parameter concerned; NULL: unknown
  const char *what;        // a sentence
  int program;             // whose step it is
} PlanDefect;

typedef struct PlanCode { const char *group, *code, *meaning; } PlanCode;
extern const PlanCode plan_codes[];                    // by groups; ends with code NULL
const PlanCode *plan_code_find(const char *code);      // NULL: no such code

enum { PLAN_DEFECTS_MAX = 200 };   // a broken plan has thousands of consequences; the first ones tell

// What a proof looked at.
typedef struct PlanCounts {
  size_t collectives, waits;
  size_t reads;            // of values, each compared with what its bytes hold, on every rank and round that was walked
  size_t accesses;         // of steps to ranges of bytes, each compared with those of other queues before it
} PlanCounts;

// Proves one program. Defects in order of discovery, in `arena`; none: *n_out = 0. `counts` may be NULL. Fails only when memory runs out; a hostile program gives
// defects. The program must have come from the importer, the parser or make_plan (names and pointers are whole).
// The same of several programs (ir/plan.h), and that they meet in their collectives.
MUST_USE Status verify_programs(const Graph *const *programs, int n, Arena *arena, const PlanDefect **out, size_t *n_out, PlanCounts *counts);
MUST_USE Status verify_plan(const Graph *program, Arena *arena, const PlanDefect **out, size_t *n_out, PlanCounts *counts);

#endif
