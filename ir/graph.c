#include "graph.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "op.h"

// ---- Names of enumerations, in the order of the enumerations ------------------------------------------------------------------

#define NAMES(function, T, count, ...)                                                     \
  const char *function(T i) {                                                              \
    static const char *const names[] = {__VA_ARGS__};                                      \
    _Static_assert(sizeof names / sizeof names[0] == count, "one name per enumerator");    \
    return (unsigned)i < count ? names[i] : "?";                                           \
  }
NAMES(role_name, Role, ROLE_COUNT, "activation", "input", "control", "param", "grad", "state", "partial", "narrow", "const", "buffer")
NAMES(phase_name, Phase, PHASE_COUNT, "init", "micro", "update")
NAMES(tier_name, Tier, TIER_COUNT, "device", "host", "nvme")
NAMES(layout_name, Layout, LAYOUT_COUNT, "plain")
NAMES(scope_name, Scope, SCOPE_COUNT, "rank", "process")
NAMES(queue_name, Queue, QUEUE_COUNT, "compute", "comm", "io")
NAMES(reduce_name, Reduce, REDUCE_COUNT, "micro", "step")
NAMES(accumulate_name, Accumulate, ACCUMULATE_COUNT, "tree", "running")
NAMES(state_shape_name, StateShape, STATE_SHAPE_COUNT, "elements", "blocks", "rows", "columns")
NAMES(guard_name, Guard, GUARD_COUNT, "none", "read_begin", "read_end", "write")
NAMES(category_name, Category, CATEGORY_COUNT, "params", "grads", "state", "partial", "packed", "gathered", "buckets", "activations",
      "inputs", "consts", "control", "workspace", "scratch", "padding")

int enum_from_name(const char *name, EnumName names, int count) {
  for (int i = 0; i < count; i++)
    if (!strcmp(name, names(i))) return i;
  return -1;
}

// ---- Name table: open addressing, names of values and of nodes in separate spaces ---------------------------------------------

typedef struct NameEntry { const char *name; void *item; uint32_t next_suffix; } NameEntry;
typedef struct NameSpace { NameEntry *entries; size_t count, capacity; } NameSpace;
struct NameTable { NameSpace values, nodes; };

static NameEntry *name_slot(NameSpace *space, const char *name) {
  size_t i = XXH3_64bits(name, strlen(name)) & (space->capacity - 1);
  while (space->entries[i].name && strcmp(space->entries[i].name, name)) i = (i + 1) & (space->capacity - 1);
  return &space->entries[i];
}

static NameEntry *name_insert(Arena *arena, NameSpace *space, const char *name, void *item) {
  if (2 * (space->count + 1) > space->capacity) {
    NameSpace wider = {ARENA_ARRAY(arena, NameEntry, space->capacity ? 2 * space->capacity : 64), space->count,
                       space->capacity ? 2 * space->capacity : 64};
    for (size_t i = 0; i < space->capacity; i++)
      if (space->entries[i].name) *name_slot(&wider, space->entries[i].name) = space->entries[i];
    *space = wider;
  }
  NameEntry *e = name_slot(space, name);
  if (!e->name) {
    e->name = name;
    space->count++;
  }
  e->item = item;
  return e;
}

static NameEntry *name_find(const NameSpace *space, const char *name) {
  if (!space->capacity) return NULL;
  NameEntry *e = name_slot((NameSpace *)space, name);
  return e->name ? e : NULL;
}

// An entry whose item is NULL is free again, but remembers which suffixes were given.
static const char *name_unique(Arena *arena, NameSpace *space, const char *hint, void *item) {
  NameEntry *e = name_find(space, hint);
  if (!e || !e->item) {
    const char *own = e ? e->name : arena_string(arena, hint);
    name_insert(arena, space, own, item);
    return own;
  }
  for (;;) {
    char *candidate = arena_printf(arena, "%s.%u", hint, ++e->next_suffix);
    NameEntry *taken = name_find(space, candidate);
    if (taken && taken->item) continue;
    name_insert(arena, space, candidate, item);
    return candidate;
  }
}

// ---- Construction -------------------------------------------------------------------------------------------------------------

Graph *graph_create(Arena *arena, const char *name) {
  Graph *g = ARENA_NEW(arena, Graph);
  g->arena = arena;
  g->name = arena_string(arena, name && *name ? name : "graph");
  g->ir_version = 10;
  g->opset = IR_OPSET;
  g->names = ARENA_NEW(arena, struct NameTable);
  g->recipe.micro_per_rank = 1;
  g->recipe.processes = g->recipe.ranks_per_process = g->recipe.threads_per_rank = 1;
  return g;
}

Value *graph_add_value(Graph *graph, const char *hint) {
  Value *v = ARENA_NEW(graph->arena, Value);
  v->name = name_unique(graph->arena, &graph->names->values, hint && *hint ? hint : "value", v);
  v->id = (uint32_t)graph->n_values;
  v->loc.buffer = -1;
  v->bucket = -1;
  ARENA_PUSH(graph->arena, graph->values, graph->n_values, graph->values_capacity, v);
  return v;
}

Value *graph_find_value(const Graph *graph, const char *name) {
  NameEntry *e = name_find(&graph->names->values, name);
  return e ? e->item : NULL;
}

const char *graph_free_name(const Graph *graph, const char *wish) {
  const char *name = wish;
  for (int i = 1; graph_find_value(graph, name); i++) name = arena_printf(graph->arena, "%s.%d", wish, i);
  return name;
}

void graph_rename_value(Graph *graph, Value *value, const char *name) {
  if (!strcmp(value->name, name)) return;
  NameEntry *old = name_find(&graph->names->values, value->name);
  assert(!graph_find_value(graph, name));
  if (old && old->item == value) old->item = NULL;
  value->name = arena_string(graph->arena, name);
  name_insert(graph->arena, &graph->names->values, value->name, value);
}

void graph_claim_name(Graph *graph, Value *value, const char *name) {
  Value *other = graph_find_value(graph, name);
  if (other == value) return;
  if (other) graph_rename_value(graph, other, graph_free_name(graph, arena_printf(graph->arena, "%s.model", name)));
  graph_rename_value(graph, value, name);
}

Node *graph_make_node(Graph *graph, const Op *op, const char *name, int n_inputs, Value *const *inputs, int n_outputs, const char *const *hints) {
  Arena *arena = graph->arena;
  Node *n = ARENA_NEW(arena, Node);
  n->op = op;
  n->name = name_unique(arena, &graph->names->nodes, name && *name ? name : op->name, n);
  n->n_inputs = n_inputs;
  n->inputs = arena_copy(arena, inputs, sizeof *inputs * (size_t)n_inputs);
  n->n_outputs = n_outputs;
  n->outputs = ARENA_ARRAY(arena, Value *, n_outputs);
  n->phase = PHASE_MICRO;
  n->region = n->workspace = n->scratch = -1;
  for (int i = 0; i < n_outputs; i++) {
    n->outputs[i] = graph_add_value(graph, hints && hints[i] ? hints[i] : n->name);
    n->outputs[i]->producer = n;
    n->outputs[i]->output_index = i;
  }
  attrs_reset(graph, n);
  return n;
}

void graph_append(Graph *graph, Node *node) {
  node->id = (uint32_t)graph->n_nodes;
  ARENA_PUSH(graph->arena, graph->nodes, graph->n_nodes, graph->nodes_capacity, node);
}

static size_t inputs_capacity(size_t n) {
  size_t c = n ? 8 : 0;
  while (c && c < n) c *= 2;
  return c;
}

void graph_add_input(Graph *graph, Value *value) {
  size_t capacity = inputs_capacity(graph->n_inputs);
  ARENA_PUSH(graph->arena, graph->inputs, graph->n_inputs, capacity, value);
}

void graph_add_output(Graph *graph, Value *value) {
  size_t capacity = inputs_capacity(graph->n_outputs);
  ARENA_PUSH(graph->arena, graph->outputs, graph->n_outputs, capacity, value);
}

// ---- Changing the node list ---------------------------------------------------------------------------------------------------

static void keep(bool *kept, const Graph *graph, const Value *v) {
  while (v && v->id < graph->n_values && graph->values[v->id] == v && !kept[v->id]) {
    kept[v->id] = true;
    keep(kept, graph, v->of);
    v = v->carry;
  }
}

void graph_set_nodes(Graph *graph, Node **nodes, size_t n_nodes) {
  graph->nodes = nodes;
  graph->n_nodes = graph->nodes_capacity = n_nodes;
  for (size_t i = 0; i < graph->n_values; i++) {
    graph->values[i]->id = (uint32_t)i;
    graph->values[i]->producer = NULL;
  }
  bool *kept = ARENA_ARRAY(graph->arena, bool, graph->n_values);
  for (size_t i = 0; i < n_nodes; i++) {
    Node *n = nodes[i];
    n->id = (uint32_t)i;
    for (int k = 0; k < n->n_inputs; k++) keep(kept, graph, n->inputs[k]);
    for (int k = 0; k < n->n_outputs; k++) {
      if (!n->outputs[k]) continue;
      keep(kept, graph, n->outputs[k]);
      n->outputs[k]->producer = n;
      n->outputs[k]->output_index = k;
    }
  }
  for (size_t i = 0; i < graph->n_inputs; i++) keep(kept, graph, graph->inputs[i]);
  for (size_t i = 0; i < graph->n_outputs; i++) keep(kept, graph, graph->outputs[i]);
  Value *const reports[] = {graph->loss, graph->loss_count, graph->loss_report, graph->norm_report, graph->inverse_count};
  for (size_t i = 0; i < sizeof reports / sizeof *reports; i++) keep(kept, graph, reports[i]);
  size_t n = 0;
  for (size_t i = 0; i < graph->n_values; i++) {
    Value *v = graph->values[i];
    if (kept[i]) {
      graph->values[n] = v;
      v->id = (uint32_t)n++;
    } else {
      NameEntry *e = name_find(&graph->names->values, v->name);
      if (e && e->item == v) e->item = NULL;
    }
  }
  graph->n_values = n;
}

uint32_t *graph_count_uses(const Graph *graph, Arena *arena) {
  uint32_t *uses = ARENA_ARRAY(arena, uint32_t, graph->n_values);
  for (size_t i = 0; i < graph->n_nodes; i++)
    for (int k = 0; k < graph->nodes[i]->n_inputs; k++)
      if (graph->nodes[i]->inputs[k]) uses[graph->nodes[i]->inputs[k]->id]++;
  for (size_t i = 0; i < graph->n_outputs; i++) uses[graph->outputs[i]->id]++;
  return uses;
}

void graph_replace_uses(Graph *graph, const Value *from, Value *to) {
  for (size_t i = 0; i < graph->n_nodes; i++)
    for (int k = 0; k < graph->nodes[i]->n_inputs; k++)
      if (graph->nodes[i]->inputs[k] == from) graph->nodes[i]->inputs[k] = to;
  for (size_t i = 0; i < graph->n_outputs; i++)
    if (graph->outputs[i] == from) graph->outputs[i] = to;
  Value **reports[] = {&graph->loss, &graph->loss_count, &graph->loss_report, &graph->norm_report, &graph->inverse_count};
  for (size_t i = 0; i < sizeof reports / sizeof *reports; i++)
    if (*reports[i] == from) *reports[i] = to;
}

// Depth-first in the given order with an explicit stack: hostile graphs are deep.
typedef struct SortFrame { Node *node; int next_input; } SortFrame;

Status graph_sort(Graph *graph, Node **nodes, size_t n_nodes) {
  enum { UNSEEN, OPEN, DONE };
  Arena *arena = graph->arena;
  for (size_t i = 0; i < n_nodes; i++) nodes[i]->id = (uint32_t)i;
  unsigned char *state = arena_alloc(arena, n_nodes);
  Node **order = ARENA_ARRAY(arena, Node *, n_nodes);
  SortFrame *stack = ARENA_ARRAY(arena, SortFrame, n_nodes + 1);
  size_t n_order = 0;
  for (size_t i = 0; i < n_nodes; i++) {
    if (state[i] != UNSEEN) continue;
    size_t depth = 0;
    stack[depth++] = (SortFrame){nodes[i], 0};
    state[i] = OPEN;
    while (depth) {
      SortFrame *f = &stack[depth - 1];
      if (f->next_input == f->node->n_inputs) {
        state[f->node->id] = DONE;
        order[n_order++] = f->node;
        depth--;
        continue;
      }
      const Value *v = f->node->inputs[f->next_input++];
      Node *p = v ? v->producer : NULL;
      if (!p || p->id >= n_nodes || nodes[p->id] != p || state[p->id] == DONE) continue;
      if (state[p->id] == OPEN)
        FAIL(MALFORMED, f->node->name, "the graph has a cycle: input '%s' depends on this node's own output", v->name);
      state[p->id] = OPEN;
      stack[depth++] = (SortFrame){p, 0};
    }
  }
  for (size_t i = 0; i < n_nodes; i++) {
    nodes[i] = order[i];
    nodes[i]->id = (uint32_t)i;
  }
  return STATUS_OK;
}

// ---- Copy ---------------------------------------------------------------------------------------------------------------------

static Value *mapped(Value *const *to, const Value *v) { return v ? to[v->id] : NULL; }

static Value **mapped_list(Arena *arena, Value *const *to, Value *const *list, size_t n) {
  Value **copy = ARENA_ARRAY(arena, Value *, n);
  for (size_t i = 0; i < n; i++) copy[i] = mapped(to, list[i]);
  return copy;
}

Graph *graph_clone(const Graph *graph, Arena *arena) {
  Graph *g = graph_create(arena, graph->name);
  struct NameTable *names = g->names;
  *g = *graph;
  g->arena = arena;
  g->names = names;
  g->n_values = g->values_capacity = g->n_nodes = g->nodes_capacity = 0;
  g->values = NULL;
  g->nodes = NULL;
  Value **to = ARENA_ARRAY(arena, Value *, graph->n_values);
  for (size_t i = 0; i < graph->n_values; i++) {
    Value *v = graph_add_value(g, graph->values[i]->name);
    const char *name = v->name;
    *v = *graph->values[i];
    v->name = name;
    v->producer = NULL;
    to[i] = v;
  }
  for (size_t i = 0; i < graph->n_values; i++) {
    to[i]->of = mapped(to, to[i]->of);
    to[i]->carry = mapped(to, to[i]->carry);
  }
  for (size_t i = 0; i < graph->n_nodes; i++) {
    Node *n = arena_copy(arena, graph->nodes[i], sizeof *n);
    n->name = name_unique(arena, &names->nodes, n->name, n);
    n->inputs = mapped_list(arena, to, n->inputs, (size_t)n->n_inputs);
    n->outputs = mapped_list(arena, to, n->outputs, (size_t)n->n_outputs);
    if (n->op->attrs_bytes) n->attrs = arena_copy(arena, n->attrs, n->op->attrs_bytes);
    for (int k = 0; k < n->n_outputs; k++)
      if (n->outputs[k]) n->outputs[k]->producer = n;
    graph_append(g, n);
  }
  g->inputs = mapped_list(arena, to, graph->inputs, graph->n_inputs);
  g->outputs = mapped_list(arena, to, graph->outputs, graph->n_outputs);
  g->loss = mapped(to, graph->loss);
  g->loss_count = mapped(to, graph->loss_count);
  g->loss_report = mapped(to, graph->loss_report);
  g->norm_report = mapped(to, graph->norm_report);
  g->inverse_count = mapped(to, graph->inverse_count);
  g->buckets = arena_copy(arena, graph->buckets, sizeof *g->buckets * g->n_buckets);
  g->buffers = arena_copy(arena, graph->buffers, sizeof *g->buffers * g->n_buffers);
  g->savings = arena_copy(arena, graph->savings, sizeof *g->savings * g->n_savings);
  return g;
}
