// A plan for people: summary, ledger, steps, memory. Printed to a stream; nothing is kept. They fail when memory runs out, half printed.
#ifndef TESSERA_PLAN_TEXT_H
#define TESSERA_PLAN_TEXT_H

#include <stdio.h>

#include "../ir/plan.h"
#include "json_write.h"

MUST_USE Status plan_text_summary(FILE *to, const Graph *program);     // mesh, stage, buckets, bytes sent and saved, memory by category
MUST_USE Status plan_text_steps(FILE *to, const Graph *program);       // one line a step: phase, queue, operator, results, bytes, guards, waits, cause
MUST_USE Status plan_text_json(JsonWriter *w, const Graph *program);   // the object of `show PLAN --json`

#endif
