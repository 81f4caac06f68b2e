// FusedElementwise: several elementwise f32 operators in one walk over memory. The operators run one after the other on a block that stays in
// the cache, each with its own kernel, so that the results are the bits of the unfused graph.
//
// Registers: the inputs 0 .. n-1, then one per operator. `arguments` lists the registers that each operator reads (its arity many);
// `results` the registers that are outputs. Inputs have the shape of the result, one element, or the shape of its trailing axes. `settings`
// holds the members' attributes that are not at their default, in threes: number of the member, name, value.
#include <stdlib.h>
#include <string.h>

#include "cost.h"
#include "fused.h"
#include "kernel.h"
#include "ops.h"

typedef struct FusedAttrs {
  AttrStrings operators;
  AttrInts arguments, results;
  AttrStrings settings;
} FusedAttrs;

static const AttrSpec fused_attrs[] = {
    {"operators", ATTR_STRINGS, offsetof(FusedAttrs, operators), .required = true, .help = "operator names, in order"},
    {"arguments", ATTR_INTS, offsetof(FusedAttrs, arguments), .required = true, .help = "registers that each operator reads, concatenated"},
    {"results", ATTR_INTS, offsetof(FusedAttrs, results), .required = true, .help = "register of each output"},
    {"settings", ATTR_STRINGS, offsetof(FusedAttrs, settings), .help = "attributes of members: number, name, value, ..."},
    {0},
};

bool fused_takes(const Op *op) {
  const Op *const all[] = {&op_Add, &op_Sub, &op_Mul, &op_Div, &op_Neg, &op_Exp, &op_Log, &op_Sqrt, &op_Tanh, &op_Erf, &op_Sigmoid, &op_Relu, &op_Abs,
                           &op_Reciprocal, &op_ReluGrad, &op_TanhGrad, &op_Pow, &op_PowGrad, &op_Gelu, &op_HardSigmoid, &op_HardSwish,
                           &op_Elu, &op_Selu, &op_Celu, &op_LeakyRelu, &op_Softplus, &op_Softsign, &op_Mish, &op_Swish, &op_ThresholdedRelu,
                           &op_ActivationGrad};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i] == op) return true;
  return false;
}

static const Op *member(const char *name) {
  const Op *op = op_find("", name);
  if (!op) op = op_find("tessera", name);
  return op && fused_takes(op) ? op : NULL;
}

// Elements along the longest broadcast suffix among the inputs; 1 when all inputs are whole or single elements.
static int64_t row_elems(const Node *node) {
  const Type *whole = &node->outputs[0]->type;
  int64_t row = 1;
  for (int i = 0; i < node->n_inputs; i++) {
    int64_t n = type_elems(&node->inputs[i]->type);
    if (n > row && n != type_elems(whole)) row = n;
  }
  return row;
}

bool fused_operand(const Type *operand, const Type *whole) {
  if (operand->dtype != DTYPE_F32 || operand->rank > whole->rank) return false;
  if (type_elems(operand) == 1 || type_same_shape(operand, whole)) return true;
  int first = 0;                 // leading ones, then exactly the trailing axes
  while (first < operand->rank && operand->dims[first] == 1) first++;
  for (int i = first; i < operand->rank; i++)
    if (operand->dims[i] != whole->dims[whole->rank - operand->rank + i]) return false;
  return type_elems(operand) <= FUSED_ROW_MAX;
}

// Every member's result is whole: operators without broadcasting read whole registers only, the others at least one.
static bool needs_whole(const Op *op, int argument) {
  return op->min_inputs == 1 || op == &op_ReluGrad || op == &op_TanhGrad || op == &op_ActivationGrad || (op == &op_PowGrad && argument != 1) ||
         (op == &op_Pow && argument == 0);
}

// ---- Attributes of members: floats and strings ------------------------------------------------------------------------------------

typedef union MemberAttrs { char bytes[32]; int64_t align; } MemberAttrs;

// Defaults, then the settings of member `index`.
static Status member_attrs(const Node *node, const Op *op, int64_t index, MemberAttrs *out) {
  const AttrStrings *settings = &((const FusedAttrs *)node->attrs)->settings;
  for (const AttrSpec *s = op->attrs; s && s->name; s++) {
    if (s->type == ATTR_FLOAT) *(float *)(out->bytes + s->offset) = s->default_float;
    else *(const char **)(out->bytes + s->offset) = s->default_string;
  }
  for (int64_t i = 0; i + 2 < settings->n; i += 3) {
    char *end;
    if (strtoll(settings->items[i], &end, 10) != index || *end) continue;
    const char *name = settings->items[i + 1], *text = settings->items[i + 2];
    const AttrSpec *s = attr_spec(op, name);
    if (!s) FAIL(MALFORMED, node->name, "FusedElementwise: member %lld ('%s') has no attribute '%s'", (long long)index, op->name, name);
    if (s->type == ATTR_STRING) {
      *(const char **)(out->bytes + s->offset) = text;
      continue;
    }
    *(float *)(out->bytes + s->offset) = strtof(text, &end);
    if (end == text || *end)
      FAIL(MALFORMED, node->name, "FusedElementwise: attribute %s = \"%s\" of member %lld is no number", name, text, (long long)index);
  }
  return STATUS_OK;
}

// Members with attributes are checked by their own row, on values of the whole type.
static Status check_attrs(const Node *node, const Op *op, int64_t index, const Type *whole, Arena *arena) {
  MemberAttrs attrs = {0};
  TRY(member_attrs(node, op, index, &attrs));
  Value x = {.name = node->name, .type = *whole}, y = {.name = node->name};
  Value *inputs[3] = {&x, &x, &x}, *outputs[1] = {&y};
  Node one = {.op = op, .name = node->name, .inputs = inputs, .n_inputs = op->min_inputs, .outputs = outputs, .n_outputs = 1, .attrs = &attrs};
  for (const AttrSpec *s = op->attrs; s->name; s++)
    if (s->type == ATTR_STRING && !*(const char **)(attrs.bytes + s->offset))
      FAIL(MALFORMED, node->name, "FusedElementwise: member %lld ('%s') needs attribute %s", (long long)index, op->name, s->name);
  return op->infer(&one, arena);
}

static Status check_members(const Node *node, const Type *whole, Arena *arena, int64_t *at) {
  const FusedAttrs *a = node->attrs;
  for (int64_t i = 0; i < a->operators.n; i++) {
    const Op *op = member(a->operators.items[i]);
    if (!op) FAIL(MALFORMED, node->name, "FusedElementwise: '%s' cannot be a member", a->operators.items[i]);
    bool any = false;
    for (int k = 0; k < op->min_inputs; k++, ++*at) {
      int64_t r = *at < a->arguments.n ? a->arguments.items[*at] : -1;
      if (r < 0 || r >= node->n_inputs + i)
        FAIL(MALFORMED, node->name, "FusedElementwise: operator %lld ('%s') reads a register that is not computed yet", (long long)i, op->name);
      bool is_whole = r >= node->n_inputs || type_elems(&node->inputs[r]->type) == type_elems(whole);
      if (!is_whole && needs_whole(op, k))
        FAIL(MALFORMED, node->name, "FusedElementwise: operator %lld ('%s') needs whole operands", (long long)i, op->name);
      any |= is_whole;
    }
    if (!any) FAIL(MALFORMED, node->name, "FusedElementwise: operator %lld ('%s') reads nothing whole", (long long)i, op->name);
    if (op->attrs) TRY(check_attrs(node, op, i, whole, arena));
  }
  return STATUS_OK;
}

static Status fused_infer(Node *node, Arena *arena) {
  const FusedAttrs *a = node->attrs;
  Type broadcast = node->inputs[0]->type;
  const Type *whole = &broadcast;
  for (int i = 1; i < node->n_inputs; i++) TRY(type_broadcast(&broadcast, &node->inputs[i]->type, node->name, &broadcast));
  if (a->operators.n < 1 || a->operators.n > FUSED_MEMBERS_MAX || node->n_inputs > FUSED_INPUTS_MAX)
    FAIL(MALFORMED, node->name, "FusedElementwise: 1 to %d operators over at most %d inputs", FUSED_MEMBERS_MAX, FUSED_INPUTS_MAX);
  int64_t row = 1, at = 0;
  for (int i = 0; i < node->n_inputs; i++) {
    const Type *t = &node->inputs[i]->type;
    int64_t n = type_elems(t);
    if (!fused_operand(t, whole))
      FAIL(MALFORMED, node->name, "FusedElementwise: '%s' is neither whole, nor one element, nor a row of the result", node->inputs[i]->name);
    if (n == 1 || type_same_shape(t, whole)) continue;
    if (row != 1 && n != row) FAIL(MALFORMED, node->name, "FusedElementwise: rows of %lld and %lld elements", (long long)row, (long long)n);
    row = n;
  }
  TRY(check_members(node, whole, arena, &at));
  if (a->settings.n % 3) FAIL(MALFORMED, node->name, "FusedElementwise: settings come in threes: member, name, value");
  if (at != a->arguments.n || a->results.n != node->n_outputs) FAIL(MALFORMED, node->name, "FusedElementwise: wrong number of arguments or results");
  for (int64_t i = 0; i < a->results.n; i++) {
    if (a->results.items[i] < node->n_inputs || a->results.items[i] >= node->n_inputs + a->operators.n)
      FAIL(MALFORMED, node->name, "FusedElementwise: result register %lld does not exist", (long long)a->results.items[i]);
    if (!node->outputs[i]) FAIL(MALFORMED, node->name, "FusedElementwise: result %lld is absent; one that nobody reads is no result", (long long)i);
    node->outputs[i]->type = *whole;
  }
  return STATUS_OK;
}

void fused_keep_results(Graph *graph, Node *node, const bool *keep) {
  AttrInts results = attr_ints(node, "results");
  int64_t *kept = ARENA_ARRAY(graph->arena, int64_t, results.n);
  int n = 0;
  for (int i = 0; i < node->n_outputs; i++) {
    if (!keep[i]) continue;
    node->outputs[n] = node->outputs[i];
    node->outputs[n]->output_index = n;
    kept[n++] = results.items[i];
  }
  node->n_outputs = n;
  attr_set(graph, node, &(AttrInit)A_INTS("results", kept, n));
}

// ---- Running ------------------------------------------------------------------------------------------------------------------

typedef struct Member { Node node; const Op *op; int n; int registers[3]; MemberAttrs attrs; } Member;

// One register while a block runs.
typedef struct Register { char *data; Type type; bool whole; } Register;

typedef struct Walk {
  const KernelContext *c;
  Member members[FUSED_MEMBERS_MAX];
  Register registers[FUSED_INPUTS_MAX + FUSED_MEMBERS_MAX];
  int n_members;
  int64_t row, rows, elem_bytes;     // elements of a row, rows in all
  bool reference;
} Walk;

static Status walk_members(Walk *w, const FusedAttrs *a) {
  int n_inputs = w->c->n_in;
  int64_t at = 0;
  w->n_members = (int)a->operators.n;
  for (int i = 0; i < w->n_members; i++) {
    Member *m = &w->members[i];
    m->op = member(a->operators.items[i]);
    m->node = (Node){.op = m->op, .name = w->c->node->name, .inputs = w->c->node->inputs, .n_inputs = m->op->min_inputs,
                     .outputs = w->c->node->outputs, .n_outputs = 1, .attrs = &m->attrs};
    if (m->op->attrs) TRY(member_attrs(w->c->node, m->op, i, &m->attrs));
    m->n = m->op->min_inputs;
    for (int k = 0; k < m->n; k++) m->registers[k] = (int)a->arguments.items[at++];
    w->registers[n_inputs + i].whole = true;
  }
  return STATUS_OK;
}

// Runs the members on `rows` rows starting at row `first`.
static Status walk_block(Walk *w, int64_t first, int64_t rows) {
  const KernelContext *c = w->c;
  const FusedAttrs *a = c->node->attrs;
  const Type block = w->row == 1 ? type_vector(c->out[0].type->dtype, rows) : type_make(c->out[0].type->dtype, 2, (int64_t[]){rows, w->row});
  for (int i = 0; i < c->n_in; i++) {
    Register *r = &w->registers[i];
    if (!r->whole) continue;
    r->data = (char *)c->in[i].data + first * w->row * w->elem_bytes;
    r->type = block;
  }
  for (int64_t i = 0; i < a->results.n; i++)   // a result is computed where it belongs
    w->registers[a->results.items[i]].data = (char *)c->out[i].data + first * w->row * w->elem_bytes;
  for (int i = 0; i < w->n_members; i++) {
    Member *m = &w->members[i];
    Register *r = &w->registers[c->n_in + i];
    r->type = block;
    Tensor in[3], out = {.data = r->data, .type = &r->type};
    for (int k = 0; k < m->n; k++) in[k] = (Tensor){.data = w->registers[m->registers[k]].data, .type = &w->registers[m->registers[k]].type};
    KernelContext one = *c;
    one.node = &m->node;
    one.in = in;
    one.n_in = m->n;
    one.out = &out;
    one.n_out = 1;
    TRY(w->reference || !m->op->run_cpu ? m->op->run_ref(&one) : m->op->run_cpu(&one));
  }
  return STATUS_OK;
}

static Status fused_walk(const KernelContext *c, char *space, int64_t block_elems, bool reference) {
  const FusedAttrs *a = c->node->attrs;
  Walk w = {.c = c, .row = row_elems(c->node), .elem_bytes = dtype_bytes(c->out[0].type->dtype), .reference = reference};
  int64_t elems = out_elems(c, 0);
  if (elems == 0) return STATUS_OK;
  w.rows = elems / w.row;
  int64_t rows_per_block = w.row >= block_elems ? 1 : block_elems / w.row;
  for (int i = 0; i < c->n_in; i++) {
    int64_t n = in_elems(c, i);
    w.registers[i] = (Register){c->in[i].data, n == 1 ? type_scalar(c->in[i].type->dtype) : type_vector(c->in[i].type->dtype, n),
                                n == elems && (n > 1 || elems == 1)};
  }
  TRY(walk_members(&w, a));
  for (int i = 0; i < w.n_members; i++) w.registers[c->n_in + i].data = space + (int64_t)i * rows_per_block * w.row * w.elem_bytes;
  for (int64_t first = 0; first < w.rows; first += rows_per_block)
    TRY(walk_block(&w, first, first + rows_per_block <= w.rows ? rows_per_block : w.rows - first));
  return STATUS_OK;
}

enum { BLOCK_ELEMS = 2048, REFERENCE_BLOCK_ELEMS = 64 };

static int64_t block_space_elems(const Node *node) {
  int64_t row = row_elems(node);
  return (row >= BLOCK_ELEMS ? row : BLOCK_ELEMS) * ((const FusedAttrs *)node->attrs)->operators.n;
}

static Status fused_workspace(KernelPrepare *p) {
  p->workspace_bytes = block_space_elems(p->node) * (int64_t)sizeof(float);
  return STATUS_OK;
}

static Status fused_cpu(const KernelContext *c) { return fused_walk(c, c->workspace, BLOCK_ELEMS, false); }

// The specification takes its blocks from the heap: rows may be long, and it is never on the fast path.
static Status fused_ref(const KernelContext *c) {
  int64_t row = row_elems(c->node), block = row > REFERENCE_BLOCK_ELEMS ? row : REFERENCE_BLOCK_ELEMS;
  char *space = malloc((size_t)(block * ((const FusedAttrs *)c->node->attrs)->operators.n * dtype_bytes(c->out[0].type->dtype)));
  if (!space) FAIL(RESOURCE, c->node->name, "no memory for a block of %lld elements", (long long)block);
  Status status = fused_walk(c, space, REFERENCE_BLOCK_ELEMS, true);
  free(space);
  return status;
}

// The result may lie over a whole input: a block's inputs are read before later blocks, but a member may write its result while a later member
// still reads that input. Only an input that no member after the result's own reads is safe.
static bool fused_alias(const Node *node, int output, int input, Alias *out) {
  const FusedAttrs *a = node->attrs;
  if (output >= a->results.n || !type_equal(&node->inputs[input]->type, &node->outputs[output]->type)) return false;   // verify asks, whatever infer said
  int64_t writer = a->results.items[output] - node->n_inputs, at = 0;
  for (int64_t i = 0; i < a->operators.n; i++) {
    const Op *op = member(a->operators.items[i]);
    for (int k = 0; op && k < op->min_inputs; k++, at++)
      if (at >= a->arguments.n || (i > writer && a->arguments.items[at] == input)) return false;
  }
  *out = (Alias){.kind = ALIAS_INPLACE, .input = input};
  return true;
}

// The members' work; their intermediate results stay in the cache.
static void fused_cost(const Node *node, NodeCost *cost) {
  const FusedAttrs *a = node->attrs;
  for (int64_t i = 0; i < a->operators.n; i++) {
    const Op *op = member(a->operators.items[i]);
    if (op && op->cost) op->cost(node, cost);
    else cost->work[WORK_ARITHMETIC] += cost_largest_elems(node);
  }
}

const Op op_FusedElementwise = {.name = "FusedElementwise", .domain = "tessera", .min_inputs = 1, .max_inputs = FUSED_INPUTS_MAX, .min_outputs = 1,
                                .max_outputs = FUSED_MEMBERS_MAX, .flags = OP_ELEMENTWISE, .attrs = fused_attrs, .attrs_bytes = sizeof(FusedAttrs),
                                .infer = fused_infer, .run_ref = fused_ref, .run_cpu = fused_cpu, .workspace = fused_workspace, .alias = fused_alias,
                                .cost = fused_cost};
