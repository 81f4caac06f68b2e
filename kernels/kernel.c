#include "kernel.h"

#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A row of domain tessera may take f64 control scalars (scale, lr, inverse_count) beside its f32 tensors.
static bool is_control(const Node *node, const Type *type) {
  return !strcmp(node->op->domain, "tessera") && type->dtype == DTYPE_F64 && type->rank == 0;
}

bool kernel_uses_cpu(const Node *node, Isa isa) {
  if (!node->op->run_cpu || isa == ISA_SCALAR) return false;
  bool any_f32 = false;
  for (int i = 0; i < node->n_inputs + node->n_outputs; i++) {
    const Value *v = i < node->n_inputs ? node->inputs[i] : node->outputs[i - node->n_inputs];
    if (!v || !dtype_is_float(v->type.dtype)) continue;
    if (v->type.dtype == DTYPE_F32) any_f32 = true;
    else if (!is_control(node, &v->type)) return false;
  }
  return any_f32;
}

enum { TEMPORARY_ALIGN_BYTES = 64 };

static Status temporary_alloc(const Node *node, const char *what, int64_t bytes, void **out) {
  *out = NULL;
  if (!bytes) return NULL;
  size_t rounded = ((size_t)bytes + TEMPORARY_ALIGN_BYTES - 1) / TEMPORARY_ALIGN_BYTES * TEMPORARY_ALIGN_BYTES;
  *out = aligned_alloc(TEMPORARY_ALIGN_BYTES, rounded);
  if (!*out) FAIL(RESOURCE, node->name, "no memory for %lld bytes of %s", (long long)bytes, what);
  return NULL;
}

// Workspace, prepared state and the run itself; the caller frees what `prepare` and the two pointers hold, also after an error.
static Status run_cpu_once(KernelContext *context, KernelPrepare *prepare) {
  const Node *node = context->node;
  if (node->op->workspace) TRY(node->op->workspace(prepare));
  TRY(temporary_alloc(node, "workspace", prepare->workspace_bytes, &context->workspace));
  TRY(temporary_alloc(node, "scratch", prepare->scratch_bytes, &context->scratch));
  if (node->op->prepare) TRY(node->op->prepare(prepare));
  context->prepared = prepare->prepared;
  return node->op->run_cpu(context);
}

Status kernel_run_once(const Node *node, const Tensor *in, const Tensor *out, Isa isa, bool reference) {
  static const RunClock first = {.micro_per_rank = 1};
  KernelContext context = {.node = node, .in = in, .n_in = node->n_inputs, .out = out, .n_out = node->n_outputs,
                           .loops = loops_for(isa), .isa = isa, .clock = &first};
  if (reference || !kernel_uses_cpu(node, isa)) return node->op->run_ref(&context);
  KernelPrepare prepare = {.node = node, .isa = isa};
  Status status = run_cpu_once(&context, &prepare);
  if (prepare.destroy) prepare.destroy(prepare.prepared);
  free(context.workspace);
  free(context.scratch);
  return status;
}

Status kernel_parse_decimal(const Node *node, const char *attribute, const char *text, double min, double max, double *out) {
  char *end;
  double value = strtod(text, &end);
  if (end == text || *end || !(value >= min && value <= max))
    FAIL(MALFORMED, node->name, "attribute %s = \"%s\" must be a decimal number between %g and %g", attribute, text, min, max);
  *out = value;
  return NULL;
}

void kernel_numerics_key(Isa isa, char *out, size_t out_bytes) {
  const dnnl_version_t *v = dnnl_version();
  snprintf(out, out_bytes, "%s onednn-%d.%d.%d plain", isa_name(isa), v->major, v->minor, v->patch);
}
