// Movement between tiers as operators (Rajbhandari et al., 2021, "ZeRO-Infinity"): Offload takes a tensor from device memory to the host's or to disk,
// Fetch brings one back. Nothing else reads or writes what lies in another tier than the device. Cut and Join are windows of flat vectors in any tier:
// they move nothing, so that a long vector can be fetched, updated and offloaded window by window.
//
// A tensor on disk has no address (data NULL) but a place in the swap file of its process. Outside a plan all tiers are one memory.
#include <string.h>

#include "cost.h"
#include "kernel.h"
#include "ops.h"

static Status kind_check(const Node *node, const char *kind) {
  if (strcmp(kind, "optimizer") && strcmp(kind, "param") && strcmp(kind, "grad") && strcmp(kind, "activation"))
    FAIL(MALFORMED, node->name, "attribute kind = \"%s\" must be optimizer, param, grad or activation", kind);
  return NULL;
}

// ---- Offload ------------------------------------------------------------------------------------------------------------------

typedef struct TransferAttrs { int64_t bucket; const char *kind; } TransferAttrs;
#define TRANSFER_ATTRS                                                                                                                          \
  {"bucket", ATTR_INT, offsetof(TransferAttrs, bucket), .default_int = -1, .min = -1, .max = INT32_MAX, .help = "bucket; -1: none"},            \
  {"kind", ATTR_STRING, offsetof(TransferAttrs, kind), .required = true, .help = "optimizer, param, grad or activation: what is moved"}
static const AttrSpec fetch_attrs[] = {TRANSFER_ATTRS, {0}};

typedef struct OffloadAttrs { TransferAttrs common; const char *tier; } OffloadAttrs;
static const AttrSpec offload_attrs[] = {
    TRANSFER_ATTRS,
    {"tier", ATTR_STRING, offsetof(OffloadAttrs, tier), .required = true, .help = "where it goes: host or nvme"},
    {0},
};

static Status offload_infer(Node *node, Arena *arena) {
  const OffloadAttrs *a = node->attrs;
  TRY(kind_check(node, a->common.kind));
  int tier = enum_from_name(a->tier, (EnumName)tier_name, TIER_COUNT);
  if (tier != TIER_HOST && tier != TIER_NVME) FAIL(MALFORMED, node->name, "attribute tier = \"%s\" must be host or nvme", a->tier);
  const Value *over = node->n_inputs > 1 ? node->inputs[1] : NULL;
  char have[160], want[160];
  if (over && !type_equal(&over->type, &node->inputs[0]->type))
    FAIL(MALFORMED, node->name, "'%s', %s, cannot lie over '%s', %s", node->inputs[0]->name, type_text(&node->inputs[0]->type, have, sizeof have), over->name,
         type_text(&over->type, want, sizeof want));
  node->outputs[0]->type = node->inputs[0]->type;
  node->outputs[0]->tier = (Tier)tier;
  return NULL;
}

static Status need_swap(const KernelContext *c) {
  if (!c->swap) FAIL(USAGE, c->node->name, "the tensor lies on disk, and there is no swap file");
  return NULL;
}

static Status offload_ref(const KernelContext *c) {
  int64_t bytes = type_bytes(c->in[0].type);
  if (c->out[0].data || !bytes) {
    copy_unless_same(c->out[0].data, c->in[0].data, bytes);
    return NULL;
  }
  TRY(need_swap(c));
  return c->swap->ops->write(c->swap, c->out[0].offset_bytes, c->in[0].data, bytes);
}

// It lies where what it replaces lay.
static bool offload_alias(const Node *node, int output, int input, Alias *out) {
  if (output || input != 1) return false;
  *out = (Alias){.kind = ALIAS_UPDATE, .input = 1};
  return true;
}

const Op op_Offload = {
    .name = "Offload", .domain = "tessera", .min_inputs = 1, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .flags = OP_TRANSFER,
    .nondifferentiable = 3, .attrs = offload_attrs, .attrs_bytes = sizeof(OffloadAttrs), .infer = offload_infer, .run_ref = offload_ref,
    .alias = offload_alias, .cost = cost_move};

// ---- Fetch --------------------------------------------------------------------------------------------------------------------

static Status fetch_infer(Node *node, Arena *arena) {
  TRY(kind_check(node, ((const TransferAttrs *)node->attrs)->kind));
  node->outputs[0]->type = node->inputs[0]->type;
  return NULL;
}

static Status fetch_ref(const KernelContext *c) {
  int64_t bytes = type_bytes(c->in[0].type);
  if (c->in[0].data || !bytes) {
    copy_unless_same(c->out[0].data, c->in[0].data, bytes);
    return NULL;
  }
  TRY(need_swap(c));
  return c->swap->ops->read(c->swap, c->in[0].offset_bytes, c->out[0].data, bytes);
}

const Op op_Fetch = {
    .name = "Fetch", .domain = "tessera", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1, .flags = OP_TRANSFER,
    .nondifferentiable = 1, .attrs = fetch_attrs, .attrs_bytes = sizeof(TransferAttrs), .infer = fetch_infer, .run_ref = fetch_ref, .cost = cost_move};

// ---- Cut ----------------------------------------------------------------------------------------------------------------------

typedef struct CutAttrs { int64_t elems; } CutAttrs;
static const AttrSpec cut_attrs[] = {
    {"elems", ATTR_INT, offsetof(CutAttrs, elems), .required = true, .min = 1, .max = INT64_MAX, .help = "elements of each part but the last"},
    {0},
};

static Status flat_check(const Node *node, const Value *v) {
  if (v->type.rank != 1) FAIL(MALFORMED, node->name, "'%s' must have one axis; it has %d", v->name, v->type.rank);
  return NULL;
}

static Status cut_infer(Node *node, Arena *arena) {
  const Value *flat = node->inputs[0];
  TRY(flat_check(node, flat));
  int64_t elems = ((const CutAttrs *)node->attrs)->elems, whole = flat->type.dims[0], parts = whole / elems + (whole % elems != 0);
  if (node->n_outputs != parts)
    FAIL(MALFORMED, node->name, "'%s' of %lld elements has %lld parts of %lld, not %d", flat->name, (long long)whole, (long long)parts, (long long)elems,
         node->n_outputs);
  for (int o = 0; o < node->n_outputs; o++) {
    int64_t left = whole - o * elems;
    if (!node->outputs[o]) continue;
    node->outputs[o]->type = type_vector(flat->type.dtype, left < elems ? left : elems);
    node->outputs[o]->tier = flat->tier;
  }
  return NULL;
}

static int64_t cut_offset(const Node *node, int output) {
  return output * ((const CutAttrs *)node->attrs)->elems * dtype_bytes(node->inputs[0]->type.dtype);
}

static Status cut_ref(const KernelContext *c) {
  for (int o = 0; o < c->n_out; o++)
    if (has_output(c, o)) copy_unless_same(c->out[o].data, (const char *)c->in[0].data + cut_offset(c->node, o), type_bytes(c->out[o].type));
  return NULL;
}

static bool cut_alias(const Node *node, int output, int input, Alias *out) {
  if (input) return false;
  *out = (Alias){.kind = ALIAS_VIEW, .input = 0, .offset_bytes = cut_offset(node, output)};
  return true;
}

const Op op_Cut = {
    .name = "Cut", .domain = "tessera", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = VARIADIC, .nondifferentiable = 1,
    .attrs = cut_attrs, .attrs_bytes = sizeof(CutAttrs), .infer = cut_infer, .run_ref = cut_ref, .alias = cut_alias, .cost = cost_move};

// ---- Join ---------------------------------------------------------------------------------------------------------------------

static Status join_infer(Node *node, Arena *arena) {
  int64_t whole = 0;
  for (int i = 0; i < node->n_inputs; i++) {
    const Value *part = node->inputs[i];
    if (!part) FAIL(MALFORMED, node->name, "input %d is absent", i);
    TRY(flat_check(node, part));
    if (part->type.dtype != node->inputs[0]->type.dtype || part->tier != node->inputs[0]->tier)
      FAIL(MALFORMED, node->name, "'%s' is %s in tier %s, the first part %s in tier %s", part->name, dtype_name(part->type.dtype), tier_name(part->tier),
           dtype_name(node->inputs[0]->type.dtype), tier_name(node->inputs[0]->tier));
    if (__builtin_add_overflow(whole, part->type.dims[0], &whole)) FAIL(MALFORMED, node->name, "its parts have more elements than can be counted");
  }
  node->outputs[0]->type = type_vector(node->inputs[0]->type.dtype, whole);
  node->outputs[0]->tier = node->inputs[0]->tier;
  return NULL;
}

static Status join_ref(const KernelContext *c) {
  char *at = c->out[0].data;
  for (int i = 0; i < c->n_in; i++) {
    int64_t bytes = type_bytes(c->in[i].type);
    copy_unless_same(at, c->in[i].data, bytes);
    at += bytes;
  }
  return NULL;
}

static bool join_alias(const Node *node, int output, int input, Alias *out) {
  if (output || input >= node->n_inputs) return false;
  int64_t offset = 0;
  for (int i = 0; i < input; i++) offset += value_bytes(node->inputs[i]);
  *out = (Alias){.kind = ALIAS_PART, .input = input, .offset_bytes = offset};
  return true;
}

const Op op_Join = {
    .name = "Join", .domain = "tessera", .min_inputs = 1, .max_inputs = VARIADIC, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = ~0u,
    .infer = join_infer, .run_ref = join_ref, .alias = join_alias, .cost = cost_move};
