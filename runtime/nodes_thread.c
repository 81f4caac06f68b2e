// The thread that makes all calls of the transport: posts what lanes hand over, progresses it while they compute, tells other processes of an abort, and finds
// out who keeps a lane waiting: past the deadline it asks every process which of its ranks have not entered the collective, and names those that are late and
// those that do not answer.
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#include "../ir/clock.h"
#include "nodes.h"

enum { POLLS_AWAKE = 200 };
static const int64_t look_ns = 100000000, idle_poll_ns = 20000000, poll_least_ns = 10000, poll_most_ns = 200000;
static const int64_t answer_ns = 300000000, answer_most_ns = 5000000000, tell_ns = 500000000;

void nodes_hand_over(Nodes *nodes, NodesMessage *message) {
  message->next = NULL;
  pthread_mutex_lock(&nodes->mutex);
  *nodes->inbox_end = message;
  nodes->inbox_end = &message->next;
  pthread_mutex_unlock(&nodes->mutex);
  transport_signal(nodes->transport);
}

// ---- Stopping the team --------------------------------------------------------------------------------------------------------

// On behalf of a lane, which then returns this error; NULL: of nobody. Takes ownership.
static void stop_team(Nodes *nodes, Lane *lane, Status status) {
  int rank = lane ? lane->base.rank : nodes->first_rank;
  char text[sizeof nodes->team->abort_text];
  status_text(status, text, sizeof text);
  if (lane) {
    status->rank = rank;
    status_free(atomic_exchange(&lane->status, status));
  } else {
    status_free(status);
  }
  nodes->well = false;
  team_abort(nodes->team, rank, text);
}

// ---- Messages -----------------------------------------------------------------------------------------------------------------

static Status post(Nodes *nodes, NodesMessage *message) {
  TRY(nodes->transport->ops->post(nodes->transport, &message->base));
  nodes->open[nodes->n_open++] = message;
  return NULL;
}

// Returns whether the thread is to end.
static bool take_inbox(Nodes *nodes) {
  pthread_mutex_lock(&nodes->mutex);
  NodesMessage *first = nodes->inbox;
  nodes->inbox = NULL;
  nodes->inbox_end = &nodes->inbox;
  bool quit = nodes->quit;
  pthread_mutex_unlock(&nodes->mutex);
  for (NodesMessage *m = first, *next; m; m = next) {
    next = m->next;
    if (team_aborted(nodes->team)) continue;               // its lane returns by itself
    Status status = post(nodes, m);
    if (status) {
      stop_team(nodes, m->lane, status);
      continue;
    }
    m->lane->n_open++;
    m->lane->last_ns = clock_now_ns();
  }
  return quit;
}

static void lane_message_done(Nodes *nodes, NodesMessage *m) {
  Lane *lane = m->lane;
  lane->n_open--;
  lane->last_ns = clock_now_ns();
  if (m->exact && m->base.moved_bytes != m->base.bytes) {
    const char *in = atomic_load(&lane->in);
    stop_team(nodes, lane, status_fail(STATUS_RANK, NULL, "rank %d expected %lld bytes of rank %d in %s, and %lld came", lane->base.rank, (long long)m->base.bytes,
                                       m->base.peer * nodes->ranks + lane->local, in ? in : "a collective", (long long)m->base.moved_bytes));
    return;
  }
  team_count(&lane->moved[m->slot], 1);
}

// ---- Control messages ---------------------------------------------------------------------------------------------------------

static void control_post_receive(Nodes *nodes) {
  nodes->control_in = (NodesMessage){.base = {.peer = TRANSPORT_ANY, .tag = CONTROL_TAG, .receives = true, .data = &nodes->incoming, .bytes = sizeof(Control)}};
  Status status = post(nodes, &nodes->control_in);
  if (status) stop_team(nodes, NULL, status);
}

static bool is_under_way(const Nodes *nodes, const NodesMessage *message) {
  for (int i = 0; i < nodes->n_open; i++)
    if (nodes->open[i] == message) return true;
  return false;
}

// Who cannot be told finds out by itself.
static void control_send(Nodes *nodes, ControlKind kind, int peer, int rank, int64_t sequence, const char *text) {
  int i = (int)kind * nodes->processes + peer;
  NodesMessage *message = &nodes->control_out[i];
  if (peer == nodes->process || is_under_way(nodes, message)) return;
  Control *c = &nodes->outgoing[i];
  *c = (Control){.magic = NODES_MAGIC, .kind = kind, .process = nodes->process, .rank = rank, .sequence = sequence};
  snprintf(c->text, sizeof c->text, "%s", text);
  *message = (NodesMessage){.base = {.peer = peer, .tag = CONTROL_TAG, .data = c, .bytes = sizeof *c}};
  status_free(post(nodes, message));
}

static void control_send_all(Nodes *nodes, ControlKind kind, int rank, int64_t sequence, const char *text) {
  for (int i = 1; i < nodes->processes; i++) control_send(nodes, kind, (nodes->process + i) % nodes->processes, rank, sequence, text);
}

// "1, 3": ranks of this process that have not entered the collective.
static void list_late(const Nodes *nodes, int64_t sequence, char *out, size_t out_bytes) {
  size_t used = 0;
  out[0] = 0;
  for (int l = 0; l < nodes->ranks && used + 16 < out_bytes; l++)
    if (atomic_load(&nodes->lanes[l].entered) < sequence)
      used += (size_t)snprintf(out + used, out_bytes - used, "%s%d", used ? ", " : "", nodes->lanes[l].base.rank);
}

static void control_handle(Nodes *nodes) {
  Control *c = &nodes->incoming;
  int from = nodes->control_in.base.peer;
  if (c->magic != NODES_MAGIC || from < 0 || from >= nodes->processes || nodes->control_in.base.moved_bytes != sizeof *c) {
    stop_team(nodes, NULL, status_fail(STATUS_RANK, NULL, "process %d sent %lld bytes that are no control message: not the same program", from,
                                       (long long)nodes->control_in.base.moved_bytes));
    return;
  }
  c->text[sizeof c->text - 1] = 0;
  char late[sizeof c->text];
  switch ((ControlKind)c->kind) {
  case CONTROL_ABORT:
    nodes->heard = true;
    nodes->well = false;
    team_abort(nodes->team, c->rank, c->text);
    break;
  case CONTROL_ASK:
    list_late(nodes, c->sequence, late, sizeof late);
    control_send(nodes, CONTROL_ANSWER, from, nodes->first_rank, c->sequence, late);
    break;
  case CONTROL_ANSWER:
    nodes->answered[from] = true;
    memcpy(nodes->late[from], c->text, sizeof c->text);
    break;
  case CONTROL_END:
    nodes->n_ended += !nodes->ended[from];
    nodes->ended[from] = true;
    break;
  case CONTROL_KINDS: break;
  }
}

static bool take_done(Nodes *nodes) {
  bool any = false, control = false;
  for (int i = 0; i < nodes->n_open;) {
    NodesMessage *m = nodes->open[i];
    if (!atomic_load(&m->base.done)) {
      i++;
      continue;
    }
    any = true;
    nodes->open[i] = nodes->open[--nodes->n_open];
    if (m == &nodes->control_in) control = true;
    else if (m->lane) lane_message_done(nodes, m);
  }
  if (control) {
    control_handle(nodes);
    control_post_receive(nodes);
  }
  return any;
}

// ---- Who is late --------------------------------------------------------------------------------------------------------------

static void ask(Nodes *nodes, Lane *lane) {
  nodes->asking = lane;
  nodes->asked_ns = clock_now_ns();
  memset(nodes->answered, 0, (size_t)nodes->processes * sizeof *nodes->answered);
  control_send_all(nodes, CONTROL_ASK, lane->base.rank, atomic_load(&lane->entered), "");
}

typedef struct Text { char *at, *end; } Text;
static void put(Text *t, const char *a, const char *b) {
  int n = snprintf(t->at, (size_t)(t->end - t->at), "%s%s", a, b);
  t->at += n < t->end - t->at ? n : t->end - t->at - 1;
}

static void name_process(Text *t, const Nodes *nodes, int process) {
  char name[64];
  int first = process * nodes->ranks;
  if (nodes->ranks == 1) snprintf(name, sizeof name, "%d (rank %d)", process, first);
  else snprintf(name, sizeof name, "%d (ranks %d to %d)", process, first, first + nodes->ranks - 1);
  put(t, name, "");
}

static Status who_is_late(const Nodes *nodes, const Lane *lane, double waited_s) {
  char late[256] = "", silent[256] = "", owing[256] = "";
  Text l = {late, late + sizeof late}, s = {silent, silent + sizeof silent}, o = {owing, owing + sizeof owing};
  char own[256];
  list_late(nodes, atomic_load(&((Lane *)lane)->entered), own, sizeof own);
  if (own[0]) put(&l, own, "");
  for (int p = 0; p < nodes->processes; p++) {
    if (p == nodes->process) continue;
    if (!nodes->answered[p]) {
      put(&s, *silent ? ", " : "", "");
      name_process(&s, nodes, p);
    } else if (nodes->late[p][0]) {
      put(&l, *late ? ", " : "", nodes->late[p]);
    }
  }
  for (int i = 0; i < nodes->n_open; i++)
    if (nodes->open[i]->lane == lane && nodes->open[i]->base.peer >= 0 && !*owing) name_process(&o, nodes, nodes->open[i]->base.peer);
  const char *in = atomic_load(&((Lane *)lane)->in);
  if (!in) in = "the end of the run";
  if (!*late && !*silent)
    FAIL(RANK, NULL, "rank %d waited %.3f s in %s; all ranks are there, but nothing moves between it and process %s", lane->base.rank, waited_s, in, owing);
  FAIL(RANK, NULL, "rank %d waited %.3f s in %s%s%s%s%s", lane->base.rank, waited_s, in, *late ? "; not there yet: rank " : "", late,
       *silent ? "; no answer from process " : "", silent);
}

// Lanes whose messages have stood still for longer than the deadline. At the end, processes that do not end.
static void watch(Nodes *nodes, bool ending, int64_t ending_since_ns) {
  int64_t now = clock_now_ns(), deadline_ns = nodes->team->deadline_ns;
  nodes->watched_ns = now;
  if (nodes->asking) {
    Lane *lane = nodes->asking;
    int64_t patience_ns = deadline_ns < answer_ns ? answer_ns : deadline_ns < answer_most_ns ? deadline_ns : answer_most_ns;
    int answers = 0;
    for (int p = 0; p < nodes->processes; p++) answers += nodes->answered[p];
    if (!ending && (!lane->n_open || now - lane->last_ns < deadline_ns)) nodes->asking = NULL;      // it goes on
    else if (answers < nodes->processes - 1 && now - nodes->asked_ns < patience_ns) return;
    else if (ending && answers == nodes->processes - 1) nodes->asking = NULL;                      // busy, not gone
    else stop_team(nodes, lane, who_is_late(nodes, lane, (double)deadline_ns / 1e9));
    return;
  }
  for (int l = 0; l < nodes->ranks && !nodes->asking; l++)
    if (nodes->lanes[l].n_open && now - nodes->lanes[l].last_ns > deadline_ns) ask(nodes, &nodes->lanes[l]);
  if (ending && !nodes->asking && now - (nodes->asked_ns > ending_since_ns ? nodes->asked_ns : ending_since_ns) > deadline_ns) ask(nodes, &nodes->lanes[0]);
}

// ---- The loop -----------------------------------------------------------------------------------------------------------------

static void tell_others(Nodes *nodes) {
  nodes->told = true;
  nodes->told_ns = clock_now_ns();
  nodes->well = false;
  if (!nodes->heard) control_send_all(nodes, CONTROL_ABORT, team_abort_rank(nodes->team), 0, team_abort_text(nodes->team));
}

static bool control_is_out(const Nodes *nodes, ControlKind kind) {
  for (int p = 0; p < nodes->processes; p++)
    if (is_under_way(nodes, &nodes->control_out[(int)kind * nodes->processes + p])) return false;
  return true;
}

// Once the team needs no more: ends when all processes have said so, or have been told why not.
static bool may_end(Nodes *nodes, int64_t *since_ns) {
  if (nodes->told) return control_is_out(nodes, CONTROL_ABORT) || clock_now_ns() - nodes->told_ns > tell_ns;
  if (!*since_ns) {
    *since_ns = clock_now_ns();
    control_send_all(nodes, CONTROL_END, nodes->first_rank, 0, "");
  }
  return nodes->n_ended == nodes->processes - 1 && control_is_out(nodes, CONTROL_END);
}

static int64_t nap_ns(const Nodes *nodes, int64_t quiet) {
  if (!nodes->transport->polls) return nodes->team->deadline_ns / 4 < look_ns ? nodes->team->deadline_ns / 4 + 1 : look_ns;
  if (nodes->n_open <= 1) return idle_poll_ns;
  if (quiet < POLLS_AWAKE) return 0;
  int64_t ns = poll_least_ns * (1 + (quiet - POLLS_AWAKE) / 16);
  return ns < poll_most_ns ? ns : poll_most_ns;
}

static void *thread_main(void *self) {
  Nodes *nodes = self;
  Transport *t = nodes->transport;
  int64_t quiet = 0, ending_since_ns = 0;
  prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
  control_post_receive(nodes);
  for (;;) {
    uint32_t seen = transport_seen(t);
    bool quit = take_inbox(nodes);
    Status status = t->ops->progress(t);
    if (status && !team_aborted(nodes->team)) stop_team(nodes, NULL, status);
    else status_free(status);
    bool any = take_done(nodes);
    if (team_aborted(nodes->team) && !nodes->told) tell_others(nodes);
    if (quit && may_end(nodes, &ending_since_ns)) return NULL;
    quiet = any ? 0 : quiet + 1;
    int64_t nap = nap_ns(nodes, quiet);
    if (!nodes->told && (nap > 0 || quiet % 64 == 0) && clock_now_ns() - nodes->watched_ns > idle_poll_ns / 2) watch(nodes, ending_since_ns != 0, ending_since_ns);
    if (any) continue;
    if (nap) transport_sleep(t, seen, nodes->told && nap > idle_poll_ns ? idle_poll_ns : nap);
    else sched_yield();
  }
}

Status nodes_thread_start(Nodes *nodes) {
  nodes->well = true;
  nodes->inbox_end = &nodes->inbox;
  nodes->watched_ns = clock_now_ns();
  pthread_mutex_init(&nodes->mutex, NULL);
  int error = pthread_create(&nodes->thread, NULL, thread_main, nodes);
  if (error) FAIL(RESOURCE, NULL, "no thread for the transport between processes: %s", strerror(error));
  nodes->started = true;
  return NULL;
}

void nodes_thread_end(Nodes *nodes) {
  pthread_mutex_lock(&nodes->mutex);
  nodes->quit = true;
  pthread_mutex_unlock(&nodes->mutex);
  transport_signal(nodes->transport);
  pthread_join(nodes->thread, NULL);
  pthread_mutex_destroy(&nodes->mutex);
  for (int i = 0; i < nodes->n_open; i++) nodes->transport->ops->cancel(nodes->transport, &nodes->open[i]->base);      // of a stopped team; and the next control
  nodes->well &= !team_aborted(nodes->team);
}
