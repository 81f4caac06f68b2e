// What the optimizer rows share. Inputs: param, grad, scale, lr, t, then the states; outputs: param', then the states'.
#ifndef TESSERA_OPTIMIZER_H
#define TESSERA_OPTIMIZER_H

#include "kernel.h"

enum { IN_PARAM, IN_GRAD, IN_SCALE, IN_LR, IN_T, IN_STATE };

// Types of an optimizer row: param, grad and states alike; scale and lr double scalars, t an int64 scalar.
MUST_USE Status step_infer(Node *node);

// param' lies over param, state i' over state i.
bool step_alias(const Node *node, int output, int input, Alias *out);

// Outside a plan outputs do not lie over their inputs: they start as copies, then all is in place.
void step_carry(const KernelContext *c);

// Gradient element times scale, rounded in the gradient's dtype.
double step_grad(const KernelContext *c, int64_t e, double scale);

#endif
