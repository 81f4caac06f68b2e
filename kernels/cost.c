#include "cost.h"

#include <string.h>

#include "kernel.h"

const char *work_name(Work work) {
  static const char *const names[WORK_COUNT] = {
      "arithmetic", "function", "sum", "element", "reference", "optimizer", "product", "conv", "attention", "recurrent", "plain_flop"};
  return (unsigned)work < WORK_COUNT ? names[work] : "?";
}

bool work_is_product(Work w) { return w == WORK_PRODUCT || w == WORK_CONV || w == WORK_ATTENTION || w == WORK_RECURRENT || w == WORK_PLAIN_FLOP; }

// ---- Shared by rows -------------------------------------------------------------------------------------------------------------

static double elems_of(const Value *v) { return v ? (double)type_elems(&v->type) : 0; }
static double bytes_of(const Value *v) { return v ? (double)value_bytes(v) : 0; }

double cost_largest_elems(const Node *node) {
  double most = 0;
  for (int i = 0; i < node->n_inputs + node->n_outputs; i++) {
    double n = elems_of(i < node->n_inputs ? node->inputs[i] : node->outputs[i - node->n_inputs]);
    if (n > most) most = n;
  }
  return most;
}

static void add_product(NodeCost *cost, Work work, int64_t m, int64_t n, int64_t k, double products) {
  cost->work[work] += 2.0 * (double)m * (double)n * (double)k * products;
  cost->m = m;
  cost->n = n;
  cost->k = k;
  cost->products = (int64_t)products;
}

void cost_add_product(NodeCost *cost, int64_t m, int64_t n, int64_t k, double products) { add_product(cost, WORK_PRODUCT, m, n, k, products); }
void cost_add_conv(NodeCost *cost, int64_t m, int64_t n, int64_t k, double products) { add_product(cost, WORK_CONV, m, n, k, products); }

static void all_of(const Node *node, NodeCost *cost, Work work, double times) { cost->work[work] += times * cost_largest_elems(node); }

void cost_arithmetic(const Node *node, NodeCost *cost) { all_of(node, cost, WORK_ARITHMETIC, 1); }
void cost_function(const Node *node, NodeCost *cost) { all_of(node, cost, WORK_FUNCTION, 1); }
void cost_sum(const Node *node, NodeCost *cost) { all_of(node, cost, WORK_SUM, 1); }
void cost_element(const Node *node, NodeCost *cost) { all_of(node, cost, WORK_ELEMENT, 1); }
void cost_move(const Node *node, NodeCost *cost) {}

void cost_softmax(const Node *node, NodeCost *cost) {
  all_of(node, cost, WORK_FUNCTION, 1);
  all_of(node, cost, WORK_SUM, 2);
  all_of(node, cost, WORK_ARITHMETIC, 1);
}

void cost_cross_entropy(const Node *node, NodeCost *cost) {
  all_of(node, cost, WORK_FUNCTION, 0.5);      // exp alone, the cheapest of them
  all_of(node, cost, WORK_SUM, 1);
}

void cost_norm(const Node *node, NodeCost *cost) {
  all_of(node, cost, WORK_SUM, 2);
  all_of(node, cost, WORK_ARITHMETIC, 2);
}

void cost_rows(const Node *node, NodeCost *cost) {
  double rows = node->n_outputs ? bytes_of(node->outputs[0]) : 0;
  double table = node->n_inputs ? bytes_of(node->inputs[0]) : 0;
  if (rows < table) cost->read_bytes += rows - table;
}

// ---- Views ------------------------------------------------------------------------------------------------------------------------

static bool is_placed(const Value *v) { return v->loc.buffer >= 0; }

// Do output and input lie where the alias says? Values without a place: a view is assumed to be taken.
static bool lies_there(const Value *out, const Value *in, const Alias *alias) {
  if (!is_placed(out) || !is_placed(in)) return true;
  const Location *a = &out->loc, *b = &in->loc;
  int64_t stride = b->rank_stride_bytes + (alias->rank_relative ? value_bytes(out) : 0);
  return a->buffer == b->buffer && a->offset_bytes == b->offset_bytes + alias->offset_bytes && a->rank_stride_bytes == stride;
}

static bool is_view(const Node *node, int output) {
  Alias alias;
  return node_alias(node, output, ALIAS_VIEW, &alias) && lies_there(node->outputs[output], node->inputs[alias.input], &alias);
}

// Nothing runs: all results are bytes of operands, or there are none (Release), or the step only guards a view.
static bool costs_nothing(const Node *node) {
  if (node->guard == GUARD_READ_BEGIN || !node->n_outputs) return true;
  bool all = node->n_outputs > 0;
  for (int o = 0; o < node->n_outputs && all; o++) all = !node->outputs[o] || is_view(node, o);
  return all;
}

// Was the input made where it is wanted, as a part of the result (Pack)?
static bool is_part_in_place(const Node *node, int input) {
  Alias alias;
  if (!node->op->alias || !node->n_outputs || !node->outputs[0] || !node->op->alias(node, 0, input, &alias) || alias.kind != ALIAS_PART) return false;
  const Value *in = node->inputs[input], *out = node->outputs[0];
  if (!is_placed(in) || !is_placed(out)) return true;
  return in->loc.buffer == out->loc.buffer && in->loc.offset_bytes == out->loc.offset_bytes + alias.offset_bytes;
}

// ---- A node -------------------------------------------------------------------------------------------------------------------------

static void count_bytes(const Node *node, NodeCost *cost) {
  double in_place = 0;
  for (int i = 0; i < node->n_inputs; i++) {
    if (!node->inputs[i]) continue;
    if (is_part_in_place(node, i)) in_place += bytes_of(node->inputs[i]);
    else cost->read_bytes += bytes_of(node->inputs[i]);
  }
  for (int o = 0; o < node->n_outputs; o++)
    if (node->outputs[o] && !is_view(node, o)) cost->written_bytes += bytes_of(node->outputs[o]);
  cost->written_bytes -= in_place;
}

static void default_work(const Node *node, Isa isa, NodeCost *cost) {
  const Op *op = node->op;
  if (op->flags & OP_OPTIMIZER) cost->work[WORK_OPTIMIZER] = elems_of(node->inputs[0]);
  else if (op->run_cpu || (isa == ISA_COUNT && !(op->flags & OP_COLLECTIVE))) cost->work[WORK_ARITHMETIC] = cost_largest_elems(node);
  else if (!(op->flags & OP_COLLECTIVE)) cost->work[WORK_REFERENCE] = cost_largest_elems(node);
}

// The reference kernels go element by element and multiply in plain loops.
static void as_reference(NodeCost *cost) {
  double elems = 0, flops = 0;
  for (int w = 0; w < WORK_COUNT; w++) {
    if (work_is_product((Work)w)) flops += cost->work[w];
    else elems += cost->work[w];
    cost->work[w] = 0;
  }
  cost->work[WORK_REFERENCE] = elems;
  cost->work[WORK_PLAIN_FLOP] = flops;
  cost->products = 0;
}

NodeCost node_cost(const Node *node, Isa isa) {
  NodeCost cost = {0};
  if (node->op->sent_bytes && node->n_inputs && node->inputs[0] && node->n_outputs && node->outputs[0]) cost.sent_bytes = (double)node->op->sent_bytes(node);
  if (costs_nothing(node)) return cost;
  count_bytes(node, &cost);
  if (node->op->cost) node->op->cost(node, &cost);
  else default_work(node, isa, &cost);
  if (isa < ISA_COUNT && node->op->run_cpu && kernel_choice(node, isa) == KERNEL_REFERENCE) as_reference(&cost);
  return cost;
}
