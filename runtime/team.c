// Waiting: the futex barrier, view epochs, abort and deadline of the rank threads of one process.
#include "team.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../ir/clock.h"

enum { SPIN_PAUSES = 2000 };

void team_counter_init(TeamCounter *c) {
  memset(c, 0, sizeof *c);
  atomic_store(&c->wanted, UINT64_MAX);
}

static inline void cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

static int processors_allowed(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  long online = sysconf(_SC_NPROCESSORS_ONLN);   // more than 1,024 processors: the mask does not fit
  return online > 0 ? (int)online : 1;
}

Status team_create(int ranks, int threads_per_rank, int n_regions, int64_t deadline_ns, Team **out) {
  if (ranks < 1 || ranks > 4096) FAIL(USAGE, NULL, "%d ranks in one process: 1 to 4096 are possible", ranks);
  if (n_regions < 0 || deadline_ns <= 0) FAIL(USAGE, NULL, "a team needs a deadline above 0 ns, not %lld", (long long)deadline_ns);
  Team *team = aligned_alloc(TEAM_LINE_BYTES, sizeof *team);
  if (!team) FAIL(RESOURCE, NULL, "no memory for a team of %d ranks", ranks);
  memset(team, 0, sizeof *team);
  team->ranks = ranks;
  team->n_regions = n_regions;
  team->deadline_ns = deadline_ns;
  team->spin = ranks * threads_per_rank <= processors_allowed();
  size_t rank_bytes = (size_t)ranks * sizeof *team->rank;
  size_t view_bytes = (size_t)(n_regions ? n_regions : 1) * (size_t)ranks * sizeof *team->views;
  team->rank = aligned_alloc(TEAM_LINE_BYTES, rank_bytes);
  team->views = aligned_alloc(64, view_bytes);
  team->comms = calloc((size_t)ranks, sizeof *team->comms);
  if (!team->rank || !team->views || !team->comms) {
    team_destroy(team);
    FAIL(RESOURCE, NULL, "no memory for a team of %d ranks and %d regions", ranks, n_regions);
  }
  memset(team->rank, 0, rank_bytes);
  memset(team->views, 0, view_bytes);
  for (int r = 0; r < ranks; r++) {
    team_counter_init(&team->rank[r].phases);
    for (int q = 0; q < QUEUE_COUNT; q++) team_counter_init(&team->rank[r].steps[q]), team_counter_init(&team->rank[r].joins[q]);
  }
  for (int r = 0; r < ranks; r++)
    team->comms[r] = (LocalComm){.base = {.ops = &comm_local_ops, .rank = r, .size = ranks}, .team = team};
  *out = team;
  return NULL;
}

void team_destroy(Team *team) {
  if (!team) return;
  free(team->rank);
  free(team->views);
  free(team->comms);
  free(team);
}

Comm *team_comm(Team *team, int rank) { return &team->comms[rank].base; }

// ---- Events: a word that changes, and sleepers that look again ----

static void event_signal(_Atomic uint32_t *word, _Atomic uint32_t *sleepers) {
  atomic_fetch_add(word, 1);
  if (atomic_load(sleepers)) syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void team_counter_wake(TeamCounter *c) { event_signal(&c->event, &c->sleepers); }

bool team_aborted(const Team *team) { return atomic_load(&((Team *)team)->abort_state) != 0; }

void team_abort(Team *team, int rank, const char *what) {
  uint32_t none = 0;
  if (!atomic_compare_exchange_strong(&team->abort_state, &none, 1)) return;
  team->abort_rank = rank;
  snprintf(team->abort_text, sizeof team->abort_text, "%s", what ? what : "");
  atomic_store(&team->abort_state, 2);
  event_signal(&team->barrier_event, &team->barrier_sleepers);
  event_signal(&team->view_event, &team->view_sleepers);
  for (int r = 0; r < team->ranks; r++)
    for (int q = 0; q < QUEUE_COUNT; q++) team_counter_wake(&team->rank[r].steps[q]);
  if (team->on_abort) team->on_abort(team->on_abort_self);
}

int team_abort_rank(Team *team) {
  if (!team_aborted(team)) return -1;
  while (atomic_load(&team->abort_state) == 1) sched_yield();   // the first caller is copying its text; it waits for nothing
  return team->abort_rank;
}

const char *team_abort_text(Team *team) { return team_abort_rank(team) < 0 ? "" : team->abort_text; }

static Status abort_status(Team *team, int rank) {
  int first = team_abort_rank(team);
  Status s = status_fail(STATUS_RANK, NULL, "stopped because rank %d failed: %s", first, team->abort_text);
  s->rank = team->first_rank + rank;
  return s;
}

// A condition on the team; true ends the wait. `late` appends the ranks that are missing to `text` for the deadline's message.
typedef struct Wait {
  _Atomic uint32_t *word, *sleepers;
  bool (*ready)(const Team *team, const struct Wait *wait);
  bool (*missing)(const Team *team, const struct Wait *wait, int rank);
  const char *what;
  uint64_t epoch;
  int32_t region;
  int64_t longer_ns;                               // than the deadline
} Wait;

static Status deadline_status(const Team *team, int rank, const Wait *wait) {
  char list[256];
  size_t used = 0;
  list[0] = 0;
  for (int r = 0; r < team->ranks && used + 16 < sizeof list; r++)
    if (wait->missing(team, wait, r)) used += (size_t)snprintf(list + used, sizeof list - used, "%s%d", used ? ", " : "", team->first_rank + r);
  double waited_s = (double)(team->deadline_ns + wait->longer_ns) / 1e9;
  Status s = status_fail(STATUS_RANK, NULL, "rank %d waited %.3f s in %s; not there yet: rank %s", team->first_rank + rank, waited_s, wait->what,
                         used ? list : "(came just now)");
  s->rank = team->first_rank + rank;
  return s;
}

static Status team_wait(Team *team, int rank, const Wait *wait) {
  if (wait->ready(team, wait)) return team_aborted(team) ? abort_status(team, rank) : NULL;
  if (team->spin)
    for (int i = 0; i < SPIN_PAUSES; i++) {
      cpu_pause();
      if (wait->ready(team, wait) || team_aborted(team)) break;
    }
  int64_t end_ns = clock_now_ns() + team->deadline_ns + wait->longer_ns;
  for (;;) {
    uint32_t seen = atomic_load(wait->word);
    if (team_aborted(team)) return abort_status(team, rank);
    if (wait->ready(team, wait)) return NULL;
    int64_t left_ns = end_ns - clock_now_ns();
    if (left_ns <= 0) return deadline_status(team, rank, wait);
    struct timespec left = {left_ns / 1000000000, left_ns % 1000000000};
    atomic_fetch_add(wait->sleepers, 1);
    syscall(SYS_futex, wait->word, FUTEX_WAIT_PRIVATE, seen, &left, NULL, 0);   // every outcome: look again
    atomic_fetch_sub(wait->sleepers, 1);
  }
}

// ---- Counters of one rank's queues ----

// A sleeper is woken when what it waits for is there, not at every step: a phase has many steps and few waits.
void team_count(TeamCounter *c, uint64_t more) {
  uint64_t now = atomic_fetch_add(&c->count, more) + more;
  if (now < atomic_load(&c->wanted)) return;
  atomic_store(&c->wanted, UINT64_MAX);                  // who waits for more looks again and says so again
  event_signal(&c->event, &c->sleepers);
}

static void want(TeamCounter *c, uint64_t count) {
  uint64_t wanted = atomic_load(&c->wanted);
  while (count < wanted && !atomic_compare_exchange_weak(&c->wanted, &wanted, count)) {
  }
}

// `what`: NULL for queue `of`.
static Status await(Team *team, int rank, TeamCounter *c, uint64_t count, Queue of, const char *what, int64_t deadline_ns) {
  bool endless = deadline_ns == 0;
  if (!endless && !team_aborted(team) && atomic_load(&c->count) >= count) return NULL;
  for (int i = 0; team->spin && i < SPIN_PAUSES && atomic_load(&c->count) < count && (endless || !team_aborted(team)); i++) cpu_pause();
  int64_t end_ns = 0;
  for (uint64_t before = UINT64_MAX;;) {
    uint32_t seen = atomic_load(&c->event);
    want(c, count);                                      // before the look below: who counts in between sees it
    uint64_t now = atomic_load(&c->count);
    if (!endless && team_aborted(team)) return abort_status(team, rank);
    if (now >= count) return NULL;
    if (now != before) end_ns = clock_now_ns() + deadline_ns;
    before = now;
    int64_t left_ns = end_ns - clock_now_ns();
    if (!endless && left_ns <= 0) {
      double waited_s = (double)deadline_ns / 1e9;
      Status s = what ? status_fail(STATUS_RANK, NULL, "rank %d waited %.3f s for %s", team->first_rank + rank, waited_s, what)
                      : status_fail(STATUS_RANK, NULL, "rank %d waited %.3f s for its queue %s, which ended no step in that time", team->first_rank + rank,
                                    waited_s, queue_name(of));
      s->rank = team->first_rank + rank;
      return s;
    }
    struct timespec left = {left_ns / 1000000000, left_ns % 1000000000};
    atomic_fetch_add(&c->sleepers, 1);
    syscall(SYS_futex, &c->event, FUTEX_WAIT_PRIVATE, seen, endless ? NULL : &left, NULL, 0);   // every outcome: look again
    atomic_fetch_sub(&c->sleepers, 1);
  }
}

Status team_await(Team *team, int rank, TeamCounter *c, uint64_t count, Queue of, bool endless) {
  return await(team, rank, c, count, of, NULL, endless ? 0 : 2 * team->deadline_ns);      // its wait for other ranks fails first: that text says more
}

Status team_await_for(Team *team, int rank, TeamCounter *c, uint64_t count, const char *what, int64_t deadline_ns) {
  return await(team, rank, c, count, QUEUE_COMPUTE, what, deadline_ns);
}

// ---- Barrier ----

static bool barrier_ready(const Team *team, const Wait *wait) { return atomic_load(&((Team *)team)->epoch) >= wait->epoch; }
static bool barrier_missing(const Team *team, const Wait *wait, int r) { return atomic_load(&team->rank[r].arrived) < wait->epoch; }

Status team_barrier(Team *team, int rank) { return team_barrier_after(team, rank, 0); }

Status team_barrier_after(Team *team, int rank, int64_t longer_ns) {
  uint64_t mine = atomic_load(&team->rank[rank].arrived) + 1;
  atomic_store(&team->rank[rank].arrived, mine);
  if ((int)atomic_fetch_add(&team->entered, 1) + 1 == team->ranks) {
    atomic_store(&team->entered, 0);
    atomic_fetch_add(&team->epoch, 1);
    event_signal(&team->barrier_event, &team->barrier_sleepers);
    return team_aborted(team) ? abort_status(team, rank) : NULL;
  }
  Wait wait = {&team->barrier_event, &team->barrier_sleepers, barrier_ready, barrier_missing, "a collective", mine, -1, longer_ns};
  return team_wait(team, rank, &wait);
}

// ---- Collectives: agreement ----

static const char *slot_kind_name(SlotKind kind) {
  static const char *const names[] = {"Barrier", "AllGather", "ReduceScatter", "AllReduce"};
  return names[kind];
}

const Slot *team_slot(const Team *team, int rank, int of_rank) { return &team->rank[of_rank].slots[(team->rank[rank].sequence - 1) & 1]; }

Status team_enter(Team *team, int rank, const Slot *slot) {
  TeamRank *own = &team->rank[rank];
  own->slots[own->sequence++ & 1] = *slot;
  TRY(team_barrier(team, rank));
  const Slot *first = team_slot(team, rank, 0);
  for (int r = 1; r < team->ranks; r++) {
    const Slot *other = team_slot(team, rank, r);
    if (other->kind == first->kind && other->dtype == first->dtype && other->elems == first->elems && other->axis == first->axis) continue;
    Status s = status_fail(STATUS_RANK, NULL, "ranks disagree: rank %d asks for %s of %lld x %s on axis %d, rank %d for %s of %lld x %s on axis %d",
                           team->first_rank, slot_kind_name(first->kind), (long long)first->elems, dtype_name(first->dtype), first->axis, team->first_rank + r,
                           slot_kind_name(other->kind), (long long)other->elems, dtype_name(other->dtype), other->axis);
    s->rank = team->first_rank + rank;
    return s;
  }
  return NULL;
}

// ---- View guards ----

static ViewEpochs *view_of(const Team *team, int32_t region, int rank) { return &team->views[(size_t)region * (size_t)team->ranks + (size_t)rank]; }

static bool published_missing(const Team *team, const Wait *wait, int r) {
  return atomic_load(&view_of(team, wait->region, r)->published) < wait->epoch;
}
static bool released_missing(const Team *team, const Wait *wait, int r) {
  return atomic_load(&view_of(team, wait->region, r)->released) < wait->epoch;
}
static bool all_there(const Team *team, const Wait *wait) {
  for (int r = 0; r < team->ranks; r++)
    if (wait->missing(team, wait, r)) return false;
  return true;
}

static Status region_check(const Team *team, int rank, int32_t region) {
  if (region >= 0 && region < team->n_regions) return NULL;
  Status s = status_fail(STATUS_RANK, NULL, "rank %d guards region %d, the team has %d", team->first_rank + rank, region, team->n_regions);
  s->rank = team->first_rank + rank;
  return s;
}

Status team_read_begin(Team *team, int rank, int32_t region) {
  TRY(region_check(team, rank, region));
  uint64_t epoch = atomic_load(&view_of(team, region, rank)->published);
  Wait wait = {&team->view_event, &team->view_sleepers, all_there, published_missing, "a gathered view (shard not published)", epoch, region, 0};
  return team_wait(team, rank, &wait);
}

Status team_read_end(Team *team, int rank, int32_t region) {
  TRY(region_check(team, rank, region));
  atomic_fetch_add(&view_of(team, region, rank)->released, 1);
  event_signal(&team->view_event, &team->view_sleepers);
  return NULL;
}

Status team_write_begin(Team *team, int rank, int32_t region) {
  TRY(region_check(team, rank, region));
  uint64_t epoch = atomic_load(&view_of(team, region, rank)->released);
  Wait wait = {&team->view_event, &team->view_sleepers, all_there, released_missing, "a shard's update (view not released)", epoch, region, 0};
  return team_wait(team, rank, &wait);
}

Status team_write_end(Team *team, int rank, int32_t region) {
  TRY(region_check(team, rank, region));
  atomic_fetch_add(&view_of(team, region, rank)->published, 1);
  event_signal(&team->view_event, &team->view_sleepers);
  return NULL;
}
