// The delay backend, for tests and measurements. Each call waits a random time and is passed on: a result that depends on who comes first shows soon. Or
// what moves bytes takes as long as it would over a slow link.
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "comm.h"

typedef struct DelayComm {
  Comm base;                         // must be first
  Comm *inner;
  _Atomic uint64_t state;            // of the random numbers; any thread of the rank draws
  int64_t longest_ns;                // at random
  int64_t latency_ns, ns_per_mib;    // of the link
  int64_t carried_bytes;             // that the link has carried; by the thread that issues collectives
} DelayComm;

static DelayComm *self(Comm *comm) { return (DelayComm *)comm; }

static void wait_ns(int64_t ns) {
  if (ns <= 0) return;
  struct timespec t = {ns / 1000000000, ns % 1000000000};
  nanosleep(&t, NULL);                                   // a signal shortens it: no harm
}

static void wait_a_little(DelayComm *d) {
  if (!d->longest_ns) return;
  uint64_t x = atomic_fetch_add(&d->state, 0x9e3779b97f4a7c15u) + 0x9e3779b97f4a7c15u;      // splitmix64
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  if (x % 4 == 0) return;                                // some are punctual
  wait_ns((int64_t)(x % (uint64_t)(d->longest_ns + 1)));
}

// For the bytes that have been counted since the last time.
static void wait_for_link(DelayComm *d) {
  int64_t bytes = d->base.sent_bytes - d->carried_bytes;
  d->carried_bytes = d->base.sent_bytes;
  wait_ns(d->latency_ns + (int64_t)((double)bytes / (1 << 20) * (double)d->ns_per_mib));
}

// What the inner endpoint counts is counted here as well; views are counted by the executor, here only.
static Status count(DelayComm *d, Comm before, Status status) {
  d->base.sent_bytes += d->inner->sent_bytes - before.sent_bytes;
  d->base.copied_bytes += d->inner->copied_bytes - before.copied_bytes;
  d->base.wire_bytes += d->inner->wire_bytes - before.wire_bytes;
  wait_for_link(d);
  return status;
}

static Status delay_all_gather(Comm *comm, int axis, const void *shard, void *whole, int64_t shard_elems, Dtype dtype) {
  DelayComm *d = self(comm);
  wait_a_little(d);
  Comm before = *d->inner;
  return count(d, before, d->inner->ops->all_gather(d->inner, axis, shard, whole, shard_elems, dtype));
}

static Status delay_reduce_scatter(Comm *comm, int axis, const void *whole, void *shard, int64_t shard_elems, Dtype dtype, bool sums) {
  DelayComm *d = self(comm);
  wait_a_little(d);
  Comm before = *d->inner;
  return count(d, before, d->inner->ops->reduce_scatter(d->inner, axis, whole, shard, shard_elems, dtype, sums));
}

static Status delay_all_reduce(Comm *comm, int axis, void *data, int64_t elems, Dtype dtype) {
  DelayComm *d = self(comm);
  wait_a_little(d);
  Comm before = *d->inner;
  return count(d, before, d->inner->ops->all_reduce(d->inner, axis, data, elems, dtype));
}

static Status delay_barrier(Comm *comm) {
  wait_a_little(self(comm));
  return self(comm)->inner->ops->barrier(self(comm)->inner);
}

static Status delay_read_begin(Comm *comm, int32_t region) {
  wait_a_little(self(comm));
  Status status = self(comm)->inner->ops->read_begin(self(comm)->inner, region);
  wait_for_link(self(comm));
  return status;
}

#define DELAY_GUARD(name)                                                   \
  static Status delay_##name(Comm *comm, int32_t region) {                  \
    wait_a_little(self(comm));                                              \
    return self(comm)->inner->ops->name(self(comm)->inner, region);         \
  }
DELAY_GUARD(read_end)
DELAY_GUARD(write_begin)
DELAY_GUARD(write_end)

static const CommOps comm_delay_ops = {
    .all_gather = delay_all_gather,
    .reduce_scatter = delay_reduce_scatter,
    .all_reduce = delay_all_reduce,
    .barrier = delay_barrier,
    .read_begin = delay_read_begin,
    .read_end = delay_read_end,
    .write_begin = delay_write_begin,
    .write_end = delay_write_end,
};

static Status create(Comm *inner, DelayComm delays, Comm **out) {
  DelayComm *d = malloc(sizeof *d);
  if (!d) FAIL(RESOURCE, NULL, "no memory for an endpoint");
  *d = delays;
  d->base = (Comm){.ops = &comm_delay_ops, .rank = inner->rank, .size = inner->size};
  d->inner = inner;
  *out = &d->base;
  return NULL;
}

Status comm_delay_create(Comm *inner, uint64_t seed, int64_t longest_ns, Comm **out) {
  if (longest_ns < 0) FAIL(USAGE, NULL, "a delay of up to %lld ns", (long long)longest_ns);
  return create(inner, (DelayComm){.longest_ns = longest_ns, .state = seed ^ (uint64_t)(inner->rank + 1) * 0xd1342543de82ef95u}, out);
}

Status comm_link_create(Comm *inner, int64_t latency_ns, int64_t ns_per_mib, Comm **out) {
  if (latency_ns < 0 || ns_per_mib < 0) FAIL(USAGE, NULL, "a link of %lld ns and %lld ns per MiB", (long long)latency_ns, (long long)ns_per_mib);
  return create(inner, (DelayComm){.latency_ns = latency_ns, .ns_per_mib = ns_per_mib}, out);
}

void comm_delay_destroy(Comm *comm) { free(comm); }
