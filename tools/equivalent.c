// tessera opt --equivalent A B: two graphs on the same random inputs. What is compared are the outputs, the loss, the gradient of every parameter and,
// where an optimizer is attached, their norm and the step's loss. A graph that lacks what the other has gets it from the passes that would add it.
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "../kernels/ops.h"
#include "command.h"
#include "graph_eval.h"
#include "graph_file.h"

static const double TOLERANCE_F64 = 1e-9, TOLERANCE_F32 = 1e-4;
static const size_t EVAL_LIMIT_BYTES = (size_t)4 << 30;

typedef struct Side {
  const char *path;
  Options options;             // with input = path
  GraphFile file;
  Graph *graph;
  GraphEval eval;
  Arena *arena;                // of one case
} Side;

typedef struct Comparison {
  const Options *options;
  Side a, b;
  double tolerance, worst;
  const char *worst_name;
  int64_t n_outputs, n_gradients, n_finite;   // compared per case; elements that are numbers
  Isa isa;
} Comparison;

// ---- Bringing both to the same facts --------------------------------------------------------------------------------------------

static Status open_side(const Options *options, const char *path, Side *side) {
  side->path = path;
  side->options = *options;
  side->options.input = path;
  TRY(graph_file_open(&side->options, &side->file));
  side->graph = side->file.flow.graph;
  if (side->graph->facts & FACT_PLACED)
    FAIL(UNSUPPORTED, NULL, "'%s' is spread over ranks already; --equivalent takes graphs up to the pass accumulate ('tessera verify' and 'run' are for plans)", path);
  return STATUS_OK;
}

static Status run_one(const Comparison *c, Side *side, const char *pass) {
  const char *const passes[] = {pass, NULL};
  CompileOptions compile;
  PassRun run;
  TRY(flow_compile_options(&side->file.flow, &side->options, &compile));
  if (!c->options->given.precision) compile.precision = "fp64";
  TRY(flow_pass_run(&side->options, side->file.flow.arena, &run));
  return status_context(passes_run(side->graph, passes, &compile, &run), "%s", side->path);
}

static bool is_wide(const Graph *g) {
  for (size_t i = 0; i < g->n_values; i++)
    if (g->values[i]->type.dtype == DTYPE_F64 && (g->values[i]->role == ROLE_PARAM || g->values[i]->role == ROLE_INPUT)) return true;
  return false;
}

static Status widen(const Comparison *c, Side *side, const Side *other) {
  bool fixed = side->graph->facts & FACT_OPTIMIZER, other_fixed = other->graph->facts & FACT_OPTIMIZER;
  bool wanted = c->options->given.precision ? !strcmp(c->options->precision, "fp64") : !other_fixed || is_wide(other->graph);
  if (!fixed && wanted) TRY(run_one(c, side, "widen"));
  return side->graph->facts & FACT_TYPED ? STATUS_OK : run_one(c, side, "infer_types");
}

// A graph without a loss, or in which nothing trains, has outputs only; not so when the other has gradients or the command line names a loss.
static Status add_gradients(const Comparison *c, Side *side, bool needed, bool *has) {
  static const char *const steps[] = {"attach_loss", "sum_loss", "build_backward"};
  uint32_t facts = side->graph->facts;
  *has = false;
  for (int i = facts & FACT_SUMMED ? 2 : 0; i < 3; i++) {
    if (facts & FACT_BACKWARD && i == 2) continue;
    Status status = run_one(c, side, steps[i]);
    if (status_code(status) == STATUS_UNSUPPORTED && i == 0 && !needed) {
      char text[1024];
      fprintf(stderr, "tessera: outputs only: %s\n", status_text(status, text, sizeof text));
      status_free(status);
      return STATUS_OK;
    }
    TRY(status);
  }
  *has = true;
  return STATUS_OK;
}

static Status level(Comparison *c) {
  uint32_t facts = c->a.graph->facts | c->b.graph->facts;
  bool needed = facts & (FACT_BACKWARD | FACT_SUMMED) || c->options->loss || c->options->loss_output, has[2];
  TRY(widen(c, &c->a, &c->b));
  TRY(widen(c, &c->b, &c->a));
  TRY(add_gradients(c, &c->a, needed, &has[0]));
  TRY(add_gradients(c, &c->b, needed, &has[1]));
  if (has[0] != has[1])
    FAIL(CHECK, NULL, "only '%s' has a loss with parameters to train", has[0] ? c->a.path : c->b.path);
  Side *const sides[] = {&c->a, &c->b};
  for (int i = 0; i < 2; i++) {
    if (facts & FACT_OPTIMIZER && !(sides[i]->graph->facts & FACT_OPTIMIZER)) TRY(run_one(c, sides[i], "attach_optimizer"));
    if (facts & FACT_ACCUMULATED && !(sides[i]->graph->facts & FACT_ACCUMULATED)) TRY(run_one(c, sides[i], "accumulate"));
  }
  if (facts & FACT_ACCUMULATED && c->a.graph->recipe.micro_per_rank != c->b.graph->recipe.micro_per_rank)
    FAIL(CHECK, NULL, "%" PRId64 " micro-batches in '%s', %" PRId64 " in '%s'", c->a.graph->recipe.micro_per_rank, c->a.path, c->b.graph->recipe.micro_per_rank,
         c->b.path);
  c->tolerance = c->options->tolerance > 0 ? c->options->tolerance : is_wide(c->a.graph) && is_wide(c->b.graph) ? TOLERANCE_F64 : TOLERANCE_F32;
  return STATUS_OK;
}

// ---- Comparing two values -------------------------------------------------------------------------------------------------------

typedef struct Difference { int64_t at; double a, b, error; } Difference;   // at -1: none

static double magnitude(const Value *v, const void *data) {
  double most = 0;
  for (int64_t i = 0, n = type_elems(&v->type); i < n; i++) {
    double x = fabs(element_read(data, v->type.dtype, i));
    if (isfinite(x) && x > most) most = x;
  }
  return most;
}

// The element that differs most beyond what is allowed; integers must be the same. Floats of either width are compared as numbers.
static Difference compare_elements(Comparison *c, const Value *a, const void *da, const Value *b, const void *db) {
  Difference worst = {.at = -1};
  bool integers = !dtype_is_float(a->type.dtype);
  double scale = integers ? 0 : 1 + magnitude(a, da);
  for (int64_t i = 0, n = type_elems(&a->type); i < n; i++) {
    if (integers && dtype_is_integer(a->type.dtype) && element_read_int(da, a->type.dtype, i) == element_read_int(db, b->type.dtype, i)) continue;
    double x = element_read(da, a->type.dtype, i), y = element_read(db, b->type.dtype, i);
    c->n_finite += isfinite(x);
    if (x == y || (isnan(x) && isnan(y))) continue;
    double error = integers ? INFINITY : fabs(x - y) / scale;
    if (isnan(error)) error = INFINITY;
    if (error <= c->tolerance) {
      if (error > c->worst) c->worst = error, c->worst_name = a->name;
    } else if (worst.at < 0 || error > worst.error) {
      worst = (Difference){i, x, y, error};
    }
  }
  return worst;
}

static bool same_kind(const Type *a, const Type *b) {
  return type_same_shape(a, b) && (a->dtype == b->dtype || (dtype_is_float(a->dtype) && dtype_is_float(b->dtype)));
}

static const char *index_text(const Type *t, int64_t at, char *out, size_t out_bytes) {
  int64_t index[RANK_MAX];
  for (int d = t->rank - 1; d >= 0; d--) {
    index[d] = at % t->dims[d];
    at /= t->dims[d];
  }
  size_t used = (size_t)snprintf(out, out_bytes, "[");
  for (int d = 0; d < t->rank && used < out_bytes; d++) used += (size_t)snprintf(out + used, out_bytes - used, "%s%" PRId64, d ? "," : "", index[d]);
  snprintf(out + (used < out_bytes ? used : out_bytes - 1), used < out_bytes ? out_bytes - used : 1, "]");
  return out;
}

// In the order of A's nodes: the first value that both graphs compute under one name and that differs.
static void tell_first(Comparison *c) {
  const Graph *g = c->a.graph;
  for (size_t i = 0; i < g->n_nodes; i++)
    for (int k = 0; k < g->nodes[i]->n_outputs; k++) {
      const Value *a = g->nodes[i]->outputs[k], *b = a ? graph_find_value(c->b.graph, a->name) : NULL;
      if (!b || !b->producer || !same_kind(&a->type, &b->type) || b->producer->op == &op_SquaredNorm) continue;   // its limbs are digits
      if (!c->a.eval.data[a->id] || !c->b.eval.data[b->id]) continue;
      Difference d = compare_elements(c, a, c->a.eval.data[a->id], b, c->b.eval.data[b->id]);
      char at[200];
      if (d.at < 0) continue;
      printf("first of the values that both compute: '%s' at %s is %.17g in A (node '%s', %s), %.17g in B (node '%s', %s)\n", a->name,
             index_text(&a->type, d.at, at, sizeof at), d.a, g->nodes[i]->name, g->nodes[i]->op->name, d.b, b->producer->name, b->producer->op->name);
      return;
    }
}

static Status compare_pair(Comparison *c, int64_t number, const char *what, const char *name, const Value *a, const Value *b) {
  char ta[160], tb[160], at[200];
  if (!same_kind(&a->type, &b->type))
    FAIL(CHECK, NULL, "%s '%s' is %s in A, %s in B", what, name, type_text(&a->type, ta, sizeof ta), type_text(&b->type, tb, sizeof tb));
  const void *da = c->a.eval.data[a->id], *db = c->b.eval.data[b->id];
  Difference d = compare_elements(c, a, da, b, db);
  if (d.at < 0) return STATUS_OK;
  tell_first(c);
  const Node *n = a->producer ? a->producer : b->producer;
  FAIL(CHECK, n ? n->name : NULL, "case %" PRId64 ": %s '%s' differs at %s: %.17g in A, %.17g in B; %.3g apart, where %.3g is allowed", number, what, name,
       index_text(&a->type, d.at, at, sizeof at), d.a, d.b, fabs(d.a - d.b), dtype_is_float(a->type.dtype) ? c->tolerance * (1 + magnitude(a, da)) : 0);
}

// ---- What is compared -----------------------------------------------------------------------------------------------------------

static bool is_output(const Graph *g, const char *name) {
  size_t i = 0;
  while (i < g->n_outputs && strcmp(g->outputs[i]->name, name)) i++;
  return i < g->n_outputs;
}

// By name where every output of A is one of B, else by place. Once an optimizer is attached they are the reports of loss and norm.
static Status compare_outputs(Comparison *c, int64_t number) {
  const Graph *ga = c->a.graph, *gb = c->b.graph;
  if (ga->n_outputs != gb->n_outputs) FAIL(CHECK, NULL, "%zu outputs in A, %zu in B", ga->n_outputs, gb->n_outputs);
  bool by_name = true;
  for (size_t i = 0; i < ga->n_outputs; i++) by_name &= is_output(gb, ga->outputs[i]->name);
  for (size_t i = 0; i < ga->n_outputs; i++) {
    const Value *a = ga->outputs[i], *b = by_name ? graph_find_value(gb, a->name) : gb->outputs[i];
    TRY(compare_pair(c, number, "output", a->name, a, b));
    c->n_outputs += number == 0;
  }
  return STATUS_OK;
}

static Status compare_reports(Comparison *c, int64_t number) {
  const Value *const pairs[][2] = {{c->a.graph->loss, c->b.graph->loss}, {c->a.graph->loss_count, c->b.graph->loss_count},
                                   {c->a.graph->loss_report, c->b.graph->loss_report}, {c->a.graph->norm_report, c->b.graph->norm_report}};
  static const char *const names[] = {"the loss", "the loss's count", "the step's loss", "the gradients' norm"};
  for (int i = 0; i < 4; i++)
    if (pairs[i][0] && pairs[i][1]) TRY(compare_pair(c, number, names[i], pairs[i][0]->name, pairs[i][0], pairs[i][1]));
  return STATUS_OK;
}

static const Value *find_gradient(const Graph *g, const char *param) {
  for (size_t i = 0; i < g->n_values; i++) {
    const Value *v = g->values[i];
    if (v->role == ROLE_GRAD && v->of && !strcmp(v->of->name, param)) return v;
  }
  return NULL;
}

static Status compare_gradients(Comparison *c, int64_t number) {
  const Graph *const graphs[] = {c->a.graph, c->b.graph};
  for (int side = 0; side < 2; side++)
    for (size_t i = 0; i < graphs[side]->n_values; i++) {
      const Value *p = graphs[side]->values[i];
      const Value *a = p->role == ROLE_PARAM ? find_gradient(graphs[0], p->name) : NULL, *b = p->role == ROLE_PARAM ? find_gradient(graphs[1], p->name) : NULL;
      if ((a == NULL) != (b == NULL)) FAIL(CHECK, NULL, "parameter '%s' has a gradient in %s only", p->name, a ? "A" : "B");
      if (!a || side) continue;
      TRY(compare_pair(c, number, "the gradient of", p->name, a, b));
      c->n_gradients += number == 0;
    }
  return STATUS_OK;
}

static Status compare_case(Comparison *c, int64_t number) {
  TRY(compare_outputs(c, number));
  TRY(compare_reports(c, number));
  return compare_gradients(c, number);
}

// ---- Cases ----------------------------------------------------------------------------------------------------------------------

static Status eval_side(const Comparison *c, Side *side, const EvalCase *test) {
  arena_destroy(side->arena);
  side->arena = arena_create(EVAL_LIMIT_BYTES);
  if (!side->arena) FAIL(RESOURCE, NULL, "out of memory for the values of '%s'", side->path);
  return status_context(graph_eval(side->graph, test, c->options->lr, c->isa, side->arena, &side->eval), "%s", side->path);
}

// Integers that reach an index by arithmetic may leave its range: then smaller ones are tried, down to 0.
static Status eval_case(Comparison *c, int64_t number) {
  static const int64_t limits[] = {0, 2, 1};
  Status status = STATUS_OK;
  for (int i = 0; i < 3; i++) {
    EvalCase test = {.seed = (uint64_t)c->options->seed, .number = number, .users = {c->a.graph, c->b.graph}, .index_limit = limits[i]};
    status_free(status);
    status = eval_side(c, &c->a, &test);
    if (!status) status = eval_side(c, &c->b, &test);
    StatusCode code = status_code(status);
    if (code == STATUS_OK || code == STATUS_RESOURCE || code == STATUS_UNSUPPORTED || code == STATUS_USAGE) break;
  }
  return status;
}

static Status compare_all(Comparison *c) {
  TRY(open_side(c->options, c->options->equivalent, &c->a));
  TRY(open_side(c->options, c->options->input, &c->b));
  TRY(level(c));
  for (int64_t number = 0; number < c->options->cases; number++) {
    TRY(eval_case(c, number));
    TRY(compare_case(c, number));
  }
  if (!c->n_finite) FAIL(CHECK, NULL, "no element of any case is a number: nothing was compared; other inputs: --seed, --cases");
  printf("equivalent: %" PRId64 " cases, %" PRId64 " outputs, %" PRId64 " gradients", c->options->cases, c->n_outputs, c->n_gradients);
  printf("; largest difference %.3g of %.3g allowed", c->worst, c->tolerance);
  if (c->worst_name) printf(" ('%s')", c->worst_name);
  printf("\n");
  return STATUS_OK;
}

Status command_equivalent(const Options *options) {
  Comparison c = {.options = options, .isa = isa_best()};
  if (!options->input) FAIL(USAGE, NULL, "--equivalent compares two graphs: tessera opt --equivalent A B");
  if (options->passes || options->output) FAIL(USAGE, NULL, "--equivalent runs no pass and writes nothing: --passes and -o do not go with it");
  if (options->isa && !isa_from_name(options->isa, &c.isa)) FAIL(USAGE, NULL, "--isa: '%s' is unknown", options->isa);
  Status status = compare_all(&c);
  if (status_code(status) == STATUS_CHECK) status = status_context(status, "A is '%s', B is '%s'", options->equivalent, options->input);
  arena_destroy(c.a.arena);
  arena_destroy(c.b.arena);
  graph_file_close(&c.a.file);
  graph_file_close(&c.b.file);
  return status;
}
