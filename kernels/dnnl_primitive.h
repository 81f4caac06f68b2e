// The matrix library (oneDNN): the only interface to it, and dnnl_primitive.c the only file that knows its versions (2.6 and 3.x).
//
// A LibraryCall is a short chain of primitives (reorders where the library wants another layout, then the product) with its operands.
// f32 only. Everything runs on the calling thread alone: with more threads its sums would change.
// Ownership: heap, ended by what library_matmul and library_conv put into `destroy`; library_call_run allocates nothing. Threads: one thread uses a call at a time.
// Errors: UNSUPPORTED where the library refuses, RESOURCE where it has no memory; both with the library's own status.
#ifndef TESSERA_DNNL_PRIMITIVE_H
#define TESSERA_DNNL_PRIMITIVE_H

#include "kernel.h"
#include "matmul.h"
#include "window.h"

typedef struct LibraryCall LibraryCall;

// Operands of the calls, as indices into the pointers that library_call_run takes.
enum { LIBRARY_A, LIBRARY_B, LIBRARY_OUT, LIBRARY_BIAS, LIBRARY_POINTERS };

typedef struct LibraryMatmul {
  Product product;           // no extent may be 0
  float alpha;
  bool bias;                 // adds LIBRARY_BIAS [n] to every row; with alpha 1 only
} LibraryMatmul;

// A = X or dY, B = W or dY, OUT = Y, dX or dW, by kind; plain layouts [N, C, ...] and [O, C / group, ...].
typedef enum ConvKind { CONV_FORWARD, CONV_INPUT_GRAD, CONV_WEIGHT_GRAD } ConvKind;
typedef struct LibraryConv {
  ConvKind kind;             // FORWARD: A = X, B = W; INPUT_GRAD: A = dY, B = W; WEIGHT_GRAD: A = X, B = dY
  Window window;
  int64_t batch, in_channels, out_channels, groups;
  bool bias;                 // FORWARD: adds LIBRARY_BIAS [out_channels]
} LibraryConv;

// Sets workspace_bytes and scratch_bytes, or (make = true) prepared and destroy, for the same call: both come from the same descriptors.
MUST_USE Status library_matmul(KernelPrepare *prepare, const LibraryMatmul *matmul, bool make);
MUST_USE Status library_conv(KernelPrepare *prepare, const LibraryConv *conv, bool make);

// The convolution as the matrix product that it is, padding included: the library multiplies zeros, too.
void library_conv_cost(const LibraryConv *conv, NodeCost *cost);

// Runs a call that `make` has made. pointers[i] may be NULL where operand i is not used.
MUST_USE Status library_call_run(const LibraryCall *call, const Node *node, void *const pointers[LIBRARY_POINTERS], void *workspace, void *scratch);

#endif
