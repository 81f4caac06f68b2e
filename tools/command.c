#include "command.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "printable.h"

int command_print_error(Status status) {
  if (!status) return STATUS_OK;
  if (status->what && status->what[0]) {
    fprintf(stderr, "tessera: error: ");
    if (status->rank >= 0) fprintf(stderr, "rank %d: ", status->rank);
    if (status->node) {
      fprintf(stderr, "node '");
      printable_print(stderr, status->node, false);
      fprintf(stderr, "': ");
    }
    printable_print(stderr, status->what, true);
    fputc('\n', stderr);
  }
  int code = (int)status_code(status);
  status_free(status);
  return code;
}

Status command_exit_silently(int code) { return code ? status_fail((StatusCode)code, NULL, "%s", "") : STATUS_OK; }

Status command_make_folders(const char *path) {
  char *folder = strdup(path);
  if (!folder) FAIL(RESOURCE, NULL, "out of memory for the path '%s'", path);
  Status status = STATUS_OK;
  for (char *slash = strchr(folder + (*folder == '/'), '/'); slash && !status; slash = strchr(slash + 1, '/')) {
    *slash = 0;
    if (mkdir(folder, 0777) && errno != EEXIST) status = status_fail(STATUS_IO, NULL, "cannot make the folder '%s' for '%s': %s", folder, path, strerror(errno));
    *slash = '/';
  }
  free(folder);
  return status;
}
