// wire_scan on bytes written by hand: what must pass, what must be refused, and where the message says it is.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "frontend/wire_scan.h"
#include "onnx.pb-c.h"

typedef struct Buffer { uint8_t bytes[4096]; size_t n; } Buffer;

static void put(Buffer *b, const void *bytes, size_t n) {
  assert_true(b->n + n <= sizeof b->bytes);
  memcpy(b->bytes + b->n, bytes, n);
  b->n += n;
}
#define PUT(b, ...) put(b, (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__}))

static Status scan(const Buffer *b, const ProtobufCMessageDescriptor *d) { return wire_scan((Bytes){b->bytes, b->n}, d, "m.onnx"); }

static void expect_refused(const Buffer *b, const ProtobufCMessageDescriptor *d, const char *part) {
  Status status = scan(b, d);
  assert_non_null(status);
  assert_int_equal(status->code, STATUS_MALFORMED);
  if (!strstr(status->what, part)) fail_msg("'%s' is not in: %s", part, status->what);
  status_free(status);
}

static void test_good_messages(void **state) {
  (void)state;
  Buffer b = {0};
  PUT(&b, 0x08, 0x0a);                               // ir_version = 10
  PUT(&b, 0x12, 2, 'h', 'i');                        // producer_name
  PUT(&b, 0x3a, 6, 0x0a, 4, 0x22, 2, 'o', 'p');      // graph { node { op_type } }
  PUT(&b, 0xf8, 0x7f, 0x05);                         // an unknown field, number 2047, varint: passed over
  assert_null(scan(&b, &onnx__model_proto__descriptor));
  Buffer t = {0};
  PUT(&t, 0x0a, 2, 0x03, 0x80 | 1, 0x01, 0x08, 1);   // packed dims cut in the middle of a number
  expect_refused(&t, &onnx__tensor_proto__descriptor, "");
  Buffer u = {0};
  PUT(&u, 0x0a, 3, 0x03, 0x81, 0x01);                // packed dims [3, 129]
  PUT(&u, 0x08, 7);                                  // and one that is not packed
  assert_null(scan(&u, &onnx__tensor_proto__descriptor));
}

static void test_bad_fields(void **state) {
  (void)state;
  const struct { size_t n; uint8_t bytes[16]; const char *part; } cases[] = {
      {1, {0x80}, "byte 0, in ModelProto: a field tag does not end"},
      {2, {0x00, 0x01}, "field number"},
      {2, {0x08, 0x80}, "a number does not end"},
      {12, {0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02, 0}, "a number does not end"},
      {4, {0x08, 0x0a, 0x3b, 0x3c}, "byte 2, in ModelProto: group wire types"},
      {2, {0x0e, 0x00}, "wire type does not exist"},
      {2, {0x3a, 0x05}, "runs past the end"},
      {11, {0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, "runs past the end"},
      {2, {0x38, 0x01}, "ModelProto.graph: wire type 0 where 2 belongs"},
      {4, {0x3a, 0x00, 0x3a, 0x00}, "byte 2, in ModelProto.graph: it stands twice"},
      {4, {0x12, 0x02, 'a', 0x00}, "producer_name: the text is not UTF-8"},
      {4, {0x12, 0x02, 0xc0, 0x80}, "producer_name: the text is not UTF-8"},
      {5, {0x12, 0x03, 0xed, 0xa0, 0x80}, "producer_name: the text is not UTF-8"},
      {6, {0x12, 0x04, 0xf4, 0x90, 0x80, 0x80}, "producer_name: the text is not UTF-8"},
      {3, {0x12, 0x01, 0xc3}, "producer_name: the text is not UTF-8"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Buffer b = {0};
    put(&b, cases[i].bytes, cases[i].n);
    expect_refused(&b, &onnx__model_proto__descriptor, cases[i].part);
  }
}

// TypeProto { sequence_type { elem_type { sequence_type { ... } } } }, `levels` deep.
static void nest(Buffer *b, int levels) {
  b->n = 0;
  for (int i = 0; i < levels; i++) {
    for (int k = 0; k < 2; k++) {
      uint8_t tag = k ? 0x22 : 0x0a, head[4] = {tag};
      size_t n = 1, rest = b->n;
      do head[n++] = (uint8_t)((rest & 0x7f) | (rest > 0x7f ? 0x80 : 0));
      while (rest >>= 7);
      assert_true(b->n + n <= sizeof b->bytes);
      memmove(b->bytes + n, b->bytes, b->n);
      memcpy(b->bytes, head, n);
      b->n += n;
    }
  }
}

static void test_depth(void **state) {
  (void)state;
  Buffer b;
  nest(&b, WIRE_DEPTH_MAX / 2);
  assert_null(scan(&b, &onnx__type_proto__descriptor));
  nest(&b, WIRE_DEPTH_MAX / 2 + 1);
  expect_refused(&b, &onnx__type_proto__descriptor, "nested deeper than 200");
}

static void test_fields_and_decoding(void **state) {
  (void)state;
  Buffer b = {0};
  PUT(&b, 0x0a, 1, 'x', 0x12, 1, 'y', 0x22, 4, 'R', 'e', 'l', 'u', 0x2a, 2, 0x0a, 0);      // node with one attribute
  Bytes rest = {b.bytes, b.n};
  size_t n = 0;
  for (WireField w; wire_next(&rest, &w); n++)
    if (n == 2) assert_int_equal(w.number, 4);
  assert_int_equal(n, 4);
  Arena *arena = arena_create(0);
  ProtobufCMessage *m;
  assert_null(wire_decode((Bytes){b.bytes, b.n}, &onnx__node_proto__descriptor, UINT64_C(1) << 5, arena, &m));
  const Onnx__NodeProto *node = (const Onnx__NodeProto *)m;
  assert_string_equal(node->op_type, "Relu");
  assert_int_equal(node->n_attribute, 0);
  arena_destroy(arena);
}

// Every prefix and every single changed byte of a good message: refused or read, never more than that.
static void test_mutations(void **state) {
  (void)state;
  Buffer good = {0};
  PUT(&good, 0x08, 10, 0x3a, 22, 0x0a, 16, 0x0a, 1, 'x', 0x12, 1, 'y', 0x22, 4, 'R', 'e', 'l', 'u', 0x1a, 0x02, 'n', '1', 0x12, 2, 'g', 'r');
  assert_null(scan(&good, &onnx__model_proto__descriptor));
  Arena *arena = arena_create(0);
  for (size_t i = 0; i < good.n; i++)
    for (int byte = 0; byte < 256; byte++) {
      Buffer b = good;
      b.bytes[i] = (uint8_t)byte;
      if (byte == 0) b.n = i;
      Status status = scan(&b, &onnx__model_proto__descriptor);
      ProtobufCMessage *m;
      if (!status) status = wire_decode((Bytes){b.bytes, b.n}, &onnx__model_proto__descriptor, 0, arena, &m);
      status_free(status);
    }
  arena_destroy(arena);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_good_messages), cmocka_unit_test(test_bad_fields), cmocka_unit_test(test_depth),
                                     cmocka_unit_test(test_fields_and_decoding), cmocka_unit_test(test_mutations)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
