// What differs between two graphs whose parts are matched (ir/graph_match.h), as a list that people and programs read.
#ifndef TESSERA_GRAPH_DIFF_H
#define TESSERA_GRAPH_DIFF_H

#include "../ir/graph_match.h"
#include "metrics.h"

typedef enum DiffKind { DIFF_REMOVED, DIFF_ADDED, DIFF_CHANGED, DIFF_MOVED, DIFF_KIND_COUNT } DiffKind;
const char *diff_kind_name(DiffKind kind);   // "removed", ...

typedef struct Difference {
  Topic topic;
  DiffKind kind;
  const char *what;            // of what: "AllGather for 'w1'", "buffer of 'h'", "parameter 'w1'", "option lr"
  const char *field;           // changed: which property; NULL where `what` says it all
  const char *before, *after;  // as text; NULL: it is not there
  int64_t step_a, step_b;      // -1: of no step there
} Difference;

typedef struct GraphDiff {
  Difference *items;           // by topic, then in order of steps
  size_t n_items, capacity;
  const char **notes;          // what differs and does not count: names, paths
  size_t n_notes, notes_capacity;
} GraphDiff;

// Compares everything that the graphs hold but names of nodes and of computed values, documentation, contents of parameters and the places of their
// bytes. Two graphs without a Difference do the same, in the same order, at the same addresses. Under the caller's ARENA_GUARD.
GraphDiff *graph_diff(const GraphMatch *match, Arena *arena);

#endif
