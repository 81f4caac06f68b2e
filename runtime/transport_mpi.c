// The plugin libtessera_mpi.so: messages over MPI, any library with MPI 3.0. Calls come one at a time from any thread (MPI_THREAD_SERIALIZED): one thread of
// the process makes them while there are ranks. Messages are MPI_BYTE in MPI_COMM_WORLD, which nobody else uses. Errors are returned, not fatal; what the
// launcher does when a process dies is its own matter.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport_plugin.h"

typedef struct MpiTransport {
  Transport base;                        // must be first
  const TransportHost *host;
  int n, room;                           // messages under way
  MPI_Request *requests;                 // [room]
  TransportMessage **messages;
  int *indices;                          // MPI_Testsome's answers
  MPI_Status *statuses;
} MpiTransport;

static Status failed(const MpiTransport *t, const char *what, int peer, int error) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int bytes = 0;
  if (MPI_Error_string(error, text, &bytes) != MPI_SUCCESS) snprintf(text, sizeof text, "error %d", error);
  return t->host->fail(STATUS_RANK, NULL, "MPI could not %s process %d: %s", what, peer, text);
}

// Slots never shrink; they grow in the first steps only.
static Status make_room(MpiTransport *t) {
  if (t->n < t->room) return NULL;
  size_t room = t->room ? (size_t)t->room * 2 : 64;
  MPI_Request *requests = realloc(t->requests, room * sizeof *requests);
  if (requests) t->requests = requests;
  TransportMessage **messages = realloc(t->messages, room * sizeof *messages);
  if (messages) t->messages = messages;
  int *indices = realloc(t->indices, room * sizeof *indices);
  if (indices) t->indices = indices;
  MPI_Status *statuses = realloc(t->statuses, room * sizeof *statuses);
  if (statuses) t->statuses = statuses;
  if (!requests || !messages || !indices || !statuses) return t->host->fail(STATUS_RESOURCE, NULL, "no memory for %zu messages", room);
  t->room = (int)room;
  return NULL;
}

static Status mpi_post(Transport *base, TransportMessage *m) {
  MpiTransport *t = (MpiTransport *)base;
  if (m->peer >= base->processes || (m->peer < 0 && !m->receives)) return t->host->fail(STATUS_RANK, NULL, "process %d of %d", m->peer, base->processes);
  if (m->bytes < 0 || m->bytes > TRANSPORT_BYTES_MAX) return t->host->fail(STATUS_RANK, NULL, "a message of %lld bytes", (long long)m->bytes);
  Status status = make_room(t);
  if (status) return status;
  MPI_Request *request = &t->requests[t->n];
  int error = m->receives ? MPI_Irecv(m->data, (int)m->bytes, MPI_BYTE, m->peer == TRANSPORT_ANY ? MPI_ANY_SOURCE : m->peer, m->tag, MPI_COMM_WORLD, request)
                          : MPI_Isend(m->data, (int)m->bytes, MPI_BYTE, m->peer, m->tag, MPI_COMM_WORLD, request);
  if (error != MPI_SUCCESS) return failed(t, m->receives ? "receive from" : "send to", m->peer, error);
  t->messages[t->n++] = m;
  return NULL;
}

static bool is_truncation(int error) {
  int class = MPI_SUCCESS;
  return MPI_Error_class(error, &class) == MPI_SUCCESS && class == MPI_ERR_TRUNCATE;
}

// A message cut off is done: its receiver sees that it was too long.
static Status take(MpiTransport *t, TransportMessage *m, MPI_Status *status, int error) {
  int bytes = 0;
  bool cut = error != MPI_SUCCESS && is_truncation(error);
  if (error != MPI_SUCCESS && !cut) return failed(t, m->receives ? "receive from" : "send to", m->peer, error);
  if (m->receives && !cut && MPI_Get_count(status, MPI_BYTE, &bytes) != MPI_SUCCESS) bytes = -1;
  if (m->receives && m->peer == TRANSPORT_ANY) m->peer = status->MPI_SOURCE;
  m->moved_bytes = cut ? m->bytes + 1 : m->receives ? bytes : m->bytes;
  atomic_store(&m->done, true);
  return NULL;
}

static Status mpi_progress(Transport *base) {
  MpiTransport *t = (MpiTransport *)base;
  int n_done = 0;
  if (!t->n) return NULL;
  int error = MPI_Testsome(t->n, t->requests, &n_done, t->indices, t->statuses);
  if (error != MPI_SUCCESS && error != MPI_ERR_IN_STATUS) return failed(t, "look for messages of", base->process, error);
  if (n_done == MPI_UNDEFINED || n_done == 0) return NULL;
  Status first = NULL;
  for (int i = 0; i < n_done; i++) {
    TransportMessage *m = t->messages[t->indices[i]];
    Status status = first ? NULL : take(t, m, &t->statuses[i], error == MPI_ERR_IN_STATUS ? t->statuses[i].MPI_ERROR : MPI_SUCCESS);
    if (status) first = status;
    t->messages[t->indices[i]] = NULL;
  }
  int kept = 0;
  for (int i = 0; i < t->n; i++) {
    if (!t->messages[i]) continue;
    t->messages[kept] = t->messages[i];
    t->requests[kept++] = t->requests[i];
  }
  t->n = kept;
  return first;
}

// MPI cannot withdraw sends any more: the library finishes them by itself, or never.
static void cancel_at(MpiTransport *t, int i) {
  if (!t->messages[i]->receives) MPI_Request_free(&t->requests[i]);
  else if (MPI_Cancel(&t->requests[i]) == MPI_SUCCESS) MPI_Wait(&t->requests[i], MPI_STATUS_IGNORE);
  t->n--;
  t->requests[i] = t->requests[t->n];
  t->messages[i] = t->messages[t->n];
}

static void mpi_cancel(Transport *base, TransportMessage *m) {
  MpiTransport *t = (MpiTransport *)base;
  for (int i = 0; i < t->n; i++)
    if (t->messages[i] == m) {
      cancel_at(t, i);
      return;
    }
}

static void mpi_close(Transport *base, bool orderly) {
  MpiTransport *t = (MpiTransport *)base;
  if (orderly) {                         // else MPI_Finalize would wait for those that died
    while (t->n) cancel_at(t, t->n - 1);
    MPI_Finalize();
  }
  free(t->requests);
  free(t->messages);
  free(t->indices);
  free(t->statuses);
  free(t);
}

static const TransportOps mpi_ops = {"mpi", mpi_post, mpi_progress, mpi_cancel, mpi_close};

static Status open_world(MpiTransport *t) {
  int given = MPI_THREAD_SINGLE, error = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &given);
  if (error != MPI_SUCCESS) return t->host->fail(STATUS_RANK, NULL, "MPI does not start (error %d); start the processes with the mpirun of this MPI library", error);
  if (given < MPI_THREAD_SERIALIZED) {
    MPI_Finalize();
    return t->host->fail(STATUS_USAGE, NULL, "the MPI library is built without threads (level %d of %d is needed); install one with MPI_THREAD_SERIALIZED", given,
                         MPI_THREAD_SERIALIZED);
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &t->base.process);
  MPI_Comm_size(MPI_COMM_WORLD, &t->base.processes);
  return NULL;
}

__attribute__((visibility("default"))) Status tessera_transport_open(const TransportHost *host, Transport **out);
Status tessera_transport_open(const TransportHost *host, Transport **out) {
  int started = 0;
  if (host->version != TRANSPORT_PLUGIN_VERSION)
    return host->fail(STATUS_USAGE, NULL, "libtessera_mpi.so is of version %d, this program needs %d: build both together", TRANSPORT_PLUGIN_VERSION, host->version);
  MPI_Initialized(&started);
  if (started) return host->fail(STATUS_USAGE, NULL, "MPI is in use already: one endpoint per process");
  MpiTransport *t = calloc(1, sizeof *t);
  if (!t) return host->fail(STATUS_RESOURCE, NULL, "no memory for messages");
  t->host = host;
  t->base = (Transport){.ops = &mpi_ops, .polls = true};
  Status status = open_world(t);
  if (status) free(t);
  else *out = &t->base;
  return status;
}
