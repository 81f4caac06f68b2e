#include "command.h"

#include <stdio.h>

int command_print_error(Status status) {
  if (!status) return STATUS_OK;
  if (status->what && status->what[0]) {
    fprintf(stderr, "tessera: error: ");
    if (status->rank >= 0) fprintf(stderr, "rank %d: ", status->rank);
    if (status->node) fprintf(stderr, "node '%s': ", status->node);
    fprintf(stderr, "%s\n", status->what);
  }
  int code = (int)status_code(status);
  status_free(status);
  return code;
}

Status command_exit_silently(int code) { return code ? status_fail((StatusCode)code, NULL, "%s", "") : STATUS_OK; }
