// What all transports share: sleeping, and the exchange at the start.
#include "transport.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../ir/clock.h"

void transport_signal(Transport *transport) {
  atomic_fetch_add(&transport->event, 1);
  if (atomic_load(&transport->sleepers)) syscall(SYS_futex, &transport->event, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void transport_sleep(Transport *transport, uint32_t seen, int64_t longest_ns) {
  struct timespec left = {longest_ns / 1000000000, longest_ns % 1000000000};
  atomic_fetch_add(&transport->sleepers, 1);
  if (longest_ns > 0) syscall(SYS_futex, &transport->event, FUTEX_WAIT_PRIVATE, seen, &left, NULL, 0);
  atomic_fetch_sub(&transport->sleepers, 1);
}

// ---- Exchange -----------------------------------------------------------------------------------------------------------------

enum { EXCHANGE_TAG = TRANSPORT_TAG_MAX - 1, POLL_NS = 50000, LOOK_NS = 100000000 };

static Status missing(const Transport *t, const TransportMessage *messages, int64_t deadline_ns) {
  char list[256];
  size_t used = 0;
  for (int p = 0; p < t->processes && used + 16 < sizeof list; p++)
    if (p != t->process && !atomic_load(&messages[t->processes + p].done)) used += (size_t)snprintf(list + used, sizeof list - used, "%s%d", used ? ", " : "", p);
  FAIL(RANK, NULL, "process %d of %d waited %.3f s for the others to start; not there yet: process %s", t->process, t->processes, (double)deadline_ns / 1e9,
       used ? list : "(came just now)");
}

static bool all_done(const Transport *t, const TransportMessage *messages) {
  for (int i = 0; i < 2 * t->processes; i++)
    if (i % t->processes != t->process && !atomic_load(&messages[i].done)) return false;
  return true;
}

static Status exchange(Transport *t, TransportMessage *messages, int64_t deadline_ns) {
  for (int i = 0; i < 2 * t->processes; i++)
    if (i % t->processes != t->process) TRY(t->ops->post(t, &messages[i]));
  for (int64_t end_ns = clock_now_ns() + deadline_ns;;) {
    uint32_t seen = transport_seen(t);
    TRY(t->ops->progress(t));
    if (all_done(t, messages)) return NULL;
    if (clock_now_ns() > end_ns) return missing(t, messages, deadline_ns);
    transport_sleep(t, seen, t->polls ? POLL_NS : LOOK_NS);
  }
}

Status transport_exchange(Transport *t, const void *mine, void *all, int64_t bytes, int64_t deadline_ns) {
  TransportMessage *messages = calloc((size_t)t->processes * 2, sizeof *messages);      // sends, then receives
  if (!messages) FAIL(RESOURCE, NULL, "no memory for messages to %d processes", t->processes);
  for (int p = 0; p < t->processes; p++) {
    messages[p] = (TransportMessage){.peer = p, .tag = EXCHANGE_TAG, .data = (void *)mine, .bytes = bytes};
    messages[t->processes + p] = (TransportMessage){.peer = p, .tag = EXCHANGE_TAG, .receives = true, .data = (char *)all + p * bytes, .bytes = bytes};
  }
  memcpy((char *)all + t->process * bytes, mine, (size_t)bytes);
  Status status = exchange(t, messages, deadline_ns);
  for (int p = 0; p < t->processes && !status; p++)
    if (p != t->process && messages[t->processes + p].moved_bytes != bytes)
      status = status_fail(STATUS_RANK, NULL, "process %d sent %lld bytes at the start where process %d sent %lld: not the same program", p,
                           (long long)messages[t->processes + p].moved_bytes, t->process, (long long)bytes);
  for (int i = 0; i < 2 * t->processes && status; i++)
    if (i % t->processes != t->process) t->ops->cancel(t, &messages[i]);
  free(messages);
  return status;
}

void transport_close(Transport *transport, bool orderly) {
  if (transport) transport->ops->close(transport, orderly);
}
