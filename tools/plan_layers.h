// Which layer of the model a parameter, a step and a byte sent belong to: for people, who think in layers, not in steps.
//
// Layers are read off names, as exporters write them: `transformer.h.3.attn.weight` and `/transformer/h.3/attn/MatMul` are of layer
// `transformer.h.3`, `lm_head.weight` of `lm_head`. A step whose own name says nothing (torch.export's `node_linear_7`) is of the layer of the parameters
// that it reads, or else of the layer of what it computes from. Steps of the backward pass are of the layer of the node that they stem from.
// Ownership: everything lies in the given arena. Threads: one.
#ifndef TESSERA_PLAN_LAYERS_H
#define TESSERA_PLAN_LAYERS_H

#include "../ir/plan.h"

typedef struct Layer {
  const char *name;            // "transformer.h.3"; "" for what belongs to none
  const char *family;          // what it is one of: "transformer.h."; NULL where its name has no number
  int64_t index;               // 3; -1 where there is none
  int64_t n_params, param_elems;                 // trainable and frozen
  int64_t sent_bytes, gathered_bytes, reduced_bytes;   // per rank and step, its share of its buckets' collectives; sent = gathered + reduced + other
  size_t n_steps;              // of phase micro, forward and backward
} Layer;

typedef struct PlanLayers {
  Layer *items;                // [n], in order of first use; items[0] is what belongs to none
  size_t n;
  int32_t *of_step;            // [n_nodes]
  int32_t **of_param;          // [n_buckets][n_params]
} PlanLayers;

PlanLayers plan_layers(const Graph *program, const LedgerEntry *ledger, size_t n_ledger, Arena *arena);

// The name of the layer that `name`, of a parameter or of a node, stands for; NULL: it says nothing. *family, *index as in Layer. In `arena`.
const char *layer_name(const char *name, Arena *arena, const char **family, int64_t *index);

// Does `pattern` (parts joined by dots, * and ? in each) stand in `name` as neighbouring parts? "h.3", "h.*", "attn" all stand in
// "transformer.h.3.attn.weight"; slashes count as dots. NULL names match nothing.
bool layer_pattern_matches(const char *pattern, const char *name);
// The same for a step: its layer, its node and its cause are asked.
bool layer_pattern_takes_step(const char *pattern, const PlanLayers *layers, const Node *node);

// May two neighbours of one family be told as one line, "layers 0-95 alike"? Same figures but for bytes that do not divide evenly.
bool layers_alike(const Layer *a, const Layer *b);
// How many layers from `from` on, of ascending numbers, are alike: at least 1.
size_t layers_alike_run(const PlanLayers *layers, size_t from);
// "transformer.h.0-95", or the name of a single one; returns `out`.
const char *layers_run_name(const PlanLayers *layers, size_t from, size_t n, char *out, size_t out_bytes);

#endif
