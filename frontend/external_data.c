#include "external_data.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/openat2.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../ir/path.h"

// ---- Files --------------------------------------------------------------------------------------------------------------------

// Maps the regular file behind `fd` and closes it.
static Status map_and_close(int fd, const char *path, Bytes *out) {
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

enum { READ_FLAGS = O_RDONLY | O_CLOEXEC | O_NONBLOCK };

Status file_map(const char *path, Bytes *out) {
  int fd = open(path, READ_FLAGS);
  if (fd < 0) FAIL(IO, NULL, "cannot open %s: %s", path, strerror(errno));
  errno = 0;
  return map_and_close(fd, path, out);
}

void file_unmap(Bytes bytes) {
  if (bytes.n) munmap((void *)bytes.data, bytes.n);
}

Status external_init(ExternalFiles *files, const char *model_path) {
  PathFolder folder = path_folder(model_path);
  *files = (ExternalFiles){0};
  files->folder = strndup(folder.at, (size_t)folder.bytes);
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

// Opens component by component, following no link: for kernels without openat2. -1 and errno on failure.
static int open_walking(int folder, const char *location) {
  int at = dup(folder);
  for (const char *p = location; at >= 0;) {
    size_t n = strcspn(p, "/");
    char name[NAME_MAX + 1];
    if (n > NAME_MAX) errno = ENAMETOOLONG;
    bool fits = n <= NAME_MAX, last = !p[n];
    if (fits) memcpy(name, p, n);
    if (fits) name[n] = 0;
    int next = !fits ? -1 : openat(at, n ? name : ".", O_NOFOLLOW | (last ? READ_FLAGS : O_PATH | O_DIRECTORY | O_CLOEXEC));
    int error = errno;
    close(at);
    errno = error;
    if (last || next < 0) return next;
    at = next;
    p += n + 1;
  }
  return at;
}

// Opens `location` beneath the folder; the kernel refuses links and ways out.
static int open_beneath(int folder, const char *location) {
  struct open_how how = {.flags = READ_FLAGS, .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
  int fd = (int)syscall(SYS_openat2, folder, location, &how, sizeof how);
  return fd < 0 && (errno == ENOSYS || errno == EPERM) ? open_walking(folder, location) : fd;
}

static Status map_beneath(const ExternalFiles *files, const char *path, const char *tensor, const char *location, Bytes *out) {
  struct stat st;
  int folder = open(files->folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) FAIL(IO, NULL, "cannot open the folder %s: %s", files->folder, strerror(errno));
  int fd = open_beneath(folder, location);
  int error = errno;
  close(folder);
  if (fd < 0 && (error == ELOOP || error == EXDEV || error == ENOTDIR))
    FAIL(MALFORMED, NULL, "tensor '%s': external location '%s' goes through a link or out of the model's folder; put the file itself there", tensor, location);
  if (fd < 0) FAIL(IO, NULL, "tensor '%s': cannot open external data %s: %s", tensor, path, strerror(error));
  if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_nlink != 1) {
    close(fd);
    FAIL(MALFORMED, NULL, "tensor '%s': external data %s has %lu hard links, so it may be another file's contents; copy it", tensor, path, (unsigned long)st.st_nlink);
  }
  errno = 0;
  return status_context(map_and_close(fd, path, out), "tensor '%s'", tensor);
}

Status external_open(ExternalFiles *files, const char *location, const char *tensor, ExternalFile **out) {
  for (size_t i = 0; i < files->n_files; i++)
    if (!strcmp(files->files[i]->location, location)) {
      *out = files->files[i];
      return STATUS_OK;
    }
  TRY(check_location(location, tensor));
  ExternalFile *file = calloc(1, sizeof *file);
  ExternalFile **wider = realloc(files->files, sizeof *wider * (files->n_files + 1));
  if (wider) files->files = wider;
  if (!file || !wider || !(file->location = strdup(location)) || asprintf(&file->path, "%s/%s", files->folder, location) < 0) {
    if (file) free(file->location);
    free(file);
    FAIL(RESOURCE, NULL, "out of memory");
  }
  Bytes bytes = {0};
  Status status = map_beneath(files, file->path, tensor, location, &bytes);
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

// SHA-1 of the whole file, once per file; pages are dropped on the way, so that memory does not grow with it.
static Status check_checksum(ExternalFile *file, const char *wanted, const char *tensor) {
  enum { PIECE_BYTES = 16 << 20 };
  if (!*file->sha1) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int n_digest = 0;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool good = context && EVP_DigestInit_ex(context, EVP_sha1(), NULL);
    for (size_t at = 0; good && at < file->n_bytes; at += PIECE_BYTES) {
      size_t n = file->n_bytes - at < PIECE_BYTES ? file->n_bytes - at : PIECE_BYTES;
      good = EVP_DigestUpdate(context, file->bytes + at, n);
      madvise((void *)(file->bytes + at), n, MADV_DONTNEED);
    }
    good = good && EVP_DigestFinal_ex(context, digest, &n_digest) && n_digest * 2 + 1 == sizeof file->sha1;
    EVP_MD_CTX_free(context);
    if (!good) FAIL(RESOURCE, NULL, "tensor '%s': the crypto library cannot compute a SHA-1", tensor);
    for (unsigned i = 0; i < n_digest; i++) sprintf(file->sha1 + 2 * i, "%02x", digest[i]);
  }
  if (strcasecmp(file->sha1, wanted))
    FAIL(MALFORMED, NULL, "tensor '%s': %s has SHA-1 %s, the model says %s: it is another file, or it was changed", tensor, file->path, file->sha1, wanted);
  return STATUS_OK;
}

Status external_find(ExternalFiles *files, const OnnxTensor *tensor, int64_t wanted_bytes, const ExternalFile **out_file,
                     int64_t *out_offset_bytes) {
  const Onnx__TensorProto *head = tensor->head;
  const char *name = text_or_empty(head->name), *location = "", *checksum = NULL;
  int64_t offset = 0, length = -1;
  for (size_t i = 0; i < head->n_external_data; i++) {
    const char *key = text_or_empty(head->external_data[i]->key), *value = text_or_empty(head->external_data[i]->value);
    if (!strcmp(key, "location")) location = value;
    else if (!strcmp(key, "offset")) TRY(parse_number(key, value, name, &offset));
    else if (!strcmp(key, "length")) TRY(parse_number(key, value, name, &length));
    else if (!strcmp(key, "checksum")) checksum = value;
    else if (strcmp(key, "basepath"))
      FAIL(MALFORMED, NULL, "tensor '%s': external data has the unknown key '%s'; ONNX defines location, offset, length, checksum", name, key);
  }
  ExternalFile *file;
  TRY(external_open(files, location, name, &file));
  if (checksum) TRY(check_checksum(file, checksum, name));
  int64_t size = (int64_t)file->n_bytes;
  if (!size && (length < 0 || length == wanted_bytes)) {      // absent: only the place is known
    *out_file = file;
    *out_offset_bytes = offset;
    return STATUS_OK;
  }
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
