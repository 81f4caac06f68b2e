// Folders that are whole or not there: written under a name of their own beside their place, flushed, then put in place at once.
//
// Any number of processes may do this at one place: each has a temporary folder of its own, "PLACE.tmp.XXXXXX", and at any time a whole folder of one
// of them has the name; the last one stays. (Where the file system cannot exchange two names, none has it for a moment.) A temporary folder
// is locked while its process lives; new_folder_begin removes those that killed processes left.
//
// Files of these folders have the names of the list `ours` (NULL ends it), or such a name and ".tmp.XXXXXX"; nothing else is ever removed.
// Ownership: after new_folder_begin the folder is to be ended with new_folder_commit or new_folder_abandon. Threads: one per folder. Errors: IO, USAGE.
#ifndef TESSERA_NEW_FOLDER_H
#define TESSERA_NEW_FOLDER_H

#include "../ir/status.h"

enum { FOLDER_PATH_BYTES = 4096 };

typedef struct NewFolder {
  char place[FOLDER_PATH_BYTES], path[FOLDER_PATH_BYTES];   // path: where to write the files
  int lock;                                                 // descriptor
  const char *const *ours;
} NewFolder;

MUST_USE Status new_folder_begin(const char *place, const char *const *ours, NewFolder *out);   // `place`: without slashes at its end
MUST_USE Status new_folder_commit(NewFolder *folder);       // ends it, also when it fails; what stood in its place is removed
void new_folder_abandon(NewFolder *folder);

MUST_USE Status folder_flush(const char *path);

#endif
