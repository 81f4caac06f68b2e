// merge_common: of nodes that compute the same from the same inputs the first stays; of equal constants likewise. Names of the graph's inputs
// and outputs are kept: a node that gives an output is not merged into another.
#include <string.h>
#include <xxhash.h>

#include "../ir/op.h"
#include "pass_list.h"

typedef struct Merge {
  Graph *graph;
  Value **to;              // per value id: what replaces it; NULL: itself
  bool *kept;              // per value id: it is an output or a report of the graph
  void **slots;            // open addressing: Node * or Value *
  size_t capacity;
} Merge;

static bool plain(const Merge *m, const Value *v) {
  return v->role == ROLE_ACTIVATION && !v->carry && !v->of && v->loc.buffer < 0 && v->bucket < 0 && !m->kept[v->id];
}

// ---- Constants ----------------------------------------------------------------------------------------------------------------

static uint64_t hash_constant(const Value *v) {
  const Weight *w = v->weight;
  uint64_t seed = (uint64_t)v->type.dtype * 31 + (uint64_t)v->type.rank;
  seed = XXH3_64bits_withSeed(v->type.dims, sizeof v->type.dims[0] * (size_t)v->type.rank, seed);
  if (w->bytes && type_bytes(&w->type) <= WEIGHT_COMPARE_BYTES_MAX) return XXH3_64bits_withSeed(w->bytes, (size_t)type_bytes(&w->type), seed);
  return w->path ? XXH3_64bits_withSeed(w->path, strlen(w->path), seed + (uint64_t)w->offset_bytes) : seed;
}

static bool same_constant(const Value *a, const Value *b) {
  return type_equal(&a->type, &b->type) && type_equal(&a->weight->type, &b->weight->type) && weight_same_bytes(a->weight, b->weight);
}

static void merge_constants(Merge *m) {
  for (size_t i = 0; i < m->graph->n_values; i++) {
    Value *v = m->graph->values[i];
    if (v->role != ROLE_CONST || !v->weight || v->producer) continue;
    size_t slot = hash_constant(v) & (m->capacity - 1);
    while (m->slots[slot] && !same_constant(m->slots[slot], v)) slot = (slot + 1) & (m->capacity - 1);
    if (!m->slots[slot]) m->slots[slot] = v;
    else if (!m->kept[v->id]) m->to[i] = m->slots[slot];
  }
}

// ---- Nodes --------------------------------------------------------------------------------------------------------------------

static size_t item_bytes(AttrType type) { return type == ATTR_INTS ? sizeof(int64_t) : sizeof(float); }

static uint64_t hash_attr(const Node *n, const AttrSpec *s, uint64_t seed) {
  const void *at = (const char *)n->attrs + s->offset;
  switch (s->type) {
  case ATTR_INT: return XXH3_64bits_withSeed(at, sizeof(int64_t), seed);
  case ATTR_FLOAT: return XXH3_64bits_withSeed(at, sizeof(float), seed);
  case ATTR_INTS: case ATTR_FLOATS: {
    const AttrInts *list = at;
    return list->n ? XXH3_64bits_withSeed(list->items, (size_t)list->n * item_bytes(s->type), seed) : seed;
  }
  default: return seed;   // strings and tensors: compared, not hashed
  }
}

static uint64_t hash_node(const Node *n) {
  uint32_t head[] = {(uint32_t)n->phase, (uint32_t)n->n_inputs, (uint32_t)n->n_outputs};
  uint64_t h = XXH3_64bits_withSeed(head, sizeof head, XXH3_64bits(n->op->name, strlen(n->op->name)));
  for (int i = 0; i < n->n_inputs; i++) {
    uint32_t id = n->inputs[i] ? n->inputs[i]->id : UINT32_MAX;
    h = XXH3_64bits_withSeed(&id, sizeof id, h);
  }
  for (const AttrSpec *s = n->op->attrs; s && s->name; s++) h = hash_attr(n, s, h);
  return h;
}

static bool same_node(const Node *a, const Node *b) {
  if (a->op != b->op || a->phase != b->phase || a->n_inputs != b->n_inputs || a->n_outputs != b->n_outputs) return false;
  for (int i = 0; i < a->n_inputs; i++)
    if (a->inputs[i] != b->inputs[i]) return false;
  for (int i = 0; i < a->n_outputs; i++)
    if (!a->outputs[i] != !b->outputs[i]) return false;
  for (const AttrSpec *s = a->op->attrs; s && s->name; s++)
    if (!attr_equal(a, b, s)) return false;
  return true;
}

static bool may_merge(const Merge *m, const Node *n) {
  if (n->recomputes || n->op->flags & (OP_RANDOM | OP_COLLECTIVE | OP_SIDE_EFFECT | OP_OPTIMIZER)) return false;
  for (int i = 0; i < n->n_outputs; i++)
    if (n->outputs[i] && !plain(m, n->outputs[i])) return false;
  return true;
}

static Value *replaced(const Merge *m, Value *v) { return v && m->to[v->id] ? m->to[v->id] : v; }

// True when an earlier node gives the same.
static bool merge_node(Merge *m, Node *n) {
  size_t slot = hash_node(n) & (m->capacity - 1);
  while (m->slots[slot] && !same_node(m->slots[slot], n)) slot = (slot + 1) & (m->capacity - 1);
  Node *first = m->slots[slot];
  if (!first) {
    m->slots[slot] = n;
    return false;
  }
  if (!may_merge(m, n)) return false;
  for (int i = 0; i < n->n_outputs; i++)
    if (n->outputs[i]) m->to[n->outputs[i]->id] = first->outputs[i];
  return true;
}

static void keep(Merge *m, const Value *v) {
  if (v) m->kept[v->id] = true;
}

static Status merge(Merge *m) {
  Graph *g = m->graph;
  Node **kept = ARENA_ARRAY(g->arena, Node *, g->n_nodes);
  size_t n_kept = 0;
  memset(m->slots, 0, sizeof *m->slots * m->capacity);
  for (size_t i = 0; i < g->n_nodes; i++) {
    Node *n = g->nodes[i];
    for (int k = 0; k < n->n_inputs; k++) n->inputs[k] = replaced(m, n->inputs[k]);
    bool fixed = n->op->flags & (OP_RANDOM | OP_COLLECTIVE | OP_SIDE_EFFECT | OP_OPTIMIZER);
    if (fixed || !merge_node(m, n)) kept[n_kept++] = n;
  }
  graph_set_nodes(g, kept, n_kept);
  return STATUS_OK;
}

Status pass_merge_common(Graph *graph, const CompileOptions *options) {
  Arena *arena = graph->arena;
  Merge m = {.graph = graph, .capacity = 64};
  while (m.capacity < 2 * (graph->n_values + graph->n_nodes + 1)) m.capacity *= 2;
  m.to = ARENA_ARRAY(arena, Value *, graph->n_values);
  m.kept = ARENA_ARRAY(arena, bool, graph->n_values);
  m.slots = ARENA_ARRAY(arena, void *, m.capacity);
  for (size_t i = 0; i < graph->n_outputs; i++) keep(&m, graph->outputs[i]);
  keep(&m, graph->loss);
  keep(&m, graph->loss_count);
  keep(&m, graph->loss_report);
  keep(&m, graph->norm_report);
  keep(&m, graph->inverse_count);
  merge_constants(&m);
  return merge(&m);
}
