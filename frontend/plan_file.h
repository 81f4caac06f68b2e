// Plans as ONNX files: a Graph whose nodes are steps, written as a ModelProto that onnx.checker accepts, and read back.
//
// What no node says (roles, phases, locations, buckets, recipe) stands in metadata_props, through the generic key/value access of ir/meta.h.
// Ownership: results lie in `arena`; a graph that is read borrows constants from the Model, which must outlive it.
// Errors: IO; MALFORMED names node or value; never a crash, whatever the bytes say.
#ifndef TESSERA_PLAN_FILE_H
#define TESSERA_PLAN_FILE_H

#include "onnx_import.h"

// The bytes of the ModelProto. Deterministic: the same graph gives the same bytes.
MUST_USE Status graph_to_onnx(const Graph *graph, Arena *arena, const void **out_bytes, size_t *out_n_bytes);
// The same into a file, written beside its place and renamed.
MUST_USE Status graph_write_onnx(const Graph *graph, const char *path);
// A graph as a model of plain ONNX, for any program, tessera's importer included: without what Tessera has decided (roles, phases, places). Only for graphs
// of standard operators that hold nothing of that kind: as model_import gives them.
MUST_USE Status graph_write_model(const Graph *graph, const char *path);

// Reads a file that graph_to_onnx wrote: no upgrade, no guessing of roles; metadata says everything. UNSUPPORTED: a plan of several programs.
MUST_USE Status graph_read_onnx(Model *model, Arena *arena, Graph **out);

// A plan of several programs, one for each coordinate of the mesh axis PLAN_PROGRAM_AXIS: the file's graph is the first; each of the others is the
// attribute `body` of a node PLAN_PROGRAM_OP (domain tessera) at its start, where the names of the body are still free. The node takes nothing and gives
// nothing that is read; the program's own pairs are the body's metadata_props.
#define PLAN_PROGRAM_OP "Program"
enum { PLAN_PROGRAMS_MAX = 4096 };
MUST_USE Status plan_to_onnx(const Graph *const *programs, int n_programs, Arena *arena, const void **out_bytes, size_t *out_n_bytes);
MUST_USE Status plan_read_onnx(Model *model, Arena *arena, const Graph ***out, int *n_out);      // one program: as graph_read_onnx

#endif
