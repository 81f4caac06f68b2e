// What exporters do to the identity of parameters. They merge initializers of equal contents (fresh LayerNorm weights, cloned layers), so that
// parameters which PyTorch keeps apart train as one; and they fold Transpose(weight), so that a tied embedding and head come apart. The graph
// is followed as it stands; these are warnings with what to do, and --tie puts together what was torn apart.
#include <inttypes.h>
#include <string.h>

#include "../kernels/ops.h"
#include "import_state.h"

static bool is_transposed(const Type *a, const Type *b) {
  return a->dtype == b->dtype && a->rank == 2 && b->rank == 2 && a->dims[0] == b->dims[1] && a->dims[1] == b->dims[0];
}

// Compiling does not read weights: a sample of elements, spread over the tensor, stands for its contents.
enum { SAMPLES = 16 };

static int64_t sample_index(const Weight *w, int64_t sample) {
  int64_t n = type_elems(&w->type);
  return n <= SAMPLES ? sample : n / SAMPLES * sample + sample % (n / SAMPLES);
}
static int64_t sample_count(const Weight *w) { return type_elems(&w->type) < SAMPLES ? type_elems(&w->type) : SAMPLES; }
static const char *element(const Weight *w, int64_t i) { return (const char *)w->bytes + i * dtype_bytes(w->type.dtype); }

// Are the sampled elements of a and b equal (b transposed when asked)?
static bool same_contents(const Weight *a, const Weight *b, bool transposed) {
  for (int64_t k = 0; k < sample_count(a); k++) {
    int64_t i = sample_index(a, k);
    int64_t at = transposed ? i % a->type.dims[1] * a->type.dims[0] + i / a->type.dims[1] : i;
    if (memcmp(element(a, i), element(b, at), (size_t)dtype_bytes(a->type.dtype))) return false;
  }
  return true;
}

static bool is_uniform(const Weight *w) {
  for (int64_t k = 1; k < sample_count(w); k++)
    if (memcmp(element(w, 0), element(w, sample_index(w, k)), (size_t)dtype_bytes(w->type.dtype))) return false;
  return true;
}

// ---- --tie --------------------------------------------------------------------------------------------------------------------

// Transpose(kept), in front of everything.
static Value *transposed(Graph *g, Value *kept, const Value *tied) {
  Node *n = graph_make_node(g, &op_Transpose, arena_printf(g->arena, "%s.transposed", kept->name), 1, &kept, 1, NULL);
  attr_set(g, n, &(AttrInit)A_INTS("perm", ((const int64_t[]){1, 0}), 2));
  n->outputs[0]->type = tied->type;
  Node **nodes = ARENA_ARRAY(g->arena, Node *, g->n_nodes + 1);
  nodes[0] = n;
  memcpy(nodes + 1, g->nodes, sizeof *nodes * g->n_nodes);
  g->nodes = nodes;
  g->nodes_capacity = ++g->n_nodes;
  for (size_t i = 0; i < g->n_nodes; i++) nodes[i]->id = (uint32_t)i;
  return n->outputs[0];
}

// What an earlier tie has made of `name`.
static const char *kept_as(const Import *import, size_t n_before, const char *name) {
  const Tie *ties = import->options->ties;
  for (size_t step = 0; step < n_before; step++)
    for (size_t i = 0; i < n_before; i++)
      if (!strcmp(ties[i].tied, name)) name = ties[i].kept;
  return name;
}

static void tie(Import *import, size_t index) {
  Graph *g = import->graph;
  const Tie *t = &import->options->ties[index];
  const char *name = kept_as(import, index, t->kept);
  if (kept_as(import, index, t->tied) != t->tied || !strcmp(name, t->tied)) {
    import_problem(import, STATUS_USAGE, NULL, "--tie %s=%s: '%s' is tied to '%s' already", t->kept, t->tied, t->tied, kept_as(import, index, t->tied));
    return;
  }
  Value *kept = graph_find_value(g, name), *tied = graph_find_value(g, t->tied);
  const char *missing = !kept || !kept->weight ? name : !tied || !tied->weight ? t->tied : NULL;
  if (missing) {
    import_problem(import, STATUS_USAGE, NULL, "--tie %s=%s: there is no initializer '%s'", t->kept, t->tied, missing);
    return;
  }
  bool turned = !type_equal(&kept->type, &tied->type);
  if (turned && !is_transposed(&kept->type, &tied->type)) {
    char a[160], b[160];
    import_problem(import, STATUS_USAGE, NULL, "--tie %s=%s: their types are neither equal nor transposed: %s and %s", t->kept, t->tied,
                   type_text(&kept->type, a, sizeof a), type_text(&tied->type, b, sizeof b));
    return;
  }
  if (kept->weight->bytes && tied->weight->bytes && !same_contents(kept->weight, tied->weight, turned))
    import_warning(import, "--tie %s=%s: their contents differ; training starts from '%s'", t->kept, t->tied, t->kept);
  graph_replace_uses(g, tied, turned ? transposed(g, kept, tied) : kept);
}

void tie_params(Import *import) {
  for (size_t i = 0; i < import->options->n_ties; i++) tie(import, i);
}

// ---- Warnings -----------------------------------------------------------------------------------------------------------------

static bool trains(const Value *v) { return v->role == ROLE_PARAM && v->trainable && !v->producer && v->weight && v->weight->bytes && type_elems(&v->type) > 1; }

// Operators that cut or move a parameter say nothing about what it is for.
static bool moves(const Op *op) {
  const Op *const all[] = {&op_Slice, &op_Split, &op_Gather, &op_Reshape, &op_Transpose, &op_Concat, &op_Identity, &op_Squeeze, &op_Unsqueeze, &op_Cast,
                           &op_Shape, &op_Expand, &op_Flatten};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i] == op) return true;
  return false;
}

// How many nodes of its first user's operator read each value at the first user's input; indexed by value id.
static uint32_t *count_alike(const Import *import) {
  const Graph *g = import->graph;
  Arena *arena = import->arena;
  uint32_t *alike = ARENA_ARRAY(arena, uint32_t, g->n_values);
  const Op **op = ARENA_ARRAY(arena, const Op *, g->n_values);
  int *input = ARENA_ARRAY(arena, int, g->n_values);
  for (size_t i = 0; i < g->n_nodes; i++)
    for (int k = 0; k < g->nodes[i]->n_inputs; k++) {
      const Value *v = g->nodes[i]->inputs[k];
      if (!v || moves(g->nodes[i]->op)) continue;
      if (!op[v->id]) {
        op[v->id] = g->nodes[i]->op;
        input[v->id] = k;
      }
      alike[v->id] += op[v->id] == g->nodes[i]->op && input[v->id] == k;
    }
  return alike;
}

static void warn_of_merged(Import *import) {
  const Graph *g = import->graph;
  const uint32_t *alike = count_alike(import);
  const Value *first = NULL;
  size_t n = 0;
  for (size_t i = 0; i < g->n_values; i++) {
    const Value *v = g->values[i];
    if (!trains(v) || alike[v->id] < 2) continue;
    if (!first || (is_uniform(v->weight) && !is_uniform(first->weight))) first = v;
    n++;
  }
  if (!n) return;
  import_warning(import,
                 "%zu parameter%s used alike by several nodes ('%s' by %" PRIu32 "): each trains as one. Exporters merge initializers of equal contents; "
                 "if PyTorch has them apart, make them differ before the export: for p in model.parameters(): p.data.add_(1e-6 * torch.randn_like(p))",
                 n, n == 1 ? " is" : "s are", first->name, alike[first->id]);
}

// Two parameters of equal contents that are not uniform: torn apart by the exporter, most likely.
static void warn_of_torn(Import *import) {
  enum { PAIRS_MAX = 1 << 20 };
  const Graph *g = import->graph;
  const Value **params = ARENA_ARRAY(import->arena, const Value *, g->n_values);
  size_t n = 0;
  for (size_t i = 0; i < g->n_values; i++)
    if (trains(g->values[i]) && g->values[i]->type.rank == 2) params[n++] = g->values[i];
  int64_t pairs = 0;
  for (size_t i = 0; i < n; i++)
    for (size_t k = i + 1; k < n && ++pairs < PAIRS_MAX; k++) {
      bool equal = type_equal(&params[i]->type, &params[k]->type), turned = is_transposed(&params[i]->type, &params[k]->type);
      if (!equal && !turned) continue;
      bool same = (equal && same_contents(params[i]->weight, params[k]->weight, false)) || (turned && same_contents(params[i]->weight, params[k]->weight, true));
      if (!same || is_uniform(params[i]->weight)) continue;
      import_warning(import, "parameters '%s' and '%s' start equal%s and train apart; if they are one in PyTorch: --tie '%s=%s'", params[i]->name,
                     params[k]->name, equal ? "" : " (one is the other transposed)", params[i]->name, params[k]->name);
    }
}

void warn_of_sharing(Import *import) {
  warn_of_merged(import);
  warn_of_torn(import);
}
