#include "printable.h"

#include <string.h>

static bool is_control(char c) { return (unsigned char)c < 0x20 || c == 0x7f; }

static bool is_printable(const char *text) {
  for (; *text; text++)
    if (is_control(*text)) return false;
  return true;
}

enum { ESCAPE_BYTES = 5 };

// What stands for the character, without a closing 0; its length.
static int escape(char c, char out[ESCAPE_BYTES]) {
  static const char hex[] = "0123456789abcdef", letters[] = "\nn\tt\rr";
  const char *letter = c ? strchr(letters, c) : NULL;
  out[0] = '\\';
  if (letter) {
    out[1] = letter[1];
    return 2;
  }
  out[1] = 'x';
  out[2] = hex[(unsigned char)c >> 4];
  out[3] = hex[c & 15];
  return 4;
}

const char *printable_text(const char *text, Arena *arena) {
  if (!text || is_printable(text)) return text;
  char *out = arena_alloc(arena, (ESCAPE_BYTES - 1) * strlen(text) + 1);
  size_t n = 0;
  for (; *text; text++) {
    if (is_control(*text)) n += (size_t)escape(*text, out + n);
    else out[n++] = *text;
  }
  out[n] = 0;
  return out;
}

void printable_print(FILE *to, const char *text, bool lines) {
  for (; *text; text++) {
    char out[ESCAPE_BYTES];
    if (is_control(*text) && !(lines && *text == '\n')) fwrite(out, 1, (size_t)escape(*text, out), to);
    else fputc(*text, to);
  }
}

void printable_graph(Graph *g) {
  Arena *arena = g->arena;
  for (size_t i = 0; i < g->n_values; i++) {
    Value *v = g->values[i];
    const char *name = printable_text(v->name, arena);
    if (name != v->name) graph_rename_value(g, v, graph_free_name(g, name));
    v->doc = printable_text(v->doc, arena);
  }
  for (size_t i = 0; i < g->n_nodes; i++) {
    Node *n = g->nodes[i];
    n->name = printable_text(n->name, arena);
    n->origin = printable_text(n->origin, arena);
    n->cause.param = printable_text(n->cause.param, arena);
    n->cause.node = printable_text(n->cause.node, arena);
  }
  for (size_t b = 0; b < g->n_buckets; b++) {
    g->buckets[b].group = printable_text(g->buckets[b].group, arena);
    for (int i = 0; i < g->buckets[b].n_params; i++) g->buckets[b].params[i] = printable_text(g->buckets[b].params[i], arena);
  }
  for (size_t i = 0; i < g->n_buffers; i++) g->buffers[i].name = printable_text(g->buffers[i].name, arena);
  for (size_t i = 0; i < g->n_savings; i++) g->savings[i].reason = printable_text(g->savings[i].reason, arena);
  Recipe *r = &g->recipe;
  const char **texts[] = {&r->model, &r->precision, &r->loss_output, &r->loss_rule, &r->chosen, &r->optimizer, &r->isa, &r->numerics_key};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) *texts[i] = printable_text(*texts[i], arena);
}
