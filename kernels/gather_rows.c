// Gather from a table that is cut by its rows (pass tile_params): one piece at a time, so that no two need be there at once.
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "cost.h"
#include "index_input.h"
#include "ops.h"

typedef struct GatherRowsAttrs { int64_t first, count, rows; } GatherRowsAttrs;
static const AttrSpec gather_rows_attrs[] = {
    {"first", ATTR_INT, offsetof(GatherRowsAttrs, first), .min = 0, .max = INT64_MAX, .help = "row of the table that is the piece's first"},
    {"count", ATTR_INT, offsetof(GatherRowsAttrs, count), .required = true, .min = 0, .max = INT64_MAX, .help = "rows of the piece"},
    {"rows", ATTR_INT, offsetof(GatherRowsAttrs, rows), .required = true, .min = 0, .max = INT64_MAX, .help = "rows of the table"},
    {0},
};

enum { IN_INDICES, IN_PIECE, IN_OTHERS };

static Status check_type(const Node *node, int input, const Type *want) {
  char a[160], b[160];
  if (!node_has_input(node, input) || type_equal(input_type(node, input), want)) return STATUS_OK;
  FAIL(MALFORMED, node->name, "GatherRows: input %d is %s; %s is needed", input, type_text(input_type(node, input), a, sizeof a), type_text(want, b, sizeof b));
}

static Status gather_rows_infer(Node *node, Arena *arena) {
  const GatherRowsAttrs *a = node->attrs;
  bool piece = node_has_input(node, IN_PIECE), others = node_has_input(node, IN_OTHERS);
  const Type *indices = input_type(node, IN_INDICES);
  if (!piece && !others) FAIL(MALFORMED, node->name, "GatherRows: neither a piece nor other rows are given");
  if (indices->dtype != DTYPE_I32 && indices->dtype != DTYPE_I64)
    FAIL(MALFORMED, node->name, "GatherRows: indices of %s; int32 or int64 are needed", dtype_name(indices->dtype));
  if (a->first > a->rows || a->count > a->rows - a->first)
    FAIL(MALFORMED, node->name, "GatherRows: %" PRId64 " rows from %" PRId64 " on are not in a table of %" PRId64, a->count, a->first, a->rows);
  const Type *like = input_type(node, piece ? IN_PIECE : IN_OTHERS);
  if (like->rank < 1 || (piece && like->rank != 2) || indices->rank >= RANK_MAX)
    FAIL(UNSUPPORTED, node->name, "GatherRows: a piece of %d axes, indices of %d; 2 and at most %d are supported", like->rank, indices->rank, RANK_MAX - 1);
  int64_t columns = like->dims[like->rank - 1];
  Type y = {.dtype = like->dtype}, w = type_make(like->dtype, 2, (const int64_t[]){a->count, columns});
  for (int i = 0; i < indices->rank; i++) y.dims[y.rank++] = indices->dims[i];
  y.dims[y.rank++] = columns;
  TRY(check_type(node, IN_PIECE, &w));
  TRY(check_type(node, IN_OTHERS, &y));
  node->outputs[0]->type = y;
  return STATUS_OK;
}

// Rows of indices in the piece are the piece's (without one, zeros); all others are those of `others` (without, zeros).
static Status gather_rows_run(const KernelContext *c) {
  const GatherRowsAttrs *a = c->node->attrs;
  const Type *y = c->out[0].type;
  int64_t bytes = y->dims[y->rank - 1] * dtype_bytes(y->dtype), n = in_elems(c, IN_INDICES);
  bool same = has_input(c, IN_OTHERS) && c->in[IN_OTHERS].data == c->out[0].data;
  for (int64_t k = 0; k < n; k++) {
    int64_t index = in_i(c, IN_INDICES, k);
    if (index < -a->rows || index >= a->rows)
      FAIL(MALFORMED, c->node->name, "GatherRows: element %" PRId64 " of '%s' is %" PRId64 ", outside [%" PRId64 ",%" PRId64 "]", k, c->node->inputs[IN_INDICES]->name,
           index, -a->rows, a->rows - 1);
    if (index < 0) index += a->rows;
    if (!bytes) continue;
    bool mine = index >= a->first && index - a->first < a->count;
    char *to = (char *)c->out[0].data + k * bytes;
    if (mine && has_input(c, IN_PIECE)) memcpy(to, (const char *)c->in[IN_PIECE].data + (index - a->first) * bytes, (size_t)bytes);
    else if (mine || !has_input(c, IN_OTHERS)) memset(to, 0, (size_t)bytes);
    else if (!same) memcpy(to, (const char *)c->in[IN_OTHERS].data + k * bytes, (size_t)bytes);
  }
  return STATUS_OK;
}

static Status gather_rows_grad(Grad *g) {
  const GatherRowsAttrs *a = g->node->attrs;
  Value *indices = g->node->inputs[IN_INDICES];
  if (node_has_input(g->node, IN_PIECE) && g->wanted[IN_PIECE]) {
    const Type *w = input_type(g->node, IN_PIECE);
    g->dx[IN_PIECE] = emit(g->emit, &op_GatherGrad, INPUTS(indices, g->dy[0]), ATTRS(A_INTS("dims", w->dims, w->rank), A_INT("first", a->first), A_INT("rows", a->rows)));
  }
  if (g->node->n_inputs > IN_OTHERS && g->wanted[IN_OTHERS])
    g->dx[IN_OTHERS] = emit(g->emit, &op_GatherRows, INPUTS(indices, NULL, g->dy[0]), ATTRS(A_INT("first", a->first), A_INT("count", a->count), A_INT("rows", a->rows)));
  return STATUS_OK;
}

static bool gather_rows_alias(const Node *node, int output, int input, Alias *out) {
  *out = (Alias){.kind = ALIAS_INPLACE, .input = IN_OTHERS};
  return input == IN_OTHERS;
}

const Op op_GatherRows = {.name = "GatherRows", .domain = "tessera", .min_inputs = 1, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1,
                          .nondifferentiable = 1 << IN_INDICES, .attrs = gather_rows_attrs, .attrs_bytes = sizeof(GatherRowsAttrs), .infer = gather_rows_infer,
                          .grad = gather_rows_grad, .run_ref = gather_rows_run, .alias = gather_rows_alias, .cost = cost_rows};
