// Einsum: sums of products over labelled axes. run_ref walks the whole index space, in f64; equations of one or two operands do not come here:
// the pass lower_einsum makes transposes, reductions and matrix products of them.
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "cost.h"
#include "einsum.h"
#include "index_input.h"
#include "ops.h"

typedef struct EinsumAttrs { const char *equation; } EinsumAttrs;
static const AttrSpec einsum_attrs[] = {
  {"equation", ATTR_STRING, offsetof(EinsumAttrs, equation), .required = true, .help = "terms, comma-separated, then -> and the result's labels"},
  {0},
};

// ---- The equation -------------------------------------------------------------------------------------------------------------

// ASCII order, as results without an arrow are sorted: A..Z, a..z.
static int letter_label(char c) { return c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? 26 + c - 'a' : -1; }
static char label_letter(int label) { return (char)(label < 26 ? 'A' + label : 'a' + label - 26); }

// One term up to ',' or "->" or the end: labels in order; *ellipsis is the place of "..." among them, or -1.
static Status read_term(const Node *node, const char **at, int labels[RANK_MAX], int *n, int *ellipsis) {
  *n = 0;
  *ellipsis = -1;
  const char *s = *at;
  for (; *s && *s != ',' && strncmp(s, "->", 2); s++) {
    if (*s == ' ') continue;
    if (!strncmp(s, "...", 3) && *ellipsis < 0) {
      *ellipsis = *n;
      s += 2;
      continue;
    }
    int label = letter_label(*s);
    if (label < 0) FAIL(MALFORMED, node->name, "Einsum: '%c' in \"%s\" is no label", *s, ((const EinsumAttrs *)node->attrs)->equation);
    if (*n == RANK_MAX) FAIL(UNSUPPORTED, node->name, "Einsum: a term of more than %d labels", RANK_MAX);
    labels[(*n)++] = label;
  }
  *at = s;
  return STATUS_OK;
}

// Puts `wide` ellipsis labels at place `at` of n labels.
static Status insert_ellipsis(const Node *node, int labels[RANK_MAX], int *n, int at, int wide) {
  if (at < 0) return STATUS_OK;
  if (*n + wide > RANK_MAX) FAIL(UNSUPPORTED, node->name, "Einsum: a term of more than %d axes", RANK_MAX);
  memmove(labels + at + wide, labels + at, sizeof *labels * (size_t)(*n - at));
  for (int i = 0; i < wide; i++) labels[at + i] = EINSUM_LETTERS + wide - 1 - i;
  *n += wide;
  return STATUS_OK;
}

static Status bind_operand(const Node *node, Einsum *e, int k) {
  const Type *t = input_type(node, k);
  for (int i = 0; i < t->rank; i++) {
    int label = e->labels[k][i];
    int64_t d = t->dims[i], *known = &e->dims[label];
    if (!e->used[label] || (*known == 1 && label >= EINSUM_LETTERS)) *known = d;
    else if (*known != d && !(d == 1 && label >= EINSUM_LETTERS))
      FAIL(MALFORMED, node->name, "Einsum: axis %d of '%s' has %" PRId64 " elements where its label has %" PRId64 " elsewhere", i, node->inputs[k]->name, d, *known);
    e->used[label] = true;
  }
  return STATUS_OK;
}

// Without an arrow: the ellipsis, then every label that occurs once.
static Status implicit_result(const Node *node, Einsum *e, int wide) {
  int count[EINSUM_LETTERS] = {0};
  for (int k = 0; k < e->n_operands; k++)
    for (int i = 0; i < e->ranks[k]; i++)
      if (e->labels[k][i] < EINSUM_LETTERS) count[e->labels[k][i]]++;
  e->out_rank = 0;
  TRY(insert_ellipsis(node, e->out, &e->out_rank, 0, wide));
  for (int label = 0; label < EINSUM_LETTERS; label++) {
    if (count[label] != 1) continue;
    if (e->out_rank == RANK_MAX) FAIL(UNSUPPORTED, node->name, "Einsum: a result of more than %d axes", RANK_MAX);
    e->out[e->out_rank++] = label;
  }
  return STATUS_OK;
}

static Status explicit_result(const Node *node, Einsum *e, const char *at, int wide) {
  int ellipsis;
  bool seen[EINSUM_LABELS] = {false};
  TRY(read_term(node, &at, e->out, &e->out_rank, &ellipsis));
  if (*at) FAIL(MALFORMED, node->name, "Einsum: \"%s\" goes on behind the result", ((const EinsumAttrs *)node->attrs)->equation);
  TRY(insert_ellipsis(node, e->out, &e->out_rank, ellipsis, wide));
  for (int i = 0; i < e->out_rank; i++) {
    if (!e->used[e->out[i]] || seen[e->out[i]])
      FAIL(MALFORMED, node->name, "Einsum: label %d of the result of \"%s\" is in no operand or given twice", i, ((const EinsumAttrs *)node->attrs)->equation);
    seen[e->out[i]] = true;
  }
  return STATUS_OK;
}

Status einsum_parse(const Node *node, Einsum *out) {
  const char *equation = ((const EinsumAttrs *)node->attrs)->equation, *at = equation;
  Einsum e = {.n_operands = node->n_inputs};
  int wide = 0;   // axes of the ellipsis: of the widest operand
  if (e.n_operands > EINSUM_OPERANDS_MAX) FAIL(UNSUPPORTED, node->name, "Einsum: %d operands; at most %d are supported", e.n_operands, EINSUM_OPERANDS_MAX);
  for (int k = 0; k < e.n_operands; k++) {
    int ellipsis, rank = input_type(node, k)->rank;
    TRY(read_term(node, &at, e.labels[k], &e.ranks[k], &ellipsis));
    bool last = k + 1 == e.n_operands;
    if (last ? *at == ',' : *at != ',') FAIL(MALFORMED, node->name, "Einsum: \"%s\" has not as many terms as the %d operands", equation, e.n_operands);
    if (!last) at++;
    int own = rank - e.ranks[k];
    if (own < 0 || (ellipsis < 0 && own))
      FAIL(MALFORMED, node->name, "Einsum: term %d of \"%s\" has %d labels; '%s' has %d axes", k, equation, e.ranks[k], node->inputs[k]->name, rank);
    if (own > wide) wide = own;
    TRY(insert_ellipsis(node, e.labels[k], &e.ranks[k], ellipsis, own));
    TRY(bind_operand(node, &e, k));
  }
  TRY(*at ? explicit_result(node, &e, at + 2, wide) : implicit_result(node, &e, wide));
  *out = e;
  return STATUS_OK;
}

static Status einsum_infer(Node *node, Arena *arena) {
  Einsum e;
  Dtype d = input_type(node, 0)->dtype;
  for (int k = 0; k < node->n_inputs; k++)
    if (!node->inputs[k] || input_type(node, k)->dtype != d || !(dtype_is_float(d) || dtype_is_integer(d)))
      FAIL(MALFORMED, node->name, "Einsum: operand %d is absent, no number or not of the type of operand 0", k);
  TRY(einsum_parse(node, &e));
  Type y = {.dtype = d, .rank = e.out_rank};
  for (int i = 0; i < y.rank; i++) y.dims[i] = e.dims[e.out[i]];
  node->outputs[0]->type = y;
  return STATUS_OK;
}

static void einsum_cost(const Node *node, NodeCost *cost) {
  Einsum e;
  Status status = einsum_parse(node, &e);
  if (!status) {
    double space = e.n_operands;
    for (int i = 0; i < EINSUM_LABELS; i++)
      if (e.used[i]) space *= (double)e.dims[i];
    cost->work[WORK_PLAIN_FLOP] += space;
  }
  status_free(status);
}

// ---- Running ------------------------------------------------------------------------------------------------------------------

// One index of the space: labels of the result first, then those that are summed.
typedef struct Space {
  int n, n_out;
  int64_t dims[EINSUM_LABELS], strides[EINSUM_OPERANDS_MAX][EINSUM_LABELS];
} Space;

static void space_add(Space *s, const KernelContext *c, const Einsum *e, int label) {
  s->dims[s->n] = e->dims[label];
  for (int k = 0; k < e->n_operands; k++) {
    const Type *t = c->in[k].type;
    int64_t stride = 1, sum = 0;
    for (int i = t->rank - 1; i >= 0; i--) {
      if (e->labels[k][i] == label && t->dims[i] != 1) sum += stride;   // a label twice in a term is a diagonal
      stride *= t->dims[i];
    }
    s->strides[k][s->n] = sum;
  }
  s->n++;
}

// Steps axes [first, last) of the index; false after the last combination.
static bool space_next(const Space *s, int n_operands, int first, int last, int64_t *index, int64_t *at) {
  for (int i = last - 1; i >= first; i--) {
    for (int k = 0; k < n_operands; k++) at[k] += s->strides[k][i];
    if (++index[i] < s->dims[i]) return true;
    for (int k = 0; k < n_operands; k++) at[k] -= s->strides[k][i] * s->dims[i];
    index[i] = 0;
  }
  return false;
}

static void sum_products(const KernelContext *c, const Space *s, int64_t to, int64_t *index, int64_t *at, bool empty) {
  bool is_float = dtype_is_float(c->out[0].type->dtype);
  double sum = 0;
  uint64_t whole = 0;
  if (!empty) do {
    if (is_float) {
      double product = 1;
      for (int k = 0; k < c->n_in; k++) product *= in_f(c, k, at[k]);
      sum += product;
    } else {
      uint64_t product = 1;
      for (int k = 0; k < c->n_in; k++) product *= (uint64_t)in_i(c, k, at[k]);
      whole += product;
    }
  } while (space_next(s, c->n_in, s->n_out, s->n, index, at));
  if (is_float) out_f(c, 0, to, sum);
  else out_i(c, 0, to, (int64_t)whole);
}

static Status einsum_ref(const KernelContext *c) {
  Einsum e;
  Space s = {0};
  TRY(einsum_parse(c->node, &e));
  bool in_result[EINSUM_LABELS] = {false}, empty = false;
  for (int i = 0; i < e.out_rank; i++) {
    in_result[e.out[i]] = true;
    space_add(&s, c, &e, e.out[i]);
  }
  s.n_out = s.n;
  for (int label = 0; label < EINSUM_LABELS; label++) {
    if (!e.used[label] || in_result[label]) continue;
    space_add(&s, c, &e, label);
    empty |= e.dims[label] == 0;
  }
  int64_t index[EINSUM_LABELS] = {0}, at[EINSUM_OPERANDS_MAX] = {0};
  for (int64_t to = 0, n = out_elems(c, 0); to < n; to++) {
    sum_products(c, &s, to, index, at, empty);
    space_next(&s, c->n_in, 0, s.n_out, index, at);
  }
  return STATUS_OK;
}

// ---- Gradient: dx_k = Einsum(dy, the other operands) to the labels of operand k ------------------------------------------------

typedef struct Writer { char text[512]; int n; char letter[EINSUM_LABELS + RANK_MAX]; bool dots; } Writer;

static bool in_ellipsis(int label) { return label >= EINSUM_LETTERS && label < EINSUM_LABELS; }

static void write_term(Writer *w, const int *labels, int n) {
  for (int i = 0; i < n; i++) {
    if (!w->dots || !in_ellipsis(labels[i])) w->text[w->n++] = w->letter[labels[i]];
    else if (i == 0 || !in_ellipsis(labels[i - 1])) w->n += sprintf(w->text + w->n, "...");
  }
}

// Letters for the axes of ellipses, and RANK_MAX spare ones behind them. False when the alphabet does not suffice.
static bool choose_letters(const Einsum *e, Writer *w) {
  int spare = 0;
  for (int i = 0; i < EINSUM_LETTERS; i++) w->letter[i] = label_letter(i);
  for (int i = EINSUM_LETTERS; i < EINSUM_LABELS + RANK_MAX; i++) {
    while (spare < EINSUM_LETTERS && e->used[spare]) spare++;
    if (spare == EINSUM_LETTERS) return false;
    w->letter[i] = label_letter(spare++);
  }
  return true;
}

static Value *identity_matrix(Emit *e, Dtype dtype, int64_t d) {
  Type type = type_make(dtype, 2, (const int64_t[]){d, d});
  void *bytes = arena_alloc(e->graph->arena, (size_t)type_bytes(&type));
  for (int64_t i = 0; i < d; i++) element_write(bytes, dtype, i * (d + 1), 1);
  return emit_const(e, "identity", &type, bytes);
}

static bool has_label(const int *labels, int n, int label) {
  for (int i = 0; i < n; i++)
    if (labels[i] == label) return true;
  return false;
}

// Does anything but axis `axis` of operand k have its label?
static bool shared_label(const Einsum *e, int k, int axis) {
  int label = e->labels[k][axis];
  for (int o = 0; o < e->n_operands; o++)
    if (o != k && has_label(e->labels[o], e->ranks[o], label)) return true;
  return has_label(e->out, e->out_rank, label) || has_label(e->labels[k], axis, label) ||
         has_label(e->labels[k] + axis + 1, e->ranks[k] - axis - 1, label);
}

// The labels that the gradient of operand k is computed for, into `target`; the whole ellipsis where the operand has a part of it. Diagonals
// get a label of their own, tied to the first by an identity matrix among the operands.
static Status grad_target(Grad *g, const Einsum *e, int k, Writer *w, Value **inputs, int *n_inputs, int target[2 * RANK_MAX], int *n) {
  const Type *x = input_type(g->node, k);
  int spare = EINSUM_LABELS;
  for (int i = 0; i < x->rank; i++) {
    int label = e->labels[k][i];
    if (w->dots && in_ellipsis(label)) {
      if (i > 0 && in_ellipsis(e->labels[k][i - 1])) continue;
      for (int o = 0; o < e->out_rank; o++)
        if (in_ellipsis(e->out[o])) target[(*n)++] = e->out[o];
    } else if (has_label(e->labels[k], i, label)) {
      if (*n_inputs == EINSUM_OPERANDS_MAX) FAIL(UNSUPPORTED, g->node->name, "Einsum: its gradient needs more than %d operands", EINSUM_OPERANDS_MAX);
      w->n += sprintf(w->text + w->n, ",%c%c", w->letter[label], w->letter[spare]);
      inputs[(*n_inputs)++] = identity_matrix(g->emit, x->dtype, x->dims[i]);
      target[(*n)++] = spare++;
    } else if (shared_label(e, k, i)) {
      target[(*n)++] = label;
    }
  }
  return STATUS_OK;
}

// From the gradient with axes `target` to the operand's type: sums what was broadcast, repeats what was summed.
static Value *fit_operand(Grad *g, const Einsum *e, int k, Value *dx, const int *target) {
  const Type *x = input_type(g->node, k);
  int64_t axes[RANK_MAX], n_axes = 0, dims[RANK_MAX];
  for (int i = 0; dx && i < dx->type.rank; i++) {
    if (!in_ellipsis(target[i])) continue;
    int own = -1;
    for (int a = 0; a < x->rank; a++)
      if (e->labels[k][a] == target[i]) own = a;
    if (own < 0 || x->dims[own] != dx->type.dims[i]) axes[n_axes++] = i;
  }
  if (n_axes) dx = emit(g->emit, &op_ReduceSum, INPUTS(dx, emit_int64s(g->emit, "axes", axes, n_axes)), ATTRS(A_INT("keepdims", 0)));
  for (int i = 0; i < x->rank; i++) dims[i] = shared_label(e, k, i) ? x->dims[i] : 1;
  Type kept = type_make(x->dtype, x->rank, dims);
  if (dx && !type_same_shape(&dx->type, &kept))
    dx = emit(g->emit, &op_Reshape, INPUTS(dx, emit_int64s(g->emit, "shape", dims, x->rank)), ATTRS(A_INT("allowzero", 1)));
  if (dx && !type_same_shape(&dx->type, x)) dx = emit(g->emit, &op_Expand, INPUTS(dx, emit_int64s(g->emit, "shape", x->dims, x->rank)), NULL);
  return dx;
}

static Status operand_grad(Grad *g, const Einsum *e, int k) {
  Value *inputs[EINSUM_OPERANDS_MAX] = {g->dy[0]};
  int n = 1, target[2 * RANK_MAX], n_target = 0;
  Writer w = {.n = 0};
  if (!choose_letters(e, &w)) FAIL(UNSUPPORTED, g->node->name, "Einsum: its gradient needs more than %d labels", EINSUM_LETTERS);
  for (int i = 0; i < e->out_rank; i++) w.dots |= in_ellipsis(e->out[i]);
  write_term(&w, e->out, e->out_rank);
  for (int o = 0; o < e->n_operands; o++) {
    if (o == k) continue;
    w.text[w.n++] = ',';
    write_term(&w, e->labels[o], e->ranks[o]);
    inputs[n++] = g->node->inputs[o];
  }
  TRY(grad_target(g, e, k, &w, inputs, &n, target, &n_target));
  w.n += sprintf(w.text + w.n, "->");
  write_term(&w, target, n_target);
  g->dx[k] = fit_operand(g, e, k, emit(g->emit, &op_Einsum, inputs, n, ATTRS(A_STRING("equation", w.text))), target);
  return STATUS_OK;
}

static Status einsum_grad(Grad *g) {
  Einsum e;
  TRY(einsum_parse(g->node, &e));
  for (int k = 0; k < e.n_operands; k++)
    if (g->wanted[k]) TRY(operand_grad(g, &e, k));
  return STATUS_OK;
}

const Op op_Einsum = {.name = "Einsum", .domain = "", .policy = POLICY_LOW, .min_inputs = 1, .max_inputs = VARIADIC, .min_outputs = 1, .max_outputs = 1,
                      .attrs = einsum_attrs, .attrs_bytes = sizeof(EinsumAttrs), .infer = einsum_infer, .grad = einsum_grad, .run_ref = einsum_ref,
                      .cost = einsum_cost};
