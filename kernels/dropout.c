// Dropout. Its gradient is Dropout again: the mask is a function of the source node and the clock, so the backward node draws the same
// bits and no mask is kept.
//
// Random numbers: Loops.random. Key = run seed mixed with the origin's name and attribute `seed`; counter = (element, step, global micro-batch).
// Hence an element's bit depends neither on ranks, nor on the micro-batches per rank, nor on where the node runs.
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "cost.h"
#include "index_input.h"
#include "ops.h"
#include "random.h"

typedef struct DropoutAttrs { int64_t seed; } DropoutAttrs;
static const AttrSpec dropout_attrs[] = {
  {"seed", ATTR_INT, offsetof(DropoutAttrs, seed), .default_int = ATTR_ABSENT, .help = "told apart from other nodes' numbers by it, too"},
  {0},
};

static Status check_ratio(const Node *node, double ratio) {
  if (!(ratio >= 0 && ratio < 1)) FAIL(MALFORMED, node->name, "Dropout: ratio %g is outside [0,1)", ratio);
  return STATUS_OK;
}

static Status dropout_infer(Node *node, Arena *arena) {
  const Type *x = input_type(node, 0);
  if (!dtype_is_float(x->dtype)) FAIL(MALFORMED, node->name, "Dropout: input '%s' of %s; a float is needed", node->inputs[0]->name, dtype_name(x->dtype));
  if (node_has_input(node, 1)) {
    if (!dtype_is_float(input_type(node, 1)->dtype) || type_elems(input_type(node, 1)) != 1)
      FAIL(MALFORMED, node->name, "Dropout: ratio '%s' must be one float", node->inputs[1]->name);
    const Weight *ratio = value_const(node->inputs[1]);
    if (ratio) TRY(check_ratio(node, weight_read_float(ratio, 0)));
  }
  if (node_has_input(node, 2) && (input_type(node, 2)->dtype != DTYPE_BOOL || type_elems(input_type(node, 2)) != 1))
    FAIL(MALFORMED, node->name, "Dropout: training_mode '%s' must be one bool", node->inputs[2]->name);
  if (node_has_output(node, 0)) node->outputs[0]->type = *x;
  if (node_has_output(node, 1)) {
    node->outputs[1]->type = *x;
    node->outputs[1]->type.dtype = DTYPE_BOOL;
  }
  return STATUS_OK;
}

static uint64_t node_key(const KernelContext *c) {
  int64_t own = ((const DropoutAttrs *)c->node->attrs)->seed;
  return random_key(c, own == ATTR_ABSENT ? 0 : (uint64_t)own + 1);
}

static bool trains(const KernelContext *c) { return has_input(c, 2) && in_i(c, 2, 0) && !(c->clock && c->clock->evaluates); }

static void pass_all(const KernelContext *c) {
  int64_t bytes = type_bytes(c->in[0].type);
  if (has_output(c, 0) && bytes && c->out[0].data != c->in[0].data) memcpy(c->out[0].data, c->in[0].data, (size_t)bytes);
  if (has_output(c, 1) && bytes) memset(c->out[1].data, 1, (size_t)out_elems(c, 1));
}

static void drop_f32(float *y, const float *x, const uint32_t *random, int64_t n, uint32_t threshold, float scale) {
  float scaled[LOOPS_RANDOM_WORDS];   // computed for all, then selected: two loops of vector code
  for (int64_t i = 0; i < n; i++) scaled[i] = x[i] * scale;
  for (int64_t i = 0; i < n; i++) y[i] = random[i] >= threshold ? scaled[i] : 0;
}

static Status dropout_run(const KernelContext *c, bool fast) {
  double ratio = has_input(c, 1) ? in_f(c, 1, 0) : 0.5;
  TRY(check_ratio(c->node, ratio));
  if (!trains(c) || ratio == 0) {
    pass_all(c);
    return STATUS_OK;
  }
  uint64_t key = node_key(c);
  uint64_t when = random_when(c);
  uint32_t threshold = (uint32_t)fmin(ratio * 0x1p32, 0xffffffffu);   // dropped below it
  double scale = 1 / (1 - ratio);
  uint32_t random[LOOPS_RANDOM_WORDS];
  for (int64_t i = 0, n = in_elems(c, 0); i < n; i += LOOPS_RANDOM_WORDS) {
    int64_t count = n - i < LOOPS_RANDOM_WORDS ? n - i : LOOPS_RANDOM_WORDS;
    c->loops->random(random, key, when, (uint64_t)i / LOOPS_RANDOM_WORDS);
    if (has_output(c, 0) && fast) drop_f32((float *)c->out[0].data + i, (const float *)c->in[0].data + i, random, count, threshold, (float)scale);
    else if (has_output(c, 0))
      for (int64_t k = 0; k < count; k++) out_f(c, 0, i + k, random[k] >= threshold ? in_f(c, 0, i + k) * scale : 0);
    if (has_output(c, 1))
      for (int64_t k = 0; k < count; k++) ((bool *)c->out[1].data)[i + k] = random[k] >= threshold;
  }
  return STATUS_OK;
}

static Status dropout_ref(const KernelContext *c) { return dropout_run(c, false); }
static Status dropout_cpu(const KernelContext *c) { return dropout_run(c, true); }

static Status dropout_grad(Grad *g) {
  if (!g->wanted[0]) return STATUS_OK;
  const Node *node = g->node;
  bool off = !node_has_input(node, 2);   // training_mode defaults to false
  const Weight *mode = node_has_input(node, 2) ? value_const(node->inputs[2]) : NULL;
  if (off || (mode && !weight_read_int(mode, 0))) {
    g->dx[0] = g->dy[0];
    return STATUS_OK;
  }
  Value *inputs[3] = {g->dy[0], node->inputs[1], node->inputs[2]};
  g->dx[0] = emit(g->emit, &op_Dropout, inputs, 3, ATTRS(A_INT("seed", ((const DropoutAttrs *)node->attrs)->seed)));
  return STATUS_OK;
}

// Where it is known to do nothing it is a view; else it may write over its input.
static bool dropout_alias(const Node *node, int output, int input, Alias *out) {
  if (input != 0 || output != 0) return false;
  const Weight *mode = node_has_input(node, 2) ? value_const(node->inputs[2]) : NULL;
  bool off = !node_has_input(node, 2) || (mode && !weight_read_int(mode, 0));
  *out = (Alias){.kind = off && !node_has_output(node, 1) ? ALIAS_VIEW : ALIAS_INPLACE, .input = 0};
  return true;
}

const Op op_Dropout = {.name = "Dropout", .domain = "", .min_inputs = 1, .max_inputs = 3, .min_outputs = 1, .max_outputs = 2, .flags = OP_RANDOM,
                       .nondifferentiable = 6, .attrs = dropout_attrs, .attrs_bytes = sizeof(DropoutAttrs), .infer = dropout_infer,
                       .grad = dropout_grad, .run_ref = dropout_ref, .run_cpu = dropout_cpu, .alias = dropout_alias, .cost = cost_function};
