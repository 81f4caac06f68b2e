// Paths as texts: their folder, their name, their suffix. No file is touched and nothing is allocated; any thread.
#ifndef TESSERA_PATH_H
#define TESSERA_PATH_H

#include <stdbool.h>
#include <string.h>

// The folder that `path` names a file in: "." without a slash, "/" directly below the root. Print it with "%.*s", or strndup it.
typedef struct PathFolder { const char *at; int bytes; } PathFolder;
static inline PathFolder path_folder(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? (PathFolder){path, (int)(slash - path) + (slash == path)} : (PathFolder){".", 1};
}

// What stands after the last slash.
static inline const char *path_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

static inline bool has_suffix(const char *text, const char *suffix) {   // of a path or of a name
  size_t n = strlen(text), m = strlen(suffix);
  return n >= m && !strcmp(text + n - m, suffix);
}

#endif
