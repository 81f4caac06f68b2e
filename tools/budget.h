// Budgets of memory for `compile` and `run`: the cheapest way within them that changes no result but for the size of micro-batches, which is chosen only
// where --global-batch asks for it. Without a budget nothing is chosen.
#ifndef TESSERA_BUDGET_H
#define TESSERA_BUDGET_H

#include "search.h"

// Does the command line give a budget, or a global batch, and the file is a model?
bool budget_is_asked(const Flow *flow, const Options *options);

// *out: the options with what was chosen, ended with options_finish; its texts lie in flow->arena. What was chosen, and why, goes to stderr and into
// flow->chosen. RESOURCE: nothing fits. `data`: as search_run has it; streams must be open. run: of `run`, not of `compile`.
MUST_USE Status budget_choose(Flow *flow, const Options *options, const Data *data, bool run, Options *out);

#endif
