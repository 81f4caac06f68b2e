// ONNX's own node tests, node by node: each model is imported, its types are inferred, every node runs once by its reference kernel and once
// as the executor would run it, and both results are compared with the expected outputs.
//
// usage: node_runner FOLDER [CASE ...]      FOLDER as dump_cases.py writes it
// Prints one line a case: "pass NAME", "unsupported NAME: why" (refused with code UNSUPPORTED or by the importer), "wrong NAME: what".
// Exit code 0 whenever all cases were tried: test_nodes.py compares the lines with expected_failures.txt.
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frontend/onnx_import.h"
#include "kernels/kernel.h"

typedef struct Case {
  char name[256];
  double rtol, atol;
  int n_inputs, n_outputs;
  long long model_at, model_bytes, data_at, data_bytes;
} Case;

typedef struct Run {
  Arena *arena;
  const Case *test;
  WeightSource data;               // in.0 ..., out.0 ...
  Graph *graph;
  void **reference, **fast;        // by value id
  size_t n_slots;
} Run;

static const Weight *datum(const Run *r, const char *kind, int i) {
  char name[32];
  snprintf(name, sizeof name, "%s.%d", kind, i);
  return weights_find(&r->data, name);
}

static void *new_buffer(Arena *arena, int64_t bytes) {
  char *p = arena_alloc(arena, (size_t)bytes + 64);
  return p + (63 - ((uintptr_t)p + 63) % 64);
}

// Values that came after the slots were counted (none today) would be out of range: every id is checked.
static Status slot(const Run *r, const Value *v, void **out, bool fast) {
  if (v->id >= r->n_slots) FAIL(CHECK, NULL, "value '%s' is new", v->name);
  *out = (fast ? r->fast : r->reference)[v->id];
  return STATUS_OK;
}

// Constants need aligned bytes of their own; graph inputs get the test's.
static void bind_values(Run *r) {
  Graph *g = r->graph;
  r->n_slots = g->n_values;
  r->reference = ARENA_ARRAY(r->arena, void *, g->n_values);
  r->fast = ARENA_ARRAY(r->arena, void *, g->n_values);
  for (size_t i = 0; i < g->n_values; i++) {
    const Weight *w = g->values[i]->weight;
    if (!w || !w->bytes) continue;
    int64_t bytes = type_bytes(&w->type);
    r->reference[i] = r->fast[i] = memcpy(new_buffer(r->arena, bytes), w->bytes, (size_t)bytes);
  }
}

static Status bind_inputs(Run *r, const ModelInput *inputs, size_t n) {
  for (size_t i = 0; i < n; i++) {
    Value *v = graph_find_value(r->graph, inputs[i].name);
    const Weight *w = datum(r, "in", (int)i);
    if (!v) continue;                      // nobody reads it
    if (!w) FAIL(UNSUPPORTED, NULL, "input '%s' has no tensor", inputs[i].name);
    if (!type_equal(&w->type, &v->type)) FAIL(CHECK, NULL, "input '%s': the model's type is not the test's", inputs[i].name);
    int64_t bytes = type_bytes(&w->type);
    void *own = memcpy(new_buffer(r->arena, bytes), w->bytes, (size_t)bytes);
    r->reference[v->id] = r->fast[v->id] = own;
  }
  return STATUS_OK;
}

// What decides a shape must be a constant: when a node is refused without, its inputs become constants with the values they have here.
static void make_constant(Run *r, Value *v) {
  if (!v || v->weight || !r->reference[v->id]) return;
  Weight *w = ARENA_NEW(r->arena, Weight);
  *w = (Weight){.name = v->name, .type = v->type, .bytes = r->reference[v->id]};
  v->weight = w;
  v->role = ROLE_CONST;
}

static Status infer_node(Run *r, Node *node) {
  Status status = node_infer(r->graph, node);
  if (status_code(status) != STATUS_UNSUPPORTED) return status;
  status_free(status);
  for (int i = 0; i < node->n_inputs; i++) make_constant(r, node->inputs[i]);
  return node_infer(r->graph, node);
}

static Status run_node(Run *r, Node *node, bool fast) {
  Tensor *in = ARENA_ARRAY(r->arena, Tensor, node->n_inputs), *out = ARENA_ARRAY(r->arena, Tensor, node->n_outputs);
  for (int i = 0; i < node->n_inputs; i++)
    if (node->inputs[i]) {
      in[i].type = &node->inputs[i]->type;
      TRY(slot(r, node->inputs[i], &in[i].data, fast));
    }
  for (int i = 0; i < node->n_outputs; i++)
    if (node->outputs[i]) {
      out[i].type = &node->outputs[i]->type;
      out[i].data = (fast ? r->fast : r->reference)[node->outputs[i]->id] = new_buffer(r->arena, value_bytes(node->outputs[i]));
    }
  return kernel_run_once(node, in, out, fast ? isa_best() : ISA_SCALAR, !fast);
}

// Models in 16 bits round every intermediate result: their last two bits depend on the order of operations.
static double tolerance(const Case *t, Dtype dtype) {
  double ulps = dtype == DTYPE_BF16 ? 0x1p-6 : dtype == DTYPE_F16 ? 0x1p-9 : 0;
  return ulps > t->rtol ? ulps : t->rtol;
}

static bool close_enough(const Case *t, Dtype dtype, double got, double want) {
  if (got == want || (got != got && want != want)) return true;
  return fabs(got - want) <= t->atol + tolerance(t, dtype) * fabs(want);
}

static Status compare(const Case *t, const char *kernels, int output, const Value *v, const void *got, const Weight *want) {
  char a[160], b[160];
  if (!type_equal(&v->type, &want->type))
    FAIL(CHECK, NULL, "output %d is %s, expected is %s", output, type_text(&v->type, a, sizeof a), type_text(&want->type, b, sizeof b));
  for (int64_t i = 0, n = type_elems(&v->type); i < n; i++) {
    if (dtype_is_integer(v->type.dtype) && element_read_int(got, v->type.dtype, i) == weight_read_int(want, i)) continue;
    double x = element_read(got, v->type.dtype, i), y = weight_read_float(want, i);
    if (!close_enough(t, v->type.dtype, x, y)) FAIL(CHECK, NULL, "output %d, element %lld: %.9g, expected is %.9g (%s kernels)", output, (long long)i, x, y, kernels);
  }
  return STATUS_OK;
}

static Status compare_outputs(Run *r) {
  for (int i = 0; i < r->test->n_outputs && (size_t)i < r->graph->n_outputs; i++) {
    const Weight *want = datum(r, "out", i);
    const Value *v = r->graph->outputs[i];
    if (!want) FAIL(UNSUPPORTED, NULL, "output %d is no tensor", i);
    TRY(compare(r->test, "reference", i, v, r->reference[v->id], want));
    TRY(compare(r->test, "fast", i, v, r->fast[v->id], want));
  }
  return STATUS_OK;
}

static Status run_graph(Run *r, const ModelInput *inputs, size_t n_inputs) {
  ARENA_GUARD(r->arena);
  bind_values(r);
  Status status = bind_inputs(r, inputs, n_inputs);
  for (size_t i = 0; i < r->graph->n_nodes && !status; i++) {
    Node *node = r->graph->nodes[i];
    status = infer_node(r, node);
    if (!status) status = run_node(r, node, false);
    if (!status) status = run_node(r, node, true);
  }
  if (!status) status = compare_outputs(r);
  ARENA_RETURN(r->arena, status);
}

static Status import_case(Run *r, Model *model) {
  const ModelInput *inputs;
  size_t n_inputs;
  TRY(model_inputs(model, r->arena, &inputs, &n_inputs));
  InputShape *shapes = calloc(n_inputs + 1, sizeof *shapes);
  if (!shapes) FAIL(RESOURCE, NULL, "out of memory");
  size_t n_shapes = 0;
  for (size_t i = 0; i < n_inputs; i++) {
    const Weight *w = datum(r, "in", (int)i);
    if (w) shapes[n_shapes++] = (InputShape){inputs[i].name, w->type};
  }
  ImportOptions options = {.shapes = shapes, .n_shapes = n_shapes};
  Imported imported;
  Status status = model_import(model, &options, r->arena, &imported);
  if (!status) {
    r->graph = imported.graph;
    status = run_graph(r, inputs, n_inputs);
  }
  free(shapes);
  return status;
}

static Status run_case(const Case *test, const char *pack, Arena *arena) {
  Run r = {.arena = arena, .test = test};
  Model *data = NULL, *model = NULL;
  Status status = model_open_bytes(pack + test->data_at, (size_t)test->data_bytes, "data", &data);
  if (!status) status = model_weights(data, arena, &r.data);
  if (!status) status = model_open_bytes(pack + test->model_at, (size_t)test->model_bytes, test->name, &model);
  if (!status) status = import_case(&r, model);
  model_close(model);
  model_close(data);
  return status;
}

static void report(const Case *test, Status status) {
  char text[2048];
  status_text(status, text, sizeof text);
  for (char *s = text; *s; s++)
    if (*s == '\n') *s = ';';
  if (!status) printf("pass %s\n", test->name);
  else printf("%s %s: %s\n", status_code(status) == STATUS_UNSUPPORTED ? "unsupported" : "wrong", test->name, text);
  fflush(stdout);
  status_free(status);
}

static const char *map_file(const char *folder, const char *name) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  int file = open(path, O_RDONLY);
  struct stat info;
  if (file < 0 || fstat(file, &info)) return NULL;
  void *p = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  return p == MAP_FAILED ? NULL : p;
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: node_runner FOLDER [CASE ...]\n");
    return 2;
  }
  char path[4096];
  snprintf(path, sizeof path, "%s/cases.txt", argv[1]);
  FILE *list = fopen(path, "r");
  const char *pack = map_file(argv[1], "cases.bin");
  if (!list || !pack) {
    fprintf(stderr, "node_runner: %s holds no cases\n", argv[1]);
    return 5;
  }
  Case c;
  while (fscanf(list, "%255s %lf %lf %d %d %lld %lld %lld %lld", c.name, &c.rtol, &c.atol, &c.n_inputs, &c.n_outputs, &c.model_at, &c.model_bytes,
                &c.data_at, &c.data_bytes) == 9) {
    bool asked = argc == 2;
    for (int i = 2; i < argc; i++) asked |= !strcmp(argv[i], c.name);
    if (!asked) continue;
    Arena *arena = arena_create((size_t)1 << 30);
    report(&c, run_case(&c, pack, arena));
    arena_destroy(arena);
  }
  fclose(list);
  return 0;
}
