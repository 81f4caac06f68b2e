// tessera synth: writes a training graph of a usual model from shapes alone, to compile, show and simulate what no machine here could hold.
#include "../frontend/onnx_synth.h"

#include <inttypes.h>
#include <string.h>

#include "../ir/path.h"
#include "command.h"

static Status check_options(const Options *o) {
  if (!o->input) FAIL(USAGE, NULL, "say which model: tessera synth gpt|llama|mlp|cnn [sizes] -o MODEL.onnx");
  if (!o->output) FAIL(USAGE, NULL, "say where the model goes: tessera synth %s -o MODEL.onnx", o->input);
  if (!has_suffix(o->output, ".onnx")) FAIL(USAGE, NULL, "-o %s: the name must end in .onnx", o->output);
  bool tokens = !strcmp(o->input, "gpt") || !strcmp(o->input, "llama");
  const struct { const char *name; bool given, fits; } rows[] = {
      {"heads", o->given.heads, tokens}, {"kv-heads", o->given.kv_heads, tokens}, {"d-ff", o->given.d_ff, tokens}, {"seq", o->given.seq, tokens},
      {"image", o->given.image, !strcmp(o->input, "cnn")}, {"untied", o->given.untied, !strcmp(o->input, "gpt")}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (rows[i].given && !rows[i].fits) FAIL(USAGE, NULL, "--%s means nothing to the model '%s'", rows[i].name, o->input);
  return STATUS_OK;
}

Status command_synth(const Options *o) {
  TRY(check_options(o));
  SynthSpec spec = {.model = o->input, .layers = o->layers, .d_model = o->d_model, .heads = o->heads, .kv_heads = o->kv_heads, .d_ff = o->d_ff,
                    .vocab = o->vocab, .seq = o->given.seq ? o->seq : 128, .image = o->image, .batch = o->batch, .untied = o->untied,
                    .values = !strcmp(o->init, "random"), .seed = (uint64_t)o->seed};
  SynthResult result;
  TRY(command_make_folders(o->output));
  TRY(synth_write(&spec, o->output, &result));
  printf("%s: %s of %" PRId64 " layers, %" PRId64 " parameters, %" PRId64 " nodes; ", o->output, o->input, o->layers, result.param_elems, result.nodes);
  if (spec.values) printf("random weights in %s.data\n", o->output);
  else printf("weights absent (%s.data is empty): to compile, show and simulate; --init random makes one that runs\n", o->output);
  return STATUS_OK;
}
