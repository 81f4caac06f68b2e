// Runs a plan: an Executor holds the arenas, the teams of rank threads and everything that changes. The plan is only read.
//
// A plan for several processes is run by an executor in each of them, which reach each other by transports; or by one executor with the transports of all
// of them (transport_threads), which emulates them: each has its own team and arenas. Where processes run elsewhere, executor_create, executor_run,
// executor_evaluate, executor_read, executor_params_hash, executor_any and executor_uses are collectives: all processes call the same in the same order, and
// each gets the whole result.
//
// Life: executor_create reserves and populates all memory, prepares all kernels and starts one thread per rank; executor_run does steps;
// executor_destroy ends the threads. Between create and destroy the step loop allocates, opens and looks up nothing.
// Every rank picks the variant (ir/plan.h) of each of its micro-batches by itself; when it is another than before, the rank copies its constants in.
// Threads: create, run and destroy from one thread. Rank threads never call back into the caller but through `feed` and `on_step`.
#ifndef TESSERA_EXECUTOR_H
#define TESSERA_EXECUTOR_H

#include "../ir/plan.h"
#include "comm.h"
#include "loss_scale.h"
#include "lr_schedule.h"
#include "swap.h"
#include "transport.h"

// Fills the data of one micro-batch: out[i].data for graph input i (out[i].type says how much). Called by the rank's own thread, several
// ranks at a time; `batch` = step * M + global micro-batch index.
typedef struct DataFeed {
  Status (*fill)(void *self, int64_t batch, const Tensor *out, size_t n_inputs);
  void *self;
  int (*variant)(void *self, int64_t batch);   // index in plan->variants of the program for this batch's shapes; -1: there is none. NULL: 0
} DataFeed;

typedef struct StepResult {
  int64_t step;
  double loss;              // of the global batch
  double grad_norm;         // global, before clipping
  double clipped_norm;      // after clipping by norm
  double lr;
  double ms;
  double micro_ms, update_ms;   // of them, by rank 0: its micro-batches, and what follows
  double loss_scale;        // of the mean loss; 0: not scaled
  bool skipped;             // its gradients were not finite: nothing was updated, and schedules did not go on
  const char *bad_param;    // skipped: the parameter whose gradient was the first not to be finite; NULL: not known
  int bad_rank;             // whose micro-batch made it so; where only the sum is not finite, that holds it
  int64_t bad_micro;        // that micro-batch of the step, over all ranks; -1: only the sum
} StepResult;

typedef struct ExecutorOptions {
  uint64_t seed;
  int64_t deadline_ns;      // of any wait between ranks; 0: 600 s
  const LrSchedule *schedule;   // must outlive the executor; NULL: the recipe's lr
  bool detect_anomaly;      // looks at what every operator makes: the first value that is not finite, made of finite ones, is an error that names it
  int64_t first_step;       // when resuming
  const LossScaleOptions *loss_scale;           // for plans of --precision fp16, which need it; must outlive the executor
  const LossScale *loss_scale_state;            // to go on from; NULL: from the start
  Transport *const *transports; // to the other processes of the plan: an endpoint for each process that runs here, by number; must outlive the executor
  int n_transports;         // 0: the plan is for one process
  int inf_rank;             // --inject-inf (testing): gradients of that rank begin with infinity at these steps
  const double *inf_steps;
  int n_inf_steps;
  int fault_rank;           // --fault RANK:STEP (testing): that rank fails at that step; -1: none
  int64_t fault_step;
  int64_t link_latency_ns, link_ns_per_mib;     // --link-delay (testing): collectives take that much longer (comm_link_create); 0, 0: they do not
  Comm *(*wrap_comm)(void *self, Comm *comm);   // testing: what rank comm->rank is given in place of its endpoint (comm_delay_create); must outlive
  void *wrap_self;                              // the executor. NULL: the endpoint itself
  struct Trace *trace;      // trace.h: takes down when each step runs; made for the same plan; NULL: none
  const char *swap_dir;     // folder for the swap file; NULL: plans that need one are refused
  SwapOptions swap;         // its engine
  bool grows;               // executor_add_variant may be called: address space is reserved for arenas as large as the machine's memory
} ExecutorOptions;

typedef struct MemoryUse {
  struct {
    int64_t planned_bytes, measured_bytes;               // per process; measured: resident in the arenas, or blocks of the swap file, asked of the kernel
  } tiers[TIER_COUNT];
  int64_t rss_before_arena_bytes, rss_peak_bytes;
} MemoryUse;

typedef struct Executor Executor;

// Runs phase `init` too. `weights` must live as long as the executor.
MUST_USE Status executor_create(const Plan *plan, const WeightSource *weights, const DataFeed *feed, const ExecutorOptions *options, Executor **out);
void executor_destroy(Executor *executor);          // NULL is fine. Where a rank hangs (executor_run said so) it frees nothing: end the process

// Takes up plan->variants[n] that plan_add_variant has appended since (a trace must have it already): prepares its kernels and makes the arenas
// larger where it needs that. Between runs only. USAGE without `grows`; RESOURCE when the machine has not the memory. After an error of a kernel the
// executor has stopped.
MUST_USE Status executor_add_variant(Executor *executor, const Graph *variant);

// `steps` steps. on_step (may be NULL) is called on the caller's thread after each; returning false stops cleanly after it, in all processes.
// A step whose gradients are not finite is skipped where the loss is scaled (loss_scale.h); too many in a row are STATUS_CHECK.
// A non-finite loss stops with STATUS_CHECK after on_step. A failing rank stops all; the status carries its rank and node, and its text the step.
MUST_USE Status executor_run(Executor *executor, int64_t steps, bool (*on_step)(void *self, const StepResult *result), void *self);

// The loss of batches [first, first + n) of `feed` with the parameters of now: forward steps only, nothing that training reads is changed but the last step's
// gradient (executor_read) and its inputs. out_pairs[i] is what batch first + i adds to (sum, count): the mean loss is that of the sums over that of the
// counts, in order the same for every number of ranks. Dropout drops nothing, and BatchNormalization takes the running statistics where the graph
// carries them on, which stay as they were; other operators do as in training. Between steps, also within on_step. UNSUPPORTED: the plan does not
// say what the loss is. After an error the executor has stopped.
MUST_USE Status executor_evaluate(Executor *executor, const DataFeed *feed, int64_t first, int64_t n, double (*out_pairs)[2]);

// Whole tensors, canonical order, from wherever the shards lie; outside executor_run only. `out` holds type_bytes of the parameter.
// which: NULL = the parameter (or running statistics of that name, rank 0's), "grad" = mean gradient of the last step before clipping (f32 or f64
// as the plan), else a state name.
MUST_USE Status executor_read(Executor *executor, const char *param, const char *which, void *out);

// Elements [start, start + n) of that, for tensors that are not to lie in memory as a whole.
MUST_USE Status executor_read_part(Executor *executor, const char *param, const char *which, int64_t start, int64_t n, void *out);

// Norm of a parameter's mean gradient of the last step, before clipping; plans compiled with param_norms only (else USAGE). Also from on_step.
MUST_USE Status executor_gradient_norm(Executor *executor, const char *param, double *out);

// XXH3-128 over the canonical bytes of all parameters in name order (name, 0, bytes each), as hex with terminator.
MUST_USE Status executor_params_hash(Executor *executor, char out[33]);

// Loss scaling after the steps so far; NULL: the plan has none.
const LossScale *executor_loss_scale(const Executor *executor);

bool executor_is_first(const Executor *executor);       // does rank 0 run here?
bool executor_is_alone(const Executor *executor);       // do all ranks run here?
int executor_processes(const Executor *executor);       // that hold an executor of the plan: 1 when alone

// Is it so in any process?
MUST_USE Status executor_any(Executor *executor, bool mine, bool *out);

// What each process has used and sent: out[executor_processes].
typedef struct ProcessUse { MemoryUse memory; int64_t sent_bytes, copied_bytes, wire_bytes; } ProcessUse;      // bytes: per step, as below
MUST_USE Status executor_uses(Executor *executor, ProcessUse *out);

// Did it stop because another process said that it has failed? Then that one says why.
bool executor_was_told(const Executor *executor);
// Did the last executor_run stop early, in whatever process on_step returned false?
bool executor_stopped(const Executor *executor);

// This process cannot go on: tells the others why, who then fail with that text. For errors beside the executor; its own have told.
void executor_abort(Executor *executor, const StatusError *error);

// Of this process; where several are emulated here, of the one that is largest.
const SwapFile *executor_swap_file(const Executor *executor);      // of the first process here; NULL: the plan needs none
MemoryUse executor_memory(const Executor *executor);
int64_t executor_sent_bytes_per_step(const Executor *executor);      // measured, logical, per rank; maximum over ranks
int64_t executor_copied_bytes_per_step(const Executor *executor);
// What a rank reads from the swap file and writes there in a step, measured, maximum over ranks; and the time of the last step that it spent in that.
int64_t executor_swap_read_bytes_per_step(const Executor *executor);
int64_t executor_swap_written_bytes_per_step(const Executor *executor);
double executor_swap_ms(const Executor *executor);
int64_t executor_wire_bytes_per_step(const Executor *executor);      // what left the process, of the process that sent most

#endif
