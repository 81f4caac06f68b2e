// Reading and writing safetensors: round trip, and every way in which a file can lie.
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../runtime/safetensors.h"

static char dir[64];

static int make_dir(void **state) {
  strcpy(dir, "/tmp/tessera_test_XXXXXX");
  return mkdtemp(dir) ? 0 : -1;
}
static int remove_dir(void **state) { return rmdir(dir); }   // fails when a test leaves something behind

static const char *in_dir(const char *name) {
  static char path[128];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  return path;
}

static void round_trip(void **state) {
  const float a[6] = {1, 2, 3, 4, 5, 6};
  const int64_t b = -7;
  const uint8_t c[3] = {9, 8, 7};
  const SafetensorsEntry entries[] = {{"c \"quoted\"", type_make(DTYPE_U8, 1, (int64_t[]){3})}, {"a", type_make(DTYPE_F32, 2, (int64_t[]){2, 3})},
                                      {"empty", type_make(DTYPE_F32, 2, (int64_t[]){0, 4})}, {"b", type_scalar(DTYPE_I64)}};
  const char *const metadata[] = {"format", "pt", NULL};
  SafetensorsWriter *w;
  assert_null(safetensors_create(in_dir("x"), entries, 4, metadata, &w));
  assert_null(safetensors_append(w, 1, a, 5));
  assert_null(safetensors_append(w, 1, (const char *)a + 5, sizeof a - 5));
  Status beyond = safetensors_append(w, 1, a, 1);
  assert_int_equal(status_code(beyond), STATUS_USAGE);
  status_free(beyond);
  assert_null(safetensors_write(w, 3, &b));
  assert_null(safetensors_write(w, 0, c));
  assert_null(safetensors_write(w, 2, ""));
  assert_int_not_equal(access(in_dir("x"), F_OK), 0);        // not before it is whole
  assert_null(safetensors_finish(w));
  glob_t beside;
  assert_int_equal(glob(in_dir("x.*"), 0, NULL, &beside), GLOB_NOMATCH);
  Safetensors *f;
  assert_null(safetensors_open(in_dir("x"), &f));
  assert_int_equal(safetensors_count(f), 4);
  char header[1024] = {0};
  FILE *raw = fopen(in_dir("x"), "rb");
  assert_non_null(raw);
  assert_true(fread(header, 1, sizeof header, raw) > SAFETENSORS_PREFIX_BYTES);
  fclose(raw);
  assert_non_null(memmem(header, sizeof header, "\"format\":\"pt\"", strlen("\"format\":\"pt\"")));
  const Weight *wa = safetensors_find(f, "a"), *wb = safetensors_find(f, "b"), *wc = safetensors_find(f, "c \"quoted\"");
  assert_true(type_equal(&wa->type, &entries[1].type));
  assert_memory_equal(wa->bytes, a, sizeof a);
  assert_memory_equal(wb->bytes, &b, sizeof b);
  assert_memory_equal(wc->bytes, c, sizeof c);
  assert_int_equal(safetensors_find(f, "empty")->type.dims[0], 0);
  assert_null(safetensors_find(f, "d"));
  assert_true((uintptr_t)wb->bytes % 8 == 0 && (uintptr_t)wa->bytes % 4 == 0);
  safetensors_close(f);
  unlink(in_dir("x"));
}

static void unwritten_and_abandoned(void **state) {
  const SafetensorsEntry entries[] = {{"a", type_scalar(DTYPE_F32)}, {"b", type_scalar(DTYPE_F32)}};
  const float x = 1;
  SafetensorsWriter *w;
  assert_null(safetensors_create(in_dir("y"), entries, 2, NULL, &w));
  assert_null(safetensors_write(w, 0, &x));
  assert_null(safetensors_append(w, 1, &x, 3));
  Status s = safetensors_finish(w);
  assert_int_equal(status_code(s), STATUS_USAGE);
  status_free(s);
  assert_null(safetensors_create(in_dir("y"), entries, 2, NULL, &w));
  safetensors_abandon(w);
  const SafetensorsEntry twice[] = {{"a", type_scalar(DTYPE_F32)}, {"a", type_scalar(DTYPE_F32)}};
  s = safetensors_create(in_dir("y"), twice, 2, NULL, &w);
  assert_int_equal(status_code(s), STATUS_MALFORMED);
  status_free(s);
  s = safetensors_create("/no/such/folder/y", entries, 2, NULL, &w);
  assert_int_equal(status_code(s), STATUS_IO);
  status_free(s);
}

// A file of this header and `data_bytes` zero bytes.
static Status open_text(const char *header, size_t data_bytes, Safetensors **out, char **bytes) {
  size_t n = strlen(header);
  *bytes = calloc(1, 8 + n + data_bytes);
  for (int i = 0; i < 8; i++) (*bytes)[i] = (char)(n >> (8 * i));
  memcpy(*bytes + 8, header, n);
  return safetensors_open_bytes(*bytes, 8 + n + data_bytes, "case", out);
}

static void hostile_headers(void **state) {
  static const struct { const char *header; size_t data_bytes; StatusCode code; const char *says; } cases[] = {
      {"{ ", 0, STATUS_MALFORMED, "no JSON"},
      {"[]", 0, STATUS_MALFORMED, "no object"},
      {"{\"a\":1}", 0, STATUS_MALFORMED, "no object"},
      {"{\"a\":{}}", 0, STATUS_MALFORMED, "no dtype or no shape"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
          STATUS_MALFORMED, "duplicate"},
      {"{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, STATUS_UNSUPPORTED, "F33"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, STATUS_MALFORMED, "-1"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", 4, STATUS_MALFORMED, "no integer"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[NaN],\"data_offsets\":[0,4]}}", 4, STATUS_MALFORMED, "no JSON"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, STATUS_UNSUPPORTED, "9 axes"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0, STATUS_RESOURCE, NULL},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, STATUS_MALFORMED, "two integers"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, STATUS_MALFORMED, "no range"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, STATUS_MALFORMED, "no range"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, STATUS_MALFORMED, "data_offsets give it 8"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4, STATUS_MALFORMED, "cut short"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,9223372036854775807]}}", 4, STATUS_MALFORMED, "cut short"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, STATUS_MALFORMED, "overlap or leave a hole"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 8, STATUS_MALFORMED, "cover 4 of 8"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8,
          STATUS_MALFORMED, "overlap or leave a hole"},
      {"{\"__metadata__\":{\"a\":1}}", 0, STATUS_MALFORMED, "no string"},
      {"{\"__metadata__\":[]}", 0, STATUS_MALFORMED, "no object"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Safetensors *f = NULL;
    char *bytes;
    Status s = open_text(cases[i].header, cases[i].data_bytes, &f, &bytes);
    if (!s) fail_msg("accepted: %s", cases[i].header);
    if (status_code(s) != cases[i].code && !(cases[i].code == STATUS_RESOURCE && status_code(s) == STATUS_MALFORMED))
      fail_msg("%s: code %d: %s", cases[i].header, status_code(s), s->what);
    if (cases[i].says && !strstr(s->what, cases[i].says)) fail_msg("%s: says %s", cases[i].header, s->what);
    assert_null(f);
    status_free(s);
    free(bytes);
  }
}

static void hostile_prefixes(void **state) {
  static const struct { unsigned char bytes[16]; size_t n; StatusCode code; } cases[] = {
      {{0}, 0, STATUS_MALFORMED},
      {{2, 0, 0, 0, 0, 0, 0}, 7, STATUS_MALFORMED},
      {{0}, 8, STATUS_MALFORMED},
      {{9, 0, 0, 0, 0, 0, 0, 0, '{', '}'}, 10, STATUS_MALFORMED},
      {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 8, STATUS_MALFORMED},
      {{0, 0, 0, 0x10, 0, 0, 0, 0}, 8, STATUS_MALFORMED},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Safetensors *f = NULL;
    Status s = safetensors_open_bytes(cases[i].bytes, cases[i].n, "case", &f);
    assert_int_equal(status_code(s), cases[i].code);
    status_free(s);
  }
  Safetensors *f = NULL;
  char *bytes;
  assert_null(open_text("{}      ", 0, &f, &bytes));           // padding is fine, no tensors are fine
  assert_int_equal(safetensors_count(f), 0);
  assert_null(safetensors_find(f, "a"));
  safetensors_close(f);
  free(bytes);
  safetensors_close(NULL);
}

// Every truncation and every flipped byte of a good file is either refused or read without touching anything outside it (run with ASan).
static void mutations(void **state) {
  static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},\"b\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[16,24]}}";
  Safetensors *f;
  char *good;
  assert_null(open_text(header, 24, &f, &good));
  safetensors_close(f);
  size_t n = 8 + strlen(header) + 24;
  for (size_t cut = 0; cut < n; cut++) {
    char *copy = malloc(cut + 1);
    memcpy(copy, good, cut);
    Status s = safetensors_open_bytes(copy, cut, "cut", &f);
    assert_non_null(s);
    status_free(s);
    free(copy);
  }
  unsigned seed = 1;
  for (int i = 0; i < 20000; i++) {
    char *copy = malloc(n);
    memcpy(copy, good, n);
    for (int k = 0; k < 3; k++) copy[(unsigned)rand_r(&seed) % (n - 24)] = (char)rand_r(&seed);
    Status s = safetensors_open_bytes(copy, n, "mutant", &f);
    if (!s) {
      double sum = 0;
      for (size_t t = 0; t < safetensors_count(f); t++)
        for (int64_t e = 0; e < type_elems(&safetensors_tensors(f)[t].type); e++)
          sum += element_read(safetensors_tensors(f)[t].bytes, safetensors_tensors(f)[t].type.dtype, e);
      assert_true(sum == 0);
      safetensors_close(f);
    }
    status_free(s);
    free(copy);
  }
  free(good);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(round_trip), cmocka_unit_test(unwritten_and_abandoned), cmocka_unit_test(hostile_headers),
                                     cmocka_unit_test(hostile_prefixes), cmocka_unit_test(mutations)};
  return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
