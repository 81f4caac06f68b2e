// What FusedElementwise can hold; shared by its kernel and by the pass that builds it.
#ifndef TESSERA_FUSED_H
#define TESSERA_FUSED_H

#include "../ir/op.h"

enum { FUSED_MEMBERS_MAX = 24, FUSED_INPUTS_MAX = 16, FUSED_ROW_MAX = 16384 };

bool fused_takes(const Op *op);                                  // may the operator be a member?
bool fused_operand(const Type *operand, const Type *whole);      // is it f32 and whole, one element, or a row of `whole`?

// Of a FusedElementwise node, the results whose `keep` holds (one at least) stay, in their order.
void fused_keep_results(Graph *graph, Node *node, const bool *keep);

#endif
