#include "memory_limit.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, TEXT_BYTES = 16384 };

int64_t memory_number_in(const char *path, const char *key) {
  char text[TEXT_BYTES];
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t n = read(fd, text + 1, sizeof text - 2);
  close(fd);
  if (n <= 0) return -1;
  text[0] = '\n';                          // so that a key may begin a line
  text[n + 1] = 0;
  const char *at = *key ? strstr(text, key) : text + 1;
  if (!at) return -1;
  at += strlen(key);
  char *end;
  int64_t value = strtoll(at, &end, 10);
  return end == at ? -1 : value;
}

static void take_smaller(MemoryRoom *room, int64_t bytes, const char *format, const char *name, int64_t limit) {
  if (bytes < 0) bytes = 0;
  if (bytes >= room->bytes) return;
  room->bytes = bytes;
  snprintf(room->by, sizeof room->by, format, name, limit);
}

// ---- Control groups -----------------------------------------------------------------------------------------------------------

// The files of one version.
typedef struct Version {
  const char *limit, *usage, *cache_keys[2];
} Version;
static const Version versions[] = {
    {"memory.limit_in_bytes", "memory.usage_in_bytes", {"\ntotal_inactive_file ", "\ntotal_active_file "}},
    {"memory.max", "memory.current", {"\ninactive_file ", "\nactive_file "}},
};

static int64_t number_of(const char *group, const char *file, const char *key) {
  char path[PATH_BYTES];
  if (snprintf(path, sizeof path, "%s/%s", group, file) >= (int)sizeof path) return -1;
  return memory_number_in(path, key);
}

// Cache of files counts as used and is given back before anybody is ended.
static void look_at_group(const char *group, const char *shown, const Version *v, MemoryRoom *room) {
  int64_t limit = number_of(group, v->limit, ""), usage = number_of(group, v->usage, "");
  if (limit < 0) return;                   // "max", or the root, which has none
  for (int i = 0; i < 2; i++) {
    int64_t cache = number_of(group, "memory.stat", v->cache_keys[i]);
    if (cache > 0 && usage > 0) usage -= cache;
  }
  take_smaller(room, limit - (usage > 0 ? usage : 0), "control group %s, limit %" PRId64 " bytes", shown, limit);
}

// From the group at `path` below `mount` up to `mount` itself.
static void walk_up(const char *root, const char *mount, const char *path, const Version *v, MemoryRoom *room) {
  char group[PATH_BYTES];
  int n = snprintf(group, sizeof group, "%s%s%s", root, mount, strcmp(path, "/") ? path : "");
  if (n < 0 || n >= (int)sizeof group) return;
  size_t top = strlen(root) + strlen(mount);
  for (;;) {
    look_at_group(group, group[top] ? group + top : "/", v, room);
    char *slash = strrchr(group, '/');
    if (!slash || slash < group + top) return;
    *slash = 0;
  }
}

// Is `word` in the comma-separated list of `n` bytes?
static bool lists(const char *list, size_t n, const char *word) {
  size_t m = strlen(word);
  for (const char *p = list; p < list + n; p += strcspn(p, ",") + 1)
    if ((size_t)(list + n - p) >= m && !strncmp(p, word, m) && (p + m == list + n || p[m] == ',')) return true;
  return false;
}

// This process's group in the hierarchy of a version: "0::PATH", or "N:memory:PATH".
static bool find_group(const char *root, bool second, char out[PATH_BYTES]) {
  char path[PATH_BYTES], line[PATH_BYTES];
  snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
  FILE *file = fopen(path, "re");
  bool found = false;
  while (file && !found && fgets(line, sizeof line, file)) {
    char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) continue;
    found = second ? group == controllers + 1 && line[0] == '0' : lists(controllers + 1, (size_t)(group - controllers - 1), "memory");
    if (found) snprintf(out, PATH_BYTES, "%.*s", (int)strcspn(group + 1, "\n"), group + 1);
  }
  if (file) fclose(file);
  return found;
}

// One line of mountinfo: "ID PARENT DEV ROOT MOUNT OPTIONS ... - TYPE SOURCE SUPER"; of the hierarchy asked for?
static bool is_mount(char *line, bool second, char **out_root, char **out_mount) {
  char *fields[5], *save = NULL, *dash = strstr(line, " - ");
  if (!dash) return false;
  *dash = 0;
  char type[32] = "", super[1024] = "";
  if (sscanf(dash + 3, "%31s %*s %1023s", type, super) < 1) return false;
  for (int i = 0; i < 5; i++)
    if (!(fields[i] = strtok_r(i ? NULL : line, " ", &save))) return false;
  *out_root = fields[3];
  *out_mount = fields[4];
  return second ? !strcmp(type, "cgroup2") : !strcmp(type, "cgroup") && lists(super, strlen(super), "memory");
}

// A container may see only its part of the hierarchy: paths begin at the root of what is mounted.
static void look_at_hierarchy(const char *root, bool second, MemoryRoom *room) {
  char path[PATH_BYTES], line[PATH_BYTES], group[PATH_BYTES];
  if (!find_group(root, second, group)) return;
  snprintf(path, sizeof path, "%s/proc/self/mountinfo", root);
  FILE *file = fopen(path, "re");
  while (file && fgets(line, sizeof line, file)) {
    char *mount_root, *mount;
    if (!is_mount(line, second, &mount_root, &mount)) continue;
    size_t n = strcmp(mount_root, "/") ? strlen(mount_root) : 0;
    bool inside = !strncmp(group, mount_root, n) && (!group[n] || group[n] == '/');
    walk_up(root, mount, !inside ? "/" : group[n] ? group + n : "/", &versions[second], room);
    break;
  }
  if (file) fclose(file);
}

// ---- All ----------------------------------------------------------------------------------------------------------------------

MemoryRoom memory_room(const char *root) {
  MemoryRoom room = {INT64_MAX, "nothing known"};
  char path[PATH_BYTES];
  snprintf(path, sizeof path, "%s/proc/meminfo", root);
  int64_t kib = memory_number_in(path, "\nMemAvailable:");
  if (kib >= 0) take_smaller(&room, kib * 1024, "what %s has available, %" PRId64 " bytes", "the machine", kib * 1024);
  look_at_hierarchy(root, false, &room);
  look_at_hierarchy(root, true, &room);
  return room;
}

MemoryRoom memory_address_room(void) {
  MemoryRoom room = {INT64_MAX, "nothing known"};
  struct rlimit limit;
  int64_t used_kib = memory_number_in("/proc/self/status", "\nVmSize:");
  if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur > INT64_MAX) return room;
  int64_t bytes = (int64_t)limit.rlim_cur;
  take_smaller(&room, bytes - (used_kib > 0 ? used_kib * 1024 : 0), "the %s (ulimit -v, RLIMIT_AS), %" PRId64 " bytes", "limit of address space", bytes);
  return room;
}
