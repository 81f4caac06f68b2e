#include "optimizer_rules.h"

#include <math.h>
#include <string.h>

#include "../ir/decimal.h"
#include "../ir/name_pattern.h"
#include "../ir/tile.h"
#include "../kernels/ops.h"
#include "update_steps.h"

static const char *decimal(const BucketUpdate *u, double v) {
  char text[DECIMAL_BYTES];
  return arena_string(u->lower->graph->arena, decimal_text(v, text));
}
#define A_DECIMAL(name, value) A_STRING(name, decimal(u, value))

static void emit_sgd(BucketUpdate *u, const CompileOptions *o) {
  Value *state = o->momentum != 0 ? update_state(u, "momentum_buffer", 0) : NULL;
  update_step(u, &op_Sgd, INPUTS(state), ATTRS(A_DECIMAL("momentum", o->momentum), A_DECIMAL("dampening", o->dampening),
                                               A_DECIMAL("weight_decay", o->weight_decay), A_INT("nesterov", o->nesterov)));
}

static void emit_adam_step(BucketUpdate *u, const CompileOptions *o, bool decoupled) {
  update_step(u, &op_Adam, INPUTS(update_state(u, "exp_avg", 0), update_state(u, "exp_avg_sq", 0)),
              ATTRS(A_DECIMAL("beta1", o->beta1), A_DECIMAL("beta2", o->beta2), A_DECIMAL("eps", o->eps), A_DECIMAL("weight_decay", o->weight_decay),
                    A_INT("decoupled", decoupled)));
}

static void emit_adam(BucketUpdate *u, const CompileOptions *o) { emit_adam_step(u, o, false); }
static void emit_adamw(BucketUpdate *u, const CompileOptions *o) { emit_adam_step(u, o, true); }

static void emit_adam8_step(BucketUpdate *u, const CompileOptions *o, bool decoupled) {
  Value *states[] = {update_state_of(u, "exp_avg_code", STATE_ELEMENTS, DTYPE_U8, 0), update_state_of(u, "exp_avg_absmax", STATE_BLOCKS, DTYPE_F32, 0),
                     update_state_of(u, "exp_avg_sq_code", STATE_ELEMENTS, DTYPE_U8, 0), update_state_of(u, "exp_avg_sq_absmax", STATE_BLOCKS, DTYPE_F32, 0)};
  update_step(u, &op_Adam8, states, sizeof states / sizeof *states,
              ATTRS(A_DECIMAL("beta1", o->beta1), A_DECIMAL("beta2", o->beta2), A_DECIMAL("eps", o->eps), A_DECIMAL("weight_decay", o->weight_decay),
                    A_INT("decoupled", decoupled)));
}

static void emit_adam8(BucketUpdate *u, const CompileOptions *o) { emit_adam8_step(u, o, false); }
static void emit_adamw8(BucketUpdate *u, const CompileOptions *o) { emit_adam8_step(u, o, true); }

// NAdam, RAdam.
static void emit_variant(BucketUpdate *u, const Op *op, const CompileOptions *o) {
  const AttrInit end = {.name = NULL}, decay = A_DECIMAL("momentum_decay", o->momentum_decay);
  const AttrInit attrs[] = {A_DECIMAL("beta1", o->beta1), A_DECIMAL("beta2", o->beta2), A_DECIMAL("eps", o->eps), A_DECIMAL("weight_decay", o->weight_decay),
                            A_INT("decoupled", o->decoupled_weight_decay), op == &op_Nadam ? decay : end, end};
  update_step(u, op, INPUTS(update_state(u, "exp_avg", 0), update_state(u, "exp_avg_sq", 0)), attrs);
}

static void emit_nadam(BucketUpdate *u, const CompileOptions *o) { emit_variant(u, &op_Nadam, o); }
static void emit_radam(BucketUpdate *u, const CompileOptions *o) { emit_variant(u, &op_Radam, o); }

static void emit_adagrad(BucketUpdate *u, const CompileOptions *o) {
  update_step(u, &op_Adagrad, INPUTS(update_state(u, "sum", o->initial_accumulator)),
              ATTRS(A_DECIMAL("lr_decay", o->lr_decay), A_DECIMAL("eps", o->eps), A_DECIMAL("weight_decay", o->weight_decay)));
}

static void emit_rmsprop(BucketUpdate *u, const CompileOptions *o) {
  Value *square = update_state(u, "square_avg", 0), *buffer = o->momentum != 0 ? update_state(u, "momentum_buffer", 0) : NULL;
  update_step(u, &op_Rmsprop, INPUTS(square, buffer),
              ATTRS(A_DECIMAL("alpha", o->alpha), A_DECIMAL("eps", o->eps), A_DECIMAL("weight_decay", o->weight_decay), A_DECIMAL("momentum", o->momentum)));
}

static void emit_lion(BucketUpdate *u, const CompileOptions *o) {
  update_step(u, &op_Lion, INPUTS(update_state(u, "exp_avg", 0)),
              ATTRS(A_DECIMAL("beta1", o->beta1), A_DECIMAL("beta2", o->beta2), A_DECIMAL("weight_decay", o->weight_decay)));
}

static void emit_lamb(BucketUpdate *u, const CompileOptions *o) {
  Value *direction = update_direction(u, &op_LambDirection, INPUTS(update_state(u, "exp_avg", 0), update_state(u, "exp_avg_sq", 0)),
                                      ATTRS(A_DECIMAL("beta1", o->beta1), A_DECIMAL("beta2", o->beta2), A_DECIMAL("eps", o->eps),
                                            A_DECIMAL("weight_decay", o->weight_decay)));
  update_apply(u, &op_LambApply, direction, INPUTS(update_norms(u, direction)), NULL);
}

// Matrices by Muon, all else by adamw.
static void emit_muon(BucketUpdate *u, const CompileOptions *o) {
  const Bucket *bucket = &u->lower->graph->buckets[u->index];
  if (bucket->types[0].rank != 2) {
    const OptimizerRule *adamw = optimizer_rule_find("adamw");
    CompileOptions options = optimizer_rule_options(adamw, u->lower->options, param_group_find(u->lower->options, bucket->params[0], &bucket->types[0]));
    adamw->emit(u, &options);
    return;
  }
  int64_t *sides[2] = {ARENA_ARRAY(u->lower->graph->arena, int64_t, bucket->n_params), ARENA_ARRAY(u->lower->graph->arena, int64_t, bucket->n_params)};
  for (int i = 0; i < bucket->n_params; i++)
    for (int side = 0; side < 2; side++) sides[side][i] = bucket->types[i].dims[side];
  Value *direction = update_direction(u, &op_MuonDirection, INPUTS(update_state(u, "momentum_buffer", 0)), ATTRS(A_DECIMAL("momentum", o->momentum)));
  update_apply(u, &op_MuonApply, update_whole(u, direction), NULL, 0,
               ATTRS(A_INTS("rows", sides[0], bucket->n_params), A_INTS("columns", sides[1], bucket->n_params), A_DECIMAL("weight_decay", o->weight_decay),
                     A_STRING("adjust", o->muon_adjust)));
}

// Vectors keep all mean squares, all else those of rows and columns.
static void emit_adafactor(BucketUpdate *u, const CompileOptions *o) {
  const Bucket *bucket = &u->lower->graph->buckets[u->index];
  Value *direction;
  const char *eps = isnan(o->eps) ? "" : decimal(u, o->eps);
  if (bucket->types[0].rank < 2) {
    direction = update_direction(u, &op_AdafactorDirection, INPUTS(update_state(u, "variance", 0)),
                                 ATTRS(A_STRING("eps1", eps), A_DECIMAL("beta2_decay", o->beta2_decay)));
  } else {
    Value *row_var = update_state_of(u, "row_var", STATE_ROWS, bucket->dtype, 0), *col_var = update_state_of(u, "col_var", STATE_COLUMNS, bucket->dtype, 0);
    direction = update_factored(u, &op_AdafactorDirection, INPUTS(row_var, col_var),
                                ATTRS(A_INT("factored", 1), A_STRING("eps1", eps), A_DECIMAL("beta2_decay", o->beta2_decay)));
  }
  update_apply(u, &op_AdafactorApply, direction, INPUTS(update_norms(u, direction), u->step),
               ATTRS(A_DECIMAL("weight_decay", o->weight_decay), A_DECIMAL("eps2", o->eps2), A_DECIMAL("threshold", o->clip_threshold)));
}

// ---- The rule that the model brings -------------------------------------------------------------------------------------------

static void emit_model_step(BucketUpdate *u, const Op *op, Value *const *states, int n_states) {
  const OwnOptimizer *own = u->lower->graph->own_optimizer;
  update_step(u, op, states, n_states,
              ATTRS(A_DECIMAL("alpha", own->alpha), A_DECIMAL("beta", own->beta), A_DECIMAL("epsilon", own->epsilon),
                    A_DECIMAL("norm_coefficient", own->norm_coefficient), A_DECIMAL("post", own->post), A_DECIMAL("decay_factor", own->decay_factor),
                    A_INT("nesterov", own->nesterov), A_INT("t0", own->t0), A_INT("post_by_lr", own->post_by_lr), A_INT("correct_bias", own->correct_bias)));
}

static void emit_model_momentum(BucketUpdate *u, const CompileOptions *o) { emit_model_step(u, &op_ModelMomentum, INPUTS(update_state(u, "momentum_buffer", 0))); }

static void emit_model_adagrad(BucketUpdate *u, const CompileOptions *o) {
  emit_model_step(u, &op_ModelAdagrad, INPUTS(update_state(u, "sum", u->lower->graph->own_optimizer->initial)));
}

static void emit_model_adam(BucketUpdate *u, const CompileOptions *o) {
  emit_model_step(u, &op_ModelAdam, INPUTS(update_state(u, "exp_avg", 0), update_state(u, "exp_avg_sq", 0)));
}

// ---- The table ----------------------------------------------------------------------------------------------------------------

const OptimizerRule optimizer_rules[] = {
    {"sgd", emit_sgd, REACH_ELEMENT, READS_MOMENTUM | READS_DAMPENING | READS_NESTEROV, .eps = 1e-8},
    {"adam", emit_adam, REACH_ELEMENT, READS_BETAS | READS_EPS, .eps = 1e-8, .beta1 = 0.9, .beta2 = 0.999},
    {"adamw", emit_adamw, REACH_ELEMENT, READS_BETAS | READS_EPS, .eps = 1e-8, .weight_decay = 0.01, .beta1 = 0.9, .beta2 = 0.999},
    {"adam8", emit_adam8, REACH_ELEMENT, READS_BETAS | READS_EPS, .eps = 1e-8, .beta1 = 0.9, .beta2 = 0.999, .by_blocks = true},
    {"adamw8", emit_adamw8, REACH_ELEMENT, READS_BETAS | READS_EPS, .eps = 1e-8, .weight_decay = 0.01, .beta1 = 0.9, .beta2 = 0.999, .by_blocks = true},
    {"nadam", emit_nadam, REACH_ELEMENT, READS_BETAS | READS_EPS | READS_MOMENTUM_DECAY | READS_DECOUPLED, .eps = 1e-8, .beta1 = 0.9, .beta2 = 0.999},
    {"radam", emit_radam, REACH_ELEMENT, READS_BETAS | READS_EPS | READS_DECOUPLED, .eps = 1e-8, .beta1 = 0.9, .beta2 = 0.999},
    {"adagrad", emit_adagrad, REACH_ELEMENT, READS_EPS | READS_LR_DECAY | READS_INITIAL_ACCUMULATOR, .eps = 1e-10},
    {"rmsprop", emit_rmsprop, REACH_ELEMENT, READS_MOMENTUM | READS_EPS | READS_ALPHA, .eps = 1e-8},
    {"lion", emit_lion, REACH_ELEMENT, READS_BETAS, .beta1 = 0.9, .beta2 = 0.99},
    {"lamb", emit_lamb, REACH_TENSOR, READS_BETAS | READS_EPS, .eps = 1e-6, .beta1 = 0.9, .beta2 = 0.999},
    {"adafactor", emit_adafactor, REACH_TENSOR, READS_EPS | READS_ADAFACTOR, .eps = NAN, .by_shape = true},
    {"muon", emit_muon, REACH_MATRIX, READS_MOMENTUM | READS_BETAS | READS_EPS | READS_MUON_ADJUST, .weight_decay = 0.1, .momentum = 0.95, .by_shape = true},
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

const char *optimizer_reach_text(const char *name) {
  static const char *const texts[] = {"", " (norms of whole parameters)", " (whole matrices)"};
  const OptimizerRule *rule = name ? optimizer_rule_find(name) : NULL;
  return texts[rule ? rule->reach : REACH_ELEMENT];
}

// ---- Groups -------------------------------------------------------------------------------------------------------------------

static bool group_matches(const ParamGroup *group, const char *param, const Type *type) {
  const char *list = group->patterns;
  for (char pattern[NAME_PATTERN_BYTES]; name_pattern_next(&list, pattern, sizeof pattern);)
    if (strcmp(pattern, "@vectors") ? name_pattern_matches(pattern, param) : type->rank <= 1) return true;
  return false;
}

// Tiles belong to the group of their whole.
const ParamGroup *param_group_find(const CompileOptions *options, const char *param, const Type *type) {
  Tile tile;
  char whole[NAME_PATTERN_BYTES];
  if (options->tile_bytes && tile_parse(param, &tile) && tile.of_bytes < sizeof whole) {
    memcpy(whole, param, tile.of_bytes);
    whole[tile.of_bytes] = 0;
    param = whole;
  }
  for (size_t i = 0; i < options->n_groups; i++)
    if (group_matches(&options->groups[i], param, type)) return &options->groups[i];
  return NULL;
}

const OptimizerRule *optimizer_rule_of(const CompileOptions *options, const char *param, const Type *type) {
  const ParamGroup *group = param_group_find(options, param, type);
  return optimizer_rule_find(group && group->optimizer ? group->optimizer : options->optimizer);
}

// None or one, two, more.
static int axes(const Type *type) { return type->rank < 2 ? 1 : type->rank == 2 ? 2 : 3; }

bool optimizer_alike(const CompileOptions *options, const char *a, const Type *a_type, const char *b, const Type *b_type) {
  const OptimizerRule *rule = optimizer_rule_of(options, a, a_type);
  if (param_group_find(options, a, a_type) != param_group_find(options, b, b_type)) return false;
  return !rule || !rule->by_shape || axes(a_type) == axes(b_type);
}

static double or_default(double value, double fallback) { return isnan(value) ? fallback : value; }

CompileOptions optimizer_rule_options(const OptimizerRule *rule, const CompileOptions *options, const ParamGroup *group) {
  CompileOptions o = *options;
  if (group && !isnan(group->weight_decay)) o.weight_decay = group->weight_decay;
  o.weight_decay = or_default(o.weight_decay, rule->weight_decay);
  o.eps = or_default(o.eps, rule->eps);
  o.beta1 = or_default(o.beta1, rule->beta1);
  o.beta2 = or_default(o.beta2, rule->beta2);
  o.momentum = or_default(o.momentum, rule->momentum);
  return o;
}
