// Nodes of a graph, subgraph or function, one at a time in topological order, into import->nodes.
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "import_state.h"
#include "sharding_spec.h"

enum { EXPANDED_NODE_BYTES = 4096 };
enum { EXPANDED_NODES_MAX = 50000, SCOPE_DEPTH_MAX = 200 };

const char *node_label(Arena *arena, const OnnxNode *node) {
  const char *name = text_or_empty(node->head->name);
  return *name ? name : arena_printf(arena, "%s_%zu", text_or_empty(node->head->op_type), node->index);
}

// ---- What a handler asks of its node ------------------------------------------------------------------------------------------

void site_problem(const Site *site, StatusCode code, const char *format, ...) {
  char what[900];
  va_list args;
  va_start(args, format);
  vsnprintf(what, sizeof what, format, args);
  va_end(args);
  import_problem(site->import, code, site->label, "%s: %s", text_or_empty(site->from->head->op_type), what);
}

Binding site_input(const Site *site, size_t index) {
  const char *name = index < site->from->head->n_input ? text_or_empty(site->from->head->input[index]) : "";
  if (!*name) return (Binding){.kind = BOUND_NOTHING};
  const Binding *b = scope_find(site->scope, name);
  if (b) return *b;
  if (site->scope->function)
    site_problem(site, STATUS_MALFORMED, "input '%s' is defined nowhere in function %s; functions see nothing of their callers", name, site->scope->function);
  else site_problem(site, STATUS_MALFORMED, "input '%s' is defined nowhere", name);
  return (Binding){.kind = BOUND_BROKEN};
}

Value *site_tensor(const Site *site, size_t index) {
  Binding b = site_input(site, index);
  if (b.kind == BOUND_UPDATE)
    site_problem(site, STATUS_UNSUPPORTED, "input %zu, '%s', comes from an operator of the training step; only the update may use it", index,
                 site->from->head->input[index]);
  if (b.kind == BOUND_SEQUENCE || b.kind == BOUND_OPTIONAL)
    site_problem(site, STATUS_UNSUPPORTED, "input %zu, '%s', is %s, not a tensor", index, site->from->head->input[index],
                 b.kind == BOUND_SEQUENCE ? "a sequence" : "an optional value");
  return b.value;
}

// The entry that output `index` defines; NULL where it has no name, or another node has it.
static ScopeEntry *output_entry(const Site *site, size_t index) {
  const char *name = index < site->from->head->n_output ? text_or_empty(site->from->head->output[index]) : "";
  ScopeEntry *e = *name ? scope_find_here(site->scope, name) : NULL;
  return e && e->producer == site->from->index + 1 ? e : NULL;
}

Value *site_declared(const Site *site, size_t index) {
  const ScopeEntry *e = output_entry(site, index);
  return e ? e->declared : NULL;
}

void site_bind(const Site *site, size_t index, Binding binding) {
  ScopeEntry *e = output_entry(site, index);
  if (!e) return;
  if (binding.kind == BOUND_TENSOR && e->declared && e->declared != binding.value) {
    site_add(site, "Identity", "out", 1, &binding.value, 1, &e->declared, NULL);
    binding.value = e->declared;
  }
  e->binding = binding;
  e->defined = true;
}

// Outputs that are not bound yet are broken.
static void site_break(const Site *site) {
  for (size_t i = 0; i < site->from->head->n_output; i++) {
    const ScopeEntry *e = output_entry(site, i);
    if (e && !e->defined) site_bind(site, i, (Binding){.kind = BOUND_BROKEN});
  }
}

int64_t site_attr_int(const Site *site, const char *name, int64_t otherwise) {
  const OnnxAttr *a = onnx_attr(site->from, name);
  return a && a->head->has_i ? a->head->i : otherwise;
}

static void set_output(Node *node, int index, Value *value) {
  node->outputs[index] = value;
  value->producer = node;
  value->output_index = index;
}

Value *const *site_add(const Site *site, const char *op, const char *suffix, int n_inputs, Value *const *inputs, int n_outputs, Value *const *outputs,
                       const AttrInit *attrs) {
  Import *import = site->import;
  const Op *row = op_find("", op);
  if (!row) row = op_find("tessera", op);
  if (!row) {
    import_problem(import, STATUS_UNSUPPORTED, site->label, "operator %s is not supported", op);
    return NULL;
  }
  const char *name = *suffix ? arena_printf(import->arena, "%s.%s", site->label, suffix) : site->label;
  Node *node = graph_make_node(import->graph, row, name, n_inputs, inputs, 0, NULL);
  node->origin = site->label;
  node->n_outputs = n_outputs;
  node->outputs = ARENA_ARRAY(import->arena, Value *, n_outputs);
  for (int i = 0; i < n_outputs; i++) set_output(node, i, outputs && outputs[i] ? outputs[i] : graph_add_value(import->graph, name));
  for (; attrs && attrs->name; attrs++) attr_set(import->graph, node, attrs);
  ARENA_PUSH(import->arena, import->nodes, import->n_nodes, import->nodes_capacity, node);
  return node->outputs;
}

static bool expansion_ends(Import *import, const char *label) {
  import_problem(import, STATUS_RESOURCE, label, "functions, loops and branches expand to more than %d nodes", EXPANDED_NODES_MAX);
  import->stopped = true;
  return false;
}

bool import_expand(Import *import, const char *label) {
  budget_allow(import->model, import->arena, EXPANDED_NODE_BYTES);
  if (++import->n_expanded <= EXPANDED_NODES_MAX || import->stopped) return !import->stopped;
  return expansion_ends(import, label);
}

bool import_expands_to(Import *import, const char *label, int64_t times, size_t n_nodes) {
  if (import->stopped) return false;
  return times <= (EXPANDED_NODES_MAX - import->n_expanded) / (int64_t)(1 + n_nodes) || expansion_ends(import, label);
}

// ---- Against the standard -----------------------------------------------------------------------------------------------------

static int trimmed(char *const *names, size_t n) {
  while (n && !*text_or_empty(names[n - 1])) n--;
  return n < INT_MAX ? (int)n : INT_MAX;
}

static bool check_standard(Site *site) {
  Import *import = site->import;
  const Onnx__NodeProto *head = site->from->head;
  const char *op = text_or_empty(head->op_type), *domain = onnx_domain(head->domain), *label = site->label;
  int64_t opset = scope_opset(site->scope, domain);
  if (!opset) {
    import_problem(import, STATUS_MALFORMED, label, "%s%s%s: the %s does not import domain '%s'", domain, *domain ? "::" : "", op,
                   site->scope->function ? "function" : "model", *domain ? domain : "ai.onnx");
    return false;
  }
  if (!schema_knows_domain(domain)) return true;
  const SchemaOp *schema = schema_find(domain, op, (int)(opset < INT_MAX ? opset : INT_MAX));
  const SchemaOp *ever = schema ? schema : schema_find(domain, op, INT_MAX);
  if (!ever && import->form.kind == FORM_ORT && op_find("com.microsoft", op)) return true;      // ONNX Runtime leaves its domain out at some of its own
  if (!schema && import->form.kind == FORM_ORT) schema = ever;          // and its fusions make operators that are newer than the opset it imports
  bool withdrawn = schema && schema->deprecated && !upgrade_reads(schema);
  if (!ever) import_problem(import, STATUS_MALFORMED, label, "%s is no operator of %s", op, *domain ? domain : "ai.onnx");
  else if (!schema) import_problem(import, STATUS_MALFORMED, label, "%s does not exist at opset %" PRId64 ", which the model imports", op, opset);
  else if (withdrawn) import_problem(import, STATUS_MALFORMED, label, "%s was removed in opset %d; the model imports %" PRId64, op, schema->since, opset);
  if (!schema || withdrawn) return false;
  site->schema = schema;
  int n_in = trimmed(head->input, head->n_input), n_out = trimmed(head->output, head->n_output);
  if (n_in < schema->min_inputs || n_in > schema->max_inputs)
    import_problem(import, STATUS_MALFORMED, label, "%s has %d inputs, it takes %d to %d", op, n_in, schema->min_inputs, schema->max_inputs);
  if (n_out < schema->min_outputs || n_out > schema->max_outputs)
    import_problem(import, STATUS_MALFORMED, label, "%s has %d outputs, it gives %d to %d", op, n_out, schema->min_outputs, schema->max_outputs);
  return n_in >= schema->min_inputs && n_in <= schema->max_inputs && n_out >= schema->min_outputs && n_out <= schema->max_outputs;
}

static void check_required_attrs(const Site *site) {
  for (int i = 0; site->schema && i < site->schema->n_attrs; i++) {
    const SchemaAttr *a = schema_attr_at(site->schema, i);
    if (a->required && !onnx_attr(site->from, a->name)) site_problem(site, STATUS_MALFORMED, "the required attribute %s is missing", a->name);
  }
}

static void check_row_arity(const Site *site, const Node *n) {
  const Op *op = n->op;
  if (n->n_inputs < op->min_inputs || (op->max_inputs != VARIADIC && n->n_inputs > op->max_inputs))
    import_problem(site->import, STATUS_UNSUPPORTED, n->name, "%s with %d inputs is not supported; %d to %d are", op->name, n->n_inputs, op->min_inputs,
                   op->max_inputs);
  if (n->n_outputs < op->min_outputs || (op->max_outputs != VARIADIC && n->n_outputs > op->max_outputs))
    import_problem(site->import, STATUS_UNSUPPORTED, n->name, "%s with %d outputs is not supported; %d to %d are", op->name, n->n_outputs, op->min_outputs,
                   op->max_outputs);
}

// ---- One node -----------------------------------------------------------------------------------------------------------------

// A value for output `index`, bound to its name; NULL where it has none.
static Value *new_output(const Site *site, size_t index) {
  ScopeEntry *e = output_entry(site, index);
  if (!e) return NULL;
  Value *v = e->declared;
  if (!v) v = graph_add_value(site->import->graph, arena_printf(site->import->arena, "%s%s", site->scope->prefix, e->name));
  e->binding = bound_tensor(v);
  e->defined = true;
  return v;
}

static void import_constant_node(const Site *site) {
  Weight weight;
  Value *v = new_output(site, 0);
  if (!v || import_absorb(site->import, constant_weight(site->import, site->from, site->label, &weight), site->label)) return;
  if (*site->scope->prefix) weight.path = NULL;        // not in the WeightSource: a plan carries its bytes
  make_constant(site->import, v, &weight);
}

// Operators that got another name and kept their meaning.
static const char *name_today(const char *domain, const char *op) {
  static const char *const renamed[][2] = {{"Scatter", "ScatterElements"}, {"Upsample", "Resize"}};
  for (size_t i = 0; !*domain && i < sizeof renamed / sizeof *renamed; i++)
    if (!strcmp(op, renamed[i][0])) return renamed[i][1];
  return op;
}

// What to do about an operator that has no row.
static const char *what_works(const char *domain, const char *op) {
  static const char *const of_training[] = {"InPlaceAccumulator", "InPlaceAccumulatorV2", "AdamOptimizer", "AdamWOptimizer", "SGDOptimizer", "SGDOptimizerV2",
                                            "LambOptimizer"};
  if (!strcmp(domain, "com.microsoft")) {
    for (size_t i = 0; i < sizeof of_training / sizeof *of_training; i++)
      if (!strcmp(op, of_training[i]))
        return "; it belongs to ONNX Runtime's training artifacts: give training_model.onnx, with checkpoint and optimizer_model.onnx beside it";
    return "; it is an optimization of ONNX Runtime: give the model as it was exported, before it was optimized";
  }
  return *domain && !schema_knows_domain(domain) ? ", and the model defines no such function" : "";
}

// Every operator that has a row.
static void import_row_node(const Site *site) {
  const Onnx__NodeProto *head = site->from->head;
  const char *name = text_or_empty(head->op_type), *domain = onnx_domain(head->domain);
  const Op *op = op_find(domain, name_today(domain, name));
  if (!op && site->import->form.kind == FORM_ORT) op = op_find("com.microsoft", name);
  if (!op) {
    import_problem(site->import, STATUS_UNSUPPORTED, site->label, "operator %s%s%s is not supported%s", domain, *domain ? "::" : "", name,
                   what_works(domain, name));
    site_break(site);
    return;
  }
  int n_in = trimmed(head->input, head->n_input), n_out = trimmed(head->output, head->n_output);
  Value **inputs = ARENA_ARRAY(site->import->arena, Value *, n_in);
  int n_given = 0;                                     // without inputs at the end that a function's caller leaves out
  for (int i = 0; i < n_in; i++) {
    const Binding *b = scope_find(site->scope, text_or_empty(head->input[i]));
    inputs[i] = site_tensor(site, (size_t)i);
    if (!b || b->kind != BOUND_NOTHING) n_given = i + 1;
  }
  n_in = n_given;
  Node *node = graph_make_node(site->import->graph, op, site->label, n_in, inputs, 0, NULL);
  node->origin = site->label;
  node->n_outputs = n_out;
  node->outputs = ARENA_ARRAY(site->import->arena, Value *, n_out);
  for (int i = 0; i < n_out; i++) {
    Value *v = new_output(site, (size_t)i);
    if (v) set_output(node, i, v);
  }
  Draft draft = {site->import, node, site->from, site->schema, scope_opset(site->scope, domain), ARENA_ARRAY(site->import->arena, bool, site->from->n_attrs)};
  import_absorb(site->import, sharding_import_node(site->import->graph, node, site->from), site->label);
  if (site->schema) upgrade_node(&draft);
  import_attrs(&draft);
  check_row_arity(site, node);
  ARENA_PUSH(site->import->arena, site->import->nodes, site->import->n_nodes, site->import->nodes_capacity, node);
}

static const struct { const char *op; void (*handle)(const Site *site); } handlers[] = {
    {"Constant", import_constant_node}, {"If", import_if}, {"Loop", import_loop}, {"Scan", import_scan}};

// Operators of the training step: what they mean is read by training_graph. Their results are no values of the graph.
static bool is_training_step(const Site *site) {
  const Import *import = site->import;
  const char *domain = onnx_domain(site->from->head->domain), *op = text_or_empty(site->from->head->op_type);
  if (import->onnx.training && site->scope == import->scope && !strcmp(domain, TRAINING_DOMAIN)) return true;
  return import->form.kind == FORM_ORT && !strcmp(domain, "com.microsoft") && !strcmp(op, "InPlaceAccumulatorV2");
}

static void import_node(Import *import, NameScope *scope, const OnnxNode *from) {
  const char *own = node_label(import->arena, from);
  Site site = {import, scope, from, *scope->prefix ? arena_printf(import->arena, "%s%s", scope->prefix, own) : own, NULL};
  if (*scope->prefix && !import_expand(import, site.label)) return;
  site.from = resolve_attrs(import, scope, from, site.label);
  const OnnxFunction *function = find_function(import, from);
  bool standard = !*onnx_domain(from->head->domain);
  if (is_training_step(&site)) {
    for (size_t i = 0; i < from->head->n_output; i++) site_bind(&site, i, (Binding){.kind = BOUND_UPDATE});
  } else if (function) {
    import_call(&site, function);
  } else if (check_standard(&site)) {
    size_t h = 0, n_handlers = sizeof handlers / sizeof *handlers;
    check_required_attrs(&site);
    while (h < n_handlers && (!standard || strcmp(handlers[h].op, text_or_empty(from->head->op_type)))) h++;
    if (h < n_handlers) handlers[h].handle(&site);
    else if (!import_composed(&site) && (!standard || !import_sequence(&site))) import_row_node(&site);
  }
  site_break(&site);
}

// ---- Order --------------------------------------------------------------------------------------------------------------------

// Names that the nodes define. Those of the model's graph get their values at once, so that made-up names give way to them.
static void declare(Import *import, NameScope *scope, const OnnxNode *nodes, size_t n) {
  for (size_t i = 0; i < n; i++) {
    for (size_t k = 0; k < nodes[i].head->n_output; k++) {
      const char *name = text_or_empty(nodes[i].head->output[k]);
      if (!*name) continue;
      ScopeEntry *e = scope_entry(import, scope, name);
      const Value *taken = e->defined ? e->binding.value : NULL;
      if (e->producer || e->defined) {
        import_problem(import, STATUS_MALFORMED, arena_printf(import->arena, "%s%s", scope->prefix, node_label(import->arena, &nodes[i])),
                       "output '%s' is %s already; every value is defined once", name,
                       e->producer ? "the output of another node" : taken && taken->weight ? "an initializer" : "an input");
        continue;
      }
      e->producer = i + 1;
      if (scope == import->scope) e->declared = graph_add_value(import->graph, name);
    }
  }
}

// Producers that node i waits for: deps[first[i]] .. deps[first[i + 1]].
typedef struct Order {
  Import *import;
  const NameScope *scope;
  uint32_t *deps;
  size_t n_deps, deps_capacity;
  bool sorted;                    // so far: every producer stands before its users
  size_t current;
} Order;

static void depend(Order *o, const char *name) {
  const ScopeEntry *e = scope_find_here(o->scope, name);
  if (!e || !e->producer) return;
  o->sorted &= e->producer - 1 < o->current;
  ARENA_PUSH(o->import->arena, o->deps, o->n_deps, o->deps_capacity, (uint32_t)(e->producer - 1));
}

static void depend_on_bytes(void *user, Bytes name) {
  Order *o = user;
  depend(o, arena_string_n(o->import->arena, (const char *)name.data, name.n));
}

// Depth first, producers before users, otherwise as they stand. False, once complained of: there is a cycle.
static bool sort_nodes(Import *import, const OnnxNode *nodes, size_t n, const size_t *first, const uint32_t *deps, uint32_t *order) {
  enum { UNSEEN, OPEN, DONE };
  typedef struct Frame { uint32_t node; size_t next; } Frame;
  unsigned char *state = arena_alloc(import->arena, n);
  Frame *stack = ARENA_ARRAY(import->arena, Frame, n + 1);
  size_t n_order = 0;
  for (size_t i = 0; i < n; i++) {
    if (state[i] != UNSEEN) continue;
    size_t depth = 0;
    stack[depth++] = (Frame){(uint32_t)i, first[i]};
    state[i] = OPEN;
    while (depth) {
      Frame *f = &stack[depth - 1];
      if (f->next == first[f->node + 1]) {
        state[f->node] = DONE;
        order[n_order++] = f->node;
        depth--;
        continue;
      }
      uint32_t d = deps[f->next++];
      if (state[d] == OPEN) {
        import_problem(import, STATUS_MALFORMED, node_label(import->arena, &nodes[f->node]), "the graph has a cycle: this node depends on its own output through '%s'",
                       node_label(import->arena, &nodes[d]));
        import->stopped = true;
        return false;
      }
      if (state[d] == DONE) continue;
      state[d] = OPEN;
      stack[depth++] = (Frame){d, first[d]};
    }
  }
  return true;
}

void import_scope_nodes(Import *import, NameScope *scope, const OnnxNode *nodes, size_t n) {
  declare(import, scope, nodes, n);
  Order o = {.import = import, .scope = scope, .sorted = true};
  size_t *first = ARENA_ARRAY(import->arena, size_t, n + 1);
  uint32_t *order = ARENA_ARRAY(import->arena, uint32_t, n);
  for (size_t i = 0; i < n; i++) {
    o.current = i;
    for (size_t k = 0; k < nodes[i].head->n_input; k++) depend(&o, text_or_empty(nodes[i].head->input[k]));
    onnx_subgraph_names(&nodes[i], depend_on_bytes, &o);
    first[i + 1] = o.n_deps;
    order[i] = (uint32_t)i;
  }
  if (!o.sorted && !sort_nodes(import, nodes, n, first, o.deps, order)) return;
  for (size_t i = 0; i < n && !import->stopped; i++) import_node(import, scope, &nodes[order[i]]);
}

// ---- Graphs -------------------------------------------------------------------------------------------------------------------

void import_subgraph(const Site *site, const OnnxGraph *g, const char *suffix, const Binding *inputs, size_t n_inputs, Value *const *declared, Binding *out) {
  Import *import = site->import;
  NameScope *scope = scope_create(import, site->scope, arena_printf(import->arena, "%s/%s", site->label, suffix));
  for (size_t i = 0; i < g->head->n_output; i++) out[i] = (Binding){.kind = BOUND_BROKEN};
  if (scope->depth > SCOPE_DEPTH_MAX) {
    import_problem(import, STATUS_RESOURCE, site->label, "functions and subgraphs are nested deeper than %d", SCOPE_DEPTH_MAX);
    import->stopped = true;
    return;
  }
  for (size_t i = 0; i < n_inputs && i < g->head->n_input; i++) scope_bind(import, scope, text_or_empty(g->head->input[i]->name), inputs[i]);
  import_initializers(import, scope, g);
  for (size_t i = 0; declared && i < g->head->n_output; i++) {
    ScopeEntry *e = scope_entry(import, scope, text_or_empty(g->head->output[i]->name));
    if (!e->defined && !e->declared) e->declared = declared[i];
  }
  import_scope_nodes(import, scope, g->nodes, g->n_nodes);
  for (size_t i = 0; i < g->head->n_output && !import->stopped; i++) {
    const char *name = text_or_empty(g->head->output[i]->name);
    const Binding *b = scope_find(scope, name);
    if (b) out[i] = *b;
    else site_problem(site, STATUS_MALFORMED, "output '%s' of its subgraph is defined nowhere", name);
  }
}

void import_nodes(Import *import) {
  Graph *g = import->graph;
  for (size_t i = 0; i < g->n_values; i++) scope_bind(import, import->scope, g->values[i]->name, bound_tensor(g->values[i]));
  import_scope_nodes(import, import->scope, import->onnx.graph.nodes, import->onnx.graph.n_nodes);
  import_forget(import);
  if (import->n_problems || import_absorb(import, graph_sort(g, import->nodes, import->n_nodes), NULL)) return;
  g->nodes = import->nodes;
  g->n_nodes = import->n_nodes;
  g->nodes_capacity = import->nodes_capacity;
}
