// Types and constants while nodes are still being read: trip counts, conditions and positions come from shapes more often than not. Nodes are
// inferred in order up to the newest when somebody asks, and not before: most models never ask. What is computed here is put back at the end,
// so that passes fold it again, in the precision that the user asks for.
#include "import_state.h"

#include "../kernels/fold.h"

static const int64_t KNOWN_BYTES_MAX = 4096;

static bool inputs_typed(const Node *n) {
  for (int i = 0; i < n->n_inputs; i++)
    if (n->inputs[i] && n->inputs[i]->type.dtype == DTYPE_NONE) return false;
  return true;
}

// Failures are no problems here: infer_types meets them again and says so.
static void infer(Import *import, Node *n) {
  if (!inputs_typed(n)) return;
  Status status = node_infer(import->graph, n);
  bool folded = false;
  if (!status) status = fold_node(import->graph, n, ISA_SCALAR, KNOWN_BYTES_MAX, &folded);
  if (folded) ARENA_PUSH(import->arena, import->known, import->n_known, import->known_capacity, n);
  status_free(status);
}

static void infer_all(Import *import) {
  size_t first = import->n_inferred, n = import->n_nodes - first;
  if (import->n_problems || !n) return;
  if (import_absorb(import, graph_sort(import->graph, import->nodes + first, n), NULL)) return;
  for (size_t i = first; i < import->n_nodes; i++) infer(import, import->nodes[i]);
  import->n_inferred = import->n_nodes;
}

const Type *import_type(Import *import, const Value *value) {
  if (!value) return NULL;
  if (value->type.dtype == DTYPE_NONE) infer_all(import);
  return value->type.dtype == DTYPE_NONE ? NULL : &value->type;
}

const Weight *import_known(Import *import, const Value *value) {
  if (!value_const(value) && value && value->producer) infer_all(import);
  return value_const(value);
}

void import_forget(Import *import) {
  for (size_t i = 0; i < import->n_known; i++) {
    Node *n = import->known[i];
    for (int k = 0; k < n->n_outputs; k++) {
      if (!n->outputs[k]) continue;
      n->outputs[k]->role = ROLE_ACTIVATION;
      n->outputs[k]->weight = NULL;
      n->outputs[k]->producer = n;
    }
  }
  for (size_t i = 0; i < import->n_nodes; i++)
    for (int k = 0; k < import->nodes[i]->n_outputs; k++)
      if (import->nodes[i]->outputs[k]) import->nodes[i]->outputs[k]->type = (Type){0};
}
