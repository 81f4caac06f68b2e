#include "ds_keys.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../ir/decimal.h"
#include "../ir/edit_distance.h"

#define OFFLOAD "say it as \"offload_optimizer\": {\"device\": \"cpu\"} or \"offload_param\""
#define BUFFERS "of offload, which takes windows of --offload-window"
#define QUANTIZED "quantized communication is not there: say false"
#define SCHEDULED "the plan decides when a parameter is gathered and released; results do not depend on it"
#define MONITOR "say \"enabled\": false; --metrics FILE.csv, FILE.jsonl and --tensorboard DIR record every step"

// What DeepSpeed 0.19 knows, and older names that its tutorials use.
const DsKey ds_keys[] = {
    // path, rule, values, text
    {"train_batch_size", DS_CODE, NULL, NULL},
    {"train_micro_batch_size_per_gpu", DS_CODE, NULL, NULL},
    {"gradient_accumulation_steps", DS_CODE, NULL, NULL},
    {"gradient_clipping", DS_CODE, NULL, NULL},
    {"wall_clock_breakdown", DS_CODE, NULL, NULL},
    {"steps_per_print", DS_NOTE, NULL, "every step is told"},
    {"memory_breakdown", DS_ONLY, "false", "say false; 'tessera show PLAN --memory' tells where memory goes"},
    {"dump_state", DS_ONLY, "false", "say false; 'tessera config' prints what holds"},
    {"zero_allow_untested_optimizer", DS_NOTE, NULL, "every optimizer here works at every stage"},
    {"zero_force_ds_cpu_optimizer", DS_NOTE, NULL, BUFFERS},
    {"prescale_gradients", DS_ONLY, "false", "gradients are summed and divided once; say false"},
    {"gradient_predivide_factor", DS_ONLY, "1", "gradients are summed and divided once; say 1"},
    {"sparse_gradients", DS_ONLY, "false", "gradients are dense; say false"},
    {"fp32_allreduce", DS_CODE, NULL, NULL},
    {"communication_data_type", DS_CODE, NULL, NULL},
    {"seq_parallel_communication_data_type", DS_NOTE, NULL, "there is no sequence parallelism"},
    {"seq_parallel_comm_data_type", DS_NOTE, NULL, "there is no sequence parallelism"},
    {"timers", DS_NOTE, NULL, "every step is timed"},
    {"disable_allgather", DS_ONLY, "false", "parameters are gathered; say false"},
    {"data_types", DS_OBJECT, NULL, NULL},
    {"data_types.grad_accum_dtype", DS_ONLY, "fp32|null", "gradients are accumulated in float32; say \"fp32\" or leave it out"},
    {"dataloader_drop_last", DS_ONLY, "false", "the data wrap at the end, whole batches always; say false"},
    {"graph_harvesting", DS_NOTE, NULL, "the whole step is one plan in any case"},
    {"vocabulary_size", DS_NOTE, NULL, "the model says it"},
    {"use_data_before_expert_parallelism", DS_NOTE, NULL, "there is no expert parallelism"},
    {"aio", DS_NOTE, NULL, "there are no files on the way of a step"},
    {"activation_checkpointing", DS_OBJECT, NULL, NULL},
    {"activation_checkpointing.partition_activations", DS_CODE, NULL, NULL},
    {"activation_checkpointing.cpu_checkpointing", DS_CODE, NULL, NULL},
    {"activation_checkpointing.contiguous_memory_optimization", DS_NOTE, NULL, "every activation has a fixed place in any case"},
    {"activation_checkpointing.number_checkpoints", DS_CODE, NULL, NULL},
    {"activation_checkpointing.synchronize_checkpoint_boundary", DS_NOTE, NULL, "results do not depend on it"},
    {"activation_checkpointing.profile", DS_NOTE, NULL, "'tessera simulate' tells what recomputation takes, and run --profile measures"},
    {"checkpoint", DS_OBJECT, NULL, NULL},
    {"checkpoint.tag_validation", DS_NOTE, NULL, "checkpoints have no tags"},
    {"checkpoint.load_universal", DS_ONLY, "false", "say false; checkpoints resume at any number of ranks and any stage"},
    {"checkpoint.use_node_local_storage", DS_ONLY, "false", "say false; --save names the folder"},
    {"checkpoint.parallel_write", DS_NOTE, NULL, "the program decides how it writes"},
    {"pipeline", DS_ONLY, "null|auto", "pipeline parallelism is not there: leave it out"},
    {"autotp_size", DS_ONLY, "0|1", "tensor parallelism is not there: leave it out"},
    {"tensor_parallel", DS_ONLY, "null", "tensor parallelism is not there: leave it out"},
    {"sequence_parallel_size", DS_ONLY, "1", "sequence parallelism is not there: leave it out"},
    {"sparse_attention", DS_ONLY, "null", "the model says how it attends: leave it out"},
    {"compression_training", DS_ONLY, "null", "there is no compression: leave it out"},
    {"quantize_training", DS_ONLY, "null", "there is no quantized training: leave it out"},
    {"weight_quantization", DS_ONLY, "null", "there is no quantization: leave it out"},
    {"amp", DS_FEATURE, NULL, "say bf16 or fp16 in its place"},
    {"torch_autocast", DS_FEATURE, NULL, "say bf16 or fp16 in its place; operators that need float32 keep it (--keep-f32)"},
    {"compile", DS_NOTE, NULL, "the whole step is compiled in any case"},
    {"flops_profiler", DS_FEATURE, NULL, "say \"enabled\": false; 'tessera simulate' counts operations, and run --profile measures"},
    {"comms_logger", DS_FEATURE, NULL, "say \"enabled\": false; 'tessera show PLAN --comm' lists what is sent"},
    {"tensorboard", DS_OBJECT, NULL, NULL},
    {"tensorboard.enabled", DS_CODE, NULL, NULL},
    {"tensorboard.output_path", DS_CODE, NULL, NULL},
    {"tensorboard.job_name", DS_CODE, NULL, NULL},
    {"trackio", DS_FEATURE, NULL, MONITOR},
    {"wandb", DS_FEATURE, NULL, MONITOR},
    {"comet", DS_FEATURE, NULL, MONITOR},
    {"csv_monitor", DS_FEATURE, NULL, MONITOR},
    {"eigenvalue", DS_FEATURE, NULL, "say \"enabled\": false"},
    {"progressive_layer_drop", DS_FEATURE, NULL, "layers are never dropped; say \"enabled\": false"},
    {"curriculum_learning", DS_FEATURE, NULL, "batches have one order; say \"enabled\": false"},
    {"data_efficiency", DS_FEATURE, NULL, "batches have one order; say \"enabled\": false"},
    {"autotuning", DS_FEATURE, NULL, "say \"enabled\": false; 'tessera tune' searches before a run: stage, micro-batch, buckets (docs/tune.md)"},
    {"elasticity", DS_FEATURE, NULL, "say \"enabled\": false; a checkpoint resumes at any number of ranks"},
    {"hybrid_engine", DS_FEATURE, NULL, "there is no inference; say \"enabled\": false"},
    {"nebula", DS_FEATURE, NULL, "say \"enabled\": false; --save and --save-every write checkpoints"},

    {"zero_optimization", DS_OBJECT, NULL, NULL},
    {"zero_optimization.stage", DS_CODE, NULL, NULL},
    {"zero_optimization.reduce_bucket_size", DS_CODE, NULL, NULL},
    {"zero_optimization.allgather_bucket_size", DS_CODE, NULL, NULL},
    {"zero_optimization.overlap_comm", DS_CODE, NULL, NULL},
    {"zero_optimization.stage3_prefetch_bucket_size", DS_CODE, NULL, NULL},
    {"zero_optimization.contiguous_gradients", DS_NOTE, NULL, "gradients lie in buckets in any case"},
    {"zero_optimization.reduce_scatter", DS_NOTE, NULL, "the stage decides the collective; sums are the same"},
    {"zero_optimization.allgather_partitions", DS_NOTE, NULL, "parameters are gathered with all-gather in any case"},
    {"zero_optimization.use_multi_rank_bucket_allreduce", DS_NOTE, NULL, "the plan decides; sums are the same"},
    {"zero_optimization.round_robin_gradients", DS_NOTE, NULL, BUFFERS},
    {"zero_optimization.sub_group_size", DS_NOTE, NULL, BUFFERS},
    {"zero_optimization.stage3_max_live_parameters", DS_NOTE, NULL, SCHEDULED},
    {"zero_optimization.stage3_max_reuse_distance", DS_NOTE, NULL, SCHEDULED},
    {"zero_optimization.stage3_param_persistence_threshold", DS_NOTE, NULL, "small parameters are sharded as well; results do not depend on it"},
    {"zero_optimization.stage3_model_persistence_threshold", DS_NOTE, NULL, "small parameters are sharded as well; results do not depend on it"},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", DS_NOTE, NULL, "'tessera export' writes whole weights from any checkpoint"},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save", DS_NOTE, NULL, "'tessera export' writes whole weights from any checkpoint"},
    {"zero_optimization.stage3_module_granularity_threshold", DS_NOTE, NULL, SCHEDULED},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params", DS_NOTE, NULL, SCHEDULED},
    {"zero_optimization.stage3_allgather_sequential", DS_NOTE, NULL, SCHEDULED},
    {"zero_optimization.stage3_partition_stream_chunk_size", DS_NOTE, NULL, "each rank reads its shard from the model file"},
    {"zero_optimization.ignore_unused_parameters", DS_NOTE, NULL, "parameters that nothing uses do not train"},
    {"zero_optimization.legacy_stage1", DS_NOTE, NULL, "there is one stage 1"},
    {"zero_optimization.elastic_checkpoint", DS_NOTE, NULL, "a checkpoint resumes at any number of ranks"},
    {"zero_optimization.load_from_fp32_weights", DS_ONLY, "true", "float32 masters are what checkpoints keep; say true"},
    {"zero_optimization.memory_efficient_linear", DS_NOTE, NULL, "the plan decides what is kept for backward"},
    {"zero_optimization.override_module_apply", DS_NOTE, NULL, "there are no Python modules"},
    {"zero_optimization.pipeline_loading_checkpoint", DS_NOTE, NULL, "there are no Python modules"},
    {"zero_optimization.leaf_module", DS_NOTE, NULL, "there are no Python modules"},
    {"zero_optimization.log_trace_cache_warnings", DS_NOTE, NULL, "the order of parameters is known before the run"},
    {"zero_optimization.enable_sanity_checks", DS_NOTE, NULL, "plans are proved before they run"},
    {"zero_optimization.save_muon_momentum_buffer_in_memory", DS_NOTE, NULL, BUFFERS},
    {"zero_optimization.cpu_offload", DS_ONLY, "false", OFFLOAD},
    {"zero_optimization.cpu_offload_param", DS_ONLY, "false", OFFLOAD},
    {"zero_optimization.cpu_offload_params", DS_ONLY, "false", OFFLOAD},
    {"zero_optimization.cpu_offload_use_pin_memory", DS_NOTE, NULL, BUFFERS},
    {"zero_optimization.offload_optimizer", DS_OBJECT, NULL, NULL},
    {"zero_optimization.offload_optimizer.device", DS_CODE, NULL, NULL},
    {"zero_optimization.offload_optimizer.nvme_path", DS_CODE, NULL, NULL},
    {"zero_optimization.offload_optimizer.buffer_count", DS_NOTE, NULL, BUFFERS},
    {"zero_optimization.offload_optimizer.pin_memory", DS_NOTE, NULL, BUFFERS},
    {"zero_optimization.offload_optimizer.pipeline", DS_NOTE, NULL, BUFFERS},
    {"zero_optimization.offload_optimizer.pipeline_read", DS_NOTE, NULL, BUFFERS},
    {"zero_optimization.offload_optimizer.pipeline_write", DS_NOTE, NULL, BUFFERS},
    {"zero_optimization.offload_optimizer.fast_init", DS_NOTE, NULL, BUFFERS},
    {"zero_optimization.offload_optimizer.ratio", DS_NOTE, NULL, BUFFERS},
    {"zero_optimization.offload_optimizer.super_offload", DS_ONLY, "false", OFFLOAD},
    {"zero_optimization.offload_optimizer.cpuadam_cores_perc", DS_NOTE, NULL, BUFFERS},
    {"zero_optimization.offload_param", DS_OBJECT, NULL, NULL},
    {"zero_optimization.offload_param.device", DS_CODE, NULL, NULL},
    {"zero_optimization.offload_param.nvme_path", DS_CODE, NULL, NULL},
    {"zero_optimization.offload_param.buffer_count", DS_NOTE, NULL, BUFFERS},
    {"zero_optimization.offload_param.buffer_size", DS_NOTE, NULL, BUFFERS},
    {"zero_optimization.offload_param.max_in_cpu", DS_NOTE, NULL, BUFFERS},
    {"zero_optimization.offload_param.pin_memory", DS_NOTE, NULL, BUFFERS},
    {"zero_optimization.zenflow", DS_ONLY, "null", OFFLOAD},
    {"zero_optimization.zero_hpz_partition_size", DS_ONLY, "1", "there is no second partition; say 1"},
    {"zero_optimization.zero_quantized_weights", DS_ONLY, "false", QUANTIZED},
    {"zero_optimization.zero_quantized_nontrainable_weights", DS_ONLY, "false", QUANTIZED},
    {"zero_optimization.zero_quantized_gradients", DS_ONLY, "false", QUANTIZED},
    {"zero_optimization.zeropp_loco_param", DS_ONLY, "null", QUANTIZED},
    {"zero_optimization.mics_shard_size", DS_ONLY, "-1", "shards are over all ranks; say -1 or leave it out"},
    {"zero_optimization.mics_hierarchical_params_gather", DS_ONLY, "false", "shards are over all ranks; say false"},

    {"fp16", DS_OBJECT, NULL, NULL},
    {"fp16.enabled", DS_CODE, NULL, NULL},
    {"fp16.loss_scale", DS_CODE, NULL, NULL},
    {"fp16.initial_scale_power", DS_CODE, NULL, NULL},
    {"fp16.loss_scale_window", DS_CODE, NULL, NULL},
    {"fp16.hysteresis", DS_CODE, NULL, NULL},
    {"fp16.min_loss_scale", DS_CODE, NULL, NULL},
    {"fp16.consecutive_hysteresis", DS_ONLY, "false", "a good step does not restore the hysteresis; say false"},
    {"fp16.auto_cast", DS_NOTE, NULL, "operators cast their operands in any case"},
    {"fp16.opt_level", DS_NOTE, NULL, "of Apex; fp16.enabled decides"},
    {"fp16.fused_mode", DS_NOTE, NULL, "the update is one pass in any case"},
    {"fp16.fp16_master_weights_and_grads", DS_ONLY, "false", "masters are float32; say false"},
    {"bf16", DS_OBJECT, NULL, NULL},
    {"bf16.enabled", DS_CODE, NULL, NULL},
    {"bf16.immediate_grad_update", DS_NOTE, NULL, "the plan decides; sums are the same"},
    {"bf16.check_grad_overflow", DS_NOTE, NULL, "a loss that is not finite ends the run; --detect-anomaly names the tensor"},
    {"bf16.bf16_master_weights_and_grads", DS_ONLY, "false", "masters are float32; say false"},
    {"bf16.bf16_optimizer_states", DS_ONLY, "false", "optimizer states are float32 (--optimizer adamw8: 8 bits); say false"},
    {"bfloat16", DS_OBJECT, NULL, NULL},
    {"bfloat16.enabled", DS_CODE, NULL, NULL},

    {"optimizer", DS_OBJECT, NULL, NULL},
    {"optimizer.type", DS_CODE, NULL, NULL},
    {"optimizer.params", DS_CODE, NULL, NULL},
    {"optimizer.legacy_fusion", DS_NOTE, NULL, "the update is one pass in any case"},
    {"scheduler", DS_OBJECT, NULL, NULL},
    {"scheduler.type", DS_CODE, NULL, NULL},
    {"scheduler.params", DS_CODE, NULL, NULL},
    {NULL, DS_CODE, NULL, NULL},
};

// ---- Settings and notes ---------------------------------------------------------------------------------------------------------------

void ds_set(const DsReader *r, const char *option, const char *value, const char *key) {
  DsSetting setting = {option, value, key};
  ARENA_PUSH(r->arena, r->out->settings, r->out->n_settings, r->out->settings_capacity, setting);
}

void ds_set_int(const DsReader *r, const char *option, int64_t value, const char *key) { ds_set(r, option, arena_printf(r->arena, "%" PRId64, value), key); }

void ds_set_real(const DsReader *r, const char *option, double value, const char *key) {
  char decimal[DECIMAL_BYTES];
  ds_set(r, option, arena_string(r->arena, decimal_text(value, decimal)), key);
}

void ds_unused(const DsReader *r, const char *key, const char *why) {
  DsSetting setting = {NULL, why, key};
  ARENA_PUSH(r->arena, r->out->unused, r->out->n_unused, r->out->unused_capacity, setting);
}

void ds_note(const DsReader *r, const char *format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  const char *kept = arena_string(r->arena, text);
  ARENA_PUSH(r->arena, r->out->notes, r->out->n_notes, r->out->notes_capacity, kept);
}

// ---- Values ---------------------------------------------------------------------------------------------------------------------------

static const json_t *find(const DsReader *r, const char *path) {
  const json_t *at = r->root;
  char key[128];
  while (at && *path) {
    size_t n = strcspn(path, ".");
    if (n >= sizeof key) return NULL;
    memcpy(key, path, n);
    key[n] = 0;
    at = json_object_get(at, key);
    path += n + (path[n] == '.');
  }
  return at;
}

static bool is_auto(const json_t *json) { return json_is_string(json) && !strcmp(json_string_value(json), "auto"); }
bool ds_is_auto(const DsReader *r, const char *path) { return is_auto(find(r, path)); }

const json_t *ds_get(const DsReader *r, const char *path) {
  const json_t *json = find(r, path);
  return json_is_null(json) || is_auto(json) ? NULL : json;
}

Status ds_get_int(const DsReader *r, const char *path, int64_t min, int64_t *out) {
  const json_t *json = ds_get(r, path);
  if (!json) return STATUS_OK;
  double value = json_number_value(json);
  if (!json_is_number(json) || value != floor(value) || value < (double)min || value > 0x1p53)
    FAIL(MALFORMED, NULL, "%s: \"%s\" must be a whole number of at least %" PRId64 ", or \"auto\"", r->path, path, min);
  *out = (int64_t)value;
  return STATUS_OK;
}

Status ds_get_real(const DsReader *r, const char *path, double min, double *out) {
  const json_t *json = ds_get(r, path);
  if (!json) return STATUS_OK;
  double value = json_number_value(json);
  if (!json_is_number(json) || !isfinite(value) || value < min) FAIL(MALFORMED, NULL, "%s: \"%s\" must be a number of at least %g, or \"auto\"", r->path, path, min);
  *out = value;
  return STATUS_OK;
}

Status ds_get_bool(const DsReader *r, const char *path, bool *out) {
  const json_t *json = ds_get(r, path);
  if (!json) return STATUS_OK;
  if (!json_is_boolean(json)) FAIL(MALFORMED, NULL, "%s: \"%s\" must be true, false or \"auto\"", r->path, path);
  *out = json_is_true(json);
  return STATUS_OK;
}

Status ds_get_text(const DsReader *r, const char *path, const char **out) {
  const json_t *json = ds_get(r, path);
  if (!json) return STATUS_OK;
  if (!json_is_string(json)) FAIL(MALFORMED, NULL, "%s: \"%s\" must be a text", r->path, path);
  *out = json_string_value(json);
  return STATUS_OK;
}

// ---- The walk -------------------------------------------------------------------------------------------------------------------------

const char *ds_nearest(const char *word, const char *const *names, int n) {
  const char *nearest = NULL;
  size_t best = strlen(word) / 3 + 1;
  for (int i = 0; i < n; i++) {
    size_t d = edit_distance(word, names[i]);
    if (d > best || (d == best && nearest)) continue;
    best = d;
    nearest = names[i];
  }
  return nearest;
}

static Status unknown_key(const DsReader *r, const char *path, const char *const *names, int n, const char *of) {
  const char *nearest = ds_nearest(path, names, n);
  if (nearest) FAIL(MALFORMED, NULL, "%s: \"%s\" is no key of %s; did you mean \"%s\"?", r->path, path, of, nearest);
  FAIL(MALFORMED, NULL, "%s: \"%s\" is no key of %s that is known here", r->path, path, of);
}

Status ds_check_names(const DsReader *r, const char *path, const char *const *names, int n, const char *of) {
  const char *key;
  json_t *value, *object = (json_t *)(uintptr_t)ds_get(r, path);       // jansson's iterators take no const
  if (object && !json_is_object(object)) FAIL(MALFORMED, NULL, "%s: \"%s\" must be an object", r->path, path);
  json_object_foreach(object, key, value) {
    int i = 0;
    while (i < n && strcmp(names[i], key)) i++;
    if (i == n) return unknown_key(r, key, names, n, of);
  }
  return STATUS_OK;
}

// A scalar as the column of values has it; NULL: an object or a list.
static const char *scalar_text(const json_t *json, char decimal[DECIMAL_BYTES]) {
  switch (json_typeof(json)) {
  case JSON_STRING: return json_string_value(json);
  case JSON_TRUE: return "true";
  case JSON_FALSE: return "false";
  case JSON_NULL: return "null";
  case JSON_INTEGER: case JSON_REAL: return decimal_text(json_number_value(json), decimal);
  default: return NULL;
  }
}

static bool is_listed(const char *text, const char *values) {
  size_t n = strlen(text);
  for (const char *p = values; n && p; p = strchr(p, '|')) {
    if (*p == '|') p++;
    if (!strncmp(p, text, n) && (p[n] == '|' || !p[n])) return true;
  }
  return false;
}

static Status check_only(const DsReader *r, const DsKey *row, const json_t *value) {
  char decimal[DECIMAL_BYTES];
  const char *text = scalar_text(value, decimal);
  if (is_auto(value) || (text && is_listed(text, row->values))) return STATUS_OK;
  const char *quote = json_is_string(value) ? "\"" : "";
  if (!text) FAIL(UNSUPPORTED, NULL, "%s: \"%s\" is refused: %s", r->path, row->path, row->text);
  FAIL(UNSUPPORTED, NULL, "%s: \"%s\": %s%.60s%s is refused: %s", r->path, row->path, quote, text, quote, row->text);
}

static Status check_feature(const DsReader *r, const DsKey *row, const json_t *value) {
  const json_t *enabled = json_object_get(value, "enabled");
  if (!json_is_object(value)) FAIL(MALFORMED, NULL, "%s: \"%s\" must be an object", r->path, row->path);
  if (enabled && !json_is_boolean(enabled) && !is_auto(enabled)) FAIL(MALFORMED, NULL, "%s: \"%s.enabled\" must be true or false", r->path, row->path);
  if (json_is_true(enabled)) FAIL(UNSUPPORTED, NULL, "%s: \"%s\" is not there: %s", r->path, row->path, row->text);
  return STATUS_OK;
}

// Names of the keys of the object at `prefix` ("" or "a.b."), as paths.
static const char **names_under(const DsReader *r, const char *prefix, int *out_n) {
  size_t n_prefix = strlen(prefix), n = 0, capacity = 0;
  const char **names = NULL;
  for (const DsKey *k = ds_keys; k->path; k++)
    if (!strncmp(k->path, prefix, n_prefix) && !strchr(k->path + n_prefix, '.')) ARENA_PUSH(r->arena, names, n, capacity, k->path);
  *out_n = (int)n;
  return names;
}

static Status walk(const DsReader *r, json_t *object, const char *prefix) {
  const char *key;
  json_t *value;
  json_object_foreach(object, key, value) {
    const char *path = arena_printf(r->arena, "%s%s", prefix, key);
    const DsKey *row = ds_keys;
    while (row->path && strcmp(row->path, path)) row++;
    if (!row->path) {
      int n;
      const char **names = names_under(r, prefix, &n);
      return unknown_key(r, path, names, n, "a DeepSpeed configuration");
    }
    switch (row->rule) {
    case DS_CODE: break;
    case DS_ONLY: TRY(check_only(r, row, value)); break;
    case DS_FEATURE: TRY(check_feature(r, row, value)); break;
    case DS_NOTE: ds_unused(r, row->path, row->text); break;
    case DS_OBJECT:
      if (json_is_null(value)) break;
      if (!json_is_object(value)) FAIL(MALFORMED, NULL, "%s: \"%s\" must be an object", r->path, path);
      TRY(walk(r, value, arena_printf(r->arena, "%s.", path)));
    }
  }
  return STATUS_OK;
}

Status ds_keys_check(const DsReader *r) { return walk(r, (json_t *)(uintptr_t)r->root, ""); }
