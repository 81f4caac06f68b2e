#include "graph_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../frontend/plan_file.h"
#include "../ir/parse.h"
#include "../ir/path.h"
#include "../ir/print.h"
#include "../ir/verify_graph.h"
#include "command.h"
#include "overwrites.h"

static const size_t TEXT_BYTES_MAX = (size_t)1 << 30;
static const size_t ARENA_LIMIT_BYTES = (size_t)8 << 30;

bool graph_file_is_text(const char *path) { return !strcmp(path, "-") || has_suffix(path, ".onnxtxt"); }

// ---- In -----------------------------------------------------------------------------------------------------------------------

Status graph_file_read_text(const char *path, char **out, size_t *out_bytes) {
  FILE *file = strcmp(path, "-") ? fopen(path, "rb") : stdin;
  if (!file) FAIL(IO, NULL, "cannot open '%s': %s", path, strerror(errno));
  Status s = STATUS_OK;
  char *text = NULL;
  size_t bytes = 0, capacity = 0;
  do {
    if (bytes == capacity) {
      capacity = capacity ? 2 * capacity : 64 << 10;
      char *wider = capacity > TEXT_BYTES_MAX ? NULL : realloc(text, capacity);
      if (!wider) s = status_fail(STATUS_RESOURCE, NULL, "'%s' is too large: more than %zu bytes of text", path, bytes);
      else text = wider;
    }
    if (!s) bytes += fread(text + bytes, 1, capacity - bytes, file);
  } while (!s && !feof(file) && !ferror(file));
  if (!s && ferror(file)) s = status_fail(STATUS_IO, NULL, "cannot read '%s': %s", path, strerror(errno));
  if (file != stdin) fclose(file);
  if (s) {
    free(text);
    return s;
  }
  *out = text;
  *out_bytes = bytes;
  return STATUS_OK;
}

// What places of data in text are relative to: the folder of the file, "." for the current one.
static const char *folder_of(const Options *options, char *out, size_t out_bytes) {
  if (options->data_folder) return options->data_folder;
  PathFolder folder = path_folder(options->input);
  snprintf(out, out_bytes, "%.*s", folder.bytes, folder.at);
  return out;
}

static Status open_text(const Options *options, Flow *flow, TextWeights **weights) {
  const char *path = options->input;
  char folder[4096];
  char *text;
  size_t bytes;
  flow->arena = arena_create(ARENA_LIMIT_BYTES);
  if (!flow->arena) FAIL(RESOURCE, NULL, "out of memory");
  TRY(graph_file_read_text(path, &text, &bytes));
  const char *shown = strcmp(path, "-") ? path : "standard input";
  Status s = graph_parse(text, bytes, flow->arena, &flow->graph);
  free(text);
  if (!s) s = text_weights_open(flow->graph, folder_of(options, folder, sizeof folder), weights);
  TRY(status_context(s, "%s", shown));
  return status_context(verify_graph(flow->graph), "%s", shown);
}

Status graph_file_open(const Options *options, GraphFile *out) { return graph_file_open_assuming(options, 0, out); }

Status graph_file_open_assuming(const Options *options, int64_t open_size, GraphFile *out) {
  *out = (GraphFile){0};
  if (!options->input) FAIL(USAGE, NULL, "no file is named: MODEL.onnx, TEXT.onnxtxt, or - for text on standard input");
  TRY(overwrites_check(options));
  if (graph_file_is_text(options->input)) return open_text(options, &out->flow, &out->weights);
  TRY(flow_open(options, &out->flow));
  return out->flow.is_plan ? STATUS_OK : flow_import(&out->flow, options, NULL, open_size);
}

Status graph_file_open_plan(const Options *options, GraphFile *out) {
  *out = (GraphFile){0};
  Flow *flow = &out->flow;
  if (options->input && graph_file_is_text(options->input)) {
    TRY(graph_file_open(options, out));
    flow->is_plan = true;
  } else {
    TRY(flow_open_programs(options, flow));
  }
  if (flow->is_plan && !(flow->graph->facts & FACT_PLANNED))
    FAIL(USAGE, NULL, "'%s' is a graph and no plan; 'tessera opt %s --passes=train -o PLAN.onnx' makes a plan of one that is as a model was", options->input,
         options->input);
  return STATUS_OK;
}

void graph_file_close(GraphFile *file) {
  flow_finish(&file->flow);
  text_weights_close(file->weights);
}

// ---- Out ----------------------------------------------------------------------------------------------------------------------

static Status print_graph(const Options *options, const Graph *graph, FILE *to) {
  char folder[4096];
  PrintOptions print = {.renumber = options->renumber, .base_dir = folder_of(options, folder, sizeof folder)};
  return graph_print(graph, &print, to);
}

Status graph_file_text(const Options *options, const Graph *graph, char **out, size_t *out_bytes) {
  char *text = NULL;
  FILE *to = open_memstream(&text, out_bytes);
  if (!to) FAIL(RESOURCE, NULL, "out of memory for the text of the graph");
  Status s = print_graph(options, graph, to);
  bool whole = !ferror(to);
  whole &= fclose(to) == 0;
  if (!s && !whole) s = status_fail(STATUS_RESOURCE, NULL, "out of memory for the text of the graph");
  if (s) free(text);
  else *out = text;
  return s;
}

static Status write_text(const Options *options, const Graph *graph) {
  const char *path = options->output;
  if (!path || !strcmp(path, "-")) return print_graph(options, graph, stdout);
  FILE *file = fopen(path, "wb");
  if (!file) FAIL(IO, NULL, "cannot write '%s': %s", path, strerror(errno));
  Status s = print_graph(options, graph, file);
  if (fclose(file) && !s) s = status_fail(STATUS_IO, NULL, "cannot write '%s': %s", path, strerror(errno));
  return s;
}

Status graph_file_write(const Options *options, const Graph *graph) {
  if (options->output) TRY(command_make_folders(options->output));
  if (!options->output || graph_file_is_text(options->output)) return write_text(options, graph);
  if (has_suffix(options->output, ".onnx")) return graph_write_onnx(graph, options->output);
  FAIL(USAGE, NULL, "-o %s: the name of the file says what to write: .onnxtxt or .onnx", options->output);
}
