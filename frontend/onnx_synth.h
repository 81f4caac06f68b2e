// Training graphs (forward and loss) of usual models, from shapes alone: the graph and the names that an exporter would write, without weights or
// with seeded random ones. Valid for onnx.checker; ONNX Runtime runs those with weights.
//
//   gpt     GPT-2: learned positions, LayerNormalization first, fused q k v, GELU, the head tied to the embedding unless `untied`
//   llama   Llama: RMSNorm, rotary positions, grouped queries, SwiGLU, all of standard operators; an untied head
//   mlp     Gemm and Relu; classes of a vector
//   cnn     3 x 3 convolutions with BatchNormalization and Relu in four stages, each of twice the channels and half the side; classes of an image
#ifndef TESSERA_ONNX_SYNTH_H
#define TESSERA_ONNX_SYNTH_H

#include "../ir/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct SynthSpec {
  const char *model;          // "gpt", "llama", "mlp", "cnn"
  int64_t layers;             // cnn: convolutions
  int64_t d_model;            // width; mlp: of the hidden layers and the input; cnn: channels of the first stage
  int64_t heads, kv_heads;    // gpt, llama; kv_heads 0: heads
  int64_t d_ff;               // gpt, llama; 0: 4 d_model (llama: 8/3 d_model, rounded up to a multiple of 64)
  int64_t vocab;              // mlp, cnn: classes
  int64_t seq;                // gpt, llama: tokens of a sample
  int64_t image;              // cnn: side of the image, 3 channels
  int64_t batch;              // samples of a micro-batch; 0: left open, dimension "batch"
  bool untied;                // gpt
  bool values;                // weights are written; else they are absent
  uint64_t seed;
} SynthSpec;

typedef struct SynthResult { int64_t param_elems, nodes; } SynthResult;

// Writes PATH and PATH.data. USAGE where the sizes do not fit each other; IO.
MUST_USE Status synth_write(const SynthSpec *spec, const char *path, SynthResult *out);

#endif
