// Documents that end with a token (--eos), packed: a sample holds whole documents one after the other, as many as fit, and is filled up with end tokens that
// count for nothing. Documents keep their order; one that is longer than a sample is cut.
#include <inttypes.h>
#include <stdlib.h>

#include "data_source.h"

enum { BLOCK_TOKENS = 1 << 15 };

static Status push(DataPack *pack, int64_t start) {
  if (pack->n + 1 >= pack->capacity) {                       // one more than samples: the end of the last
    int64_t wider = pack->capacity ? 2 * pack->capacity : 1024;
    int64_t *starts = realloc(pack->starts, (size_t)wider * sizeof *starts);
    if (!starts) FAIL(RESOURCE, NULL, "no memory for the places of %" PRId64 " samples", wider);
    pack->starts = starts;
    pack->capacity = wider;
  }
  pack->starts[pack->n++] = start;
  return NULL;
}

// A document [begin, end) after what the open sample [*start, begin) holds.
static Status add_document(DataPack *pack, int64_t seq, int64_t begin, int64_t end, int64_t *start) {
  if (end - *start > seq && begin > *start) {
    TRY(push(pack, *start));
    *start = begin;
  }
  for (; end - *start > seq; *start += seq) TRY(push(pack, *start));
  pack->n_documents++;
  return NULL;
}

static Status pack_tokens(const Feed *feed, int64_t eos, int64_t *block, DataPack *pack) {
  int64_t total = feed_elems(feed), start = 0, begin = 0;
  bool any = false;
  for (int64_t at = 0; at < total; at += BLOCK_TOKENS) {
    int64_t n = total - at < BLOCK_TOKENS ? total - at : BLOCK_TOKENS;
    TRY(feed_read(feed, at, block, DTYPE_I64, n));
    for (int64_t i = 0; i < n; i++) {
      any |= block[i] == eos;
      if (block[i] != eos && at + i + 1 < total) continue;
      TRY(add_document(pack, feed->seq, begin, at + i + 1, &start));
      begin = at + i + 1;
    }
  }
  if (!any) FAIL(MALFORMED, NULL, "%s: none of its %" PRId64 " tokens is %" PRId64 ", which --eos says ends a document", feed->source, total, eos);
  if (start < total) TRY(push(pack, start));
  pack->starts[pack->n] = total;
  return NULL;
}

Status data_pack(const Feed *feed, int64_t eos, DataPack *out) {
  int64_t *block = malloc(BLOCK_TOKENS * sizeof *block);
  if (!block) FAIL(RESOURCE, NULL, "no memory to look for the ends of documents");
  Status status = pack_tokens(feed, eos, block, out);
  free(block);
  return status;
}

static void pad(void *to, Dtype dtype, int64_t from, int64_t n, int64_t value) {
  for (int64_t j = from; j < n; j++) element_write_int(to, dtype, j, value);
}

// What follows an end token belongs to another document: it is nothing to predict. From the last on: element j - 1 is looked at before it is written.
static void mask_after_ends(void *to, Dtype dtype, int64_t n, int64_t eos) {
  for (int64_t j = n - 1; j > 0; j--)
    if (element_read_int(to, dtype, j - 1) == eos) element_write_int(to, dtype, j, LABEL_OF_NOTHING);
}

static Status fill_labels(const Feed *feed, int64_t start, int64_t n, int shift, int64_t eos, void *to, Dtype dtype) {
  int64_t total = feed_elems(feed), first, there = n;
  if (shift && start + n + 1 > total) there = total - start - 1;
  TRY(feed_read(feed, start + shift, to, dtype, there));
  pad(to, dtype, there, feed->seq, LABEL_OF_NOTHING);
  mask_after_ends(to, dtype, there, eos);
  if (!shift || !there) return NULL;
  TRY(feed_read(feed, start, &first, DTYPE_I64, 1));
  if (first == eos) element_write_int(to, dtype, 0, LABEL_OF_NOTHING);
  return NULL;
}

static void count_positions(void *to, Dtype dtype, int64_t n, int64_t eos) {
  for (int64_t j = 0, position = 0; j < n; j++) {
    bool ends = element_read_int(to, dtype, j) == eos;
    element_write_int(to, dtype, j, position++);
    if (ends) position = 0;
  }
}

Status data_pack_fill(const DataPack *pack, const Feed *feed, int64_t sample, int shift, int64_t eos, void *to, Dtype dtype, int64_t *out_tokens) {
  int64_t start = pack->starts[sample], n = pack->starts[sample + 1] - start;
  *out_tokens = n;
  if (feed->labels) return fill_labels(feed, start, n, shift, eos, to, dtype);
  TRY(feed_read(feed, start, to, dtype, n));
  pad(to, dtype, n, feed->seq, eos);
  if (feed->positions) count_positions(to, dtype, feed->seq, eos);
  return NULL;
}
