// Numbers of 8 bits and less: every code of every type survives the way through double; rounding, saturation and packing.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "ir/narrow.h"
#include "ir/weights.h"

static const Dtype types[] = {DTYPE_F8E4M3FN, DTYPE_F8E4M3FNUZ, DTYPE_F8E5M2, DTYPE_F8E5M2FNUZ, DTYPE_F8E8M0, DTYPE_F4E2M1, DTYPE_U4, DTYPE_I4, DTYPE_U2, DTYPE_I2};
enum { N_TYPES = sizeof types / sizeof *types };

static void test_every_code(void **state) {
  for (int t = 0; t < N_TYPES; t++) {
    int codes = 1 << dtype_packed_bits(types[t]), nans = 0;
    for (int code = 0; code < codes; code++) {
      double v = narrow_to_double(types[t], (unsigned char)code);
      unsigned char back = narrow_from_double(types[t], v, false, ROUND_NEAREST);
      if (isnan(v)) {
        nans++;
        assert_true(isnan(narrow_to_double(types[t], back)));
      } else if (back != code) fail_msg("%s: code %d is %g and becomes %d", dtype_name(types[t]), code, v, back);
    }
    int expected = types[t] == DTYPE_F8E4M3FN ? 2 : types[t] == DTYPE_F8E5M2 ? 6 : dtype_packed_bits(types[t]) == 8 ? 1 : 0;
    assert_int_equal(nans, expected);
  }
}

// Between two neighbours the nearer one is taken, in the middle the one with an even code.
static void test_rounding(void **state) {
  for (int t = 0; t < 4; t++)
    for (int code = 0; code < 0x7a; code++) {
      double low = narrow_to_double(types[t], (unsigned char)code), high = narrow_to_double(types[t], (unsigned char)(code + 1));
      assert_true(high > low);
      assert_int_equal(narrow_from_double(types[t], low + 0.49 * (high - low), false, ROUND_UP), code);
      assert_int_equal(narrow_from_double(types[t], low + 0.51 * (high - low), false, ROUND_UP), code + 1);
      assert_int_equal(narrow_from_double(types[t], (low + high) / 2, false, ROUND_UP), code + code % 2);
    }
}

static void test_range(void **state) {
  static const double greatest[4] = {448, 240, 57344, 57344};
  for (int t = 0; t < 4; t++) {
    double over = narrow_to_double(types[t], narrow_from_double(types[t], 1e9, false, ROUND_UP));
    assert_true(types[t] == DTYPE_F8E5M2 ? isinf(over) : isnan(over));
    assert_true(narrow_to_double(types[t], narrow_from_double(types[t], -1e9, true, ROUND_UP)) == -greatest[t]);
    assert_true(narrow_to_double(types[t], narrow_from_double(types[t], INFINITY, true, ROUND_UP)) == greatest[t]);
  }
  assert_true(narrow_to_double(DTYPE_F4E2M1, narrow_from_double(DTYPE_F4E2M1, 100, false, ROUND_UP)) == 6);
  assert_true(narrow_to_double(DTYPE_I4, narrow_from_double(DTYPE_I4, 9, true, ROUND_UP)) == 7);
  assert_true(narrow_to_double(DTYPE_I4, narrow_from_double(DTYPE_I4, 9, false, ROUND_UP)) == -7);
  assert_true(narrow_to_double(DTYPE_F8E8M0, narrow_from_double(DTYPE_F8E8M0, 3, true, ROUND_UP)) == 4);
  assert_true(narrow_to_double(DTYPE_F8E8M0, narrow_from_double(DTYPE_F8E8M0, 3, true, ROUND_DOWN)) == 2);
}

static void test_packing(void **state) {
  static const unsigned char plain[7] = {1, 15, 8, 0, 7, 3, 9};
  unsigned char packed[4], back[7];
  for (int64_t n = 0; n <= 7; n++) {
    Type type = type_vector(DTYPE_I4, n);
    assert_int_equal(type_packed_bytes(&type), (n + 1) / 2);
    narrow_pack(DTYPE_I4, plain, n, packed);
    if (n > 1) assert_int_equal(packed[0], 0xf1);        // the first element in the low half
    narrow_unpack(DTYPE_I4, packed, n, back);
    assert_memory_equal(back, plain, (size_t)n);
  }
  static const unsigned char pairs[5] = {3, 0, 1, 2, 1};
  narrow_pack(DTYPE_U2, pairs, 5, packed);
  assert_int_equal(packed[0], 0x93);
  narrow_unpack(DTYPE_U2, packed, 5, back);
  assert_memory_equal(back, pairs, 5);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_code), cmocka_unit_test(test_rounding), cmocka_unit_test(test_range),
                                     cmocka_unit_test(test_packing)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
