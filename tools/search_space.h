// The values that a search tries, and the state of a running one. Shared by search.c and search_space.c.
#ifndef TESSERA_SEARCH_SPACE_H
#define TESSERA_SEARCH_SPACE_H

#include "search.h"

// Dimensions from the command line, the model's inputs and the budgets. In flow->arena.
MUST_USE Status search_space(Search *search);

// The micro-batch of `first`, which recomputes nothing, is known: shares of its activations become sizes.
MUST_USE Status search_space_shares(Search *search, const Candidate *first);

// The sizes of buckets that make sense for so many bytes of parameters.
MUST_USE Status search_space_buckets(Search *search, int64_t param_bytes);

#endif
