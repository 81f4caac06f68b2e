// tessera verify: the static proof of a plan file; exit 1 names every defect.
#include <stdio.h>

#include "../passes/verify_plan.h"
#include "command.h"
#include "compile_flow.h"
#include "json_write.h"

static void print_json(const PlanDefect *defects, size_t n) {
  JsonWriter w = {.to = stdout};
  json_write_object(&w, NULL);
  json_write_bool(&w, "ok", n == 0);
  json_write_array(&w, "defects");
  for (size_t i = 0; i < n; i++) {
    json_write_object(&w, NULL);
    json_write_text(&w, "code", defects[i].code);
    if (defects[i].step >= 0) json_write_int(&w, "step", defects[i].step);
    else json_write_null(&w, "step");
    json_write_text(&w, "op", defects[i].op);
    json_write_text(&w, "param", defects[i].param);
    json_write_text(&w, "what", defects[i].what);
    json_write_end_object(&w);
  }
  json_write_end_array(&w);
  json_write_end_object(&w);
}

static void print_text(const Options *options, const Graph *graph, const PlanDefect *defects, size_t n) {
  for (size_t i = 0; i < n; i++) {
    printf("%s: ", defects[i].code);
    if (defects[i].step >= 0) printf("step %lld (%s): ", (long long)defects[i].step, defects[i].op);
    printf("%s", defects[i].what);
    if (defects[i].param) printf(" [%s]", defects[i].param);
    printf("\n");
  }
  if (n) printf("%s: %zu defect%s%s\n", options->input, n, n == 1 ? "" : "s", n == PLAN_DEFECTS_MAX ? " (more are not shown)" : "");
  else printf("%s: ok: agreement, lifetimes, overlap, ownership and locations hold for %zu steps\n", options->input, graph->n_nodes);
}

static Status verify(Flow *flow, const Options *options) {
  TRY(flow_open(options, flow));
  if (!flow->is_plan) FAIL(USAGE, NULL, "'%s' is a model, not a plan; 'tessera compile' makes one of it", options->input);
  const PlanDefect *defects = NULL;
  size_t n = 0;
  TRY(verify_plan(flow->graph, flow->arena, &defects, &n, NULL));
  if (options->json) print_json(defects, n);
  else print_text(options, flow->graph, defects, n);
  return command_exit_silently(n ? STATUS_CHECK : STATUS_OK);
}

Status command_verify(const Options *options) {
  Flow flow = {0};
  Status status = verify(&flow, options);
  flow_finish(&flow);
  return status;
}
