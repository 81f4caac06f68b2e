// Text -> graph: reads what graph_print writes, and any text that onnx.parser reads as far as Tessera has a meaning for it (one graph, no
// functions or subgraphs, static shapes, known operators, opset IR_OPSET).
//
// `text` need not be terminated and is not kept. Everything lies in `arena`; weights that are external-data references have bytes NULL.
// Values without type stay untyped (pass infer_types). The graph is not verified: verify_graph does that.
// Errors: MALFORMED or UNSUPPORTED with "line L, column C"; RESOURCE when the arena's limit is reached. Time and memory are linear in `bytes`.
#ifndef TESSERA_PARSE_H
#define TESSERA_PARSE_H

#include "graph.h"

MUST_USE Status graph_parse(const char *text, size_t bytes, Arena *arena, Graph **out);

#endif
