// attach_optimizer: the update phase. Global loss and 1 / count, norm of the mean gradient, clipping factor, and one optimizer step per
// parameter. The result is a complete training graph for one rank; partition and insert_collectives spread it over ranks.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kernels/ops.h"
#include "pass_list.h"

// Shortest decimal that reads back as the same double.
static const char *decimal(Arena *arena, double v) {
  char text[40];
  for (int digits = 15; digits <= 17; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, v);
    if (strtod(text, NULL) == v) break;
  }
  return arena_string(arena, text);
}

static Value *control(Graph *graph, const char *name, Dtype dtype) {
  Value *v = graph_find_value(graph, name);
  if (v) return v;
  v = graph_add_value(graph, name);
  v->role = ROLE_CONTROL;
  v->type = type_scalar(dtype);
  return v;
}

static Value *state(Graph *graph, Value *param, const char *state_name) {
  Value *v = graph_add_value(graph, arena_printf(graph->arena, "%s.%s", param->name, state_name));
  v->role = ROLE_STATE;
  v->type = param->type;
  v->of = param;
  v->state_name = state_name;
  return v;
}

static void name_value(Graph *graph, Value *v, const char *name) {
  if (!graph_find_value(graph, name)) graph_rename_value(graph, v, name);
}

typedef struct Update { Value *scale, *lr, *step; } Update;

static void carry(Node *n, int output, Value *to) {
  Value *v = n->outputs[output];
  v->role = to->role;
  v->trainable = to->trainable;
  v->of = to->of;
  v->state_name = to->state_name;
  v->carry = to;
}

static void emit_sgd(Emit *e, const CompileOptions *o, const Update *u, Value *param, Value *grad) {
  Arena *arena = e->graph->arena;
  bool momentum = o->momentum != 0;
  Value *buffer = momentum ? state(e->graph, param, "momentum_buffer") : NULL;
  Value *inputs[] = {param, grad, u->scale, u->lr, u->step, buffer};
  Node *n = emit_node(e, &op_Sgd, inputs, momentum ? 6 : 5, momentum ? 2 : 1, NULL,
                      ATTRS(A_STRING("momentum", decimal(arena, o->momentum)), A_STRING("dampening", decimal(arena, o->dampening)),
                            A_STRING("weight_decay", decimal(arena, o->weight_decay)), A_INT("nesterov", o->nesterov)));
  if (!n) return;
  carry(n, 0, param);
  if (momentum) carry(n, 1, buffer);
}

static void emit_adam(Emit *e, const CompileOptions *o, const Update *u, Value *param, Value *grad, bool decoupled) {
  Arena *arena = e->graph->arena;
  Value *avg = state(e->graph, param, "exp_avg"), *avg_sq = state(e->graph, param, "exp_avg_sq");
  Node *n = emit_node(e, &op_Adam, INPUTS(param, grad, u->scale, u->lr, u->step, avg, avg_sq), 3, NULL,
                      ATTRS(A_STRING("beta1", decimal(arena, o->beta1)), A_STRING("beta2", decimal(arena, o->beta2)),
                            A_STRING("eps", decimal(arena, o->eps)), A_STRING("weight_decay", decimal(arena, o->weight_decay)),
                            A_INT("decoupled", decoupled)));
  if (!n) return;
  carry(n, 0, param);
  carry(n, 1, avg);
  carry(n, 2, avg_sq);
}

static Status emit_optimizer(Emit *e, const CompileOptions *o, const Update *u, Value *param, Value *grad) {
  e->cause = (Cause){.param = param->name, .pass = "attach_optimizer"};
  if (!strcmp(o->optimizer, "sgd")) emit_sgd(e, o, u, param, grad);
  else if (!strcmp(o->optimizer, "adam")) emit_adam(e, o, u, param, grad, false);
  else if (!strcmp(o->optimizer, "adamw")) emit_adam(e, o, u, param, grad, true);
  else FAIL(USAGE, NULL, "optimizer '%s' is not supported; there are sgd, adam and adamw", o->optimizer);
  return e->status;
}

Status pass_attach_optimizer(Graph *graph, const CompileOptions *o) {
  Arena *arena = graph->arena;
  Emit micro = {.graph = graph, .phase = PHASE_MICRO, .cause = {.pass = "attach_optimizer"}};
  Value *pair = emit(&micro, &op_LossPair, INPUTS(graph->loss, graph->loss_count), NULL);
  TRY(micro.status);
  size_t n_grads = 0, capacity = 0, n_values = graph->n_values;
  Value **grads = NULL;
  for (size_t i = 0; i < n_values; i++)
    if (graph->values[i]->role == ROLE_GRAD) ARENA_PUSH(arena, grads, n_grads, capacity, graph->values[i]);

  Emit e = {.graph = graph, .phase = PHASE_UPDATE, .cause = {.pass = "attach_optimizer"}};
  Node *mean = emit_node(&e, &op_LossMean, &pair, 1, 2, NULL, NULL);
  TRY(e.status);
  graph->loss_report = mean->outputs[0];
  graph->inverse_count = mean->outputs[1];
  name_value(graph, graph->loss_report, "tessera.loss");
  name_value(graph, graph->inverse_count, "tessera.inverse_count");
  Value **norm_inputs = ARENA_ARRAY(arena, Value *, n_grads + 1);
  norm_inputs[0] = graph->inverse_count;
  for (size_t i = 0; i < n_grads; i++) norm_inputs[i + 1] = grads[i];
  Value *limbs = emit(&e, &op_SquaredNorm, norm_inputs, (int)n_grads + 1, NULL);
  Node *clip = emit_node(&e, &op_ClipScale, INPUTS(graph->inverse_count, limbs), 2, NULL,
                         ATTRS(A_STRING("max_norm", o->clip_norm > 0 ? decimal(arena, o->clip_norm) : "")));
  TRY(e.status);
  graph->norm_report = clip->outputs[0];
  name_value(graph, graph->norm_report, "tessera.grad_norm");
  name_value(graph, clip->outputs[1], "tessera.grad_scale");
  Update u = {clip->outputs[1], control(graph, "tessera.lr", DTYPE_F64), control(graph, "tessera.step", DTYPE_I64)};
  for (size_t i = 0; i < n_grads; i++) TRY(emit_optimizer(&e, o, &u, grads[i]->of, grads[i]));
  graph->recipe.optimizer = arena_string(arena, o->optimizer);
  graph->recipe.lr = o->lr;
  graph->outputs = NULL;
  graph->n_outputs = 0;
  graph_add_output(graph, graph->loss_report);
  graph_add_output(graph, graph->norm_report);
  graph_set_nodes(graph, graph->nodes, graph->n_nodes);
  return STATUS_OK;
}
