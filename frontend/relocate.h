// Other names for the external data files of a model: rewrites the `location` entries of its tensors.
//
// Ownership: *out is heap, the caller's. Threads: a pure function. Errors: RESOURCE. The model must have passed wire_scan.
// Source: onnx.proto (ModelProto down to TensorProto.external_data), onnx/docs/ExternalData.md.
#ifndef TESSERA_RELOCATE_H
#define TESSERA_RELOCATE_H

#include "wire_scan.h"

typedef struct Relocation { const char *from, *to; } Relocation;

// A copy of the model's bytes in which every location that equals a `from` reads `to`, and no checksum of external data is left.
MUST_USE Status relocate_external(Bytes model, const Relocation *relocations, size_t n, uint8_t **out, size_t *out_bytes);

#endif
