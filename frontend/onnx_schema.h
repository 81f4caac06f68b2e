// What the standard says about each operator: the table that tools/setup generates from onnx.defs. Constant data, any thread.
#ifndef TESSERA_ONNX_SCHEMA_H
#define TESSERA_ONNX_SCHEMA_H

#include <stdbool.h>
#include <stddef.h>

typedef struct SchemaAttr {
  const char *name;
  int type;                      // Onnx__AttributeProto__AttributeType
  bool required;
  const char *default_text;      // "" where there is none; lists with commas
} SchemaAttr;

typedef struct SchemaOp {
  const char *domain, *name;     // "" = ai.onnx
  int since;                     // first opset of this version
  bool deprecated;
  int min_inputs, max_inputs, min_outputs, max_outputs;    // INT_MAX: any number
  int first_attr, n_attrs;
} SchemaOp;

int schema_opset_newest(void);                                               // of ai.onnx that the table knows
bool schema_knows_domain(const char *domain);
const SchemaOp *schema_find(const char *domain, const char *name, int opset);  // the version in force; NULL: none yet, or unknown
const SchemaAttr *schema_attr(const SchemaOp *op, const char *name);           // NULL: it has none of that name
const SchemaAttr *schema_attr_at(const SchemaOp *op, int index);               // 0 <= index < op->n_attrs

#endif
