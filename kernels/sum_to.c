#include "ops.h"

Value *emit_sum_to(Emit *e, Value *dy, const Type *to) {
  if (e->status || type_same_shape(&dy->type, to)) return dy;
  int lead = dy->type.rank - to->rank;
  int64_t axes[RANK_MAX], n_axes = 0;
  for (int i = 0; i < dy->type.rank; i++)
    if (i < lead || (to->dims[i - lead] == 1 && dy->type.dims[i] != 1)) axes[n_axes++] = i;
  Value *sum = dy;
  if (n_axes) {
    sum = emit(e, &op_ReduceSum, INPUTS(dy, emit_int64s(e, "axes", axes, n_axes)), ATTRS(A_INT("keepdims", lead == 0)));
    if (!sum || type_same_shape(&sum->type, to)) return sum;
  }
  Value *shape = emit_int64s(e, "shape", to->dims, to->rank);
  return emit(e, &op_Reshape, INPUTS(sum, shape), NULL);
}
