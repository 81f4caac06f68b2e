// No command writes over what it reads: an output that is the same file as an input (also by another name or link) is a USAGE error.
#ifndef TESSERA_OVERWRITES_H
#define TESSERA_OVERWRITES_H

#include "../ir/weights.h"
#include "options.h"

// Against every input that the command line names, and every file in a folder that it names as one.
MUST_USE Status overwrites_check(const Options *options);

// Is any output a file that exists? Without one there is nothing to overwrite.
bool overwrites_possible(const Options *options);

// Against one more input (NULL: none), and against the files that weights lie in.
MUST_USE Status overwrites_check_input(const Options *options, const char *input);
MUST_USE Status overwrites_check_weights(const Options *options, const WeightSource *weights);

#endif
