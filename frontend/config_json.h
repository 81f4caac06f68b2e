// One JSON object, from a file or from bytes, within bounds: the text is at most CONFIG_BYTES_MAX long and CONFIG_DEPTH_MAX deep, no key stands twice.
//
// Ownership: *out is to be given to json_decref. Threads: any. Errors: IO (the file), MALFORMED with the line.
#ifndef TESSERA_CONFIG_JSON_H
#define TESSERA_CONFIG_JSON_H

#include <jansson.h>

#include "../ir/status.h"

enum { CONFIG_BYTES_MAX = 1 << 20, CONFIG_DEPTH_MAX = 32 };

MUST_USE Status config_json_parse(const char *bytes, size_t n_bytes, const char *path, json_t **out);   // path: for errors
MUST_USE Status config_json_read(const char *path, json_t **out);

#endif
