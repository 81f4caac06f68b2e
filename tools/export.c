// tessera export: trained weights out of a checkpoint, into a copy of the source model's file into one safetensors file, or into a PyTorch
// state_dict.
#include <stdlib.h>
#include <string.h>

#include "../frontend/onnx_export.h"
#include "../ir/hex.h"
#include "../ir/path.h"
#include "../runtime/checkpoint.h"
#include "../runtime/safetensors.h"
#include "../runtime/tied_weights.h"
#include "../runtime/torch_state.h"
#include "command.h"
#include "compile_flow.h"
#include "overwrites.h"

// ---- One safetensors file -----------------------------------------------------------------------------------------------------

static Status write_tensors(Checkpoint *checkpoint, const char *path) {
  const WeightSource *params;
  TRY(checkpoint_named_params(checkpoint, &params));
  SafetensorsEntry *entries = calloc(params->n_weights + 1, sizeof *entries);
  if (!entries) FAIL(RESOURCE, NULL, "out of memory for %zu tensors", params->n_weights);
  for (size_t i = 0; i < params->n_weights; i++) entries[i] = (SafetensorsEntry){params->weights[i].name, params->weights[i].type};
  SafetensorsWriter *writer = NULL;
  Status status = safetensors_create(path, entries, params->n_weights, NULL, &writer);
  for (size_t i = 0; !status && i < params->n_weights; i++) status = safetensors_write_weight(writer, i, &params->weights[i]);
  free(entries);
  if (!status) return safetensors_finish(writer);
  safetensors_abandon(writer);
  return status;
}

// ---- The model's file ---------------------------------------------------------------------------------------------------------

typedef struct Trained {
  const WeightSource *params;      // by every name
  WeightSource constants;          // of the model, where names are tied to one that did not train
} Trained;

static Status read_trained(void *user, const Weight *weight, int64_t from, int64_t n, void *out, bool *found) {
  const Trained *t = user;
  const Weight *trained = weights_find(t->params, weight->name);
  if (!trained) trained = weights_find(&t->constants, weight->name);
  *found = trained != NULL;
  if (!trained) return STATUS_OK;
  if (!type_same_shape(&trained->type, &weight->type)) {
    char a[160], b[160];
    FAIL(CHECK, weight->name, "the checkpoint holds %s, the model %s", type_text(&trained->type, a, sizeof a), type_text(&weight->type, b, sizeof b));
  }
  int64_t width = dtype_bytes(trained->type.dtype);
  const char *bytes = (const char *)trained->bytes + from * width;
  elements_convert(out, weight->type.dtype, bytes, trained->type.dtype, n);
  if (trained->mapped) mapped_let_go(bytes, n * width);
  return STATUS_OK;
}

static Status check_source(Model *model, const char *path, const CheckpointInfo *info, Arena *arena, WeightSource *out) {
  ARENA_GUARD(arena);
  Status status = model_weights(model, arena, out);
  char hex[HEX128_BYTES];
  if (!status) {
    hex128_text(out->fingerprint[0], out->fingerprint[1], hex);
    if (info->fingerprint && info->fingerprint[0] && strcmp(info->fingerprint, hex))
      status = status_fail(STATUS_CHECK, NULL, "'%s' is not the model that was trained: its weights' names, types or places have fingerprint %s, the checkpoint says %s. "
                           "Parameters that --weights gave are not in the model at all: export them as .safetensors",
                           path, hex, info->fingerprint);
  }
  ARENA_RETURN(arena, status);
}

// Names that are tied to constants take these constants' values.
static Status tie_constants(const CheckpointInfo *info, const WeightSource *model, Arena *arena, Trained *out) {
  ARENA_GUARD(arena);
  WeightTie *ties = ARENA_ARRAY(arena, WeightTie, info->n_ties);
  Weight *kept = ARENA_ARRAY(arena, Weight, info->n_ties);
  size_t n = 0;
  for (size_t i = 0; i < info->n_ties; i++) {
    const Weight *constant = weights_find(model, info->ties[i].kept);
    if (!constant || weights_find(out->params, info->ties[i].kept)) continue;
    kept[n] = *constant;
    ties[n++] = info->ties[i];
  }
  ARENA_RETURN(arena, ties_resolve(&(WeightSource){.weights = kept, .n_weights = n}, ties, n, arena, &out->constants));
}

static Status write_model(Checkpoint *checkpoint, const Options *options) {
  const CheckpointInfo *info = checkpoint_info(checkpoint);
  const char *path = options->model ? options->model : info->model_path;
  if (!path || !path[0]) FAIL(USAGE, NULL, "the checkpoint does not say which model was trained; name it with --model SOURCE");
  Arena *arena = arena_create(0);
  Model *model = NULL;
  WeightSource weights;
  Status status = arena ? model_open(path, &model) : status_fail(STATUS_RESOURCE, NULL, "out of memory");
  if (status && !options->model) status = status_context(status, "the model that was trained (--model SOURCE names another place)");
  if (!status) status = check_source(model, path, info, arena, &weights);
  Trained trained = {0};
  if (!status) status = checkpoint_named_params(checkpoint, &trained.params);
  if (!status) status = tie_constants(info, &weights, arena, &trained);
  if (!status) status = model_export(model, options->output, read_trained, &trained);
  model_close(model);
  arena_destroy(arena);
  return status;
}

// ---- A state_dict -------------------------------------------------------------------------------------------------------------

static Status write_state(Checkpoint *checkpoint, const Options *options) {
  TorchSummary s = {0};
  Status status = torch_state_export(checkpoint, options->torch, options->output, &s);
  if (s.count[TORCH_NAME] + s.count[TORCH_FOLDED] + s.count[TORCH_CONTENTS] + s.count[TORCH_KEPT])
    fprintf(stderr, "tessera: entries of the state_dict: %lld found by name, %lld by what the exporter folded, %lld by contents, %lld not trained\n",
            (long long)s.count[TORCH_NAME], (long long)s.count[TORCH_FOLDED], (long long)s.count[TORCH_CONTENTS], (long long)s.count[TORCH_KEPT]);
  return status;
}

static Status export_checkpoint(Checkpoint **checkpoint, const Options *options) {
  if (!options->input) FAIL(USAGE, NULL, "name the checkpoint folder that 'tessera run --save' wrote");
  if (!options->output) FAIL(USAGE, NULL, "say where the weights go: -o MODEL.onnx or -o WEIGHTS.safetensors");
  bool model = has_suffix(options->output, ".onnx"), tensors = has_suffix(options->output, ".safetensors");
  if (!model && !tensors) FAIL(USAGE, NULL, "'%s' ends neither in .onnx nor in .safetensors", options->output);
  if (options->torch && model) FAIL(USAGE, NULL, "--torch makes a state_dict: -o FILE.safetensors, not '%s'", options->output);
  TRY(overwrites_check(options));
  TRY(checkpoint_open(options->input, checkpoint));
  if (options->use_ema) TRY(checkpoint_use_average(*checkpoint));
  if (!options->model) TRY(overwrites_check_input(options, checkpoint_info(*checkpoint)->model_path));
  TRY(command_make_folders(options->output));
  if (options->torch) TRY(write_state(*checkpoint, options));
  else if (model) TRY(write_model(*checkpoint, options));
  else TRY(write_tensors(*checkpoint, options->output));
  printf("%s: the weights of '%s' after %lld steps\n", options->output, options->input, (long long)checkpoint_info(*checkpoint)->step);
  return STATUS_OK;
}

Status command_export(const Options *options) {
  Checkpoint *checkpoint = NULL;
  Status status = export_checkpoint(&checkpoint, options);
  checkpoint_close(checkpoint);
  return status;
}
