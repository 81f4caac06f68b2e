// Builds a ModelProto node by node, for models that are made from shapes alone. Weights lie in one file of external data beside the model: written
// with seeded random values, or left empty, which stands for weights that are absent (docs/models.md): every other part of the model is whole.
//
// Ownership: everything in `arena`; names are copied. Threads: one. Errors: IO from onnx_build_write; memory through the arena's guard.
#ifndef TESSERA_ONNX_BUILD_H
#define TESSERA_ONNX_BUILD_H

#include "../ir/op.h"

typedef struct OnnxBuild OnnxBuild;

OnnxBuild *onnx_build_create(Arena *arena, const char *graph_name);     // opset ONNX_BUILD_OPSET
enum { ONNX_BUILD_OPSET = 20, ONNX_BUILD_IR_VERSION = 9 };

// All return the value's name. `batch_symbol`: name of the first dimension, NULL: it is fixed.
const char *onnx_build_input(OnnxBuild *build, const char *name, const Type *type, const char *batch_symbol);
void onnx_build_output(OnnxBuild *build, const char *name, const Type *type);      // the first output of the last node, which gets this name
// Normal values around `mean`; deviation 0: all are the mean. f32.
const char *onnx_build_weight(OnnxBuild *build, const char *name, int rank, const int64_t *dims, double mean, double deviation);
const char *onnx_build_ints(OnnxBuild *build, const char *name, const int64_t *items, int64_t n);                        // int64[n], in the model
const char *onnx_build_floats(OnnxBuild *build, const char *name, int rank, const int64_t *dims, const float *items);    // rank 0: one
const char *onnx_build_float(OnnxBuild *build, const char *name, double value);

// A node NAME of a standard operator; its outputs are NAME_output_0, ... Inputs end with NULL; "" is an absent one. `attrs` may be NULL.
const char *onnx_build_node(OnnxBuild *build, const char *op, const char *name, const char *const *inputs, const AttrInit *attrs);
void onnx_build_nodes(OnnxBuild *build, const char *op, const char *name, const char *const *inputs, const AttrInit *attrs, int n_outputs,
                      const char **outputs);
#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

int64_t onnx_build_weight_elems(const OnnxBuild *build);
int64_t onnx_build_node_count(const OnnxBuild *build);

// PATH and PATH.data. `values`: weights are written, from `seed`; else PATH.data is an empty file.
MUST_USE Status onnx_build_write(OnnxBuild *build, const char *path, bool values, uint64_t seed);

#endif
