// Checkpoints: a folder with params.safetensors (whole parameters, ONNX names and layouts), state.safetensors ("NAME.exp_avg") and meta.json.
// Written beside its place, flushed, renamed: under the name stands a whole checkpoint or none. Independent of ranks, stage and buckets.
#ifndef TESSERA_CHECKPOINT_H
#define TESSERA_CHECKPOINT_H

#include "executor.h"

typedef struct CheckpointInfo {
  int64_t step;                    // steps done: the next one to run
  uint64_t seed;
  int64_t next_batch;              // data position
  const LossScale *loss_scale;     // after these steps; NULL: the loss was not scaled
  const char *model_path;          // of the source model, absolute where it could be resolved; "" when unknown
  const char *fingerprint;         // of its weight source, 32 hex digits
  const WeightOrigin *origins;     // of the model's initializers; NULL: not known
  size_t n_origins;
  const WeightTie *ties;           // names of the model whose parameter is kept under another name; NULL: none
  size_t n_ties;
  // What decides results and does not follow from the program, in the words of the command line ("--lr=0.001"): as it was said, and what was left at
  // its default. Recorded and given back as they are.
  const char *const *options, *const *defaults;
  size_t n_options, n_defaults;
  const char *const *data;         // what the data were (data_fingerprint); NULL: not known
  size_t n_data;
  // The recipe, for people and for checks at --resume:
  const char *optimizer, *precision, *reduce;
  int zero, ranks;
  int64_t micro_per_rank;
} CheckpointInfo;

// Saves all parameters (trainable and frozen) and optimizer state of the executor, whose program is `program`. info: the fields before the recipe, which is
// taken from the program. An existing checkpoint at `dir` is replaced; anything else there is USAGE. Several processes may save at one place (new_folder.h):
// the last one stays. The processes of one run all call it, and the one with rank 0 writes.
MUST_USE Status checkpoint_save(const char *dir, Executor *executor, const Graph *program, const CheckpointInfo *info);

// Would checkpoint_save take this place? USAGE: something that is no checkpoint is there. IO: the folder it is to lie in is missing or not writable.
MUST_USE Status checkpoint_check_place(const char *dir);

typedef struct Checkpoint Checkpoint;

// Also while others save there: what is read is one of their checkpoints, whole. Maps the files and verifies their hashes (XXH3-128 in meta.json):
// MALFORMED when one differs. Strings and weights live until checkpoint_close.
MUST_USE Status checkpoint_open(const char *dir, Checkpoint **out);
void checkpoint_close(Checkpoint *checkpoint);                                   // NULL is fine
const CheckpointInfo *checkpoint_info(const Checkpoint *checkpoint);
const WeightSource *checkpoint_params(const Checkpoint *checkpoint);             // parameters only, by ONNX name, in name order
// The same and every tied name, which holds what is kept for it.
MUST_USE Status checkpoint_named_params(Checkpoint *checkpoint, const WeightSource **out);
// From now on checkpoint_params holds the moving average (state "NAME.ema") of each parameter that has one. USAGE: none has.
MUST_USE Status checkpoint_use_average(Checkpoint *checkpoint);
// Parameters and state ("NAME.exp_avg") for `program`, which goes on from the checkpoint. Constants of the model are taken from `base` (may be NULL).
// USAGE: another optimizer; a parameter that trains, a running statistic or a state is not in the checkpoint, or of another shape.
MUST_USE Status checkpoint_weights(Checkpoint *checkpoint, const WeightSource *base, const Graph *program, const WeightSource **out);

// All parameters (which NULL) or mean gradients (which "grad") of the executor into one safetensors file. The processes of one run all call it, too.
MUST_USE Status checkpoint_dump(const char *path, Executor *executor, const Graph *program, const char *which);

#endif
