// Sums over micro-batches (TreeAccumulate) and the loss that they belong to. Specified in docs/operators.md.
#include <string.h>

#include "kernel.h"
#include "ops.h"

// ---- TreeAccumulate -----------------------------------------------------------------------------------------------------------

typedef struct TreeAttrs { int64_t count, running; } TreeAttrs;
static const AttrSpec tree_attrs[] = {
    {"count", ATTR_INT, offsetof(TreeAttrs, count), .required = true, .min = 1, .max = INT32_MAX, .help = "micro-batches per rank (k)"},
    {"running", ATTR_INT, offsetof(TreeAttrs, running), .min = 0, .max = 1, .help = "1: one partial, to which each micro-batch is added"},
    {0},
};

int tree_levels(int64_t count, bool running) {
  int levels = 0;
  if (running) return count > 1;
  for (int64_t rest = count - 1; rest; rest >>= 1) levels++;
  return levels;
}

static Status tree_infer(Node *node, Arena *arena) {
  const TreeAttrs *a = node->attrs;
  int64_t count = a->count;
  int levels = tree_levels(count, a->running);
  if (node->n_inputs != 2 + levels || node->n_outputs != 1 + levels)
    FAIL(MALFORMED, node->name, "count %lld needs %d partials, so %d inputs and %d outputs; there are %d and %d", (long long)count, levels,
         2 + levels, 1 + levels, node->n_inputs, node->n_outputs);
  if (!node->outputs[0]) FAIL(MALFORMED, node->name, "the output sum is missing");
  const Type *x = &node->inputs[0]->type, *micro = &node->inputs[1]->type;
  if (!dtype_is_float(x->dtype)) FAIL(MALFORMED, node->name, "x is %s; only floats are accumulated", dtype_name(x->dtype));
  Type sum = *x;
  sum.dtype = dtype_of_sums(x->dtype);
  if (micro->dtype != DTYPE_I64 || micro->rank) FAIL(MALFORMED, node->name, "micro must be an int64 scalar");
  for (int l = 0; l < levels; l++)
    if (!node->inputs[2 + l] || !type_equal(&node->inputs[2 + l]->type, &sum))
      FAIL(MALFORMED, node->name, "partial %d must have the shape of x and the type of its sums, %s", l, dtype_name(sum.dtype));
  for (int o = 0; o <= levels; o++)
    if (node->outputs[o]) node->outputs[o]->type = sum;
  return NULL;
}

// What one micro-batch does: which levels are added to x, and which level takes the result (-1: none).
typedef struct TreeMove { uint64_t adds; int store; } TreeMove;

static TreeMove tree_move(int64_t micro, const TreeAttrs *attrs) {
  int64_t count = attrs->count;
  if (attrs->running) return (TreeMove){.adds = micro > 0, .store = micro == count - 1 ? -1 : 0};
  if (micro == count - 1) return (TreeMove){.adds = (uint64_t)micro, .store = -1};   // the end folds every open level
  int clear = 0;
  while (micro >> clear & 1) clear++;
  return (TreeMove){.adds = ((uint64_t)1 << clear) - 1, .store = clear};
}

static Status tree_check(const KernelContext *c, int64_t *out_micro) {
  int64_t count = ((const TreeAttrs *)c->node->attrs)->count, micro = in_i(c, 1, 0);
  if (micro < 0 || micro >= count)
    FAIL(CHECK, c->node->name, "micro-batch %lld is not below count %lld", (long long)micro, (long long)count);
  *out_micro = micro;
  return NULL;
}

// Carried partials are written over their inputs; where they are not (outside a plan), they start as copies.
static void tree_carry(const KernelContext *c) {
  for (int o = 1; o < c->n_out; o++)
    if (has_output(c, o) && c->out[o].data != c->in[o + 1].data) memcpy(c->out[o].data, c->in[o + 1].data, (size_t)type_bytes(c->out[o].type));
}

static Status tree_ref(const KernelContext *c) {
  int64_t micro;
  TRY(tree_check(c, &micro));
  TreeMove move = tree_move(micro, c->node->attrs);
  int levels = c->n_in - 2;
  tree_carry(c);
  Dtype dtype = c->out[0].type->dtype;
  for (int64_t e = 0, n = in_elems(c, 0); e < n; e++) {
    out_f(c, 0, e, in_f(c, 0, e));
    for (int l = 0; l < levels; l++)   // each sum is rounded to the dtype: the tree's nodes are values of that type
      if (move.adds >> l & 1) out_f(c, 0, e, in_f(c, 2 + l, e) + element_read(c->out[0].data, dtype, e));
    if (move.store >= 0 && has_output(c, 1 + move.store)) out_f(c, 1 + move.store, e, element_read(c->out[0].data, dtype, e));
  }
  return NULL;
}

enum { TREE_BLOCK_ELEMS = 4096 };   // one block of x and of every level stays in the first cache levels

static Status tree_cpu(const KernelContext *c) {
  int64_t micro;
  TRY(tree_check(c, &micro));
  TreeMove move = tree_move(micro, c->node->attrs);
  tree_carry(c);
  float *sum = c->out[0].data;
  float *store = move.store >= 0 && has_output(c, 1 + move.store) ? c->out[1 + move.store].data : NULL;
  for (int64_t at = 0, n = in_elems(c, 0); at < n; at += TREE_BLOCK_ELEMS) {
    int64_t m = n - at < TREE_BLOCK_ELEMS ? n - at : TREE_BLOCK_ELEMS;
    float wide[TREE_BLOCK_ELEMS];
    const float *acc = loops_wide(c->loops, c->in[0].data, c->in[0].type->dtype, at, m, wide);
    for (int l = 0; l < c->n_in - 2; l++)
      if (move.adds >> l & 1) {
        c->loops->add(sum + at, (const float *)c->in[2 + l].data + at, acc, m);
        acc = sum + at;
      }
    if (store) memcpy(store + at, acc, (size_t)m * sizeof(float));
    if (acc != sum + at) memcpy(sum + at, acc, (size_t)m * sizeof(float));
  }
  return NULL;
}

static bool tree_alias(const Node *node, int output, int input, Alias *out) {
  if (output == 0 && input == 0 && dtype_of_sums(node->inputs[0]->type.dtype) == node->inputs[0]->type.dtype)
    *out = (Alias){.kind = ALIAS_INPLACE, .input = 0};
  else if (output > 0 && input == output + 1) *out = (Alias){.kind = ALIAS_UPDATE, .input = input};
  else return false;
  return true;
}

const Op op_TreeAccumulate = {
    .name = "TreeAccumulate", .domain = "tessera", .min_inputs = 2, .max_inputs = VARIADIC, .min_outputs = 1, .max_outputs = VARIADIC,
    .flags = OP_READS_HALVES, .nondifferentiable = 1 << 1, .attrs = tree_attrs, .attrs_bytes = sizeof(TreeAttrs), .infer = tree_infer,
    .run_ref = tree_ref, .run_cpu = tree_cpu, .alias = tree_alias};

// ---- LossPair, LossMean -------------------------------------------------------------------------------------------------------

static Status pair_infer(Node *node, Arena *arena) {
  for (int i = 0; i < 2; i++) {
    const Type *t = &node->inputs[i]->type;
    if (!dtype_is_float(t->dtype) || type_elems(t) != 1) FAIL(MALFORMED, node->name, "%s must be one float", i ? "count" : "sum");
  }
  node->outputs[0]->type = type_vector(DTYPE_F64, 2);
  return NULL;
}

static Status pair_ref(const KernelContext *c) {
  out_f(c, 0, 0, in_f(c, 0, 0));
  out_f(c, 0, 1, in_f(c, 1, 0));
  return NULL;
}

const Op op_LossPair = {
    .name = "LossPair", .domain = "tessera", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1,
    .nondifferentiable = 1 << 1, .infer = pair_infer, .run_ref = pair_ref};

static Status mean_infer(Node *node, Arena *arena) {
  const Type *t = &node->inputs[0]->type;
  if (t->dtype != DTYPE_F64 || t->rank != 1 || t->dims[0] != 2) FAIL(MALFORMED, node->name, "the pair must be double[2]");
  for (int o = 0; o < node->n_outputs; o++)
    if (node->outputs[o]) node->outputs[o]->type = type_scalar(DTYPE_F64);
  return NULL;
}

static Status mean_ref(const KernelContext *c) {
  double sum = in_f(c, 0, 0), count = in_f(c, 0, 1);
  if (has_output(c, 0)) out_f(c, 0, 0, sum / count);   // nothing counted: 0 / 0, as PyTorch's mean of nothing
  if (has_output(c, 1)) out_f(c, 1, 0, count == 0 ? 0 : 1 / count);
  return NULL;
}

const Op op_LossMean = {
    .name = "LossMean", .domain = "tessera", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 2,
    .infer = mean_infer, .run_ref = mean_ref};

// ---- LossUnscale --------------------------------------------------------------------------------------------------------------

static Status unscale_infer(Node *node, Arena *arena) {
  for (int i = 0; i < 2; i++) {
    const Type *t = &node->inputs[i]->type;
    if (t->dtype != DTYPE_F64 || t->rank) FAIL(MALFORMED, node->name, "%s must be a double scalar", i ? "loss_seed" : "inverse_count");
  }
  node->outputs[0]->type = type_scalar(DTYPE_F64);
  return NULL;
}

static Status unscale_ref(const KernelContext *c) {
  out_f(c, 0, 0, in_f(c, 0, 0) / in_f(c, 1, 0));
  return NULL;
}

const Op op_LossUnscale = {
    .name = "LossUnscale", .domain = "tessera", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1,
    .nondifferentiable = 3, .infer = unscale_infer, .run_ref = unscale_ref};
