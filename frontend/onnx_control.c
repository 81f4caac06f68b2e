// If, Loop and Scan. A constant condition chooses its branch; another computes both and selects. Loops are unrolled: trip counts must be known.
#include <inttypes.h>
#include <string.h>

#include "import_state.h"

static bool decode_subgraph(const Site *site, const char *attr, OnnxGraph *out) {
  const OnnxAttr *a = onnx_attr(site->from, attr);
  if (!a) return false;                                // complained of: it is required
  if (!a->has_graph) site_problem(site, STATUS_MALFORMED, "attribute %s holds no graph", attr);
  return a->has_graph && !import_absorb(site->import, onnx_decode_graph(a->graph, site->import->arena, out), site->label);
}

static Value **declared_outputs(const Site *site, size_t n, size_t skipped) {
  Value **declared = ARENA_ARRAY(site->import->arena, Value *, skipped + n);
  for (size_t i = 0; i < n; i++) declared[skipped + i] = site_declared(site, i);
  return declared;
}

// Complains that something is no constant, unless an earlier problem is the reason why nothing is known.
static void unknown(const Site *site, const char *what, const char *remedy) {
  if (!site->import->n_problems) site_problem(site, STATUS_UNSUPPORTED, "%s is computed from data; %s", what, remedy);
}

// ---- If -----------------------------------------------------------------------------------------------------------------------

static bool same_types(const Site *site, size_t output, const Value *a, const Value *b) {
  const Type *x = import_type(site->import, a), *y = import_type(site->import, b);
  char text_a[160], text_b[160];
  if (!x || !y || type_equal(x, y)) return true;
  site_problem(site, STATUS_UNSUPPORTED, "its condition is computed, and output %zu is %s in one branch and %s in the other; they must be alike", output,
               type_text(x, text_a, sizeof text_a), type_text(y, text_b, sizeof text_b));
  return false;
}

// Both branches run; Where selects.
static void select_outputs(const Site *site, Value *condition, const Binding *then_out, const Binding *else_out, size_t n) {
  Value *shape = import_int64s(site->import, arena_printf(site->import->arena, "%s.scalar", site->label), NULL, 0);
  Value *const *scalar = site_add(site, "Reshape", "condition", 2, (Value *[]){condition, shape}, 1, NULL, NULL);
  for (size_t i = 0; scalar && i < n; i++) {
    if (then_out[i].kind == BOUND_BROKEN || else_out[i].kind == BOUND_BROKEN) continue;
    if (then_out[i].kind != BOUND_TENSOR || else_out[i].kind != BOUND_TENSOR) {
      site_problem(site, STATUS_UNSUPPORTED, "its condition is computed, and output %zu is no tensor", i);
      continue;
    }
    if (!same_types(site, i, then_out[i].value, else_out[i].value)) continue;
    Value *declared = site_declared(site, i);
    Value *const *out = site_add(site, "Where", "", 3, (Value *[]){scalar[0], then_out[i].value, else_out[i].value}, 1, &declared, NULL);
    if (out) site_bind(site, i, bound_tensor(out[0]));
  }
}

void import_if(const Site *site) {
  Import *import = site->import;
  Value *condition = site_tensor(site, 0);
  const Weight *known = condition ? import_known(import, condition) : NULL;
  OnnxGraph branches[2];                               // else, then
  size_t n = site->from->head->n_output;
  if (!condition || !decode_subgraph(site, "else_branch", &branches[0]) || !decode_subgraph(site, "then_branch", &branches[1])) return;
  for (int i = 0; i < 2; i++)
    if (branches[i].head->n_output != n) {
      site_problem(site, STATUS_MALFORMED, "it has %zu outputs, its %s gives %zu", n, i ? "then_branch" : "else_branch", branches[i].head->n_output);
      return;
    }
  if (known && (known->type.dtype != DTYPE_BOOL || type_elems(&known->type) != 1)) {
    site_problem(site, STATUS_MALFORMED, "its condition '%s' is no single bool", condition->name);
    return;
  }
  Binding *out = ARENA_ARRAY(import->arena, Binding, 2 * n);
  if (known) {
    bool taken = weight_read_int(known, 0) != 0;
    import_subgraph(site, &branches[taken], taken ? "then/" : "else/", NULL, 0, declared_outputs(site, n, 0), out);
    for (size_t i = 0; i < n; i++) site_bind(site, i, out[i]);
    return;
  }
  import_subgraph(site, &branches[1], "then/", NULL, 0, NULL, out);
  import_subgraph(site, &branches[0], "else/", NULL, 0, NULL, out + n);
  select_outputs(site, condition, out, out + n, n);
}

// ---- What Loop and Scan share -------------------------------------------------------------------------------------------------

static Value *axis_const(const Site *site, int64_t axis) {
  return import_int64s(site->import, arena_printf(site->import->arena, "%s.axis", site->label), &axis, 1);
}

// Slices of one scan output, stacked on a new axis.
static void bind_stacked(const Site *site, size_t output, Value *const *slices, size_t n, int64_t axis) {
  if (!n) {
    site_problem(site, STATUS_UNSUPPORTED, "no iteration gives output %zu, so that its shape is not known", output);
    return;
  }
  Value **wide = ARENA_ARRAY(site->import->arena, Value *, n), *at = axis_const(site, axis), *declared = site_declared(site, output);
  for (size_t i = 0; i < n; i++) {
    if (!slices[i]) return;
    Value *const *out = site_add(site, "Unsqueeze", "slice", 2, (Value *[]){slices[i], at}, 1, NULL, NULL);
    if (!out) return;
    wide[i] = out[0];
  }
  Value *const *all = site_add(site, "Concat", "stack", (int)n, wide, 1, &declared, ATTRS(A_INT("axis", axis)));
  if (all) site_bind(site, output, bound_tensor(all[0]));
}

// slices[output * trips + i]: room for one more iteration of each scan output.
typedef struct Slices { Value **items; size_t n, capacity; } Slices;

static void keep_slices(const Site *site, Slices *slices, const Binding *results, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (results[i].kind == BOUND_SEQUENCE || results[i].kind == BOUND_OPTIONAL) site_problem(site, STATUS_UNSUPPORTED, "a scan output that is no tensor");
    ARENA_PUSH(site->import->arena, slices[i].items, slices[i].n, slices[i].capacity, results[i].value);
  }
}

// ---- Loop ---------------------------------------------------------------------------------------------------------------------

typedef struct LoopBounds { int64_t trips; bool go; } LoopBounds;

static bool loop_bounds(const Site *site, LoopBounds *out) {
  *out = (LoopBounds){INT64_MAX, true};
  Binding trips = site_input(site, 0), go = site_input(site, 1);
  const Weight *n = trips.kind == BOUND_TENSOR ? import_known(site->import, trips.value) : NULL;
  const Weight *c = go.kind == BOUND_TENSOR ? import_known(site->import, go.value) : NULL;
  if (trips.kind == BOUND_TENSOR && !n) unknown(site, "its trip count", "a loop is unrolled and needs one that shapes and constants decide");
  else if (go.kind == BOUND_TENSOR && !c) unknown(site, "its condition", "a loop is unrolled and needs one that shapes and constants decide");
  if ((trips.kind != BOUND_NOTHING && !n) || (go.kind != BOUND_NOTHING && !c)) return false;
  if ((n && (n->type.dtype != DTYPE_I64 || type_elems(&n->type) != 1)) || (c && (c->type.dtype != DTYPE_BOOL || type_elems(&c->type) != 1))) {
    site_problem(site, STATUS_MALFORMED, "its trip count must be one int64 and its condition one bool");
    return false;
  }
  if (n) out->trips = weight_read_int(n, 0);
  if (c) out->go = weight_read_int(c, 0) != 0;
  return true;
}

// Whether the body always goes on when it has been entered: its word on it is the one that it was given.
static bool goes_on_for_ever(const OnnxGraph *body) {
  const char *name = body->head->output[0]->name;
  for (size_t i = body->n_nodes; i-- > 0;) {
    const Onnx__NodeProto *node = body->nodes[i].head;
    bool gives = false;
    for (size_t k = 0; k < node->n_output; k++) gives |= !strcmp(node->output[k], text_or_empty(name));
    if (!gives) continue;
    if (strcmp(text_or_empty(node->op_type), "Identity") || node->n_input != 1) return false;
    name = node->input[0];
  }
  return !strcmp(text_or_empty(name), text_or_empty(body->head->input[1]->name));
}

// The body's word on going on; false when it is not known.
static bool loop_goes_on(const Site *site, Binding condition, bool *go) {
  const Weight *w = condition.kind == BOUND_TENSOR ? import_known(site->import, condition.value) : NULL;
  if (!w || w->type.dtype != DTYPE_BOOL || type_elems(&w->type) != 1) {
    unknown(site, "its condition", "a loop is unrolled and needs one that shapes and constants decide");
    return false;
  }
  *go = weight_read_int(w, 0) != 0;
  return true;
}

void import_loop(const Site *site) {
  Import *import = site->import;
  OnnxGraph body;
  LoopBounds bounds;
  if (!decode_subgraph(site, "body", &body) || !loop_bounds(site, &bounds)) return;
  size_t n_carried = site->from->head->n_input > 2 ? site->from->head->n_input - 2 : 0, n_out = body.head->n_output;
  if (body.head->n_input != 2 + n_carried || n_out < 1 + n_carried) {
    site_problem(site, STATUS_MALFORMED, "its body has %zu inputs and %zu outputs; %zu carried values need %zu and at least %zu", body.head->n_input, n_out,
                 n_carried, 2 + n_carried, 1 + n_carried);
    return;
  }
  if (bounds.go && goes_on_for_ever(&body) && !import_expands_to(import, site->label, bounds.trips, body.n_nodes)) return;
  size_t n_scans = n_out - 1 - n_carried;
  Binding *in = ARENA_ARRAY(import->arena, Binding, 2 + n_carried), *out = ARENA_ARRAY(import->arena, Binding, n_out);
  Slices *slices = ARENA_ARRAY(import->arena, Slices, n_scans);
  for (size_t i = 0; i < n_carried; i++) in[2 + i] = site_input(site, 2 + i);
  for (int64_t t = 0; t < bounds.trips && bounds.go; t++) {
    if (!import_expand(import, site->label)) return;
    const char *suffix = arena_printf(import->arena, "%" PRId64 "/", t);
    int64_t *number = arena_copy(import->arena, &t, sizeof t);
    bool *go = arena_copy(import->arena, &bounds.go, sizeof bounds.go);
    in[0] = bound_tensor(import_constant(import, arena_printf(import->arena, "%s/%siteration", site->label, suffix),
                                         &(Weight){.type = type_scalar(DTYPE_I64), .bytes = number}));
    in[1] = bound_tensor(import_constant(import, arena_printf(import->arena, "%s/%scondition", site->label, suffix),
                                         &(Weight){.type = type_scalar(DTYPE_BOOL), .bytes = go}));
    import_subgraph(site, &body, suffix, in, 2 + n_carried, NULL, out);
    if (import->n_problems || !loop_goes_on(site, out[0], &bounds.go)) return;
    memcpy(in + 2, out + 1, sizeof *in * n_carried);
    keep_slices(site, slices, out + 1 + n_carried, n_scans);
  }
  for (size_t i = 0; i < n_carried; i++) site_bind(site, i, in[2 + i]);
  for (size_t i = 0; i < n_scans; i++) bind_stacked(site, n_carried + i, slices[i].items, slices[i].n, 0);
}

// ---- Scan ---------------------------------------------------------------------------------------------------------------------

static int64_t scan_list(const Site *site, const char *attr, size_t index) {
  const OnnxAttr *a = onnx_attr(site->from, attr);
  return a && index < a->head->n_ints ? a->head->ints[index] : 0;
}

// Cuts scan input `index` along its axis into slices without that axis; false once complained of.
static bool cut_scan_input(const Site *site, size_t index, Value *v, int64_t *trips, Value *const **out) {
  const Type *type = import_type(site->import, v);
  int64_t axis = scan_list(site, "scan_input_axes", index);
  if (!type) {
    unknown(site, "the length of a scan input", "it must be known");
    return false;
  }
  if (axis < 0) axis += type->rank;
  if (axis < 0 || axis >= type->rank) {
    site_problem(site, STATUS_MALFORMED, "scan input %zu has %d dimensions and axis %" PRId64, index, type->rank, axis);
    return false;
  }
  int64_t n = type->dims[axis];
  if (*trips >= 0 && *trips != n) {
    site_problem(site, STATUS_MALFORMED, "its scan inputs have %" PRId64 " and %" PRId64 " slices", *trips, n);
    return false;
  }
  *trips = n;
  if (n == 0 || n > 1 << 20) {
    site_problem(site, STATUS_UNSUPPORTED, "%" PRId64 " iterations", n);
    return false;
  }
  Value *const *parts = site_add(site, "Split", "slices", 1, &v, (int)n, NULL, ATTRS(A_INT("axis", axis), A_INT("num_outputs", n)));
  Value **flat = ARENA_ARRAY(site->import->arena, Value *, n), *at = axis_const(site, axis);
  for (int64_t i = 0; parts && i < n; i++) {
    Value *const *slice = import_expand(site->import, site->label) ? site_add(site, "Squeeze", "slice", 2, (Value *[]){parts[i], at}, 1, NULL, NULL) : NULL;
    if (!slice) return false;
    flat[i] = slice[0];
  }
  *out = flat;
  return parts != NULL;
}

void import_scan(const Site *site) {
  Import *import = site->import;
  OnnxGraph body;
  if (!decode_subgraph(site, "body", &body)) return;
  size_t n_in = site->from->head->n_input, n_out = body.head->n_output;
  int64_t n_scans = site_attr_int(site, "num_scan_inputs", 0);
  if (site->schema->since < 9) {
    site_problem(site, STATUS_UNSUPPORTED, "its form of opset 8, with a batch axis, is not supported; that of opset 9 is");
    return;
  }
  if (n_scans < 1 || (size_t)n_scans > n_in || body.head->n_input != n_in || n_out < n_in - (size_t)n_scans) {
    site_problem(site, STATUS_MALFORMED, "%zu inputs, %" PRId64 " of them scanned, do not fit a body with %zu inputs and %zu outputs", n_in, n_scans,
                 body.head->n_input, n_out);
    return;
  }
  size_t n_carried = n_in - (size_t)n_scans, n_stacked = n_out - n_carried;
  Value *const **cut = ARENA_ARRAY(import->arena, Value *const *, n_scans);
  int64_t trips = -1;
  for (int64_t i = 0; i < n_scans; i++) {
    Value *v = site_tensor(site, n_carried + (size_t)i);
    if (!v || !cut_scan_input(site, (size_t)i, v, &trips, &cut[i])) return;
  }
  if (!import_expands_to(import, site->label, trips, body.n_nodes)) return;
  Binding *in = ARENA_ARRAY(import->arena, Binding, n_in), *out = ARENA_ARRAY(import->arena, Binding, n_out);
  Slices *slices = ARENA_ARRAY(import->arena, Slices, n_stacked);
  for (size_t i = 0; i < n_carried; i++) in[i] = site_input(site, i);
  for (int64_t t = 0; t < trips; t++) {
    if (!import_expand(import, site->label)) return;
    for (int64_t i = 0; i < n_scans; i++) {
      bool reverse = scan_list(site, "scan_input_directions", (size_t)i) == 1;
      in[n_carried + (size_t)i] = bound_tensor(cut[i][reverse ? trips - 1 - t : t]);
    }
    import_subgraph(site, &body, arena_printf(import->arena, "%" PRId64 "/", t), in, n_in, NULL, out);
    if (import->n_problems) return;
    memcpy(in, out, sizeof *in * n_carried);
    keep_slices(site, slices, out + n_carried, n_stacked);
  }
  for (size_t i = 0; i < n_carried; i++) site_bind(site, i, in[i]);
  for (size_t i = 0; i < n_stacked; i++) {
    for (size_t a = 0, b = slices[i].n; scan_list(site, "scan_output_directions", i) == 1 && a + 1 < b; a++) {
      Value *swap = slices[i].items[a];
      slices[i].items[a] = slices[i].items[--b];
      slices[i].items[b] = swap;
    }
    bind_stacked(site, n_carried + i, slices[i].items, slices[i].n, scan_list(site, "scan_output_axes", i));
  }
}
