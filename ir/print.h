// Graph -> text: ONNX's own textual syntax, as onnx.parser of the pinned package reads it, with everything ONNX has no field for in trailing
// `#@ key="json string"` comments (ir/meta.h says which; a JSON object or list stands there as it is). docs/ir.md describes the form.
// graph_parse reads it back; print -> parse -> print is the identity.
//
// Deterministic: attributes sorted by name, defaults left out, values in the order of graph and nodes. Bytes of constants are printed up to
// PRINT_INLINE_ELEMS elements, never of float16 and bfloat16; other weights are references to the file they lie in, or, when they lie in
// memory only, to "#HASH" of their bytes, which stand in the pair `hex` (of a node's tensor: `hex.ATTRIBUTE`).
#ifndef TESSERA_PRINT_H
#define TESSERA_PRINT_H

#include <stdio.h>

#include "graph.h"

enum { PRINT_INLINE_ELEMS = 16 };

typedef struct PrintOptions {
  bool renumber;               // names made unique by a number ("h.17") are numbered anew in order, so that a pass changes only its own lines
  const char *base_dir;        // this prefix is left out of the paths of weights; NULL: none
} PrintOptions;

// The text, terminated, in `arena` (which must have a guard). `options` may be NULL: all off.
char *graph_text(const Graph *graph, const PrintOptions *options, Arena *arena);

// The same to a file. Errors: RESOURCE, IO.
MUST_USE Status graph_print(const Graph *graph, const PrintOptions *options, FILE *file);

#endif
