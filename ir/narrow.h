// Numbers of 8 bits and less: ONNX's float8, float4, int4 and int2 families. They are carried, cast and (de)quantized; nothing is computed in
// them. In memory each takes a byte, with the value in its low bits; files pack those of 4 and 2 bits, least significant first.
// Sources: the tables of Cast in onnx/docs/Operators.md, onnx/docs/docsgen float8 and int4 pages. Pure functions, any thread.
#ifndef TESSERA_NARROW_H
#define TESSERA_NARROW_H

#include "type.h"

bool dtype_is_narrow(Dtype dtype);
int dtype_packed_bits(Dtype dtype);                        // 8, 4 or 2 for narrow types; 8 x bytes for all others
int64_t type_packed_bytes(const Type *type);               // in a file

double narrow_to_double(Dtype dtype, unsigned char bits);

typedef enum RoundMode { ROUND_UP, ROUND_DOWN, ROUND_NEAREST } RoundMode;
// Floats round to nearest even; beyond the greatest number `saturate` gives that one, else infinity or NaN, as the type has it. Only E8M0
// (powers of two) knows `mode`. Integers cut towards zero and saturate, or wrap where not `saturate`.
unsigned char narrow_from_double(Dtype dtype, double value, bool saturate, RoundMode mode);

// Elements to bytes of a file and back. `packed` has type_packed_bytes(type) bytes, `plain` one byte an element.
void narrow_unpack(Dtype dtype, const unsigned char *packed, int64_t elems, unsigned char *plain);
void narrow_pack(Dtype dtype, const unsigned char *plain, int64_t elems, unsigned char *packed);

#endif
