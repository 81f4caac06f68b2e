// How long a step takes on a machine: its products, and a roofline of its loops and bytes (kernels/cost.h); and latency + bytes / bandwidth for what is sent.
//
// Everything here is an estimate from shapes alone: nothing runs, no weight is read, and the time it takes does not depend on sizes. Threads: pure.
#ifndef TESSERA_ESTIMATE_H
#define TESSERA_ESTIMATE_H

#include "../ir/plan.h"
#include "../kernels/cost.h"

typedef struct Link { double latency_s, bytes_per_s; } Link;   // of one message between two ranks, and of one rank's sending

// The parts that collectives are made of. An all-reduce is a scatter and a gather; small ones (up to SMALL_BYTES) are `reduce`: latency alone.
typedef enum LinkUse { LINK_GATHER, LINK_SCATTER, LINK_REDUCE, LINK_USES } LinkUse;
const char *link_use_name(LinkUse use);

typedef enum Precision { PRECISION_F64, PRECISION_F32, PRECISION_BF16, PRECISION_F16, PRECISION_COUNT } Precision;
const char *precision_name(Precision precision);               // "f64", ...

// Of a transfer between tiers: to the device (Fetch), from it (Offload).
typedef enum TierUse { TIER_READ, TIER_WRITE, TIER_USES } TierUse;
const char *tier_use_name(TierUse use);

enum { PRODUCT_SIZES = 4 };
extern const int64_t product_sizes[PRODUCT_SIZES];             // extents at which the rates of matrix products are known

// One rank's share of a cluster of equal nodes. Rates are of one rank while all ranks of its node work. No rate is 0.
typedef struct Machine {
  char name[64];
  int ranks_per_node;
  bool shares_memory;            // ranks of a node are threads of one process: a gather may be a view of all shards and then moves nothing
  bool shares_processor;         // a rank's queues compute and communicate on one processor: what runs beside takes its time all the same
  bool ring;                     // collectives take N - 1 messages one after the other; else log2 N, rounded up
  double work_per_s[WORK_COUNT]; // of products: of large ones in f32
  double product_share[PRODUCT_SIZES][PRODUCT_SIZES][PRODUCT_SIZES];   // [m][n][k]: rate of such a product over work_per_s[WORK_PRODUCT]; of
                                 // convolutions, seen as products, over [WORK_CONV]
  double transposed_share[2];    // further factor where A, where B lies transposed
  double peak_flops_per_s;       // in f32, as the data sheet says: MFU is a share of it; 0: work_per_s[WORK_PRODUCT]
  double precision_share[PRECISION_COUNT];                             // rate of products in that type over that in f32
  double memory_bytes_per_s, cache_bytes_per_s;
  double cache_bytes;            // a step that touches no more than this finds it in the cache
  double step_overhead_s;        // of every step that runs something
  double product_call_s;         // of every matrix product or convolution, beyond its flops
  bool has_reference;            // some operators run by reference kernels, as on processors here; false: all have fast ones, as is usual for GPUs
  double guard_s;                // of beginning or ending to read a view, or to write a shard
  double micro_overhead_s, update_overhead_s;                          // of every micro-batch (feeding) and of every training step (waking all ranks)
  Link intra[LINK_USES], inter[LINK_USES];                             // within a node; between nodes
  Link tiers[TIER_COUNT][TIER_USES];                                   // of host and nvme; [TIER_DEVICE] is not used
  double memory_bytes;           // of a rank; 0: not known
} Machine;

// A server processor's core with AVX-512, two ranks a node that share memory: what `simulate` takes when no machine is named. Not calibrated.
Machine machine_default(void);

// Interpolates the share of the peak that a product of m x k and k x n reaches.
double machine_product_share(const Machine *machine, int64_t m, int64_t n, int64_t k);

// A collective of `use` in which each of `ranks` ranks sends `sent_bytes` (ranks - 1 equal parts), first between nodes, then within.
double machine_link_seconds(const Machine *machine, LinkUse use, int ranks, double sent_bytes);

typedef struct StepCost {
  NodeCost node;
  bool is_comm;                  // seconds are a collective's
  bool is_transfer;              // between tiers
  bool waits;                    // the processor has nothing to do meanwhile: a disk's work
  double work_s, bytes_s;        // of products and loops; of bytes: seconds hides the smaller of loops and bytes
  double seconds;                // of one execution, overhead included
} StepCost;

// One step of a planned program (or a node of any typed graph).
StepCost step_cost(const Graph *graph, const Node *node, const Machine *machine);

// Do gathers move bytes that the plan has as views? So it is where the ranks do not share memory.
bool machine_views_move(const Graph *graph, const Machine *machine);

#endif
