// plan_memory: a place for every value. First values that share bytes are joined to buffers (views, in-place results, gradients produced inside
// their bucket, carried state); then buffers get offsets: persistent ones side by side, the others by liveness over the steps.
//
// A PROCESS buffer exists per parameter bucket at stage 3: the contiguous region of all shards, so that a gather is a view of it. Where ranks are in
// several processes no view can reach all shards: then these are RANK buffers, and what is gathered is copied into a PROCESS buffer, which lives until its
// release. Everything else is RANK: each rank has its own.
//
// A step of another queue than compute may run while the compute queue is at any of several steps: what it touches lives for all of them.
#include <assert.h>

#include "../kernels/kernel.h"
#include "../kernels/ops.h"
#include "memory_offsets.h"
#include "pass_list.h"
#include "queue_order.h"
#include "same_bytes.h"

// Who touches some bytes: per queue 1 + id of the last step (0: none), and the last compute step beside which any of them may run.
typedef struct Uses { uint32_t after[QUEUE_COUNT], last; } Uses;

typedef struct Memory {
  Graph *graph;
  size_t capacity, uses_capacity;      // of graph->buffers and buffer_uses
  Value **roots;               // per value: the value whose buffer it shares by structure; itself when none
  Uses *uses;                  // per value that is a root: of it and its views
  Uses *buffer_uses;           // per buffer: of all that has been placed in it so far
  size_t n_buffer_uses;
  QueueOrder order;
  uint32_t *begin, *end;       // per node: the first and the last compute step beside which it may run
  uint32_t micro_first;        // first node of phase micro
  int ranks;
  const Node **joins;          // per value: the Join that it is a part of; NULL: none
  int *parts;                  // and which part
  bool *pinned;                // per value: its place was fixed before its producer was reached (gradients inside buckets)
} Memory;

static Value *find_root(const Memory *m, const Value *v) { return m->roots[v->id]; }
static Uses *uses_of(Memory *m, const Value *v) { return &m->uses[find_root(m, v)->id]; }

// ---- How long values live -----------------------------------------------------------------------------------------------------

static void add_uses(Uses *uses, const Uses *more) {
  for (int q = 0; q < QUEUE_COUNT; q++)
    if (more->after[q] > uses->after[q]) uses->after[q] = more->after[q];
  if (more->last > uses->last) uses->last = more->last;
}

static void keep_to_the_end(Memory *m, const Value *v) {
  uint32_t n = (uint32_t)m->graph->n_nodes;
  if (v) add_uses(uses_of(m, v), &(Uses){.after[QUEUE_COMPUTE] = n, .last = n - 1});
}

// Gradients that live in another tier are read there.
static const Value *before_fetch(const Value *v) { return v->producer && v->producer->op == &op_Fetch ? v->producer->inputs[0] : v; }

static void find_uses(Memory *m) {
  Graph *g = m->graph;
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *n = g->nodes[i];
    Uses use = {.last = m->end[i]};
    use.after[n->queue] = n->id + 1;
    for (int k = 0; k < n->n_inputs + n->n_outputs; k++) {
      const Value *v = k < n->n_inputs ? n->inputs[k] : n->outputs[k - n->n_inputs];
      if (v) add_uses(uses_of(m, v), &use);
    }
  }
  // Readable after the step: what optimizers were given, and the reports.
  Value *const reports[] = {g->loss_report, g->norm_report, g->inverse_count};
  for (size_t i = 0; i < sizeof reports / sizeof *reports; i++) keep_to_the_end(m, reports[i]);
  for (size_t i = 0; i < g->n_nodes; i++)
    if (g->nodes[i]->op->flags & OP_OPTIMIZER) keep_to_the_end(m, before_fetch(g->nodes[i]->inputs[1]));
    else if (g->nodes[i]->op == &op_ClipValue) keep_to_the_end(m, g->nodes[i]->inputs[0]);
}

// ---- Buffers ------------------------------------------------------------------------------------------------------------------

static Category category_of(const Graph *g, const Value *v, uint32_t last) {
  if (v->producer && node_is_gather(v->producer)) return CATEGORY_GATHERED;
  if (v->producer && v->producer->op == &op_Fetch && v->bucket >= 0) return CATEGORY_BUCKETS;
  switch (v->role) {
  case ROLE_PARAM: case ROLE_NARROW: return CATEGORY_PARAMS;
  case ROLE_STATE: case ROLE_BUFFER: return CATEGORY_STATE;
  case ROLE_PARTIAL: return CATEGORY_PARTIAL;
  case ROLE_INPUT: return CATEGORY_INPUTS;
  case ROLE_CONST: return CATEGORY_CONSTS;
  case ROLE_CONTROL: return CATEGORY_CONTROL;
  case ROLE_GRAD:
    if (v->bucket < 0) return CATEGORY_ACTIVATIONS;
    return last < g->n_nodes && g->nodes[last]->phase == PHASE_UPDATE ? CATEGORY_GRADS : CATEGORY_BUCKETS;
  default: return CATEGORY_ACTIVATIONS;
  }
}

static int32_t add_buffer(Memory *m, Buffer b, const Uses *uses) {
  ARENA_PUSH(m->graph->arena, m->graph->buffers, m->graph->n_buffers, m->capacity, b);
  ARENA_PUSH(m->graph->arena, m->buffer_uses, m->n_buffer_uses, m->uses_capacity, *uses);
  return (int32_t)m->graph->n_buffers - 1;
}

// From step to step or from init: what only init touches is on its way to another tier.
static bool lives_on(const Memory *m, const Value *v) {
  if (v->role == ROLE_ACTIVATION && uses_of((Memory *)m, v)->last < m->micro_first) return false;
  return v->role == ROLE_PARAM || v->role == ROLE_STATE || v->role == ROLE_PARTIAL || v->role == ROLE_NARROW || v->role == ROLE_CONST || v->role == ROLE_BUFFER ||
         v->role == ROLE_CONTROL || (v->producer && v->producer->phase == PHASE_INIT);
}

static void new_buffer(Memory *m, Value *v, uint32_t first) {
  Graph *g = m->graph;
  const Uses *uses = uses_of(m, v);
  bool views = g->recipe.processes == 1 && v->tier == TIER_DEVICE;
  bool shared = m->ranks > 1 && views && (v->role == ROLE_PARAM || v->role == ROLE_NARROW) && v->placement[0].kind == PLACED_FLAT;
  bool gathered = g->recipe.ranks_per_process > 1 && v->producer && node_is_gather(v->producer);
  int64_t bytes = value_bytes(v);
  if (v->tier == TIER_NVME) bytes = (bytes + PLAN_PAGE_BYTES - 1) / PLAN_PAGE_BYTES * PLAN_PAGE_BYTES;
  Buffer b = {.name = v->name, .scope = shared || gathered ? SCOPE_PROCESS : SCOPE_RANK, .tier = v->tier, .bytes = shared ? bytes * m->ranks : bytes,
              .persistent = lives_on(m, v), .first = first, .last = uses->last < first ? first : uses->last};
  b.category = category_of(g, v, b.last);
  v->loc = (Location){add_buffer(m, b, uses), 0, shared ? bytes : 0};
}

// Something else is placed in the buffer, too.
static void share_buffer(Memory *m, int32_t index, const Uses *uses) {
  Buffer *b = &m->graph->buffers[index];
  if (uses->last > b->last) b->last = uses->last;
  add_uses(&m->buffer_uses[index], uses);
}

// Are all these uses, of other queues (`own`: and of the node's), over before the node starts, but for itself?
static bool others_ended(const Memory *m, const Node *n, const Uses *uses, bool own) {
  const uint32_t *ended = m->order.ended[n->id];
  for (int q = 0; q < QUEUE_COUNT; q++)
    if (q == (int)n->queue ? own && uses->after[q] > n->id + 1 : uses->after[q] > ended[q]) return false;
  return true;
}

// The value whose bytes `v` is, through views of the same size that this micro-batch makes; NULL where its place is decided elsewhere.
static Value *pinnable(const Memory *m, Value *v) {
  int64_t bytes = value_bytes(v);
  for (Value *at = v;;) {
    Node *p = at->producer;
    Alias view;
    if (!p || p->phase != PHASE_MICRO || m->pinned[at->id] || at->role == ROLE_CONST || at->carry) return NULL;
    if (node_alias(p, at->output_index, ALIAS_UPDATE, &view)) return NULL;
    if (!node_alias(p, at->output_index, ALIAS_VIEW, &view)) break;
    if (view.offset_bytes || view.rank_relative || value_bytes(p->inputs[view.input]) != bytes) return NULL;
    at = p->inputs[view.input];
  }
  Value *root = find_root(m, v);
  return m->pinned[root->id] || value_bytes(root) != bytes ? NULL : root;
}

// A gradient, and the chain of views that it is, can be produced where its bucket has room for it; so can a summand that it is written over.
static void pin_into_bucket(Memory *m, const Node *pack, int input) {
  Alias a;
  Value *v = pack->inputs[input];
  if (!pack->op->alias || !pack->op->alias(pack, 0, input, &a) || a.kind != ALIAS_PART) return;
  for (int k = 0; k < input; k++)
    if (pack->inputs[k] == v) return;
  const Node *reader = pack;
  while ((v = pinnable(m, v)) && others_ended(m, reader, uses_of(m, v), true)) {      // else somebody reads it when it is written over already
    m->pinned[v->id] = true;
    v->loc = (Location){pack->outputs[0]->loc.buffer, a.offset_bytes, 0};
    Buffer *b = &m->graph->buffers[v->loc.buffer];
    if (m->begin[v->producer->id] < b->first) b->first = m->begin[v->producer->id];
    share_buffer(m, v->loc.buffer, uses_of(m, v));
    Alias over;
    reader = v->producer;
    if (2 * value_bytes(v) < b->bytes) return;             // the bucket would lie there for the sake of little
    if (!node_alias(reader, v->output_index, ALIAS_INPLACE, &over) || over.rank_relative || value_bytes(reader->inputs[over.input]) != value_bytes(v)) return;
    v = reader->inputs[over.input];
  }
}

static void pin_gradients(Memory *m) {
  Graph *g = m->graph;
  for (size_t i = 0; i < g->n_nodes; i++) {
    Node *n = g->nodes[i];
    if (n->op != &op_Pack) continue;
    Value *root = find_root(m, n->outputs[0]);
    assert(root == n->outputs[0]);
    new_buffer(m, root, m->begin[n->id]);
    m->pinned[root->id] = true;
    for (int k = 0; k < n->n_inputs; k++) pin_into_bucket(m, n, k);
  }
}

// May output `o` overwrite an input that nobody reads later?
static bool place_over_input(Memory *m, const Node *n, int o) {
  Graph *g = m->graph;
  Value *v = n->outputs[o];
  for (int i = 0; n->op->alias && i < n->n_inputs; i++) {
    Value *in = n->inputs[i];
    Alias a;
    if (!in || in->loc.buffer < 0 || !n->op->alias(n, o, i, &a) || a.kind != ALIAS_INPLACE) continue;
    Buffer *b = &g->buffers[in->loc.buffer];
    if (b->persistent || b->scope != SCOPE_RANK || b->category == CATEGORY_INPUTS) continue;
    if (a.rank_relative) {       // the rank's own part of the input: only where the input lives on anyway
      if (n->phase != PHASE_UPDATE || in->loc.offset_bytes || !others_ended(m, n, &m->buffer_uses[in->loc.buffer], false)) continue;
      v->loc = (Location){in->loc.buffer, 0, value_bytes(v)};
    } else {
      if (in->loc.offset_bytes || in->loc.rank_stride_bytes || value_bytes(in) != b->bytes || value_bytes(v) != b->bytes) continue;
      if (!others_ended(m, n, &m->buffer_uses[in->loc.buffer], true)) continue;
      bool taken = false;        // by an earlier output of this node
      for (int k = 0; k < o; k++) taken |= n->outputs[k] && n->outputs[k]->loc.buffer == in->loc.buffer;
      if (taken) continue;
      v->loc = (Location){in->loc.buffer, 0, 0};
      b->category = category_of(g, v, uses_of(m, v)->last);
    }
    share_buffer(m, in->loc.buffer, uses_of(m, v));
    return true;
  }
  return false;
}

// A part of a Join is made where the whole has room for it, which is there from its first part on.
static void place_part(Memory *m, const Node *n, Value *v) {
  const Node *join = m->joins[v->id];
  Value *whole = join->outputs[0];
  Alias a = {.offset_bytes = 0};
  if (whole->loc.buffer < 0 && whole->carry) whole->loc = whole->carry->loc;
  if (whole->loc.buffer < 0) new_buffer(m, whole, m->begin[n->id]);
  join->op->alias(join, 0, m->parts[v->id], &a);
  v->loc = whole->loc;
  v->loc.offset_bytes += a.offset_bytes;
}

static void place_output(Memory *m, Node *n, int o) {
  Value *v = n->outputs[o];
  Alias a;
  if (!v || (m->pinned[v->id] && v->loc.buffer >= 0)) return;
  if (n->op == &op_Join) {       // what lay somewhere already has been joined there
    v->loc = n->inputs[0]->loc;
    return;
  }
  if (v->carry) {
    v->loc = v->carry->loc;
  } else if (node_is_gather_view(m->graph, n)) {
    v->loc = (Location){n->inputs[0]->loc.buffer, 0, 0};
    n->guard = GUARD_READ_BEGIN;
    n->region = v->loc.buffer;
  } else if (node_alias(n, o, ALIAS_VIEW, &a)) {
    const Location *in = &n->inputs[a.input]->loc;
    v->loc = (Location){in->buffer, in->offset_bytes + a.offset_bytes, in->rank_stride_bytes + (a.rank_relative ? value_bytes(v) : 0)};
  } else if (node_alias(n, o, ALIAS_UPDATE, &a)) {
    v->loc = n->inputs[a.input]->loc;
  } else if (m->joins[v->id]) {
    place_part(m, n, v);
  } else if (!place_over_input(m, n, o)) {
    new_buffer(m, v, m->begin[n->id]);
  }
}

static bool writes_region(const Graph *g, const Node *n, int32_t *region) {
  for (int o = 0; o < n->n_outputs && n->op != &op_Join && !node_is_gather(n); o++) {
    const Value *v = n->outputs[o];
    if (!v || v->loc.buffer < 0 || g->buffers[v->loc.buffer].scope != SCOPE_PROCESS || output_is_view(g, n, o)) continue;
    *region = v->loc.buffer;
    return true;
  }
  return false;
}

static Status place_temporaries(Memory *m, Node *n, Isa isa) {
  KernelPrepare p = {.node = n, .isa = isa};
  TRY(kernel_temporaries(&p));
  Buffer b = {.name = n->name, .scope = SCOPE_RANK, .first = m->begin[n->id], .last = m->end[n->id]};
  const Uses none = {.after = {0}};          // nothing else is ever placed there
  if (p.workspace_bytes) {
    b.category = CATEGORY_WORKSPACE;
    b.bytes = p.workspace_bytes;
    n->workspace = add_buffer(m, b, &none);
  }
  if (p.scratch_bytes) {
    b.category = CATEGORY_SCRATCH;
    b.bytes = p.scratch_bytes;
    n->scratch = add_buffer(m, b, &none);
  }
  return STATUS_OK;
}

// Values without producer: fed before the micro phase, written by the executor, or copied in at start.
static void place_sources(Memory *m) {
  Graph *g = m->graph;
  for (size_t i = 0; i < g->n_values; i++) {
    Value *v = g->values[i];
    bool micro = v->role == ROLE_INPUT || v->role == ROLE_CONST;
    if (!v->producer && v->loc.buffer < 0) new_buffer(m, v, micro ? m->micro_first : 0);
  }
}

// Fixed buffers come first in the list, so that their numbers (regions of guards, too) are the same in every variant of a plan.
static void number_fixed_first(Graph *g) {
  int32_t *moved = ARENA_ARRAY(g->arena, int32_t, g->n_buffers);
  Buffer *sorted = ARENA_ARRAY(g->arena, Buffer, g->n_buffers);
  int32_t n = 0;
  for (int fixed = 1; fixed >= 0; fixed--)
    for (size_t i = 0; i < g->n_buffers; i++) {
      if (buffer_is_fixed(g, &g->buffers[i]) != fixed) continue;
      sorted[n] = g->buffers[i];
      moved[i] = n++;
    }
  g->buffers = sorted;
  for (size_t i = 0; i < g->n_values; i++)
    if (g->values[i]->loc.buffer >= 0) g->values[i]->loc.buffer = moved[g->values[i]->loc.buffer];
  for (size_t i = 0; i < g->n_nodes; i++) {
    Node *node = g->nodes[i];
    if (node->region >= 0) node->region = moved[node->region];
    if (node->workspace >= 0) node->workspace = moved[node->workspace];
    if (node->scratch >= 0) node->scratch = moved[node->scratch];
  }
}

static void find_joins(Memory *m) {
  Graph *g = m->graph;
  m->joins = ARENA_ARRAY(g->arena, const Node *, g->n_values);
  m->parts = ARENA_ARRAY(g->arena, int, g->n_values);
  for (size_t i = 0; i < g->n_nodes; i++)
    for (int k = 0; g->nodes[i]->op == &op_Join && k < g->nodes[i]->n_inputs; k++) {
      m->joins[g->nodes[i]->inputs[k]->id] = g->nodes[i];
      m->parts[g->nodes[i]->inputs[k]->id] = k;
    }
}

// What is read from disk or written there lies at whole pages, so that it is moved without a copy: such buffers get room for that.
enum { PAGED_BYTES_MIN = 1 << 18 };

static const Value *paged_value(const Node *n) {
  const Value *from = n->op->flags & OP_TRANSFER ? n->inputs[0] : NULL, *to = from ? n->outputs[0] : NULL;
  const Value *here = !from ? NULL : to->tier == TIER_NVME ? from : from->tier == TIER_NVME ? to : NULL;
  return here && value_bytes(here) >= PAGED_BYTES_MIN ? here : NULL;
}

static bool *widen_to_pages(Graph *g) {
  bool *paged = ARENA_ARRAY(g->arena, bool, g->n_buffers);
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Value *v = paged_value(g->nodes[i]);
    if (!v || paged[v->loc.buffer] || g->buffers[v->loc.buffer].scope != SCOPE_RANK) continue;
    paged[v->loc.buffer] = true;
    g->buffers[v->loc.buffer].bytes += PLAN_PAGE_BYTES - BUFFER_ALIGN_BYTES;
  }
  return paged;
}

static void move_to_pages(Graph *g, const bool *paged) {
  for (size_t i = 0; i < g->n_values; i++) {
    Location *loc = &g->values[i]->loc;
    if (loc->buffer >= 0 && paged[loc->buffer]) loc->offset_bytes += (PLAN_PAGE_BYTES - g->buffers[loc->buffer].offset_bytes % PLAN_PAGE_BYTES) % PLAN_PAGE_BYTES;
  }
}

Status pass_plan_memory(Graph *graph, const CompileOptions *options) {
  Arena *arena = graph->arena;
  Memory m = {.graph = graph, .ranks = graph->mesh.n_axes ? graph->mesh.axes[0].size : 1};
  m.roots = same_bytes(graph, arena);
  m.uses = ARENA_ARRAY(arena, Uses, graph->n_values);
  m.pinned = ARENA_ARRAY(arena, bool, graph->n_values);
  find_joins(&m);
  m.order = queue_order_create(graph, arena);
  queue_order_follow(&m.order);
  queue_order_spans(&m.order, arena, &m.begin, &m.end);
  for (size_t i = 0; i < graph->n_values; i++) graph->values[i]->loc = (Location){-1, 0, 0};
  graph->buffers = NULL;
  graph->n_buffers = 0;
  while (m.micro_first < graph->n_nodes && graph->nodes[m.micro_first]->phase == PHASE_INIT) m.micro_first++;
  find_uses(&m);
  place_sources(&m);
  pin_gradients(&m);
  for (size_t i = 0; i < graph->n_nodes; i++) {
    Node *n = graph->nodes[i];
    n->guard = GUARD_NONE;
    n->region = n->workspace = n->scratch = -1;
    for (int o = 0; o < n->n_outputs; o++) place_output(&m, n, o);
    if (n->op == &op_Release && !node_is_gather_copy(graph, n->inputs[0]->producer)) {
      n->guard = GUARD_READ_END;
      n->region = n->inputs[0]->loc.buffer;
    } else if (n->guard == GUARD_NONE && writes_region(graph, n, &n->region)) {
      n->guard = GUARD_WRITE;
    }
    TRY(place_temporaries(&m, n, options->isa));
  }
  number_fixed_first(graph);
  const bool *paged = widen_to_pages(graph);
  memory_offsets(graph, options->variants);
  move_to_pages(graph, paged);
  return STATUS_OK;
}
