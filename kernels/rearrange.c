// Fixed rearrangements: DepthToSpace, SpaceToDepth, ReverseSequence, CenterCropPad. Any element type.
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "index_input.h"
#include "ops.h"
#include "strided.h"

// ---- DepthToSpace and SpaceToDepth: [N, C b b, H, W] <-> [N, C, H b, W b] ------------------------------------------------------

typedef struct BlockAttrs { int64_t blocksize; const char *mode; } BlockAttrs;
static const AttrSpec block_attrs[] = {
  {"blocksize", ATTR_INT, offsetof(BlockAttrs, blocksize), .required = true, .min = 1, .max = INT32_MAX, .help = "rows and columns of a block"},
  {"mode", ATTR_STRING, offsetof(BlockAttrs, mode), .default_string = "DCR", .help = "depth is block row, block column, channel (DCR), or channel first (CRD)"},
  {0},
};

static Status block_infer(Node *node, Arena *arena) {
  const BlockAttrs *a = node->attrs;
  Type y = *input_type(node, 0);
  bool to_space = node->op == &op_DepthToSpace;
  int64_t b = a->blocksize;
  if (strcmp(a->mode, "DCR") && strcmp(a->mode, "CRD")) FAIL(MALFORMED, node->name, "%s: mode '%s'; DCR and CRD exist", node->op->name, a->mode);
  bool fits = y.rank == 4 && (to_space ? y.dims[1] % b == 0 && y.dims[1] / b % b == 0 : y.dims[2] % b == 0 && y.dims[3] % b == 0);
  if (!fits) {
    char text[160];
    FAIL(MALFORMED, node->name, "%s: %s does not divide into blocks of %" PRId64 " x %" PRId64, node->op->name, type_text(&y, text, sizeof text), b, b);
  }
  y.dims[1] = to_space ? y.dims[1] / b / b : y.dims[1] * b * b;
  for (int i = 2; i < 4; i++) y.dims[i] = to_space ? y.dims[i] * b : y.dims[i] / b;
  node->outputs[0]->type = y;
  return STATUS_OK;
}

// Both as a walk over [n, c, h, block row, w, block column].
static Status block_run(const KernelContext *c) {
  const BlockAttrs *a = c->node->attrs;
  bool to_space = c->node->op == &op_DepthToSpace, channel_last = a->mode[0] == 'D';
  const Type *deep = to_space ? c->in[0].type : c->out[0].type, *wide = to_space ? c->out[0].type : c->in[0].type;
  int64_t b = a->blocksize, h = deep->dims[2], w = deep->dims[3], channels = wide->dims[1];
  int64_t dims[6] = {deep->dims[0], channels, h, b, w, b};
  int64_t in_channel = channel_last ? h * w : b * b * h * w, in_block = channel_last ? channels * h * w : h * w;
  int64_t in_deep[6] = {deep->dims[1] * h * w, in_channel, w, b * in_block, 1, in_block};
  int64_t in_wide[6] = {channels * h * b * w * b, h * b * w * b, b * w * b, w * b, b, 1};
  strided_copy(c->out[0].data, to_space ? in_wide : in_deep, c->in[0].data, to_space ? in_deep : in_wide, dims, 6, dtype_bytes(deep->dtype));
  return STATUS_OK;
}

static Status block_grad(Grad *g) {
  const BlockAttrs *a = g->node->attrs;
  g->dx[0] = emit(g->emit, g->node->op == &op_DepthToSpace ? &op_SpaceToDepth : &op_DepthToSpace, INPUTS(g->dy[0]),
                  ATTRS(A_INT("blocksize", a->blocksize), A_STRING("mode", a->mode)));
  return STATUS_OK;
}

#define BLOCKS(row)                                                                                                           \
  const Op op_##row = {.name = #row, .domain = "", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1,     \
                       .attrs = block_attrs, .attrs_bytes = sizeof(BlockAttrs), .infer = block_infer, .grad = block_grad, .run_ref = block_run}
BLOCKS(DepthToSpace);
BLOCKS(SpaceToDepth);

// ---- ReverseSequence: inputs x, lengths [batch] --------------------------------------------------------------------------------

typedef struct ReverseAttrs { int64_t batch_axis, time_axis; } ReverseAttrs;
static const AttrSpec reverse_attrs[] = {
  {"batch_axis", ATTR_INT, offsetof(ReverseAttrs, batch_axis), .default_int = 1, .min = 0, .max = 1, .help = "axis of the samples"},
  {"time_axis", ATTR_INT, offsetof(ReverseAttrs, time_axis), .min = 0, .max = 1, .help = "axis that is reversed"},
  {0},
};

static Status reverse_infer(Node *node, Arena *arena) {
  const ReverseAttrs *a = node->attrs;
  const Type *x = input_type(node, 0), *lengths = input_type(node, 1);
  if (x->rank < 2 || a->batch_axis == a->time_axis)
    FAIL(MALFORMED, node->name, "ReverseSequence: axes %" PRId64 " and %" PRId64 " of %d; axes 0 and 1 are needed", a->batch_axis, a->time_axis, x->rank);
  Type want = type_vector(DTYPE_I64, x->dims[a->batch_axis]);
  if (!type_equal(lengths, &want)) {
    char got[160], text[160];
    FAIL(MALFORMED, node->name, "ReverseSequence: sequence_lens is %s; %s is needed", type_text(lengths, got, sizeof got), type_text(&want, text, sizeof text));
  }
  node->outputs[0]->type = *x;
  return STATUS_OK;
}

static Status reverse_run(const KernelContext *c) {
  const ReverseAttrs *a = c->node->attrs;
  const Type *x = c->in[0].type;
  int64_t rows = x->dims[0], columns = x->dims[1], inner = 1, steps = x->dims[a->time_axis];
  for (int i = 2; i < x->rank; i++) inner *= x->dims[i];
  int64_t bytes = inner * dtype_bytes(x->dtype);
  for (int64_t i = 0; i < rows * columns && bytes; i++) {
    int64_t row = i / columns, column = i % columns, sample = a->batch_axis ? column : row, t = a->batch_axis ? row : column;
    int64_t length = in_i(c, 1, sample);
    if (length < 0 || length > steps)
      FAIL(CHECK, c->node->name, "ReverseSequence: sample %" PRId64 " has length %" PRId64 " of %" PRId64 " steps", sample, length, steps);
    int64_t from = t < length ? length - 1 - t : t, at = a->batch_axis ? from * columns + column : row * columns + from;
    memcpy((char *)c->out[0].data + i * bytes, (const char *)c->in[0].data + at * bytes, (size_t)bytes);
  }
  return STATUS_OK;
}

static Status reverse_grad(Grad *g) {   // its own inverse
  const ReverseAttrs *a = g->node->attrs;
  g->dx[0] = emit(g->emit, &op_ReverseSequence, INPUTS(g->dy[0], g->node->inputs[1]),
                  ATTRS(A_INT("batch_axis", a->batch_axis), A_INT("time_axis", a->time_axis)));
  return STATUS_OK;
}

const Op op_ReverseSequence = {.name = "ReverseSequence", .domain = "", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1,
                               .nondifferentiable = 2, .attrs = reverse_attrs, .attrs_bytes = sizeof(ReverseAttrs), .infer = reverse_infer,
                               .grad = reverse_grad, .run_ref = reverse_run};

// ---- CenterCropPad: inputs x, shape ---------------------------------------------------------------------------------------------

typedef struct CenterAttrs { AttrInts axes; } CenterAttrs;
static const AttrSpec center_attrs[] = {
  {"axes", ATTR_INTS, offsetof(CenterAttrs, axes), .help = "axes that shape is about; all when absent"},
  {0},
};

static Status center_infer(Node *node, Arena *arena) {
  const AttrInts *axes = &((const CenterAttrs *)node->attrs)->axes;
  Type y = *input_type(node, 0);
  int64_t shape[RANK_MAX];
  int n;
  uint32_t mask = 0;
  TRY(index_constant(node, 1, shape, RANK_MAX, &n));
  if (n != (axes->n ? axes->n : y.rank)) FAIL(MALFORMED, node->name, "CenterCropPad: %d sizes for %d axes", n, axes->n ? (int)axes->n : y.rank);
  TRY(index_axes(axes->items, (int)axes->n, y.rank, node->name, &mask));
  for (int i = 0; i < n; i++) {
    int axis = i;
    if (axes->n) TRY(type_axis(axes->items[i], y.rank, node->name, &axis));
    y.dims[axis] = shape[i];
  }
  TRY(type_check(&y, node->name));
  node->outputs[0]->type = y;
  return STATUS_OK;
}

// The middle of the greater one on each axis: half of the difference, rounded down, lies before it.
static Status center_run(const KernelContext *c) {
  const Type *x = c->in[0].type, *y = c->out[0].type;
  int64_t from[RANK_MAX], to[RANK_MAX], dims[RANK_MAX], from_at = 0, to_at = 0, bytes = dtype_bytes(x->dtype);
  strided_row_major(x->dims, x->rank, from);
  strided_row_major(y->dims, y->rank, to);
  for (int i = 0; i < x->rank; i++) {
    int64_t extra = x->dims[i] - y->dims[i];
    dims[i] = extra > 0 ? y->dims[i] : x->dims[i];
    from_at += extra > 0 ? extra / 2 * from[i] : 0;
    to_at += extra < 0 ? -extra / 2 * to[i] : 0;
  }
  if (type_elems(y)) memset(c->out[0].data, 0, (size_t)type_bytes(y));
  strided_copy((char *)c->out[0].data + to_at * bytes, to, (const char *)c->in[0].data + from_at * bytes, from, dims, x->rank, bytes);
  return STATUS_OK;
}

static Status center_grad(Grad *g) {
  const Type *x = input_type(g->node, 0);
  g->dx[0] = emit(g->emit, &op_CenterCropPad, INPUTS(g->dy[0], emit_int64s(g->emit, "shape", x->dims, x->rank)), NULL);
  return STATUS_OK;
}

const Op op_CenterCropPad = {.name = "CenterCropPad", .domain = "", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1,
                             .nondifferentiable = 2, .attrs = center_attrs, .attrs_bytes = sizeof(CenterAttrs), .infer = center_infer,
                             .grad = center_grad, .run_ref = center_run};
