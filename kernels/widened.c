#include "widened.h"

#include <stdlib.h>

enum { COPY_ALIGN_BYTES = 64 };

// The node as the row sees it, and where each widened operand lies in the workspace.
typedef struct Widened {
  Node node;
  Value *values;               // [n_inputs + n_outputs], f32 where the node has 16 bits
  Value **operands;            // inputs, then outputs; NULL: absent
  Tensor *tensors;             // the same of the run under way
  int64_t *offsets_bytes;      // in the workspace; -1: used where it lies
  int64_t copies_bytes;        // the row's own workspace begins here
  KernelPrepare inner;
} Widened;

static bool is_half(Dtype dtype) { return dtype == DTYPE_F16 || dtype == DTYPE_BF16; }

static const Value *operand(const Node *node, int i) { return i < node->n_inputs ? node->inputs[i] : node->outputs[i - node->n_inputs]; }

static bool updates_halves(const Node *node) {
  Alias a;
  for (int o = 0; o < node->n_outputs; o++)
    if (node_alias(node, o, ALIAS_UPDATE, &a) && is_half(node->outputs[o]->type.dtype)) return true;
  return false;
}

bool widened_applies(const Node *node) {
  bool any = false;
  if (!node->op->run_cpu || updates_halves(node)) return false;
  for (int i = 0; i < node->n_inputs + node->n_outputs; i++) {
    const Value *v = operand(node, i);
    if (!v || !dtype_is_float(v->type.dtype) || v->type.dtype == DTYPE_F32 || kernel_is_control(node, &v->type)) continue;
    if (!is_half(v->type.dtype)) return false;
    any = true;
  }
  return any;
}

static void widened_free(void *self) {
  Widened *w = self;
  if (!w) return;
  if (w->inner.destroy) w->inner.destroy(w->inner.prepared);
  free(w->values);
  free(w->operands);
  free(w->tensors);
  free(w->offsets_bytes);
  free(w);
}

static Status fill(Widened *w, const KernelPrepare *from) {
  const Node *node = from->node;
  size_t n = (size_t)(node->n_inputs + node->n_outputs);
  w->values = calloc(n, sizeof *w->values);
  w->operands = calloc(n, sizeof *w->operands);
  w->tensors = calloc(n, sizeof *w->tensors);
  w->offsets_bytes = calloc(n, sizeof *w->offsets_bytes);
  if (!w->values || !w->operands || !w->tensors || !w->offsets_bytes) FAIL(RESOURCE, node->name, "no memory for %zu operands", n);
  for (size_t i = 0; i < n; i++) {
    const Value *v = operand(node, (int)i);
    w->offsets_bytes[i] = -1;
    if (!v) continue;
    w->values[i] = *v;
    w->operands[i] = &w->values[i];
    if (!is_half(v->type.dtype)) continue;
    w->values[i].type.dtype = DTYPE_F32;
    w->offsets_bytes[i] = w->copies_bytes;
    w->copies_bytes += (value_bytes(&w->values[i]) + COPY_ALIGN_BYTES - 1) / COPY_ALIGN_BYTES * COPY_ALIGN_BYTES;
  }
  w->node = *node;
  w->node.inputs = w->operands;
  w->node.outputs = w->operands + node->n_inputs;
  w->inner = (KernelPrepare){.node = &w->node, .isa = from->isa};
  if (node->op->workspace) TRY(node->op->workspace(&w->inner));
  return STATUS_OK;
}

static Status widened_create(const KernelPrepare *prepare, Widened **out) {
  Widened *w = calloc(1, sizeof *w);
  if (!w) FAIL(RESOURCE, prepare->node->name, "no memory");
  Status status = fill(w, prepare);
  if (status) widened_free(w);
  else *out = w;
  return status;
}

static void say_bytes(const Widened *w, KernelPrepare *prepare) {
  prepare->workspace_bytes = w->copies_bytes + w->inner.workspace_bytes;
  prepare->scratch_bytes = w->inner.scratch_bytes;
}

Status widened_workspace(KernelPrepare *prepare) {
  Widened *w;
  TRY(widened_create(prepare, &w));
  say_bytes(w, prepare);
  widened_free(w);
  return STATUS_OK;
}

Status widened_prepare(KernelPrepare *prepare) {
  Widened *w;
  TRY(widened_create(prepare, &w));
  Status status = w->node.op->prepare ? w->node.op->prepare(&w->inner) : STATUS_OK;
  if (status) {
    widened_free(w);
    return status;
  }
  say_bytes(w, prepare);
  prepare->prepared = w;
  prepare->destroy = widened_free;
  return STATUS_OK;
}

Status widened_run(const KernelContext *context) {
  const Widened *w = context->prepared;
  const Node *node = context->node;
  Tensor *out = w->tensors + node->n_inputs;
  const Loops *loops = context->loops;
  for (int i = 0; i < node->n_inputs + node->n_outputs; i++) {
    const Tensor *from = i < node->n_inputs ? &context->in[i] : &context->out[i - node->n_inputs];
    Tensor *to = &w->tensors[i];
    *to = *from;
    if (w->offsets_bytes[i] < 0) continue;
    *to = (Tensor){.data = (char *)context->workspace + w->offsets_bytes[i], .type = &w->values[i].type};
    if (i < node->n_inputs) (from->type->dtype == DTYPE_BF16 ? loops->widen_bf16 : loops->widen_f16)(to->data, from->data, type_elems(to->type));
  }
  KernelContext inner = *context;
  inner.node = &w->node;
  inner.in = w->tensors;
  inner.out = out;
  inner.workspace = (char *)context->workspace + w->copies_bytes;
  inner.prepared = w->inner.prepared;
  TRY(node->op->run_cpu(&inner));
  for (int o = 0; o < node->n_outputs; o++) {
    if (w->offsets_bytes[node->n_inputs + o] < 0) continue;
    const Tensor *to = &context->out[o];
    (to->type->dtype == DTYPE_BF16 ? loops->narrow_bf16 : loops->narrow_f16)(to->data, out[o].data, type_elems(to->type));
  }
  return STATUS_OK;
}
