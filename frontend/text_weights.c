#include "text_weights.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../ir/op.h"
#include "external_data.h"

struct TextWeights { ExternalFiles files; };

static bool is_there(const char *folder, const char *location, Arena *arena) {
  return !access(arena_printf(arena, "%s/%s", folder, location), F_OK) || errno != ENOENT;
}

// The place as a TensorProto would give it.
static Status find_bytes(TextWeights *t, const Weight *w, Arena *arena, const Weight **out) {
  const char *pairs[][2] = {{"location", w->path}, {"offset", arena_printf(arena, "%" PRId64, w->offset_bytes)},
                            {"length", arena_printf(arena, "%" PRId64, type_bytes(&w->type))}};
  enum { PAIRS = sizeof pairs / sizeof *pairs };
  Onnx__StringStringEntryProto entries[PAIRS], *list[PAIRS];
  for (int i = 0; i < PAIRS; i++) {
    entries[i] = (Onnx__StringStringEntryProto)ONNX__STRING_STRING_ENTRY_PROTO__INIT;
    entries[i].key = (char *)pairs[i][0];
    entries[i].value = (char *)pairs[i][1];
    list[i] = &entries[i];
  }
  Onnx__TensorProto head = ONNX__TENSOR_PROTO__INIT;
  head.name = (char *)w->name;
  head.external_data = list;
  head.n_external_data = PAIRS;
  const ExternalFile *file;
  int64_t at;
  Status status = external_find(&t->files, &(OnnxTensor){.head = &head}, type_bytes(&w->type), &file, &at);
  if (status_code(status) == STATUS_IO && !is_there(t->files.folder, w->path, arena)) {
    status_free(status);
    return STATUS_OK;
  }
  TRY(status);
  Weight *found = arena_copy(arena, w, sizeof *w);
  found->bytes = file->bytes + at;
  found->path = file->path;
  found->mapped = true;
  *out = found;
  return STATUS_OK;
}

static bool is_place(const Weight *w) { return w && !w->bytes && w->path && w->path[0] != '#'; }

static Status open_all(Graph *g, TextWeights *t) {
  for (size_t i = 0; i < g->n_values; i++)
    if (is_place(g->values[i]->weight)) TRY(find_bytes(t, g->values[i]->weight, g->arena, &g->values[i]->weight));
  for (size_t i = 0; i < g->n_nodes; i++) {
    Node *n = g->nodes[i];
    for (const AttrSpec *s = n->op->attrs; s && s->name; s++) {
      if (s->type != ATTR_TENSOR) continue;
      const Weight **w = (const Weight **)((char *)n->attrs + s->offset);
      if (is_place(*w)) TRY(status_context(find_bytes(t, *w, g->arena, w), "node '%s'", n->name));
    }
  }
  return STATUS_OK;
}

static Status open_guarded(Graph *graph, TextWeights *t) {
  ARENA_GUARD(graph->arena);
  ARENA_RETURN(graph->arena, open_all(graph, t));
}

Status text_weights_open(Graph *graph, const char *folder, TextWeights **out) {
  TextWeights *t = calloc(1, sizeof *t);
  if (!t || !(t->files.folder = strdup(folder))) {
    free(t);
    FAIL(RESOURCE, NULL, "out of memory");
  }
  Status status = open_guarded(graph, t);
  if (status) text_weights_close(t);
  else *out = t;
  return status;
}

void text_weights_close(TextWeights *t) {
  if (!t) return;
  external_close(&t->files);
  free(t);
}
