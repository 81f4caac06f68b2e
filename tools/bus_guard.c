#include "bus_guard.h"

#include <signal.h>
#include <unistd.h>

#include "../ir/status.h"

// Only calls that signal handlers may make. Any other cause of SIGBUS stays what it was.
static void on_bus_error(int signal_number, siginfo_t *info, void *context) {
  static const char text[] = "tessera: error: a file became shorter while it was read; leave models and weights alone while they are in use\n";
  (void)context;
  if (info->si_code == BUS_ADRERR) {
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    (void)written;
    _exit(STATUS_IO);
  }
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

void bus_guard_install(void) {
  struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, NULL);
}
