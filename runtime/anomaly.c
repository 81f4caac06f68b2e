#include "anomaly.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

// The first element that is not finite; -1: none.
static int64_t first_bad(const Loops *loops, const Tensor *t) {
  if (!t->data || !t->type || !dtype_is_float(t->type->dtype)) return -1;
  int64_t n = type_elems(t->type);
  switch (t->type->dtype) {
  case DTYPE_F32: if (loops->finite_f32(t->data, n)) return -1; break;
  case DTYPE_BF16: if (loops->finite_bf16(t->data, n)) return -1; break;
  case DTYPE_F16: if (loops->finite_f16(t->data, n)) return -1; break;
  default: break;
  }
  for (int64_t e = 0; e < n; e++)
    if (!isfinite(element_read(t->data, t->type->dtype, e))) return e;
  return -1;
}

bool tensors_are_finite(const Loops *loops, const Tensor *tensors, int n) {
  for (int i = 0; i < n; i++)
    if (first_bad(loops, &tensors[i]) >= 0) return false;
  return true;
}

void bad_gradient_look(const KernelContext *c, BadGradient *first) {
  int64_t micro = c->clock->global_micro;
  if (first->bucket >= 0 && first->micro != micro) return;         // a micro-batch before this one
  for (int i = 0; i < c->n_in; i++) {
    const Node *by = c->node->inputs[i]->producer;
    uint32_t made_by = by ? by->id : 0;
    if ((first->bucket >= 0 && first->made_by <= made_by) || first_bad(c->loops, &c->in[i]) < 0) continue;
    *first = (BadGradient){c->node->outputs[0]->bucket, i, micro, made_by};
  }
}

// The parameter that element `e` of a bucket's flat value belongs to; NULL: none, or no bucket.
static const char *param_at(const Graph *g, const Value *v, int64_t e, int rank) {
  if (v->bucket < 0 || (size_t)v->bucket >= g->n_buckets) return NULL;
  const Bucket *b = &g->buckets[v->bucket];
  if (v->placement[0].kind == PLACED_FLAT) e += rank * type_elems(&v->type);
  const char *found = NULL;
  for (int i = 0; i < b->n_params; i++)
    if (b->starts[i] <= e) found = b->params[i];
  return found;
}

static const char *bad_name(double x) { return isnan(x) ? "nan" : x > 0 ? "inf" : "-inf"; }

Status anomaly_check(const KernelContext *c, const Graph *graph, Phase phase, int rank) {
  for (int o = 0; o < c->n_out; o++) {
    int64_t e = first_bad(c->loops, &c->out[o]);
    if (e < 0) continue;
    const Value *v = c->node->outputs[o];
    const char *param = param_at(graph, v, e, rank);
    char type[160], when[64] = "";
    if (phase == PHASE_MICRO) snprintf(when, sizeof when, ", micro-batch %" PRId64, c->clock->global_micro);
    FAIL(CHECK, c->node->origin ? c->node->origin : c->node->name, "'%s', %s, is the first value that is not finite: element %" PRId64 " is %s%s%s%s, rank %d%s%s",
         v->name, type_text(&v->type, type, sizeof type), e, bad_name(element_read(c->out[o].data, c->out[o].type->dtype, e)), param ? " (parameter '" : "",
         param ? param : "", param ? "')" : "", rank, when, c->n_in ? "; all that it is made of is finite" : "");
  }
  return NULL;
}

Status anomaly_check_inputs(const Loops *loops, const Graph *graph, const Tensor *inputs, size_t n, int64_t batch) {
  for (size_t i = 0; i < n; i++) {
    int64_t e = first_bad(loops, &inputs[i]);
    if (e >= 0)
      FAIL(CHECK, graph->inputs[i]->name, "the data are not finite: element %" PRId64 " of batch %" PRId64 " is %s", e, batch,
           bad_name(element_read(inputs[i].data, inputs[i].type->dtype, e)));
  }
  return NULL;
}
