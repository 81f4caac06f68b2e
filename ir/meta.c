#include "meta.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decimal.h"

// ---- Pairs out ------------------------------------------------------------------------------------------------------------------

typedef struct Pairs {
  Arena *arena;
  MetaPair *items;
  size_t count, capacity;
} Pairs;

static void put(Pairs *p, const char *key, const char *text) {
  if (text) ARENA_PUSH(p->arena, p->items, p->count, p->capacity, ((MetaPair){key, text}));
}

static void put_int(Pairs *p, const char *key, int64_t value, int64_t left_out) {
  if (value != left_out) put(p, key, arena_printf(p->arena, "%" PRId64, value));
}

const char *meta_quote(Arena *arena, const char *text) {
  size_t bytes = 2;
  for (const unsigned char *c = (const unsigned char *)text; *c; c++) bytes += *c == '"' || *c == '\\' ? 2 : *c < 0x20 || *c == 0x7f ? 6 : 1;
  char *out = arena_alloc(arena, bytes + 1), *o = out;
  *o++ = '"';
  for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
    if (*c == '"' || *c == '\\') *o++ = '\\', *o++ = (char)*c;
    else if (*c < 0x20 || *c == 0x7f) o += sprintf(o, "\\u%04x", *c);
    else *o++ = (char)*c;
  }
  *o++ = '"';
  return out;
}

bool meta_is_json(const char *key) {
  return !strncmp(key, "bucket.", 7) || !strncmp(key, "buffer.", 7) || !strncmp(key, "saving.", 7) || !strcmp(key, "waits") ||
         !strcmp(key, META_CONFIGURATIONS) || !strcmp(key, META_SHARDING);
}

// By the value's place alone: its `role` pair is left out then.
static Role default_role(const Value *value) {
  if (value->producer) return ROLE_ACTIVATION;
  return value->weight ? ROLE_CONST : ROLE_INPUT;
}

static const char *const placement_names[] = {"whole", "split", "flat", "partial"};
_Static_assert(sizeof placement_names / sizeof *placement_names == PLACED_COUNT, "one name per placement");

static bool placement_has_arg(PlacementKind kind) { return kind == PLACED_SPLIT || kind == PLACED_FLAT; }

static const char *placement_text(const Graph *graph, const Value *v, Arena *arena) {
  const char *text = NULL;
  for (int i = 0; i < graph->mesh.n_axes; i++) {
    Placement at = v->placement[i];
    if (at.kind == PLACED_WHOLE) continue;
    const char *before = text ? text : "", *space = text ? " " : "", *axis = graph->mesh.axes[i].name, *kind = placement_names[at.kind];
    text = placement_has_arg(at.kind) ? arena_printf(arena, "%s%s%s:%s(%d)", before, space, axis, kind, at.arg)
                                      : arena_printf(arena, "%s%s%s:%s", before, space, axis, kind);
  }
  return text;
}

size_t meta_of_value(const Graph *graph, const Value *v, Arena *arena, MetaPair **out) {
  Pairs p = {.arena = arena};
  bool frozen = v->role == ROLE_PARAM && !v->trainable;
  if (v->role != default_role(v)) put(&p, "role", frozen ? "frozen" : role_name(v->role));
  if (v->trainable && v->role != ROLE_PARAM) put(&p, "trainable", "true");
  if (v->weight && v->weight->type.dtype != v->type.dtype) put(&p, "dtype", dtype_name(v->type.dtype));
  put(&p, "placement", placement_text(graph, v, arena));
  if (v->tier != TIER_DEVICE) put(&p, "tier", tier_name(v->tier));
  if (v->layout != LAYOUT_PLAIN) put(&p, "layout", layout_name(v->layout));
  if (v->of) put(&p, "of", v->of->name);
  if (v->carry) put(&p, "carry", v->carry->name);
  put_int(&p, "bucket", v->bucket, -1);
  put(&p, "state_name", v->state_name);
  if (v->state_shape != STATE_ELEMENTS) put(&p, "state_shape", state_shape_name(v->state_shape));
  if (v->loc.buffer >= 0 && v->loc.rank_stride_bytes)
    put(&p, "loc", arena_printf(arena, "%d+%" PRId64 "+%" PRId64 "*rank", v->loc.buffer, v->loc.offset_bytes, v->loc.rank_stride_bytes));
  else if (v->loc.buffer >= 0)
    put(&p, "loc", arena_printf(arena, "%d+%" PRId64, v->loc.buffer, v->loc.offset_bytes));
  put(&p, "doc", v->doc);
  *out = p.items;
  return p.count;
}

static const char *waits_text(const Graph *graph, const Node *n, Arena *arena) {
  const char *text = "[";
  for (int i = 0; i < n->n_waits; i++)
    text = arena_printf(arena, "%s%s%s", text, i ? ", " : "", meta_quote(arena, graph->nodes[n->waits[i]]->name));
  return arena_printf(arena, "%s]", text);
}

size_t meta_of_node(const Graph *graph, const Node *n, Arena *arena, MetaPair **out) {
  Pairs p = {.arena = arena};
  if (n->phase != PHASE_MICRO) put(&p, "phase", phase_name(n->phase));
  if (n->backward) put(&p, "backward", "true");
  if (!n->origin) put(&p, "generated", "true");
  else if (strcmp(n->origin, n->name)) put(&p, "origin", n->origin);
  put(&p, "recomputes", n->recomputes);
  put(&p, "cause.param", n->cause.param);
  put(&p, "cause.node", n->cause.node);
  put(&p, "cause.pass", n->cause.pass);
  if (n->queue != QUEUE_COMPUTE) put(&p, "queue", queue_name(n->queue));
  if (n->guard != GUARD_NONE) put(&p, "guard", guard_name(n->guard));
  put_int(&p, "region", n->region, -1);
  put_int(&p, "workspace", n->workspace, -1);
  put_int(&p, "scratch", n->scratch, -1);
  if (n->n_waits) put(&p, "waits", waits_text(graph, n, arena));
  put(&p, META_SHARDING, sharding_node_text(n, arena));
  *out = p.items;
  return p.count;
}

// ---- The graph's own pairs: facts, recipe, buckets, buffers, savings ------------------------------------------------------------

static const char *const fact_names[] = {"typed", "summed", "backward", "optimizer", "accumulated", "placed", "lowered", "scheduled", "planned"};
enum { FACTS_COUNT = sizeof fact_names / sizeof *fact_names };
_Static_assert(1 << (FACTS_COUNT - 1) == FACT_PLANNED, "one name per fact");

const char *fact_name(uint32_t fact) {
  for (int i = 0; i < FACTS_COUNT; i++)
    if (fact == 1u << i) return fact_names[i];
  return "?";
}

// Fields of the graph that name a value.
static const struct { const char *key; size_t offset; } report_fields[] = {
    {"loss", offsetof(Graph, loss)},               {"loss_count", offsetof(Graph, loss_count)},
    {"loss_report", offsetof(Graph, loss_report)}, {"norm_report", offsetof(Graph, norm_report)},
    {"inverse_count", offsetof(Graph, inverse_count)},
};
enum { REPORTS = sizeof report_fields / sizeof *report_fields };

static Value **report_at(Graph *g, int i) { return (Value **)((char *)g + report_fields[i].offset); }

static int report_index(const char *key) {
  for (int i = 0; i < REPORTS; i++)
    if (!strcmp(key, report_fields[i].key)) return i;
  return -1;
}

typedef enum RecipeType { RECIPE_STRING, RECIPE_INT, RECIPE_INT64, RECIPE_DOUBLE, RECIPE_REDUCE, RECIPE_ACCUMULATE } RecipeType;
typedef struct RecipeField { const char *key; RecipeType type; size_t offset; int64_t default_int, min, max; } RecipeField;
#define TEXT_FIELD(name) {.key = "recipe." #name, .type = RECIPE_STRING, .offset = offsetof(Recipe, name)}
#define FIELD(name, type, ...) {"recipe." #name, type, offsetof(Recipe, name), __VA_ARGS__}
static const RecipeField recipe_fields[] = {
    TEXT_FIELD(model),       TEXT_FIELD(fingerprint), FIELD(zero, RECIPE_INT, 0, 0, 3),
    FIELD(reduce, RECIPE_REDUCE, 0, 0, 0),            FIELD(micro_per_rank, RECIPE_INT64, 1, 1, INT32_MAX), TEXT_FIELD(precision),
    FIELD(bucket_bytes, RECIPE_INT64, 0, 0, INT64_MAX), FIELD(tile_bytes, RECIPE_INT64, 0, 0, INT64_MAX), FIELD(accumulate, RECIPE_ACCUMULATE, 0, 0, 0),
    TEXT_FIELD(loss_output), TEXT_FIELD(loss_rule),   TEXT_FIELD(optimizer),
    FIELD(lr, RECIPE_DOUBLE, 0, 0, 0),                FIELD(loss_units, RECIPE_DOUBLE, 0, 0, 0),
    FIELD(memory_bytes, RECIPE_INT64, 0, 0, INT64_MAX), FIELD(host_bytes, RECIPE_INT64, 0, 0, INT64_MAX), FIELD(nvme_bytes, RECIPE_INT64, 0, 0, INT64_MAX),
    TEXT_FIELD(chosen),      TEXT_FIELD(options),
    FIELD(processes, RECIPE_INT, 1, 1, MESH_RANKS_MAX),    FIELD(ranks_per_process, RECIPE_INT, 1, 1, MESH_RANKS_MAX),
    FIELD(threads_per_rank, RECIPE_INT, 1, 1, MESH_RANKS_MAX),
    TEXT_FIELD(isa),         TEXT_FIELD(numerics_key),
};
enum { RECIPE_FIELDS = sizeof recipe_fields / sizeof *recipe_fields };

static void put_recipe(Pairs *p, const Recipe *recipe) {
  for (int i = 0; i < RECIPE_FIELDS; i++) {
    const RecipeField *f = &recipe_fields[i];
    char text[DECIMAL_BYTES];
    const void *at = (const char *)recipe + f->offset;
    switch (f->type) {
    case RECIPE_STRING: put(p, f->key, *(const char *const *)at); break;
    case RECIPE_INT: put_int(p, f->key, *(const int *)at, f->default_int); break;
    case RECIPE_INT64: put_int(p, f->key, *(const int64_t *)at, f->default_int); break;
    case RECIPE_DOUBLE:
      if (*(const double *)at != 0) put(p, f->key, arena_string(p->arena, decimal_text(*(const double *)at, text)));
      break;
    case RECIPE_REDUCE:
      if (*(const Reduce *)at != REDUCE_MICRO) put(p, f->key, reduce_name(*(const Reduce *)at));
      break;
    case RECIPE_ACCUMULATE:
      if (*(const Accumulate *)at != ACCUMULATE_TREE) put(p, f->key, accumulate_name(*(const Accumulate *)at));
      break;
    }
  }
}

static const char *bucket_text(const Bucket *b, Arena *arena) {
  const char *group = b->group ? arena_printf(arena, "\"group\": %s, ", meta_quote(arena, b->group)) : "";
  const char *compute = b->compute != b->dtype ? arena_printf(arena, "\"compute\": \"%s\", ", dtype_name(b->compute)) : "";
  char *text = arena_printf(arena, "{\"dtype\": \"%s\", %s%s%s\"elems\": %" PRId64 ", \"shard_elems\": %" PRId64 ", \"params\": [", dtype_name(b->dtype), compute,
                            b->trainable ? "" : "\"frozen\": true, ", group, b->elems, b->shard_elems);
  // Appending to one buffer keeps the text of large buckets linear.
  size_t used = strlen(text), capacity = used + 1;
  for (int i = 0; i < b->n_params; i++) {
    char dims[RANK_MAX * 22 + 1];
    int n = 0;
    dims[0] = 0;
    for (int k = 0; k < b->types[i].rank; k++) n += snprintf(dims + n, sizeof dims - (size_t)n, "%s%" PRId64, k ? ", " : "", b->types[i].dims[k]);
    bool other = b->types[i].dtype != b->dtype;
    const char *item = arena_printf(arena, "%s{\"name\": %s, \"start\": %" PRId64 ", \"dims\": [%s]%s%s%s}", i ? ", " : "",
                                    meta_quote(arena, b->params[i]), b->starts[i], dims, other ? ", \"dtype\": \"" : "",
                                    other ? dtype_name(b->types[i].dtype) : "", other ? "\"" : "");
    size_t bytes = strlen(item);
    if (used + bytes + 1 > capacity) {
      capacity = 2 * (used + bytes + 1);
      char *wider = arena_alloc(arena, capacity);
      memcpy(wider, text, used);
      text = wider;
    }
    memcpy(text + used, item, bytes + 1);
    used += bytes;
  }
  return arena_printf(arena, "%s]}", text);
}

static const char *buffer_text(const Buffer *b, Arena *arena) {
  const char *life = b->persistent ? "\"persistent\": true" : arena_printf(arena, "\"first\": %u, \"last\": %u", b->first, b->last);
  return arena_printf(arena,
                      "{\"name\": %s, \"scope\": \"%s\", \"tier\": \"%s\", \"category\": \"%s\", \"bytes\": %" PRId64
                      ", \"offset\": %" PRId64 ", %s}",
                      meta_quote(arena, b->name), scope_name(b->scope), tier_name(b->tier), category_name(b->category), b->bytes,
                      b->offset_bytes, life);
}

size_t meta_of_graph(const Graph *g, Arena *arena, MetaPair **out) {
  Pairs p = {.arena = arena};
  const char *facts = NULL;
  for (int i = 0; i < FACTS_COUNT; i++)
    if (g->facts >> i & 1) facts = facts ? arena_printf(arena, "%s,%s", facts, fact_names[i]) : fact_names[i];
  put(&p, "facts", facts);
  put_int(&p, "source_ir_version", g->ir_version, 10);
  const char *mesh = NULL;
  for (int i = 0; i < g->mesh.n_axes; i++)
    mesh = arena_printf(arena, "%s%s%s=%d", mesh ? mesh : "", mesh ? "," : "", g->mesh.axes[i].name, g->mesh.axes[i].size);
  put(&p, "mesh", mesh);
  put(&p, META_CONFIGURATIONS, sharding_configurations_text(g, arena));
  for (int i = 0; i < REPORTS; i++) {
    const Value *v = *report_at((Graph *)g, i);
    if (v) put(&p, report_fields[i].key, v->name);
  }
  put_recipe(&p, &g->recipe);
  for (size_t i = 0; i < g->n_buckets; i++) put(&p, arena_printf(arena, "bucket.%zu", i), bucket_text(&g->buckets[i], arena));
  for (size_t i = 0; i < g->n_buffers; i++) put(&p, arena_printf(arena, "buffer.%zu", i), buffer_text(&g->buffers[i], arena));
  for (size_t i = 0; i < g->n_savings; i++)
    put(&p, arena_printf(arena, "saving.%zu", i),
        arena_printf(arena, "{\"bucket\": %d, \"bytes\": %" PRId64 ", \"reason\": %s}", g->savings[i].bucket, g->savings[i].bytes,
                     meta_quote(arena, g->savings[i].reason ? g->savings[i].reason : "")));
  *out = p.items;
  return p.count;
}

// ---- Pairs in -------------------------------------------------------------------------------------------------------------------

// What names something that may come later: done by meta_finish.
typedef struct Pending {
  Value *value;
  Node *node;                 // both NULL: the graph's
  const char *key, *text;
} Pending;

struct MetaReader {
  Graph *graph;
  Pending *pending;
  size_t n_pending, pending_capacity;
  size_t buckets_capacity, buffers_capacity, savings_capacity;
};

MetaReader *meta_reader_create(Graph *graph) {
  MetaReader *r = ARENA_NEW(graph->arena, MetaReader);
  r->graph = graph;
  return r;
}

static void postpone(MetaReader *r, Value *value, Node *node, const char *key, const char *text) {
  Arena *arena = r->graph->arena;
  ARENA_PUSH(arena, r->pending, r->n_pending, r->pending_capacity, ((Pending){value, node, arena_string(arena, key), arena_string(arena, text)}));
}

static Status bad(const char *of, const char *key, const char *text, const char *want) {
  FAIL(MALFORMED, of, "metadata %s=\"%.200s\": %s", key, text, want);
}

static Status read_int(const char *of, const char *key, const char *text, int64_t min, int64_t max, int64_t *out) {
  char *end;
  errno = 0;
  long long v = strtoll(text, &end, 10);
  if (end == text || *end || errno || v < min || v > max)
    FAIL(MALFORMED, of, "metadata %s=\"%.200s\": not a whole number from %" PRId64 " to %" PRId64, key, text, min, max);
  *out = v;
  return STATUS_OK;
}

static Status read_int32(const char *of, const char *key, const char *text, int64_t min, int64_t max, int32_t *out) {
  int64_t v;
  TRY(read_int(of, key, text, min, max, &v));
  *out = (int32_t)v;
  return STATUS_OK;
}

static Status read_index(const char *of, const char *key, const char *text, int32_t *out) { return read_int32(of, key, text, 0, INT32_MAX, out); }

static Status read_enum(const char *of, const char *key, const char *text, EnumName names, int count, int *out) {
  int v = enum_from_name(text, names, count);
  if (v < 0) {
    char known[256];
    size_t n = 0;
    known[0] = 0;
    for (int i = 0; i < count && n < sizeof known; i++) n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", names(i));
    FAIL(MALFORMED, of, "metadata %s=\"%.200s\": none of %s", key, text, known);
  }
  *out = v;
  return STATUS_OK;
}

static Status read_bool(const char *of, const char *key, const char *text, bool *out) {
  if (strcmp(text, "true") && strcmp(text, "false")) return bad(of, key, text, "neither true nor false");
  *out = text[0] == 't';
  return STATUS_OK;
}

static Status read_location(const Value *v, const char *key, const char *text, Location *out) {
  int buffer, end = 0;
  int64_t offset, stride = 0;
  bool plain = sscanf(text, "%9d+%18" SCNd64 "%n", &buffer, &offset, &end) == 2 && !text[end];
  if (!plain) {
    end = 0;
    if (sscanf(text, "%9d+%18" SCNd64 "+%18" SCNd64 "*rank%n", &buffer, &offset, &stride, &end) != 3 || !end || text[end])
      return bad(v->name, key, text, "neither BUFFER+OFFSET nor BUFFER+OFFSET+STRIDE*rank");
  }
  if (buffer < 0 || offset < 0 || stride < 0) return bad(v->name, key, text, "a negative number");
  *out = (Location){buffer, offset, stride};
  return STATUS_OK;
}

Status meta_set_value(MetaReader *r, Value *v, const char *key, const char *text) {
  Arena *arena = r->graph->arena;
  int e = 0;
  if (!strcmp(key, "role")) {
    if (!strcmp(text, "frozen")) {
      v->role = ROLE_PARAM;
      v->trainable = false;
      return STATUS_OK;
    }
    TRY(read_enum(v->name, key, text, (EnumName)role_name, ROLE_COUNT, &e));
    v->role = (Role)e;
    if (v->role == ROLE_PARAM) v->trainable = true;
  } else if (!strcmp(key, "trainable")) {
    TRY(read_bool(v->name, key, text, &v->trainable));
  } else if (!strcmp(key, "dtype")) {
    if (dtype_from_name(text) == DTYPE_NONE) return bad(v->name, key, text, "no element type");
    v->type.dtype = dtype_from_name(text);
  } else if (!strcmp(key, "tier")) {
    TRY(read_enum(v->name, key, text, (EnumName)tier_name, TIER_COUNT, &e));
    v->tier = (Tier)e;
  } else if (!strcmp(key, "layout")) {
    TRY(read_enum(v->name, key, text, (EnumName)layout_name, LAYOUT_COUNT, &e));
    v->layout = (Layout)e;
  } else if (!strcmp(key, "bucket")) {
    TRY(read_index(v->name, key, text, &v->bucket));
  } else if (!strcmp(key, "state_name")) {
    v->state_name = arena_string(arena, text);
  } else if (!strcmp(key, "state_shape")) {
    TRY(read_enum(v->name, key, text, (EnumName)state_shape_name, STATE_SHAPE_COUNT, &e));
    v->state_shape = (StateShape)e;
  } else if (!strcmp(key, "loc")) {
    TRY(read_location(v, key, text, &v->loc));
  } else if (!strcmp(key, "doc")) {
    v->doc = arena_string(arena, text);
  } else if (!strcmp(key, "placement") || !strcmp(key, "of") || !strcmp(key, "carry")) {
    postpone(r, v, NULL, key, text);
  } else {
    return bad(v->name, key, text, "no key of a value");
  }
  return STATUS_OK;
}

Status meta_set_node(MetaReader *r, Node *n, const char *key, const char *text) {
  Arena *arena = r->graph->arena;
  int e = 0;
  if (!strcmp(key, "phase")) {
    TRY(read_enum(n->name, key, text, (EnumName)phase_name, PHASE_COUNT, &e));
    n->phase = (Phase)e;
  } else if (!strcmp(key, "backward")) {
    TRY(read_bool(n->name, key, text, &n->backward));
  } else if (!strcmp(key, "origin")) {
    n->origin = *text ? arena_string(arena, text) : NULL;
  } else if (!strcmp(key, "generated")) {                    // no node of the source model stands behind it
    bool generated = false;
    TRY(read_bool(n->name, key, text, &generated));
    if (generated) n->origin = NULL;
  } else if (!strcmp(key, "recomputes")) {
    n->recomputes = arena_string(arena, text);
  } else if (!strcmp(key, "cause.param")) {
    n->cause.param = arena_string(arena, text);
  } else if (!strcmp(key, "cause.node")) {
    n->cause.node = arena_string(arena, text);
  } else if (!strcmp(key, "cause.pass")) {
    n->cause.pass = arena_string(arena, text);
  } else if (!strcmp(key, META_SHARDING)) {
    TRY(sharding_read_node(r->graph, n, text));
  } else if (!strcmp(key, "queue")) {
    TRY(read_enum(n->name, key, text, (EnumName)queue_name, QUEUE_COUNT, &e));
    n->queue = (Queue)e;
  } else if (!strcmp(key, "guard")) {
    TRY(read_enum(n->name, key, text, (EnumName)guard_name, GUARD_COUNT, &e));
    n->guard = (Guard)e;
  } else if (!strcmp(key, "region")) {
    TRY(read_index(n->name, key, text, &n->region));
  } else if (!strcmp(key, "workspace")) {
    TRY(read_index(n->name, key, text, &n->workspace));
  } else if (!strcmp(key, "scratch")) {
    TRY(read_index(n->name, key, text, &n->scratch));
  } else if (!strcmp(key, "waits")) {
    postpone(r, NULL, n, key, text);
  } else {
    return bad(n->name, key, text, "no key of a node");
  }
  return STATUS_OK;
}

// ---- The graph's pairs in -------------------------------------------------------------------------------------------------------

static Status set_recipe(Graph *g, const RecipeField *f, const char *text) {
  void *at = (char *)&g->recipe + f->offset;
  switch (f->type) {
  case RECIPE_STRING: *(const char **)at = arena_string(g->arena, text); break;
  case RECIPE_INT: TRY(read_int32(NULL, f->key, text, f->min, f->max, at)); break;
  case RECIPE_INT64: TRY(read_int(NULL, f->key, text, f->min, f->max, at)); break;
  case RECIPE_DOUBLE: {
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v)) return bad(NULL, f->key, text, "not a finite number");
    *(double *)at = v;
    break;
  }
  case RECIPE_REDUCE: {
    int e;
    TRY(read_enum(NULL, f->key, text, (EnumName)reduce_name, REDUCE_COUNT, &e));
    *(Reduce *)at = (Reduce)e;
    break;
  }
  case RECIPE_ACCUMULATE: {
    int e;
    TRY(read_enum(NULL, f->key, text, (EnumName)accumulate_name, ACCUMULATE_COUNT, &e));
    *(Accumulate *)at = (Accumulate)e;
    break;
  }
  }
  return STATUS_OK;
}

static Status set_facts(Graph *g, const char *text) {
  g->facts = 0;
  for (const char *p = text; *p;) {
    size_t bytes = strcspn(p, ",");
    int i = 0;
    while (i < FACTS_COUNT && (strlen(fact_names[i]) != bytes || strncmp(fact_names[i], p, bytes))) i++;
    if (i == FACTS_COUNT) return bad(NULL, "facts", text, "an unknown fact");
    g->facts |= 1u << i;
    p += bytes;
    if (*p == ',') p++;
  }
  return STATUS_OK;
}

static Status set_mesh(Graph *g, const char *text) {
  Mesh mesh = {0};
  int64_t ranks = 1;
  for (const char *p = text; *p;) {
    size_t name = strspn(p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"), size = 0;
    if (name && p[name] == '=') size = strspn(p + name + 1, "0123456789");
    const char *end = p + name + 1 + size;
    if (!size || size > 8 || (*end && *end != ',') || mesh.n_axes == MESH_AXES_MAX)
      return bad(NULL, "mesh", text, "not of the form dp=2,tp=2 with at most 4 axes");
    int n = atoi(p + name + 1);
    ranks *= n;
    if (n < 1 || n > MESH_RANKS_MAX || ranks > MESH_RANKS_MAX) return bad(NULL, "mesh", text, "sizes from 1 to 2^20, also their product");
    mesh.axes[mesh.n_axes++] = (MeshAxis){arena_string_n(g->arena, p, name), n};
    p = *end ? end + 1 : end;
  }
  g->mesh = mesh;
  return STATUS_OK;
}

static Status json_int(const json_t *object, const char *of, const char *key, int64_t min, int64_t max, int64_t *out) {
  const json_t *j = json_object_get(object, key);
  if (!json_is_integer(j) || json_integer_value(j) < min || json_integer_value(j) > max)
    FAIL(MALFORMED, NULL, "metadata %s: \"%s\" is no whole number from %" PRId64 " to %" PRId64, of, key, min, max);
  *out = json_integer_value(j);
  return STATUS_OK;
}

static Status json_text(Arena *arena, const json_t *object, const char *of, const char *key, const char **out) {
  const char *s = json_string_value(json_object_get(object, key));
  if (!s) FAIL(MALFORMED, NULL, "metadata %s: \"%s\" is no string", of, key);
  *out = arena_string(arena, s);
  return STATUS_OK;
}

static Status json_enum(const json_t *object, const char *of, const char *key, EnumName names, int count, int *out) {
  const char *s = json_string_value(json_object_get(object, key));
  if (!s) FAIL(MALFORMED, NULL, "metadata %s: \"%s\" is no string", of, key);
  return read_enum(NULL, of, s, names, count, out);
}

static Status json_dtype(const json_t *object, const char *of, const char *name, Dtype *out) {
  const char *s = json_string_value(json_object_get(object, name));
  *out = s ? dtype_from_name(s) : DTYPE_NONE;
  if (*out == DTYPE_NONE) FAIL(MALFORMED, NULL, "metadata %s: \"%s\" is no element type", of, name);
  return STATUS_OK;
}

// So that sums and products of a few of these stay within 64 bits; plan.c saturates where there are many.
static const int64_t ELEMS_MAX = INT64_C(1) << 44, BYTES_MAX = INT64_C(1) << 56, SAVING_BYTES_MAX = INT64_C(1) << 60;

static Status read_bucket_param(Graph *g, const char *key, const json_t *json, Bucket *b, int i) {
  TRY(json_text(g->arena, json, key, "name", &b->params[i]));
  TRY(json_int(json, key, "start", 0, ELEMS_MAX, &b->starts[i]));
  const json_t *dims = json_object_get(json, "dims");
  if (!json_is_array(dims) || json_array_size(dims) > RANK_MAX) FAIL(MALFORMED, NULL, "metadata %s: \"dims\" of '%s' is no shape", key, b->params[i]);
  b->types[i].rank = (int)json_array_size(dims);
  for (int k = 0; k < b->types[i].rank; k++) {
    const json_t *dim = json_array_get(dims, (size_t)k);
    if (!json_is_integer(dim)) FAIL(MALFORMED, NULL, "metadata %s: dimension %d of '%s' is no whole number", key, k, b->params[i]);
    b->types[i].dims[k] = json_integer_value(dim);
  }
  b->types[i].dtype = b->dtype;
  if (json_object_get(json, "dtype")) TRY(json_dtype(json, key, "dtype", &b->types[i].dtype));
  TRY(type_check(&b->types[i], b->params[i]));
  if (b->starts[i] > b->elems || type_elems(&b->types[i]) > b->elems - b->starts[i])
    FAIL(MALFORMED, NULL, "metadata %s: parameter '%s' ends behind the bucket's %" PRId64 " elements", key, b->params[i], b->elems);
  return STATUS_OK;
}

static Status read_bucket(MetaReader *r, const char *key, const json_t *json) {
  Graph *g = r->graph;
  Bucket b = {.trainable = !json_is_true(json_object_get(json, "frozen"))};
  TRY(json_dtype(json, key, "dtype", &b.dtype));
  b.compute = b.dtype;
  if (json_object_get(json, "compute")) TRY(json_dtype(json, key, "compute", &b.compute));
  if (json_object_get(json, "group")) TRY(json_text(g->arena, json, key, "group", &b.group));
  TRY(json_int(json, key, "elems", 0, ELEMS_MAX, &b.elems));
  TRY(json_int(json, key, "shard_elems", 0, b.elems, &b.shard_elems));
  const json_t *params = json_object_get(json, "params");
  if (!json_is_array(params) || json_array_size(params) > INT32_MAX) FAIL(MALFORMED, NULL, "metadata %s: \"params\" is no list", key);
  b.n_params = (int)json_array_size(params);
  b.params = ARENA_ARRAY(g->arena, const char *, b.n_params);
  b.types = ARENA_ARRAY(g->arena, Type, b.n_params);
  b.starts = ARENA_ARRAY(g->arena, int64_t, b.n_params);
  for (int i = 0; i < b.n_params; i++) TRY(read_bucket_param(g, key, json_array_get(params, (size_t)i), &b, i));
  ARENA_PUSH(g->arena, g->buckets, g->n_buckets, r->buckets_capacity, b);
  return STATUS_OK;
}

static Status read_buffer(MetaReader *r, const char *key, const json_t *json) {
  Graph *g = r->graph;
  Buffer b = {.persistent = json_is_true(json_object_get(json, "persistent"))};
  int scope, tier, category;
  int64_t first = 0, last = 0;
  TRY(json_text(g->arena, json, key, "name", &b.name));
  TRY(json_enum(json, key, "scope", (EnumName)scope_name, SCOPE_COUNT, &scope));
  TRY(json_enum(json, key, "tier", (EnumName)tier_name, TIER_COUNT, &tier));
  TRY(json_enum(json, key, "category", (EnumName)category_name, CATEGORY_COUNT, &category));
  TRY(json_int(json, key, "bytes", 0, BYTES_MAX, &b.bytes));
  TRY(json_int(json, key, "offset", 0, BYTES_MAX, &b.offset_bytes));
  if (!b.persistent) {
    TRY(json_int(json, key, "first", 0, UINT32_MAX, &first));
    TRY(json_int(json, key, "last", first, UINT32_MAX, &last));
  }
  b.scope = (Scope)scope;
  b.tier = (Tier)tier;
  b.category = (Category)category;
  b.first = (uint32_t)first;
  b.last = (uint32_t)last;
  ARENA_PUSH(g->arena, g->buffers, g->n_buffers, r->buffers_capacity, b);
  return STATUS_OK;
}

static Status read_saving(MetaReader *r, const char *key, const json_t *json) {
  Graph *g = r->graph;
  Saving s;
  int64_t bucket;
  TRY(json_int(json, key, "bucket", -1, INT32_MAX, &bucket));
  TRY(json_int(json, key, "bytes", 0, SAVING_BYTES_MAX, &s.bytes));
  TRY(json_text(g->arena, json, key, "reason", &s.reason));
  s.bucket = (int32_t)bucket;
  ARENA_PUSH(g->arena, g->savings, g->n_savings, r->savings_capacity, s);
  return STATUS_OK;
}

typedef Status (*ReadJson)(MetaReader *r, const char *key, const json_t *json);

// Its own guard, so that the caller can free the JSON value when the arena is exhausted.
static Status read_guarded(MetaReader *r, const char *key, const json_t *json, ReadJson read) {
  ARENA_GUARD(r->graph->arena);
  ARENA_RETURN(r->graph->arena, read(r, key, json));
}

static Status set_listed(MetaReader *r, const char *key, const char *text, size_t count, ReadJson read) {
  char next[24];
  snprintf(next, sizeof next, "%zu", count);
  if (strcmp(strchr(key, '.') + 1, next)) FAIL(MALFORMED, NULL, "metadata %s: number %s comes next", key, next);
  json_error_t error;
  json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, &error);
  if (!json) FAIL(MALFORMED, NULL, "metadata %s is no JSON: %s at %d", key, error.text, error.position);
  Status s = read_guarded(r, key, json, read);
  json_decref(json);
  return s;
}

Status meta_set_graph(MetaReader *r, const char *key, const char *text) {
  Graph *g = r->graph;
  if (!strcmp(key, "facts")) return set_facts(g, text);
  if (!strcmp(key, "mesh")) return set_mesh(g, text);
  if (!strcmp(key, META_CONFIGURATIONS)) return sharding_read_configurations(g, text);
  if (!strcmp(key, "source_ir_version")) return read_int(NULL, key, text, 1, INT32_MAX, &g->ir_version);
  for (int i = 0; i < RECIPE_FIELDS; i++)
    if (!strcmp(key, recipe_fields[i].key)) return set_recipe(g, &recipe_fields[i], text);
  if (!strncmp(key, "bucket.", 7)) return set_listed(r, key, text, g->n_buckets, read_bucket);
  if (!strncmp(key, "buffer.", 7)) return set_listed(r, key, text, g->n_buffers, read_buffer);
  if (!strncmp(key, "saving.", 7)) return set_listed(r, key, text, g->n_savings, read_saving);
  if (report_index(key) >= 0) {
    postpone(r, NULL, NULL, key, text);
    return STATUS_OK;
  }
  return bad(NULL, key, text, "no key of a graph");
}

// ---- The second round -----------------------------------------------------------------------------------------------------------

static Status find_value(const MetaReader *r, const char *of, const Pending *p, Value **out) {
  Value *v = graph_find_value(r->graph, p->text);
  if (!v) return bad(of, p->key, p->text, "the graph has no value of that name");
  *out = v;
  return STATUS_OK;
}

// "AXIS:KIND" or "AXIS:KIND(ARG)", separated by single spaces.
static Status set_placement(const MetaReader *r, Value *v, const char *text) {
  const Mesh *mesh = &r->graph->mesh;
  for (const char *p = text; *p;) {
    int axis = 0, kind = 0, arg = 0, end = 0;
    size_t name = strcspn(p, ":");
    while (axis < mesh->n_axes && (strlen(mesh->axes[axis].name) != name || strncmp(mesh->axes[axis].name, p, name))) axis++;
    if (axis == mesh->n_axes || !p[name]) return bad(v->name, "placement", text, "names no axis of the mesh");
    p += name + 1;
    size_t word = strcspn(p, "( ");
    while (kind < PLACED_COUNT && (strlen(placement_names[kind]) != word || strncmp(placement_names[kind], p, word))) kind++;
    if (kind == PLACED_COUNT) return bad(v->name, "placement", text, "none of whole, split(D), flat(BUCKET), partial");
    p += word;
    if (placement_has_arg((PlacementKind)kind)) {
      if (sscanf(p, "(%9d)%n", &arg, &end) != 1 || !end || arg < 0) return bad(v->name, "placement", text, "split and flat take a number in ()");
      p += end;
    }
    if (*p && (*p != ' ' || !p[1])) return bad(v->name, "placement", text, "not of the form dp:flat(3) tp:split(1)");
    if (kind == PLACED_SPLIT && v->type.dtype != DTYPE_NONE && arg >= v->type.rank)
      return bad(v->name, "placement", text, "splits a dimension that the value does not have");
    if (kind == PLACED_FLAT && (size_t)arg >= r->graph->n_buckets) return bad(v->name, "placement", text, "names no bucket");
    v->placement[axis] = (Placement){(PlacementKind)kind, arg};
    if (*p) p++;
  }
  return STATUS_OK;
}

typedef struct NodeName { const char *name; uint32_t id; } NodeName;

static int compare_names(const void *a, const void *b) { return strcmp(((const NodeName *)a)->name, ((const NodeName *)b)->name); }

static Status read_waits(MetaReader *r, const NodeName *names, Node *n, const json_t *json) {
  Graph *g = r->graph;
  if (!json_is_array(json)) FAIL(MALFORMED, n->name, "metadata waits is no list of names");
  uint32_t *waits = ARENA_ARRAY(g->arena, uint32_t, json_array_size(json));
  for (size_t i = 0; i < json_array_size(json); i++) {
    const char *name = json_string_value(json_array_get(json, i));
    NodeName key = {name ? name : "", 0};
    const NodeName *found = bsearch(&key, names, g->n_nodes, sizeof *names, compare_names);
    if (!found) FAIL(MALFORMED, n->name, "metadata waits: the graph has no node '%s'", key.name);
    waits[i] = found->id;
  }
  n->waits = waits;
  n->n_waits = (int)json_array_size(json);
  return STATUS_OK;
}

static Status read_waits_guarded(MetaReader *r, const NodeName *names, Node *n, const json_t *json) {
  ARENA_GUARD(r->graph->arena);
  ARENA_RETURN(r->graph->arena, read_waits(r, names, n, json));
}

static Status set_waits(MetaReader *r, const NodeName *names, Node *n, const char *text) {
  json_error_t error;
  json_t *json = json_loads(text, 0, &error);
  if (!json) FAIL(MALFORMED, n->name, "metadata waits is no JSON: %s", error.text);
  Status s = read_waits_guarded(r, names, n, json);
  json_decref(json);
  return s;
}

static Status check_index(const char *of, const char *key, int64_t index, size_t count) {
  if (index >= (int64_t)count) FAIL(MALFORMED, of, "metadata %s: %" PRId64 ", and the graph has %zu", key, index, count);
  return STATUS_OK;
}

static Status check_references(const Graph *g) {
  for (size_t i = 0; i < g->n_values; i++) {
    const Value *v = g->values[i];
    TRY(check_index(v->name, "bucket", v->bucket, g->n_buckets));
    TRY(check_index(v->name, "loc", v->loc.buffer, g->n_buffers));
    if (v->of && v->of->of) FAIL(MALFORMED, v->name, "metadata of: '%s' belongs to another value itself", v->of->name);
  }
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *n = g->nodes[i];
    TRY(check_index(n->name, "region", n->region, g->n_buffers));
    TRY(check_index(n->name, "workspace", n->workspace, g->n_buffers));
    TRY(check_index(n->name, "scratch", n->scratch, g->n_buffers));
  }
  for (size_t i = 0; i < g->n_savings; i++) TRY(check_index(NULL, "saving", g->savings[i].bucket, g->n_buckets));
  return STATUS_OK;
}

Status meta_finish(MetaReader *r) {
  Graph *g = r->graph;
  NodeName *names = NULL;
  for (size_t i = 0; i < r->n_pending; i++) {
    const Pending *p = &r->pending[i];
    if (p->node) {
      if (!names) {
        names = ARENA_ARRAY(g->arena, NodeName, g->n_nodes);
        for (size_t k = 0; k < g->n_nodes; k++) names[k] = (NodeName){g->nodes[k]->name, g->nodes[k]->id};
        qsort(names, g->n_nodes, sizeof *names, compare_names);
      }
      TRY(set_waits(r, names, p->node, p->text));
    } else if (p->value && !strcmp(p->key, "placement")) {
      TRY(set_placement(r, p->value, p->text));
    } else if (p->value) {
      TRY(find_value(r, p->value->name, p, !strcmp(p->key, "of") ? &p->value->of : &p->value->carry));
    } else {
      TRY(find_value(r, NULL, p, report_at(g, report_index(p->key))));
    }
  }
  return check_references(g);
}
