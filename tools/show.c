// tessera show: what a model holds, or what a plan does, sends and needs.
#include <fnmatch.h>

#include "command.h"
#include "expect.h"
#include "graph_file.h"
#include "plan_layers.h"
#include "printable.h"
#include "show_model.h"
#include "show_plan.h"
#include "trace_file.h"

// A pattern that takes nothing is a mistake.
static Status check_patterns(const Graph *g, const Options *o, Arena *arena) {
  ARENA_GUARD(arena);
  bool taken = !o->layer;
  const PlanLayers layers = taken ? (PlanLayers){0} : plan_layers(g, NULL, 0, arena);
  for (size_t i = 0; i < layers.n; i++) taken |= layers.items[i].name[0] && layer_pattern_matches(o->layer, layers.items[i].name);
  for (size_t i = 0; i < g->n_nodes && !taken; i++) taken = layer_pattern_takes_step(o->layer, &layers, g->nodes[i]);
  if (!taken)
    ARENA_RETURN(arena, status_fail(STATUS_USAGE, NULL, "--layer %s matches no layer, parameter or node of the plan; 'tessera show %s --params' lists the layers",
                                    o->layer, o->input));
  for (int i = 0; i < o->params.n; i++) {
    bool found = !o->params.items[i][0];
    for (size_t b = 0; b < g->n_buckets && !found; b++)
      for (int k = 0; k < g->buckets[b].n_params; k++) found |= !fnmatch(o->params.items[i], g->buckets[b].params[k], 0);
    if (!found)
      ARENA_RETURN(arena, status_fail(STATUS_USAGE, NULL, "--params %s matches no parameter of the plan; 'tessera show %s --params' lists them", o->params.items[i],
                                      o->input));
  }
  ARENA_RETURN(arena, STATUS_OK);
}

static Status show_text(const Flow *flow, const Style *style, const PlanSections *sections) {
  ARENA_GUARD(flow->arena);
  printable_graph(flow->graph);
  ARENA_RETURN(flow->arena, show_plan_text(style, flow->graph, sections));
}

static Status show_plan(const Flow *flow, const Options *o) {
  TRY(check_patterns(flow->graph, o, flow->arena));
  PlanSections sections = {.comm = o->comm, .memory = o->show_memory, .params = o->given.params, .patterns = o->params, .schedule = o->schedule, .layer = o->layer};
  Style style = style_for(stdout, o->color);
  if (o->html) TRY(show_plan_html(o->html, flow->graph));
  if (o->trace) TRY(trace_file_write(o->trace, flow->graph, NULL));
  bool printed = o->json || o->dot || o->metrics || o->comm || o->show_memory || o->given.params || o->schedule || o->layer;
  if ((o->html || o->trace) && !printed) return STATUS_OK;
  if (o->metrics) return metrics_print(flow->graph);
  if (o->json) return show_plan_json(&(JsonWriter){.to = stdout}, flow->graph);
  if (o->dot) return show_plan_dot(stdout, flow->graph);
  return show_text(flow, &style, &sections);
}

// What is about plans only would be ignored.
static Status check_model_options(const Options *o) {
  const struct { const char *name; bool given; } about_plans[] = {
    {"comm", o->comm}, {"memory", o->show_memory}, {"schedule", o->schedule}, {"layer", o->layer != NULL}, {"dot", o->dot}, {"html", o->html != NULL},
    {"trace", o->trace != NULL},
  };
  for (size_t i = 0; i < sizeof about_plans / sizeof *about_plans; i++)
    if (about_plans[i].given) FAIL(USAGE, NULL, "--%s is about plans, and '%s' is a model; 'tessera compile' makes a plan of it", about_plans[i].name, o->input);
  return STATUS_OK;
}

// Standard output takes one of them.
static Status check_form(const Options *o) {
  const struct { const char *name; bool given; } forms[] = {{"metrics", o->metrics}, {"json", o->json}, {"dot", o->dot}};
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
    for (size_t k = i + 1; k < sizeof forms / sizeof *forms; k++)
      if (forms[i].given && forms[k].given) FAIL(USAGE, NULL, "--%s and --%s both write to standard output; give one of them", forms[i].name, forms[k].name);
  return STATUS_OK;
}

static Status show(GraphFile *file, const Options *o) {
  TRY(graph_file_open_plan(o, file));
  TRY(flow_check_one_program(o, &file->flow));
  if (file->flow.is_plan) return show_plan(&file->flow, o);
  TRY(check_model_options(o));
  return show_model(&file->flow, o);
}

Status command_show(const Options *options) {
  GraphFile file = {0};
  TRY(expect_parse(options));
  TRY(check_form(options));
  Status status = show(&file, options);
  if (!status) status = expect_check(options, file.flow.graph);
  graph_file_close(&file);
  return status;
}
