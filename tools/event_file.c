#include "event_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "command.h"
#include "tensorboard.pb-c.h"

enum { SCALARS_MAX = 32, FRAME_BYTES = 16 };

struct EventFile {
  FILE *to;
  char *path;
};

// Records are some hundred bytes: bit by bit is fast enough.
uint32_t event_crc32c(const void *bytes, size_t n) {
  const unsigned char *at = bytes;
  uint32_t crc = UINT32_MAX;
  for (size_t i = 0; i < n; i++) {
    crc ^= at[i];
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
  }
  return ~crc;
}

// TFRecords mask checksums so that one of bytes which hold a checksum is no trivial number.
static uint32_t masked_crc(const void *bytes, size_t n) {
  uint32_t crc = event_crc32c(bytes, n);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void put_little_endian(unsigned char *to, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; i++) to[i] = (unsigned char)(value >> 8 * i);
}

static Status write_record(EventFile *file, const Tessera__Event *event) {
  size_t n = tessera__event__get_packed_size(event);
  unsigned char *record = malloc(n + FRAME_BYTES);
  if (!record) FAIL(RESOURCE, NULL, "no memory for an event of %zu bytes", n);
  put_little_endian(record, n, 8);
  put_little_endian(record + 8, masked_crc(record, 8), 4);
  tessera__event__pack(event, record + 12);
  put_little_endian(record + 12 + n, masked_crc(record + 12, n), 4);
  bool ok = fwrite(record, 1, n + FRAME_BYTES, file->to) == n + FRAME_BYTES && !fflush(file->to);
  free(record);
  if (!ok) FAIL(IO, NULL, "--tensorboard: cannot write '%s': %s", file->path, strerror(errno));
  return STATUS_OK;
}

static Tessera__Event event_now(int64_t step) {
  Tessera__Event event = TESSERA__EVENT__INIT;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  event.wall_time = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
  event.step = step;
  return event;
}

static Status make_folder(const char *dir) {
  struct stat st;
  Status above = command_make_folders(dir);
  if (above) return status_context(above, "--tensorboard");
  if (!mkdir(dir, 0777)) return STATUS_OK;
  int error = errno;
  if (error != EEXIST) FAIL(IO, NULL, "--tensorboard: cannot make the folder '%s': %s", dir, strerror(error));
  if (stat(dir, &st)) FAIL(IO, NULL, "--tensorboard: cannot look at '%s': %s", dir, strerror(errno));
  if (!S_ISDIR(st.st_mode)) FAIL(USAGE, NULL, "--tensorboard '%s' is a file; it must be a folder", dir);
  return STATUS_OK;
}

static Status open_file(const char *dir, EventFile *file) {
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  for (char *c = host; *c; c++)
    if (*c == '/') *c = '_';
  if (asprintf(&file->path, "%s/events.out.tfevents.%010lld.%s.%ld", dir, (long long)time(NULL), host, (long)getpid()) < 0) {
    file->path = NULL;
    FAIL(RESOURCE, NULL, "no memory for the event file in '%s'", dir);
  }
  if (!(file->to = fopen(file->path, "wbx"))) FAIL(IO, NULL, "--tensorboard: cannot write '%s': %s", file->path, strerror(errno));
  Tessera__Event event = event_now(0);
  event.what_case = TESSERA__EVENT__WHAT_FILE_VERSION;
  event.file_version = "brain.Event:2";
  return write_record(file, &event);
}

Status event_file_open(const char *dir, EventFile **out) {
  TRY(make_folder(dir));
  EventFile *file = calloc(1, sizeof *file);
  if (!file) FAIL(RESOURCE, NULL, "no memory for the event file in '%s'", dir);
  Status status = open_file(dir, file);
  if (status) status_free(event_file_close(file));
  else *out = file;
  return status;
}

Status event_file_add(EventFile *file, int64_t step, const EventScalar *scalars, int n) {
  Tessera__Summary__Value values[SCALARS_MAX], *pointers[SCALARS_MAX];
  Tessera__Summary summary = TESSERA__SUMMARY__INIT;
  if (n > SCALARS_MAX) FAIL(USAGE, NULL, "%d scalars in an event; at most %d", n, SCALARS_MAX);
  for (int i = 0; i < n; i++) {
    values[i] = (Tessera__Summary__Value)TESSERA__SUMMARY__VALUE__INIT;
    values[i].tag = (char *)scalars[i].tag;
    values[i].value_case = TESSERA__SUMMARY__VALUE__VALUE_SIMPLE_VALUE;
    values[i].simple_value = (float)scalars[i].value;
    pointers[i] = &values[i];
  }
  summary.value = pointers;
  summary.n_value = (size_t)n;
  Tessera__Event event = event_now(step);
  event.what_case = TESSERA__EVENT__WHAT_SUMMARY;
  event.summary = &summary;
  return write_record(file, &event);
}

Status event_file_close(EventFile *file) {
  Status status = STATUS_OK;
  if (!file) return STATUS_OK;
  if (file->to && fclose(file->to)) status = status_fail(STATUS_IO, NULL, "--tensorboard: cannot write '%s': %s", file->path, strerror(errno));
  free(file->path);
  free(file);
  return status;
}
