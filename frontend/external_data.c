#include "external_data.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- Files --------------------------------------------------------------------------------------------------------------------

Status file_map(const char *path, Bytes *out) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) FAIL(IO, NULL, "cannot open %s: %s", path, strerror(errno));
  struct stat st = {0};
  if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
    int error = errno;
    bool is_folder = S_ISDIR(st.st_mode);
    close(fd);
    FAIL(IO, NULL, "cannot read %s: %s", path, is_folder ? "it is a directory" : error ? strerror(error) : "it is no regular file");
  }
  static const uint8_t nothing[1];
  *out = (Bytes){nothing, 0};
  if (st.st_size == 0) {
    close(fd);
    return STATUS_OK;
  }
  void *bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  int error = errno;
  close(fd);
  if (bytes == MAP_FAILED) FAIL(IO, NULL, "cannot map the %lld bytes of %s: %s", (long long)st.st_size, path, strerror(error));
  *out = (Bytes){bytes, (size_t)st.st_size};
  return STATUS_OK;
}

void file_unmap(Bytes bytes) {
  if (bytes.n) munmap((void *)bytes.data, bytes.n);
}

Status external_init(ExternalFiles *files, const char *model_path) {
  const char *slash = strrchr(model_path, '/');
  *files = (ExternalFiles){0};
  files->folder = !slash ? strdup(".") : slash == model_path ? strdup("/") : strndup(model_path, (size_t)(slash - model_path));
  if (!files->folder) FAIL(RESOURCE, NULL, "out of memory");
  return STATUS_OK;
}

static void file_free(ExternalFile *file) {
  file_unmap((Bytes){file->bytes, file->n_bytes});
  free(file->location);
  free(file->path);
  free(file);
}

void external_close(ExternalFiles *files) {
  for (size_t i = 0; i < files->n_files; i++) file_free(files->files[i]);
  free(files->files);
  free(files->folder);
  *files = (ExternalFiles){0};
}

// ---- References ---------------------------------------------------------------------------------------------------------------

static Status check_location(const char *location, const char *tensor) {
  if (!*location) FAIL(MALFORMED, NULL, "tensor '%s': its external data has no location", tensor);
  if (*location == '/') FAIL(MALFORMED, NULL, "tensor '%s': external location '%s' is absolute; it must be relative to the model's folder", tensor, location);
  for (const char *p = location; p; p = strchr(p, '/') ? strchr(p, '/') + 1 : NULL)
    if (!strncmp(p, "..", 2) && (p[2] == '/' || !p[2]))
      FAIL(MALFORMED, NULL, "tensor '%s': external location '%s' has '..' in it; files outside the model's folder are never read", tensor, location);
  return STATUS_OK;
}

// The real path of the file when it lies inside the real folder (links followed); heap.
static Status resolve(const ExternalFiles *files, const char *path, const char *tensor, const char *location, char **out) {
  char folder[PATH_MAX], file[PATH_MAX];
  if (!realpath(files->folder, folder)) FAIL(IO, NULL, "cannot open the folder %s: %s", files->folder, strerror(errno));
  if (!realpath(path, file)) FAIL(IO, NULL, "tensor '%s': cannot open external data %s: %s", tensor, path, strerror(errno));
  size_t n = strlen(folder);
  if (n > 1 && (strncmp(file, folder, n) || file[n] != '/'))
    FAIL(MALFORMED, NULL, "tensor '%s': external location '%s' is a link that leads outside the model's folder", tensor, location);
  *out = strdup(file);
  if (!*out) FAIL(RESOURCE, NULL, "out of memory");
  return STATUS_OK;
}

Status external_open(ExternalFiles *files, const char *location, const char *tensor, const ExternalFile **out) {
  for (size_t i = 0; i < files->n_files; i++)
    if (!strcmp(files->files[i]->location, location)) {
      *out = files->files[i];
      return STATUS_OK;
    }
  TRY(check_location(location, tensor));
  ExternalFile *file = calloc(1, sizeof *file);
  ExternalFile **wider = realloc(files->files, sizeof *wider * (files->n_files + 1));
  if (wider) files->files = wider;
  char *real = NULL;
  if (!file || !wider || !(file->location = strdup(location)) || asprintf(&file->path, "%s/%s", files->folder, location) < 0) {
    if (file) free(file->location);
    free(file);
    FAIL(RESOURCE, NULL, "out of memory");
  }
  Bytes bytes = {0};
  Status status = resolve(files, file->path, tensor, location, &real);
  if (!status) status = status_context(file_map(real, &bytes), "tensor '%s'", tensor);
  free(real);
  if (status) {
    file_free(file);
    return status;
  }
  file->bytes = bytes.data;
  file->n_bytes = bytes.n;
  files->files[files->n_files++] = file;
  *out = file;
  return STATUS_OK;
}

static Status parse_number(const char *key, const char *text, const char *tensor, int64_t *out) {
  int64_t value = 0;
  bool good = *text && strlen(text) <= 18;
  for (const char *p = text; good && *p; p++) {
    good = *p >= '0' && *p <= '9';
    value = 10 * value + (*p - '0');
  }
  if (!good) FAIL(MALFORMED, NULL, "tensor '%s': external data has %s '%s', which is no byte count", tensor, key, text);
  *out = value;
  return STATUS_OK;
}

Status external_find(ExternalFiles *files, const OnnxTensor *tensor, int64_t wanted_bytes, const ExternalFile **out_file,
                     int64_t *out_offset_bytes) {
  const Onnx__TensorProto *head = tensor->head;
  const char *name = text_or_empty(head->name), *location = "";
  int64_t offset = 0, length = -1;
  for (size_t i = 0; i < head->n_external_data; i++) {
    const char *key = text_or_empty(head->external_data[i]->key), *value = text_or_empty(head->external_data[i]->value);
    if (!strcmp(key, "location")) location = value;
    else if (!strcmp(key, "offset")) TRY(parse_number(key, value, name, &offset));
    else if (!strcmp(key, "length")) TRY(parse_number(key, value, name, &length));
    else if (strcmp(key, "checksum") && strcmp(key, "basepath"))
      FAIL(MALFORMED, NULL, "tensor '%s': external data has the unknown key '%s'; ONNX defines location, offset, length, checksum", name, key);
  }
  const ExternalFile *file;
  TRY(external_open(files, location, name, &file));
  int64_t size = (int64_t)file->n_bytes;
  if (offset > size) FAIL(MALFORMED, NULL, "tensor '%s': offset %" PRId64 " lies beyond the %" PRId64 " bytes of %s", name, offset, size, file->path);
  if (length < 0) length = size - offset;
  if (length > size - offset)
    FAIL(MALFORMED, NULL, "tensor '%s': offset %" PRId64 " + length %" PRId64 " lies beyond the %" PRId64 " bytes of %s", name, offset, length, size,
         file->path);
  if (length != wanted_bytes)
    FAIL(MALFORMED, NULL, "tensor '%s': its external data has %" PRId64 " bytes, its type needs %" PRId64, name, length, wanted_bytes);
  *out_file = file;
  *out_offset_bytes = offset;
  return STATUS_OK;
}
