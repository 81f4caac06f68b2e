#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_BYTES_MAX = 100 * 1000 * 1000 };

static const struct { const char *name; Dtype dtype; } dtype_names[] = {
    {"F64", DTYPE_F64}, {"F32", DTYPE_F32}, {"F16", DTYPE_F16}, {"BF16", DTYPE_BF16}, {"I64", DTYPE_I64}, {"I32", DTYPE_I32}, {"I16", DTYPE_I16},
    {"I8", DTYPE_I8},   {"U64", DTYPE_U64}, {"U32", DTYPE_U32}, {"U16", DTYPE_U16},   {"U8", DTYPE_U8},   {"BOOL", DTYPE_BOOL}};
enum { N_DTYPE_NAMES = sizeof dtype_names / sizeof *dtype_names };

struct Safetensors {
  void *map;                // NULL: the bytes are the caller's
  size_t map_bytes;
  char *path;               // of a mapped file; its tensors point to it
  json_t *header;           // owns the names
  Weight *tensors;          // in name order
  size_t n_tensors;
};

// ---- Header -------------------------------------------------------------------------------------------------------------------

Status safetensors_header_bytes(const void *prefix, const char *path, int64_t *header_bytes) {
  uint64_t n = 0;
  for (int i = SAFETENSORS_PREFIX_BYTES - 1; i >= 0; i--) n = n << 8 | ((const unsigned char *)prefix)[i];
  if (n > INT64_MAX / 2 || n < 2) FAIL(MALFORMED, NULL, "%s is no safetensors file: its first 8 bytes announce a header of %" PRIu64 " bytes", path, n);
  if (n > HEADER_BYTES_MAX)
    FAIL(MALFORMED, NULL, "%s is no safetensors file: its first 8 bytes announce a header of %" PRIu64 " bytes, and %d are allowed", path, n, HEADER_BYTES_MAX);
  *header_bytes = (int64_t)n;
  return NULL;
}

static Status header_load(const void *header, int64_t bytes, const char *path, json_t **out) {
  json_error_t error;
  json_t *root = json_loadb(header, (size_t)bytes, JSON_REJECT_DUPLICATES, &error);
  if (!root) FAIL(MALFORMED, NULL, "%s is no safetensors file: the header is no JSON: %s (byte %d of it)", path, error.text, error.position);
  if (!json_is_object(root)) {
    json_decref(root);
    FAIL(MALFORMED, NULL, "%s: the header is JSON, but no object", path);
  }
  *out = root;
  return NULL;
}

static Status entry_type(const json_t *entry, const char *name, const char *path, Type *out) {
  const char *dtype = json_string_value(json_object_get(entry, "dtype"));
  const json_t *shape = json_object_get(entry, "shape");
  if (!dtype || !json_is_array(shape)) FAIL(MALFORMED, name, "%s: the tensor has no dtype or no shape", path);
  *out = (Type){.dtype = DTYPE_NONE};
  for (int i = 0; i < N_DTYPE_NAMES; i++)
    if (!strcmp(dtype, dtype_names[i].name)) out->dtype = dtype_names[i].dtype;
  if (out->dtype == DTYPE_NONE) FAIL(UNSUPPORTED, name, "%s: element type \"%.40s\" is not known", path, dtype);
  if (json_array_size(shape) > RANK_MAX) FAIL(UNSUPPORTED, name, "%s: the tensor has %zu axes; at most %d are supported", path, json_array_size(shape), RANK_MAX);
  out->rank = (int)json_array_size(shape);
  for (int i = 0; i < out->rank; i++) {
    const json_t *dim = json_array_get(shape, (size_t)i);
    if (!json_is_integer(dim)) FAIL(MALFORMED, name, "%s: dimension %d is no integer", path, i);
    out->dims[i] = json_integer_value(dim);
  }
  return status_context(type_check(out, name), "%s", path);
}

static Status entry_offsets(const json_t *entry, const char *name, const char *path, int64_t *begin, int64_t *end) {
  const json_t *offsets = json_object_get(entry, "data_offsets");
  const json_t *b = json_array_get(offsets, 0), *e = json_array_get(offsets, 1);
  if (json_array_size(offsets) != 2 || !json_is_integer(b) || !json_is_integer(e)) FAIL(MALFORMED, name, "%s: data_offsets must be two integers", path);
  *begin = json_integer_value(b);
  *end = json_integer_value(e);
  if (*begin < 0 || *end < *begin) FAIL(MALFORMED, name, "%s: data_offsets [%" PRId64 ", %" PRId64 "] are no range", path, *begin, *end);
  return NULL;
}

static bool is_metadata(const char *key) { return !strcmp(key, "__metadata__"); }

Status safetensors_data_bytes(const void *header, int64_t header_bytes, const char *path, int64_t *data_bytes) {
  json_t *root;
  TRY(header_load(header, header_bytes, path, &root));
  Status status = NULL;
  const char *name;
  json_t *entry;
  int64_t most = 0;
  json_object_foreach(root, name, entry) {
    int64_t begin = 0, end = 0;
    if (is_metadata(name)) continue;
    status = entry_offsets(entry, name, path, &begin, &end);
    if (status) break;
    if (end > most) most = end;
  }
  json_decref(root);
  if (!status) *data_bytes = most;
  return status;
}

// ---- Reading ------------------------------------------------------------------------------------------------------------------

static int by_offset(const void *a, const void *b) {
  const Weight *x = a, *y = b;
  if (x->offset_bytes != y->offset_bytes) return x->offset_bytes < y->offset_bytes ? -1 : 1;
  int64_t xb = type_bytes(&x->type), yb = type_bytes(&y->type);
  return xb < yb ? -1 : xb > yb;
}
static int by_name(const void *a, const void *b) { return strcmp(((const Weight *)a)->name, ((const Weight *)b)->name); }

static Status check_metadata(const json_t *entry, const char *path) {
  const char *key;
  json_t *text;
  if (!json_is_object(entry)) FAIL(MALFORMED, NULL, "%s: __metadata__ is no object", path);
  json_object_foreach((json_t *)entry, key, text)
    if (!json_is_string(text)) FAIL(MALFORMED, NULL, "%s: __metadata__ \"%.60s\" is no string", path, key);
  return NULL;
}

static Status read_entries(Safetensors *file, const char *data, int64_t data_start, int64_t data_bytes, const char *path) {
  const char *name;
  json_t *entry;
  json_object_foreach(file->header, name, entry) {
    if (is_metadata(name)) {
      TRY(check_metadata(entry, path));
      continue;
    }
    Weight *w = &file->tensors[file->n_tensors];
    int64_t begin, end;
    if (!json_is_object(entry)) FAIL(MALFORMED, name, "%s: the tensor's entry is no object", path);
    TRY(entry_type(entry, name, path, &w->type));
    TRY(entry_offsets(entry, name, path, &begin, &end));
    char text[160];
    if (end > data_bytes) FAIL(MALFORMED, name, "%s: it ends at byte %" PRId64 " of %" PRId64 " bytes of data; the file may be cut short", path, end, data_bytes);
    if (end - begin != type_bytes(&w->type))
      FAIL(MALFORMED, name, "%s: %s has %" PRId64 " bytes, data_offsets give it %" PRId64, path, type_text(&w->type, text, sizeof text),
           type_bytes(&w->type), end - begin);
    w->name = name;
    w->bytes = data + begin;
    w->path = file->path;
    w->mapped = file->map != NULL;
    w->offset_bytes = data_start + begin;
    file->n_tensors++;
  }
  return NULL;
}

// No two tensors share bytes and no byte belongs to none: what the format demands, so that nothing can hide in a file.
static Status check_cover(Safetensors *file, int64_t data_start, int64_t data_bytes, const char *path) {
  qsort(file->tensors, file->n_tensors, sizeof *file->tensors, by_offset);
  int64_t at = data_start;
  for (size_t i = 0; i < file->n_tensors; i++) {
    const Weight *w = &file->tensors[i];
    if (w->offset_bytes != at)
      FAIL(MALFORMED, w->name, "%s: it starts at byte %" PRId64 " of the data where %" PRId64 " is due: tensors overlap or leave a hole", path,
           w->offset_bytes - data_start, at - data_start);
    at += type_bytes(&w->type);
  }
  if (at != data_start + data_bytes)
    FAIL(MALFORMED, NULL, "%s: the tensors cover %" PRId64 " of %" PRId64 " bytes of data", path, at - data_start, data_bytes);
  qsort(file->tensors, file->n_tensors, sizeof *file->tensors, by_name);
  return NULL;
}

static Status read_all(Safetensors *file, const char *bytes, int64_t n_bytes, const char *path) {
  int64_t header_bytes;
  if (n_bytes < SAFETENSORS_PREFIX_BYTES) FAIL(MALFORMED, NULL, "%s has %" PRId64 " bytes: no safetensors file", path, n_bytes);
  TRY(safetensors_header_bytes(bytes, path, &header_bytes));
  if (header_bytes > n_bytes - SAFETENSORS_PREFIX_BYTES)
    FAIL(MALFORMED, NULL, "%s is no safetensors file: its first 8 bytes announce a header of %" PRId64 " bytes, it has %" PRId64 " in all", path, header_bytes, n_bytes);
  TRY(header_load(bytes + SAFETENSORS_PREFIX_BYTES, header_bytes, path, &file->header));
  file->tensors = calloc(json_object_size(file->header) + 1, sizeof *file->tensors);
  if (!file->tensors) FAIL(RESOURCE, NULL, "no memory for the %zu tensors of %s", json_object_size(file->header), path);
  int64_t data_start = SAFETENSORS_PREFIX_BYTES + header_bytes;
  TRY(read_entries(file, bytes + data_start, data_start, n_bytes - data_start, path));
  return check_cover(file, data_start, n_bytes - data_start, path);
}

Status safetensors_open_bytes(const void *bytes, size_t n_bytes, const char *path, Safetensors **out) {
  Safetensors *file = calloc(1, sizeof *file);
  if (!file) FAIL(RESOURCE, NULL, "no memory to read %s", path);
  Status status = read_all(file, bytes, (int64_t)n_bytes, path);
  if (status) safetensors_close(file);
  else *out = file;
  return status;
}

static Status map_file(const char *path, void **out_map, size_t *out_bytes) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) FAIL(IO, NULL, "cannot open %s: %s", path, strerror(errno));
  struct stat st;
  if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
    close(fd);
    FAIL(IO, NULL, "%s is no regular file", path);
  }
  if (st.st_size < SAFETENSORS_PREFIX_BYTES) {
    close(fd);
    FAIL(MALFORMED, NULL, "%s has %lld bytes: no safetensors file", path, (long long)st.st_size);
  }
  void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  int error = errno;
  close(fd);
  if (map == MAP_FAILED) FAIL(IO, NULL, "cannot map %s: %s", path, strerror(error));
  *out_map = map;
  *out_bytes = (size_t)st.st_size;
  return NULL;
}

Status safetensors_open(const char *path, Safetensors **out) {
  Safetensors *file = calloc(1, sizeof *file);
  if (!file) FAIL(RESOURCE, NULL, "no memory to read %s", path);
  file->path = strdup(path);
  Status status = file->path ? map_file(path, &file->map, &file->map_bytes) : status_fail(STATUS_RESOURCE, NULL, "no memory to read %s", path);
  if (!status) status = read_all(file, file->map, (int64_t)file->map_bytes, path);
  if (status) safetensors_close(file);
  else *out = file;
  return status;
}

void safetensors_close(Safetensors *file) {
  if (!file) return;
  if (file->map) munmap(file->map, file->map_bytes);
  json_decref(file->header);
  free(file->tensors);
  free(file->path);
  free(file);
}

size_t safetensors_count(const Safetensors *file) { return file->n_tensors; }
const Weight *safetensors_tensors(const Safetensors *file) { return file->tensors; }

const Weight *safetensors_find(const Safetensors *file, const char *name) {
  Weight key = {.name = name};
  return file->n_tensors ? bsearch(&key, file->tensors, file->n_tensors, sizeof key, by_name) : NULL;
}

// ---- Writing ------------------------------------------------------------------------------------------------------------------

typedef struct Slot { const char *name; Type type; int64_t offset_bytes; size_t entry; } Slot;

struct SafetensorsWriter {
  int fd;
  char *path, *temporary_path;
  int64_t *offsets, *sizes;      // per entry
  int64_t *written;              // bytes of each so far
  size_t n_entries;
};

static int by_width_and_name(const void *a, const void *b) {
  const Slot *x = a, *y = b;
  int64_t wx = dtype_bytes(x->type.dtype), wy = dtype_bytes(y->type.dtype);
  return wx != wy ? (wx > wy ? -1 : 1) : strcmp(x->name, y->name);
}

static json_t *slot_json(const Slot *slot, int64_t begin) {
  const char *dtype = NULL;
  for (int i = 0; i < N_DTYPE_NAMES; i++)
    if (dtype_names[i].dtype == slot->type.dtype) dtype = dtype_names[i].name;
  json_t *shape = json_array();
  for (int i = 0; i < slot->type.rank; i++) json_array_append_new(shape, json_integer(slot->type.dims[i]));
  return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype ? dtype : "F32", "shape", shape, "data_offsets", (json_int_t)begin,
                   (json_int_t)(begin + type_bytes(&slot->type)));
}

// The header's text, padded with blanks so that the data is aligned to 8 bytes.
static Status header_text(const char *path, Slot *slots, size_t n, const char *const *metadata, char **out, size_t *out_bytes) {
  json_t *root = json_object();
  if (metadata) {
    json_t *m = json_object();
    for (; metadata[0] && metadata[1]; metadata += 2) json_object_set_new(m, metadata[0], json_string(metadata[1]));
    json_object_set_new(root, "__metadata__", m);
  }
  int64_t at = 0;
  bool ok = true;
  for (size_t i = 0; i < n; i++) {
    slots[i].offset_bytes = at;
    ok &= json_object_set_new(root, slots[i].name, slot_json(&slots[i], at)) == 0;
    at += type_bytes(&slots[i].type);
  }
  char *text = ok && json_object_size(root) == n + (metadata != NULL) ? json_dumps(root, JSON_COMPACT) : NULL;
  json_decref(root);
  if (!text) FAIL(MALFORMED, NULL, "%s: a tensor's name is used twice or is no UTF-8", path);
  size_t bytes = strlen(text), padded = (bytes + 7) / 8 * 8;
  char *header = malloc(padded + SAFETENSORS_PREFIX_BYTES);
  if (header) {
    for (int i = 0; i < SAFETENSORS_PREFIX_BYTES; i++) header[i] = (char)(padded >> (8 * i));
    memcpy(header + SAFETENSORS_PREFIX_BYTES, text, bytes);
    memset(header + SAFETENSORS_PREFIX_BYTES + bytes, ' ', padded - bytes);
  }
  free(text);
  if (!header) FAIL(RESOURCE, NULL, "no memory for the header of %s", path);
  *out = header;
  *out_bytes = padded + SAFETENSORS_PREFIX_BYTES;
  return NULL;
}

static Status write_at(SafetensorsWriter *w, const void *bytes, int64_t n, int64_t offset) {
  for (int64_t done = 0; done < n;) {
    ssize_t m = pwrite(w->fd, (const char *)bytes + done, (size_t)(n - done), offset + done);
    if (m < 0 && errno == EINTR) continue;
    if (m <= 0) FAIL(IO, NULL, "cannot write %s: %s", w->temporary_path, m ? strerror(errno) : "no progress");
    done += m;
  }
  return NULL;
}

// A name of its own: several processes may write one file, the last one stays.
static Status create_temporary(SafetensorsWriter *w) {
  w->fd = mkostemp(w->temporary_path, O_CLOEXEC);
  if (w->fd < 0) FAIL(IO, NULL, "cannot create %s: %s", w->temporary_path, strerror(errno));
  mode_t mask = umask(0);                  // mkostemp makes private files; give what open would have given
  umask(mask);
  (void)!fchmod(w->fd, 0666 & ~mask);
  return NULL;
}

static Status start_file(SafetensorsWriter *w, Slot *slots, const SafetensorsEntry *entries, const char *const *metadata) {
  size_t n = w->n_entries, header_bytes;
  for (size_t i = 0; i < n; i++) slots[i] = (Slot){entries[i].name, entries[i].type, 0, i};
  qsort(slots, n, sizeof *slots, by_width_and_name);
  for (size_t i = 0; i < n; i++) TRY(type_check(&slots[i].type, slots[i].name));
  char *header;
  TRY(header_text(w->path, slots, n, metadata, &header, &header_bytes));
  for (size_t i = 0; i < n; i++) {
    w->offsets[slots[i].entry] = (int64_t)header_bytes + slots[i].offset_bytes;
    w->sizes[slots[i].entry] = type_bytes(&slots[i].type);
  }
  Status status = create_temporary(w);
  if (!status) status = write_at(w, header, (int64_t)header_bytes, 0);
  free(header);
  return status;
}

Status safetensors_create(const char *path, const SafetensorsEntry *entries, size_t n_entries, const char *const *metadata, SafetensorsWriter **out) {
  SafetensorsWriter *w = calloc(1, sizeof *w);
  if (!w) FAIL(RESOURCE, NULL, "no memory to write %s", path);
  w->fd = -1;
  w->n_entries = n_entries;
  w->path = strdup(path);
  w->temporary_path = malloc(strlen(path) + sizeof ".tmp.XXXXXX");
  w->offsets = calloc(n_entries + 1, sizeof *w->offsets);
  w->sizes = calloc(n_entries + 1, sizeof *w->sizes);
  w->written = calloc(n_entries + 1, sizeof *w->written);
  Slot *slots = calloc(n_entries + 1, sizeof *slots);
  Status status = NULL;
  if (!w->path || !w->temporary_path || !w->offsets || !w->sizes || !w->written || !slots) {
    status = status_fail(STATUS_RESOURCE, NULL, "no memory for the %zu tensors of %s", n_entries, path);
  } else {
    sprintf(w->temporary_path, "%s.tmp.XXXXXX", path);
    status = start_file(w, slots, entries, metadata);
  }
  free(slots);
  if (status) safetensors_abandon(w);
  else *out = w;
  return status;
}

Status safetensors_write(SafetensorsWriter *w, size_t entry, const void *bytes) {
  if (entry >= w->n_entries) FAIL(USAGE, NULL, "%s has %zu tensors, not %zu", w->path, w->n_entries, entry + 1);
  w->written[entry] = 0;
  return safetensors_append(w, entry, bytes, w->sizes[entry]);
}

Status safetensors_append(SafetensorsWriter *w, size_t entry, const void *bytes, int64_t n) {
  if (entry >= w->n_entries) FAIL(USAGE, NULL, "%s has %zu tensors, not %zu", w->path, w->n_entries, entry + 1);
  if (n < 0 || n > w->sizes[entry] - w->written[entry])
    FAIL(USAGE, NULL, "tensor %zu of %s has %" PRId64 " bytes, not %" PRId64 " and %" PRId64 " more", entry, w->path, w->sizes[entry], w->written[entry], n);
  TRY(write_at(w, bytes, n, w->offsets[entry] + w->written[entry]));
  w->written[entry] += n;
  return NULL;
}

Status safetensors_write_weight(SafetensorsWriter *w, size_t entry, const Weight *weight) {
  int64_t n_bytes = type_bytes(&weight->type);
  for (int64_t at = 0, n; at < n_bytes; at += n) {
    const char *from = (const char *)weight->bytes + at;
    n = mapped_step(from, n_bytes - at);
    TRY(safetensors_append(w, entry, from, n));
    if (weight->mapped) mapped_let_go(from, n);
  }
  return NULL;
}

static void writer_free(SafetensorsWriter *w) {
  if (w->fd >= 0) close(w->fd);
  free(w->path);
  free(w->temporary_path);
  free(w->offsets);
  free(w->sizes);
  free(w->written);
  free(w);
}

static Status finish_file(SafetensorsWriter *w) {
  for (size_t i = 0; i < w->n_entries; i++)
    if (w->written[i] < w->sizes[i]) FAIL(USAGE, NULL, "tensor %zu of %zu of %s was not written", i, w->n_entries, w->path);
  if (fsync(w->fd)) FAIL(IO, NULL, "cannot flush %s: %s", w->temporary_path, strerror(errno));
  int fd = w->fd;
  w->fd = -1;
  if (close(fd)) FAIL(IO, NULL, "cannot close %s: %s", w->temporary_path, strerror(errno));
  if (rename(w->temporary_path, w->path)) FAIL(IO, NULL, "cannot rename %s to %s: %s", w->temporary_path, w->path, strerror(errno));
  return NULL;
}

Status safetensors_finish(SafetensorsWriter *w) {
  Status status = finish_file(w);
  if (status) safetensors_abandon(w);
  else writer_free(w);
  return status;
}

void safetensors_abandon(SafetensorsWriter *w) {
  if (!w) return;
  if (w->temporary_path && (w->fd >= 0 || w->path)) unlink(w->temporary_path);
  writer_free(w);
}
