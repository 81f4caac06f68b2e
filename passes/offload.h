// What `offload` may move (pass.h has the options).
#ifndef TESSERA_OFFLOAD_H
#define TESSERA_OFFLOAD_H

#include "pass.h"

const char *offload_name(OffloadKind kind);      // "optimizer", "params", "grads", "activations", as --offload has it

#endif
