#include "estimate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../kernels/ops.h"

enum { SMALL_BYTES = 4096 };       // of an all-reduce that is all latency

const int64_t product_sizes[PRODUCT_SIZES] = {16, 64, 256, 768};

const char *link_use_name(LinkUse use) {
  static const char *const names[LINK_USES] = {"gather", "scatter", "reduce"};
  return (unsigned)use < LINK_USES ? names[use] : "?";
}

const char *tier_use_name(TierUse use) {
  static const char *const names[TIER_USES] = {"read", "write"};
  return (unsigned)use < TIER_USES ? names[use] : "?";
}

const char *precision_name(Precision precision) {
  static const char *const names[PRECISION_COUNT] = {"f64", "f32", "bf16", "f16"};
  return (unsigned)precision < PRECISION_COUNT ? names[precision] : "?";
}

// ---- The default machine --------------------------------------------------------------------------------------------------------------

// The share falls off with small extents: each has a length at which half is left.
static void default_shares(Machine *m) {
  static const double half_m = 6, half_n = 16, half_k = 24;
  for (int i = 0; i < PRODUCT_SIZES; i++)
    for (int j = 0; j < PRODUCT_SIZES; j++)
      for (int k = 0; k < PRODUCT_SIZES; k++) {
        double a = (double)product_sizes[i], b = (double)product_sizes[j], c = (double)product_sizes[k];
        m->product_share[i][j][k] = a / (a + half_m) * b / (b + half_n) * c / (c + half_k);
      }
}

Machine machine_default(void) {
  Machine m = {
      .name = "default", .ranks_per_node = 2, .shares_memory = true, .shares_processor = true,
      .work_per_s = {[WORK_ARITHMETIC] = 4e9, [WORK_FUNCTION] = 6e8, [WORK_SUM] = 3e9, [WORK_ELEMENT] = 5e8, [WORK_REFERENCE] = 1e8, [WORK_OPTIMIZER] = 5e8,
                     [WORK_PRODUCT] = 8e10, [WORK_CONV] = 4e10, [WORK_ATTENTION] = 1e10, [WORK_RECURRENT] = 1e10, [WORK_PLAIN_FLOP] = 1e9},
      .transposed_share = {0.8, 0.9},
      .precision_share = {[PRECISION_F64] = 0.5, [PRECISION_F32] = 1, [PRECISION_BF16] = 1, [PRECISION_F16] = 1},
      .memory_bytes_per_s = 8e9, .cache_bytes_per_s = 4e10, .cache_bytes = 1 << 20,
      .step_overhead_s = 2e-7, .product_call_s = 1e-6, .has_reference = true, .guard_s = 2e-7, .micro_overhead_s = 1e-5, .update_overhead_s = 3e-5,
      .tiers = {[TIER_HOST] = {{1e-6, 4e9}, {1e-6, 4e9}}, [TIER_NVME] = {{1e-4, 1e9}, {1e-4, 8e8}}},
  };
  default_shares(&m);
  for (int use = 0; use < LINK_USES; use++) {
    m.intra[use] = (Link){3e-6, 5e9};
    m.inter[use] = (Link){2e-5, 1.2e9};
  }
  return m;
}

// ---- Products ---------------------------------------------------------------------------------------------------------------------------

// The place of an extent between the sizes, in the logarithm: index of the lower one, and how far on.
static int bracket(int64_t extent, double *on) {
  double x = log2((double)(extent < 1 ? 1 : extent));
  for (int i = 0; i + 1 < PRODUCT_SIZES; i++) {
    double low = log2((double)product_sizes[i]), high = log2((double)product_sizes[i + 1]);
    if (x > high && i + 2 < PRODUCT_SIZES) continue;
    *on = fmin(1, fmax(0, (x - low) / (high - low)));
    return i;
  }
  *on = 0;
  return 0;
}

// An extent below the smallest size fills the machine's registers no better: the share falls in proportion.
static double below_smallest(int64_t extent) { return extent < product_sizes[0] ? (double)(extent < 1 ? 1 : extent) / (double)product_sizes[0] : 1; }

double machine_product_share(const Machine *machine, int64_t m, int64_t n, int64_t k) {
  double on[3], sum = 0;
  int at[3] = {bracket(m, &on[0]), bracket(n, &on[1]), bracket(k, &on[2])};
  for (int corner = 0; corner < 8; corner++) {
    double weight = 1;
    int place[3];
    for (int d = 0; d < 3; d++) {
      int up = corner >> d & 1;
      weight *= up ? on[d] : 1 - on[d];
      place[d] = at[d] + up;
    }
    if (weight > 0) sum += weight * log(machine->product_share[place[0]][place[1]][place[2]]);
  }
  return exp(sum) * below_smallest(m) * below_smallest(n) * below_smallest(k);
}

static Precision precision_of(const Node *node) {
  for (int i = 0; i < node->n_inputs; i++) {
    if (!node->inputs[i]) continue;
    switch (node->inputs[i]->type.dtype) {
    case DTYPE_F64: return PRECISION_F64;
    case DTYPE_F32: return PRECISION_F32;
    case DTYPE_BF16: return PRECISION_BF16;
    case DTYPE_F16: return PRECISION_F16;
    default: break;
    }
  }
  return PRECISION_F32;
}

// Seconds of products, and of all loops over elements.
static double work_seconds(const Machine *m, const Node *node, const NodeCost *cost, double *loops) {
  double seconds = 0, precision = m->precision_share[precision_of(node)];
  for (int w = 0; w < WORK_COUNT; w++) {
    double rate = m->work_per_s[w];
    if (!(cost->work[w] > 0)) continue;
    if (work_is_product((Work)w) && w != WORK_PLAIN_FLOP) rate *= precision;
    if (w == WORK_PRODUCT || w == WORK_CONV) {
      rate *= machine_product_share(m, cost->m, cost->n, cost->k);
      if (cost->trans_a) rate *= m->transposed_share[0];
      if (cost->trans_b) rate *= m->transposed_share[1];
      seconds += m->product_call_s;
    }
    if (work_is_product((Work)w)) seconds += cost->work[w] / rate;
    else *loops += cost->work[w] / rate;
  }
  return seconds;
}

// ---- Communication ------------------------------------------------------------------------------------------------------------------------

static double messages(const Machine *m, int ranks) { return ranks < 2 ? 0 : m->ring ? ranks - 1 : ceil(log2(ranks)); }

double machine_link_seconds(const Machine *m, LinkUse use, int ranks, double sent_bytes) {
  if (ranks < 2) return 0;
  int within = ranks < m->ranks_per_node ? ranks : m->ranks_per_node;
  int nodes = (ranks + within - 1) / within;
  double part = sent_bytes / (ranks - 1);
  double between_bytes = part * (nodes - 1), within_bytes = sent_bytes - between_bytes;
  double seconds = messages(m, within) * m->intra[use].latency_s + within_bytes / m->intra[use].bytes_per_s;
  return seconds + messages(m, nodes) * m->inter[use].latency_s + between_bytes / m->inter[use].bytes_per_s;
}

bool machine_views_move(const Graph *graph, const Machine *machine) {
  return !machine->shares_memory || mesh_ranks(&graph->mesh) > machine->ranks_per_node;
}

static double collective_seconds(const Graph *graph, const Node *node, const Machine *m, double sent_bytes) {
  int64_t axis = attr_int(node, "axis");
  int ranks = axis >= 0 && axis < graph->mesh.n_axes ? graph->mesh.axes[axis].size : 1;
  if (node->op == &op_AllGather) return machine_link_seconds(m, LINK_GATHER, ranks, sent_bytes);
  if (node->op == &op_ReduceScatter) return machine_link_seconds(m, LINK_SCATTER, ranks, sent_bytes);
  if (sent_bytes <= SMALL_BYTES) return machine_link_seconds(m, LINK_REDUCE, ranks, sent_bytes);
  return machine_link_seconds(m, LINK_SCATTER, ranks, sent_bytes / 2) + machine_link_seconds(m, LINK_GATHER, ranks, sent_bytes / 2);
}

// ---- A step -------------------------------------------------------------------------------------------------------------------------------

static double transfer_seconds(const Node *node, const Machine *m, StepCost *c) {
  const Value *from = node->n_inputs ? node->inputs[0] : NULL, *to = node->n_outputs ? node->outputs[0] : NULL;
  if (!from || !to) return 0;
  Tier far = from->tier == TIER_DEVICE ? to->tier : from->tier;
  const Link *link = &m->tiers[far][from->tier == TIER_DEVICE ? TIER_WRITE : TIER_READ];
  c->is_transfer = true;
  c->waits = far == TIER_NVME;
  return far == TIER_DEVICE ? 0 : link->latency_s + (double)value_bytes(from) / link->bytes_per_s;
}

StepCost step_cost(const Graph *graph, const Node *node, const Machine *m) {
  Isa isa;
  if (!m->has_reference) isa = ISA_COUNT;
  else if (!graph->recipe.isa || !isa_from_name(graph->recipe.isa, &isa)) isa = ISA_AVX512;
  StepCost c = {.node = node_cost(node, isa)};
  bool views_move = machine_views_move(graph, m);
  double guards = node->guard != GUARD_NONE && !views_move ? m->guard_s : 0;
  if (node->op->flags & OP_COLLECTIVE) {
    c.is_comm = true;
    bool moves = node->guard != GUARD_READ_BEGIN || views_move;
    c.seconds = guards + (moves ? m->step_overhead_s + collective_seconds(graph, node, m, c.node.sent_bytes) : 0);
    return c;
  }
  if (node->op->flags & OP_TRANSFER) {
    c.seconds = m->step_overhead_s + transfer_seconds(node, m, &c);
    return c;
  }
  double bytes = c.node.read_bytes + c.node.written_bytes;
  double loops = 0, products = work_seconds(m, node, &c.node, &loops);
  c.work_s = products + loops;
  c.bytes_s = bytes / (bytes <= m->cache_bytes ? m->cache_bytes_per_s : m->memory_bytes_per_s);
  double body = products + fmax(loops, c.bytes_s);      // a product waits for its operands; loops read while they compute
  c.seconds = guards + (body > 0 ? body + m->step_overhead_s : 0);
  return c;
}
