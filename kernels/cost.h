// What a node costs: work and bytes from types, attributes and places alone, so that tensors of any size can be asked about and nothing runs.
// Seconds are a machine's matter (passes/estimate.h). A row says in `cost` what the defaults do not know; what several rows share is here.
//
// Threads: pure functions. Sizes are doubles: sums over a model of 10^12 parameters pass 2^63 nowhere, and no digit beyond the 15th matters.
#ifndef TESSERA_COST_H
#define TESSERA_COST_H

#include "../ir/op.h"
#include "loops.h"

// Defaults, where the row has no `cost`: optimizer rows update, other rows with a fast kernel do arithmetic on their largest tensor, the rest runs by
// its reference. Views and guards alone cost nothing. `isa`: what has a fast kernel and runs by the reference there counts as WORK_REFERENCE and
// WORK_PLAIN_FLOP; ISA_COUNT: on a machine that has fast kernels for everything. The node's types are inferred; places (Location) matter where there are any.
NodeCost node_cost(const Node *node, Isa isa);

double cost_largest_elems(const Node *node);                 // elements of the largest operand or result
void cost_add_product(NodeCost *cost, int64_t m, int64_t n, int64_t k, double products);
void cost_add_conv(NodeCost *cost, int64_t m, int64_t n, int64_t k, double products);

// For rows: per element of the largest tensor
void cost_arithmetic(const Node *node, NodeCost *cost);      // one operation in a vector loop
void cost_function(const Node *node, NodeCost *cost);        // one function
void cost_sum(const Node *node, NodeCost *cost);             // one sum
void cost_element(const Node *node, NodeCost *cost);         // one element addressed
void cost_move(const Node *node, NodeCost *cost);            // nothing but bytes
void cost_softmax(const Node *node, NodeCost *cost);         // a function, two sums, arithmetic
void cost_cross_entropy(const Node *node, NodeCost *cost);   // exp and its sum
void cost_norm(const Node *node, NodeCost *cost);            // two sums, two times arithmetic
void cost_rows(const Node *node, NodeCost *cost);            // gather and scatter of rows: reads what it writes, not the table

#endif
