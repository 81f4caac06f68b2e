// Matrix products: MatMul, FusedMatMul (transposed operands without a transpose) and Gemm. One product never sums over micro-batches.
#include <string.h>

#include "cost.h"
#include "dnnl_primitive.h"
#include "kernel.h"
#include "matmul.h"
#include "ops.h"

// ---- What is multiplied: strides for every operand, batch axes joined where the layout allows -----------------------------------

// Joins neighbouring batch axes that are contiguous in both operands, drops axes of size 1, and, where B has no batch of its own and A's
// rows follow one another through the batch, makes one tall product of it: [B, T, D] x [D, F] is [B T, D] x [D, F].
static void product_simplify(Product *p) {
  int kept = 0;
  for (int d = 0; d < p->n_batch; d++) {
    if (p->batch[d] == 1) continue;
    int last = kept - 1;
    if (kept && p->a_batch[last] == p->batch[d] * p->a_batch[d] && p->b_batch[last] == p->batch[d] * p->b_batch[d]) {
      p->batch[last] *= p->batch[d];
      p->a_batch[last] = p->a_batch[d];
      p->b_batch[last] = p->b_batch[d];
      continue;
    }
    p->batch[kept] = p->batch[d];
    p->a_batch[kept] = p->a_batch[d];
    p->b_batch[kept++] = p->b_batch[d];
  }
  p->n_batch = kept;
  if (kept == 1 && p->b_batch[0] == 0 && (p->a_batch[0] == p->m * p->a_row || p->m == 1)) {
    if (p->m == 1) p->a_row = p->a_batch[0];
    p->m *= p->batch[0];
    p->n_batch = 0;
  }
}

static Status product_types(const Node *node, const Value *a, const Value *b) {
  if (a->type.dtype != b->type.dtype)
    FAIL(MALFORMED, node->name, "'%s' is %s and '%s' is %s; a product needs one type", a->name, dtype_name(a->type.dtype), b->name,
         dtype_name(b->type.dtype));
  if (!dtype_is_float(a->type.dtype) && !dtype_is_integer(a->type.dtype))
    FAIL(MALFORMED, node->name, "'%s' is %s; a product takes numbers", a->name, dtype_name(a->type.dtype));
  return NULL;
}

// Fills in `product` and the type of the result.
static Status product_make(const Node *node, bool trans_a, bool trans_b, Product *product, Type *out_type) {
  const Value *av = node->inputs[0], *bv = node->inputs[1];
  char a_text[160], b_text[160];
  TRY(product_types(node, av, bv));
  Type a = av->type, b = bv->type;
  bool a_vector = a.rank == 1, b_vector = b.rank == 1;
  if (!a.rank || !b.rank)
    FAIL(MALFORMED, node->name, "'%s' %s x '%s' %s: a scalar is no matrix", av->name, type_text(&a, a_text, sizeof a_text), bv->name,
         type_text(&b, b_text, sizeof b_text));
  if (a_vector) a = type_make(a.dtype, 2, (const int64_t[]){1, a.dims[0]});
  if (b_vector) b = type_make(b.dtype, 2, (const int64_t[]){b.dims[0], 1});
  int64_t a_rows = a.dims[a.rank - 2], a_cols = a.dims[a.rank - 1], b_rows = b.dims[b.rank - 2], b_cols = b.dims[b.rank - 1];
  Product p = {.dtype = a.dtype, .m = trans_a ? a_cols : a_rows, .k = trans_a ? a_rows : a_cols, .n = trans_b ? b_rows : b_cols,
               .a_row = trans_a ? 1 : a_cols, .a_col = trans_a ? a_cols : 1, .b_row = trans_b ? 1 : b_cols, .b_col = trans_b ? b_cols : 1};
  if (p.k != (trans_b ? b_cols : b_rows))
    FAIL(MALFORMED, node->name, "'%s' %s%s x '%s' %s%s: %lld columns meet %lld rows", av->name, type_text(&av->type, a_text, sizeof a_text),
         trans_a ? " transposed" : "", bv->name, type_text(&bv->type, b_text, sizeof b_text), trans_b ? " transposed" : "", (long long)p.k,
         (long long)(trans_b ? b_cols : b_rows));
  Type a_batch = a, b_batch = b, batch;
  a_batch.rank -= 2;
  b_batch.rank -= 2;
  TRY(type_broadcast(&a_batch, &b_batch, node->name, &batch));
  batch.dtype = a.dtype;
  p.n_batch = batch.rank;
  memcpy(p.batch, batch.dims, sizeof p.batch);
  type_strides(&a_batch, &batch, p.a_batch);
  type_strides(&b_batch, &batch, p.b_batch);
  for (int d = 0; d < batch.rank; d++) {
    p.a_batch[d] *= a_rows * a_cols;
    p.b_batch[d] *= b_rows * b_cols;
  }
  *out_type = batch;
  if (batch.rank + 2 > RANK_MAX) FAIL(UNSUPPORTED, node->name, "the product would have %d axes; at most %d are supported", batch.rank + 2, RANK_MAX);
  if (!a_vector) out_type->dims[out_type->rank++] = p.m;
  if (!b_vector) out_type->dims[out_type->rank++] = p.n;
  product_simplify(&p);
  *product = p;
  return NULL;
}

// ---- Reference -----------------------------------------------------------------------------------------------------------------

enum { BLOCK_ELEMS = 64 };   // result elements whose sums are open at once; each sum still runs over k in order

#define DEFINE_BLOCK(suffix, T, Sum)                                                                                            \
  static void block_##suffix(const Product *p, const void *a, const void *b, int64_t i, int64_t j, int64_t n, Sum sums[BLOCK_ELEMS]) { \
    const T *row = (const T *)a + i * p->a_row, *columns = (const T *)b + j * p->b_col;                                          \
    for (int64_t x = 0; x < n; x++) sums[x] = 0;                                                                                 \
    for (int64_t k = 0; k < p->k; k++) {                                                                                         \
      Sum factor = (Sum)row[k * p->a_col];                                                                                       \
      const T *from = columns + k * p->b_row;                                                                                    \
      for (int64_t x = 0; x < n; x++) sums[x] += factor * (Sum)from[x * p->b_col];                                               \
    }                                                                                                                            \
  }
DEFINE_BLOCK(f32, float, double)
DEFINE_BLOCK(f64, double, double)

// Any other float type, by element.
static void block_float(const Product *p, const void *a, const void *b, int64_t i, int64_t j, int64_t n, double sums[BLOCK_ELEMS]) {
  for (int64_t x = 0; x < n; x++) {
    sums[x] = 0;
    for (int64_t k = 0; k < p->k; k++)
      sums[x] += element_read(a, p->dtype, i * p->a_row + k * p->a_col) * element_read(b, p->dtype, k * p->b_row + (j + x) * p->b_col);
  }
}

// Integers wrap around as their type does.
static int64_t integer_sum(const Product *p, const void *a, const void *b, int64_t i, int64_t j) {
  uint64_t sum = 0;
  for (int64_t k = 0; k < p->k; k++)
    sum += (uint64_t)element_read_int(a, p->dtype, i * p->a_row + k * p->a_col) *
           (uint64_t)element_read_int(b, p->dtype, k * p->b_row + j * p->b_col);
  return (int64_t)sum;
}

// beta C of Gemm: element strides 0 where C is broadcast.
typedef struct Addend { const void *data; int64_t row, col; double beta; } Addend;

static void product_one(const Product *p, const void *a, const void *b, void *out, double alpha, const Addend *c) {
  double sums[BLOCK_ELEMS];
  for (int64_t i = 0; i < p->m; i++)
    for (int64_t j = 0; j < p->n; j += BLOCK_ELEMS) {
      int64_t n = p->n - j < BLOCK_ELEMS ? p->n - j : BLOCK_ELEMS;
      if (!dtype_is_float(p->dtype)) {
        for (int64_t x = 0; x < n; x++) {
          int64_t add = c ? (int64_t)c->beta * element_read_int(c->data, p->dtype, i * c->row + (j + x) * c->col) : 0;
          element_write_int(out, p->dtype, i * p->n + j + x, (int64_t)alpha * integer_sum(p, a, b, i, j + x) + add);
        }
        continue;
      }
      if (p->dtype == DTYPE_F32) block_f32(p, a, b, i, j, n, sums);
      else if (p->dtype == DTYPE_F64) block_f64(p, a, b, i, j, n, sums);
      else block_float(p, a, b, i, j, n, sums);
      for (int64_t x = 0; x < n; x++) {
        double add = c ? c->beta * element_read(c->data, p->dtype, i * c->row + (j + x) * c->col) : 0;
        element_write(out, p->dtype, i * p->n + j + x, alpha * sums[x] + add);
      }
    }
}

static void product_ref(const KernelContext *c, const Product *p, double alpha, const Addend *addend) {
  int64_t batches = 1, bytes = dtype_bytes(p->dtype);
  for (int d = 0; d < p->n_batch; d++) batches *= p->batch[d];
  for (int64_t at = 0; at < batches; at++) {
    int64_t rest = at, a = 0, b = 0;
    for (int d = p->n_batch - 1; d >= 0; d--) {
      int64_t index = rest % p->batch[d];
      rest /= p->batch[d];
      a += index * p->a_batch[d];
      b += index * p->b_batch[d];
    }
    product_one(p, (const char *)c->in[0].data + a * bytes, (const char *)c->in[1].data + b * bytes,
                (char *)c->out[0].data + at * p->m * p->n * bytes, alpha, addend);
  }
}

// ---- Through the matrix library --------------------------------------------------------------------------------------------------

static bool product_empty(const Product *p) {
  if (!p->m || !p->n || !p->k) return true;
  for (int d = 0; d < p->n_batch; d++)
    if (!p->batch[d]) return true;
  return false;
}

// Sizes (make = false) or primitives (make = true); nothing for an empty product, which needs no library.
static Status product_prepare(KernelPrepare *prepare, const Product *p, float alpha, bool bias, bool make) {
  if (product_empty(p)) return NULL;
  return library_matmul(prepare, &(LibraryMatmul){.product = *p, .alpha = alpha, .bias = bias}, make);
}

// No terms or no elements: zeros, before anything is added.
static Status product_run(const KernelContext *c, const void *bias) {
  if (!c->prepared) {
    if (out_elems(c, 0)) memset(c->out[0].data, 0, (size_t)type_bytes(c->out[0].type));
    return NULL;
  }
  void *const pointers[LIBRARY_POINTERS] = {c->in[0].data, c->in[1].data, c->out[0].data, (void *)bias};
  return library_call_run(c->prepared, c->node, pointers, c->workspace, c->scratch);
}

// The product's flops, one product for all of the batch that is one tall matrix.
static void product_cost(const Product *p, NodeCost *cost) {
  double products = 1;
  for (int d = 0; d < p->n_batch; d++) products *= (double)p->batch[d];
  cost_add_product(cost, p->m, p->n, p->k, products);
  cost->trans_a = p->a_row == 1 && p->m > 1 && p->k > 1;
  cost->trans_b = p->b_row == 1 && p->k > 1 && p->n > 1;
}

// ---- Gradients -----------------------------------------------------------------------------------------------------------------

static Value *reshape(Emit *e, Value *v, int rank, const int64_t *dims) {
  if (!v || (v->type.rank == rank && !memcmp(v->type.dims, dims, sizeof(int64_t) * (size_t)rank))) return v;
  return emit(e, &op_Reshape, INPUTS(v, emit_int64s(e, "shape", dims, rank)), ATTRS(A_INT("allowzero", 1)));
}

static Value *product(Emit *e, Value *a, Value *b, bool trans_a, bool trans_b, float alpha) {
  if (!a || !b) return NULL;
  return emit(e, &op_FusedMatMul, INPUTS(a, b), ATTRS(A_INT("transA", trans_a), A_INT("transB", trans_b), A_FLOAT("alpha", alpha)));
}

// Operands as matrices of rank >= 2; where B is one matrix for all of A's batch, A and dY become tall matrices.
static Status product_grad(Grad *g, bool trans_a, bool trans_b, float alpha) {
  Emit *e = g->emit;
  Value *a = g->node->inputs[0], *b = g->node->inputs[1], *dy = g->dy[0];
  if (!dy || (!g->wanted[0] && !g->wanted[1])) return NULL;
  Type at = a->type, bt = b->type, yt = dy->type;
  if (at.rank == 1) {
    at = type_make(at.dtype, 2, (const int64_t[]){1, at.dims[0]});
    yt.rank++;                                       // the row axis that the result has not
    memmove(yt.dims + yt.rank - 1, yt.dims + yt.rank - 2, b->type.rank > 1 ? sizeof(int64_t) : 0);
    yt.dims[yt.rank - (b->type.rank > 1 ? 2 : 1)] = 1;
  }
  if (bt.rank == 1) {
    bt = type_make(bt.dtype, 2, (const int64_t[]){bt.dims[0], 1});
    yt.dims[yt.rank++] = 1;
  }
  if (bt.rank == 2 && at.rank > 2 && !trans_a) {
    int64_t columns = at.dims[at.rank - 1], n = yt.dims[yt.rank - 1], rows = 1;
    for (int d = 0; d + 1 < at.rank; d++) rows *= at.dims[d];
    at = type_make(at.dtype, 2, (const int64_t[]){rows, columns});
    yt = type_make(yt.dtype, 2, (const int64_t[]){rows, n});
  }
  Value *a2 = reshape(e, a, at.rank, at.dims), *b2 = reshape(e, b, bt.rank, bt.dims);
  dy = reshape(e, dy, yt.rank, yt.dims);
  if (g->wanted[0]) {
    Value *da = trans_a ? product(e, b2, dy, trans_b, true, alpha) : product(e, dy, b2, false, !trans_b, alpha);
    g->dx[0] = reshape(e, da ? emit_sum_to(e, da, &at) : NULL, a->type.rank, a->type.dims);
  }
  if (g->wanted[1]) {
    Value *db = trans_b ? product(e, dy, a2, true, trans_a, alpha) : product(e, a2, dy, !trans_a, false, alpha);
    g->dx[1] = reshape(e, db ? emit_sum_to(e, db, &bt) : NULL, b->type.rank, b->type.dims);
  }
  return NULL;
}

// ---- MatMul --------------------------------------------------------------------------------------------------------------------

static Status matmul_infer(Node *node, Arena *arena) {
  Product p;
  return product_make(node, false, false, &p, &node->outputs[0]->type);
}

static Status matmul_grad(Grad *g) { return product_grad(g, false, false, 1); }

static Status matmul_ref(const KernelContext *c) {
  Product p;
  Type type;
  TRY(product_make(c->node, false, false, &p, &type));
  product_ref(c, &p, 1, NULL);
  return NULL;
}

static Status matmul_build(KernelPrepare *prepare, bool make) {
  Product p;
  Type type;
  TRY(product_make(prepare->node, false, false, &p, &type));
  return product_prepare(prepare, &p, 1, false, make);
}
static Status matmul_workspace(KernelPrepare *prepare) { return matmul_build(prepare, false); }
static Status matmul_prepare(KernelPrepare *prepare) { return matmul_build(prepare, true); }
static Status product_cpu(const KernelContext *c) { return product_run(c, NULL); }

static void matmul_cost(const Node *node, NodeCost *cost) {
  Product p;
  Type type;
  Status status = product_make(node, false, false, &p, &type);   // types have been inferred: it holds
  if (!status) product_cost(&p, cost);
  status_free(status);
}

const Op op_MatMul = {
    .name = "MatMul", .domain = "", .policy = POLICY_LOW, .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .infer = matmul_infer,
    .grad = matmul_grad, .run_ref = matmul_ref, .run_cpu = product_cpu, .prepare = matmul_prepare, .workspace = matmul_workspace,
    .cost = matmul_cost};

// ---- FusedMatMul ---------------------------------------------------------------------------------------------------------------

typedef struct FusedAttrs { int64_t trans_a, trans_b; float alpha; } FusedAttrs;
static const AttrSpec fused_attrs[] = {
    {"transA", ATTR_INT, offsetof(FusedAttrs, trans_a), .min = 0, .max = 1, .help = "swap the last two axes of A"},
    {"transB", ATTR_INT, offsetof(FusedAttrs, trans_b), .min = 0, .max = 1, .help = "swap the last two axes of B"},
    {"alpha", ATTR_FLOAT, offsetof(FusedAttrs, alpha), .default_float = 1, .help = "factor of the product"},
    {0},
};

static Status fused_product(const Node *node, Product *p, Type *type) {
  const FusedAttrs *a = node->attrs;
  if (node->inputs[0]->type.rank < 2 || node->inputs[1]->type.rank < 2) FAIL(MALFORMED, node->name, "both operands must have two axes or more");
  return product_make(node, a->trans_a, a->trans_b, p, type);
}

static Status fused_infer(Node *node, Arena *arena) {
  Product p;
  return fused_product(node, &p, &node->outputs[0]->type);
}

static Status fused_grad(Grad *g) {
  const FusedAttrs *a = g->node->attrs;
  return product_grad(g, a->trans_a, a->trans_b, a->alpha);
}

static Status fused_ref(const KernelContext *c) {
  Product p;
  Type type;
  TRY(fused_product(c->node, &p, &type));
  product_ref(c, &p, ((const FusedAttrs *)c->node->attrs)->alpha, NULL);
  return NULL;
}

static Status fused_build(KernelPrepare *prepare, bool make) {
  Product p;
  Type type;
  TRY(fused_product(prepare->node, &p, &type));
  return product_prepare(prepare, &p, ((const FusedAttrs *)prepare->node->attrs)->alpha, false, make);
}
static Status fused_workspace(KernelPrepare *prepare) { return fused_build(prepare, false); }
static Status fused_prepare(KernelPrepare *prepare) { return fused_build(prepare, true); }

static void fused_cost(const Node *node, NodeCost *cost) {
  Product p;
  Type type;
  Status status = fused_product(node, &p, &type);
  if (!status) product_cost(&p, cost);
  status_free(status);
}

const Op op_FusedMatMul = {
    .name = "FusedMatMul", .domain = "tessera", .policy = POLICY_LOW, .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1, .attrs = fused_attrs,
    .attrs_bytes = sizeof(FusedAttrs), .infer = fused_infer, .grad = fused_grad, .run_ref = fused_ref,
    .run_cpu = product_cpu, .prepare = fused_prepare, .workspace = fused_workspace, .cost = fused_cost};

// ---- Gemm ----------------------------------------------------------------------------------------------------------------------

typedef struct GemmAttrs { float alpha, beta; int64_t trans_a, trans_b; } GemmAttrs;
static const AttrSpec gemm_attrs[] = {
    {"alpha", ATTR_FLOAT, offsetof(GemmAttrs, alpha), .default_float = 1, .help = "factor of the product"},
    {"beta", ATTR_FLOAT, offsetof(GemmAttrs, beta), .default_float = 1, .help = "factor of C"},
    {"transA", ATTR_INT, offsetof(GemmAttrs, trans_a), .min = 0, .max = 1, .help = "transpose A"},
    {"transB", ATTR_INT, offsetof(GemmAttrs, trans_b), .min = 0, .max = 1, .help = "transpose B"},
    {0},
};

static const Value *gemm_c(const Node *node) { return node->n_inputs > 2 ? node->inputs[2] : NULL; }

static Status gemm_product(const Node *node, Product *p, Type *type) {
  const GemmAttrs *a = node->attrs;
  if (node->inputs[0]->type.rank != 2 || node->inputs[1]->type.rank != 2)
    FAIL(MALFORMED, node->name, "'%s' and '%s' must be matrices; they have %d and %d axes", node->inputs[0]->name, node->inputs[1]->name,
         node->inputs[0]->type.rank, node->inputs[1]->type.rank);
  return product_make(node, a->trans_a, a->trans_b, p, type);
}

static Status gemm_infer(Node *node, Arena *arena) {
  Product p;
  Type type, joined;
  TRY(gemm_product(node, &p, &type));
  const Value *c = gemm_c(node);
  if (c) {
    char have[160], want[160];
    TRY(type_broadcast(&c->type, &type, node->name, &joined));
    if (c->type.dtype != type.dtype || !type_same_shape(&joined, &type))
      FAIL(MALFORMED, node->name, "C '%s' %s does not broadcast to %s", c->name, type_text(&c->type, have, sizeof have),
           type_text(&type, want, sizeof want));
  }
  node->outputs[0]->type = type;
  return NULL;
}

// C for the reference: strides 0 along the axes that it is broadcast over.
static Addend gemm_addend(const KernelContext *c) {
  int64_t strides[RANK_MAX];
  type_strides(c->in[2].type, c->out[0].type, strides);
  return (Addend){.data = c->in[2].data, .row = strides[0], .col = strides[1], .beta = ((const GemmAttrs *)c->node->attrs)->beta};
}

static Status gemm_ref(const KernelContext *c) {
  Product p;
  Type type;
  TRY(gemm_product(c->node, &p, &type));
  Addend addend;
  if (has_input(c, 2)) addend = gemm_addend(c);
  product_ref(c, &p, ((const GemmAttrs *)c->node->attrs)->alpha, has_input(c, 2) ? &addend : NULL);
  return NULL;
}

// The library adds C itself where it is one row and neither factor stands in the way; otherwise it is added afterwards.
static bool gemm_fuses_c(const Node *node, const Type *out) {
  const GemmAttrs *a = node->attrs;
  const Value *c = gemm_c(node);
  return c && a->alpha == 1 && a->beta == 1 && type_elems(&c->type) == out->dims[1] && c->type.rank && c->type.dims[c->type.rank - 1] == out->dims[1];
}

static Status gemm_build(KernelPrepare *prepare, bool make) {
  Product p;
  Type type;
  TRY(gemm_product(prepare->node, &p, &type));
  return product_prepare(prepare, &p, ((const GemmAttrs *)prepare->node->attrs)->alpha, gemm_fuses_c(prepare->node, &type), make);
}
static Status gemm_workspace(KernelPrepare *prepare) { return gemm_build(prepare, false); }
static Status gemm_prepare(KernelPrepare *prepare) { return gemm_build(prepare, true); }

static void gemm_cost(const Node *node, NodeCost *cost) {
  Product p;
  Type type;
  Status status = gemm_product(node, &p, &type);
  if (!status) {
    product_cost(&p, cost);
    if (gemm_c(node) && !gemm_fuses_c(node, &type)) cost->work[WORK_ARITHMETIC] += (double)type_elems(&type);
  }
  status_free(status);
}

static Status gemm_cpu(const KernelContext *c) {
  bool fused = c->prepared && gemm_fuses_c(c->node, c->out[0].type);
  TRY(product_run(c, fused ? c->in[2].data : NULL));
  if (!has_input(c, 2) || fused || !out_elems(c, 0)) return NULL;
  Addend add = gemm_addend(c);
  int64_t rows = c->out[0].type->dims[0], columns = c->out[0].type->dims[1];
  for (int64_t i = 0; i < rows; i++) {
    float *row = (float *)c->out[0].data + i * columns;
    const float *from = (const float *)add.data + i * add.row;
    if (add.col) c->loops->axpy(row, (float)add.beta, from, columns);
    else c->loops->add_s(row, row, (float)add.beta * *from, columns);
  }
  return NULL;
}

static Value *gemm(Emit *e, Value *a, Value *b, bool trans_a, bool trans_b, float alpha) {
  return emit(e, &op_Gemm, INPUTS(a, b), ATTRS(A_INT("transA", trans_a), A_INT("transB", trans_b), A_FLOAT("alpha", alpha)));
}

static Status gemm_grad(Grad *g) {
  const GemmAttrs *attrs = g->node->attrs;
  Emit *e = g->emit;
  Value *a = g->node->inputs[0], *b = g->node->inputs[1], *dy = g->dy[0];
  bool ta = attrs->trans_a, tb = attrs->trans_b;
  if (!dy) return NULL;
  if (g->wanted[0]) g->dx[0] = ta ? gemm(e, b, dy, tb, true, attrs->alpha) : gemm(e, dy, b, false, !tb, attrs->alpha);
  if (g->wanted[1]) g->dx[1] = tb ? gemm(e, dy, a, true, ta, attrs->alpha) : gemm(e, a, dy, !ta, false, attrs->alpha);
  if (gemm_c(g->node) && g->wanted[2]) {
    Value *dc = emit_sum_to(e, dy, &gemm_c(g->node)->type);
    if (attrs->beta != 1 && dc) dc = emit(e, &op_Mul, INPUTS(dc, emit_float(e, "beta", dy->type.dtype, attrs->beta)), NULL);
    g->dx[2] = dc;
  }
  return NULL;
}

const Op op_Gemm = {
    .name = "Gemm", .domain = "", .policy = POLICY_LOW, .min_inputs = 2, .max_inputs = 3, .min_outputs = 1, .max_outputs = 1, .attrs = gemm_attrs,
    .attrs_bytes = sizeof(GemmAttrs), .infer = gemm_infer, .grad = gemm_grad, .run_ref = gemm_ref,
    .run_cpu = gemm_cpu, .prepare = gemm_prepare, .workspace = gemm_workspace, .cost = gemm_cost};
