// Backends of communication within one process, and several processes emulated in it, under the conformance suite (tests/comm/comm_suite.h). One row here
// puts a backend under all cases. An argument: only the backends whose name begins so.
#include <string.h>

#include "../comm/comm_suite.h"

static Status wrap_delay(Comm *comm, Comm **out) { return comm_delay_create(comm, 7, 100000, out); }
static Status wrap_link(Comm *comm, Comm **out) { return comm_link_create(comm, 1000, 1000000, out); }

static const CommBackend backends[] = {
    {.name = "local"},
    {.name = "delay", .wrap = wrap_delay},
    {.name = "link", .wrap = wrap_link},
    {.name = "processes of 1 rank", .ranks_per_process = 1},
    {.name = "processes of 2 ranks", .ranks_per_process = 2},
    {.name = "processes of 3 ranks, short messages", .ranks_per_process = 3, .message_bytes = 200},
    {.name = "processes of 4 ranks", .ranks_per_process = 4},
    {.name = "processes of 1 rank, short messages, delay", .ranks_per_process = 1, .message_bytes = 1000, .wrap = wrap_delay},
};

int main(int argc, char **argv) {
  int failed = 0;
  for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
    if (argc < 2 || !strncmp(backends[i].name, argv[1], strlen(argv[1]))) failed += comm_suite_run(&backends[i]);
  return failed;
}
