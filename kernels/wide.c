#include "wide.h"

#include <assert.h>
#include <stdlib.h>

static bool is_float(const Tensor *t) { return t->type && dtype_is_float(t->type->dtype); }

Status wide_begin(const KernelContext *c, int64_t space_elems, WideOperands *out) {
  assert(c->n_in <= WIDE_OPERANDS && c->n_out <= WIDE_OPERANDS);
  int64_t elems = space_elems + 1;
  for (int i = 0; i < c->n_in; i++) elems += is_float(&c->in[i]) ? in_elems(c, i) : 0;
  for (int o = 0; o < c->n_out; o++) elems += is_float(&c->out[o]) ? out_elems(c, o) : 0;
  double *at = malloc(sizeof(double) * (size_t)elems);
  if (!at) FAIL(RESOURCE, c->node->name, "no memory for %lld elements", (long long)elems);
  WideOperands w = {.heap = at};
  for (int i = 0; i < c->n_in; i++) {
    if (!is_float(&c->in[i])) continue;
    elements_convert(at, DTYPE_F64, c->in[i].data, c->in[i].type->dtype, in_elems(c, i));
    w.in[i] = at;
    at += in_elems(c, i);
  }
  for (int o = 0; o < c->n_out; o++) {
    if (!is_float(&c->out[o])) continue;
    w.out[o] = at;
    at += out_elems(c, o);
  }
  w.space = at;
  *out = w;
  return NULL;
}

void wide_end(const KernelContext *c, WideOperands *w) {
  for (int o = 0; o < c->n_out; o++)
    if (w->out[o]) elements_convert(c->out[o].data, c->out[o].type->dtype, w->out[o], DTYPE_F64, out_elems(c, o));
  free(w->heap);
}

WideOperands wide_as_they_lie(const KernelContext *c) {
  WideOperands w = {.space = c->workspace};
  for (int i = 0; i < c->n_in; i++) w.in[i] = is_float(&c->in[i]) ? c->in[i].data : NULL;
  for (int o = 0; o < c->n_out; o++) w.out[o] = is_float(&c->out[o]) ? c->out[o].data : NULL;
  return w;
}
