// `tessera show MODEL`: what a model holds, as text or JSON on stdout. Threads: one.
#ifndef TESSERA_SHOW_MODEL_H
#define TESSERA_SHOW_MODEL_H

#include "compile_flow.h"

// Prints what is understood and, where the model cannot be taken, all its problems; then the code of the first, without a text (it has been said).
MUST_USE Status show_model(Flow *flow, const Options *options);

#endif
