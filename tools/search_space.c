#include "search_space.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const names[DIM_COUNT][2] = {
    [DIM_ZERO] = {"zero"}, [DIM_BATCH] = {"batch", "micro-batches"}, [DIM_OFFLOAD] = {"offload"}, [DIM_RECOMPUTE] = {"recompute"},
    [DIM_KEEP] = {"keep"}, [DIM_BUCKET] = {"bucket-bytes"}, [DIM_PREFETCH] = {"prefetch"},
};

enum { BATCH_MAX = 4096 };           // samples of a micro-batch that are tried

// ---- Lists of values --------------------------------------------------------------------------------------------------------------------

static void add(SearchDimension *d, const char *text, const char *second) {
  if (d->n < SEARCH_VALUES_MAX) d->values[d->n++] = (SearchValue){{text, second}};
}

static void add_texts(SearchDimension *d, const char *const *texts) {
  for (; *texts; texts++) add(d, *texts, NULL);
}

// NULL: the program has no such option.
static const OptionRow *row_of(const char *name) { return name ? options_find_row(name, RUN) : NULL; }

static bool is_free(const Search *s, SearchDim dim) {
  const OptionRow *row = row_of(names[dim][0]);
  return row && !options_is_given(row, s->options);
}

// ---- Stages, recomputation, tiers -----------------------------------------------------------------------------------------------------------

static void space_of_stages(Search *s, SearchDimension *d) {
  static const char *const stages[] = {"0", "1", "2", "3", NULL};
  if (s->request.tune && s->options->ranks > 1 && is_free(s, DIM_ZERO)) add_texts(d, stages);
}

// The cheapest first: a budget is met with the least time.
static void space_of_recomputation(Search *s, SearchDimension *d) {
  static const char *const what[] = {"none", "budget=80%", "budget=60%", "budget=45%", "budget=30%", "budget=20%", "blocks", "all", NULL};
  if (is_free(s, DIM_RECOMPUTE)) add_texts(d, what);
}

// The cheapest first: host memory is nearer than NVMe, and optimizer state moves once a step, parameters and activations with every micro-batch. A tier
// is used only where its budget is given.
static void space_of_offload(Search *s, SearchDimension *d) {
  static const struct { const char *text; bool host, nvme; } ways[] = {
      {"optimizer=host", true, false},
      {"optimizer=host,grads=host", true, false},
      {"activations=host", true, false},
      {"optimizer=host,params=host", true, false},
      {"optimizer=host,params=host,grads=host", true, false},
      {"optimizer=host,params=host,grads=host,activations=host", true, false},
      {"optimizer=nvme", false, true},
      {"optimizer=nvme,grads=host", true, true},
      {"optimizer=nvme,params=host,grads=host", true, true},
      {"optimizer=nvme,params=nvme", false, true},
      {"optimizer=nvme,grads=nvme", false, true},
      {"optimizer=nvme,params=nvme,grads=host", true, true},
      {"optimizer=nvme,params=nvme,grads=nvme", false, true},
      {"optimizer=nvme,params=nvme,grads=nvme,activations=nvme", false, true},
  };
  if (!is_free(s, DIM_OFFLOAD)) return;
  add(d, NULL, NULL);
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
    if ((!ways[i].host || s->options->given.host_memory) && (!ways[i].nvme || s->options->given.nvme)) add(d, ways[i].text, NULL);
}

// ---- Micro-batches --------------------------------------------------------------------------------------------------------------------------

static bool has_open_batch(const Flow *flow) {
  for (size_t i = 0; i < flow->n_inputs; i++)
    if (flow->inputs[i].rank > 0 && flow->inputs[i].dims[0] < 0) return true;
  return false;
}

static int64_t fixed_batch(const Search *s) {
  if (s->options->given.batch) return s->options->batch;
  for (size_t i = 0; i < s->flow->n_inputs; i++)
    if (s->flow->inputs[i].rank > 0) return s->flow->inputs[i].dims[0];
  return -1;
}

static void add_batch(Search *s, SearchDimension *d, int64_t batch, int64_t micro_batches) {
  Arena *arena = s->flow->arena;
  add(d, batch ? arena_printf(arena, "%" PRId64, batch) : NULL, micro_batches ? arena_printf(arena, "%" PRId64, micro_batches) : NULL);
}

// S samples a step, or what --batch and --micro-batches leave of them.
static Status space_of_global_batch(Search *s, SearchDimension *d, bool open) {
  const Options *o = s->options;
  int64_t samples = o->global_batch, ranks = o->ranks, fixed = fixed_batch(s), micro = o->given.micro_batches ? o->micro_batches : 0;
  if (o->given.batch || !open) {
    if (fixed < 1 || samples % fixed || samples / fixed % ranks || (micro && micro * fixed != samples))
      FAIL(USAGE, NULL, "--global-batch %" PRId64 " is no whole number of micro-batches of %" PRId64 " samples on each of %" PRId64 " ranks%s", samples, fixed, ranks,
           micro ? " that --micro-batches says" : "");
    add_batch(s, d, o->given.batch ? fixed : 0, samples / fixed);
    return STATUS_OK;
  }
  if (samples % ranks || (micro && samples % micro))
    FAIL(USAGE, NULL, "--global-batch %" PRId64 " cannot be divided over %" PRId64 " %s", samples, micro ? micro : ranks, micro ? "micro-batches" : "ranks");
  if (micro) add_batch(s, d, samples / micro, micro);
  int64_t each = samples / ranks, last = 0;
  for (int64_t batch = 1; !micro && batch <= each && batch <= BATCH_MAX; batch++)
    if (each % batch == 0 && 3 * batch >= 4 * last) add_batch(s, d, last = batch, each / batch * ranks);
  return STATUS_OK;
}

static Status space_of_batches(Search *s, SearchDimension *d) {
  const Options *o = s->options;
  bool open = s->open_batch = has_open_batch(s->flow);
  if (o->given.global_batch) return space_of_global_batch(s, d, open);
  if (s->request.tune && open && !o->given.batch)
    for (int64_t batch = 1; batch <= BATCH_MAX; batch *= 2) add_batch(s, d, batch, 0);
  return STATUS_OK;
}

// ---- The rest -------------------------------------------------------------------------------------------------------------------------------

static const char *size_text(Arena *arena, int64_t bytes) {
  return bytes >= 1 << 20 && bytes % (1 << 20) == 0 ? arena_printf(arena, "%" PRId64 "MiB", bytes >> 20) : arena_printf(arena, "%" PRId64 "KiB", bytes >> 10);
}

Status search_space_shares(Search *s, const Candidate *first) {
  const SearchDimension *d = &s->dims[DIM_RECOMPUTE];
  int64_t ranks = s->options->ranks_per_process ? s->options->ranks_per_process : s->options->ranks;
  int64_t activation_bytes = (first->by_category[CATEGORY_ACTIVATIONS] + first->by_category[CATEGORY_INPUTS]) / ranks;
  ARENA_GUARD(s->flow->arena);
  for (int v = 0; v < d->n; v++) {
    int percent;
    const char *text = d->values[v].text[0], **share = &s->shares[first->at[DIM_BATCH]][v];
    if (*share || !text || sscanf(text, "budget=%d%%", &percent) != 1 || text[strlen(text) - 1] != '%') continue;
    int64_t bytes = bytes_times(activation_bytes / 100 + 1, percent), unit = bytes >= 16 << 20 ? 1 << 20 : 1 << 10;
    *share = arena_printf(s->flow->arena, "budget=%s", size_text(s->flow->arena, (bytes + unit - 1) / unit * unit));
  }
  ARENA_RETURN(s->flow->arena, STATUS_OK);
}

static Status add_buckets(Search *s, int64_t param_bytes) {
  const int64_t least = INT64_C(64) << 10, most = INT64_C(1) << 30;
  SearchDimension *d = &s->dims[DIM_BUCKET];
  ARENA_GUARD(s->flow->arena);
  for (int64_t bytes = least; bytes <= most && bytes <= param_bytes; bytes *= 4) add(d, size_text(s->flow->arena, bytes), NULL);
  ARENA_RETURN(s->flow->arena, STATUS_OK);
}

Status search_space_buckets(Search *search, int64_t param_bytes) { return is_free(search, DIM_BUCKET) ? add_buckets(search, param_bytes) : STATUS_OK; }

static Status fill(Search *s) {
  static const char *const kept[] = {"none", "backward", NULL}, *const depths[] = {"0", "1", "2", "4", NULL};
  for (int i = 0; i < DIM_COUNT; i++) {
    s->dims[i] = (SearchDimension){.options = {names[i][0], names[i][1]}, .values = ARENA_ARRAY(s->flow->arena, SearchValue, SEARCH_VALUES_MAX)};
  }
  space_of_stages(s, &s->dims[DIM_ZERO]);
  TRY(space_of_batches(s, &s->dims[DIM_BATCH]));
  space_of_recomputation(s, &s->dims[DIM_RECOMPUTE]);
  space_of_offload(s, &s->dims[DIM_OFFLOAD]);
  if (is_free(s, DIM_KEEP)) add_texts(&s->dims[DIM_KEEP], kept);
  if (is_free(s, DIM_PREFETCH) && s->options->ranks > 1) add_texts(&s->dims[DIM_PREFETCH], depths);
  for (int i = 0; i < DIM_COUNT; i++)
    if (!s->dims[i].n) add(&s->dims[i], NULL, NULL);             // as it was given, or its default
  return STATUS_OK;
}

Status search_space(Search *search) {
  ARENA_GUARD(search->flow->arena);
  ARENA_RETURN(search->flow->arena, fill(search));
}
