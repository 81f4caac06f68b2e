#include "evaluation.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

Status evaluation_open(const Flow *flow, const Options *options, uint64_t seed, EvalRun *out) {
  if (!options->eval_data.n && (options->given.eval_every || options->given.eval_steps))
    FAIL(USAGE, NULL, "--%s needs --eval-data SOURCE", options->given.eval_every ? "eval-every" : "eval-steps");
  if (!options->eval_data.n) return STATUS_OK;
  for (int i = 0; i < options->eval_data.n; i++)
    if (!strcmp(options->eval_data.items[i], "-")) FAIL(USAGE, NULL, "--eval-data -: a stream passes once, an evaluation repeats; name files");
  Options of_eval = *options;      // borrows its lists; random data are others than those of training
  of_eval.data = options->eval_data;
  of_eval.shuffle = false;
  Status status = flow_open_data(flow, &of_eval, ~seed, &out->data);
  return status ? status_context(status, "--eval-data") : STATUS_OK;
}

static bool takes(const Graph *program, const ModelInput *inputs, size_t n, const Type *shapes) {
  for (size_t i = 0; i < n; i++) {
    const Value *v = graph_find_value(program, inputs[i].name);
    if (v && v->role == ROLE_INPUT && shapes[i].dtype != DTYPE_NONE && !type_same_shape(&v->type, &shapes[i])) return false;
  }
  return true;
}

static Status bind_variant(EvalRun *eval, const Flow *flow, int variant) {
  const Plan *plan = &flow->plan;
  for (int p = 0; p < plan->n_variants; p++) {
    if (!takes(plan->variants[p], flow->inputs, flow->n_inputs, data_shapes(eval->data, variant))) continue;
    eval->programs[variant] = p;
    return data_bind(eval->data, variant, plan->variants[p]);
  }
  char text[160] = "";
  if (flow->n_inputs) type_text(data_shapes(eval->data, variant), text, sizeof text);
  const char *first = flow->n_inputs ? flow->inputs[0].name : NULL;
  FAIL(MALFORMED, first, "--eval-data gives %s, in which no batch of --data comes; evaluation takes batches of the same shapes", text);
}

static int variant_of_batch(void *self, int64_t batch) {
  EvalRun *eval = self;
  return eval->programs[eval->data_feed.variant(eval->data_feed.self, batch)];
}

static Status fill_batch(void *self, int64_t batch, const Tensor *out, size_t n_inputs) {
  EvalRun *eval = self;
  return eval->data_feed.fill(eval->data_feed.self, batch, out, n_inputs);
}

Status evaluation_bind(EvalRun *eval, const Flow *flow, const Options *options, int64_t micro_batches) {
  if (!eval->data) return STATUS_OK;
  int n = data_n_variants(eval->data);
  eval->programs = calloc((size_t)n, sizeof *eval->programs);
  eval->pairs = calloc((size_t)micro_batches, sizeof *eval->pairs);
  if (!eval->programs || !eval->pairs) FAIL(RESOURCE, NULL, "no memory to evaluate");
  for (int v = 0; v < n; v++) TRY(bind_variant(eval, flow, v));
  eval->data_feed = data_feed(eval->data);
  eval->feed = (DataFeed){fill_batch, eval, variant_of_batch};
  eval->every = options->eval_every;
  eval->micro_batches = micro_batches;
  eval->n_batches = data_batches(eval->data);
  int64_t asked = options->eval_steps * micro_batches;
  if (eval->n_batches < 0 && !asked) FAIL(USAGE, NULL, "--eval-data random has no end: say how many steps an evaluation takes with --eval-steps N");
  if (asked && (eval->n_batches < 0 || asked < eval->n_batches)) eval->n_batches = asked;
  return STATUS_OK;
}

bool evaluation_is_due(const EvalRun *eval, int64_t steps_done, bool last) {
  return eval->data && (last || (eval->every && steps_done % eval->every == 0));
}

static Status keep(EvalHistory *h, int64_t step, double loss) {
  if (h->n == h->capacity) {
    int64_t wider = h->capacity ? 2 * h->capacity : 64;
    int64_t *steps = realloc(h->steps, (size_t)wider * sizeof *steps);
    if (steps) h->steps = steps;
    double *losses = steps ? realloc(h->losses, (size_t)wider * sizeof *losses) : NULL;
    if (!losses) FAIL(RESOURCE, NULL, "no memory for the losses of %" PRId64 " evaluations", wider);
    h->losses = losses;
    h->capacity = wider;
  }
  h->steps[h->n] = step;
  h->losses[h->n++] = loss;
  return STATUS_OK;
}

Status evaluation_run(EvalRun *eval, Executor *executor, int64_t step, void (*alive)(void *self), void *self, double *out_loss) {
  double sum = 0, count = 0;
  for (int64_t first = 0; first < eval->n_batches; first += eval->micro_batches) {
    int64_t left = eval->n_batches - first, n = left < eval->micro_batches ? left : eval->micro_batches;
    TRY(executor_evaluate(executor, &eval->feed, first, n, eval->pairs));
    for (int64_t i = 0; i < n; i++) {
      sum += eval->pairs[i][0];
      count += eval->pairs[i][1];
    }
    alive(self);
  }
  *out_loss = count != 0 ? sum / count : 0;                // as LossMean has it
  return keep(&eval->history, step, *out_loss);
}

void evaluation_finish(EvalRun *eval) {
  data_close(eval->data);
  free(eval->programs);
  free(eval->pairs);
  free(eval->history.steps);
  free(eval->history.losses);
  *eval = (EvalRun){0};
}
