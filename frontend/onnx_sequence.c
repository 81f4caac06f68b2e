// Operators on sequences and optionals. They move tensors about by positions that are constants, so that they are gone after import.
#include <inttypes.h>
#include <string.h>

#include "import_state.h"

static void bind_items(const Site *site, const Binding *items, size_t n) { site_bind(site, 0, (Binding){.kind = BOUND_SEQUENCE, .items = items, .n_items = n}); }

static bool sequence_input(const Site *site, size_t index, Binding *out) {
  *out = site_input(site, index);
  if (out->kind == BOUND_SEQUENCE) return true;
  bool untyped = out->kind == BOUND_TENSOR && out->value->role == ROLE_INPUT && out->value->type.dtype == DTYPE_NONE;   // complained of already
  if (out->kind != BOUND_BROKEN && !untyped) site_problem(site, STATUS_MALFORMED, "input %zu must be a sequence", index);
  return false;
}

// The constant position at input `index`, negative from the end: 0 <= *out < count.
static bool position(const Site *site, size_t index, size_t count, size_t *out) {
  Value *v = site_tensor(site, index);
  const Weight *w = v ? import_known(site->import, v) : NULL;
  if (!w || dtype_is_float(w->type.dtype) || type_elems(&w->type) != 1) {
    if (v && !site->import->n_problems) site_problem(site, STATUS_UNSUPPORTED, "the position '%s' is computed from data; it must be a constant", v->name);
    return false;
  }
  int64_t at = weight_read_int(w, 0), n = (int64_t)count;
  if (at < -n || at >= n) {
    site_problem(site, STATUS_MALFORMED, "position %" PRId64 " in a sequence of %" PRId64, at, n);
    return false;
  }
  *out = (size_t)(at < 0 ? at + n : at);
  return true;
}

static Value *int64s(const Site *site, const char *what, const int64_t *items, int64_t n) {
  return import_int64s(site->import, arena_printf(site->import->arena, "%s.%s", site->label, what), items, n);
}

static void empty(const Site *site) { bind_items(site, NULL, 0); }

static void construct(const Site *site) {
  size_t n = site->from->head->n_input;
  Binding *items = ARENA_ARRAY(site->import->arena, Binding, n);
  for (size_t i = 0; i < n; i++) items[i] = bound_tensor(site_tensor(site, i));
  bind_items(site, items, n);
}

static void at(const Site *site) {
  Binding s;
  size_t i;
  if (sequence_input(site, 0, &s) && position(site, 1, s.n_items, &i)) site_bind(site, 0, s.items[i]);
}

static void length(const Site *site) {
  Binding s;
  if (!sequence_input(site, 0, &s)) return;
  int64_t *n = ARENA_NEW(site->import->arena, int64_t);
  *n = (int64_t)s.n_items;
  const Weight w = {.type = type_scalar(DTYPE_I64), .bytes = n};
  site_bind(site, 0, bound_tensor(import_constant(site->import, arena_printf(site->import->arena, "%s.length", site->label), &w)));
}

static void insert(const Site *site) {
  Binding s;
  if (!sequence_input(site, 0, &s)) return;
  size_t i = s.n_items;
  if (site_input(site, 2).kind != BOUND_NOTHING && !position(site, 2, s.n_items + 1, &i)) return;
  if (!import_expand(site->import, site->label)) return;
  Binding *items = ARENA_ARRAY(site->import->arena, Binding, s.n_items + 1);
  if (i) memcpy(items, s.items, sizeof *items * i);
  items[i] = bound_tensor(site_tensor(site, 1));
  if (i < s.n_items) memcpy(items + i + 1, s.items + i, sizeof *items * (s.n_items - i));
  bind_items(site, items, s.n_items + 1);
}

static void erase(const Site *site) {
  Binding s;
  if (!sequence_input(site, 0, &s)) return;
  size_t i = s.n_items - 1;
  if (!s.n_items) site_problem(site, STATUS_MALFORMED, "the sequence is empty");
  if (!s.n_items || (site_input(site, 1).kind != BOUND_NOTHING && !position(site, 1, s.n_items, &i))) return;
  Binding *items = ARENA_ARRAY(site->import->arena, Binding, s.n_items);
  memcpy(items, s.items, sizeof *items * i);
  memcpy(items + i, s.items + i + 1, sizeof *items * (s.n_items - i - 1));
  bind_items(site, items, s.n_items - 1);
}

// Sizes of the parts along an axis of `extent`; NULL once complained of.
static int64_t *split_sizes(const Site *site, int64_t extent, int64_t *out_n) {
  Binding split = site_input(site, 1);
  const Weight *w = split.kind == BOUND_TENSOR ? import_known(site->import, split.value) : NULL;
  if (split.kind != BOUND_NOTHING && !w) {
    if (!site->import->n_problems) site_problem(site, STATUS_UNSUPPORTED, "the sizes of the parts are computed from data; they must be constants");
    return NULL;
  }
  bool listed = w && w->type.rank == 1;
  int64_t each = w && !listed ? weight_read_int(w, 0) : 1;
  int64_t n = listed ? type_elems(&w->type) : each > 0 ? (extent + each - 1) / each : 0;
  if (n < 1 || n > 1 << 20) {
    site_problem(site, STATUS_UNSUPPORTED, "parts of %" PRId64 " out of %" PRId64 " elements", each, extent);
    return NULL;
  }
  int64_t *sizes = ARENA_ARRAY(site->import->arena, int64_t, n);
  for (int64_t i = 0; i < n; i++) sizes[i] = listed ? weight_read_int(w, i) : i < n - 1 ? each : extent - each * (n - 1);
  *out_n = n;
  return sizes;
}

static void split(const Site *site) {
  Value *v = site_tensor(site, 0);
  const Type *type = v ? import_type(site->import, v) : NULL;
  int64_t axis = site_attr_int(site, "axis", 0), n;
  if (!type) {
    if (v && !site->import->n_problems) site_problem(site, STATUS_UNSUPPORTED, "the shape of '%s' is not known", v->name);
    return;
  }
  if (axis < 0) axis += type->rank;
  if (axis < 0 || axis >= type->rank) {
    site_problem(site, STATUS_MALFORMED, "axis %" PRId64 " of a tensor with %d dimensions", site_attr_int(site, "axis", 0), type->rank);
    return;
  }
  int64_t *sizes = split_sizes(site, type->dims[axis], &n);
  if (!sizes) return;
  Value *const *parts = site_add(site, "Split", "", 2, (Value *[]){v, int64s(site, "split", sizes, n)}, (int)n, NULL, ATTRS(A_INT("axis", axis)));
  Binding *items = ARENA_ARRAY(site->import->arena, Binding, n);
  bool squeeze = site_input(site, 1).kind == BOUND_NOTHING && !site_attr_int(site, "keepdims", 1);
  Value *axes = squeeze ? int64s(site, "axes", &axis, 1) : NULL;
  for (int64_t i = 0; parts && i < n; i++) {
    if (!import_expand(site->import, site->label)) return;
    Value *const *part = squeeze ? site_add(site, "Squeeze", "part", 2, (Value *[]){parts[i], axes}, 1, NULL, NULL) : &parts[i];
    if (!part) return;
    items[i] = bound_tensor(part[0]);
  }
  if (parts) bind_items(site, items, (size_t)n);
}

static void concat(const Site *site) {
  Binding s;
  if (!sequence_input(site, 0, &s)) return;
  int64_t axis = site_attr_int(site, "axis", 0);
  bool fresh = site_attr_int(site, "new_axis", 0) != 0;
  Value **items = ARENA_ARRAY(site->import->arena, Value *, s.n_items), *axes = fresh ? int64s(site, "axis", &axis, 1) : NULL;
  for (size_t i = 0; i < s.n_items; i++) {
    if (s.items[i].kind != BOUND_TENSOR) return;
    Value *v = s.items[i].value;
    Value *const *wide = fresh ? site_add(site, "Unsqueeze", "item", 2, (Value *[]){v, axes}, 1, NULL, NULL) : NULL;
    if (fresh && !wide) return;
    items[i] = fresh ? wide[0] : v;
  }
  if (!s.n_items) {
    site_problem(site, STATUS_UNSUPPORTED, "the sequence is empty, so that the shape of the result is not known");
    return;
  }
  Value *declared = site_declared(site, 0);
  Value *const *out = site_add(site, "Concat", "", (int)s.n_items, items, 1, &declared, ATTRS(A_INT("axis", axis)));
  if (out) site_bind(site, 0, bound_tensor(out[0]));
}

static void optional(const Site *site) {
  Binding *item = ARENA_NEW(site->import->arena, Binding);
  *item = site_input(site, 0);
  site_bind(site, 0, (Binding){.kind = BOUND_OPTIONAL, .items = item, .n_items = item->kind != BOUND_NOTHING});
}

static void optional_get(const Site *site) {
  Binding b = site_input(site, 0);
  if (b.kind == BOUND_OPTIONAL && !b.n_items) site_problem(site, STATUS_MALFORMED, "the optional value is empty");
  else site_bind(site, 0, b.kind == BOUND_OPTIONAL ? b.items[0] : b);
}

static void optional_has(const Site *site) {
  Binding b = site_input(site, 0);
  bool *has = ARENA_NEW(site->import->arena, bool);
  *has = b.kind == BOUND_OPTIONAL ? b.n_items > 0 : b.kind != BOUND_NOTHING;
  const Weight w = {.type = type_scalar(DTYPE_BOOL), .bytes = has};
  site_bind(site, 0, bound_tensor(import_constant(site->import, arena_printf(site->import->arena, "%s.has", site->label), &w)));
}

// SequenceMap: the body once per item of the first input; further sequences go in step with it, tensors are the same every time.
static void map(const Site *site) {
  Import *import = site->import;
  const OnnxAttr *attr = onnx_attr(site->from, "body");
  OnnxGraph body;
  Binding s;
  if (!attr || !attr->has_graph || !sequence_input(site, 0, &s)) return;
  if (import_absorb(import, onnx_decode_graph(attr->graph, import->arena, &body), site->label)) return;
  size_t n_in = site->from->head->n_input, n_out = site->from->head->n_output;
  if (body.head->n_input != n_in || body.head->n_output != n_out) {
    site_problem(site, STATUS_MALFORMED, "%zu inputs and %zu outputs do not fit a body with %zu and %zu", n_in, n_out, body.head->n_input, body.head->n_output);
    return;
  }
  Binding *in = ARENA_ARRAY(import->arena, Binding, n_in), *out = ARENA_ARRAY(import->arena, Binding, n_out);
  Binding **lists = ARENA_ARRAY(import->arena, Binding *, n_out);
  for (size_t k = 0; k < n_out; k++) lists[k] = ARENA_ARRAY(import->arena, Binding, s.n_items);
  for (size_t i = 0; i < s.n_items; i++) {
    for (size_t k = 0; k < n_in; k++) {
      in[k] = site_input(site, k);
      if (in[k].kind == BOUND_SEQUENCE && i >= in[k].n_items) site_problem(site, STATUS_MALFORMED, "its sequences have different lengths");
      if (import->n_problems || !import_expand(import, site->label)) return;
      if (in[k].kind == BOUND_SEQUENCE) in[k] = in[k].items[i];
    }
    import_subgraph(site, &body, arena_printf(import->arena, "%zu/", i), in, n_in, NULL, out);
    for (size_t k = 0; k < n_out; k++) lists[k][i] = out[k];
  }
  for (size_t k = 0; k < n_out; k++) site_bind(site, k, (Binding){.kind = BOUND_SEQUENCE, .items = lists[k], .n_items = s.n_items});
}

static void identity(const Site *site) { site_bind(site, 0, site_input(site, 0)); }

static const struct { const char *op; void (*handle)(const Site *site); } handlers[] = {
    {"SequenceEmpty", empty}, {"SequenceConstruct", construct}, {"SequenceAt", at}, {"SequenceLength", length}, {"SequenceInsert", insert},
    {"SequenceErase", erase}, {"SplitToSequence", split}, {"ConcatFromSequence", concat}, {"SequenceMap", map}, {"Optional", optional},
    {"OptionalGetElement", optional_get}, {"OptionalHasElement", optional_has}};

bool import_sequence(const Site *site) {
  const char *op = text_or_empty(site->from->head->op_type);
  for (size_t i = 0; i < sizeof handlers / sizeof *handlers; i++) {
    if (strcmp(handlers[i].op, op)) continue;
    handlers[i].handle(site);
    return true;
  }
  if (strcmp(op, "Identity")) return false;
  Binding b = site_input(site, 0);
  if (b.kind != BOUND_SEQUENCE && b.kind != BOUND_OPTIONAL) return false;
  identity(site);
  return true;
}
