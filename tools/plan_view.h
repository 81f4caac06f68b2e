// What is told of a plan beyond its steps: bytes by cause, layers, memory over the steps. Computed once; every form of `show` (text, JSON, graph, page)
// prints from it, so that they agree.
//
// Ownership: everything lies in the given arena; the program is borrowed. Threads: one.
#ifndef TESSERA_PLAN_VIEW_H
#define TESSERA_PLAN_VIEW_H

#include "../passes/simulate.h"
#include "plan_layers.h"

// Live bytes of a tier at each step, per process: what ranks have of their own counts once per rank.
typedef struct MemoryCurve {
  Tier tier;
  const int64_t *live[CATEGORY_COUNT];   // [n_nodes]; NULL: the tier holds nothing of that category
  const int64_t *total;        // [n_nodes]
  uint32_t peak;               // the first step of those where most is live
  int64_t arena_bytes;         // reserved: the peak and what alignment and fragmentation cost
  int64_t lower_bound_bytes;   // no places of these buffers take less
} MemoryCurve;

static inline double curve_above_bound(const MemoryCurve *curve) {
  return curve->lower_bound_bytes > 0 ? (double)curve->arena_bytes / (double)curve->lower_bound_bytes : 1;
}

// Why a rank sends: sums over the ledger, per step.
typedef struct CauseBytes { const char *what, *pass; int64_t bytes, copied_bytes, count; } CauseBytes;

// A line of the account from the least that data parallelism can send to what the plan sends.
typedef enum AccountKind { ACCOUNT_LEAST, ACCOUNT_MORE, ACCOUNT_FORMULA, ACCOUNT_LESS, ACCOUNT_SENT } AccountKind;
const char *account_kind_name(AccountKind kind);     // "least", "more", "formula", "saved", "sent"
typedef struct AccountLine {
  AccountKind kind;
  int64_t bytes;               // LESS: what is saved, positive
  const char *term;            // "(N-1)/N psi"; NULL: none
  const char *why;
} AccountLine;

typedef struct PlanView {
  const Graph *graph;
  PlanBytes bytes;
  const LedgerEntry *ledger;
  size_t n_ledger;
  const LedgerEntry *transfers;            // between tiers
  size_t n_transfers;
  const int32_t *entry_of_step;            // [n_nodes]: index in the ledger, -1: sends nothing
  PlanLayers layers;
  const CauseBytes *causes;
  size_t n_causes;
  const AccountLine *account;  // its parts sum: LEAST + MORE = FORMULA; FORMULA - LESS + further MORE = SENT
  size_t n_account;
  MemoryCurve curves[TIER_COUNT];          // of tiers that hold something
  int n_curves;
  size_t n_steps[PHASE_COUNT];
  bool queues[QUEUE_COUNT];    // used
  Machine machine;             // that times are estimated for
  Simulation estimate;         // of a training step on it; of phase init the steps follow one another
  const char *no_estimate;     // why there is none; NULL: there is one
} PlanView;

PlanView plan_view(const Graph *program, Arena *arena);

static inline double view_step_seconds(const PlanView *view, uint32_t step) {
  return view->no_estimate ? 0 : view->estimate.steps[step].end_s - view->estimate.steps[step].start_s;
}

// What a collective is for: "parameters for forward", "gradients", ... The parts of the bytes sent by cause.
const char *ledger_purpose(const Graph *program, const LedgerEntry *entry);

// Indices of the device buffers, by the bytes that a process spends on them, largest first; returns how many there are.
size_t plan_largest_buffers(const Graph *program, Arena *arena, uint32_t **out);

#endif
