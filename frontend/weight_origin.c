// Where initializers stem from: the metadata `folded_from` that torch.onnx's optimizer leaves, and the recurrent operators that reorder rows.
#include <stdlib.h>
#include <string.h>

#include "import_state.h"

#define FOLDED_KEY "pkg.onnxscript.optimizer.folded_from"

// Takes the next item off a Python list of strings, "['a', \"b\"]"; false at its end. Names with both kinds of quotes are not looked into.
static bool next_item(const char **list, const char **item, size_t *n) {
  const char *p = *list + strcspn(*list, "'\"");
  if (!*p) return false;
  const char *end = strchr(p + 1, *p);
  if (!end) return false;
  *item = p + 1;
  *n = (size_t)(end - p - 1);
  *list = end + 1;
  return true;
}

static void read_folded(Arena *arena, const char *list, WeightOrigin *out) {
  const char **names = NULL, *item;
  size_t n = 0, capacity = 0, length;
  while (list && next_item(&list, &item, &length)) ARENA_PUSH(arena, names, n, capacity, arena_string_n(arena, item, length));
  out->folded_from = names;
  out->n_folded_from = n;
}

typedef struct NamedList { const char *name, *list; } NamedList;

static int compare_lists(const void *a, const void *b) { return strcmp(((const NamedList *)a)->name, ((const NamedList *)b)->name); }

// The graph's `folded_from` entries by name.
static size_t sort_lists(const OnnxGraph *g, Arena *arena, NamedList **out) {
  NamedList *lists = ARENA_ARRAY(arena, NamedList, g->head->n_value_info);
  size_t n = 0;
  for (size_t i = 0; i < g->head->n_value_info; i++) {
    const Onnx__ValueInfoProto *info = g->head->value_info[i];
    const char *list = onnx_metadata(info->metadata_props, info->n_metadata_props, FOLDED_KEY);
    if (list) lists[n++] = (NamedList){text_or_empty(info->name), list};
  }
  if (n) qsort(lists, n, sizeof *lists, compare_lists);
  *out = lists;
  return n;
}

static int compare_origins(const void *a, const void *b) { return strcmp((*(WeightOrigin *const *)a)->name, (*(WeightOrigin *const *)b)->name); }

// Marks the W, R and B of recurrent operators.
static void mark_gates(const OnnxGraph *g, Arena *arena, WeightOrigin *origins, size_t n) {
  enum { W = 1, B = 3 };                               // inputs W, R, B
  WeightOrigin **sorted = ARENA_ARRAY(arena, WeightOrigin *, n);
  for (size_t i = 0; i < n; i++) sorted[i] = &origins[i];
  if (n) qsort(sorted, n, sizeof *sorted, compare_origins);
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Onnx__NodeProto *head = g->nodes[i].head;
    const char *op = text_or_empty(head->op_type);
    if (strcmp(op, "LSTM") && strcmp(op, "GRU") && strcmp(op, "RNN")) continue;
    for (size_t k = W; k <= B && k < head->n_input; k++) {
      WeightOrigin wanted = {.name = text_or_empty(head->input[k])}, *key = &wanted;
      WeightOrigin **found = n ? bsearch(&key, sorted, n, sizeof *sorted, compare_origins) : NULL;
      if (found) (*found)->gates = op;
    }
  }
}

static Status list_origins(Model *model, Arena *arena, const WeightOrigin **out, size_t *n_out) {
  OnnxModel onnx;
  TRY(onnx_decode_model(model->file, arena, &onnx));
  const OnnxGraph *g = &onnx.graph;
  NamedList *lists;
  size_t n = onnx.has_graph ? g->n_initializers : 0, n_lists = n ? sort_lists(g, arena, &lists) : 0;
  WeightOrigin *origins = ARENA_ARRAY(arena, WeightOrigin, n);
  for (size_t i = 0; i < n; i++) {
    Weight weight;
    const Onnx__TensorProto *head = g->initializers[i].head;
    TRY(tensor_weight(model, arena, &g->initializers[i], text_or_empty(head->name), &weight));
    origins[i] = (WeightOrigin){.name = weight.name, .type = weight.type};
    TRY(weight_hash(&weight, origins[i].contents));
    NamedList key = {.name = weight.name};
    const NamedList *found = n_lists ? bsearch(&key, lists, n_lists, sizeof *lists, compare_lists) : NULL;
    read_folded(arena, found ? found->list : onnx_metadata(head->metadata_props, head->n_metadata_props, FOLDED_KEY), &origins[i]);
  }
  mark_gates(g, arena, origins, n);
  *out = origins;
  *n_out = n;
  return STATUS_OK;
}

Status model_weight_origins(Model *model, Arena *arena, const WeightOrigin **out, size_t *n_out) {
  ARENA_GUARD(arena);
  ARENA_RETURN(arena, list_origins(model, arena, out, n_out));
}
