// RNN, GRU, LSTM and their gradients: rows, attributes, and operands for the walk (recurrent.h). A gradient walks forward again: nothing is kept
// from the forward pass but its operands.
#include "recurrent.h"

#include <math.h>
#include <string.h>
#include <strings.h>

#include "cost.h"
#include "index_input.h"
#include "ops.h"
#include "wide.h"

typedef struct RecurrentAttrs {
  AttrStrings activations;
  AttrFloats alpha, beta;
  float clip;
  const char *direction;
  int64_t hidden_size, layout, linear_before_reset, input_forget;
} RecurrentAttrs;
#define SHARED_ATTRS                                                                                                                           \
  {"activations", ATTR_STRINGS, offsetof(RecurrentAttrs, activations), .help = "f, g, h of each direction; absent: Sigmoid and Tanh as usual"}, \
  {"activation_alpha", ATTR_FLOATS, offsetof(RecurrentAttrs, alpha), .help = "of the activations that have one, in order"},                     \
  {"activation_beta", ATTR_FLOATS, offsetof(RecurrentAttrs, beta), .help = "of the activations that have one, in order"},                       \
  {"clip", ATTR_FLOAT, offsetof(RecurrentAttrs, clip), .help = "bound of what activations are applied to; 0: none"},                            \
  {"direction", ATTR_STRING, offsetof(RecurrentAttrs, direction), .default_string = "forward", .help = "forward, reverse or bidirectional"},    \
  {"hidden_size", ATTR_INT, offsetof(RecurrentAttrs, hidden_size), .default_int = ATTR_ABSENT, .help = "checked against R"},                    \
  {"layout", ATTR_INT, offsetof(RecurrentAttrs, layout), .min = 0, .max = 1, .help = "1: the batch is the first axis"}
#define RESET_ATTR {"linear_before_reset", ATTR_INT, offsetof(RecurrentAttrs, linear_before_reset), .min = 0, .max = 1, .help = "1: r scales R h + b"}
#define FORGET_ATTR {"input_forget", ATTR_INT, offsetof(RecurrentAttrs, input_forget), .min = 0, .max = 1, .help = "1: f = 1 - i"}
static const AttrSpec rnn_attrs[] = {SHARED_ATTRS, {0}};
static const AttrSpec gru_attrs[] = {SHARED_ATTRS, RESET_ATTR, {0}};
static const AttrSpec lstm_attrs[] = {SHARED_ATTRS, FORGET_ATTR, {0}};
static const AttrSpec recurrent_grad_attrs[] = {SHARED_ATTRS, RESET_ATTR, FORGET_ATTR, {0}};

enum { IN_X, IN_W, IN_R, IN_B, IN_LENGTHS, IN_H0, IN_C0, IN_P, IN_DY, IN_DY_H, IN_DY_C, IN_SAVED_H, IN_SAVED_C, IN_SAVED_GATES, N_IN };
enum { N_OURS = IN_SAVED_H };          // inputs of our gradient rows; the others are com.microsoft LSTMGrad's
enum { OUT_DX, OUT_DW, OUT_DR, OUT_DB, OUT_DH0, OUT_DC0, OUT_DP, N_GRADS };

// ---- Activations ---------------------------------------------------------------------------------------------------------------------

enum { F_SIGMOID, F_TANH, F_RELU, F_AFFINE, F_LEAKY, F_THRESHOLDED, F_SCALED_TANH, F_HARD_SIGMOID, F_ELU, F_SOFTSIGN, F_SOFTPLUS };
static const struct { const char *name; bool has_alpha, has_beta; double alpha, beta; } functions[] = {
    [F_SIGMOID] = {"Sigmoid", false, false, 0, 0}, [F_TANH] = {"Tanh", false, false, 0, 0}, [F_RELU] = {"Relu", false, false, 0, 0},
    [F_AFFINE] = {"Affine", true, true, 1, 0}, [F_LEAKY] = {"LeakyRelu", true, false, 0.01, 0},
    [F_THRESHOLDED] = {"ThresholdedRelu", true, false, 1, 0}, [F_SCALED_TANH] = {"ScaledTanh", true, true, 1, 1},
    [F_HARD_SIGMOID] = {"HardSigmoid", true, true, 0.2, 0.5}, [F_ELU] = {"Elu", true, false, 1, 0}, [F_SOFTSIGN] = {"Softsign", false, false, 0, 0},
    [F_SOFTPLUS] = {"Softplus", false, false, 0, 0}};
enum { N_FUNCTIONS = sizeof functions / sizeof *functions };

typedef struct Point { double y, slope; } Point;

static Point apply_one(const CellFunction *f, double x) {
  double a = f->alpha, b = f->beta, y;
  switch (f->kind) {
  case F_SIGMOID: y = 1 / (1 + exp(-x)); return (Point){y, y * (1 - y)};
  case F_TANH: y = tanh(x); return (Point){y, 1 - y * y};
  case F_RELU: return (Point){x > 0 ? x : 0, x > 0};
  case F_AFFINE: return (Point){a * x + b, a};
  case F_LEAKY: return (Point){x < 0 ? a * x : x, x > 0 ? 1 : a};
  case F_THRESHOLDED: return (Point){x > a ? x : 0, x > a};
  case F_SCALED_TANH: y = tanh(b * x); return (Point){a * y, a * b * (1 - y * y)};
  case F_HARD_SIGMOID: y = a * x + b; return (Point){y <= 0 ? 0 : y >= 1 ? 1 : y, y > 0 && y < 1 ? a : 0};
  case F_ELU: return x > 0 ? (Point){x, 1} : (Point){a * expm1(x), a * exp(x)};
  case F_SOFTSIGN: return (Point){x / (1 + fabs(x)), 1 / ((1 + fabs(x)) * (1 + fabs(x)))};
  default: return (Point){fmax(x, 0) + log1p(exp(-fabs(x))), 1 / (1 + exp(-x))};
  }
}

void recurrent_apply_f64(const CellFunction *f, double clip, const Loops *loops, double *x, double *slope, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    bool inside = clip == 0 || fabs(x[i]) <= clip;
    Point p = apply_one(f, inside ? x[i] : copysign(clip, x[i]));
    x[i] = p.y;
    if (slope) slope[i] = inside ? p.slope : 0;
  }
}

void recurrent_apply_f32(const CellFunction *f, double clip, const Loops *loops, float *x, float *slope, int64_t n) {
  if (clip != 0 || (f->kind != F_SIGMOID && f->kind != F_TANH)) {
    for (int64_t i = 0; i < n; i++) {
      bool inside = clip == 0 || fabs((double)x[i]) <= clip;
      Point p = apply_one(f, inside ? (double)x[i] : copysign(clip, (double)x[i]));
      x[i] = (float)p.y;
      if (slope) slope[i] = inside ? (float)p.slope : 0;
    }
    return;
  }
  bool sigmoid = f->kind == F_SIGMOID;
  (sigmoid ? loops->sigmoid : loops->tanh)(x, x, n);
  for (int64_t i = 0; slope && i < n; i++) slope[i] = sigmoid ? x[i] * (1 - x[i]) : 1 - x[i] * x[i];
}

// ---- From attributes and types to numbers ------------------------------------------------------------------------------------------------

static Cell cell_of(const Node *node) {
  const Op *op = node->op;
  bool lstm = op == &op_LSTM || op == &op_LSTMGrad || op == &op_ort_LSTMTraining || op == &op_ort_LSTMGrad;
  return lstm ? CELL_LSTM : op == &op_GRU || op == &op_GRUGrad ? CELL_GRU : CELL_RNN;
}

static Status functions_make(const Node *node, Recurrent *r) {
  static const int usual[][3] = {[CELL_RNN] = {F_TANH, 0, 0}, [CELL_GRU] = {F_SIGMOID, F_TANH, 0}, [CELL_LSTM] = {F_SIGMOID, F_TANH, F_TANH}};
  static const int counts[] = {[CELL_RNN] = 1, [CELL_GRU] = 2, [CELL_LSTM] = 3};
  const RecurrentAttrs *a = node->attrs;
  int per_direction = counts[r->cell];
  int64_t alphas = 0, betas = 0;
  if (a->activations.n && a->activations.n < per_direction * r->directions)
    FAIL(MALFORMED, node->name, "attribute activations names %lld functions; %lld are needed", (long long)a->activations.n,
         (long long)(per_direction * r->directions));
  for (int64_t d = 0; d < r->directions; d++)
    for (int k = 0; k < per_direction; k++) {
      int kind = usual[r->cell][k];
      if (a->activations.n) {
        const char *name = a->activations.items[d * per_direction + k];
        for (kind = 0; kind < N_FUNCTIONS && strcasecmp(functions[kind].name, name); kind++) {}
        if (kind == N_FUNCTIONS) FAIL(MALFORMED, node->name, "attribute activations: \"%s\" is none of ONNX's activation functions", name);
      }
      CellFunction *f = &r->functions[d][k];
      *f = (CellFunction){kind, functions[kind].alpha, functions[kind].beta};
      if (functions[kind].has_alpha && alphas < a->alpha.n) f->alpha = (double)a->alpha.items[alphas++];
      if (functions[kind].has_beta && betas < a->beta.n) f->beta = (double)a->beta.items[betas++];
    }
  return NULL;
}

static Status operand_check(const Node *node, int input, const Type *want) {
  char have_text[160], want_text[160];
  const Value *v = node_has_input(node, input) ? node->inputs[input] : NULL;
  if (v && !type_equal(&v->type, want))
    FAIL(MALFORMED, node->name, "'%s' is %s; it must be %s", v->name, type_text(&v->type, have_text, sizeof have_text),
         type_text(want, want_text, sizeof want_text));
  return NULL;
}

static Type state_type(const Recurrent *r, Dtype dtype) {
  return r->batch_first ? type_make(dtype, 3, (const int64_t[]){r->batch, r->directions, r->hidden})
                        : type_make(dtype, 3, (const int64_t[]){r->directions, r->batch, r->hidden});
}
static Type sequence_type(const Recurrent *r, Dtype dtype) {
  return r->batch_first ? type_make(dtype, 4, (const int64_t[]){r->batch, r->steps, r->directions, r->hidden})
                        : type_make(dtype, 4, (const int64_t[]){r->steps, r->directions, r->batch, r->hidden});
}

static Type saved_type(const Recurrent *r, Dtype dtype, int64_t width) {
  return type_make(dtype, 4, (const int64_t[]){r->steps, r->directions, r->batch, r->hidden * width});
}

static Status recurrent_make(const Node *node, Recurrent *out) {
  static const int64_t gates[] = {[CELL_RNN] = 1, [CELL_GRU] = 3, [CELL_LSTM] = 4};
  const RecurrentAttrs *a = node->attrs;
  const Type *x = &node->inputs[IN_X]->type, *w = &node->inputs[IN_W]->type, *rt = &node->inputs[IN_R]->type;
  Recurrent r = {.cell = cell_of(node), .batch_first = a->layout, .linear_before_reset = a->linear_before_reset, .input_forget = a->input_forget,
                 .clip = fabs((double)a->clip), .directions = 1};
  if (!strcmp(a->direction, "bidirectional")) r.directions = 2;
  else if (!strcmp(a->direction, "reverse")) r.backward_only = true;
  else if (strcmp(a->direction, "forward"))
    FAIL(MALFORMED, node->name, "attribute direction = \"%s\" must be forward, reverse or bidirectional", a->direction);
  r.gates = gates[r.cell];
  if (!dtype_is_float(x->dtype) || x->rank != 3 || w->rank != 3 || rt->rank != 3)
    FAIL(MALFORMED, node->name, "X, W and R must be floats with three axes; they have %d, %d and %d", x->rank, w->rank, rt->rank);
  r.steps = x->dims[a->layout ? 1 : 0];
  r.batch = x->dims[a->layout ? 0 : 1];
  r.input = x->dims[2];
  r.hidden = rt->dims[2];
  if (a->hidden_size != ATTR_ABSENT && a->hidden_size != r.hidden)
    FAIL(MALFORMED, node->name, "attribute hidden_size = %lld, and R has %lld columns", (long long)a->hidden_size, (long long)r.hidden);
  if (r.hidden > INT32_MAX) FAIL(MALFORMED, node->name, "R has %lld columns", (long long)r.hidden);
  int64_t d = r.directions, gh = r.gates * r.hidden;
  Type want[] = {[IN_W] = type_make(x->dtype, 3, (const int64_t[]){d, gh, r.input}),
                 [IN_R] = type_make(x->dtype, 3, (const int64_t[]){d, gh, r.hidden}),
                 [IN_B] = type_make(x->dtype, 2, (const int64_t[]){d, 2 * gh}),
                 [IN_LENGTHS] = type_vector(DTYPE_I32, r.batch),
                 [IN_H0] = state_type(&r, x->dtype),
                 [IN_C0] = state_type(&r, x->dtype),
                 [IN_P] = type_make(x->dtype, 2, (const int64_t[]){d, 3 * r.hidden}),
                 [IN_DY] = sequence_type(&r, x->dtype),
                 [IN_DY_H] = state_type(&r, x->dtype),
                 [IN_DY_C] = state_type(&r, x->dtype),
                 [IN_SAVED_H] = sequence_type(&r, x->dtype),
                 [IN_SAVED_C] = saved_type(&r, x->dtype, 1),
                 [IN_SAVED_GATES] = saved_type(&r, x->dtype, r.gates)};
  for (int i = IN_W; i < N_IN; i++) TRY(operand_check(node, i, &want[i]));
  TRY(functions_make(node, &r));
  *out = r;
  return NULL;
}

// ---- Running ---------------------------------------------------------------------------------------------------------------------------

static bool is_gradient(const Node *node) { return *node->op->domain && node->op != &op_ort_LSTMTraining; }

static void walk_f64(const Recurrent *r, bool back, void *const *in, void *const *out, const Tensor *lengths, const Loops *loops, double *space) {
  RecurrentForward_f64 io = {.x = in[IN_X], .w = in[IN_W], .r = in[IN_R], .b = in[IN_B], .h0 = in[IN_H0], .c0 = in[IN_C0], .p = in[IN_P]};
  if (!back) {
    io.y = out[0], io.y_h = out[1], io.y_c = out[2], io.all_c = out[3], io.all_gates = out[4];
    recurrent_forward_f64(r, &io, lengths, loops, space);
    return;
  }
  io.saved_h = in[IN_SAVED_H], io.saved_c = in[IN_SAVED_C], io.saved_gates = in[IN_SAVED_GATES];
  RecurrentBackward_f64 g = {.dy = in[IN_DY], .dy_h = in[IN_DY_H], .dy_c = in[IN_DY_C], .dx = out[OUT_DX], .dw = out[OUT_DW], .dr = out[OUT_DR],
                             .db = out[OUT_DB], .dh0 = out[OUT_DH0], .dc0 = out[OUT_DC0], .dp = out[OUT_DP]};
  recurrent_backward_f64(r, &io, &g, lengths, loops, space);
}

static void walk_f32(const Recurrent *r, bool back, void *const *in, void *const *out, const Tensor *lengths, const Loops *loops, float *space) {
  RecurrentForward_f32 io = {.x = in[IN_X], .w = in[IN_W], .r = in[IN_R], .b = in[IN_B], .h0 = in[IN_H0], .c0 = in[IN_C0], .p = in[IN_P]};
  if (!back) {
    io.y = out[0], io.y_h = out[1], io.y_c = out[2], io.all_c = out[3], io.all_gates = out[4];
    recurrent_forward_f32(r, &io, lengths, loops, space);
    return;
  }
  io.saved_h = in[IN_SAVED_H], io.saved_c = in[IN_SAVED_C], io.saved_gates = in[IN_SAVED_GATES];
  RecurrentBackward_f32 g = {.dy = in[IN_DY], .dy_h = in[IN_DY_H], .dy_c = in[IN_DY_C], .dx = out[OUT_DX], .dw = out[OUT_DW], .dr = out[OUT_DR],
                             .db = out[OUT_DB], .dh0 = out[OUT_DH0], .dc0 = out[OUT_DC0], .dp = out[OUT_DP]};
  recurrent_backward_f32(r, &io, &g, lengths, loops, space);
}

static Status recurrent_ref(const KernelContext *c) {
  Recurrent r;
  WideOperands w;
  TRY(recurrent_make(c->node, &r));
  bool back = is_gradient(c->node);
  TRY(wide_begin(c, recurrent_space_elems(&r, back), &w));
  walk_f64(&r, back, w.in, w.out, has_input(c, IN_LENGTHS) ? &c->in[IN_LENGTHS] : NULL, c->loops, w.space);
  wide_end(c, &w);
  return NULL;
}

static Status recurrent_cpu(const KernelContext *c) {
  Recurrent r;
  TRY(recurrent_make(c->node, &r));
  WideOperands w = wide_as_they_lie(c);
  walk_f32(&r, is_gradient(c->node), w.in, w.out, has_input(c, IN_LENGTHS) ? &c->in[IN_LENGTHS] : NULL, c->loops, w.space);
  return NULL;
}

static Status recurrent_workspace(KernelPrepare *p) {
  Recurrent r;
  TRY(recurrent_make(p->node, &r));
  p->workspace_bytes = recurrent_space_elems(&r, is_gradient(p->node)) * (int64_t)sizeof(float);
  return NULL;
}

// Two products and the gates a step; the gradient walks forward again and makes twice the products, at three quarters of the rate: they are turned.
static void recurrent_work(const Recurrent *r, bool gradient, NodeCost *cost) {
  double rows = (double)r->steps * (double)r->batch * (double)r->directions, gates = (double)(r->gates * r->hidden);
  double forward = 2 * rows * gates * (double)(r->input + r->hidden);
  cost->work[WORK_RECURRENT] += gradient ? 4 * forward : forward;
  cost->work[WORK_FUNCTION] += rows * gates * (gradient ? 2 : 1);
}

static void recurrent_cost(const Node *node, NodeCost *cost) {
  Recurrent r;
  Status status = recurrent_make(node, &r);
  if (!status) recurrent_work(&r, is_gradient(node), cost);
  status_free(status);
}

// ---- Rows ------------------------------------------------------------------------------------------------------------------------------

static Status recurrent_infer(Node *node, Arena *arena) {
  Recurrent r;
  TRY(recurrent_make(node, &r));
  Dtype dtype = node->inputs[IN_X]->type.dtype;
  for (int o = 0; o < node->n_outputs; o++)
    if (node->outputs[o]) node->outputs[o]->type = o == 0 ? sequence_type(&r, dtype) : state_type(&r, dtype);
  return NULL;
}

static Status recurrent_grad(Grad *g) {
  static const int input_of[N_GRADS] = {IN_X, IN_W, IN_R, IN_B, IN_H0, IN_C0, IN_P};
  static const Op *const rows[] = {[CELL_RNN] = &op_RNNGrad, [CELL_GRU] = &op_GRUGrad, [CELL_LSTM] = &op_LSTMGrad};
  const Node *node = g->node;
  const RecurrentAttrs *a = node->attrs;
  Value *in[N_IN] = {0};
  for (int i = 0; i < node->n_inputs; i++) in[i] = node->inputs[i];
  for (int o = 0; o < node->n_outputs; o++) in[IN_DY + o] = node->outputs[o] ? g->dy[o] : NULL;
  bool wanted[N_GRADS];
  int n_wanted = 0;
  for (int o = 0; o < N_GRADS; o++) {
    int i = input_of[o];
    wanted[o] = i < node->n_inputs && node->inputs[i] && g->wanted[i];
    if (wanted[o]) n_wanted = o + 1;
  }
  Node *grad =
      emit_node(g->emit, rows[cell_of(node)], in, N_OURS, n_wanted, wanted,
                ATTRS(A_STRINGS("activations", a->activations.items, a->activations.n), A_FLOATS("activation_alpha", a->alpha.items, a->alpha.n),
                      A_FLOATS("activation_beta", a->beta.items, a->beta.n), A_FLOAT("clip", a->clip), A_STRING("direction", a->direction),
                      A_INT("hidden_size", a->hidden_size), A_INT("layout", a->layout), A_INT("linear_before_reset", a->linear_before_reset),
                      A_INT("input_forget", a->input_forget)));
  for (int o = 0; grad && o < n_wanted; o++)
    if (wanted[o]) g->dx[input_of[o]] = grad->outputs[o];
  return NULL;
}

static Status recurrent_grad_infer(Node *node, Arena *arena) {
  static const int input_of[N_GRADS] = {IN_X, IN_W, IN_R, IN_B, IN_H0, IN_C0, IN_P};
  Recurrent r;
  TRY(recurrent_make(node, &r));
  for (int o = 0; o < node->n_outputs; o++) {
    if (!node->outputs[o]) continue;
    if (!node_has_input(node, input_of[o])) FAIL(MALFORMED, node->name, "output %d is the gradient of an absent input", o);
    node->outputs[o]->type = node->inputs[input_of[o]]->type;
  }
  return NULL;
}

#define RECURRENT(row, table, inputs, outputs)                                                                                              \
  const Op op_##row = {.name = #row, .domain = "", .min_inputs = 3, .max_inputs = inputs, .min_outputs = 0, .max_outputs = outputs,          \
                       .nondifferentiable = 1 << IN_LENGTHS, .attrs = table, .attrs_bytes = sizeof(RecurrentAttrs), .infer = recurrent_infer, \
                       .grad = recurrent_grad, .run_ref = recurrent_ref, .run_cpu = recurrent_cpu, .workspace = recurrent_workspace,  \
                       .cost = recurrent_cost, .policy = POLICY_LOW}
#define RECURRENT_GRAD(row)                                                                                                                \
  const Op op_##row = {.name = #row, .domain = "tessera", .min_inputs = 3, .max_inputs = N_OURS, .min_outputs = 1, .max_outputs = N_GRADS,  \
                       .attrs = recurrent_grad_attrs, .attrs_bytes = sizeof(RecurrentAttrs), .infer = recurrent_grad_infer,                 \
                       .run_ref = recurrent_ref, .run_cpu = recurrent_cpu, .workspace = recurrent_workspace, .cost = recurrent_cost}
RECURRENT(RNN, rnn_attrs, 6, 2);
RECURRENT(GRU, gru_attrs, 6, 2);
RECURRENT(LSTM, lstm_attrs, 8, 3);
RECURRENT_GRAD(RNNGrad);
RECURRENT_GRAD(GRUGrad);
RECURRENT_GRAD(LSTMGrad);

// ---- com.microsoft LSTMTraining and LSTMGrad: the forward pass gives out the cells and gates of all steps -----------------------
// LSTMTraining's inputs are LSTM's; LSTMGrad's: X W R lengths h0 c0 Y all_c gates dY dY_h dY_c -> dX dW dR dB dh0 dc0.

static const int8_t ort_inputs[N_IN] = {
    [IN_X] = 0,  [IN_W] = 1,  [IN_R] = 2,     [IN_B] = -1,    [IN_LENGTHS] = 3, [IN_H0] = 4,      [IN_C0] = 5,
    [IN_P] = -1, [IN_DY] = 9, [IN_DY_H] = 10, [IN_DY_C] = 11, [IN_SAVED_H] = 6, [IN_SAVED_C] = 7, [IN_SAVED_GATES] = 8};

static Status training_infer(Node *node, Arena *arena) {
  Recurrent r;
  TRY(recurrent_make(node, &r));
  Dtype dtype = node->inputs[IN_X]->type.dtype;
  if (r.batch_first || node_has_input(node, IN_P)) FAIL(UNSUPPORTED, node->name, "LSTMTraining with layout = 1 or peepholes is not supported");
  for (int f = 0; f < 3 * r.directions; f++)
    if (r.functions[f / 3][f % 3].kind != (f % 3 ? F_TANH : F_SIGMOID) || r.clip != 0 || r.input_forget)
      FAIL(UNSUPPORTED, node->name, "LSTMTraining takes the usual activations only, without clip and input_forget");
  for (int o = 0; o < node->n_outputs; o++)
    if (node->outputs[o])
      node->outputs[o]->type = o == 0 ? sequence_type(&r, dtype) : o < 3 ? state_type(&r, dtype) : saved_type(&r, dtype, o == 3 ? 1 : r.gates);
  return NULL;
}

const Op op_ort_LSTMTraining = {.name = "LSTMTraining",
                                .domain = "com.microsoft",
                                .min_inputs = 3,
                                .max_inputs = 8,
                                .min_outputs = 0,
                                .max_outputs = 5,
                                .attrs = lstm_attrs,
                                .attrs_bytes = sizeof(RecurrentAttrs),
                                .infer = training_infer,
                                .run_ref = recurrent_ref,
                                .run_cpu = recurrent_cpu,
                                .workspace = recurrent_workspace,
                                .cost = recurrent_cost};

// The node with its operands in our order, so that the functions above serve it.
typedef struct Reordered { Node node; Value *inputs[N_IN]; } Reordered;

static void reorder(const Node *node, Reordered *out) {
  out->node = *node;
  out->node.inputs = out->inputs;
  out->node.n_inputs = N_IN;
  for (int i = 0; i < N_IN; i++) out->inputs[i] = ort_inputs[i] >= 0 && ort_inputs[i] < node->n_inputs ? node->inputs[ort_inputs[i]] : NULL;
}

static Status ort_grad_infer(Node *node, Arena *arena) {
  static const int input_of[] = {IN_X, IN_W, IN_R, IN_B, IN_H0, IN_C0};
  Reordered ours;
  reorder(node, &ours);
  Recurrent r;
  TRY(recurrent_make(&ours.node, &r));
  if (!ours.inputs[IN_SAVED_H] || !ours.inputs[IN_SAVED_C] || !ours.inputs[IN_SAVED_GATES])
    FAIL(MALFORMED, node->name, "LSTMGrad needs Y, all cells and all gates");
  Dtype dtype = node->inputs[0]->type.dtype;
  for (int o = 0; o < node->n_outputs; o++) {
    if (!node->outputs[o]) continue;
    const Value *of = ours.inputs[input_of[o]];
    if (of) node->outputs[o]->type = of->type;
    else if (o == OUT_DB) node->outputs[o]->type = type_make(dtype, 2, (const int64_t[]){r.directions, 2 * r.gates * r.hidden});
    else node->outputs[o]->type = state_type(&r, dtype);
  }
  return NULL;
}

static Status ort_grad_run(const KernelContext *c, bool reference) {
  Reordered ours;
  reorder(c->node, &ours);
  Tensor in[N_IN];
  for (int i = 0; i < N_IN; i++) in[i] = ort_inputs[i] >= 0 && ort_inputs[i] < c->n_in ? c->in[ort_inputs[i]] : (Tensor){0};
  KernelContext one = *c;
  one.node = &ours.node;
  one.in = in;
  one.n_in = N_IN;
  return reference ? recurrent_ref(&one) : recurrent_cpu(&one);
}
static Status ort_grad_ref(const KernelContext *c) { return ort_grad_run(c, true); }
static Status ort_grad_cpu(const KernelContext *c) { return ort_grad_run(c, false); }

static Status ort_grad_workspace(KernelPrepare *p) {
  Reordered ours;
  reorder(p->node, &ours);
  KernelPrepare one = *p;
  one.node = &ours.node;
  TRY(recurrent_workspace(&one));
  p->workspace_bytes = one.workspace_bytes;
  return NULL;
}

static void ort_grad_cost(const Node *node, NodeCost *cost) {
  Reordered ours;
  Recurrent r;
  reorder(node, &ours);
  Status status = recurrent_make(&ours.node, &r);
  if (!status) recurrent_work(&r, true, cost);
  status_free(status);
}

const Op op_ort_LSTMGrad = {.name = "LSTMGrad",
                            .domain = "com.microsoft",
                            .min_inputs = 3,
                            .max_inputs = 12,
                            .min_outputs = 1,
                            .max_outputs = 6,
                            .attrs = lstm_attrs,
                            .attrs_bytes = sizeof(RecurrentAttrs),
                            .infer = ort_grad_infer,
                            .run_ref = ort_grad_ref,
                            .run_cpu = ort_grad_cpu,
                            .workspace = ort_grad_workspace,
                            .cost = ort_grad_cost};
