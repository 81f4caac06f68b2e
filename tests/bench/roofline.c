// bench_roofline PLAN: what a step of a plan cannot be faster than on this machine, measured in this process on one thread:
//   products   every matrix product and convolution of a micro-batch, alone, best of some runs
//   bytes      what the other steps must read and write at least once (inputs and outputs of their kernels), at the speed of a bare copy
// The sum is the roofline of one rank. One rank thread per core: ranks do not share a core's time, but they share the memory.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../ir/clock.h"
#include "../../frontend/plan_file.h"
#include "../../kernels/kernel.h"
#include "../../kernels/ops.h"

enum { REPEATS = 7 };

static void *filled(size_t bytes) {
  float *p = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
  if (!p) {
    fprintf(stderr, "bench_roofline: no memory for %zu bytes\n", bytes);
    exit(7);
  }
  for (size_t i = 0; i < bytes / sizeof *p; i++) p[i] = 0.25f + (float)(i % 7) * 0.125f;
  return p;
}

static void stop(Status s) {
  char text[512];
  fprintf(stderr, "bench_roofline: %s\n", status_text(s, text, sizeof text));
  exit((int)status_code(s));
}

static bool is_product(const Op *op) {
  return op == &op_MatMul || op == &op_FusedMatMul || op == &op_Gemm || op == &op_Conv || op == &op_ConvInputGrad || op == &op_ConvWeightGrad;
}

// Best time of the node's kernel on buffers of its own.
static double kernel_ms(const Node *n, Isa isa) {
  Tensor in[8] = {{0}}, out[4] = {{0}};
  for (int i = 0; i < n->n_inputs; i++)
    if (n->inputs[i]) in[i] = (Tensor){.data = filled((size_t)value_bytes(n->inputs[i])), .type = &n->inputs[i]->type};
  for (int i = 0; i < n->n_outputs; i++)
    if (n->outputs[i]) out[i] = (Tensor){.data = filled((size_t)value_bytes(n->outputs[i])), .type = &n->outputs[i]->type};
  KernelPrepare p = {.node = n, .isa = isa};
  Status s = n->op->workspace ? n->op->workspace(&p) : NULL;
  if (!s && n->op->prepare) s = n->op->prepare(&p);
  if (s) stop(s);
  RunClock clock = {.micro_per_rank = 1};
  KernelContext c = {.node = n, .in = in, .n_in = n->n_inputs, .out = out, .n_out = n->n_outputs, .loops = loops_for(isa), .isa = isa, .clock = &clock,
                     .prepared = p.prepared, .workspace = filled((size_t)p.workspace_bytes), .scratch = filled((size_t)p.scratch_bytes)};
  double best = 1e300;
  for (int i = 0; i < REPEATS; i++) {
    double start = clock_now_ms();
    s = n->op->run_cpu(&c);
    if (s) stop(s);
    double took = clock_now_ms() - start;
    if (took < best) best = took;
  }
  if (p.destroy) p.destroy(p.prepared);
  for (int i = 0; i < n->n_inputs; i++) free(in[i].data);
  for (int i = 0; i < n->n_outputs; i++) free(out[i].data);
  free(c.workspace);
  free(c.scratch);
  return best;
}

// Bytes per ms of a copy, read and write counted.
static double copy_bytes_per_ms(void) {
  size_t bytes = 64 << 20;
  char *from = filled(bytes), *to = filled(bytes);
  double best = 1e300;
  for (int i = 0; i < REPEATS; i++) {
    double start = clock_now_ms();
    memcpy(to, from, bytes);
    double took = clock_now_ms() - start;
    if (took < best) best = took;
  }
  double rate = 2 * (double)bytes / best;
  free(from);
  free(to);
  return rate;
}

static bool is_view(const Node *n) {
  Alias a;
  for (int i = 0; n->op->alias && i < n->n_inputs; i++)
    if (n->inputs[i] && n->op->alias(n, 0, i, &a) && a.kind == ALIAS_VIEW) return true;
  return n->guard == GUARD_READ_BEGIN || n->guard == GUARD_READ_END || n->op == &op_Pack;
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "Usage: bench_roofline PLAN.onnx\n");
    return 2;
  }
  Arena *arena = arena_create(0);
  Graph *g = NULL;
  Model *model = NULL;
  Status s = arena ? model_open(argv[1], &model) : status_fail(STATUS_RESOURCE, NULL, "no memory");
  if (!s) s = graph_read_onnx(model, arena, &g);
  if (s) stop(s);
  Isa isa = isa_best();
  (void)isa_from_name(g->recipe.isa, &isa);
  double products = 0, rate = copy_bytes_per_ms(), k = (double)g->recipe.micro_per_rank;
  int64_t bytes = 0;
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *n = g->nodes[i];
    int64_t times = n->phase == PHASE_MICRO ? g->recipe.micro_per_rank : n->phase == PHASE_UPDATE;
    if (is_product(n->op) && kernel_choice(n, isa) == KERNEL_FAST) {
      products += k * kernel_ms(n, isa);
      continue;
    }
    if (is_view(n)) continue;
    for (int j = 0; j < n->n_inputs; j++)
      if (n->inputs[j]) bytes += times * value_bytes(n->inputs[j]);
    for (int j = 0; j < n->n_outputs; j++)
      if (n->outputs[j]) bytes += times * value_bytes(n->outputs[j]);
  }
  printf("products %.1f ms  bytes %.1f MiB at %.1f GB/s %.1f ms  roofline %.1f ms\n", products, (double)bytes / (1 << 20), rate / 1e6, (double)bytes / rate,
         products + (double)bytes / rate);
  model_close(model);
  arena_destroy(arena);
  return 0;
}
