#include "budget.h"

#include <string.h>

#include "printable.h"
#include "progress.h"
#include "style.h"

bool budget_is_asked(const Flow *flow, const Options *options) {
  return !flow->is_plan && (options->given.memory || options->given.host_memory || options->given.nvme || options->given.global_batch);
}

// "380 MiB device, 1.83 s a step on machine 'default'"
static const char *outcome(const Search *s) {
  Arena *arena = s->flow->arena;
  char text[32];
  const char *all = "";
  for (int t = 0; t < TIER_COUNT; t++)
    if (s->chosen->bytes[t]) all = arena_printf(arena, "%s%s %s, ", all, bytes_text(s->chosen->bytes[t], text), tier_name((Tier)t));
  return arena_printf(arena, "%s%s a step predicted for machine '%s'", all, seconds_text(s->chosen->step_s, text), s->request.cluster.machine.name);
}

static Status choose(Search *s, const char **out_chosen) {
  ARENA_GUARD(s->flow->arena);
  const char *choices = search_choices(s, s->chosen), *why = search_why(s);
  *out_chosen = arena_printf(s->flow->arena, "%s%s%s: %s", *choices ? choices + 1 : "the defaults", *why ? "; " : "", why, outcome(s));
  fprintf(stderr, "tessera: of %zu ways within the budget, %zu of which fit, the cheapest: ", s->n, s->n_fit);
  printable_print(stderr, *out_chosen, true);
  fputc('\n', stderr);
  ARENA_RETURN(s->flow->arena, STATUS_OK);
}

Status budget_choose(Flow *flow, const Options *options, const Data *data, bool run, Options *out) {
  Search search;
  SearchRequest request = {.run = run, .alive = stderr};
  *out = (Options){0};
  TRY(search_read_cluster(options, &request.cluster));
  request.budget = search_budget(options, NULL);
  TRY(search_run(flow, options, data, &request, &search));
  if (!search.chosen) return search_nothing_fits(&search);
  TRY(choose(&search, &flow->chosen));
  return search_options(&search, search.chosen, out);
}
