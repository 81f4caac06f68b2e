// The static proof of a plan: what must hold whatever the data, derived again from steps, types, locations and guards alone. It trusts
// neither the passes nor what plan_memory recorded of lifetimes.
//
// Codes are stable:
//   structure            ids, phases, waits or references are inconsistent
//   location             a value leaves its buffer, a buffer its arena, or an address is not aligned
//   workspace            the kernel's workspace or scratchpad is smaller than it needs
//   agreement            a collective's sizes, types, axis or parts fit neither each other nor the mesh
//   bucket               a bucket's layout: starts, shards, an element owned twice or by nobody
//   graph                verify_graph refuses the graph: arity, attributes, types that operators do not make, tables
//   recipe               what the plan says of itself (ranks, processes, stage, reduction) is not what its steps do
//   wrong_load           a start value is not that of its bucket, constant or running statistics
//   wrong_parameter      a parameter is taken out of another bucket, of a shard, or from another place
//   wrong_gradient       a bucket's gradient joins another value, or an optimizer step takes another bucket's
//   wrong_state          an optimizer state is another bucket's, another step's, or does not start at 0
//   wrong_input          a step takes a value for what it is not: a counter, a rate, the loss, a shard
//   accumulation         a sum is not over the micro-batches of the rank, each once
//   never_reduced        a gradient, the loss or the norm is used without being summed over ranks
//   reduced_twice        ... summed more than once, or a bucket has more than one reduction
//   reduced_incomplete   ... summed over ranks in every micro-batch after it was summed over micro-batches
//   norm                 the norm leaves out a bucket's gradient, takes it twice, or mixes shards and whole ones
//   never_updated, updated_twice, not_carried     a trainable bucket and its optimizer step
//   placement, label     placement, or name, role and bucket, by which checkpoints find a value, are not those of what it is
//   report               what is reported as loss, norm or count is not that
//   overwritten          a step reads bytes that another value has overwritten (two live values overlap)
//   uninitialized        a step reads bytes that nothing has written
//   overlap              a step's inputs, outputs and workspace share bytes although its operator does not allow it
//   alias                a view does not lie where its operator says
//   carry                a value becomes what it is not, or does not lie where its successor is read
//   bad_wait             a wait is for no step, itself, a later one, one of its own queue or of another phase, or stands twice
//   missing_wait         a step reads what a step of another queue makes, gathers or releases, and does not wait for it
//   race                 two steps of different queues touch the same bytes, one writes, and no wait orders them
//   deadlock             steps wait for each other in a circle, on one rank or across ranks
//   queue                collectives lie on more than one queue
//   use_before_gather, use_after_release, never_released, double_gather, release_without_gather    lifetimes of gathered views
//   unguarded_write, write_while_open, shared_write      writes to bytes that other ranks read
//   bytes                sent + saved bytes differ from the formula
#ifndef TESSERA_VERIFY_PLAN_H
#define TESSERA_VERIFY_PLAN_H

#include "../ir/plan.h"

typedef struct PlanDefect {
  const char *code;
  int64_t step;            // node id; -1: no step is concerned
  const char *op;          // NULL: no step
  const char *param;       // parameter concerned; NULL: unknown
  const char *what;        // a sentence
} PlanDefect;

enum { PLAN_DEFECTS_MAX = 200 };   // a broken plan has thousands of consequences; the first ones tell

// What a proof looked at.
typedef struct PlanCounts {
  size_t collectives, waits;
  size_t accesses;         // of steps to ranges of bytes, each compared with those of other queues before it
} PlanCounts;

// Proves one program. Defects in order of discovery, in `arena`; none: *n_out = 0. `counts` may be NULL. Fails only when memory runs out; a hostile program gives
// defects. The program must have come from the importer, the parser or make_plan (names and pointers are whole).
MUST_USE Status verify_plan(const Graph *program, Arena *arena, const PlanDefect **out, size_t *n_out, PlanCounts *counts);

#endif
