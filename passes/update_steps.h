// What the rules of optimizers (optimizer_rules.c) are made of: states and steps of one bucket.
#ifndef TESSERA_UPDATE_STEPS_H
#define TESSERA_UPDATE_STEPS_H

#include "optimizer_rules.h"

// A state of the bucket with the parameters' element type, `initial` at start (or from the checkpoint that the run goes on from). `name` as
// torch.optim and checkpoints call it.
Value *update_state(BucketUpdate *u, const char *name, double initial);
// The same of another shape or element type.
Value *update_state_of(BucketUpdate *u, const char *name, StateShape shape, Dtype dtype, double initial);

// A step that makes the new parameters itself: inputs param, grad, scale, lr, step, then the states; outputs the new parameters, then the new states.
// NULL states are left out.
void update_step(BucketUpdate *u, const Op *op, Value *const *states, int n_states, const AttrInit *attrs);

#endif
