// sum_loss: a recognised mean becomes (sum, count). Gradients of the sum add up over micro-batches without weights; the update phase
// multiplies once by 1 / global count (design, contract 1). Other losses: every micro-batch counts as one.
#include <string.h>

#include "../kernels/ops.h"
#include "pass_list.h"

static const char RULE_TOKENS[] = "mean over all labels that count of the global batch (micro-batches weigh by their counts)";
static const char RULE_ELEMENTS[] = "mean over all elements of the global batch (micro-batches weigh by their sizes)";
static const char RULE_GRADIENTS[] = "mean of the micro-batches' losses (the gradients come with the graph: micro-batches weigh equally)";
static const char RULE_EQUAL[] = "mean of the micro-batches' losses (the loss is no recognised mean: micro-batches weigh equally)";

// The node that computes the loss, looking through operators that only change its shape.
static const Node *loss_node(const Value *loss) {
  const Node *n = loss->producer;
  while (n && (n->op == &op_Identity || n->op == &op_Reshape || n->op == &op_Squeeze || n->op == &op_Unsqueeze)) n = n->inputs[0]->producer;
  return n;
}

static Value *cross_entropy_sum(Emit *e, const Node *n) {
  Value *const weights = n->n_inputs > 2 ? n->inputs[2] : NULL;
  int64_t ignore_index = attr_int(n, "ignore_index");
  const AttrInit ignore = ignore_index == ATTR_ABSENT ? (AttrInit){.name = NULL} : (AttrInit)A_INT("ignore_index", ignore_index);
  Value *sum = emit(e, n->op, n->inputs, n->n_inputs, ATTRS(A_STRING("reduction", "sum"), ignore));
  e->graph->loss_count = emit(e, &op_CrossEntropyCount, INPUTS(n->inputs[1], weights), ATTRS(ignore));
  return sum;
}

static Value *mean_sum(Emit *e, const Node *n) {
  Value *x = n->inputs[0];
  int64_t axes[RANK_MAX];
  for (int i = 0; i < x->type.rank; i++) axes[i] = i;
  e->graph->loss_count = emit_float(e, "loss.count", DTYPE_F64, (double)type_elems(&x->type));
  return emit(e, &op_ReduceSum, INPUTS(x, emit_int64s(e, "loss.axes", axes, x->type.rank)), ATTRS(A_INT("keepdims", 0)));
}

Status pass_sum_loss(Graph *graph, const CompileOptions *options) {
  if (!graph->loss) FAIL(USAGE, NULL, "the graph has no loss; name one with --loss-output, or let --loss cross_entropy --labels NAME add one");
  bool own_gradients = graph->facts & FACT_BACKWARD;           // of the mean as it is: nothing of it may be rewritten
  const Node *n = own_gradients ? NULL : loss_node(graph->loss);
  Emit e = {.graph = graph, .at = n, .phase = PHASE_MICRO};
  Value *sum;
  if (n && (n->op == &op_SoftmaxCrossEntropyLoss || n->op == &op_NegativeLogLikelihoodLoss) && !strcmp(attr_string(n, "reduction"), "mean")) {
    sum = cross_entropy_sum(&e, n);
    graph->recipe.loss_rule = RULE_TOKENS;
  } else if (n && n->op == &op_ReduceMean) {
    sum = mean_sum(&e, n);
    graph->recipe.loss_rule = RULE_ELEMENTS;
  } else {
    sum = graph->loss;
    graph->loss_count = emit_float(&e, "loss.count", DTYPE_F64, 1.0);
    if (!e.status && sum->type.rank) sum = emit(&e, &op_Reshape, INPUTS(sum, emit_int64s(&e, "loss.shape", NULL, 0)), NULL);
    graph->recipe.loss_rule = own_gradients ? RULE_GRADIENTS : RULE_EQUAL;
  }
  TRY(e.status);
  graph->loss = sum;
  return STATUS_OK;
}
