#include "check_text.h"

#include <stdlib.h>
#include <string.h>

#include "check_file.h"
#include "graph_file.h"

// `text`: NULL: only reads the CHECK lines.
static Status check_guarded(const Options *options, const char *checks, size_t checks_bytes, const char *text, size_t bytes, Arena *arena) {
  ARENA_GUARD(arena);
  CheckFile *file;
  Status s = check_file_parse(options->check, checks, checks_bytes, options->check_prefix, arena, &file);
  if (!s && text) s = check_file_match(file, "the output", text, bytes, arena);
  ARENA_RETURN(arena, s);
}

static Status check(const Options *options, const char *text, size_t bytes) {
  char *checks;
  size_t checks_bytes;
  TRY(graph_file_read_text(options->check, &checks, &checks_bytes));
  Arena *arena = arena_create(0);
  Status s = arena ? check_guarded(options, checks, checks_bytes, text, bytes, arena) : status_fail(STATUS_RESOURCE, NULL, "out of memory for --check");
  arena_destroy(arena);
  free(checks);
  return s;
}

Status check_text_parse(const Options *options) {
  if (options->check_prefix && !options->check) FAIL(USAGE, NULL, "--check-prefix says which lines of --check FILE count; there is no --check");
  if (!options->check) return STATUS_OK;
  if (!strcmp(options->check, "-")) FAIL(USAGE, NULL, "--check -: CHECK lines are read from a file");
  return check(options, NULL, 0);
}

Status check_text_graph(const Options *options, const Graph *graph) {
  if (!options->check) return STATUS_OK;
  char *text;
  size_t bytes;
  TRY(graph_file_text(options, graph, &text, &bytes));
  Status s = check(options, text, bytes);
  free(text);
  return s;
}
