// fuse_transpose: MatMul(a, Transpose(b)) where the transpose swaps the last two axes becomes FusedMatMul(a, b; transB). Exporters of
// linear layers write W that way; without this the transposed copy of every weight would be kept from forward to backward.
#include "../kernels/ops.h"
#include "pass_list.h"
#include "stand_in.h"

// The operand before a swap of its last two axes; NULL when `v` is no such transpose.
static Value *untransposed(const Value *v) {
  const Node *n = v->producer;
  if (!n || n->op != &op_Transpose) return NULL;
  AttrInts perm = attr_ints(n, "perm");
  int rank = v->type.rank;
  if (rank < 2 || (perm.n == 0 && rank != 2)) return NULL;
  for (int i = 0; perm.n && i < rank; i++)
    if (perm.items[i] != (i < rank - 2 ? i : 2 * rank - 3 - i)) return NULL;
  return n->inputs[0];
}

static Status fuse(Graph *graph, Node **slot) {
  Node *n = *slot;
  if (n->op != &op_MatMul) return STATUS_OK;
  Value *a = n->inputs[0], *b = n->inputs[1];
  Value *at = a->type.rank >= 2 ? untransposed(a) : NULL, *bt = b->type.rank >= 2 ? untransposed(b) : NULL;
  if ((!at && !bt) || a->type.rank < 2 || b->type.rank < 2) return STATUS_OK;
  Node *fused = graph_make_node(graph, &op_FusedMatMul, n->name, 2, (Value *[]){at ? at : a, bt ? bt : b}, 0, NULL);
  attr_set(graph, fused, &(AttrInit)A_INT("transA", at != NULL));
  attr_set(graph, fused, &(AttrInit)A_INT("transB", bt != NULL));
  node_stand_in(fused, n);
  *slot = fused;
  return node_infer(graph, fused);
}

Status pass_fuse_transpose(Graph *graph, const CompileOptions *options) {
  for (size_t i = 0; i < graph->n_nodes; i++) TRY(fuse(graph, &graph->nodes[i]));
  graph_set_nodes(graph, graph->nodes, graph->n_nodes);
  return STATUS_OK;
}
