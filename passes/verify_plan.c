#include "verify_plan.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/verify_graph.h"
#include "../kernels/kernel.h"
#include "../kernels/ops.h"
#include "verify_proof.h"

static const char *param_of(const Graph *g, const Node *node, const Value *value) {
  if (value && value->of) return value->of->name;
  if (value && value->bucket >= 0 && (size_t)value->bucket < g->n_buckets && g->buckets[value->bucket].n_params > 0)
    return g->buckets[value->bucket].params[0];
  if (value && value->role == ROLE_PARAM) return value->name;
  return node ? node->cause.param : NULL;
}

void proof_defect(Proof *proof, const char *code, const Node *node, const Value *value, const char *format, ...) {
  assert(plan_code_find(code));
  if (proof->n_defects >= PLAN_DEFECTS_MAX) return;
  char text[512];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  PlanDefect defect = {code, node ? (int64_t)node->id : -1, node ? node->op->name : NULL, param_of(proof->graph, node, value),
                       arena_string(proof->arena, text), proof->program};
  ARENA_PUSH(proof->arena, proof->defects, proof->n_defects, proof->capacity, defect);
}

// ---- Structure ----------------------------------------------------------------------------------------------------------------

static void check_node_structure(Proof *p, const Node *node, size_t at, Phase *phase) {
  const Graph *g = p->graph;
  if (node->id != at) proof_defect(p, "structure", node, NULL, "step '%s' stands at %zu but has id %u", node->name, at, node->id);
  if (node->phase < *phase)
    proof_defect(p, "structure", node, NULL, "step '%s' of phase %s follows one of phase %s", node->name, phase_name(node->phase), phase_name(*phase));
  else *phase = node->phase;
  if ((unsigned)node->queue >= QUEUE_COUNT) proof_defect(p, "structure", node, NULL, "step '%s' is on queue %d, which does not exist", node->name, (int)node->queue);
  for (int i = 0; i < node->n_inputs; i++) {
    const Value *v = node->inputs[i];
    if (v && v->producer && v->producer->id >= at)
      proof_defect(p, "structure", node, v, "step '%s' reads '%s' before step %u makes it", node->name, v->name, v->producer->id);
    if (v && v->producer && v->producer->phase > node->phase)
      proof_defect(p, "structure", node, v, "step '%s' reads '%s' of a later phase", node->name, v->name);
  }
  bool needs_region = node->guard != GUARD_NONE;
  if (needs_region && (node->region < 0 || (size_t)node->region >= g->n_buffers || g->buffers[node->region].scope != SCOPE_PROCESS))
    proof_defect(p, "structure", node, NULL, "step '%s' guards buffer %d, which is no buffer that ranks share", node->name, node->region);
  if (needs_region && g->recipe.processes > 1)
    proof_defect(p, "structure", node, NULL, "step '%s' guards a view, and no view reaches the shards of the other %d processes", node->name, g->recipe.processes - 1);
  if (node->guard == GUARD_READ_END && node->op != &op_Release)
    proof_defect(p, "structure", node, NULL, "step '%s' ends the reading of buffer %d; only a Release does", node->name, node->region);
}

static bool dtype_has_bytes(const Value *v) { return dtype_bytes(v->type.dtype) > 0; }

// A value lies inside its buffer for every rank.
static bool location_fits(Proof *p, const Value *v) {
  const Graph *g = p->graph;
  if (v->loc.buffer < 0) return false;
  if ((size_t)v->loc.buffer >= g->n_buffers) {
    proof_defect(p, "location", v->producer, v, "'%s' lies in buffer %d of %zu", v->name, v->loc.buffer, g->n_buffers);
    return false;
  }
  if (!dtype_has_bytes(v) || type_elems(&v->type) < 0) {
    proof_defect(p, "location", v->producer, v, "'%s' has no type", v->name);
    return false;
  }
  const Buffer *b = &g->buffers[v->loc.buffer];
  int64_t last, end;
  bool wraps = __builtin_mul_overflow(v->loc.rank_stride_bytes, (int64_t)(p->ranks - 1), &last) ||
               __builtin_add_overflow(last, v->loc.offset_bytes, &last) || __builtin_add_overflow(last, value_bytes(v), &end);
  if (wraps || v->loc.offset_bytes < 0 || v->loc.rank_stride_bytes < 0 || end > b->bytes) {
    proof_defect(p, "location", v->producer, v, "'%s' takes bytes [%" PRId64 ", %" PRId64 ") of the last rank; buffer '%s' has %" PRId64, v->name,
                 wraps ? -1 : last, wraps ? -1 : end, b->name, b->bytes);
    return false;
  }
  int64_t address = b->offset_bytes + v->loc.offset_bytes;
  if (address % dtype_bytes(v->type.dtype) || v->loc.rank_stride_bytes % dtype_bytes(v->type.dtype)) {
    proof_defect(p, "location", v->producer, v, "'%s' lies at %" PRId64 ", which is no multiple of its element size", v->name, address);
    return false;
  }
  return true;
}

static void check_buffers(Proof *p) {
  const Graph *g = p->graph;
  for (size_t i = 0; i < g->n_buffers; i++) {
    const Buffer *b = &g->buffers[i];
    int64_t end;
    if (b->bytes < 0 || b->offset_bytes < 0 || b->offset_bytes % BUFFER_ALIGN_BYTES || __builtin_add_overflow(b->offset_bytes, b->bytes, &end))
      proof_defect(p, "location", NULL, NULL, "buffer '%s' of %" PRId64 " bytes at %" PRId64 " is no aligned part of an arena", b->name, b->bytes,
                   b->offset_bytes);
  }
}

// Ends `status`; that memory ran out says nothing about the plan, and is what verify_plan returns.
static void refuse(Proof *p, Status status) {
  if (status_code(status) == STATUS_RESOURCE && !p->refused) p->refused = status;
  else status_free(status);
}

static void check_workspace(Proof *p, const Node *node, Isa isa) {
  const Graph *g = p->graph;
  const int32_t buffers[2] = {node->workspace, node->scratch};
  for (int i = 0; i < 2; i++)
    if (buffers[i] >= 0 && (size_t)buffers[i] >= g->n_buffers) {
      proof_defect(p, "workspace", node, NULL, "step '%s' uses buffer %d of %zu", node->name, buffers[i], g->n_buffers);
      return;
    } else if (buffers[i] >= 0 && p->ranks > 1 && g->buffers[buffers[i]].scope != SCOPE_RANK) {
      proof_defect(p, "workspace", node, NULL, "step '%s' has its %s in buffer '%s', which all ranks share", node->name, i ? "scratchpad" : "workspace",
                   g->buffers[buffers[i]].name);
    }
  KernelPrepare need = {.node = node, .isa = isa};
  Status status = kernel_temporaries(&need);
  if (status) {
    bool broken = status_code(status) == STATUS_MALFORMED;   // all else is not the plan's: this machine may lack what the plan was made for, or memory
    if (broken) proof_defect(p, "workspace", node, NULL, "step '%s': %s", node->name, status->what);
    refuse(p, status);
    return;
  }
  const int64_t wanted[2] = {need.workspace_bytes, need.scratch_bytes};
  for (int i = 0; i < 2; i++) {
    int64_t has = buffers[i] < 0 ? 0 : g->buffers[buffers[i]].bytes;
    if (has < wanted[i])
      proof_defect(p, "workspace", node, NULL, "step '%s' needs %" PRId64 " bytes of %s and has %" PRId64, node->name, wanted[i],
                   i ? "scratchpad" : "workspace", has);
  }
}

// What holds of every graph; then types are what the operators make them.
static bool check_graph(Proof *p) {
  Status status = verify_graph(p->graph);
  if (!status) return true;
  const Node *node = NULL;
  if (status_code(status) == STATUS_RESOURCE) {
    refuse(p, status);
    return false;
  }
  for (size_t i = 0; status->node && i < p->graph->n_nodes; i++)
    if (!strcmp(p->graph->nodes[i]->name, status->node)) node = p->graph->nodes[i];
  proof_defect(p, "graph", node, NULL, "%s%s%s", status->node ? status->node : "", status->node ? ": " : "", status->what);
  status_free(status);
  return false;
}

static void check_structure(Proof *p, bool typed) {
  const Graph *g = p->graph;
  Phase phase = PHASE_INIT;
  Isa isa = ISA_SCALAR;
  if (g->recipe.isa && !isa_from_name(g->recipe.isa, &isa)) proof_defect(p, "structure", NULL, NULL, "unknown instruction set '%s'", g->recipe.isa);
  size_t before = p->n_defects;
  check_buffers(p);
  for (size_t i = 0; i < g->n_nodes; i++) check_node_structure(p, g->nodes[i], i, &phase);
  p->sound = p->n_defects == before;
  for (size_t i = 0; i < g->n_values; i++) p->placed[i] = location_fits(p, g->values[i]);
  if (p->n_defects || !typed) return;      // sizes of hostile types must not reach the kernels
  for (size_t i = 0; i < g->n_nodes; i++) check_workspace(p, g->nodes[i], isa);
}

// ---- Agreement of collectives -------------------------------------------------------------------------------------------------

static bool is_op(const Node *node, const Op *op) { return node->op == op; }

static void check_collective(Proof *p, const Node *node) {
  const Graph *g = p->graph;
  int64_t axis = attr_int(node, "axis"), parts = attr_int(node, "parts"), bucket = attr_int(node, "bucket");
  if (axis < 0 || axis >= g->mesh.n_axes || g->mesh.axes[axis].size != parts) {
    proof_defect(p, "agreement", node, NULL, "step '%s' spans %" PRId64 " ranks of axis %" PRId64 "; the mesh has %d axes and %d ranks on it", node->name,
                 parts, axis, g->mesh.n_axes, axis >= 0 && axis < g->mesh.n_axes ? g->mesh.axes[axis].size : 0);
    return;
  }
  const Value *in = node->n_inputs ? node->inputs[0] : NULL, *out = node->n_outputs ? node->outputs[0] : NULL;
  if (!in || !out) {
    proof_defect(p, "agreement", node, in, "step '%s' has no input or no output", node->name);
    return;
  }
  int64_t a = type_elems(&in->type), b = type_elems(&out->type);
  bool fits = is_op(node, &op_AllGather)       ? b % parts == 0 && b / parts == a
              : is_op(node, &op_ReduceScatter) ? a % parts == 0 && a / parts == b
                                               : a == b;
  bool sums = is_op(node, &op_ReduceScatter) && out->type.dtype == dtype_of_sums(in->type.dtype);
  if (!fits || (in->type.dtype != out->type.dtype && !sums))
    proof_defect(p, "agreement", node, in, "step '%s' turns %" PRId64 " elements of %s into %" PRId64 " of %s over %" PRId64 " ranks", node->name, a,
                 dtype_name(in->type.dtype), b, dtype_name(out->type.dtype), parts);
  if (bucket < 0) return;
  if ((size_t)bucket >= g->n_buckets) {
    proof_defect(p, "agreement", node, in, "step '%s' names bucket %" PRId64 " of %zu", node->name, bucket, g->n_buckets);
    return;
  }
  int64_t whole = is_op(node, &op_AllGather) ? b : a;
  if (whole != g->buckets[bucket].elems)
    proof_defect(p, "agreement", node, in, "step '%s' moves %" PRId64 " elements; bucket %" PRId64 " has %" PRId64, node->name, whole, bucket,
                 g->buckets[bucket].elems);
}

// ---- Buckets and recipe ------------------------------------------------------------------------------------------------------------

static void check_bucket(Proof *p, size_t index) {
  const Graph *g = p->graph;
  const Bucket *b = &g->buckets[index];
  int64_t end = 0;
  if (b->shard_elems < 0 || b->shard_elems % CHUNK_ELEMS || b->elems != b->shard_elems * p->ranks)
    proof_defect(p, "bucket", NULL, NULL, "bucket %zu: %" PRId64 " elements are no %d shards of %" PRId64 " (whole chunks)", index, b->elems, p->ranks,
                 b->shard_elems);
  if (b->compute != b->dtype && !(b->trainable && b->dtype == DTYPE_F32 && dtype_of_sums(b->compute) == DTYPE_F32))
    proof_defect(p, "bucket", NULL, NULL, "bucket %zu: %s parameters cannot be read as %s; trained f32 ones can as f16 or bf16", index, dtype_name(b->dtype),
                 dtype_name(b->compute));
  for (int i = 0; i < b->n_params; i++) {
    int64_t start = b->starts[i], elems = type_elems(&b->types[i]);
    if (start < end || start % CHUNK_ELEMS || start > b->elems || elems > b->elems - start)
      proof_defect(p, "bucket", NULL, NULL, "bucket %zu: '%s' takes elements [%" PRId64 ", %" PRId64 "); the one before ends at %" PRId64 ", the bucket at %" PRId64,
                   index, b->params[i], start, start + elems, end, b->elems);
    end = start + elems;
  }
}

typedef struct Owned { const char *name; size_t bucket; } Owned;

static int by_name(const void *a, const void *b) {
  const Owned *x = a, *y = b;
  int order = strcmp(x->name, y->name);
  return order ? order : (x->bucket > y->bucket) - (x->bucket < y->bucket);
}

// Each parameter lies in one bucket, once.
static void check_owners(Proof *p) {
  const Graph *g = p->graph;
  size_t n = 0, all = 0;
  for (size_t b = 0; b < g->n_buckets; b++) all += (size_t)(g->buckets[b].n_params > 0 ? g->buckets[b].n_params : 0);
  Owned *owned = ARENA_ARRAY(p->arena, Owned, all);
  for (size_t b = 0; b < g->n_buckets; b++)
    for (int i = 0; i < g->buckets[b].n_params; i++) owned[n++] = (Owned){g->buckets[b].params[i], b};
  qsort(owned, n, sizeof *owned, by_name);
  for (size_t i = 1; i < n; i++)
    if (!strcmp(owned[i].name, owned[i - 1].name))
      proof_defect(p, "bucket", NULL, NULL, "'%s' is owned twice: in buckets %zu and %zu", owned[i].name, owned[i - 1].bucket, owned[i].bucket);
}

// ---- The whole ----------------------------------------------------------------------------------------------------------------

static void check_recipe(Proof *p) {
  const Recipe *r = &p->graph->recipe;
  const Value *seed = graph_find_value(p->graph, LOSS_SEED);
  if ((seed && seed->role == ROLE_CONTROL) != (r->loss_units > 0))
    proof_defect(p, "recipe", NULL, NULL, "the recipe says %g units of the loss, and gradients %s with a number that they are divided by", r->loss_units,
                 seed ? "begin" : "do not begin");
  int64_t ranks = mesh_ranks(&p->graph->mesh);
  if ((int64_t)r->processes * r->ranks_per_process != ranks)
    proof_defect(p, "recipe", NULL, NULL, "%d processes of %d ranks are not the %" PRId64 " ranks of the mesh", r->processes, r->ranks_per_process, ranks);
  if (r->zero >= 2 && r->reduce == REDUCE_STEP)
    proof_defect(p, "recipe", NULL, NULL, "stage %d never holds whole gradients, and the recipe reduces them once a step", r->zero);
  if (r->micro_per_rank < 1) proof_defect(p, "recipe", NULL, NULL, "%" PRId64 " micro-batches per rank", r->micro_per_rank);
}

static void check_budget(Proof *p) {
  for (int t = 0; t < TIER_COUNT; t++) {
    int64_t held = plan_process_bytes(p->graph, (Tier)t), allowed = plan_budget_bytes(p->graph, (Tier)t);
    if (held > allowed)
      proof_defect(p, "budget", NULL, NULL, "a process holds %" PRId64 " bytes of %s memory, the budget is %" PRId64, held, tier_name((Tier)t), allowed);
  }
}

static void check_bytes(Proof *p) {
  LedgerEntry *entries;
  size_t n = plan_ledger(p->graph, p->arena, &entries);
  PlanBytes bytes = plan_bytes(p->graph, p->arena);
  int64_t moved = 0;
  const char *axis = p->graph->mesh.n_axes ? p->graph->mesh.axes[0].name : "";      // the formula is of this one
  for (size_t i = 0; i < n; i++)
    if (ledger_in_formula(&entries[i]) && !strcmp(entries[i].axis, axis)) moved = bytes_add(moved, bytes_times(entries[i].bytes, entries[i].times));
  if (bytes_add(moved, bytes.saved_bytes) != bytes.formula_bytes)
    proof_defect(p, "bytes", NULL, NULL, "sent %" PRId64 " + saved %" PRId64 " bytes, the formula gives %" PRId64, moved, bytes.saved_bytes, bytes.formula_bytes);
}

static void prove(Proof *proof) {
  const Graph *program = proof->graph;
  proof->placed = ARENA_ARRAY(proof->arena, bool, program->n_values);
  if (proof->ranks < 1) {
    proof_defect(proof, "structure", NULL, NULL, "the mesh has %d ranks", proof->ranks);
    return;
  }
  proof_waits(proof);
  bool typed = check_graph(proof);
  check_structure(proof, typed);
  for (size_t i = 0; i < program->n_nodes; i++)
    if (program->nodes[i]->op->flags & OP_COLLECTIVE) check_collective(proof, program->nodes[i]);
  for (size_t b = 0; b < program->n_buckets; b++) check_bucket(proof, b);
  check_owners(proof);
  check_recipe(proof);
  if (proof->sound) proof_tiers(proof);
  if (proof->sound) proof_ownership(proof);
  if (proof->sound) proof_recompute(proof);
  if (proof->sound) proof_memory(proof);
  if (proof->sound) proof_order(proof);
  if (!proof->n_defects) check_bytes(proof);
  if (proof->sound) check_budget(proof);
}

static void prove_programs(Proof *proof, const Graph *const *programs, int n) {
  bool sound = true;
  for (int p = 0; p < n; p++) {
    proof->graph = programs[p];
    proof->program = p;
    proof->ranks = programs[p]->mesh.n_axes ? programs[p]->mesh.axes[0].size : 1;
    proof->sound = false;
    prove(proof);
    sound &= proof->sound;
  }
  proof->graph = programs[0];
  proof->program = 0;
  if (sound) proof_programs(proof, programs, n);
}

static Status prove_guarded(Proof *proof, const Graph *const *programs, int n) {
  ARENA_GUARD(proof->arena);
  prove_programs(proof, programs, n);
  ARENA_RETURN(proof->arena, STATUS_OK);
}

Status verify_programs(const Graph *const *programs, int n, Arena *arena, const PlanDefect **out, size_t *n_out, PlanCounts *counts) {
  Proof proof = {.arena = arena};
  Status status = prove_guarded(&proof, programs, n);
  if (!status) status = proof.refused;
  else status_free(proof.refused);
  TRY(status);
  *out = proof.defects;
  *n_out = proof.n_defects;
  if (counts) *counts = proof.counts;
  return STATUS_OK;
}

Status verify_plan(const Graph *program, Arena *arena, const PlanDefect **out, size_t *n_out, PlanCounts *counts) {
  return verify_programs(&program, 1, arena, out, n_out, counts);
}
