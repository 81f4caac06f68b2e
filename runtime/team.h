// Inside of a Team (team.c waits): for the local backend, which moves the bytes (comm_local.c), and the executor, which owns the team. Others see comm.h.
#ifndef TESSERA_TEAM_H
#define TESSERA_TEAM_H

#include <stdatomic.h>

#include "comm.h"

enum { TEAM_LINE_BYTES = 128 };     // two cache lines: the adjacent-line prefetcher pairs them

typedef enum SlotKind { SLOT_BARRIER, SLOT_ALL_GATHER, SLOT_REDUCE_SCATTER, SLOT_ALL_REDUCE } SlotKind;

// What a rank asks of the collective that it has entered. Read by all ranks between two barriers.
typedef struct Slot {
  SlotKind kind;
  Dtype dtype;
  int axis;
  int64_t elems;
  const void *in;
  void *out;
} Slot;

// What one thread of a rank counts and another thread of it waits for. `wanted`: the smallest count that a sleeper waits for.
typedef struct TeamCounter {
  _Alignas(TEAM_LINE_BYTES) _Atomic uint64_t count, wanted;
  _Atomic uint32_t event, sleepers;                      // futex word
} TeamCounter;

// One rank's own lines. Two slots: collective n uses n & 1, so that a slow reader of n is not overtaken by a writer of n + 1.
typedef struct TeamRank {
  _Alignas(TEAM_LINE_BYTES) Slot slots[2];
  _Alignas(TEAM_LINE_BYTES) _Atomic uint64_t arrived;    // barriers entered
  uint64_t sequence;                                     // collectives entered; only by the thread that issues this rank's collectives
  TeamCounter phases;                                    // begun by the rank's thread; its other queues wait for that
  TeamCounter steps[QUEUE_COUNT], joins[QUEUE_COUNT];    // steps and phases that each queue has ended, since the start
} TeamRank;

// Epochs of one region and rank (comm.h: view guards). They only grow, and in the same order on every rank.
typedef struct ViewEpochs {
  _Alignas(64) _Atomic uint64_t published;
  _Atomic uint64_t released;
} ViewEpochs;

struct LocalComm;

struct Team {
  int ranks, n_regions;
  int first_rank;                                        // of the axis: texts name first_rank + rank. Not 0 where there are several processes
  int64_t deadline_ns;
  bool spin;                                             // threads <= processors that this process may use
  TeamRank *rank;                                        // [ranks]
  ViewEpochs *views;                                     // [n_regions][ranks]
  struct LocalComm *comms;                               // [ranks]
  _Alignas(TEAM_LINE_BYTES) _Atomic uint32_t entered;    // ranks in the present barrier
  _Alignas(TEAM_LINE_BYTES) _Atomic uint64_t epoch;      // barriers completed
  _Alignas(TEAM_LINE_BYTES) _Atomic uint32_t barrier_event, view_event;   // futex words: change whenever a waiter should look again
  _Atomic uint32_t barrier_sleepers, view_sleepers;
  _Alignas(TEAM_LINE_BYTES) _Atomic uint32_t abort_state;                 // 0, 1: being written, 2: rank and text stand
  int abort_rank;                                        // of the axis
  void (*on_abort)(void *self);                          // called by the first team_abort, on its thread; NULL: nobody. Set before there are ranks
  void *on_abort_self;
  char abort_text[512];
};

typedef struct LocalComm {
  Comm base;                                             // must be first
  Team *team;
  bool failed;                                           // after an error the rank's view of the team is undefined: only errors follow
} LocalComm;

// Waits until all ranks have entered. Fails on abort and deadline.
MUST_USE Status team_barrier(Team *team, int rank);
// The same where the others may be waiting for other processes: fails so much later than the deadline, so that their error, which says more, comes first.
MUST_USE Status team_barrier_after(Team *team, int rank, int64_t longer_ns);

// Enters a collective: publishes `slot`, waits for all ranks, and fails on every rank alike when their slots differ. On success the
// slots of all ranks may be read by team_slot until this rank enters its next collective.
MUST_USE Status team_enter(Team *team, int rank, const Slot *slot);
const Slot *team_slot(const Team *team, int rank, int of_rank);

MUST_USE Status team_read_begin(Team *team, int rank, int32_t region);
MUST_USE Status team_read_end(Team *team, int rank, int32_t region);
MUST_USE Status team_write_begin(Team *team, int rank, int32_t region);
MUST_USE Status team_write_end(Team *team, int rank, int32_t region);

// Adds to a counter and wakes who waits for that.
void team_count(TeamCounter *counter, uint64_t more);
// Waits until the counter of queue `of` of the rank has come to `count`. Fails on abort, and when nothing is counted for twice the deadline; it never
// fails when `endless`: for what has nothing to do, and for what must have ended before its memory can be used again.
MUST_USE Status team_await(Team *team, int rank, TeamCounter *counter, uint64_t count, Queue of, bool endless);

// The same for a counter of the caller's own and a deadline since it last counted; the error says "rank R waited T s for WHAT".
MUST_USE Status team_await_for(Team *team, int rank, TeamCounter *counter, uint64_t count, const char *what, int64_t deadline_ns);
void team_counter_init(TeamCounter *counter);
void team_counter_wake(TeamCounter *counter);            // who waits for it looks again: the team was aborted

int team_abort_rank(Team *team);          // of the first team_abort: its rank; -1: none
const char *team_abort_text(Team *team);  // and its text; ""

extern const CommOps comm_local_ops;

#endif
