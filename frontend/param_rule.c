// Which initializers train. Marks of the exporter where it wrote them; else a rule over how the value is used; patterns override both.
//
// The rule: a float initializer that is no scalar trains when it reaches the loss through slots that have a gradient and, followed through
// views and Concat, is used as: data of Gather; operand of a matrix product; weight or bias of a convolution; scale or bias of a
// normalisation; summand (not one element, all finite, all below 1e4: else it is an offset or a mask); factor with more than one element in
// one dimension only (a scale per channel: else it is a mask or a table). Everything else is a constant.
#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "../ir/name_pattern.h"
#include "import_state.h"

#define MARK_KIND "pkg.torch.export.graph_signature.InputSpec.kind"
#define MASK_MAGNITUDE 1e4

typedef struct Use { const Node *node; int input; } Use;
typedef struct Uses { Use *items; uint32_t *first; } Uses;      // uses of value v: items[first[v]] .. items[first[v + 1]]

static Uses collect_uses(const Graph *g, Arena *arena) {
  Uses uses = {.first = ARENA_ARRAY(arena, uint32_t, g->n_values + 2)};
  uint32_t *next = uses.first + 1;                               // shifted by one while filling
  for (size_t i = 0; i < g->n_nodes; i++)
    for (int k = 0; k < g->nodes[i]->n_inputs; k++)
      if (g->nodes[i]->inputs[k]) next[g->nodes[i]->inputs[k]->id + 1]++;
  for (size_t v = 0; v < g->n_values; v++) next[v + 1] += next[v];
  uses.items = ARENA_ARRAY(arena, Use, next[g->n_values]);
  for (size_t i = 0; i < g->n_nodes; i++)
    for (int k = 0; k < g->nodes[i]->n_inputs; k++)
      if (g->nodes[i]->inputs[k]) uses.items[next[g->nodes[i]->inputs[k]->id]++] = (Use){g->nodes[i], k};
  return uses;
}

static bool is_op(const Node *node, const char *names) {         // names: " A B C "
  char name[64];
  size_t n = strlen(node->op->name);
  if (*node->op->domain || n + 3 > sizeof name) return false;
  name[0] = ' ';
  memcpy(name + 1, node->op->name, n);
  name[n + 1] = ' ';
  name[n + 2] = 0;
  return strstr(names, name) != NULL;
}

static bool slot_has_gradient(const Node *node, int input) {
  if (input < 32 && node->op->nondifferentiable >> input & 1) return false;
  return node->op->grad != NULL;
}

// ---- Reaching the loss --------------------------------------------------------------------------------------------------------

static bool declared_scalar_float(const Import *import, size_t output) {
  const Onnx__ValueInfoProto *info = import->onnx.graph.head->output[output];
  if (!info->type || info->type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE) return false;
  const Onnx__TypeProto__Tensor *t = info->type->tensor_type;
  if (!dtype_known(t->elem_type) || !dtype_is_float((Dtype)t->elem_type) || !t->shape) return false;
  for (size_t i = 0; i < t->shape->n_dim; i++)
    if (t->shape->dim[i]->value_case != ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE || t->shape->dim[i]->dim_value != 1) return false;
  return true;
}

// reaches[id] for every value that has a differentiable path to the loss, or to any output where no loss is evident.
static bool *find_reaching(const Import *import) {
  const Graph *g = import->graph;
  bool *reaches = ARENA_ARRAY(import->arena, bool, g->n_values + 1);
  const char *wanted = import->options->loss_output;
  size_t loss = g->n_outputs;
  for (size_t i = 0; i < g->n_outputs && loss == g->n_outputs; i++)
    if (wanted ? !strcmp(g->outputs[i]->name, wanted) : declared_scalar_float(import, i)) loss = i;
  for (size_t i = 0; i < g->n_outputs; i++)
    if (i == loss || loss == g->n_outputs) reaches[g->outputs[i]->id] = true;
  for (size_t i = g->n_nodes; i-- > 0;) {
    const Node *n = g->nodes[i];
    bool any = false;
    for (int k = 0; k < n->n_outputs; k++) any |= n->outputs[k] && reaches[n->outputs[k]->id];
    for (int k = 0; any && k < n->n_inputs; k++)
      if (n->inputs[k] && slot_has_gradient(n, k)) reaches[n->inputs[k]->id] = true;
  }
  return reaches;
}

// ---- The rule -----------------------------------------------------------------------------------------------------------------

// All that the rule looks at; `root` is the initializer in question.
typedef struct Rule {
  Import *import;
  Uses uses;
  const bool *reaches;
  const char **kinds;            // the exporter's mark per value, or NULL
  const Value *root;
  int root_is_bias;              // -1: not looked at yet
  uint32_t *seen;                // per value: id of the last root that came by, + 1
  const Value **stack;
  int64_t budget;                // steps left over all roots: hostile graphs chain views
} Rule;
enum { RULE_STEPS_MAX = 100000000 };

static bool looks_like_bias(Rule *rule) {
  if (rule->root_is_bias >= 0) return rule->root_is_bias;
  const Value *v = rule->root;
  int64_t n = type_elems(&v->type);
  rule->root_is_bias = n != 1;
  for (int64_t i = 0; i < n && rule->root_is_bias && v->weight->bytes; i++) {      // absent: taken for what it looks like in the graph
    double x = weight_read_float(v->weight, i);
    if (!isfinite(x) || fabs(x) >= MASK_MAGNITUDE) rule->root_is_bias = 0;
  }
  return rule->root_is_bias;
}

static bool is_per_channel(const Type *type) {
  int wide = 0;
  for (int i = 0; i < type->rank; i++) wide += type->dims[i] > 1;
  return wide == 1;
}

// What this use makes of the root: a phrase, or NULL where it makes nothing of it.
static const char *role_of_use(Rule *rule, const Use *use) {
  const Node *n = use->node;
  if (is_op(n, " Gather ") && use->input == 0) return "data of Gather";
  if (is_op(n, " MatMul Gemm Einsum ")) return "operand of a matrix product";
  if (is_op(n, " Conv ConvTranspose ") && use->input > 0) return "weight or bias of a convolution";
  if (is_op(n, " LayerNormalization BatchNormalization InstanceNormalization GroupNormalization RMSNormalization ") && use->input > 0 &&
      use->input < 3)
    return "scale or bias of a normalisation";
  if (is_op(n, " LSTM GRU RNN ") && use->input > 0 && use->input < 4) return "weight or bias of a recurrent layer";
  if (is_op(n, " PRelu ") && use->input == 1) return "slope of PRelu";
  if (is_op(n, " Add Sub ") && looks_like_bias(rule)) return "summand";
  if (is_op(n, " Mul Div ") && is_per_channel(&rule->root->type)) return "scale per channel";
  return NULL;
}

static bool is_alive(const Rule *rule, const Use *use) {
  if (!slot_has_gradient(use->node, use->input)) return false;
  for (int k = 0; k < use->node->n_outputs; k++)
    if (use->node->outputs[k] && rule->reaches[use->node->outputs[k]->id]) return true;
  return false;
}

// Follows views from the root to a use that says what it is; NULL: none does.
static const char *find_role(Rule *rule, const Value *root) {
  const Uses *uses = &rule->uses;
  size_t n = 0;
  rule->root = root;
  rule->root_is_bias = -1;
  rule->stack[n++] = root;
  rule->seen[root->id] = root->id + 1;
  while (n) {
    const Value *v = rule->stack[--n];
    for (uint32_t i = uses->first[v->id]; i < uses->first[v->id + 1]; i++) {
      const Node *node = uses->items[i].node;
      if (--rule->budget <= 0 || !is_alive(rule, &uses->items[i])) continue;
      const char *role = role_of_use(rule, &uses->items[i]);
      if (role) return arena_printf(rule->import->arena, "%s at node '%s'", role, node->name);
      if (!is_op(node, " Reshape Transpose Identity Squeeze Unsqueeze Flatten Cast Concat Expand Split Slice ")) continue;
      for (int k = 0; k < node->n_outputs; k++) {
        const Value *out = node->outputs[k];
        if (!out || rule->seen[out->id] == root->id + 1) continue;
        rule->seen[out->id] = root->id + 1;
        rule->stack[n++] = out;
      }
    }
  }
  return NULL;
}

// ---- Marks and patterns -------------------------------------------------------------------------------------------------------

static void read_marks(Rule *rule, Onnx__ValueInfoProto *const *infos, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const char *kind = onnx_metadata(infos[i]->metadata_props, infos[i]->n_metadata_props, MARK_KIND);
    const Value *v = kind ? graph_find_value(rule->import->graph, text_or_empty(infos[i]->name)) : NULL;
    if (v) rule->kinds[v->id] = kind;
  }
}

static void check_patterns(Import *import, const char *option, const char *list) {
  const OnnxGraph *g = &import->onnx.graph;
  for (char pattern[NAME_PATTERN_BYTES]; name_pattern_next(&list, pattern, sizeof pattern);) {
    bool any = false;
    for (size_t i = 0; i < g->n_initializers && !any; i++) any = !fnmatch(pattern, text_or_empty(g->initializers[i].head->name), 0);
    if (!any) import_problem(import, STATUS_USAGE, NULL, "%s %s matches no initializer; `tessera show` lists them", option, pattern);
  }
}

// ---- Decision -----------------------------------------------------------------------------------------------------------------

static void set_param(Value *v, bool trainable, const char *doc) {
  v->role = ROLE_PARAM;
  v->trainable = trainable;
  v->doc = doc;
}

static void decide(Rule *rule, Value *v) {
  const ImportOptions *options = rule->import->options;
  const char *kind = rule->kinds[v->id], *role;
  Arena *arena = rule->import->arena;
  v->role = ROLE_CONST;
  if (!dtype_is_float(v->type.dtype)) v->doc = "not floating point";
  else if (kind && strstr(kind, "PARAMETER") && rule->reaches[v->id]) set_param(v, true, "marked PARAMETER by the exporter");
  else if (kind && strstr(kind, "PARAMETER")) set_param(v, false, "marked PARAMETER by the exporter, but the loss does not depend on it");
  else if (kind) v->doc = arena_printf(arena, "marked %s by the exporter", kind);
  else if (v->type.rank == 0) v->doc = "a scalar";
  else if (!rule->reaches[v->id]) v->doc = "no differentiable path to the loss";
  else if ((role = find_role(rule, v))) set_param(v, true, role);
  else v->doc = "used as no parameter is";
  if (!dtype_is_float(v->type.dtype)) return;
  if (options->params && name_pattern_matches(options->params, v->name)) set_param(v, true, "named by --params");
  else if (options->params && v->role == ROLE_PARAM) set_param(v, false, "not named by --params");
  if (options->freeze && name_pattern_matches(options->freeze, v->name)) {
    if (v->role == ROLE_PARAM) set_param(v, false, "named by --freeze");
    else v->doc = "named by --freeze";
  }
}

void assign_roles(Import *import) {
  Graph *g = import->graph;
  const OnnxGraph *onnx = &import->onnx.graph;
  tie_params(import);
  check_patterns(import, "--params", import->options->params);
  check_patterns(import, "--freeze", import->options->freeze);
  Rule rule = {.import = import, .uses = collect_uses(g, import->arena), .reaches = find_reaching(import), .budget = RULE_STEPS_MAX};
  rule.kinds = ARENA_ARRAY(import->arena, const char *, g->n_values);
  rule.seen = ARENA_ARRAY(import->arena, uint32_t, g->n_values);
  rule.stack = ARENA_ARRAY(import->arena, const Value *, g->n_values + 1);
  read_marks(&rule, onnx->head->value_info, onnx->head->n_value_info);
  read_marks(&rule, onnx->head->input, onnx->head->n_input);
  for (size_t i = 0; i < onnx->n_initializers; i++) {
    Value *v = graph_find_value(g, text_or_empty(onnx->initializers[i].head->name));
    if (v && v->weight) decide(&rule, v);
  }
  for (size_t i = 0; i < import->form.n_given; i++) {
    Value *v = graph_find_value(g, import->form.given[i]->name);
    if (v && v->weight) decide(&rule, v);
  }
  warn_of_sharing(import);
  if (rule.budget <= 0) import_problem(import, STATUS_RESOURCE, NULL, "finding the parameters takes more than %d steps; name them with --params", RULE_STEPS_MAX);
}
