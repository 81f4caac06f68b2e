// Finds and loads the MPI plugin: beside the program, one folder up (tests), or where it is installed.
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "transport_plugin.h"

static const TransportHost host = {TRANSPORT_PLUGIN_VERSION, status_fail};
static const char plugin_name[] = "libtessera_mpi.so";

static bool find_plugin(const char *folder, char *out, size_t out_bytes) {
  static const char *const places[] = {"", "../", "../lib/tessera/"};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    int n = snprintf(out, out_bytes, "%s/%s%s", folder, places[i], plugin_name);
    if (n > 0 && (size_t)n < out_bytes && access(out, R_OK) == 0) return true;
  }
  return false;
}

Status transport_mpi_open(Transport **out) {
  char program[PATH_MAX], path[PATH_MAX + 64];
  ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
  if (n < 0) FAIL(USAGE, NULL, "cannot find the folder of this program, where %s should be", plugin_name);
  program[n] = 0;
  char *folder = dirname(program);
  if (!find_plugin(folder, path, sizeof path))
    FAIL(USAGE, NULL, "no %s in %s or %s/../lib/tessera: this build has no MPI. Install an MPI library with its headers (Debian, Ubuntu: openmpi-bin and "
         "libopenmpi-dev, or mpich and libmpich-dev), then configure and build again", plugin_name, folder, folder);
  void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);          // global: MPI libraries load parts of their own that look for the rest
  if (!library)
    FAIL(USAGE, NULL, "cannot load the MPI plugin: %s. It needs the MPI library that it was built with (Debian, Ubuntu: openmpi-bin, or mpich)", dlerror());
  TransportPluginOpen open = (TransportPluginOpen)dlsym(library, TRANSPORT_PLUGIN_SYMBOL);
  if (!open) FAIL(USAGE, NULL, "%s is no plugin of this program", path);
  return open(&host, out);                                       // never unloaded: MPI libraries do not stand that
}
