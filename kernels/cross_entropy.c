// Cross-entropy of scores [N, C, d1, ...] and labels [N, d1, ...]. Log-probabilities are never stored unless asked for as an output.
#include <math.h>
#include <string.h>

#include "cost.h"
#include "kernel.h"
#include "ops.h"

typedef struct LossAttrs { int64_t ignore_index; const char *reduction; } LossAttrs;
#define IGNORE_ATTR(T)                                                                                                       \
  {"ignore_index", ATTR_INT, offsetof(T, ignore_index), .default_int = ATTR_ABSENT, .help = "labels of this value do not count"}
static const AttrSpec loss_attrs[] = {
    IGNORE_ATTR(LossAttrs),
    {"reduction", ATTR_STRING, offsetof(LossAttrs, reduction), .default_string = "mean", .help = "none, sum or mean"},
    {0},
};

typedef enum Reduction { REDUCTION_NONE, REDUCTION_SUM, REDUCTION_MEAN } Reduction;

static Status reduction_parse(const Node *node, Reduction *out) {
  const char *text = ((const LossAttrs *)node->attrs)->reduction;
  if (!strcmp(text, "none")) *out = REDUCTION_NONE;
  else if (!strcmp(text, "sum")) *out = REDUCTION_SUM;
  else if (!strcmp(text, "mean")) *out = REDUCTION_MEAN;
  else FAIL(MALFORMED, node->name, "attribute reduction = \"%s\" must be none, sum or mean", text);
  return NULL;
}

// labels and weights against scores; `weights` may be NULL.
static Status operands_check(const Node *node, const Value *scores, const Value *labels, const Value *weights) {
  char have[160], want[160];
  if (!dtype_is_integer(labels->type.dtype))
    FAIL(MALFORMED, node->name, "labels '%s' are %s; they must be integers", labels->name, dtype_name(labels->type.dtype));
  if (!scores) return NULL;
  const Type *s = &scores->type;
  if (!dtype_is_float(s->dtype) || s->rank < 2)
    FAIL(MALFORMED, node->name, "scores '%s' are %s; they must be floats [N, C, ...]", scores->name, type_text(s, have, sizeof have));
  Type shape = type_make(labels->type.dtype, s->rank - 1, s->dims);
  for (int d = 1; d + 1 < s->rank; d++) shape.dims[d] = s->dims[d + 1];
  if (!type_equal(&shape, &labels->type))
    FAIL(MALFORMED, node->name, "labels '%s' are %s; scores %s need %s", labels->name, type_text(&labels->type, have, sizeof have), scores->name,
         type_text(&shape, want, sizeof want));
  if (weights && (weights->type.rank != 1 || weights->type.dims[0] != s->dims[1]))
    FAIL(MALFORMED, node->name, "weights '%s' are %s; there are %lld classes", weights->name, type_text(&weights->type, have, sizeof have),
         (long long)s->dims[1]);
  return NULL;
}

static Value *optional_input(const Node *node, int i) { return i < node->n_inputs ? node->inputs[i] : NULL; }

// One labelled place: its label, and what it weighs. `scores` [outer, classes, inner]; place p = (p / inner, p % inner).
typedef struct Places {
  const Tensor *labels, *weights;   // weights NULL: all 1
  int64_t classes, inner, count, ignore_index;
} Places;

static Places places_of(const KernelContext *c, int scores, int labels, int weights) {
  const Type *s = c->in[scores].type;
  int64_t inner = 1;
  for (int d = 2; d < s->rank; d++) inner *= s->dims[d];
  return (Places){.labels = &c->in[labels], .weights = has_input(c, weights) ? &c->in[weights] : NULL, .classes = s->dims[1], .inner = inner,
                  .count = s->dims[0] * inner, .ignore_index = ((const LossAttrs *)c->node->attrs)->ignore_index};
}

// Weight of place `p`, 0 when it is ignored; label -1 then.
static Status place_read(const Places *places, const Node *node, int64_t p, int64_t *out_label, double *out_weight) {
  int64_t label = element_read_int(places->labels->data, places->labels->type->dtype, p);
  if (places->ignore_index != ATTR_ABSENT && label == places->ignore_index) {
    *out_label = -1;
    *out_weight = 0;
    return NULL;
  }
  if (label < 0 || label >= places->classes)
    FAIL(MALFORMED, node->name, "label %lld at place %lld is outside [0, %lld)%s", (long long)label, (long long)p, (long long)places->classes,
         places->ignore_index == ATTR_ABSENT ? " and there is no ignore_index" : "");
  *out_label = label;
  *out_weight = places->weights ? element_read(places->weights->data, places->weights->type->dtype, label) : 1;
  return NULL;
}

static Status weights_total(const Places *places, const Node *node, double *out) {
  double total = 0;
  for (int64_t p = 0; p < places->count; p++) {
    int64_t label;
    double weight;
    TRY(place_read(places, node, p, &label, &weight));
    total += weight;
  }
  *out = total;
  return NULL;
}

// ---- SoftmaxCrossEntropyLoss --------------------------------------------------------------------------------------------------

static Status loss_infer(Node *node, Arena *arena) {
  Reduction reduction;
  TRY(reduction_parse(node, &reduction));
  TRY(operands_check(node, node->inputs[0], node->inputs[1], optional_input(node, 2)));
  const Type *scores = &node->inputs[0]->type, *labels = &node->inputs[1]->type;
  if (node->outputs[0]) {
    node->outputs[0]->type = reduction == REDUCTION_NONE ? *labels : type_scalar(scores->dtype);
    node->outputs[0]->type.dtype = scores->dtype;
  }
  if (node->n_outputs > 1 && node->outputs[1]) node->outputs[1]->type = *scores;
  return NULL;
}

// log of the sum of exponentials at place p, and in run_ref the log-probabilities as well.
static double place_log_sum(const KernelContext *c, int scores, const Places *places, int64_t base) {
  double max = -INFINITY, sum = 0;
  for (int64_t k = 0; k < places->classes; k++) {
    double v = in_f(c, scores, base + k * places->inner);
    if (v > max || isnan(v)) max = v;
  }
  for (int64_t k = 0; k < places->classes; k++) sum += exp(in_f(c, scores, base + k * places->inner) - max);
  return max + log(sum);
}

static int64_t place_base(const Places *places, int64_t p) { return p / places->inner * places->classes * places->inner + p % places->inner; }

// The row of one place in run_cpu: contiguous scores. Writes log-probabilities to `log_prob` unless NULL; `row` is workspace.
static double row_log_sum(const Loops *loops, const float *scores, float *row, float *log_prob, int64_t classes) {
  float max = loops->max(scores, classes);
  loops->add_s(row, scores, -max, classes);
  loops->exp(row, row, classes);
  double log_sum = (double)max + log(loops->sum(row, classes));
  if (log_prob)
    for (int64_t k = 0; k < classes; k++) log_prob[k] = (float)((double)scores[k] - log_sum);
  return log_sum;
}

static Status loss_run(const KernelContext *c, bool fast) {
  Reduction reduction;
  TRY(reduction_parse(c->node, &reduction));
  Places places = places_of(c, 0, 1, 2);
  double total = 0, weights = 0;
  for (int64_t p = 0; p < places.count; p++) {
    int64_t label, base = place_base(&places, p);
    double weight, log_sum = 0;
    TRY(place_read(&places, c->node, p, &label, &weight));
    if (fast && (label >= 0 || has_output(c, 1)))
      log_sum = row_log_sum(c->loops, (const float *)c->in[0].data + base, c->workspace, has_output(c, 1) ? (float *)c->out[1].data + base : NULL,
                            places.classes);
    else if (!fast) {
      log_sum = place_log_sum(c, 0, &places, base);
      for (int64_t e = base, k = 0; has_output(c, 1) && k < places.classes; k++, e += places.inner) out_f(c, 1, e, in_f(c, 0, e) - log_sum);
    }
    double loss = label < 0 ? 0 : weight * (log_sum - in_f(c, 0, base + label * places.inner));
    if (reduction == REDUCTION_NONE && has_output(c, 0)) out_f(c, 0, p, loss);
    total += loss;
    weights += weight;
  }
  if (reduction != REDUCTION_NONE && has_output(c, 0)) out_f(c, 0, 0, reduction == REDUCTION_MEAN ? total / weights : total);
  return NULL;
}

static Status loss_ref(const KernelContext *c) { return loss_run(c, false); }

static Status loss_cpu(const KernelContext *c) { return loss_run(c, c->in[0].type->rank == 2); }

static Status loss_workspace(KernelPrepare *p) {
  const Type *scores = &p->node->inputs[0]->type;
  p->workspace_bytes = scores->rank == 2 ? scores->dims[1] * (int64_t)sizeof(float) : 0;
  return NULL;
}

static Status loss_grad(Grad *g) {
  const Node *node = g->node;
  const LossAttrs *a = node->attrs;
  if (!g->wanted[0]) return NULL;
  const Type *loss_type = node->outputs[0] ? &node->outputs[0]->type : NULL;
  Value *dlog_prob = node->n_outputs > 1 ? g->dy[1] : NULL;
  Value *dloss = loss_type ? g->dy[0] : NULL;
  if (!dloss) {   // only the log-probabilities reach the loss
    Type zero = type_scalar(node->inputs[0]->type.dtype);
    if (!strcmp(a->reduction, "none")) zero = type_make(zero.dtype, node->inputs[1]->type.rank, node->inputs[1]->type.dims);
    dloss = emit_const(g->emit, "zero", &zero, arena_alloc(g->emit->graph->arena, (size_t)type_bytes(&zero)));
  }
  g->dx[0] = emit(g->emit, &op_SoftmaxCrossEntropyLossGrad,
                  INPUTS(dloss, node->inputs[0], node->inputs[1], optional_input(node, 2), dlog_prob),
                  ATTRS(A_INT("ignore_index", a->ignore_index), A_STRING("reduction", a->reduction)));
  return NULL;
}

const Op op_SoftmaxCrossEntropyLoss = {
    .name = "SoftmaxCrossEntropyLoss", .domain = "", .policy = POLICY_F32, .min_inputs = 2, .max_inputs = 3, .min_outputs = 1, .max_outputs = 2,
    .nondifferentiable = 1 << 1 | 1 << 2, .attrs = loss_attrs, .attrs_bytes = sizeof(LossAttrs),
    .infer = loss_infer, .grad = loss_grad, .run_ref = loss_ref, .run_cpu = loss_cpu, .workspace = loss_workspace, .cost = cost_cross_entropy};

// ---- SoftmaxCrossEntropyLossGrad ----------------------------------------------------------------------------------------------

enum { GRAD_DLOSS, GRAD_SCORES, GRAD_LABELS, GRAD_WEIGHTS, GRAD_DLOG_PROB };

static Status loss_grad_infer(Node *node, Arena *arena) {
  Reduction reduction;
  TRY(reduction_parse(node, &reduction));
  TRY(operands_check(node, node->inputs[GRAD_SCORES], node->inputs[GRAD_LABELS], optional_input(node, GRAD_WEIGHTS)));
  const Type *scores = &node->inputs[GRAD_SCORES]->type, *dloss = &node->inputs[GRAD_DLOSS]->type;
  int64_t want = reduction == REDUCTION_NONE ? type_elems(&node->inputs[GRAD_LABELS]->type) : 1;
  if (dloss->dtype != scores->dtype || type_elems(dloss) != want)
    FAIL(MALFORMED, node->name, "dloss '%s' must have %lld elements of %s", node->inputs[GRAD_DLOSS]->name, (long long)want,
         dtype_name(scores->dtype));
  Value *dlog_prob = optional_input(node, GRAD_DLOG_PROB);
  if (dlog_prob && !type_equal(&dlog_prob->type, scores))
    FAIL(MALFORMED, node->name, "dlog_prob '%s' must have the type of the scores", dlog_prob->name);
  node->outputs[0]->type = *scores;
  return NULL;
}

// dscores of one place in f64: weight * dloss * (p - onehot) + dlog_prob - p * sum(dlog_prob).
static void place_grad_ref(const KernelContext *c, const Places *places, int64_t base, int64_t label, double dloss) {
  double log_sum = place_log_sum(c, GRAD_SCORES, places, base), through = 0;
  bool log_prob = has_input(c, GRAD_DLOG_PROB);
  for (int64_t k = 0; log_prob && k < places->classes; k++) through += in_f(c, GRAD_DLOG_PROB, base + k * places->inner);
  for (int64_t k = 0; k < places->classes; k++) {
    int64_t e = base + k * places->inner;
    double p = exp(in_f(c, GRAD_SCORES, e) - log_sum), d = label < 0 ? 0 : dloss * (p - (k == label));
    out_f(c, 0, e, log_prob ? d + in_f(c, GRAD_DLOG_PROB, e) - p * through : d);
  }
}

static void place_grad_cpu(const KernelContext *c, const Places *places, int64_t base, int64_t label, double dloss) {
  const Loops *loops = c->loops;
  const float *scores = (const float *)c->in[GRAD_SCORES].data + base;
  const float *dlog_prob = has_input(c, GRAD_DLOG_PROB) ? (const float *)c->in[GRAD_DLOG_PROB].data + base : NULL;
  float *out = (float *)c->out[0].data + base;
  int64_t classes = places->classes;
  if (label < 0 && !dlog_prob) {
    memset(out, 0, (size_t)classes * sizeof(float));
    return;
  }
  loops->add_s(out, scores, -loops->max(scores, classes), classes);
  loops->exp(out, out, classes);
  double through = dlog_prob ? loops->sum(dlog_prob, classes) : 0;
  double scale = (label < 0 ? 0 : dloss) - through;
  loops->mul_s(out, out, (float)(scale / loops->sum(out, classes)), classes);
  if (dlog_prob) loops->add(out, out, dlog_prob, classes);
  if (label >= 0) out[label] -= (float)dloss;
}

static Status loss_grad_run(const KernelContext *c, bool fast) {
  Reduction reduction;
  TRY(reduction_parse(c->node, &reduction));
  Places places = places_of(c, GRAD_SCORES, GRAD_LABELS, GRAD_WEIGHTS);
  double divisor = 1;
  if (reduction == REDUCTION_MEAN) TRY(weights_total(&places, c->node, &divisor));
  for (int64_t p = 0; p < places.count; p++) {
    int64_t label, base = place_base(&places, p);
    double weight;
    TRY(place_read(&places, c->node, p, &label, &weight));
    double dloss = label < 0 ? 0 : weight * in_f(c, GRAD_DLOSS, reduction == REDUCTION_NONE ? p : 0) / divisor;
    if (fast) place_grad_cpu(c, &places, base, label, dloss);
    else place_grad_ref(c, &places, base, label, dloss);
  }
  return NULL;
}

static Status loss_grad_ref(const KernelContext *c) { return loss_grad_run(c, false); }
static Status loss_grad_cpu(const KernelContext *c) { return loss_grad_run(c, c->in[GRAD_SCORES].type->rank == 2); }

// dscores over scores: the logits are the largest tensor of a language model, and this is their last use.
static bool loss_grad_alias(const Node *node, int output, int input, Alias *out) {
  if (output || input != GRAD_SCORES) return false;
  *out = (Alias){.kind = ALIAS_INPLACE, .input = GRAD_SCORES};
  return true;
}

const Op op_SoftmaxCrossEntropyLossGrad = {
    .name = "SoftmaxCrossEntropyLossGrad", .domain = "tessera", .min_inputs = 3, .max_inputs = 5, .min_outputs = 1, .max_outputs = 1,
    .nondifferentiable = 0x1f, .attrs = loss_attrs, .attrs_bytes = sizeof(LossAttrs), .infer = loss_grad_infer,
    .run_ref = loss_grad_ref, .run_cpu = loss_grad_cpu, .alias = loss_grad_alias, .cost = cost_cross_entropy};

// ---- CrossEntropyCount --------------------------------------------------------------------------------------------------------

typedef struct CountAttrs { int64_t ignore_index; } CountAttrs;
static const AttrSpec count_attrs[] = {IGNORE_ATTR(CountAttrs), {0}};

static Status count_infer(Node *node, Arena *arena) {
  const Value *weights = optional_input(node, 1);
  TRY(operands_check(node, NULL, node->inputs[0], NULL));
  if (weights && (weights->type.rank != 1 || !dtype_is_float(weights->type.dtype)))
    FAIL(MALFORMED, node->name, "weights '%s' must be floats [C]", weights->name);
  node->outputs[0]->type = type_scalar(DTYPE_F64);
  return NULL;
}

static Status count_ref(const KernelContext *c) {
  Places places = {.labels = &c->in[0], .weights = has_input(c, 1) ? &c->in[1] : NULL, .inner = 1, .count = in_elems(c, 0),
                   .classes = has_input(c, 1) ? in_elems(c, 1) : INT64_MAX, .ignore_index = ((const CountAttrs *)c->node->attrs)->ignore_index};
  double total;
  TRY(weights_total(&places, c->node, &total));
  out_f(c, 0, 0, total);
  return NULL;
}

const Op op_CrossEntropyCount = {
    .name = "CrossEntropyCount", .domain = "tessera", .policy = POLICY_F32, .min_inputs = 1, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1,
    .nondifferentiable = 3, .attrs = count_attrs, .attrs_bytes = sizeof(CountAttrs), .infer = count_infer, .run_ref = count_ref};

// ---- NegativeLogLikelihoodLoss --------------------------------------------------------------------------------------------------

static Status nll_infer(Node *node, Arena *arena) {
  Reduction reduction;
  TRY(reduction_parse(node, &reduction));
  TRY(operands_check(node, node->inputs[0], node->inputs[1], optional_input(node, 2)));
  const Type *scores = &node->inputs[0]->type, *labels = &node->inputs[1]->type;
  node->outputs[0]->type = reduction == REDUCTION_NONE ? *labels : type_scalar(scores->dtype);
  node->outputs[0]->type.dtype = scores->dtype;
  return NULL;
}

static Status nll_ref(const KernelContext *c) {
  Reduction reduction;
  TRY(reduction_parse(c->node, &reduction));
  Places places = places_of(c, 0, 1, 2);
  double total = 0, weights = 0;
  for (int64_t p = 0; p < places.count; p++) {
    int64_t label;
    double weight;
    TRY(place_read(&places, c->node, p, &label, &weight));
    double loss = label < 0 ? 0 : -weight * in_f(c, 0, place_base(&places, p) + label * places.inner);
    if (reduction == REDUCTION_NONE) out_f(c, 0, p, loss);
    total += loss;
    weights += weight;
  }
  if (reduction != REDUCTION_NONE) out_f(c, 0, 0, reduction == REDUCTION_MEAN ? total / weights : total);
  return NULL;
}

static Status nll_grad(Grad *g) {
  const Node *node = g->node;
  const LossAttrs *a = node->attrs;
  const Type *scores = &node->inputs[0]->type;
  if (g->dy[0] && g->wanted[0])
    g->dx[0] = emit(g->emit, &op_NegativeLogLikelihoodLossGrad, INPUTS(g->dy[0], node->inputs[1], optional_input(node, 2)),
                    ATTRS(A_INT("ignore_index", a->ignore_index), A_STRING("reduction", a->reduction), A_INTS("dims", scores->dims, scores->rank)));
  return NULL;
}

const Op op_NegativeLogLikelihoodLoss = {
    .name = "NegativeLogLikelihoodLoss", .domain = "", .policy = POLICY_F32, .min_inputs = 2, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1,
    .nondifferentiable = 1 << 1 | 1 << 2, .attrs = loss_attrs, .attrs_bytes = sizeof(LossAttrs),
    .infer = nll_infer, .grad = nll_grad, .run_ref = nll_ref};

// (dloss, labels, weights?) -> gradient of the log-probabilities: -weight dloss at the label, else 0.
typedef struct NllGradAttrs { LossAttrs loss; AttrInts dims; } NllGradAttrs;
static const AttrSpec nll_grad_attrs[] = {
    {"ignore_index", ATTR_INT, offsetof(NllGradAttrs, loss.ignore_index), .default_int = ATTR_ABSENT, .help = "labels of this value do not count"},
    {"reduction", ATTR_STRING, offsetof(NllGradAttrs, loss.reduction), .default_string = "mean", .help = "none, sum or mean"},
    {"dims", ATTR_INTS, offsetof(NllGradAttrs, dims), .required = true, .min = 0, .max = INT64_C(1) << 46,
     .help = "dimensions of the log-probabilities"},
    {0},
};

static Status nll_grad_infer(Node *node, Arena *arena) {
  const NllGradAttrs *a = node->attrs;
  Reduction reduction;
  const Type *dloss = &node->inputs[0]->type;
  if (a->dims.n < 2 || a->dims.n > RANK_MAX) FAIL(MALFORMED, node->name, "attribute dims has %lld numbers", (long long)a->dims.n);
  Value scores = {.name = "dims", .type = type_make(dloss->dtype, (int)a->dims.n, a->dims.items)};
  TRY(reduction_parse(node, &reduction));
  TRY(operands_check(node, &scores, node->inputs[1], optional_input(node, 2)));
  int64_t want = reduction == REDUCTION_NONE ? type_elems(&node->inputs[1]->type) : 1;
  if (type_elems(dloss) != want) FAIL(MALFORMED, node->name, "dloss '%s' must have %lld elements", node->inputs[0]->name, (long long)want);
  node->outputs[0]->type = scores.type;
  return NULL;
}

static Status nll_grad_ref(const KernelContext *c) {
  Reduction reduction;
  TRY(reduction_parse(c->node, &reduction));
  const Type *s = c->out[0].type;
  Places places = {.labels = &c->in[1], .weights = has_input(c, 2) ? &c->in[2] : NULL, .classes = s->dims[1], .inner = 1,
                   .ignore_index = ((const LossAttrs *)c->node->attrs)->ignore_index};
  for (int d = 2; d < s->rank; d++) places.inner *= s->dims[d];
  places.count = s->dims[0] * places.inner;
  double divisor = 1;
  if (reduction == REDUCTION_MEAN) TRY(weights_total(&places, c->node, &divisor));
  if (out_elems(c, 0)) memset(c->out[0].data, 0, (size_t)type_bytes(s));
  for (int64_t p = 0; p < places.count; p++) {
    int64_t label;
    double weight;
    TRY(place_read(&places, c->node, p, &label, &weight));
    if (label >= 0) out_f(c, 0, place_base(&places, p) + label * places.inner, -weight * in_f(c, 0, reduction == REDUCTION_NONE ? p : 0) / divisor);
  }
  return NULL;
}

const Op op_NegativeLogLikelihoodLossGrad = {
    .name = "NegativeLogLikelihoodLossGrad", .domain = "tessera", .min_inputs = 2, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1,
    .nondifferentiable = 7, .attrs = nll_grad_attrs, .attrs_bytes = sizeof(NllGradAttrs), .infer = nll_grad_infer,
    .run_ref = nll_grad_ref};
