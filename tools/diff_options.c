// What was asked for, and the machine that a plan is for: recipe, mesh, facts.
#include <inttypes.h>
#include <string.h>

#include "../ir/decimal.h"
#include "../ir/meta.h"
#include "differ.h"

// Pairs of the graph that are compared as what they mean (diff_values.c, diff_memory.c), or name places.
static bool is_compared_elsewhere(const char *key) {
  static const char *const exact[] = {"loss", "loss_count", "loss_report", "norm_report", "inverse_count", "source_ir_version", "recipe.options"};
  static const char *const prefixes[] = {"bucket.", "buffer.", "saving."};
  for (size_t i = 0; i < sizeof exact / sizeof *exact; i++)
    if (!strcmp(key, exact[i])) return true;
  for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
    if (!strncmp(key, prefixes[i], strlen(prefixes[i]))) return true;
  return false;
}

static bool is_place(const char *key) { return !strcmp(key, "recipe.model") || !strcmp(key, "recipe.fingerprint"); }

static const char *find(const MetaPair *pairs, size_t n, const char *key) {
  for (size_t i = 0; i < n; i++)
    if (!strcmp(pairs[i].key, key)) return pairs[i].text;
  return NULL;
}

static bool has_comparison(const char *key) {
  static const char *const keys[] = {"role", "trainable", "dtype", "placement", "tier", "layout", "of", "carry", "bucket", "state_name", "loc", "doc", "phase",
                                     "backward", "recomputes", "generated", "origin", "cause.param", "cause.node", "cause.pass", "queue", "guard", "region", "workspace",
                                     "scratch", "waits", META_SHARDING};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (!strcmp(key, keys[i])) return true;
  return false;
}

void differ_change_other_pairs(Differ *d, const char *what, const MetaPair *x, size_t nx, const MetaPair *y, size_t ny, const Node *n, const Node *o) {
  for (size_t i = 0; i < nx; i++) {
    const char *after = find(y, ny, x[i].key);
    if (!has_comparison(x[i].key)) differ_change(d, TOPIC_OPTIONS, what, x[i].key, x[i].text, after ? after : "default", n, o);
  }
  for (size_t i = 0; i < ny; i++)
    if (!has_comparison(y[i].key) && !find(x, nx, y[i].key)) differ_change(d, TOPIC_OPTIONS, what, y[i].key, "default", y[i].text, n, o);
}

static void compare_pair(Differ *d, const char *key, const char *before, const char *after) {
  if (differ_same_text(before, after)) return;
  if (!before) before = "default";
  if (!after) after = "default";
  if (is_place(key)) {
    const char *what = !strcmp(key, "recipe.model") ? "the model" : "fingerprint of the weights' names, types and places";
    differ_note(d, arena_printf(d->arena, "%s: %s -> %s", what, before, after));
    return;
  }
  const char *name = strncmp(key, "recipe.", 7) ? key : key + 7;
  differ_change(d, strcmp(name, "precision") ? TOPIC_OPTIONS : TOPIC_PRECISION, arena_printf(d->arena, "option %s", name), "value", before, after, NULL, NULL);
}

static size_t lines_of(const Differ *d, const char *text, const char ***out) {
  const char **lines = NULL;
  size_t n = 0, capacity = 0;
  for (const char *p = text ? text : ""; *p;) {
    size_t bytes = strcspn(p, "\n");
    ARENA_PUSH(d->arena, lines, n, capacity, (const char *)arena_string_n(d->arena, p, bytes));
    p += bytes + (p[bytes] == '\n');
  }
  *out = lines;
  return n;
}

static size_t key_bytes(const char *line) { return strcspn(line, "="); }

static bool has_line(const char **lines, size_t n, const char *line) {
  for (size_t i = 0; i < n; i++)
    if (!strcmp(lines[i], line)) return true;
  return false;
}

static const char *other_value(const char **lines, size_t n, const char *line) {
  for (size_t i = 0; i < n; i++)
    if (key_bytes(lines[i]) == key_bytes(line) && !strncmp(lines[i], line, key_bytes(line))) return lines[i] + key_bytes(line) + (lines[i][key_bytes(line)] == '=');
  return NULL;
}

// "--lr=0.001", one a line. An option that is given once on both sides has changed; others are there or not.
static void compare_asked(Differ *d, const char *x, const char *y) {
  const char **before, **after;
  size_t nx = lines_of(d, x, &before), ny = lines_of(d, y, &after);
  for (size_t i = 0; i < nx; i++) {
    if (has_line(after, ny, before[i])) continue;
    const char *now = other_value(after, ny, before[i]), *name = arena_string_n(d->arena, before[i], key_bytes(before[i]));
    differ_change(d, TOPIC_OPTIONS, arena_printf(d->arena, "option %s", name), "value", other_value(before, nx, before[i]), now ? now : "not given", NULL, NULL);
  }
  for (size_t i = 0; i < ny; i++) {
    if (has_line(before, nx, after[i]) || other_value(before, nx, after[i])) continue;
    const char *name = arena_string_n(d->arena, after[i], key_bytes(after[i]));
    differ_change(d, TOPIC_OPTIONS, arena_printf(d->arena, "option %s", name), "value", "not given", other_value(after, ny, after[i]), NULL, NULL);
  }
}

static const char *own_text(const Differ *d, const OwnOptimizer *o) {
  if (!o) return "none";
  char lr[DECIMAL_BYTES], alpha[DECIMAL_BYTES], beta[DECIMAL_BYTES], epsilon[DECIMAL_BYTES];
  char norm[DECIMAL_BYTES], post[DECIMAL_BYTES], decay[DECIMAL_BYTES], initial[DECIMAL_BYTES];
  return arena_printf(d->arena, "%s lr=%s alpha=%s beta=%s epsilon=%s norm=%s post=%s decay=%s initial=%s t0=%" PRId64 "%s%s%s", o->name, decimal_text(o->lr, lr),
                      decimal_text(o->alpha, alpha), decimal_text(o->beta, beta), decimal_text(o->epsilon, epsilon), decimal_text(o->norm_coefficient, norm),
                      decimal_text(o->post, post), decimal_text(o->decay_factor, decay), decimal_text(o->initial, initial), o->t0, o->nesterov ? " nesterov" : "",
                      o->post_by_lr ? " post_by_lr" : "", o->correct_bias ? " correct_bias" : "");
}

void differ_compare_options(Differ *d) {
  MetaPair *x, *y;
  size_t nx = meta_of_graph(d->a, d->arena, &x), ny = meta_of_graph(d->b, d->arena, &y);
  for (size_t i = 0; i < nx; i++)
    if (!is_compared_elsewhere(x[i].key)) compare_pair(d, x[i].key, x[i].text, find(y, ny, x[i].key));
  for (size_t i = 0; i < ny; i++)
    if (!is_compared_elsewhere(y[i].key) && !find(x, nx, y[i].key)) compare_pair(d, y[i].key, NULL, y[i].text);
  compare_asked(d, d->a->recipe.options, d->b->recipe.options);
  differ_change(d, TOPIC_OPTIONS, "the model's own optimizer", "value", own_text(d, d->a->own_optimizer), own_text(d, d->b->own_optimizer), NULL, NULL);
}
