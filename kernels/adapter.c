#include "adapter.h"

#include <assert.h>
#include <string.h>

#include "cost.h"

void *adapted_attr(Adapted *a, const char *name) {
  const AttrSpec *s = attr_spec(a->node.op, name);
  assert(s);
  return a->attrs.bytes + s->offset;
}

static size_t attr_bytes(AttrType type) {
  static const size_t bytes[] = {
      [ATTR_INT] = sizeof(int64_t),       [ATTR_FLOAT] = sizeof(float),         [ATTR_STRING] = sizeof(char *), [ATTR_INTS] = sizeof(AttrInts),
      [ATTR_FLOATS] = sizeof(AttrFloats), [ATTR_STRINGS] = sizeof(AttrStrings), [ATTR_TENSOR] = sizeof(void *)};
  return bytes[type];
}

static void attrs_copy(const Node *from, Adapted *to) {
  memset(to->attrs.bytes, 0, sizeof to->attrs.bytes);
  for (const AttrSpec *s = to->node.op->attrs; s && s->name; s++) {
    void *at = to->attrs.bytes + s->offset;
    const AttrSpec *given = attr_spec(from->op, s->name);
    if (given && given->type == s->type) memcpy(at, (const char *)from->attrs + given->offset, attr_bytes(s->type));
    else if (s->type == ATTR_INT) *(int64_t *)at = s->default_int;
    else if (s->type == ATTR_FLOAT) *(float *)at = s->default_float;
    else if (s->type == ATTR_STRING) *(const char **)at = s->default_string;
  }
}

static const Adapter *adapter_of(const Adapter *table, const Op *row) {
  while (table->row && table->row != row) table++;
  return table;
}

static int count(int8_t fixed, int given) { return fixed < 0 ? given : fixed; }
static int source(const Adapter *adapter, int i) { return adapter->n_inputs < 0 ? i : adapter->inputs[i]; }

static Status adapt(const Adapter *adapter, const Node *node, Adapted *out) {
  int n_in = count(adapter->n_inputs, node->n_inputs), n_out = count(adapter->n_outputs, node->n_outputs);
  if (n_in > ADAPTER_OPERANDS || n_out > ADAPTER_OPERANDS)
    FAIL(UNSUPPORTED, node->name, "%d inputs and %d outputs; at most %d are supported", n_in, n_out, ADAPTER_OPERANDS);
  if (n_out > node->n_outputs) n_out = node->n_outputs;
  out->node = (Node){.op = adapter->to, .name = node->name, .origin = node->origin, .inputs = out->inputs, .n_inputs = n_in, .outputs = out->outputs,
                     .n_outputs = n_out, .attrs = &out->attrs, .phase = node->phase, .backward = node->backward};
  assert(adapter->to->attrs_bytes <= sizeof out->attrs);
  for (int i = 0; i < n_in; i++) {
    int from = source(adapter, i);
    out->inputs[i] = from >= 0 && from < node->n_inputs ? node->inputs[from] : NULL;
  }
  while (out->node.n_inputs > adapter->to->min_inputs && !out->inputs[out->node.n_inputs - 1]) out->node.n_inputs--;
  for (int o = 0; o < n_out; o++) out->outputs[o] = node->outputs[o];
  attrs_copy(node, out);
  out->flat = false;
  return adapter->fix ? adapter->fix(node, out) : NULL;
}

Status adapter_infer(const Adapter *table, Node *node, Arena *arena) {
  const Adapter *adapter = adapter_of(table, node->op);
  Adapted a;
  TRY(adapt(adapter, node, &a));
  Value flat[ADAPTER_OPERANDS];
  Type whole = {0};
  for (int i = 0; a.flat && i < a.node.n_inputs; i++) {   // the row sees matrices; the results get the operands' shape back
    whole = a.inputs[i]->type;
    flat[i] = *a.inputs[i];
    flat[i].type = type_make(whole.dtype, a.rows.rank, a.rows.dims);
    a.inputs[i] = &flat[i];
  }
  for (int i = 0; i < adapter->to->min_inputs; i++)
    if (!a.inputs[i]) FAIL(MALFORMED, node->name, "input %d of %s is missing", source(adapter, i), node->op->name);
  TRY(a.node.op->infer(&a.node, arena));
  for (int o = 0; a.flat && o < a.node.n_outputs; o++)
    if (node->outputs[o]) node->outputs[o]->type = whole;
  return NULL;
}

Status adapter_run(const Adapter *table, const KernelContext *c, bool reference) {
  const Adapter *adapter = adapter_of(table, c->node->op);
  Adapted a;
  TRY(adapt(adapter, c->node, &a));
  Tensor in[ADAPTER_OPERANDS], out[ADAPTER_OPERANDS];
  for (int i = 0; i < a.node.n_inputs; i++) {
    int from = source(adapter, i);
    in[i] = from >= 0 && from < c->n_in ? c->in[from] : (Tensor){0};
    if (a.flat) in[i].type = &a.rows;
    if (a.inputs[i] == &a.made) in[i] = (Tensor){.data = a.made_items, .type = &a.made.type};
  }
  for (int o = 0; o < a.node.n_outputs; o++) {
    out[o] = c->out[o];
    if (a.flat) out[o].type = &a.rows;
  }
  KernelContext one = *c;
  one.node = &a.node;
  one.in = in;
  one.n_in = a.node.n_inputs;
  one.out = out;
  one.n_out = a.node.n_outputs;
  return reference || !a.node.op->run_cpu ? a.node.op->run_ref(&one) : a.node.op->run_cpu(&one);
}

Status adapter_prepare(const Adapter *table, KernelPrepare *p, bool make) {
  Adapted a;
  TRY(adapt(adapter_of(table, p->node->op), p->node, &a));
  Value flat[ADAPTER_OPERANDS];
  for (int i = 0; a.flat && i < a.node.n_inputs; i++) {
    flat[i] = *a.inputs[i];
    flat[i].type = a.rows;
    a.inputs[i] = &flat[i];
  }
  KernelPrepare ours = *p;
  ours.node = &a.node;
  Status (*function)(KernelPrepare *) = make ? a.node.op->prepare : a.node.op->workspace;
  Status status = function ? function(&ours) : NULL;
  ours.node = p->node;
  *p = ours;
  return status;
}

void adapter_cost(const Adapter *table, const Node *node, NodeCost *cost) {
  Adapted a;
  Status status = adapt(adapter_of(table, node->op), node, &a);
  Value flat[ADAPTER_OPERANDS];
  for (int i = 0; !status && a.flat && i < a.node.n_inputs; i++) {
    flat[i] = *a.inputs[i];
    flat[i].type = a.rows;
    a.inputs[i] = &flat[i];
  }
  if (!status && a.node.op->cost) a.node.op->cost(&a.node, cost);
  else cost->work[WORK_ARITHMETIC] += cost_largest_elems(node);
  status_free(status);
}
