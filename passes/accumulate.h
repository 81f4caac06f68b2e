// The tree over micro-batches as nodes; shared by accumulate (per gradient) and insert_collectives (per bucket).
#ifndef TESSERA_ACCUMULATE_H
#define TESSERA_ACCUMULATE_H

#include "../ir/op.h"
#include "pass.h"

// TreeAccumulate over `count` micro-batches with fresh partial values "<name>.partial.<level>" (no producer). One partial where the recipe says so. Returns the sum.
Value *emit_tree(Emit *e, Value *x, int64_t count, const char *name);

// k = micro-batches / ranks, or a USAGE error with the numbers.
MUST_USE Status micro_per_rank(const CompileOptions *options, int64_t *out);

#endif
