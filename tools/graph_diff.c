#include "differ.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/decimal.h"
#include "../ir/op.h"
#include "../ir/sequence_match.h"

const char *diff_kind_name(DiffKind kind) {
  static const char *const names[DIFF_KIND_COUNT] = {"removed", "added", "changed", "moved"};
  return names[kind];
}

bool differ_same_text(const char *a, const char *b) { return a == b || (a && b && !strcmp(a, b)); }

void differ_add(Differ *d, Difference difference) { ARENA_PUSH(d->arena, d->out->items, d->out->n_items, d->out->capacity, difference); }

void differ_note(Differ *d, const char *text) { ARENA_PUSH(d->arena, d->out->notes, d->out->n_notes, d->out->notes_capacity, text); }

// ---- Names for people ---------------------------------------------------------------------------------------------------------

const char *differ_node(const Differ *d, const Node *n) {
  const char *state = n->n_outputs == 1 && n->outputs[0] && n->cause.param ? n->outputs[0]->state_name : NULL;
  if (state) return arena_printf(d->arena, "%s of %s for '%s'", n->op->name, state, n->cause.param);
  if (n->cause.param && n->origin) return arena_printf(d->arena, "%s for '%s' of '%s'", n->op->name, n->cause.param, n->origin);
  if (n->cause.param) return arena_printf(d->arena, "%s for '%s'", n->op->name, n->cause.param);
  return arena_printf(d->arena, "%s%s '%s'", n->op->name, n->backward ? " (backward) of" : n->origin ? " of" : "", n->origin ? n->origin : n->name);
}

const char *differ_value(const Differ *d, const Graph *g, const Value *v) {
  if (!v) return "none";
  if (v->producer && v->producer->n_outputs == 1) return differ_node(d, v->producer);
  if (v->producer) return arena_printf(d->arena, "result %d of %s", v->output_index, differ_node(d, v->producer));
  if (v->bucket >= 0 && (size_t)v->bucket < g->n_buckets && g->buckets[v->bucket].n_params)
    return arena_printf(d->arena, "%s of the bucket of '%s'", v->state_name ? v->state_name : role_name(v->role), g->buckets[v->bucket].params[0]);
  return arena_printf(d->arena, "%s '%s'", v->role == ROLE_PARAM && !v->trainable ? "frozen" : role_name(v->role), v->name);
}

const char *differ_type(const Differ *d, const Type *type) {
  char text[256];
  return arena_string(d->arena, type_text(type, text, sizeof text));
}

static const char *int_text(const Differ *d, int64_t value) { return arena_printf(d->arena, "%" PRId64, value); }

const char *differ_bucket(const Differ *d, const Bucket *b) {
  if (!b->n_params) return "an empty bucket";
  return arena_printf(d->arena, b->n_params == 1 ? "bucket of '%s'" : "bucket of '%s' and %d more", b->params[0], b->n_params - 1);
}

// ---- One field ----------------------------------------------------------------------------------------------------------------

void differ_change(Differ *d, Topic topic, const char *what, const char *field, const char *before, const char *after, const Node *x, const Node *y) {
  if (differ_same_text(before, after)) return;
  differ_add(d, (Difference){topic, DIFF_CHANGED, what, field, before, after, x ? (int64_t)x->id : -1, y ? (int64_t)y->id : -1});
}

void differ_change_int(Differ *d, Topic topic, const char *what, const char *field, int64_t before, int64_t after, const Node *x, const Node *y) {
  if (before != after) differ_change(d, topic, what, field, int_text(d, before), int_text(d, after), x, y);
}

// ---- Attributes ---------------------------------------------------------------------------------------------------------------

enum { ITEMS_SHOWN = 8 };

static const char *list_text(const Differ *d, const AttrSpec *spec, const void *at) {
  int64_t n = spec->type == ATTR_INTS ? ((const AttrInts *)at)->n : spec->type == ATTR_FLOATS ? ((const AttrFloats *)at)->n : ((const AttrStrings *)at)->n;
  char *text = arena_string(d->arena, "["), decimal[DECIMAL_BYTES];
  for (int64_t i = 0; i < n && i < ITEMS_SHOWN; i++) {
    const char *comma = i ? ", " : "";
    if (spec->type == ATTR_INTS) text = arena_printf(d->arena, "%s%s%" PRId64, text, comma, ((const AttrInts *)at)->items[i]);
    else if (spec->type == ATTR_FLOATS) text = arena_printf(d->arena, "%s%s%s", text, comma, decimal_text(((const AttrFloats *)at)->items[i], decimal));
    else text = arena_printf(d->arena, "%s%s'%s'", text, comma, ((const AttrStrings *)at)->items[i]);
  }
  return n > ITEMS_SHOWN ? arena_printf(d->arena, "%s, ... %" PRId64 " in all]", text, n) : arena_printf(d->arena, "%s]", text);
}

static const char *attr_text(const Differ *d, const Node *n, const AttrSpec *spec) {
  const void *at = (const char *)n->attrs + spec->offset;
  char decimal[DECIMAL_BYTES];
  switch (spec->type) {
  case ATTR_INT: return *(const int64_t *)at == ATTR_ABSENT ? "none" : int_text(d, *(const int64_t *)at);
  case ATTR_FLOAT: return arena_string(d->arena, decimal_text(*(const float *)at, decimal));
  case ATTR_STRING: return *(const char *const *)at ? arena_printf(d->arena, "'%s'", *(const char *const *)at) : "none";
  case ATTR_TENSOR: return *(const Weight *const *)at ? differ_type(d, &(*(const Weight *const *)at)->type) : "none";
  default: return list_text(d, spec, at);
  }
}

static bool same_tensor(const Weight *x, const Weight *y) {
  if (!x || !y) return x == y;
  if (x->type.dtype != y->type.dtype || !type_same_shape(&x->type, &y->type)) return false;
  return !x->bytes || !y->bytes || !memcmp(x->bytes, y->bytes, (size_t)type_bytes(&x->type));
}

static bool same_attr(const Node *x, const Node *y, const AttrSpec *spec) {
  const void *p = (const char *)x->attrs + spec->offset, *q = (const char *)y->attrs + spec->offset;
  return spec->type == ATTR_TENSOR ? same_tensor(*(const Weight *const *)p, *(const Weight *const *)q) : attr_equal(x, y, spec);
}

bool differ_same_bucket(const Differ *d, int64_t x, int64_t y) {
  if (x < 0 || y < 0 || (size_t)x >= d->a->n_buckets || (size_t)y >= d->b->n_buckets) return x == y;
  return d->m->bucket_of_a[x] == y;
}

static void compare_attrs(Differ *d, const char *what, const Node *x, const Node *y) {
  for (const AttrSpec *s = x->op->attrs; s && s->name; s++) {
    bool bucket = !strcmp(s->name, "bucket");
    if (same_attr(x, y, s) || (graph_match_skips(s->name) && !bucket)) continue;
    if (bucket && differ_same_bucket(d, attr_int(x, "bucket"), attr_int(y, "bucket"))) continue;
    bool comm = bucket || !strcmp(s->name, "kind") || !strcmp(s->name, "axis") || !strcmp(s->name, "parts");
    bool dtype = s->type == ATTR_INT && (!strcmp(s->name, "dtype") || !strcmp(s->name, "to"));
    differ_change(d, comm && x->op->flags & OP_COLLECTIVE ? TOPIC_COMM : dtype ? TOPIC_PRECISION : TOPIC_OPERATORS, what, s->name, attr_text(d, x, s),
           attr_text(d, y, s), x, y);
  }
}

// ---- Nodes --------------------------------------------------------------------------------------------------------------------

void differ_change_type(Differ *d, Topic topic, const char *what, const char *field, const Type *x, const Type *y, const Node *n, const Node *o) {
  if (x->dtype != y->dtype) differ_change(d, TOPIC_PRECISION, what, field, dtype_name(x->dtype), dtype_name(y->dtype), n, o);
  if (!type_same_shape(x, y)) differ_change(d, topic, what, field, differ_type(d, x), differ_type(d, y), n, o);
}

static void compare_operands(Differ *d, const char *what, const Node *x, const Node *y) {
  for (int i = 0; i < x->n_inputs || i < y->n_inputs; i++) {
    const Value *v = i < x->n_inputs ? x->inputs[i] : NULL, *w = i < y->n_inputs ? y->inputs[i] : NULL;
    if (graph_match_values(d->m, v, w)) continue;
    const char *field = arena_printf(d->arena, "operand %d", i), *before = differ_value(d, d->a, v), *after = differ_value(d, d->b, w);
    if (!strcmp(before, after)) after = arena_printf(d->arena, "another %s", after);
    differ_add(d, (Difference){TOPIC_OPERATORS, DIFF_CHANGED, what, field, before, after, x->id, y->id});
  }
  for (int i = 0; i < x->n_outputs || i < y->n_outputs; i++) {
    const Value *v = i < x->n_outputs ? x->outputs[i] : NULL, *w = i < y->n_outputs ? y->outputs[i] : NULL;
    const char *field = x->n_outputs == 1 && y->n_outputs == 1 ? "result" : arena_printf(d->arena, "result %d", i);
    if (!v != !w) differ_change(d, TOPIC_OPERATORS, what, field, v ? differ_type(d, &v->type) : "none", w ? differ_type(d, &w->type) : "none", x, y);
    else if (v) differ_change_type(d, TOPIC_OPERATORS, what, field, &v->type, &w->type, x, y);
  }
}

static const char *waits_text(const Differ *d, const Graph *g, const Node *n) {
  char *text = NULL;
  for (int i = 0; i < n->n_waits; i++) {
    const char *of = n->waits[i] < g->n_nodes ? differ_node(d, g->nodes[n->waits[i]]) : "no step";
    text = arena_printf(d->arena, "%s%s%s", text ? text : "", text ? ", " : "", of);
  }
  return text ? text : "none";
}

static bool has_wait(const Node *n, int32_t id) {
  for (int i = 0; i < n->n_waits; i++)
    if ((int32_t)n->waits[i] == id) return true;
  return false;
}

static bool same_waits(const Differ *d, const Node *x, const Node *y) {
  bool same = x->n_waits == y->n_waits;
  for (int i = 0; same && i < x->n_waits; i++) same = x->waits[i] < d->a->n_nodes && has_wait(y, d->m->node_of_a[x->waits[i]]);
  return same;
}

static const char *region_text(const Graph *g, const Node *n) {
  return n->guard == GUARD_NONE || n->region < 0 || (size_t)n->region >= g->n_buffers ? "none" : g->buffers[n->region].name;
}

static void compare_nodes(Differ *d, const Node *x, const Node *y) {
  const char *what = differ_node(d, x);
  if (x->op != y->op) {
    bool comm = (x->op->flags | y->op->flags) & OP_COLLECTIVE;
    differ_change(d, comm ? TOPIC_COMM : TOPIC_OPERATORS, what, "operator", x->op->name, y->op->name, x, y);
  } else {
    compare_attrs(d, what, x, y);
  }
  compare_operands(d, what, x, y);
  differ_change_int(d, TOPIC_OPERATORS, what, "backward", x->backward, y->backward, x, y);
  differ_change(d, TOPIC_OPERATORS, what, "recomputes", x->recomputes, y->recomputes, x, y);
  differ_change(d, TOPIC_ORDER, what, "phase", phase_name(x->phase), phase_name(y->phase), x, y);
  differ_change(d, TOPIC_ORDER, what, "queue", queue_name(x->queue), queue_name(y->queue), x, y);
  if (!same_waits(d, x, y)) differ_add(d, (Difference){TOPIC_ORDER, DIFF_CHANGED, what, "waits", waits_text(d, d->a, x), waits_text(d, d->b, y), x->id, y->id});
  differ_change(d, TOPIC_COMM, what, "guard", guard_name(x->guard), guard_name(y->guard), x, y);
  if (x->guard == y->guard && x->guard != GUARD_NONE) {
    bool both = x->region >= 0 && (size_t)x->region < d->a->n_buffers;
    const char *other = arena_printf(d->arena, "another, '%s'", region_text(d->b, y));
    if (!both || d->m->buffer_of_a[x->region] != y->region) differ_change(d, TOPIC_COMM, what, "region", region_text(d->a, x), other, x, y);
  }
  MetaPair *p, *q;
  size_t np = meta_of_node(d->a, x, d->arena, &p), nq = meta_of_node(d->b, y, d->arena, &q);
  differ_change_other_pairs(d, what, p, np, q, nq, x, y);
  if (!x->n_shardings && !y->n_shardings) return;
  const char *before = x->n_shardings ? sharding_node_text(x, d->arena) : "none", *after = y->n_shardings ? sharding_node_text(y, d->arena) : "none";
  differ_change(d, TOPIC_OPTIONS, what, "device configurations", before, after, x, y);
}

// A collective is comm, with what it sends; everything else is operators.
static void one_sided(Differ *d, DiffKind kind, const Graph *g, const Node *n) {
  bool comm = n->op->flags & OP_COLLECTIVE && n->op->sent_bytes && n->n_outputs && n->outputs[0] && n->n_inputs && n->inputs[0];
  const char *type = n->n_outputs && n->outputs[0] ? differ_type(d, &n->outputs[0]->type) : "nothing";
  if (comm) {
    int64_t times = n->phase == PHASE_MICRO ? g->recipe.micro_per_rank : 1;
    type = arena_printf(d->arena, "%" PRId64 " bytes a step, %s", bytes_times(n->op->sent_bytes(n), times), type);
  }
  int64_t id = n->id;
  Difference one = {.topic = comm ? TOPIC_COMM : TOPIC_OPERATORS, .kind = kind, .what = differ_node(d, n), .step_a = -1, .step_b = -1};
  if (kind == DIFF_REMOVED) one.before = type, one.step_a = id;
  else one.after = type, one.step_b = id;
  differ_add(d, one);
}

static void compare_all_nodes(Differ *d) {
  size_t n_renamed = 0;
  for (size_t i = 0; i < d->a->n_nodes; i++) {
    const Node *x = d->a->nodes[i];
    if (d->m->node_of_a[i] < 0) {
      one_sided(d, DIFF_REMOVED, d->a, x);
      continue;
    }
    const Node *y = d->b->nodes[d->m->node_of_a[i]];
    compare_nodes(d, x, y);
    n_renamed += !differ_same_text(x->origin, y->origin);
  }
  for (size_t i = 0; i < d->b->n_nodes; i++)
    if (d->m->node_of_b[i] < 0) one_sided(d, DIFF_ADDED, d->b, d->b->nodes[i]);
  if (n_renamed) differ_note(d, arena_printf(d->arena, "%zu matched node%s under another name in the model", n_renamed, n_renamed == 1 ? " stands" : "s stand"));
}

// ---- Order --------------------------------------------------------------------------------------------------------------------

static const char *place_text(const Differ *d, const Graph *g, size_t at) {
  return at ? arena_printf(d->arena, "after %s", differ_node(d, g->nodes[at - 1])) : "first";
}

static void compare_order(Differ *d) {
  bool *kept = ARENA_ARRAY(d->arena, bool, d->a->n_nodes + 1);
  sequence_longest_rising(d->m->node_of_a, d->a->n_nodes, d->arena, kept);
  for (size_t i = 0; i < d->a->n_nodes; i++) {
    int32_t k = d->m->node_of_a[i];
    if (k < 0 || kept[i]) continue;
    differ_add(d, (Difference){TOPIC_ORDER, DIFF_MOVED, differ_node(d, d->a->nodes[i]), NULL, place_text(d, d->a, i), place_text(d, d->b, (size_t)k), (int64_t)i, k});
  }
}

// ---- Communication ------------------------------------------------------------------------------------------------------------

static const LedgerEntry **index_ledger(const Graph *g, Arena *arena) {
  LedgerEntry *entries;
  size_t n = plan_ledger(g, arena, &entries);
  const LedgerEntry **of = ARENA_ARRAY(arena, const LedgerEntry *, g->n_nodes + 1);
  for (size_t i = 0; i < n; i++) of[entries[i].step] = &entries[i];
  return of;
}

static void compare_ledgers(Differ *d) {
  const LedgerEntry **of_a = index_ledger(d->a, d->arena), **of_b = index_ledger(d->b, d->arena);
  for (size_t i = 0; i < d->a->n_nodes; i++) {
    if (!of_a[i] || d->m->node_of_a[i] < 0 || !of_b[d->m->node_of_a[i]]) continue;
    const LedgerEntry *x = of_a[i], *y = of_b[d->m->node_of_a[i]];
    const Node *n = d->a->nodes[i], *o = d->b->nodes[d->m->node_of_a[i]];
    const char *what = differ_node(d, n);
    differ_change_int(d, TOPIC_COMM, what, "bytes", x->bytes, y->bytes, n, o);
    differ_change_int(d, TOPIC_COMM, what, "times", x->times, y->times, n, o);
    differ_change_int(d, TOPIC_COMM, what, "copied bytes", x->copied_bytes, y->copied_bytes, n, o);
    differ_change(d, TOPIC_COMM, what, "mesh axis", x->axis, y->axis, n, o);
    differ_change(d, TOPIC_COMM, what, "cause", x->cause.param ? x->cause.param : "none", y->cause.param ? y->cause.param : "none", n, o);
    differ_change(d, TOPIC_PRECISION, what, "accumulator", dtype_name(x->accumulator), dtype_name(y->accumulator), n, o);
  }
}

static const char *saving_label(const Differ *d, const Graph *g, const Saving *s) {
  const char *of = s->bucket >= 0 && (size_t)s->bucket < g->n_buckets ? differ_bucket(d, &g->buckets[s->bucket]) : "no bucket";
  return arena_printf(d->arena, "saving in the %s: %s", of, s->reason ? s->reason : "?");
}

static bool has_saving(const Differ *d, const Graph *in, const Saving *s) {
  for (size_t i = 0; i < in->n_savings; i++) {
    const Saving *o = &in->savings[i];
    bool same = in == d->b ? differ_same_bucket(d, s->bucket, o->bucket) : differ_same_bucket(d, o->bucket, s->bucket);
    if (same && o->bytes == s->bytes && differ_same_text(o->reason, s->reason)) return true;
  }
  return false;
}

static void compare_savings(Differ *d) {
  for (size_t i = 0; i < d->a->n_savings; i++) {
    const Saving *s = &d->a->savings[i];
    const char *bytes = arena_printf(d->arena, "%" PRId64 " bytes", s->bytes);
    if (!has_saving(d, d->b, s)) differ_add(d, (Difference){TOPIC_COMM, DIFF_REMOVED, saving_label(d, d->a, s), NULL, bytes, NULL, -1, -1});
  }
  for (size_t i = 0; i < d->b->n_savings; i++) {
    const Saving *s = &d->b->savings[i];
    const char *bytes = arena_printf(d->arena, "%" PRId64 " bytes", s->bytes);
    if (!has_saving(d, d->a, s)) differ_add(d, (Difference){TOPIC_COMM, DIFF_ADDED, saving_label(d, d->b, s), NULL, NULL, bytes, -1, -1});
  }
}

// ---- All ----------------------------------------------------------------------------------------------------------------------

static int64_t place(const Difference *x) { return x->step_a >= 0 ? x->step_a : x->step_b >= 0 ? x->step_b : -1; }

// By topic; stable, since the order of ties is the index.
static void sort_by_topic(GraphDiff *out, Arena *arena) {
  Difference *sorted = ARENA_ARRAY(arena, Difference, out->n_items + 1);
  KeyAt *keys = ARENA_ARRAY(arena, KeyAt, out->n_items + 1);
  for (size_t i = 0; i < out->n_items; i++) keys[i] = (KeyAt){(uint64_t)out->items[i].topic << 40 | (uint64_t)(place(&out->items[i]) + 1), (uint32_t)i};
  sequence_sort_keys(keys, out->n_items);
  for (size_t i = 0; i < out->n_items; i++) sorted[i] = out->items[keys[i].at];
  out->items = sorted;
}

GraphDiff *graph_diff(const GraphMatch *match, Arena *arena) {
  Differ d = {.m = match, .a = match->a, .b = match->b, .arena = arena, .out = ARENA_NEW(arena, GraphDiff)};
  differ_compare_options(&d);
  differ_compare_values(&d);
  compare_all_nodes(&d);
  compare_order(&d);
  compare_ledgers(&d);
  compare_savings(&d);
  differ_compare_memory(&d);
  sort_by_topic(d.out, arena);
  return d.out;
}
