#include "optimizer_rules.h"

#include <string.h>

#include "../ir/decimal.h"
#include "../kernels/ops.h"
#include "lower.h"

static const char *decimal(Arena *arena, double v) {
  char text[DECIMAL_BYTES];
  return arena_string(arena, decimal_text(v, text));
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

// ---- The table ----------------------------------------------------------------------------------------------------------------

const OptimizerRule optimizer_rules[] = {
    {"sgd", emit_sgd, READS_MOMENTUM | READS_DAMPENING | READS_NESTEROV, .eps = 1e-8},
    {"adam", emit_adam, READS_BETAS | READS_EPS, .eps = 1e-8},
    {"adamw", emit_adamw, READS_BETAS | READS_EPS, .eps = 1e-8, .weight_decay = 0.01},
    {"adagrad", emit_adagrad, READS_EPS | READS_LR_DECAY | READS_INITIAL_ACCUMULATOR, .eps = 1e-10},
    {"rmsprop", emit_rmsprop, READS_MOMENTUM | READS_EPS | READS_ALPHA, .eps = 1e-8},
    {"model_momentum", emit_model_momentum, .own = true},
    {"model_adagrad", emit_model_adagrad, .own = true},
    {"model_adam", emit_model_adam, .own = true},
    {0},
};

const OptimizerRule *optimizer_rule_find(const char *name) {
  const OptimizerRule *rule = optimizer_rules;
  while (rule->name && strcmp(rule->name, name)) rule++;
  return rule->name ? rule : NULL;
}
