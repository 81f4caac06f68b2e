// Norms of single parameters, exactly and wherever their parts lie: TensorNorms makes limbs (limbs.h) that only have to be added over ranks.
#include <string.h>

#include "cost.h"
#include "limbs.h"
#include "ops.h"
#include "tensor_piece.h"

// ---- Pieces -------------------------------------------------------------------------------------------------------------------

Status pieces_check(const Node *node, const Type *flat) {
  const PieceAttrs *a = node->attrs;
  int64_t end = 0, elems;
  if (flat->rank != 1 || __builtin_mul_overflow(flat->dims[0], a->parts, &elems)) FAIL(MALFORMED, node->name, "its operands must be flat buckets");
  if (a->parts > 1 && flat->dims[0] % CHUNK_ELEMS)
    FAIL(MALFORMED, node->name, "a shard of %lld elements is no whole number of chunks of %d", (long long)flat->dims[0], CHUNK_ELEMS);
  if (a->starts.n != a->sizes.n) FAIL(MALFORMED, node->name, "%lld starts for %lld sizes", (long long)a->starts.n, (long long)a->sizes.n);
  for (int64_t i = 0; i < a->starts.n; i++) {
    int64_t start = a->starts.items[i], n = a->sizes.items[i];
    if (start < end || start % CHUNK_ELEMS || start > elems || n > elems - start)
      FAIL(MALFORMED, node->name, "parameter %lld takes elements %lld to %lld; the one before ends at %lld, the bucket at %lld", (long long)i, (long long)start,
           (long long)(start + n), (long long)end, (long long)elems);
    end = start + n;
  }
  return STATUS_OK;
}

Piece piece_of(const PieceAttrs *a, int64_t i, int64_t elems, int64_t rank) {
  int64_t low = a->parts > 1 ? rank * elems : 0, start = a->starts.items[i], end = start + a->sizes.items[i];
  int64_t from = start > low ? start : low, to = end < low + elems ? end : low + elems;
  return to > from ? (Piece){from - low, to - from, from - start} : (Piece){0, 0, 0};
}

Status piece_rank(const KernelContext *c, int64_t *out) {
  int64_t parts = ((const PieceAttrs *)c->node->attrs)->parts, size = c->comm ? c->comm->size : 1;
  if (parts > 1 && parts != size) FAIL(MALFORMED, c->node->name, "planned for %lld ranks, run by %lld", (long long)parts, (long long)size);
  *out = parts > 1 ? c->comm->rank : 0;
  return STATUS_OK;
}

// ---- TensorNorms --------------------------------------------------------------------------------------------------------------

typedef struct NormsAttrs { PieceAttrs pieces; int64_t scaled; } NormsAttrs;
static const AttrSpec norms_attrs[] = {
    PIECE_ATTRS, {"scaled", ATTR_INT, offsetof(NormsAttrs, scaled), .min = 0, .max = 1, .help = "1: the last input is a factor of all elements, a double scalar"}, {0}};

static int norms_operands(const Node *node) { return node->n_inputs - (int)((const NormsAttrs *)node->attrs)->scaled; }

static Status norms_infer(Node *node, Arena *arena) {
  const PieceAttrs *a = node->attrs;
  int64_t n;
  int operands = norms_operands(node);
  const Value *scale = operands < node->n_inputs ? node->inputs[operands] : NULL;
  if (operands < 1 || (operands < node->n_inputs && (!scale || scale->type.dtype != DTYPE_F64 || scale->type.rank)))
    FAIL(MALFORMED, node->name, "with scaled = 1 the last of at least two inputs is a double scalar");
  for (int i = 0; i < operands; i++) {
    if (!node->inputs[i] || !dtype_is_float(node->inputs[i]->type.dtype)) FAIL(MALFORMED, node->name, "operand %d must be of floats", i);
    if (!type_same_shape(&node->inputs[i]->type, &node->inputs[0]->type)) FAIL(MALFORMED, node->name, "operands 0 and %d must have one size", i);
    TRY(pieces_check(node, &node->inputs[i]->type));
  }
  if (__builtin_mul_overflow(a->starts.n * LIMBS, operands, &n)) FAIL(MALFORMED, node->name, "too many parameters");
  node->outputs[0]->type = type_vector(DTYPE_I64, n);
  return STATUS_OK;
}

static Status norms_run(const KernelContext *c, bool fast) {
  const PieceAttrs *a = c->node->attrs;
  int64_t *limbs = c->out[0].data, rank;
  int operands = norms_operands(c->node);
  double scale = operands < c->n_in ? in_f(c, operands, 0) : 1;
  TRY(piece_rank(c, &rank));
  memset(limbs, 0, (size_t)type_bytes(c->out[0].type));
  for (int x = 0; x < operands; x++)
    for (int64_t i = 0; i < a->starts.n; i++, limbs += LIMBS) {
      Piece p = piece_of(a, i, in_elems(c, x), rank);
      limbs_add_squares(limbs, c, x, p.at, p.n, scale, fast);
    }
  return STATUS_OK;
}

static Status norms_ref(const KernelContext *c) { return norms_run(c, false); }
static Status norms_cpu(const KernelContext *c) { return norms_run(c, true); }

const Op op_TensorNorms = {
    .name = "TensorNorms", .domain = "tessera", .min_inputs = 1, .max_inputs = VARIADIC, .min_outputs = 1, .max_outputs = 1, .nondifferentiable = 1,
    .attrs = norms_attrs, .attrs_bytes = sizeof(NormsAttrs), .infer = norms_infer, .run_ref = norms_ref, .run_cpu = norms_cpu, .cost = cost_sum};
