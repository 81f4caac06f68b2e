#include "calibrate.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../ir/clock.h"
#include "../kernels/ops.h"
#include "../runtime/executor.h"
#include "../runtime/swap.h"

enum { SAMPLES = 48, COPIES_MAX = 16, WARM_UPS = 6, INNER_MIN = 8, SAMPLES_MIN = 12 };
static const double SAMPLE_S = 3e-4, SAMPLES_S = 0.05;      // of one sample; of all samples of a measurement

// ---- One measurement: every rank does the same on memory of its own --------------------------------------------------------------------

typedef struct Lab {
  int ranks;
  Isa isa;
  Arena *arena;
  Graph *graph;
  FILE *progress;
  pthread_mutex_t *mutex;        // preparing is done by one rank at a time, as the executor does: the library has a cache of primitives
} Lab;

typedef struct Work1 {           // what a rank does again and again
  Status (*make)(struct Work1 *work);          // memory and prepared states; NULL: none
  Status (*run)(struct Work1 *work, int64_t n);
  void (*end)(struct Work1 *work);
  Comm *comm;
  Isa isa;
  pthread_mutex_t *mutex;        // the lab's
  const Node *node;              // of a kernel
  int copies;                    // sets of operands that take turns: what is in the cache is that of all of them
  KernelContext contexts[COPIES_MAX];
  KernelPrepare prepare[COPIES_MAX];
  Tensor tensors[COPIES_MAX][32];
  void *memory[COPIES_MAX][34];
  RunClock clock;
  LinkUse use;                   // of a collective
  int rank;
  Swap *swap;                    // of a transfer to or from the disk; of one to host memory NULL
  TierUse tier_use;
  int64_t bytes;
  void *buffers[2];
} Work1;

typedef struct Trial {
  Work1 work;
  pthread_t thread;
  int rank;
  pthread_barrier_t *barrier;
  const bool *cancelled;         // not all threads could be started: the barrier would never open. Written under the mutex
  const int64_t *inner;          // executions a sample: set by rank 0 between barriers
  int64_t *own_inner;
  int *samples;
  double seconds[SAMPLES];
  double once;
  Status status;
} Trial;

static double now_s(void) { return (double)clock_now_ns() * 1e-9; }

static Status run_timed(Work1 *work, int64_t n, double *seconds) {
  double start = now_s();
  TRY(work->run(work, n));
  *seconds = (now_s() - start) / (double)n;
  return STATUS_OK;
}

// How often in a sample, and how many samples: decided by one rank for all, which have to meet in collectives.
static void choose_counts(Trial *t) {
  double once = t->once > 1e-9 ? t->once : 1e-9;
  *t->own_inner = once < SAMPLE_S ? (int64_t)(SAMPLE_S / once) + 1 : 1;
  if (*t->own_inner < INNER_MIN && once < 10 * SAMPLE_S) *t->own_inner = INNER_MIN;      // starting together takes longer than one short execution
  double sample = once * (double)*t->own_inner;
  *t->samples = sample * SAMPLES > SAMPLES_S ? (int)(SAMPLES_S / sample) : SAMPLES;
  if (*t->samples < SAMPLES_MIN) *t->samples = SAMPLES_MIN;
  if (*t->samples > SAMPLES) *t->samples = SAMPLES;
}

// Each rank on a processor of its own, as on a machine that does nothing else. Where that is refused the times are what they are.
static void stay_apart(int rank) {
  cpu_set_t all, one;
  if (sched_getaffinity(0, sizeof all, &all)) return;
  int wanted = CPU_COUNT(&all) ? rank % CPU_COUNT(&all) : 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &all) || wanted--) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

static void *trial_main(void *self) {
  Trial *t = self;
  stay_apart(t->rank);
  pthread_mutex_lock(t->work.mutex);
  bool cancelled = *t->cancelled;
  pthread_mutex_unlock(t->work.mutex);
  if (cancelled) return NULL;
  if (t->work.make) t->status = t->work.make(&t->work);
  pthread_barrier_wait(t->barrier);
  double spent = 0;
  t->once = INFINITY;
  for (int i = 0; i < WARM_UPS && !t->status && (t->work.comm || spent < SAMPLES_S / 4); i++) {      // in collectives all ranks do as many
    double once = 0;
    int n = t->work.comm ? 16 : 1;
    t->status = run_timed(&t->work, n, &once);
    t->once = fmin(t->once, once);
    spent += once * n;
  }
  if (t->own_inner) choose_counts(t);
  pthread_barrier_wait(t->barrier);
  for (int s = 0; s < *t->samples; s++) {
    pthread_barrier_wait(t->barrier);
    if (!t->status) t->status = run_timed(&t->work, *t->inner, &t->seconds[s]);
  }
  if (t->work.end) t->work.end(&t->work);
  return NULL;
}

// Seconds of one execution: of each sample the slowest rank's, of those the best.
static Status measure_with(const Lab *lab, const Work1 *work, Team *team, SwapFile *file, double *out) {
  pthread_barrier_t barrier;
  int64_t inner = 1;
  int samples = 1, started = 0;
  bool cancelled = false;
  Trial *trials = calloc((size_t)lab->ranks, sizeof *trials);
  if (!trials) FAIL(RESOURCE, NULL, "out of memory for %d ranks", lab->ranks);
  pthread_barrier_init(&barrier, NULL, (unsigned)lab->ranks);
  for (int r = 0; r < lab->ranks; r++) {
    trials[r] = (Trial){.work = *work, .rank = r, .barrier = &barrier, .cancelled = &cancelled, .inner = &inner, .own_inner = r ? NULL : &inner, .samples = &samples};
    trials[r].work.isa = lab->isa;
    trials[r].work.mutex = lab->mutex;
    trials[r].work.comm = team ? team_comm(team, r) : NULL;
    trials[r].work.swap = file ? swap_channel(file, r) : NULL;
    trials[r].work.rank = r;
  }
  pthread_mutex_lock(lab->mutex);
  while (started < lab->ranks && !pthread_create(&trials[started].thread, NULL, trial_main, &trials[started])) started++;
  cancelled = started < lab->ranks;
  pthread_mutex_unlock(lab->mutex);
  for (int r = 0; r < started; r++) pthread_join(trials[r].thread, NULL);
  Status status = cancelled ? status_fail(STATUS_RESOURCE, NULL, "no threads for %d ranks", lab->ranks) : STATUS_OK;
  double best = INFINITY;
  for (int s = 0; s < samples; s++) {
    double slowest = 0;
    for (int r = 0; r < lab->ranks; r++) slowest = fmax(slowest, trials[r].seconds[s]);
    best = fmin(best, slowest);
  }
  for (int r = 0; r < lab->ranks; r++) {
    if (!status) status = trials[r].status;
    else status_free(trials[r].status);
  }
  pthread_barrier_destroy(&barrier);
  free(trials);
  *out = fmax(best, 1e-10);
  return status;
}

static Status measure(const Lab *lab, const Work1 *work, Team *team, double *out) { return measure_with(lab, work, team, NULL, out); }

// ---- Kernels ----------------------------------------------------------------------------------------------------------------------------

static Status get_memory(Work1 *w, int copy, int *n, int64_t bytes, void **out) {
  size_t rounded = ((size_t)bytes + 127) / 64 * 64;
  void *p = w->memory[copy][(*n)++] = aligned_alloc(64, rounded);
  if (!p) FAIL(RESOURCE, NULL, "out of memory for %lld bytes", (long long)bytes);
  memset(p, 0, rounded);
  *out = p;
  return STATUS_OK;
}

static Status get_tensor(Work1 *w, int copy, int *n, const Value *v, Tensor *out) {
  if (!v) return STATUS_OK;
  out->type = &v->type;
  TRY(get_memory(w, copy, n, value_bytes(v), &out->data));
  const Weight *known = value_const(v);
  if (known && type_equal(&known->type, &v->type)) memcpy(out->data, known->bytes, (size_t)value_bytes(v));
  for (int64_t i = 0, m = known ? 0 : type_elems(&v->type); i < m; i++) {
    if (v->type.dtype == DTYPE_F32) ((float *)out->data)[i] = 0.25f + (float)(i % 7) * 0.125f;
    else if (v->type.dtype == DTYPE_F64) ((double *)out->data)[i] = 1;
    else element_write_int(out->data, v->type.dtype, i, 1);
  }
  return STATUS_OK;
}

static Status make_copy(Work1 *w, int copy) {
  const Node *node = w->node;
  Tensor *in = w->tensors[copy], *out = in + node->n_inputs;
  KernelPrepare *p = &w->prepare[copy];
  void *workspace = NULL, *scratch = NULL;
  int n = 0;
  for (int i = 0; i < node->n_inputs; i++) TRY(get_tensor(w, copy, &n, node->inputs[i], &in[i]));
  for (int o = 0; o < node->n_outputs; o++) {
    Alias alias;
    if (node->outputs[o] && node_alias(node, o, ALIAS_UPDATE, &alias)) out[o] = in[alias.input];
    else TRY(get_tensor(w, copy, &n, node->outputs[o], &out[o]));
  }
  *p = (KernelPrepare){.node = node, .isa = w->isa};
  bool fast = kernel_choice(node, w->isa) == KERNEL_FAST;
  if (fast && node->op->workspace) TRY(node->op->workspace(p));
  TRY(get_memory(w, copy, &n, p->workspace_bytes, &workspace));
  TRY(get_memory(w, copy, &n, p->scratch_bytes, &scratch));
  if (fast && node->op->prepare) TRY(node->op->prepare(p));
  w->contexts[copy] = (KernelContext){.node = node, .in = in, .n_in = node->n_inputs, .out = out, .n_out = node->n_outputs, .workspace = workspace,
                                      .scratch = scratch, .prepared = p->prepared, .loops = loops_for(w->isa), .isa = w->isa, .clock = &w->clock};
  return STATUS_OK;
}

static Status kernel_make(Work1 *w) {
  Status status = STATUS_OK;
  w->clock = (RunClock){.micro_per_rank = 1};
  pthread_mutex_lock(w->mutex);
  for (int c = 0; c < w->copies && !status; c++) status = make_copy(w, c);
  pthread_mutex_unlock(w->mutex);
  return status;
}

static Status kernel_run(Work1 *w, int64_t n) {
  const Op *op = w->node->op;
  Status (*run)(const KernelContext *) = kernel_choice(w->node, w->isa) == KERNEL_FAST ? op->run_cpu : op->run_ref;
  for (int64_t i = 0, c = 0; i < n; i++) {
    TRY(run(&w->contexts[c]));
    if (++c == w->copies) c = 0;
  }
  return STATUS_OK;
}

static void kernel_end(Work1 *w) {
  for (int c = 0; c < w->copies; c++) {
    if (w->prepare[c].destroy) w->prepare[c].destroy(w->prepare[c].prepared);
    for (size_t i = 0; i < sizeof w->memory[c] / sizeof *w->memory[c]; i++) free(w->memory[c][i]);
  }
}

static Value *operand(Lab *lab, Dtype dtype, int rank, const int64_t *dims) {
  Value *v = graph_add_value(lab->graph, "x");
  v->type = type_make(dtype, rank, dims);
  return v;
}
#define F32(lab, ...) operand(lab, DTYPE_F32, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]){__VA_ARGS__})

// Seconds of the operator's kernel; `cost`: what the estimate sees in it.
static Status measure_op(Lab *lab, const Op *op, Value *const *in, int n_in, int n_out, const AttrInit *attrs, int copies, NodeCost *cost, double *seconds) {
  Emit e = {.graph = lab->graph, .phase = PHASE_MICRO};
  const bool wanted[3] = {true, true, true};
  Node *node = emit_node(&e, op, in, n_in, n_out, wanted, attrs);
  if (e.status) return e.status;
  if (cost) *cost = node_cost(node, lab->isa);
  return measure(lab, &(Work1){.make = kernel_make, .run = kernel_run, .end = kernel_end, .node = node, .copies = copies}, NULL, seconds);
}

static double total_work(const NodeCost *c, Work work) { return c->work[work] > 0 ? c->work[work] : 1; }

// ---- Vector loops and memory ---------------------------------------------------------------------------------------------------------------

static Status measure_loops(Lab *lab, Machine *m) {
  NodeCost c;
  double s, sum = 0;
  TRY(measure_op(lab, &op_Add, INPUTS(F32(lab, 8), F32(lab, 8)), 1, NULL, 16, NULL, &s));
  m->step_overhead_s = s;
  TRY(measure_op(lab, &op_Add, INPUTS(F32(lab, 8192), F32(lab, 8192)), 1, NULL, 1, &c, &s));
  m->work_per_s[WORK_ARITHMETIC] = total_work(&c, WORK_ARITHMETIC) / s;
  const Op *const functions[] = {&op_Exp, &op_Tanh, &op_Erf, &op_Sigmoid, &op_Gelu};
  enum { N = sizeof functions / sizeof *functions };
  for (int i = 0; i < N; i++) {
    TRY(measure_op(lab, functions[i], INPUTS(F32(lab, 8192)), 1, NULL, 1, &c, &s));
    sum += s / total_work(&c, WORK_FUNCTION);
  }
  m->work_per_s[WORK_FUNCTION] = N / sum;
  const int64_t axes[] = {-1};
  Emit e = {.graph = lab->graph};
  TRY(measure_op(lab, &op_ReduceSum, INPUTS(F32(lab, 64, 128), emit_int64s(&e, "axes", axes, 1)), 1, NULL, 1, &c, &s));
  m->work_per_s[WORK_SUM] = total_work(&c, WORK_SUM) / s;
  const int64_t swap[] = {0, 2, 1, 3}, turn[] = {0, 2, 3, 1};      // attention's: heads first; and keys turned
  TRY(measure_op(lab, &op_Transpose, INPUTS(F32(lab, 2, 64, 4, 32)), 1, ATTRS(A_INTS("perm", swap, 4)), 1, &c, &s));
  sum = s;
  TRY(measure_op(lab, &op_Transpose, INPUTS(F32(lab, 2, 64, 4, 32)), 1, ATTRS(A_INTS("perm", turn, 4)), 1, &c, &s));
  m->work_per_s[WORK_ELEMENT] = 2 * total_work(&c, WORK_ELEMENT) / (sum + s);
  TRY(measure_op(lab, &op_Sin, INPUTS(F32(lab, 4096)), 1, NULL, 1, &c, &s));
  m->work_per_s[WORK_REFERENCE] = total_work(&c, WORK_REFERENCE) / s;
  Value *scale = operand(lab, DTYPE_F64, 0, NULL), *step = operand(lab, DTYPE_I64, 0, NULL), *p = F32(lab, 16384);
  TRY(measure_op(lab, &op_Adam, INPUTS(p, F32(lab, 16384), scale, scale, step, F32(lab, 16384), F32(lab, 16384)), 3, NULL, 1, &c, &s));
  m->work_per_s[WORK_OPTIMIZER] = total_work(&c, WORK_OPTIMIZER) / s;
  return STATUS_OK;
}

// Bytes per second of a sum of two vectors that take turns within `working_set` bytes.
static Status measure_bytes(Lab *lab, int64_t working_set, int copies, double *out) {
  NodeCost c;
  double s;
  int64_t elems = working_set / copies / 12;
  TRY(measure_op(lab, &op_Add, INPUTS(F32(lab, elems), F32(lab, elems)), 1, NULL, copies, &c, &s));
  *out = (c.read_bytes + c.written_bytes) / s;
  return STATUS_OK;
}

// Of the last level. The C library's number is wrong on some processors with several such caches, so the kernel is asked.
static int64_t last_cache_bytes(void) {
  static const char *const files[] = {"/sys/devices/system/cpu/cpu0/cache/index3/size", "/sys/devices/system/cpu/cpu0/cache/index2/size"};
  long kib = 0;
  for (size_t i = 0; i < sizeof files / sizeof *files && kib <= 0; i++) {
    FILE *file = fopen(files[i], "r");
    if (file && fscanf(file, "%ldK", &kib) != 1) kib = 0;
    if (file) fclose(file);
  }
  return kib > 0 ? (int64_t)kib << 10 : 8 << 20;
}

static Status measure_memory(Lab *lab, Machine *m) {
  int64_t cache = last_cache_bytes();
  m->cache_bytes = (double)cache / lab->ranks;
  TRY(measure_bytes(lab, (int64_t)m->cache_bytes / 4, 4, &m->cache_bytes_per_s));
  return measure_bytes(lab, cache * 4 / lab->ranks, 2, &m->memory_bytes_per_s);
}

// ---- Products -----------------------------------------------------------------------------------------------------------------------------

enum { PRODUCT_FLOPS = 1 << 22, PRODUCTS_MAX = 64 };

static Status measure_product(Lab *lab, int64_t m, int64_t n, int64_t k, int64_t products, bool trans_a, bool trans_b, double *seconds) {
  Value *a = trans_a ? F32(lab, products, k, m) : F32(lab, products, m, k), *b = trans_b ? F32(lab, products, n, k) : F32(lab, products, k, n);
  return measure_op(lab, &op_FusedMatMul, INPUTS(a, b), 1, ATTRS(A_INT("transA", trans_a), A_INT("transB", trans_b)), 1, NULL, seconds);
}

static int64_t products_for(int64_t m, int64_t n, int64_t k) {
  int64_t products = PRODUCT_FLOPS / (2 * m * n * k);
  return products < 1 ? 1 : products > PRODUCTS_MAX ? PRODUCTS_MAX : products;
}

static Status measure_grid(Lab *lab, Machine *machine) {
  double one, many, peak = 0, call;
  int64_t small = product_sizes[0];
  TRY(measure_product(lab, small, small, small, 1, false, false, &one));
  TRY(measure_product(lab, small, small, small, PRODUCTS_MAX, false, false, &many));
  call = fmax(0, one - many / PRODUCTS_MAX);
  machine->product_call_s = call;
  for (int i = 0; i < PRODUCT_SIZES; i++)
    for (int j = 0; j < PRODUCT_SIZES; j++)
      for (int l = 0; l < PRODUCT_SIZES; l++) {
        int64_t m = product_sizes[i], n = product_sizes[j], k = product_sizes[l], products = products_for(m, n, k);
        double s;
        TRY(measure_product(lab, m, n, k, products, false, false, &s));
        double rate = 2.0 * (double)(m * n * k * products) / fmax(s - call, 0.2 * s);
        machine->product_share[i][j][l] = rate;
        peak = fmax(peak, rate);
      }
  double *shares = &machine->product_share[0][0][0];
  for (int i = 0; i < PRODUCT_SIZES * PRODUCT_SIZES * PRODUCT_SIZES; i++) shares[i] /= peak;
  machine->work_per_s[WORK_PRODUCT] = peak;
  return STATUS_OK;
}

static Status measure_transposed(Lab *lab, Machine *machine) {
  static const int64_t shapes[][3] = {{64, 64, 64}, {256, 256, 256}, {256, 64, 1024}};
  enum { N = sizeof shapes / sizeof *shapes };
  for (int which = 0; which < 2; which++) {
    double logs = 0;
    for (int i = 0; i < N; i++) {
      int64_t m = shapes[i][0], n = shapes[i][1], k = shapes[i][2], products = products_for(m, n, k);
      double plain, turned;
      TRY(measure_product(lab, m, n, k, products, false, false, &plain));
      TRY(measure_product(lab, m, n, k, products, !which, which, &turned));
      logs += log(plain / turned);
    }
    machine->transposed_share[which] = exp(logs / N);
  }
  return STATUS_OK;
}

// Convolutions run at a share of what products of their sizes do: the mean over shapes and over the three directions.
static Status measure_conv(Lab *lab, Machine *machine) {
  static const int64_t shapes[][4] = {{16, 16, 16, 32}, {16, 32, 32, 16}, {16, 64, 64, 8}};      // batch, channels in and out, side
  const int64_t kernel[] = {3, 3}, pads[] = {1, 1, 1, 1};
  double logs = 0;
  int n = 0;
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    int64_t batch = shapes[i][0], in = shapes[i][1], out = shapes[i][2], side = shapes[i][3];
    const int64_t x_dims[] = {batch, in, side, side}, w_dims[] = {out, in, 3, 3};
    Value *x = operand(lab, DTYPE_F32, 4, x_dims), *w = operand(lab, DTYPE_F32, 4, w_dims), *dy = F32(lab, batch, out, side, side);
    const struct { const Op *op; Value *a, *b; const int64_t *dims; } kinds[] = {
        {&op_Conv, x, w, NULL}, {&op_ConvInputGrad, dy, w, x_dims}, {&op_ConvWeightGrad, x, dy, w_dims}};
    for (size_t k = 0; k < 3; k++) {
      NodeCost c;
      double s;
      const AttrInit with_dims[] = {A_INTS("kernel_shape", kernel, 2), A_INTS("pads", pads, 4), A_INTS("dims", kinds[k].dims, 4), {.name = NULL}};
      const AttrInit without[] = {with_dims[0], with_dims[1], {.name = NULL}};
      TRY(measure_op(lab, kinds[k].op, INPUTS(kinds[k].a, kinds[k].b), 1, k ? with_dims : without, 1, &c, &s));
      logs += log(total_work(&c, WORK_CONV) / fmax(s - machine->product_call_s, 0.2 * s) / machine_product_share(machine, c.m, c.n, c.k));
      n++;
    }
  }
  machine->work_per_s[WORK_CONV] = exp(logs / n);
  return STATUS_OK;
}

static Status measure_own_loops(Lab *lab, Machine *m) {
  NodeCost c;
  double s;
  Value *q = F32(lab, 1, 4, 64, 32);
  TRY(measure_op(lab, &op_Attention, INPUTS(q, q, q), 1, ATTRS(A_INT("is_causal", 1)), 1, &c, &s));
  double rest = c.work[WORK_FUNCTION] / m->work_per_s[WORK_FUNCTION] + c.work[WORK_SUM] / m->work_per_s[WORK_SUM];
  m->work_per_s[WORK_ATTENTION] = total_work(&c, WORK_ATTENTION) / fmax(s - rest, 0.2 * s);
  TRY(measure_op(lab, &op_LSTM, INPUTS(F32(lab, 16, 8, 32), F32(lab, 1, 128, 32), F32(lab, 1, 128, 32)), 1, ATTRS(A_INT("hidden_size", 32)), 1, &c, &s));
  m->work_per_s[WORK_RECURRENT] = total_work(&c, WORK_RECURRENT) / fmax(s - c.work[WORK_FUNCTION] / m->work_per_s[WORK_FUNCTION], 0.2 * s);
  Lab plain = *lab;
  plain.isa = ISA_SCALAR;
  TRY(measure_op(&plain, &op_MatMul, INPUTS(F32(lab, 64, 64), F32(lab, 64, 64)), 1, NULL, 1, &c, &s));
  m->work_per_s[WORK_PLAIN_FLOP] = total_work(&c, WORK_PLAIN_FLOP) / s;
  return STATUS_OK;
}

// ---- Between ranks --------------------------------------------------------------------------------------------------------------------------

static Status link_make(Work1 *w) {
  for (int i = 0; i < 2; i++) {
    size_t bytes = ((size_t)w->bytes * (size_t)w->comm->size + 63) / 64 * 64;
    w->buffers[i] = aligned_alloc(64, bytes);
    if (!w->buffers[i]) FAIL(RESOURCE, NULL, "out of memory for %zu bytes", bytes);
    memset(w->buffers[i], 0, bytes);
  }
  return STATUS_OK;
}

static Status link_run(Work1 *w, int64_t n) {
  const CommOps *ops = w->comm->ops;
  int64_t elems = w->bytes / (int64_t)sizeof(float);
  for (int64_t i = 0; i < n; i++) {
    if (w->use == LINK_GATHER) TRY(ops->all_gather(w->comm, 0, w->buffers[0], w->buffers[1], elems, DTYPE_F32));
    else if (w->use == LINK_SCATTER) TRY(ops->reduce_scatter(w->comm, 0, w->buffers[1], w->buffers[0], elems, DTYPE_F32, false));
    else TRY(ops->all_reduce(w->comm, 0, w->buffers[0], elems, DTYPE_F32));
  }
  return STATUS_OK;
}

static Status guard_run(Work1 *w, int64_t n) {
  const CommOps *ops = w->comm->ops;
  for (int64_t i = 0; i < n; i++) {
    TRY(ops->read_begin(w->comm, 0));
    TRY(ops->read_end(w->comm, 0));
  }
  return STATUS_OK;
}

static void link_end(Work1 *w) {
  free(w->buffers[0]);
  free(w->buffers[1]);
}

static Status measure_links(Lab *lab, Team *team, Machine *m) {
  enum { SMALL = 64, SMALL_REDUCE = 1024, LARGE = 1 << 20 };
  double steps = m->ring ? lab->ranks - 1 : ceil(log2(lab->ranks));
  for (int use = 0; use < LINK_USES; use++) {
    double small, large;
    Work1 work = {.make = link_make, .run = link_run, .end = link_end, .use = (LinkUse)use, .bytes = SMALL};
    TRY(measure(lab, &work, team, &small));
    work.bytes = use == LINK_REDUCE ? SMALL_REDUCE : LARGE;
    TRY(measure(lab, &work, team, &large));
    double sent = use == LINK_REDUCE ? (double)comm_all_reduce_bytes(lab->ranks, work.bytes) : (double)comm_shard_bytes(lab->ranks, work.bytes);
    m->intra[use] = (Link){small / steps, sent / fmax(large - small, 0.05 * large)};
  }
  double guard;
  TRY(measure(lab, &(Work1){.run = guard_run}, team, &guard));
  m->guard_s = guard / 2;
  return STATUS_OK;
}

// ---- Between tiers --------------------------------------------------------------------------------------------------------------------------

static Status tier_make(Work1 *w) {
  for (int i = 0; i < 2; i++) {
    size_t bytes = ((size_t)w->bytes + SWAP_PAGE_BYTES - 1) / SWAP_PAGE_BYTES * SWAP_PAGE_BYTES;
    unsigned char *p = w->buffers[i] = aligned_alloc(SWAP_PAGE_BYTES, bytes);
    if (!p) FAIL(RESOURCE, NULL, "out of memory for %zu bytes", bytes);
    for (size_t k = 0; k < bytes; k++) p[k] = (unsigned char)(k * 31 + (k >> 12));     // disks may have short cuts for zeros
  }
  return w->swap ? w->swap->ops->write(w->swap, w->rank * w->bytes, w->buffers[0], w->bytes) : STATUS_OK;
}

static Status tier_run(Work1 *w, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    if (!w->swap) memcpy(w->buffers[1], w->buffers[0], (size_t)w->bytes);
    else if (w->tier_use == TIER_READ) TRY(w->swap->ops->read(w->swap, w->rank * w->bytes, w->buffers[1], w->bytes));
    else TRY(w->swap->ops->write(w->swap, w->rank * w->bytes, w->buffers[0], w->bytes));
  }
  return STATUS_OK;
}

static Status measure_tier(const Lab *lab, SwapFile *file, TierUse use, Link *out) {
  enum { SMALL = SWAP_PAGE_BYTES, LARGE = 32 << 20 };
  double small, large;
  Work1 work = {.make = tier_make, .run = tier_run, .end = link_end, .tier_use = use, .bytes = SMALL};
  TRY(measure_with(lab, &work, NULL, file, &small));
  work.bytes = LARGE;
  TRY(measure_with(lab, &work, NULL, file, &large));
  *out = (Link){small, LARGE / fmax(large - small, 0.05 * large)};
  return STATUS_OK;
}

static Status measure_disk(const Lab *lab, const char *dir, Machine *m) {
  SwapOptions options = {.depth = 16, .block_bytes = 1 << 20};
  SwapFile *file;
  TRY(swap_create(dir, (int64_t)lab->ranks * (32 << 20), lab->ranks, &options, &file));
  Status status = STATUS_OK;
  for (int use = 0; use < TIER_USES && !status; use++) status = measure_tier(lab, file, (TierUse)use, &m->tiers[TIER_NVME][use]);
  swap_destroy(file);
  return status;
}

static Status measure_tiers(const Lab *lab, const char *swap_dir, Machine *m) {
  TRY(measure_tier(lab, NULL, TIER_READ, &m->tiers[TIER_HOST][TIER_READ]));
  m->tiers[TIER_HOST][TIER_WRITE] = m->tiers[TIER_HOST][TIER_READ];
  return swap_dir ? measure_disk(lab, swap_dir, m) : STATUS_OK;
}

// ---- The executor's own time -----------------------------------------------------------------------------------------------------------------

typedef struct Fastest { double ms; } Fastest;
static bool note_step(void *self, const StepResult *result) {
  Fastest *f = self;
  if (result->ms < f->ms) f->ms = result->ms;
  return true;
}

// A plan without a step: what is left is waking the ranks and going through the micro-batches.
static Status empty_step_s(const Lab *lab, int64_t micro, double *out) {
  enum { STEPS = 400 };
  Graph *g = graph_create(lab->arena, "empty");
  g->facts = FACT_PLANNED;
  g->mesh = (Mesh){1, {{"dp", lab->ranks}}};
  g->recipe = (Recipe){.micro_per_rank = micro, .processes = 1, .ranks_per_process = lab->ranks, .threads_per_rank = 1, .isa = isa_name(lab->isa)};
  const Graph *programs[] = {g};
  Plan plan = {.n_programs = 1, .programs = programs, .n_variants = 1, .variants = programs};
  ExecutorOptions options = {.fault_rank = -1};
  Executor *executor;
  Fastest fastest = {INFINITY};
  TRY(executor_create(&plan, NULL, NULL, &options, &executor));
  Status status = executor_run(executor, STEPS, note_step, &fastest);
  executor_destroy(executor);
  *out = fastest.ms * 1e-3;
  return status;
}

static Status measure_executor(const Lab *lab, Machine *m) {
  enum { MANY = 1024 };
  double one, many;
  TRY(empty_step_s(lab, 1, &one));
  TRY(empty_step_s(lab, MANY, &many));
  m->micro_overhead_s = fmax(0, (many - one) / (MANY - 1));
  m->update_overhead_s = fmax(0, one - m->micro_overhead_s);
  return STATUS_OK;
}

// ---- The whole --------------------------------------------------------------------------------------------------------------------------------

static void say(const Lab *lab, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(const Lab *lab, const char *format, ...) {
  if (!lab->progress) return;
  va_list args;
  va_start(args, format);
  vfprintf(lab->progress, format, args);
  va_end(args);
  fflush(lab->progress);
}

static Status measure_all(Lab *lab, const char *swap_dir, Machine *m) {
  TRY(measure_executor(lab, m));
  say(lab, "executor  %.1f us a step, %.2f us a micro-batch\n", m->update_overhead_s * 1e6, m->micro_overhead_s * 1e6);
  TRY(measure_loops(lab, m));
  say(lab, "loops     %.2f G elements/s arithmetic, %.2f functions, %.2f sums, %.2f optimizer, %.2f by reference; %.0f ns a step\n",
      m->work_per_s[WORK_ARITHMETIC] / 1e9, m->work_per_s[WORK_FUNCTION] / 1e9, m->work_per_s[WORK_SUM] / 1e9, m->work_per_s[WORK_OPTIMIZER] / 1e9,
      m->work_per_s[WORK_REFERENCE] / 1e9, m->step_overhead_s * 1e9);
  TRY(measure_memory(lab, m));
  say(lab, "memory    %.1f GB/s, %.1f GB/s from %.0f MiB of cache\n", m->memory_bytes_per_s / 1e9, m->cache_bytes_per_s / 1e9, m->cache_bytes / (1 << 20));
  TRY(measure_grid(lab, m));
  TRY(measure_transposed(lab, m));
  say(lab, "products  %.1f GFLOP/s, at %lld x %lld x %lld %.1f; %.2f us a call\n", m->work_per_s[WORK_PRODUCT] / 1e9, (long long)product_sizes[0],
      (long long)product_sizes[0], (long long)product_sizes[0], m->work_per_s[WORK_PRODUCT] * m->product_share[0][0][0] / 1e9, m->product_call_s * 1e6);
  TRY(measure_conv(lab, m));
  TRY(measure_own_loops(lab, m));
  say(lab, "others    %.1f GFLOP/s convolutions, %.1f attention, %.1f recurrent layers, %.1f by reference\n", m->work_per_s[WORK_CONV] / 1e9,
      m->work_per_s[WORK_ATTENTION] / 1e9, m->work_per_s[WORK_RECURRENT] / 1e9, m->work_per_s[WORK_PLAIN_FLOP] / 1e9);
  TRY(measure_tiers(lab, swap_dir, m));
  say(lab, "tiers     %.1f GB/s to host memory; NVMe %.2f GB/s read, %.2f GB/s written%s\n", m->tiers[TIER_HOST][TIER_WRITE].bytes_per_s / 1e9,
      m->tiers[TIER_NVME][TIER_READ].bytes_per_s / 1e9, m->tiers[TIER_NVME][TIER_WRITE].bytes_per_s / 1e9, swap_dir ? "" : " assumed: --swap-dir DIR measures it");
  if (lab->ranks == 1) return STATUS_OK;
  Team *team;
  TRY(team_create(lab->ranks, 1, 1, INT64_C(60000000000), &team));
  Status status = measure_links(lab, team, m);
  team_destroy(team);
  if (!status) say(lab, "ranks     %.1f us and %.1f GB/s a gather, %.1f us a small sum\n", m->intra[LINK_GATHER].latency_s * 1e6, m->intra[LINK_GATHER].bytes_per_s / 1e9,
                   m->intra[LINK_REDUCE].latency_s * 1e6);
  return status;
}

static Status measure_guarded(Lab *lab, const char *swap_dir, Machine *m) {
  ARENA_GUARD(lab->arena);
  lab->graph = graph_create(lab->arena, "calibration");
  ARENA_RETURN(lab->arena, measure_all(lab, swap_dir, m));
}

Status calibrate_machine(int ranks, const char *swap_dir, FILE *progress, Machine *out) {
  Machine m = machine_default();
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  Lab lab = {.ranks = ranks, .isa = isa_best(), .arena = arena_create(0), .progress = progress, .mutex = &mutex};
  if (!lab.arena) FAIL(RESOURCE, NULL, "out of memory");
  m.ranks_per_node = ranks;
  m.shares_processor = 2 * ranks > (int)sysconf(_SC_NPROCESSORS_ONLN);
  snprintf(m.name, sizeof m.name, "this machine, %d rank%s, %s", ranks, ranks == 1 ? "" : "s", isa_name(lab.isa));
  m.precision_share[PRECISION_BF16] = m.precision_share[PRECISION_F16] = 1;      // they are widened to f32
  Status status = measure_guarded(&lab, swap_dir, &m);
  arena_destroy(lab.arena);
  if (!status) *out = m;
  return status;
}
