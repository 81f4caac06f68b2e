// A pass changes a Graph. Its row in passes.def says what it needs and what it leaves behind; the runner checks that, times it, verifies
// the graph after it and can print it. Passes are deterministic, take no time proportional to ranks or weight bytes, and read options only.
#ifndef TESSERA_PASS_H
#define TESSERA_PASS_H

#include <stdio.h>

#include "../ir/graph.h"
#include "../ir/plan.h"
#include "../kernels/loops.h"

// Parameters that are updated with other numbers than the rest.
typedef struct ParamGroup {
  const char *patterns;          // comma-separated, with * and ?; "@vectors": parameters of at most one axis
  const char *text;              // the whole as it was said; recorded with the group's buckets
  const char *optimizer;         // NULL: the run's
  double weight_decay;           // NAN: the optimizer's
  double lr_scale;               // factor of the learning rate
} ParamGroup;

// What is kept from forward to backward (recompute.c).
typedef enum RecomputeMode { RECOMPUTE_NONE, RECOMPUTE_BLOCKS, RECOMPUTE_ALL, RECOMPUTE_BUDGET } RecomputeMode;

// What may live in another tier than the device (passes/offload.c).
typedef enum OffloadKind { OFFLOAD_OPTIMIZER, OFFLOAD_PARAMS, OFFLOAD_GRADS, OFFLOAD_ACTIVATIONS, OFFLOAD_COUNT } OffloadKind;

// Everything a user may ask of the compiler, in library terms. tools/ fills it from options.def; recorded in the plan's recipe.
typedef struct CompileOptions {
  int ranks;                     // size of the dp axis, >= 1
  int ranks_per_process;         // divides `ranks`; 0: all are in one process
  int zero;                      // 0..3
  int64_t micro_batches;         // global count per step; 0: = ranks. A multiple of ranks
  bool reduce_given;
  Reduce reduce;                 // when given; else MICRO for stages 2, 3 and STEP for 0, 1
  Accumulate accumulate;         // over the micro-batches of a rank
  const char *precision;         // "f32", "fp64", "bf16", "fp16"
  const char *keep_f32;          // under bf16 and fp16: comma-separated patterns of nodes, or operators, that compute in f32; NULL: by policy
  Isa isa;                       // of the target
  int64_t bucket_bytes;          // aim; a parameter larger than that has a bucket of its own. 0: an eighth of what trains, within bounds
  int64_t tile_bytes;            // matrices above it are cut by rows into parameters of at most that; 0: none is
  int64_t prefetch;              // collectives that may run ahead of compute, on a queue of their own; 0: all steps are on one queue
  Tier offload[OFFLOAD_COUNT];   // where each lives; DEVICE: it stays
  int64_t offload_window_bytes;  // that elementwise steps of the update take of a tensor at a time
  bool keep;                     // stage 3: what forward has gathered is kept for backward
  RecomputeMode recompute;
  int64_t recompute_bytes;       // RECOMPUTE_BUDGET: of activations that are alive at a time
  const char *loss;              // NULL: in the graph; "cross_entropy"; ...
  const char *loss_output;       // NULL: the first float output of one element
  const char *labels;            // for `loss`: input that holds the labels; created when the graph has none of that name
  Type labels_type;              // of the first batch of labels, where an input is created for them; dtype NONE: not known
  const char *optimizer;         // a row of optimizer_rules.c
  // NAN for beta1, beta2, eps, weight_decay and momentum: what the optimizer has by default (optimizer_rules.c)
  double lr, momentum, dampening, beta1, beta2, eps, weight_decay, clip_norm;   // clip_norm 0: none
  double alpha, lr_decay, initial_accumulator;       // rmsprop; adagrad
  bool nesterov;
  double momentum_decay;                             // nadam
  bool decoupled_weight_decay;                       // nadam, radam
  double beta2_decay, eps2, clip_threshold;          // adafactor
  const char *muon_adjust;       // "original", "match-rms-adamw"
  bool param_norms;              // norms of single gradients are kept for the report
  double clip_value;             // each element of the mean gradient, before clip_norm; 0: none
  double ema;                    // decay of a moving average of the parameters; 0: none is kept
  const ParamGroup *groups;      // the first that matches a parameter holds
  size_t n_groups;
  int64_t memory_bytes, host_bytes, nvme_bytes;      // budgets of a process: recorded, and what verify_plan holds the plan to; 0: none
  const char *chosen;            // what was chosen to keep them, and why: recorded; NULL: nothing
  const char *model_path;        // recorded
  const WeightSource *weights;   // recorded by path and fingerprint
  bool resume;                   // optimizer state is loaded, not zeroed
  bool variants;                 // the plan is to have variants for other shapes of the inputs (ir/plan.h); costs up to 3 % of memory
} CompileOptions;

// The defaults that --help shows (adamw, lr 1e-3, ...).
CompileOptions compile_options_default(void);

typedef struct Pass {
  const char *name;
  uint32_t requires, not_after, provides;  // FACT_*: must hold before; must not hold yet; hold after
  const char *help;                        // one sentence
  Status (*run)(Graph *graph, const CompileOptions *options);
} Pass;

extern const Pass pass_table[];            // from passes.def; ends with name NULL

// Pipelines (pipelines.c): arrays of pass names ending with NULL. The whole compiler on one screen.
extern const char *const pipeline_simplify[];    // types, constants, dead code: what `show MODEL` and `opt` use
extern const char *const pipeline_train[];       // from an imported graph to a graph that make_plan takes

typedef struct PassRun {
  const char *const *skip;       // names of passes to leave out; NULL or NULL-terminated. Only passes that provide no fact: nothing builds on them
  bool verify_each;              // verify_graph after every pass
  bool time_passes;              // prints "pass  ms" to `log`
  bool print_diff;               // with print_after: lines that changed only
  const char *print_after;       // pass name, "all" or NULL: prints the text form to `log`
  const char *stop_after;        // NULL: run all
  const char *reproducer;        // file: when a pass fails, the graph before it in text form, with the command; NULL: none
  const char *command_options;   // for that command: the options that passes were given, as `tessera opt` takes them; "" or NULL: none
  FILE *log;
} PassRun;

// Runs the passes in order under an arena guard. A failure names the pass.
MUST_USE Status passes_run(Graph *graph, const char *const *passes, const CompileOptions *options, const PassRun *run);

// Last step: wraps the planned graph. Fails unless FACT_PLANNED holds and the graph verifies. In graph->arena.
MUST_USE Status make_plan(Graph *graph, Plan *out);

#endif
