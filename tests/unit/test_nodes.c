// Between processes below the collectives: the contract of a transport, peers that misbehave, and the bytes on the wire against their formulas.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../../ir/clock.h"
#include "../../runtime/nodes.h"

static const int64_t second_ns = 1000000000;

static void ok(Status s) {
  if (s) fail_msg("%s", s->what);
}
static void expect(Status s, const char *says) {
  assert_non_null(s);
  assert_int_equal(status_code(s), STATUS_RANK);
  if (!strstr(s->what, says)) fail_msg("'%s' does not say '%s'", s->what, says);
  status_free(s);
}

// ---- Transport ----------------------------------------------------------------------------------------------------------------

static void post(Transport *t, TransportMessage *m) { ok(t->ops->post(t, m)); }
static TransportMessage to(int peer, int tag, void *data, int64_t bytes) { return (TransportMessage){.peer = peer, .tag = tag, .data = data, .bytes = bytes}; }
static TransportMessage from(int peer, int tag, void *data, int64_t bytes) {
  return (TransportMessage){.peer = peer, .tag = tag, .receives = true, .data = data, .bytes = bytes};
}

static void carries(void **state) {
  Transport *t[3];
  ok(transport_threads_create(3, t));
  char a[] = "first", b[] = "second", c[] = "third!", x[6] = "", y[7] = "", z[4] = "";
  TransportMessage s1 = to(1, 5, a, 6), s2 = to(1, 5, b, 7), s3 = to(1, 6, c, 7), s4 = to(1, 9, a, 0), s5 = to(1, 7, a, 6);
  TransportMessage r1 = from(0, 5, x, 6), r2 = from(0, 5, y, 7), r3 = from(TRANSPORT_ANY, 6, z, 4), r4 = from(0, 9, NULL, 0), r5 = from(0, 8, x, 6);
  post(t[0], &s1);                                  // in the order of each tag, whoever comes first
  post(t[1], &r4);
  post(t[2], &s3);
  post(t[1], &r1);
  post(t[1], &r2);
  post(t[0], &s2);
  post(t[0], &s4);
  post(t[1], &r3);                                  // longer than its room: cut off, and seen
  assert_true(s1.done && s2.done && s3.done && s4.done && r1.done && r2.done && r3.done && r4.done);
  assert_string_equal(x, "first");
  assert_string_equal(y, "second");
  assert_memory_equal(z, "thir", 4);
  assert_true(r3.moved_bytes == 7 && r3.peer == 2 && r4.moved_bytes == 0);
  post(t[0], &s5);
  post(t[1], &r5);
  t[0]->ops->cancel(t[0], &s5);
  t[1]->ops->cancel(t[1], &r5);
  TransportMessage r6 = from(0, 7, x, 6), s6 = to(1, 8, b, 7);
  post(t[1], &r6);
  post(t[0], &s6);
  assert_false(r6.done || s6.done || s5.done || r5.done);      // what was withdrawn meets nobody
  transport_close(t[0], false);
  expect(t[1]->ops->progress(t[1]), "process 0 has ended");
  TransportMessage s7 = to(0, 5, a, 6);
  expect(t[1]->ops->post(t[1], &s7), "process 0 has ended");
  transport_close(t[1], false);
  transport_close(t[2], true);
}

typedef struct Exchange { Transport *t; int64_t bytes, deadline_ns; int32_t got[6]; Status status; pthread_t id; } Exchange;
static void *exchange_main(void *p) {
  Exchange *e = p;
  int32_t mine[2] = {e->t->process + 10, 7};
  e->status = transport_exchange(e->t, mine, e->got, e->bytes, e->deadline_ns);
  return NULL;
}

static void exchanges(void **state) {
  Transport *t[3];
  ok(transport_threads_create(3, t));
  Exchange e[3];
  for (int p = 0; p < 3; p++) {
    e[p] = (Exchange){.t = t[p], .bytes = 8, .deadline_ns = 60 * second_ns};
    assert_int_equal(pthread_create(&e[p].id, NULL, exchange_main, &e[p]), 0);
  }
  for (int p = 0; p < 3; p++) pthread_join(e[p].id, NULL);
  for (int p = 0; p < 3; p++) {
    ok(e[p].status);
    for (int q = 0; q < 3; q++) assert_int_equal(e[p].got[2 * q], q + 10);
  }
  e[0].deadline_ns = second_ns / 20;                // alone
  exchange_main(&e[0]);
  expect(e[0].status, "process 0 of 3 waited 0.050 s for the others to start; not there yet: process 1, 2");
  for (int p = 0; p < 3; p++) transport_close(t[p], false);
}

// ---- Peers that misbehave: process 0 is real, process 1 is played --------------------------------------------------------------

typedef struct Victim { Transport *t[2]; Team *team; Nodes *nodes; pthread_t id; Status status; float whole[128]; } Victim;

static void *victim_main(void *p) {
  Victim *v = p;
  Comm *c = nodes_comm(v->nodes, 0);
  v->status = c->ops->all_gather(c, 0, v->whole, v->whole, 64, DTYPE_F32);
  return NULL;
}

static void victim_start(Victim *v, int64_t deadline_ns) {
  memset(v, 0, sizeof *v);
  ok(transport_threads_create(2, v->t));
  ok(team_create(1, 1, 0, deadline_ns, &v->team));
  ok(nodes_create(v->team, v->t[0], NULL, &v->nodes));
  assert_int_equal(pthread_create(&v->id, NULL, victim_main, v), 0);
}

static void victim_end(Victim *v, const char *says) {
  pthread_join(v->id, NULL);
  expect(v->status, says);
  assert_false(nodes_destroy(v->nodes));
  transport_close(v->t[0], false);
  team_destroy(v->team);
}

static void wait_done(Transport *t, TransportMessage *m) {
  while (!atomic_load(&m->done)) {
    uint32_t seen = transport_seen(t);
    if (!atomic_load(&m->done)) transport_sleep(t, seen, second_ns / 10);
  }
}

static void silent(void **state) {                  // as a stopped process: nothing answers
  Victim v;
  victim_start(&v, second_ns / 5);
  victim_end(&v, "rank 0 waited 0.200 s in AllGather; no answer from process 1 (rank 1)");
  transport_close(v.t[1], false);
}

static void leaves(void **state) {
  Victim v;
  victim_start(&v, 60 * second_ns);
  transport_close(v.t[1], false);
  victim_end(&v, "process 1 has ended");
}

static void no_header(void **state) {
  Victim v;
  char garbage[100] = "what is this", header[HEADER_BYTES];
  victim_start(&v, 60 * second_ns);
  TransportMessage in = from(0, LANE_HEADERS, header, sizeof header), m = to(0, LANE_HEADERS, garbage, sizeof garbage);
  post(v.t[1], &in);
  post(v.t[1], &m);
  victim_end(&v, "process 1 sent something that is no header");
  transport_close(v.t[1], false);
}

static void no_control(void **state) {
  Victim v;
  char garbage[100] = "what is this";
  victim_start(&v, 60 * second_ns);
  TransportMessage m = to(0, CONTROL_TAG, garbage, sizeof garbage);
  post(v.t[1], &m);
  victim_end(&v, "process 1 sent 100 bytes that are no control message");
  transport_close(v.t[1], false);
}

static void plays_wrong_size(int64_t bytes, const char *says) {
  Victim v;
  NodesHeader header;
  char data[512] = "";
  victim_start(&v, 60 * second_ns);
  TransportMessage in = from(0, LANE_HEADERS, &header, sizeof header), out, wrong = to(0, 0, data, bytes);
  post(v.t[1], &in);
  wait_done(v.t[1], &in);
  NodesHeader answer = header;
  answer.rank = 1;
  out = to(0, LANE_HEADERS, &answer, sizeof answer);
  post(v.t[1], &out);
  post(v.t[1], &wrong);
  victim_end(&v, says);
  transport_close(v.t[1], false);
}
static void truncated(void **state) { plays_wrong_size(100, "rank 0 expected 256 bytes of rank 1 in AllGather, and 100 came"); }
static void too_long(void **state) { plays_wrong_size(300, "rank 0 expected 256 bytes of rank 1 in AllGather, and 300 came"); }

// ---- Bytes on the wire ---------------------------------------------------------------------------------------------------------

typedef struct Wire { Comm *comm; int kind; int64_t elems; Dtype dtype; char *data; Status status; pthread_t id; } Wire;
static void *wire_main(void *p) {
  Wire *w = p;
  Comm *c = w->comm;
  if (w->kind == 0) w->status = c->ops->all_gather(c, 0, w->data + c->rank * w->elems * dtype_bytes(w->dtype), w->data, w->elems, w->dtype);
  else if (w->kind == 1) w->status = c->ops->reduce_scatter(c, 0, w->data, w->data + c->rank * w->elems * dtype_bytes(w->dtype), w->elems, w->dtype, false);
  else w->status = c->ops->all_reduce(c, 0, w->data, w->elems, w->dtype);
  return NULL;
}

static void *end_main(void *nodes) {
  nodes_destroy(nodes);
  return NULL;
}

static void wire_case(int processes, int each, int kind, int64_t elems, Dtype dtype) {
  enum { MOST = 16 };
  Transport *t[MOST];
  Team *teams[MOST];
  Nodes *nodes[MOST];
  Wire w[MOST];
  pthread_t ends[MOST];
  ok(transport_threads_create(processes, t));
  for (int p = 0; p < processes; p++) {
    ok(team_create(each, 1, 0, 60 * second_ns, &teams[p]));
    ok(nodes_create(teams[p], t[p], NULL, &nodes[p]));
    for (int l = 0; l < each; l++) {
      Wire *r = &w[p * each + l];
      *r = (Wire){.comm = nodes_comm(nodes[p], l), .kind = kind, .elems = elems, .dtype = dtype, .data = calloc((size_t)(elems * processes * each) + 1, 8)};
      assert_int_equal(pthread_create(&r->id, NULL, wire_main, r), 0);
    }
  }
  int64_t most = 0, wanted = kind == 0   ? comm_gather_wire_bytes(processes, each, elems * dtype_bytes(dtype))
                             : kind == 1 ? comm_scatter_wire_bytes(processes, each, elems, dtype)
                                         : comm_all_reduce_wire_bytes(processes, each, elems, dtype);
  for (int r = 0; r < processes * each; r++) {
    pthread_join(w[r].id, NULL);
    ok(w[r].status);
    free(w[r].data);
  }
  for (int p = 0; p < processes; p++) {
    int64_t bytes = 0;
    for (int l = 0; l < each; l++) bytes += w[p * each + l].comm->wire_bytes;
    if (bytes > most) most = bytes;
  }
  if (most != wanted)
    fail_msg("%d x %d, kind %d, %lld x %s: %lld bytes on the wire, not %lld", processes, each, kind, (long long)elems, dtype_name(dtype), (long long)most,
             (long long)wanted);
  for (int p = 0; p < processes; p++) assert_int_equal(pthread_create(&ends[p], NULL, end_main, nodes[p]), 0);
  for (int p = 0; p < processes; p++) pthread_join(ends[p], NULL);
  for (int p = 0; p < processes; p++) {
    transport_close(t[p], true);
    team_destroy(teams[p]);
  }
}

static void wire_bytes(void **state) {
  static const int shapes[][2] = {{1, 3}, {2, 1}, {2, 2}, {3, 1}, {2, 3}, {4, 2}};
  static const Dtype dtypes[] = {DTYPE_F32, DTYPE_BF16};
  for (int s = 0; s < 6; s++)
    for (int kind = 0; kind < 3; kind++)
      for (int d = 0; d < 2; d++) {
        wire_case(shapes[s][0], shapes[s][1], kind, 1000, dtypes[d]);
        wire_case(shapes[s][0], shapes[s][1], kind, 5003, dtypes[d]);
      }
  assert_int_equal(comm_gather_wire_bytes(2, 4, 100), 400);             // half of 8 shards
  assert_int_equal(comm_scatter_wire_bytes(2, 4, 100, DTYPE_BF16), 1600);   // sums travel as f32
  assert_int_equal(comm_scatter_wire_bytes(4, 1, 100, DTYPE_BF16), 600);    // summands as they are
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(carries),   cmocka_unit_test(exchanges),  cmocka_unit_test(silent),
                                     cmocka_unit_test(leaves),    cmocka_unit_test(no_header),  cmocka_unit_test(no_control),
                                     cmocka_unit_test(truncated), cmocka_unit_test(too_long),   cmocka_unit_test(wire_bytes)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
