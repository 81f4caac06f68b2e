#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../ir/clock.h"

struct LaunchChannel { int fd; };

void launch_beat(LaunchChannel *channel, const LaunchBeat *beat) {
  if (!channel) return;
  while (write(channel->fd, beat, sizeof *beat) < 0 && errno == EINTR) continue;   // whole or not at all: shorter than PIPE_BUF
}

typedef struct Supervisor {
  const LaunchOptions *options;
  pid_t worker;
  int beats, signals;                                   // descriptors
  sigset_t old_mask;
  int asked;                                            // signals that asked us to stop
  bool hung, reaped;
  int wait_status;
  int64_t last_beat_ns;
  int first_rank, n_ranks;                              // of the worker, once it has said so
  LaunchEnd end;
} Supervisor;

static int worker_main(int (*worker)(void *, LaunchChannel *), void *arg, int fd, const sigset_t *mask, pid_t parent) {
  LaunchChannel channel = {fd};
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) return 6;                    // the parent died between fork and prctl
  signal(SIGPIPE, SIG_IGN);                             // a dead supervisor must not end the worker by a beat; PDEATHSIG does
  sigprocmask(SIG_SETMASK, mask, NULL);
  return worker(arg, &channel);
}

static void take_beats(Supervisor *s) {
  LaunchBeat beat;
  while (read(s->beats, &beat, sizeof beat) == (ssize_t)sizeof beat) {
    s->last_beat_ns = clock_now_ns();
    if (beat.step >= 0) s->end.last_step = beat.step;      // below 0: a sign of life between steps
    if (beat.n_ranks) {
      s->first_rank = beat.first_rank;
      s->n_ranks = beat.n_ranks;
    }
    if (s->options->on_beat) s->options->on_beat(s->options->self, &beat);
  }
}

static void take_signals(Supervisor *s) {
  struct signalfd_siginfo info;
  while (read(s->signals, &info, sizeof info) == (ssize_t)sizeof info) {
    if (info.ssi_signo == SIGCHLD) continue;
    bool from_terminal = info.ssi_signo == SIGINT && info.ssi_code == SI_KERNEL;   // the worker, of the same group, got it too
    if (s->asked++) kill(s->worker, SIGKILL);
    else if (!from_terminal) kill(s->worker, (int)info.ssi_signo);
  }
}

static int poll_timeout_ms(const Supervisor *s) {
  if (s->options->hang_ns <= 0 || s->hung) return -1;
  int64_t left_ms = (s->last_beat_ns + s->options->hang_ns - clock_now_ns() + 999999) / 1000000;
  return left_ms < 0 ? 0 : left_ms > 1000000 ? 1000000 : (int)left_ms;
}

static void supervise(Supervisor *s) {
  s->last_beat_ns = clock_now_ns();
  while (!s->reaped) {
    struct pollfd fds[2] = {{s->signals, POLLIN, 0}, {s->beats, POLLIN, 0}};
    poll(fds, 2, poll_timeout_ms(s));
    if (fds[1].revents & POLLHUP && !(fds[1].revents & POLLIN)) fds[1].fd = -1;
    take_beats(s);
    take_signals(s);
    pid_t pid;
    while ((pid = waitpid(s->worker, &s->wait_status, fds[1].fd < 0 ? 0 : WNOHANG)) < 0 && errno == EINTR) continue;
    s->reaped = pid == s->worker || (pid < 0 && errno == ECHILD);
    if (!s->reaped && s->options->hang_ns > 0 && !s->hung && clock_now_ns() - s->last_beat_ns > s->options->hang_ns) {
      s->hung = true;
      kill(s->worker, SIGKILL);
    }
  }
  take_beats(s);
}

static Status ending(Supervisor *s, LaunchEnd *out) {
  LaunchEnd *end = &s->end;
  char after[64] = "before its first step ended", whose[64] = "";
  if (s->n_ranks == 1) snprintf(whose, sizeof whose, " of rank %d", s->first_rank);
  if (s->n_ranks > 1) snprintf(whose, sizeof whose, " of ranks %d to %d", s->first_rank, s->first_rank + s->n_ranks - 1);
  if (end->last_step >= 0) snprintf(after, sizeof after, "after step %" PRId64, end->last_step);
  if (WIFEXITED(s->wait_status)) {
    end->exit_code = WEXITSTATUS(s->wait_status);
    *out = *end;
    return NULL;
  }
  end->exit_code = STATUS_RANK;
  end->died = true;
  end->signal = WIFSIGNALED(s->wait_status) ? WTERMSIG(s->wait_status) : 0;
  *out = *end;
  if (s->hung)
    FAIL(RANK, NULL, "the worker process%s hung: no step ended within %.3f s, %s; it was killed", whose, (double)s->options->hang_ns / 1e9, after);
  FAIL(RANK, NULL, "the worker process%s was ended by signal %d (%s) %s%s", whose, end->signal, strsignal(end->signal), after,
       end->signal == SIGKILL && !s->asked ? "; the system does that when memory runs short" : "");
}

// Signals that the supervisor waits for arrive through a descriptor; the old mask is what the worker runs with.
static Status open_signals(Supervisor *s) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGCHLD);
  if (sigprocmask(SIG_BLOCK, &set, &s->old_mask)) FAIL(RESOURCE, NULL, "cannot block signals: %s", strerror(errno));
  s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (s->signals >= 0) return NULL;
  int error = errno;
  sigprocmask(SIG_SETMASK, &s->old_mask, NULL);
  FAIL(RESOURCE, NULL, "cannot wait for signals: %s", strerror(error));
}

Status launch_run(int (*worker)(void *arg, LaunchChannel *channel), void *arg, const LaunchOptions *options, LaunchEnd *out) {
  Supervisor s = {.options = options, .end = {.last_step = -1}};
  int fds[2];
  struct sigaction plain = {.sa_handler = SIG_DFL}, old_child;
  if (pipe2(fds, O_CLOEXEC)) FAIL(RESOURCE, NULL, "no pipe to the worker process: %s", strerror(errno));
  Status status = open_signals(&s);
  if (!status && fcntl(fds[0], F_SETFL, O_NONBLOCK)) status = status_fail(STATUS_RESOURCE, NULL, "no pipe to the worker process: %s", strerror(errno));
  if (status) {
    close(fds[0]);
    close(fds[1]);
    return status;
  }
  sigaction(SIGCHLD, &plain, &old_child);               // an inherited SIG_IGN would reap the worker behind our back
  pid_t parent = getpid();
  s.worker = fork();
  if (s.worker == 0) {
    close(fds[0]);
    close(s.signals);
    exit(worker_main(worker, arg, fds[1], &s.old_mask, parent));
  }
  int error = errno;
  close(fds[1]);
  s.beats = fds[0];
  if (s.worker > 0) {
    supervise(&s);
    status = ending(&s, out);
  } else {
    status = status_fail(STATUS_RESOURCE, NULL, "cannot start a worker process: %s", strerror(error));
  }
  close(s.beats);
  close(s.signals);
  sigaction(SIGCHLD, &old_child, NULL);
  sigprocmask(SIG_SETMASK, &s.old_mask, NULL);
  return status;
}
