// The conformance suite over MPI; started by mpirun: `mpi_runner RANKS_PER_PROCESS MESSAGE_BYTES [CASE]`. A case: one of those that stop the team. Each process
// ends with "process P of N: passed" or "failed" on stdout. tests/comm/test_comm_mpi.py runs it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm_suite.h"

static int fail(Status status) {
  char text[512];
  fprintf(stderr, "%s\n", status_text(status, text, sizeof text));
  int code = status_code(status);
  status_free(status);
  return code;
}

int main(int argc, char **argv) {
  if (argc < 3) return fprintf(stderr, "usage: mpi_runner RANKS_PER_PROCESS MESSAGE_BYTES [CASE]\n"), 2;
  Transport *transport;
  Status status = transport_mpi_open(&transport);
  if (status) return fail(status);
  CommBackend backend = {.name = "mpi", .ranks_per_process = atoi(argv[1]), .message_bytes = atoll(argv[2]), .transport = transport};
  int mine[2] = {transport->process, backend.ranks_per_process}, all[2 * 64] = {0};
  status = transport_exchange(transport, mine, all, sizeof mine, INT64_C(30000000000));
  if (status) return fail(status);
  for (int p = 0; p < transport->processes; p++)
    if (all[2 * p] != p || all[2 * p + 1] != mine[1]) return fprintf(stderr, "the exchange mixed up processes\n"), 1;
  int failed = argc > 3 ? comm_suite_run_failure(&backend, argv[3]) : comm_suite_run(&backend);
  printf("process %d of %d: %s\n", mine[0], transport->processes, failed ? "failed" : "passed");
  fflush(stdout);
  if (argc > 3) {                           // the transport was stopped: no orderly end, and mpirun ends the others when the first has gone
    status_free(transport_exchange(transport, mine, all, sizeof mine, INT64_C(10000000000)));
    _exit(failed ? 1 : 0);
  }
  transport_close(transport, failed == 0);
  return failed != 0;
}
