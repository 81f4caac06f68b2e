#include "narrow.h"

#include <math.h>

bool dtype_is_narrow(Dtype dtype) { return dtype_class(dtype) == DTYPE_CLASS_OTHER && dtype != DTYPE_NONE; }

int dtype_packed_bits(Dtype dtype) {
  switch (dtype) {
  case DTYPE_U4: case DTYPE_I4: case DTYPE_F4E2M1: return 4;
  case DTYPE_U2: case DTYPE_I2: return 2;
  default: return 8 * (int)dtype_bytes(dtype);
  }
}

int64_t type_packed_bytes(const Type *type) {
  int bits = dtype_packed_bits(type->dtype);
  return bits < 8 ? (type_elems(type) * bits + 7) / 8 : type_bytes(type);
}

// Layout of a float: sign, exponent, mantissa. `nan` is the code without sign; 0: it has none. `max` is the code of the greatest number.
typedef struct Format { int exponent_bits, mantissa_bits, bias; unsigned char max, nan, inf; bool one_zero; } Format;

static Format format_of(Dtype dtype) {
  switch (dtype) {
  case DTYPE_F8E4M3FN: return (Format){4, 3, 7, 0x7e, 0x7f, 0, false};
  case DTYPE_F8E4M3FNUZ: return (Format){4, 3, 8, 0x7f, 0x80, 0, true};
  case DTYPE_F8E5M2: return (Format){5, 2, 15, 0x7b, 0x7e, 0x7c, false};
  case DTYPE_F8E5M2FNUZ: return (Format){5, 2, 16, 0x7f, 0x80, 0, true};
  default: return (Format){2, 1, 1, 0x07, 0, 0, false};    // F4E2M1
  }
}

static double magnitude(const Format *f, unsigned code) {
  int exponent = (int)(code >> f->mantissa_bits), mantissa = (int)(code & ((1u << f->mantissa_bits) - 1));
  if (exponent == 0) return ldexp(mantissa, 1 - f->bias - f->mantissa_bits);
  return ldexp(mantissa + (1 << f->mantissa_bits), exponent - f->bias - f->mantissa_bits);
}

static int is_signed_bits(Dtype dtype) { return dtype == DTYPE_I4 ? 4 : dtype == DTYPE_I2 ? 2 : 0; }
static int is_whole_bits(Dtype dtype) { return dtype == DTYPE_U4 ? 4 : dtype == DTYPE_U2 ? 2 : is_signed_bits(dtype); }

double narrow_to_double(Dtype dtype, unsigned char bits) {
  int whole = is_whole_bits(dtype);
  if (whole) {
    int v = bits & ((1 << whole) - 1);
    return is_signed_bits(dtype) && v >> (whole - 1) ? v - (1 << whole) : v;
  }
  if (dtype == DTYPE_F8E8M0) return bits == 0xff ? NAN : ldexp(1, bits - 127);
  Format f = format_of(dtype);
  int sign_at = f.exponent_bits + f.mantissa_bits;
  unsigned code = bits & ((1u << sign_at) - 1);
  bool negative = bits >> sign_at & 1;
  if (f.one_zero ? bits == f.nan : f.nan && code >= f.nan - (f.inf ? 1u : 0u)) return NAN;   // E5M2: 0x7d, 0x7e and 0x7f
  if (f.inf && code == f.inf) return negative ? -INFINITY : INFINITY;
  return negative ? -magnitude(&f, code) : magnitude(&f, code);
}

static unsigned char whole_from_double(Dtype dtype, double value, bool saturate) {
  int bits = is_whole_bits(dtype);
  int low = is_signed_bits(dtype) ? -(1 << (bits - 1)) : 0, high = low + (1 << bits) - 1;
  if (value != value) return 0;
  double cut = trunc(value);
  if (saturate) cut = cut < low ? low : cut > high ? high : cut;
  else if (fabs(cut) >= 0x1p62) return 0;
  return (unsigned char)((uint64_t)(int64_t)cut & (uint64_t)((1 << bits) - 1));
}

// Powers of two from 2^-127 to 2^127; the sign is dropped.
static unsigned char power_from_double(double value, bool saturate, RoundMode mode) {
  if (!isfinite(value)) return 0xff;
  int exponent;
  double fraction = frexp(fabs(value), &exponent);     // in [0.5, 1)
  if (fraction == 0) return 0;
  exponent += 126;                                     // biased exponent of the power at or below the value
  if (exponent < 0) return 0;
  bool up = mode == ROUND_UP ? fraction > 0.5 : mode == ROUND_NEAREST && (fraction > 0.75 || (fraction == 0.75 && exponent > 0));
  if (up && !(saturate && exponent >= 0xfe)) exponent++;
  return (unsigned char)(exponent > 0xff ? 0xff : exponent);
}

unsigned char narrow_from_double(Dtype dtype, double value, bool saturate, RoundMode mode) {
  if (is_whole_bits(dtype)) return whole_from_double(dtype, value, saturate);
  if (dtype == DTYPE_F8E8M0) return power_from_double(value, saturate, mode);
  Format f = format_of(dtype);
  int sign_at = f.exponent_bits + f.mantissa_bits, exponent;
  unsigned sign = signbit(value) ? 1u << sign_at : 0;
  unsigned nan = f.one_zero ? f.nan : sign | f.nan;
  if (value != value) return (unsigned char)(f.nan ? nan : sign);
  double v = fabs(value);
  frexp(v, &exponent);
  exponent = v == 0 || exponent - 1 < 1 - f.bias ? 1 - f.bias : exponent - 1;
  double ulp = ldexp(1, exponent - f.mantissa_bits), rounded = isinf(v) ? v : rint(v / ulp) * ulp;
  if (rounded > magnitude(&f, f.max)) {
    if (saturate || (!f.inf && !f.nan)) return (unsigned char)(sign | f.max);
    return (unsigned char)(f.inf ? sign | f.inf : nan);
  }
  if (rounded == 0) return (unsigned char)(f.one_zero ? 0 : sign);
  frexp(rounded, &exponent);
  exponent--;
  unsigned code;
  if (exponent < 1 - f.bias) code = (unsigned)ldexp(rounded, f.bias - 1 + f.mantissa_bits);
  else code = (unsigned)(exponent + f.bias) << f.mantissa_bits | ((unsigned)ldexp(rounded, f.mantissa_bits - exponent) - (1u << f.mantissa_bits));
  return (unsigned char)(sign | code);
}

void narrow_unpack(Dtype dtype, const unsigned char *packed, int64_t elems, unsigned char *plain) {
  int bits = dtype_packed_bits(dtype), per_byte = 8 / bits;
  for (int64_t i = 0; i < elems; i++) plain[i] = (unsigned char)(packed[i / per_byte] >> (i % per_byte * bits) & ((1 << bits) - 1));
}

void narrow_pack(Dtype dtype, const unsigned char *plain, int64_t elems, unsigned char *packed) {
  int bits = dtype_packed_bits(dtype), per_byte = 8 / bits;
  for (int64_t i = 0; i < elems; i++) {
    if (i % per_byte == 0) packed[i / per_byte] = 0;
    packed[i / per_byte] |= (unsigned char)((plain[i] & ((1 << bits) - 1)) << (i % per_byte * bits));
  }
}
