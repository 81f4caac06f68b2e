#include "sharding.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "graph.h"

// Which slot of the node is called `tensor`; SHARDING_NO_SLOT: none.
static int sharding_slot(const Node *node, const char *tensor) {
  for (int i = 0; i < node->n_inputs; i++)
    if (node->inputs[i] && !strcmp(node->inputs[i]->name, tensor)) return i;
  for (int i = 0; i < node->n_outputs; i++)
    if (node->outputs[i] && !strcmp(node->outputs[i]->name, tensor)) return ~i;
  return SHARDING_NO_SLOT;
}

const Value *sharding_tensor(const Node *node, const ShardingSpec *spec) {
  if (spec->slot == SHARDING_NO_SLOT) return NULL;
  if (spec->slot >= 0) return spec->slot < node->n_inputs ? node->inputs[spec->slot] : NULL;
  return ~spec->slot < node->n_outputs ? node->outputs[~spec->slot] : NULL;
}

// ---- To JSON ------------------------------------------------------------------------------------------------------------------

static void put_int(json_t *object, const char *key, int64_t value) {
  if (value != SHARDING_ABSENT) json_object_set_new(object, key, json_integer((json_int_t)value));
}

static void put_text(json_t *object, const char *key, const char *text) {
  if (text) json_object_set_new(object, key, json_string(text));
}

static void put_ints(json_t *object, const char *key, const int64_t *items, size_t n) {
  json_t *list = json_array();
  for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer((json_int_t)items[i]));
  if (n) json_object_set(object, key, list);
  json_decref(list);
}

static json_t *axis_json(const ShardedAxis *axis) {
  json_t *object = json_object(), *parts = json_array();
  put_int(object, "axis", axis->axis);
  for (size_t i = 0; i < axis->n_parts; i++) {
    json_t *part = json_object();
    put_int(part, "dim_value", axis->parts[i].size);
    put_text(part, "dim_param", axis->parts[i].symbol);
    put_int(part, "num_shards", axis->parts[i].shards);
    json_array_append_new(parts, part);
  }
  json_object_set_new(object, "simple_sharding", parts);
  return object;
}

const char *sharding_tensor_name(const Node *node, const ShardingSpec *spec) {
  const Value *v = sharding_tensor(node, spec);
  return v ? v->name : spec->slot == SHARDING_NO_SLOT ? spec->tensor : NULL;
}

static json_t *spec_json(const Node *node, const ShardingSpec *spec) {
  json_t *object = json_object(), *groups = json_array(), *axes = json_array();
  put_text(object, "tensor_name", sharding_tensor_name(node, spec));
  put_ints(object, "device", spec->devices, spec->n_devices);
  for (size_t i = 0; i < spec->n_groups; i++) {
    json_t *group = json_object();
    put_int(group, "key", spec->groups[i].key);
    put_ints(group, "value", spec->groups[i].devices, spec->groups[i].n_devices);
    json_array_append_new(groups, group);
  }
  if (spec->n_groups) json_object_set(object, "index_to_device_group_map", groups);
  json_decref(groups);
  for (size_t i = 0; i < spec->n_axes; i++) json_array_append_new(axes, axis_json(&spec->axes[i]));
  if (spec->n_axes) json_object_set(object, "sharded_dim", axes);
  json_decref(axes);
  return object;
}

static const char *dump(json_t *json, Arena *arena) {
  char *text = json_dumps(json, JSON_COMPACT);
  json_decref(json);
  const char *copy = arena_string(arena, text);
  free(text);
  return copy;
}

const char *sharding_configurations_text(const Graph *graph, Arena *arena) {
  if (!graph->n_configurations) return NULL;
  json_t *list = json_array();
  for (size_t i = 0; i < graph->n_configurations; i++) {
    const DeviceConfiguration *c = &graph->configurations[i];
    json_t *object = json_object(), *names = json_array();
    put_text(object, "name", c->name);
    put_int(object, "num_devices", c->n_devices);
    for (size_t k = 0; k < c->n_names; k++) json_array_append_new(names, json_string(c->names[k]));
    if (c->n_names) json_object_set(object, "device", names);
    json_decref(names);
    json_array_append_new(list, object);
  }
  return dump(list, arena);
}

const char *sharding_node_text(const Node *node, Arena *arena) {
  if (!node->n_shardings) return NULL;
  json_t *list = json_array();
  for (size_t i = 0; i < node->n_shardings; i++) {
    const NodeSharding *s = &node->shardings[i];
    json_t *object = json_object(), *specs = json_array();
    put_text(object, "configuration_id", s->configuration);
    put_int(object, "pipeline_stage", s->stage);
    for (size_t k = 0; k < s->n_specs; k++)
      if (sharding_tensor_name(node, &s->specs[k])) json_array_append_new(specs, spec_json(node, &s->specs[k]));
    if (json_array_size(specs)) json_object_set(object, "sharding_spec", specs);
    json_decref(specs);
    json_array_append_new(list, object);
  }
  return dump(list, arena);
}

// ---- From JSON ----------------------------------------------------------------------------------------------------------------

// Absent members give ABSENT, NULL and empty lists; a member of another kind is an error.
typedef struct JsonReader { Arena *arena; bool wrong; } JsonReader;

static int64_t get_int(JsonReader *r, const json_t *object, const char *key) {
  const json_t *v = json_object_get(object, key);
  if (v && !json_is_integer(v)) r->wrong = true;
  return json_is_integer(v) ? (int64_t)json_integer_value(v) : SHARDING_ABSENT;
}

static const char *get_text(JsonReader *r, const json_t *object, const char *key) {
  const json_t *v = json_object_get(object, key);
  if (v && !json_is_string(v)) r->wrong = true;
  return json_is_string(v) ? arena_string(r->arena, json_string_value(v)) : NULL;
}

static const json_t *get_list(JsonReader *r, const json_t *object, const char *key, size_t *n) {
  const json_t *v = json_object_get(object, key);
  if (v && !json_is_array(v)) r->wrong = true;
  *n = json_array_size(v);
  return v;
}

static const int64_t *get_ints(JsonReader *r, const json_t *object, const char *key, size_t *n) {
  const json_t *list = get_list(r, object, key, n);
  int64_t *items = ARENA_ARRAY(r->arena, int64_t, *n);
  for (size_t i = 0; i < *n; i++) {
    if (!json_is_integer(json_array_get(list, i))) r->wrong = true;
    items[i] = (int64_t)json_integer_value(json_array_get(list, i));
  }
  return items;
}

static ShardedAxis get_axis(JsonReader *r, const json_t *object) {
  ShardedAxis axis = {.axis = get_int(r, object, "axis")};
  const json_t *list = get_list(r, object, "simple_sharding", &axis.n_parts);
  ShardPart *parts = ARENA_ARRAY(r->arena, ShardPart, axis.n_parts);
  for (size_t i = 0; i < axis.n_parts; i++) {
    const json_t *part = json_array_get(list, i);
    parts[i] = (ShardPart){get_int(r, part, "dim_value"), get_text(r, part, "dim_param"), get_int(r, part, "num_shards")};
  }
  axis.parts = parts;
  return axis;
}

static ShardingSpec get_spec(JsonReader *r, const Node *node, const json_t *object) {
  ShardingSpec spec = {.tensor = get_text(r, object, "tensor_name")};
  spec.slot = spec.tensor ? sharding_slot(node, spec.tensor) : SHARDING_NO_SLOT;
  spec.devices = get_ints(r, object, "device", &spec.n_devices);
  const json_t *list = get_list(r, object, "index_to_device_group_map", &spec.n_groups);
  DeviceGroup *groups = ARENA_ARRAY(r->arena, DeviceGroup, spec.n_groups);
  for (size_t i = 0; i < spec.n_groups; i++) {
    const json_t *group = json_array_get(list, i);
    groups[i].key = get_int(r, group, "key");
    groups[i].devices = get_ints(r, group, "value", &groups[i].n_devices);
  }
  spec.groups = groups;
  list = get_list(r, object, "sharded_dim", &spec.n_axes);
  ShardedAxis *axes = ARENA_ARRAY(r->arena, ShardedAxis, spec.n_axes);
  for (size_t i = 0; i < spec.n_axes; i++) axes[i] = get_axis(r, json_array_get(list, i));
  spec.axes = axes;
  return spec;
}

static Status read_list(const char *text, json_t **out) {
  json_error_t error;
  *out = json_loads(text, JSON_REJECT_DUPLICATES, &error);
  if (!*out || !json_is_array(*out)) {
    json_decref(*out);
    FAIL(MALFORMED, NULL, "device configurations are no JSON list%s%s", error.text[0] ? ": " : "", error.text);
  }
  return STATUS_OK;
}

static Status finish(json_t *json, const JsonReader *r) {
  json_decref(json);
  if (r->wrong) FAIL(MALFORMED, NULL, "a device configuration has a member that is not of its kind");
  return STATUS_OK;
}

Status sharding_read_configurations(Graph *graph, const char *text) {
  JsonReader r = {.arena = graph->arena};
  json_t *list;
  TRY(read_list(text, &list));
  size_t n = json_array_size(list);
  DeviceConfiguration *configurations = ARENA_ARRAY(graph->arena, DeviceConfiguration, n);
  for (size_t i = 0; i < n; i++) {
    DeviceConfiguration *c = &configurations[i];
    const json_t *object = json_array_get(list, i);
    *c = (DeviceConfiguration){.name = get_text(&r, object, "name"), .n_devices = get_int(&r, object, "num_devices")};
    const json_t *names = get_list(&r, object, "device", &c->n_names);
    const char **copies = ARENA_ARRAY(graph->arena, const char *, c->n_names);
    for (size_t k = 0; k < c->n_names; k++) {
      const char *name = json_string_value(json_array_get(names, k));
      if (!name) r.wrong = true;
      copies[k] = arena_string(graph->arena, name ? name : "");
    }
    c->names = copies;
  }
  graph->configurations = configurations;
  graph->n_configurations = n;
  return finish(list, &r);
}

Status sharding_read_node(Graph *graph, Node *node, const char *text) {
  JsonReader r = {.arena = graph->arena};
  json_t *list;
  TRY(read_list(text, &list));
  size_t n = json_array_size(list);
  NodeSharding *shardings = ARENA_ARRAY(graph->arena, NodeSharding, n);
  for (size_t i = 0; i < n; i++) {
    NodeSharding *s = &shardings[i];
    const json_t *object = json_array_get(list, i);
    *s = (NodeSharding){.configuration = get_text(&r, object, "configuration_id"), .stage = get_int(&r, object, "pipeline_stage")};
    const json_t *specs = get_list(&r, object, "sharding_spec", &s->n_specs);
    ShardingSpec *items = ARENA_ARRAY(graph->arena, ShardingSpec, s->n_specs);
    for (size_t k = 0; k < s->n_specs; k++) items[k] = get_spec(&r, node, json_array_get(specs, k));
    s->specs = items;
  }
  node->shardings = shardings;
  node->n_shardings = n;
  return finish(list, &r);
}

// ---- For people ---------------------------------------------------------------------------------------------------------------

enum { SHOWN_MAX = 64 };        // of a list

static const char *ints_text(const int64_t *items, size_t n, Arena *arena) {
  const char *text = "";
  if (n > SHOWN_MAX) return arena_printf(arena, "%s, ... (%zu)", ints_text(items, SHOWN_MAX, arena), n);
  for (size_t i = 0; i < n; i++) text = arena_printf(arena, "%s%s%lld", text, i ? "," : "", (long long)items[i]);
  return text;
}

static const char *spec_text(const Node *node, const ShardingSpec *spec, Arena *arena) {
  const Value *v = sharding_tensor(node, spec);
  const char *text = arena_printf(arena, "'%s'", v ? v->name : spec->tensor ? spec->tensor : "?");
  for (size_t i = 0; i < spec->n_axes; i++) {
    text = arena_printf(arena, "%s axis %lld in ", text, (long long)spec->axes[i].axis);
    for (size_t k = 0; k < spec->axes[i].n_parts; k++)
      text = arena_printf(arena, "%s%s%lld", text, k ? "x" : "", (long long)spec->axes[i].parts[k].shards);
  }
  text = arena_printf(arena, "%s%s devices %s", text, spec->n_axes ? " over" : " whole on", ints_text(spec->devices, spec->n_devices, arena));
  for (size_t i = 0; i < spec->n_groups && i < SHOWN_MAX; i++) {
    const DeviceGroup *g = &spec->groups[i];
    text = arena_printf(arena, "%s (%lld: %s)", text, (long long)g->key, ints_text(g->devices, g->n_devices, arena));
  }
  return text;
}

const char *sharding_describe(const Node *node, const NodeSharding *s, Arena *arena) {
  const char *text = arena_printf(arena, "%s:", s->configuration ? s->configuration : "?");
  for (size_t i = 0; i < s->n_specs; i++) text = arena_printf(arena, "%s%s %s", text, i ? ";" : "", spec_text(node, &s->specs[i], arena));
  if (s->stage != SHARDING_ABSENT) text = arena_printf(arena, "%s%s stage %lld", text, s->n_specs ? ";" : "", (long long)s->stage);
  return text;
}
