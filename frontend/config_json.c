#include "config_json.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Before anything recurses over it. Brackets in strings do not count.
static Status check_depth(const char *bytes, size_t n_bytes, const char *path) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < n_bytes; i++) {
    char c = bytes[i];
    if (in_string && c == '\\') i++;
    else if (c == '"') in_string = !in_string;
    else if (!in_string && (c == '{' || c == '[')) depth++;
    else if (!in_string && (c == '}' || c == ']')) depth--;
    if (depth > CONFIG_DEPTH_MAX) FAIL(MALFORMED, NULL, "%s: nested more than %d deep", path, CONFIG_DEPTH_MAX);
  }
  return STATUS_OK;
}

Status config_json_parse(const char *bytes, size_t n_bytes, const char *path, json_t **out) {
  json_error_t error;
  if (n_bytes > CONFIG_BYTES_MAX) FAIL(MALFORMED, NULL, "%s: more than %d bytes: no configuration is as long", path, CONFIG_BYTES_MAX);
  TRY(check_depth(bytes, n_bytes, path));
  json_t *root = json_loadb(bytes, n_bytes, JSON_REJECT_DUPLICATES, &error);
  if (!root && json_error_code(&error) == json_error_out_of_memory) FAIL(RESOURCE, NULL, "out of memory to read '%s'", path);
  if (!root) FAIL(MALFORMED, NULL, "%s: line %d: %s", path, error.line, error.text);
  if (!json_is_object(root)) {
    json_decref(root);
    FAIL(MALFORMED, NULL, "%s: a configuration is one JSON object, {...}", path);
  }
  *out = root;
  return STATUS_OK;
}

Status config_json_read(const char *path, json_t **out) {
  FILE *file = fopen(path, "rb");
  if (!file) FAIL(IO, NULL, "cannot open '%s': %s", path, strerror(errno));
  char *bytes = malloc(CONFIG_BYTES_MAX + 1);
  size_t n = bytes ? fread(bytes, 1, CONFIG_BYTES_MAX + 1, file) : 0;
  bool failed = ferror(file);
  int why = errno;
  fclose(file);
  Status status = !bytes ? status_fail(STATUS_RESOURCE, NULL, "out of memory to read '%s'", path)
                  : failed ? status_fail(STATUS_IO, NULL, "cannot read '%s': %s", path, strerror(why))
                           : config_json_parse(bytes, n, path, out);
  free(bytes);
  return status;
}
