#include "checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "../ir/hex.h"
#include "../ir/state.h"
#include "../ir/tile.h"
#include "new_folder.h"
#include "origin_json.h"
#include "safetensors.h"
#include "tied_weights.h"

enum { PATH_BYTES = FOLDER_PATH_BYTES, HASH_TEXT_BYTES = 33, FORMAT_VERSION = 1 };
static const char meta_name[] = "meta.json", params_name[] = "params.safetensors", state_name[] = "state.safetensors";

static Status join(char out[PATH_BYTES], const char *dir, const char *name) {
  int n = snprintf(out, PATH_BYTES, "%s%s", dir, name);
  if (n < 0 || n >= PATH_BYTES) FAIL(USAGE, NULL, "the path of the checkpoint has %d bytes; at most %d are possible", n, PATH_BYTES - 1);
  return NULL;
}
static Status join_file(char out[PATH_BYTES], const char *dir, const char *name) {
  TRY(join(out, dir, "/"));
  char at[PATH_BYTES];
  memcpy(at, out, sizeof at);
  return join(out, at, name);
}

// XXH3-128 of a file's bytes, as hex.
static Status hash_file(const char *path, char out[HASH_TEXT_BYTES]) {
  enum { BLOCK_BYTES = 1 << 20 };
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) FAIL(IO, NULL, "cannot open %s: %s", path, strerror(errno));
  char *block = malloc(BLOCK_BYTES);
  XXH3_state_t *state = XXH3_createState();
  Status status = block && state ? NULL : status_fail(STATUS_RESOURCE, NULL, "no memory to hash %s", path);
  if (!status) XXH3_128bits_reset(state);
  while (!status) {
    ssize_t n = read(fd, block, BLOCK_BYTES);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) status = status_fail(STATUS_IO, NULL, "cannot read %s: %s", path, strerror(errno));
    if (n <= 0) break;
    XXH3_128bits_update(state, block, (size_t)n);
  }
  if (!status) {
    XXH128_hash_t h = XXH3_128bits_digest(state);
    hex128_text(h.high64, h.low64, out);
  }
  XXH3_freeState(state);
  free(block);
  close(fd);
  return status;
}

// ---- Tensors of a program -----------------------------------------------------------------------------------------------------

typedef struct Item { char *param; const char *which; } Item;      // what executor_read is asked for; owned
typedef struct Items {
  SafetensorsEntry *entries;
  Item *items;
  size_t n;
  char **names;                                              // owned names of entries; NULL where the parameter's own serves
} Items;

static void items_finish(Items *items) {
  for (size_t i = 0; i < items->n; i++) {
    free(items->names[i]);
    free(items->items[i].param);
  }
  free(items->names);
  free(items->entries);
  free(items->items);
}

static Status items_create(Items *items, size_t capacity) {
  *items = (Items){.entries = calloc(capacity + 1, sizeof *items->entries), .items = calloc(capacity + 1, sizeof *items->items),
                   .names = calloc(capacity + 1, sizeof *items->names)};
  if (items->entries && items->items && items->names) return NULL;
  items_finish(items);
  FAIL(RESOURCE, NULL, "no memory to list %zu tensors", capacity);
}

static size_t count_params(const Graph *program) {
  size_t n = 0;
  for (size_t b = 0; b < program->n_buckets; b++) n += (size_t)program->buckets[b].n_params;
  return n;
}

// What a slot of a bucket holds, or a state of that; nothing for a later tile of a parameter. On errors the items are finished.
static Status add_item(Items *items, const Graph *program, int bucket, int slot, const char *which, const Value *state) {
  WholeParam whole;
  if (!bucket_whole_param(program, bucket, slot, &whole)) return NULL;
  char *param = strndup(whole.name, whole.name_bytes), *name = param;
  bool memory = param && (!state || asprintf(&name, "%s.%s", param, which) >= 0);
  if (!memory) {
    free(param);
    items_finish(items);
    FAIL(RESOURCE, NULL, "no memory to name a tensor");
  }
  Type type = state ? state_piece_type(state->state_shape, state->type.dtype, &whole.type) : whole.type;
  items->names[items->n] = state ? name : NULL;
  items->entries[items->n] = (SafetensorsEntry){name, type};
  items->items[items->n++] = (Item){param, which};
  return NULL;
}

// Running statistics as the model names them; others of that role become them.
static bool is_stored_buffer(const Value *v) { return v->role == ROLE_BUFFER && !v->carry && v->producer && v->producer->phase == PHASE_INIT; }

// Frozen parameters have no gradient.
static Status list_params(const Graph *program, const char *which, bool only_trainable, Items *items) {
  TRY(items_create(items, count_params(program) + program->n_values));
  for (size_t i = 0; i < program->n_values && !which; i++) {
    const Value *v = program->values[i];
    if (!is_stored_buffer(v)) continue;
    items->entries[items->n] = (SafetensorsEntry){v->name, v->type};
    items->items[items->n].param = strdup(v->name);
    if (!items->items[items->n++].param) {
      items_finish(items);
      FAIL(RESOURCE, v->name, "no memory to name a tensor");
    }
  }
  for (size_t b = 0; b < program->n_buckets; b++) {
    const Bucket *bucket = &program->buckets[b];
    if (only_trainable && !bucket->trainable) continue;
    for (int i = 0; i < bucket->n_params; i++) TRY(add_item(items, program, (int)b, i, which, NULL));
  }
  return NULL;
}

// The stored form of a bucket's state is called bucket.B.STATE; other values of that role are on their way there.
static bool is_stored_state(const Value *v) {
  char name[256];
  if (v->role != ROLE_STATE || v->bucket < 0 || !v->state_name) return false;
  snprintf(name, sizeof name, "bucket.%d.%s", v->bucket, v->state_name);
  return !strcmp(v->name, name);
}

static Status list_states(const Graph *program, Items *items) {
  size_t n_states = 0;
  for (size_t i = 0; i < program->n_values; i++) n_states += is_stored_state(program->values[i]);
  TRY(items_create(items, n_states * count_params(program)));
  for (size_t v = 0; v < program->n_values; v++) {
    const Value *state = program->values[v];
    if (!is_stored_state(state)) continue;
    const Bucket *bucket = &program->buckets[state->bucket];
    for (int i = 0; i < bucket->n_params; i++) TRY(add_item(items, program, state->bucket, i, state->state_name, state));
  }
  return NULL;
}

// In pieces, so that no tensor lies in memory once more; aligned, as files of tier NVME like them.
enum { PIECE_BYTES = 4 << 20, PIECE_ALIGN = 4096 };

static Status write_item(SafetensorsWriter *writer, Executor *executor, const Items *items, size_t i, void *piece, Status *failed) {
  const Item *item = &items->items[i];
  int64_t width = dtype_bytes(items->entries[i].type.dtype), elems = type_elems(&items->entries[i].type), step = PIECE_BYTES / width;
  for (int64_t at = 0; at < elems && !(*failed && executor_is_alone(executor)); at += step) {
    int64_t n = elems - at < step ? elems - at : step;
    TRY(executor_read_part(executor, item->param, item->which, at, n, piece));
    if (writer && !*failed) *failed = safetensors_append(writer, i, piece, n * width);
  }
  return NULL;
}

// Every process reads, since all must take part; the first writes (writer NULL: none does), and reads on when it cannot write.
static Status write_items(SafetensorsWriter *writer, Executor *executor, const Items *items, Status *failed) {
  void *piece = aligned_alloc(PIECE_ALIGN, PIECE_BYTES);
  if (!piece) FAIL(RESOURCE, NULL, "no memory to write %zu tensors", items->n);
  Status status = NULL;
  for (size_t i = 0; i < items->n && !status; i++) status = write_item(writer, executor, items, i, piece, failed);
  free(piece);
  return status;
}

static Status write_file(const char *path, Executor *executor, const Items *items) {
  static const char *const metadata[] = {"format", "pt", NULL};
  SafetensorsWriter *writer = NULL;
  Status failed = executor_is_first(executor) ? safetensors_create(path, items->entries, items->n, metadata, &writer) : NULL;
  if (failed) writer = NULL;
  Status status = write_items(writer, executor, items, &failed);
  if (!status && !failed) return writer ? safetensors_finish(writer) : NULL;
  if (writer) safetensors_abandon(writer);
  if (!status) return failed;
  status_free(failed);
  return status;
}

Status checkpoint_dump(const char *path, Executor *executor, const Graph *program, const char *which) {
  Items items;
  TRY(list_params(program, which, which != NULL, &items));
  Status status = write_file(path, executor, &items);
  items_finish(&items);
  return status;
}

static Status dump_states(const char *path, Executor *executor, const Graph *program) {
  Items items;
  TRY(list_states(program, &items));
  Status status = write_file(path, executor, &items);
  items_finish(&items);
  return status;
}

// ---- Saving -------------------------------------------------------------------------------------------------------------------

static Status add_file(json_t *files, const char *dir, const char *name) {
  char path[PATH_BYTES], hash[HASH_TEXT_BYTES];
  TRY(join_file(path, dir, name));
  TRY(hash_file(path, hash));
  json_object_set_new(files, name, json_pack("{s:s}", "xxh3_128", hash));
  return NULL;
}

static json_t *texts_to_json(const char *const *texts, size_t n) {
  json_t *list = json_array();
  for (size_t i = 0; list && i < n; i++)
    if (json_array_append_new(list, json_string(texts[i]))) {
      json_decref(list);
      return NULL;
    }
  return list;
}

static json_t *meta_json(const Graph *program, const CheckpointInfo *info, const char *model_path) {
  const Recipe *r = &program->recipe;
  return json_pack("{s:i, s:I, s:I, s:I, s:{s:s, s:s}, s:{s:s, s:s, s:s, s:i, s:i, s:I, s:s}, s:o}", "tessera_checkpoint", FORMAT_VERSION, "step",
                   (json_int_t)info->step, "seed", (json_int_t)info->seed, "next_batch", (json_int_t)info->next_batch, "model", "path", model_path, "fingerprint",
                   info->fingerprint ? info->fingerprint : "", "recipe", "optimizer", r->optimizer ? r->optimizer : "", "precision",
                   r->precision ? r->precision : "", "reduce", reduce_name(r->reduce), "zero", r->zero, "ranks", mesh_ranks(&program->mesh), "micro_per_rank",
                   (json_int_t)r->micro_per_rank, "loss_rule", r->loss_rule ? r->loss_rule : "", "files", json_object());
}

static Status write_text(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) FAIL(IO, NULL, "cannot create %s: %s", path, strerror(errno));
  size_t n = strlen(text), done = 0;
  int error = 0;
  while (done < n && !error) {
    ssize_t m = write(fd, text + done, n - done);
    if (m < 0 && errno != EINTR) error = errno;
    if (m > 0) done += (size_t)m;
  }
  if (!error && fsync(fd)) error = errno;
  if (close(fd) && !error) error = errno;
  if (error) FAIL(IO, NULL, "cannot write %s: %s", path, strerror(error));
  return NULL;
}

static json_t *scale_to_json(const LossScale *s) {
  return json_pack("{s:f, s:I, s:I, s:I, s:I}", "scale", s->scale, "good_steps", (json_int_t)s->good_steps, "patience", (json_int_t)s->patience, "skips",
                   (json_int_t)s->skips, "applied", (json_int_t)s->applied);
}

static Status write_meta(const char *dir, const Graph *program, const CheckpointInfo *info) {
  char resolved[PATH_BYTES], path[PATH_BYTES];
  const char *model = info->model_path ? info->model_path : "";
  if (*model && realpath(model, resolved)) model = resolved;
  json_t *meta = meta_json(program, info, model);
  if (meta && info->loss_scale && json_object_set_new(meta, "loss_scale", scale_to_json(info->loss_scale))) {
    json_decref(meta);
    meta = NULL;
  }
  if (!meta || json_object_set_new(meta, "options", texts_to_json(info->options, info->n_options)) ||
      json_object_set_new(meta, "defaults", texts_to_json(info->defaults, info->n_defaults)) ||
      (info->data && json_object_set_new(meta, "data", texts_to_json(info->data, info->n_data))) ||
      (info->n_ties && json_object_set_new(meta, "ties", ties_to_json(info->ties, info->n_ties))) ||
      (info->n_origins && json_object_set_new(meta, "initializers", origins_to_json(info->origins, info->n_origins)))) {
    json_decref(meta);
    FAIL(MALFORMED, NULL, "a path or a name of the checkpoint is no UTF-8");
  }
  Status status = add_file(json_object_get(meta, "files"), dir, params_name);
  if (!status) status = add_file(json_object_get(meta, "files"), dir, state_name);
  char *text = status ? NULL : json_dumps(meta, JSON_INDENT(1));
  json_decref(meta);
  if (!status && !text) status = status_fail(STATUS_RESOURCE, NULL, "no memory for %s", meta_name);
  if (!status) status = join_file(path, dir, meta_name);
  if (!status) status = write_text(path, text);
  free(text);
  return status;
}

static bool is_empty_dir(const char *dir) {
  DIR *d = opendir(dir);
  if (!d) return false;
  int n = 0;
  while (readdir(d)) n++;
  closedir(d);
  return n <= 2;
}

static Status check_place(const char *dir) {
  char path[PATH_BYTES];
  struct stat st;
  if (lstat(dir, &st)) return NULL;
  TRY(join_file(path, dir, meta_name));
  if (!S_ISDIR(st.st_mode) || (access(path, F_OK) && !is_empty_dir(dir)))
    FAIL(USAGE, NULL, "%s exists and is no checkpoint: it will not be overwritten; choose another folder", dir);
  return NULL;
}

static Status write_all(const char *dir, Executor *executor, const Graph *program, const CheckpointInfo *info) {
  char path[PATH_BYTES];
  TRY(join_file(path, dir, params_name));
  TRY(checkpoint_dump(path, executor, program, NULL));
  TRY(join_file(path, dir, state_name));
  TRY(dump_states(path, executor, program));
  return write_meta(dir, program, info);
}

static Status parent_of(const char *dir, char out[PATH_BYTES]) {
  TRY(join(out, dir, ""));
  char *slash = strrchr(out, '/');
  if (slash) slash[slash == out] = 0;
  else strcpy(out, ".");
  return NULL;
}

// The name without slashes at its end.
static Status place_of(const char *dir, char out[PATH_BYTES]) {
  TRY(join(out, dir, ""));
  for (size_t n = strlen(out); n > 1 && out[n - 1] == '/'; n--) out[n - 1] = 0;
  if (!out[0]) FAIL(USAGE, NULL, "a checkpoint needs the name of a folder");
  return NULL;
}

Status checkpoint_check_place(const char *dir) {
  char place[PATH_BYTES], parent[PATH_BYTES];
  TRY(place_of(dir, place));
  TRY(check_place(place));
  TRY(parent_of(place, parent));
  if (access(parent, W_OK | X_OK)) FAIL(IO, NULL, "%s cannot be made: the folder %s: %s", place, parent, strerror(errno));
  return NULL;
}

static Status begin(const char *dir, NewFolder *out) {
  static const char *const ours[] = {meta_name, params_name, state_name, NULL};
  char place[PATH_BYTES];
  TRY(place_of(dir, place));
  TRY(check_place(place));
  return new_folder_begin(place, ours, out);
}

Status checkpoint_save(const char *dir, Executor *executor, const Graph *program, const CheckpointInfo *info) {
  NewFolder folder;
  bool first = executor_is_first(executor), refused;
  Status status = first ? begin(dir, &folder) : NULL, told = executor_any(executor, status != NULL, &refused);
  if (status) {
    status_free(told);
    return status;
  }
  if (!told && refused) told = status_fail(STATUS_IO, NULL, "the first process cannot write the checkpoint '%s'", dir);
  if (!first) {
    TRY(told);
    TRY(checkpoint_dump(dir, executor, program, NULL));
    return dump_states(dir, executor, program);
  }
  status = told ? told : write_all(folder.path, executor, program, info);
  if (!status) return new_folder_commit(&folder);
  new_folder_abandon(&folder);
  return status;
}

// ---- Loading ------------------------------------------------------------------------------------------------------------------

struct Checkpoint {
  char *dir;
  Arena *arena;                    // of the origins, and of what ties stand for
  json_t *meta;                    // owns the strings of `info`
  CheckpointInfo info;
  Safetensors *params, *state;
  WeightSource params_source, named_source, all_source;
  Weight *all, *averaged;
  LossScale scale;
};

static Status read_scale(Checkpoint *c, const char *path) {
  json_t *scale = json_object_get(c->meta, "loss_scale");
  json_int_t good, patience, skips, applied;
  json_error_t error;
  LossScale *s = &c->scale;
  if (!scale) return NULL;
  if (json_unpack_ex(scale, &error, 0, "{s:F, s:I, s:I, s:I, s:I}", "scale", &s->scale, "good_steps", &good, "patience", &patience, "skips", &skips, "applied", &applied))
    FAIL(MALFORMED, NULL, "%s: loss_scale: %s", path, error.text);
  if (!(s->scale > 0) || !isfinite(s->scale) || good < 0 || patience < 1 || skips < 0 || applied < 0)
    FAIL(MALFORMED, NULL, "%s: loss_scale: scale %g after %lld steps is none", path, s->scale, (long long)applied);
  s->good_steps = good;
  s->patience = patience;
  s->skips = skips;
  s->applied = applied;
  c->info.loss_scale = s;
  return NULL;
}

static Status read_meta(Checkpoint *c) {
  char path[PATH_BYTES];
  json_error_t error;
  TRY(join_file(path, c->dir, meta_name));
  if (access(path, R_OK)) FAIL(IO, NULL, "%s is no checkpoint: cannot read %s: %s", c->dir, path, strerror(errno));
  c->meta = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
  if (!c->meta) FAIL(MALFORMED, NULL, "%s is no JSON: %s (line %d)", path, error.text, error.line);
  json_int_t version, step, seed, next_batch, micro;
  CheckpointInfo *i = &c->info;
  if (json_unpack_ex(c->meta, &error, 0, "{s:I, s:I, s:I, s:I, s:{s:s, s:s}, s:{s:s, s:s, s:s, s:i, s:i, s:I}}", "tessera_checkpoint", &version, "step", &step,
                     "seed", &seed, "next_batch", &next_batch, "model", "path", &i->model_path, "fingerprint", &i->fingerprint, "recipe", "optimizer",
                     &i->optimizer, "precision", &i->precision, "reduce", &i->reduce, "zero", &i->zero, "ranks", &i->ranks, "micro_per_rank", &micro))
    FAIL(MALFORMED, NULL, "%s: %s", path, error.text);
  if (version != FORMAT_VERSION) FAIL(UNSUPPORTED, NULL, "%s is of version %lld; this program reads version %d", path, (long long)version, FORMAT_VERSION);
  if (step < 0 || next_batch < 0) FAIL(MALFORMED, NULL, "%s: step %lld, next batch %lld", path, (long long)step, (long long)next_batch);
  i->step = step;
  i->seed = (uint64_t)seed;
  i->next_batch = next_batch;
  i->micro_per_rank = micro;
  return read_scale(c, path);
}

// A list of texts that may be absent.
static Status read_texts(const Checkpoint *c, const char *key, const char *const **out, size_t *n_out) {
  json_t *list = json_object_get(c->meta, key);
  const char **texts = ARENA_ARRAY(c->arena, const char *, json_array_size(list));
  for (size_t i = 0; i < json_array_size(list); i++)
    if (!(texts[i] = json_string_value(json_array_get(list, i)))) FAIL(MALFORMED, NULL, "'%s' is no list of texts", key);
  if (list && !json_is_array(list)) FAIL(MALFORMED, NULL, "'%s' is no list of texts", key);
  *out = texts;
  *n_out = json_array_size(list);
  return NULL;
}

static Status read_origins(Checkpoint *c) {
  c->arena = arena_create(0);
  if (!c->arena) FAIL(RESOURCE, NULL, "no memory to open %s", c->dir);
  ARENA_GUARD(c->arena);
  Status status = origins_from_json(json_object_get(c->meta, "initializers"), c->arena, &c->info.origins, &c->info.n_origins);
  if (!status) status = ties_from_json(json_object_get(c->meta, "ties"), c->arena, &c->info.ties, &c->info.n_ties);
  if (!status) status = read_texts(c, "options", &c->info.options, &c->info.n_options);
  if (!status) status = read_texts(c, "defaults", &c->info.defaults, &c->info.n_defaults);
  if (!status && json_object_get(c->meta, "data")) status = read_texts(c, "data", &c->info.data, &c->info.n_data);
  ARENA_RETURN(c->arena, status_context(status, "%s/%s", c->dir, meta_name));
}

static Status open_part(Checkpoint *c, const char *name, Safetensors **out) {
  char path[PATH_BYTES], hash[HASH_TEXT_BYTES];
  const char *want = json_string_value(json_object_get(json_object_get(json_object_get(c->meta, "files"), name), "xxh3_128"));
  TRY(join_file(path, c->dir, name));
  if (!want) FAIL(MALFORMED, NULL, "%s/%s says nothing of %s", c->dir, meta_name, name);
  TRY(hash_file(path, hash));
  if (strcmp(hash, want)) FAIL(MALFORMED, NULL, "%s has changed since it was saved: its hash is %s, %s says %.40s", path, hash, meta_name, want);
  return safetensors_open(path, out);
}

static Status load(Checkpoint *c, const char *dir) {
  c->dir = strdup(dir);
  if (!c->dir) FAIL(RESOURCE, NULL, "no memory to open %s", dir);
  TRY(read_meta(c));
  TRY(read_origins(c));
  TRY(open_part(c, params_name, &c->params));
  TRY(open_part(c, state_name, &c->state));
  c->params_source = (WeightSource){.path = c->dir, .weights = safetensors_tensors(c->params), .n_weights = safetensors_count(c->params)};
  return NULL;
}

static Status open_once(const char *dir, Checkpoint **out) {
  Checkpoint *c = calloc(1, sizeof *c);
  if (!c) FAIL(RESOURCE, NULL, "no memory to open %s", dir);
  Status status = load(c, dir);
  if (status) checkpoint_close(c);
  else *out = c;
  return status;
}

static ino_t inode_of(const char *path) {
  struct stat st;
  return stat(path, &st) ? 0 : st.st_ino;
}

// A folder that was exchanged while we read it is read again. It is held open meanwhile: its number would else be given to a new folder at once.
Status checkpoint_open(const char *dir, Checkpoint **out) {
  enum { TRIES = 100 };
  for (int i = 1;; i++) {
    int held = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct stat before = {0};
    if (held >= 0 && fstat(held, &before)) before.st_ino = 0;
    Status status = open_once(dir, out);
    bool same = inode_of(dir) == before.st_ino;
    if (held >= 0) close(held);
    if (!status || i == TRIES || same) return status;
    status_free(status);
  }
}

void checkpoint_close(Checkpoint *c) {
  if (!c) return;
  safetensors_close(c->params);
  safetensors_close(c->state);
  json_decref(c->meta);
  arena_destroy(c->arena);
  free(c->all);
  free(c->averaged);
  free(c->dir);
  free(c);
}

const CheckpointInfo *checkpoint_info(const Checkpoint *c) { return &c->info; }
const WeightSource *checkpoint_params(const Checkpoint *c) { return &c->params_source; }

Status checkpoint_use_average(Checkpoint *c) {
  size_t n = c->params_source.n_weights, found = 0;
  Weight *averaged = calloc(n + 1, sizeof *averaged);
  if (!averaged) FAIL(RESOURCE, NULL, "no memory for %zu tensors", n);
  for (size_t i = 0; i < n; i++) {
    char *name = NULL;
    averaged[i] = c->params_source.weights[i];
    if (asprintf(&name, "%s.ema", averaged[i].name) < 0) {
      free(averaged);
      FAIL(RESOURCE, NULL, "no memory to name a state");
    }
    const Weight *average = safetensors_find(c->state, name);
    free(name);
    if (!average || !type_same_shape(&average->type, &averaged[i].type)) continue;
    const char *own = averaged[i].name;
    averaged[i] = *average;
    averaged[i].name = own;
    found++;
  }
  free(c->averaged);
  c->averaged = averaged;
  if (!found) FAIL(USAGE, NULL, "%s holds no moving average; train with --ema 0.999", c->dir);
  c->params_source.weights = averaged;
  return NULL;
}

static Status resolve_ties(Checkpoint *c) {
  ARENA_GUARD(c->arena);
  ARENA_RETURN(c->arena, ties_resolve(&c->params_source, c->info.ties, c->info.n_ties, c->arena, &c->named_source));
}

Status checkpoint_named_params(Checkpoint *c, const WeightSource **out) {
  if (!c->named_source.weights) TRY(resolve_ties(c));
  *out = &c->named_source;
  return NULL;
}

// ---- Going on from it ---------------------------------------------------------------------------------------------------------

static Status check_tensors(const Checkpoint *c, const Safetensors *file, const char *name, const Items *items) {
  for (size_t i = 0; i < items->n; i++) {
    const SafetensorsEntry *want = &items->entries[i];
    const Weight *have = safetensors_find(file, want->name);
    char a[160], b[160];
    if (!have) FAIL(USAGE, want->name, "%s/%s does not hold it, and what trains does not start anew in the middle of a run", c->dir, name);
    if (!type_same_shape(&have->type, &want->type))
      FAIL(USAGE, want->name, "%s/%s holds %s, the program %s", c->dir, name, type_text(&have->type, a, sizeof a), type_text(&want->type, b, sizeof b));
  }
  return NULL;
}

// Nothing that was trained may silently begin at its initial value again.
static Status check_program(const Checkpoint *c, const Graph *program) {
  const char *was = c->info.optimizer, *is = program->recipe.optimizer ? program->recipe.optimizer : "";
  if (strcmp(was, is)) FAIL(USAGE, NULL, "%s was trained with the optimizer '%s', its state is not that of '%s'", c->dir, was, is);
  Items items;
  TRY(list_params(program, NULL, true, &items));
  Status status = check_tensors(c, c->params, params_name, &items);
  items_finish(&items);
  TRY(status);
  TRY(list_states(program, &items));
  status = check_tensors(c, c->state, state_name, &items);
  items_finish(&items);
  return status;
}

// The first weight of a name is the one that is found: the checkpoint's before the model's.
Status checkpoint_weights(Checkpoint *c, const WeightSource *base, const Graph *program, const WeightSource **out) {
  TRY(check_program(c, program));
  size_t n_params = safetensors_count(c->params), n_state = safetensors_count(c->state), n_base = base ? base->n_weights : 0;
  free(c->all);
  c->all = calloc(n_params + n_state + n_base + 1, sizeof *c->all);
  if (!c->all) FAIL(RESOURCE, NULL, "no memory for the %zu tensors of %s", n_params + n_state + n_base, c->dir);
  memcpy(c->all, safetensors_tensors(c->params), n_params * sizeof *c->all);
  memcpy(c->all + n_params, safetensors_tensors(c->state), n_state * sizeof *c->all);
  if (n_base) memcpy(c->all + n_params + n_state, base->weights, n_base * sizeof *c->all);
  c->all_source = base ? *base : (WeightSource){.path = c->dir};
  c->all_source.weights = c->all;
  c->all_source.n_weights = n_params + n_state + n_base;
  *out = &c->all_source;
  return NULL;
}
