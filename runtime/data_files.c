// Files of data: npy headers, and reading elements at an offset in the type that is wanted.
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data_source.h"

Status data_file_open(Data *data, const char *path, int *out_fd) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) FAIL(IO, NULL, "--data: cannot open %s: %s", path, strerror(errno));
  struct stat st;
  DataFile *files = realloc(data->files, (data->n_files + 1) * sizeof *files);
  if (files) data->files = files;
  char *copy = files ? strdup(path) : NULL;
  if (!copy || fstat(fd, &st) || !S_ISREG(st.st_mode)) {
    close(fd);
    free(copy);
    if (!copy) FAIL(RESOURCE, NULL, "no memory to open %s", path);
    FAIL(IO, NULL, "--data: %s is no regular file; a stream comes by '-'", path);
  }
  data->files[data->n_files++] = (DataFile){fd, copy};
  *out_fd = fd;
  return NULL;
}

Status data_file_bytes(int fd, const char *path, int64_t *out) {
  struct stat st;
  if (fstat(fd, &st)) FAIL(IO, NULL, "--data: cannot size %s: %s", path, strerror(errno));
  *out = st.st_size;
  return NULL;
}

static Status read_exactly(int fd, const char *path, void *to, int64_t n, int64_t offset) {
  for (int64_t done = 0; done < n;) {
    ssize_t m = pread(fd, (char *)to + done, (size_t)(n - done), offset + done);
    if (m < 0 && errno == EINTR) continue;
    if (m < 0) FAIL(IO, NULL, "cannot read %s: %s", path, strerror(errno));
    if (m == 0) FAIL(IO, NULL, "%s ends at byte %" PRId64 ", %" PRId64 " more are due: it has been cut since it was opened", path, offset + done, n - done);
    done += m;
  }
  return NULL;
}

Status data_file_read(const DataPart *part, Dtype file_dtype, int64_t offset_bytes, void *to, Dtype to_dtype, int64_t n) {
  if (file_dtype == to_dtype) return read_exactly(part->fd, part->path, to, n * dtype_bytes(to_dtype), offset_bytes);
  char block[8192];
  int64_t from_width = dtype_bytes(file_dtype), to_width = dtype_bytes(to_dtype), step = (int64_t)sizeof block / from_width;
  for (int64_t at = 0; at < n; at += step) {
    int64_t m = n - at < step ? n - at : step;
    TRY(read_exactly(part->fd, part->path, block, m * from_width, offset_bytes + at * from_width));
    elements_convert((char *)to + at * to_width, to_dtype, block, file_dtype, m);
  }
  return NULL;
}

bool data_dtype_fits(Dtype from, Dtype to) {
  if (from == to || dtype_is_float(to)) return true;
  if (dtype_is_float(from) || to == DTYPE_BOOL) return false;
  if (from == DTYPE_BOOL) return true;
  bool from_signed = dtype_class(from) == DTYPE_CLASS_INT, to_signed = dtype_class(to) == DTYPE_CLASS_INT;
  if (from_signed && !to_signed) return false;
  return from_signed == to_signed ? dtype_bytes(to) >= dtype_bytes(from) : dtype_bytes(to) > dtype_bytes(from);
}

// ---- npy: magic, version, length, and a Python dictionary with exactly descr, fortran_order and shape --------------------------

typedef struct Text { const char *at; const char *path; } Text;

static void skip_blanks(Text *t) {
  while (isspace((unsigned char)*t->at)) t->at++;
}
static bool take(Text *t, const char *what) {
  skip_blanks(t);
  if (strncmp(t->at, what, strlen(what))) return false;
  t->at += strlen(what);
  return true;
}
static Status broken(const Text *t) { FAIL(MALFORMED, NULL, "%s: the npy header is not understood at \"%.20s\"", t->path, t->at); }

static Status take_quoted(Text *t, char *out, size_t out_bytes) {
  skip_blanks(t);
  char quote = *t->at;
  size_t n = 0;
  if (quote != '\'' && quote != '"') return broken(t);
  for (t->at++; *t->at && *t->at != quote && n + 1 < out_bytes; t->at++) out[n++] = *t->at;
  out[n] = 0;
  if (*t->at != quote) return broken(t);
  t->at++;
  return NULL;
}

static Status take_shape(Text *t, NpyFile *out) {
  if (!take(t, "(")) return broken(t);
  out->rank = 0;
  while (!take(t, ")")) {
    if (out->rank == RANK_MAX) FAIL(UNSUPPORTED, NULL, "%s has more than %d axes", t->path, RANK_MAX);
    skip_blanks(t);
    if (!isdigit((unsigned char)*t->at)) return broken(t);
    char *end;
    errno = 0;
    out->dims[out->rank++] = strtoll(t->at, &end, 10);
    if (errno) return broken(t);
    t->at = end;
    if (!take(t, ",") && *t->at != ')') return broken(t);
  }
  return NULL;
}

static Status dtype_of_descr(const char *descr, const char *path, Dtype *out) {
  static const struct { const char *descr; Dtype dtype; } known[] = {
      {"f4", DTYPE_F32}, {"f8", DTYPE_F64}, {"f2", DTYPE_F16}, {"i8", DTYPE_I64}, {"i4", DTYPE_I32}, {"i2", DTYPE_I16}, {"i1", DTYPE_I8},
      {"u8", DTYPE_U64}, {"u4", DTYPE_U32}, {"u2", DTYPE_U16}, {"u1", DTYPE_U8},  {"b1", DTYPE_BOOL}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if ((descr[0] == '<' || descr[0] == '|') && !strcmp(descr + 1, known[i].descr)) {
      *out = known[i].dtype;
      return NULL;
    }
  FAIL(UNSUPPORTED, NULL, "%s holds elements of numpy type '%s'; little-endian floats, integers and booleans are read", path, descr);
}

static Status parse_dictionary(Text *t, NpyFile *out) {
  char key[32], descr[32] = "";
  bool has_order = false, has_shape = false;
  if (!take(t, "{")) return broken(t);
  while (!take(t, "}")) {
    TRY(take_quoted(t, key, sizeof key));
    if (!take(t, ":")) return broken(t);
    if (!strcmp(key, "descr")) {
      TRY(take_quoted(t, descr, sizeof descr));
    } else if (!strcmp(key, "fortran_order")) {
      if (take(t, "True")) FAIL(UNSUPPORTED, NULL, "%s is in Fortran order; save numpy.ascontiguousarray of it", t->path);
      if (!take(t, "False")) return broken(t);
      has_order = true;
    } else if (!strcmp(key, "shape")) {
      TRY(take_shape(t, out));
      has_shape = true;
    } else {
      return broken(t);
    }
    if (!take(t, ",")) skip_blanks(t);
  }
  if (!descr[0] || !has_order || !has_shape) FAIL(MALFORMED, NULL, "%s: the npy header lacks descr, fortran_order or shape", t->path);
  return dtype_of_descr(descr, t->path, &out->dtype);
}

Status npy_read_header(int fd, const char *path, NpyFile *out) {
  enum { HEADER_BYTES_MAX = 65536 };
  unsigned char prefix[12];
  int64_t file_bytes;
  TRY(data_file_bytes(fd, path, &file_bytes));
  if (file_bytes < (int64_t)sizeof prefix) FAIL(MALFORMED, NULL, "%s has %" PRId64 " bytes: no npy file", path, file_bytes);
  TRY(read_exactly(fd, path, prefix, sizeof prefix, 0));
  if (memcmp(prefix, "\x93NUMPY", 6)) FAIL(MALFORMED, NULL, "%s is no npy file", path);
  int64_t start = prefix[6] == 1 ? 10 : 12, length = prefix[8] | prefix[9] << 8;
  if (prefix[6] > 1) length |= (int64_t)prefix[10] << 16 | (int64_t)prefix[11] << 24;
  if (prefix[6] < 1 || prefix[6] > 3) FAIL(UNSUPPORTED, NULL, "%s is an npy file of version %d; 1 to 3 are read", path, prefix[6]);
  if (length > HEADER_BYTES_MAX || start + length > file_bytes) FAIL(MALFORMED, NULL, "%s: the npy header has %" PRId64 " bytes", path, length);
  char *header = calloc(1, (size_t)length + 1);
  if (!header) FAIL(RESOURCE, NULL, "no memory to read %s", path);
  Text text = {header, path};
  Status status = read_exactly(fd, path, header, length, start);
  if (!status) status = parse_dictionary(&text, out);
  free(header);
  TRY(status);
  out->offset_bytes = start + length;
  Type type = type_make(out->dtype, out->rank, out->dims);
  TRY(type_check(&type, path));
  if (type_bytes(&type) != file_bytes - out->offset_bytes)
    FAIL(MALFORMED, NULL, "%s: its shape needs %" PRId64 " bytes, %" PRId64 " follow the header", path, type_bytes(&type), file_bytes - out->offset_bytes);
  return NULL;
}
