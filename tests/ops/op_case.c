#include "op_case.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../ir/op.h"

typedef struct Reader {
  const char *at, *line;
  Arena *arena;
  uint64_t random;
  Dtype floats;                          // what float becomes; NONE: stays
} Reader;

#define SYNTAX(r, ...) FAIL(MALFORMED, NULL, "column %d: " __VA_ARGS__)
#define COLUMN(r) ((int)((r)->at - (r)->line) + 1)

static void skip_space(Reader *r) {
  while (*r->at == ' ' || *r->at == '\t') r->at++;
}
static bool take(Reader *r, const char *token) {
  skip_space(r);
  size_t n = strlen(token);
  if (strncmp(r->at, token, n)) return false;
  r->at += n;
  return true;
}
static char *word(Reader *r) {
  skip_space(r);
  const char *from = r->at;
  while (isalnum((unsigned char)*r->at) || *r->at == '_') r->at++;
  return arena_string_n(r->arena, from, (size_t)(r->at - from));
}

void *op_case_buffer(Arena *arena, int64_t bytes, int fill) {
  char *p = arena_alloc(arena, (size_t)bytes + 64 + GUARD_BYTES);
  p += 63 - ((uintptr_t)p + 63) % 64;
  memset(p, fill, (size_t)bytes);
  memset(p + bytes, 0x5a, GUARD_BYTES);
  return p;
}

bool op_case_guard_intact(const void *data, int64_t bytes) {
  const unsigned char *p = (const unsigned char *)data + bytes;
  for (int i = 0; i < GUARD_BYTES; i++)
    if (p[i] != 0x5a) return false;
  return true;
}

// ---- Values ----

static uint64_t next_random(Reader *r) {   // xorshift64*
  r->random ^= r->random >> 12;
  r->random ^= r->random << 25;
  r->random ^= r->random >> 27;
  return r->random * UINT64_C(2685821657736338717);
}
static double next_unit(Reader *r) { return ((double)(next_random(r) >> 11) + 0.5) * 0x1p-53; }
static double next_normal(Reader *r) {
  double u = next_unit(r), v = next_unit(r);
  return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

static Status literal(const char **at, const Type *type, void *data, int64_t i) {
  char *end;
  while (isspace((unsigned char)**at)) ++*at;
  if (dtype_is_integer(type->dtype)) {
    element_write_int(data, type->dtype, i, **at == '-' ? strtoll(*at, &end, 0) : (int64_t)strtoull(*at, &end, 0));
  } else if (!strncmp(*at, "true", 4) || !strncmp(*at, "false", 5)) {
    element_write(data, type->dtype, i, **at == 't');
    end = (char *)*at + (**at == 't' ? 4 : 5);
  } else {
    element_write(data, type->dtype, i, strtod(*at, &end));
  }
  if (end == *at) FAIL(MALFORMED, NULL, "a number is expected at '%.20s'", *at);
  *at = end;
  while (isspace((unsigned char)**at)) ++*at;
  return STATUS_OK;
}

Status op_case_values(const char *text, const Type *type, void *data) {
  int64_t n = type_elems(type), given = 0;
  const char *at = text + 1;   // after the brace
  while (isspace((unsigned char)*at)) at++;
  while (*at && *at != '}') {
    if (given >= n) FAIL(MALFORMED, NULL, "more than %lld values", (long long)n);
    TRY(literal(&at, type, data, given++));
    if (*at == ',') at++;
    while (isspace((unsigned char)*at)) at++;
  }
  if (*at != '}' || given != n) FAIL(MALFORMED, NULL, "%lld values for %lld elements", (long long)given, (long long)n);
  return STATUS_OK;
}

static Status read_type(Reader *r, Type *type) {
  char *name = word(r);
  *type = (Type){.dtype = dtype_from_name(name)};
  if (!type->dtype) SYNTAX(r, "'%s' is no type", COLUMN(r), name);
  if (r->floats && type->dtype == DTYPE_F32) type->dtype = r->floats;
  if (*r->at != '[') return STATUS_OK;
  r->at++;
  while (!take(r, "]")) {
    char *end;
    long long d = strtoll(r->at, &end, 10);
    if (end == r->at || type->rank == RANK_MAX) SYNTAX(r, "a dimension is expected", COLUMN(r));
    type->dims[type->rank++] = d;
    r->at = end;
    take(r, ",");
  }
  return STATUS_OK;
}

static Status read_braces(Reader *r, const Type *type, void *data) {
  TRY(op_case_values(r->at, type, data));
  r->at = strchr(r->at, '}') + 1;
  return STATUS_OK;
}

// "(a,b)" or nothing
static void arguments(Reader *r, double *a, double *b) {
  if (!take(r, "(")) return;
  char *end;
  *a = strtod(r->at, &end);
  r->at = end;
  if (take(r, ",")) *b = strtod(r->at, &end), r->at = end;
  take(r, ")");
}

static void fill_distinct(Reader *r, const Type *type, void *data) {   // a shuffled grid: no two equal, none near another
  int64_t n = type_elems(type);
  int64_t *order = ARENA_ARRAY(r->arena, int64_t, n);
  for (int64_t i = 0; i < n; i++) order[i] = i;
  for (int64_t i = n - 1; i > 0; i--) {
    int64_t j = (int64_t)(next_random(r) % (uint64_t)(i + 1)), t = order[i];
    order[i] = order[j];
    order[j] = t;
  }
  for (int64_t i = 0; i < n; i++) element_write(data, type->dtype, i, 0.37 * ((double)order[i] - (double)n / 2));
}

static Status read_values(Reader *r, const Type *type, void *data) {
  skip_space(r);
  if (*r->at == '{') return read_braces(r, type, data);
  int64_t n = type_elems(type);
  const char *name = isalpha((unsigned char)*r->at) ? word(r)
                     : dtype_is_float(type->dtype) ? "normal" : type->dtype == DTYPE_BOOL ? "bools" : "ints";
  double a = !strcmp(name, "ints") ? -4 : !strcmp(name, "normal") ? 1 : 0, b = !strcmp(name, "ints") ? 4 : 1;
  arguments(r, &a, &b);
  if (!strcmp(name, "distinct")) {
    fill_distinct(r, type, data);
    return STATUS_OK;
  }
  for (int64_t i = 0; i < n; i++) {
    double v;
    if (!strcmp(name, "normal")) v = a * next_normal(r);
    else if (!strcmp(name, "uniform")) v = a + (b - a) * next_unit(r);
    else if (!strcmp(name, "ints")) v = a + floor(next_unit(r) * (b - a + 1));
    else if (!strcmp(name, "bools")) v = next_unit(r) < 0.5;
    else if (!strcmp(name, "fill")) v = a;
    else if (!strcmp(name, "iota")) v = (double)i;
    else SYNTAX(r, "'%s' generates no values", COLUMN(r), name);
    if (type->dtype == DTYPE_F64) v = (float)v;   // the same values with and without widening
    element_write(data, type->dtype, i, v);
  }
  return STATUS_OK;
}

// ---- Inputs, attributes, options ----

static Status read_input(Reader *r, OpCase *c, int i, Value **value) {
  *value = NULL;
  skip_space(r);
  if (*r->at == '_') {
    r->at++;
    return STATUS_OK;
  }
  bool is_const = !strncmp(r->at, "const ", 6);
  if (is_const) r->at += 6;
  char name[16];
  snprintf(name, sizeof name, "x%d", i);
  Value *v = *value = graph_add_value(c->graph, name);
  TRY(read_type(r, &v->type));
  TRY(type_check(&v->type, NULL));
  void *data = op_case_buffer(r->arena, type_bytes(&v->type), 0);
  TRY(read_values(r, &v->type, data));
  c->in[i] = (Tensor){.data = data, .type = &v->type};
  if (!is_const) {
    graph_add_input(c->graph, v);
    return STATUS_OK;
  }
  Weight *w = ARENA_NEW(r->arena, Weight);
  *w = (Weight){.name = v->name, .type = v->type, .bytes = data};
  v->role = ROLE_CONST;
  v->weight = w;
  return STATUS_OK;
}

static Status read_ints(Reader *r, AttrInts *out) {
  if (!take(r, "[")) SYNTAX(r, "a list of integers is expected", COLUMN(r));
  int64_t *items = ARENA_ARRAY(r->arena, int64_t, 32), n = 0;
  while (!take(r, "]")) {
    char *end;
    if (n == 32) SYNTAX(r, "too many integers", COLUMN(r));
    items[n++] = strtoll(r->at, &end, 0);
    if (end == r->at) SYNTAX(r, "an integer is expected", COLUMN(r));
    r->at = end;
    take(r, ",");
  }
  *out = (AttrInts){items, n};
  return STATUS_OK;
}

static Status read_attribute(Reader *r, OpCase *c, const AttrSpec *spec) {
  void *at = (char *)c->node->attrs + spec->offset;
  char *end = (char *)r->at;
  switch (spec->type) {
  case ATTR_INT:
    *(int64_t *)at = strtoll(r->at, &end, 0);
    if (r->floats && *(int64_t *)at == DTYPE_F32 && (!strcmp(spec->name, "to") || !strcmp(spec->name, "dtype"))) *(int64_t *)at = r->floats;
    break;
  case ATTR_FLOAT: *(float *)at = strtof(r->at, &end); break;
  case ATTR_STRING:
    while (*end && *end != ' ') end++;
    *(const char **)at = arena_string_n(r->arena, r->at, (size_t)(end - r->at));
    break;
  case ATTR_INTS: return read_ints(r, at);
  case ATTR_TENSOR: {
    Weight *w = ARENA_NEW(r->arena, Weight);
    TRY(read_type(r, &w->type));
    void *data = op_case_buffer(r->arena, type_bytes(&w->type), 0);
    TRY(read_values(r, &w->type, data));
    w->name = spec->name;
    w->bytes = data;
    *(const Weight **)at = w;
    return STATUS_OK;
  }
  case ATTR_FLOATS: {
    AttrInts whole;
    TRY(read_ints(r, &whole));
    float *items = ARENA_ARRAY(r->arena, float, whole.n);
    for (int64_t i = 0; i < whole.n; i++) items[i] = (float)whole.items[i];
    *(AttrFloats *)at = (AttrFloats){items, whole.n};
    return STATUS_OK;
  }
  case ATTR_STRINGS: {
    const char **items = ARENA_ARRAY(r->arena, const char *, 32);
    int64_t n = 0;
    if (!take(r, "[")) SYNTAX(r, "a list is expected", COLUMN(r));
    while (!take(r, "]")) {
      const char *from = r->at;
      while (*r->at && *r->at != ',' && *r->at != ']') r->at++;
      if (n == 32 || !*r->at) SYNTAX(r, "the list does not end", COLUMN(r));
      items[n++] = arena_string_n(r->arena, from, (size_t)(r->at - from));
      take(r, ",");
    }
    *(AttrStrings *)at = (AttrStrings){items, n};
    return STATUS_OK;
  }
  }
  if (end == r->at) SYNTAX(r, "a value of %s is expected", COLUMN(r), spec->name);
  r->at = end;
  return STATUS_OK;
}

// The list of outputs must be known before the node is made: looked up ahead.
static int count_outputs(const char *line, const Op *op) {
  const char *option = strstr(line, "@outputs=");
  return option ? atoi(option + 9) : op->min_outputs;
}

static Status read_option(Reader *r, OpCase *c) {
  char *name = word(r);
  if (!take(r, "=")) SYNTAX(r, "'=' is expected", COLUMN(r));
  char *end = (char *)r->at;
  if (!strcmp(name, "outputs")) strtol(r->at, &end, 10);
  else if (!strcmp(name, "tol")) c->tolerance = strtod(r->at, &end);
  else if (!strcmp(name, "grad") && !strncmp(r->at, "no", 2)) c->no_grad = true, end += 2;
  else if (!strcmp(name, "skip"))
    do {
      long i = strtol(r->at, &end, 10);
      if (end == r->at || i < 0 || i >= c->node->n_outputs) SYNTAX(r, "no such output", COLUMN(r));
      c->node->outputs[i] = NULL;
      r->at = end;
    } while (take(r, ","));
  else if (!strcmp(name, "fails")) {
    c->fails_code = word(r);
    skip_space(r);
    c->fails_text = arena_string(r->arena, r->at);
    end = (char *)r->at + strlen(r->at);
  } else SYNTAX(r, "no option '%s'", COLUMN(r), name);
  r->at = end;
  return STATUS_OK;
}

static Status read_expected(Reader *r, OpCase *c) {
  for (int i = 0; *r->at; i++) {
    skip_space(r);
    if (i >= OP_CASE_OUTPUTS) SYNTAX(r, "too many expected values", COLUMN(r));
    if (*r->at == '_') {
      r->at++;
    } else if (*r->at == '{' && strchr(r->at, '}')) {
      c->expected[i] = r->at;
      r->at = strchr(r->at, '}') + 1;
    } else SYNTAX(r, "'{' is expected", COLUMN(r));
    skip_space(r);
  }
  return STATUS_OK;
}

Status op_case_parse(const char *line, Dtype floats, Arena *arena, OpCase *c) {
  Reader r = {.at = line, .line = line, .arena = arena, .random = UINT64_C(88172645463325252), .floats = floats};
  for (const char *s = line; *s; s++) r.random = (r.random ^ (unsigned char)*s) * UINT64_C(0x100000001b3);
  *c = (OpCase){.graph = graph_create(arena, "case"), .tolerance = 2e-6};
  c->graph->opset = IR_OPSET;
  c->graph->ir_version = 10;
  char *name = word(&r);
  bool microsoft = !strncmp(name, "ort_", 4);
  const Op *op = microsoft ? op_find("com.microsoft", name + 4) : op_find("", name) ? op_find("", name) : op_find("tessera", name);
  if (!op) SYNTAX(&r, "no operator '%s'", COLUMN(&r), name);
  Value *inputs[OP_CASE_INPUTS] = {0};
  int n_inputs = 0;
  if (!take(&r, "(")) SYNTAX(&r, "'(' is expected", COLUMN(&r));
  while (!take(&r, ")")) {
    if (n_inputs == OP_CASE_INPUTS) SYNTAX(&r, "too many inputs", COLUMN(&r));
    TRY(read_input(&r, c, n_inputs, &inputs[n_inputs]));
    n_inputs++;
    skip_space(&r);
    if (*r.at != ')' && !take(&r, ",")) SYNTAX(&r, "',' or ')' is expected", COLUMN(&r));
  }
  int n_outputs = count_outputs(line, op);
  if (n_outputs > OP_CASE_OUTPUTS) SYNTAX(&r, "too many outputs", COLUMN(&r));
  c->node = graph_make_node(c->graph, op, "node", n_inputs, inputs, n_outputs, NULL);
  c->node->origin = "case";
  graph_append(c->graph, c->node);
  for (skip_space(&r); *r.at; skip_space(&r)) {
    if (take(&r, "->")) return read_expected(&r, c);
    if (take(&r, "@")) {
      TRY(read_option(&r, c));
      continue;
    }
    char *attribute = word(&r);
    const AttrSpec *spec = attr_spec(op, attribute);
    if (!spec || !take(&r, "=")) SYNTAX(&r, "%s has no attribute '%s'", COLUMN(&r), op->name, attribute);
    TRY(read_attribute(&r, c, spec));
  }
  return STATUS_OK;
}
