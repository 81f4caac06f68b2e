// lower_einsum: an Einsum of one operand becomes a reduction and a transpose; one of two operands a batched matrix product between reshapes.
// What is left are diagonals, axes that an ellipsis broadcasts, and three or more operands: those run as they are.
#include "../kernels/einsum.h"
#include "../kernels/ops.h"
#include "pass_list.h"

typedef struct Labels { int n; int at[2 * RANK_MAX]; } Labels;

static bool has(const Labels *l, int label) {
  for (int i = 0; i < l->n; i++)
    if (l->at[i] == label) return true;
  return false;
}
static Labels labels_of(const int *labels, int n) {
  Labels l = {.n = n};
  for (int i = 0; i < n; i++) l.at[i] = labels[i];
  return l;
}
static Labels joined(const Labels *a, const Labels *b, const Labels *c) {
  Labels l = *a;
  for (int i = 0; i < b->n; i++) l.at[l.n++] = b->at[i];
  for (int i = 0; i < c->n; i++) l.at[l.n++] = c->at[i];
  return l;
}
static int64_t elems(const Einsum *e, const Labels *l) {
  int64_t n = 1;
  for (int i = 0; i < l->n; i++) n *= e->dims[l->at[i]];
  return n;
}

// Each label once in a term, each axis as long as its label says.
static bool is_plain(const Node *node, const Einsum *e) {
  if (e->n_operands > 2) return false;
  for (int k = 0; k < e->n_operands; k++) {
    Labels seen = {.n = 0};
    for (int i = 0; i < e->ranks[k]; i++) {
      int label = e->labels[k][i];
      if (has(&seen, label) || node->inputs[k]->type.dims[i] != e->dims[label]) return false;
      seen.at[seen.n++] = label;
    }
  }
  return true;
}

// Sums the axes of `x` that `want` does not name; the labels that are left stay in *have.
static Value *sum_others(Emit *emitter, Value *x, Labels *have, const Labels *want) {
  int64_t axes[RANK_MAX];
  int n = 0;
  Labels left = {.n = 0};
  for (int i = 0; i < have->n; i++) {
    if (has(want, have->at[i])) left.at[left.n++] = have->at[i];
    else axes[n++] = i;
  }
  *have = left;
  if (!n) return x;
  return emit(emitter, &op_ReduceSum, INPUTS(x, emit_int64s(emitter, "axes", axes, n)), ATTRS(A_INT("keepdims", 0)));
}

static Value *transposed(Emit *emitter, Value *x, const Labels *have, const Labels *want) {
  int64_t perm[RANK_MAX];
  bool moves = false;
  for (int i = 0; i < want->n; i++) {
    for (int k = 0; k < have->n; k++)
      if (have->at[k] == want->at[i]) perm[i] = k;
    moves |= perm[i] != i;
  }
  return moves ? emit(emitter, &op_Transpose, INPUTS(x), ATTRS(A_INTS("perm", perm, want->n))) : x;
}

static Value *reshaped(Emit *emitter, Value *x, const int64_t *dims, int n) {
  Type type = type_make(DTYPE_F32, n, dims);
  if (!x || type_same_shape(&type, &x->type)) return x;
  return emit(emitter, &op_Reshape, INPUTS(x, emit_int64s(emitter, "shape", dims, n)), ATTRS(A_INT("allowzero", 1)));
}

static bool same_order(const Labels *a, const Labels *b) {
  for (int i = 0; i < a->n; i++)
    if (a->at[i] != b->at[i]) return false;
  return a->n == b->n;
}

// Operand as [batch, rows, columns], or [batch, columns, rows] where that leaves the innermost axis innermost: *swapped.
static Value *as_matrix(Emit *emitter, const Einsum *e, Value *x, Labels have, const Labels *batch, const Labels *rows, const Labels *columns, bool *swapped) {
  Labels plain = joined(batch, rows, columns), other = joined(batch, columns, rows);
  x = sum_others(emitter, x, &have, &plain);
  *swapped = !same_order(&have, &plain) && have.n && has(rows, have.at[have.n - 1]);
  x = transposed(emitter, x, &have, *swapped ? &other : &plain);
  int64_t r = elems(e, rows), c = elems(e, columns), dims[3] = {elems(e, batch), *swapped ? c : r, *swapped ? r : c};
  return batch->n ? reshaped(emitter, x, dims, 3) : reshaped(emitter, x, dims + 1, 2);
}

static Value *product(Emit *emitter, const Einsum *e, const Node *node) {
  Labels a = labels_of(e->labels[0], e->ranks[0]), b = labels_of(e->labels[1], e->ranks[1]), out = labels_of(e->out, e->out_rank);
  Labels batch = {.n = 0}, rows = {.n = 0}, columns = {.n = 0}, summed = {.n = 0};
  for (int i = 0; i < out.n; i++) {
    Labels *to = has(&a, out.at[i]) ? (has(&b, out.at[i]) ? &batch : &rows) : &columns;
    to->at[to->n++] = out.at[i];
  }
  for (int i = 0; i < a.n; i++)
    if (has(&b, a.at[i]) && !has(&out, a.at[i])) summed.at[summed.n++] = a.at[i];
  bool trans_a, trans_b;
  Value *left = as_matrix(emitter, e, node->inputs[0], a, &batch, &rows, &summed, &trans_a);
  Value *right = as_matrix(emitter, e, node->inputs[1], b, &batch, &summed, &columns, &trans_b);
  Value *y = emit(emitter, &op_FusedMatMul, INPUTS(left, right), ATTRS(A_INT("transA", trans_a), A_INT("transB", trans_b)));
  Labels made = joined(&batch, &rows, &columns);
  int64_t dims[RANK_MAX];
  for (int i = 0; i < made.n; i++) dims[i] = e->dims[made.at[i]];
  y = reshaped(emitter, y, dims, made.n);
  return transposed(emitter, y, &made, &out);
}

// Appends the node, or what it is made of.
static Status append(Graph *graph, Node *node) {
  Einsum e;
  bool lowers = node->op == &op_Einsum;
  if (lowers) TRY(einsum_parse(node, &e));
  if (!lowers || !is_plain(node, &e)) {
    graph_append(graph, node);
    return STATUS_OK;
  }
  Emit emitter = {.graph = graph, .at = node, .phase = node->phase, .backward = node->backward, .cause = node->cause};
  Value *y;
  if (e.n_operands == 1) {
    Labels have = labels_of(e.labels[0], e.ranks[0]), out = labels_of(e.out, e.out_rank);
    y = sum_others(&emitter, node->inputs[0], &have, &out);
    if (y) y = transposed(&emitter, y, &have, &out);
  } else {
    y = product(&emitter, &e, node);
  }
  if (y == node->inputs[0]) y = emit(&emitter, &op_Identity, INPUTS(y), NULL);
  TRY(emitter.status);
  y->producer->outputs[0] = node->outputs[0];   // the name stays
  node->outputs[0]->producer = y->producer;
  node->outputs[0]->output_index = 0;
  return STATUS_OK;
}

Status pass_lower_einsum(Graph *graph, const CompileOptions *options) {
  size_t n = graph->n_nodes;
  Node **nodes = arena_copy(graph->arena, graph->nodes, sizeof *nodes * n);
  graph->n_nodes = 0;
  for (size_t i = 0; i < n; i++) TRY(append(graph, nodes[i]));
  graph_set_nodes(graph, graph->nodes, graph->n_nodes);
  return STATUS_OK;
}
