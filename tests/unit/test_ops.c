// Every line of tests/ops/*.txt (op_case.h has the syntax), through five checks:
//   the inferred type is the produced one: exactly its bytes are written, all of them;
//   the fast kernel agrees with the reference on every instruction set of this machine, and those among each other to the bit where no matrix
//   library is involved; results in place (alias) are those out of place; so does the fast kernel on 16-bit floats, where it takes them;
//   expected values, where given;
//   the gradient that the row emits equals finite differences, all in f64 by the reference kernels;
//   print -> parse -> print is the identity.
// usage: test_ops [--json FILE] [OPERATOR ...]   all operators without names; --json writes cases and reference results for
// tests/ops/test_onnx.py and checks nothing
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../../ir/parse.h"
#include "../../ir/print.h"
#include "../ops/op_case.h"
#include "../ops/op_json.h"

typedef struct Place { const char *file; int line; int problems; } Place;

static int n_widened;        // cases that ran in 16 bits

static void problem(Place *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void problem(Place *p, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fprintf(stderr, "%s:%d: ", p->file, p->line);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  p->problems++;
}

// True (and reported) when `status` is an error.
static bool failed(Place *p, const char *doing, Status status) {
  if (!status) return false;
  char text[1024];
  problem(p, "%s: %s", doing, status_text(status, text, sizeof text));
  status_free(status);
  return true;
}

static int status_name_is(const StatusError *status, const char *name) {
#define STATUS(id, code, meaning) \
  if (!strcmp(name, #id)) return status_code(status) == STATUS_##id;
#include "../../ir/status.def"
#undef STATUS
  return 0;
}

// The case must fail, and did with `status` (NULL: it did not).
static void check_failure(Place *p, const OpCase *c, Status status) {
  char text[1024] = "success";
  if (status) status_text(status, text, sizeof text);
  if (!status || !status_name_is(status, c->fails_code) || !strstr(text, c->fails_text))
    problem(p, "expected %s \"%s\", got: %s", c->fails_code, c->fails_text, text);
  status_free(status);
}

static void fresh_outputs(Arena *arena, const Node *node, Tensor *out, int fill) {
  for (int i = 0; i < node->n_outputs; i++) {
    const Value *v = node->outputs[i];
    out[i] = v ? (Tensor){.data = op_case_buffer(arena, value_bytes(v), fill), .type = &v->type} : (Tensor){.data = NULL, .type = NULL};
  }
}

// Largest difference in units of the greater of 1 and the reference's magnitude; infinite where one is NaN or they differ in sign of infinity.
static double difference(const Type *type, const void *a, const void *b) {
  double worst = 0;
  for (int64_t i = 0, n = type_elems(type); i < n; i++) {
    if (!dtype_is_float(type->dtype)) {
      if (element_read_int(a, type->dtype, i) != element_read_int(b, type->dtype, i)) return INFINITY;
      continue;
    }
    double x = element_read(a, type->dtype, i), y = element_read(b, type->dtype, i);
    if (x == y || (x != x && y != y)) continue;
    double d = fabs(x - y) / fmax(1, fabs(y));
    if (!(d <= worst)) worst = isnan(d) ? INFINITY : d;
  }
  return worst;
}

// ---- Forward ----

static bool run_outputs(Place *p, Arena *arena, const OpCase *c, Isa isa, bool reference, Tensor *out) {
  Tensor again[OP_CASE_OUTPUTS];
  fresh_outputs(arena, c->node, out, 0xab);
  fresh_outputs(arena, c->node, again, 0x54);
  if (failed(p, "run", kernel_run_once(c->node, c->in, out, isa, reference))) return false;
  if (failed(p, "run again", kernel_run_once(c->node, c->in, again, isa, reference))) return false;
  for (int i = 0; i < c->node->n_outputs; i++) {
    if (!out[i].type) continue;
    int64_t bytes = type_bytes(out[i].type);
    if (!op_case_guard_intact(out[i].data, bytes)) problem(p, "%s: output %d: written behind its end", isa_name(isa), i);
    if (memcmp(out[i].data, again[i].data, (size_t)bytes)) problem(p, "%s: output %d: not all of it is written, or two runs differ", isa_name(isa), i);
  }
  for (int i = 0; i < c->node->n_inputs; i++)
    if (c->in[i].type && !op_case_guard_intact(c->in[i].data, type_bytes(c->in[i].type))) problem(p, "input %d: written behind its end", i);
  return true;
}

static void check_in_place(Place *p, Arena *arena, const OpCase *c, Isa isa, bool reference, const Tensor *expected) {
  const Node *n = c->node;
  Alias alias;
  for (int o = 0; o < n->n_outputs; o++)
    for (int i = 0; i < n->n_inputs; i++) {
      if (!n->op->alias || !n->outputs[o] || !n->inputs[i] || !n->op->alias(n, o, i, &alias)) continue;
      int64_t bytes = value_bytes(n->outputs[o]);
      if (alias.kind == ALIAS_VIEW && !alias.rank_relative &&
          (alias.offset_bytes + bytes > value_bytes(n->inputs[i]) ||
           (bytes && memcmp((const char *)c->in[i].data + alias.offset_bytes, expected[o].data, (size_t)bytes))))
        problem(p, "output %d is said to be a view of input %d at byte %lld and is not", o, i, (long long)alias.offset_bytes);
      if (alias.kind != ALIAS_INPLACE && alias.kind != ALIAS_UPDATE) continue;
      Tensor in[OP_CASE_INPUTS], out[OP_CASE_OUTPUTS];
      memcpy(in, c->in, sizeof in);
      fresh_outputs(arena, n, out, 0xab);
      in[i].data = out[o].data = op_case_buffer(arena, bytes, 0);
      memcpy(out[o].data, c->in[i].data, (size_t)bytes);
      if (failed(p, "run in place", kernel_run_once(n, in, out, isa, reference))) continue;
      for (int k = 0; k < n->n_outputs; k++)
        if (out[k].type && memcmp(out[k].data, expected[k].data, (size_t)type_bytes(out[k].type)))
          problem(p, "%s: output %d over input %d: output %d differs from the run out of place", isa_name(isa), o, i, k);
    }
}

static void check_values(Place *p, Arena *arena, const OpCase *c, const Tensor *out) {
  for (int i = 0; i < c->node->n_outputs; i++) {
    if (!c->expected[i] || !out[i].type) continue;
    void *want = op_case_buffer(arena, type_bytes(out[i].type), 0);
    if (failed(p, "expected values", op_case_values(c->expected[i], out[i].type, want))) continue;
    double tolerance = out[i].type->dtype == DTYPE_F16 ? 1e-3 : out[i].type->dtype == DTYPE_BF16 ? 8e-3 : 2e-6;
    double d = difference(out[i].type, out[i].data, want);
    if (d > tolerance) problem(p, "output %d differs from the expected values by %g", i, d);
  }
}

static void check_fast(Place *p, Arena *arena, const OpCase *c, const Tensor *reference) {
  Tensor first[OP_CASE_OUTPUTS], out[OP_CASE_OUTPUTS];
  bool have_first = false;
  for (Isa isa = ISA_AVX2; isa < ISA_COUNT; isa++) {
    if (!isa_available(isa) || kernel_choice(c->node, isa) == KERNEL_REFERENCE) continue;
    if (c->node->op->prepare && isa != isa_best()) continue;   // the matrix library has one instruction set per process
    if (!run_outputs(p, arena, c, isa, false, out)) return;
    for (int i = 0; i < c->node->n_outputs; i++) {
      if (!out[i].type) continue;
      double d = difference(out[i].type, out[i].data, reference[i].data);
      if (d > c->tolerance) problem(p, "%s: output %d differs from the reference by %g", isa_name(isa), i, d);
      if (have_first && !c->node->op->prepare && difference(out[i].type, out[i].data, first[i].data) != 0)
        problem(p, "%s: output %d: other bits than on the instruction set before", isa_name(isa), i);
    }
    check_in_place(p, arena, c, isa, false, out);
    memcpy(first, out, sizeof first);
    have_first = true;
  }
}

// The case with its f32 operands as 16-bit floats, where the fast kernel runs on widened copies: the reference rounded once, and so do they.
static void check_widened(Place *p, Arena *arena, const char *line, Dtype floats) {
  OpCase c;
  Tensor reference[OP_CASE_OUTPUTS], out[OP_CASE_OUTPUTS];
  if (failed(p, "parse in 16 bits", op_case_parse(line, floats, arena, &c))) return;
  Status inferred = node_infer(c.graph, c.node);
  bool has_none = inferred != NULL;            // rows that take no such type
  status_free(inferred);
  if (has_none || kernel_choice(c.node, isa_best()) != KERNEL_WIDENED) return;
  if (!run_outputs(p, arena, &c, ISA_SCALAR, true, reference) || !run_outputs(p, arena, &c, isa_best(), false, out)) return;
  double unit = floats == DTYPE_BF16 ? 0x1p-6 : 0x1p-9;     // twice the last place: some references add up in the result
  for (int i = 0; i < c.node->n_outputs; i++) {
    double d = out[i].type ? difference(out[i].type, out[i].data, reference[i].data) : 0;
    if (d > unit + c.tolerance) problem(p, "%s: output %d of the widened kernel differs from the reference by %g", dtype_name(floats), i, d);
  }
  check_in_place(p, arena, &c, isa_best(), false, out);
  n_widened++;
}

// ---- Gradient ----

typedef struct Probe {
  OpCase c;
  Tensor out[OP_CASE_OUTPUTS];
  const double *weights[OP_CASE_OUTPUTS];   // the loss is sum over outputs and elements of weight * value; NULL: the output is left out
} Probe;

static Status loss_of(const Probe *probe, double *loss) {
  TRY(kernel_run_once(probe->c.node, probe->c.in, probe->out, ISA_SCALAR, true));
  *loss = 0;
  for (int i = 0; i < probe->c.node->n_outputs; i++)
    for (int64_t k = 0, n = probe->weights[i] ? type_elems(probe->out[i].type) : 0; k < n; k++)
      *loss += probe->weights[i][k] * element_read(probe->out[i].data, probe->out[i].type->dtype, k);
  return STATUS_OK;
}

// Runs every node of the graph that stands behind the forward node; `data` holds the tensors of values by id.
static Status run_backward(const Graph *g, Arena *arena, size_t first_node, void **data) {
  for (size_t i = 0; i < g->n_values; i++)
    if (g->values[i]->weight && !data[i])
      data[i] = memcpy(op_case_buffer(arena, value_bytes(g->values[i]), 0), g->values[i]->weight->bytes, (size_t)value_bytes(g->values[i]));
  for (size_t k = first_node; k < g->n_nodes; k++) {
    const Node *n = g->nodes[k];
    Tensor *in = ARENA_ARRAY(arena, Tensor, n->n_inputs), *out = ARENA_ARRAY(arena, Tensor, n->n_outputs);
    for (int i = 0; i < n->n_inputs; i++)
      if (n->inputs[i]) in[i] = (Tensor){.data = data[n->inputs[i]->id], .type = &n->inputs[i]->type};
    for (int i = 0; i < n->n_outputs; i++)
      if (n->outputs[i]) out[i] = (Tensor){.data = data[n->outputs[i]->id] = op_case_buffer(arena, value_bytes(n->outputs[i]), 0xab), .type = &n->outputs[i]->type};
    TRY(kernel_run_once(n, in, out, ISA_SCALAR, true));
  }
  return STATUS_OK;
}

static void compare_gradient(Place *p, Probe *probe, int input, const void *gradient) {
  enum { POINTS = 48 };
  const Type *type = probe->c.in[input].type;
  double *x = probe->c.in[input].data;
  const double *g = gradient;
  int64_t n = type_elems(type), stride = n > POINTS ? n / POINTS : 1;
  for (int64_t k = 0; k < n; k += stride) {
    double old = x[k], h = 1e-6 * fmax(1, fabs(old)), above, below;
    x[k] = old + h;
    if (failed(p, "finite difference", loss_of(probe, &above))) return;
    x[k] = old - h;
    if (failed(p, "finite difference", loss_of(probe, &below))) return;
    x[k] = old;
    double numeric = (above - below) / (2 * h);
    if (!(fabs(numeric - g[k]) <= 2e-6 * (1 + fabs(numeric)))) {
      problem(p, "gradient of input %d, element %lld: %.9g, finite difference %.9g", input, (long long)k, g[k], numeric);
      return;
    }
  }
}

static bool seed_gradients(Arena *arena, Probe *probe, bool first_only, Value **dy, void **data) {
  bool any = false;
  uint64_t random = 12345;
  for (int i = 0; i < probe->c.node->n_outputs; i++) {
    Value *y = probe->c.node->outputs[i];
    dy[i] = NULL;
    probe->weights[i] = NULL;
    if (!y || y->type.dtype != DTYPE_F64 || (first_only && any)) continue;
    dy[i] = graph_add_value(probe->c.graph, "dy");
    dy[i]->type = y->type;
    graph_add_input(probe->c.graph, dy[i]);
    double *w = op_case_buffer(arena, value_bytes(y), 0);
    for (int64_t k = 0, n = type_elems(&y->type); k < n; k++) {
      random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
      w[k] = (double)(int64_t)random * 0x1p-63;
    }
    probe->weights[i] = data[dy[i]->id] = w;
    any = true;
  }
  return any;
}

static void check_gradient_of(Place *p, Arena *arena, const char *line, bool first_only) {
  enum { VALUES = 4096 };
  Probe probe = {0};
  OpCase *c = &probe.c;
  if (failed(p, "parse in f64", op_case_parse(line, DTYPE_F64, arena, c))) return;
  if (failed(p, "infer in f64", node_infer(c->graph, c->node))) return;
  void **data = ARENA_ARRAY(arena, void *, VALUES);
  bool wanted[OP_CASE_INPUTS] = {0}, any = false;
  Value *dy[OP_CASE_OUTPUTS], *dx[OP_CASE_INPUTS] = {0};
  for (int i = 0; i < c->node->n_inputs; i++) {
    if (!c->node->inputs[i]) continue;
    data[c->node->inputs[i]->id] = c->in[i].data;
    wanted[i] = c->in[i].type->dtype == DTYPE_F64 && !value_const(c->node->inputs[i]) && !(c->node->op->nondifferentiable >> i & 1);
    any |= wanted[i];
  }
  fresh_outputs(arena, c->node, probe.out, 0);
  for (int i = 0; i < c->node->n_outputs; i++)
    if (c->node->outputs[i]) data[c->node->outputs[i]->id] = probe.out[i].data;
  if (!any || !seed_gradients(arena, &probe, first_only, dy, data)) return;
  Emit e = {.graph = c->graph, .at = c->node, .backward = true};
  Grad g = {.emit = &e, .node = c->node, .dy = dy, .wanted = wanted, .dx = dx};
  size_t first_node = c->graph->n_nodes;
  bool refused = failed(p, "emit gradient", c->node->op->grad(&g));
  if (failed(p, "emit gradient", e.status) || refused) return;
  double loss;
  if (failed(p, "forward in f64", loss_of(&probe, &loss))) return;
  if (c->graph->n_values > VALUES || failed(p, "backward", run_backward(c->graph, arena, first_node, data))) return;
  for (int i = 0; i < c->node->n_inputs; i++) {
    if (!wanted[i]) continue;
    if (!dx[i]) problem(p, "no gradient for input %d", i);
    else if (!type_equal(&dx[i]->type, c->in[i].type)) problem(p, "the gradient of input %d has another type", i);
    else compare_gradient(p, &probe, i, data[dx[i]->id]);
  }
}

static void check_gradient(Place *p, Arena *arena, const char *line, const OpCase *c) {
  if (!c->node->op->grad || c->no_grad) return;
  check_gradient_of(p, arena, line, false);
  if (c->node->n_outputs > 1) check_gradient_of(p, arena, line, true);   // the other outputs do not reach the loss
}

// ---- Text ----

static bool prints_inline(const Value *v) {
  const Weight *w = value_const(v);
  return !w || (type_elems(&w->type) <= PRINT_INLINE_ELEMS && w->type.dtype != DTYPE_F16 && w->type.dtype != DTYPE_BF16);
}

static void check_text(Place *p, Arena *arena, const OpCase *c) {
  for (int i = 0; i < c->node->n_inputs; i++)
    if (c->node->inputs[i] && !prints_inline(c->node->inputs[i])) return;
  for (int i = 0; i < c->node->n_outputs; i++)
    if (c->node->outputs[i]) graph_add_output(c->graph, c->node->outputs[i]);
  char *text = graph_text(c->graph, NULL, arena);
  Graph *back;
  if (failed(p, "parse", graph_parse(text, strlen(text), arena, &back))) {
    fprintf(stderr, "%s\n", text);
    return;
  }
  char *again = graph_text(back, NULL, arena);
  if (strcmp(text, again)) problem(p, "print -> parse -> print changes\n%s\nto\n%s", text, again);
}

// ---- Files ----

static Status check_case(Place *p, Arena *arena, const char *line) {
  ARENA_GUARD(arena);
  OpCase c;
  Tensor out[OP_CASE_OUTPUTS];
  if (failed(p, "case", op_case_parse(line, DTYPE_NONE, arena, &c))) ARENA_RETURN(arena, STATUS_OK);
  Status inferred = node_infer(c.graph, c.node);
  if (c.fails_code) {
    if (!inferred) {
      fresh_outputs(arena, c.node, out, 0);
      inferred = kernel_run_once(c.node, c.in, out, ISA_SCALAR, true);
    }
    check_failure(p, &c, inferred);
    ARENA_RETURN(arena, STATUS_OK);
  }
  if (failed(p, "infer", inferred)) ARENA_RETURN(arena, STATUS_OK);
  if (!run_outputs(p, arena, &c, ISA_SCALAR, true, out)) ARENA_RETURN(arena, STATUS_OK);
  check_values(p, arena, &c, out);
  check_in_place(p, arena, &c, ISA_SCALAR, true, out);
  check_fast(p, arena, &c, out);
  check_widened(p, arena, line, DTYPE_BF16);
  check_widened(p, arena, line, DTYPE_F16);
  check_gradient(p, arena, line, &c);
  check_text(p, arena, &c);
  ARENA_RETURN(arena, STATUS_OK);
}

typedef Status (*CaseFn)(Place *p, Arena *arena, const char *line, void *to);

static Status check_case_fn(Place *p, Arena *arena, const char *line, void *to) { return check_case(p, arena, line); }
static Status json_case_fn(Place *p, Arena *arena, const char *line, void *to) { return op_json_case(p->file, p->line, line, arena, to); }

// Calls `fn` for every case of a file; returns the number of problems.
static int each_case(const char *path, CaseFn fn, void *to) {
  const char *slash = strrchr(path, '/');
  Place p = {.file = slash ? slash + 1 : path};
  FILE *file = fopen(path, "r");
  if (!file) {
    problem(&p, "cannot be opened");
    return p.problems;
  }
  char *line = NULL;
  size_t capacity = 0;
  for (ssize_t n; (n = getline(&line, &capacity, file)) >= 0;) {
    p.line++;
    while (n && (line[n - 1] == '\n' || line[n - 1] == ' ')) line[--n] = 0;
    if (!n || line[0] == '#') continue;
    Arena *arena = arena_create((size_t)256 << 20);   // a case that asks for more fails, it does not take the machine down
    failed(&p, "case", fn(&p, arena, line, to));
    arena_destroy(arena);
  }
  free(line);
  fclose(file);
  return p.problems;
}

static void test_file(void **state) { assert_int_equal(each_case(*state, check_case_fn, NULL), 0); }

enum { FILES_MAX = 1024 };

static int list_files(const char *dir, char **names, int n_names, char *paths[FILES_MAX]) {
  struct dirent **entries;
  int n = scandir(dir, &entries, NULL, alphasort), found = 0;
  for (int i = 0; i < n; i++) {
    const char *name = entries[i]->d_name;
    size_t length = strlen(name);
    bool asked = n_names == 0;
    for (int k = 0; k < n_names && length > 4; k++) asked |= strlen(names[k]) == length - 4 && !strncmp(names[k], name, length - 4);
    if (asked && length > 4 && !strcmp(name + length - 4, ".txt") && found < FILES_MAX) {
      paths[found] = malloc(strlen(dir) + length + 2);
      sprintf(paths[found++], "%s/%s", dir, name);
    }
    free(entries[i]);
  }
  if (n >= 0) free(entries);
  return found;
}

int main(int argc, char **argv) {
  char *paths[FILES_MAX];
  bool json_asked = argc > 2 && !strcmp(argv[1], "--json");
  int first_name = json_asked ? 3 : 1;
  int n = list_files(TESSERA_SOURCE_DIR "/tests/ops", argv + first_name, argc - first_name, paths), result = 0;
  if (json_asked) {
    OpJson *json = op_json_open();
    for (int i = 0; i < n; i++) result += each_case(paths[i], json_case_fn, json);
    result += op_json_close(json, argv[2]);
  } else {
    struct CMUnitTest tests[FILES_MAX];
    for (int i = 0; i < n; i++) tests[i] = (struct CMUnitTest){.name = strrchr(paths[i], '/') + 1, .test_func = test_file, .initial_state = paths[i]};
    result = n ? _cmocka_run_group_tests("operators", tests, (size_t)n, NULL, NULL) : 1;
    printf("%d runs on widened copies of 16-bit floats\n", n_widened);
  }
  for (int i = 0; i < n; i++) free(paths[i]);
  return result != 0;
}
