#include "ds_config.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ds_keys.h"

bool ds_config_detect(const json_t *root) {
  for (const DsKey *k = ds_keys; k->path; k++) {
    const json_t *value = strchr(k->path, '.') ? NULL : json_object_get(root, k->path);
    bool ours = !strcmp(k->path, "optimizer") || !strcmp(k->path, "scheduler");      // also a name of ours, whose value is a text
    if (value && (!ours || json_is_object(value))) return true;
  }
  return false;
}

// ---- The size of a batch ----------------------------------------------------------------------------------------------------------

// train = micro x steps x ranks, with two of the three or fewer said; 0: not said.
typedef struct Batch { int64_t train, micro, steps, ranks; } Batch;

static const char *said_by(bool elsewhere, const char *key, const char *option) { return elsewhere ? option : key; }

static Status divide(const DsReader *r, const Batch *b, int64_t by, const char *by_name, const char *what, int64_t *out) {
  if (b->train % (by * b->ranks))
    FAIL(USAGE, NULL, "%s: train_batch_size %" PRId64 " cannot be divided into %s %" PRId64 " x %" PRId64 " rank%s (--ranks): %" PRId64 " / %" PRId64
         " leaves %" PRId64 " over, so there is no %s", r->path, b->train, by_name, by, b->ranks, b->ranks == 1 ? "" : "s", b->train, by * b->ranks,
         b->train % (by * b->ranks), what);
  *out = b->train / (by * b->ranks);
  return STATUS_OK;
}

static Status complete_batch(const DsReader *r, Batch *b, const char *micro_name, const char *steps_name) {
  if (b->train && b->micro && b->steps) {
    if (b->train == b->micro * b->steps * b->ranks) return STATUS_OK;
    FAIL(USAGE, NULL, "%s: train_batch_size %" PRId64 " is not %s %" PRId64 " x %s %" PRId64 " x %" PRId64 " rank%s (--ranks) = %" PRId64, r->path, b->train, micro_name,
         b->micro, steps_name, b->steps, b->ranks, b->ranks == 1 ? "" : "s", b->micro * b->steps * b->ranks);
  }
  if (b->train && b->micro) return divide(r, b, b->micro, micro_name, "gradient_accumulation_steps", &b->steps);
  if (b->train && b->steps) return divide(r, b, b->steps, steps_name, "train_micro_batch_size_per_gpu", &b->micro);
  if (b->train) {
    b->steps = 1;
    return divide(r, b, 1, "gradient_accumulation_steps", "train_micro_batch_size_per_gpu", &b->micro);
  }
  if (b->micro && !b->steps) b->steps = 1;
  return STATUS_OK;
}

static Status read_batch(const DsReader *r) {
  static const int64_t most[] = {INT64_C(1) << 40, 1 << 22, 1 << 22}, ranks_most = 1 << 16;      // so that products are exact
  const DsContext *c = r->context;
  static const char *const keys[] = {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"};
  Batch b = {.ranks = c->ranks};
  int64_t *const to[] = {&b.train, &b.micro, &b.steps};
  for (int i = 0; i < 3; i++) {
    TRY(ds_get_int(r, keys[i], 1, to[i]));
    if (*to[i] > most[i]) FAIL(MALFORMED, NULL, "%s: \"%s\" %" PRId64 " is above %" PRId64, r->path, keys[i], *to[i], most[i]);
  }
  assert(c->ranks >= 1 && c->ranks <= ranks_most);
  Batch file = b;
  if (c->batch) b.micro = c->batch;
  if (c->micro_batches && c->micro_batches % c->ranks)
    FAIL(USAGE, NULL, "--micro-batches %" PRId64 " cannot be divided over %" PRId64 " ranks (--ranks)", c->micro_batches, c->ranks);
  if (c->micro_batches) b.steps = c->micro_batches / c->ranks;
  const char *micro_name = said_by(c->batch, keys[1], "--batch"), *steps_name = said_by(c->micro_batches, keys[2], "--micro-batches per rank");
  if (b.micro > most[1] || b.steps > most[2])
    FAIL(USAGE, NULL, "%s: %s %" PRId64 " x %s %" PRId64 " is beyond what a step holds", r->path, micro_name, b.micro, steps_name, b.steps);
  TRY(complete_batch(r, &b, micro_name, steps_name));
  if (b.micro && !c->batch)
    ds_set_int(r, "batch", b.micro, file.micro ? keys[1] :
               arena_printf(r->arena, "train_batch_size %" PRId64 " / %s %" PRId64 " / %" PRId64 " ranks", b.train, steps_name, b.steps, b.ranks));
  if (b.steps && !c->micro_batches)
    ds_set_int(r, "micro-batches", b.steps * b.ranks, file.steps ? arena_printf(r->arena, "%s %" PRId64 " x %" PRId64 " ranks", keys[2], b.steps, b.ranks)
               : b.train ? arena_printf(r->arena, "train_batch_size %" PRId64 " / %s %" PRId64, b.train, micro_name, b.micro)
                         : arena_printf(r->arena, "1 (gradient_accumulation_steps is not said) x %" PRId64 " ranks", b.ranks));
  return STATUS_OK;
}

// ---- ZeRO -------------------------------------------------------------------------------------------------------------------------

enum { BYTES_OF_ELEMENT = 4, BUCKET_ELEMENTS_LEAST = 1024 };     // parameters are float32; a bucket holds whole chunks

static Status read_buckets(const DsReader *r, int64_t stage, int64_t *out_elements) {
  int64_t reduce = 0, gather = 0;
  TRY(ds_get_int(r, "zero_optimization.reduce_bucket_size", 1, &reduce));
  TRY(ds_get_int(r, "zero_optimization.allgather_bucket_size", 1, &gather));
  const char *key = reduce ? "zero_optimization.reduce_bucket_size" : "zero_optimization.allgather_bucket_size";
  int64_t elements = reduce ? reduce : stage < 3 ? gather : 0;
  if (gather && gather != elements)
    ds_note(r, "\"zero_optimization.allgather_bucket_size\" %" PRId64 " is left out: %s; results do not depend on it", gather,
            stage < 3 ? "one size, that of reduce_bucket_size, holds for both" : "stage 3 gathers the buckets that it reduces");
  if (elements > (INT64_C(1) << 38)) elements = INT64_C(1) << 38;      // --bucket-bytes goes to 2^40: no model is as large
  if (elements && elements < BUCKET_ELEMENTS_LEAST) {
    ds_note(r, "\"%s\" %" PRId64 " is taken as %d elements, the least there is; results do not depend on it", key, elements, BUCKET_ELEMENTS_LEAST);
    elements = BUCKET_ELEMENTS_LEAST;
  }
  if (elements)
    ds_set_int(r, "bucket-bytes", elements * BYTES_OF_ELEMENT, arena_printf(r->arena, "%s %" PRId64 " elements x %d bytes", key, elements, BYTES_OF_ELEMENT));
  *out_elements = elements;
  return STATUS_OK;
}

// DeepSpeed counts elements that are fetched ahead, we count buckets.
static Status read_overlap(const DsReader *r, int64_t stage, int64_t bucket_elements) {
  bool overlap = false;
  int64_t ahead = 0;
  const json_t *said = ds_get(r, "zero_optimization.overlap_comm");
  TRY(ds_get_bool(r, "zero_optimization.overlap_comm", &overlap));
  TRY(ds_get_int(r, "zero_optimization.stage3_prefetch_bucket_size", 0, &ahead));
  if (!overlap) {
    if (said) ds_set(r, "prefetch", "0", "zero_optimization.overlap_comm");
    if (ahead) ds_note(r, "\"zero_optimization.stage3_prefetch_bucket_size\" is of overlap_comm, which is not true; results do not depend on it");
    return STATUS_OK;
  }
  int64_t buckets = stage == 3 && ahead && bucket_elements ? (ahead + bucket_elements - 1) / bucket_elements : 1;
  if (buckets > 1024) buckets = 1024;
  ds_set_int(r, "prefetch", buckets, buckets > 1 ? "zero_optimization.stage3_prefetch_bucket_size / bucket size" : "zero_optimization.overlap_comm");
  return STATUS_OK;
}

// "optimizer=host" of {"device": "cpu"}; appended to *all. The folder of an nvme device is that of the swap file.
static Status read_offload(const DsReader *r, const char *key, const char *what, const char **all) {
  const char *device = NULL, *folder = NULL;
  const char *device_key = arena_printf(r->arena, "zero_optimization.%s.device", key), *folder_key = arena_printf(r->arena, "zero_optimization.%s.nvme_path", key);
  TRY(ds_get_text(r, device_key, &device));
  TRY(ds_get_text(r, folder_key, &folder));
  if (!device || !strcmp(device, "none")) return STATUS_OK;
  if (strcmp(device, "cpu") && strcmp(device, "nvme")) FAIL(UNSUPPORTED, NULL, "\"%s\": \"%s\" is refused: there are none, cpu and nvme", device_key, device);
  bool disk = !strcmp(device, "nvme");
  if (disk && folder) ds_set(r, "swap-dir", folder, folder_key);
  *all = arena_printf(r->arena, "%s%s%s=%s", *all ? *all : "", *all ? "," : "", what, disk ? "nvme" : "host");
  return STATUS_OK;
}

static Status read_zero(const DsReader *r) {
  int64_t stage = 0, bucket_elements = 0;
  const json_t *said = ds_get(r, "zero_optimization.stage");
  TRY(ds_get_int(r, "zero_optimization.stage", 0, &stage));
  if (stage > 3) FAIL(MALFORMED, NULL, "%s: \"zero_optimization.stage\" %" PRId64 ": there are stages 0 to 3", r->path, stage);
  if (said) ds_set_int(r, "zero", stage, "zero_optimization.stage");
  TRY(read_buckets(r, stage, &bucket_elements));
  const char *offloaded = NULL;
  TRY(read_offload(r, "offload_optimizer", "optimizer", &offloaded));
  TRY(read_offload(r, "offload_param", "params", &offloaded));
  if (offloaded) ds_set(r, "offload", offloaded, "zero_optimization.offload_optimizer, offload_param");
  return read_overlap(r, stage, bucket_elements);
}

// ---- Recomputation ----------------------------------------------------------------------------------------------------------------

// DeepSpeed's models call for it and the file has its settings: what one of these asks for is that blocks are recomputed.
static Status read_checkpointing(const DsReader *r) {
  static const char partition[] = "activation_checkpointing.partition_activations", number[] = "activation_checkpointing.number_checkpoints";
  static const char on_host[] = "activation_checkpointing.cpu_checkpointing";
  bool partitions = false, host = false;
  int64_t checkpoints = 0;
  TRY(ds_get_bool(r, partition, &partitions));
  TRY(ds_get_int(r, number, 0, &checkpoints));
  if (partitions) ds_note(r, "\"%s\": activations of a rank are its own, so there is nothing to partition; blocks are recomputed", partition);
  if (checkpoints)
    ds_note(r, "\"%s\" %" PRId64 ": there are as many checkpoints as boundaries of blocks; --recompute budget=SIZE asks for fewer bytes", number, checkpoints);
  TRY(ds_get_bool(r, on_host, &host));
  if (partitions || checkpoints || host) ds_set(r, "recompute", "blocks", partitions ? partition : checkpoints ? number : on_host);
  if (host) ds_set(r, "offload", "activations=host", on_host);
  return STATUS_OK;
}

// ---- Precision --------------------------------------------------------------------------------------------------------------------

static Status read_loss_scale(const DsReader *r) {
  enum { POWER_MOST = 60 };
  static const struct { const char *key, *option; double least; } dynamic[] = {
      {"fp16.initial_scale_power", "loss-scale-init", 0}, {"fp16.loss_scale_window", "loss-scale-window", 1},
      {"fp16.hysteresis", "loss-scale-hysteresis", 1},    {"fp16.min_loss_scale", "loss-scale-min", 0}};
  static const char *const defaults[] = {"65536", "1000", "2", "1"};
  double fixed = 0;
  TRY(ds_get_real(r, "fp16.loss_scale", 0, &fixed));
  if (r->context->static_scale > 0) fixed = r->context->static_scale;
  if (fixed > 0) ds_set_real(r, "loss-scale", fixed, "fp16.loss_scale");
  else ds_set(r, "loss-scale", "dynamic", ds_get(r, "fp16.loss_scale") ? "fp16.loss_scale" : "fp16.enabled (loss_scale is not said)");
  for (int i = 0; i < 4; i++) {
    double value = NAN;
    TRY(ds_get_real(r, dynamic[i].key, dynamic[i].least, &value));
    if (i < 3 && !isnan(value) && value != floor(value))
      FAIL(MALFORMED, NULL, "%s: \"%s\" must be a whole number", r->path, dynamic[i].key);
    if (i == 0 && value > POWER_MOST) FAIL(MALFORMED, NULL, "%s: \"%s\" %g is above %d", r->path, dynamic[i].key, value, POWER_MOST);
    if (fixed > 0 && !isnan(value)) ds_note(r, "\"%s\" is of dynamic scaling; the loss scale %g is static", dynamic[i].key, fixed);
    if (fixed > 0) continue;
    if (isnan(value)) ds_set(r, dynamic[i].option, defaults[i], "DeepSpeed's default");
    else if (i == 0) ds_set_real(r, dynamic[i].option, ldexp(1, (int)value), arena_printf(r->arena, "2 ^ fp16.initial_scale_power %g", value));
    else ds_set_real(r, dynamic[i].option, value, dynamic[i].key);
  }
  return STATUS_OK;
}

// Gradients travel in the type that the model computes in, and are added in float32.
static Status check_wire(const DsReader *r, const char *precision) {
  const char *type = "none";
  bool wide = false, narrow = precision && strcmp(precision, "f32") && strcmp(precision, "fp64");
  TRY(ds_get_text(r, "communication_data_type", &type));
  TRY(ds_get_bool(r, "fp32_allreduce", &wide));
  if (wide && narrow)
    FAIL(UNSUPPORTED, NULL, "%s: \"fp32_allreduce\": true is refused: gradients travel in %s, and are added in float32; say false", r->path, precision);
  if (!strcmp(type, "none") || !strcmp(type, narrow ? precision : "fp32")) return STATUS_OK;
  FAIL(UNSUPPORTED, NULL, "%s: \"communication_data_type\": \"%.20s\" is refused: gradients travel in %s, and are added in float32; leave it out", r->path, type,
       narrow ? precision : "fp32");
}

static Status read_precision(const DsReader *r) {
  bool fp16 = false, bf16 = false, old = false;
  TRY(ds_get_bool(r, "fp16.enabled", &fp16));
  TRY(ds_get_bool(r, "bf16.enabled", &bf16));
  TRY(ds_get_bool(r, "bfloat16.enabled", &old));
  if (fp16 && (bf16 || old))
    FAIL(USAGE, NULL, "%s: \"fp16.enabled\" and \"%s.enabled\" are both true: a model computes in one of them; set the other to false", r->path,
         bf16 ? "bf16" : "bfloat16");
  const char *const precision = fp16 ? "fp16" : bf16 || old ? "bf16" : NULL;
  if (precision) ds_set(r, "precision", precision, fp16 ? "fp16.enabled" : bf16 ? "bf16.enabled" : "bfloat16.enabled");
  const char *holds = r->context->precision ? r->context->precision : precision;
  TRY(check_wire(r, holds));
  return holds && !strcmp(holds, "fp16") ? read_loss_scale(r) : STATUS_OK;
}

// ---- The rest ---------------------------------------------------------------------------------------------------------------------

// DeepSpeed clips at 1.0 where the key is absent since June 2026 (before that, not at all); transformers puts 1.0 in place of "auto".
static Status read_clipping(const DsReader *r) {
  double norm = 1;
  TRY(ds_get_real(r, "gradient_clipping", 0, &norm));
  bool said = ds_get(r, "gradient_clipping") != NULL;
  if (said) ds_set_real(r, "clip-norm", norm, "gradient_clipping");
  else ds_set(r, "clip-norm", "1", ds_is_auto(r, "gradient_clipping") ? "gradient_clipping: auto" : "DeepSpeed's default");
  if (!said && !ds_is_auto(r, "gradient_clipping"))
    ds_note(r, "\"gradient_clipping\" is absent: gradients are clipped to norm 1.0, as DeepSpeed does since June 2026 (before, it did not clip); "
               "\"gradient_clipping\": 0 is none");
  return STATUS_OK;
}

static Status read_observers(const DsReader *r) {
  bool profile = false, board = false;
  const char *path = "", *job = "DeepSpeedJobName";
  TRY(ds_get_bool(r, "wall_clock_breakdown", &profile));
  if (profile) ds_set(r, "profile", NULL, "wall_clock_breakdown");
  TRY(ds_get_bool(r, "tensorboard.enabled", &board));
  TRY(ds_get_text(r, "tensorboard.output_path", &path));
  TRY(ds_get_text(r, "tensorboard.job_name", &job));
  size_t n = strlen(path);
  if (board && (!*job || job[0] == '/')) FAIL(MALFORMED, NULL, "%s: \"tensorboard.job_name\" must be the name of a folder in output_path", r->path);
  if (board) ds_set(r, "tensorboard", arena_printf(r->arena, "%s%s%s", path, n && path[n - 1] != '/' ? "/" : "", job), "tensorboard: output_path/job_name");
  return STATUS_OK;
}

static Status read_all(const DsReader *r) {
  double lr = NAN;
  TRY(ds_keys_check(r));
  TRY(read_batch(r));
  TRY(read_zero(r));
  TRY(read_checkpointing(r));
  TRY(read_precision(r));
  TRY(read_clipping(r));
  TRY(ds_read_optimizer(r, &lr));
  TRY(ds_read_scheduler(r, lr));
  return read_observers(r);
}

Status ds_config_read(const json_t *root, const char *path, const DsContext *context, Arena *arena, DsConfig *out) {
  ARENA_GUARD(arena);
  DsConfig config = {0};
  DsReader r = {root, path, context, arena, &config};
  Status status = read_all(&r);
  if (!status) *out = config;
  ARENA_RETURN(arena, status);
}
