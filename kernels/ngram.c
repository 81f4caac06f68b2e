// TfIdfVectorizer over integers: how often each n-gram of a pool occurs in each row of X.
#include <string.h>

#include "index_input.h"
#include "ops.h"

typedef struct NgramAttrs {
  int64_t longest, skips, shortest;
  const char *mode;
  AttrInts starts, places, pool;
  AttrFloats weights;
  AttrStrings texts;
} NgramAttrs;
static const AttrSpec ngram_attrs[] = {
    {"max_gram_length", ATTR_INT, offsetof(NgramAttrs, longest), .required = true, .min = 1, .max = INT32_MAX, .help = "longest n-gram"},
    {"max_skip_count", ATTR_INT, offsetof(NgramAttrs, skips), .required = true, .min = 0, .max = INT32_MAX, .help = "elements left out between two of an n-gram"},
    {"min_gram_length", ATTR_INT, offsetof(NgramAttrs, shortest), .required = true, .min = 1, .max = INT32_MAX, .help = "shortest n-gram"},
    {"mode", ATTR_STRING, offsetof(NgramAttrs, mode), .required = true, .help = "TF: counts; IDF: 1 or 0, weighted; TFIDF: counts, weighted"},
    {"ngram_counts", ATTR_INTS, offsetof(NgramAttrs, starts), .required = true, .min = 0, .max = INT32_MAX, .help = "where 1-grams, 2-grams, ... begin in the pool"},
    {"ngram_indexes", ATTR_INTS, offsetof(NgramAttrs, places), .required = true, .min = 0, .max = INT32_MAX, .help = "column of each n-gram"},
    {"pool_int64s", ATTR_INTS, offsetof(NgramAttrs, pool), .help = "the n-grams, one behind the other"},
    {"pool_strings", ATTR_STRINGS, offsetof(NgramAttrs, texts), .help = "not supported"},
    {"weights", ATTR_FLOATS, offsetof(NgramAttrs, weights), .help = "of each column"},
    {0}};

// N-grams of one length in the pool: their elements, their number, and that of all shorter ones.
typedef struct Section { const int64_t *items; int64_t n, before; } Section;

static Section section_of(const NgramAttrs *a, int64_t length) {
  int64_t before = 0;
  for (int64_t size = 1; size <= a->starts.n; size++) {
    int64_t from = a->starts.items[size - 1], end = size < a->starts.n ? a->starts.items[size] : a->pool.n;
    if (size == length) return (Section){a->pool.items + from, (end - from) / size, before};
    before += (end - from) / size;
  }
  return (Section){0};
}

static int64_t columns_of(const NgramAttrs *a) {
  int64_t most = -1;
  for (int64_t i = 0; i < a->places.n; i++) most = a->places.items[i] > most ? a->places.items[i] : most;
  return most + 1;
}

static Status ngram_infer(Node *node, Arena *arena) {
  const NgramAttrs *a = node->attrs;
  const Type *x = input_type(node, 0);
  if (a->texts.n) FAIL(UNSUPPORTED, node->name, "TfIdfVectorizer: n-grams of strings are not supported; those of integers (pool_int64s) are");
  if (strcmp(a->mode, "TF") && strcmp(a->mode, "IDF") && strcmp(a->mode, "TFIDF"))
    FAIL(MALFORMED, node->name, "attribute mode = \"%s\" must be TF, IDF or TFIDF", a->mode);
  if (!dtype_is_integer(x->dtype) || x->rank > 2) FAIL(MALFORMED, node->name, "TfIdfVectorizer: integers with one or two axes are needed");
  int64_t total = 0;
  for (int64_t i = 0; i < a->starts.n; i++) {
    int64_t from = a->starts.items[i], end = i + 1 < a->starts.n ? a->starts.items[i + 1] : a->pool.n;
    if (from > end || end > a->pool.n || (end - from) % (i + 1))
      FAIL(MALFORMED, node->name, "ngram_counts: elements %lld to %lld of a pool of %lld are no %lld-grams", (long long)from, (long long)end,
           (long long)a->pool.n, (long long)(i + 1));
    total += (end - from) / (i + 1);
  }
  int64_t columns = columns_of(a);
  if (total != a->places.n || (a->weights.n && a->weights.n != columns))
    FAIL(MALFORMED, node->name, "the pool has %lld n-grams, and there are %lld ngram_indexes and %lld weights", (long long)total, (long long)a->places.n,
         (long long)a->weights.n);
  node->outputs[0]->type = x->rank == 2 ? type_make(DTYPE_F32, 2, (const int64_t[]){x->dims[0], columns}) : type_vector(DTYPE_F32, columns);
  return NULL;
}

// Number of the n-gram at X's element `first`, every `step`-th one; -1: it is in no pool. Of equal ones the last counts.
static int64_t find_ngram(const KernelContext *c, const Section *s, int64_t length, int64_t first, int64_t step) {
  for (int64_t i = s->n; i-- > 0;) {
    int64_t k = 0;
    while (k < length && s->items[i * length + k] == in_i(c, 0, first + k * step)) k++;
    if (k == length) return s->before + i;
  }
  return -1;
}

// Adds 1 to the counts of all n-grams of `length` in the row [first, first + n), their elements `step` apart.
static void count_ngrams(const KernelContext *c, int64_t length, int64_t first, int64_t n, int64_t step, float *counts) {
  const NgramAttrs *a = c->node->attrs;
  Section s = section_of(a, length);
  for (int64_t i = 0; s.n && i + (length - 1) * step < n; i++) {
    int64_t found = find_ngram(c, &s, length, first + i, step);
    if (found >= 0) counts[a->places.items[found]] += 1;
  }
}

static Status ngram_run(const KernelContext *c) {
  const NgramAttrs *a = c->node->attrs;
  const Type *x = c->in[0].type;
  int64_t columns = columns_of(a), rows = x->rank == 2 ? x->dims[0] : 1, n = x->rank == 2 ? x->dims[1] : type_elems(x);
  float *y = c->out[0].data;
  for (int64_t i = 0; i < rows * columns; i++) y[i] = 0;
  for (int64_t row = 0; row < rows; row++)
    for (int64_t length = a->shortest; length <= a->longest && length <= a->starts.n; length++)
      for (int64_t step = 1; step <= (length == 1 ? 1 : a->skips + 1) && step <= n; step++)       // nothing lies within a 1-gram
        count_ngrams(c, length, row * n, n, step, y + row * columns);
  for (int64_t i = 0; strcmp(a->mode, "TF") && i < rows * columns; i++) {
    float weight = a->weights.n ? a->weights.items[i % columns] : 1;
    y[i] = weight * (!strcmp(a->mode, "IDF") && y[i] > 0 ? 1 : y[i]);
  }
  return NULL;
}

const Op op_TfIdfVectorizer = {.name = "TfIdfVectorizer", .domain = "", .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1,
                               .nondifferentiable = 1, .attrs = ngram_attrs, .attrs_bytes = sizeof(NgramAttrs), .infer = ngram_infer,
                               .run_ref = ngram_run};
