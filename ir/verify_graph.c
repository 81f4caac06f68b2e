#include "verify_graph.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "op.h"

#define BAD_VALUE(v, ...) return bad_value(v, __VA_ARGS__)

static Status bad_value(const Value *v, const char *format, ...) __attribute__((format(printf, 2, 3), returns_nonnull));

static Status bad_value(const Value *v, const char *format, ...) {
  va_list args;
  va_start(args, format);
  Status s = status_vfail(STATUS_MALFORMED, NULL, format, args);
  va_end(args);
  return status_context(s, "value '%s'", v->name ? v->name : "");
}

static bool has_value(const Graph *g, const Value *v) { return v->id < g->n_values && g->values[v->id] == v; }
static bool has_node(const Graph *g, const Node *n) { return n->id < g->n_nodes && g->nodes[n->id] == n; }

static Status check_index(const char *of, const char *what, int64_t index, size_t count) {
  if (index < -1 || index >= (int64_t)count) FAIL(MALFORMED, of, "%s %" PRId64 " is outside the graph's %zu", what, index, count);
  return STATUS_OK;
}

// ---- Values -------------------------------------------------------------------------------------------------------------------

static Status check_placement(const Graph *g, const Value *v) {
  for (int a = 0; a < MESH_AXES_MAX; a++) {
    Placement at = v->placement[a];
    if (a >= g->mesh.n_axes && at.kind != PLACED_WHOLE) BAD_VALUE(v, "a placement on mesh axis %d; the mesh has %d", a, g->mesh.n_axes);
    if (at.kind == PLACED_SPLIT && (at.arg < 0 || at.arg >= v->type.rank))
      BAD_VALUE(v, "split along dimension %d; it has %d", at.arg, v->type.rank);
    if (at.kind == PLACED_FLAT) TRY(check_index(v->name, "flat bucket", at.arg, g->n_buckets));
  }
  return STATUS_OK;
}

static Status check_carry(const Graph *g, const Value *v) {
  const Value *to = v->carry;
  if (!to) return STATUS_OK;
  if (!has_value(g, to)) BAD_VALUE(v, "is carried to '%s', which is not in the graph", to->name);
  if (!v->producer) BAD_VALUE(v, "is carried to '%s' and no node gives it", to->name);
  if (to->producer && to->producer->phase != PHASE_INIT)
    BAD_VALUE(v, "is carried to '%s', which node '%s' gives anew in phase %s", to->name, to->producer->name,
         phase_name(to->producer->phase));
  if (!type_equal(&v->type, &to->type)) {
    char a[240], b[240];
    type_text(&v->type, a, sizeof a);
    BAD_VALUE(v, "of type %s is carried to '%s' of type %s", a, to->name, type_text(&to->type, b, sizeof b));
  }
  return STATUS_OK;
}

static Status check_value(const Graph *g, const Value *v) {
  if (!v->name || !*v->name) FAIL(MALFORMED, NULL, "value %u has no name", v->id);
  if (graph_find_value(g, v->name) != v) BAD_VALUE(v, "another value has the same name, or the graph does not find it by name");
  if (v->type.dtype != DTYPE_NONE) TRY(type_check(&v->type, v->name));
  else if (g->facts & FACT_TYPED) BAD_VALUE(v, "has no type though the graph is typed");
  if (v->weight && v->producer) BAD_VALUE(v, "has data and is produced by node '%s', too", v->producer->name);
  if (v->weight && v->type.dtype != DTYPE_NONE && !type_same_shape(&v->weight->type, &v->type))
    BAD_VALUE(v, "its data has another shape than its type");
  if (v->producer && (!has_node(g, v->producer) || v->output_index < 0 || v->output_index >= v->producer->n_outputs ||
                      v->producer->outputs[v->output_index] != v))
    BAD_VALUE(v, "its producer '%s' does not produce it", v->producer->name);
  if (v->role == ROLE_ACTIVATION && !v->producer && !v->weight) BAD_VALUE(v, "nothing gives it: no node, no data, and it is no input");
  if (v->role == ROLE_INPUT && v->producer) BAD_VALUE(v, "is an input and produced by node '%s', too", v->producer->name);
  if (v->of && (!has_value(g, v->of) || v->of->of)) BAD_VALUE(v, "belongs to '%s', which is no parameter of the graph", v->of->name);
  TRY(check_index(v->name, "bucket", v->bucket, g->n_buckets));
  TRY(check_index(v->name, "buffer", v->loc.buffer, g->n_buffers));
  TRY(check_placement(g, v));
  return check_carry(g, v);
}

// ---- Nodes --------------------------------------------------------------------------------------------------------------------

static Status check_inputs(const Graph *g, const Node *n) {
  for (int i = 0; i < n->n_inputs; i++) {
    const Value *v = n->inputs[i];
    if (!v) {
      if (i < n->op->min_inputs) FAIL(MALFORMED, n->name, "%s: input %d is required and absent", n->op->name, i);
      continue;
    }
    if (!has_value(g, v)) FAIL(MALFORMED, n->name, "input '%s' is not in the graph", v->name);
    if (!v->producer) continue;
    if (v->producer->id >= n->id)
      FAIL(MALFORMED, n->name, "input '%s' is produced later, by node '%s': the order is not topological", v->name, v->producer->name);
    if (v->producer->phase > n->phase)
      FAIL(MALFORMED, n->name, "runs in phase %s and uses '%s', which is there in phase %s only", phase_name(n->phase), v->name,
           phase_name(v->producer->phase));
  }
  return STATUS_OK;
}

static Status check_node(const Graph *g, const Node *n) {
  if (!n->name || !*n->name) FAIL(MALFORMED, NULL, "node %u has no name", n->id);
  TRY(node_check_arity(n));
  TRY(attrs_check(n));
  TRY(check_inputs(g, n));
  for (int i = 0; i < n->n_outputs; i++) {
    const Value *v = n->outputs[i];
    if (!v) continue;
    if (!has_value(g, v)) FAIL(MALFORMED, n->name, "output '%s' is not in the graph", v->name);
    if (v->producer != n || v->output_index != i)
      FAIL(MALFORMED, n->name, "output '%s' says that node '%s' produces it", v->name, v->producer ? v->producer->name : "(none)");
  }
  for (int i = 0; i < n->n_waits; i++)
    if (n->waits[i] >= n->id) FAIL(MALFORMED, n->name, "waits for step %u, which is not before it (%u)", n->waits[i], n->id);
  TRY(check_index(n->name, "region: buffer", n->region, g->n_buffers));
  TRY(check_index(n->name, "workspace: buffer", n->workspace, g->n_buffers));
  TRY(check_index(n->name, "scratch: buffer", n->scratch, g->n_buffers));
  if (n->guard != GUARD_NONE && n->region < 0) FAIL(MALFORMED, n->name, "guard %s without a region", guard_name(n->guard));
  return STATUS_OK;
}

// ---- The graph ----------------------------------------------------------------------------------------------------------------

static int compare_nodes(const void *a, const void *b) { return strcmp((*(const Node *const *)a)->name, (*(const Node *const *)b)->name); }

static Status check_node_names(const Graph *g, Arena *arena) {
  const Node **sorted = ARENA_ARRAY(arena, const Node *, g->n_nodes);
  for (size_t i = 0; i < g->n_nodes; i++) sorted[i] = g->nodes[i];
  if (g->n_nodes) qsort(sorted, g->n_nodes, sizeof *sorted, compare_nodes);
  for (size_t i = 1; i < g->n_nodes; i++)
    if (!strcmp(sorted[i - 1]->name, sorted[i]->name))
      FAIL(MALFORMED, sorted[i]->name, "two nodes have this name: %u and %u", sorted[i - 1]->id, sorted[i]->id);
  return STATUS_OK;
}

static Status check_lists(const Graph *g, Arena *arena) {
  bool *is_input = ARENA_ARRAY(arena, bool, g->n_values);
  for (size_t i = 0; i < g->n_inputs; i++) {
    const Value *v = g->inputs[i];
    if (!has_value(g, v)) BAD_VALUE(v, "is an input that is not in the graph");
    if (v->role != ROLE_INPUT) BAD_VALUE(v, "is an input and has the role %s", role_name(v->role));
    if (is_input[v->id]) BAD_VALUE(v, "is an input twice");
    is_input[v->id] = true;
  }
  for (size_t i = 0; i < g->n_values; i++)
    if (g->values[i]->role == ROLE_INPUT && !is_input[i])
      BAD_VALUE(g->values[i], "has the role input and is none of the graph's inputs");
  for (size_t i = 0; i < g->n_outputs; i++)
    if (!has_value(g, g->outputs[i])) BAD_VALUE(g->outputs[i], "is an output that is not in the graph");
  const struct { const char *what; const Value *value; } reports[] = {
      {"loss", g->loss}, {"loss count", g->loss_count},
      {"reported loss", g->loss_report}, {"reported norm", g->norm_report}, {"inverse count", g->inverse_count}};
  for (size_t i = 0; i < sizeof reports / sizeof *reports; i++)
    if (reports[i].value && !has_value(g, reports[i].value))
      BAD_VALUE(reports[i].value, "is the %s and not in the graph", reports[i].what);
  return STATUS_OK;
}

static Status check_tables(const Graph *g) {
  for (size_t i = 0; i < g->n_savings; i++) {
    TRY(check_index(NULL, "saving: bucket", g->savings[i].bucket, g->n_buckets));
    if (g->savings[i].bytes < 0) FAIL(MALFORMED, NULL, "saving %zu is of %" PRId64 " bytes", i, g->savings[i].bytes);
  }
  for (size_t i = 0; i < g->n_buckets; i++) {
    const Bucket *b = &g->buckets[i];
    for (int k = 0; k < b->n_params; k++)
      if (b->starts[k] < 0 || b->starts[k] > b->elems || type_elems(&b->types[k]) > b->elems - b->starts[k])
        FAIL(MALFORMED, b->params[k], "its %" PRId64 " elements from %" PRId64 " on pass the end of bucket %zu at %" PRId64, type_elems(&b->types[k]), b->starts[k],
             i, b->elems);
  }
  for (size_t i = 0; i < g->n_buffers; i++) {
    const Buffer *b = &g->buffers[i];
    if (b->persistent) continue;
    if (b->first > b->last || b->last >= g->n_nodes) FAIL(MALFORMED, b->name, "its buffer lives from step %u to %u of %zu", b->first, b->last, g->n_nodes);
  }
  return STATUS_OK;
}

// What the rows say of the types, on a copy.
static Status check_types(const Graph *g, Arena *arena) {
  Graph *copy = graph_clone(g, arena);
  for (size_t i = 0; i < copy->n_nodes; i++) {
    Node *n = copy->nodes[i];
    TRY(node_infer(copy, n));
    for (int k = 0; k < n->n_outputs; k++) {
      if (!n->outputs[k]) continue;
      const Value *original = g->values[n->outputs[k]->id];
      if (type_equal(&n->outputs[k]->type, &original->type)) continue;
      char a[240], b[240];
      type_text(&original->type, a, sizeof a);
      FAIL(MALFORMED, n->name, "output '%s' is marked as %s; %s gives %s", original->name, a, n->op->name,
           type_text(&n->outputs[k]->type, b, sizeof b));
    }
  }
  return STATUS_OK;
}

static Status verify(const Graph *g, Arena *arena) {
  for (size_t i = 0; i < g->n_values; i++)
    if (g->values[i]->id != i) BAD_VALUE(g->values[i], "number %zu has id %u", i, g->values[i]->id);
  for (size_t i = 0; i < g->n_nodes; i++)
    if (g->nodes[i]->id != i) FAIL(MALFORMED, g->nodes[i]->name, "node %zu has id %u", i, g->nodes[i]->id);
  TRY(check_lists(g, arena));
  for (size_t i = 0; i < g->n_nodes; i++) TRY(check_node(g, g->nodes[i]));
  for (size_t i = 0; i < g->n_values; i++) TRY(check_value(g, g->values[i]));
  TRY(check_node_names(g, arena));
  TRY(check_tables(g));
  return g->facts & FACT_TYPED ? check_types(g, arena) : STATUS_OK;
}

static Status verify_guarded(const Graph *g, Arena *arena) {
  ARENA_GUARD(arena);
  ARENA_RETURN(arena, verify(g, arena));
}

Status verify_graph(const Graph *graph) {
  Arena *arena = arena_create(0);
  if (!arena) FAIL(RESOURCE, NULL, "out of memory while verifying graph '%s'", graph->name);
  Status s = verify_guarded(graph, arena);
  arena_destroy(arena);
  return s;
}
