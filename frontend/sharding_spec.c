#include "sharding_spec.h"

#include <string.h>

#include "../ir/sharding.h"

enum { NODE_DEVICE_CONFIGURATIONS = 10, MODEL_CONFIGURATION = 26 };     // field numbers

// ---- In -----------------------------------------------------------------------------------------------------------------------

static ShardedAxis import_axis(const Onnx__ShardedDimProto *from, Arena *arena) {
  ShardedAxis axis = {.axis = from->has_axis ? from->axis : SHARDING_ABSENT, .n_parts = from->n_simple_sharding};
  ShardPart *parts = ARENA_ARRAY(arena, ShardPart, axis.n_parts);
  for (size_t i = 0; i < axis.n_parts; i++) {
    const Onnx__SimpleShardedDimProto *p = from->simple_sharding[i];
    parts[i] = (ShardPart){SHARDING_ABSENT, NULL, p->has_num_shards ? p->num_shards : SHARDING_ABSENT};
    if (p->dim_case == ONNX__SIMPLE_SHARDED_DIM_PROTO__DIM_DIM_VALUE) parts[i].size = p->dim_value;
    if (p->dim_case == ONNX__SIMPLE_SHARDED_DIM_PROTO__DIM_DIM_PARAM) parts[i].symbol = p->dim_param;
  }
  axis.parts = parts;
  return axis;
}

// By the names of the file: values of subgraphs and functions have others.
static int slot_of(const Onnx__NodeProto *node, const char *tensor) {
  for (size_t i = 0; *tensor && i < node->n_input; i++)
    if (!strcmp(text_or_empty(node->input[i]), tensor)) return (int)i;
  for (size_t i = 0; *tensor && i < node->n_output; i++)
    if (!strcmp(text_or_empty(node->output[i]), tensor)) return ~(int)i;
  return SHARDING_NO_SLOT;
}

static ShardingSpec import_spec(const Onnx__NodeProto *node, const Onnx__ShardingSpecProto *from, Arena *arena) {
  ShardingSpec spec = {.tensor = from->tensor_name, .slot = slot_of(node, text_or_empty(from->tensor_name)), .devices = from->device,
                       .n_devices = from->n_device, .n_groups = from->n_index_to_device_group_map, .n_axes = from->n_sharded_dim};
  DeviceGroup *groups = ARENA_ARRAY(arena, DeviceGroup, spec.n_groups);
  for (size_t i = 0; i < spec.n_groups; i++) {
    const Onnx__IntIntListEntryProto *g = from->index_to_device_group_map[i];
    groups[i] = (DeviceGroup){g->key, g->value, g->n_value};
  }
  ShardedAxis *axes = ARENA_ARRAY(arena, ShardedAxis, spec.n_axes);
  for (size_t i = 0; i < spec.n_axes; i++) axes[i] = import_axis(from->sharded_dim[i], arena);
  spec.groups = groups;
  spec.axes = axes;
  return spec;
}

Status sharding_import_node(Graph *graph, Node *node, const OnnxNode *onnx) {
  Bytes message = onnx->all;
  size_t capacity = 0;
  NodeSharding *shardings = NULL;
  for (WireField w; wire_next(&message, &w);) {
    if (w.number != NODE_DEVICE_CONFIGURATIONS) continue;
    ProtobufCMessage *decoded;
    TRY(wire_decode(w.bytes, &onnx__node_device_configuration_proto__descriptor, 0, graph->arena, &decoded));
    const Onnx__NodeDeviceConfigurationProto *from = (const void *)decoded;
    NodeSharding s = {.configuration = from->configuration_id, .stage = from->has_pipeline_stage ? from->pipeline_stage : SHARDING_ABSENT,
                      .n_specs = from->n_sharding_spec};
    ShardingSpec *specs = ARENA_ARRAY(graph->arena, ShardingSpec, s.n_specs);
    for (size_t i = 0; i < s.n_specs; i++) specs[i] = import_spec(onnx->head, from->sharding_spec[i], graph->arena);
    s.specs = specs;
    ARENA_PUSH(graph->arena, shardings, node->n_shardings, capacity, s);
  }
  node->shardings = shardings;
  return STATUS_OK;
}

Status sharding_import_configurations(Graph *graph, Bytes model) {
  size_t capacity = 0;
  DeviceConfiguration *configurations = NULL;
  for (WireField w; wire_next(&model, &w);) {
    if (w.number != MODEL_CONFIGURATION) continue;
    ProtobufCMessage *decoded;
    TRY(wire_decode(w.bytes, &onnx__device_configuration_proto__descriptor, 0, graph->arena, &decoded));
    const Onnx__DeviceConfigurationProto *from = (const void *)decoded;
    int64_t n_devices = from->has_num_devices ? from->num_devices : SHARDING_ABSENT;
    DeviceConfiguration c = {from->name, n_devices, (const char *const *)from->device, from->n_device};
    ARENA_PUSH(graph->arena, configurations, graph->n_configurations, capacity, c);
  }
  graph->configurations = configurations;
  return STATUS_OK;
}

// ---- Out ----------------------------------------------------------------------------------------------------------------------

// protobuf-c's structures, zeroed and tied to their descriptor; its fields are not const, though packing only reads them.
#define MESSAGE(arena, T, init) ((T *)arena_copy(arena, &(T)init, sizeof(T)))

static Onnx__ShardedDimProto *export_axis(const ShardedAxis *axis, Arena *arena) {
  Onnx__ShardedDimProto *out = MESSAGE(arena, Onnx__ShardedDimProto, ONNX__SHARDED_DIM_PROTO__INIT);
  out->has_axis = axis->axis != SHARDING_ABSENT;
  out->axis = axis->axis;
  out->simple_sharding = ARENA_ARRAY(arena, Onnx__SimpleShardedDimProto *, axis->n_parts);
  for (size_t i = 0; i < axis->n_parts; i++) {
    const ShardPart *part = &axis->parts[i];
    Onnx__SimpleShardedDimProto *p = MESSAGE(arena, Onnx__SimpleShardedDimProto, ONNX__SIMPLE_SHARDED_DIM_PROTO__INIT);
    if (part->symbol) p->dim_case = ONNX__SIMPLE_SHARDED_DIM_PROTO__DIM_DIM_PARAM, p->dim_param = (char *)part->symbol;
    else if (part->size != SHARDING_ABSENT) p->dim_case = ONNX__SIMPLE_SHARDED_DIM_PROTO__DIM_DIM_VALUE, p->dim_value = part->size;
    p->has_num_shards = part->shards != SHARDING_ABSENT;
    p->num_shards = part->shards;
    out->simple_sharding[out->n_simple_sharding++] = p;
  }
  return out;
}

static Onnx__ShardingSpecProto *export_spec(const ShardingSpec *spec, const char *tensor, Arena *arena) {
  Onnx__ShardingSpecProto *out = MESSAGE(arena, Onnx__ShardingSpecProto, ONNX__SHARDING_SPEC_PROTO__INIT);
  out->tensor_name = (char *)tensor;
  out->n_device = spec->n_devices;
  out->device = (int64_t *)spec->devices;
  out->index_to_device_group_map = ARENA_ARRAY(arena, Onnx__IntIntListEntryProto *, spec->n_groups);
  for (size_t i = 0; i < spec->n_groups; i++) {
    Onnx__IntIntListEntryProto *g = MESSAGE(arena, Onnx__IntIntListEntryProto, ONNX__INT_INT_LIST_ENTRY_PROTO__INIT);
    g->has_key = true;
    g->key = spec->groups[i].key;
    g->n_value = spec->groups[i].n_devices;
    g->value = (int64_t *)spec->groups[i].devices;
    out->index_to_device_group_map[out->n_index_to_device_group_map++] = g;
  }
  out->sharded_dim = ARENA_ARRAY(arena, Onnx__ShardedDimProto *, spec->n_axes);
  for (size_t i = 0; i < spec->n_axes; i++) out->sharded_dim[out->n_sharded_dim++] = export_axis(&spec->axes[i], arena);
  return out;
}

void sharding_export_node(const Node *node, Arena *arena, Onnx__NodeProto *out) {
  out->device_configurations = ARENA_ARRAY(arena, Onnx__NodeDeviceConfigurationProto *, node->n_shardings);
  for (size_t i = 0; i < node->n_shardings; i++) {
    const NodeSharding *s = &node->shardings[i];
    Onnx__NodeDeviceConfigurationProto *c = MESSAGE(arena, Onnx__NodeDeviceConfigurationProto, ONNX__NODE_DEVICE_CONFIGURATION_PROTO__INIT);
    c->configuration_id = (char *)s->configuration;
    c->has_pipeline_stage = s->stage != SHARDING_ABSENT;
    c->pipeline_stage = (int32_t)s->stage;
    c->sharding_spec = ARENA_ARRAY(arena, Onnx__ShardingSpecProto *, s->n_specs);
    for (size_t k = 0; k < s->n_specs; k++) {
      const char *tensor = sharding_tensor_name(node, &s->specs[k]);
      if (tensor) c->sharding_spec[c->n_sharding_spec++] = export_spec(&s->specs[k], tensor, arena);
    }
    out->device_configurations[out->n_device_configurations++] = c;
  }
}

void sharding_export_configurations(const Graph *graph, Arena *arena, Onnx__ModelProto *model) {
  model->configuration = ARENA_ARRAY(arena, Onnx__DeviceConfigurationProto *, graph->n_configurations);
  for (size_t i = 0; i < graph->n_configurations; i++) {
    const DeviceConfiguration *from = &graph->configurations[i];
    Onnx__DeviceConfigurationProto *c = MESSAGE(arena, Onnx__DeviceConfigurationProto, ONNX__DEVICE_CONFIGURATION_PROTO__INIT);
    c->name = (char *)from->name;
    c->has_num_devices = from->n_devices != SHARDING_ABSENT;
    c->num_devices = (int32_t)from->n_devices;
    c->n_device = from->n_names;
    c->device = (char **)from->names;
    model->configuration[model->n_configuration++] = c;
  }
}
