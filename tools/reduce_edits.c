#include "reduce_edits.h"

#include <stdlib.h>
#include <string.h>

#include "../ir/op.h"
#include "../ir/verify_graph.h"

static const int64_t CONSTANT_BYTES_MAX = 64 << 10;   // larger ones stand for nothing: the result is to be small

// ---- Types --------------------------------------------------------------------------------------------------------------------

static Status infer_guarded(Graph *graph, Node *node) {
  ARENA_GUARD(graph->arena);
  ARENA_RETURN(graph->arena, node_infer(graph, node));
}

Status reduce_settle(Graph *graph, bool whole) {
  for (size_t i = 0; i < graph->n_nodes; i++)
    for (int k = 0; k < graph->nodes[i]->n_outputs; k++)
      if (graph->nodes[i]->outputs[k]) graph->nodes[i]->outputs[k]->type = (Type){0};
  for (size_t i = 0; i < graph->n_nodes; i++) {
    Node *n = graph->nodes[i];
    bool known = true;
    for (int k = 0; k < n->n_inputs; k++) known &= !n->inputs[k] || n->inputs[k]->type.dtype;
    Status status = known ? infer_guarded(graph, n) : STATUS_OK;
    if (status && whole) return status;
    status_free(status);
  }
  return verify_graph(graph);
}

// ---- Values that stand for others -----------------------------------------------------------------------------------------------

static Weight *new_weight(Graph *g, const Value *v) {
  Weight *w = ARENA_NEW(g->arena, Weight);
  void *bytes = arena_alloc(g->arena, (size_t)value_bytes(v));
  *w = (Weight){.name = v->name, .type = v->type, .bytes = bytes};
  return w;
}

// Distinct numbers between 0.1 and 1; integers 0, which index anything.
static bool become_constant(Graph *g, Value *v) {
  if (!v->type.dtype || value_bytes(v) > CONSTANT_BYTES_MAX) return false;
  Weight *w = new_weight(g, v);
  int64_t n = type_elems(&v->type);
  for (int64_t i = 0; dtype_is_float(v->type.dtype) && i < n; i++)
    element_write((void *)w->bytes, v->type.dtype, i, 0.1 + 0.9 * (double)(i % 17) / 17);
  v->weight = w;
  v->role = ROLE_CONST;
  v->producer = NULL;
  return true;
}

static bool become_input(Graph *g, Value *v) {
  if (!v->type.dtype) return false;
  v->role = ROLE_INPUT;
  v->producer = NULL;
  graph_add_input(g, v);
  return true;
}

static bool is_output(const Graph *g, const Value *v) {
  for (size_t i = 0; i < g->n_outputs; i++)
    if (g->outputs[i] == v) return true;
  return g->loss == v || g->loss_count == v || g->loss_report == v || g->norm_report == v || g->inverse_count == v;
}

// ---- Nodes --------------------------------------------------------------------------------------------------------------------

// An input of v's producer of the same type that stays, itself or through inputs of producers that go.
static Value *bypass(const Value *v, const bool *gone) {
  const Node *n = v->producer;
  for (int depth = 0; n && depth < 1000; depth++) {
    Value *same = NULL;
    for (int i = 0; !same && i < n->n_inputs; i++)
      if (n->inputs[i] && n->inputs[i]->type.dtype && type_equal(&n->inputs[i]->type, &v->type) && n->inputs[i]->role != ROLE_CONST) same = n->inputs[i];
    if (!same) return NULL;
    if (!same->producer || !gone[same->producer->id]) return same;
    n = same->producer;
  }
  return NULL;
}

static bool replace_use(Graph *g, Value *v, Value *other, Stand stand) {
  if (!other) return stand == STAND_CONSTANT ? become_constant(g, v) : become_input(g, v);
  graph_replace_uses(g, v, other);
  return true;
}

// Something else that is computed and no output yet, the last; NULL: nothing is.
static Value *other_output(const Graph *g, const bool *gone) {
  for (size_t i = g->n_nodes; i-- > 0;)
    for (int k = 0; !gone[i] && k < g->nodes[i]->n_outputs; k++)
      if (g->nodes[i]->outputs[k] && !is_output(g, g->nodes[i]->outputs[k])) return g->nodes[i]->outputs[k];
  return NULL;
}

// An output whose producer goes is none any more; the only one makes room for another.
static bool forget_output(Graph *g, const Value *v, const bool *gone) {
  size_t at = 0;
  while (at < g->n_outputs && g->outputs[at] != v) at++;
  if (at == g->n_outputs) return false;                    // a loss or a report
  if (g->n_outputs == 1 && !(g->outputs[0] = other_output(g, gone))) return false;
  if (g->n_outputs == 1) return !is_output(g, v);
  memmove(g->outputs + at, g->outputs + at + 1, sizeof *g->outputs * (g->n_outputs - at - 1));
  g->n_outputs--;
  return !is_output(g, v);
}

// False: nothing can stand for it.
static bool replace_value(Graph *g, Value *v, const bool *gone, const uint32_t *uses, Stand stand) {
  bool output = is_output(g, v);
  if (!uses[v->id] && !output) return true;
  if (v->carry || v->role == ROLE_GRAD || v->role == ROLE_STATE || v->role == ROLE_PARTIAL) return false;
  Value *other = v->type.dtype ? bypass(v, gone) : NULL;
  if (output && !(other && other->producer && !is_output(g, other))) return forget_output(g, v, gone) && (!uses[v->id] || replace_use(g, v, other, stand));
  if (output) {
    graph_replace_uses(g, v, other);
    return true;
  }
  return stand == STAND_CONSTANT ? become_constant(g, v) : become_input(g, v);
}

// Nodes that serve nothing, once more: users come before producers from the end.
static void sweep_nodes(const Graph *g, bool *gone) {
  bool *used = ARENA_ARRAY(g->arena, bool, g->n_values);
  for (size_t i = 0; i < g->n_values; i++) used[i] = is_output(g, g->values[i]) || g->values[i]->carry || g->values[i]->role == ROLE_GRAD;
  for (size_t i = g->n_nodes; i-- > 0;) {
    const Node *n = g->nodes[i];
    bool live = n->op->flags & (OP_SIDE_EFFECT | OP_COLLECTIVE);
    for (int k = 0; k < n->n_outputs; k++) live |= n->outputs[k] && used[n->outputs[k]->id];
    gone[i] |= !live;
    for (int k = 0; !gone[i] && k < n->n_inputs; k++)
      if (n->inputs[k]) used[n->inputs[k]->id] = true;
  }
}

bool reduce_drop_nodes(Graph *g, size_t first, size_t count, Stand stand, bool sweep) {
  bool *gone = ARENA_ARRAY(g->arena, bool, g->n_nodes);
  uint32_t *uses = ARENA_ARRAY(g->arena, uint32_t, g->n_values);
  for (size_t i = first; i < first + count && i < g->n_nodes; i++) gone[i] = true;
  for (size_t i = 0; i < g->n_nodes; i++)
    for (int k = 0; !gone[i] && k < g->nodes[i]->n_inputs; k++)
      if (g->nodes[i]->inputs[k]) uses[g->nodes[i]->inputs[k]->id]++;
  for (size_t i = first; i < first + count && i < g->n_nodes; i++)
    for (int k = 0; k < g->nodes[i]->n_outputs; k++)
      if (g->nodes[i]->outputs[k] && !replace_value(g, g->nodes[i]->outputs[k], gone, uses, stand)) return false;
  if (sweep) sweep_nodes(g, gone);
  Node **kept = ARENA_ARRAY(g->arena, Node *, g->n_nodes);
  size_t n = 0;
  for (size_t i = 0; i < g->n_nodes; i++)
    if (!gone[i]) kept[n++] = g->nodes[i];
  if (n == g->n_nodes || !n) return false;
  graph_set_nodes(g, kept, n);
  return true;
}

// ---- Outputs and inputs ---------------------------------------------------------------------------------------------------------

bool reduce_drop_outputs(Graph *g, size_t first, size_t count) {
  if (first + count > g->n_outputs) count = g->n_outputs - first;
  if (!count || count == g->n_outputs) return false;
  memmove(g->outputs + first, g->outputs + first + count, sizeof *g->outputs * (g->n_outputs - first - count));
  g->n_outputs -= count;
  graph_set_nodes(g, g->nodes, g->n_nodes);
  return true;
}

bool reduce_drop_inputs(Graph *g) {
  uint32_t *uses = graph_count_uses(g, g->arena);
  size_t n = 0;
  for (size_t i = 0; i < g->n_inputs; i++)
    if (uses[g->inputs[i]->id]) g->inputs[n++] = g->inputs[i];
  if (n == g->n_inputs) return false;
  g->n_inputs = n;
  graph_set_nodes(g, g->nodes, g->n_nodes);
  return true;
}

// ---- Details: numbered over the nodes, inputs first, then attributes; then over the graph's inputs --------------------------------

static size_t count_attrs(const Node *n) {
  size_t count = 0;
  for (const AttrSpec *s = n->op->attrs; s && s->name; s++) count++;
  return count;
}

size_t reduce_count_details(const Graph *g) {
  size_t count = g->n_inputs;
  for (size_t i = 0; i < g->n_nodes; i++) count += (size_t)g->nodes[i]->n_inputs + count_attrs(g->nodes[i]);
  return count;
}

static bool drop_operand(Node *n, int k) {
  if (n->n_inputs <= n->op->min_inputs || !n->inputs[k]) return false;
  if (n->op->max_inputs == VARIADIC) {
    memmove(n->inputs + k, n->inputs + k + 1, sizeof *n->inputs * (size_t)(n->n_inputs - k - 1));
    n->n_inputs--;
    return true;
  }
  if (k < n->op->min_inputs) return false;
  n->inputs[k] = NULL;
  while (n->n_inputs > n->op->min_inputs && !n->inputs[n->n_inputs - 1]) n->n_inputs--;
  return true;
}

static bool reset_attr(Node *n, const AttrSpec *s) {
  void *at = (char *)n->attrs + s->offset;
  if (s->required || attr_is_default(n, s)) return false;
  switch (s->type) {
  case ATTR_INT: *(int64_t *)at = s->default_int; return true;
  case ATTR_FLOAT: *(float *)at = s->default_float; return true;
  case ATTR_STRING: *(const char **)at = s->default_string; return true;
  case ATTR_INTS: *(AttrInts *)at = (AttrInts){0}; return true;
  case ATTR_FLOATS: *(AttrFloats *)at = (AttrFloats){0}; return true;
  case ATTR_STRINGS: *(AttrStrings *)at = (AttrStrings){0}; return true;
  case ATTR_TENSOR: *(const Weight **)at = NULL; return true;
  }
  return false;
}

bool reduce_detail(Graph *g, size_t number) {
  bool changed = false;
  for (size_t i = 0; i < g->n_nodes; i++) {
    Node *n = g->nodes[i];
    if (number < (size_t)n->n_inputs) {
      changed = drop_operand(n, (int)number);
      break;
    }
    number -= (size_t)n->n_inputs;
    if (number < count_attrs(n)) {
      changed = reset_attr(n, &n->op->attrs[number]);
      break;
    }
    number -= count_attrs(n);
    if (i + 1 == g->n_nodes && number < g->n_inputs) {
      changed = become_constant(g, g->inputs[number]);
      memmove(g->inputs + number, g->inputs + number + 1, sizeof *g->inputs * (g->n_inputs - number - 1));
      g->n_inputs--;
      break;
    }
  }
  if (changed) graph_set_nodes(g, g->nodes, g->n_nodes);
  return changed;
}

// ---- Sizes --------------------------------------------------------------------------------------------------------------------

static bool is_shape(const Value *v) {
  return value_const(v) && v->type.dtype == DTYPE_I64 && v->type.rank <= 1 && type_elems(&v->type) <= RANK_MAX;
}

static int by_size_down(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? 1 : x > y ? -1 : 0;
}

size_t reduce_list_sizes(const Graph *g, int64_t **out) {
  int64_t *sizes = ARENA_ARRAY(g->arena, int64_t, g->n_values * RANK_MAX);
  size_t n = 0, distinct = 0;
  for (size_t i = 0; i < g->n_values; i++) {
    const Value *v = g->values[i];
    for (int d = 0; !v->producer && d < v->type.rank; d++)
      if (v->type.dims[d] > 1) sizes[n++] = v->type.dims[d];
  }
  qsort(sizes, n, sizeof *sizes, by_size_down);
  for (size_t i = 0; i < n; i++)
    if (!distinct || sizes[distinct - 1] != sizes[i]) sizes[distinct++] = sizes[i];
  *out = sizes;
  return distinct;
}

// The leading part of each axis.
static void cut_weight(Graph *g, Value *v, const Weight *old) {
  Weight *w = new_weight(g, v);
  int64_t index[RANK_MAX] = {0}, elem = dtype_bytes(v->type.dtype);
  for (int64_t i = 0, n = type_elems(&v->type); i < n; i++) {
    int64_t from = 0;
    for (int d = 0; d < v->type.rank; d++) from = from * old->type.dims[d] + index[d];
    memcpy((char *)w->bytes + i * elem, (const char *)old->bytes + from * elem, (size_t)elem);
    for (int d = v->type.rank; d-- > 0 && ++index[d] == v->type.dims[d];) index[d] = 0;
  }
  v->weight = w;
}

static void change_shape_constant(Graph *g, Value *v, int64_t from, int64_t to) {
  const Weight *old = v->weight;
  Weight *w = new_weight(g, v);
  for (int64_t i = 0, n = type_elems(&v->type); i < n; i++) {
    int64_t x = weight_read_int(old, i);
    element_write_int((void *)w->bytes, DTYPE_I64, i, x == from ? to : x);
  }
  v->weight = w;
}

bool reduce_shrink(Graph *g, int64_t from, int64_t to) {
  bool changed = false;
  for (size_t i = 0; i < g->n_values; i++) {
    Value *v = g->values[i];
    bool same_type = !v->weight || v->weight->type.dtype == v->type.dtype;
    if (v->producer || !same_type || (v->weight && !v->weight->bytes)) continue;
    if (is_shape(v)) change_shape_constant(g, v, from, to);
    const Weight *old = v->weight;
    bool cut = false;
    for (int d = 0; d < v->type.rank; d++)
      if (v->type.dims[d] == from) {
        v->type.dims[d] = to;
        cut = true;
      }
    if (cut && old) cut_weight(g, v, old);
    changed |= cut;
  }
  for (size_t i = 0; changed && i < g->n_nodes; i++)         // sizes that attributes hold
    for (const AttrSpec *s = g->nodes[i]->op->attrs; s && s->name; s++) {
      AttrInts *list = (AttrInts *)((char *)g->nodes[i]->attrs + s->offset);
      if (s->type != ATTR_INTS || strcmp(s->name, "dims")) continue;
      int64_t *items = arena_copy(g->arena, list->items, sizeof *items * (size_t)list->n);
      for (int64_t k = 0; k < list->n; k++)
        if (items[k] == from) items[k] = to;
      list->items = items;
    }
  return changed;
}
