#include "fold.h"

#include "kernel.h"
#include "ops.h"

static bool is_known(const Value *v) {
  const Weight *w = value_const(v);
  return w && w->type.dtype == v->type.dtype;   // an unconverted weight of another type is not what the node sees
}

static bool may_fold(const Node *n, int64_t bytes_max) {
  if (n->op->flags & (OP_RANDOM | OP_COLLECTIVE | OP_SIDE_EFFECT | OP_OPTIMIZER)) return false;
  if (n->phase != PHASE_MICRO || n->backward) return false;
  if (n->n_inputs == 0 && *n->op->domain) return false;   // Load, Zeros: their bytes are none of the compiler's business
  int64_t in_bytes = 0, out_bytes = 0;
  bool by_type = n->op == &op_Shape || n->op == &op_Size;  // types are static: the input's bytes do not matter
  for (int i = 0; i < n->n_inputs; i++) {
    if (!n->inputs[i] || by_type) continue;
    if (!is_known(n->inputs[i])) return false;
    in_bytes += value_bytes(n->inputs[i]);
  }
  for (int i = 0; i < n->n_outputs; i++) {
    if (!n->outputs[i]) continue;
    if (n->outputs[i]->role != ROLE_ACTIVATION || n->outputs[i]->carry) return false;
    out_bytes += value_bytes(n->outputs[i]);
  }
  return out_bytes <= bytes_max || out_bytes < in_bytes;
}

// Weights in a mapped file may be unaligned; kernels are not asked to cope with that.
static const void *aligned_bytes(Arena *arena, const Value *v) {
  const Weight *w = value_const(v);
  if (!w) return NULL;
  if ((uintptr_t)w->bytes % 16 == 0) return w->bytes;
  return arena_copy(arena, w->bytes, (size_t)value_bytes(v));
}

Status fold_node(Graph *graph, Node *n, Isa isa, int64_t bytes_max, bool *folded) {
  *folded = false;
  if (!may_fold(n, bytes_max)) return STATUS_OK;
  Arena *arena = graph->arena;
  Tensor *in = ARENA_ARRAY(arena, Tensor, n->n_inputs), *out = ARENA_ARRAY(arena, Tensor, n->n_outputs);
  for (int i = 0; i < n->n_inputs; i++)
    if (n->inputs[i]) in[i] = (Tensor){.data = (void *)aligned_bytes(arena, n->inputs[i]), .type = &n->inputs[i]->type};
  for (int i = 0; i < n->n_outputs; i++)
    if (n->outputs[i]) out[i] = (Tensor){.data = arena_alloc(arena, (size_t)value_bytes(n->outputs[i])), .type = &n->outputs[i]->type};
  TRY(kernel_run_once(n, in, out, isa, false));
  for (int i = 0; i < n->n_outputs; i++) {
    Value *v = n->outputs[i];
    if (!v) continue;
    Weight *w = ARENA_NEW(arena, Weight);
    *w = (Weight){.name = v->name, .type = v->type, .bytes = out[i].data};
    v->weight = w;
    v->role = ROLE_CONST;
    v->producer = NULL;
  }
  *folded = true;
  return STATUS_OK;
}
