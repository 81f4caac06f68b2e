// Collectives over several processes: the ranks of this process are a Team, the other processes are reached by a Transport. Rank r of the axis is local rank
// r % R of process r / R, R = ranks per process, the same everywhere. Contract of runtime/comm.h; same bits as the local backend for as many ranks.
//
// How: each collective has a lane per local rank. Lane l of every process works on the shards of the ranks p R + l: what the local ranks add up is added by
// their threads, a lane each, then goes across. One thread per process makes all calls of the transport, also while the ranks compute.
//
// Where all local ranks name the same `whole`, an all_gather writes each shard once per process; where they name their own, they copy from each other.
// Bytes: sent_bytes as in every backend; wire_bytes are what this rank's lane sent to other processes (without headers of 64 bytes), so that the sum over the
// ranks of a process is what left it: as comm_wire_bytes says. copied_bytes: what the rank copied or added from other ranks' memory of this process.
#ifndef TESSERA_COMM_NODES_H
#define TESSERA_COMM_NODES_H

#include "comm.h"
#include "transport.h"

typedef struct Nodes Nodes;

typedef struct NodesOptions {
  int64_t message_bytes;       // messages are cut to that; 0: the defaults, 1 MiB of sums and 64 MiB of a gather
} NodesOptions;

// Starts the thread. `team` and `transport` are the caller's and must outlive it; until nodes_destroy no one else uses the transport. Tells the team its
// first rank: texts of the team name ranks of the axis, and team_abort is given such a rank.
MUST_USE Status nodes_create(Team *team, Transport *transport, const NodesOptions *options, Nodes **out);

Comm *nodes_comm(Nodes *nodes, int local_rank);          // its rank and size are those of the axis; owned by `nodes`

// Ends the thread, when all processes come to their end, or once those that can be told know why this team was stopped. Returns whether all is well: the
// transport may be closed orderly. NULL is fine (true).
bool nodes_destroy(Nodes *nodes);

#endif
