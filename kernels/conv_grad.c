// com.microsoft ConvGrad(dY, X, W) -> (dX, dW, dB): ONNX Runtime's one operator for what ConvInputGrad, ConvWeightGrad and a sum are here.
#include <stdlib.h>
#include <string.h>

#include "adapter.h"
#include "index_input.h"
#include "ops.h"
#include "window.h"

typedef struct ConvGradAttrs { WindowAttrs window; int64_t group; } ConvGradAttrs;
static const AttrSpec conv_grad_attrs[] = {WINDOW_ATTRS(ConvGradAttrs),
                                           {"group", ATTR_INT, offsetof(ConvGradAttrs, group), .default_int = 1, .min = 1, .max = INT32_MAX,
                                            .help = "groups of channels"},
                                           {0}};

enum { IN_DY, IN_X, IN_W };

static Status input_fix(const Node *node, Adapted *a) {
  const Type *x = &node->inputs[IN_X]->type;
  memcpy(a->made_items, x->dims, sizeof x->dims);
  *(AttrInts *)adapted_attr(a, "dims") = (AttrInts){a->made_items, x->rank};
  return NULL;
}

static Status weight_fix(const Node *node, Adapted *a) {
  const Type *w = &node->inputs[IN_W]->type;
  memcpy(a->made_items, w->dims, sizeof w->dims);
  *(AttrInts *)adapted_attr(a, "dims") = (AttrInts){a->made_items, w->rank};
  a->outputs[0] = node->n_outputs > 1 ? node->outputs[1] : NULL;
  return NULL;
}

static const Adapter to_input[] = {{&op_ort_ConvGrad, &op_ConvInputGrad, {IN_DY, IN_W}, 2, 1, input_fix}, {0}};
static const Adapter to_weight[] = {{&op_ort_ConvGrad, &op_ConvWeightGrad, {IN_X, IN_DY}, 2, 1, weight_fix}, {0}};

static Status conv_grad_infer(Node *node, Arena *arena) {
  Value *dx = node->outputs[0], *dw = node->n_outputs > 1 ? node->outputs[1] : NULL, none = {.name = node->name};
  node->outputs[0] = dx ? dx : &none;                  // the geometry is checked even where dX is not wanted
  Status status = adapter_infer(to_input, node, arena);
  node->outputs[0] = dx;
  TRY(status);
  if (dw) TRY(adapter_infer(to_weight, node, arena));
  if (node_has_output(node, 2)) node->outputs[2]->type = type_vector(node->inputs[IN_W]->type.dtype, node->inputs[IN_W]->type.dims[0]);
  return NULL;
}

// dB[o] = sum of dY over samples and places.
static void bias_gradient(const KernelContext *c, bool reference) {
  const Type *dy = c->in[IN_DY].type;
  int64_t channels = dy->dims[1], places = 1;
  for (int d = 2; d < dy->rank; d++) places *= dy->dims[d];
  for (int64_t o = 0; o < channels; o++) {
    double sum = 0;
    for (int64_t n = 0; n < dy->dims[0]; n++) {
      int64_t at = (n * channels + o) * places;
      if (!reference) sum += c->loops->sum((const float *)c->in[IN_DY].data + at, places);
      for (int64_t i = 0; reference && i < places; i++) sum += in_f(c, IN_DY, at + i);
    }
    out_f(c, 2, o, sum);
  }
}

// Both products' primitives; either may be absent.
typedef struct Prepared { KernelPrepare input, weight; } Prepared;

static Status run_one(const Adapter *table, const KernelContext *c, int output, const KernelPrepare *prepare, bool reference) {
  if (!has_output(c, output)) return NULL;
  Tensor out = c->out[output];
  KernelContext one = *c;
  one.out = &out;
  one.n_out = 1;
  one.prepared = prepare ? prepare->prepared : NULL;
  return adapter_run(table, &one, reference);
}

static Status conv_grad_run(const KernelContext *c, bool reference) {
  const Prepared *p = c->prepared;
  TRY(run_one(to_input, c, 0, p ? &p->input : NULL, reference));
  TRY(run_one(to_weight, c, 1, p ? &p->weight : NULL, reference));
  if (has_output(c, 2)) bias_gradient(c, reference);
  return NULL;
}
static Status conv_grad_ref(const KernelContext *c) { return conv_grad_run(c, true); }
static Status conv_grad_cpu(const KernelContext *c) { return conv_grad_run(c, false); }

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static Status both(KernelPrepare *p, Prepared *out, bool make) {
  out->input = out->weight = (KernelPrepare){.node = p->node, .isa = p->isa};
  if (node_has_output(p->node, 0)) TRY(adapter_prepare(to_input, &out->input, make));
  if (node_has_output(p->node, 1)) TRY(adapter_prepare(to_weight, &out->weight, make));
  return NULL;
}

static Status conv_grad_workspace(KernelPrepare *p) {
  Prepared two;
  TRY(both(p, &two, false));
  p->workspace_bytes = most(two.input.workspace_bytes, two.weight.workspace_bytes);
  p->scratch_bytes = most(two.input.scratch_bytes, two.weight.scratch_bytes);
  return NULL;
}

static void prepared_destroy(void *pointer) {
  Prepared *p = pointer;
  if (!p) return;
  if (p->input.destroy) p->input.destroy(p->input.prepared);
  if (p->weight.destroy) p->weight.destroy(p->weight.prepared);
  free(p);
}

static Status conv_grad_prepare(KernelPrepare *p) {
  Prepared *two = calloc(1, sizeof *two);
  if (!two) FAIL(RESOURCE, p->node->name, "no memory for primitives");
  Status status = both(p, two, true);
  if (status) {
    prepared_destroy(two);
    return status;
  }
  p->prepared = two;
  p->destroy = prepared_destroy;
  return NULL;
}

static void conv_grad_cost(const Node *node, NodeCost *cost) {
  if (node->outputs[0]) adapter_cost(to_input, node, cost);
  if (node_has_output(node, 1)) adapter_cost(to_weight, node, cost);
}

const Op op_ort_ConvGrad = {
    .name = "ConvGrad", .domain = "com.microsoft", .min_inputs = 3, .max_inputs = 3, .min_outputs = 1, .max_outputs = 3, .attrs = conv_grad_attrs,
    .attrs_bytes = sizeof(ConvGradAttrs), .infer = conv_grad_infer, .run_ref = conv_grad_ref, .run_cpu = conv_grad_cpu,
    .prepare = conv_grad_prepare, .workspace = conv_grad_workspace, .cost = conv_grad_cost};
