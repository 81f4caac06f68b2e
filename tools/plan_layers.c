#include "plan_layers.h"

#include <ctype.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/op.h"

// ---- Names --------------------------------------------------------------------------------------------------------------------

enum { PARTS_MAX = 32 };
typedef struct Parts { const char *at[PARTS_MAX]; int bytes[PARTS_MAX]; int n; } Parts;

static bool is_number(const char *at, int bytes) {
  for (int i = 0; i < bytes; i++)
    if (!isdigit((unsigned char)at[i])) return false;
  return bytes > 0 && bytes <= 9;
}

static bool same_part(const Parts *a, int i, const Parts *b, int k) { return a->bytes[i] == b->bytes[k] && !memcmp(a->at[i], b->at[k], (size_t)a->bytes[i]); }

// Cuts at each of `marks`. Scopes of TorchScript repeat the container's name ("/layers/layers.0/Gemm"): one of the two is left out.
static Parts cut(const char *name, const char *marks) {
  Parts p = {.n = 0};
  for (const char *at = name; *at && p.n < PARTS_MAX;) {
    int bytes = (int)strcspn(at, marks);
    if (bytes) {
      p.at[p.n] = at;
      p.bytes[p.n++] = bytes;
      if (p.n > 1 && same_part(&p, p.n - 1, &p, p.n - 2) && at[bytes] == '.' && at[-1] == '/') p.n--;
    }
    at += bytes + (at[bytes] != 0);
  }
  return p;
}

static char *join(const Parts *p, int n, Arena *arena) {
  size_t bytes = 0;
  for (int i = 0; i < n; i++) bytes += (size_t)p->bytes[i] + 1;
  char *out = arena_alloc(arena, bytes + 1), *to = out;
  for (int i = 0; i < n; i++) {
    if (i) *to++ = '.';
    memcpy(to, p->at[i], (size_t)p->bytes[i]);
    to += p->bytes[i];
  }
  *to = 0;
  return out;
}

static int first_number(const Parts *p) {
  for (int i = 1; i + 1 < p->n; i++)
    if (is_number(p->at[i], p->bytes[i])) return i;
  return 0;
}

const char *layer_name(const char *name, Arena *arena, const char **family, int64_t *index) {
  *family = NULL;
  *index = -1;
  if (!name) return NULL;
  Parts p = cut(name, "./");
  int number = first_number(&p);
  if (!number && p.n == 1 && p.bytes[0] > 2 && strchr("pb", name[0]) && name[1] == '_') {   // torch.export: p_transformer_h_3_attn_weight
    Parts words = cut(name + 2, "_");
    if (first_number(&words)) {
      p = words;
      number = first_number(&p);
    }
  }
  if (number) {
    *index = strtoll(p.at[number], NULL, 10);
    *family = arena_printf(arena, "%s.", join(&p, number, arena));
    return join(&p, number + 1, arena);
  }
  bool scoped = name[0] == '/' || (!strchr(name, '/') && strchr(name, '.'));
  if (p.n > 1 && scoped) return join(&p, p.n - 1, arena);
  return NULL;
}

// ---- Patterns -----------------------------------------------------------------------------------------------------------------

static bool part_matches(const Parts *pattern, int i, const Parts *name, int k) {
  char glob[256], part[256];
  if (pattern->bytes[i] >= (int)sizeof glob || name->bytes[k] >= (int)sizeof part) return false;
  snprintf(glob, sizeof glob, "%.*s", pattern->bytes[i], pattern->at[i]);
  snprintf(part, sizeof part, "%.*s", name->bytes[k], name->at[k]);
  return !fnmatch(glob, part, 0);
}

bool layer_pattern_matches(const char *pattern, const char *name) {
  if (!name) return false;
  Parts globs = cut(pattern, "./"), parts = cut(name, "./");
  for (int from = 0; globs.n && from + globs.n <= parts.n; from++) {
    int i = 0;
    while (i < globs.n && part_matches(&globs, i, &parts, from + i)) i++;
    if (i == globs.n) return true;
  }
  return false;
}

bool layer_pattern_takes_step(const char *pattern, const PlanLayers *layers, const Node *n) {
  return layer_pattern_matches(pattern, layers->items[layers->of_step[n->id]].name) || layer_pattern_matches(pattern, n->origin) ||
         layer_pattern_matches(pattern, n->cause.param) || layer_pattern_matches(pattern, n->cause.node);
}

// ---- Tables by name -----------------------------------------------------------------------------------------------------------

// From text to a number; open addressing, made for n entries at most.
typedef struct Table { const char **keys; int32_t *values; size_t mask; } Table;

static Table table_create(size_t n, Arena *arena) {
  size_t size = 16;
  while (size < 2 * n) size *= 2;
  return (Table){ARENA_ARRAY(arena, const char *, size), ARENA_ARRAY(arena, int32_t, size), size - 1};
}

static size_t table_slot(const Table *t, const char *key) {
  uint64_t h = 14695981039346656037u;            // FNV-1a
  for (const char *c = key; *c; c++) h = (h ^ (unsigned char)*c) * 1099511628211u;
  size_t slot = (size_t)(h ^ h >> 32) & t->mask;
  while (t->keys[slot] && strcmp(t->keys[slot], key)) slot = (slot + 1) & t->mask;
  return slot;
}

static int32_t table_get(const Table *t, const char *key) {
  size_t slot = key ? table_slot(t, key) : 0;
  return key && t->keys[slot] ? t->values[slot] : -1;
}

static void table_put(Table *t, const char *key, int32_t value) {
  size_t slot = table_slot(t, key);
  t->keys[slot] = key;
  t->values[slot] = value;
}

// ---- Layers of a plan ---------------------------------------------------------------------------------------------------------

typedef struct Finder {
  const Graph *graph;
  Arena *arena;
  Layer *items;
  size_t n, capacity;
  Table by_name;               // layer's name -> its index
  Table by_origin;             // ONNX node's name -> its layer
  Table by_param;              // parameter's name -> place in `params`
  int32_t *params;             // [all parameters of all buckets]: layer, 0: not known
  int32_t *of_value;           // [n_values]: layer, 0: not known
  int32_t *of_step;
} Finder;

// Nodes make no layers without a number: what `labels.flat` computes is of no module that has parameters.
static int32_t find_layer(Finder *f, const char *name, bool is_param) {
  const char *family;
  int64_t index;
  const char *layer = layer_name(name, f->arena, &family, &index);
  if (!layer) return 0;
  int32_t at = table_get(&f->by_name, layer);
  if (at >= 0 || (!is_param && index < 0)) return at >= 0 ? at : 0;
  at = (int32_t)f->n;
  ARENA_PUSH(f->arena, f->items, f->n, f->capacity, ((Layer){.name = layer, .family = family, .index = index}));
  table_put(&f->by_name, layer, at);
  return at;
}

// Parameters by their names; those without a say are found out from their readers.
static void name_params(Finder *f) {
  const Graph *g = f->graph;
  int32_t n = 0;
  for (size_t b = 0; b < g->n_buckets; b++)
    for (int i = 0; i < g->buckets[b].n_params; i++, n++) {
      const char *name = g->buckets[b].params[i];
      if (table_get(&f->by_param, name) >= 0) continue;
      table_put(&f->by_param, name, n);
      f->params[n] = find_layer(f, name, true);
    }
}

// A step of the model: by its name, by the parameters that it reads, by the latest of what it computes from.
static int32_t layer_of_model_step(Finder *f, const Node *n) {
  int32_t layer = find_layer(f, n->origin, false), numbered = 0, named = 0, latest = 0;
  uint32_t latest_id = 0;
  for (int i = 0; i < n->n_inputs; i++) {
    const Value *v = n->inputs[i];
    if (!v) continue;
    int32_t param = table_get(&f->by_param, v->name);      // whole parameters have their names, wherever they come from
    const Node *from = v->producer;
    if (param >= 0) {
      int32_t of_param = f->params[param];
      if (of_param && f->items[of_param].index >= 0) numbered = of_param;
      else if (of_param) named = of_param;
    } else if (from && f->of_value[v->id] && from->id >= latest_id) {
      latest = f->of_value[v->id];
      latest_id = from->id;
    }
  }
  if (!layer) layer = numbered ? numbered : named ? named : latest;
  for (int i = 0; i < n->n_inputs; i++) {        // a parameter whose name says nothing is of its first reader's layer
    int32_t param = n->inputs[i] ? table_get(&f->by_param, n->inputs[i]->name) : -1;
    if (param >= 0 && !f->params[param]) f->params[param] = layer;
  }
  return layer;
}

static void find_step(Finder *f, const Node *n) {
  bool of_model = n->origin && n->phase == PHASE_MICRO;
  int32_t layer = 0;
  if (of_model) layer = table_get(&f->by_origin, n->origin);
  if (of_model && layer < 0) {
    layer = layer_of_model_step(f, n);
    table_put(&f->by_origin, n->origin, layer);
  }
  f->of_step[n->id] = layer > 0 ? layer : 0;
  for (int o = 0; o < n->n_outputs; o++)
    if (n->outputs[o]) f->of_value[n->outputs[o]->id] = f->of_step[n->id];
}

// Steps that the compiler has added: of the layer of the parameter that they are for.
static void find_added_steps(Finder *f) {
  const Graph *g = f->graph;
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *n = g->nodes[i];
    int32_t param = n->cause.param ? table_get(&f->by_param, n->cause.param) : -1, origin = table_get(&f->by_origin, n->cause.node);
    if (!f->of_step[i] && param >= 0) f->of_step[i] = f->params[param];
    if (!f->of_step[i] && origin > 0) f->of_step[i] = origin;
    if (n->phase == PHASE_MICRO) f->items[f->of_step[i]].n_steps++;
  }
}

static int64_t share(int64_t bytes, int64_t part, int64_t whole) { return whole > 0 ? (int64_t)((__int128)bytes * part / whole) : 0; }

// A bucket's collective belongs to the layers of its parameters by their lengths; what pads the bucket is its last parameter's.
static void share_entry(PlanLayers *layers, const Graph *g, const LedgerEntry *e) {
  int64_t total = bytes_times(e->bytes, e->times);
  const Node *n = g->nodes[e->step];
  int64_t done = 0;
  bool of_bucket = e->bucket >= 0 && (size_t)e->bucket < g->n_buckets;
  const Bucket *b = of_bucket ? &g->buckets[e->bucket] : NULL;
  for (int i = 0; b ? i < b->n_params : i < 1; i++) {
    int64_t until = !b || i + 1 == b->n_params ? total : share(total, b->starts[i + 1], b->elems);
    if (until > total) until = total;
    if (until < done) until = done;              // a hostile plan's starts need not ascend
    Layer *layer = &layers->items[b ? layers->of_param[e->bucket][i] : layers->of_step[e->step]];
    layer->sent_bytes = bytes_add(layer->sent_bytes, until - done);
    if (n->op->flags & OP_SUMS_RANKS) layer->reduced_bytes = bytes_add(layer->reduced_bytes, until - done);
    else layer->gathered_bytes = bytes_add(layer->gathered_bytes, until - done);
    done = until;
  }
}

static void count_params(const Finder *f, PlanLayers *layers) {
  const Graph *g = f->graph;
  layers->of_param = ARENA_ARRAY(f->arena, int32_t *, g->n_buckets);
  for (size_t b = 0; b < g->n_buckets; b++) {
    layers->of_param[b] = ARENA_ARRAY(f->arena, int32_t, g->buckets[b].n_params);
    for (int i = 0; i < g->buckets[b].n_params; i++) {
      int32_t param = table_get(&f->by_param, g->buckets[b].params[i]);
      int32_t at = layers->of_param[b][i] = f->params[param];
      layers->items[at].n_params++;
      layers->items[at].param_elems = bytes_add(layers->items[at].param_elems, type_elems(&g->buckets[b].types[i]));
    }
  }
}

PlanLayers plan_layers(const Graph *g, const LedgerEntry *ledger, size_t n_ledger, Arena *arena) {
  size_t n_params = 0;
  for (size_t b = 0; b < g->n_buckets; b++) n_params += (size_t)g->buckets[b].n_params;
  Finder f = {.graph = g, .arena = arena, .params = ARENA_ARRAY(arena, int32_t, n_params), .of_value = ARENA_ARRAY(arena, int32_t, g->n_values),
              .of_step = ARENA_ARRAY(arena, int32_t, g->n_nodes), .by_name = table_create(g->n_nodes + n_params, arena),
              .by_origin = table_create(g->n_nodes, arena), .by_param = table_create(n_params, arena)};
  ARENA_PUSH(arena, f.items, f.n, f.capacity, ((Layer){.name = "", .index = -1}));
  name_params(&f);
  for (size_t i = 0; i < g->n_nodes; i++) find_step(&f, g->nodes[i]);
  find_added_steps(&f);
  PlanLayers layers = {.items = f.items, .n = f.n, .of_step = f.of_step};
  count_params(&f, &layers);
  for (size_t i = 0; i < n_ledger; i++) share_entry(&layers, g, &ledger[i]);
  return layers;
}

// ---- Layers that are alike ----------------------------------------------------------------------------------------------------

static bool nearly(int64_t a, int64_t b) { return (a > b ? a - b : b - a) <= 64; }     // shares of a bucket are rounded down, one per collective

bool layers_alike(const Layer *a, const Layer *b) {
  return a->family && b->family && !strcmp(a->family, b->family) && b->n_params == a->n_params && b->param_elems == a->param_elems &&
         nearly(a->gathered_bytes, b->gathered_bytes) && nearly(a->reduced_bytes, b->reduced_bytes);
}

size_t layers_alike_run(const PlanLayers *layers, size_t from) {
  size_t n = 1;
  for (const Layer *first = &layers->items[from]; from + n < layers->n; n++) {
    const Layer *next = first + n;
    if (next->index != first->index + (int64_t)n || !layers_alike(first, next)) break;
  }
  return n;
}

const char *layers_run_name(const PlanLayers *layers, size_t from, size_t n, char *out, size_t out_bytes) {
  const Layer *first = &layers->items[from];
  if (n > 1) snprintf(out, out_bytes, "%s%" PRId64 "-%" PRId64, first->family, first->index, layers->items[from + n - 1].index);
  else snprintf(out, out_bytes, "%s", first->name[0] ? first->name : "(no layer)");
  return out;
}
