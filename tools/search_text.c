// What a search says: options of a candidate, why it lost, what would fit.
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "progress.h"
#include "search.h"
#include "style.h"

// ---- Options as text ------------------------------------------------------------------------------------------------------------------------

// What holds where the search leaves an option alone: what was given, or the default.
static const char *standing_value(const Search *s, const char *option) {
  const OptionRow *row = options_find_row(option, RUN);
  TextList texts = {0};
  const char *text = "";
  Status status = row ? options_values(row, s->options, &texts) : STATUS_OK;
  if (!status && texts.n && strchr(texts.items[0], '=')) text = arena_string(s->flow->arena, strchr(texts.items[0], '=') + 1);
  status_free(status);
  options_free_texts(&texts);
  return row && row->kind == KIND_BYTES && !strcmp(text, "0") ? "auto" : text;
}

const char *search_text(const Search *search, const Candidate *candidate, SearchDim dim, int option) {
  const char *share = dim == DIM_RECOMPUTE && !option ? search->shares[candidate->at[DIM_BATCH]][candidate->at[dim]] : NULL;
  return share ? share : search->dims[dim].values[candidate->at[dim]].text[option];
}

const char *search_value(const Search *search, const Candidate *candidate, SearchDim dim) {
  const char *text = search_text(search, candidate, dim, 0);
  return text ? text : standing_value(search, search->dims[dim].options[0]);
}

const char *search_choices(const Search *search, const Candidate *candidate) {
  Arena *arena = search->flow->arena;
  const char *all = "";
  for (int dim = 0; dim < DIM_COUNT; dim++) {
    const SearchDimension *d = &search->dims[dim];
    for (int i = 0; i < 2; i++) {
      const char *text = search_text(search, candidate, (SearchDim)dim, i);
      if (text && strcmp(text, standing_value(search, d->options[i]))) all = arena_printf(arena, "%s --%s %s", all, d->options[i], text);
    }
  }
  return all;
}

// ---- Reasons --------------------------------------------------------------------------------------------------------------------------------

static double per_sample(const Candidate *c) { return c->step_s / (double)(c->samples > 0 ? c->samples : 1); }

static Category largest_category(const Candidate *c) {
  Category most = CATEGORY_PARAMS;
  for (int k = 0; k < CATEGORY_COUNT; k++)
    if (c->by_category[k] > c->by_category[most]) most = (Category)k;
  return most;
}

static const char *lacks(const Search *s, const Candidate *c) {
  char over[32], budget[32], most[32];
  for (int t = 0; t < TIER_COUNT; t++) {
    int64_t allowed = s->request.budget.bytes[t];
    if (c->bytes[t] <= allowed) continue;
    bytes_text(c->bytes[t] - allowed, over);
    bytes_text(allowed, budget);
    if (t != TIER_DEVICE) return arena_printf(s->flow->arena, "needs %s more than the %s of %s", over, budget, tier_name((Tier)t));
    Category category = largest_category(c);
    bytes_text(c->by_category[category], most);
    return arena_printf(s->flow->arena, "needs %s more than the %s there is; most of it %s, %s", over, budget, category_name(category), most);
  }
  return "";
}

// The part of a step that makes most of the difference to the chosen one.
static const char *slower(const Search *s, const Candidate *c) {
  const Candidate *best = s->chosen;
  double scale = (double)best->samples / (double)c->samples;           // the same number of samples
  const double more[] = {c->compute_s * scale - best->compute_s, c->exposed_s * scale - best->exposed_s, c->transfer_s * scale - best->transfer_s,
                         c->overhead_s * scale - best->overhead_s};
  static const char *const what[] = {"computing", "communication in the way", "transfers between tiers in the way", "micro-batches and steps to begin"};
  char text[32];
  int most = 0;
  for (int i = 1; i < 4; i++)
    if (more[i] > more[most]) most = i;
  return arena_printf(s->flow->arena, "%.1f %% slower: %s more %s a step", 100 * (per_sample(c) / per_sample(best) - 1), seconds_text(more[most], text), what[most]);
}

static const char *as_fast(const Search *s, const Candidate *c) {
  static const struct { SearchDim dim; const char *why; } rules[] = {
      {DIM_OFFLOAD, "less offload does"}, {DIM_ZERO, "a lower stage does"}, {DIM_RECOMPUTE, "less recomputation does"},
      {DIM_KEEP, "without --keep"}, {DIM_PREFETCH, "less prefetch does"}, {DIM_BUCKET, "with other buckets"}};
  const char *why = "and no simpler";
  for (size_t i = sizeof rules / sizeof *rules; i-- > 0;)
    if (c->at[rules[i].dim] > s->chosen->at[rules[i].dim]) why = rules[i].why;
  if (c->at[DIM_OFFLOAD] == s->chosen->at[DIM_OFFLOAD] && c->at[DIM_ZERO] < s->chosen->at[DIM_ZERO])
    return arena_printf(s->flow->arena, "as fast (%+.1f %%), and leaves less than %.0f %% of the memory free: in doubt the higher stage",
                        100 * (per_sample(c) / per_sample(s->chosen) - 1), 100 * SEARCH_ROOM);
  return arena_printf(s->flow->arena, "as fast (%+.1f %%): %s", 100 * (per_sample(c) / per_sample(s->chosen) - 1), why);
}

const char *search_reason(const Search *search, const Candidate *candidate) {
  if (candidate->refused) return candidate->refused;
  if (!candidate->fits) return lacks(search, candidate);
  if (candidate == search->chosen) return "chosen";
  return per_sample(candidate) > per_sample(search->items[0]) * (1 + SEARCH_SAME) ? slower(search, candidate) : as_fast(search, candidate);
}

static const Candidate *find(const Search *s, const uint8_t at[DIM_COUNT]) {
  for (size_t i = 0; i < s->n; i++)
    if (!memcmp(s->items[i]->at, at, DIM_COUNT)) return s->items[i];
  return NULL;
}

const char *search_why(const Search *search) {
  Arena *arena = search->flow->arena;
  const char *all = "";
  for (int d = 0; d < DIM_COUNT; d++) {
    uint8_t at[DIM_COUNT];
    memcpy(at, search->chosen->at, DIM_COUNT);
    if (!at[d] || d == DIM_BATCH) continue;
    at[d] = 0;
    const Candidate *without = find(search, at);
    if (!without || without->refused) continue;
    double slower = 100 * (per_sample(without) / per_sample(search->chosen) - 1);
    const char *why = !without->fits ? lacks(search, without) : arena_printf(arena, "takes %.1f %% %s", slower < 0 ? -slower : slower, slower < 0 ? "less" : "longer");
    all = arena_printf(arena, "%s%swithout --%s it %s", all, *all ? ", " : "", search->dims[d].options[0], why);
  }
  return all;
}

// ---- Nothing fits ---------------------------------------------------------------------------------------------------------------------------

static const Candidate *smallest(const Search *s) {
  for (size_t i = 0; i < s->n; i++)
    if (!s->items[i]->refused) return s->items[i];           // none fits: the first of those is it
  return NULL;
}

// What would do, besides more memory.
static const char *advice(const Search *s) {
  const Options *o = s->options;
  Arena *arena = s->flow->arena;
  bool offloads = options_find_row("offload", RUN) != NULL;
  const char *text = "";
  if (s->dims[DIM_ZERO].n == 1 && o->ranks > 1 && o->zero < 3) text = arena_printf(arena, "%s, a higher stage (--zero, now %d)", text, (int)o->zero);
  if (s->open_batch && s->dims[DIM_BATCH].n == 1 && !o->given.global_batch)
    text = arena_printf(arena, "%s, smaller micro-batches (--batch, --seq, or --global-batch to have them chosen)", text);
  if (!o->given.host_memory && offloads) text = arena_printf(arena, "%s, host memory to offload to (--host-memory SIZE)", text);
  else if (!o->given.nvme && offloads) text = arena_printf(arena, "%s, NVMe to offload to (--nvme SIZE)", text);
  return s->request.tune ? arena_printf(arena, "%s, more ranks (--ranks, now %d)", text, (int)o->ranks) : text;
}

static Status nothing_fits(const Search *s) {
  const Candidate *c = smallest(s);
  char needs[32];
  const char *choices = search_choices(s, c);
  FAIL(RESOURCE, NULL, "nothing fits: of %zu ways to run it the smallest,%s, %s. What would do: --memory %s%s", s->n, *choices ? choices : " the defaults", lacks(s, c),
       bytes_text(c->bytes[TIER_DEVICE], needs), advice(s));
}

Status search_nothing_fits(const Search *search) {
  ARENA_GUARD(search->flow->arena);
  ARENA_RETURN(search->flow->arena, nothing_fits(search));
}
