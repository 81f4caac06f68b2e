#include "mutations.h"

#include <stdio.h>
#include <string.h>

#include "../../ir/op.h"
#include "../../kernels/ops.h"

uint64_t random_next(Random *r) {
  r->state += UINT64_C(0x9e3779b97f4a7c15);
  uint64_t z = r->state;
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

size_t random_below(Random *r, size_t n) { return n ? random_next(r) % n : 0; }

enum { TRIES = 300 };

static Node *any_node(Graph *g, Random *r) { return g->nodes[random_below(r, g->n_nodes)]; }
static Value *any_value(Graph *g, Random *r) { return g->values[random_below(r, g->n_values)]; }

// Around the model: what passes have put in.
static bool is_machinery(const Node *n) {
  static const char *const kinds[] = {"Load", "Fill", "Pack", "Unpack", "Release", "Shard", "TreeAccumulate", "LossPair", "LossMean", "SquaredNorm", "ClipScale"};
  if (n->phase != PHASE_MICRO || (n->op->flags & (OP_COLLECTIVE | OP_OPTIMIZER))) return true;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (!strcmp(n->op->name, kinds[i])) return true;
  return false;
}

static Node *any_machinery(Graph *g, Random *r) {
  for (int i = 0; i < TRIES; i++) {
    Node *n = any_node(g, r);
    if (is_machinery(n)) return n;
  }
  return NULL;
}

static Node *any_of(Graph *g, Random *r, const char *op) {
  size_t n = 0;
  for (size_t i = 0; i < g->n_nodes; i++) n += !strcmp(g->nodes[i]->op->name, op);
  if (!n) return NULL;
  size_t at = random_below(r, n);
  for (size_t i = 0; i < g->n_nodes; i++)
    if (!strcmp(g->nodes[i]->op->name, op) && at-- == 0) return g->nodes[i];
  return NULL;
}

static Value *any_like(Graph *g, Random *r, const Value *v) {
  for (int i = 0; i < TRIES; i++) {
    Value *w = any_value(g, r);
    if (w != v && w->type.dtype == v->type.dtype && type_same_shape(&w->type, &v->type)) return w;
  }
  return NULL;
}

static void renumber(Graph *g) {       // waits are ids: they follow their nodes
  uint32_t *moved = ARENA_ARRAY(g->arena, uint32_t, g->n_nodes + 2);
  for (size_t i = 0; i < g->n_nodes; i++) moved[g->nodes[i]->id] = (uint32_t)i;
  for (size_t i = 0; i < g->n_nodes; i++) {
    Node *n = g->nodes[i];
    uint32_t *waits = arena_copy(g->arena, n->waits, sizeof *waits * (size_t)n->n_waits);
    for (int w = 0; w < n->n_waits; w++) waits[w] = moved[waits[w]];
    n->waits = waits;
  }
  for (size_t i = 0; i < g->n_nodes; i++) g->nodes[i]->id = (uint32_t)i;
}

#define SAY(...) snprintf(what, WHAT_BYTES, __VA_ARGS__)

// ---- Steps --------------------------------------------------------------------------------------------------------------------

static void take_out(Graph *g, Node *n) {
  for (size_t i = 0; i < g->n_nodes; i++) {                    // nobody can wait for it any more
    Node *m = g->nodes[i];
    uint32_t *waits = arena_copy(g->arena, m->waits, sizeof *waits * (size_t)m->n_waits);
    int k = 0;
    for (int w = 0; w < m->n_waits; w++)
      if (waits[w] != n->id) waits[k++] = waits[w];
    m->waits = waits;
    m->n_waits = k;
  }
  size_t k = 0;
  for (size_t i = 0; i < g->n_nodes; i++)
    if (g->nodes[i] != n) g->nodes[k++] = g->nodes[i];
  g->n_nodes = k;
  renumber(g);
}

static bool drop_step(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Node *n = any_node(g, r);
  SAY("%s", n->name);
  for (int o = 0; o < n->n_outputs; o++)
    if (n->outputs[o]) n->outputs[o]->producer = NULL;
  take_out(g, n);
  return true;
}

static bool skip_step(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Node *n = any_machinery(g, r);
  if (!n || n->n_outputs < 1 || n->n_inputs < 1 || !n->outputs[0] || !n->inputs[0]) return false;
  SAY("%s", n->name);
  graph_replace_uses(g, n->outputs[0], n->inputs[0]);
  return true;
}

static void put(Graph *g, size_t from, size_t to) {
  Node *n = g->nodes[from];
  if (from < to) memmove(g->nodes + from, g->nodes + from + 1, (to - from) * sizeof *g->nodes);
  else memmove(g->nodes + to + 1, g->nodes + to, (from - to) * sizeof *g->nodes);
  g->nodes[to] = n;
  renumber(g);
}

static bool move_step(Graph *g, Random *r, char what[WHAT_BYTES]) {
  size_t from = random_below(r, g->n_nodes), to = from;
  for (int i = 0; i < TRIES && (to == from || g->nodes[to]->phase != g->nodes[from]->phase); i++) to = random_below(r, g->n_nodes);
  if (to == from) return false;
  SAY("%s to the place of %s", g->nodes[from]->name, g->nodes[to]->name);
  put(g, from, to);
  return true;
}

static bool swap_neighbours(Graph *g, Random *r, char what[WHAT_BYTES]) {
  size_t i = random_below(r, g->n_nodes - 1);
  SAY("%s and %s", g->nodes[i]->name, g->nodes[i + 1]->name);
  put(g, i, i + 1);
  return true;
}

static bool duplicate_step(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Node *n = random_below(r, 2) ? any_machinery(g, r) : any_node(g, r);
  if (!n || g->n_nodes + 1 > g->nodes_capacity + 1000) return false;
  SAY("%s", n->name);
  Node *again = graph_make_node(g, n->op, n->name, n->n_inputs, n->inputs, n->n_outputs, NULL);
  const char *name = again->name;
  Value **outputs = again->outputs;
  for (int o = 0; o < n->n_outputs; o++) {
    if (!n->outputs[o]) continue;
    const char *fresh = outputs[o]->name;
    uint32_t id = outputs[o]->id;
    *outputs[o] = *n->outputs[o];
    outputs[o]->name = fresh;
    outputs[o]->id = id;
    outputs[o]->producer = again;
    if (random_below(r, 2)) outputs[o]->carry = NULL;
  }
  void *attrs = n->attrs;
  Value **inputs = again->inputs;
  *again = *n;
  again->name = name;
  again->outputs = outputs;
  again->inputs = inputs;
  again->attrs = attrs;
  size_t at = n->id + 1;
  graph_append(g, again);
  put(g, g->n_nodes - 1, at);
  return true;
}

static bool change_phase(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Node *n = any_node(g, r);
  Phase phase = (Phase)((n->phase + 1 + random_below(r, PHASE_COUNT - 1)) % PHASE_COUNT);
  SAY("%s becomes %s", n->name, phase_name(phase));
  n->phase = phase;
  return true;
}

static bool change_operator(Graph *g, Random *r, char what[WHAT_BYTES]) {
  const Op *const others[] = {&op_AllReduce, &op_AllGather, &op_ReduceScatter, &op_Identity, &op_Shard, &op_Release, &op_Neg};
  Node *n = any_machinery(g, r);
  const Op *op = others[random_below(r, sizeof others / sizeof *others)];
  if (!n || n->op == op) return false;
  SAY("%s becomes %s", n->name, op->name);
  const Op *old = n->op;
  void *attrs = n->attrs;
  n->op = op;
  if (!((old->flags & OP_COLLECTIVE) && (op->flags & OP_COLLECTIVE))) attrs_reset(g, n);
  else n->attrs = attrs;
  return true;
}

// ---- What steps read ----------------------------------------------------------------------------------------------------------

static bool redirect_input(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Node *n = any_machinery(g, r);
  if (!n || !n->n_inputs) return false;
  int i = (int)random_below(r, (size_t)n->n_inputs);
  Value *v = n->inputs[i] ? any_like(g, r, n->inputs[i]) : NULL;
  if (!v) return false;
  SAY("%s reads '%s' and not '%s'", n->name, v->name, n->inputs[i]->name);
  n->inputs[i] = v;
  return true;
}

// A model's step takes what is no value of the model.
static bool redirect_model_input(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Node *n = any_node(g, r);
  if (is_machinery(n) || !n->n_inputs) return false;
  int i = (int)random_below(r, (size_t)n->n_inputs);
  for (int t = 0; n->inputs[i] && t < TRIES; t++) {
    Value *v = any_like(g, r, n->inputs[i]);
    if (!v || !v->producer || !is_machinery(v->producer) || !strcmp(v->producer->op->name, "Unpack") || v->role == ROLE_CONST) continue;
    SAY("%s reads '%s' and not '%s'", n->name, v->name, n->inputs[i]->name);
    n->inputs[i] = v;
    return true;
  }
  return false;
}

static bool exchange_inputs(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Node *n = any_machinery(g, r);
  if (!n || n->n_inputs < 2) return false;
  int i = (int)random_below(r, (size_t)n->n_inputs), k = (int)random_below(r, (size_t)n->n_inputs);
  if (i == k || n->inputs[i] == n->inputs[k]) return false;
  SAY("inputs %d and %d of %s", i, k, n->name);
  Value *v = n->inputs[i];
  n->inputs[i] = n->inputs[k];
  n->inputs[k] = v;
  return true;
}

static bool drop_input(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Node *n = any_machinery(g, r);
  if (!n || !n->n_inputs) return false;
  int i = (int)random_below(r, (size_t)n->n_inputs);
  SAY("input %d of %s", i, n->name);
  for (int k = i; k + 1 < n->n_inputs; k++) n->inputs[k] = n->inputs[k + 1];
  n->n_inputs--;
  return true;
}

static bool repeat_input(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Node *n = any_machinery(g, r);
  if (!n || !n->n_inputs) return false;
  SAY("%s", n->name);
  Value **inputs = ARENA_ARRAY(g->arena, Value *, n->n_inputs + 1);
  memcpy(inputs, n->inputs, sizeof *inputs * (size_t)n->n_inputs);
  inputs[n->n_inputs] = inputs[random_below(r, (size_t)n->n_inputs)];
  n->inputs = inputs;
  n->n_inputs++;
  return true;
}

static bool exchange_outputs(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Node *n = any_machinery(g, r);
  if (!n || n->n_outputs < 2) return false;
  int i = (int)random_below(r, (size_t)n->n_outputs), k = (i + 1) % n->n_outputs;
  if (!n->outputs[i] || !n->outputs[k]) return false;
  SAY("outputs %d and %d of %s", i, k, n->name);
  Value *v = n->outputs[i];
  n->outputs[i] = n->outputs[k];
  n->outputs[k] = v;
  n->outputs[i]->output_index = i;
  n->outputs[k]->output_index = k;
  return true;
}

// ---- Types and places ---------------------------------------------------------------------------------------------------------

static bool retype(Graph *g, Random *r, char what[WHAT_BYTES]) {
  static const Dtype dtypes[] = {DTYPE_F32, DTYPE_F64, DTYPE_I64, DTYPE_I32, DTYPE_BF16};
  Value *v = any_value(g, r);
  Dtype d = dtypes[random_below(r, sizeof dtypes / sizeof *dtypes)];
  if (v->weight || d == v->type.dtype) return false;
  SAY("'%s' becomes %s", v->name, dtype_name(d));
  v->type.dtype = d;
  return true;
}

static bool resize_value(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Value *v = any_value(g, r);
  if (v->weight || !v->type.rank) return false;
  int64_t *dim = &v->type.dims[random_below(r, (size_t)v->type.rank)], old = *dim;
  *dim = random_below(r, 3) == 0 ? old + 1 : random_below(r, 2) ? old / 2 : old * 2;
  SAY("'%s' has %lld and not %lld", v->name, (long long)*dim, (long long)old);
  return *dim != old;
}

static bool shift_value(Graph *g, Random *r, char what[WHAT_BYTES]) {
  static const int64_t by[] = {4, -4, 8, 64, -64, 256, 1024, 4096, -4096, 8192};
  Value *v = any_value(g, r);
  int64_t delta = by[random_below(r, sizeof by / sizeof *by)];
  if (v->loc.buffer < 0) return false;
  SAY("'%s' by %lld", v->name, (long long)delta);
  v->loc.offset_bytes += delta;
  return true;
}

static bool move_value(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Value *v = any_value(g, r);
  int32_t to = (int32_t)random_below(r, g->n_buffers);
  if (v->loc.buffer < 0 || v->loc.buffer == to) return false;
  SAY("'%s' to buffer '%s'", v->name, g->buffers[to].name);
  v->loc.buffer = to;
  return true;
}

static bool place_on_another(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Value *v = any_value(g, r), *w = any_like(g, r, v);
  if (!w || v->loc.buffer < 0 || !memcmp(&v->loc, &w->loc, sizeof v->loc)) return false;
  SAY("'%s' to where '%s' lies", v->name, w->name);
  v->loc = w->loc;
  return true;
}

static bool change_stride(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Value *v = any_value(g, r);
  if (v->loc.buffer < 0 || mesh_ranks(&g->mesh) < 2) return false;
  int64_t old = v->loc.rank_stride_bytes, size = value_bytes(v);
  v->loc.rank_stride_bytes = old ? (random_below(r, 2) ? 0 : old / 2) : random_below(r, 2) ? size : 64;
  SAY("'%s' from %lld to %lld", v->name, (long long)old, (long long)v->loc.rank_stride_bytes);
  return v->loc.rank_stride_bytes != old;
}

static bool shift_buffer(Graph *g, Random *r, char what[WHAT_BYTES]) {
  static const int64_t by[] = {64, -64, 128, 1024, -1024, 4096, -4096, 65536};
  size_t b = random_below(r, g->n_buffers);
  int64_t delta = by[random_below(r, sizeof by / sizeof *by)];
  if (g->buffers[b].offset_bytes + delta < 0) return false;
  SAY("'%s' by %lld", g->buffers[b].name, (long long)delta);
  g->buffers[b].offset_bytes += delta;
  return true;
}

static bool stack_buffers(Graph *g, Random *r, char what[WHAT_BYTES]) {
  size_t a = random_below(r, g->n_buffers), b = random_below(r, g->n_buffers);
  if (g->buffers[a].offset_bytes == g->buffers[b].offset_bytes || g->buffers[a].scope != g->buffers[b].scope) return false;
  SAY("'%s' to '%s'", g->buffers[a].name, g->buffers[b].name);
  g->buffers[a].offset_bytes = g->buffers[b].offset_bytes;
  return true;
}

static bool resize_buffer(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Buffer *b = &g->buffers[random_below(r, g->n_buffers)];
  int64_t old = b->bytes;
  b->bytes = random_below(r, 2) ? old - 1 - (int64_t)random_below(r, (size_t)(old > 1 ? old - 1 : 1)) : old + (int64_t)(1 + random_below(r, 200));
  if (b->bytes < 0) return false;
  SAY("'%s' from %lld to %lld", b->name, (long long)old, (long long)b->bytes);
  return true;
}

static bool change_buffer(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Buffer *b = &g->buffers[random_below(r, g->n_buffers)];
  int kind = (int)random_below(r, 3);
  SAY("%s of '%s'", kind == 0 ? "scope" : kind == 1 ? "tier" : "persistence", b->name);
  if (kind == 0) b->scope = b->scope == SCOPE_RANK ? SCOPE_PROCESS : SCOPE_RANK;
  else if (kind == 1) b->tier = TIER_HOST;
  else b->persistent = !b->persistent;
  return true;
}

static bool change_workspace(Graph *g, Random *r, char what[WHAT_BYTES]) {
  for (int i = 0; i < TRIES; i++) {
    Node *n = any_node(g, r);
    if (n->workspace < 0 && n->scratch < 0) continue;
    int32_t *at = n->workspace >= 0 ? &n->workspace : &n->scratch;
    *at = random_below(r, 3) ? (int32_t)random_below(r, g->n_buffers) : -1;
    SAY("%s uses buffer %d", n->name, *at);
    return true;
  }
  return false;
}

// ---- Guards, queues, waits ----------------------------------------------------------------------------------------------------

static Node *any_guard(Graph *g, Random *r) {
  for (int i = 0; i < TRIES; i++) {
    Node *n = any_node(g, r);
    if (n->guard != GUARD_NONE) return n;
  }
  return NULL;
}

static bool change_guard(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Node *n = any_guard(g, r);
  if (!n) return false;
  Guard old = n->guard;
  n->guard = (Guard)((n->guard + 1 + random_below(r, GUARD_COUNT - 1)) % GUARD_COUNT);
  if (n->guard == GUARD_NONE && random_below(r, 2)) n->region = -1;
  SAY("%s from %s to %s", n->name, guard_name(old), guard_name(n->guard));
  return true;
}

static bool change_region(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Node *n = any_guard(g, r);
  int32_t to = (int32_t)random_below(r, g->n_buffers);
  if (!n || n->region == to) return false;
  SAY("%s guards '%s'", n->name, g->buffers[to].name);
  n->region = to;
  return true;
}

static bool move_guard(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Node *n = any_guard(g, r), *m = any_node(g, r);
  if (!n || m->guard != GUARD_NONE) return false;
  SAY("from %s to %s", n->name, m->name);
  m->guard = n->guard;
  m->region = n->region;
  n->guard = GUARD_NONE;
  n->region = -1;
  return true;
}

static bool add_guard(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Node *n = any_guard(g, r), *m = any_node(g, r);
  if (!n || m->guard != GUARD_NONE) return false;
  m->guard = (Guard)(1 + random_below(r, GUARD_COUNT - 1));
  m->region = n->region;
  SAY("%s of '%s' to %s", guard_name(m->guard), g->buffers[m->region].name, m->name);
  return true;
}

static bool change_queue(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Node *n = any_node(g, r);
  n->queue = (Queue)((n->queue + 1 + random_below(r, QUEUE_COUNT - 1)) % QUEUE_COUNT);
  SAY("%s runs on %s", n->name, queue_name(n->queue));
  return true;
}

static bool change_wait(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Node *n = any_node(g, r);
  for (int i = 0; i < TRIES && !n->n_waits; i++) n = any_node(g, r);
  if (!n->n_waits) return false;
  uint32_t *waits = arena_copy(g->arena, n->waits, sizeof *waits * (size_t)n->n_waits);
  int at = (int)random_below(r, (size_t)n->n_waits);
  if (random_below(r, 2)) {
    SAY("%s does not wait for step %u", n->name, waits[at]);
    waits[at] = waits[--n->n_waits];
  } else {
    uint32_t old = waits[at];
    waits[at] = any_node(g, r)->id;
    SAY("%s waits for step %u and not %u", n->name, waits[at], old);
    if (waits[at] == old) return false;
  }
  n->waits = waits;
  return true;
}

// ---- Attributes of the machinery ----------------------------------------------------------------------------------------------

static bool change_collective(Graph *g, Random *r, char what[WHAT_BYTES]) {
  static const char *const kinds[] = {"param", "grad", "frozen", "control"};
  Node *n = NULL;
  for (int i = 0; i < TRIES && !(n && (n->op->flags & OP_COLLECTIVE)); i++) n = any_node(g, r);
  if (!n || !(n->op->flags & OP_COLLECTIVE)) return false;
  int which = (int)random_below(r, 4);
  int64_t ranks = attr_int(n, "parts"), bucket = attr_int(n, "bucket");
  SAY("%s of %s", which == 0 ? "axis" : which == 1 ? "parts" : which == 2 ? "bucket" : "kind", n->name);
  if (which == 0) attr_set(g, n, &(AttrInit)A_INT("axis", (int64_t)(1 + random_below(r, 3))));
  if (which == 1) attr_set(g, n, &(AttrInit)A_INT("parts", random_below(r, 2) ? 2 * ranks : ranks > 1 ? ranks / 2 : 3));
  if (which == 2) attr_set(g, n, &(AttrInit)A_INT("bucket", bucket < 0 ? 0 : random_below(r, 2) ? -1 : bucket + 1));
  const char *kind = kinds[random_below(r, 4)];
  if (which == 3 && !strcmp(kind, attr_string(n, "kind"))) return false;
  if (which == 3) attr_set(g, n, &(AttrInit)A_STRING("kind", kind));
  return true;
}

static bool change_list(Graph *g, Random *r, Node *n, const char *name, char what[WHAT_BYTES]) {
  AttrInts old = attr_ints(n, name);
  if (!old.n) return false;
  int64_t *items = arena_copy(g->arena, old.items, sizeof *items * (size_t)old.n);
  size_t at = random_below(r, (size_t)old.n);
  switch (random_below(r, 3)) {
  case 0: items[at] += 1024; break;
  case 1: items[at] += 1; break;
  default:
    if (items[at] == items[0]) return false;
    items[at] = items[0];
  }
  SAY("%s of %s: %lld and not %lld", name, n->name, (long long)items[at], (long long)old.items[at]);
  attr_set(g, n, &(AttrInit)A_INTS(name, items, old.n));
  return true;
}

static bool change_bucket_step(Graph *g, Random *r, char what[WHAT_BYTES]) {
  static const char *const ops[] = {"Pack", "Unpack", "Load"};
  const char *op = ops[random_below(r, 3)];
  Node *n = any_of(g, r, op);
  if (!n) return false;
  if (!strcmp(op, "Load") && random_below(r, 2)) {
    int64_t sharded = attr_int(n, "sharded");
    AttrStrings params = attr_strings(n, "params");
    if (params.n > 1 && random_below(r, 2)) {
      const char **names = arena_copy(g->arena, params.items, sizeof *names * (size_t)params.n);
      size_t at = 1 + random_below(r, (size_t)params.n - 1);
      const char *first = names[0];
      names[0] = names[at];
      names[at] = first;
      SAY("%s loads %s in the place of %s", n->name, names[0], first);
      attr_set(g, n, &(AttrInit)A_STRINGS("params", names, params.n));
      return true;
    }
    SAY("sharded of %s", n->name);
    attr_set(g, n, &(AttrInit)A_INT("sharded", !sharded));
    return true;
  }
  return change_list(g, r, n, !strcmp(op, "Unpack") && random_below(r, 2) ? "dims" : "starts", what);
}

// Where Adagrad's sums start is a number of the user's, as its rates are: a plan with another one is right, too.
static bool starts_as_asked(const Graph *g, const Value *state) {
  for (size_t i = 0; i < g->n_nodes; i++)
    for (int k = 0; k < g->nodes[i]->n_inputs; k++)
      if (g->nodes[i]->inputs[k] == state && strstr(g->nodes[i]->op->name, "Adagrad")) return true;
  return false;
}

static bool change_number(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Node *n;
  switch (random_below(r, 3)) {
  case 0:
    if (!(n = any_of(g, r, "TreeAccumulate"))) return false;
    attr_set(g, n, &(AttrInit)A_INT("count", attr_int(n, "count") * 2));
    break;
  case 1:
    if (!(n = any_of(g, r, "Shard"))) return false;
    attr_set(g, n, &(AttrInit)A_INT("parts", attr_int(n, "parts") * 2));
    break;
  default:
    if (!(n = any_of(g, r, "Fill")) || starts_as_asked(g, n->outputs[0])) return false;
    attr_set(g, n, &(AttrInit)A_STRING("value", "0.5"));
  }
  SAY("%s", n->name);
  return true;
}

// ---- What becomes what, what values are ---------------------------------------------------------------------------------------

static bool change_carry(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Value *v = any_value(g, r);
  for (int i = 0; i < TRIES && !v->carry; i++) v = any_value(g, r);
  if (!v->carry) return false;
  Value *to = random_below(r, 3) ? any_like(g, r, v) : NULL;
  if (to == v->carry) return false;
  SAY("'%s' becomes '%s' and not '%s'", v->name, to ? to->name : "nothing", v->carry->name);
  v->carry = to;
  return true;
}

static bool add_carry(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Value *v = any_value(g, r), *to = any_like(g, r, v);
  if (v->carry || !v->producer || !to) return false;
  SAY("'%s' becomes '%s'", v->name, to->name);
  v->carry = to;
  if (random_below(r, 2)) v->loc = to->loc;
  return true;
}

static bool change_label(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Value *v = any_value(g, r);
  for (int i = 0; i < TRIES && v->role == ROLE_ACTIVATION; i++) v = any_value(g, r);
  int which = (int)random_below(r, 5);
  static const char *const names[] = {"role", "bucket", "placement", "state name", "trainable"};
  SAY("%s of '%s'", names[which], v->name);
  if (which == 0) v->role = (Role)random_below(r, ROLE_COUNT);
  if (which == 1) v->bucket = v->bucket < 0 ? 0 : random_below(r, 2) ? -1 : (int32_t)random_below(r, g->n_buckets);
  if (which == 2) v->placement[0] = (Placement){(PlacementKind)random_below(r, PLACED_COUNT), 0};
  if (which == 3) v->state_name = random_below(r, 2) ? "other" : NULL;
  if (which == 4) v->trainable = !v->trainable;
  return true;
}

static bool change_report(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Value **const reports[] = {&g->loss_report, &g->norm_report, &g->inverse_count, &g->loss, &g->loss_count};
  Value **at = reports[random_below(r, 5)];
  Value *to = !*at ? NULL : random_below(r, 4) ? any_like(g, r, *at) : NULL;
  if (!*at) return false;
  SAY("'%s' is '%s'", (*at)->name, to ? to->name : "nothing");
  *at = to;
  return true;
}

// ---- Tables and recipe --------------------------------------------------------------------------------------------------------

static bool change_bucket(Graph *g, Random *r, char what[WHAT_BYTES]) {
  size_t index = random_below(r, g->n_buckets);
  Bucket *b = &g->buckets[index];
  if (!b->n_params) return false;
  b->starts = arena_copy(g->arena, b->starts, sizeof *b->starts * (size_t)b->n_params);
  b->params = arena_copy(g->arena, b->params, sizeof *b->params * (size_t)b->n_params);
  b->types = arena_copy(g->arena, b->types, sizeof *b->types * (size_t)b->n_params);
  int i = (int)random_below(r, (size_t)b->n_params), k = (int)random_below(r, (size_t)b->n_params), which = (int)random_below(r, 8);
  SAY("change %d of bucket %zu, parameters %d and %d", which, index, i, k);
  if (which == 0) b->starts[i] += CHUNK_ELEMS;
  if (which == 1) b->shard_elems += CHUNK_ELEMS, b->elems += CHUNK_ELEMS * mesh_ranks(&g->mesh);
  if (which == 2) b->elems -= CHUNK_ELEMS;
  if (which == 3) b->trainable = !b->trainable;
  if (which == 4) b->dtype = DTYPE_F64;
  if (which == 5) b->n_params--;
  if (which == 6) b->types[i].dims[0]++;
  if (which == 7) {
    if (i == k) return false;
    const char *name = b->params[i];
    b->params[i] = b->params[k];
    b->params[k] = name;
  }
  return true;
}

static bool drop_bucket(Graph *g, Random *r, char what[WHAT_BYTES]) {
  if (!g->n_buckets) return false;
  SAY("the last of %zu", g->n_buckets);
  g->n_buckets--;
  return true;
}

static bool change_recipe(Graph *g, Random *r, char what[WHAT_BYTES]) {
  Recipe *recipe = &g->recipe;
  int which = (int)random_below(r, 6);
  static const char *const names[] = {"stage", "reduce", "micro-batches", "ranks per process", "processes", "mesh"};
  SAY("%s", names[which]);
  if (which == 0) recipe->zero = (recipe->zero + 1 + (int)random_below(r, 3)) % 4;
  if (which == 1) recipe->reduce = recipe->reduce == REDUCE_MICRO ? REDUCE_STEP : REDUCE_MICRO;
  if (which == 2) recipe->micro_per_rank = random_below(r, 2) ? recipe->micro_per_rank + 1 : recipe->micro_per_rank * 2;
  if (which == 3) recipe->ranks_per_process *= 2;
  if (which == 4) recipe->processes *= 2;
  if (which == 5) g->mesh.axes[0].size *= 2;
  return true;
}

static bool change_saving(Graph *g, Random *r, char what[WHAT_BYTES]) {
  if (!g->n_savings) {
    g->savings = ARENA_ARRAY(g->arena, Saving, 1);
    g->savings[g->n_savings++] = (Saving){0, 4096, "nothing"};
    SAY("one more");
    return true;
  }
  size_t i = random_below(r, g->n_savings);
  SAY("saving %zu", i);
  if (random_below(r, 2)) g->savings[i].bytes += 64;
  else g->n_savings--;
  return true;
}

const Mutation mutations[] = {
    {"drop a step", drop_step, "nothing that lasts depends on it"},
    {"skip a step", skip_step, "nothing reads the output by name: it is what its carry or place makes it"},
    {"move a step", move_step, "the two orders are both topological, and no buffer is shared between"},
    {"exchange neighbours", swap_neighbours, "neither reads or overwrites what the other touches"},
    {"duplicate a step", duplicate_step, "computed again, from the same inputs to the same place"},
    {"change a phase", change_phase, "none"},
    {"change an operator", change_operator, "on one rank both give what they take"},
    {"redirect an input", redirect_input, "both values are the same bytes"},
    {"redirect a model's input", redirect_model_input, "both values are the same bytes"},
    {"exchange inputs", exchange_inputs, "the sum of squares is exact in any order"},
    {"drop an input", drop_input, "none"},
    {"repeat an input", repeat_input, "none"},
    {"exchange outputs", exchange_outputs, "none"},
    {"retype a value", retype, "none"},
    {"resize a value", resize_value, "none"},
    {"shift a value", shift_value, "its buffer has room there that is free at the time"},
    {"move a value", move_value, "the buffer has room that is free at the time"},
    {"place on another", place_on_another, "the other value is dead, or has no bytes"},
    {"change a stride", change_stride, "the buffer has room that is free at the time"},
    {"shift a buffer", shift_buffer, "the bytes are free at the time"},
    {"stack buffers", stack_buffers, "they live at different times"},
    {"resize a buffer", resize_buffer, "more or unused bytes at its end"},
    {"change a buffer", change_buffer, "how long it lives is derived from steps; one rank shares with nobody"},
    {"change a workspace", change_workspace, "another one that is large enough and free at the time"},
    {"change a guard", change_guard, "none"},
    {"change a region", change_region, "none"},
    {"move a guard", move_guard, "none"},
    {"add a guard", add_guard, "a write that writes nothing of the region, at a time when nobody reads it"},
    {"change a queue", change_queue, "ordered with all that touches its bytes"},
    {"change a wait", change_wait, "others imply the order"},
    {"change a collective", change_collective, "none"},
    {"change Load, Pack, Unpack", change_bucket_step, "on one rank a shard is the whole"},
    {"change a number", change_number, "partial sums are written before they are read, wherever they start"},
    {"change a carry", change_carry, "none"},
    {"add a carry", add_carry, "none"},
    {"change a label", change_label, "a mark that neither steps nor checkpoints read"},
    {"change a report", change_report, "the same value"},
    {"change a bucket", change_bucket, "none"},
    {"drop a bucket", drop_bucket, "none"},
    {"change the recipe", change_recipe, "the same on one rank, or with one micro-batch"},
    {"change a saving", change_saving, "none"},
    {NULL},
};
