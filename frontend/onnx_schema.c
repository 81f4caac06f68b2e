#include "onnx_schema.h"

#include <limits.h>
#include <string.h>

#include "onnx.pb-c.h"

static const SchemaAttr attr_table[] = {
#define ONNX_ATTR(name, type, required, text) {name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__##type, required, text},
#include "onnx_ops.inc"
#undef ONNX_ATTR
};

static const SchemaOp op_rows[] = {
#define ONNX_OP(domain, name, since, deprecated, min_in, max_in, min_out, max_out, first, n) \
  {domain, name, since, deprecated, min_in, max_in, min_out, max_out, first, n},
#include "onnx_ops.inc"
#undef ONNX_OP
};
enum { N_ROWS = sizeof op_rows / sizeof *op_rows };

int schema_opset_newest(void) {
#define ONNX_OPSET_NEWEST(n) return n;
#include "onnx_ops.inc"
#undef ONNX_OPSET_NEWEST
}

bool schema_knows_domain(const char *domain) {
  for (int i = 0; i < N_ROWS; i++)
    if (!strcmp(op_rows[i].domain, domain)) return true;
  return false;
}

static int compare(const SchemaOp *row, const char *domain, const char *name, int since) {
  int c = strcmp(row->domain, domain);
  if (!c) c = strcmp(row->name, name);
  return c ? c : row->since - since;
}

// The table is sorted by domain, name, since: the last row that is not greater than (domain, name, opset).
const SchemaOp *schema_find(const char *domain, const char *name, int opset) {
  int low = 0, high = N_ROWS;
  while (low < high) {
    int middle = (low + high) / 2;
    if (compare(&op_rows[middle], domain, name, opset) <= 0) low = middle + 1;
    else high = middle;
  }
  if (!low) return NULL;
  const SchemaOp *row = &op_rows[low - 1];
  return compare(row, domain, name, row->since) ? NULL : row;
}

const SchemaAttr *schema_attr(const SchemaOp *op, const char *name) {
  for (int i = 0; i < op->n_attrs; i++)
    if (!strcmp(attr_table[op->first_attr + i].name, name)) return &attr_table[op->first_attr + i];
  return NULL;
}

const SchemaAttr *schema_attr_at(const SchemaOp *op, int index) { return &attr_table[op->first_attr + index]; }
