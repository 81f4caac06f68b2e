// Numbers of a graph by name: the one table behind --expect, `show --metrics`, and what `diff` compares and limits.
//
//   steps, parameters, inputs, ...       of every graph (a model's nodes are its steps)
//   sent_bytes, peak.device, ranks, ...  of plans only
//   OPERATOR                             number of its nodes: MatMul, AllGather; 0 where there is none
//   COLLECTIVE.bytes                     logical bytes that it sends per rank and step, without `frozen.bytes` and `control.bytes`, which are counted apart
//   sent_bytes.TYPE                      of sent_bytes, what travels in that element type: sent_bytes.bfloat16
//   peak.device.CATEGORY                 of a process, at the peak: params, grads, activations, ...
// Sums that pass 2^63 - 1 stay there. Threads: one; nothing is kept but in the arena given.
#ifndef TESSERA_METRICS_H
#define TESSERA_METRICS_H

#include "../ir/plan.h"

typedef enum MetricUnit { METRIC_COUNT, METRIC_BYTES } MetricUnit;

// What a number or a difference is about; the words of --only and --ignore.
typedef enum Topic { TOPIC_COMM, TOPIC_MEMORY, TOPIC_ORDER, TOPIC_OPERATORS, TOPIC_PRECISION, TOPIC_PARAMETERS, TOPIC_OPTIONS, TOPIC_COUNT } Topic;
const char *topic_name(Topic topic);

typedef struct Metric {
  const char *name, *help;     // help: a phrase; NULL for operators
  Topic topic;
  MetricUnit unit;
  bool of_plans;               // means nothing to a graph that is no plan
  int64_t value;
} Metric;

typedef struct Metrics Metrics;

// Reads all of them off `graph`, which must outlive the result. Under the caller's ARENA_GUARD. Linear in nodes.
Metrics *metrics_read(const Graph *graph, Arena *arena);

// What is known of a name without a graph (value 0); false: no metric is called so.
bool metric_describe(const char *name, Metric *out);

// USAGE when the name is unknown (with the nearest, and where they are listed), or means nothing to this graph.
MUST_USE Status metric_find(const Metrics *metrics, const char *name, Metric *out);
MUST_USE Status metric_unknown(const char *name, Arena *arena);       // that error

// All that the graph has: fixed names in the table's order, then operators that occur, by name. Returns their number.
size_t metrics_list(const Metrics *metrics, Arena *arena, Metric **out);

bool metric_is_listed(const Metric *list, size_t n, const char *name);

// "sent_bytes, AllGather.bytes, ...": what can be asked for, one paragraph, for errors and help.
const char *metrics_names(Arena *arena);

// "24", "3355443 (3.2 MiB)"; returns `out`.
enum { METRIC_TEXT_BYTES = 64 };
const char *metric_text(const Metric *metric, char out[METRIC_TEXT_BYTES]);

MUST_USE Status metrics_print(const Graph *graph);                    // on stdout: "NAME VALUE", one a line

#endif
