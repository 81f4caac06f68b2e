// The memory part of verify_plan: executes the steps on symbolic memory. Every byte of every arena is labelled with the value whose byte it
// holds; a step writes labels where its outputs lie and must find the labels of its inputs where those lie. Two steps of the training loop are
// run, after init, so that what is carried, and what an earlier iteration leaves, is seen too. Ranks run in any order relative to each other,
// so bytes that ranks share (PROCESS buffers) are checked by their guards.
//
// Of several processes a gather copies. Where its copy is shared by the ranks of a process, nothing but such gathers may write there, and all ranks of
// the process write alike: between entering and leaving a collective, in which all of them take part. Whoever has entered it has ended all that stands
// before it (proof_order), so that no other rank still reads what the gather writes over; and what it has written is seen by all labels.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../kernels/ops.h"
#include "same_bytes.h"
#include "verify_proof.h"

enum { LABEL_NOTHING = -1, LABEL_TEMPORARY = -2, N_SPACES = SCOPE_COUNT * TIER_COUNT };

typedef struct Segment { int64_t lo, hi, base; int32_t label; uint32_t step; } Segment;   // bytes [lo, hi) hold bytes [base, ...) of `label`

// One arena: disjoint segments, ascending. Bytes in none of them were never written.
typedef struct Space { Segment *items; size_t n, capacity; } Space;

typedef struct Range { Space *space; int64_t lo, hi; } Range;
typedef struct Content { int32_t label; int64_t base; } Content;     // what a value's bytes are called

typedef struct Memory {
  Proof *proof;
  int rank;
  bool all_parts;                  // a rank's own part of something stands for the parts of all ranks
  Space spaces[N_SPACES];
  Content *contents;               // per value
  bool *written;                   // per value: produced in this walk
  bool *open;                      // per buffer: its view, or its gathered copy, is being read
  bool *copied;                    // per buffer: a gather copies into it (of several processes)
  bool *told;                      // per node: its first memory defect has been said
} Memory;

// ---- Segments -----------------------------------------------------------------------------------------------------------------

static size_t first_ending_after(const Space *s, int64_t at) {
  size_t lo = 0, hi = s->n;
  while (lo < hi) {
    size_t mid = (lo + hi) / 2;
    if (s->items[mid].hi <= at) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

static void space_reserve(Arena *arena, Space *s, size_t more) {
  if (s->n + more <= s->capacity) return;
  size_t wider = 2 * (s->n + more) + 16;
  Segment *items = ARENA_ARRAY(arena, Segment, wider);
  if (s->n) memcpy(items, s->items, s->n * sizeof *items);
  s->items = items;
  s->capacity = wider;
}

static void space_write(Arena *arena, Range r, Content content, uint32_t step) {
  if (r.hi <= r.lo) return;
  Space *s = r.space;
  space_reserve(arena, s, 2);
  size_t first = first_ending_after(s, r.lo), end = first;
  Segment pieces[3];
  size_t n = 0;
  while (end < s->n && s->items[end].lo < r.hi) end++;
  if (end > first && s->items[first].lo < r.lo) {
    pieces[n] = s->items[first];
    pieces[n++].hi = r.lo;
  }
  pieces[n++] = (Segment){r.lo, r.hi, content.base, content.label, step};
  if (end > first && s->items[end - 1].hi > r.hi) {
    pieces[n] = s->items[end - 1];
    pieces[n].base += r.hi - pieces[n].lo;
    pieces[n++].lo = r.hi;
  }
  memmove(s->items + first + n, s->items + end, (s->n - end) * sizeof *s->items);
  memcpy(s->items + first, pieces, n * sizeof *pieces);
  s->n = s->n - (end - first) + n;
}

// Do the bytes hold `content`? Otherwise *out_wrong is the first segment that does not (step and label), label NOTHING for a hole.
static bool space_holds(const Range r, Content content, Segment *out_wrong) {
  int64_t at = r.lo;
  for (size_t i = first_ending_after(r.space, r.lo); at < r.hi; i++) {
    if (i >= r.space->n || r.space->items[i].lo > at) {
      *out_wrong = (Segment){.label = LABEL_NOTHING};
      return false;
    }
    const Segment *s = &r.space->items[i];
    if (s->label != content.label || s->base + (at - s->lo) != content.base + (at - r.lo)) {
      *out_wrong = *s;
      return false;
    }
    at = s->hi;
  }
  return true;
}

// ---- Where values lie and what their bytes are called -------------------------------------------------------------------------

static const Buffer *buffer_of(const Memory *m, const Value *v) { return &m->proof->graph->buffers[v->loc.buffer]; }
static bool is_shared(const Memory *m, const Value *v) { return m->proof->ranks > 1 && buffer_of(m, v)->scope == SCOPE_PROCESS; }
static bool is_placed(const Memory *m, const Value *v) { return v && m->proof->placed[v->id]; }

// Of a window of a rank's share the other ranks' windows are not between its ends: it stands for itself. Where it lies follows from its share, which does stand
// for all, and from the first, second and last ranks.
static Range range_of(Memory *m, const Value *v) {
  const Buffer *b = buffer_of(m, v);
  int64_t lo = b->offset_bytes + v->loc.offset_bytes + m->rank * v->loc.rank_stride_bytes;
  bool window = value_bytes(v) < v->loc.rank_stride_bytes;
  int64_t others = m->all_parts && !window ? (m->proof->ranks - 1) * v->loc.rank_stride_bytes : 0;
  return (Range){&m->spaces[b->scope * TIER_COUNT + b->tier], lo, lo + others + value_bytes(v)};
}

static Range buffer_range(Memory *m, int32_t index) {
  const Buffer *b = &m->proof->graph->buffers[index];
  return (Range){&m->spaces[b->scope * TIER_COUNT + b->tier], b->offset_bytes, b->offset_bytes + b->bytes};
}

static bool ranges_meet(Range a, Range b) { return a.space == b.space && a.lo < b.hi && b.lo < a.hi; }

// A shard in a shared buffer is named by its place in the whole, so that the shards of all ranks together are the whole.
static Content own_content(const Memory *m, const Value *v) {
  return (Content){(int32_t)v->id, is_shared(m, v) ? m->rank * v->loc.rank_stride_bytes : 0};
}

static void tell(Memory *m, const char *code, const Node *node, const Value *v, const char *what, const Segment *wrong) {
  if (node && m->told[node->id]) return;
  if (node) m->told[node->id] = true;
  const Graph *g = m->proof->graph;
  if (!wrong) {
    proof_defect(m->proof, code, node, v, "%s '%s' (rank %d): %s", node ? node->name : "the executor", v ? v->name : "", m->rank, what);
    return;
  }
  const char *by = wrong->label == LABEL_TEMPORARY ? "the workspace" : wrong->label >= 0 ? g->values[wrong->label]->name : "nothing";
  const char *writer = wrong->step < g->n_nodes ? g->nodes[wrong->step]->name : "the executor";
  proof_defect(m->proof, code, node, v, "%s reads '%s' (rank %d), whose bytes hold '%s', written by %s", node ? node->name : "the executor", v->name, m->rank,
               by, writer);
}

static void check_holds(Memory *m, const Node *node, const Value *v) {
  if (!is_placed(m, v) || value_bytes(v) == 0) return;
  Segment wrong;
  m->proof->counts.reads++;
  if (space_holds(range_of(m, v), m->contents[v->id], &wrong)) return;
  if (wrong.label == LABEL_NOTHING) tell(m, "uninitialized", node, v, "reads bytes that nothing has written", NULL);
  else tell(m, "overwritten", node, v, NULL, &wrong);
}

static void write_value(Memory *m, const Value *v, uint32_t step) {
  if (!is_placed(m, v)) return;
  Range r = range_of(m, v);
  Content content = own_content(m, v);
  m->contents[v->id] = content;
  m->written[v->id] = true;
  if (is_shared(m, v) && v->loc.rank_stride_bytes == value_bytes(v)) {       // every rank writes its own part
    int64_t first = buffer_of(m, v)->offset_bytes + v->loc.offset_bytes;
    r.lo = first;
    r.hi = first + m->proof->ranks * v->loc.rank_stride_bytes;
    content.base = 0;
  }
  space_write(m->proof->arena, r, content, step);
}

// ---- Shared buffers -----------------------------------------------------------------------------------------------------------

static bool inside_own_shard(Memory *m, const Value *v) {
  const Buffer *b = buffer_of(m, v);
  int64_t shard = b->bytes / m->proof->ranks, lo = v->loc.offset_bytes + m->rank * v->loc.rank_stride_bytes;
  return lo >= m->rank * shard && lo + value_bytes(v) <= (m->rank + 1) * shard;
}

// Where a gather that copies puts its result; -1: the node is none.
static int32_t copies_into(const Memory *m, const Node *node) {
  bool copies = node_is_gather_copy(m->proof->graph, node) && node->n_outputs && is_placed(m, node->outputs[0]);
  return copies ? node->outputs[0]->loc.buffer : -1;
}

static void check_shared_read(Memory *m, const Node *node, const Value *v) {
  if (!is_placed(m, v) || m->open[v->loc.buffer]) return;
  if (!m->copied[v->loc.buffer] && (!is_shared(m, v) || inside_own_shard(m, v))) return;
  bool gathered = m->written[v->id];
  tell(m, gathered ? "use_after_release" : "use_before_gather", node, v, gathered ? "is read after its release" : "is read before it is gathered", NULL);
}

static void check_shared_write(Memory *m, const Node *node, const Value *v) {
  if (!is_placed(m, v) || !is_shared(m, v)) return;
  if (copies_into(m, node) >= 0 && !v->loc.rank_stride_bytes) return;
  if (m->proof->graph->recipe.processes > 1 || m->copied[v->loc.buffer] || !inside_own_shard(m, v))
    tell(m, "shared_write", node, v, "is written by every rank to the same bytes", NULL);
  else if (node->guard != GUARD_WRITE || node->region != v->loc.buffer) tell(m, "unguarded_write", node, v, "is written without a guard while others may read", NULL);
}

static void open_view(Memory *m, const Node *node, const Value *v, int32_t buffer) {
  if (m->open[buffer]) tell(m, "double_gather", node, v, "is gathered again before its release", NULL);
  m->open[buffer] = true;
}

static void close_view(Memory *m, const Node *node, const Value *v, int32_t buffer) {
  if (!m->open[buffer]) tell(m, "release_without_gather", node, v, "is released and was not gathered", NULL);
  m->open[buffer] = false;
}

static void follow_copy(Memory *m, const Node *node) {
  int32_t buffer = copies_into(m, node);
  const Value *v = node->n_inputs ? node->inputs[0] : NULL;
  if (buffer >= 0) open_view(m, node, v, buffer);
  else if (node->op == &op_Release && is_placed(m, v) && m->copied[v->loc.buffer]) close_view(m, node, v, v->loc.buffer);
}

static void follow_guard(Memory *m, const Node *node) {
  const Graph *g = m->proof->graph;
  follow_copy(m, node);
  if (node->guard == GUARD_NONE || node->region < 0 || (size_t)node->region >= g->n_buffers) return;
  const Value *v = node->n_inputs ? node->inputs[0] : NULL;
  if (node->guard == GUARD_READ_BEGIN) {
    open_view(m, node, v, node->region);
    if (node->op != &op_AllGather || !v || v->loc.buffer != node->region || node->n_outputs != 1 || !node->outputs[0] || node->outputs[0]->loc.buffer != node->region)
      tell(m, "structure", node, v, "is a view of another buffer than the guard's", NULL);
  } else if (node->guard == GUARD_READ_END) {
    close_view(m, node, v, node->region);
  } else if (m->open[node->region]) {
    tell(m, "write_while_open", node, v, "is written by a rank that still reads the gathered whole", NULL);
  }
}

// ---- One step -----------------------------------------------------------------------------------------------------------------

// Does the operator allow this output to share bytes with this input, lying as they do?
static bool sharing_allowed(Memory *m, const Node *node, int output, int input, Range out, Range in) {
  if (node->op == &op_AllGather) return in.lo == out.lo + m->rank * (in.hi - in.lo);      // the shard at its own place in the whole
  Alias a;
  if (!node->op->alias || !node->op->alias(node, output, input, &a)) return false;
  int64_t relative = a.rank_relative ? m->rank * (out.hi - out.lo) : 0;
  if (a.kind == ALIAS_PART) return in.lo == out.lo + a.offset_bytes;
  return a.kind != ALIAS_NONE && out.lo == in.lo + a.offset_bytes + relative;
}

static void check_sharing(Memory *m, const Node *node) {
  const int32_t temporaries[2] = {node->workspace, node->scratch};
  for (int o = 0; o < node->n_outputs; o++) {
    if (!is_placed(m, node->outputs[o])) continue;
    Range out = range_of(m, node->outputs[o]);
    for (int i = 0; i < node->n_inputs; i++)
      if (is_placed(m, node->inputs[i]) && ranges_meet(out, range_of(m, node->inputs[i])) && !sharing_allowed(m, node, o, i, out, range_of(m, node->inputs[i])))
        tell(m, "overlap", node, node->outputs[o], "shares bytes with an input although the operator does not allow it", NULL);
    for (int k = 0; k < o; k++)
      if (is_placed(m, node->outputs[k]) && ranges_meet(out, range_of(m, node->outputs[k])) && !(node->op->alias && node->op == &op_Unpack))
        tell(m, "overlap", node, node->outputs[o], "shares bytes with another output", NULL);
  }
  for (int t = 0; t < 2; t++) {
    if (temporaries[t] < 0 || (size_t)temporaries[t] >= m->proof->graph->n_buffers) continue;
    Range r = buffer_range(m, temporaries[t]);
    if (t && temporaries[0] >= 0 && (size_t)temporaries[0] < m->proof->graph->n_buffers && ranges_meet(r, buffer_range(m, temporaries[0])))
      tell(m, "overlap", node, NULL, "its workspace and its scratchpad share bytes", NULL);
    for (int i = 0; i < node->n_inputs + node->n_outputs; i++) {
      const Value *v = i < node->n_inputs ? node->inputs[i] : node->outputs[i - node->n_inputs];
      if (is_placed(m, v) && ranges_meet(r, range_of(m, v))) tell(m, "overlap", node, v, "shares bytes with the step's workspace", NULL);
    }
    space_write(m->proof->arena, r, (Content){LABEL_TEMPORARY, 0}, node->id);
  }
}

// An output that is bytes of an input where it lies: nothing is written, its bytes keep their name. False: a kernel writes it.
static bool follow_view(Memory *m, const Node *node, int output) {
  const Value *v = node->outputs[output];
  if (node->guard == GUARD_READ_BEGIN && node->op == &op_AllGather) {
    const Value *shard = node->inputs[0];
    if (!is_placed(m, shard)) return true;
    Range whole = range_of(m, v), part = range_of(m, shard);
    int64_t before = m->rank * value_bytes(shard);
    if (whole.lo + before != part.lo) tell(m, "alias", node, v, "does not lie where the shards do", NULL);
    m->contents[v->id] = (Content){m->contents[shard->id].label, m->contents[shard->id].base - before};
    m->written[v->id] = true;
    return true;
  }
  for (int i = 0; node->op->alias && i < node->n_inputs; i++) {
    const Value *in = node->inputs[i];
    Alias a;
    if (!is_placed(m, in) || !node->op->alias(node, output, i, &a) || a.kind != ALIAS_VIEW) continue;
    int64_t offset = a.offset_bytes + (a.rank_relative ? m->rank * value_bytes(v) : 0);
    if (range_of(m, v).space != range_of(m, in).space || range_of(m, v).lo != range_of(m, in).lo + offset) return false;   // it is copied
    m->contents[v->id] = (Content){m->contents[in->id].label, m->contents[in->id].base + offset};
    m->written[v->id] = true;
    return true;
  }
  return false;
}

// Windows joined where they lie: nothing is written, and their bytes are the whole's.
static bool follow_join(Memory *m, const Node *node) {
  const Value *whole = node->outputs[0];
  for (int i = 0; i < node->n_inputs; i++) {
    Alias a;
    if (node->op != &op_Join || !is_placed(m, node->inputs[i]) || !node->op->alias(node, 0, i, &a)) return false;
    Range part = range_of(m, node->inputs[i]), all = range_of(m, whole);
    if (part.space != all.space || part.lo != all.lo + a.offset_bytes) return false;
  }
  write_value(m, whole, node->id);
  return true;
}

static void run_step(Memory *m, const Node *node) {
  for (int i = 0; i < node->n_inputs; i++) {
    const Value *v = node->inputs[i];
    if (!v || node->op == &op_Release) continue;
    if (node->guard != GUARD_READ_BEGIN) check_shared_read(m, node, v);
    if (v->loc.buffer < 0 && !value_const(v)) tell(m, "location", node, v, "has no place in memory", NULL);
    check_holds(m, node, v);
  }
  follow_guard(m, node);
  if (node->guard != GUARD_READ_BEGIN) check_sharing(m, node);
  for (int o = 0; o < node->n_outputs; o++) {
    const Value *v = node->outputs[o];
    if (!v) continue;
    if (v->loc.buffer < 0) tell(m, "location", node, v, "has no place in memory", NULL);
    if (!is_placed(m, v) || follow_view(m, node, o) || follow_join(m, node)) continue;
    check_shared_write(m, node, v);
    write_value(m, v, node->id);
  }
}

// ---- The loop -----------------------------------------------------------------------------------------------------------------

static void feed(Memory *m, Role role) {
  const Graph *g = m->proof->graph;
  for (size_t i = 0; i < g->n_values; i++) {
    const Value *v = g->values[i];
    if (v->role == role && !v->producer && v->loc.buffer >= 0 && (role != ROLE_CONST || v->weight)) write_value(m, v, UINT32_MAX);
  }
}

// At the end of a phase its carried values become those that the next round reads.
static void carry_over(Memory *m, Phase phase) {
  const Graph *g = m->proof->graph;
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *node = g->nodes[i];
    if (node->phase != phase) continue;
    for (int o = 0; o < node->n_outputs; o++) {
      const Value *v = node->outputs[o], *to = v ? v->carry : NULL;
      if (!to || !is_placed(m, v) || !is_placed(m, to)) continue;
      if (v->loc.buffer != to->loc.buffer || v->loc.offset_bytes != to->loc.offset_bytes || v->loc.rank_stride_bytes != to->loc.rank_stride_bytes)
        tell(m, "carry", node, v, "does not lie where the value that it becomes is read", NULL);
      check_holds(m, node, v);
      write_value(m, to, node->id);
    }
  }
}

static void run_phase(Memory *m, Phase phase) {
  const Graph *g = m->proof->graph;
  for (size_t i = 0; i < g->n_nodes; i++)
    if (g->nodes[i]->phase == phase) run_step(m, g->nodes[i]);
  carry_over(m, phase);
  for (size_t b = 0; b < g->n_buffers; b++) {
    if (!m->open[b]) continue;
    m->open[b] = false;
    for (size_t i = 0; i < g->n_nodes; i++) {
      const Node *node = g->nodes[i];
      bool opens = copies_into(m, node) == (int32_t)b || (node->region == (int32_t)b && node->guard == GUARD_READ_BEGIN);
      if (opens && node->phase == phase)
        tell(m, "never_released", node, node->n_inputs ? node->inputs[0] : NULL, "is gathered and not released in the same phase", NULL);
    }
  }
}

// What is read after a step: reports, and the gradients that were given to the optimizer.
static const Value *kept(const Value *v) {       // gradients that live in another tier are read there
  return v->producer && v->producer->op == &op_Fetch && v->producer->inputs[0] ? v->producer->inputs[0] : v;
}

static void read_results(Memory *m) {
  const Graph *g = m->proof->graph;
  const Value *const reports[] = {g->loss_report, g->norm_report, g->inverse_count};
  for (size_t i = 0; i < sizeof reports / sizeof *reports; i++)
    if (reports[i]) check_holds(m, reports[i]->producer, reports[i]);
  for (size_t i = 0; i < g->n_nodes; i++)
    if ((g->nodes[i]->op->flags & OP_OPTIMIZER) && g->nodes[i]->n_inputs > 1 && g->nodes[i]->inputs[1]) check_holds(m, g->nodes[i], kept(g->nodes[i]->inputs[1]));
    else if (g->nodes[i]->op == &op_ClipValue && g->nodes[i]->inputs[0]) check_holds(m, g->nodes[i], g->nodes[i]->inputs[0]);
}

static void walk(Proof *proof, int rank, bool all_parts, bool *told) {
  const Graph *g = proof->graph;
  Memory m = {.proof = proof, .rank = rank, .all_parts = all_parts, .told = told};
  m.contents = ARENA_ARRAY(proof->arena, Content, g->n_values);
  m.written = ARENA_ARRAY(proof->arena, bool, g->n_values);
  m.open = ARENA_ARRAY(proof->arena, bool, g->n_buffers);
  m.copied = ARENA_ARRAY(proof->arena, bool, g->n_buffers);
  for (size_t i = 0; i < g->n_nodes; i++)
    if (copies_into(&m, g->nodes[i]) >= 0) m.copied[copies_into(&m, g->nodes[i])] = true;
  for (size_t i = 0; i < g->n_values; i++)
    if (proof->placed[i]) m.contents[i] = own_content(&m, g->values[i]);
  feed(&m, ROLE_CONST);
  run_phase(&m, PHASE_INIT);
  for (int step = 0; step < 2; step++) {
    feed(&m, ROLE_CONTROL);
    for (int j = 0; j < 2 && j < g->recipe.micro_per_rank; j++) {
      feed(&m, ROLE_INPUT);
      run_phase(&m, PHASE_MICRO);
    }
    run_phase(&m, PHASE_UPDATE);
    read_results(&m);
  }
}

static int by_place(const void *a, const void *b) {
  const Buffer *x = *(const Buffer *const *)a, *y = *(const Buffer *const *)b;
  if (x->tier != y->tier) return x->tier < y->tier ? -1 : 1;
  if (x->offset_bytes != y->offset_bytes) return x->offset_bytes < y->offset_bytes ? -1 : 1;
  return x < y ? -1 : x > y;
}

// Per buffer: does a gather copy into it?
static bool *find_copies(Proof *p) {
  const Graph *g = p->graph;
  bool *copied = ARENA_ARRAY(p->arena, bool, g->n_buffers);
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Value *v = node_is_gather_copy(g, g->nodes[i]) && g->nodes[i]->n_outputs ? g->nodes[i]->outputs[0] : NULL;
    if (v && p->placed[v->id]) copied[v->loc.buffer] = true;
  }
  return copied;
}

// Shared buffers are read and written by ranks that are at different steps: they may share bytes with nothing, ever. Where only gathers write them, the
// ranks meet: such buffers may lie over each other.
static void check_shared_buffers(Proof *p) {
  const Graph *g = p->graph;
  const bool *copied = find_copies(p);
  const Buffer **shared = ARENA_ARRAY(p->arena, const Buffer *, g->n_buffers), *widest[2] = {NULL};     // that reaches farthest so far: guarded, copied
  size_t n = 0;
  for (size_t i = 0; i < g->n_buffers; i++)
    if (g->buffers[i].scope == SCOPE_PROCESS && g->buffers[i].bytes) shared[n++] = &g->buffers[i];
  qsort(shared, n, sizeof *shared, by_place);
  for (size_t i = 0; i < n; i++) {
    const Buffer *b = shared[i];
    bool copy = copied[b - g->buffers];
    for (int k = 0; k < 2; k++) {
      const Buffer *before = widest[k];
      if (before && before->tier != b->tier) widest[k] = before = NULL;
      if (before && !(k && copy) && b->offset_bytes < before->offset_bytes + before->bytes)
        proof_defect(p, "overwritten", NULL, NULL, "shared buffers '%s' and '%s' overlap", before->name, b->name);
    }
    const Buffer **own = &widest[copy];
    if (!*own || b->offset_bytes + b->bytes > (*own)->offset_bytes + (*own)->bytes) *own = b;
  }
}

void proof_memory(Proof *proof) {
  const Graph *g = proof->graph;
  bool *told = ARENA_ARRAY(proof->arena, bool, g->n_nodes + 1);
  check_shared_buffers(proof);
  // Addresses are linear in the rank: of the first, the second and the last it is seen how values lie to each other. That nothing else lies over what is
  // some other rank's part is seen where the parts of all ranks are taken at once.
  const int ranks[] = {0, 1, proof->ranks - 1};
  for (int i = 0; i < 3; i++)
    if ((i == 0 || ranks[i] > ranks[i - 1]) && ranks[i] < proof->ranks) walk(proof, ranks[i], false, told);
  if (proof->ranks > 3) walk(proof, 0, true, told);
}
