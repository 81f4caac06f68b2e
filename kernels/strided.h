// The one engine of data movement: copies a box of elements between two strided layouts. Transpose, Expand, Slice, Concat, Split and Pad are
// calls of it. It merges axes that both sides walk alike, copies whole rows where both are contiguous, and works in tiles where they cross.
#ifndef TESSERA_STRIDED_H
#define TESSERA_STRIDED_H

#include "../ir/type.h"

// to[sum i_k to_strides[k]] = from[sum i_k from_strides[k]] for every index in dims[0 .. rank). Strides in elements; any sign; those of `from`
// may be 0. element_bytes is 1, 2, 4 or 8. The two regions must not overlap. Pointers need no alignment. No allocation; any thread.
void strided_copy(void *to, const int64_t *to_strides, const void *from, const int64_t *from_strides, const int64_t *dims, int rank,
                  int64_t element_bytes);

// Row-major strides of `dims`.
void strided_row_major(const int64_t *dims, int rank, int64_t *strides);

#endif
