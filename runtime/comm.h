// Communication backends. The interface that kernels call is CommOps in kernels/kernel.h; this header states its contract and makes
// endpoints.
//
// Contract, the same for every backend (tests: the conformance suite):
//   - All ranks of an axis issue the same collectives in the same order with the same sizes; a backend that can see a mismatch fails
//     with STATUS_RANK and both sizes.
//   - Blocking: on return the result is complete and the caller's buffers are its own again.
//   - Threads: an endpoint belongs to its rank. At a time one thread of the rank issues its collectives (all_gather, reduce_scatter, all_reduce, barrier) and
//     read_begin; another thread of it may call read_end, write_begin and write_end meanwhile. Which threads these are may change where the rank
//     synchronizes them (the phases of a plan with queues). The byte counters are the first thread's.
//   - Sums follow the aligned binary tree over rank numbers in the tensor's dtype: bits depend on the number of ranks only through it.
//   - No wait is endless: every wait ends after the team's deadline (STATUS_RANK, naming the ranks that did not come) or once the
//     team is aborted (STATUS_RANK "stopped because rank R failed").
//   - elems = 0 and one rank are fine and communicate nothing.
#ifndef TESSERA_COMM_H
#define TESSERA_COMM_H

#include "../kernels/kernel.h"

// The rank threads of one process: slots, barrier, view guards, abort flag. Waits spin at most 2,000 pauses, and only when
// ranks x threads_per_rank <= processors; then they block on a futex.
typedef struct Team Team;

// n_regions: number of PROCESS buffers with guarded views (ids below it). Heap; team_destroy(NULL) is fine.
MUST_USE Status team_create(int ranks, int threads_per_rank, int n_regions, int64_t deadline_ns, Team **out);
void team_destroy(Team *team);

Comm *team_comm(Team *team, int rank);          // endpoint of a rank; owned by the team; used by that rank's threads only

// For tests: an endpoint that passes all on to `inner` after a random wait of up to longest_ns, another one for each call and rank. Heap; `inner` must
// outlive it and is used through it only. comm_delay_destroy(NULL) is fine.
MUST_USE Status comm_delay_create(Comm *inner, uint64_t seed, int64_t longest_ns, Comm **out);
// For measurements: each gather, gather by view and reduction takes latency_ns and ns_per_mib for each MiB that it sends longer than `inner` does.
MUST_USE Status comm_link_create(Comm *inner, int64_t latency_ns, int64_t ns_per_mib, Comm **out);
void comm_delay_destroy(Comm *comm);            // of either

// Any thread: all present and future waits of the team end with STATUS_RANK. The first caller's text is kept. Async-signal-unsafe. `rank` is that of the axis,
// of this process or another.
void team_abort(Team *team, int rank, const char *what);
bool team_aborted(const Team *team);

#endif
