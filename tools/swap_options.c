#include "swap_options.h"

#include <inttypes.h>
#include <string.h>

Status swap_options_read(const Options *o, SwapOptions *out) {
  if (o->io_block % SWAP_PAGE_BYTES) FAIL(USAGE, NULL, "--io-block %" PRId64 ": it must be a multiple of %d", o->io_block, SWAP_PAGE_BYTES);
  *out = (SwapOptions){.depth = (int)o->io_depth, .block_bytes = o->io_block, .deadline_ns = (int64_t)(o->deadline * 1e9)};
  for (SwapEngine e = SWAP_ENGINE_AUTO; e <= SWAP_ENGINE_THREADS; e++)
    if (!strcmp(o->io_engine, swap_engine_name(e))) out->engine = e;
  out->direct = !strcmp(o->io_direct, "on") ? SWAP_DIRECT_ON : !strcmp(o->io_direct, "off") ? SWAP_DIRECT_OFF : SWAP_DIRECT_AUTO;
  return NULL;
}

void swap_info_write(JsonWriter *w, const SwapInfo *info) {
  json_write_text(w, "engine", swap_engine_name(info->engine));
  json_write_text(w, "engine_note", info->engine_note[0] ? info->engine_note : NULL);
  json_write_bool(w, "direct", info->direct);
  json_write_text(w, "direct_note", info->direct_note[0] ? info->direct_note : NULL);
  json_write_int(w, "depth", info->depth);
  json_write_int(w, "block_bytes", info->block_bytes);
  json_write_int(w, "bytes", info->bytes);
}

static void print_with_note(FILE *to, const char *what, const char *note) {
  fprintf(to, *note ? "%s (%s)" : "%s", what, note);
}

void swap_info_print(FILE *to, const SwapInfo *info, const char *dir) {
  const char *engine = info->engine == SWAP_ENGINE_URING ? "io_uring" : "threads", *way = info->direct ? "direct" : "through the page cache";
  fprintf(to, "swap file in %s: %.1f MiB, ", dir, (double)info->bytes / (1 << 20));
  print_with_note(to, engine, info->engine_note);
  fprintf(to, ", %d requests of at most %" PRId64 " KiB in flight per rank, ", info->depth, info->block_bytes >> 10);
  print_with_note(to, way, info->direct_note);
  fputc('\n', to);
}
