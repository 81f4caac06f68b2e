// Rows of other domains that mean what a row of ours means with its operands in another order: they run our row's kernels on a node made on the
// spot. Attributes of the same name and type are handed over; `fix` sets the others.
#ifndef TESSERA_ADAPTER_H
#define TESSERA_ADAPTER_H

#include "kernel.h"

enum { ADAPTER_OPERANDS = 64 };

typedef struct Adapted {
  Node node;                                     // of our row
  Value *inputs[ADAPTER_OPERANDS], *outputs[ADAPTER_OPERANDS];
  union { char bytes[192]; int64_t align; } attrs;
  bool flat;                                     // every float operand is seen as `rows`
  Type rows;
  Value made;                                    // a constant that `fix` may give our row as an input
  Weight made_weight;
  int64_t made_items[ADAPTER_OPERANDS];
} Adapted;

typedef struct Adapter {
  const Op *row, *to;
  int8_t inputs[8], n_inputs;                    // for each input of ours: the given node's; -1: absent. n_inputs -1: as they are
  int8_t n_outputs;                              // -1: as they are
  Status (*fix)(const Node *node, Adapted *out); // may be NULL
} Adapter;

// For the functions of a row: the adapter of node->op is looked up in `table` (ended by row NULL).
MUST_USE Status adapter_infer(const Adapter *table, Node *node, Arena *arena);
MUST_USE Status adapter_run(const Adapter *table, const KernelContext *context, bool reference);
MUST_USE Status adapter_prepare(const Adapter *table, KernelPrepare *prepare, bool make);
void adapter_cost(const Adapter *table, const Node *node, NodeCost *cost);

// Our row's attribute of that name; the caller knows its type.
void *adapted_attr(Adapted *adapted, const char *name);

#endif
