// What stands around the steps of optimizers: Update, which says that a parameter is to be updated, until the lowering puts the steps of its bucket
// there; RateScale, the learning rate of a group of parameters; and Ema, the moving average of the parameters.
#include <math.h>

#include "cost.h"
#include "optimizer.h"
#include "ops.h"

// ---- Update -------------------------------------------------------------------------------------------------------------------

typedef struct UpdateAttrs { const char *rule, *group; } UpdateAttrs;
static const AttrSpec update_attrs[] = {
    {"rule", ATTR_STRING, offsetof(UpdateAttrs, rule), .required = true, .help = "the optimizer: a row of optimizer_rules.c"},
    {"group", ATTR_STRING, offsetof(UpdateAttrs, group), .default_string = "", .help = "the --group that the parameter belongs to"},
    {0},
};

static Status update_infer(Node *node, Arena *arena) { return step_infer(node); }

static Status update_ref(const KernelContext *c) {
  FAIL(UNSUPPORTED, c->node->name, "an update by the rule '%s' is computed by the steps of its bucket: the pass insert_collectives makes them",
       ((const UpdateAttrs *)c->node->attrs)->rule);
}

const Op op_Update = {
    .name = "Update", .domain = "tessera", .min_inputs = 5, .max_inputs = 5, .min_outputs = 1, .max_outputs = 1, .flags = OP_OPTIMIZER,
    .nondifferentiable = 0x1f, .attrs = update_attrs, .attrs_bytes = sizeof(UpdateAttrs), .infer = update_infer, .run_ref = update_ref, .alias = step_alias};

// ---- RateScale ----------------------------------------------------------------------------------------------------------------

typedef struct RateAttrs { const char *factor; } RateAttrs;
static const AttrSpec rate_attrs[] = {
    {"factor", ATTR_STRING, offsetof(RateAttrs, factor), .required = true, .help = "a decimal"},
    {0},
};

static Status rate_infer(Node *node, Arena *arena) {
  double factor;
  const Type *lr = &node->inputs[0]->type;
  if (lr->dtype != DTYPE_F64 || lr->rank) FAIL(MALFORMED, node->name, "lr must be a double scalar");
  TRY(kernel_parse_decimal(node, "factor", ((const RateAttrs *)node->attrs)->factor, 0, INFINITY, &factor));
  node->outputs[0]->type = *lr;
  return STATUS_OK;
}

static Status rate_ref(const KernelContext *c) {
  double factor;
  TRY(kernel_parse_decimal(c->node, "factor", ((const RateAttrs *)c->node->attrs)->factor, 0, INFINITY, &factor));
  out_f(c, 0, 0, in_f(c, 0, 0) * factor);
  return STATUS_OK;
}

const Op op_RateScale = {
    .name = "RateScale", .domain = "tessera", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 1,
    .attrs = rate_attrs, .attrs_bytes = sizeof(RateAttrs), .infer = rate_infer, .run_ref = rate_ref};

// ---- Ema ----------------------------------------------------------------------------------------------------------------------

typedef struct EmaAttrs { const char *decay; } EmaAttrs;
static const AttrSpec ema_attrs[] = {
    {"decay", ATTR_STRING, offsetof(EmaAttrs, decay), .required = true, .help = "what the average keeps of itself, a decimal"},
    {0},
};
enum { EMA_PARAM, EMA_AVERAGE };

static Status ema_infer(Node *node, Arena *arena) {
  double decay;
  const Type *param = &node->inputs[EMA_PARAM]->type;
  TRY(kernel_parse_decimal(node, "decay", ((const EmaAttrs *)node->attrs)->decay, 0, 1, &decay));
  if (!dtype_is_float(param->dtype) || !type_equal(&node->inputs[EMA_AVERAGE]->type, param)) FAIL(MALFORMED, node->name, "param and average must be floats of one type");
  node->outputs[0]->type = *param;
  return STATUS_OK;
}

static Status ema_ref(const KernelContext *c) {
  double decay;
  TRY(kernel_parse_decimal(c->node, "decay", ((const EmaAttrs *)c->node->attrs)->decay, 0, 1, &decay));
  for (int64_t e = 0, n = in_elems(c, EMA_PARAM); e < n; e++) {
    double average = in_f(c, EMA_AVERAGE, e);
    out_f(c, 0, e, average + (1 - decay) * (in_f(c, EMA_PARAM, e) - average));
  }
  return STATUS_OK;
}

static Status ema_cpu(const KernelContext *c) {
  double decay;
  TRY(kernel_parse_decimal(c->node, "decay", ((const EmaAttrs *)c->node->attrs)->decay, 0, 1, &decay));
  c->loops->ema(c->out[0].data, c->in[EMA_AVERAGE].data, c->in[EMA_PARAM].data, (float)(1 - decay), in_elems(c, EMA_PARAM));
  return STATUS_OK;
}

static bool ema_alias(const Node *node, int output, int input, Alias *out) {
  if (output || input != EMA_AVERAGE) return false;
  *out = (Alias){.kind = ALIAS_UPDATE, .input = EMA_AVERAGE};
  return true;
}

const Op op_Ema = {
    .name = "Ema", .domain = "tessera", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 3,
    .attrs = ema_attrs, .attrs_bytes = sizeof(EmaAttrs), .infer = ema_infer, .run_ref = ema_ref, .run_cpu = ema_cpu, .alias = ema_alias, .cost = cost_arithmetic};
