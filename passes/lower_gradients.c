// Second half of insert_collectives: the way of a gradient from its last producer to the optimizer step, and of the loss to its report.
//
//   --reduce micro  Pack, ReduceScatter, TreeAccumulate of the shard    (stages 2, 3; any stage on request)
//   --reduce step   Pack, TreeAccumulate of the whole bucket, then in update: AllReduce (stage 0) or ReduceScatter (stage 1)
#include "../kernels/ops.h"
#include "accumulate.h"
#include "lower.h"

static void as_grad(Lower *l, Value *v, int b, PlacementKind kind) {
  if (!v) return;
  v->role = ROLE_GRAD;
  v->bucket = b;
  v->of = l->buckets[b].param;
  v->placement[0] = (Placement){kind, kind == PLACED_FLAT ? b : 0};
}

static Cause grad_cause(const Lower *l, int b, const Node *producer) {
  return (Cause){.param = l->graph->buckets[b].params[0], .node = producer ? (producer->origin ? producer->origin : producer->name) : NULL, .pass = "insert_collectives"};
}

// More is added to what the collective gives: it keeps the type that 16-bit floats are added in.
static void as_summand(Lower *l, Node *scatter) {
  attr_set(l->graph, scatter, &(AttrInit)A_INT("sums", dtype_of_sums(scatter->inputs[0]->type.dtype) != scatter->inputs[0]->type.dtype));
  if (!l->emit.status) l->emit.status = node_infer(l->graph, scatter);
}

// A complete sum is rounded once to the type of its bucket's gradients, so that its bits do not tell how it was added up.
static Value *rounded(Lower *l, Value *sum, int b) {
  Dtype compute = l->graph->buckets[b].compute;
  l->emit.cause = grad_cause(l, b, NULL);
  return sum && sum->type.dtype != compute ? emit(&l->emit, &op_Cast, INPUTS(sum), ATTRS(A_INT("to", compute))) : sum;
}

void lower_gradients_micro(Lower *l, int b, const Node *last_producer) {
  const Bucket *bucket = &l->graph->buckets[b];
  BucketLower *lb = &l->buckets[b];
  l->emit.backward = true;
  l->emit.cause = grad_cause(l, b, last_producer);
  Value *g = emit(&l->emit, &op_Pack, lb->grads, bucket->n_params, ATTRS(A_INTS("starts", bucket->starts, bucket->n_params), A_INT("elems", bucket->elems)));
  as_grad(l, lower_name(l, g, "bucket.%d.%s", b, "grad.packed"), b, lb->partial ? PLACED_PARTIAL : PLACED_WHOLE);
  if (g && lb->partial && l->reduce == REDUCE_MICRO) {
    g = lower_collective(l, &op_ReduceScatter, g, b, "grad", grad_cause(l, b, last_producer));
    if (g && l->k > 1) as_summand(l, g->producer);
    as_grad(l, lower_name(l, g, "bucket.%d.%s", b, "grad.shard"), b, PLACED_FLAT);
  }
  if (g && l->k > 1) {
    Placement placement = g->placement[0];
    l->emit.cause = grad_cause(l, b, last_producer);
    g = emit_tree(&l->emit, g, l->k, arena_printf(l->graph->arena, "bucket.%d.grad", b));
    as_grad(l, lower_name(l, g, "bucket.%d.%s", b, "grad.sum"), b, placement.kind);
  }
  lb->grad = g;
}

// Loss pair and running statistics: small, so all ranks get the whole sum ("control").
void lower_sum_micro(Lower *l, Value *v) {
  l->emit.backward = false;
  const Cause cause = {.node = v->producer->origin, .pass = "insert_collectives"};
  Value *sum = v;
  if (l->ranks > 1 && l->reduce == REDUCE_MICRO) sum = lower_collective(l, &op_AllReduce, sum, -1, "control", cause);
  l->emit.cause = cause;
  if (sum && l->k > 1) sum = emit_tree(&l->emit, sum, l->k, arena_printf(l->graph->arena, "%s.sum", v->name));
  l->replaced[v->id] = sum;
}

static void reduce_sums_update(Lower *l) {
  for (size_t i = 0; i < l->n_old; i++) {
    const Node *n = l->old[i];
    for (int k = 0; k < n->n_outputs; k++) {
      const Value *v = n->outputs[k];
      if (!v || !l->summed[v->id]) continue;
      Cause cause = {.node = n->origin, .pass = "insert_collectives"};
      l->replaced[v->id] = lower_collective(l, &op_AllReduce, l->replaced[v->id], -1, "control", cause);
      if (l->emit.status) return;
    }
  }
}

void lower_reductions_update(Lower *l) {
  Graph *g = l->graph;
  if (l->ranks > 1 && l->reduce == REDUCE_STEP) reduce_sums_update(l);
  for (size_t i = 0; i < g->n_buckets; i++) {
    int b = (int)i;
    BucketLower *lb = &l->buckets[i];
    if (!lb->grad) continue;
    Value *v = lb->grad;
    PlacementKind kind = v->placement[0].kind;
    if (kind == PLACED_PARTIAL && !lb->updated_flat) {
      v = lower_collective(l, &op_AllReduce, v, b, "grad", grad_cause(l, b, NULL));
      kind = PLACED_WHOLE;
    } else if (kind == PLACED_PARTIAL) {
      v = lower_collective(l, &op_ReduceScatter, v, b, "grad", grad_cause(l, b, NULL));
      kind = PLACED_FLAT;
    } else if (kind == PLACED_FLAT && !lb->updated_flat) {
      v = lower_collective(l, &op_AllGather, rounded(l, v, b), b, "grad", grad_cause(l, b, NULL));
      kind = PLACED_WHOLE;
    }
    v = rounded(l, v, b);
    as_grad(l, v, b, kind);
    lb->grad = lower_name(l, v, "bucket.%d.%s", b, "grad");
  }
}

// A sum that `accumulate` made stands for the sum that the lowering made of the same value.
static Value *replaced(const Lower *l, Value *v) {
  if (!v || v->id >= l->n_values) return v;
  if (v->producer && v->producer->op == &op_TreeAccumulate) v = v->producer->inputs[0];
  return l->replaced[v->id] ? l->replaced[v->id] : v;
}

Value *lower_squared_norm(Lower *l, Value *scale, bool clipped, Cause cause) {
  Graph *g = l->graph;
  Value **inputs = ARENA_ARRAY(g->arena, Value *, g->n_buckets + 1);
  int n = 0;
  inputs[n++] = scale;
  bool flat = false;
  for (size_t b = 0; b < g->n_buckets; b++) {
    Value *grad = clipped ? l->buckets[b].clipped : l->buckets[b].grad;
    if (!grad) continue;
    flat |= grad->placement[0].kind == PLACED_FLAT;
    inputs[n++] = grad;
  }
  l->emit.cause = cause;
  Value *limbs = emit(&l->emit, &op_SquaredNorm, inputs, n, NULL);
  return limbs && flat ? lower_collective(l, &op_AllReduce, limbs, -1, "control", (Cause){0}) : limbs;
}

void lower_update_node(Lower *l, Node *n) {
  if (n->op == &op_SquaredNorm) {
    l->replaced[n->outputs[0]->id] = lower_squared_norm(l, n->inputs[0], false, n->cause);
  } else if (n->op == &op_Update) {
    lower_updates(l);
  } else {
    for (int k = 0; k < n->n_inputs; k++) n->inputs[k] = replaced(l, n->inputs[k]);
    graph_append(l->graph, n);
  }
}
