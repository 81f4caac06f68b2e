#include "trace_file.h"

#include <inttypes.h>
#include <string.h>

#include "../ir/op.h"
#include "json_write.h"
#include "plan_view.h"
#include "text_file.h"

enum { PLANNED_EVENTS_MAX = 1000000 };   // of the planned micro-batches; the others are alike

typedef struct TraceText {
  FILE *to;
  const PlanView *view;
  Arena *arena;
  const Trace *measured;
  bool has_event;
  int64_t n_flows;
  int64_t counter_ns;              // where the counter of memory stands
} TraceText;

// ---- One event ----------------------------------------------------------------------------------------------------------------

static JsonWriter begin_event(TraceText *t, const char *kind, int pid, int tid) {
  fputs(t->has_event ? ",\n" : "\n", t->to);
  t->has_event = true;
  JsonWriter w = {.to = t->to, .depth = 3};      // deep: on one line
  json_write_object(&w, NULL);
  json_write_text(&w, "ph", kind);
  json_write_int(&w, "pid", pid);
  json_write_int(&w, "tid", tid);
  return w;
}

// Microseconds, to the nanosecond: as integers of nanoseconds, so that slices which touch do so in the file.
static void write_us(JsonWriter *w, const char *key, int64_t ns) {
  char text[40];
  snprintf(text, sizeof text, "%" PRId64 ".%03d", ns / 1000, (int)(ns % 1000));
  json_write_raw(w, key, text);
}

static void name_event(TraceText *t, int pid, int tid, const char *what, const char *name) {
  JsonWriter w = begin_event(t, "M", pid, tid);
  json_write_text(&w, "name", what);
  json_write_object(&w, "args");
  json_write_text(&w, "name", name);
  json_write_end_object(&w);
  json_write_end_object(&w);
}

static void name_process(TraceText *t, int pid, const char *name) {
  name_event(t, pid, 0, "process_name", name);
  JsonWriter w = begin_event(t, "M", pid, 0);
  json_write_text(&w, "name", "process_sort_index");
  json_write_object(&w, "args");
  json_write_int(&w, "sort_index", pid);
  json_write_end_object(&w);
  json_write_end_object(&w);
  for (int q = 0; q < QUEUE_COUNT; q++)
    if (t->view->queues[q]) name_event(t, pid, q, "thread_name", queue_name((Queue)q));
}

static const char *category_of(const Node *n, bool sends) {
  if (sends) return n->op->flags & OP_SUMS_RANKS ? "sum" : "gather";
  return n->phase == PHASE_INIT ? "start" : n->phase == PHASE_UPDATE ? "update" : n->backward ? "backward" : "forward";
}

typedef struct Slice { const Node *node; int pid; int64_t begin_ns, end_ns, waited_ns, step, micro; } Slice;

static void write_slice(TraceText *t, const Slice *s) {
  const PlanView *v = t->view;
  const Node *n = s->node;
  bool own = n->id < v->graph->n_nodes && v->graph->nodes[n->id] == n;     // else of another variant, whose layers are not known
  const LedgerEntry *entry = own && v->entry_of_step[n->id] >= 0 ? &v->ledger[v->entry_of_step[n->id]] : NULL;
  const char *layer = own ? v->layers.items[v->layers.of_step[n->id]].name : "";
  JsonWriter w = begin_event(t, "X", s->pid, n->queue);
  write_us(&w, "ts", s->begin_ns);
  write_us(&w, "dur", s->end_ns - s->begin_ns);
  json_write_text(&w, "name", n->op->name);
  json_write_text(&w, "cat", category_of(n, n->op->sent_bytes != NULL));
  json_write_object(&w, "args");
  json_write_int(&w, "step", n->id);
  if (s->step >= 0) json_write_int(&w, "training_step", s->step);
  if (n->phase == PHASE_MICRO) json_write_int(&w, "micro", s->micro);
  if (layer[0]) json_write_text(&w, "layer", layer);
  if (n->origin) json_write_text(&w, "node", n->origin);
  if (n->cause.param) json_write_text(&w, "param", n->cause.param);
  if (entry) {
    json_write_int(&w, "sent_bytes", entry->bytes);
    json_write_text(&w, "wire", dtype_name(entry->wire));
    json_write_text(&w, "for", ledger_purpose(v->graph, entry));
  }
  if (s->waited_ns) write_us(&w, "waited_us", s->waited_ns);
  json_write_end_object(&w);
  json_write_end_object(&w);
}

// A slice around the steps of one execution of a phase, on the compute queue.
static void write_span(TraceText *t, int pid, const char *name, int64_t begin_ns, int64_t end_ns) {
  JsonWriter w = begin_event(t, "X", pid, QUEUE_COMPUTE);
  write_us(&w, "ts", begin_ns);
  write_us(&w, "dur", end_ns - begin_ns);
  json_write_text(&w, "name", name);
  json_write_text(&w, "cat", "phase");
  json_write_end_object(&w);
}

static void write_flow_end(TraceText *t, const char *kind, int pid, const Node *node, int64_t ns, int64_t id) {
  JsonWriter w = begin_event(t, kind, pid, node->queue);
  write_us(&w, "ts", ns);
  json_write_text(&w, "name", "wait");
  json_write_text(&w, "cat", "wait");
  json_write_int(&w, "id", id);
  if (kind[0] == 'f') json_write_text(&w, "bp", "e");
  json_write_end_object(&w);
}

// An arrow from the end of `from` to the begin of `to`.
static void write_wait(TraceText *t, int pid, const Node *from, int64_t from_ns, const Node *to, int64_t to_ns) {
  int64_t id = ++t->n_flows;
  write_flow_end(t, "s", pid, from, from_ns, id);
  write_flow_end(t, "f", pid, to, to_ns, id);
}

// ---- The planned schedule -------------------------------------------------------------------------------------------------------

static int64_t to_ns(double seconds) { return (int64_t)(seconds * 1e9 + 0.5); }

// Memory is planned in the order of the steps; those of another queue may begin earlier than their neighbours, and a counter does not go back.
static void write_memory_at(TraceText *t, int pid, uint32_t step, int64_t ns) {
  if (ns < t->counter_ns) ns = t->counter_ns;
  t->counter_ns = ns;
  for (int k = 0; k < t->view->n_curves; k++) {
    const MemoryCurve *c = &t->view->curves[k];
    bool same = step > 0;
    for (int i = 0; same && i < CATEGORY_COUNT; i++) same = !c->live[i] || c->live[i][step] == c->live[i][step - 1];
    if (same) continue;
    JsonWriter w = begin_event(t, "C", pid, 0);
    write_us(&w, "ts", ns);
    json_write_text(&w, "name", arena_printf(t->arena, "live bytes of a process, %s", tier_name(c->tier)));
    json_write_object(&w, "args");
    for (int i = 0; i < CATEGORY_COUNT; i++)
      if (c->live[i]) json_write_int(&w, category_name((Category)i), c->live[i][step]);
    json_write_end_object(&w);
    json_write_end_object(&w);
  }
}

// One execution of a phase that starts at `base_ns`; returns when it ends.
static int64_t write_planned_phase(TraceText *t, int pid, Phase phase, int64_t micro, int64_t base_ns, const char *name) {
  const Graph *g = t->view->graph;
  const StepTime *times = t->view->estimate.steps;
  int64_t end_ns = base_ns;
  for (size_t i = 0; i < g->n_nodes; i++)
    if (g->nodes[i]->phase == phase && base_ns + to_ns(times[i].end_s) > end_ns) end_ns = base_ns + to_ns(times[i].end_s);
  write_span(t, pid, name, base_ns, end_ns);
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *n = g->nodes[i];
    if (n->phase != phase) continue;
    Slice slice = {n, pid, base_ns + to_ns(times[i].start_s), base_ns + to_ns(times[i].end_s), 0, phase == PHASE_INIT ? -1 : 0, micro};
    write_memory_at(t, pid, n->id, slice.begin_ns);
    write_slice(t, &slice);
    for (int w = 0; w < n->n_waits; w++) write_wait(t, pid, g->nodes[n->waits[w]], base_ns + to_ns(times[n->waits[w]].end_s), n, slice.begin_ns);
  }
  return end_ns;
}

static void write_planned(TraceText *t, int pid) {
  const Recipe *r = &t->view->graph->recipe;
  int ranks = mesh_ranks(&t->view->graph->mesh);
  int64_t shown = r->micro_per_rank, room = PLANNED_EVENTS_MAX / (int64_t)(t->view->n_steps[PHASE_MICRO] + 1);
  if (shown > room) shown = room > 0 ? room : 1;
  name_process(t, pid, arena_printf(t->arena, "planned, %s of %d rank%s (estimated for the machine '%s')", ranks > 1 ? "each" : "the one", ranks, ranks == 1 ? "" : "s",
                                    t->view->machine.name));
  int64_t ns = write_planned_phase(t, pid, PHASE_INIT, 0, 0, "start");
  for (int64_t j = 0; j < shown; j++)
    ns = write_planned_phase(t, pid, PHASE_MICRO, j, ns, arena_printf(t->arena, "micro-batch %" PRId64 " of %" PRId64, j, r->micro_per_rank));
  write_planned_phase(t, pid, PHASE_UPDATE, shown - 1, ns, "update");
}

// ---- What was measured ----------------------------------------------------------------------------------------------------------

static int64_t first_ns(const Trace *trace) {
  int64_t first = INT64_MAX;
  for (int r = 0; r < trace_ranks(trace); r++)
    for (int q = 0; q < QUEUE_COUNT; q++) {
      const TraceLane *lane = trace_lane((Trace *)(uintptr_t)trace, r, (Queue)q);
      if (lane && trace_lane_events(lane) && trace_lane_event(lane, 0)->begin_ns < first) first = trace_lane_event(lane, 0)->begin_ns;
    }
  return first;
}

static bool same_execution(const TraceEvent *a, const TraceEvent *b) { return a->step == b->step && a->micro == b->micro && a->node->phase == b->node->phase; }

static const char *execution_name(const TraceText *t, const TraceEvent *e) {
  if (e->node->phase == PHASE_INIT) return "start";
  if (e->node->phase == PHASE_UPDATE) return arena_printf(t->arena, "update of step %" PRId64, e->step);
  return arena_printf(t->arena, "step %" PRId64 ", micro-batch %" PRId64, e->step, e->micro);
}

// Ends of the steps of other queues in the execution that `event` is part of: for arrows. NULL: not kept any more.
static const TraceEvent *find_event(const Trace *trace, int rank, const TraceEvent *event, const Node *node, int64_t *at) {
  const TraceLane *lane = trace_lane((Trace *)(uintptr_t)trace, rank, node->queue);
  for (int64_t n = lane ? trace_lane_events(lane) : 0; *at < n; ++*at) {
    const TraceEvent *e = trace_lane_event(lane, *at);
    if (e->node == node && same_execution(e, event)) return e;
    if (e->begin_ns > event->begin_ns) return NULL;
  }
  return NULL;
}

static void write_lane(TraceText *t, int rank, Queue queue, int64_t base_ns) {
  const TraceLane *lane = trace_lane((Trace *)(uintptr_t)t->measured, rank, queue);
  int64_t n = lane ? trace_lane_events(lane) : 0, cursors[QUEUE_COUNT] = {0};
  const TraceEvent *before = NULL;
  for (int64_t i = 0; i < n; i++) {
    const TraceEvent *e = trace_lane_event(lane, i);
    if (queue == QUEUE_COMPUTE && (!before || !same_execution(before, e))) {
      int64_t last = i;
      while (last + 1 < n && same_execution(trace_lane_event(lane, last + 1), e)) last++;
      write_span(t, rank, execution_name(t, e), e->begin_ns - base_ns, trace_lane_event(lane, last)->end_ns - base_ns);
    }
    write_slice(t, &(Slice){e->node, rank, e->begin_ns - base_ns, e->end_ns - base_ns, e->waited_ns, e->step, e->micro});
    for (int w = 0; w < e->node->n_waits; w++) {
      const Node *from = t->view->graph->nodes[e->node->waits[w]];
      int64_t from_cursor = cursors[from->queue];
      const TraceEvent *waited = find_event(t->measured, rank, e, from, &from_cursor);
      if (!waited) continue;
      cursors[from->queue] = from_cursor > 64 ? from_cursor - 64 : 0;      // waits name steps roughly in order
      write_wait(t, rank, from, waited->end_ns - base_ns, e->node, e->begin_ns - base_ns);
    }
    before = e;
  }
}

static void write_measured(TraceText *t) {
  int64_t base_ns = first_ns(t->measured);
  for (int r = 0; r < trace_ranks(t->measured); r++) {
    name_process(t, r, arena_printf(t->arena, "rank %d, measured", r));
    for (int q = 0; q < QUEUE_COUNT; q++) write_lane(t, r, (Queue)q, base_ns);
  }
}

// ---- The file -------------------------------------------------------------------------------------------------------------------

static void write_document(TraceText *t) {
  const Recipe *r = &t->view->graph->recipe;
  JsonWriter w = {.to = t->to};
  json_write_object(&w, NULL);
  json_write_text(&w, "displayTimeUnit", "ms");
  json_write_object(&w, "otherData");
  json_write_text(&w, "model", r->model);
  json_write_int(&w, "ranks", mesh_ranks(&t->view->graph->mesh));
  json_write_int(&w, "zero", r->zero);
  json_write_int(&w, "sent_bytes_per_step", t->view->bytes.sent_bytes);
  json_write_text(&w, "no_estimate", t->view->no_estimate);
  json_write_end_object(&w);
  json_write_array(&w, "traceEvents");
  if (!t->view->no_estimate) write_planned(t, t->measured ? trace_ranks(t->measured) : 0);
  if (t->measured) write_measured(t);
  json_write_end_array(&w);
  json_write_end_object(&w);
}

typedef struct Request { const Graph *program; const Trace *measured; Arena *arena; } Request;

static Status write_guarded(FILE *to, const Request *request) {
  ARENA_GUARD(request->arena);
  PlanView view = plan_view(request->program, request->arena);
  write_document(&(TraceText){.to = to, .view = &view, .arena = request->arena, .measured = request->measured});
  ARENA_RETURN(request->arena, STATUS_OK);
}

static Status write_text(FILE *to, void *self) { return write_guarded(to, self); }

Status trace_file_write(const char *path, const Graph *program, const Trace *measured) {
  Request request = {program, measured, arena_create(0)};
  if (!request.arena) FAIL(RESOURCE, NULL, "out of memory while writing a trace");
  Status status = text_file_write(path, "the trace", write_text, &request);
  arena_destroy(request.arena);
  return status;
}
