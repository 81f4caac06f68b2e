// The finished plan: read-only. A program is a Graph whose nodes are steps in execution order with phases, queues, waits, guards, and
// whose values have locations. There is one program per coordinate of the pipeline axis: one while there is no such axis.
//
// Rank-parametric: nothing in a program depends on the rank number but Location.rank_stride_bytes, so a plan for 1,024 ranks is as large
// as one for 2 and all ranks issue the same collectives in the same order.
#ifndef TESSERA_PLAN_H
#define TESSERA_PLAN_H

#include "graph.h"

// Sums and products of byte counts; what passes 2^63 - 1 stays there. A hostile plan can name any numbers.
static inline int64_t bytes_add(int64_t a, int64_t b) {
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}
static inline int64_t bytes_times(int64_t bytes, int64_t times) {
  int64_t product;
  return __builtin_mul_overflow(bytes, times, &product) ? INT64_MAX : product;
}

// Variants: programs of one model for other shapes of its inputs (batches of different sizes), compiled with the same options. Each micro-batch of
// a rank runs phase `micro` of the variant for its shapes; `init` and `update` always are program 0's. So variants agree on everything
// that is not within one micro-batch (plan_add_variant checks it): buckets, order and sizes of collectives and guards, and the places of fixed
// buffers. Each has its own constants, over the same bytes as other variants' constants and temporaries: the executor copies them in when a rank
// changes its variant. The arena is as large as the largest variant's. Not together with several programs.
#define PLAN_PROGRAM_AXIS "pp"    // mesh axis whose coordinates have programs of their own

typedef struct Plan {
  int n_programs;
  const Graph *const *programs;
  int n_variants;                  // at least 1; variants[0] is programs[0]
  const Graph **variants;
} Plan;

// Appends a variant; in `arena`, which must live as long as the plan. UNSUPPORTED when it does not agree, with what and where.
MUST_USE Status plan_add_variant(Plan *plan, const Graph *variant, Arena *arena);

// The variant that needs the largest arenas: what a process holds. What is sent is the same for all.
const Graph *plan_largest_variant(const Plan *plan);

// Does the buffer hold something beyond one micro-batch: shared regions, what lives on (but constants that only phase micro reads and `init` does not
// load), what micro hands to update? Its place depends on parameters and options only, never on the shapes of inputs; such buffers come first in
// the list. Of graphs from plan_memory; a plan file does not keep what it takes to tell.
bool buffer_is_fixed(const Graph *graph, const Buffer *buffer);

// One line of the ledger: a collective or a transfer between tiers, from the plan alone.
typedef struct LedgerEntry {
  uint32_t step;               // node id
  const char *op;              // "AllGather", ...
  const char *kind;            // key of by_collective: the op's name, or what the formula does not count: "frozen", "control", "optimizer"
  const char *axis;            // mesh axis; of a transfer: ""
  int64_t bytes;               // logical bytes sent, or moved between tiers, per rank and execution, at least 0
  int64_t times;               // executions per step: 1 or micro-batches per rank; 0: at start
  int64_t copied_bytes;        // logical bytes that are really copied per rank and execution; 0 for a view
  int64_t wire_bytes;          // that leave a process per execution, all its ranks together: what goes to others; headers are not counted
  Dtype wire, accumulator;     // accumulator NONE where nothing is summed
  int32_t bucket;              // -1: none
  Tier tier;                   // of a transfer: the tier that it goes to or comes from; its bytes are not sent. DEVICE: a collective
  Cause cause;
} LedgerEntry;

// Does the byte formula count it? Not frozen parameters, scalars and what only the optimizer needs.
bool ledger_in_formula(const LedgerEntry *entry);

// Ledger of program `program` in step order, the collectives; returns the number of entries. In `arena`.
size_t plan_ledger(const Graph *program, Arena *arena, LedgerEntry **out);

// The same of the transfers between tiers. Their bytes are not sent.
size_t plan_transfers(const Graph *program, Arena *arena, LedgerEntry **out);

// Are losses and parameters the same bits on other numbers of ranks, with the same micro-batches a step? Both numbers, ranks and micro-batches per
// rank, must be powers of two, and a rank's sums a tree: then all orders of summing over micro-batches are one tree. Otherwise bits repeat, but hold for
// these numbers only.
bool plan_bits_are_shared(const Graph *program);
enum { PLAN_BITS_BYTES = 256 };
const char *plan_bits_rule(const Graph *program, char out[PLAN_BITS_BYTES]);   // the same as a sentence; returns `out`

typedef struct TierBytes {
  int64_t rank_arena_bytes, process_arena_bytes;        // whole pages
  int64_t peak_bytes;          // per process: ranks_per_process * rank arena + process arena
  int64_t by_category[CATEGORY_COUNT];                  // per process, at the step where most is live; sums to peak_bytes
  int64_t fetched_bytes, offloaded_bytes;               // per rank and step
} TierBytes;

typedef struct PlanBytes {
  int64_t sent_bytes;          // logical, per rank and step, control and frozen included
  int64_t copied_bytes;
  int64_t wire_bytes;          // that leave a process per step; 0 where there is one
  int64_t saved_bytes;         // below the formula
  int64_t formula_bytes;       // (N-1)/N psi (r + 1), or (r + 2k) at stage 3; sums over micro-batches of 16-bit gradients count in f32
  int64_t padded_param_bytes;  // psi: trainable parameters as the model computes with them, padded
  TierBytes tiers[TIER_COUNT];
} PlanBytes;
enum { PLAN_PAGE_BYTES = 4096 };
int64_t plan_arena_bytes(const Graph *program, Scope scope, Tier tier);   // where the last buffer of that scope and tier ends, in whole pages
int64_t buffer_process_bytes(const Graph *graph, const Buffer *buffer);   // of a process: those of all its ranks
// Of a process: no places of these buffers, with these lives, take less of a tier. In whole pages; scratch in `arena`.
int64_t plan_lower_bound_bytes(const Graph *program, Tier tier, Arena *arena);
int64_t plan_process_bytes(const Graph *program, Tier tier);   // what a process holds of a tier: its ranks' arenas and its own
int64_t plan_budget_bytes(const Graph *program, Tier tier);    // that the recipe allows; INT64_MAX: no limit
PlanBytes plan_bytes(const Graph *program, Arena *arena);

#endif
