// widen: floats narrower than the precision asked for become that precision: f16 and bf16 become f32 under --precision f32, every float becomes
// f64 under --precision fp64. Inputs, parameters, constants, and attributes that name or hold a type; types that nodes compute follow by
// inference. Parameters keep their weights: Load widens when the plan starts, and export rounds back to the model's own types.
#include <string.h>

#include "../kernels/ops.h"
#include "pass_list.h"

// Larger constants stay references to their file and are widened by Load, too.
static const int64_t CONVERT_BYTES_MAX = INT64_C(8) << 20;

// The type that values of type `d` get; `d` itself when it stays.
static Dtype wide_type(Dtype d, Dtype target) { return dtype_is_float(d) && dtype_bytes(d) < dtype_bytes(target) ? target : d; }
static bool is_narrow(Dtype d, Dtype target) { return wide_type(d, target) != d; }

static const Weight *widened(Arena *arena, const Weight *from, Dtype target) {
  Weight *w = arena_copy(arena, from, sizeof *from);
  w->type.dtype = target;
  int64_t elems = type_elems(&w->type);
  void *bytes = arena_alloc(arena, (size_t)type_bytes(&w->type));
  elements_convert(bytes, target, from->bytes, from->type.dtype, elems);
  w->bytes = bytes;
  w->path = NULL;
  w->offset_bytes = 0;
  return w;
}

static void widen_value(Arena *arena, Value *v, Dtype target) {
  v->type.dtype = wide_type(v->type.dtype, target);
  const Weight *w = value_const(v);
  if (w && is_narrow(w->type.dtype, target) && type_bytes(&w->type) <= CONVERT_BYTES_MAX) v->weight = widened(arena, w, target);
}

// Attributes that name an element type by its ONNX number are called so in every standard operator.
static bool names_dtype(const AttrSpec *s) {
  static const char *const names[] = {"to", "dtype", "stash_type", "softmax_precision", "output_dtype", "output_datatype", "precision"};
  for (size_t i = 0; s->type == ATTR_INT && i < sizeof names / sizeof *names; i++)
    if (!strcmp(s->name, names[i])) return true;
  return false;
}

static Status widen_attrs(Arena *arena, Node *n, Dtype target) {
  for (const AttrSpec *s = n->op->attrs; s && s->name; s++) {
    void *at = (char *)n->attrs + s->offset;
    if (names_dtype(s)) {
      int64_t *dtype = at;
      if (*dtype > 0 && *dtype < 64) *dtype = wide_type((Dtype)*dtype, target);
    } else if (s->type == ATTR_TENSOR) {
      const Weight **w = at;
      if (!*w || !is_narrow((*w)->type.dtype, target)) continue;
      if (!(*w)->bytes) FAIL(UNSUPPORTED, n->name, "attribute %s: the bytes of its tensor are not known, so it cannot be widened to %s", s->name, dtype_name(target));
      *w = widened(arena, *w, target);
    }
  }
  return STATUS_OK;
}

static void *attr_at(Node *n, const char *name) { return (char *)n->attrs + attr_spec(n->op, name)->offset; }

// Makes the attribute `value` a tensor of the wide type.
static void set_value(Graph *g, Node *n, Dtype target, const float *items, const Type *type) {
  const Weight narrow = {.name = n->name, .type = *type, .bytes = items};
  *(const Weight **)attr_at(n, "value") = widened(g->arena, &narrow, target);
}

// Constants that are float32 because nothing says otherwise.
static void widen_default(Graph *g, Node *n, Dtype target) {
  static const float zero;
  Type scalar = type_scalar(DTYPE_F32), one = type_vector(DTYPE_F32, 1);
  if (!is_narrow(DTYPE_F32, target)) return;
  if (n->op == &op_ConstantOfShape) {
    if (!*(const Weight **)attr_at(n, "value")) set_value(g, n, target, &zero, &one);
  } else if (n->op == &op_Constant) {
    float *item = attr_at(n, "value_float");
    AttrFloats *items = attr_at(n, "value_floats");
    Type vector = type_vector(DTYPE_F32, items->n);
    if (!attr_is_default(n, attr_spec(n->op, "value_float"))) set_value(g, n, target, item, &scalar);
    else if (items->n) set_value(g, n, target, items->items, &vector);
    else return;
    *item = attr_spec(n->op, "value_float")->default_float;
    *items = (AttrFloats){0};
  }
}

Status pass_widen(Graph *graph, const CompileOptions *options) {
  Dtype target = strcmp(options->precision, "fp64") ? DTYPE_F32 : DTYPE_F64;
  for (size_t i = 0; i < graph->n_values; i++) widen_value(graph->arena, graph->values[i], target);
  for (size_t i = 0; i < graph->n_nodes; i++) {
    TRY(widen_attrs(graph->arena, graph->nodes[i], target));
    widen_default(graph, graph->nodes[i], target);
    if (graph->facts & FACT_TYPED) TRY(node_infer(graph, graph->nodes[i]));
  }
  return STATUS_OK;
}
