// tessera compile: from a model to a plan file, and a summary of the plan on stdout.
#include "../frontend/plan_file.h"
#include "budget.h"
#include "command.h"
#include "compile_flow.h"
#include "expect.h"
#include "resume.h"
#include "show_plan.h"

// `fitted`: for the options that a budget chooses; *options is them then.
static Status compile_to_file(Flow *flow, Data **data, const Options *options, Options *fitted) {
  if (!options->output) FAIL(USAGE, NULL, "say where the plan goes: tessera compile %s -o PLAN.onnx", options->input ? options->input : "MODEL");
  TRY(expect_parse(options));
  TRY(flow_open(options, flow));
  if (flow->is_plan && !(flow->graph->facts & FACT_PLANNED))
    FAIL(USAGE, NULL, "'%s' is a graph that 'tessera opt' wrote, no model; 'tessera opt %s --passes=train -o %s' makes a plan of one that is as a model was",
         options->input, options->input, options->output);
  if (flow->is_plan) FAIL(USAGE, NULL, "'%s' is a plan already", options->input);
  if (budget_is_asked(flow, options)) {
    TRY(budget_choose(flow, options, NULL, false, fitted));
    options = fitted;
  }
  if (options->data.n) TRY(flow_open_data(flow, options, 0, data));     // its first batch binds what the model leaves open
  if (*data && data_n_variants(*data) > 1)
    fprintf(stderr, "tessera: the data have batches of %d different shapes; a plan file keeps one, that of batch 0. 'tessera run MODEL' takes them all\n",
            data_n_variants(*data));
  TRY(flow_compile(flow, options, *data, false));
  TRY(resume_plan_options(options, flow->arena, &flow->graph->recipe.options));
  TRY(command_make_folders(options->output));
  TRY(graph_write_onnx(flow->plan.programs[0], options->output));
  printf("%s: compiled from '%s' in %.0f ms\n", options->output, options->input, flow->compile_ms);
  Style style = style_for(stdout, options->color);
  TRY(show_plan_summary(&style, flow->plan.programs[0]));
  return expect_check(options, flow->plan.programs[0]);
}

Status command_compile(const Options *options) {
  Flow flow = {0};
  Data *data = NULL;
  Options fitted = {0};
  Status status = compile_to_file(&flow, &data, options, &fitted);
  data_close(data);
  options_finish(&fitted);
  flow_finish(&flow);
  return status;
}
