// carry_buffers: in training mode BatchNormalization gives new running statistics. They become the model's buffers for the next step:
// values of role BUFFER. A buffer that several nodes update (a module used twice) passes from one to the next. With several micro-batches a step
// attach_optimizer takes the mean over what each makes of the step's old statistics.
#include "../kernels/ops.h"
#include "pass_list.h"

enum { STATISTICS = 3, NEW_STATISTICS = 1, N_STATISTICS = 2 };   // inputs 3, 4 become outputs 1, 2

static bool updates_statistics(const Node *n) {
  return n->op == &op_BatchNormalization && n->n_inputs >= STATISTICS + N_STATISTICS && attr_int(n, "training_mode") != 0;
}

// `now[v]` is the newest value of buffer v, or NULL.
static void carry(Node *n, int k, Value **now) {
  Value *buffer = n->inputs[STATISTICS + k];
  Value *next = n->n_outputs > NEW_STATISTICS + k ? n->outputs[NEW_STATISTICS + k] : NULL;
  if (!next || buffer->producer || (buffer->role != ROLE_CONST && buffer->role != ROLE_BUFFER)) return;
  buffer->role = ROLE_BUFFER;
  if (now[buffer->id]) {
    n->inputs[STATISTICS + k] = now[buffer->id];
    now[buffer->id]->carry = NULL;
  }
  next->role = ROLE_BUFFER;
  next->type = buffer->type;
  next->carry = buffer;
  now[buffer->id] = next;
}

Status pass_carry_buffers(Graph *graph, const CompileOptions *options) {
  Value **now = ARENA_ARRAY(graph->arena, Value *, graph->n_values);
  for (size_t i = 0; i < graph->n_nodes; i++)
    for (int k = 0; k < N_STATISTICS && updates_statistics(graph->nodes[i]); k++) carry(graph->nodes[i], k, now);
  return STATUS_OK;
}
