// What a graph tells about an integer input: whether it is shifted before the loss takes it as labels, and which values are legal.
#include <stdlib.h>

#include "../kernels/ops.h"
#include "data_graph.h"

static bool is_any(const Node *n, const Op *const *ops) {
  while (*ops && n->op != *ops) ops++;
  return *ops;
}

// Operators that hand elements on as they are, if not all of them.
static const Op *const movers[] = {&op_Cast, &op_Identity, &op_Reshape, &op_Flatten, &op_Squeeze, &op_Unsqueeze, &op_Slice, &op_Pad,
                                  &op_Concat, &op_Transpose, &op_Expand, &op_Split, &op_Where, NULL};
static const Op *const cutters[] = {&op_Slice, &op_Pad, NULL};
static const Op *const losses[] = {&op_SoftmaxCrossEntropyLoss, &op_CrossEntropyCount, NULL};

typedef struct Reach { bool *reached, *cut; } Reach;   // per value id

static bool reach_create(const Graph *graph, const Value *from, Reach *out) {
  out->reached = calloc(graph->n_values + 1, sizeof(bool));
  out->cut = calloc(graph->n_values + 1, sizeof(bool));
  if (!out->reached || !out->cut) return false;
  out->reached[from->id] = true;
  for (size_t i = 0; i < graph->n_nodes; i++) {
    const Node *n = graph->nodes[i];
    if (!is_any(n, movers)) continue;
    bool reached = false, cut = is_any(n, cutters);
    for (int k = 0; k < n->n_inputs; k++)
      if (n->inputs[k] && out->reached[n->inputs[k]->id]) {
        reached = true;
        cut |= out->cut[n->inputs[k]->id];
      }
    for (int k = 0; reached && k < n->n_outputs; k++)
      if (n->outputs[k]) {
        out->reached[n->outputs[k]->id] = true;
        out->cut[n->outputs[k]->id] = cut;
      }
  }
  return true;
}

static void reach_finish(Reach *reach) {
  free(reach->reached);
  free(reach->cut);
}

bool graph_shifts_labels(const Graph *graph, const Value *labels) {
  Reach reach;
  bool shifts = false;
  if (reach_create(graph, labels, &reach))
    for (size_t i = 0; i < graph->n_nodes; i++) {
      const Node *n = graph->nodes[i];
      const Value *target = is_any(n, losses) ? n->inputs[n->op == &op_SoftmaxCrossEntropyLoss ? 1 : 0] : NULL;
      if (target && reach.reached[target->id] && reach.cut[target->id]) shifts = true;
    }
  reach_finish(&reach);
  return shifts;
}

const Node *graph_loss_without(const Graph *graph, const Value *labels, int64_t label) {
  Reach reach;
  const Node *found = NULL;
  if (reach_create(graph, labels, &reach))
    for (size_t i = 0; i < graph->n_nodes && !found; i++) {
      const Node *n = graph->nodes[i];
      bool loss = n->op == &op_SoftmaxCrossEntropyLoss || n->op == &op_NegativeLogLikelihoodLoss;
      if (loss && n->inputs[1] && reach.reached[n->inputs[1]->id] && attr_int(n, "ignore_index") != label) found = n;
    }
  reach_finish(&reach);
  return found;
}

// Dimension `axis` (from the end where below 0) of the type; INT64_MAX where there is none.
static int64_t axis_size(const Type *t, int64_t axis) {
  if (axis < 0) axis += t->rank;
  return axis >= 0 && axis < t->rank ? t->dims[axis] : INT64_MAX;
}

// Tuples of `n` numbers that index dimensions from `first` on: what is below all of them is legal.
static int64_t tuple_limit(const Type *data, int64_t first, int64_t n) {
  int64_t least = INT64_MAX;
  for (int64_t d = first; d < first + n && d < data->rank; d++)
    if (data->dims[d] < least) least = data->dims[d];
  return least;
}

static int64_t depth_of(const Value *depth) {
  const Weight *w = value_const(depth);
  if (!w || type_elems(&w->type) != 1) return INT64_MAX;
  return dtype_is_float(w->type.dtype) ? (int64_t)weight_read_float(w, 0) : weight_read_int(w, 0);
}

// Operators whose input `input` holds integers in [0, limit).
static int64_t input_limit(const Node *n, int input) {
  const Type *data = n->inputs[0] ? &n->inputs[0]->type : NULL;
  const Op *op = n->op;
  if (!data) return INT64_MAX;
  if ((op == &op_Gather || op == &op_GatherElements || op == &op_ScatterElements) && input == 1) return axis_size(data, attr_int(n, "axis"));
  if (op == &op_GatherND && input == 1) return tuple_limit(data, attr_int(n, "batch_dims"), axis_size(&n->inputs[1]->type, -1));
  if (op == &op_ScatterND && input == 1) return tuple_limit(data, 0, axis_size(&n->inputs[1]->type, -1));
  if ((op == &op_SoftmaxCrossEntropyLoss || op == &op_NegativeLogLikelihoodLoss) && input == 1) return axis_size(data, 1);
  if (op == &op_CrossEntropyCount && input == 0 && n->n_inputs > 1 && n->inputs[1]) return axis_size(&n->inputs[1]->type, 0);
  if (op == &op_OneHot && input == 0) return depth_of(n->inputs[1]);
  if ((op == &op_RNN || op == &op_GRU || op == &op_LSTM) && input == 4) return axis_size(data, 0) + 1;
  if (op == &op_ReverseSequence && input == 1) return axis_size(data, attr_int(n, "time_axis")) + 1;
  if (op == &op_RoiAlign && input == 2) return axis_size(data, 0);
  if (op == &op_RotaryEmbedding && input == 3) return axis_size(&n->inputs[1]->type, 0);
  return INT64_MAX;
}

static int64_t node_limit(const Node *n, const bool *reached) {
  int64_t least = INT64_MAX;
  for (int i = 0; i < n->n_inputs; i++)
    if (n->inputs[i] && reached[n->inputs[i]->id]) {
      int64_t limit = input_limit(n, i);
      if (limit < least) least = limit;
    }
  return least;
}

int64_t graph_index_limit(const Graph *graph, const Value *input) {
  Reach reach;
  int64_t least = INT64_MAX;
  if (reach_create(graph, input, &reach))
    for (size_t i = 0; i < graph->n_nodes; i++) {
      int64_t limit = node_limit(graph->nodes[i], reach.reached);
      if (limit < least) least = limit;
    }
  reach_finish(&reach);
  return least == INT64_MAX ? 0 : least > 0 ? least : 1;
}
