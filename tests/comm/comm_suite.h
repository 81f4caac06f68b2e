// The conformance suite of communication backends (contract: runtime/comm.h): every backend that ranks can use passes it. The cases see CommOps only, but for
// abort and deadline, which belong to the team. Several processes are emulated inside one, a team each, or are those of a transport.
#ifndef TESSERA_COMM_SUITE_H
#define TESSERA_COMM_SUITE_H

#include "../../runtime/comm_nodes.h"

// A way to endpoints.
typedef struct CommBackend {
  const char *name;
  int ranks_per_process;                           // 0: one process, without comm_nodes
  int64_t message_bytes;                           // of comm_nodes; 0: its default
  Status (*wrap)(Comm *comm, Comm **out);          // what ranks are given in place of an endpoint; ended by comm_delay_destroy. NULL: the endpoint itself
  Transport *transport;                            // of this process; NULL: processes are emulated
} CommBackend;

// Runs all cases, for each number of ranks that fits; over a real transport only those after which it still works. Returns how many failed.
int comm_suite_run(const CommBackend *backend);

// One of the cases that stop a team, by name; over a real transport, which can only be closed afterwards. -1: there is no such case.
int comm_suite_run_failure(const CommBackend *backend, const char *name);

#endif
