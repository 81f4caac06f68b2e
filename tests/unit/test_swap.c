// The swap file: every engine moves every byte to its place, whatever sizes and addresses; failures are named, nothing hangs, nothing is left behind.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../ir/clock.h"
#include "../../runtime/swap.h"

static char folder[] = "swap_test.XXXXXX";       // beside the program: a real file system where the build has one

// One row puts an engine under all tests.
typedef struct Way { const char *name; SwapEngine engine; SwapDirect direct; } Way;
static const Way ways[] = {
    {"uring, direct", SWAP_ENGINE_URING, SWAP_DIRECT_AUTO}, {"uring, page cache", SWAP_ENGINE_URING, SWAP_DIRECT_OFF},
    {"threads, direct", SWAP_ENGINE_THREADS, SWAP_DIRECT_AUTO}, {"threads, page cache", SWAP_ENGINE_THREADS, SWAP_DIRECT_OFF},
};
enum { N_WAYS = sizeof ways / sizeof *ways, PAGE = SWAP_PAGE_BYTES };

static bool can(const Way *way) {
  SwapFile *file;
  SwapOptions o = {.engine = way->engine, .direct = way->direct, .depth = 1, .block_bytes = PAGE};
  Status status = swap_create(folder, 1, 1, &o, &file);
  if (!status) swap_destroy(file);
  bool fine = !status;
  if (status) {
    assert_int_equal(status_code(status), STATUS_UNSUPPORTED);
    print_message("%s is left out: %s\n", way->name, status->what);
  }
  status_free(status);
  return fine;
}

static SwapOptions options_of(const Way *way, int depth, int64_t block) {
  return (SwapOptions){.engine = way->engine, .direct = way->direct, .depth = depth, .block_bytes = block};
}

static unsigned char byte_at(int64_t place, unsigned round) {
  uint64_t x = (uint64_t)place * 0x9e3779b97f4a7c15u + round;
  return (unsigned char)(x >> 29 ^ x >> 51);
}

static int names_in(const char *dir) {
  int n = 0;
  DIR *d = opendir(dir);
  assert_non_null(d);
  while (readdir(d)) n++;
  closedir(d);
  return n - 2;
}

// ---- Every byte ---------------------------------------------------------------------------------------------------------------

// Random writes and reads at all sorts of places, beside a copy in memory.
static void check(Status status) {
  if (status) fail_msg("%s", status->what);
}

static void walk(Swap *swap, int64_t bytes, unsigned seed, int64_t align) {
  enum { ROUNDS = 120 };
  char *mirror = calloc(1, (size_t)bytes), *room = aligned_alloc(PAGE, (size_t)bytes + 2 * PAGE);
  assert_non_null(mirror);
  assert_non_null(room);
  assert_null(swap->ops->write(swap, 0, mirror, bytes));
  int64_t moved = swap->written_bytes;
  for (unsigned i = 0; i < ROUNDS; i++) {
    int64_t at = rand_r(&seed) % bytes / align * align, n = rand_r(&seed) % (bytes - at + 1) / align * align;
    if (i % 3 && n > 3 * PAGE) n = n % (3 * PAGE) / align * align;
    char *memory = room + (i % 4 ? rand_r(&seed) % PAGE / 64 * 64 : 0);
    if (rand_r(&seed) % 2) {
      for (int64_t k = 0; k < n; k++) memory[k] = mirror[at + k] = (char)byte_at(at + k, i);
      check(swap->ops->write(swap, at, memory, n));
      moved += n;
    } else {
      memset(memory, 0x55, (size_t)n);
      assert_null(swap->ops->read(swap, at, memory, n));
      assert_int_equal(memcmp(memory, mirror + at, (size_t)n), 0);
    }
  }
  memset(room, 0x55, (size_t)bytes);
  assert_null(swap->ops->read(swap, 0, room, bytes));
  assert_int_equal(memcmp(room, mirror, (size_t)bytes), 0);
  assert_int_equal(swap->written_bytes, moved);
  assert_true(swap->write_ns > 0 && swap->read_ns > 0 && swap->read_bytes >= bytes);
  free(mirror);
  free(room);
}

static void test_every_byte(void **state) {
  static const struct { int depth; int64_t block, bytes, align; } sizes[] = {
      {1, PAGE, 3 * PAGE, 1}, {4, PAGE, 40 * PAGE, 1}, {8, 4 * PAGE, 300 * PAGE, 4}, {32, 1 << 20, 1100 * PAGE, 1024}, {3, 128 << 10, 999 * PAGE, PAGE}};
  for (int w = 0; w < N_WAYS; w++) {
    if (!can(&ways[w])) continue;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
      SwapFile *file;
      SwapOptions o = options_of(&ways[w], sizes[i].depth, sizes[i].block);
      assert_null(swap_create(folder, sizes[i].bytes, 1, &o, &file));
      SwapInfo info = swap_info(file);
      assert_int_equal(info.engine, ways[w].engine);
      assert_int_equal(info.bytes, sizes[i].bytes);
      assert_int_equal(swap_resident(file), sizes[i].bytes);         // before anything is written
      assert_true(ways[w].direct == SWAP_DIRECT_AUTO || (!info.direct && info.direct_note[0]));
      walk(swap_channel(file, 0), sizes[i].bytes, (unsigned)i + 1, sizes[i].align);
      assert_int_equal(names_in(folder), 0);
      swap_destroy(file);
    }
  }
}

typedef struct Walker { SwapFile *file; int rank; int64_t part; pthread_t id; bool fine; } Walker;

static void *walk_part(void *self) {
  Walker *w = self;
  Swap *swap = swap_channel(w->file, w->rank);
  char *memory = aligned_alloc(PAGE, (size_t)w->part);
  w->fine = memory != NULL;
  for (unsigned round = 0; w->fine && round < 10; round++) {
    for (int64_t k = 0; k < w->part; k++) memory[k] = (char)byte_at(k + w->rank, round);
    Status status = swap->ops->write(swap, w->rank * w->part, memory, w->part);
    memset(memory, 0, (size_t)w->part);
    if (!status) status = swap->ops->read(swap, w->rank * w->part, memory, w->part);
    for (int64_t k = 0; k < w->part; k++) w->fine &= memory[k] == (char)byte_at(k + w->rank, round);
    w->fine &= !status;
    status_free(status);
  }
  free(memory);
  return NULL;
}

static void test_ranks_at_once(void **state) {
  enum { RANKS = 5 };
  for (int w = 0; w < N_WAYS; w++) {
    if (!can(&ways[w])) continue;
    Walker walkers[RANKS];
    SwapFile *file;
    SwapOptions o = options_of(&ways[w], 4, 16 * PAGE);
    assert_null(swap_create(folder, RANKS * 100 * PAGE, RANKS, &o, &file));
    for (int r = 0; r < RANKS; r++) {
      walkers[r] = (Walker){.file = file, .rank = r, .part = 100 * PAGE};
      assert_int_equal(pthread_create(&walkers[r].id, NULL, walk_part, &walkers[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) {
      pthread_join(walkers[r].id, NULL);
      assert_true(walkers[r].fine);
    }
    swap_destroy(file);
  }
}

// ---- Failures -----------------------------------------------------------------------------------------------------------------

// An engine whose n-th answer is another: `error` < 0: that error; SHORT: the first half; HANG: none.
enum { SHORT = 1, HANG };
typedef struct Spoiler { SwapIo io; SwapIo *inner; int64_t n, calls; int what; bool ever; SwapRequest *kept, *halved; } Spoiler;

static bool is_hit(Spoiler *s) {
  s->calls++;
  return s->calls == s->n || (s->ever && s->calls > s->n);
}

static void spoiler_submit(SwapIo *io, SwapRequest *r) {
  Spoiler *s = (Spoiler *)io;
  if (!is_hit(s)) {
    s->inner->ops->submit(s->inner, r);
    return;
  }
  if (s->what == SHORT) {
    s->halved = r;
    s->inner->ops->submit(s->inner, r);
    return;
  }
  r->result = s->what < 0 ? s->what : 0;
  r->next = s->kept;
  s->kept = r;
}

static int spoiler_wait(SwapIo *io, SwapRequest **out, int max, int64_t timeout_ns) {
  Spoiler *s = (Spoiler *)io;
  if (s->kept && s->what != HANG) {
    out[0] = s->kept;
    s->kept = s->kept->next;
    return 1;
  }
  int n = s->inner->ops->wait(s->inner, out, max, timeout_ns);
  for (int i = 0; i < n; i++)
    if (out[i] == s->halved) {
      out[i]->result /= 2;
      s->halved = NULL;
    }
  return n;
}

static void spoiler_destroy(SwapIo *io) {
  Spoiler *s = (Spoiler *)io;
  s->inner->ops->destroy(s->inner);
  s->inner = NULL;
}

static const SwapIoOps spoiler_ops = {spoiler_submit, spoiler_wait, spoiler_destroy};

static SwapIo *spoil(void *self, SwapIo *io) {
  Spoiler *s = self;
  s->io.ops = &spoiler_ops;
  s->inner = io;
  return &s->io;
}

static Status move_all(Swap *swap, char *memory, int64_t bytes) {
  TRY(swap->ops->write(swap, 0, memory, bytes));
  TRY(swap->ops->write(swap, 2 * PAGE + 512, memory + 2 * PAGE + 512, PAGE));       // parts of pages, in one file system of any kind
  memset(memory, 0, (size_t)bytes);
  return swap->ops->read(swap, 0, memory, bytes);
}

// Request n = 1, 2, 3, ... fails until none does. Returns how many there were.
static int64_t fail_each(const Way *way, int what, bool ever, const char *wanted) {
  enum { BYTES = 40 * PAGE };
  char *memory = aligned_alloc(PAGE, BYTES);
  assert_non_null(memory);
  int64_t n = 0;
  for (bool met = true; met;) {
    Spoiler spoiler = {.n = ++n, .what = what, .ever = ever};
    SwapOptions o = options_of(way, 3, 4 * PAGE);
    o.wrap_io = spoil;
    o.wrap_self = &spoiler;
    SwapFile *file;
    assert_null(swap_create(folder, BYTES, 1, &o, &file));
    for (int64_t k = 0; k < BYTES; k++) memory[k] = (char)byte_at(k, 7);
    Swap *swap = swap_channel(file, 0);
    Status status = move_all(swap, memory, BYTES);
    met = spoiler.calls >= n;
    if (status) {
      assert_int_equal(status_code(status), STATUS_IO);
      assert_true(wanted && met);
      assert_non_null(strstr(status->what, wanted));
      assert_non_null(strstr(status->what, folder));
      assert_true(strstr(status->what, "read") || strstr(status->what, "write"));
    } else {
      assert_true(!wanted || !met);
      for (int64_t k = 0; k < BYTES; k++) assert_int_equal((unsigned char)memory[k], byte_at(k, 7));
    }
    bool failed = status != NULL;
    status_free(status);
    if (failed && !ever) {                              // the channel is as good as before
      for (int64_t k = 0; k < BYTES; k++) memory[k] = (char)byte_at(k, 7);
      assert_null(move_all(swap, memory, BYTES));
      for (int64_t k = 0; k < BYTES; k++) assert_int_equal((unsigned char)memory[k], byte_at(k, 7));
    }
    swap_destroy(file);
    assert_int_equal(names_in(folder), 0);
  }
  free(memory);
  return n - 1;
}

static void test_failures(void **state) {
  for (int w = 0; w < N_WAYS; w++) {
    if (!can(&ways[w])) continue;
    int64_t requests = fail_each(&ways[w], -EIO, false, "Input/output error");
    assert_true(requests >= 21);
    assert_int_equal(fail_each(&ways[w], -ENOSPC, true, "No space left"), requests);
    assert_true(fail_each(&ways[w], SHORT, false, NULL) == requests);
    assert_true(fail_each(&ways[w], -EINTR, false, NULL) == requests);
    assert_int_equal(fail_each(&ways[w], -EAGAIN, true, "0 of") > 0, true);
  }
}

static void test_an_answer_that_never_comes(void **state) {
  char *memory = aligned_alloc(PAGE, 20 * PAGE);
  assert_non_null(memory);
  memset(memory, 1, 20 * PAGE);
  for (int w = 0; w < N_WAYS; w++) {
    if (!can(&ways[w])) continue;
    static Spoiler spoiler;                             // the channel keeps it: it hangs
    static SwapFile *files[N_WAYS];                     // with their channels, for whoever looks for leaks
    spoiler = (Spoiler){.n = 4, .what = HANG};
    SwapOptions o = options_of(&ways[w], 2, 4 * PAGE);
    o.wrap_io = spoil;
    o.wrap_self = &spoiler;
    o.deadline_ns = 100 * 1000 * 1000;
    assert_null(swap_create(folder, 20 * PAGE, 1, &o, &files[w]));
    Swap *swap = swap_channel(files[w], 0);
    int64_t start_ns = clock_now_ns();
    Status status = swap->ops->write(swap, 0, memory, 20 * PAGE);
    assert_int_equal(status_code(status), STATUS_IO);
    assert_non_null(strstr(status->what, "answered no request for 0.100 s"));
    status_free(status);
    status = swap->ops->read(swap, 0, memory, PAGE);
    assert_int_equal(status_code(status), STATUS_IO);
    assert_non_null(strstr(status->what, "hangs"));
    status_free(status);
    assert_true(clock_now_ns() - start_ns < (int64_t)10 * 1000 * 1000 * 1000);
    swap_destroy(files[w]);                             // leaves the channel
    spoiler.inner->ops->destroy(spoiler.inner);
  }
  free(memory);
}

// The descriptor of the newest file in `folder`, where none has a name.
static int find_descriptor(void) {
  char real[4096];
  assert_non_null(realpath(folder, real));
  for (int fd = 255; fd > 2; fd--) {
    char link[64], target[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, target, sizeof target - 1);
    if (n > 0 && !strncmp(target, real, strlen(real)) && target[strlen(real)] == '/') return fd;
  }
  fail_msg("no file in %s is open", real);
  return -1;
}

static void test_a_file_cut_short(void **state) {
  char *memory = aligned_alloc(PAGE, 20 * PAGE);
  assert_non_null(memory);
  memset(memory, 1, 20 * PAGE);
  for (int w = 0; w < N_WAYS; w++) {
    if (!can(&ways[w])) continue;
    for (int i = 0; i < 3; i++) {
      SwapFile *file;
      SwapOptions o = options_of(&ways[w], 4, 4 * PAGE);
      assert_null(swap_create(folder, 20 * PAGE, 1, &o, &file));
      Swap *swap = swap_channel(file, 0);
      assert_null(swap->ops->write(swap, 0, memory, 20 * PAGE));
      assert_int_equal(ftruncate(find_descriptor(), i == 0 ? 3 * PAGE + 100 : i == 1 ? 0 : 20 * PAGE), 0);
      for (int k = 0; k < 2; k++) {                     // a write makes it as long as its data again, and is an error all the same
        Status status = k == 1 ? swap->ops->read(swap, 0, memory, 20 * PAGE) : swap->ops->write(swap, 10 * PAGE, memory, 10 * PAGE);
        assert_int_equal(status_code(status), STATUS_IO);
        assert_non_null(strstr(status->what, "somebody has cut"));
        status_free(status);
      }
      swap_destroy(file);
    }
  }
  free(memory);
}

static void expect_refusal(int64_t bytes, const char *dir, SwapOptions o, StatusCode code, const char *wanted) {
  SwapFile *file;
  Status status = swap_create(dir, bytes, 1, &o, &file);
  assert_non_null(status);
  assert_int_equal(status_code(status), code);
  if (!strstr(status->what, wanted)) fail_msg("'%s' does not say '%s'", status->what, wanted);
  status_free(status);
  assert_int_equal(names_in(folder), 0);
}

static void test_refusals(void **state) {
  SwapOptions o = {.depth = 4, .block_bytes = 16 * PAGE};
  struct statvfs disk;
  assert_int_equal(statvfs(folder, &disk), 0);
  expect_refusal((int64_t)disk.f_bavail * (int64_t)disk.f_frsize + ((int64_t)1 << 40), folder, o, STATUS_IO, "No space left");
  expect_refusal(PAGE, "swap_test.absent", o, STATUS_IO, "No such file");
  expect_refusal(PAGE, "/proc", o, STATUS_IO, "/proc");
  expect_refusal(0, folder, o, STATUS_USAGE, "0 bytes");
  o.depth = 0;
  expect_refusal(PAGE, folder, o, STATUS_USAGE, "0 requests");
  o.depth = 1;
  o.block_bytes = PAGE + 512;
  expect_refusal(PAGE, folder, o, STATUS_USAGE, "multiples of 4096");
  o.block_bytes = PAGE;
  struct rlimit before, limit;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  limit = before;
  limit.rlim_cur = 10 * PAGE;
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
  expect_refusal(10 * PAGE, folder, o, STATUS_IO, "RLIMIT_FSIZE");
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
  SwapFile *file;
  assert_null(swap_create(folder, 2 * PAGE, 1, &o, &file));
  char page[PAGE];
  for (int i = 0; i < 3; i++) {
    Status status = swap_channel(file, 0)->ops->read(swap_channel(file, 0), (int64_t[]){-1, 2 * PAGE, PAGE + 1}[i], page, PAGE);
    assert_int_equal(status_code(status), STATUS_MALFORMED);
    status_free(status);
  }
  swap_destroy(file);
  swap_destroy(NULL);
}

// ---- A kernel without io_uring ------------------------------------------------------------------------------------------------

static int try_without_uring(void) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  struct sock_fprog program = {sizeof code / sizeof *code, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 77;
  SwapOptions o = {.depth = 4, .block_bytes = PAGE};
  SwapFile *file;
  Status status = swap_create(folder, 10 * PAGE, 1, &o, &file);
  if (status) return 1;
  SwapInfo info = swap_info(file);
  if (info.engine != SWAP_ENGINE_THREADS || !info.engine_note[0]) return 2;
  swap_destroy(file);
  o.engine = SWAP_ENGINE_URING;
  status = swap_create(folder, 10 * PAGE, 1, &o, &file);
  if (status_code(status) != STATUS_UNSUPPORTED || !strstr(status->what, "threads would work")) return 3;
  status_free(status);
  return 0;
}

static void test_a_kernel_that_refuses(void **state) {
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child) _exit(try_without_uring());
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) skip();
  assert_int_equal(WEXITSTATUS(status), 0);
}

static int make_folder(void **state) { return mkdtemp(folder) ? 0 : -1; }
static int remove_folder(void **state) { return rmdir(folder); }

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_byte), cmocka_unit_test(test_ranks_at_once), cmocka_unit_test(test_failures), cmocka_unit_test(test_an_answer_that_never_comes),
      cmocka_unit_test(test_a_file_cut_short), cmocka_unit_test(test_refusals), cmocka_unit_test(test_a_kernel_that_refuses)};
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
