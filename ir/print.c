#include "print.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "hex.h"
#include "meta.h"
#include "narrow.h"
#include "op.h"

// ---- A growing text -------------------------------------------------------------------------------------------------------------

typedef struct Text {
  Arena *arena;
  char *chars;
  size_t used, capacity;
} Text;

static void add_n(Text *t, const char *chars, size_t bytes) {
  if (t->used + bytes + 1 > t->capacity) {
    t->capacity = 2 * (t->used + bytes) + 4096;
    char *wider = arena_alloc(t->arena, t->capacity);
    if (t->used) memcpy(wider, t->chars, t->used);
    t->chars = wider;
  }
  memcpy(t->chars + t->used, chars, bytes);
  t->used += bytes;
  t->chars[t->used] = 0;
}

static void add(Text *t, const char *text) { add_n(t, text, strlen(text)); }

static void add_int(Text *t, int64_t value) {
  char text[24];
  add_n(t, text, (size_t)snprintf(text, sizeof text, "%" PRId64, value));
}

// A string literal of ONNX's syntax: only the quote and the backslash are escaped.
static void add_string(Text *t, const char *text) {
  add(t, "\"");
  for (const char *c = text; *c; c++) {
    if (*c == '"' || *c == '\\') add(t, "\\");
    add_n(t, c, 1);
  }
  add(t, "\"");
}

static bool is_identifier(const char *name) {
  if (!isascii(*name) || (!isalpha(*name) && *name != '_')) return false;
  for (const char *c = name; *c; c++)
    if (!isascii(*c) || (!isalnum(*c) && *c != '_')) return false;
  return true;
}

static void add_name(Text *t, const char *name) {
  if (is_identifier(name)) add(t, name);
  else add_string(t, name);
}

// Shortest decimals that read back to the same bits, with a point or an exponent so that they are no integer literal.
static void add_float(Text *t, double value, bool single) {
  if (isnan(value)) {
    add(t, signbit(value) ? "-nan" : "nan");
    return;
  }
  char text[40];
  for (int digits = 1; digits <= 17; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, value);
    if (single ? strtof(text, NULL) == (float)value : strtod(text, NULL) == value) break;
  }
  add(t, text);
  if (!strpbrk(text, ".en")) add(t, ".0");
}

// ---- Weights --------------------------------------------------------------------------------------------------------------------

static void add_element(Text *t, const Weight *w, int64_t i) {
  if (dtype_is_float(w->type.dtype)) add_float(t, weight_read_float(w, i), w->type.dtype == DTYPE_F32);
  else if (w->type.dtype == DTYPE_U64) {
    char text[24];
    add_n(t, text, (size_t)snprintf(text, sizeof text, "%" PRIu64, (uint64_t)weight_read_int(w, i)));
  } else add_int(t, weight_read_int(w, i));
}

static bool is_inline(const Weight *w) {
  Dtype d = w->type.dtype;
  return w->bytes && type_elems(&w->type) <= PRINT_INLINE_ELEMS && d != DTYPE_F16 && d != DTYPE_BF16 && !dtype_is_narrow(d);
}

static const char *below(const char *path, const char *base) {
  size_t n = base ? strlen(base) : 0;
  if (!n || strncmp(path, base, n)) return path;
  if (base[n - 1] != '/' && path[n] != '/') return path;
  const char *rest = path + n;
  while (*rest == '/') rest++;
  return rest;
}

static void add_weight(Text *t, const Weight *w, const PrintOptions *options) {
  if (is_inline(w)) {
    add(t, "{");
    for (int64_t i = 0; i < type_elems(&w->type); i++) {
      if (i) add(t, ", ");
      add_element(t, w, i);
    }
    add(t, "}");
    return;
  }
  char number[32];
  add(t, "[\"location\": ");
  if (w->path) {
    add_string(t, below(w->path, options->base_dir));
  } else {
    XXH128_hash_t h = XXH3_128bits(w->bytes, w->bytes ? (size_t)type_bytes(&w->type) : 0);
    char hex[HEX128_BYTES];
    add_string(t, arena_printf(t->arena, "#%s", hex128_text(h.high64, h.low64, hex)));
  }
  if (w->offset_bytes) {
    snprintf(number, sizeof number, "%" PRId64, w->offset_bytes);
    add(t, ", \"offset\": ");
    add_string(t, number);
  }
  snprintf(number, sizeof number, "%" PRId64, type_bytes(&w->type));
  add(t, ", \"length\": ");
  add_string(t, number);
  add(t, "]");
}

// Bytes that lie in no file stand in the metadata, so that nothing is lost.
static bool needs_hex(const Weight *w) { return w && w->bytes && !w->path && !is_inline(w); }

static MetaPair hex_pair(Arena *arena, const char *key, const Weight *w) {
  static const char digits[] = "0123456789abcdef";
  size_t n = (size_t)type_bytes(&w->type);
  char *text = arena_alloc(arena, 2 * n + 1);
  for (size_t i = 0; i < n; i++) {
    unsigned char byte = ((const unsigned char *)w->bytes)[i];
    text[2 * i] = digits[byte >> 4];
    text[2 * i + 1] = digits[byte & 15];
  }
  return (MetaPair){key, text};
}

static void add_type(Text *t, const Type *type) {
  char text[240];
  add(t, type_text(type, text, sizeof text));
}

// ---- Metadata -------------------------------------------------------------------------------------------------------------------

static void add_pair(Text *t, const MetaPair *pair) {
  add(t, pair->key);
  add(t, "=");
  add(t, meta_is_json(pair->key) ? pair->text : meta_quote(t->arena, pair->text));
}

static void add_pairs(Text *t, const MetaPair *pairs, size_t n) {
  if (!n) return;
  add(t, "  #@");
  for (size_t i = 0; i < n; i++) {
    add(t, " ");
    add_pair(t, &pairs[i]);
  }
}

// ---- Values ---------------------------------------------------------------------------------------------------------------------

typedef struct Printer {
  Text text;
  const Graph *graph;
  const PrintOptions *options;
  bool first;                // of the list that is being printed
} Printer;

static void next_item(Printer *p) {
  if (p->first) add(&p->text, "\n");
  p->first = false;
}

// One line: type, name, data, comma unless it is the last, metadata.
static void add_value(Printer *p, const Value *v, bool data, bool metadata, bool last) {
  Text *t = &p->text;
  next_item(p);
  add(t, "  ");
  if (v->type.dtype != DTYPE_NONE) {
    add_type(t, data ? &v->weight->type : &v->type);
    add(t, " ");
    add_name(t, v->name);
  } else {
    add_string(t, v->name);   // quoted, because a bare name could be taken for a type
  }
  if (data) {
    add(t, " = ");
    add_weight(t, v->weight, p->options);
  }
  if (!last) add(t, ",");
  if (metadata) {
    MetaPair *pairs;
    size_t n = meta_of_value(p->graph, v, t->arena, &pairs), capacity = n;
    if (data && needs_hex(v->weight)) ARENA_PUSH(t->arena, pairs, n, capacity, hex_pair(t->arena, "hex", v->weight));
    add_pairs(t, pairs, n);
  }
  add(t, "\n");
}

typedef struct Listing { const Value *value; bool metadata; } Listing;

static void add_listing(Printer *p, const char *open, const Listing *items, size_t n, const char *close) {
  add(&p->text, open);
  p->first = true;
  for (size_t i = 0; i < n; i++) add_value(p, items[i].value, items[i].metadata && items[i].value->weight, items[i].metadata, i + 1 == n);
  add(&p->text, close);
}

static bool has_pairs(const Printer *p, const Value *v) {
  MetaPair *pairs;
  return meta_of_value(p->graph, v, p->text.arena, &pairs) > 0;
}

// graph.input: the inputs, then everything else that nothing produces and that has no bytes.
static void add_inputs(Printer *p, bool *listed) {
  const Graph *g = p->graph;
  Listing *items = ARENA_ARRAY(p->text.arena, Listing, g->n_inputs + g->n_values);
  size_t n = 0;
  for (size_t i = 0; i < g->n_inputs; i++) {
    items[n++] = (Listing){g->inputs[i], !listed[g->inputs[i]->id]};
    listed[g->inputs[i]->id] = true;
  }
  for (size_t i = 0; i < g->n_values; i++) {
    const Value *v = g->values[i];
    if (v->producer || v->weight || listed[i]) continue;
    items[n++] = (Listing){v, true};
    listed[i] = true;
  }
  add_listing(p, " (", items, n, ") => ");
}

static void add_outputs(Printer *p, bool *listed) {
  const Graph *g = p->graph;
  Listing *items = ARENA_ARRAY(p->text.arena, Listing, g->n_outputs);
  for (size_t i = 0; i < g->n_outputs; i++) {
    const Value *v = g->outputs[i];
    bool own = v->producer && !listed[v->id];
    items[i] = (Listing){v, own};
    if (own) listed[v->id] = true;
  }
  add_listing(p, "(", items, g->n_outputs, ")\n");
}

static void add_value_infos(Printer *p, bool *listed) {
  const Graph *g = p->graph;
  Listing *items = ARENA_ARRAY(p->text.arena, Listing, g->n_values);
  size_t n = 0;
  for (size_t i = 0; i < g->n_values; i++)
    if (g->values[i]->weight && !listed[i]) {
      items[n++] = (Listing){g->values[i], true};
      listed[i] = true;
    }
  for (size_t i = 0; i < g->n_nodes; i++)
    for (int k = 0; k < g->nodes[i]->n_outputs; k++) {
      const Value *v = g->nodes[i]->outputs[k];
      if (!v || listed[v->id]) continue;
      if (v->type.dtype != DTYPE_NONE || has_pairs(p, v)) items[n++] = (Listing){v, true};
      listed[v->id] = true;
    }
  if (n) add_listing(p, "<", items, n, ">\n");
}

// ---- Nodes ----------------------------------------------------------------------------------------------------------------------

#define ADD_LIST(t, list, add_item)           \
  do {                                        \
    add(t, "[");                              \
    for (int64_t i_ = 0; i_ < (list)->n; i_++) { \
      if (i_) add(t, ", ");                   \
      add_item;                               \
    }                                         \
    add(t, "]");                              \
  } while (0)

static void add_attr(Printer *p, const Node *n, const AttrSpec *spec) {
  Text *t = &p->text;
  const void *at = (const char *)n->attrs + spec->offset;
  add(t, spec->name);
  add(t, " = ");
  switch (spec->type) {
  case ATTR_INT: add_int(t, *(const int64_t *)at); break;
  case ATTR_FLOAT: add_float(t, *(const float *)at, true); break;
  case ATTR_STRING: add_string(t, *(const char *const *)at ? *(const char *const *)at : ""); break;
  case ATTR_INTS: {
    const AttrInts *a = at;
    ADD_LIST(t, a, add_int(t, a->items[i_]));
    break;
  }
  case ATTR_FLOATS: {
    const AttrFloats *a = at;
    ADD_LIST(t, a, add_float(t, a->items[i_], true));
    break;
  }
  case ATTR_STRINGS: {
    const AttrStrings *a = at;
    ADD_LIST(t, a, add_string(t, a->items[i_]));
    break;
  }
  case ATTR_TENSOR: {
    const Weight *w = *(const Weight *const *)at;
    add_type(t, &w->type);
    add(t, is_inline(w) ? " " : " = ");
    add_weight(t, w, p->options);
    break;
  }
  }
}

// An attribute that is not there cannot be printed, be it required or not: empty lists and INTs without value.
static bool is_printed(const Node *n, const AttrSpec *spec) {
  const void *at = (const char *)n->attrs + spec->offset;
  if (spec->type == ATTR_INT && *(const int64_t *)at == ATTR_ABSENT) return false;
  if (spec->type == ATTR_STRING && !*(const char *const *)at) return false;
  if (spec->type == ATTR_INTS || spec->type == ATTR_FLOATS || spec->type == ATTR_STRINGS) return ((const AttrInts *)at)->n > 0;
  return !attr_is_default(n, spec);
}

static int compare_specs(const void *a, const void *b) {
  return strcmp((*(const AttrSpec *const *)a)->name, (*(const AttrSpec *const *)b)->name);
}

static void add_attrs(Printer *p, const Node *n) {
  size_t count = 0, capacity = 0;
  const AttrSpec **sorted = NULL;
  for (const AttrSpec *s = n->op->attrs; s && s->name; s++)
    if (is_printed(n, s)) ARENA_PUSH(p->text.arena, sorted, count, capacity, s);
  if (!count) return;
  qsort(sorted, count, sizeof *sorted, compare_specs);
  add(&p->text, " <");
  for (size_t i = 0; i < count; i++) {
    if (i) add(&p->text, ", ");
    add_attr(p, n, sorted[i]);
  }
  add(&p->text, ">");
}

static void add_values(Text *t, Value *const *values, int n) {
  for (int i = 0; i < n; i++) {
    if (i) add(t, ", ");
    add_name(t, values[i] ? values[i]->name : "");
  }
}

static void add_node(Printer *p, const Node *n) {
  Text *t = &p->text;
  add(t, "  ");
  bool named_after_output = n->n_outputs && n->outputs[0] ? !strcmp(n->name, n->outputs[0]->name) : false;
  if (!named_after_output) {
    add(t, "[");
    add_name(t, n->name);
    add(t, "] ");
  }
  add_values(t, n->outputs, n->n_outputs);
  add(t, n->n_outputs ? " = " : "= ");
  if (*n->op->domain) {
    add(t, n->op->domain);
    add(t, ".");
  }
  add(t, n->op->name);
  add_attrs(p, n);
  add(t, " (");
  add_values(t, n->inputs, n->n_inputs);
  add(t, ")");
  MetaPair *pairs;
  size_t count = meta_of_node(p->graph, n, t->arena, &pairs), capacity = count;
  for (const AttrSpec *s = n->op->attrs; s && s->name; s++) {
    if (s->type != ATTR_TENSOR || !is_printed(n, s)) continue;
    const Weight *w = *(const Weight *const *)((const char *)n->attrs + s->offset);
    if (needs_hex(w)) ARENA_PUSH(t->arena, pairs, count, capacity, hex_pair(t->arena, arena_printf(t->arena, "hex.%s", s->name), w));
  }
  add_pairs(t, pairs, count);
  add(t, "\n");
}

// ---- The whole ------------------------------------------------------------------------------------------------------------------

static int compare_strings(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static void add_header(Printer *p) {
  Text *t = &p->text;
  const Graph *g = p->graph;
  const char **domains = NULL;
  size_t n = 0, capacity = 0;
  for (size_t i = 0; i < g->n_nodes; i++) {
    const char *domain = g->nodes[i]->op->domain;
    bool known = !*domain;
    for (size_t k = 0; k < n && !known; k++) known = !strcmp(domains[k], domain);
    if (!known) ARENA_PUSH(t->arena, domains, n, capacity, domain);
  }
  if (n) qsort(domains, n, sizeof *domains, compare_strings);
  add(t, "<ir_version: 10, opset_import: [\"\" : ");
  add_int(t, g->opset);
  for (size_t i = 0; i < n; i++) {
    add(t, ", ");
    add_string(t, domains[i]);
    add(t, " : 1");
  }
  add(t, "]>\n");
  MetaPair *pairs;
  size_t count = meta_of_graph(g, t->arena, &pairs);
  for (size_t i = 0; i < count; i++) {
    add(t, "#@ ");
    add_pair(t, &pairs[i]);
    add(t, "\n");
  }
}

// Names "BASE.NUMBER" of computed values and of nodes, numbered anew by first appearance.
typedef struct Base { const char *text; size_t bytes; uint32_t next; } Base;
typedef struct Bases { Base *slots; size_t capacity; } Bases;

static size_t base_bytes(const char *name) {
  size_t n = strlen(name), digits = 0;
  while (digits < n && isdigit((unsigned char)name[n - 1 - digits])) digits++;
  return digits && digits + 1 < n && name[n - 1 - digits] == '.' ? n - 1 - digits : 0;
}

static uint32_t base_number(Bases *b, const char *name, size_t bytes) {
  size_t i = XXH3_64bits(name, bytes) & (b->capacity - 1);
  while (b->slots[i].text && (b->slots[i].bytes != bytes || memcmp(b->slots[i].text, name, bytes))) i = (i + 1) & (b->capacity - 1);
  b->slots[i].text = name;
  b->slots[i].bytes = bytes;
  return ++b->slots[i].next;
}

static void rename_values(Graph *g, Bases *bases) {
  size_t n = 0;
  Value **generated = ARENA_ARRAY(g->arena, Value *, g->n_values);
  const char **names = ARENA_ARRAY(g->arena, const char *, g->n_values);
  for (size_t i = 0; i < g->n_nodes; i++)
    for (int k = 0; k < g->nodes[i]->n_outputs; k++) {
      Value *v = g->nodes[i]->outputs[k];
      if (v && base_bytes(v->name)) generated[n++] = v;
    }
  for (size_t i = 0; i < n; i++) {   // out of the way first: new names may be old ones of others
    names[i] = generated[i]->name;
    graph_rename_value(g, generated[i], arena_printf(g->arena, "\x01%zu", i));
  }
  for (size_t i = 0; i < n; i++) {
    int bytes = (int)base_bytes(names[i]);
    const char *fresh;
    do fresh = arena_printf(g->arena, "%.*s.%u", bytes, names[i], base_number(bases, names[i], (size_t)bytes));
    while (graph_find_value(g, fresh));
    graph_rename_value(g, generated[i], fresh);
  }
}

static void rename_nodes(Graph *g, Bases *bases) {
  for (size_t i = 0; i < g->n_nodes; i++) {
    Node *n = g->nodes[i];
    size_t bytes = base_bytes(n->name);
    if (!bytes) continue;
    bool own_origin = n->origin && !strcmp(n->origin, n->name);
    n->name = arena_printf(g->arena, "%.*s.%u", (int)bytes, n->name, base_number(bases, n->name, bytes));
    if (own_origin) n->origin = n->name;
  }
}

static const Graph *renumbered(const Graph *graph, Arena *arena) {
  Graph *g = graph_clone(graph, arena);
  size_t capacity = 64;
  while (capacity < 2 * (g->n_values + 1) || capacity < 2 * (g->n_nodes + 1)) capacity *= 2;
  Bases values = {ARENA_ARRAY(arena, Base, capacity), capacity}, nodes = {ARENA_ARRAY(arena, Base, capacity), capacity};
  rename_values(g, &values);
  rename_nodes(g, &nodes);
  return g;
}

char *graph_text(const Graph *graph, const PrintOptions *options, Arena *arena) {
  static const PrintOptions plain = {0};
  if (!options) options = &plain;
  if (options->renumber) graph = renumbered(graph, arena);
  Printer p = {.text = {.arena = arena}, .graph = graph, .options = options};
  add_header(&p);
  add_name(&p.text, graph->name);
  bool *listed = ARENA_ARRAY(arena, bool, graph->n_values);
  add_inputs(&p, listed);
  add_outputs(&p, listed);
  add_value_infos(&p, listed);
  add(&p.text, "{\n");
  for (size_t i = 0; i < graph->n_nodes; i++) add_node(&p, graph->nodes[i]);
  add(&p.text, "}\n");
  return p.text.chars;
}

static Status text_guarded(const Graph *graph, const PrintOptions *options, Arena *arena, char **out) {
  ARENA_GUARD(arena);
  *out = graph_text(graph, options, arena);
  ARENA_RETURN(arena, STATUS_OK);
}

Status graph_print(const Graph *graph, const PrintOptions *options, FILE *file) {
  Arena *arena = arena_create(0);
  if (!arena) FAIL(RESOURCE, NULL, "out of memory while printing graph '%s'", graph->name);
  char *text = NULL;
  Status s = text_guarded(graph, options, arena, &text);
  if (!s && (fputs(text, file) < 0 || fflush(file)))
    s = status_fail(STATUS_IO, NULL, "cannot write the text of graph '%s': %s", graph->name, strerror(errno));
  arena_destroy(arena);
  return s;
}
