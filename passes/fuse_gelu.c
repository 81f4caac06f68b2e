// fuse_gelu: the operators that exporters write for GELU become Gelu again:
//   x 0.5 (1 + tanh(0.7978846 (x + 0.044715 x^3)))   Gelu(approximate = "tanh")
//   x 0.5 (1 + erf(x / 1.4142135))                   Gelu
// in any association of the products, x^3 as Pow or as two products. Backward then keeps x only. Constants count as the formula's when they are
// its numbers rounded to the model's own element type: a bfloat16 file says 0.0446777 and means 0.044715.
#include <math.h>

#include "../kernels/ops.h"
#include "pass_list.h"
#include "stand_in.h"

typedef struct Match {
  const uint32_t *uses;
  const Value *x;
} Match;

static double rounding(Dtype d) { return d == DTYPE_BF16 ? 0x1p-8 : d == DTYPE_F16 ? 0x1p-10 : 0x1p-22; }

static bool is_number(const Value *v, double number) {
  const Weight *w = value_const(v);
  if (!w || !dtype_is_float(w->type.dtype) || type_elems(&w->type) != 1 || w->type.rank > 1) return false;
  return fabs(weight_read_float(w, 0) - number) <= fabs(number) * rounding(w->type.dtype);
}

// The other operand when one of the two is `number`.
static Value *beside_number(const Node *n, double number) {
  if (is_number(n->inputs[0], number)) return n->inputs[1];
  return is_number(n->inputs[1], number) ? n->inputs[0] : NULL;
}

static Value *beside(const Node *n, const Value *v) { return n->inputs[0] == v ? n->inputs[1] : n->inputs[1] == v ? n->inputs[0] : NULL; }

// The producer of `v` when it is `op` and nobody else reads v.
static const Node *only(const Match *m, const Value *v, const Op *op) {
  return v && v->producer && v->producer->op == op && m->uses[v->id] == 1 ? v->producer : NULL;
}

static bool is_cube(const Match *m, const Value *v) {
  const Node *pow = only(m, v, &op_Pow), *outer = only(m, v, &op_Mul);
  if (pow) return pow->inputs[0] == m->x && is_number(pow->inputs[1], 3);
  const Value *square = outer ? beside(outer, m->x) : NULL;
  const Node *inner = only(m, square, &op_Mul);
  return inner && inner->inputs[0] == m->x && inner->inputs[1] == m->x;
}

// tanh's operand 0.7978846 (x + 0.044715 x^3); finds x.
static bool matches_tanh(Match *m, const Value *v) {
  const Node *scaled = only(m, v, &op_Mul);
  const Node *sum = scaled ? only(m, beside_number(scaled, 0.7978845608028654), &op_Add) : NULL;
  for (int i = 0; sum && i < 2; i++) {
    const Node *term = only(m, sum->inputs[1 - i], &op_Mul);
    m->x = sum->inputs[i];
    if (term && is_cube(m, beside_number(term, 0.044715))) return true;
  }
  return false;
}

// erf's operand x / sqrt(2), also as a product.
static bool matches_erf(Match *m, const Value *v) {
  const Node *div = only(m, v, &op_Div), *mul = only(m, v, &op_Mul);
  m->x = div && is_number(div->inputs[1], 1.4142135623730951) ? div->inputs[0] : mul ? beside_number(mul, 0.7071067811865476) : NULL;
  return m->x != NULL;
}

static Node *only_user(Graph *g, const Match *m, const Value *v, const Op *op) {
  if (m->uses[v->id] != 1) return NULL;
  for (size_t i = 0; i < g->n_nodes; i++)
    for (int k = 0; k < g->nodes[i]->n_inputs; k++)
      if (g->nodes[i]->inputs[k] == v) return g->nodes[i]->op == op ? g->nodes[i] : NULL;
  return NULL;
}

// The node that ends x 0.5 (1 + v).
static Node *end_of(Graph *g, const Match *m, const Value *v) {
  Node *plus = only_user(g, m, v, &op_Add);
  if (!plus || beside_number(plus, 1) != v) return NULL;
  Node *first = only_user(g, m, plus->outputs[0], &op_Mul);
  const Value *factor = first ? beside(first, plus->outputs[0]) : NULL;
  if (!factor) return NULL;
  const Node *half_x = only(m, factor, &op_Mul);
  if (half_x && beside_number(half_x, 0.5) == m->x) return first;
  if (factor != m->x && !is_number(factor, 0.5)) return NULL;
  Node *second = only_user(g, m, first->outputs[0], &op_Mul);
  if (!second) return NULL;
  if (factor == m->x) return beside_number(second, 0.5) == first->outputs[0] ? second : NULL;
  return beside(second, m->x) == first->outputs[0] ? second : NULL;
}

static Status fuse(Graph *g, const uint32_t *uses, const Node *n, Node **slots) {
  Match m = {.uses = uses};
  bool tanh = n->op == &op_Tanh;
  if (!tanh && n->op != &op_Erf) return STATUS_OK;
  if (!(tanh ? matches_tanh(&m, n->inputs[0]) : matches_erf(&m, n->inputs[0]))) return STATUS_OK;
  Node *end = end_of(g, &m, n->outputs[0]);
  if (!end) return STATUS_OK;
  Node *gelu = graph_make_node(g, &op_Gelu, end->name, 1, (Value *[]){(Value *)m.x}, 0, NULL);
  attr_set(g, gelu, &(AttrInit)A_STRING("approximate", tanh ? "tanh" : "none"));
  node_stand_in(gelu, end);
  slots[end->id] = gelu;
  return STATUS_OK;
}

Status pass_fuse_gelu(Graph *graph, const CompileOptions *options) {
  const uint32_t *uses = graph_count_uses(graph, graph->arena);
  Node **slots = arena_copy(graph->arena, graph->nodes, sizeof *slots * graph->n_nodes);
  for (size_t i = 0; i < graph->n_nodes; i++) TRY(fuse(graph, uses, graph->nodes[i], slots));
  graph_set_nodes(graph, slots, graph->n_nodes);   // what is not read any more goes with dead_code
  return STATUS_OK;
}
