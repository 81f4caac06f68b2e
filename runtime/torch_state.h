// Trained weights under the names, layouts and element types of a PyTorch state_dict, so that load_state_dict takes them.
//
// Each entry of the state file is looked for among the initializers of the model that was trained: by name; by `folded_from`, where the exporter
// says what it folded into an initializer; by contents. An initializer may hold an entry as it is or reshaped, with its last two axes swapped, its
// rows in the gate order of an ONNX recurrent operator, or beside other entries; but for entries of the same name and shape, contents prove it:
// the state file must be the one that the model was exported from.
#ifndef TESSERA_TORCH_STATE_H
#define TESSERA_TORCH_STATE_H

#include "checkpoint.h"

typedef enum TorchSource {
  TORCH_NONE,           // found nowhere: left out
  TORCH_NAME,           // the parameter of that name
  TORCH_FOLDED,         // named by folded_from
  TORCH_CONTENTS,       // the parameter that started with these contents
  TORCH_KEPT,           // nothing trains it (a buffer, a constant of the model): copied from the state
  TORCH_SOURCE_COUNT
} TorchSource;

typedef struct TorchSummary { int64_t count[TORCH_SOURCE_COUNT]; } TorchSummary;

// Writes `out_path` from the checkpoint and the state file. `out` is set whenever the file was written. CHECK, naming every entry that was left out
// and every trained parameter that has no entry, after writing the rest; UNSUPPORTED where the checkpoint does not say what the model began with.
MUST_USE Status torch_state_export(Checkpoint *checkpoint, const char *state_path, const char *out_path, TorchSummary *out);

#endif
