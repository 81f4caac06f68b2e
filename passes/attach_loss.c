// attach_loss: finds the scalar to minimise, or adds the loss that --loss asks for over the graph's scores.
#include <inttypes.h>
#include <string.h>

#include "../kernels/ops.h"
#include "pass_list.h"

enum { IGNORED_LABEL = -100 };   // torch.nn.functional.cross_entropy's default ignore_index
enum { NAMES_SHOWN = 8 };

// "a, b, ..." of the graph's outputs with their types.
static const char *outputs_text(const Graph *g) {
  const char *text = "";
  for (size_t i = 0; i < g->n_outputs; i++) {
    char type[240];
    if (i == NAMES_SHOWN) return arena_printf(g->arena, "%s, ...", text);
    text = arena_printf(g->arena, "%s%s'%s' %s", text, i ? ", " : "", g->outputs[i]->name, type_text(&g->outputs[i]->type, type, sizeof type));
  }
  return *text ? text : "(none)";
}

static Status find_named(const Graph *g, const char *name, Value **out) {
  *out = graph_find_value(g, name);
  if (!*out) FAIL(USAGE, NULL, "--loss-output %s: the graph has no value of that name; its outputs are %s", name, outputs_text(g));
  return STATUS_OK;
}

// ---- A loss that is in the graph ------------------------------------------------------------------------------------------------

static Status find_loss(const Graph *g, Value **out) {
  for (size_t i = 0; i < g->n_outputs; i++)
    if (dtype_is_float(g->outputs[i]->type.dtype) && type_elems(&g->outputs[i]->type) == 1) {
      *out = g->outputs[i];
      return STATUS_OK;
    }
  FAIL(UNSUPPORTED, NULL,
       "no output is a float of one element that could be the loss; the outputs are %s. Name another value with --loss-output NAME, or have a "
       "loss added over the scores with --loss cross_entropy --labels NAME",
       outputs_text(g));
}

static Status check_loss(const Graph *g, const Value *loss) {
  char type[240];
  type_text(&loss->type, type, sizeof type);
  if (!dtype_is_float(loss->type.dtype))
    FAIL(UNSUPPORTED, NULL, "the loss '%s' is %s: integers have no gradient. --loss-output takes a float of one element; outputs are %s",
         loss->name, type,
         outputs_text(g));
  if (type_elems(&loss->type) != 1)
    FAIL(UNSUPPORTED, NULL,
         "the loss '%s' is %s: it must have one element. Reduce it in the model (mean or sum), or, if these are scores, use --loss cross_entropy "
         "--labels NAME",
         loss->name, type);
  return STATUS_OK;
}

// ---- A loss that is added -------------------------------------------------------------------------------------------------------

static Status find_scores(const Graph *g, Value **out) {
  for (size_t i = 0; i < g->n_outputs; i++)
    if (dtype_is_float(g->outputs[i]->type.dtype) && g->outputs[i]->type.rank >= 2) {
      *out = g->outputs[i];
      return STATUS_OK;
    }
  FAIL(USAGE, NULL, "--loss cross_entropy: no output is a float of shape [samples, classes] or [..., classes]; the outputs are %s", outputs_text(g));
}

// Labels of scores whose classes lie on `axis`: the scores' shape without it.
static Type labels_type(const Type *scores, int axis) {
  Type t = type_make(DTYPE_I64, scores->rank - 1, scores->dims);
  for (int d = axis; d + 1 < scores->rank; d++) t.dims[d] = scores->dims[d + 1];
  return t;
}

// Labels of scores [N..., C], or of [N, C, d1...] where only that fits the labels: the input of that name, or a new one.
static Status find_labels(Graph *g, const CompileOptions *options, const Value *scores, Value **out, int *out_axis) {
  Type last = labels_type(&scores->type, scores->type.rank - 1), second = labels_type(&scores->type, 1);
  Value *v = graph_find_value(g, options->labels);
  if (!v) {
    v = graph_add_value(g, options->labels);
    v->type = options->labels_type.dtype ? options->labels_type : last;
    v->type.dtype = DTYPE_I64;
    v->role = ROLE_INPUT;
    graph_add_input(g, v);
  }
  char a[240], b[240], c[240], d[240];
  type_text(&v->type, a, sizeof a);
  type_text(&scores->type, b, sizeof b);
  if (v->type.dtype != DTYPE_I64 && v->type.dtype != DTYPE_I32)
    FAIL(USAGE, NULL, "--labels %s is %s; labels are class numbers of type int64 or int32", v->name, a);
  bool is_second = type_same_shape(&v->type, &second) && !type_same_shape(&v->type, &last);
  if (!is_second && type_elems(&v->type) != type_elems(&last))
    FAIL(USAGE, NULL, "--labels %s is %s; the scores '%s' of type %s need %s%s%s", v->name, a, scores->name, b, type_text(&last, c, sizeof c),
         scores->type.rank > 2 ? ", or with the classes on axis 1 " : "", scores->type.rank > 2 ? type_text(&second, d, sizeof d) : "");
  *out = v;
  *out_axis = is_second ? 1 : scores->type.rank - 1;
  return STATUS_OK;
}

// With the classes on the last axis, [B, T, V] scores and [B, T] labels are B*T samples.
static Status add_cross_entropy(Graph *g, Value *scores, int axis, Value *labels, Value **out) {
  Emit e = {.graph = g, .phase = PHASE_MICRO};
  if (axis != 1) {
    int64_t classes = scores->type.dims[axis], samples = type_elems(&labels->type);
    scores = emit(&e, &op_Reshape, INPUTS(scores, emit_int64s(&e, "loss.scores_shape", (int64_t[]){samples, classes}, 2)), NULL);
    if (labels->type.rank != 1) labels = emit(&e, &op_Reshape, INPUTS(labels, emit_int64s(&e, "loss.labels_shape", &samples, 1)), NULL);
  } else if (labels->type.rank != scores->type.rank - 1) {
    int64_t samples = type_elems(&labels->type);
    labels = emit(&e, &op_Reshape, INPUTS(labels, emit_int64s(&e, "loss.labels_shape", &samples, 1)), NULL);
  }
  if (e.status) return e.status;
  Value *loss = emit(&e, &op_SoftmaxCrossEntropyLoss, INPUTS(scores, labels), ATTRS(A_INT("ignore_index", IGNORED_LABEL)));
  if (e.status) return e.status;
  if (!graph_find_value(g, "loss")) graph_rename_value(g, loss, "loss");
  graph_add_output(g, loss);
  *out = loss;
  return STATUS_OK;
}

static Status add_loss(Graph *g, const CompileOptions *options, Value **out) {
  if (strcmp(options->loss, "cross_entropy")) FAIL(USAGE, NULL, "--loss %s: the known loss is cross_entropy", options->loss);
  if (!options->labels) FAIL(USAGE, NULL, "--loss cross_entropy needs --labels NAME: the input with the class numbers, new or in the graph");
  Value *scores, *labels;
  int axis;
  if (options->loss_output) TRY(find_named(g, options->loss_output, &scores));
  else TRY(find_scores(g, &scores));
  if (!dtype_is_float(scores->type.dtype) || scores->type.rank < 2) {
    char type[240];
    FAIL(USAGE, NULL, "--loss-output %s is %s; scores for --loss cross_entropy are floats of shape [..., classes] or [samples, classes, ...]",
         scores->name, type_text(&scores->type, type, sizeof type));
  }
  TRY(find_labels(g, options, scores, &labels, &axis));
  return add_cross_entropy(g, scores, axis, labels, out);
}

// ---- Does it train anything? ----------------------------------------------------------------------------------------------------

// The node nearest to the loss that passes no gradient on to its floats.
static const Node *cut_off(const Graph *g, const bool *reaches) {
  for (size_t i = g->n_nodes; i-- > 0;) {
    const Node *n = g->nodes[i];
    bool on_the_way = false, has_floats = false, passes_on = false;
    for (int k = 0; k < n->n_outputs; k++) on_the_way |= n->outputs[k] && reaches[n->outputs[k]->id];
    for (int k = 0; k < n->n_inputs; k++) {
      if (!n->inputs[k] || !dtype_is_float(n->inputs[k]->type.dtype) || value_const(n->inputs[k])) continue;
      has_floats = true;
      passes_on |= n->op->grad && !(k < 32 && n->op->nondifferentiable >> k & 1);
    }
    if (on_the_way && has_floats && !passes_on) return n;
  }
  return NULL;
}

static Status check_reached(const Graph *g) {
  bool *reaches = ARENA_ARRAY(g->arena, bool, g->n_values);
  reaches[g->loss->id] = true;
  for (size_t i = g->n_nodes; i-- > 0;) {
    const Node *n = g->nodes[i];
    bool wanted = false;
    for (int k = 0; k < n->n_outputs; k++) wanted |= n->outputs[k] && reaches[n->outputs[k]->id];
    for (int k = 0; wanted && k < n->n_inputs; k++)
      if (n->inputs[k] && !(k < 32 && n->op->nondifferentiable >> k & 1) && dtype_is_float(n->inputs[k]->type.dtype))
        reaches[n->inputs[k]->id] = true;
  }
  int64_t n_trainable = 0, n_params = 0;
  const char *example = NULL;
  for (size_t i = 0; i < g->n_values; i++) {
    const Value *v = g->values[i];
    if (v->role != ROLE_PARAM) continue;
    n_params++;
    if (!v->trainable) continue;
    if (reaches[i]) return STATUS_OK;
    n_trainable++;
    example = v->name;
  }
  if (n_trainable)
    FAIL(UNSUPPORTED, NULL,
         "none of the %" PRId64 " trainable parameters ('%s', ...) reaches the loss '%s'; choose another with --loss-output, or check --params",
         n_trainable, example, g->loss->name);
  const Node *n = cut_off(g, reaches);
  const char *domain = n ? n->op->domain : "";
  if (n)
    FAIL(UNSUPPORTED, n->name, "%s%s%s has no gradient, and no parameter reaches the loss '%s' but through it; train a graph without it, or choose with --params PATTERN",
         domain, *domain ? "::" : "", n->op->name, g->loss->name);
  FAIL(UNSUPPORTED, NULL, "no parameter trains: the graph has %" PRId64 " parameters, all frozen, and constants; choose with --params PATTERN",
       n_params);
}

Status pass_attach_loss(Graph *graph, const CompileOptions *options) {
  Value *loss = graph->loss;
  if (options->loss) TRY(add_loss(graph, options, &loss));
  else if (options->loss_output) TRY(find_named(graph, options->loss_output, &loss));
  else if (!loss) TRY(find_loss(graph, &loss));
  TRY(check_loss(graph, loss));
  graph->loss = loss;
  graph->recipe.loss_output = arena_string(graph->arena, loss->name);
  return check_reached(graph);
}
