#include "compile_flow.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../frontend/plan_file.h"
#include "../ir/clock.h"
#include "../ir/hex.h"
#include "../ir/path.h"
#include "../passes/accumulate.h"
#include "../passes/offload.h"
#include "../passes/optimizer_rules.h"
#include "../passes/verify_plan.h"
#include "../runtime/safetensors.h"
#include "overwrites.h"
#include "printable.h"

static const size_t ARENA_LIMIT_BYTES = (size_t)8 << 30;   // far above any honest model: weights are not in it

// A plan's inputs are those of its graph that data feed: its file lists the executor's own scalars too.
static Status read_plan(Flow *flow) {
  TRY(plan_read_onnx(flow->model, flow->arena, &flow->programs, &flow->n_programs));
  flow->graph = (Graph *)flow->programs[0];                // made here
  ModelInput *inputs = ARENA_ARRAY(flow->arena, ModelInput, flow->graph->n_inputs);
  for (size_t i = 0; i < flow->graph->n_inputs; i++) {
    const Value *v = flow->graph->inputs[i];
    inputs[i] = (ModelInput){.name = v->name, .dtype = v->type.dtype, .rank = v->type.rank};
    memcpy(inputs[i].dims, v->type.dims, sizeof inputs[i].dims);
  }
  flow->inputs = inputs;
  flow->n_inputs = flow->graph->n_inputs;
  return STATUS_OK;
}

static Status list_inputs(Flow *flow) {
  ARENA_GUARD(flow->arena);
  ARENA_RETURN(flow->arena, flow->is_plan ? read_plan(flow) : model_inputs(flow->model, flow->arena, &flow->inputs, &flow->n_inputs));
}

// Values for inputs that are parameters: training graphs keep theirs outside.
static Status give_weights(Flow *flow, Model *model, const char *path) {
  TRY(safetensors_open(path, &flow->given));
  model_give_weights(model, safetensors_tensors(flow->given), safetensors_count(flow->given));
  return STATUS_OK;
}

// What a file that is no ONNX model seems to be, and what to do with it; NULL: no idea.
static const char *file_kind(const char *path) {
  unsigned char head[16] = {0};
  FILE *file = fopen(path, "rb");
  size_t n = file ? fread(head, 1, sizeof head, file) : 0;
  if (file) fclose(file);
  if (n >= 4 && !memcmp(head, "PK\3\4", 4)) return "a zip archive, such as torch.save writes: export the model with torch.onnx.export";
  if (n >= 2 && head[0] == 0x80 && head[1] >= 2 && head[1] <= 5) return "a Python pickle: export the model with torch.onnx.export";
  if (n >= 6 && !memcmp(head, "\x93NUMPY", 6)) return "a numpy array: give it as data, --data INPUT=FILE.npy";
  if (n >= 9 && head[8] == '{' && !head[6] && !head[7]) return "a safetensors file: give it as data (--data) or as values of a model's inputs (--weights)";
  if (!has_suffix(path, ".onnxtxt")) return NULL;
  return "a graph as text: 'tessera opt' makes a plan file of it, with -o PLAN.onnx and --passes=train, or --passes=none where it is a plan already";
}

// A folder of training artifacts is its training model.
static Status open_model(const Options *options, Flow *out) {
  struct stat st;
  const char *path = options->input;
  if (!stat(path, &st) && S_ISDIR(st.st_mode)) {
    ARENA_GUARD(out->arena);
    path = arena_printf(out->arena, "%s/training_model.onnx", options->input);
    Status status = access(path, R_OK) == 0 ? STATUS_OK : status_fail(STATUS_USAGE, NULL, "%s is a folder without a training_model.onnx", options->input);
    out->arena->guard = arena_guard_outer_;
    TRY(status);
  }
  Status status = model_open(path, &out->model);
  const char *kind = status_code(status) == STATUS_MALFORMED ? file_kind(path) : NULL;
  if (kind) {
    status_free(status);
    FAIL(MALFORMED, NULL, "%s is no valid ONNX file but %s", path, kind);
  }
  TRY(status);
  out->is_plan = model_is_plan(out->model);
  if (!options->weights || out->is_plan) return STATUS_OK;
  if (!has_suffix(options->weights, ".safetensors"))
    FAIL(USAGE, NULL, "--weights %s: for a model it is a .safetensors file with values of its inputs; only a plan takes its weights from a model", options->weights);
  return give_weights(out, out->model, options->weights);
}

// External data and given values are read, too.
static Status check_model_files(const Options *options, Model *model, Flow *flow) {
  WeightSource weights;
  if (!overwrites_possible(options)) return STATUS_OK;
  TRY(model_weights(model, flow->arena, &weights));
  Status status = overwrites_check_input(options, model_path(model));
  if (!status) status = overwrites_check_weights(options, &weights);
  flow->overwrites = status != STATUS_OK;
  return status;
}

Status flow_open(const Options *options, Flow *out) {
  TRY(flow_open_programs(options, out));
  return flow_check_one_program(options, out);
}

Status flow_check_one_program(const Options *options, const Flow *flow) {
  if (flow->n_programs <= 1) return STATUS_OK;
  FAIL(UNSUPPORTED, NULL, "'%s' has %d programs, one for each coordinate of mesh axis '%s'; such plans are proved ('tessera verify') and not run or shown yet",
       options->input, flow->n_programs, PLAN_PROGRAM_AXIS);
}

Status flow_open_programs(const Options *options, Flow *out) {
  *out = (Flow){0};
  if (!options->input) FAIL(USAGE, NULL, "no file is named; --help shows what is expected");
  out->arena = arena_create(ARENA_LIMIT_BYTES);
  if (!out->arena) FAIL(RESOURCE, NULL, "out of memory");
  double start = clock_now_ms();
  TRY(overwrites_check(options));
  TRY(open_model(options, out));
  TRY(check_model_files(options, out->model, out));
  TRY(list_inputs(out));
  out->compile_ms += clock_now_ms() - start;
  return STATUS_OK;
}

void flow_finish(Flow *flow) {
  arena_destroy(flow->arena);
  model_close(flow->model);
  model_close(flow->source);
  safetensors_close(flow->given);
  *flow = (Flow){0};
}

const char **flow_split_list(const char *text, Arena *arena) {
  if (!text) return NULL;
  const char **items = NULL;
  size_t n = 0, capacity = 0;
  for (const char *p = text; *p;) {
    size_t length = strcspn(p, ",");
    if (length) ARENA_PUSH(arena, items, n, capacity, arena_string_n(arena, p, length));
    p += length + (p[length] == ',');
  }
  ARENA_PUSH(arena, items, n, capacity, (const char *)NULL);
  return items;
}

// "a,b" from repeated options; NULL when there are none.
static const char *join_list(const TextList *list, Arena *arena) {
  char *joined = NULL;
  for (int i = 0; i < list->n; i++) joined = joined ? arena_printf(arena, "%s,%s", joined, list->items[i]) : arena_string(arena, list->items[i]);
  return joined;
}

static Status read_dims(const TextList *list, Arena *arena, DimBinding **out) {
  DimBinding *dims = ARENA_ARRAY(arena, DimBinding, list->n);
  for (int i = 0; i < list->n; i++) {
    const char *item = list->items[i], *equals = strrchr(item, '=');
    char *end = NULL;
    long long size = equals ? strtoll(equals + 1, &end, 10) : 0;
    if (!equals || equals == item || !equals[1] || *end || size < 0)
      FAIL(USAGE, NULL, "--dim: '%s' is not NAME=SIZE with a size of at least 0", item);
    dims[i] = (DimBinding){arena_string_n(arena, item, (size_t)(equals - item)), size};
  }
  *out = dims;
  return STATUS_OK;
}

static Status read_ties(const TextList *list, Arena *arena, Tie **out) {
  Tie *ties = ARENA_ARRAY(arena, Tie, list->n);
  for (int i = 0; i < list->n; i++) {
    const char *item = list->items[i], *equals = strchr(item, '=');
    if (!equals || equals == item || !equals[1]) FAIL(USAGE, NULL, "--tie: '%s' is not KEPT=TIED, two names of parameters", item);
    ties[i] = (Tie){arena_string_n(arena, item, (size_t)(equals - item)), arena_string(arena, equals + 1)};
  }
  *out = ties;
  return STATUS_OK;
}

// Will attach_loss make an input for the labels? Data then feed it after the model's own inputs.
static bool adds_labels(const Flow *flow, const Options *options) {
  if (flow->is_plan || !options->loss || !options->labels) return false;
  for (size_t i = 0; i < flow->n_inputs; i++)
    if (!strcmp(flow->inputs[i].name, options->labels)) return false;
  return true;
}

// What --dim says of dimension d of an input, by its symbol or as INPUT.d; -1: nothing.
static int64_t bound_size(const ModelInput *input, int d, const DimBinding *dims, size_t n_dims) {
  char nameless[256];
  snprintf(nameless, sizeof nameless, "%s.%d", input->name, d);
  for (size_t i = 0; i < n_dims; i++)
    if (!strcmp(dims[i].name, input->symbols[d] ? input->symbols[d] : nameless)) return dims[i].size;
  return -1;
}

// The input's shape with open dimensions as --dim and --batch say, else at `size`; false when there is nothing to bind.
static bool assume_shape(const ModelInput *input, const DimBinding *dims, size_t n_dims, int64_t batch, int64_t size, InputShape *out) {
  bool open = false;
  if (input->rank < 0) return false;
  *out = (InputShape){input->name, {.rank = input->rank}};
  for (int d = 0; d < input->rank; d++) {
    int64_t bound = bound_size(input, d, dims, n_dims);
    open |= input->dims[d] < 0;
    out->type.dims[d] = input->dims[d] >= 0 ? input->dims[d] : bound >= 0 ? bound : d == 0 && batch > 0 ? batch : size;
  }
  return open;
}

static Status bind_dims(const Flow *flow, const Options *options, DataInput *inputs) {
  DimBinding *dims = NULL;
  ARENA_GUARD(flow->arena);
  Status status = read_dims(&options->dim, flow->arena, &dims);
  for (size_t i = 0; !status && i < flow->n_inputs; i++)
    for (int d = 0; d < inputs[i].rank; d++)
      if (inputs[i].dims[d] < 0) inputs[i].dims[d] = bound_size(&flow->inputs[i], d, dims, (size_t)options->dim.n);
  ARENA_RETURN(flow->arena, status);
}

static Dtype token_dtype(const char *name) {
  static const struct { const char *name; Dtype dtype; } known[] = {
      {"uint8", DTYPE_U8}, {"uint16", DTYPE_U16}, {"uint32", DTYPE_U32}, {"int32", DTYPE_I32}, {"int64", DTYPE_I64}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (!strcmp(known[i].name, name)) return known[i].dtype;
  return DTYPE_NONE;
}

Status flow_open_data(const Flow *flow, const Options *options, uint64_t seed, Data **out) {
  DataInput *inputs = calloc(flow->n_inputs + 1, sizeof *inputs);
  if (!inputs) FAIL(RESOURCE, NULL, "out of memory for %zu inputs", flow->n_inputs);
  size_t n = flow->n_inputs;
  for (size_t i = 0; i < n; i++) {
    inputs[i] = (DataInput){.name = flow->inputs[i].name, .dtype = flow->inputs[i].dtype, .rank = flow->inputs[i].rank};
    memcpy(inputs[i].dims, flow->inputs[i].dims, sizeof inputs[i].dims);
  }
  if (adds_labels(flow, options)) inputs[n++] = (DataInput){.name = options->labels, .dtype = DTYPE_I64, .rank = -1};
  DataOptions data = {
    .sources = options->data.items, .n_sources = (size_t)options->data.n, .batch = options->batch, .seq = options->seq,
    .token_dtype = token_dtype(options->token_dtype), .shift = !strcmp(options->shift, "auto") ? -1 : options->shift[0] - '0',
    .packs = options->eos >= 0, .eos = options->eos, .shuffle = options->shuffle, .seed = seed, .deadline_ns = (int64_t)(options->deadline * 1e9),
  };
  Status status = bind_dims(flow, options, inputs);
  if (!status) status = data_open(&data, inputs, n, out);
  free(inputs);
  return status && flow->is_plan ? status_context(status, "for the inputs that the plan was made for") : status;
}

bool flow_data_is_stream(const Options *options) {
  bool stream = false;
  for (int i = 0; i < options->data.n; i++) stream |= !strcmp(options->data.items[i], "-");
  return stream;
}

bool flow_data_may_vary(const Flow *flow, const Options *options, const Data *data) {
  bool open = false;
  for (size_t i = 0; i < flow->n_inputs; i++)
    for (int d = 0; d < flow->inputs[i].rank; d++) open |= flow->inputs[i].dims[d] < 0;
  return !flow->is_plan && data && (data_n_variants(data) > 1 || (open && flow_data_is_stream(options)));
}

static Status import_guarded(Flow *flow, const Options *options, const Type *data_shapes, int64_t open_size, Imported *out) {
  DimBinding *dims = NULL;
  Tie *ties = NULL;
  TRY(read_dims(&options->dim, flow->arena, &dims));
  TRY(read_ties(&options->tie, flow->arena, &ties));
  InputShape *shapes = ARENA_ARRAY(flow->arena, InputShape, flow->n_inputs);
  size_t n_shapes = 0;
  for (size_t i = 0; i < flow->n_inputs; i++) {
    if (data_shapes && data_shapes[i].dtype) shapes[n_shapes++] = (InputShape){flow->inputs[i].name, data_shapes[i]};
    else if (!data_shapes && open_size) n_shapes += assume_shape(&flow->inputs[i], dims, (size_t)options->dim.n, options->batch, open_size, &shapes[n_shapes]);
  }
  ImportOptions import = {
    .dims = dims, .n_dims = (size_t)options->dim.n, .shapes = shapes, .n_shapes = n_shapes, .batch = options->batch,
    .params = join_list(&options->params, flow->arena), .freeze = join_list(&options->freeze, flow->arena),
    .ties = ties, .n_ties = (size_t)options->tie.n, .loss_output = options->loss_output,
  };
  return model_import(flow->model, &import, flow->arena, out);
}

static Status import_shapes(Flow *flow, const Options *options, const Type *data_shapes, int64_t open_size, Imported *out) {
  ARENA_GUARD(flow->arena);
  ARENA_RETURN(flow->arena, import_guarded(flow, options, data_shapes, open_size, out));
}

Status flow_import(Flow *flow, const Options *options, const Data *data, int64_t open_size) {
  Imported imported;
  Status status = import_shapes(flow, options, data ? data_shapes(data, 0) : NULL, open_size, &imported);
  if (status && options->origin.batch && strstr(status->what, "--batch")) return status_context(status, "%s", options->origin.batch);
  TRY(status);
  for (size_t i = 0; i < imported.n_warnings && !flow->warned; i++) {
    fprintf(stderr, "tessera: warning: ");
    printable_print(stderr, imported.warnings[i], true);
    fputc('\n', stderr);
  }
  flow->warned = true;
  flow->graph = imported.graph;
  flow->weights = imported.weights;
  return STATUS_OK;
}

static Status fill_guarded(const Options *options, const char *given, Arena *arena, PassRun *out) {
  ARENA_GUARD(arena);
  out->skip = flow_split_list(options->skip_passes, arena);
  out->command_options = arena_string(arena, given);
  ARENA_RETURN(arena, STATUS_OK);
}

Status flow_pass_run(const Options *options, Arena *arena, PassRun *out) {
  if (options->verify_each_asked && !options->verify_each) FAIL(USAGE, NULL, "--verify-each and --no-verify-each contradict each other");
  *out = (PassRun){
    .verify_each = options->verify_each, .time_passes = options->time_passes, .print_diff = options->print_ir_diff,
    .print_after = options->print_ir_after, .stop_after = options->stop_after, .reproducer = options->reproducer, .log = stderr,
  };
  char *given = NULL;
  TRY(options_of_passes(options, &given));
  Status status = fill_guarded(options, given, arena, out);
  free(given);
  return status;
}

static Status read_betas(const Options *options, CompileOptions *out) {
  if (!options->given.betas) return STATUS_OK;
  if (options->betas.n != 2) FAIL(USAGE, NULL, "--betas takes two numbers: --betas 0.9,0.999");
  out->beta1 = options->betas.items[0];
  out->beta2 = options->betas.items[1];
  if (out->beta1 < 0 || out->beta1 >= 1 || out->beta2 < 0 || out->beta2 >= 1) FAIL(USAGE, NULL, "--betas %g,%g: each must be in [0, 1)", out->beta1, out->beta2);
  return STATUS_OK;
}

// ---- Groups of parameters -----------------------------------------------------------------------------------------------------

// "weight-decay=0" and its like.
static Status read_group_setting(const char *text, const char *setting, ParamGroup *out) {
  const char *equals = strchr(setting, '=');
  size_t n = equals ? (size_t)(equals - setting) : 0;
  char *end = NULL;
  double value = equals ? strtod(equals + 1, &end) : 0;
  bool number = equals && end != equals + 1 && !*end && value >= 0 && value < INFINITY;
  double *to = n == 12 && !strncmp(setting, "weight-decay", n) ? &out->weight_decay : n == 8 && !strncmp(setting, "lr-scale", n) ? &out->lr_scale : NULL;
  if (n == 9 && !strncmp(setting, "optimizer", n)) {
    const OptimizerRule *rule = optimizer_rule_find(equals + 1);
    if (!rule || rule->own) FAIL(USAGE, NULL, "--group '%s': the optimizer '%s' is unknown; --help lists those of --optimizer", text, equals + 1);
    out->optimizer = rule->name;
    return STATUS_OK;
  }
  if (!to || !number)
    FAIL(USAGE, NULL, "--group '%s': '%s' is none of weight-decay=F, lr-scale=F (F: 0 or more), optimizer=NAME", text, setting);
  *to = value;
  return STATUS_OK;
}

// PATTERN[,PATTERN...]:SETTING[,SETTING...]; names of ONNX may hold colons, settings do not.
static Status read_group(const char *text, Arena *arena, ParamGroup *out) {
  const char *colon = strrchr(text, ':');
  if (!colon || colon == text || !colon[1])
    FAIL(USAGE, NULL, "--group '%s' is not PATTERN:SETTING,... such as '*bias:weight-decay=0,lr-scale=0.1'", text);
  *out = (ParamGroup){.patterns = arena_string_n(arena, text, (size_t)(colon - text)), .text = arena_string(arena, text), .weight_decay = NAN, .lr_scale = 1};
  for (const char **setting = flow_split_list(colon + 1, arena); *setting; setting++) TRY(read_group_setting(text, *setting, out));
  return STATUS_OK;
}

static Status read_groups(Arena *arena, const Options *options, CompileOptions *out) {
  ParamGroup *groups = ARENA_ARRAY(arena, ParamGroup, options->group.n + options->no_decay.n);
  size_t n = 0;
  for (int i = 0; i < options->group.n; i++) TRY(read_group(options->group.items[i], arena, &groups[n++]));
  for (int i = 0; i < options->no_decay.n; i++) TRY(read_group(arena_printf(arena, "%s:weight-decay=0", options->no_decay.items[i]), arena, &groups[n++]));
  out->groups = groups;
  out->n_groups = n;
  return STATUS_OK;
}

static Status read_groups_guarded(const Flow *flow, const Options *options, CompileOptions *out) {
  ARENA_GUARD(flow->arena);
  ARENA_RETURN(flow->arena, read_groups(flow->arena, options, out));
}

static Status read_recompute(const char *text, CompileOptions *out) {
  static const char *const names[] = {"none", "blocks", "all"};
  static const char budget[] = "budget=";
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(text, names[i])) {
      out->recompute = (RecomputeMode)i;
      return STATUS_OK;
    }
  if (strncmp(text, budget, strlen(budget))) FAIL(USAGE, NULL, "--recompute: '%s' is none of none, blocks, all, budget=SIZE (budget=64MiB)", text);
  out->recompute = RECOMPUTE_BUDGET;
  return options_read_size("recompute budget", text + strlen(budget), 1, 0x1p60, &out->recompute_bytes);
}

// "optimizer=host,params=nvme".
static Status read_offload(const char *text, Tier out[OFFLOAD_COUNT]) {
  for (const char *at = text ? text : ""; *at;) {
    size_t length = strcspn(at, ","), name = strcspn(at, "=,");
    int kind = 0, tier = TIER_HOST;
    const char *where = at + name + 1;
    while (kind < OFFLOAD_COUNT && (strlen(offload_name((OffloadKind)kind)) != name || strncmp(offload_name((OffloadKind)kind), at, name))) kind++;
    size_t rest = name < length ? length - name - 1 : 0;
    while (tier < TIER_COUNT && (strlen(tier_name((Tier)tier)) != rest || strncmp(tier_name((Tier)tier), where, rest))) tier++;
    if (kind == OFFLOAD_COUNT || tier == TIER_COUNT)
      FAIL(USAGE, NULL, "--offload: '%.*s' is not WHAT=WHERE, with optimizer, params, grads or activations for WHAT, and host or nvme for WHERE", (int)length, at);
    if (out[kind] != TIER_DEVICE) FAIL(USAGE, NULL, "--offload %s: %s is named twice", text, offload_name((OffloadKind)kind));
    out[kind] = (Tier)tier;
    at += length + (at[length] == ',');
  }
  return STATUS_OK;
}

Status flow_compile_options(const Flow *flow, const Options *options, CompileOptions *out) {
  CompileOptions c = compile_options_default();
  c.ranks = (int)options->ranks;
  c.ranks_per_process = (int)options->ranks_per_process;
  c.zero = (int)options->zero;
  c.micro_batches = options->micro_batches;
  int64_t each;
  TRY(micro_per_rank(&c, &each));
  c.reduce_given = options->reduce != NULL;
  if (options->reduce) c.reduce = !strcmp(options->reduce, "step") ? REDUCE_STEP : REDUCE_MICRO;
  c.accumulate = !strcmp(options->accumulate, "running") ? ACCUMULATE_RUNNING : ACCUMULATE_TREE;
  c.precision = options->precision;
  c.keep_f32 = options->keep_f32;
  if (c.keep_f32 && strcmp(c.precision, "bf16") && strcmp(c.precision, "fp16"))
    FAIL(USAGE, NULL, "--keep-f32 %s: with --precision %s nothing computes in 16 bits; it goes with bf16 and fp16", c.keep_f32, c.precision);
  c.isa = isa_best();
  if (options->isa && !isa_from_name(options->isa, &c.isa)) FAIL(USAGE, NULL, "--isa: '%s' is unknown", options->isa);
  if (!isa_available(c.isa))
    FAIL(USAGE, NULL, "--isa %s: this processor does not have it; its best is %s", isa_name(c.isa), isa_name(isa_best()));
  c.bucket_bytes = options->bucket_bytes;
  c.tile_bytes = options->tile_bytes;
  c.prefetch = options->prefetch;
  TRY(read_recompute(options->recompute, &c));
  c.keep = !strcmp(options->keep, "backward");
  TRY(read_offload(options->offload, c.offload));
  c.offload_window_bytes = options->offload_window;
  c.loss = options->loss;
  c.loss_output = options->loss_output;
  c.labels = options->labels;
  c.optimizer = options->optimizer;
  c.lr = options->lr;
  c.momentum = options->given.momentum ? options->momentum : NAN;
  c.dampening = options->dampening;
  c.nesterov = options->nesterov;
  c.momentum_decay = options->momentum_decay;
  c.decoupled_weight_decay = options->decoupled_weight_decay;
  c.beta2_decay = options->beta2_decay;
  c.eps2 = options->eps2;
  c.clip_threshold = options->clip_threshold;
  TRY(read_betas(options, &c));
  const OwnOptimizer *own = options->given.optimizer || !flow->graph ? NULL : flow->graph->own_optimizer;
  if (own) {
    c.optimizer = own->name;
    c.beta1 = own->alpha;
    c.beta2 = own->beta;
    if (!options->given.lr && own->lr >= 0) c.lr = own->lr;
  }
  c.eps = own ? own->epsilon : options->given.eps ? options->eps : NAN;
  c.alpha = options->alpha;
  c.muon_adjust = options->muon_adjust;
  c.lr_decay = options->lr_decay;
  c.initial_accumulator = options->initial_accumulator;
  c.weight_decay = own ? own->post : options->given.weight_decay ? options->weight_decay : NAN;
  c.clip_norm = options->clip_norm;
  c.ema = options->ema;
  c.param_norms = options->param_norms;
  c.clip_value = options->clip_value;
  TRY(read_groups_guarded(flow, options, &c));
  if (c.nesterov && (!(c.momentum > 0) || c.dampening != 0)) FAIL(USAGE, NULL, "--nesterov needs --momentum above 0 and no dampening");
  c.memory_bytes = options->memory;
  c.host_bytes = options->host_memory;
  c.nvme_bytes = options->nvme;
  c.chosen = flow->chosen;
  c.model_path = flow->model ? model_path(flow->model) : options->input;
  c.weights = &flow->weights;
  c.resume = options->resume != NULL;
  *out = c;
  return STATUS_OK;
}

// Options of the command line that only some optimizers read.
static const struct { const char *option; uint32_t bit; } optimizer_options[] = {
    {"momentum", READS_MOMENTUM}, {"dampening", READS_DAMPENING}, {"nesterov", READS_NESTEROV}, {"betas", READS_BETAS}, {"eps", READS_EPS}, {"alpha", READS_ALPHA},
    {"lr-decay", READS_LR_DECAY}, {"initial-accumulator", READS_INITIAL_ACCUMULATOR}, {"muon-adjust", READS_MUON_ADJUST},
    {"momentum-decay", READS_MOMENTUM_DECAY}, {"decoupled-weight-decay", READS_DECOUPLED}, {"beta2-decay", READS_ADAFACTOR}, {"eps2", READS_ADAFACTOR},
    {"clip-threshold", READS_ADAFACTOR}};

bool flow_optimizer_reads(const OptimizerRule *rule, const char *option) {
  for (size_t i = 0; i < sizeof optimizer_options / sizeof *optimizer_options; i++)
    if (!strcmp(optimizer_options[i].option, option)) return rule->reads & optimizer_options[i].bit;
  return true;
}

Status flow_check_optimizer(const Options *options, const OwnOptimizer *own) {
  bool any = options->given.momentum || options->given.dampening || options->given.nesterov || options->given.betas || options->given.eps || options->given.alpha ||
             options->given.lr_decay || options->given.initial_accumulator || options->given.weight_decay || options->given.group || options->given.no_decay;
  if (own && !options->given.optimizer && any)
    FAIL(USAGE, NULL, "the model brings its own optimizer with its numbers; name another with --optimizer to change them");
  const OptimizerRule *rule = optimizer_rule_find(options->optimizer);
  if (!rule) FAIL(USAGE, NULL, "--optimizer '%s' is unknown", options->optimizer);
  const char *misplaced = NULL;
  for (size_t i = 0; !misplaced && i < sizeof optimizer_options / sizeof *optimizer_options; i++) {
    const char *name = optimizer_options[i].option;
    if (options_is_given(options_find_row(name, RUN), options) && !flow_optimizer_reads(rule, name)) misplaced = name;
  }
  if (misplaced) FAIL(USAGE, NULL, "--%s means nothing to --optimizer %s", misplaced, options->optimizer);
  return STATUS_OK;
}

Status flow_data_options(const Flow *flow, const Options *options, const Data *data, int variant, CompileOptions *out) {
  TRY(flow_compile_options(flow, options, out));
  if (data && adds_labels(flow, options)) out->labels_type = data_shapes(data, variant)[flow->n_inputs];
  return STATUS_OK;
}

static Status run_passes(Flow *flow, const Options *options, const Data *data, int variant, bool variants, Graph *graph) {
  CompileOptions compile;
  PassRun run;
  TRY(flow_data_options(flow, options, data, variant, &compile));
  compile.variants = variants;
  TRY(flow_pass_run(options, flow->arena, &run));
  return passes_run(graph, pipeline_train, &compile, &run);
}

// ---- The proof ----------------------------------------------------------------------------------------------------------------

static Status verify_guarded(const Graph *program, Arena *arena) {
  const PlanDefect *defects;
  size_t n;
  TRY(verify_plan(program, arena, &defects, &n, NULL));
  if (!n) return STATUS_OK;
  const PlanDefect *d = &defects[0];
  const char *node = d->step >= 0 && (size_t)d->step < program->n_nodes ? program->nodes[d->step]->name : NULL;
  FAIL(CHECK, node, "the plan is broken: %s: %s%s%s%s (%zu defect%s%s; 'tessera verify PLAN' lists them)", d->code, d->what, d->param ? " [" : "",
       d->param ? d->param : "", d->param ? "]" : "", n, n == 1 ? "" : "s", n == PLAN_DEFECTS_MAX ? " or more" : "");
}

static Status verify_program(const Graph *program) {
  Arena *arena = arena_create(ARENA_LIMIT_BYTES);
  if (!arena) FAIL(RESOURCE, NULL, "out of memory to verify the plan");
  Status status = verify_guarded(program, arena);
  arena_destroy(arena);
  return status;
}

// Is the plan within --memory, --host-memory and --nvme? The same is proved of what a plan records.
static Status check_budget(const Options *options, const Graph *program) {
  const int64_t allowed[TIER_COUNT] = {[TIER_DEVICE] = options->memory, [TIER_HOST] = options->host_memory, [TIER_NVME] = options->nvme};
  static const char *const names[TIER_COUNT] = {[TIER_DEVICE] = "memory", [TIER_HOST] = "host-memory", [TIER_NVME] = "nvme"};
  for (int t = 0; t < TIER_COUNT; t++) {
    int64_t held = plan_process_bytes(program, (Tier)t);
    if (allowed[t] && held > allowed[t])
      FAIL(RESOURCE, NULL, "the plan needs %" PRId64 " bytes (%.1f MiB) of %s memory a process, %" PRId64 " (%.1f MiB) more than --%s allows", held,
           (double)held / (1 << 20), tier_name((Tier)t), held - allowed[t], (double)(held - allowed[t]) / (1 << 20), names[t]);
  }
  return STATUS_OK;
}

static Status compile_model(Flow *flow, const Options *options, const Data *data, bool variants) {
  TRY(flow_import(flow, options, data, 0));
  TRY(flow_check_optimizer(options, flow->graph->own_optimizer));
  TRY(run_passes(flow, options, data, 0, variants, flow->graph));
  TRY(make_plan(flow->graph, &flow->plan));
  TRY(check_budget(options, flow->graph));
  return verify_program(flow->graph);
}

Status flow_add_variant(Flow *flow, const Options *options, const Data *data, int variant, const Graph **out) {
  double start = clock_now_ms();
  Imported imported;                                       // its warnings have been told
  Plan alone;
  TRY(import_shapes(flow, options, data_shapes(data, variant), 0, &imported));
  TRY(run_passes(flow, options, data, variant, true, imported.graph));
  TRY(make_plan(imported.graph, &alone));
  TRY(check_budget(options, imported.graph));
  TRY(verify_program(imported.graph));
  TRY(plan_add_variant(&flow->plan, imported.graph, flow->arena));
  *out = imported.graph;
  flow->compile_ms += clock_now_ms() - start;
  return STATUS_OK;
}

// What a plan has fixed cannot be asked for again with another value; asking is an error rather than ignored.
static Status check_plan_options(const Options *options) {
  const char *fixed = options_first_given(options, FIXED);
  const char *origin = fixed ? options_origin(options_find_row(fixed, RUN), options) : NULL;
  if (fixed)
    FAIL(USAGE, NULL, "--%s%s%s%s is fixed in a plan; give it to 'tessera compile', or run the model", fixed, origin ? " (" : "", origin ? origin : "",
         origin ? ")" : "");
  return STATUS_OK;
}

Status flow_compile(Flow *flow, const Options *options, const Data *data, bool variants) {
  double start = clock_now_ms();
  if (flow->is_plan) {
    TRY(check_plan_options(options));
    TRY(check_budget(options, flow->graph));
    TRY(verify_program(flow->graph));
    TRY(make_plan(flow->graph, &flow->plan));
  } else {
    TRY(compile_model(flow, options, data, variants));
  }
  flow->compile_ms += clock_now_ms() - start;
  return STATUS_OK;
}

// The recorded path as it is; else that path, or its last part, from the plan's folder.
static const char *find_source(const Flow *flow, const char *recorded) {
  if (access(recorded, R_OK) == 0 || recorded[0] == '/') return recorded;
  PathFolder folder = path_folder(model_path(flow->model));
  const char *beside = arena_printf(flow->arena, "%.*s/%s", folder.bytes, folder.at, recorded);
  if (access(beside, R_OK) == 0 || path_name(recorded) == recorded) return beside;
  const char *same_folder = arena_printf(flow->arena, "%.*s/%s", folder.bytes, folder.at, path_name(recorded));
  return access(same_folder, R_OK) == 0 ? same_folder : recorded;
}

static Status open_source_guarded(Flow *flow, const Options *options) {
  const Recipe *recipe = &flow->graph->recipe;
  bool values = options->weights && has_suffix(options->weights, ".safetensors");      // of the source's inputs; the source is the recorded one
  if ((!options->weights || values) && !recipe->model) FAIL(USAGE, NULL, "the plan names no source model; give it with --weights MODEL");
  const char *path = options->weights && !values ? options->weights : find_source(flow, recipe->model);
  Status status = model_open(path, &flow->source);
  if (status) return status_context(status, "the plan's weights (--weights MODEL names another place)");
  if (values) TRY(give_weights(flow, flow->source, options->weights));
  TRY(check_model_files(options, flow->source, flow));
  TRY(model_weights(flow->source, flow->arena, &flow->weights));
  char hex[HEX128_BYTES];
  hex128_text(flow->weights.fingerprint[0], flow->weights.fingerprint[1], hex);
  if (recipe->fingerprint && strcmp(recipe->fingerprint, hex))
    FAIL(USAGE, NULL, "'%s' is not the model that this plan was compiled from: names, types or places of its weights have fingerprint %s, the plan's is %s",
         path, hex, recipe->fingerprint);
  return STATUS_OK;
}

Status flow_open_source(Flow *flow, const Options *options) {
  ARENA_GUARD(flow->arena);
  ARENA_RETURN(flow->arena, open_source_guarded(flow, options));
}
