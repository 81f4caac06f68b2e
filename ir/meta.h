// What a Graph holds and ONNX has no field for, as (key, text) pairs: the one table behind the `#@ key="..."` comments of the text form
// and the metadata_props of plan files (there each key carries META_PREFIX). Enumerating leaves defaults out, so a plain model has no pairs;
// setting pairs that were enumerated gives the same graph back.
//
// Where things lie in an ONNX graph, in text and in files alike:
//   - graph.input: graph->inputs in order, then every other value without producer and without weight (ROLE_CONTROL, a parameter without
//     bytes, carried values) in id order. Before its pairs are set, a value's role is ACTIVATION with a producer, CONST with a weight,
//     else INPUT.
//   - graph.initializer: every value with a weight (not repeated in graph.input). graph.output: graph->outputs. graph.value_info: all others.
//   - opset_import[""] = graph->opset, opset_import["tessera"] = 1; the file's own ir_version is 10 (graph->ir_version is the source's: a pair).
//   - a node without name is called after its first output; without the pair `origin` it stems from itself.
//
// Errors: hostile pairs give STATUS_MALFORMED naming the key, never a crash. Threads: as Graph.
#ifndef TESSERA_META_H
#define TESSERA_META_H

#include "graph.h"

#define META_PREFIX "tessera."
// Keys of pairs that files carry in fields of their own (ModelProto.configuration, NodeProto.device_configurations), not as metadata.
#define META_CONFIGURATIONS "configurations"
#define META_SHARDING "device_configurations"

typedef struct MetaPair { const char *key, *text; } MetaPair;

// All pairs in a fixed order; *out and its strings lie in `arena`. Returns their number.
// Keys of a value: role ("param": trainable, "frozen": a parameter that is not, ...), trainable (of other roles), dtype (where it is
// not that of its weight), placement ("dp:flat(3) tp:split(1)"), tier, layout, of, carry, bucket, state_name, state_shape,
// loc ("BUFFER+OFFSET" or "BUFFER+OFFSET+STRIDE*rank"), doc.
size_t meta_of_value(const Graph *graph, const Value *value, Arena *arena, MetaPair **out);
// Keys of a node: phase, backward, origin, recomputes, cause.param, cause.node, cause.pass, queue, guard, region, workspace, scratch, waits (JSON list of names),
// device_configurations (JSON list).
size_t meta_of_node(const Graph *graph, const Node *node, Arena *arena, MetaPair **out);
// Keys of a graph: facts, source_ir_version, mesh ("dp=2,tp=2"), configurations (JSON list), loss, loss_count, loss_report, norm_report,
// inverse_count, recipe.*, and JSON objects bucket.0, bucket.1, ..., buffer.0, ..., saving.0, ...
size_t meta_of_graph(const Graph *graph, Arena *arena, MetaPair **out);

// The name of a fact, one bit of Graph.facts: "typed", "summed", ...
const char *fact_name(uint32_t fact);

// Is the text of this key a JSON object or list (on one line)? The text form prints it as it stands.
bool meta_is_json(const char *key);

// Setting goes in two rounds, because pairs name values and nodes that may come later: set all, then finish once, when all values and nodes
// (with final names and ids) and all graph pairs are there. Values have their default role and nodes PHASE_MICRO, origin = name before.
typedef struct MetaReader MetaReader;
MetaReader *meta_reader_create(Graph *graph);                             // in graph->arena
MUST_USE Status meta_set_value(MetaReader *reader, Value *value, const char *key, const char *text);
MUST_USE Status meta_set_node(MetaReader *reader, Node *node, const char *key, const char *text);
MUST_USE Status meta_set_graph(MetaReader *reader, const char *key, const char *text);   // bucket.N in order of N, likewise buffer, saving
MUST_USE Status meta_finish(MetaReader *reader);                          // resolves names and checks indices

// `text` as a JSON string with its quotes, in `arena`. Bytes from 0x80 on pass unchanged.
const char *meta_quote(Arena *arena, const char *text);

#endif
