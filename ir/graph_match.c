#include "graph_match.h"

#include <string.h>
#include <xxhash.h>

#include "op.h"
#include "sequence_match.h"

// What is known of one graph's nodes and values.
typedef struct Side {
  const Graph *graph;
  uint64_t *local;             // [nodes] operator, attributes, phase, types of results, leaves it reads
  uint64_t *structure;         // [nodes] `local` and, through the operands, all that comes before
  uint64_t *around;            // [nodes] `local` of the nodes up to two steps away, both ways
  uint32_t *first_use;         // [values + 1] into `uses`: which nodes read a value
  uint32_t *uses;              // nodes, with the position of the operand
  uint32_t *use_at;
  uint64_t *keys;              // [nodes] scratch
} Side;

typedef struct Matching {
  GraphMatch *match;
  Side a, b;
  Arena *arena;
  KeyAt *sorted_a, *sorted_b;  // scratch
  uint32_t *queue;             // nodes of `a` that were matched and whose neighbours are to be looked at; each once
  size_t n_queue, queue_capacity;
} Matching;

// ---- Signatures ---------------------------------------------------------------------------------------------------------------

static uint64_t hash_bytes(const void *at, size_t bytes) { return XXH3_64bits(at, bytes); }
static uint64_t hash_text(const char *text) { return text ? hash_bytes(text, strlen(text)) : 17; }

static uint64_t hash_type(const Type *type) {
  uint64_t h = hash_mix((uint64_t)type->dtype, (uint64_t)type->rank);
  for (int d = 0; d < type->rank; d++) h = hash_mix(h, (uint64_t)type->dims[d]);
  return h;
}

bool graph_match_skips(const char *attr) { return !strcmp(attr, "bucket") || !strcmp(attr, "fingerprint") || !strcmp(attr, "source"); }

static uint64_t hash_strings(const AttrStrings *s) {
  uint64_t h = (uint64_t)s->n;
  for (int64_t i = 0; i < s->n; i++) h = hash_mix(h, hash_text(s->items[i]));
  return h;
}

static uint64_t hash_attr(const Node *node, const AttrSpec *spec) {
  const void *at = (const char *)node->attrs + spec->offset;
  switch (spec->type) {
  case ATTR_INT: return (uint64_t)*(const int64_t *)at;
  case ATTR_FLOAT: return hash_bytes(at, sizeof(float));
  case ATTR_STRING: return hash_text(*(const char *const *)at);
  case ATTR_INTS: return hash_bytes(((const AttrInts *)at)->items, (size_t)((const AttrInts *)at)->n * sizeof(int64_t));
  case ATTR_FLOATS: return hash_bytes(((const AttrFloats *)at)->items, (size_t)((const AttrFloats *)at)->n * sizeof(float));
  case ATTR_STRINGS: return hash_strings(at);
  case ATTR_TENSOR: {
    const Weight *w = *(const Weight *const *)at;
    return !w ? 3 : w->bytes ? hash_bytes(w->bytes, (size_t)type_bytes(&w->type)) : hash_type(&w->type);
  }
  }
  return 0;
}

uint64_t graph_match_contents(const Value *v) {
  const Weight *w = value_const(v);
  return w && type_bytes(&w->type) <= GRAPH_MATCH_CONST_BYTES ? hash_bytes(w->bytes, (size_t)type_bytes(&w->type)) : 0;
}

// A value that no node gives. Buckets and their states are what they are of; constants are their contents.
static uint64_t hash_leaf(const Graph *g, const Value *v) {
  uint64_t h = hash_mix((uint64_t)v->role + 1, hash_type(&v->type));
  if (v->bucket >= 0 && (size_t)v->bucket < g->n_buckets && g->buckets[v->bucket].n_params)
    return hash_mix(hash_mix(h, hash_text(g->buckets[v->bucket].params[0])), hash_text(v->state_name));
  if (v->role == ROLE_CONST) return hash_mix(h, graph_match_contents(v));
  return hash_mix(h, hash_text(v->name));
}

static uint64_t hash_local(const Graph *g, const Node *n) {
  uint64_t h = hash_mix(hash_text(n->op->name), hash_text(n->op->domain));
  h = hash_mix(h, (uint64_t)n->phase * 2 + n->backward);
  for (const AttrSpec *s = n->op->attrs; s && s->name; s++)
    if (!graph_match_skips(s->name)) h = hash_mix(h, hash_attr(n, s));
  for (int i = 0; i < n->n_outputs; i++) h = hash_mix(h, n->outputs[i] ? hash_type(&n->outputs[i]->type) : 5);
  for (int i = 0; i < n->n_inputs; i++) {
    const Value *v = n->inputs[i];
    h = hash_mix(h, !v ? 7 : v->producer ? 11 : hash_leaf(g, v));
  }
  return h;
}

static void hash_structure(Side *s) {
  for (size_t i = 0; i < s->graph->n_nodes; i++) {
    const Node *n = s->graph->nodes[i];
    uint64_t h = s->local[i];
    for (int k = 0; k < n->n_inputs; k++) {
      const Value *v = n->inputs[k];
      if (v && v->producer) h = hash_mix(h, hash_mix(s->structure[v->producer->id], (uint64_t)v->output_index));
    }
    s->structure[i] = h;
  }
}

// One step outwards: operands in order, users as a sum, which knows no order.
static void hash_around(const Side *s, const uint64_t *from, uint64_t *to) {
  for (size_t i = 0; i < s->graph->n_nodes; i++) {
    const Node *n = s->graph->nodes[i];
    uint64_t h = from[i], users = 0;
    for (int k = 0; k < n->n_inputs; k++)
      if (n->inputs[k] && n->inputs[k]->producer) h = hash_mix(h, from[n->inputs[k]->producer->id] + (uint64_t)n->inputs[k]->output_index);
    for (int k = 0; k < n->n_outputs; k++) {
      if (!n->outputs[k]) continue;
      uint32_t id = n->outputs[k]->id;
      for (uint32_t u = s->first_use[id]; u < s->first_use[id + 1]; u++) users += hash_mix(from[s->uses[u]], s->use_at[u] * 64 + (uint64_t)k);
    }
    to[i] = hash_mix(h, users);
  }
}

static void list_uses(Side *s, Arena *arena) {
  const Graph *g = s->graph;
  size_t n_uses = 0;
  s->first_use = ARENA_ARRAY(arena, uint32_t, g->n_values + 2);
  for (size_t i = 0; i < g->n_nodes; i++)
    for (int k = 0; k < g->nodes[i]->n_inputs; k++)
      if (g->nodes[i]->inputs[k]) s->first_use[g->nodes[i]->inputs[k]->id + 2]++, n_uses++;
  for (size_t v = 0; v < g->n_values; v++) s->first_use[v + 2] += s->first_use[v + 1];
  s->uses = ARENA_ARRAY(arena, uint32_t, n_uses + 1);
  s->use_at = ARENA_ARRAY(arena, uint32_t, n_uses + 1);
  for (size_t i = 0; i < g->n_nodes; i++)
    for (int k = 0; k < g->nodes[i]->n_inputs; k++) {
      if (!g->nodes[i]->inputs[k]) continue;
      uint32_t at = s->first_use[g->nodes[i]->inputs[k]->id + 1]++;
      s->uses[at] = (uint32_t)i;
      s->use_at[at] = (uint32_t)k;
    }
}

static void fill_side(Side *s, const Graph *graph, Arena *arena) {
  size_t n = graph->n_nodes;
  *s = (Side){.graph = graph, .local = ARENA_ARRAY(arena, uint64_t, n + 1), .structure = ARENA_ARRAY(arena, uint64_t, n + 1),
              .around = ARENA_ARRAY(arena, uint64_t, n + 1), .keys = ARENA_ARRAY(arena, uint64_t, n + 1)};
  list_uses(s, arena);
  for (size_t i = 0; i < n; i++) s->local[i] = hash_local(graph, graph->nodes[i]);
  hash_structure(s);
  hash_around(s, s->local, s->keys);
  hash_around(s, s->keys, s->around);
}

// ---- Rounds -------------------------------------------------------------------------------------------------------------------

static void pair_nodes(Matching *m, uint32_t x, uint32_t y) {
  m->match->node_of_a[x] = (int32_t)y;
  m->match->node_of_b[y] = (int32_t)x;
  ARENA_PUSH(m->arena, m->queue, m->n_queue, m->queue_capacity, x);
}

static size_t list_unmatched(const Side *s, const int32_t *of, KeyAt *out) {
  size_t n = 0;
  for (size_t i = 0; i < s->graph->n_nodes; i++)
    if (of[i] < 0 && s->keys[i]) out[n++] = (KeyAt){s->keys[i], (uint32_t)i};
  sequence_sort_keys(out, n);
  return n;
}

static size_t run_end(const KeyAt *keys, size_t at, size_t n) {
  size_t end = at;
  while (end < n && keys[end].key == keys[at].key) end++;
  return end;
}

// By Side.keys (0: not in this round): the k-th with the k-th of equal keys; `uneven`: also where one side has more.
static void match_keys(Matching *m, bool uneven) {
  size_t na = list_unmatched(&m->a, m->match->node_of_a, m->sorted_a), nb = list_unmatched(&m->b, m->match->node_of_b, m->sorted_b);
  for (size_t i = 0, j = 0; i < na && j < nb;) {
    size_t i_end = run_end(m->sorted_a, i, na), j_end = run_end(m->sorted_b, j, nb);
    if (m->sorted_a[i].key != m->sorted_b[j].key) {
      if (m->sorted_a[i].key < m->sorted_b[j].key) i = i_end;
      else j = j_end;
      continue;
    }
    if (uneven || i_end - i == j_end - j)
      for (size_t k = 0; i + k < i_end && j + k < j_end; k++) pair_nodes(m, m->sorted_a[i + k].at, m->sorted_b[j + k].at);
    i = i_end;
    j = j_end;
  }
}

typedef uint64_t (*NodeKey)(const Side *, const Node *);

static void match_by(Matching *m, NodeKey key, bool uneven) {
  for (size_t i = 0; i < m->a.graph->n_nodes; i++) m->a.keys[i] = key(&m->a, m->a.graph->nodes[i]);
  for (size_t i = 0; i < m->b.graph->n_nodes; i++) m->b.keys[i] = key(&m->b, m->b.graph->nodes[i]);
  match_keys(m, uneven);
}

static uint64_t key_named_structure(const Side *s, const Node *n) {
  return hash_mix(hash_mix(s->structure[n->id], hash_text(n->origin)), hash_mix(hash_text(n->cause.param), hash_text(n->cause.node)));
}
static uint64_t key_structure(const Side *s, const Node *n) { return s->structure[n->id]; }
static uint64_t key_around(const Side *s, const Node *n) { return s->around[n->id]; }
static uint64_t key_origin_op(const Side *s, const Node *n) {
  (void)s;
  if (!n->origin && !n->cause.param) return 0;
  uint64_t h = hash_mix(hash_text(n->op->name), hash_mix(hash_text(n->origin), hash_text(n->cause.param)));
  return hash_mix(h, hash_mix(hash_text(n->cause.pass), (uint64_t)n->phase * 2 + n->backward));
}
static uint64_t key_origin(const Side *s, const Node *n) {
  (void)s;
  return n->origin ? hash_mix(hash_text(n->origin), n->backward) : 0;
}
static uint64_t key_cause(const Side *s, const Node *n) {
  (void)s;
  return n->cause.param ? hash_mix(hash_mix(hash_text(n->op->name), hash_text(n->cause.param)), (uint64_t)n->phase) : 0;
}
static uint64_t key_op(const Side *s, const Node *n) {
  (void)s;
  return hash_mix(hash_mix(hash_text(n->op->name), (uint64_t)n->phase * 2 + n->backward), hash_text(n->cause.param));
}
static uint64_t key_op_types(const Side *s, const Node *n) {
  uint64_t h = key_op(s, n);
  for (int i = 0; i < n->n_outputs; i++) h = hash_mix(h, n->outputs[i] ? hash_type(&n->outputs[i]->type) : 5);
  return h;
}

// Another operator in the same place: what is left between the same neighbours and gives the same types.
static uint64_t key_types(const Side *s, const Node *n) {
  if (!n->n_outputs || n->op->flags & OP_COLLECTIVE) return key_op(s, n);
  uint64_t h = (uint64_t)n->phase * 2 + n->backward;
  for (int i = 0; i < n->n_outputs; i++) h = hash_mix(h, n->outputs[i] ? hash_type(&n->outputs[i]->type) : 5);
  return h;
}

// Those between matched nodes, in order: matched ones have a key of their own.
static void match_between(Matching *m, NodeKey key) {
  size_t na = m->a.graph->n_nodes, nb = m->b.graph->n_nodes;
  for (size_t i = 0; i < na; i++) m->a.keys[i] = m->match->node_of_a[i] >= 0 ? hash_mix(1, i) : key(&m->a, m->a.graph->nodes[i]);
  for (size_t j = 0; j < nb; j++) {
    int32_t i = m->match->node_of_b[j];
    m->b.keys[j] = i >= 0 ? hash_mix(1, (uint64_t)i) : key(&m->b, m->b.graph->nodes[j]);
  }
  int32_t *partner = ARENA_ARRAY(m->arena, int32_t, na + 1);
  sequence_match(m->a.keys, na, m->b.keys, nb, m->arena, partner);
  for (size_t i = 0; i < na; i++)
    if (partner[i] >= 0 && m->match->node_of_a[i] < 0 && m->match->node_of_b[partner[i]] < 0) pair_nodes(m, (uint32_t)i, (uint32_t)partner[i]);
}

static bool may_pair(const Matching *m, const Node *x, const Node *y) {
  return x && y && x->op == y->op && x->phase == y->phase && x->backward == y->backward && m->match->node_of_a[x->id] < 0 && m->match->node_of_b[y->id] < 0;
}

enum { USERS_TRIED_MAX = 64 };     // of one value: constants are read by thousands of nodes

static void pair_users(Matching *m, const Value *v, const Value *w) {
  const Side *a = &m->a, *b = &m->b;
  uint32_t v_end = a->first_use[v->id + 1], w_end = b->first_use[w->id + 1];
  if (v_end - a->first_use[v->id] > USERS_TRIED_MAX || w_end - b->first_use[w->id] > USERS_TRIED_MAX) return;
  for (uint32_t u = a->first_use[v->id]; u < v_end; u++) {
    const Node *x = a->graph->nodes[a->uses[u]];
    for (uint32_t t = b->first_use[w->id]; t < w_end; t++) {
      const Node *y = b->graph->nodes[b->uses[t]];
      if (a->use_at[u] != b->use_at[t] || !may_pair(m, x, y)) continue;
      pair_nodes(m, x->id, y->id);
      break;
    }
  }
}

// From matched nodes to what gives their operands and what reads their results.
static void match_neighbours(Matching *m) {
  while (m->n_queue) {
    uint32_t at = m->queue[--m->n_queue];
    const Node *x = m->a.graph->nodes[at], *y = m->b.graph->nodes[m->match->node_of_a[at]];
    for (int i = 0; i < x->n_inputs && i < y->n_inputs; i++) {
      const Value *v = x->inputs[i], *w = y->inputs[i];
      if (v && w && v->producer && w->producer && v->output_index == w->output_index && may_pair(m, v->producer, w->producer))
        pair_nodes(m, v->producer->id, w->producer->id);
    }
    for (int i = 0; i < x->n_outputs && i < y->n_outputs; i++)
      if (x->outputs[i] && y->outputs[i]) pair_users(m, x->outputs[i], y->outputs[i]);
  }
}

static void match_nodes(Matching *m) {
  match_by(m, key_named_structure, false);
  match_by(m, key_structure, false);
  match_by(m, key_around, false);
  match_by(m, key_origin_op, false);
  match_neighbours(m);
  match_by(m, key_cause, true);
  match_between(m, key_op_types);
  match_neighbours(m);
  match_between(m, key_op);
  match_neighbours(m);
  match_by(m, key_origin, false);
  match_between(m, key_types);
}

// ---- Values, buckets, buffers -------------------------------------------------------------------------------------------------

static void pair_values(GraphMatch *m, const Value *v, const Value *w) {
  if (!v || !w || m->value_of_a[v->id] >= 0 || m->value_of_b[w->id] >= 0) return;
  m->value_of_a[v->id] = (int32_t)w->id;
  m->value_of_b[w->id] = (int32_t)v->id;
}

// A bucket goes to the one that holds its first parameter that none has gone to.
static void match_buckets(GraphMatch *m, Arena *arena) {
  size_t n = 0, capacity = 0;
  KeyAt *names = NULL;
  for (size_t k = 0; k < m->b->n_buckets; k++)
    for (int i = 0; i < m->b->buckets[k].n_params; i++) ARENA_PUSH(arena, names, n, capacity, ((KeyAt){hash_text(m->b->buckets[k].params[i]), (uint32_t)k}));
  sequence_sort_keys(names, n);
  for (size_t k = 0; k < m->a->n_buckets; k++)
    for (int i = 0; i < m->a->buckets[k].n_params && m->bucket_of_a[k] < 0; i++) {
      uint64_t key = hash_text(m->a->buckets[k].params[i]);
      size_t low = 0, high = n;
      while (low < high) {
        size_t middle = (low + high) / 2;
        if (names[middle].key < key) low = middle + 1;
        else high = middle;
      }
      if (low == n || names[low].key != key || m->bucket_of_b[names[low].at] >= 0) continue;
      m->bucket_of_a[k] = (int32_t)names[low].at;
      m->bucket_of_b[names[low].at] = (int32_t)k;
    }
}

static uint64_t leaf_key(const Graph *g, const int32_t *bucket_as_b, const Value *v) {
  if (v->bucket >= 0 && (size_t)v->bucket < g->n_buckets) {
    int32_t bucket = bucket_as_b ? bucket_as_b[v->bucket] : v->bucket;
    return bucket < 0 ? 0 : hash_mix(hash_mix((uint64_t)v->role + 100, (uint64_t)bucket), hash_text(v->state_name));
  }
  return hash_mix(1, hash_text(v->name));
}

static size_t list_leaves(const Graph *g, const int32_t *bucket_as_b, bool consts, KeyAt *out) {
  size_t n = 0;
  for (size_t i = 0; i < g->n_values; i++) {
    const Value *v = g->values[i];
    uint64_t key = v->producer || (v->role == ROLE_CONST) != consts ? 0 : leaf_key(g, bucket_as_b, v);
    if (key) out[n++] = (KeyAt){key, (uint32_t)i};
  }
  sequence_sort_keys(out, n);
  return n;
}

static void match_leaves(GraphMatch *m, bool consts, Arena *arena) {
  KeyAt *a = ARENA_ARRAY(arena, KeyAt, m->a->n_values + 1), *b = ARENA_ARRAY(arena, KeyAt, m->b->n_values + 1);
  size_t na = list_leaves(m->a, m->bucket_of_a, consts, a), nb = list_leaves(m->b, NULL, consts, b);
  for (size_t i = 0, j = 0; i < na && j < nb;) {
    if (a[i].key < b[j].key) i++;
    else if (a[i].key > b[j].key) j++;
    else pair_values(m, m->a->values[a[i++].at], m->b->values[b[j++].at]);
  }
}

// Leaves under other names: what matched nodes read in the same place.
static void match_operands(GraphMatch *m, bool consts) {
  for (size_t i = 0; i < m->a->n_nodes; i++) {
    if (m->node_of_a[i] < 0) continue;
    const Node *x = m->a->nodes[i], *y = m->b->nodes[m->node_of_a[i]];
    for (int k = 0; k < x->n_inputs && k < y->n_inputs; k++) {
      const Value *v = x->inputs[k], *w = y->inputs[k];
      if (v && w && !v->producer && !w->producer && v->role == w->role && (v->role == ROLE_CONST) == consts) pair_values(m, v, w);
    }
  }
}

static void match_values(GraphMatch *m, Arena *arena) {
  for (size_t i = 0; i < m->a->n_nodes; i++) {
    if (m->node_of_a[i] < 0) continue;
    const Node *x = m->a->nodes[i], *y = m->b->nodes[m->node_of_a[i]];
    for (int k = 0; k < x->n_outputs && k < y->n_outputs; k++) pair_values(m, x->outputs[k], y->outputs[k]);
  }
  match_leaves(m, false, arena);
  match_operands(m, false);
  match_operands(m, true);
  match_leaves(m, true, arena);
}

static void pair_buffers(GraphMatch *m, int32_t x, int32_t y) {
  if (x < 0 || y < 0 || (size_t)x >= m->a->n_buffers || (size_t)y >= m->b->n_buffers || m->buffer_of_a[x] >= 0 || m->buffer_of_b[y] >= 0) return;
  m->buffer_of_a[x] = y;
  m->buffer_of_b[y] = x;
}

static bool names_buffer(const Graph *g, const Value *v) {
  return v->loc.buffer >= 0 && (size_t)v->loc.buffer < g->n_buffers && !strcmp(v->name, g->buffers[v->loc.buffer].name);
}

// First by the values that they were made for, then by any, by the nodes' temporaries and by guarded regions.
static void match_buffers(GraphMatch *m) {
  for (int named = 1; named >= 0; named--)
    for (size_t i = 0; i < m->a->n_values; i++) {
      if (m->value_of_a[i] < 0) continue;
      const Value *v = m->a->values[i], *w = m->b->values[m->value_of_a[i]];
      if (!named || (names_buffer(m->a, v) && names_buffer(m->b, w))) pair_buffers(m, v->loc.buffer, w->loc.buffer);
    }
  for (size_t i = 0; i < m->a->n_nodes; i++) {
    if (m->node_of_a[i] < 0) continue;
    const Node *x = m->a->nodes[i], *y = m->b->nodes[m->node_of_a[i]];
    pair_buffers(m, x->workspace, y->workspace);
    pair_buffers(m, x->scratch, y->scratch);
    pair_buffers(m, x->region, y->region);
  }
}

static int32_t *no_partners(Arena *arena, size_t n) {
  int32_t *of = ARENA_ARRAY(arena, int32_t, n + 1);
  for (size_t i = 0; i < n; i++) of[i] = -1;
  return of;
}

GraphMatch *graph_match(const Graph *a, const Graph *b, Arena *arena) {
  GraphMatch *match = ARENA_NEW(arena, GraphMatch);
  *match = (GraphMatch){.a = a, .b = b, .node_of_a = no_partners(arena, a->n_nodes), .node_of_b = no_partners(arena, b->n_nodes),
                        .value_of_a = no_partners(arena, a->n_values), .value_of_b = no_partners(arena, b->n_values),
                        .bucket_of_a = no_partners(arena, a->n_buckets), .bucket_of_b = no_partners(arena, b->n_buckets),
                        .buffer_of_a = no_partners(arena, a->n_buffers), .buffer_of_b = no_partners(arena, b->n_buffers)};
  Matching m = {.match = match, .arena = arena, .sorted_a = ARENA_ARRAY(arena, KeyAt, a->n_nodes + 1), .sorted_b = ARENA_ARRAY(arena, KeyAt, b->n_nodes + 1)};
  fill_side(&m.a, a, arena);
  fill_side(&m.b, b, arena);
  match_nodes(&m);
  match_buckets(match, arena);
  match_values(match, arena);
  match_buffers(match);
  return match;
}

bool graph_match_values(const GraphMatch *m, const Value *a, const Value *b) { return a && b ? m->value_of_a[a->id] == (int32_t)b->id : !a && !b; }
