// What values are for, and the buckets they lie in: parameters, constants, inputs, outputs.
#include <inttypes.h>
#include <string.h>

#include "../ir/op.h"
#include "differ.h"

static Topic topic_of(const Value *v) {
  bool parameter = v->role == ROLE_PARAM || v->role == ROLE_BUFFER || v->role == ROLE_CONST || v->role == ROLE_STATE || v->role == ROLE_NARROW;
  return parameter ? TOPIC_PARAMETERS : TOPIC_OPERATORS;
}

static const char *placement_text(const Differ *d, const Graph *g, const Value *v) {
  static const char *const kinds[PLACED_COUNT] = {"whole", "split", "flat", "partial"};
  char *text = arena_string(d->arena, "");
  for (int i = 0; i < g->mesh.n_axes; i++) {
    const Placement *p = &v->placement[i];
    text = arena_printf(d->arena, "%s%s%s:%s", text, i ? " " : "", g->mesh.axes[i].name, kinds[p->kind]);
    if (p->kind == PLACED_SPLIT) text = arena_printf(d->arena, "%s(%d)", text, p->arg);
  }
  return *text ? text : "whole";
}

static void compare_contents(Differ *d, const char *what, const Value *v, const Value *w) {
  uint64_t x = graph_match_contents(v), y = graph_match_contents(w);
  if (!x || !y || x == y) return;
  differ_change(d, TOPIC_PARAMETERS, what, "contents", arena_printf(d->arena, "%016" PRIx64, x), arena_printf(d->arena, "%016" PRIx64, y), NULL, NULL);
}

static void compare_value(Differ *d, const Value *v, const Value *w) {
  const char *what = differ_value(d, d->a, v);
  const Node *x = v->producer, *y = w->producer;
  bool leaf = !x && !y, named = leaf && v->bucket < 0 && v->role != ROLE_CONST;
  if (leaf) differ_change_type(d, topic_of(v), what, "type", &v->type, &w->type, x, y);
  if (named) differ_change(d, topic_of(v), what, "name", v->name, w->name, x, y);
  if (!x != !y) differ_change(d, TOPIC_OPERATORS, what, "given by", x ? differ_node(d, x) : "no step", y ? differ_node(d, y) : "no step", x, y);
  differ_change(d, TOPIC_PARAMETERS, what, "role", role_name(v->role), role_name(w->role), x, y);
  if (v->trainable != w->trainable) differ_change(d, TOPIC_PARAMETERS, what, "trains", v->trainable ? "yes" : "no", w->trainable ? "yes" : "no", x, y);
  if (!graph_match_values(d->m, v->of, w->of)) differ_change(d, TOPIC_PARAMETERS, what, "belongs to", differ_value(d, d->a, v->of), differ_value(d, d->b, w->of), x, y);
  if (!graph_match_values(d->m, v->carry, w->carry)) {
    const char *before = differ_value(d, d->a, v->carry), *after = differ_value(d, d->b, w->carry);
    differ_change(d, TOPIC_OPERATORS, what, "becomes", before, strcmp(before, after) ? after : arena_printf(d->arena, "another %s", after), x, y);
  }
  differ_change(d, TOPIC_PARAMETERS, what, "name in checkpoints", v->state_name ? v->state_name : "none", w->state_name ? w->state_name : "none", x, y);
  differ_change(d, TOPIC_COMM, what, "placement", placement_text(d, d->a, v), placement_text(d, d->b, w), x, y);
  differ_change(d, TOPIC_MEMORY, what, "tier", tier_name(v->tier), tier_name(w->tier), x, y);
  differ_change(d, TOPIC_MEMORY, what, "layout", layout_name(v->layout), layout_name(w->layout), x, y);
  if (!differ_same_bucket(d, v->bucket, w->bucket)) {
    const char *before = v->bucket >= 0 && (size_t)v->bucket < d->a->n_buckets ? differ_bucket(d, &d->a->buckets[v->bucket]) : "none";
    const char *after = w->bucket >= 0 && (size_t)w->bucket < d->b->n_buckets ? differ_bucket(d, &d->b->buckets[w->bucket]) : "none";
    differ_change(d, TOPIC_PARAMETERS, what, "lies in", before, strcmp(before, after) ? after : arena_printf(d->arena, "another %s", after), x, y);
  }
  MetaPair *p, *q;
  size_t np = meta_of_value(d->a, v, d->arena, &p), nq = meta_of_value(d->b, w, d->arena, &q);
  differ_change_other_pairs(d, what, p, np, q, nq, x, y);
  if (leaf && v->role == ROLE_CONST && v->type.dtype == w->type.dtype && type_same_shape(&v->type, &w->type)) compare_contents(d, what, v, w);
}

// Values that nodes give are told with their nodes.
static void one_sided(Differ *d, DiffKind kind, const Graph *g, const Value *v) {
  if (v->producer) return;
  const char *type = differ_type(d, &v->type);
  bool removed = kind == DIFF_REMOVED;
  differ_add(d, (Difference){topic_of(v), kind, differ_value(d, g, v), NULL, removed ? type : NULL, removed ? NULL : type, -1, -1});
}

static void compare_list(Differ *d, const char *what, Value *const *x, size_t nx, Value *const *y, size_t ny) {
  differ_change_int(d, TOPIC_OPERATORS, what, "number", (int64_t)nx, (int64_t)ny, NULL, NULL);
  for (size_t i = 0; i < nx && i < ny; i++) {
    const char *at = arena_printf(d->arena, "%s %zu", what, i), *other = arena_printf(d->arena, "another, %s", differ_value(d, d->b, y[i]));
    if (!graph_match_values(d->m, x[i], y[i])) differ_change(d, TOPIC_OPERATORS, at, "value", differ_value(d, d->a, x[i]), other, NULL, NULL);
    differ_change(d, TOPIC_OPERATORS, at, "name", x[i]->name, y[i]->name, NULL, NULL);
  }
}

static void compare_reports(Differ *d) {
  const struct { const char *what; const Value *x, *y; } rows[] = {{"the loss", d->a->loss, d->b->loss}, {"the count of the loss", d->a->loss_count, d->b->loss_count},
      {"the reported loss", d->a->loss_report, d->b->loss_report}, {"the reported norm", d->a->norm_report, d->b->norm_report},
      {"the inverse count", d->a->inverse_count, d->b->inverse_count}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const char *before = differ_value(d, d->a, rows[i].x), *after = arena_printf(d->arena, "another, %s", differ_value(d, d->b, rows[i].y));
    if (!graph_match_values(d->m, rows[i].x, rows[i].y)) differ_change(d, TOPIC_OPERATORS, rows[i].what, "value", before, after, NULL, NULL);
  }
}

// ---- Buckets ------------------------------------------------------------------------------------------------------------------

static int param_index(const Bucket *b, const char *name, int near) {
  if (near < b->n_params && !strcmp(b->params[near], name)) return near;
  for (int i = 0; i < b->n_params; i++)
    if (!strcmp(b->params[i], name)) return i;
  return -1;
}

static const Bucket *bucket_with(const Graph *g, const char *name, int *out_index) {
  for (size_t i = 0; i < g->n_buckets; i++)
    if ((*out_index = param_index(&g->buckets[i], name, 0)) >= 0) return &g->buckets[i];
  return NULL;
}

// `y`: the bucket that `x` is matched with; NULL: none.
static void compare_bucket_params(Differ *d, const Bucket *x, const Bucket *y) {
  for (int i = 0; i < x->n_params; i++) {
    int k = y ? param_index(y, x->params[i], i) : -1;
    const Bucket *now = k >= 0 ? y : bucket_with(d->b, x->params[i], &k);
    const char *param = arena_printf(d->arena, "parameter '%s'", x->params[i]);
    if (!now) {
      differ_add(d, (Difference){TOPIC_PARAMETERS, DIFF_REMOVED, param, NULL, differ_type(d, &x->types[i]), NULL, -1, -1});
      continue;
    }
    differ_change_type(d, TOPIC_PARAMETERS, param, "type", &x->types[i], &now->types[k], NULL, NULL);
    if (now != y) {
      const char *before = differ_bucket(d, x), *after = differ_bucket(d, now);
      differ_change(d, TOPIC_PARAMETERS, param, "lies in", before, strcmp(before, after) ? after : arena_printf(d->arena, "another %s", after), NULL, NULL);
    } else {
      differ_change_int(d, TOPIC_PARAMETERS, param, "start in the bucket", x->starts[i], y->starts[k], NULL, NULL);
    }
  }
}

static void add_new_params(Differ *d, const Bucket *y) {
  for (int i = 0, k; i < y->n_params; i++) {
    if (bucket_with(d->a, y->params[i], &k)) continue;
    const char *param = arena_printf(d->arena, "parameter '%s'", y->params[i]);
    differ_add(d, (Difference){TOPIC_PARAMETERS, DIFF_ADDED, param, NULL, NULL, differ_type(d, &y->types[i]), -1, -1});
  }
}

static void compare_buckets(Differ *d) {
  for (size_t i = 0; i < d->a->n_buckets; i++) {
    const Bucket *x = &d->a->buckets[i];
    const char *what = differ_bucket(d, x);
    if (d->m->bucket_of_a[i] < 0) {
      differ_add(d, (Difference){TOPIC_PARAMETERS, DIFF_REMOVED, what, NULL, arena_printf(d->arena, "%" PRId64 " elements", x->elems), NULL, -1, -1});
      compare_bucket_params(d, x, NULL);
      continue;
    }
    const Bucket *y = &d->b->buckets[d->m->bucket_of_a[i]];
    differ_change(d, TOPIC_PRECISION, what, "type", dtype_name(x->dtype), dtype_name(y->dtype), NULL, NULL);
    differ_change(d, TOPIC_PRECISION, what, "type that the model computes in", dtype_name(x->compute), dtype_name(y->compute), NULL, NULL);
    if (x->trainable != y->trainable) differ_change(d, TOPIC_PARAMETERS, what, "trains", x->trainable ? "yes" : "no", y->trainable ? "yes" : "no", NULL, NULL);
    differ_change_int(d, TOPIC_PARAMETERS, what, "elements", x->elems, y->elems, NULL, NULL);
    differ_change_int(d, TOPIC_PARAMETERS, what, "elements of a shard", x->shard_elems, y->shard_elems, NULL, NULL);
    differ_change(d, TOPIC_OPTIONS, what, "group", x->group ? x->group : "none", y->group ? y->group : "none", NULL, NULL);
    compare_bucket_params(d, x, y);
  }
  for (size_t i = 0; i < d->b->n_buckets; i++) {
    const Bucket *y = &d->b->buckets[i];
    const char *size = arena_printf(d->arena, "%" PRId64 " elements", y->elems);
    if (d->m->bucket_of_b[i] < 0) differ_add(d, (Difference){TOPIC_PARAMETERS, DIFF_ADDED, differ_bucket(d, y), NULL, NULL, size, -1, -1});
    add_new_params(d, y);
  }
}

void differ_compare_values(Differ *d) {
  for (size_t i = 0; i < d->a->n_values; i++) {
    if (d->m->value_of_a[i] >= 0) compare_value(d, d->a->values[i], d->b->values[d->m->value_of_a[i]]);
    else one_sided(d, DIFF_REMOVED, d->a, d->a->values[i]);
  }
  for (size_t i = 0; i < d->b->n_values; i++)
    if (d->m->value_of_b[i] < 0) one_sided(d, DIFF_ADDED, d->b, d->b->values[i]);
  compare_list(d, "input", d->a->inputs, d->a->n_inputs, d->b->inputs, d->b->n_inputs);
  compare_list(d, "output", d->a->outputs, d->a->n_outputs, d->b->outputs, d->b->n_outputs);
  compare_reports(d);
  compare_buckets(d);
}
