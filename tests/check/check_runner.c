// check_runner CHECKFILE TEXT [PREFIXES]: CHECK lines against any text, for test_check.py. Prints the error; exits with its code.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/check_file.h"

static char *read_all(const char *path, size_t *out_bytes) {
  FILE *file = fopen(path, "rb");
  char *text = malloc(1 << 20);
  *out_bytes = file && text ? fread(text, 1, 1 << 20, file) : 0;
  if (file) fclose(file);
  return text;
}

static Status check(const char *const *argv, const char *checks, size_t checks_bytes, const char *text, size_t bytes, Arena *arena) {
  ARENA_GUARD(arena);
  CheckFile *file;
  Status s = check_file_parse(argv[1], checks, checks_bytes, argv[3], arena, &file);
  if (!s) s = check_file_match(file, argv[2], text, bytes, arena);
  ARENA_RETURN(arena, s);
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  size_t checks_bytes, bytes;
  char *checks = read_all(argv[1], &checks_bytes), *text = read_all(argv[2], &bytes);
  Arena *arena = arena_create((size_t)1 << 30);
  const char *const args[] = {argv[0], argv[1], argv[2], argc > 3 ? argv[3] : NULL};
  Status s = check(args, checks, checks_bytes, text, bytes, arena);
  int code = (int)status_code(s);
  if (s) printf("%s\n", s->what);
  status_free(s);
  arena_destroy(arena);
  free(checks);
  free(text);
  return code;
}
