// fuse_elementwise OPTIMISES: neighbouring elementwise operators of one shape become one FusedElementwise, so that what only they exchange never
// reaches memory. Each member runs its own kernel on a block in the cache: no bit changes. A node joins the group of the producer of one of
// its inputs when everything that reads the group's results so far stands behind the node.
#include "../kernels/fused.h"
#include "../kernels/ops.h"
#include "pass_list.h"

typedef struct Group {
  Node *members[FUSED_MEMBERS_MAX];
  int n_members, n_inputs;
  Value *inputs[FUSED_INPUTS_MAX];
  int64_t row;                   // elements of row operands; 1: none
} Group;

typedef struct Fuse {
  Graph *graph;
  Group **group_of;              // per node
  uint32_t **users;              // per value: ids of nodes that read it
  uint32_t *n_users;
} Fuse;

static void index_users(Fuse *f) {
  Graph *g = f->graph;
  f->n_users = graph_count_uses(g, g->arena);
  f->users = ARENA_ARRAY(g->arena, uint32_t *, g->n_values);
  for (size_t i = 0; i < g->n_values; i++) {
    f->users[i] = ARENA_ARRAY(g->arena, uint32_t, f->n_users[i]);
    f->n_users[i] = 0;
  }
  for (size_t i = 0; i < g->n_nodes; i++)
    for (int k = 0; k < g->nodes[i]->n_inputs; k++) {
      const Value *v = g->nodes[i]->inputs[k];
      if (v) f->users[v->id][f->n_users[v->id]++] = (uint32_t)i;
    }
}

static bool fusible(const Node *n) {
  if (n->phase != PHASE_MICRO || !fused_takes(n->op) || n->n_outputs != 1) return false;
  const Type *whole = &n->outputs[0]->type;
  if (whole->dtype != DTYPE_F32 || type_elems(whole) < 2) return false;
  for (int i = 0; i < n->n_inputs; i++)
    if (!n->inputs[i] || !fused_operand(&n->inputs[i]->type, whole)) return false;
  return true;
}

static bool row_fits(int64_t *row, const Value *v, const Type *whole) {
  int64_t n = type_elems(&v->type);
  if (n == 1 || type_same_shape(&v->type, whole)) return true;
  if (n == type_elems(whole) || (*row != 1 && *row != n)) return false;    // same count under another shape: a reshape in disguise
  *row = n;
  return true;
}

static bool is_member(const Fuse *f, const Group *g, const Value *v) { return v->producer && f->group_of[v->producer->id] == g; }

// Adds to `g` what `n` reads and no member of the group `self` (NULL: a new one) produces.
static bool add_inputs(const Fuse *f, const Group *self, Group *g, const Node *n) {
  for (int i = 0; i < n->n_inputs; i++) {
    Value *v = n->inputs[i];
    bool known = self && is_member(f, self, v);
    for (int k = 0; k < g->n_inputs; k++) known |= g->inputs[k] == v;
    if (known) continue;
    if (g->n_inputs == FUSED_INPUTS_MAX || !row_fits(&g->row, v, &n->outputs[0]->type)) return false;
    g->inputs[g->n_inputs++] = v;
  }
  return true;
}

// Joins `n` to the group when that keeps the order valid: the fused node will stand where its last member stands.
static bool join(Fuse *f, Group *g, Node *n) {
  const Node *first = g->members[0];
  if (g->n_members == FUSED_MEMBERS_MAX || n->backward != first->backward || !type_equal(&n->outputs[0]->type, &first->outputs[0]->type))
    return false;
  for (int i = 0; i < g->n_members; i++) {
    const Value *v = g->members[i]->outputs[0];
    for (uint32_t k = 0; k < f->n_users[v->id]; k++) {
      uint32_t user = f->users[v->id][k];
      if (user < n->id && f->group_of[user] != g) return false;
    }
  }
  Group wider = *g;
  if (!add_inputs(f, g, &wider, n)) return false;
  wider.members[wider.n_members++] = n;
  *g = wider;
  return true;
}

static void assign(Fuse *f, Node *n) {
  if (!fusible(n)) return;
  for (int i = n->n_inputs; i-- > 0;) {
    const Node *p = n->inputs[i]->producer;
    Group *g = p ? f->group_of[p->id] : NULL;
    if (g && join(f, g, n)) {
      f->group_of[n->id] = g;
      return;
    }
  }
  Group alone = {.row = 1};
  if (!add_inputs(f, NULL, &alone, n)) return;
  alone.members[alone.n_members++] = n;
  f->group_of[n->id] = arena_copy(f->graph->arena, &alone, sizeof alone);
}

static int64_t register_of(const Fuse *f, const Group *g, const Value *v) {
  for (int i = 0; i < g->n_inputs; i++)
    if (g->inputs[i] == v) return i;
  for (int i = 0; i < g->n_members; i++)
    if (g->members[i] == v->producer) return g->n_inputs + i;
  return -1;
}

static bool read_outside(const Fuse *f, const Group *g, const Value *v) {
  bool outside = v->role == ROLE_GRAD || v->carry || f->n_users[v->id] == 0;
  for (size_t i = 0; i < f->graph->n_outputs; i++) outside |= f->graph->outputs[i] == v;
  outside |= v == f->graph->loss || v == f->graph->loss_count;
  for (uint32_t k = 0; k < f->n_users[v->id]; k++) outside |= f->group_of[f->users[v->id][k]] != g;
  return outside;
}

// The members' attributes that are not at their default (kernels/fused.c).
static AttrStrings settings_of(const Group *g, Arena *arena) {
  enum { ATTRS_MAX = 3 };
  const char **items = ARENA_ARRAY(arena, const char *, 3 * ATTRS_MAX * FUSED_MEMBERS_MAX);
  int64_t n = 0;
  for (int i = 0; i < g->n_members; i++) {
    const Node *m = g->members[i];
    for (const AttrSpec *s = m->op->attrs; s && s->name; s++) {
      if (attr_is_default(m, s)) continue;
      items[n++] = arena_printf(arena, "%d", i);
      items[n++] = s->name;
      items[n++] = s->type == ATTR_STRING ? attr_string(m, s->name) : arena_printf(arena, "%.9g", (double)attr_float(m, s->name));
    }
  }
  return (AttrStrings){items, n};
}

static Status fuse(const Fuse *f, const Group *g, Node **out) {
  Graph *graph = f->graph;
  const Node *last = g->members[g->n_members - 1];
  const char *operators[FUSED_MEMBERS_MAX];
  int64_t arguments[3 * FUSED_MEMBERS_MAX], results[FUSED_MEMBERS_MAX], n_arguments = 0, n_results = 0;
  Value *outputs[FUSED_MEMBERS_MAX];
  for (int i = 0; i < g->n_members; i++) {
    const Node *m = g->members[i];
    operators[i] = m->op->name;
    for (int k = 0; k < m->n_inputs; k++) arguments[n_arguments++] = register_of(f, g, m->inputs[k]);
    if (!read_outside(f, g, m->outputs[0])) continue;
    outputs[n_results] = m->outputs[0];
    results[n_results++] = g->n_inputs + i;
  }
  Node *n = graph_make_node(graph, &op_FusedElementwise, last->name, g->n_inputs, g->inputs, 0, NULL);
  attr_set(graph, n, &(AttrInit)A_STRINGS("operators", operators, g->n_members));
  attr_set(graph, n, &(AttrInit)A_INTS("arguments", arguments, n_arguments));
  attr_set(graph, n, &(AttrInit)A_INTS("results", results, n_results));
  const AttrStrings settings = settings_of(g, graph->arena);
  attr_set(graph, n, &(AttrInit)A_STRINGS("settings", settings.items, settings.n));
  n->outputs = arena_copy(graph->arena, outputs, sizeof *outputs * (size_t)n_results);
  n->n_outputs = (int)n_results;
  n->phase = last->phase;
  n->backward = last->backward;
  n->origin = last->origin;
  *out = n;
  return node_infer(graph, n);
}

Status pass_fuse_elementwise(Graph *graph, const CompileOptions *options) {
  Fuse f = {.graph = graph, .group_of = ARENA_ARRAY(graph->arena, Group *, graph->n_nodes)};
  index_users(&f);
  for (size_t i = 0; i < graph->n_nodes; i++) assign(&f, graph->nodes[i]);
  Node **nodes = ARENA_ARRAY(graph->arena, Node *, graph->n_nodes);
  size_t n = 0;
  for (size_t i = 0; i < graph->n_nodes; i++) {
    Node *node = graph->nodes[i];
    const Group *g = f.group_of[i];
    if (!g || g->n_members < 2) nodes[n++] = node;
    else if (g->members[g->n_members - 1] == node) TRY(fuse(&f, g, &nodes[n++]));
  }
  graph_set_nodes(graph, nodes, n);
  return STATUS_OK;
}
