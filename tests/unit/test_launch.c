// The supervisor: exit codes pass through, deaths and hangs are named, signals are passed on, nothing is left behind.
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../runtime/launch.h"

typedef struct Beats { int n; LaunchBeat last; } Beats;

static void on_beat(void *self, const LaunchBeat *beat) {
  Beats *b = self;
  b->n++;
  b->last = *beat;
}

static int beat_and_return(void *arg, LaunchChannel *channel) {
  for (int64_t i = 0; i < 5; i++) launch_beat(channel, &(LaunchBeat){.step = i, .loss = (double)i / 2, .grad_norm = 0.25, .ms = 1});
  return *(int *)arg;
}

static void exit_codes(void **state) {
  for (int code = 0; code < 8; code++) {
    Beats beats = {0};
    LaunchEnd end;
    LaunchOptions options = {.on_beat = on_beat, .self = &beats};
    assert_null(launch_run(beat_and_return, &code, &options, &end));
    assert_int_equal(end.exit_code, code);
    assert_false(end.died);
    assert_int_equal(end.last_step, 4);
    assert_int_equal(beats.n, 5);
    assert_true(beats.last.loss == 2.0 && beats.last.grad_norm == 0.25);
  }
}

enum { MANY = 20000 };                                   // more than a pipe holds

static void slow_beat(void *self, const LaunchBeat *beat) {
  Beats *b = self;
  if (b->n == 0) usleep(300000);                         // the pipe fills meanwhile
  if (beat->step == b->n) b->n++;                        // none is missing
}

static int beat_often(void *arg, LaunchChannel *channel) {
  for (int64_t i = 0; i < MANY; i++) launch_beat(channel, &(LaunchBeat){.step = i});
  return 0;
}

static void no_beat_is_lost(void **state) {
  Beats beats = {0};
  LaunchEnd end;
  LaunchOptions options = {.on_beat = slow_beat, .self = &beats};
  assert_null(launch_run(beat_often, NULL, &options, &end));
  assert_int_equal(beats.n, MANY);
}

static int die(void *arg, LaunchChannel *channel) {
  launch_beat(channel, &(LaunchBeat){.step = 7});
  raise(*(int *)arg);
  return 0;
}

static void deaths(void **state) {
  static const struct { int signal; const char *says; } cases[] = {
      {SIGKILL, "ended by signal 9 (Killed) after step 7; the system does that when memory runs short"},
      {SIGTERM, "ended by signal 15 (Terminated) after step 7"}};
  for (int i = 0; i < 2; i++) {
    LaunchEnd end;
    LaunchOptions options = {0};
    int signal_number = cases[i].signal;
    Status s = launch_run(die, &signal_number, &options, &end);
    assert_int_equal(status_code(s), STATUS_RANK);
    assert_non_null(strstr(s->what, cases[i].says));
    assert_true(end.died);
    assert_int_equal(end.signal, signal_number);
    assert_int_equal(end.exit_code, STATUS_RANK);
    status_free(s);
  }
  errno = 0;
  assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);      // no child is left
  assert_int_equal(errno, ECHILD);
}

static int hang(void *arg, LaunchChannel *channel) {
  launch_beat(channel, &(LaunchBeat){.step = 3});
  for (;;) pause();
  return 0;
}

static double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void hangs(void **state) {
  LaunchEnd end;
  LaunchOptions options = {.hang_ns = 200000000};
  double start = now_s();
  Status s = launch_run(hang, NULL, &options, &end);
  assert_int_equal(status_code(s), STATUS_RANK);
  assert_non_null(strstr(s->what, "hung: no step ended within 0.200 s, after step 3"));
  assert_true(now_s() - start < 5 && end.died);
  status_free(s);
}

// A whole supervisor in a child of the test, so that it can be sent signals.
static pid_t start_supervisor(int (*worker)(void *, LaunchChannel *), int ready[2]) {
  assert_int_equal(pipe(ready), 0);
  pid_t pid = fork();
  if (pid == 0) {
    close(ready[0]);
    LaunchEnd end = {0};
    LaunchOptions options = {0};
    Status s = launch_run(worker, &ready[1], &options, &end);
    status_free(s);
    _exit(end.died ? 100 + end.signal : end.exit_code);
  }
  close(ready[1]);
  return pid;
}

static volatile sig_atomic_t told;
static void on_signal(int signal_number) { told = signal_number; }

static int wait_to_be_told(void *arg, LaunchChannel *channel) {
  signal(SIGTERM, on_signal);
  pid_t self = getpid();
  if (write(*(int *)arg, &self, sizeof self) != sizeof self) return 99;
  while (!told) usleep(1000);
  return 42;
}
static int deaf(void *arg, LaunchChannel *channel) {
  signal(SIGTERM, SIG_IGN);
  pid_t self = getpid();
  if (write(*(int *)arg, &self, sizeof self) != sizeof self) return 99;
  for (;;) pause();
  return 0;
}

static void signals_are_passed_on(void **state) {
  int ready[2], status;
  pid_t worker, pid = start_supervisor(wait_to_be_told, ready);
  assert_int_equal(read(ready[0], &worker, sizeof worker), sizeof worker);
  kill(pid, SIGTERM);
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 42);
  close(ready[0]);
  pid = start_supervisor(deaf, ready);
  assert_int_equal(read(ready[0], &worker, sizeof worker), sizeof worker);
  kill(pid, SIGTERM);
  usleep(50000);
  kill(pid, SIGTERM);
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_int_equal(WEXITSTATUS(status), 100 + SIGKILL);
  close(ready[0]);
}

static void worker_dies_with_its_supervisor(void **state) {
  int ready[2], status;
  pid_t worker, pid = start_supervisor(deaf, ready);
  assert_int_equal(read(ready[0], &worker, sizeof worker), sizeof worker);
  kill(pid, SIGKILL);
  assert_int_equal(waitpid(pid, &status, 0), pid);
  char byte;
  assert_int_equal(read(ready[0], &byte, 1), 0);         // the worker held the other end: it is gone
  close(ready[0]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(exit_codes), cmocka_unit_test(no_beat_is_lost), cmocka_unit_test(deaths), cmocka_unit_test(hangs),
                                     cmocka_unit_test(signals_are_passed_on),
                                     cmocka_unit_test(worker_dies_with_its_supervisor)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
