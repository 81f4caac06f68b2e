// tessera run: a supervised worker process opens, compiles and trains; this process waits for it, and writes the report when it dies.
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../ir/hex.h"
#include "../ir/path.h"
#include "../ir/tile.h"
#include "../kernels/ops.h"
#include "../passes/optimizer_rules.h"
#include "../runtime/arena_memory.h"
#include "../runtime/checkpoint.h"
#include "../runtime/data.h"
#include "../runtime/launch.h"
#include "budget.h"
#include "command.h"
#include "compile_flow.h"
#include "evaluation.h"
#include "job.h"
#include "loss_scale_options.h"
#include "overwrites.h"
#include "profile.h"
#include "progress.h"
#include "report.h"
#include "resume.h"
#include "schedule_options.h"
#include "step_log.h"
#include "swap_options.h"
#include "testing_options.h"

// Losses, norms and times of the steps done; grows.
typedef struct History {
  double *losses, *grad_norms, *clipped_norms, *lr, *step_ms, *loss_scales, *skipped;
  int64_t n, capacity;
  bool full;                   // no memory for more: what is kept stays the first n
} History;

static bool history_add(History *h, const LaunchBeat *beat) {
  if (h->full) return false;
  if (h->n == h->capacity) {
    int64_t wider = h->capacity ? 2 * h->capacity : 1024;
    double **columns[] = {&h->losses, &h->grad_norms, &h->clipped_norms, &h->lr, &h->step_ms, &h->loss_scales, &h->skipped};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
      double *grown = realloc(*columns[i], (size_t)wider * sizeof *grown);
      if ((h->full = !grown)) return false;
      *columns[i] = grown;
    }
    h->capacity = wider;
  }
  h->losses[h->n] = beat->loss;
  h->grad_norms[h->n] = beat->grad_norm;
  h->clipped_norms[h->n] = beat->clipped_norm;
  h->lr[h->n] = beat->lr;
  h->loss_scales[h->n] = beat->loss_scale;
  h->skipped[h->n] = beat->skipped;
  h->step_ms[h->n++] = beat->ms;
  return true;
}

static void history_finish(History *h) {
  free(h->losses);
  free(h->grad_norms);
  free(h->clipped_norms);
  free(h->lr);
  free(h->step_ms);
  free(h->loss_scales);
  free(h->skipped);
  *h = (History){0};
}

// The worker's side of one run.
typedef struct Run {
  const Options *options;      // as given for these processes, or `continued`
  Options given;
  Options continued;           // with what a checkpoint says
  Options fitted;              // with what a budget chooses
  Job job;
  LaunchChannel *channel;
  Flow flow;
  const WeightSource *weights;
  Checkpoint *checkpoint;      // resumed from; NULL: none
  Data *data;
  DataFeed data_feed;          // of `data`, from its first batch on
  DataFeed moved_feed;         // the same, moved on by batch_offset: what the executor takes
  int64_t batch_offset;
  int *programs;               // [n_programs]: of a variant of the data, its program in the plan; -1: not compiled
  int n_programs;
  bool stream;                 // batches come as they come
  uint64_t seed;
  int64_t first_step;
  int64_t micro_batches;       // M, over all ranks
  LrSchedule schedule;
  double *param_norms;         // [done * n_norm_params]: --param-norms; NULL: not asked for
  const char **norm_params;
  size_t n_norm_params;
  int64_t norm_steps;          // whose norms are there
  int64_t steps;               // to do; -1: until a stream ends
  Executor *executor;
  Trace *trace;                // NULL: nobody asked for one
  int64_t done;                // steps of this run
  History history;
  LossScaleChoice loss_scale;
  Progress progress;
  EvalRun eval;
  StepLog *step_log;           // NULL: nobody asked for one
  char params_hash[33];
  ProcessUse *uses;            // [n_uses], of each process; NULL: it did not come that far
  int n_uses;
  bool interrupted;
  bool others_stopped;         // another process was interrupted or cannot go on
  bool ended;                  // all that processes do together is done
  Status stop;                 // why it cannot go on; what was done is kept
  const WeightOrigin *origins; // for checkpoints; NULL: not asked yet
  size_t n_origins;
  const char *const *data_texts;    // what the data are, for checkpoints; NULL: nobody asks
  size_t n_data_texts;
  int64_t saved_step;          // of the newest checkpoint of this run; -1: none
} Run;

static volatile sig_atomic_t stop_requested;   // set by SIGINT and SIGTERM in the worker: it ends after the step under way
static void request_stop(int signal_number) { stop_requested = signal_number; }

// ---- Before the first step ----------------------------------------------------------------------------------------------------

static void append(char *text, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void append(char *text, size_t bytes, const char *format, ...) {
  size_t used = strlen(text);
  va_list args;
  va_start(args, format);
  vsnprintf(text + used, bytes - used, format, args);
  va_end(args);
}

static void describe_input(char *text, size_t bytes, const ModelInput *input) {
  append(text, bytes, "\n  %-16s %s", input->name, input->dtype ? dtype_name(input->dtype) : "any type");
  if (input->rank < 0) append(text, bytes, ", any shape");
  for (int d = 0; d < input->rank; d++) {
    const char *before = d ? "," : "[";
    if (input->dims[d] >= 0) append(text, bytes, "%s%" PRId64, before, input->dims[d]);
    else append(text, bytes, "%s%s", before, input->symbols[d] ? input->symbols[d] : "?");
  }
  if (input->rank > 0) append(text, bytes, "]");
}

// " --dim NAME=16" for each symbol beyond the first axis that `text` does not bind yet.
static void describe_open_dims(char *text, size_t bytes, const ModelInput *input) {
  for (int d = 1; d < input->rank; d++) {
    char option[128];
    if (input->dims[d] >= 0 || !input->symbols[d]) continue;
    snprintf(option, sizeof option, " --dim %s=16", input->symbols[d]);
    if (!strstr(text, option)) append(text, bytes, "%s", option);
  }
}

// The first float output when no output can be the loss: scores that need one. NULL: there is a loss, or nothing is known of it.
static const Value *find_logits(Flow *flow, const Options *options) {
  static const char *const types_only[] = {"infer_types", NULL};
  CompileOptions compile = compile_options_default();
  PassRun passes;
  if (flow->is_plan || options->loss || options->loss_output) return NULL;
  Status status = flow_import(flow, options, NULL, 8);
  if (!status) status = flow_pass_run(options, flow->arena, &passes);
  if (!status) status = passes_run(flow->graph, types_only, &compile, &passes);
  const Value *logits = NULL;
  const Graph *graph = status ? NULL : flow->graph;
  bool loss = graph && (graph->loss || graph->own_optimizer);
  for (size_t i = 0; graph && i < graph->n_outputs; i++) {
    const Value *v = graph->outputs[i];
    if (!dtype_is_float(v->type.dtype)) continue;
    loss |= type_elems(&v->type) == 1;
    if (!logits && v->type.rank >= 2) logits = v;
  }
  status_free(status);
  return loss ? NULL : logits;
}

// `run` without --data: what the model takes, and a command line to copy.
static Status explain_inputs(Flow *flow, const Options *options) {
  char text[8192] = "";
  bool open_axis = false, tokens = false;
  char dims[512] = "";
  append(text, sizeof text, "no --data is given. '%s' takes per micro-batch:", options->input);
  for (size_t i = 0; i < flow->n_inputs; i++) {
    describe_input(text, sizeof text, &flow->inputs[i]);
    open_axis |= flow->inputs[i].rank > 0 && flow->inputs[i].dims[0] < 0;
    tokens |= flow->inputs[i].rank == 2 && dtype_is_integer(flow->inputs[i].dtype);
    describe_open_dims(dims, sizeof dims, &flow->inputs[i]);
  }
  if (open_axis && !options->given.batch) append(dims, sizeof dims, " --batch 8");
  const Value *logits = find_logits(flow, options);
  if (logits) {
    append(text, sizeof text, "\nIts output '%s' is no loss: --loss cross_entropy adds one, --labels NAME names the input that holds the class numbers.", logits->name);
    append(dims, sizeof dims, " --loss cross_entropy --labels labels");
  }
  append(text, sizeof text, "\nTo try it on random numbers:\n  tessera run %s --data random --steps 10%s", options->input, dims);
  if (tokens) append(text, sizeof text, "\nOn a text, each byte a token (or on a .bin file of 16-bit tokens):\n  tessera run %s --data FILE.txt%s", options->input, dims);
  const char *first = flow->n_inputs ? flow->inputs[0].name : "NAME";
  append(text, sizeof text, "\nOn a .safetensors file with one tensor per input (first axis: samples), or one per batch (%s.0, %s.1, ...):", first, first);
  append(text, sizeof text, "\n  tessera run %s --data FILE.safetensors%s", options->input, dims);
  FAIL(USAGE, NULL, "%s", text);
}

static Status open_checkpoint(Run *run) {
  run->seed = (uint64_t)run->options->seed;
  if (run->options->new_data && !run->options->resume) FAIL(USAGE, NULL, "--new-data is about --resume: without a checkpoint all data are new");
  if (!run->options->resume) return STATUS_OK;
  TRY(resume_open(run->options, &run->flow, &run->checkpoint, &run->continued));
  run->options = &run->continued;
  const CheckpointInfo *info = checkpoint_info(run->checkpoint);
  run->seed = run->options->given.seed ? (uint64_t)run->options->seed : info->seed;
  run->first_step = info->step;
  return STATUS_OK;
}

static bool loads_state(const Graph *program) {
  for (size_t i = 0; i < program->n_nodes; i++)
    if (program->nodes[i]->op == &op_Load && attr_string(program->nodes[i], "state") && attr_string(program->nodes[i], "state")[0]) return true;
  return false;
}

static bool has_state(const Graph *program) {
  for (size_t i = 0; i < program->n_values; i++)
    if (program->values[i]->role == ROLE_STATE) return true;
  return false;
}

// Models from shapes alone have no weights (docs/models.md): nothing to train.
static Status check_present(const WeightSource *source) {
  for (size_t i = 0; i < source->n_weights; i++)
    if (!source->weights[i].bytes && type_elems(&source->weights[i].type))
      FAIL(USAGE, NULL, "the weights of '%s' are absent: %s is an empty file. Such a model can be compiled, shown and simulated; 'tessera synth --init random' "
           "writes weights, too", source->path, source->weights[i].path);
  return STATUS_OK;
}

static Status choose_weights(Run *run) {
  const Graph *program = run->flow.plan.programs[0];
  run->weights = &run->flow.weights;
  if (!run->checkpoint) return check_present(run->weights);
  if (has_state(program) && !loads_state(program))
    FAIL(UNSUPPORTED, NULL, "this plan starts its optimizer state at zero; to continue from '%s', run the model instead of the plan", run->options->resume);
  return checkpoint_weights(run->checkpoint, &run->flow.weights, program, &run->weights);
}

static Status fill_moved(void *self, int64_t batch, const Tensor *out, size_t n_inputs) {
  Run *run = self;
  return run->data_feed.fill(run->data_feed.self, batch + run->batch_offset, out, n_inputs);
}

static int variant_moved(void *self, int64_t batch) {
  Run *run = self;
  int variant = run->data_feed.variant(run->data_feed.self, batch + run->batch_offset);
  return variant >= 0 && variant < run->n_programs ? run->programs[variant] : -1;
}

// ---- A program per shape ------------------------------------------------------------------------------------------------------

static Status number_programs(Run *run, int n) {
  int *wider = realloc(run->programs, (size_t)n * sizeof *wider);
  if (!wider) FAIL(RESOURCE, NULL, "no memory for %d shapes", n);
  run->programs = wider;
  while (run->n_programs < n) run->programs[run->n_programs++] = -1;
  return STATUS_OK;
}

static Status add_program(Run *run, int variant) {
  const Graph *program;
  if (run->flow.is_plan) FAIL(MALFORMED, NULL, "the data have batches of another shape than the plan was made for; run the model, which takes them all");
  TRY(flow_add_variant(&run->flow, run->options, run->data, variant, &program));
  TRY(data_bind(run->data, variant, program));
  if (run->trace) TRY(trace_add_variant(run->trace, program));
  if (run->executor) TRY(executor_add_variant(run->executor, program));
  run->programs[variant] = run->flow.plan.n_variants - 1;
  launch_beat(run->channel, &(LaunchBeat){.step = -1});      // compiling took its time
  return STATUS_OK;
}

// Compiles what batches [first, first + n) of the run need and nobody has compiled yet.
static Status compile_shapes(Run *run, int64_t first, int64_t n) {
  TRY(number_programs(run, data_n_variants(run->data)));
  for (int64_t b = first; b < first + n; b++) {
    int variant = data_variant(run->data, b + run->batch_offset);
    if (variant >= 0 && run->programs[variant] < 0) TRY(add_program(run, variant));
  }
  return STATUS_OK;
}

// Of files all shapes are known at start, those of a stream when they come: between steps. Two epochs hold every batch that a shuffled run can meet.
static Status compile_known_shapes(Run *run) {
  TRY(number_programs(run, 1));
  run->programs[0] = 0;
  int64_t batches = data_batches(run->data), needed = run->steps;
  if (run->stream || data_n_variants(run->data) == 1) return STATUS_OK;
  if (batches >= 0 && needed > 2 * batches / run->micro_batches + 1) needed = 2 * batches / run->micro_batches + 1;
  return compile_shapes(run, run->first_step * run->micro_batches, needed * run->micro_batches);
}

static Status choose_steps(Run *run) {
  const Options *o = run->options;
  const Graph *program = run->flow.plan.programs[0];
  run->micro_batches = program->recipe.micro_per_rank * mesh_ranks(&program->mesh);
  int64_t next;
  TRY(resume_data(o, run->checkpoint, run->data, run->flow.arena, &run->data_texts, &run->n_data_texts, &next));
  run->batch_offset = next - run->first_step * run->micro_batches;
  run->data_feed = data_feed(run->data);
  run->moved_feed = (DataFeed){fill_moved, run, variant_moved};
  int64_t batches = data_batches(run->data);
  run->stream = flow_data_is_stream(o);
  run->steps = o->steps;
  int64_t samples = data_samples(run->data);
  if (samples >= 0 && data_samples_per_batch(run->data) > (double)samples)
    fprintf(stderr, "tessera: warning: a micro-batch of %.0f samples is larger than the data, %" PRId64 " samples: it takes some of them more than once\n",
            data_samples_per_batch(run->data), samples);
  int64_t documents;
  double padding;
  if (data_packing(run->data, &documents, &padding))
    fprintf(stderr, "tessera: %" PRId64 " documents are packed into %" PRId64 " samples, %.1f %% of which is padding\n", documents, samples, 100 * padding);
  if (o->epochs && o->steps >= 0) FAIL(USAGE, NULL, "--steps %" PRId64 " and --epochs %" PRId64 " both say how long to train; give one", o->steps, o->epochs);
  if (o->epochs && run->stream) FAIL(USAGE, NULL, "--epochs: a stream on stdin passes once");
  if (o->steps >= 0 || run->stream) return STATUS_OK;
  if (batches < 0) FAIL(USAGE, NULL, "random data have no end: say how many steps with --steps K");
  run->steps = batches * (o->epochs ? o->epochs : 1) / run->micro_batches;
  if (run->steps == 0)
    FAIL(USAGE, NULL, "the data hold %" PRId64 " micro-batches, one step takes %" PRId64 "; use fewer --micro-batches, or --steps K to go around", batches,
         run->micro_batches);
  return STATUS_OK;
}

static Status say_plan_guarded(const Run *run, Arena *arena) {
  ARENA_GUARD(arena);
  const Graph *program = plan_largest_variant(&run->flow.plan);
  const Recipe *r = &program->recipe;
  PlanBytes bytes = plan_bytes(program, arena);
  char sent[32], peak[32];
  fprintf(stderr, "tessera: %s '%s' in %.0f ms: %d rank%s, stage %d, %" PRId64 " micro-batches a step, %s%s, %s; each rank sends %s a step; arenas %s\n",
          run->flow.is_plan ? "read plan" : "compiled", run->options->input, run->flow.compile_ms, mesh_ranks(&program->mesh),
          mesh_ranks(&program->mesh) > 1 ? "s" : "", r->zero, run->micro_batches, r->optimizer ? r->optimizer : "no optimizer",
          optimizer_reach_text(r->optimizer), r->precision, bytes_text(bytes.sent_bytes, sent), bytes_text(bytes.tiers[TIER_DEVICE].peak_bytes, peak));
  if (run->flow.plan.n_variants > 1) fprintf(stderr, "tessera: a program for each of %d shapes of batches\n", run->flow.plan.n_variants);
  if (r->loss_rule) fprintf(stderr, "tessera: loss '%s': %s\n", r->loss_output ? r->loss_output : "?", r->loss_rule);
  char bits[PLAN_BITS_BYTES];
  if (!plan_bits_are_shared(program)) fprintf(stderr, "tessera: bits: %s\n", plan_bits_rule(program, bits));
  ARENA_RETURN(arena, STATUS_OK);
}

static Status say_plan(const Run *run) {
  Arena *arena = arena_create(0);
  Status status = arena ? say_plan_guarded(run, arena) : status_fail(STATUS_RESOURCE, NULL, "out of memory before the first step");
  arena_destroy(arena);
  return status;
}

// May `path` become a file? Known before the work is done that it is to hold.
static Status check_target(const char *option, const char *path) {
  char folder[4096];
  struct stat st;
  if (!path) return STATUS_OK;
  PathFolder part = path_folder(path);
  snprintf(folder, sizeof folder, "%.*s", part.bytes, part.at);
  bool there = stat(path, &st) == 0;
  if (!*path || (there && S_ISDIR(st.st_mode))) FAIL(USAGE, NULL, "--%s '%s' is a folder; it must be a file", option, path);
  if (there && S_ISREG(st.st_mode) && access(path, W_OK)) FAIL(IO, NULL, "--%s '%s' cannot be written: %s", option, path, strerror(errno));
  if ((!there || S_ISREG(st.st_mode)) && access(folder, W_OK | X_OK))
    FAIL(IO, NULL, "--%s '%s' cannot be written: the folder '%s': %s", option, path, folder, strerror(errno));
  return STATUS_OK;
}

static Status check_targets(const Run *run) {
  const Options *o = run->options;
  if (o->save_every && !o->save) FAIL(USAGE, NULL, "--save-every %" PRId64 " needs --save DIR", o->save_every);
  if (o->save && !run->job.process) {
    Status status = checkpoint_check_place(o->save);
    if (status) return status_context(status, "--save");
  }
  TRY(check_target("log", o->log));
  TRY(check_target("trace", o->trace));
  TRY(check_target("metrics", o->step_metrics));
  TRY(step_log_check(o->step_metrics));
  return run->job.process ? STATUS_OK : check_target("dump-grads", o->dump_grads);
}

static Status check_ranks(const Run *run) {
  enum { RANKS_MAX = 4096 };     // threads of one process: team_create
  int64_t ranks = (run->flow.is_plan ? mesh_ranks(&run->flow.graph->mesh) : run->options->ranks) / run->job.processes;
  if (ranks > RANKS_MAX) FAIL(USAGE, NULL, "%" PRId64 " ranks: one process runs at most %d rank threads ('tessera compile' makes plans for more)", ranks, RANKS_MAX);
  return STATUS_OK;
}

// Names of what trains, where the plan has their norms.
static Status list_norm_params(Run *run) {
  const Graph *program = run->flow.plan.programs[0];
  bool kept = false;
  for (size_t b = 0; b < program->n_buckets; b++) {
    char name[64];
    snprintf(name, sizeof name, "bucket.%zu.grad_norms", b);
    kept |= graph_find_value(program, name) != NULL;
  }
  return kept ? graph_trainable_names(program, run->flow.arena, &run->norm_params, &run->n_norm_params) : STATUS_OK;
}

// Opens the data; chooses what budgets leave open, before that: it decides how large batches are. A stream can be opened once: its batches are as they come.
static Status open_data(Run *run) {
  bool asked = budget_is_asked(&run->flow, run->options), stream = flow_data_is_stream(run->options);
  if (asked && !stream) TRY(budget_choose(&run->flow, run->options, NULL, true, &run->fitted));
  if (asked && !stream) run->options = &run->fitted;
  TRY(flow_open_data(&run->flow, run->options, run->seed, &run->data));
  if (!asked || !stream) return STATUS_OK;
  if (run->options->given.global_batch) FAIL(USAGE, NULL, "--global-batch: a stream on stdin has batches as they come; say --micro-batches");
  TRY(budget_choose(&run->flow, run->options, run->data, true, &run->fitted));
  run->options = &run->fitted;
  return STATUS_OK;
}

static Status prepare_plan(Run *run) {
  const Options *o = run->options;
  TRY(flow_open(o, &run->flow));
  if (!o->data.n) return explain_inputs(&run->flow, o);
  if (run->flow.is_plan) TRY(flow_open_source(&run->flow, o));
  TRY(check_targets(run));
  TRY(check_ranks(run));
  TRY(open_checkpoint(run));
  TRY(open_data(run));
  o = run->options;
  TRY(evaluation_open(&run->flow, o, run->seed, &run->eval));
  TRY(flow_compile(&run->flow, o, run->data, flow_data_may_vary(&run->flow, o, run->data)));
  TRY(choose_weights(run));
  const Graph *program = run->flow.plan.programs[0];
  TRY(data_bind(run->data, 0, program));
  TRY(choose_steps(run));
  TRY(compile_known_shapes(run));
  TRY(evaluation_bind(&run->eval, &run->flow, o, run->micro_batches));
  TRY(say_plan(run));
  return job_take_plan(&run->job, program);
}

// Processes tell each other how far they have come, also one that has not come far.
static Status prepare_all(Run *run) {
  Status status = prepare_plan(run);
  const JobState state = {run->flow.plan.n_programs ? &run->flow.plan : NULL, TESSERA_VERSION};
  Status agreed = job_agree(&run->job, run->options, &state, status);
  if (!status) return agreed;
  status_free(agreed);
  return status;
}

static Status prepare(Run *run) {
  TRY(prepare_all(run));
  const Options *o = run->options;
  const Graph *program = run->flow.plan.programs[0];
  int each = program->recipe.ranks_per_process, n = run->job.n_transports ? run->job.n_transports : 1;
  ExecutorOptions executor = {
    .seed = run->seed, .deadline_ns = (int64_t)(o->deadline * 1e9), .schedule = &run->schedule, .detect_anomaly = o->detect_anomaly, .first_step = run->first_step,
    .grows = run->stream && flow_data_may_vary(&run->flow, o, run->data), .swap_dir = o->swap_dir,
    .transports = run->job.transports, .n_transports = run->job.n_transports,
  };
  TRY(swap_options_read(o, &executor.swap));
  TRY(list_norm_params(run));
  TRY(schedule_choose(o, program->recipe.lr, run->first_step, run->steps, &run->schedule));
  TRY(testing_options_read(o, mesh_ranks(&program->mesh), &executor));
  TRY(loss_scale_choose(o, program, run->checkpoint ? checkpoint_info(run->checkpoint)->loss_scale : NULL, &run->loss_scale, &executor));
  TRY(profile_open(o, &run->flow.plan, n * each, &run->trace));
  executor.trace = run->trace;
  LaunchBeat beat = {.step = -1, .first_rank = run->job.process * each, .n_ranks = run->job.processes > 1 ? each : 0};
  launch_beat(run->channel, &beat);      // compiling took its time; the clock of a hang starts again
  return executor_create(&run->flow.plan, run->weights, &run->moved_feed, &executor, &run->executor);
}

// ---- Steps --------------------------------------------------------------------------------------------------------------------

static int64_t next_step(const Run *run) { return run->first_step + run->done; }

static Status keep_param_norms(Run *run) {
  if (!run->n_norm_params) return STATUS_OK;
  size_t n = run->n_norm_params, at = (size_t)(run->done - 1) * n;
  double *grown = realloc(run->param_norms, (at + n) * sizeof *grown);
  if (!grown) FAIL(RESOURCE, NULL, "no memory for the norms of %zu parameters", n);
  run->param_norms = grown;
  for (size_t i = 0; i < n; i++) TRY(executor_gradient_norm(run->executor, run->norm_params[i], &grown[at + i]));
  run->norm_steps = run->done;
  return STATUS_OK;
}

static void show_alive(void *self) { launch_beat(((Run *)self)->channel, &(LaunchBeat){.step = -1}); }

// Between the step and its row, so that the row has the loss.
static Status evaluate(Run *run, int64_t step, double *out_loss) {
  *out_loss = NAN;
  if (!evaluation_is_due(&run->eval, step + 1, run->done == run->steps)) return STATUS_OK;
  TRY(evaluation_run(&run->eval, run->executor, step, show_alive, run, out_loss));
  progress_evaluation(&run->progress, step, *out_loss);
  return STATUS_OK;
}

// Of the first step, before an evaluation uses the gradients' memory.
static Status dump_gradients(Run *run) {
  const char *path = run->options->dump_grads;
  return path && run->done == 1 ? checkpoint_dump(path, run->executor, run->flow.plan.programs[0], "grad") : STATUS_OK;
}

static Status log_step(Run *run, const StepResult *result) {
  double eval_loss;
  int64_t n_evals = run->eval.history.n;
  TRY(evaluate(run, result->step, &eval_loss));
  StepRow row = {
    .step = result->step, .loss = result->loss, .eval_loss = eval_loss, .has_eval = run->eval.history.n > n_evals, .lr = result->lr,
    .grad_norm = result->grad_norm, .clipped_norm = result->clipped_norm,
    .loss_scale = result->loss_scale, .skipped = result->skipped,
    .rate = (double)run->progress.items_per_step * 1e3 / result->ms, .ms = result->ms, .micro_ms = result->micro_ms, .update_ms = result->update_ms,
    .sent_bytes = executor_sent_bytes_per_step(run->executor), .peak_bytes = process_peak_bytes(),
  };
  return run->step_log ? step_log_add(run->step_log, &row) : STATUS_OK;
}

static bool on_step(void *self, const StepResult *result) {
  Run *run = self;
  LaunchBeat beat = {.step = result->step, .loss = result->loss, .grad_norm = result->grad_norm, .clipped_norm = result->clipped_norm, .lr = result->lr, .ms = result->ms,
                     .loss_scale = result->loss_scale, .skipped = result->skipped};
  launch_beat(run->channel, &beat);
  run->done++;
  if (!history_add(&run->history, &beat) && !run->stop)
    run->stop = status_fail(STATUS_RESOURCE, NULL, "no memory for the losses of more than %" PRId64 " steps", run->history.n);
  if (!run->stop) run->stop = dump_gradients(run);
  if (!run->stop) run->stop = keep_param_norms(run);
  progress_step(&run->progress, result);
  if (!run->stop) run->stop = log_step(run, result);
  if (result->skipped) loss_scale_say(result, executor_loss_scale(run->executor)->scale);
  if (stop_requested) run->interrupted = true;
  return !run->stop && !stop_requested;
}

static Status save_to(Run *run, const char *dir, const TextList *given, const TextList *defaults) {
  int64_t step = next_step(run);
  char fingerprint[HEX128_BYTES];
  hex128_text(run->flow.weights.fingerprint[0], run->flow.weights.fingerprint[1], fingerprint);
  Model *model = run->flow.is_plan ? run->flow.source : run->flow.model;
  const char *path = model_path(model);
  char *absolute = realpath(path, NULL);
  CheckpointInfo info = {
    .step = step, .seed = run->seed, .next_batch = step * run->micro_batches + run->batch_offset, .model_path = absolute ? absolute : path,
    .fingerprint = fingerprint, .loss_scale = executor_loss_scale(run->executor), .options = given->items, .n_options = (size_t)given->n,
    .defaults = defaults->items, .n_defaults = (size_t)defaults->n, .data = run->data_texts, .n_data = run->n_data_texts,
  };
  Status status = STATUS_OK;
  if (!run->origins) status = model_weight_origins(model, run->flow.arena, &run->origins, &run->n_origins);
  info.origins = run->origins;
  info.n_origins = run->n_origins;
  if (!status) status = resume_ties(given, &run->flow.weights, run->flow.arena, &info.ties, &info.n_ties);
  if (!status) status = checkpoint_save(dir, run->executor, run->flow.plan.programs[0], &info);
  free(absolute);
  if (!status) run->saved_step = step;
  return status;
}

static Status save(Run *run) {
  TextList given, defaults;
  if (!run->options->save || run->saved_step == next_step(run)) return STATUS_OK;
  TRY(resume_record(run->options, &run->flow, lr_schedule_needs_total(run->schedule.kind) ? run->schedule.total : 0, &given, &defaults));
  Status status = save_to(run, run->options->save, &given, &defaults);
  options_free_texts(&given);
  options_free_texts(&defaults);
  return status;
}

static Status run_steps(Run *run, int64_t steps) {
  int64_t every = run->options->save_every, last = run->done + steps;
  while (run->done < last && !run->interrupted && !run->stop && !run->others_stopped) {
    int64_t left = last - run->done, to_save = every ? every - next_step(run) % every : left;
    TRY(executor_run(run->executor, left < to_save ? left : to_save, on_step, run));
    run->others_stopped = executor_stopped(run->executor) && !run->interrupted && !run->stop;
    if (!every || next_step(run) % every) continue;
    TRY(save(run));
    launch_beat(run->channel, &(LaunchBeat){.step = -1});
  }
  return STATUS_OK;
}

// The stream gives no more: the run ends after the last whole step and saves. An error only where more steps were asked for.
static void end_of_stream(Run *run, int64_t missing) {
  const char *left_out = data_left_out(run->data), *saved = run->options->save ? "; the checkpoint holds that state" : "";
  if (missing > 0)
    run->stop = status_fail(STATUS_IO, NULL, "the stream on stdin ended within step %" PRId64 ", %" PRId64 " steps too early%s%s%s", next_step(run), missing, saved,
                            left_out ? "; its last batch was left out: " : "", left_out ? left_out : "");
  else if (left_out)
    fprintf(stderr, "tessera: warning: the last batch of the stream was left out: %s\n", left_out);
}

// Of a stream, up to `steps` steps (-1: until it ends): each when its batches are there and programs for their shapes are. What is wrong with a batch
// becomes run->stop: all that was done until then is in order.
static Status run_stream(Run *run, int64_t steps) {
  for (int64_t i = 0; i != steps && !run->interrupted && !run->stop; i++) {
    int64_t first = next_step(run) * run->micro_batches;
    bool there = false;
    run->stop = data_available(run->data, first + run->batch_offset, run->micro_batches, &there);
    if (!run->stop && !there) {
      end_of_stream(run, steps - i);
      break;
    }
    if (!run->stop) run->stop = compile_shapes(run, first, run->micro_batches);
    if (!run->stop) TRY(run_steps(run, 1));
  }
  return STATUS_OK;
}

static Status run_some(Run *run, int64_t steps) { return run->stream ? run_stream(run, steps) : run_steps(run, steps); }

static Status train(Run *run) {
  const Options *o = run->options;
  if (o->dump_grads) {
    bool there = run->steps != 0;
    if (run->steps < 0) TRY(data_available(run->data, run->first_step * run->micro_batches + run->batch_offset, run->micro_batches, &there));
    if (!there) FAIL(USAGE, NULL, "--dump-grads needs at least one step");
  }
  return run_some(run, run->steps);
}

static void start_progress(Run *run, FILE *log) {
  bool tokens = data_has_tokens(run->data);
  bool terminal = isatty(STDOUT_FILENO) && run->job.processes == 1;      // mpirun has a terminal of its own for each process
  run->progress = (Progress){
    .lines = log ? log : terminal ? NULL : stdout, .live = terminal, .brief = log && !terminal, .steps = run->steps,
    .items_per_step = (int64_t)((double)run->micro_batches * (tokens ? data_tokens_per_batch(run->data) : data_samples_per_batch(run->data)) + 0.5),
    .item = tokens ? "tokens" : "samples",
  };
}

static const char *rate_key(const Run *run) { return run->progress.item && !strcmp(run->progress.item, "tokens") ? "tokens_per_s" : "samples_per_s"; }

static Status train_and_log(Run *run) {
  const Options *o = run->options;
  if (o->step_metrics || o->tensorboard) TRY(step_log_open(o->step_metrics, o->tensorboard, rate_key(run), &run->step_log));
  Status status = train(run), closed = step_log_close(run->step_log);
  run->step_log = NULL;
  if (!status) return closed;
  status_free(closed);
  return status;
}

static Status gather_uses(Run *run) {
  int n = executor_processes(run->executor);
  run->uses = calloc((size_t)n, sizeof *run->uses);
  if (!run->uses) FAIL(RESOURCE, NULL, "no memory for what %d processes have used", n);
  TRY(executor_uses(run->executor, run->uses));
  run->n_uses = n;
  return STATUS_OK;
}

static Status do_run(Run *run) {
  FILE *log = NULL;
  TRY(prepare(run));
  const Options *o = run->options;
  if (o->log && !(log = fopen(o->log, "w"))) FAIL(IO, NULL, "cannot write the log '%s'", o->log);
  start_progress(run, log);
  Status status = train_and_log(run);
  progress_finish(&run->progress);
  if (log && fclose(log) && !status) status = status_fail(STATUS_IO, NULL, "cannot write the log '%s'", o->log);
  TRY(status);
  TRY(profile_close(o, run->trace, run->done));
  TRY(executor_params_hash(run->executor, run->params_hash));
  TRY(gather_uses(run));
  TRY(save(run));
  run->ended = true;
  Status stop = run->stop;
  run->stop = STATUS_OK;
  if (stop && o->save && stop->code != STATUS_IO)
    fprintf(stderr, "tessera: stopped after step %" PRId64 "; the checkpoint '%s' holds that state\n", next_step(run) - 1, o->save);
  TRY(stop);
  if (run->others_stopped)
    FAIL(CHECK, NULL, "stopped after %" PRId64 " steps, since another process was%s", run->done, o->save ? "; --resume continues from the checkpoint" : "");
  if (run->interrupted)
    FAIL(CHECK, NULL, "stopped by signal %d after %" PRId64 " steps%s", (int)stop_requested, run->done, o->save ? "; --resume continues from the checkpoint" : "");
  return STATUS_OK;
}

static Status write_report(const Run *run, const StatusError *error) {
  const Options *o = run->options;
  if (!o->report || run->flow.overwrites) return STATUS_OK;
  RunReport report = {
    .program = run->flow.plan.n_programs ? plan_largest_variant(&run->flow.plan) : NULL, .n_steps = run->history.n, .losses = run->history.losses,
    .grad_norms = run->history.grad_norms, .clipped_norms = run->history.clipped_norms, .lr = run->history.lr,
    .step_ms = run->history.step_ms, .loss_scales = run->history.loss_scales,
    .skipped = run->history.skipped, .params_hash = run->params_hash[0] ? run->params_hash : NULL,
    .compile_ms = run->flow.compile_ms, .items_per_step = run->progress.items_per_step,
    .rate_key = rate_key(run), .n_evals = run->eval.history.n, .eval_steps = run->eval.history.steps, .eval_losses = run->eval.history.losses,
    .eval_batches = run->eval.n_batches,
    .param_norms = run->norm_steps >= run->history.n ? run->param_norms : NULL,
    .norm_params = run->norm_params, .n_norm_params = run->n_norm_params, .executor = run->executor, .uses = run->uses, .n_uses = run->n_uses,
    .error = error,
  };
  return report_write(o->report, &report);
}

static void finish(Run *run, bool orderly) {
  executor_destroy(run->executor);
  job_close(&run->job, orderly);
  trace_destroy(run->trace);
  evaluation_finish(&run->eval);
  data_close(run->data);
  options_finish(&run->fitted);
  options_finish(&run->continued);
  checkpoint_close(run->checkpoint);
  flow_finish(&run->flow);
  history_finish(&run->history);
  free(run->param_norms);
  free(run->programs);
  free(run->uses);
  status_free(run->stop);
}

// What the supervisor has found out before it forks.
typedef struct Launch { const Options *options; Job job; } Launch;

static int worker(void *arg, LaunchChannel *channel) {
  const Launch *launch = arg;
  Run run = {.options = &run.given, .job = launch->job, .channel = channel, .saved_step = -1};
  struct sigaction stop = {.sa_handler = request_stop};
  sigaction(SIGINT, &stop, NULL);
  sigaction(SIGTERM, &stop, NULL);
  Status status = job_open(&run.job, launch->options, &run.given);
  if (!status) status = do_run(&run);
  if (status && run.executor && run.job.processes > 1 && !run.ended) executor_abort(run.executor, status);
  Status reported = write_report(&run, status);
  if (reported && status) command_print_error(reported);
  else if (reported) status = reported;
  bool alike = run.job.told || run.others_stopped || status_code(status) == STATUS_CHECK;       // the first process says it
  bool said = run.job.process && (alike || (run.executor && executor_was_told(run.executor)));
  if (run.job.errors) stderr = run.job.errors;
  bool orderly = !status || run.job.told || run.ended;
  int code = (int)status_code(status);
  if (said) status_free(status);
  else command_print_error(status);                // before the others can end: their launcher then ends this one
  finish(&run, orderly);
  return code;
}

// ---- The supervisor -----------------------------------------------------------------------------------------------------------

static void on_beat(void *self, const LaunchBeat *beat) {
  bool full = ((History *)self)->full;
  if (beat->step >= 0 && !history_add(self, beat) && !full)
    fprintf(stderr, "tessera: warning: out of memory: the report of a failed run will lack steps\n");
}

Status command_run(const Options *options) {
  History history = {0};
  LaunchOptions launch = {.hang_ns = (int64_t)(options->hang * 1e9), .on_beat = on_beat, .self = &history};
  LaunchEnd end = {0};
  Launch start = {.options = options};
  TRY(job_find(options, &start.job));
  bool reports = options->report && !start.job.process;
  TRY(overwrites_check(options));
  if (reports) TRY(check_target("report", options->report));
  fflush(NULL);
  Status status = launch_run(worker, &start, &launch, &end);
  if (status && reports) {
    RunReport report = {.n_steps = history.n, .losses = history.losses, .grad_norms = history.grad_norms, .clipped_norms = history.clipped_norms,
                        .lr = history.lr, .step_ms = history.step_ms, .loss_scales = history.loss_scales, .skipped = history.skipped, .error = status};
    Status reported = report_write(options->report, &report);
    if (reported) command_print_error(reported);
  }
  history_finish(&history);
  return status ? status : command_exit_silently(end.exit_code);
}
