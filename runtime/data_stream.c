// The stream of micro-batches on a descriptor: safetensors files back to back.
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../ir/clock.h"
#include "data_source.h"

static const char stream_name[] = "the stream on stdin";

// Exactly n bytes; *out_bytes less than n at the end of the stream.
static Status read_some(Stream *s, void *to, int64_t n, int64_t *out_bytes) {
  int64_t end_ns = clock_now_ns() + s->deadline_ns, done = 0;
  while (done < n) {
    int64_t left_ms = (end_ns - clock_now_ns()) / 1000000;
    struct pollfd fd = {s->fd, POLLIN, 0};
    int ready = left_ms > 0 ? poll(&fd, 1, left_ms > 1000000 ? 1000000 : (int)left_ms) : 0;
    if (ready == 0 && left_ms <= 0)
      FAIL(IO, NULL, "%s gave nothing for %.3f s while batch %" PRId64 " was due", stream_name, (double)s->deadline_ns / 1e9, s->next_batch);
    if (ready <= 0) continue;
    ssize_t m = read(s->fd, (char *)to + done, (size_t)(n - done));
    if (m < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (m < 0) FAIL(IO, NULL, "cannot read %s: %s", stream_name, strerror(errno));
    if (m == 0) break;
    done += m;
    end_ns = clock_now_ns() + s->deadline_ns;
  }
  *out_bytes = done;
  return NULL;
}

static Status read_whole(Stream *s, void *to, int64_t n) {
  int64_t got;
  TRY(read_some(s, to, n, &got));
  if (got != n) FAIL(MALFORMED, NULL, "%s ends within batch %" PRId64 ": %" PRId64 " bytes are missing", stream_name, s->next_batch, n - got);
  return NULL;
}

static Status slot_room(StreamSlot *slot, size_t bytes) {
  if (bytes <= slot->capacity) return NULL;
  char *wider = realloc(slot->bytes, bytes);
  if (!wider) FAIL(RESOURCE, NULL, "no memory for a batch of %zu bytes", bytes);
  slot->bytes = wider;
  slot->capacity = bytes;
  return NULL;
}

// The next batch into its slot; s->ended when there is none.
static Status read_next(Stream *s) {
  StreamSlot *slot = &s->slots[s->next_batch % s->n_slots];
  unsigned char prefix[SAFETENSORS_PREFIX_BYTES];
  int64_t got, header_bytes, data_bytes;
  safetensors_close(slot->file);
  slot->file = NULL;
  TRY(read_some(s, prefix, sizeof prefix, &got));
  if (got == 0) {
    s->ended = true;
    return NULL;
  }
  if (got < SAFETENSORS_PREFIX_BYTES) FAIL(MALFORMED, NULL, "%s ends within the first bytes of batch %" PRId64, stream_name, s->next_batch);
  Status status = safetensors_header_bytes(prefix, stream_name, &header_bytes);
  if (status) return status_context(status, "batch %" PRId64 "; each batch must be what safetensors.torch.save or safetensors.numpy.save gives", s->next_batch);
  int64_t head = SAFETENSORS_PREFIX_BYTES + header_bytes;
  TRY(slot_room(slot, (size_t)head));
  memcpy(slot->bytes, prefix, sizeof prefix);
  TRY(read_whole(s, slot->bytes + SAFETENSORS_PREFIX_BYTES, header_bytes));
  TRY(safetensors_data_bytes(slot->bytes + SAFETENSORS_PREFIX_BYTES, header_bytes, stream_name, &data_bytes));
  if (data_bytes > INT64_C(1) << 40) FAIL(RESOURCE, NULL, "%s: batch %" PRId64 " announces %" PRId64 " bytes", stream_name, s->next_batch, data_bytes);
  TRY(slot_room(slot, (size_t)(head + data_bytes)));
  TRY(read_whole(s, slot->bytes + head, data_bytes));
  TRY(safetensors_open_bytes(slot->bytes, (size_t)(head + data_bytes), stream_name, &slot->file));
  slot->variant = -1;
  slot->batch = s->next_batch++;
  return NULL;
}

Status stream_start(Stream *s, int fd, int64_t deadline_ns) {
  *s = (Stream){.fd = fd, .deadline_ns = deadline_ns};
  pthread_mutex_init(&s->mutex, NULL);
  return stream_widen(s, 1);
}

Status stream_widen(Stream *s, int64_t n_slots) {
  if (n_slots <= s->n_slots) return NULL;
  StreamSlot *slots = calloc((size_t)n_slots, sizeof *slots);
  if (!slots) FAIL(RESOURCE, NULL, "no memory for %" PRId64 " batches", n_slots);
  for (int64_t i = 0; i < s->n_slots; i++) slots[s->slots[i].batch % n_slots] = s->slots[i];   // one slot before: the first batch
  free(s->slots);
  s->slots = slots;
  s->n_slots = n_slots;
  return NULL;
}

Status stream_seek(Stream *s, int64_t batch, StreamSlot **out) {
  *out = NULL;
  while (!s->ended && s->next_batch <= batch) TRY(read_next(s));
  if (s->next_batch <= batch) return NULL;
  StreamSlot *slot = &s->slots[batch % s->n_slots];
  if (!slot->file || slot->batch != batch) FAIL(IO, NULL, "batch %" PRId64 " of %s has passed; the next one is %" PRId64, batch, stream_name, s->next_batch);
  *out = slot;
  return NULL;
}

int stream_variant(const Stream *s, int64_t batch) {
  const StreamSlot *slot = batch < 0 ? NULL : &s->slots[batch % s->n_slots];
  return slot && slot->file && slot->batch == batch ? slot->variant : -1;
}

void stream_finish(Stream *s) {
  for (int64_t i = 0; i < s->n_slots; i++) {
    safetensors_close(s->slots[i].file);
    free(s->slots[i].bytes);
  }
  free(s->slots);
  pthread_mutex_destroy(&s->mutex);
}
