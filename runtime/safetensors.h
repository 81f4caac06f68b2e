// safetensors files: an 8-byte header length, a JSON header, the bytes of all tensors. Reading maps the file and trusts nothing in it.
#ifndef TESSERA_SAFETENSORS_H
#define TESSERA_SAFETENSORS_H

#include "../ir/weights.h"

// ---- Reading: the tensors are borrowed from the mapping and live until safetensors_close. Read-only, any thread. ----

typedef struct Safetensors Safetensors;

// MALFORMED unless the header is JSON without duplicate names, every dtype is known, shape x width = end - begin for every tensor, and the
// tensors cover the rest of the file without overlap or hole. IO when the file cannot be read; RESOURCE for a header above 100 MB.
MUST_USE Status safetensors_open(const char *path, Safetensors **out);
// The same over bytes that the caller keeps; `path` names them in messages.
MUST_USE Status safetensors_open_bytes(const void *bytes, size_t n_bytes, const char *path, Safetensors **out);
void safetensors_close(Safetensors *file);                                        // NULL is fine
size_t safetensors_count(const Safetensors *file);
const Weight *safetensors_tensors(const Safetensors *file);                       // in name order (bytewise)
const Weight *safetensors_find(const Safetensors *file, const char *name);        // NULL when absent; binary search

// The length of the whole file from its first 8 bytes and its header: for streams. `header_bytes` is what the first 8 bytes say.
enum { SAFETENSORS_PREFIX_BYTES = 8 };
MUST_USE Status safetensors_header_bytes(const void *prefix, const char *path, int64_t *header_bytes);
// Bytes of tensor data that the header (`header_bytes` of it) announces: the largest end offset.
MUST_USE Status safetensors_data_bytes(const void *header, int64_t header_bytes, const char *path, int64_t *data_bytes);

// ---- Writing: the header first, then each tensor at its place, in any order. One thread at a time. ----

typedef struct SafetensorsEntry { const char *name; Type type; } SafetensorsEntry;
typedef struct SafetensorsWriter SafetensorsWriter;

// Starts the file as "PATH.tmp". Tensors lie widest dtype first, so that each is aligned, then in name order; the bytes of the file depend on
// entries, metadata (pairs key, value; NULL-terminated; may be NULL) and contents only. Names are copied.
MUST_USE Status safetensors_create(const char *path, const SafetensorsEntry *entries, size_t n_entries, const char *const *metadata,
                                   SafetensorsWriter **out);
MUST_USE Status safetensors_write(SafetensorsWriter *writer, size_t entry, const void *bytes);   // type_bytes of the entry
// The next `n_bytes` of an entry, which is written in pieces, from its first byte on.
MUST_USE Status safetensors_append(SafetensorsWriter *writer, size_t entry, const void *bytes, int64_t n_bytes);
// All of `weight`, which may be larger than memory: pages of a mapped file are let go on the way.
MUST_USE Status safetensors_write_weight(SafetensorsWriter *writer, size_t entry, const Weight *weight);
// Flushes to disk and gives the file its name. An entry that was not written is an error. Ends the writer in any case.
MUST_USE Status safetensors_finish(SafetensorsWriter *writer);
void safetensors_abandon(SafetensorsWriter *writer);                                             // removes the file; NULL is fine

#endif
