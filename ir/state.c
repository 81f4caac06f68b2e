#include "state.h"

Type state_piece_type(StateShape shape, Dtype dtype, const Type *param) {
  Type type = *param;
  type.dtype = dtype;
  if (shape == STATE_BLOCKS) return type_vector(dtype, (type_elems(param) + STATE_BLOCK_ELEMS - 1) / STATE_BLOCK_ELEMS);
  if (shape == STATE_ROWS && param->rank >= 1) type.dims[param->rank - 1] = 1;
  if (shape == STATE_COLUMNS && param->rank >= 2) type.dims[param->rank - 2] = 1;
  return type;
}

int64_t state_start(StateShape shape, const Bucket *bucket, int slot) {
  int64_t at = 0;
  if (state_is_cut(shape)) return (slot == bucket->n_params ? bucket->elems : bucket->starts[slot]) / (shape == STATE_BLOCKS ? STATE_BLOCK_ELEMS : 1);
  for (int i = 0; i < slot; i++) {
    Type piece = state_piece_type(shape, bucket->dtype, &bucket->types[i]);
    at += type_elems(&piece);
  }
  return at;
}
