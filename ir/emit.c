// The node builder of op.h: append, infer, remember the first error.
#include <assert.h>

#include "op.h"

Node *emit_node(Emit *e, const Op *op, Value *const *inputs, int n_inputs, int n_outputs, const bool *wanted, const AttrInit *attrs) {
  if (e->status) return NULL;
  Graph *g = e->graph;
  for (int i = 0; i < n_inputs; i++) assert(inputs[i] || i >= op->min_inputs);
  const char *base = e->at ? e->at->name : NULL;
  char *hint = base ? arena_printf(g->arena, "%s.%s%s", base, e->backward ? "grad." : "", op->name) : NULL;
  Node *n = graph_make_node(g, op, hint, n_inputs, inputs, n_outputs, NULL);
  for (int i = 0; i < n_outputs; i++)
    if (wanted && !wanted[i]) n->outputs[i] = NULL;
  for (const AttrInit *a = attrs; a && a->name; a++) attr_set(g, n, a);
  n->phase = e->phase;
  n->backward = e->backward;
  n->cause = e->cause;
  n->origin = e->at ? e->at->origin : NULL;
  e->status = node_infer(g, n);
  if (e->status) return NULL;
  graph_append(g, n);
  return n;
}

Value *emit(Emit *e, const Op *op, Value *const *inputs, int n_inputs, const AttrInit *attrs) {
  Node *n = emit_node(e, op, inputs, n_inputs, 1, NULL, attrs);
  return n ? n->outputs[0] : NULL;
}

Value *emit_const(Emit *e, const char *hint, const Type *type, const void *bytes) {
  if (e->status) return NULL;
  Graph *g = e->graph;
  Value *v = graph_add_value(g, hint);
  Weight *w = ARENA_NEW(g->arena, Weight);
  w->name = v->name;
  w->type = v->type = *type;
  w->bytes = arena_copy(g->arena, bytes, (size_t)type_bytes(type));
  v->role = ROLE_CONST;
  v->weight = w;
  return v;
}

Value *emit_int64s(Emit *e, const char *hint, const int64_t *items, int64_t n) {
  Type type = type_vector(DTYPE_I64, n);
  return emit_const(e, hint, &type, items);
}

Value *emit_float(Emit *e, const char *hint, Dtype dtype, double value) {
  Type type = type_scalar(dtype);
  unsigned char bytes[8];
  element_write(bytes, dtype, 0, value);
  return emit_const(e, hint, &type, bytes);
}
