// Event files of TensorBoard: TFRecords (length, masked CRC-32C, bytes, masked CRC-32C) of the messages in tensorboard.proto.
//
// Ownership: event_file_open gives what event_file_close ends. Threads: one. Errors: USAGE (DIR is a file), IO with the path.
#ifndef TESSERA_EVENT_FILE_H
#define TESSERA_EVENT_FILE_H

#include <stdint.h>

#include "../ir/status.h"

typedef struct EventScalar { const char *tag; double value; } EventScalar;
typedef struct EventFile EventFile;

// Makes DIR where it is missing, and a new file in it beside those of earlier runs, of which TensorBoard shows all.
MUST_USE Status event_file_open(const char *dir, EventFile **out);
MUST_USE Status event_file_add(EventFile *file, int64_t step, const EventScalar *scalars, int n);     // in the file when it returns
MUST_USE Status event_file_close(EventFile *file);                                                    // NULL is fine

uint32_t event_crc32c(const void *bytes, size_t n);       // Castagnoli, as RFC 3720 has it; not masked

#endif
