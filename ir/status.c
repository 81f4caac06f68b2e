#include "status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char out_of_memory_text[] = "out of memory while reporting an error";
static StatusError out_of_memory = {STATUS_RESOURCE, -1, NULL, out_of_memory_text};

Status status_vfail(StatusCode code, const char *node, const char *format, va_list args) {
  StatusError *s = calloc(1, sizeof *s);
  if (!s) return &out_of_memory;
  s->code = code;
  s->rank = -1;
  va_list again;
  va_copy(again, args);
  int bytes = vsnprintf(NULL, 0, format, again);
  va_end(again);
  s->what = malloc((size_t)(bytes < 0 ? 0 : bytes) + 1);
  s->node = node && *node ? strdup(node) : NULL;
  if (!s->what || (node && *node && !s->node)) {
    status_free(s);
    return &out_of_memory;
  }
  s->what[0] = 0;
  if (bytes > 0) vsnprintf(s->what, (size_t)bytes + 1, format, args);
  return s;
}

Status status_fail(StatusCode code, const char *node, const char *format, ...) {
  va_list args;
  va_start(args, format);
  Status s = status_vfail(code, node, format, args);
  va_end(args);
  return s;
}

Status status_context(Status status, const char *format, ...) {
  if (!status || status == &out_of_memory) return status;
  char prefix[512];
  va_list args;
  va_start(args, format);
  vsnprintf(prefix, sizeof prefix, format, args);
  va_end(args);
  size_t bytes = strlen(prefix) + 2 + strlen(status->what) + 1;
  char *joined = malloc(bytes);
  if (!joined) return status;   // the shorter text still tells the cause
  snprintf(joined, bytes, "%s: %s", prefix, status->what);
  free(status->what);
  status->what = joined;
  return status;
}

StatusCode status_code(const StatusError *status) { return status ? status->code : STATUS_OK; }

void status_free(Status status) {
  if (!status || status == &out_of_memory) return;
  free(status->node);
  free(status->what);
  free(status);
}

const char *status_text(const StatusError *status, char *out, size_t out_bytes) {
  if (!status) snprintf(out, out_bytes, "ok");
  else if (status->node) snprintf(out, out_bytes, "node '%s': %s", status->node, status->what);
  else snprintf(out, out_bytes, "%s", status->what);
  return out;
}
