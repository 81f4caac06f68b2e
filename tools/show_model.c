// What a model holds: inputs, outputs, initializers with their roles, operators, annotations, problems.
#include "show_model.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "json_write.h"
#include "plan_layers.h"
#include "metrics.h"
#include "printable.h"

typedef struct OpCount { const char *domain, *name; int64_t count; bool has_row; } OpCount;

static int compare_counts(const void *a, const void *b) {
  const OpCount *x = a, *y = b;
  if (x->count != y->count) return x->count < y->count ? 1 : -1;
  return strcmp(x->name, y->name);
}

static size_t count_ops(const Graph *graph, Arena *arena, OpCount **out) {
  OpCount *counts = NULL;
  size_t n = 0, capacity = 0;
  for (size_t i = 0; i < graph->n_nodes; i++) {
    const Op *op = graph->nodes[i]->op;
    size_t k = 0;
    while (k < n && (strcmp(counts[k].name, op->name) || strcmp(counts[k].domain, op->domain))) k++;
    if (k == n) ARENA_PUSH(arena, counts, n, capacity, ((OpCount){op->domain, op->name, 0, true}));
    counts[k].count++;
  }
  if (n) qsort(counts, n, sizeof *counts, compare_counts);
  *out = counts;
  return n;
}

static const char *role_text(const Value *v) {
  if (v->role == ROLE_PARAM) return v->trainable ? "parameter" : "frozen";
  return v->weight && dtype_is_float(v->type.dtype) && v->doc && strstr(v->doc, "buffer") ? "buffer" : "constant";
}

static bool is_initializer(const Value *v) { return v->weight && !v->producer; }

static void shape_of(const ModelInput *input, char *out, size_t bytes) {
  size_t used = (size_t)snprintf(out, bytes, "%s", input->dtype ? dtype_name(input->dtype) : "any");
  for (int d = 0; d < input->rank && used < bytes; d++) {
    const char *before = d ? "," : "[", *after = d + 1 == input->rank ? "]" : "";
    if (input->dims[d] >= 0) used += (size_t)snprintf(out + used, bytes - used, "%s%" PRId64 "%s", before, input->dims[d], after);
    else used += (size_t)snprintf(out + used, bytes - used, "%s%s%s", before, input->symbols[d] ? input->symbols[d] : "?", after);
  }
}

static void json_type(JsonWriter *w, const char *name, const Type *type) {
  json_write_object(w, NULL);
  json_write_text(w, "name", name);
  json_write_text(w, "dtype", type->dtype ? dtype_name(type->dtype) : NULL);
  json_write_array(w, "shape");
  for (int d = 0; d < type->rank; d++) json_write_int(w, NULL, type->dims[d]);
  json_write_end_array(w);
  json_write_end_object(w);
}

static void json_initializers(JsonWriter *w, const Graph *graph) {
  json_write_array(w, "initializers");
  for (size_t i = 0; graph && i < graph->n_values; i++) {
    const Value *v = graph->values[i];
    if (!is_initializer(v)) continue;
    json_write_object(w, NULL);
    json_write_text(w, "name", v->name);
    json_write_text(w, "role", role_text(v));
    json_write_text(w, "why", v->doc);
    json_write_null(w, "tied_with");
    json_write_text(w, "dtype", dtype_name(v->type.dtype));
    json_write_array(w, "shape");
    for (int d = 0; d < v->type.rank; d++) json_write_int(w, NULL, v->type.dims[d]);
    json_write_end_array(w);
    json_write_end_object(w);
  }
  json_write_end_array(w);
}

static void json_model_inputs(JsonWriter *w, const Flow *flow) {
  json_write_array(w, "inputs");
  for (size_t i = 0; i < flow->n_inputs; i++) {
    const ModelInput *in = &flow->inputs[i];
    json_write_object(w, NULL);
    json_write_text(w, "name", in->name);
    json_write_text(w, "dtype", in->dtype ? dtype_name(in->dtype) : NULL);
    json_write_array(w, "shape");
    for (int d = 0; d < in->rank; d++) {
      if (in->dims[d] >= 0) json_write_int(w, NULL, in->dims[d]);
      else json_write_text(w, NULL, in->symbols[d] ? in->symbols[d] : "?");
    }
    json_write_end_array(w);
    json_write_end_object(w);
  }
  json_write_end_array(w);
}

// The importer reports all problems in one error, "N problems:" and then one a line.
static void json_problems(JsonWriter *w, const StatusError *problem, Arena *arena) {
  if (!problem) return;
  const char *first_end = strchr(problem->what, '\n');
  if (!first_end) {
    json_write_text(w, NULL, problem->node ? arena_printf(arena, "node '%s': %s", problem->node, problem->what) : problem->what);
    return;
  }
  for (const char *line = first_end + 1; *line;) {
    line += strspn(line, " ");
    size_t n = strcspn(line, "\n");
    json_write_text(w, NULL, arena_string_n(arena, line, n));
    line += n + (line[n] == '\n');
  }
}

// As the protobuf messages have them.
static void json_configurations(JsonWriter *w, const Graph *graph, Arena *arena) {
  const char *text = graph ? sharding_configurations_text(graph, arena) : NULL;
  json_write_raw(w, "configurations", text ? text : "[]");
  json_write_array(w, "device_configurations");
  for (size_t i = 0; graph && i < graph->n_nodes; i++) {
    if (!graph->nodes[i]->n_shardings) continue;
    json_write_object(w, NULL);
    json_write_text(w, "node", graph->nodes[i]->name);
    json_write_raw(w, "configurations", sharding_node_text(graph->nodes[i], arena));
    json_write_end_object(w);
  }
  json_write_end_array(w);
}

static void show_model_json(const Flow *flow, const StatusError *problem) {
  JsonWriter w = {.to = stdout};
  const Graph *graph = flow->graph;
  json_write_object(&w, NULL);
  json_initializers(&w, graph);
  json_model_inputs(&w, flow);
  json_write_array(&w, "outputs");
  for (size_t i = 0; graph && i < graph->n_outputs; i++) json_type(&w, graph->outputs[i]->name, &graph->outputs[i]->type);
  json_write_end_array(&w);
  json_write_object(&w, "operators");
  OpCount *counts = NULL;
  size_t n = graph ? count_ops(graph, flow->arena, &counts) : 0;
  for (size_t i = 0; i < n; i++) json_write_int(&w, counts[i].name, counts[i].count);
  json_write_end_object(&w);
  json_configurations(&w, graph, flow->arena);
  json_write_array(&w, "problems");
  json_problems(&w, problem, flow->arena);
  json_write_end_array(&w);
  json_write_end_object(&w);
}

enum { NAME_COLUMNS_MIN = 24, NAME_COLUMNS_MAX = 72 };

static void widen(int *columns, const char *name) {
  int n = (int)strlen(name);
  if (n > *columns) *columns = n < NAME_COLUMNS_MAX ? n : NAME_COLUMNS_MAX;
}

enum { FOLD_FROM = 200 };        // initializers; from so many on, layers that are alike stand once

// A run of initializers of one layer.
typedef struct LayerRun { size_t from, to; const char *family; int64_t index; uint64_t signature; } LayerRun;

static uint64_t mix_text(uint64_t h, const char *text) {
  for (; text && *text; text++) h = (h ^ (unsigned char)*text) * 1099511628211u;
  return h * 31 + 7;
}

// Equal for initializers that differ by the number of their layer only.
static uint64_t initializer_signature(const Value *v, const char *layer, uint64_t h) {
  char type[160];
  size_t at = layer ? strlen(layer) + (v->name[0] == '/') : 0;
  const char *rest = at < strlen(v->name) ? v->name + at : v->name;
  if (at && rest[0] != '.' && rest[0] != '/') rest = strrchr(v->name, '/') ? strrchr(v->name, '/') : v->name;    // scopes that repeat a name
  return mix_text(mix_text(mix_text(h, role_text(v)), type_text(&v->type, type, sizeof type)), rest);
}

// Runs of the initializers `list`; each that belongs to no numbered layer is a run of its own.
static size_t layer_runs(const Value *const *list, size_t n, Arena *arena, LayerRun **out) {
  LayerRun *runs = NULL;
  size_t n_runs = 0, capacity = 0;
  for (size_t i = 0; i < n; i++) {
    const char *family;
    int64_t index;
    const char *layer = layer_name(list[i]->name, arena, &family, &index);
    LayerRun *last = n_runs ? &runs[n_runs - 1] : NULL;
    if (last && family && last->family && last->index == index && !strcmp(family, last->family)) {
      last->to = i;
      last->signature = initializer_signature(list[i], layer, last->signature);
      continue;
    }
    ARENA_PUSH(arena, runs, n_runs, capacity, ((LayerRun){i, i, family, family ? index : -1, initializer_signature(list[i], layer, 0)}));
  }
  *out = runs;
  return n_runs;
}

static bool runs_alike(const LayerRun *a, const LayerRun *b, int64_t distance) {
  return a->family && b->family && !strcmp(a->family, b->family) && b->index == a->index + distance && b->signature == a->signature && b->to - b->from == a->to - a->from;
}

static void initializer_row(const Value *v, int name_columns, int type_columns) {
  char type[160];
  printf("  %-9s %-*s %-*s %s\n", role_text(v), name_columns, v->name, type_columns, type_text(&v->type, type, sizeof type), v->doc ? v->doc : "");
}

static void show_initializers(const Graph *graph, Arena *arena) {
  int64_t trainable = 0, n_params = 0;
  int name_columns = NAME_COLUMNS_MIN, type_columns = 16;
  const Value **list = ARENA_ARRAY(arena, const Value *, graph->n_values);
  size_t n = 0;
  for (size_t i = 0; i < graph->n_values; i++) {
    const Value *v = graph->values[i];
    char type[160];
    if (!is_initializer(v)) continue;
    list[n++] = v;
    widen(&name_columns, v->name);
    widen(&type_columns, type_text(&v->type, type, sizeof type));
    if (v->role != ROLE_PARAM || !v->trainable) continue;
    trainable += type_elems(&v->type);
    n_params++;
  }
  LayerRun *runs;
  size_t n_runs = layer_runs(list, n, arena, &runs);
  for (size_t r = 0; r < n_runs;) {
    size_t alike = 1;
    while (n >= FOLD_FROM && r + alike < n_runs && runs_alike(&runs[r], &runs[r + alike], (int64_t)alike)) alike++;
    for (size_t i = runs[r].from; i <= runs[r].to; i++) initializer_row(list[i], name_columns, type_columns);
    if (alike > 1)
      printf("  ...       %s%" PRId64 " to %s%" PRId64 " the same, %zu initializers; --json lists all\n", runs[r].family, runs[r].index + 1, runs[r].family,
             runs[r + alike - 1].index, runs[r + alike - 1].to - runs[r].to);
    r += alike;
  }
  printf("%" PRId64 " trainable parameters of %" PRId64 " elements\n", n_params, trainable);
}

static void show_configurations(const Graph *graph, Arena *arena) {
  if (graph->n_configurations) printf("device configurations\n");
  for (size_t i = 0; i < graph->n_configurations; i++) {
    const DeviceConfiguration *c = &graph->configurations[i];
    printf("  %s: %" PRId64 " devices", c->name ? c->name : "(unnamed)", c->n_devices);
    for (size_t k = 0; k < c->n_names; k++) printf("%s%s", k ? ", " : ": ", c->names[k]);
    printf("\n");
  }
  for (size_t i = 0; i < graph->n_nodes; i++)
    for (size_t k = 0; k < graph->nodes[i]->n_shardings; k++)
      printf("  node '%s' %s\n", graph->nodes[i]->name, sharding_describe(graph->nodes[i], &graph->nodes[i]->shardings[k], arena));
}

static bool has_open_dims(const Flow *flow) {
  for (size_t i = 0; i < flow->n_inputs; i++)
    for (int d = 0; d < flow->inputs[i].rank; d++)
      if (flow->inputs[i].dims[d] < 0) return true;
  return false;
}

static void show_model_text(const Flow *flow, const StatusError *problem) {
  Graph *graph = flow->graph;
  int columns = NAME_COLUMNS_MIN;
  if (graph) printable_graph(graph);
  for (size_t i = 0; i < flow->n_inputs; i++) widen(&columns, printable_text(flow->inputs[i].name, flow->arena));
  for (size_t i = 0; graph && i < graph->n_outputs; i++) widen(&columns, graph->outputs[i]->name);
  printf("inputs\n");
  for (size_t i = 0; i < flow->n_inputs; i++) {
    char shape[256];
    shape_of(&flow->inputs[i], shape, sizeof shape);
    printf("  %-*s %s\n", columns, printable_text(flow->inputs[i].name, flow->arena), printable_text(shape, flow->arena));
  }
  if (graph) {
    printf(has_open_dims(flow) ? "outputs (open dimensions taken as %d, or as --dim and --batch say)\n" : "outputs\n", FLOW_ASSUMED_SIZE);
    for (size_t i = 0; i < graph->n_outputs; i++) {
      char type[160];
      printf("  %-*s %s\n", columns, graph->outputs[i]->name, type_text(&graph->outputs[i]->type, type, sizeof type));
    }
    printf("initializers\n");
    show_initializers(graph, flow->arena);
    show_configurations(graph, flow->arena);
    OpCount *counts;
    size_t n = count_ops(graph, flow->arena, &counts);
    printf("operators\n");
    for (size_t i = 0; i < n; i++) printf("  %6" PRId64 "  %s%s%s\n", counts[i].count, counts[i].domain, counts[i].domain[0] ? "." : "", counts[i].name);
  }
  if (problem) {
    printf("problems\n");
    if (problem->node) {
      printf("node '");
      printable_print(stdout, problem->node, false);
      printf("': ");
    }
    printable_print(stdout, problem->what, true);
    printf("\n");
  } else {
    printf("no problems\n");
  }
}

// Types of everything, as far as the model allows.
static Status understand(Flow *flow, const Options *options) {
  TRY(flow_import(flow, options, NULL, FLOW_ASSUMED_SIZE));
  CompileOptions compile = compile_options_default();
  PassRun run;
  TRY(flow_pass_run(options, flow->arena, &run));
  static const char *const types_only[] = {"infer_types", "check_sharding", NULL};
  return passes_run(flow->graph, types_only, &compile, &run);
}

Status show_model(Flow *flow, const Options *options) {
  for (int i = 0; i < options->params.n; i++)
    if (!options->params.items[i][0]) FAIL(USAGE, NULL, "--params needs a value for a model: --params PATTERN (without one it lists the parameters of a plan)");
  Status problem = understand(flow, options);
  if (options->metrics && !problem) return metrics_print(flow->graph);
  ARENA_GUARD(flow->arena);
  if (options->json) show_model_json(flow, problem);
  else show_model_text(flow, problem);
  int code = (int)status_code(problem);
  status_free(problem);
  ARENA_RETURN(flow->arena, command_exit_silently(code));
}
