// NonMaxSuppression: the best boxes of each sample and class that do not overlap too much with better ones. How many there are decides the shape of
// the result: the inputs must be constants.
#include <math.h>
#include <stdlib.h>

#include "index_input.h"
#include "ops.h"

typedef struct NonMaxAttrs { int64_t centre; } NonMaxAttrs;
static const AttrSpec non_max_attrs[] = {
    {"center_point_box", ATTR_INT, offsetof(NonMaxAttrs, centre), .min = 0, .max = 1, .help = "1: boxes are x, y of the centre, width, height; 0: y, x, y, x of corners"},
    {0}};

enum { IN_BOXES, IN_SCORES, IN_MAX, IN_OVERLAP, IN_SCORE, N_IN };

// The inputs: constants when shapes are inferred, tensors when it runs.
typedef struct Source { const Node *node; const Weight *weights[N_IN]; const KernelContext *context; } Source;

static bool is_there(const Source *s, int i) { return node_has_input(s->node, i); }
static double read(const Source *s, int i, int64_t e) { return s->context ? in_f(s->context, i, e) : weight_read_float(s->weights[i], e); }

typedef struct Rectangle { float top, left, bottom, right; } Rectangle;

static Rectangle rectangle(const Source *s, int64_t box) {
  float v[4];
  for (int i = 0; i < 4; i++) v[i] = (float)read(s, IN_BOXES, 4 * box + i);
  if (((const NonMaxAttrs *)s->node->attrs)->centre)
    return (Rectangle){v[1] - v[3] / 2, v[0] - v[2] / 2, v[1] + v[3] / 2, v[0] + v[2] / 2};
  return (Rectangle){fminf(v[0], v[2]), fminf(v[1], v[3]), fmaxf(v[0], v[2]), fmaxf(v[1], v[3])};
}

// Intersection over union, in f32 as the boxes are; 0 where either is empty.
static float overlap(Rectangle a, Rectangle b) {
  float width = fminf(a.right, b.right) - fmaxf(a.left, b.left), height = fminf(a.bottom, b.bottom) - fmaxf(a.top, b.top);
  float area_a = (a.right - a.left) * (a.bottom - a.top), area_b = (b.right - b.left) * (b.bottom - b.top);
  if (!(width > 0 && height > 0 && area_a > 0 && area_b > 0)) return 0;
  return width * height / (area_a + area_b - width * height);
}

typedef struct Candidate { double score; int64_t box; } Candidate;

static int better_first(const void *a, const void *b) {
  const Candidate *x = a, *y = b;
  if (x->score != y->score) return x->score > y->score ? -1 : 1;
  return x->box < y->box ? -1 : x->box > y->box;
}

// The boxes of one sample and class, best first, into `candidates`; how many.
static int64_t candidates_of(const Source *s, int64_t row, int64_t boxes, Candidate *out) {
  int64_t n = 0;
  for (int64_t i = 0; i < boxes; i++) {
    double score = read(s, IN_SCORES, row * boxes + i);
    if (score != score || (is_there(s, IN_SCORE) && !(score > read(s, IN_SCORE, 0)))) continue;
    out[n++] = (Candidate){score, i};
  }
  if (n) qsort(out, (size_t)n, sizeof *out, better_first);
  return n;
}

// Selects everywhere; writes the rows [sample, class, box] to output 0 of the context, if there is one, up to `capacity`. *out_n: how many there are.
static Status select_boxes(const Source *s, int64_t capacity, int64_t *out_n) {
  const Type *boxes = input_type(s->node, IN_BOXES), *scores = input_type(s->node, IN_SCORES);
  int64_t n = boxes->dims[1], classes = scores->dims[1];
  double most = is_there(s, IN_MAX) ? read(s, IN_MAX, 0) : 0, allowed = is_there(s, IN_OVERLAP) ? read(s, IN_OVERLAP, 0) : 0;
  Candidate *candidates = malloc(sizeof *candidates * (size_t)(n + 1));
  Rectangle *kept = malloc(sizeof *kept * (size_t)(n + 1));
  *out_n = 0;
  for (int64_t row = 0; candidates && kept && row < boxes->dims[0] * classes; row++) {
    int64_t m = candidates_of(s, row, n, candidates), n_kept = 0;
    for (int64_t i = 0; i < m && (double)n_kept < most; i++) {
      Rectangle box = rectangle(s, row / classes * n + candidates[i].box);
      bool free_of_others = true;
      for (int64_t k = 0; k < n_kept && free_of_others; k++) free_of_others = !((double)overlap(box, kept[k]) > allowed);
      if (!free_of_others) continue;
      kept[n_kept++] = box;
      const int64_t found[] = {row / classes, row % classes, candidates[i].box};
      for (int k = 0; s->context && *out_n < capacity && k < 3; k++) out_i(s->context, 0, 3 * *out_n + k, found[k]);
      ++*out_n;
    }
  }
  bool room = candidates && kept;
  free(candidates);
  free(kept);
  if (!room) FAIL(RESOURCE, s->node->name, "no memory for %lld boxes", (long long)n);
  return NULL;
}

static Status non_max_infer(Node *node, Arena *arena) {
  const Type *boxes = input_type(node, IN_BOXES), *scores = input_type(node, IN_SCORES);
  if (!dtype_is_float(boxes->dtype) || !dtype_is_float(scores->dtype) || boxes->rank != 3 || scores->rank != 3 || boxes->dims[2] != 4 ||
      scores->dims[0] != boxes->dims[0] || scores->dims[2] != boxes->dims[1])
    FAIL(MALFORMED, node->name, "boxes must be floats [samples, boxes, 4] and scores floats [samples, classes, boxes]");
  Source s = {.node = node};
  for (int i = 0; i < node->n_inputs; i++) {
    if (!node->inputs[i]) continue;
    if (i >= IN_MAX && type_elems(input_type(node, i)) != 1) FAIL(MALFORMED, node->name, "'%s' must be one number", node->inputs[i]->name);
    s.weights[i] = value_const(node->inputs[i]);
    if (!s.weights[i])
      FAIL(UNSUPPORTED, node->name, "'%s' must be a constant, since it decides the shape of the result; it is computed at run time", node->inputs[i]->name);
  }
  int64_t n;
  TRY(select_boxes(&s, 0, &n));
  node->outputs[0]->type = type_make(DTYPE_I64, 2, (const int64_t[]){n, 3});
  return NULL;
}

static Status non_max_run(const KernelContext *c) {
  int64_t n, planned = c->out[0].type->dims[0];
  TRY(select_boxes(&(Source){.node = c->node, .context = c}, planned, &n));
  if (n != planned) FAIL(MALFORMED, c->node->name, "%lld boxes are selected at run time; the plan was made for %lld", (long long)n, (long long)planned);
  return NULL;
}

const Op op_NonMaxSuppression = {.name = "NonMaxSuppression", .domain = "", .min_inputs = 2, .max_inputs = N_IN, .min_outputs = 1, .max_outputs = 1,
                                 .nondifferentiable = 31, .attrs = non_max_attrs, .attrs_bytes = sizeof(NonMaxAttrs), .infer = non_max_infer,
                                 .run_ref = non_max_run};
