// What a matrix product multiplies, free of operators: shared by matmul.c and the matrix library's file.
#ifndef TESSERA_MATMUL_H
#define TESSERA_MATMUL_H

#include "../ir/type.h"

// out[batch][m][n] = sum over k of a[batch][m][k] b[batch][k][n]; out is row-major. All strides in elements; 0 where broadcast.
typedef struct Product {
  Dtype dtype;
  int64_t m, n, k;
  int64_t a_row, a_col, b_row, b_col;
  int n_batch;
  int64_t batch[RANK_MAX], a_batch[RANK_MAX], b_batch[RANK_MAX];
} Product;

#endif
