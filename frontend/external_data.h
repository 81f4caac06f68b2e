// External data: files beside the model that hold tensor bytes. Mapped once each, read-only, never outside the model's folder.
//
// Ownership: ExternalFiles owns the mappings until external_close. Threads: one at a time. Errors: IO where a file cannot be read,
// MALFORMED where the reference is wrong (leaves the folder, absolute, "..", through a link, a file with several names, another SHA-1, ranges
// beyond the file).
// Source: onnx/docs/ExternalData.md.
#ifndef TESSERA_EXTERNAL_DATA_H
#define TESSERA_EXTERNAL_DATA_H

#include "onnx_decode.h"

typedef struct ExternalFile {
  char *location;              // as the model says it
  char *path;                  // folder of the model + location
  const uint8_t *bytes;
  size_t n_bytes;
  char sha1[41];               // of all of it, in hex; "": not computed yet
} ExternalFile;

typedef struct ExternalFiles {
  char *folder;                // of the model; "." for the current one
  ExternalFile **files;
  size_t n_files;
} ExternalFiles;

MUST_USE Status external_init(ExternalFiles *files, const char *model_path);
void external_close(ExternalFiles *files);

// The bytes of a tensor whose data_location is EXTERNAL; `wanted_bytes` is what its type needs. An empty file stands for weights that are absent
// (docs/models.md): then out_file has n_bytes 0, and the offset is where the bytes would be.
MUST_USE Status external_find(ExternalFiles *files, const OnnxTensor *tensor, int64_t wanted_bytes, const ExternalFile **out_file,
                              int64_t *out_offset_bytes);

// The file of that name beneath the model's folder, mapped once; `tensor` is for messages.
MUST_USE Status external_open(ExternalFiles *files, const char *location, const char *tensor, ExternalFile **out);

// Maps a regular file read-only; an empty one gives bytes that are not NULL and n 0. Unmap with file_unmap.
MUST_USE Status file_map(const char *path, Bytes *out);
void file_unmap(Bytes bytes);

#endif
