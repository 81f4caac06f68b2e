// attach_optimizer: the update phase. Global loss and 1 / count, norm of the mean gradient, clipping factor, and an Update of each parameter, which
// says by what rule. partition and insert_collectives spread it over ranks; the steps of a rule are made per bucket (lower_update.c).
#include <stdio.h>
#include <string.h>

#include "../ir/decimal.h"
#include "../kernels/ops.h"
#include "accumulate.h"
#include "optimizer_rules.h"
#include "pass_list.h"

static Value *control(Graph *graph, const char *name, Dtype dtype) {
  Value *v = graph_find_value(graph, name);
  if (v && v->role == ROLE_CONTROL) return v;
  v = graph_add_value(graph, name);
  graph_claim_name(graph, v, name);
  v->role = ROLE_CONTROL;
  v->type = type_scalar(dtype);
  return v;
}

static Status check_rule(const Graph *graph, const char *name) {
  const OptimizerRule *rule = optimizer_rule_find(name);
  char names[256] = "";
  for (const OptimizerRule *r = optimizer_rules; r->name; r++)
    if (!r->own) snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", *names ? ", " : "", r->name);
  if (!rule || (rule->own && !graph->own_optimizer)) FAIL(USAGE, NULL, "optimizer '%s' is not supported; there are %s", name, names);
  return STATUS_OK;
}

// Every optimizer that is named exists, and every group has a parameter: a pattern that fits nothing is a slip.
static Status check_rules(const Graph *graph, const CompileOptions *o, Value *const *grads, size_t n_grads) {
  bool *used = ARENA_ARRAY(graph->arena, bool, o->n_groups);
  TRY(check_rule(graph, o->optimizer));
  for (size_t i = 0; i < n_grads; i++) {
    const ParamGroup *group = param_group_find(o, grads[i]->of->name, &grads[i]->of->type);
    if (group) used[group - o->groups] = true;
  }
  for (size_t i = 0; i < o->n_groups; i++) {
    if (!used[i])
      FAIL(USAGE, NULL, "the group '%s' has no parameter that trains and belongs to no group before it; `tessera show MODEL` lists the parameters", o->groups[i].text);
    if (o->groups[i].optimizer) TRY(check_rule(graph, o->groups[i].optimizer));
  }
  return STATUS_OK;
}

// Says that the parameter of a gradient is updated; how, insert_collectives lowers per bucket.
static Status emit_update(Emit *e, const CompileOptions *o, Value *grad, Value *scale, Value *lr, Value *step) {
  Value *param = grad->of;
  const ParamGroup *group = param_group_find(o, param->name, &param->type);
  e->cause = (Cause){.param = param->name, .pass = "attach_optimizer"};
  Value *next = emit(e, &op_Update, INPUTS(param, grad, scale, lr, step),
                     ATTRS(A_STRING("rule", optimizer_rule_of(o, param->name, &param->type)->name), A_STRING("group", group ? group->text : "")));
  TRY(e->status);
  next->role = ROLE_PARAM;
  next->trainable = true;
  next->carry = param;
  return STATUS_OK;
}

// Running statistics: what each micro-batch makes of the step's old ones is averaged over all micro-batches, on all ranks alike. One micro-batch a
// step needs nothing: its own carry.
static Status average_buffers(Graph *graph, const CompileOptions *o) {
  int64_t k;
  TRY(micro_per_rank(o, &k));
  Emit e = {.graph = graph, .phase = PHASE_UPDATE, .cause = {.pass = "attach_optimizer"}};
  size_t n_values = graph->n_values;
  for (size_t i = 0; i < n_values && k * o->ranks > 1; i++) {
    Value *v = graph->values[i], *buffer = v->carry;
    if (v->role != ROLE_BUFFER || !buffer || v->producer->phase != PHASE_MICRO) continue;
    Value *mean = emit(&e, &op_Mul, INPUTS(v, emit_float(&e, "buffer.share", v->type.dtype, 1.0 / (double)(k * o->ranks))), NULL);
    TRY(e.status);
    v->carry = NULL;
    v->role = ROLE_ACTIVATION;
    mean->role = ROLE_BUFFER;
    mean->carry = buffer;
  }
  return STATUS_OK;
}

// Values of the model that have a name of ours get another one; inputs cannot, since data come under their names.
static Status check_input_names(const Graph *graph) {
  for (size_t i = 0; i < graph->n_inputs; i++) {
    const char *name = graph->inputs[i]->name;
    if (!strncmp(name, "tessera.", 8) || !strncmp(name, "bucket.", 7))
      FAIL(UNSUPPORTED, name, "inputs called 'tessera. ...' or 'bucket. ...' are the plan's own; rename this one in the model");
  }
  return STATUS_OK;
}

Status pass_attach_optimizer(Graph *graph, const CompileOptions *o) {
  TRY(check_input_names(graph));
  Arena *arena = graph->arena;
  Emit micro = {.graph = graph, .phase = PHASE_MICRO, .cause = {.pass = "attach_optimizer"}};
  Value *pair = emit(&micro, &op_LossPair, INPUTS(graph->loss, graph->loss_count), NULL);
  TRY(micro.status);
  graph_claim_name(graph, pair, "tessera.loss_pair");
  size_t n_grads = 0, capacity = 0, n_values = graph->n_values;
  Value **grads = NULL;
  for (size_t i = 0; i < n_values; i++)
    if (graph->values[i]->role == ROLE_GRAD) ARENA_PUSH(arena, grads, n_grads, capacity, graph->values[i]);
  TRY(check_rules(graph, o, grads, n_grads));

  Emit e = {.graph = graph, .phase = PHASE_UPDATE, .cause = {.pass = "attach_optimizer"}};
  Node *mean = emit_node(&e, &op_LossMean, &pair, 1, 2, NULL, NULL);
  TRY(e.status);
  graph->loss_report = mean->outputs[0];
  graph->inverse_count = mean->outputs[1];
  const Value *seed = graph_find_value(graph, LOSS_SEED);
  if (seed && seed->role == ROLE_CONTROL) graph->inverse_count = emit(&e, &op_LossUnscale, INPUTS(mean->outputs[1], (Value *)seed), NULL);
  TRY(e.status);
  graph_claim_name(graph, graph->loss_report, "tessera.loss");
  graph_claim_name(graph, graph->inverse_count, "tessera.inverse_count");
  Value **norm_inputs = ARENA_ARRAY(arena, Value *, n_grads + 1);
  norm_inputs[0] = graph->inverse_count;
  for (size_t i = 0; i < n_grads; i++) norm_inputs[i + 1] = grads[i];
  Value *limbs = emit(&e, &op_SquaredNorm, norm_inputs, (int)n_grads + 1, NULL);
  char max_norm[DECIMAL_BYTES];
  Node *clip = emit_node(&e, &op_ClipScale, INPUTS(graph->inverse_count, limbs), 2, NULL,
                         ATTRS(A_STRING("max_norm", o->clip_norm > 0 && !(o->clip_value > 0) ? decimal_text(o->clip_norm, max_norm) : "")));
  TRY(e.status);
  graph->norm_report = clip->outputs[0];
  graph_claim_name(graph, graph->norm_report, "tessera.grad_norm");
  graph_claim_name(graph, clip->outputs[1], "tessera.grad_scale");
  Value *lr = control(graph, "tessera.lr", DTYPE_F64), *step = control(graph, "tessera.step", DTYPE_I64);
  for (size_t i = 0; i < n_grads; i++) TRY(emit_update(&e, o, grads[i], clip->outputs[1], lr, step));
  TRY(average_buffers(graph, o));
  graph->recipe.optimizer = arena_string(arena, o->optimizer);
  graph->recipe.lr = o->lr;
  graph->outputs = NULL;
  graph->n_outputs = 0;
  graph_add_output(graph, graph->loss_report);
  graph_add_output(graph, graph->norm_report);
  graph_set_nodes(graph, graph->nodes, graph->n_nodes);
  return STATUS_OK;
}
