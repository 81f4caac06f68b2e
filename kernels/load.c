// Initial values: Load reads them from the weight source, a rank its own window; Fill sets all elements to one.
#include <stdio.h>
#include <math.h>
#include <string.h>

#include "../ir/state.h"
#include "../ir/tile.h"
#include "cost.h"
#include "kernel.h"
#include "ops.h"

enum { NAME_BYTES = 1024 };

typedef struct LoadAttrs {
  AttrStrings params;
  AttrInts starts, dims;
  int64_t dtype, sharded, first, part_elems;
  const char *source, *fingerprint, *state;
} LoadAttrs;
static const AttrSpec load_attrs[] = {
    {"params", ATTR_STRINGS, offsetof(LoadAttrs, params), .help = "names in the weight source"},
    {"starts", ATTR_INTS, offsetof(LoadAttrs, starts), .min = 0, .max = INT64_MAX, .help = "element of the bucket at which each starts"},
    {"dims", ATTR_INTS, offsetof(LoadAttrs, dims), .min = 0, .max = INT64_MAX, .help = "dimensions of the output"},
    {"dtype", ATTR_INT, offsetof(LoadAttrs, dtype), .required = true, .help = "element type of the output (TensorProto number)"},
    {"sharded", ATTR_INT, offsetof(LoadAttrs, sharded), .min = 0, .max = 1, .help = "1: the rank's window of the bucket, rank x elements"},
    {"first", ATTR_INT, offsetof(LoadAttrs, first), .min = 0, .max = INT64_MAX, .help = "element of the rank's part at which the output starts"},
    {"part_elems", ATTR_INT, offsetof(LoadAttrs, part_elems), .min = 0, .max = INT64_MAX, .help = "elements of a rank's part; 0: those of the output"},
    {"source", ATTR_STRING, offsetof(LoadAttrs, source), .default_string = "", .help = "path of the weight source"},
    {"fingerprint", ATTR_STRING, offsetof(LoadAttrs, fingerprint), .default_string = "", .help = "of the weight source, hex"},
    {"state", ATTR_STRING, offsetof(LoadAttrs, state), .default_string = "", .help = "load the optimizer state PARAM.STATE instead"},
    {0},
};

static Status dims_type(const Node *node, int64_t dtype, AttrInts dims, Type *out) {
  if (!dtype_known((int)dtype) || dtype > INT32_MAX) FAIL(MALFORMED, node->name, "attribute dtype = %lld is no element type", (long long)dtype);
  if (dims.n > RANK_MAX) FAIL(MALFORMED, node->name, "%lld dims; at most %d are supported", (long long)dims.n, RANK_MAX);
  *out = type_make((Dtype)dtype, (int)dims.n, dims.items);
  return NULL;
}

static Status load_infer(Node *node, Arena *arena) {
  const LoadAttrs *a = node->attrs;
  Type type;
  TRY(dims_type(node, a->dtype, a->dims, &type));
  if (a->starts.n != a->params.n) FAIL(MALFORMED, node->name, "%lld starts for %lld params", (long long)a->starts.n, (long long)a->params.n);
  for (int64_t i = 0; i < a->starts.n; i++)
    if (a->starts.items[i] < (i ? a->starts.items[i - 1] : 0))
      FAIL(MALFORMED, node->name, "'%s' starts at %lld, before the one before it", a->params.items[i], (long long)a->starts.items[i]);
  if (type.rank != 1 && (a->params.n != 1 || a->sharded || a->starts.items[0]))
    FAIL(MALFORMED, node->name, "only one whole tensor can be loaded with %d dims", type.rank);
  TRY(type_check(&type, node->name));
  if (a->part_elems ? a->first > a->part_elems - type_elems(&type) : a->first != 0)
    FAIL(MALFORMED, node->name, "%lld elements from %lld on pass the end of a part of %lld", (long long)type_elems(&type), (long long)a->first, (long long)a->part_elems);
  node->outputs[0]->type = type;
  return NULL;
}

// Elements [from, from + n) of a weight into `to`. Pages of a mapped file are let go as soon as they are copied, so that they do not
// count as resident; they stay in the page cache for the other ranks.
static void copy_window(void *to, Dtype dtype, const Weight *weight, int64_t from, int64_t n) {
  int64_t from_bytes = dtype_bytes(weight->type.dtype), to_bytes = dtype_bytes(dtype);
  for (int64_t at = 0, m; at < n; at += m) {
    const char *bytes = (const char *)weight->bytes + (from + at) * from_bytes;
    m = (mapped_step(bytes, (n - at) * from_bytes) + from_bytes - 1) / from_bytes;
    elements_convert((char *)to + at * to_bytes, dtype, bytes, weight->type.dtype, m);
    if (weight->mapped) mapped_let_go(bytes, m * from_bytes);
  }
}

// A tile of a parameter that the source has whole (ir/tile.h), or of its state: which may be by blocks, that tiles are cut between. False: it has none.
static bool find_tile(const KernelContext *c, const char *param, const char *state, Weight *out) {
  Tile tile;
  char name[NAME_BYTES];
  if (!tile_parse(param, &tile) || tile.of_bytes + strlen(state) + 2 > sizeof name) return false;
  snprintf(name, sizeof name, "%.*s", (int)tile.of_bytes, param);
  const Weight *whole = weights_find(c->weights, name);
  if (!whole || whole->type.rank != 2 || tile.end > whole->type.dims[0]) return false;
  int64_t columns = whole->type.dims[1], first = tile.first * columns, end = tile.end * columns;
  if (*state) {
    snprintf(name, sizeof name, "%.*s.%s", (int)tile.of_bytes, param, state);
    if (!(whole = weights_find(c->weights, name))) return false;
  }
  *out = *whole;
  if (whole->type.rank == 2 && whole->type.dims[1] == columns && tile.end <= whole->type.dims[0]) {
    out->type.dims[0] = tile.end - tile.first;
  } else {
    first /= STATE_BLOCK_ELEMS;
    end = (end + STATE_BLOCK_ELEMS - 1) / STATE_BLOCK_ELEMS;
    if (whole->type.rank != 1 || end > whole->type.dims[0]) return false;
    out->type.dims[0] = end - first;
  }
  out->offset_bytes += first * dtype_bytes(whole->type.dtype);
  if (whole->bytes) out->bytes = (const char *)whole->bytes + first * dtype_bytes(whole->type.dtype);
  return true;
}

static Status find_weight(const KernelContext *c, int64_t i, int64_t limit_elems, Weight *tile, const Weight **out) {
  const LoadAttrs *a = c->node->attrs;
  char name[NAME_BYTES];
  int length = snprintf(name, sizeof name, *a->state ? "%s.%s" : "%s", a->params.items[i], a->state);
  if (length < 0 || length >= NAME_BYTES) FAIL(RESOURCE, c->node->name, "the name of parameter %lld has %d bytes", (long long)i, length);
  const Weight *weight = weights_find(c->weights, name);
  if (!weight && find_tile(c, a->params.items[i], a->state, tile)) weight = tile;
  if (!weight)
    FAIL(MALFORMED, name, "it is not in the weights%s%s; the plan was made from '%s'", c->weights && c->weights->path ? " of " : "",
         c->weights && c->weights->path ? c->weights->path : "", a->source);
  if (!weight->bytes && type_elems(&weight->type))
    FAIL(IO, name, "its bytes are absent: %s is empty", weight->path ? weight->path : "the weight source");
  const Type *type = c->out[0].type;
  char have[160], want[160];
  if (type->rank != 1 && !type_same_shape(&weight->type, type))
    FAIL(MALFORMED, name, "it is %s in the weights and %s in the plan", type_text(&weight->type, have, sizeof have),
         type_text(type, want, sizeof want));
  if (type_elems(&weight->type) > limit_elems)
    FAIL(MALFORMED, name, "%s in the weights is larger than the %lld elements that the plan has for it",
         type_text(&weight->type, have, sizeof have), (long long)limit_elems);
  *out = weight;
  return NULL;
}

static Status load_ref(const KernelContext *c) {
  const LoadAttrs *a = c->node->attrs;
  Dtype dtype = c->out[0].type->dtype;
  int64_t bytes = dtype_bytes(dtype), window = out_elems(c, 0), part = a->part_elems ? a->part_elems : window;
  int64_t parts = a->sharded && c->comm ? c->comm->size : 1, rank = a->sharded && c->comm ? c->comm->rank : 0;
  int64_t low = rank * part + a->first, high = low + window, filled = low;   // of the bucket
  char *out = c->out[0].data;
  for (int64_t i = 0; i < a->params.n; i++) {
    int64_t start = a->starts.items[i], limit = (i + 1 < a->params.n ? a->starts.items[i + 1] : parts * part) - start;
    if (start >= high || (i + 1 < a->params.n && start + limit <= low)) continue;
    const Weight *weight;
    Weight tile;
    TRY(find_weight(c, i, limit, &tile, &weight));
    int64_t elems = type_elems(&weight->type);
    int64_t first = start > low ? start : low, end = start + elems < high ? start + elems : high;
    if (end <= first) continue;
    if (first > filled) memset(out + (filled - low) * bytes, 0, (size_t)((first - filled) * bytes));
    copy_window(out + (first - low) * bytes, dtype, weight, first - start, end - first);
    filled = end;
  }
  if (high > filled) memset(out + (filled - low) * bytes, 0, (size_t)((high - filled) * bytes));
  return NULL;
}

const Op op_Load = {
    .name = "Load", .domain = "tessera", .min_inputs = 0, .max_inputs = 0, .min_outputs = 1, .max_outputs = 1, .flags = OP_RANDOM,
    .attrs = load_attrs, .attrs_bytes = sizeof(LoadAttrs), .infer = load_infer, .run_ref = load_ref, .cost = cost_move};

// ---- Fill ---------------------------------------------------------------------------------------------------------------------

typedef struct FillAttrs { AttrInts dims; int64_t dtype; const char *value; } FillAttrs;
static const AttrSpec fill_attrs[] = {
    {"dims", ATTR_INTS, offsetof(FillAttrs, dims), .min = 0, .max = INT64_MAX, .help = "dimensions of the output"},
    {"dtype", ATTR_INT, offsetof(FillAttrs, dtype), .required = true, .help = "element type of the output (TensorProto number)"},
    {"value", ATTR_STRING, offsetof(FillAttrs, value), .default_string = "0", .help = "of every element, a decimal"},
    {0},
};

static Status fill_value(const Node *node, double *out) {
  return kernel_parse_decimal(node, "value", ((const FillAttrs *)node->attrs)->value, -INFINITY, INFINITY, out);
}

static Status fill_infer(Node *node, Arena *arena) {
  const FillAttrs *a = node->attrs;
  Type type;
  double value;
  TRY(fill_value(node, &value));
  TRY(dims_type(node, a->dtype, a->dims, &type));
  node->outputs[0]->type = type;
  return NULL;
}

static Status fill_ref(const KernelContext *c) {
  double value;
  TRY(fill_value(c->node, &value));
  if (value == 0 && out_elems(c, 0)) memset(c->out[0].data, 0, (size_t)type_bytes(c->out[0].type));
  for (int64_t i = 0; value != 0 && i < out_elems(c, 0); i++) out_f(c, 0, i, value);
  return NULL;
}

const Op op_Fill = {
    .name = "Fill", .domain = "tessera", .min_inputs = 0, .max_inputs = 0, .min_outputs = 1, .max_outputs = 1, .flags = OP_RANDOM,
    .attrs = fill_attrs, .attrs_bytes = sizeof(FillAttrs), .infer = fill_infer, .run_ref = fill_ref, .cost = cost_move};
