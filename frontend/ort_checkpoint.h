// The checkpoint that ONNX Runtime's training artifacts come with: a flatbuffer with the parameters' initial values.
//
// Ownership: weights point into `bytes`, names lie in the arena. Threads: pure. Call under an arena guard. Errors: MALFORMED with the byte
// offset, UNSUPPORTED (values in a second file; element types). Source: ort_training_checkpoint.fbs and ort.fbs of ONNX Runtime 1.19; the
// flatbuffer encoding.
#ifndef TESSERA_ORT_CHECKPOINT_H
#define TESSERA_ORT_CHECKPOINT_H

#include "../ir/weights.h"
#include "wire_scan.h"

typedef struct OrtCheckpoint {
  const Weight *weights;      // parameters with a gradient, then frozen ones
  size_t n_weights;
} OrtCheckpoint;

// `path` is recorded in the weights and named in messages.
MUST_USE Status ort_checkpoint_read(Bytes bytes, const char *path, Arena *arena, OrtCheckpoint *out);

#endif
