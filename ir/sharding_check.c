// Are multi-device annotations of a model right? Nobody else checks them. Every defect has a code of its own.
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph.h"
#include "sharding.h"

typedef struct Check {
  const Graph *graph;
  const Node *node;                    // NULL: configurations of the model
  Arena *arena;
  ShardingReport report;
  void *self;
  const DeviceConfiguration *in;       // configuration that the node's annotation refers to; NULL: unknown
  const ShardingSpec *spec;
  const Value *tensor;
} Check;

static void defect(const Check *c, const char *code, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void defect(const Check *c, const char *code, const char *format, ...) {
  char what[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(what, sizeof what, format, args);
  va_end(args);
  c->report(c->self, c->node, code, what);
}

static const char *shown(const char *name) { return name && *name ? name : "(none)"; }

// ---- Configurations -----------------------------------------------------------------------------------------------------------

static const DeviceConfiguration *find_configuration(const Graph *g, const char *name) {
  for (size_t i = 0; name && i < g->n_configurations; i++)
    if (g->configurations[i].name && !strcmp(g->configurations[i].name, name)) return &g->configurations[i];
  return NULL;
}

void sharding_check_configurations(const Graph *graph, Arena *arena, ShardingReport report, void *self) {
  const Check c = {.graph = graph, .arena = arena, .report = report, .self = self};
  for (size_t i = 0; i < graph->n_configurations; i++) {
    const DeviceConfiguration *k = &graph->configurations[i];
    if (!k->name || !*k->name) defect(&c, "configuration-unnamed", "device configuration %zu has no name", i);
    else if (find_configuration(graph, k->name) != k) defect(&c, "configuration-repeated", "device configuration '%s' is there twice", k->name);
    if (k->n_devices == SHARDING_ABSENT || k->n_devices < 1)
      defect(&c, "device-count", "device configuration '%s': the number of devices is %s; it must be at least 1", shown(k->name),
             k->n_devices == SHARDING_ABSENT ? "missing" : arena_printf(arena, "%" PRId64, k->n_devices));
    else if (k->n_names && (int64_t)k->n_names != k->n_devices)
      defect(&c, "device-names", "device configuration '%s' names %zu devices and has %" PRId64, shown(k->name), k->n_names, k->n_devices);
  }
}

// ---- Devices of a spec --------------------------------------------------------------------------------------------------------

static void check_device(const Check *c, int64_t device, int64_t group, bool *seen) {
  if (!c->in || c->in->n_devices < 1) return;
  const char *where = group == SHARDING_ABSENT ? "" : arena_printf(c->arena, " (of group %" PRId64 ")", group);
  if (device < 0 || device >= c->in->n_devices)
    defect(c, "device-range", "tensor '%s': device %" PRId64 "%s is outside [0, %" PRId64 ") of configuration '%s'", c->tensor->name, device, where,
           c->in->n_devices, c->in->name);
  else if (seen && seen[device]) defect(c, "device-repeated", "tensor '%s': device %" PRId64 "%s holds two shards", c->tensor->name, device, where);
  else if (seen) seen[device] = true;
}

typedef struct GroupUse { const DeviceGroup *group; bool used; } GroupUse;

static int compare_groups(const void *a, const void *b) {
  const GroupUse *x = a, *y = b;
  if (x->group->key != y->group->key) return x->group->key < y->group->key ? -1 : 1;
  return x->group < y->group ? -1 : x->group > y->group;
}

// The groups by key, each key once.
static size_t sort_groups(const Check *c, GroupUse **out) {
  const ShardingSpec *s = c->spec;
  GroupUse *uses = ARENA_ARRAY(c->arena, GroupUse, s->n_groups);
  for (size_t i = 0; i < s->n_groups; i++) uses[i].group = &s->groups[i];
  if (s->n_groups) qsort(uses, s->n_groups, sizeof *uses, compare_groups);
  size_t n = 0;
  for (size_t i = 0; i < s->n_groups; i++) {
    if (n && uses[n - 1].group->key == uses[i].group->key)
      defect(c, "group-repeated", "tensor '%s': device group %" PRId64 " is there twice", c->tensor->name, uses[i].group->key);
    else uses[n++] = uses[i];
  }
  *out = uses;
  return n;
}

static GroupUse *find_group(GroupUse *uses, size_t n, int64_t key) {
  size_t low = 0, high = n;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (uses[middle].group->key < key) low = middle + 1;
    else high = middle;
  }
  return low < n && uses[low].group->key == key ? &uses[low] : NULL;
}

static void check_devices(const Check *c) {
  enum { SEEN_MAX = 1 << 20 };                          // more devices than that are checked for range only
  const ShardingSpec *s = c->spec;
  bool *seen = c->in && c->in->n_devices > 0 && c->in->n_devices <= SEEN_MAX ? ARENA_ARRAY(c->arena, bool, c->in->n_devices) : NULL;
  GroupUse *groups;
  size_t n_groups = sort_groups(c, &groups);
  if (!s->n_devices) defect(c, "devices-missing", "tensor '%s': the sharding names no device", c->tensor->name);
  for (size_t i = 0; i < s->n_devices; i++) {
    GroupUse *g = find_group(groups, n_groups, s->devices[i]);
    if (g && g->used) defect(c, "device-repeated", "tensor '%s': device group %" PRId64 " holds two shards", c->tensor->name, g->group->key);
    for (size_t k = 0; g && !g->used && k < g->group->n_devices; k++) check_device(c, g->group->devices[k], g->group->key, seen);
    if (g) g->used = true;
    else check_device(c, s->devices[i], SHARDING_ABSENT, seen);
  }
  for (size_t i = 0; i < n_groups; i++) {
    int64_t key = groups[i].group->key;
    if (!groups[i].group->n_devices) defect(c, "group-empty", "tensor '%s': device group %" PRId64 " has no devices", c->tensor->name, key);
    else if (!groups[i].used) defect(c, "group-unused", "tensor '%s': device group %" PRId64 " holds no shard", c->tensor->name, key);
  }
}

// ---- Axes of a spec -----------------------------------------------------------------------------------------------------------

static int64_t times(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

// Shards along the axis; 0 where a defect leaves that open.
static int64_t check_axis(const Check *c, const ShardedAxis *a, int64_t dim) {
  const char *tensor = c->tensor->name;
  int64_t shards = 1, size = 1;
  if (!a->n_parts) defect(c, "shards-missing", "tensor '%s': axis %" PRId64 " is sharded, and nothing says how", tensor, a->axis);
  for (size_t i = 0; i < a->n_parts; i++) {
    const ShardPart *p = &a->parts[i];
    if (p->shards == SHARDING_ABSENT || p->shards < 1) {
      defect(c, "shard-count", "tensor '%s': the number of shards on axis %" PRId64 " is %s; it must be at least 1", tensor, a->axis,
             p->shards == SHARDING_ABSENT ? "missing" : arena_printf(c->arena, "%" PRId64, p->shards));
      shards = 0;
      size = -1;
      continue;
    }
    shards = times(shards, p->shards);
    int64_t n = p->size != SHARDING_ABSENT ? p->size : a->n_parts == 1 ? dim : -1;
    size = n < 0 || size < 0 ? -1 : times(size, n);
    if (n >= 0 && n % p->shards)
      defect(c, "indivisible", "tensor '%s': %" PRId64 " elements on axis %" PRId64 " do not make %" PRId64 " equal shards", tensor, n, a->axis,
             p->shards);
  }
  if (a->n_parts && size >= 0 && dim >= 0 && size != dim)
    defect(c, "dimension", "tensor '%s': the sharding of axis %" PRId64 " covers %" PRId64 " elements, the axis has %" PRId64, tensor, a->axis, size,
           dim);
  return a->n_parts ? shards : 0;
}

static void check_axes(const Check *c) {
  const ShardingSpec *s = c->spec;
  const Type *type = c->tensor->type.dtype != DTYPE_NONE ? &c->tensor->type : NULL;
  bool taken[RANK_MAX] = {0};
  int64_t shards = 1;
  for (size_t i = 0; i < s->n_axes; i++) {
    const ShardedAxis *a = &s->axes[i];
    int64_t at = type && a->axis < 0 ? a->axis + type->rank : a->axis, dim = -1;
    if (a->axis == SHARDING_ABSENT) {
      defect(c, "axis-missing", "tensor '%s': a sharding does not say of which axis", c->tensor->name);
      shards = 0;
      continue;
    }
    if (type && (at < 0 || at >= type->rank)) {
      defect(c, "axis-range", "tensor '%s': axis %" PRId64 " of a tensor with %d dimensions", c->tensor->name, a->axis, type->rank);
    } else if (at >= 0 && at < RANK_MAX) {
      if (taken[at]) defect(c, "axis-repeated", "tensor '%s': axis %" PRId64 " is sharded twice", c->tensor->name, a->axis);
      taken[at] = true;
      if (type) dim = type->dims[at];
    }
    shards = times(shards, check_axis(c, a, dim));
  }
  if (shards && s->n_devices && (int64_t)s->n_devices != shards)
    defect(c, "shards-devices", "tensor '%s' is cut into %" PRId64 " shards for %zu devices or groups of devices", c->tensor->name, shards,
           s->n_devices);
}

// ---- A node -------------------------------------------------------------------------------------------------------------------

static bool same_ints(const int64_t *a, size_t n_a, const int64_t *b, size_t n_b) { return n_a == n_b && (!n_a || !memcmp(a, b, n_a * sizeof *a)); }

static bool same_spec(const ShardingSpec *a, const ShardingSpec *b) {
  if (a->n_groups != b->n_groups || a->n_axes != b->n_axes || !same_ints(a->devices, a->n_devices, b->devices, b->n_devices)) return false;
  for (size_t i = 0; i < a->n_groups; i++) {
    const DeviceGroup *x = &a->groups[i], *y = &b->groups[i];
    if (x->key != y->key || !same_ints(x->devices, x->n_devices, y->devices, y->n_devices)) return false;
  }
  for (size_t i = 0; i < a->n_axes; i++) {
    if (a->axes[i].axis != b->axes[i].axis || a->axes[i].n_parts != b->axes[i].n_parts) return false;
    for (size_t k = 0; k < a->axes[i].n_parts; k++)
      if (a->axes[i].parts[k].shards != b->axes[i].parts[k].shards) return false;
  }
  return true;
}

static void check_spec(Check *c, const NodeSharding *s, size_t at) {
  c->spec = &s->specs[at];
  c->tensor = sharding_tensor(c->node, c->spec);
  if (!c->tensor) {
    defect(c, "tensor-unknown", "tensor '%s' of a sharding is neither input nor output of the node", shown(c->spec->tensor));
    return;
  }
  for (size_t i = 0; i < at; i++)
    if (s->specs[i].slot == c->spec->slot) {
      bool same = same_spec(&s->specs[i], c->spec);
      defect(c, same ? "sharding-repeated" : "sharding-contradicts", "tensor '%s' is sharded %s in configuration '%s'", c->tensor->name,
             same ? "twice" : "in two ways", shown(s->configuration));
      break;
    }
  check_devices(c);
  check_axes(c);
}

static int64_t stage_in(const Node *node, const char *configuration) {
  for (size_t i = 0; node && i < node->n_shardings; i++)
    if (node->shardings[i].configuration && !strcmp(node->shardings[i].configuration, configuration)) return node->shardings[i].stage;
  return SHARDING_ABSENT;
}

static void check_stage(const Check *c, const NodeSharding *s) {
  if (s->stage == SHARDING_ABSENT) return;
  if (s->stage < 0) {
    defect(c, "stage-range", "pipeline stage %" PRId64 " in configuration '%s'", s->stage, shown(s->configuration));
    return;
  }
  for (int i = 0; s->configuration && i < c->node->n_inputs; i++) {
    const Node *from = c->node->inputs[i] ? c->node->inputs[i]->producer : NULL;
    int64_t before = stage_in(from, s->configuration);
    if (before != SHARDING_ABSENT && before > s->stage)
      defect(c, "stage-order", "pipeline stage %" PRId64 " in configuration '%s' needs '%s', which node '%s' makes in stage %" PRId64, s->stage,
             s->configuration, c->node->inputs[i]->name, from->name, before);
  }
}

void sharding_check_node(const Graph *graph, const Node *node, Arena *arena, ShardingReport report, void *self) {
  Check c = {.graph = graph, .node = node, .arena = arena, .report = report, .self = self};
  for (size_t i = 0; i < node->n_shardings; i++) {
    const NodeSharding *s = &node->shardings[i];
    c.in = find_configuration(graph, s->configuration);
    if (!c.in) defect(&c, "configuration-unknown", "device configuration '%s' is not one of the model's", shown(s->configuration));
    for (size_t k = 0; k < i; k++)
      if (s->configuration && node->shardings[k].configuration && !strcmp(s->configuration, node->shardings[k].configuration)) {
        defect(&c, "annotation-repeated", "the node is annotated twice for device configuration '%s'", s->configuration);
        break;
      }
    check_stage(&c, s);
    if (s->n_specs > 2 * ((size_t)node->n_inputs + (size_t)node->n_outputs)) {     // far too many: this bounds the time of the loops below
      defect(&c, "sharding-repeated", "%zu shardings in configuration '%s' for %d inputs and %d outputs", s->n_specs, shown(s->configuration),
             node->n_inputs, node->n_outputs);
      continue;
    }
    for (size_t k = 0; k < s->n_specs; k++) check_spec(&c, s, k);
  }
}
