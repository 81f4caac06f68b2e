// What a graph tells about an integer input: whether it is shifted before the loss takes it as labels, and which values are legal.
#include <stdlib.h>

#include "../kernels/ops.h"
#include "data_source.h"

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

static int64_t node_limit(const Node *n, const bool *reached) {
  if (n->op == &op_Gather && n->inputs[1] && reached[n->inputs[1]->id]) {
    int axis;
    const Type *data = &n->inputs[0]->type;
    Status bad = type_axis(attr_int(n, "axis"), data->rank, n->name, &axis);
    status_free(bad);
    return bad ? INT64_MAX : data->dims[axis];
  }
  if (n->op == &op_SoftmaxCrossEntropyLoss && n->inputs[1] && reached[n->inputs[1]->id] && n->inputs[0]->type.rank > 1) return n->inputs[0]->type.dims[1];
  return INT64_MAX;
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
  return least == INT64_MAX ? 2 : least > 0 ? least : 1;
}
