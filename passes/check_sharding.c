// check_sharding: the multi-device annotations that the model brought along, all defects at once.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/sharding.h"
#include "pass_list.h"

enum { DEFECTS_SHOWN = 50 };

typedef struct Found { FILE *to; int n; } Found;

static void note(void *self, const Node *node, const char *code, const char *what) {
  Found *found = self;
  if (found->n++ >= DEFECTS_SHOWN) return;
  fprintf(found->to, "\n  ");
  if (node) fprintf(found->to, "node '%s': ", node->name);
  fprintf(found->to, "[%s] %s", code, what);
}

Status pass_check_sharding(Graph *graph, const CompileOptions *options) {
  char *text = NULL;
  size_t bytes;
  Found found = {.to = open_memstream(&text, &bytes)};
  if (!found.to) FAIL(RESOURCE, NULL, "out of memory");
  sharding_check_configurations(graph, graph->arena, note, &found);
  for (size_t i = 0; i < graph->n_nodes; i++) sharding_check_node(graph, graph->nodes[i], graph->arena, note, &found);
  Status status = fclose(found.to) ? status_fail(STATUS_RESOURCE, NULL, "out of memory") : STATUS_OK;
  if (!status && found.n > DEFECTS_SHOWN)
    status = status_fail(STATUS_MALFORMED, NULL, "%d problems:%s\n  and %d more", found.n, text, found.n - DEFECTS_SHOWN);
  else if (!status && found.n > 1) status = status_fail(STATUS_MALFORMED, NULL, "%d problems:%s", found.n, text);
  else if (!status && found.n) status = status_fail(STATUS_MALFORMED, NULL, "%s", text + strspn(text, "\n "));
  free(text);
  return status;
}
