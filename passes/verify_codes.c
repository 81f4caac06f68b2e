// The codes of defects: stable, each with its meaning, in the order in which `tessera verify` groups them.
#include <string.h>

#include "verify_plan.h"

const PlanCode plan_codes[] = {
    {"structure", "structure", "ids, phases, guards or references are inconsistent"},
    {"structure", "graph", "arity, attributes, types or tables are not what the operators make and take"},
    {"structure", "recipe", "what the plan says of itself (ranks, processes, stage, reduction) is not what its steps do"},
    {"structure", "bucket", "a bucket's layout: starts, shards, an element owned twice or by nobody; a frozen one is trained"},
    {"structure", "placement", "a placement, by which checkpoints find a value, is not that of what the value is"},
    {"structure", "label", "name, role or bucket, by which checkpoints find a value, are not those of what it is"},
    {"structure", "report", "what is reported as loss, norm or count is not that"},
    {"communication", "agreement", "a collective's sizes, types, axis, parts or kind fit neither each other nor the mesh nor what it moves"},
    {"communication", "programs", "the programs of a plan are for another mesh, other ranks or other numbers of micro-batches"},
    {"communication", "bytes", "sent + saved bytes differ from the formula"},
    {"communication", "queue", "collectives lie on more than one queue"},
    {"communication", "deadlock", "steps wait for each other in a circle, on one rank or across ranks"},
    {"memory", "location", "a value leaves its buffer, a buffer its arena, or an address is not aligned"},
    {"memory", "workspace", "a kernel's workspace or scratchpad is smaller than it needs"},
    {"memory", "overwritten", "a step reads bytes that another value has overwritten: two live values overlap"},
    {"memory", "uninitialized", "a step reads bytes that nothing has written"},
    {"memory", "overlap", "a step's inputs, outputs and workspace share bytes although its operator does not allow it"},
    {"memory", "tier", "another step than a transfer touches what does not lie on the device, or a value and its buffer are of different tiers"},
    {"memory", "alias", "a view does not lie where its operator says"},
    {"memory", "budget", "a process holds more of a tier than the budget that the plan records"},
    {"memory", "carry", "a value becomes what it is not, or does not lie where its successor is read"},
    {"views", "use_before_gather", "a gathered value is read before its gather"},
    {"views", "use_after_release", "a gathered value is read after its release"},
    {"views", "never_released", "a gathered value is not released in the same phase"},
    {"views", "double_gather", "a value is gathered again before its release"},
    {"views", "release_without_gather", "a value is released and was not gathered"},
    {"views", "unguarded_write", "bytes that other ranks read are written without a guard"},
    {"views", "write_while_open", "a rank writes what it still reads gathered"},
    {"views", "shared_write", "all ranks write the same bytes"},
    {"order", "bad_wait", "a wait is for no step, itself, a later one, one of its own queue or of another phase, or stands twice"},
    {"order", "missing_wait", "a step reads what a step of another queue makes, gathers or releases, and does not wait for it"},
    {"order", "race", "two steps of different queues touch the same bytes, one writes, and no wait orders them"},
    {"ownership", "recompute", "a step computes something else again than the step of forward that it names"},
    {"ownership", "wrong_load", "a start value is not that of its bucket, constant or running statistics"},
    {"ownership", "wrong_parameter", "a parameter is taken out of another bucket, of a shard, or from another place"},
    {"ownership", "wrong_gradient", "a bucket's gradient joins another value, or an optimizer step takes another bucket's"},
    {"ownership", "wrong_state", "an optimizer state is another bucket's, another step's, or does not start at 0"},
    {"ownership", "wrong_input", "a step takes a value for what it is not: a counter, a rate, the loss, a shard"},
    {"ownership", "accumulation", "a sum is not over the micro-batches of the rank, each once"},
    {"ownership", "never_reduced", "a gradient, the loss or the norm is used without being summed over ranks"},
    {"ownership", "reduced_twice", "it is summed over ranks more than once, or a bucket has more than one reduction"},
    {"ownership", "reduced_incomplete", "it is summed over ranks in every micro-batch after it was summed over micro-batches"},
    {"ownership", "norm", "the norm leaves out a bucket's gradient, takes it twice, or mixes shards and whole ones"},
    {"ownership", "never_updated", "no step updates a trainable bucket"},
    {"ownership", "updated_twice", "more than one step updates a bucket"},
    {"ownership", "not_carried", "the new value of a bucket is lost: no later step reads it"},
    {NULL, NULL, NULL},
};

const PlanCode *plan_code_find(const char *code) {
  for (const PlanCode *c = plan_codes; c->code; c++)
    if (!strcmp(c->code, code)) return c;
  return NULL;
}
