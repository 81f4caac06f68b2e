#include "resume.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/hex.h"
#include "../runtime/tied_weights.h"

// ---- Is it the checkpoint of this model? --------------------------------------------------------------------------------------

// Is every parameter of the checkpoint one of the model, of the same shape? NULL: yes; else the first that is not.
static const char *stranger(const WeightSource *params, const WeightSource *model) {
  for (size_t i = 0; i < params->n_weights; i++) {
    const Weight *w = weights_find(model, params->weights[i].name);
    if (!w || !type_same_shape(&w->type, &params->weights[i].type)) return params->weights[i].name;
  }
  return NULL;
}

// A model that was exported anew keeps its names and shapes, not their places: that is said and goes on. Other parameters are another model.
static Status check_model(const Options *options, const Checkpoint *checkpoint, const WeightSource *model) {
  const CheckpointInfo *info = checkpoint_info(checkpoint);
  char hex[HEX128_BYTES];
  hex128_text(model->fingerprint[0], model->fingerprint[1], hex);
  if (!info->fingerprint || !info->fingerprint[0] || !strcmp(info->fingerprint, hex)) return STATUS_OK;
  const char *other = stranger(checkpoint_params(checkpoint), model);
  if (other)
    FAIL(USAGE, NULL, "the checkpoint '%s' is of model '%s' (fingerprint %s), not of '%s' (fingerprint %s), which has no parameter '%s' of that shape", options->resume,
         info->model_path, info->fingerprint, options->input, hex, other);
  fprintf(stderr, "tessera: warning: the checkpoint '%s' is of model '%s' (fingerprint %s), not of '%s' (fingerprint %s); the parameters have the same names and shapes, "
          "so it goes on\n", options->resume, info->model_path, info->fingerprint, options->input, hex);
  return STATUS_OK;
}

static Status check_open_model(const Options *options, const Flow *flow, const Checkpoint *checkpoint) {
  WeightSource weights;
  ARENA_GUARD(flow->arena);
  Status status = model_weights(flow->model, flow->arena, &weights);
  if (!status) status = check_model(options, checkpoint, &weights);
  ARENA_RETURN(flow->arena, status);
}

// A plan knows the fingerprint of its model.
static Status check_plan(const Options *options, const Flow *flow, const CheckpointInfo *info) {
  const char *mine = flow->graph->recipe.fingerprint;
  if (!mine || !info->fingerprint || !info->fingerprint[0] || !strcmp(mine, info->fingerprint)) return STATUS_OK;
  FAIL(USAGE, NULL, "the checkpoint '%s' is of model '%s' (fingerprint %s), not of '%s' (fingerprint %s), which the plan '%s' was made of", options->resume,
       info->model_path, info->fingerprint, flow->graph->recipe.model ? flow->graph->recipe.model : "?", mine, options->input);
}

// ---- Its options --------------------------------------------------------------------------------------------------------------

Status resume_open(const Options *options, const Flow *flow, Checkpoint **out_checkpoint, Options *out) {
  *out = (Options){0};
  TRY(checkpoint_open(options->resume, out_checkpoint));
  const CheckpointInfo *info = checkpoint_info(*out_checkpoint);
  TRY(flow->is_plan ? check_plan(options, flow, info) : check_open_model(options, flow, *out_checkpoint));
  if (!flow->is_plan && options->given.optimizer && info->optimizer && strcmp(info->optimizer, options->optimizer))
    FAIL(USAGE, NULL, "the checkpoint '%s' was trained with --optimizer %s, its state is not that of %s", options->resume, info->optimizer, options->optimizer);
  char *taken = NULL, *changed = NULL;
  RecordedOptions recorded = {info->options, info->defaults, info->n_options, info->n_defaults};
  Status status = options_resume(options, &recorded, flow->is_plan ? FIXED : 0, out, &taken, &changed);
  if (!status && taken) fprintf(stderr, "tessera: as in the checkpoint '%s': %s\n", options->resume, taken);
  if (!status && changed) fprintf(stderr, "tessera: other than in the checkpoint '%s': %s\n", options->resume, changed);
  free(taken);
  free(changed);
  return status_context(status, "%s/meta.json", options->resume);
}

Status resume_data(const Options *options, const Checkpoint *checkpoint, const Data *data, Arena *arena, const char *const **out_texts, size_t *out_n,
                   int64_t *out_batch) {
  const CheckpointInfo *info = checkpoint ? checkpoint_info(checkpoint) : NULL;
  const char *difference = NULL;
  *out_batch = info && !options->new_data ? info->next_batch : 0;
  if (info || options->save) TRY(data_fingerprint(data, arena, out_texts, out_n));
  if (!info || options->new_data || !info->data) return STATUS_OK;
  TRY(data_difference(info->data, info->n_data, *out_texts, *out_n, arena, &difference));
  if (difference)
    FAIL(USAGE, NULL, "--data: the checkpoint '%s' was saved within other data: they %s; give the same, or --new-data to begin these at their first batch",
         options->resume, difference);
  return STATUS_OK;
}

static Status append(TextList *list, const char *text, size_t n) {
  const char **items = realloc(list->items, (size_t)(list->n + 1) * sizeof *items);
  if (!items) FAIL(RESOURCE, NULL, "out of memory for the options");
  list->items = items;
  if (!(items[list->n] = strndup(text, n))) FAIL(RESOURCE, NULL, "out of memory for the options");
  list->n++;
  return STATUS_OK;
}

// A schedule goes on to the end that it had, also where that was the end of the run.
static Status append_total_steps(const Options *options, int64_t total_steps, TextList *given) {
  char text[64];
  if (options->given.total_steps || !total_steps) return STATUS_OK;
  int n = snprintf(text, sizeof text, "--total-steps=%" PRId64, total_steps);
  return append(given, text, (size_t)n);
}

// Ranks may differ when it is continued, the number of micro-batches may not: it is recorded also where it followed from the ranks.
static Status append_micro_batches(const Options *options, const Graph *program, TextList *given) {
  char text[64];
  if (options->given.micro_batches) return STATUS_OK;
  int n = snprintf(text, sizeof text, "--micro-batches=%" PRId64, program->recipe.micro_per_rank * mesh_ranks(&program->mesh));
  return append(given, text, (size_t)n);
}

static Status append_lines(TextList *list, const char *lines) {
  for (const char *p = lines ? lines : ""; *p;) {
    size_t n = strcspn(p, "\n");
    if (n) TRY(append(list, p, n));
    p += n + (p[n] == '\n');
  }
  return STATUS_OK;
}

Status resume_record(const Options *options, const Flow *flow, int64_t total_steps, TextList *given, TextList *defaults) {
  const Graph *program = flow->plan.programs[0];
  unsigned except = flow->is_plan ? FIXED : 0;
  *defaults = (TextList){0};
  TRY(options_record(options, true, except, given));
  Status status = append_lines(given, flow->is_plan ? program->recipe.options : NULL);
  bool known = flow->is_plan && program->recipe.options && strstr(program->recipe.options, "--micro-batches=");
  if (!status && !known) status = append_micro_batches(options, program, given);
  if (!status) status = append_total_steps(options, total_steps, given);
  if (!status) status = options_record(options, false, except, defaults);
  if (status) options_free_texts(given);
  return status;
}

// "--tie=KEPT=TIED", cut into its names; false for other options.
static bool read_tie(const char *option, Arena *arena, WeightTie *out) {
  static const char prefix[] = "--tie=";
  if (strncmp(option, prefix, sizeof prefix - 1)) return false;
  const char *kept = option + sizeof prefix - 1, *equals = strchr(kept, '=');
  if (!equals) return false;
  *out = (WeightTie){arena_string_n(arena, kept, (size_t)(equals - kept)), arena_string(arena, equals + 1), false};
  return true;
}

static Status find_ties(const TextList *given, const WeightSource *weights, Arena *arena, const WeightTie **out, size_t *n_out) {
  WeightTie *ties = ARENA_ARRAY(arena, WeightTie, given->n);
  size_t n = 0;
  for (int i = 0; i < given->n; i++) n += read_tie(given->items[i], arena, &ties[n]);
  for (size_t i = 0; i < n; i++)
    for (size_t step = 0; step < n && ties_kept(ties, n, ties[i].kept) != ties[i].kept; step++) ties[i].kept = ties_kept(ties, n, ties[i].kept);
  for (size_t i = 0; i < n; i++) {
    const Weight *kept = weights_find(weights, ties[i].kept), *tied = weights_find(weights, ties[i].tied);
    if (!kept || !tied) FAIL(CHECK, NULL, "--tie %s=%s: the model has no such initializer any more", ties[i].kept, ties[i].tied);
    ties[i].transposed = !type_same_shape(&kept->type, &tied->type);
  }
  *out = ties;
  *n_out = n;
  return STATUS_OK;
}

Status resume_ties(const TextList *given, const WeightSource *weights, Arena *arena, const WeightTie **out, size_t *n_out) {
  ARENA_GUARD(arena);
  ARENA_RETURN(arena, find_ties(given, weights, arena, out, n_out));
}

static Status join_lines(const TextList *list, Arena *arena, const char **out) {
  ARENA_GUARD(arena);
  const char *text = NULL;
  for (int i = 0; i < list->n; i++) text = text ? arena_printf(arena, "%s\n%s", text, list->items[i]) : arena_string(arena, list->items[i]);
  *out = text;
  ARENA_RETURN(arena, STATUS_OK);
}

Status resume_plan_options(const Options *options, Arena *arena, const char **out) {
  TextList list;
  TRY(options_record(options, true, 0, &list));
  Status status = join_lines(&list, arena, out);
  options_free_texts(&list);
  return status;
}
