#include "job.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "../ir/hex.h"
#include "../ir/print.h"

enum { OPTIONS_BYTES = 2048, TEXT_BYTES = 128, WHY_BYTES = 400 };

// ---- Who has started us -------------------------------------------------------------------------------------------------------

// Launchers, by what they tell each process: how many there are, and which it is.
static const struct { const char *processes, *process, *name; } launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "mpirun"}, {"PMI_SIZE", "PMI_RANK", "mpirun"}, {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun"}};
enum { N_LAUNCHERS = sizeof launchers / sizeof *launchers };

static int number_of(const char *name, int fallback) {
  const char *text = getenv(name);
  char *end;
  long n = text && *text ? strtol(text, &end, 10) : fallback;
  return text && *text && (*end || n < 0 || n > 1 << 24) ? fallback : (int)n;
}

Status job_find(const Options *options, Job *out) {
  *out = (Job){.processes = 1};
  bool wanted = options->backend && !strcmp(options->backend, "mpi");
  if (options->backend && !strcmp(options->backend, "local")) return STATUS_OK;
  for (int i = 0; i < N_LAUNCHERS && out->processes == 1; i++) {
    int n = number_of(launchers[i].processes, 1);
    if (n < 2) continue;
    out->processes = n;
    out->process = number_of(launchers[i].process, 0);
  }
  if (wanted && out->processes == 1)
    FAIL(USAGE, NULL, "--backend mpi: this is the only process; start several: mpirun -n 2 tessera run ..., or srun -n 2 tessera run ... (without --backend mpi, "
         "--ranks-per-process emulates them in one)");
  return STATUS_OK;
}

// ---- Options ------------------------------------------------------------------------------------------------------------------

// What the process with rank 0 does alone. Processes need not agree on it.
static const char *const of_first[] = {"report", "log", "metrics", "tensorboard", "trace", "trace-steps", "profile", "color"};

static bool is_of_first(const OptionRow *row) {
  for (size_t i = 0; i < sizeof of_first / sizeof *of_first; i++)
    if (!strcmp(row->name, of_first[i])) return true;
  return false;
}

static void leave_to_first(Options *options) {
  int n;
  const OptionRow *rows = options_rows(&n);
  for (int i = 0; i < n; i++) {
    if (!(rows[i].commands & RUN) || !is_of_first(&rows[i])) continue;
    if (rows[i].kind == KIND_TEXT) *(OptionTEXT *)((char *)options + rows[i].offset) = NULL;
    if (rows[i].kind == KIND_FLAG) *(OptionFLAG *)((char *)options + rows[i].offset) = false;
  }
}

// --ranks and --ranks-per-process as far as they are not given, from the number of processes.
static Status choose_ranks(const Job *c, Options *o) {
  int64_t n = c->processes;
  if (!o->given.ranks) o->ranks = n * (o->given.ranks_per_process ? o->ranks_per_process : 1);
  if (o->ranks % n)
    FAIL(USAGE, NULL, "--ranks %" PRId64 ": that many ranks are no whole number for each of the %" PRId64 " processes; give a multiple of %" PRId64
         ", or start another number of processes", o->ranks, n, n);
  if (o->given.ranks_per_process && o->ranks_per_process * n != o->ranks)
    FAIL(USAGE, NULL, "--ranks %" PRId64 " with --ranks-per-process %" PRId64 " are %" PRId64 " processes, and %" PRId64 " were started; start as many (mpirun -n), or "
         "leave out one of the two options", o->ranks, o->ranks_per_process, o->ranks / o->ranks_per_process, n);
  o->ranks_per_process = o->ranks / n;
  return STATUS_OK;
}

// mpirun binds a process to one processor where it starts few.
static void warn_of_processors(const Options *o) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) || CPU_COUNT(&set) >= o->ranks_per_process) return;
  fprintf(stderr, "tessera: warning: %" PRId64 " ranks share %d processor%s: mpirun --bind-to none, or --map-by slot:PE=%" PRId64 ", gives a process more\n",
          o->ranks_per_process, CPU_COUNT(&set), CPU_COUNT(&set) == 1 ? "" : "s", o->ranks_per_process);
}

static Status check_streams(const Options *o) {
  for (int i = 0; i < o->data.n; i++)
    if (!strcmp(o->data.items[i], "-"))
      FAIL(UNSUPPORTED, NULL, "--data -: standard input reaches one process only; several read files, each the batches of its own ranks");
  return STATUS_OK;
}

Status job_open(Job *c, const Options *given, Options *out) {
  *out = *given;
  if (c->processes == 1) return STATUS_OK;
  if (c->process) {
    FILE *nothing = fopen("/dev/null", "w");
    if (!nothing || !freopen("/dev/null", "w", stdout)) FAIL(IO, NULL, "cannot open /dev/null: %s", strerror(errno));
    c->errors = stderr;            // warnings are the first process's to say
    stderr = nothing;
    leave_to_first(out);
  }
  c->transports = calloc(1, sizeof *c->transports);
  if (!c->transports) FAIL(RESOURCE, NULL, "no memory for a way to other processes");
  TRY(transport_mpi_open(c->transports));
  c->n_transports = 1;
  if (c->transports[0]->processes != c->processes)
    FAIL(USAGE, NULL, "the MPI library sees %d process%s where %d were started: mpirun is of another MPI library than the one that was loaded",
         c->transports[0]->processes, c->transports[0]->processes == 1 ? "" : "es", c->processes);
  c->process = c->transports[0]->process;
  c->told = true;                  // all processes find the same
  TRY(check_streams(out));
  TRY(choose_ranks(c, out));
  warn_of_processors(out);
  c->told = false;
  return STATUS_OK;
}

Status job_take_plan(Job *c, const Graph *program) {
  const Recipe *r = &program->recipe;
  if (c->processes > 1 && r->processes != c->processes)
    FAIL(USAGE, NULL, "the plan is for %d process%s of %d rank%s each, and %d were started; start %d (mpirun -n %d), or compile it with --ranks-per-process for %d",
         r->processes, r->processes == 1 ? "" : "es", r->ranks_per_process, r->ranks_per_process == 1 ? "" : "s", c->processes, r->processes, r->processes, c->processes);
  if (c->processes > 1 || r->processes == 1) return STATUS_OK;
  c->transports = calloc((size_t)r->processes, sizeof *c->transports);
  if (!c->transports) FAIL(RESOURCE, NULL, "no memory for %d processes", r->processes);
  TRY(transport_threads_create(r->processes, c->transports));
  c->n_transports = r->processes;
  return STATUS_OK;
}

void job_close(Job *c, bool orderly) {
  for (int i = 0; i < c->n_transports; i++) transport_close(c->transports[i], orderly);
  free(c->transports);
  c->transports = NULL;
  c->n_transports = 0;
}

// ---- Agreement ----------------------------------------------------------------------------------------------------------------

typedef enum Item { ITEM_VERSION, ITEM_OPTIONS, ITEM_KERNELS, ITEM_MODEL, ITEM_PLAN, ITEM_COUNT } Item;
static const char *const item_names[ITEM_COUNT] = {"version of tessera", "options", "kernels", "model (names, types and places of its weights)", "plan"};

// What a process says of itself: travels as it is.
typedef struct Record {
  uint64_t hashes[ITEM_COUNT][2];
  char texts[ITEM_COUNT][TEXT_BYTES];
  char options[OPTIONS_BYTES];               // "--steps=10 ..."; what does not fit is in the hash alone
  int32_t failed, code, first_rank, n_ranks;
  char why[WHY_BYTES];
} Record;

static void put(Record *r, Item item, const char *text, size_t n) {
  XXH128_hash_t h = XXH3_128bits(text, n);
  r->hashes[item][0] = h.high64;
  r->hashes[item][1] = h.low64;
  snprintf(r->texts[item], TEXT_BYTES, "%s", text);
}

static Status put_options(const Options *options, Record *r) {
  int n;
  const OptionRow *rows = options_rows(&n);
  size_t used = 0;
  XXH3_state_t *state = XXH3_createState();
  if (!state) FAIL(RESOURCE, NULL, "no memory to compare the options of processes");
  XXH3_128bits_reset(state);
  Status status = STATUS_OK;
  for (int i = 0; i < n && !status; i++) {
    TextList values = {0};
    if (!(rows[i].commands & RUN) || is_of_first(&rows[i]) || !options_is_given(&rows[i], options)) continue;
    status = options_values(&rows[i], options, &values);
    for (int k = 0; k < values.n && !status; k++) {
      XXH3_128bits_update(state, values.items[k], strlen(values.items[k]) + 1);
      int m = snprintf(r->options + used, OPTIONS_BYTES - used, "%s%s", used ? " " : "", values.items[k]);
      used = m > 0 && used + (size_t)m < OPTIONS_BYTES ? used + (size_t)m : OPTIONS_BYTES - 1;
    }
    options_free_texts(&values);
  }
  XXH128_hash_t h = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  r->hashes[ITEM_OPTIONS][0] = h.high64;
  r->hashes[ITEM_OPTIONS][1] = h.low64;
  return status;
}

static Status put_plan_guarded(const Plan *plan, Arena *arena, Record *r) {
  ARENA_GUARD(arena);
  XXH64_hash_t hash = 0;
  for (int v = 0; v < plan->n_variants; v++) {
    const char *text = graph_text(plan->variants[v], NULL, arena);
    hash = XXH3_64bits_withSeed(text, strlen(text), hash + (XXH64_hash_t)v);
  }
  char hex[32];
  put(r, ITEM_PLAN, hex, (size_t)snprintf(hex, sizeof hex, "%016" PRIx64, (uint64_t)hash));
  ARENA_RETURN(arena, STATUS_OK);
}

static Status put_plan(const Plan *plan, Record *r) {
  const Recipe *recipe = &plan->variants[0]->recipe;
  put(r, ITEM_KERNELS, recipe->numerics_key ? recipe->numerics_key : "", recipe->numerics_key ? strlen(recipe->numerics_key) : 0);
  put(r, ITEM_MODEL, recipe->fingerprint ? recipe->fingerprint : "", recipe->fingerprint ? strlen(recipe->fingerprint) : 0);
  Arena *arena = arena_create(0);
  if (!arena) FAIL(RESOURCE, NULL, "no memory to compare the plans of processes");
  Status status = put_plan_guarded(plan, arena, r);
  arena_destroy(arena);
  return status;
}

static Status describe(const Job *c, const Options *options, const JobState *state, Record *r) {
  put(r, ITEM_VERSION, state->version, strlen(state->version));
  TRY(put_options(options, r));
  if (!state->plan) return STATUS_OK;
  r->n_ranks = state->plan->variants[0]->recipe.ranks_per_process;
  r->first_rank = c->process * r->n_ranks;
  return put_plan(state->plan, r);
}

static const char *process_name(const Record *r, int process, char out[64]) {
  if (r->n_ranks == 1) snprintf(out, 64, "process %d (rank %d)", process, r->first_rank);
  else if (r->n_ranks > 1) snprintf(out, 64, "process %d (ranks %d to %d)", process, r->first_rank, r->first_rank + r->n_ranks - 1);
  else snprintf(out, 64, "process %d", process);
  return out;
}

static bool has_word(const char *list, const char *word, size_t n) {
  for (; *list; list += strcspn(list, " "), list += *list == ' ')
    if (strcspn(list, " ") == n && !strncmp(list, word, n)) return true;
  return false;
}

// The first word of `list` that is not in `other`; "(none)" when all are.
static const char *first_missing(const char *list, const char *other, char out[TEXT_BYTES]) {
  for (; *list; list += strcspn(list, " "), list += *list == ' ') {
    size_t n = strcspn(list, " ");
    if (has_word(other, list, n)) continue;
    snprintf(out, TEXT_BYTES, "%.*s", (int)n, list);
    return out;
  }
  return "(none)";
}

static Status differ(const Record *first, const Record *other, int process, Item item) {
  char name[64], mine[TEXT_BYTES], theirs[TEXT_BYTES];
  process_name(other, process, name);
  if (item != ITEM_OPTIONS)
    FAIL(USAGE, NULL, "%s has another %s than process 0: '%s' and not '%s'; all processes need the same program, model and command line", name, item_names[item],
         other->texts[item], first->texts[item]);
  FAIL(USAGE, NULL, "%s was started with other options than process 0: %s, and there %s; all processes need the same command line", name,
       first_missing(other->options, first->options, theirs), first_missing(first->options, other->options, mine));
}

static Status compare(const Record *all, int n) {
  char name[64];
  for (int p = 0; p < n; p++)
    if (all[p].failed) FAIL(RANK, NULL, "%s could not start: %s", process_name(&all[p], p, name), all[p].why);
  for (int p = 1; p < n; p++)
    for (int i = 0; i < ITEM_COUNT; i++)
      if (memcmp(all[p].hashes[i], all[0].hashes[i], sizeof all[0].hashes[i])) return differ(&all[0], &all[p], p, (Item)i);
  return STATUS_OK;
}

Status job_agree(Job *c, const Options *options, const JobState *state, const StatusError *mine) {
  if (c->processes == 1 || !c->n_transports) return STATUS_OK;
  Record *records = calloc((size_t)c->processes + 1, sizeof *records);
  if (!records) FAIL(RESOURCE, NULL, "no memory for what %d processes tell each other", c->processes);
  Record *own = &records[c->processes];
  Status failed = mine ? STATUS_OK : describe(c, options, state, own), status = STATUS_OK;
  const StatusError *why = mine ? mine : failed;
  if (why) {
    own->failed = 1;
    own->code = (int32_t)status_code(why);
    status_text(why, own->why, sizeof own->why);
  }
  double longest_s = options->hang > options->deadline ? options->hang : options->deadline;      // a process may read and compile for that long
  status = transport_exchange(c->transports[0], own, records, sizeof *records, (int64_t)(longest_s * 1e9));
  c->told = !status && (c->process == 0 || !why || records[0].failed);       // its own error each says itself, unless the first has it, too
  if (!status && !why) status = compare(records, c->processes);
  if (!status && !why) c->told = false;
  free(records);
  if (!failed) return status;
  status_free(status);
  return failed;
}
