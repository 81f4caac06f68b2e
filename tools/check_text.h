// opt --check FILE: the graph's text against the CHECK lines of FILE (check_file.h).
#ifndef TESSERA_CHECK_TEXT_H
#define TESSERA_CHECK_TEXT_H

#include "../ir/graph.h"
#include "options.h"

// Can FILE be read, and are its CHECK lines well-formed? To be asked before any work is done.
MUST_USE Status check_text_parse(const Options *options);
MUST_USE Status check_text_graph(const Options *options, const Graph *graph);

#endif
