// Declares `Status pass_<name>(Graph *, const CompileOptions *)` of every line of passes.def.
#ifndef TESSERA_PASS_LIST_H
#define TESSERA_PASS_LIST_H

#include "pass.h"

#define PASS(name, requires, not_after, provides, help) MUST_USE Status pass_##name(Graph *graph, const CompileOptions *options);
#include "passes.def"
#undef PASS

#endif
