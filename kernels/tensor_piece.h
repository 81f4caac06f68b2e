// Rows that work on the single parameters of a bucket, or of the rank's shard of it: where each lies.
#ifndef TESSERA_TENSOR_PIECE_H
#define TESSERA_TENSOR_PIECE_H

#include "kernel.h"

// Attributes; the first fields of the row's struct.
typedef struct PieceAttrs {
  AttrInts starts, sizes;      // of each parameter in the whole bucket; elements
  int64_t parts;               // ranks that share the bucket; 1: operands are whole
} PieceAttrs;
#define PIECE_ATTRS                                                                                                                             \
  {"starts", ATTR_INTS, offsetof(PieceAttrs, starts), .min = 0, .max = INT64_MAX, .help = "element of the bucket at which each parameter starts"},   \
  {"sizes", ATTR_INTS, offsetof(PieceAttrs, sizes), .min = 0, .max = INT64_MAX, .help = "elements of each parameter"},                               \
  {"parts", ATTR_INT, offsetof(PieceAttrs, parts), .default_int = 1, .min = 1, .max = MESH_RANKS_MAX, .help = "ranks that share the bucket; 1: it is whole"}

// Elements [at, at + n) of the operand are elements [first, first + n) of the parameter. n = 0: none of it lies here.
typedef struct Piece { int64_t at, n, first; } Piece;

// Parameters in ascending order on chunk boundaries, within parts times the operand's elements, in whole chunks where it is shared: else MALFORMED.
MUST_USE Status pieces_check(const Node *node, const Type *flat);

// The part of parameter i in an operand of `elems` elements; `rank`: the one that runs.
Piece piece_of(const PieceAttrs *a, int64_t i, int64_t elems, int64_t rank);

// The rank that runs, or MALFORMED when the plan was made for another number of them.
MUST_USE Status piece_rank(const KernelContext *c, int64_t *out);

#endif
