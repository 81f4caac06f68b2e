#include "search.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../ir/clock.h"
#include "../passes/simulate.h"
#include "search_space.h"

static const size_t ARENA_LIMIT_BYTES = (size_t)8 << 30;
static const char TRUNK_ENDS_BEFORE[] = "partition";      // the first pass that reads stage, keep, bucket size, prefetch or offload

// What candidates of one micro-batch size and recomputation share: the graph up to the passes that read anything else.
typedef struct Trunk {
  Graph *graph;                  // NULL: not made yet, or refused
  const char *refused;
} Trunk;

typedef struct SearchState {
  const Data *given;             // the caller's
  Data *data[SEARCH_VALUES_MAX]; // opened, per micro-batch size
  Trunk trunks[SEARCH_VALUES_MAX][SEARCH_VALUES_MAX];      // [batch][recompute]
  const char **trunk_passes;
  const char *const *rest_passes;
  bool has_buckets;              // their sizes are known
  int64_t shown_ns;
  const Candidate *best;         // so far
} SearchState;

// ---- Options of a candidate -----------------------------------------------------------------------------------------------------------------

static Status set_value(const Search *s, const Candidate *c, SearchDim dim, Options *out) {
  for (int i = 0; i < 2; i++) {
    const char *text = search_text(s, c, dim, i);
    if (text) TRY(options_set(options_find_row(s->dims[dim].options[i], RUN), text, NULL, out));
  }
  return STATUS_OK;
}

Status search_options(const Search *search, const Candidate *candidate, Options *out) {
  Status status = options_copy(search->options, out);
  for (int dim = 0; dim < DIM_COUNT && !status; dim++) status = set_value(search, candidate, (SearchDim)dim, out);
  if (status) options_finish(out);
  return status;
}

// ---- The trunk ------------------------------------------------------------------------------------------------------------------------------

static Status split_pipeline(Search *s) {
  ARENA_GUARD(s->flow->arena);
  size_t n = 0;
  while (pipeline_train[n] && strcmp(pipeline_train[n], TRUNK_ENDS_BEFORE)) n++;
  s->state->trunk_passes = ARENA_ARRAY(s->flow->arena, const char *, n + 1);
  memcpy(s->state->trunk_passes, pipeline_train, n * sizeof *s->state->trunk_passes);
  s->state->rest_passes = pipeline_train + n;
  ARENA_RETURN(s->flow->arena, STATUS_OK);
}

// As a compilation's, but for what would print, stop or look twice: the chosen candidate is compiled again as any other.
static Status quiet_run(const Search *s, const Options *o, PassRun *out) {
  PassRun run;
  TRY(flow_pass_run(o, s->flow->arena, &run));
  *out = (PassRun){.skip = run.skip};
  return STATUS_OK;
}

static Status data_of(Search *s, int batch, const Options *o, const Data **out) {
  SearchState *state = s->state;
  if (!state->given && o->data.n && !state->data[batch]) TRY(flow_open_data(s->flow, o, 0, &state->data[batch]));
  *out = state->given ? state->given : state->data[batch];
  return STATUS_OK;
}

static int64_t trainable_bytes(const Graph *g) {
  int64_t bytes = 0;
  for (size_t i = 0; i < g->n_values; i++)
    if (g->values[i]->role == ROLE_PARAM && g->values[i]->trainable && !g->values[i]->producer) bytes = bytes_add(bytes, value_bytes(g->values[i]));
  return bytes;
}

static Status make_trunk(Search *s, const Candidate *c, const Options *o, Trunk *trunk) {
  const Data *data;
  CompileOptions compile;
  PassRun run;
  TRY(data_of(s, c->at[DIM_BATCH], o, &data));
  TRY(flow_import(s->flow, o, data, 0));
  Graph *graph = s->flow->graph;
  TRY(flow_check_optimizer(o, graph->own_optimizer));
  TRY(flow_data_options(s->flow, o, data, 0, &compile));
  TRY(quiet_run(s, o, &run));
  TRY(passes_run(graph, s->state->trunk_passes, &compile, &run));
  if (!s->state->has_buckets) TRY(search_space_buckets(s, trainable_bytes(graph)));
  s->state->has_buckets = true;
  trunk->graph = graph;
  return STATUS_OK;
}

// ---- One candidate --------------------------------------------------------------------------------------------------------------------------

static Status keep_text(Search *s, const StatusError *error, const char **out) {
  char text[512];
  ARENA_GUARD(s->flow->arena);
  *out = arena_string(s->flow->arena, status_text(error, text, sizeof text));
  ARENA_RETURN(s->flow->arena, STATUS_OK);
}

// What options cannot do together is a property of the candidate; anything else ends the search.
static Status take_refusal(Search *s, Status status, const char **out) {
  if (status_code(status) != STATUS_USAGE && status_code(status) != STATUS_UNSUPPORTED && status_code(status) != STATUS_RESOURCE) return status;
  Status kept = keep_text(s, status, out);
  status_free(status);
  return kept;
}

static int64_t batch_size(const Graph *g) {
  for (size_t i = 0; i < g->n_inputs; i++)
    if (g->inputs[i]->type.rank > 0) return g->inputs[i]->type.dims[0];
  return 1;
}

static void judge(const Search *s, Candidate *c) {
  c->fits = true;
  for (int t = 0; t < TIER_COUNT; t++) c->fits &= c->bytes[t] <= s->request.budget.bytes[t];
}

static Status measure(const Search *s, const Graph *g, Arena *arena, Candidate *c) {
  Simulation sim;
  TRY(simulate_step(g, &s->request.cluster.machine, arena, &sim));
  PlanBytes bytes = plan_bytes(g, arena);
  for (int t = 0; t < TIER_COUNT; t++) c->bytes[t] = bytes.tiers[t].peak_bytes;
  memcpy(c->by_category, bytes.tiers[TIER_DEVICE].by_category, sizeof c->by_category);
  c->sent_bytes = bytes.sent_bytes;
  c->samples = batch_size(g) * g->recipe.micro_per_rank * mesh_ranks(&g->mesh);
  c->step_s = sim.step_s;
  c->exposed_s = sim.exposed_s;
  c->overhead_s = sim.overhead_s;
  c->transfer_s = sim.transfer_exposed_s;
  c->compute_s = c->step_s - c->exposed_s - c->transfer_s - c->overhead_s;
  judge(s, c);
  return STATUS_OK;
}

static Status compile_rest(Search *s, const Options *o, const Graph *trunk, Arena *arena, Candidate *c) {
  CompileOptions compile;
  PassRun run;
  const Data *data;
  TRY(data_of(s, c->at[DIM_BATCH], o, &data));
  TRY(flow_data_options(s->flow, o, data, 0, &compile));
  compile.variants = s->request.run && flow_data_may_vary(s->flow, o, data);
  TRY(quiet_run(s, o, &run));
  ARENA_GUARD(arena);
  Graph *g = graph_clone(trunk, arena);
  Status status = passes_run(g, s->state->rest_passes, &compile, &run);
  if (!status) status = measure(s, g, arena, c);
  ARENA_RETURN(arena, status);
}

static Status compile_candidate(Search *s, const Options *o, Candidate *c) {
  Trunk *trunk = &s->state->trunks[c->at[DIM_BATCH]][c->at[DIM_RECOMPUTE]];
  if (!trunk->graph && !trunk->refused) {
    Status status = make_trunk(s, c, o, trunk);
    if (status) TRY(take_refusal(s, status, &trunk->refused));
  }
  c->refused = trunk->refused;
  if (c->refused) return STATUS_OK;
  Arena *arena = arena_create(ARENA_LIMIT_BYTES);
  if (!arena) FAIL(RESOURCE, NULL, "out of memory to compile a candidate");
  Status status = compile_rest(s, o, trunk->graph, arena, c);
  arena_destroy(arena);
  return status ? take_refusal(s, status, &c->refused) : STATUS_OK;
}

static double per_sample(const Candidate *c) { return c->step_s / (double)(c->samples > 0 ? c->samples : 1); }

static void show_alive(Search *s, const Candidate *c) {
  enum { NS_LIVE = 100000000 };
  static const int64_t NS_LINE = INT64_C(5000000000);
  FILE *to = s->request.alive;
  if (!c->refused && c->fits && (!s->state->best || per_sample(c) < per_sample(s->state->best))) s->state->best = c;
  if (!to) return;
  bool live = isatty(fileno(to));
  int64_t now = clock_now_ns();
  if (now - s->state->shown_ns < (live ? NS_LIVE : NS_LINE)) return;
  if (s->state->shown_ns || live) {
    fprintf(to, "%stessera: %zu candidates compiled", live ? "\r" : "", s->n);
    if (s->state->best) fprintf(to, ", the fastest that fits takes %.4g ms a sample", 1e3 * per_sample(s->state->best));
    fputs(live ? "   " : "\n", to);
    fflush(to);
  }
  s->state->shown_ns = now;
}

static Status add_item(Search *s, const Candidate *c, const Candidate **out) {
  ARENA_GUARD(s->flow->arena);
  const Candidate *kept = arena_copy(s->flow->arena, c, sizeof *c);
  ARENA_PUSH(s->flow->arena, s->items, s->n, s->capacity, kept);
  *out = kept;
  ARENA_RETURN(s->flow->arena, STATUS_OK);
}

// The candidate at these values; compiled unless it was.
static Status try_candidate(Search *s, const uint8_t at[DIM_COUNT], const Candidate **out) {
  for (size_t i = 0; i < s->n; i++)
    if (!memcmp(s->items[i]->at, at, DIM_COUNT)) {
      *out = s->items[i];
      return STATUS_OK;
    }
  Candidate c = {0};
  Options o;
  memcpy(c.at, at, DIM_COUNT);
  TRY(search_options(s, &c, &o));
  Status status = compile_candidate(s, &o, &c);
  options_finish(&o);
  if (!status) status = add_item(s, &c, out);
  if (!status && !c.refused && !at[DIM_RECOMPUTE]) status = search_space_shares(s, *out);
  if (!status) show_alive(s, *out);
  return status;
}

// ---- Where to look --------------------------------------------------------------------------------------------------------------------------

static bool fits(const Candidate *c) { return !c->refused && c->fits; }

static int64_t excess(const Search *s, const Candidate *c) {
  int64_t most = 0;
  for (int t = 0; t < TIER_COUNT; t++)
    if (c->bytes[t] - s->request.budget.bytes[t] > most) most = c->bytes[t] - s->request.budget.bytes[t];
  return most;
}

// Some values mean nothing at some stages: what they are for is not there.
static bool is_sensible(const Search *s, const uint8_t at[DIM_COUNT]) {
  const char *recompute = s->dims[DIM_RECOMPUTE].values[at[DIM_RECOMPUTE]].text[0];
  if (recompute && strchr(recompute, '%') && !s->shares[at[DIM_BATCH]][at[DIM_RECOMPUTE]]) return false;
  const char *zero = s->dims[DIM_ZERO].values[at[DIM_ZERO]].text[0], *offload = s->dims[DIM_OFFLOAD].values[at[DIM_OFFLOAD]].text[0];
  int64_t stage = zero ? zero[0] - '0' : s->options->zero;
  if (stage < 3 && (at[DIM_KEEP] > 0 || (offload && strstr(offload, "params=")))) return false;
  return stage >= 2 || !offload || !strstr(offload, "grads=");
}

// What does not fit by less than buckets under way take may fit with smaller ones.
static Status try_smaller_buckets(Search *s, const Candidate **c) {
  const Candidate *first = *c, *tried;
  int64_t under_way = 0;
  static const Category of_buckets[] = {CATEGORY_BUCKETS, CATEGORY_GATHERED, CATEGORY_GRADS, CATEGORY_PADDING};
  for (size_t i = 0; i < sizeof of_buckets / sizeof *of_buckets; i++) under_way += first->by_category[of_buckets[i]];
  if (first->refused || first->fits || excess(s, first) > under_way) return STATUS_OK;
  for (int i = s->dims[DIM_BUCKET].n - 1; i > 0 && !fits(*c); i--) {
    uint8_t at[DIM_COUNT];
    memcpy(at, first->at, DIM_COUNT);
    at[DIM_BUCKET] = (uint8_t)i;
    TRY(try_candidate(s, at, &tried));
    if (!tried->refused && excess(s, tried) < excess(s, *c)) *c = tried;
  }
  return STATUS_OK;
}

// One stage and micro-batch: the least offload and recomputation that fits, and less recomputation with more offload.
static Status explore_stage(Search *s, uint8_t at[DIM_COUNT], bool *any) {
  int less = s->dims[DIM_RECOMPUTE].n;             // only fewer recomputed values can make up for more offload
  for (int o = 0; o < s->dims[DIM_OFFLOAD].n; o++) {
    int r = 0;
    for (; r < less; r++) {
      const Candidate *c;
      at[DIM_OFFLOAD] = (uint8_t)o;
      at[DIM_RECOMPUTE] = (uint8_t)r;
      if (!is_sensible(s, at)) continue;
      TRY(try_candidate(s, at, &c));
      TRY(try_smaller_buckets(s, &c));
      *any |= fits(c);
      if (fits(c)) break;
    }
    if (r < less) {
      s->not_tried += (size_t)(less - r - 1);
      less = r;
    }
  }
  return STATUS_OK;
}

// Larger micro-batches hold more: when nothing fits at one size, nothing does above. Not so where their number falls in turn, and with it the partial sums.
static Status explore(Search *s) {
  for (int b = 0; b < s->dims[DIM_BATCH].n; b++) {
    bool any = false;
    for (int z = 0; z < s->dims[DIM_ZERO].n; z++) {
      uint8_t at[DIM_COUNT] = {0};
      at[DIM_BATCH] = (uint8_t)b;
      at[DIM_ZERO] = (uint8_t)z;
      TRY(explore_stage(s, at, &any));
    }
    if (!any && !s->options->given.global_batch) break;
  }
  return STATUS_OK;
}

// One dimension after the other, until nothing gets faster.
static Status refine(Search *s, const Candidate *c) {
  static const SearchDim dims[] = {DIM_KEEP, DIM_PREFETCH, DIM_BUCKET};
  for (bool better = true; better;) {
    better = false;
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
      for (int v = 0; v < s->dims[dims[d]].n; v++) {
        uint8_t at[DIM_COUNT];
        const Candidate *tried;
        memcpy(at, c->at, DIM_COUNT);
        at[dims[d]] = (uint8_t)v;
        if (!is_sensible(s, at)) continue;
        TRY(try_candidate(s, at, &tried));
        if (!fits(tried) || per_sample(tried) >= per_sample(c) * (1 - 1e-6)) continue;
        c = tried;
        better = true;
      }
  }
  return STATUS_OK;
}

// ---- Which is the best ----------------------------------------------------------------------------------------------------------------------

static int compare_doubles(double a, double b) { return a < b ? -1 : a > b; }

// The best first; of what does not fit, the smallest; then what cannot be compiled.
static int by_merit(const void *x, const void *y) {
  const Candidate *a = *(const Candidate *const *)x, *b = *(const Candidate *const *)y;
  int order = (a->refused != NULL) - (b->refused != NULL);
  if (!order && !a->refused) order = b->fits - a->fits;
  if (!order && !a->refused && a->fits) order = compare_doubles(per_sample(a), per_sample(b));
  if (!order && !a->refused && !a->fits) order = compare_doubles((double)a->bytes[TIER_DEVICE], (double)b->bytes[TIER_DEVICE]);
  return order ? order : memcmp(a->at, b->at, DIM_COUNT);
}

static void sort_items(Search *s) {
  if (s->n) qsort(s->items, s->n, sizeof *s->items, by_merit);
  s->n_fit = 0;
  while (s->n_fit < s->n && fits(s->items[s->n_fit])) s->n_fit++;
}

static bool same_structure(const Candidate *a, const Candidate *b) {
  for (int d = DIM_ZERO; d <= DIM_RECOMPUTE; d++)
    if (a->at[d] != b->at[d]) return false;
  return true;
}

// The fastest ones of different stages, micro-batches, tiers and recomputations are worth tuning further.
static Status refine_best(Search *s) {
  enum { REFINED = 8 };
  const Candidate *best[REFINED];
  int n = 0;
  sort_items(s);
  for (size_t i = 0; i < s->n_fit && n < REFINED; i++) {
    bool known = false;
    for (int k = 0; k < n; k++) known |= same_structure(best[k], s->items[i]);
    if (!known) best[n++] = s->items[i];
  }
  for (int i = 0; i < n; i++) TRY(refine(s, best[i]));
  sort_items(s);
  return STATUS_OK;
}

static bool has_room(const Search *s, const Candidate *c) {
  double budget = (double)s->request.budget.bytes[TIER_DEVICE];
  return (double)c->bytes[TIER_DEVICE] <= (1 - SEARCH_ROOM) * budget;
}

// Of two that take the same time: less offload, then the lower stage, and so on in the order of dimensions, values by their numbers. In doubt, where the
// lower stage leaves little room, stage 2.
static bool is_preferred(const Search *s, const Candidate *a, const Candidate *b) {
  static const SearchDim order[] = {DIM_OFFLOAD, DIM_ZERO, DIM_RECOMPUTE, DIM_KEEP, DIM_PREFETCH, DIM_BUCKET};
  if (a->at[DIM_OFFLOAD] == b->at[DIM_OFFLOAD] && has_room(s, a) != has_room(s, b) && s->dims[DIM_ZERO].n > 1) return has_room(s, a) && a->at[DIM_ZERO] <= 2;
  for (size_t i = 0; i < sizeof order / sizeof *order; i++)
    if (a->at[order[i]] != b->at[order[i]]) return a->at[order[i]] < b->at[order[i]];
  return per_sample(a) < per_sample(b);
}

static void choose(Search *s) {
  s->chosen = s->n_fit ? s->items[0] : NULL;
  for (size_t i = 1; i < s->n_fit && per_sample(s->items[i]) <= per_sample(s->items[0]) * (1 + SEARCH_SAME); i++)
    if (is_preferred(s, s->items[i], s->chosen)) s->chosen = s->items[i];
}

// The chosen one without each of its choices: so that it can be said what each is for.
static Status try_without(Search *s) {
  const Candidate *chosen = s->chosen, *tried;
  for (int d = 0; chosen && d < DIM_COUNT; d++) {
    uint8_t at[DIM_COUNT];
    memcpy(at, chosen->at, DIM_COUNT);
    at[d] = 0;
    if (d != DIM_ZERO && d != DIM_BATCH) TRY(try_candidate(s, at, &tried));
  }
  sort_items(s);
  return STATUS_OK;
}

// ---- The search -----------------------------------------------------------------------------------------------------------------------------

static Status check_any(const Search *s) {
  for (size_t i = 0; i < s->n; i++)
    if (!s->items[i]->refused) return STATUS_OK;
  FAIL(USAGE, NULL, "%s", s->n ? s->items[0]->refused : "there is nothing to try");
}

static Status run_search(Search *s) {
  TRY(search_space(s));
  TRY(split_pipeline(s));
  Status status = explore(s);
  if (!status) status = refine_best(s);
  if (!status) choose(s);
  if (!status) status = try_without(s);
  if (s->request.alive && isatty(fileno(s->request.alive))) fprintf(s->request.alive, "\r\033[K");
  TRY(status);
  return check_any(s);
}

Status search_run(Flow *flow, const Options *options, const Data *data, const SearchRequest *request, Search *out) {
  SearchState state = {.given = data};
  *out = (Search){.flow = flow, .options = options, .request = *request, .state = &state};
  Status status = run_search(out);
  for (int i = 0; i < SEARCH_VALUES_MAX; i++) data_close(state.data[i]);
  out->state = NULL;
  return status;
}

Status search_read_cluster(const Options *options, Cluster *out) {
  *out = (Cluster){.machine = machine_default()};
  return options->cluster ? machine_json_read(options->cluster, out) : STATUS_OK;
}

static int64_t common_divisor(int64_t a, int64_t b) { return b ? common_divisor(b, a % b) : a; }

int64_t search_ranks_per_process(const Options *options, const Cluster *cluster) {
  if (options->ranks_per_process) return options->ranks_per_process;
  return cluster->machine.shares_memory ? common_divisor(options->ranks, cluster->machine.ranks_per_node) : 1;
}

SearchBudget search_budget(const Options *options, const Cluster *cluster) {
  double rank_bytes = cluster ? cluster->machine.memory_bytes : 0;
  SearchBudget budget = {{INT64_MAX, options->given.host_memory ? options->host_memory : 0, options->given.nvme ? options->nvme : 0}};
  if (options->given.memory) budget.bytes[TIER_DEVICE] = options->memory;
  else if (rank_bytes > 0 && rank_bytes < 0x1p62)
    budget.bytes[TIER_DEVICE] = bytes_times((int64_t)rank_bytes, options->ranks_per_process ? options->ranks_per_process : options->ranks);
  return budget;
}
