// The trained model: the source model's file with the bytes of the trained tensors replaced, nothing else changed.
//
// Ownership: nothing is kept. Threads: any, one at a time per Model. Errors: IO (with path and reason); UNSUPPORTED where a tensor's bytes do
// not lie in one piece in a file; whatever `read` returns. Files are written beside their place and renamed, so a failure leaves the old one.
#ifndef TESSERA_ONNX_EXPORT_H
#define TESSERA_ONNX_EXPORT_H

#include "onnx_import.h"

// Gives the new values of elements [from, from + n) of tensor `weight->name`, in its element type: writes them to `out` and sets *found, or sets
// *found = false when the tensor was not trained. Tensors are asked for in pieces, since they may be larger than memory.
typedef Status (*ExportRead)(void *user, const Weight *weight, int64_t from, int64_t n, void *out, bool *found);

// Copies the model's file to `out_path` and its external data beside it, asking `read` for each weight. Where `out_path` has another file name than the
// model, the data do too, and the copy refers to them: NAME.onnx.data, or NAME.onnx.data/LOCATION where there are several files; exports side by side
// do not touch each other. Refuses to overwrite the external data of the source: USAGE. The folder of `out_path` must be there.
MUST_USE Status model_export(Model *model, const char *out_path, ExportRead read, void *user);

#endif
