#include "verify_plan.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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
  if (proof->n_defects >= PLAN_DEFECTS_MAX) return;
  char text[512];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  PlanDefect defect = {code, node ? (int64_t)node->id : -1, node ? node->op->name : NULL, param_of(proof->graph, node, value),
                       arena_string(proof->arena, text)};
  ARENA_PUSH(proof->arena, proof->defects, proof->n_defects, proof->capacity, defect);
}

// ---- Structure ----------------------------------------------------------------------------------------------------------------

static void check_node_structure(Proof *p, const Node *node, size_t at, Phase *phase) {
  const Graph *g = p->graph;
  if (node->id != at) proof_defect(p, "structure", node, NULL, "step '%s' stands at %zu but has id %u", node->name, at, node->id);
  if (node->phase < *phase)
    proof_defect(p, "structure", node, NULL, "step '%s' of phase %s follows one of phase %s", node->name, phase_name(node->phase), phase_name(*phase));
  else *phase = node->phase;
  for (int i = 0; i < node->n_waits; i++)
    if (node->waits[i] >= at) proof_defect(p, "structure", node, NULL, "step '%s' waits for step %u, which does not come before it", node->name, node->waits[i]);
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

static void check_workspace(Proof *p, const Node *node, Isa isa) {
  const Graph *g = p->graph;
  const int32_t buffers[2] = {node->workspace, node->scratch};
  for (int i = 0; i < 2; i++)
    if (buffers[i] >= 0 && (size_t)buffers[i] >= g->n_buffers) {
      proof_defect(p, "workspace", node, NULL, "step '%s' uses buffer %d of %zu", node->name, buffers[i], g->n_buffers);
      return;
    }
  if (!node->op->workspace) return;
  KernelPrepare need = {.node = node, .isa = isa};
  Status status = node->op->workspace(&need);
  if (status) {
    char what[512];
    snprintf(what, sizeof what, "%s", status->what);
    bool memory = status->code == STATUS_RESOURCE;         // says nothing about the plan
    if (memory && !p->refused) p->refused = status;
    else status_free(status);
    if (!memory) proof_defect(p, "workspace", node, NULL, "step '%s': %s", node->name, what);
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

static void check_structure(Proof *p) {
  const Graph *g = p->graph;
  Phase phase = PHASE_INIT;
  Isa isa = ISA_SCALAR;
  if (g->recipe.isa && !isa_from_name(g->recipe.isa, &isa)) proof_defect(p, "structure", NULL, NULL, "unknown instruction set '%s'", g->recipe.isa);
  check_buffers(p);
  for (size_t i = 0; i < g->n_nodes; i++) check_node_structure(p, g->nodes[i], i, &phase);
  p->sound = p->n_defects == 0;
  for (size_t i = 0; i < g->n_values; i++) p->placed[i] = location_fits(p, g->values[i]);
  if (p->n_defects) return;      // sizes of hostile types must not reach the kernels
  for (size_t i = 0; i < g->n_nodes; i++) check_workspace(p, g->nodes[i], isa);
}

// ---- Agreement of collectives -------------------------------------------------------------------------------------------------

static bool is_op(const Node *node, const Op *op) { return node->op == op; }
static bool is_reduction(const Node *node) { return is_op(node, &op_ReduceScatter) || is_op(node, &op_AllReduce); }
static bool has_kind(const Node *node, const char *kind) {
  const char *k = attr_string(node, "kind");
  return k && !strcmp(k, kind);
}

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
  if (!fits || in->type.dtype != out->type.dtype)
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

// ---- Ownership ----------------------------------------------------------------------------------------------------------------

static void check_bucket(Proof *p, size_t index) {
  const Graph *g = p->graph;
  const Bucket *b = &g->buckets[index];
  int64_t end = 0;
  if (b->shard_elems < 0 || b->shard_elems % CHUNK_ELEMS || b->elems != b->shard_elems * p->ranks)
    proof_defect(p, "bucket", NULL, NULL, "bucket %zu: %" PRId64 " elements are no %d shards of %" PRId64 " (whole chunks)", index, b->elems, p->ranks,
                 b->shard_elems);
  for (int i = 0; i < b->n_params; i++) {
    int64_t start = b->starts[i], elems = type_elems(&b->types[i]);
    if (start < end || start % CHUNK_ELEMS || start > b->elems || elems > b->elems - start)
      proof_defect(p, "bucket", NULL, NULL, "bucket %zu: '%s' takes elements [%" PRId64 ", %" PRId64 "); the one before ends at %" PRId64 ", the bucket at %" PRId64,
                   index, b->params[i], start, start + elems, end, b->elems);
    end = start + elems;
    for (size_t j = 0; j <= index; j++)
      for (int k = 0; k < (j == index ? i : g->buckets[j].n_params); k++)
        if (!strcmp(g->buckets[j].params[k], b->params[i]))
          proof_defect(p, "bucket", NULL, NULL, "'%s' is owned twice: in buckets %zu and %zu", b->params[i], j, index);
  }
}

typedef struct GradPath { int reductions; bool incomplete, broken; const Node *pack; } GradPath;

// From the optimizer's gradient back to where the parameters' gradients are joined. An input of the node that carries the gradient on is
// always the first one.
static GradPath trace_gradient(const Proof *p, const Value *grad) {
  GradPath path = {0};
  const Node *micro_reduction = NULL;
  for (size_t hops = 0; grad && grad->producer; hops++) {
    const Node *node = grad->producer;
    if (hops > p->graph->n_nodes || node->n_inputs == 0) {
      path.broken = true;
      return path;
    }
    if (is_op(node, &op_Pack)) {
      path.pack = node;
      return path;
    }
    if (is_reduction(node)) {
      path.reductions++;
      if (node->phase == PHASE_MICRO) micro_reduction = node;
    } else if (is_op(node, &op_TreeAccumulate)) {
      path.incomplete |= micro_reduction != NULL;
    } else if (!is_op(node, &op_Shard) && !is_op(node, &op_AllGather) && !is_op(node, &op_Cast) && !is_op(node, &op_Reshape) && !is_op(node, &op_Identity)) {
      return path;               // where the gradient is computed
    }
    grad = node->inputs[0];
  }
  path.broken = !grad;
  return path;
}

static void check_pack(Proof *p, const Node *optimizer, const Node *pack, size_t index) {
  const Bucket *b = &p->graph->buckets[index];
  AttrInts starts = attr_ints(pack, "starts");
  if (pack->n_inputs != b->n_params || starts.n != b->n_params) {
    proof_defect(p, "wrong_gradient", optimizer, optimizer->inputs[0], "bucket %zu has %d parameters, its gradient joins %d", index, b->n_params, pack->n_inputs);
    return;
  }
  for (int i = 0; i < b->n_params; i++) {
    const Value *g = pack->inputs[i];
    bool other = g && g->role == ROLE_GRAD && g->of && strcmp(g->of->name, b->params[i]) != 0;
    if (!g || other || starts.items[i] != b->starts[i] || !type_same_shape(&g->type, &b->types[i]))
      proof_defect(p, "wrong_gradient", pack, g, "bucket %zu holds '%s' at %" PRId64 ", its gradient joins '%s' at %" PRId64, index, b->params[i],
                   b->starts[i], g ? g->name : "nothing", starts.items[i]);
  }
}

// A shard of a parameter belongs to the parameter's bucket.
static int32_t bucket_of(const Value *v) {
  while (v && v->bucket < 0 && v->producer && is_op(v->producer, &op_Shard) && v->producer->n_inputs) v = v->producer->inputs[0];
  return v ? v->bucket : -1;
}

static void check_update(Proof *p, const Node *optimizer, size_t index) {
  const Bucket *b = &p->graph->buckets[index];
  const Value *param = optimizer->inputs[0], *grad = optimizer->n_inputs > 1 ? optimizer->inputs[1] : NULL;
  int64_t elems = type_elems(&param->type);
  if (elems != b->elems && elems != b->shard_elems)
    proof_defect(p, "bucket", optimizer, param, "step '%s' updates %" PRId64 " elements; bucket %zu has %" PRId64 ", a shard %" PRId64, optimizer->name,
                 elems, index, b->elems, b->shard_elems);
  const Value *updated = optimizer->n_outputs ? optimizer->outputs[0] : NULL;
  bool carried = updated && updated->carry;
  for (size_t i = 0; updated && !carried && i < p->graph->n_nodes; i++) {      // or through the gather that makes it whole again
    const Node *n = p->graph->nodes[i];
    carried = is_op(n, &op_AllGather) && n->n_inputs && n->inputs[0] == updated && n->outputs[0] && n->outputs[0]->carry;
  }
  if (!carried) proof_defect(p, "not_carried", optimizer, param, "the new value of '%s' is lost: no later step reads it", param->name);
  GradPath path = trace_gradient(p, grad);
  int wanted = p->ranks > 1;
  if (path.broken) proof_defect(p, "never_reduced", optimizer, param, "the gradient of '%s' comes from nowhere", param->name);
  else if (path.reductions < wanted)
    proof_defect(p, "never_reduced", optimizer, param, "the gradient of '%s' is not summed over the %d ranks", param->name, p->ranks);
  else if (path.reductions > wanted)
    proof_defect(p, "reduced_twice", optimizer, param, "the gradient of '%s' is summed %d times over the ranks", param->name, path.reductions);
  if (path.incomplete)
    proof_defect(p, "reduced_incomplete", optimizer, param, "the gradient of '%s' is summed over ranks in every micro-batch, after its sum over micro-batches",
                 param->name);
  if (path.pack) check_pack(p, optimizer, path.pack, index);
}

static void check_ownership(Proof *p) {
  const Graph *g = p->graph;
  for (size_t b = 0; b < g->n_buckets; b++) {
    const Node *optimizer = NULL, *reduction = NULL;
    check_bucket(p, b);
    for (size_t i = 0; i < g->n_nodes; i++) {
      const Node *n = g->nodes[i];
      if ((n->op->flags & OP_OPTIMIZER) && n->n_inputs && bucket_of(n->inputs[0]) == (int32_t)b) {
        if (optimizer) proof_defect(p, "updated_twice", n, n->inputs[0], "bucket %zu is updated by step %u and by step %u", b, optimizer->id, n->id);
        optimizer = n;
      }
      if (is_reduction(n) && has_kind(n, "grad") && attr_int(n, "bucket") == (int64_t)b) {
        if (reduction) proof_defect(p, "reduced_twice", n, n->inputs[0], "bucket %zu is reduced by step %u and by step %u", b, reduction->id, n->id);
        reduction = n;
      }
    }
    if (!g->buckets[b].trainable && (optimizer || reduction))
      proof_defect(p, "bucket", optimizer ? optimizer : reduction, NULL, "bucket %zu is frozen, yet it is reduced or updated", b);
    if (!g->buckets[b].trainable || !g->buckets[b].elems) continue;
    if (optimizer) check_update(p, optimizer, b);
    else proof_defect(p, "never_updated", NULL, NULL, "no step updates bucket %zu ('%s', ...)", b, g->buckets[b].n_params ? g->buckets[b].params[0] : "");
  }
}

static void check_bytes(Proof *p) {
  LedgerEntry *entries;
  size_t n = plan_ledger(p->graph, p->arena, &entries);
  PlanBytes bytes = plan_bytes(p->graph, p->arena);
  int64_t moved = 0;
  for (size_t i = 0; i < n; i++)
    if (strcmp(entries[i].kind, "control") && strcmp(entries[i].kind, "frozen")) moved += entries[i].bytes * entries[i].times;
  if (moved + bytes.saved_bytes != bytes.formula_bytes)
    proof_defect(p, "bytes", NULL, NULL, "sent %" PRId64 " + saved %" PRId64 " bytes, the formula gives %" PRId64, moved, bytes.saved_bytes, bytes.formula_bytes);
}

static void prove(Proof *proof) {
  const Graph *program = proof->graph;
  proof->placed = ARENA_ARRAY(proof->arena, bool, program->n_values);
  if (proof->ranks < 1) {
    proof_defect(proof, "structure", NULL, NULL, "the mesh has %d ranks", proof->ranks);
    return;
  }
  check_structure(proof);
  for (size_t i = 0; i < program->n_nodes; i++)
    if (program->nodes[i]->op->flags & OP_COLLECTIVE) check_collective(proof, program->nodes[i]);
  if (proof->sound) check_ownership(proof);
  if (proof->sound) proof_memory(proof);
  if (!proof->n_defects) check_bytes(proof);
}

static Status prove_guarded(Proof *proof) {
  ARENA_GUARD(proof->arena);
  prove(proof);
  ARENA_RETURN(proof->arena, STATUS_OK);
}

Status verify_plan(const Graph *program, Arena *arena, const PlanDefect **out, size_t *n_out) {
  Proof proof = {.graph = program, .arena = arena, .ranks = program->mesh.n_axes ? program->mesh.axes[0].size : 1};
  Status status = prove_guarded(&proof);
  if (!status) status = proof.refused;
  else status_free(proof.refused);
  TRY(status);
  *out = proof.defects;
  *n_out = proof.n_defects;
  return STATUS_OK;
}
