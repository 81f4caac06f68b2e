// Cases of tests/ops with their reference results as one JSON array, for a comparison with ONNX's own evaluator.
#ifndef TESSERA_OP_JSON_H
#define TESSERA_OP_JSON_H

#include "op_case.h"

typedef struct OpJson OpJson;
OpJson *op_json_open(void);
MUST_USE Status op_json_case(const char *file, int line_number, const char *line, Arena *arena, OpJson *json);   // skips cases that must fail
int op_json_close(OpJson *json, const char *path);   // writes and frees; 0 on success

#endif
