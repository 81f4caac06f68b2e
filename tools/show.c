// tessera show: what a model holds, or what a plan does, sends and needs.
#include "command.h"
#include "compile_flow.h"
#include "expect.h"
#include "show_model.h"
#include "show_plan.h"

static Status show_plan(const Flow *flow, const Options *o) {
  PlanSections sections = {.comm = o->comm, .memory = o->memory, .params = o->given.params, .patterns = o->params, .schedule = o->schedule, .layer = o->layer};
  Style style = style_for(stdout, o->color);
  if (o->html) TRY(show_plan_html(o->html, flow->graph));
  if (o->html && !(o->json || o->dot || o->comm || o->memory || o->given.params || o->schedule || o->layer)) return STATUS_OK;
  if (o->metrics) return metrics_print(flow->graph);
  if (o->json) return show_plan_json(&(JsonWriter){.to = stdout}, flow->graph);
  if (o->dot) return show_plan_dot(stdout, flow->graph);
  return show_plan_text(&style, flow->graph, &sections);
}

Status command_show(const Options *options) {
  Flow flow = {0};
  TRY(expect_parse(options));
  Status status = flow_open(options, &flow);
  if (!status) status = flow.is_plan ? show_plan(&flow, options) : show_model(&flow, options);
  if (!status) status = expect_check(options, flow.graph);
  flow_finish(&flow);
  return status;
}
