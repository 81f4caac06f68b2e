// Files of tokens: what their elements are and where they begin.
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "data_source.h"

static bool has_suffix(const char *text, const char *suffix) {
  size_t n = strlen(text), m = strlen(suffix);
  return n > m && !strcmp(text + n - m, suffix);
}

static Status check_text(int fd, const char *path) {
  char block[4096];
  ssize_t n = pread(fd, block, sizeof block, 0);
  if (n > 0 && memchr(block, 0, (size_t)n))
    FAIL(MALFORMED, NULL, "%s is no text (it has zero bytes) and has no suffix that says more: .safetensors, .npy, .bin (uint16 tokens), .u32.bin; or "
         "give --token-dtype", path);
  return NULL;
}

// The headers of llm.c: 256 little-endian int32: magic, version, number of tokens, zeros.
typedef struct TokenHeader { int32_t magic, version; Dtype dtype; } TokenHeader;
static const TokenHeader headers[] = {{20240520, 1, DTYPE_U16}, {20240801, 7, DTYPE_U32}};
enum { HEADER_BYTES = 1024 };

static int32_t int_at(const unsigned char *bytes, int i) {
  const unsigned char *b = bytes + 4 * i;
  return (int32_t)((uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24);
}

// *out is left alone when there is no header.
static Status read_header(int fd, const char *path, Dtype asked, int64_t file_bytes, TokenFile *out) {
  unsigned char bytes[12];
  const TokenHeader *h = headers;
  if (!has_suffix(path, ".bin") || pread(fd, bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) return NULL;
  while (h < headers + sizeof headers / sizeof *headers && h->magic != int_at(bytes, 0)) h++;
  if (h == headers + sizeof headers / sizeof *headers) return NULL;
  int64_t n = int_at(bytes, 2), width = dtype_bytes(h->dtype);
  if (int_at(bytes, 1) != h->version)
    FAIL(UNSUPPORTED, NULL, "%s has the header of llm.c's tokens (magic %d) in version %d; version %d is read", path, h->magic, int_at(bytes, 1), h->version);
  if (n < 0 || file_bytes != HEADER_BYTES + n * width)
    FAIL(MALFORMED, NULL, "%s: its header says %" PRId64 " %s tokens, %" PRId64 " bytes with the header; it has %" PRId64, path, n, dtype_name(h->dtype),
         HEADER_BYTES + n * width, file_bytes);
  if (asked != DTYPE_NONE && asked != h->dtype) FAIL(USAGE, NULL, "%s: its header says %s tokens, --token-dtype %s", path, dtype_name(h->dtype), dtype_name(asked));
  *out = (TokenFile){h->dtype, HEADER_BYTES, n};
  return NULL;
}

static Status read_npy(int fd, const char *path, Dtype asked, TokenFile *out) {
  NpyFile npy;
  TRY(npy_read_header(fd, path, &npy));
  if (npy.rank != 1 || dtype_is_float(npy.dtype) || npy.dtype == DTYPE_BOOL)
    FAIL(USAGE, NULL, "%s has %d axes of %s: no row of tokens; as rows of an input it is named INPUT=%s", path, npy.rank, dtype_name(npy.dtype), path);
  if (asked != DTYPE_NONE && asked != npy.dtype) FAIL(USAGE, NULL, "%s holds %s, --token-dtype %s", path, dtype_name(npy.dtype), dtype_name(asked));
  *out = (TokenFile){npy.dtype, npy.offset_bytes, npy.dims[0]};
  return NULL;
}

Status token_file_read(int fd, const char *path, Dtype asked, TokenFile *out) {
  int64_t bytes;
  TRY(data_file_bytes(fd, path, &bytes));
  if (has_suffix(path, ".npy")) return read_npy(fd, path, asked, out);
  *out = (TokenFile){.dtype = DTYPE_NONE};
  TRY(read_header(fd, path, asked, bytes, out));
  if (out->dtype != DTYPE_NONE) return NULL;
  Dtype dtype = asked != DTYPE_NONE ? asked : has_suffix(path, ".u32.bin") ? DTYPE_U32 : has_suffix(path, ".bin") ? DTYPE_U16 : DTYPE_U8;
  if (asked == DTYPE_NONE && dtype == DTYPE_U8) TRY(check_text(fd, path));
  if (bytes % dtype_bytes(dtype)) FAIL(MALFORMED, NULL, "%s has %" PRId64 " bytes: no whole number of %s tokens", path, bytes, dtype_name(dtype));
  *out = (TokenFile){dtype, 0, bytes / dtype_bytes(dtype)};
  return NULL;
}
