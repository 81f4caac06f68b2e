#include "op.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

static void *field(const Node *node, const AttrSpec *spec) { return (char *)node->attrs + spec->offset; }

static const AttrSpec *typed_spec(const Node *node, const char *name, AttrType type) {
  const AttrSpec *spec = attr_spec(node->op, name);
  assert(spec && spec->type == type);
  (void)type;
  return spec;
}

const AttrSpec *attr_spec(const Op *op, const char *name) {
  for (const AttrSpec *s = op->attrs; s && s->name; s++)
    if (!strcmp(s->name, name)) return s;
  return NULL;
}

int64_t attr_int(const Node *node, const char *name) { return *(int64_t *)field(node, typed_spec(node, name, ATTR_INT)); }
float attr_float(const Node *node, const char *name) { return *(float *)field(node, typed_spec(node, name, ATTR_FLOAT)); }
const char *attr_string(const Node *node, const char *name) { return *(const char **)field(node, typed_spec(node, name, ATTR_STRING)); }
AttrInts attr_ints(const Node *node, const char *name) { return *(AttrInts *)field(node, typed_spec(node, name, ATTR_INTS)); }
AttrStrings attr_strings(const Node *node, const char *name) { return *(AttrStrings *)field(node, typed_spec(node, name, ATTR_STRINGS)); }

void attr_set(Graph *graph, Node *node, const AttrInit *attr) {
  void *at = field(node, typed_spec(node, attr->name, attr->type));
  Arena *arena = graph->arena;
  switch (attr->type) {
  case ATTR_INT: *(int64_t *)at = attr->i; break;
  case ATTR_FLOAT: *(float *)at = attr->f; break;
  case ATTR_STRING: *(const char **)at = arena_string(arena, attr->s); break;
  case ATTR_INTS:
    *(AttrInts *)at = (AttrInts){arena_copy(arena, attr->ints.items, sizeof(int64_t) * (size_t)attr->ints.n), attr->ints.n};
    break;
  case ATTR_STRINGS: {
    const char **items = ARENA_ARRAY(arena, const char *, attr->strings.n);
    for (int64_t i = 0; i < attr->strings.n; i++) items[i] = arena_string(arena, attr->strings.items[i]);
    *(AttrStrings *)at = (AttrStrings){items, attr->strings.n};
    break;
  }
  case ATTR_FLOATS:
    *(AttrFloats *)at = (AttrFloats){arena_copy(arena, attr->floats.items, sizeof(float) * (size_t)attr->floats.n), attr->floats.n};
    break;
  case ATTR_TENSOR: assert(!"set TENSOR through the typed struct"); break;
  }
}

bool attr_is_default(const Node *node, const AttrSpec *spec) {
  const void *at = field(node, spec);
  switch (spec->type) {
  case ATTR_INT: return *(const int64_t *)at == spec->default_int && !spec->required;
  case ATTR_FLOAT: return !memcmp(at, &spec->default_float, sizeof(float)) && !spec->required;
  case ATTR_STRING: {
    const char *s = *(const char *const *)at;
    if (!s || !spec->default_string) return s == spec->default_string;
    return !strcmp(s, spec->default_string) && !spec->required;
  }
  case ATTR_INTS: return ((const AttrInts *)at)->n == 0;
  case ATTR_FLOATS: return ((const AttrFloats *)at)->n == 0;
  case ATTR_STRINGS: return ((const AttrStrings *)at)->n == 0;
  case ATTR_TENSOR: return *(const Weight *const *)at == NULL;
  }
  return true;
}

static bool same_text(const char *a, const char *b) { return a == b || (a && b && !strcmp(a, b)); }

static bool same_texts(const AttrStrings *a, const AttrStrings *b) {
  bool same = a->n == b->n;
  for (int64_t i = 0; same && i < a->n; i++) same = same_text(a->items[i], b->items[i]);
  return same;
}

bool attr_equal(const Node *a, const Node *b, const AttrSpec *spec) {
  const void *x = field(a, spec), *y = field(b, spec);
  switch (spec->type) {
  case ATTR_INT: return *(const int64_t *)x == *(const int64_t *)y;
  case ATTR_FLOAT: return !memcmp(x, y, sizeof(float));
  case ATTR_STRING: return same_text(*(const char *const *)x, *(const char *const *)y);
  case ATTR_INTS: case ATTR_FLOATS: {
    const AttrInts *p = x, *q = y;
    size_t bytes = spec->type == ATTR_INTS ? sizeof(int64_t) : sizeof(float);
    return p->n == q->n && (!p->n || !memcmp(p->items, q->items, (size_t)p->n * bytes));
  }
  case ATTR_STRINGS: return same_texts(x, y);
  case ATTR_TENSOR: {
    const Weight *p = *(const Weight *const *)x, *q = *(const Weight *const *)y;
    return p == q || (p && q && type_equal(&p->type, &q->type) && weight_same_bytes(p, q));
  }
  }
  return false;
}

void attrs_reset(Graph *graph, Node *node) {
  if (!node->op->attrs_bytes) return;
  node->attrs = arena_alloc(graph->arena, node->op->attrs_bytes);
  for (const AttrSpec *s = node->op->attrs; s && s->name; s++) {
    void *at = field(node, s);
    if (s->type == ATTR_INT) *(int64_t *)at = s->required ? ATTR_ABSENT : s->default_int;
    else if (s->type == ATTR_FLOAT) *(float *)at = s->default_float;
    else if (s->type == ATTR_STRING) *(const char **)at = s->default_string;
  }
}

static Status check_range(const Node *node, const AttrSpec *s, int64_t v) {
  if ((s->min || s->max) && (v < s->min || v > s->max))
    FAIL(MALFORMED, node->name, "%s: attribute %s = %" PRId64 " is outside [%" PRId64 ", %" PRId64 "]", node->op->name, s->name, v, s->min, s->max);
  return STATUS_OK;
}

Status attrs_check(const Node *node) {
  for (const AttrSpec *s = node->op->attrs; s && s->name; s++) {
    const void *at = field(node, s);
    if (s->required && ((s->type == ATTR_INT && *(const int64_t *)at == ATTR_ABSENT) || (s->type != ATTR_INT && s->type != ATTR_INTS && attr_is_default(node, s))))
      FAIL(MALFORMED, node->name, "%s: the required attribute %s is missing", node->op->name, s->name);
    bool absent = s->type == ATTR_INT && *(const int64_t *)at == ATTR_ABSENT && s->default_int == ATTR_ABSENT;
    if (s->type == ATTR_INT && !absent) TRY(check_range(node, s, *(const int64_t *)at));
    if (s->type == ATTR_INTS)
      for (int64_t i = 0; i < ((const AttrInts *)at)->n; i++) TRY(check_range(node, s, ((const AttrInts *)at)->items[i]));
  }
  return STATUS_OK;
}

Status node_check_arity(const Node *node) {
  const Op *op = node->op;
  if (node->n_inputs < op->min_inputs || (op->max_inputs != VARIADIC && node->n_inputs > op->max_inputs))
    FAIL(MALFORMED, node->name, "%s: %d inputs; it takes %d to %d", op->name, node->n_inputs, op->min_inputs, op->max_inputs);
  if (node->n_outputs < op->min_outputs || (op->max_outputs != VARIADIC && node->n_outputs > op->max_outputs))
    FAIL(MALFORMED, node->name, "%s: %d outputs; it gives %d to %d", op->name, node->n_outputs, op->min_outputs, op->max_outputs);
  return STATUS_OK;
}

static Status check_operands(const Node *node) {
  const Op *op = node->op;
  if (op->min_outputs == 1 && op->max_outputs == 1 && !node->outputs[0]) FAIL(MALFORMED, node->name, "%s: its only output is absent", op->name);
  for (int i = 0; i < node->n_inputs; i++) {
    if (!node->inputs[i] && i < op->min_inputs) FAIL(MALFORMED, node->name, "%s: input %d is required and absent", op->name, i);
    if (node->inputs[i] && node->inputs[i]->type.dtype == DTYPE_NONE)
      FAIL(MALFORMED, node->name, "%s: input '%s' has no type", op->name, node->inputs[i]->name);
  }
  return STATUS_OK;
}

bool node_alias(const Node *node, int output, AliasKind kind, Alias *out) {
  for (int i = 0; node->op->alias && i < node->n_inputs; i++) {
    if (node->inputs[i] && node->op->alias(node, output, i, out) && out->kind == kind) {
      out->input = i;
      return true;
    }
  }
  return false;
}

Status node_infer(Graph *graph, Node *node) {
  TRY(node_check_arity(node));
  TRY(check_operands(node));
  TRY(attrs_check(node));
  assert(node->op->infer);
  TRY(node->op->infer(node, graph->arena));
  for (int i = 0; i < node->n_outputs; i++) {
    if (!node->outputs[i]) continue;
    assert(node->outputs[i]->type.dtype != DTYPE_NONE);
    TRY(type_check(&node->outputs[i]->type, node->name));
  }
  return STATUS_OK;
}
