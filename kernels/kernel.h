// What a kernel sees when it runs, what it may do before, and the communication interface that the runtime fills in.
#ifndef TESSERA_KERNEL_H
#define TESSERA_KERNEL_H

#include <string.h>

#include "../ir/op.h"
#include "loops.h"

// ---- Communication: one endpoint per rank. Contract in runtime/comm.h; the conformance suite tests every backend against it. ----

typedef struct Comm Comm;
typedef struct CommOps {
  // whole[r * shard_elems ...] = shard of rank r. `shard` may lie inside `whole` at its own place.
  Status (*all_gather)(Comm *comm, int axis, const void *shard, void *whole, int64_t shard_elems, Dtype dtype);
  // shard = sum over ranks of whole[rank * shard_elems ...], summed along the aligned binary tree over rank numbers
  // (2i with 2i+1 first). 16-bit floats are added in f32; the result is `dtype` again, rounded once, or with `sums` that f32. `shard` may lie inside
  // `whole` at its own place when both are of one type; other parts of `whole` are left as they are.
  Status (*reduce_scatter)(Comm *comm, int axis, const void *whole, void *shard, int64_t shard_elems, Dtype dtype, bool sums);
  // data = sum over ranks, same tree, same bits on every rank; 16-bit floats are added in f32 and rounded once.
  Status (*all_reduce)(Comm *comm, int axis, void *data, int64_t elems, Dtype dtype);
  Status (*barrier)(Comm *comm);
  // Guards of views of PROCESS buffer `region` (ir/graph.h Guard). Never called where ranks do not share it.
  Status (*read_begin)(Comm *comm, int32_t region);
  Status (*read_end)(Comm *comm, int32_t region);
  Status (*write_begin)(Comm *comm, int32_t region);
  Status (*write_end)(Comm *comm, int32_t region);
} CommOps;
struct Comm {
  const CommOps *ops;
  int rank, size;              // on the dp axis
  int64_t sent_bytes;          // logical bytes sent so far, as comm_shard_bytes and comm_all_reduce_bytes count
  int64_t copied_bytes;        // of which copied within the process (a view copies nothing)
  int64_t wire_bytes;          // of which left the process
};

// Logical bytes that a rank sends among `size`: in a gather or a scatter of shards of `shard_bytes`; in an all-reduce of `bytes`, rounded down.
// Backends count with them, and the rows of the collectives (Op.sent_bytes), which the ledger reads.
static inline int64_t comm_shard_bytes(int64_t size, int64_t shard_bytes) { return (size - 1) * shard_bytes; }
static inline int64_t comm_all_reduce_bytes(int64_t size, int64_t bytes) { return 2 * (size - 1) * bytes / size; }

// ---- Swap: one channel per rank to the swap file of its process, which holds what lies in tier NVME. Contract in runtime/swap.h. ----

typedef struct Swap Swap;
typedef struct SwapOps {
  // Both block; large requests are cut, and many of the pieces are in flight at a time. Errors name the operation, the place and the size.
  Status (*read)(Swap *swap, int64_t offset_bytes, void *to, int64_t bytes);
  Status (*write)(Swap *swap, int64_t offset_bytes, const void *from, int64_t bytes);
} SwapOps;
struct Swap {
  const SwapOps *ops;
  int64_t read_bytes, written_bytes;     // so far
  int64_t read_ns, write_ns;             // spent in them
};

// ---- Running ------------------------------------------------------------------------------------------------------------------

typedef struct Tensor {
  void *data;                  // aligned to 64 bytes unless it is a view at an odd offset; NULL: absent optional, or tier NVME
  const Type *type;            // NULL: absent optional
  int64_t offset_bytes;        // tier NVME: place in the swap file
} Tensor;

typedef struct RunClock {
  int64_t step;                // 0-based
  int64_t micro;               // j, 0-based index of this rank's micro-batch within the step
  int64_t micro_per_rank;      // k
  int64_t global_micro;        // i, index of the micro-batch over all ranks of the step
  uint64_t seed;
  bool evaluates;              // no training: Dropout drops nothing, BatchNormalization takes the running statistics that the graph carries
} RunClock;

struct KernelContext {
  const Node *node;            // attributes: (const XAttrs *)node->attrs
  const Tensor *in;
  int n_in;
  const Tensor *out;           // distinct from inputs unless op->alias allowed it
  int n_out;
  void *workspace;             // workspace_bytes, aligned to 64; contents undefined
  void *scratch;               // scratch_bytes, for the matrix library
  const void *prepared;        // what op->prepare made; shared by nobody: each rank prepares its own
  const Loops *loops;          // vector loops of the plan's ISA
  Isa isa;
  const RunClock *clock;
  Comm *comm;
  Swap *swap;                  // NULL: nothing of the plan lies in tier NVME
  const WeightSource *weights; // for Load
};

// For op->workspace (at compile time: sets the byte counts) and op->prepare (at start: sets prepared and destroy).
struct KernelPrepare {
  const Node *node;
  Isa isa;
  int64_t workspace_bytes, scratch_bytes;
  void *prepared;              // owned by the executor, ended with destroy(prepared)
  void (*destroy)(void *prepared);
};

// Which kernel runs a node, the one choice of plans, proofs, executor and tests: run_cpu where it exists, `isa` is not SCALAR and all float tensors are
// f32; the same on widened copies where some are f16 or bf16 (widened.h); else run_ref.
typedef enum KernelChoice { KERNEL_REFERENCE, KERNEL_FAST, KERNEL_WIDENED } KernelChoice;
KernelChoice kernel_choice(const Node *node, Isa isa);

// For prepare->node and isa: the temporaries that the chosen kernel needs; 0 and 0 when none.
MUST_USE Status kernel_temporaries(KernelPrepare *prepare);
// The chosen kernel, its temporaries and its prepared state (prepare->destroy ends it).
typedef Status (*KernelRun)(const KernelContext *context);
MUST_USE Status kernel_prepare(KernelPrepare *prepare, KernelRun *out);

// A scalar f64 operand of a row of domain tessera (scale, lr, inverse_count): it stands beside f32 tensors.
bool kernel_is_control(const Node *node, const Type *type);

// Runs a node on whole tensors outside any plan: constant folding, operator tests, the f64 reference. The kernel is kernel_choice's, or run_ref
// when `reference`. Outputs are written to out[i].data, allocated by the caller.
MUST_USE Status kernel_run_once(const Node *node, const Tensor *in, const Tensor *out, Isa isa, bool reference);

// What bits depend on besides the plan: ISA, matrix library and its version, operand layouts: "avx512 onednn-2.6.3 plain".
void kernel_numerics_key(Isa isa, char *out, size_t out_bytes);

// A hyper-parameter written as a decimal string (docs/operators.md): the attribute's value in [min, max], or MALFORMED naming both.
MUST_USE Status kernel_parse_decimal(const Node *node, const char *attribute, const char *text, double min, double max, double *out);

// A result that may have been placed where its input lies.
static inline void copy_unless_same(void *to, const void *from, int64_t bytes) {
  if (bytes && to != from) memcpy(to, from, (size_t)bytes);
}

// Elements [at, at + n) of a tensor of f32, f16 or bf16 as f32: where they lie, or widened into `room`.
static inline const float *loops_wide(const Loops *loops, const void *data, Dtype dtype, int64_t at, int64_t n, float *room) {
  if (dtype == DTYPE_F32) return (const float *)data + at;
  (dtype == DTYPE_BF16 ? loops->widen_bf16 : loops->widen_f16)(room, (const uint16_t *)data + at, n);
  return room;
}

// Short forms for kernels. Element access for run_ref: any dtype widens to double, stores round once.
static inline double in_f(const KernelContext *c, int i, int64_t e) { return element_read(c->in[i].data, c->in[i].type->dtype, e); }
static inline void out_f(const KernelContext *c, int i, int64_t e, double v) { element_write(c->out[i].data, c->out[i].type->dtype, e, v); }
static inline int64_t in_i(const KernelContext *c, int i, int64_t e) { return element_read_int(c->in[i].data, c->in[i].type->dtype, e); }
static inline void out_i(const KernelContext *c, int i, int64_t e, int64_t v) { element_write_int(c->out[i].data, c->out[i].type->dtype, e, v); }
static inline int64_t in_elems(const KernelContext *c, int i) { return type_elems(c->in[i].type); }
static inline int64_t out_elems(const KernelContext *c, int i) { return type_elems(c->out[i].type); }
static inline bool has_input(const KernelContext *c, int i) { return i < c->n_in && c->in[i].type; }
static inline bool has_output(const KernelContext *c, int i) { return i < c->n_out && c->out[i].type; }

#endif
