// widen_f64: every float becomes a double (--precision fp64): inputs, parameters, constants, attributes that name or hold a type. Types that
// nodes compute follow by inference. Parameters keep their weights: Load widens when the plan starts.
#include <string.h>

#include "../ir/op.h"
#include "pass_list.h"

// Larger constants stay references to their file and are widened by Load, too.
static const int64_t CONVERT_BYTES_MAX = INT64_C(8) << 20;

static bool is_narrow(Dtype d) { return dtype_is_float(d) && d != DTYPE_F64; }

static const Weight *widened(Arena *arena, const Weight *from) {
  Weight *w = arena_copy(arena, from, sizeof *from);
  w->type.dtype = DTYPE_F64;
  int64_t elems = type_elems(&w->type);
  void *bytes = arena_alloc(arena, (size_t)type_bytes(&w->type));
  elements_convert(bytes, DTYPE_F64, from->bytes, from->type.dtype, elems);
  w->bytes = bytes;
  w->path = NULL;
  w->offset_bytes = 0;
  return w;
}

static void widen_value(Arena *arena, Value *v) {
  if (is_narrow(v->type.dtype)) v->type.dtype = DTYPE_F64;
  const Weight *w = value_const(v);
  if (w && is_narrow(w->type.dtype) && type_bytes(&w->type) <= CONVERT_BYTES_MAX) v->weight = widened(arena, w);
}

// Attributes that name an element type by its ONNX number are called so in every standard operator.
static bool names_dtype(const AttrSpec *s) { return s->type == ATTR_INT && (!strcmp(s->name, "to") || !strcmp(s->name, "dtype")); }

static Status widen_attrs(Arena *arena, Node *n) {
  for (const AttrSpec *s = n->op->attrs; s && s->name; s++) {
    void *at = (char *)n->attrs + s->offset;
    if (names_dtype(s)) {
      int64_t *dtype = at;
      if (*dtype > 0 && *dtype < 64 && is_narrow((Dtype)*dtype)) *dtype = DTYPE_F64;
    } else if (s->type == ATTR_TENSOR) {
      const Weight **w = at;
      if (!*w || !is_narrow((*w)->type.dtype)) continue;
      if (!(*w)->bytes) FAIL(UNSUPPORTED, n->name, "attribute %s: the bytes of its tensor are not known, so it cannot be widened to double", s->name);
      *w = widened(arena, *w);
    }
  }
  return STATUS_OK;
}

Status pass_widen_f64(Graph *graph, const CompileOptions *options) {
  if (strcmp(options->precision, "fp64")) return STATUS_OK;
  for (size_t i = 0; i < graph->n_values; i++) widen_value(graph->arena, graph->values[i]);
  for (size_t i = 0; i < graph->n_nodes; i++) {
    TRY(widen_attrs(graph->arena, graph->nodes[i]));
    if (graph->facts & FACT_TYPED) TRY(node_infer(graph, graph->nodes[i]));
  }
  return STATUS_OK;
}
