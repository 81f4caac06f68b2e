// Normalisations whose scale and bias belong to channels: BatchNormalization (a set is one channel of the whole batch), GroupNormalization and
// InstanceNormalization (a set is a group of channels of one sample); and their gradients.
//
// With h = (x - mean) / sd and g = dy scale: dx = (g - mean(g) - h mean(g h)) / sd where the statistics come from x itself, g / sd where they
// are given; dscale = sum of dy h, dbias = sum of dy, per channel.
#include <math.h>
#include <string.h>

#include "cost.h"
#include "kernel.h"
#include "ops.h"

typedef struct ChannelAttrs { float epsilon, momentum; int64_t training_mode, num_groups, stash_type; } ChannelAttrs;
#define EPSILON_ATTR {"epsilon", ATTR_FLOAT, offsetof(ChannelAttrs, epsilon), .default_float = 1e-5f, .help = "added to the variance"}
#define TRAINING_ATTR {"training_mode", ATTR_INT, offsetof(ChannelAttrs, training_mode), .min = 0, .max = 1, .help = "1: statistics of this batch"}
#define GROUPS_ATTR                                                                                                                                  \
  {                                                                                                                                                  \
    "num_groups", ATTR_INT, offsetof(ChannelAttrs, num_groups), .required = true, .default_int = 1, .min = 1, .max = INT32_MAX,                      \
                                                                .help = "groups of channels"                                                         \
  }
static const AttrSpec batch_attrs[] = {
    EPSILON_ATTR, TRAINING_ATTR,
    {"momentum", ATTR_FLOAT, offsetof(ChannelAttrs, momentum), .default_float = 0.9f, .help = "share that the running statistics keep"}, {0}};
static const AttrSpec batch_grad_attrs[] = {EPSILON_ATTR, TRAINING_ATTR, {0}};
static const AttrSpec group_attrs[] = {EPSILON_ATTR,
                                       GROUPS_ATTR,
                                       {"stash_type", ATTR_INT, offsetof(ChannelAttrs, stash_type), .default_int = 1,
                                        .help = "type of the statistics; they are never narrower than float"},
                                       {0}};
static const AttrSpec group_grad_attrs[] = {EPSILON_ATTR, GROUPS_ATTR, {0}};
static const AttrSpec instance_attrs[] = {EPSILON_ATTR, {0}};

static float epsilon_of(const Node *node) { return ((const ChannelAttrs *)node->attrs)->epsilon; }

// X as [batch, channels, inner].
typedef struct Channels { int64_t batch, channels, inner; } Channels;

static Channels channels_of(const Type *x) {
  Channels s = {.batch = x->rank ? x->dims[0] : 1, .channels = x->rank > 1 ? x->dims[1] : 1, .inner = 1};
  for (int d = 2; d < x->rank; d++) s.inner *= x->dims[d];
  return s;
}

static Status floats_check(const Node *node, const Type *x) {
  char text[160];
  if (!dtype_is_float(x->dtype) || !x->rank) FAIL(MALFORMED, node->name, "X is %s; floats [N, C, ...] are needed", type_text(x, text, sizeof text));
  return NULL;
}

static Status channel_check(const Node *node, int input, int64_t channels) {
  const Value *v = node->inputs[input];
  char have[160];
  if (!dtype_is_float(v->type.dtype) || v->type.rank != 1 || v->type.dims[0] != channels)
    FAIL(MALFORMED, node->name, "'%s' is %s; one float for each of the %lld channels is needed", v->name, type_text(&v->type, have, sizeof have),
         (long long)channels);
  return NULL;
}

// ---- Segments: runs of elements next to each other, of input `i` from element `at` on. Fast: f32 through the vector loops -----------------

static double segment_sum(const KernelContext *c, int i, int64_t at, int64_t n, bool fast) {
  if (fast && n > 1) return c->loops->sum((const float *)c->in[i].data + at, n);
  double sum = 0;
  for (int64_t k = 0; k < n; k++) sum += in_f(c, i, at + k);
  return sum;
}

static double segment_dot(const KernelContext *c, int i, int j, int64_t at, int64_t n, bool fast) {
  if (fast && n > 1) return c->loops->dot((const float *)c->in[i].data + at, (const float *)c->in[j].data + at, n);
  double sum = 0;
  for (int64_t k = 0; k < n; k++) sum += in_f(c, i, at + k) * in_f(c, j, at + k);
  return sum;
}

// out = a (x - shift) + b
static void segment_affine(const KernelContext *c, int64_t at, int64_t n, double a, double shift, double b, bool fast) {
  if (!fast) {
    for (int64_t k = at; k < at + n; k++) out_f(c, 0, k, a * (in_f(c, 0, k) - shift) + b);
    return;
  }
  const float *x = (const float *)c->in[0].data + at;
  float *y = (float *)c->out[0].data + at, factor = (float)a, off = (float)shift, add = (float)(b - (shift - (double)(float)shift) * a);
  for (int64_t k = 0; k < n; k++) y[k] = (x[k] - off) * factor + add;
}

// dx = p dy - q (x - shift) - r
static void segment_gradient(const KernelContext *c, int dy_input, int x_input, int64_t at, int64_t n, double p, double q, double shift, double r,
                             bool fast) {
  if (!fast) {
    for (int64_t k = at; k < at + n; k++) out_f(c, 0, k, p * in_f(c, dy_input, k) - q * (in_f(c, x_input, k) - shift) - r);
    return;
  }
  const float *dy = (const float *)c->in[dy_input].data + at, *x = (const float *)c->in[x_input].data + at;
  float *dx = (float *)c->out[0].data + at, fp = (float)p, fq = (float)q, off = (float)shift, fr = (float)(r - (shift - (double)(float)shift) * q);
  for (int64_t k = 0; k < n; k++) dx[k] = fp * dy[k] - fq * (x[k] - off) - fr;
}

// What one mean and variance are taken over.
typedef struct Set { int64_t base, segments, stride, length; } Set;
typedef struct Moments { double mean, variance; } Moments;

static Moments moments_of(const KernelContext *c, int x, const Set *set, bool fast) {
  double sum = 0, squares = 0, n = (double)(set->segments * set->length);
  for (int64_t s = 0; s < set->segments; s++) sum += segment_sum(c, x, set->base + s * set->stride, set->length, fast);
  double mean = sum / n;
  for (int64_t s = 0; s < set->segments; s++) {
    int64_t at = set->base + s * set->stride;
    if (fast) squares += segment_dot(c, x, x, at, set->length, true);   // squares of f32 are exact in double: nothing to lose
    for (int64_t k = 0; !fast && k < set->length; k++) {
      double d = in_f(c, x, at + k) - mean;
      squares += d * d;
    }
  }
  double variance = fast ? squares / n - mean * mean : squares / n;
  return (Moments){mean, variance < 0 ? 0 : variance};
}

static Set batch_set(const Channels *s, int64_t channel) { return (Set){channel * s->inner, s->batch, s->channels * s->inner, s->inner}; }

// ---- BatchNormalization ----------------------------------------------------------------------------------------------------------------

enum { BATCH_X, BATCH_SCALE, BATCH_BIAS, BATCH_MEAN, BATCH_VAR };

static bool in_training(const Node *node) { return ((const ChannelAttrs *)node->attrs)->training_mode; }

static Status batch_infer(Node *node, Arena *arena) {
  const Type *x = &node->inputs[BATCH_X]->type;
  TRY(floats_check(node, x));
  Channels s = channels_of(x);
  for (int i = BATCH_SCALE; i <= BATCH_VAR; i++) TRY(channel_check(node, i, s.channels));
  if (in_training(node) && s.batch * s.inner == 0) FAIL(MALFORMED, node->name, "training_mode = 1, and there are no elements to take a mean of");
  if (node->outputs[0]) node->outputs[0]->type = *x;
  for (int o = 1; o < node->n_outputs; o++) {
    if (!node->outputs[o]) continue;
    if (!in_training(node))
      FAIL(MALFORMED, node->name, "output '%s': running statistics are outputs under training_mode = 1 only", node->outputs[o]->name);
    node->outputs[o]->type = node->inputs[BATCH_MEAN + o - 1]->type;
  }
  return NULL;
}

// Of this batch, unless the graph carries statistics on and an evaluation is to use them.
static bool own_statistics(const KernelContext *c) {
  return in_training(c->node) && !(c->clock && c->clock->evaluates && c->node->inputs[BATCH_MEAN]->role == ROLE_BUFFER);
}

static Status batch_run(const KernelContext *c, bool fast) {
  const ChannelAttrs *a = c->node->attrs;
  Channels s = channels_of(c->in[BATCH_X].type);
  bool own = own_statistics(c);
  double momentum = own ? (double)a->momentum : 1;
  for (int64_t channel = 0; channel < s.channels; channel++) {
    Set set = batch_set(&s, channel);
    Moments given = {in_f(c, BATCH_MEAN, channel), in_f(c, BATCH_VAR, channel)};
    Moments m = own ? moments_of(c, BATCH_X, &set, fast) : given;
    if (has_output(c, 1)) out_f(c, 1, channel, given.mean * momentum + m.mean * (1 - momentum));
    if (has_output(c, 2)) out_f(c, 2, channel, given.variance * momentum + m.variance * (1 - momentum));
    double factor = in_f(c, BATCH_SCALE, channel) / sqrt(m.variance + (double)a->epsilon), bias = in_f(c, BATCH_BIAS, channel);
    for (int64_t n = 0; has_output(c, 0) && n < set.segments; n++)
      segment_affine(c, set.base + n * set.stride, set.length, factor, m.mean, bias, fast);
  }
  return NULL;
}
static Status batch_ref(const KernelContext *c) { return batch_run(c, false); }
static Status batch_cpu(const KernelContext *c) { return batch_run(c, true); }

static Status batch_grad(Grad *g) {
  const Node *node = g->node;
  const ChannelAttrs *a = node->attrs;
  for (int o = 1; o < node->n_outputs; o++)
    if (node->outputs[o] && g->dy[o])
      FAIL(UNSUPPORTED, node->name, "the loss depends on '%s': running statistics have no gradient", node->outputs[o]->name);
  if (!g->dy[0]) return NULL;
  Value *mean = a->training_mode ? NULL : node->inputs[BATCH_MEAN], *var = a->training_mode ? NULL : node->inputs[BATCH_VAR];
  Node *grad = emit_node(g->emit, &op_BatchNormalizationGrad, INPUTS(g->dy[0], node->inputs[BATCH_X], node->inputs[BATCH_SCALE], mean, var), 3,
                         g->wanted, ATTRS(A_FLOAT("epsilon", a->epsilon), A_INT("training_mode", a->training_mode)));
  for (int i = 0; grad && i < 3; i++)
    if (g->wanted[i]) g->dx[i] = grad->outputs[i];
  return NULL;
}

static bool over_first(const Node *node, int output, int input, Alias *out) {
  if (output || input) return false;   // each set is read to its end before the first of it is written
  *out = (Alias){.kind = ALIAS_INPLACE, .input = 0};
  return true;
}

// New running statistics may lie over the old ones: a channel's are read before they are written.
static bool batch_alias(const Node *node, int output, int input, Alias *out) {
  if (output == 0) return over_first(node, output, input, out);
  if (input != BATCH_MEAN + output - 1) return false;
  *out = (Alias){.kind = ALIAS_INPLACE, .input = input};
  return true;
}

const Op op_BatchNormalization = {
    .name = "BatchNormalization", .domain = "", .policy = POLICY_F32, .min_inputs = 5, .max_inputs = 5, .min_outputs = 1, .max_outputs = 3,
    .nondifferentiable = 1 << BATCH_MEAN | 1 << BATCH_VAR, .attrs = batch_attrs, .attrs_bytes = sizeof(ChannelAttrs), .infer = batch_infer,
    .grad = batch_grad, .run_ref = batch_ref, .run_cpu = batch_cpu, .alias = batch_alias, .cost = cost_norm};

// ---- BatchNormalizationGrad ------------------------------------------------------------------------------------------------------------

enum { GRAD_DY, GRAD_X, GRAD_SCALE, GRAD_MEAN, GRAD_VAR };

// The common part of both gradients: dx over X, dscale and dbias per channel.
static Status grad_types(Node *node) {
  const Type *x = &node->inputs[GRAD_X]->type;
  TRY(floats_check(node, x));
  if (!type_equal(x, &node->inputs[GRAD_DY]->type))
    FAIL(MALFORMED, node->name, "'%s' and '%s' must be of one type", node->inputs[GRAD_DY]->name, node->inputs[GRAD_X]->name);
  TRY(channel_check(node, GRAD_SCALE, channels_of(x).channels));
  if (node->outputs[0]) node->outputs[0]->type = *x;
  for (int o = 1; o < node->n_outputs; o++)
    if (node->outputs[o]) node->outputs[o]->type = node->inputs[GRAD_SCALE]->type;
  return NULL;
}

static Status batch_grad_infer(Node *node, Arena *arena) {
  TRY(grad_types(node));
  int64_t channels = channels_of(&node->inputs[GRAD_X]->type).channels;
  if (in_training(node)) return NULL;
  if (node->n_inputs < 5 || !node->inputs[GRAD_MEAN] || !node->inputs[GRAD_VAR])
    FAIL(MALFORMED, node->name, "training_mode = 0 needs the mean and the variance");
  TRY(channel_check(node, GRAD_MEAN, channels));
  return channel_check(node, GRAD_VAR, channels);
}

static Status batch_grad_run(const KernelContext *c, bool fast) {
  const ChannelAttrs *a = c->node->attrs;
  Channels s = channels_of(c->in[GRAD_X].type);
  double count = (double)(s.batch * s.inner);
  for (int64_t channel = 0; channel < s.channels; channel++) {
    Set set = batch_set(&s, channel);
    Moments m = a->training_mode ? moments_of(c, GRAD_X, &set, fast) : (Moments){in_f(c, GRAD_MEAN, channel), in_f(c, GRAD_VAR, channel)};
    double inverse = 1 / sqrt(m.variance + (double)a->epsilon), sum = 0, dot = 0, scale = in_f(c, GRAD_SCALE, channel);
    for (int64_t n = 0; n < set.segments; n++) {
      int64_t at = set.base + n * set.stride;
      sum += segment_sum(c, GRAD_DY, at, set.length, fast);
      dot += segment_dot(c, GRAD_DY, GRAD_X, at, set.length, fast);
    }
    double dscale = (dot - m.mean * sum) * inverse;
    if (has_output(c, 1)) out_f(c, 1, channel, dscale);
    if (has_output(c, 2)) out_f(c, 2, channel, sum);
    double p = scale * inverse, q = a->training_mode ? p * inverse * dscale / count : 0, r = a->training_mode ? p * sum / count : 0;
    for (int64_t n = 0; has_output(c, 0) && n < set.segments; n++)
      segment_gradient(c, GRAD_DY, GRAD_X, set.base + n * set.stride, set.length, p, q, m.mean, r, fast);
  }
  return NULL;
}
static Status batch_grad_ref(const KernelContext *c) { return batch_grad_run(c, false); }
static Status batch_grad_cpu(const KernelContext *c) { return batch_grad_run(c, true); }

static bool grad_alias(const Node *node, int output, int input, Alias *out) {
  if (output != 0 || input > GRAD_X) return false;   // dx over dy or x: a set is read to its end first
  *out = (Alias){.kind = ALIAS_INPLACE, .input = input};
  return true;
}

const Op op_BatchNormalizationGrad = {
    .name = "BatchNormalizationGrad", .domain = "tessera", .min_inputs = 3, .max_inputs = 5, .min_outputs = 1, .max_outputs = 3,
    .attrs = batch_grad_attrs, .attrs_bytes = sizeof(ChannelAttrs), .infer = batch_grad_infer,
    .run_ref = batch_grad_ref, .run_cpu = batch_grad_cpu, .alias = grad_alias, .cost = cost_norm};

// ---- GroupNormalization, InstanceNormalization --------------------------------------------------------------------------------------------

static int64_t groups_of(const Node *node, const Channels *s) {
  return node->op == &op_InstanceNormalization ? s->channels : ((const ChannelAttrs *)node->attrs)->num_groups;
}

static Status groups_check(const Node *node, const Type *x) {
  Channels s = channels_of(x);
  int64_t groups = groups_of(node, &s);
  if (x->rank < 2) FAIL(MALFORMED, node->name, "X has %d axes; [N, C, ...] is needed", x->rank);
  if (groups < 1 ? s.channels : s.channels % groups)
    FAIL(MALFORMED, node->name, "num_groups = %lld must divide the %lld channels", (long long)groups, (long long)s.channels);
  return NULL;
}

static Status group_infer(Node *node, Arena *arena) {
  const Type *x = &node->inputs[0]->type;
  TRY(floats_check(node, x));
  TRY(groups_check(node, x));
  for (int i = 1; i <= 2; i++) TRY(channel_check(node, i, channels_of(x).channels));
  node->outputs[0]->type = *x;
  return NULL;
}

static Status group_run(const KernelContext *c, bool fast) {
  Channels s = channels_of(c->in[0].type);
  int64_t groups = groups_of(c->node, &s), size = groups ? s.channels / groups : 0;
  for (int64_t row = 0; row < s.batch * groups; row++) {
    Set set = {row * size * s.inner, 1, 0, size * s.inner};
    Moments m = moments_of(c, 0, &set, fast);
    double inverse = 1 / sqrt(m.variance + (double)epsilon_of(c->node));
    for (int64_t k = 0; k < size; k++) {
      int64_t channel = row % groups * size + k;
      segment_affine(c, set.base + k * s.inner, s.inner, in_f(c, 1, channel) * inverse, m.mean, in_f(c, 2, channel), fast);
    }
  }
  return NULL;
}
static Status group_ref(const KernelContext *c) { return group_run(c, false); }
static Status group_cpu(const KernelContext *c) { return group_run(c, true); }

static Status group_grad(Grad *g) {
  const Node *node = g->node;
  Channels s = channels_of(&node->inputs[0]->type);
  int64_t groups = groups_of(node, &s);
  Node *grad = emit_node(g->emit, &op_GroupNormalizationGrad, INPUTS(g->dy[0], node->inputs[0], node->inputs[1]), 3, g->wanted,
                         ATTRS(A_FLOAT("epsilon", epsilon_of(node)), A_INT("num_groups", groups ? groups : 1)));
  for (int i = 0; grad && i < 3; i++)
    if (g->wanted[i]) g->dx[i] = grad->outputs[i];
  return NULL;
}

const Op op_GroupNormalization = {
    .name = "GroupNormalization", .domain = "", .policy = POLICY_F32, .min_inputs = 3, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1, .attrs = group_attrs,
    .attrs_bytes = sizeof(ChannelAttrs), .infer = group_infer, .grad = group_grad, .run_ref = group_ref, .run_cpu = group_cpu, .alias = over_first, .cost = cost_norm};
const Op op_InstanceNormalization = {
    .name = "InstanceNormalization", .domain = "", .policy = POLICY_F32, .min_inputs = 3, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1, .attrs = instance_attrs,
    .attrs_bytes = sizeof(ChannelAttrs), .infer = group_infer, .grad = group_grad, .run_ref = group_ref, .run_cpu = group_cpu, .alias = over_first, .cost = cost_norm};

static Status group_grad_infer(Node *node, Arena *arena) {
  TRY(grad_types(node));
  return groups_check(node, &node->inputs[GRAD_X]->type);
}

// The reference has no workspace for sums over samples: one channel at a time, its groups' moments taken again.
static void group_channel_sums(const KernelContext *c, const Channels *s, int64_t groups, int64_t channel, bool fast) {
  int64_t size = s->channels / groups;
  double dscale = 0, dbias = 0;
  for (int64_t n = 0; n < s->batch; n++) {
    Set set = {(n * groups + channel / size) * size * s->inner, 1, 0, size * s->inner};
    Moments m = moments_of(c, GRAD_X, &set, fast);
    int64_t at = (n * s->channels + channel) * s->inner;
    double sum = segment_sum(c, GRAD_DY, at, s->inner, fast);
    dbias += sum;
    dscale += (segment_dot(c, GRAD_DY, GRAD_X, at, s->inner, fast) - m.mean * sum) / sqrt(m.variance + (double)epsilon_of(c->node));
  }
  if (has_output(c, 1)) out_f(c, 1, channel, dscale);
  if (has_output(c, 2)) out_f(c, 2, channel, dbias);
}

typedef struct ChannelSums { double *dscale, *dbias; } ChannelSums;   // of run_cpu, [channels] each; NULL: not wanted here

static void group_row_gradient(const KernelContext *c, const Channels *s, int64_t groups, int64_t row, ChannelSums sums, bool fast) {
  int64_t size = s->channels / groups;
  Set set = {row * size * s->inner, 1, 0, size * s->inner};
  Moments m = moments_of(c, GRAD_X, &set, fast);
  double inverse = 1 / sqrt(m.variance + (double)epsilon_of(c->node)), mean_g = 0, mean_gh = 0;
  for (int64_t k = 0; k < size; k++) {
    int64_t channel = row % groups * size + k, at = set.base + k * s->inner;
    double sum = segment_sum(c, GRAD_DY, at, s->inner, fast);
    double dscale = (segment_dot(c, GRAD_DY, GRAD_X, at, s->inner, fast) - m.mean * sum) * inverse, scale = in_f(c, GRAD_SCALE, channel);
    mean_g += scale * sum / (double)set.length;
    mean_gh += scale * dscale / (double)set.length;
    if (!sums.dscale) continue;
    sums.dscale[channel] += dscale;
    sums.dbias[channel] += sum;
  }
  for (int64_t k = 0; has_output(c, 0) && k < size; k++) {
    double p = in_f(c, GRAD_SCALE, row % groups * size + k) * inverse;
    segment_gradient(c, GRAD_DY, GRAD_X, set.base + k * s->inner, s->inner, p, inverse * inverse * mean_gh, m.mean, inverse * mean_g, fast);
  }
}

static Status group_grad_ref(const KernelContext *c) {
  Channels s = channels_of(c->in[GRAD_X].type);
  int64_t groups = groups_of(c->node, &s);
  for (int64_t channel = 0; channel < s.channels; channel++) group_channel_sums(c, &s, groups, channel, false);
  for (int64_t row = 0; row < s.batch * groups; row++) group_row_gradient(c, &s, groups, row, (ChannelSums){0}, false);
  return NULL;
}

static Status group_grad_cpu(const KernelContext *c) {
  Channels s = channels_of(c->in[GRAD_X].type);
  int64_t groups = groups_of(c->node, &s);
  double *space = c->workspace;
  for (int64_t k = 0; k < 2 * s.channels; k++) space[k] = 0;
  for (int64_t row = 0; row < s.batch * groups; row++) group_row_gradient(c, &s, groups, row, (ChannelSums){space, space + s.channels}, true);
  for (int64_t k = 0; k < s.channels; k++) {
    if (has_output(c, 1)) out_f(c, 1, k, space[k]);
    if (has_output(c, 2)) out_f(c, 2, k, space[s.channels + k]);
  }
  return NULL;
}

static Status group_grad_workspace(KernelPrepare *p) {
  p->workspace_bytes = 2 * channels_of(&p->node->inputs[GRAD_X]->type).channels * (int64_t)sizeof(double);
  return NULL;
}

const Op op_GroupNormalizationGrad = {
    .name = "GroupNormalizationGrad", .domain = "tessera", .min_inputs = 3, .max_inputs = 3, .min_outputs = 1, .max_outputs = 3,
    .attrs = group_grad_attrs, .attrs_bytes = sizeof(ChannelAttrs), .infer = group_grad_infer, .run_ref = group_grad_ref,
    .run_cpu = group_grad_cpu, .workspace = group_grad_workspace, .alias = grad_alias, .cost = cost_norm};
