#include "onnx_import.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "import_state.h"
#include "sharding_spec.h"

enum { IR_VERSION_NEWEST = 14, OPSET_OLDEST = 7, PROBLEMS_SHOWN = 50 };

// ---- Model --------------------------------------------------------------------------------------------------------------------

static Status model_finish_open(Model *model) {
  if (!model->file.n) FAIL(MALFORMED, NULL, "%s is empty: it is no ONNX file", model->path);
  TRY(wire_scan(model->file, &onnx__model_proto__descriptor, model->path));
  return external_init(&model->external, model->path);
}

static Status model_create(const char *path, Model **out) {
  Model *model = calloc(1, sizeof *model);
  if (model) model->path = strdup(path);
  if (!model || !model->path) {
    free(model);
    FAIL(RESOURCE, NULL, "out of memory");
  }
  *out = model;
  return STATUS_OK;
}

Status model_open_bytes(const void *bytes, size_t n_bytes, const char *path, Model **out) {
  Model *model;
  TRY(model_create(path, &model));
  model->file = (Bytes){bytes, n_bytes};
  Status status = model_finish_open(model);
  if (status) model_close(model);
  else *out = model;
  return status;
}

Status model_open(const char *path, Model **out) {
  Model *model;
  TRY(model_create(path, &model));
  Status status = file_map(path, &model->file);
  model->mapped = !status;
  if (!status) status = model_finish_open(model);
  if (status) model_close(model);
  else *out = model;
  return status;
}

void model_close(Model *model) {
  if (!model) return;
  external_close(&model->external);
  if (model->mapped) file_unmap(model->file);
  free(model->path);
  free(model);
}

const char *model_path(const Model *model) { return model->path; }

void model_give_weights(Model *model, const Weight *weights, size_t n) {
  model->given = weights;
  model->n_given = n;
}

// ---- Problems -----------------------------------------------------------------------------------------------------------------

void import_problem(Import *import, StatusCode code, const char *node, const char *format, ...) {
  char what[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(what, sizeof what, format, args);
  va_end(args);
  import->n_problems++;
  if (import->n_kept == PROBLEMS_KEPT) {               // enough is known of this file
    import->stopped = true;
    return;
  }
  Problem p = {code, arena_string(import->arena, node), arena_string(import->arena, what)};
  ARENA_PUSH(import->arena, import->problems, import->n_kept, import->problems_capacity, p);
}

void import_warning(Import *import, const char *format, ...) {
  char what[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(what, sizeof what, format, args);
  va_end(args);
  ARENA_PUSH(import->arena, import->warnings, import->n_warnings, import->warnings_capacity, arena_string(import->arena, what));
}

bool import_absorb(Import *import, Status status, const char *node) {
  if (!status) return false;
  char what[1024], where[256];
  StatusCode code = status->code;
  snprintf(what, sizeof what, "%s", status->what);
  snprintf(where, sizeof where, "%s", status->node ? status->node : node ? node : "");
  status_free(status);                       // before the arena is asked for memory: it may jump
  import_problem(import, code, *where ? where : NULL, "%s", what);
  return true;
}

static StatusCode gravest(const Import *import) {
  static const StatusCode order[] = {STATUS_MALFORMED, STATUS_UNSUPPORTED, STATUS_RESOURCE, STATUS_IO, STATUS_USAGE};
  for (size_t k = 0; k < sizeof order / sizeof *order; k++)
    for (size_t i = 0; i < import->n_kept; i++)
      if (import->problems[i].code == order[k]) return order[k];
  return import->problems[0].code;
}

// All problems as one Status, NULL when there are none, with the code of the gravest.
static Status import_verdict(const Import *import) {
  if (!import->n_problems) return STATUS_OK;
  if (import->n_problems == 1) return status_fail(import->problems[0].code, import->problems[0].node, "%s", import->problems[0].what);
  size_t capacity = 128;
  for (size_t i = 0; i < import->n_kept; i++)
    capacity += 32 + strlen(import->problems[i].what) + (import->problems[i].node ? strlen(import->problems[i].node) : 0);
  char *text = arena_alloc(import->arena, capacity), *p = text;
  p += sprintf(p, "%zu problems:", import->n_problems);
  for (size_t i = 0; i < import->n_kept && i < PROBLEMS_SHOWN; i++) {
    const Problem *problem = &import->problems[i];
    p += problem->node ? sprintf(p, "\n  node '%s': %s", problem->node, problem->what) : sprintf(p, "\n  %s", problem->what);
  }
  if (import->n_problems > PROBLEMS_SHOWN) sprintf(p, "\n  and %zu more", import->n_problems - PROBLEMS_SHOWN);
  return status_fail(gravest(import), NULL, "%s", text);
}

// ---- Versions -----------------------------------------------------------------------------------------------------------------

static void check_versions(Import *import) {
  const Onnx__ModelProto *head = import->onnx.head;
  if (!head->has_ir_version || head->ir_version < 1) import_problem(import, STATUS_MALFORMED, NULL, "the model says no ir_version: is it an ONNX file?");
  else if (head->ir_version > IR_VERSION_NEWEST)
    import_problem(import, STATUS_UNSUPPORTED, NULL, "ir_version %" PRId64 " is newer than the newest known, %d", head->ir_version, IR_VERSION_NEWEST);
  if (!head->n_opset_import) import_problem(import, STATUS_MALFORMED, NULL, "the model imports no operator set (opset_import is missing)");
  import->scope = scope_create(import, NULL, "");
  import->scope->opsets = head->opset_import;
  import->scope->n_opsets = head->n_opset_import;
  import->opset = scope_opset(import->scope, "");
  int newest = schema_opset_newest();
  if (import->opset && import->opset < OPSET_OLDEST)
    import_problem(import, STATUS_UNSUPPORTED, NULL, "opset ai.onnx %" PRId64 " is older than the oldest supported, %d; onnx.version_converter can raise it",
                   import->opset, OPSET_OLDEST);
  if (import->opset > newest)
    import_problem(import, STATUS_UNSUPPORTED, NULL, "opset ai.onnx %" PRId64 " is newer than the newest known, %d", import->opset, newest);
  if (import->onnx.n_training_infos > 1)
    import_problem(import, STATUS_UNSUPPORTED, NULL, "the model has %zu training_info; one is supported", import->onnx.n_training_infos);
  if (!import->onnx.has_graph) import_problem(import, STATUS_MALFORMED, NULL, "the model has no graph");
}

// ---- Inputs and symbols -------------------------------------------------------------------------------------------------------

Status describe_input(const Onnx__ValueInfoProto *info, ModelInput *out) {
  const char *name = text_or_empty(info->name);
  *out = (ModelInput){.name = name, .rank = -1};
  if (!info->type || info->type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE) return STATUS_OK;
  const Onnx__TypeProto__Tensor *tensor = info->type->tensor_type;
  if (dtype_known(tensor->elem_type)) out->dtype = (Dtype)tensor->elem_type;
  if (!tensor->shape) return STATUS_OK;
  if (tensor->shape->n_dim > RANK_MAX) FAIL(UNSUPPORTED, NULL, "input '%s' has %zu dimensions; at most %d are supported", name, tensor->shape->n_dim, RANK_MAX);
  out->rank = (int)tensor->shape->n_dim;
  for (int i = 0; i < out->rank; i++) {
    const Onnx__TensorShapeProto__Dimension *d = tensor->shape->dim[i];
    out->dims[i] = -1;
    if (d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE) {
      if (d->dim_value < 0) FAIL(MALFORMED, NULL, "input '%s': dimension %d is %" PRId64, name, i, d->dim_value);
      out->dims[i] = d->dim_value;
    } else if (d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM && *text_or_empty(d->dim_param)) {
      out->symbols[i] = d->dim_param;
    }
  }
  return STATUS_OK;
}

static int compare_names(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

// An input of an initializer's name is that initializer: before ir_version 4 all were listed, later it is a default that may be overridden.
static size_t data_inputs(const OnnxGraph *graph, const Form *form, Arena *arena, const Onnx__ValueInfoProto ***out) {
  const char **names = ARENA_ARRAY(arena, const char *, graph->n_initializers);
  for (size_t i = 0; i < graph->n_initializers; i++) names[i] = text_or_empty(graph->initializers[i].head->name);
  if (graph->n_initializers) qsort(names, graph->n_initializers, sizeof *names, compare_names);
  const Onnx__ValueInfoProto **infos = ARENA_ARRAY(arena, const Onnx__ValueInfoProto *, graph->head->n_input);
  size_t n = 0;
  for (size_t i = 0; i < graph->head->n_input; i++) {
    const char *name = text_or_empty(graph->head->input[i]->name);
    if (form_given(form, name) || name_listed(&form->dropped, name) || name_listed(&form->seeds, name) || form_lacks(form, name)) continue;
    if (!graph->n_initializers || !bsearch(&name, names, graph->n_initializers, sizeof *names, compare_names)) infos[n++] = graph->head->input[i];
  }
  *out = infos;
  return n;
}

static Symbol *find_symbol(Import *import, const char *name) {
  for (size_t i = 0; i < import->n_symbols; i++)
    if (!strcmp(import->symbols[i].name, name)) return &import->symbols[i];
  return NULL;
}

static void bind_symbol(Import *import, const char *name, int64_t size, const char *by) {
  Symbol *s = find_symbol(import, name);
  if (!s) {
    Symbol fresh = {.name = name, .size = size, .by = by};
    ARENA_PUSH(import->arena, import->symbols, import->n_symbols, import->symbols_capacity, fresh);
  } else if (s->size != size) {
    import_problem(import, STATUS_USAGE, NULL, "dimension '%s' is %" PRId64 " by %s and %" PRId64 " by %s", name, s->size, s->by, size, by);
  }
}

static const Type *given_shape(const ImportOptions *options, const char *name) {
  for (size_t i = 0; i < options->n_shapes; i++)
    if (!strcmp(options->shapes[i].name, name)) return &options->shapes[i].type;
  return NULL;
}

// The data's shape binds what is symbolic and contradicts nothing.
static void bind_from_shape(Import *import, ModelInput *in, const Type *shape) {
  char text[160];
  if (in->rank < 0) {
    in->rank = shape->rank;
    memcpy(in->dims, shape->dims, sizeof in->dims);
    if (in->dtype == DTYPE_NONE) in->dtype = shape->dtype;
    return;
  }
  bool fits = shape->rank == in->rank;
  for (int i = 0; fits && i < in->rank; i++) {
    if (in->symbols[i]) bind_symbol(import, in->symbols[i], shape->dims[i], arena_printf(import->arena, "the data of input '%s'", in->name));
    else if (in->dims[i] < 0) in->dims[i] = shape->dims[i];
    fits = in->symbols[i] || in->dims[i] == shape->dims[i];
  }
  if (!fits) {
    type_text(shape, text, sizeof text);
    import_problem(import, STATUS_USAGE, NULL, "input '%s': the data has type %s, which does not fit the model's declaration", in->name, text);
  }
}

static Symbol *nameless_dim(Import *import, const ModelInput *in, int axis) {
  return find_symbol(import, arena_printf(import->arena, "%s.%d", in->name, axis));
}

static void bind_input(Import *import, const ModelInput *in) {
  Type type = {.dtype = in->dtype, .rank = in->rank};
  Value *v = graph_add_value(import->graph, in->name);      // also where it has no type: its users need not complain
  v->role = ROLE_INPUT;
  if (in->dtype == DTYPE_NONE) {
    import_problem(import, STATUS_UNSUPPORTED, NULL, "input '%s' declares no tensor type that is supported", in->name);
    return;
  }
  if (in->rank < 0) {
    import_problem(import, STATUS_UNSUPPORTED, NULL, "input '%s' declares no shape, and no data says it", in->name);
    return;
  }
  for (int i = 0; i < in->rank; i++) {
    type.dims[i] = in->dims[i];
    if (in->dims[i] >= 0) continue;
    Symbol *s = in->symbols[i] ? find_symbol(import, in->symbols[i]) : nameless_dim(import, in, i);
    if (s) {
      type.dims[i] = s->size;
      s->used = true;
    } else {
      const char *name = in->symbols[i] ? in->symbols[i] : arena_printf(import->arena, "%s.%d", in->name, i);
      import_problem(import, STATUS_USAGE, NULL, "input '%s': the model leaves dimension %d ('%s') open; give %s--dim %s=INT", in->name, i, name,
                     i ? "" : "--batch INT or ", name);
      type.dims[i] = 1;
    }
  }
  if (import_absorb(import, status_context(type_check(&type, NULL), "input '%s'", in->name), NULL)) return;
  v->type = type;
  graph_add_input(import->graph, v);
}

// --batch binds the open first axes; where there is none, it must be what the model says.
static void bind_batch(Import *import, const ModelInput *inputs, size_t n) {
  const ModelInput *other = NULL;
  bool bound = false;
  for (size_t i = 0; i < n; i++) {
    if (inputs[i].rank < 1) continue;
    if (inputs[i].dims[0] >= 0) {
      if (inputs[i].dims[0] == import->options->batch) bound = true;
      else other = &inputs[i];
      continue;
    }
    const char *symbol = inputs[i].symbols[0] ? inputs[i].symbols[0] : arena_printf(import->arena, "%s.0", inputs[i].name);
    bind_symbol(import, symbol, import->options->batch, arena_printf(import->arena, "--batch for input '%s'", inputs[i].name));
    bound = true;
  }
  if (!bound && other)
    import_problem(import, STATUS_USAGE, NULL, "--batch %" PRId64 ": the model fixes the first axis: input '%s' has %" PRId64 " samples; export it with a "
                   "dynamic batch axis, or leave --batch out", import->options->batch, other->name, other->dims[0]);
}

static void import_inputs(Import *import) {
  const ImportOptions *options = import->options;
  const Onnx__ValueInfoProto **infos;
  size_t n_infos = data_inputs(&import->onnx.graph, &import->form, import->arena, &infos), n = 0;
  ModelInput *inputs = ARENA_ARRAY(import->arena, ModelInput, n_infos);
  for (size_t i = 0; i < options->n_dims; i++) {
    Symbol s = {options->dims[i].name, options->dims[i].size, true, false, "--dim"};
    ARENA_PUSH(import->arena, import->symbols, import->n_symbols, import->symbols_capacity, s);
  }
  for (size_t i = 0; i < n_infos; i++) {
    const char *name = text_or_empty(infos[i]->name);
    if (import_absorb(import, describe_input(infos[i], &inputs[n]), NULL)) {
      if (*name && !graph_find_value(import->graph, name)) graph_add_value(import->graph, name);    // its users need not complain
      continue;
    }
    if (!*name) import_problem(import, STATUS_MALFORMED, NULL, "graph input %zu has no name", i);
    else n++;
  }
  for (size_t i = 0; i < n; i++) {
    const Type *shape = given_shape(options, inputs[i].name);
    if (shape) bind_from_shape(import, &inputs[i], shape);
  }
  if (options->batch > 0) bind_batch(import, inputs, n);
  for (size_t i = 0; i < n; i++) {
    if (graph_find_value(import->graph, inputs[i].name)) import_problem(import, STATUS_MALFORMED, NULL, "graph input '%s' is there twice", inputs[i].name);
    else bind_input(import, &inputs[i]);
  }
  for (size_t i = 0; i < import->n_symbols; i++)
    if (import->symbols[i].given && !import->symbols[i].used)
      import_warning(import, "--dim %s=%" PRId64 " binds nothing: no input has an open dimension of that name", import->symbols[i].name, import->symbols[i].size);
}

static Status list_inputs(Model *model, Arena *scratch, const ModelInput **out, size_t *n_out) {
  ARENA_GUARD(scratch);
  OnnxModel onnx;
  Form form;
  Status status = onnx_decode_model(model->file, scratch, &onnx);
  if (!status && !onnx.has_graph) status = status_fail(STATUS_MALFORMED, NULL, "%s has no graph", model->path);
  if (!status) status = form_detect(model, &onnx, scratch, &form);
  if (status) ARENA_RETURN(scratch, status);
  const Onnx__ValueInfoProto **infos;
  size_t n = data_inputs(&onnx.graph, &form, scratch, &infos);
  ModelInput *inputs = ARENA_ARRAY(scratch, ModelInput, n);
  for (size_t i = 0; i < n && !status; i++) status = describe_input(infos[i], &inputs[i]);
  *out = inputs;
  *n_out = n;
  ARENA_RETURN(scratch, status);
}

static void copy_inputs(Arena *arena, const ModelInput *inputs, size_t n, const ModelInput **out) {
  ModelInput *copy = arena_copy(arena, inputs, sizeof *inputs * n);
  for (size_t i = 0; i < n; i++) {
    copy[i].name = arena_string(arena, inputs[i].name);
    for (int d = 0; d < inputs[i].rank; d++) copy[i].symbols[d] = arena_string(arena, inputs[i].symbols[d]);
  }
  *out = copy;
}

static Status keep_inputs(Arena *arena, const ModelInput *inputs, size_t n, const ModelInput **out) {
  ARENA_GUARD(arena);
  copy_inputs(arena, inputs, n, out);
  ARENA_RETURN(arena, STATUS_OK);
}

// What is decoded on the way is many times what is kept.
Status model_inputs(Model *model, Arena *arena, const ModelInput **out, size_t *n_out) {
  Arena *scratch = arena_create(0);
  const ModelInput *inputs;
  size_t n;
  if (!scratch) FAIL(RESOURCE, NULL, "out of memory");
  budget_begin(model, scratch);
  Status status = list_inputs(model, scratch, &inputs, &n);
  if (!status) status = keep_inputs(arena, inputs, n, out);
  if (!status) *n_out = n;
  arena_destroy(scratch);
  return status;
}

// ---- Initializers, outputs, the whole -----------------------------------------------------------------------------------------

static void import_outputs(Import *import) {
  const Onnx__GraphProto *head = import->onnx.graph.head;
  if (!head->n_output) import_problem(import, STATUS_MALFORMED, NULL, "the graph has no outputs, hence no loss");
  for (size_t i = 0; i < head->n_output; i++) {
    const char *name = text_or_empty(head->output[i]->name);
    if (name_listed(&import->form.hidden, name)) continue;
    const Binding *b = scope_find(import->scope, name);
    if (import->onnx.training && b && b->kind == BOUND_UPDATE) continue;
    if (b && b->kind == BOUND_TENSOR) graph_add_output(import->graph, b->value);
    else if (b && b->kind != BOUND_BROKEN) import_problem(import, STATUS_UNSUPPORTED, NULL, "graph output '%s' is no tensor", name);
    else if (!b && !import->stopped) import_problem(import, STATUS_MALFORMED, NULL, "graph output '%s' is defined nowhere", name);
  }
}

static Status import_model(Import *import) {
  TRY(onnx_decode_model(import->model->file, import->arena, &import->onnx));
  check_versions(import);
  if (import->n_problems) return import_verdict(import);
  TRY(form_detect(import->model, &import->onnx, import->arena, &import->form));
  TRY(form_check_given(&import->form));
  Graph *g = import->graph = graph_create(import->arena, import->onnx.graph.head->name);
  g->ir_version = import->onnx.head->ir_version;
  TRY(sharding_import_configurations(g, import->model->file));
  if (!import->onnx.graph.n_nodes) import_problem(import, STATUS_MALFORMED, NULL, "the graph has no nodes: there is nothing to train");
  import_initializers(import, NULL, &import->onnx.graph);
  import_inputs(import);
  form_bind_inputs(import);
  import_functions(import);
  import_nodes(import);
  import_outputs(import);
  TRY(import_verdict(import));
  if (import->form.kind || import->onnx.training) form_finish(import);
  else assign_roles(import);
  graph_set_nodes(g, g->nodes, g->n_nodes);          // drops names that stood for nothing
  return import_verdict(import);
}

// Given values of inputs, every initializer, then every Constant that holds a tensor.
static Status collect_weights(Model *model, const OnnxModel *onnx, Arena *arena, WeightSource *out) {
  const OnnxGraph *g = &onnx->graph;
  Form form;
  TRY(form_detect(model, onnx, arena, &form));
  Weight *weights = ARENA_ARRAY(arena, Weight, g->n_initializers + g->n_nodes + g->head->n_input);
  size_t n = 0;
  for (size_t i = 0; i < g->head->n_input; i++) {
    const Weight *given = form_given(&form, text_or_empty(g->head->input[i]->name));
    if (given) weights[n++] = *given;
  }
  for (size_t i = 0; i < g->n_initializers; i++)
    TRY(tensor_weight(model, arena, &g->initializers[i], text_or_empty(g->initializers[i].head->name), &weights[n++]));
  for (size_t i = 0; i < g->n_nodes; i++) {
    const OnnxNode *node = &g->nodes[i];
    const OnnxAttr *value = onnx_attr(node, "value");
    bool is_constant = !strcmp(text_or_empty(node->head->op_type), "Constant") && !*onnx_domain(node->head->domain);
    if (is_constant && value && value->has_tensor && node->head->n_output == 1)
      TRY(tensor_weight(model, arena, &value->tensor, text_or_empty(node->head->output[0]), &weights[n++]));
  }
  *out = (WeightSource){.path = model->path, .weights = weights, .n_weights = n};
  return weights_fingerprint(out);
}

static Status import_guarded(Import *import, Imported *out) {
  ARENA_GUARD(import->arena);
  WeightSource source;
  Status status = import_model(import);
  if (!status) status = collect_weights(import->model, &import->onnx, import->arena, &source);
  if (!status) *out = (Imported){import->graph, source, import->warnings, import->n_warnings};
  ARENA_RETURN(import->arena, status);
}

Status model_import(Model *model, const ImportOptions *options, Arena *arena, Imported *out) {
  static const ImportOptions none;
  Import import = {.model = model, .options = options ? options : &none, .arena = arena};
  budget_begin(model, arena);
  Status status = import_guarded(&import, out);
  budget_end(model, arena);
  return status;
}

static Status weights_guarded(Model *model, Arena *arena, WeightSource *out) {
  ARENA_GUARD(arena);
  OnnxModel onnx;
  Status status = onnx_decode_model(model->file, arena, &onnx);
  if (!status && !onnx.has_graph) status = status_fail(STATUS_MALFORMED, NULL, "%s has no graph", model->path);
  if (!status) status = collect_weights(model, &onnx, arena, out);
  ARENA_RETURN(arena, status);
}

Status model_weights(Model *model, Arena *arena, WeightSource *out) {
  budget_begin(model, arena);
  Status status = weights_guarded(model, arena, out);
  budget_end(model, arena);
  return status;
}
