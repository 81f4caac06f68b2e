// tessera show: what a model holds, or what a plan does, sends and needs.
#include "command.h"
#include "compile_flow.h"
#include "expect.h"
#include "show_model.h"
#include "show_plan.h"
#include "trace_file.h"

static Status show_plan(const Flow *flow, const Options *o) {
  PlanSections sections = {.comm = o->comm, .memory = o->memory, .params = o->given.params, .patterns = o->params, .schedule = o->schedule, .layer = o->layer};
  Style style = style_for(stdout, o->color);
  if (o->html) TRY(show_plan_html(o->html, flow->graph));
  if (o->trace) TRY(trace_file_write(o->trace, flow->graph, NULL));
  bool printed = o->json || o->dot || o->metrics || o->comm || o->memory || o->given.params || o->schedule || o->layer;
  if ((o->html || o->trace) && !printed) return STATUS_OK;
  if (o->metrics) return metrics_print(flow->graph);
  if (o->json) return show_plan_json(&(JsonWriter){.to = stdout}, flow->graph);
  if (o->dot) return show_plan_dot(stdout, flow->graph);
  return show_plan_text(&style, flow->graph, &sections);
}

// What is about plans only would be ignored.
static Status check_model_options(const Options *o) {
  const struct { const char *name; bool given; } about_plans[] = {
    {"comm", o->comm}, {"memory", o->memory}, {"schedule", o->schedule}, {"layer", o->layer != NULL}, {"dot", o->dot}, {"html", o->html != NULL},
    {"trace", o->trace != NULL},
  };
  for (size_t i = 0; i < sizeof about_plans / sizeof *about_plans; i++)
    if (about_plans[i].given) FAIL(USAGE, NULL, "--%s is about plans, and '%s' is a model; 'tessera compile' makes a plan of it", about_plans[i].name, o->input);
  return STATUS_OK;
}

Status command_show(const Options *options) {
  Flow flow = {0};
  TRY(expect_parse(options));
  Status status = flow_open(options, &flow);
  if (!status && !flow.is_plan) status = check_model_options(options);
  if (!status) status = flow.is_plan ? show_plan(&flow, options) : show_model(&flow, options);
  if (!status) status = expect_check(options, flow.graph);
  flow_finish(&flow);
  return status;
}
