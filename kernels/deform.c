// DeformColumns and its gradient: rows, attributes, and operands for the walk (deform.h). The importer makes DeformConv of it and of a matrix product.
#include "deform.h"

#include "cost.h"
#include "index_input.h"
#include "ops.h"
#include "wide.h"

typedef struct DeformAttrs { WindowAttrs window; int64_t groups; } DeformAttrs;
static const AttrSpec deform_attrs[] = {
    WINDOW_ATTRS(DeformAttrs),
    {"offset_group", ATTR_INT, offsetof(DeformAttrs, groups), .default_int = 1, .min = 1, .max = INT32_MAX, .help = "groups of channels that move together"},
    {0}};

enum { IN_X, IN_OFFSET, IN_MASK, IN_DCOLUMNS, N_IN };
enum { N_GRADS = IN_DCOLUMNS };          // output i of the gradient is that of input i

static bool is_gradient(const Node *node) { return node->op == &op_DeformColumnsGrad; }

static Status deform_make(const Node *node, Deform *out, Type *columns) {
  const DeformAttrs *a = node->attrs;
  const Type *x = &node->inputs[IN_X]->type;
  char have[160], wanted[160];
  int n = x->rank - 2;
  if (!dtype_is_float(x->dtype) || n < 1) FAIL(MALFORMED, node->name, "X is %s; floats [N, C, ...] are needed", type_text(x, have, sizeof have));
  Deform d = {.batch = x->dims[0], .channels = x->dims[1], .groups = a->groups};
  TRY(window_make(node, &a->window, n, x->dims + 2, NULL, false, &d.window));
  if (d.channels % d.groups) FAIL(MALFORMED, node->name, "%lld channels cannot be cut into %lld groups", (long long)d.channels, (long long)d.groups);
  int64_t taps = window_elems(d.window.kernel);
  Type offset = *x;
  offset.dims[1] = d.groups * taps * n;
  for (int i = 0; i < n; i++) offset.dims[2 + i] = d.window.out[WINDOW_AXES - n + i];
  Type mask = offset;
  mask.dims[1] = d.groups * taps;
  *columns = type_make(x->dtype, 3, (const int64_t[]){d.batch, d.channels * taps, window_elems(d.window.out)});
  const Type *const want[] = {[IN_OFFSET] = &offset, [IN_MASK] = &mask, [IN_DCOLUMNS] = columns};
  for (int i = IN_OFFSET; i < node->n_inputs; i++)
    if (node->inputs[i] && !type_equal(&node->inputs[i]->type, want[i]))
      FAIL(MALFORMED, node->name, "'%s' is %s; X and the window make it %s", node->inputs[i]->name,
           type_text(&node->inputs[i]->type, have, sizeof have), type_text(want[i], wanted, sizeof wanted));
  *out = d;
  return type_check(columns, node->name);
}

static Status deform_infer(Node *node, Arena *arena) {
  Deform d;
  return deform_make(node, &d, &node->outputs[0]->type);
}

static Status deform_ref(const KernelContext *c) {
  Deform d;
  Type columns;
  WideOperands w;
  TRY(deform_make(c->node, &d, &columns));
  TRY(wide_begin(c, 0, &w));
  if (is_gradient(c->node))
    deform_backward_f64(&d, w.in[IN_X], w.in[IN_OFFSET], w.in[IN_MASK],
                        &(DeformGrads_f64){w.in[IN_DCOLUMNS], w.out[IN_X], w.out[IN_OFFSET], w.out[IN_MASK]});
  else deform_forward_f64(&d, w.in[IN_X], w.in[IN_OFFSET], w.in[IN_MASK], w.out[0]);
  wide_end(c, &w);
  return NULL;
}

static Status deform_cpu(const KernelContext *c) {
  Deform d;
  Type columns;
  TRY(deform_make(c->node, &d, &columns));
  WideOperands w = wide_as_they_lie(c);
  if (is_gradient(c->node))
    deform_backward_f32(&d, w.in[IN_X], w.in[IN_OFFSET], w.in[IN_MASK],
                        &(DeformGrads_f32){w.in[IN_DCOLUMNS], w.out[IN_X], w.out[IN_OFFSET], w.out[IN_MASK]});
  else deform_forward_f32(&d, w.in[IN_X], w.in[IN_OFFSET], w.in[IN_MASK], w.out[0]);
  return NULL;
}

static Status deform_grad(Grad *g) {
  const Node *node = g->node;
  const DeformAttrs *a = node->attrs;
  Value *in[N_IN] = {[IN_DCOLUMNS] = g->dy[0]};
  bool wanted[N_GRADS] = {0};
  int n_wanted = 0;
  for (int i = 0; i < node->n_inputs; i++) {
    in[i] = node->inputs[i];
    wanted[i] = in[i] && g->wanted[i];
    if (wanted[i]) n_wanted = i + 1;
  }
  Node *grad = emit_node(g->emit, &op_DeformColumnsGrad, in, N_IN, n_wanted, wanted,
                         ATTRS(A_STRING("auto_pad", a->window.auto_pad), A_INTS("dilations", a->window.dilations.items, a->window.dilations.n),
                               A_INTS("kernel_shape", a->window.kernel_shape.items, a->window.kernel_shape.n),
                               A_INTS("pads", a->window.pads.items, a->window.pads.n), A_INTS("strides", a->window.strides.items, a->window.strides.n),
                               A_INT("offset_group", a->groups)));
  for (int i = 0; grad && i < n_wanted; i++)
    if (wanted[i]) g->dx[i] = grad->outputs[i];
  return NULL;
}

const Op op_DeformColumns = {
    .name = "DeformColumns", .domain = "tessera", .min_inputs = 2, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1, .attrs = deform_attrs,
    .attrs_bytes = sizeof(DeformAttrs), .infer = deform_infer, .grad = deform_grad, .run_ref = deform_ref, .run_cpu = deform_cpu, .cost = cost_element};

static Status deform_grad_infer(Node *node, Arena *arena) {
  Deform d;
  Type columns;
  TRY(deform_make(node, &d, &columns));
  if (!node_has_input(node, IN_DCOLUMNS)) FAIL(MALFORMED, node->name, "the gradient of the columns is missing");
  return infer_input_gradients(node);
}

const Op op_DeformColumnsGrad = {
    .name = "DeformColumnsGrad", .domain = "tessera", .min_inputs = 2, .max_inputs = N_IN, .min_outputs = 1, .max_outputs = N_GRADS,
    .attrs = deform_attrs, .attrs_bytes = sizeof(DeformAttrs), .infer = deform_grad_infer, .run_ref = deform_ref, .run_cpu = deform_cpu,
    .cost = cost_element};
