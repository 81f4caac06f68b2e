// Inside of the pass recompute: what is known of the graph, how a choice of kept values is replayed, and where the choice comes from.
//
// A value is *resident* when it is there in any case (parameters, constants, inputs, running statistics). Of the others, named by their roots (same_bytes:
// a view costs nothing), a choice says which are *kept* from forward to backward; backward computes again what else it reads. All tables live in the
// graph's arena and are indexed by ids of nodes and values; nothing here changes the graph but recompute.c. Threads: as Graph.
#ifndef TESSERA_RECOMPUTE_H
#define TESSERA_RECOMPUTE_H

#include "../ir/op.h"
#include "pass.h"

typedef struct ReplayRoom ReplayRoom;

typedef struct Recompute {
  Graph *graph;
  Arena *arena;
  size_t n_nodes, n_values;    // of before
  Value **roots;               // per value
  bool *resident;              // per value
  bool *fixed;                 // per root: its producer cannot run again; it is kept
  bool *needed;                // per root: backward reads it, or a view of it
  bool *trains;                // per value: a trainable parameter influences it
  double *seconds;             // per node: as the rows' costs say, on the machine that `simulate` takes by default
  // Forward nodes that backward's reading follows from, in order; a *cut* c lies between forward[c] and forward[c + 1].
  Node **forward;
  size_t n_forward;
  ReplayRoom *room;            // tables that one replay after the other uses
  uint32_t *made, *last;       // per root: place in `forward` of its producer, and of the last node there that reads it; UINT32_MAX: none
} Recompute;

// A step of the new order: the node itself, or its copy for backward.
typedef struct Turn { uint32_t node; bool copy; } Turn;

typedef struct Replay {
  Turn *turns;
  size_t n_turns;
  bool *copied;                // per node
  bool *moved;                 // per node: forward does without it, so it runs for backward alone
  bool *copy_read;             // per value: somebody reads the copy's
  int64_t peak_bytes;          // most bytes alive at a time: of inputs, values of the model and gradients of such; not of parameters or their gradients
  double seconds;              // of what runs twice
} Replay;

// Must `reader` take the copy's `v`? Backward nodes and copies read copies of what is not kept.
bool recompute_takes_copy(const Recompute *r, const bool *kept, const Value *v);
// What a copy of `node` reads in place of input `i`: in training, BatchNormalization's result does not depend on the running statistics that it is given,
// which may have been written over; its own new ones are there.
Value *recompute_input(const Node *node, int i);

ReplayRoom *recompute_replay_room(const Recompute *r);
Replay recompute_replay(const Recompute *r, const bool *kept);         // its tables hold until the next one

bool *recompute_keep_all(const Recompute *r);                          // what backward reads
void recompute_keep_cut(const Recompute *r, size_t cut, bool *kept);   // what lives across the cut
void recompute_keep_from(const Recompute *r, size_t place, bool *kept);// what backward reads of forward[place] and later

// The three choices. Cuts are ascending; behind the last one, what backward reads is kept: backward begins there.
size_t recompute_find_blocks(const Recompute *r, bool **cuts);         // per cut: does it bound a block? Returns the number of blocks
bool *recompute_keep_cuts(const Recompute *r, const bool *cuts);
bool *recompute_keep_least(const Recompute *r, bool **cuts);           // the cuts with the smallest peak
MUST_USE Status recompute_keep_budget(const Recompute *r, int64_t budget_bytes, bool **kept);

#endif
