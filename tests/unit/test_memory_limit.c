// Room for memory out of the kernel's files, laid out in a folder as machines and containers have them; and the limit of address space.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../runtime/memory_limit.h"

static char root[64];

static void put(const char *name, const char *text) {
  char path[256];
  snprintf(path, sizeof path, "%s%s", root, name);
  for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = 0;
    mkdir(path, 0777);
    *slash = '/';
  }
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs(text, file);
  assert_int_equal(fclose(file), 0);
}

static int begin(void **state) {
  strcpy(root, "/tmp/tessera_test_XXXXXX");
  if (!mkdtemp(root)) return 1;
  put("/proc/meminfo", "MemTotal: 9000000 kB\nMemFree: 5 kB\nMemAvailable: 8000000 kB\n");
  return 0;
}
static int end(void **state) {
  char command[96];
  snprintf(command, sizeof command, "rm -r %s", root);
  return system(command);
}

static void gives(int64_t bytes, const char *by) {
  MemoryRoom room = memory_room(root);
  if (!strstr(room.by, by)) fail_msg("by %s, wanted %s", room.by, by);
  assert_int_equal(room.bytes, bytes);
}

static void machine(void **state) { gives(INT64_C(8000000) * 1024, "machine"); }

// The limit of a group above ours counts, less what all of it uses; cache of files does not count as used.
static void second_version(void **state) {
  put("/proc/self/cgroup", "0::/user.slice/job/step\n");
  put("/proc/self/mountinfo", "24 1 0:5 / /proc rw - proc proc rw\n31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
  put("/sys/fs/cgroup/user.slice/job/step/memory.max", "max\n");
  put("/sys/fs/cgroup/user.slice/job/step/memory.current", "700\n");
  put("/sys/fs/cgroup/user.slice/job/memory.max", "1000000\n");
  put("/sys/fs/cgroup/user.slice/job/memory.current", "600000\n");
  put("/sys/fs/cgroup/user.slice/job/memory.stat", "anon 5\nfile 9\ninactive_file 200000\nactive_file 100000\n");
  put("/sys/fs/cgroup/user.slice/memory.max", "900000000\n");
  put("/sys/fs/cgroup/user.slice/memory.current", "1\n");
  gives(700000, "/user.slice/job, limit 1000000 bytes");
  put("/sys/fs/cgroup/user.slice/memory.current", "899999999\n");
  gives(1, "/user.slice,");
  put("/sys/fs/cgroup/user.slice/memory.current", "999999999\n");
  gives(0, "/user.slice,");
}

// In a container the group's path is the host's, of which the mount shows a part.
static void first_version(void **state) {
  put("/proc/self/cgroup", "9:pids:/docker/ab\n4:cpu,memory:/docker/ab/in\n0::/\n");
  put("/proc/self/mountinfo", "30 1 0:1 /docker/ab /sys/fs/cgroup/pids ro - cgroup cgroup rw,pids\n"
                              "35 31 0:32 /docker/ab /sys/fs/cgroup/memory ro,relatime master:17 - cgroup cgroup rw,cpu,memory\n");
  put("/sys/fs/cgroup/memory/in/memory.limit_in_bytes", "9223372036854771712\n");
  put("/sys/fs/cgroup/memory/in/memory.usage_in_bytes", "10\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n");
  put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "4000\n");
  put("/sys/fs/cgroup/memory/memory.stat", "cache 77\ntotal_cache 8\ntotal_inactive_file 1000\ntotal_active_file 500\n");
  gives(2500, "limit 5000 bytes");
}

// A path that is not below what is mounted: the mount itself is what limits us.
static void foreign_path(void **state) {
  put("/proc/self/cgroup", "0::/../sibling\n");
  put("/proc/self/mountinfo", "31 23 0:28 /own /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  put("/sys/fs/cgroup/memory.max", "4096\n");
  gives(4096, "limit 4096 bytes");
}

// Of this process, in a child, since limits cannot be raised again.
static void address_space(void **state) {
  pid_t child = fork();
  if (!child) {
    int64_t used = memory_number_in("/proc/self/status", "\nVmSize:") * 1024;
    struct rlimit limit = {(rlim_t)(used + (INT64_C(1) << 30)), (rlim_t)(used + (INT64_C(1) << 30))};
    if (setrlimit(RLIMIT_AS, &limit)) _exit(2);
    MemoryRoom room = memory_address_room();
    _exit(room.bytes > (INT64_C(1) << 30) - (INT64_C(64) << 20) && room.bytes < (INT64_C(1) << 30) + (INT64_C(64) << 20) && strstr(room.by, "RLIMIT_AS") ? 0 : 1);
  }
  int result;
  assert_int_equal(waitpid(child, &result, 0), child);
  assert_int_equal(result, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(machine, begin, end), cmocka_unit_test_setup_teardown(second_version, begin, end),
                                     cmocka_unit_test_setup_teardown(first_version, begin, end), cmocka_unit_test_setup_teardown(foreign_path, begin, end),
                                     cmocka_unit_test(address_space)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
