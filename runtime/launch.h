// The supervisor: one worker process runs the rank threads; its parent waits, names its death and cleans up.
//
// The worker inherits stdin, stdout and stderr untouched. It dies with its parent. The first SIGINT or SIGTERM to the parent is passed on (a
// terminal has told the worker already); a second one ends the worker with SIGKILL.
#ifndef TESSERA_LAUNCH_H
#define TESSERA_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

#include "../ir/status.h"

// What the worker tells its supervisor after each step: the heartbeat, and what a report needs when the worker dies.
typedef struct LaunchBeat {
  int64_t step;
  double loss, grad_norm, clipped_norm, lr, ms;
  double loss_scale;           // 0: the loss is not scaled
  bool skipped;
  int first_rank, n_ranks;     // that the worker runs, where there are other processes; n_ranks 0: not said
} LaunchBeat;

typedef struct LaunchChannel LaunchChannel;
void launch_beat(LaunchChannel *channel, const LaunchBeat *beat);     // worker side; waits while the pipe is full: none is lost; NULL is fine

typedef struct LaunchOptions {
  int64_t hang_ns;                                                    // SIGKILL when no beat comes for so long; 0: never
  void (*on_beat)(void *self, const LaunchBeat *beat);                // in the parent; may be NULL
  void *self;
} LaunchOptions;

typedef struct LaunchEnd {
  int exit_code;                                                      // of the program: the worker's, or 6 when it died or hung
  bool died;                                                          // by a signal, or killed because it hung
  int signal;                                                         // that killed it; 0: none
  int64_t last_step;                                                  // last one that it reported; -1: none
} LaunchEnd;

// Forks. The child runs worker(arg, channel) and exits with its result (atexit handlers and buffers of stdio are run and flushed there only);
// the parent returns when the child is reaped. Call it before any thread exists, and flush stdio first.
// Success: the worker ended by itself, whatever its exit code. RANK: it died or hung; the text names signal and last step; *out is set too.
MUST_USE Status launch_run(int (*worker)(void *arg, LaunchChannel *channel), void *arg, const LaunchOptions *options, LaunchEnd *out);

#endif
