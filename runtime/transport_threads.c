// Endpoints inside one process: a message is copied by whoever comes second, sender or receiver, under the receiver's lock. Nothing is buffered: what only
// works because a library buffers sends shows here.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "transport.h"

typedef struct Hub Hub;
typedef struct Endpoint {
  Transport base;                        // must be first
  Hub *hub;
  pthread_mutex_t mutex;                 // of what follows
  TransportMessage *receives;            // posted here and not met, first posted first
  TransportMessage *sends;               // sent here by others and not met; their `slot` is the sender
  bool closed;
  _Atomic bool left;                     // closed other than orderly
} Endpoint;

struct Hub {
  int processes;
  _Atomic int open;                      // endpoints
  _Atomic bool gone;                     // one has left
  Endpoint *endpoints;
};

static void append(TransportMessage **list, TransportMessage *message) {
  while (*list) list = &(*list)->next;
  message->next = NULL;
  *list = message;
}

static void finish(Transport *owner, TransportMessage *message, int64_t moved_bytes) {
  message->moved_bytes = moved_bytes;
  atomic_store(&message->done, true);
  transport_signal(owner);
}

static void move(Hub *hub, int to, TransportMessage *receive, int from, TransportMessage *send) {
  int64_t bytes = send->bytes < receive->bytes ? send->bytes : receive->bytes;
  if (bytes) memcpy(receive->data, send->data, (size_t)bytes);
  receive->peer = from;
  int64_t sent = send->bytes;            // the sender may reuse its record once it is done
  finish(&hub->endpoints[to].base, receive, sent);
  finish(&hub->endpoints[from].base, send, sent);
}

static Status post_send(Endpoint *self, TransportMessage *message) {
  Endpoint *to = &self->hub->endpoints[message->peer];
  pthread_mutex_lock(&to->mutex);
  bool closed = to->closed;
  TransportMessage **at = &to->receives;
  while (*at && ((*at)->tag != message->tag || ((*at)->peer != TRANSPORT_ANY && (*at)->peer != self->base.process))) at = &(*at)->next;
  TransportMessage *receive = *at;
  if (closed) receive = NULL;
  else if (receive) *at = receive->next;
  message->slot = self->base.process;
  if (receive) move(self->hub, message->peer, receive, self->base.process, message);
  else if (!closed) append(&to->sends, message);
  pthread_mutex_unlock(&to->mutex);
  if (closed) FAIL(RANK, NULL, "process %d has ended", message->peer);
  return NULL;
}

static Status post_receive(Endpoint *self, TransportMessage *message) {
  pthread_mutex_lock(&self->mutex);
  TransportMessage **at = &self->sends;
  while (*at && ((*at)->tag != message->tag || (message->peer != TRANSPORT_ANY && message->peer != (*at)->slot))) at = &(*at)->next;
  TransportMessage *send = *at;
  if (send) {
    *at = send->next;
    move(self->hub, self->base.process, message, send->slot, send);
  } else {
    append(&self->receives, message);
  }
  pthread_mutex_unlock(&self->mutex);
  return NULL;
}

static Status threads_post(Transport *transport, TransportMessage *message) {
  Endpoint *self = (Endpoint *)transport;
  if (message->peer >= transport->processes || (message->peer < 0 && !message->receives)) FAIL(RANK, NULL, "process %d of %d", message->peer, transport->processes);
  return message->receives ? post_receive(self, message) : post_send(self, message);
}

// Messages move by themselves: what is left to see is who went away owing one.
static Status threads_progress(Transport *transport) {
  Endpoint *self = (Endpoint *)transport;
  if (!atomic_load(&self->hub->gone)) return NULL;
  int owes = -1;
  pthread_mutex_lock(&self->mutex);
  for (const TransportMessage *m = self->receives; m && owes < 0; m = m->next)
    if (m->peer >= 0 && atomic_load(&self->hub->endpoints[m->peer].left)) owes = m->peer;
  pthread_mutex_unlock(&self->mutex);
  if (owes >= 0) FAIL(RANK, NULL, "process %d has ended", owes);
  return NULL;
}

// Whoever copies it has its lock: afterwards nobody does.
static void threads_cancel(Transport *transport, TransportMessage *message) {
  Endpoint *self = (Endpoint *)transport, *at = message->receives ? self : &self->hub->endpoints[message->peer];
  pthread_mutex_lock(&at->mutex);
  for (TransportMessage **m = message->receives ? &at->receives : &at->sends; *m; m = &(*m)->next)
    if (*m == message) {
      *m = message->next;
      break;
    }
  pthread_mutex_unlock(&at->mutex);
}

static void hub_destroy(Hub *hub) {
  for (int p = 0; p < hub->processes; p++) pthread_mutex_destroy(&hub->endpoints[p].mutex);
  free(hub->endpoints);
  free(hub);
}

static void threads_close(Transport *transport, bool orderly) {
  Endpoint *self = (Endpoint *)transport;
  Hub *hub = self->hub;
  pthread_mutex_lock(&self->mutex);
  self->closed = true;
  self->receives = self->sends = NULL;
  pthread_mutex_unlock(&self->mutex);
  for (int p = 0; p < hub->processes; p++) {
    Endpoint *other = &hub->endpoints[p];
    pthread_mutex_lock(&other->mutex);
    for (TransportMessage **at = &other->sends; *at;)
      if ((*at)->slot == transport->process) *at = (*at)->next;
      else at = &(*at)->next;
    pthread_mutex_unlock(&other->mutex);
  }
  if (!orderly) {
    atomic_store(&self->left, true);
    atomic_store(&hub->gone, true);
    for (int p = 0; p < hub->processes; p++) transport_signal(&hub->endpoints[p].base);
  }
  if (atomic_fetch_sub(&hub->open, 1) == 1) hub_destroy(hub);
}

static const TransportOps threads_ops = {"threads", threads_post, threads_progress, threads_cancel, threads_close};

Status transport_threads_create(int processes, Transport **out) {
  if (processes < 1 || processes > 4096) FAIL(USAGE, NULL, "%d processes: 1 to 4096 are possible", processes);
  Hub *hub = calloc(1, sizeof *hub);
  if (hub) hub->endpoints = calloc((size_t)processes, sizeof *hub->endpoints);
  if (!hub || !hub->endpoints) {
    free(hub);
    FAIL(RESOURCE, NULL, "no memory for %d processes", processes);
  }
  hub->processes = processes;
  atomic_store(&hub->open, processes);
  for (int p = 0; p < processes; p++) {
    Endpoint *e = &hub->endpoints[p];
    e->base = (Transport){.ops = &threads_ops, .process = p, .processes = processes};
    e->hub = hub;
    pthread_mutex_init(&e->mutex, NULL);
    out[p] = &e->base;
  }
  return NULL;
}
