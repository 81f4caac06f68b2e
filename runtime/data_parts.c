// Several files as one: names that stand for several, and elements that lie in one file after the other. Nothing is read but what is asked for.
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data_source.h"

static bool has_suffix(const char *text, const char *suffix) {
  size_t n = strlen(text), m = strlen(suffix);
  return n > m && !strcmp(text + n - m, suffix);
}

// Files that a folder of data may hold beside what is none: with one of these suffixes.
static const char *data_suffix(const char *name) {
  static const char *const known[] = {".u32.bin", ".bin", ".npy", ".safetensors", ".txt"};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (has_suffix(name, known[i])) return known[i];
  return NULL;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static Status list_add(DataPaths *list, const char *dir, const char *name) {
  char **wider = realloc(list->items, (list->n + 1) * sizeof *wider);
  if (wider) list->items = wider;
  if (!wider || asprintf(&list->items[list->n], "%s%s%s", dir, *dir ? "/" : "", name) < 0) FAIL(RESOURCE, NULL, "no memory for the names of %zu files", list->n + 1);
  list->n++;
  return NULL;
}

static Status list_folder(const char *path, DataPaths *out) {
  DIR *dir = opendir(path);
  const char *first = NULL;
  Status status = NULL;
  if (!dir) FAIL(IO, NULL, "--data: cannot open the folder %s: %s", path, strerror(errno));
  for (struct dirent *e; !status && (e = readdir(dir));) {
    const char *suffix = e->d_name[0] == '.' ? NULL : data_suffix(e->d_name);
    if (!suffix) continue;
    if (first && strcmp(first, suffix))
      status = status_fail(STATUS_USAGE, NULL, "--data: the folder %s holds files of both %s and %s; say which with '%s/*%s'", path, first, suffix, path, suffix);
    else status = list_add(out, path, e->d_name);
    first = suffix;
  }
  closedir(dir);
  TRY(status);
  if (!out->n) FAIL(IO, NULL, "--data: the folder %s holds no file of data: .bin, .npy, .safetensors, .txt", path);
  qsort(out->items, out->n, sizeof *out->items, by_name);
  return NULL;
}

static Status list_matches(const char *pattern, DataPaths *out) {
  glob_t found = {0};
  int error = glob(pattern, 0, NULL, &found);
  Status status = NULL;
  if (error == GLOB_NOMATCH) status = status_fail(STATUS_IO, NULL, "--data: no file matches '%s'", pattern);
  else if (error) status = status_fail(error == GLOB_NOSPACE ? STATUS_RESOURCE : STATUS_IO, NULL, "--data: cannot look for files that match '%s'", pattern);
  for (size_t i = 0; !status && i < found.gl_pathc; i++) status = list_add(out, "", found.gl_pathv[i]);
  globfree(&found);
  return status;
}

Status data_paths_list(const char *path, DataPaths *out) {
  struct stat st;
  *out = (DataPaths){0};
  bool there = !stat(path, &st);
  Status status = there && S_ISDIR(st.st_mode) ? list_folder(path, out) : !there && strpbrk(path, "*?[") ? list_matches(path, out) : list_add(out, "", path);
  if (status) data_paths_finish(out);
  return status;
}

void data_paths_finish(DataPaths *list) {
  for (size_t i = 0; i < list->n; i++) free(list->items[i]);
  free(list->items);
  *list = (DataPaths){0};
}

// ---- Elements -----------------------------------------------------------------------------------------------------------------

Status feed_add_part(Feed *feed, const char *path, int fd, int64_t offset_bytes, int64_t n_elems) {
  DataPart *wider = realloc(feed->parts, (feed->n_parts + 1) * sizeof *wider);
  if (wider) feed->parts = wider;
  char *name = wider ? strdup(path) : NULL;
  if (!name) FAIL(RESOURCE, NULL, "no memory for file %zu of the data", feed->n_parts + 1);
  int64_t first = feed_elems(feed), end;
  if (__builtin_add_overflow(first, n_elems, &end)) {
    free(name);
    FAIL(RESOURCE, NULL, "%s: more than 2^63 elements in all", path);
  }
  feed->parts[feed->n_parts++] = (DataPart){name, fd, offset_bytes, first, n_elems};
  return NULL;
}

int64_t feed_elems(const Feed *feed) {
  const DataPart *last = feed->n_parts ? &feed->parts[feed->n_parts - 1] : NULL;
  return last ? last->first_elem + last->n_elems : 0;
}

const DataPart *feed_part(const Feed *feed, int64_t elem) {
  size_t low = 0, high = feed->n_parts;
  while (high - low > 1) {
    size_t middle = low + (high - low) / 2;
    if (feed->parts[middle].first_elem <= elem) low = middle;
    else high = middle;
  }
  return &feed->parts[low];
}

Status feed_read(const Feed *feed, int64_t elem, void *to, Dtype to_dtype, int64_t n) {
  int64_t from_width = dtype_bytes(feed->file_dtype), to_width = dtype_bytes(to_dtype);
  for (int64_t done = 0; done < n;) {
    const DataPart *part = feed_part(feed, elem + done);
    int64_t inside = elem + done - part->first_elem, m = part->n_elems - inside;
    if (m > n - done) m = n - done;
    TRY(data_file_read(part, feed->file_dtype, part->offset_bytes + inside * from_width, (char *)to + done * to_width, to_dtype, m));
    done += m;
  }
  return NULL;
}

void feed_finish(Feed *feed) {
  for (size_t i = 0; i < feed->n_parts; i++) free(feed->parts[i].path);
  free(feed->parts);
  free(feed->batch_offsets);
  free(feed->batch_types);
}
