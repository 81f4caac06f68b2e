// Inside of comm_nodes.h: what its collectives (comm_nodes.c) and the thread that moves their messages (nodes_thread.c) share.
#ifndef TESSERA_NODES_H
#define TESSERA_NODES_H

#include <pthread.h>

#include "../kernels/rank_tree.h"
#include "comm_nodes.h"
#include "team.h"

enum {
  NODES_MAGIC = 0x4e535354,
  LANE_SLOTS = 3,                          // parts of a collective under way at a time: 0, 1: its data; 2: headers
  LANE_HEADERS = 2,
  HEADER_BYTES = 64,
  HEADER_ROOM = HEADER_BYTES + RANK_WHOLE_BYTES,
  CONTROL_TAG = TRANSPORT_TAG_MAX,
};

// What two lanes tell each other first, so that ranks that ask for different things see it. A small all-reduce's summands follow it in the same message.
typedef struct NodesHeader {
  uint32_t magic;
  int32_t kind, dtype, axis, sums, rank;
  int64_t elems, sequence, data_bytes;
  char unused[HEADER_BYTES - 6 * 4 - 3 * 8];
} NodesHeader;
_Static_assert(sizeof(NodesHeader) == HEADER_BYTES, "what travels");

struct Lane;
typedef struct NodesMessage {
  TransportMessage base;                   // must be first
  struct Lane *lane;                       // NULL: control
  int slot;                                // of the lane
  bool exact;                              // a receive of just so many bytes
  struct NodesMessage *next;               // handed over and not yet posted
} NodesMessage;

typedef struct Lane {
  Comm base;                               // must be first
  struct Nodes *nodes;
  int local;                               // rank within the team
  bool failed;                             // after an error only errors follow
  int64_t sequence;                        // collectives entered; by the thread that issues them
  _Atomic int64_t entered;                 // the same for others to see
  _Atomic(const char *) in;                // name of the collective that it is in; NULL: none
  _Atomic(Status) status;                  // why the thread stopped the team on behalf of this lane
  Slot slot;                               // of the present collective
  bool sums;
  // Messages: a pool for each slot, so many of it handed over in this collective; `moved` counts those that are done, `handed` those handed over, ever.
  NodesMessage *messages[LANE_SLOTS];
  int used[LANE_SLOTS];
  uint64_t handed[LANE_SLOTS];
  TeamCounter *moved;                      // [LANE_SLOTS]
  NodesHeader *headers;                    // [processes + 1][HEADER_ROOM]: what came; the last one goes out
  char *work[2];                           // of data slots 0, 1: see comm_nodes.c
  // Of the thread.
  int64_t last_ns;                         // when one of its messages was handed over or done
  int n_open;                              // messages under way
} Lane;

typedef enum ControlKind { CONTROL_ABORT, CONTROL_ASK, CONTROL_ANSWER, CONTROL_END, CONTROL_KINDS } ControlKind;
typedef struct Control {
  uint32_t magic;
  int32_t kind, process, rank;             // rank: that failed
  int64_t sequence;                        // of the collective that is asked about; 0: of the end
  char text[512];                          // why; or ranks that have not come, "1, 3"
} Control;

typedef struct Nodes {
  Team *team;
  Transport *transport;
  int ranks, processes, process, first_rank;   // ranks: of a process
  int64_t chunk_bytes, gather_bytes;       // of a message of sums; of a gather
  RankPiece (*pieces)[RANK_PIECES_MAX];    // [processes]
  int *n_pieces;
  Lane *lanes;                             // [ranks]
  char *whole;                             // RANK_WHOLE_BYTES: the sum of a small all-reduce
  int64_t work_bytes;                      // of each lane's work[i]
  // Handing over.
  pthread_t thread;
  bool started;
  pthread_mutex_t mutex;
  NodesMessage *inbox, **inbox_end;
  bool quit;                               // by mutex
  // Of the thread.
  NodesMessage **open;                     // under way
  int n_open, open_room;
  NodesMessage control_in, *control_out;   // control_out: [4][processes], one of each kind
  Control incoming, *outgoing;             // outgoing: as control_out
  bool told, heard, well;                  // told: the others have been told, heard: have told us, that the team was stopped
  int64_t told_ns, watched_ns;
  Lane *asking;                            // whose wait is too long; NULL: none. At the end: the first lane
  int64_t asked_ns;
  bool *answered, *ended;                  // [processes]
  char (*late)[512];                       // [processes]: their answers
  int n_ended;
} Nodes;

// Hands a message over to the thread.
void nodes_hand_over(Nodes *nodes, NodesMessage *message);

// How long a lane waits for the thread, and other ranks for the lane: longer than the thread takes to say who is missing.
static inline int64_t nodes_patience_ns(const Nodes *nodes) { return 2 * nodes->team->deadline_ns + INT64_C(15000000000); }

MUST_USE Status nodes_thread_start(Nodes *nodes);
void nodes_thread_end(Nodes *nodes);

#endif
