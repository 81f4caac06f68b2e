#include "new_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char mark[] = ".tmp.", filler[] = "XXXXXX";

static Status join(char out[FOLDER_PATH_BYTES], const char *a, const char *b, const char *c) {
  int n = snprintf(out, FOLDER_PATH_BYTES, "%s%s%s", a, b, c);
  if (n < 0 || n >= FOLDER_PATH_BYTES) FAIL(USAGE, NULL, "the path %.60s... has %d bytes; at most %d are possible", a, n, FOLDER_PATH_BYTES - 1);
  return STATUS_OK;
}

// "NAME.tmp.XXXXXX" of that name?
static bool is_temporary_of(const char *entry, const char *name) {
  size_t n = strlen(name);
  return !strncmp(entry, name, n) && !strncmp(entry + n, mark, sizeof mark - 1) && strlen(entry + n) == sizeof mark - 1 + sizeof filler - 1;
}

static bool is_ours(const char *entry, const char *const *ours) {
  for (; *ours; ours++)
    if (!strcmp(entry, *ours) || is_temporary_of(entry, *ours)) return true;
  return false;
}

static void remove_folder(const char *path, const char *const *ours) {
  DIR *dir = opendir(path);
  for (struct dirent *e; dir && (e = readdir(dir));)
    if (is_ours(e->d_name, ours)) unlinkat(dirfd(dir), e->d_name, 0);
  if (dir) closedir(dir);
  rmdir(path);
}

// Temporary folders of `place` whose process is gone: nobody holds their lock.
static void remove_stale(const char *place, const char *const *ours) {
  char parent[FOLDER_PATH_BYTES], path[FOLDER_PATH_BYTES];
  const char *slash = strrchr(place, '/'), *name = slash ? slash + 1 : place;
  snprintf(parent, sizeof parent, "%.*s", slash ? (int)(name - place) : 1, slash ? place : ".");
  DIR *dir = opendir(parent);
  for (struct dirent *e; dir && (e = readdir(dir));) {
    if (!is_temporary_of(e->d_name, name)) continue;
    if (snprintf(path, sizeof path, "%s/%s", parent, e->d_name) >= (int)sizeof path) continue;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) continue;
    if (!flock(fd, LOCK_EX | LOCK_NB)) remove_folder(path, ours);
    close(fd);
  }
  if (dir) closedir(dir);
}

// Locks the folder just made. Somebody who found it unlocked may be about to remove it: false, another one is needed.
static bool lock_folder(NewFolder *folder) {
  struct stat held, named;
  folder->lock = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder->lock < 0) return errno != ENOENT;
  bool taken = flock(folder->lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;      // file systems without locks: nothing is removed there either
  if (!taken && !fstat(folder->lock, &held) && !stat(folder->path, &named) && held.st_ino == named.st_ino) return true;
  close(folder->lock);
  folder->lock = -1;
  return false;
}

Status new_folder_begin(const char *place, const char *const *ours, NewFolder *out) {
  enum { TRIES = 100 };
  *out = (NewFolder){.lock = -1, .ours = ours};
  TRY(join(out->place, place, "", ""));
  remove_stale(place, ours);
  mode_t mask = umask(0);                  // mkdtemp makes private folders; give what mkdir would have given
  umask(mask);
  for (int i = 0; i < TRIES; i++) {
    TRY(join(out->path, place, mark, filler));
    if (!mkdtemp(out->path)) FAIL(IO, NULL, "cannot create %s: %s", out->path, strerror(errno));
    if (!lock_folder(out)) continue;
    (void)!chmod(out->path, 0777 & ~mask);
    return STATUS_OK;
  }
  FAIL(IO, NULL, "cannot create a folder beside %s: others remove it", place);
}

Status folder_flush(const char *path) {
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) FAIL(IO, NULL, "cannot open %s: %s", path, strerror(errno));
  int error = fsync(fd) ? errno : 0;
  close(fd);
  if (error && error != EINVAL) FAIL(IO, NULL, "cannot flush %s: %s", path, strerror(error));
  return STATUS_OK;
}

static bool is_occupied(int error) { return error == ENOTEMPTY || error == EEXIST; }

// A file system that cannot exchange: for a moment nothing has the name. Others may be faster, so again.
static Status replace_stepwise(const NewFolder *folder) {
  enum { TRIES = 100 };
  char old[FOLDER_PATH_BYTES];
  TRY(join(old, folder->path, ".old", ""));
  for (int i = 0; i < TRIES; i++) {
    bool moved = !rename(folder->place, old);
    if (!moved && errno != ENOENT) break;
    bool placed = !rename(folder->path, folder->place);
    int error = errno;
    if (moved && !placed && !is_occupied(error)) (void)!rename(old, folder->place);
    else if (moved) remove_folder(old, folder->ours);
    if (placed) return STATUS_OK;
    errno = error;
    if (!is_occupied(error)) break;
  }
  FAIL(IO, NULL, "cannot rename %s to %s: %s", folder->path, folder->place, strerror(errno));
}

static Status take_place(const NewFolder *folder) {
  enum { TRIES = 100 };
  for (int i = 0; i < TRIES; i++) {
    if (!rename(folder->path, folder->place)) return STATUS_OK;          // nothing or an empty folder was there
    if (!is_occupied(errno)) FAIL(IO, NULL, "cannot rename %s to %s: %s", folder->path, folder->place, strerror(errno));
    if (!renameat2(AT_FDCWD, folder->path, AT_FDCWD, folder->place, RENAME_EXCHANGE)) {
      remove_folder(folder->path, folder->ours);                         // what stood there
      return STATUS_OK;
    }
    if (errno != ENOENT) return replace_stepwise(folder);
  }
  return replace_stepwise(folder);
}

static Status flush_parent(const char *place) {
  char parent[FOLDER_PATH_BYTES];
  const char *slash = strrchr(place, '/');
  snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - place) + (slash == place) : 1, slash ? place : ".");
  return folder_flush(parent);
}

static void unlock(NewFolder *folder) {
  if (folder->lock >= 0) close(folder->lock);
  folder->lock = -1;
}

Status new_folder_commit(NewFolder *folder) {
  Status status = folder_flush(folder->path);
  if (!status) status = take_place(folder);
  if (status) {
    new_folder_abandon(folder);
    return status;
  }
  unlock(folder);
  return flush_parent(folder->place);
}

void new_folder_abandon(NewFolder *folder) {
  remove_folder(folder->path, folder->ours);
  unlock(folder);
}
