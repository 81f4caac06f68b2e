#include "onnx_export.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../ir/path.h"
#include "atomic_file.h"
#include "import_state.h"
#include "relocate.h"

enum { PIECE_BYTES = 4 << 20 };

// One file of the model and its copy.
typedef struct Copy {
  const char *source_path;
  Bytes bytes;
  bool mapped;                 // they are of a file
  char *out_path;              // heap
  AtomicFile file;
  char *location;              // external data: in the copy; heap
  uint8_t *patched;            // the model's bytes with trained ones, where its locations are rewritten before it is written; heap
} Copy;

static char *folder_of(const char *path) {
  PathFolder folder = path_folder(path);
  return strndup(folder.at, (size_t)folder.bytes);
}

static bool same_file(const char *a, const char *b) {
  struct stat x, y;
  return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

// Folders below `base` that the relative `location` needs.
static Status make_folders(const char *base, const char *location) {
  char path[PATH_MAX];
  for (const char *slash = strchr(location, '/'); slash; slash = strchr(slash + 1, '/')) {
    if ((size_t)snprintf(path, sizeof path, "%s/%.*s", base, (int)(slash - location), location) >= sizeof path)
      FAIL(IO, NULL, "the path %s/%s is too long", base, location);
    if (mkdir(path, 0777) && errno != EEXIST) FAIL(IO, NULL, "cannot make the folder %s: %s", path, strerror(errno));
  }
  return STATUS_OK;
}

static Status begin_copy(Copy *copy) {
  TRY(atomic_begin(copy->out_path, &copy->file));
  for (size_t at = 0, n; at < copy->bytes.n; at += n) {
    n = (size_t)mapped_step(copy->bytes.data + at, (int64_t)(copy->bytes.n - at));
    TRY(atomic_write(&copy->file, copy->bytes.data + at, n));
    if (copy->mapped) mapped_let_go(copy->bytes.data + at, (int64_t)n);
  }
  return STATUS_OK;
}

// Where the copy of the model refers to.
static Status choose_location(const Model *model, const ExternalFile *external, const char *out_path, Copy *copy) {
  const char *name = path_name(out_path);
  int n;
  if (!strcmp(name, path_name(model->path))) n = asprintf(&copy->location, "%s", external->location);
  else if (model->external.n_files == 1) n = asprintf(&copy->location, "%s.data", name);
  else n = asprintf(&copy->location, "%s.data/%s", name, external->location);
  if (n >= 0) return STATUS_OK;
  copy->location = NULL;
  FAIL(RESOURCE, NULL, "out of memory");
}

static Status begin_external(const Model *model, const ExternalFile *external, const char *out_path, const char *out_folder, Copy *copy) {
  copy->source_path = external->path;
  copy->bytes = (Bytes){external->bytes, external->n_bytes};
  copy->mapped = true;
  TRY(choose_location(model, external, out_path, copy));
  if (asprintf(&copy->out_path, "%s/%s", out_folder, copy->location) < 0) {
    copy->out_path = NULL;
    FAIL(RESOURCE, NULL, "out of memory");
  }
  if (same_file(external->path, copy->out_path))
    FAIL(USAGE, NULL, "the export would overwrite %s, external data of the source model; give it another name: -o %.*strained.onnx", external->path,
         (int)(path_name(out_path) - out_path), out_path);
  TRY(make_folders(out_folder, copy->location));
  return begin_copy(copy);
}

static Copy *copy_of(Copy *copies, size_t n, const Weight *weight) {
  for (size_t i = 0; i < n && weight->path; i++)
    if (copies[i].source_path == weight->path) return &copies[i];       // paths of Weights are the Model's own strings
  return NULL;
}

static Status write_piece(Copy *copies, size_t n_copies, const Weight *w, int64_t offset_bytes, const void *piece, size_t n) {
  Copy *copy = copy_of(copies, n_copies, w);
  if (!copy)
    FAIL(UNSUPPORTED, NULL, "tensor '%s' does not lie in one piece in the model's file (its elements stand in int32_data or unpacked), so it cannot be "
         "replaced in place; export .safetensors instead", w->name);
  if (!copy->patched) return atomic_overwrite(&copy->file, piece, n, w->offset_bytes + offset_bytes);
  memcpy(copy->patched + w->offset_bytes + offset_bytes, piece, n);
  return STATUS_OK;
}

static Status replace_one(Copy *copies, size_t n_copies, const Weight *w, ExportRead read, void *user, void *piece) {
  int64_t width = dtype_bytes(w->type.dtype), elems = type_elems(&w->type), step = PIECE_BYTES / width;
  bool found = true;
  for (int64_t at = 0; at < elems && found; at += step) {
    int64_t n = elems - at < step ? elems - at : step;
    TRY(read(user, w, at, n, piece, &found));
    if (found) TRY(write_piece(copies, n_copies, w, at * width, piece, (size_t)(n * width)));
  }
  return STATUS_OK;
}

static Status replace(Copy *copies, size_t n_copies, const WeightSource *source, ExportRead read, void *user) {
  void *piece = malloc(PIECE_BYTES);
  if (!piece) FAIL(RESOURCE, NULL, "out of memory for a piece of a tensor");
  Status status = STATUS_OK;
  for (size_t i = 0; i < source->n_weights && !status; i++) status = replace_one(copies, n_copies, &source->weights[i], read, user, piece);
  free(piece);
  return status;
}

// The model's file when its data lie in others: its bytes are changed in memory, then they are given the new locations.
static Status write_relocated(Copy *copies, const ExternalFiles *external) {
  Relocation *relocations = calloc(external->n_files, sizeof *relocations);
  uint8_t *bytes = NULL;
  size_t n_bytes = 0;
  if (!relocations) FAIL(RESOURCE, NULL, "out of memory");
  for (size_t i = 0; i < external->n_files; i++) relocations[i] = (Relocation){external->files[i]->location, copies[i + 1].location};
  Status status = relocate_external((Bytes){copies[0].patched, copies[0].bytes.n}, relocations, external->n_files, &bytes, &n_bytes);
  free(relocations);
  copies[0].bytes = (Bytes){bytes, n_bytes};
  copies[0].mapped = false;
  if (!status) status = begin_copy(&copies[0]);
  free(bytes);
  return status;
}

static Status export_files(Model *model, const WeightSource *source, const char *out_path, const char *out_folder, Copy *copies, ExportRead read,
                           void *user) {
  size_t n = model->external.n_files + 1;
  copies[0] = (Copy){.source_path = model->path, .bytes = model->file, .mapped = model->mapped, .out_path = strdup(out_path), .file = {.fd = -1}};
  if (!copies[0].out_path) FAIL(RESOURCE, NULL, "out of memory");
  if (n == 1) {
    TRY(begin_copy(&copies[0]));
  } else {
    if (!(copies[0].patched = malloc(model->file.n + 1))) FAIL(RESOURCE, NULL, "out of memory: %zu bytes of the model", model->file.n);
    memcpy(copies[0].patched, model->file.data, model->file.n);
  }
  for (size_t i = 1; i < n; i++) TRY(begin_external(model, model->external.files[i - 1], out_path, out_folder, &copies[i]));
  TRY(replace(copies, n, source, read, user));
  if (n > 1) TRY(write_relocated(copies, &model->external));
  for (size_t i = n; i-- > 0;) TRY(atomic_commit(&copies[i].file));     // the model last: it refers to the others
  return STATUS_OK;
}

Status model_export(Model *model, const char *out_path, ExportRead read, void *user) {
  Arena *arena = arena_create(0);
  if (!arena) FAIL(RESOURCE, NULL, "out of memory");
  WeightSource source;
  Status status = model_weights(model, arena, &source);        // opens the external files, too
  size_t n = model->external.n_files + 1;
  Copy *copies = calloc(n, sizeof *copies);
  char *out_folder = folder_of(out_path);
  if (!status && (!copies || !out_folder)) status = status_fail(STATUS_RESOURCE, NULL, "out of memory");
  if (!status) status = export_files(model, &source, out_path, out_folder, copies, read, user);
  for (size_t i = 0; copies && i < n; i++) {
    atomic_abandon(&copies[i].file);
    free(copies[i].out_path);
    free(copies[i].location);
    free(copies[i].patched);
  }
  free(copies);
  free(out_folder);
  arena_destroy(arena);
  return status;
}
