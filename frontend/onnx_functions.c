// Model-local functions: each call becomes the nodes of the body, named after the call. A function sees its inputs and attributes only.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "import_state.h"

enum { CALL_DEPTH_MAX = 200 };
static const int64_t FUNCTION_NODES_MAX = 50000;

// ---- Lookup -------------------------------------------------------------------------------------------------------------------

static int compare_keys(const char *domain_a, const char *name_a, const char *overload_a, const Onnx__FunctionProto *b) {
  int c = strcmp(onnx_domain(domain_a), onnx_domain(b->domain));
  if (!c) c = strcmp(text_or_empty(name_a), text_or_empty(b->name));
  return c ? c : strcmp(text_or_empty(overload_a), text_or_empty(b->overload));
}

static int compare_functions(const void *a, const void *b) {
  const Onnx__FunctionProto *x = (*(const OnnxFunction *const *)a)->head;
  return compare_keys(x->domain, x->name, x->overload, (*(const OnnxFunction *const *)b)->head);
}

static int compare_call(const void *key, const void *function) {
  const Onnx__NodeProto *n = key;
  return compare_keys(n->domain, n->op_type, n->overload, (*(const OnnxFunction *const *)function)->head);
}

static const OnnxFunction **find_slot(const Import *import, const OnnxNode *node) {
  size_t n = import->onnx.n_functions;
  return n ? bsearch(node->head, import->functions, n, sizeof *import->functions, compare_call) : NULL;
}

const OnnxFunction *find_function(const Import *import, const OnnxNode *node) {
  const OnnxFunction **slot = find_slot(import, node);
  return slot ? *slot : NULL;
}

static const char *function_name(Arena *arena, const OnnxFunction *f) {
  return arena_printf(arena, "%s::%s", onnx_domain(f->head->domain), text_or_empty(f->head->name));
}

// ---- How much a call expands to -----------------------------------------------------------------------------------------------

typedef struct Cost { int64_t nodes; bool open; } Cost;      // nodes: 0 = not counted yet

// Nodes that a call of function `index` becomes; -1, complained of, when there is no end to it.
static int64_t count_nodes(Import *import, Cost *costs, size_t index, int depth) {
  const OnnxFunction *f = import->functions[index];
  Cost *cost = &costs[index];
  if (cost->nodes) return cost->nodes;
  const char *problem = cost->open ? "calls itself" : depth > CALL_DEPTH_MAX ? "is nested too deep in other functions" : NULL;
  if (problem) {
    import_problem(import, cost->open ? STATUS_MALFORMED : STATUS_RESOURCE, NULL, "function %s %s", function_name(import->arena, f), problem);
    return cost->nodes = -1;
  }
  cost->open = true;
  int64_t n = 1;
  for (size_t i = 0; i < f->n_nodes; i++) {
    const OnnxFunction **callee = find_slot(import, &f->nodes[i]);
    int64_t more = callee ? count_nodes(import, costs, (size_t)(callee - import->functions), depth + 1) : 1;
    if (more < 0) return cost->nodes = -1;
    n += more;
    if (n <= FUNCTION_NODES_MAX) continue;
    import_problem(import, STATUS_RESOURCE, NULL, "function %s expands to more than %" PRId64 " nodes", function_name(import->arena, f), FUNCTION_NODES_MAX);
    return cost->nodes = -1;
  }
  cost->open = false;
  return cost->nodes = n;
}

void import_functions(Import *import) {
  size_t n = import->onnx.n_functions;
  import->functions = ARENA_ARRAY(import->arena, const OnnxFunction *, n);
  for (size_t i = 0; i < n; i++) import->functions[i] = &import->onnx.functions[i];
  if (n) qsort(import->functions, n, sizeof *import->functions, compare_functions);
  for (size_t i = 1; i < n; i++)
    if (!compare_functions(&import->functions[i - 1], &import->functions[i]))
      import_problem(import, STATUS_MALFORMED, NULL, "function %s is there twice", function_name(import->arena, import->functions[i]));
  Cost *costs = ARENA_ARRAY(import->arena, Cost, n);
  int64_t total = 0;
  for (size_t i = 0; i < import->onnx.graph.n_nodes && total >= 0; i++) {
    const OnnxFunction **callee = find_slot(import, &import->onnx.graph.nodes[i]);
    if (callee) total += count_nodes(import, costs, (size_t)(callee - import->functions), 0);
  }
  for (size_t i = 0; i < n; i++)
    if (!import->n_problems) count_nodes(import, costs, i, 0);
  for (size_t i = 0; i < n; i++) import->stopped |= costs[i].nodes < 0;
}

// ---- Attributes ---------------------------------------------------------------------------------------------------------------

static const BoundAttr *find_bound(const NameScope *scope, const char *name) {
  for (size_t i = 0; i < scope->n_attrs; i++)
    if (!strcmp(scope->attrs[i].name, name)) return &scope->attrs[i];
  return NULL;
}

// The node with references replaced by what the call gives; what it does not give is left out. The node itself where there are none.
const OnnxNode *resolve_attrs(Import *import, const NameScope *scope, const OnnxNode *node, const char *label) {
  bool any = false;
  for (size_t i = 0; i < node->n_attrs; i++) any |= *text_or_empty(node->attrs[i].head->ref_attr_name) != 0;
  if (!any || !scope->function) return node;           // outside a function: import_attrs complains
  OnnxNode *own = arena_copy(import->arena, node, sizeof *node);
  own->attrs = ARENA_ARRAY(import->arena, OnnxAttr, node->n_attrs);
  own->n_attrs = 0;
  for (size_t i = 0; i < node->n_attrs; i++) {
    const OnnxAttr *a = &node->attrs[i];
    const char *ref = text_or_empty(a->head->ref_attr_name);
    const BoundAttr *bound = *ref ? find_bound(scope, ref) : NULL;
    if (!*ref) own->attrs[own->n_attrs++] = *a;
    else if (!bound) import_problem(import, STATUS_MALFORMED, label, "attribute %s refers to '%s', which is no attribute of function %s",
                                    text_or_empty(a->head->name), ref, scope->function);
    if (!bound || !bound->attr) continue;
    OnnxAttr *given = &own->attrs[own->n_attrs++];
    Onnx__AttributeProto *head = arena_copy(import->arena, bound->attr->head, sizeof *head);
    *given = *bound->attr;
    head->name = a->head->name;
    given->head = head;
  }
  return own;
}

static const OnnxAttr *find_default(const OnnxFunction *f, const char *name) {
  for (size_t i = 0; i < f->n_defaults; i++)
    if (!strcmp(text_or_empty(f->defaults[i].head->name), name)) return &f->defaults[i];
  return NULL;
}

static void bind_attrs(const Site *site, const OnnxFunction *f, NameScope *scope) {
  BoundAttr *attrs = ARENA_ARRAY(site->import->arena, BoundAttr, f->head->n_attribute + f->n_defaults);
  size_t n = 0;
  for (size_t i = 0; i < f->head->n_attribute; i++) {
    const char *name = text_or_empty(f->head->attribute[i]);
    attrs[n++] = (BoundAttr){name, onnx_attr(site->from, name)};
  }
  for (size_t i = 0; i < f->n_defaults; i++) {
    const char *name = text_or_empty(f->defaults[i].head->name);
    const OnnxAttr *given = onnx_attr(site->from, name);
    attrs[n++] = (BoundAttr){name, given ? given : find_default(f, name)};
  }
  scope->attrs = attrs;
  scope->n_attrs = n;
  for (size_t i = 0; i < site->from->n_attrs; i++) {
    const char *name = text_or_empty(site->from->attrs[i].head->name);
    if (!find_bound(scope, name)) site_problem(site, STATUS_MALFORMED, "function %s has no attribute '%s'", scope->function, name);
  }
}

// ---- A call -------------------------------------------------------------------------------------------------------------------

void import_call(const Site *site, const OnnxFunction *f) {
  Import *import = site->import;
  const Onnx__FunctionProto *head = f->head;
  NameScope *scope = scope_create(import, NULL, arena_printf(import->arena, "%s/", site->label));
  scope->function = function_name(import->arena, f);
  scope->opsets = head->opset_import;
  scope->n_opsets = head->n_opset_import;
  scope->depth = site->scope->depth + 1;
  if (site->from->head->n_input > head->n_input)
    site_problem(site, STATUS_MALFORMED, "function %s takes %zu inputs, the node gives %zu", scope->function, head->n_input, site->from->head->n_input);
  if (site->from->head->n_output > head->n_output)
    site_problem(site, STATUS_MALFORMED, "function %s gives %zu outputs, the node wants %zu", scope->function, head->n_output, site->from->head->n_output);
  for (size_t i = 0; i < head->n_input; i++) scope_bind(import, scope, text_or_empty(head->input[i]), site_input(site, i));
  bind_attrs(site, f, scope);
  for (size_t i = 0; i < head->n_output; i++) {
    ScopeEntry *e = scope_entry(import, scope, text_or_empty(head->output[i]));
    if (!e->defined && !e->declared) e->declared = site_declared(site, i);
  }
  import_scope_nodes(import, scope, f->nodes, f->n_nodes);
  for (size_t i = 0; i < head->n_output && !import->stopped; i++) {
    const Binding *b = scope_find(scope, text_or_empty(head->output[i]));
    if (b) site_bind(site, i, *b);
    else site_problem(site, STATUS_MALFORMED, "function %s never computes its output '%s'", scope->function, text_or_empty(head->output[i]));
  }
}
