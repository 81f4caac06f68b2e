// The one way from a file to a plan, shared by the subcommands: open, import or read, passes, plan; and the weights that the plan loads.
//
// Ownership: a Flow owns everything it gives out; flow_finish ends it (also after an error, also when zeroed). Threads: one.
#ifndef TESSERA_COMPILE_FLOW_H
#define TESSERA_COMPILE_FLOW_H

#include "../frontend/onnx_import.h"
#include "../ir/plan.h"
#include "../passes/optimizer_rules.h"
#include "../passes/pass.h"
#include "../runtime/data.h"
#include "options.h"

typedef struct Flow {
  Arena *arena;
  Model *model;                // the file given: a model or a plan
  bool is_plan;
  struct Safetensors *given;   // --weights FILE.safetensors
  Model *source;               // plans: the model whose weights it loads; NULL: not opened
  const ModelInput *inputs;    // of the model or plan; static dimensions in a plan
  size_t n_inputs;
  Graph *graph;                // plans: from the start; models: after flow_import or flow_compile
  const Graph **programs;      // plans: [n_programs], the first is `graph`
  int n_programs;
  WeightSource weights;        // what Load steps read
  Plan plan;                   // n_programs 0 until flow_compile
  const char *chosen;          // what a budget chose, and why (budget.h); the plan records it. NULL: nothing
  bool warned;                 // warnings of the import have been told
  bool overwrites;             // an output is one of the model's files: nothing is to be written, no report either
  double compile_ms;           // import, passes, plan
} Flow;

// Refuses outputs that are inputs. Opens the file, decides what it is, lists its inputs; reads a plan's graph. USAGE when no file is named.
// UNSUPPORTED: a plan of several programs.
MUST_USE Status flow_open(const Options *options, Flow *out);
MUST_USE Status flow_open_programs(const Options *options, Flow *out);      // takes those, too
MUST_USE Status flow_check_one_program(const Options *options, const Flow *flow);
void flow_finish(Flow *flow);

// Opens --data for the inputs of the file. `seed`: of the shuffle.
MUST_USE Status flow_open_data(const Flow *flow, const Options *options, uint64_t seed, Data **out);

bool flow_data_is_stream(const Options *options);                            // is a part of --data stdin?
// Will a run of a model need programs for other shapes than the first (flow_add_variant)?
bool flow_data_may_vary(const Flow *flow, const Options *options, const Data *data);

enum { FLOW_ASSUMED_SIZE = 8 };  // of dimensions that a model leaves open, where some size will do: for `show` and `diff`

// Models: imports with what the options bind, and with the shapes of variant 0 of `data` (may be NULL). Warnings go to stderr.
// open_size: without data, dimensions of inputs that stay open take this size; 0: they are an error.
MUST_USE Status flow_import(Flow *flow, const Options *options, const Data *data, int64_t open_size);

// A model: flow_import, the training pipeline, make_plan. A plan: takes it as it is. The plan is in flow->plan, and proved (passes/verify_plan.h):
// CHECK with the first defect when it is broken, also for what was compiled here, which takes less time than compiling.
// variants: flow_add_variant may follow.
MUST_USE Status flow_compile(Flow *flow, const Options *options, const Data *data, bool variants);

// A model compiled already: again for the shapes of another variant of `data`, which is appended to flow->plan. *out: its program.
MUST_USE Status flow_add_variant(Flow *flow, const Options *options, const Data *data, int variant, const Graph **out);

// Plans: opens the source model (--weights, else the recorded path, as it is or beside the plan), checks its fingerprint, fills in weights.
MUST_USE Status flow_open_source(Flow *flow, const Options *options);

// The options in the compiler's terms, checked; they point into `options` and `flow`.
MUST_USE Status flow_compile_options(const Flow *flow, const Options *options, CompileOptions *out);

// Does the optimizer (own: the model's, NULL: none) read what is given of its numbers? USAGE where it does not.
MUST_USE Status flow_check_optimizer(const Options *options, const OwnOptimizer *own);

// false: `option` ("momentum") means nothing to this optimizer.
bool flow_optimizer_reads(const OptimizerRule *rule, const char *option);

// The same for the shapes of a variant of `data` (NULL: none): with the type of the labels, where an input is added for them.
MUST_USE Status flow_data_options(const Flow *flow, const Options *options, const Data *data, int variant, CompileOptions *out);

// How the runner of passes is to behave; `skip` and `command_options` lie in `arena`.
MUST_USE Status flow_pass_run(const Options *options, Arena *arena, PassRun *out);

// Splits "a,b,c" into a NULL-terminated list in `arena`; NULL stays NULL.
const char **flow_split_list(const char *text, Arena *arena);

#endif
