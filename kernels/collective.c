// Collectives as operators: they check their sizes against the endpoint and hand the work to it. Without an endpoint (outside a plan)
// there is one rank.
#include <string.h>

#include "kernel.h"
#include "ops.h"
#include "rank_tree.h"

typedef struct CollectiveAttrs { int64_t axis, parts, bucket; const char *kind; } CollectiveAttrs;
// Every row's struct begins with CollectiveAttrs.
#define COLLECTIVE_ATTRS                                                                                                                        \
  {"axis", ATTR_INT, offsetof(CollectiveAttrs, axis), .min = 0, .max = MESH_AXES_MAX - 1, .help = "mesh axis"},                                 \
  {"parts", ATTR_INT, offsetof(CollectiveAttrs, parts), .required = true, .min = 1, .max = MESH_RANKS_MAX, .help = "ranks on the axis"},              \
  {"bucket", ATTR_INT, offsetof(CollectiveAttrs, bucket), .default_int = -1, .min = -1, .max = INT32_MAX, .help = "bucket; -1: none"},           \
  {"kind", ATTR_STRING, offsetof(CollectiveAttrs, kind), .required = true, .help = "param, grad, frozen, control or optimizer: how the bytes are counted"}
static const AttrSpec collective_attrs[] = {COLLECTIVE_ATTRS, {0}};

typedef struct ScatterAttrs { CollectiveAttrs common; int64_t sums; } ScatterAttrs;
static const AttrSpec scatter_attrs[] = {
    COLLECTIVE_ATTRS,
    {"sums", ATTR_INT, offsetof(ScatterAttrs, sums), .min = 0, .max = 1, .help = "1: the result has the type that 16-bit floats are added in; more is added to it"},
    {0},
};

static Status collective_check(const Node *node) {
  const char *kind = ((const CollectiveAttrs *)node->attrs)->kind;
  if (strcmp(kind, "param") && strcmp(kind, "grad") && strcmp(kind, "frozen") && strcmp(kind, "control") && strcmp(kind, "optimizer"))
    FAIL(MALFORMED, node->name, "attribute kind = \"%s\" must be param, grad, frozen, control or optimizer", kind);
  return NULL;
}

static Status flat_check(const Node *node, int64_t parts) {
  const Type *t = &node->inputs[0]->type;
  if (t->rank != 1 || t->dims[0] % parts)
    FAIL(MALFORMED, node->name, "'%s' must have one axis that %lld parts divide; it has rank %d and %lld elements", node->inputs[0]->name,
         (long long)parts, t->rank, (long long)type_elems(t));
  return NULL;
}

static Status endpoint_check(const KernelContext *c) {
  const CollectiveAttrs *a = c->node->attrs;
  int size = c->comm ? c->comm->size : 1;
  if (a->parts != size) FAIL(MALFORMED, c->node->name, "planned for %lld ranks, run by %d", (long long)a->parts, size);
  return NULL;
}

static int64_t parts_of(const Node *node) { return ((const CollectiveAttrs *)node->attrs)->parts; }

// ---- AllGather ----------------------------------------------------------------------------------------------------------------

static Status all_gather_infer(Node *node, Arena *arena) {
  int64_t parts = ((const CollectiveAttrs *)node->attrs)->parts, whole;
  const Type *shard = &node->inputs[0]->type;
  TRY(collective_check(node));
  TRY(flat_check(node, 1));
  if (__builtin_mul_overflow(shard->dims[0], parts, &whole))
    FAIL(MALFORMED, node->name, "%lld elements x %lld parts is too large", (long long)shard->dims[0], (long long)parts);
  node->outputs[0]->type = type_vector(shard->dtype, whole);
  return NULL;
}

static Status all_gather_ref(const KernelContext *c) {
  TRY(endpoint_check(c));
  if (!c->comm) {
    copy_unless_same(c->out[0].data, c->in[0].data, type_bytes(c->in[0].type));
    return NULL;
  }
  int axis = (int)((const CollectiveAttrs *)c->node->attrs)->axis;
  return c->comm->ops->all_gather(c->comm, axis, c->in[0].data, c->out[0].data, in_elems(c, 0), c->in[0].type->dtype);
}

static int64_t all_gather_sent_bytes(const Node *node) { return comm_shard_bytes(parts_of(node), value_bytes(node->inputs[0])); }

static int64_t all_gather_wire_bytes(const Node *node, int processes, int each) {
  return comm_gather_wire_bytes(processes, each, value_bytes(node->inputs[0]));
}

const Op op_AllGather = {
    .name = "AllGather", .domain = "tessera", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1, .flags = OP_COLLECTIVE,
    .attrs = collective_attrs, .attrs_bytes = sizeof(CollectiveAttrs), .infer = all_gather_infer, .run_ref = all_gather_ref, .sent_bytes = all_gather_sent_bytes,
    .wire_bytes = all_gather_wire_bytes};

// ---- ReduceScatter ------------------------------------------------------------------------------------------------------------

static Status reduce_scatter_infer(Node *node, Arena *arena) {
  int64_t parts = ((const CollectiveAttrs *)node->attrs)->parts;
  TRY(collective_check(node));
  TRY(flat_check(node, parts));
  Dtype dtype = node->inputs[0]->type.dtype;
  if (((const ScatterAttrs *)node->attrs)->sums) dtype = dtype_of_sums(dtype);
  node->outputs[0]->type = type_vector(dtype, node->inputs[0]->type.dims[0] / parts);
  return NULL;
}

static Status reduce_scatter_ref(const KernelContext *c) {
  TRY(endpoint_check(c));
  const ScatterAttrs *a = c->node->attrs;
  Dtype dtype = c->in[0].type->dtype;
  if (c->comm) return c->comm->ops->reduce_scatter(c->comm, (int)a->common.axis, c->in[0].data, c->out[0].data, out_elems(c, 0), dtype, a->sums);
  if (dtype == c->out[0].type->dtype) copy_unless_same(c->out[0].data, c->in[0].data, type_bytes(c->out[0].type));
  else elements_convert(c->out[0].data, c->out[0].type->dtype, c->in[0].data, dtype, out_elems(c, 0));
  return NULL;
}

// The part may lie inside the input at the rank's own place.
static bool reduce_scatter_alias(const Node *node, int output, int input, Alias *out) {
  if (output || input || node->inputs[0]->type.dtype != node->outputs[0]->type.dtype) return false;
  *out = (Alias){.kind = ALIAS_INPLACE, .input = 0, .rank_relative = true};
  return true;
}

static int64_t reduce_scatter_sent_bytes(const Node *node) { return comm_shard_bytes(parts_of(node), value_bytes(node->inputs[0]) / parts_of(node)); }

static int64_t reduce_scatter_wire_bytes(const Node *node, int processes, int each) {
  return comm_scatter_wire_bytes(processes, each, type_elems(&node->inputs[0]->type) / parts_of(node), node->inputs[0]->type.dtype);
}

const Op op_ReduceScatter = {
    .name = "ReduceScatter", .domain = "tessera", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1, .flags = OP_COLLECTIVE | OP_SUMS_RANKS,
    .attrs = scatter_attrs, .attrs_bytes = sizeof(ScatterAttrs), .infer = reduce_scatter_infer, .run_ref = reduce_scatter_ref,
    .alias = reduce_scatter_alias, .sent_bytes = reduce_scatter_sent_bytes,
    .wire_bytes = reduce_scatter_wire_bytes};

// ---- AllReduce ----------------------------------------------------------------------------------------------------------------

static Status all_reduce_infer(Node *node, Arena *arena) {
  TRY(collective_check(node));
  node->outputs[0]->type = node->inputs[0]->type;
  return NULL;
}

static Status all_reduce_ref(const KernelContext *c) {
  TRY(endpoint_check(c));
  copy_unless_same(c->out[0].data, c->in[0].data, type_bytes(c->in[0].type));
  if (!c->comm) return NULL;
  int axis = (int)((const CollectiveAttrs *)c->node->attrs)->axis;
  return c->comm->ops->all_reduce(c->comm, axis, c->out[0].data, in_elems(c, 0), c->in[0].type->dtype);
}

static bool all_reduce_alias(const Node *node, int output, int input, Alias *out) {
  if (output || input) return false;
  *out = (Alias){.kind = ALIAS_INPLACE, .input = 0};
  return true;
}

static int64_t all_reduce_sent_bytes(const Node *node) { return comm_all_reduce_bytes(parts_of(node), value_bytes(node->inputs[0])); }

static int64_t all_reduce_wire_bytes(const Node *node, int processes, int each) {
  return comm_all_reduce_wire_bytes(processes, each, type_elems(&node->inputs[0]->type), node->inputs[0]->type.dtype);
}

const Op op_AllReduce = {
    .name = "AllReduce", .domain = "tessera", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1, .flags = OP_COLLECTIVE | OP_SUMS_RANKS,
    .attrs = collective_attrs, .attrs_bytes = sizeof(CollectiveAttrs), .infer = all_reduce_infer, .run_ref = all_reduce_ref,
    .alias = all_reduce_alias, .sent_bytes = all_reduce_sent_bytes,
    .wire_bytes = all_reduce_wire_bytes};

// ---- Release ------------------------------------------------------------------------------------------------------------------

typedef struct ReleaseAttrs { int64_t axis, bucket; } ReleaseAttrs;
static const AttrSpec release_attrs[] = {
    {"axis", ATTR_INT, offsetof(ReleaseAttrs, axis), .min = 0, .max = MESH_AXES_MAX - 1, .help = "mesh axis"},
    {"bucket", ATTR_INT, offsetof(ReleaseAttrs, bucket), .default_int = -1, .min = -1, .max = INT32_MAX, .help = "bucket; -1: none"},
    {0},
};

static Status release_infer(Node *node, Arena *arena) { return NULL; }
static Status release_ref(const KernelContext *c) { return NULL; }   // its guard is the executor's

const Op op_Release = {
    .name = "Release", .domain = "tessera", .min_inputs = 1, .max_inputs = 1, .min_outputs = 0, .max_outputs = 0, .flags = OP_SIDE_EFFECT,
    .attrs = release_attrs, .attrs_bytes = sizeof(ReleaseAttrs), .infer = release_infer, .run_ref = release_ref};
