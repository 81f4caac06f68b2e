// A graph from a file and into one, whatever its form: models and plans (.onnx), text (.onnxtxt, or - for standard input and output).
//
// Ownership: a GraphFile owns the graph, its arena and the mapped files that weights lie in; graph_file_close ends it (also after an error).
// Threads: one.
#ifndef TESSERA_GRAPH_FILE_H
#define TESSERA_GRAPH_FILE_H

#include "../frontend/text_weights.h"
#include "compile_flow.h"

typedef struct GraphFile {
  Flow flow;                   // flow.graph is the graph
  TextWeights *weights;        // text: the files that its data lies in
} GraphFile;

bool graph_file_is_text(const char *path);

// Opens options->input: reads and verifies text, reads a plan, imports a model with what the options bind. USAGE when no file is named, or an output
// of `options` is a file that is read.
MUST_USE Status graph_file_open(const Options *options, GraphFile *out);
// The same; a model's dimensions that stay open take `open_size` (0: they are an error).
MUST_USE Status graph_file_open_assuming(const Options *options, int64_t open_size, GraphFile *out);
// For commands that look at plans: a model is left to the caller (flow.is_plan false: it is not imported yet), a plan may have several programs. USAGE:
// text, or what opt wrote, of a graph that is no plan. Of text there is flow.graph and no flow.programs.
MUST_USE Status graph_file_open_plan(const Options *options, GraphFile *out);
void graph_file_close(GraphFile *file);

// The whole of a text file, "-": standard input; heap.
MUST_USE Status graph_file_read_text(const char *path, char **out, size_t *out_bytes);

// The text that would be written; heap.
MUST_USE Status graph_file_text(const Options *options, const Graph *graph, char **out, size_t *out_bytes);

// Writes to options->output by its suffix; text to standard output where none is named.
MUST_USE Status graph_file_write(const Options *options, const Graph *graph);

#endif
