// libFuzzer: a file of tokens under each suffix, with and without --token-dtype; what is accepted is read to its end, whole and packed into samples by an end
// token. The first six bytes choose: suffix, type asked for, length of samples, end token, shift, and what is filled.
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/data_source.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

enum { CHOICES = 6, SEQ_MOST = 33 };

static void use(const uint8_t *choice, int fd, const char *path, const TokenFile *file) {
  int64_t block[SEQ_MOST], eos = (int8_t)choice[3], tokens;
  Feed feed = {.kind = FEED_TOKENS, .source = path, .file_dtype = file->dtype, .seq = 1 + choice[2] % SEQ_MOST, .labels = choice[5] & 1, .positions = choice[5] & 2};
  DataPack pack = {0};
  if (feed_add_part(&feed, path, fd, file->offset_bytes, file->n_tokens)) abort();
  for (int64_t at = 0; at < file->n_tokens; at += SEQ_MOST)
    if (feed_read(&feed, at, block, DTYPE_I64, file->n_tokens - at < SEQ_MOST ? file->n_tokens - at : SEQ_MOST)) abort();
  Status status = data_pack(&feed, eos, &pack);
  for (int64_t s = 0, next = 0; !status && s < pack.n; s++) {
    if (data_pack_fill(&pack, &feed, s, choice[4] & 1, eos, block, DTYPE_I64, &tokens)) abort();
    if (pack.starts[s] != next || tokens < 1 || tokens > feed.seq) abort();      // each token is in one sample
    next += tokens;
    if (s == pack.n - 1 && next != file->n_tokens) abort();
  }
  status_free(status);
  free(pack.starts);
  feed_finish(&feed);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
  static const char *const paths[] = {"fuzz.bin", "fuzz.u32.bin", "fuzz.npy", "fuzz.txt", "fuzz"};
  static const Dtype asked[] = {DTYPE_NONE, DTYPE_NONE, DTYPE_U8, DTYPE_U16, DTYPE_U32, DTYPE_I32, DTYPE_I64};
  if (n_bytes < CHOICES) return 0;
  int fd = memfd_create("fuzz", MFD_CLOEXEC);
  if (fd < 0 || write(fd, bytes + CHOICES, n_bytes - CHOICES) != (ssize_t)(n_bytes - CHOICES)) abort();
  const char *path = paths[bytes[0] % (sizeof paths / sizeof *paths)];
  TokenFile file;
  Status status = token_file_read(fd, path, asked[bytes[1] % (sizeof asked / sizeof *asked)], &file);
  if (!status) use(bytes, fd, path, &file);
  status_free(status);
  close(fd);
  return 0;
}
