#include "metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/op.h"
#include "options.h"
#include "progress.h"
#include "report.h"

enum { DTYPE_NUMBERS = 32 };    // of dtype.def, and room

typedef struct Totals {
  int64_t steps, phase[PHASE_COUNT], queue[QUEUE_COUNT], waits, collectives;
  int64_t inputs, outputs, parameters, parameter_elems, parameter_bytes, frozen;
  int64_t ranks, zero, micro_per_rank, buckets, buffers;
  int64_t sent, copied, wire, saved, formula, padded, sent_control, sent_frozen;
  int64_t peak[TIER_COUNT], peak_per_rank, lower_bound, fragmentation, category[CATEGORY_COUNT];
  int64_t sent_dtype[DTYPE_NUMBERS];      // by element type on the wire
} Totals;

typedef struct Row {
  const char *name;
  Topic topic;
  const char *help;
  MetricUnit unit;
  bool of_plans;
  size_t offset;               // in Totals
} Row;

#define COUNT(name, topic, field, plans, help) {name, TOPIC_##topic, help, METRIC_COUNT, plans, offsetof(Totals, field)}
#define BYTES(name, topic, field, plans, help) {name, TOPIC_##topic, help, METRIC_BYTES, plans, offsetof(Totals, field)}
static const Row rows[] = {
    COUNT("steps", OPERATORS, steps, false, "steps of a plan, nodes of a model"),
    COUNT("steps.init", OPERATORS, phase[PHASE_INIT], true, "steps at start"),
    COUNT("steps.micro", OPERATORS, phase[PHASE_MICRO], true, "steps of a micro-batch"),
    COUNT("steps.update", OPERATORS, phase[PHASE_UPDATE], true, "steps of an update"),
    COUNT("queue.compute", ORDER, queue[QUEUE_COMPUTE], true, "steps on that queue"),
    COUNT("queue.comm", ORDER, queue[QUEUE_COMM], true, "steps on that queue"),
    COUNT("queue.io", ORDER, queue[QUEUE_IO], true, "steps on that queue"),
    COUNT("waits", ORDER, waits, true, "waits of a queue for a step of another"),
    COUNT("collectives", COMM, collectives, false, "steps that communicate"),
    COUNT("inputs", OPERATORS, inputs, false, "inputs that data feed"),
    COUNT("outputs", OPERATORS, outputs, false, "outputs"),
    COUNT("parameters", PARAMETERS, parameters, false, "parameters that train"),
    COUNT("parameters.elements", PARAMETERS, parameter_elems, false, "their elements, without padding"),
    BYTES("parameters.bytes", PARAMETERS, parameter_bytes, false, "their bytes, without padding"),
    COUNT("parameters.frozen", PARAMETERS, frozen, false, "parameters that do not train"),
    COUNT("ranks", OPTIONS, ranks, true, "size of the mesh"),
    COUNT("zero", OPTIONS, zero, true, "ZeRO stage"),
    COUNT("micro_per_rank", OPTIONS, micro_per_rank, true, "micro-batches of a rank and step"),
    COUNT("buckets", PARAMETERS, buckets, true, "buckets of parameters"),
    COUNT("buffers", MEMORY, buffers, true, "buffers"),
    BYTES("sent_bytes", COMM, sent, true, "logical bytes sent per rank and step, control and frozen included"),
    BYTES("copied_bytes", COMM, copied, true, "those of them that are really copied; views copy nothing"),
    BYTES("wire_bytes", COMM, wire, true, "that leave a process in a step, of all its ranks; 0 where there is one"),
    BYTES("saved_bytes", COMM, saved, true, "sent less than the formula"),
    BYTES("formula_bytes", COMM, formula, true, "(N-1)/N psi (r + 1), or (r + 2k) at stage 3"),
    BYTES("padded_param_bytes", PARAMETERS, padded, true, "psi: parameters that train, padded"),
    BYTES("control.bytes", COMM, sent_control, true, "sent per rank and step for the loss, norms and flags"),
    BYTES("frozen.bytes", COMM, sent_frozen, true, "sent per rank and step for parameters that do not train"),
    BYTES("peak.device", MEMORY, peak[TIER_DEVICE], true, "memory of a process"),
    BYTES("peak.host", MEMORY, peak[TIER_HOST], true, "of a process, on the host beside a device"),
    BYTES("peak.nvme", MEMORY, peak[TIER_NVME], true, "of a process, on disk"),
    BYTES("peak.device.lower_bound", MEMORY, lower_bound, true, "no places of the plan's buffers take less"),
    BYTES("peak.device.fragmentation", MEMORY, fragmentation, true, "what the arenas take above that"),
    BYTES("peak.device.per_rank", MEMORY, peak_per_rank, true, "memory of a process divided by its ranks"),
};
#undef COUNT
#undef BYTES
enum { N_ROWS = sizeof rows / sizeof *rows };
static const char CATEGORY_PREFIX[] = "peak.device.", SENT_PREFIX[] = "sent_bytes.";

typedef struct OpTotal { const char *name; int64_t nodes; } OpTotal;

struct Metrics {
  bool is_plan;
  Totals totals;
  OpTotal *ops;                // by name
  size_t n_ops;
  KindBytes *kinds;
  size_t n_kinds;
};

const char *topic_name(Topic topic) {
  static const char *const names[TOPIC_COUNT] = {"comm", "memory", "order", "operators", "precision", "parameters", "options"};
  return names[topic];
}

// ---- Reading ------------------------------------------------------------------------------------------------------------------

static int compare_ops(const void *a, const void *b) { return strcmp(((const OpTotal *)a)->name, ((const OpTotal *)b)->name); }

static void count_ops(const Graph *graph, Arena *arena, Metrics *m) {
  size_t n_table = 0;
  while (op_table[n_table]) n_table++;
  int64_t *counts = ARENA_ARRAY(arena, int64_t, n_table + 1);
  for (size_t i = 0; i < graph->n_nodes; i++) {
    size_t k = 0;
    while (op_table[k] && op_table[k] != graph->nodes[i]->op) k++;
    counts[k]++;
  }
  m->ops = ARENA_ARRAY(arena, OpTotal, n_table + 1);
  for (size_t k = 0; k < n_table; k++)
    if (counts[k]) m->ops[m->n_ops++] = (OpTotal){op_table[k]->name, counts[k]};
  if (m->n_ops) qsort(m->ops, m->n_ops, sizeof *m->ops, compare_ops);
  size_t kept = 0;
  for (size_t k = 0; k < m->n_ops; k++) {      // one name in two domains is one metric
    if (kept && !strcmp(m->ops[kept - 1].name, m->ops[k].name)) m->ops[kept - 1].nodes += m->ops[k].nodes;
    else m->ops[kept++] = m->ops[k];
  }
  m->n_ops = kept;
}

static void count_steps(const Graph *graph, Totals *t) {
  for (size_t i = 0; i < graph->n_nodes; i++) {
    const Node *n = graph->nodes[i];
    t->phase[n->phase]++;
    t->queue[n->queue]++;
    t->waits += n->n_waits;
    t->collectives += (n->op->flags & OP_COLLECTIVE) != 0;
  }
  t->steps = (int64_t)graph->n_nodes;
}

static void count_parameter(Totals *t, bool trainable, const Type *type) {
  if (!trainable) t->frozen++;
  if (!trainable) return;
  t->parameters++;
  t->parameter_elems = bytes_add(t->parameter_elems, type_elems(type));
  t->parameter_bytes = bytes_add(t->parameter_bytes, type_bytes(type));
}

// Once there are buckets they say which parameters there are: then the graph's values are buckets, too.
static void count_parameters(const Graph *graph, Totals *t) {
  for (size_t b = 0; b < graph->n_buckets; b++)
    for (int i = 0; i < graph->buckets[b].n_params; i++) count_parameter(t, graph->buckets[b].trainable, &graph->buckets[b].types[i]);
  for (size_t i = 0; !graph->n_buckets && i < graph->n_values; i++) {
    const Value *v = graph->values[i];
    if (v->role == ROLE_PARAM && !v->producer) count_parameter(t, v->trainable, &v->type);
  }
}

static void count_bytes(const Graph *graph, Arena *arena, Metrics *m) {
  Totals *t = &m->totals;
  PlanBytes bytes = plan_bytes(graph, arena);
  LedgerEntry *entries;
  size_t n = plan_ledger(graph, arena, &entries);
  m->n_kinds = report_bytes_by_kind(entries, n, arena, &m->kinds);
  for (size_t k = 0; k < m->n_kinds; k++) {
    if (!strcmp(m->kinds[k].kind, "control")) t->sent_control = m->kinds[k].bytes;
    if (!strcmp(m->kinds[k].kind, "frozen")) t->sent_frozen = m->kinds[k].bytes;
  }
  for (size_t i = 0; i < n; i++) {
    int64_t *sent = &t->sent_dtype[(int)entries[i].wire < DTYPE_NUMBERS ? entries[i].wire : DTYPE_NONE];
    *sent = bytes_add(*sent, bytes_times(entries[i].bytes, entries[i].times));
  }
  t->sent = bytes.sent_bytes;
  t->copied = bytes.copied_bytes;
  t->wire = bytes.wire_bytes;
  t->saved = bytes.saved_bytes;
  t->formula = bytes.formula_bytes;
  t->padded = bytes.padded_param_bytes;
  t->peak[TIER_DEVICE] = bytes.tiers[TIER_DEVICE].peak_bytes;
  t->lower_bound = plan_lower_bound_bytes(graph, TIER_DEVICE, arena);
  t->fragmentation = bytes_add(t->peak[TIER_DEVICE], -t->lower_bound);
  int ranks = graph->recipe.ranks_per_process > 0 ? graph->recipe.ranks_per_process : 1;
  t->peak_per_rank = bytes_add(bytes.tiers[TIER_DEVICE].rank_arena_bytes, bytes.tiers[TIER_DEVICE].process_arena_bytes / ranks);
  memcpy(t->category, bytes.tiers[TIER_DEVICE].by_category, sizeof t->category);
}

Metrics *metrics_read(const Graph *graph, Arena *arena) {
  Metrics *m = ARENA_NEW(arena, Metrics);
  Totals *t = &m->totals;
  m->is_plan = graph->facts & FACT_PLANNED;
  count_ops(graph, arena, m);
  count_steps(graph, t);
  count_parameters(graph, t);
  t->inputs = (int64_t)graph->n_inputs;
  t->outputs = (int64_t)graph->n_outputs;
  t->ranks = mesh_ranks(&graph->mesh);
  t->zero = graph->recipe.zero;
  t->micro_per_rank = graph->recipe.micro_per_rank;
  t->buckets = (int64_t)graph->n_buckets;
  t->buffers = (int64_t)graph->n_buffers;
  if (m->is_plan) count_bytes(graph, arena, m);
  return m;
}

// ---- Names --------------------------------------------------------------------------------------------------------------------

static Metric row_metric(const Row *row, const Totals *totals) {
  int64_t value = totals ? *(const int64_t *)((const char *)totals + row->offset) : 0;
  return (Metric){row->name, row->help, row->topic, row->unit, row->of_plans, value};
}

static const Op *find_op(const char *name, size_t bytes) {
  for (const Op *const *op = op_table; *op; op++)
    if (!strncmp((*op)->name, name, bytes) && !(*op)->name[bytes]) return *op;
  return NULL;
}

static int find_category(const char *name) {
  size_t n = sizeof CATEGORY_PREFIX - 1;
  return strncmp(name, CATEGORY_PREFIX, n) ? -1 : enum_from_name(name + n, (EnumName)category_name, CATEGORY_COUNT);
}

static Dtype find_sent_dtype(const char *name) {
  size_t n = sizeof SENT_PREFIX - 1;
  Dtype dtype = strncmp(name, SENT_PREFIX, n) ? DTYPE_NONE : dtype_from_name(name + n);
  return (int)dtype < DTYPE_NUMBERS ? dtype : DTYPE_NONE;
}

static Metric sent_metric(const char *name, const Metrics *m, Dtype dtype) {
  return (Metric){name, "of sent_bytes, in that element type", TOPIC_COMM, METRIC_BYTES, true, m ? m->totals.sent_dtype[dtype] : 0};
}

static bool describe(const char *name, const Metrics *m, Metric *out) {
  for (int i = 0; i < N_ROWS; i++)
    if (!strcmp(rows[i].name, name)) {
      *out = row_metric(&rows[i], m ? &m->totals : NULL);
      return true;
    }
  int category = find_category(name);
  if (category >= 0) {
    *out = (Metric){name, "of peak.device", TOPIC_MEMORY, METRIC_BYTES, true, m ? m->totals.category[category] : 0};
    return true;
  }
  Dtype sent = find_sent_dtype(name);
  if (sent) {
    *out = sent_metric(name, m, sent);
    return true;
  }
  const char *dot = strrchr(name, '.');
  bool bytes = dot && !strcmp(dot, ".bytes");
  const Op *op = find_op(name, bytes ? (size_t)(dot - name) : strlen(name));
  if (!op || (bytes && !op->sent_bytes)) return false;
  *out = (Metric){name, NULL, bytes ? TOPIC_COMM : TOPIC_OPERATORS, bytes ? METRIC_BYTES : METRIC_COUNT, bytes, 0};
  for (size_t k = 0; m && !bytes && k < m->n_ops; k++)
    if (!strcmp(m->ops[k].name, op->name)) out->value = m->ops[k].nodes;
  for (size_t k = 0; m && bytes && k < m->n_kinds; k++)
    if (!strcmp(m->kinds[k].kind, op->name)) out->value = m->kinds[k].bytes;
  return true;
}

bool metric_describe(const char *name, Metric *out) { return describe(name, NULL, out); }

const char *metrics_names(Arena *arena) {
  char *all = NULL;
  for (int i = 0; i < N_ROWS; i++) all = arena_printf(arena, "%s%s%s", all ? all : "", all ? ", " : "", rows[i].name);
  for (int c = 0; c < CATEGORY_COUNT; c++) all = arena_printf(arena, "%s, %s%s", all, CATEGORY_PREFIX, category_name((Category)c));
  for (const Op *const *op = op_table; *op; op++)
    if ((*op)->sent_bytes) all = arena_printf(arena, "%s, %s.bytes", all, (*op)->name);
  return arena_printf(arena, "%s, %sTYPE for the element types on the wire; and every operator's name: how many nodes it has", all, SENT_PREFIX);
}

Status metric_unknown(const char *name, Arena *arena) {
  const char **names = NULL;
  size_t n = 0, capacity = 0;
  for (int i = 0; i < N_ROWS; i++) ARENA_PUSH(arena, names, n, capacity, rows[i].name);
  for (int c = 0; c < CATEGORY_COUNT; c++) {
    const char *category = arena_printf(arena, "%s%s", CATEGORY_PREFIX, category_name((Category)c));
    ARENA_PUSH(arena, names, n, capacity, category);
  }
  for (int d = 1; d < DTYPE_NUMBERS; d++)
    if (dtype_known(d)) ARENA_PUSH(arena, names, n, capacity, (const char *)arena_printf(arena, "%s%s", SENT_PREFIX, dtype_name((Dtype)d)));
  for (const Op *const *op = op_table; *op; op++) {
    ARENA_PUSH(arena, names, n, capacity, (*op)->name);
    if ((*op)->sent_bytes) ARENA_PUSH(arena, names, n, capacity, (const char *)arena_printf(arena, "%s.bytes", (*op)->name));
  }
  const char *nearest = options_nearest(name, names, (int)n);
  FAIL(USAGE, NULL, "no metric is called '%.80s'%s%s%s; there are: %s", name, nearest ? "; did you mean " : "", nearest ? nearest : "",
       nearest ? "?" : "", metrics_names(arena));
}

Status metric_find(const Metrics *m, const char *name, Metric *out) {
  Metric found;
  if (!describe(name, m, &found)) FAIL(USAGE, NULL, "no metric is called '%.80s'", name);
  if (found.of_plans && !m->is_plan) FAIL(USAGE, NULL, "'%s' is known of plans only, and this is none; 'tessera compile' makes one", name);
  *out = found;
  return STATUS_OK;
}

size_t metrics_list(const Metrics *m, Arena *arena, Metric **out) {
  Metric *list = NULL;
  size_t n = 0, capacity = 0;
  for (int i = 0; i < N_ROWS; i++)
    if (m->is_plan || !rows[i].of_plans) ARENA_PUSH(arena, list, n, capacity, row_metric(&rows[i], &m->totals));
  for (int c = 0; m->is_plan && c < CATEGORY_COUNT; c++) {
    const char *name = arena_printf(arena, "%s%s", CATEGORY_PREFIX, category_name((Category)c));
    ARENA_PUSH(arena, list, n, capacity, ((Metric){name, "of peak.device", TOPIC_MEMORY, METRIC_BYTES, true, m->totals.category[c]}));
  }
  for (int d = 1; d < DTYPE_NUMBERS; d++)
    if (m->totals.sent_dtype[d]) ARENA_PUSH(arena, list, n, capacity, sent_metric(arena_printf(arena, "%s%s", SENT_PREFIX, dtype_name((Dtype)d)), m, (Dtype)d));
  for (size_t k = 0; k < m->n_kinds; k++) {
    bool fixed = !strcmp(m->kinds[k].kind, "control") || !strcmp(m->kinds[k].kind, "frozen");
    const char *name = arena_printf(arena, "%s.bytes", m->kinds[k].kind);
    if (!fixed) ARENA_PUSH(arena, list, n, capacity, ((Metric){name, NULL, TOPIC_COMM, METRIC_BYTES, true, m->kinds[k].bytes}));
  }
  for (size_t k = 0; k < m->n_ops; k++) ARENA_PUSH(arena, list, n, capacity, ((Metric){m->ops[k].name, NULL, TOPIC_OPERATORS, METRIC_COUNT, false, m->ops[k].nodes}));
  *out = list;
  return n;
}

bool metric_is_listed(const Metric *list, size_t n, const char *name) {
  for (size_t i = 0; i < n; i++)
    if (!strcmp(list[i].name, name)) return true;
  return false;
}

const char *metric_text(const Metric *metric, char out[METRIC_TEXT_BYTES]) {
  char unit[32];
  if (metric->unit == METRIC_COUNT || metric->value < 1024) snprintf(out, METRIC_TEXT_BYTES, "%" PRId64, metric->value);
  else snprintf(out, METRIC_TEXT_BYTES, "%" PRId64 " (%s)", metric->value, bytes_text(metric->value, unit));
  return out;
}

static Status print_guarded(const Graph *graph, Arena *arena) {
  ARENA_GUARD(arena);
  Metric *list;
  size_t n = metrics_list(metrics_read(graph, arena), arena, &list);
  for (size_t i = 0; i < n; i++) printf("%s %" PRId64 "\n", list[i].name, list[i].value);
  ARENA_RETURN(arena, STATUS_OK);
}

Status metrics_print(const Graph *graph) {
  Arena *arena = arena_create(0);
  if (!arena) FAIL(RESOURCE, NULL, "out of memory for the metrics");
  Status s = print_guarded(graph, arena);
  arena_destroy(arena);
  return s;
}
