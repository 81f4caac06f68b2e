// tessera reduce: shrinks a graph while a command does with it what it did at first (delta debugging). Every candidate verifies before the command sees it.
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../frontend/plan_file.h"
#include "../ir/clock.h"
#include "command.h"
#include "graph_file.h"
#include "reduce_edits.h"

enum { OUTPUT_BYTES_MAX = 1 << 20, EXIT_TIMED_OUT = 256, EXIT_SIGNAL = 512 };
static const size_t CANDIDATE_BYTES_MAX = (size_t)4 << 30;

typedef struct Reduction {
  const Options *options;
  const char *candidate;       // file that the command is shown
  char **argv;                 // of the command
  int wanted;                  // exit code: of the first run, or what --while-... says
  bool typed, plain;           // every type was known at first; a model: written without Tessera's metadata
  Graph *best;
  Arena **arenas;              // of `best` and what it was made from
  size_t n_arenas, capacity;
  int64_t runs;
  bool stopped;                // by a signal or the limit of runs
} Reduction;

static volatile sig_atomic_t interrupted;
static void on_interrupt(int signal) { interrupted = signal; }

// ---- The command ----------------------------------------------------------------------------------------------------------------

static char *substitute(const char *word, const char *path, bool *any) {
  size_t bytes = strlen(word) + 1;
  for (const char *p = word; (p = strstr(p, "{}")); p += 2) bytes += strlen(path);
  char *out = malloc(bytes), *to = out;
  for (const char *p = word; out && *p;) {
    if (p[0] == '{' && p[1] == '}') {
      to = stpcpy(to, path);
      p += 2;
      *any = true;
    } else {
      *to++ = *p++;
    }
  }
  if (out) *to = 0;
  return out;
}

static Status prepare_command(Reduction *r) {
  const Options *o = r->options;
  bool any = false;
  if (!o->n_command) FAIL(USAGE, NULL, "no command is given: tessera reduce IN -o OUT --while-fails -- COMMAND {}");
  r->argv = calloc((size_t)o->n_command + 1, sizeof *r->argv);
  for (int i = 0; r->argv && i < o->n_command; i++)
    if (!(r->argv[i] = substitute(o->command[i], r->candidate, &any))) FAIL(RESOURCE, NULL, "out of memory for the command");
  if (!r->argv) FAIL(RESOURCE, NULL, "out of memory for the command");
  if (!any) FAIL(USAGE, NULL, "the command has no {}: it stands where the file of the graph goes");
  return STATUS_OK;
}

static void run_child(const Reduction *r, int output) {
  int null = open("/dev/null", O_RDONLY);
  setpgid(0, 0);
  if (null >= 0) dup2(null, 0);
  dup2(output, 1);
  dup2(output, 2);
  if (r->options->run_memory) setrlimit(RLIMIT_AS, &(struct rlimit){(rlim_t)r->options->run_memory, (rlim_t)r->options->run_memory});
  execvp(r->argv[0], r->argv);
  fprintf(stderr, "tessera: error: cannot run '%s': %s\n", r->argv[0], strerror(errno));
  _exit(127);
}

// Exit code; EXIT_SIGNAL + its number; EXIT_TIMED_OUT. The command's whole process group is gone then.
static int wait_for(const Reduction *r, pid_t child) {
  double end = clock_now_ms() + r->options->timeout * 1000;
  int status = 0;
  for (long pause_ns = 200000; waitpid(child, &status, WNOHANG) == 0; pause_ns = pause_ns < 10000000 ? 2 * pause_ns : pause_ns) {
    if (clock_now_ms() > end || interrupted) {
      kill(-child, SIGKILL);
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return EXIT_TIMED_OUT;
    }
    nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
  }
  kill(-child, SIGKILL);                                   // what it has left behind
  return WIFSIGNALED(status) ? EXIT_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
}

static bool says(int output, const char *text) {
  static char buffer[OUTPUT_BYTES_MAX + 1];
  ssize_t n = pread(output, buffer, OUTPUT_BYTES_MAX, 0);
  return n > 0 && memmem(buffer, (size_t)n, text, strlen(text));
}

// Runs the command on the candidate. *out_matches: its output holds the text of --match (true without).
static Status run_command(Reduction *r, int *out_code, bool *out_matches) {
  int output = memfd_create("reduce", MFD_CLOEXEC);
  if (output < 0) FAIL(RESOURCE, NULL, "no memory for the output of the command: %s", strerror(errno));
  fflush(NULL);
  pid_t child = fork();
  if (!child) run_child(r, output);
  if (child < 0) {
    close(output);
    FAIL(RESOURCE, NULL, "cannot start the command: %s", strerror(errno));
  }
  setpgid(child, child);
  *out_code = wait_for(r, child);
  *out_matches = !r->options->match || says(output, r->options->match);
  close(output);
  r->runs++;
  return STATUS_OK;
}

static bool is_wanted(const Reduction *r, int code, bool matches) {
  if (interrupted || !matches) return false;
  if (r->options->while_fails) return code != 0 && code != EXIT_TIMED_OUT;
  if (r->options->while_succeeds) return code == 0;
  return code == r->wanted;
}

// ---- Candidates -----------------------------------------------------------------------------------------------------------------

static Status write_candidate(const Reduction *r, const Graph *graph) {
  Options to = *r->options;
  to.output = r->candidate;
  return r->plain && !graph_file_is_text(r->candidate) ? graph_write_model(graph, r->candidate) : graph_file_write(&to, graph);
}

static const char *code_text(int code, char *out, size_t out_bytes) {
  if (code == EXIT_TIMED_OUT) snprintf(out, out_bytes, "runs out of time");
  else if (code >= EXIT_SIGNAL) snprintf(out, out_bytes, "dies of signal %d", code - EXIT_SIGNAL);
  else snprintf(out, out_bytes, "ends with exit code %d", code);
  return out;
}

static Status accept(Reduction *r) {
  if (rename(r->candidate, r->options->output))
    FAIL(IO, NULL, "cannot rename '%s' to '%s': %s", r->candidate, r->options->output, strerror(errno));
  return STATUS_OK;
}

// What the graph does as it is written by us decides: the whole of it must already do what is wanted.
static Status run_first(Reduction *r) {
  bool matches;
  char text[64];
  TRY(write_candidate(r, r->best));
  TRY(run_command(r, &r->wanted, &matches));
  code_text(r->wanted, text, sizeof text);
  if (!matches) FAIL(USAGE, NULL, "on the whole graph the command %s, and its output does not hold '%s'", text, r->options->match);
  if (r->wanted == 127) FAIL(USAGE, NULL, "cannot run '%s'", r->argv[0]);
  if (r->options->while_fails || r->options->while_succeeds) {
    if (!is_wanted(r, r->wanted, true))
      FAIL(USAGE, NULL, "on the whole graph the command %s: it does not %s (the graph is written as Tessera reads it: control flow and functions unrolled, opset %d)",
           text, r->options->while_fails ? "fail" : "succeed", IR_OPSET);
  } else if (r->wanted == 0 && !r->options->match) {
    FAIL(USAGE, NULL, "on the whole graph the command succeeds; --while-succeeds or --match TEXT says that this is what is to stay");
  }
  fprintf(stderr, "tessera: %zu nodes; the command %s: that is to stay\n", r->best->n_nodes, text);
  return accept(r);
}

typedef struct Edit {
  enum { EDIT_NODES, EDIT_OUTPUTS, EDIT_INPUTS, EDIT_DETAIL, EDIT_SHRINK } kind;
  size_t first, count;
  Stand stand;
  bool sweep;
  int64_t from, to;
} Edit;

static bool apply(Graph *g, const Edit *e) {
  switch (e->kind) {
  case EDIT_NODES: return reduce_drop_nodes(g, e->first, e->count, e->stand, e->sweep);
  case EDIT_OUTPUTS: return reduce_drop_outputs(g, e->first, e->count);
  case EDIT_INPUTS: return reduce_drop_inputs(g);
  case EDIT_DETAIL: return reduce_detail(g, e->first);
  case EDIT_SHRINK: return reduce_shrink(g, e->from, e->to);
  }
  return false;
}

// The graph after the edit in `arena`; *out NULL where it changes nothing or leaves no valid graph.
static Status make_candidate(const Reduction *r, const Edit *e, Arena *arena, Graph **out) {
  *out = NULL;
  ARENA_GUARD(arena);
  Graph *g = graph_clone(r->best, arena);
  if (apply(g, e)) {
    Status invalid = reduce_settle(g, r->typed);
    if (!invalid) *out = g;
    status_free(invalid);
  }
  ARENA_RETURN(arena, STATUS_OK);
}

static Status keep_arena(Reduction *r, Arena *arena) {
  if (r->n_arenas == r->capacity) {
    size_t capacity = r->capacity ? 2 * r->capacity : 64;
    Arena **wider = realloc(r->arenas, capacity * sizeof *wider);
    if (!wider) FAIL(RESOURCE, NULL, "out of memory");
    r->arenas = wider;
    r->capacity = capacity;
  }
  r->arenas[r->n_arenas++] = arena;
  return STATUS_OK;
}

// Tries one edit. *out: the command still does what is wanted, and the graph after the edit is the best one now.
static Status attempt(Reduction *r, const Edit *e, bool *out) {
  *out = false;
  if (interrupted || r->runs >= r->options->runs) {
    r->stopped = true;
    return STATUS_OK;
  }
  Arena *arena = arena_create(CANDIDATE_BYTES_MAX);
  if (!arena) FAIL(RESOURCE, NULL, "out of memory");
  Graph *g = NULL;
  int code;
  bool matches;
  Status status = make_candidate(r, e, arena, &g);
  if (!status && g) status = write_candidate(r, g);
  if (!status && g) status = run_command(r, &code, &matches);
  if (!status && g && is_wanted(r, code, matches)) {
    status = accept(r);
    if (!status) status = keep_arena(r, arena);
    if (!status) {
      r->best = g;
      *out = true;
      return STATUS_OK;
    }
  }
  arena_destroy(arena);
  return status;
}

// ---- The order of things ----------------------------------------------------------------------------------------------------------

// Ranges of half the nodes, a quarter, ..., one; from the end, where what stands later needs less.
static Status drop_ranges(Reduction *r, bool *any) {
  for (size_t count = r->best->n_nodes > 1 ? r->best->n_nodes / 2 : 1; count && !r->stopped; count /= 2)
    for (size_t end = r->best->n_nodes; end > 0 && !r->stopped;) {
      size_t first = end > count ? end - count : 0;
      bool done = false;
      for (int way = 0; way < 4 && !done && !r->stopped; way++)
        if (way < 2 || count == 1) TRY(attempt(r, &(Edit){EDIT_NODES, first, end - first, (Stand)(way % 2), way < 2, 0, 0}, &done));
      *any |= done;
      end = first < r->best->n_nodes ? first : r->best->n_nodes;
    }
  return STATUS_OK;
}

static Status drop_outputs(Reduction *r, bool *any) {
  for (size_t count = r->best->n_outputs - 1; count && !r->stopped; count /= 2)
    for (size_t first = 0; first < r->best->n_outputs && !r->stopped;) {
      bool done;
      TRY(attempt(r, &(Edit){.kind = EDIT_OUTPUTS, .first = first, .count = count}, &done));
      *any |= done;
      if (!done) first += count;
    }
  return STATUS_OK;
}

static Status plainer(Reduction *r, bool *any) {
  bool done;
  TRY(attempt(r, &(Edit){.kind = EDIT_INPUTS}, &done));
  *any |= done;
  for (size_t i = 0; i < reduce_count_details(r->best) && !r->stopped; i++) {
    TRY(attempt(r, &(Edit){.kind = EDIT_DETAIL, .first = i}, &done));
    *any |= done;
  }
  return STATUS_OK;
}

static Status list_sizes(const Reduction *r, int64_t **out, size_t *out_n) {
  ARENA_GUARD(r->best->arena);
  *out_n = reduce_list_sizes(r->best, out);
  ARENA_RETURN(r->best->arena, STATUS_OK);
}

// To 1, else to half, again and again.
static Status smaller(Reduction *r, bool *any) {
  int64_t *sizes;
  size_t n;
  TRY(list_sizes(r, &sizes, &n));
  for (size_t i = 0; i < n && !r->stopped; i++)
    for (int64_t from = sizes[i], to = 1; to < from && !r->stopped;) {
      bool done;
      TRY(attempt(r, &(Edit){.kind = EDIT_SHRINK, .from = from, .to = to}, &done));
      *any |= done;
      if (done) from = to, to = 1;
      else to = to < from / 2 ? from / 2 : to < from - 1 ? from - 1 : from;
    }
  return STATUS_OK;
}

static Status reduce_all(Reduction *r) {
  for (bool any = true; any && !r->stopped;) {
    size_t before = r->best->n_nodes;
    any = false;
    TRY(drop_outputs(r, &any));
    TRY(drop_ranges(r, &any));
    if (!r->stopped) TRY(plainer(r, &any));
    if (!r->stopped) TRY(smaller(r, &any));
    fprintf(stderr, "tessera: %zu of %zu nodes after %" PRId64 " runs\n", r->best->n_nodes, before, r->runs);
  }
  return STATUS_OK;
}

static Status reduce_guarded(Reduction *r) {
  ARENA_GUARD(r->best->arena);
  Status whole = reduce_settle(r->best, true);
  r->typed = !whole;
  status_free(whole);
  Status status = r->typed ? STATUS_OK : reduce_settle(r->best, false);
  ARENA_RETURN(r->best->arena, status);
}

// ---- The whole ------------------------------------------------------------------------------------------------------------------

static Status check_usage(const Options *o) {
  if (!o->output) FAIL(USAGE, NULL, "-o OUT says where the reduced graph goes: .onnxtxt or .onnx");
  if (!strcmp(o->output, "-")) FAIL(USAGE, NULL, "-o -: the reduced graph goes to a file, which is there from the first success on");
  if (o->while_fails && o->while_succeeds) FAIL(USAGE, NULL, "--while-fails and --while-succeeds contradict each other");
  return STATUS_OK;
}

static Status reduce_file(Reduction *r, const GraphFile *file) {
  r->best = file->flow.graph;
  r->plain = file->flow.model && !file->flow.is_plan;
  TRY(prepare_command(r));
  TRY(command_make_folders(r->options->output));
  TRY(reduce_guarded(r));
  TRY(run_first(r));
  TRY(reduce_all(r));
  fprintf(stderr, "tessera: %zu nodes are left in '%s' after %" PRId64 " runs%s\n", r->best->n_nodes, r->options->output, r->runs,
          interrupted ? ": interrupted" : r->stopped ? ": as many as --runs allows" : ", none of which can go");
  return r->stopped ? command_exit_silently(STATUS_CHECK) : STATUS_OK;
}

Status command_reduce(const Options *options) {
  Reduction r = {.options = options};
  GraphFile file = {0};
  TRY(check_usage(options));
  char *candidate = NULL;
  if (asprintf(&candidate, "%s.candidate%s", options->output, graph_file_is_text(options->output) ? ".onnxtxt" : ".onnx") < 0) FAIL(RESOURCE, NULL, "out of memory");
  r.candidate = candidate;
  struct sigaction stop = {.sa_handler = on_interrupt};
  sigaction(SIGINT, &stop, NULL);
  sigaction(SIGTERM, &stop, NULL);
  Status status = graph_file_open(options, &file);
  if (!status) status = reduce_file(&r, &file);
  unlink(candidate);
  for (size_t i = 0; i < r.n_arenas; i++) arena_destroy(r.arenas[i]);
  for (int i = 0; r.argv && r.argv[i]; i++) free(r.argv[i]);
  free(r.argv);
  free(r.arenas);
  free(candidate);
  graph_file_close(&file);
  return status;
}
