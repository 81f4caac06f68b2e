// The second half of importing a graph that contains its training: parameters that are inputs get their values, gradients get their role, and the
// optimizer that the model brings is read. What the gradients are computed by stays as it is; build_backward takes them over.
#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/name_pattern.h"
#include "import_state.h"

Status form_check_given(const Form *form) {
  for (size_t i = 0; i < form->n_params; i++)
    if (form_lacks(form, form->params[i].name))
      FAIL(USAGE, NULL, "the %zu parameters of this training graph are inputs ('%s', ...); give their values with --weights FILE.safetensors%s", form->n_params,
           form->params[i].name, form->kind == FORM_ORT ? ", or put the file 'checkpoint' of the artifacts beside it" : "");
  return STATUS_OK;
}

// ---- Before the nodes: inputs that are no data --------------------------------------------------------------------------------

// Does the input's declaration allow this type? Open dimensions allow any size.
static bool declaration_fits(const ModelInput *in, const Type *type) {
  if (in->dtype != DTYPE_NONE && in->dtype != type->dtype) return false;
  if (in->rank < 0) return true;
  bool fits = in->rank == type->rank;
  for (int i = 0; fits && i < in->rank; i++) fits = in->dims[i] < 0 || in->dims[i] == type->dims[i];
  return fits;
}

static void bind_given(Import *import, const Onnx__ValueInfoProto *info, const Weight *w) {
  ModelInput in;
  char text[160];
  if (import_absorb(import, describe_input(info, &in), NULL)) return;
  if (!declaration_fits(&in, &w->type)) {
    import_problem(import, STATUS_USAGE, NULL, "input '%s': its given value is %s, which does not fit the model's declaration", w->name,
                   type_text(&w->type, text, sizeof text));
    return;
  }
  make_constant(import, graph_add_value(import->graph, w->name), w);
}

static void bind_seed(Import *import, const Onnx__ValueInfoProto *info) {
  ModelInput in;
  if (import_absorb(import, describe_input(info, &in), NULL)) return;
  Type type = {.dtype = in.dtype == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32, .rank = in.rank < 0 ? 0 : in.rank};
  for (int i = 0; i < type.rank; i++) type.dims[i] = in.dims[i] < 0 ? 1 : in.dims[i];
  if (type_elems(&type) != 1) {
    import_problem(import, STATUS_UNSUPPORTED, NULL, "input '%s' seeds %" PRId64 " adjoints at once; one is supported", in.name, type_elems(&type));
    return;
  }
  void *one = arena_alloc(import->arena, 8);
  element_write(one, type.dtype, 0, 1);
  make_constant(import, graph_add_value(import->graph, in.name), &(Weight){.type = type, .bytes = one});
}

void form_bind_inputs(Import *import) {
  const Onnx__GraphProto *head = import->onnx.graph.head;
  for (size_t i = 0; i < head->n_input; i++) {
    const char *name = text_or_empty(head->input[i]->name);
    if (!*name || graph_find_value(import->graph, name)) continue;
    const Weight *w = form_given(&import->form, name);
    if (w) bind_given(import, head->input[i], w);
    else if (name_listed(&import->form.seeds, name)) bind_seed(import, head->input[i]);
  }
}

// ---- The optimizer that the model brings --------------------------------------------------------------------------------------

// 0.9f is what a model means by 0.9: the shortest decimal that reads back as the same float.
static double meant(float f) {
  char text[40];
  for (int digits = 6; digits <= 9; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, f);
    if (strtof(text, NULL) == f) break;
  }
  return strtod(text, NULL);
}

static double attr_real(const OnnxNode *n, const char *name, double otherwise) {
  const OnnxAttr *a = onnx_attr(n, name);
  return a && a->head->has_f ? meant(a->head->f) : otherwise;
}

static int64_t attr_whole(const OnnxNode *n, const char *name, int64_t otherwise) {
  const OnnxAttr *a = onnx_attr(n, name);
  return a && a->head->has_i ? a->head->i : otherwise;
}

// The attributes of an optimizer node; name NULL: it is none.
static OwnOptimizer read_rule(const OnnxNode *n) {
  const char *op = text_or_empty(n->head->op_type);
  OwnOptimizer o = {.lr = -1, .correct_bias = true};
  if (!strcmp(op, "Momentum")) {
    const OnnxAttr *mode = onnx_attr(n, "mode");
    o.name = "model_momentum";
    o.alpha = attr_real(n, "alpha", 0);
    o.beta = attr_real(n, "beta", 0);
    o.norm_coefficient = attr_real(n, "norm_coefficient", 0);
    o.nesterov = mode && mode->head->s.len == 8 && !memcmp(mode->head->s.data, "nesterov", 8);
  } else if (!strcmp(op, "Adagrad")) {
    o.name = "model_adagrad";
    o.epsilon = attr_real(n, "epsilon", 0);
    o.decay_factor = attr_real(n, "decay_factor", 0);
    o.norm_coefficient = attr_real(n, "norm_coefficient", 0);
  } else if (!strcmp(op, "Adam")) {
    o.name = "model_adam";
    o.alpha = attr_real(n, "alpha", 0.9);
    o.beta = attr_real(n, "beta", 0.999);
    o.epsilon = attr_real(n, "epsilon", 0);
    o.norm_coefficient = attr_real(n, "norm_coefficient", 0);
    o.post = attr_real(n, "norm_coefficient_post", 0);
  }
  return o;
}

static bool same_rule(const OwnOptimizer *a, const OwnOptimizer *b) {
  return !strcmp(a->name, b->name) && a->lr == b->lr && a->alpha == b->alpha && a->beta == b->beta && a->epsilon == b->epsilon && a->post == b->post &&
         a->norm_coefficient == b->norm_coefficient && a->decay_factor == b->decay_factor && a->initial == b->initial && a->nesterov == b->nesterov && a->t0 == b->t0;
}

// An initializer or constant of one element.
static const Weight *scalar_of(const Import *import, const char *name) {
  const Value *v = graph_find_value(import->graph, name);
  return v && v->weight && v->weight->bytes && type_elems(&v->weight->type) == 1 ? v->weight : NULL;
}

// ---- training_info: bindings and optimizer nodes ------------------------------------------------------------------------------

static const char *updated_name(const Import *import, const char *name) {
  const Onnx__TrainingInfoProto *info = import->onnx.training;
  for (size_t i = 0; i < info->n_update_binding; i++)
    if (!strcmp(text_or_empty(info->update_binding[i]->key), name)) return text_or_empty(info->update_binding[i]->value);
  return NULL;
}

static void check_bindings(Import *import, Onnx__StringStringEntryProto *const *bindings, size_t n, const char *which) {
  for (size_t i = 0; i < n; i++) {
    const Value *v = graph_find_value(import->graph, text_or_empty(bindings[i]->key));
    if (!v || !v->weight)
      import_problem(import, STATUS_MALFORMED, NULL, "training_info: %s names '%s', which is no initializer", which, text_or_empty(bindings[i]->key));
  }
}

// The value that all elements of a state start from; false once complained of.
static bool state_start(Import *import, const char *label, const char *name, double *out) {
  const Value *v = graph_find_value(import->graph, name);
  if (!v || !v->weight || !v->weight->bytes) {
    import_problem(import, STATUS_UNSUPPORTED, label, "the optimizer state '%s' is no initializer", name);
    return false;
  }
  int64_t n = type_elems(&v->weight->type);
  *out = n ? weight_read_float(v->weight, 0) : 0;
  for (int64_t i = 1; i < n; i++)
    if (weight_read_float(v->weight, i) != *out) {
      import_problem(import, STATUS_UNSUPPORTED, label, "the optimizer state '%s' starts from different values; one value for all elements is supported", name);
      return false;
    }
  return true;
}

static const char *grad_param(const Import *import, const char *grad) {
  for (size_t i = 0; i < import->form.n_params; i++)
    if (import->form.params[i].grad && !strcmp(import->form.params[i].grad, grad)) return import->form.params[i].name;
  return NULL;
}

// One optimizer node: R, T, parameters, gradients, states.
static void read_optimizer_node(Import *import, const OnnxNode *n, OwnOptimizer *own) {
  const Onnx__NodeProto *head = n->head;
  const char *label = node_label(import->arena, n);
  OwnOptimizer rule = read_rule(n);
  size_t n_states = !strcmp(rule.name, "model_adam") ? 2 : 1, per_param = 2 + n_states;
  if (head->n_input < 2 + per_param || (head->n_input - 2) % per_param || head->n_output != (head->n_input - 2) / per_param * (1 + n_states)) {
    import_problem(import, STATUS_MALFORMED, label, "%s has %zu inputs and %zu outputs, which fit no number of parameters",
                   text_or_empty(head->op_type), head->n_input, head->n_output);
    return;
  }
  size_t n_params = (head->n_input - 2) / per_param;
  const Weight *lr = scalar_of(import, text_or_empty(head->input[0])), *t = scalar_of(import, text_or_empty(head->input[1]));
  if (!lr || !t) import_problem(import, STATUS_UNSUPPORTED, label, "learning rate and step count must be initializers of one element");
  if (!lr || !t) return;
  rule.lr = meant((float)weight_read_float(lr, 0));
  rule.t0 = weight_read_int(t, 0);
  for (size_t i = 0; i < n_params; i++) {
    const char *param = text_or_empty(head->input[2 + i]), *grad = text_or_empty(head->input[2 + n_params + i]), *of = grad_param(import, grad);
    const char *updated = updated_name(import, param);
    if (!of || strcmp(of, param))
      import_problem(import, STATUS_UNSUPPORTED, label, "'%s' is updated by '%s', which is not its gradient as a Gradient node gives it", param, grad);
    if (!updated || strcmp(updated, text_or_empty(head->output[i])))
      import_problem(import, STATUS_UNSUPPORTED, label, "update_binding does not bind '%s' to this node's output '%s'", param, text_or_empty(head->output[i]));
    for (size_t s = 0; s < n_states; s++) {
      double start;
      if (!state_start(import, label, text_or_empty(head->input[2 + (2 + s) * n_params + i]), &start)) return;
      if (start != 0 && strcmp(rule.name, "model_adagrad")) import_problem(import, STATUS_UNSUPPORTED, label, "a state that does not start from 0");
      rule.initial = start;
    }
  }
  if (own->name && !same_rule(own, &rule))
    import_problem(import, STATUS_UNSUPPORTED, label, "its hyper-parameters differ from those of another optimizer node; one rule for all parameters is supported");
  *own = rule;
}

static void read_training_info(Import *import, OwnOptimizer *own) {
  const Onnx__TrainingInfoProto *info = import->onnx.training;
  check_bindings(import, info->update_binding, info->n_update_binding, "update_binding");
  check_bindings(import, info->initialization_binding, info->n_initialization_binding, "initialization_binding");
  for (size_t i = 0; i < import->onnx.graph.n_nodes; i++) {
    const OnnxNode *n = &import->onnx.graph.nodes[i];
    if (!strcmp(onnx_domain(n->head->domain), TRAINING_DOMAIN) && read_rule(n).name) read_optimizer_node(import, n, own);
  }
  if (import->form.kind != FORM_INFO) import_problem(import, STATUS_UNSUPPORTED, NULL, "training_info without a Gradient node says nothing of what trains");
}

// ---- ONNX Runtime: optimizer_model.onnx beside the training model -------------------------------------------------------------

static Status read_optimizer_model(Import *import, Bytes bytes, const char *path, OwnOptimizer *own) {
  OnnxModel onnx;
  TRY(wire_scan(bytes, &onnx__model_proto__descriptor, path));
  TRY(onnx_decode_model(bytes, import->arena, &onnx));
  for (size_t i = 0; i < onnx.graph.n_nodes; i++) {
    const OnnxNode *n = &onnx.graph.nodes[i];
    const char *op = text_or_empty(n->head->op_type);
    if (strcmp(onnx_domain(n->head->domain), "com.microsoft")) continue;
    *own = (OwnOptimizer){.lr = -1, .correct_bias = attr_whole(n, "correct_bias", 1) != 0};
    if (!strcmp(op, "AdamWOptimizer")) {
      bool torch = attr_whole(n, "adam_mode", 0) == 0;
      own->name = torch ? "adamw" : "model_adam";
      own->alpha = attr_real(n, "alpha", 0.9);
      own->beta = attr_real(n, "beta", 0.999);
      own->epsilon = attr_real(n, "epsilon", 1e-8);
      own->post = attr_real(n, "weight_decay", 1e-2);
      own->post_by_lr = true;
      own->t0 = 1;
      if (torch && !own->correct_bias) FAIL(UNSUPPORTED, node_label(import->arena, n), "AdamWOptimizer with adam_mode 0 and correct_bias 0 is not supported");
      return STATUS_OK;
    }
    if (!strcmp(op, "SGDOptimizerV2")) {
      own->name = "sgd";
      return STATUS_OK;
    }
    FAIL(UNSUPPORTED, node_label(import->arena, n), "%s: the optimizer %s is not supported; name another with --optimizer", path, op);
  }
  FAIL(UNSUPPORTED, NULL, "%s holds no optimizer that is known; name one with --optimizer", path);
}

static Status read_ort_optimizer(Import *import, OwnOptimizer *own) {
  const char *path = arena_printf(import->arena, "%s/optimizer_model.onnx", import->model->external.folder);
  Bytes bytes;
  Status status = file_map(path, &bytes);
  if (status && status->code == STATUS_IO) {             // no such file: the user names the optimizer
    status_free(status);
    return STATUS_OK;
  }
  TRY(status);
  status = read_optimizer_model(import, bytes, path, own);
  file_unmap(bytes);
  return status;
}

// ---- Joint graphs: X.new = X - rate * gradient --------------------------------------------------------------------------------

static const Value *through_identity(const Value *v) {
  while (v && v->producer && !strcmp(v->producer->op->name, "Identity")) v = v->producer->inputs[0];
  return v;
}

// The gradient in `updated` and its rate; NULL: the step is of another form.
static Value *sgd_gradient(const Value *updated, const Value *param, double *rate) {
  const Value *v = through_identity(updated);
  const Node *sub = v ? v->producer : NULL;
  if (!sub || strcmp(sub->op->name, "Sub") || through_identity(sub->inputs[0]) != param) return NULL;
  const Value *scaled = through_identity(sub->inputs[1]);
  const Node *mul = scaled ? scaled->producer : NULL;
  if (!mul || strcmp(mul->op->name, "Mul")) return NULL;
  for (int i = 0; i < 2; i++) {
    const Weight *w = mul->inputs[i] ? mul->inputs[i]->weight : NULL;
    if (!w || !w->bytes || type_elems(&w->type) != 1) continue;
    *rate = w->type.dtype == DTYPE_F32 ? meant((float)weight_read_float(w, 0)) : weight_read_float(w, 0);
    return mul->inputs[1 - i];
  }
  return NULL;
}

// ---- After the nodes ----------------------------------------------------------------------------------------------------------

static Value *bound_value(const Import *import, const char *name) {
  const Binding *b = name ? scope_find(import->scope, name) : NULL;
  return b && b->kind == BOUND_TENSOR ? b->value : NULL;
}

static Value *append(Import *import, const char *op, const char *name, int n_inputs, Value *const *inputs) {
  const Op *row = op_find("", op);
  Node *node = graph_make_node(import->graph, row, name, n_inputs, inputs, 1, NULL);
  node->origin = inputs[0]->producer ? inputs[0]->producer->origin : NULL;
  graph_append(import->graph, node);
  return node->outputs[0];
}

static void mark_gradient(Import *import, Value *param, Value *grad) {
  Arena *arena = import->arena;
  const char *name = arena_printf(arena, "%s.grad", param->name);
  if (import->form.kind == FORM_ADJOINT) {                       // a trailing axis of size 1
    Value *shape = import_int64s(import, arena_printf(arena, "%s.shape", name), param->type.dims, param->type.rank);
    grad = append(import, "Reshape", name, 2, (Value *[]){grad, shape});
  } else if (grad->role != ROLE_ACTIVATION || !grad->producer) {
    grad = append(import, "Identity", name, 1, &grad);
  }
  grad->role = ROLE_GRAD;
  grad->of = param;
  if (!graph_find_value(import->graph, name)) graph_rename_value(import->graph, grad, name);
}

// The parameter of the form, ready to train; NULL once complained of, or when it is data.
static Value *form_param(Import *import, const FormParam *p, const char **missing) {
  Value *v = graph_find_value(import->graph, p->name);
  const ImportOptions *o = import->options;
  if (!v || !v->weight) {
    bool data = import->form.kind == FORM_ADJOINT && import->form.n_given && v && v->role == ROLE_INPUT;   // the adjoint of a batch
    if (!data && !*missing) *missing = p->name;
    return NULL;
  }
  v->role = ROLE_PARAM;
  v->trainable = !(o->params && !name_pattern_matches(o->params, v->name)) && !(o->freeze && name_pattern_matches(o->freeze, v->name));
  v->doc = v->trainable ? "the graph computes its gradient" : "frozen by --params or --freeze";
  return v;
}

static void finish_params(Import *import, OwnOptimizer *own) {
  const Form *form = &import->form;
  const char *missing = NULL, *foreign = NULL;
  for (size_t i = 0; i < form->n_params; i++) {
    const FormParam *p = &form->params[i];
    Value *param = form_param(import, p, &missing), *grad = bound_value(import, p->grad);
    if (!param || form->kind == FORM_INFO) continue;
    double rate = -1;
    Value *stepped = p->updated ? sgd_gradient(bound_value(import, p->updated), param, &rate) : NULL;
    if (p->updated && (!stepped || (own->name && own->lr != rate))) foreign = foreign ? foreign : p->name;
    else if (p->updated) *own = (OwnOptimizer){.name = "sgd", .lr = rate};
    if (!grad) grad = stepped;
    if (!grad) import_problem(import, STATUS_UNSUPPORTED, NULL, "the graph updates '%s' in a way that shows no gradient", p->name);
    else if (param->trainable) mark_gradient(import, param, grad);
  }
  if (missing) import_problem(import, STATUS_MALFORMED, NULL, "the graph trains '%s', which is no initializer and no input with a value", missing);
  if (foreign) {
    own->name = NULL;
    import_warning(import, "the graph's own update of '%s' is not plain SGD at one rate; its gradients are used, with the optimizer of the command line", foreign);
  }
}

void form_finish(Import *import) {
  OwnOptimizer *own = ARENA_NEW(import->arena, OwnOptimizer);
  Graph *g = import->graph;
  *own = (OwnOptimizer){.lr = -1};
  for (size_t i = 0; i < g->n_values; i++) {
    Value *v = g->values[i];
    if (!v->weight) continue;
    v->role = ROLE_CONST;
    v->doc = "the training graph has no gradient for it";
  }
  finish_params(import, own);
  if (import->form.kind == FORM_INFO || import->onnx.training) read_training_info(import, own);
  if (import->form.kind == FORM_ORT) import_absorb(import, read_ort_optimizer(import, own), NULL);
  g->loss = bound_value(import, import->form.loss);
  if (!g->loss) import_problem(import, STATUS_MALFORMED, NULL, "the loss '%s' of the training graph is defined nowhere", text_or_empty(import->form.loss));
  if (import->form.kind != FORM_INFO) g->facts |= FACT_BACKWARD;
  if (own->name) g->own_optimizer = own;
}
