// Names as lines of text may hold them. Model files are not to be trusted: a name with a line break would forge a line, one with an escape sequence would
// move the cursor or colour the terminal. JSON, HTML, DOT and the text form have escapes of their own and get names as they are. Threads: one.
#ifndef TESSERA_PRINTABLE_H
#define TESSERA_PRINTABLE_H

#include <stdio.h>

#include "../ir/graph.h"

// The text with control characters written as \n, \t, \x1b; the same pointer where it holds none, else a copy in `arena`. NULL stays NULL.
const char *printable_text(const char *text, Arena *arena);

// Prints the text like that; line breaks stay where `lines`.
void printable_print(FILE *to, const char *text, bool lines);

// All names of a graph that is going to be printed; names of values stay unique. The caller has the guard of the graph's arena set.
void printable_graph(Graph *graph);

#endif
