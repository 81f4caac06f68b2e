// Files that a person asked for, written whole: made in memory first, then beside their place and renamed (frontend/atomic_file.h); pipes and devices, which
// cannot be replaced, are written directly. Threads: any.
#ifndef TESSERA_TEXT_FILE_H
#define TESSERA_TEXT_FILE_H

#include <stdio.h>

#include "../ir/status.h"

// `write` prints the text. Errors: its own; RESOURCE when memory runs out; IO with path and reason. `what` begins their text: "the report".
MUST_USE Status text_file_write(const char *path, const char *what, Status (*write)(FILE *to, void *self), void *self);

#endif
