// The engine over threads: as many as requests may be in flight, each in pread or pwrite.
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "swap_io.h"

enum { NS_PER_S = 1000000000, STACK_BYTES = 256 << 10 };

typedef struct Pool {
  SwapIo io;
  int fd, n_threads;
  pthread_mutex_t mutex;           // guards all that follows
  pthread_cond_t wanted, done;
  SwapRequest *first, **last;      // to do, in order
  SwapRequest *ended;
  bool quits;
  pthread_t threads[];
} Pool;

static void carry_out(const Pool *pool, SwapRequest *r) {
  ssize_t n = r->is_write ? pwrite(pool->fd, r->memory, (size_t)r->bytes, r->offset) : pread(pool->fd, r->memory, (size_t)r->bytes, r->offset);
  r->result = n < 0 ? -errno : n;
}

static void *pool_main(void *self) {
  Pool *pool = self;
  pthread_mutex_lock(&pool->mutex);
  for (;;) {
    while (!pool->first && !pool->quits) pthread_cond_wait(&pool->wanted, &pool->mutex);
    SwapRequest *r = pool->first;
    if (!r) break;
    pool->first = r->next;
    if (!pool->first) pool->last = &pool->first;
    pthread_mutex_unlock(&pool->mutex);
    carry_out(pool, r);
    pthread_mutex_lock(&pool->mutex);
    r->next = pool->ended;
    pool->ended = r;
    pthread_cond_signal(&pool->done);
  }
  pthread_mutex_unlock(&pool->mutex);
  return NULL;
}

static void pool_submit(SwapIo *io, SwapRequest *r) {
  Pool *pool = (Pool *)io;
  r->next = NULL;
  pthread_mutex_lock(&pool->mutex);
  *pool->last = r;
  pool->last = &r->next;
  pthread_cond_signal(&pool->wanted);
  pthread_mutex_unlock(&pool->mutex);
}

static int pool_wait(SwapIo *io, SwapRequest **out, int max, int64_t timeout_ns) {
  Pool *pool = (Pool *)io;
  struct timespec end;
  clock_gettime(CLOCK_MONOTONIC, &end);
  end.tv_sec += timeout_ns / NS_PER_S;
  end.tv_nsec += timeout_ns % NS_PER_S;
  if (end.tv_nsec >= NS_PER_S) {
    end.tv_sec++;
    end.tv_nsec -= NS_PER_S;
  }
  int n = 0, error = 0;
  pthread_mutex_lock(&pool->mutex);
  while (!pool->ended && !error) error = pthread_cond_timedwait(&pool->done, &pool->mutex, &end);
  for (; n < max && pool->ended; n++) {
    out[n] = pool->ended;
    pool->ended = pool->ended->next;
  }
  pthread_mutex_unlock(&pool->mutex);
  return n;
}

static void pool_destroy(SwapIo *io) {
  Pool *pool = (Pool *)io;
  pthread_mutex_lock(&pool->mutex);
  pool->quits = true;
  pthread_cond_broadcast(&pool->wanted);
  pthread_mutex_unlock(&pool->mutex);
  for (int i = 0; i < pool->n_threads; i++) pthread_join(pool->threads[i], NULL);
  pthread_cond_destroy(&pool->wanted);
  pthread_cond_destroy(&pool->done);
  pthread_mutex_destroy(&pool->mutex);
  free(pool);
}

static const SwapIoOps pool_ops = {pool_submit, pool_wait, pool_destroy};

Status swap_threads_create(int fd, int depth, SwapIo **out) {
  Pool *pool = calloc(1, sizeof *pool + (size_t)depth * sizeof *pool->threads);
  if (!pool) FAIL(RESOURCE, NULL, "no memory for %d threads of the swap file", depth);
  pool->io.ops = &pool_ops;
  pool->fd = fd;
  pool->last = &pool->first;
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_mutex_init(&pool->mutex, NULL);
  pthread_cond_init(&pool->wanted, NULL);
  pthread_cond_init(&pool->done, &monotonic);
  pthread_condattr_destroy(&monotonic);
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, STACK_BYTES);
  int error = 0;
  while (pool->n_threads < depth && !(error = pthread_create(&pool->threads[pool->n_threads], &small, pool_main, pool))) pool->n_threads++;
  pthread_attr_destroy(&small);
  if (error) {
    int n = pool->n_threads;
    pool_destroy(&pool->io);
    FAIL(RESOURCE, NULL, "no thread %d of %d for the swap file: %s; fewer are needed with a smaller --io-depth", n + 1, depth, strerror(error));
  }
  *out = &pool->io;
  return NULL;
}
