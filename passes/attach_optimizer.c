// attach_optimizer: the update phase. Global loss and 1 / count, norm of the mean gradient, clipping factor, and one optimizer step per
// parameter. The result is a complete training graph for one rank; partition and insert_collectives spread it over ranks.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/decimal.h"
#include "../kernels/ops.h"
#include "accumulate.h"
#include "lower.h"
#include "pass_list.h"

static const char *decimal(Arena *arena, double v) {
  char text[DECIMAL_BYTES];
  return arena_string(arena, decimal_text(v, text));
}

static Value *control(Graph *graph, const char *name, Dtype dtype) {
  Value *v = graph_find_value(graph, name);
  if (v && v->role == ROLE_CONTROL) return v;
  v = graph_add_value(graph, name);
  graph_claim_name(graph, v, name);
  v->role = ROLE_CONTROL;
  v->type = type_scalar(dtype);
  return v;
}

// A state of `param`, set to `initial` at start; `state_name` as torch.optim and checkpoints call it.
static Value *state(Emit *e, Value *param, const char *state_name, double initial) {
  Emit init = {.graph = e->graph, .phase = PHASE_INIT, .cause = e->cause};
  Value *v = emit(&init, &op_Fill, NULL, 0, ATTRS(A_INTS("dims", param->type.dims, param->type.rank), A_INT("dtype", param->type.dtype),
                                                  A_STRING("value", decimal(e->graph->arena, initial))));
  if (!e->status) e->status = init.status;
  if (!v) return NULL;
  graph_claim_name(e->graph, v, arena_printf(e->graph->arena, "%s.%s", param->name, state_name));
  v->role = ROLE_STATE;
  v->of = param;
  v->state_name = state_name;
  return v;
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

// Node of optimizer row `op` with the given states; states[i] NULL ends the list. Carries param and states.
static void emit_step(Emit *e, const Op *op, const Update *u, Value *param, Value *grad, Value *const *states, const AttrInit *attrs) {
  Value *inputs[5 + STATES_MAX] = {param, grad, u->scale, u->lr, u->step};
  int n_states = 0;
  for (; n_states < STATES_MAX && states[n_states]; n_states++) inputs[5 + n_states] = states[n_states];
  Node *n = emit_node(e, op, inputs, 5 + n_states, 1 + n_states, NULL, attrs);
  if (!n) return;
  carry(n, 0, param);
  for (int i = 0; i < n_states; i++) carry(n, 1 + i, states[i]);
}

static void emit_sgd(Emit *e, const CompileOptions *o, const Update *u, Value *param, Value *grad) {
  Arena *arena = e->graph->arena;
  Value *states[STATES_MAX] = {o->momentum != 0 ? state(e, param, "momentum_buffer", 0) : NULL};
  emit_step(e, &op_Sgd, u, param, grad, states,
            ATTRS(A_STRING("momentum", decimal(arena, o->momentum)), A_STRING("dampening", decimal(arena, o->dampening)),
                  A_STRING("weight_decay", decimal(arena, o->weight_decay)), A_INT("nesterov", o->nesterov)));
}

static void emit_adam_step(Emit *e, const CompileOptions *o, const Update *u, Value *param, Value *grad, bool decoupled) {
  Arena *arena = e->graph->arena;
  Value *states[STATES_MAX] = {state(e, param, "exp_avg", 0), state(e, param, "exp_avg_sq", 0)};
  emit_step(e, &op_Adam, u, param, grad, states,
            ATTRS(A_STRING("beta1", decimal(arena, o->beta1)), A_STRING("beta2", decimal(arena, o->beta2)), A_STRING("eps", decimal(arena, o->eps)),
                  A_STRING("weight_decay", decimal(arena, o->weight_decay)), A_INT("decoupled", decoupled)));
}

static void emit_adam(Emit *e, const CompileOptions *o, const Update *u, Value *param, Value *grad) { emit_adam_step(e, o, u, param, grad, false); }
static void emit_adamw(Emit *e, const CompileOptions *o, const Update *u, Value *param, Value *grad) { emit_adam_step(e, o, u, param, grad, true); }

static void emit_adagrad(Emit *e, const CompileOptions *o, const Update *u, Value *param, Value *grad) {
  Arena *arena = e->graph->arena;
  Value *states[STATES_MAX] = {state(e, param, "sum", o->initial_accumulator)};
  emit_step(e, &op_Adagrad, u, param, grad, states,
            ATTRS(A_STRING("lr_decay", decimal(arena, o->lr_decay)), A_STRING("eps", decimal(arena, o->eps)),
                  A_STRING("weight_decay", decimal(arena, o->weight_decay))));
}

static void emit_rmsprop(Emit *e, const CompileOptions *o, const Update *u, Value *param, Value *grad) {
  Arena *arena = e->graph->arena;
  Value *states[STATES_MAX] = {state(e, param, "square_avg", 0), o->momentum != 0 ? state(e, param, "momentum_buffer", 0) : NULL};
  emit_step(e, &op_Rmsprop, u, param, grad, states,
            ATTRS(A_STRING("alpha", decimal(arena, o->alpha)), A_STRING("eps", decimal(arena, o->eps)),
                  A_STRING("weight_decay", decimal(arena, o->weight_decay)), A_STRING("momentum", decimal(arena, o->momentum))));
}

// ---- The rule that the model brings -------------------------------------------------------------------------------------------

static void emit_model_step(Emit *e, const Op *op, const Update *u, Value *param, Value *grad, Value *const *states) {
  const OwnOptimizer *own = e->graph->own_optimizer;
  Arena *arena = e->graph->arena;
  emit_step(e, op, u, param, grad, states,
            ATTRS(A_STRING("alpha", decimal(arena, own->alpha)), A_STRING("beta", decimal(arena, own->beta)), A_STRING("epsilon", decimal(arena, own->epsilon)),
                  A_STRING("norm_coefficient", decimal(arena, own->norm_coefficient)), A_STRING("post", decimal(arena, own->post)),
                  A_STRING("decay_factor", decimal(arena, own->decay_factor)), A_INT("nesterov", own->nesterov), A_INT("t0", own->t0),
                  A_INT("post_by_lr", own->post_by_lr), A_INT("correct_bias", own->correct_bias)));
}

static void emit_model_momentum(Emit *e, const CompileOptions *o, const Update *u, Value *param, Value *grad) {
  emit_model_step(e, &op_ModelMomentum, u, param, grad, (Value *[STATES_MAX]){state(e, param, "momentum_buffer", 0)});
}

static void emit_model_adagrad(Emit *e, const CompileOptions *o, const Update *u, Value *param, Value *grad) {
  emit_model_step(e, &op_ModelAdagrad, u, param, grad, (Value *[STATES_MAX]){state(e, param, "sum", e->graph->own_optimizer->initial)});
}

static void emit_model_adam(Emit *e, const CompileOptions *o, const Update *u, Value *param, Value *grad) {
  emit_model_step(e, &op_ModelAdam, u, param, grad, (Value *[STATES_MAX]){state(e, param, "exp_avg", 0), state(e, param, "exp_avg_sq", 0)});
}

typedef void (*EmitOptimizer)(Emit *e, const CompileOptions *o, const Update *u, Value *param, Value *grad);
static const struct { const char *name; EmitOptimizer emit; bool own; } optimizers[] = {
    {"sgd", emit_sgd, false}, {"adam", emit_adam, false}, {"adamw", emit_adamw, false}, {"adagrad", emit_adagrad, false}, {"rmsprop", emit_rmsprop, false},
    {"model_momentum", emit_model_momentum, true}, {"model_adagrad", emit_model_adagrad, true}, {"model_adam", emit_model_adam, true}};

static Status find_optimizer(const Graph *graph, const char *name, EmitOptimizer *out) {
  for (size_t i = 0; i < sizeof optimizers / sizeof *optimizers; i++) {
    if (strcmp(optimizers[i].name, name) || (optimizers[i].own && !graph->own_optimizer)) continue;
    *out = optimizers[i].emit;
    return STATUS_OK;
  }
  FAIL(USAGE, NULL, "optimizer '%s' is not supported; there are sgd, adam, adamw, adagrad and rmsprop", name);
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
  EmitOptimizer emit_optimizer;
  TRY(find_optimizer(graph, o->optimizer, &emit_optimizer));
  Emit micro = {.graph = graph, .phase = PHASE_MICRO, .cause = {.pass = "attach_optimizer"}};
  Value *pair = emit(&micro, &op_LossPair, INPUTS(graph->loss, graph->loss_count), NULL);
  TRY(micro.status);
  graph_claim_name(graph, pair, "tessera.loss_pair");
  size_t n_grads = 0, capacity = 0, n_values = graph->n_values;
  Value **grads = NULL;
  for (size_t i = 0; i < n_values; i++)
    if (graph->values[i]->role == ROLE_GRAD) ARENA_PUSH(arena, grads, n_grads, capacity, graph->values[i]);

  Emit e = {.graph = graph, .phase = PHASE_UPDATE, .cause = {.pass = "attach_optimizer"}};
  Node *mean = emit_node(&e, &op_LossMean, &pair, 1, 2, NULL, NULL);
  TRY(e.status);
  graph->loss_report = mean->outputs[0];
  graph->inverse_count = mean->outputs[1];
  graph_claim_name(graph, graph->loss_report, "tessera.loss");
  graph_claim_name(graph, graph->inverse_count, "tessera.inverse_count");
  Value **norm_inputs = ARENA_ARRAY(arena, Value *, n_grads + 1);
  norm_inputs[0] = graph->inverse_count;
  for (size_t i = 0; i < n_grads; i++) norm_inputs[i + 1] = grads[i];
  Value *limbs = emit(&e, &op_SquaredNorm, norm_inputs, (int)n_grads + 1, NULL);
  Node *clip = emit_node(&e, &op_ClipScale, INPUTS(graph->inverse_count, limbs), 2, NULL,
                         ATTRS(A_STRING("max_norm", o->clip_norm > 0 ? decimal(arena, o->clip_norm) : "")));
  TRY(e.status);
  graph->norm_report = clip->outputs[0];
  graph_claim_name(graph, graph->norm_report, "tessera.grad_norm");
  graph_claim_name(graph, clip->outputs[1], "tessera.grad_scale");
  Update u = {clip->outputs[1], control(graph, "tessera.lr", DTYPE_F64), control(graph, "tessera.step", DTYPE_I64)};
  for (size_t i = 0; i < n_grads; i++) {
    e.cause = (Cause){.param = grads[i]->of->name, .pass = "attach_optimizer"};
    emit_optimizer(&e, o, &u, grads[i]->of, grads[i]);
    TRY(e.status);
  }
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
