#include "onnx_build.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/path.h"
#include "atomic_file.h"
#include "onnx_message.h"

typedef struct BuildWeight { Onnx__TensorProto *tensor; int64_t elems, offset_bytes; double mean, deviation; } BuildWeight;

struct OnnxBuild {
  Arena *arena;
  Onnx__GraphProto *graph;
  size_t nodes_capacity, tensors_capacity, inputs_capacity, outputs_capacity;
  BuildWeight *weights;
  size_t n_weights, weights_capacity;
  int64_t data_bytes, weight_elems;
};

enum { DATA_ALIGN_BYTES = 64 };

OnnxBuild *onnx_build_create(Arena *arena, const char *graph_name) {
  OnnxBuild *b = ARENA_NEW(arena, OnnxBuild);
  b->arena = arena;
  b->graph = MESSAGE(arena, Onnx__GraphProto, ONNX__GRAPH_PROTO__INIT);
  b->graph->name = arena_string(arena, graph_name);
  return b;
}

// ---- Values -----------------------------------------------------------------------------------------------------------------------

static Onnx__ValueInfoProto *make_info(OnnxBuild *b, const char *name, const Type *type, const char *batch_symbol) {
  Onnx__ValueInfoProto *info = MESSAGE(b->arena, Onnx__ValueInfoProto, ONNX__VALUE_INFO_PROTO__INIT);
  info->name = arena_string(b->arena, name);
  info->type = message_type(b->arena, type, batch_symbol);
  return info;
}

const char *onnx_build_input(OnnxBuild *b, const char *name, const Type *type, const char *batch_symbol) {
  Onnx__ValueInfoProto *info = make_info(b, name, type, batch_symbol);
  ARENA_PUSH(b->arena, b->graph->input, b->graph->n_input, b->inputs_capacity, info);
  return info->name;
}

void onnx_build_output(OnnxBuild *b, const char *name, const Type *type) {
  b->graph->node[b->graph->n_node - 1]->output[0] = arena_string(b->arena, name);
  ARENA_PUSH(b->arena, b->graph->output, b->graph->n_output, b->outputs_capacity, make_info(b, name, type, NULL));
}

static Onnx__TensorProto *add_tensor(OnnxBuild *b, const char *name, Dtype dtype, int rank, const int64_t *dims) {
  Onnx__TensorProto *t = MESSAGE(b->arena, Onnx__TensorProto, ONNX__TENSOR_PROTO__INIT);
  t->name = arena_string(b->arena, name);
  t->has_data_type = true;
  t->data_type = (int32_t)dtype;
  t->n_dims = (size_t)rank;
  t->dims = arena_copy(b->arena, dims, sizeof *dims * (size_t)rank);
  ARENA_PUSH(b->arena, b->graph->initializer, b->graph->n_initializer, b->tensors_capacity, t);
  return t;
}

static const char *add_constant(OnnxBuild *b, const char *name, Dtype dtype, int rank, const int64_t *dims, const void *bytes) {
  Type type = type_make(dtype, rank, dims);
  Onnx__TensorProto *t = add_tensor(b, name, dtype, rank, dims);
  size_t n = (size_t)type_bytes(&type);
  t->has_raw_data = true;
  t->raw_data = (ProtobufCBinaryData){n, arena_copy(b->arena, bytes, n)};
  return t->name;
}

const char *onnx_build_ints(OnnxBuild *b, const char *name, const int64_t *items, int64_t n) { return add_constant(b, name, DTYPE_I64, 1, &n, items); }

const char *onnx_build_floats(OnnxBuild *b, const char *name, int rank, const int64_t *dims, const float *items) {
  return add_constant(b, name, DTYPE_F32, rank, dims, items);
}

const char *onnx_build_float(OnnxBuild *b, const char *name, double value) {
  float f = (float)value;
  return add_constant(b, name, DTYPE_F32, 0, NULL, &f);
}

const char *onnx_build_weight(OnnxBuild *b, const char *name, int rank, const int64_t *dims, double mean, double deviation) {
  Type type = type_make(DTYPE_F32, rank, dims);
  Onnx__TensorProto *t = add_tensor(b, name, DTYPE_F32, rank, dims);
  t->has_data_location = true;
  t->data_location = ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
  BuildWeight w = {t, type_elems(&type), b->data_bytes, mean, deviation};
  ARENA_PUSH(b->arena, b->weights, b->n_weights, b->weights_capacity, w);
  b->weight_elems += w.elems;
  b->data_bytes += (type_bytes(&type) + DATA_ALIGN_BYTES - 1) / DATA_ALIGN_BYTES * DATA_ALIGN_BYTES;
  return t->name;
}

// ---- Nodes ------------------------------------------------------------------------------------------------------------------------

void onnx_build_nodes(OnnxBuild *b, const char *op, const char *name, const char *const *inputs, const AttrInit *attrs, int n_outputs, const char **outputs) {
  Arena *arena = b->arena;
  Onnx__NodeProto *n = MESSAGE(arena, Onnx__NodeProto, ONNX__NODE_PROTO__INIT);
  n->name = arena_string(arena, name);
  n->op_type = message_text(op);
  while (inputs[n->n_input]) n->n_input++;
  n->input = ARENA_ARRAY(arena, char *, n->n_input);
  for (size_t i = 0; i < n->n_input; i++) n->input[i] = arena_string(arena, inputs[i]);
  n->n_output = (size_t)n_outputs;
  n->output = ARENA_ARRAY(arena, char *, n_outputs);
  for (int o = 0; o < n_outputs; o++) outputs[o] = n->output[o] = arena_printf(arena, "%s_output_%d", name, o);
  size_t capacity = 0;
  for (const AttrInit *a = attrs; a && a->name; a++) {
    AttrInit kept = *a;              // the list may lie on the caller's stack
    kept.ints.items = arena_copy(arena, a->ints.items, sizeof *a->ints.items * (size_t)a->ints.n);
    ARENA_PUSH(arena, n->attribute, n->n_attribute, capacity, message_attr(arena, &kept));
  }
  ARENA_PUSH(arena, b->graph->node, b->graph->n_node, b->nodes_capacity, n);
}

const char *onnx_build_node(OnnxBuild *b, const char *op, const char *name, const char *const *inputs, const AttrInit *attrs) {
  const char *output;
  onnx_build_nodes(b, op, name, inputs, attrs, 1, &output);
  return output;
}

int64_t onnx_build_weight_elems(const OnnxBuild *b) { return b->weight_elems; }
int64_t onnx_build_node_count(const OnnxBuild *b) { return (int64_t)b->graph->n_node; }

// ---- Writing ----------------------------------------------------------------------------------------------------------------------

static Onnx__StringStringEntryProto *make_entry(Arena *arena, const char *key, const char *value) {
  Onnx__StringStringEntryProto *e = MESSAGE(arena, Onnx__StringStringEntryProto, ONNX__STRING_STRING_ENTRY_PROTO__INIT);
  e->key = message_text(key);
  e->value = message_text(value);
  return e;
}

static void refer_to_data(OnnxBuild *b, const char *location) {
  Arena *arena = b->arena;
  for (size_t i = 0; i < b->n_weights; i++) {
    Onnx__TensorProto *t = b->weights[i].tensor;
    t->n_external_data = 3;
    t->external_data = LIST(arena, Onnx__StringStringEntryProto, 3);
    t->external_data[0] = make_entry(arena, "location", location);
    t->external_data[1] = make_entry(arena, "offset", arena_printf(arena, "%" PRId64, b->weights[i].offset_bytes));
    t->external_data[2] = make_entry(arena, "length", arena_printf(arena, "%" PRId64, b->weights[i].elems * (int64_t)sizeof(float)));
  }
}

// Sebastiano Vigna's splitmix64, public domain: one well-mixed word a count.
static uint64_t word(uint64_t count) {
  uint64_t z = count * UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
  return z ^ z >> 31;
}

static float normal(uint64_t stream, uint64_t index) {
  double u = ((double)(word(stream ^ word(2 * index + 1)) >> 11) + 0.5) * 0x1p-53, v = (double)(word(stream ^ word(2 * index + 2)) >> 11) * 0x1p-53;
  return (float)(sqrt(-2 * log(u)) * cos(2 * M_PI * v));
}

static Status write_weight(AtomicFile *file, const BuildWeight *w, uint64_t stream) {
  enum { BLOCK_ELEMS = 1 << 16 };
  float *block = malloc(BLOCK_ELEMS * sizeof *block);
  if (!block) FAIL(RESOURCE, NULL, "out of memory for weights");
  Status status = STATUS_OK;
  int64_t padded = (w->elems * (int64_t)sizeof(float) + DATA_ALIGN_BYTES - 1) / DATA_ALIGN_BYTES * DATA_ALIGN_BYTES / (int64_t)sizeof(float);
  for (int64_t at = 0; at < padded && !status; at += BLOCK_ELEMS) {
    int64_t n = padded - at < BLOCK_ELEMS ? padded - at : BLOCK_ELEMS;
    for (int64_t i = 0; i < n; i++) {
      float deviation = w->deviation != 0 ? (float)w->deviation * normal(stream, (uint64_t)(at + i)) : 0;
      block[i] = at + i < w->elems ? (float)w->mean + deviation : 0;
    }
    status = atomic_write(file, block, (size_t)n * sizeof *block);
  }
  free(block);
  return status;
}

static Status write_data(OnnxBuild *b, AtomicFile *file, bool values, uint64_t seed) {
  for (size_t i = 0; values && i < b->n_weights; i++) TRY(write_weight(file, &b->weights[i], word(word(seed) + i)));
  return STATUS_OK;
}

static Status write_model(OnnxBuild *b, AtomicFile *file) {
  Onnx__ModelProto *model = MESSAGE(b->arena, Onnx__ModelProto, ONNX__MODEL_PROTO__INIT);
  model->has_ir_version = true;
  model->ir_version = ONNX_BUILD_IR_VERSION;
  model->producer_name = message_text("tessera synth");
  model->n_opset_import = 1;
  model->opset_import = LIST(b->arena, Onnx__OperatorSetIdProto, 1);
  model->opset_import[0] = message_opset(b->arena, "", ONNX_BUILD_OPSET);
  model->graph = b->graph;
  size_t n = onnx__model_proto__get_packed_size(model);
  uint8_t *bytes = arena_alloc(b->arena, n);
  onnx__model_proto__pack(model, bytes);
  return atomic_write(file, bytes, n);
}

Status onnx_build_write(OnnxBuild *b, const char *path, bool values, uint64_t seed) {
  AtomicFile model = {.fd = -1}, data = {.fd = -1};
  const char *data_path = arena_printf(b->arena, "%s.data", path);
  refer_to_data(b, path_name(data_path));
  Status status = atomic_begin(data_path, &data);
  if (!status) status = write_data(b, &data, values, seed);
  if (!status) status = atomic_begin(path, &model);
  if (!status) status = write_model(b, &model);
  if (!status) status = atomic_commit(&data);         // the model last: it refers to the data
  if (!status) status = atomic_commit(&model);
  atomic_abandon(&data);
  atomic_abandon(&model);
  return status;
}
