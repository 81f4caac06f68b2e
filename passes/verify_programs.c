// Agreement between the programs of one plan. Program p is what the ranks with coordinate p on the axis `pp` run; collectives along that axis join ranks of
// different programs, each once in every program, under one name. All other collectives join ranks of one program, which agree because they run the same steps.
//
// What waits for what is a graph: an event is one collective, of all programs where it lies along `pp`, else of one; each program adds an edge from every
// collective to its next. A circle is a deadlock: walked backwards, each of its collectives waits for the one before it on some rank.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../ir/op.h"
#include "verify_proof.h"

enum { NO_EVENT = UINT32_MAX };

typedef struct Event { const Node *node; int program; } Event;      // the first node of that event, in `program`

// One event of a program's sequence, with the program's next.
typedef struct Step { uint32_t event, next; const Node *node; int program; } Step;

typedef struct Programs {
  Proof *proof;                    // of the whole; defects name nodes of the program that they are found in
  const Graph *const *programs;
  int n, axis;                     // axis: index of `pp`
  Event *events;
  size_t n_events, events_capacity;
  Step *steps;                     // program by program, in order
  size_t n_steps, steps_capacity;
} Programs;

static bool joins_programs(const Programs *p, const Node *node) { return (node->op->flags & OP_COLLECTIVE) && attr_int(node, "axis") == p->axis; }

static const Node *named(const Graph *g, const char *name) {
  for (size_t i = 0; i < g->n_nodes; i++)
    if (!strcmp(g->nodes[i]->name, name)) return g->nodes[i];
  return NULL;
}

static int64_t bytes_of(const Node *node) { return node->n_inputs && node->inputs[0] ? value_bytes(node->inputs[0]) : 0; }

// The same collective in two programs?
static void compare(Programs *p, const Node *a, const Node *b, int program) {
  if (a->op == b->op && a->phase == b->phase && bytes_of(a) == bytes_of(b) && !strcmp(attr_string(a, "kind"), attr_string(b, "kind"))) return;
  proof_defect(p->proof, "agreement", b, NULL, "'%s' is %s of %" PRId64 " bytes in phase %s of program 0, and %s of %" PRId64 " bytes in phase %s of program %d",
               a->name, a->op->name, bytes_of(a), phase_name(a->phase), b->op->name, bytes_of(b), phase_name(b->phase), program);
}

static int64_t rounds(const Graph *g, Phase phase) { return phase == PHASE_MICRO ? g->recipe.micro_per_rank : 1; }

static void check_pairs(Programs *p) {
  const Graph *first = p->programs[0];
  for (int k = 1; k < p->n; k++) {
    const Graph *g = p->programs[k];
    for (size_t i = 0; i < first->n_nodes; i++) {
      const Node *a = first->nodes[i], *b = joins_programs(p, a) ? named(g, a->name) : NULL;
      if (joins_programs(p, a) && (!b || !joins_programs(p, b)))
        proof_defect(p->proof, "deadlock", a, NULL, "program 0 waits in '%s' for program %d, which has no such collective", a->name, k);
      else if (b) compare(p, a, b, k);
    }
    for (size_t i = 0; i < g->n_nodes; i++) {
      const Node *b = g->nodes[i], *a = joins_programs(p, b) ? named(first, b->name) : NULL;
      if (joins_programs(p, b) && (!a || !joins_programs(p, a)))
        proof_defect(p->proof, "deadlock", b, NULL, "program %d waits in '%s' for program 0, which has no such collective", k, b->name);
    }
  }
}

// ---- Order --------------------------------------------------------------------------------------------------------------------

static uint32_t event_of(Programs *p, const Node *node, int program) {
  for (size_t i = 0; program > 0 && joins_programs(p, node) && i < p->n_events; i++)
    if (!p->events[i].program && joins_programs(p, p->events[i].node) && !strcmp(p->events[i].node->name, node->name)) return (uint32_t)i;
  ARENA_PUSH(p->proof->arena, p->events, p->n_events, p->events_capacity, ((Event){node, program}));
  return (uint32_t)p->n_events - 1;
}

static void add_program(Programs *p, int program) {
  const Graph *g = p->programs[program];
  Step *before = NULL;
  for (size_t i = 0; i < g->n_nodes; i++) {
    if (!(g->nodes[i]->op->flags & OP_COLLECTIVE)) continue;
    Step step = {event_of(p, g->nodes[i], program), NO_EVENT, g->nodes[i], program};
    if (before) before->next = step.event;
    ARENA_PUSH(p->proof->arena, p->steps, p->n_steps, p->steps_capacity, step);
    before = &p->steps[p->n_steps - 1];
  }
}

// The step by which an event that has not come is held up: some program's collective before it that has not come either.
static const Step *holder(const Programs *p, uint32_t event, const bool *come) {
  for (size_t i = 0; i < p->n_steps; i++)
    if (p->steps[i].next == event && !come[p->steps[i].event]) return &p->steps[i];
  return NULL;
}

static void tell_circle(Programs *p, uint32_t event, const bool *come) {
  bool *seen = ARENA_ARRAY(p->proof->arena, bool, p->n_events);
  while (!seen[event]) {
    const Step *s = holder(p, event, come);
    if (!s) return;
    seen[event] = true;
    event = s->event;
  }
  char text[400] = "";
  size_t used = 0;
  uint32_t at = event;
  do {
    const Step *s = holder(p, at, come);
    int n = snprintf(text + used, sizeof text - used, "'%.60s' waits for program %d, which enters '%.60s' (step %u) first; ", p->events[at].node->name, s->program,
                     s->node->name, s->node->id);
    used += n > 0 ? (size_t)n : 0;
    at = s->event;
  } while (at != event && used + 180 < sizeof text);
  proof_defect(p->proof, "deadlock", p->events[event].node, NULL, "%snone of these collectives ever ends", text);
}

// Lets collectives come as long as any can; what is left waits in a circle.
static void check_circle(Programs *p) {
  uint32_t *left = ARENA_ARRAY(p->proof->arena, uint32_t, p->n_events), *ready = ARENA_ARRAY(p->proof->arena, uint32_t, p->n_events);
  bool *come = ARENA_ARRAY(p->proof->arena, bool, p->n_events);
  size_t n = 0, done = 0;
  for (size_t i = 0; i < p->n_steps; i++)
    if (p->steps[i].next != NO_EVENT) left[p->steps[i].next]++;
  for (size_t e = 0; e < p->n_events; e++)
    if (!left[e]) ready[n++] = (uint32_t)e;
  for (; done < n; done++) {
    come[ready[done]] = true;
    for (size_t i = 0; i < p->n_steps; i++)
      if (p->steps[i].event == ready[done] && p->steps[i].next != NO_EVENT && !--left[p->steps[i].next]) ready[n++] = p->steps[i].next;
  }
  for (size_t e = 0; e < p->n_events; e++)
    if (!come[e]) {
      tell_circle(p, (uint32_t)e, come);
      return;
    }
}

// ---- The whole ----------------------------------------------------------------------------------------------------------------

static bool same_mesh(const Mesh *a, const Mesh *b) {
  bool same = a->n_axes == b->n_axes;
  for (int i = 0; same && i < a->n_axes; i++) same = a->axes[i].size == b->axes[i].size && !strcmp(a->axes[i].name, b->axes[i].name);
  return same;
}

static bool check_frame(Programs *p) {
  const Graph *first = p->programs[0];
  for (int i = 0; i < first->mesh.n_axes; i++)
    if (!strcmp(first->mesh.axes[i].name, PLAN_PROGRAM_AXIS)) p->axis = i;
  int size = p->axis > 0 ? first->mesh.axes[p->axis].size : 1;
  if (size != p->n) proof_defect(p->proof, "programs", NULL, NULL, "the plan has %d programs, and axis '%s' of the mesh has %d ranks", p->n, PLAN_PROGRAM_AXIS, size);
  for (int k = 1; k < p->n; k++) {
    const Graph *g = p->programs[k];
    const Recipe *a = &first->recipe, *b = &g->recipe;
    if (!same_mesh(&first->mesh, &g->mesh) || rounds(first, PHASE_MICRO) != rounds(g, PHASE_MICRO) || a->reduce != b->reduce || a->processes != b->processes ||
        a->ranks_per_process != b->ranks_per_process)
      proof_defect(p->proof, "programs", NULL, NULL, "program %d has another mesh, other ranks, or other micro-batches or reductions than program 0", k);
  }
  return size == p->n;
}

void proof_programs(Proof *proof, const Graph *const *programs, int n) {
  Programs p = {.proof = proof, .programs = programs, .n = n};
  if (!check_frame(&p) || n < 2) return;
  size_t before = proof->n_defects;
  check_pairs(&p);
  for (int k = 0; k < n; k++) add_program(&p, k);
  if (proof->n_defects == before) check_circle(&p);
}
