// Buffers and the places of values.
#include <inttypes.h>
#include <string.h>

#include "differ.h"

static const char *buffer_text(const Differ *d, const Buffer *b) {
  return arena_printf(d->arena, "%" PRId64 " bytes, %s, of a %s, %s", b->bytes, category_name(b->category), scope_name(b->scope), tier_name(b->tier));
}

// Names of buffers are those of values, which may be made up: the value or step behind it tells more.
static const char **label_buffers(const Differ *d, const Graph *g) {
  const char **labels = ARENA_ARRAY(d->arena, const char *, g->n_buffers + 1);
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Node *n = g->nodes[i];
    if (n->workspace >= 0 && (size_t)n->workspace < g->n_buffers) labels[n->workspace] = arena_printf(d->arena, "workspace of %s", differ_node(d, n));
    if (n->scratch >= 0 && (size_t)n->scratch < g->n_buffers) labels[n->scratch] = arena_printf(d->arena, "scratch of %s", differ_node(d, n));
  }
  for (size_t i = g->n_values; i-- > 0;) {
    const Value *v = g->values[i];
    if (v->loc.buffer >= 0 && (size_t)v->loc.buffer < g->n_buffers) labels[v->loc.buffer] = arena_printf(d->arena, "buffer of %s", differ_value(d, g, v));
  }
  for (size_t i = 0; i < g->n_buffers; i++)
    if (!labels[i]) labels[i] = arena_printf(d->arena, "buffer '%s'", g->buffers[i].name);
  return labels;
}

static bool same_end(const Differ *d, uint32_t x, uint32_t y) { return x < d->a->n_nodes ? d->m->node_of_a[x] == (int32_t)y : y >= d->b->n_nodes; }

typedef struct Places { int64_t elsewhere, other_life, other_buffer; const char *first_elsewhere, *first_life, *first_buffer; } Places;

static void compare_buffer(Differ *d, const char *what, const Buffer *x, const Buffer *y, Places *places) {
  differ_change_int(d, TOPIC_MEMORY, what, "bytes", x->bytes, y->bytes, NULL, NULL);
  differ_change(d, TOPIC_MEMORY, what, "category", category_name(x->category), category_name(y->category), NULL, NULL);
  differ_change(d, TOPIC_MEMORY, what, "scope", scope_name(x->scope), scope_name(y->scope), NULL, NULL);
  differ_change(d, TOPIC_MEMORY, what, "tier", tier_name(x->tier), tier_name(y->tier), NULL, NULL);
  differ_change(d, TOPIC_MEMORY, what, "lives", x->persistent ? "always" : "for some steps", y->persistent ? "always" : "for some steps", NULL, NULL);
  if (x->offset_bytes != y->offset_bytes && !places->elsewhere++) places->first_elsewhere = what;
  if (!x->persistent && !y->persistent && (!same_end(d, x->first, y->first) || !same_end(d, x->last, y->last)) && !places->other_life++) places->first_life = what;
}

static void compare_locations(Differ *d, Places *places) {
  for (size_t i = 0; i < d->a->n_values; i++) {
    if (d->m->value_of_a[i] < 0) continue;
    const Location *x = &d->a->values[i]->loc, *y = &d->b->values[d->m->value_of_a[i]]->loc;
    bool known = x->buffer >= 0 && (size_t)x->buffer < d->a->n_buffers;
    bool same = (known ? d->m->buffer_of_a[x->buffer] == y->buffer : y->buffer < 0) && x->offset_bytes == y->offset_bytes && x->rank_stride_bytes == y->rank_stride_bytes;
    if (!same && !places->other_buffer++) places->first_buffer = differ_value(d, d->a, d->a->values[i]);
  }
  for (size_t i = 0; i < d->a->n_nodes; i++) {
    if (d->m->node_of_a[i] < 0) continue;
    const Node *x = d->a->nodes[i], *y = d->b->nodes[d->m->node_of_a[i]];
    differ_change(d, TOPIC_MEMORY, differ_node(d, x), "workspace", x->workspace >= 0 ? "yes" : "none", y->workspace >= 0 ? "yes" : "none", x, y);
    differ_change(d, TOPIC_MEMORY, differ_node(d, x), "scratch", x->scratch >= 0 ? "yes" : "none", y->scratch >= 0 ? "yes" : "none", x, y);
  }
}

// Places alone are many and say little: one line each.
static void add_places(Differ *d, int64_t n, const char *things, const char *how, const char *first) {
  if (!n) return;
  const char *what = arena_printf(d->arena, "%" PRId64 " %s%s %s, first the %s", n, things, n == 1 ? "" : "s", how, first);
  differ_add(d, (Difference){TOPIC_MEMORY, DIFF_CHANGED, what, NULL, NULL, NULL, -1, -1});
}

void differ_compare_memory(Differ *d) {
  const char **labels_a = label_buffers(d, d->a), **labels_b = label_buffers(d, d->b);
  Places places = {0};
  for (size_t i = 0; i < d->a->n_buffers; i++) {
    const Buffer *x = &d->a->buffers[i];
    if (d->m->buffer_of_a[i] >= 0) compare_buffer(d, labels_a[i], x, &d->b->buffers[d->m->buffer_of_a[i]], &places);
    else differ_add(d, (Difference){TOPIC_MEMORY, DIFF_REMOVED, labels_a[i], NULL, buffer_text(d, x), NULL, -1, -1});
  }
  for (size_t i = 0; i < d->b->n_buffers; i++)
    if (d->m->buffer_of_b[i] < 0) differ_add(d, (Difference){TOPIC_MEMORY, DIFF_ADDED, labels_b[i], NULL, NULL, buffer_text(d, &d->b->buffers[i]), -1, -1});
  compare_locations(d, &places);
  add_places(d, places.elsewhere, "buffer", "at another offset", places.first_elsewhere);
  add_places(d, places.other_life, "buffer", "with another lifetime", places.first_life);
  add_places(d, places.other_buffer, "value", "at another place of a buffer or in another buffer", places.first_buffer);
}
