// The whole compiler on one screen.
#include <stddef.h>

#include "pass.h"

const char *const pipeline_simplify[] = {"infer_types", "check_sharding", "fold_constants", "merge_common", "dead_code", NULL};

const char *const pipeline_train[] = {
    "carry_buffers",        // before anything could take running statistics for constants
    "fuse_gelu",            // while constants have the model's own element type
    "widen",                // first, so that constants are computed in double, too
    "infer_types",
    "check_sharding",       // of the model, before nodes change
    "fold_constants",
    "lower_einsum",
    "merge_common",
    "attach_loss",
    "sum_loss",             // (sum, count): micro-batches add up exactly
    "fuse_transpose",
    "dead_code",
    "tile_params",
    "mixed_precision",
    "fold_constants",       // casts of constants
    "dead_code",
    "build_backward",
    "merge_common",         // what backward computes again and forward has already
    "fuse_gather_grad",
    "dead_code",
    "fuse_elementwise",
    "recompute",            // whole fused nodes
    "dead_code",            // results of theirs that only backward read
    "attach_optimizer",
    "accumulate",
    "dead_code",            // the mean that the sum has replaced
    "order_memory",         // before buckets follow from the order
    "partition",            // decides placements
    "bucket_collectives",
    "insert_collectives",   // lowers them
    "offload_activations",  // what backward reads, from forward's last use to backward's first
    "offload",              // moves what can wait to another tier
    "prefetch",             // moves collectives ahead
    "schedule",
    "plan_memory",
    NULL,
};
