// Bytes for graphs that were read from text, where initializers are places in files: mapped under the rules of external_data.h.
//
// Ownership: TextWeights owns the mappings; the graph's weights point into them until text_weights_close. Threads: one at a time.
#ifndef TESSERA_TEXT_WEIGHTS_H
#define TESSERA_TEXT_WEIGHTS_H

#include "../ir/graph.h"

typedef struct TextWeights TextWeights;

// Places are relative to `folder` and must lie in it. A file that is not there leaves its weights without bytes, as they were: passes do without,
// and whoever needs them says so. MALFORMED for places that leave the folder or do not fit their file.
MUST_USE Status text_weights_open(Graph *graph, const char *folder, TextWeights **out);
void text_weights_close(TextWeights *weights);         // NULL is fine

#endif
