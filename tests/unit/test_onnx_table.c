// The rows of ops.def against the standard's own table: names, numbers of inputs and outputs, attributes and their defaults at IR_OPSET.
#include <inttypes.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "frontend/onnx_schema.h"
#include "ir/op.h"

static int most(int n) { return n == INT_MAX ? VARIADIC : n; }

static void test_arity(void **state) {
  (void)state;
  int n = 0, bad = 0;
  for (const Op *const *p = op_table; *p; p++) {
    const Op *op = *p;
    if (*op->domain) continue;
    const SchemaOp *s = schema_find("", op->name, INT_MAX);
    n++;
    if (!s || s->deprecated) {
      print_error("%s is no operator of ai.onnx\n", op->name);
      bad++;
      continue;
    }
    // A row may ask for less freedom than the standard gives, never for more.
    if (op->min_inputs < s->min_inputs || op->max_inputs > most(s->max_inputs) || op->min_outputs < s->min_outputs || op->max_outputs > most(s->max_outputs)) {
      print_error("%s: row [%d,%d] -> [%d,%d], standard [%d,%d] -> [%d,%d]\n", op->name, op->min_inputs, op->max_inputs, op->min_outputs, op->max_outputs,
                  s->min_inputs, most(s->max_inputs), s->min_outputs, most(s->max_outputs));
      bad++;
    }
  }
  assert_true(n > 40);
  assert_int_equal(bad, 0);
}

static bool default_agrees(const AttrSpec *a, const SchemaAttr *s) {
  if (a->type == ATTR_INT && *s->default_text) return a->default_int == strtoll(s->default_text, NULL, 10);
  if (a->type == ATTR_FLOAT && *s->default_text) return a->default_float == strtof(s->default_text, NULL);
  if (a->type == ATTR_STRING && *s->default_text) return a->default_string && !strcmp(a->default_string, s->default_text);
  return true;
}

static void test_attributes(void **state) {
  (void)state;
  int n = 0, bad = 0;
  for (const Op *const *p = op_table; *p; p++) {
    const Op *op = *p;
    const SchemaOp *s = *op->domain ? NULL : schema_find("", op->name, INT_MAX);
    if (!s) continue;
    // (An absent list is empty; what an empty one means, infer of the row says.)
    for (const AttrSpec *a = op->attrs; a && a->name; a++, n++) {
      const SchemaAttr *b = schema_attr(s, a->name);
      if (!b) print_error("%s: the standard has no attribute %s\n", op->name, a->name);
      else if (b->required && !a->required && a->type != ATTR_INTS) print_error("%s: attribute %s is required by the standard\n", op->name, a->name);
      else if (!default_agrees(a, b)) print_error("%s: attribute %s: the standard's default is %s\n", op->name, a->name, b->default_text);
      else continue;
      bad++;
    }
  }
  assert_true(n > 20);
  assert_int_equal(bad, 0);
}

static void test_lookup(void **state) {
  (void)state;
  assert_null(schema_find("", "NoSuchOp", INT_MAX));
  assert_null(schema_find("", "Gelu", 19));
  assert_int_equal(schema_find("", "Gelu", 20)->since, 20);
  assert_int_equal(schema_find("", "ReduceMean", 17)->since, 13);
  assert_int_equal(schema_find("", "ReduceMean", 18)->since, 18);
  assert_true(schema_find("", "Upsample", 11)->deprecated);
  assert_non_null(schema_find("ai.onnx.preview.training", "Adam", 1));
  assert_true(schema_opset_newest() >= IR_OPSET);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_arity), cmocka_unit_test(test_attributes), cmocka_unit_test(test_lookup)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
