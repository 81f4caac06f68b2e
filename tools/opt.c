// tessera opt: one pass, or some, on a graph; text and binary in and out.
#include <stdio.h>
#include <string.h>

#include "check_text.h"
#include "command.h"
#include "expect.h"
#include "graph_file.h"
#include "list_passes.h"

static Status split_passes(const Options *options, Arena *arena, const char *const **out) {
  ARENA_GUARD(arena);
  *out = flow_split_list(options->passes, arena);
  ARENA_RETURN(arena, STATUS_OK);
}

static Status run_passes(const Options *options, Flow *flow) {
  static const char *const none[] = {NULL};
  const char *const *passes;
  CompileOptions compile;
  PassRun run;
  if (!options->passes || !strcmp(options->passes, "simplify")) passes = pipeline_simplify;
  else if (!strcmp(options->passes, "train")) passes = pipeline_train;
  else if (!strcmp(options->passes, "none")) passes = none;
  else TRY(split_passes(options, flow->arena, &passes));
  if (options->passes && !passes[0] && strcmp(options->passes, "none")) FAIL(USAGE, NULL, "--passes is empty; 'none' runs none");
  TRY(flow_compile_options(flow, options, &compile));
  if (graph_file_is_text(options->input)) compile.model_path = NULL;   // text is no file that a plan could load weights from
  TRY(flow_pass_run(options, flow->arena, &run));
  return passes_run(flow->graph, passes, &compile, &run);
}

// Lines and numbers: both are told.
static Status check_both(const Options *options, const Graph *graph) {
  Status lines = check_text_graph(options, graph), numbers = expect_check(options, graph);
  if (!lines || status_code(numbers) != STATUS_CHECK) {
    if (numbers) status_free(lines);
    return numbers ? numbers : lines;
  }
  status_free(numbers);
  return lines;
}

Status command_opt(const Options *options) {
  if (options->list_passes) {
    list_passes();
    return STATUS_OK;
  }
  if (options->equivalent) return command_equivalent(options);
  TRY(expect_parse(options));
  TRY(check_text_parse(options));
  GraphFile file;
  Status s = graph_file_open(options, &file);
  if (!s) s = run_passes(options, &file.flow);
  if (!s && (options->output || !options->check)) s = graph_file_write(options, file.flow.graph);
  if (!s) s = check_both(options, file.flow.graph);
  graph_file_close(&file);
  return s;
}
