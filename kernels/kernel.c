#include "kernel.h"

#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "widened.h"

bool kernel_is_control(const Node *node, const Type *type) {
  return !strcmp(node->op->domain, "tessera") && type->dtype == DTYPE_F64 && type->rank == 0;
}

static bool all_floats_fit(const Node *node) {
  bool any = false;
  for (int i = 0; i < node->n_inputs + node->n_outputs; i++) {
    const Value *v = i < node->n_inputs ? node->inputs[i] : node->outputs[i - node->n_inputs];
    if (!v || !dtype_is_float(v->type.dtype)) continue;
    bool halves = node->op->flags & OP_READS_HALVES && dtype_of_sums(v->type.dtype) == DTYPE_F32;
    if (v->type.dtype == DTYPE_F32 || halves) any = true;
    else if (!kernel_is_control(node, &v->type)) return false;
  }
  return any;
}

KernelChoice kernel_choice(const Node *node, Isa isa) {
  if (!node->op->run_cpu || isa == ISA_SCALAR) return KERNEL_REFERENCE;
  if (all_floats_fit(node)) return KERNEL_FAST;
  return widened_applies(node) ? KERNEL_WIDENED : KERNEL_REFERENCE;
}

Status kernel_temporaries(KernelPrepare *prepare) {
  switch (kernel_choice(prepare->node, prepare->isa)) {
  case KERNEL_REFERENCE: break;
  case KERNEL_FAST: return prepare->node->op->workspace ? prepare->node->op->workspace(prepare) : STATUS_OK;
  case KERNEL_WIDENED: return widened_workspace(prepare);
  }
  return STATUS_OK;
}

Status kernel_prepare(KernelPrepare *prepare, KernelRun *out) {
  const Op *op = prepare->node->op;
  KernelChoice choice = kernel_choice(prepare->node, prepare->isa);
  *out = choice == KERNEL_REFERENCE ? op->run_ref : choice == KERNEL_FAST ? op->run_cpu : widened_run;
  if (choice == KERNEL_WIDENED) return widened_prepare(prepare);
  TRY(kernel_temporaries(prepare));
  return choice == KERNEL_FAST && op->prepare ? op->prepare(prepare) : STATUS_OK;
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

// Temporaries, prepared state and the run itself; the caller frees what `prepare` and the two pointers hold, also after an error.
static Status run_once(KernelContext *context, KernelPrepare *prepare) {
  KernelRun run;
  TRY(kernel_prepare(prepare, &run));
  TRY(temporary_alloc(context->node, "workspace", prepare->workspace_bytes, &context->workspace));
  TRY(temporary_alloc(context->node, "scratch", prepare->scratch_bytes, &context->scratch));
  context->prepared = prepare->prepared;
  return run(context);
}

Status kernel_run_once(const Node *node, const Tensor *in, const Tensor *out, Isa isa, bool reference) {
  static const RunClock first = {.micro_per_rank = 1};
  KernelContext context = {.node = node, .in = in, .n_in = node->n_inputs, .out = out, .n_out = node->n_outputs,
                           .loops = loops_for(isa), .isa = isa, .clock = &first};
  if (reference) return node->op->run_ref(&context);
  KernelPrepare prepare = {.node = node, .isa = isa};
  Status status = run_once(&context, &prepare);
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
