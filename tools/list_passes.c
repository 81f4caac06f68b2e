#include "list_passes.h"

#include <stdio.h>
#include <string.h>

#include "../ir/meta.h"
#include "../passes/pass.h"

// Parts of lines before the pass and after it, as they stand in a case of tests/passes/NAME.txt: in its input or output, or among the lines that
// --print-ir-diff shows. tests/tools/test_passes.py finds them there, and misses no pass. "": nothing is taken away, or nothing put there.
typedef struct Example { const char *pass, *before, *after; } Example;
static const Example examples[] = {
    {"carry_buffers", "y, m2, v2 = BatchNormalization <training_mode = 1> (h, s, b, mean, var)", "y, m2, v2 = BatchNormalization <training_mode = 1> (h, s, b, m1, v1)"},
    {"fuse_gelu", "y = Mul (x, h)", "y = Gelu <approximate = \"tanh\"> (x)"},
    {"widen", "f = Cast <to = 1> (n)", "f = Cast <to = 11> (n)"},
    {"infer_types", "\"y\"", "float[4,6] y"},
    {"check_sharding", "", "node 'h': [axis-range] tensor 'w': axis 2 of a tensor with 2 dimensions"},
    {"fold_constants", "c = Mul (a, b)", "float c = {1.0}"},
    {"merge_common", "y = Add (c, d)", "y = Add (c, c)"},
    {"dead_code", "y, mask = Dropout (x, ratio, training)", "y = Dropout (x, ratio, training)"},
    {"attach_loss", "float[4,3] scores", "loss = SoftmaxCrossEntropyLoss <ignore_index = -100> (scores, y)"},
    {"sum_loss", "loss = SoftmaxCrossEntropyLoss (s, y)", "\"loss.SoftmaxCrossEntropyLoss\" = SoftmaxCrossEntropyLoss <reduction = \"sum\"> (s, y)"},
    {"lower_einsum", "y = Einsum <equation = \"bij,kj->bik\"> (x, w)", "\"y.FusedMatMul\" = tessera.FusedMatMul <transB = 1> (\"y.Reshape\", w)"},
    {"fuse_transpose", "s = MatMul (x, t)", "s = tessera.FusedMatMul <transB = 1> (x, w)"},
    {"tile_params", "h = Gather (w, tokens)", "h = tessera.GatherRows"},
    {"mixed_precision", "h = Gemm (x, w, b)", "h = Gemm (\"x.bf16\", \"w.bf16\", \"b.bf16\")"},
    {"build_backward", "r = Relu (h)", "\"r.grad.ReluGrad\" = tessera.ReluGrad (r, \"s.grad.Gemm\")"},
    {"fuse_gather_grad", "\"w.grad\" = Add (\"p.1.grad.FusedMatMul.1\", \"e.grad.GatherGrad\")",
     "\"w.grad\" = tessera.GatherGrad <dims = [8, 4]> (i, \"p.1.grad.FusedMatMul\", \"p.1.grad.FusedMatMul.1\")"},
    {"fuse_elementwise", "b = Tanh (a)",
     "b, c, q = tessera.FusedElementwise <arguments = [0, 1, 2, 3, 0, 4, 4], operators = [\"Mul\", \"Tanh\", \"Add\", \"Mul\"], results = [3, 4, 5]> (x, w)"},
    {"recompute", "\"b1.grad.TanhGrad\" = tessera.TanhGrad (b1, \"c1.grad.FusedMatMul\")", "\"b1.recomputed\" = Tanh (\"a1.recomputed\")"},
    {"attach_optimizer", "", "SquaredNorm = tessera.SquaredNorm (\"tessera.inverse_count\", \"w.grad\")"},
    {"accumulate", "int64 \"tessera.step\"  #@ role=\"control\"", "double[2] \"tessera.loss_pair.partial.0\",  #@ role=\"partial\""},
    {"order_memory", "b = MatMul (x, w2)", "p = ReduceSum <keepdims = 0> (a)"},
    {"partition", "float[3,6] \"w2.grad\",  #@ role=\"grad\" of=\"w2\"", "float[3,6] \"w2.grad\",  #@ role=\"grad\" placement=\"dp:partial\" of=\"w2\""},
    {"bucket_collectives", "placement=\"dp:flat(1)\" carry=\"b1\" bucket=\"1\"", "placement=\"dp:flat(0)\" carry=\"b1\" bucket=\"0\""},
    {"insert_collectives", "\"tessera.loss\", \"tessera.inverse_count\" = tessera.LossMean (\"tessera.loss_pair\")",
     "\"bucket.0.grad\" = tessera.AllReduce <bucket = 0, kind = \"grad\", parts = 2> (\"bucket.0.grad.packed\")"},
    {"offload_activations", "\"d.grad.Mul\" = Mul (\"e.grad.FusedMatMul\", d)", "\"d.grad.Mul\" = Mul (\"e.grad.FusedMatMul\", \"d.grad.Fetch\")"},
    {"offload", "float[8192] \"bucket.0.momentum_buffer\",  #@ role=\"state\" of=", "float[8192] \"bucket.0.momentum_buffer\",  #@ role=\"state\" tier=\"host\" of="},
    {"prefetch", "cause.param=\"c\" cause.node=\"w\" cause.pass=\"insert_collectives\"",
     "cause.param=\"c\" cause.node=\"w\" cause.pass=\"insert_collectives\" queue=\"comm\" waits=[\"Release\"]"},
    {"schedule", "placed,lowered\"", "placed,lowered,scheduled\""},
    {"plan_memory", "float \"loss.grad\" = {1.0},", "float \"loss.grad\" = {1.0},  #@ loc="},
};

static const char *provider(uint32_t fact) {
  for (const Pass *p = pass_table; p->name; p++)
    if (p->provides & fact) return p->name;
  return "none";
}

// "typed (infer_types), summed (sum_loss)".
static void print_facts(const char *title, uint32_t facts, const char *self) {
  const char *comma = "";
  if (!facts) return;
  printf("    %-10s", title);
  for (uint32_t fact = 1; fact <= FACT_PLANNED; fact <<= 1) {
    if (!(facts & fact)) continue;
    const char *by = provider(fact);
    printf(strcmp(by, self) ? "%s%s (%s)" : "%s%s", comma, fact_name(fact), by);
    comma = ", ";
  }
  printf("\n");
}

static bool is_in(const char *const *pipeline, const char *pass) {
  for (; *pipeline; pipeline++)
    if (!strcmp(*pipeline, pass)) return true;
  return false;
}

static void print_pipelines(const char *pass) {
  bool train = is_in(pipeline_train, pass), simplify = is_in(pipeline_simplify, pass);
  printf("    %-10s%s%s%s%s\n", "runs in", train ? "train" : "", train && simplify ? ", " : "", simplify ? "simplify" : "", train || simplify ? "" : "no pipeline");
}

static void print_example(const char *pass) {
  for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
    if (strcmp(examples[i].pass, pass)) continue;
    if (*examples[i].before) printf("    %-10s%s\n", "before", examples[i].before);
    if (*examples[i].after) printf("    %-10s%s\n", "after", examples[i].after);
  }
}

void list_passes(void) {
  for (const Pass *p = pass_table; p->name; p++) {
    printf("%-20s %s\n", p->name, p->help);
    print_facts("requires", p->requires, p->name);
    print_facts("not after", p->not_after, p->name);
    print_facts("provides", p->provides, p->name);
    print_pipelines(p->name);
    print_example(p->name);
  }
}
