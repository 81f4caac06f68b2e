// Flat vectors (buckets) and the tensors inside them: Pack, Unpack, Shard. Planned, none of them moves a byte but Pack's gaps.
#include <string.h>

#include "cost.h"
#include "kernel.h"
#include "ops.h"

// ---- Pack ---------------------------------------------------------------------------------------------------------------------

typedef struct PackAttrs { AttrInts starts; int64_t elems; } PackAttrs;
static const AttrSpec pack_attrs[] = {
    {"starts", ATTR_INTS, offsetof(PackAttrs, starts), .required = true, .min = 0, .max = INT64_MAX, .help = "element at which each input starts"},
    {"elems", ATTR_INT, offsetof(PackAttrs, elems), .required = true, .min = 0, .max = INT64_MAX, .help = "elements of the flat vector"},
    {0},
};

static Status pack_infer(Node *node, Arena *arena) {
  const PackAttrs *a = node->attrs;
  if (a->starts.n != node->n_inputs) FAIL(MALFORMED, node->name, "%lld starts for %d inputs", (long long)a->starts.n, node->n_inputs);
  int64_t end = 0;
  for (int i = 0; i < node->n_inputs; i++) {
    const Value *v = node->inputs[i];
    if (!v) FAIL(MALFORMED, node->name, "input %d is absent", i);
    if (v->type.dtype != node->inputs[0]->type.dtype)
      FAIL(MALFORMED, node->name, "'%s' is %s, the first input %s", v->name, dtype_name(v->type.dtype), dtype_name(node->inputs[0]->type.dtype));
    int64_t start = a->starts.items[i], elems = type_elems(&v->type);
    if (start < end || start > a->elems || elems > a->elems - start)
      FAIL(MALFORMED, node->name, "'%s', %lld elements from %lld on, overlaps the one before, which ends at %lld, or passes the end at %lld", v->name,
           (long long)elems, (long long)start, (long long)end, (long long)a->elems);
    end = start + elems;
  }
  node->outputs[0]->type = type_vector(node->inputs[0]->type.dtype, a->elems);
  return NULL;
}

static Status pack_ref(const KernelContext *c) {
  const PackAttrs *a = c->node->attrs;
  int64_t bytes = dtype_bytes(c->out[0].type->dtype), end = 0;
  char *flat = c->out[0].data;
  for (int i = 0; i < c->n_in; i++) {
    int64_t start = a->starts.items[i], elems = in_elems(c, i);
    if (start > end) memset(flat + end * bytes, 0, (size_t)((start - end) * bytes));
    if (elems && c->in[i].data != flat + start * bytes) memcpy(flat + start * bytes, c->in[i].data, (size_t)(elems * bytes));
    end = start + elems;
  }
  if (a->elems > end) memset(flat + end * bytes, 0, (size_t)((a->elems - end) * bytes));
  return NULL;
}

static bool pack_alias(const Node *node, int output, int input, Alias *out) {
  const PackAttrs *a = node->attrs;
  if (output != 0 || input >= a->starts.n) return false;
  *out = (Alias){.kind = ALIAS_PART, .input = input, .offset_bytes = a->starts.items[input] * dtype_bytes(node->inputs[input]->type.dtype)};
  return true;
}

const Op op_Pack = {
    .name = "Pack", .domain = "tessera", .min_inputs = 1, .max_inputs = VARIADIC, .min_outputs = 1, .max_outputs = 1,
    .attrs = pack_attrs, .attrs_bytes = sizeof(PackAttrs), .infer = pack_infer, .run_ref = pack_ref, .alias = pack_alias, .cost = cost_move};

// ---- Unpack -------------------------------------------------------------------------------------------------------------------

typedef struct UnpackAttrs { AttrInts starts, ranks, dims; } UnpackAttrs;
static const AttrSpec unpack_attrs[] = {
    {"starts", ATTR_INTS, offsetof(UnpackAttrs, starts), .required = true, .min = 0, .max = INT64_MAX, .help = "element at which each output starts"},
    {"ranks", ATTR_INTS, offsetof(UnpackAttrs, ranks), .required = true, .min = 0, .max = RANK_MAX, .help = "tensor rank of each output"},
    {"dims", ATTR_INTS, offsetof(UnpackAttrs, dims), .min = 0, .max = INT64_MAX, .help = "dimensions of all outputs, one after the other"},
    {0},
};

static Status unpack_infer(Node *node, Arena *arena) {
  const UnpackAttrs *a = node->attrs;
  const Type *flat = &node->inputs[0]->type;
  if (flat->rank != 1) FAIL(MALFORMED, node->name, "'%s' must have one axis; it has %d", node->inputs[0]->name, flat->rank);
  if (a->starts.n != node->n_outputs || a->ranks.n != node->n_outputs)
    FAIL(MALFORMED, node->name, "%lld starts and %lld ranks for %d outputs", (long long)a->starts.n, (long long)a->ranks.n, node->n_outputs);
  int64_t dim = 0;
  for (int o = 0; o < node->n_outputs; o++) {
    int64_t rank = a->ranks.items[o];
    if (rank < 0 || rank > RANK_MAX || rank > a->dims.n - dim)
      FAIL(MALFORMED, node->name, "output %d: its rank %lld passes the end of dims", o, (long long)rank);
    Type type = type_make(flat->dtype, (int)rank, rank ? a->dims.items + dim : NULL);
    dim += rank;
    TRY(type_check(&type, node->name));
    int64_t start = a->starts.items[o], elems = type_elems(&type);
    if (start < 0 || start > flat->dims[0] || elems > flat->dims[0] - start)
      FAIL(MALFORMED, node->name, "output %d: %lld elements from %lld pass the end of '%s' at %lld", o, (long long)elems, (long long)start,
           node->inputs[0]->name, (long long)flat->dims[0]);
    if (node->outputs[o]) node->outputs[o]->type = type;
  }
  if (dim != a->dims.n) FAIL(MALFORMED, node->name, "%lld dims, of which the outputs take %lld", (long long)a->dims.n, (long long)dim);
  return NULL;
}

static Status unpack_ref(const KernelContext *c) {
  const UnpackAttrs *a = c->node->attrs;
  for (int o = 0; o < c->n_out; o++) {
    if (!has_output(c, o)) continue;
    const char *from = (const char *)c->in[0].data + a->starts.items[o] * dtype_bytes(c->in[0].type->dtype);
    if (from != c->out[o].data && out_elems(c, o)) memcpy(c->out[o].data, from, (size_t)type_bytes(c->out[o].type));
  }
  return NULL;
}

static bool unpack_alias(const Node *node, int output, int input, Alias *out) {
  const UnpackAttrs *a = node->attrs;
  if (input != 0 || output >= a->starts.n) return false;
  *out = (Alias){.kind = ALIAS_VIEW, .input = 0, .offset_bytes = a->starts.items[output] * dtype_bytes(node->inputs[0]->type.dtype)};
  return true;
}

const Op op_Unpack = {
    .name = "Unpack", .domain = "tessera", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = VARIADIC,
    .attrs = unpack_attrs, .attrs_bytes = sizeof(UnpackAttrs), .infer = unpack_infer, .run_ref = unpack_ref, .alias = unpack_alias, .cost = cost_move};

// ---- Shard --------------------------------------------------------------------------------------------------------------------

typedef struct ShardAttrs { int64_t parts; } ShardAttrs;
static const AttrSpec shard_attrs[] = {
    {"parts", ATTR_INT, offsetof(ShardAttrs, parts), .required = true, .min = 1, .max = INT32_MAX, .help = "ranks on the axis"},
    {0},
};

static Status shard_infer(Node *node, Arena *arena) {
  int64_t parts = ((const ShardAttrs *)node->attrs)->parts;
  const Type *flat = &node->inputs[0]->type;
  if (flat->rank != 1 || flat->dims[0] % parts)
    FAIL(MALFORMED, node->name, "'%s' must have one axis that %lld parts divide; it has rank %d and %lld elements", node->inputs[0]->name,
         (long long)parts, flat->rank, (long long)type_elems(flat));
  node->outputs[0]->type = type_vector(flat->dtype, flat->dims[0] / parts);
  return NULL;
}

static Status shard_ref(const KernelContext *c) {
  int64_t bytes = type_bytes(c->out[0].type);
  const char *from = (const char *)c->in[0].data + (c->comm ? c->comm->rank : 0) * bytes;
  if (bytes && from != c->out[0].data) memcpy(c->out[0].data, from, (size_t)bytes);
  return NULL;
}

static bool shard_alias(const Node *node, int output, int input, Alias *out) {
  if (output || input) return false;
  *out = (Alias){.kind = ALIAS_VIEW, .input = 0, .rank_relative = true};
  return true;
}

const Op op_Shard = {
    .name = "Shard", .domain = "tessera", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1,
    .attrs = shard_attrs, .attrs_bytes = sizeof(ShardAttrs), .infer = shard_infer, .run_ref = shard_ref, .alias = shard_alias, .cost = cost_move};
