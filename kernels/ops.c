#include "ops.h"

#include <string.h>

const Op *const op_table[] = {
#define OP(row) &op_##row,
#include "ops.def"
#undef OP
    NULL,
};

const Op *op_find(const char *domain, const char *name) {
  if (!domain || !strcmp(domain, "ai.onnx")) domain = "";
  for (const Op *const *op = op_table; *op; op++)
    if (!strcmp((*op)->name, name) && !strcmp((*op)->domain, domain)) return *op;
  return NULL;
}
