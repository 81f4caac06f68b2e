// A plan for people and for their programs: text by sections, JSON, a graph of layers. All of it is printed from one PlanView (plan_view.h).
// Printed to a stream; nothing is kept. Everything fails with RESOURCE when memory runs out, half printed. Threads: one.
#ifndef TESSERA_SHOW_PLAN_H
#define TESSERA_SHOW_PLAN_H

#include "json_write.h"
#include "options.h"
#include "plan_view.h"
#include "style.h"

typedef struct PlanSections {
  bool comm, memory, params, schedule;     // asked for by name; none: all, long ones folded
  TextList patterns;                       // parameters that are listed (with * and ?); none: all
  const char *layer;                       // only what belongs to layers of this pattern (plan_layers.h); NULL: everything
} PlanSections;

MUST_USE Status show_plan_text(const Style *style, const Graph *program, const PlanSections *sections);
MUST_USE Status show_plan_summary(const Style *style, const Graph *program);     // a few lines, after compiling
MUST_USE Status show_plan_json(JsonWriter *w, const Graph *program);             // docs/show.md
MUST_USE Status show_plan_dot(FILE *to, const Graph *program);                   // layers and collectives, for Graphviz
MUST_USE Status show_plan_html(const char *path, const Graph *program);          // one self-contained page, from tools/report_html/; whole or not there

// ---- The sections, shared by the files show_*.c. They allocate from `arena`, under the caller's ARENA_GUARD. ----

void show_header(const Style *style, const PlanView *view);
void show_comm(const Style *style, const PlanView *view, const PlanSections *sections, Arena *arena);
void show_tiers(const Style *style, const PlanView *view, const PlanSections *sections, Arena *arena);
void show_time(const Style *style, const PlanView *view, Arena *arena);
void show_memory(const Style *style, const PlanView *view, const PlanSections *sections, Arena *arena);
void show_params(const Style *style, const PlanView *view, const PlanSections *sections);
void show_schedule(const Style *style, const PlanView *view, const PlanSections *sections, Arena *arena);

// Is this section wanted? Those asked for, or all when none was.
bool sections_take(const PlanSections *sections, bool section);

// "account": from the least that must be sent to what is sent; the same for --json and --html.
void show_write_account(JsonWriter *w, const PlanView *v);

#endif
