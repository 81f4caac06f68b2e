// Bytes between processes: one endpoint per process. Collectives are made of them in comm_nodes.h; nobody else sends.
//
// Contract, the same for every transport:
//   - Calls of one endpoint come one at a time, from any thread; transport_signal alone may be called by any thread at any time.
//   - Nothing blocks: post starts a message, progress looks once and sets `done`. Who has nothing else to do sleeps in transport_sleep.
//   - Messages of one sender, receiver and tag arrive in the order in which both sides posted them. A send may stay under way until it is received.
//   - A message's memory and its record stay as they are until `done`, or until the endpoint is closed.
//   - An error (STATUS_RANK) names the process that died or misbehaved. After it others may be told, if it works; then the endpoint is closed.
#ifndef TESSERA_TRANSPORT_H
#define TESSERA_TRANSPORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "../ir/status.h"

enum { TRANSPORT_ANY = -1, TRANSPORT_TAG_MAX = 32767 };            // tags: 0 to 32,767, what every MPI library has
#define TRANSPORT_BYTES_MAX ((int64_t)1 << 30)                     // of one message: longer ones are cut by the caller

typedef struct TransportMessage TransportMessage;
struct TransportMessage {
  int peer;                      // the other process; TRANSPORT_ANY: whoever sends (receives only), and its number once done
  int tag;
  bool receives;
  void *data;
  int64_t bytes;                 // to send, or of room
  int64_t moved_bytes;           // once done: what came; more than `bytes` when the rest was cut off
  _Atomic bool done;
  int slot;                      // the transport's own
  TransportMessage *next;        // the transport's own, while under way
};

typedef struct Transport Transport;
typedef struct TransportOps {
  const char *name;                                               // "threads", "mpi"
  Status (*post)(Transport *transport, TransportMessage *message);
  Status (*progress)(Transport *transport);
  void (*cancel)(Transport *transport, TransportMessage *message);   // withdraws one under way: its record and room are the caller's again. Done: no effect
  void (*close)(Transport *transport, bool orderly);              // orderly: all processes close now, nothing is under way. Frees
} TransportOps;

struct Transport {
  const TransportOps *ops;
  int process, processes;        // this one; how many
  bool polls;                    // progress must be called to notice anything; else whatever happens signals
  _Atomic uint32_t event, sleepers;                               // futex word
};

// Wakes who sleeps. Sleeping ends at a signal later than the call that returned `seen`, or after `longest_ns`.
void transport_signal(Transport *transport);
static inline uint32_t transport_seen(Transport *transport) { return atomic_load(&transport->event); }
void transport_sleep(Transport *transport, uint32_t seen, int64_t longest_ns);

// all[p * bytes ...] = `mine` of process p, on every process. For agreement at the start, while no other messages are under way. The error names who did
// not answer within the deadline, or sent another number of bytes.
MUST_USE Status transport_exchange(Transport *transport, const void *mine, void *all, int64_t bytes, int64_t deadline_ns);

// `processes` endpoints inside this process, for tests and emulation: out[0 .. processes). Heap, each ended by its close.
MUST_USE Status transport_threads_create(int processes, Transport **out);

// The endpoint of this process among those that mpirun or srun started. Loads the plugin libtessera_mpi.so, and with it the MPI library; the error says
// what to install or how to build. Once per process.
MUST_USE Status transport_mpi_open(Transport **out);

void transport_close(Transport *transport, bool orderly);        // NULL is fine

#endif
