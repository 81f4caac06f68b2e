// Det: determinants of the innermost matrices, and the gradient, which also holds where a matrix is singular.
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "index_input.h"
#include "ops.h"

enum { ROWS_MAX = 32 };   // a copy of the matrix lies on the stack
typedef struct Matrix { int n; double a[ROWS_MAX][ROWS_MAX]; } Matrix;

static Status check_matrices(const Node *node, const Type *x) {
  int r = x->rank;
  if (!dtype_is_float(x->dtype) || r < 2 || x->dims[r - 1] != x->dims[r - 2]) {
    char text[160];
    FAIL(MALFORMED, node->name, "%s: %s holds no square matrices of floats", node->op->name, type_text(x, text, sizeof text));
  }
  if (x->dims[r - 1] > ROWS_MAX) FAIL(UNSUPPORTED, node->name, "%s: matrices of %" PRId64 " rows; at most %d are supported", node->op->name, x->dims[r - 1], ROWS_MAX);
  return STATUS_OK;
}

static Status det_infer(Node *node, Arena *arena) {
  Type y = *input_type(node, 0);
  TRY(check_matrices(node, &y));
  y.rank -= 2;
  node->outputs[0]->type = y;
  return STATUS_OK;
}

static void matrix_read(const KernelContext *c, int64_t index, Matrix *m) {
  m->n = (int)c->in[0].type->dims[c->in[0].type->rank - 1];
  for (int i = 0; i < m->n; i++)
    for (int j = 0; j < m->n; j++) m->a[i][j] = in_f(c, 0, (index * m->n + i) * m->n + j);
}

// By elimination with the greatest pivot of each column; m is used up.
static double determinant(Matrix *m) {
  double det = 1;
  for (int k = 0; k < m->n; k++) {
    int pivot = k;
    for (int i = k + 1; i < m->n; i++)
      if (fabs(m->a[i][k]) > fabs(m->a[pivot][k])) pivot = i;
    if (m->a[pivot][k] == 0) return 0;
    if (pivot != k) {
      double row[ROWS_MAX];
      memcpy(row, m->a[k], sizeof row);
      memcpy(m->a[k], m->a[pivot], sizeof row);
      memcpy(m->a[pivot], row, sizeof row);
      det = -det;
    }
    det *= m->a[k][k];
    for (int i = k + 1; i < m->n; i++) {
      double factor = m->a[i][k] / m->a[k][k];
      for (int j = k; j < m->n; j++) m->a[i][j] -= factor * m->a[k][j];
    }
  }
  return det;
}

static Status det_run(const KernelContext *c) {
  Matrix m;
  for (int64_t t = 0, count = out_elems(c, 0); t < count; t++) {
    matrix_read(c, t, &m);
    out_f(c, 0, t, determinant(&m));
  }
  return STATUS_OK;
}

static Status det_grad(Grad *g) {
  g->dx[0] = emit(g->emit, &op_DetGrad, INPUTS(g->node->inputs[0], g->dy[0]), NULL);
  return STATUS_OK;
}

const Op op_Det = {.name = "Det", .domain = "", .policy = POLICY_F32, .min_inputs = 1, .max_inputs = 1, .min_outputs = 1, .max_outputs = 1, .infer = det_infer,
                   .grad = det_grad, .run_ref = det_run};

// ---- DetGrad: inputs x, dy. Each element's gradient is dy times its cofactor, the signed determinant without its row and column. ----

static Status det_grad_infer(Node *node, Arena *arena) {
  const Type *x = input_type(node, 0);
  TRY(check_matrices(node, x));
  Type y = *x;
  y.rank -= 2;
  if (!type_equal(&y, input_type(node, 1))) FAIL(MALFORMED, node->name, "DetGrad: dy must have the type of Det's result");
  node->outputs[0]->type = *x;
  return STATUS_OK;
}

static void matrix_without(const Matrix *m, int row, int column, Matrix *out) {
  out->n = m->n - 1;
  for (int i = 0; i < out->n; i++)
    for (int j = 0; j < out->n; j++) out->a[i][j] = m->a[i + (i >= row)][j + (j >= column)];
}

static Status det_grad_run(const KernelContext *c) {
  Matrix m, rest;
  for (int64_t t = 0, count = in_elems(c, 1); t < count; t++) {
    matrix_read(c, t, &m);
    for (int i = 0; i < m.n; i++)
      for (int j = 0; j < m.n; j++) {
        matrix_without(&m, i, j, &rest);
        double cofactor = determinant(&rest);
        out_f(c, 0, (t * m.n + i) * m.n + j, in_f(c, 1, t) * ((i + j) % 2 ? -cofactor : cofactor));
      }
  }
  return STATUS_OK;
}

const Op op_DetGrad = {.name = "DetGrad", .domain = "tessera", .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 1,
                       .infer = det_grad_infer, .run_ref = det_grad_run};
