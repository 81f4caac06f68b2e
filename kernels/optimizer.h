// What the optimizer rows share. Inputs: param, grad, scale, lr, t, then the states; outputs: param', then the states'. Rows with OP_DIRECTION are the
// first of several steps: their first output is a direction for each element, and a later row takes param, direction and lr.
#ifndef TESSERA_OPTIMIZER_H
#define TESSERA_OPTIMIZER_H

#include "kernel.h"

enum { IN_PARAM, IN_GRAD, IN_SCALE, IN_LR, IN_T, IN_STATE };

// What rows of Adam's family read of their attributes, which are decimals; beta1 and beta2 are below 1.
typedef struct Moments { double beta1, beta2, eps, weight_decay; } Moments;
MUST_USE Status step_parse_moments(const Node *node, const char *beta1, const char *beta2, const char *eps, const char *weight_decay, Moments *out);

// Types of an optimizer row: param, grad and states alike (grad may be f16 or bf16 beside f32 ones); scale and lr double scalars, t an int64 scalar.
MUST_USE Status step_infer(Node *node);

// The same for the first `inputs` operands and for output 0 alone.
MUST_USE Status step_infer_first(Node *node, int inputs);

// param' lies over param, state i' over state i.
bool step_alias(const Node *node, int output, int input, Alias *out);

// Outside a plan outputs do not lie over their inputs: they start as copies, then all is in place.
void step_carry(const KernelContext *c);

// The same for a row with OP_DIRECTION, whose output 0 lies over nothing.
bool direction_alias(const Node *node, int output, int input, Alias *out);
void direction_carry(const KernelContext *c);

// The step after a direction: param, direction, lr, then what the rule needs; output: param', over param.
enum { IN_DIRECTION = 1, IN_RATE, IN_NORMS };
bool apply_alias(const Node *node, int output, int input, Alias *out);
// Types of such a row, whose attributes begin with PieceAttrs. norms > 0: input IN_NORMS holds the limbs of so many norms of each parameter.
MUST_USE Status apply_check(Node *node, int norms);

// Gradient element times scale, rounded in the gradient's dtype.
double step_grad(const KernelContext *c, int64_t e, double scale);

#endif
