#include "index_input.h"

#include <inttypes.h>

static Status check_index_type(const Type *type, int i, int capacity, const char *name, const char *node) {
  if (!dtype_is_integer(type->dtype) || type->rank > 1) {
    char text[160];
    FAIL(MALFORMED, node, "input %d '%s' has type %s; a list of integers is needed", i, name, type_text(type, text, sizeof text));
  }
  if (type_elems(type) > capacity)
    FAIL(UNSUPPORTED, node, "input %d '%s' has %" PRId64 " entries; at most %d are supported", i, name, type_elems(type), capacity);
  return STATUS_OK;
}

Status index_constant(const Node *node, int i, int64_t *out, int capacity, int *n) {
  const Value *v = node->inputs[i];
  TRY(check_index_type(&v->type, i, capacity, v->name, node->name));
  const Weight *w = value_const(v);
  if (!w)
    FAIL(UNSUPPORTED, node->name, "%s: input %d '%s' must be a constant, since it decides the shape of the result; it is computed at run time",
         node->op->name, i, v->name);
  *n = (int)type_elems(&v->type);
  for (int k = 0; k < *n; k++) out[k] = weight_read_int(w, k);
  return STATUS_OK;
}

Status index_tensor(const KernelContext *context, int i, int64_t *out, int capacity, int *n) {
  TRY(check_index_type(context->in[i].type, i, capacity, context->node->inputs[i]->name, context->node->name));
  *n = (int)in_elems(context, i);
  for (int k = 0; k < *n; k++) out[k] = in_i(context, i, k);
  return STATUS_OK;
}

Status index_axes(const int64_t *axes, int n, int rank, const char *node, uint32_t *mask) {
  uint32_t seen = 0;
  for (int k = 0; k < n; k++) {
    int axis;
    TRY(type_axis(axes[k], rank, node, &axis));
    if (seen >> axis & 1) FAIL(MALFORMED, node, "axis %" PRId64 " is given twice", axes[k]);
    seen |= 1u << axis;
  }
  *mask = seen;
  return STATUS_OK;
}

Status infer_input_gradients(Node *node) {
  for (int o = 0; o < node->n_outputs; o++) {
    if (!node->outputs[o]) continue;
    if (!node_has_input(node, o)) FAIL(MALFORMED, node->name, "output %d is the gradient of an absent input", o);
    node->outputs[o]->type = node->inputs[o]->type;
  }
  return NULL;
}
