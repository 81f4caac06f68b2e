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

// The first of several steps: as update_step, but what it makes is a direction (OP_DIRECTION).
Value *update_direction(BucketUpdate *u, const Op *op, Value *const *states, int n_states, const AttrInit *attrs);

// The same for rows and columns of matrices (Adafactor): after the states it takes the sums of squares by row and by column, complete over the ranks,
// and the global norm. Where the matrices lie is added to the attributes.
Value *update_factored(BucketUpdate *u, const Op *op, Value *const *states, int n_states, const AttrInit *attrs);

// The norm of each parameter and of its part of `direction`, as limbs, complete over the ranks.
Value *update_norms(BucketUpdate *u, Value *direction);

// The direction of the whole bucket, sent to every rank that has a shard: its bytes are "optimizer" bytes.
Value *update_whole(BucketUpdate *u, Value *direction);

// The last of several steps: inputs param, direction, lr, then `more`; where the parameters lie (PieceAttrs) is added to the attributes. It makes the
// new parameters.
void update_apply(BucketUpdate *u, const Op *op, Value *direction, Value *const *more, int n_more, const AttrInit *attrs);

#endif
