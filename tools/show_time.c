// The section `time`: an estimate of a step by phase and by what its steps do.
#include <string.h>

#include "../ir/op.h"
#include "show_plan.h"

enum { KINDS_SHOWN = 10 };
typedef struct OpTime { const char *op; Phase phase; double seconds; int64_t count; } OpTime;

static void row(const Style *s, const char *name, double seconds, double total, const char *note) {
  char text[32];
  fprintf(s->to, "  %-32s %s%10s%s %5.1f %%  %s%s%s\n", name, style_on(s, TONE_NUMBER), seconds_text(seconds, text), style_off(s),
          total > 0 ? 100 * seconds / total : 0,
          style_on(s, TONE_DIM), note ? note : "", style_off(s));
}

// Seconds in a training step by phase and operator, largest first; returns how many there are.
static size_t by_op(const PlanView *v, Arena *arena, OpTime **out) {
  const Graph *g = v->graph;
  OpTime *ops = NULL;
  size_t n = 0, capacity = 0;
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *node = g->nodes[i];
    if (node->phase == PHASE_INIT) continue;
    int64_t times = node->phase == PHASE_MICRO ? g->recipe.micro_per_rank : 1;
    size_t k = 0;
    while (k < n && (ops[k].phase != node->phase || strcmp(ops[k].op, node->op->name))) k++;
    if (k == n) ARENA_PUSH(arena, ops, n, capacity, ((OpTime){.op = node->op->name, .phase = node->phase}));
    ops[k].seconds += (double)times * view_step_seconds(v, node->id);
    ops[k].count = bytes_add(ops[k].count, times);
  }
  for (size_t i = 1; i < n; i++)
    for (size_t k = i; k > 0 && ops[k].seconds > ops[k - 1].seconds; k--) {
      OpTime swap = ops[k];
      ops[k] = ops[k - 1];
      ops[k - 1] = swap;
    }
  *out = ops;
  return n;
}

void show_time(const Style *s, const PlanView *v, Arena *arena) {
  if (v->no_estimate) {
    style_heading(s, "time", arena_printf(arena, "no estimate: %s", v->no_estimate));
    return;
  }
  const Simulation *e = &v->estimate;
  char text[32];
  style_heading(s, "time", arena_printf(arena, "estimated for the machine '%s': %s a step", v->machine.name, seconds_text(e->step_s, text)));
  double k = (double)v->graph->recipe.micro_per_rank;
  row(s, "micro-batches", k * e->phase_s[PHASE_MICRO], e->step_s, k > 1 ? arena_printf(arena, "%.0f, each %s", k, seconds_text(e->phase_s[PHASE_MICRO], text)) : NULL);
  row(s, "update", e->phase_s[PHASE_UPDATE], e->step_s, NULL);
  row(s, "communication", e->comm_s, e->step_s, arena_printf(arena, "%s of it stand in the way of computing", seconds_text(e->exposed_s, text)));
  OpTime *ops;
  size_t n = by_op(v, arena, &ops);
  style_heading(s, "by operator", NULL);
  for (size_t i = 0; i < n && i < KINDS_SHOWN && ops[i].seconds > 0; i++)
    row(s, arena_printf(arena, "%s, %s", ops[i].op, phase_name(ops[i].phase)), ops[i].seconds, e->step_s, arena_printf(arena, "%lld a step", (long long)ops[i].count));
}
