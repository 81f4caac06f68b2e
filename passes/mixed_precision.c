// mixed_precision: under --precision bf16 and fp16 each operator gets operands of the element type that its row's policy asks for. Products take 16
// bits; sums, exponentials, norms and losses f32; all others the widest of what they are given, where parameters and constants adapt to the
// rest. Casts are placed once per value and type. Parameters stay f32: what reads one through a Cast gets the narrow copy that the lowering
// keeps beside it, and the gradient arrives in 16 bits. The loss is f32.
#include <math.h>
#include <string.h>

#include "../ir/name_pattern.h"
#include "../kernels/ops.h"
#include "pass_list.h"

enum { LOOK_ELEMS_MAX = 1 << 20 };       // larger constants are not looked through for numbers that f16 does not hold

typedef struct Mixed {
  Emit emit;
  Dtype low;
  const char *keep;                      // comma-separated patterns of nodes that compute in f32; NULL: none
  size_t n_values;                       // the tables below are for the values of before
  Value **narrow, **wide;                // per value: its Cast to `low`, to f32; NULL: not made yet
} Mixed;

static bool is_mixed(Dtype d) { return d == DTYPE_F32 || d == DTYPE_F16 || d == DTYPE_BF16; }

// ---- Which type -----------------------------------------------------------------------------------------------------------------

static bool is_named(const char *patterns, const Node *n) {
  return name_pattern_matches(patterns, n->name) || (n->origin && name_pattern_matches(patterns, n->origin)) || name_pattern_matches(patterns, n->op->name);
}

static bool is_kept(const Mixed *m, const Node *n) { return is_named(m->keep, n); }

// A pattern that takes no node is a mistake.
static Status check_kept(const Graph *graph, const char *keep) {
  for (char pattern[NAME_PATTERN_BYTES]; name_pattern_next(&keep, pattern, sizeof pattern);) {
    size_t i = 0;
    while (i < graph->n_nodes && !is_named(pattern, graph->nodes[i])) i++;
    if (i == graph->n_nodes) FAIL(USAGE, NULL, "--keep-f32 %s matches no node and no operator of the graph", pattern);
  }
  return STATUS_OK;
}

// Does every number of the constant have a place in f16? Infinities are meant. Nor may all of it round to 0: a small number that is added keeps a
// quotient or a logarithm finite.
static bool fits_f16(const Weight *w) {
  int64_t n = type_elems(&w->type);
  if (!w->bytes || n > LOOK_ELEMS_MAX) return false;
  double most = 0;
  for (int64_t i = 0; i < n; i++) {
    double v = fabs(weight_read_float(w, i));
    if (isfinite(v) && v >= 65520) return false;
    if (v > most) most = v;
  }
  return most == 0 || most > 0x1p-25;
}

// Parameters and constants take the type of what they meet.
static bool adapts(const Mixed *m, const Value *v) {
  if (v->role == ROLE_PARAM && !v->producer) return true;
  return v->role == ROLE_CONST && v->weight && !v->producer && (m->low == DTYPE_BF16 || fits_f16(v->weight));
}

// NONE: nothing of the node is to be cast.
static Dtype wanted(const Mixed *m, const Node *n) {
  bool any = false, wide = false;
  for (int i = 0; i < n->n_inputs; i++) {
    const Value *v = n->inputs[i];
    if (!v || !dtype_is_float(v->type.dtype)) continue;
    if (!is_mixed(v->type.dtype)) return DTYPE_NONE;
    any = true;
    wide |= v->type.dtype == DTYPE_F32 && !adapts(m, v) && !(i < 32 && n->op->nondifferentiable >> i & 1);
  }
  if (!any || n->op == &op_Cast || n->op == &op_CastLike) return DTYPE_NONE;
  if (n->op->policy == POLICY_F32 || is_kept(m, n)) return DTYPE_F32;
  return n->op->policy == POLICY_LOW || !wide ? m->low : DTYPE_F32;
}

// ---- Casts ----------------------------------------------------------------------------------------------------------------------

static Value *cast(Mixed *m, Value *v, Dtype to) {
  if (!v || v->type.dtype == to || !is_mixed(v->type.dtype)) return v;
  Value **made = v->id >= m->n_values ? NULL : to == m->low ? &m->narrow[v->id] : &m->wide[v->id];
  if (made && *made) return *made;
  Emit e = {.graph = m->emit.graph, .at = v->producer, .phase = PHASE_MICRO, .cause = {.pass = "mixed_precision"}};
  Value *result = emit(&e, &op_Cast, INPUTS(v), ATTRS(A_INT("to", to)));
  if (!m->emit.status) m->emit.status = e.status;
  else status_free(e.status);
  if (!result) return v;
  const char *name = arena_printf(e.graph->arena, "%s.%s", v->name, to == DTYPE_BF16 ? "bf16" : to == DTYPE_F16 ? "f16" : "f32");
  graph_rename_value(e.graph, result, graph_free_name(e.graph, name));
  if (made) *made = result;
  return result;
}

// Ratios, scales and the like stay as they are unless the operator insists on one type.
static void cast_inputs(Mixed *m, Node *n, Value *const *before, Dtype to, bool all) {
  for (int i = 0; i < n->n_inputs; i++) {
    bool skip = !all && i < 32 && n->op->nondifferentiable >> i & 1;
    n->inputs[i] = skip ? before[i] : cast(m, before[i], to);
  }
}

static Status convert(Mixed *m, Node *n) {
  Graph *graph = m->emit.graph;
  Dtype to = wanted(m, n);
  Value **before = arena_copy(graph->arena, n->inputs, sizeof *before * (size_t)n->n_inputs);
  const struct { Dtype to; bool all; } tries[] = {{to, false}, {to, true}, {DTYPE_F32, true}};
  Status status = STATUS_OK;
  for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
    status_free(status);
    if (to) cast_inputs(m, n, before, tries[i].to, tries[i].all);
    TRY(m->emit.status);
    status = node_infer(graph, n);
    if (!status || !to) break;
  }
  TRY(status);
  graph_append(graph, n);
  return STATUS_OK;
}

Status pass_mixed_precision(Graph *graph, const CompileOptions *options) {
  bool bf16 = !strcmp(options->precision, "bf16");
  if (!bf16 && strcmp(options->precision, "fp16")) return STATUS_OK;
  if (graph->facts & FACT_BACKWARD)
    FAIL(UNSUPPORTED, NULL, "the graph brings its own gradients, so its types stay as they are; --precision %s works on forward graphs, --precision f32 on this one",
         options->precision);
  TRY(check_kept(graph, options->keep_f32));
  Mixed m = {.low = bf16 ? DTYPE_BF16 : DTYPE_F16, .keep = options->keep_f32, .n_values = graph->n_values};
  m.emit = (Emit){.graph = graph};
  m.narrow = ARENA_ARRAY(graph->arena, Value *, graph->n_values);
  m.wide = ARENA_ARRAY(graph->arena, Value *, graph->n_values);
  Node **old = graph->nodes;
  size_t n_old = graph->n_nodes;
  graph->nodes = NULL;
  graph->n_nodes = graph->nodes_capacity = 0;
  for (size_t i = 0; i < n_old; i++) TRY(convert(&m, old[i]));
  graph->loss = cast(&m, graph->loss, DTYPE_F32);
  TRY(m.emit.status);
  graph_set_nodes(graph, graph->nodes, graph->n_nodes);
  return STATUS_OK;
}
